//! The command window (RFC 7143, 4.2.2.1): order, duplicates, edges, and immediate commands beside it.

use lunette_iscsi::parameters::TargetLimits;
use lunette_iscsi::session::{IMMEDIATE_TASKS_MAX, SessionSettings};
use lunette_wire::initiator::ScsiCommand;
use lunette_wire::target::RejectReason;
use lunette_wire::{CmdSn, InitiatorPdu, InitiatorTaskTag};

use crate::double::World;
use crate::double::initiator::Wish;

const DEPTH: u16 = 4;

/// A session whose window has room for four commands.
fn narrow() -> World {
    let limits = TargetLimits { command_window: DEPTH.into(), ..TargetLimits::default() };
    let settings = SessionSettings { window_depth: DEPTH, ..SessionSettings::default() };
    let mut world = World::new(20, limits, settings);
    world.connect(Wish::default());
    world
}

fn test_unit_ready(tag: u32, cmd_sn: CmdSn) -> InitiatorPdu {
    InitiatorPdu::ScsiCommand(ScsiCommand {
        is_final: true,
        initiator_task_tag: InitiatorTaskTag(tag),
        cmd_sn,
        ..ScsiCommand::default()
    })
}

#[test]
fn the_login_opens_the_window_that_the_session_has() {
    let mut world = narrow();
    let initiator = world.initiator();
    assert_eq!(initiator.max_cmd_sn.since(initiator.cmd_sn), u32::from(DEPTH) - 1);
}

#[test]
fn a_full_window_opens_by_one_for_each_command_that_ends() {
    let mut world = narrow();
    for _ in 0..DEPTH {
        assert!(world.initiator().may_send());
        world.initiator().read(0, 1);
    }
    assert!(!world.initiator().may_send());
    world.exchange();
    assert_eq!(world.target.operations(), usize::from(DEPTH));
    world.work();
    world.exchange();
    assert!(world.initiator().may_send());
    world.initiator().read(0, 1);
    assert!(!world.initiator().may_send());
    world.finish();
}

#[test]
fn a_number_outside_the_window_is_ignored_without_a_word() {
    let mut world = narrow();
    let next = world.initiator().cmd_sn;
    for outside in [next.plus(u32::from(DEPTH)), next.plus(1000), CmdSn(next.0.wrapping_sub(1))] {
        world.initiator().send_raw(test_unit_ready(900, outside), b"");
    }
    world.exchange();
    assert_eq!(world.target.operations(), 0);
    assert_eq!(world.initiator().rejects, [0u8; 0]);
    // They left nothing behind: the window still works from its start.
    for _ in 0..DEPTH {
        world.initiator().test_unit_ready();
    }
    world.finish();
}

#[test]
fn commands_are_started_in_the_order_of_their_numbers() {
    let mut world = narrow();
    let first = world.initiator().next_cmd_sn();
    let second = world.initiator().next_cmd_sn();
    world.initiator().send_raw(test_unit_ready(901, second), b"");
    world.exchange();
    assert_eq!(world.target.operations(), 0, "an earlier command is missing");
    world.initiator().send_raw(test_unit_ready(902, first), b"");
    assert!(world.send(0));
    assert_eq!(world.target.operations(), 2);
}

#[test]
fn a_number_is_taken_once() {
    let mut world = narrow();
    let first = world.initiator().next_cmd_sn();
    let second = world.initiator().next_cmd_sn();
    // A second copy of a command that waits, and of one that runs, under other tags.
    for (tag, cmd_sn) in [(903, second), (904, second), (905, first), (906, first), (907, second)] {
        world.initiator().send_raw(test_unit_ready(tag, cmd_sn), b"");
    }
    while world.send(0) {}
    assert_eq!(world.target.operations(), 2);
    assert_eq!(world.target.session(0).unwrap().open_tasks(), 2);
}

#[test]
fn immediate_commands_pass_a_closed_window() {
    let mut world = narrow();
    for _ in 0..DEPTH {
        world.initiator().read(0, 1);
    }
    world.exchange();
    assert!(!world.initiator().may_send());
    world.initiator().ping(true, vec![9; 30]);
    world.exchange();
    assert_eq!(world.target.operations(), usize::from(DEPTH), "the ping was answered before the reads");
    world.finish();
}

#[test]
fn pings_and_text_in_the_command_order_use_a_number_and_give_their_place_back() {
    let mut world = narrow();
    for _ in 0..3 * DEPTH {
        world.initiator().ping(false, vec![1, 2, 3]);
        world.settle();
    }
    world.finish();
}

#[test]
fn a_ping_in_the_command_order_waits_for_its_turn() {
    let mut world = narrow();
    let skipped = world.initiator().next_cmd_sn();
    world.initiator().ping(false, vec![7; 10]);
    world.exchange();
    assert!(!world.initiators[0].is_idle(), "an earlier command is missing");
    world.initiator().send_raw(test_unit_ready(908, skipped), b"");
    while world.send(0) {}
    assert!(world.receive(0), "the ping's turn has come");
    assert!(world.initiators[0].is_idle());
}

#[test]
fn too_many_immediate_commands_are_rejected() {
    let mut world = narrow();
    let cmd_sn = world.initiator().cmd_sn;
    let count = IMMEDIATE_TASKS_MAX as u32 + 3;
    for tag in 0..count {
        let InitiatorPdu::ScsiCommand(pdu) = test_unit_ready(1000 + tag, cmd_sn) else { unreachable!() };
        world.initiator().send_raw(InitiatorPdu::ScsiCommand(ScsiCommand { immediate: true, ..pdu }), b"");
    }
    world.exchange();
    assert_eq!(world.target.operations(), IMMEDIATE_TASKS_MAX);
    assert_eq!(world.initiator().rejects, [RejectReason::ImmediateCommandReject as u8; 3]);
}

#[test]
fn a_command_under_a_tag_in_use_is_rejected_and_its_number_is_still_to_come() {
    let mut world = narrow();
    let running = world.initiator().read(0, 1);
    world.exchange();
    let cmd_sn = world.initiator().cmd_sn;
    world.initiator().send_raw(test_unit_ready(running, cmd_sn), b"");
    world.exchange();
    assert_eq!(world.initiator().rejects.len(), 1);
    // 7.3: another command plugs the gap.
    let after = world.initiator().test_unit_ready();
    world.settle();
    world.initiators[0].good(after);
    world.initiators[0].good(running);
    world.finish();
}

#[test]
fn the_reserved_tag_names_no_command() {
    let mut world = narrow();
    let cmd_sn = world.initiator().cmd_sn;
    world.initiator().send_raw(test_unit_ready(u32::MAX, cmd_sn), b"");
    world.exchange();
    assert_eq!(world.initiator().rejects, [RejectReason::InvalidPduField as u8]);
    world.finish();
}
