//! An initiator that breaks the rules of data transfer, and digests that are wrong (RFC 7143, 4.2.5.2, 7.8, 11.4.7.2,
//! 11.7, 13.10, 13.11): the task or the connection at fault suffers, nothing else does.

use lunette_wire::initiator::{NopOut, ScsiCommand, ScsiDataOut, SnackRequest};
use lunette_wire::target::RejectReason;
use lunette_wire::{DataSn, InitiatorPdu, InitiatorTaskTag, TargetTransferTag};

use crate::double::initiator::{Initiator, Wish, cdb};
use crate::double::target::{NO_UNIT, UNIT, WRITE_10};
use crate::double::{BLOCK, World};

const ABORTED_COMMAND: u8 = 0x0b;
const UNEXPECTED_UNSOLICITED_DATA: (u8, u8, u8) = (ABORTED_COMMAND, 0x0c, 0x0c);
const INCORRECT_AMOUNT_OF_DATA: (u8, u8, u8) = (ABORTED_COMMAND, 0x0c, 0x0d);
const PROTOCOL_SERVICE_CRC_ERROR: (u8, u8, u8) = (ABORTED_COMMAND, 0x47, 0x05);

/// A write whose data the test sends by itself.
fn bare_write(world: &mut World, length: u32, is_final: bool, immediate: &[u8]) -> u32 {
    let initiator = world.initiator();
    let tag = initiator.expect_write(length);
    let command = ScsiCommand {
        is_final,
        write: true,
        lun: UNIT,
        initiator_task_tag: InitiatorTaskTag(tag),
        expected_data_transfer_length: length,
        cmd_sn: initiator.next_cmd_sn(),
        cdb: cdb(WRITE_10, 0, length / BLOCK),
        ..ScsiCommand::default()
    };
    initiator.send_raw(InitiatorPdu::ScsiCommand(command), immediate);
    tag
}

/// An unsolicited Data-Out; the tests change what they want to be wrong in it.
fn data_out(tag: u32) -> ScsiDataOut {
    ScsiDataOut {
        is_final: true,
        lun: UNIT,
        initiator_task_tag: InitiatorTaskTag(tag),
        target_transfer_tag: TargetTransferTag::RESERVED,
        ..ScsiDataOut::default()
    }
}

fn send_data(initiator: &mut Initiator, pdu: ScsiDataOut, length: u32) {
    initiator.send_raw(InitiatorPdu::ScsiDataOut(pdu), &vec![0xee; length as usize]);
}

/// The session still works, and the disk has nothing of the failed write.
fn assert_unharmed(world: &mut World) {
    assert!(world.target.disk()[..4096].iter().all(|&byte| byte != 0xee), "failed data reached the disk");
    world.initiator().manners.answers_r2ts = true;
    let data = world.rng.bytes(8 * BLOCK);
    let write = world.initiator().write(64, data.clone());
    let read = world.initiator().read(64, 8);
    world.settle();
    world.initiators[0].good(write);
    assert_eq!(world.initiators[0].good(read).1.len(), data.len());
    world.finish();
}

#[test]
fn immediate_data_that_was_not_agreed_on() {
    for initial_r2t in [false, true] {
        let mut world = World::with(30, Wish { immediate_data: false, initial_r2t, ..Wish::default() });
        let tag = bare_write(&mut world, 512, true, &[0xee; 512]);
        world.settle();
        assert_eq!(world.initiator().sense(tag), UNEXPECTED_UNSOLICITED_DATA);
        assert_unharmed(&mut world);
    }
}

#[test]
fn unsolicited_data_that_was_not_agreed_on() {
    let mut world = World::with(31, Wish { initial_r2t: true, ..Wish::default() });
    let tag = bare_write(&mut world, 1024, false, &[]);
    send_data(world.initiator(), data_out(tag), 1024);
    world.settle();
    assert_eq!(world.initiator().sense(tag), UNEXPECTED_UNSOLICITED_DATA);
    assert_unharmed(&mut world);
}

