//! The server as a whole: start, drain, stop.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use lunette_block::{BufferPool, LargePages, Store, Volume};
use lunette_scsi::Domain;
use rustix::fs::Access;
use rustix::thread::sched_getaffinity;
use tracing::{error, info, warn};

use crate::admission::{Changing, Discovery};
use crate::attempts::Attempts;
use crate::config::{Config, Reactors};
use crate::crowd::Crowd;
use crate::failure::{StartError, StopError, UnitPlace};
use crate::handle::ServerHandle;
use crate::isns::Registrars;
use crate::kept_reads::KeptReads;
use crate::listener::{Door, Listener};
use crate::mailbox::Mailbox;
use crate::portals::{Portal, Portals};
use crate::reactor::{Message, Reactor};
use crate::recorder::{Recorder, Recording};
use crate::registry::Registry;
use crate::retained::RetainedSessions;
use crate::saver::Saver;
use crate::surroundings::Surroundings;
use crate::units::{ServedTarget, TargetReport};
use crate::upkeep::{self, Upkeep};

/// For how long the states of units may still be stored when everything else has ended.
const SAVES_MAX: Duration = Duration::from_secs(10);

/// What all threads of a server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) targets: Vec<Arc<ServedTarget>>,
    /// The volumes of all targets by the NAA identifiers of their units, of which no two are the same.
    pub(crate) volumes: HashMap<u64, Arc<Volume>>,
    /// Where this server listens, with real ports.
    pub(crate) portals: Portals,
    pub(crate) registry: Registry,
    pub(crate) discovery: Changing<Discovery>,
    /// What holds of the configuration, with all that was changed since the start.
    pub(crate) in_force: Mutex<Config>,
    /// What of it logins and sessions need often: MaxRecvDataSegmentLength in bytes.
    pub(crate) segment_max: AtomicU32,
    /// Failed logins of late.
    pub(crate) attempts: Mutex<Attempts>,
    pub(crate) retained: RetainedSessions,
    pub(crate) kept_reads: KeptReads,
    pub(crate) reactors: Vec<Arc<Mailbox<Message>>>,
    /// That of all devices.
    pub(crate) domain: Arc<Domain>,
    pub(crate) pool: BufferPool,
    pub(crate) saver: Saver,
    /// Where reads and writes are recorded, if they are.
    pub(crate) recorder: Option<Recorder>,
    pub(crate) upkeep: Arc<Mailbox<upkeep::Message>>,
    /// Each wakes the thread of one iSNS server.
    pub(crate) isns_stops: Arc<[Mailbox<()>]>,
    pub(crate) stop_now: AtomicBool,
    /// Reactors that have nothing left since they were told to drain.
    pub(crate) reactors_idle: AtomicUsize,
    pub(crate) crowd: Crowd,
}

/// A running target.
#[derive(Debug)]
pub struct Server {
    handle: ServerHandle,
    portals: Vec<SocketAddr>,
    reports: Vec<TargetReport>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    upkeep: Upkeep,
    /// Kept for its end.
    registrars: Registrars,
    /// And so is this.
    recording: Option<Recording>,
}

