//! How much a session may keep of reads that were answered and not acknowledged (ErrorRecoveryLevel 1 and 2, docs/decisions/0017): less
//! where all sessions together, over all reactors, keep so much that too little of the buffers is left to commands.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Of the buffers, for one session and for all together.
const SHARE_OF_ONE: u64 = 8;
const SHARE_OF_ALL: u64 = 4;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct KeptReads {
    buffer_bytes: u64,
    all: Arc<All>,
}

#[derive(Debug, Default)]
struct All {
    keepers: AtomicUsize,
    bytes: AtomicU64,
}

/// What one session keeps, as it counts among all.
#[derive(Debug)]
pub(crate) struct Keeper {
    all: Arc<All>,
    bytes: u64,
}

impl KeptReads {
    /// Of so many bytes of buffers in all.
    pub(crate) fn new(buffer_bytes: u64) -> Self {
        Self { buffer_bytes, all: Arc::default() }
    }

    /// A session, which keeps nothing yet.
    pub(crate) fn keeper(&self) -> Keeper {
        Keeper { all: Arc::clone(&self.all), bytes: 0 }
    }

    /// What each session may keep now, in bytes: no more than its part of what all may, once all keep more than that.
    pub(crate) fn bytes_max(&self) -> u64 {
        let all_max = self.buffer_bytes / SHARE_OF_ALL;
        let one_max = self.buffer_bytes / SHARE_OF_ONE;
        if self.all.bytes.load(Ordering::Relaxed) <= all_max {
            return one_max;
        }
        one_max.min(all_max / self.all.keepers.load(Ordering::Relaxed).max(1) as u64)
    }
}

impl Keeper {
    /// The session keeps so many bytes now.
    pub(crate) fn note(&mut self, bytes: u64) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        let (keeps, kept) = (bytes > 0, before > 0);
        // At once: nobody is to see a session twice, or not at all.
        if keeps && !kept {
            self.all.keepers.fetch_add(1, Ordering::Relaxed);
        } else if kept && !keeps {
            self.all.keepers.fetch_sub(1, Ordering::Relaxed);
        }
        if bytes >= before {
            self.all.bytes.fetch_add(bytes - before, Ordering::Relaxed);
        } else {
            self.all.bytes.fetch_sub(before - bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.note(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_that_keep_much_get_a_part_of_a_quarter_and_others_what_they_have() {
        let kept = KeptReads::new(800);
        assert_eq!(kept.bytes_max(), 100);
        let mut keepers: Vec<Keeper> = (0..20).map(|_| kept.keeper()).collect();
        keepers.iter_mut().for_each(|keeper| keeper.note(10));
        assert_eq!(kept.bytes_max(), 100, "all have a quarter, and no more");
        keepers[0].note(11);
        assert_eq!(kept.bytes_max(), 10);
        keepers[1].note(0);
        assert_eq!(kept.bytes_max(), 100);
        keepers[2].note(90);
        assert_eq!(kept.bytes_max(), 200 / 19);
        keepers.truncate(3);
        assert_eq!(kept.bytes_max(), 100);
        keepers.clear();
        let [bytes, keepers] =
            [kept.all.bytes.load(Ordering::Relaxed), kept.all.keepers.load(Ordering::Relaxed) as u64];
        assert_eq!((bytes, keepers), (0, 0));
    }
}
