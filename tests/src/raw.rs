//! A connection of a logged-in session whose every PDU the test writes and reads itself: for order, timing and broken rules.
//!
//! It keeps the numbers, and checks those of every PDU that comes: StatSN counts without a gap, ExpCmdSN and MaxCmdSN
//! never go back (RFC 7143, 4.2.2). It answers nothing by itself.

mod answers;
mod requests;

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use lunette_wire::initiator::ScsiCommand;
use lunette_wire::target::Numbers;
use lunette_wire::{Cid, CmdSn, InitiatorPdu, InitiatorTaskTag, StatSn, TargetPdu, TargetTransferTag, Tsih};

use crate::connection::Connection;
use crate::initiator::{Initiator, LoginOptions};

pub use answers::Ending;
pub use requests::{lun_field, plain, read, write};

/// Bytes in a block of the units that tests serve.
pub const BLOCK_BYTES: usize = 512;

/// See the module's documentation.
#[derive(Debug)]
pub struct Raw {
    connection: Connection,
    /// The number that the next command will carry.
    pub cmd_sn: CmdSn,
    /// The status number that must come next.
    pub exp_stat_sn: StatSn,
    /// The session's handle.
    pub tsih: Tsih,
    /// What requests acknowledge, unless it is all that has come: statuses before this one.
    pub acknowledged: Option<StatSn>,
    exp_cmd_sn: CmdSn,
    max_cmd_sn: CmdSn,
    next_tag: u32,
    /// The digest of the next Data-Out is to be wrong.
    spoils_next: bool,
}

impl Raw {
    /// Logs in.
    ///
    /// # Errors
    /// As [`Initiator::login`].
    pub fn login(portal: SocketAddr, options: &LoginOptions) -> Result<Self> {
        Ok(Self::after_login(Initiator::login(portal, options)?, options.cid))
    }

    /// Goes on with a connection that has logged in, and not done anything since.
    #[must_use]
    pub fn after_login(initiator: Initiator, cid: Cid) -> Self {
        let (cmd_sn, exp_stat_sn, max_cmd_sn) =
            (initiator.cmd_sn(), initiator.exp_stat_sn(), initiator.max_cmd_sn());
        let (exp_cmd_sn, tsih) = (initiator.exp_cmd_sn(), initiator.tsih());
        Self {
            connection: initiator.into_connection(),
            cmd_sn,
            exp_stat_sn,
            tsih,
            acknowledged: None,
            exp_cmd_sn,
            max_cmd_sn,
            // No connection of a session uses another's tags.
            next_tag: 0x100 | u32::from(cid.0) << 16,
            spoils_next: false,
        }
    }

    /// Logs in and takes the unit attention of a new nexus from `lun`.
    ///
    /// # Errors
    /// As [`Initiator::login`]; or the unit does not become ready.
    pub fn ready(portal: SocketAddr, options: &LoginOptions, lun: u8) -> Result<Self> {
        let mut raw = Self::login(portal, options)?;
        raw.make_ready(lun)?;
        Ok(raw)
    }

    /// Takes the unit attention of a new nexus from `lun`.
    ///
    /// # Errors
    /// The unit does not become ready.
    pub fn make_ready(&mut self, lun: u8) -> Result<()> {
        let first = self.test_unit_ready(lun)?;
        ensure!(first.codes() == (6, 0x29, 0), "no POWER ON unit attention: {first:?}");
        ensure!(self.test_unit_ready(lun)?.status == 0, "logical unit {lun} does not become ready");
        Ok(())
    }

    /// TEST UNIT READY, from request to answer.
    ///
    /// # Errors
    /// The answer is something else.
    pub fn test_unit_ready(&mut self, lun: u8) -> Result<Ending> {
        let tag = self.command(&ScsiCommand { lun: lun_field(lun), ..plain() }, &[])?;
        self.ending(tag)
    }

    /// The connection, for what is against the rules.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// MaxCmdSN as it was last said.
    #[must_use]
    pub fn max_cmd_sn(&self) -> CmdSn {
        self.max_cmd_sn
    }

    /// ExpCmdSN as it was last said.
    #[must_use]
    pub fn exp_cmd_sn(&self) -> CmdSn {
        self.exp_cmd_sn
    }

