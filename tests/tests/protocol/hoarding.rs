//! Memory that is kept by initiators that do nothing, while others wait for it: for commands whose turn does not come, for data that
//! stops half way, and for reads that nobody acknowledges (RFC 7143, 4.2.2.1, 7.8; docs/decisions/0006, 0017).

use std::thread;
use std::time::{Duration, Instant};

use lunette_tests::in_process::{InProcess, LIMIT, wait_until};
use lunette_tests::raw::{BLOCK_BYTES, Raw, plain, read, write};
use lunette_wire::initiator::ScsiCommand;
use lunette_wire::{InitiatorPdu, TargetPdu};

use crate::{DISK, TASK_SET_FULL};

/// Of a write that has a buffer for all of it before its turn has come: more than the reserve gives.
const LENGTH: usize = 256 << 10;
const IMMEDIATE: usize = 64 << 10;

/// What a ping and its answer are waited for.
const PAUSE: Duration = Duration::from_millis(200);

fn start(memory_bytes: usize) -> InProcess {
    InProcess::start_with(&[DISK], |config| {
        config.limits.buffer_memory_bytes = memory_bytes as u64;
        config.limits.error_recovery_level = 1;
    })
}

/// A session whose reads have buffers, which are kept until they are acknowledged.
fn level_1(target: &InProcess, port: u8) -> Raw {
    let options = target.options_with(port, &[("ErrorRecoveryLevel", "1")]);
    Raw::ready(target.portal(), &options, 0).expect("a login")
}

/// Sends a write behind a number that does not come.
fn park(session: &mut Raw) {
    session.cmd_sn = session.cmd_sn.next();
    session.command(&write(0, 0, LENGTH), &[7; IMMEDIATE]).expect("sent");
}

/// Sends the beginning of a write's immediate data.
fn begin(session: &mut Raw) {
    let command = session.number(&write(0, 0, LENGTH));
    let bytes = session.connection().encode(&InitiatorPdu::ScsiCommand(command), &[7; IMMEDIATE]);
    session.connection().send_bytes(&bytes[..1024]).expect("sent");
}

/// Tries again and again until it is told anything but TASK SET FULL; answers how often it was told that.
fn refusals(session: &mut Raw, limit: Duration, mut attempt: impl FnMut(&mut Raw) -> u8) -> u32 {
    let (mut refused, began) = (0, Instant::now());
    loop {
        match attempt(session) {
            0 => return refused,
            status => assert_eq!(status, TASK_SET_FULL),
        }
        refused += 1;
        assert!(began.elapsed() < limit, "{refused} refused");
        thread::sleep(PAUSE);
    }
}

/// It keeps memory that others wait for, and it is its turn to send something.
#[test]
fn commands_that_cannot_begin_do_not_keep_memory_for_good() {
    const MEMORY_BYTES: usize = 8 << 20;
    let target = start(MEMORY_BYTES);
    let mut reader = level_1(&target, 0xfe);
    let options = target.options_with(0xff, &[("FirstBurstLength", "262144")]);
    let mut other = Raw::ready(target.portal(), &options, 0).expect("a login");
    let mut sessions: Vec<Raw> = (0..40).map(|port| target.session(port)).collect();
    let (unfinished, parked) = sessions.split_at_mut(10);
    unfinished.iter_mut().for_each(begin);
    parked.iter_mut().for_each(park);
    wait_until("they have what there is", || target.buffer_bytes_in_use() >= MEMORY_BYTES / 2 - LENGTH);
    // Reads have the other half.
    let tag = reader.read(0, 0, 1024).expect("sent");
    reader.data_in(tag).expect("a read");
    let refused = refusals(&mut other, LIMIT, |other| {
        let tag = other.command(&write(0, 0, LENGTH), &[7; LENGTH]).expect("sent");
        other.ending(tag).expect("an answer").status
    });
    assert!(refused > 0, "they have left memory");
    for session in [&mut unfinished[0], &mut parked[0]] {
        let peer = session.connection().local_address().expect("an address");
        let line = target.log_about(peer, "too little of what is kept in memory that others wait for");
        assert!(line.starts_with("WARN"), "{line}");
    }
    drop(sessions);
}

