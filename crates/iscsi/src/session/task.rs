//! SCSI tasks of a session, found by their place or by their Initiator Task Tag.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use lunette_wire::initiator::{ScsiCommand, TaskAttribute};
use lunette_wire::target::Residual;
use lunette_wire::{AhsList, Cid, CmdSn, DataSn, InitiatorTaskTag, LunField, TargetTransferTag};
use slab::Slab;

use super::gaps::Gaps;

/// Names a task inside its session; a place is used again, its generation is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskId {
    slot: u32,
    generation: u32,
}

impl TaskId {
    /// The place, for a driver that keeps its own context beside the task.
    /// Places are used again lowest first, so they stay below the most tasks that were ever open at once.
    #[must_use]
    pub const fn slot(self) -> usize {
        self.slot as usize
    }
}

/// The connection that a task belongs to (4.2.5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Allegiance {
    /// This one.
    To(Cid),
    /// None since its connection was removed for recovery, in this group: TASK REASSIGN may give it another (7.2.2).
    Waiting(RemovalId),
}

/// Names a removal of a connection for recovery; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RemovalId(pub(super) u32);

impl Allegiance {
    pub(super) const fn cid(self) -> Option<Cid> {
        match self {
            Self::To(cid) => Some(cid),
            Self::Waiting(_) => None,
        }
    }
}

/// An R2T that is being answered (11.8).
#[derive(Debug, Clone, Copy)]
pub(super) struct OutstandingR2t {
    pub(super) tag: TargetTransferTag,
    pub(super) r2t_sn: DataSn,
    /// First byte that was asked for.
    pub(super) start_offset: u32,
    /// Next byte that is expected.
    pub(super) next_offset: u32,
    /// One behind the last byte that was asked for.
    pub(super) end_offset: u32,
    pub(super) next_data_sn: DataSn,
    /// When the sequence counts as lost (7.1.4.1).
    pub(super) due: Option<Duration>,
}

/// What a task needs to recover its data, above ErrorRecoveryLevel 0.
#[derive(Debug, Default)]
pub(super) struct TaskRecovery {
    /// Ranges that were lost, to be asked for again.
    pub(super) holes: Vec<(u32, u32)>,
    /// How often something was.
    pub(super) losses: u32,
    /// An R2T that its initiator may never have got, because the connection went before anything came for it.
    pub(super) unsure_r2t_sn: Option<DataSn>,
    /// Of the last R-Data SNACK (11.16.5).
    pub(super) snack_tag: u32,
}

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits for its CmdSN's turn.
    Parked,
    /// The driver or its store works on it.
    Executing,
    /// The driver waits for Data-Out.
    Collecting,
    /// Its outcome is known, but the initiator is still sending data for it.
    Held,
    /// Aborted; the initiator is still sending data for it.
    Draining,
}

/// How a command ended, while the answer has to wait for data that is still on its way.
#[derive(Debug, Clone, Default)]
pub(super) struct HeldOutcome {
    pub(super) status: u8,
    pub(super) status_qualifier: u16,
    pub(super) sense: Vec<u8>,
    /// Bytes that the command called for, from the initiator and for it.
    pub(super) moved_out: u64,
    pub(super) moved_in: u64,
    /// Its response needs a fence.
    pub(super) fenced: bool,
}

/// A transport fault that ends the task with CHECK CONDITION (11.4.7.2): ASC and ASCQ under ABORTED COMMAND.
pub(super) type TransportFault = (u8, u8);

#[derive(Debug)]
pub(super) struct Task {
    generation: u32,
    pub(super) allegiance: Allegiance,
    pub(super) command: ScsiCommand,
    pub(super) extended_cdb: Box<[u8]>,
    /// Bytes that the initiator can take, where the command goes both ways (11.2.2.4).
    pub(super) bidirectional_read_length: u32,
    pub(super) phase: Phase,
    /// Aborted while executing: its completion goes nowhere.
    pub(super) aborted: bool,
    /// Aborted by another session, and answered with TASK ABORTED.
    pub(super) abort_is_answered: bool,
    pub(super) fault: Option<TransportFault>,
    /// The driver knows of it; a later one is no other.
    pub(super) fault_is_told: bool,
    pub(super) held: Option<HeldOutcome>,
    /// When draining is given up.
    pub(super) drain_due: Option<Duration>,
    /// When the session is given up, because others wait for the data of this task.
    pub(super) data_due: Option<Duration>,
    /// Contiguous bytes of Data-Out that are in the buffer or were counted.
    pub(super) received: u32,
    /// Bytes that the driver waits for.
    pub(super) wanted: u32,
    /// Unsolicited Data-Out PDUs are still to come.
    pub(super) unsolicited_open: bool,
    pub(super) unsolicited_data_sn: DataSn,
    /// What the open sequences have passed over, where their PDUs come in any order.
    pub(super) gaps: Gaps,
    /// Next byte to ask for by R2T.
    pub(super) next_r2t_offset: u32,
    pub(super) r2ts: Vec<OutstandingR2t>,
    /// R2Ts and Data-In PDUs that were sent.
    pub(super) sent_data_sn: DataSn,
    /// None while there was nothing to recover: a task that is small is cheap to move.
    pub(super) recovery: Option<Box<TaskRecovery>>,
}