#[test]
fn more_immediate_data_than_the_command_or_the_first_burst_has() {
    let mut world = World::with(32, Wish { first_burst_length: 512, ..Wish::default() });
    for (length, immediate) in [(512, 516), (1024, 1024)] {
        let cmd_sn = world.initiator().cmd_sn;
        let tag = bare_write(&mut world, length, true, &vec![0xee; immediate]);
        world.settle();
        assert_eq!(world.initiator().rejects.pop(), Some(RejectReason::ProtocolError as u8));
        // Its number is still to come (7.3).
        world.initiator().cmd_sn = cmd_sn;
        world.initiator().conclude(tag);
    }
    assert_unharmed(&mut world);
}

#[test]
fn unsolicited_data_beyond_the_first_burst() {
    let wish = Wish { immediate_data: false, first_burst_length: 1024, ..Wish::default() };
    let mut world = World::with(33, wish);
    let tag = bare_write(&mut world, 4096, false, &[]);
    send_data(world.initiator(), data_out(tag), 1536);
    world.settle();
    assert_eq!(world.initiator().rejects, [RejectReason::InvalidPduField as u8]);
    assert_eq!(world.initiator().sense(tag), INCORRECT_AMOUNT_OF_DATA);
    assert_unharmed(&mut world);
}

#[test]
fn less_unsolicited_data_than_the_first_burst() {
    let wish = Wish { immediate_data: false, first_burst_length: 1024, ..Wish::default() };
    let mut world = World::with(34, wish);
    let tag = bare_write(&mut world, 4096, false, &[]);
    send_data(world.initiator(), data_out(tag), 512);
    world.settle();
    assert_eq!(world.initiator().sense(tag), INCORRECT_AMOUNT_OF_DATA);
    assert_unharmed(&mut world);
}

#[test]
fn unsolicited_data_out_of_place() {
    let wrong: [(fn(&mut ScsiDataOut), _); 5] = [
        (|pdu| pdu.data_sn = DataSn(1), PROTOCOL_SERVICE_CRC_ERROR),
        (|pdu| pdu.buffer_offset = 512, INCORRECT_AMOUNT_OF_DATA),
        (|pdu| pdu.buffer_offset = u32::MAX - 3, INCORRECT_AMOUNT_OF_DATA),
        (|pdu| pdu.target_transfer_tag = TargetTransferTag(0x7777), INCORRECT_AMOUNT_OF_DATA),
        (|pdu| pdu.buffer_offset = 1 << 20, INCORRECT_AMOUNT_OF_DATA),
    ];
    for (change, sense) in wrong {
        let mut world = World::with(35, Wish { immediate_data: false, ..Wish::default() });
        let tag = bare_write(&mut world, 1024, false, &[]);
        let mut pdu = data_out(tag);
        change(&mut pdu);
        send_data(world.initiator(), ScsiDataOut { is_final: false, ..pdu }, 512);
        world.settle();
        assert_eq!(world.initiator().rejects, [RejectReason::InvalidPduField as u8]);
        // The sequence that was announced still has to be closed.
        send_data(world.initiator(), data_out(tag), 1024);
        world.settle();
        assert_eq!(world.initiator().sense(tag), sense);
        assert_unharmed(&mut world);
    }
}

/// 4.2.5.2: the data of command N comes before that of command N + 1 on the same connection.
#[test]
fn unsolicited_data_in_another_order_than_its_commands() {
    let mut world = World::with(46, Wish { immediate_data: false, ..Wish::default() });
    let first = bare_write(&mut world, 1024, false, &[]);
    let second = bare_write(&mut world, 1024, false, &[]);
    send_data(world.initiator(), data_out(second), 1024);
    world.settle();
    assert_eq!(world.initiator().rejects, [RejectReason::ProtocolError as u8]);
    assert_eq!(world.initiator().sense(second), INCORRECT_AMOUNT_OF_DATA);
    // The command whose turn it was is not harmed.
    world.initiator().send_raw(InitiatorPdu::ScsiDataOut(data_out(first)), &[0x11; 1024]);
    world.settle();
    world.initiators[0].good(first);
    assert_unharmed(&mut world);
}

