//! What every command shares: the checks before its handler runs, and the state between two steps.
//!
//! The commands are rows of [`table`]; each module here holds the handlers of one family.

mod buffer;
mod cache;
mod capacity;
mod copy_results;
mod diagnostic;
mod extended_copy;
mod format;
mod identifying;
mod inquiry;
mod lba_status;
mod log_pages;
mod long;
mod mode_pages;
mod mover;
mod persistent_reserve;
mod priority;
mod protected;
mod range;
mod read_modify_write;
mod read_write;
mod readiness;
mod report_luns;
mod report_support;
mod reserve;
mod row;
mod sanitize;
mod start_stop;
mod table;
mod target_port_groups;
mod third_party_copy;
mod timestamp;
mod tokens;
mod unmap;
mod verify;
mod vpd;
mod without_unit;
mod write_atomic;
mod write_same;

use crate::alua::WorksIn;
use crate::attention::{ItlNexus, UnitAttention};
use crate::bytes::Cdb;
use crate::io::{Direction, Io};
use crate::nexus::Nexus;
use crate::paths::Path;
use crate::reservations::access::{Access, Permission};
use crate::reservations::lost;
use crate::sense::{AdditionalSense, SenseData, SenseKey};
use crate::status::Status;
use crate::task::{DataIn, Event};
use crate::unit::{LogicalUnit, Readiness};
use std::sync::Arc;

pub(crate) use buffer::Buffers;
pub(crate) use identifying::parse as parse_identifying_information;
pub(crate) use log_pages::ErrorCounters;
pub(crate) use persistent_reserve::is_preempt_and_abort;
pub(crate) use read_write::{Transfer, Wanted};
use row::{Command, Company};
pub use table::command_name;
pub(crate) use timestamp::Clock;
pub(crate) use without_unit::start as start_without_unit;

/// Where a command runs.
pub(crate) struct Context<'a> {
    pub(crate) nexus: &'a Nexus,
    pub(crate) path: &'a Path,
    /// How much Data-Out the initiator announced, where the driver told it.
    pub(crate) announced_bytes: Option<u32>,
}

impl Context<'_> {
    fn unit(&self) -> &LogicalUnit {
        &self.path.unit
    }

    fn itl(&self) -> &Arc<ItlNexus> {
        &self.path.itl
    }

    /// The unit attention that ends the command. It is cleared by that, unless the control page has it stay until REQUEST SENSE
    /// fetches it (SPC-4, UA_INTLCK_CTRL).
    #[cold]
    fn attention(&self) -> Option<SenseData> {
        let attention = if self.unit().mode().keeps_attentions() {
            self.itl().peek().map(|(first, _)| first)
        } else {
            self.itl().take()
        };
        attention.map(UnitAttention::sense)
    }
}

/// The next thing to do, before it is put into the driver's words.
#[derive(Debug)]
pub(crate) enum Step {
    DataOut(u32),
    /// As `DataOut`; and then it goes on alone.
    DataOutThenAlone(u32),
    /// Go on with an empty Data-Out buffer, alone.
    Alone,
    Io(Io),
    /// The unit has taken work on, which keeps other commands out by itself: the command leaves the task set.
    Work {
        until_over: bool,
    },
    /// On the medium of `unit`, as a piece of a copy: asked for again, and looked at anew, when it is in the task set there.
    IoOn {
        unit: Arc<LogicalUnit>,
        /// Through whose nexus: the task set there counts it as a command of that. None: it is not counted.
        path: Option<Path>,
        io: Io,
    },
    Done(DataIn),
    /// The command ends with a status that brings nothing along.
    End(Status),
}

/// What a handler answers: the state to keep and the step to take, or the sense data that ends the command.
pub(crate) type Progress = Result<(State, Step), SenseData>;

