//! Who is in a network, by the kernel's word for each process, and how they are ended.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, pidfd_send_signal};

/// How long processes have to end when they are asked to, before they are killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long killed ones are waited for. One that waits for a disk may stay for longer.
const FAREWELL: Duration = Duration::from_secs(5);

/// How often is looked who is left, in the first second and afterwards.
const STEP: Duration = Duration::from_millis(10);
const LATER_STEP: Duration = Duration::from_millis(100);

/// A file of a process in `/proc`.
pub(crate) fn file(pid: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{name}"))
}

/// The processes of this machine, as far as it shows them.
pub(crate) fn processes() -> impl Iterator<Item = u32> {
    let pid = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    fs::read_dir("/proc").into_iter().flatten().filter_map(pid)
}

/// The inode number of a process's network namespace, as far as this user may know it. One that has ended is in none.
pub(crate) fn network_of(pid: u32) -> Option<u64> {
    fs::metadata(file(pid, "ns/net")).ok().map(|metadata| metadata.ino())
}

/// The processes in one of these network namespaces, which are told by their inode numbers, in order; as far as this user may know.
#[must_use]
pub fn inhabitants(namespaces: &[u64]) -> Vec<u32> {
    let lives_there = |pid: &u32| network_of(*pid).is_some_and(|network| namespaces.contains(&network));
    let mut pids: Vec<u32> = processes().filter(lives_there).collect();
    pids.sort_unstable();
    pids
}

/// Asks all processes that are found to end, and kills those that have not in ten seconds; for as long as more are found. This process and
/// its parent are left out. What is found is asked for again before each signal, so that a number that has another process
/// meanwhile is nobody's.
pub(crate) fn end_all(find: impl Fn() -> Vec<u32>, is_found: impl Fn(u32) -> bool) {
    let own = [Some(getpid()), getppid()].map(|pid| pid.map(|pid| pid.as_raw_nonzero().get().unsigned_abs()));
    let began = Instant::now();
    let mut asked = HashSet::new();
    loop {
        let left: Vec<u32> = find().into_iter().filter(|pid| !own.contains(&Some(*pid))).collect();
        if left.is_empty() || began.elapsed() > PATIENCE + FAREWELL {
            return;
        }
        let is_over = began.elapsed() > PATIENCE;
        for pid in left {
            if is_over {
                signal(pid, Signal::KILL, &is_found);
            } else if asked.insert(pid) {
                signal(pid, Signal::TERM, &is_found);
            }
        }
        thread::sleep(if began.elapsed() < Duration::from_secs(1) { STEP } else { LATER_STEP });
    }
}

fn signal(pid: u32, signal: Signal, is_found: impl Fn(u32) -> bool) {
    let pid_of = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // The descriptor is of one process, whatever becomes of its number.
    let Some(Ok(process)) = pid_of.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else { return };
    if is_found(pid) {
        // Who has ended meanwhile, or is another user's, is not for us.
        let _ = pidfd_send_signal(&process, signal);
    }
}
