//! The load generator of this project, `lunette-bench`, as a child: what it is asked for and what it answers.
//!
//! It costs less for each command than libiscsi's tools, so that a target's own limit shows.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunette_tests::process::run;
use lunette_tests::server::Server;
use serde::Deserialize;

/// Longer than any single measurement takes, however slow the machine.
const LIMIT: Duration = Duration::from_secs(300);

const KIB: u64 = 1 << 10;

/// From here on the generator throws reads away unless it is asked to take them: `DISCARD_MEAN_BYTES` in `bench/src/load/worker.rs`.
const DISCARD_BYTES: u64 = 64 * KIB;

/// What a generator does. The default is one session with one 4-KiB read at a time, in random order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Workload {
    pub(crate) read_percent: u32,
    pub(crate) block_bytes: u64,
    pub(crate) sequential: bool,
    pub(crate) depth: u32,
    pub(crate) sessions: u32,
    /// Of each session.
    pub(crate) connections: u32,
    /// Header and data digests.
    pub(crate) digests: bool,
    /// Long reads are taken into memory, as an initiator has to, and not thrown away in the kernel.
    pub(crate) takes: bool,
    /// SYNCHRONIZE CACHE after so many writes; 0 is never.
    pub(crate) flush_every: u32,
    /// Lock step: `depth` commands in one write, the next when all are answered.
    pub(crate) burst: bool,
    /// What part of the unit is used, from its beginning; 0 is all of it.
    pub(crate) span_bytes: u64,
    /// `None` is a login without authentication.
    pub(crate) chap: Option<MutualChap>,
}

/// Names, and files with the secrets that belong to them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MutualChap {
    pub(crate) user: (&'static str, PathBuf),
    /// Under which the target proves itself.
    pub(crate) target: (&'static str, PathBuf),
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            read_percent: 100,
            block_bytes: 4 * KIB,
            sequential: false,
            depth: 1,
            sessions: 1,
            connections: 1,
            digests: false,
            takes: false,
            flush_every: 0,
            burst: false,
            span_bytes: 0,
            chap: None,
        }
    }
}

impl Workload {
    pub(crate) fn read(block_bytes: u64, depth: u32) -> Self {
        // From here on it is bandwidth that is asked for.
        Self { block_bytes, depth, sequential: block_bytes >= 512 * KIB, ..Self::default() }
    }

    pub(crate) fn write(block_bytes: u64, depth: u32) -> Self {
        Self { read_percent: 0, ..Self::read(block_bytes, depth) }
    }

    /// What Lunette is compared in, with the bare loop and with other targets.
    pub(crate) fn compared() -> [Self; 12] {
        let mix = |kibibytes: u64| Self { read_percent: 70, ..Self::read(kibibytes * KIB, 32) };
        [
            Self::read(4 * KIB, 1),
            Self::write(4 * KIB, 1),
            Self::read(4 * KIB, 32),
            Self::write(4 * KIB, 32),
            Self::read(512, 32),
            mix(8),
            mix(16),
            mix(64),
            Self::read(512 * KIB, 8),
            Self::write(512 * KIB, 8),
            Self::read(512 * KIB, 32),
            Self::write(512 * KIB, 32),
        ]
        .map(Self::taken)
    }

    /// The same, with what is read taken into memory.
    pub(crate) fn taken(self) -> Self {
        Self { takes: true, ..self }
    }

    /// The same, with what is read thrown away; `None` where the generator does not.
    pub(crate) fn thrown_away(self) -> Option<Self> {
        (self.read_percent > 0 && self.block_bytes >= DISCARD_BYTES).then_some(Self { takes: false, ..self })
    }

    /// "4 KiB random read, depth 32".
    pub(crate) fn title(&self) -> String {
        let size = if self.block_bytes.is_multiple_of(KIB) {
            format!("{} KiB", self.block_bytes / KIB)
        } else {
            format!("{} B", self.block_bytes)
        };
        let order = if self.sequential { "sequential" } else { "random" };
        let verb = match self.read_percent {
            100 => "read".to_owned(),
            0 => "write".to_owned(),
            percent => format!("{percent} % read"),
        };
        format!("{size} {order} {verb}, depth {}", self.depth)
    }

