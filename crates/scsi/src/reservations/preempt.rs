//! PREEMPT, and REGISTER AND MOVE: reservations that go from one nexus to another (SPC-4).

use super::{Effects, Key, Refusal, Registrant, Reservation, ReservationType, Reservations};
use crate::attention::UnitAttention;
use crate::nexus::NexusName;
use crate::sense::SenseData;

/// What REGISTER AND MOVE asks for.
#[derive(Debug)]
pub(crate) struct Move {
    /// RESERVATION KEY
    pub(crate) key: Key,
    /// SERVICE ACTION RESERVATION KEY: what the new holder is registered with.
    pub(crate) new_key: Key,
    pub(crate) to: NexusName,
    /// UNREG: the old holder is no longer registered.
    pub(crate) unregister: bool,
    pub(crate) aptpl: bool,
}

impl Reservations {
    /// PREEMPT and PREEMPT AND ABORT. `kind` is `None` for a type that there is not, which matters only where the
    /// reservation is taken over.
    ///
    /// # Errors
    /// [`Refusal`]; nothing is changed then.
    pub(crate) fn preempt(
        &mut self,
        nexus: &NexusName,
        (key, victim): (Key, Key),
        kind: Option<ReservationType>,
    ) -> Result<Effects, Refusal> {
        self.check_key(nexus, key)?;
        let takes_over = match &self.reservation {
            None => false,
            Some(Reservation { holder: None, .. }) => victim == Key::NONE,
            Some(Reservation { holder: Some(holder), .. }) => self.key_of(holder) == Some(victim),
        };
        if takes_over {
            let kind = kind.ok_or(SenseData::invalid_cdb_field(2, 3))?;
            return Ok(self.take_over(nexus, victim, kind));
        }
        if victim == Key::NONE {
            return Err(SenseData::invalid_parameter(8).into());
        }
        let removed = self.remove(|registrant| registrant.key == victim);
        if removed.is_empty() {
            return Err(Refusal::Conflict);
        }
        // Only one that all hold can be left without a registrant: the holder's key was not the victim's.
        if self.registrants.is_empty() {
            self.reservation = None;
        }
        self.count_change();
        Ok(preempted(removed, nexus))
    }

    /// The reservation goes to `nexus`. Where all hold it, all others lose their registrations, otherwise those with the
    /// holder's key.
    fn take_over(&mut self, nexus: &NexusName, victim: Key, kind: ReservationType) -> Effects {
        let is_same_type = self.reservation.as_ref().is_some_and(|reservation| reservation.kind == kind);
        let removed = self.remove(|registrant| {
            registrant.nexus != *nexus && (victim == Key::NONE || registrant.key == victim)
        });
        self.reservation = Some(Reservation::new(kind, nexus));
        self.count_change();
        let mut effects = preempted(removed, nexus);
        if !is_same_type {
            self.tell_registrants(nexus, UnitAttention::ReservationsReleased, &mut effects);
        }
        effects
    }

    fn remove(&mut self, mut leaves: impl FnMut(&Registrant) -> bool) -> Vec<NexusName> {
        self.registrants.extract_if(.., |registrant| leaves(registrant)).map(|gone| gone.nexus).collect()
    }

    /// REGISTER AND MOVE. A reservation that all registrants hold cannot be moved.
    ///
    /// # Errors
    /// [`Refusal`]; nothing is changed then.
    pub(crate) fn register_and_move(
        &mut self,
        nexus: &NexusName,
        request: &Move,
    ) -> Result<Effects, Refusal> {
        self.check_key(nexus, request.key)?;
        let Some(reservation) = &self.reservation else { return Err(Refusal::Conflict) };
        if reservation.holder.as_ref() != Some(nexus) {
            return Err(Refusal::Conflict);
        }
        if request.new_key == Key::NONE {
            return Err(SenseData::invalid_parameter(8).into());
        }
        if request.to == *nexus {
            return Err(SenseData::invalid_parameter(24).into());
        }
        let kind = reservation.kind;
        if !request.unregister {
            self.check_room(std::iter::once(&request.to))?;
        }
        self.set_key(&request.to, request.new_key);
        self.reservation = Some(Reservation::new(kind, &request.to));
        if request.unregister {
            self.registrants.retain(|registrant| registrant.nexus != *nexus);
        }
        self.aptpl = request.aptpl;
        self.count_change();
        Ok(Effects::default())
    }
}

/// Who lost its registration is told so, but for who asked for it.
fn preempted(removed: Vec<NexusName>, by: &NexusName) -> Effects {
    let preempted: Vec<_> = removed.into_iter().filter(|nexus| nexus != by).collect();
    let told = preempted.iter().map(|nexus| (nexus.clone(), UnitAttention::RegistrationsPreempted));
    Effects { told: told.collect(), preempted }
}
