//! Long writes to stores that only copy, beside other sessions of the same reactor: no clause asks how they are carried out, so it
//! must not show (RFC 7143, 4.2.5.2; SAM-5, task sets).

use std::thread;
use std::time::Duration;

use lunette_block::OperationKind;
use lunette_target::config::Reactors;
use lunette_tests::in_process::InProcess;
use lunette_tests::raw::{Raw, write};

use crate::DISK;

/// Several pieces of what is copied at a time, to memory or into the page cache.
const LENGTH: usize = 256 << 10;
const PIECES: u64 = 4;

/// The rest of a write whose copying is held up goes to a file in one call, and so do others for 100 ms.
const TRIES: u8 = 20;
const DETOUR: Duration = Duration::from_millis(150);

fn one_reactor(unit: &str) -> (InProcess, [Raw; 2]) {
    let target = InProcess::start_with(&[unit], |config| {
        config.reactors = Reactors { count: Some(1), ..Reactors::default() };
    });
    let sessions = [1, 2].map(|port| log_in(&target, port));
    (target, sessions)
}

fn log_in(target: &InProcess, port: u8) -> Raw {
    let keys = [("InitialR2T", "Yes"), ("ImmediateData", "No")];
    Raw::ready(target.portal(), &target.options_with(port, &keys), 0).expect("a login")
}

fn ping(session: &mut Raw, times: usize) {
    for _ in 0..times {
        assert_eq!(session.test_unit_ready(0).expect("an answer").status, 0);
    }
}

/// Writes to the beginning of the disk; answers how many writes its store has seen of it.
fn calls_of_a_write(target: &InProcess, session: &mut Raw, data: &[u8]) -> u64 {
    let before = target.faults(0).calls(OperationKind::Write);
    let tag = session.command(&write(0, 0, LENGTH), &[]).expect("sent");
    let r2t = session.r2t(tag).expect("an R2T");
    session.answer_r2t(&r2t, data, 64 << 10).expect("sent");
    session.good(tag).expect("a write");
    target.faults(0).calls(OperationKind::Write) - before
}

fn expect_read(session: &mut Raw, data: &[u8]) {
    let tag = session.read(0, 0, (LENGTH / 512) as u32).expect("sent");
    let (read, _) = session.data_in(tag).expect("a read");
    assert!(read == data);
}

fn pattern(seed: u8) -> Vec<u8> {
    (0..LENGTH).map(|at| (at / 512) as u8 ^ (at as u8) ^ seed).collect()
}

#[test]
fn a_long_write_is_copied_in_pieces_while_others_are_there() {
    let (target, [mut session, mut other]) = one_reactor(DISK);
    // A sender that is kept from running sends in more turns than others are remembered for; not each time.
    let is_in_pieces = (0..TRIES).any(|seed| {
        ping(&mut other, 1);
        let calls = calls_of_a_write(&target, &mut session, &pattern(seed));
        expect_read(&mut other, &pattern(seed));
        calls == PIECES
    });
    assert!(is_in_pieces, "none of {TRIES} writes");
    target.wait_for_its_buffers();
}

/// SBC-3, WRITE: without a write cache the data is on the medium when the command ends.
#[test]
fn a_long_write_in_pieces_is_stable_when_it_is_answered() {
    let directory = tempfile::tempdir().expect("a directory");
    let unit = format!("0=file:{},size=8M", directory.path().join("disk.img").display());
    let (target, [mut session, mut other]) = one_reactor(&unit);
    ping(&mut other, 1);
    let is_in_pieces = (0..TRIES).any(|seed| {
        let before = target.faults(0).calls(OperationKind::Flush);
        let calls = calls_of_a_write(&target, &mut session, &pattern(seed));
        assert_eq!(target.faults(0).calls(OperationKind::Flush) - before, 1);
        expect_read(&mut other, &pattern(seed));
        if calls != PIECES {
            thread::sleep(DETOUR);
        }
        calls == PIECES
    });
    assert!(is_in_pieces, "none of {TRIES} writes");
}

/// What a lost connection leaves is ended (7.6), wherever its copying has come to.
#[test]
fn a_session_may_be_lost_while_its_write_is_copied() {
    let (target, [mut session, mut other]) = one_reactor(DISK);
    for round in 0..20 {
        ping(&mut other, 1);
        let tag = session.command(&write(0, 0, LENGTH), &[]).expect("sent");
        let r2t = session.r2t(tag).expect("an R2T");
        session.answer_r2t(&r2t, &pattern(round), 64 << 10).expect("sent");
        session = log_in(&target, 1);
    }
    target.wait_for_its_buffers();
    calls_of_a_write(&target, &mut session, &pattern(99));
    expect_read(&mut other, &pattern(99));
}
