//! `[[target.access]]` of `lunette.toml`, as it stands in the file.

use std::str::FromStr;

use serde::Deserialize;
use toml::Spanned;

use super::access::{AccessRule, Grant, NamePattern, UnitGrant};
use super::address_range::AddressRange;
use super::file::Fault;
use super::portal::Group;
use super::secret::parse_chap_name;
use super::value::{Parsed, ValueError};

/// One table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAccess {
    #[serde(default)]
    initiators: Vec<Parsed<NamePattern>>,
    #[serde(default)]
    addresses: Vec<Parsed<AddressRange>>,
    #[serde(default)]
    portals: Vec<Parsed<AddressRange>>,
    #[serde(default)]
    groups: Vec<Parsed<Group>>,
    #[serde(default)]
    users: Vec<Parsed<UserName>>,
    luns: Option<Vec<Parsed<UnitGrant>>>,
    #[serde(default)]
    ro: bool,
    #[serde(default)]
    refuse: bool,
}

#[derive(Debug)]
struct UserName(String);

impl FromStr for UserName {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        parse_chap_name(text).map(Self)
    }
}

impl RawAccess {
    /// The rule that a table stands for.
    pub(super) fn into_rule(raw: Spanned<Self>) -> Result<AccessRule, Fault> {
        let at = raw.span();
        let raw = raw.into_inner();
        let grant = match (raw.refuse, raw.luns) {
            (true, None) if !raw.ro => Grant::Nothing,
            (true, _) => {
                let message = "a rule that refuses grants nothing: leave out luns and ro, or refuse".into();
                return Err(Fault { at, message });
            }
            (false, None) => Grant::Everything { read_only: raw.ro },
            (false, Some(units)) => {
                let all_read_only = raw.ro;
                let grant = |Parsed(unit): Parsed<UnitGrant>| UnitGrant {
                    read_only: unit.read_only || all_read_only,
                    ..unit
                };
                Grant::Units(units.into_iter().map(grant).collect())
            }
        };
        Ok(AccessRule {
            initiators: raw.initiators.into_iter().map(|Parsed(pattern)| pattern).collect(),
            addresses: raw.addresses.into_iter().map(|Parsed(range)| range).collect(),
            portals: raw.portals.into_iter().map(|Parsed(range)| range).collect(),
            groups: raw.groups.into_iter().map(|Parsed(Group(group))| group).collect(),
            users: raw.users.into_iter().map(|Parsed(UserName(name))| name).collect(),
            grant,
        })
    }
}
