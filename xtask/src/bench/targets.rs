//! Targets under measurement: started, stopped, and asked for their processor time and memory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lunette_tests::istgt::Istgt;
use lunette_tests::lunette::{Launch, Lunette};
use lunette_tests::server::Server;
use lunette_tests::tgtd::Tgtd;
use rustix::process::{Pid, Signal};
use serde::Deserialize;

use super::Stand;
use super::generator::{Measured, Until, Workload};
use super::host::version;
use super::report::Unit;
use super::sample::Run;

/// URLs of targets that somebody else started: `LUNETTE_BENCH_PEER_SPDK=iscsi://...`, and with `_PID` behind it the
/// process id, for its processor time and so that it is halted while others are measured; with `_VERSION`, what the
/// table calls it.
pub(crate) const PEER_PREFIX: &str = "LUNETTE_BENCH_PEER_";
const PID_SUFFIX: &str = "_PID";
const VERSION_SUFFIX: &str = "_VERSION";

/// How long a yardstick may take until it listens.
pub(crate) const READY_LIMIT: Duration = Duration::from_secs(30);

const FILL_BLOCK_BYTES: u64 = 512 << 10;

/// The name of the target that `lunette-bench floor` serves.
const FLOOR_NAME: &str = "iqn.2026-11.io.lunette:floor";

/// Kinds of the bare loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Floor {
    /// Sleeps whenever there is nothing to do.
    Plain,
    /// Stays awake between the commands of a shallow queue, as Lunette does.
    Awake,
    /// No data enters the process.
    Sendfile,
}

/// Ends a process when dropped, but for a foreign one.
#[derive(Debug)]
enum Process {
    Lunette(Lunette),
    Tgtd(Tgtd),
    Istgt(Istgt),
    Floor(Server),
    Foreign { halted: Option<Halted>, version: Option<String> },
}

/// Somebody else's process, halted but for the time of its own measurements: one that polls would take a processor from
/// all the others. It goes on when this is dropped.
#[derive(Debug)]
struct Halted {
    pid: Pid,
}

impl Halted {
    fn new(pid: u32) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        rustix::process::kill_process(pid, Signal::STOP).ok()?;
        Some(Self { pid })
    }

    fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    fn goes_on(&self) -> GoesOn<'_> {
        // A process that has ended shows itself by not answering.
        let _ = rustix::process::kill_process(self.pid, Signal::CONT);
        GoesOn(self)
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.pid, Signal::CONT);
    }
}

/// Until it is dropped, a foreign process runs.
#[derive(Debug)]
pub(crate) struct GoesOn<'a>(&'a Halted);

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0.pid, Signal::STOP);
    }
}

/// What a process has taken of the processors, in two ways.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessorTime {
    /// To the nanosecond, but only of the threads that are there now.
    threads_ns: u64,
    /// In ticks of the system's clock, with the threads that have ended.
    process_ns: u64,
}

impl ProcessorTime {
    /// The exact one, unless threads came and went: some targets have one for each connection.
    pub(crate) fn since(&self, before: &Self) -> u64 {
        let threads_ns = self.threads_ns.saturating_sub(before.threads_ns);
        let process_ns = self.process_ns.saturating_sub(before.process_ns);
        if process_ns > threads_ns + 2 * tick_ns() { process_ns } else { threads_ns }
    }
}

fn tick_ns() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

/// A running target with one logical unit to measure.
#[derive(Debug)]
pub(crate) struct Target {
    name: String,
    url: String,
    process: Process,
}

/// What one run of the generator gave.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub(crate) measured: Measured,
    /// The target's processor time for each operation, in microseconds.
    pub(crate) processor_us: Option<f64>,
}

impl Sample {
    /// As a table has it whose operations move so many bytes.
    pub(crate) fn run(&self, block_bytes: u64) -> Run {
        let rate = match Unit::of_rate(block_bytes) {
            Unit::PerSecond => self.measured.operations_per_s,
            _ => self.measured.bytes_per_s,
        };
        Run { rate, processor_us: self.processor_us }
    }
}

impl Target {
    /// Lunette with one unit, described as `--lun` takes it.
    pub(crate) fn lunette(stand: &Stand<'_>, lun: &str) -> Result<Self> {
        Self::lunette_with(stand, lun, &[])
    }

    /// [`Self::lunette`] with more arguments.
    pub(crate) fn lunette_with(stand: &Stand<'_>, lun: &str, arguments: &[&str]) -> Result<Self> {
        let mut lun = format!("0={lun}");
        if let Some(more) = stand.lun_options() {
            lun.push(',');
            lun.push_str(more);
        }
        Self::launched(Lunette::command(stand.lunette()).luns([lun]).args(arguments))
    }

    /// Lunette with what `launch` says.
    pub(crate) fn launched(launch: Launch) -> Result<Self> {
        let lunette = launch.args(["--log", "warn"]).start()?;
        Ok(Self { name: "Lunette".to_owned(), url: lunette.url(0), process: Process::Lunette(lunette) })
    }

