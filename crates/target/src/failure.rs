//! Why a server does not start, is not changed, or does not end cleanly.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use lunette_block::{CloseError, OpenError, StateError};
use lunette_scsi::{ConfigError, SavedFault};

/// A logical unit, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitPlace {
    /// Its target's name.
    pub target: String,
    /// Its number there.
    pub lun: u16,
}

impl fmt::Display for UnitPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} LUN {}", self.target, self.lun)
    }
}

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
    #[error("{unit}: {source}")]
    Volume {
        /// The logical unit.
        unit: UnitPlace,
        /// Why.
        source: OpenError,
    },
    /// A logical unit cannot be made of a volume.
    #[error("{unit}: {source}")]
    Unit {
        /// The logical unit.
        unit: UnitPlace,
        /// Why.
        source: ConfigError,
    },
    /// The file with the state of a logical unit cannot be used.
    #[error("{unit}: {source}")]
    StateFile {
        /// The logical unit.
        unit: UnitPlace,
        /// Why.
        source: StateError,
    },
    /// The file with the state of a logical unit has something else in it.
    #[error("{unit}: {}: {fault}; move it away to go on without what it keeps", path.display())]
    State {
        /// The logical unit.
        unit: UnitPlace,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: SavedFault,
    },
    /// The state of a logical unit is not in the directory that was chosen for it, but beside its image.
    #[error(
        "{unit}: what it keeps over a restart, with its reservations, is in {}, and not in the state directory; move it to {}, \
         or remove it to go on without it", beside.display(), path.display()
    )]
    StateBeside {
        /// The logical unit.
        unit: UnitPlace,
        /// Where the state is.
        beside: PathBuf,
        /// Where it is looked for.
        path: PathBuf,
    },
    /// The directory for the states of logical units cannot be made, or nothing can be written there.
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
        "{first} and {second} have the same identity {naa}: one is a copy of the other, or both are one disk; \
         `setfattr -x user.lunette.uuid COPY` makes a copy of an image a disk of its own, as does removing COPY.lunette-id where it \
         has one (serial= would change the identity of the one that it is given to)"
    )]
    SameIdentity {
        /// The identity.
        naa: String,
        /// One logical unit.
        first: UnitPlace,
        /// The other.
        second: UnitPlace,
    },
    /// Two logical units were given one serial number, and with it one identity.
    #[error(
        "{first} and {second} both have serial={serial}, and with it one identity; each disk needs its own"
    )]
    SameSerial {
        /// The serial number.
        serial: String,
        /// One logical unit.
        first: UnitPlace,
        /// The other.
        second: UnitPlace,
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
