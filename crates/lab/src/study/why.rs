//! Why a published figure is another one than ours. Each reason follows from figures of both sides, and its kind is that of what was the limit:
//! a line, processors, disks, the exchanges of a protocol, a cache. Where none follows, none is told, and `lunette lab check` counts it.
//!
//! Nothing is known of the papers' hosts but their figures, their disks and their lines. A figure is a rate; with the size of a command and
//! how many were allowed, it is also the time of one, or how many of them there can have been under way (Little's law). What is less here
//! than there is asked of our own limit, and what is more of theirs.

use std::time::Duration;

use lunette_link::Link;
use lunette_workload::model::{Limit, TCP_HEADER_BYTES};

use super::limits::EXCHANGES_MAX;
use super::memory::SERVER_BYTES;
use super::probe::{DISK_BUSY, Figure, FilesProbe, Job, Keys, Load, Metric, Probe};
use super::published::{
    LU_FILES_NFS, LU_FILES_SMB, LU_HEAVY, LU_LIGHT, LU_TRACE, Published, TRINKLE_BASELINE,
};
use super::result::{CellResult, OFF};
use super::{Cell, Study, dalgic, lu, trinkle};
use crate::report::figure_text;

/// From here on a round trip shows in the figures of the paper, whose hosts took some tenths of a millisecond for a command.
const LONG: Duration = Duration::from_millis(1);
/// A disk that is at work for this share of the time is a limit, in percent.
const DISK_BUSY_PERCENT: f64 = 50.0;
/// No line carries more than its rate; what is told so was measured with some error.
const CARRIED_MAX: f64 = 1.02;
/// A line with less than this share in use was not the limit.
const LINE_FULL: f64 = 0.9;
/// Of Ethernet's usual frames, in bytes.
const USUAL_MTU: f64 = 1500.0;
/// What turning disks make of a deviation has to be this share of it at least.
const TURNING_SHARE: f64 = 0.5;
/// What Fujita and Ogawara's target had for its page cache, and ours may have, in bytes.
const PAGE_CACHE_BYTES: f64 = SERVER_BYTES as f64;
/// A file of theirs.
const FILE_BYTES: f64 = 2.0 * 1_048_576.0;

/// The disks of a paper.
#[derive(Debug, Clone, Copy)]
struct Disks {
    count: u32,
    /// Turns per minute.
    speed: u32,
}

impl Disks {
    /// What papers say of theirs: the table of disk parameters of Lu and Du, who had six of them at work at most; the list of hardware of
    /// Trinkle, whose RAID 0 had four. Dalgic and others wrote into a cache and read from one.
    fn of(study: &Study) -> Option<Self> {
        match study.paper {
            paper if paper == lu::LIGHT.paper => Some(Self { count: 6, speed: 10_025 }),
            paper if paper == trinkle::PROFILES.paper => Some(Self { count: 4, speed: 7200 }),
            _ => None,
        }
    }

    /// How long half a turn takes in milliseconds: what a random block is away on average.
    fn half_turn_ms(self) -> f64 {
        30_000.0 / f64::from(self.speed)
    }

    /// Whether so many commands under way, each of which took so long, were as slow as disks are: each disk took at least half a turn for one.
    fn slowness(self, depth: u32, command_ms: f64) -> Option<String> {
        let at_work = self.count.min(depth);
        let each_ms = command_ms * f64::from(at_work) / f64::from(depth.max(1));
        (each_ms >= self.half_turn_ms()).then(|| {
            format!(
                "{} took {} ms for one, of which half a turn is {} ms",
                if at_work == 1 { "a disk".to_owned() } else { format!("each of {at_work} disks") },
                figure_text(each_ms),
                figure_text(self.half_turn_ms())
            )
        })
    }
}

/// Commands of a cell.
struct Commands {
    depth: u32,
    size_bytes: u32,
    /// How many of a hundred go to a random place.
    random_percent: u8,
    metric: Metric,
}

