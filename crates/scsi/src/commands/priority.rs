//! REPORT PRIORITY and SET PRIORITY (SPC-4): what the commands of an I_T nexus have that bring no priority of their own.

use super::{Context, Progress, State, Step, good, parameter_data};
use crate::bytes::{Cdb, be16, cdb32};
use crate::device::TargetPort;
use crate::nexus::NexusName;
use crate::priority::{MAX, NONE};
use crate::sense::{AdditionalSense, SenseData};
use crate::task::Event;
use crate::transport_id::{self, TransportId};
use crate::unit::{NoNexus, Whose};

/// Bytes of a descriptor and of a parameter list before the TransportID.
const HEADER_BYTES: usize = 8;
/// The longest list taken: more than the longest TransportID.
const LIST_BYTES_MAX: u32 = 512;

pub(super) fn report(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let priorities = context.unit().priorities();
    let own = context.nexus.name();
    let body: Vec<u8> = match cdb[2] >> 6 {
        0 => descriptor(own, priorities.assigned(own)),
        1 => priorities
            .all_assigned()
            .iter()
            .flat_map(|(name, priority)| descriptor(name, *priority))
            .collect(),
        _ => return Err(SenseData::invalid_cdb_field(2, 7)),
    };
    parameter_data([&(body.len() as u32).to_be_bytes(), &body[..]].concat(), cdb32::<6>(cdb))
}

fn descriptor(name: &NexusName, priority: u8) -> Vec<u8> {
    let transport_id = transport_id::compose(&name.initiator_port);
    let mut descriptor = vec![priority, 0];
    descriptor.extend(name.target_port.id().to_be_bytes());
    descriptor.extend([0; 2]);
    descriptor.extend((transport_id.len() as u16).to_be_bytes());
    descriptor.extend(transport_id);
    descriptor
}

/// Whose priority a SET PRIORITY sets that has a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Own,
    Named,
}

/// A SET PRIORITY that waits for its list.
#[derive(Debug)]
pub(crate) struct SetPriority {
    target: Target,
    length_bytes: u32,
}

pub(super) fn set(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let length_bytes = cdb32::<6>(cdb);
    let target = match cdb[2] >> 6 {
        0 => Target::Own,
        1 => Target::Named,
        // The list, if any, is ignored, so it need not come.
        2 => return finish(context, &Whose::Everybodys(context.nexus.name()), NONE),
        _ => return Err(SenseData::invalid_cdb_field(2, 7)),
    };
    if length_bytes == 0 || length_bytes > LIST_BYTES_MAX {
        return Err(SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR));
    }
    Ok((State::SetPriority(SetPriority { target, length_bytes }), Step::DataOut(length_bytes)))
}

impl SetPriority {
    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        let list = event.data_out(self.length_bytes)?;
        let too_short = SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);
        let priority = list.first().ok_or(too_short)? & MAX;
        if self.target == Target::Own {
            return finish(context, &Whose::Own(context.nexus.name()), priority);
        }
        let transport_bytes = usize::from(be16(list, 6).ok_or(too_short)?);
        let bytes = list.get(HEADER_BYTES..HEADER_BYTES + transport_bytes).ok_or(too_short)?;
        let port = be16(list, 2)
            .and_then(TargetPort::new)
            .filter(|port| context.nexus.device().ports().contains(port))
            .ok_or(SenseData::invalid_parameter(2))?;
        let (initiator, _) =
            TransportId::parse(bytes).ok_or(SenseData::invalid_parameter(HEADER_BYTES as u16))?;
        finish(context, &Whose::Named(port, initiator), priority)
    }
}

fn finish(context: &Context<'_>, whose: &Whose<'_>, priority: u8) -> Progress {
    match context.unit().set_priority(whose, priority) {
        Ok(()) => good(),
        Err(NoNexus) => Err(SenseData::invalid_parameter(HEADER_BYTES as u16)),
    }
}
