//! Persistent reservations of one logical unit, and RESERVE and RELEASE beside them (SPC-4, reservations; SPC-2).
//!
//! Pure bookkeeping: who is registered, who holds what, and whom a change must be told to. CDBs and parameter lists are
//! read in `commands/persistent_reserve`; what a reservation keeps others from is in [`access`].

pub(crate) mod access;
pub(crate) mod lost;
pub(crate) mod preempt;
mod stored;
pub(crate) mod unsettled;

use crate::attention::UnitAttention;
use crate::nexus::NexusName;
use crate::sense::{AdditionalSense, SenseData};

use access::Permission;

/// The most registered I_T nexuses of a unit: 64 hosts with four paths each, four times over.
pub(crate) const REGISTRANTS_MAX: usize = 1024;

/// A reservation key. Zero is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) u64);

impl Key {
    pub(crate) const NONE: Key = Key(0);
}

/// TYPE field of a persistent reservation (SPC-4). The discriminant is the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReservationType {
    /// Only the holder writes.
    WriteExclusive = 1,
    /// Only the holder reads and writes.
    ExclusiveAccess = 3,
    /// Only who is registered writes.
    WriteExclusiveRegistrantsOnly = 5,
    /// Only who is registered reads and writes.
    ExclusiveAccessRegistrantsOnly = 6,
    /// As type 5, and every registrant is a holder.
    WriteExclusiveAllRegistrants = 7,
    /// As type 6, and every registrant is a holder.
    ExclusiveAccessAllRegistrants = 8,
}

impl ReservationType {
    /// All types, in the order of their codes.
    pub const ALL: [ReservationType; 6] = [
        ReservationType::WriteExclusive,
        ReservationType::ExclusiveAccess,
        ReservationType::WriteExclusiveRegistrantsOnly,
        ReservationType::ExclusiveAccessRegistrantsOnly,
        ReservationType::WriteExclusiveAllRegistrants,
        ReservationType::ExclusiveAccessAllRegistrants,
    ];

    /// The type with this code, if there is one.
    pub fn from_code(code: u8) -> Option<ReservationType> {
        ReservationType::ALL.into_iter().find(|kind| *kind as u8 == code)
    }

    /// Others may read.
    fn is_write_exclusive(self) -> bool {
        use ReservationType::*;
        matches!(self, WriteExclusive | WriteExclusiveRegistrantsOnly | WriteExclusiveAllRegistrants)
    }

    /// Who is registered may do all that the holder may.
    fn is_for_registrants(self) -> bool {
        !matches!(self, ReservationType::WriteExclusive | ReservationType::ExclusiveAccess)
    }

    /// Every registrant is a holder.
    fn is_held_by_all(self) -> bool {
        use ReservationType::*;
        matches!(self, WriteExclusiveAllRegistrants | ExclusiveAccessAllRegistrants)
    }
}

/// A registered I_T nexus. It stays registered when the nexus is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registrant {
    pub(crate) nexus: NexusName,
    pub(crate) key: Key,
}

/// A persistent reservation of the whole unit (LU_SCOPE; there is no other scope).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) kind: ReservationType,
    /// `None` where every registrant is a holder.
    holder: Option<NexusName>,
}

/// Why a command changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// RESERVATION CONFLICT status.
    Conflict,
    Sense(SenseData),
}

impl From<SenseData> for Refusal {
    fn from(sense: SenseData) -> Refusal {
        Refusal::Sense(sense)
    }
}

/// What a change brings for others.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// Unit attentions, none for the nexus that made the change.
    pub(crate) told: Vec<(NexusName, UnitAttention)>,
    /// Who lost its registration to a PREEMPT.
    pub(crate) preempted: Vec<NexusName>,
}

