//! Which units of a device one initiator may reach, and under which numbers: its view of the device.
//!
//! SPC-4 leaves masking to the vendor. What a view leaves out does not exist for its nexus; what it shows is the shared
//! unit, whose resets, unit attentions and reservations are everybody's. Who gets which view is the driver's affair.

use crate::device::Device;
use crate::lun::Lun;
use crate::unit::ConfigError;

/// One unit as a view shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedUnit {
    /// The number under which the initiator finds the unit.
    pub lun: Lun,
    /// The unit's number in the device.
    pub unit: Lun,
    /// Everything that changes the medium is refused to this initiator.
    pub read_only: bool,
}

/// A view of one device. Each unit stands in it once at most, so that a unit and a nexus have one number between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LunMap {
    /// In rising order of number.
    entries: Vec<Entry>,
    shows_everything: bool,
}

/// One unit, by its place in [`Device::units`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) number: u16,
    pub(crate) place: usize,
    pub(crate) read_only: bool,
}

impl LunMap {
    /// The view that shows `units` of `device`.
    ///
    /// # Errors
    /// [`ConfigError`] for a LUN of more than one level, a number or a unit given twice, or a unit that is not there.
    pub fn new(device: &Device, units: impl IntoIterator<Item = MappedUnit>) -> Result<LunMap, ConfigError> {
        let mut entries: Vec<Entry> = Vec::new();
        for MappedUnit { lun, unit, read_only } in units {
            let number = lun.number().ok_or(ConfigError::Lun(lun))?;
            let place = device.place(unit).ok_or(ConfigError::NoSuchUnit(unit))?;
            if entries.iter().any(|entry| entry.number == number) {
                return Err(ConfigError::DuplicateLun(number));
            }
            if entries.iter().any(|entry| entry.place == place) {
                return Err(ConfigError::UnitMappedTwice(unit));
            }
            entries.push(Entry { number, place, read_only });
        }
        entries.sort_by_key(|entry| entry.number);
        let shows_everything = entries.len() == device.units().len();
        Ok(LunMap { entries, shows_everything })
    }

    /// The view that shows every unit under its own number.
    pub fn everything(device: &Device) -> LunMap {
        let numbers = device.units().filter_map(|(lun, _)| lun.number());
        let entries =
            numbers.enumerate().map(|(place, number)| Entry { number, place, read_only: false }).collect();
        LunMap { entries, shows_everything: true }
    }

    /// Whether each unit of the device is in it, under whatever number.
    pub fn shows_everything(&self) -> bool {
        self.shows_everything
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The index among the entries of the unit that `lun` names.
    pub(crate) fn index_of(&self, lun: Lun) -> Option<usize> {
        let number = lun.number()?;
        self.entries.binary_search_by_key(&number, |entry| entry.number).ok()
    }

    /// The index among the entries of the unit at a place of [`Device::units`].
    pub(crate) fn index_of_place(&self, place: usize) -> Option<usize> {
        // As it is where everything is shown under its own number.
        let is_there = self.entries.get(place).is_some_and(|entry| entry.place == place);
        if is_there { Some(place) } else { self.entries.iter().position(|entry| entry.place == place) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::unit::tests::{config, unit_of};

    fn device() -> Device {
        let units = [2, 5].map(|number| (Lun::from_number(number), Arc::new(unit_of(config()))));
        Device::new("iqn.x", [1], units).unwrap()
    }

    fn map(units: &[(u16, u16)]) -> Result<LunMap, ConfigError> {
        let mapped = |&(lun, unit): &(u16, u16)| MappedUnit {
            lun: Lun::from_number(lun),
            unit: Lun::from_number(unit),
            read_only: false,
        };
        LunMap::new(&device(), units.iter().map(mapped))
    }

    #[test]
    fn a_view_is_in_order_of_its_own_numbers() {
        let view = map(&[(7, 2), (1, 5)]).unwrap();
        let entries: Vec<_> = view.entries().iter().map(|entry| (entry.number, entry.place)).collect();
        assert_eq!(entries, [(1, 1), (7, 0)]);
        assert_eq!([1, 7, 0].map(|number| view.index_of(Lun::from_number(number))), [Some(0), Some(1), None]);
        assert_eq!([0, 1, 2].map(|place| view.index_of_place(place)), [Some(1), Some(0), None]);
        assert!(view.shows_everything());
        assert!(!map(&[(0, 5)]).unwrap().shows_everything());
        assert!(LunMap::everything(&device()).shows_everything());
        assert_eq!(LunMap::everything(&device()), map(&[(2, 2), (5, 5)]).unwrap());
    }

    #[test]
    fn impossible_views_are_refused() {
        assert_eq!(map(&[(0, 3)]), Err(ConfigError::NoSuchUnit(Lun::from_number(3))));
        assert_eq!(map(&[(0, 2), (0, 5)]), Err(ConfigError::DuplicateLun(0)));
        assert_eq!(map(&[(0, 2), (1, 2)]), Err(ConfigError::UnitMappedTwice(Lun::from_number(2))));
        let odd = MappedUnit { lun: Lun::REPORT_LUNS, unit: Lun::from_number(2), read_only: false };
        assert_eq!(LunMap::new(&device(), [odd]), Err(ConfigError::Lun(Lun::REPORT_LUNS)));
    }
}