    fn arguments(&self) -> Vec<String> {
        let mut words = vec![
            format!("--read-percent={}", self.read_percent),
            format!("--block-bytes={}", self.block_bytes),
            format!("--order={}", if self.sequential { "sequential" } else { "random" }),
            format!("--depth={}", self.depth),
            format!("--sessions={}", self.sessions),
            format!("--connections={}", self.connections),
            format!("--digests={}", if self.digests { "both" } else { "none" }),
        ];
        if self.flush_every > 0 {
            words.push(format!("--flush-every={}", self.flush_every));
        }
        if self.span_bytes > 0 {
            words.push(format!("--span-bytes={}", self.span_bytes));
        }
        if self.takes {
            words.push("--take".to_owned());
        }
        if self.burst {
            words.push("--burst".to_owned());
        }
        if let Some(MutualChap { user, target }) = &self.chap {
            words.extend([
                format!("--chap-user={}", user.0),
                format!("--chap-secret-file={}", user.1.display()),
                format!("--chap-mutual={}", target.0),
                format!("--chap-mutual-secret-file={}", target.1.display()),
            ]);
        }
        words
    }
}

/// When a run ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until {
    Seconds(f64),
    /// So many operations in all.
    Count(u64),
}

/// What `lunette-bench load` answers; fields that nobody here reads are left out.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Measured {
    pub(crate) operations: u64,
    pub(crate) operations_per_s: f64,
    pub(crate) bytes_per_s: f64,
    /// Commands that ended with BUSY or TASK SET FULL.
    pub(crate) busy: u64,
    /// Sessions that the target closed instead of answering their logout.
    pub(crate) logouts_unanswered: u64,
    pub(crate) latency_us: Latency,
    pub(crate) per_session: PerSession,
    pub(crate) first_block_us: Once,
    pub(crate) window: Window,
}

impl Measured {
    /// # Errors
    /// The target did not end a session in order: what one may forgive others, but not Lunette.
    pub(crate) fn is_in_order(&self) -> Result<()> {
        let unanswered = self.logouts_unanswered;
        ensure!(unanswered == 0, "the target closed {unanswered} sessions instead of answering their logout");
        Ok(())
    }
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Latency {
    pub(crate) median: f64,
    pub(crate) p999: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct PerSession {
    pub(crate) slowest_operations_per_s: f64,
    pub(crate) mean_operations_per_s: f64,
}

/// What happens once a session.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Once {
    pub(crate) median: f64,
    pub(crate) p99: f64,
}

/// The command window that the target granted, in commands.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Window {
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// What `lunette-bench idle` says first.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Idle {
    pub(crate) sessions: u64,
    pub(crate) login_us: LoginTimes,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct LoginTimes {
    pub(crate) median: f64,
    pub(crate) p99: f64,
}

/// A load that runs beside other measurements; killed when dropped.
#[derive(Debug)]
pub(crate) struct Background(Child);

/// The program.
#[derive(Debug, Clone)]
pub(crate) struct Generator {
    program: PathBuf,
}

impl Generator {
    pub(crate) fn new(program: PathBuf) -> Self {
        Self { program }
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    fn command(&self, url: &str, workload: &Workload, until: Until) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["load", url]).args(workload.arguments());
        // Everything counts: the target's processor time is taken around the whole run. Who wants it warm runs twice.
        command.args(["--warmup-s", "0"]);
        match until {
            Until::Seconds(seconds) => command.arg(format!("--seconds={seconds}")),
            Until::Count(count) => command.arg(format!("--count={count}")),
        };
        command
    }

    pub(crate) fn load(&self, url: &str, workload: &Workload, until: Until) -> Result<Measured> {
        let finished = run(&mut self.command(url, workload, until), LIMIT)?;
        ensure!(
            finished.success(),
            "lunette-bench ({}) at {url}: {}: {}",
            workload.title(),
            finished.ending(),
            finished.output.trim()
        );
        read(&finished.output)
    }

    /// Starts a load; [`Background::end`] waits for it.
    pub(crate) fn start(&self, url: &str, workload: &Workload, seconds: f64) -> Result<Background> {
        let mut command = self.command(url, workload, Until::Seconds(seconds));
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(Background(child.spawn().context("cannot start lunette-bench")?))
    }

