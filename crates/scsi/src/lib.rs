//! The SCSI device server for disks: it reads command descriptor blocks and says what the store must do and what
//! the initiator gets back (SAM-5, SPC-4, SBC-3). Its other side, the commands that an initiator sends and what it reads in the
//! answers, is in [`client`].
//!
//! It is not a transport and does no I/O: it knows an I_T nexus, not iSCSI, and it asks its driver for data and
//! for medium operations through values. [`Task::start`] takes a CDB and answers with a [`Next`]; the driver does
//! what was asked and calls [`Task::resume`] until [`Next::Done`] comes.
//!
//! ```
//! use std::sync::Arc;
//! use lunette_scsi::{
//!     Device, Identity, LogicalUnit, LogicalUnitConfig, Lun, Next, Nexus, Provisioning, Saved, Status, Task,
//! };
//!
//! # fn main() -> Result<(), lunette_scsi::ConfigError> {
//! let config = LogicalUnitConfig {
//!     identity: Identity {
//!         naa: 0x3123_4567_89ab_cdef,
//!         uuid: [7; 16],
//!         serial: "0001".into(),
//!         vendor: "LUNETTE".into(),
//!         product: "VOLUME".into(),
//!         revision: "0.1".into(),
//!     },
//!     block_length_bytes: 512,
//!     blocks: 2048,
//!     physical_block_exponent: 3,
//!     read_only: false,
//!     write_cache: true,
//!     provisioning: Provisioning { unmap: true, granularity_blocks: 8, write_zeroes: true, anchors: true },
//!     atomic_writes: None,
//!     max_transfer_bytes: 1 << 20,
//!     optimal_transfer_bytes: 1 << 20,
//!     removable: false,
//!     solid_state: true,
//!     protection: None,
//! };
//! let unit = Arc::new(LogicalUnit::new(config, Saved::Nowhere)?);
//! let device = Device::new("iqn.2026-11.io.lunette:vm", [1], [(Lun::from_number(0), unit)])?;
//! let port = device.ports()[0];
//! let nexus = Nexus::new(Arc::new(device), port, "iqn.2026-11.io.example:host,i,0x800000000001".into());
//!
//! // The first command of a new nexus reports the POWER ON unit attention; the next one runs.
//! let test_unit_ready = [0; 16];
//! let (_, first) = Task::start(&nexus, Lun::from_number(0), &test_unit_ready);
//! assert!(matches!(first, Next::Done(done) if done.status == Status::CheckCondition));
//! let (_, second) = Task::start(&nexus, Lun::from_number(0), &test_unit_ready);
//! assert!(matches!(second, Next::Done(done) if done.status == Status::Good));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod alua;
mod attention;
mod budget;
mod bytes;
pub mod client;
mod codes;
mod commands;
mod copy;
mod device;
mod domain;
mod identity;
mod io;
mod lun;
mod lun_map;
mod marks;
mod mode;
mod nexus;
mod paths;
mod priority;
mod protection;
mod reservations;
mod rod;
mod saved;
mod sense;
mod space;
mod status;
mod task;
mod task_set;
mod transport_id;
mod unit;
mod work;

pub use alua::AccessState;
pub use attention::Herald;
pub use bytes::asks_for_allegiance;
pub use commands::command_name;
pub use device::{Device, TargetPort};
pub use domain::{Domain, Environment};
pub use identity::Identity;
pub use io::{Allocation, Extent, Io, IoError, IoOutcome};
pub use lun::Lun;
pub use lun_map::{LunMap, MappedUnit};
pub use nexus::{Nexus, NexusName, Way};
pub use protection::{Check, Damage, DamageWatch, ProtectionType};
pub use saved::{Saved, SavedFault, UnitState};
pub use sense::{AdditionalSense, EncodedSense, FieldPlace, FieldPointer, SenseData, SenseKey};
pub use space::Space;
pub use status::Status;
pub use task::{Completion, DataIn, Ended, Event, Next, Task, Terms, Unhindered, Unsent};
pub use task_set::{Attribute, Wake};
pub use unit::{AtomicWrites, ConfigError, LogicalUnit, LogicalUnitConfig, Provisioning};
