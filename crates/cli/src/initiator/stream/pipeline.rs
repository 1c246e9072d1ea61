//! Commands under way on one disk, each until it ends well or cannot.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lunette_scsi::client::{Command, DoesNotFit};

use super::super::disk::{Disk, Verdict, judge, pause};
use super::super::port::Done;
use super::flow::{Flow, Sent};
use super::{OTHERS_BYTES_MAX, OTHERS_MAX};
use crate::failure::Failure;

/// Buffers that are kept to be used again.
const SPARE_MAX: usize = 64;

/// One command under way.
pub(super) struct Slot {
    pub(super) tag: u64,
    pub(super) lba: u64,
    command: Command,
    tries: u32,
    /// What it says of the way; nothing, where it takes as long as the unit likes.
    sent: Option<Sent>,
    /// How much it makes the unit work on without moving it, in bytes.
    works_on_bytes: u64,
    /// What was read, once it is there.
    pub(super) data: Option<Vec<u8>>,
}

impl Slot {
    fn of(lba: u64, command: Command, sent: Option<Sent>, works_on_bytes: u64) -> Slot {
        Slot { tag: 0, lba, command, tries: 0, sent, works_on_bytes, data: None }
    }
}

/// Commands under way on one disk.
pub(super) struct Pipeline {
    pub(super) flow: Flow,
    began: Instant,
    pub(super) slots: VecDeque<Slot>,
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
            began: Instant::now(),
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

    fn now(&self) -> Duration {
        self.began.elapsed()
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

    /// Sends a read or a write.
    pub(super) fn start(
        &mut self,
        disk: &mut Disk,
        lba: u64,
        command: Command,
        data: Vec<u8>,
    ) -> Result<(), Failure> {
        let sent = self.flow.sent(self.now(), data.len() as u64);
        self.begin(disk, Slot::of(lba, command, Some(sent), 0), data).map(drop)
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
        let tag = self.next_tag;
        self.next_tag += 1;
        disk.port.start(disk.lun, tag, &slot.command, data)?;
        self.under_way += 1;
        self.slots.push_back(Slot { tag, ..slot });
        Ok(tag)
    }

    /// The tag of the command that is begun next.
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
        let now = self.now();
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

    /// Waits until one more command has ended well, and gives its place among the slots and its buffer.
    pub(super) fn finish(&mut self, disk: &mut Disk) -> Result<(usize, Vec<u8>), Failure> {
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
            let now = self.now();
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
                    return Ok((index, whole(&disk.name, &self.slots[index].command, done)?));
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
                    let lba = slot.lba;
                    self.slots.remove(index);
                    return Err(at(failure, lba));
                }
            }
        }
    }
}

/// Says where on the disk it was.
fn at(failure: Failure, lba: u64) -> Failure {
    failure.with_place(&format!("at block {lba}"))
}

/// The data of a read, if all of it came: GOOD with less is an error, never a short file.
fn whole(name: &str, command: &Command, done: Done) -> Result<Vec<u8>, Failure> {
    let wanted = command.data_in_bytes() as usize;
    if done.data.len() < wanted {
        let came = done.data.len();
        let message = format!(
            "{name}: the target answered {} with GOOD, but sent {came} of {wanted} bytes",
            command.name()
        );
        return Err(Failure::scsi(message, Some("the target does not follow the standard here".to_owned())));
    }
    Ok(done.data)
}

pub(super) fn does_not_fit(error: DoesNotFit) -> Failure {
    Failure::internal(&error.to_string())
}
