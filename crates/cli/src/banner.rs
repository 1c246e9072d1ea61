//! What is served, for people: the logical units, the commands that connect to them, and what is worth knowing.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use lunette_target::config::WriteMode;
use lunette_target::{Server, TargetReport, UnitReport};

use crate::connect::{self, PLACEHOLDER, Portal};
use crate::failure::Said;

const UNITS: [(u64, &str); 5] =
    [(1 << 50, "PiB"), (1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];

/// The banner of a running server.
pub(crate) fn of(server: &Server, said: Said) -> String {
    render(server.portals(), server.targets(), said, connect::own_address)
}

fn render(
    portals: &[SocketAddr],
    targets: &[TargetReport],
    said: Said,
    own_address: impl Fn(IpAddr) -> Option<IpAddr>,
) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_banner(&mut text, portals, targets, said, own_address);
    text
}

fn write_banner(
    text: &mut String,
    portals: &[SocketAddr],
    targets: &[TargetReport],
    said: Said,
    own_address: impl Fn(IpAddr) -> Option<IpAddr>,
) -> std::fmt::Result {
    let listed: Vec<String> = portals.iter().map(SocketAddr::to_string).collect();
    writeln!(text, "Lunette {} serves at {}\n", env!("CARGO_PKG_VERSION"), listed.join(", "))?;
    for target in targets {
        write_target(text, target)?;
    }
    let first = targets.iter().find_map(|target| Some((target, target.units.first()?)));
    if let (Some(portal), Some((target, unit))) = (Portal::best_of(portals, own_address), first) {
        write_commands(text, &portal, target, unit, targets)?;
    }
    write_advice(text, portals, targets, said)
}

fn write_target(text: &mut String, target: &TargetReport) -> std::fmt::Result {
    let chap = if target.chap { ", CHAP" } else { "" };
    let access = match target.access.len() {
        0 => String::new(),
        1 => ", 1 access rule".to_owned(),
        count => format!(", {count} access rules"),
    };
    match &target.alias {
        Some(alias) => writeln!(text, "{} ({}){chap}{access}", target.name, printable(alias))?,
        None => writeln!(text, "{}{chap}{access}", target.name)?,
    }
    if let Some(redirect) = &target.redirect {
        let to: Vec<String> = redirect.addresses().iter().map(ToString::to_string).collect();
        let how = if redirect.is_permanent() { "for good" } else { "for now" };
        writeln!(text, "  initiators are sent {how} to {}", to.join(", "))?;
    }
    for unit in &target.units {
        let (store, size) = (printable(&unit.store), size(unit.size_bytes));
        let mut facts = vec![format!("{}-byte blocks", unit.block_length_bytes)];
        // Memory and null have it in their name.
        if !store.ends_with(&size) {
            facts.insert(0, size);
        }
        if let Some(protection) = unit.protection {
            facts.push(format!("protection={protection}"));
        }
        if unit.read_only {
            facts.push("read-only".to_owned());
        } else {
            facts.push(format!("write={}", unit.write_mode));
        }
        facts.push(format!("engine={}", unit.engine));
        if !unit.unmap && !unit.read_only {
            facts.push("no unmap".to_owned());
        }
        writeln!(text, "  LUN {:<3} {store}: {}", unit.lun, facts.join(", "))?;
        writeln!(text, "          {}, serial {}", unit.naa, unit.serial)?;
        if let Some(reason) = &unit.engine_reason {
            writeln!(text, "          engine=auto is {} here: {reason}", unit.engine)?;
        }
    }
    writeln!(text)
}

fn write_commands(
    text: &mut String,
    portal: &Portal,
    target: &TargetReport,
    unit: &UnitReport,
    targets: &[TargetReport],
) -> std::fmt::Result {
    writeln!(text, "Connect with")?;
    for recipe in connect::recipes(portal, &target.name, unit.lun) {
        for (index, command) in recipe.commands.iter().enumerate() {
            let initiator = if index == 0 { recipe.initiator } else { "" };
            writeln!(text, "  {initiator:<9} {command}")?;
        }
    }
    if targets.len() > 1 {
        writeln!(text, "For another target put its name in place of {}.", target.name)?;
    }
    if target.units.len() > 1 {
        writeln!(text, "For QEMU and iscsi-inq the last number is the LUN.")?;
    }
    if portal.is_incomplete() {
        writeln!(text, "Put an address of this machine in place of {PLACEHOLDER}.")?;
    }
    writeln!(text)
}

