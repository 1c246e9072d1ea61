//! What can be done in a cell, and one run of it. What is measured how is in the files beside this one.

mod disk;
mod files;
mod keys;
mod login;
mod model;
mod ranges;
mod recovery;
mod seen;
mod shared;
mod tcp;
mod tcp_facts;
mod transfer;
mod virtualized;

use std::cell::OnceCell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lunette_link::{Link, Shape};
use lunette_wan::Keeping;
use lunette_workload::model::{HEADER_BYTES, Limit, TCP_HEADER_BYTES};

use super::Further;
use super::busy::Busy;
use super::echo::{Echo, Exchanged};
use super::guest;
use super::image::Image;
use super::setting::{self, Key, Setting};
use super::site::Site;
use super::statistics::median;
use crate::bench::monitor::Phase;
use crate::host::{DiskTime, Shares};
use crate::{LabError, LatencyParts, Monitor, Negotiated, Times};

pub(crate) use disk::{DiskProbe, Load};
pub(crate) use files::{Figure, FilesProbe, Job, SIZES_KIB, Scheme};
pub(crate) use keys::Keys;
pub(crate) use login::{
    Authentication, EXCHANGES, HANDSHAKE, INITIATOR_TOOK, LOGINS, LoginPhase, LoginProbe, TARGET_TOOK,
};
pub(crate) use recovery::FLOOR;
pub(crate) use shared::SharedProbe;
pub(crate) use tcp_facts::{
    HELD_UP, ORDER_CARRIES, PEER_WINDOW, PEER_WINDOWS_CARRY, STOOD_STILL, WINDOWS_CARRY,
};
pub(crate) use transfer::TransferProbe;
pub(crate) use virtualized::VirtualProbe;

use disk::Mix;
use model::Driven;
use seen::{Observer, Seen};

/// What is done in a cell.
#[derive(Debug, Clone)]
pub(crate) enum Probe {
    /// Plain TCP, with so much buffer at each end; none: what the system finds out.
    Tcp { to_target: bool, buffer_bytes: Option<usize> },
    /// A workload or a trace on a disk.
    Disk(DiskProbe),
    /// How long that takes to be as fast as before after a burst of losses.
    Recovery(DiskProbe),
    /// A workload and bulk TCP on one link.
    Shared(SharedProbe),
    /// A workload of the kernel's initiator in a virtual machine.
    Virtual(VirtualProbe),
    /// A part of a login.
    Login(LoginProbe),
    /// A file's worth of a disk, read or written.
    Transfer(TransferProbe),
    /// Work on files of a file system.
    Files(FilesProbe),
}

/// How a target gets at its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Design {
    /// One operation at a time, through the page cache.
    Fileio,
    /// The same, each write stable before it is answered.
    FileioSync,
    /// Past the page cache.
    Diskio,
    /// Threads that wait for the disk, through the page cache.
    Threads,
    /// io_uring, past the page cache.
    Uring,
}

impl Design {
    pub(crate) const ALL: [Self; 5] =
        [Self::Fileio, Self::FileioSync, Self::Diskio, Self::Threads, Self::Uring];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Fileio => "fileio",
            Self::FileioSync => "fileio-sync",
            Self::Diskio => "diskio",
            Self::Threads => "threads",
            Self::Uring => "uring",
        }
    }

    /// What the configuration says of a unit.
    pub(crate) fn lines(self) -> String {
        let engine = match self {
            Self::Fileio | Self::FileioSync => "sync",
            Self::Diskio => "direct",
            Self::Threads => "threads",
            Self::Uring => "uring",
        };
        let write = if self == Self::FileioSync { "through" } else { "back" };
        format!("engine = \"{engine}\"\nwrite = \"{write}\"\n")
    }
}

/// What is told of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Metric {
    /// Data, in 10^6 bytes per second.
    MegabytesPerSecond,
    /// Data, in 2^20 bytes per second.
    MebibytesPerSecond,
    /// Operations per second.
    OperationsPerSecond,
    /// The mean latency, in milliseconds.
    MeanMilliseconds,
}

