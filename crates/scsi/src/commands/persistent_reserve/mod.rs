//! PERSISTENT RESERVE OUT (SPC-4). What the service actions do is in `crate::reservations`, PERSISTENT RESERVE IN in
//! [`report`].
//!
//! The change is made at once; then the commands of who was preempted are aborted, if that was asked for, then the new
//! state is stored, if it is kept over a restart, and then the command is answered. Where it could not be stored, what only claims
//! something for the nexus that asks is taken back before its initiator is told; the rest stays, for others may have acted on it.

mod parameters;
pub(super) mod report;

use super::{Context, Progress, State, Step, end, good, save};
use crate::attention::UnitAttention;
use crate::bytes::{Cdb, cdb32};
use crate::io::{Direction, Io};
use crate::nexus::NexusName;
use crate::reservations::{Effects, Key, Refusal, ReservationType, Reservations};
use crate::sense::{AdditionalSense, SenseData};
use crate::status::Status;
use crate::task::Event;
use crate::unit::LogicalUnit;
use parameters::{LIST_BYTES, LIST_BYTES_MAX, List, MoveList};

/// Service actions (SPC-4, PERSISTENT RESERVE OUT). The table has let no other through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Register,
    Reserve,
    Release,
    Clear,
    Preempt { aborts: bool },
    RegisterAndIgnore,
    RegisterAndMove,
    ReplaceLost,
}

/// PERSISTENT RESERVE OUT with the service action PREEMPT AND ABORT.
pub(crate) fn is_preempt_and_abort(cdb: &Cdb) -> bool {
    cdb[0] == 0x5f && Action::of(cdb) == Action::Preempt { aborts: true }
}

impl Action {
    fn of(cdb: &Cdb) -> Action {
        match cdb[1] & 0x1f {
            0 => Action::Register,
            1 => Action::Reserve,
            2 => Action::Release,
            3 => Action::Clear,
            4 => Action::Preempt { aborts: false },
            5 => Action::Preempt { aborts: true },
            6 => Action::RegisterAndIgnore,
            7 => Action::RegisterAndMove,
            _ => Action::ReplaceLost,
        }
    }

    /// SCOPE and TYPE are looked at.
    fn has_type(self) -> bool {
        self.needs_type() || matches!(self, Action::Preempt { .. })
    }

    /// TYPE is looked at in every case. PREEMPT does so where it takes a reservation over.
    fn needs_type(self) -> bool {
        matches!(self, Action::Reserve | Action::Release | Action::ReplaceLost)
    }

    /// The list may be longer than the fixed part: TransportIDs follow, or are refused by their bit.
    fn may_name_others(self) -> bool {
        matches!(self, Action::Register | Action::RegisterAndIgnore | Action::RegisterAndMove)
    }
}

pub(super) fn out(context: &Context<'_>, cdb: &Cdb) -> Progress {
    if context.unit().reservations().is_reserved_by_spc2() {
        return end(Status::ReservationConflict);
    }
    let action = Action::of(cdb);
    let length_bytes = cdb32::<5>(cdb);
    let is_possible = length_bytes == LIST_BYTES
        || action.may_name_others() && (LIST_BYTES..=LIST_BYTES_MAX).contains(&length_bytes);
    if !is_possible {
        return Err(SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR));
    }
    let (scope, code) = (cdb[2] >> 4, cdb[2] & 0x0f);
    if action.has_type() && scope != 0 {
        return Err(SenseData::invalid_cdb_field(2, 7));
    }
    let kind = ReservationType::from_code(code);
    if action.needs_type() && kind.is_none() {
        return Err(SenseData::invalid_cdb_field(2, 3));
    }
    let waiting = PersistentReserve::List { action, kind, length_bytes };
    Ok((State::PersistentReserve(waiting), Step::DataOut(length_bytes)))
}

