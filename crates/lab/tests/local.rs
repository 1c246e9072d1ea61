//! Measurements of volumes in this process: everything is counted, what is read is verified, and what goes wrong is told.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lunette_block::fault::{Effect, Errno, Faults, Rule, When};
use lunette_block::{EngineKind, IdentityOverride, OperationKind, StoreSpec, Volume, VolumeSpec};
use lunette_lab::{Carried, Disk, Ending, Monitor, Phase, Plan, Until, Work, WriteMode, bench};
use lunette_workload::{Arrivals, Pace, Percent, Range, Spread, TraceReader, Workload, content};

const SIZE_BYTES: u64 = 4 << 20;

fn spec(store: StoreSpec) -> VolumeSpec {
    VolumeSpec {
        engine: EngineKind::Threads,
        identity: IdentityOverride { serial: Some("measured".into()) },
        ..VolumeSpec::new("measured", store)
    }
}

fn memory() -> VolumeSpec {
    spec(StoreSpec::Memory { size_bytes: SIZE_BYTES })
}

fn work(sizes: &str, spread: Spread, arrivals: Arrivals) -> Work {
    let workload = Workload {
        sizes: sizes.parse().expect("sizes"),
        read: Percent::new(60),
        random: Percent::new(80),
        spread,
    };
    Work::Workload { workload, arrivals }
}

/// 60 % reads of two sizes, 100 operations.
fn plan(volume: Arc<Volume>) -> Plan {
    Plan {
        disk: Disk::Local { volume, write: WriteMode::Back },
        block_bytes: 512,
        transfer_bytes_max: None,
        range: Range { offset_bytes: 0, length_bytes: SIZE_BYTES },
        work: work("4K:3,12K:1", Spread::Uniform, Arrivals::Closed),
        depth: 8,
        workers: 1,
        warm_up: Duration::ZERO,
        until: Until::Count(100),
        verify: false,
        target_times: None,
        seed: 7,
        interval: Duration::from_millis(10),
        patience: None,
    }
}

fn run(plan: &Plan) -> Carried {
    bench(plan, &Monitor::default()).expect("a measurement")
}

fn opened(spec: &VolumeSpec) -> Arc<Volume> {
    Volume::open(spec).expect("a volume")
}

#[test]
fn every_operation_is_counted_once_and_everywhere() {
    let plan = Plan { workers: 3, until: Until::Count(1000), ..plan(opened(&memory())) };
    let carried = run(&plan);
    assert_eq!(carried.ending, Ending::Complete);
    let measured = carried.measured;
    let (read, write) = (measured.read.expect("reads"), measured.write.expect("writes"));
    assert_eq!((measured.operations, read.operations + write.operations), (1000, 1000));
    assert_eq!(measured.bytes, read.bytes + write.bytes);
    for latency in [&read, &write] {
        let counted: u64 = latency.histogram_ns.iter().map(|(_, count)| count).sum();
        assert_eq!(counted, latency.operations);
        let rising = [latency.min, latency.p50, latency.p90, latency.p99, latency.p9999, latency.max];
        assert!(rising.is_sorted() && latency.mean <= latency.max, "{latency:?}");
    }
    let (operations, bytes) = measured
        .series
        .steps
        .iter()
        .fold((0, 0), |(operations, bytes), step| (operations + step.0, bytes + step.1));
    assert_eq!((operations, bytes), (1000, measured.bytes));
}

#[test]
fn what_is_written_is_found_however_it_is_mixed() {
    for (spread, workers) in [("uniform", 1), ("hot:2%/90%", 1), ("zipf:1.2", 3)] {
        let work = work("512:2,4K:2,1536:1", spread.parse().expect("a spread"), Arrivals::Closed);
        let plan = Plan { work, ..plan(opened(&memory())) };
        let plan = Plan { workers, verify: true, until: Until::Count(3000), depth: 16, ..plan };
        let carried = run(&plan);
        assert_eq!((carried.ending, carried.measured.operations), (Ending::Complete, 3000), "{spread}");
    }
}

#[test]
fn what_is_written_is_nowhere_else() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("image");
    let mut before = vec![0; SIZE_BYTES as usize];
    content::fill(1, 0, 1, &mut before);
    std::fs::write(&path, &before).expect("written");
    let volume = opened(&spec(StoreSpec::File { path: path.clone(), create_bytes: None }));
    // Each buffer has been read into, or written from, many times.
    let plan = Plan { workers: 2, until: Until::Count(2000), ..plan(volume) };
    assert_eq!(run(&plan).ending, Ending::Complete);
    let after = std::fs::read(&path).expect("the image");
    let blocks = || after.chunks_exact(512).zip(before.chunks_exact(512));
    let written: HashSet<_> =
        blocks().filter(|(after, before)| after != before).map(|(after, _)| after).collect();
    assert!(written.len() > 2000 && !written.contains(&[0; 512][..]), "{}", written.len());
    let all: HashSet<_> = blocks().map(|(after, _)| after).chain(before.chunks_exact(512)).collect();
    assert_eq!(all.len(), before.len() / 512 + written.len(), "none was there before");
    let count = blocks().filter(|(after, before)| after != before).count();
    assert_eq!(count, written.len(), "none is there twice");
}

