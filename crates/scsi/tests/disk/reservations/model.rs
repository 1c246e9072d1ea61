//! A reference model of reservations, written from SPC-4's tables and apart from the crate: sets and plain conditions,
//! no attempt at speed.

use std::collections::BTreeMap;

/// A nexus, by its place among those of the test.
pub(crate) type Who = usize;

/// Whom a unit attention is for, with its additional sense code and qualifier.
pub(crate) type Told = (Who, (u8, u8));

/// One PERSISTENT RESERVE OUT, or another event that reservations know of.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Register {
        key: u64,
        new: u64,
        ignore: bool,
        along: Option<Vec<Who>>,
        all_ports: bool,
        aptpl: bool,
    },
    Reserve {
        key: u64,
        kind: u8,
    },
    Release {
        key: u64,
        kind: u8,
    },
    Clear {
        key: u64,
    },
    Preempt {
        key: u64,
        victim: u64,
        kind: u8,
        abort: bool,
    },
    Move {
        key: u64,
        new: u64,
        to: Who,
        unregister: bool,
    },
    Spc2Reserve,
    Spc2Release,
    ReplaceLost {
        key: u64,
        new: u64,
        kind: u8,
    },
    NexusLoss,
    LogicalUnitReset,
    /// The device starts again, and what was kept cannot be read. All nexuses are new.
    Loss,
}

/// How a command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Good,
    Conflict,
    /// Additional sense code and qualifier of ILLEGAL REQUEST.
    Illegal(u8, u8),
    /// DATA PROTECT, PERSISTENT RESERVATION INFORMATION LOST.
    Lost,
}

pub(crate) const RESERVATIONS_PREEMPTED: (u8, u8) = (0x2a, 0x03);
pub(crate) const RESERVATIONS_RELEASED: (u8, u8) = (0x2a, 0x04);
pub(crate) const REGISTRATIONS_PREEMPTED: (u8, u8) = (0x2a, 0x05);

const BAD_PARAMETER: End = End::Illegal(0x26, 0x00);

/// What a command does, for the conflict tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// INQUIRY
    Identify,
    /// TEST UNIT READY
    Inspect,
    /// READ
    Read,
    /// WRITE
    Write,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) keys: BTreeMap<Who, u64>,
    /// TYPE and who made it.
    pub(crate) held: Option<(u8, Who)>,
    pub(crate) spc2: Option<Who>,
    pub(crate) generation: u32,
    /// Registrations and reservation are kept over a loss of power (APTPL).
    pub(crate) kept: bool,
    /// Recoverable loss of persistent reservation information.
    pub(crate) lost: bool,
}

impl Model {
    fn all_hold(&self) -> bool {
        matches!(self.held, Some((7 | 8, _)))
    }

    pub(crate) fn holds(&self, who: Who) -> bool {
        match self.held {
            Some((7 | 8, _)) => self.keys.contains_key(&who),
            Some((_, holder)) => holder == who,
            None => false,
        }
    }

    /// How a command of a class ends.
    pub(crate) fn meets(&self, who: Who, class: Class) -> End {
        match class {
            Class::Identify => End::Good,
            _ if self.lost => End::Lost,
            _ if self.allows(who, class) => End::Good,
            _ => End::Conflict,
        }
    }

    /// SPC-4 and SBC-3, commands allowed in the presence of reservations, one line for each column.
    fn allows(&self, who: Who, class: Class) -> bool {
        if let Some(holder) = self.spc2 {
            return holder == who || class == Class::Identify;
        }
        let Some((kind, _)) = self.held else { return true };
        let registered = self.keys.contains_key(&who);
        match (kind, class) {
            (_, Class::Identify | Class::Inspect) => true,
            _ if self.holds(who) => true,
            (1, Class::Read) => true,
            (1, Class::Write) | (3, _) => false,
            (5..=8, _) if registered => true,
            (5 | 7, Class::Read) => true,
            _ => false,
        }
    }

