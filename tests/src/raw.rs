//! A logged-in session whose every PDU the test writes and reads itself: for order, timing and broken rules.
//!
//! It keeps the numbers, and checks those of every PDU that comes: StatSN counts without a gap, ExpCmdSN and MaxCmdSN
//! never go back (RFC 7143, 4.2.2). It answers nothing by itself.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lunette_wire::initiator::{
    LogoutReason, LogoutRequest, NopOut, ScsiCommand, ScsiDataOut, TaskManagementFunction,
    TaskManagementRequest,
};
use lunette_wire::target::{Numbers, ReadyToTransfer, Residual};
use lunette_wire::{
    CmdSn, DataSn, InitiatorPdu, InitiatorTaskTag, LunField, StatSn, TargetPdu, TargetTransferTag,
};

use crate::connection::{Connection, PATIENCE};
use crate::initiator::{Initiator, LoginOptions, cdb};

/// Bytes in a block of the units that tests serve.
pub const BLOCK_BYTES: usize = 512;

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// SCSI status; 0 is GOOD.
    pub status: u8,
    /// Sense data, without its length.
    pub sense: Vec<u8>,
    /// Expected against transferred bytes.
    pub residual: Residual,
}

impl Ending {
    /// Sense key, additional sense code and qualifier; all zero without sense data (SPC-4, fixed format).
    #[must_use]
    pub fn codes(&self) -> (u8, u8, u8) {
        let byte = |at: usize| self.sense.get(at).copied().unwrap_or(0);
        (byte(2) & 0x0f, byte(12), byte(13))
    }

