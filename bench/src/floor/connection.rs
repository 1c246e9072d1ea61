//! One connection of the yardstick: bytes in, bytes out, and as little as possible in between (RFC 7143, clause 11).

use std::io::{self, IoSliceMut};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, bail, ensure};
use lunette_wire::frame::{Digests, Frame};
use lunette_wire::initiator::{LoginRequest, LoginStage, NopOut, ScsiCommand, ScsiDataOut};
use lunette_wire::target::{
    LoginResponse, LogoutResponse, NopIn, Numbers, ReadyToTransfer, Residual, ScsiDataIn, ScsiResponse,
    TaskManagementResponse,
};
use lunette_wire::{
    BHS_LENGTH, Bhs, CmdSn, DataSn, InitiatorPdu, InitiatorTaskTag, LunField, StatSn, TargetTransferTag, Tsih,
};
use rustix::io::Errno;

use super::login::{Agreed, SEGMENT_MAX_BYTES, answer};
use super::scsi::{self, Answer};
use super::store::{BLOCK_BYTES, Store};
use crate::outbox::{Outbox, Source};

/// One read brings at most this: a deep queue of small writes, and still in the second-level cache.
const INPUT_BYTES: usize = 256 << 10;

/// What is sent before more is read from the store, for the same reason.
const EAGER_SEND_BYTES: usize = 256 << 10;

/// Data goes to the store in whole pages of the page cache until its end has come.
const PAGE_BYTES: u64 = 4096;

/// How many commands an initiator may have in flight.
const WINDOW: u32 = 256;

/// A read that is being answered.
#[derive(Debug)]
struct Read {
    initiator_task_tag: InitiatorTaskTag,
    /// Where the data is in the store.
    base: u64,
    length: usize,
    done: usize,
    data_sn: DataSn,
}

/// A write whose data is not all there.
#[derive(Debug)]
struct Write {
    initiator_task_tag: InitiatorTaskTag,
    lun: LunField,
    base: u64,
    length: u32,
    received: u32,
    r2t_sn: DataSn,
}

/// A data segment that is coming in.
#[derive(Debug)]
struct Landing {
    /// Where its next byte goes in the store.
    offset: u64,
    left: usize,
    then: Then,
}

