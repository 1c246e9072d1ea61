//! A network of one host and one guest in a namespace of its own: no way out, no port that another test has.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{HOST, HOST_SECOND};
use crate::lunette::{Launch, binary};
use crate::process::run;

const LIMIT: Duration = Duration::from_secs(20);

/// The host's end of the guest's network device.
pub(super) const DEVICE: &str = "guest0";

/// The namespace. It lives as long as the process that holds it, and that ends with this value, or with the test.
#[derive(Debug)]
pub struct Network {
    holder: Child,
    image: PathBuf,
}

impl Network {
    /// Makes the namespace, its device, and the host's two addresses there, for a guest with this image.
    ///
    /// # Errors
    /// Why it cannot be made here, for a skip: neither root nor a user who may have namespaces, or no TUN device.
    pub fn new(image: PathBuf) -> Result<Self, String> {
        let mut unshare = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            unshare.arg("--map-root-user");
        }
        // The holder reads its standard input until we end, in whatever way.
        unshare.args(["--net", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let holder = unshare.spawn().map_err(|error| format!("cannot start unshare: {error}"))?;
        let mut network = Self { holder, image };
        network.wait()?;
        network.ip("link set lo up")?;
        network.ip(&format!("tuntap add dev {DEVICE} mode tap"))?;
        for address in [HOST, HOST_SECOND] {
            network.ip(&format!("address add {address}/24 dev {DEVICE}"))?;
        }
        network.ip(&format!("link set {DEVICE} up"))?;
        Ok(network)
    }

    /// Until the holder is in its namespace: before that, commands would go to ours.
    fn wait(&mut self) -> Result<(), String> {
        let ours = std::fs::read_link("/proc/self/ns/net").map_err(|error| error.to_string())?;
        let theirs = format!("/proc/{}/ns/net", self.holder.id());
        let deadline = Instant::now() + LIMIT;
        while std::fs::read_link(Path::new(&theirs)).is_ok_and(|namespace| namespace == ours) {
            if let Ok(Some(status)) = self.holder.try_wait() {
                return Err(format!("no network namespace can be made here (unshare: {status})"));
            }
            if Instant::now() > deadline {
                return Err("unshare makes no network namespace".to_owned());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// A command in the namespace.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        enter(self.holder.id(), program)
    }

    /// The guest's image.
    pub(super) fn image(&self) -> &Path {
        &self.image
    }

    /// The process that [`enter`] needs.
    pub(super) fn holder(&self) -> u32 {
        self.holder.id()
    }

    /// `lunette serve` in the namespace.
    ///
    /// # Panics
    /// There is no binary, and none can be built.
    #[must_use]
    pub fn serve(&self) -> Launch {
        let mut command = self.command(binary());
        command.arg("serve");
        Launch::of(command)
    }

    /// Changes the namespace's network; `arguments` are those of the program ip, between blanks.
    ///
    /// # Errors
    /// What ip says.
    pub fn ip(&self, arguments: &str) -> Result<(), String> {
        let mut command = self.command("ip");
        command.args(arguments.split_whitespace());
        let finished = run(&mut command, LIMIT).map_err(|error| error.to_string())?;
        if finished.success() { Ok(()) } else { Err(format!("ip {arguments}: {}", finished.output.trim())) }
    }
}

/// A command in the namespace that this process holds.
pub(super) fn enter(holder: u32, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--target", &holder.to_string(), "--net"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--preserve-credentials"]);
    }
    command.arg("--").arg(program);
    command
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
