//! What copies report as done when they end early is stable where no write cache is declared (SPC-4, RECEIVE COPY STATUS,
//! SEGMENTS PROCESSED and TRANSFER COUNT; SBC-3, WCE).

use std::sync::Arc;

use lunette_scsi::{Event, Io, IoError, IoOutcome, LogicalUnitConfig, Lun, Next, Nexus, Status, Task};

use crate::copying::{COPY, OTHER_NAA, blocks, both, cdb, host_with, lid1};
use crate::host::*;
use crate::read_modify_write::compare_and_write;

/// Two pieces of what the units take at once.
const TWO_PIECES: u16 = 4096;
const PIECE_BYTES: usize = 1 << 20;
const UNREACHABLE: (u8, u8, u8) = (0xa, 0x08, 0x04);
const THIRD_PARTY: (u8, u8, u8) = (0xa, 0x0d, 0x01);

fn is_flush(io: &Io) -> bool {
    *io == Io::Flush
}

/// Both units with or without a write cache.
fn host(write_cache: bool) -> Host {
    let config = LogicalUnitConfig { write_cache, ..config() };
    host_with(config.clone(), config)
}

/// Blocks in two pieces, then what cannot be reached.
fn good_and_bad() -> Vec<u8> {
    lid1(5, 0, &both(), &[blocks(0, 1, TWO_PIECES, 0, 0), blocks(0, 7, 1, 0, 0)].concat())
}

fn copy(host: &mut Host, list: &[u8]) -> Reply {
    host.run(&cdb(&COPY, list.len()), list)
}

/// RECEIVE COPY STATUS (LID1): status, segments, bytes.
fn status(host: &mut Host) -> (u8, u8, usize) {
    let data = host.good(&cdb(&[0x84, 0x00, 5], 1024), &[]);
    (data[4], data[6], u32::from_be_bytes([data[8], data[9], data[10], data[11]]) as usize)
}

fn flushes(host: &mut Host) -> usize {
    let log = std::mem::take(&mut host.others.get_mut(&OTHER_NAA).expect("the second unit").log);
    log.iter().filter(|io| is_flush(io)).count()
}

/// SPC-4: EXTENDED COPY (LID1, LID4).
#[test]
fn what_was_done_before_a_failure_is_flushed_before_it_is_told() {
    let mut host = host(false);
    assert_eq!(copy(&mut host, &good_and_bad()).code(), UNREACHABLE);
    assert_eq!(flushes(&mut host), 1);
    assert_eq!(status(&mut host), (2, 1, 2 * PIECE_BYTES));
    let second_piece = |io: &Io| matches!(io, Io::WriteMedium { offset_bytes: 0x10_0000, .. });
    let disk = host.others.get_mut(&OTHER_NAA).expect("the second unit");
    disk.fail = Some((second_piece, IoError::Medium { offset_bytes: None }));
    assert_eq!(copy(&mut host, &good_and_bad()).code(), THIRD_PARTY);
    assert_eq!(flushes(&mut host), 1);
    assert_eq!(status(&mut host), (2, 0, PIECE_BYTES), "a segment that was begun");
}

#[test]
fn a_declared_write_cache_is_not_flushed() {
    let mut host = host(true);
    assert_eq!(copy(&mut host, &good_and_bad()).code(), UNREACHABLE);
    assert_eq!(flushes(&mut host), 0);
    assert_eq!(status(&mut host), (2, 1, 2 * PIECE_BYTES));
}

/// SPC-4: RECEIVE COPY RESULTS.
#[test]
fn what_could_not_be_flushed_was_not_done() {
    let stable_and_not = [blocks(0, 1, 4, 0, 0), blocks(0, 1, TWO_PIECES, 0, 0)].concat();
    for (last, bad) in [(blocks(0, 1, 0, 0, 0), false), (blocks(0, 7, 1, 0, 0), true)] {
        let mut host = host(false);
        let disk = host.others.get_mut(&OTHER_NAA).expect("the second unit");
        disk.fail = Some((is_flush, IoError::Hardware));
        let reply = copy(&mut host, &lid1(5, 0, &both(), &[&stable_and_not[..], &last].concat()));
        assert_eq!(reply.code(), THIRD_PARTY, "{bad}");
        assert_eq!(reply.sense[8..12], [0; 4], "no segment is done");
        assert_eq!(status(&mut host), (2, 0, 0));
    }
}