/// What REGISTER and REGISTER AND IGNORE EXISTING KEY ask for.
#[derive(Debug)]
pub(crate) struct Registration {
    /// RESERVATION KEY; `None`: the existing key is ignored.
    pub(crate) key: Option<Key>,
    /// SERVICE ACTION RESERVATION KEY.
    pub(crate) new_key: Key,
    /// SPEC_I_PT: others that are registered along.
    pub(crate) specified: Option<Vec<NexusName>>,
    /// ALL_TG_PT: the same initiator port through the other target ports.
    pub(crate) elsewhere: Vec<NexusName>,
    pub(crate) aptpl: bool,
}

/// The reservations of one logical unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reservations {
    /// In the order of registration. Not empty while there is a reservation.
    registrants: Vec<Registrant>,
    reservation: Option<Reservation>,
    /// PRGENERATION
    generation: u32,
    /// Registrations and the reservation are kept over a restart.
    aptpl: bool,
    /// Who holds a RESERVE of SPC-2. Never together with registrants.
    reserved_by: Option<NexusName>,
    /// What was kept cannot be read any more ([`lost`]). Nobody is registered, and nothing reserved, while it is set.
    is_lost: bool,
    /// Commands that changed this, or were good because it was so already. Not kept over a restart.
    commands: u64,
}

impl Reservations {
    pub(crate) fn registrants(&self) -> &[Registrant] {
        &self.registrants
    }

