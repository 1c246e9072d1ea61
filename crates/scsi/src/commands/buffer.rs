//! READ BUFFER and WRITE BUFFER (SPC-4): a data buffer and an echo buffer for each I_T_L nexus, to test the way with.
//!
//! There is no microcode to download, and no error history.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Context, Progress, State, Step, good, parameter_data};
use crate::budget::Charge;
use crate::bytes::Cdb;
use crate::sense::{AdditionalSense, SenseData};
use crate::task::Event;

/// The length of each buffer.
const BUFFER_BYTES: usize = 4096;

const DATA: u8 = 0x02;
const DESCRIPTOR: u8 = 0x03;
const ECHO: u8 = 0x0a;
const ECHO_DESCRIPTOR: u8 = 0x0b;

/// What one nexus has written.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    written: Mutex<Written>,
}

#[derive(Debug, Default)]
struct Written {
    /// Empty until something was written, and then of full length.
    data: Vec<u8>,
    echo: Option<Vec<u8>>,
    /// Of the domain's memory, for both.
    charge: Option<Charge>,
}

impl Buffers {
    fn lock(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A field of three bytes.
fn field24(cdb: &Cdb, at: usize) -> u32 {
    u32::from_be_bytes([0, cdb[at], cdb[at + 1], cdb[at + 2]])
}

pub(super) fn read_buffer(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let (id, offset, allocation_length) = (cdb[2], field24(cdb, 3) as usize, field24(cdb, 6));
    let buffers = context.itl().buffers();
    let data = match cdb[1] & 0x1f {
        DATA => {
            if id != 0 {
                return Err(SenseData::invalid_cdb_field(2, 7));
            }
            let mut data = buffers.lock().data.clone();
            data.resize(BUFFER_BYTES, 0);
            data.get(offset..).ok_or(SenseData::invalid_cdb_field(3, 7))?.to_vec()
        }
        // Offsets may be any number of bytes (2^0). A buffer that is not there has no capacity.
        DESCRIPTOR if id == 0 => (BUFFER_BYTES as u32).to_be_bytes().to_vec(),
        DESCRIPTOR => vec![0; 4],
        ECHO => {
            let echo = buffers.lock().echo.clone();
            echo.ok_or(SenseData::illegal(AdditionalSense::COMMAND_SEQUENCE_ERROR))?
        }
        // EBOS: what others write does not change it.
        ECHO_DESCRIPTOR => [[0x01, 0], (BUFFER_BYTES as u16).to_be_bytes()].concat(),
        _ => return Err(SenseData::invalid_cdb_field(1, 4)),
    };
    parameter_data(data, allocation_length)
}

pub(super) fn write_buffer(_: &Context<'_>, cdb: &Cdb) -> Progress {
    let (id, offset, length) = (cdb[2], field24(cdb, 3) as usize, field24(cdb, 6));
    let place = match cdb[1] & 0x1f {
        DATA if id != 0 => return Err(SenseData::invalid_cdb_field(2, 7)),
        DATA if offset > BUFFER_BYTES => return Err(SenseData::invalid_cdb_field(3, 7)),
        DATA => Some(offset),
        ECHO => None,
        _ => return Err(SenseData::invalid_cdb_field(1, 4)),
    };
    if place.unwrap_or(0) + length as usize > BUFFER_BYTES {
        return Err(SenseData::invalid_cdb_field(6, 7));
    }
    if length == 0 {
        return good();
    }
    Ok((State::WriteBuffer(WriteBuffer { place, length }), Step::DataOut(length)))
}

/// A WRITE BUFFER that waits for its data.
#[derive(Debug)]
pub(crate) struct WriteBuffer {
    /// Where in the data buffer; `None`: the echo buffer.
    place: Option<usize>,
    length: u32,
}

impl WriteBuffer {
    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        let bytes = event.data_out(self.length)?;
        let mut written = context.itl().buffers().lock();
        if written.charge.is_none() {
            let charge = context.nexus.device().domain().buffers().take(2 * BUFFER_BYTES);
            let none_left = SenseData::illegal(AdditionalSense::INSUFFICIENT_RESOURCES);
            written.charge = Some(charge.ok_or(none_left)?);
        }
        match self.place {
            None => written.echo = Some(bytes.to_vec()),
            Some(at) => {
                written.data.resize(BUFFER_BYTES, 0);
                // The sum was checked when the command began.
                written.data[at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
        good()
    }
}
