//! tgtd (Debian's package `tgt`) as a foreign target, for comparison and to develop tests of tests against.
//!
//! It ignores SIGTERM, so it is ended with SIGKILL by its process id; it gets a control port of its own.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::packages::find_program;
use crate::process::run;

/// The name of the one target that is set up.
pub const TARGET_NAME: &str = "iqn.2026-11.io.lunette:tgtd";

const START_LIMIT: Duration = Duration::from_secs(60);
const CONTROL_LIMIT: Duration = Duration::from_secs(60);

/// A running tgtd with one target; ended when dropped.
#[derive(Debug)]
pub struct Tgtd {
    child: Child,
    control_port: u16,
    portal: SocketAddr,
    units: usize,
}

impl Tgtd {
    /// Starts tgtd on a free port of the loopback address; its log goes to `log`.
    ///
    /// # Errors
    /// tgtd is not installed, did not start or refuses its set-up.
    pub fn start(log: &Path) -> Result<Self> {
        Self::start_at(free_portal()?, log)
    }

    /// The same at this portal.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_at(portal: SocketAddr, log: &Path) -> Result<Self> {
        let program = find_program("tgtd").context("tgtd is not installed (Debian package tgt)")?;
        let log = File::create(log)?;
        // The control port is a number in the path of a local socket, at most 15 bits long. Ephemeral ports lie within
        // 32768 of each other, so their low bits are as good a free number as any.
        let control_port = portal.port() & 0x7fff;
        let child = Command::new(program)
            .args(["-f", "-C", &control_port.to_string(), "--iscsi", &format!("portal={portal}")])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start tgtd")?;
        let mut tgtd = Self { child, control_port, portal, units: 0 };
        tgtd.wait_until_it_listens()?;
        tgtd.control(&["--op", "new", "--mode", "target", "--tid", "1", "-T", TARGET_NAME])?;
        tgtd.control(&["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"])?;
        Ok(tgtd)
    }

    /// Serves `file` as the next logical unit and returns its URL for libiscsi. Unit 0 is tgtd's own controller.
    ///
    /// # Errors
    /// tgtd refuses the file.
    pub fn add_file(&mut self, file: &Path) -> Result<String> {
        self.add_file_of(file, 512)
    }

    /// The same with blocks of `block_bytes`.
    ///
    /// # Errors
    /// tgtd refuses the file.
    pub fn add_file_of(&mut self, file: &Path, block_bytes: u32) -> Result<String> {
        let (lun, block) = ((self.units + 1).to_string(), block_bytes.to_string());
        let path = file.to_str().context("a path in UTF-8")?;
        let unit = ["--mode", "logicalunit", "--tid", "1", "--lun", &lun, "-b", path, "--blocksize", &block];
        self.control(&[&["--op", "new"], &unit[..]].concat())?;
        self.units += 1;
        Ok(format!("iscsi://{}/{TARGET_NAME}/{lun}", self.portal))
    }

    /// Gives a unit another serial number; initiators are not told.
    ///
    /// # Errors
    /// tgtd refuses.
    pub fn set_serial(&self, lun: u16, serial: &str) -> Result<()> {
        let unit = ["--mode", "logicalunit", "--tid", "1", "--lun", &lun.to_string()];
        self.control(&[&["--op", "update"], &unit[..], &["--params", &format!("scsi_sn={serial}")]].concat())
    }

    /// Lets nobody write to a unit any more.
    ///
    /// # Errors
    /// tgtd refuses.
    pub fn protect(&self, lun: u16) -> Result<()> {
        let unit = ["--mode", "logicalunit", "--tid", "1", "--lun", &lun.to_string()];
        self.control(&[&["--op", "update"], &unit[..], &["--params", "readonly=1"]].concat())
    }

    /// Listens at another portal, too; it is of the same portal group.
    ///
    /// # Errors
    /// tgtd refuses.
    pub fn add_portal(&self) -> Result<SocketAddr> {
        let portal = free_portal()?;
        self.control(&["--op", "new", "--mode", "portal", "--param", &format!("portal={portal}")])?;
        Ok(portal)
    }

    /// Lets initiators have CRC32C digests; without this tgtd answers None to every wish.
    ///
    /// # Errors
    /// tgtd refuses.
    pub fn allow_digests(&self) -> Result<()> {
        for key in ["HeaderDigest", "DataDigest"] {
            let value = ["--name", key, "--value", "CRC32C,None"];
            self.control(&[&["--op", "update", "--mode", "target", "--tid", "1"], &value[..]].concat())?;
        }
        Ok(())
    }

    /// Lets nobody log in but this user, by CHAP.
    ///
    /// # Errors
    /// tgtd refuses.
    pub fn require_user(&self, name: &str, secret: &str) -> Result<()> {
        let account = ["--mode", "account", "--user", name];
        self.control(&[&["--op", "new"], &account[..], &["--password", secret]].concat())?;
        self.control(&[&["--op", "bind", "--tid", "1"], &account[..]].concat())
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where it listens.
    #[must_use]
    pub fn portal(&self) -> SocketAddr {
        self.portal
    }

    fn wait_until_it_listens(&mut self) -> Result<()> {
        let start = Instant::now();
        while TcpStream::connect(self.portal).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("tgtd ended at once: {status}");
            }
            ensure!(start.elapsed() < START_LIMIT, "tgtd does not listen on {}", self.portal);
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn control(&self, arguments: &[&str]) -> Result<()> {
        let program = find_program("tgtadm").context("tgtadm is not installed (Debian package tgt)")?;
        let mut command = Command::new(program);
        command.args(["-C", &self.control_port.to_string(), "--lld", "iscsi"]).args(arguments);
        let finished = run(&mut command, CONTROL_LIMIT)?;
        ensure!(finished.success(), "tgtadm {arguments:?}: {}: {}", finished.ending(), finished.output);
        Ok(())
    }
}

impl Drop for Tgtd {
    fn drop(&mut self) {
        // It may have ended already; either way nothing is left afterwards.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port of the loopback address that is free now. Between this and its use another process could take it: tgtd and
/// istgt have no way to be given a listening socket. Two tests of one process never get the same: the kernel would give
/// a port that was just given back to the next who asks.
///
/// # Errors
/// The system has none.
pub fn free_portal() -> Result<SocketAddr> {
    static GIVEN: Mutex<BTreeSet<SocketAddr>> = Mutex::new(BTreeSet::new());
    loop {
        let portal = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        if GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(portal) {
            return Ok(portal);
        }
    }
}
