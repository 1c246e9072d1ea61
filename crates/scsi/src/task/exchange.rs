//! What a command and its driver tell each other.
//!
//! Who may be told to wait, and until when, is [`crate::task_set`]'s matter.

use crate::io::{Direction, Io, IoError, IoOutcome};
use crate::sense::{AdditionalSense, EncodedSense, SenseData, SenseKey};
use crate::status::Status;
use crate::task_set::Attribute;
use crate::unit::LogicalUnit;

/// What a transport knows of a command besides its CDB.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    /// Its place among the commands of its logical unit.
    pub attribute: Attribute,
    /// Its command priority (SAM-5, 8.7): 1 goes first, 15 last; 0: that of its nexus. Higher bits are ignored, as it is for
    /// commands that are not SIMPLE.
    pub priority: u8,
    /// How much Data-Out the initiator announced, where that is known: a WRITE SAME that announces anything but one
    /// block is then refused before data moves (INVALID FIELD IN COMMAND INFORMATION UNIT).
    pub data_out_bytes: Option<u32>,
    /// What [`crate::Wake::wake`] is told when the command may go on.
    pub key: u64,
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
    /// Let others go first for a while, then resume with [`Event::Turn`]: a piece of a copy is next.
    Yield,
    /// Wait until the nexus' [`crate::Wake`] is told this command's key, then resume with [`Event::Turn`].
    Wait,
    /// The command is over.
    Done(Completion),
}

/// What happened since the last [`Next`].
#[derive(Debug)]
pub enum Event<'a> {
    /// The bytes asked for, or fewer if the initiator has fewer. Where a driver has stored the beginning of a plain WRITE already
    /// ([`crate::Unhindered`]), anything may be in its place.
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
    /// The command, which had to wait, was woken; or it has yielded. If that was too soon it waits on.
    Turn {
        /// The task's whole Data-Out buffer; empty if none was asked for.
        data_out: &'a [u8],
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
            Event::Io { .. } | Event::Turn { .. } => Err(SenseData::internal()),
        }
    }

    /// A finished operation, with the error as the store told it.
    pub(crate) fn io_result(self) -> Result<Result<IoDone<'a>, IoError>, SenseData> {
        match self {
            Event::Io { result, data_out, medium } => {
                Ok(result.map(|outcome| IoDone { outcome, data_out, medium }))
            }
            Event::DataOut(_) | Event::Turn { .. } => Err(SenseData::internal()),
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
    /// The data in the medium buffer of the last [`Io::Read`] is the answer, without the 8 bytes behind each block.
    MediumData {
        /// How much data.
        length_bytes: u32,
        /// The data of a block.
        block_length_bytes: u32,
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
