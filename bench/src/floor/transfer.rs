//! Reads and writes of the yardstick, from command to answer (RFC 7143, 11.3 to 11.8).

use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, bail, ensure};
use lunette_wire::initiator::{ScsiCommand, ScsiDataOut};
use lunette_wire::target::{ReadyToTransfer, ScsiDataIn, ScsiResponse};
use lunette_wire::{DataSn, InitiatorTaskTag, LunField, TargetTransferTag};

use super::connection::Connection;
use super::store::{BLOCK_BYTES, Store};

/// Data goes to the store in whole pages of the page cache until its end has come.
const PAGE_BYTES: u64 = 4096;

/// A read that is being answered.
#[derive(Debug)]
pub(super) struct Read {
    initiator_task_tag: InitiatorTaskTag,
    /// Where the data is in the store.
    base: u64,
    length: usize,
    done: usize,
    data_sn: DataSn,
}

/// A write whose data is not all there.
#[derive(Debug)]
pub(super) struct Write {
    initiator_task_tag: InitiatorTaskTag,
    lun: LunField,
    base: u64,
    length: u32,
    received: u32,
    r2t_sn: DataSn,
}

/// A data segment that is coming in.
#[derive(Debug)]
pub(super) struct Landing {
    /// Where its next byte goes in the store.
    pub(super) offset: u64,
    pub(super) left: usize,
    then: Then,
}

/// What happens when a data segment is there.
#[derive(Debug, Clone, Copy)]
pub(super) enum Then {
    /// The write is complete.
    Answer(InitiatorTaskTag),
    /// More of the write will come: by itself, or, after the last of a sequence, when it is asked for.
    Continue { slot: usize, length: u32, is_last: bool },
}

impl Connection {
    pub(super) fn command(&mut self, pdu: &ScsiCommand, immediate: usize, store: &Store) -> Result<()> {
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

    pub(super) fn data_out(&mut self, pdu: &ScsiDataOut, length: usize) -> Result<()> {
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

    /// Appends the next Data-In of the read that is being answered; the last carries the status.
    pub(super) fn data_in(&mut self, store: &Store) -> Result<()> {
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
    pub(super) fn land(&mut self, store: &mut Store) -> Result<bool> {
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

    /// GOOD, without data.
    pub(super) fn respond(&mut self, initiator_task_tag: InitiatorTaskTag) {
        let response =
            ScsiResponse { initiator_task_tag, numbers: self.numbers(true), ..ScsiResponse::default() };
        self.outbox.push(&response.encode(0));
    }
}
