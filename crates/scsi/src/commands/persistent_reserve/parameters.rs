//! The parameter lists of PERSISTENT RESERVE OUT (SPC-4).

use std::collections::{BTreeSet, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use super::super::Context;
use crate::bytes::{be16, be32, be64};
use crate::device::TargetPort;
use crate::nexus::NexusName;
use crate::reservations::lost::Replacement;
use crate::reservations::preempt::Move;
use crate::reservations::{Key, REGISTRANTS_MAX, Refusal, Registration, ReservationType, Reservations};
use crate::sense::{AdditionalSense, SenseData};
use crate::transport_id::{SEPARATOR, TransportId, initiator_of};

/// The fixed part of either list, in bytes.
pub(super) const LIST_BYTES: u32 = 24;
/// The longest list taken: far more TransportIDs than there are nexuses to name.
pub(super) const LIST_BYTES_MAX: u32 = 64 << 10;

const SPEC_I_PT: u8 = 0x08;
const ALL_TG_PT: u8 = 0x04;
const APTPL: u8 = 0x01;
const UNREG: u8 = 0x02;

fn length_error() -> SenseData {
    SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR)
}

fn key_at(list: &[u8], at: usize) -> Result<Key, SenseData> {
    be64(list, at).map(Key).ok_or_else(length_error)
}

/// The list of every service action but REGISTER AND MOVE.
pub(super) struct List<'a> {
    pub(super) key: Key,
    pub(super) service_action_key: Key,
    pub(super) aptpl: bool,
    flags: u8,
    whole: &'a [u8],
}

