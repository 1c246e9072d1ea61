//! `lunette wan run`: commands at the two ends of an emulated link.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use lunette_wan::{Emulator, FAR};
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::report::Report;
use super::ward::watch_over;
use super::witness::SharedLink;
use super::{LinkOptions, addressed, look_at_report, save, start, status_of, witness};
use crate::bench::LINK_VARIABLE;
use crate::failure::{Failure, say};

/// How long the far command has to end when it is asked to, before it is killed.
const FAR_PATIENCE: Duration = Duration::from_secs(10);

/// How long the far command has to listen.
const FAR_PORT_PATIENCE: Duration = Duration::from_secs(30);

pub(super) const EXAMPLES: &str = "\
Examples:
  lunette wan run --link oc3-50 -- ping -c 3 198.18.0.2
  lunette wan run --link gige,rtt=20ms,loss=0.1% --far-port 3260 \\
      --far 'lunette serve --portal 198.18.0.2:3260 --target iqn.2026-11.io.lunette:far --lun mem:1G' \\
      -- sh -c 'lunette info iscsi://$LUNETTE_FAR/iqn.2026-11.io.lunette:far/0'";

/// What `lunette wan run` is told.
#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    #[command(flatten)]
    network: LinkOptions,
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

/// Makes the network, and runs the commands in it.
pub(super) fn run_command(options: &RunOptions) -> Result<ExitCode, Failure> {
    look_at_report(options.report.as_deref())?;
    let mut emulator = start(&options.network)?;
    watch_over(&mut emulator)?;
    witness::listen(&emulator, &SharedLink::new(&options.network.link))
        .map_err(|error| Failure::network("nobody can ask how the link is kept", &error))?;
    // From now on signals are looked at, so that an interrupt ends the commands first.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGCHLD])
        .map_err(|error| Failure::network("signals cannot be received", &error))?;
    let mut far = options.far.as_deref().map(|far| start_far(&emulator, far)).transpose()?;
    if let (Some(far), Some(port)) = (&mut far, options.far_port)
        && let Some(signal) = wait_for_port(&emulator, &mut far.0, port, &mut signals)?
    {
        return Ok(status_of(ExitStatus::from_raw(signal)));
    }
    let mut near = Command::new(&options.command[0]);
    addressed(near.args(&options.command[1..])).env(LINK_VARIABLE, options.network.link.to_string());
    let mut near = emulator
        .near()
        .spawn(&mut near)
        .map_err(|error| Failure::network(format!("cannot run {}", options.command[0].display()), &error))?;
    let status = wait(&mut near, far.as_mut().map(|far| &mut far.0), &mut signals)
        .map_err(|error| Failure::network("waiting for the command", &error))?;
    drop(far);
    let statistics =
        emulator.statistics().map_err(|error| Failure::network("no statistics of the network", &error))?;
    let report = Report::new(&options.network.link, options.network.seed, emulator.offloads(), &statistics);
    emulator.end().map_err(|error| Failure::network("the emulated network failed", &error))?;
    tell(options, &report, status_of(status))
}

/// The command of the far end, which ends with this.
struct Far(Child);

impl Drop for Far {
    fn drop(&mut self) {
        end_far(&mut self.0);
    }
}

fn start_far(emulator: &Emulator, far: &str) -> Result<Far, Failure> {
    let mut command = Command::new("sh");
    // A group of its own, so that what the shell starts can be ended with it.
    command.arg("-c").arg(far).stdin(Stdio::null()).process_group(0);
    emulator
        .far()
        .spawn(addressed(&mut command))
        .map(Far)
        .map_err(|error| Failure::network("cannot run the command of the far end", &error))
}

/// Waits until the far command listens, or gives the signal that this process was told to end by.
fn wait_for_port(
    emulator: &Emulator,
    far: &mut Child,
    port: u16,
    signals: &mut Signals,
) -> Result<Option<i32>, Failure> {
    let began = Instant::now();
    let address = SocketAddr::from((FAR.ipv4, port));
    loop {
        let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(1)).map(drop);
        let Err(error) = emulator.far().within(connect) else { return Ok(None) };
        if let Some(signal) = signals.pending().find(|signal| *signal != SIGCHLD) {
            return Ok(Some(signal));
        }
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
pub(super) fn wait(
    near: &mut Child,
    mut far: Option<&mut Child>,
    signals: &mut Signals,
) -> io::Result<ExitStatus> {
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
fn end_far(far: &mut Child) {
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

/// Tells what became of the packets; `status` is the command's.
fn tell(options: &RunOptions, report: &Report, status: ExitCode) -> Result<ExitCode, Failure> {
    if !options.quiet {
        report.lines().iter().for_each(|line| say(line));
    }
    if let Some(doubt) = &report.doubt {
        say(&format!("warning: {doubt}"));
    }
    options.report.as_ref().map_or(Ok(status), |path| save(path, report, status))
}
