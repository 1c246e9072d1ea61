//! The ways in which data of long writes comes: what of it is in the store before the rest has come (docs/decisions/0047; RFC 7143, 4.2.5).

use lunette_block::OperationKind;
use lunette_tests::in_process::{InProcess, wait_until};
use lunette_tests::raw::{BLOCK_BYTES, write};
use lunette_wire::InitiatorPdu;
use lunette_wire::frame::Digests;
use lunette_wire::initiator::ScsiCommand;

use super::{
    ASKED, HALF, IMMEDIATE, LENGTH, PAGES, WITH_DIGESTS, asked, data_out, expect_pages_of_half, half_of,
    log_in, read_bytes, stored_bytes, stored_of, unasked, write_bytes,
};
use crate::connections::Session;
use crate::{DISK, expect_on_disk};

/// The store has what came with the command before the rest is asked for.
#[test]
fn immediate_data_is_stored_when_its_command_begins() {
    for digests in [Digests::default(), WITH_DIGESTS] {
        for (immediate, length) in [(HALF, LENGTH), (LENGTH, 2 * LENGTH)] {
            let target = InProcess::start(&[DISK]);
            let mut writing = log_in(&target, 1, &IMMEDIATE, digests);
            let calls = target.faults(0).calls(OperationKind::Write);
            let tag = writing.command(&write(0, 0, length), &vec![0xdd; immediate]).expect("sent");
            let r2t = writing.r2t(tag).expect("an R2T");
            assert_eq!(target.faults(0).calls(OperationKind::Write), calls + 1);
            assert_eq!(stored_bytes(&mut target.session(2), 0xdd), immediate);
            writing.answer_r2t(&r2t, &vec![0xdd; length], LENGTH).expect("sent");
            writing.good(tag).expect("a write");
            expect_on_disk(&mut writing, 0, &vec![0xdd; length]);
            target.wait_for_its_buffers();
        }
    }
}

/// RFC 7143, 4.2.5.2: unsolicited data in the command and behind it, up to FirstBurstLength.
#[test]
fn data_that_comes_unasked_is_there_before_the_rest_is_asked_for() {
    let keys = [("InitialR2T", "No"), ("ImmediateData", "Yes"), ("FirstBurstLength", "262144")];
    for immediate in [0, HALF / 2] {
        let target = InProcess::start(&[DISK]);
        let mut writing = log_in(&target, 1, &keys, Digests::default());
        let command = ScsiCommand { is_final: false, ..write(0, 0, 2 * LENGTH) };
        let tag = writing.command(&command, &vec![0xaa; immediate]).expect("sent");
        // What comes before its command has begun is gathered.
        writing.silent().expect("taken");
        let burst = unasked(tag, immediate..LENGTH);
        for (sn, range) in [(0, immediate..HALF), (1, HALF..LENGTH)] {
            let pdu = data_out(&writing, &burst, range.clone(), sn);
            writing.send(&InitiatorPdu::ScsiDataOut(pdu), &vec![0xaa; range.len()]).expect("sent");
        }
        let r2t = writing.r2t(tag).expect("an R2T");
        assert_eq!(stored_bytes(&mut target.session(2), 0xaa), LENGTH);
        writing.answer_r2t(&r2t, &[0xaa; 2 * LENGTH], LENGTH).expect("sent");
        writing.good(tag).expect("a write");
        expect_on_disk(&mut writing, 0, &[0xaa; 2 * LENGTH]);
        target.wait_for_its_buffers();
    }
}

/// RFC 7143, 7.8: data is looked at before it is used; what is found right need not wait for the rest.
#[test]
fn data_with_digests_is_there_before_the_last_segment() {
    for segment in [64 << 10, 128 << 10] {
        let target = InProcess::start(&[DISK]);
        let mut writing = log_in(&target, 1, &ASKED, WITH_DIGESTS);
        let tag = writing.command(&write(0, 0, LENGTH), &[]).expect("sent");
        let r2t = writing.r2t(tag).expect("an R2T");
        let mut segments: Vec<_> = (0..LENGTH)
            .step_by(segment)
            .enumerate()
            .map(|(sn, at)| {
                let pdu = data_out(&writing, &r2t, at..at + segment, sn as u32);
                writing.connection().encode(&InitiatorPdu::ScsiDataOut(pdu), &vec![0xaa; segment])
            })
            .collect();
        let last = segments.pop().expect("the last one");
        let in_use = target.buffer_bytes_in_use();
        for bytes in &segments {
            // One that comes whole is looked at where it lies.
            let (half, rest) = bytes.split_at(bytes.len() / 2);
            let calls = target.faults(0).calls(OperationKind::Write);
            writing.connection().send_bytes(half).expect("sent");
            wait_until("a half waits", || target.buffer_bytes_in_use() > in_use);
            assert_eq!(target.faults(0).calls(OperationKind::Write), calls, "stored unseen");
            writing.connection().send_bytes(rest).expect("sent");
            writing.silent().expect("taken");
            assert_eq!(target.faults(0).calls(OperationKind::Write), calls + 1);
        }
        assert_eq!(stored_bytes(&mut target.session(2), 0xaa), LENGTH - segment);
        writing.connection().send_bytes(&last).expect("sent");
        writing.good(tag).expect("a write");
        expect_on_disk(&mut writing, 0, &[0xaa; LENGTH]);
        target.wait_for_its_buffers();
    }
}

