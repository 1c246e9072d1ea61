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

/// What this machine lacks for file systems of its own, with FUSE where that is needed, and for these programs; nothing if it lacks
/// nothing.
pub(crate) fn lacks(needs_fuse: bool, programs: &[(&str, &str)]) -> Option<String> {
    let users = fs::read_to_string(USERS).unwrap_or_default();
    let is_root = geteuid().is_root() && is_whole(&users);
    let has = |path: &str| Path::new(path).exists();
    let all = [
        (!is_root)
            .then(|| "root, and not of a user namespace: nobody else may mount file systems".to_owned()),
        (!has("/dev/loop-control")).then(|| {
            "loop devices (/dev/loop-control), which this kernel or container has none of".to_owned()
        }),
        (needs_fuse && !has("/dev/fuse")).then(|| "/dev/fuse: a kernel or container with FUSE".to_owned()),
        lacks_programs(&[&TOOLS, programs].concat()),
    ];
    joined(all)
}

/// Whether a map of users (user_namespaces(7)) is that of the first namespace, where every user is himself.
fn is_whole(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Which of these programs are not here, with what installs them; each stands beside Debian's package that has it.
pub(crate) fn lacks_programs(programs: &[(&str, &str)]) -> Option<String> {
    let (mut missing, mut packages) = (Vec::new(), Vec::new());
    for &(program, package) in programs.iter().filter(|(program, _)| find(program).is_none()) {
        missing.push(program);
        if !packages.contains(&package) {
            packages.push(package);
        }
    }
    let told = || format!("{} (Debian: apt-get install {})", missing.join(", "), packages.join(" "));
    (!missing.is_empty()).then(told)
}

/// All that is lacking, in words.
pub(crate) fn joined(lacks: impl IntoIterator<Item = Option<String>>) -> Option<String> {
    let all: Vec<String> = lacks.into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join("; "))
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
        let none = |name| (name, "lunette-none");
        let programs = [
            ("sh", "dash"),
            none("lunette-no-such-program"),
            none("lunette-nor-this"),
            ("lunette-or-this", "other"),
        ];
        let told = "lunette-no-such-program, lunette-nor-this, lunette-or-this (Debian: apt-get install lunette-none other)";
        assert_eq!(lacks_programs(&programs).as_deref(), Some(told));
        assert_eq!(lacks_programs(&[("sh", "dash")]), None);
        // What else is missing, for the user is who he is, comes before.
        let lacking = lacks(true, &programs[1..2]).unwrap_or_default();
        assert!(
            lacking.contains("lunette-no-such-program") && lacking.ends_with(" lunette-none)"),
            "{lacking}"
        );
    }
}
