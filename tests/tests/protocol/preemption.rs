//! PREEMPT AND ABORT (SPC-4) of nexuses that are preempting themselves, and of such that do not take what they have read.

use std::thread;

use lunette_block::OperationKind;
use lunette_target::config::LunFlag;
use lunette_tests::in_process::InProcess;
use lunette_tests::raw::{BLOCK_BYTES, Raw, lun_field, plain};
use lunette_wire::initiator::{LogoutReason, ScsiCommand, TaskManagementFunction as Function};
use lunette_wire::{InitiatorTaskTag, TargetPdu};

use crate::{A_WHILE, BUS_DEVICE_RESET, COMPLETE, DISK, expect_attention, ready_session};

/// Service actions of PERSISTENT RESERVE OUT.
const REGISTER_AND_IGNORE: u8 = 6;
const RESERVE: u8 = 1;
const PREEMPT_AND_ABORT: u8 = 5;

const EXCLUSIVE_ACCESS: u8 = 3;

fn reserve_out(session: &mut Raw, lun: u8, action: u8, [key, other]: [u64; 2]) -> InitiatorTaskTag {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[2], cdb[8]) = (0x5f, action, EXCLUSIVE_ACCESS, 24);
    let list = [&key.to_be_bytes()[..], &other.to_be_bytes(), &[0; 8]].concat();
    let command = ScsiCommand {
        write: true,
        lun: lun_field(lun),
        expected_data_transfer_length: list.len() as u32,
        cdb,
        ..plain()
    };
    session.command(&command, &list).expect("sent")
}

/// Each of the two waits for the commands of the other, of which one waits for it.
#[test]
fn two_that_abort_each_other_do_not_wait_for_ever() {
    // What one reactor reads in one turn it begins before it aborts anything.
    let target = InProcess::start_with(&[DISK, "1=mem:8M,engine=sync"], |config| {
        config.reactors.count = Some(1);
    });
    let [mut first, mut second] = [1, 2].map(|port| target.session(port));
    let mut bystander = ready_session(&target, 3);
    let tag = reserve_out(&mut first, 0, REGISTER_AND_IGNORE, [0, 0xa1]);
    first.good(tag).expect("registered");
    let tag = reserve_out(&mut second, 0, REGISTER_AND_IGNORE, [0, 0xb1]);
    second.good(tag).expect("registered");
    // This engine's reads keep the reactor.
    target.hold(1, OperationKind::Read);
    let read = bystander.read(1, 0, 1).expect("sent");
    target.wait_for_calls(1, OperationKind::Read, 1);
    reserve_out(&mut second, 0, PREEMPT_AND_ABORT, [0xb1, 0xa1]);
    thread::sleep(A_WHILE);
    // The first of these is told that the nexus was preempted.
    first.command(&plain(), &[]).expect("sent");
    reserve_out(&mut first, 0, REGISTER_AND_IGNORE, [0, 0xa2]);
    reserve_out(&mut first, 0, PREEMPT_AND_ABORT, [0xa2, 0xb1]);
    thread::sleep(A_WHILE);
    target.faults(1).clear();
    bystander.data_in(read).expect("a read");
    let reset = bystander.manage(Function::LogicalUnitReset, 0).expect("sent");
    assert_eq!(bystander.managed(reset).expect("the unit is reset"), COMPLETE);
    target.drain();
    drop([first, second, bystander]);
    target.end().expect("an end").expect("a clean one");
}

/// Long enough that its data goes to the socket from where it lies, and so many that sockets do not hold it.
pub(crate) const LONG_BLOCKS: u32 = 2048;
pub(crate) const READS: usize = 24;

/// The same of reads that are answered before the next command is looked at: as many as that, and what is left fits into the command
/// window.
const SHORT_BLOCKS: u32 = 63;
const SHORT_READS: usize = 200;

/// As [`unsent_reads_of`] long reads.
pub(crate) fn unsent_reads(before: impl FnOnce(&mut Raw)) -> (InProcess, Vec<InitiatorTaskTag>, [Raw; 2]) {
    unsent_reads_of((READS, LONG_BLOCKS), before)
}

/// A session with so many reads of unit 1 that have ended and whose data, all zeroes, it does not take, and one beside it; `before` them
/// the first does something.
fn unsent_reads_of(
    (reads, blocks): (usize, u32),
    before: impl FnOnce(&mut Raw),
) -> (InProcess, Vec<InitiatorTaskTag>, [Raw; 2]) {
    let unit = format!("1=mem:{}", LONG_BLOCKS as usize * BLOCK_BYTES).parse();
    let unit = unit.map(|flag| LunFlag::number_all(vec![flag]).expect("a free number"));
    // Without a fault layer, which would look at what is read.
    let target = InProcess::start_with(&[DISK], |config| {
        config.targets[0].units.extend(unit.expect("a good flag"));
    });
    let keys = [("MaxRecvDataSegmentLength", "262144")];
    let mut reading = Raw::ready(target.portal(), &target.options_with(1, &keys), 1).expect("a login");
    reading.make_ready(0).expect("a ready unit");
    let other = Raw::ready(target.portal(), &target.options(2), 1).expect("a login");
    before(&mut reading);
    // On loopback it would grow until it holds all.
    reading.connection().set_receive_buffer(65536).expect("a socket option");
    let tags = (0..reads).map(|_| reading.read(1, 0, blocks).expect("sent")).collect();
    // When the store was asked for this one, those before it have ended.
    target.hold(0, OperationKind::Read);
    reading.read(0, 0, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 1);
    (target, tags, [reading, other])
}

