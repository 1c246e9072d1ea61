//! SCSI status codes (SAM-5, status).

/// How a command ended. The discriminant is the byte on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// The command ended without error.
    Good = 0x00,
    /// Sense data says what happened.
    CheckCondition = 0x02,
    /// The logical unit cannot take the command now.
    Busy = 0x08,
    /// The command conflicts with a reservation.
    ReservationConflict = 0x18,
    /// The task set has no room.
    TaskSetFull = 0x28,
    /// An auto contingent allegiance is in effect.
    AcaActive = 0x30,
    /// Another I_T nexus aborted the command (control mode page, TAS bit set).
    TaskAborted = 0x40,
}

impl Status {
    /// The byte on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }
}
