//! The protect fields of CDBs: RDPROTECT, WRPROTECT, VRPROTECT and ORPROTECT have one meaning (SBC-3, the tables of READ
//! (10), WRITE (10), VERIFY (10) and ORWRITE (16)).

use super::ProtectionType;
use crate::bytes::Cdb;
use crate::sense::SenseData;

/// What is checked of each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checks {
    pub(crate) guard: bool,
    pub(crate) reference_tag: bool,
}

impl Checks {
    pub(crate) const ALL: Checks = Checks { guard: true, reference_tag: true };
    pub(crate) const NONE: Checks = Checks { guard: false, reference_tag: false };
}

/// What VERIFY compares of the information that came with the data (SBC-3, byte-by-byte comparison requirements).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Compared {
    pub(crate) guard: bool,
    pub(crate) application_tag: bool,
    pub(crate) reference_tag: bool,
}

/// A protect field of a unit with protection information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProtectField(u8);

impl ProtectField {
    /// Takes the field out of byte 1 of a CDB. Commands of six bytes have none, and zeros there.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB for 110b and 111b.
    pub(crate) fn of(cdb: &Cdb) -> Result<ProtectField, SenseData> {
        match cdb[1] >> 5 {
            value @ 0..=5 => Ok(ProtectField(value)),
            _ => Err(SenseData::invalid_cdb_field(1, 7)),
        }
    }

    /// True when the data comes or goes with its information.
    pub(crate) const fn is_transferred(self) -> bool {
        self.0 != 0
    }

    /// What is checked on the way, or of the medium where nothing is transferred.
    pub(crate) const fn checks(self) -> Checks {
        match self.0 {
            2 => Checks { guard: false, ..Checks::ALL },
            3 => Checks::NONE,
            4 => Checks { reference_tag: false, ..Checks::ALL },
            _ => Checks::ALL,
        }
    }

    /// What VERIFY checks of the medium where it also compares: nothing that is compared.
    pub(crate) const fn checks_of_compared_medium(self) -> Checks {
        if self.is_transferred() { Checks::NONE } else { Checks::ALL }
    }

    /// What VERIFY compares. A reference tag of type 3 is the application's, as ATO says.
    pub(crate) fn compared(self, kind: ProtectionType) -> Compared {
        Compared {
            guard: !matches!(self.0, 0 | 2),
            application_tag: self.is_transferred(),
            reference_tag: match kind {
                ProtectionType::Type1 => self.is_transferred(),
                ProtectionType::Type3 => self.0 == 5,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(value: u8) -> Result<ProtectField, SenseData> {
        let mut cdb: Cdb = [0; 16];
        cdb[1] = value << 5 | 0x1f;
        ProtectField::of(&cdb)
    }

    /// A letter for each thing: transferred, checked guard, checked reference tag, compared guard and tags (type 1).
    #[test]
    fn every_value_means_what_the_tables_say() {
        let letters = |value| {
            let field = field(value).unwrap();
            let compared = field.compared(ProtectionType::Type1);
            let flags = [
                (field.is_transferred(), 't'),
                (field.checks().guard, 'g'),
                (field.checks().reference_tag, 'r'),
                (compared.guard, 'G'),
                (compared.application_tag, 'A'),
                (compared.reference_tag, 'R'),
            ];
            flags.iter().filter(|(is_set, _)| *is_set).map(|(_, letter)| letter).collect::<String>()
        };
        assert_eq!([0, 1, 2, 3, 4, 5].map(letters), ["gr", "tgrGAR", "trAR", "tGAR", "tgGAR", "tgrGAR"]);
        for value in [6, 7] {
            assert_eq!(field(value), Err(SenseData::invalid_cdb_field(1, 7)));
        }
    }

    #[test]
    fn reference_tags_of_type_3_are_compared_by_one_value() {
        for value in 0..=5 {
            assert_eq!(field(value).unwrap().compared(ProtectionType::Type3).reference_tag, value == 5);
        }
    }
}
