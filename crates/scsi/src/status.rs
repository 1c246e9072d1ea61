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
    const ALL: [Status; 7] = [
        Status::Good,
        Status::CheckCondition,
        Status::Busy,
        Status::ReservationConflict,
        Status::TaskSetFull,
        Status::AcaActive,
        Status::TaskAborted,
    ];

    /// The status with this byte; `None`: the byte is reserved or obsolete.
    pub fn from_code(code: u8) -> Option<Status> {
        Status::ALL.into_iter().find(|status| *status as u8 == code)
    }

    /// The name in the standard.
    pub const fn name(self) -> &'static str {
        match self {
            Status::Good => "GOOD",
            Status::CheckCondition => "CHECK CONDITION",
            Status::Busy => "BUSY",
            Status::ReservationConflict => "RESERVATION CONFLICT",
            Status::TaskSetFull => "TASK SET FULL",
            Status::AcaActive => "ACA ACTIVE",
            Status::TaskAborted => "TASK ABORTED",
        }
    }

    /// The byte on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }
}
