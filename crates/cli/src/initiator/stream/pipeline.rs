//! Commands under way on one disk, each until it ends well or cannot.

use std::collections::VecDeque;

use lunette_scsi::client::{Command, DoesNotFit};

use super::super::disk::{Disk, Verdict, judge, pause};
use super::super::port::Done;
use super::flow::{Flow, Sent};
use super::{OTHERS_BYTES_MAX, OTHERS_MAX, QUESTIONS_MAX};
use crate::failure::Failure;

/// Buffers that are kept to be used again.
const SPARE_MAX: usize = 64;

/// One command under way.
pub(super) struct Slot {
    pub(super) tag: u64,
    lba: u64,
    command: Command,
    tries: u32,
    /// What it says of the way; nothing, where it takes as long as the unit likes.
    sent: Option<Sent>,
    /// How much it makes the unit work on without moving it, in bytes.
    works_on_bytes: u64,
}

impl Slot {
    fn of(lba: u64, command: Command, sent: Option<Sent>, works_on_bytes: u64) -> Slot {
        Slot { tag: 0, lba, command, tries: 0, sent, works_on_bytes }
    }
}

/// A command that has ended.
pub(super) struct Ended {
    pub(super) tag: u64,
    /// The session that it counts as of.
    pub(super) session: u32,
    /// Its buffer, or why it did not end well.
    pub(super) result: Result<Vec<u8>, Failure>,
}

/// Commands under way on one disk.
pub(super) struct Pipeline {
    pub(super) flow: Flow,
    pub(super) slots: VecDeque<Slot>,
    /// No command that is begun from now on has a smaller one.
    next_tag: u64,
    /// How many are with the unit.
    under_way: usize,
    /// Refused for the moment (BUSY, TASK SET FULL): sent again when another one has ended.
    deferred: VecDeque<(u64, Vec<u8>)>,
    /// How many the unit takes at once, as it has shown; at least 1, and no more than were asked for.
    depth: usize,
    pub(super) depth_max: usize,
    /// Commands that ended well since the depth was changed.
    good: usize,
    /// Buffers to be used again.
    spare: Vec<Vec<u8>>,
}

impl Pipeline {
    pub(super) fn new(flow: Flow) -> Pipeline {
        let depth = flow.commands_max();
        Pipeline {
            flow,
            slots: VecDeque::new(),
            next_tag: 0,
            under_way: 0,
            deferred: VecDeque::new(),
            depth,
            depth_max: depth,
            good: 0,
            spare: Vec::new(),
        }
    }

    /// Another command may be begun.
    pub(super) fn has_room(&self) -> bool {
        self.under_way + self.deferred.len() < self.depth && self.flow.has_room()
    }

    /// Another command may be begun that moves next to nothing and makes the unit work on so many bytes.
    pub(super) fn has_room_for_other(&self, works_on_bytes: u64) -> bool {
        let others = self.slots.iter().filter(|slot| slot.sent.is_none());
        let (count, bytes) =
            others.fold((0, 0), |(count, bytes), slot| (count + 1, bytes + slot.works_on_bytes));
        let fits = bytes == 0 || bytes + works_on_bytes <= OTHERS_BYTES_MAX;
        self.has_room() && count < OTHERS_MAX && fits
    }

    /// How many blocks a command should move, of at most `most`.
    pub(super) fn piece_blocks(&self, block_bytes: u32, most: u32) -> u64 {
        (self.flow.piece_bytes() / u64::from(block_bytes)).clamp(1, most.into())
    }

