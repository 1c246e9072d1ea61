//! Task attributes over sessions and reactors (SAM-5, task set management; RFC 7143, 11.3.1.2): what begins before what.

use std::path::Path;

use lunette_block::fault::{Effect, Rule, When};
use lunette_block::{EngineKind, OperationKind, StoreSpec, Volume, VolumeSpec};
use lunette_target::config::LunFlag;
use lunette_tests::in_process::InProcess;
use lunette_tests::raw::{BLOCK_BYTES, Raw, lun_field, plain, read, write};
use lunette_wire::InitiatorTaskTag;
use lunette_wire::initiator::{ScsiCommand, TaskAttribute, TaskManagementFunction as Function};

use crate::{
    A_WHILE, BUS_DEVICE_RESET, COMPLETE, DISK, SECOND_DISK, expect_attention, expect_ready,
    ready_session as session,
};

/// Long enough that its data goes to the socket from where it lies.
const LONG_BLOCKS: u32 = 2048;

/// Of [`LONG_BLOCKS`] each: more than sockets hold, and few enough that the target goes on taking commands.
const READS: usize = 24;

/// The same of reads that are answered before the next command is looked at: as many as that, and what is left fits into the command
/// window.
const SHORT_BLOCKS: u32 = 63;
const SHORT_READS: usize = 200;

fn with(attribute: TaskAttribute, command: ScsiCommand) -> ScsiCommand {
    ScsiCommand { attribute, ..command }
}

/// Sends a write of one block, all of whose bytes are `byte`.
fn write_block(session: &mut Raw, attribute: TaskAttribute, lba: u64, byte: u8) -> InitiatorTaskTag {
    let command = with(attribute, write(0, lba, BLOCK_BYTES));
    session.command(&command, &[byte; BLOCK_BYTES]).expect("sent")
}

fn expect_block(session: &mut Raw, tag: InitiatorTaskTag, byte: u8) {
    assert!(session.data_in(tag).expect("a read").0 == [byte; BLOCK_BYTES], "not {byte:#x}");
}

/// Two sessions on different reactors, the first of which has a write in the store that is held there.
fn held_write() -> (InProcess, Raw, Raw, InitiatorTaskTag) {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let (mut first, second) = (session(&target, 1), session(&target, 2));
    target.hold(0, OperationKind::Write);
    let held = write_block(&mut first, TaskAttribute::Simple, 0, 0xaa);
    target.wait_for_calls(0, OperationKind::Write, 1);
    (target, first, second, held)
}

/// SAM-5: 8.6 ORDERED.
#[test]
fn an_ordered_command_waits_for_older_ones_of_all_sessions_and_holds_newer_ones() {
    let (target, mut first, mut second, held) = held_write();
    let ordered = second.command(&with(TaskAttribute::Ordered, read(0, 0, 1)), &[]).expect("sent");
    second.waits(A_WHILE).expect("an older write of another session is in the store");
    // What comes after it waits, too: in the session of the write, and in its own.
    let newer = write_block(&mut first, TaskAttribute::Simple, 0, 0xbb);
    let untagged = second.command(&with(TaskAttribute::Untagged, read(0, 0, 1)), &[]).expect("sent");
    first.waits(A_WHILE).expect("it is newer than the ordered one");
    assert_eq!(target.faults(0).calls(OperationKind::Write), 1);
    // Another unit is another task set.
    expect_ready(&mut first, 1);
    target.faults(0).clear();
    first.good(held).expect("a write");
    expect_block(&mut second, ordered, 0xaa);
    first.good(newer).expect("a write");
    second.data_in(untagged).expect("a read");
}

#[test]
fn commands_of_one_session_are_ordered_among_themselves() {
    let target = InProcess::start(&[DISK]);
    let mut session = target.session(1);
    let hold = |range| {
        target.faults(0).add(Rule::new(OperationKind::Write, When::Every, Effect::Hold).within(range))
    };
    let first_rule = hold(0..512);
    let older = write_block(&mut session, TaskAttribute::Simple, 0, 1);
    let ordered = write_block(&mut session, TaskAttribute::Ordered, 1, 2);
    let newer = write_block(&mut session, TaskAttribute::Simple, 2, 3);
    target.wait_for_calls(0, OperationKind::Write, 1);
    session.waits(A_WHILE).expect("the first is in the store");
    let second_rule = hold(512..1024);
    target.faults(0).remove(first_rule);
    session.good(older).expect("the first");
    target.wait_for_calls(0, OperationKind::Write, 2);
    session.waits(A_WHILE).expect("the second is in the store");
    assert_eq!(target.faults(0).calls(OperationKind::Write), 2);
    target.faults(0).remove(second_rule);
    session.good(ordered).expect("the second");
    session.good(newer).expect("the third");
}