impl Metric {
    pub(crate) const fn unit(self) -> &'static str {
        match self {
            Self::MegabytesPerSecond => "MB/s",
            Self::MebibytesPerSecond => "MiB/s",
            Self::OperationsPerSecond => "IOPS",
            Self::MeanMilliseconds => "ms",
        }
    }

    /// How long each of so many commands takes where this is the figure, in seconds (Little's law).
    pub(crate) fn command_s(self, depth: u32, size_bytes: u32, figure: f64) -> f64 {
        let depth = f64::from(depth);
        match self {
            Self::MegabytesPerSecond => depth * f64::from(size_bytes) / (figure * 1e6),
            Self::MebibytesPerSecond => depth * f64::from(size_bytes) / (figure * f64::from(1 << 20)),
            Self::OperationsPerSecond => depth / figure,
            Self::MeanMilliseconds => figure / 1e3,
        }
    }
}

impl Probe {
    pub(crate) const fn unit(&self) -> &'static str {
        match self {
            Self::Tcp { .. } => Metric::MegabytesPerSecond.unit(),
            Self::Disk(disk) => disk.metric.unit(),
            Self::Shared(shared) => shared.disk.metric.unit(),
            Self::Virtual(probe) => probe.metric.unit(),
            Self::Transfer(_) => Metric::MegabytesPerSecond.unit(),
            Self::Files(files) => files.unit(),
            Self::Recovery(_) | Self::Login(_) => Metric::MeanMilliseconds.unit(),
        }
    }

    /// Sets all of it; false where there is something of it that this has not.
    pub(crate) fn set(&mut self, settings: &[Setting]) -> bool {
        if !settings.iter().all(|setting| self.has(setting.key)) {
            return false;
        }
        match self {
            Self::Disk(disk) | Self::Recovery(disk) | Self::Shared(SharedProbe { disk, .. }) => {
                disk.set(settings);
            }
            Self::Tcp { buffer_bytes, .. } => *buffer_bytes = setting::tcp_buffer(settings).or(*buffer_bytes),
            _ => {}
        }
        true
    }

    /// Whether this can be set for it. A session has its keys, a network its packets and buffers, a target of ours its disk; how much
    /// is under way on an attached disk is the file system's affair, and in which pieces.
    fn has(&self, key: Key) -> bool {
        match (self, key) {
            (_, Key::Mtu) | (Self::Tcp { .. }, Key::TcpBufferBytes) => true,
            (Self::Disk(disk) | Self::Recovery(disk) | Self::Shared(SharedProbe { disk, .. }), key) => {
                // A trace has sizes of its own.
                key != Key::RequestBytes || matches!(disk.load, Load::Workload(_))
            }
            (Self::Transfer(_), _) | (Self::Virtual(_), Key::Write) => true,
            (Self::Files(files), key) => files.has_target() && !matches!(key, Key::Depth | Key::RequestBytes),
            _ => false,
        }
    }

    /// How many bytes of requests are under way at once at most, which take memory at both ends.
    pub(crate) fn request_bytes(&self) -> u64 {
        match self {
            Self::Disk(disk) | Self::Recovery(disk) | Self::Shared(SharedProbe { disk, .. }) => {
                u64::from(disk.depth) * u64::from(disk.mix().size_bytes)
            }
            _ => 0,
        }
    }

    /// Programs beside this one that take part, by the names that results have.
    pub(crate) fn programs(&self) -> &'static [&'static str] {
        match self {
            Self::Virtual(_) => &["qemu"],
            Self::Files(files) => files.programs(),
            _ => &[],
        }
    }

    /// How often it is run where it is to be quick; a login takes no time.
    pub(crate) const fn quick_runs(&self) -> usize {
        if matches!(self, Self::Login(_)) { LOGINS } else { 1 }
    }

    /// What is the limit where neither the network nor this machine is: the disk below, where one is measured.
    pub(crate) const fn beside(&self) -> Option<&'static str> {
        match self {
            Self::Disk(DiskProbe { design: Some(_), .. }) | Self::Transfer(_) | Self::Files(_) => {
                Some("store")
            }
            _ => None,
        }
    }

    /// The figure is the mean of the runs, as the paper's is; else it is their median.
    pub(crate) const fn is_mean(&self) -> bool {
        matches!(self, Self::Login(_))
    }

    /// A quick run does something else than what was published.
    pub(crate) const fn differs_when_quick(&self) -> bool {
        matches!(self, Self::Files(FilesProbe { job: Job::Web { .. }, .. }))
    }

    /// How long a command takes on this link where the figure is as expected; of plain TCP, a window. None where that does not
    /// follow from it.
    pub(crate) fn turn(
        &self,
        expected: f64,
        link: &Link,
        at_rest: AtRest,
        round_trips: f64,
    ) -> Option<CommandTurn> {
        let round_trip = link.round_trip();
        let (seconds, commands, size_bytes, reads) = match self {
            Self::Tcp { buffer_bytes: None, .. } => (round_trip.as_secs_f64(), 0, u32::MAX, 0.0),
            Self::Tcp { buffer_bytes: Some(bytes), .. } => (*bytes as f64 / 1e6 / expected, 0, u32::MAX, 0.0),
            Self::Disk(disk) | Self::Shared(SharedProbe { disk, tells_bulk: false, .. }) => {
                let Mix { size_bytes, read_share } = disk.mix();
                let seconds = disk.metric.command_s(disk.depth, size_bytes, expected);
                (seconds, disk.depth, size_bytes, read_share)
            }
            _ => return None,
        };
        let is_asked = reads <= 0.0 && round_trips >= 2.0;
        // A command that asks goes the way of its data, beside the header of that. Far below what a double holds exactly.
        let headers = if is_asked { 2 } else { 1 };
        let stream_bytes = (u64::from(size_bytes) + headers * HEADER_BYTES) as f64;
        let driven = Driven { link, congestion_control: "" };
        let line_s = |shape: &Shape| {
            Some(stream_bytes / model::path(driven, shape, round_trip, None).payload_bytes_per_s()?)
        };
        let line_s = line_s(&link.up).into_iter().chain(line_s(&link.down)).fold(0.0, f64::max);
        // What is asked for goes together with others once it fits into a packet, for its command and the R2T always do.
        let in_a_packet = if is_asked { 1 } else { 2 };
        let with_header_bytes = u64::from(size_bytes) + HEADER_BYTES;
        let segment_bytes = u64::from(link.mtu.saturating_sub(TCP_HEADER_BYTES));
        Some(CommandTurn {
            time: Duration::try_from_secs_f64(seconds).ok()?,
            round_trips,
            round_trip,
            at_ends: at_rest.round_trip.saturating_sub(round_trip),
            commands,
            line: Duration::try_from_secs_f64(line_s).unwrap_or_default(),
            is_packed: commands > 1 && with_header_bytes * in_a_packet <= segment_bytes,
            is_asked,
            ends: at_rest.ends,
        })
    }

    /// The disk whose commands have round trips of an idle link in them. Beside other traffic plain TCP would have to wait as
    /// commands do, which a reservation is for.
    const fn alone_on_its_link(&self) -> Option<&DiskProbe> {
        match self {
            Self::Disk(disk) | Self::Shared(SharedProbe { flows: 0, disk, .. }) => Some(disk),
            _ => None,
        }
    }

    /// Whether its figure is of work that is done for this cell alone; what others share is not done again for one of them.
    pub(crate) const fn is_of_its_own(&self) -> bool {
        !matches!(self, Self::Files(_) | Self::Login(_))
    }

    /// What this machine lacks for it; nothing if it lacks nothing.
    pub(crate) fn lacks(&self) -> Option<String> {
        match self {
            Self::Files(files) => files.lacks(),
            Self::Virtual(_) => guest::lacks(),
            _ => None,
        }
    }

    /// What is not as the study has it, because this machine lacks something that it can be measured without.
    pub(crate) fn caveat(&self, is_quick: bool) -> Option<&'static str> {
        match self {
            Self::Files(files) => files.caveat(is_quick),
            Self::Virtual(_) if !guest::is_accelerated() => Some(guest::EMULATED),
            _ => None,
        }
    }

    /// What has to grow before it is measured.
    pub(crate) fn to_grow(&self, link: Option<&Link>) -> Turn {
        let round_trips = match self {
            Self::Disk(disk) | Self::Recovery(disk) | Self::Shared(SharedProbe { disk, .. }) => {
                disk.round_trips()
            }
            _ => 1,
        };
        let connections = if let Self::Disk(disk) = self { u64::from(disk.connections) } else { 1 };
        let losses = link.and_then(|link| Losses::of(link, connections));
        let of_losses = losses.map_or(u64::MAX, |losses| losses.window_bytes);
        Turn { outstanding_bytes: self.outstanding_bytes().min(of_losses), round_trips, losses }
    }

    /// Whether there is data on the way to the target, and on the way back; both where nobody knows.
    pub(crate) fn data_ways(&self) -> [bool; 2] {
        match self {
            Self::Tcp { to_target, .. } => [*to_target, !to_target],
            Self::Disk(disk) => {
                let reads = disk.mix().read_share;
                [reads < 1.0, reads > 0.0]
            }
            _ => [true; 2],
        }
    }

    /// In bytes, as far as that is known.
    fn outstanding_bytes(&self) -> u64 {
        match self {
            Self::Tcp { .. } => u64::MAX,
            Self::Disk(disk) | Self::Recovery(disk) => disk.outstanding_bytes(),
            Self::Shared(shared) => shared.disk.outstanding_bytes(),
            Self::Virtual(probe) => u64::from(probe.profile.depth) * u64::from(probe.profile.size_bytes),
            Self::Login(_) | Self::Transfer(_) | Self::Files(_) => 0,
        }
    }
}

