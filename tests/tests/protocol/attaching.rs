//! What a host does with a disk before its first read, as ESXi, Windows and clusters do it: what is there, is it ready, is it
//! reserved (SPC-4, REPORT LUNS; SPC-2, RESERVE; SAM-5, 5.14; RFC 7143, 11.4.5).

use lunette_tests::in_process::InProcess;
use lunette_tests::raw::{Raw, lun_field, plain};
use lunette_wire::initiator::{ScsiCommand, TaskManagementFunction as Function};
use lunette_wire::target::Residual;

use crate::{BUS_DEVICE_RESET, COMPLETE, DISK, SECOND_DISK, expect_attention, expect_ready, ready_session};

const POWER_ON: (u8, u8, u8) = (6, 0x29, 0);
const RESERVATION_CONFLICT: u8 = 0x18;

/// A command that brings data, of which so much is asked for and so much expected.
fn bringing(lun: u8, cdb: [u8; 16], expected: u32) -> ScsiCommand {
    ScsiCommand { read: true, lun: lun_field(lun), expected_data_transfer_length: expected, cdb, ..plain() }
}

fn report_luns(select: u8, allocation_length: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[2]) = (0xa0, select);
    cdb[6..10].copy_from_slice(&allocation_length.to_be_bytes());
    cdb
}

fn data_of(session: &mut Raw, command: &ScsiCommand) -> (Vec<u8>, Residual) {
    let tag = session.command(command, &[]).expect("sent");
    session.data_in(tag).expect("data")
}

fn inquiry(session: &mut Raw, lun: u8) -> Vec<u8> {
    data_of(session, &bringing(lun, [0x12, 0, 0, 0, 36, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 36)).0
}

fn status_of(session: &mut Raw, opcode: u8) -> u8 {
    let tag = session.command(&ScsiCommand { cdb: cdb_of(opcode), ..plain() }, &[]).expect("sent");
    session.ending(tag).expect("an answer").status
}

fn cdb_of(opcode: u8) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb
}

/// A residual is what was expected and does not come, to the byte, whatever was allocated: ESXi drops a disk otherwise.
/// SPC-4: REPORT LUNS.
#[test]
fn report_luns_has_exact_residuals() {
    let target = InProcess::start(&[DISK, SECOND_DISK, "5=mem:1M"]);
    let mut session = ready_session(&target, 1);
    let mut list = vec![0, 0, 0, 24, 0, 0, 0, 0];
    for number in [0, 1, 5] {
        list.extend([0, number, 0, 0, 0, 0, 0, 0]);
    }
    for (allocated, expected, residual) in [
        (32, 32, Residual::None),
        (4096, 4096, Residual::Underflow(4064)),
        (16, 16, Residual::None),
        (16, 32, Residual::Underflow(16)),
        (31, 64, Residual::Underflow(33)),
        (32, 16, Residual::Overflow(16)),
        (4096, 8, Residual::Overflow(24)),
        (u32::MAX, 1 << 20, Residual::Underflow((1 << 20) - 32)),
    ] {
        for lun in [0, 1, 9] {
            let command = bringing(lun, report_luns(0, allocated), expected);
            let (data, found) = data_of(&mut session, &command);
            let length = list.len().min(allocated as usize).min(expected as usize);
            assert_eq!((&data[..], found), (&list[..length], residual), "{allocated} {expected} to {lun}");
        }
    }
    // The well-known units alone, and with the others.
    for (select, length) in [(1, 16), (2, 40)] {
        let (data, residual) = data_of(&mut session, &bringing(0, report_luns(select, 64), 64));
        assert_eq!((data.len(), residual), (length, Residual::Underflow(64 - length as u32)));
        assert_eq!(data[8..10], [0xc1, 0x01]);
    }
}

/// SPC-4: INQUIRY, REPORT LUNS and REQUEST SENSE are answered whatever is pending; TEST UNIT READY tells it.
#[test]
fn what_is_asked_during_unit_attentions_is_answered_as_it_must_be() {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let mut session = Raw::login(target.portal(), &target.options(1)).expect("a login");
    let mut other = ready_session(&target, 2);
    for attention in [POWER_ON, BUS_DEVICE_RESET] {
        for lun in [0, 1] {
            assert_eq!(data_of(&mut session, &bringing(lun, report_luns(0, 24), 24)).0.len(), 24);
            assert_eq!(inquiry(&mut session, lun).len(), 36);
        }
        let ending = session.test_unit_ready(0).expect("an answer");
        assert_eq!((ending.codes(), ending.residual), (attention, Residual::None));
        expect_ready(&mut session, 0);
        // REQUEST SENSE fetches the one of the other unit, with GOOD.
        let request_sense = [0x03, 0, 0, 0, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let (sense, _) = data_of(&mut session, &bringing(1, request_sense, 18));
        assert_eq!((sense[2] & 0x0f, sense[12], sense[13]), attention);
        expect_ready(&mut session, 1);
        for lun in [0, 1] {
            let reset = other.manage(Function::LogicalUnitReset, lun).expect("sent");
            assert_eq!(other.managed(reset).expect("an answer"), COMPLETE);
        }
    }
}

/// SPC-2, 7.27, 7.28: RESERVE (10) keeps the others out until RELEASE (10), a reset, or the loss of its nexus.
#[test]
fn reserve_10_keeps_others_out_until_it_is_released() {
    const RESERVE_10: u8 = 0x56;
    const RELEASE_10: u8 = 0x57;
    const RELEASE_6: u8 = 0x17;
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let (mut first, mut second) = (ready_session(&target, 1), ready_session(&target, 2));
    let ready = |session: &mut Raw| session.test_unit_ready(0).expect("an answer").status;
    for release in [RELEASE_10, RELEASE_6] {
        assert_eq!(status_of(&mut first, RESERVE_10), 0);
        assert_eq!(status_of(&mut first, RESERVE_10), 0, "by the same it is no conflict");
        assert_eq!(ready(&mut second), RESERVATION_CONFLICT);
        assert_eq!(status_of(&mut second, RESERVE_10), RESERVATION_CONFLICT);
        assert_eq!(status_of(&mut second, release), 0, "it is ignored");
        assert_eq!(inquiry(&mut second, 0).len(), 36);
        assert_eq!((ready(&mut second), ready(&mut first)), (RESERVATION_CONFLICT, 0));
        assert_eq!(status_of(&mut first, release), 0);
        assert_eq!(ready(&mut second), 0);
    }
    assert_eq!(status_of(&mut first, RESERVE_10), 0);
    let reset = second.manage(Function::LogicalUnitReset, 0).expect("sent");
    assert_eq!(second.managed(reset).expect("an answer"), COMPLETE);
    expect_attention(&mut second, 0, BUS_DEVICE_RESET);
    expect_attention(&mut first, 0, BUS_DEVICE_RESET);
    // The session is replaced by a login of its own initiator port.
    assert_eq!(status_of(&mut first, RESERVE_10), 0);
    assert_eq!(ready(&mut second), RESERVATION_CONFLICT);
    let _again = ready_session(&target, 1);
    assert_eq!(ready(&mut second), 0);
}
