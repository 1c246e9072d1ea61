//! What the device server asks of the store, and how the store's errors become sense data (SBC-3, error reporting).

use std::ops::Range;

use crate::nexus::NexusName;
use crate::sense::{AdditionalSense, SenseData, SenseKey};
use crate::unit::LogicalUnit;

/// What commands that go through more of the medium than they move read or write at once: a multiple of every block
/// length, and little enough that the buffers of many such commands fit.
pub(crate) const PIECE_BYTES: u32 = 1 << 20;

/// One operation on the medium. Offsets and lengths are whole blocks inside the capacity; lengths are not zero.
///
/// On a unit with protection information they count the data, while what is read into the medium buffer, and what is
/// written from any buffer, has 8 bytes of information behind the data of each block; a place and a length in a buffer
/// count those as well. What is zeroed or unmapped, and what was never written, has information of all ones. The data
/// and the information of a block must change together, whatever crash comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Io {
    /// Read into the medium buffer.
    Read {
        /// Where on the medium.
        offset_bytes: u64,
        /// How much; at most the unit's maximum transfer length.
        length_bytes: u32,
        /// False: the data only goes to the initiator, so the driver may send it from where it lies and leave the
        /// medium buffer empty.
        inspected: bool,
    },
    /// Write bytes of the task's Data-Out buffer.
    WriteDataOut {
        /// Where on the medium.
        offset_bytes: u64,
        /// The first byte of the Data-Out buffer to write.
        start: u32,
        /// How many bytes of it.
        length_bytes: u32,
        /// True: answer when the data is on stable storage.
        stable: bool,
    },
    /// Write the task's Data-Out buffer from its first byte on, all of it or nothing, even if power is lost. It is within
    /// [`crate::LogicalUnitConfig::atomic_writes`].
    WriteAtomic {
        /// Where on the medium.
        offset_bytes: u64,
        /// How many bytes.
        length_bytes: u32,
        /// True: answer when the data is on stable storage.
        stable: bool,
    },
    /// Write bytes that the device server made (WRITE SAME).
    WriteOwned {
        /// Where on the medium.
        offset_bytes: u64,
        /// The data: at most 1 MiB, without the protection information.
        bytes: Vec<u8>,
        /// True: answer when the data is on stable storage.
        stable: bool,
    },
    /// Write bytes of the medium buffer: what the last [`Io::Read`] brought.
    WriteMedium {
        /// Where on the medium.
        offset_bytes: u64,
        /// How many bytes of the buffer, from its first on.
        length_bytes: u32,
        /// True: answer when the data is on stable storage.
        stable: bool,
    },
    /// Make everything that was answered before stable.
    Flush,
    /// Make a range read as zeros.
    Zero {
        /// Where on the medium.
        offset_bytes: u64,
        /// How much.
        length_bytes: u64,
        /// True: give the space back where that is possible. False: keep it, and where [`crate::Provisioning::anchors`] is
        /// true take what is missing.
        unmap: bool,
        /// True: answer when the zeros are on stable storage.
        stable: bool,
    },
    /// Give the space of a range back. The unit reports LBPRZ, so the range must read as zeros afterwards.
    Unmap {
        /// Where on the medium.
        offset_bytes: u64,
        /// How much.
        length_bytes: u64,
    },
    /// The range will be read soon. A hint: doing nothing is a right answer.
    Prefetch {
        /// Where on the medium.
        offset_bytes: u64,
        /// How much.
        length_bytes: u64,
    },
    /// Store [`LogicalUnit::state`], and answer when it is stable. It is taken after this was asked for, so that it has
    /// what the command changed.
    SaveState,
    /// Abort all commands of these I_T nexuses for this unit, on whatever thread they run, and answer when none is left.
    /// The command that asks for it is not one of them.
    AbortTasks {
        /// Whose commands.
        nexuses: Vec<NexusName>,
        /// Other nexuses that lose commands by it are told by COMMANDS CLEARED BY ANOTHER INITIATOR
        /// ([`crate::Nexus::commands_cleared`]).
        is_told: bool,
    },
    /// The unit has taken work on ([`LogicalUnit::next_work`]): begin with it.
    Work {
        /// True: answer when [`LogicalUnit::is_at_work`] is false. The command may be aborted before; the work goes on.
        until_over: bool,
    },
    /// Tell which parts of the range have space.
    Extents {
        /// Where on the medium.
        offset_bytes: u64,
        /// How much.
        length_bytes: u64,
    },
}

/// How long the blocks of a medium are: their data, and what is stored of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockLengths {
    pub(crate) data: u64,
    /// The same with the protection information, if they have any.
    pub(crate) stored: u64,
}

impl BlockLengths {
    /// The blocks of a range that counts data.
    pub(crate) fn of_data(self, offset_bytes: u64, length_bytes: u64) -> Range<u64> {
        offset_bytes / self.data..offset_bytes.saturating_add(length_bytes).div_ceil(self.data)
    }

    /// The blocks that so much of a buffer has, from an offset on that counts data.
    fn of_buffer(self, offset_bytes: u64, length_bytes: u64) -> Range<u64> {
        if self.data == self.stored {
            return self.of_data(offset_bytes, length_bytes);
        }
        let first = offset_bytes / self.data;
        first..first.saturating_add(length_bytes.div_ceil(self.stored))
    }
}

