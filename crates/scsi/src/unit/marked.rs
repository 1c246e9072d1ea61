//! The blocks of a logical unit that initiators have marked as unreadable ([`crate::marks`]), and where they are kept.

use std::ops::Range;

use super::LogicalUnit;
use crate::marks::{Full, Mark, Marks, Release};
use crate::saved::Section;

impl LogicalUnit {
    /// The blocks that initiators have marked as unreadable.
    pub(crate) fn marks(&self) -> &Marks {
        &self.marks
    }

    /// Marks blocks; to be saved afterwards.
    pub(crate) fn set_marks(&self, blocks: Range<u64>, mark: Mark) -> Result<(), Full> {
        self.marks.set(blocks, mark, |bytes| {
            self.watch.note_marks(true);
            self.saved.set_section(Section::Marks, bytes);
        })
    }

    /// See [`Marks::release`]; the state is to be saved then, and [`Self::forget_marks`] called.
    pub(crate) fn release_marks(&self, blocks: &Range<u64>) -> Option<Release> {
        self.marks.release(blocks, |bytes| self.saved.set_section(Section::Marks, bytes))
    }

    /// A state without these marks is stable.
    pub(crate) fn forget_marks(&self, release: Release) {
        self.marks.forget(release, || self.watch.note_marks(false));
    }
}
