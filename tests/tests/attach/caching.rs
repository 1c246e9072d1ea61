//! Read-ahead and write-behind over the whole stack: nothing that was answered is lost, nothing old is read, and a failure after the
//! answer is told for good.

use std::ops::Range;
use std::time::Duration;
use std::{fs, thread};

use lunette_tests::attach::{Attached, Client, command};
use lunette_tests::initiator::LoginOptions;
use lunette_tests::lunette::{Lunette, TARGET_NAME};
use lunette_tests::raw::Raw;
use lunette_tests::reservations::{Action, persistent_reserve_out};

use super::{pattern, serve};

/// The type of reservation with which only its holder writes (SPC-4, persistent reservation types).
const WRITE_EXCLUSIVE: u8 = 1;
const KEY: u64 = 7;
const GOOD: u8 = 0;
/// "Operation not permitted", as NBD numbers it.
const EPERM: u32 = 1;

const PIECE: usize = 16 << 10;
const PIECES: u64 = 400;

/// Enough small writes in a row that most wait to be sent.
#[test]
fn a_target_that_dies_under_writes_that_were_answered_loses_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let target = serve(&image, ",write=back").start().expect("a target");
    let attached = Attached::start(&target.url(0), &[]).expect("attached");
    let mut client = attached.client().expect("a client");
    let stable = pattern(1, 100_000);
    assert_eq!(client.write(0, &stable).expect("an answer"), 0);
    assert_eq!(client.flush().expect("an answer"), 0);
    let flushed = fs::read(&image).expect("the image");

    let data = pattern(2, PIECE * PIECES as usize);
    let mut target = Some(target);
    for (index, piece) in (0..).zip(data.chunks(PIECE)) {
        assert_eq!(client.write(index * PIECE as u64, piece).expect("an answer"), 0);
        if index == PIECES / 2 {
            let dead = target.take().expect("a target");
            let portal = dead.portal();
            dead.kill().expect("killed");
            // As if its cache had been lost.
            fs::write(&image, &flushed).expect("the old image");
            target = Some(serve(&image, ",write=back").portal(portal).start().expect("the target again"));
        }
    }
    assert!(client.read(0, data.len() as u32).expect("data") == data, "what was answered is read");
    assert_eq!(client.flush().expect("an answer"), 0);
    assert!(fs::read(&image).expect("the image")[..data.len()] == data, "what is flushed is there");
    attached.detach().expect("all is stable");
    target.expect("a target").stop().expect("a clean end");
}

#[test]
fn who_reads_in_order_sees_every_change() {
    for arguments in [&[][..], &["--no-read-ahead"], &["--no-write-behind"], &["--no-merge"]] {
        let directory = tempfile::tempdir().expect("a directory");
        let image = directory.path().join("disk.img");
        let target = serve(&image, ",write=back").start().expect("a target");
        let attached = Attached::start(&target.url(0), arguments).expect("attached");
        let mut client = attached.client().expect("a client");
        let mut expected = pattern(3, PIECE * PIECES as usize);
        assert_eq!(client.write(0, &expected).expect("an answer"), 0);
        for index in 0..PIECES as usize {
            let (at, change) = (index * PIECE, pattern(index as u64 + 10, 3000));
            // Not far ahead of the reader, where it was read already: bytes, whole blocks, and zeros.
            let ahead = (at + 5 * PIECE).min(expected.len() - PIECE);
            let place = if index % 2 == 0 { ahead + 7 } else { ahead };
            let change = if index % 2 == 0 { &change[..] } else { &change[..1024] };
            if index % 5 == 4 {
                let zeros = (command::WRITE_ZEROES, 0);
                assert_eq!(client.request(zeros, place as u64, 2048).expect("an answer"), 0);
                expected[place..place + 2048].fill(0);
            } else {
                assert_eq!(client.write(place as u64, change).expect("an answer"), 0);
                expected[place..place + change.len()].copy_from_slice(change);
            }
            let read = client.read(at as u64, PIECE as u32).expect("data");
            assert!(read == expected[at..at + PIECE], "piece {index} with {arguments:?}");
        }
        assert_eq!(client.flush().expect("an answer"), 0);
        assert!(fs::read(&image).expect("the image")[..expected.len()] == expected);
        attached.detach().expect("all is stable");
        target.stop().expect("a clean end");
    }
}