/// What happens when a data segment is there.
#[derive(Debug, Clone, Copy)]
enum Then {
    /// The write is complete.
    Answer(InitiatorTaskTag),
    /// More of the write will come: by itself, or, after the last of a sequence, when it is asked for.
    Continue { slot: usize, length: u32, is_last: bool },
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Connection {
    socket: TcpStream,
    sendfile: bool,
    input: Box<[u8]>,
    start: usize,
    end: usize,
    outbox: Outbox,
    agreed: Agreed,
    stat_sn: StatSn,
    exp_cmd_sn: CmdSn,
    reading: Option<Read>,
    landing: Option<Landing>,
    writes: Vec<Option<Write>>,
    is_ending: bool,
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

    /// Appends the next Data-In of the read that is being answered; the last carries the status.
    fn data_in(&mut self, store: &Store) -> Result<()> {
        let Some(mut read) = self.reading.take() else { return Ok(()) };
        let length = self.agreed.segment_max_bytes.min(read.length - read.done);
        let is_final = read.done + length == read.length;
        let pdu = ScsiDataIn {
            is_final,
            status: is_final.then_some(0),
            initiator_task_tag: read.initiator_task_tag,
            target_transfer_tag: TargetTransferTag::RESERVED,
            numbers: self.numbers(is_final),
            data_sn: read.data_sn,
            buffer_offset: u32::try_from(read.done)?,
            ..ScsiDataIn::default()
        };
        self.outbox.push(&pdu.encode(length));
        let offset = read.base + read.done as u64;
        match store {
            Store::File(file, _) if !self.sendfile => {
                file.read_exact_at(self.outbox.space(length), offset)?;
            }
            _ => self.outbox.push_shared(usize::try_from(offset)?, length),
        }
        if !is_final {
            read.done += length;
            read.data_sn = read.data_sn.next();
            self.reading = Some(read);
        }
        Ok(())
    }

    /// Writes what is there of a data segment; false when that is not worth it yet.
    fn land(&mut self, store: &mut Store) -> Result<bool> {
        let Some(landing) = &mut self.landing else { return Ok(false) };
        let mut count = landing.left.min(self.end - self.start);
        if count < landing.left {
            let ragged = (landing.offset + count as u64) % PAGE_BYTES;
            count = count.saturating_sub(ragged as usize);
            if count == 0 {
                return Ok(false);
            }
        }
        if count > 0 {
            store.write(&self.input[self.start..self.start + count], landing.offset)?;
        }
        self.start += count;
        landing.offset += count as u64;
        landing.left -= count;
        if landing.left == 0 {
            let then = landing.then;
            self.landing = None;
            self.landed(then)?;
        }
        Ok(true)
    }

    fn landed(&mut self, then: Then) -> Result<()> {
        let (slot, length, is_last) = match then {
            Then::Answer(tag) => {
                self.respond(tag);
                return Ok(());
            }
            Then::Continue { slot, length, is_last } => (slot, length, is_last),
        };
        let numbers = self.numbers(false);
        let Some(Some(write)) = self.writes.get_mut(slot) else { bail!("data for no write") };
        write.received = write.received.saturating_add(length);
        if write.received >= write.length {
            let tag = write.initiator_task_tag;
            self.writes[slot] = None;
            self.respond(tag);
        } else if is_last {
            let pdu = ReadyToTransfer {
                lun: write.lun,
                initiator_task_tag: write.initiator_task_tag,
                target_transfer_tag: TargetTransferTag(slot as u32),
                numbers,
                r2t_sn: write.r2t_sn,
                buffer_offset: write.received,
                desired_length: self.agreed.max_burst_bytes.min(write.length - write.received),
            };
            write.r2t_sn = write.r2t_sn.next();
            self.outbox.push(&pdu.encode());
        }
        Ok(())
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
                self.control(&bhs, &other, &data)?;
            }
        }
        Ok(true)
    }

    fn command(&mut self, pdu: &ScsiCommand, immediate: usize, store: &Store) -> Result<()> {
        if !pdu.immediate {
            self.exp_cmd_sn = pdu.cmd_sn.next();
        }
        let cdb = &pdu.cdb;
        let quad =
            |at: usize| u64::from(u32::from_be_bytes([cdb[at], cdb[at + 1], cdb[at + 2], cdb[at + 3]]));
        let (lba, blocks) = match cdb[0] {
            0x28 | 0x2a => (quad(2), u64::from(u16::from_be_bytes([cdb[7], cdb[8]]))),
            0x88 | 0x8a => (quad(2) << 32 | quad(6), quad(10)),
            _ => {
                ensure!(immediate == 0, "data for command {:#04x}", cdb[0]);
                return self.other_command(pdu, store);
            }
        };
        ensure!(pdu.lun == LunField::default(), "there is unit 0 only");
        let base = lba.checked_mul(BLOCK_BYTES).context("an address beyond all bounds")?;
        let length = blocks * BLOCK_BYTES;
        ensure!(length > 0 && u64::from(pdu.expected_data_transfer_length) == length, "lengths differ");
        ensure!(base.checked_add(length).is_some_and(|end| end <= store.bytes()), "beyond the end");
        if pdu.read {
            self.reading = Some(Read {
                initiator_task_tag: pdu.initiator_task_tag,
                base,
                length: usize::try_from(length)?,
                done: 0,
                data_sn: DataSn(0),
            });
            return Ok(());
        }
        ensure!(immediate as u64 <= length, "more data than the command has");
        let then = if immediate as u64 == length {
            Then::Answer(pdu.initiator_task_tag)
        } else {
            let slot = self.writes.iter().position(Option::is_none).unwrap_or_else(|| {
                self.writes.push(None);
                self.writes.len() - 1
            });
            self.writes[slot] = Some(Write {
                initiator_task_tag: pdu.initiator_task_tag,
                lun: pdu.lun,
                base,
                length: pdu.expected_data_transfer_length,
                received: 0,
                r2t_sn: DataSn(0),
            });
            Then::Continue { slot, length: u32::try_from(immediate)?, is_last: pdu.is_final }
        };
        self.landing = Some(Landing { offset: base, left: immediate, then });
        Ok(())
    }

    fn data_out(&mut self, pdu: &ScsiDataOut, length: usize) -> Result<()> {
        let slot = if pdu.target_transfer_tag == TargetTransferTag::RESERVED {
            let is_meant = |write: &Option<Write>| {
                write.as_ref().is_some_and(|write| write.initiator_task_tag == pdu.initiator_task_tag)
            };
            self.writes.iter().position(is_meant)
        } else {
            usize::try_from(pdu.target_transfer_tag.0).ok()
        };
        let slot = slot.context("data for no write")?;
        let Some(Some(write)) = self.writes.get(slot) else { bail!("data for no write") };
        let length = u32::try_from(length)?;
        let end = pdu.buffer_offset.checked_add(length).context("data beyond its command")?;
        ensure!(end <= write.length, "data beyond its command");
        self.landing = Some(Landing {
            offset: write.base + u64::from(pdu.buffer_offset),
            left: length as usize,
            then: Then::Continue { slot, length, is_last: pdu.is_final },
        });
        Ok(())
    }

    fn other_command(&mut self, pdu: &ScsiCommand, store: &Store) -> Result<()> {
        let answer = match pdu.lun.0 {
            [0, 0, ..] => scsi::answer(&pdu.cdb, store.bytes()),
            // LOGICAL UNIT NOT SUPPORTED.
            _ => Answer::Illegal(0x25),
        };
        match answer {
            Answer::Good => self.respond(pdu.initiator_task_tag),
            Answer::Flush => {
                store.flush()?;
                self.respond(pdu.initiator_task_tag);
            }
            Answer::Data(mut data) => {
                let expected = pdu.expected_data_transfer_length;
                data.truncate(expected as usize);
                let header = ScsiDataIn {
                    is_final: true,
                    status: Some(0),
                    residual: Residual::between(expected, data.len() as u64),
                    initiator_task_tag: pdu.initiator_task_tag,
                    target_transfer_tag: TargetTransferTag::RESERVED,
                    numbers: self.numbers(true),
                    ..ScsiDataIn::default()
                };
                self.outbox.push(&header.encode(data.len()));
                data.resize(data.len() + lunette_wire::frame::padding(data.len()), 0);
                self.outbox.push(&data);
            }
            Answer::Illegal(code) => {
                let sense = scsi::illegal_request(code);
                let response = ScsiResponse {
                    status: 2,
                    residual: Residual::between(pdu.expected_data_transfer_length, 0),
                    initiator_task_tag: pdu.initiator_task_tag,
                    numbers: self.numbers(true),
                    ..ScsiResponse::default()
                };
                self.outbox.push(&response.encode(sense.len()));
                self.outbox.push(&sense);
            }
        }
        Ok(())
    }

    /// What is neither a command nor its data.
    fn control(&mut self, bhs: &Bhs, pdu: &InitiatorPdu, data: &[u8]) -> Result<()> {
        match pdu {
            InitiatorPdu::LoginRequest(request) => self.login(request, data)?,
            InitiatorPdu::NopOut(nop) => {
                self.count(nop.immediate, nop.cmd_sn);
                self.echo(nop, data);
            }
            InitiatorPdu::TaskManagementRequest(request) => {
                self.count(request.immediate, request.cmd_sn);
                let response = TaskManagementResponse {
                    response: 0,
                    initiator_task_tag: request.initiator_task_tag,
                    numbers: self.numbers(true),
                };
                self.outbox.push(&response.encode());
            }
            InitiatorPdu::LogoutRequest(request) => {
                self.count(request.immediate, request.cmd_sn);
                let response = LogoutResponse {
                    initiator_task_tag: request.initiator_task_tag,
                    numbers: self.numbers(true),
                    ..LogoutResponse::default()
                };
                self.outbox.push(&response.encode());
                self.is_ending = true;
            }
            _ => bail!("opcode {:#04x} is not known here", bhs[0]),
        }
        Ok(())
    }

    fn echo(&mut self, nop: &NopOut, data: &[u8]) {
        if nop.initiator_task_tag == InitiatorTaskTag::RESERVED {
            return;
        }
        let pong = NopIn {
            initiator_task_tag: nop.initiator_task_tag,
            target_transfer_tag: TargetTransferTag::RESERVED,
            numbers: self.numbers(true),
            ..NopIn::default()
        };
        self.outbox.push(&pong.encode(data.len()));
        self.outbox.push(data);
        self.outbox.push(&[0; 3][..lunette_wire::frame::padding(data.len())]);
    }

    fn login(&mut self, request: &LoginRequest, keys: &[u8]) -> Result<()> {
        ensure!(!request.is_continued, "a login that is spread over PDUs");
        let data = answer(request, keys, &mut self.agreed)?;
        self.exp_cmd_sn = request.cmd_sn;
        let is_last = request.transit && request.next_stage == LoginStage::FullFeature;
        let response = LoginResponse {
            transit: request.transit,
            is_continued: false,
            current_stage: request.current_stage,
            next_stage: request.next_stage,
            version_max: 0,
            version_active: 0,
            isid: request.isid,
            tsih: if is_last { Tsih(1) } else { request.tsih },
            initiator_task_tag: request.initiator_task_tag,
            numbers: self.numbers(true),
            status_class: 0,
            status_detail: 0,
        };
        self.outbox.push(&response.encode(data.len()));
        self.outbox.push(&data);
        self.outbox.push(&[0; 3][..lunette_wire::frame::padding(data.len())]);
        Ok(())
    }

    fn count(&mut self, immediate: bool, cmd_sn: CmdSn) {
        if !immediate {
            self.exp_cmd_sn = cmd_sn.next();
        }
    }

    /// GOOD, without data.
    fn respond(&mut self, initiator_task_tag: InitiatorTaskTag) {
        let response =
            ScsiResponse { initiator_task_tag, numbers: self.numbers(true), ..ScsiResponse::default() };
        self.outbox.push(&response.encode(0));
    }

    /// The numbers of a PDU; one with a status uses up a StatSN.
    fn numbers(&mut self, has_status: bool) -> Numbers {
        let stat_sn = self.stat_sn;
        if has_status {
            self.stat_sn = stat_sn.next();
        }
        Numbers { stat_sn, exp_cmd_sn: self.exp_cmd_sn, max_cmd_sn: self.exp_cmd_sn.plus(WINDOW - 1) }
    }
}