impl Task {
    pub(super) fn new(cid: Cid, command: ScsiCommand, ahs: &AhsList<'_>, immediate_data: u32) -> Self {
        Self {
            generation: 0,
            allegiance: Allegiance::To(cid),
            command,
            extended_cdb: ahs.extended_cdb.into(),
            bidirectional_read_length: ahs.bidirectional_read_length.unwrap_or(0),
            phase: Phase::Parked,
            aborted: false,
            abort_is_answered: false,
            fault: None,
            fault_is_told: false,
            held: None,
            drain_due: None,
            data_due: None,
            received: immediate_data,
            wanted: 0,
            unsolicited_open: command.write && !command.is_final,
            unsolicited_data_sn: DataSn(0),
            gaps: Gaps::default(),
            next_r2t_offset: 0,
            r2ts: Vec::new(),
            sent_data_sn: DataSn(0),
            recovery: None,
        }
    }

    /// What it needs for recovery, from now on.
    pub(super) fn recovery_mut(&mut self) -> &mut TaskRecovery {
        self.recovery.get_or_insert_default()
    }

    /// The transport has spoilt it, and the driver does not know.
    pub(super) const fn has_untold_fault(&self) -> bool {
        self.fault.is_some() && !self.fault_is_told
    }

    /// True when it belongs to this connection.
    pub(super) fn is_of(&self, cid: Cid) -> bool {
        self.allegiance == Allegiance::To(cid)
    }

    /// Bytes from `start` to before `end` have not come and are to be asked for again. What lies between holes is asked
    /// for with them once there are many, so that few are kept.
    pub(super) fn lose(&mut self, start: u32, end: u32) {
        const HOLES_MAX: usize = 32;
        if start >= end {
            return;
        }
        let holes = &mut self.recovery_mut().holes;
        let is_full = holes.len() >= HOLES_MAX;
        match holes.last_mut() {
            Some(last) if last.1 == start || is_full => *last = (last.0.min(start), last.1.max(end)),
            _ => holes.push((start, end)),
        }
        self.received = self.received.max(end);
    }

    /// Its connection is gone: nothing more comes for what was asked or announced on it.
    pub(super) fn cut_off(&mut self) {
        self.unsolicited_open = false;
        for r2t in std::mem::take(&mut self.r2ts) {
            if r2t.next_offset == r2t.start_offset {
                self.recovery_mut().unsure_r2t_sn.get_or_insert(r2t.r2t_sn);
            }
            self.lose(r2t.next_offset, r2t.end_offset);
        }
    }

    /// Bytes that the initiator will send for this command.
    pub(super) const fn expected_out(&self) -> u32 {
        if self.command.write { self.command.expected_data_transfer_length } else { 0 }
    }

    /// Bytes that the initiator can take from this command.
    pub(super) const fn expected_in(&self) -> u32 {
        match (self.command.read, self.command.write) {
            (true, false) => self.command.expected_data_transfer_length,
            (true, true) => self.bidirectional_read_length,
            (false, _) => 0,
        }
    }

    /// Data goes both ways, so its status never comes with data (11.7.3).
    pub(super) const fn is_bidirectional(&self) -> bool {
        self.command.read && self.command.write
    }

    /// What was expected and what was moved: the residual of what is written, or else read, and that of what a command reads
    /// that goes both ways (11.4.5, 11.4.6).
    pub(super) fn residuals(&self, moved_out: u64, moved_in: u64) -> (Residual, Residual) {
        if self.is_bidirectional() {
            let written = Residual::between(self.expected_out(), moved_out);
            return (written, Residual::between(self.expected_in(), moved_in));
        }
        let residual =
            Residual::between(self.expected_out().max(self.expected_in()), moved_out.max(moved_in));
        (residual, Residual::None)
    }

