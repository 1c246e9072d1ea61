//! PERSISTENT RESERVE IN and OUT (SPC-4).

use std::fmt;

use super::answer::{Fields, Malformed};
use super::command::{Allocation, Command, DoesNotFit, Query, Transfer};
use crate::codes::opcode;
pub use crate::reservations::ReservationType;
use crate::transport_id::{self, TransportId};

/// What is asked for at first.
const ASKED_BYTES: u32 = 4096;
/// PRGENERATION and ADDITIONAL LENGTH.
const HEADER_BYTES: usize = 8;
/// The fixed part of a full status descriptor, and of either parameter list.
const FIXED_BYTES: usize = 24;

/// The registered keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// PRGENERATION: counts changes of registrations.
    pub generation: u32,
    /// One for each registered nexus; the same key may come more than once.
    pub keys: Vec<u64>,
}

/// A reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The holder's key; 0 where all registrants hold it.
    pub key: u64,
    /// SCOPE; 0 is the logical unit.
    pub scope: u8,
    /// TYPE, where it is one that is known.
    pub kind: Option<ReservationType>,
}

/// What is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// PRGENERATION
    pub generation: u32,
    /// The reservation, if there is one.
    pub held: Option<Held>,
}

/// What a unit's persistent reservations can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// RLR_C: reservations that the unit has lost can be replaced.
    pub replace_lost: bool,
    /// CRH: RESERVE and RELEASE of SPC-2 are no conflict for registrants.
    pub compatible_reservations: bool,
    /// SIP_C: others can be registered along (SPEC_I_PT).
    pub specify_initiator_ports: bool,
    /// ATP_C: registrations can be for all target ports (ALL_TG_PT).
    pub all_target_ports: bool,
    /// PTPL_C: they can be kept through a loss of power.
    pub persist_through_power_loss: bool,
    /// PTPL_A: they are, at present.
    pub persists_now: bool,
    /// The types that there are; `None`: the unit does not say.
    pub types: Option<Vec<ReservationType>>,
}

/// One registered nexus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// Its key.
    pub key: u64,
    /// It holds the reservation, whose scope and type those are.
    pub held: Option<Held>,
    /// RELATIVE TARGET PORT IDENTIFIER; `None`: all of them (ALL_TG_PT).
    pub target_port: Option<u16>,
    /// Who it is.
    pub initiator: Initiator,
}

/// Who is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Initiator {
    /// A port of iSCSI: name, `,i,0x` and ISID; or a name alone, which means all its ports.
    Iscsi(String),
    /// A TransportID of another protocol, or one that cannot be read.
    Other(Vec<u8>),
}

impl fmt::Display for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Initiator::Iscsi(name) => f.write_str(name),
            Initiator::Other(bytes) => {
                f.write_str("TransportID ").and_then(|()| bytes.iter().try_for_each(|b| write!(f, "{b:02x}")))
            }
        }
    }
}

/// All registrations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullStatus {
    /// PRGENERATION
    pub generation: u32,
    /// One for each registered nexus.
    pub registrants: Vec<Registrant>,
}

fn query<T>(action: u8, decode: fn(&Command, &[u8]) -> Result<T, Malformed>) -> Query<T> {
    let command = Command::with_action((opcode::PERSISTENT_RESERVE_IN, action));
    Query::new(command, Allocation { at: 7, width: 2 }, ASKED_BYTES, decode)
}

/// PRGENERATION and what follows the header, as long as the answer says.
fn split<'a>(answer: &'static str, data: &'a [u8]) -> Result<(u32, Fields<'a>), Malformed> {
    let fields = Fields::new(answer, data);
    let length = fields.be32(4, "ADDITIONAL LENGTH")? as usize;
    Ok((fields.be32(0, "PRGENERATION")?, fields.part(HEADER_BYTES, length, "the descriptors")?))
}

fn held(key: u64, scope_and_type: u8) -> Held {
    Held { key, scope: scope_and_type >> 4, kind: ReservationType::from_code(scope_and_type & 0x0f) }
}

/// READ KEYS.
pub fn read_keys() -> Query<Keys> {
    query(0, |_, data| {
        let (generation, body) = split("READ KEYS", data)?;
        let keys = body.parts(0, 8).map(|key| key.be64(0, "RESERVATION KEY")).collect::<Result<_, _>>()?;
        Ok(Keys { generation, keys })
    })
}