fn write_advice(
    text: &mut String,
    portals: &[SocketAddr],
    targets: &[TargetReport],
    said: Said,
) -> std::fmt::Result {
    let mut units = targets.iter().flat_map(|target| &target.units);
    if units.any(|unit| unit.write_mode == WriteMode::Through && !unit.read_only) {
        writeln!(
            text,
            "write=through: a write is answered when it is stable. write=back is faster, for initiators that flush."
        )?;
    }
    let open = targets.iter().filter(|target| !target.chap).count();
    if targets.iter().any(|target| !target.access.is_empty()) {
        writeln!(text, "Access rules show each initiator only the targets and units that it may use.")?;
    }
    if open < targets.len() {
        let which =
            if open == 0 { "Initiators log in" } else { "To the targets marked CHAP initiators log in" };
        writeln!(text, "{which} with CHAP: give them a user's name and secret.")?;
    }
    if portals.iter().all(|portal| portal.ip().is_loopback()) {
        let port = portals.first().map_or(3260, SocketAddr::port);
        let (portal, user) = match said {
            Said::InFlags => (format!("--portal 0.0.0.0:{port}"), "--chap-user"),
            Said::InFile => (format!("portals = [\"0.0.0.0:{port}\"]"), "a [[target.user]]"),
        };
        write!(text, "Only this machine can connect. To let others connect: {portal}")?;
        let warning = format!(" (without {user}, whoever reaches it can read and write)");
        writeln!(text, "{}.", if open > 0 { &warning } else { "" })?;
    } else if open > 0 {
        let which = if open == targets.len() { "these disks" } else { "the disks of targets without CHAP" };
        writeln!(text, "There is no authentication: whoever reaches a portal can read and write {which}.")?;
    }
    writeln!(text, "Ctrl-C drains and ends; a second one ends at once.")
}

/// File names may hold anything; a terminal must not be steered by them.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '\u{fffd}' } else { character }).collect()
}