    pub(crate) fn tgtd(directory: &Path, file: &Path) -> Result<Self> {
        let mut tgtd = Tgtd::start(&directory.join("tgtd.log"))?;
        Ok(Self { name: "tgtd".to_owned(), url: tgtd.add_file(file)?, process: Process::Tgtd(tgtd) })
    }

    pub(crate) fn istgt(directory: &Path, file: &Path) -> Result<Self> {
        let istgt = Istgt::start(directory, file)?;
        Ok(Self { name: "istgt".to_owned(), url: istgt.url(), process: Process::Istgt(istgt) })
    }

    /// The bare loop over a file or `mem:SIZE`.
    pub(crate) fn floor(stand: &Stand<'_>, store: &str, kind: Floor) -> Result<Self> {
        #[derive(Deserialize)]
        struct Ready {
            portal: String,
        }
        let mut command = Command::new(stand.generator().program());
        command.args(["floor", store, "--portal", "127.0.0.1:0"]);
        let name = match kind {
            Floor::Plain => "floor",
            Floor::Awake => {
                command.arg("--wait=adaptive");
                "floor, awake"
            }
            Floor::Sendfile => {
                command.arg("--sendfile");
                "floor, sendfile"
            }
        };
        let server = Server::start(&mut command, &stand.path("floor.log"), READY_LIMIT)?;
        let ready: Ready = serde_json::from_str(server.first_line()).context("the floor's first line")?;
        let url = format!("iscsi://{}/{FLOOR_NAME}/0", ready.portal);
        Ok(Self { name: name.to_owned(), url, process: Process::Floor(server) })
    }

    /// Those that the environment names.
    pub(crate) fn foreign() -> Vec<Self> {
        let variables: Vec<(String, String)> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        foreign(&variables)
    }

    /// Under another name, where several of a kind run.
    pub(crate) fn named(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    /// Another logical unit of Lunette's.
    pub(crate) fn unit(mut self, number: usize) -> Self {
        if let Process::Lunette(lunette) = &self.process {
            self.url = lunette.url(number);
        }
        self
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Of others' programs, which they are, for the facts under a table.
    pub(crate) fn version(&self) -> Option<String> {
        match &self.process {
            Process::Lunette(_) | Process::Floor(_) => None,
            Process::Tgtd(_) => Some(format!("tgtd {}", version("tgtd", "--version"))),
            Process::Istgt(_) => Some(version("istgt", "-V")),
            Process::Foreign { version, .. } => {
                let version = version.as_deref().unwrap_or("(version not given)");
                Some(format!("{} {version}", self.name))
            }
        }
    }

    /// True where its processor time can be known.
    pub(crate) fn has_process(&self) -> bool {
        self.pid().is_some()
    }

    fn pid(&self) -> Option<u32> {
        match &self.process {
            Process::Lunette(lunette) => Some(lunette.pid()),
            Process::Tgtd(tgtd) => Some(tgtd.pid()),
            Process::Istgt(istgt) => Some(istgt.pid()),
            Process::Floor(server) => Some(server.pid()),
            Process::Foreign { halted, .. } => halted.as_ref().map(Halted::id),
        }
    }

    /// Whoever measures this target holds the answer meanwhile: others' processes are halted without it.
    pub(crate) fn awake(&self) -> Option<GoesOn<'_>> {
        match &self.process {
            Process::Foreign { halted, .. } => halted.as_ref().map(Halted::goes_on),
            _ => None,
        }
    }

    /// Processor time so far.
    fn processor_time(&self) -> Option<ProcessorTime> {
        processor_time(self.pid()?)
    }

    /// Memory in use now (resident set), in bytes.
    pub(crate) fn resident_bytes(&self) -> Result<f64> {
        let pid = self.pid().context("a target whose process is known")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        read_resident(&status).context("no VmRSS")
    }

    /// One measurement with the generator.
    pub(crate) fn load(&self, stand: &Stand<'_>, workload: &Workload, until: Until) -> Result<Sample> {
        let before = self.processor_time();
        let measured = stand.generator().load(&self.url, workload, until)?;
        if matches!(self.process, Process::Lunette(_)) {
            measured.is_in_order()?;
        }
        let spent_ns = self.processor_time().zip(before).map(|(after, before)| after.since(&before));
        let processor_us = spent_ns.map(|spent| spent as f64 / 1e3 / measured.operations.max(1) as f64);
        Ok(Sample { measured, processor_us })
    }

    /// Runs this, and says what part of one processor the target took meanwhile.
    pub(crate) fn share_of_processor<T>(&self, run: impl FnOnce() -> T) -> Result<(T, f64)> {
        let time = || self.processor_time().context("a target whose process is known");
        let (before, began) = (time()?, Instant::now());
        let done = run();
        let elapsed = began.elapsed();
        Ok((done, time()?.since(&before) as f64 / elapsed.as_nanos().max(1) as f64))
    }

    /// Writes every block once: what was never written is not read but made up.
    pub(crate) fn fill(&self, stand: &Stand<'_>) -> Result<()> {
        let workload = Workload::write(FILL_BLOCK_BYTES, 8);
        self.load(stand, &workload, Until::Count(stand.file_bytes() / FILL_BLOCK_BYTES)).map(|_| ())
    }

    /// Ends it; Lunette must drain without a complaint.
    pub(crate) fn stop(self) -> Result<()> {
        match self.process {
            Process::Lunette(lunette) => lunette.stop(),
            _ => Ok(()),
        }
    }
}

/// What a process has taken so far; nothing of one that has ended.
pub(crate) fn processor_time(pid: u32) -> Option<ProcessorTime> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let threads = std::fs::read_dir(process.join("task")).ok()?.filter_map(|task| {
        // A thread may end meanwhile.
        read_schedstat(&std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?)
    });
    let threads_ns = threads.sum();
    let ticks = read_stat_ticks(&std::fs::read_to_string(process.join("stat")).ok()?)?;
    let process_ns = ticks.saturating_mul(tick_ns());
    Some(ProcessorTime { threads_ns, process_ns })
}