impl Commands {
    fn of(probe: &Probe) -> Option<Self> {
        match probe {
            Probe::Disk(disk) => Some(Self {
                depth: disk.depth,
                size_bytes: disk.mix().size_bytes,
                random_percent: match &disk.load {
                    Load::Workload(workload) => workload.random.get(),
                    Load::Trace(_) => 100,
                },
                metric: disk.metric,
            }),
            Probe::Virtual(virtual_one) => Some(Self {
                depth: virtual_one.profile.depth,
                size_bytes: virtual_one.profile.size_bytes,
                random_percent: virtual_one.profile.random.get(),
                metric: virtual_one.metric,
            }),
            _ => None,
        }
    }

    /// How long each of them took where this was the figure (Little's law).
    fn time_ms(&self, figure: f64) -> f64 {
        self.metric.command_s(self.depth, self.size_bytes, figure) * 1e3
    }

    /// What share of the line of a link their data had where this was the figure.
    fn share_of(&self, link: &Link, figure: f64) -> Option<f64> {
        let line = payload_bytes_per_s(link)?;
        let bytes_per_s = f64::from(self.depth) * f64::from(self.size_bytes) / (self.time_ms(figure) / 1e3);
        Some(bytes_per_s / line)
    }
}

/// What was under way in a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Background {
    /// Bytes of a command, and how many commands were allowed; none: a stream.
    commands: Option<(f64, u32)>,
    /// That a command takes at least.
    round_trips: f64,
    round_trip: Duration,
    /// Bytes per second that the link carries.
    line: f64,
}

/// Names the reason where the published figure is off by more than [`OFF`]; none where the figures do not tell one. `above` of the
/// result is told before.
pub(super) fn why(study: &Study, cell: &Cell, result: &CellResult) -> Option<String> {
    let published = result.published.filter(|_| result.is_off_published() == Some(true))?;
    // Nothing follows from what is not understood itself, or is not there at all.
    let has_limit = !["none", "not-recovered"].contains(&&*result.limit);
    if result.is_unexplained() || !has_limit || result.measured <= 0.0 {
        return None;
    }
    if let Probe::Files(FilesProbe { job: Job::Web { files, .. }, figure: Figure::Hits }) = cell.probe {
        return cached(files, result.measured, published);
    }
    let is_worse =
        if result.unit == "ms" { result.measured > published } else { result.measured < published };
    let background = if study.paper == dalgic::PAPER { Background::of(cell) } else { None };
    if background.is_some()
        && let Some(rounded) = rounded(result.measured * 1e6, published * 1e6)
    {
        return Some(rounded);
    }
    if is_worse {
        let here = here(cell, result, published)?;
        let there = background.and_then(|background| background.more_under_way(published * 1e6));
        return Some(there.map_or_else(|| here.clone(), |there| format!("{here}; {there}")));
    }
    match background {
        Some(background) => background.there(result.measured * 1e6, published * 1e6, &result.limit),
        None => there(study, cell, result, published),
    }
}

/// What was the limit here, where less came than there: only what was measured, or what the link lets through and was reached.
fn here(cell: &Cell, result: &CellResult, published: f64) -> Option<String> {
    if let Some(machine) = &result.machine {
        return Some(format!("this machine was the limit here: {machine}"));
    }
    let unit = &result.unit;
    let reached = result.model.filter(|_| result.reaches_model() == Some(true)).map(figure_text);
    let of_model = |what: &str| {
        let model = reached.as_ref()?;
        Some(format!("{what} {model} {unit}, which is reached; the published figure is beyond that"))
    };
    let round_trip_ms = link_of(cell).map_or(0.0, |link| link.round_trip().as_secs_f64() * 1e3);
    match &*result.limit {
        "link-rate" => of_model("the line here lets through"),
        "command-window" => of_model("so many commands over the round trips of this link make"),
        "tcp-window" => of_model("TCP's window over the round trip of this link makes"),
        "loss" => of_model("the losses of this link leave"),
        "store" => {
            let busy = disk_busy(result).filter(|percent| *percent >= DISK_BUSY_PERCENT);
            let named = || Some(format!("the disk here was the limit: {}", result.because.as_ref()?));
            let busy = busy.map(|busy| format!("the disk here was the limit, which was at work for {busy:.0} % of the time"));
            busy.or_else(named)
        }
        // Whatever is exchanged is whole round trips of a link where those are long.
        "protocol" | "round-trips" if round_trip_ms >= 1.0 && result.measured >= round_trip_ms && unit == "ms" => {
            Some(format!(
                "{} ms are {:.1} round trips of this link ({} ms each), and {} ms would be {:.1}: the exchanges of the protocol, over a link that may \
                 be longer than the paper's",
                figure_text(result.measured),
                result.measured / round_trip_ms,
                figure_text(round_trip_ms),
                figure_text(published),
                published / round_trip_ms
            ))
        }
        // It is named so where neither the link nor this machine's processors were at their end.
        "target" if is_peer(cell) => Some(format!(
            "the target was the limit here, for neither link nor processors were at their end: these were idle for {:.0} % of the time, and the \
             busiest thread had {:.0} % of one",
            result.idle * 100.0,
            result.busiest * 100.0
        )),
        "initiator" if matches!(cell.probe, Probe::Virtual(_)) => Some(
            "the initiator in its virtual machine was the limit here, for less than nine tenths of the link were in use".to_owned(),
        ),
        // Named by a run in a machine without an accelerator.
        "machine" if matches!(cell.probe, Probe::Virtual(_)) => {
            Some("the processor of the initiator's virtual machine is emulated here".to_owned())
        }
        _ => None,
    }
}

