//! One session under load: it keeps its commands in flight, answers R2Ts and pings, and holds the target to what an
//! answer must say (RFC 7143, 4.2, 11.3 to 11.8). Nothing is allocated for a command.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use lunette_wire::target::{Numbers, Residual, ScsiDataIn};
use lunette_wire::{InitiatorTaskTag, LunField, TargetPdu, TargetTransferTag};

use super::connection::Connection;
use super::pdu::Arrived;
use super::plan::{Plan, Transfer};
use super::statistics::Statistics;
use crate::link::{Link, Window, pong};
use crate::login::Agreed;

const GOOD: u8 = 0x00;
const BUSY: u8 = 0x08;
const TASK_SET_FULL: u8 = 0x28;

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
    /// The connection that it came on.
    connection: usize,
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
    connections: Vec<Connection>,
    pub(super) window: Window,
    pub(super) agreed: Agreed,
    pub(super) lun: LunField,
    plan: Plan,
    habits: Habits,
    pub(super) tasks: Vec<Task>,
    free: Vec<u32>,
    /// Tasks that the target was too busy for.
    again: Vec<u32>,
    pub(super) in_flight: usize,
    /// New transfers that may still begin.
    quota: u64,
    winds_down: bool,
    writes_since_flush: u64,
    /// Transfers that ended while they count.
    pub(super) counted: u64,
}

impl Session {
    /// A session that has logged in on these connections, the leading one first.
    pub(super) fn new(
        links: Vec<Link>,
        window: Window,
        agreed: Agreed,
        lun: LunField,
        plan: Plan,
        habits: Habits,
        quota: u64,
    ) -> Self {
        let depth = habits.depth;
        Self {
            connections: links.into_iter().map(|link| Connection::new(link, depth)).collect(),
            window,
            tasks: vec![Task { work: Work::Nothing, began: Instant::now(), moved: 0 }; depth],
            free: (0..depth as u32).rev().collect(),
            again: Vec::with_capacity(depth),
            in_flight: 0,
            winds_down: false,
            writes_since_flush: 0,
            counted: 0,
            agreed,
            lun,
            plan,
            habits,
            quota,
        }
    }

    pub(super) fn connections(&mut self) -> &mut [Connection] {
        &mut self.connections
    }

    /// The connection that a task belongs to for good: its command, data and status all go there (4.2.5.1).
    pub(super) fn connection_of(&mut self, slot: u32) -> &mut Connection {
        let index = slot as usize % self.connections.len();
        &mut self.connections[index]
    }

    /// Begins no further transfer, and repeats none.
    pub(super) fn wind_down(&mut self) {
        self.quota = 0;
        self.winds_down = true;
        self.free.append(&mut self.again);
    }

    /// True when nothing is left to do.
    pub(super) fn is_done(&self) -> bool {
        self.quota == 0
            && self.in_flight == 0
            && self.again.is_empty()
            && self.connections.iter().all(Connection::is_flushed)
    }

    /// Ends the session in order; false where the target only closes it.
    ///
    /// # Errors
    /// The target refuses the logout, or says nothing.
    pub(super) fn logout(self) -> Result<bool> {
        // The others stay open until the target has answered: a connection that breaks off is a failure to it.
        let mut links = Vec::new();
        for connection in self.connections {
            ensure!(connection.inbox.is_at_rest(), "a connection is in the middle of a PDU");
            links.push(connection.link);
        }
        let leading = links.first_mut().context("a session without connection")?;
        leading.window = self.window;
        leading.stream.set_nonblocking(false)?;
        leading.logout()
    }

    /// Everything that can be done now that connection `index` has something to read, or room to write.
    ///
    /// # Errors
    /// The connection broke, or the target answered what it must not.
    pub(super) fn turn(&mut self, index: usize, shared: &mut Shared) -> Result<()> {
        self.receive(index, shared)?;
        self.start(shared)
    }

    /// Begins what may begin, and sends what waits.
    ///
    /// # Errors
    /// The connection broke.
    pub(super) fn start(&mut self, shared: &Shared) -> Result<()> {
        self.issue(shared)?;
        for connection in &mut self.connections {
            connection.send(&shared.pattern)?;
        }
        Ok(())
    }

    fn receive(&mut self, index: usize, shared: &mut Shared) -> Result<()> {
        for _ in 0..READS_MAX {
            let received = self.connections[index].receive(&mut shared.scratch, shared.discards)?;
            let now = Instant::now();
            let mut moment = Moment {
                connection: index,
                now,
                counts: shared.counted.contains(&now),
                statistics: &mut shared.statistics,
                pattern: &shared.pattern,
            };
            let mut bytes = &shared.scratch[..received.bytes];
            while let Some(arrived) = self.connections[index].inbox.take(&mut bytes)? {
                self.handle(&arrived, &mut moment)?;
            }
            if received.is_last {
                break;
            }
        }
        Ok(())
    }

