//! START STOP UNIT and PREVENT ALLOW MEDIUM REMOVAL (SBC-3).

use lunette_scsi::{Io, IoError, LogicalUnitConfig, Status};

use crate::host::*;

const EJECT: [u8; 5] = [0x1b, 0, 0, 0, 2];
const LOAD: [u8; 5] = [0x1b, 0, 0, 0, 3];
const START: [u8; 5] = [0x1b, 0, 0, 0, 1];
const STOP: [u8; 5] = [0x1b, 0, 0, 0, 0];
const PREVENT: [u8; 5] = [0x1e, 0, 0, 0, 1];
const ALLOW: [u8; 5] = [0x1e, 0, 0, 0, 0];

fn removable() -> LogicalUnitConfig {
    LogicalUnitConfig { removable: true, ..config() }
}

fn medium_commands() -> Vec<[u8; 16]> {
    let mut unmap = padded(&[0x42]);
    unmap[8] = 24;
    let mut commands =
        vec![padded(&[0]), padded(&[0x25]), cdb16(0x9e, 0x10, 0, 15), cdb16(0x9e, 0x12, 0, 24), unmap];
    for opcode in [0x28, 0x2a, 0x2e, 0x2f, 0x34, 0x35, 0x41] {
        commands.push(cdb10(opcode, 0, 0, 1));
    }
    for opcode in [0xa8, 0xaa, 0xae, 0xaf] {
        commands.push(cdb12(opcode, 0, 0, 1));
    }
    for opcode in [0x88, 0x8a, 0x8e, 0x8f, 0x90, 0x91, 0x93] {
        commands.push(cdb16(opcode, 0, 0, 1));
    }
    commands
}

/// SBC-3: START STOP UNIT; SPC-4: TEST UNIT READY.
#[test]
fn a_stopped_unit_says_so_until_it_is_started() {
    let mut host = Host::new(config());
    host.good(&STOP, &[]);
    assert_eq!(host.log(), [Io::Flush]);
    for cdb in medium_commands() {
        assert_eq!(host.code(&cdb), NOT_READY_STOPPED, "{cdb:02x?}");
    }
    assert_eq!(host.good(&[0x03, 0, 0, 0, 18], &[])[2..14], [2, 0, 0, 0, 0, 10, 0, 0, 0, 0, 4, 2]);
    for always in [&[0x12, 0, 0, 0, 36][..], &[0x1a, 0, 0x3f, 0, 255], &PREVENT, &ALLOW] {
        host.good(always, &[]);
    }
    host.good(&START, &[]);
    host.good(&cdb10(0x28, 0, 0, 1), &[]);
    host.good(&STOP, &[]);
    assert!(host.nexus.logical_unit_reset(host.lun));
    assert_eq!(host.code(&[0]), (6, 0x29, 3));
    assert_eq!(host.code(&[0]), GOOD, "a reset starts it");
}

#[test]
fn a_failed_flush_keeps_the_unit_running() {
    let mut host = Host::new(config());
    host.disk.fail = Some((|io| *io == Io::Flush, IoError::Faulted));
    assert_eq!(host.code(&STOP), (4, 0x03, 0));
    assert_eq!(host.code(&[0]), GOOD);
    host.good(&[0x1b, 0, 0, 0, 4], &[]);
    assert_eq!(host.code(&[0]), NOT_READY_STOPPED, "NO_FLUSH");
}

#[test]
fn a_fixed_unit_has_nothing_to_eject() {
    let mut host = Host::new(config());
    for cdb in [EJECT, LOAD] {
        assert_eq!(host.run(&cdb, &[]).field(), Some((4, Some(1))));
    }
    assert_eq!(host.code(&[0]), GOOD);
}

/// SBC-3: START STOP UNIT.
#[test]
fn a_removable_medium_is_ejected_and_loaded() {
    for immediate in [0, 1] {
        let mut host = Host::new(removable());
        host.good(&[0x1b, immediate, 0, 0, 2], &[]);
        assert_eq!(host.log(), [Io::Flush]);
        for cdb in medium_commands() {
            assert_eq!(host.code(&cdb), NO_MEDIUM, "{cdb:02x?}");
        }
        host.good(&EJECT, &[]);
        assert_eq!(host.code(&START), NO_MEDIUM);
        host.good(&STOP, &[]);
        assert_eq!(host.code(&[0]), NO_MEDIUM);
        host.good(&[0x1b, immediate, 0, 0, 3], &[]);
        assert_eq!(host.code(&[0]), GOOD);
    }
}

#[test]
fn a_removable_unit_stays_ready_when_it_is_only_stopped() {
    let mut host = Host::new(removable());
    for immediate in [0, 1] {
        for flags in [0, 1, 4, 5] {
            host.good(&[0x1b, immediate, 0, 0, flags], &[]);
            assert_eq!(host.code(&[0]), GOOD);
        }
    }
}

/// SBC-3: START STOP UNIT.
#[test]
fn power_conditions_do_nothing() {
    for config in [config(), removable()] {
        let mut host = Host::new(config);
        for condition in 1..16 {
            host.good(&[0x1b, 1, 0, 0, condition << 4 | 2], &[]);
            assert_eq!(host.code(&[0]), GOOD);
        }
        assert_eq!(host.log(), []);
    }
}

#[test]
fn other_nexuses_hear_of_a_loaded_medium() {
    let device = device(removable());
    let (mut first, mut second) = (Host::on(device.clone()), Host::on(device));
    first.good(&EJECT, &[]);
    assert_eq!(second.code(&[0]), NO_MEDIUM);
    second.good(&LOAD, &[]);
    assert_eq!(second.code(&[0]), GOOD);
    assert_eq!(first.code(&[0]), (6, 0x28, 0));
    assert_eq!(first.code(&[0]), GOOD);
    first.good(&LOAD, &[]);
    assert_eq!(second.code(&[0]), GOOD, "it was there already");
}

/// SBC-3: PREVENT ALLOW MEDIUM REMOVAL.
#[test]
fn prevention_holds_for_every_nexus_until_it_ends() {
    let device = device(removable());
    let (mut first, mut second) = (Host::on(device.clone()), Host::on(device));
    first.good(&PREVENT, &[]);
    for host in [&mut first, &mut second] {
        assert_eq!(host.code(&EJECT), PREVENTED);
        assert_eq!(host.code(&LOAD), PREVENTED);
        assert_eq!(host.code(&[0]), GOOD);
    }
    second.good(&PREVENT, &[]);
    first.good(&ALLOW, &[]);
    assert_eq!(first.code(&EJECT), PREVENTED, "the other still prevents");
    drop(second);
    first.good(&EJECT, &[]);
    first.good(&PREVENT, &[]);
    assert_eq!(first.code(&LOAD), PREVENTED, "an empty drive can be locked too");
    first.good(&ALLOW, &[]);
    first.good(&LOAD, &[]);
    first.good(&PREVENT, &[]);
    first.nexus.target_reset();
    assert_eq!(first.code(&[0]), (6, 0x29, 3));
    first.good(&EJECT, &[]);
    assert_eq!(first.run(&[0x1e, 0, 0, 0, 2], &[]).field(), Some((4, Some(1))));
    assert_eq!(first.run(&EJECT, &[]).status, Status::Good);
}
