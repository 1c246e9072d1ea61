//! A Debian kernel in a virtual machine at one end of a site: with its own initiator, or its own target (LIO).
//!
//! What boots is an image as the project's tests have it (`cargo xtask vm`): a kernel and a root file system that stays in
//! memory, whose first process runs a script of the host's. The machine is behind the end of the link as behind a router, so its
//! TCP goes through the link. It is killed when it is dropped, and when the thread ends that has started it; its device goes with
//! the namespace.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lunette_wan::{End, FAR, NEAR, Namespace};
use rustix::fs::{Access, access};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::files::{joined, lacks_programs};
use super::peer::command;
use super::scratch::Directory;
use super::{tool, versions};
use crate::LabError;

/// The directory of the image: the variable that the project's tests have for it, too.
const IMAGE: &str = "LUNETTE_VM";
/// What runs a virtual machine, and what builds its image, each with Debian's package that has it.
const PROGRAMS: [(&str, &str); 2] = [("qemu-system-x86_64", "qemu-system-x86"), ("ip", "iproute2")];
const BUILDERS: [(&str, &str); 3] = [("mmdebstrap", "mmdebstrap"), ("dpkg-deb", "dpkg"), ("cpio", "cpio")];
/// What is in it.
const KERNEL: &str = "linux";
const ROOT: &str = "root.cpio";
/// The guest's address, and that of the end which it is behind.
pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const NETWORK: &str = "10.0.2.0/24";
const DEVICE: &str = "guest";
/// An emulated processor takes its time, on a machine that may be busy.
const PATIENCE: Duration = Duration::from_secs(300);
/// A boot takes 10 to 20 s. One in some thousands of an emulated kernel hangs, before it has seen anything of ours.
const BOOT_PATIENCE: Duration = Duration::from_secs(150);
const BOOTS: usize = 3;
/// What its script tells when it begins, and when it can be used.
const BOOTED: &str = "told-booted";
const READY: &str = "told-ready";
const STEP: Duration = Duration::from_millis(20);

/// What is to be said of it without acceleration.
pub(crate) const EMULATED: &str = "The virtual machine's processor is emulated, for this machine has no /dev/kvm: its figures are those of the \
                                   emulation, and say nothing of an initiator or a target in a virtual machine.";

const INITIATOR: &str = include_str!("initiator.sh");
const LIO: &str = include_str!("lio.sh");

/// A running guest.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(super) machine: Child,
    /// What it has as /mnt/host.
    directory: Directory,
    jobs: AtomicU32,
    /// What it says of its own, by the names that results have.
    versions: BTreeMap<String, String>,
}

/// What this machine lacks for one; nothing if it lacks nothing.
pub(crate) fn lacks() -> Option<String> {
    let (programs, image) = needs();
    joined([lacks_programs(&programs), image])
}

/// The programs that it needs, with Debian's packages that have them, and what is wrong with its image: where that is not here, what
/// builds one is needed as well.
pub(crate) fn needs() -> (Vec<(&'static str, &'static str)>, Option<String>) {
    let image = image().err();
    let builders: &[_] = if image.is_some() { &BUILDERS } else { &[] };
    ([&PROGRAMS[..], builders].concat(), image)
}

/// Whether its processor is this machine's own, and not an emulated one.
pub(crate) fn is_accelerated() -> bool {
    let has = |path: &str| Path::new(path).exists();
    access("/dev/kvm", Access::WRITE_OK).is_ok()
        && (has("/sys/module/kvm_intel") || has("/sys/module/kvm_amd"))
}

fn image() -> Result<PathBuf, String> {
    let Some(directory) = env::var_os(IMAGE).map(PathBuf::from) else {
        return Err(format!(
            "the image of a virtual machine ({IMAGE} names its directory; `cargo xtask vm` in the project's sources builds one)"
        ));
    };
    if [KERNEL, ROOT].iter().all(|file| directory.join(file).is_file()) {
        Ok(directory)
    } else {
        Err(format!("an image of a virtual machine in {} ({KERNEL}, {ROOT})", directory.display()))
    }
}

impl Guest {
    /// The kernel's initiator at the near end, logged in to a unit: the namespaces of both ends, the MTU, and the portal, the target's
    /// name and the unit's number.
    pub(crate) fn initiator(
        (near, far): (&Namespace, &Namespace),
        mtu: u16,
        (portal, target, lun): (&str, &str, u16),
    ) -> Result<Self, LabError> {
        let variables = [("PORTAL", portal), ("TARGET", target), ("LUN", &lun.to_string())];
        Self::start((near, NEAR), far, mtu, &variables, INITIATOR)
    }

