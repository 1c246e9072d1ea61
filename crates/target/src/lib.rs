//! The iSCSI target: it joins the session core (`lunette-iscsi`), the device server (`lunette-scsi`) and volumes
//! (`lunette-block`) to sockets and threads.
//!
//! [`Server::start`] opens volumes, binds portals and starts one reactor thread a core. A connection lives on one
//! reactor for life; reactors exchange messages, not locks. A command's way from socket to store and back is in
//! `reactor`: `receive`, `commands`, `transmit`.

mod access;
mod admission;
mod attempts;
pub mod config;
mod crowd;
mod failure;
mod handle;
mod isns;
mod kept_reads;
mod listener;
mod mailbox;
mod portals;
mod reactor;
mod recorder;
mod registry;
mod reload;
mod retained;
mod saver;
mod seldom;
mod server;
mod store_io;
mod surroundings;
mod task_times;
mod units;
mod upkeep;

pub use failure::{AccessStateError, StartError, StopError, UnitPlace};
pub use handle::ServerHandle;
pub use reload::{ReloadError, Reloaded};
pub use server::Server;
pub use units::{TargetReport, UnitReport};