    /// The ExpStatSN of the next request.
    #[must_use]
    pub fn acknowledged(&self) -> StatSn {
        self.acknowledged.unwrap_or(self.exp_stat_sn)
    }

    /// A tag that no other task of this session has had.
    pub fn new_tag(&mut self) -> InitiatorTaskTag {
        self.next_tag += 1;
        InitiatorTaskTag(self.next_tag)
    }

    /// Takes the place of `old`, or goes on beside it: no tag of either is used twice.
    pub fn go_on_after(&mut self, old: &Self) {
        self.next_tag = self.next_tag.max(old.next_tag);
    }

    /// Fills in numbers, and the tag where there is none; uses up a CmdSN unless the command is immediate.
    pub fn number(&mut self, command: &ScsiCommand) -> ScsiCommand {
        let mut command = *command;
        if command.initiator_task_tag == InitiatorTaskTag::default() {
            command.initiator_task_tag = self.new_tag();
        }
        command.cmd_sn = self.cmd_sn;
        command.exp_stat_sn = self.acknowledged();
        if !command.immediate {
            self.cmd_sn = self.cmd_sn.next();
        }
        command
    }

    /// Sends any PDU as it is.
    ///
    /// # Errors
    /// The connection broke.
    pub fn send(&mut self, pdu: &InitiatorPdu, data: &[u8]) -> Result<()> {
        self.connection.send(pdu, data)
    }

    /// Receives the next PDU that says more than numbers, and checks those of all that come.
    ///
    /// # Errors
    /// Nothing came, or the numbers are wrong.
    pub fn receive(&mut self) -> Result<(TargetPdu, Vec<u8>)> {
        loop {
            let (pdu, data) = self.receive_any()?;
            if !says_numbers_only(&pdu) {
                return Ok((pdu, data));
            }
        }
    }

    /// Receives the next PDU, whatever it says, and checks its numbers.
    ///
    /// # Errors
    /// Nothing came, or the numbers are wrong.
    pub fn receive_any(&mut self) -> Result<(TargetPdu, Vec<u8>)> {
        let (pdu, data) = self.connection.receive()?;
        let (numbers, has_status) = match &pdu {
            TargetPdu::NopIn(pdu) => (pdu.numbers, pdu.initiator_task_tag != InitiatorTaskTag::RESERVED),
            TargetPdu::ScsiResponse(pdu) => (pdu.numbers, true),
            TargetPdu::TaskManagementResponse(pdu) => (pdu.numbers, true),
            TargetPdu::LoginResponse(pdu) => (pdu.numbers, true),
            TargetPdu::TextResponse(pdu) => (pdu.numbers, true),
            TargetPdu::ScsiDataIn(pdu) if pdu.status.is_none() => {
                (Numbers { stat_sn: self.exp_stat_sn, ..pdu.numbers }, false)
            }
            TargetPdu::ScsiDataIn(pdu) => (pdu.numbers, true),
            TargetPdu::LogoutResponse(pdu) => (pdu.numbers, true),
            TargetPdu::ReadyToTransfer(pdu) => (pdu.numbers, false),
            TargetPdu::AsynchronousMessage(pdu) => (pdu.numbers, true),
            TargetPdu::Reject(pdu) => (pdu.numbers, true),
        };
        ensure!(numbers.stat_sn == self.exp_stat_sn, "{:?} was due: {pdu:?}", self.exp_stat_sn);
        ensure!(!numbers.exp_cmd_sn.precedes(self.exp_cmd_sn), "ExpCmdSN went back: {pdu:?}");
        ensure!(!numbers.max_cmd_sn.precedes(self.max_cmd_sn), "MaxCmdSN went back: {pdu:?}");
        (self.exp_cmd_sn, self.max_cmd_sn) = (numbers.exp_cmd_sn, numbers.max_cmd_sn);
        if has_status {
            self.exp_stat_sn = self.exp_stat_sn.next();
        }
        Ok((pdu, data))
    }
}

/// A NOP-In that neither answers nor asks: it may come at any time to tell that the command window has opened (11.19).
fn says_numbers_only(pdu: &TargetPdu) -> bool {
    matches!(pdu, TargetPdu::NopIn(pdu) if pdu.initiator_task_tag == InitiatorTaskTag::RESERVED
        && pdu.target_transfer_tag == TargetTransferTag::RESERVED)
}