/// What was there and back while nothing else was on the link.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AtRest {
    /// The round trip that the model has.
    pub(crate) round_trip: Duration,
    /// What a command without data took beyond what a header takes each way; nothing where that is not known.
    pub(crate) ends: Duration,
}

impl AtRest {
    /// In the middle of several runs, each of which had its own.
    pub(crate) fn of(runs: &[Run]) -> Self {
        let command = |run: &Run| {
            let us = run.negotiated.as_ref()?.idle_round_trip_us?;
            Duration::try_from_secs_f64(us / 1e6).ok()
        };
        let round_trips = runs.iter().filter_map(|run| run.round_trip.or_else(|| command(run)));
        let ends = runs.iter().filter_map(|run| Some(command(run)?.saturating_sub(run.exchanged?.header)));
        Self { round_trip: median_time(round_trips), ends: median_time(ends) }
    }
}

/// Zero of none.
fn median_time(times: impl Iterator<Item = Duration>) -> Duration {
    let seconds = median(times.map(|time| time.as_secs_f64()).collect());
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default()
}

/// How long a command takes by the model, and what is in that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommandTurn {
    /// All of it, with what it waits for others.
    pub(crate) time: Duration,
    pub(crate) round_trips: f64,
    /// The link's.
    pub(crate) round_trip: Duration,
    /// What the model's round trip takes beside that of the link, which is what both ends do for as many bytes by plain TCP.
    pub(crate) at_ends: Duration,
    /// Under way at once; 0 of plain TCP.
    pub(crate) commands: u32,
    /// Its data on the line alone, with all headers of full packets.
    pub(crate) line: Duration,
    /// Two or more of them fit into a packet; of those that wait to be asked for their data, it does.
    pub(crate) is_packed: bool,
    /// All of them are writes that wait to be asked for their data.
    pub(crate) is_asked: bool,
    /// What initiator and target take for a command at rest beyond what its bytes take by plain TCP, in each round trip.
    pub(crate) ends: Duration,
}

