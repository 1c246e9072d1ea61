//! Cut-through: the data of a long write goes to a store that only copies as it comes, out of the buffer that it was read into, while
//! that is in the processor's caches (docs/decisions/0047).
//!
//! What goes this way is always the beginning of a command's data. Whatever is in its way, the rest is gathered in the command's buffer
//! and written from there. So nothing depends on it: a command all of whose data is in the store already has its turn as any other.

use std::sync::Arc;

use lunette_block::{Volume, Written};
use lunette_iscsi::session::TaskId;
use lunette_scsi::{Lun, Terms, Unhindered};
use lunette_wire::LunField;

use super::Reactor;
use super::commands::store_tag;
use super::receive::LONG_DATA_BYTES;
use super::session::Attachment;
use super::waiting::attribute;
use crate::task_times::Stage;

/// Data segments from this length on: for short ones a call of the store each costs more than gathering them.
pub(super) const SEGMENT_BYTES_MIN: usize = LONG_DATA_BYTES;

/// Less than this is kept until more of its segment has come: a call of the store would cost more than the data.
pub(super) const PART_BYTES_MIN: usize = 16 << 10;

/// The store gets whole pages of the page cache: the kernel might have to read what is missing of others.
const PAGE_BYTES: u64 = 4 << 10;

/// What has come of a data segment and was not stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) data: &'a [u8],
    /// Where it begins in its command's data, in bytes.
    pub(super) offset: usize,
    /// Where its segment ends there.
    pub(super) end: usize,
}

impl Reactor {
    /// Stores the next data of a task that collects its data, as [`store`] does.
    pub(super) fn cut_through(&mut self, index: usize, id: TaskId, part: Part<'_>) -> Option<usize> {
        let session = self.sessions.get_mut(index)?;
        let view = session.core.task(id).filter(|view| !view.aborted && view.extended_cdb.is_empty())?;
        let context = session.contexts.get_mut(id.slot())?.as_mut().filter(|context| context.id == id)?;
        // It is told how much it collects when its turn has come.
        let collects_all =
            context.out_length == view.expected_out && !context.in_store && !context.is_waiting;
        if !collects_all
            // Where the rest finds no memory it is told to come again, and must have done nothing.
            || context.is_unasked
            || context.out_stored as usize != part.offset
            // What is sent again is gathered.
            || session.core.parameters().error_recovery_level > 0
            || self.company.wants_pieces(index, view.expected_out as usize)
        {
            return None;
        }
        let terms = Terms {
            attribute: attribute(view.attribute),
            priority: view.priority,
            data_out_bytes: Some(view.expected_out),
            key: store_tag(index, id),
        };
        let attachment = session.attachment.as_ref()?;
        let stage = context.times.as_mut().map(|times| times.enter(self.started.elapsed(), Stage::Store));
        let before = (context.out_stored > 0).then_some(context.alone_count);
        let stored = store(attachment, (Lun::from_bytes(view.lun.0), view.cdb), &terms, part, before);
        if let (Some(times), Some(stage)) = (&mut context.times, stage) {
            times.enter(self.started.elapsed(), stage);
        }
        let Stored { bytes: stored, alone_count } = stored?;
        context.out_stored += stored as u32;
        context.is_unstable |= stored > 0;
        context.alone_count = alone_count;
        Some(stored)
    }

