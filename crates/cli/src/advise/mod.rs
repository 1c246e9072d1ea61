//! `lunette advise`: what a network lets through, and which settings lift it.

mod options;
mod paste;
mod text;

use std::time::Duration;

use lunette_lab::{
    LabError, MeasuredPath, Negotiated, Outcome, Trial, line_path, measure_path, socket_buffers_bytes_max,
    tcp_window_bytes, unknown_to_model,
};
use lunette_link::{Link, LinkError, Shape};
use lunette_wan::acquire_privileges;
use lunette_workload::model::advice::{Advice, Change, Question, advise};
use lunette_workload::model::{NetworkPath, Settings};
use lunette_workload::{Range, SIZE_BYTES_MAX};
use serde::Serialize;

use self::options::Preset;
pub(crate) use self::options::{AdviseOptions, EXAMPLES};
use self::paste::Commands;
use crate::bench;
use crate::failure::{Failure, say};
use crate::initiator::{Disk, tell};
use crate::wan::is_proxy;

const PRIVILEGES_HELP: &str = "run it as root, or let users make namespaces and open /dev/net/tun, as for `lunette wan run`; without --prove none is needed";
/// What Linux lets TCP have under way where this machine does not tell: half of its receive buffer of 6 MiB (tcp(7), tcp_rmem).
const TCP_WINDOW_BYTES: u64 = 3 << 20;
const KERNEL_HELP: &str = "a proof sets TCP's buffers and congestion control in network namespaces of its own, for which /proc/sys has to be writable";
/// What no property of a link is, and the model does not know.
const TIMEOUTS: &str = "timeouts";
/// A line that was not measured.
const GIVEN: &str = "given";
/// How commands name the target where it is not known.
const TARGET: &str = "TARGET";

/// What is told. Rates are of data, in 10^6 bytes per second.
#[derive(Debug, Serialize)]
struct Told {
    path: Path,
    /// What reading has shown, where a disk was given.
    seen: Option<Seen>,
    workload: Workload,
    settings: Keys,
    mb_per_s: f64,
    limit: &'static str,
    /// It is no more than that: several connections have losses, or TCP waits for timeouts.
    is_upper_bound: bool,
    /// Who says so: what was given, or what was read by one session or several.
    line_from: &'static str,
    read_alone_ms: f64,
    write_alone_ms: f64,
    write_round_trips: u32,
    steps: Vec<Step>,
    /// More connections, of which nobody knows what they bring to writes where packets are lost.
    connections_may_help: Option<u16>,
    commands: Vec<Commands>,
    /// Properties of the link that the model does not know, and `timeouts` where losses leave nothing of what TCP has under way: what
    /// they cost is in no figure.
    not_modelled: Vec<&'static str>,
    /// Before, and after where there is something to change; what could not be tried is missing.
    proof: Option<Vec<Proof>>,
}

/// The network.
#[derive(Debug, Serialize)]
struct Path {
    /// Where the data of writes goes.
    up: Direction,
    /// Where that of reads comes.
    down: Direction,
    round_trip_ms: f64,
    mtu_bytes: u16,
}

#[derive(Debug, Serialize)]
struct Direction {
    rate_bits_per_s: Option<f64>,
    loss_percent: f64,
    /// How many packets are lost together on average, to which TCP answers once.
    losses_together: f64,
    /// What a connection may have under way.
    tcp_window_bytes: Option<u64>,
    /// What it carries of data.
    line_mb_per_s: Option<f64>,
}

/// What reading has shown.
#[derive(Debug, Serialize)]
struct Seen {
    /// The emulated link or the proxy that was read over, where there is one.
    link: Option<String>,
    /// Whether that is a proxy: it loses nothing, and TCP sees neither its delay nor its rate.
    is_proxy: bool,
    one_session_mb_per_s: f64,
    several_sessions_mb_per_s: Option<f64>,
    segments_out_of_order: u64,
    negotiated: Negotiated,
}

#[derive(Debug, Serialize)]
struct Workload {
    sizes: String,
    /// The mean of one command.
    size_bytes: u32,
    read_percent: u8,
    /// How many commands it wants under way; `settings` has how many the target lets in.
    depth: u32,
}