/// What one run gave.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) measured: f64,
    pub(crate) model: Option<(f64, Limit)>,
    /// How many round trips a command takes, by the keys that were agreed on: of reads and writes, the mean.
    pub(crate) round_trips: f64,
    /// The share of one processor that this process had.
    pub(crate) processor: f64,
    /// What all processors did meanwhile.
    pub(crate) shares: Shares,
    /// How busy the threads were that carry the network, initiate or serve.
    pub(crate) busy: Busy,
    /// How the link was kept meanwhile.
    pub(crate) keeping: Keeping,
    /// Packets that were lost on the line, or found no room there, before it was measured.
    pub(crate) lost_before: u64,
    /// How long it was measured; zero where nobody has looked.
    pub(crate) lasted: Duration,
    /// How long single operations took, where that is known.
    pub(crate) times: Option<Times>,
    pub(crate) negotiated: Option<Negotiated>,
    /// Where the time of an operation went, where that is known.
    pub(crate) parts: Option<LatencyParts>,
    /// It was not over when patience was: the figure is the least that it can be.
    pub(crate) is_unfinished: bool,
    /// The share of a cold image that the page cache had at the beginning, where the kernel could tell.
    pub(crate) cached: Option<f64>,
    /// What else is told of it.
    pub(crate) further: Vec<Further>,
    /// What sets the limit where there is no model, as far as only the run itself knows.
    pub(crate) limit: Option<&'static str>,
    /// What headers and data took there and back by plain TCP on the idle link ([`Echo::behind`]); nothing through a proxy.
    pub(crate) exchanged: Option<Exchanged>,
    /// The round trip that its model has, where nothing else was on the link.
    pub(crate) round_trip: Option<Duration>,
}