    pub(super) fn buffer(&mut self, length: usize) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.resize(length, 0);
        buffer
    }

    /// Takes a buffer back.
    pub(super) fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(buffer);
        }
    }

    /// A command may be begun that moves next to nothing, takes the unit no time and is answered with what others wait for: the way
    /// may be full, and a quarter of the commands may be such.
    pub(super) fn has_room_for_question(&self) -> bool {
        let questions = self.slots.iter().filter(|slot| slot.sent.is_none()).count();
        self.under_way + self.deferred.len() < self.depth
            && questions < QUESTIONS_MAX.min(self.depth.div_ceil(4))
    }

    /// Sends a read or a write, and tells its tag.
    pub(super) fn start(
        &mut self,
        disk: &mut Disk,
        lba: u64,
        command: Command,
        data: Vec<u8>,
    ) -> Result<u64, Failure> {
        let sent = self.flow.sent(disk.port.now(), data.len() as u64);
        self.begin(disk, Slot::of(lba, command, Some(sent), 0), data)
    }

    /// Sends a command that moves next to nothing and makes the unit work on so many bytes, and tells its tag.
    pub(super) fn start_unmeasured(
        &mut self,
        disk: &mut Disk,
        lba: u64,
        command: Command,
        data: Vec<u8>,
        works_on_bytes: u64,
    ) -> Result<u64, Failure> {
        self.begin(disk, Slot::of(lba, command, None, works_on_bytes), data)
    }

    fn begin(&mut self, disk: &mut Disk, slot: Slot, data: Vec<u8>) -> Result<u64, Failure> {
        let tag = disk.next_tag;
        disk.next_tag += 1;
        self.next_tag = disk.next_tag;
        disk.port.start(disk.lun, tag, &slot.command, data)?;
        self.under_way += 1;
        self.slots.push_back(Slot { tag, ..slot });
        Ok(tag)
    }

    /// A tag that is above those of all commands that were begun, and not above that of the next one.
    pub(super) fn next_tag(&self) -> u64 {
        self.next_tag
    }

    /// True when no command is left that was begun before the one with this tag.
    pub(super) fn has_ended_before(&self, tag: u64) -> bool {
        // They are in the order of their tags.
        self.slots.front().is_none_or(|slot| slot.tag >= tag)
    }

    /// Forgets a command that has ended in a failure of its session.
    pub(super) fn forget(&mut self, tag: u64) {
        self.slots.retain(|slot| slot.tag != tag);
        self.under_way -= 1;
    }

    /// Sends a command again.
    fn resend(&mut self, disk: &mut Disk, tag: u64, mut data: Vec<u8>) -> Result<(), Failure> {
        let now = disk.port.now();
        let slot = self.slots.iter_mut().find(|slot| slot.tag == tag);
        let slot = slot.ok_or_else(|| Failure::internal("a command is sent again that has ended"))?;
        data.resize(slot.command.data_in_bytes().max(slot.command.data_out_bytes()) as usize, 0);
        slot.sent = slot.sent.map(|_| self.flow.sent(now, data.len() as u64));
        disk.port.start(disk.lun, tag, &slot.command, data)?;
        self.under_way += 1;
        Ok(())
    }

    /// The unit has no room for more than there are: a narrower way, which widens again as long as all goes well.
    fn narrow(&mut self) {
        (self.depth, self.good) = (self.under_way.max(1), 0);
    }

    fn widen(&mut self) {
        self.good += 1;
        if self.good > self.depth && self.depth < self.depth_max {
            (self.depth, self.good) = (self.depth + 1, 0);
        }
    }

    /// Waits until one more command has ended, and is not to be sent again.
    ///
    /// # Errors
    /// The session.
    pub(super) fn finish(&mut self, disk: &mut Disk) -> Result<Ended, Failure> {
        loop {
            if self.under_way == 0
                && let Some((tag, data)) = self.deferred.pop_front()
            {
                // It was refused although nothing of ours was there: whoever fills the unit needs a moment.
                pause();
                if let Some(slot) = self.slots.iter_mut().find(|slot| slot.tag == tag) {
                    slot.tries += 1;
                }
                self.resend(disk, tag, data)?;
            }
            let done = disk.port.finish()?;
            let now = disk.port.now();
            self.under_way -= 1;
            let index = self.slots.iter().position(|slot| slot.tag == done.tag);
            let index = index.ok_or_else(|| Failure::internal("a command ended that was not sent"))?;
            let slot = &mut self.slots[index];
            match judge(&disk.name, &slot.command, &done, slot.tries) {
                Verdict::Good => {
                    if let Some(sent) = slot.sent {
                        self.flow.done(now, sent);
                    }
                    self.widen();
                    if let Some((tag, data)) = self.deferred.pop_front() {
                        self.resend(disk, tag, data)?;
                    }
                    return self.ended(index, done.session, |slot| slot.whole(&disk.name, done));
                }
                Verdict::Again => {
                    slot.sent.into_iter().for_each(|sent| self.flow.refused(sent));
                    slot.tries += 1;
                    self.resend(disk, done.tag, done.data)?;
                }
                Verdict::Later => {
                    slot.sent.into_iter().for_each(|sent| self.flow.refused(sent));
                    self.narrow();
                    self.deferred.push_back((done.tag, done.data));
                }
                Verdict::Failed(failure) => {
                    slot.sent.into_iter().for_each(|sent| self.flow.refused(sent));
                    return self.ended(index, done.session, |slot| Err(slot.placed(failure)));
                }
            }
        }
    }

    fn ended(
        &mut self,
        index: usize,
        session: u32,
        result: impl FnOnce(&Slot) -> Result<Vec<u8>, Failure>,
    ) -> Result<Ended, Failure> {
        let slot = self.slots.remove(index);
        let slot = slot.ok_or_else(|| Failure::internal("a command ended that was not sent"))?;
        Ok(Ended { tag: slot.tag, session, result: result(&slot) })
    }
}

impl Slot {
    /// The data of a read, if all of it came: GOOD with less is an error, never a short file. Other answers may be shorter than
    /// what was asked for.
    fn whole(&self, name: &str, done: Done) -> Result<Vec<u8>, Failure> {
        let wanted = self.command.data_in_bytes() as usize;
        if self.sent.is_some() && done.data.len() < wanted {
            let came = done.data.len();
            let message = format!(
                "{name}: the target answered {} with GOOD, but sent {came} of {wanted} bytes",
                self.command.name()
            );
            return Err(Failure::scsi(
                message,
                Some("the target does not follow the standard here".to_owned()),
            ));
        }
        Ok(done.data)
    }

    /// Says where on the disk it was; a flush is of all of it.
    fn placed(&self, failure: Failure) -> Failure {
        if self.command.is_flush() { failure } else { failure.with_place(&format!("at block {}", self.lba)) }
    }
}

pub(super) fn does_not_fit(error: DoesNotFit) -> Failure {
    Failure::internal(&error.to_string())
}