impl Io {
    /// What it writes is to be stable when it has ended.
    #[cold]
    pub(crate) fn make_stable(&mut self) {
        if let Io::WriteDataOut { stable, .. }
        | Io::WriteAtomic { stable, .. }
        | Io::WriteOwned { stable, .. }
        | Io::WriteMedium { stable, .. }
        | Io::Zero { stable, .. } = self
        {
            *stable = true;
        }
    }

    /// The blocks that it changes, unless it is [`Io::Work`], which may change all.
    pub(crate) fn changes(&self, lengths: BlockLengths) -> Option<Range<u64>> {
        match *self {
            Io::WriteDataOut { offset_bytes, length_bytes, .. }
            | Io::WriteAtomic { offset_bytes, length_bytes, .. }
            | Io::WriteMedium { offset_bytes, length_bytes, .. } => {
                Some(lengths.of_buffer(offset_bytes, length_bytes.into()))
            }
            Io::WriteOwned { offset_bytes, ref bytes, .. } => {
                Some(lengths.of_buffer(offset_bytes, bytes.len() as u64))
            }
            Io::Zero { offset_bytes, length_bytes, .. } | Io::Unmap { offset_bytes, length_bytes } => {
                Some(lengths.of_data(offset_bytes, length_bytes))
            }
            Io::Read { .. }
            | Io::Flush
            | Io::SaveState
            | Io::Prefetch { .. }
            | Io::Extents { .. }
            | Io::AbortTasks { .. }
            | Io::Work { .. } => None,
        }
    }
}

/// What space a part of the medium has (SBC-3, logical block provisioning states).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// It has space, or it is not known what it has.
    Mapped,
    /// It has none and reads as zeros.
    Deallocated,
    /// It has space, nothing was written to it, and it reads as zeros.
    Anchored,
}

impl Allocation {
    /// PROVISIONING STATUS of GET LBA STATUS.
    pub(crate) fn code(self) -> u8 {
        match self {
            Allocation::Mapped => 0,
            Allocation::Deallocated => 1,
            Allocation::Anchored => 2,
        }
    }
}

/// A part of the medium that has the same everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it starts.
    pub offset_bytes: u64,
    /// How long it is.
    pub length_bytes: u64,
    /// What space it has.
    pub allocation: Allocation,
}

/// What an [`Io`] brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IoOutcome {
    /// It is done; read data is in the medium buffer.
    Done,
    /// The answer to [`Io::Extents`]: in rising order, without gaps. It may end before the range does; then nothing
    /// is told about the rest. An empty list says that the store cannot tell, so everything counts as mapped.
    Extents(Vec<Extent>),
}

/// Why an [`Io`] failed. The driver maps its store's errors to these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoError {
    /// The medium has an error.
    Medium {
        /// The first byte in error, where it is known.
        offset_bytes: Option<u64>,
    },
    /// An initiator has marked the block as unreadable (WRITE LONG). Drivers have no such error.
    MarkedBad {
        /// The first byte of the block.
        offset_bytes: u64,
    },
    /// The store failed in some other way.
    Hardware,
    /// The store has no space for the data.
    NoSpace,
    /// The store may not be written.
    WriteProtected,
    /// An earlier write or flush was lost; the store takes no more until it is reopened.
    Faulted,
    /// The medium was cut while the command ran, and ends before the range does.
    OutOfRange,
    /// The store cannot do this operation.
    Unsupported,
}

/// Which way the failed operation moved data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

impl IoError {
    /// The sense data that tells this failure.
    pub(crate) fn sense(self, direction: Direction, unit: &LogicalUnit) -> SenseData {
        unit.errors().count(self, direction);
        use AdditionalSense as Code;
        let lba = |offset_bytes: u64| offset_bytes / u64::from(unit.block_length_bytes());
        match (self, direction) {
            (IoError::MarkedBad { offset_bytes }, _) => {
                SenseData::new(SenseKey::MediumError, Code::LBA_MARKED_BAD)
                    .with_information(Some(lba(offset_bytes)))
            }
            (IoError::Medium { offset_bytes }, _) => {
                let code = match direction {
                    Direction::Read => Code::UNRECOVERED_READ_ERROR,
                    Direction::Write => Code::WRITE_ERROR,
                };
                SenseData::new(SenseKey::MediumError, code).with_information(offset_bytes.map(lba))
            }
            (IoError::Hardware, _) => SenseData::internal(),
            (IoError::NoSpace, _) => SenseData::new(SenseKey::DataProtect, Code::SPACE_ALLOCATION_FAILED),
            (IoError::WriteProtected, _) => SenseData::new(SenseKey::DataProtect, Code::WRITE_PROTECTED),
            (IoError::Faulted, _) => {
                SenseData::new(SenseKey::HardwareError, Code::PERIPHERAL_DEVICE_WRITE_FAULT)
            }
            (IoError::OutOfRange, _) => SenseData::illegal(Code::LBA_OUT_OF_RANGE),
            (IoError::Unsupported, _) => SenseData::illegal(Code::INVALID_FIELD_IN_CDB),
        }
    }
}
