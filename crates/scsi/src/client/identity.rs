//! Whether a logical unit is still the one that it was (SPC-4, 7.8.5 and 7.8.19; SBC-3, 5.16): its names and its capacity.
//!
//! A logical unit number is a place, and not a name: after a target was configured anew another medium may lie behind it.

use std::fmt;

use super::Sense;
use super::capacity::Capacity;
use super::probe::UnitFacts;
use super::vpd::identification::{Association, Designator};
use crate::sense::AdditionalSense;

/// What tells a unit from all others, and how large it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitIdentity {
    vendor: String,
    product: String,
    serial: String,
    /// The names of the logical unit; those of the target port differ from path to path.
    names: Vec<Designator>,
    capacity: Option<Capacity>,
    may_grow: bool,
}

/// How a unit differs from the one that was there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// It has other names.
    Identity {
        /// The name before.
        was: String,
        /// The name now.
        is: String,
    },
    /// It has another capacity, or other blocks.
    Capacity {
        /// Before.
        was: Option<Capacity>,
        /// Now.
        is: Option<Capacity>,
    },
}

impl Difference {
    /// The unit is formatted or sanitized, which may take days, or has failed at that, and differs only in that it does not tell its
    /// capacity before it is done, or done again. `not_ready` is what it says instead of being ready.
    #[must_use]
    pub fn is_of_work(&self, not_ready: &Sense) -> bool {
        matches!(self, Difference::Capacity { is: None, .. })
            && matches!(
                not_ready.code,
                AdditionalSense::FORMAT_IN_PROGRESS
                    | AdditionalSense::SANITIZE_IN_PROGRESS
                    | AdditionalSense::FORMAT_COMMAND_FAILED
                    | AdditionalSense::SANITIZE_COMMAND_FAILED
            )
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |capacity: &Option<Capacity>| match capacity {
            Some(capacity) => format!("{} blocks of {} bytes", capacity.blocks, capacity.block_length_bytes),
            None => "no capacity".to_owned(),
        };
        match self {
            Difference::Identity { was, is } => write!(f, "it was {was}, and is {is}"),
            Difference::Capacity { was, is } => write!(f, "it had {}, and has {}", size(was), size(is)),
        }
    }
}

impl UnitIdentity {
    /// The identity of a unit that was probed.
    pub fn of(facts: &UnitFacts) -> UnitIdentity {
        let of_unit = |association| association == Association::LogicalUnit;
        let names = facts.designations.iter().filter(|name| of_unit(name.association));
        let mut names: Vec<_> = names.map(|name| name.designator.clone()).collect();
        names.sort_by_cached_key(ToString::to_string);
        UnitIdentity {
            vendor: facts.inquiry.vendor.clone(),
            product: facts.inquiry.product.clone(),
            serial: facts.serial.clone(),
            names,
            capacity: facts.capacity,
            may_grow: false,
        }
    }

    /// The same of a unit that may have become larger when it is looked at again. Only one with a name that is unique in the world may:
    /// of others the size is a part of what tells them apart.
    #[must_use]
    pub fn growing(self) -> UnitIdentity {
        UnitIdentity { may_grow: true, ..self }
    }

    /// The same unit, with as many blocks of the same kind and more, which it may have.
    fn has_grown(&self, now: &UnitIdentity) -> bool {
        let (Some(was), Some(is)) = (self.capacity, now.capacity) else { return false };
        let has_more = is.blocks > was.blocks && Capacity { blocks: was.blocks, ..is } == was;
        self.may_grow && has_more && self.is_same_unit(now) && self.shares_unique_name(now)
    }

    /// Takes over the size of a unit that has become larger, as it may. True if it has.
    pub fn grow(&mut self, now: &UnitIdentity) -> bool {
        let has_grown = self.has_grown(now);
        if has_grown {
            self.capacity = now.capacity;
        }
        has_grown
    }

    /// How `now` differs from this; `None`: it is the same unit, and as large, or larger if it may be.
    pub fn difference(&self, now: &UnitIdentity) -> Option<Difference> {
        if !self.is_same_unit(now) {
            return Some(Difference::Identity { was: self.to_string(), is: now.to_string() });
        }
        let differs = self.capacity != now.capacity && !self.has_grown(now);
        differs.then_some(Difference::Capacity { was: self.capacity, is: now.capacity })
    }

    /// The two have the same names, whatever their capacities.
    pub fn is_same_unit(&self, other: &UnitIdentity) -> bool {
        (&self.vendor, &self.product, &self.serial, &self.names)
            == (&other.vendor, &other.product, &other.serial, &other.names)
    }

    /// The unit has told its capacity.
    pub fn has_capacity(&self) -> bool {
        self.capacity.is_some()
    }