/// 13.17, 13.19: several R2Ts at a time, and their answers in any order.
#[test]
fn only_the_beginning_is_there_before_the_rest() {
    const BURST: usize = LENGTH / 4;
    let keys = [("MaxBurstLength", "65536"), ("MaxOutstandingR2T", "4"), ("DataSequenceInOrder", "No")];
    // How much is stored after each answer: what comes behind a gap is not.
    for order in [[(0, 1), (1, 2), (2, 3), (3, 4)], [(2, 0), (0, 1), (1, 2), (3, 2)]] {
        for looked_at in 0..4 {
            let target = InProcess::start(&[DISK]);
            let mut writing = log_in(&target, 1, &[&ASKED[..], &keys].concat(), Digests::default());
            let tag = writing.command(&write(0, 0, LENGTH), &[]).expect("sent");
            let r2ts = [(); 4].map(|()| writing.r2t(tag).expect("an R2T"));
            for (index, (answered, stored)) in order.into_iter().enumerate() {
                writing.answer_r2t(&r2ts[answered], &[0xaa; LENGTH], BURST).expect("sent");
                if index == looked_at && index < 3 {
                    writing.silent().expect("taken");
                    assert_eq!(stored_bytes(&mut target.session(2), 0xaa), stored * BURST);
                }
            }
            writing.good(tag).expect("a write");
            expect_on_disk(&mut writing, 0, &[0xaa; LENGTH]);
            target.wait_for_its_buffers();
        }
    }
}

/// The store gets whole pages, whatever the disk's blocks are and wherever the write begins and ends.
#[test]
fn what_is_there_before_the_rest_ends_with_a_page() {
    for (unit, block_bytes, at) in [(DISK, 512, 3 * 512), (DISK, 512, 7 * 512), (PAGES, 4096, 3 * 4096)] {
        let target = InProcess::start(&[unit]);
        let mut writing = asked(&target, 1);
        let command = write_bytes(block_bytes, at, LENGTH);
        let (tag, rest) = half_of(&command, &target, &mut writing, 0xaa);
        let (mut other, all) = (target.session(2), read_bytes(block_bytes, at, LENGTH));
        expect_pages_of_half(&all, at, &mut other, 0xaa);
        writing.connection().send_bytes(&rest).expect("sent");
        writing.good(tag).expect("a write");
        assert_eq!(stored_of(&all, &mut other, 0xaa), LENGTH);
        for beside in [0..at, at + LENGTH..2 * LENGTH] {
            let beside = read_bytes(block_bytes, beside.start, beside.len());
            assert_eq!(stored_of(&beside, &mut other, 0xaa), 0);
        }
    }
}

/// RFC 7143, 4.2.5.1: the data of each comes on the connection of its command.
#[test]
fn every_connection_has_a_write_under_way() {
    const LINKS: usize = 3;
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open_with(&target, 1, LINKS as u16, &ASKED);
    let writes = std::array::from_fn::<_, LINKS, _>(|cid| {
        let (link, byte) = (session.on(cid), 0xa0 + cid as u8);
        let tag = link.command(&write_bytes(BLOCK_BYTES, cid * LENGTH, LENGTH), &[]).expect("sent");
        let r2t = link.r2t(tag).expect("an R2T");
        let pdu = data_out(link, &r2t, 0..HALF, 0);
        link.send(&InitiatorPdu::ScsiDataOut(pdu), &[byte; HALF]).expect("sent");
        link.silent().expect("taken");
        (tag, r2t, byte)
    });
    let mut other = target.session(2);
    for (cid, (tag, r2t, byte)) in writes.into_iter().enumerate().rev() {
        let all = read_bytes(BLOCK_BYTES, cid * LENGTH, LENGTH);
        assert_eq!(stored_of(&all, &mut other, byte), HALF);
        let link = session.on(cid);
        let pdu = data_out(link, &r2t, HALF..LENGTH, 1);
        link.send(&InitiatorPdu::ScsiDataOut(pdu), &[byte; HALF]).expect("sent");
        link.good(tag).expect("a write");
        assert_eq!(stored_of(&all, &mut other, byte), LENGTH);
    }
    target.wait_for_its_buffers();
}
