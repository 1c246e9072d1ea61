//! PERSISTENT RESERVE OUT as the tests' initiator sends it (SPC-4).

use anyhow::Result;
use lunette_wire::InitiatorTaskTag;
use lunette_wire::initiator::ScsiCommand;

use crate::raw::{Ending, Raw, lun_field, plain};

/// Length of the parameter list, in bytes.
const LIST_BYTES: u8 = 24;

/// Service actions, those that tests need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// REGISTER
    Register,
    /// REGISTER, to be kept over a restart (APTPL).
    RegisterAndKeep,
    /// RESERVE
    Reserve,
    /// RELEASE
    Release,
    /// PREEMPT AND ABORT
    PreemptAndAbort,
    /// REPLACE LOST RESERVATION, to be kept over a restart (APTPL).
    ReplaceLostAndKeep,
}

impl Action {
    /// Sends the command, with LU_SCOPE, TYPE `kind`, RESERVATION KEY and SERVICE ACTION RESERVATION KEY.
    ///
    /// # Errors
    /// The connection broke.
    pub fn send(self, session: &mut Raw, lun: u8, kind: u8, keys: (u64, u64)) -> Result<InitiatorTaskTag> {
        let (code, flags) = match self {
            Self::Register => (0, 0),
            Self::RegisterAndKeep => (0, 1),
            Self::Reserve => (1, 0),
            Self::Release => (2, 0),
            Self::PreemptAndAbort => (5, 0),
            Self::ReplaceLostAndKeep => (8, 1),
        };
        let mut list = [keys.0.to_be_bytes(), keys.1.to_be_bytes()].concat();
        list.extend([0, 0, 0, 0, flags, 0, 0, 0]);
        let mut cdb = [0; 16];
        cdb[..9].copy_from_slice(&[0x5f, code, kind, 0, 0, 0, 0, 0, LIST_BYTES]);
        let command = ScsiCommand {
            write: true,
            lun: lun_field(lun),
            expected_data_transfer_length: LIST_BYTES.into(),
            cdb,
            ..plain()
        };
        session.command(&command, &list)
    }
}

/// As [`Action::send`], from request to answer.
///
/// # Errors
/// The answer is something else.
pub fn persistent_reserve_out(
    session: &mut Raw,
    lun: u8,
    action: Action,
    kind: u8,
    keys: (u64, u64),
) -> Result<Ending> {
    let tag = action.send(session, lun, kind, keys)?;
    session.ending(tag)
}

/// PERSISTENT RESERVE IN with `action`: its parameter data.
///
/// # Errors
/// It is not answered with data.
pub fn persistent_reserve_in(session: &mut Raw, lun: u8, action: u8) -> Result<Vec<u8>> {
    let mut cdb = [0; 16];
    cdb[..9].copy_from_slice(&[0x5e, action, 0, 0, 0, 0, 0, 0x10, 0]);
    let command = ScsiCommand {
        read: true,
        lun: lun_field(lun),
        expected_data_transfer_length: 0x1000,
        cdb,
        ..plain()
    };
    let tag = session.command(&command, &[])?;
    Ok(session.data_in(tag)?.0)
}
