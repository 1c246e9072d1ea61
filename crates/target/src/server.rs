//! The server as a whole: start, drain, stop.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use lunette_block::{BufferPool, CloseError, OpenError, StateError, Store, Volume};
use lunette_iscsi::chap::ChapPolicy;
use lunette_scsi::{AccessState, ConfigError, Domain, LogicalUnit, SavedFault, TargetPort};
use rustix::thread::sched_getaffinity;
use tracing::{error, info, warn};

use crate::admission::Changing;
use crate::attempts::Attempts;
use crate::config::{Config, Reactors};
use crate::isns::{self, Registrars};
use crate::listener::{self, Listener};
use crate::mailbox::Mailbox;
use crate::portals::{Portal, Portals};
use crate::reactor::{Message, Reactor};
use crate::registry::Registry;
use crate::retained::RetainedSessions;
use crate::saver::{Save, Saver, Told};
use crate::surroundings::Surroundings;
use crate::units::{ServedTarget, TargetReport};
use crate::upkeep::{self, Upkeep};

/// Why a server does not start. Nothing is left behind: volumes are closed and ports free.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A portal's address cannot be listened on.
    #[error("cannot listen on {address}: {source}{}", advice(.source))]
    Portal {
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// A volume cannot be opened.
    #[error("LUN {lun}: {source}")]
    Volume {
        /// The logical unit's number.
        lun: u16,
        /// Why.
        source: OpenError,
    },
    /// A logical unit cannot be made of a volume.
    #[error("LUN {lun}: {source}")]
    Unit {
        /// The logical unit's number.
        lun: u16,
        /// Why.
        source: ConfigError,
    },
    /// The file with the state of a logical unit cannot be used.
    #[error("LUN {lun}: {source}")]
    StateFile {
        /// The logical unit's number.
        lun: u16,
        /// Why.
        source: StateError,
    },
    /// The file with the state of a logical unit has something else in it.
    #[error("LUN {lun}: {}: {fault}; move it away to go on without what it keeps", path.display())]
    State {
        /// The logical unit's number.
        lun: u16,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: SavedFault,
    },
    /// The directory for the states of logical units cannot be made.
    #[error("state_directory {}: {source}", path.display())]
    StateDirectory {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Something is said of a portal group that the target does not have.
    #[error("target {target}: port_group: there is no portal group {tag}")]
    PortGroup {
        /// The target's name.
        target: String,
        /// The tag.
        tag: u16,
    },
    /// A target cannot be made of its logical units.
    #[error("target {target}: {source}")]
    Target {
        /// Its name.
        target: String,
        /// Why.
        source: ConfigError,
    },
    /// Two volumes have the same identity, so that initiators would take them for one disk.
    #[error(
        "{first} and {second} have the same identity {naa}: one is a copy of the other; give one of them serial=..."
    )]
    SameIdentity {
        /// The identity.
        naa: String,
        /// One logical unit.
        first: String,
        /// The other.
        second: String,
    },
    /// A reactor is to stay on a processor that there is not, or that the process may not use.
    #[error(
        "cores: this process may not use processor {core}; `nproc` and `taskset -p $$` show what it may use"
    )]
    Core {
        /// Its number.
        core: usize,
    },
    /// The system refused a thread or a descriptor.
    #[error("cannot start a thread of the target: {0}")]
    System(#[from] io::Error),
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; another program listens there (port 0 picks a free port)",
        io::ErrorKind::AddrNotAvailable => "; this machine has no such address",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need privileges",
        _ => "",
    }
}

/// Why the state of a portal group is not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessStateError {
    /// There is no such target.
    #[error("there is no target {0}")]
    NoTarget(String),
    /// The target has no such portal group.
    #[error("the target has no portal group {0}")]
    NoPortGroup(u16),
}

/// Why a stop was not clean.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// Something acknowledged could not be made stable.
    #[error("{0}")]
    Close(#[from] CloseError),
    /// The server was told to end at once; commands may have been cut off.
    #[error("stopped at once, without waiting for running commands")]
    Forced,
    /// A reactor failed, or the thread that looks after logical units, and the server ended with it.
    #[error("a thread of the target failed; see the log")]
    Thread,
}

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
    /// Who may discover targets; `None`: everybody.
    pub(crate) discovery: Changing<Option<Arc<ChapPolicy>>>,
    /// What holds of the configuration, with all that was changed since the start.
    pub(crate) in_force: Mutex<Config>,
    /// Failed logins of late.
    pub(crate) attempts: Mutex<Attempts>,
    pub(crate) retained: RetainedSessions,
    pub(crate) reactors: Vec<Arc<Mailbox<Message>>>,
    pub(crate) pool: BufferPool,
    pub(crate) saver: Saver,
    pub(crate) upkeep: Arc<Mailbox<upkeep::Message>>,
    /// Each wakes the thread of one iSNS server.
    pub(crate) isns_stops: Arc<[Mailbox<()>]>,
    pub(crate) stop_now: AtomicBool,
    /// Reactors that have nothing left since they were told to drain.
    pub(crate) reactors_idle: AtomicUsize,
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
}

