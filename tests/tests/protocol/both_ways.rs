//! Additional header segments end to end (RFC 7143, 11.2.2): bidirectional commands and extended CDBs. A disk has no
//! command of either kind here, so what is tested is what becomes of those that come.

use lunette_tests::in_process::InProcess;
use lunette_tests::raw::{BLOCK_BYTES, Raw, plain, read, write};
use lunette_wire::initiator::ScsiCommand;
use lunette_wire::target::{Residual, ScsiResponse};
use lunette_wire::{InitiatorPdu, TargetPdu};

use crate::{CHECK_CONDITION, DISK, expect_on_disk, pattern};

/// AHSLength, AHSType, one byte that is reserved, and the length (11.2.2.4).
fn read_length(bytes: u32) -> Vec<u8> {
    [&[0, 5, 2, 0][..], &bytes.to_be_bytes()].concat()
}

/// Sends a command with an additional header segment in whole words behind its header.
fn send(session: &mut Raw, command: &ScsiCommand, ahs: &[u8], data: &[u8]) -> ScsiCommand {
    let command = session.number(command);
    let mut bytes = session.connection().encode(&InitiatorPdu::ScsiCommand(command), data);
    bytes[4] = (ahs.len() / 4) as u8;
    bytes.splice(48..48, ahs.iter().copied());
    session.connection().send_bytes(&bytes).expect("sent");
    command
}

fn response(session: &mut Raw, command: &ScsiCommand) -> ScsiResponse {
    match session.receive().expect("an answer").0 {
        TargetPdu::ScsiResponse(pdu) if pdu.initiator_task_tag == command.initiator_task_tag => pdu,
        other => panic!("{other:?}"),
    }
}

/// 11.4.6, 11.7.3: the data of a read that says that it writes too comes without status, and the response behind it says that
/// nothing was written.
#[test]
fn a_read_that_could_write_has_its_status_in_a_response() {
    let target = InProcess::start(&[DISK]);
    let mut session = target.session(1);
    let content = pattern(8 * BLOCK_BYTES);
    let tag = session.write(0, 0, &content).expect("sent");
    session.good(tag).expect("a write");
    for (takes, residual) in
        [(4096, Residual::None), (5000, Residual::Underflow(904)), (1000, Residual::Overflow(3096))]
    {
        let both = ScsiCommand { write: true, expected_data_transfer_length: 512, ..read(0, 0, 8) };
        let command = send(&mut session, &both, &read_length(takes), &[0xee; 512]);
        let (TargetPdu::ScsiDataIn(pdu), data) = session.receive().expect("data") else { panic!("no data") };
        assert_eq!(
            (pdu.initiator_task_tag, pdu.status, pdu.is_final),
            (command.initiator_task_tag, None, true)
        );
        assert!(data == content[..(takes as usize).min(4096)], "other data was read");
        let response = response(&mut session, &command);
        assert_eq!((response.status, response.residual), (0, Residual::Underflow(512)));
        assert_eq!(response.bidirectional_read_residual, residual);
    }
    expect_on_disk(&mut session, 0, &content);
}

#[test]
fn a_write_that_could_read_brings_nothing() {
    let target = InProcess::start(&[DISK]);
    let mut session = target.session(1);
    let data = pattern(2 * BLOCK_BYTES);
    let both = ScsiCommand { read: true, ..write(0, 0, data.len()) };
    let command = send(&mut session, &both, &read_length(2048), &data);
    let response = response(&mut session, &command);
    assert_eq!((response.status, response.residual), (0, Residual::None));
    assert_eq!(response.bidirectional_read_residual, Residual::Underflow(2048));
    expect_on_disk(&mut session, 0, &data);
}

/// 11.2.2.3: a CDB of 32 bytes arrives whole, and is of no command that this disk has.
#[test]
fn a_cdb_of_variable_length_is_refused_by_its_operation_code() {
    let target = InProcess::start(&[DISK]);
    let mut session = target.session(1);
    // READ (32), for units with protection information of type 2 alone (SBC-3).
    let mut command = ScsiCommand { read: true, expected_data_transfer_length: 512, ..plain() };
    (command.cdb[0], command.cdb[7], command.cdb[9]) = (0x7f, 24, 0x09);
    let rest = [&[0, 17, 1, 0][..], &[0; 16]].concat();
    let sent = send(&mut session, &command, &rest, &[]);
    let ending = session.ending(sent.initiator_task_tag).expect("an answer");
    assert_eq!((ending.status, ending.codes()), (CHECK_CONDITION, (5, 0x20, 0)));
    assert_eq!(ending.residual, Residual::Underflow(512));
    session.silent().expect("alive");
}
