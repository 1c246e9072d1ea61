//! SANITIZE and FORMAT UNIT, and what other commands get meanwhile (SBC-3).

use std::sync::Arc;

use lunette_scsi::{
    Allocation, Device, Event, Io, IoError, IoOutcome, LogicalUnit, LogicalUnitConfig, Lun, Next,
    Provisioning, Saved, Status, Task, UnitState,
};

use crate::host::*;

const IN_PROGRESS: (u8, u8, u8) = (2, 0x04, 0x1b);
const FORMATTING: (u8, u8, u8) = (2, 0x04, 0x04);
const FAILED: (u8, u8, u8) = (3, 0x31, 0x03);
const CORRUPTED: (u8, u8, u8) = (3, 0x31, 0x00);
const SOFTWARE_WRITE_PROTECTED: (u8, u8, u8) = (7, 0x27, 0x02);

const IMMEDIATE: u8 = 0x80;
const UNRESTRICTED: u8 = 0x20;

fn sanitize(action: u8, list_bytes: u16) -> [u8; 16] {
    let mut cdb = padded(&[0x48, action]);
    cdb[7..9].copy_from_slice(&list_bytes.to_be_bytes());
    cdb
}

fn overwrite(flags: u8, host: &mut Host, list: &[u8]) -> Reply {
    host.run(&sanitize(1 | flags, list.len() as u16), list)
}

/// Commands that a unit at work does not take.
fn kept_out() -> Vec<[u8; 16]> {
    vec![
        padded(&[0]),
        padded(&[0x1a, 0, 0x3f, 0, 255]),
        padded(&[0x1b, 0, 0, 0, 1]),
        padded(&[0x25]),
        cdb10(0x28, 0, 0, 1),
        cdb10(0x2a, 0, 0, 1),
        cdb16(0x9e, 0x12, 0, 24),
        sanitize(2, 0),
        padded(&[0x04]),
    ]
}

fn on_kept_state(saved: Saved<'_>) -> Host {
    on_kept_state_of(config(), saved)
}

fn on_kept_state_of(config: LogicalUnitConfig, saved: Saved<'_>) -> Host {
    let unit = Arc::new(LogicalUnit::new(config, saved).expect("a possible unit"));
    let units = [(Lun::from_number(0), unit)];
    Host::on(Arc::new(Device::new("iqn.2026-11.io.lunette:t", [1], units).expect("a possible device")))
}

/// SBC-3: SANITIZE.
#[test]
fn an_overwrite_reaches_every_block_before_it_is_answered() {
    let mut host = Host::new(config());
    host.disk.bytes.fill(7);
    assert_eq!(overwrite(0, &mut host, &[0x83, 0, 0, 2, 0xab, 0xcd]).code(), GOOD);
    assert!(host.disk.bytes.chunks(2).all(|pair| pair == [0xab, 0xcd]), "three passes, inverted twice");
    assert_eq!(host.log().iter().filter(|io| **io == Io::Flush).count(), 3, "each pass is made stable");
    assert_eq!(host.code(&[0]), GOOD);
}

/// SBC-3: SANITIZE.
#[test]
fn a_block_erase_gives_the_space_back() {
    let mut host = Host::new(config());
    host.disk.bytes.fill(7);
    host.disk.allocation.fill(Allocation::Mapped);
    host.good(&sanitize(2, 0), &[]);
    assert!(host.disk.bytes.iter().all(|&byte| byte == 0));
    assert!(host.disk.allocation.iter().all(|&allocation| allocation == Allocation::Deallocated));
    assert_eq!(host.run(&sanitize(2, 1), &[]).field(), Some((8, Some(0))), "no parameter list");
    let thick = Provisioning { unmap: false, granularity_blocks: 0, write_zeroes: true, anchors: false };
    let mut thick = Host::new(LogicalUnitConfig { provisioning: thick, ..config() });
    assert_eq!(thick.code(&sanitize(2, 0)), INVALID_OPCODE);
    assert_eq!(host.code(&sanitize(3, 0)), INVALID_FIELD, "there is no cryptographic erase");
}

