//! A small initiator for what foreign tools cannot do: many commands in flight with a record of what was acknowledged,
//! chosen keys, and PDUs between PDUs. ErrorRecoveryLevel 0, one connection, immediate data and R2T.
//!
//! It is a test double, written to be read; Lunette's initiator is another thing. RFC 7143, clauses 6, 7 and 11.

pub mod cdb;
mod login;

use std::collections::{BTreeMap, VecDeque};

use anyhow::{Context, Result, bail, ensure};
use lunette_wire::initiator::{LogoutRequest, NopOut, ScsiCommand, ScsiDataOut, TextRequest};
use lunette_wire::target::{AsynchronousMessage, Numbers, ReadyToTransfer, Residual};
use lunette_wire::{
    CmdSn, DataSn, InitiatorPdu, InitiatorTaskTag, LunField, StatSn, TargetPdu, TargetTransferTag, Tsih, text,
};

use crate::connection::Connection;

pub use login::{ChapOptions, LoginOptions};

/// What one PDU of ours may carry at most, whatever the target allows.
const SEGMENT_MAX_BYTES: usize = 256 << 10;

/// One SCSI command to send.
#[derive(Debug, Clone, Default)]
pub struct Command {
    /// Logical unit number below 256.
    pub lun: u8,
    /// The command descriptor block, zero-padded.
    pub cdb: [u8; 16],
    /// What is written; empty for a read or a command without data.
    pub data_out: Vec<u8>,
    /// How many bytes are expected to be read.
    pub data_in_bytes: u32,
}

/// How one SCSI command ended.
#[derive(Debug, Clone)]
pub struct Completion {
    /// The tag that [`Initiator::submit`] gave.
    pub tag: InitiatorTaskTag,
    /// SCSI status; 0 is GOOD.
    pub status: u8,
    /// Sense data, without its length.
    pub sense: Vec<u8>,
    /// What was read.
    pub data_in: Vec<u8>,
    /// The residual count as the target reported it.
    pub residual: Residual,
}

#[derive(Debug)]
struct Task {
    command: Command,
    data_in: Vec<u8>,
}

/// A logged-in session of one connection.
#[derive(Debug)]
pub struct Initiator {
    connection: Connection,
    /// The answers of the target in the operational stage, and ours.
    negotiated: BTreeMap<String, String>,
    next_tag: u32,
    cmd_sn: CmdSn,
    exp_cmd_sn: CmdSn,
    max_cmd_sn: CmdSn,
    tsih: Tsih,
    exp_stat_sn: StatSn,
    tasks: BTreeMap<u32, Task>,
    completions: VecDeque<Completion>,
    /// Asynchronous messages that came so far.
    pub events: Vec<AsynchronousMessage>,
}

impl Initiator {
    /// What the target answered to a key.
    #[must_use]
    pub fn negotiated(&self, key: &str) -> Option<&str> {
        self.negotiated.get(key).map(String::as_str)
    }

    /// The connection, for what is against the rules.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Gives up the session without a word and keeps its connection.
    #[must_use]
    pub fn into_connection(self) -> Connection {
        self.connection
    }

    /// The number that the next command will carry.
    #[must_use]
    pub fn cmd_sn(&self) -> CmdSn {
        self.cmd_sn
    }

    /// The number that the target expected next when the login ended.
    #[must_use]
    pub fn exp_cmd_sn(&self) -> CmdSn {
        self.exp_cmd_sn
    }

    /// The session's handle.
    #[must_use]
    pub fn tsih(&self) -> Tsih {
        self.tsih
    }

    /// The last number that the target takes at present.
    #[must_use]
    pub fn max_cmd_sn(&self) -> CmdSn {
        self.max_cmd_sn
    }

    /// The status number that is expected next.
    #[must_use]
    pub fn exp_stat_sn(&self) -> StatSn {
        self.exp_stat_sn
    }

    /// Sends a command; waits first, and takes in what comes, while the target's window is closed.
    ///
    /// # Errors
    /// The connection broke.
    pub fn submit(&mut self, command: Command) -> Result<InitiatorTaskTag> {
        while self.max_cmd_sn.precedes(self.cmd_sn) {
            self.take_in_one()?;
        }
        let tag = self.new_tag();
        let immediate = self.immediate_length(&command);
        let pdu = ScsiCommand {
            is_final: true,
            read: command.data_in_bytes > 0,
            write: !command.data_out.is_empty(),
            lun: lun_field(command.lun),
            initiator_task_tag: tag,
            expected_data_transfer_length: if command.data_out.is_empty() {
                command.data_in_bytes
            } else {
                u32::try_from(command.data_out.len())?
            },
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            cdb: command.cdb,
            ..ScsiCommand::default()
        };
        self.cmd_sn = self.cmd_sn.next();
        self.connection.send(&InitiatorPdu::ScsiCommand(pdu), &command.data_out[..immediate])?;
        self.tasks.insert(tag.0, Task { command, data_in: Vec::new() });
        Ok(tag)
    }

