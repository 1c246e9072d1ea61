//! One command as a state machine: it asks for data and medium operations and ends with a completion.
//!
//! It is not the task set: ordering, abort and the command window are the transport's.

use crate::bytes::Cdb;
use crate::commands::{self, Context, State, Step};
use crate::io::{Direction, Io, IoError, IoOutcome};
use crate::lun::Lun;
use crate::nexus::Nexus;
use crate::sense::{AdditionalSense, EncodedSense, SenseData, SenseKey};
use crate::status::Status;
use crate::unit::LogicalUnit;

/// A running command. Dropping it aborts it: nothing outside the task is held.
#[derive(Debug)]
pub struct Task {
    path: Option<usize>,
    /// The place of its unit in the device.
    unit: Option<usize>,
    state: State,
}

/// What the driver must do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Bring the Data-Out buffer, then resume with [`Event::DataOut`].
    DataOut {
        /// How much the command needs; not zero. The initiator may have less.
        length_bytes: u32,
    },
    /// Do this on the medium, then resume with [`Event::Io`].
    Io(Io),
    /// Do this on the medium of another unit, which may belong to another device, then resume with [`Event::Io`]. The
    /// medium buffer is the task's all the same.
    IoOn {
        /// Whose medium: the unit's [`crate::Identity::naa`].
        naa: u64,
        /// What to do.
        io: Io,
    },
    /// The command is over.
    Done(Completion),
}

/// What happened since the last [`Next`].
#[derive(Debug)]
pub enum Event<'a> {
    /// The bytes asked for, or fewer if the initiator has fewer.
    DataOut(&'a [u8]),
    /// The operation asked for has ended.
    Io {
        /// How it ended.
        result: Result<IoOutcome, IoError>,
        /// The task's whole Data-Out buffer; empty if none was asked for.
        data_out: &'a [u8],
        /// What the last [`Io::Read`] brought; of no meaning after other operations.
        medium: &'a [u8],
    },
}

/// A finished medium operation, as the command modules look at it.
pub(crate) struct IoDone<'a> {
    pub(crate) outcome: IoOutcome,
    pub(crate) data_out: &'a [u8],
    pub(crate) medium: &'a [u8],
}

impl<'a> Event<'a> {
    /// The Data-Out bytes, at most `length_bytes` of them. Another event is the driver's fault.
    pub(crate) fn data_out(self, length_bytes: u32) -> Result<&'a [u8], SenseData> {
        match self {
            Event::DataOut(bytes) => Ok(&bytes[..bytes.len().min(length_bytes as usize)]),
            Event::Io { .. } => Err(SenseData::internal()),
        }
    }

    /// A finished operation, with the error as the store told it.
    pub(crate) fn io_result(self) -> Result<Result<IoDone<'a>, IoError>, SenseData> {
        match self {
            Event::Io { result, data_out, medium } => {
                Ok(result.map(|outcome| IoDone { outcome, data_out, medium }))
            }
            Event::DataOut(_) => Err(SenseData::internal()),
        }
    }

    /// A finished operation, with the error as sense data.
    pub(crate) fn io(self, direction: Direction, unit: &LogicalUnit) -> Result<IoDone<'a>, SenseData> {
        self.io_result()?.map_err(|error| error.sense(direction, unit))
    }
}

/// The data that goes to the initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataIn {
    /// Nothing.
    None,
    /// Parameter data, already cut to the allocation length and not empty.
    Parameter(Vec<u8>),
    /// The medium buffer of the last [`Io::Read`] is the answer.
    Medium {
        /// How much of it.
        length_bytes: u32,
    },
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The status.
    pub status: Status,
    /// Sense data; only with CHECK CONDITION.
    pub sense: Option<EncodedSense>,
    /// What goes to the initiator.
    pub data_in: DataIn,
}

impl Completion {
    /// A status without sense data and data.
    pub const fn status(status: Status) -> Completion {
        Completion { status, sense: None, data_in: DataIn::None }
    }

