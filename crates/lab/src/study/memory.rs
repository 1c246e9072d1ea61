//! A bound on the memory of a target, page cache included: a control group of the kernel's (cgroups(7), version 2 or 1).
//!
//! A control group outlives who has made it. So it is removed by a shell that waits until this process has gone or needs it no more.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use lunette_wan::spawn_apart;

/// What the target of the file server of Fujita and Ogawara had for its page cache, and ours has for everything, in bytes.
pub(crate) const SERVER_BYTES: u64 = 896 << 20;

/// Where the kernel shows control groups.
const ROOT: &str = "/sys/fs/cgroup";
/// Waits for the end of its input, and removes a directory when the last process in it is gone.
const REMOVE: &str = "cat >/dev/null; for i in $(seq 300); do [ -d \"$1\" ] || exit; rmdir \"$1\" 2>/dev/null && exit; \
                      sleep 0.1; done";

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A group of processes with so much memory at most. What they had read from disks before they came counts elsewhere.
#[derive(Debug)]
pub(crate) struct MemoryBound {
    directory: PathBuf,
    remover: Child,
}

/// The directory for groups, and the name of the file with the bound.
fn controller() -> Option<(PathBuf, &'static str)> {
    let root = Path::new(ROOT);
    let given = fs::read_to_string(root.join("cgroup.subtree_control")).unwrap_or_default();
    if given.split_whitespace().any(|name| name == "memory") {
        return Some((root.to_owned(), "memory.max"));
    }
    let first = root.join("memory");
    first.join("memory.limit_in_bytes").exists().then_some((first, "memory.limit_in_bytes"))
}

impl MemoryBound {
    /// Makes one; nothing where the kernel has no such groups, or lets this process make none.
    pub(crate) fn make(bytes: u64) -> Option<Self> {
        Self::within(controller()?, bytes)
    }

    fn within((parent, file): (PathBuf, &str), bytes: u64) -> Option<Self> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = parent.join(format!("lunette-lab-{}-{number}", std::process::id()));
        let mut shell = Command::new("sh");
        shell.args(["-c", REMOVE, "sh"]).arg(&directory);
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // An interrupt of the terminal is not for it, nor what ends all that is left in a network.
        // Who may make no namespace has no network either.
        let remover = spawn_apart(shell.process_group(0)).or_else(|_| shell.spawn());
        // Before there is anything to be removed.
        let bound = Self { directory, remover: remover.ok()? };
        fs::create_dir(&bound.directory).ok()?;
        fs::write(bound.directory.join(file), bytes.to_string()).ok()?;
        Some(bound)
    }

    /// Whether this machine lets this process make one, which is found out once.
    pub(crate) fn is_possible() -> bool {
        static IS_POSSIBLE: OnceLock<bool> = OnceLock::new();
        *IS_POSSIBLE.get_or_init(|| Self::make(1 << 30).is_some())
    }

    /// Takes a process in.
    pub(crate) fn take_in(&self, process: u32) -> io::Result<()> {
        fs::write(self.directory.join("cgroup.procs"), process.to_string())
    }
}

impl Drop for MemoryBound {
    fn drop(&mut self) {
        drop(self.remover.stdin.take());
        // What it cannot remove, somebody is in who was taken in by others.
        let _ = self.remover.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_group_is_removed_after_its_last_process() {
        let Some(bound) = MemoryBound::make(64 << 20) else {
            return lunette_skip::record_lacking("a memory controller of control groups");
        };
        let mut waiting = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat");
        bound.take_in(waiting.id()).expect("a process in the group");
        let groups = fs::read_to_string(format!("/proc/{}/cgroup", waiting.id())).expect("its groups");
        let directory = bound.directory.clone();
        assert!(groups.contains(&*directory.file_name().expect("a name").to_string_lossy()), "{groups}");
        drop(waiting.stdin.take());
        assert!(waiting.wait().expect("its end").success());
        drop(bound);
        assert!(!directory.exists());
    }

    #[test]
    fn nobody_waits_for_a_group_that_was_never_made() {
        let parent = tempfile::tempdir().expect("a directory");
        // Nobody makes a directory in a file, whoever he is.
        let file = parent.path().join("file");
        fs::write(&file, "").expect("a file");
        assert!(MemoryBound::within((file.clone(), "memory.max"), 64 << 20).is_none());
        assert_eq!(fs::read_dir(parent.path()).expect("a directory").count(), 1);
        // Whoever sleeps leaves something.
        let (sleep, slept) = (parent.path().join("sleep"), parent.path().join("slept"));
        fs::write(&sleep, format!("#!/bin/sh\necho >>{}\n", slept.display())).expect("a program");
        fs::set_permissions(&sleep, Permissions::from_mode(0o755)).expect("it is run");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut remover = Command::new("sh");
        remover.args(["-c", REMOVE, "sh"]).arg(file.join("group")).stdin(Stdio::null());
        remover.env("PATH", format!("{}:{path}", parent.path().display()));
        assert!(remover.status().is_ok_and(|status| status.code().is_some()));
        assert!(!slept.exists(), "it has waited for what is not there");
    }
}
