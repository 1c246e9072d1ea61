//! Where cells over a network are measured: an emulated link with a target at its far end.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use lunette_initiator::{IscsiName, Lun, Options, Portal, Timing};
use lunette_link::Link;
use lunette_wan::{Emulator, FAR, Keeping, Proxy, WARD, spawn_here};

use super::echo::Echoes;
use super::guest::{self, Guest};
use super::peer::{self, Peer};
use super::ready;
use super::result::LinkFacts;
use super::setting::Ends;
use super::written::Written;
use crate::LabError;

pub(crate) const TARGET: &str = "iqn.2026-11.io.lunette:lab";
pub(crate) const PORT: u16 = 3260;
/// The length of the disk in bytes.
pub(crate) const DISK_BYTES: u64 = 1 << 30;
/// The length of LIO's disk, which is in the memory of its virtual machine, in bytes.
const LIO_BYTES: u64 = RANGE_BYTES + (16 << 20);
const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// What of a TCP socket's buffer is left to it when memory is short, in bytes: the kernel's own default.
const TCP_BUFFER_BYTES_MIN: usize = 4096;
/// What is refused where they cannot be had.
const OTHER_BUFFERS: &str = "other buffers for TCP";
const TCP_BUFFERS: [&str; 2] = ["/proc/sys/net/ipv4/tcp_rmem", "/proc/sys/net/ipv4/tcp_wmem"];
/// What is used of it, in bytes.
pub(crate) const RANGE_BYTES: u64 = 256 << 20;
/// Its blocks, in bytes.
pub(crate) const BLOCK_BYTES: u32 = 512;

/// So long is waited for the end of a target that somebody has just found to be gone: its sockets end before its process.
const FAREWELL: Duration = Duration::from_secs(2);
/// The silence after which a target counts as gone.
const SILENCE: Duration = Duration::from_secs(60);

/// A running network with its target. It ends when it is dropped; the target also when the thread ends that made it.
pub(crate) struct Site {
    /// Behind the network in the order of their ends: a target that is gone answers nobody.
    target: Server,
    /// The kernel's initiator at the near end, once somebody has asked for it.
    guest: OnceLock<Guest>,
    way: Way,
    /// What is set for every target of ours here, and for TCP at both ends.
    ends: Ends,
    /// What is exchanged by plain TCP, with nothing else on the link.
    echoes: Echoes,
    /// What was written on the target's disk before it was read.
    written: Written,
}

/// What is between the two ends.
enum Way {
    Emulated(Emulator),
    /// Where nobody may make a network. Both ends are this machine as it is, and the target is reached without the proxy as well.
    Proxied {
        proxy: Proxy,
        portal: SocketAddr,
    },
}

/// What serves at the far end.
enum Server {
    Lunette(Child),
    Peer(peer::Running),
    /// The kernel's, in a virtual machine.
    Lio {
        guest: Guest,
    },
}

impl Site {
    /// Makes the network and starts the target, with what is set for both. TCP is as [`network`] says. The calling thread stays
    /// in the far namespace.
    pub(crate) fn open(
        link: &Link,
        seed: u64,
        controls: &[&str],
        binary: &Path,
        ends: &Ends,
    ) -> Result<Self, LabError> {
        let emulator = network(link, seed, controls, binary, ends)?;
        let target = serve(&emulator, binary, &configuration(Self::address(PORT), ends), &[])?;
        Ok(Self::of(Server::Lunette(target), Way::Emulated(emulator), ends))
    }

    /// Starts the target on the loopback address, and a proxy with the delay and the rate of the link before it.
    pub(crate) fn open_proxied(link: &Link, seed: u64, binary: &Path, ends: &Ends) -> Result<Self, LabError> {
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (target, portal) = serve_by(spawn_here, binary, &configuration(nowhere, ends), &[])?;
        let target = Server::Lunette(target);
        let portal =
            portal.ok_or_else(|| LabError::NotReady("the target does not say where it is".to_owned()))?;
        let proxy = Proxy::start(nowhere, portal, link, seed)?;
        Ok(Self::of(target, Way::Proxied { proxy, portal }, ends))
    }

    fn of(target: Server, way: Way, ends: &Ends) -> Self {
        Self {
            target,
            guest: OnceLock::new(),
            way,
            ends: ends.clone(),
            echoes: Echoes::default(),
            written: Written::default(),
        }
    }

