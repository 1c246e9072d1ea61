use std::collections::VecDeque;
use std::time::Instant;

use super::super::double::{At, Double, Over};
use super::super::processor;
use super::*;
use crate::bench::plan::{Disk, Work};
use lunette_initiator::{Lun, TargetUrl};
use lunette_workload::{Arrivals, Pace, Percent, Range, Sizes, Spread, Trace, Workload};
use std::sync::Arc;

const S: fn(u64) -> Duration = Duration::from_secs;

/// 4 KiB at random, four at a time.
fn plan(until: Until, read: Percent) -> Plan {
    let url: TargetUrl = "iscsi://127.0.0.1/iqn.2026-11.io.lunette:lab/0".parse().expect("a URL");
    let workload = Workload { sizes: Sizes::one(4096), read, random: Percent::ALL, spread: Spread::Uniform };
    Plan {
        disk: Disk::Unit { options: Box::new(url.options()), lun: Lun::default() },
        block_bytes: 512,
        transfer_bytes_max: None,
        range: Range { offset_bytes: 0, length_bytes: 1 << 20 },
        work: Work::Workload { workload, arrivals: Arrivals::Closed },
        depth: 4,
        workers: 1,
        warm_up: S(1),
        until,
        verify: false,
        target_times: None,
        seed: 1,
        interval: S(1),
        patience: None,
    }
}

/// Carries out the plan of one worker.
fn run<E: Endpoint>(plan: &Plan, monitor: &Monitor, endpoint: E, ledger: Option<Ledger>) -> Done<E> {
    let shared = Shared { monitor, processor: &Processor::new(1), content_seed: 1 };
    Worker::new(plan, shared, 0, endpoint, ledger, None).expect("a worker").run()
}

/// One second that does not count and three that do, where everything ends after so long; when that was over, whether
/// something was left, and the longest time of what did not count, in seconds.
fn ends(until: Duration, patience: Option<Duration>) -> (u64, bool, u64) {
    let plan = Plan { patience, ..plan(Until::Time(S(3)), Percent::ALL) };
    let monitor = Monitor::default();
    let slow = Double::new(|at, timeout| {
        at.now += timeout.max(Duration::from_millis(1));
        if at.now >= until { at.all_good() } else { Vec::new() }
    });
    let done = run(&plan, &monitor, slow, None);
    let Done { recorder, endpoint, is_abandoned, .. } = done;
    assert_eq!((recorder.measured, monitor.phase()), (S(3), Phase::Ending));
    assert_eq!((recorder.operations(), recorder.under_way), (0, 4));
    assert_eq!(recorder.steps.iter().map(|step| step.operations).collect::<Vec<_>>(), [0, 0, 0]);
    (endpoint.at.now.as_secs(), is_abandoned, recorder.under_way_longest.as_secs())
}

#[test]
fn what_is_under_way_at_the_end_is_told_and_waited_for_as_long_as_the_plan_says() {
    assert_eq!(ends(S(60), None), (60, false, 60));
    assert_eq!(ends(S(60), Some(S(2))), (6, true, 6));
    assert_eq!(ends(S(5), Some(S(2))), (5, false, 5));
}

#[test]
fn a_stop_in_the_warm_up_does_not_wait_for_its_end() {
    let plan = Plan { warm_up: S(3600), ..plan(Until::Time(S(3)), Percent::ALL) };
    let monitor = Monitor::default();
    let hung = Double::new(|at, timeout| {
        monitor.stop();
        at.now += timeout;
        if at.now > S(3600) { at.all_good() } else { Vec::new() }
    });
    let Done { endpoint, is_abandoned, recorder, .. } = run(&plan, &monitor, hung, None);
    assert!(is_abandoned && endpoint.at.now < S(3), "{:?}", endpoint.at.now);
    assert_eq!((recorder.operations(), recorder.measured), (0, Duration::ZERO));
}

/// Answers one command after the other, with what is said of its number; a millisecond each.
fn scripted(mut end: impl FnMut(u32) -> End) -> Double<impl FnMut(&mut At, Duration) -> Vec<Over>> {
    let mut answered = 0;
    Double::new(move |at, _| {
        at.now += Duration::from_millis(1);
        if at.under_way.is_empty() {
            return Vec::new();
        }
        answered += 1;
        vec![(at.under_way.remove(0), end(answered - 1))]
    })
}

