//! `lunette wan`: commands at the two ends of an emulated link.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use lunette_link::{Link, named_links};
use lunette_wan::{Emulator, FAR, NEAR, Statistics, acquire_privileges};
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
use serde::Serialize;
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::{Failure, say};

/// How long the far command has to end when it is asked to, before it is killed.
const FAR_PATIENCE: Duration = Duration::from_secs(10);

/// How long the far command has to listen.
const FAR_PORT_PATIENCE: Duration = Duration::from_secs(30);

/// A round trip is to be right within this, or within a fiftieth of it where that is more.
const ROUND_TRIP_TOLERANCE: Duration = Duration::from_micros(300);

const PRIVILEGES_HELP: &str = "run it as root, or let users make namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone) and open /dev/net/tun";

const LINK_HELP: &str = "\
A link: a name (`lunette wan links`), properties, or a name and what differs from it

PROPERTY=VALUE,... of
  rate=155M              bits per second of the transmitter
  rtt=50ms               there and back; delay=25ms is one way
  jitter=2ms[/25%]       the delay varies by so much [and so much as the packet before]
  loss=0.01%             each packet; or bursts: turns bad/turns good/loses when bad (0.1%/20%/80%)
  duplicate=0.1%  corrupt=0.01%  reorder=1%/5ms (held up for so long)
  queue=256K             bytes that may wait; without it a round trip's worth, at least 256K
  reserve=60%            the share that iSCSI has for itself while others send
  overhead=38            bytes on the line beside each packet (38 for Ethernet)
  mtu=1500               the longest packet

up. or down. before a property is for one direction: up.rate=1M,down.rate=16M. up is from the near end to the far one.";

const RUN_EXAMPLES: &str = "\
Examples:
  lunette wan run --link oc3-50 -- ping -c 3 198.18.0.2
  lunette wan run --link gige,rtt=20ms,loss=0.1% --far-port 3260 \\
      --far 'lunette serve --portal 198.18.0.2:3260 --target iqn.2026-11.io.lunette:far --lun mem:1G' \\
      -- sh -c 'lunette info iscsi://$LUNETTE_FAR/iqn.2026-11.io.lunette:far/0'";

/// What `lunette wan` does.
#[derive(Debug, Subcommand)]
pub(crate) enum WanCommand {
    /// Run a command at the near end of an emulated link
    ///
    /// Two network namespaces are made, with the link between them and nothing else; both go when the command ends, however that
    /// happens. Neither sees the machine's networks. The near end is 198.18.0.1 (2001:2::1), the far end 198.18.0.2 (2001:2::2);
    /// both commands find these as LUNETTE_NEAR and LUNETTE_FAR in their environment. No privilege is needed where the kernel lets users make namespaces.
    ///
    /// Exit status: that of the command, 128 and the signal's number if a signal ended it; 125 when there is no network, 2 when the
    /// command line is wrong.
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<RunOptions>),
    /// List the links that have names
    Links {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
}

/// What `lunette wan run` is told.
#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// The link between the ends: a name, properties, or both; see the end of this help
    #[arg(long, value_name = "LINK", long_help = LINK_HELP)]
    link: Link,
    /// Where all that is left to chance begins; the same seed loses the same packets
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// A command for the shell at the far end; it is started first, and asked to end (SIGTERM) when the near one has
    #[arg(long, value_name = "COMMAND")]
    far: Option<String>,
    /// Begin when the far command listens on this TCP port
    #[arg(long, value_name = "PORT", requires = "far")]
    far_port: Option<u16>,
    /// Write what was carried to a file, as one JSON object
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Say nothing but errors on the standard error
    #[arg(long)]
    quiet: bool,
    /// The command at the near end, and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<std::ffi::OsString>,
}

/// Does it.
pub(crate) fn run(command: &WanCommand) -> Result<ExitCode, Failure> {
    match command {
        WanCommand::Run(options) => run_command(options),
        WanCommand::Links { json } => links(*json).map(|()| ExitCode::SUCCESS),
    }
}

#[derive(Serialize)]
struct NamedRow {
    name: &'static str,
    link: String,
    stands_for: &'static str,
}

