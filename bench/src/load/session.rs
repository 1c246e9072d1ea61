//! One session under load: it keeps its commands in flight, answers R2Ts and pings, and holds the target to what an
//! answer must say (RFC 7143, 4.2, 11.3 to 11.8). Nothing is allocated for a command.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use lunette_wire::digest::DIGEST_LENGTH;
use lunette_wire::target::{Residual, ScsiDataIn};
use lunette_wire::{InitiatorTaskTag, LunField, TargetPdu, TargetTransferTag};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::pdu::{Arrived, Inbox};
use super::plan::{Plan, Transfer};
use super::statistics::Statistics;
use crate::link::{Counters, Link};
use crate::login::Agreed;
use crate::outbox::{Outbox, Source};

const GOOD: u8 = 0x00;
const BUSY: u8 = 0x08;
const TASK_SET_FULL: u8 = 0x28;

/// From this many bytes on, throwing data away in the kernel saves more than the extra system call costs.
const DISCARD_MIN_BYTES: usize = 16 << 10;

/// How far a read looks beyond the data of a PDU where most data is thrown away in the kernel: a few headers.
const LOOK_AHEAD_BYTES: usize = 512;

/// Reads of one turn: large transfers of one session must not keep the others waiting.
const READS_MAX: usize = 16;

/// What is in flight under one task tag.
#[derive(Debug, Clone, Copy)]
pub(super) enum Work {
    Nothing,
    Transfer(Transfer),
    Flush,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    pub(super) work: Work,
    pub(super) began: Instant,
    /// Bytes that were read, or sent.
    pub(super) moved: u32,
}

/// What all sessions of a thread have in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) scratch: Box<[u8]>,
    /// What is written: each data segment is its beginning.
    pub(super) pattern: Box<[u8]>,
    pub(super) statistics: Statistics,
    /// What ends in here counts.
    pub(super) counted: std::ops::Range<Instant>,
    /// Data is thrown away in the kernel.
    pub(super) discards: bool,
}

/// What handling a PDU needs to know of the turn.
struct Moment<'a> {
    now: Instant,
    /// What ends now counts.
    counts: bool,
    statistics: &'a mut Statistics,
    pattern: &'a [u8],
}

/// How a session behaves, beside what its plan says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Habits {
    pub(super) depth: usize,
    /// All commands at once, then all answers.
    pub(super) burst: bool,
    /// A SYNCHRONIZE CACHE after so many writes; 0 for never.
    pub(super) flush_every: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) link: Link,
    pub(super) agreed: Agreed,
    pub(super) lun: LunField,
    plan: Plan,
    habits: Habits,
    inbox: Inbox,
    pub(super) outbox: Outbox,
    pub(super) tasks: Vec<Task>,
    free: Vec<u32>,
    /// Tasks that the target was too busy for.
    again: Vec<u32>,
    pub(super) in_flight: usize,
    /// New transfers that may still begin.
    quota: u64,
    winds_down: bool,
    writes_since_flush: u64,
    /// Checksums of the beginnings of the pattern, by length.
    pub(super) data_digests: Vec<(u32, [u8; DIGEST_LENGTH])>,
    /// Transfers that ended while they count.
    pub(super) counted: u64,
}

impl Session {
    /// A session that has logged in, and its first transfer still to send.
    pub(super) fn new(
        link: Link,
        agreed: Agreed,
        lun: LunField,
        plan: Plan,
        habits: Habits,
        quota: u64,
    ) -> Self {
        let depth = habits.depth;
        Self {
            inbox: Inbox::new(link.digests),
            // A command, its immediate data and as many Data-Out headers as a transfer commonly has.
            outbox: Outbox::new(depth * 8 * (48 + 8), depth * 16),
            tasks: vec![Task { work: Work::Nothing, began: link.began, moved: 0 }; depth],
            free: (0..depth as u32).rev().collect(),
            again: Vec::with_capacity(depth),
            in_flight: 0,
            winds_down: false,
            writes_since_flush: 0,
            data_digests: Vec::new(),
            counted: 0,
            link,
            agreed,
            lun,
            plan,
            habits,
            quota,
        }
    }