/// Keys of RFC 7143, chapter 13, and the commands under way.
#[derive(Debug, Serialize)]
struct Keys {
    initial_r2t: bool,
    immediate_data: bool,
    first_burst_length: u32,
    max_burst_length: u32,
    max_outstanding_r2t: u16,
    connections: u16,
    window: u32,
}

#[derive(Debug, Serialize)]
struct Step {
    change: String,
    mb_per_s: f64,
    limit: &'static str,
    is_upper_bound: bool,
}

/// One set of settings on the emulated link.
#[derive(Debug, Serialize)]
struct Proof {
    with: &'static str,
    measured_mb_per_s: f64,
    expected_mb_per_s: f64,
    /// The model expects no more than that.
    is_upper_bound: bool,
    /// The model's, where about as much came as it expects.
    limit: &'static str,
    /// What initiator and target agreed on there.
    negotiated: Negotiated,
    /// TCP's congestion control there, whose losses are expected.
    congestion_control: String,
    /// This machine could not keep the link as it was described.
    is_doubtful: bool,
}

/// Advises.
pub(crate) fn run(options: &AdviseOptions) -> Result<(), Failure> {
    give(options).map_err(|failure| if options.json { failure.told_as_json() } else { failure })
}

fn give(options: &AdviseOptions) -> Result<(), Failure> {
    // Before any thread: a process with threads cannot move into a user namespace.
    let privileges = if options.prove { acquire_privileges() } else { Ok(()) };
    let over = options.url.as_ref().and_then(|url| bench::link_to(Some(url)));
    let measured = measure(options)?;
    let (paths, link) = described(options, measured.as_ref())?;
    let depth = options.depth();
    let (settings, read_segment_bytes) = match &measured {
        Some(measured) => {
            let negotiated = &measured.negotiated;
            (negotiated.settings(depth), negotiated.max_recv_data_segment_length)
        }
        None => options.settings.settings(depth, options.connections),
    };
    let sizes = options.sizes();
    let question = Question {
        paths,
        settings,
        read_segment_bytes,
        sizes: &sizes,
        read_share: f64::from(options.read_percent().get()) / 100.0,
    };
    let advice = advise(&question);
    let mut proof = Vec::new();
    let proven = match privileges {
        Ok(()) if options.prove => prove(options, &link, &question, &advice, &mut proof),
        Ok(()) => Ok(()),
        Err(error) => Err(no_proof(&LabError::Network(error))),
    };
    // The advice is as good without its proof.
    let proof = (!proof.is_empty()).then_some(proof);
    let seen = measured.map(|measured| (measured, over));
    tell(options.json, &tell_all(options, (&link, &question), &advice, seen, proof), text::text)?;
    proven
}

fn no_proof(error: &LabError) -> Failure {
    let failure = Failure::network("there is no proof", error);
    match error {
        LabError::Network(_) => failure.with_help(PRIVILEGES_HELP),
        LabError::System { .. } => failure.with_help(KERNEL_HELP),
        _ => failure,
    }
}

/// Measures the path to the disk, where one is given.
fn measure(options: &AdviseOptions) -> Result<Option<MeasuredPath>, Failure> {
    let Some(url) = &options.url else { return Ok(None) };
    let unit = Disk::open_alone(url, &options.access)?;
    let capacity = unit.capacity()?;
    let blocks_max = unit.facts.transfer_blocks_max(SIZE_BYTES_MAX);
    unit.close()?;
    let mut session = options.access.session(url);
    session.connections = session.connections.max(options.connections);
    let range = Range { offset_bytes: 0, length_bytes: capacity.bytes() };
    let size_bytes_max = blocks_max.saturating_mul(capacity.block_length_bytes);
    if !options.json {
        say("lunette: reading for some seconds, as fast as it goes");
    }
    let measured = measure_path(&session, url.lun, capacity.block_length_bytes, range, size_bytes_max);
    measured.map(Some).map_err(|error| bench::failure(&error))
}