    /// The kernel's target at the far end, with a unit of so many bytes.
    pub(crate) fn lio(
        (near, far): (&Namespace, &Namespace),
        mtu: u16,
        target: &str,
        unit_bytes: u64,
    ) -> Result<Self, LabError> {
        let pages = (unit_bytes / 4096).to_string();
        Self::start((far, FAR), near, mtu, &[("TARGET", target), ("PAGES", &pages)], LIO)
    }

    fn start(
        (own, end): (&Namespace, End),
        other: &Namespace,
        mtu: u16,
        variables: &[(&str, &str)],
        script: &str,
    ) -> Result<Self, LabError> {
        let image = image().map_err(LabError::Needs)?;
        let failed = LabError::system("a network for a virtual machine");
        own.within(|| {
            ip(&format!("tuntap add dev {DEVICE} mode tap"))?;
            ip(&format!("address add {ROUTER}/24 dev {DEVICE}"))?;
            ip(&format!("link set {DEVICE} mtu {mtu} up"))?;
            fs::write("/proc/sys/net/ipv4/ip_forward", "1")
        })
        .map_err(&failed)?;
        other.within(|| ip(&format!("route add {NETWORK} via {}", end.ipv4))).map_err(&failed)?;
        let exports = [("HOST", ROUTER.to_string()), ("MTU", mtu.to_string())]
            .into_iter()
            .chain(variables.iter().map(|(name, value)| (*name, (*value).to_owned())))
            .map(|(name, value)| format!("export {name}='{value}'\n"));
        let text = format!("touch /mnt/host/{BOOTED}\n{}{script}", exports.collect::<String>());
        let mut guest = first_booted(|| {
            let directory = Directory::make(&env::temp_dir()).map_err(&failed)?;
            fs::write(directory.path().join("script"), &text).map_err(&failed)?;
            let mut qemu = qemu(&image, directory.path(), mtu);
            let machine = own.spawn_mortal(&mut qemu).map_err(LabError::system("a virtual machine"))?;
            let guest = Self::of(machine, directory);
            guest.wait_until_told(BOOTED, BOOT_PATIENCE)?;
            Ok(guest)
        })?;
        guest.wait_until_told(READY, PATIENCE)?;
        // What it cannot say is not known.
        let told = fs::read_to_string(guest.directory.path().join("versions")).unwrap_or_default();
        guest.versions = versions::told(&told);
        Ok(guest)
    }

    const fn of(machine: Child, directory: Directory) -> Self {
        Self { machine, directory, jobs: AtomicU32::new(0), versions: BTreeMap::new() }
    }

    fn wait_until_told(&self, what: &str, patience: Duration) -> Result<(), LabError> {
        let started = Instant::now();
        while !self.directory.path().join(what).exists() {
            if self.has_ended() {
                return Err(LabError::NotReady(format!("the virtual machine has ended: {}", self.said())));
            }
            if started.elapsed() > patience {
                return Err(LabError::NotReady(format!("the virtual machine is not ready: {}", self.said())));
            }
            thread::sleep(STEP);
        }
        Ok(())
    }

    /// Whether its script has, or the machine itself. What cannot be told has not.
    fn has_ended(&self) -> bool {
        // Whoever drops it collects it.
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let ended = waitid(WaitId::Pid(Pid::from_child(&self.machine)), how);
        matches!(ended, Ok(Some(_))) || self.directory.path().join("status").exists()
    }

    /// The versions of what takes part in it.
    pub(crate) const fn versions(&self) -> &BTreeMap<String, String> {
        &self.versions
    }

    /// The end of what its script has said.
    fn said(&self) -> String {
        let text = fs::read_to_string(self.directory.path().join("output")).unwrap_or_default();
        let lines: Vec<&str> = text.trim().lines().rev().take(3).collect();
        if lines.is_empty() {
            return "its script says nothing".to_owned();
        }
        lines.into_iter().rev().collect::<Vec<_>>().join("; ")
    }

    /// Has fio run on the unit with these words, and answers what it tells.
    pub(crate) fn fio(&self, words: &str, patience: Duration) -> Result<String, LabError> {
        let failed = LabError::system("a job of a virtual machine");
        let number = self.jobs.fetch_add(1, Ordering::Relaxed);
        let file = |name: &str| self.directory.path().join(format!("{name}-{number}"));
        // Whole or not there.
        fs::write(file("unfinished"), words).map_err(&failed)?;
        fs::rename(file("unfinished"), file("job")).map_err(&failed)?;
        self.wait_until_told(&format!("result-{number}"), PATIENCE + patience)?;
        fs::read_to_string(file("result")).map_err(&failed)
    }
}

