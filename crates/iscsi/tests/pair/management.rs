//! Task management (RFC 7143, 4.2.3, 11.5, 11.6): what is aborted in which phase, and when the answer comes.

use lunette_iscsi::parameters::TargetLimits;
use lunette_iscsi::session::SessionSettings;
use lunette_wire::initiator::TaskManagementFunction;
use lunette_wire::target::TaskManagementOutcome;
use lunette_wire::{InitiatorPdu, InitiatorTaskTag};

use crate::double::World;
use crate::double::initiator::{End, Wish};
use crate::double::target::{NO_UNIT, UNIT};

const COMPLETE: u8 = TaskManagementOutcome::FunctionComplete as u8;

fn solicited() -> Wish {
    Wish { initial_r2t: true, immediate_data: false, max_burst_length: 1024, ..Wish::default() }
}

/// A function without a referenced task.
fn manage(world: &mut World, function: TaskManagementFunction) -> u32 {
    let cmd_sn = world.initiator().cmd_sn;
    world.initiator().manage(function, UNIT, InitiatorTaskTag::RESERVED, cmd_sn)
}

#[test]
fn a_task_in_the_store_is_aborted_when_the_store_lets_go_of_it() {
    let mut world = World::with(50, Wish::default());
    let read = world.initiator().read(0, 1);
    world.exchange();
    let abort = world.initiator().abort(read);
    world.exchange();
    assert!(!world.initiator().outcomes.contains_key(&abort), "the task still runs");
    world.settle();
    assert_eq!(world.initiators[0].outcomes[&abort], COMPLETE);
    assert_eq!(world.initiators[0].ends[&read], End::Aborted);
    world.finish();
}

#[test]
fn an_abort_during_a_write_waits_for_the_data_that_was_asked_for() {
    let mut world = World::with(51, solicited());
    let write = world.initiator().write(0, vec![0xee; 4096]);
    assert!(world.send(0));
    // The R2T is answered in two bursts at the latest; the abort goes first.
    let abort = world.initiator().abort(write);
    assert!(world.receive(0));
    assert!(world.send(0));
    assert!(!world.receive(0), "data is still owed");
    world.settle();
    assert_eq!(world.initiators[0].outcomes[&abort], COMPLETE);
    assert_eq!(world.initiators[0].ends[&write], End::Aborted);
    assert_eq!(world.initiator().r2ts, 1, "nothing more is asked for");
    assert!(world.target.disk().iter().all(|&byte| byte == 0));
    world.finish();
}

/// Linux' initiator sends no data after it asked for an abort.
#[test]
fn an_abort_does_not_wait_for_ever_for_data_that_does_not_come() {
    let mut world = World::with(52, solicited());
    world.initiator().manners.sends_for_aborted = false;
    let write = world.initiator().write(0, vec![0xee; 4096]);
    assert!(world.send(0));
    let abort = world.initiator().abort(write);
    world.exchange();
    assert!(!world.initiator().outcomes.contains_key(&abort));
    world.pass(4);
    assert_eq!(world.initiators[0].outcomes[&abort], COMPLETE);
    assert!(world.target.closed(0).is_none());
    world.finish();
}

#[test]
fn late_data_of_an_aborted_task_is_not_taken_for_its_successors() {
    let mut world = World::with(53, solicited());
    world.initiator().manners.answers_r2ts = false;
    let write = world.initiator().write(0, vec![0xee; 1024]);
    world.exchange();
    let stale = world.initiator().last_r2t();
    let abort = world.initiator().abort(write);
    world.exchange();
    world.pass(4);
    assert_eq!(world.initiators[0].outcomes[&abort], COMPLETE);
    world.initiator().manners.answers_r2ts = true;
    // The tag is used again at once, and data under the old transfer tag comes late.
    world.initiator().use_next_tag(write);
    let again = world.initiator().write(0, vec![0x11; 1024]);
    assert_eq!(again, write);
    assert!(world.send(0));
    world.initiator().send_stale_data(write, stale, &[0xee; 1024]);
    world.settle();
    assert!(world.target.disk().iter().all(|&byte| byte != 0xee));
    world.finish();
}