    /// The network.
    ///
    /// # Errors
    /// There is a proxy in its place.
    pub(crate) fn emulator(&self) -> Result<&Emulator, LabError> {
        match &self.way {
            Way::Emulated(emulator) => Ok(emulator),
            Way::Proxied { .. } => Err(LabError::Plan("a proxy has no ends and no losses".to_owned())),
        }
    }

    /// Whether a proxy stands for the network.
    pub(crate) const fn is_proxied(&self) -> bool {
        matches!(self.way, Way::Proxied { .. })
    }

    /// Does something while TCP at both ends has buffers of so many bytes of data at most.
    pub(crate) fn with_tcp_buffers<T>(&self, bytes: usize, work: impl FnOnce() -> T) -> Result<T, LabError> {
        let failed = LabError::system(OTHER_BUFFERS);
        let emulator = self.emulator()?;
        let before = emulator.near().within(|| TCP_BUFFERS.map(fs::read_to_string).into_iter().collect());
        let before: Vec<String> = before.map_err(&failed)?;
        let limits = tcp_limits(bytes);
        set_tcp_buffers(emulator, [&limits; 2]).map_err(&failed)?;
        let done = work();
        set_tcp_buffers(emulator, [&before[0], &before[1]]).map_err(&failed)?;
        Ok(done)
    }

    /// The same with a target that is not ours.
    pub(crate) fn open_peer(
        link: &Link,
        seed: u64,
        controls: &[&str],
        binary: &Path,
        peer: Peer,
        ends: &Ends,
    ) -> Result<Self, LabError> {
        let emulator = network(link, seed, controls, binary, ends)?;
        let target = if peer == Peer::Lio {
            let ends = (emulator.near(), emulator.far());
            Server::Lio { guest: Guest::lio(ends, link.mtu, peer.disk().0, LIO_BYTES)? }
        } else {
            Server::Peer(peer::start(peer, emulator.far())?)
        };
        Ok(Self::of(target, Way::Emulated(emulator), ends))
    }

    /// What is set for targets of ours that are started here.
    pub(crate) const fn ends(&self) -> &Ends {
        &self.ends
    }

    /// Whether the target is ours.
    pub(crate) const fn is_ours(&self) -> bool {
        matches!(self.target, Server::Lunette(_))
    }

