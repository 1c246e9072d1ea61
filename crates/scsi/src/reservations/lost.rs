//! Persistent reservations that were to be kept and cannot be read any more (SPC-4, 5.13.5.3 and 5.13.11.3).
//!
//! Nobody knows then who may write, so nobody may, until an initiator that knows says what is reserved by REPLACE LOST
//! RESERVATION. Which commands run before that is said in the command table.

use super::{Effects, Key, Refusal, Registrant, Reservation, ReservationType, Reservations};
use crate::nexus::NexusName;
use crate::sense::{AdditionalSense, SenseData, SenseKey};

/// What ends other commands meanwhile.
pub(crate) fn sense() -> SenseData {
    SenseData::new(SenseKey::DataProtect, AdditionalSense::RESERVATION_INFORMATION_LOST)
}

/// What REPLACE LOST RESERVATION asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replacement {
    /// RESERVATION KEY
    pub(crate) key: Key,
    /// SERVICE ACTION RESERVATION KEY
    pub(crate) new_key: Key,
    pub(crate) kind: ReservationType,
    pub(crate) aptpl: bool,
}

impl Reservations {
    /// What was kept is lost.
    pub(super) fn lost() -> Reservations {
        Reservations { is_lost: true, ..Reservations::default() }
    }

    /// True until they are replaced. No reset and no loss of a nexus changes that.
    pub(crate) fn are_lost(&self) -> bool {
        self.is_lost
    }

    /// REPLACE LOST RESERVATION: `nexus` alone is registered, and has the reservation. Nobody is told. PRGENERATION begins anew at
    /// zero (SPC-4, 5.13.11.3), other than by any other service action.
    ///
    /// # Errors
    /// [`Refusal::Sense`]; nothing is changed then. Nobody is registered yet, so there is no key that could conflict.
    pub(crate) fn replace_lost(
        &mut self,
        nexus: &NexusName,
        request: Replacement,
    ) -> Result<Effects, Refusal> {
        if !self.is_lost {
            return Err(SenseData::illegal(AdditionalSense::INVALID_RELEASE).into());
        }
        if request.key != Key::NONE {
            return Err(SenseData::invalid_parameter(0).into());
        }
        if request.new_key == Key::NONE {
            return Err(SenseData::invalid_parameter(8).into());
        }
        *self = Reservations {
            registrants: vec![Registrant { nexus: nexus.clone(), key: request.new_key }],
            reservation: Some(Reservation::new(request.kind, nexus)),
            aptpl: request.aptpl,
            ..Reservations::default()
        };
        Ok(Effects::default())
    }
}