/// SAM-5, 8.7; RFC 7144, 3: the priority is in the SCSI Command PDU where both sides agreed on level 2, and nothing elsewhere.
#[test]
fn the_more_urgent_of_those_that_wait_go_on_first() {
    for (level, order) in [("2", [3, 1, 0, 2]), ("1", [0, 1, 2, 3])] {
        let target = InProcess::start(&[DISK]);
        let options = target.options_with(1, &[("iSCSIProtocolLevel", level)]);
        let mut session = Raw::ready(target.portal(), &options, 0).expect("a login");
        target.hold(0, OperationKind::Write);
        let ordered = write_block(&mut session, TaskAttribute::Ordered, 0, 1);
        target.wait_for_calls(0, OperationKind::Write, 1);
        let waiting: Vec<_> = [9, 8, 15, 1]
            .into_iter()
            .map(|priority| {
                // TEST UNIT READY, which is answered when it begins.
                let command = ScsiCommand { priority, ..with(TaskAttribute::Simple, plain()) };
                session.command(&command, &[]).expect("sent")
            })
            .collect();
        session.waits(A_WHILE).expect("they wait for the write");
        target.faults(0).clear();
        session.good(ordered).expect("the write");
        for index in order {
            session.good(waiting[index]).unwrap_or_else(|error| panic!("level {level}: {error:#}"));
        }
    }
}

/// SAM-5: 8.6 HEAD OF QUEUE.
#[test]
fn a_head_of_queue_command_passes_what_has_not_begun() {
    let (target, mut first, mut second, held) = held_write();
    let ordered = second.command(&with(TaskAttribute::Ordered, read(0, 0, 1)), &[]).expect("sent");
    second.waits(A_WHILE).expect("an older write is in the store");
    let head = second.command(&with(TaskAttribute::HeadOfQueue, read(0, 8, 1)), &[]).expect("sent");
    expect_block(&mut second, head, 0);
    // INQUIRY touches nothing that could be out of order.
    let inquiry = ScsiCommand {
        read: true,
        expected_data_transfer_length: 36,
        cdb: [0x12, 0, 0, 0, 36, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ..plain()
    };
    let tag = second.command(&inquiry, &[]).expect("sent");
    assert_eq!(second.data_in(tag).expect("an answer").0.len(), 36);
    target.faults(0).clear();
    first.good(held).expect("a write");
    expect_block(&mut second, ordered, 0xaa);
}

/// SAM-5: 7.2 ABORT TASK.
#[test]
fn commands_that_wait_are_aborted_at_once() {
    let (target, mut first, mut second, held) = held_write();
    let cmd_sn = second.cmd_sn;
    let ordered = second.command(&with(TaskAttribute::Ordered, read(0, 0, 1)), &[]).expect("sent");
    let behind = second.read(0, 1, 1).expect("sent");
    second.waits(A_WHILE).expect("an older write is in the store");
    let abort = second.manage_task(Function::AbortTask, 0, ordered, cmd_sn).expect("sent");
    assert_eq!(second.managed(abort).expect("nothing of it is in a store"), COMPLETE);
    // What it has held goes on, without waiting for the write.
    expect_block(&mut second, behind, 0);
    target.faults(0).clear();
    first.good(held).expect("a write");
}

#[test]
fn a_reset_ends_commands_that_wait() {
    let (target, mut first, mut second, _) = held_write();
    second.command(&with(TaskAttribute::Ordered, read(0, 0, 1)), &[]).expect("sent");
    write_block(&mut second, TaskAttribute::Simple, 0, 0xbb);
    second.waits(A_WHILE).expect("an older write is in the store");
    let reset = first.manage(Function::LogicalUnitReset, 0).expect("sent");
    first.waits(A_WHILE).expect("its own write is in the store");
    target.faults(0).clear();
    assert_eq!(first.managed(reset).expect("no write is answered"), COMPLETE);
    expect_attention(&mut first, 0, BUS_DEVICE_RESET);
    expect_attention(&mut second, 0, BUS_DEVICE_RESET);
    assert_eq!(target.faults(0).calls(OperationKind::Write), 1);
    let tag = write_block(&mut second, TaskAttribute::Ordered, 0, 0xcc);
    second.good(tag).expect("nothing is left to wait for");
}

/// Its initiator lives, answers pings, and never sends the data.
#[test]
fn a_reset_by_another_initiator_ends_a_command_whose_data_does_not_come() {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let [mut first, mut second, mut third] = [1, 2, 3].map(|port| session(&target, port));
    let owing = first.command(&write(0, 0, BLOCK_BYTES), &[]).expect("sent");
    first.r2t(owing).expect("an R2T");
    second.command(&with(TaskAttribute::Ordered, read(0, 0, 1)), &[]).expect("sent");
    second.waits(A_WHILE).expect("an older command collects its data");
    third.read(0, 0, 1).expect("sent");
    third.waits(A_WHILE).expect("it is behind the ordered one");
    let reset = third.manage(Function::LogicalUnitReset, 0).expect("sent");
    assert_eq!(third.managed(reset).expect("nothing of it is in a store"), COMPLETE);
    for session in [&mut first, &mut second, &mut third] {
        expect_attention(session, 0, BUS_DEVICE_RESET);
    }
    let ordered = second.command(&with(TaskAttribute::Ordered, read(0, 0, 1)), &[]).expect("sent");
    expect_block(&mut second, ordered, 0);
}

#[test]
fn who_is_gone_holds_nobody() {
    let (target, mut first, mut second, held) = held_write();
    second
        .command(&with(TaskAttribute::Ordered, write(0, 0, BLOCK_BYTES)), &[0xbb; BLOCK_BYTES])
        .expect("sent");
    second.waits(A_WHILE).expect("an older write is in the store");
    let behind = first.read(0, 0, 1).expect("sent");
    first.waits(A_WHILE).expect("it is behind the ordered one");
    drop(second);
    // The write is still held: the read of the first session goes on because the ordered command is gone.
    expect_block(&mut first, behind, 0);
    target.faults(0).clear();
    first.good(held).expect("a write");
    assert_eq!(target.faults(0).calls(OperationKind::Write), 1);
}

/// Whether a target would send this image's data from where it lies.
fn is_in_page_cache(image: &Path) -> bool {
    let spec = VolumeSpec {
        engine: EngineKind::Threads,
        ..VolumeSpec::new("image", StoreSpec::File { path: image.to_owned(), create_bytes: None })
    };
    let volume = Volume::open(&spec).expect("a volume");
    let length = volume.size_bytes() as u32;
    let is_cached = volume.cached(0, length).is_some();
    volume.close().expect("nothing is unwritten");
    is_cached
}

#[test]
fn an_ordered_write_waits_for_reads_that_are_still_being_sent() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("image");
    // Written: not every file system puts a hole that was read into the page cache.
    std::fs::write(&path, vec![0u8; LONG_BLOCKS as usize * BLOCK_BYTES]).expect("an image");
    if !is_in_page_cache(&path) {
        return lunette_skip::record_lacking(
            "this kernel cannot tell what its page cache has (Linux 6.5 can)",
        );
    }
    ordered_write_behind_unsent_reads(&format!("1=file:{},write=back", path.display()), (READS, LONG_BLOCKS));
}

