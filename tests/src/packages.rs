//! The Debian packages with the foreign programs that the tests talk to, in one place.
//!
//! Nothing here installs anything: `cargo xtask packages` does.

use std::env;
use std::path::PathBuf;

/// One Debian package and the programs (found on the `PATH`) or files (absolute) that the tests need from it.
#[derive(Debug, Clone, Copy)]
pub struct Package {
    /// The package's name, as `apt-get install` takes it.
    pub name: &'static str,
    /// What must be there for the package to count as installed.
    pub needs: &'static [Need],
}

/// Something that a package brings.
#[derive(Debug, Clone, Copy)]
pub enum Need {
    /// A program on the `PATH` (or in `/usr/sbin` and `/sbin`, which an ordinary user's `PATH` lacks).
    Program(&'static str),
    /// A file with this name somewhere below `/usr/lib`, one or two directories deep.
    Library(&'static str),
}

/// All packages, in the order in which they are named to people.
pub const PACKAGES: &[Package] = &[
    Package {
        name: "libiscsi-bin",
        needs: &[
            Need::Program("iscsi-ls"),
            Need::Program("iscsi-inq"),
            Need::Program("iscsi-readcapacity16"),
            Need::Program("iscsi-perf"),
            Need::Program("iscsi-test-cu"),
        ],
    },
    Package { name: "tgt", needs: &[Need::Program("tgtd"), Need::Program("tgtadm")] },
    Package { name: "qemu-utils", needs: &[Need::Program("qemu-img"), Need::Program("qemu-io")] },
    Package { name: "qemu-block-extra", needs: &[Need::Library("qemu/block-iscsi.so")] },
    Package { name: "open-isns-server", needs: &[Need::Program("isnsd")] },
    Package { name: "open-isns-utils", needs: &[Need::Program("isnsadm")] },
    Package { name: "valgrind", needs: &[Need::Program("valgrind")] },
    Package { name: "xfsprogs", needs: &[Need::Program("mkfs.xfs"), Need::Program("xfs_repair")] },
    Package { name: "fuse3", needs: &[Need::Program("fusermount3")] },
    Package { name: "e2fsprogs", needs: &[Need::Program("mke2fs"), Need::Program("e2fsck")] },
    Package { name: "iputils-ping", needs: &[Need::Program("ping")] },
    Package { name: "iperf3", needs: &[Need::Program("iperf3")] },
    Package { name: "tcpdump", needs: &[Need::Program("tcpdump")] },
];

/// What the virtual machine of [`crate::vm`] needs beside what every Debian has. Without them its tests are skipped, also
/// under `CI=true`.
pub const VM_PACKAGES: &[Package] = &[
    Package { name: "qemu-system-x86", needs: &[Need::Program("qemu-system-x86_64")] },
    Package { name: "mmdebstrap", needs: &[Need::Program("mmdebstrap")] },
    Package { name: "cpio", needs: &[Need::Program("cpio")] },
    Package { name: "iproute2", needs: &[Need::Program("ip")] },
];

impl Package {
    /// True if everything that the tests need from the package is there.
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.needs.iter().all(Need::is_present)
    }
}

impl Need {
    fn is_present(&self) -> bool {
        match self {
            Need::Program(name) => find_program(name).is_some(),
            Need::Library(name) => find_library(name),
        }
    }
}

/// Those of `packages` that are not (completely) there.
#[must_use]
pub fn missing(packages: &[Package]) -> Vec<&'static str> {
    packages.iter().filter(|package| !package.is_present()).map(|package| package.name).collect()
}

/// The command line, for people, that installs `names`.
#[must_use]
pub fn install_line(names: &[&str]) -> String {
    format!("apt-get install -y --no-install-recommends {}", names.join(" "))
}

/// The package of the list that brings `program`.
#[must_use]
pub fn package_of(program: &str) -> Option<&'static str> {
    let brings = |need: &Need| matches!(need, Need::Program(name) if *name == program);
    let mut packages = PACKAGES.iter().chain(VM_PACKAGES);
    packages.find(|package| package.needs.iter().any(brings)).map(|package| package.name)
}

/// Where `name` is: first the `PATH`, then the system directories that an ordinary user's `PATH` leaves out.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// Looks for `/usr/lib/NAME` and `/usr/lib/ARCHITECTURE/NAME`.
fn find_library(name: &str) -> bool {
    let root = PathBuf::from("/usr/lib");
    root.join(name).is_file()
        || root.read_dir().is_ok_and(|entries| {
            entries.filter_map(Result::ok).any(|entry| entry.path().join(name).is_file())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_package_of_a_program() {
        assert_eq!(package_of("qemu-io"), Some("qemu-utils"));
        assert_eq!(package_of("no-such-program"), None);
    }

    #[test]
    fn finds_a_shell_and_no_nonsense() {
        assert!(find_program("sh").is_some());
        assert!(find_program("no-such-program-here").is_none());
        assert!(!find_library("no-such/library.so"));
    }

    #[test]
    fn install_line_names_all() {
        assert_eq!(install_line(&["a", "b"]), "apt-get install -y --no-install-recommends a b");
    }
}
