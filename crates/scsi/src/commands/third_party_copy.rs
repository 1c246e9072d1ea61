//! The third-party copy page, VPD page 8Fh: which copies there are, and how large they may be (SPC-4).

use super::copy_results::DESCRIPTOR_TYPES;
use super::extended_copy::parameters::{
    CSCDS_MAX, DESCRIPTORS_BYTES_MAX, OWN_UNIT, SEGMENT_BYTES_MAX, SEGMENTS_MAX,
};
use super::{table, tokens};
use crate::copy::COPIES_MAX;
use crate::unit::LogicalUnit;

const BLOCK_DEVICE_ROD_LIMITS: u16 = 0x0000;
const SUPPORTED_COMMANDS: u16 = 0x0001;
const PARAMETER_DATA: u16 = 0x0004;
const SUPPORTED_DESCRIPTORS: u16 = 0x0008;
const SUPPORTED_CSCD_IDS: u16 = 0x000c;
const ROD_TOKEN_FEATURES: u16 = 0x0106;
const SUPPORTED_ROD_TYPES: u16 = 0x0108;
const GENERAL_COPY_OPERATIONS: u16 = 0x8001;

/// The operation codes of third-party copies.
const OPCODES: [u8; 2] = [0x83, 0x84];

/// The page without its header: descriptors in rising order of type.
pub(super) fn page(unit: &LogicalUnit) -> Vec<u8> {
    [
        descriptor(BLOCK_DEVICE_ROD_LIMITS, &rod_limits(unit)),
        descriptor(SUPPORTED_COMMANDS, &supported_commands()),
        descriptor(PARAMETER_DATA, &parameter_data()),
        descriptor(SUPPORTED_DESCRIPTORS, &counted(&DESCRIPTOR_TYPES)),
        descriptor(SUPPORTED_CSCD_IDS, &[[0, 2], OWN_UNIT.to_be_bytes()].concat()),
        descriptor(ROD_TOKEN_FEATURES, &rod_token_features()),
        descriptor(SUPPORTED_ROD_TYPES, &supported_rod_types()),
        descriptor(GENERAL_COPY_OPERATIONS, &general_copy_operations()),
    ]
    .concat()
}

/// A descriptor, filled up to a multiple of four bytes.
fn descriptor(kind: u16, body: &[u8]) -> Vec<u8> {
    let length = body.len().next_multiple_of(4);
    let mut descriptor = [kind.to_be_bytes(), (length as u16).to_be_bytes()].concat();
    descriptor.extend(body);
    descriptor.resize(4 + length, 0);
    descriptor
}

/// A list with its length in one byte before it.
fn counted(list: &[u8]) -> Vec<u8> {
    [&[list.len() as u8], list].concat()
}

/// Each operation code with its service actions, as the command table has them.
fn supported_commands() -> Vec<u8> {
    let of_opcode = |opcode| {
        let actions: Vec<u8> = table::rows(opcode).filter_map(|row| row.service_action).collect();
        [vec![opcode], counted(&actions)].concat()
    };
    counted(&OPCODES.map(of_opcode).concat())
}

/// The limits of parameter lists.
fn parameter_data() -> Vec<u8> {
    let mut body = vec![0; 28];
    body[4..6].copy_from_slice(&(CSCDS_MAX as u16).to_be_bytes());
    body[6..8].copy_from_slice(&(SEGMENTS_MAX as u16).to_be_bytes());
    body[8..12].copy_from_slice(&(DESCRIPTORS_BYTES_MAX as u32).to_be_bytes());
    body
}

/// What Windows looks at before it copies with tokens (SBC-3).
fn rod_limits(unit: &LogicalUnit) -> Vec<u8> {
    let (transfer_blocks_max, transfer_blocks_optimal) = tokens::transfer_blocks(unit);
    let mut body = vec![0; 32];
    body[6..8].copy_from_slice(&tokens::RANGES_MAX.to_be_bytes());
    body[8..12].copy_from_slice(&tokens::TIMEOUT_S_MAX.to_be_bytes());
    body[12..16].copy_from_slice(&tokens::TIMEOUT_S.to_be_bytes());
    body[16..24].copy_from_slice(&transfer_blocks_max.to_be_bytes());
    body[24..32].copy_from_slice(&transfer_blocks_optimal.to_be_bytes());
    body
}

/// Tokens of other copy managers are not taken. There is nothing to say about a token's length of life but its timeout.
fn rod_token_features() -> Vec<u8> {
    let mut body = vec![0; 44];
    body[12..16].copy_from_slice(&1u32.to_be_bytes());
    body[16..20].fill(0xff);
    body[20..24].copy_from_slice(&tokens::TIMEOUT_S_MAX.to_be_bytes());
    // One descriptor of features of block devices; its limits are those of the block device ROD limits.
    let features = [&[0, 0, 0, 44][..], &[0; 44]].concat();
    body[42..44].copy_from_slice(&(features.len() as u16).to_be_bytes());
    [body, features].concat()
}

/// Each type with whether tokens of it come out, go in, or both.
fn supported_rod_types() -> Vec<u8> {
    const OUT: u8 = 0x01;
    const IN: u8 = 0x02;
    let types = [(tokens::CHANGE_VULNERABLE, OUT | IN), (tokens::BLOCK_ZERO, IN)];
    let mut body = vec![0, 0, 0, 64 * types.len() as u8];
    for (kind, flags) in types {
        let mut descriptor = [0; 64];
        descriptor[..4].copy_from_slice(&kind.to_be_bytes());
        descriptor[4] = flags;
        body.extend(descriptor);
    }
    body
}

fn general_copy_operations() -> Vec<u8> {
    let mut body = vec![0; 32];
    body[..4].copy_from_slice(&(COPIES_MAX as u32).to_be_bytes());
    body[4..8].copy_from_slice(&(COPIES_MAX as u32).to_be_bytes());
    body[8..12].copy_from_slice(&SEGMENT_BYTES_MAX.to_be_bytes());
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::tests::{config, unit_of};

    #[test]
    fn descriptors_are_in_order_and_fill_the_page() {
        let page = page(&unit_of(config()));
        let mut rest = page.as_slice();
        let mut kinds = Vec::new();
        while let Some((header, after)) = rest.split_first_chunk::<4>() {
            kinds.push(u16::from_be_bytes([header[0], header[1]]));
            let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
            assert!(length > 0 && length % 4 == 0);
            rest = &after[length..];
        }
        assert!(rest.is_empty() && kinds.is_sorted());
        assert_eq!(kinds.len(), 8);
    }

    #[test]
    fn commands_are_those_of_the_table() {
        let commands = supported_commands();
        assert_eq!(commands[0] as usize, commands.len() - 1);
        assert_eq!(commands[1..9], [0x83, 5, 0x00, 0x01, 0x10, 0x11, 0x1c, 0x84]);
    }
}