/// Commands may overtake the data of earlier ones, and an aborted command's data may never come (4.2.5.2).
#[test]
fn unsolicited_data_in_the_order_of_its_commands_may_come_late() {
    let mut world = World::with(47, Wish { immediate_data: false, ..Wish::default() });
    world.initiator().manners.sends_for_aborted = false;
    let dropped = bare_write(&mut world, 1024, false, &[]);
    let first = bare_write(&mut world, 1024, false, &[]);
    let read = world.initiator().read(64, 1);
    let second = bare_write(&mut world, 1024, false, &[]);
    let abort = world.initiator().abort(dropped);
    world.exchange();
    for tag in [first, second] {
        world.initiator().send_raw(InitiatorPdu::ScsiDataOut(data_out(tag)), &[0x11; 1024]);
    }
    world.settle();
    world.pass(4);
    assert!(world.initiator().rejects.is_empty());
    for tag in [first, read, second] {
        world.initiators[0].good(tag);
    }
    assert_eq!(world.initiators[0].outcomes[&abort], 0);
    world.finish();
}

#[test]
fn solicited_data_out_of_place() {
    let field = RejectReason::InvalidPduField;
    let wrong: [(fn(&mut ScsiDataOut), _, _); 4] = [
        (|pdu| pdu.data_sn = DataSn(1), field, PROTOCOL_SERVICE_CRC_ERROR),
        (|pdu| pdu.buffer_offset = 512, field, INCORRECT_AMOUNT_OF_DATA),
        (
            |pdu| pdu.target_transfer_tag = TargetTransferTag(pdu.target_transfer_tag.0 ^ 1),
            field,
            INCORRECT_AMOUNT_OF_DATA,
        ),
        // 4.2.5.3: the LUN is not the command's.
        (|pdu| pdu.lun = NO_UNIT, RejectReason::ProtocolError, INCORRECT_AMOUNT_OF_DATA),
    ];
    for (change, reason, sense) in wrong {
        let wish = Wish { initial_r2t: true, immediate_data: false, ..Wish::default() };
        let mut world = World::with(45, wish);
        world.initiator().manners.answers_r2ts = false;
        let tag = bare_write(&mut world, 1024, true, &[]);
        world.settle();
        let asked = ScsiDataOut { target_transfer_tag: world.initiator().last_r2t(), ..data_out(tag) };
        let mut pdu = ScsiDataOut { is_final: false, ..asked };
        change(&mut pdu);
        send_data(world.initiator(), pdu, 512);
        world.settle();
        assert_eq!(world.initiator().rejects, [reason as u8]);
        send_data(world.initiator(), asked, 1024);
        world.initiator().answered_by_hand(tag);
        world.settle();
        assert_eq!(world.initiator().sense(tag), sense);
        assert_unharmed(&mut world);
    }
}

#[test]
fn data_that_nobody_asked_for() {
    let mut world = World::with(36, Wish { initial_r2t: true, immediate_data: false, ..Wish::default() });
    world.initiator().manners.answers_r2ts = false;
    let tag = bare_write(&mut world, 1024, true, &[]);
    send_data(world.initiator(), data_out(tag), 1024);
    world.settle();
    assert_eq!(world.initiator().rejects, [RejectReason::ProtocolError as u8]);
    assert_eq!(world.initiator().r2ts, 1, "the R2T went out before the fault");
    // Its sequence has to end before the task can be answered.
    let answer = ScsiDataOut { target_transfer_tag: world.initiator().last_r2t(), ..data_out(tag) };
    send_data(world.initiator(), answer, 1024);
    world.initiator().answered_by_hand(tag);
    world.settle();
    assert_eq!(world.initiator().sense(tag), INCORRECT_AMOUNT_OF_DATA);
    assert_unharmed(&mut world);
}

#[test]
fn more_data_than_an_r2t_asks_for() {
    let wish = Wish { initial_r2t: true, immediate_data: false, max_burst_length: 512, ..Wish::default() };
    let mut world = World::with(37, wish);
    world.initiator().manners.answers_r2ts = false;
    let tag = bare_write(&mut world, 1024, true, &[]);
    world.settle();
    let answer = ScsiDataOut { target_transfer_tag: world.initiator().last_r2t(), ..data_out(tag) };
    send_data(world.initiator(), answer, 1024);
    world.initiator().answered_by_hand(tag);
    world.settle();
    assert_eq!(world.initiator().rejects, [RejectReason::InvalidPduField as u8]);
    assert_eq!(world.initiator().sense(tag), INCORRECT_AMOUNT_OF_DATA);
    assert_unharmed(&mut world);
}