/// What was the limit there, where more came here: what the paper's figures say of its disks, its line and its hosts.
fn there(study: &Study, cell: &Cell, result: &CellResult, published: f64) -> Option<String> {
    match &cell.probe {
        Probe::Login(_) => waited(cell, published),
        Probe::Files(FilesProbe { figure: Figure::Each { is_deviation, .. }, .. }) => {
            files(Disks::of(study)?, cell, result, published, *is_deviation)
        }
        Probe::Tcp { .. } => short_frames(&link_of(cell)?, published),
        probe => {
            let commands = Commands::of(probe)?;
            let disks = Disks::of(study);
            let link = link_of(cell);
            if let Some(link) = &link
                && commands.share_of(link, result.measured).is_some_and(|share| share > 2.0 * CARRIED_MAX)
            {
                // Reads and writes have a direction each; more than both carry was not measured.
                return None;
            }
            let with_network = || apart(study, cell, &commands, result.measured, published);
            let frames = || other_frames(study, cell, result.measured);
            let of_disks = || slow_disks(disks?, cell, &commands, result.measured, published);
            let of_hosts = || hosts(study, &commands, link.as_ref()?, result.measured, published);
            with_network().or_else(frames).or_else(of_disks).or_else(of_hosts)
        }
    }
}

/// Disks, where commands took as long as disks take: at random places, or without a network.
fn slow_disks(
    disks: Disks,
    cell: &Cell,
    commands: &Commands,
    measured: f64,
    published: f64,
) -> Option<String> {
    let (there_ms, here_ms) = (commands.time_ms(published), commands.time_ms(measured));
    let figures =
        format!("a command took {} ms there and {} ms here", figure_text(there_ms), figure_text(here_ms));
    if commands.random_percent > 0 {
        let slowness = disks.slowness(commands.depth, there_ms)?;
        return Some(format!("disks: {figures}; there {slowness}, and here memory takes their place"));
    }
    // In order, and nothing but the disks is between.
    cell.link.is_none().then(|| {
        format!(
            "disks: {figures}; there {} disks gave {} each, and here memory takes their place",
            disks.count,
            figure_text(published / f64::from(disks.count))
        )
    })
}

/// The hosts, where the line had room and disks were faster than that: something of theirs took the time.
fn hosts(study: &Study, commands: &Commands, link: &Link, measured: f64, published: f64) -> Option<String> {
    let share = commands.share_of(link, published).filter(|share| *share < LINE_FULL)?;
    // Random blocks have been asked of the disks before, and were too fast for them.
    let of_disks = if commands.random_percent > 0 {
        "disks do not answer that fast".to_owned()
    } else {
        let bytes_per_s =
            f64::from(commands.depth) * f64::from(commands.size_bytes) / (commands.time_ms(published) / 1e3);
        let in_order = in_order_bytes_per_s(study)?;
        if bytes_per_s >= in_order * LINE_FULL {
            return None;
        }
        format!(
            "its disks gave {} MB/s in order, and these were {}",
            figure_text(in_order / 1e6),
            figure_text(bytes_per_s / 1e6)
        )
    };
    Some(format!(
        "hosts: each of {} commands took {} ms there and {} ms here; {:.0} % of such a line were in use there, and {of_disks}, \
         so that it is what the paper's hosts and targets took for each",
        commands.depth,
        figure_text(commands.time_ms(published)),
        figure_text(commands.time_ms(measured)),
        share * 100.0
    ))
}