/// SPC-4: 4.5.2.4.2 field pointer.
#[test]
fn wrong_lists_are_pointed_at_and_start_nothing() {
    let mut host = Host::new(config());
    for length in [0, 1, 4, 517] {
        let reply = host.run(&sanitize(1, length), &[1; 600]);
        assert_eq!((reply.code(), reply.field()), (INVALID_FIELD, Some((7, Some(7)))), "{length}");
    }
    let cases = [
        ([0x00, 0, 0, 1, 9], (0, Some(4))),
        ([0x21, 0, 0, 1, 9], (0, Some(6))),
        ([0x01, 1, 0, 1, 9], (1, None)),
        ([0x01, 0, 0, 0, 9], (2, None)),
        ([0x01, 0, 2, 1, 9], (2, None)),
    ];
    for (list, field) in cases {
        let reply = overwrite(0, &mut host, &list);
        assert_eq!((reply.code(), reply.field()), (INVALID_PARAMETER, Some(field)), "{list:02x?}");
    }
    for action in [1, 2, 0x1f] {
        let reply = host.run(&sanitize(0x40 | action, 0), &[]);
        assert_eq!((reply.code(), reply.field()), (INVALID_FIELD, Some((1, Some(6)))), "ZNR of SBC-4");
    }
    assert_eq!(overwrite(0, &mut host, &[1, 0, 0, 2, 9]).code(), LENGTH_ERROR, "a pattern that is cut off");
    assert_eq!(host.log(), []);
    assert_eq!(host.code(&[0]), GOOD);
}

/// SBC-3, SANITIZE: while it is in progress few commands are processed, and REQUEST SENSE tells how far it is.
#[test]
fn an_immediate_one_keeps_the_others_out_until_its_end() {
    let device = device(config());
    let (mut host, mut other) = (Host::on(device.clone()), Host::on(device));
    assert_eq!(overwrite(IMMEDIATE, &mut host, &[1, 0, 0, 1, 0x33]).code(), GOOD);
    assert!(host.disk.bytes.iter().all(|&byte| byte == 0), "it has yet to begin");
    let mut steps = 0;
    let mut progress = 0;
    loop {
        for cdb in kept_out() {
            assert_eq!(other.code(&cdb), IN_PROGRESS, "{cdb:02x?}");
        }
        for cdb in [padded(&[0x12, 0, 0, 0, 36]), padded(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16])] {
            other.good(&cdb, &[]);
        }
        let sense = other.good(&[0x03, 0, 0, 0, 18], &[]);
        assert_eq!((sense[2], sense[12], sense[13], sense[15]), (2, 0x04, 0x1b, 0x80));
        let now = u16::from_be_bytes([sense[16], sense[17]]);
        assert!(now >= progress);
        progress = now;
        assert!(host.work());
        steps += 1;
        if steps == 3 {
            break;
        }
    }
    assert!(host.nexus.logical_unit_reset(host.lun));
    assert_eq!(host.code(&[0]), (6, 0x29, 3));
    assert_eq!(host.code(&[0]), GOOD, "two pieces and a flush were all");
    assert!(!host.work());
    assert!(host.disk.bytes.iter().all(|&byte| byte == 0x33));
}

#[test]
fn a_reset_does_not_end_it() {
    let mut host = Host::new(config());
    overwrite(IMMEDIATE, &mut host, &[1, 0, 0, 1, 0x33]);
    assert!(host.nexus.logical_unit_reset(host.lun));
    assert_eq!(host.code(&[0]), (6, 0x29, 3));
    assert_eq!(host.code(&[0]), IN_PROGRESS);
    while host.work() {}
    assert_eq!(host.code(&[0]), GOOD);
}

