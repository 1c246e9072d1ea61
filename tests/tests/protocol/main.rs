//! The iSCSI protocol end to end: a target in this process, real sockets, an initiator that says exactly what a test
//! wants, and stores that wait when they are told to (RFC 7143).
//!
//! Not here: what the session core does in virtual time (`crates/iscsi/tests/pair`), and the binary (`drain`, `hostile`).

mod aborts;
mod allegiance;
mod asynchronous;
mod attaching;
mod batches;
mod both_ways;
mod bursts;
mod compare_and_write;
mod connections;
mod cut_through;
mod details;
mod digests;
mod hoarding;
mod long_writes;
mod management;
mod offers;
mod ordering;
mod port_groups;
mod preemption;
mod pressure;
mod queries;
mod random;
mod recovery;
mod reload;
mod requests;
mod reservations;
mod sessions;
mod soliciting;
mod transfers;
mod write_atomic;

use std::time::Duration;

use lunette_tests::in_process::InProcess;
use lunette_tests::raw::{BLOCK_BYTES, Raw};
use lunette_wire::TargetPdu;

/// Long enough for a target that does not wait to have answered.
const A_WHILE: Duration = Duration::from_millis(100);

/// A unit in memory that answers writes when they are in it, so that a held write is held before it lands.
const DISK: &str = "0=mem:8M,write=back";
const SECOND_DISK: &str = "1=mem:8M,write=back";

/// Sense key, additional sense code and qualifier that say which unit attention it is.
const BUS_DEVICE_RESET: (u8, u8, u8) = (6, 0x29, 3);
const COMMANDS_CLEARED: (u8, u8, u8) = (6, 0x2f, 0);

const TASK_SET_FULL: u8 = 0x28;
const CHECK_CONDITION: u8 = 2;

/// Response "function complete" (11.6.1).
const COMPLETE: u8 = 0;

/// AsyncEvent "session drop notification" (11.9.1).
const SESSION_DROP: u8 = 3;

/// The next PDU must be an Asynchronous Message; returns its event.
fn event(session: &mut Raw) -> u8 {
    match session.receive().expect("an Asynchronous Message").0 {
        TargetPdu::AsynchronousMessage(pdu) => pdu.event,
        other => panic!("{other:?}"),
    }
}

/// A session that has seen the first unit attention of both units.
fn ready_session(target: &InProcess, port: u8) -> Raw {
    let mut session = target.session(port);
    session.make_ready(1).expect("a ready unit");
    session
}

/// The unit has this attention for the session, once.
fn expect_attention(session: &mut Raw, lun: u8, attention: (u8, u8, u8)) {
    let ending = session.test_unit_ready(lun).expect("an answer");
    assert_eq!((ending.status, ending.codes()), (CHECK_CONDITION, attention), "LUN {lun}");
    expect_ready(session, lun);
}

fn expect_ready(session: &mut Raw, lun: u8) {
    let ending = session.test_unit_ready(lun).expect("an answer");
    assert_eq!(ending.status, 0, "LUN {lun}: {:?}", ending.codes());
}

/// Bytes that are different at every place.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index / 7 + index / BLOCK_BYTES * 31) as u8).collect()
}

fn expect_on_disk(session: &mut Raw, lba: u64, expected: &[u8]) {
    let tag = session.read(0, lba, (expected.len() / BLOCK_BYTES) as u32).expect("sent");
    assert!(session.data_in(tag).expect("a read").0 == expected, "other data is on the disk");
}