/// The paths of reads and of writes as the model has them, and both as an emulated link; what was given comes before what was
/// measured.
fn described(
    options: &AdviseOptions,
    measured: Option<&MeasuredPath>,
) -> Result<([NetworkPath; 2], Link), Failure> {
    let seen = measured.map(MeasuredPath::network_path);
    let link = match &options.link {
        Some(link) => link.clone(),
        None => link(options, seen.as_ref())?,
    };
    let read_percent = options.read_percent().get();
    let is_limited = |shape: &Shape, percent| percent > 0 && shape.rate.is_some();
    if !is_limited(&link.down, read_percent) && !is_limited(&link.up, 100 - read_percent) {
        return Err(Failure::usage("a link without a rate where its data goes has no limit to advise about"));
    }
    let is_given = options.link.is_some() || options.loss.is_some();
    if is_given && [&link.up, &link.down].into_iter().any(|shape| line_path(&link, shape).loss >= 1.0) {
        return Err(Failure::usage(
            "a link that loses all packets carries nothing: there is nothing to advise about",
        ));
    }
    let [down, up] = match (options.tcp_window, seen) {
        (Some(bytes), _) => [Some(bytes); 2],
        (None, Some(seen)) => [seen.tcp_window_bytes; 2],
        (None, None) => tcp_windows(options.settings).map(Some),
    };
    let path = |shape, tcp_window_bytes| NetworkPath { tcp_window_bytes, ..line_path(&link, shape) };
    Ok(([path(&link.down, down), path(&link.up, up)], link))
}

/// What TCP may have under way on a connection of this initiator, down and up, in bytes: what its own buffers allow, and no more than
/// what this machine's TCP does.
fn tcp_windows(settings: Preset) -> [u64; 2] {
    let host = tcp_window_bytes().unwrap_or(TCP_WINDOW_BYTES);
    let own = settings.tcp_windows(socket_buffers_bytes_max());
    own.map_or([host; 2], |windows| windows.map(|bytes| bytes.min(host)))
}

/// A link of what is given, and else of what was measured.
fn link(options: &AdviseOptions, seen: Option<&NetworkPath>) -> Result<Link, Failure> {
    let rate = || seen.and_then(|seen| seen.rate_bits_per_s).map(|rate| format!("{rate:.0}"));
    // The kernel's timers see nothing shorter.
    let round_trip = |time: Duration| format!("{}us", time.as_micros().max(2) / 2 * 2);
    let parts = [
        ("rate", options.rate.clone().or_else(rate)),
        ("rtt", options.rtt.clone().or_else(|| seen.map(|seen| round_trip(seen.round_trip)))),
        ("loss", options.loss.clone().or_else(|| seen.map(|seen| format!("{:.6}%", seen.loss * 100.0)))),
        ("mtu", options.mtu.map(|mtu| mtu.to_string())),
    ];
    let given = parts.into_iter().filter_map(|(key, value)| value.map(|value| format!("{key}={value}")));
    let given: Vec<String> = given.collect();
    // A value that is a list would be further properties.
    if given.iter().any(|part| part.contains(',')) {
        return Err(Failure::usage(
            "a rate, a round trip and a loss are one value each; --link takes a whole link",
        ));
    }
    given.join(",").parse().map_err(|error: LinkError| Failure::usage(error.to_string()))
}

