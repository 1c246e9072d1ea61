//! Many reads or writes under way at once: what is read comes in the order of the disk.

mod flow;
mod pipeline;
mod reads;
mod writes;

use lunette_scsi::client::Command;
use lunette_scsi::client::medium::{self, BlockRange};

pub(crate) use self::flow::{Depth, Flow};
use self::pipeline::does_not_fit;
pub(crate) use self::reads::{ReadStream, Step};
pub(crate) use self::writes::WriteStream;
use crate::failure::Failure;

/// The most commands under way that may be asked for.
pub(crate) const DEPTH_MAX: u32 = 1024;

/// The most commands under way that move next to nothing and make the unit work on much (UNMAP, WRITE SAME): enough that a long
/// line does not count, and few enough that each is answered in time.
pub(crate) const OTHERS_MAX: usize = 16;

/// The most that the unit works on for them together, in bytes; a longer one goes alone. A unit may really write all of it, and at 10 MB/s
/// the last is still answered in time.
pub(crate) const OTHERS_BYTES_MAX: u64 = 1 << 30;

/// The most questions under way whose answers say what is to be read: a long line is busy, and a unit hardly.
pub(crate) const QUESTIONS_MAX: usize = 8;

/// SYNCHRONIZE CACHE of the whole disk.
fn flush_command() -> Result<Command, Failure> {
    let all = BlockRange { lba: 0, blocks: 0, block_length_bytes: 0 };
    medium::synchronize_cache(medium::CdbForm::Ten, all).map_err(does_not_fit)
}

#[cfg(test)]
pub(crate) mod tests;
