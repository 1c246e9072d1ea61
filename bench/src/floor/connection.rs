//! One connection of the yardstick: bytes in, bytes out, and as little as possible in between (RFC 7143, 11.1).

use std::io::{self, IoSliceMut};
use std::net::TcpStream;

use anyhow::{Context, Result, ensure};
use lunette_wire::frame::{Digests, Frame};
use lunette_wire::target::Numbers;
use lunette_wire::{BHS_LENGTH, CmdSn, InitiatorPdu, StatSn};
use rustix::io::Errno;

use super::login::{Agreed, SEGMENT_MAX_BYTES};
use super::store::Store;
use super::transfer::{Landing, Read, Write};
use crate::outbox::{Outbox, Source};

/// One read brings at most this: a deep queue of small writes, and still in the second-level cache.
const INPUT_BYTES: usize = 256 << 10;

/// What is sent before more is read from the store, for the same reason.
const EAGER_SEND_BYTES: usize = 256 << 10;

/// How many commands an initiator may have in flight.
const WINDOW: u32 = 256;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Connection {
    socket: TcpStream,
    pub(super) sendfile: bool,
    /// What came; bytes `start` to `end` are not handled yet.
    pub(super) input: Box<[u8]>,
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) outbox: Outbox,
    pub(super) agreed: Agreed,
    stat_sn: StatSn,
    pub(super) exp_cmd_sn: CmdSn,
    pub(super) reading: Option<Read>,
    pub(super) landing: Option<Landing>,
    pub(super) writes: Vec<Option<Write>>,
    pub(super) is_ending: bool,
}

impl Connection {
    pub(super) fn new(socket: TcpStream, sendfile: bool) -> Self {
        Self {
            socket,
            sendfile,
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            outbox: Outbox::new(EAGER_SEND_BYTES + SEGMENT_MAX_BYTES as usize, 512),
            agreed: Agreed::default(),
            stat_sn: StatSn(1),
            exp_cmd_sn: CmdSn(0),
            reading: None,
            landing: None,
            writes: Vec::new(),
            is_ending: false,
        }
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// True when the peer must take something before more is done for it.
    pub(super) fn is_blocked(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Everything that can be done now; false when the connection is at its end.
    ///
    /// # Errors
    /// The connection broke, or the peer asks for what is not there.
    pub(super) fn turn(&mut self, store: &mut Store) -> Result<bool> {
        if self.is_blocked() {
            self.send(store)?;
        } else if !self.receive(store)? {
            return Ok(false);
        }
        while self.outbox.is_empty() {
            let all = self.handle_input(store)?;
            self.send(store)?;
            if all {
                break;
            }
        }
        Ok(!self.is_ending || self.is_blocked())
    }

    fn send(&mut self, store: &Store) -> io::Result<()> {
        let source = match store {
            Store::File(file, _) if self.sendfile => Source::File(file),
            Store::File(..) => Source::Memory(&[]),
            Store::Memory(memory) => Source::Memory(memory),
        };
        self.outbox.send(&self.socket, source)
    }

    /// One read: into the store where it is memory and a data segment is due, else into the input.
    fn receive(&mut self, store: &mut Store) -> Result<bool> {
        self.input.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let direct = match &self.landing {
            Some(landing) if self.end == 0 => store.landing(landing.offset, landing.left)?,
            _ => &mut [],
        };
        let direct_length = direct.len();
        let room = &mut self.input[self.end..];
        let result = if direct_length == 0 {
            rustix::io::read(&self.socket, room)
        } else {
            rustix::io::readv(&self.socket, &mut [IoSliceMut::new(direct), IoSliceMut::new(room)])
        };
        let read = match result {
            Ok(0) => return Ok(false),
            Ok(read) => read,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(Errno::CONNRESET) => return Ok(false),
            Err(error) => return Err(error).context("receiving"),
        };
        let landed = read.min(direct_length);
        if let Some(landing) = &mut self.landing {
            landing.offset += landed as u64;
            landing.left -= landed;
        }
        self.end += read - landed;
        Ok(true)
    }

    /// Handles what came until there is enough to send; true when nothing is left that can be handled.
    fn handle_input(&mut self, store: &mut Store) -> Result<bool> {
        while self.outbox.queued_bytes() < EAGER_SEND_BYTES {
            let went_on = if self.reading.is_some() {
                self.data_in(store)?;
                true
            } else if self.landing.is_some() {
                self.land(store)?
            } else {
                self.pdu(store)?
            };
            if !went_on {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Handles the next PDU, or the beginning of it where data follows; false when it is not there.
    fn pdu(&mut self, store: &mut Store) -> Result<bool> {
        let bytes = &self.input[self.start..self.end];
        let Some(&bhs) = bytes.first_chunk::<BHS_LENGTH>() else { return Ok(false) };
        let frame = Frame::of(&bhs, Digests::default(), SEGMENT_MAX_BYTES, 0)?;
        match InitiatorPdu::decode(&bhs)? {
            InitiatorPdu::ScsiCommand(pdu) => {
                self.start += BHS_LENGTH;
                self.command(&pdu, frame.data_length, store)?;
            }
            InitiatorPdu::ScsiDataOut(pdu) => {
                self.start += BHS_LENGTH;
                self.data_out(&pdu, frame.data_length)?;
            }
            other => {
                ensure!(frame.total_length() <= INPUT_BYTES, "a PDU that is too long");
                if bytes.len() < frame.total_length() {
                    return Ok(false);
                }
                let data = bytes[frame.data_offset()..][..frame.data_length].to_vec();
                self.start += frame.total_length();
                self.control(&other, &data)?;
            }
        }
        Ok(true)
    }

    /// The numbers of a PDU; one with a status uses up a StatSN.
    pub(super) fn numbers(&mut self, has_status: bool) -> Numbers {
        let stat_sn = self.stat_sn;
        if has_status {
            self.stat_sn = stat_sn.next();
        }
        Numbers { stat_sn, exp_cmd_sn: self.exp_cmd_sn, max_cmd_sn: self.exp_cmd_sn.plus(WINDOW - 1) }
    }
}