    /// Waits for the next command to end, whichever it is.
    ///
    /// # Errors
    /// The connection broke, or the target broke the protocol.
    pub fn wait(&mut self) -> Result<Completion> {
        loop {
            if let Some(completion) = self.completions.pop_front() {
                return Ok(completion);
            }
            self.take_in_one()?;
        }
    }

    /// Sends a command and waits for it; others in flight may end meanwhile and stay for [`Self::wait`].
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn execute(&mut self, command: Command) -> Result<Completion> {
        let tag = self.submit(command)?;
        loop {
            if let Some(index) = self.completions.iter().position(|completion| completion.tag == tag) {
                return self.completions.remove(index).context("the index was just found");
            }
            self.take_in_one()?;
        }
    }

    /// As [`Self::execute`], and expects GOOD; returns what was read.
    ///
    /// # Errors
    /// As [`Self::wait`]; or another status.
    pub fn execute_good(&mut self, command: Command) -> Result<Vec<u8>> {
        let completion = self.execute(command)?;
        ensure!(completion.status == 0, "status {:#x}, sense {:02x?}", completion.status, completion.sense);
        Ok(completion.data_in)
    }

    /// Clears the unit attention that a new nexus meets.
    ///
    /// # Errors
    /// As [`Self::wait`]; or the unit does not become ready.
    pub fn make_ready(&mut self, lun: u8) -> Result<()> {
        for _ in 0..4 {
            if self.execute(Command { lun, ..Command::default() })?.status == 0 {
                return Ok(());
            }
        }
        bail!("logical unit {lun} does not become ready")
    }

    /// Sends a NOP-Out with `ping` as its data and waits for the echo.
    ///
    /// # Errors
    /// As [`Self::wait`]; or the echo differs.
    pub fn ping(&mut self, ping: &[u8]) -> Result<()> {
        let tag = self.new_tag();
        let pdu = NopOut {
            immediate: true,
            initiator_task_tag: tag,
            target_transfer_tag: TargetTransferTag::RESERVED,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            ..NopOut::default()
        };
        self.connection.send(&InitiatorPdu::NopOut(pdu), ping)?;
        loop {
            let (pdu, data) = self.connection.receive()?;
            if let TargetPdu::NopIn(nop) = pdu
                && nop.initiator_task_tag == tag
            {
                self.count(nop.numbers);
                ensure!(data == ping, "the echo of a NOP-Out differs from what was sent");
                return Ok(());
            }
            self.take_in(pdu, data)?;
        }
    }

    /// Sends a text request of one PDU and returns the pairs of the answer.
    ///
    /// # Errors
    /// As [`Self::wait`]; or the answer is no single complete text.
    pub fn text(&mut self, pairs: &[(&str, &str)]) -> Result<Vec<(String, String)>> {
        let mut data = Vec::new();
        pairs.iter().for_each(|(key, value)| text::push(&mut data, key, value));
        let pdu = TextRequest {
            immediate: true,
            is_final: true,
            initiator_task_tag: self.new_tag(),
            target_transfer_tag: TargetTransferTag::RESERVED,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            ..TextRequest::default()
        };
        self.connection.send(&InitiatorPdu::TextRequest(pdu), &data)?;
        loop {
            let (pdu, data) = self.connection.receive()?;
            if let TargetPdu::TextResponse(response) = pdu {
                self.count(response.numbers);
                ensure!(response.is_final, "the answer to a text request is not final");
                let pairs = text::pairs(&data)?;
                return Ok(pairs
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .collect());
            }
            self.take_in(pdu, data)?;
        }
    }

    /// Logs out and expects the target to close.
    ///
    /// # Errors
    /// As [`Self::wait`]; or the target refuses.
    pub fn logout(mut self) -> Result<()> {
        let pdu = LogoutRequest {
            immediate: true,
            initiator_task_tag: self.new_tag(),
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            ..LogoutRequest::default()
        };
        self.connection.send(&InitiatorPdu::LogoutRequest(pdu), &[])?;
        loop {
            let (pdu, data) = self.connection.receive()?;
            if let TargetPdu::LogoutResponse(response) = pdu {
                ensure!(response.response == 0, "logout refused: {}", response.response);
                self.connection.drain(crate::connection::PATIENCE)?;
                return Ok(());
            }
            self.take_in(pdu, data)?;
        }
    }