    /// A tag for the next R2T. The generation keeps a late answer to an aborted task from being taken for one to
    /// the task that has its place and tag now; the top bit stays clear, so it is never the reserved value.
    pub(super) const fn r2t_tag(&self) -> TargetTransferTag {
        TargetTransferTag((self.generation & 0x7fff) << 16 | (self.sent_data_sn.0 & 0xffff))
    }

    /// The initiator has nothing more to send for what it was asked or announced.
    pub(super) fn is_quiet(&self) -> bool {
        !self.unsolicited_open && self.r2ts.is_empty()
    }
}

/// A read-only look at a task, for the driver.
#[derive(Debug, Clone, Copy)]
pub struct TaskView<'a> {
    /// The connection that it belongs to; none while it waits for another one (7.2.2).
    pub cid: Option<Cid>,
    /// The logical unit.
    pub lun: LunField,
    /// First 16 bytes of the CDB.
    pub cdb: &'a [u8; 16],
    /// CDB bytes from the 17th on.
    pub extended_cdb: &'a [u8],
    /// How the task set orders it.
    pub attribute: TaskAttribute,
    /// Command priority (SAM-5), 0 for none; always 0 below iSCSIProtocolLevel 2.
    pub priority: u8,
    /// Its tag.
    pub initiator_task_tag: InitiatorTaskTag,
    /// Bytes that the initiator will send.
    pub expected_out: u32,
    /// Bytes that the initiator can take.
    pub expected_in: u32,
    /// True once it was aborted: whatever it brings goes nowhere.
    pub aborted: bool,
}

/// Tags are the initiator's to choose, but a session has few of them: a multiplication spreads them enough.
#[derive(Default)]
pub(super) struct TagHasher(u64);

impl Hasher for TagHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(byte.into()));
    }

    fn write_u32(&mut self, tag: u32) {
        // 2^64 / golden ratio (Knuth's multiplicative hashing).
        self.0 = (self.0 ^ u64::from(tag)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_right(32);
    }
}

/// All tasks of one session.
#[derive(Debug, Default)]
pub(super) struct TaskTable {
    slots: Slab<Task>,
    by_tag: HashMap<InitiatorTaskTag, TaskId, BuildHasherDefault<TagHasher>>,
    next_generation: u32,
}

impl TaskTable {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn insert(&mut self, mut task: Task) -> TaskId {
        self.next_generation = self.next_generation.wrapping_add(1);
        task.generation = self.next_generation;
        let tag = task.command.initiator_task_tag;
        // Slab hands out the lowest free places first, so the place stays below the number of tasks ever held.
        let slot = self.slots.insert(task) as u32;
        let id = TaskId { slot, generation: self.next_generation };
        self.by_tag.insert(tag, id);
        id
    }

    /// What [`Self::insert`] answers next.
    pub(super) fn next_id(&self) -> TaskId {
        TaskId { slot: self.slots.vacant_key() as u32, generation: self.next_generation.wrapping_add(1) }
    }

    pub(super) fn get(&self, id: TaskId) -> Option<&Task> {
        self.slots.get(id.slot()).filter(|task| task.generation == id.generation)
    }

    pub(super) fn get_mut(&mut self, id: TaskId) -> Option<&mut Task> {
        self.slots.get_mut(id.slot()).filter(|task| task.generation == id.generation)
    }

    pub(super) fn find(&self, tag: InitiatorTaskTag) -> Option<TaskId> {
        self.by_tag.get(&tag).copied()
    }

    pub(super) fn remove(&mut self, id: TaskId) -> Option<Task> {
        self.get(id)?;
        let task = self.slots.remove(id.slot());
        self.by_tag.remove(&task.command.initiator_task_tag);
        Some(task)
    }

    pub(super) fn any(&self, mut wanted: impl FnMut(&Task) -> bool) -> bool {
        self.slots.iter().any(|(_, task)| wanted(task))
    }

    pub(super) fn ids(&self, mut wanted: impl FnMut(&Task) -> bool) -> Vec<TaskId> {
        self.slots
            .iter()
            .filter(|(_, task)| wanted(task))
            .map(|(slot, task)| TaskId { slot: slot as u32, generation: task.generation })
            .collect()
    }
}

/// True when `cmd_sn` is the number of a command that a task management request at `limit` acts on (11.5.1).
pub(super) fn is_covered(cmd_sn: CmdSn, limit: CmdSn, immediate: bool) -> bool {
    cmd_sn.precedes(limit) || (immediate && cmd_sn == limit)
}
