//! What a target shows to whom: the rules of its configuration, joined with the views of its device.
//!
//! Looked at in logins and discovery only; a session keeps the view that it was given. Who somebody is, is found out before
//! (`lunette_iscsi::login`); here it is a name, an address and a proven user.

use std::net::IpAddr;
use std::sync::Arc;

use lunette_scsi::{ConfigError, Device, Lun, LunMap, MappedUnit};

use crate::config::{AccessRule, Grant};

/// One who asks for a target: what it says it is called, and which way it has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub(crate) initiator: &'a str,
    pub(crate) address: IpAddr,
    /// The address of this machine that it came to.
    pub(crate) portal: IpAddr,
    /// The portal group of that.
    pub(crate) group: u16,
}

impl Caller<'_> {
    /// All that access rules look at, as one text: sessions that have the same may copy between what they see.
    pub(crate) fn party(&self, user: Option<&str>) -> String {
        let Caller { initiator, address, portal, group } = self;
        // Only a user may have blanks in its name, so two parties never read alike.
        format!("{initiator} {address} {portal} {group} {}", user.unwrap_or_default())
    }
}

/// The access rules of one target.
#[derive(Debug)]
pub(crate) struct Access {
    /// Each rule with its view; none where it refuses.
    rules: Vec<(AccessRule, Option<Arc<LunMap>>)>,
    /// For everybody where there are no rules.
    everything: Arc<LunMap>,
}

impl Access {
    /// Makes a view of `device` for each rule.
    ///
    /// # Errors
    /// A rule grants a unit that is not there, or one twice.
    pub(crate) fn new(rules: &[AccessRule], device: &Device) -> Result<Self, ConfigError> {
        let rules = rules.iter().map(|rule| Ok((rule.clone(), view(&rule.grant, device)?)));
        let everything = Arc::new(LunMap::everything(device));
        Ok(Self { rules: rules.collect::<Result<_, _>>()?, everything })
    }

    /// What an initiator sees of the target once it has proven to be `user`; nothing where it may not log in.
    pub(crate) fn admit(&self, caller: &Caller<'_>, user: Option<&str>) -> Option<Arc<LunMap>> {
        if self.rules.is_empty() {
            return Some(Arc::clone(&self.everything));
        }
        let fitting = |(rule, _): &&(AccessRule, _)| rule.fits(caller) && rule.fits_user(user);
        self.rules.iter().find(fitting)?.1.clone()
    }

    /// Whether an initiator could be admitted as some user, or as nobody. Only those learn that there is a target.
    pub(crate) fn may_admit(&self, caller: &Caller<'_>) -> bool {
        for (rule, view) in self.rules.iter().filter(|(rule, _)| rule.fits(caller)) {
            match view {
                Some(_) => return true,
                None if rule.users.is_empty() => return false,
                // Another user may get further.
                None => {}
            }
        }
        self.rules.is_empty()
    }
}

