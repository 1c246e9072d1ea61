//! Who may use a target, and what of it: rules by initiator name, address and CHAP user, and the units that each grants.
//!
//! The first rule that fits decides. Names are what initiators say of themselves and prove nothing (RFC 7143, 9.2); that is
//! what users are for. Not here: the views that device servers show (`crate::access`), and users (`chap`).

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use lunette_iscsi::name::{IscsiName, NAME_LENGTH_MAX};
use wildmatch::WildMatch;

use super::address_range::AddressRange;
use super::value::{LUN_MAX, LunNumber, ValueError};
use super::{Invalid, PortalConfig, Step, TargetConfig};
use crate::access::Caller;

/// Who is meant, and what they get. Conditions of one kind are alternatives; all kinds that are given must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccessRule {
    /// Names of initiators; empty: any.
    pub initiators: Vec<NamePattern>,
    /// Addresses of initiators; empty: any.
    pub addresses: Vec<AddressRange>,
    /// Addresses of portals through which they come; empty: any.
    pub portals: Vec<AddressRange>,
    /// Portal groups through which they come; empty: any.
    pub groups: Vec<u16>,
    /// CHAP users that were proven; empty: any, or nobody.
    pub users: Vec<String>,
    /// What they get.
    pub grant: Grant,
}

/// What a rule gives to those whom it fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant {
    /// Nothing: the login is refused.
    Nothing,
    /// Every unit under its own number.
    Everything {
        /// No unit may be changed.
        read_only: bool,
    },
    /// These units.
    Units(Vec<UnitGrant>),
}

impl Default for Grant {
    fn default() -> Self {
        Self::Everything { read_only: false }
    }
}

/// One unit of a target, as an initiator finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitGrant {
    /// The number for the initiator, 0 to [`LUN_MAX`].
    pub lun: u16,
    /// The unit's own number in its target.
    pub unit: u16,
    /// Changes are refused.
    pub read_only: bool,
}

impl FromStr for UnitGrant {
    type Err = ValueError;

    /// Reads `[N=]UNIT[,ro]`.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (numbers, read_only) = match text.split_once(',') {
            Some((numbers, "ro")) => (numbers, true),
            Some((_, option)) => {
                return Err(ValueError(format!(
                    "{option:?} is not known here; a unit may have ro behind it"
                )));
            }
            None => (text, false),
        };
        let (lun, unit) = numbers.split_once('=').unwrap_or((numbers, numbers));
        let number = |text: &str| {
            let form = || {
                ValueError(format!(
                    "{text:?} is not a LUN from 0 to {LUN_MAX}; write UNIT, or N=UNIT to show the unit as N, with ,ro for \
                     reading only: 3, \"0=3\" or \"0=3,ro\""
                ))
            };
            text.parse().map(|LunNumber(number)| number).map_err(|_| form())
        };
        Ok(Self { lun: number(lun)?, unit: number(unit)?, read_only })
    }
}

impl fmt::Display for UnitGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lun != self.unit {
            write!(f, "{}=", self.lun)?;
        }
        write!(f, "{}{}", self.unit, if self.read_only { ",ro" } else { "" })
    }
}

/// An initiator name in which `*` stands for any text and `?` for any character.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePattern(String);

impl NamePattern {
    fn fits(&self, name: &str) -> bool {
        WildMatch::new(&self.0).matches(name)
    }
}

impl FromStr for NamePattern {
    type Err = ValueError;

    /// Takes a name as initiators name themselves, with wildcards. It is brought to the spelling in which names are compared.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        // A pattern without its wildcards has to be a name; that also bounds it and keeps blanks out.
        let bare: String = text.chars().filter(|character| !matches!(character, '*' | '?')).collect();
        let is_wild = bare.len() < text.len();
        if text.len() > NAME_LENGTH_MAX {
            return Err(ValueError(format!(
                "an initiator name has at most {NAME_LENGTH_MAX} bytes, and so has a pattern"
            )));
        }
        if !(bare.is_empty() && is_wild) {
            IscsiName::from_peer(&bare).map_err(|error| ValueError(error.to_string()))?;
        }
        let starts = ["iqn.", "eui.", "naa."];
        let lower = text.to_lowercase();
        if !is_wild && !starts.iter().any(|start| lower.starts_with(start)) {
            return Err(ValueError(format!(
                "{text:?} is no initiator name, which begins with iqn., eui. or naa.; write the whole name, or a pattern \
                 such as *:{text}"
            )));
        }
        Ok(Self(lower))
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads what `--allow` takes: an address, a network, or the name of an initiator with wildcards.
///
/// # Errors
/// A sentence with examples.
pub fn parse_allow_flag(text: &str) -> Result<AccessRule, ValueError> {
    let looks_like_an_address = text.parse::<IpAddr>().is_ok() || text.contains('/');
    if looks_like_an_address {
        return Ok(AccessRule { addresses: vec![text.parse()?], ..AccessRule::default() });
    }
    Ok(AccessRule { initiators: vec![text.parse()?], ..AccessRule::default() })
}

impl AccessRule {
    /// Whether name, address and the way fit, whatever becomes of the user.
    pub(crate) fn fits(&self, caller: &Caller<'_>) -> bool {
        let is_in = |ranges: &[AddressRange], address| {
            ranges.is_empty() || ranges.iter().any(|range| range.has(address))
        };
        (self.initiators.is_empty() || self.initiators.iter().any(|pattern| pattern.fits(caller.initiator)))
            && is_in(&self.addresses, caller.address)
            && is_in(&self.portals, caller.portal)
            && (self.groups.is_empty() || self.groups.contains(&caller.group))
    }