#[test]
fn a_busy_unit_may_still_have_something_to_tell() {
    let plan = Plan { warm_up: Duration::ZERO, depth: 1, ..plan(Until::Count(1), Percent::ALL) };
    let monitor = Monitor::default();
    let endpoint = scripted(|number| match number {
        0..=49 => End::Busy,
        50 => End::Again,
        _ => End::Good,
    });
    let done = run(&plan, &monitor, endpoint, None);
    assert_eq!((done.recorder.busy, done.recorder.again, done.recorder.operations()), (50, 1, 1));
    assert!(!monitor.is_stopped(), "nothing has failed");
    // All 52 tries and the 50 pauses are of its latency, and all but the last try is of its wait for the command window.
    let split = &done.recorder.split;
    let histograms = [&done.recorder.read.latency_ns, &split.window, &split.away];
    assert_eq!(histograms.map(|histogram| histogram.max() / 1_000_000), [102, 101, 1]);
    assert_eq!(split.schedule.len(), 0, "it began when it was to");
}

/// A unit that takes so many at once, and none from a time on, and has each of them for 2 ms. What it does not take, it says 50
/// microseconds later.
fn taking_at_once(most: usize, until: Duration) -> Double<impl FnMut(&mut At, Duration) -> Vec<Over>> {
    let mut taken = VecDeque::<(Duration, (u32, Duration))>::new();
    Double::new(move |at: &mut At, timeout| {
        assert!(at.now < S(60), "it never ends");
        let room = if at.now < until { most - taken.len() } else { 0 };
        let refused = at.under_way.split_off(room.min(at.under_way.len()));
        taken.extend(at.under_way.drain(..).map(|slot| (at.now + Duration::from_millis(2), slot)));
        if refused.is_empty() {
            at.now = (at.now + timeout).min(taken.front().map_or(Duration::MAX, |first| first.0.max(at.now)));
        } else {
            at.now += Duration::from_micros(50);
        }
        let mut over: Vec<_> = refused.into_iter().map(|slot| (slot, End::Busy)).collect();
        while let Some((_, slot)) = taken.pop_front_if(|first| first.0 <= at.now) {
            over.push((slot, End::Good));
        }
        over
    })
}

#[test]
fn what_a_busy_unit_does_not_take_has_its_turn() {
    let plan = Plan { depth: 32, ..plan(Until::Time(S(3)), Percent::ALL) };
    let done = run(&plan, &Monitor::default(), taking_at_once(8, Duration::MAX), None);
    let recorder = &done.recorder;
    let (operations, longest) = (recorder.operations(), recorder.read.latency_ns.max() / 1_000_000);
    // 8 every 2 ms; each of 32 waits for three others at its place.
    assert!((11_000..=12_000).contains(&operations), "{operations}");
    assert!(longest <= 24 && recorder.under_way_longest.as_millis() <= 24, "{longest} ms");
    assert!(recorder.busy < 3 * operations, "{} refusals for {operations} operations", recorder.busy);
    // One more where nobody else leaves room: after each pause it is asked whether there is some.
    let alone = Plan { depth: 1, ..plan };
    let busy = run(&alone, &Monitor::default(), taking_at_once(0, Duration::MAX), None).recorder.busy;
    assert!((1000..=4000).contains(&busy), "{busy} refusals in 4 s");
}

#[test]
fn what_a_busy_unit_does_not_take_by_the_end_is_left_out() {
    let closed = Plan { depth: 32, ..plan(Until::Time(S(3)), Percent::ALL) };
    let done = run(&closed, &Monitor::default(), taking_at_once(8, S(2)), None);
    assert!(!done.is_abandoned && done.endpoint.at.now < S(4) + Duration::from_millis(10));
    let Recorder { measured, under_way, under_way_longest, .. } = done.recorder;
    assert_eq!((measured, under_way), (S(3), 32));
    assert!(under_way_longest >= S(2), "{under_way_longest:?}");
    // What was to begin in the time of an open loop has taken so long at least.
    let open = Plan { depth: 8, ..evenly(closed, 100.0) };
    let done = run(&open, &Monitor::default(), taking_at_once(8, S(2)), None);
    assert!(!done.is_abandoned && done.endpoint.at.now < S(5) + Duration::from_millis(10));
    let recorder = &done.recorder;
    let (ended, given_up) = (recorder.operations(), recorder.read.given_up_ns.len());
    assert_eq!((ended + given_up, recorder.under_way, recorder.unserved), (300, 8, 192));
    assert!(recorder.read.given_up_ns.max() >= 2_990_000_000);
}

