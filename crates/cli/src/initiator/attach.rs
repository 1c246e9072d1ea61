//! `lunette attach`: a disk for programs that know no iSCSI, until it is detached.

mod signals;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use clap::{ArgGroup, Args};
use lunette_attach::file::{self, Mount, Refresher, Unmounter};
use lunette_attach::nbd::{Address, DEPTH_MAX, Server, Stopper, export_of};
use lunette_attach::{Disk, DiskError, DiskOptions, OpenError, Resize};
use lunette_initiator::blocking::Session;
use lunette_initiator::{EngineEvent, TargetUrl};
use lunette_lab::Negotiated;
use serde::Serialize;

use super::access::{AccessOptions, Ways};
use super::attached::{Attached, End, Socket};
use super::detach::canonical;
use super::options::URL_HELP;
use super::report::tell;
use super::session::{helped, overdue, say_of_path};
use crate::banner::{printable, size};
use crate::failure::{Failure, say};
use crate::log::{self, LogFilter};

/// How often is looked whether something has happened to the session.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Serialize)]
struct Ready {
    url: String,
    file: Option<String>,
    nbd: Option<String>,
    /// What `lunette detach` knows it by.
    #[serde(skip)]
    place: String,
    size_bytes: u64,
    block_bytes: u32,
    read_only: bool,
    pid: u32,
    /// What its first session has agreed on.
    negotiated: Negotiated,
}

/// How a disk is shown.
enum Face {
    File(Mount),
    Nbd(Server),
}

/// What ends that, and tells of another size.
enum Handle {
    File(Mutex<Unmounter>, Refresher),
    Nbd(Stopper),
}

/// What the threads share.
struct Shared {
    disk: Arc<Disk>,
    handle: Handle,
    ready: Ready,
    json: bool,
    is_detached: AtomicBool,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("face").required(true))]
pub(crate) struct AttachOptions {
    /// The disk
    #[arg(value_name = "URL", long_help = URL_HELP)]
    pub(crate) url: TargetUrl,
    #[command(flatten)]
    pub(crate) access: AccessOptions,
    /// Mount a directory here with the disk as the file `disk` in it (FUSE); umount ends it, too
    #[arg(value_name = "DIRECTORY", group = "face")]
    pub(crate) directory: Option<PathBuf>,
    /// Serve the disk over NBD at this IP address and port, or at unix:PATH. There is no authentication: whoever reaches it
    /// has the disk
    #[arg(long, value_name = "ADDRESS", group = "face")]
    pub(crate) nbd: Option<Address>,
    /// The NBD export's name; clients that give none get this one, too
    #[arg(long, value_name = "NAME", default_value = "disk", conflicts_with = "directory")]
    pub(crate) export_name: String,
    /// Change nothing
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Read nothing before it is asked for, as where several hosts write to the disk
    #[arg(long)]
    pub(crate) no_read_ahead: bool,
    /// Answer each write when the disk has answered it, even if the disk has a write cache
    #[arg(long)]
    pub(crate) no_write_behind: bool,
    /// Send each request as it is, also where neighbouring ones wait to be sent
    #[arg(long)]
    pub(crate) no_merge: bool,
    /// Requests that are carried out at once, of each NBD client
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u32).range(1..=DEPTH_MAX as i64))]
    pub(crate) depth: u32,
    /// What is logged: off, error, warn, info, debug or trace, or a filter such as warn,lunette_attach=debug
    #[arg(long, value_name = "FILTER", default_value = "warn")]
    pub(crate) log: LogFilter,
    /// Tell as one line of JSON when and where the disk is there, and once more whenever it has grown
    #[arg(long)]
    pub(crate) json: bool,
}

/// Attaches a disk, and returns when it is detached and everything is stable.
pub(crate) fn run(options: &AttachOptions) -> Result<(), Failure> {
    let heeded = signals::heed()?;
    log::start(&options.log);
    let (disk, negotiated) = open(options)?;
    let disk = Arc::new(disk);
    heeded.opened();
    let shown = show(options, &disk, negotiated);
    let (face, handle, ready) = match shown {
        Ok(shown) => shown,
        Err(failure) => {
            drop(heeded);
            // Nothing was written.
            let _ = disk.close();
            return Err(failure);
        }
    };
    let (json, is_detached) = (options.json, AtomicBool::new(false));
    let shared = Arc::new(Shared { disk, handle, ready, json, is_detached });
    heeded.shown(Arc::clone(&shared));
    let socket = answer_detach(&shared);
    tell(options.json, &shared.ready, |ready| {
        let how = if ready.read_only { ", read-only" } else { "" };
        let place = ready.file.as_ref().or(ready.nbd.as_ref()).map_or("", String::as_str);
        format!("ready: {} ({}{how}) as {}\n", ready.url, size(ready.size_bytes), printable(place))
    })?;
    // Behind the line that says where the disk is.
    watch(Arc::clone(&shared))?;
    let served = match face {
        Face::File(mount) => mount.run(),
        Face::Nbd(server) => server.run(),
    };
    let served = served.map_err(|error| Failure::new("the disk could not be shown any longer", &error));
    let result = shared.finish().and(served);
    if let Some(socket) = socket {
        socket.close(&end_of(&result));
    }
    result
}