/// Where a range overlaps itself and moves up, its end goes first; nobody may go on behind so much of its beginning.
///
/// SPC-4: RECEIVE COPY RESULTS.
#[test]
fn what_goes_backwards_counts_once_its_beginning_is_there() {
    fn beginning(io: &Io) -> bool {
        matches!(io, Io::WriteMedium { offset_bytes: 51200, .. })
    }
    let mut host = host(true);
    let list = lid1(5, 0, &both(), &blocks(0xffff, 0xffff, 3900, 0, 100));
    host.disk.fail = Some((beginning, IoError::Hardware));
    assert_eq!(copy(&mut host, &list).code(), THIRD_PARTY);
    assert!(host.log().iter().any(|io| matches!(io, Io::WriteMedium { .. }) && !beginning(io)), "the end");
    assert_eq!(status(&mut host), (2, 0, 0));
    host.disk.fail = None;
    assert_eq!(copy(&mut host, &list).code(), GOOD);
    assert_eq!(status(&mut host), (1, 1, 3900 * BLOCK));
}

/// A copy that has read its first piece and written it.
fn begun(host: &Host, list: &[u8]) -> Task {
    let (mut task, _) = Task::start(&host.nexus, host.lun, &cdb(&COPY, list.len()));
    assert_eq!(task.resume(&host.nexus, Event::DataOut(list)), Next::Yield);
    for _ in 0..2 {
        assert!(matches!(turn(&mut task, &host.nexus, list), Next::IoOn { .. }));
        assert_eq!(done(&mut task, &host.nexus, list), Next::Yield);
    }
    task
}

fn turn(task: &mut Task, nexus: &Nexus, list: &[u8]) -> Next {
    task.resume(nexus, Event::Turn { data_out: list })
}

fn done(task: &mut Task, nexus: &Nexus, list: &[u8]) -> Next {
    let medium = vec![0; PIECE_BYTES];
    task.resume(nexus, Event::Io { result: Ok(IoOutcome::Done), data_out: list, medium: &medium })
}

#[test]
fn what_an_aborted_task_has_done_does_not_count() {
    let mut host = host(false);
    let list = lid1(5, 0, &both(), &blocks(0, 1, TWO_PIECES, 0, 0));
    drop(begun(&host, &list));
    assert_eq!(status(&mut host), (2, 0, 0));
}

/// SPC-4: COPY OPERATION ABORT.
#[test]
fn an_operation_that_is_aborted_by_its_identifier_is_flushed_first() {
    let mut host = host(false);
    let list = lid1(5, 0, &both(), &blocks(0, 1, TWO_PIECES, 0, 0));
    let mut task = begun(&host, &list);
    host.good(&[0x83, 0x1c, 0, 0, 0, 5], &[]);
    assert_eq!(turn(&mut task, &host.nexus, &list), Next::Yield, "the piece that had its turn is not done");
    assert_eq!(turn(&mut task, &host.nexus, &list), Next::IoOn { naa: OTHER_NAA, io: Io::Flush });
    let next = done(&mut task, &host.nexus, &list);
    assert!(matches!(next, Next::Done(done) if done.status == Status::TaskAborted));
    assert_eq!(status(&mut host), (2, 0, PIECE_BYTES));
}

/// A reset of the source ends the copy when its turn there has come: that turn is given back before the destination is
/// flushed.
#[test]
fn a_flush_keeps_no_place_in_the_task_set_of_another_unit() {
    let host = host(false);
    let list = lid1(5, 0, &both(), &blocks(1, 0xffff, TWO_PIECES, 0, 0));
    let mut task = begun(&host, &list);
    let second = Lun::from_number(1);
    host.nexus.device().unit(second).expect("a unit").end_copies();
    assert_eq!(turn(&mut task, &host.nexus, &list), Next::Yield);
    assert!(
        matches!(turn(&mut task, &host.nexus, &list), Next::IoOn { naa, io: Io::Flush } if naa != OTHER_NAA)
    );
    let nexus = Nexus::new(Arc::clone(host.nexus.device()), host.nexus.target_port(), "other".into());
    assert!(matches!(Task::start(&nexus, second, &[0]).1, Next::Done(_)));
    let (mut swap, _) = Task::start(&nexus, second, &compare_and_write(0, 0, 1));
    let next = swap.resume(&nexus, Event::DataOut(&[0; 2 * BLOCK]));
    assert!(matches!(next, Next::Io(_)), "it waits for nobody: {next:?}");
}
