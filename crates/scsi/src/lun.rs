//! Logical unit numbers: the eight-byte field and its single-level forms (SAM-5, logical unit number).
//!
//! Hierarchies of more than one level are carried as bytes but name no unit here.

use std::fmt;

/// The eight bytes of a LUN field, most significant byte first.
///
/// Two fields that name the same unit in different address methods are not equal; compare [`Lun::number`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lun(u64);

impl Lun {
    /// The well-known logical unit that answers REPORT LUNS (SAM-5, SPC-4, well-known logical units).
    pub const REPORT_LUNS: Lun = Lun(0xc101_0000_0000_0000);

    /// The largest number that the flat space method can carry (14 bits).
    pub const NUMBER_MAX: u16 = 0x3fff;

    /// Takes the field as it came.
    pub const fn from_bytes(bytes: [u8; 8]) -> Lun {
        Lun(u64::from_be_bytes(bytes))
    }

    /// The field as it goes out.
    pub const fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }

    /// The usual form of `number`: peripheral device addressing below 256, flat space addressing up to
    /// [`Lun::NUMBER_MAX`], extended flat space addressing above.
    pub const fn from_number(number: u16) -> Lun {
        let number = number as u64;
        if number < 0x100 {
            Lun(number << 48)
        } else if number <= Lun::NUMBER_MAX as u64 {
            Lun((0x4000 | number) << 48)
        } else {
            Lun((0xd200_0000 | number) << 32)
        }
    }

    /// The unit's number, if the field is a single-level one in any address method: peripheral (bus 0), flat
    /// space, logical unit (bus 0, target 0) or extended flat space. `None` for every other field.
    pub const fn number(self) -> Option<u16> {
        let first = (self.0 >> 48) as u16;
        let single_level = self.0 << 16 == 0;
        match first >> 14 {
            0 if single_level && first < 0x100 => Some(first),
            1 if single_level => Some(first & 0x3fff),
            2 if single_level && first & 0x3fe0 == 0 => Some(first & 0x1f),
            3 if first >> 8 == 0xd2 && self.0 << 32 == 0 => {
                let number = (self.0 >> 32) & 0x00ff_ffff;
                if number <= u16::MAX as u64 { Some(number as u16) } else { None }
            }
            _ => None,
        }
    }
}

impl fmt::Debug for Lun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lun({self})")
    }
}

impl fmt::Display for Lun {
    /// The number where there is one, else the eight bytes in hexadecimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number() {
            Some(number) => write!(f, "{number}"),
            None => write!(f, "0x{:016x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_survives_its_usual_form() {
        for number in 0..=u16::MAX {
            let lun = Lun::from_number(number);
            assert_eq!(lun.number(), Some(number));
            assert_eq!(Lun::from_bytes(lun.to_bytes()), lun);
        }
        assert_eq!(Lun::from_number(5).to_bytes(), [0, 5, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Lun::from_number(300).to_bytes(), [0x41, 0x2c, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Lun::from_number(0x4000).to_bytes(), [0xd2, 0, 0x40, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn the_other_single_level_forms_are_understood() {
        assert_eq!(Lun::from_bytes([0x40, 5, 0, 0, 0, 0, 0, 0]).number(), Some(5), "flat space");
        assert_eq!(Lun::from_bytes([0x80, 5, 0, 0, 0, 0, 0, 0]).number(), Some(5), "logical unit addressing");
        assert_eq!(Lun::from_bytes([0xd2, 0, 0, 5, 0, 0, 0, 0]).number(), Some(5), "extended flat space");
    }

    #[test]
    fn other_fields_name_no_unit() {
        for bytes in [
            [0x01, 5, 0, 0, 0, 0, 0, 0],
            [0, 5, 0, 1, 0, 0, 0, 0],
            [0x80, 0x25, 0, 0, 0, 0, 0, 0],
            [0xd2, 1, 0, 5, 0, 0, 0, 0],
            [0xd2, 0, 0, 5, 0, 0, 0, 1],
            Lun::REPORT_LUNS.to_bytes(),
        ] {
            assert_eq!(Lun::from_bytes(bytes).number(), None, "{bytes:02x?}");
        }
        assert_eq!(Lun::REPORT_LUNS.to_string(), "0xc101000000000000");
    }
}
