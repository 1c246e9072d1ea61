//! `lunette bench`: a workload on a disk, measured.

mod options;
mod progress;
mod text;
mod work;

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use lunette_block::{IdentityOverride, StoreSpec, Volume, VolumeSpec, is_block_device, logical_sector_bytes};
use lunette_initiator::TargetUrl;
use lunette_lab::{BenchResult, Disk, DiskFacts, Ending, Host, LabError, Monitor, Plan, WriteMode, bench};
use lunette_scsi::client::capacity::{Capacity, CapacityDetails};
use lunette_workload::{Range, SIZE_BYTES_MAX};

pub(crate) use options::{BenchOptions, after_help, parse_seconds};

pub(crate) use self::progress::Interrupts;
use self::work::Wanted;
use crate::failure::{Failure, say};
use crate::initiator::{Disk as Unit, End, tell};
use crate::output;
use crate::wan::{Witness, call_proxy, is_proxy, proxied};

/// The block length that a file is measured with, in bytes.
const FILE_BLOCK_BYTES: u32 = 512;
/// The environment variable in which `lunette wan` names its link to what runs over it.
pub(crate) const LINK_VARIABLE: &str = "LUNETTE_LINK";
const DEPTH: u32 = 16;
/// How long a file or device is closed before that is told.
const CLOSE_PATIENCE: Duration = Duration::from_millis(500);
/// Whose times a target tells.
const TIMES_HELP: &str = "a target of ours writes the file TARGET.LUN.times of each disk where it is told to: `lunette serve --trace-directory \
                          DIRECTORY --task-times`, or task_times = true in its configuration";

/// Measures.
pub(crate) fn run(options: &BenchOptions) -> Result<(), Failure> {
    let result = measure(options);
    result.map_err(|failure| if options.json { failure.told_as_json() } else { failure })
}

fn measure(options: &BenchOptions) -> Result<(), Failure> {
    let wanted = Wanted::of(options)?;
    let writes = wanted.writes() || options.verify;
    if writes && !options.write_destroys_data {
        return Err(Failure::usage("this writes, and what is in the range is lost")
            .with_help("--write-destroys-data does it; --read 100 without --verify only reads"));
    }
    let Opened { disk, capacity, facts, transfer_bytes_max } = open(options, writes, &wanted)?;
    let span = options.range.resolve(&capacity)?;
    let range = Range { offset_bytes: span.offset_bytes(), length_bytes: span.length_bytes() };
    let (until, warm_up) = work::times(options);
    let plan = Plan {
        disk,
        block_bytes: capacity.block_length_bytes,
        transfer_bytes_max,
        range,
        work: wanted.on(range, capacity.block_length_bytes, options)?,
        depth: options.depth.or(options.profile.map(|profile| profile.depth)).unwrap_or(DEPTH),
        workers: options.workers,
        warm_up,
        until,
        verify: options.verify,
        target_times: options.target_times.clone(),
        seed: options.seed,
        interval: options.interval,
        patience: None,
    };
    plan.check().map_err(|error| failure(&error))?;
    options.output.as_deref().map_or(Ok(()), |path| output::check(path, &inputs(options)))?;
    let host = Host::look();
    let interrupts = Interrupts::watch()?;
    let monitor = Monitor::default();
    let url = match &options.disk {
        End::Disk(url) => Some(url.as_ref()),
        End::File(_) => None,
    };
    let named = link_to(url);
    let witness = match (named.as_deref().is_some_and(is_proxy), url) {
        (true, Some(url)) => Some(call_proxy(&url.portal.host, url.portal.port)),
        // Nothing goes through a proxy to a file.
        (true, None) => None,
        (false, _) => named.as_ref().map(|_| Witness::call()),
    };
    let carried = thread::scope(|scope| {
        let measurement = scope.spawn(|| bench(&plan, &monitor));
        progress::show(options, &plan, &monitor, &interrupts, &|| measurement.is_finished());
        measurement.join().unwrap_or(Err(LabError::Panicked))
    });
    let carried = carried.map_err(|error| failure(&error))?;
    let profile = options.profile.map(|profile| profile.name);
    let (link, link_doubt) = match witness {
        Some(Ok(witness)) => {
            let (link, doubt) = witness.end();
            (Some(link), doubt)
        }
        Some(Err(unheard)) => (named, Some(unheard)),
        None => (named, None),
    };
    let mut result = BenchResult::new(&plan, carried, facts, host, link, profile);
    result.link_doubt = link_doubt;
    // What was measured is not to be lost while what was written is made stable, which may take minutes.
    told_and_closed(
        || report(options, &result),
        || match &plan.disk {
            Disk::Local { volume, .. } => close(volume),
            Disk::Unit { .. } | Disk::Units { .. } => Ok(()),
        },
    )
}

