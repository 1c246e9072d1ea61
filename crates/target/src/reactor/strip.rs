//! Short answers one behind the other in one buffer, as they go on the wire: the data of a read comes from the store to where it is sent
//! from, and all of them are one slice of one write.

use lunette_block::{Buffer, BufferPool};
use lunette_wire::digest::crc32c;
use lunette_wire::frame::{Digests, padding};
use lunette_wire::{BHS_LENGTH, Bhs};

use super::framing::{Head, Tail};

/// The longest, in bytes: about thirty answers of 4 KiB, which stay in the processor's second-level cache until they are sent.
const STRIP_BYTES_MAX: usize = 128 << 10;

/// See the module's documentation. It has room for some more PDUs behind those that are in it.
pub(super) struct Strip {
    buffer: Buffer,
    filled: usize,
}

/// Bytes of a PDU with so much data.
fn pdu_length(data_length: usize, digests: Digests) -> usize {
    Head::length(digests) + data_length + Tail::length(data_length, digests)
}

impl Strip {
    /// For as many as `count` PDUs with so many bytes of data each. `None` where there is no memory, or too little for one.
    pub(super) fn new(pool: &BufferPool, data_length: usize, count: usize, digests: Digests) -> Option<Self> {
        let wanted = pdu_length(data_length, digests).saturating_mul(count);
        // The pool takes as much for less.
        let length =
            wanted.checked_next_power_of_two().map_or(STRIP_BYTES_MAX, |length| length.min(STRIP_BYTES_MAX));
        let strip = Self { buffer: pool.allocate(length)?, filled: 0 };
        strip.has_room(data_length, digests).then_some(strip)
    }

    /// For as many PDUs without data as the smallest buffer holds.
    pub(super) fn of_headers(pool: &BufferPool, digests: Digests) -> Option<Self> {
        const LENGTH: usize = 4096;
        Self::new(pool, 0, LENGTH / pdu_length(0, digests), digests)
    }

    /// The PDUs that are in it.
    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.get(..self.filled).unwrap_or_default()
    }

    /// Bytes of the PDUs that are in it.
    pub(super) const fn length(&self) -> usize {
        self.filled
    }

    pub(super) fn has_room(&self, data_length: usize, digests: Digests) -> bool {
        self.buffer.len() - self.filled >= pdu_length(data_length, digests)
    }

    /// Where the data of the next PDU goes, if there is room for it. Nothing is in it until it is closed.
    pub(super) fn room(&mut self, data_length: usize, digests: Digests) -> Option<&mut [u8]> {
        let head_length = Head::length(digests);
        let place = self.buffer.get_mut(self.filled..self.filled + pdu_length(data_length, digests))?;
        place.get_mut(head_length..head_length + data_length)
    }

    /// Makes a PDU of this header and of what is in the room; of no more of it than `data_length`. Answers its length in bytes.
    pub(super) fn close(&mut self, bhs: &Bhs, data_length: usize, digests: Digests) -> usize {
        let length = pdu_length(data_length, digests);
        let Some(place) = self.buffer.get_mut(self.filled..self.filled + length) else { return 0 };
        let (head, rest) = place.split_at_mut(Head::length(digests));
        // Both of a known length: no call of a function.
        head[..BHS_LENGTH].copy_from_slice(bhs);
        if let Some(digest) = head[BHS_LENGTH..].first_chunk_mut() {
            *digest = crc32c(bhs);
        }
        // The digest covers the padding, which lies behind the data here.
        let (padded, digest) = rest.split_at_mut(data_length + padding(data_length));
        if padded.len() > data_length {
            padded[data_length..].fill(0);
        }
        if let Some(digest) = digest.first_chunk_mut() {
            *digest = crc32c(padded);
        }
        self.filled += length;
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_DIGESTS: Digests = Digests { header: false, data: false };
    const BOTH: Digests = Digests { header: true, data: true };

    fn strip(data_length: usize, count: usize, digests: Digests) -> Strip {
        Strip::new(&BufferPool::new(1 << 20), data_length, count, digests).unwrap()
    }

    #[test]
    fn pdus_lie_one_behind_the_other_as_on_the_wire() {
        let mut strip = strip(5, 2, BOTH);
        assert_eq!(strip.buffer.len(), 128);
        for (index, data) in [[1_u8; 5], [2; 5]].iter().enumerate() {
            strip.room(5, BOTH).unwrap().copy_from_slice(data);
            assert_eq!(strip.close(&[index as u8; BHS_LENGTH], 5, BOTH), 48 + 4 + 8 + 4);
        }
        assert!(strip.room(5, BOTH).is_none(), "it was made for two");
        let expected: Vec<u8> = [(0, 1), (1, 2)]
            .iter()
            .flat_map(|&(index, byte)| {
                let (bhs, data) = ([index; BHS_LENGTH], [byte, byte, byte, byte, byte, 0, 0, 0]);
                [&bhs[..], &crc32c(&bhs), &data, &crc32c(&data)].concat()
            })
            .collect();
        assert_eq!((strip.bytes(), strip.length()), (&expected[..], expected.len()));
    }

    #[test]
    fn what_was_not_closed_is_not_there_and_less_may_be_sent_than_was_read() {
        let mut strip = strip(512, 3, NO_DIGESTS);
        strip.room(512, NO_DIGESTS).unwrap().fill(9);
        assert_eq!(strip.bytes(), b"");
        strip.room(512, NO_DIGESTS).unwrap().fill(7);
        assert_eq!(strip.close(&[0; BHS_LENGTH], 6, NO_DIGESTS), 48 + 8);
        assert_eq!(strip.bytes()[48..], [7, 7, 7, 7, 7, 7, 0, 0]);
        assert!(strip.has_room(512, NO_DIGESTS));
    }

    #[test]
    fn it_is_bounded() {
        let strip = strip(4096, 4096, NO_DIGESTS);
        assert_eq!(strip.buffer.len(), STRIP_BYTES_MAX);
        let pool = BufferPool::new(1 << 20);
        assert!(Strip::new(&pool, STRIP_BYTES_MAX, 1, NO_DIGESTS).is_none());
        assert_eq!(pool.in_use_bytes(), 0);
    }
}
