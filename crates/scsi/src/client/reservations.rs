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
mod tests {
    use super::*;

    const PORT: &str = "iqn.2026-11.io.example:host,i,0x80000000000a";

    #[test]
    fn keys_and_reservation() {
        let data = [&[0, 0, 0, 7, 0, 0, 0, 16][..], &5u64.to_be_bytes(), &6u64.to_be_bytes()].concat();
        assert_eq!(read_keys().decode(&data), Ok(Keys { generation: 7, keys: vec![5, 6] }));
        assert_eq!(read_keys().decode(&data[..16]).unwrap_err().needed_bytes(), Some(24));
        let none = read_reservation().decode(&[0, 0, 0, 7, 0, 0, 0, 0]);
        assert_eq!(none, Ok(Reserved { generation: 7, held: None }));
        let mut data = [&[0, 0, 0, 7, 0, 0, 0, 16][..], &5u64.to_be_bytes(), &[0; 8]].concat();
        data[8 + 13] = 0x05;
        let kind = Some(ReservationType::WriteExclusiveRegistrantsOnly);
        let reserved = read_reservation().decode(&data).unwrap();
        assert_eq!(reserved.held, Some(Held { key: 5, scope: 0, kind }));
        data[8 + 13] = 0x1f;
        let held = read_reservation().decode(&data).unwrap().held.unwrap();
        assert_eq!((held.scope, held.kind), (1, None));
    }

    #[test]
    fn capabilities() {
        let told = report_capabilities().decode(&[0, 8, 0x1d, 0x91, 0xea, 0x01, 0, 0]).unwrap();
        assert!(told.compatible_reservations && told.specify_initiator_ports && told.all_target_ports);
        assert!(told.persist_through_power_loss && told.persists_now);
        assert_eq!(told.types, Some(ReservationType::ALL.to_vec()));
        let plain = report_capabilities().decode(&[0, 8, 0, 0, 0xff, 0xff, 0, 0]).unwrap();
        assert_eq!(plain.types, None);
        assert!(report_capabilities().decode(&[0, 8, 0]).is_err());
    }

    #[test]
    fn registrants() {
        let id = transport_id::compose(PORT);
        let mut one = vec![0; 24];
        one[7] = 9;
        one[12] = 1;
        one[13] = 3;
        one[19] = 2;
        one[23] = id.len() as u8;
        one.extend(&id);
        let mut two = vec![0; 24];
        two[12] = 2;
        two[23] = 3;
        two.extend([6, 1, 2]);
        let body = [one, two].concat();
        let data = [&[0; 7][..], &[body.len() as u8], &body].concat();
        let all = read_full_status().decode(&data).unwrap().registrants;
        assert_eq!((all[0].key, all[0].target_port), (9, Some(2)));
        assert_eq!(all[0].held.and_then(|held| held.kind), Some(ReservationType::ExclusiveAccess));
        assert_eq!(all[0].initiator.to_string(), PORT);
        assert_eq!((all[1].held, all[1].target_port), (None, None));
        assert_eq!(all[1].initiator.to_string(), "TransportID 060102");
        assert!(read_full_status().decode(&data[..data.len() - 1]).is_err());
        let mut endless = data.clone();
        endless[8 + 20..8 + 24].fill(0xff);
        assert!(read_full_status().decode(&endless).is_err());
    }

    #[test]
    fn lists() {
        let reserve = ReserveOut::Reserve { key: 5, kind: ReservationType::WriteExclusive };
        let command = reserve_out(&reserve).unwrap();
        assert_eq!(command.cdb(), [0x5f, 1, 1, 0, 0, 0, 0, 0, 24, 0]);
        let options =
            RegisterOptions { persist: true, all_target_ports: true, initiator_ports: vec![PORT.to_owned()] };
        let register = ReserveOut::Register { key: 1, new_key: 2, options: options.clone() };
        let command = reserve_out(&register).unwrap();
        let Transfer::List(list) = command.transfer() else { panic!("no list") };
        assert_eq!((list.len(), list[7], list[15], list[20]), (28 + 52, 1, 2, 0x0d));
        assert_eq!(list[24..32], [0, 0, 0, 52, 0x45, 0, 0, 48]);
        let ignore = ReserveOut::RegisterAndIgnore { new_key: 2, options };
        assert_eq!(reserve_out(&ignore), Err(DoesNotFit { field: "SPEC_I_PT" }));
        let mut go = ReserveOut::Move {
            key: 1,
            new_key: 2,
            unregister: true,
            persist: false,
            target_port: 3,
            initiator_port: PORT.to_owned(),
        };
        let command = reserve_out(&go).unwrap();
        let Transfer::List(list) = command.transfer() else { panic!("no list") };
        assert_eq!(list[16..28], [0, 2, 0, 3, 0, 0, 0, 52, 0x45, 0, 0, 48]);
        if let ReserveOut::Move { initiator_port, .. } = &mut go {
            *initiator_port = "iqn.x".to_owned();
        }
        assert_eq!(reserve_out(&go), Err(DoesNotFit { field: "TRANSPORTID" }));
    }
}
