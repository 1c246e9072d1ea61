//! The SCSI target device: one target port and the logical units behind it (SAM-5, SCSI target device).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::lun::Lun;
use crate::unit::{ConfigError, LogicalUnit};

/// A SCSI target device as one target port shows it.
#[derive(Debug)]
pub struct Device {
    name: String,
    port_name: String,
    relative_port_id: u16,
    /// By number, so that every address method of a LUN finds the same unit.
    units: BTreeMap<u16, Arc<LogicalUnit>>,
}

impl Device {
    /// The longest target name, in bytes (RFC 7143 4.2.7.1).
    const NAME_LENGTH_MAX: usize = 223;

    /// A device named `target_name` whose port is the portal group `portal_group_tag`; the tag is also the relative
    /// port identifier.
    ///
    /// # Errors
    /// [`ConfigError`] for a name or tag that cannot be, a LUN of more than one level, or a number given twice.
    pub fn new(
        target_name: impl Into<String>,
        portal_group_tag: u16,
        units: impl IntoIterator<Item = (Lun, Arc<LogicalUnit>)>,
    ) -> Result<Device, ConfigError> {
        let name = target_name.into();
        if name.is_empty() || name.len() > Device::NAME_LENGTH_MAX {
            return Err(ConfigError::TargetName);
        }
        if portal_group_tag == 0 {
            return Err(ConfigError::PortalGroupTag);
        }
        let mut by_number = BTreeMap::new();
        for (lun, unit) in units {
            let number = lun.number().ok_or(ConfigError::Lun(lun))?;
            if by_number.insert(number, unit).is_some() {
                return Err(ConfigError::DuplicateLun(number));
            }
        }
        // RFC 7143 4.4.2: the SCSI target port name is the iSCSI name, ",t,", and the tag as 0x and
        // four hexadecimal digits.
        let port_name = format!("{name},t,0x{portal_group_tag:04x}");
        Ok(Device { name, port_name, relative_port_id: portal_group_tag, units: by_number })
    }

    /// The name of the SCSI target device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of the SCSI target port.
    pub fn port_name(&self) -> &str {
        &self.port_name
    }

    /// The relative port identifier.
    pub fn relative_port_id(&self) -> u16 {
        self.relative_port_id
    }

    /// The unit that `lun` names, in any single-level form.
    pub fn unit(&self, lun: Lun) -> Option<&Arc<LogicalUnit>> {
        self.units.get(&lun.number()?)
    }

    /// Every unit in rising order of number. The position in this order is what [`crate::Task::unit_index`] tells.
    pub fn units(&self) -> impl ExactSizeIterator<Item = (Lun, &Arc<LogicalUnit>)> {
        self.units.iter().map(|(&number, unit)| (Lun::from_number(number), unit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::tests::config;

    fn unit() -> Arc<LogicalUnit> {
        Arc::new(LogicalUnit::new(config()).unwrap())
    }

    #[test]
    fn units_are_found_in_every_form_and_listed_in_order() {
        let units = [(Lun::from_number(300), unit()), (Lun::from_number(0), unit())];
        let device = Device::new("iqn.x", 7, units).unwrap();
        assert_eq!(device.port_name(), "iqn.x,t,0x0007");
        assert!(device.unit(Lun::from_bytes([0x40, 0, 0, 0, 0, 0, 0, 0])).is_some());
        assert!(device.unit(Lun::from_number(1)).is_none());
        let numbers: Vec<_> = device.units().map(|(lun, _)| lun.number()).collect();
        assert_eq!(numbers, [Some(0), Some(300)]);
    }

    #[test]
    fn impossible_devices_are_refused() {
        let error = |name: &str, tag, units: &[Lun]| {
            Device::new(name, tag, units.iter().map(|&lun| (lun, unit()))).unwrap_err()
        };
        assert_eq!(error("", 1, &[]), ConfigError::TargetName);
        assert_eq!(error(&"x".repeat(224), 1, &[]), ConfigError::TargetName);
        assert_eq!(error("iqn.x", 0, &[]), ConfigError::PortalGroupTag);
        assert_eq!(error("iqn.x", 1, &[Lun::REPORT_LUNS]), ConfigError::Lun(Lun::REPORT_LUNS));
        let flat = Lun::from_bytes([0x40, 3, 0, 0, 0, 0, 0, 0]);
        assert_eq!(error("iqn.x", 1, &[Lun::from_number(3), flat]), ConfigError::DuplicateLun(3));
    }
}
