//! A session as its reactor keeps it: the core's state, its connections, the nexus, and a context beside each task.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunette_block::{Buffer, BufferPool, CachedRange, LentRange, Volume};
use lunette_iscsi::session::{Outbox, Session, Share, TaskId};
use lunette_iscsi::text::TextNegotiation;
use lunette_scsi::{LogicalUnit, LunMap, Nexus, Task, Unsent};
use lunette_wire::Cid;

use super::Waiter;
use super::connection::Token;
use super::hoard::{HOARD_PATIENCE, Hoard, Moved};
use super::soliciting::{Asked, Unasked};
use super::way::Way;
use crate::kept_reads::{Keeper, KeptReads};
use crate::registry::{SessionKey, SessionPlace};
use crate::retained::Retained;
use crate::seldom::Ration;
use crate::store_io::Stability;
use crate::task_times::{Stage, TaskTimes};
use crate::units::ServedTarget;

/// Data on its way to an initiator.
#[derive(Debug)]
pub(super) enum Segment {
    /// What a read brought, for one PDU.
    Medium(Medium),
    /// What a read brought, for several.
    Shared(Arc<Medium>),
    /// Parameter data that the device server made.
    Parameter(Arc<[u8]>),
}

impl Segment {
    /// What a read brought, if that is what it is.
    pub(super) fn medium(&self) -> Option<&Medium> {
        match self {
            Self::Medium(medium) => Some(medium),
            Self::Shared(medium) => Some(medium),
            Self::Parameter(_) => None,
        }
    }

    /// The data, if it is in this process's memory.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Parameter(bytes) => bytes,
            Self::Medium(medium) => medium.bytes(),
            Self::Shared(medium) => medium.bytes(),
        }
    }
}

impl Share for Segment {
    fn share(&mut self) -> Self {
        let medium = match std::mem::replace(self, Self::Parameter(Arc::default())) {
            Self::Medium(medium) => Arc::new(medium),
            Self::Shared(medium) => medium,
            Self::Parameter(bytes) => {
                *self = Self::Parameter(Arc::clone(&bytes));
                return Self::Parameter(bytes);
            }
        };
        *self = Self::Shared(Arc::clone(&medium));
        Self::Shared(medium)
    }

    fn kept_bytes(&self) -> usize {
        match self.medium() {
            Some(Medium::Read(buffer)) => buffer.taken_bytes(),
            // What is kept to be sent again was read.
            Some(Medium::Cached { .. } | Medium::Lent { .. }) => 0,
            None => self.bytes().len(),
        }
    }
}

/// What a read brought.
#[derive(Debug)]
pub(super) enum Medium {
    /// The data.
    Read(Buffer),
    /// Where the data lies, and what keeps ORDERED commands from changing it before it is sent.
    Cached { range: CachedRange, held: Option<Unsent> },
    /// The same, of what lies in this process's memory.
    Lent { range: LentRange, held: Option<Unsent> },
}

impl Medium {
    /// The data, as far as the device server may look at it.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Read(buffer) => buffer,
            Self::Cached { .. } | Self::Lent { .. } => &[],
        }
    }

    /// Whether it has yet to be taken from the medium, of this unit if one is given.
    pub(super) fn is_unsent(&self, unit: Option<&LogicalUnit>) -> bool {
        match self {
            Self::Read(_) => false,
            Self::Cached { held, .. } | Self::Lent { held, .. } => {
                let is_of = |unit| held.as_ref().is_none_or(|held| held.is_of(unit));
                unit.is_none_or(is_of)
            }
        }
    }

    /// The data, to be written elsewhere; `None` where it was not read.
    pub(super) fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Read(buffer) => Some(buffer),
            Self::Cached { .. } | Self::Lent { .. } => None,
        }
    }
}

