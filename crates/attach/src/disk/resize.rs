//! A unit that has become larger or smaller while it is used: it says so with a unit attention (SBC-3, CAPACITY DATA HAS CHANGED), or
//! with an asynchronous message where the target sends those, and is asked for its size then; so it is where a new session has found it
//! larger.
//!
//! What has been added is served. What has gone is not: the unit refuses it, so that whoever counts on it gets an error and no data.

use std::sync::atomic::Ordering;

use lunette_scsi::client::capacity::{Capacity, read_capacity_10, read_capacity_16};
use lunette_scsi::client::{Malformed, UnitFacts, UnitIdentity};

use super::error::DiskError;
use super::unit::Unit;

/// What has become of the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resize {
    /// What it was, in bytes.
    pub before_bytes: u64,
    /// What it is, in bytes.
    pub now_bytes: u64,
}

impl Unit {
    /// Asks for the size, if the unit has said that it has changed.
    ///
    /// # Errors
    /// [`DiskError`]
    pub(super) fn look_at_size(&self) -> Result<Option<Resize>, DiskError> {
        if !self.link.take_resize() {
            return Ok(None);
        }
        let capacity = self.capacity().inspect_err(|_| self.link.note_resize())?;
        let is_served = capacity.blocks.checked_mul(capacity.block_length_bytes.into());
        if capacity.block_length_bytes != self.block_bytes
            || is_served.is_none_or(|b| i64::try_from(b).is_err())
        {
            self.link.note_exchange();
            let message = format!(
                "the disk has {} blocks of {} bytes now",
                capacity.blocks, capacity.block_length_bytes
            );
            return Err(DiskError::Io(message));
        }
        let before = self.told_blocks.swap(capacity.blocks, Ordering::SeqCst);
        if self.blocks.fetch_max(capacity.blocks, Ordering::SeqCst) < capacity.blocks {
            // When the session comes back, it is the larger one that is to be there.
            let facts = UnitFacts { capacity: Some(capacity), ..self.facts.clone() };
            self.link.session.handle().guard(self.link.lun, UnitIdentity::of(&facts).growing());
        }
        let block = u64::from(self.block_bytes);
        let resize = Resize { before_bytes: before * block, now_bytes: capacity.blocks * block };
        Ok((before != capacity.blocks).then_some(resize))
    }

    fn capacity(&self) -> Result<Capacity, DiskError> {
        let unclear = |error: Malformed| DiskError::Io(error.to_string());
        match self.link.ask(&read_capacity_16()) {
            Ok((capacity, _)) => capacity.map_err(unclear),
            Err(DiskError::Unfit(..)) => {
                let (capacity, _) = self.link.ask(&read_capacity_10())?;
                let too_large = || DiskError::Io("the unit does not tell how large it is".to_owned());
                capacity.map_err(unclear)?.ok_or_else(too_large)
            }
            Err(error) => Err(error),
        }
    }
}