/// A PERSISTENT RESERVE OUT that waits for its list, or for the aborts that it asked for.
#[derive(Debug)]
pub(crate) enum PersistentReserve {
    List {
        action: Action,
        kind: Option<ReservationType>,
        length_bytes: u32,
    },
    Aborting {
        stores: bool,
        nexuses: Vec<NexusName>,
    },
    /// The state is being stored. What was before, if the command can be taken back.
    Claiming {
        before: Box<Reservations>,
    },
}

impl PersistentReserve {
    /// A change is still to be stored.
    pub(super) fn will_save(&self) -> bool {
        matches!(self, PersistentReserve::Aborting { stores: true, .. } | PersistentReserve::Claiming { .. })
    }

    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        match self {
            PersistentReserve::List { action, kind, length_bytes } => {
                let list = event.data_out(length_bytes)?;
                if list.len() as u32 != length_bytes {
                    return Err(SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR));
                }
                let (mut stores, mut before) = (false, None);
                match change(context, action, kind, list, (&mut stores, &mut before)) {
                    Ok(effects) => match before {
                        Some(before) if stores && context.unit().saved().is_kept() => claim(before),
                        _ => carry_on(context.unit(), action, effects, stores),
                    },
                    Err(Refusal::Conflict) => end(Status::ReservationConflict),
                    Err(Refusal::Sense(sense)) => Err(sense),
                }
            }
            PersistentReserve::Aborting { stores, nexuses } => {
                // The commands that it has blocked are gone, as far as they are of those nexuses.
                context.unit().tasks().end_allegiance_of_any(&nexuses);
                context.unit().unsettled().settle(&nexuses);
                let aborted = event.io(Direction::Write, context.unit());
                if aborted.is_err() && stores {
                    context.unit().saved().owe();
                }
                aborted.and_then(|_| store(context.unit(), stores))
            }
            PersistentReserve::Claiming { before } => {
                let stored = event.io(Direction::Write, context.unit());
                if stored.is_err() {
                    take_back(context.unit(), &before);
                }
                stored.and_then(|_| good())
            }
        }
    }
}

/// Makes the change. `stores` becomes true where it has to be stable before it is answered, and `before` what was before where the
/// command only claims something for its nexus.
fn change(
    context: &Context<'_>,
    action: Action,
    kind: Option<ReservationType>,
    list: &[u8],
    (stores, before): (&mut bool, &mut Option<Reservations>),
) -> Result<Effects, Refusal> {
    let unit = context.unit();
    let name = context.nexus.name();
    if action == Action::RegisterAndMove {
        let list = MoveList::parse(list)?;
        refuse_what_is_not_kept(unit, list.aptpl, 17)?;
        return unit.change_reservations(|reservations| {
            *stores = reservations.aptpl();
            let request = list.resolve(context, reservations)?;
            let effects = reservations.register_and_move(name, &request)?;
            *stores |= reservations.aptpl();
            Ok(effects)
        });
    }
    let list = List::parse(list)?;
    let (key, victim) = (list.key, list.service_action_key);
    let registration = match action {
        Action::Register | Action::RegisterAndIgnore => {
            refuse_what_is_not_kept(unit, list.aptpl, 20)?;
            Some(list.registration(context, action == Action::RegisterAndIgnore)?)
        }
        _ => {
            list.refuse_initiator_ports()?;
            None
        }
    };
    if let (Action::ReplaceLost, Some(kind)) = (action, kind) {
        let replacement = list.replacement(kind)?;
        // That they are lost is stored, and goes whether the new ones are kept or not.
        *stores = true;
        return unit.change_reservations(|reservations| reservations.replace_lost(name, replacement));
    }
    unit.change_reservations(|reservations| {
        if reservations.is_reserved_by_spc2() {
            return Err(Refusal::Conflict);
        }
        *stores = reservations.aptpl();
        let claims = match &registration {
            Some(registration) => registration.new_key != Key::NONE,
            None => action == Action::Reserve,
        };
        *before = claims.then(|| reservations.clone());
        let effects = match (action, kind, &registration) {
            (_, _, Some(registration)) => reservations.register(name, registration),
            (Action::Reserve, Some(kind), _) => reservations.reserve(name, key, kind),
            (Action::Release, Some(kind), _) => reservations.release(name, key, kind),
            (Action::Preempt { aborts: true }, kind, _) => {
                preempt_and_abort(unit, reservations, name, (key, victim), kind)
            }
            (Action::Preempt { aborts: false }, kind, _) => reservations.preempt(name, (key, victim), kind),
            _ => reservations.clear(name, key),
        }?;
        *stores |= reservations.aptpl();
        Ok(effects)
    })
}

