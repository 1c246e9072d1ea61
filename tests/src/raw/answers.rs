//! What comes: each method takes the next PDU and demands that it is what the test waits for.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use lunette_wire::target::{ReadyToTransfer, Residual};
use lunette_wire::{DataSn, InitiatorTaskTag, TargetPdu, TargetTransferTag};

use super::{Raw, says_numbers_only};
use crate::connection::PATIENCE;

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

impl Raw {
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

    /// The next PDU must be a Reject of this header; returns its reason.
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

    /// What was sent so far has been taken in, and nothing comes for `time`: what is due must wait for something that the
    /// test holds back.
    ///
    /// # Errors
    /// A PDU came, or the connection was closed.
    pub fn waits(&mut self, time: Duration) -> Result<()> {
        self.silent()?;
        self.is_quiet(time)
    }

    /// Nothing comes for `time`. Where something has to be taken in first, it is for [`Self::waits`], or for the test, to see to it.
    ///
    /// # Errors
    /// A PDU came, or the connection was closed.
    pub fn is_quiet(&mut self, time: Duration) -> Result<()> {
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // A limit of zero would be none.
            self.connection.set_patience(left.max(Duration::from_millis(1)))?;
            let came = self.connection.peek();
            self.connection.set_patience(PATIENCE)?;
            if !came? {
                return Ok(());
            }
            let (pdu, _) = self.receive_any()?;
            ensure!(says_numbers_only(&pdu), "it did not wait: {pdu:?}");
        }
    }

    /// The target closes the connection without another word.
    ///
    /// # Errors
    /// It says something, or keeps the connection open.
    pub fn ends(&mut self) -> Result<()> {
        loop {
            match self.receive_any() {
                Ok((pdu, _)) => ensure!(says_numbers_only(&pdu), "a last word: {pdu:?}"),
                Err(error) => match error.downcast_ref::<io::Error>().map(io::Error::kind) {
                    Some(ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => return Ok(()),
                    _ => return Err(error),
                },
            }
        }
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
