//! RESERVE and RELEASE of the whole unit (SPC-2), and what becomes of them beside persistent reservations (SPC-4, CRH).
//!
//! Extents and third parties are not supported, as SPC-2 leaves open: the table refuses their bits.

use super::{Context, Progress, end, good};
use crate::bytes::Cdb;
use crate::reservations::{Effects, Refusal};
use crate::status::Status;

pub(super) fn reserve(context: &Context<'_>, _: &Cdb) -> Progress {
    let name = context.nexus.name();
    answer(context.unit().change_reservations(|reservations| reservations.reserve_spc2(name)))
}

pub(super) fn release(context: &Context<'_>, _: &Cdb) -> Progress {
    let name = context.nexus.name();
    answer(context.unit().change_reservations(|reservations| reservations.release_spc2(name)))
}

fn answer(result: Result<Effects, Refusal>) -> Progress {
    match result {
        Ok(_) => good(),
        Err(Refusal::Conflict) => end(Status::ReservationConflict),
        Err(Refusal::Sense(sense)) => Err(sense),
    }
}
