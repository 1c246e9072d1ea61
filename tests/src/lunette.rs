//! The `lunette` binary as a child: started on a free port, known by its ready line, ended by its process id.

use std::env;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use crate::process::run;
use crate::server::first_line;

/// The environment variable with the path of the binary under test; without it the harness builds the release binary.
pub const BINARY: &str = "LUNETTE_BIN";

/// The name of the one target that the harness serves.
pub const TARGET_NAME: &str = "iqn.2026-11.io.lunette:test";

/// A configuration file with one target on a free port of the loopback address and 64 MiB of memory as unit 0.
pub const CONFIGURATION: &str = r#"
portals = ["127.0.0.1:0"]
[[target]]
name = "iqn.2026-11.io.lunette:test"
[[target.lun]]
number = 0
store = "mem:64M"
"#;

const BUILD_LIMIT: Duration = Duration::from_secs(20 * 60);
const START_LIMIT: Duration = Duration::from_secs(30);

/// How long a drain may take; the target's own limit is shorter.
pub const STOP_LIMIT: Duration = Duration::from_secs(40);

/// What `lunette serve --json` says on its first line.
#[derive(Debug, Clone, Deserialize)]
pub struct Ready {
    /// Where it listens.
    pub portals: Vec<SocketAddr>,
}

/// How to start the binary.
#[derive(Debug)]
pub struct Launch {
    command: Command,
    portal: Option<String>,
    configuration: Option<String>,
}

impl Launch {
    /// Runs exactly this command, which must serve and say so with `--json`.
    #[must_use]
    pub fn of(command: Command) -> Self {
        Self { command, portal: None, configuration: None }
    }

    /// Adds logical units, each as `--lun` takes it.
    #[must_use]
    pub fn luns(mut self, luns: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        for lun in luns {
            self.command.args(["--lun", lun.as_ref()]);
        }
        self
    }

    /// Adds further arguments of `lunette serve`.
    #[must_use]
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<std::ffi::OsStr>>) -> Self {
        self.command.args(arguments);
        self
    }

    /// Listens here instead of on a free port of the loopback address: for a restart that initiators must find again.
    #[must_use]
    pub fn portal(mut self, portal: SocketAddr) -> Self {
        self.portal = Some(portal.to_string());
        self
    }

    /// Serves what a `lunette.toml` says instead of what flags say: [`CONFIGURATION`] followed by `more`.
    #[must_use]
    pub fn configuration(mut self, more: &str) -> Self {
        self.configuration = Some(format!("{CONFIGURATION}{more}"));
        self
    }

    /// Starts it and waits until it is ready.
    ///
    /// # Errors
    /// It ended, said nothing, or said something else; the text has its log.
    pub fn start(mut self) -> Result<Lunette> {
        let directory = tempfile::tempdir()?;
        let log = directory.path().join("log");
        if let Some(text) = &self.configuration {
            let path = directory.path().join("lunette.toml");
            std::fs::write(&path, text)?;
            self.command.arg("--json").arg("--config").arg(path);
        } else if let Some(portal) = &self.portal {
            self.command.args(["--json", "--target", TARGET_NAME, "--portal", portal]);
        }
        let mut child = self
            .command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("cannot start {:?}", self.command.get_program()))?;
        let stdout = child.stdout.take().context("the child's standard output")?;
        let mut lunette = Lunette { child, ready: Ready { portals: Vec::new() }, log, _directory: directory };
        lunette.ready = first_line(stdout, START_LIMIT)
            .and_then(|line| serde_json::from_str(&line).with_context(|| format!("ready line {line:?}")))
            .map_err(|error| {
                // Gives a process that is just dying the time to say why.
                let ending = lunette.wait(Duration::from_secs(1));
                anyhow!("{error:#}; {ending:?}; its log:\n{}", lunette.log())
            })?;
        ensure!(!lunette.ready.portals.is_empty(), "the ready line names no portal");
        Ok(lunette)
    }
}

/// A running target; killed when dropped.
#[derive(Debug)]
pub struct Lunette {
    child: Child,
    ready: Ready,
    log: PathBuf,
    _directory: tempfile::TempDir,
}