    pub(super) fn socket(&self) -> &std::net::TcpStream {
        &self.link.stream
    }

    /// Begins no further transfer, and repeats none.
    pub(super) fn wind_down(&mut self) {
        self.quota = 0;
        self.winds_down = true;
        self.free.append(&mut self.again);
    }

    /// True when nothing is left to do.
    pub(super) fn is_done(&self) -> bool {
        self.quota == 0 && self.in_flight == 0 && self.again.is_empty() && self.outbox.is_empty()
    }

    /// True when the socket took less than there was to send.
    pub(super) fn is_blocked(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Ends the session in order.
    ///
    /// # Errors
    /// The target does not answer the logout.
    pub(super) fn logout(self) -> Result<()> {
        ensure!(self.inbox.is_at_rest(), "the connection is in the middle of a PDU");
        self.link.stream.set_nonblocking(false)?;
        self.link.logout()
    }

    /// Everything that can be done now: receive, handle, send.
    ///
    /// # Errors
    /// The connection broke, or the target answered what it must not.
    pub(super) fn turn(&mut self, shared: &mut Shared) -> Result<()> {
        self.receive(shared)?;
        self.start(shared)
    }

    /// Begins what may begin, and sends what waits.
    ///
    /// # Errors
    /// The connection broke.
    pub(super) fn start(&mut self, shared: &Shared) -> Result<()> {
        self.issue(shared)?;
        Ok(self.outbox.send(&self.link.stream, Source::Memory(&shared.pattern))?)
    }

    fn receive(&mut self, shared: &mut Shared) -> Result<()> {
        for _ in 0..READS_MAX {
            let skippable = self.inbox.skippable();
            let discard = shared.discards && skippable >= DISCARD_MIN_BYTES;
            let limit = match (discard, shared.discards) {
                (true, _) => skippable,
                (false, true) => skippable + LOOK_AHEAD_BYTES,
                (false, false) => usize::MAX,
            };
            let limit = limit.min(shared.scratch.len());
            // TCP: the bytes are taken off the queue and copied nowhere.
            let flags = if discard { RecvFlags::TRUNC } else { RecvFlags::empty() };
            let read = match rustix::net::recv(&self.link.stream, &mut shared.scratch[..limit], flags) {
                Ok((_, 0)) => bail!("the target closed the connection"),
                Ok((_, read)) => read,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error).context("receiving"),
            };
            let mut bytes = if discard {
                self.inbox.skip(read);
                &[][..]
            } else {
                &shared.scratch[..read]
            };
            let now = Instant::now();
            let mut moment = Moment {
                now,
                counts: shared.counted.contains(&now),
                statistics: &mut shared.statistics,
                pattern: &shared.pattern,
            };
            while let Some(arrived) = self.inbox.take(&mut bytes)? {
                self.handle(&arrived, &mut moment)?;
            }
            if read < limit || !shared.discards {
                break;
            }
        }
        Ok(())
    }

    fn handle(&mut self, arrived: &Arrived, moment: &mut Moment<'_>) -> Result<()> {
        let counters = &mut self.link.counters;
        match TargetPdu::decode(&arrived.bhs)? {
            TargetPdu::ScsiDataIn(pdu) => {
                counters.take(pdu.numbers, pdu.status.is_some())?;
                self.data_in(&pdu, arrived.data_length)?;
                if let Some(status) = pdu.status {
                    self.end(pdu.initiator_task_tag, (status, pdu.residual), moment)?;
                }
            }
            TargetPdu::ScsiResponse(pdu) => {
                counters.take(pdu.numbers, true)?;
                ensure!(pdu.response == 0, "SCSI response {:#04x}", pdu.response);
                self.end(pdu.initiator_task_tag, (pdu.status, pdu.residual), moment)?;
            }
            TargetPdu::ReadyToTransfer(pdu) => {
                counters.take(pdu.numbers, false)?;
                self.solicited(&pdu, moment.pattern)?;
            }
            TargetPdu::NopIn(pdu) => {
                counters.take(pdu.numbers, false)?;
                if pdu.target_transfer_tag != TargetTransferTag::RESERVED {
                    let pong = counters.pong(&pdu);
                    self.push_head(&pong.encode(0));
                }
            }
            other => bail!("not expected now: {other:?}"),
        }
        moment.statistics.window(&self.link.counters);
        Ok(())
    }

