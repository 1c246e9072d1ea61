//! Long writes whose data goes to the store as it comes (docs/decisions/0047): what of it is there, and what never gets there
//! (RFC 7143, 4.2.5.2, 7.8; SAM-5, aborts, task sets; SPC-4, persistent reservations).

mod parts;
mod ways;

use std::ops::Range;

use lunette_block::OperationKind;
use lunette_block::fault::{Effect, Errno, Rule, When};
use lunette_tests::in_process::{InProcess, wait_until};
use lunette_tests::initiator::{LoginOptions, cdb};
use lunette_tests::raw::{BLOCK_BYTES, Raw, plain, read, write};
use lunette_tests::reservations::{Action, persistent_reserve_out};
use lunette_wire::frame::Digests;
use lunette_wire::initiator::{ScsiCommand, ScsiDataOut, TaskAttribute, TaskManagementFunction as Function};
use lunette_wire::target::ReadyToTransfer;
use lunette_wire::{DataSn, InitiatorPdu, InitiatorTaskTag, TargetTransferTag};

use crate::compare_and_write::compare_and_write;
use crate::{A_WHILE, BUS_DEVICE_RESET, CHECK_CONDITION, COMPLETE, DISK, expect_attention, expect_on_disk};

const LENGTH: usize = 256 << 10;
const HALF: usize = LENGTH / 2;
const PAGE: usize = 4096;

/// A disk whose blocks are pages.
const PAGES: &str = "0=mem:8M,block=4096,write=back";

/// A type of persistent reservation, and the status of whom it keeps out (SPC-4, SAM-5).
const WRITE_EXCLUSIVE: u8 = 1;
const RESERVATION_CONFLICT: u8 = 0x18;
const BUSY: u8 = 0x08;

/// Sense key, additional sense code and qualifier of a volume whose flush has failed.
const PERIPHERAL_DEVICE_WRITE_FAULT: (u8, u8, u8) = (4, 0x03, 0);

/// Keys of a session that sends what it was asked for.
const ASKED: [(&str, &str); 2] = [("InitialR2T", "Yes"), ("ImmediateData", "No")];

/// Keys of a session whose commands bring up to [`LENGTH`].
const IMMEDIATE: [(&str, &str); 2] = [("ImmediateData", "Yes"), ("FirstBurstLength", "262144")];

const WITH_DIGESTS: Digests = Digests { header: true, data: true };

/// A session whose writes are asked for.
fn asked(target: &InProcess, port: u8) -> Raw {
    log_in(target, port, &ASKED, Digests::default())
}

fn log_in(target: &InProcess, port: u8, keys: &[(&str, &str)], digests: Digests) -> Raw {
    let options = LoginOptions { digests, ..target.options_with(port, keys) };
    Raw::ready(target.portal(), &options, 0).expect("a login")
}

/// WRITE (16) and READ (16) from a byte on, of a disk with blocks of this length.
fn write_bytes(block_bytes: usize, at: usize, length: usize) -> ScsiCommand {
    let cdb = cdb::write((at / block_bytes) as u64, (length / block_bytes) as u32);
    ScsiCommand { cdb, ..write(0, 0, length) }
}

fn read_bytes(block_bytes: usize, at: usize, length: usize) -> ScsiCommand {
    let cdb = cdb::read((at / block_bytes) as u64, (length / block_bytes) as u32);
    ScsiCommand { cdb, ..read(0, 0, (length / BLOCK_BYTES) as u32) }
}

fn data_out(session: &Raw, r2t: &ReadyToTransfer, range: Range<usize>, sn: u32) -> ScsiDataOut {
    ScsiDataOut {
        is_final: range.end == r2t.buffer_offset as usize + r2t.desired_length as usize,
        initiator_task_tag: r2t.initiator_task_tag,
        target_transfer_tag: r2t.target_transfer_tag,
        exp_stat_sn: session.exp_stat_sn,
        data_sn: DataSn(sn),
        buffer_offset: range.start as u32,
        ..ScsiDataOut::default()
    }
}

