//! Which bytes have space, and which read as zeros: GET LBA STATUS, where the unit knows it. What the journal has to make again is made
//! again first, so that nothing which was answered is taken for a hole.

use std::ops::Range;
use std::sync::atomic::Ordering;

use lunette_scsi::client::UnitFacts;
use lunette_scsi::client::lba_status::{BlockStatus, LbaExtent, get_lba_status};

use super::error::DiskError;
use super::unit::Unit;

/// What some bytes have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// Data, or nobody knows.
    Data,
    /// Space that is kept for them; they read as zeros.
    Reserved,
    /// No space; they read as zeros.
    Empty,
    /// No space; what is read there is not said.
    Undefined,
}

impl Space {
    /// What nothing was written to since its space was given back, and reads as zeros.
    #[must_use]
    pub fn is_zero(self) -> bool {
        matches!(self, Space::Reserved | Space::Empty)
    }

    fn of(status: BlockStatus, reads_zeros: bool) -> Space {
        match status {
            BlockStatus::Deallocated if reads_zeros => Space::Empty,
            BlockStatus::Deallocated => Space::Undefined,
            BlockStatus::Anchored if reads_zeros => Space::Reserved,
            BlockStatus::Anchored | BlockStatus::Mapped | BlockStatus::Other(_) => Space::Data,
        }
    }
}

/// Bytes in a row with the same space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// Which; at least one.
    pub bytes: Range<u64>,
    /// What they have.
    pub space: Space,
}

impl Unit {
    /// What these bytes have: extents that begin with the first of them and join, and end with the last of them or before it, as the
    /// unit tells with one command. Of no bytes nothing is told.
    ///
    /// # Errors
    /// [`DiskError`]
    pub(super) fn extents(&self, bytes: Range<u64>) -> Result<Vec<Extent>, DiskError> {
        self.cover(bytes.start, bytes.end.saturating_sub(bytes.start))?;
        if bytes.is_empty() {
            return Ok(Vec::new());
        }
        if !self.tells_space.load(Ordering::Relaxed) {
            return Ok(vec![Extent { bytes, space: Space::Data }]);
        }
        let block = u64::from(self.block_bytes);
        let blocks = bytes.start / block..bytes.end.div_ceil(block);
        let query = get_lba_status(blocks.start);
        match self.settled(&blocks, || self.link.ask(&query)) {
            Ok(Ok(told)) => {
                let reads_zeros = self.facts.capacity.is_some_and(|capacity| capacity.details.reads_zeros);
                Ok(within(&bytes, &told, block, reads_zeros))
            }
            // It said that its space is managed, and does not say how: it is not asked again.
            Ok(Err(error)) => {
                tracing::warn!(%error, "the unit does not tell which blocks have space");
                self.tells_space.store(false, Ordering::Relaxed);
                Ok(vec![Extent { bytes, space: Space::Data }])
            }
            Err(DiskError::Unfit(_, error)) => {
                tracing::info!(%error, "the unit does not tell which blocks have space");
                self.tells_space.store(false, Ordering::Relaxed);
                Ok(vec![Extent { bytes, space: Space::Data }])
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether a unit is asked at all: only one that manages its space has something to tell.
pub(super) fn tells_space(facts: &UnitFacts) -> bool {
    facts.capacity.is_some_and(|capacity| capacity.details.provisioning_managed)
}

/// The extents of a unit, as far as they are of these bytes; neighbours that have the same are one. The first block holds the first
/// byte.
fn within(bytes: &Range<u64>, told: &[LbaExtent], block_bytes: u64, reads_zeros: bool) -> Vec<Extent> {
    let mut all: Vec<Extent> = Vec::new();
    for extent in told {
        let start = extent.lba.saturating_mul(block_bytes).max(bytes.start);
        let end = extent.end().saturating_mul(block_bytes).min(bytes.end);
        let space = Space::of(extent.status, reads_zeros);
        match all.last_mut() {
            _ if start >= end => break,
            Some(last) if last.space == space => last.bytes.end = end,
            _ => all.push(Extent { bytes: start..end, space }),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: (u64, u32, BlockStatus) = (2, 6, BlockStatus::Mapped);
    const HOLE: (u64, u32, BlockStatus) = (8, 8, BlockStatus::Deallocated);
    const ANCHORED: (u64, u32, BlockStatus) = (16, 4, BlockStatus::Anchored);
    const BEYOND: (u64, u32, BlockStatus) = (20, u32::MAX, BlockStatus::Deallocated);

    fn told(all: &[(u64, u32, BlockStatus)], bytes: Range<u64>, zeros: bool) -> Vec<(u64, u64, Space)> {
        let extents: Vec<LbaExtent> =
            all.iter().map(|&(lba, blocks, status)| LbaExtent { lba, blocks, status }).collect();
        let within = within(&bytes, &extents, 512, zeros);
        within.into_iter().map(|extent| (extent.bytes.start, extent.bytes.end, extent.space)).collect()
    }

    #[test]
    fn extents_are_cut_to_the_bytes_that_were_asked_for() {
        let all = [DATA, HOLE, ANCHORED, BEYOND];
        let expected = [
            (1030, 4096, Space::Data),
            (4096, 8192, Space::Empty),
            (8192, 10_240, Space::Reserved),
            (10_240, 20_000, Space::Empty),
        ];
        assert_eq!(told(&all, 1030..20_000, true), expected);
        assert_eq!(told(&all, 1024..1025, true), [(1024, 1025, Space::Data)]);
        assert_eq!(told(&all[..2], 1024..20_000, true).len(), 2, "the unit tells less");
        assert_eq!(told(&[(u64::MAX - 1, 1, BlockStatus::Mapped)], 0..512, true), []);
    }

    #[test]
    fn what_does_not_read_as_zeros_is_no_zero() {
        let expected = [(1024, 4096, Space::Data), (4096, 8192, Space::Undefined), (8192, 9000, Space::Data)];
        assert_eq!(told(&[DATA, HOLE, ANCHORED], 1024..9000, false), expected);
        let later = [(2, 6, BlockStatus::Other(9)), (8, 1, BlockStatus::Mapped)];
        assert_eq!(told(&later, 1024..4608, true), [(1024, 4608, Space::Data)]);
        let zero = [Space::Data, Space::Reserved, Space::Empty, Space::Undefined].map(Space::is_zero);
        assert_eq!(zero, [false, true, true, false]);
    }
}
