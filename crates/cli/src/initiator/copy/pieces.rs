//! What passes from the reading side of a copy to the writing one.

use super::endpoint::{Endpoint, Extent};
use crate::failure::Failure;

/// What the reading side hands to the writing one.
pub(super) enum Piece {
    Data { offset_bytes: u64, data: Vec<u8> },
    Empty { offset_bytes: u64, length_bytes: u64 },
}

/// Pieces that wait between the two sides: with those under way, what bounds the memory.
pub(super) const WAITING_MAX: usize = 8;

/// How a copy is cut: both sides read and write in the same pieces.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pieces {
    /// Each begins and ends at a multiple of this, but for the end of a file: a whole block on both sides.
    grain_bytes: u64,
    /// The longest; a multiple of the grain that both sides can transfer at once.
    pub(super) piece_bytes: usize,
    /// What holds nothing is left out.
    pub(super) sparse: bool,
}

impl Pieces {
    pub(super) fn new(
        source: &dyn Endpoint,
        destination: &dyn Endpoint,
        sparse: bool,
    ) -> Result<Pieces, Failure> {
        let grain = source.block_bytes().max(destination.block_bytes()) as usize;
        let most = source.piece_bytes().min(destination.piece_bytes());
        let piece_bytes = most / grain * grain;
        // Block lengths are powers of two on all disks that there are.
        let is_possible = grain.is_multiple_of(source.block_bytes() as usize)
            && grain.is_multiple_of(destination.block_bytes() as usize);
        if piece_bytes == 0 || !is_possible {
            return Err(Failure::scsi(
                format!(
                    "blocks of {} and {} bytes do not go together",
                    source.block_bytes(),
                    destination.block_bytes()
                ),
                Some("copy to a file first, then from there".to_owned()),
            ));
        }
        Ok(Pieces { grain_bytes: grain as u64, piece_bytes, sparse })
    }

    /// Of this grain and length, without what holds nothing.
    #[cfg(test)]
    pub(super) fn of(grain_bytes: u64, piece_bytes: usize) -> Pieces {
        Pieces { grain_bytes, piece_bytes, sparse: true }
    }

    /// The same with what holds nothing.
    pub(super) fn of_everything(self) -> Pieces {
        Pieces { sparse: false, ..self }
    }

    /// The part of an extent at `at` that is of whole grains: of one that is empty no more than it has, of one that is not
    /// everything up to the next boundary. At `end` everything ends.
    pub(super) fn cut(&self, extent: Extent, at: u64, end: u64) -> Extent {
        let stop = at.saturating_add(extent.length_bytes).min(end);
        let below = stop / self.grain_bytes * self.grain_bytes;
        let above = stop.div_ceil(self.grain_bytes).saturating_mul(self.grain_bytes).min(end);
        if extent.is_empty && (stop == end || below > at) {
            let stop = if stop == end { end } else { below };
            return Extent { length_bytes: stop - at, is_empty: true };
        }
        Extent { length_bytes: above - at, is_empty: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_cut_to_whole_blocks_of_both_sides() {
        let pieces = Pieces { grain_bytes: 4096, piece_bytes: 1 << 20, sparse: true };
        let cut = |is_empty, at, length_bytes| {
            let extent = pieces.cut(Extent { length_bytes, is_empty }, at, 100_000);
            (extent.length_bytes, extent.is_empty)
        };
        assert_eq!(cut(true, 0, 8192), (8192, true));
        assert_eq!(cut(true, 0, 9000), (8192, true), "no more than is empty");
        assert_eq!(cut(true, 0, 512), (4096, false), "not a whole block: read");
        assert_eq!(cut(false, 0, 512), (4096, false));
        assert_eq!(cut(false, 4096, 8192), (8192, false));
        assert_eq!(cut(true, 98_304, 1696), (1696, true), "the end of a file");
        assert_eq!(cut(false, 98_304, 1), (1696, false));
        assert_eq!(cut(true, 0, u64::MAX), (100_000, true));
    }
}