    /// Does `step` for `who`. `same_host(a, b)`: the two are one initiator port through different target ports. Returns how
    /// it ends, whom it tells what, and whose tasks a PREEMPT AND ABORT aborts.
    pub(crate) fn step(
        &mut self,
        who: Who,
        step: &Step,
        same_host: impl Fn(Who, Who) -> bool,
    ) -> (End, Vec<Told>, Vec<Who>) {
        let mut told = Vec::new();
        let mut aborted = Vec::new();
        let before = self.clone();
        let end = self.act(who, step, same_host, &mut told, &mut aborted);
        if end != End::Good {
            *self = before;
            told.clear();
            aborted.clear();
        }
        (end, told, aborted)
    }

    fn act(
        &mut self,
        who: Who,
        step: &Step,
        same_host: impl Fn(Who, Who) -> bool,
        told: &mut Vec<Told>,
        aborted: &mut Vec<Who>,
    ) -> End {
        let event = matches!(step, Step::NexusLoss | Step::LogicalUnitReset | Step::Loss);
        if self.lost && !event && !matches!(step, Step::ReplaceLost { .. }) {
            return End::Lost;
        }
        let persistent = !event && !matches!(step, Step::Spc2Reserve | Step::Spc2Release);
        if persistent && self.spc2.is_some() {
            return End::Conflict;
        }
        let registered = self.keys.get(&who).copied();
        match step {
            Step::Register { key, new, ignore, along, all_ports, aptpl } => {
                let fits = |registered: Option<u64>| *ignore || registered.unwrap_or(0) == *key;
                if !fits(registered) {
                    return End::Conflict;
                }
                if along.is_some() && (*ignore || registered.is_some()) {
                    return BAD_PARAMETER;
                }
                let with_ports = |of: Who| {
                    (0..4)
                        .filter(|&other| other == of || *all_ports && same_host(of, other))
                        .collect::<Vec<_>>()
                };
                let own: Vec<Who> = with_ports(who)
                    .into_iter()
                    .filter(|&other| other == who || fits(self.keys.get(&other).copied()))
                    .collect();
                if *new != 0 {
                    let others: Vec<Who> = along
                        .iter()
                        .flatten()
                        .flat_map(|&other| with_ports(other))
                        .filter(|&o| o != who)
                        .collect();
                    if others.iter().any(|other| self.keys.contains_key(other)) {
                        return BAD_PARAMETER;
                    }
                    self.keys.extend(own.iter().chain(&others).map(|&other| (other, *new)));
                } else if registered.is_some() {
                    let kind = self.held.map_or(0, |(kind, _)| kind);
                    let ends = !self.all_hold() && own.iter().any(|&other| self.holds(other));
                    self.keys.retain(|other, _| !own.contains(other));
                    if ends || self.all_hold() && self.keys.is_empty() {
                        self.held = None;
                        if kind >= 5 {
                            told.extend(self.keys.keys().map(|&other| (other, RESERVATIONS_RELEASED)));
                        }
                    }
                } else {
                    // Register behaviors, not registered, SERVICE ACTION RESERVATION KEY zero: do nothing.
                    return End::Good;
                }
                self.kept = *aptpl;
                self.generation += 1;
                End::Good
            }
            Step::Reserve { key, .. }
            | Step::Release { key, .. }
            | Step::Clear { key }
            | Step::Preempt { key, .. }
            | Step::Move { key, .. }
                if registered != Some(*key) =>
            {
                End::Conflict
            }
            Step::Reserve { kind, .. } => match self.held {
                None => {
                    self.held = Some((*kind, who));
                    End::Good
                }
                Some((present, _)) if present == *kind && self.holds(who) => End::Good,
                Some(_) => End::Conflict,
            },
            Step::Release { kind, .. } => {
                if !self.holds(who) {
                    return End::Good;
                }
                if self.held.map(|(present, _)| present) != Some(*kind) {
                    return End::Illegal(0x26, 0x04);
                }
                self.held = None;
                if *kind >= 5 {
                    let others = self.keys.keys().filter(|&&other| other != who);
                    told.extend(others.map(|&other| (other, RESERVATIONS_RELEASED)));
                }
                End::Good
            }
            Step::Clear { .. } => {
                let others = self.keys.keys().filter(|&&other| other != who);
                told.extend(others.map(|&other| (other, RESERVATIONS_PREEMPTED)));
                self.keys.clear();
                self.held = None;
                self.generation += 1;
                End::Good
            }
            Step::Preempt { victim, kind, abort, .. } => {
                let lost = self.preempt(who, *victim, *kind, told);
                match lost {
                    Ok(lost) if *abort => aborted.extend(lost),
                    Ok(_) => {}
                    Err(end) => return end,
                }
                self.generation += 1;
                End::Good
            }
            Step::Move { new, to, unregister, .. } => {
                if self.all_hold() || !self.holds(who) {
                    return End::Conflict;
                }
                if *new == 0 || *to == who {
                    return BAD_PARAMETER;
                }
                self.keys.insert(*to, *new);
                self.held = self.held.map(|(kind, _)| (kind, *to));
                if *unregister {
                    self.keys.remove(&who);
                }
                // Moves of these tests come without APTPL.
                self.kept = false;
                self.generation += 1;
                End::Good
            }
            Step::ReplaceLost { .. } if !self.lost => End::Illegal(0x26, 0x04),
            Step::ReplaceLost { key, new, .. } if *key != 0 || *new == 0 => BAD_PARAMETER,
            Step::ReplaceLost { new, kind, .. } => {
                *self = Model { held: Some((*kind, who)), ..Model::default() };
                self.keys.insert(who, *new);
                End::Good
            }
            Step::Loss => {
                *self = Model { lost: true, ..Model::default() };
                End::Good
            }
            Step::Spc2Reserve | Step::Spc2Release if !self.keys.is_empty() => {
                let keeps_out = self.held.is_none() || !self.allows(who, Class::Write);
                if keeps_out { End::Conflict } else { End::Good }
            }
            Step::Spc2Reserve if self.spc2.is_some_and(|holder| holder != who) => End::Conflict,
            Step::Spc2Reserve => {
                self.spc2 = Some(who);
                End::Good
            }
            Step::Spc2Release | Step::NexusLoss => {
                if self.spc2 == Some(who) {
                    self.spc2 = None;
                }
                End::Good
            }
            Step::LogicalUnitReset => {
                self.spc2 = None;
                End::Good
            }
        }
    }