    /// The INFORMATION field, when it is valid (SPC-4, fixed format).
    #[must_use]
    pub fn information(&self) -> Option<u32> {
        let valid = self.sense.first().is_some_and(|first| first & 0x80 != 0);
        let field = self.sense.get(3..7)?.try_into().ok()?;
        valid.then(|| u32::from_be_bytes(field))
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Raw {
    connection: Connection,
    /// The number that the next command will carry.
    pub cmd_sn: CmdSn,
    /// The status number that must come next.
    pub exp_stat_sn: StatSn,
    exp_cmd_sn: CmdSn,
    max_cmd_sn: CmdSn,
    next_tag: u32,
}

impl Raw {
    /// Logs in.
    ///
    /// # Errors
    /// As [`Initiator::login`].
    pub fn login(portal: SocketAddr, options: &LoginOptions) -> Result<Self> {
        let initiator = Initiator::login(portal, options)?;
        let (cmd_sn, exp_stat_sn, max_cmd_sn) =
            (initiator.cmd_sn(), initiator.exp_stat_sn(), initiator.max_cmd_sn());
        Ok(Self {
            connection: initiator.into_connection(),
            cmd_sn,
            exp_stat_sn,
            exp_cmd_sn: cmd_sn,
            max_cmd_sn,
            next_tag: 0x100,
        })
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

    /// A tag that no other task of this session has had.
    pub fn new_tag(&mut self) -> InitiatorTaskTag {
        self.next_tag += 1;
        InitiatorTaskTag(self.next_tag)
    }

    /// Fills in numbers, and the tag where there is none; uses up a CmdSN unless the command is immediate.
    pub fn number(&mut self, command: &ScsiCommand) -> ScsiCommand {
        let mut command = *command;
        if command.initiator_task_tag == InitiatorTaskTag::default() {
            command.initiator_task_tag = self.new_tag();
        }
        command.cmd_sn = self.cmd_sn;
        command.exp_stat_sn = self.exp_stat_sn;
        if !command.immediate {
            self.cmd_sn = self.cmd_sn.next();
        }
        command
    }

    /// Sends a command as [`Self::number`] numbers it, with immediate data.
    ///
    /// # Errors
    /// The connection broke.
    pub fn command(&mut self, command: &ScsiCommand, data: &[u8]) -> Result<InitiatorTaskTag> {
        let command = self.number(command);
        self.send(&InitiatorPdu::ScsiCommand(command), data)?;
        Ok(command.initiator_task_tag)
    }

    /// Sends a READ (16).
    ///
    /// # Errors
    /// The connection broke.
    pub fn read(&mut self, lun: u8, lba: u64, blocks: u32) -> Result<InitiatorTaskTag> {
        self.command(&read(lun, lba, blocks), &[])
    }

    /// Sends a WRITE (16) of whole blocks, all of it as immediate data.
    ///
    /// # Errors
    /// The connection broke.
    pub fn write(&mut self, lun: u8, lba: u64, data: &[u8]) -> Result<InitiatorTaskTag> {
        self.command(&write(lun, lba, data.len()), data)
    }

    /// Sends Data-Out PDUs that answer an R2T with the right part of `data`, in segments of at most `segment_max`.
    ///
    /// # Errors
    /// The connection broke; or the R2T asks for more than there is.
    pub fn answer_r2t(&mut self, r2t: &ReadyToTransfer, data: &[u8], segment_max: usize) -> Result<()> {
        let start = r2t.buffer_offset as usize;
        let wanted =
            data.get(start..start + r2t.desired_length as usize).context("an R2T beyond the data")?;
        let tags = (r2t.initiator_task_tag, r2t.target_transfer_tag);
        self.sequence(tags, start, wanted, segment_max)
    }

    /// Sends one sequence of Data-Out PDUs.
    ///
    /// # Errors
    /// The connection broke.
    pub fn sequence(
        &mut self,
        (initiator_task_tag, target_transfer_tag): (InitiatorTaskTag, TargetTransferTag),
        start: usize,
        data: &[u8],
        segment_max: usize,
    ) -> Result<()> {
        for (index, chunk) in data.chunks(segment_max).enumerate() {
            let pdu = ScsiDataOut {
                is_final: (index + 1) * segment_max >= data.len(),
                initiator_task_tag,
                target_transfer_tag,
                exp_stat_sn: self.exp_stat_sn,
                data_sn: DataSn(u32::try_from(index)?),
                buffer_offset: u32::try_from(start + index * segment_max)?,
                ..ScsiDataOut::default()
            };
            self.send(&InitiatorPdu::ScsiDataOut(pdu), chunk)?;
        }
        Ok(())
    }

    /// Sends an immediate task management request about a unit.
    ///
    /// # Errors
    /// The connection broke.
    pub fn manage(&mut self, function: TaskManagementFunction, lun: u8) -> Result<InitiatorTaskTag> {
        self.manage_task(function, lun, InitiatorTaskTag::RESERVED, CmdSn(0))
    }

    /// Sends an immediate task management request about a task.
    ///
    /// # Errors
    /// The connection broke.
    pub fn manage_task(
        &mut self,
        function: TaskManagementFunction,
        lun: u8,
        referenced_task_tag: InitiatorTaskTag,
        ref_cmd_sn: CmdSn,
    ) -> Result<InitiatorTaskTag> {
        let request = TaskManagementRequest {
            immediate: true,
            function,
            lun: lun_field(lun),
            initiator_task_tag: self.new_tag(),
            referenced_task_tag,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            ref_cmd_sn,
            exp_data_sn: DataSn(0),
        };
        self.send(&InitiatorPdu::TaskManagementRequest(request), &[])?;
        Ok(request.initiator_task_tag)
    }

    /// Sends an immediate ping.
    ///
    /// # Errors
    /// The connection broke.
    pub fn ping(&mut self, data: &[u8]) -> Result<InitiatorTaskTag> {
        let nop = NopOut {
            immediate: true,
            initiator_task_tag: self.new_tag(),
            target_transfer_tag: TargetTransferTag::RESERVED,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            ..NopOut::default()
        };
        self.send(&InitiatorPdu::NopOut(nop), data)?;
        Ok(nop.initiator_task_tag)
    }

    /// Sends an immediate logout request.
    ///
    /// # Errors
    /// The connection broke.
    pub fn log_out(&mut self, reason: LogoutReason, cid: u16) -> Result<InitiatorTaskTag> {
        let request = LogoutRequest {
            immediate: true,
            reason,
            initiator_task_tag: self.new_tag(),
            cid: lunette_wire::Cid(cid),
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
        };
        self.send(&InitiatorPdu::LogoutRequest(request), &[])?;
        Ok(request.initiator_task_tag)
    }

    /// Sends any PDU as it is.
    ///
    /// # Errors
    /// The connection broke.
    pub fn send(&mut self, pdu: &InitiatorPdu, data: &[u8]) -> Result<()> {
        self.connection.send(pdu, data)
    }

    /// Receives the next PDU and checks its numbers.
    ///
    /// # Errors
    /// Nothing came, or the numbers are wrong.
    pub fn receive(&mut self) -> Result<(TargetPdu, Vec<u8>)> {
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

    /// The next PDU must be the answer to this command, without data.
    ///
    /// # Errors
    /// It is something else.
    pub fn ending(&mut self, tag: InitiatorTaskTag) -> Result<Ending> {
        match self.receive()? {
            (TargetPdu::ScsiResponse(pdu), data) if pdu.initiator_task_tag == tag => {
                ensure!(pdu.response == 0, "SCSI response {:#x}", pdu.response);
                let sense = data.get(2..).unwrap_or_default().to_vec();
                Ok(Ending { status: pdu.status, sense, residual: pdu.residual })
            }
            (other, _) => bail!("not the answer to {tag:?}: {other:?}"),
        }
    }

    /// As [`Self::ending`], and it must be GOOD.
    ///
    /// # Errors
    /// It is something else.
    pub fn good(&mut self, tag: InitiatorTaskTag) -> Result<()> {
        let ending = self.ending(tag)?;
        ensure!(ending.status == 0, "{ending:?}");
        Ok(())
    }

    /// The next PDUs must be the data of this command, in order, the last one with GOOD.
    ///
    /// # Errors
    /// They are something else.
    pub fn data_in(&mut self, tag: InitiatorTaskTag) -> Result<(Vec<u8>, Residual)> {
        let mut bytes = Vec::new();
        for data_sn in 0.. {
            let (TargetPdu::ScsiDataIn(pdu), data) = self.receive()? else { bail!("no data") };
            ensure!(pdu.initiator_task_tag == tag, "data of another command: {pdu:?}");
            ensure!(pdu.data_sn == DataSn(data_sn), "DataSN {data_sn} was due: {pdu:?}");
            ensure!(pdu.buffer_offset as usize == bytes.len(), "data out of order: {pdu:?}");
            bytes.extend(data);
            if let Some(status) = pdu.status {
                ensure!(status == 0 && pdu.is_final, "{pdu:?}");
                return Ok((bytes, pdu.residual));
            }
        }
        bail!("data without an end")
    }

    /// The next PDU must be an R2T of this command.
    ///
    /// # Errors
    /// It is something else.
    pub fn r2t(&mut self, tag: InitiatorTaskTag) -> Result<ReadyToTransfer> {
        match self.receive()? {
            (TargetPdu::ReadyToTransfer(pdu), _) if pdu.initiator_task_tag == tag => {
                ensure!(pdu.target_transfer_tag != TargetTransferTag::RESERVED, "an R2T without a tag");
                ensure!(pdu.desired_length > 0, "an R2T for nothing");
                Ok(pdu)
            }
            (other, _) => bail!("not an R2T of {tag:?}: {other:?}"),
        }
    }

    /// The next PDU must answer this task management request; returns its response code.
    ///
    /// # Errors
    /// It is something else.
    pub fn managed(&mut self, tag: InitiatorTaskTag) -> Result<u8> {
        match self.receive()? {
            (TargetPdu::TaskManagementResponse(pdu), _) if pdu.initiator_task_tag == tag => Ok(pdu.response),
            (other, _) => bail!("not the answer to {tag:?}: {other:?}"),
        }
    }

    /// The next PDU must be a Reject of the header that `pdu` and `data_length` make; returns its reason.
    ///
    /// # Errors
    /// It is something else.
    pub fn rejected(&mut self, header: &[u8]) -> Result<u8> {
        match self.receive()? {
            (TargetPdu::Reject(pdu), data) => {
                ensure!(data == header, "the Reject carries another header: {data:02x?}");
                Ok(pdu.reason)
            }
            (other, _) => bail!("not a Reject: {other:?}"),
        }
    }

    /// Nothing comes for `time`: what is due must wait for something that the test holds back.
    ///
    /// # Errors
    /// A PDU came, or the connection was closed.
    pub fn waits(&mut self, time: Duration) -> Result<()> {
        self.connection.set_patience(time)?;
        let came = self.connection.peek();
        self.connection.set_patience(PATIENCE)?;
        ensure!(!came?, "something came: {:?}", self.receive());
        Ok(())
    }

    /// Everything that was sent so far has been handled without a word: a ping's answer is the next PDU.
    ///
    /// # Errors
    /// There was a word.
    pub fn silent(&mut self) -> Result<()> {
        let tag = self.ping(b"anything?")?;
        self.pinged(tag, b"anything?")
    }

    /// The next PDU must be the echo of this ping.
    ///
    /// # Errors
    /// It is something else.
    pub fn pinged(&mut self, tag: InitiatorTaskTag, echo: &[u8]) -> Result<()> {
        match self.receive()? {
            (TargetPdu::NopIn(pdu), data) if pdu.initiator_task_tag == tag => {
                ensure!(
                    pdu.target_transfer_tag == TargetTransferTag::RESERVED,
                    "an answer that asks: {pdu:?}"
                );
                ensure!(data == echo, "another echo of {} bytes", data.len());
                Ok(())
            }
            (other, _) => bail!("not the echo of {tag:?}: {other:?}"),
        }
    }

    /// The next PDU must answer this logout request; returns its response code.
    ///
    /// # Errors
    /// It is something else.
    pub fn logged_out(&mut self, tag: InitiatorTaskTag) -> Result<u8> {
        match self.receive()? {
            (TargetPdu::LogoutResponse(pdu), _) if pdu.initiator_task_tag == tag => Ok(pdu.response),
            (other, _) => bail!("not the answer to {tag:?}: {other:?}"),
        }
    }
}

/// A command without data, TEST UNIT READY unless told otherwise.
#[must_use]
pub fn plain() -> ScsiCommand {
    ScsiCommand { is_final: true, ..ScsiCommand::default() }
}

/// READ (16), without numbers.
#[must_use]
pub fn read(lun: u8, lba: u64, blocks: u32) -> ScsiCommand {
    ScsiCommand {
        read: true,
        lun: lun_field(lun),
        expected_data_transfer_length: blocks * BLOCK_BYTES as u32,
        cdb: cdb::read(lba, blocks),
        ..plain()
    }
}

/// WRITE (16) of `length` bytes, which are whole blocks, without numbers.
#[must_use]
pub fn write(lun: u8, lba: u64, length: usize) -> ScsiCommand {
    ScsiCommand {
        write: true,
        lun: lun_field(lun),
        expected_data_transfer_length: length as u32,
        cdb: cdb::write(lba, (length / BLOCK_BYTES) as u32),
        ..plain()
    }
}

/// A single-level LUN with peripheral addressing (SAM-5, 4.7.7.2).
#[must_use]
pub fn lun_field(lun: u8) -> LunField {
    LunField([0, lun, 0, 0, 0, 0, 0, 0])
}
