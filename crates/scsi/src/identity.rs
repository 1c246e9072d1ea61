//! Who a logical unit is: the names that INQUIRY and the VPD pages tell (SPC-4).
//!
//! An identity belongs to the volume, not to its place: the driver reads it from where the volume keeps it, so it
//! survives restart, renumbering and moving.

use crate::unit::ConfigError;

/// The names of one logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The world-wide name, NAA format 3h (locally assigned): the top four bits are 3, the other 60 are random.
    pub naa: u64,
    /// The same identity as a UUID, in the order in which it is printed.
    pub uuid: [u8; 16],
    /// The unit serial number: 1 to [`Identity::SERIAL_LENGTH_MAX`] printable ASCII characters.
    pub serial: String,
    /// T10 vendor identification: 1 to 8 printable ASCII characters.
    pub vendor: String,
    /// Product identification: 1 to 16 printable ASCII characters.
    pub product: String,
    /// Product revision level: at most 4 printable ASCII characters.
    pub revision: String,
}

impl Identity {
    /// The longest serial number taken, in bytes. With the vendor and product it must fit the 255 bytes of a
    /// T10 designator, and hosts read VPD page 80h with one byte of allocation length.
    pub const SERIAL_LENGTH_MAX: usize = 128;

    /// The names that CSCD descriptors may have for the unit.
    pub(crate) fn names(&self) -> [UnitName; 2] {
        [UnitName::Naa(self.naa), UnitName::Uuid(self.uuid)]
    }

    /// Checks lengths, characters (SPC-4: ASCII data fields hold 20h to 7Eh) and the NAA format.
    ///
    /// # Errors
    /// [`ConfigError::Naa`] or [`ConfigError::Name`] with the field's name.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.naa >> 60 != 3 {
            return Err(ConfigError::Naa(self.naa));
        }
        let fields = [
            ("serial", &self.serial, 1, Identity::SERIAL_LENGTH_MAX),
            ("vendor", &self.vendor, 1, 8),
            ("product", &self.product, 1, 16),
            ("revision", &self.revision, 0, 4),
        ];
        for (field, value, length_min, length_max) in fields {
            let printable = value.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
            if !printable || !(length_min..=length_max).contains(&value.len()) {
                return Err(ConfigError::Name { field, length_min, length_max });
            }
        }
        Ok(())
    }
}

/// What others may name a unit by, of all that Device Identification tells of it: what a CSCD descriptor has room for. The T10
/// vendor identification is longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UnitName {
    Naa(u64),
    Uuid([u8; 16]),
}

/// Writes `text` left-aligned into a field and fills the rest with spaces (SPC-4, ASCII data field).
pub(crate) fn put_padded(field: &mut [u8], text: &str) {
    let text = text.as_bytes();
    for (index, byte) in field.iter_mut().enumerate() {
        *byte = text.get(index).copied().unwrap_or(b' ');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            naa: 0x3000_0000_0000_0001,
            uuid: [1; 16],
            serial: "S".into(),
            vendor: "12345678".into(),
            product: "1234567890123456".into(),
            revision: String::new(),
        }
    }

    #[test]
    fn fields_at_their_limits_are_taken() {
        assert_eq!(identity().validate(), Ok(()));
        let longest = Identity { serial: "x".repeat(Identity::SERIAL_LENGTH_MAX), ..identity() };
        assert_eq!(longest.validate(), Ok(()));
    }

    #[test]
    fn wrong_fields_are_named() {
        let field = |identity: Identity| match identity.validate() {
            Err(ConfigError::Name { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(field(Identity { vendor: "123456789".into(), ..identity() }), "vendor");
        assert_eq!(field(Identity { product: "tab\t".into(), ..identity() }), "product");
        assert_eq!(field(Identity { serial: String::new(), ..identity() }), "serial");
        assert_eq!(field(Identity { revision: "é".into(), ..identity() }), "revision");
        let naa = Identity { naa: 0x6000_0000_0000_0001, ..identity() };
        assert_eq!(naa.validate(), Err(ConfigError::Naa(0x6000_0000_0000_0001)));
    }

    #[test]
    fn padding_fills_and_cuts() {
        let mut field = [0; 4];
        put_padded(&mut field, "ab");
        assert_eq!(&field, b"ab  ");
        put_padded(&mut field, "abcdef");
        assert_eq!(&field, b"abcd");
    }
}