/// How it went, for who has asked for the end.
fn end_of(result: &Result<(), Failure>) -> End {
    let Err(failure) = result else { return End { status: 0, error: None, help: None } };
    let (status, help) = failure.status_and_help();
    End { status, error: Some(failure.to_string()), help: help.map(ToOwned::to_owned) }
}

/// Lets `lunette detach` find this process. Without that, signals end it as ever.
fn answer_detach(shared: &Arc<Shared>) -> Option<Arc<Socket>> {
    let ready = &shared.ready;
    let what = Attached { url: ready.url.clone(), place: ready.place.clone(), pid: ready.pid };
    let (socket, shared) = match Socket::bind() {
        Ok(socket) => (Arc::new(socket), Arc::clone(shared)),
        Err(error) => {
            tracing::warn!(%error, "`lunette detach` will not find this process; SIGTERM detaches it");
            return None;
        }
    };
    let served = Arc::clone(&socket);
    let run = move || {
        served.serve(&what, || {
            shared.is_detached.store(true, Ordering::SeqCst);
            shared.stop();
        });
    };
    // Without a thread nobody is answered, which is the same.
    spawn("detach", run).ok().map(|()| socket)
}

fn open(options: &AttachOptions) -> Result<(Disk, Negotiated), Failure> {
    let session = match options.access.ways(&options.url)? {
        Ways::One(session) => Session::connect(*session),
        Ways::Several(paths) => Session::connect_paths(paths),
    };
    let session = session.map_err(|error| Failure::initiator(&error))?;
    let negotiated = Negotiated::of_session(session.handle());
    let disk = DiskOptions {
        read_only: options.read_only,
        read_ahead: !options.no_read_ahead,
        write_behind: !options.no_write_behind,
        merge: !options.no_merge,
    };
    let disk = Disk::open(session, options.url.lun, disk).map_err(|error| match error {
        OpenError::Command(error) => Failure::command(&error),
        OpenError::Probe(error) => Failure::scsi(format!("{}: {error}", options.url), None),
        OpenError::NoDisk(message) => Failure::scsi(format!("{}: {message}", options.url), None),
    })?;
    Ok((disk, negotiated))
}

/// Shows the disk as options say.
fn show(
    options: &AttachOptions,
    disk: &Arc<Disk>,
    negotiated: Negotiated,
) -> Result<(Face, Handle, Ready), Failure> {
    let mut ready = Ready {
        url: options.url.to_string(),
        file: None,
        nbd: None,
        place: String::new(),
        size_bytes: disk.size_bytes(),
        block_bytes: disk.block_bytes(),
        read_only: disk.is_read_only(),
        pid: std::process::id(),
        negotiated,
    };
    match (&options.directory, &options.nbd) {
        (Some(directory), _) => {
            // Before it is mounted: afterwards the answer would have to come from here.
            ready.place =
                directory.canonicalize().unwrap_or_else(|_| directory.clone()).display().to_string();
            let mut mount = Mount::new(Arc::clone(disk), directory, options.depth as usize)
                .map_err(|error| not_mounted(directory, &error))?;
            ready.file = Some(directory.join(file::NAME).display().to_string());
            let handle = Handle::File(Mutex::new(mount.unmounter()), mount.refresher());
            Ok((Face::File(mount), handle, ready))
        }
        (None, Some(address)) => {
            let server = listen(options, disk, address)?;
            ready.nbd = Some(server.address().uri());
            ready.place = match server.address() {
                Address::Unix(_) => canonical(&server.address().to_string()),
                Address::Internet(address) => address.to_string(),
            };
            let handle = Handle::Nbd(server.stopper());
            Ok((Face::Nbd(server), handle, ready))
        }
        (None, None) => Err(Failure::usage("give a directory, or --nbd and an address")),
    }
}

fn listen(options: &AttachOptions, disk: &Arc<Disk>, address: &Address) -> Result<Server, Failure> {
    let description = format!("{} {}", options.url, disk.facts().serial);
    let export = export_of(disk, &options.export_name, &description)
        .map_err(|error| Failure::usage(error.to_string()))?;
    Server::listen(Arc::clone(disk), export, address, options.depth as usize)
        .map_err(|error| not_listening(address, &error))
}