    pub(crate) fn reservation(&self) -> Option<&Reservation> {
        self.reservation.as_ref()
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    pub(crate) fn aptpl(&self) -> bool {
        self.aptpl
    }

    /// True while a RESERVE is in effect: then every PERSISTENT RESERVE command conflicts (SPC-2, RESERVE).
    pub(crate) fn is_reserved_by_spc2(&self) -> bool {
        self.reserved_by.is_some()
    }

    pub(crate) fn key_of(&self, nexus: &NexusName) -> Option<Key> {
        self.registrants.iter().find(|registrant| registrant.nexus == *nexus).map(|registrant| registrant.key)
    }

    pub(crate) fn is_holder(&self, nexus: &NexusName) -> bool {
        match &self.reservation {
            None => false,
            Some(Reservation { holder: Some(holder), .. }) => holder == nexus,
            Some(Reservation { holder: None, .. }) => self.key_of(nexus).is_some(),
        }
    }

    /// What `nexus` may do now.
    pub(crate) fn permission(&self, nexus: &NexusName) -> Permission {
        if self.is_lost {
            return Permission::Lost;
        }
        if let Some(holder) = &self.reserved_by {
            return if holder == nexus { Permission::All } else { Permission::Identify };
        }
        let Some(reservation) = &self.reservation else { return Permission::All };
        let shares = reservation.kind.is_for_registrants() && self.key_of(nexus).is_some();
        if shares || self.is_holder(nexus) {
            Permission::All
        } else if reservation.kind.is_write_exclusive() {
            Permission::Read
        } else {
            Permission::Inspect
        }
    }

    /// Every service action but REGISTER needs the key under which the nexus is registered (SPC-4).
    fn check_key(&self, nexus: &NexusName, key: Key) -> Result<(), Refusal> {
        if self.key_of(nexus) == Some(key) { Ok(()) } else { Err(Refusal::Conflict) }
    }

    /// A command has changed this, or found it as it asked for.
    pub(crate) fn count_command(&mut self) {
        self.commands = self.commands.wrapping_add(1);
    }

    /// Takes the one command back that came after `before`. False: others have come since then, whose answers may rely on it.
    pub(crate) fn take_back(&mut self, before: &Reservations) -> bool {
        if self.commands != before.commands.wrapping_add(1) {
            return false;
        }
        let generation = self.generation;
        *self = Reservations { generation, ..before.clone() };
        // It is counted as well, and the one before it is the last one again.
        self.commands = before.commands.wrapping_sub(1);
        if generation != before.generation {
            // Who has read the generation in between is to see that it was not the last change.
            self.count_change();
        }
        true
    }

    fn count_change(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    fn tell_registrants(&self, except: &NexusName, attention: UnitAttention, effects: &mut Effects) {
        let others = self.registrants.iter().filter(|registrant| registrant.nexus != *except);
        effects.told.extend(others.map(|registrant| (registrant.nexus.clone(), attention)));
    }

    fn set_key(&mut self, nexus: &NexusName, key: Key) {
        match self.registrants.iter_mut().find(|registrant| registrant.nexus == *nexus) {
            Some(registrant) => registrant.key = key,
            None => self.registrants.push(Registrant { nexus: nexus.clone(), key }),
        }
    }

    /// Fails where registering those that are not yet registered would be too much.
    fn check_room<'a>(&self, nexuses: impl Iterator<Item = &'a NexusName>) -> Result<(), Refusal> {
        let new = nexuses.filter(|nexus| self.key_of(nexus).is_none()).count();
        if self.registrants.len() + new > REGISTRANTS_MAX {
            return Err(SenseData::illegal(AdditionalSense::INSUFFICIENT_REGISTRATION_RESOURCES).into());
        }
        Ok(())
    }

    /// REGISTER and REGISTER AND IGNORE EXISTING KEY (SPC-4, registering).
    ///
    /// # Errors
    /// [`Refusal`]; nothing is changed then.
    pub(crate) fn register(&mut self, nexus: &NexusName, request: &Registration) -> Result<Effects, Refusal> {
        let registered = self.key_of(nexus);
        let is_known_by = |registered: Option<Key>| match request.key {
            Some(key) => registered.unwrap_or(Key::NONE) == key,
            None => true,
        };
        if !is_known_by(registered) {
            return Err(Refusal::Conflict);
        }
        if request.specified.is_some() && registered.is_some() {
            return Err(SenseData::invalid_parameter_bit(20, 3).into());
        }
        // Where the command would conflict through another port, nothing happens to the nexus there.
        let elsewhere: Vec<_> =
            request.elsewhere.iter().filter(|other| is_known_by(self.key_of(other))).cloned().collect();
        let specified = request.specified.as_deref().unwrap_or_default();
        let mut effects = Effects::default();
        if request.new_key != Key::NONE {
            if specified.iter().any(|other| self.key_of(other).is_some()) {
                return Err(SenseData::invalid_parameter(24).into());
            }
            let all = || std::iter::once(nexus).chain(&elsewhere).chain(specified);
            self.check_room(all())?;
            all().for_each(|nexus| self.set_key(nexus, request.new_key));
        } else if registered.is_some() {
            let leaving: Vec<_> = std::iter::once(nexus).chain(&elsewhere).cloned().collect();
            self.unregister(&leaving, &mut effects);
        } else {
            // "Do nothing": who was not registered says nothing about how long the others' registrations are kept.
            return Ok(effects);
        }
        self.aptpl = request.aptpl;
        self.count_change();
        Ok(effects)
    }

    /// Removes registrations of the first of `leaving`, which asks for it, and of its other nexuses. What one of them holds
    /// is released; what all hold, with the last one (SPC-4, unregistering).
    fn unregister(&mut self, leaving: &[NexusName], effects: &mut Effects) {
        let Some(nexus) = leaving.first() else { return };
        self.registrants.retain(|registrant| !leaving.contains(&registrant.nexus));
        let Some(reservation) = &self.reservation else { return };
        let kind = reservation.kind;
        let is_over = match &reservation.holder {
            Some(holder) => leaving.contains(holder),
            None => self.registrants.is_empty(),
        };
        if is_over {
            self.reservation = None;
            if kind.is_for_registrants() {
                self.tell_registrants(nexus, UnitAttention::ReservationsReleased, effects);
            }
        }
    }

    /// RESERVE of PERSISTENT RESERVE OUT.
    ///
    /// # Errors
    /// [`Refusal::Conflict`].
    pub(crate) fn reserve(
        &mut self,
        nexus: &NexusName,
        key: Key,
        kind: ReservationType,
    ) -> Result<Effects, Refusal> {
        self.check_key(nexus, key)?;
        match &self.reservation {
            None => self.reservation = Some(Reservation::new(kind, nexus)),
            Some(present) if present.kind == kind && self.is_holder(nexus) => {}
            Some(_) => return Err(Refusal::Conflict),
        }
        Ok(Effects::default())
    }

    /// RELEASE of PERSISTENT RESERVE OUT. Who holds nothing releases nothing, which is no error.
    ///
    /// # Errors
    /// [`Refusal`]: the key, or a type that is not the reservation's.
    pub(crate) fn release(
        &mut self,
        nexus: &NexusName,
        key: Key,
        kind: ReservationType,
    ) -> Result<Effects, Refusal> {
        self.check_key(nexus, key)?;
        let mut effects = Effects::default();
        if let Some(present) = &self.reservation
            && self.is_holder(nexus)
        {
            if present.kind != kind {
                return Err(SenseData::illegal(AdditionalSense::INVALID_RELEASE).into());
            }
            self.reservation = None;
            if kind.is_for_registrants() {
                self.tell_registrants(nexus, UnitAttention::ReservationsReleased, &mut effects);
            }
        }
        Ok(effects)
    }

    /// CLEAR.
    ///
    /// # Errors
    /// [`Refusal::Conflict`].
    pub(crate) fn clear(&mut self, nexus: &NexusName, key: Key) -> Result<Effects, Refusal> {
        self.check_key(nexus, key)?;
        let mut effects = Effects::default();
        self.tell_registrants(nexus, UnitAttention::ReservationsPreempted, &mut effects);
        self.reservation = None;
        self.registrants.clear();
        self.count_change();
        Ok(effects)
    }

    /// RESERVE of SPC-2.
    ///
    /// # Errors
    /// [`Refusal::Conflict`].
    pub(crate) fn reserve_spc2(&mut self, nexus: &NexusName) -> Result<Effects, Refusal> {
        if self.is_left_alone_by_spc2(nexus)? {
            return Ok(Effects::default());
        }
        if self.reserved_by.as_ref().is_some_and(|holder| holder != nexus) {
            return Err(Refusal::Conflict);
        }
        self.reserved_by = Some(nexus.clone());
        Ok(Effects::default())
    }

    /// RELEASE of SPC-2. Who holds nothing releases nothing, which is no error.
    ///
    /// # Errors
    /// [`Refusal::Conflict`].
    pub(crate) fn release_spc2(&mut self, nexus: &NexusName) -> Result<Effects, Refusal> {
        if !self.is_left_alone_by_spc2(nexus)? {
            self.reserved_by.take_if(|holder| holder == nexus);
        }
        Ok(Effects::default())
    }

    /// RESERVE and RELEASE are good and do nothing for whom a persistent reservation lets do all (SPC-4, exceptions to
    /// SPC-2; CRH), and conflict for all others while anybody is registered.
    fn is_left_alone_by_spc2(&self, nexus: &NexusName) -> Result<bool, Refusal> {
        if self.registrants.is_empty() {
            return Ok(false);
        }
        let may_all = self.reservation.is_some() && self.permission(nexus) == Permission::All;
        if may_all { Ok(true) } else { Err(Refusal::Conflict) }
    }

    /// Whether `nexus` holds a RESERVE.
    pub(crate) fn is_spc2_holder(&self, nexus: &NexusName) -> bool {
        self.reserved_by.as_ref() == Some(nexus)
    }

    /// What SPC-2 reserved is released by a reset, and by the loss of the nexus if `nexus` is given.
    pub(crate) fn end_spc2(&mut self, nexus: Option<&NexusName>) {
        self.reserved_by.take_if(|holder| nexus.is_none_or(|nexus| nexus == holder));
    }
}

impl Reservation {
    fn new(kind: ReservationType, holder: &NexusName) -> Reservation {
        Reservation { kind, holder: (!kind.is_held_by_all()).then(|| holder.clone()) }
    }

    /// The key that READ RESERVATION tells: zero where every registrant is a holder.
    pub(crate) fn key(&self, reservations: &Reservations) -> Key {
        self.holder.as_ref().and_then(|holder| reservations.key_of(holder)).unwrap_or(Key::NONE)
    }
}