/// A command that was let in before may have its data come late.
#[test]
fn what_comes_late_does_not_undo_it() {
    let device = device(config());
    let (mut host, mut other) = (Host::on(device.clone()), Host::on(device));
    for cdb in [cdb10(0x2a, 0, 0, 1), cdb10(0x41, 0, 0, 1)] {
        let (mut task, next) = Task::start(&other.nexus, other.lun, &cdb);
        assert_eq!(next, Next::DataOut { length_bytes: BLOCK as u32 });
        task.collects(&other.nexus);
        overwrite(IMMEDIATE, &mut host, &[1, 0, 0, 1, 0x33]);
        let reply = other.finish(task, next, &[7; BLOCK]);
        assert_eq!(reply.code(), IN_PROGRESS);
        while host.work() {}
    }
}

/// Its first pass must not overtake what is on its way to the medium, and others need not wait for its end.
#[test]
fn it_waits_for_what_is_at_the_medium_and_nobody_waits_for_it() {
    let device = device(config());
    let (host, mut other) = (Host::on(device.clone()), Host::on(device));
    for cdb in [sanitize(2, 0), padded(&[0x04])] {
        let (mut read, next) = Task::start(&other.nexus, other.lun, &cdb10(0x28, 0, 0, 1));
        assert!(matches!(next, Next::Io(Io::Read { .. })));
        let (mut erase, next) = Task::start(&host.nexus, host.lun, &cdb);
        assert_eq!(next, Next::Wait);
        let done = Event::Io { result: Ok(IoOutcome::Done), data_out: &[], medium: &[] };
        assert!(matches!(read.resume(&other.nexus, done), Next::Done(_)));
        let next = erase.resume(&host.nexus, Event::Turn { data_out: &[] });
        assert_eq!(next, Next::Io(Io::Work { until_over: true }));
        let sense = other.code(&[0]);
        assert!([IN_PROGRESS, FORMATTING].contains(&sense), "{sense:02x?}");
        while other.work() {}
        let done = Event::Io { result: Ok(IoOutcome::Done), data_out: &[], medium: &[] };
        assert!(matches!(erase.resume(&host.nexus, done), Next::Done(done) if done.status == Status::Good));
        assert_eq!(other.code(&[0]), GOOD);
    }
}

#[test]
fn it_is_refused_where_writing_is() {
    let mut read_only = Host::new(LogicalUnitConfig { read_only: true, ..config() });
    let unmap_less = padded(&[0x04]);
    for cdb in [sanitize(1, 5), unmap_less] {
        assert_eq!(read_only.code(&cdb), WRITE_PROTECTED);
    }
    let mut host = Host::new(config());
    let mut list = vec![0, 0, 0, 0];
    list.extend([0x0a, 0x0a, 0, 0x10, 0x08, 0, 0, 0, 0, 0, 0, 0]);
    host.good(&[0x15, 0x10, 0, 0, 16], &list);
    for cdb in [sanitize(1, 5), sanitize(2, 0), sanitize(0x1f, 0), unmap_less] {
        assert_eq!(host.code(&cdb), SOFTWARE_WRITE_PROTECTED);
    }
}

/// SBC-3: SANITIZE.
#[test]
fn after_a_failure_only_what_it_allows_helps() {
    for (flags, exit) in [(0, (5, 0x24, 0)), (UNRESTRICTED, GOOD)] {
        let mut host = Host::new(config());
        host.good(&sanitize(0x1f, 0), &[]);
        host.disk.fail = Some((|io| matches!(io, Io::Zero { .. }), IoError::Hardware));
        assert_eq!(host.code(&sanitize(2 | flags, 0)), FAILED);
        assert_eq!(host.code(&[0]), FAILED);
        assert_eq!(host.code(&cdb10(0x28, 0, 0, 1)), FAILED);
        assert_eq!(host.code(&padded(&[0x04])), FAILED, "FORMAT UNIT is no way out");
        assert_eq!(host.code(&sanitize(0x1f, 0)), exit);
        assert_eq!(host.code(&[0]), if exit == GOOD { GOOD } else { FAILED });
        if exit != GOOD {
            assert_eq!(host.run(&sanitize(2 | UNRESTRICTED, 0), &[]).field(), Some((1, Some(5))));
        }
        host.disk.fail = None;
        host.good(&sanitize(2, 0), &[]);
        assert_eq!(host.code(&[0]), GOOD);
    }
}

