//! How much a session may keep of reads that were answered and not acknowledged (ErrorRecoveryLevel 1 and 2, docs/decisions/0017): less
//! where more sessions do, over all reactors, so that most of the buffers are left to commands.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Of the buffers, for one session and for all together.
const SHARE_OF_ONE: u64 = 8;
const SHARE_OF_ALL: u64 = 4;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct KeptReads {
    buffer_bytes: u64,
    keepers: Arc<AtomicUsize>,
}

/// A session that keeps something, until this is dropped.
#[derive(Debug)]
pub(crate) struct Keeper(Arc<AtomicUsize>);

impl KeptReads {
    /// Of so many bytes of buffers in all.
    pub(crate) fn new(buffer_bytes: u64) -> Self {
        Self { buffer_bytes, keepers: Arc::default() }
    }

    /// One more session keeps something.
    pub(crate) fn count(&self) -> Keeper {
        self.keepers.fetch_add(1, Ordering::Relaxed);
        Keeper(Arc::clone(&self.keepers))
    }

    /// What each session may keep now, in bytes.
    pub(crate) fn bytes_max(&self) -> u64 {
        let keepers = self.keepers.load(Ordering::Relaxed).max(1) as u64;
        (self.buffer_bytes / SHARE_OF_ONE).min(self.buffer_bytes / SHARE_OF_ALL / keepers)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_keep_no_more_than_a_quarter() {
        let kept = KeptReads::new(800);
        assert_eq!(kept.bytes_max(), 100);
        let mut keepers = vec![kept.count(), kept.count()];
        assert_eq!(kept.bytes_max(), 100);
        keepers.extend((0..18).map(|_| kept.count()));
        assert_eq!(kept.bytes_max(), 10);
        keepers.truncate(4);
        assert_eq!(kept.bytes_max(), 50);
    }
}
