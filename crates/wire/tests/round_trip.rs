//! Decode is total, and what was decoded and encoded once decodes to the same value again, for all PDUs.

use lunette_cases::cases;
use lunette_wire::{BHS_LENGTH, Bhs, InitiatorPdu, Opcode, TargetPdu};
use proptest::prelude::*;

fn bhs(bytes: Vec<u8>) -> Bhs {
    bytes.try_into().expect("the strategy makes 48 bytes")
}

fn headers() -> impl Strategy<Value = Bhs> {
    let opcodes = prop_oneof![
        any::<u8>(),
        proptest::sample::select(vec![
            0x00u8, 0x01, 0x02, 0x43, 0x04, 0x05, 0x06, 0x10, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x31,
            0x32, 0x3f,
        ])
    ];
    (opcodes, proptest::collection::vec(any::<u8>(), BHS_LENGTH)).prop_map(|(opcode, mut bytes)| {
        bytes[0] = opcode;
        bhs(bytes)
    })
}

proptest! {
    #![proptest_config(cases(4096))]

    #[test]
    fn initiator_pdus(header in headers()) {
        if let Ok(pdu) = InitiatorPdu::decode(&header) {
            prop_assert_eq!(InitiatorPdu::decode(&pdu.encode(0)), Ok(pdu));
        }
    }

    #[test]
    fn target_pdus(header in headers()) {
        if let Ok(pdu) = TargetPdu::decode(&header) {
            prop_assert_eq!(TargetPdu::decode(&pdu.encode(0)), Ok(pdu));
        }
    }

    #[test]
    fn no_header_is_from_both_sides(header in headers()) {
        prop_assert!(InitiatorPdu::decode(&header).is_err() || TargetPdu::decode(&header).is_err());
    }

    #[test]
    fn opcodes_are_their_own_code(byte: u8) {
        if let Some(opcode) = Opcode::from_byte(byte) {
            prop_assert_eq!(opcode as u8, byte & 0x3f);
        }
    }
}

/// RFC 7143, 11: a reserved bit that is set changes nothing that is read.
#[test]
fn reserved_bits_are_ignored() {
    // Reserved bytes of a SCSI Command, a NOP-Out, a Logout Request and a Text Request (11.3, 11.18, 11.14, 11.10).
    for (opcode, reserved) in [
        (0x01u8, &[3usize][..]),
        (0x00, &[2, 3, 32, 40, 47]),
        (0x06, &[2, 3, 8, 15, 22, 32, 47]),
        (0x04, &[2, 3, 32, 40, 47]),
    ] {
        let mut header = [0u8; BHS_LENGTH];
        (header[0], header[1]) = (opcode, 0x80);
        let plain = InitiatorPdu::decode(&header).expect("a PDU");
        for &at in reserved {
            let mut noisy = header;
            noisy[at] = 0xff;
            assert_eq!(InitiatorPdu::decode(&noisy), Ok(plain), "opcode {opcode:#04x}, byte {at}");
        }
    }
}

/// The same of what a target sends: a NOP-In, a SCSI Response without counts, Data-In without status, an R2T, responses to task
/// management, Logout and Text Requests (11.19, 11.4, 11.7, 11.8, 11.6, 11.15, 11.11).
#[test]
fn reserved_bits_of_targets_are_ignored() {
    for (opcode, reserved) in [
        (0x20u8, &[2usize, 3, 36, 47][..]),
        (0x21, &[10, 15]),
        (0x25, &[2, 3]),
        (0x31, &[2, 3]),
        (0x22, &[3, 15, 20, 36, 47]),
        (0x26, &[3, 8, 15, 20, 36, 47]),
        (0x24, &[2, 3, 36, 47]),
    ] {
        let mut header = [0u8; BHS_LENGTH];
        (header[0], header[1]) = (opcode, 0x80);
        let plain = TargetPdu::decode(&header).expect("a PDU");
        for &at in reserved {
            let mut noisy = header;
            noisy[at] = 0xff;
            assert_eq!(TargetPdu::decode(&noisy), Ok(plain), "opcode {opcode:#04x}, byte {at}");
        }
    }
}

/// RFC 7143, 11: a reserved code where a code stands is an error, as is an opcode that nobody has.
#[test]
fn reserved_codes_are_errors() {
    let mut header = [0u8; BHS_LENGTH];
    // A Login Response from stage 2 (11.13.3).
    (header[0], header[1]) = (0x23, 2 << 2);
    assert!(TargetPdu::decode(&header).is_err());
    header[1] = 1 << 2;
    assert!(TargetPdu::decode(&header).is_ok());
    for opcode in [0x27u8, 0x2f, 0x30, 0x33, 0x3e] {
        header[0] = opcode;
        assert!(TargetPdu::decode(&header).is_err(), "{opcode:#04x}");
    }
}

/// RFC 7143, 11.4.5.1, 11.7: a count whose bit is not set says nothing.
#[test]
fn a_residual_count_without_its_bit_is_ignored() {
    for (opcode, flags, counts) in [(0x21u8, 0x80u8, 40..48), (0x25, 0x81, 44..48)] {
        let mut header = [0u8; BHS_LENGTH];
        (header[0], header[1]) = (opcode, flags);
        let plain = TargetPdu::decode(&header);
        header[counts].fill(0x77);
        assert!(plain.is_ok() && TargetPdu::decode(&header) == plain, "opcode {opcode:#04x}");
    }
}

/// RFC 7143, 11.4.5.1, 11.7: without U and O the counts are zero, in both PDUs that have them.
#[test]
fn without_a_residual_its_count_is_zero() {
    let response = lunette_wire::target::ScsiResponse { status: 2, ..Default::default() }.encode(0);
    assert_eq!((response[1] & 0x1e, &response[40..48]), (0, &[0; 8][..]));
    let data =
        lunette_wire::target::ScsiDataIn { status: Some(0), is_final: true, ..Default::default() }.encode(0);
    assert_eq!((data[1] & 0x06, &data[44..48]), (0, &[0; 4][..]));
}