/// What the driver keeps for a task.
#[derive(Debug)]
pub(super) struct TaskContext {
    pub(super) id: TaskId,
    /// The device server's state; none until the task's turn has come.
    pub(super) command: Option<Task>,
    /// Data from the initiator. Away while a store writes from it.
    pub(super) data_out: Option<Buffer>,
    /// What the last read brought.
    pub(super) medium: Option<Medium>,
    /// Bytes of Data-Out that the command calls for.
    pub(super) out_length: u32,
    /// Bytes of Data-Out that are there, as long as anybody may look at them.
    pub(super) out_present: u32,
    /// So many bytes of it, from its beginning, came with the command itself, if that went the way of all.
    pub(super) immediate_bytes: u32,
    /// So many bytes of it, from its beginning, are in their store already: `data_out` need not have them.
    pub(super) out_stored: u32,
    /// Something of it is in its store, or may be, that is not known to be stable.
    pub(super) is_unstable: bool,
    /// What that which a store does for it now means for what it has changed there.
    pub(super) stability: Stability,
    /// Where a copy has written what is not known to be stable.
    pub(super) unstable_copies: Vec<UnstableCopy>,
    /// How many commands had been alone at the medium when the first of them were stored.
    pub(super) alone_count: u64,
    /// No memory was to be had for its data: it must be tried again.
    pub(super) is_starved: bool,
    /// Its read was just tried, and has to wait for the store.
    pub(super) is_missed: bool,
    /// A store works for it.
    pub(super) in_store: bool,
    /// The unit, by its NAA identifier, that a copy reads or writes just now.
    pub(super) copies_on: Option<u64>,
    /// It is a copy, and has begun to write: were it begun anew, it might read what it has written.
    pub(super) has_copied: bool,
    /// Other commands of its unit keep it from going on.
    pub(super) is_waiting: bool,
    /// Its data has yet to be asked for: it is among its session's [`TargetSession::unasked`].
    pub(super) is_unasked: bool,
    /// Its data has been asked for and has not come.
    pub(super) asked: Option<Asked>,
    /// Where its time goes, if that is recorded.
    pub(super) times: Option<Box<TaskTimes>>,
}

/// A medium that a copy has written to.
#[derive(Debug)]
pub(super) struct UnstableCopy {
    pub(super) unit: Arc<LogicalUnit>,
    pub(super) volume: Arc<Volume>,
}

impl TaskContext {
    /// Whether `volume` has, or may have, something of the command that is not stable; of a copy it may be that of another unit.
    #[cold]
    pub(super) fn note_stability(&mut self, volume: Arc<Volume>, is_unstable: bool, is_copy: bool) {
        if !is_copy {
            self.is_unstable = is_unstable;
        }
        if !is_unstable {
            self.unstable_copies.retain(|copy| !Arc::ptr_eq(&copy.volume, &volume));
        } else if is_copy
            && let Some(unit) = self.command.as_ref().and_then(Task::copies_on)
            && !self.unstable_copies.iter().any(|copy| Arc::ptr_eq(&copy.volume, &volume))
        {
            self.unstable_copies.push(UnstableCopy { unit: Arc::clone(unit), volume });
        }
    }

    /// Has what it leaves in its stores become stable soon, where no unit has a write cache that would excuse it: whoever reads it must
    /// not find something else after a power cut.
    #[cold]
    fn flush_soon(&self, attachment: &Attachment) {
        if self.is_unstable
            && let Some(command) = &self.command
            && !command.has_write_cache(&attachment.nexus)
            && let Some(volume) = command.unit_index().and_then(|unit| attachment.target.volumes.get(unit))
        {
            volume.flush_soon();
        }
        for UnstableCopy { unit, volume } in &self.unstable_copies {
            if !unit.write_cache_enabled() {
                volume.flush_soon();
            }
        }
    }

    /// A store begins to work for it, or will. `started` is when its reactor was.
    pub(super) fn enters_store(&mut self, started: Instant) {
        self.in_store = true;
        if let Some(times) = &mut self.times {
            times.enter(started.elapsed(), Stage::Store);
        }
    }
}

/// The part of a session that reaches logical units.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) nexus: Nexus,
    /// What the initiator sees of the target.
    pub(super) view: Arc<LunMap>,
    pub(super) target: Arc<ServedTarget>,
    /// Index of the target among the server's.
    pub(super) target_index: usize,
}

/// One connection of a session in full feature phase.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) cid: Cid,
    pub(super) token: Token,
    pub(super) text: TextNegotiation,
    /// Bytes of its tasks' data that were asked for and have not come.
    pub(super) asked_bytes: usize,
    pub(super) way: Way,
}