/// What a command without the F bit is followed by (11.3.1), as if it had been asked for.
fn unasked(initiator_task_tag: InitiatorTaskTag, range: Range<usize>) -> ReadyToTransfer {
    ReadyToTransfer {
        initiator_task_tag,
        target_transfer_tag: TargetTransferTag::RESERVED,
        buffer_offset: range.start as u32,
        desired_length: range.len() as u32,
        ..ReadyToTransfer::default()
    }
}

/// A write of [`LENGTH`] to the beginning of the disk, half of whose one data segment has been sent, and some of it stored; and
/// the other half. Nobody else has logged in: who has company waits (docs/decisions/0045).
fn half_written(target: &InProcess, session: &mut Raw, byte: u8) -> (InitiatorTaskTag, Vec<u8>) {
    half_of(&write(0, 0, LENGTH), target, session, byte)
}

/// As [`half_written`], by a command of that length.
fn half_of(
    command: &ScsiCommand,
    target: &InProcess,
    session: &mut Raw,
    byte: u8,
) -> (InitiatorTaskTag, Vec<u8>) {
    let calls = target.faults(0).calls(OperationKind::Write);
    let tag = session.command(command, &[]).expect("sent");
    let r2t = session.r2t(tag).expect("an R2T");
    let pdu = InitiatorPdu::ScsiDataOut(data_out(session, &r2t, 0..LENGTH, 0));
    let mut bytes = session.connection().encode(&pdu, &vec![byte; LENGTH]);
    let rest = bytes.split_off(48 + HALF);
    session.connection().send_bytes(&bytes).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, calls + 1);
    (tag, rest)
}

/// How many bytes from the beginning of the disk on are this one.
fn stored_bytes(session: &mut Raw, byte: u8) -> usize {
    stored_of(&read(0, 0, (LENGTH / BLOCK_BYTES) as u32), session, byte)
}

/// As [`stored_bytes`], of what this command reads.
fn stored_of(command: &ScsiCommand, session: &mut Raw, byte: u8) -> usize {
    let (stored, is_rest_zero) = found_by(command, session, byte);
    assert!(is_rest_zero, "the rest is as it was");
    stored
}

/// As [`stored_of`], and whether the rest is as it was.
fn found_by(command: &ScsiCommand, session: &mut Raw, byte: u8) -> (usize, bool) {
    let tag = session.command(command, &[]).expect("sent");
    let (data, _) = session.data_in(tag).expect("a read");
    let stored = data.iter().take_while(|&&read| read == byte).count();
    (stored, data[stored..].iter().all(|&read| read == 0))
}

/// Waits until what this command reads, which begins at this byte of the disk, has some of the half up to the end of a page, and
/// nothing else. The call that [`half_of`] waits for is counted before it copies.
fn expect_pages_of_half(command: &ScsiCommand, at: usize, session: &mut Raw, byte: u8) {
    let mut last = None;
    wait_until("whole pages are stored, and nothing else", || {
        let (stored, is_rest_zero) = found_by(command, session, byte);
        let is_right = (1..=HALF).contains(&stored) && (at + stored).is_multiple_of(PAGE) && is_rest_zero;
        is_right && last.replace(stored) == Some(stored)
    });
}

#[test]
fn what_has_come_is_there_before_the_rest() {
    let target = InProcess::start(&[DISK]);
    let mut writing = asked(&target, 1);
    let (tag, rest) = half_written(&target, &mut writing, 0xaa);
    let mut other = target.session(2);
    expect_pages_of_half(&read(0, 0, (LENGTH / BLOCK_BYTES) as u32), 0, &mut other, 0xaa);
    writing.connection().send_bytes(&rest).expect("sent");
    writing.good(tag).expect("a write");
    expect_on_disk(&mut writing, 0, &[0xaa; LENGTH]);
    target.wait_for_its_buffers();
}

/// SAM-5, 7.2: when an abort has been answered, nothing more of the task reaches the medium.
#[test]
fn what_comes_after_an_abort_goes_nowhere() {
    let target = InProcess::start(&[DISK]);
    let mut writing = asked(&target, 1);
    let (_, rest) = half_written(&target, &mut writing, 0xaa);
    let mut other = target.session(2);
    let reset = other.manage(Function::LogicalUnitReset, 0).expect("sent");
    assert_eq!(other.managed(reset).expect("an answer"), COMPLETE);
    let calls = target.faults(0).calls(OperationKind::Write);
    writing.connection().send_bytes(&rest).expect("sent");
    writing.silent().expect("no answer to an aborted write");
    assert_eq!(target.faults(0).calls(OperationKind::Write), calls);
    expect_attention(&mut other, 0, BUS_DEVICE_RESET);
    assert!((1..=HALF).contains(&stored_bytes(&mut other, 0xaa)));
    target.wait_for_its_buffers();
}