/// SBC-3: SANITIZE.
#[test]
fn it_goes_on_after_a_restart() {
    let mut host = on_kept_state(Saved::Nothing);
    overwrite(IMMEDIATE, &mut host, &[2, 0, 0, 1, 0x33]);
    assert_eq!(
        host.log(),
        [Io::SaveState, Io::Work { until_over: false }],
        "first it is sure to be finished"
    );
    assert!(host.work());
    let (_, unit) = host.nexus.device().units().next().expect("a unit");
    let state = unit.state();
    let mut after = on_kept_state(state.saved());
    assert_eq!(after.code(&[0]), IN_PROGRESS);
    while after.work() {}
    assert_eq!(after.code(&[0]), GOOD);
    assert!(after.disk.bytes.iter().all(|&byte| byte == 0x33));
    assert_eq!(after.log().last(), Some(&Io::SaveState));
    let (_, unit) = after.nexus.device().units().next().expect("a unit");
    let state = unit.state();
    assert_eq!(on_kept_state(state.saved()).code(&[0]), GOOD);
}

/// What was done is known in blocks: of another length they are elsewhere, and of an unknown length anywhere.
#[test]
fn it_begins_its_pass_again_where_blocks_have_another_length() {
    let longer = LogicalUnitConfig { block_length_bytes: 4096, blocks: BLOCKS / 8, ..config() };
    for (config, is_known) in [(longer, true), (config(), false)] {
        let mut host = on_kept_state(Saved::Nothing);
        overwrite(IMMEDIATE, &mut host, &[1, 0, 0, 1, 0x33]);
        let mut kept = state(&host);
        // The position is stored after each GiB; this disk is smaller.
        let position = 32..40;
        kept.settings[position.clone()].copy_from_slice(&256u64.to_be_bytes());
        if !is_known {
            kept.settings[2..4].fill(0);
        }
        let mut after = on_kept_state_of(config, kept.saved());
        assert_eq!(state(&after).settings[position], [0; 8], "and is stored so");
        while after.work() {}
        assert_eq!(after.code(&[0]), GOOD);
        assert!(after.disk.bytes.iter().all(|&byte| byte == 0x33), "{is_known}");
    }
}

fn state(host: &Host) -> UnitState {
    host.nexus.device().unit(host.lun).expect("a unit").state()
}

const SAVES_FAIL: Failure = (|io| *io == Io::SaveState, IoError::Hardware);

/// What is saved says that it must be done: it would be done again after a restart, to data that is new.
#[test]
fn the_medium_stays_closed_until_its_end_is_saved() {
    let mut host = on_kept_state(Saved::Nothing);
    assert_eq!(overwrite(IMMEDIATE, &mut host, &[1, 0, 0, 1, 0x33]).code(), GOOD);
    host.disk.fail = Some(SAVES_FAIL);
    for _ in 0..8 {
        assert!(host.work());
        assert_eq!(host.code(&cdb10(0x2a, 0, 0, 1)), IN_PROGRESS);
    }
    assert_eq!(host.log().last(), Some(&Io::SaveState));
    host.disk.fail = None;
    assert!(host.work());
    assert_eq!(host.log(), [Io::SaveState]);
    assert_eq!(host.code(&[0]), GOOD);
    assert!(!host.work());
}

