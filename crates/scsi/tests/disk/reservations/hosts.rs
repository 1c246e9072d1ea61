//! Two initiator ports, each through two target ports: four nexuses to one unit, and the commands of reservations.

use std::sync::Arc;

use lunette_scsi::{Device, LogicalUnit, LogicalUnitConfig, Lun, Nexus, Saved};

use super::model::{End, Step, Who};
use crate::host::*;

pub(crate) const HOSTS: [&str; 2] = ["iqn.host-a,i,0x800000000001", "iqn.host-b,i,0x800000000002"];
const PORTS: [u16; 2] = [1, 2];
/// DATA PROTECT, PERSISTENT RESERVATION INFORMATION LOST.
pub(crate) const LOST: (u8, u8, u8) = (7, 0x44, 0x01);

/// Which initiator port and which target port `who` is.
fn ports_of(who: Who) -> (&'static str, u16) {
    (HOSTS[who / 2], PORTS[who % 2])
}

/// One initiator port through different target ports.
pub(crate) fn same_host(left: Who, right: Who) -> bool {
    left / 2 == right / 2
}

pub(crate) struct Hosts {
    device: Arc<Device>,
    pub(crate) all: Vec<Host>,
}

impl Hosts {
    pub(crate) fn new(saved: Saved<'_>) -> Hosts {
        Hosts::with(config(), saved)
    }

    pub(crate) fn with(config: LogicalUnitConfig, saved: Saved<'_>) -> Hosts {
        let unit = Arc::new(LogicalUnit::new(config, saved).expect("a possible unit"));
        let device =
            Arc::new(Device::new("iqn.t", PORTS, [(Lun::from_number(0), unit)]).expect("a possible device"));
        let mut hosts = Hosts { all: Vec::new(), device };
        hosts.all = (0..4).map(|who| hosts.log_in(who)).collect();
        hosts
    }

    fn log_in(&self, who: Who) -> Host {
        let (initiator, port) = ports_of(who);
        let port = *self.device.ports().iter().find(|other| other.id() == port).expect("a port");
        let nexus = Nexus::new(Arc::clone(&self.device), port, initiator.into());
        let mut host =
            Host { nexus, lun: Lun::from_number(0), disk: Disk::new(), others: Default::default() };
        assert_eq!(host.good(&[0x03, 0, 0, 0, 18, 0], &[])[12..14], [0x29, 0], "POWER ON");
        host
    }

    /// The nexus is lost, and comes up again.
    pub(crate) fn lose(&mut self, who: Who) {
        self.all.remove(who);
        let host = self.log_in(who);
        self.all.insert(who, host);
    }

    /// The device starts again. Of what it had kept, the reservations cannot be read.
    pub(crate) fn start_after_loss(&mut self) {
        let state = self.unit().state();
        *self = Hosts::new(Saved::Parts { settings: &state.settings, reservations: None });
    }

    pub(crate) fn unit(&self) -> Arc<LogicalUnit> {
        Arc::clone(self.device.unit(Lun::from_number(0)).expect("unit 0"))
    }

    pub(crate) fn out(&mut self, who: Who, action: u8, kind: u8, list: &[u8]) -> Reply {
        self.all[who].run(&out_cdb(action, kind, list.len()), list)
    }

    /// What PERSISTENT RESERVE IN tells.
    pub(crate) fn report(&mut self, who: Who, action: u8) -> Vec<u8> {
        self.all[who].good(&[0x5e, action, 0, 0, 0, 0, 0, 0xff, 0xff, 0], &[])
    }

    /// Does `step` of the model for real.
    pub(crate) fn step(&mut self, who: Who, step: &Step) -> End {
        let reply = match *step {
            Step::Register { key, new, ignore, ref along, all_ports, aptpl } => {
                let flags = if all_ports { 0x04 } else { 0 } | u8::from(aptpl);
                let list = match along {
                    None => list(key, new, flags),
                    Some(others) => {
                        let ids: Vec<u8> =
                            others.iter().flat_map(|&other| transport_id(ports_of(other).0)).collect();
                        let length = (ids.len() as u32).to_be_bytes();
                        [&list(key, new, flags | 0x08)[..], &length, &ids].concat()
                    }
                };
                self.out(who, if ignore { 6 } else { 0 }, 0, &list)
            }
            Step::Reserve { key, kind } => self.out(who, 1, kind, &list(key, 0, 0)),
            Step::Release { key, kind } => self.out(who, 2, kind, &list(key, 0, 0)),
            Step::Clear { key } => self.out(who, 3, 0, &list(key, 0, 0)),
            Step::Preempt { key, victim, kind, abort } => {
                self.out(who, if abort { 5 } else { 4 }, kind, &list(key, victim, 0))
            }
            Step::Move { key, new, to, unregister } => {
                let (initiator, port) = ports_of(to);
                self.out(who, 7, 0, &move_list(key, new, u8::from(unregister) << 1, port, initiator))
            }
            Step::Spc2Reserve => self.all[who].run(&[0x16], &[]),
            Step::Spc2Release => self.all[who].run(&[0x17], &[]),
            Step::ReplaceLost { key, new, kind } => self.out(who, 8, kind, &list(key, new, 0)),
            Step::Loss => {
                self.start_after_loss();
                return End::Good;
            }
            Step::NexusLoss => {
                self.lose(who);
                return End::Good;
            }
            Step::LogicalUnitReset => {
                assert!(self.all[who].nexus.logical_unit_reset(Lun::from_number(0)));
                return End::Good;
            }
        };
        match (reply.status.code(), reply.code()) {
            (0, _) => End::Good,
            (0x18, _) => End::Conflict,
            (2, (5, code, qualifier)) => End::Illegal(code, qualifier),
            (2, LOST) => End::Lost,
            other => panic!("{step:?} ends with {other:02x?}"),
        }
    }

    /// The unit attentions that wait for `who`, oldest first.
    pub(crate) fn attentions(&mut self, who: Who) -> Vec<(u8, u8)> {
        let mut attentions = Vec::new();
        loop {
            let sense = self.all[who].good(&[0x03, 0, 0, 0, 18, 0], &[]);
            if sense[2] != 6 {
                return attentions;
            }
            attentions.push((sense[12], sense[13]));
        }
    }
}

pub(crate) fn out_cdb(action: u8, kind: u8, length: usize) -> [u8; 16] {
    let mut cdb = padded(&[0x5f, action, kind]);
    cdb[5..9].copy_from_slice(&(length as u32).to_be_bytes());
    cdb
}

/// The fixed parameter list.
pub(crate) fn list(key: u64, service_action_key: u64, flags: u8) -> Vec<u8> {
    [&key.to_be_bytes()[..], &service_action_key.to_be_bytes(), &[0; 4], &[flags, 0, 0, 0]].concat()
}

/// The parameter list of REGISTER AND MOVE.
pub(crate) fn move_list(key: u64, new: u64, flags: u8, port: u16, initiator: &str) -> Vec<u8> {
    let id = transport_id(initiator);
    let length = (id.len() as u32).to_be_bytes();
    let keys = [key.to_be_bytes(), new.to_be_bytes()].concat();
    [&keys[..], &[0, flags], &port.to_be_bytes(), &length, &id].concat()
}

/// A TransportID of format 01b.
pub(crate) fn transport_id(initiator_port: &str) -> Vec<u8> {
    let mut id = vec![0x45, 0, 0, 0];
    id.extend(initiator_port.bytes());
    id.resize((id.len() + 1).next_multiple_of(4).max(24), 0);
    id[3] = (id.len() - 4) as u8;
    id
}
