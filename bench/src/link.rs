//! A connection while it is set up, one PDU at a time and blocking: login, and the first commands of a session.
//!
//! What is measured under load is not here. Keys: RFC 7143, clause 13; numbers: 4.2.2.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lunette_wire::digest::crc32c_of;
use lunette_wire::frame::{Digests, Frame, assemble};
use lunette_wire::initiator::{LogoutRequest, NopOut, ScsiCommand};
use lunette_wire::target::{NopIn, Numbers, Residual};
use lunette_wire::{
    BHS_LENGTH, CmdSn, InitiatorPdu, InitiatorTaskTag, LunField, StatSn, TargetPdu, TargetTransferTag,
};
use socket2::{Domain, Protocol, Socket, Type};

/// The MaxRecvDataSegmentLength that every session declares.
pub(crate) const SEGMENT_MAX_BYTES: u32 = 256 << 10;

/// An answer that takes longer than this never comes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Sessions from one source address: well below the ephemeral ports that Linux has for one.
const SESSIONS_OF_AN_ADDRESS: u32 = 4096;

/// The command numbering of a session, over all of its connections (4.2.2.1).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// The number of the next command.
    pub(crate) cmd_sn: CmdSn,
    /// The next command that the target waits for.
    pub(crate) exp_cmd_sn: CmdSn,
    /// The last command that the target takes.
    pub(crate) max_cmd_sn: CmdSn,
}

impl Window {
    /// The numbering that begins with this command.
    pub(crate) fn new(first: CmdSn) -> Self {
        Self { cmd_sn: first, exp_cmd_sn: first, max_cmd_sn: first }
    }

    /// Takes in what a PDU says about it; it only ever moves on.
    pub(crate) fn take(&mut self, numbers: Numbers) {
        if self.max_cmd_sn.precedes(numbers.max_cmd_sn) {
            self.max_cmd_sn = numbers.max_cmd_sn;
        }
        if self.exp_cmd_sn.precedes(numbers.exp_cmd_sn) {
            self.exp_cmd_sn = numbers.exp_cmd_sn;
        }
    }

    /// True when the target takes another command.
    pub(crate) fn is_open(&self) -> bool {
        !self.max_cmd_sn.precedes(self.cmd_sn)
    }
}

/// The status numbering of one connection: what must come next (4.2.2.2).
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpStatSn(pub(crate) StatSn);

impl ExpStatSn {
    /// A status came.
    ///
    /// # Errors
    /// Another one was due.
    pub(crate) fn take(&mut self, numbers: Numbers) -> Result<()> {
        ensure!(numbers.stat_sn == self.0, "{:?} came when {:?} was due", numbers.stat_sn, self.0);
        self.0 = self.0.next();
        Ok(())
    }
}

/// The answer to a ping of the target's (11.18).
pub(crate) fn pong(ping: &NopIn, cmd_sn: CmdSn, exp_stat_sn: ExpStatSn) -> NopOut {
    NopOut {
        immediate: true,
        lun: ping.lun,
        initiator_task_tag: InitiatorTaskTag::RESERVED,
        target_transfer_tag: ping.target_transfer_tag,
        cmd_sn,
        exp_stat_sn: exp_stat_sn.0,
    }
}

/// How a command of the set-up ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: u8,
    /// What was read, or the sense data.
    pub(crate) data: Vec<u8>,
}

/// How large a logical unit is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capacity {
    pub(crate) blocks: u64,
    pub(crate) block_bytes: u32,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) stream: TcpStream,
    pub(crate) digests: Digests,
    pub(crate) window: Window,
    pub(crate) exp_stat_sn: ExpStatSn,
    /// When `connect` was called.
    pub(crate) began: Instant,
}