    /// How the target has ended; nothing while it runs, as it is to do as long as this is here.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        let process = match &mut self.target {
            Server::Lunette(target) => target,
            Server::Peer(running) => &mut running.child,
            Server::Lio { guest } => &mut guest.machine,
        };
        // Where that cannot be told, whoever uses it sees it.
        process.try_wait().ok().flatten()
    }

    /// What went wrong here, with the end of the target where that is why.
    pub(super) fn blamed(&mut self, error: LabError) -> LabError {
        let began = Instant::now();
        loop {
            match self.ended() {
                Some(status) => return LabError::TargetEnded { status, seen: Some(Box::new(error)) },
                None if began.elapsed() > FAREWELL => return error,
                None => thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// The name of the target, and its unit.
    const fn disk(&self) -> (&'static str, u16) {
        match &self.target {
            Server::Lunette(_) => (TARGET, 0),
            Server::Peer(running) => running.peer.disk(),
            Server::Lio { .. } => Peer::Lio.disk(),
        }
    }

    /// Where the target is reached.
    fn portal(&self) -> SocketAddr {
        match (&self.way, &self.target) {
            (Way::Proxied { proxy, .. }, _) => proxy.address(),
            (Way::Emulated(_), Server::Lio { .. }) => SocketAddr::from((guest::ADDRESS, PORT)),
            (Way::Emulated(_), _) => Self::address(PORT),
        }
    }

    /// The kernel's initiator in a virtual machine at the near end, logged in to the target. It boots for the first who asks.
    pub(crate) fn guest(&self, mtu: u16) -> Result<&Guest, LabError> {
        if self.guest.get().is_none() {
            if let Server::Lio { .. } = &self.target {
                return Err(LabError::Plan(
                    "both ends of a link are in no virtual machine at once".to_owned(),
                ));
            }
            let emulator = self.emulator()?;
            let ends = (emulator.near(), emulator.far());
            let (name, lun) = self.disk();
            let booted = Guest::initiator(ends, mtu, (&self.portal().to_string(), name, lun))?;
            // Nobody else is here.
            let _ = self.guest.set(booted);
        }
        self.guest.get().ok_or_else(|| LabError::NotReady("a virtual machine".to_owned()))
    }

    /// How to log in to the target.
    pub(crate) fn options(&self) -> Result<(Options, Lun), LabError> {
        self.options_by(self.portal())
    }

    /// How to do so where the target is ([`Site::at_target`]).
    pub(super) fn options_at_target(&self) -> Result<(Options, Lun), LabError> {
        self.options_by(match &self.way {
            Way::Proxied { portal, .. } => *portal,
            Way::Emulated(_) => self.portal(),
        })
    }

    fn options_by(&self, portal: SocketAddr) -> Result<(Options, Lun), LabError> {
        let (name, lun) = self.disk();
        let lun = Lun::new(lun).unwrap_or_default();
        let name = IscsiName::parse(name).map_err(|error| LabError::Plan(error.to_string()))?;
        let mut options = Options::new(name, Portal::new(portal.ip().to_string(), portal.port()));
        options.timing = timing();
        Ok((options, lun))
    }

    /// Does something at the near end.
    pub(crate) fn near<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        match &self.way {
            Way::Emulated(emulator) => {
                emulator.near().within(|| Ok(work())).map_err(LabError::system("the near end"))
            }
            Way::Proxied { .. } => Ok(work()),
        }
    }

    /// Does something where the target is, with nothing of the link between.
    pub(super) fn at_target<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        match &self.way {
            Way::Emulated(emulator) => {
                emulator.far().within(|| Ok(work())).map_err(LabError::system("the far end"))
            }
            Way::Proxied { .. } => Ok(work()),
        }
    }

    /// Does something at the far end.
    pub(crate) fn far<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> Result<T, LabError> {
        self.emulator()?.far().within(work).map_err(LabError::system("the far end"))
    }

    /// An address of the far end.
    pub(crate) fn address(port: u16) -> SocketAddr {
        SocketAddr::from((FAR.ipv4, port))
    }

    /// TCP's congestion control at the near end, or on the way to a proxy; the far one's is the same.
    pub(crate) fn congestion_control(&self) -> Result<String, LabError> {
        let name = match &self.way {
            Way::Emulated(emulator) => emulator.near().within(congestion_control),
            Way::Proxied { proxy, .. } => lunette_tcp::congestion_control_to(proxy.address()),
        };
        name.map_err(LabError::system("the name of the congestion control"))
    }

    pub(super) const fn echoes(&self) -> &Echoes {
        &self.echoes
    }

    pub(super) const fn written(&self) -> &Written {
        &self.written
    }

    /// Whether the disk has all its memory from the beginning, as LIO's has.
    pub(super) const fn has_memory(&self) -> bool {
        matches!(self.target, Server::Lio { .. })
    }

    /// What its virtual machines say of their versions, by the names that results have.
    pub(super) fn guest_versions(&self) -> BTreeMap<String, String> {
        let target = if let Server::Lio { guest } = &self.target { Some(guest) } else { None };
        self.guest.get().into_iter().chain(target).flat_map(|guest| guest.versions().clone()).collect()
    }

    /// How the link was kept.
    pub(crate) fn facts(&self, link: &Link) -> Result<LinkFacts, LabError> {
        let statistics = match &self.way {
            Way::Emulated(emulator) => {
                emulator.statistics().map_err(LabError::system("counters of the network"))?
            }
            Way::Proxied { proxy, .. } => proxy.statistics(),
        };
        let keeping = Keeping::of(&statistics);
        let late = keeping.lateness_median + keeping.intake_lateness_median;
        Ok(LinkFacts {
            description: link.to_string(),
            congestion_control: self.congestion_control()?,
            late_us: u64::try_from(late.as_micros()).unwrap_or(u64::MAX),
            overrun: keeping.overrun,
            echo_us: self.echoes.header_us(),
            proxy: self.is_proxied(),
            read_back_bytes: BTreeMap::new(),
            is_doubtful: keeping.doubt(link).is_some(),
        })
    }
}

/// A session that is lost is a figure that is lost: it is not had again, and is given up only after a silence that no burst of losses and
/// no busy machine explains.
pub(crate) fn timing() -> Timing {
    Timing { recovery: Duration::ZERO, nop_timeout: SILENCE, ..Timing::default() }
}

