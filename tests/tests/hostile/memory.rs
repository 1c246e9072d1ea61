//! Memory that others keep: reads that are asked for and never taken, with buffers and without, and a long write that finds none
//! (docs/decisions/0006, 0042).

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lunette_tests::initiator::{Command, Initiator, LoginOptions, cdb};
use lunette_tests::lunette::Lunette;
use lunette_wire::initiator::{NopOut, ScsiCommand, TaskManagementFunction, TaskManagementRequest};
use lunette_wire::{CmdSn, DataSn, InitiatorPdu, InitiatorTaskTag, LunField, TargetPdu, TargetTransferTag};
use rustix::process::{Pid, Signal, kill_process};

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

/// Reads of which each is answered out of what is in memory anyway, so that no pool bounds the answers: they come in one read of the
/// socket, and pings without an answer between them have the target answer the ones before at once.
fn burst(initiator: &mut Initiator, lun: u8, bytes: u32, count: u32) {
    const BETWEEN_PINGS: u32 = 100;
    let first = initiator.cmd_sn();
    let mut burst = Vec::new();
    for at in 0..count {
        let cmd_sn = CmdSn(first.0.wrapping_add(at));
        let read = ScsiCommand {
            is_final: true,
            read: true,
            lun: LunField([0, lun, 0, 0, 0, 0, 0, 0]),
            initiator_task_tag: InitiatorTaskTag(1000 + at),
            expected_data_transfer_length: bytes,
            cmd_sn,
            cdb: cdb::read(0, bytes / 512),
            ..ScsiCommand::default()
        };
        burst.extend(initiator.connection().encode(&InitiatorPdu::ScsiCommand(read), &[]));
        if at % BETWEEN_PINGS == BETWEEN_PINGS - 1 {
            let nop = NopOut {
                immediate: true,
                initiator_task_tag: InitiatorTaskTag::RESERVED,
                target_transfer_tag: TargetTransferTag(1),
                cmd_sn: cmd_sn.next(),
                ..NopOut::default()
            };
            burst.extend(initiator.connection().encode(&InitiatorPdu::NopOut(nop), &[]));
        }
    }
    initiator.connection().send_bytes(&burst).expect("sent");
}

/// A target with one reactor, a session whose `burst` it has looked at, which takes nothing, and another session.
fn serve_a_burst(
    configuration: &str,
    lun: u8,
    segment_bytes: u32,
    burst: impl FnOnce(&mut Initiator),
) -> (Lunette, Initiator, Initiator) {
    let configuration = format!("{configuration}[reactors]\ncount = 1\n");
    let target = Lunette::serve().configuration(&configuration).start().expect("a target");
    let keys = vec![("MaxRecvDataSegmentLength".to_owned(), segment_bytes.to_string())];
    let options = LoginOptions { keys, ..LoginOptions::default() };
    let mut greedy = Initiator::login(target.portal(), &options).expect("a login");
    greedy.make_ready(lun).expect("a ready unit");
    let before = target.resident_bytes().expect("a number");
    // All of it is there when it reads.
    let pid = Pid::from_raw(target.pid().cast_signed()).expect("a process");
    kill_process(pid, Signal::STOP).expect("it stops");
    burst(&mut greedy);
    kill_process(pid, Signal::CONT).expect("it goes on");
    // Beside a busy session it would have had to wait its turn.
    let options = LoginOptions { isid_qualifier: 0xb0, ..LoginOptions::default() };
    let mut other = Initiator::login(target.portal(), &options).expect("a login");
    other.make_ready(lun).expect("a ready unit");
    for _ in 0..10 {
        let read = Command { lun, cdb: cdb::read(0, 8), data_in_bytes: 4096, ..Command::default() };
        other.execute_good(read).expect("others are served");
    }
    let grown = target.resident_bytes().expect("a number").saturating_sub(before);
    assert!(grown < STRANGERS_BYTES_MAX, "{grown} bytes more");
    (target, greedy, other)
}

/// As soon as they are taken the others are made.
#[test]
fn answers_from_memory_that_are_not_taken_are_bounded() {
    // What was within the window when it came; the rest is ignored.
    const WINDOW: u32 = 128;
    let (target, mut greedy, other) =
        serve_a_burst("", 0, 512, |initiator| burst(initiator, 0, 1 << 20, 300));
    for at in 0..WINDOW {
        let mut taken = 0;
        loop {
            let (TargetPdu::ScsiDataIn(pdu), data) = greedy.connection().receive().expect("an answer") else {
                panic!("only data");
            };
            assert_eq!((pdu.initiator_task_tag, pdu.buffer_offset), (InitiatorTaskTag(1000 + at), taken));
            taken += data.len() as u32;
            if let Some(status) = pdu.status {
                assert_eq!((status, taken), (0, 1 << 20), "read {at}");
                break;
            }
        }
    }
    other.logout().expect("a logout");
    target.stop().expect("a clean end");
}

/// A reset does not wait for them.
#[test]
fn answers_from_the_page_cache_that_are_not_taken_are_bounded() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("image");
    std::fs::write(&image, vec![7; 16 << 20]).expect("an image");
    let configuration = format!(
        "[[target.lun]]\nnumber = {LUN}\nstore = \"{}\"\nengine = \"threads\"\nwrite = \"back\"\n",
        image.display()
    );
    let (target, greedy, mut other) =
        serve_a_burst(&configuration, LUN, 32 << 10, |initiator| burst(initiator, LUN, 16 << 20, 1500));
    let (tag, cmd_sn) = (InitiatorTaskTag(900), other.cmd_sn());
    let reset = TaskManagementRequest {
        immediate: true,
        function: TaskManagementFunction::LogicalUnitReset,
        lun: LunField([0, LUN, 0, 0, 0, 0, 0, 0]),
        initiator_task_tag: tag,
        referenced_task_tag: InitiatorTaskTag::RESERVED,
        cmd_sn,
        exp_stat_sn: other.exp_stat_sn(),
        ref_cmd_sn: CmdSn(0),
        exp_data_sn: DataSn(0),
    };
    other.connection().send(&InitiatorPdu::TaskManagementRequest(reset), &[]).expect("sent");
    let (TargetPdu::TaskManagementResponse(response), _) = other.connection().receive().expect("an answer")
    else {
        panic!("no response");
    };
    assert_eq!((response.initiator_task_tag, response.response), (tag, 0));
    drop((greedy, other));
    target.stop().expect("a clean end");
}