#[test]
fn a_task_that_was_answered_does_not_exist() {
    let mut world = World::with(54, Wish::default());
    let read = world.initiator().read(0, 1);
    world.settle();
    let abort = world.initiator().abort(read);
    world.settle();
    let outcome = world.initiators[0].outcomes[&abort];
    assert_eq!(outcome, TaskManagementOutcome::TaskDoesNotExist as u8);
    world.initiators[0].good(read);
    world.finish();
}

/// 4.2.5.3: a tag with another unit's number names no task for sure, so none is aborted.
#[test]
fn an_abort_with_the_lun_of_another_unit_is_refused() {
    let mut world = World::with(60, Wish::default());
    let cmd_sn = world.initiator().cmd_sn;
    let read = world.initiator().read(0, 1);
    world.exchange();
    let abort =
        world.initiator().manage(TaskManagementFunction::AbortTask, NO_UNIT, InitiatorTaskTag(read), cmd_sn);
    world.exchange();
    assert_eq!(world.initiators[0].outcomes[&abort], TaskManagementOutcome::FunctionRejected as u8);
    world.settle();
    world.initiators[0].good(read);
    world.finish();
}

#[test]
fn a_command_that_has_not_come_is_aborted_in_advance() {
    let mut world = World::with(55, Wish::default());
    let missing = world.initiator().next_cmd_sn();
    let abort =
        world.initiator().manage(TaskManagementFunction::AbortTask, UNIT, InitiatorTaskTag(190), missing);
    world.settle();
    assert_eq!(world.initiators[0].outcomes[&abort], COMPLETE);
    // When it comes all the same, it is ignored.
    let late = lunette_wire::initiator::ScsiCommand {
        is_final: true,
        initiator_task_tag: InitiatorTaskTag(190),
        cmd_sn: missing,
        ..Default::default()
    };
    world.initiator().send_raw(InitiatorPdu::ScsiCommand(late), b"");
    world.exchange();
    assert_eq!(world.target.operations(), 0);
    world.finish();
}

#[test]
fn a_command_that_waits_for_its_turn_is_aborted_and_its_number_used_up() {
    let mut world = World::with(56, Wish::default());
    let missing = world.initiator().next_cmd_sn();
    let waiting = world.initiator().test_unit_ready();
    let abort = world.initiator().abort(waiting);
    world.settle();
    assert_eq!(world.initiators[0].outcomes[&abort], COMPLETE);
    assert_eq!(world.initiators[0].ends[&waiting], End::Aborted);
    let first = lunette_wire::initiator::NopOut {
        initiator_task_tag: InitiatorTaskTag::RESERVED,
        target_transfer_tag: lunette_wire::TargetTransferTag::RESERVED,
        cmd_sn: missing,
        ..Default::default()
    };
    // Any request may fill the gap; a ping with a tag is one that is answered.
    let tag = world.initiator().expect_ping();
    let first = lunette_wire::initiator::NopOut { initiator_task_tag: InitiatorTaskTag(tag), ..first };
    world.initiator().send_raw(InitiatorPdu::NopOut(first), b"");
    world.finish();
}

#[test]
fn a_reset_ends_tasks_in_every_phase() {
    for function in [
        TaskManagementFunction::AbortTaskSet,
        TaskManagementFunction::ClearTaskSet,
        TaskManagementFunction::LogicalUnitReset,
        TaskManagementFunction::TargetWarmReset,
    ] {
        let mut world = World::with(57, solicited());
        let stored = world.initiator().read(0, 4);
        let collecting = world.initiator().write(8, vec![0xee; 4096]);
        let done = world.initiator().test_unit_ready();
        world.send(0);
        world.send(0);
        world.send(0);
        // The last one ends before the reset.
        world.target.work(1);
        let reset = manage(&mut world, function);
        world.exchange();
        assert!(!world.initiators[0].outcomes.contains_key(&reset), "a read is still in the store");
        world.settle();
        let initiator = world.initiator();
        assert_eq!(initiator.outcomes[&reset], COMPLETE);
        assert_eq!((&initiator.ends[&stored], &initiator.ends[&collecting]), (&End::Aborted, &End::Aborted));
        initiator.good(done);
        assert!(world.target.disk().iter().all(|&byte| byte == 0));
        world.finish();
    }
}