    /// The two have a name in common that is unique in the world. Names without a vendor's number are not: some targets
    /// count their units from the same one on each host.
    pub fn shares_unique_name(&self, other: &UnitIdentity) -> bool {
        self.names.iter().any(|name| name.is_unique() && other.names.contains(name))
    }
}

impl fmt::Display for UnitIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.vendor, self.product)?;
        if !self.serial.is_empty() {
            write!(f, " {}", self.serial)?;
        }
        self.names.iter().find(|name| name.is_unique()).map_or(Ok(()), |name| write!(f, " ({name})"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::capacity::CapacityDetails;
    use super::super::vpd::identification::Designation;
    use super::*;

    fn facts(serial: &str, naa: u8, blocks: u64) -> UnitFacts {
        let name = |association, designator| Designation { association, protocol: None, designator };
        UnitFacts {
            serial: serial.to_owned(),
            designations: vec![
                name(Association::TargetPort, Designator::RelativeTargetPort(naa.into())),
                name(Association::LogicalUnit, Designator::VendorId(serial.to_owned())),
                name(Association::LogicalUnit, Designator::Naa(vec![0x60, 0x01, 0x40, 0x50, naa, 0, 0, 0])),
            ],
            capacity: Some(Capacity { blocks, block_length_bytes: 512, details: CapacityDetails::default() }),
            ..UnitFacts::default()
        }
    }

    #[test]
    fn a_unit_at_work_may_keep_its_capacity_to_itself_and_nothing_else() {
        let sense = |code: u8, qualifier: u8| {
            let mut bytes = [0; 18];
            (bytes[0], bytes[2], bytes[7], bytes[12], bytes[13]) = (0x70, 2, 10, code, qualifier);
            Sense::decode(&bytes).expect("sense data")
        };
        let capacity = |blocks| facts("a", 1, blocks).capacity;
        let hides = Difference::Capacity { was: capacity(8), is: None };
        assert!(hides.is_of_work(&sense(0x04, 0x04)) && hides.is_of_work(&sense(0x04, 0x1b)));
        assert!(hides.is_of_work(&sense(0x31, 0x03)), "it is to be sanitized again");
        assert!(!hides.is_of_work(&sense(0x3a, 0)), "the medium is not there, and may come back as another");
        let resized = Difference::Capacity { was: capacity(8), is: capacity(9) };
        assert!(!resized.is_of_work(&sense(0x04, 0x1b)));
        let other = Difference::Identity { was: String::new(), is: String::new() };
        assert!(!other.is_of_work(&sense(0x04, 0x1b)));
    }

    #[test]
    fn the_same_unit_over_another_port_is_the_same() {
        let mut now = facts("a", 1, 8);
        now.designations[0].designator = Designator::RelativeTargetPort(77);
        now.designations.reverse();
        let (was, now) = (UnitIdentity::of(&facts("a", 1, 8)), UnitIdentity::of(&now));
        assert_eq!(was.difference(&now), None);
        assert!(was.is_same_unit(&now) && was.shares_unique_name(&now));
    }

    #[test]
    fn only_a_unit_with_a_unique_name_may_grow_and_none_may_shrink() {
        let of = |naa, blocks| UnitIdentity::of(&facts("a", naa, blocks));
        let mut was = of(1, 8).growing();
        assert_eq!(was.difference(&of(1, 9)), None);
        assert!(of(1, 8).difference(&of(1, 9)).is_some(), "nobody has said that it may");
        assert!(was.difference(&of(1, 7)).is_some() && was.difference(&of(2, 9)).is_some());
        let mut other_blocks = facts("a", 1, 9);
        other_blocks.capacity.as_mut().unwrap().block_length_bytes = 4096;
        assert!(was.difference(&UnitIdentity::of(&other_blocks)).is_some());
        assert!(!was.grow(&of(1, 8)) && was.grow(&of(1, 9)) && !was.grow(&of(1, 9)));
        assert!(was.difference(&of(1, 8)).is_some(), "it has shrunk since");
        // What some targets give on each host.
        let common = |blocks| {
            let mut facts = facts("a", 1, blocks);
            facts.designations.pop();
            UnitIdentity::of(&facts)
        };
        assert!(common(8).growing().difference(&common(9)).is_some());
    }

    #[test]
    fn another_name_and_another_capacity_are_told() {
        let was = UnitIdentity::of(&facts("a", 1, 8));
        for (serial, naa) in [("b", 1), ("a", 2)] {
            let difference = was.difference(&UnitIdentity::of(&facts(serial, naa, 8)));
            assert!(matches!(difference, Some(Difference::Identity { .. })), "{difference:?}");
        }
        let text = was.difference(&UnitIdentity::of(&facts("a", 1, 9))).map(|told| told.to_string());
        assert_eq!(text.as_deref(), Some("it had 8 blocks of 512 bytes, and has 9 blocks of 512 bytes"));
    }
}