/// What comes at equal distances, so many a second of one worker.
fn evenly(plan: Plan, rate: f64) -> Plan {
    let Work::Workload { workload, .. } = plan.work else { panic!("a trace") };
    Plan { work: Work::Workload { workload, arrivals: Arrivals::Even(rate) }, ..plan }
}

/// Where every operation takes as long as it says of the number that it has, if nothing else is under way.
fn taking(latency: impl Fn(u32) -> Duration) -> Double<impl FnMut(&mut At, Duration) -> Vec<Over>> {
    let (mut seen, mut due) = (0, Vec::<(Duration, (u32, Duration))>::new());
    Double::new(move |at: &mut At, timeout| {
        for slot in at.under_way.drain(..) {
            due.push((slot.1 + latency(seen), slot));
            seen += 1;
        }
        let first = due.iter().map(|(time, _)| *time).min().unwrap_or(Duration::MAX);
        at.now = (at.now + timeout).min(first.max(at.now));
        let over = due.extract_if(.., |(time, _)| *time <= at.now);
        over.map(|(_, slot)| (slot, End::Good)).collect()
    })
}

#[test]
fn the_rate_of_an_open_loop_is_of_the_time_in_which_it_was_to_begin() {
    let told = |plan: &Plan, latency: &dyn Fn(u32) -> Duration| {
        let recorder = run(plan, &Monitor::default(), taking(latency), None).recorder;
        assert_eq!(recorder.steps.iter().map(|step| step.operations).sum::<u64>(), recorder.operations());
        (recorder.operations(), recorder.measured, recorder.drained)
    };
    let plan = Plan { depth: 64, ..evenly(plan(Until::Time(S(3)), Percent::ALL), 100.0) };
    let ms = Duration::from_millis;
    assert_eq!(told(&plan, &|_| ms(5)), (300, S(3), Duration::ZERO));
    // The last one was to begin 10 ms before the end.
    assert_eq!(told(&plan, &|_| ms(200)), (300, S(3), ms(190)));
    // One of the first that count takes very long.
    assert_eq!(told(&plan, &|number| if number == 110 { S(60) } else { ms(5) }), (300, S(3), ms(57_100)));
    // Half of what comes has no room, and for a second what came in time still begins: 50 a second do.
    let much = Plan { depth: 1, warm_up: Duration::ZERO, ..plan };
    assert_eq!(told(&much, &|_| ms(20)), (200, ms(3980), ms(20)));
}

#[test]
fn a_trace_that_is_over_before_its_time_is_told_by_what_it_took() {
    let mut trace = Trace::lu_du(1).expect("a trace");
    let plan = plan(Until::Time(S(60)), Percent::ALL);
    trace.fit(plan.range, plan.block_bytes).expect("it fits");
    let work = Work::Trace { name: "lu-du".into(), trace: Arc::new(trace), pace: Pace::None };
    let plan = Plan { work, depth: 1, warm_up: Duration::ZERO, ..plan };
    let told = |plan: &Plan| {
        let done = run(plan, &Monitor::default(), taking(|_| Duration::from_millis(1)), None);
        (done.recorder.operations(), done.recorder.measured)
    };
    assert_eq!(told(&plan), (8626, Duration::from_millis(8626)));
    // What the warm-up has done does not count.
    assert_eq!(told(&Plan { warm_up: S(60), ..plan.clone() }), (0, Duration::ZERO));
    assert_eq!(told(&Plan { until: Until::Time(S(5)), ..plan }), (5000 - 1, S(5)));
}

#[test]
fn what_begins_behind_the_end_was_not_under_way_at_it() {
    let plan = Plan { depth: 2, warm_up: S(10), ..evenly(plan(Until::Time(S(1)), Percent::ALL), 1000.0) };
    let ten = Duration::from_millis(10);
    let recorder = run(&plan, &Monitor::default(), taking(|_| ten), None).recorder;
    // 200 have room in the second that counts, and in the one behind it; nothing that the warm-up left is in their way.
    assert_eq!((recorder.operations(), recorder.under_way, recorder.unserved), (400, 0, 600));
    assert!((1980..2000).contains(&recorder.measured.as_millis()), "{:?}", recorder.measured);
    // The 401st was to begin 400 ms after the first, and the last one a millisecond before the end; both wait for a second after it.
    let given_up = &recorder.read.given_up_ns;
    assert_eq!((given_up.len(), recorder.write.given_up_ns.len()), (600, 0));
    assert_eq!([given_up.min(), given_up.max()].map(|ns| (ns as f64 / 1e7).round()), [100.0, 160.0]);
}