fn links(json: bool) -> Result<(), Failure> {
    let row = |named: &lunette_link::NamedLink| NamedRow {
        name: named.name,
        link: named.description.to_owned(),
        stands_for: named.stands_for,
    };
    let rows: Vec<NamedRow> = named_links().iter().map(row).collect();
    let mut text = String::new();
    if json {
        text = serde_json::to_string(&rows).map_err(|error| Failure::new("JSON", &error))? + "\n";
    } else {
        for row in &rows {
            text += &format!("{:<14} {}\n{:14} {}\n", row.name, row.link, "", row.stands_for);
        }
    }
    io::Write::write_all(&mut io::stdout(), text.as_bytes())
        .map_err(|error| Failure::new("cannot write to the standard output", &error))
}

fn run_command(options: &RunOptions) -> Result<ExitCode, Failure> {
    // Before anything else: a process with threads cannot move into a user namespace.
    let emulator = acquire_privileges().and_then(|()| Emulator::start(&options.link, options.seed)).map_err(
        |error| Failure::network("there is no emulated network", &error).with_help(PRIVILEGES_HELP),
    )?;
    // From now on signals are looked at, so that an interrupt ends the commands first.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGCHLD])
        .map_err(|error| Failure::network("signals cannot be received", &error))?;
    let mut far = options.far.as_deref().map(|far| start_far(&emulator, far)).transpose()?;
    if let (Some(far), Some(port)) = (&mut far, options.far_port) {
        wait_for_port(&emulator, far, port)?;
    }
    let mut near = Command::new(&options.command[0]);
    addressed(near.args(&options.command[1..]));
    let mut near = emulator
        .near()
        .spawn(&mut near)
        .map_err(|error| Failure::network(format!("cannot run {}", options.command[0].display()), &error))?;
    let status = wait(&mut near, far.as_mut(), &mut signals)
        .map_err(|error| Failure::network("waiting for the command", &error))?;
    if let Some(far) = far {
        end_far(far);
    }
    let statistics =
        emulator.statistics().map_err(|error| Failure::network("no statistics of the network", &error))?;
    emulator.end().map_err(|error| Failure::network("the emulated network failed", &error))?;
    report(options, &statistics)?;
    Ok(ExitCode::from(status_of(status)))
}

/// Tells a command the ends' addresses.
fn addressed(command: &mut Command) -> &mut Command {
    command.env("LUNETTE_NEAR", NEAR.ipv4.to_string()).env("LUNETTE_FAR", FAR.ipv4.to_string())
}

fn start_far(emulator: &Emulator, far: &str) -> Result<Child, Failure> {
    let mut command = Command::new("sh");
    // A group of its own, so that what the shell starts can be ended with it.
    command.arg("-c").arg(far).stdin(Stdio::null()).process_group(0);
    emulator
        .far()
        .spawn(addressed(&mut command))
        .map_err(|error| Failure::network("cannot run the command of the far end", &error))
}

fn wait_for_port(emulator: &Emulator, far: &mut Child, port: u16) -> Result<(), Failure> {
    let began = Instant::now();
    let address = SocketAddr::from((FAR.ipv4, port));
    loop {
        let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(1)).map(drop);
        let Err(error) = emulator.far().within(connect) else { return Ok(()) };
        if let Ok(Some(status)) = far.try_wait() {
            return Err(Failure::wan(format!(
                "the command of the far end ended before it listened: {status}"
            )));
        }
        if began.elapsed() > FAR_PORT_PATIENCE {
            let seconds = FAR_PORT_PATIENCE.as_secs();
            return Err(Failure::network(
                format!("the command of the far end does not listen on {address} after {seconds} s"),
                &error,
            ));
        }
        sleep(Duration::from_millis(20));
    }
}

/// Waits for the near command. An interrupt of the terminal goes to the commands as well, so the first is theirs.
fn wait(near: &mut Child, mut far: Option<&mut Child>, signals: &mut Signals) -> io::Result<ExitStatus> {
    let mut interrupts = 0;
    loop {
        if let Some(status) = near.try_wait()? {
            return Ok(status);
        }
        if let Some(status) = far.as_mut().and_then(|far| far.try_wait().transpose()).transpose()? {
            say(&format!("the command of the far end has ended: {status}"));
            far = None;
        }
        for signal in signals.wait() {
            match signal {
                SIGTERM => terminate(near),
                SIGINT => {
                    interrupts += 1;
                    if interrupts > 1 {
                        terminate(near);
                    }
                }
                _ => {}
            }
        }
    }
}