    fn handle(&mut self, arrived: &Arrived, moment: &mut Moment<'_>) -> Result<()> {
        match TargetPdu::decode(&arrived.bhs)? {
            TargetPdu::ScsiDataIn(pdu) => {
                self.count(pdu.numbers, pdu.status.is_some(), moment)?;
                self.data_in(&pdu, arrived.data_length, moment)?;
                if let Some(status) = pdu.status {
                    self.end(pdu.initiator_task_tag, (status, pdu.residual), moment)?;
                }
            }
            TargetPdu::ScsiResponse(pdu) => {
                self.count(pdu.numbers, true, moment)?;
                ensure!(pdu.response == 0, "SCSI response {:#04x}", pdu.response);
                self.end(pdu.initiator_task_tag, (pdu.status, pdu.residual), moment)?;
            }
            TargetPdu::ReadyToTransfer(pdu) => {
                self.count(pdu.numbers, false, moment)?;
                self.task(pdu.initiator_task_tag, moment)?;
                self.solicited(&pdu, moment.pattern)?;
            }
            TargetPdu::NopIn(pdu) => {
                self.count(pdu.numbers, false, moment)?;
                if pdu.target_transfer_tag != TargetTransferTag::RESERVED {
                    let connection = &mut self.connections[moment.connection];
                    let pong = pong(&pdu, self.window.cmd_sn, connection.link.exp_stat_sn);
                    connection.push_head(&pong.encode(0));
                }
            }
            other => bail!("not expected now: {other:?}"),
        }
        moment.statistics.window(&self.window);
        Ok(())
    }

    fn count(&mut self, numbers: Numbers, has_status: bool, moment: &Moment<'_>) -> Result<()> {
        self.window.take(numbers);
        let connection = &mut self.connections[moment.connection];
        if has_status { connection.link.exp_stat_sn.take(numbers) } else { Ok(()) }
    }

    /// The task that a PDU is about, which must be one of the connection's.
    fn task(&mut self, tag: InitiatorTaskTag, moment: &Moment<'_>) -> Result<&mut Task> {
        let is_of_connection = tag.0 as usize % self.connections.len() == moment.connection;
        let task = self.tasks.get_mut(tag.0 as usize);
        let task = task.filter(|task| is_of_connection && !matches!(task.work, Work::Nothing));
        task.context("an answer to a task that does not exist")
    }

    fn data_in(&mut self, pdu: &ScsiDataIn, length: u32, moment: &Moment<'_>) -> Result<()> {
        let task = self.task(pdu.initiator_task_tag, moment)?;
        let Work::Transfer(transfer) = task.work else { bail!("data for a flush") };
        ensure!(transfer.is_read && pdu.buffer_offset == task.moved, "Data-In that was not due: {pdu:?}");
        ensure!(length <= transfer.bytes - task.moved, "more data than the command asked for");
        task.moved += length;
        Ok(())
    }

    /// A command ended.
    fn end(
        &mut self,
        tag: InitiatorTaskTag,
        (status, residual): (u8, Residual),
        moment: &mut Moment<'_>,
    ) -> Result<()> {
        let task = *self.task(tag, moment)?;
        self.in_flight = self.in_flight.checked_sub(1).context("more answers than commands")?;
        match status {
            GOOD => {}
            BUSY | TASK_SET_FULL => {
                moment.statistics.busy += u64::from(moment.counts);
                if self.winds_down {
                    self.release(tag);
                } else {
                    self.again.push(tag.0);
                }
                return Ok(());
            }
            _ => {
                let sense = self.connections[moment.connection].inbox.kept();
                bail!("{:?} ended with status {status:#04x}, sense {sense:02x?}", task.work)
            }
        }
        ensure!(residual == Residual::None, "{:?} ended with {residual:?}", task.work);
        match task.work {
            Work::Nothing => {}
            Work::Flush => {
                self.writes_since_flush = 0;
                moment.statistics.flushes += u64::from(moment.counts);
            }
            Work::Transfer(transfer) => {
                ensure!(task.moved == transfer.bytes, "{transfer:?} ended after {} bytes", task.moved);
                if moment.counts {
                    let latency = moment.now - task.began;
                    moment.statistics.operation(u64::try_from(latency.as_nanos())?, transfer.bytes);
                    self.counted += 1;
                }
            }
        }
        self.release(tag);
        Ok(())
    }

    fn release(&mut self, tag: InitiatorTaskTag) {
        self.tasks[tag.0 as usize].work = Work::Nothing;
        self.free.push(tag.0);
    }

    /// Queues the commands that may go now.
    fn issue(&mut self, shared: &Shared) -> Result<()> {
        if self.habits.burst && self.in_flight > 0 {
            return Ok(());
        }
        let mut now = None;
        while self.window.is_open() {
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
}

#[cfg(test)]
mod tests;
