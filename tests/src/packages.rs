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
    Package { name: "istgt", needs: &[Need::Program("istgt")] },
    Package { name: "qemu-utils", needs: &[Need::Program("qemu-img"), Need::Program("qemu-io")] },
    Package { name: "libnbd-bin", needs: &[Need::Program("nbdcopy")] },
    Package { name: "qemu-block-extra", needs: &[Need::Library("qemu/block-iscsi.so")] },
    Package { name: "open-isns-server", needs: &[Need::Program("isnsd")] },
    Package { name: "open-isns-utils", needs: &[Need::Program("isnsadm")] },
    Package { name: "valgrind", needs: &[Need::Program("valgrind")] },
    Package { name: "xfsprogs", needs: &[Need::Program("mkfs.xfs"), Need::Program("xfs_repair")] },
    Package { name: "fuse3", needs: &[Need::Program("fusermount3")] },
    Package { name: "e2fsprogs", needs: &[Need::Program("mke2fs"), Need::Program("e2fsck")] },
    Package { name: "util-linux", needs: &[Need::Program("unshare")] },
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

/// The servers of files, their clients, and programs that work on files, for studies. Without them those parts of the studies'
/// tests are skipped, also under `CI=true`.
pub const FILE_SERVER_PACKAGES: &[Package] = &[
    Package { name: "nfs-ganesha", needs: &[Need::Program("ganesha.nfsd")] },
    Package { name: "nfs-ganesha-vfs", needs: &[Need::Library("ganesha/libfsalvfs.so")] },
    Package { name: "rpcbind", needs: &[Need::Program("rpcbind")] },
    Package { name: "samba", needs: &[Need::Program("smbd")] },
    Package { name: "smbclient", needs: &[Need::Program("smbclient")] },
    Package { name: "postmark", needs: &[Need::Program("postmark")] },
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
    let mut packages = PACKAGES.iter().chain(VM_PACKAGES).chain(FILE_SERVER_PACKAGES);
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
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn names_the_package_of_a_program() {
        assert_eq!(package_of("qemu-io"), Some("qemu-utils"));
        assert_eq!(package_of("no-such-program"), None);
    }

    /// Or the test that wants it would be skipped for ever on a machine where nobody has installed it by hand.
    #[test]
    fn whatever_a_test_needs_is_in_a_package() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let folders = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
        let mut wanted = BTreeSet::new();
        for folder in folders.chain([root.join("tests")]) {
            programs_needed(&folder.join("tests"), &mut wanted);
            programs_needed(&folder.join("src"), &mut wanted);
        }
        assert!(wanted.contains("tgtd"), "{wanted:?}");
        let unknown: Vec<_> = wanted.iter().filter(|name| package_of(name).is_none()).collect();
        assert!(unknown.is_empty(), "no package of the list brings {unknown:?}");
    }

    /// The literal names in `need_programs!` of all sources below a directory.
    fn programs_needed(directory: &Path, wanted: &mut BTreeSet<String>) {
        for entry in fs::read_dir(directory).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                programs_needed(&path, wanted);
            } else if path.extension() == Some("rs".as_ref()) {
                let text = fs::read_to_string(&path).unwrap();
                for call in text.split(concat!("need_programs", "!(")).skip(1) {
                    let Some((names, _)) = call.split_once(')') else { continue };
                    wanted.extend(names.split('"').skip(1).step_by(2).map(str::to_owned));
                }
            }
        }
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
