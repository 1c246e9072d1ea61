//! PERSISTENT RESERVE IN (SPC-4): what is registered and reserved.

use super::super::{Context, Progress, end, parameter_data};
use crate::bytes::{Cdb, cdb16};
use crate::reservations::{Registrant, Reservation, Reservations};
use crate::status::Status;
use crate::transport_id;

/// What a report is made of: the unit's reservations, unless RESERVE of SPC-2 stands in the way.
fn report(context: &Context<'_>, cdb: &Cdb, compose: impl FnOnce(&Reservations) -> Vec<u8>) -> Progress {
    let reservations = context.unit().reservations();
    if reservations.is_reserved_by_spc2() {
        return end(Status::ReservationConflict);
    }
    parameter_data(compose(&reservations), cdb16::<7>(cdb).into())
}

/// PRGENERATION and ADDITIONAL LENGTH, which tells of all there is however much is asked for.
fn with_header(reservations: &Reservations, body: &[u8]) -> Vec<u8> {
    let length = body.len() as u32;
    [&reservations.generation().to_be_bytes()[..], &length.to_be_bytes(), body].concat()
}

/// SCOPE (LU_SCOPE) and TYPE.
fn scope_and_type(reservation: &Reservation) -> u8 {
    reservation.kind as u8
}

pub(in super::super) fn read_keys(context: &Context<'_>, cdb: &Cdb) -> Progress {
    report(context, cdb, |reservations| {
        let keys = reservations.registrants().iter().flat_map(|registrant| registrant.key.0.to_be_bytes());
        with_header(reservations, &keys.collect::<Vec<u8>>())
    })
}

pub(in super::super) fn read_reservation(context: &Context<'_>, cdb: &Cdb) -> Progress {
    report(context, cdb, |reservations| {
        let Some(reservation) = reservations.reservation() else { return with_header(reservations, &[]) };
        let key = reservation.key(reservations);
        let body = [&key.0.to_be_bytes()[..], &[0; 5], &[scope_and_type(reservation), 0, 0]].concat();
        with_header(reservations, &body)
    })
}

pub(in super::super) fn report_capabilities(context: &Context<'_>, cdb: &Cdb) -> Progress {
    report(context, cdb, |reservations| {
        let is_kept = u8::from(context.unit().saved().is_kept());
        // RLR_C, CRH, SIP_C, ATP_C, PTPL_C.
        let capable = 0x9c | is_kept;
        // TMV; ALLOW COMMANDS 001b: TEST UNIT READY is allowed whatever is reserved; PTPL_A.
        let active = 0x80 | 0x10 | u8::from(reservations.aptpl());
        // All six types.
        vec![0, 8, capable, active, 0xea, 0x01, 0, 0]
    })
}

pub(in super::super) fn read_full_status(context: &Context<'_>, cdb: &Cdb) -> Progress {
    report(context, cdb, |reservations| {
        let all = reservations.registrants().iter();
        let body: Vec<u8> = all.flat_map(|registrant| full_status(reservations, registrant)).collect();
        with_header(reservations, &body)
    })
}

/// One full status descriptor. Every nexus has its own, so that ALL_TG_PT is zero.
fn full_status(reservations: &Reservations, Registrant { nexus, key }: &Registrant) -> Vec<u8> {
    let transport_id = transport_id::compose(&nexus.initiator_port);
    let held = reservations.reservation().filter(|_| reservations.is_holder(nexus));
    let mut descriptor = vec![0; 24];
    descriptor[..8].copy_from_slice(&key.0.to_be_bytes());
    // R_HOLDER
    descriptor[12] = u8::from(held.is_some());
    descriptor[13] = held.map_or(0, scope_and_type);
    descriptor[18..20].copy_from_slice(&nexus.target_port.id().to_be_bytes());
    descriptor[20..24].copy_from_slice(&(transport_id.len() as u32).to_be_bytes());
    descriptor.extend(transport_id);
    descriptor
}
