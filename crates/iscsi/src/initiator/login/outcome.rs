//! What a login that is through has brought, and what the target told about itself on the way.

use lunette_wire::{Cid, CmdSn, Isid, StatSn, Tsih};

use super::{LoginError, Purpose};
use crate::chap::ChapAlgorithm;
use crate::parameters::value;
use crate::parameters::{ConnectionParameters, SessionParameters};

/// The longest description of itself that is kept of a target's (6.1: 255), in bytes.
const DESCRIPTION_LENGTH_MAX: usize = 255;

/// A connection in the full feature phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What the session is for.
    pub purpose: Purpose,
    /// Our part of the session's identifier.
    pub isid: Isid,
    /// The session's handle; further connections join with it. Not zero, but in some targets' discovery sessions.
    pub tsih: Tsih,
    /// The connection's name in the session.
    pub cid: Cid,
    /// The session's parameters; meaningless where a session was joined.
    pub session: SessionParameters,
    /// The connection's parameters.
    pub connection: ConnectionParameters,
    /// How people call the target (13.6).
    pub target_alias: Option<String>,
    /// The group of portals that the session belongs to (13.9); further connections go to portals of this group.
    pub portal_group_tag: Option<u16>,
    /// The CHAP algorithm, where somebody had to prove himself.
    pub algorithm: Option<ChapAlgorithm>,
    /// The number of the first command of a new session.
    pub cmd_sn: CmdSn,
    /// The command window at the end of the login, with `max_cmd_sn`.
    pub exp_cmd_sn: CmdSn,
    /// The last command number that the target takes now.
    pub max_cmd_sn: CmdSn,
    /// StatSN of the first response in the full feature phase.
    pub exp_stat_sn: StatSn,
}

/// What the target told about itself, in either stage.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) alias: Option<String>,
    pub(super) portal_group_tag: Option<u16>,
    pub(super) algorithm: Option<ChapAlgorithm>,
}

impl Told {
    /// True for a key that is the target's to declare, and no matter of negotiation. TargetName and TargetAddress mean
    /// nothing here, and there are targets that say them.
    pub(super) fn knows(name: &str) -> bool {
        ["TargetAlias", "TargetPortalGroupTag", "TargetName", "TargetAddress", "X#NodeArchitecture"]
            .contains(&name)
    }

    /// Takes what is declared in one complete text. Every stage may say it again (6.3.1), but not anew.
    pub(super) fn take(&mut self, pairs: &[(&str, &str)]) -> Result<(), LoginError> {
        for &(name, text) in pairs {
            match name {
                "TargetAlias" if text.len() <= DESCRIPTION_LENGTH_MAX => self.alias = Some(text.to_owned()),
                "TargetPortalGroupTag" => {
                    let tag = value::number(text).and_then(|tag| u16::try_from(tag).ok());
                    let Some(tag) = tag else {
                        return Err(LoginError::key(name, text, "is out of the key's range"));
                    };
                    if self.portal_group_tag.is_some_and(|before| before != tag) {
                        return Err(LoginError::key(name, text, "differs from what the target said before"));
                    }
                    self.portal_group_tag = Some(tag);
                }
                _ => {}
            }
        }
        Ok(())
    }
}
