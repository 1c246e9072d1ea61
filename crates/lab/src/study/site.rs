//! Where cells over a network are measured: an emulated link with a target at its far end.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lunette_initiator::{IscsiName, Lun, Options, Portal};
use lunette_link::Link;
use lunette_wan::{Emulator, FAR};

use super::result::LinkFacts;
use crate::LabError;

const TARGET: &str = "iqn.2026-11.io.lunette:lab";
const PORT: u16 = 3260;
const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// What is used of it, in bytes.
pub(crate) const RANGE_BYTES: u64 = 256 << 20;
/// A round trip is to be right within this, or within a fiftieth of it where that is more.
const LATE: Duration = Duration::from_micros(300);
/// Its blocks, in bytes.
pub(crate) const BLOCK_BYTES: u32 = 512;

/// A running network with its target. It ends when it is dropped; the target also when the thread ends that made it.
pub(crate) struct Site {
    emulator: Emulator,
    target: Child,
}

impl Site {
    /// Makes the network and starts the target. The calling thread stays in the far namespace.
    pub(crate) fn open(link: &Link, seed: u64, binary: &Path) -> Result<Self, LabError> {
        Self::open_with(link, seed, binary, "")
    }

    /// The same with a `[limits]` table for the target.
    pub(crate) fn open_with(link: &Link, seed: u64, binary: &Path, limits: &str) -> Result<Self, LabError> {
        let emulator = Emulator::start(link, seed)?;
        let mut command = Command::new(binary);
        command
            .args(["serve", "--config", "/dev/stdin", "--log", "off", "--json"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // An interrupt of the terminal is this process's to handle.
            .process_group(0);
        let mut target =
            emulator.far().spawn(&mut command).map_err(LabError::system("a target at the far end"))?;
        if let Some(mut stdin) = target.stdin.take() {
            // Who does not read it ends without a word.
            let _ = stdin.write_all((configuration() + limits).as_bytes());
        }
        let mut site = Self { emulator, target };
        let mut line = String::new();
        if let Some(stdout) = site.target.stdout.take() {
            // It says so when it is ready, and ends without a word if it cannot be.
            BufReader::new(stdout).read_line(&mut line).map_err(LabError::system("a word of the target"))?;
        }
        if line.is_empty() {
            return Err(LabError::NotReady("the target at the far end has ended".to_owned()));
        }
        Ok(site)
    }

    /// How to log in to the target.
    pub(crate) fn options(&self) -> Result<(Options, Lun), LabError> {
        let name = IscsiName::parse(TARGET).map_err(|error| LabError::Plan(error.to_string()))?;
        let mut options = Options::new(name, Portal::new(FAR.ipv4.to_string(), PORT));
        // A session that is lost is a figure that is lost.
        options.timing.recovery = Duration::ZERO;
        Ok((options, Lun::default()))
    }

    /// Does something at the near end.
    pub(crate) fn near<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        self.emulator.near().within(|| Ok(work())).map_err(LabError::system("the near end"))
    }

    /// Does something at the far end.
    pub(crate) fn far<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> Result<T, LabError> {
        self.emulator.far().within(work).map_err(LabError::system("the far end"))
    }

    /// An address of the far end.
    pub(crate) fn address(port: u16) -> SocketAddr {
        SocketAddr::from((FAR.ipv4, port))
    }

    /// TCP's congestion control at the near end; the far one's is the same.
    pub(crate) fn congestion_control(&self) -> Result<String, LabError> {
        let name = self.emulator.near().within(|| fs::read_to_string(CONGESTION_CONTROL));
        Ok(name.map_err(LabError::system("the name of the congestion control"))?.trim().to_owned())
    }

    /// How the link was kept.
    pub(crate) fn facts(&self, link: &Link) -> Result<LinkFacts, LabError> {
        let statistics = self.emulator.statistics().map_err(LabError::system("counters of the network"))?;
        let late: Duration = statistics.iter().map(|direction| direction.lateness_median).sum();
        let overrun: u64 = statistics.iter().map(|direction| direction.overrun).sum();
        Ok(LinkFacts {
            description: link.to_string(),
            congestion_control: self.congestion_control()?,
            late_us: u64::try_from(late.as_micros()).unwrap_or(u64::MAX),
            overrun,
            is_doubtful: overrun > 0 || late > LATE.max(link.round_trip() / 50),
        })
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // Memory has nothing to be flushed.
        let _ = self.target.kill();
        let _ = self.target.wait();
    }
}

/// One disk: memory, so that no store is measured.
fn configuration() -> String {
    format!(
        "portals = [\"{}:{PORT}\"]\n\n[[target]]\nname = \"{TARGET}\"\n\n[[target.lun]]\nnumber = 0\nstore = \"mem:1G\"\n\
         write = \"back\"\n\n",
        FAR.ipv4
    )
}