/// Tells what was measured, then closes the disk, one although the other fails.
fn told_and_closed(
    tell: impl FnOnce() -> Result<(), Failure>,
    close: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let told = tell();
    let closed = close();
    if let (Err(_), Err(unstable)) = (&told, &closed) {
        say(&format!("lunette: {unstable}"));
    }
    told.and(closed)
}

/// Closes a file or device, with which what was written is made stable. Whoever has to wait for that hears why.
fn close(volume: &Volume) -> Result<(), Failure> {
    let (ended, end) = mpsc::channel();
    let closed = thread::scope(|scope| {
        let closing = scope.spawn(move || {
            let closed = volume.close();
            drop(ended);
            closed
        });
        // Nothing is ever sent.
        if end.recv_timeout(CLOSE_PATIENCE) == Err::<(), _>(RecvTimeoutError::Timeout) {
            say("lunette: what was written is being made stable");
        }
        closing.join()
    });
    match closed {
        Ok(closed) => closed.map_err(|error| Failure::new("the file or device", &error)),
        Err(_) => Err(failure(&LabError::Panicked)),
    }
}

/// The emulated link or the proxy between this process and a disk, as results have it: what a proxy says that is at the portal,
/// or else the variable.
pub(crate) fn link_to(url: Option<&TargetUrl>) -> Option<String> {
    let proxy = url.and_then(|url| proxied(&url.portal.host, url.portal.port));
    proxy.or_else(|| std::env::var(LINK_VARIABLE).ok())
}

/// The files that are measured or read.
fn inputs(options: &BenchOptions) -> Vec<output::Input<'_>> {
    let disk = match &options.disk {
        End::File(path) => Some(("the disk", path.as_path())),
        End::Disk(_) => None,
    };
    let trace = options.trace.as_deref().filter(|path| !work::is_made(path)).map(|path| ("--trace", path));
    let times = options.target_times.as_deref().map(|path| ("--target-times", path));
    [disk, trace, times].into_iter().flatten().collect()
}

/// What is known of a disk that was opened.
struct Opened {
    disk: Disk,
    capacity: Capacity,
    facts: DiskFacts,
    /// See [`Plan::transfer_bytes_max`].
    transfer_bytes_max: Option<u32>,
}

/// Opens the disk and looks how large it is.
fn open(options: &BenchOptions, writes: bool, wanted: &Wanted) -> Result<Opened, Failure> {
    match &options.disk {
        End::Disk(url) => {
            if options.engine.is_some() {
                return Err(Failure::usage("a target's engine is not chosen here: --engine is for a file"));
            }
            if options.write_back {
                return Err(Failure::usage(
                    "when a write ends is the target's to choose, by write= of its disk: --write-back is for a file",
                ));
            }
            let (disk, capacity, model, bytes_max) = open_unit(url, options, writes, wanted)?;
            let block_bytes = capacity.block_length_bytes;
            let facts = DiskFacts {
                name: url.to_string(),
                kind: "iscsi".to_owned(),
                engine: None,
                write: None,
                model: Some(model),
                capacity_bytes: capacity.bytes(),
                block_bytes,
            };
            Ok(Opened { disk, capacity, facts, transfer_bytes_max: Some(bytes_max) })
        }
        End::File(path) => {
            if options.connections.is_some() {
                return Err(Failure::usage("a file has no connections"));
            }
            if options.access.is_given() {
                return Err(Failure::usage(
                    "a file has no session: --timeout and --recovery are for a target",
                ));
            }
            if options.target_times.is_some() {
                return Err(Failure::usage("a file has no target whose times could be told"));
            }
            let (volume, block_length_bytes) = open_local(path, options, writes)?;
            let blocks = volume.size_bytes() / u64::from(block_length_bytes);
            let capacity = Capacity { blocks, block_length_bytes, details: CapacityDetails::default() };
            let write = if options.write_back { WriteMode::Back } else { WriteMode::Through };
            let facts = DiskFacts {
                name: path.display().to_string(),
                kind: format!("{}, engine {}", volume.describe(), volume.engine()),
                engine: Some(volume.engine().to_string()),
                write: writes.then_some(write),
                model: None,
                capacity_bytes: capacity.bytes(),
                block_bytes: block_length_bytes,
            };
            Ok(Opened { disk: Disk::Local { volume, write }, capacity, facts, transfer_bytes_max: None })
        }
    }
}