    /// Stores the immediate data of a task that has begun to collect the rest, and has memory for it.
    pub(super) fn cut_through_immediate(&mut self, index: usize, id: TaskId) {
        let context = self.sessions.get_mut(index).and_then(|session| session.context(id));
        let Some(context) = context else { return };
        let end = context.immediate_bytes as usize;
        if end == 0 || (context.out_length as usize) < end + SEGMENT_BYTES_MIN {
            return;
        }
        let Some(buffer) = context.data_out.take() else { return };
        let stored =
            buffer.get(..end).and_then(|data| self.cut_through(index, id, Part { data, offset: 0, end }));
        let Some(session) = self.sessions.get_mut(index) else { return };
        let Some(context) = session.contexts.get_mut(id.slot()).and_then(Option::as_mut) else { return };
        let rest = context.out_length - context.immediate_bytes;
        let is_all_that_comes_unasked = session.core.bytes_to_solicit(id, context.out_length) == rest;
        // If it has no room for the rest, it goes back: the next one's data comes into the same memory then, which is in the caches.
        let is_too_small = buffer.len() < context.out_length as usize;
        if stored.is_none() || !is_all_that_comes_unasked || !is_too_small {
            context.data_out = Some(buffer);
        }
    }

    /// Whether the long data of a write for this unit would go to its store at once, or as it comes.
    pub(super) fn is_copied(&self, index: usize, lun: LunField, length_bytes: usize) -> bool {
        let Some(session) = self.sessions.get(index) else { return false };
        let volume = session.attachment.as_ref().and_then(|attachment| {
            let place = attachment.nexus.place_of(Lun::from_bytes(lun.0))?;
            attachment.target.volumes.get(place)
        });
        volume.is_some_and(|volume| is_copied(volume, length_bytes))
            && session.core.parameters().error_recovery_level == 0
            && !self.company.wants_pieces(index, length_bytes)
    }
}

/// What was stored of a part.
struct Stored {
    bytes: usize,
    /// How many commands have been alone at the medium.
    alone_count: u64,
}

/// Stores a part of a write's data, if it is long enough or all that comes of its segment, up to the last whole page. `None`: the rest
/// of the command's data is to be gathered. Without any data it says whether the segment would be stored.
///
/// Each part is looked at as if it were a command of its own: the unit may have been stopped, reserved or protected meanwhile, or
/// somebody waits for this command to end, or has been alone at the medium since the part `before`, or not long ago.
fn store(
    attachment: &Attachment,
    (lun, cdb): (Lun, &[u8; 16]),
    terms: &Terms,
    part: Part<'_>,
    before: Option<u64>,
) -> Option<Stored> {
    let way = attachment.nexus.way_to(lun)?;
    let volume = attachment.target.volumes.get(way.place())?;
    let command = Unhindered::begin(way, cdb, terms)?;
    let length = command.length_bytes();
    let alone_count = command.alone_count();
    let is_plain = command.writes()
        && before.is_none_or(|before| before == alone_count)
        && terms.data_out_bytes == Some(length)
        && part.end <= length as usize
        && is_copied(volume, part.data.len())
        && command.may_store_early();
    if !is_plain {
        return None;
    }
    let place = |offset: usize| command.offset_bytes() + offset as u64;
    let (begins_page, ends_page) =
        (place(part.offset).is_multiple_of(PAGE_BYTES), place(part.end).is_multiple_of(PAGE_BYTES));
    if !(begins_page || part.offset == 0) || !(ends_page || part.end == length as usize) {
        return None;
    }
    let bytes = store_pages(volume, place(part.offset), part)?;
    Some(Stored { bytes, alone_count })
}

/// Whether a write of so many bytes is a copy, of its data alone.
fn is_copied(volume: &Volume, length_bytes: usize) -> bool {
    // What has protection information with it is longer.
    const ANY: u64 = 1 << 20;
    volume.copied_piece_bytes(length_bytes).is_some() && volume.stored_bytes(ANY) == ANY
}

fn store_pages(volume: &Arc<Volume>, place: u64, part: Part<'_>) -> Option<usize> {
    let Part { data, offset, end } = part;
    let excess = (place + data.len() as u64) % PAGE_BYTES;
    let whole = match data.len() {
        length if offset + length == end => length,
        length if length < PART_BYTES_MIN => 0,
        length => length - excess as usize,
    };
    let is_stored = whole == 0 || volume.write_at_once(place, &data[..whole], false) == Written::Done;
    is_stored.then_some(whole)
}