/// READ RESERVATION.
pub fn read_reservation() -> Query<Reserved> {
    query(1, |_, data| {
        let (generation, body) = split("READ RESERVATION", data)?;
        if body.is_empty() {
            return Ok(Reserved { generation, held: None });
        }
        let scope_and_type = body.u8(13, "SCOPE and TYPE")?;
        Ok(Reserved { generation, held: Some(held(body.be64(0, "RESERVATION KEY")?, scope_and_type)) })
    })
}

/// REPORT CAPABILITIES.
pub fn report_capabilities() -> Query<Capabilities> {
    query(2, |_, data| {
        let fields = Fields::new("REPORT CAPABILITIES", data);
        let length = usize::from(fields.be16(0, "LENGTH")?);
        let fields = fields.part(0, length.max(4), "the capabilities")?;
        // TMV: the type mask that follows is one.
        let is_valid = fields.bit_told(3, 0x80);
        // Types 1, 3, 5, 6 and 7 are bits of the first byte, type 8 is one of the second.
        let mask = u16::from_le_bytes([fields.u8_told(4), fields.u8_told(5)]);
        let types = ReservationType::ALL.into_iter().filter(|kind| mask & 1 << *kind as u8 != 0);
        Ok(Capabilities {
            replace_lost: fields.bit_told(2, 0x80),
            compatible_reservations: fields.bit_told(2, 0x10),
            specify_initiator_ports: fields.bit_told(2, 0x08),
            all_target_ports: fields.bit_told(2, 0x04),
            persist_through_power_loss: fields.bit_told(2, 0x01),
            persists_now: fields.bit_told(3, 0x01),
            types: is_valid.then(|| types.collect()),
        })
    })
}

/// READ FULL STATUS.
pub fn read_full_status() -> Query<FullStatus> {
    query(3, |_, data| {
        let (generation, mut rest) = split("READ FULL STATUS", data)?;
        let mut registrants = Vec::new();
        while !rest.is_empty() {
            let length = rest.be32(20, "ADDITIONAL DESCRIPTOR LENGTH")? as usize;
            let (descriptor, after) =
                rest.split(FIXED_BYTES.saturating_add(length), "the full status descriptor")?;
            let key = descriptor.be64(0, "RESERVATION KEY")?;
            let flags = descriptor.u8(12, "R_HOLDER")?;
            let port = descriptor.be16(18, "RELATIVE TARGET PORT IDENTIFIER")?;
            registrants.push(Registrant {
                key,
                held: (flags & 0x01 != 0).then(|| held(key, descriptor.u8_told(13))),
                target_port: (flags & 0x02 == 0).then_some(port),
                initiator: initiator(descriptor.part(FIXED_BYTES, length, "TRANSPORTID")?.bytes()),
            });
            rest = after;
        }
        Ok(FullStatus { generation, registrants })
    })
}

fn initiator(bytes: &[u8]) -> Initiator {
    match TransportId::parse(bytes) {
        Some((TransportId::Device(name) | TransportId::Port(name), _))
            if !name.chars().any(char::is_control) =>
        {
            Initiator::Iscsi(name)
        }
        _ => Initiator::Other(bytes.to_vec()),
    }
}

/// What PERSISTENT RESERVE OUT does. A key of 0 is no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReserveOut {
    /// REGISTER: from `key` (0: not registered yet) to `new_key` (0: not registered any more).
    Register {
        /// The key that is registered now.
        key: u64,
        /// The key to register.
        new_key: u64,
        /// How.
        options: RegisterOptions,
    },
    /// REGISTER AND IGNORE EXISTING KEY.
    RegisterAndIgnore {
        /// The key to register.
        new_key: u64,
        /// How. Other initiators cannot be named.
        options: RegisterOptions,
    },
    /// RESERVE
    Reserve {
        /// The registered key.
        key: u64,
        /// What others may still do.
        kind: ReservationType,
    },
    /// RELEASE
    Release {
        /// The registered key.
        key: u64,
        /// The type that was reserved.
        kind: ReservationType,
    },
    /// CLEAR: all registrations and the reservation.
    Clear {
        /// The registered key.
        key: u64,
    },
    /// PREEMPT: takes the reservation from, or the registration of, who has the key `victim`.
    Preempt {
        /// The registered key.
        key: u64,
        /// The key of who is preempted.
        victim: u64,
        /// The type that is reserved afterwards.
        kind: ReservationType,
        /// PREEMPT AND ABORT: the victim's commands are aborted too.
        abort: bool,
    },
    /// REGISTER AND MOVE: the reservation goes to another nexus.
    Move {
        /// The registered key.
        key: u64,
        /// The key that the other nexus is registered with.
        new_key: u64,
        /// UNREG: the mover is not registered afterwards.
        unregister: bool,
        /// APTPL
        persist: bool,
        /// RELATIVE TARGET PORT IDENTIFIER of the other nexus.
        target_port: u16,
        /// Name, `,i,0x` and ISID of the other initiator port.
        initiator_port: String,
    },
    /// REPLACE LOST RESERVATION: what the unit cannot read any more is forgotten. The sender alone is registered, and holds the
    /// reservation.
    ReplaceLost {
        /// The key to register.
        new_key: u64,
        /// What others may still do.
        kind: ReservationType,
        /// APTPL
        persist: bool,
    },
}