#[test]
fn what_had_no_room_is_counted_and_not_made() {
    let plan = Plan { depth: 1, ..evenly(plan(Until::Time(S(99)), Percent::ALL), 1e7) };
    let begun = Instant::now();
    let recorder = run(&plan, &Monitor::default(), taking(|_| S(200)), None).recorder;
    // The room is that of one of the warm-up.
    assert_eq!((recorder.unserved, recorder.read.given_up_ns.len()), (990_000_000, 990_000_000));
    // They wait from one to a hundred seconds, at equal distances.
    let given_up = &recorder.read.given_up_ns;
    let seconds = [0.25, 0.5, 0.75].map(|share| given_up.value_at_quantile(share) as f64 / 1e9);
    for (seconds, expected) in seconds.iter().zip([25.75, 50.5, 75.25]) {
        assert!((seconds - expected).abs() < 0.2, "{seconds} for {expected}");
    }
    assert!(given_up.min() <= 1_000_000_000 + 10_000_000, "{}", given_up.min());
    assert!(begun.elapsed() < S(10), "one by one they take minutes");
}

#[test]
fn percentiles_of_an_open_loop_are_of_all_that_was_to_begin() {
    let plan = evenly(plan(Until::Time(S(10)), "50".parse().expect("a share")), 100.0);
    let plan = Plan { depth: 1, ..plan };
    let told = |latency: u64| {
        let endpoint = taking(move |_| Duration::from_millis(latency));
        let recorder = run(&plan, &Monitor::default(), endpoint, None).recorder;
        let mut waits = recorder.read.latency_ns.clone();
        waits.add(&recorder.read.given_up_ns).expect("equal bounds");
        let count =
            recorder.operations() + recorder.read.given_up_ns.len() + recorder.write.given_up_ns.len();
        (count, recorder.operations(), recorder.unserved, waits.value_at_quantile(0.5) / 1_000_000)
    };
    // One after the other has time enough.
    assert_eq!(told(10), (1000, 1000, 0, 10));
    // Half of them have, and what comes later waits for longer: those that ended waited 0 to 5.5 s, others 5.5 s to one.
    let (all, ended, unserved, median) = told(20);
    assert_eq!((all, ended + unserved), (1000, 1000));
    assert!((545..=555).contains(&ended) && (2900..3300).contains(&median), "{ended}, {median} ms");
}

#[test]
fn what_is_no_longer_waited_for_has_taken_so_long_at_least() {
    let plan =
        Plan { depth: 64, patience: Some(S(2)), ..evenly(plan(Until::Time(S(3)), Percent::ALL), 10.0) };
    let endpoint = taking(|number| if number < 20 { Duration::from_millis(5) } else { S(60) });
    let done = run(&plan, &Monitor::default(), endpoint, None);
    let (recorder, given_up) = (&done.recorder, &done.recorder.read.given_up_ns);
    assert_eq!((recorder.operations(), given_up.len(), recorder.unserved), (10, 20, 0));
    // The first one was to begin two seconds before the end.
    assert_eq!([given_up.min(), given_up.max()].map(|ns| ns / 1_000_000_000), [2, 4]);
    // Of a closed loop others would have begun after it.
    let plan = Plan { patience: Some(S(2)), ..self::plan(Until::Time(S(3)), Percent::ALL) };
    let done = run(&plan, &Monitor::default(), taking(|_| S(60)), None);
    assert_eq!((done.recorder.under_way, done.recorder.read.given_up_ns.len()), (4, 0));
}