#[test]
fn a_write_has_ended_when_it_is_stable_or_when_the_cache_has_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let ending = |write| {
        let path = directory.path().join("image");
        std::fs::write(&path, vec![0; SIZE_BYTES as usize]).expect("written");
        let (volume, faults) =
            Faults::open(&spec(StoreSpec::File { path, create_bytes: None })).expect("a volume");
        // Only who waits for a flush is told.
        faults.add(Rule::new(OperationKind::Flush, When::Every, Effect::Fail(Errno::IO)));
        let plan = plan(Arc::clone(&volume));
        run(&Plan { disk: Disk::Local { volume, write }, ..plan }).ending
    };
    assert_eq!(ending(WriteMode::Back), Ending::Complete);
    let through = ending(WriteMode::Through);
    assert!(
        matches!(&through, Ending::Refused(what) if what.starts_with("a write of ")),
        "its write waits for the flush: {through:?}"
    );
}

/// Overwrites a file until told to stop.
fn spoil(path: &Path, monitor: &Monitor) {
    let file = OpenOptions::new().write(true).open(path).expect("the file");
    while monitor.phase() != Phase::Measuring && !monitor.is_stopped() {
        thread::yield_now();
    }
    while !monitor.is_stopped() {
        for block in 0..SIZE_BYTES / 512 {
            file.write_all_at(&[0xee; 16], block * 512 + 100).expect("written");
        }
    }
}

#[test]
fn damage_is_found() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("image");
    std::fs::File::create(&path).expect("a file").write_all(&vec![0; SIZE_BYTES as usize]).expect("written");
    let volume = opened(&spec(StoreSpec::File { path: path.clone(), create_bytes: None }));
    // Only its end is the damage's to decide.
    let plan = Plan { verify: true, until: Until::Time(Duration::from_secs(3600)), ..plan(volume) };
    let monitor = Monitor::default();
    let carried = thread::scope(|scope| {
        scope.spawn(|| spoil(&path, &monitor));
        bench(&plan, &monitor)
    });
    let ending = carried.expect("a measurement").ending;
    let Ending::Mismatch(what) = &ending else { panic!("{ending:?}") };
    assert!(what.contains("what was never written, from byte"), "{what}");
}

#[test]
fn a_refused_operation_ends_it_and_is_named() {
    let (volume, faults) = Faults::open(&memory()).expect("a volume");
    faults.add(Rule::new(OperationKind::Read, When::Nth(20), Effect::Fail(Errno::IO)));
    let carried = run(&plan(volume));
    let Ending::Refused(what) = &carried.ending else { panic!("{:?}", carried.ending) };
    assert!(what.starts_with("a read of ") && what.contains(" at byte "), "{what}");
    assert!(carried.measured.operations < 100, "what was measured before is told");
}

#[test]
fn it_ends_when_it_is_told_to() {
    let forever = Plan { until: Until::Time(Duration::from_secs(3600)), ..plan(opened(&memory())) };
    let monitor = Monitor::default();
    let carried = thread::scope(|scope| {
        scope.spawn(|| {
            while monitor.operations() < 500 {
                thread::yield_now();
            }
            monitor.stop();
        });
        bench(&forever, &monitor)
    });
    let carried = carried.expect("a measurement");
    assert_eq!(carried.ending, Ending::Interrupted);
    assert!(carried.measured.operations >= 400 && carried.measured.seconds > 0.0, "{:?}", carried.measured);
}

/// In an open loop some operations were to begin before the stop.
#[test]
fn what_was_not_written_before_a_stop_is_not_verified() {
    for arrivals in [Arrivals::Closed, Arrivals::Even(1000.0)] {
        let work = work("4K", Spread::Uniform, arrivals);
        let plan = Plan { work, workers: 2, verify: true, ..plan(opened(&memory())) };
        let monitor = Monitor::default();
        monitor.stop();
        let carried = bench(&plan, &monitor).expect("a measurement");
        let begun = (carried.measured.operations, monitor.operations(), monitor.filled_bytes());
        assert_eq!((carried.ending, begun), (Ending::InterruptedFilling, (0, 0, 0)), "{arrivals:?}");
    }
}