impl Run {
    /// What this machine's host gave to others of what it wanted, in the run or while its echo was measured, whichever is more.
    pub(crate) fn stolen(&self) -> f64 {
        self.shares.stolen.max(self.echo_stolen())
    }

    /// The same where it can be told.
    pub(crate) fn stolen_for_sure(&self) -> f64 {
        self.shares.stolen_for_sure().max(self.echo_stolen())
    }

    /// See [`Exchanged::stolen`].
    pub(crate) fn echo_stolen(&self) -> f64 {
        self.exchanged.map_or(0.0, |exchanged| exchanged.stolen)
    }

    /// A figure for which there is no session.
    pub(crate) fn of(measured: f64, model: Option<(f64, Limit)>) -> Self {
        Self {
            measured,
            model,
            round_trips: 1.0,
            processor: 0.0,
            shares: Shares::default(),
            busy: Busy::default(),
            keeping: Keeping::default(),
            lost_before: 0,
            lasted: Duration::ZERO,
            times: None,
            negotiated: None,
            parts: None,
            is_unfinished: false,
            cached: None,
            further: Vec::new(),
            limit: None,
            exchanged: None,
            round_trip: None,
        }
    }
}

/// Where a run is.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// The link and what is at its ends; none without a network.
    pub(crate) over: Option<(&'a Site, &'a Link)>,
    /// The program `lunette`.
    pub(crate) binary: &'a Path,
    /// A directory for files, on a disk.
    pub(crate) scratch: &'a Path,
    /// What a user has set for all cells over this link; nothing without one.
    pub(crate) set: &'a [Setting],
    /// An image that cells share, once one of them has made it.
    pub(crate) image: &'a OnceCell<Image>,
    /// What cells of the link share.
    pub(crate) kept: &'a Kept,
}

/// What one piece of work gives several cells of one link.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    files: files::Kept,
    logins: login::Kept,
}

impl Kept {
    /// The same, where the next one who needs an image makes a new one.
    pub(crate) fn without_image(self) -> Self {
        Self { files: self.files.without_image(), ..self }
    }
}

/// How long one run is measured, and what comes before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Duty {
    pub(crate) warm_up: Duration,
    pub(crate) time: Duration,
    /// How long what is under way at the end is waited for. It tells nothing more, and on a lossy line there may be a minute of it.
    pub(crate) patience: Duration,
    pub(crate) seed: u64,
    pub(crate) is_quick: bool,
}

/// Data of a segment, in bytes.
const SEGMENT_BYTES: f64 = 1448.0;
/// What TCP sends in its first round trip: ten segments (RFC 6928), here of 1448 bytes.
const FIRST_WINDOW_BYTES: u64 = 14_480;
/// Losses on a connection before its window is what they leave: each halves what slow start had made of it.
const LOSSES_TO_SETTLE: f64 = 6.0;
const SETTLING_MAX: Duration = Duration::from_secs(20);
/// Losses that are to be measured, of which so many come by chance within a seventh more or less.
const LOSSES_TO_TELL: f64 = 50.0;
const TELLING_MAX: Duration = Duration::from_secs(60);
/// The longest that is measured where it is to be quick.
const QUICK_MAX: Duration = Duration::from_millis(2500);

/// What is to be under way at once, in bytes, as far as that is known, and how many round trips each part of it takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) outstanding_bytes: u64,
    pub(crate) round_trips: u32,
    /// Of a line that loses packets.
    pub(crate) losses: Option<Losses>,
}

/// What losses make of Reno's windows in the long run, which takes many of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Losses {
    /// Twice what is under way of all connections on average, in bytes; without a round trip nothing has to grow.
    window_bytes: u64,
    /// From one to the next on a connection, in seconds.
    apart_s: f64,
    connections: u64,
}