#[test]
fn what_a_trace_was_to_begin_in_the_time_that_counts_is_given_up_by_its_kinds() {
    let mut reader = lunette_workload::TraceReader::default();
    for at in 0..40_u64 {
        let letter = if at % 4 == 0 { 'W' } else { 'R' };
        reader.line(&format!("{} {letter} 0 4096", at * 100_000)).expect("a line");
    }
    let trace = Arc::new(reader.finish().expect("a trace"));
    let work = Work::Trace { name: "ours".into(), trace, pace: Pace::Times(1.0) };
    let plan = Plan { work, depth: 1, ..plan(Until::Time(S(2)), Percent::ALL) };
    let recorder = run(&plan, &Monitor::default(), taking(|_| S(60)), None).recorder;
    // The first one of the warm-up has the room; of 20 in the two seconds that count five write.
    let given_up = [&recorder.read.given_up_ns, &recorder.write.given_up_ns].map(|waits| waits.len());
    assert_eq!((given_up, recorder.unserved), ([15, 5], 20));
}

#[test]
fn what_is_under_way_from_the_warm_up_keeps_nobody_from_being_counted() {
    let plan = Plan { depth: 64, ..evenly(plan(Until::Count(10), Percent::ALL), 100.0) };
    let endpoint = taking(|_| Duration::from_millis(200));
    let recorder = run(&plan, &Monitor::default(), endpoint, None).recorder;
    // The last one was to begin 90 ms after the first, and none of them waited for another.
    assert_eq!((recorder.operations(), recorder.measured.as_millis()), (10, 290));
    assert!(recorder.read.latency_ns.max() < 201_000_000, "{}", recorder.read.latency_ns.max());
}

#[test]
fn what_ended_before_anything_counts_was_not_under_way_at_the_end() {
    let plan = plan(Until::Count(1), Percent::ALL);
    let shared = Shared { monitor: &Monitor::default(), processor: &Processor::new(1), content_seed: 1 };
    let mut worker = Worker::new(&plan, shared, 0, scripted(|_| End::Good), None, None).expect("a worker");
    let operation = Operation { kind: Kind::Read, offset_bytes: 0, length_bytes: 4096 };
    let under_way = [1000, 999, 1001].map(|ms| {
        let done = Duration::from_millis(ms);
        let moments = Moments { done, ..Moments::default() };
        worker.good(&operation, Duration::ZERO, &moments, Vec::new());
        worker.recorder.under_way
    });
    assert_eq!((worker.recorder.operations(), under_way), (1, [0, 0, 1]));
}

#[test]
fn processor_time_is_of_what_is_measured() {
    let much = Duration::from_millis(300);
    let work = || {
        let until = processor::now() + much;
        while processor::now() < until {}
    };
    let plan = Plan { warm_up: Duration::ZERO, depth: 1, ..plan(Until::Time(S(1)), Percent::ALL) };
    let took = |plan: &Plan, processor: &Processor, number| {
        let monitor = Monitor::default();
        let shared = Shared { monitor: &monitor, processor, content_seed: 1 };
        let endpoint = Double::new(|at, timeout| {
            at.now += timeout.max(Duration::from_millis(1));
            if at.now > S(2) {
                work();
                return at.all_good();
            }
            if plan.until == Until::Count(2) { at.all_good() } else { Vec::new() }
        });
        let worker = Worker::new(plan, shared, number, endpoint, None, None).expect("a worker");
        worker.run().recorder.processor
    };
    for plan in [plan.clone(), evenly(plan.clone(), 10.0)] {
        let took = took(&plan, &Processor::new(1), 0);
        assert!(took < much, "what ends after the end took it: {took:?}");
    }
    // The first one has nothing more to do when the second one begins.
    let plan = Plan { workers: 2, until: Until::Count(2), ..plan };
    let processor = Processor::new(2);
    assert_eq!(took(&plan, &processor, 0), Duration::ZERO);
    work();
    let took = took(&plan, &processor, 1);
    assert!(took >= much, "{took:?}");
}

#[test]
fn who_waits_for_another_one_does_not_begin_after_the_end() {
    // One block, so that all but one wait.
    let range = Range { offset_bytes: 0, length_bytes: 4096 };
    let plan =
        Plan { range, verify: true, warm_up: Duration::ZERO, ..plan(Until::Time(S(1)), Percent::ZERO) };
    let monitor = Monitor::default();
    let ledger = Ledger::new(range, 4096).expect("a ledger");
    let mut ends = 0;
    let endpoint = scripted(|_| {
        ends += 1;
        if ends == 3 {
            monitor.stop();
        }
        End::Good
    });
    let done = run(&plan, &monitor, endpoint, Some(ledger));
    assert!(!done.is_abandoned);
    drop(done);
    assert_eq!(ends, 3, "the one that was under way was the last");
}
