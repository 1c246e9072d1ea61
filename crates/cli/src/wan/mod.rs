//! `lunette wan`: emulated links, for the time of a command (`run`) or until they are ended (`up`).

mod check;
mod control;
mod exec;
mod holder;
mod manage;
mod notice;
mod proxy;
mod report;
mod run;
mod ward;
mod witness;

use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::thread::sleep;
use std::time::Duration;

use clap::{Args, Subcommand};
use lunette_link::{Link, named_links};
use lunette_wan::{Emulator, FAR, NEAR, acquire_privileges};
use serde::Serialize;

pub(crate) use self::notice::{call_proxy, is_proxy, proxied};
pub(crate) use self::witness::Witness;
use crate::failure::{Failure, say};
use crate::output::{self, Form};

const PRIVILEGES_HELP: &str = "run it as root, or let users make namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone) and open /dev/net/tun; `lunette wan proxy` needs neither, and has only delay and rate";

const LINK_HELP: &str = "\
A link: a name (`lunette wan links`), properties, or a name and what differs from it

PROPERTY=VALUE,... of
  rate=155M              bits per second of the transmitter
  rtt=50ms               there and back; delay=25ms is one way
  jitter=2ms[/25%]       the delay is up to 2 ms less or more [of a quarter of the packets as that of the one before]
  loss=0.01%             each packet; or bursts: turns bad/turns good/loses when bad[/when good] (0.1%/20%/80%)
  duplicate=0.1%  corrupt=0.01%  reorder=1%/5ms (held up for so long)
  queue=256K             bytes that may wait; without it a round trip's worth, at least 256K
  reserve=60%            the share that iSCSI has for itself while others send; iscsi-port=3260/3261: its ports
  overhead=38            bytes on the line beside each packet (38 for Ethernet)
  mtu=1500               the longest packet

up. or down. before a property is for one direction: up.rate=1M,down.rate=16M, behind that of both. up is from the near end to the far one.";

