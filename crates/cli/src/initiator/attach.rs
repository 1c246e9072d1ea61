//! `lunette attach`: a disk for programs that know no iSCSI, until it is detached.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lunette_attach::nbd::{Server, Stopper, export_of};
use lunette_attach::{Disk, DiskError, OpenError};
use lunette_initiator::EngineEvent;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::options::AttachOptions;
use super::report::tell;
use crate::banner::{printable, size};
use crate::failure::{Failure, say};
use crate::log;

/// How often is looked whether something has happened to the session.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The status that a second signal ends with: what was not flushed may not be stable.
const CUT_OFF: i32 = 1;

#[derive(Debug, Serialize)]
struct Ready {
    url: String,
    nbd: String,
    size_bytes: u64,
    block_bytes: u32,
    read_only: bool,
    pid: u32,
}

/// Attaches a disk, and returns when it is detached and everything is stable.
pub(crate) fn run(options: &AttachOptions) -> Result<(), Failure> {
    // Before the login, so that a signal during it is not lost.
    let signals =
        Signals::new([SIGTERM, SIGINT]).map_err(|error| Failure::new("cannot wait for signals", &error))?;
    log::start(&options.log);
    let disk = Arc::new(open(options)?);
    let description = format!("{} {}", options.url, disk.facts().serial);
    let server = export_of(&disk, &options.export_name, &description)
        .map_err(|error| Failure::usage(error.to_string()))
        .and_then(|export| {
            Server::listen(Arc::clone(&disk), export, &options.nbd, options.depth as usize)
                .map_err(|error| Failure::new(format!("cannot listen on {}", options.nbd), &error))
        });
    let server = match server {
        Ok(server) => server,
        Err(failure) => {
            // Nothing was written.
            let _ = disk.close();
            return Err(failure);
        }
    };
    let is_detached = Arc::new(AtomicBool::new(false));
    heed(signals, server.stopper(), Arc::clone(&is_detached))?;
    watch(Arc::clone(&disk), server.stopper(), Arc::clone(&is_detached))?;
    tell(options.json, &ready(options, &disk, &server), |ready| {
        let how = if ready.read_only { ", read-only" } else { "" };
        format!("ready: {} ({}{how}) as {}\n", ready.url, size(ready.size_bytes), printable(&ready.nbd))
    })?;
    let served = server.run();
    finish(&disk, is_detached.load(Ordering::SeqCst))?;
    served.map_err(|error| Failure::new("cannot serve NBD", &error))
}

fn open(options: &AttachOptions) -> Result<Disk, Failure> {
    let mut session = options.url.options();
    session.timing.recovery = Duration::from_secs(options.recovery.into());
    Disk::open(session, options.url.lun, options.read_only).map_err(|error| match error {
        OpenError::Session(error) => Failure::initiator(&error),
        OpenError::Command(error) => Failure::command(&error),
        OpenError::Probe(error) => Failure::scsi(format!("{}: {error}", options.url), None),
        OpenError::NoDisk(message) => Failure::scsi(format!("{}: {message}", options.url), None),
    })
}

fn ready(options: &AttachOptions, disk: &Disk, server: &Server) -> Ready {
    Ready {
        url: options.url.to_string(),
        nbd: server.address().uri(),
        size_bytes: disk.size_bytes(),
        block_bytes: disk.block_bytes(),
        read_only: disk.is_read_only(),
        pid: std::process::id(),
    }
}

/// Has everything stable, and says what is not.
fn finish(disk: &Disk, is_detached: bool) -> Result<(), Failure> {
    let lost = disk.is_lost();
    match disk.close() {
        Err(error) if !lost => {
            let message =
                format!("the last flush failed, so that what was not flushed before may be lost: {error}");
            let unchecked = matches!(error, DiskError::Io(_));
            let help = unchecked.then(|| "look at the target's log and at the network".to_owned());
            Err(Failure::scsi(message, help))
        }
        _ if lost && !is_detached => Err(Failure::session("the session is lost for good".to_owned())),
        Err(error) => Err(Failure::session(error.to_string())),
        Ok(()) => Ok(()),
    }
}

/// Detaches at the first signal and ends at the second.
fn heed(mut signals: Signals, stopper: Stopper, is_detached: Arc<AtomicBool>) -> Result<(), Failure> {
    let run = move || {
        for _ in &mut signals {
            if is_detached.swap(true, Ordering::SeqCst) {
                say("lunette: ending at once; what was not flushed may be lost");
                std::process::exit(CUT_OFF);
            }
            say("lunette: detaching; a second signal ends at once");
            stopper.stop();
        }
    };
    spawn("signals", run)
}

/// Tells what happens to the session, and ends when it is lost for good.
fn watch(disk: Arc<Disk>, stopper: Stopper, is_detached: Arc<AtomicBool>) -> Result<(), Failure> {
    let run = move || {
        loop {
            for event in disk.events() {
                match event {
                    EngineEvent::Reconnected { portal, after } => {
                        let seconds = after.as_secs_f64();
                        say(&format!("lunette: logged in again at {portal} after {seconds:.1} s"));
                    }
                    EngineEvent::Over { reason } if !is_detached.load(Ordering::SeqCst) => {
                        say(&format!("lunette: the session is over: {reason}"));
                    }
                    _ => {}
                }
            }
            if disk.is_lost() {
                return stopper.stop();
            }
            thread::sleep(WATCH_INTERVAL);
        }
    };
    spawn("watch", run)
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let spawned = thread::Builder::new().name(name.into()).spawn(run);
    spawned.map(drop).map_err(|error| Failure::new("cannot start a thread", &error))
}
