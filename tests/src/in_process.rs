//! A target in this process, with a fault layer on each of its stores: for what a test must time exactly.
//!
//! The log of all targets of the process is kept; each has a name of its own, and so have its volumes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lunette_block::OperationKind;
use lunette_block::fault::{Effect, Faults, Rule, When};
use lunette_target::config::{
    AccessState, ChapConfig, ChapRules, Config, Limits, LunFlag, Reactors, TargetConfig,
};
use lunette_target::{ReloadError, Reloaded, Server, ServerHandle, StopError, UnitReport};
use tracing::field::{Field, Visit};

use crate::initiator::LoginOptions;
use crate::raw::Raw;

/// How long something that must happen may take. Generous: tests share the machine.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A running target; stopped at once when dropped.
#[derive(Debug)]
pub struct InProcess {
    server: Option<Server>,
    handle: ServerHandle,
    portal: SocketAddr,
    name: String,
    /// What holds of its configuration.
    config: Config,
    faults: BTreeMap<u16, Faults>,
}

impl InProcess {
    /// Serves `luns`, each as `--lun` takes it, with two reactors.
    ///
    /// # Panics
    /// It does not start.
    #[must_use]
    pub fn start(luns: &[&str]) -> Self {
        Self::start_with(luns, |_| {})
    }

    /// As [`Self::start`], with every call of this kind on unit 0 held from the start.
    ///
    /// # Panics
    /// It does not start.
    #[must_use]
    pub fn start_held(luns: &[&str], kind: OperationKind) -> Self {
        Self::start_faulty(
            luns,
            |_| {},
            |faults| {
                faults[&0].add(Rule::new(kind, When::Every, Effect::Hold));
            },
        )
    }

    /// As [`Self::start`], with another configuration. The fault layers are those of the first target's units.
    ///
    /// # Panics
    /// It does not start.
    #[must_use]
    pub fn start_with(luns: &[&str], change: impl FnOnce(&mut Config)) -> Self {
        Self::start_faulty(luns, change, |_| {})
    }

    fn start_faulty(
        luns: &[&str],
        change: impl FnOnce(&mut Config),
        prepare: impl FnOnce(&BTreeMap<u16, Faults>),
    ) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        keep_log();
        let name = format!("iqn.2026-11.io.lunette:in-process-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let flags: Vec<LunFlag> = luns.iter().map(|lun| lun.parse().expect("a good flag")).collect();
        let units = LunFlag::number_all(flags).expect("free numbers");
        let faults: BTreeMap<_, _> = units.iter().map(|unit| (unit.lun, Faults::new())).collect();
        prepare(&faults);
        let mut config = Config {
            portals: vec!["127.0.0.1:0".parse().expect("an address")],
            targets: vec![TargetConfig {
                name: name.clone(),
                alias: None,
                units,
                chap: ChapConfig::default(),
                access: Vec::new(),
                port_groups: Vec::new(),
                groups: Vec::new(),
                scsi_events: false,
                redirect: None,
            }],
            discovery: ChapConfig::default(),
            discovery_scope: Default::default(),
            chap: ChapRules::default(),
            limits: Limits::default(),
            reactors: Reactors { count: Some(2), ..Reactors::default() },
            large_pages: false,
            state_directory: None,
            trace_directory: None,
            task_times: false,
            isns: lunette_target::config::IsnsConfig::default(),
        };
        change(&mut config);
        let server = Server::start_layered(&config, |lun, store| match faults.get(&lun) {
            Some(faults) => faults.wrap(store),
            None => store,
        })
        .unwrap_or_else(|error| panic!("no target: {error}"));
        let portal = server.portals()[0];
        Self { handle: server.handle(), server: Some(server), portal, name, config, faults }
    }

    /// Where it listens.
    #[must_use]
    pub fn portal(&self) -> SocketAddr {
        self.portal
    }

    /// All its portals.
    #[must_use]
    pub fn portals(&self) -> &[SocketAddr] {
        self.server.as_ref().map_or(&[], Server::portals)
    }

    /// The target's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is told of a unit of the running server.
    ///
    /// # Panics
    /// There is none with this number.
    #[must_use]
    pub fn unit_report(&self, lun: u16) -> &UnitReport {
        let targets = self.server.as_ref().map_or(&[][..], Server::targets);
        let mut units = targets.iter().flat_map(|target| &target.units);
        units.find(|unit| unit.lun == lun).expect("such a unit")
    }

    /// A volume's name in the log.
    #[must_use]
    pub fn volume(&self, lun: u16) -> String {
        format!("{} LUN {lun}", self.name)
    }

    /// The fault layer of a unit.
    #[must_use]
    pub fn faults(&self, lun: u16) -> &Faults {
        &self.faults[&lun]
    }