fn not_listening(address: &Address, error: &io::Error) -> Failure {
    let failure = Failure::new(format!("cannot listen on {address}"), error);
    match address {
        Address::Unix(_) if error.kind() == io::ErrorKind::AddrInUse => {
            failure.with_help("another process serves it; if none does, remove the file")
        }
        _ => failure,
    }
}

fn not_mounted(directory: &Path, error: &io::Error) -> Failure {
    let failure = Failure::new(format!("cannot mount at {}", directory.display()), error);
    match error.kind() {
        io::ErrorKind::NotFound => failure.with_help(
            "make the directory, and see that fusermount3 (Debian's fuse3) and /dev/fuse are there",
        ),
        _ => failure.with_help("give an empty directory of yours; --nbd ADDRESS does without FUSE"),
    }
}

impl Shared {
    /// Begins to end.
    fn stop(&self) {
        match &self.handle {
            Handle::Nbd(stopper) => stopper.stop(),
            Handle::File(unmounter, _) => {
                let result = unmounter.lock().unwrap_or_else(PoisonError::into_inner).unmount();
                if let Err(error) = result {
                    say(&format!("lunette: cannot unmount: {error}"));
                }
            }
        }
    }

    /// Tells everybody that the disk has another size, as far as they can be told.
    fn resized(&self, resize: Resize) {
        let [before, now] = [resize.before_bytes, resize.now_bytes].map(size);
        let served = self.disk.size_bytes();
        if resize.now_bytes < served {
            let what = "what was behind its end is gone, and an error to read or write";
            return say(&format!(
                "lunette: the disk has shrunk from {before} to {now}: {what}; detach it, and look at the target's configuration"
            ));
        }
        let what = match &self.handle {
            Handle::File(_, refresher) => match refresher.size_changed() {
                Ok(()) => "its file has that size now; of a loop device, losetup --set-capacity".to_owned(),
                Err(error) => format!("its file shows that after it was attached anew: {error}"),
            },
            Handle::Nbd(stopper) => {
                stopper.resize(served);
                "NBD clients have that size when they connect again".to_owned()
            }
        };
        say(&format!("lunette: the disk has grown from {before} to {now}; {what}"));
        // Nobody may listen any more, and the disk is there all the same.
        let ready = Ready { size_bytes: served, ..self.ready.clone() };
        let _ = tell(self.json, &ready, |_| String::new());
    }

    /// Has everything stable, and says what is not.
    fn finish(&self) -> Result<(), Failure> {
        let is_lost = self.disk.is_lost();
        let closed = self.disk.close();
        if self.disk.is_exchanged() {
            let message = "another disk is in its place, so that what was not flushed before is lost";
            return Err(Failure::scsi(
                message.to_owned(),
                Some("look at the target's configuration".to_owned()),
            ));
        }
        match closed {
            Err(DiskError::GhostLeft(message)) => Err(Failure::session(message)),
            Err(error) if !is_lost => {
                let message = format!(
                    "the last flush failed, so that what was not flushed before may be lost: {error}"
                );
                Err(Failure::scsi(message, Some("look at the target's log and at the network".to_owned())))
            }
            Err(error) => Err(Failure::session(error.to_string())),
            Ok(()) if is_lost && !self.is_detached.load(Ordering::SeqCst) => {
                Err(Failure::session("the session is lost for good".to_owned()))
            }
            Ok(()) => Ok(()),
        }
    }
}

/// Tells what happens to the session, and ends when it is lost for good or the disk is.
fn watch(shared: Arc<Shared>) -> Result<(), Failure> {
    let run = move || {
        loop {
            for event in shared.disk.events() {
                match event {
                    EngineEvent::Reconnected { portal, after } => {
                        let seconds = after.as_secs_f64();
                        say(&format!("lunette: logged in again at {portal} after {seconds:.1} s"));
                    }
                    EngineEvent::Overdue { lun, commands, waited, remedy } => {
                        say(&overdue(lun, commands, waited, remedy));
                    }
                    EngineEvent::Ended { remedy, .. } => say(&helped(remedy)),
                    EngineEvent::Path { portal, news, .. } => say_of_path(&portal, &news),
                    EngineEvent::UnitChanged { what, .. } => {
                        say(&format!("lunette: the disk is not the one that it was: {what}"));
                    }
                    EngineEvent::Over { reason } if !shared.is_detached.load(Ordering::SeqCst) => {
                        say(&format!("lunette: the session is over: {reason}"));
                    }
                    _ => {}
                }
            }
            match shared.disk.look_at_size() {
                Ok(resize) => resize.into_iter().for_each(|resize| shared.resized(resize)),
                Err(error) => tracing::warn!(%error, "the disk has another size, and does not say which"),
            }
            if let Err(error) = shared.disk.look_at_identity() {
                tracing::warn!(%error, "the disk tells something else about itself");
            }
            if shared.disk.is_lost() || shared.disk.is_exchanged() {
                return shared.stop();
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