fn foreign(variables: &[(String, String)]) -> Vec<Target> {
    let value = |name: &str| variables.iter().find(|(found, _)| found == name).map(|(_, value)| value);
    let named = |(name, url): &(String, String)| {
        let is_fact = |short: &str| short.ends_with(PID_SUFFIX) || short.ends_with(VERSION_SUFFIX);
        let short = name.strip_prefix(PEER_PREFIX).filter(|short| !is_fact(short))?;
        let pid = value(&format!("{name}{PID_SUFFIX}")).and_then(|pid| pid.parse().ok());
        let version = value(&format!("{name}{VERSION_SUFFIX}")).cloned();
        let process = Process::Foreign { halted: pid.and_then(Halted::new), version };
        Some(Target { name: short.to_owned(), url: url.clone(), process })
    };
    variables.iter().filter_map(named).collect()
}

/// The first field: nanoseconds on a processor.
fn read_schedstat(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// Fields 14 and 15, user and system time in ticks; the second field is the program's name in brackets, with anything in
/// it.
fn read_stat_ticks(text: &str) -> Option<u64> {
    let (_, rest) = text.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(ticks()? + ticks()?)
}

fn read_resident(status: &str) -> Option<f64> {
    let value = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: f64 = value.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_halted(pid: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    #[test]
    fn peers_of_the_environment() {
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = sleeper.id();
        let targets = foreign(&[
            variable("LUNETTE_BENCH_PEER_SPDK", "iscsi://127.0.0.1:1/a/0"),
            variable("LUNETTE_BENCH_PEER_SPDK_PID", &pid.to_string()),
            variable("LUNETTE_BENCH_PEER_SPDK_VERSION", "v26.05"),
            variable("LUNETTE_BENCH_PEER_gotgt", "iscsi://127.0.0.1:2/b/1"),
            variable("HOME", "x"),
        ]);
        let seen: Vec<_> = targets.iter().map(|target| (target.name(), target.pid())).collect();
        assert_eq!(seen, [("SPDK", Some(pid)), ("gotgt", None)]);
        assert_eq!(targets[1].url(), "iscsi://127.0.0.1:2/b/1");
        assert!(targets[0].has_process() && !targets[1].has_process());
        let versions: Vec<_> = targets.iter().filter_map(Target::version).collect();
        assert_eq!(versions, ["SPDK v26.05", "gotgt (version not given)"]);
        // The kernel needs a moment from the signal to the state.
        let becomes = |halted: bool| {
            (0..30_000).any(|_| {
                std::thread::sleep(Duration::from_millis(1));
                is_halted(pid) == halted
            })
        };
        assert!(becomes(true));
        let awake = targets[0].awake();
        assert!(awake.is_some() && becomes(false) && targets[1].awake().is_none());
        drop(awake);
        assert!(becomes(true));
        drop(targets);
        assert!(becomes(false));
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }

    #[test]
    fn what_the_kernel_says_of_a_process() {
        assert_eq!(read_schedstat("123456 99 7\n"), Some(123_456));
        assert_eq!(read_resident("Name:\tx\nVmRSS:\t    2048 kB\nThreads:\t3\n"), Some(2_097_152.0));
        assert_eq!(read_resident("Name:\tx\n"), None);
        assert_eq!(read_stat_ticks("7 (a) b) S 1 7 7 0 -1 4 1 2 3 4 150 25 0 0 20 0 3 0\n"), Some(175));
        let time = |threads_ns, process_ns| ProcessorTime { threads_ns, process_ns };
        assert_eq!(time(1_500, 0).since(&time(1_000, 0)), 500);
        assert_eq!(time(1_500, 1_000_000_000).since(&time(1_000, 0)), 1_000_000_000, "threads have ended");
        let me = Target {
            name: String::new(),
            url: String::new(),
            process: Process::Foreign { halted: None, version: None },
        };
        assert!(me.resident_bytes().is_err(), "nobody knows its process");
    }
}