/// The handler of a table row. The CDB has passed the row's usage mask.
type Handler = fn(&Context<'_>, &Cdb) -> Progress;

/// What a command keeps while the driver works for it.
#[derive(Debug)]
pub(crate) enum State {
    Finished,
    /// Its turn in the task set has not come.
    Dormant {
        cdb: Cdb,
        announced_bytes: Option<u32>,
    },
    /// It runs when it is alone.
    Deferred {
        handler: Handler,
        cdb: Cdb,
    },
    Read(read_write::Read),
    Write(read_write::Write),
    WriteAtomic(write_atomic::WriteAtomic),
    ReadModifyWrite(read_modify_write::ReadModifyWrite),
    Verify(verify::Verify),
    WriteSame(write_same::WriteSame),
    Protected(Box<protected::Protected>),
    Unmap(unmap::Unmap),
    Flush,
    Prefetch,
    StartStop(Readiness),
    ModeSelect(mode_pages::ModeSelect),
    LbaStatus(lba_status::LbaStatus),
    ReadLong(long::ReadLong),
    WriteLong(long::WriteLong),
    ExtendedCopy(extended_copy::ExtendedCopy),
    Populate(tokens::Populate),
    WriteBuffer(buffer::WriteBuffer),
    SetTimestamp,
    SetPriority(priority::SetPriority),
    SetIdentifyingInformation(identifying::SetIdentifyingInformation),
    WriteUsingToken(tokens::WriteUsingToken),
    PersistentReserve(persistent_reserve::PersistentReserve),
    Begin(sanitize::Begin),
    ExitFailureMode,
    Format(format::Format),
    SetTargetPortGroups {
        length_bytes: u32,
    },
    /// What the command has changed is to be stable before it is answered.
    Saving,
}

impl State {
    /// The command ends without being resumed. What it has changed of the unit's saved state is not left half done.
    #[cold]
    pub(crate) fn abandon(self, unit: &LogicalUnit) {
        match self {
            State::Begin(begin) => begin.abandon(unit),
            State::ExitFailureMode => sanitize::abandon_exit(unit),
            State::Saving => unit.saved().owe(),
            State::PersistentReserve(reserve) if reserve.will_save() => unit.saved().owe(),
            State::ModeSelect(select) => select.abandon(unit),
            _ => {}
        }
    }

    /// True where a marked block is to be read as it is.
    pub(crate) fn ignores_marks(&self) -> bool {
        matches!(self, State::ReadLong(read) if !read.corrected)
    }

    pub(crate) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        match self {
            State::Finished => Err(SenseData::internal()),
            State::Dormant { cdb, announced_bytes } => start_late(context, event, &cdb, announced_bytes),
            State::Deferred { handler, cdb } => run(context, table::find(&cdb)?, handler, &cdb),
            State::Read(read) => read.resume(context, event),
            State::Write(write) => write.resume(context, event),
            State::WriteAtomic(write) => write.resume(context, event),
            State::ReadModifyWrite(command) => command.resume(context, event),
            State::Verify(verify) => verify.resume(context, event),
            State::WriteSame(write_same) => write_same.resume(context, event),
            State::Protected(command) => command.resume(context, event),
            State::Unmap(unmap) => unmap.resume(context, event),
            State::Flush => event.io(Direction::Write, context.unit()).and_then(|_| good()),
            State::Prefetch => cache::prefetched(context, event),
            State::StartStop(readiness) => start_stop::flushed(readiness, context, event),
            State::ModeSelect(select) => select.resume(context, event),
            State::LbaStatus(status) => status.resume(context, event),
            State::ReadLong(read) => read.resume(context, event),
            State::WriteLong(write) => write.resume(context, event),
            State::ExtendedCopy(copy) => copy.resume(context, event),
            State::Populate(populate) => populate.resume(context, event),
            State::WriteBuffer(write) => write.resume(context, event),
            State::SetPriority(set) => set.resume(context, event),
            State::SetTimestamp => timestamp::list_came(context, event),
            State::SetIdentifyingInformation(set) => set.resume(context, event),
            State::WriteUsingToken(write) => write.resume(context, event),
            State::PersistentReserve(reserve) => reserve.resume(context, event),
            State::Begin(begin) => begin.resume(context, event),
            State::ExitFailureMode => sanitize::exit_saved(context, event),
            State::Format(format) => format.resume(context, event),
            State::SetTargetPortGroups { length_bytes } => {
                target_port_groups::list_came(context, length_bytes, event)
            }
            State::Saving => saved(context.unit(), event),
        }
    }
}

/// Begins a command whose turn has come.
#[cold]
fn start_late(context: &Context<'_>, event: Event<'_>, cdb: &Cdb, announced_bytes: Option<u32>) -> Progress {
    match event {
        Event::Turn { .. } => start(&Context { announced_bytes, ..*context }, cdb),
        _ => Err(SenseData::internal()),
    }
}

/// GOOD without data.
fn good() -> Progress {
    Ok((State::Finished, Step::Done(DataIn::None)))
}

