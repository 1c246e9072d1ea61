//! PDUs as bytes on a wire, with digests and padding (RFC 7143, 11.2).

use lunette_wire::ahs::AHS_LENGTH_MAX;
use lunette_wire::digest::{DIGEST_LENGTH, crc32c, crc32c_of};
use lunette_wire::frame::{Digests, Frame, padding};
use lunette_wire::{BHS_LENGTH, Bhs};

/// One PDU, taken apart.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) bhs: Bhs,
    pub(crate) data: Vec<u8>,
    pub(crate) header_intact: bool,
    pub(crate) data_intact: bool,
}

/// Puts a PDU together; `bhs` already has the length of `data`.
pub(crate) fn encode(bhs: &Bhs, data: &[u8], digests: Digests) -> Vec<u8> {
    let mut bytes = bhs.to_vec();
    if digests.header {
        bytes.extend(crc32c(bhs));
    }
    let pad = vec![0; padding(data.len())];
    bytes.extend_from_slice(data);
    bytes.extend_from_slice(&pad);
    if digests.data && !data.is_empty() {
        bytes.extend(crc32c_of(&[data, &pad]));
    }
    bytes
}

/// Takes a whole PDU apart. Panics when its lengths break a bound or do not fit the bytes.
pub(crate) fn decode(bytes: &[u8], digests: Digests, data_max: u32) -> Received {
    let bhs: Bhs = bytes[..BHS_LENGTH].try_into().expect("48 bytes");
    let frame = Frame::of(&bhs, digests, data_max, AHS_LENGTH_MAX).expect("lengths within their bounds");
    assert_eq!(frame.total_length(), bytes.len());
    assert_eq!(frame.ahs_length, 0, "neither side of this pair sends additional headers");
    let start = frame.data_offset();
    let end = start + frame.data_length;
    let padded = end + frame.padding();
    let header_intact =
        frame.header_digest_length == 0 || crc32c(&bhs) == bytes[BHS_LENGTH..BHS_LENGTH + DIGEST_LENGTH];
    let data_intact = frame.data_digest_length == 0 || crc32c(&bytes[start..padded]) == bytes[padded..];
    Received { bhs, data: bytes[start..end].to_vec(), header_intact, data_intact }
}
