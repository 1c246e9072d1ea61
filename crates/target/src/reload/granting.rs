//! What stands against new access rules: they hold at once, for the disks and portals that are served, while other disks and
//! portals wait for a restart. Together they could give a host what neither configuration gives it.

use std::net::SocketAddr;
use std::path::Path;

use lunette_block::StoreSpec;

use super::{ReloadError, listed};
use crate::config::{AccessRule, Config, Grant, TargetConfig, UnitConfig};

/// Checks the new access rules of one target against what it serves until a restart.
///
/// # Errors
/// [`ReloadError::Unit`] and [`ReloadError::Way`].
pub(super) fn check(
    (before, old): (&Config, &TargetConfig),
    (after, new): (&Config, &TargetConfig),
) -> Result<(), ReloadError> {
    let who_gets_in =
        |config: &TargetConfig| (config.access.clone(), config.chap.clone(), config.redirect.clone());
    // Nobody logs in to a target that has moved, and sessions stay only with what they see.
    if who_gets_in(old) == who_gets_in(new) || new.redirect.is_some() {
        return Ok(());
    }
    for (lun, (old_unit, new_unit)) in listed(&old.units, &new.units, |unit| unit.lun) {
        // A new unit is not served before the restart.
        let Some(old_unit) = old_unit.filter(|_| may_open(old, new, lun)) else { continue };
        if let Some(difference) = difference(old_unit, new_unit) {
            return Err(ReloadError::Unit { target: new.name.clone(), lun, difference });
        }
    }
    let names_a_way = |rule: &AccessRule| !rule.groups.is_empty() || !rule.portals.is_empty();
    let (served, wanted) = (ways(before, old), ways(after, new));
    let is_held = if new.access.iter().any(names_a_way) {
        served.iter().all(|way| wanted.contains(way))
    } else {
        served.iter().all(|(address, _)| wanted.iter().any(|(other, _)| other == address))
    };
    if is_held { Ok(()) } else { Err(ReloadError::Way { target: new.name.clone() }) }
}

/// Whether the target could show a unit to somebody who does not get it now. What only takes from hosts is none of that, so that a
/// leak can be stopped while a disk waits for the restart.
fn may_open(old: &TargetConfig, new: &TargetConfig, lun: u16) -> bool {
    let is_moved_here = old.redirect.is_some();
    let has_fewer_users = old.chap.mutual == new.chap.mutual
        && old.chap.users.is_empty() == new.chap.users.is_empty()
        && new.chap.users.iter().all(|user| old.chap.users.contains(user));
    let more_get_in = is_moved_here || !has_fewer_users;
    more_get_in && may_grant(new, lun) || rules_may_open(&old.access, &new.access, lun)
}

/// The same of rules, of which the first that fits a host counts, and without which all get everything.
fn rules_may_open(old: &[AccessRule], new: &[AccessRule], lun: u16) -> bool {
    if old.is_empty() || new.is_empty() {
        return !old.is_empty();
    }
    let mut left = old.iter();
    for (at, rule) in new.iter().enumerate() {
        match left.clone().position(|other| other == rule) {
            Some(0) => _ = left.next(),
            // Whom the rules between have fitted, this one or one behind it may.
            Some(_) if new[at..].iter().any(|rule| grants(rule, lun)) => return true,
            Some(skipped) => _ = left.nth(skipped),
            None if grants(rule, lun) => return true,
            None => {}
        }
    }
    false
}

/// Whether a rule of the target could show a unit to somebody.
fn may_grant(target: &TargetConfig, lun: u16) -> bool {
    target.access.is_empty() || target.access.iter().any(|rule| grants(rule, lun))
}

fn grants(rule: &AccessRule, lun: u16) -> bool {
    match &rule.grant {
        Grant::Nothing => false,
        Grant::Everything { .. } => true,
        Grant::Units(units) => units.iter().any(|grant| grant.unit == lun),
    }
}

/// What makes the served unit another disk than the new one, or one that is less protected.
fn difference(old: &UnitConfig, new: Option<&UnitConfig>) -> Option<&'static str> {
    let Some(new) = new else { return Some("is gone") };
    if !is_same_store(&old.store, &new.store) {
        return Some("has another store");
    }
    if old.serial != new.serial {
        return Some("has another serial number");
    }
    (new.read_only && !old.read_only).then_some("becomes read-only")
}

/// Whether the bytes are in one place; the size of an image only counts when it is created.
fn is_same_store(old: &StoreSpec, new: &StoreSpec) -> bool {
    match (path_of(old), path_of(new)) {
        (Some(old), Some(new)) => {
            let full = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            full(old) == full(new)
        }
        _ => old == new,
    }
}

