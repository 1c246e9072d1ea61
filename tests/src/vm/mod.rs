//! A Debian kernel in a throw-away virtual machine, for its own initiator (open-iscsi) and target (LIO).
//!
//! The machine's images are built by `cargo xtask vm` from Debian's packages (`tests/vm/`); this module boots them. Host and
//! guest share a network namespace made for one test, and a directory through which the script, its output and its
//! exit status go. Software emulation suffices, so nothing here can measure speed.

mod guest;
mod network;
mod passage;

use std::path::PathBuf;

use crate::packages::{find_program, package_of};

pub use guest::{Ended, Guest, HUNG};
pub use network::Network;
pub use passage::Passage;

/// The environment variable with the directory of the image that most tests boot: Debian 12, with Linux 6.1.
pub const IMAGE: &str = "LUNETTE_VM";
/// The same of Debian 11, with Linux 5.10: the last whose LIO outlives a task reassignment (docs/decisions/0033).
pub const IMAGE_OLD: &str = "LUNETTE_VM_OLD";

/// The host's address, on the first path to the guest.
pub const HOST: &str = "10.0.2.2";
/// The host's address on the second path, for multipath.
pub const HOST_SECOND: &str = "10.0.3.2";
/// The guest's address on the first path.
pub const GUEST: &str = "10.0.2.15";

/// Where kernel and root file system are in an image's directory.
pub const KERNEL: &str = "linux";
/// See [`KERNEL`].
pub const ROOT: &str = "root.cpio";

/// The programs that a guest and its network need on the host.
pub const PROGRAMS: [&str; 4] = ["qemu-system-x86_64", "unshare", "nsenter", "ip"];

/// The directory of the image that this variable, [`IMAGE`] or [`IMAGE_OLD`], names.
///
/// # Errors
/// Why no guest can be booted here, for a skip.
pub fn image(variable: &str) -> Result<PathBuf, String> {
    if let Some(program) = PROGRAMS.into_iter().find(|program| find_program(program).is_none()) {
        let package = package_of(program).unwrap_or("util-linux");
        return Err(format!("{program} is not installed (Debian package {package})"));
    }
    let Some(directory) = std::env::var_os(variable).map(PathBuf::from) else {
        return Err(
            "there is no image of the virtual machine: `cargo xtask vm` builds it and runs these tests"
                .into(),
        );
    };
    if directory.join(KERNEL).is_file() && directory.join(ROOT).is_file() {
        Ok(directory)
    } else {
        Err(format!("{} is no image of a virtual machine", directory.display()))
    }
}

/// Makes a network for a guest of the usual image, or of the one that a variable names, or skips the running test where no guest
/// can be booted. What lacks cannot be installed everywhere, so this is no failure under `CI=true` either.
#[macro_export]
macro_rules! need_guest {
    () => {
        $crate::need_guest!($crate::vm::IMAGE)
    };
    ($variable:expr) => {
        match $crate::vm::image($variable).and_then($crate::vm::Network::new) {
            Ok(network) => network,
            Err(reason) => {
                $crate::skip::record_lacking(&reason);
                return;
            }
        }
    };
}