#[test]
fn an_ordered_write_waits_for_reads_of_memory_that_are_still_being_sent() {
    let unit = format!("1=mem:{}", LONG_BLOCKS as usize * BLOCK_BYTES);
    for reads in [(READS, LONG_BLOCKS), (SHORT_READS, SHORT_BLOCKS)] {
        ordered_write_behind_unsent_reads(&unit, reads);
    }
}

fn ordered_write_behind_unsent_reads(unit: &str, (reads, blocks): (usize, u32)) {
    let unit = unit.parse().map(|flag| LunFlag::number_all(vec![flag]).expect("a free number"));
    // Without a fault layer, which would look at what is read.
    let target = InProcess::start_with(&[DISK], |config| {
        config.targets[0].units.extend(unit.expect("a good flag"));
    });
    let keys = [("MaxRecvDataSegmentLength", "262144")];
    let mut reading = Raw::ready(target.portal(), &target.options_with(1, &keys), 1).expect("a login");
    reading.make_ready(0).expect("a ready unit");
    let mut writing = Raw::ready(target.portal(), &target.options(2), 1).expect("a login");
    // On loopback it would grow until it holds all.
    reading.connection().set_receive_buffer(65536).expect("a socket option");
    let tags: Vec<_> = (0..reads).map(|_| reading.read(1, 0, blocks).expect("sent")).collect();
    // When the store was asked for this one, those before it are in the task set.
    target.hold(0, OperationKind::Read);
    let behind = reading.read(0, 0, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 1);
    let command = with(TaskAttribute::Ordered, write(1, 0, BLOCK_BYTES));
    let ordered = writing.command(&command, &[0xbb; BLOCK_BYTES]).expect("sent");
    writing.waits(A_WHILE).expect("reads are still being sent");
    target.faults(0).clear();
    for tag in tags.into_iter().chain([behind]) {
        reading.data_in(tag).expect("a read");
    }
    writing.good(ordered).expect("a write");
    let tag = reading.read(1, 0, 1).expect("sent");
    expect_block(&mut reading, tag, 0xbb);
}

#[test]
fn a_stop_waits_for_writes_and_is_alone() {
    let (target, mut first, mut second, held) = held_write();
    let stop = ScsiCommand {
        lun: lun_field(0),
        cdb: [0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ..plain()
    };
    let stop = second.command(&stop, &[]).expect("sent");
    second.waits(A_WHILE).expect("a write is in the store");
    let newer = write_block(&mut first, TaskAttribute::Simple, 0, 0xbb);
    first.waits(A_WHILE).expect("it comes after the stop");
    target.faults(0).clear();
    first.good(held).expect("a write");
    second.good(stop).expect("a stopped unit");
    let ending = first.ending(newer).expect("an answer");
    assert_eq!(ending.codes(), (2, 0x04, 0x02), "the unit is stopped");
}
