//! How commands end: what the device server has said, or the driver must say itself, becomes the core's completion.

use lunette_iscsi::session::{Completion, TaskId, Transfer};
use lunette_scsi::{DataIn, Lun, Status};

use super::Reactor;
use super::fenced::needs_fence;
use super::session::{Medium, Segment};

/// What protection information takes behind the data of a block (SBC-3).
const PROTECTION_BYTES: usize = 8;

impl Reactor {
    /// There is no memory for a command: its initiator is to try again when others have ended, with fewer at a time.
    pub(super) fn finish_starved(&mut self, index: usize, id: TaskId) {
        if let Some(session) = self.sessions.get_mut(index) {
            session.core.narrow_window();
        }
        self.refuse(index, id, Status::TaskSetFull);
    }

    /// There was no memory for what a command brought unasked, and it was thrown away: the initiator is to have no more commands
    /// at a time than there is room for now.
    pub(super) fn finish_dropped(&mut self, index: usize, id: TaskId) {
        if let Some(session) = self.sessions.get_mut(index) {
            let places = session.contexts.iter().flatten().filter(|context| !context.is_starved).count();
            session.core.narrow_window_to(places as u32);
            session.unasked.dropped_bytes = session.first_burst();
        }
        self.refuse(index, id, Status::TaskSetFull);
    }

    /// Ends a command for a reason that its device server knows nothing of.
    pub(super) fn refuse(&mut self, index: usize, id: TaskId, status: Status) {
        if let Some(session) = self.sessions.get(index)
            && let (Some(view), Some(attachment)) = (session.core.task(id), &session.attachment)
        {
            attachment.nexus.refused(Lun::from_bytes(view.lun.0), status);
        }
        self.finish(index, id, &lunette_scsi::Completion::status(status));
    }

    /// Ends a command.
    pub(super) fn finish(&mut self, index: usize, id: TaskId, completion: &lunette_scsi::Completion) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        let mut context = session.take_context(id);
        session.relax_window();
        if let Some(times) = context.as_mut().and_then(|context| context.times.take()) {
            session.tell_times(self.shared.recorder.as_ref(), self.started.elapsed(), id, *times);
        }
        let out_length = context.as_ref().map_or(0, |context| context.out_length);
        let transfer = match &completion.data_in {
            DataIn::Parameter(bytes) => {
                parameter(bytes, session.core.task(id).map_or(0, |view| view.expected_in))
            }
            DataIn::Medium { length_bytes } => match context.and_then(|context| context.medium) {
                Some(medium) => Transfer::In { data: Segment::Medium(medium), length: *length_bytes },
                // The device server only says so after a read; without its buffer there is nothing to send.
                None => return self.finish(index, id, &hardware_error()),
            },
            DataIn::MediumData { length_bytes, block_length_bytes } => {
                let medium = context.and_then(|context| context.medium).and_then(Medium::into_buffer);
                let Some(mut buffer) = medium else { return self.finish(index, id, &hardware_error()) };
                close_up(&mut buffer, *block_length_bytes as usize);
                Transfer::In { data: Segment::Medium(Medium::Read(buffer)), length: *length_bytes }
            }
            DataIn::None if out_length > 0 => Transfer::Out { length: out_length.into() },
            DataIn::None => Transfer::None,
        };
        let transfer = match transfer {
            Transfer::In { data, length } if out_length > 0 => {
                Transfer::Both { data, length_in: length, length_out: out_length.into() }
            }
            one_way => one_way,
        };
        let sense = completion.sense.as_ref().map_or(&[][..], |sense| sense.as_bytes());
        // One connection keeps the order of its responses by itself.
        let fenced = session.links.len() > 1
            && session.core.task(id).is_some_and(|view| needs_fence(completion, view.cdb));
        let status = completion.status as u8;
        let completion = Completion { status, status_qualifier: 0, sense, transfer, fenced };
        session.core.complete(id, completion, &mut self.outbox);
    }
}

/// Parameter data for an initiator that can take `expected` bytes. No more is kept than is sent, which is what bounds what waits to be
/// sent; how much there was is told by the residual.
fn parameter(bytes: &[u8], expected: u32) -> Transfer<Segment> {
    let sent = &bytes[..bytes.len().min(expected as usize)];
    // It is cut to an allocation length of 32 bits.
    Transfer::In { length: bytes.len() as u32, data: Segment::Parameter(sent.into()) }
}

/// Moves the data of blocks together over the protection information behind each.
#[cold]
fn close_up(buffer: &mut [u8], block_length: usize) {
    let stored = block_length + PROTECTION_BYTES;
    for block in 1..buffer.len() / stored {
        buffer.copy_within(block * stored..block * stored + block_length, block * block_length);
    }
}

/// INTERNAL TARGET FAILURE, for what cannot happen.
pub(super) fn hardware_error() -> lunette_scsi::Completion {
    lunette_scsi::Completion::check_condition(lunette_scsi::SenseKey::HardwareError, 0x44, 0x00)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_parameter_data_as_much_is_kept_as_is_sent() {
        for (expected, kept) in [(0, 0), (4, 4), (100, 100), (101, 100), (u32::MAX, 100)] {
            let Transfer::In { length, data: Segment::Parameter(data) } = parameter(&[7; 100], expected)
            else {
                panic!("data goes in");
            };
            assert_eq!((length, data.len()), (100, kept), "{expected}");
        }
    }
}