    /// Whether the CHAP user, if there is one, fits.
    pub(crate) fn fits_user(&self, user: Option<&str>) -> bool {
        self.users.is_empty() || user.is_some_and(|user| self.users.iter().any(|other| other == user))
    }

    fn fits_everybody(&self) -> bool {
        self.initiators.is_empty()
            && self.addresses.is_empty()
            && self.portals.is_empty()
            && self.groups.is_empty()
            && self.users.is_empty()
    }
}

impl TargetConfig {
    /// The rules between a target's access rules, the portals, its users and its units. `place` is where the target is in a file.
    pub(super) fn validate_access(&self, place: &[Step], portals: &[PortalConfig]) -> Result<(), Invalid> {
        let own: HashSet<u16> = self.units.iter().map(|unit| unit.lun).collect();
        for (index, rule) in self.access.iter().enumerate() {
            let at = |key: &str| place.iter().cloned().chain(["access".into(), index.into(), key.into()]);
            if let Some(open) = self.access[..index].iter().position(AccessRule::fits_everybody) {
                let message = format!(
                    "this rule is never looked at: rule {} of target {} fits everybody; give the rules for few before \
                     those for many",
                    open + 1,
                    self.name
                );
                return Err(Invalid::new(
                    place.iter().cloned().chain(["access".into(), index.into()]),
                    message,
                ));
            }
            rule.check_way(self, portals).map_err(|(key, message)| Invalid::new(at(key), message))?;
            let users = &self.chap.users;
            if let Some(user) =
                rule.users.iter().find(|name| users.iter().all(|user| user.credential.name != **name))
            {
                let message = format!("target {} has no CHAP user {user}; add a [[target.user]]", self.name);
                return Err(Invalid::new(at("users"), message));
            }
            let Grant::Units(units) = &rule.grant else { continue };
            if let Err(message) = check_units(units, &own, &self.name) {
                return Err(Invalid::new(at("luns"), message));
            }
        }
        Ok(())
    }
}

impl AccessRule {
    /// That initiators can come the way that the rule names; else its key, and what is wrong with it.
    fn check_way(
        &self,
        target: &TargetConfig,
        portals: &[PortalConfig],
    ) -> Result<(), (&'static str, String)> {
        let bound = || portals.iter().filter(|portal| target.is_in(portal.group));
        if let Some(group) = self.groups.iter().find(|group| bound().all(|portal| portal.group != **group)) {
            let message = format!("target {} is not reached through portal group {group}", target.name);
            return Err(("groups", message));
        }
        // An address that stands for all of this machine's may turn out to be any of them.
        let is_in = |portal: &PortalConfig, range: &AddressRange| {
            portal.address.ip().is_unspecified() || range.has(portal.address.ip())
        };
        match self.portals.iter().find(|range| !bound().any(|portal| is_in(portal, range))) {
            Some(range) => {
                let message = format!("target {} has no portal with the address {range}", target.name);
                Err(("portals", message))
            }
            None => Ok(()),
        }
    }
}

fn check_units(units: &[UnitGrant], own: &HashSet<u16>, target: &str) -> Result<(), String> {
    if units.is_empty() {
        return Err(
            "a rule that grants no unit lets nobody in; write refuse = true, or leave luns out for all"
                .into(),
        );
    }
    let (mut luns, mut seen) = (HashSet::new(), HashSet::new());
    for grant in units {
        if !own.contains(&grant.unit) {
            return Err(format!("target {target} has no logical unit {}", grant.unit));
        }
        if !luns.insert(grant.lun) {
            return Err(format!(
                "LUN {} is given twice; an initiator finds one unit under a number",
                grant.lun
            ));
        }
        if !seen.insert(grant.unit) {
            return Err(format!(
                "logical unit {} is given twice; an initiator would take it for two disks",
                grant.unit
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_cases::cases;
    use proptest::prelude::*;

    fn fits(rule: &AccessRule, initiator: &str, address: &str) -> bool {
        let address = address.parse().unwrap();
        rule.fits(&Caller { initiator, address, portal: "192.0.2.1".parse().unwrap(), group: 1 })
    }

    fn rule(initiators: &[&str], addresses: &[&str]) -> AccessRule {
        AccessRule {
            initiators: initiators.iter().map(|text| text.parse().unwrap()).collect(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            ..AccessRule::default()
        }
    }

    #[test]
    fn names_fit_with_wildcards_in_either_case() {
        let host = |pattern: &str, name: &str| fits(&rule(&[pattern], &[]), name, "192.0.2.9");
        assert!(host("iqn.2026-11.example:Host-?", "iqn.2026-11.example:host-7"));
        assert!(!host("iqn.2026-11.example:host-?", "iqn.2026-11.example:host-77"));
        assert!(host("iqn.*:host*", "iqn.2026-11.example:host-77"));
        assert!(host("*", "anything"));
        assert!(!host("iqn.2026-11.example:host", "iqn.2026-11.example:host-7"));
        assert!(!host("iqn.2026-11.example:host", "xiqn.2026-11.example:host"));
    }

    #[test]
    fn all_kinds_of_conditions_must_hold_and_one_of_each_kind() {
        let rule = rule(&["iqn.a:*", "iqn.b:*"], &["192.0.2.0/24", "2001:db8::7"]);
        let fits = |name: &str, address: &str| fits(&rule, name, address);
        assert!(fits("iqn.a:x", "192.0.2.200") && fits("iqn.b:x", "2001:db8::7"));
        assert!(fits("iqn.a:x", "::ffff:192.0.2.9"), "an IPv4 address in IPv6 clothes");
        assert!(!fits("iqn.c:x", "192.0.2.200") && !fits("iqn.a:x", "192.0.3.1"));
        assert!(!fits("iqn.a:x", "2001:db8::8"));
        let users = AccessRule { users: vec!["alice".into()], ..AccessRule::default() };
        assert!(users.fits_user(Some("alice")));
        assert!(!users.fits_user(Some("bob")) && !users.fits_user(None));
        assert!(AccessRule::default().fits_user(None));
    }

    #[test]
    fn the_way_counts_by_the_portals_address_and_by_its_group() {
        let rule = AccessRule {
            portals: vec!["192.0.2.0/28".parse().unwrap(), "2001:db8::1".parse().unwrap()],
            groups: vec![1, 3],
            ..AccessRule::default()
        };
        assert!(!rule.fits_everybody());
        let fits = |portal: &str, group| {
            let address = "198.51.100.1".parse().unwrap();
            rule.fits(&Caller { initiator: "iqn.a", address, portal: portal.parse().unwrap(), group })
        };
        assert!(fits("192.0.2.15", 1) && fits("2001:db8::1", 3));
        assert!(!fits("192.0.2.16", 1) && !fits("192.0.2.15", 2));
    }

    #[test]
    fn units_are_granted_as_they_are_or_under_another_number() {
        for (text, lun, unit, read_only) in [
            ("3", 3, 3, false),
            ("0=3", 0, 3, false),
            ("0=3,ro", 0, 3, true),
            ("16383,ro", 16383, 16383, true),
        ] {
            let grant: UnitGrant = text.parse().unwrap();
            assert_eq!(grant, UnitGrant { lun, unit, read_only });
            assert_eq!(grant.to_string(), text);
        }
        for text in ["", "=", "1=", "=1", "1=2=3", "16384", "-1", "a", "1,rw", "1, ro"] {
            assert!(text.parse::<UnitGrant>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_what_would_be_right() {
        let pattern = |text: &str| text.parse::<NamePattern>().unwrap_err().0;
        assert!(pattern("host-a").contains("*:host-a"));
        assert!(pattern("iqn.a b").contains("character ' '"));
        assert!(pattern("").contains("1 to 223 bytes"));
        assert!(pattern(&"*".repeat(224)).contains("at most 223 bytes"));
    }

    #[test]
    fn a_flag_is_an_address_or_a_name() {
        let allow = |text: &str| parse_allow_flag(text);
        assert_eq!(allow("192.0.2.0/24").unwrap(), rule(&[], &["192.0.2.0/24"]));
        assert_eq!(allow("::1").unwrap(), rule(&[], &["::1"]));
        assert_eq!(allow("iqn.2026-11.example:host-*").unwrap(), rule(&["iqn.2026-11.example:host-*"], &[]));
        assert!(allow("192.0.2.0/240").unwrap_err().0.contains("nor a network"));
        assert!(allow("myhost").unwrap_err().0.contains("iqn."));
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn a_name_fits_itself_and_its_beginnings(name in "iqn\\.[a-z0-9.:-]{1,40}", cut in 4usize..44) {
            let cut = cut.min(name.len());
            let fits = |pattern: &str| fits(&rule(&[pattern], &[]), &name, "::1");
            prop_assert!(fits(&name) && fits(&name.to_uppercase()));
            let beginning = format!("{}*", &name[..cut]);
            let longer = format!("{name}?");
            prop_assert!(fits(&beginning) && !fits(&longer));
        }

        #[test]
        fn nothing_that_is_typed_panics(text in "\\PC{0,40}") {
            let _ = (parse_allow_flag(&text), text.parse::<UnitGrant>(), text.parse::<AddressRange>());
        }
    }
}