/// Tells a running server to stop; clones may go to other threads.
#[derive(Debug, Clone)]
pub struct ServerHandle {
    pub(crate) shared: Arc<Shared>,
    listener_stop: Arc<Mailbox<()>>,
    listener: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl ServerHandle {
    /// Begins to drain: no new logins, running commands end, initiators are asked to log out and are dropped after
    /// `limits.drain_timeout_s`. Returns at once; [`Server::wait`] returns when it is over.
    pub fn drain(&self) {
        isns::leave(&self.shared.isns_stops);
        self.close_portals();
        self.shared.reactors.iter().for_each(|reactor| reactor.send(Message::Drain));
    }

    /// Changes how well the logical units of a target can be reached through one of its portal groups (SPC-4, implicit
    /// transition): initiators are told by a unit attention, and the state is kept over a restart where there is a
    /// place for it.
    ///
    /// # Errors
    /// [`AccessStateError`]; nothing is changed then.
    pub fn set_access_state(
        &self,
        target: &str,
        portal_group_tag: u16,
        state: AccessState,
    ) -> Result<(), AccessStateError> {
        let found = self.shared.targets.iter().find(|served| served.name == target);
        let served = found.ok_or_else(|| AccessStateError::NoTarget(target.to_owned()))?;
        let port = TargetPort::new(portal_group_tag)
            .filter(|port| served.device.ports().contains(port))
            .ok_or(AccessStateError::NoPortGroup(portal_group_tag))?;
        info!(target, portal_group_tag, ?state, "access state changed");
        self.change_units(served, |unit| unit.change_access_implicitly(&[(port, state)]));
        Ok(())
    }

    /// Changes something of all units of a target that is kept over a restart. `change` tells whether there was anything to
    /// change.
    pub(crate) fn change_units(&self, served: &ServedTarget, change: impl Fn(&LogicalUnit) -> bool) {
        for ((_, unit), file) in served.device.units().zip(&served.states) {
            if change(unit)
                && let Some(file) = file
            {
                let (unit, file) = (Arc::clone(unit), Arc::clone(file));
                self.shared.saver.store(Save { unit, file, told: Told::Nobody });
            }
        }
    }

    /// Bytes of the data buffers that commands and their answers hold at the moment.
    #[must_use]
    pub fn buffer_bytes_in_use(&self) -> usize {
        self.shared.pool.in_use_bytes()
    }

    /// Ends at once: connections are cut, running commands are not waited for.
    pub fn stop_now(&self) {
        self.shared.stop_now.store(true, Ordering::Release);
        self.close_portals();
        self.shared.reactors.iter().for_each(|reactor| reactor.send(Message::End));
    }

    fn close_portals(&self) {
        let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = listener {
            self.listener_stop.send(());
            // Once it is gone its sockets are closed, and a connection attempt is refused.
            if thread.join().is_err() {
                error!("the listening thread panicked");
            }
        }
    }
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
        // The cheapest failure first: a port that is taken must not create an image.
        let sockets =
            config.portals.iter().map(|at| listener::bind(at.address)).collect::<Result<Vec<_>, _>>()?;
        let portals = sockets.iter().map(std::net::TcpListener::local_addr).collect::<Result<Vec<_>, _>>()?;
        let state_directory = config.state_directory.as_deref();
        state_directory.map(make_state_directory).transpose()?;
        let domain = Arc::new(Domain::new(Arc::new(Surroundings::new())));
        let (rules, places) = (&config.chap, &config.portals);
        let open = |target| ServedTarget::open(target, rules, state_directory, places, &domain, &layer);
        let targets =
            config.targets.iter().map(|target| open(target).map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
        refuse_copies(&targets)?;
        config.warnings().iter().for_each(|warning| warn!("{warning}"));
        let reports = targets.iter().map(|target| target.report.clone()).collect();
        raise_descriptor_limit();

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
            discovery: Changing::new(config.discovery.policy(&config.chap)),
            in_force: Mutex::new(config.clone()),
            attempts: Mutex::new(attempts(config)),
            retained: RetainedSessions::new(config.limits.retained_sessions_max),
            reactors: reactors.clone(),
            pool: BufferPool::new(pool_bytes),
            saver: Saver::default(),
            upkeep: Arc::new(Mailbox::new()?),
            isns_stops: config.isns.servers.iter().map(|_| Mailbox::new()).collect::<io::Result<_>>()?,
            stop_now: AtomicBool::new(false),
            reactors_idle: AtomicUsize::new(0),
        });
        let listener_stop = Arc::new(Mailbox::new()?);
        let listener = Listener {
            sockets,
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
                Ok(Self { handle, portals, reports, threads, upkeep, registrars })
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
        let shared = &self.handle.shared;
        if shared.stop_now.load(Ordering::Acquire) {
            return Err(StopError::Forced);
        }
        // Every volume is closed, whatever becomes of the others; the first failure is returned, all are logged.
        let mut first_failure = None;
        for volume in shared.targets.iter().flat_map(|target| &target.volumes) {
            if let Err(failure) = volume.close() {
                error!(volume = volume.name(), error = %failure, "not closed cleanly");
                first_failure.get_or_insert(failure);
            }
        }
        match first_failure {
            Some(failure) => Err(failure.into()),
            None if failed > 0 => Err(StopError::Thread),
            None => Ok(()),
        }
    }
}

/// The directory for the states of units, which others need not read.
fn make_state_directory(path: &Path) -> Result<(), StartError> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(path).map_err(|source| StartError::StateDirectory { path: path.to_owned(), source })
}

/// The portals as they are listened on, with the groups of their configuration.
fn groups_of(addresses: &[SocketAddr], config: &Config) -> Vec<Portal> {
    let portals = addresses.iter().zip(&config.portals);
    portals.map(|(&address, portal)| Portal { address, group: portal.group }).collect()
}

/// Refuses to serve a copy of an image beside the original: initiators would see two paths to one disk.
fn refuse_copies(targets: &[Arc<ServedTarget>]) -> Result<(), StartError> {
    let mut seen = HashMap::new();
    for target in targets {
        for unit in &target.report.units {
            let here = format!("{} LUN {}", target.name, unit.lun);
            if let Some(first) = seen.insert(unit.naa.clone(), here.clone()) {
                return Err(StartError::SameIdentity { naa: unit.naa.clone(), first, second: here });
            }
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
