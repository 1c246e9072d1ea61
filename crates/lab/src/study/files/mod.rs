//! File systems that studies work on: ext2 in an image, on an attached disk, or behind a server of files.
//!
//! Whoever works on one is a thread that serves nothing: if what serves the file system is gone, that thread may wait for ever, and it is
//! for another one to end what it waits for. All is mounted in a namespace of its own ([`lunette_wan::isolate_mounts`]), by loop
//! devices that go with their mounts, and served by processes that end with the thread that started them: SIGKILL leaves nothing.

mod attached;
mod client;
mod ext2;
mod server;

use std::fs;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::process::geteuid;

pub(crate) use attached::Attached;
pub(crate) use client::{Client, Directory, Nfs, Smb};
pub(crate) use ext2::{Mounted, make};
pub(crate) use server::{Share, ShareKind};

use super::peer::find;
use crate::LabError;

/// Which users of the machine this process's are.
const USERS: &str = "/proc/self/uid_map";
/// What is run for every one of them, and Debian's package that has it.
const TOOLS: [(&str, &str); 3] = [("mke2fs", "e2fsprogs"), ("mount", "mount"), ("losetup", "mount")];

/// What this machine lacks for file systems of its own; nothing if it lacks nothing.
pub(crate) fn lacks() -> Option<String> {
    let users = fs::read_to_string(USERS).unwrap_or_default();
    if !geteuid().is_root() || !is_whole(&users) {
        return Some("root, and not of a user namespace: nobody else may mount file systems".to_owned());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some(
            "loop devices (/dev/loop-control), which this kernel or container has none of".to_owned(),
        );
    }
    lacks_programs(&TOOLS)
}

/// Whether a map of users (user_namespaces(7)) is that of the first namespace, where every user is himself.
fn is_whole(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// What has to be there for [`Attached`].
pub(crate) fn lacks_fuse() -> Option<String> {
    (!Path::new("/dev/fuse").exists()).then(|| "/dev/fuse: a kernel or container with FUSE".to_owned())
}

/// Which of these programs is not here.
pub(crate) fn lacks_programs(programs: &[(&str, &str)]) -> Option<String> {
    let (program, package) = programs.iter().find(|(program, _)| find(program).is_none())?;
    Some(format!("{program} (Debian: apt-get install {package})"))
}

/// Does something in a thread of its own, and what `give_up` does if that has not ended in time: it is to end what the thread
/// waits for.
pub(crate) fn watched<T: Send>(
    patience: Duration,
    work: impl FnOnce() -> T + Send,
    give_up: impl FnOnce(),
) -> Result<T, LabError> {
    thread::scope(|scope| {
        let (tell, hear) = mpsc::channel();
        let worker = scope.spawn(move || {
            let done = work();
            // Nobody has to listen.
            let _ = tell.send(());
            done
        });
        if hear.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            give_up();
        }
        worker.join().map_err(|_| LabError::Panicked)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_ever_is_woken_by_who_gives_up() {
        let (end, ended) = mpsc::channel::<()>();
        let work = move || ended.recv().is_err();
        assert_eq!(watched(Duration::from_millis(1), work, move || drop(end)).ok(), Some(true));
        let worked = watched(Duration::from_secs(3600), || 7, || panic!("it was in time"));
        assert_eq!(worked.ok(), Some(7));
    }

    #[test]
    fn root_of_a_user_namespace_is_not_root() {
        assert!(is_whole("         0          0 4294967295\n"));
        for map in ["", "         0          0          1\n", "0 100000 65536\n", "0 0 1000\n1000 1000 1\n"] {
            assert!(!is_whole(map), "{map}");
        }
    }

    #[test]
    fn what_is_not_here_is_named_with_its_package() {
        let lacking = lacks_programs(&[("sh", "dash"), ("lunette-no-such-program", "lunette-none")]);
        assert_eq!(
            lacking.as_deref(),
            Some("lunette-no-such-program (Debian: apt-get install lunette-none)")
        );
        assert_eq!(lacks_programs(&[("sh", "dash")]), None);
    }
}