/// A size in a unit that suits it; exact, or with the bytes beside it.
pub(crate) fn size(bytes: u64) -> String {
    let Some((unit_bytes, name)) = UNITS.into_iter().find(|(unit_bytes, _)| bytes >= *unit_bytes) else {
        return format!("{bytes} bytes");
    };
    if bytes.is_multiple_of(unit_bytes) {
        return format!("{} {name}", bytes / unit_bytes);
    }
    format!("{:.1} {name} ({bytes} bytes)", bytes as f64 / unit_bytes as f64)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use lunette_block::EngineKind;

    pub(crate) fn report() -> TargetReport {
        TargetReport {
            name: "iqn.2026-11.io.lunette:vm".into(),
            alias: Some("Machines".into()),
            chap: false,
            access: Vec::new(),
            groups: vec![1],
            redirect: None,
            units: vec![UnitReport {
                lun: 0,
                store: "file /srv/vm.img".into(),
                size_bytes: 20 << 30,
                block_length_bytes: 512,
                protection: None,
                read_only: false,
                write_mode: WriteMode::Through,
                engine: EngineKind::Threads,
                engine_reason: None,
                naa: "naa.3000000000000001".into(),
                serial: "S-1".into(),
                unmap: true,
            }],
        }
    }

    fn rendered(portals: &[&str], targets: &[TargetReport]) -> String {
        let portals: Vec<SocketAddr> = portals.iter().map(|portal| portal.parse().unwrap()).collect();
        render(&portals, targets, Said::InFlags, |_| None)
    }

    #[test]
    fn who_has_a_file_is_told_what_to_write_there() {
        let banner = render(&["127.0.0.1:3260".parse().unwrap()], &[report()], Said::InFile, |_| None);
        let told = "To let others connect: portals = [\"0.0.0.0:3260\"] (without a [[target.user]], whoever";
        assert!(banner.contains(told), "{banner}");
    }

    #[test]
    fn a_banner_says_what_is_served_and_how_to_connect() {
        let expected = format!(
            "\
Lunette {} serves at 127.0.0.1:3260

iqn.2026-11.io.lunette:vm (Machines)
  LUN 0   file /srv/vm.img: 20 GiB, 512-byte blocks, write=through, engine=threads
          naa.3000000000000001, serial S-1

Connect with
  Linux     iscsiadm --mode discovery --type sendtargets --portal 127.0.0.1:3260
            iscsiadm --mode node --targetname iqn.2026-11.io.lunette:vm --portal 127.0.0.1:3260 --login
  Windows   Start-Service MSiSCSI; New-IscsiTargetPortal -TargetPortalAddress 127.0.0.1 -TargetPortalPortNumber 3260
            Connect-IscsiTarget -NodeAddress iqn.2026-11.io.lunette:vm -TargetPortalAddress 127.0.0.1 -TargetPortalPortNumber 3260
  ESXi      esxcli iscsi software set --enabled=true
            HBA=$(esxcli iscsi adapter list | awk '/iscsi_vmk/ {{print $1; exit}}')
            esxcli iscsi adapter discovery sendtarget add --adapter=$HBA --address=127.0.0.1:3260
            esxcli storage core adapter rescan --adapter=$HBA
  QEMU      qemu-system-x86_64 -drive file=iscsi://127.0.0.1:3260/iqn.2026-11.io.lunette:vm/0,format=raw,if=virtio
  libiscsi  iscsi-ls --show-luns iscsi://127.0.0.1:3260
            iscsi-inq iscsi://127.0.0.1:3260/iqn.2026-11.io.lunette:vm/0

write=through: a write is answered when it is stable. write=back is faster, for initiators that flush.
Only this machine can connect. To let others connect: --portal 0.0.0.0:3260 (without --chap-user, whoever reaches it can read and write).
Ctrl-C drains and ends; a second one ends at once.
",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(rendered(&["127.0.0.1:3260"], &[report()]), expected);
    }

    #[test]
    fn a_wildcard_portal_warns_and_says_what_to_fill_in() {
        let banner = rendered(&["0.0.0.0:3261"], &[report()]);
        assert!(banner.contains("--portal ADDRESS:3261"), "{banner}");
        assert!(banner.contains("Put an address of this machine in place of ADDRESS."), "{banner}");
        assert!(banner.contains("There is no authentication: whoever"), "{banner}");
        assert!(!banner.contains("Only this machine"), "{banner}");
    }

    #[test]
    fn chap_is_told_and_takes_the_warning_away() {
        let locked = TargetReport { chap: true, ..report() };
        let banner = rendered(&["0.0.0.0:3261"], std::slice::from_ref(&locked));
        assert!(banner.contains("\niqn.2026-11.io.lunette:vm (Machines), CHAP\n"), "{banner}");
        assert!(
            banner.contains("Initiators log in with CHAP") && !banner.contains("no authentication"),
            "{banner}"
        );
        let inside = rendered(&["127.0.0.1:3261"], std::slice::from_ref(&locked));
        assert!(inside.contains("--portal 0.0.0.0:3261.\n"), "{inside}");
        let open = TargetReport { name: "iqn.2026-11.io.lunette:b".into(), ..report() };
        let mixed = rendered(&["0.0.0.0:3261"], &[locked, open]);
        assert!(mixed.contains("To the targets marked CHAP initiators log in"), "{mixed}");
        assert!(mixed.contains("the disks of targets without CHAP"), "{mixed}");
    }

    #[test]
    fn more_of_them_are_explained() {
        let mut first = report();
        let unit = UnitReport { lun: 300, read_only: true, unmap: false, ..first.units[0].clone() };
        first.units.push(unit);
        let second = TargetReport { name: "iqn.2026-11.io.lunette:b".into(), alias: None, ..report() };
        let banner = rendered(&["127.0.0.1:3260"], &[first, second]);
        assert!(
            banner.contains("  LUN 300 file /srv/vm.img: 20 GiB, 512-byte blocks, read-only, engine"),
            "{banner}"
        );
        assert!(banner.contains("\niqn.2026-11.io.lunette:b\n"), "{banner}");
        assert!(banner.contains("For another target put its name"), "{banner}");
        assert!(banner.contains("the last number is the LUN"), "{banner}");
    }

    #[test]
    fn back_is_only_praised_where_it_could_be_chosen() {
        let with = |change: fn(&mut UnitReport)| {
            let mut target = report();
            change(&mut target.units[0]);
            rendered(&["127.0.0.1:3260"], &[target])
        };
        assert!(with(|_| ()).contains("write=back is faster"));
        assert!(!with(|unit| unit.write_mode = WriteMode::Back).contains("is faster"));
        assert!(!with(|unit| unit.read_only = true).contains("is faster"));
        assert!(with(|unit| unit.unmap = false).contains(", no unmap\n"));
        assert!(
            with(|unit| unit.store = "memory, 20 GiB".into())
                .contains("memory, 20 GiB: 512-byte blocks, write")
        );
        assert!(
            with(|unit| unit.engine_reason = Some("it may".into()))
                .contains("\n          engine=auto is threads here: it may\n")
        );
        assert!(with(|unit| unit.store = "file /a\u{1b}[2Jb".into()).contains("file /a\u{fffd}[2Jb"));
    }

    #[test]
    fn sizes_are_readable_and_exact() {
        assert_eq!(size(512), "512 bytes");
        assert_eq!(size(1 << 40), "1 TiB");
        assert_eq!(size(1536 << 20), "1.5 GiB (1610612736 bytes)");
    }
}