/// A network where both ends have the first of these congestion controls that this system lets a namespace have, and the system's
/// own where it allows none of them. A socket keeps what there was when it was made; so do the buffers of one that listens.
fn network(
    link: &Link,
    seed: u64,
    controls: &[&str],
    binary: &Path,
    ends: &Ends,
) -> Result<Emulator, LabError> {
    let mut emulator = Emulator::start(link, seed)?;
    // It also removes what peers have in there if this process is killed.
    emulator.set_warden(Command::new(binary).args(WARD).arg("--sweep").arg(env::temp_dir()))?;
    if let Some(bytes) = ends.tcp_buffer_bytes {
        let limits = tcp_limits(bytes);
        set_tcp_buffers(&emulator, [&limits; 2]).map_err(LabError::system(OTHER_BUFFERS))?;
    }
    let has = |control: &&&str| {
        let ends = [emulator.near(), emulator.far()];
        ends.into_iter().all(|end| end.within(|| use_control(control)).is_ok())
    };
    let _ = controls.iter().find(has);
    Ok(emulator)
}

/// The kernel counts what it needs beside the data, for which it takes as much again.
fn tcp_limits(bytes: usize) -> String {
    let bytes = bytes.saturating_mul(2);
    format!("{TCP_BUFFER_BYTES_MIN} {bytes} {bytes}")
}

/// Gives TCP at both ends other buffers: least, first and most of each, for receiving and for sending.
fn set_tcp_buffers(emulator: &Emulator, values: [&str; 2]) -> io::Result<()> {
    for end in [emulator.near(), emulator.far()] {
        end.within(|| TCP_BUFFERS.iter().zip(values).try_for_each(|(path, value)| fs::write(path, value)))?;
    }
    Ok(())
}

fn congestion_control() -> io::Result<String> {
    Ok(fs::read_to_string(CONGESTION_CONTROL)?.trim().to_owned())
}

/// What is so already need not be writable.
fn use_control(name: &str) -> io::Result<()> {
    if congestion_control()? == name { Ok(()) } else { fs::write(CONGESTION_CONTROL, name) }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Self::Lunette(target) = self {
            // Memory has nothing to be flushed.
            let _ = target.kill();
            let _ = target.wait();
        }
    }
}

/// Starts a target at the far end, and waits until it is ready. It ends with the calling thread, which stays in the far namespace.
/// Secrets are variables of its environment and their values.
pub(crate) fn serve(
    emulator: &Emulator,
    binary: &Path,
    configuration: &str,
    secrets: &[(&str, &str)],
) -> Result<Child, LabError> {
    serve_by(|command| emulator.far().spawn(command), binary, configuration, secrets).map(|served| served.0)
}

/// Starts a target, and waits until it is ready; answers where it is reached, too.
fn serve_by(
    spawn: impl FnOnce(&mut Command) -> io::Result<Child>,
    binary: &Path,
    configuration: &str,
    secrets: &[(&str, &str)],
) -> Result<(Child, Option<SocketAddr>), LabError> {
    let mut command = Command::new(binary);
    command
        .args(["serve", "--config", "/dev/stdin", "--log", "off", "--json"])
        .envs(secrets.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // An interrupt of the terminal is this process's to handle.
        .process_group(0);
    let mut target = spawn(&mut command).map_err(LabError::system("a target at the far end"))?;
    if let Some(mut stdin) = target.stdin.take() {
        // Who does not read it ends without a word.
        let _ = stdin.write_all(configuration.as_bytes());
    }
    let line = ready::wait(&mut target, "the target at the far end", ready::PATIENCE);
    if line.is_err() {
        let _ = target.kill();
        let _ = target.wait();
    }
    // {"portals":["ADDRESS:PORT", ...
    let portal = line?.split('"').nth(3).and_then(|portal| portal.parse().ok());
    Ok((target, portal))
}

/// One disk: memory, so that no store is measured.
fn configuration(portal: SocketAddr, ends: &Ends) -> String {
    let configuration = format!(
        "portals = [\"{portal}\"]\n\n[[target]]\nname = \"{TARGET}\"\n\n[[target.lun]]\nnumber = 0\nstore = \"mem:{DISK_BYTES}\"\n\
         write = \"back\"\n\n"
    );
    ends.with_write(&configuration) + &ends.limits
}
