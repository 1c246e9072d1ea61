//! Commands whose data comes late: what others did to the unit meanwhile holds for them too (SAM-5, SPC-4).

use std::sync::Arc;

use lunette_scsi::{Event, Io, IoOutcome, LogicalUnitConfig, Next, Nexus, Status, Task};

use crate::host::*;

/// Two hosts of one unit: who acts, and whose data is late.
fn hosts(config: LogicalUnitConfig) -> (Host, Host) {
    let device = device(config);
    let (host, mut other) = (Host::on(Arc::clone(&device)), Host::on(Arc::clone(&device)));
    other.nexus = Nexus::new(device, other.nexus.target_port(), "other".into());
    assert_eq!(other.code(&[0]), (6, 0x29, 0));
    (host, other)
}

/// A command that has begun and waits for its data.
fn begun(host: &Host, cdb: &[u8; 16]) -> (Task, Next) {
    let (mut task, next) = Task::start(&host.nexus, host.lun, cdb);
    assert!(matches!(next, Next::DataOut { .. }), "{next:?}");
    task.collects(&host.nexus);
    (task, next)
}

const fn compare_and_write(blocks: u8) -> [u8; 16] {
    [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, blocks, 0, 0]
}

/// A caching page with WCE off.
fn write_cache_off(host: &mut Host) {
    let mut list = [0; 4 + 20];
    (list[4], list[5]) = (0x08, 0x12);
    host.good(&[0x15, 0x10, 0, 0, list.len() as u8], &list);
}

#[test]
fn what_is_written_after_the_cache_was_turned_off_is_stable() {
    for cdb in [cdb10(0x2a, 0, 0, 1), compare_and_write(1), cdb16(0x8b, 0, 0, 1)] {
        let (mut host, mut other) = hosts(config());
        let (task, next) = begun(&other, &cdb);
        write_cache_off(&mut host);
        assert!(host.log().contains(&Io::Flush), "of what was cached before");
        let reply = other.finish(task, next, &[[0; BLOCK], [1; BLOCK]].concat());
        assert_eq!(reply.status, Status::Good);
        let stable = |io: &Io| {
            matches!(io, Io::WriteDataOut { stable: true, .. } | Io::WriteOwned { stable: true, .. })
        };
        assert!(other.log().iter().any(stable), "{cdb:02x?}");
    }
}

#[test]
fn a_unit_that_was_stopped_or_ejected_takes_no_data() {
    for (flags, removable, code) in [(0, false, NOT_READY_STOPPED), (2, true, NO_MEDIUM)] {
        let (mut host, mut other) = hosts(LogicalUnitConfig { removable, ..config() });
        let (task, next) = begun(&other, &cdb10(0x2a, 0, 0, 1));
        host.good(&[0x1b, 0, 0, 0, flags, 0], &[]);
        assert_eq!(other.finish(task, next, &[1; BLOCK]).code(), code);
        assert_eq!(other.log(), []);
    }
}

#[test]
fn a_unit_that_was_protected_reserved_or_moved_away_takes_no_data() {
    let (mut host, mut other) = hosts(config());
    let (task, next) = begun(&other, &cdb10(0x2a, 0, 0, 1));
    let mut control = [0; 4 + 12];
    (control[4], control[5], control[7], control[8]) = (0x0a, 0x0a, 0x10, 0x08);
    host.good(&[0x15, 0x10, 0, 0, control.len() as u8], &control);
    assert_eq!(other.finish(task, next, &[1; BLOCK]).code(), (7, 0x27, 0x02));
    assert_eq!(other.log(), []);

    for cdb in [cdb10(0x2a, 0, 0, 1), compare_and_write(1)] {
        let (mut host, mut other) = hosts(config());
        let (task, next) = begun(&other, &cdb);
        host.good(&[0x16, 0, 0, 0, 0, 0], &[]);
        let reply = other.finish(task, next, &[0; 2 * BLOCK]);
        assert_eq!(reply.status, Status::ReservationConflict);
        assert_eq!(other.log(), []);
    }

    let (mut host, mut other) = hosts(config());
    let (task, next) = begun(&other, &cdb10(0x2a, 0, 0, 1));
    // Port 1, which both come through, goes to standby.
    host.good(&[0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8], &[0, 0, 0, 0, 2, 0, 0, 1]);
    assert_eq!(other.finish(task, next, &[1; BLOCK]).code(), (2, 0x04, 0x0b));
    assert_eq!(other.log(), []);
}

/// Data that is there at once is another matter: from its beginning on the command is at the medium, and who reserves or
/// stops it then comes after it.
#[test]
fn a_command_at_the_medium_is_not_called_back() {
    let (mut host, other) = hosts(config());
    let (mut task, next) = Task::start(&other.nexus, other.lun, &cdb10(0x2a, 0, 0, 1));
    assert!(matches!(next, Next::DataOut { .. }));
    assert!(matches!(task.resume(&other.nexus, Event::DataOut(&[1; BLOCK])), Next::Io(_)));
    host.good(&[0x16, 0, 0, 0, 0, 0], &[]);
    let done = Event::Io { result: Ok(IoOutcome::Done), data_out: &[1; BLOCK], medium: &[] };
    assert!(matches!(task.resume(&other.nexus, done), Next::Done(done) if done.status == Status::Good));
}
