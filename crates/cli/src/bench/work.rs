//! What is to be done, as the flags say it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lunette_lab::{Until, Work};
use lunette_workload::{
    Arrivals, Percent, Range, Record, Sizes, TRACE_LINE_BYTES_MAX, Trace, TraceError, TraceReader, Workload,
};

use super::options::{BenchOptions, Distances};
use crate::failure::{Failure, say};

const SIZE_BYTES: u32 = 4096;
const TIME: Duration = Duration::from_secs(10);
const WARM_UP: Duration = Duration::from_secs(1);
/// A trace that is made and not read.
const LU_DU: &str = "lu-du";

/// What is to be done, before it is known where.
pub(crate) enum Wanted {
    Workload(Workload, Arrivals),
    Trace(String, Trace),
}

impl Wanted {
    /// Reads it from the flags, and from the file that they name.
    ///
    /// # Errors
    /// The file is no trace.
    pub(crate) fn of(options: &BenchOptions) -> Result<Wanted, Failure> {
        if let Some(path) = &options.trace {
            let device = options.trace_device.as_deref();
            let trace = match (is_made(path), device) {
                (true, None) => Trace::lu_du(options.seed).map_err(|error| Failure::new(LU_DU, &error))?,
                (true, Some(_)) => return Err(Failure::usage("lu-du has no devices to choose from")),
                (false, device) => read(path, device)?,
            };
            let of_device = device.map(|name| format!(", device {name}")).unwrap_or_default();
            return Ok(Wanted::Trace(format!("{}{of_device}", path.display()), trace));
        }
        let arrivals = match (options.rate, options.arrivals) {
            (None, _) => Arrivals::Closed,
            (Some(rate), Distances::Even) => Arrivals::Even(rate),
            (Some(rate), Distances::Poisson) => Arrivals::Poisson(rate),
        };
        Ok(Wanted::Workload(workload(options), arrivals))
    }

    /// Whether something would be written.
    pub(crate) fn writes(&self) -> bool {
        match self {
            Wanted::Workload(workload, _) => workload.read != Percent::ALL,
            Wanted::Trace(_, trace) => trace.writes(),
        }
    }

    /// The largest operation in bytes, on blocks of this length.
    pub(crate) fn largest_bytes(&self, block_bytes: u32) -> u64 {
        match self {
            Wanted::Workload(workload, _) => workload.sizes.largest().into(),
            Wanted::Trace(_, trace) => {
                let block = u64::from(block_bytes.max(1));
                // Both of its ends may lie inside a block.
                let widened = |record: &Record| {
                    let (first, length) = (record.operation.offset_bytes, record.operation.length_bytes);
                    (first + u64::from(length)).next_multiple_of(block) - first / block * block
                };
                trace.records().iter().map(widened).max().unwrap_or(0)
            }
        }
    }

    /// The same on this range.
    ///
    /// # Errors
    /// The range has no room for it.
    pub(crate) fn on(self, range: Range, block_bytes: u32, options: &BenchOptions) -> Result<Work, Failure> {
        match self {
            Wanted::Workload(workload, arrivals) => Ok(Work::Workload { workload, arrivals }),
            Wanted::Trace(name, mut trace) => {
                let moved =
                    trace.fit(range, block_bytes).map_err(|error| Failure::usage(error.to_string()))?;
                if moved > 0 {
                    let all = trace.records().len();
                    say(&format!(
                        "lunette: {moved} of {all} operations lie behind the range, and come into it"
                    ));
                }
                Ok(Work::Trace { name, trace: Arc::new(trace), pace: options.pace })
            }
        }
    }
}

/// Whether this names a trace that is no file.
pub(crate) fn is_made(trace: &Path) -> bool {
    trace == Path::new(LU_DU)
}

/// How long is measured, and what comes before.
pub(crate) fn times(options: &BenchOptions) -> (Until, Duration) {
    let until = match (options.time, options.count, &options.trace) {
        (_, Some(count), _) => Until::Count(count),
        (Some(time), None, _) => Until::Time(time),
        (None, None, Some(_)) => Until::Count(u64::MAX),
        (None, None, None) => Until::Time(TIME),
    };
    let warm_up = if options.trace.is_some() { Duration::ZERO } else { WARM_UP };
    (until, options.warm_up.unwrap_or(warm_up))
}

fn workload(options: &BenchOptions) -> Workload {
    let named = options.profile.map(|profile| profile.workload());
    let base = named.unwrap_or_else(|| Workload {
        sizes: Sizes::one(SIZE_BYTES),
        read: Percent::ALL,
        random: Percent::ALL,
        spread: options.spread,
    });
    Workload {
        sizes: options.size.clone().unwrap_or(base.sizes),
        read: options.read.unwrap_or(base.read),
        random: options.random.unwrap_or(base.random),
        spread: options.spread,
    }
}

/// Reads a trace, or what it has of a device. No line is taken that is longer than one of a trace.
fn read(path: &Path, device: Option<&str>) -> Result<Trace, Failure> {
    let failed = |error| Failure::new(format!("cannot read {}", path.display()), &error);
    let wrong = |error: TraceError| {
        let failure = Failure::usage(format!("{}: {error}", path.display()));
        match error {
            TraceError::Devices { first: Some(_), other: Some(_), .. } => {
                failure.with_help("--trace-device NAME replays those of one device")
            }
            _ => failure,
        }
    };
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    let mut reader = device.map_or_else(TraceReader::default, |name| TraceReader::of_device(name.to_owned()));
    let mut line = Vec::new();
    loop {
        line.clear();
        let taken = (&mut file).take(TRACE_LINE_BYTES_MAX as u64 + 2).read_until(b'\n', &mut line);
        if taken.map_err(failed)? == 0 {
            return reader.finish().map_err(wrong);
        }
        // What is no text has none of the forms, and is refused by its line.
        let text = String::from_utf8_lossy(&line);
        reader.line(text.strip_suffix('\n').unwrap_or(&text)).map_err(wrong)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_operation_of_a_trace_is_as_long_as_it_is_replayed() {
        let largest = |lines: &[&str]| {
            let mut reader = TraceReader::default();
            lines.iter().for_each(|line| reader.line(line).expect("a line"));
            Wanted::Trace("ours".into(), reader.finish().expect("a trace")).largest_bytes(512)
        };
        assert_eq!(largest(&["0 R 512 8192", "1 W 100 512"]), 8192);
        assert_eq!(largest(&["0 R 512 8192", "1 W 100 8192"]), 8704);
        assert_eq!(largest(&["0 R 511 2", "1 R 100 100"]), 1024);
    }
}