/// SAM-5, 8.6: a write that an ORDERED command waits for goes on, and ends before it begins.
#[test]
fn an_ordered_command_waits_for_all_of_it() {
    let target = InProcess::start(&[DISK]);
    let mut writing = asked(&target, 1);
    let (tag, rest) = half_written(&target, &mut writing, 0xbb);
    let mut other = target.session(2);
    let blocks = (LENGTH / BLOCK_BYTES) as u32;
    let ordered = ScsiCommand { attribute: TaskAttribute::Ordered, ..read(0, 0, blocks) };
    let ordered = other.command(&ordered, &[]).expect("sent");
    other.waits(A_WHILE).expect("the write is older");
    writing.connection().send_bytes(&rest).expect("sent");
    writing.good(tag).expect("a write");
    assert!(other.data_in(ordered).expect("a read").0 == [0xbb; LENGTH]);
}

/// SAM-5, 8.6: what has come of a command that is not all there is not in anybody's task set, so it must not be on the medium either.
#[test]
fn immediate_data_waits_for_all_of_its_pdu() {
    let target = InProcess::start(&[DISK]);
    let mut writing = log_in(&target, 1, &IMMEDIATE, Digests::default());
    for length in [LENGTH, 2 * LENGTH] {
        let command = writing.number(&write(0, 0, length));
        let bytes = writing.connection().encode(&InitiatorPdu::ScsiCommand(command), &[0xdd; LENGTH]);
        let (half, rest) = bytes.split_at(bytes.len() / 2);
        writing.connection().send_bytes(half).expect("sent");
        let mut other = target.session(2);
        let ordered = ScsiCommand { attribute: TaskAttribute::Ordered, ..write(0, 0, LENGTH) };
        let tag = other.command(&ordered, &[]).expect("sent");
        let r2t = other.r2t(tag).expect("an R2T");
        other.answer_r2t(&r2t, &[0xee; LENGTH], LENGTH).expect("sent");
        other.good(tag).expect("nothing is before it");
        expect_on_disk(&mut other, 0, &[0xee; LENGTH]);
        writing.connection().send_bytes(rest).expect("sent");
        if length > LENGTH {
            let r2t = writing.r2t(command.initiator_task_tag).expect("an R2T");
            writing.answer_r2t(&r2t, &vec![0xdd; length], 64 << 10).expect("sent");
        }
        writing.good(command.initiator_task_tag).expect("a write");
        expect_on_disk(&mut other, 0, &vec![0xdd; length]);
    }
}

/// SBC-3, WRITE: without a write cache all of the data is on the medium when the command ends.
#[test]
fn one_flush_covers_all_that_came_before() {
    let directory = tempfile::tempdir().expect("a directory");
    let unit = format!("0=file:{},size=8M", directory.path().join("disk.img").display());
    let target = InProcess::start(&[&unit]);
    let mut writing = asked(&target, 1);
    let before = target.faults(0).calls(OperationKind::Flush);
    let (tag, rest) = half_written(&target, &mut writing, 0xab);
    assert_eq!(target.faults(0).calls(OperationKind::Flush), before);
    writing.connection().send_bytes(&rest).expect("sent");
    writing.good(tag).expect("a write");
    assert_eq!(target.faults(0).calls(OperationKind::Flush), before + 1);
    expect_on_disk(&mut writing, 0, &[0xab; LENGTH]);
}