/// What a paper's disks gave in order, in bytes per second, where it says so.
fn in_order_bytes_per_s(study: &Study) -> Option<f64> {
    let is_it = study.paper == trinkle::PROFILES.paper;
    TRINKLE_BASELINE.one(&[("what", "store")], "mb_per_s").filter(|_| is_it).map(|megabytes| megabytes * 1e6)
}

/// Plain TCP over long frames, where the published figure is what the usual ones carry.
fn short_frames(link: &Link, published: f64) -> Option<String> {
    let line = payload_bytes_per_s(link)?;
    let on_line = USUAL_MTU + f64::from(link.up.overhead_bytes);
    let carried = line * (USUAL_MTU - f64::from(TCP_HEADER_BYTES)) / on_line / 1e6;
    (f64::from(link.mtu) > USUAL_MTU && (published / carried - 1.0).abs() <= OFF).then(|| {
        format!(
            "frames: of those of 1500 bytes such a line carries {} MB/s of data, which is near the published figure; the paper does not say with which it measured",
            figure_text(carried)
        )
    })
}

/// What frames of the other length gave the same hosts and disks, where that is what came here.
fn other_frames(study: &Study, cell: &Cell, measured: f64) -> Option<String> {
    if study.name != trinkle::PROFILES.name {
        return None;
    }
    let value = |name: &str| value(cell, name);
    let is_it = |row: &&(&str, Option<&str>)| row.1.is_some() && row.1 == value("target");
    let target = trinkle::TARGETS.iter().find(is_it).map(|row| row.0);
    let published =
        |frames| trinkle::published(value("initiator")?, frames, value("profile")?, target).published;
    let (own, other) = match value("frames")? {
        "jumbo" => ("jumbo", "standard"),
        _ => ("standard", "jumbo"),
    };
    let figure = published(other).filter(|figure| (measured / figure - 1.0).abs() <= OFF)?;
    Some(format!(
        "hosts: with {other} frames the same hosts and disks had {}, which is what came here; the rest is what {own} frames cost them",
        figure_text(figure)
    ))
}

/// Disks and network apart, where the paper has the same without a network.
fn apart(study: &Study, cell: &Cell, commands: &Commands, measured: f64, published: f64) -> Option<String> {
    let alone = without_network(study, cell)?;
    let [whole_ms, alone_ms, here_ms] = [published, alone, measured].map(|figure| commands.time_ms(figure));
    let slowness = Disks::of(study)?.slowness(commands.depth, alone_ms)?;
    let network_ms = (whole_ms - alone_ms).max(0.0);
    let line = if network_ms > here_ms {
        ", and its line and gateway (of the campus also a firewall and a VPN) were slower than the line here"
    } else {
        ""
    };
    Some(format!(
        "disks: {} of the published {} ms of a command are there without a network, where {slowness}; {} are its network's, and a command takes {} ms \
         here, to memory{line}",
        figure_text(alone_ms),
        figure_text(whole_ms),
        figure_text(network_ms),
        figure_text(here_ms)
    ))
}

/// What the paper has of the same operations without a network, where it has them.
fn without_network(study: &Study, cell: &Cell) -> Option<f64> {
    cell.link.as_ref()?;
    let value = |name: &str| value(cell, name);
    let place = ("configuration", lu::WITHOUT_NETWORK);
    let one = |table: Published, wanted: &[(&str, &str)], column| table.one(wanted, column);
    match study.name {
        name if name == lu::LIGHT.name => {
            one(LU_LIGHT, &[place, ("op", value("op")?), ("size_kib", value("size_kib")?)], "mean_ms")
        }
        name if name == lu::HEAVY.name => {
            one(LU_HEAVY, &[place, ("size_kib", value("size_kib")?)], "approx_mb_per_s")
        }
        name if name == lu::TRACE.name => one(LU_TRACE, &[place], value("figure")?),
        _ => None,
    }
}