impl<'a> List<'a> {
    pub(super) fn parse(whole: &'a [u8]) -> Result<List<'a>, SenseData> {
        let flags = *whole.get(20).ok_or_else(length_error)?;
        Ok(List {
            key: key_at(whole, 0)?,
            service_action_key: key_at(whole, 8)?,
            aptpl: flags & APTPL != 0,
            flags,
            whole,
        })
    }

    /// Initiator ports are named for REGISTER only (SPC-4, SPEC_I_PT).
    pub(super) fn refuse_initiator_ports(&self) -> Result<(), SenseData> {
        if self.flags & SPEC_I_PT != 0 { Err(SenseData::invalid_parameter_bit(20, 3)) } else { Ok(()) }
    }

    /// What REPLACE LOST RESERVATION asks for. It is for the nexus that it comes through.
    pub(super) fn replacement(&self, kind: ReservationType) -> Result<Replacement, SenseData> {
        if self.flags & ALL_TG_PT != 0 {
            return Err(SenseData::invalid_parameter_bit(20, 2));
        }
        Ok(Replacement { key: self.key, new_key: self.service_action_key, kind, aptpl: self.aptpl })
    }

    /// What REGISTER, or REGISTER AND IGNORE EXISTING KEY, asks for.
    pub(super) fn registration(
        &self,
        context: &Context<'_>,
        ignores_key: bool,
    ) -> Result<Registration, SenseData> {
        if ignores_key {
            self.refuse_initiator_ports()?;
        }
        let name = context.nexus.name();
        let ports = if self.flags & ALL_TG_PT != 0 {
            context.nexus.device().ports()
        } else {
            std::slice::from_ref(&name.target_port)
        };
        let specified = match (self.flags & SPEC_I_PT != 0, self.whole.len() as u32) {
            (true, _) => Some(self.specified(context, ports)?),
            (false, LIST_BYTES) => None,
            (false, _) => return Err(length_error()),
        };
        Ok(Registration {
            key: (!ignores_key).then_some(self.key),
            new_key: self.service_action_key,
            specified,
            elsewhere: through(ports, &name.initiator_port).filter(|nexus| nexus != name).collect(),
            aptpl: self.aptpl,
        })
    }

    /// The nexuses that the TransportIDs name, each once, without the one that the command came through. An initiator
    /// device stands for those of its ports that are logged in.
    fn specified(&self, context: &Context<'_>, ports: &[TargetPort]) -> Result<Vec<NexusName>, SenseData> {
        let mut rest = self.whole.get(28..).ok_or_else(length_error)?;
        if be32(self.whole, 24).is_none_or(|length| length as usize != rest.len()) {
            return Err(SenseData::invalid_parameter(24));
        }
        // There may be thousands of either, so neither is looked through for each of the other.
        let known = context.unit().nexus_names().into_iter().map(|nexus| nexus.initiator_port);
        let known: BTreeSet<_> = known.collect();
        let (mut seen, mut named, mut specified) = (HashSet::new(), HashSet::new(), Vec::new());
        while !rest.is_empty() {
            // The list is shorter than 64 KiB.
            let at = (self.whole.len() - rest.len()) as u16;
            let (id, length) = TransportId::parse(rest).ok_or(SenseData::invalid_parameter(at))?;
            rest = &rest[length..];
            let initiators = match &id {
                _ if seen.contains(&id) => continue,
                TransportId::Port(name) => vec![name.as_str().into()],
                TransportId::Device(name) => ports_of(&known, name),
            };
            if initiators.is_empty() {
                return Err(SenseData::invalid_parameter(at));
            }
            seen.insert(id);
            for nexus in initiators.iter().flat_map(|initiator| through(ports, initiator)) {
                if nexus != *context.nexus.name() && named.insert(nexus.clone()) {
                    specified.push(nexus);
                }
            }
            if specified.len() > REGISTRANTS_MAX {
                return Err(SenseData::illegal(AdditionalSense::INSUFFICIENT_REGISTRATION_RESOURCES));
            }
        }
        Ok(specified)
    }
}

/// The ports of an initiator device among those that are `known`.
fn ports_of(known: &BTreeSet<Arc<str>>, device: &str) -> Vec<Arc<str>> {
    let first = format!("{device}{SEPARATOR}");
    let from_first = known.range::<str, _>((Bound::Included(first.as_str()), Bound::Unbounded));
    from_first.take_while(|port| initiator_of(port) == Some(device)).cloned().collect()
}

/// The nexuses of one initiator port with each of `ports`.
fn through(ports: &[TargetPort], initiator_port: &Arc<str>) -> impl Iterator<Item = NexusName> {
    let initiator_port = Arc::clone(initiator_port);
    ports
        .iter()
        .map(move |&target_port| NexusName { initiator_port: Arc::clone(&initiator_port), target_port })
}

/// The list of REGISTER AND MOVE.
pub(super) struct MoveList {
    key: Key,
    new_key: Key,
    unregister: bool,
    pub(super) aptpl: bool,
    target_port: u16,
    initiator_port: Result<String, SenseData>,
}

impl MoveList {
    pub(super) fn parse(whole: &[u8]) -> Result<MoveList, SenseData> {
        let flags = *whole.get(17).ok_or_else(length_error)?;
        let id = whole.get(24..).ok_or_else(length_error)?;
        let length_fits = be32(whole, 20).is_some_and(|length| length as usize == id.len());
        // One port has to be named, and nothing may follow it.
        let initiator_port = match TransportId::parse(id) {
            Some((TransportId::Port(name), length)) if length_fits && length == id.len() => Ok(name),
            _ => Err(SenseData::invalid_parameter(if length_fits { 24 } else { 20 })),
        };
        Ok(MoveList {
            key: key_at(whole, 0)?,
            new_key: key_at(whole, 8)?,
            unregister: flags & UNREG != 0,
            aptpl: flags & APTPL != 0,
            target_port: be16(whole, 18).ok_or_else(length_error)?,
            initiator_port,
        })
    }

    /// The same with ports that exist. A nexus that may not ask for it has a conflict, whatever is wrong with the list.
    pub(super) fn resolve(self, context: &Context<'_>, reservations: &Reservations) -> Result<Move, Refusal> {
        let name = context.nexus.name();
        if reservations.key_of(name) != Some(self.key) || !reservations.is_holder(name) {
            return Err(Refusal::Conflict);
        }
        let target_port = TargetPort::new(self.target_port)
            .filter(|port| context.nexus.device().ports().contains(port))
            .ok_or(SenseData::invalid_parameter(18))?;
        let to = NexusName { initiator_port: self.initiator_port?.into(), target_port };
        Ok(Move { key: self.key, new_key: self.new_key, to, unregister: self.unregister, aptpl: self.aptpl })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_its_ports_and_no_others() {
        let known: BTreeSet<Arc<str>> = [
            "iqn.h",
            "iqn.h,i,0x800000000002",
            "iqn.h,i,0x800000000001",
            "iqn.h,j",
            "iqn.ha,i,0x800000000001",
            "iqn.g,i,0x800000000001",
        ]
        .map(Arc::from)
        .into();
        let of = |device| ports_of(&known, device).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(of("iqn.h"), ["iqn.h,i,0x800000000001", "iqn.h,i,0x800000000002"]);
        assert_eq!(of("iqn.ha"), ["iqn.ha,i,0x800000000001"]);
        assert_eq!(of("iqn."), [""; 0]);
        assert_eq!(of("iqn.z"), [""; 0]);
    }
}
