//! Reading and writing big-endian fields at fixed offsets of a header.

use crate::Bhs;

pub(crate) fn u16_at(bhs: &Bhs, at: usize) -> u16 {
    u16::from_be_bytes([bhs[at], bhs[at + 1]])
}

pub(crate) fn u32_at(bhs: &Bhs, at: usize) -> u32 {
    u32::from_be_bytes([bhs[at], bhs[at + 1], bhs[at + 2], bhs[at + 3]])
}

pub(crate) fn bytes_at<const N: usize>(bhs: &Bhs, at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&bhs[at..at + N]);
    bytes
}

#[inline]
pub(crate) fn put<const N: usize>(bhs: &mut Bhs, at: usize, bytes: [u8; N]) {
    bhs[at..at + N].copy_from_slice(&bytes);
}

/// Writes a DataSegmentLength (11.2.1.6), a 24-bit field; every caller's length is bounded by a negotiated
/// MaxRecvDataSegmentLength, which is below 2^24.
#[inline]
pub(crate) fn put_data_length(bhs: &mut Bhs, length: usize) {
    debug_assert!(length < 1 << 24);
    let [_, a, b, c] = (length as u32).to_be_bytes();
    put(bhs, 5, [a, b, c]);
}

#[inline]
pub(crate) const fn bit(set: bool, mask: u8) -> u8 {
    if set { mask } else { 0 }
}
