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
    for (lun, (old, new_unit)) in listed(&old.units, &new.units, |unit| unit.lun) {
        // A new unit is not served before the restart.
        let Some(old) = old.filter(|_| may_grant(new, lun)) else { continue };
        if let Some(difference) = difference(old, new_unit) {
            return Err(ReloadError::Unit { target: new.name.clone(), lun, difference });
        }
    }
    let names_a_way = |rule: &AccessRule| !rule.groups.is_empty() || !rule.portals.is_empty();
    let (served, wanted) = (ways(before, old), ways(after, new));
    let is_held = if new.access.iter().any(names_a_way) {
        served == wanted
    } else {
        served.iter().all(|(address, _)| wanted.iter().any(|(other, _)| other == address))
    };
    if is_held { Ok(()) } else { Err(ReloadError::Way { target: new.name.clone() }) }
}

/// Whether a rule of the target could show a unit to somebody.
fn may_grant(target: &TargetConfig, lun: u16) -> bool {
    target.access.is_empty()
        || target.access.iter().any(|rule| match &rule.grant {
            Grant::Nothing => false,
            Grant::Everything { .. } => true,
            Grant::Units(units) => units.iter().any(|grant| grant.unit == lun),
        })
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
            for access in [(HOST_A, HOST_B), (HOST_A, ""), ("", HOST_A)] {
                let refusal = units(A, new, access).unwrap_err();
                assert!(refusal.starts_with(&format!("target {TARGET}: LUN 0 {what},")), "{refusal}");
            }
            assert_eq!(units(A, new, (HOST_A, HOST_A)), Ok(()), "nobody else gets it");
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
        assert!(
            checked(&old, &new([1, 2], HOST_A, "groups = [1]")).is_err(),
            "there is one way more until the restart"
        );
    }
}
