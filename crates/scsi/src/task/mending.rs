//! A write to blocks that are marked as unreadable ([`crate::marks`]): the marks go with it, and stay gone.
//!
//! Written, flushed, state stored without the marks, marks taken away, in this order: a crash leaves the old block with
//! its mark, or the new one which was not answered yet, and never a block that was answered and cannot be read. Until the
//! state is stable, other writes meet the marks as well, and wait for that like the first.

use std::ops::Range;
use std::sync::Arc;

use super::{Event, Next, Place};
use crate::io::Io;
use crate::marks::Release;
use crate::unit::LogicalUnit;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Mending {
    unit: Arc<LogicalUnit>,
    blocks: Range<u64>,
    /// The unit is another than the command's.
    elsewhere: bool,
    stage: Stage,
    /// Where the command stands meanwhile.
    pub(super) place: Place,
}

/// What was asked for last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Write,
    Flush,
    Save(Release),
}

impl Mending {
    pub(super) fn new(unit: Arc<LogicalUnit>, blocks: Range<u64>, elsewhere: bool, place: Place) -> Mending {
        Mending { unit, blocks, elsewhere, stage: Stage::Write, place }
    }

    /// What was asked for has ended: what is next, or the event that the command goes on with.
    pub(super) fn ended<'a>(&mut self, event: Event<'a>) -> Result<Event<'a>, Next> {
        let Event::Io { result, .. } = &event else { return Ok(event) };
        let went_well = result.is_ok();
        let next = match self.stage {
            Stage::Write if went_well => {
                self.stage = Stage::Flush;
                Io::Flush
            }
            Stage::Flush if went_well => match self.unit.release_marks(&self.blocks) {
                Some(release) => {
                    self.stage = Stage::Save(release);
                    Io::SaveState
                }
                // The state of another write is stable.
                None => return Ok(event),
            },
            Stage::Save(release) if went_well => {
                self.unit.forget_marks(release);
                return Ok(event);
            }
            Stage::Save(_) => {
                self.unit.saved().owe();
                return Ok(event);
            }
            _ => return Ok(event),
        };
        Err(if self.elsewhere {
            Next::IoOn { naa: self.unit.identity().naa, io: next }
        } else {
            Next::Io(next)
        })
    }

    /// Nobody waits any more.
    pub(super) fn abandon(&self) {
        if let Stage::Save(_) = self.stage {
            self.unit.saved().owe();
        }
    }
}
