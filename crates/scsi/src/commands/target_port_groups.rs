//! REPORT TARGET PORT GROUPS and SET TARGET PORT GROUPS (SPC-4, asymmetric logical unit access).

use super::{Context, Progress, State, Step, good, parameter_data, save};
use crate::alua::{AccessState, Cause, Group};
use crate::bytes::{Cdb, be16, cdb32};
use crate::device::TargetPort;
use crate::sense::{AdditionalSense, SenseData};
use crate::task::Event;

/// AO_SUP, AN_SUP, S_SUP, U_SUP, O_SUP and T_SUP: every state but that of dependent blocks.
const SUPPORTED_STATES: u8 = 0xcf;
/// FORMAT TYPE of the extended header.
const EXTENDED_HEADER: u8 = 0x10;
/// Reserved bytes before the descriptors of SET TARGET PORT GROUPS.
const LIST_HEADER_BYTES: usize = 4;
const LIST_DESCRIPTOR_BYTES: usize = 4;
/// The longest list taken: hundreds of groups.
const LIST_BYTES_MAX: u32 = 4 << 10;

pub(super) fn report(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let extended = match cdb[1] >> 5 {
        0 => false,
        1 => true,
        _ => return Err(SenseData::invalid_cdb_field(1, 7)),
    };
    let groups = context.unit().access_groups();
    let mut body = Vec::new();
    if extended {
        // IMPLICIT TRANSITION TIME 0: none is told.
        body.extend([EXTENDED_HEADER, 0, 0, 0]);
    }
    body.extend(groups.iter().flat_map(descriptor));
    let length = (body.len() as u32).to_be_bytes();
    parameter_data([&length[..], &body].concat(), cdb32::<6>(cdb))
}

/// One group, with its one port.
fn descriptor(group: &Group) -> [u8; 12] {
    let [high, low] = group.port.id().to_be_bytes();
    let state = u8::from(group.preferred) << 7 | group.state as u8;
    [state, SUPPORTED_STATES, high, low, 0, group.cause as u8, 0, 1, 0, 0, high, low]
}

pub(super) fn set(_: &Context<'_>, cdb: &Cdb) -> Progress {
    let length_bytes = cdb32::<6>(cdb);
    if length_bytes == 0 {
        return good();
    }
    if length_bytes > LIST_BYTES_MAX {
        return Err(SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR));
    }
    Ok((State::SetTargetPortGroups { length_bytes }, Step::DataOut(length_bytes)))
}

pub(super) fn list_came(context: &Context<'_>, length_bytes: u32, event: Event<'_>) -> Progress {
    let unit = context.unit();
    let list = event.data_out(length_bytes)?;
    let changes = parse(context, list, length_bytes as usize)?;
    if unit.change_access(&changes, Cause::Explicit, Some(context.nexus.name())) {
        return save(unit);
    }
    good()
}

/// All of the list, or nothing: a list that is wrong anywhere changes no state.
fn parse(
    context: &Context<'_>,
    list: &[u8],
    length: usize,
) -> Result<Vec<(TargetPort, AccessState)>, SenseData> {
    let descriptors = list.get(LIST_HEADER_BYTES..).filter(|_| list.len() == length);
    let descriptors = descriptors.filter(|bytes| bytes.len().is_multiple_of(LIST_DESCRIPTOR_BYTES));
    let too_short = SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);
    let mut changes = Vec::new();
    for (place, descriptor) in descriptors.ok_or(too_short)?.chunks(LIST_DESCRIPTOR_BYTES).enumerate() {
        // At most LIST_BYTES_MAX.
        let at = (LIST_HEADER_BYTES + place * LIST_DESCRIPTOR_BYTES) as u16;
        let state = AccessState::from_code(descriptor[0] & 0x0f)
            .filter(|state| state.can_be_set())
            .ok_or(SenseData::invalid_parameter_bit(at, 3))?;
        let port = be16(descriptor, 2)
            .and_then(TargetPort::new)
            .filter(|port| context.nexus.device().ports().contains(port))
            .ok_or(SenseData::invalid_parameter(at + 2))?;
        changes.push((port, state));
    }
    Ok(changes)
}
