//! Memory that others keep: reads that are asked for and never taken, and a long write that finds none (docs/decisions/0006, 0042).

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lunette_tests::initiator::{Command, Initiator, LoginOptions, cdb};
use lunette_tests::lunette::Lunette;

use crate::{Bystander, STRANGERS_BYTES_MAX};

const MEMORY_BYTES: u64 = 64 << 20;

/// Its engine, `sync`, sends nothing from the page cache: each read has a buffer.
const LUN: u8 = 1;
const READ_BLOCKS: u32 = 2048;

/// How long hoards last, and the time that a busy machine takes beside that.
const HOARD_LIMIT: Duration = Duration::from_secs(200);

/// How long long writes wait in vain: longer than each of them does, and shorter than those may keep memory who have it.
const WAITING: Duration = Duration::from_secs(14);

fn serve(directory: &Path) -> Lunette {
    let image = directory.join("image");
    // What is read has to be somewhere.
    std::fs::write(&image, vec![7; 16 << 20]).expect("an image");
    let configuration = format!(
        "[[target.lun]]\nnumber = {LUN}\nstore = \"{}\"\nengine = \"sync\"\nwrite = \"back\"\n\
         [limits]\nbuffer_memory_bytes = {MEMORY_BYTES}\n",
        image.display()
    );
    Lunette::serve().configuration(&configuration).start().expect("a target")
}

fn login(target: &Lunette, isid_qualifier: u8) -> Initiator {
    let options = LoginOptions { isid_qualifier, ..LoginOptions::default() };
    let mut initiator = Initiator::login(target.portal(), &options).expect("a login");
    initiator.make_ready(LUN).expect("a ready unit");
    initiator
}

fn long_read() -> Command {
    Command {
        lun: LUN,
        cdb: cdb::read(0, READ_BLOCKS),
        data_in_bytes: READ_BLOCKS * 512,
        ..Command::default()
    }
}

/// Sessions that ask for much and take nothing.
fn greedy(target: &Lunette, count: u8) -> Vec<Initiator> {
    let each = (1..=count).map(|isid_qualifier| {
        let mut initiator = login(target, isid_qualifier);
        for _ in 0..100 {
            initiator.submit(long_read()).expect("a place in the window");
        }
        initiator
    });
    each.collect()
}

#[test]
fn readers_that_take_nothing_are_bounded() {
    let directory = tempfile::tempdir().expect("a directory");
    let target = serve(directory.path());
    let before = target.resident_bytes().expect("a number");
    let bystander = Bystander::start(&target);
    let greedy = greedy(&target, 4);
    thread::sleep(Duration::from_secs(2));
    let grown = target.resident_bytes().expect("a number").saturating_sub(before);
    assert!(grown < MEMORY_BYTES + STRANGERS_BYTES_MAX, "{grown} bytes more");
    bystander.finish();
    drop(greedy);
    target.stop().expect("a clean end");
}

/// However many there are, short commands go on; and long ones do as soon as those who keep all memory have had their time.
#[test]
fn who_has_nothing_gets_memory_whatever_others_keep() {
    let directory = tempfile::tempdir().expect("a directory");
    let target = serve(directory.path());
    let mut bystander = login(&target, 0xa0);
    let greedy = greedy(&target, 24);
    let (mut refused, began) = (0, Instant::now());
    loop {
        let short = Command { lun: LUN, cdb: cdb::read(8, 8), data_in_bytes: 4096, ..Command::default() };
        assert_eq!(bystander.execute_good(short).expect("a short read"), [7; 4096]);
        let ended = bystander.execute(long_read()).expect("an answer");
        if ended.status == 0 {
            break;
        }
        assert_eq!(ended.status, 0x28, "TASK SET FULL");
        refused += 1;
        assert!(began.elapsed() < HOARD_LIMIT, "{refused} long reads were refused");
        thread::sleep(Duration::from_millis(100));
    }
    assert!(refused > 0, "the greedy ones have left memory");
    let line = target.wait_for_log(HOARD_LIMIT, |line| {
        line.contains("too little of what is kept in memory that others wait for")
    });
    assert!(line.is_some(), "{}", target.log());
    drop(greedy);
    bystander.logout().expect("a logout");
    target.stop().expect("a clean end");
}

/// It waits at the front for what nobody gives back; what is there is enough for those behind it.
#[test]
fn a_long_write_that_finds_no_memory_keeps_no_short_ones_waiting() {
    let directory = tempfile::tempdir().expect("a directory");
    let target = serve(directory.path());
    let keys = [("InitialR2T", "Yes"), ("ImmediateData", "No")];
    let asked = |isid_qualifier| {
        let keys = keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let options = LoginOptions { isid_qualifier, keys, ..LoginOptions::default() };
        let mut initiator = Initiator::login(target.portal(), &options).expect("a login");
        initiator.make_ready(LUN).expect("a ready unit");
        initiator
    };
    let (mut short, greedy) = (asked(0xa0), greedy(&target, 6));
    let write = |bytes: usize| Command {
        lun: LUN,
        cdb: cdb::write(0, (bytes / 512) as u32),
        data_out: vec![9; bytes],
        ..Command::default()
    };
    let (is_over, began) = (AtomicBool::new(false), Instant::now());
    thread::scope(|scope| {
        for isid_qualifier in [0xa1, 0xa2] {
            let (mut long, is_over) = (asked(isid_qualifier), &is_over);
            scope.spawn(move || {
                // Who is refused tries again, as initiators do.
                while !is_over.load(Ordering::Relaxed) {
                    let status = long.execute(write(16 << 20)).expect("an answer").status;
                    let is_late = began.elapsed() > WAITING;
                    assert!(status == 0x28 || is_late, "there is memory for it");
                }
            });
        }
        let mut written = 0;
        while began.elapsed() < WAITING {
            // As long as a first buffer of the reserve may be.
            short.execute_good(write(128 << 10)).expect("a short write");
            written += 1;
            thread::sleep(Duration::from_millis(100));
        }
        assert!(written > 0);
        is_over.store(true, Ordering::Relaxed);
    });
    drop(greedy);
    short.logout().expect("a logout");
    target.stop().expect("a clean end");
}