/// Beyond the bound it is as if there were no memory.
#[test]
fn data_of_commands_that_wait_for_earlier_ones_is_bounded() {
    const MEMORY_BYTES: usize = 16 << 20;
    const COUNT: usize = 60;
    let target = start(MEMORY_BYTES);
    let mut session = target.session(1);
    let missing = session.number(&plain());
    for at in 0..COUNT {
        session.command(&write(0, at as u64 * 128, IMMEDIATE), &[7; IMMEDIATE]).expect("sent");
    }
    let ping = session.ping(b"").expect("sent");
    session.pinged(ping, b"").expect("all of it has come");
    let kept = target.buffer_bytes_in_use();
    // All of them have less than the session might have for anything else.
    assert!((1 << 20..=MEMORY_BYTES / 8 + IMMEDIATE).contains(&kept), "{kept}");
    session.send(&InitiatorPdu::ScsiCommand(missing), &[]).expect("sent");
    session.good(missing.initiator_task_tag).expect("its turn");
    let mut full = 0;
    for _ in 0..COUNT {
        let TargetPdu::ScsiResponse(response) = session.receive().expect("an answer").0 else {
            panic!("no response")
        };
        assert!(response.status == 0 || response.status == TASK_SET_FULL, "{response:?}");
        full += usize::from(response.status == TASK_SET_FULL);
    }
    assert_eq!(full, COUNT - kept / IMMEDIATE);
    target.wait_for_its_buffers();
}

/// A read of 512 KiB by an initiator that takes 512 bytes of it and acknowledges nothing.
fn keep(session: &mut Raw) -> u8 {
    let command = ScsiCommand { expected_data_transfer_length: BLOCK_BYTES as u32, ..read(0, 0, 1024) };
    session.command(&command, &[]).expect("sent");
    match session.receive().expect("an answer").0 {
        TargetPdu::ScsiDataIn(pdu) => pdu.status.expect("it is all there is"),
        TargetPdu::ScsiResponse(response) => response.status,
        pdu => panic!("{pdu:?}"),
    }
}

/// What is kept to be sent again is as much as the decision says, whatever is sent of it, and is given up for who needs memory; that
/// is no reason to end a session.
#[test]
fn reads_that_nobody_acknowledges_make_room() {
    const MEMORY_BYTES: usize = 8 << 20;
    let target = start(MEMORY_BYTES);
    let mut sessions: Vec<Raw> = (0..12)
        .map(|port| {
            let mut session = level_1(&target, port);
            session.acknowledged = Some(session.exp_stat_sn);
            session
        })
        .collect();
    for _ in 0..8 {
        assert_eq!(keep(&mut sessions[0]), 0);
    }
    wait_until("the oldest are forgotten", || target.buffer_bytes_in_use() <= MEMORY_BYTES / 8);
    let mut other = level_1(&target, 0xff);
    for session in &mut sessions[1..] {
        for _ in 0..2 {
            let status = keep(session);
            assert!(status == 0 || status == TASK_SET_FULL, "{status}");
        }
    }
    let refused = refusals(&mut other, LIMIT / 3, |other| {
        other.read(0, 0, 1024).expect("sent");
        loop {
            match other.receive().expect("an answer").0 {
                TargetPdu::ScsiDataIn(pdu) => {
                    if let Some(status) = pdu.status {
                        return status;
                    }
                }
                TargetPdu::ScsiResponse(response) => return response.status,
                pdu => panic!("{pdu:?}"),
            }
        }
    });
    assert!(refused > 0, "they have left memory");
    for session in &mut sessions {
        let tag = session.command(&plain(), &[]).expect("sent");
        // It was asked to acknowledge them.
        while !matches!(session.receive().expect("it goes on").0, TargetPdu::ScsiResponse(response)
            if response.initiator_task_tag == tag && response.status == 0)
        {}
    }
}