impl Server {
    /// Opens all volumes, binds all portals, starts all threads.
    ///
    /// # Errors
    /// [`StartError`] names the portal or logical unit at fault and what to do.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        Self::start_layered(config, |_, store| store)
    }

    /// Like [`Server::start`], with layers between stores and engines: fault injection, counting. `layer` gets each
    /// logical unit's number and store.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_layered(
        config: &Config,
        layer: impl Fn(u16, Arc<dyn Store>) -> Arc<dyn Store>,
    ) -> Result<Self, StartError> {
        // Each image takes a descriptor already.
        raise_descriptor_limit();
        // The cheapest failure first: a port that is taken must not create an image.
        let doors = config.portals.iter().map(|at| Door::open(at.address)).collect::<Result<Vec<_>, _>>()?;
        let portals = doors.iter().map(|door| door.socket.local_addr()).collect::<Result<Vec<_>, _>>()?;
        let state_directory = config.state_directory.as_deref();
        state_directory.map(make_state_directory).transpose()?;
        let trace_directory = config.trace_directory.as_deref();
        let domain = Arc::new(Domain::new(Arc::new(Surroundings::new())));
        let (rules, places) = (&config.chap, &config.portals);
        let large_pages = config.large_pages && may_have_large_pages(LargePages::probe());
        let memory = (state_directory, large_pages);
        let open = |target| ServedTarget::open(target, rules, memory, places, &domain, &layer);
        let targets =
            config.targets.iter().map(|target| open(target).map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
        refuse_copies(&targets, config)?;
        config.warnings().iter().for_each(|warning| warn!("{warning}"));
        let reports = targets.iter().map(|target| target.report.clone()).collect();

        let recorder =
            trace_directory.map(|path| Recorder::start(path, config.task_times, &targets)).transpose()?;
        let (recorder, recording) = recorder.unzip();

        let homes = homes(&config.reactors)?;
        let count = homes.len();
        let reactors = (0..count).map(|_| Mailbox::new().map(Arc::new)).collect::<io::Result<Vec<_>>>()?;
        let loads: Vec<_> = (0..count).map(|_| Arc::new(AtomicUsize::new(0))).collect();
        let volumes = targets.iter().flat_map(|target| target.volumes.iter().map(Arc::clone));
        let volumes = volumes.map(|volume| (volume.identity().naa, volume)).collect();
        let pool_bytes = usize::try_from(config.limits.buffer_memory_bytes).unwrap_or(usize::MAX);
        let shared = Arc::new(Shared {
            config: config.clone(),
            targets,
            volumes,
            portals: Portals::new(groups_of(&portals, config)),
            registry: Registry::default(),
            discovery: Changing::new(Discovery::new(config)),
            in_force: Mutex::new(config.clone()),
            segment_max: AtomicU32::new(config.limits.max_recv_data_segment_length_bytes),
            attempts: Mutex::new(attempts(config)),
            retained: RetainedSessions::new(config.limits.retained_sessions_max),
            kept_reads: KeptReads::new(config.limits.buffer_memory_bytes),
            reactors: reactors.clone(),
            domain,
            pool: if large_pages {
                BufferPool::in_large_pages(pool_bytes)
            } else {
                BufferPool::new(pool_bytes)
            },
            saver: Saver::default(),
            recorder,
            upkeep: Arc::new(Mailbox::new()?),
            isns_stops: config.isns.servers.iter().map(|_| Mailbox::new()).collect::<io::Result<_>>()?,
            stop_now: AtomicBool::new(false),
            reactors_idle: AtomicUsize::new(0),
            crowd: Crowd::of(count),
        });
        let listener_stop = Arc::new(Mailbox::new()?);
        let listener = Listener {
            doors,
            stop: Arc::clone(&listener_stop),
            reactors,
            loads: loads.clone(),
            connections_max: config.limits.connections_max,
        };
        let mut threads = Vec::new();
        let started = homes.into_iter().enumerate().zip(loads).try_for_each(|((index, home), load)| {
            threads.push(Reactor::spawn(Arc::clone(&shared), index, load, home)?);
            Ok(())
        });
        let upkeep = || Upkeep::spawn(&shared);
        let begun = started.and_then(|()| Ok((upkeep()?, Registrars::spawn(&shared)?, listener.spawn()?)));
        match begun {
            Ok((upkeep, registrars, listener)) => {
                let listener = Arc::new(Mutex::new(Some(listener)));
                let handle = ServerHandle { shared, listener_stop, listener };
                Ok(Self { handle, portals, reports, threads, upkeep, registrars, recording })
            }
            Err(error) => {
                // The threads that did start hold the volumes.
                shared.reactors.iter().for_each(|reactor| reactor.send(Message::End));
                threads.into_iter().for_each(|thread| drop(thread.join()));
                Err(StartError::System(error))
            }
        }
    }

    /// The addresses that are listened on, with the real ports.
    #[must_use]
    pub fn portals(&self) -> &[SocketAddr] {
        &self.portals
    }

    /// What is served.
    #[must_use]
    pub fn targets(&self) -> &[TargetReport] {
        &self.reports
    }

    /// A handle to stop the server with.
    #[must_use]
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// Waits until the server was drained or stopped, then closes the volumes.
    ///
    /// # Errors
    /// [`StopError`] when something acknowledged may not be stable.
    pub fn wait(self) -> Result<(), StopError> {
        let failed =
            self.threads.into_iter().map(JoinHandle::join).filter(|end| !matches!(end, Ok(Ok(())))).count();
        self.handle.close_portals();
        let failed = failed + usize::from(!self.upkeep.end());
        drop(self.registrars);
        drop(self.recording);
        let shared = &self.handle.shared;
        if shared.stop_now.load(Ordering::Acquire) {
            return Err(StopError::Forced);
        }
        if !shared.saver.settle(SAVES_MAX) {
            error!(
                "the state of a logical unit was still being stored {} s after the last session",
                SAVES_MAX.as_secs()
            );
        }
        // Every volume is closed, whatever becomes of the others; the first failure is returned, all are logged.
        let mut first_failure = None;
        for volume in shared.targets.iter().flat_map(|target| &target.volumes) {
            if let Err(failure) = volume.close() {
                error!(volume = volume.name(), error = %failure, "not closed cleanly");
                first_failure.get_or_insert(failure);
            }
        }
        shared.targets.iter().flat_map(|target| &target.states).flatten().for_each(|state| state.release());
        match first_failure {
            Some(failure) => Err(failure.into()),
            None if failed > 0 => Err(StopError::Thread),
            None => Ok(()),
        }
    }
}

