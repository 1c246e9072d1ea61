//! Commands that change what a unit keeps over a restart: what is in effect is stored, whatever becomes of the command
//! (SPC-4).

use lunette_scsi::{Event, Io, IoError, IoOutcome, Next, Saved, Task};

use crate::host::padded;
use crate::reservations::hosts::{Hosts, list, out_cdb};

const APTPL: u8 = 1;

/// Two registrants of different hosts, kept over a restart; the second has a reservation.
fn hosts() -> Hosts {
    let mut hosts = Hosts::new(Saved::Nothing);
    hosts.out(0, 0, 0, &list(0, 0xa, APTPL));
    hosts.out(2, 0, 0, &list(0, 0xb, APTPL));
    hosts.out(2, 1, 5, &list(0xb, 0, 0));
    hosts.attentions(0);
    hosts
}

/// Every command that asks for the state to be stored, with its Data-Out, and how many operations it asks for.
fn changes(hosts: &mut Hosts) -> Vec<([u8; 16], Vec<u8>, usize)> {
    let groups = vec![0, 0, 0, 0, 2, 0, 0, 2];
    let caching = &hosts.all[0].good(&[0x1a, 0x08, 0x08, 0, 255], &[])[4..];
    let mut select = [&[0; 4][..], caching].concat();
    // The write cache goes off, and is flushed.
    select[6] = 0;
    vec![
        (out_cdb(0, 0, 24), list(0xa, 7, APTPL), 1),
        // PREEMPT AND ABORT.
        (out_cdb(5, 5, 24), list(0xa, 0xb, 0), 2),
        (padded(&[0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8]), groups, 1),
        (padded(&[0xa4, 0x06, 0, 0, 0, 0, 0, 0, 0, 4]), b"disk".to_vec(), 1),
        (padded(&[0x15, 0x11, 0, 0, select.len() as u8]), select, 2),
    ]
}

fn ended(result: Result<IoOutcome, IoError>) -> Event<'static> {
    Event::Io { result, data_out: &[], medium: &[] }
}

/// Calls `test` for every such command and operation of it, once the command has asked for the operation.
fn at_each_operation(test: impl Fn(&Hosts, Task, Io)) {
    for index in 0..changes(&mut hosts()).len() {
        let mut at = 1;
        loop {
            let mut hosts = hosts();
            let (cdb, list, operations) = changes(&mut hosts).swap_remove(index);
            let host = &hosts.all[0];
            let before = hosts.unit().state();
            let (mut task, next) = Task::start(&host.nexus, host.lun, &cdb);
            assert!(matches!(next, Next::DataOut { .. }), "{cdb:02x?}: {next:?}");
            let mut next = task.resume(&host.nexus, Event::DataOut(&list));
            for _ in 1..at {
                next = task.resume(&host.nexus, ended(Ok(IoOutcome::Done)));
            }
            let Next::Io(io) = next else { panic!("{cdb:02x?}: {next:?}") };
            assert_ne!(hosts.unit().state(), before, "{cdb:02x?}");
            assert_eq!(hosts.unit().next_work(), None, "the command sees to it");
            assert_eq!(io == Io::SaveState, at == operations, "{cdb:02x?}: {io:?}");
            test(&hosts, task, io);
            if at == operations {
                break;
            }
            at += 1;
        }
    }
}

/// The unit stores its state by itself, and tries until it is stable. A write cache that was to be flushed is flushed before.
fn expect_owed(hosts: &Hosts, io: &Io) {
    let unit = hosts.unit();
    if *io == Io::Flush {
        assert_eq!(unit.next_work(), Some(Io::Flush));
        unit.work_done(Ok(()));
    }
    for result in [Err(IoError::Hardware), Err(IoError::Hardware), Ok(())] {
        assert_eq!(unit.next_work(), Some(Io::SaveState));
        unit.work_done(result);
    }
    assert_eq!(unit.next_work(), None);
    assert!(!unit.is_at_work());
}

#[test]
fn a_command_that_is_aborted_leaves_its_change_to_be_stored() {
    at_each_operation(|hosts, mut task, io| {
        task.abandon(&hosts.all[0].nexus);
        expect_owed(hosts, &io);
    });
}

#[test]
fn what_could_not_be_stored_is_stored_later() {
    at_each_operation(|hosts, mut task, io| {
        let next = task.resume(&hosts.all[0].nexus, ended(Err(IoError::Hardware)));
        assert!(matches!(next, Next::Done(done) if done.sense.is_some()));
        expect_owed(hosts, &io);
    });
}

#[test]
fn what_was_stored_for_its_command_is_not_stored_again() {
    at_each_operation(|hosts, mut task, io| {
        if io == Io::SaveState {
            let next = task.resume(&hosts.all[0].nexus, ended(Ok(IoOutcome::Done)));
            assert!(matches!(next, Next::Done(done) if done.sense.is_none()));
            assert_eq!(hosts.unit().next_work(), None);
        }
    });
}

/// A change that is made while what is owed is being stored may have come too late for that.
#[test]
fn what_is_owed_meanwhile_is_stored_too() {
    let hosts = hosts();
    let unit = hosts.unit();
    unit.note_state_not_stored();
    assert_eq!(unit.next_work(), Some(Io::SaveState));
    unit.note_state_not_stored();
    unit.work_done(Ok(()));
    expect_owed(&hosts, &Io::SaveState);
}