/// A login: more round trips than any has were somebody's waiting.
fn waited(cell: &Cell, published: f64) -> Option<String> {
    let round_trip_ms = link_of(cell)?.round_trip().as_secs_f64() * 1e3;
    let exchanges = published / round_trip_ms;
    (exchanges.is_finite() && exchanges > EXCHANGES_MAX).then(|| {
        format!(
            "initiator: {} ms would be {exchanges:.0} round trips of this link, and no part of a login has so many; the paper saw no traffic in most \
             of the time, and suspects a timer of its initiator's driver",
            figure_text(published)
        )
    })
}

/// Files: what disks took of it there, and what a file server did.
fn files(
    disks: Disks,
    cell: &Cell,
    result: &CellResult,
    published: f64,
    is_deviation: bool,
) -> Option<String> {
    let half_turn_ms = disks.half_turn_ms();
    let here = format!(
        "here a file system on one disk image takes {} ms, and the limit is {}{}",
        figure_text(result.measured),
        result.limit,
        result
            .machine
            .as_ref()
            .or(result.because.as_ref())
            .map(|figures| format!(" ({figures})"))
            .unwrap_or_default()
    );
    let speed = disks.speed;
    let over_iscsi = |column| {
        let table = match value(cell, "scheme")? {
            "nfs" => LU_FILES_NFS,
            "smb" => LU_FILES_SMB,
            _ => return None,
        };
        table.one(
            &[("scheme", "iscsi"), ("op", value(cell, "op")?), ("size_kib", value(cell, "size_kib")?)],
            column,
        )
    };
    if is_deviation {
        let column = "std_ms";
        // A block is anywhere on a turn; of several accesses to find, each is.
        let of_turn_ms = 2.0 * half_turn_ms / 12_f64.sqrt();
        let accesses = (published_mean(cell)? / half_turn_ms).max(1.0);
        let of_all_ms = of_turn_ms * accesses.sqrt();
        if of_all_ms >= published * TURNING_SHARE && published >= of_turn_ms {
            return Some(format!(
                "disks: one that turns {speed} times a minute makes a deviation of {} ms for each access by its turning alone, and up to {} ms of as many \
                 as the published mean has room for; {here}",
                figure_text(of_turn_ms),
                figure_text(of_all_ms)
            ));
        }
        let iscsi = over_iscsi(column)?;
        if iscsi < published * (1.0 - OFF) {
            // Of two delays that know nothing of each other, the variances add up.
            let server = (published * published - iscsi * iscsi).sqrt();
            return Some(format!(
                "disks and server: over iSCSI, with the same disks and without this server, the paper has a deviation of {} ms; what the server and its protocol add \
                 has one of {} ms, if it does not depend on the disks; {here}",
                figure_text(iscsi),
                figure_text(server)
            ));
        }
        return Some(format!(
            "disks and hosts: over iSCSI, with the same disks and without this server, the paper has a deviation of {} ms as well; {here}",
            figure_text(iscsi)
        ));
    }
    if let Some(iscsi) = over_iscsi("mean_ms").filter(|iscsi| *iscsi >= half_turn_ms && *iscsi < published) {
        return Some(format!(
            "disks and server: {} of the published {} ms are there over iSCSI as well, with the same disks, of which one that turns {speed} times a minute takes \
             {} ms for each access by half a turn; {} are what the server and its protocol add; {here}",
            figure_text(iscsi),
            figure_text(published),
            figure_text(half_turn_ms),
            figure_text(published - iscsi)
        ));
    }
    // None of the paper's files was in a cache, so that each took one access at least.
    (published >= half_turn_ms && over_iscsi("mean_ms").is_none()).then(|| {
        format!(
            "disks: an access to one that turns {speed} times a minute waits for {} ms of turning on average, and {} ms there have room for {:.0} of \
             them; {here}",
            figure_text(half_turn_ms),
            figure_text(published),
            (published / half_turn_ms).floor()
        )
    })
}