/// The limit that the guide promises, and a little more.
const AGE_MAX: Duration = Duration::from_millis(2100);

/// What was read ahead and never touched is as old as what was.
#[test]
fn what_another_host_writes_is_seen_in_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let target = serve(&directory.path().join("disk.img"), ",write=back").start().expect("a target");
    let reader = Attached::start(&target.url(0), &[]).expect("attached");
    let writer = Attached::start(&target.url(0), &["--no-write-behind"]).expect("attached");
    let mut client = reader.client().expect("a client");
    let mut expected = pattern(4, PIECE * PIECES as usize);
    assert_eq!(writer.client().expect("a client").write(0, &expected).expect("an answer"), 0);
    let read = |client: &mut Client, expected: &[u8], pieces: Range<usize>| {
        for at in pieces.map(|piece| piece * PIECE) {
            let data = client.read(at as u64, PIECE as u32).expect("data");
            assert!(data == expected[at..at + PIECE], "at {at}");
        }
    };
    // Each time some of what was read ahead is not touched.
    for (seed, pieces) in [(5, 0..8), (6, 8..20), (7, 20..61)] {
        read(&mut client, &expected, pieces);
        expected = pattern(seed, expected.len());
        assert_eq!(writer.client().expect("a client").write(0, &expected).expect("an answer"), 0);
        thread::sleep(AGE_MAX);
    }
    read(&mut client, &expected, 61..PIECES as usize);
    writer.detach().expect("all is stable");
    reader.detach().expect("all is stable");
    target.stop().expect("a clean end");
}

fn ask(session: &mut Raw, action: Action, keys: (u64, u64)) {
    let ending = persistent_reserve_out(session, 0, action, WRITE_EXCLUSIVE, keys).expect("an answer");
    assert_eq!(ending.status, GOOD, "{action:?}");
}

/// Another initiator, from which on nobody else may write.
fn reserve(target: &Lunette) -> Raw {
    let options = LoginOptions { target_name: Some(TARGET_NAME.to_owned()), ..LoginOptions::default() };
    let mut holder = Raw::ready(target.portal(), &options, 0).expect("a login");
    ask(&mut holder, Action::Register, (0, KEY));
    ask(&mut holder, Action::Reserve, (KEY, 0));
    holder
}

/// Nobody can be told when it happens: so it is told to everybody who comes later.
#[test]
fn a_write_that_fails_after_its_answer_is_told_for_good() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let target = serve(&image, ",write=back").start().expect("a target");
    let attached = Attached::start(&target.url(0), &[]).expect("attached");
    let mut client = attached.client().expect("a client");
    assert_eq!(client.write(0, &[1; 4096]).expect("an answer"), 0);
    assert_eq!(client.flush().expect("an answer"), 0);

    let _holder = reserve(&target);
    assert_eq!(client.write(8192, &[2; 4096]).expect("an answer"), 0, "nobody knows yet");
    for _ in 0..2 {
        assert_eq!(client.flush().expect("an answer"), EPERM);
    }
    assert_eq!(client.write(16_384, &[3; 4096]).expect("an answer"), EPERM);
    assert_eq!(client.request((command::WRITE_ZEROES, 0), 16_384, 4096).expect("an answer"), EPERM);
    assert_eq!(client.request((command::READ, 0), 8192, 4096).expect("an answer"), EPERM, "it is not there");
    assert!(client.read(0, 4096).expect("data") == [1; 4096]);
    let error = attached.detach().expect_err("it is no clean end");
    assert!(error.to_string().contains("the last flush failed"), "{error:#}");
    target.stop().expect("a clean end");
}

#[test]
fn without_write_behind_a_failure_is_the_writes_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    for (more, arguments) in [(",write=back", &["--no-write-behind"][..]), ("", &[])] {
        let target = serve(&image, more).start().expect("a target");
        let attached = Attached::start(&target.url(0), arguments).expect("attached");
        let mut client = attached.client().expect("a client");
        assert_eq!(client.write(0, &[1; 4096]).expect("an answer"), 0);
        let mut holder = reserve(&target);
        assert_eq!(client.write(8192, &[2; 4096]).expect("an answer"), EPERM);
        ask(&mut holder, Action::Release, (KEY, 0));
        assert_eq!(client.write(8192, &[2; 4096]).expect("an answer"), 0);
        attached.detach().expect("all is stable");
        target.stop().expect("a clean end");
    }
}
