//! Other targets beside ours, at the far end of a link: programs of Debian's packages, with a configuration of our own and a disk
//! of memory. LIO is no program but a part of the kernel, and runs in a virtual machine.

use std::env;
use std::ffi::CString;
use std::fmt;
use std::fs;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use lunette_wan::{FAR, Namespace};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::files::{joined, lacks_programs};
use super::guest;
use super::scratch::Directory;
use super::site::{BLOCK_BYTES, DISK_BYTES, PORT, Site};
use super::tool;
use crate::LabError;

/// How long a peer may take until it listens.
const START_LIMIT: Duration = Duration::from_secs(20);
/// tgtd has a local socket for its set-up; its path ends with this number.
const CONTROL_PORT: &str = "1";

/// A target that is not ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// The Linux SCSI target framework's, in user space.
    Tgtd,
    /// FreeBSD's of old, which Debian has.
    Istgt,
    /// The kernel's, in a virtual machine.
    Lio,
}

impl Peer {
    const ALL: [Self; 3] = [Self::Tgtd, Self::Istgt, Self::Lio];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tgtd => "tgtd",
            Self::Istgt => "istgt",
            Self::Lio => "lio",
        }
    }

    /// Its target's iSCSI name, and the number of its disk; tgtd has something of its own at 0.
    pub(super) const fn disk(self) -> (&'static str, u16) {
        match self {
            Self::Tgtd => ("iqn.2026-11.io.lunette:tgtd", 1),
            Self::Istgt => ("iqn.2026-11.io.lunette:istgt", 0),
            Self::Lio => ("iqn.2026-11.io.lunette:lio", 0),
        }
    }

    /// The programs that it needs, with Debian's packages that have them, and what else it lacks.
    fn needs(self) -> (Vec<(&'static str, &'static str)>, Option<String>) {
        match self {
            Self::Tgtd => (vec![("tgtd", "tgt"), ("tgtadm", "tgt")], None),
            Self::Istgt => (vec![("istgt", "istgt")], None),
            Self::Lio => guest::needs(),
        }
    }

    /// Sees whether it is here.
    ///
    /// # Errors
    /// A sentence with what to install.
    pub fn check(self) -> Result<(), LabError> {
        Self::check_all(&[self])
    }

    /// Sees whether all of these are here.
    ///
    /// # Errors
    /// A sentence with all that is to be installed.
    pub fn check_all(peers: &[Self]) -> Result<(), LabError> {
        let (mut names, mut programs, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for peer in peers {
            let (own, other) = peer.needs();
            if lacks_programs(&own).is_some() || other.is_some() {
                names.push(peer.name());
                programs.extend(own);
                others.push(other);
            }
        }
        let lacks = joined(std::iter::once(lacks_programs(&programs)).chain(others));
        lacks.map_or(Ok(()), |lack| {
            Err(LabError::Plan(format!("{} cannot be had without {lack}", names.join(", "))))
        })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|peer| peer.name() == text);
        found.ok_or_else(|| "there are tgtd, istgt and lio".to_owned())
    }
}

/// A program on the PATH, or where an administrator's are.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    directories.map(|directory| directory.join(name)).find(|path| path.is_file())
}

/// A running peer; ended when it is dropped, by its process id.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) peer: Peer,
    pub(super) child: Child,
    directory: Directory,
    /// The disk: memory, which the peer has as an open file.
    _disk: OwnedFd,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a peer in a namespace, where the calling thread stays.
pub(super) fn start(peer: Peer, far: &Namespace) -> Result<Running, LabError> {
    peer.check()?;
    let failed = LabError::system("what a peer needs");
    let directory = Directory::make(&env::temp_dir()).map_err(&failed)?;
    // No CLOEXEC: the peer opens it by its number.
    let disk = memfd_create(CString::default().as_c_str(), MemfdFlags::empty())
        .and_then(|disk| ftruncate(&disk, DISK_BYTES).map(|()| disk))
        .map_err(|error| failed(error.into()))?;
    let path = format!("/proc/self/fd/{}", disk.as_raw_fd());
    let mut command = match peer {
        Peer::Tgtd => tgtd(directory.path()),
        Peer::Istgt => istgt(directory.path(), &path).map_err(&failed)?,
        Peer::Lio => return Err(LabError::Plan("LIO is no program".to_owned())),
    };
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    // It has nothing to end in order, and would be asked by who has other things to do.
    let child = far.spawn_mortal(&mut command).map_err(LabError::system("a peer at the far end"))?;
    let mut running = Running { peer, child, directory, _disk: disk };
    running.wait_until_it_listens(far)?;
    if peer == Peer::Tgtd {
        running.set_up_tgtd(&path)?;
    }
    Ok(running)
}