impl Link {
    pub(super) fn new(cid: Cid, token: Token) -> Self {
        Self { cid, token, text: TextNegotiation::default(), asked_bytes: 0, way: Way::default() }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct TargetSession {
    pub(super) core: Session<Segment>,
    pub(super) place: SessionPlace,
    pub(super) key: SessionKey,
    /// `None` for a discovery session.
    pub(super) attachment: Option<Attachment>,
    pub(super) initiator: String,
    /// The CHAP name that its first connection proved; all others have to prove the same (9.2).
    pub(super) user: Option<String>,
    /// All of them belong to this reactor. Few, so that looking through them costs less than an index.
    pub(super) links: Vec<Link>,
    /// Its share of the buffers.
    pub(super) pool: BufferPool,
    /// Task management functions that are logged.
    pub(super) told_functions: Ration,
    /// Commands of it that have to wait for another turn of the reactor, or until answers are taken.
    pub(super) postponed: usize,
    /// Those that wait until answers are taken, in order: they come before the others.
    pub(super) withheld: VecDeque<TaskId>,
    /// By the place of the task.
    pub(super) contexts: Vec<Option<TaskContext>>,
    pub(super) unasked: Unasked,
    /// What it keeps while others wait for memory.
    pub(super) hoard: Hoard,
    /// The same of what it keeps for commands that cannot begin.
    pub(super) unbegun: Hoard,
    /// What it keeps of reads to be sent again; none at ErrorRecoveryLevel 0.
    pub(super) keeper: Option<Keeper>,
    /// Its place among the sessions that wait for a connection, while it has none.
    pub(super) retained: Option<Retained>,
    /// Logins that wait for this session's end.
    pub(super) waiters: Vec<Waiter>,
    /// Logins that wait for the end of a connection whose CID they take.
    pub(super) joiners: Vec<Token>,
}

impl TargetSession {
    pub(super) fn link(&self, cid: Cid) -> Option<&Link> {
        self.links.iter().find(|link| link.cid == cid)
    }

    /// Forgets a connection: nothing more is sent on it.
    pub(super) fn unlink(&mut self, cid: Cid) -> Option<Token> {
        let at = self.links.iter().position(|link| link.cid == cid)?;
        Some(self.links.swap_remove(at).token)
    }

    /// The context of a task that has not ended.
    pub(super) fn context(&mut self, id: TaskId) -> Option<&mut TaskContext> {
        self.contexts.get_mut(id.slot())?.as_mut().filter(|context| context.id == id)
    }

    /// Makes the context of a task. The core may have given it the place of one that is over before anybody here heard of that.
    pub(super) fn attach(&mut self, id: TaskId, data_out: Option<Buffer>, is_starved: bool) {
        if self.contexts.get(id.slot()).is_some_and(Option::is_some) {
            self.take_context(id);
        }
        if self.contexts.len() <= id.slot() {
            self.contexts.resize_with(id.slot() + 1, || None);
        }
        self.contexts[id.slot()] = Some(TaskContext {
            id,
            command: None,
            data_out,
            medium: None,
            out_length: 0,
            out_present: 0,
            immediate_bytes: 0,
            out_stored: 0,
            is_unstable: false,
            stability: Stability::default(),
            unstable_copies: Vec::new(),
            alone_count: 0,
            is_starved,
            is_missed: false,
            in_store: false,
            copies_on: None,
            has_copied: false,
            is_waiting: false,
            is_unasked: false,
            asked: None,
            times: None,
        });
    }

    /// Frees a task's context, unless a store still works for it.
    pub(super) fn detach(&mut self, id: TaskId) {
        if self.context(id).is_some_and(|context| !context.in_store) {
            self.take_context(id);
        }
    }

    /// Frees the context in a task's place. Its command is over, or is now; so nothing is asked for.
    pub(super) fn take_context(&mut self, id: TaskId) -> Option<TaskContext> {
        let context = self.contexts.get_mut(id.slot())?;
        if let Some(command) = context.as_mut().and_then(|context| context.command.as_mut())
            && command.is_open()
            && let Some(attachment) = &self.attachment
        {
            command.abandon(&attachment.nexus);
        }
        let context = context.take();
        if let (Some(context), Some(attachment)) = (&context, &self.attachment)
            && (context.is_unstable || !context.unstable_copies.is_empty())
        {
            context.flush_soon(attachment);
        }
        if let Some(asked) = context.as_ref().and_then(|context| context.asked) {
            self.came(asked);
        }
        if let Some(context) = context.as_ref().filter(|context| context.is_unasked) {
            self.unasked.remove(context.id);
        }
        context
    }

    /// Tells the core whether tasks keep other initiators waiting because their data has not come, or has not been taken.
    pub(super) fn bound_waiting(&mut self, now: Duration, outbox: &mut Outbox<Segment>) {
        let Some(attachment) = &self.attachment else { return };
        for context in self.contexts.iter().flatten() {
            let Some(command) = &context.command else { continue };
            let do_wait = command.keeps_others_waiting(&attachment.nexus);
            self.core.others_wait(now, context.id, do_wait, outbox);
        }
        self.core.others_wait_for_reads(now, attachment.nexus.keeps_others_waiting(), outbox);
    }

    /// Others wait for memory, and it is the turn of this session's initiator, which has moved so many bytes so far: ends the session if
    /// it has kept too much for too long.
    pub(super) fn bound_hoard(&mut self, now: Duration, moved_bytes: u64, outbox: &mut Outbox<Segment>) {
        let moved = Moved { bytes: moved_bytes, up_to: None };
        if self.hoard.is_over(now, self.pool.taken_bytes(), moved) {
            self.core.give_up_hoard(HOARD_PATIENCE, outbox);
        }
    }

    /// The same of what it keeps for commands that cannot begin: they wait for an earlier one (4.2.2.1), or their data, with
    /// `landing_bytes`, has not come whole. It is always the initiator's turn, who has sent so many bytes so far.
    pub(super) fn bound_unbegun(
        &mut self,
        now: Duration,
        landing_bytes: usize,
        received_bytes: u64,
        outbox: &mut Outbox<Segment>,
    ) {
        let parked = self.contexts.iter().flatten().filter(|context| self.core.is_parked(context.id));
        let parked = parked.filter_map(|context| context.data_out.as_ref()).map(Buffer::taken_bytes);
        let kept_bytes = landing_bytes + parked.sum::<usize>();
        // Who may come back has the time that was agreed on.
        if kept_bytes == 0 || self.links.is_empty() {
            return;
        }
        let moved = Moved { bytes: received_bytes, up_to: Some(self.core.command_numbers().0) };
        if self.unbegun.is_over(now, kept_bytes, moved) {
            self.core.give_up_hoard(HOARD_PATIENCE, outbox);
        }
    }

    /// Keeps no more reads to be sent again than there is room for beside those of other sessions. Who has no connection cannot acknowledge
    /// any, and has the time that was agreed on.
    pub(super) fn bound_kept_reads(&mut self, all: &KeptReads) {
        let Some(keeper) = &mut self.keeper else { return };
        keeper.note(self.core.kept_read_bytes());
        if !self.links.is_empty() {
            self.core.bound_kept_reads(all.bytes_max());
            keeper.note(self.core.kept_read_bytes());
        }
    }

    /// Bytes of a command's data that may come unsolicited, as agreed: where nothing was, more than this side would have offered.
    pub(super) fn first_burst(&self) -> usize {
        self.core.parameters().first_burst_length as usize
    }

    /// Where the data of a task goes; `None` when it has no buffer, or its store has it.
    pub(super) fn data_out_buffer(&mut self, id: TaskId) -> Option<&mut Buffer> {
        self.context(id)?.data_out.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use lunette_iscsi::parameters::{ConnectionParameters, SessionParameters, SessionType};
    use lunette_iscsi::session::SessionSettings;
    use lunette_wire::initiator::ScsiCommand;
    use lunette_wire::{CmdSn, InitiatorTaskTag, Isid, StatSn, Tsih};

    use super::*;
    use crate::registry::SessionEnd;

    fn session() -> TargetSession {
        let at = SessionEnd::Portal("127.0.0.1:3260".parse().expect("an address"));
        TargetSession {
            core: Session::new(
                SessionType::Normal,
                SessionParameters::default(),
                SessionSettings::default(),
                (Cid(0), ConnectionParameters::default(), StatSn(1)),
                CmdSn(1),
                Duration::ZERO,
            ),
            place: SessionPlace { reactor: 0, serial: 0, tsih: Tsih(1) },
            key: SessionKey { initiator: String::new(), isid: Isid::default(), at },
            attachment: None,
            initiator: String::new(),
            user: None,
            links: Vec::new(),
            pool: BufferPool::new(1 << 20).share(),
            told_functions: Ration::default(),
            postponed: 0,
            withheld: VecDeque::new(),
            contexts: Vec::new(),
            unasked: Unasked::default(),
            hoard: Hoard::default(),
            unbegun: Hoard::default(),
            keeper: None,
            retained: None,
            waiters: Vec::new(),
            joiners: Vec::new(),
        }
    }

    /// However many are aborted behind one whose data does not come.
    #[test]
    fn a_task_that_ends_before_it_is_asked_is_not_listed_on() {
        let (mut session, mut outbox) = (session(), Outbox::default());
        let ids: Vec<TaskId> = (1..4)
            .map(|number| {
                let pdu = ScsiCommand {
                    is_final: true,
                    write: true,
                    expected_data_transfer_length: 512,
                    initiator_task_tag: InitiatorTaskTag(number),
                    cmd_sn: CmdSn(number),
                    ..ScsiCommand::default()
                };
                let command = (&pdu.encode(0), &pdu, &[][..]);
                let id = session.core.command(Duration::ZERO, Cid(0), command, 0, &mut outbox);
                let id = id.expect("in the window");
                session.attach(id, None, false);
                session.has_to_ask(id);
                id
            })
            .collect();
        assert!(session.unasked.are_tasks(&ids));
        session.take_context(ids[1]);
        assert!(session.unasked.are_tasks(&[ids[0], ids[2]]));
        session.detach(ids[0]);
        assert!(session.unasked.are_tasks(&[ids[2]]));
    }
}
