//! What a reservation keeps an I_T nexus from: the conflict tables of SPC-4, SBC-3 and SPC-2, folded into classes.
//!
//! Every command is of one class ([`Access`], a column of the command table), every nexus has one [`Permission`] at a
//! time, kept with the nexus so that the common path compares two numbers and takes no lock.

use crate::bytes::Cdb;

/// What a command does to the unit, as far as reservations care.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Access {
    /// Never conflicts, not even with a RESERVE of SPC-2; or its handler decides.
    Free,
    /// Tells about the unit and its ports: conflicts with a RESERVE of SPC-2 only.
    Inspects,
    /// Reads the medium or what others have set: conflicts with exclusive access too.
    Reads,
    /// Changes the medium or what others see: conflicts with every reservation of others.
    Writes,
    /// The CDB decides.
    Cdb(fn(&Cdb) -> Access),
}

/// What a nexus may do at present. The order is that of rising restriction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Permission {
    /// Everything.
    All = 0,
    /// What does not write: another nexus has a write exclusive reservation.
    Read = 1,
    /// What looks at the unit but not at the medium: another nexus has exclusive access.
    Inspect = 2,
    /// What works for a unit that another nexus reserved with RESERVE of SPC-2.
    Identify = 3,
    /// What works while persistent reservations are lost ([`super::lost`]), which the command table says command by command.
    Lost = 4,
}

impl Permission {
    /// The inverse of the discriminant; anything else is the strictest.
    pub(crate) fn from_bits(bits: u8) -> Permission {
        match bits {
            0 => Permission::All,
            1 => Permission::Read,
            2 => Permission::Inspect,
            3 => Permission::Identify,
            _ => Permission::Lost,
        }
    }

    pub(crate) fn allows(self, access: Access, cdb: &Cdb) -> bool {
        match access {
            Access::Writes => self == Permission::All,
            Access::Reads => self <= Permission::Read,
            Access::Inspects => self <= Permission::Inspect,
            Access::Free => true,
            Access::Cdb(class) => self == Permission::All || self.allows(class(cdb), cdb),
        }
    }
}

/// START STOP UNIT: to start is always allowed, to stop, eject or change the power condition is not (SBC-3).
pub(crate) fn of_start_stop(cdb: &Cdb) -> Access {
    if starts(cdb) { Access::Inspects } else { Access::Writes }
}

/// START STOP UNIT starts the unit, and changes no power condition.
pub(crate) fn starts(cdb: &Cdb) -> bool {
    cdb[4] & 0xf1 == 0x01
}

/// PREVENT ALLOW MEDIUM REMOVAL: to allow is never refused, to prevent is a change (SPC-4, SPC-2).
pub(crate) fn of_prevent_allow(cdb: &Cdb) -> Access {
    if cdb[4] & 0x03 == 0 { Access::Free } else { Access::Writes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stricter_permissions_allow_less() {
        let cdb = [0; 16];
        let allowed =
            |access: Access| [0, 1, 2, 3, 4].map(|bits| Permission::from_bits(bits).allows(access, &cdb));
        assert_eq!(allowed(Access::Free), [true; 5]);
        assert_eq!(allowed(Access::Inspects), [true, true, true, false, false]);
        assert_eq!(allowed(Access::Reads), [true, true, false, false, false]);
        assert_eq!(allowed(Access::Writes), [true, false, false, false, false]);
    }

    #[test]
    fn some_commands_depend_on_what_they_ask() {
        let allowed = |class: fn(&Cdb) -> Access, byte: u8| {
            let mut cdb = [0; 16];
            cdb[4] = byte;
            Permission::Inspect.allows(Access::Cdb(class), &cdb)
        };
        assert!(allowed(of_start_stop, 0x01));
        assert!(!allowed(of_start_stop, 0x00));
        assert!(!allowed(of_start_stop, 0x11), "a power condition");
        assert!(allowed(of_prevent_allow, 0));
        assert!(!allowed(of_prevent_allow, 1));
    }
}