impl Lunette {
    /// `binary serve`, on a free port of the loopback address.
    #[must_use]
    pub fn command(binary: &Path) -> Launch {
        let mut command = Command::new(binary);
        command.arg("serve");
        Launch { command, portal: Some("127.0.0.1:0".to_owned()), configuration: None }
    }

    /// As [`Self::command`] with the binary under test ([`binary`]).
    ///
    /// # Panics
    /// There is none, and it cannot be built.
    #[must_use]
    pub fn serve() -> Launch {
        Self::command(binary())
    }

    /// Where it listens.
    ///
    /// # Panics
    /// Never after a successful start.
    #[must_use]
    pub fn portal(&self) -> SocketAddr {
        self.ready.portals[0]
    }

    /// The URL of a logical unit, as libiscsi's tools and QEMU take it.
    #[must_use]
    pub fn url(&self, lun: usize) -> String {
        self.url_through(0, lun)
    }

    /// As [`Self::url`], through the portal in this place.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    pub fn url_through(&self, portal: usize, lun: usize) -> String {
        format!("iscsi://{}/{TARGET_NAME}/{lun}", self.ready.portals[portal])
    }

    /// The URL of the portal, for discovery.
    #[must_use]
    pub fn portal_url(&self) -> String {
        format!("iscsi://{}", self.portal())
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All that it has logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Waits until a line of the log satisfies `wanted`; returns it, or nothing after `limit`.
    #[must_use]
    pub fn wait_for_log(&self, limit: Duration, wanted: impl Fn(&str) -> bool) -> Option<String> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(line) = self.log().lines().find(|line| wanted(line)) {
                return Some(line.to_owned());
            }
            if Instant::now() > deadline {
                return None;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Memory in use now (resident set), in bytes.
    ///
    /// # Errors
    /// The process is gone.
    pub fn resident_bytes(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kilobytes: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
        Ok(kilobytes * 1024)
    }

    /// Asks it to drain (SIGTERM).
    ///
    /// # Errors
    /// The process is gone.
    pub fn terminate(&self) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::TERM)?)
    }

    /// Has it read its configuration again (SIGHUP).
    ///
    /// # Errors
    /// The process is gone.
    pub fn reload(&self) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::HUP)?)
    }

    /// Ends it without a warning (SIGKILL), as a crash would.
    ///
    /// # Errors
    /// The process is gone.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits for its end; returns nothing after `limit`.
    ///
    /// # Errors
    /// The system call failed.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() > deadline {
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// True as long as it runs.
    ///
    /// # Errors
    /// The system call failed.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Drains it and expects status 0.
    ///
    /// # Errors
    /// It had ended before, ended with another status, or does not end; the text has its log.
    pub fn stop(mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("ended before it was told to: {}; its log:\n{}", describe(status), self.log());
        }
        self.terminate()?;
        match self.wait(STOP_LIMIT)? {
            None => bail!("does not end on SIGTERM; its log:\n{}", self.log()),
            Some(status) if status.success() => Ok(()),
            Some(status) => bail!("{}; its log:\n{}", describe(status), self.log()),
        }
    }
}

impl Drop for Lunette {
    fn drop(&mut self) {
        // It may have ended already; either way nothing is left afterwards.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The binary under test: what [`BINARY`] names, or the release binary, built now.
///
/// # Panics
/// It cannot be built.
#[must_use]
pub fn binary() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| match env::var_os(BINARY) {
        Some(path) => PathBuf::from(path),
        None => build().unwrap_or_else(|error| panic!("cannot build the binary under test: {error:#}")),
    })
}

fn build() -> Result<PathBuf> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--package", "lunette-cli", "--message-format", "json"]);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    let finished = run(&mut command, BUILD_LIMIT)?;
    ensure!(finished.success(), "cargo build: {}: {}", finished.ending(), finished.output);
    let executable = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    };
    finished.output.lines().find_map(executable).context("cargo build names no executable")
}

fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("killed by signal {signal}"),
        None => status.to_string(),
    }
}
