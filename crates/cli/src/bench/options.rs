//! The flags of `lunette bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lunette_block::EngineKind;
use lunette_lab::{DEPTH_MAX, WORKERS_MAX};
use lunette_workload::{Arrivals, Pace, Percent, Profile, Sizes, Spread, profiles};

use crate::initiator::{End, RangeOptions, TimeOptions, URL_HELP};

/// The longest time that may be asked for, in seconds: a year.
const SECONDS_MAX: f64 = 31_536_000.0;

/// What one measurement is.
#[derive(Debug, Args)]
pub(crate) struct BenchOptions {
    /// The disk: an iscsi:// URL, or a file or block device of this machine
    #[arg(value_name = "DISK", long_help = URL_HELP)]
    pub(crate) disk: End,
    #[command(flatten)]
    pub(crate) access: TimeOptions,
    /// A workload with a name; other flags change parts of it. The names are at the end of this help
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Option<Profile>,
    /// Replay a trace: a file, or lu-du, which has the shape of one that was published. The forms of a file are in the guide
    #[arg(long, value_name = "TRACE", conflicts_with_all = ["profile", "size", "read", "random", "spread", "rate", "verify"])]
    pub(crate) trace: Option<PathBuf>,
    /// The device whose operations are replayed, where a trace has several: MAJOR,MINOR of blkparse, as 8,0, or
    /// HOSTNAME_DISKNUMBER of the SNIA's CSV, as usr_0
    #[arg(long, value_name = "NAME", requires = "trace")]
    pub(crate) trace_device: Option<String>,
    /// When operations of a trace begin: original, none (without think time), or how many times as fast, as 2x
    #[arg(long, value_name = "PACE", default_value = "original", requires = "trace")]
    pub(crate) pace: Pace,
    /// The size of each operation: 4K, or several with their weights, as 4K:60,64K:40 [default: 4K]
    #[arg(long, value_name = "SIZES")]
    pub(crate) size: Option<Sizes>,
    /// How many of a hundred operations read; the others write [default: 100]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) read: Option<Percent>,
    /// How many of a hundred go to a random place; the others go on where the one before ended [default: 100]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) random: Option<Percent>,
    /// How random places are distributed: uniform, zipf:EXPONENT, or hot:SHARE/HITS, as hot:10%/90%
    #[arg(long, value_name = "SPREAD", default_value = "uniform")]
    pub(crate) spread: Spread,
    #[command(flatten)]
    pub(crate) range: RangeOptions,
    /// Operations under way at once, of each worker [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(DEPTH_MAX)))]
    pub(crate) depth: Option<u32>,
    /// Workers, each with a session and a thread of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(WORKERS_MAX)))]
    pub(crate) workers: u32,
    /// Connections of each session, 1 to 32; as connections= of the URL
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=32))]
    pub(crate) connections: Option<u16>,
    /// Begin so many operations per second, whether others have ended or not (open loop); latency counts from when each was
    /// to begin [default: as soon as another one has ended]
    #[arg(long, value_name = "PER_SECOND", value_parser = Arrivals::parse_rate)]
    pub(crate) rate: Option<f64>,
    /// At which distances they begin
    #[arg(long, value_enum, value_name = "HOW", default_value = "poisson", requires = "rate")]
    pub(crate) arrivals: Distances,
    /// How many seconds are measured [default: 10, or to the end of the trace]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, conflicts_with = "count")]
    pub(crate) time: Option<Duration>,
    /// How many operations are measured, instead of a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// How many seconds the workload runs before anything counts [default: 1, of a trace 0]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) warm_up: Option<Duration>,
    /// Write the whole range first, and compare everything that is read with what was written there last. Workers have a part of
    /// the range each
    #[arg(long)]
    pub(crate) verify: bool,
    /// The file TARGET.LUN.times that a target of ours writes for this disk (`lunette serve --trace-directory ... --task-times`):
    /// network, R2T wait, target queue and store are told apart
    #[arg(long, value_name = "FILE")]
    pub(crate) target_times: Option<PathBuf>,
    /// Do it although it writes: what is in the range is lost
    #[arg(long)]
    pub(crate) write_destroys_data: bool,
    /// Who waits for a file or block device: auto, sync, threads, direct, uring [default: auto]
    #[arg(long, value_name = "ENGINE")]
    pub(crate) engine: Option<EngineKind>,
    /// A write to a file or block device ends when the cache has it, as with write=back of a target, and not when it is stable
    #[arg(long)]
    pub(crate) write_back: bool,
    /// Where all that is left to chance begins; the same seed does the same operations in the same order
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// The length of the steps of the time series in seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    pub(crate) interval: Duration,
    /// Write the whole result to this file, as one JSON object
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Tell the whole result as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress on the standard error
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// At which distances operations of an open loop begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Distances {
    /// Equal ones
    Even,
    /// Random ones, independent of each other
    Poisson,
}

/// Reads seconds, as 10 or 0.5.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds = text.parse::<f64>().ok().filter(|seconds| is_plain && *seconds <= SECONDS_MAX);
    let seconds = seconds.ok_or_else(|| "give seconds, as 10 or 0.5, at most a year".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// What stands behind the help.
pub(crate) fn after_help() -> String {
    let mut text = String::from("Profiles (Trinkle, table 3.3):      size  reads  random  depth\n");
    for profile in profiles() {
        let size = Sizes::one(profile.size_bytes).to_string();
        let (read, random) = (profile.read.to_string(), profile.random.to_string());
        text += &format!("  {:<32} {size:>5}  {read:>5}  {random:>6}  {:>5}\n", profile.name, profile.depth);
    }
    text += "
Examples:
  lunette bench iscsi://192.0.2.10/iqn.2026-11.io.lunette:vm/0 --profile web-server --read 100
  lunette bench iscsi://192.0.2.10/iqn.2026-11.io.lunette:vm/0 --size 4K --depth 32 --rate 5000 --json
  lunette bench /dev/loop0 --profile sql-64k --engine uring --write-destroys-data

";
    text + crate::initiator::EXIT_STATUS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_plain_numbers() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_seconds("10"), Ok(Duration::from_secs(10)));
        for text in ["", "-1", "1s", "inf", "nan", "1e3", "31536001"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn all_profiles_are_in_the_help() {
        let help = after_help();
        assert!(profiles().iter().all(|profile| help.contains(profile.name)), "{help}");
    }
}
