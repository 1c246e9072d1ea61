//! What a logged-in initiator can send: wrong digests, lengths, opcodes and tags (RFC 7143, 7.3, 7.7,
//! 7.8, 7.13).

use lunette_tests::initiator::{Command, Initiator, LoginOptions, cdb};
use lunette_tests::lunette::Lunette;
use lunette_wire::frame::Digests;
use lunette_wire::initiator::{NopOut, ScsiCommand, ScsiDataOut};
use lunette_wire::{BHS_LENGTH, InitiatorPdu, InitiatorTaskTag, TargetPdu, TargetTransferTag};

use crate::{Bystander, expect_dropped};

/// Header digest errors end the connection, data digest errors the PDU (7.8).
#[test]
fn wrong_digests_are_found() {
    let target = Lunette::serve().luns(["0=mem:64M"]).start().expect("a target");
    let bystander = Bystander::start(&target);
    let digests = Digests { header: true, data: true };
    let login = || {
        let mut initiator =
            Initiator::login(target.portal(), &LoginOptions { digests, ..LoginOptions::default() })
                .expect("a login");
        initiator.make_ready(0).expect("a ready unit");
        initiator
    };
    let nop = |initiator: &Initiator| {
        InitiatorPdu::NopOut(NopOut {
            immediate: true,
            initiator_task_tag: InitiatorTaskTag(77),
            target_transfer_tag: TargetTransferTag::RESERVED,
            cmd_sn: initiator.cmd_sn(),
            ..NopOut::default()
        })
    };
    // A wrong header digest: nobody knows where the next PDU starts, so the connection goes.
    let mut initiator = login();
    let pdu = nop(&initiator);
    let mut bytes = initiator.connection().encode(&pdu, b"data");
    bytes[BHS_LENGTH] ^= 1;
    initiator.connection().send_bytes(&bytes).expect("sent");
    expect_dropped(&target, initiator.into_connection(), "header digest error");

    // A wrong data digest: the PDU is rejected (RFC 7143, 7.8), the session goes on.
    let mut initiator = login();
    let pdu = nop(&initiator);
    let mut bytes = initiator.connection().encode(&pdu, b"data");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    initiator.connection().send_bytes(&bytes).expect("sent");
    match initiator.connection().receive().expect("an answer") {
        (TargetPdu::Reject(reject), header) => {
            assert_eq!(reject.reason, 0x02, "reason Data-Digest Error");
            assert_eq!(header[..BHS_LENGTH], bytes[..BHS_LENGTH], "the rejected header comes back");
        }
        (other, _) => panic!("{other:?}"),
    }
    initiator.ping(b"still here").expect("the session goes on");

    // A write whose immediate data are damaged must not be carried out. The bystander does not come to this block.
    let zeroes = Command { cdb: cdb::read(10_000, 1), data_in_bytes: 512, ..Command::default() };
    let before = initiator.execute_good(zeroes.clone()).expect("a read");
    let command = ScsiCommand {
        is_final: true,
        write: true,
        initiator_task_tag: InitiatorTaskTag(78),
        expected_data_transfer_length: 512,
        cmd_sn: initiator.cmd_sn(),
        cdb: cdb::write(10_000, 1),
        ..ScsiCommand::default()
    };
    let mut bytes = initiator.connection().encode(&InitiatorPdu::ScsiCommand(command), &[0xa5; 512]);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    initiator.connection().send_bytes(&bytes).expect("sent");
    drop(initiator);
    let mut initiator = login();
    assert_eq!(initiator.execute_good(zeroes).expect("a read"), before, "damaged data was written");
    initiator.logout().expect("a logout");
    bystander.finish();
    target.stop().expect("a clean end");
}

/// Format errors (7.7), protocol errors (7.13), Reject (7.3).
#[test]
fn nonsense_in_full_feature_phase_harms_only_its_sender() {
    let target = Lunette::serve().luns(["0=mem:64M"]).start().expect("a target");
    let bystander = Bystander::start(&target);
    let login = || {
        let mut initiator = Initiator::login(target.portal(), &LoginOptions::default()).expect("a login");
        initiator.make_ready(0).expect("a ready unit");
        initiator
    };
    // Longer than the declared MaxRecvDataSegmentLength.
    let mut initiator = login();
    let mut header =
        ScsiDataOut { initiator_task_tag: InitiatorTaskTag(1), ..ScsiDataOut::default() }.encode(0);
    header[5..8].fill(0xff);
    initiator.connection().send_bytes(&header).expect("sent");
    expect_dropped(&target, initiator.into_connection(), "format error");

    // An opcode that does not exist, one that only a target sends, a SNACK, a login: each is rejected.
    let mut initiator = login();
    for opcode in [0x1c, 0x21, 0x10, 0x43] {
        let mut header = [0; BHS_LENGTH];
        (header[0], header[1]) = (opcode, 0x80);
        initiator.connection().send_bytes(&header).expect("sent");
        match initiator.connection().receive().unwrap_or_else(|error| panic!("opcode {opcode:#x}: {error:#}"))
        {
            (TargetPdu::Reject(_), rejected) => assert_eq!(rejected[..BHS_LENGTH], header),
            (other, _) => panic!("opcode {opcode:#x}: {other:?}"),
        }
    }
    // Data-Out for nothing, and a command far outside the window, are ignored.
    let stray =
        ScsiDataOut { is_final: true, initiator_task_tag: InitiatorTaskTag(999), ..ScsiDataOut::default() };
    initiator.connection().send(&InitiatorPdu::ScsiDataOut(stray), &[1; 512]).expect("sent");
    let far = ScsiCommand {
        is_final: true,
        initiator_task_tag: InitiatorTaskTag(998),
        cmd_sn: initiator.cmd_sn().plus(100_000),
        ..ScsiCommand::default()
    };
    initiator.connection().send(&InitiatorPdu::ScsiCommand(far), &[]).expect("sent");
    initiator.ping(b"still here").expect("the session goes on");
    initiator.logout().expect("a logout");

    // Data that was never asked for, behind the end of the command's data: not beyond the buffer.
    let mut initiator = login();
    let command = ScsiCommand {
        is_final: true,
        write: true,
        initiator_task_tag: InitiatorTaskTag(5),
        expected_data_transfer_length: 1 << 20,
        cmd_sn: initiator.cmd_sn(),
        cdb: cdb::write(0, 2048),
        ..ScsiCommand::default()
    };
    initiator.connection().send(&InitiatorPdu::ScsiCommand(command), &[]).expect("sent");
    let (TargetPdu::ReadyToTransfer(r2t), _) = initiator.connection().receive().expect("an R2T") else {
        panic!("no R2T");
    };
    let beyond = ScsiDataOut {
        is_final: true,
        initiator_task_tag: r2t.initiator_task_tag,
        target_transfer_tag: r2t.target_transfer_tag,
        buffer_offset: u32::MAX - 100,
        ..ScsiDataOut::default()
    };
    initiator.connection().send(&InitiatorPdu::ScsiDataOut(beyond), &[1; 512]).expect("sent");
    drop(initiator);
    bystander.finish();
    target.stop().expect("a clean end");
}