/// What others can read of a write that does not end is not to be gone after a power cut; without a write cache no other flush comes.
#[test]
fn what_is_left_of_a_write_that_does_not_end_is_made_stable() {
    let directory = tempfile::tempdir().expect("a directory");
    for (end, policy, flushes) in
        [("reset", "", 1), ("conflict", "", 1), ("loss", "", 1), ("reset", ",write=back", 0)]
    {
        let path = directory.path().join(format!("{end}{flushes}.img"));
        let target = InProcess::start(&[&format!("0=file:{},size=8M{policy}", path.display())]);
        let mut writing = asked(&target, 1);
        let before = target.faults(0).calls(OperationKind::Flush);
        let (tag, rest) = half_written(&target, &mut writing, 0xab);
        let mut other = target.session(2);
        match end {
            "reset" => {
                let reset = other.manage(Function::LogicalUnitReset, 0).expect("sent");
                assert_eq!(other.managed(reset).expect("an answer"), COMPLETE);
            }
            "conflict" => {
                for (action, kind, keys) in
                    [(Action::Register, 0, (0, 1)), (Action::Reserve, WRITE_EXCLUSIVE, (1, 0))]
                {
                    let ending =
                        persistent_reserve_out(&mut other, 0, action, kind, keys).expect("an answer");
                    assert_eq!(ending.status, 0);
                }
                writing.connection().send_bytes(&rest).expect("sent");
                assert_eq!(writing.ending(tag).expect("an answer").status, RESERVATION_CONFLICT);
            }
            _ => drop(writing),
        }
        target.wait_for_calls(0, OperationKind::Flush, before + flushes);
        assert_eq!(target.faults(0).calls(OperationKind::Flush), before + flushes, "{end}");
    }
}

/// SAM-5, TASK SET FULL: what may still be told to come again has done nothing.
#[test]
fn nothing_is_stored_before_there_is_memory_for_the_rest() {
    const FIRST_BURST: usize = 64 << 10;
    let keys = [("InitialR2T", "No"), ("ImmediateData", "Yes")];
    for immediate in [FIRST_BURST, 0] {
        let target = InProcess::start_with(&[DISK], |config| {
            config.limits.buffer_memory_bytes = (2 * LENGTH + 2 * FIRST_BURST) as u64;
        });
        let mut other = asked(&target, 1);
        let mut writing = log_in(&target, 2, &keys, Digests::default());
        let held = other.command(&write(0, 4096, LENGTH), &[]).expect("sent");
        let held_r2t = other.r2t(held).expect("an R2T");
        let calls = target.faults(0).calls(OperationKind::Write);
        let command = ScsiCommand { is_final: immediate > 0, ..write(0, 0, 2 * LENGTH) };
        let tag = writing.command(&command, &vec![0xab; immediate]).expect("sent");
        if immediate == 0 {
            // It has begun before its data comes.
            writing.silent().expect("taken");
            let unsolicited = (tag, TargetTransferTag::RESERVED);
            writing.sequence(unsolicited, 0, &[0xab; FIRST_BURST], FIRST_BURST / 2).expect("sent");
        }
        writing.waits(A_WHILE).expect("there is no memory for the rest");
        assert_eq!(target.faults(0).calls(OperationKind::Write), calls, "something of it is stored");
        other.answer_r2t(&held_r2t, &[0xcd; LENGTH], LENGTH / 4).expect("sent");
        other.good(held).expect("a write");
        let mut came = FIRST_BURST;
        while came < 2 * LENGTH {
            let r2t = writing.r2t(tag).expect("an R2T");
            writing.answer_r2t(&r2t, &[0xab; 2 * LENGTH], LENGTH / 4).expect("sent");
            came += r2t.desired_length as usize;
        }
        writing.good(tag).expect("a write");
        expect_on_disk(&mut writing, 0, &[0xab; 2 * LENGTH]);
        target.wait_for_its_buffers();
    }
}

/// SBC-3, table 13; SPC-4, 5.9: who reserves a unit keeps others from changing it, whatever they have begun.
#[test]
fn what_comes_after_a_reservation_goes_nowhere() {
    let target = InProcess::start(&[DISK]);
    let mut writing = asked(&target, 1);
    let (tag, rest) = half_written(&target, &mut writing, 0xcc);
    let mut holder = target.session(2);
    for (action, kind, keys) in [(Action::Register, 0, (0, 1)), (Action::Reserve, WRITE_EXCLUSIVE, (1, 0))] {
        let ending = persistent_reserve_out(&mut holder, 0, action, kind, keys).expect("an answer");
        assert_eq!(ending.status, 0);
    }
    writing.connection().send_bytes(&rest).expect("sent");
    assert_eq!(writing.ending(tag).expect("an answer").status, RESERVATION_CONFLICT);
    assert!((1..=HALF).contains(&stored_bytes(&mut holder, 0xcc)));
    target.wait_for_its_buffers();
}