/// What `lunette wan` does.
#[derive(Debug, Subcommand)]
pub(crate) enum WanCommand {
    /// Run a command at the near end of an emulated link
    ///
    /// Two network namespaces are made, with the link between them and nothing else; both go when the command ends, however that
    /// happens. Neither sees the machine's networks. The near end is 198.18.0.1 (2001:2::1), the far end 198.18.0.2 (2001:2::2);
    /// both commands find these as LUNETTE_NEAR and LUNETTE_FAR in their environment, and the near one the link as LUNETTE_LINK.
    /// No privilege is needed where the kernel lets users make namespaces.
    ///
    /// Exit status: that of the command, 128 and the signal's number if a signal ended it; 125 when there is no network, 2 when the
    /// command line is wrong.
    #[command(after_help = run::EXAMPLES)]
    Run(Box<run::RunOptions>),
    /// Make an emulated network that stays until `lunette wan down`
    ///
    /// It is the same network as that of `lunette wan run`. A process in the background carries its packets; commands are run in it
    /// with `lunette wan exec`.
    #[command(after_help = manage::UP_EXAMPLES)]
    Up(manage::UpOptions),
    /// Run a command at an end of a network that is up
    ///
    /// Exit status: that of the command; 125 when there is no such network, 2 when the command line is wrong.
    Exec(exec::ExecOptions),
    /// Show a network that is up: its link, what it has carried, and who is in it
    Show(manage::ShowOptions),
    /// Change the link of a network that is up; what is under way goes on
    Set(manage::SetOptions),
    /// End a network that is up
    Down(manage::DownOptions),
    /// List the networks that are up, and what one has left that is gone
    ///
    /// A socket that a crash has left is removed. Processes that are still in a network that is gone are named, in a row without a name;
    /// `lunette wan clean` ends them.
    List {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// End the processes that are still in a network that is gone
    ///
    /// They are asked to end (SIGTERM), and killed ten seconds later.
    Clean {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Pass on TCP connections with the delay and the rate of a link, where nobody may make a network
    ///
    /// It is no network: each connection ends at the proxy and another one goes on, so that TCP sees neither the delay nor the rate, and
    /// nothing is lost. A target that tells other addresses by discovery or redirection is reached past the proxy.
    ///
    /// Exit status: that of the command, or 0 when it is interrupted without one; 125 when there is no proxy, 2 when the command
    /// line is wrong.
    Proxy(proxy::ProxyOptions),
    /// Measure how true emulated links are on this machine, and what it can carry at most
    ///
    /// For each link packets are sent and counted: the round trip has to be right within 0.3 ms or 2 %, and what jitter makes of the
    /// median, the rate within 2 % and two packets, the losses within two packets, each also within what chance explains in 999 of
    /// 1000 cases. Where chance makes as much as what is to be told, more is measured if that takes no minute, of losses and rates
    /// no 20 seconds, and else the verdict is that it cannot be told, with how much it would take. It takes about 10 seconds a link,
    /// and on slow ones or with much jitter up to some minutes; it wants a machine that does nothing else.
    ///
    /// Exit status: 0 if nothing is off that can be told, 6 if something is, or this machine could not send enough; 125 when there
    /// is no network, 2 when the command line is wrong.
    Check(check::CheckOptions),
    /// List the links that have names
    Links {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Carry the packets of a network: what `lunette wan up` starts
    #[command(hide = true)]
    Hold(holder::HoldOptions),
    /// End who is left in a network when it has gone: what `lunette wan run` and `lunette lab` start
    #[command(hide = true)]
    Ward(ward::WardOptions),
}

/// The link between two ends.
#[derive(Debug, Args)]
struct LinkOptions {
    /// The link between the ends: a name, properties, or both; see the end of this help
    #[arg(long, value_name = "LINK", long_help = LINK_HELP)]
    link: Link,
    /// Where all that is left to chance begins; the same seed loses the same packets
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Does it.
pub(crate) fn run(command: &WanCommand) -> Result<ExitCode, Failure> {
    let success = |()| ExitCode::SUCCESS;
    match command {
        WanCommand::Run(options) => run::run_command(options),
        WanCommand::Up(options) => manage::up(options),
        WanCommand::Exec(options) => exec::exec(options),
        WanCommand::Show(options) => manage::show(options).map(success),
        WanCommand::Set(options) => manage::set(options).map(success),
        WanCommand::Down(options) => manage::down(options).map(success),
        WanCommand::List { json } => manage::list(*json).map(success),
        WanCommand::Clean { json } => ward::clean(*json).map(success),
        WanCommand::Ward(options) => ward::ward(options).map(success),
        WanCommand::Proxy(options) => proxy::proxy(options),
        WanCommand::Check(options) => check::check(options),
        WanCommand::Links { json } => links(*json).map(success),
        WanCommand::Hold(options) => holder::hold(options).map(success),
    }
}

/// Makes the network. Before anything else: a process with threads cannot move into a user namespace.
fn start(options: &LinkOptions) -> Result<Emulator, Failure> {
    let emulator = acquire_privileges().and_then(|()| Emulator::start(&options.link, options.seed));
    emulator
        .map_err(|error| Failure::network("there is no emulated network", &error).with_help(PRIVILEGES_HELP))
}

/// Tells a command the ends' addresses.
fn addressed(command: &mut std::process::Command) -> &mut std::process::Command {
    command.env("LUNETTE_NEAR", NEAR.ipv4.to_string()).env("LUNETTE_FAR", FAR.ipv4.to_string())
}

/// How long nobody is accepted when that has failed: what the process lacks, descriptors, does not come back by being asked for at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Connections as they come, without an end.
fn connections(listener: &UnixListener) -> impl Iterator<Item = UnixStream> {
    accepted(|| listener.accept().map(|(stream, _)| stream), || sleep(ACCEPT_PAUSE))
}

/// The same of anything that accepts; `rest` is done after each that could not be accepted.
fn accepted<T>(accept: impl FnMut() -> io::Result<T>, mut rest: impl FnMut()) -> impl Iterator<Item = T> {
    std::iter::repeat_with(accept).filter_map(move |accepted| accepted.inspect_err(|_| rest()).ok())
}

fn print(text: &str) -> Result<(), Failure> {
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| Failure::new("cannot write to the standard output", &error))
}

fn json<T: Serialize>(value: &T) -> Result<String, Failure> {
    serde_json::to_string(value).map(|text| text + "\n").map_err(|error| Failure::new("JSON", &error))
}

/// Writes a report to a file, behind a command that ended with this status. One that failed keeps it: it says more than that there is no
/// report, which is told.
fn save<T: Serialize>(path: &Path, report: &T, status: ExitCode) -> Result<ExitCode, Failure> {
    match output::write(path, report, Form::Lines) {
        Err(failure) if status != ExitCode::SUCCESS => say(&failure.to_string()),
        Err(failure) => return Err(Failure::wan(failure.to_string())),
        Ok(()) => {}
    }
    Ok(status)
}

/// Whether a report can be written, before there is one. The status is not one that the command may have as well.
fn look_at_report(path: Option<&Path>) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    output::refuse(path, &[])?;
    output::check(path, &[]).map_err(|failure| Failure::wan(failure.to_string()))
}

/// The status of a command as a shell gives it.
fn status_of(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(125);
    ExitCode::from(u8::try_from(code).unwrap_or(125))
}

#[derive(Serialize)]
struct NamedRow {
    name: &'static str,
    link: String,
    stands_for: &'static str,
}

fn links(as_json: bool) -> Result<(), Failure> {
    let row = |named: &lunette_link::NamedLink| NamedRow {
        name: named.name,
        link: named.description.to_owned(),
        stands_for: named.stands_for,
    };
    let rows: Vec<NamedRow> = named_links().iter().map(row).collect();
    if as_json {
        return print(&json(&rows)?);
    }
    let line = |row: &NamedRow| format!("{:<14} {}\n{:14} {}\n", row.name, row.link, "", row.stands_for);
    print(&rows.iter().map(line).collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn who_cannot_accept_rests_before_he_tries_again() {
        let (tries, rests) = (Cell::new(0), Cell::new(0));
        let accept = || {
            tries.set(tries.get() + 1);
            // Too many open files, three times of four.
            let error = || io::Error::from_raw_os_error(24);
            if tries.get() % 4 == 0 { Ok(tries.get()) } else { Err(error()) }
        };
        let found: Vec<i32> = accepted(accept, || rests.set(rests.get() + 1)).take(3).collect();
        assert_eq!((found, rests.get()), (vec![4, 8, 12], 9));
    }
}
