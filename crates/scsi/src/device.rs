//! The SCSI target device: its target ports and the logical units behind them (SAM-5, SCSI target device).

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;
use std::sync::Arc;

use crate::alua::AccessState;
use crate::domain::Domain;
use crate::identity::UnitName;
use crate::lun::Lun;
use crate::paths::Roster;
use crate::unit::{ConfigError, LogicalUnit};

/// A relative target port identifier, 1 to 65535 (SPC-4). For iSCSI it is the portal group tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetPort(NonZeroU16);

impl TargetPort {
    /// The port with identifier `id`; `None` for 0, which is none.
    pub const fn new(id: u16) -> Option<TargetPort> {
        match NonZeroU16::new(id) {
            Some(id) => Some(TargetPort(id)),
            None => None,
        }
    }

    /// The identifier.
    pub const fn id(self) -> u16 {
        self.0.get()
    }
}

/// A SCSI target device.
#[derive(Debug)]
pub struct Device {
    name: String,
    /// In rising order.
    ports: Vec<TargetPort>,
    /// In rising order of number, so that every address method of a LUN finds the same unit.
    units: Vec<(u16, Arc<LogicalUnit>)>,
    /// The places of the units by their names, in rising order of both.
    names: Vec<(UnitName, usize)>,
    roster: Arc<Roster>,
    domain: Arc<Domain>,
}

impl Device {
    /// The longest target name, in bytes (RFC 7143 4.2.7.1).
    const NAME_LENGTH_MAX: usize = 223;

    /// A device whose units are active and optimized through all ports (see [`LogicalUnit::begin_access`] and
    /// [`LogicalUnit::settle_access`]), named `target_name`,
    /// with one port for each of `portal_group_tags`; the tag is the port's relative identifier.
    ///
    /// # Errors
    /// [`ConfigError`] for a name or tag that cannot be, no tag at all, a LUN of more than one level, or a number given
    /// twice.
    pub fn new(
        target_name: impl Into<String>,
        portal_group_tags: impl IntoIterator<Item = u16>,
        units: impl IntoIterator<Item = (Lun, Arc<LogicalUnit>)>,
    ) -> Result<Device, ConfigError> {
        let name = target_name.into();
        if name.is_empty() || name.len() > Device::NAME_LENGTH_MAX {
            return Err(ConfigError::TargetName);
        }
        let ports: Option<BTreeSet<_>> = portal_group_tags.into_iter().map(TargetPort::new).collect();
        let ports = ports.filter(|ports| !ports.is_empty()).ok_or(ConfigError::PortalGroupTag)?;
        let mut by_number = BTreeMap::new();
        for (lun, unit) in units {
            let number = lun.number().ok_or(ConfigError::Lun(lun))?;
            ports.iter().for_each(|&port| unit.begin_access(port, AccessState::default(), false));
            if by_number.insert(number, unit).is_some() {
                return Err(ConfigError::DuplicateLun(number));
            }
        }
        let units: Vec<_> = by_number.into_iter().collect();
        let roster = Arc::default();
        for (place, (_, unit)) in units.iter().enumerate() {
            unit.devices().join(&roster, place);
        }
        let named = |(place, (_, unit)): (usize, &(u16, Arc<LogicalUnit>))| {
            unit.identity().names().map(|name| (name, place))
        };
        let mut names: Vec<_> = units.iter().enumerate().flat_map(named).collect();
        names.sort_unstable();
        Ok(Device { name, ports: ports.into_iter().collect(), units, names, roster, domain: Arc::default() })
    }

    /// The device as part of `domain`. Without one, time stands still and no tokens can be made.
    #[must_use]
    pub fn in_domain(self, domain: Arc<Domain>) -> Device {
        Device { domain, ..self }
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    pub(crate) fn roster(&self) -> &Roster {
        &self.roster
    }

    /// The name of the SCSI target device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The target ports in rising order of identifier; at least one.
    pub fn ports(&self) -> &[TargetPort] {
        &self.ports
    }

    /// The name of a SCSI target port: the iSCSI name, ",t,", and the tag as 0x and four hexadecimal digits (RFC 7143
    /// 4.4.2).
    pub fn port_name(&self, port: TargetPort) -> String {
        format!("{},t,0x{:04x}", self.name, port.id())
    }

    /// The unit that `lun` names, in any single-level form.
    pub fn unit(&self, lun: Lun) -> Option<&Arc<LogicalUnit>> {
        self.unit_at(self.place(lun)?)
    }

    /// The place in [`Device::units`] of the unit that `lun` names.
    pub(crate) fn place(&self, lun: Lun) -> Option<usize> {
        let number = lun.number()?;
        self.units.binary_search_by_key(&number, |(number, _)| *number).ok()
    }

    /// The places of the units that have this name: one, unless a unit is there twice.
    pub(crate) fn places_of(&self, name: UnitName) -> impl Iterator<Item = usize> {
        let first = self.names.partition_point(|&(other, _)| other < name);
        self.names[first..].iter().take_while(move |(other, _)| *other == name).map(|&(_, place)| place)
    }

    pub(crate) fn unit_at(&self, place: usize) -> Option<&Arc<LogicalUnit>> {
        self.units.get(place).map(|(_, unit)| unit)
    }

    /// Every unit in rising order of number. The position in this order is what [`crate::Task::unit_index`] tells.
    pub fn units(&self) -> impl ExactSizeIterator<Item = (Lun, &Arc<LogicalUnit>)> {
        self.units.iter().map(|(number, unit)| (Lun::from_number(*number), unit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::tests::{config, unit_of};

    fn unit() -> Arc<LogicalUnit> {
        Arc::new(unit_of(config()))
    }

    #[test]
    fn units_are_found_in_every_form_and_listed_in_order() {
        let units = [(Lun::from_number(300), unit()), (Lun::from_number(0), unit())];
        let device = Device::new("iqn.x", [9, 7, 9], units).unwrap();
        let ports: Vec<_> = device.ports().iter().map(|&port| device.port_name(port)).collect();
        assert_eq!(ports, ["iqn.x,t,0x0007", "iqn.x,t,0x0009"]);
        assert!(device.unit(Lun::from_bytes([0x40, 0, 0, 0, 0, 0, 0, 0])).is_some());
        assert!(device.unit(Lun::from_number(1)).is_none());
        let numbers: Vec<_> = device.units().map(|(lun, _)| lun.number()).collect();
        assert_eq!(numbers, [Some(0), Some(300)]);
    }

    #[test]
    fn impossible_devices_are_refused() {
        let error = |name: &str, tag: u16, units: &[Lun]| {
            Device::new(name, [tag], units.iter().map(|&lun| (lun, unit()))).unwrap_err()
        };
        assert_eq!(error("", 1, &[]), ConfigError::TargetName);
        assert_eq!(error(&"x".repeat(224), 1, &[]), ConfigError::TargetName);
        assert_eq!(error("iqn.x", 0, &[]), ConfigError::PortalGroupTag);
        assert_eq!(Device::new("iqn.x", [], []).unwrap_err(), ConfigError::PortalGroupTag);
        assert_eq!(error("iqn.x", 1, &[Lun::REPORT_LUNS]), ConfigError::Lun(Lun::REPORT_LUNS));
        let flat = Lun::from_bytes([0x40, 3, 0, 0, 0, 0, 0, 0]);
        assert_eq!(error("iqn.x", 1, &[Lun::from_number(3), flat]), ConfigError::DuplicateLun(3));
    }
}
