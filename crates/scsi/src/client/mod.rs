//! The application client: the commands that an initiator sends to a disk, and what a disk answers (SAM-5, SPC-4, SBC-3).
//!
//! It is the device server's other side and does no I/O either: a [`Query`] knows its CDB and reads its answer, a
//! [`Command`] without an answer knows what it transfers. Whoever has a transport sends the one and brings the other.
//! Nothing that a target answers is trusted: every decoder is total, holds no more than [`ANSWER_BYTES_MAX`] bytes, and
//! says what is missing where an answer was cut off ([`Malformed`]).
//!
//! ```
//! use lunette_scsi::client::capacity;
//!
//! let query = capacity::read_capacity_16();
//! assert_eq!(query.command().name(), "READ CAPACITY(16)");
//! assert_eq!(query.command().data_in_bytes(), 32);
//! // The transport sends `query.command().cdb()` and receives:
//! let mut answer = [0; 32];
//! answer[..12].copy_from_slice(&[0, 0, 0, 0, 0, 0, 7, 255, 0, 0, 2, 0]);
//! let capacity = query.decode(&answer)?;
//! assert_eq!((capacity.blocks, capacity.block_length_bytes), (2048, 512));
//! assert_eq!(query.decode(&answer[..8]).unwrap_err().needed_bytes(), Some(12));
//! # Ok::<(), lunette_scsi::client::Malformed>(())
//! ```

mod answer;
pub mod capacity;
mod command;
mod identity;
pub mod inquiry;
pub mod lba_status;
pub mod log;
pub mod medium;
pub mod mode;
pub mod port_groups;
mod probe;
pub mod reservations;
mod same;
mod sense;
mod sense_text;
#[cfg(test)]
mod tests;
pub mod unit;
pub mod vpd;

pub use answer::{Fault, Malformed};
pub use command::{ANSWER_BYTES_MAX, Command, DoesNotFit, Query, Transfer};
pub use identity::{Difference, UnitIdentity};
pub use probe::{Next, Probe, ProbeError, Reply, Ticket, UnitFacts};
pub use same::SameBlocks;
pub use sense::{Sense, Unfit};