    /// Receives one PDU and acts on it.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn take_in_one(&mut self) -> Result<()> {
        let (pdu, data) = self.connection.receive()?;
        self.take_in(pdu, data)
    }

    fn take_in(&mut self, pdu: TargetPdu, data: Vec<u8>) -> Result<()> {
        match pdu {
            TargetPdu::ScsiResponse(pdu) => {
                self.count(pdu.numbers);
                ensure!(pdu.response == 0, "SCSI response {:#x}: the command did not complete", pdu.response);
                // The sense data stand behind their length (11.4.7).
                let sense = data.get(2..).unwrap_or_default().to_vec();
                self.complete(pdu.initiator_task_tag, pdu.status, sense, pdu.residual)?;
            }
            TargetPdu::ScsiDataIn(pdu) => {
                let task = self.task(pdu.initiator_task_tag)?;
                ensure!(pdu.buffer_offset as usize == task.data_in.len(), "Data-In out of order");
                task.data_in.extend_from_slice(&data);
                if let Some(status) = pdu.status {
                    self.count(pdu.numbers);
                    self.complete(pdu.initiator_task_tag, status, Vec::new(), pdu.residual)?;
                }
            }
            TargetPdu::ReadyToTransfer(pdu) => self.send_solicited(pdu)?,
            TargetPdu::NopIn(pdu) => {
                if pdu.target_transfer_tag != TargetTransferTag::RESERVED {
                    let answer = NopOut {
                        immediate: true,
                        lun: pdu.lun,
                        initiator_task_tag: InitiatorTaskTag::RESERVED,
                        target_transfer_tag: pdu.target_transfer_tag,
                        cmd_sn: self.cmd_sn,
                        exp_stat_sn: self.exp_stat_sn,
                    };
                    self.connection.send(&InitiatorPdu::NopOut(answer), &[])?;
                }
            }
            TargetPdu::AsynchronousMessage(pdu) => {
                self.count(pdu.numbers);
                self.events.push(pdu);
            }
            other => bail!("not expected now: {other:?}"),
        }
        Ok(())
    }

    fn send_solicited(&mut self, r2t: ReadyToTransfer) -> Result<()> {
        let segment_max = self.segment_max();
        let exp_stat_sn = self.exp_stat_sn;
        let task =
            self.tasks.get(&r2t.initiator_task_tag.0).context("an R2T for a task that does not exist")?;
        let start = r2t.buffer_offset as usize;
        let end = start + r2t.desired_length as usize;
        let wanted = task.command.data_out.get(start..end).context("an R2T beyond the data")?;
        for (index, chunk) in wanted.chunks(segment_max).enumerate() {
            let pdu = ScsiDataOut {
                is_final: (index + 1) * segment_max >= wanted.len(),
                lun: r2t.lun,
                initiator_task_tag: r2t.initiator_task_tag,
                target_transfer_tag: r2t.target_transfer_tag,
                exp_stat_sn,
                data_sn: DataSn(u32::try_from(index)?),
                buffer_offset: u32::try_from(start + index * segment_max)?,
            };
            self.connection.send(&InitiatorPdu::ScsiDataOut(pdu), chunk)?;
        }
        Ok(())
    }

    fn complete(
        &mut self,
        tag: InitiatorTaskTag,
        status: u8,
        sense: Vec<u8>,
        residual: Residual,
    ) -> Result<()> {
        let task = self.tasks.remove(&tag.0).context("a response to a task that does not exist")?;
        self.completions.push_back(Completion { tag, status, sense, data_in: task.data_in, residual });
        Ok(())
    }

    fn task(&mut self, tag: InitiatorTaskTag) -> Result<&mut Task> {
        self.tasks.get_mut(&tag.0).context("data for a task that does not exist")
    }

    /// StatSN counts what carries a status; the window only ever opens.
    fn count(&mut self, numbers: Numbers) {
        self.exp_stat_sn = numbers.stat_sn.next();
        if self.max_cmd_sn.precedes(numbers.max_cmd_sn) {
            self.max_cmd_sn = numbers.max_cmd_sn;
        }
    }

    fn new_tag(&mut self) -> InitiatorTaskTag {
        self.next_tag += 1;
        InitiatorTaskTag(self.next_tag)
    }

    fn segment_max(&self) -> usize {
        self.number("MaxRecvDataSegmentLength", 8192).min(SEGMENT_MAX_BYTES)
    }

    fn immediate_length(&self, command: &Command) -> usize {
        if self.negotiated("ImmediateData") == Some("No") {
            return 0;
        }
        command.data_out.len().min(self.segment_max()).min(self.number("FirstBurstLength", 65536))
    }

    fn number(&self, key: &str, default: usize) -> usize {
        self.negotiated(key).and_then(|value| value.parse().ok()).unwrap_or(default)
    }
}

/// A single-level LUN with peripheral addressing (SAM-5, 4.7.7.2).
fn lun_field(lun: u8) -> LunField {
    LunField([0, lun, 0, 0, 0, 0, 0, 0])
}
