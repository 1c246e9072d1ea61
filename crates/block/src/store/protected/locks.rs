//! Locks of ranges of blocks: a block's data and its information are read together and changed together.

use std::ops::Range;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Blocks that share a lock: those of a large command need few locks, and two small commands seldom the same one.
const BLOCKS_OF_A_LOCK: u64 = 64;
const LOCKS: u64 = 1024;

/// All locks of a volume.
#[derive(Debug)]
pub(super) struct RangeLocks(Vec<RwLock<()>>);

impl RangeLocks {
    pub(super) fn new() -> Self {
        Self((0..LOCKS).map(|_| RwLock::new(())).collect())
    }

    /// Keeps writers from the blocks.
    pub(super) fn share(&self, blocks: &Range<u64>) -> Vec<RwLockReadGuard<'_, ()>> {
        let lock = |lock: &'_ usize| self.0[*lock].read().unwrap_or_else(PoisonError::into_inner);
        indices(blocks).iter().map(lock).collect()
    }

    /// The same, unless that would have to wait.
    pub(super) fn try_share(&self, blocks: &Range<u64>) -> Option<Vec<RwLockReadGuard<'_, ()>>> {
        indices(blocks).into_iter().map(|lock| self.0[lock].try_read().ok()).collect()
    }

    /// Keeps everybody else from the blocks.
    pub(super) fn take(&self, blocks: &Range<u64>) -> Vec<RwLockWriteGuard<'_, ()>> {
        let lock = |lock: &'_ usize| self.0[*lock].write().unwrap_or_else(PoisonError::into_inner);
        indices(blocks).iter().map(lock).collect()
    }
}

/// Which locks, each once and in rising order, so that nobody waits in a circle.
fn indices(blocks: &Range<u64>) -> Vec<usize> {
    let (first, end) = (blocks.start / BLOCKS_OF_A_LOCK, blocks.end.div_ceil(BLOCKS_OF_A_LOCK));
    if end.saturating_sub(first) >= LOCKS {
        return (0..LOCKS as usize).collect();
    }
    let mut indices: Vec<usize> = (first..end).map(|index| (index % LOCKS) as usize).collect();
    indices.sort_unstable();
    indices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_once_and_in_order() {
        for blocks in [0..1, 63..65, 0..64, 65_530..65_600, 100..100_000, 7..u64::MAX - 100] {
            let found = indices(&blocks);
            assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "{blocks:?}");
            assert!(!found.is_empty());
        }
        assert_eq!(indices(&(63..65)), [0, 1]);
        assert_eq!(indices(&(65_530..65_600)), [0, 1023]);
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let locks = RangeLocks::new();
        let shared = locks.share(&(0..10));
        assert!(locks.try_share(&(5..6)).is_some());
        drop(shared);
        let taken = locks.take(&(0..10));
        assert!(locks.try_share(&(5..6)).is_none());
        assert!(locks.try_share(&(64..65)).is_some());
        drop(taken);
        assert!(locks.try_share(&(5..6)).is_some());
    }
}
