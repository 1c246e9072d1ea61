//! `lunette-bench load`: an initiator that costs as little as possible, so that what is measured is the target.
//!
//! Sessions log in one after the other; then each thread serves its sessions from one epoll instance: one large read,
//! all new commands in one write. Long reads are thrown away in the kernel unless a digest covers them, or `--take` wants them.

mod connection;
mod pdu;
mod plan;
mod requests;
mod session;
mod statistics;
mod worker;

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::{Args, ValueEnum};
use lunette_wire::frame::Digests;
use rustix::time::{ClockId, clock_gettime};

use crate::chap::ChapOptions;
use crate::link::Link;
use crate::login::{Agreed, LoggedIn, Terms, first_block, join, login};
use crate::url::Url;
use crate::wait::Wait;
use plan::{Mix, Order, Pattern, Plan};
use session::{Habits, Session};
pub(crate) use statistics::quantile;
use statistics::{Frame, Report, Statistics};
use worker::Worker;

/// What `load` is told.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Where the unit is: iscsi://host:port/target-name/lun
    url: Url,
    /// How many of a hundred commands read; the others write
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(..=100))]
    read_percent: u8,
    /// Bytes of a transfer, or several sizes with weights such as 8192:50,65536:50
    #[arg(long, value_name = "MIX", default_value = "4096")]
    block_bytes: Mix,
    /// Where transfers go
    #[arg(long, value_enum, default_value_t = Order::Random)]
    order: Order,
    /// Commands in flight in each session
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    depth: u32,
    /// Sessions
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    sessions: u32,
    /// Connections of each session, which share its commands evenly
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=32))]
    connections: u16,
    /// Threads that share the sessions
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// How long to measure
    #[arg(long, value_name = "SECONDS", conflicts_with = "count")]
    seconds: Option<f64>,
    /// Exactly so many commands, all sessions together, without warming up
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// How long to run before measuring
    #[arg(long, value_name = "SECONDS", default_value_t = 0.3)]
    warmup_s: f64,
    /// Use only so much of the unit, from its beginning
    #[arg(long, value_name = "BYTES")]
    span_bytes: Option<u64>,
    /// CRC32C on headers, data or both
    #[arg(long, value_enum, default_value_t = DigestChoice::None)]
    digests: DigestChoice,
    /// Take long reads into memory, too, as an initiator does and digests want it anyway
    #[arg(long)]
    take: bool,
    #[command(flatten)]
    chap: ChapOptions,
    /// A SYNCHRONIZE CACHE after so many writes of a session, when these have been answered
    #[arg(long, value_name = "N", default_value_t = 0)]
    flush_every: u64,
    /// Another seed, other places
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Lock step: as many commands as `--depth` says in one write, all their answers, and again
    #[arg(long)]
    burst: bool,
    /// How to wait for answers
    #[arg(long, value_enum, default_value_t = Wait::Block)]
    wait: Wait,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DigestChoice {
    None,
    Header,
    Data,
    Both,
}

impl From<DigestChoice> for Digests {
    fn from(choice: DigestChoice) -> Self {
        Self {
            header: matches!(choice, DigestChoice::Header | DigestChoice::Both),
            data: matches!(choice, DigestChoice::Data | DigestChoice::Both),
        }
    }
}

/// When to stop, and what counts.
#[derive(Debug, Clone, Copy)]
enum Limit {
    /// Warm up, then measure for so long.
    Time { warmup: Duration, measured: Duration },
    /// So many commands, all of which count.
    Count(u64),
}

impl Options {
    fn limit(&self) -> Result<Limit> {
        let duration = |seconds: f64| {
            Duration::try_from_secs_f64(seconds).with_context(|| format!("{seconds} is no length of time"))
        };
        match (self.seconds, self.count) {
            (_, Some(count)) => Ok(Limit::Count(count)),
            (seconds, None) => {
                let measured = duration(seconds.unwrap_or(1.0))?;
                ensure!(!measured.is_zero(), "nothing is measured in no time");
                Ok(Limit::Time { warmup: duration(self.warmup_s)?, measured })
            }
        }
    }

    fn pattern(&self) -> Pattern {
        Pattern {
            mix: self.block_bytes.clone(),
            order: self.order,
            read_percent: self.read_percent,
            span_bytes: self.span_bytes,
            seed: self.seed,
        }
    }
}

/// The sessions, and what logging in took.
struct Sessions {
    sessions: Vec<Session>,
    login_us: Vec<f64>,
    first_block_us: Vec<f64>,
}

/// Measures, and answers the object to print.
///
/// # Errors
/// The target refuses, is slow beyond patience, or answers what it must not.
pub(crate) fn run(options: &Options) -> Result<String> {
    crate::limits::raise_open_files();
    let limit = options.limit()?;
    let Sessions { sessions, login_us, first_block_us } = connect(options, limit)?;
    let mut hands: Vec<Vec<Session>> =
        (0..options.threads.min(options.sessions)).map(|_| Vec::new()).collect();
    let count = hands.len();
    for (index, session) in sessions.into_iter().enumerate() {
        hands[index % count].push(session);
    }
    let (outcomes, seconds, processor_s) = measure(options, limit, hands)?;
    let mut statistics = Statistics::new();
    let mut counted = Vec::new();
    let mut logouts_unanswered = 0;
    for (of_thread, sessions) in outcomes {
        statistics.add(&of_thread);
        for session in sessions {
            counted.push(session.counted);
            logouts_unanswered += u64::from(!session.logout().context("logging out")?);
        }
    }
    // Under overload all may be refused as busy: then that is the result.
    ensure!(statistics.operations + statistics.busy > 0, "no command ended while it counted");
    let frame = Frame {
        seconds,
        processor_s,
        sessions: &counted,
        login_us: &login_us,
        first_block_us: &first_block_us,
        logouts_unanswered,
    };
    Ok(serde_json::to_string(&Report::new(&statistics, &frame))?)
}