    fn data_in(&mut self, pdu: &ScsiDataIn, length: u32) -> Result<()> {
        let task = self.tasks.get_mut(pdu.initiator_task_tag.0 as usize);
        let Some(Task { work: Work::Transfer(transfer), moved, .. }) = task else {
            bail!("data for a task that does not exist")
        };
        ensure!(transfer.is_read && pdu.buffer_offset == *moved, "Data-In that was not due: {pdu:?}");
        ensure!(length <= transfer.bytes - *moved, "more data than the command asked for");
        *moved += length;
        Ok(())
    }

    /// A command ended.
    fn end(
        &mut self,
        tag: InitiatorTaskTag,
        (status, residual): (u8, Residual),
        moment: &mut Moment<'_>,
    ) -> Result<()> {
        let statistics = &mut *moment.statistics;
        let task = self.tasks.get_mut(tag.0 as usize).context("an answer to a task that does not exist")?;
        match status {
            GOOD => {}
            BUSY | TASK_SET_FULL => {
                ensure!(!matches!(task.work, Work::Nothing), "an answer to a task that does not exist");
                self.in_flight -= 1;
                statistics.busy += u64::from(moment.counts);
                if self.winds_down {
                    task.work = Work::Nothing;
                    self.free.push(tag.0);
                } else {
                    self.again.push(tag.0);
                }
                return Ok(());
            }
            _ => {
                let sense = self.inbox.kept();
                bail!("{:?} ended with status {status:#04x}, sense {sense:02x?}", task.work)
            }
        }
        ensure!(residual == Residual::None, "{:?} ended with {residual:?}", task.work);
        match std::mem::replace(&mut task.work, Work::Nothing) {
            Work::Nothing => bail!("an answer to a task that does not exist"),
            Work::Flush => {
                self.writes_since_flush = 0;
                if moment.counts {
                    statistics.flushes += 1;
                }
            }
            Work::Transfer(transfer) => {
                ensure!(task.moved == transfer.bytes, "{transfer:?} ended after {} bytes", task.moved);
                if moment.counts {
                    let latency = moment.now - task.began;
                    statistics.operation(u64::try_from(latency.as_nanos())?, transfer.bytes);
                    self.counted += 1;
                }
            }
        }
        self.in_flight -= 1;
        self.free.push(tag.0);
        Ok(())
    }

    /// Queues the commands that may go now.
    fn issue(&mut self, shared: &Shared) -> Result<()> {
        if self.habits.burst && self.in_flight > 0 {
            return Ok(());
        }
        let mut now = None;
        while self.window_is_open() {
            let began = *now.get_or_insert_with(Instant::now);
            if let Some(slot) = self.again.pop() {
                self.tasks[slot as usize].moved = 0;
                self.command(slot, shared)?;
                continue;
            }
            let flush_is_due =
                self.habits.flush_every > 0 && self.writes_since_flush >= self.habits.flush_every;
            if self.quota == 0 || (flush_is_due && self.in_flight > 0) {
                break;
            }
            let Some(slot) = self.free.pop() else { break };
            let work = if flush_is_due {
                Work::Flush
            } else {
                let transfer = self.plan.next();
                self.quota -= 1;
                self.writes_since_flush += u64::from(!transfer.is_read);
                Work::Transfer(transfer)
            };
            self.tasks[slot as usize] = Task { work, began, moved: 0 };
            self.command(slot, shared)?;
        }
        Ok(())
    }

    fn window_is_open(&self) -> bool {
        let counters: &Counters = &self.link.counters;
        !counters.max_cmd_sn.precedes(counters.cmd_sn)
    }
}

#[cfg(test)]
mod tests;
