//! Memory that initiators keep and do not use while others wait for it: for commands that cannot begin, since their turn does not come or
//! their data stops half way, and for reads that they do not acknowledge (RFC 7143, 4.2.2.1, 7.8; docs/decisions/0006, 0017).

use std::thread;
use std::time::{Duration, Instant};

use lunette_tests::in_process::{InProcess, LIMIT, wait_until};
use lunette_tests::raw::{BLOCK_BYTES, Raw, plain, read as read_command, write};
use lunette_wire::initiator::ScsiCommand;
use lunette_wire::{InitiatorPdu, InitiatorTaskTag, TargetPdu};

use crate::{DISK, TASK_SET_FULL};

const MEMORY_BYTES: usize = 8 << 20;
/// Of a write that has a buffer for all of it before its turn has come: more than the reserve gives.
const LENGTH: usize = 256 << 10;
const IMMEDIATE: usize = 64 << 10;

/// Sends a write behind a number that does not come.
fn park(session: &mut Raw, length: usize) -> InitiatorTaskTag {
    session.cmd_sn = session.cmd_sn.next();
    session.command(&write(0, 0, length), &[7; IMMEDIATE]).expect("sent")
}

/// Sends the beginning of a write's immediate data.
fn begin(session: &mut Raw) {
    let command = session.number(&write(0, 0, LENGTH));
    let bytes = session.connection().encode(&InitiatorPdu::ScsiCommand(command), &[7; IMMEDIATE]);
    session.connection().send_bytes(&bytes[..1024]).expect("sent");
}

/// The status of a read of 512 KiB.
fn read(session: &mut Raw) -> u8 {
    session.read(0, 0, 1024).expect("sent");
    status(session)
}

/// The status of the command that is under way.
fn status(session: &mut Raw) -> u8 {
    loop {
        match session.receive().expect("an answer").0 {
            TargetPdu::ScsiDataIn(pdu) => {
                if let Some(status) = pdu.status {
                    return status;
                }
            }
            TargetPdu::ScsiResponse(response) => return response.status,
            pdu => panic!("{pdu:?}"),
        }
    }
}

/// The others get what they kept, and of them who sends what is missing goes on.
#[test]
fn commands_that_cannot_begin_do_not_keep_memory_for_good() {
    const PAUSE: Duration = Duration::from_millis(200);
    /// What they have.
    const PATIENCE: Duration = Duration::from_secs(30);
    let target = InProcess::start_with(&[DISK], |config| {
        config.limits.buffer_memory_bytes = MEMORY_BYTES as u64;
    });
    let mut reader = target.session(0xff);
    let mut slow = target.session(0xfe);
    let missing = slow.number(&plain());
    slow.cmd_sn = missing.cmd_sn;
    let mut missing = Some(missing);
    let late = park(&mut slow, IMMEDIATE);
    let mut sessions: Vec<Raw> = (0..40).map(|port| target.session(port)).collect();
    let (unfinished, parked) = sessions.split_at_mut(15);
    unfinished.iter_mut().for_each(begin);
    for session in parked.iter_mut() {
        park(session, LENGTH);
    }
    wait_until("they have what there is", || target.buffer_bytes_in_use() >= MEMORY_BYTES / 16 * 15 - LENGTH);
    let (mut refused, began) = (0, Instant::now());
    loop {
        match read(&mut reader) {
            0 => break,
            status => assert_eq!(status, TASK_SET_FULL),
        }
        refused += 1;
        assert!(began.elapsed() < LIMIT, "{refused} refused");
        thread::sleep(PAUSE);
        if began.elapsed() > PATIENCE / 2
            && let Some(missing) = missing.take()
        {
            slow.send(&InitiatorPdu::ScsiCommand(missing), &[]).expect("sent");
            slow.good(missing.initiator_task_tag).expect("its turn");
            slow.good(late).expect("a write");
        }
    }
    assert!(began.elapsed() > PATIENCE * 9 / 10, "they have left memory");
    for session in [&mut unfinished[0], &mut parked[0]] {
        let peer = session.connection().local_address().expect("an address");
        let line = target.log_about(peer, "too little of what is kept in memory that others wait for");
        assert!(line.starts_with("WARN"), "{line}");
    }
    slow.silent().expect("it is alive");
}

/// What is kept to be sent again is a part of the memory, of however many sessions; those go on.
#[test]
fn reads_that_nobody_acknowledges_leave_room() {
    let target = InProcess::start_with(&[DISK], |config| {
        config.limits.buffer_memory_bytes = MEMORY_BYTES as u64;
        config.limits.error_recovery_level = 1;
    });
    let mut sessions: Vec<Raw> = (0..24)
        .map(|port| {
            let options = target.options_with(port, &[("ErrorRecoveryLevel", "1")]);
            let mut session = Raw::ready(target.portal(), &options, 0).expect("a login");
            session.acknowledged = Some(session.exp_stat_sn);
            session
        })
        .collect();
    // Of 512 KiB it takes 512 bytes, so that it has the answer at once.
    let command =
        ScsiCommand { expected_data_transfer_length: BLOCK_BYTES as u32, ..read_command(0, 0, 1024) };
    for session in &mut sessions {
        for _ in 0..2 {
            session.command(&command, &[]).expect("sent");
            let status = status(session);
            assert!(status == 0 || status == TASK_SET_FULL, "{status}");
        }
    }
    wait_until("most of it is forgotten", || target.buffer_bytes_in_use() <= MEMORY_BYTES / 4);
    let mut other = target.session(0xff);
    assert_eq!(read(&mut other), 0);
    for session in &mut sessions {
        session.command(&plain(), &[]).expect("sent");
        assert_eq!(status(session), 0, "it goes on");
    }
}