/// GOOD for what was written. What was not written as `stable`, for there was a write cache, is flushed first where a reset has
/// turned that off meanwhile: nothing else waits for this command before it tells that the cache is empty.
fn written(context: &Context<'_>, stable: bool) -> Progress {
    if stable || context.unit().write_cache_enabled() {
        good()
    } else {
        Ok((State::Flush, Step::Io(Io::Flush)))
    }
}

/// GOOD once what the command has changed of the unit's saved state is stable, where there is a place for that.
fn save(unit: &LogicalUnit) -> Progress {
    if unit.saved().is_kept() { Ok((State::Saving, Step::Io(Io::SaveState))) } else { good() }
}

/// The change stays where it could not be stored: others may have acted on it. The unit tries again.
fn saved(unit: &LogicalUnit, event: Event<'_>) -> Progress {
    let stored = event.io(Direction::Write, unit);
    if stored.is_err() {
        unit.saved().owe();
    }
    stored.and_then(|_| good())
}

/// A status alone.
fn end(status: Status) -> Progress {
    Ok((State::Finished, Step::End(status)))
}

/// GOOD with parameter data, cut to the allocation length (SPC-4, allocation length).
fn parameter_data(mut data: Vec<u8>, allocation_length: u32) -> Progress {
    data.truncate(allocation_length as usize);
    let data_in = if data.is_empty() { DataIn::None } else { DataIn::Parameter(data) };
    Ok((State::Finished, Step::Done(data_in)))
}

/// Begins a command for a unit that exists. The order of the checks is the order in which a host wants to hear:
/// what it must know, then what it asked wrongly, then why it cannot be done now.
#[allow(clippy::inline_always, reason = "of its two callers one is every command's way, the other is cold")]
#[inline(always)]
pub(crate) fn start(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let found = table::find(cdb);
    let passes = found.as_ref().is_ok_and(|row| row.passes_unit_attention);
    if !passes
        && context.itl().is_pending()
        && let Some(attention) = context.attention()
    {
        return Err(attention);
    }
    let row = found?;
    let unit = context.unit();
    if !row.supported_by(unit) {
        return Err(SenseData::illegal(AdditionalSense::INVALID_COMMAND_OPERATION_CODE));
    }
    match row.company {
        Company::Any => run(context, row, row.handler, cdb),
        Company::NoneAfterData => match run(context, row, row.handler, cdb)? {
            (state, Step::DataOut(length_bytes)) => Ok((state, Step::DataOutThenAlone(length_bytes))),
            progress => Ok(progress),
        },
        // What would refuse it is looked at when its time has come: what it waits for may change it.
        Company::None => Ok((State::Deferred { handler: row.handler, cdb: *cdb }, Step::Alone)),
    }
}

/// Calls the handler of a command, unless something stands in its way at present.
fn run(context: &Context<'_>, row: &Command, handler: Handler, cdb: &Cdb) -> Progress {
    match hindrance(context, row, cdb) {
        Some(end) => end,
        None => handler(context, cdb),
    }
}

/// What stands in the way of a command at present, before its handler looks at what it asks for.
#[allow(clippy::inline_always, reason = "nearly always nothing does, and a call costs as much as to look")]
#[inline(always)]
fn hindrance(context: &Context<'_>, row: &Command, cdb: &Cdb) -> Option<Progress> {
    if context.itl().is_limited()
        && let Some(refusal) = refused_to_nexus(context.itl(), row, cdb)
    {
        return Some(refusal);
    }
    if let Err(sense) = row.check_usage(cdb)
        && row.check_protect_field(context.unit(), cdb).is_none()
    {
        return Some(Err(sense));
    }
    if context.path.read_only
        && let Err(sense) = row.check_naca(cdb)
    {
        return Some(Err(sense));
    }
    check_unit(context, row).err().map(Err)
}

/// What a READ or WRITE moves, if [`start`] would let it go to the medium now, for that alone and once. Nothing changes.
#[inline]
pub(crate) fn unhindered(context: &Context<'_>, cdb: &Cdb, wanted: &Wanted) -> Option<Transfer> {
    let row = table::find(cdb).ok()?;
    let is_hindered = context.itl().is_pending()
        || !row.supported_by(context.unit())
        || row.company != Company::Any
        || hindrance(context, row, cdb).is_some();
    if is_hindered { None } else { wanted.plainly(context) }
}

