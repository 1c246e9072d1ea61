//! `lunette wan proxy`: delay and rate for TCP connections, where nobody may make a network.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Args;
use lunette_link::Link;
use lunette_wan::{Keeping, Proxy, spawn_here};
use serde::Serialize;
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::notice::{announce, note};
use super::{LinkOptions, look_at_report, print, run, save, status_of};
use crate::bench::LINK_VARIABLE;
use crate::failure::{Failure, say};

/// What `lunette wan proxy` is told.
#[derive(Debug, Args)]
pub(crate) struct ProxyOptions {
    #[command(flatten)]
    network: LinkOptions,
    /// Where connections are passed on to
    #[arg(long, value_name = "ADDRESS:PORT")]
    to: SocketAddr,
    /// Where to listen; without it a free port of the loopback address
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Write what was carried to a file, as one JSON object
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// A command, which finds the address to connect to as LUNETTE_PROXY in its environment, and "proxy" and the link as
    /// LUNETTE_LINK; without one the proxy runs until it is interrupted
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Serialize)]
struct Report {
    /// So that nobody takes the figures for those of a network.
    mode: &'static str,
    link: String,
    seed: u64,
    up_bytes: u64,
    down_bytes: u64,
    /// Connections that were closed because the far side could not be reached.
    unreached: u64,
    /// How long after their time segments were handed over, there and back: the sum of both directions' medians.
    late_us: u64,
    /// Segments that took this machine longer than the link's transmitter.
    up_outpaced: u64,
    down_outpaced: u64,
    /// What is wrong with the figures, if anything is.
    doubt: Option<String>,
}

/// Runs the proxy until the command, or the user, ends it.
pub(super) fn proxy(options: &ProxyOptions) -> Result<ExitCode, Failure> {
    look_at_report(options.report.as_deref())?;
    let LinkOptions { link, seed } = &options.network;
    let proxy = Proxy::start(options.listen, options.to, link, *seed)
        .map_err(|error| Failure::network("there is no proxy", &error))?;
    let to = options.to;
    proxy.tell_unreached(move |error| {
        say(&format!("lunette: {to} cannot be reached, and connections to the proxy are closed: {error}"));
    });
    announce(proxy.address(), link, proxy.watcher())
        .map_err(|error| Failure::network("nobody can be told that this is a proxy", &error))?;
    say(
        "a proxy has the delay and the rate of the link, but TCP does not see them: no losses, no windows, no congestion",
    );
    let ended = match options.command.split_first() {
        None => wait(&proxy, link).map(|()| ExitCode::SUCCESS)?,
        Some((program, arguments)) => {
            let failed = |error| Failure::network(format!("cannot run {}", program.display()), &error);
            let mut command = Command::new(program);
            command.args(arguments).env("LUNETTE_PROXY", proxy.address().to_string());
            command.env(LINK_VARIABLE, note(link));
            // The command is not left without its line: SIGTERM is passed on, and SIGINT is a terminal's, which it hears itself.
            let mut signals = Signals::new([SIGINT, SIGTERM, SIGCHLD]).map_err(failed)?;
            let mut command = spawn_here(&mut command).map_err(failed)?;
            status_of(run::wait(&mut command, None, &mut signals).map_err(failed)?)
        }
    };
    let [up_bytes, down_bytes] = proxy.counts().map(|counts| counts.arrived_bytes);
    say(&format!("near to far: {up_bytes} bytes arrived; far to near: {down_bytes}; headers included"));
    let unreached = proxy.unreached();
    if unreached > 0 {
        say(&format!("{unreached} connections were closed, for {to} could not be reached"));
    }
    let keeping = Keeping::of(&proxy.statistics());
    let doubt = keeping.doubt(link).map(|doubt| doubt.to_string());
    if let Some(doubt) = &doubt {
        say(&format!("warning: {doubt}"));
    }
    if let Some(path) = &options.report {
        let [up_outpaced, down_outpaced] = keeping.outpaced.map(|way| way.packets);
        let report = Report {
            mode: "proxy",
            link: link.to_string(),
            seed: *seed,
            up_bytes,
            down_bytes,
            unreached,
            late_us: u64::try_from(keeping.lateness_median.as_micros()).unwrap_or(u64::MAX),
            up_outpaced,
            down_outpaced,
            doubt,
        };
        return save(path, &report, ended);
    }
    Ok(ended)
}

fn wait(proxy: &Proxy, link: &Link) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM])
        .map_err(|error| Failure::network("signals cannot be received", &error))?;
    print(&format!("listening on {}\n", proxy.address()))?;
    say(&format!(
        "`lunette bench` and `advise` here know that; elsewhere they are to be told: {LINK_VARIABLE}='{}'",
        note(link)
    ));
    let _ = signals.forever().next();
    Ok(())
}