#[test]
fn a_function_on_a_unit_leaves_other_units_alone() {
    let mut world = World::with(58, Wish { immediate_data: false, ..Wish::default() });
    let read = world.initiator().read(0, 1);
    world.exchange();
    let cmd_sn = world.initiator().cmd_sn;
    let none = InitiatorTaskTag::RESERVED;
    let set = world.initiator().manage(TaskManagementFunction::AbortTaskSet, NO_UNIT, none, cmd_sn);
    let reset = world.initiator().manage(TaskManagementFunction::LogicalUnitReset, NO_UNIT, none, cmd_sn);
    // Before the read ends.
    world.exchange();
    assert_eq!(world.initiators[0].outcomes[&set], COMPLETE);
    assert_eq!(world.initiators[0].outcomes[&reset], TaskManagementOutcome::LunDoesNotExist as u8);
    world.settle();
    world.initiators[0].good(read);
    world.finish();
}

#[test]
fn functions_that_are_not_served_say_so() {
    use TaskManagementFunction as Function;
    use TaskManagementOutcome as Outcome;
    for (function, outcome) in [
        (Function::TaskReassign, Outcome::TaskAllegianceReassignmentNotSupported),
        (Function::Other(60), Outcome::FunctionNotSupported),
    ] {
        let mut world = World::with(59, Wish::default());
        let tag = manage(&mut world, function);
        world.settle();
        assert_eq!(world.initiators[0].outcomes[&tag], outcome as u8);
        world.finish();
    }
}

#[test]
fn an_abort_of_an_abort_is_refused() {
    let mut world = World::with(60, Wish::default());
    let read = world.initiator().read(0, 1);
    world.exchange();
    let abort = world.initiator().abort(read);
    let second = world.initiator().abort(abort);
    world.exchange();
    let rejected = TaskManagementOutcome::FunctionRejected as u8;
    assert_eq!(world.initiators[0].outcomes[&second], rejected);
    world.finish();
}

#[test]
fn a_write_aborted_amid_unsolicited_data() {
    let wish = Wish { immediate_data: true, first_burst_length: 8192, ..Wish::default() };
    let mut world = World::with(61, wish);
    world.initiator().links[0].connection.max_send_data_segment_length = 1024;
    let write = world.initiator().write(0, vec![0xee; 8192]);
    world.send(0);
    world.send(0);
    let abort = world.initiator().abort(write);
    world.settle();
    assert_eq!(world.initiators[0].outcomes[&abort], COMPLETE);
    assert_eq!(world.initiators[0].ends[&write], End::Aborted);
    world.finish();
}

#[test]
fn who_may_not_reset_the_target_is_told_so_and_nothing_is_aborted() {
    let settings = SessionSettings { may_reset_target: false, ..SessionSettings::default() };
    let mut world = World::new(58, TargetLimits::default(), settings);
    world.connect(Wish::default());
    let read = world.initiator().read(0, 1);
    world.exchange();
    let functions = [TaskManagementFunction::TargetWarmReset, TaskManagementFunction::TargetColdReset];
    let tags = functions.map(|function| manage(&mut world, function));
    world.settle();
    for tag in tags {
        assert_eq!(world.initiators[0].outcomes[&tag], TaskManagementOutcome::AuthorizationFailed as u8);
    }
    assert_ne!(world.initiators[0].ends[&read], End::Aborted);
    world.finish();
}
