//! One boot of the virtual machine, which runs one script.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::network::DEVICE;
use super::{KERNEL, Network, ROOT};

/// What a script may use, before it.
const LIBRARY: &str = include_str!("../../vm/scripts/library.sh");

/// Emulation is slow, and so may the machine be: a script takes a minute.
const LIMIT: Duration = Duration::from_secs(600);
/// A guest writes to a file each second. One in which nothing runs any more, of some hundreds that are emulated, does not.
const ALIVE: &str = "alive";
const SILENCE: Duration = Duration::from_secs(120);
/// What an error says of such a guest.
pub const HUNG: &str = "the guest has hung";
/// A boot takes 10 to 20 s. One in some thousands of an emulated kernel hangs, before it has seen anything of ours.
const BOOT_LIMIT: Duration = Duration::from_secs(150);
const BOOTS: u32 = 3;
/// What the guest tells when its script begins.
const BOOTED: &str = "booted";
const POLL: Duration = Duration::from_millis(100);

/// A running guest; powered off when dropped.
#[derive(Debug)]
pub struct Guest {
    machine: Child,
    /// What it last wrote there to show that it lives, and when that was seen to have changed.
    alive: (String, Instant),
    /// What the guest has as /mnt/host.
    directory: TempDir,
}

/// What a script left behind.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status; nothing if the guest ended otherwise.
    pub status: Option<i32>,
    /// Standard output and standard error.
    pub output: String,
    /// The kernel's console.
    pub console: String,
}

impl Guest {
    /// Boots a guest in `network` that runs `script` with bash, after the functions of `library.sh`, with the variables of
    /// `environment`, and waits until the script begins. Says on standard error what a boot came to that has to be tried again.
    ///
    /// # Errors
    /// QEMU cannot be started, or no boot came as far as the script; the text has what the last one said.
    pub fn start(network: &Network, environment: &[(&str, &str)], script: &str) -> Result<Self> {
        let variables: String =
            environment.iter().map(|(name, value)| format!("export {name}='{value}'\n")).collect();
        let script = format!("{variables}{LIBRARY}\ntell {BOOTED}\n{script}");
        let mut boot = 1;
        loop {
            let mut guest = Self::boot(network, &script)?;
            match guest.wait_for_within(BOOTED, BOOT_LIMIT) {
                Ok(()) => return Ok(guest),
                Err(error) if boot < BOOTS => eprintln!("boot {boot} of {BOOTS} came to nothing: {error:#}"),
                Err(error) => return Err(error),
            }
            boot += 1;
        }
    }

    fn boot(network: &Network, script: &str) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        std::fs::write(directory.path().join("script"), script)?;
        let share = format!("local,path={},mount_tag=host,security_model=none", directory.path().display());
        let console = format!("file:{}", directory.path().join("console").display());
        let mut qemu = network.command("qemu-system-x86_64");
        accelerate(&mut qemu);
        qemu.args(["-machine", "pc", "-m", "1536", "-smp", "2", "-nodefaults", "-no-user-config"])
            .args(["-display", "none", "-no-reboot"])
            .arg("-kernel")
            .arg(network.image().join(KERNEL))
            .arg("-initrd")
            .arg(network.image().join(ROOT))
            .args([
                "-append",
                "console=ttyS0 rdinit=/init panic=-1 mitigations=off nokaslr audit=0 apparmor=0 nosoftlockup",
            ])
            .args(["-netdev", &format!("tap,id=net,ifname={DEVICE},script=no,downscript=no")])
            .args(["-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-rng-pci"])
            .args(["-virtfs", &share, "-serial", &console]);
        let log = File::create(directory.path().join("qemu"))?;
        let machine = qemu
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start qemu-system-x86_64")?;
        Ok(Self { machine, alive: (String::new(), Instant::now()), directory })
    }

    /// Waits until the script has called `tell NAME`.
    ///
    /// # Errors
    /// The guest ends or takes too long; the text has all that it said.
    pub fn wait_for(&mut self, name: &str) -> Result<()> {
        self.wait_for_within(name, LIMIT)
    }

    fn wait_for_within(&mut self, name: &str, limit: Duration) -> Result<()> {
        let began = Instant::now();
        while !self.directory.path().join(format!("told-{name}")).exists() {
            if self.machine.try_wait()?.is_some() || began.elapsed() > limit {
                bail!("the guest never told {name:?}; {}", self.ended());
            }
            self.ensure_alive()?;
            thread::sleep(POLL);
        }
        Ok(())
    }

    fn ensure_alive(&mut self) -> Result<()> {
        let said = std::fs::read_to_string(self.directory.path().join(ALIVE)).unwrap_or_default();
        // Before its script it says nothing, and a boot has a limit of its own.
        if said.is_empty() || said != self.alive.0 {
            self.alive = (said, Instant::now());
        }
        if self.alive.1.elapsed() > SILENCE { bail!("{HUNG}; {}", self.ended()) } else { Ok(()) }
    }

    /// Lets the script go on that has called `await NAME`.
    ///
    /// # Errors
    /// A file cannot be made.
    pub fn tell(&self, name: &str) -> Result<()> {
        Ok(std::fs::write(self.directory.path().join(format!("awaited-{name}")), "")?)
    }

    /// Waits for the script's end, and expects that nothing went wrong in it.
    ///
    /// # Errors
    /// It failed, the guest ended otherwise, or it took too long; the text has all that was said.
    pub fn finish(mut self) -> Result<Ended> {
        let began = Instant::now();
        while self.machine.try_wait()?.is_none() {
            if began.elapsed() > LIMIT {
                bail!("the guest does not end; {}", self.ended());
            }
            self.ensure_alive()?;
            thread::sleep(POLL);
        }
        let ended = self.ended();
        if ended.status == Some(0) { Ok(ended) } else { bail!("{ended}") }
    }

    /// What it has said up to now.
    #[must_use]
    pub fn ended(&self) -> Ended {
        let read = |name: &str| {
            let bytes = std::fs::read(self.directory.path().join(name)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\r', "")
        };
        let console = format!("{}{}", read("console"), read("qemu"));
        Ended { status: read("status").trim().parse().ok(), output: read("output"), console }
    }
}

/// The processor's own virtualization where the kernel can use it, else emulation.
fn accelerate(qemu: &mut Command) {
    let has = |path: &str| std::path::Path::new(path).exists();
    let may_open = rustix::fs::access("/dev/kvm", rustix::fs::Access::WRITE_OK).is_ok();
    if may_open && (has("/sys/module/kvm_intel") || has("/sys/module/kvm_amd")) {
        qemu.args(["-accel", "kvm", "-cpu", "host"]);
    } else {
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", "Nehalem"]);
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let status =
            self.status.map_or_else(|| "no exit status".to_owned(), |status| format!("exit status {status}"));
        let console: Vec<&str> = self.console.lines().rev().take(80).collect();
        writeln!(f, "the guest's script: {status}; its output:\n{}\nthe console's end:", self.output)?;
        console.into_iter().rev().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.machine.kill();
        let _ = self.machine.wait();
    }
}