/// The session ends, and its connection has its reads to send yet.
pub(crate) fn leave(target: &InProcess, reading: &mut Raw) {
    // What a store has would keep it.
    target.faults(0).clear();
    thread::sleep(A_WHILE);
    reading.log_out(LogoutReason::CloseSession, 0).expect("sent");
    thread::sleep(A_WHILE);
}

/// The connection ends, and no data comes before that but zeroes, and not all of it.
pub(crate) fn expect_end_without_news(reading: &mut Raw, (reads, blocks): (usize, u32)) {
    let mut bytes_left = reads * blocks as usize * BLOCK_BYTES;
    while let Ok((pdu, data)) = reading.receive_any() {
        if matches!(pdu, TargetPdu::ScsiDataIn(_)) {
            assert!(data.iter().all(|byte| *byte == 0), "it has read what was written after it was fenced");
            bytes_left = bytes_left.checked_sub(data.len()).expect("no more than was asked for");
        }
    }
    assert!(bytes_left > 0, "all of it was answered");
}

/// The other one writes, and nothing of it is read by who has lost the right to.
fn expect_fenced(target: &InProcess, reads: (usize, u32), reading: &mut Raw, other: &mut Raw) {
    let tag = other.write(1, 0, &[0xbb; 65536]).expect("sent");
    other.good(tag).expect("a write");
    expect_end_without_news(reading, reads);
    target.faults(0).clear();
    target.drain();
}

/// SPC-4: a nexus that is preempted so reads nothing that is written afterwards, and keeps nobody waiting; nor by a connection that still
/// sends what its session has left.
#[test]
fn who_is_preempted_reads_nothing_that_is_written_afterwards() {
    let long = (READS, LONG_BLOCKS);
    for (reads, has_left) in [(long, false), (long, true), ((SHORT_READS, SHORT_BLOCKS), false)] {
        let (target, _, [mut reading, mut other]) = unsent_reads_of(reads, |reading| {
            for (action, keys) in [(REGISTER_AND_IGNORE, [0, 0xa1]), (RESERVE, [0xa1, 0])] {
                let tag = reserve_out(reading, 1, action, keys);
                reading.good(tag).expect("registered, and reserved");
            }
        });
        let tag = reserve_out(&mut other, 1, REGISTER_AND_IGNORE, [0, 0xb1]);
        other.good(tag).expect("registered");
        if has_left {
            leave(&target, &mut reading);
        }
        let tag = reserve_out(&mut other, 1, PREEMPT_AND_ABORT, [0xb1, 0xa1]);
        other.good(tag).expect("preempted");
        expect_fenced(&target, reads, &mut reading, &mut other);
    }
}

/// SPC-2: a reset ends a RESERVE, and with it the right of the nexus that held it.
#[test]
fn who_loses_a_reserve_to_a_reset_reads_nothing_that_is_written_afterwards() {
    // RESERVE(10)
    let reserve = ScsiCommand {
        lun: lun_field(1),
        cdb: [0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ..plain()
    };
    let (target, _, [mut reading, mut other]) = unsent_reads(|reading| {
        let tag = reading.command(&reserve, &[]).expect("sent");
        reading.good(tag).expect("reserved");
    });
    let reset = other.manage(Function::LogicalUnitReset, 1).expect("sent");
    assert_eq!(other.managed(reset).expect("a reset"), COMPLETE);
    expect_attention(&mut other, 1, BUS_DEVICE_RESET);
    let tag = other.command(&reserve, &[]).expect("sent");
    other.good(tag).expect("reserved");
    expect_fenced(&target, (READS, LONG_BLOCKS), &mut reading, &mut other);
}

/// Who loses no right by a reset has its answers, slow as it may be.
#[test]
fn a_reset_leaves_the_reads_of_others_that_have_ended() {
    let (target, tags, [mut reading, mut other]) = unsent_reads(|_| {});
    let reset = other.manage(Function::LogicalUnitReset, 1).expect("sent");
    assert_eq!(other.managed(reset).expect("it waits for nobody who takes nothing"), COMPLETE);
    for tag in tags {
        reading.data_in(tag).expect("a read");
    }
    target.faults(0).clear();
    target.drain();
}