/// What ends a command that has begun and had to wait, for its data or for its turn at the medium: the unit was
/// another's meanwhile, who may have stopped, protected, reserved or begun to erase it.
#[cold]
pub(crate) fn refused_after_wait(context: &Context<'_>, state: &State, cdb: &Cdb) -> Option<Progress> {
    if matches!(state, State::Deferred { .. }) {
        // All of it is still to be looked at.
        return None;
    }
    let row = match table::find(cdb) {
        Ok(row) => row,
        Err(sense) => return Some(Err(sense)),
    };
    let refusal = if context.itl().is_limited() { refused_to_nexus(context.itl(), row, cdb) } else { None };
    refusal.or_else(|| check_unit(context, row).err().map(Err))
}

/// What keeps a command from the unit, whichever nexus it comes from.
#[allow(clippy::inline_always, reason = "as above")]
#[inline(always)]
fn check_unit(context: &Context<'_>, row: &Command) -> Result<(), SenseData> {
    let unit = context.unit();
    if !row.runs_when_occupied
        && let Some(sense) = unit.occupied()
        && !row.mends(unit.work().occupation())
    {
        return Err(sense);
    }
    if !row.runs_when_not_ready
        && let Some(sense) = not_ready(unit)
    {
        return Err(sense);
    }
    let is_protected = row.writes_medium && context.path.write_protected();
    if is_protected || row.changes_for_others && context.path.read_only {
        return Err(write_protected(context.path));
    }
    Ok(())
}

/// What ends a command that the state of its target port, a reservation, or the loss of reservations keeps its nexus from.
#[cold]
fn refused_to_nexus(itl: &ItlNexus, row: &Command, cdb: &Cdb) -> Option<Progress> {
    if let Some(sense) = itl.access_state().refusal(row.works_in) {
        return Some(Err(sense));
    }
    match itl.permission() {
        Permission::Lost => (!row.survives_loss(cdb)).then(|| Err(lost::sense())),
        permission => (!permission.allows(row.access, cdb)).then(|| end(Status::ReservationConflict)),
    }
}

/// The command may change the medium.
pub(crate) fn writes_medium(cdb: &Cdb) -> bool {
    table::find(cdb).is_ok_and(|row| row.writes_medium)
}

/// Commands that only tell what the device server knows, and have to be answered whatever else goes on: no other
/// command's order is a concern of theirs.
pub(crate) fn touches_nothing(cdb: &Cdb) -> bool {
    table::find(cdb).is_ok_and(|row| row.passes_unit_attention)
}

/// Whether a CDB is one that the device server takes: a command of the table, with no bit set that it does not look at.
#[cfg(test)]
pub(crate) fn check_cdb(cdb: &Cdb) -> Result<(), SenseData> {
    table::find(cdb)?.check_usage(cdb)
}

/// Why the unit cannot reach its medium, if it cannot.
fn not_ready(unit: &LogicalUnit) -> Option<SenseData> {
    let code = match unit.readiness() {
        Readiness::Ready => return None,
        Readiness::Stopped => AdditionalSense::INITIALIZING_COMMAND_REQUIRED,
        Readiness::Ejected => AdditionalSense::MEDIUM_NOT_PRESENT,
    };
    Some(SenseData::new(SenseKey::NotReady, code))
}

/// Why nobody can reach the unit's medium now, if nobody can.
fn is_not_ready(unit: &LogicalUnit) -> Option<SenseData> {
    unit.occupied().or_else(|| not_ready(unit))
}

/// Why the copy manager may not reach a unit's medium, if it may not.
fn refuses_copy(path: &Path, writes: bool) -> Option<SenseData> {
    if let Some(sense) = path.itl.access_state().refusal(WorksIn::Active) {
        return Some(sense);
    }
    let access = if writes { Access::Writes } else { Access::Reads };
    if !path.itl.permission().allows(access, &[0; 16]) {
        return Some(third_party_failure());
    }
    is_not_ready(&path.unit).or_else(|| (writes && path.write_protected()).then(|| write_protected(path)))
}

/// A unit does not do its part of a copy (SPC-4).
fn third_party_failure() -> SenseData {
    SenseData::new(SenseKey::CopyAborted, AdditionalSense::THIRD_PARTY_DEVICE_FAILURE)
}

fn write_protected(path: &Path) -> SenseData {
    let code = if path.read_only || path.unit.config().read_only {
        AdditionalSense::WRITE_PROTECTED
    } else {
        AdditionalSense::SOFTWARE_WRITE_PROTECTED
    };
    SenseData::new(SenseKey::DataProtect, code)
}