#[test]
fn in_an_open_loop_waiting_counts() {
    let delayed = || {
        let (volume, faults) =
            Faults::open(&VolumeSpec { engine: EngineKind::Sync, ..memory() }).expect("a volume");
        for kind in [OperationKind::Read, OperationKind::Write] {
            faults.add(Rule::new(kind, When::Every, Effect::Delay(Duration::from_millis(20))));
        }
        Plan { depth: 1, until: Until::Count(20), ..plan(volume) }
    };
    let longest = |plan: &Plan| {
        let measured = run(plan).measured;
        assert_eq!(measured.operations, 20);
        let of = |latency: Option<&lunette_lab::Latency>| latency.map_or(0.0, |latency| latency.max);
        of(measured.read.as_ref()).max(of(measured.write.as_ref()))
    };
    // The last one was to begin after 19 ms, and 19 others took 20 ms each before it.
    let work = work("4K", Spread::Uniform, Arrivals::Even(1000.0));
    let open = longest(&Plan { work, ..delayed() });
    assert!(open >= 380_000.0, "{open} us");
}

#[test]
fn a_trace_is_replayed_to_its_end_by_any_number_of_workers() {
    let mut reader = TraceReader::default();
    for at in 0..500_u64 {
        let letter = if at % 4 == 0 { 'W' } else { 'R' };
        reader.line(&format!("{} {letter} {} 4096", at * 20, at * 8192)).expect("a line");
    }
    let mut trace = reader.finish().expect("a trace");
    let range = Range { offset_bytes: 0, length_bytes: SIZE_BYTES };
    assert_eq!(trace.fit(range, 512), Ok(0));
    let trace = Arc::new(trace);
    for (pace, workers) in [("none", 1), ("none", 3), ("original", 1), ("2x", 2)] {
        let pace: Pace = pace.parse().expect("a pace");
        let work = Work::Trace { name: "ours".into(), trace: Arc::clone(&trace), pace };
        let plan = Plan { work, workers, until: Until::Count(u64::MAX), ..plan(opened(&memory())) };
        let carried = run(&plan);
        let counts = carried.measured.read.zip(carried.measured.write);
        let counts = counts.map(|(read, write)| (read.operations, write.operations));
        assert_eq!((carried.ending, counts), (Ending::Complete, Some((375, 125))));
    }
    let small = Range { offset_bytes: 0, length_bytes: SIZE_BYTES / 2 };
    let work = Work::Trace { name: "ours".into(), trace, pace: Pace::None };
    let outside = Plan { work, range: small, ..plan(opened(&memory())) };
    let error = bench(&outside, &Monitor::default()).expect_err("a fault").to_string();
    assert!(error.contains("the trace is not of this range"), "{error}");
}

#[test]
fn plans_that_cannot_be_are_refused() {
    let refused = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan(opened(&memory()));
        change(&mut plan);
        bench(&plan, &Monitor::default()).expect_err("a fault").to_string()
    };
    assert!(refused(&|plan| plan.depth = 0).contains("the depth is a number from 1 to 4096"));
    assert!(refused(&|plan| plan.workers = 65).contains("from 1 to 64"));
    assert!(refused(&|plan| plan.until = Until::Count(0)).contains("nothing is to be measured"));
    let few = refused(&|plan| (plan.workers, plan.until) = (4, Until::Count(3)));
    assert!(few.contains("4 workers cannot share 3 operations"), "{few}");
    let much = refused(&|plan| {
        (plan.work, plan.depth) = (work("5M", Spread::Uniform, Arrivals::Closed), 129);
        plan.range.length_bytes = 1 << 30;
    });
    assert!(much.contains("129 operations of 5242880 bytes under way of each of 1 workers"), "{much}");
    let long = refused(&|plan| {
        (plan.until, plan.interval) = (Until::Time(Duration::from_secs(3600)), Duration::from_millis(1));
    });
    assert!(long.contains("3600000 steps") && long.contains("--interval, or a shorter --time"), "{long}");
    assert!(refused(&|plan| plan.block_bytes = 8192).contains("no whole blocks"));
    assert!(refused(&|plan| plan.range.length_bytes = 4096).contains("no room"));
    let shared = refused(&|plan| {
        (plan.work, plan.workers, plan.verify) = (work("4K", Spread::Uniform, Arrivals::Closed), 64, true);
        (plan.range.length_bytes, plan.until) = (64 << 10, Until::Count(64));
    });
    let share = "each of 64 workers verifies 0 of the 65536 bytes of the range, which has no room for an operation of 4096";
    assert!(shared.contains(share) && shared.contains("fewer --workers"), "{shared}");
}
