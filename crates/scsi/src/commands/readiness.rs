//! TEST UNIT READY, REQUEST SENSE, PREVENT ALLOW MEDIUM REMOVAL (SPC-4), BACKGROUND CONTROL (SBC-4).

use super::{Context, Progress, good, not_ready, parameter_data, write_protected};
use crate::alua::WorksIn;
use crate::bytes::Cdb;
use crate::sense::{AdditionalSense, SenseData, SenseKey};

/// The table has checked readiness already.
pub(super) fn test_unit_ready(_: &Context<'_>, _: &Cdb) -> Progress {
    good()
}

/// Tells the oldest unit attention, which clears it, else why the unit cannot be reached or is not ready, else nothing.
pub(super) fn request_sense(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let sense = context
        .itl()
        .take()
        .map(|attention| attention.sense())
        .or_else(|| context.itl().access_state().refusal(WorksIn::Active))
        .or_else(|| context.unit().occupied())
        .or_else(|| not_ready(context.unit()))
        .unwrap_or(SenseData::new(SenseKey::NoSense, AdditionalSense::NONE));
    sense_as_data(sense, cdb)
}

/// Sense data as parameter data: the DESC bit of the CDB chooses the format, not D_SENSE.
pub(super) fn sense_as_data(sense: SenseData, cdb: &Cdb) -> Progress {
    parameter_data(sense.encode(cdb[1] & 1 != 0).as_bytes().to_vec(), cdb[4].into())
}

/// PREVENT ALLOW MEDIUM REMOVAL. Who may only read keeps nobody from ejecting.
pub(super) fn prevent_allow(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let prevents = cdb[4] & 1 != 0;
    if prevents && context.path.read_only {
        return Err(write_protected(context.path));
    }
    context.itl().set_prevents_removal(prevents);
    good()
}

/// BACKGROUND CONTROL (SBC-4): a volume has no background operations that an initiator could start or stop, so each
/// request is met by doing nothing.
pub(super) fn background_control(_: &Context<'_>, cdb: &Cdb) -> Progress {
    const RESERVED: u8 = 3;
    if cdb[2] >> 6 == RESERVED {
        return Err(SenseData::invalid_cdb_field(2, 7));
    }
    good()
}
