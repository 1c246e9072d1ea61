//! Why a server does not start, is not changed, or does not end cleanly.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use lunette_block::{CloseError, OpenError, StateError};
use lunette_scsi::{ConfigError, SavedFault};

/// Why a server does not start. Nothing is left behind: volumes are closed and ports free.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A portal's address cannot be listened on.
    #[error("cannot listen on {address}: {source}{}", advice(.source))]
    Portal {
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// A volume cannot be opened.
    #[error("LUN {lun}: {source}")]
    Volume {
        /// The logical unit's number.
        lun: u16,
        /// Why.
        source: OpenError,
    },
    /// A logical unit cannot be made of a volume.
    #[error("LUN {lun}: {source}")]
    Unit {
        /// The logical unit's number.
        lun: u16,
        /// Why.
        source: ConfigError,
    },
    /// The file with the state of a logical unit cannot be used.
    #[error("LUN {lun}: {source}")]
    StateFile {
        /// The logical unit's number.
        lun: u16,
        /// Why.
        source: StateError,
    },
    /// The file with the state of a logical unit has something else in it.
    #[error("LUN {lun}: {}: {fault}; move it away to go on without what it keeps", path.display())]
    State {
        /// The logical unit's number.
        lun: u16,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: SavedFault,
    },
    /// The directory for the states of logical units cannot be made.
    #[error("state_directory {}: {source}", path.display())]
    StateDirectory {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A trace cannot be written.
    #[error("trace_directory: {}: {source}", path.display())]
    TraceDirectory {
        /// The directory, or a file there.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Something is said of a portal group that the target does not have.
    #[error("target {target}: port_group: there is no portal group {tag}")]
    PortGroup {
        /// The target's name.
        target: String,
        /// The tag.
        tag: u16,
    },
    /// A target cannot be made of its logical units.
    #[error("target {target}: {source}")]
    Target {
        /// Its name.
        target: String,
        /// Why.
        source: ConfigError,
    },
    /// Two volumes have the same identity, so that initiators would take them for one disk.
    #[error(
        "{first} and {second} have the same identity {naa}: one is a copy of the other; give one of them serial=..."
    )]
    SameIdentity {
        /// The identity.
        naa: String,
        /// One logical unit.
        first: String,
        /// The other.
        second: String,
    },
    /// A reactor is to stay on a processor that there is not, or that the process may not use.
    #[error(
        "cores: this process may not use processor {core}; `nproc` and `taskset -p $$` show what it may use"
    )]
    Core {
        /// Its number.
        core: usize,
    },
    /// The system refused a thread or a descriptor.
    #[error("cannot start a thread of the target: {0}")]
    System(#[from] io::Error),
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; another program listens there (port 0 picks a free port)",
        io::ErrorKind::AddrNotAvailable => "; this machine has no such address",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need privileges",
        _ => "",
    }
}

/// Why the state of a portal group is not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessStateError {
    /// There is no such target.
    #[error("there is no target {0}")]
    NoTarget(String),
    /// The target has no such portal group.
    #[error("the target has no portal group {0}")]
    NoPortGroup(u16),
}

/// Why a stop was not clean.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// Something acknowledged could not be made stable.
    #[error("{0}")]
    Close(#[from] CloseError),
    /// The server was told to end at once; commands may have been cut off.
    #[error("stopped at once, without waiting for running commands")]
    Forced,
    /// A reactor failed, or the thread that looks after logical units, and the server ended with it.
    #[error("a thread of the target failed; see the log")]
    Thread,
}