/// SBC-3, COMPARE AND WRITE: nothing comes between its comparison and its write, and no half of another write is before it and
/// the other behind it.
#[test]
fn who_is_alone_at_the_medium_is_in_the_middle_of_no_write() {
    let target = InProcess::start(&[DISK]);
    let mut writing = asked(&target, 1);
    let (tag, rest) = half_written(&target, &mut writing, 0xaa);
    let mut other = target.session(2);
    let mut alone = |data: [u8; 2 * BLOCK_BYTES]| {
        let tag = other.command(&compare_and_write(0), &data).expect("sent");
        other.good(tag).expect("the block as expected");
    };
    let (old, new) = ([0xaa; BLOCK_BYTES], [0xbb; BLOCK_BYTES]);
    alone([old, new].concat().try_into().expect("two blocks"));
    let calls = target.faults(0).calls(OperationKind::Write);
    writing.connection().send_bytes(&rest).expect("sent");
    assert_eq!(writing.ending(tag).expect("an answer").status, BUSY);
    assert_eq!(target.faults(0).calls(OperationKind::Write), calls, "nothing more is stored");
    expect_on_disk(&mut writing, 0, &new);

    // The second try meets another one, and nothing of it has been stored by then.
    let tag = writing.command(&write(0, 0, LENGTH), &[]).expect("sent");
    let r2t = writing.r2t(tag).expect("an R2T");
    let pdu = data_out(&writing, &r2t, 0..LENGTH, 0);
    let bytes = writing.connection().encode(&InitiatorPdu::ScsiDataOut(pdu), &[0xaa; LENGTH]);
    let (half, rest) = bytes.split_at(48 + HALF);
    writing.connection().send_bytes(half).expect("sent");
    alone([new, old].concat().try_into().expect("two blocks"));
    alone([old, new].concat().try_into().expect("two blocks"));
    writing.connection().send_bytes(rest).expect("sent");
    writing.good(tag).expect("the second try");
    expect_on_disk(&mut writing, 0, &[0xaa; LENGTH]);
    target.wait_for_its_buffers();
}

/// SBC-3, error reporting: what has failed to keep data takes no more, and all of a write may be there before it ends. What ends it is
/// a Data-Out without data (11.7).
#[test]
fn a_volume_that_has_faulted_ends_no_write_with_good() {
    for sent in [HALF, LENGTH] {
        let target = InProcess::start(&[DISK]);
        let mut writing = asked(&target, 1);
        let tag = writing.command(&write(0, 0, LENGTH), &[]).expect("sent");
        let r2t = writing.r2t(tag).expect("an R2T");
        let pdu = ScsiDataOut { is_final: false, ..data_out(&writing, &r2t, 0..sent, 0) };
        writing.send(&InitiatorPdu::ScsiDataOut(pdu), &vec![0xaa; sent]).expect("sent");
        writing.silent().expect("taken");
        let mut other = target.session(2);
        assert_eq!(stored_bytes(&mut other, 0xaa), sent);
        target.faults(0).add(Rule::new(OperationKind::Flush, When::First(1), Effect::Fail(Errno::IO)));
        let flush = ScsiCommand { cdb: cdb::synchronize_cache(), ..plain() };
        let flush = other.command(&flush, &[]).expect("sent");
        assert_eq!(other.ending(flush).expect("an answer").status, CHECK_CONDITION);
        let pdu = data_out(&writing, &r2t, sent..LENGTH, 1);
        writing.send(&InitiatorPdu::ScsiDataOut(pdu), &vec![0xaa; LENGTH - sent]).expect("sent");
        let ending = writing.ending(tag).expect("an answer");
        assert_eq!((ending.status, ending.codes()), (CHECK_CONDITION, PERIPHERAL_DEVICE_WRITE_FAULT));
        target.wait_for_its_buffers();
    }
}