/// The save that failed may have gone through all the same, or another command's with it.
#[test]
fn what_cannot_be_saved_is_not_begun_and_does_not_begin_later() {
    let mut host = on_kept_state(Saved::Nothing);
    let before = state(&host);
    host.disk.fail = Some(SAVES_FAIL);
    assert_eq!(host.code(&sanitize(2 | IMMEDIATE, 0)), (4, 0x44, 0));
    assert_eq!(state(&host), before);
    for _ in 0..3 {
        assert_eq!(host.code(&[0]), IN_PROGRESS);
        assert!(host.work());
    }
    host.disk.fail = None;
    assert!(host.work());
    assert_eq!(host.log(), vec![Io::SaveState; 5]);
    assert_eq!(host.code(&[0]), GOOD);
    assert!(!host.work());
}

/// As the driver tells it, before the command hears of the failure.
#[test]
fn what_is_surely_not_saved_closes_nothing() {
    for cdb in [sanitize(2, 0), sanitize(2 | IMMEDIATE, 0), padded(&[0x04])] {
        for other_is_stored in [false, true] {
            let mut host = on_kept_state(Saved::Nothing);
            let unit = Arc::clone(host.nexus.device().unit(host.lun).expect("a unit"));
            let before = unit.state();
            let (mut task, next) = Task::start(&host.nexus, host.lun, &cdb);
            assert_eq!(next, Next::Io(Io::SaveState));
            if other_is_stored {
                // For another command, with all that there is.
                unit.state();
            }
            unit.state();
            unit.note_stored_state_stands();
            let failed = Event::Io { result: Err(IoError::Hardware), data_out: &[], medium: &[] };
            assert!(matches!(task.resume(&host.nexus, failed), Next::Done(done) if done.sense.is_some()));
            assert_eq!(unit.state(), before);
            let is_closed = [IN_PROGRESS, FORMATTING].contains(&host.code(&[0]));
            assert_eq!(is_closed, other_is_stored, "{cdb:02x?}");
            assert!(host.work());
            assert_eq!(host.log(), [Io::SaveState], "it is owed in either case");
            assert_eq!(host.code(&[0]), GOOD);
            assert!(!host.work());
        }
    }
}

#[test]
fn an_abort_before_it_is_saved_leaves_nothing_of_it() {
    for cdb in [sanitize(2, 0), sanitize(2 | IMMEDIATE, 0), padded(&[0x04])] {
        let mut host = on_kept_state(Saved::Nothing);
        let before = state(&host);
        let (mut task, next) = Task::start(&host.nexus, host.lun, &cdb);
        assert_eq!(next, Next::Io(Io::SaveState));
        assert_ne!(state(&host), before);
        task.abandon(&host.nexus);
        assert_eq!(state(&host), before);
        assert!([IN_PROGRESS, FORMATTING].contains(&host.code(&[0])), "what was stored is to go first");
        assert!(host.work());
        assert_eq!(host.log(), [Io::SaveState]);
        assert_eq!(host.code(&[0]), GOOD);
        assert!(!host.work());
    }
}

#[test]
fn a_second_try_that_does_not_begin_leaves_the_failure_of_the_first() {
    let mut host = on_kept_state(Saved::Nothing);
    host.disk.fail = Some((|io| matches!(io, Io::Zero { .. }), IoError::Hardware));
    assert_eq!(host.code(&sanitize(2, 0)), FAILED);
    while host.work() {}
    let failed = state(&host);
    host.disk.fail = Some(SAVES_FAIL);
    assert_eq!(host.code(&sanitize(2, 0)), (4, 0x44, 0));
    let (mut task, _) = Task::start(&host.nexus, host.lun, &sanitize(2, 0));
    task.abandon(&host.nexus);
    assert_eq!(host.code(&[0]), FAILED);
    assert_eq!(host.code(&sanitize(0x1f, 0)), INVALID_FIELD, "restricted as before");
    assert_eq!(state(&host), failed);
}

