//! istgt (Debian's package of that name, 2011) as a foreign target, for comparison.
//!
//! It is told everything by a file, and serves what the file names when it starts.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::packages::find_program;
use crate::tgtd::free_portal;

/// What its target's name begins with.
const NODE_BASE: &str = "iqn.2026-11.io.lunette";

/// The unit's serial number, if nothing else is said.
const SERIAL: &str = "10000001";

const START_LIMIT: Duration = Duration::from_secs(60);

/// A running istgt with one target; ended when dropped.
#[derive(Debug)]
pub struct Istgt {
    child: Child,
    portals: Vec<SocketAddr>,
}

impl Istgt {
    /// Starts istgt on a free port of the loopback address, serving `file` as unit 0. Its configuration and log go to
    /// `directory`.
    ///
    /// # Errors
    /// istgt is not installed or did not start.
    pub fn start(directory: &Path, file: &Path) -> Result<Self> {
        Self::start_with(directory, file, 512, 1)
    }

    /// The same with blocks of `block_bytes`, and with so many portals of one portal group.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(directory: &Path, file: &Path, block_bytes: u32, portals: usize) -> Result<Self> {
        let portals = (0..portals).map(|_| free_portal()).collect::<Result<Vec<_>>>()?;
        Self::start_at(portals, directory, file, block_bytes, SERIAL)
    }

    /// The same at these portals, with this serial number of the unit.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_at(
        portals: Vec<SocketAddr>,
        directory: &Path,
        file: &Path,
        block_bytes: u32,
        serial: &str,
    ) -> Result<Self> {
        let program = find_program("istgt").context("istgt is not installed (Debian package istgt)")?;
        // It wants a port for its control protocol, too.
        let control = free_portal()?;
        let path = directory.join("istgt.conf");
        let text = configuration(directory, &portals, control, file, block_bytes, serial);
        std::fs::write(&path, text)?;
        // Who may log in with CHAP: nobody has to.
        std::fs::write(directory.join("istgt.auth"), "")?;
        let log = File::create(directory.join("istgt.log"))?;
        let child = Command::new(program)
            .args(["-D".as_ref(), "-c".as_ref(), path.as_os_str()])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start istgt")?;
        let mut istgt = Self { child, portals };
        istgt.wait_until_it_listens()?;
        Ok(istgt)
    }

    /// The URL of the unit, for libiscsi.
    #[must_use]
    pub fn url(&self) -> String {
        format!("iscsi://{}/{NODE_BASE}:istgt/0", self.portals[0])
    }

    /// Where it listens.
    #[must_use]
    pub fn portals(&self) -> &[SocketAddr] {
        &self.portals
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_until_it_listens(&mut self) -> Result<()> {
        let start = Instant::now();
        while TcpStream::connect(self.portals[0]).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("istgt ended at once: {status}");
            }
            ensure!(start.elapsed() < START_LIMIT, "istgt does not listen on {:?}", self.portals);
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Istgt {
    fn drop(&mut self) {
        // It may have ended already; either way nothing is left afterwards.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lengths are those of the sample that comes with it; the queue is as deep as ours, so that its window does not
/// decide a comparison.
fn configuration(
    directory: &Path,
    portals: &[SocketAddr],
    control: SocketAddr,
    file: &Path,
    block_bytes: u32,
    serial: &str,
) -> String {
    let (directory, file) = (directory.display(), file.display());
    let portals: String =
        portals.iter().zip(1..).map(|(portal, number)| format!("Portal DA{number} {portal}\n")).collect();
    format!(
        "[Global]
NodeBase \"{NODE_BASE}\"
PidFile {directory}/istgt.pid
AuthFile {directory}/istgt.auth
MediaDirectory {directory}
Timeout 30
NopInInterval 20
DiscoveryAuthMethod None
MaxSessions 300
MaxConnections 4
MaxR2T 32
MaxOutstandingR2T 16
FirstBurstLength 262144
MaxBurstLength 1048576
MaxRecvDataSegmentLength 262144
[UnitControl]
AuthMethod None
Portal UC1 {control}
Netmask 127.0.0.1
[PortalGroup1]
{portals}[InitiatorGroup1]
InitiatorName \"ALL\"
Netmask 127.0.0.1
[LogicalUnit1]
TargetName \"istgt\"
Mapping PortalGroup1 InitiatorGroup1
AuthMethod None
UseDigest Auto
UnitType Disk
UnitInquiry \"ISTGT\" \"DISK\" \"0001\" \"{serial}\"
QueueDepth 128
BlockLength {block_bytes}
LUN0 Storage {file} Auto
"
    )
}