impl Losses {
    /// Nothing of a line that loses none.
    fn of(link: &Link, connections: u64) -> Option<Self> {
        let shape = if link.up.loss.mean() >= link.down.loss.mean() { &link.up } else { &link.down };
        let driven = Driven { link, congestion_control: "reno" };
        let path = model::path(driven, shape, link.round_trip(), None);
        let events = Some(path.loss / path.losses_together.max(1.0)).filter(|events| *events > 0.0)?;
        let limit = path.loss_limit();
        // Far below what a double holds exactly.
        let number = connections.max(1) as f64;
        let of_line = path.payload_bytes_per_s().map(|line| line / number);
        let bytes_per_s = limit.into_iter().chain(of_line).fold(f64::INFINITY, f64::min);
        let window = |limit: f64| (2.0 * limit * link.round_trip().as_secs_f64() * number) as u64;
        Some(Self {
            window_bytes: limit.map_or(u64::MAX, window),
            apart_s: SEGMENT_BYTES / events / bytes_per_s,
            connections: connections.max(1),
        })
    }

    /// As long as so many take on each connection.
    fn settling(self, count: f64) -> Duration {
        Self::time(self.apart_s * count, SETTLING_MAX)
    }

    /// As long as so many take on all connections together.
    fn telling(self, count: f64) -> Duration {
        Self::time(self.apart_s * count / self.connections as f64, TELLING_MAX)
    }

    fn time(seconds: f64, most: Duration) -> Duration {
        Duration::try_from_secs_f64(seconds).map_or(most, |time| time.min(most))
    }
}

impl Duty {
    /// Long enough that TCP has found its way, and that one command more or less does not show; in a quick run it may: with one under way
    /// over 50 ms there are 13 to 30.
    ///
    /// A window doubles with each turn of the workload, which takes one round trip, or two where commands wait for R2Ts. What was
    /// begun together then still comes in a burst with gaps behind it, for as long again. What is not quick has twice the time of
    /// the slower ones, and over a line that loses packets as long as it takes some to bring a window down that had grown without any, and
    /// many to tell what it is on average.
    pub(crate) fn on(round_trip: Duration, turn: Turn, seed: u64, is_quick: bool) -> Self {
        let ms = Duration::from_millis;
        let Turn { outstanding_bytes, round_trips, losses } = turn;
        // More than this is under way on no link here.
        let doublings = (outstanding_bytes.clamp(1, 16 << 20) / FIRST_WINDOW_BYTES + 1).ilog2();
        let growth = round_trip * (2 * doublings + 4);
        let patience = ms(500) + round_trip * 2;
        if is_quick {
            let time = (ms(500) + round_trip * 20).min(QUICK_MAX);
            Self { warm_up: ms(200) + growth * round_trips, time, patience, seed, is_quick }
        } else {
            let (warm_up, time) = (ms(500) + growth * 4, ms(2500) + round_trip * 40);
            let settling = losses.map_or(Duration::ZERO, |losses| losses.settling(LOSSES_TO_SETTLE));
            let telling = losses.map_or(Duration::ZERO, |losses| losses.telling(LOSSES_TO_TELL));
            Self { warm_up: warm_up.max(settling), time: time.max(telling), patience, seed, is_quick }
        }
    }
}

/// Operations and bytes per second as a figure of a metric of rates, and the other one beside it.
pub(crate) fn both_units(metric: Metric, operations_per_s: f64, bytes_per_s: f64) -> (f64, Vec<Further>) {
    let mebibytes = bytes_per_s / f64::from(1 << 20);
    let further = |name: Metric, figure| vec![Further::new(name.unit(), figure, "")];
    match metric {
        Metric::OperationsPerSecond => (operations_per_s, further(Metric::MebibytesPerSecond, mebibytes)),
        _ => (mebibytes, further(Metric::OperationsPerSecond, operations_per_s)),
    }
}

/// The share of the time in which the disk below a store had something to do.
pub(crate) const DISK_BUSY: &str = "disk busy";

/// How busy the disk below a directory was since then, where it tells.
fn disk_busy(scratch: &Path, before: Option<DiskTime>) -> Option<Further> {
    let after = DiskTime::now(scratch)?;
    Some(Further::new(DISK_BUSY, after.busy_percent_since(before?)?, "%"))
}

