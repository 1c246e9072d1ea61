//! `[[target.port_group]]`: how well the logical units of a target can be reached through each of its portal groups
//! (SPC-4, asymmetric logical unit access).

use std::str::FromStr;

use lunette_scsi::AccessState;
use serde::Deserialize;

use super::value::{Parsed, ValueError};

/// What is said of a portal group, which is a target port group of SPC-4. Groups of which nothing is said are active and
/// optimized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortGroupConfig {
    /// Its tag.
    pub tag: u16,
    /// The state in which it begins.
    pub state: AccessState,
    /// Whether initiators shall prefer it among those that are in the same state.
    pub preferred: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPortGroup {
    tag: Parsed<Tag>,
    state: Option<Parsed<State>>,
    #[serde(default)]
    preferred: bool,
}

impl From<RawPortGroup> for PortGroupConfig {
    fn from(raw: RawPortGroup) -> Self {
        let Parsed(Tag(tag)) = raw.tag;
        let state = raw.state.map_or_else(AccessState::default, |Parsed(State(state))| state);
        Self { tag, state, preferred: raw.preferred }
    }
}

#[derive(Debug)]
struct Tag(u16);

impl FromStr for Tag {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.parse() {
            Ok(tag) if tag > 0 => Ok(Self(tag)),
            _ => Err(ValueError(format!("{text} is no portal group tag; use 1 to 65535"))),
        }
    }
}

#[derive(Debug)]
struct State(AccessState);

impl FromStr for State {
    type Err = ValueError;

    fn from_str(word: &str) -> Result<Self, ValueError> {
        parse_access_state(word).map(Self)
    }
}

/// Reads the word for an access state in which a group can begin, which is any but transitioning.
///
/// # Errors
/// [`ValueError`] lists the words.
pub fn parse_access_state(word: &str) -> Result<AccessState, ValueError> {
    match word {
        "active-optimized" => Ok(AccessState::ActiveOptimized),
        "active-non-optimized" => Ok(AccessState::ActiveNonOptimized),
        "standby" => Ok(AccessState::Standby),
        "unavailable" => Ok(AccessState::Unavailable),
        "offline" => Ok(AccessState::Offline),
        _ => Err(ValueError(format!(
            "state={word} is not known; use active-optimized, active-non-optimized, standby, unavailable or offline"
        ))),
    }
}