fn connect(options: &Options, limit: Limit) -> Result<Sessions> {
    let habits =
        Habits { depth: options.depth as usize, burst: options.burst, flush_every: options.flush_every };
    let pattern = options.pattern();
    let terms = Terms { digests: options.digests.into(), chap: options.chap.chap()? };
    let mut all = Sessions { sessions: Vec::new(), login_us: Vec::new(), first_block_us: Vec::new() };
    for number in 0..options.sessions {
        let quota = match limit {
            Limit::Time { .. } => u64::MAX,
            Limit::Count(count) => share(count, number, options.sessions),
        };
        let (links, agreed, plan) = connect_one(options, &terms, &pattern, number, &mut all)
            .with_context(|| format!("session {number}"))?;
        let window = links[0].window;
        all.sessions.push(Session::new(links, window, agreed, options.url.lun, plan, habits, quota));
    }
    Ok(all)
}

/// Logs one session in, with all its connections, and adds the times of the first of these to `all`.
fn connect_one(
    options: &Options,
    terms: &Terms,
    pattern: &Pattern,
    number: u32,
    all: &mut Sessions,
) -> Result<(Vec<Link>, Agreed, Plan)> {
    let Options { url, sessions, connections, .. } = options;
    let LoggedIn { mut link, agreed, took, identity } = login(url, number, terms, *connections)?;
    let (capacity, first_block) = first_block(&mut link, url)?;
    let plan = Plan::new(pattern, capacity, number, *sessions)?;
    let granted = agreed.max_connections;
    ensure!(granted >= *connections, "the target grants a session {granted} connections");
    let mut links = vec![link];
    for cid in 1..*connections {
        let link = join(url, number, terms, identity, &links[0], cid);
        links.push(link.with_context(|| format!("connection {cid}"))?);
    }
    for link in &links {
        link.stream.set_nonblocking(true)?;
    }
    all.login_us.push(took.as_secs_f64() * 1e6);
    all.first_block_us.push(first_block.as_secs_f64() * 1e6);
    Ok((links, agreed, plan))
}

/// The part of `count` that falls to one of the sessions.
fn share(count: u64, number: u32, sessions: u32) -> u64 {
    let sessions = u64::from(sessions.max(1));
    count / sessions + u64::from(u64::from(number) < count % sessions)
}

/// What a thread counted, and its sessions.
type Outcome = (Statistics, Vec<Session>);

/// Runs the threads; answers what each counted, for how long it counted, and the processor time of this process in
/// that time, both in seconds.
fn measure(options: &Options, limit: Limit, hands: Vec<Vec<Session>>) -> Result<(Vec<Outcome>, f64, f64)> {
    let barrier = Barrier::new(hands.len() + 1);
    thread::scope(|scope| {
        let threads: Vec<_> = hands
            .into_iter()
            .map(|sessions| scope.spawn(|| Worker::new(options, limit, sessions, &barrier)?.run()))
            .collect();
        barrier.wait();
        let began = Instant::now();
        let processor_at = |offset: Duration| {
            thread::sleep((began + offset).saturating_duration_since(Instant::now()));
            processor_s()
        };
        let timed = match limit {
            Limit::Time { warmup, measured } => {
                let before = processor_at(warmup);
                Some((measured.as_secs_f64(), processor_at(warmup + measured) - before))
            }
            Limit::Count(_) => None,
        };
        let before = processor_s();
        let mut outcomes = Vec::new();
        for thread in threads {
            outcomes.push(thread.join().map_err(|_| anyhow!("a thread panicked"))??);
        }
        let (seconds, processor_s) =
            timed.unwrap_or_else(|| (began.elapsed().as_secs_f64(), processor_s() - before));
        Ok((outcomes, seconds, processor_s))
    })
}

/// Processor time that this process has used, user and system, in seconds.
fn processor_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_shared_out_without_remainder() {
        for (count, sessions) in [(10, 3), (2, 4), (100, 1), (0, 2)] {
            assert_eq!((0..sessions).map(|number| share(count, number, sessions)).sum::<u64>(), count);
        }
        assert_eq!(share(10, 0, 3), 4);
    }

    #[test]
    fn options_say_when_to_stop() {
        #[derive(Debug, clap::Parser)]
        struct Command {
            #[command(flatten)]
            options: Options,
        }
        let parse = |arguments: &[&str]| {
            let all = ["load", "iscsi://127.0.0.1/x/0"].iter().chain(arguments);
            <Command as clap::Parser>::try_parse_from(all).map(|command| command.options)
        };
        let limit = |arguments: &[&str]| parse(arguments).unwrap().limit();
        assert!(matches!(limit(&["--count", "7"]), Ok(Limit::Count(7))));
        let Ok(Limit::Time { warmup, measured }) = limit(&["--seconds", "2.5"]) else { panic!() };
        assert_eq!((warmup.as_millis(), measured.as_millis()), (300, 2500));
        assert!(limit(&["--seconds", "0"]).is_err());
        assert!(limit(&["--seconds", "NaN"]).is_err());
        assert!(parse(&["--seconds", "1", "--count", "1"]).is_err());
        assert!(parse(&["--read-percent", "101"]).is_err());
        assert!(parse(&["--block-bytes", "4096:0"]).is_err());
        assert!(parse(&["--depth", "0"]).is_err());
        let digests = Digests::from(parse(&["--digests", "both"]).unwrap().digests);
        assert!(digests.header && digests.data);
    }
}