/// How a registration is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisterOptions {
    /// APTPL: registrations are kept through a loss of power.
    pub persist: bool,
    /// ALL_TG_PT: through every target port.
    pub all_target_ports: bool,
    /// SPEC_I_PT: initiator ports (name, `,i,0x` and ISID) that are registered along.
    pub initiator_ports: Vec<String>,
}

/// PERSISTENT RESERVE OUT.
///
/// # Errors
/// A name of an initiator port is not one, or there are too many of them.
pub fn reserve_out(out: &ReserveOut) -> Result<Command, DoesNotFit> {
    let (action, kind, list) = match out {
        ReserveOut::Register { key, new_key, options } => (0, None, register_list(*key, *new_key, options)?),
        ReserveOut::RegisterAndIgnore { options, .. } if !options.initiator_ports.is_empty() => {
            return Err(DoesNotFit { field: "SPEC_I_PT" });
        }
        ReserveOut::RegisterAndIgnore { new_key, options } => (6, None, register_list(0, *new_key, options)?),
        ReserveOut::Reserve { key, kind } => (1, Some(*kind), keys(*key, 0)),
        ReserveOut::Release { key, kind } => (2, Some(*kind), keys(*key, 0)),
        ReserveOut::Clear { key } => (3, None, keys(*key, 0)),
        ReserveOut::Preempt { key, victim, kind, abort } => {
            (4 + u8::from(*abort), Some(*kind), keys(*key, *victim))
        }
        ReserveOut::Move { key, new_key, unregister, persist, target_port, initiator_port } => {
            let id = port_id(initiator_port)?;
            let flags = u8::from(*unregister) << 1 | u8::from(*persist);
            let mut list = [&key.to_be_bytes()[..], &new_key.to_be_bytes(), &[0, flags]].concat();
            list.extend(target_port.to_be_bytes());
            list.extend((id.len() as u32).to_be_bytes());
            list.extend(id);
            (7, None, list)
        }
        ReserveOut::ReplaceLost { new_key, kind, persist } => {
            let mut list = keys(0, *new_key);
            list[20] = u8::from(*persist);
            (8, Some(*kind), list)
        }
    };
    let length = (list.len() as u32).to_be_bytes();
    let command = Command::with_action((opcode::PERSISTENT_RESERVE_OUT, action));
    let command = command.bits(2, kind.map_or(0, |kind| kind as u8)).field(5, length);
    Ok(command.transferring(Transfer::List(list)))
}

/// The fixed list of twenty-four bytes.
fn keys(key: u64, service_action_key: u64) -> Vec<u8> {
    [&key.to_be_bytes()[..], &service_action_key.to_be_bytes(), &[0; 8]].concat()
}

/// The most initiator ports that are named in one list, each of at most 272 bytes.
const PORTS_MAX: usize = 128;

fn register_list(key: u64, new_key: u64, options: &RegisterOptions) -> Result<Vec<u8>, DoesNotFit> {
    let mut list = keys(key, new_key);
    let specify = !options.initiator_ports.is_empty();
    list[20] = u8::from(specify) << 3 | u8::from(options.all_target_ports) << 2 | u8::from(options.persist);
    if specify {
        if options.initiator_ports.len() > PORTS_MAX {
            return Err(DoesNotFit { field: "TRANSPORTID PARAMETER DATA LENGTH" });
        }
        let ids = options.initiator_ports.iter().map(|port| port_id(port)).collect::<Result<Vec<_>, _>>()?;
        let ids = ids.concat();
        list.extend((ids.len() as u32).to_be_bytes());
        list.extend(ids);
    }
    Ok(list)
}

/// The TransportID of an initiator port, if this is the name of one.
fn port_id(name: &str) -> Result<Vec<u8>, DoesNotFit> {
    let id = transport_id::compose(name);
    match TransportId::parse(&id) {
        Some((TransportId::Port(_), length)) if length == id.len() && !name.contains('\0') => Ok(id),
        _ => Err(DoesNotFit { field: "TRANSPORTID" }),
    }
}

#[cfg(test)]
mod tests;