fn path_of(store: &StoreSpec) -> Option<&Path> {
    match store {
        StoreSpec::File { path, .. } | StoreSpec::BlockDevice { path } => Some(path),
        StoreSpec::Memory { .. } | StoreSpec::Null { .. } => None,
    }
}

/// The portals through which a target is reached, each with its group, in one order.
fn ways(config: &Config, target: &TargetConfig) -> Vec<(SocketAddr, u16)> {
    let bound = config.portals.iter().filter(|portal| target.is_in(portal.group));
    let mut ways: Vec<_> = bound.map(|portal| (portal.address, portal.group)).collect();
    ways.sort_unstable();
    ways
}

#[cfg(test)]
mod tests {
    use lunette_iscsi::chap::{ChapCredential, ChapUser, Secret};

    use super::*;

    const TARGET: &str = "iqn.2026-11.io.lunette:t";
    const PORTALS: &str = r#"portals = ["127.0.0.1:3260"]"#;
    const HOST_A: &str = r#"{ initiators = ["iqn.2026-11.example:a"] }"#;
    const HOST_B: &str = r#"{ initiators = ["iqn.2026-11.example:b"] }"#;

    /// A file with one target: what stands before it, the tables of its units and of its access rules, and what else it has.
    fn config(before: &str, luns: &str, access: &str, more: &str) -> Config {
        let text =
            format!("{before}\n[[target]]\nname = {TARGET:?}\nlun = [{luns}]\naccess = [{access}]\n{more}");
        let config = Config::from_toml(&text, Path::new("/etc/lunette.toml"));
        config.unwrap_or_else(|error| panic!("{error}"))
    }

    fn checked(old: &Config, new: &Config) -> Result<(), String> {
        new.validate().unwrap();
        check((old, &old.targets[0]), (new, &new.targets[0])).map_err(|error| error.to_string())
    }

    /// Whether units may change from `old` to `new` while the access does.
    fn units(old: &str, new: &str, access: (&str, &str)) -> Result<(), String> {
        checked(&config(PORTALS, old, access.0, ""), &config(PORTALS, new, access.1, ""))
    }

    const A: &str = r#"{ number = 0, store = "a.img" }"#;