/// PREEMPT AND ABORT. Where an earlier one with the same victim was cut off before the commands were gone, which have lost their
/// registrations by it, it goes on with those: RESERVATION CONFLICT, as for a key that nobody is registered with, or GOOD at once would
/// have its initiator believe that nothing of them reaches the medium any more.
fn preempt_and_abort(
    unit: &LogicalUnit,
    reservations: &mut Reservations,
    name: &NexusName,
    (key, victim): (Key, Key),
    kind: Option<ReservationType>,
) -> Result<Effects, Refusal> {
    let is_registered = reservations.key_of(name) == Some(key);
    let preempted = reservations.preempt(name, (key, victim), kind);
    let mut unsettled = unit.unsettled();
    let mut left = if is_registered { unsettled.of(victim, reservations) } else { Vec::new() };
    left.retain(|nexus| nexus != name);
    let mut effects = match preempted {
        // Nobody is registered with the key any more, or all but this one were preempted, who now holds the reservation alone.
        Err(_) if !left.is_empty() && kind.is_some() => Effects::default(),
        preempted => preempted?,
    };
    left.retain(|nexus| !effects.preempted.contains(nexus));
    // What they have begun since then ends without an answer, too.
    effects.told.extend(left.iter().map(|nexus| (nexus.clone(), UnitAttention::CommandsCleared)));
    effects.preempted.extend(left);
    unsettled.begin(victim, &effects.preempted);
    Ok(effects)
}

/// APTPL where nothing outlives the process (SPC-4: INVALID FIELD IN PARAMETER LIST).
fn refuse_what_is_not_kept(unit: &LogicalUnit, aptpl: bool, byte: u16) -> Result<(), SenseData> {
    if aptpl && !unit.saved().is_kept() {
        return Err(SenseData::invalid_parameter_bit(byte, 0));
    }
    Ok(())
}

fn carry_on(unit: &LogicalUnit, action: Action, effects: Effects, stores: bool) -> Progress {
    if action == (Action::Preempt { aborts: true }) && !effects.preempted.is_empty() {
        // Without a reservation nothing else would keep them from going on here, as parts of commands of other units.
        unit.end_copies_through(&effects.preempted);
        let io = Io::AbortTasks { nexuses: effects.preempted.clone(), is_told: false };
        let aborting = PersistentReserve::Aborting { stores, nexuses: effects.preempted };
        return Ok((State::PersistentReserve(aborting), Step::Io(io)));
    }
    store(unit, stores)
}

fn claim(before: Reservations) -> Progress {
    let claiming = PersistentReserve::Claiming { before: Box::new(before) };
    Ok((State::PersistentReserve(claiming), Step::Io(Io::SaveState)))
}

/// The claim could not be stored. It may be all the same, so the state without it is stored when that can be.
fn take_back(unit: &LogicalUnit, before: &Reservations) {
    // Where others have come since then, it stays.
    let _ = unit.change_reservations(|reservations| {
        if reservations.take_back(before) { Ok(Effects::default()) } else { Err(Refusal::Conflict) }
    });
    unit.saved().owe();
}

fn store(unit: &LogicalUnit, stores: bool) -> Progress {
    if stores { save(unit) } else { good() }
}