/// What costs something that the model does not know.
fn not_modelled(link: &Link, question: &Question<'_>) -> Vec<&'static str> {
    let timeouts = question.waits_for_timeouts().then_some(TIMEOUTS);
    unknown_to_model(link).into_iter().chain(timeouts).collect()
}

/// Measures before, and after where there is something to change, until something fails.
fn prove(
    options: &AdviseOptions,
    link: &Link,
    question: &Question<'_>,
    advice: &Advice,
    proof: &mut Vec<Proof>,
) -> Result<(), Failure> {
    let binary = std::env::current_exe()
        .map_err(|error| Failure::network("there is no proof: cannot find this program", &error))?;
    let trial = Trial { binary: &binary, link, read: options.read_percent(), seed: options.seed };
    let after = advice.steps.iter().try_fold(*question, |now, step| now.with(step.change));
    let after = after.filter(|_| !advice.steps.is_empty());
    for (with, question) in [("before", Some(*question)), ("after", after)] {
        if let Some(question) = question {
            proof.push(Proof::of(with, trial.run(&question).map_err(|error| no_proof(&error))?));
        }
    }
    Ok(())
}

impl Proof {
    fn of(with: &'static str, outcome: Outcome) -> Self {
        Self {
            with,
            measured_mb_per_s: outcome.measured_bytes_per_s / 1e6,
            expected_mb_per_s: outcome.expected_bytes_per_s / 1e6,
            is_upper_bound: outcome.is_upper_bound,
            limit: outcome.limit,
            negotiated: outcome.negotiated,
            congestion_control: outcome.congestion_control,
            is_doubtful: outcome.is_doubtful,
        }
    }
}

impl From<&NetworkPath> for Direction {
    fn from(path: &NetworkPath) -> Self {
        Self {
            rate_bits_per_s: path.rate_bits_per_s,
            loss_percent: path.loss * 100.0,
            losses_together: path.losses_together,
            tcp_window_bytes: path.tcp_window_bytes,
            line_mb_per_s: path.payload_bytes_per_s().map(|rate| rate / 1e6),
        }
    }
}

impl From<&Settings> for Keys {
    fn from(settings: &Settings) -> Self {
        Self {
            initial_r2t: settings.initial_r2t,
            immediate_data: settings.immediate_data,
            first_burst_length: settings.first_burst_length,
            max_burst_length: settings.max_burst_length,
            max_outstanding_r2t: settings.max_outstanding_r2t,
            connections: settings.connections,
            window: settings.window,
        }
    }
}

fn tell_all(
    options: &AdviseOptions,
    (link, question): (&Link, &Question<'_>),
    advice: &Advice,
    measured: Option<(MeasuredPath, Option<String>)>,
    proof: Option<Vec<Proof>>,
) -> Told {
    let granted = measured.as_ref().and_then(|(measured, _)| measured.negotiated.command_window);
    let [read, write] = &advice.alone;
    let changes: Vec<Change> = advice.steps.iter().map(|step| step.change).collect();
    let target = options.url.as_ref().map_or(TARGET.to_owned(), |url| url.target.to_string());
    let [down, up] = &question.paths;
    let line_from = match &measured {
        Some((measured, _)) if options.rate.is_none() => measured.line_from(),
        _ => GIVEN,
    };
    Told {
        path: Path {
            up: Direction::from(up),
            down: Direction::from(down),
            // These are of both.
            round_trip_ms: up.round_trip.as_secs_f64() * 1e3,
            mtu_bytes: up.mtu_bytes,
        },
        seen: measured.map(|(measured, link)| Seen {
            is_proxy: link.as_deref().is_some_and(is_proxy),
            link,
            one_session_mb_per_s: measured.alone_bytes_per_s / 1e6,
            several_sessions_mb_per_s: measured.together_bytes_per_s.map(|rate| rate / 1e6),
            segments_out_of_order: measured.out_of_order,
            negotiated: measured.negotiated,
        }),
        workload: Workload {
            sizes: question.sizes.to_string(),
            // At most SIZE_BYTES_MAX.
            size_bytes: question.sizes.mean().round() as u32,
            read_percent: options.read_percent().get(),
            depth: options.depth(),
        },
        settings: Keys::from(&question.settings),
        mb_per_s: advice.bytes_per_s / 1e6,
        limit: advice.limit.word(),
        is_upper_bound: question.is_upper_bound(),
        line_from,
        read_alone_ms: read.command_time.as_secs_f64() * 1e3,
        write_alone_ms: write.command_time.as_secs_f64() * 1e3,
        write_round_trips: write.round_trips,
        steps: advice
            .steps
            .iter()
            .map(|step| Step {
                change: paste::words(step.change, &question.settings),
                mb_per_s: step.bytes_per_s / 1e6,
                limit: step.limit.word(),
                is_upper_bound: step.is_upper_bound,
            })
            .collect(),
        connections_may_help: advice.connections_may_help,
        commands: paste::commands(&changes, &target, granted),
        not_modelled: not_modelled(link, question),
        proof,
    }
}