    /// Logs in `sessions` sessions and holds them as long as the server lives.
    pub(crate) fn idle(&self, url: &str, sessions: u64, log: &Path) -> Result<(Server, Idle)> {
        let mut command = Command::new(&self.program);
        command.args(["idle", url, "--sessions", &sessions.to_string()]);
        let server = Server::start(&mut command, log, LIMIT)?;
        let idle = read(server.first_line())?;
        Ok((server, idle))
    }
}

impl Background {
    /// Waits for its end by itself. Only Lunette is measured so, which has to answer logouts.
    pub(crate) fn end(mut self) -> Result<Measured> {
        let mut output = String::new();
        if let Some(mut stdout) = self.0.stdout.take() {
            stdout.read_to_string(&mut output)?;
        }
        // One line at most.
        let mut complaint = String::new();
        if let Some(mut stderr) = self.0.stderr.take() {
            stderr.read_to_string(&mut complaint)?;
        }
        let status = self.0.wait()?;
        ensure!(status.success(), "lunette-bench: {status}: {}", complaint.trim());
        let measured: Measured = read(&output)?;
        measured.is_in_order()?;
        Ok(measured)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // It may have ended already; either way nothing is left afterwards.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The JSON object in an output that may have warnings before it.
fn read<T: for<'de> Deserialize<'de>>(output: &str) -> Result<T> {
    let start = output.find('{').with_context(|| format!("no JSON in {output:?}"))?;
    serde_json::from_str(&output[start..]).with_context(|| format!("lunette-bench said {output:?}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What the generator says of so many operations, everything else being nothing.
    pub(crate) fn measured(operations_per_s: f64) -> Measured {
        Measured {
            operations: 1,
            operations_per_s,
            bytes_per_s: 0.0,
            busy: 0,
            logouts_unanswered: 0,
            latency_us: Latency { median: 0.0, p999: 0.0 },
            per_session: PerSession { slowest_operations_per_s: 0.0, mean_operations_per_s: 0.0 },
            first_block_us: Once { median: 0.0, p99: 0.0 },
            window: Window { min: 0.0, max: 0.0 },
        }
    }

    #[test]
    fn titles_and_arguments() {
        let mix = Workload { read_percent: 70, ..Workload::read(8 * KIB, 32) };
        assert_eq!(mix.title(), "8 KiB random 70 % read, depth 32");
        assert_eq!(Workload::read(512, 32).title(), "512 B random read, depth 32");
        let write = Workload::write(512 * KIB, 8);
        assert_eq!(write.title(), "512 KiB sequential write, depth 8");
        let words = write.arguments();
        assert!(
            words.contains(&"--read-percent=0".to_owned())
                && words.contains(&"--order=sequential".to_owned())
        );
        assert!(!words.iter().any(|word| word.starts_with("--flush-every") || word == "--burst"));
        assert!(!words.iter().any(|word| word.starts_with("--chap")));
        let chap = MutualChap { user: ("host", "a".into()), target: ("disk", "b".into()) };
        let words = Workload { chap: Some(chap), ..write }.arguments();
        let chap =
            ["--chap-user=host", "--chap-secret-file=a", "--chap-mutual=disk", "--chap-mutual-secret-file=b"];
        assert!(words.ends_with(&chap.map(str::to_owned)));
    }

    #[test]
    fn a_logout_without_an_answer_is_out_of_order() {
        assert!(measured(1.0).is_in_order().is_ok());
        let error = Measured { logouts_unanswered: 2, ..measured(1.0) }.is_in_order().expect_err("two");
        assert!(error.to_string().contains("closed 2 sessions"), "{error}");
    }

    #[test]
    fn reads_what_stands_behind_warnings() {
        let idle: Idle = read(
            "warning: few descriptors\n{\"sessions\":3,\"login_us\":{\"median\":1.5,\"p99\":2,\"max\":9}}\n",
        )
        .expect("an answer");
        assert_eq!((idle.sessions, idle.login_us.p99), (3, 2.0));
        assert!(read::<Idle>("nothing").is_err());
    }
}
