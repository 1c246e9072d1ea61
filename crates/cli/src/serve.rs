//! `lunette serve`: from options to a running server, and from signals to its end.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
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

/// How long a second signal leaves the server to end, and the status when it does not.
const CUT_OFF_AFTER: Duration = Duration::from_secs(5);
const CUT_OFF: i32 = 1;

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
    let said = if file.is_some() { Said::InFile } else { Said::InFlags };
    let config = config(options)?;
    let server = Server::start(&config).map_err(|error| Failure::start(&error, said))?;
    spawn_signals(signals, server.handle(), (file, config.limits.drain_timeout_s))?;

    let line = ready::line_of(&server);
    if let Some(Err(error)) = ready.map(|descriptor| descriptor.tell(&line)) {
        // Whoever asked for it has gone or closed it; the disks are served all the same.
        warn!(%error, "nobody reads from the descriptor of --ready-fd");
    }
    print(&if json { line } else { banner::of(&server, said) });
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

/// Handles signals on a thread of their own until the process ends.
fn spawn_signals(
    mut signals: Signals,
    server: ServerHandle,
    (file, drain_timeout_s): (Option<PathBuf>, u32),
) -> Result<(), Failure> {
    let run = move || {
        let mut draining = false;
        for signal in &mut signals {
            if signal == SIGHUP {
                reload(file.as_deref(), &server);
            } else if draining {
                say("lunette: ending at once");
                // The server waits for threads of its own, which may wait for storage; who has asked twice does not.
                let cut_off = || {
                    thread::sleep(CUT_OFF_AFTER);
                    say("lunette: cut off, since something does not end; what was not stable may be lost");
                    std::process::exit(CUT_OFF);
                };
                // Without a thread for that it waits.
                let _ = thread::Builder::new().name("cut-off".into()).spawn(cut_off);
                server.stop_now();
            } else {
                draining = true;
                say(&format!(
                    "lunette: draining: no new logins; running commands end, and initiators have \
                     {drain_timeout_s} s to log out; a second signal ends at once"
                ));
                server.drain();
            }
        }
    };
    let spawned = thread::Builder::new().name("signals".into()).spawn(run);
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