#[test]
fn the_way_out_of_a_failure_is_open_when_that_is_saved() {
    let mut host = on_kept_state(Saved::Nothing);
    host.disk.fail = Some((|io| matches!(io, Io::Zero { .. }), IoError::Hardware));
    assert_eq!(host.code(&sanitize(2 | UNRESTRICTED, 0)), FAILED);
    while host.work() {}
    host.disk.fail = Some(SAVES_FAIL);
    assert_eq!(host.code(&sanitize(0x1f, 0)), (4, 0x44, 0));
    assert_eq!(host.code(&[0]), FAILED);
    host.disk.fail = None;
    host.good(&sanitize(0x1f, 0), &[]);
    assert_eq!(host.code(&[0]), GOOD);
    assert_eq!(on_kept_state(state(&host).saved()).code(&[0]), GOOD);
}

/// Nor is it after a restart, whatever is stored next. What the exit has had stored may lack the failure.
#[test]
fn the_way_out_of_a_failure_stays_closed_when_that_is_not_saved() {
    for is_aborted in [false, true] {
        let mut host = on_kept_state(Saved::Nothing);
        host.disk.fail = Some((|io| matches!(io, Io::Zero { .. }), IoError::Hardware));
        assert_eq!(host.code(&sanitize(2 | UNRESTRICTED, 0)), FAILED);
        while host.work() {}
        let failed = state(&host);
        host.log();
        let (mut task, next) = Task::start(&host.nexus, host.lun, &sanitize(0x1f, 0));
        assert_eq!(next, Next::Io(Io::SaveState));
        assert_ne!(state(&host), failed);
        if is_aborted {
            task.abandon(&host.nexus);
        } else {
            let error = Event::Io { result: Err(IoError::Hardware), data_out: &[], medium: &[] };
            assert!(matches!(task.resume(&host.nexus, error), Next::Done(done) if done.sense.is_some()));
        }
        assert_eq!(state(&host), failed);
        assert!(host.work());
        assert_eq!((host.log(), host.work()), (vec![Io::SaveState], false));
        assert_eq!(on_kept_state(state(&host).saved()).code(&[0]), FAILED);
    }
}

/// SBC-3: FORMAT UNIT.
#[test]
fn a_format_writes_zeros_or_a_pattern() {
    let mut host = Host::new(config());
    host.disk.bytes.fill(7);
    host.good(&padded(&[0x04]), &[]);
    assert!(host.disk.bytes.iter().all(|&byte| byte == 0));
    host.good(&padded(&[0x04, 0x10]), &[0, 0x88, 0, 0, 0, 1, 0, 1, 0x44]);
    assert!(host.disk.bytes.iter().all(|&byte| byte == 0x44));
    assert_eq!(host.run(&padded(&[0x04, 0x08]), &[]).field(), Some((1, Some(3))), "CMPLST without a list");
    assert_eq!(host.run(&padded(&[0x04, 0x80]), &[]).field(), Some((1, Some(7))), "FMTPINFO");
    assert_eq!(host.run(&padded(&[0x04, 0x10]), &[0, 0xc0, 0, 0]).field(), Some((1, Some(6))), "DPRY");
}

/// SBC-3: FORMAT UNIT.
#[test]
fn a_format_keeps_the_others_out_and_fails_like_one() {
    let mut host = Host::new(config());
    host.good(&padded(&[0x04, 0x10]), &[0, 0x82, 0, 0]);
    for cdb in kept_out() {
        assert_eq!(host.code(&cdb), FORMATTING, "{cdb:02x?}");
    }
    host.disk.fail = Some((|io| matches!(io, Io::Zero { .. }), IoError::NoSpace));
    assert!(host.work());
    assert_eq!(host.code(&[0]), CORRUPTED);
    assert_eq!(host.code(&padded(&[0x04])), (3, 0x31, 0x01));
    host.disk.fail = None;
    host.good(&padded(&[0x04]), &[]);
    assert_eq!(host.code(&[0]), GOOD);
}
