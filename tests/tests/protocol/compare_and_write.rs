//! COMPARE AND WRITE over sessions and reactors (SBC-3): nothing comes between its comparison and its write.

use std::thread;

use lunette_block::OperationKind;
use lunette_tests::in_process::InProcess;
use lunette_tests::raw::{BLOCK_BYTES, Raw, plain};
use lunette_wire::initiator::ScsiCommand;

use crate::{A_WHILE, DISK};

/// Sense key and codes of a miscompare.
const MISCOMPARE: (u8, u8, u8) = (0x0e, 0x1d, 0);

/// Of one block.
pub(crate) fn compare_and_write(lba: u8) -> ScsiCommand {
    let mut cdb = [0; 16];
    (cdb[0], cdb[9], cdb[13]) = (0x89, lba, 1);
    let expected_data_transfer_length = 2 * BLOCK_BYTES as u32;
    ScsiCommand { write: true, cdb, expected_data_transfer_length, ..plain() }
}

fn block_of(number: u64) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    // At both ends, so that a block that is half of each is seen.
    block[..8].copy_from_slice(&number.to_be_bytes());
    block[BLOCK_BYTES - 8..].copy_from_slice(&number.to_be_bytes());
    block
}

/// Adds one to the number in block 0, and tells how often others were faster.
fn increment(session: &mut Raw) -> u32 {
    for attempts in 0.. {
        let tag = session.read(0, 0, 1).expect("sent");
        let (found, _) = session.data_in(tag).expect("a read");
        let number = u64::from_be_bytes(found[..8].try_into().expect("eight bytes"));
        let data = [&found[..], &block_of(number + 1)].concat();
        let tag = session.command(&compare_and_write(0), &data).expect("sent");
        let ending = session.ending(tag).expect("an answer");
        match ending.status {
            0 => return attempts,
            _ => assert_eq!(ending.codes(), MISCOMPARE),
        }
    }
    unreachable!("attempts are not that many")
}

#[test]
fn increments_of_several_sessions_are_all_counted() {
    const SESSIONS: u8 = 4;
    const INCREMENTS: u64 = 200;
    let target = InProcess::start(&[DISK]);
    let writer = {
        // Plain writes to blocks around it, which must not be held up for ever, nor hold it up.
        let mut session = target.session(SESSIONS + 1);
        thread::spawn(move || {
            for round in 0..INCREMENTS * 4 {
                let tag = session.write(0, 1 + round % 8, &[round as u8; BLOCK_BYTES]).expect("sent");
                session.good(tag).expect("a write");
            }
        })
    };
    let counters: Vec<_> = (1..=SESSIONS)
        .map(|port| {
            let mut session = target.session(port);
            thread::spawn(move || (0..INCREMENTS).map(|_| increment(&mut session)).sum::<u32>())
        })
        .collect();
    for counter in counters {
        counter.join().expect("all its increments");
    }
    writer.join().expect("all its writes");
    let mut session = target.session(SESSIONS + 2);
    let tag = session.read(0, 0, 1).expect("sent");
    let (found, _) = session.data_in(tag).expect("a read");
    assert!(found == block_of(u64::from(SESSIONS) * INCREMENTS), "increments were lost: {:?}", &found[..8]);
}

#[test]
fn a_write_does_not_come_between() {
    let target = InProcess::start(&[DISK]);
    let (mut swapping, mut writing) = (target.session(1), target.session(2));
    target.hold(0, OperationKind::Read);
    let data = [block_of(0), block_of(1)].concat();
    let swap = swapping.command(&compare_and_write(0), &data).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 1);
    let write = writing.write(0, 0, &block_of(7)).expect("sent");
    writing.waits(A_WHILE).expect("the other has compared, and will write");
    assert_eq!(target.faults(0).calls(OperationKind::Write), 0);
    target.faults(0).clear();
    swapping.good(swap).expect("blocks that were equal");
    writing.good(write).expect("a write");
    crate::expect_on_disk(&mut writing, 0, &block_of(7));
}

#[test]
fn who_owes_data_does_not_hold_it_up() {
    let target = InProcess::start(&[DISK]);
    let keys = [("InitialR2T", "Yes"), ("ImmediateData", "No")];
    let mut slow = Raw::ready(target.portal(), &target.options_with(1, &keys), 0).expect("a login");
    let mut swapping = target.session(2);
    let data = block_of(7);
    let write = slow.command(&lunette_tests::raw::write(0, 0, BLOCK_BYTES), &[]).expect("sent");
    let r2t = slow.r2t(write).expect("an R2T");
    let both = [block_of(0), block_of(1)].concat();
    let swap = swapping.command(&compare_and_write(0), &both).expect("sent");
    swapping.good(swap).expect("a write that has no data yet is not at the medium");
    slow.answer_r2t(&r2t, &data, BLOCK_BYTES).expect("sent");
    slow.good(write).expect("a write");
    crate::expect_on_disk(&mut swapping, 0, &data);
}