impl Link {
    /// Connects; the `number` of a session picks its source address where there are many.
    ///
    /// # Errors
    /// Nobody listens.
    pub(crate) fn open(portal: SocketAddr, number: u32) -> Result<Self> {
        let socket = Socket::new(Domain::for_address(portal), Type::STREAM, Some(Protocol::TCP))?;
        let began = Instant::now();
        if let (IpAddr::V4(ip), group @ 1..) = (portal.ip(), number / SESSIONS_OF_AN_ADDRESS)
            && ip.is_loopback()
        {
            let source = Ipv4Addr::from(u32::from(Ipv4Addr::LOCALHOST) + group);
            socket.bind(&SocketAddr::from((source, 0)).into())?;
        }
        lunette_tcp::before_connecting(&socket, portal);
        socket
            .connect_timeout(&portal.into(), PATIENCE)
            .with_context(|| format!("cannot connect to {portal}"))?;
        socket.set_tcp_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream: socket.into(),
            digests: Digests::default(),
            window: Window::new(CmdSn(1)),
            exp_stat_sn: ExpStatSn(StatSn(0)),
            began,
        })
    }

    /// Sends a PDU.
    pub(crate) fn send(&mut self, pdu: &InitiatorPdu, data: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(&assemble(&pdu.encode(data.len()), data, self.digests))?)
    }

    /// Waits for the next PDU.
    pub(crate) fn receive(&mut self) -> Result<(TargetPdu, Vec<u8>)> {
        let mut header = [0; BHS_LENGTH];
        self.stream.read_exact(&mut header).context("waiting for a PDU")?;
        let frame = Frame::of(&header, self.digests, SEGMENT_MAX_BYTES, 0)?;
        let mut rest = vec![0; frame.total_length() - BHS_LENGTH];
        self.stream.read_exact(&mut rest).context("waiting for a data segment")?;
        let (header_digest, segment) = rest.split_at(frame.header_digest_length);
        ensure!(header_digest.is_empty() || header_digest == crc32c_of(&[&header]), "wrong header digest");
        let (data, data_digest) = segment.split_at(segment.len() - frame.data_digest_length);
        ensure!(data_digest.is_empty() || data_digest == crc32c_of(&[data]), "wrong data digest");
        Ok((TargetPdu::decode(&header)?, data[..frame.data_length].to_vec()))
    }

    /// Takes in the numbers of a PDU; a status must be the next in turn.
    pub(crate) fn take(&mut self, numbers: Numbers, has_status: bool) -> Result<()> {
        self.window.take(numbers);
        if has_status { self.exp_stat_sn.take(numbers) } else { Ok(()) }
    }

    /// Takes in a NOP-In, and answers it if it is a ping.
    pub(crate) fn answer(&mut self, ping: &NopIn) -> Result<()> {
        self.take(ping.numbers, false)?;
        if ping.target_transfer_tag == TargetTransferTag::RESERVED {
            return Ok(());
        }
        let pong = pong(ping, self.window.cmd_sn, self.exp_stat_sn);
        self.send(&InitiatorPdu::NopOut(pong), &[])
    }

    /// One command without Data-Out, from request to status.
    pub(crate) fn command(&mut self, lun: LunField, cdb: [u8; 16], data_in_bytes: u32) -> Result<Outcome> {
        let pdu = ScsiCommand {
            is_final: true,
            read: data_in_bytes > 0,
            lun,
            expected_data_transfer_length: data_in_bytes,
            cmd_sn: self.window.cmd_sn,
            exp_stat_sn: self.exp_stat_sn.0,
            cdb,
            ..ScsiCommand::default()
        };
        self.window.cmd_sn = self.window.cmd_sn.next();
        self.send(&InitiatorPdu::ScsiCommand(pdu), &[])?;
        let mut read = Vec::new();
        loop {
            match self.receive()? {
                (TargetPdu::ScsiDataIn(pdu), data) => {
                    ensure!(pdu.buffer_offset as usize == read.len(), "Data-In out of order");
                    read.extend(data);
                    self.take(pdu.numbers, pdu.status.is_some())?;
                    if let Some(status) = pdu.status {
                        return Ok(Outcome { status, data: read });
                    }
                }
                (TargetPdu::ScsiResponse(pdu), sense) => {
                    self.take(pdu.numbers, true)?;
                    ensure!(pdu.response == 0, "SCSI response {:#04x}", pdu.response);
                    let data = if pdu.status == 0 { read } else { sense };
                    ensure!(
                        pdu.status != 0 || !matches!(pdu.residual, Residual::Overflow(_)),
                        "{:?}",
                        pdu.residual
                    );
                    return Ok(Outcome { status: pdu.status, data });
                }
                (TargetPdu::NopIn(ping), _) => {
                    self.answer(&ping)?;
                }
                (other, _) => bail!("not expected now: {other:?}"),
            }
        }
    }

    /// As [`Self::command`], again as long as there is a unit attention to be told.
    ///
    /// # Errors
    /// The command does not end with GOOD.
    pub(crate) fn insist(&mut self, lun: LunField, cdb: [u8; 16], data_in_bytes: u32) -> Result<Vec<u8>> {
        const UNIT_ATTENTION: u8 = 6;
        for _ in 0..8 {
            let Outcome { status, data } = self.command(lun, cdb, data_in_bytes)?;
            // The sense data stand behind their length (11.4.7); the key is in their third byte (SPC-4, 4.5.3).
            match (status, data.get(4)) {
                (0, _) => return Ok(data),
                (2, Some(key)) if key & 0xf == UNIT_ATTENTION => {}
                _ => bail!("command {:#04x} ends with status {status:#04x}, sense {data:02x?}", cdb[0]),
            }
        }
        bail!("the unit attentions do not end")
    }

    /// READ CAPACITY(16) (SBC-3, 5.16).
    pub(crate) fn capacity(&mut self, lun: LunField) -> Result<Capacity> {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x10, 32);
        let data = self.insist(lun, cdb, 32)?;
        let (Some(last), Some(size)) = (data.first_chunk::<8>(), data.get(8..12)) else {
            bail!("READ CAPACITY(16) answers {} bytes", data.len())
        };
        let block_bytes = u32::from_be_bytes([size[0], size[1], size[2], size[3]]);
        ensure!((512..=65536).contains(&block_bytes), "blocks of {block_bytes} bytes");
        Ok(Capacity { blocks: u64::from_be_bytes(*last).saturating_add(1), block_bytes })
    }

    /// Ends the session in order: a logout of all its connections, and the answer. False where the target closes the
    /// connection without one, as Debian's istgt does now and then: the session is over all the same.
    ///
    /// # Errors
    /// The target refuses, or says nothing.
    pub(crate) fn logout(&mut self) -> Result<bool> {
        let pdu = LogoutRequest {
            immediate: true,
            cmd_sn: self.window.cmd_sn,
            exp_stat_sn: self.exp_stat_sn.0,
            ..LogoutRequest::default()
        };
        self.send(&InitiatorPdu::LogoutRequest(pdu), &[])?;
        loop {
            match self.receive() {
                Ok((TargetPdu::LogoutResponse(pdu), _)) => {
                    ensure!(pdu.response == 0, "logout refused: {}", pdu.response);
                    return Ok(true);
                }
                Ok(_) => {}
                Err(error) if is_end(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }
}

/// True when the peer has closed the connection.
fn is_end(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(kind, Some(ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset))
}