    /// CHECK CONDITION with sense data in fixed format, for what the driver itself finds.
    pub fn check_condition(key: SenseKey, asc: u8, ascq: u8) -> Completion {
        Completion::from_sense(SenseData::new(key, AdditionalSense::new(asc, ascq)), false)
    }

    /// CHECK CONDITION with `sense` in the format asked for.
    pub fn from_sense(sense: SenseData, descriptor_format: bool) -> Completion {
        Completion {
            status: Status::CheckCondition,
            sense: Some(sense.encode(descriptor_format)),
            data_in: DataIn::None,
        }
    }
}

impl Task {
    /// Begins the command `cdb` (16 bytes, as iSCSI pads it; bytes after those are an extended CDB) for `lun`.
    pub fn start(nexus: &Nexus, lun: Lun, cdb: &[u8]) -> (Task, Next) {
        Task::begin(nexus, lun, cdb, None)
    }

    /// As [`Task::start`], for a transport that knows how much Data-Out the initiator announced: a WRITE SAME that
    /// announces anything but one block is then refused before data moves (INVALID FIELD IN COMMAND INFORMATION UNIT).
    pub fn start_announced(nexus: &Nexus, lun: Lun, cdb: &[u8], data_out_bytes: u32) -> (Task, Next) {
        Task::begin(nexus, lun, cdb, Some(data_out_bytes))
    }

    fn begin(nexus: &Nexus, lun: Lun, cdb: &[u8], announced_bytes: Option<u32>) -> (Task, Next) {
        let mut block: Cdb = [0; 16];
        let length = cdb.len().min(block.len());
        block[..length].copy_from_slice(&cdb[..length]);

        let found = nexus.find(lun);
        let progress = match found {
            Some((_, path)) => commands::start(&Context { nexus, path, announced_bytes }, &block),
            None => commands::start_without_unit(nexus, lun, &block),
        };
        let (path, unit) = found.map(|(index, path)| (index, path.place)).unzip();
        let mut task = Task { path, unit, state: State::Finished };
        let descriptor_format = found.is_some_and(|(_, path)| path.unit.mode().descriptor_sense());
        let next = task.advance(progress, descriptor_format);
        (task, next)
    }

    /// Goes on after what [`Next`] asked for. `nexus` is the one the task was started with. An event that was not
    /// asked for ends the command with HARDWARE ERROR.
    pub fn resume(&mut self, nexus: &Nexus, event: Event<'_>) -> Next {
        let state = std::mem::replace(&mut self.state, State::Finished);
        let Some(path) = self.path.and_then(|index| nexus.path(index)) else {
            return self.advance(Err(SenseData::internal()), false);
        };
        let progress = state.resume(&Context { nexus, path, announced_bytes: None }, event);
        self.advance(progress, path.unit.mode().descriptor_sense())
    }

    /// The place of the task's unit in [`crate::Device::units`]; `None` where the LUN names no unit.
    pub fn unit_index(&self) -> Option<usize> {
        self.unit
    }

    fn advance(&mut self, progress: Result<(State, Step), SenseData>, descriptor_format: bool) -> Next {
        match progress {
            Ok((state, Step::DataOut(length_bytes))) => {
                self.state = state;
                Next::DataOut { length_bytes }
            }
            Ok((state, Step::Io(io))) => {
                self.state = state;
                Next::Io(io)
            }
            Ok((state, Step::IoOn(unit, io))) => {
                self.state = state;
                Next::IoOn { naa: unit.identity().naa, io }
            }
            Ok((_, Step::Done(data_in))) => {
                Next::Done(Completion { status: Status::Good, sense: None, data_in })
            }
            Ok((_, Step::End(status))) => Next::Done(Completion::status(status)),
            Err(sense) => Next::Done(Completion::from_sense(sense, descriptor_format)),
        }
    }
}
