//! A unit that tells something else about itself while it is used, whose target tells that it has other units, or has none at this number
//! (SPC-4, INQUIRY DATA HAS CHANGED, REPORTED LUNS DATA HAS CHANGED, LOGICAL UNIT NOT SUPPORTED): it may have become another one, and is
//! asked who it is. Its label, which others may change (DEVICE IDENTIFIER CHANGED), is no part of that.

use lunette_scsi::client::UnitIdentity;

use super::error::DiskError;
use super::open::probe;
use super::unit::Unit;

impl Unit {
    /// Asks the unit who it is, if it may be another one by what was said. Nothing is read or written any more where it is
    /// another one; until this is called, everything goes on.
    ///
    /// # Errors
    /// [`DiskError`]: it is, or it does not say now who it is; then the next call asks again.
    pub(super) fn look_at_identity(&self) -> Result<(), DiskError> {
        if !self.link.take_renaming() {
            return Ok(());
        }
        let unclear = |why: String| {
            self.link.note_renaming();
            DiskError::Io(format!("the disk does not say whether it is the one that it was: {why}"))
        };
        let facts = probe(&self.link).map_err(|error| unclear(error.to_string()))?;
        if let Some(sense) = &facts.not_ready {
            return Err(unclear(sense.to_string()));
        }
        let [was, is] = [&self.facts, &facts].map(UnitIdentity::of);
        if was.is_same_unit(&is) {
            return Ok(());
        }
        self.link.note_exchange();
        Err(DiskError::Io(format!("another disk is in its place: it was {was}, and is {is}")))
    }
}