fn view(grant: &Grant, device: &Device) -> Result<Option<Arc<LunMap>>, ConfigError> {
    let map = match grant {
        Grant::Nothing => return Ok(None),
        Grant::Everything { read_only: false } => LunMap::everything(device),
        Grant::Everything { read_only: true } => {
            let units = device.units().map(|(lun, _)| MappedUnit { lun, unit: lun, read_only: true });
            LunMap::new(device, units)?
        }
        Grant::Units(units) => {
            let units = units.iter().map(|grant| MappedUnit {
                lun: Lun::from_number(grant.lun),
                unit: Lun::from_number(grant.unit),
                read_only: grant.read_only,
            });
            LunMap::new(device, units)?
        }
    };
    Ok(Some(Arc::new(map)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::UnitGrant;
    use lunette_cases::cases;
    use proptest::prelude::*;

    fn device() -> Device {
        Device::new("iqn.2026-11.io.lunette:t", [1], []).unwrap()
    }

    fn rule(initiator: &str, users: &[&str], grant: Grant) -> AccessRule {
        AccessRule {
            initiators: vec![initiator.parse().unwrap()],
            users: users.iter().map(|&user| user.to_owned()).collect(),
            grant,
            ..AccessRule::default()
        }
    }

    fn access(rules: &[AccessRule]) -> Access {
        Access::new(rules, &device()).unwrap()
    }

    fn caller(initiator: &str) -> Caller<'_> {
        let here = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
        Caller { initiator, address: here, portal: here, group: 1 }
    }

    #[test]
    fn without_rules_everybody_sees_everything() {
        let open = access(&[]);
        assert!(open.admit(&caller("iqn.a"), None).unwrap().shows_everything());
        assert!(open.may_admit(&caller("iqn.a")));
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rules = [rule("iqn.a:bad", &[], Grant::Nothing), rule("iqn.a:*", &[], Grant::default())];
        let access = access(&rules);
        for (name, may) in [("iqn.a:bad", false), ("iqn.a:good", true), ("iqn.b:good", false)] {
            assert_eq!(access.admit(&caller(name), None).is_some(), may, "{name}");
            assert_eq!(access.may_admit(&caller(name)), may, "{name}");
        }
    }

    #[test]
    fn a_user_is_waited_for_before_somebody_is_turned_away() {
        let rules = [
            rule("iqn.*", &["guest"], Grant::Nothing),
            rule("iqn.*", &["alice"], Grant::default()),
            rule("*", &[], Grant::Nothing),
        ];
        let access = access(&rules);
        assert!(access.may_admit(&caller("iqn.a")));
        assert!(!access.may_admit(&caller("eui.a")));
        assert!(access.admit(&caller("iqn.a"), Some("alice")).is_some());
        assert!(access.admit(&caller("iqn.a"), Some("guest")).is_none());
        assert!(access.admit(&caller("iqn.a"), None).is_none());
    }

    #[test]
    fn a_unit_that_is_not_there_cannot_be_granted() {
        let grant = UnitGrant { lun: 0, unit: 4, read_only: false };
        let rule = rule("*", &[], Grant::Units(vec![grant]));
        assert_eq!(
            Access::new(&[rule], &device()).unwrap_err(),
            ConfigError::NoSuchUnit(Lun::from_number(4))
        );
    }

    fn any_rule() -> impl Strategy<Value = AccessRule> {
        let name = prop::sample::select(vec!["iqn.a", "iqn.b", "iqn.*", "*"]);
        let users = prop::sample::subsequence(vec!["alice", "bob"], 0..=2);
        let address = prop::sample::select(vec!["127.0.0.0/8", "192.0.2.1", "0.0.0.0/0"]);
        let portal = prop::sample::select(vec!["127.0.0.0/8", "0.0.0.0/0"]);
        (name, users, address, portal, any::<bool>()).prop_map(|(name, users, address, portal, refuses)| {
            AccessRule {
                addresses: vec![address.parse().unwrap()],
                portals: vec![portal.parse().unwrap()],
                ..rule(name, &users, if refuses { Grant::Nothing } else { Grant::default() })
            }
        })
    }

    proptest! {
        #![proptest_config(cases(256))]

        /// Discovery shows a target exactly to those who get in as somebody.
        #[test]
        fn whoever_gets_in_is_shown_the_target(
            rules in prop::collection::vec(any_rule(), 1..6),
            name in prop::sample::select(vec!["iqn.a", "iqn.b", "iqn.c", "eui.d"]),
            address in prop::sample::select(vec!["127.0.0.1", "192.0.2.1", "192.0.2.2"]),
            portal in prop::sample::select(vec!["127.0.0.1", "192.0.2.1"]),
        ) {
            let access = access(&rules);
            let caller = Caller { address: address.parse().unwrap(), portal: portal.parse().unwrap(), ..caller(name) };
            let users = [None, Some("alice"), Some("bob")];
            let gets_in = users.iter().any(|&user| access.admit(&caller, user).is_some());
            // A rule with users may wait for one that an earlier rule turns away: shown, and refused later.
            prop_assert!(access.may_admit(&caller) || !gets_in);
            if rules.iter().all(|rule| rule.users.is_empty()) {
                prop_assert_eq!(access.may_admit(&caller), gets_in);
            }
        }
    }
}
