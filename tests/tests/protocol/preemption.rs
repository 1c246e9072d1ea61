//! PREEMPT AND ABORT (SPC-4) of nexuses that are preempting themselves.

use std::thread;

use lunette_block::OperationKind;
use lunette_tests::in_process::InProcess;
use lunette_tests::raw::{Raw, lun_field, plain};
use lunette_wire::InitiatorTaskTag;
use lunette_wire::initiator::{ScsiCommand, TaskManagementFunction as Function};

use crate::{A_WHILE, COMPLETE, DISK, ready_session};

/// Service actions of PERSISTENT RESERVE OUT.
const REGISTER_AND_IGNORE: u8 = 6;
const PREEMPT_AND_ABORT: u8 = 5;

fn reserve_out(session: &mut Raw, action: u8, [key, other]: [u64; 2]) -> InitiatorTaskTag {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[2], cdb[8]) = (0x5f, action, 1, 24);
    let list = [&key.to_be_bytes()[..], &other.to_be_bytes(), &[0; 8]].concat();
    let command = ScsiCommand {
        write: true,
        lun: lun_field(0),
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
    let tag = reserve_out(&mut first, REGISTER_AND_IGNORE, [0, 0xa1]);
    first.good(tag).expect("registered");
    let tag = reserve_out(&mut second, REGISTER_AND_IGNORE, [0, 0xb1]);
    second.good(tag).expect("registered");
    // This engine's reads keep the reactor.
    target.hold(1, OperationKind::Read);
    let read = bystander.read(1, 0, 1).expect("sent");
    target.wait_for_calls(1, OperationKind::Read, 1);
    reserve_out(&mut second, PREEMPT_AND_ABORT, [0xb1, 0xa1]);
    thread::sleep(A_WHILE);
    // The first of these is told that the nexus was preempted.
    first.command(&plain(), &[]).expect("sent");
    reserve_out(&mut first, REGISTER_AND_IGNORE, [0, 0xa2]);
    reserve_out(&mut first, PREEMPT_AND_ABORT, [0xa2, 0xb1]);
    thread::sleep(A_WHILE);
    target.faults(1).clear();
    bystander.data_in(read).expect("a read");
    let reset = bystander.manage(Function::LogicalUnitReset, 0).expect("sent");
    assert_eq!(bystander.managed(reset).expect("the unit is reset"), COMPLETE);
    target.drain();
    drop([first, second, bystander]);
    target.end().expect("an end").expect("a clean one");
}