/// Runs a cell and looks how busy the machine was meanwhile.
pub(crate) fn run_once(place: Place<'_>, probe: &Probe, duty: Duty) -> Result<Run, LabError> {
    // It may have been done for another cell, and has looked while it was measured.
    match probe {
        Probe::Files(files) => return files::run(place, files, duty),
        Probe::Login(login) => return login::run(place, login, duty.seed),
        Probe::Transfer(transfer) => return transfer::run(place, transfer),
        _ => {}
    }
    let mut beside = None;
    if let Some((disk, (site, link))) = probe.alone_on_its_link().zip(place.over) {
        let congestion_control = site.congestion_control()?;
        let payload = model::payload(Driven { link, congestion_control: &congestion_control }, disk);
        beside = Some((disk, link, congestion_control, Echo::before(site, payload)?));
    }
    let (monitor, is_measuring) = (Monitor::default(), AtomicBool::new(false));
    let is_measured = || match probe {
        Probe::Tcp { .. } => is_measuring.load(Ordering::Relaxed),
        Probe::Disk(_) | Probe::Shared(_) => monitor.phase() == Phase::Measuring,
        _ => true,
    };
    let (run, seen) = Observer::at(place).watch_while(&is_measured, || match (probe, place.over) {
        (Probe::Tcp { to_target, buffer_bytes }, Some((site, link))) => {
            tcp::run(site, link, *to_target, *buffer_bytes, duty, &is_measuring)
        }
        (Probe::Tcp { .. }, None) => Err(LabError::Plan("there is no TCP without a network".to_owned())),
        (Probe::Disk(disk), _) => disk::run(place, disk, duty, &monitor),
        (Probe::Recovery(disk), _) => recovery::run(place, disk, duty),
        (Probe::Shared(shared), _) => shared::run(place, shared, duty, &monitor),
        (Probe::Virtual(probe), _) => virtualized::run(place, probe, duty),
        (Probe::Login(login), _) => login::run(place, login, duty.seed),
        (Probe::Transfer(transfer), _) => transfer::run(place, transfer),
        (Probe::Files(files), _) => files::run(place, files, duty),
    })?;
    // What a run has looked at itself is in it already: a disk, while it was measured alone.
    let Seen { shares, processor, busy, keeping, lost_before, lasted, .. } = seen;
    let mut run = Run { shares, processor, busy, keeping, lost_before, lasted, ..run? };
    if let (Some((disk, link, congestion_control, echo)), Some(agreed)) = (beside, &run.negotiated) {
        // A command that is alone is over soon, and nothing of it is on the link then.
        run.exchanged = echo.behind(disk.depth == 1);
        let driven = Driven { link, congestion_control: &congestion_control };
        let modelled = model::disk(driven, disk, agreed, run.exchanged);
        run.round_trip = modelled.as_ref().map(|modelled| modelled.round_trip);
        run.model = modelled.map(|modelled| modelled.expected);
    }
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::{Cell, study};

    #[test]
    fn at_rest_each_run_has_its_own_round_trips() {
        let run = |(command_us, echo_us): (f64, Option<u64>)| {
            let negotiated = Negotiated { idle_round_trip_us: Some(command_us), ..Negotiated::of_tests() };
            let header = echo_us.map(Duration::from_micros);
            let exchanged =
                header.map(|header| Exchanged { header, read: None, write: None, asked: None, stolen: 0.0 });
            let round_trip = header.map(|header| header * 2);
            Run { negotiated: Some(negotiated), exchanged, round_trip, ..Run::of(1.0, None) }
        };
        let of = |runs: &[(f64, Option<u64>)]| {
            let AtRest { round_trip, ends } = AtRest::of(&runs.iter().copied().map(run).collect::<Vec<_>>());
            [round_trip, ends].map(|time| time.as_micros())
        };
        assert_eq!(of(&[(100.0, Some(300)), (300.0, Some(100)), (300.0, Some(290))]), [580, 10]);
        assert_eq!(of(&[(250.0, None)]), [250, 0]);
        assert_eq!(of(&[]), [0, 0]);
    }

    #[test]
    fn who_goes_round_together_fits_into_a_packet() {
        let cells = (study("dalgic-sweep").expect("a study").cells)(1);
        let is_packed = |mode: &str, request_kib: &str, window: &str, round_trips| {
            let wanted = [("mode", mode), ("request_kib", request_kib), ("window", window), ("rtt_ms", "0")];
            let has = |cell: &Cell, (name, value): &(&str, &str)| {
                cell.parameters.iter().any(|own| own.0 == *name && own.1 == *value)
            };
            let is_it = |cell: &&Cell| wanted.iter().all(|pair| has(cell, pair));
            let cell = cells.iter().find(is_it).expect("a cell");
            let link: Link = cell.link.as_deref().and_then(|link| link.parse().ok()).expect("a link");
            let turn = cell.probe.turn(5.0, &link, AtRest::default(), round_trips).expect("a turn");
            turn.is_packed
        };
        assert!(is_packed("write-solicited", "1", "32", 2.0));
        assert!(!is_packed("write-solicited", "1", "1", 2.0), "it is alone");
        assert!(!is_packed("write-solicited", "8", "32", 2.0), "six packets");
        assert!(!is_packed("write-unsolicited", "1", "32", 1.0), "two of them are more than a packet");
        assert!(!is_packed("read", "1", "32", 1.0));
    }

    #[test]
    fn tcp_has_time_to_grow() {
        let turning = |outstanding_bytes, round_trips| {
            let turn = Turn { outstanding_bytes, round_trips, losses: None };
            Duty::on(Duration::from_millis(50), turn, 1, true)
        };
        let on = |outstanding| turning(outstanding, 2);
        // One small command: nothing has to grow.
        assert_eq!(on(1024).warm_up, Duration::from_millis(600));
        // 2 MiB are eight doublings from ten segments, of two round trips each, and as many again.
        assert_eq!(on(2 << 20).warm_up, Duration::from_millis(600 + 7 * 4 * 50));
        assert_eq!(on(u64::MAX).warm_up, on(16 << 20).warm_up);
        // Without R2Ts half of it.
        assert_eq!(turning(2 << 20, 1).warm_up, Duration::from_millis(400 + 7 * 2 * 50));
        assert_eq!(on(1024).time, Duration::from_millis(1500));
    }

    #[test]
    fn losses_leave_less_to_grow() {
        let probe = Probe::Tcp { to_target: true, buffer_bytes: Some(10 << 20) };
        let of = |link: Option<&str>| {
            let link = link.map(|link| link.parse::<Link>().expect("a link"));
            probe.to_grow(link.as_ref()).outstanding_bytes
        };
        assert_eq!((of(None), of(Some("oc3-50"))), (u64::MAX, u64::MAX));
        // Twice Reno's mean of 12 segments.
        assert_eq!(of(Some("oc3-50,loss=1%")), 35_468);
        assert!(of(Some("oc3-50,loss=0.1%")) > 100_000);
    }

    #[test]
    fn losses_take_time_to_settle_and_to_be_told() {
        let probe = Probe::Tcp { to_target: true, buffer_bytes: Some(10 << 20) };
        let of = |link: &str, is_quick| {
            let link: Link = link.parse().expect("a link");
            let duty = Duty::on(link.round_trip(), probe.to_grow(Some(&link)), 1, is_quick);
            (duty.warm_up.as_millis(), duty.time.as_millis())
        };
        // One comes in 408 ms: 50 / sqrt(1.5 %).
        assert_eq!(of("oc3-50,loss=1%", false), (2449, 20_412));
        assert_eq!(of("oc3-50,loss=0.001%", false), (20_000, 60_000), "nobody waits for all of them");
        // A full line loses one of 1000 segments of 77 us, with all headers.
        assert_eq!(of("oc3-0,loss=0.1%", false).1, 3870);
        // Of a burst that is lost together a window learns once.
        let bursts = of("oc3-50,loss=0.1%/20%/100%", false).1;
        assert!(bursts > of("oc3-50,loss=0.5%", false).1, "{bursts}");
        assert!(of("oc3-50", false).1 < 5000 && of("oc3-50,loss=1%", true).1 < 2000);
    }

    #[test]
    fn of_several_connections_each_has_losses_of_its_own() {
        let link: Link = "oc3-50,loss=1%".parse().expect("a link");
        let [one, four] = [1, 4].map(|connections| Losses::of(&link, connections).expect("losses"));
        let settling = [one, four].map(|losses| losses.settling(6.0).as_micros());
        let telling = [one, four].map(|losses| losses.telling(6.0).as_micros());
        assert_eq!(settling[0], settling[1]);
        assert!(telling[0].abs_diff(telling[1] * 4) <= 4, "rounded: {telling:?}");
        assert!(four.window_bytes.abs_diff(one.window_bytes * 4) < 4);
    }
}
