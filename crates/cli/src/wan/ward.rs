//! The process that ends who is left at the ends of a network when the one that made it has gone, and `lunette wan clean`.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use lunette_lab::remove_left;
use lunette_wan::{Emulator, Leftover, WARD, end_leftovers, keep_watch};
use rustix::process::{getppid, test_kill_process};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{json, print};
use crate::failure::Failure;

/// How long a process that was killed may take to be gone, and how often is looked.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Has a process of this program watch over a network.
pub(super) fn watch_over(emulator: &mut Emulator) -> Result<(), Failure> {
    let failed = |error: &dyn std::error::Error| Failure::network("nobody can watch over the network", error);
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    emulator.set_warden(Command::new(program).args(WARD)).map_err(|error| failed(&error))
}

/// What a ward is told.
#[derive(Debug, Args)]
pub(crate) struct WardOptions {
    /// Where files of the lab are, which are removed if it was killed
    #[arg(long, value_name = "DIRECTORY")]
    sweep: Vec<PathBuf>,
}

/// Watches over a network, whose ends come by the standard input.
pub(super) fn ward(options: &WardOptions) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::network("this is started by other commands", &error);
    // Its time has come when the network has gone, and at no other one.
    let _ignored = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(failed)?;
    let line = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    // What this process keeps of it besides would not matter: the other side is what ends.
    let owner = getppid();
    let is_in_order = keep_watch(UnixStream::from(line)).map_err(failed)?;
    if is_in_order || options.sweep.is_empty() {
        return Ok(());
    }
    // Its files are known by its number, which is gone a moment after it.
    let began = Instant::now();
    while owner.is_some_and(|owner| test_kill_process(owner).is_ok()) && began.elapsed() < PATIENCE {
        thread::sleep(LOOK_INTERVAL);
    }
    options.sweep.iter().for_each(|directory| remove_left(directory));
    Ok(())
}

/// What is told of a network that is gone.
#[derive(Serialize)]
pub(super) struct Left {
    /// Such a network has no name any more.
    name: Option<String>,
    link: Option<String>,
    /// The process that carried its packets, which is gone.
    pub(super) pid: u32,
    up_for_s: Option<u64>,
    /// Who is still in it.
    pub(super) processes: Vec<u32>,
}

impl From<Leftover> for Left {
    fn from(leftover: Leftover) -> Self {
        let Leftover { owner, processes } = leftover;
        Self { name: None, link: None, pid: owner, up_for_s: None, processes }
    }
}

/// Ends what networks have left that are gone.
pub(super) fn clean(as_json: bool) -> Result<(), Failure> {
    let (found, still_there) = end_leftovers();
    let still_there: Vec<u32> = still_there.into_iter().flat_map(|leftover| leftover.processes).collect();
    let mut ended: Vec<Left> = found.into_iter().map(Left::from).collect();
    ended.iter_mut().for_each(|left| left.processes.retain(|pid| !still_there.contains(pid)));
    ended.retain(|left| !left.processes.is_empty());
    let line = |left: &Left| {
        format!("ended, of the network of process {}: {}\n", left.pid, super::manage::listed(&left.processes))
    };
    print(&if as_json { json(&ended)? } else { ended.iter().map(line).collect::<String>() })?;
    if still_there.is_empty() {
        return Ok(());
    }
    let pids = io::Error::other(super::manage::listed(&still_there));
    Err(Failure::network("some of the processes do not end, killed or not", &pids))
}