fn terminate(child: &Child) {
    // It may have ended meanwhile; it has not been waited for, so the number is still its own.
    if let Some(pid) = Pid::from_raw(child.id() as i32) {
        let _ = kill_process(pid, Signal::TERM);
    }
}

/// Asks the far command and all that it started to end, and sees to it.
fn end_far(mut far: Child) {
    // Of a group nobody else has the number until its last process is gone.
    let group = Pid::from_raw(far.id() as i32);
    let signal = |signal| group.is_some_and(|group| kill_process_group(group, signal).is_ok());
    signal(Signal::TERM);
    let began = Instant::now();
    // The leader is waited for, and no longer counts; then nobody is left to be signalled.
    while matches!(far.try_wait(), Ok(None))
        || group.is_some_and(|group| test_kill_process_group(group).is_ok())
    {
        if began.elapsed() > FAR_PATIENCE {
            say(&format!(
                "the command of the far end does not end in {} s; it is killed",
                FAR_PATIENCE.as_secs()
            ));
            signal(Signal::KILL);
            let _ = far.wait();
            return;
        }
        sleep(Duration::from_millis(10));
    }
}

fn status_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(125);
    u8::try_from(code).unwrap_or(125)
}

#[derive(Serialize)]
struct Direction {
    offered: u64,
    dropped: u64,
    lost: u64,
    duplicated: u64,
    corrupted: u64,
    reordered: u64,
    arrived: u64,
    arrived_bytes: u64,
    overrun: u64,
    lateness_median_us: u64,
    lateness_p99_us: u64,
    lateness_max_us: u64,
}

#[derive(Serialize)]
struct RunReport {
    link: String,
    seed: u64,
    up: Direction,
    down: Direction,
    /// What is wrong with the figures of this run, if anything is.
    doubt: Option<String>,
}

fn direction(statistics: &Statistics) -> Direction {
    let counts = statistics.counts;
    let micros = |time: Duration| time.as_micros().try_into().unwrap_or(u64::MAX);
    Direction {
        offered: counts.offered,
        dropped: counts.dropped,
        lost: counts.lost,
        duplicated: counts.duplicated,
        corrupted: counts.corrupted,
        reordered: counts.reordered,
        arrived: counts.arrived,
        arrived_bytes: counts.arrived_bytes,
        overrun: statistics.overrun,
        lateness_median_us: micros(statistics.lateness_median),
        lateness_p99_us: micros(statistics.lateness_p99),
        lateness_max_us: micros(statistics.lateness_max),
    }
}

/// Whether this machine kept up with the link.
fn doubt(link: &Link, statistics: &[Statistics; 2]) -> Option<String> {
    let overrun: u64 = statistics.iter().map(|direction| direction.overrun).sum();
    if overrun > 0 {
        return Some(format!(
            "this machine is too slow for this link: {overrun} packets were lost before they came to it"
        ));
    }
    let late: Duration = statistics.iter().map(|direction| direction.lateness_median).sum();
    let tolerance = ROUND_TRIP_TOLERANCE.max(link.round_trip() / 50);
    (late > tolerance).then(|| {
        format!(
            "this machine is too busy for this link: half of the packets were more than {} us late there and back",
            late.as_micros()
        )
    })
}

fn report(options: &RunOptions, statistics: &[Statistics; 2]) -> Result<(), Failure> {
    let doubt = doubt(&options.link, statistics);
    if !options.quiet {
        for (name, Statistics { counts, .. }) in ["near to far", "far to near"].iter().zip(statistics) {
            say(&format!(
                "{name}: {} packets, {} dropped, {} lost, {} doubled, {} damaged, {} held up; {} bytes arrived",
                counts.offered,
                counts.dropped,
                counts.lost,
                counts.duplicated,
                counts.corrupted,
                counts.reordered,
                counts.arrived_bytes
            ));
        }
    }
    if let Some(doubt) = &doubt {
        say(&format!("warning: {doubt}"));
    }
    let Some(path) = &options.report else { return Ok(()) };
    let [up, down] = statistics.each_ref().map(direction);
    let report = RunReport { link: options.link.to_string(), seed: options.seed, up, down, doubt };
    let text = serde_json::to_string_pretty(&report).map_err(|error| Failure::new("JSON", &error))?;
    std::fs::write(path, text + "\n")
        .map_err(|error| Failure::network(format!("cannot write {}", path.display()), &error))
}
