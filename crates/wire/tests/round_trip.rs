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
