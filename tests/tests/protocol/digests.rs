//! Digests (7.8, 13.1): what a wrong one costs, and that right ones go both ways.

use lunette_block::OperationKind;
use lunette_tests::in_process::InProcess;
use lunette_tests::initiator::LoginOptions;
use lunette_tests::raw::{BLOCK_BYTES, Raw, write};
use lunette_wire::frame::Digests;
use lunette_wire::initiator::ScsiDataOut;
use lunette_wire::target::RejectReason;
use lunette_wire::{DataSn, InitiatorPdu};

use crate::{CHECK_CONDITION, DISK, expect_on_disk, pattern};

const PROTOCOL_SERVICE_CRC_ERROR: (u8, u8, u8) = (0xb, 0x47, 0x05);

/// A session with digests of data, and of headers too if wanted.
fn digests(target: &InProcess, header: bool, keys: &[(&str, &str)]) -> Raw {
    let digests = Digests { header, data: true };
    let options = LoginOptions { digests, ..target.options_with(1, keys) };
    Raw::ready(target.portal(), &options, 0).expect("a login")
}

/// Sends a PDU whose data digest is wrong.
fn send_spoilt(session: &mut Raw, pdu: &InitiatorPdu, data: &[u8]) {
    let mut bytes = session.connection().encode(pdu, data);
    *bytes.last_mut().expect("a digest") ^= 0x40;
    session.connection().send_bytes(&bytes).expect("sent");
}

/// RFC 7143: 11.2, 11.2.1.5, 13.1.
#[test]
fn digests_of_headers_and_data_go_both_ways() {
    let target = InProcess::start(&[DISK]);
    let mut session = digests(&target, true, &[]);
    for length in [BLOCK_BYTES, 64 << 10] {
        let data = pattern(length);
        let tag = session.write(0, 0, &data).expect("sent");
        session.good(tag).expect("a write");
        expect_on_disk(&mut session, 0, &data);
    }
    // Lengths that need padding, which the digest covers.
    for length in 1..=5 {
        let tag = session.ping(&pattern(length)).expect("sent");
        session.pinged(tag, &pattern(length)).expect("an echo");
    }
}

/// RFC 7143: 7.3, 7.8.
#[test]
fn a_wrong_digest_on_data_out_fails_the_write_after_its_sequence() {
    // Short segments lie whole in the receive buffer, long ones come into a buffer of their own first.
    for (length, segment) in [(8192, 2048), (256 << 10, 128 << 10)] {
        let target = InProcess::start(&[DISK]);
        let mut session = digests(&target, true, &[("InitialR2T", "Yes"), ("ImmediateData", "No")]);
        let data = vec![0xaa; length];
        let command = write(0, 0, length);
        let tag = session.command(&command, &[]).expect("sent");
        let r2t = session.r2t(tag).expect("an R2T");
        assert_eq!(r2t.desired_length as usize, length);
        for index in 0..length / segment {
            let pdu = ScsiDataOut {
                is_final: (index + 1) * segment == length,
                initiator_task_tag: tag,
                target_transfer_tag: r2t.target_transfer_tag,
                exp_stat_sn: session.exp_stat_sn,
                data_sn: DataSn(index as u32),
                buffer_offset: (index * segment) as u32,
                ..ScsiDataOut::default()
            };
            if index == 0 {
                send_spoilt(&mut session, &InitiatorPdu::ScsiDataOut(pdu), &data[..segment]);
                let reason = session.rejected(&pdu.encode(segment)).expect("a Reject");
                assert_eq!(reason, RejectReason::DataDigestError as u8);
                session.silent().expect("the sequence goes on");
            } else {
                session.send(&InitiatorPdu::ScsiDataOut(pdu), &data[..segment]).expect("sent");
            }
        }
        let ending = session.ending(tag).expect("an answer");
        assert_eq!((ending.status, ending.codes()), (CHECK_CONDITION, PROTOCOL_SERVICE_CRC_ERROR));
        assert_eq!(target.faults(0).calls(OperationKind::Write), 0);
        let tag = session.command(&command, &[]).expect("sent");
        let r2t = session.r2t(tag).expect("an R2T");
        session.answer_r2t(&r2t, &data, segment).expect("sent");
        session.good(tag).expect("the second attempt");
        expect_on_disk(&mut session, 0, &data);
    }
}

/// RFC 7143: 4.2.2.1, 7.8.
#[test]
fn a_command_with_a_wrong_data_digest_can_be_sent_again() {
    for length in [BLOCK_BYTES, 64 << 10] {
        let target = InProcess::start(&[DISK]);
        let mut session = digests(&target, false, &[]);
        let data = pattern(length);
        let command = session.number(&write(0, 0, length));
        send_spoilt(&mut session, &InitiatorPdu::ScsiCommand(command), &data);
        let reason = session.rejected(&command.encode(length)).expect("a Reject");
        assert_eq!(reason, RejectReason::DataDigestError as u8);
        session.silent().expect("and no other answer");
        assert_eq!(session.exp_cmd_sn(), command.cmd_sn, "it is as if it had never come");
        session.send(&InitiatorPdu::ScsiCommand(command), &data).expect("sent");
        session.good(command.initiator_task_tag).expect("the second attempt");
        expect_on_disk(&mut session, 0, &data);
    }
}

/// RFC 7143: 7.8.
#[test]
fn a_wrong_header_digest_drops_the_connection() {
    let target = InProcess::start(&[DISK]);
    let mut session = digests(&target, true, &[]);
    let peer = session.connection().local_address().expect("an address");
    let command = session.number(&write(0, 0, BLOCK_BYTES));
    let mut bytes = session.connection().encode(&InitiatorPdu::ScsiCommand(command), &[0xaa; BLOCK_BYTES]);
    bytes[lunette_wire::BHS_LENGTH] ^= 1;
    session.connection().send_bytes(&bytes).expect("sent");
    session.ends().expect("a closed connection");
    assert!(target.log_about(peer, "header digest error").starts_with("WARN"));
    let mut again = digests(&target, true, &[]);
    expect_on_disk(&mut again, 0, &[0; BLOCK_BYTES]);
}