/// The command for a program, wherever it is.
pub(super) fn command(program: &str) -> Command {
    Command::new(find(program).unwrap_or_else(|| program.into()))
}

fn tgtd(directory: &Path) -> Command {
    let mut command = command("tgtd");
    let portal = format!("portal={}:{PORT}", FAR.ipv4);
    command
        .args(["-f", "-C", CONTROL_PORT, "--iscsi", &portal])
        .env("TGT_IPC_SOCKET", directory.join("control"));
    command
}

/// The queue is as deep as ours, so that its window does not decide; the lengths are those of the sample that comes with it.
fn istgt(directory: &Path, disk: &str) -> io::Result<Command> {
    let path = directory.join("istgt.conf");
    let (directory, address) = (directory.display(), FAR.ipv4);
    let text = format!(
        "[Global]
NodeBase \"iqn.2026-11.io.lunette\"
PidFile {directory}/istgt.pid
AuthFile {directory}/istgt.auth
MediaDirectory {directory}
Timeout 30
NopInInterval 20
DiscoveryAuthMethod None
MaxSessions 16
MaxConnections 4
MaxR2T 32
MaxOutstandingR2T 16
FirstBurstLength 262144
MaxBurstLength 1048576
MaxRecvDataSegmentLength 262144
[UnitControl]
AuthMethod None
Portal UC1 127.0.0.1:3261
Netmask 127.0.0.1
[PortalGroup1]
Portal DA1 {address}:{PORT}
[InitiatorGroup1]
InitiatorName \"ALL\"
Netmask ALL
[LogicalUnit1]
TargetName \"istgt\"
Mapping PortalGroup1 InitiatorGroup1
AuthMethod None
UseDigest Auto
UnitType Disk
QueueDepth 128
BlockLength {BLOCK_BYTES}
LUN0 Storage {disk} {DISK_BYTES}
"
    );
    fs::write(&path, text)?;
    fs::write(path.with_extension("auth"), "")?;
    let mut command = command("istgt");
    command.arg("-D").arg("-c").arg(path);
    Ok(command)
}

impl Running {
    fn wait_until_it_listens(&mut self, far: &Namespace) -> Result<(), LabError> {
        let started = Instant::now();
        while far.within(|| TcpStream::connect(Site::address(PORT))).is_err() {
            let ended = self.child.try_wait().map_err(LabError::system("a peer"))?;
            if ended.is_some() || started.elapsed() > START_LIMIT {
                return Err(LabError::NotReady(format!("{} at the far end does not listen", self.peer)));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn set_up_tgtd(&self, disk: &str) -> Result<(), LabError> {
        let (name, lun) = Peer::Tgtd.disk();
        let lun = lun.to_string();
        for arguments in [
            &["--op", "new", "--mode", "target", "--tid", "1", "-T", name][..],
            &["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", &lun, "-b", disk],
            &["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"],
        ] {
            let mut command = command("tgtadm");
            command.args(["-C", CONTROL_PORT, "--lld", "iscsi"]).args(arguments);
            command.env("TGT_IPC_SOCKET", self.directory.path().join("control"));
            tool::run(command, "tgtadm at the far end", tool::LIMIT)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_have_names_and_what_is_none_is_told() {
        for peer in Peer::ALL {
            assert_eq!(peer.to_string().parse(), Ok(peer));
        }
        assert!("scst".parse::<Peer>().is_err_and(|error| error == "there are tgtd, istgt and lio"));
    }
}