#[test]
fn a_sequence_that_ends_too_early() {
    let mut world = World::with(38, Wish { initial_r2t: true, immediate_data: false, ..Wish::default() });
    world.initiator().manners.answers_r2ts = false;
    let tag = bare_write(&mut world, 1024, true, &[]);
    world.settle();
    let answer = ScsiDataOut { target_transfer_tag: world.initiator().last_r2t(), ..data_out(tag) };
    send_data(world.initiator(), answer, 512);
    world.initiator().answered_by_hand(tag);
    world.settle();
    assert_eq!(world.initiator().sense(tag), INCORRECT_AMOUNT_OF_DATA);
    assert_unharmed(&mut world);
}

#[test]
fn data_for_no_task_is_thrown_away() {
    let mut world = World::with(39, Wish::default());
    send_data(world.initiator(), data_out(77), 512);
    send_data(
        world.initiator(),
        ScsiDataOut { target_transfer_tag: TargetTransferTag(5), ..data_out(77) },
        512,
    );
    world.settle();
    assert_unharmed(&mut world);
}

#[test]
fn data_for_a_read_is_refused_and_the_read_goes_on() {
    let mut world = World::with(40, Wish::default());
    let read = world.initiator().read(0, 1);
    world.exchange();
    send_data(world.initiator(), data_out(read), 512);
    world.exchange();
    assert_eq!(world.initiator().rejects, [RejectReason::ProtocolError as u8]);
    world.settle();
    assert_eq!(world.initiators[0].good(read).1, [0; 512]);
    assert_unharmed(&mut world);
}

#[test]
fn a_data_digest_error_fails_its_task_after_all_data_has_come() {
    for initial_r2t in [false, true] {
        let wish = Wish {
            initial_r2t,
            immediate_data: false,
            data_digest: true,
            max_burst_length: 1024,
            first_burst_length: 1024,
            ..Wish::default()
        };
        let mut world = World::with(41, wish);
        let data = vec![0xee; 4096];
        let write = world.initiator().write(0, data);
        if initial_r2t {
            // The R2T, and the data that answers it.
            while !world.receive(0) {
                assert!(world.send(0));
            }
        }
        world.initiator().spoil_last(8);
        world.settle();
        assert_eq!(world.initiator().rejects, [RejectReason::DataDigestError as u8]);
        assert_eq!(world.initiator().sense(write), PROTOCOL_SERVICE_CRC_ERROR);
        assert_unharmed(&mut world);
    }
}

#[test]
fn a_header_digest_error_ends_the_connection_and_its_session() {
    let mut world = World::with(42, Wish { header_digest: true, ..Wish::default() });
    let read = world.initiator().read(0, 8);
    world.exchange();
    world.initiator().ping(true, Vec::new());
    // The last byte of a PDU without data is the last of its header digest.
    world.initiator().spoil_last(1);
    world.exchange();
    assert!(world.target.closed(0).is_some());
    assert!(!world.target.session(0).unwrap().has_ended(), "a read is still in the store");
    world.initiator().give_up();
    world.settle();
    assert!(world.target.session(0).unwrap().has_ended());
    assert!(!world.initiators[0].ends.contains_key(&read) || world.initiators[0].open_tasks().is_empty());
    world.finish();
}

#[test]
fn requests_that_are_not_served_are_rejected() {
    let mut world = World::with(43, Wish::default());
    let snack = SnackRequest { initiator_task_tag: InitiatorTaskTag(5), ..SnackRequest::default() };
    world.initiator().send_raw(InitiatorPdu::SnackRequest(snack), b"");
    world.settle();
    assert_eq!(world.initiator().rejects, [RejectReason::SnackReject as u8]);
    world.initiator().log_in_again();
    world.settle();
    assert_eq!(world.initiator().rejects[1..], [RejectReason::ProtocolError as u8]);
    assert_unharmed(&mut world);
}

#[test]
fn a_nop_out_without_a_tag_wants_no_answer() {
    let mut world = World::with(44, Wish::default());
    let quiet = NopOut {
        immediate: true,
        initiator_task_tag: InitiatorTaskTag::RESERVED,
        target_transfer_tag: TargetTransferTag::RESERVED,
        cmd_sn: world.initiator().cmd_sn,
        ..NopOut::default()
    };
    world.initiator().send_raw(InitiatorPdu::NopOut(quiet), b"ignored");
    assert!(world.send(0));
    assert!(!world.receive(0));
    assert_unharmed(&mut world);
}
