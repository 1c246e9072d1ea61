//! What is around the data of a PDU on the wire (RFC 7143, 11.1, 11.2): the header and its digest before it, padding and a digest behind
//! it.

use lunette_wire::digest::{Crc32c, DIGEST_LENGTH, crc32c, crc32c_of};
use lunette_wire::frame::{Digests, padding};
use lunette_wire::{BHS_LENGTH, Bhs};

const HEAD_LENGTH_MAX: usize = BHS_LENGTH + DIGEST_LENGTH;
const TAIL_LENGTH_MAX: usize = 3 + DIGEST_LENGTH;
const ZEROES: [u8; 3] = [0; 3];

/// The basic header segment, and its digest.
pub(super) struct Head {
    bytes: [u8; HEAD_LENGTH_MAX],
    length: u8,
}

impl Head {
    pub(super) const fn length(digests: Digests) -> usize {
        if digests.header { HEAD_LENGTH_MAX } else { BHS_LENGTH }
    }

    pub(super) fn of(bhs: &Bhs, digests: Digests) -> Self {
        let mut bytes = [0; HEAD_LENGTH_MAX];
        bytes[..BHS_LENGTH].copy_from_slice(bhs);
        if digests.header {
            bytes[BHS_LENGTH..].copy_from_slice(&crc32c(bhs));
        }
        Self { bytes, length: Self::length(digests) as u8 }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length.into()]
    }
}

/// What pads the data, and the digest of both.
#[derive(Clone, Copy)]
pub(super) struct Tail {
    bytes: [u8; TAIL_LENGTH_MAX],
    length: u8,
}

impl Tail {
    /// Behind so many bytes of data. Without data there is no digest.
    pub(super) const fn length(data_length: usize, digests: Digests) -> usize {
        padding(data_length) + if digests.data && data_length > 0 { DIGEST_LENGTH } else { 0 }
    }

    pub(super) fn of(data: &[u8], digests: Digests) -> Self {
        let mut tail = Self::padding(data.len());
        if digests.data && !data.is_empty() {
            let pad = usize::from(tail.length);
            let digest = crc32c_of(&[data, &ZEROES[..pad]]);
            tail.bytes[pad..pad + DIGEST_LENGTH].copy_from_slice(&digest);
            tail.length += DIGEST_LENGTH as u8;
        }
        tail
    }

    /// Behind data that has no digest.
    pub(super) fn padding(data_length: usize) -> Self {
        Self { bytes: [0; TAIL_LENGTH_MAX], length: padding(data_length) as u8 }
    }

    /// Behind data that is not known yet: [`Self::set_digest`] comes before it is sent.
    pub(super) fn awaited(data_length: usize, digests: Digests) -> Self {
        Self { bytes: [0; TAIL_LENGTH_MAX], length: Self::length(data_length, digests) as u8 }
    }

    /// Puts the digest where it goes: that of the data, and of the padding.
    pub(super) fn set_digest(&mut self, data: &Crc32c) {
        let pad = usize::from(self.length) - DIGEST_LENGTH;
        let mut digest = data.clone();
        digest.update(&ZEROES[..pad]);
        self.bytes[pad..pad + DIGEST_LENGTH].copy_from_slice(&digest.bytes());
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length.into()]
    }
}