    /// Holds every call of this kind on a unit until [`Faults::clear`].
    pub fn hold(&self, lun: u16, kind: OperationKind) {
        self.faults(lun).add(Rule::new(kind, When::Every, Effect::Hold));
    }

    /// Waits until so many calls of this kind have reached a unit's store, the held ones included.
    ///
    /// # Panics
    /// They do not.
    pub fn wait_for_calls(&self, lun: u16, kind: OperationKind, count: u64) {
        wait_until(&format!("{count} x {kind}"), || self.faults(lun).calls(kind) >= count);
    }

    /// How to log in to it; `port` tells sessions of the tests' initiator apart.
    #[must_use]
    pub fn options(&self, port: u8) -> LoginOptions {
        LoginOptions { target_name: Some(self.name.clone()), isid_qualifier: port, ..LoginOptions::default() }
    }

    /// As [`Self::options`], with keys of the operational stage.
    #[must_use]
    pub fn options_with(&self, port: u8, keys: &[(&str, &str)]) -> LoginOptions {
        let keys = keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        LoginOptions { keys, ..self.options(port) }
    }

    /// Logs in as `port` and takes the unit attention from unit 0.
    ///
    /// # Panics
    /// It cannot.
    #[must_use]
    pub fn session(&self, port: u8) -> Raw {
        Raw::ready(self.portal, &self.options(port), 0).unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Changes the state of a portal group, as its operator.
    ///
    /// # Panics
    /// There is no such portal group.
    pub fn set_access_state(&self, portal_group_tag: u16, state: AccessState) {
        let result = self.handle.set_access_state(&self.name, portal_group_tag, state);
        result.unwrap_or_else(|error| panic!("portal group {portal_group_tag}: {error}"));
    }

    /// Changes the configuration, as its operator, as far as that can be done while it runs.
    ///
    /// # Errors
    /// [`ReloadError`].
    pub fn reload(&mut self, change: impl FnOnce(&mut Config)) -> Result<Reloaded, ReloadError> {
        let mut config = self.config.clone();
        change(&mut config);
        let reloaded = self.handle.reload(&config)?;
        self.config = config;
        Ok(reloaded)
    }

    /// Bytes of all data buffers that are in use.
    #[must_use]
    pub fn buffer_bytes_in_use(&self) -> usize {
        self.handle.buffer_bytes_in_use()
    }

    /// Waits until every data buffer has been given back. That is somewhat after the initiator has its answer: what was sent is given
    /// back by the reactor's next steps.
    ///
    /// # Panics
    /// They are not within [`LIMIT`].
    pub fn wait_for_its_buffers(&self) {
        wait_until("all buffers are given back", || self.buffer_bytes_in_use() == 0);
    }

    /// Begins to drain.
    pub fn drain(&self) {
        self.handle.drain();
    }

    /// Waits for the end after [`Self::drain`].
    ///
    /// # Errors
    /// The server's own; or no end within [`LIMIT`].
    pub fn end(mut self) -> Result<Result<(), StopError>> {
        let server = self.server.take().context("a server that was not waited for")?;
        let (sender, receiver) = channel();
        thread::spawn(move || {
            // The test may have given up meanwhile.
            let _ = sender.send(server.wait());
        });
        match receiver.recv_timeout(LIMIT) {
            Ok(result) => Ok(result),
            Err(_) => bail!("no end within {} s of draining", LIMIT.as_secs()),
        }
    }

    /// Log lines so far that have `text` in them.
    #[must_use]
    pub fn log_with(&self, text: &str) -> Vec<String> {
        let lines = LOG.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter(|line| line.contains(text)).cloned().collect()
    }

    /// The log line about the connection from `peer` that has `text` in it; waits for it.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    pub fn log_about(&self, peer: SocketAddr, text: &str) -> String {
        let peer = format!("peer={peer} ");
        let found = || self.log_with(&peer).into_iter().find(|line| line.contains(text));
        wait_until(&format!("a log line with {peer}and {text:?}"), || found().is_some());
        found().expect("it was just found")
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.faults.values().for_each(Faults::clear);
        self.handle.stop_now();
        if let Some(server) = self.server.take() {
            // Ended at once, which is what the error says.
            let _ = server.wait();
        }
    }
}

/// Waits until something is so.
///
/// # Panics
/// It is not so within [`LIMIT`].
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {} s: {what}", LIMIT.as_secs());
        thread::sleep(Duration::from_millis(2));
    }
}

static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn keep_log() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::subscriber::set_global_default(Keeper).expect("no other subscriber in the tests");
    });
}

/// Keeps each event as a line: level, fields, message.
struct Keeper;

impl tracing::Subscriber for Keeper {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        line.0.push(' ');
        event.record(&mut line);
        LOG.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}