/// The mean time of the files whose deviation a cell has.
fn published_mean(cell: &Cell) -> Option<f64> {
    let table = if value(cell, "scheme")? == "smb" { LU_FILES_SMB } else { LU_FILES_NFS };
    let wanted = ["scheme", "op", "size_kib"].map(|name| value(cell, name).map(|value| (name, value)));
    let wanted: Option<Vec<(&str, &str)>> = wanted.into_iter().collect();
    table.one(&wanted?, "mean_ms")
}

/// How much of the files a page cache had, by its hit rate: both are of the same length, and kernels do not fill them with the same.
fn cached(files: u32, measured_percent: f64, published_percent: f64) -> Option<String> {
    let all_bytes = f64::from(files) * FILE_BYTES;
    let held = |percent: f64| percent / 100.0 * all_bytes;
    let most = PAGE_CACHE_BYTES.min(all_bytes);
    // More than fits was not in memory, and less than half of what was there is no other kernel's way.
    let is_possible =
        held(measured_percent) <= most * (1.0 + OFF) && measured_percent >= published_percent / 2.0;
    let mebibytes = |bytes: f64| figure_text(bytes / 1_048_576.0);
    is_possible.then(|| {
        format!(
            "cache: by these rates {} MiB of the files were in memory there and {} MiB here, of {} MiB that there are for all of a page cache; two kernels \
             fill it in their own ways, and what ours reads ahead of neighbouring files counts against it",
            mebibytes(held(published_percent)),
            mebibytes(held(measured_percent)),
            mebibytes(most)
        )
    })
}

fn value<'a>(cell: &'a Cell, name: &str) -> Option<&'a str> {
    cell.parameters.iter().find(|own| own.0 == name).map(|own| own.1.as_str())
}

fn is_peer(cell: &Cell) -> bool {
    value(cell, "target").is_some_and(|target| target != "lunette")
}

fn link_of(cell: &Cell) -> Option<Link> {
    cell.link.as_deref()?.parse().ok()
}

/// What the slower direction of a link carries of bits, in bytes per second.
fn payload_bytes_per_s(link: &Link) -> Option<f64> {
    // Far below what a double holds exactly.
    let rate = |shape: &lunette_link::Shape| shape.rate.map(|rate| rate.bits_per_s() as f64 / 8.0);
    rate(&link.up).into_iter().chain(rate(&link.down)).reduce(f64::min)
}

fn disk_busy(result: &CellResult) -> Option<f64> {
    result.further.iter().find(|one| one.name == DISK_BUSY).map(|one| one.measured)
}

/// Names what the model does not know, where more came than it expects.
pub(super) fn above(cell: &Cell, result: &CellResult, limit: Option<Limit>) -> Option<String> {
    if !result.exceeds_model() {
        return None;
    }
    if let Probe::Login(_) = cell.probe {
        return sooner(cell, result);
    }
    let reason = match limit? {
        Limit::TcpWindow => return Some(window(cell, result)),
        Limit::Loss => "the model's rate under losses is a mean over many of them, and a run has few",
        // No link carries more than its rate, and no command takes less than its round trips: nothing that is known explains this.
        Limit::Link | Limit::Window => return None,
    };
    Some(reason.to_owned())
}

/// A login whose round trips were all short ones: by no more than jitter makes of each.
fn sooner(cell: &Cell, result: &CellResult) -> Option<String> {
    let link = link_of(cell)?;
    let jitter_ms = (link.up.jitter.most + link.down.jitter.most).as_secs_f64() * 1e3;
    let round_trips = result.model? / (link.round_trip().as_secs_f64() * 1e3);
    (result.measured >= round_trips * (link.round_trip().as_secs_f64() * 1e3 - jitter_ms)).then(|| {
        format!(
            "round trips of this link are up to {} ms shorter or longer, and a few logins have few of them",
            figure_text(jitter_ms)
        )
    })
}