    #[test]
    fn what_would_be_another_disk_or_less_protected_is_not_granted_anew() {
        for (new, what) in [
            (r#"{ number = 0, store = "b.img" }"#, "has another store"),
            (r#"{ number = 0, store = "mem:1M" }"#, "has another store"),
            (r#"{ number = 0, store = "a.img", serial = "1" }"#, "has another serial number"),
            (r#"{ number = 0, store = "a.img", ro = true }"#, "becomes read-only"),
            (r#"{ number = 1, store = "b.img" }"#, "is gone"),
        ] {
            for access in [(HOST_A, HOST_B), (HOST_A, "")] {
                let refusal = units(A, new, access).unwrap_err();
                assert!(refusal.starts_with(&format!("target {TARGET}: LUN 0 {what},")), "{refusal}");
            }
            for access in [(HOST_A, HOST_A), ("", HOST_A)] {
                assert_eq!(units(A, new, access), Ok(()), "nobody else gets it");
            }
        }
    }

    #[test]
    fn what_stays_the_same_disk_is_granted_anew() {
        let protected = r#"{ number = 0, store = "a.img", ro = true }"#;
        assert_eq!(units(protected, A, (HOST_A, HOST_B)), Ok(()), "it is protected more than it has to be");
        for new in [
            r#"{ number = 0, store = "/etc/./a.img", size = "1G" }"#,
            r#"{ number = 0, store = "a.img", write = "back" }"#,
            r#"{ number = 0, store = "a.img" }, { number = 1, store = "b.img" }"#,
        ] {
            assert_eq!(units(A, new, (HOST_A, HOST_B)), Ok(()), "{new}");
        }
    }

    #[test]
    fn only_a_unit_that_the_new_rules_grant_counts() {
        let two = r#"{ number = 0, store = "a.img" }, { number = 1, store = "b.img" }"#;
        let other = r#"{ number = 0, store = "a.img" }, { number = 1, store = "c.img" }"#;
        let grants = |luns: &str| format!("{{ luns = [{luns}] }}");
        assert_eq!(units(two, other, (HOST_A, &grants(r#""5=0""#))), Ok(()));
        assert!(
            units(two, other, (HOST_A, &grants(r#""0=1""#))).unwrap_err().contains("LUN 1 has another store")
        );
        assert_eq!(units(two, other, (HOST_A, "{ refuse = true }")), Ok(()));
    }

    /// The disk waits for tonight, and a leak must not.
    #[test]
    fn what_is_only_taken_from_hosts_is_taken_at_once() {
        let (two, other) = (
            r#"{ number = 0, store = "a.img" }, { number = 1, store = "b.img" }"#,
            r#"{ number = 0, store = "a.img" }, { number = 1, store = "c.img" }"#,
        );
        let changed = |old: &[&str], new: &[&str]| {
            let [old, new] = [old, new].map(|rules| rules.join(", "));
            units(two, other, (&old, &new))
        };
        let zero_to_b = r#"{ initiators = ["iqn.2026-11.example:b"], luns = ["0=0"] }"#;
        let refuse_a = r#"{ initiators = ["iqn.2026-11.example:a"], refuse = true }"#;
        assert_eq!(changed(&[HOST_A, HOST_B], &[HOST_A]), Ok(()));
        assert_eq!(changed(&[HOST_A], &[HOST_A, zero_to_b]), Ok(()));
        assert_eq!(changed(&[HOST_A], &[refuse_a, HOST_A]), Ok(()));
        // What stood before a rule that grants it may have kept somebody from that.
        assert!(changed(&[refuse_a, HOST_A], &[HOST_A]).is_err());
        assert!(changed(&[zero_to_b, HOST_A], &[HOST_A]).is_err());
        assert!(changed(&[HOST_A, zero_to_b], &[zero_to_b, HOST_A]).is_err());
        assert!(changed(&[HOST_A], &[HOST_A, HOST_B]).is_err());

        let user = |name: &&str| ChapUser {
            credential: ChapCredential { name: (*name).to_owned(), secret: Secret::new("0123456789abcdef") },
            initiators: Vec::new(),
        };
        let with_users = |luns: &str, names: &[&str]| {
            let mut config = config(PORTALS, luns, HOST_A, "");
            config.targets[0].chap.users = names.iter().map(user).collect();
            config
        };
        let both = with_users(two, &["x", "y"]);
        assert_eq!(checked(&both, &with_users(other, &["x"])), Ok(()));
        assert!(checked(&both, &with_users(other, &["x", "z"])).is_err());
        assert!(checked(&both, &with_users(other, &[])).is_err(), "without users all get in");
    }

    #[test]
    fn a_target_that_has_moved_grants_nothing() {
        let old = config(PORTALS, A, HOST_A, "");
        let moved = |access: &str| config(PORTALS, "", access, r#"redirect = { to = ["192.0.2.1"] }"#);
        assert_eq!(checked(&old, &moved("")), Ok(()));
        let here_again = config(PORTALS, r#"{ number = 0, store = "b.img" }"#, HOST_A, "");
        let was_moved = Config {
            targets: vec![TargetConfig {
                units: old.targets[0].units.clone(),
                ..moved(HOST_A).targets[0].clone()
            }],
            ..old
        };
        assert!(checked(&was_moved, &here_again).is_err());
        let for_nobody = config(PORTALS, r#"{ number = 0, store = "b.img" }"#, "{ refuse = true }", "");
        assert_eq!(checked(&was_moved, &for_nobody), Ok(()), "it is here again, and shows nothing");
    }

    #[test]
    fn rules_that_name_a_way_have_to_wait_for_it() {
        let portals = |tags: [u16; 2]| {
            let portal =
                |(number, tag)| format!("[[portal]]\naddress = \"127.0.0.{number}\"\ngroup = {tag}\n");
            [1, 2].into_iter().zip(tags).map(portal).collect::<String>()
        };
        let old = config(&portals([1, 2]), A, "{ groups = [1] }", "");
        let new = |tags, access: &str, more: &str| config(&portals(tags), A, access, more);
        let refusal = checked(&old, &new([2, 1], "{ groups = [2] }", "")).unwrap_err();
        assert!(refusal.starts_with(&format!("target {TARGET}: the portals or groups")), "{refusal}");
        assert!(checked(&old, &new([1, 2], r#"{ portals = ["127.0.0.1"] }"#, "groups = [1]")).is_err());
        assert_eq!(checked(&old, &new([1, 2], "{ groups = [2] }", "")), Ok(()), "the ways are as before");
        assert_eq!(checked(&old, &new([2, 1], "{ groups = [1] }", "")), Ok(()), "the rules are as before");
        assert_eq!(checked(&old, &new([2, 1], HOST_A, "")), Ok(()), "no rule names a group");
        let third = format!("{}[[portal]]\naddress = \"127.0.0.3\"\ngroup = 3\n", portals([1, 2]));
        assert_eq!(
            checked(&old, &config(&third, A, "{ groups = [3] }", "")),
            Ok(()),
            "nobody comes there before the restart"
        );
        assert!(
            checked(&old, &new([1, 2], HOST_A, "groups = [1]")).is_err(),
            "there is one way more until the restart"
        );
    }
}
