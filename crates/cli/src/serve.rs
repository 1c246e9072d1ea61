//! `lunette serve`: from options to a running server, and from signals to its end.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use lunette_target::config::{
    ChapConfig, ChapCredential, ChapRules, ChapUser, Config, IsnsConfig, Limits, LunFlag, PortalConfig,
    Reactors, TargetConfig, default_portals, default_target_name, parse_chap_flag,
};
use lunette_target::{Server, ServerHandle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{error, info, warn};

use crate::failure::{Failure, Said, say};
use crate::options::ServeOptions;
use crate::ready::{self, ReadyDescriptor};
use crate::{banner, log};

/// How long a second signal leaves the server to end, and the first one a start; and the status when a server does not.
const CUT_OFF_AFTER: Duration = Duration::from_secs(5);
const CUT_OFF: i32 = 1;
/// Nothing was served, so nothing can be lost.
const ENDED_IN_START: i32 = 0;

/// How far it is when a signal asks for the end.
enum Stage {
    /// The files of the configuration and of its secrets are read, which may wait for ever: nothing else was touched.
    Reading,
    /// Disks are opened and created, which is better not left half-way.
    Opening {
        is_to_end: bool,
    },
    Serving {
        server: ServerHandle,
        drain_timeout_s: u32,
        is_draining: bool,
    },
}

type SharedStage = Arc<Mutex<Stage>>;

fn lock(stage: &SharedStage) -> MutexGuard<'_, Stage> {
    stage.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves until a signal ends it. Returns without an error only when everything acknowledged is stable.
pub(crate) fn serve(options: ServeOptions) -> Result<(), Failure> {
    // Before anything else is opened: see `ReadyDescriptor::take`.
    let ready = options.ready_fd.map(take_descriptor).transpose()?;
    log::start(&options.log);
    // Before the start, so that a signal during a slow start is not lost and does not end us half-way.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| Failure::new("cannot wait for signals", &error))?;
    let json = options.json;
    let file = options.config.clone();
    let stage = Arc::new(Mutex::new(Stage::Reading));
    // One more reload is kept for later while one runs: it reads what was written meanwhile.
    let (asked, reloads) = sync_channel(1);
    spawn_signals(signals, Arc::clone(&stage), asked)?;
    let said = if file.is_some() { Said::InFile } else { Said::InFlags };
    let config = config(options)?;
    *lock(&stage) = Stage::Opening { is_to_end: false };
    let server = Server::start(&config).map_err(|error| Failure::start(&error, said))?;
    if serves(&stage, server.handle(), config.limits.drain_timeout_s) {
        spawn_reloads(reloads, file, server.handle())?;
        let line = ready::line_of(&server);
        if let Some(Err(error)) = ready.map(|descriptor| descriptor.tell(&line)) {
            // Whoever asked for it has gone or closed it; the disks are served all the same.
            warn!(%error, "nobody reads from the descriptor of --ready-fd");
        }
        print(&if json { line } else { banner::of(&server, said) });
    }
    server.wait().map_err(|error| Failure::new("the end was not clean", &error))?;
    info!("everything acknowledged is stable");
    Ok(())
}

fn take_descriptor(number: i32) -> Result<ReadyDescriptor, Failure> {
    ReadyDescriptor::take(number).map_err(|error| {
        Failure::usage(format!(
            "--ready-fd {number}: {error}; it must be a descriptor that is open for writing when lunette is started"
        ))
    })
}

/// The configuration of the file, or of the flags.
fn config(options: ServeOptions) -> Result<Config, Failure> {
    if let Some(path) = options.config {
        return Config::read(&path).map_err(|error| Failure::usage(error.to_string()));
    }
    let host = rustix::system::uname();
    let name = options.target.unwrap_or_else(|| default_target_name(&host.nodename().to_string_lossy()));
    let portals = options.portal.into_iter().map(PortalConfig::from).collect::<Vec<_>>();
    let portals = if portals.is_empty() { default_portals() } else { portals };
    let rules = ChapRules::default();
    let users = |flag: &str, texts: &[String]| {
        let user = |text: &String| {
            Ok(ChapUser { credential: credential(flag, text, &rules)?, initiators: Vec::new() })
        };
        texts.iter().map(user).collect::<Result<Vec<_>, Failure>>()
    };
    let mutual = options.chap_mutual.as_deref().map(|text| credential("--chap-mutual", text, &rules));
    let chap = ChapConfig { users: users("--chap-user", &options.chap_user)?, mutual: mutual.transpose()? };
    let discovery = ChapConfig { users: users("--discovery-user", &options.discovery_user)?, mutual: None };
    let access = options.allow;
    LunFlag::number_all(options.lun)
        .and_then(|units| {
            let targets = vec![TargetConfig {
                name,
                alias: None,
                units,
                chap,
                access,
                port_groups: Vec::new(),
                groups: Vec::new(),
                scsi_events: false,
                redirect: None,
            }];
            let reactors =
                Reactors { count: None, cores: options.cores, poll: options.poll.unwrap_or_default() };
            let limits = Limits::default();
            let state_directory = options.state_directory;
            let (trace_directory, task_times) = (options.trace_directory, options.task_times);
            let config = Config {
                portals,
                targets,
                discovery,
                discovery_scope: Default::default(),
                chap: rules,
                limits,
                reactors,
                large_pages: options.large_pages,
                state_directory,
                trace_directory,
                task_times,
                isns: IsnsConfig::default(),
            };
            config.validate().map(|()| config)
        })
        .map_err(|error| Failure::usage(error.to_string()))
}

/// A CHAP name and its secret, as a flag gives them.
fn credential(flag: &str, text: &str, rules: &ChapRules) -> Result<ChapCredential, Failure> {
    let (name, source) = parse_chap_flag(text).map_err(|error| Failure::usage(format!("{flag}: {error}")))?;
    let secret = source
        .read(rules.secret_length_min_bytes)
        .map_err(|error| Failure::usage(format!("{flag} {name}: {error}")))?;
    Ok(ChapCredential { name, secret })
}

/// The start is over. False: it is to end again, as a signal has said meanwhile.
fn serves(stage: &SharedStage, server: ServerHandle, drain_timeout_s: u32) -> bool {
    let mut stage = lock(stage);
    let is_draining = matches!(*stage, Stage::Opening { is_to_end: true });
    if is_draining {
        server.drain();
    }
    *stage = Stage::Serving { server, drain_timeout_s, is_draining };
    !is_draining
}

/// Handles signals on a thread of their own until the process ends. Nothing that it does may wait for storage.
fn spawn_signals(mut signals: Signals, stage: SharedStage, reloads: SyncSender<()>) -> Result<(), Failure> {
    let run = move || {
        for signal in &mut signals {
            if signal == SIGHUP {
                // If it is full, one that has not begun yet will do for this one, too.
                let _ = reloads.try_send(());
            } else {
                end(&stage);
            }
        }
    };
    let spawned = thread::Builder::new().name("signals".into()).spawn(run);
    spawned.map(drop).map_err(|error| Failure::new("cannot start a thread", &error))
}

/// A signal asks for the end.
fn end(shared: &SharedStage) {
    // While it is locked a start cannot become a server.
    match &mut *lock(shared) {
        Stage::Reading | Stage::Opening { is_to_end: true } => end_in_start(),
        Stage::Opening { is_to_end } => {
            *is_to_end = true;
            say("lunette: ending when the disks are open; a second signal ends at once");
            let stage = Arc::clone(shared);
            spawn_cut_off(move || {
                let stage = lock(&stage);
                if matches!(*stage, Stage::Opening { .. }) {
                    end_in_start();
                }
            });
        }
        Stage::Serving { server, is_draining: true, .. } => {
            say("lunette: ending at once");
            // The server waits for threads of its own, which may wait for storage; who has asked twice does not.
            spawn_cut_off(|| {
                say("lunette: cut off, since something does not end; what was not stable may be lost");
                std::process::exit(CUT_OFF);
            });
            server.stop_now();
        }
        Stage::Serving { server, drain_timeout_s, is_draining } => {
            *is_draining = true;
            say(&format!(
                "lunette: draining: no new logins; running commands end, and initiators have \
                 {drain_timeout_s} s to log out; a second signal ends at once"
            ));
            server.drain();
        }
    }
}

fn end_in_start() -> ! {
    say("lunette: ended during the start; nothing was served");
    std::process::exit(ENDED_IN_START);
}

/// Does something when what was to end by itself has had its time. Without a thread for that it waits.
fn spawn_cut_off(cut_off: impl FnOnce() + Send + 'static) {
    let run = || {
        thread::sleep(CUT_OFF_AFTER);
        cut_off();
    };
    let _ = thread::Builder::new().name("cut-off".into()).spawn(run);
}

/// Reloads on a thread of its own, one after the other: a file may have to be waited for, and the end does not wait for it.
fn spawn_reloads(asked: Receiver<()>, file: Option<PathBuf>, server: ServerHandle) -> Result<(), Failure> {
    let run = move || asked.iter().for_each(|()| reload(file.as_deref(), &server));
    let spawned = thread::Builder::new().name("reload".into()).spawn(run);
    spawned.map(drop).map_err(|error| Failure::new("cannot start a thread", &error))
}

/// Takes over from the configuration file what may change while disks are served, and says what may not.
fn reload(file: Option<&Path>, server: &ServerHandle) {
    let Some(file) = file else {
        return warn!("SIGHUP: there is no configuration file to read again; nothing changes");
    };
    let outcome = Config::read(file)
        .map_err(|error| error.to_string())
        .and_then(|config| server.reload(&config).map_err(|error| error.to_string()));
    match outcome {
        Ok(reloaded) => {
            if reloaded.applied.is_empty() && reloaded.waiting.is_empty() {
                info!("SIGHUP: the configuration is as before");
            }
            reloaded.applied.iter().for_each(|what| info!("SIGHUP: changed now: {what}"));
            reloaded.waiting.iter().for_each(|what| warn!("SIGHUP: changes with a restart only: {what}"));
        }
        Err(error) => error!("SIGHUP: the configuration is not taken, and nothing changes: {error}"),
    }
}

/// Writes to the standard output. If nobody reads it, the disks are served all the same.
fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    if let Err(error) = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        warn!(%error, "cannot write to the standard output");
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::options::{Command, Options};

    #[test]
    fn a_signal_while_disks_are_opened_ends_the_server_then() {
        let arguments = ["lunette", "serve", "--portal", "127.0.0.1:0", "--lun", "mem:1M"];
        let Command::Serve(options) = Options::try_parse_from(arguments).expect("right").command else {
            panic!("it is serve");
        };
        let config = config(*options).expect("right");
        let stage = Arc::new(Mutex::new(Stage::Opening { is_to_end: false }));
        end(&stage);
        let server = Server::start(&config).expect("a port is free");
        assert!(!serves(&stage, server.handle(), 5), "nobody is told of it");
        server.wait().expect("it ends, and cleanly");
    }
}