/// Its disk, how large it is, what it says that it is, and how many bytes one command moves at most.
fn open_unit(
    url: &TargetUrl,
    options: &BenchOptions,
    writes: bool,
    wanted: &Wanted,
) -> Result<(Disk, Capacity, String, u32), Failure> {
    let unit = Unit::open_alone(url, &options.access)?;
    let capacity = unit.capacity()?;
    if writes && unit.facts.is_write_protected() {
        let message = format!("{} is read-only for this initiator", unit.name);
        return Err(Failure::scsi(message, Some("see the target's configuration".to_owned())));
    }
    let blocks_max = unit.facts.transfer_blocks_max(SIZE_BYTES_MAX);
    let bytes_max = blocks_max.saturating_mul(capacity.block_length_bytes);
    if wanted.largest_bytes(capacity.block_length_bytes) > bytes_max.into() {
        return Err(Failure::usage(format!(
            "{} transfers at most {bytes_max} bytes in one command",
            unit.name
        )));
    }
    let inquiry = &unit.facts.inquiry;
    let model = format!("{} {} {}", inquiry.vendor, inquiry.product, inquiry.revision).trim().to_owned();
    unit.close()?;
    let mut session = options.access.session(url);
    session.connections = options.connections.unwrap_or(session.connections);
    Ok((Disk::Unit { options: Box::new(session), lun: url.lun }, capacity, model, bytes_max))
}

fn open_local(
    path: &std::path::Path,
    options: &BenchOptions,
    writes: bool,
) -> Result<(Arc<Volume>, u32), Failure> {
    let is_device = is_block_device(path);
    let block_length_bytes =
        if is_device { logical_sector_bytes(path).unwrap_or(FILE_BLOCK_BYTES) } else { FILE_BLOCK_BYTES };
    let path_of = || path.to_path_buf();
    let store = if is_device {
        StoreSpec::BlockDevice { path: path_of() }
    } else {
        StoreSpec::File { path: path_of(), create_bytes: None }
    };
    let spec = VolumeSpec {
        read_only: !writes,
        engine: options.engine.unwrap_or_default(),
        // One of its own, so that none is stored with the file.
        identity: IdentityOverride { serial: Some("bench".to_owned()) },
        block_length_bytes,
        ..VolumeSpec::new(path.display().to_string(), store)
    };
    let volume = Volume::open(&spec).map_err(|error| Failure::new("no disk to measure", &error))?;
    Ok((volume, block_length_bytes))
}

/// Why nothing was measured.
pub(crate) fn failure(error: &LabError) -> Failure {
    match error {
        LabError::Initiator(error) => Failure::initiator(error),
        LabError::Workload(_) | LabError::Plan(_) => Failure::usage(error.to_string()),
        LabError::NotReady(_) => Failure::scsi(error.to_string(), None),
        LabError::Times { .. } => Failure::new("nothing was measured", error).with_help(TIMES_HELP),
        LabError::Needs(_)
        | LabError::Network(_)
        | LabError::System { .. }
        | LabError::TargetEnded { .. }
        | LabError::GivenUp(_)
        | LabError::Panicked => Failure::new("nothing was measured", error),
    }
}

/// Writes the result down and tells it, one although the other fails, and what went wrong.
fn report(options: &BenchOptions, result: &BenchResult) -> Result<(), Failure> {
    let path = options.output.as_deref();
    let written = path.map_or(Ok(()), |path| output::write(path, result, output::Form::Line));
    tell(options.json, result, text::text)?;
    if let Some(doubt) = &result.times_doubt {
        say(&format!("lunette: {doubt}"));
    } else if let Some(path) = &options.target_times
        && result.measured.operations > 0
        && result.measured.stages.told_apart.is_none()
    {
        say(&format!(
            "lunette: {} tells of none of these operations, or had to leave some out; {TIMES_HELP}",
            path.display()
        ));
    }
    let is_remote = matches!(options.disk, End::Disk(_));
    let ended = match &result.ending {
        Ending::Complete | Ending::Interrupted | Ending::InterruptedFilling => Ok(()),
        Ending::Mismatch(what) => Err(Failure::mismatch(format!("data differ: {what}"))),
        Ending::NothingMeasured(why) => Err(Failure::local(format!("nothing was measured: {why}"))),
        Ending::Refused(what) if is_remote => Err(Failure::scsi(what.clone(), None)),
        Ending::Lost(what) if is_remote => Err(Failure::session(what.clone())),
        Ending::Refused(what) | Ending::Lost(what) => Err(Failure::local(what.clone())),
    };
    if let (Err(unwritten), Err(_)) = (&written, &ended) {
        say(&format!("lunette: {unwritten}"));
    }
    ended.and(written)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn what_was_measured_is_told_before_the_disk_is_closed() {
        let done = RefCell::new(Vec::new());
        let step = |name: &'static str, fails: bool| {
            let done = &done;
            move || {
                done.borrow_mut().push(name);
                if fails { Err(Failure::local(name.to_owned())) } else { Ok(()) }
            }
        };
        let told = |fails: [bool; 2]| {
            let ended = told_and_closed(step("told", fails[0]), step("closed", fails[1]));
            ended.err().map(|failure| failure.to_string())
        };
        assert_eq!(told([false, false]), None);
        assert_eq!(told([false, true]).as_deref(), Some("closed"));
        assert_eq!(told([true, false]).as_deref(), Some("told"));
        assert_eq!(told([true, true]).as_deref(), Some("told"));
        assert_eq!(*done.borrow(), ["told", "closed"].repeat(4));
    }
}