/// The directory for the states of units, which others need not read. Who chose it relies on what is kept there, so it must be
/// writable.
fn make_state_directory(path: &Path) -> Result<(), StartError> {
    let writable = || Ok(rustix::fs::access(path, Access::WRITE_OK | Access::EXEC_OK)?);
    let made = make_directory(path).and_then(|()| writable());
    made.map_err(|source| StartError::StateDirectory { path: path.to_owned(), source })
}

/// A directory that others cannot read, if it is missing.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(path)
}

/// The portals as they are listened on, with the groups of their configuration.
fn groups_of(addresses: &[SocketAddr], config: &Config) -> Vec<Portal> {
    let portals = addresses.iter().zip(&config.portals);
    portals.map(|(&address, portal)| Portal { address, group: portal.group }).collect()
}

/// Refuses to serve a copy of an image beside the original: initiators would see two paths to one disk.
fn refuse_copies(targets: &[Arc<ServedTarget>], config: &Config) -> Result<(), StartError> {
    let serial_of = |place: &UnitPlace| {
        let target = config.targets.iter().find(|target| target.name == place.target)?;
        target.units.iter().find(|unit| unit.lun == place.lun)?.serial.clone()
    };
    let mut seen = HashMap::new();
    for target in targets {
        for unit in &target.report.units {
            let second = UnitPlace { target: target.name.clone(), lun: unit.lun };
            let Some(first) = seen.insert(unit.naa.clone(), second.clone()) else { continue };
            return Err(match (serial_of(&first), serial_of(&second)) {
                (Some(serial), Some(other)) if serial == other => {
                    StartError::SameSerial { serial, first, second }
                }
                _ => StartError::SameIdentity { naa: unit.naa.clone(), first, second },
            });
        }
    }
    Ok(())
}

/// For each reactor the processor that it stays on, if it has to stay on one.
fn homes(reactors: &Reactors) -> Result<Vec<Option<usize>>, StartError> {
    let Some(cores) = &reactors.cores else {
        let one_a_core = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        return Ok(vec![None; reactors.count.unwrap_or_else(one_a_core).max(1)]);
    };
    let allowed = sched_getaffinity(None).map_err(io::Error::from)?;
    cores
        .numbers()
        .iter()
        .map(|&core| if allowed.is_set(core) { Ok(Some(core)) } else { Err(StartError::Core { core }) })
        .collect()
}

/// The limit on failed logins, for all users of all targets and of discovery.
fn attempts(config: &Config) -> Attempts {
    let interval = Duration::from_secs(config.limits.login_failure_forgiven_s.into());
    Attempts::new(config.limits.login_failures_max, interval, chap_names(config))
}

/// The names of all users of all targets and of discovery.
pub(crate) fn chap_names(config: &Config) -> impl Iterator<Item = &str> {
    let places = config.targets.iter().map(|target| &target.chap).chain([&config.discovery]);
    places.flat_map(|chap| &chap.users).map(|user| user.credential.name.as_str())
}

/// Whether large pages are asked for where they are wanted; tells what came of asking.
fn may_have_large_pages(found: LargePages) -> bool {
    match found {
        LargePages::Given => info!("large pages: buffers and disks in memory are in them"),
        LargePages::NoneNow => {
            warn!(
                "large pages: the kernel has none free now; it is asked again for all memory that is taken"
            );
        }
        LargePages::Refused(refusal) => {
            warn!("large pages: {refusal}; all memory is in small pages until the next start");
            return false;
        }
    }
    true
}

/// Every connection takes a descriptor, and many systems still start with a soft limit of 1024.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
    {
        warn!(%error, "the limit on open files stays at {:?}", limit.current);
    }
}