    /// Who lost its registration, without `who`.
    fn preempt(&mut self, who: Who, victim: u64, kind: u8, told: &mut Vec<Told>) -> Result<Vec<Who>, End> {
        let of_holder = self.held.and_then(|(_, holder)| self.keys.get(&holder).copied());
        let takes_over =
            if self.all_hold() { victim == 0 } else { self.held.is_some() && of_holder == Some(victim) };
        if victim == 0 && !takes_over {
            return Err(BAD_PARAMETER);
        }
        let hit: Vec<Who> = self
            .keys
            .iter()
            .filter(|&(_, &key)| victim == 0 || key == victim)
            .map(|(&other, _)| other)
            .filter(|&other| !takes_over || other != who)
            .collect();
        if hit.is_empty() && !takes_over {
            return Err(End::Conflict);
        }
        self.keys.retain(|other, _| !hit.contains(other));
        let lost: Vec<Who> = hit.into_iter().filter(|&other| other != who).collect();
        told.extend(lost.iter().map(|&other| (other, REGISTRATIONS_PREEMPTED)));
        if takes_over {
            let changed = self.held.map(|(present, _)| present) != Some(kind);
            self.held = Some((kind, who));
            if changed {
                let others = self.keys.keys().filter(|&&other| other != who);
                told.extend(others.map(|&other| (other, RESERVATIONS_RELEASED)));
            }
        } else if self.keys.is_empty() {
            self.held = None;
        }
        Ok(lost)
    }
}