/// The window that there was, by Little's law.
fn window(cell: &Cell, result: &CellResult) -> String {
    let round_trip = cell.link.as_deref().and_then(|link| link.parse::<Link>().ok());
    let round_trip_s = round_trip.map(|link| link.round_trip().as_secs_f64()).unwrap_or_default();
    let kilobytes = result.measured * 1e3 * round_trip_s;
    let under_way = if result.unit == "MB/s" && kilobytes >= 1.0 {
        format!("{kilobytes:.0} KB were under way in each round trip: ")
    } else {
        String::new()
    };
    format!(
        "{under_way}TCP's buffers are set, and the kernel makes a window of them; newer ones count what packets really take, which lets \
         more be under way than was set"
    )
}

impl Background {
    fn of(cell: &Cell) -> Option<Self> {
        let link = link_of(cell)?;
        let line = payload_bytes_per_s(&link).unwrap_or(f64::INFINITY);
        let background = Self { commands: None, round_trips: 1.0, round_trip: link.round_trip(), line };
        match &cell.probe {
            Probe::Tcp { .. } => Some(background),
            Probe::Disk(disk) => {
                let Load::Workload(workload) = &disk.load else { return None };
                let commands = Some((f64::from(workload.sizes.largest()), disk.depth));
                let round_trips = if disk.keys == Keys::Solicited { 2.0 } else { 1.0 };
                Some(Self { commands, round_trips, ..background })
            }
            _ => None,
        }
    }

    /// What a command takes at least, in seconds: its round trips, and its data on the line.
    fn least_s(&self, size: f64) -> f64 {
        self.round_trips * self.round_trip.as_secs_f64() + size / self.line
    }

    /// Where a command took less there than it can: more of them were under way than the cell has.
    fn more_under_way(&self, theirs: f64) -> Option<String> {
        let (size, window) = self.commands?;
        let (there_s, least_s) = (f64::from(window) * size / theirs, self.least_s(size));
        (there_s < least_s * (1.0 - OFF / 2.0)).then(|| {
            format!(
                "a command took {:.2} ms there, less than its round trips and its data on the line take one after the other \
                 ({:.2} ms): more than {window} was under way, as where a system reads ahead or writes behind",
                there_s * 1e3,
                least_s * 1e3
            )
        })
    }

    /// Why less came there. Both rates are in bytes per second.
    fn there(&self, ours: f64, theirs: f64, limit: &str) -> Option<String> {
        if ours > self.line * CARRIED_MAX {
            return None;
        }
        let round_trip_s = self.round_trip.as_secs_f64();
        let under_way = theirs * round_trip_s;
        let is_long = self.round_trip >= LONG;
        let Some((size, window)) = self.commands else {
            return is_long.then(|| {
                format!(
                    "there {:.0} KB were under way in each round trip, here {:.0}: the window that TCP made of the same buffer",
                    under_way / 1e3,
                    ours * round_trip_s / 1e3
                )
            });
        };
        if window > 1 && is_long {
            let commands = theirs * self.round_trips * round_trip_s / size;
            return Some(format!(
                "hosts: there {:.0} KB were under way in each round trip, as of {commands:.1} of {window} commands: a window of the paper's hosts, not of \
                 the network; here the limit is {limit}",
                under_way / 1e3
            ));
        }
        let (there_ms, here_ms) = (size / theirs * 1e3, size / ours * 1e3);
        if window > 1 {
            return Some(format!(
                "hosts: there {there_ms:.3} ms went by between two commands, here {here_ms:.3}: what the paper's hosts took for each; here the limit is {limit}"
            ));
        }
        Some(format!(
            "hosts: a command took {there_ms:.2} ms there and {here_ms:.2} ms here: the paper's hosts took {:.2} ms more of it",
            there_ms - here_ms
        ))
    }
}

/// The paper tells one decimal, and two below 0.1: what it told as the same figure may be nearer to ours.
fn rounded(ours: f64, theirs: f64) -> Option<String> {
    let (half, decimals) = if theirs < 1e5 { (5e3, 3) } else { (5e4, 2) };
    let (low, high) = (theirs - half, theirs + half);
    let is_near = ours >= low * (1.0 - OFF) && ours <= high * (1.0 + OFF);
    is_near.then(|| {
        format!(
            "the published figure is rounded: it stands for {:.decimals$} to {:.decimals$} MB/s",
            low / 1e6,
            high / 1e6
        )
    })
}

#[cfg(test)]
mod tests;