/// The first of some boots that comes as far as its script; of none the failure of the last one. What cannot even be tried is not
/// tried again.
fn first_booted<T>(mut boot: impl FnMut() -> Result<T, LabError>) -> Result<T, LabError> {
    let mut booted = boot();
    for _ in 1..BOOTS {
        match booted {
            Err(LabError::NotReady(_)) => booted = boot(),
            _ => break,
        }
    }
    booted
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Its root is in memory.
        let _ = self.machine.kill();
        let _ = self.machine.wait();
    }
}

fn qemu(image: &Path, directory: &Path, mtu: u16) -> Command {
    let share = format!("local,path={},mount_tag=host,security_model=none", directory.display());
    let mut qemu = command("qemu-system-x86_64");
    if is_accelerated() {
        qemu.args(["-accel", "kvm", "-cpu", "host"]);
    } else {
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", "Nehalem"]);
    }
    qemu.args(["-machine", "pc", "-m", "1536", "-smp", "2", "-nodefaults", "-no-user-config"])
        .args(["-display", "none", "-no-reboot", "-kernel"])
        .arg(image.join(KERNEL))
        .arg("-initrd")
        .arg(image.join(ROOT))
        .args(["-append", "console=ttyS0 rdinit=/init panic=-1 mitigations=off nokaslr audit=0 apparmor=0"])
        .args(["-netdev", &format!("tap,id=net,ifname={DEVICE},script=no,downscript=no")])
        .args(["-device", &format!("virtio-net-pci,netdev=net,romfile=,host_mtu={mtu}")])
        .args(["-device", "virtio-rng-pci", "-virtfs", &share, "-serial", "null"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    qemu
}

/// Runs the program ip with words between blanks, in the calling thread's namespace.
fn ip(words: &str) -> io::Result<()> {
    let mut ip = command("ip");
    ip.args(words.split(' '));
    tool::run(ip, &format!("ip {words}"), tool::LIMIT).map(drop).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Boots one after the other, each a shell with a script in the place of a machine, which has a moment to tell; answers how many
    /// there were as well.
    fn booted(scripts: &[&str]) -> (Result<Guest, LabError>, usize) {
        let boots = Cell::new(0);
        let booted = first_booted(|| {
            let script = scripts[boots.replace(boots.get() + 1)];
            let patience = Duration::from_secs(if script == HANGS { 1 } else { 30 });
            let directory = Directory::make(&env::temp_dir()).expect("a directory");
            let mut shell = Command::new("sh");
            shell.args(["-c", script]).current_dir(directory.path());
            let guest = Guest::of(shell.spawn().expect("a shell"), directory);
            guest.wait_until_told(BOOTED, patience)?;
            Ok(guest)
        });
        (booted, boots.get())
    }

    const GOOD: &str = "touch told-booted; exec sleep 60";
    const HANGS: &str = "exec sleep 60";
    const ENDS: &str = "echo no root >output";

    #[test]
    fn a_kernel_that_hangs_is_booted_again() {
        for (scripts, boots) in [(&[GOOD][..], 1), (&[HANGS, GOOD], 2), (&[ENDS, HANGS, GOOD], 3)] {
            let (booted, tried) = booted(scripts);
            assert!(booted.is_ok() && tried == boots, "{tried}: {booted:?}");
        }
    }

    #[test]
    fn a_job_of_a_machine_that_dies_is_not_waited_for() {
        let (booted, _) = booted(&["touch told-booted; until test -e job-0; do sleep 0.01; done"]);
        let told = booted.expect("it boots").fio("--name=job", PATIENCE).expect_err("it dies").to_string();
        assert!(told.ends_with("the virtual machine has ended: its script says nothing"), "{told}");
    }

    #[test]
    fn what_never_boots_is_given_up() {
        let (booted, tried) = booted(&[ENDS; BOOTS]);
        let told = booted.expect_err("there is none").to_string();
        assert_eq!(
            (tried, told.ends_with("the virtual machine has ended: no root")),
            (BOOTS, true),
            "{told}"
        );
        let mut tried = 0;
        let refused: Result<(), _> = first_booted(|| {
            tried += 1;
            Err(LabError::Needs("an image".to_owned()))
        });
        assert!(refused.is_err_and(|error| error.is_of_plan()));
        assert_eq!(tried, 1);
    }
}
