//! A plan is carried out: workers on threads of their own begin together, and what they counted is added up.

#[cfg(test)]
mod double;
mod fill;
mod gate;
pub(crate) mod monitor;
pub(crate) mod plan;
pub(crate) mod processor;
mod read_back;
pub(crate) mod recorder;
mod source;
pub(crate) mod split;
mod worker;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

pub(crate) use self::fill::{Filled, Transfers, fill};
use self::gate::{Gate, LOOK_INTERVAL, Place};
use self::monitor::{Monitor, Phase};
use self::plan::{Disk, Plan};
use self::processor::Processor;
pub(crate) use self::read_back::read_back;
use self::recorder::Recorder;
use self::split::{Log, SessionName, TargetTimes};
use self::worker::{Done, Shared, Worker};
use crate::endpoint::{Endpoint, Local, Session, SessionDisk};
use crate::{Ending, LabError, Measured, Negotiated};

/// What came of a plan.
#[derive(Debug)]
pub struct Carried {
    /// The figures.
    pub measured: Measured,
    /// Why it ended.
    pub ending: Ending,
    /// What was agreed with the target by the first worker's session.
    pub negotiated: Option<Negotiated>,
    /// What the content of all that was written follows from, where it is verified.
    pub content_seed: Option<u64>,
    /// Why the target's times are missing, or those of some workers, if they are.
    pub times_doubt: Option<String>,
}

/// Carries out a plan. It may be looked at and ended early through the monitor; what was measured by then is answered.
///
/// # Errors
/// Nothing could be measured: the plan does not fit, or a session could not be had. What goes wrong later is told by
/// [`Carried::ending`].
pub fn bench(plan: &Plan, monitor: &Monitor) -> Result<Carried, LabError> {
    plan.check()?;
    monitor.begin();
    // What is there before is of others.
    let times = plan.target_times.as_deref().map(TargetTimes::from_now).transpose()?;
    let gate = Gate::new(plan.workers);
    let processor = Processor::new(plan.workers);
    let shared = Shared { monitor, processor: &processor, content_seed: content_seed() };
    let results = thread::scope(|scope| {
        let spawn = |number| {
            // Where there is no thread its place is let go of, and nobody waits for it.
            let place = gate.place();
            let run = move || carry_out(plan, shared, number, place);
            thread::Builder::new().name(format!("bench-{number}")).spawn_scoped(scope, run)
        };
        let mut threads = Vec::new();
        for number in 0..plan.workers {
            match spawn(number) {
                Ok(thread) => threads.push(thread),
                Err(source) => {
                    let failed = LabError::System { what: "a thread", source };
                    monitor.stop();
                    threads.into_iter().for_each(|thread| drop(thread.join()));
                    return vec![Err(failed)];
                }
            }
        }
        let joined =
            |thread: thread::ScopedJoinHandle<'_, _>| thread.join().unwrap_or(Err(LabError::Panicked));
        threads.into_iter().map(joined).collect()
    });
    conclude(plan, shared, times.as_ref(), results)
}

/// Another one each time: what an earlier measurement has left is not to be taken for what this one has written. Every reader of JSON has
/// room for its 53 bits.
pub(crate) fn content_seed() -> u64 {
    RandomState::new().build_hasher().finish() >> 11
}

/// What one worker has at its end.
struct Worked {
    recorder: Recorder,
    negotiated: Option<Negotiated>,
    log: Option<(SessionName, Log)>,
    is_abandoned: bool,
}

/// Nothing if one of them failed or was stopped before they began.
type Part = Result<Option<Worked>, LabError>;

fn conclude(
    plan: &Plan,
    shared: Shared<'_>,
    times: Option<&TargetTimes>,
    results: Vec<Part>,
) -> Result<Carried, LabError> {
    let mut sum = Recorder::new(plan.interval);
    let mut negotiated = None;
    let (mut logs, mut abandoned) = (Vec::new(), 0);
    for result in results {
        if let Some(worked) = result? {
            sum.add(&worked.recorder);
            negotiated = negotiated.or(worked.negotiated);
            logs.extend(worked.log);
            abandoned += u32::from(worked.is_abandoned);
        }
    }
    let mut measured = Measured::of(&sum);
    let mut times_doubt = None;
    if let Some(times) = times {
        // What was measured is not lost with them.
        match times.join(&logs) {
            Ok(split) => {
                measured.stages.tell_apart(&split);
                times_doubt = (abandoned > 0).then(|| not_waited_for(abandoned, plan.workers));
            }
            Err(error) => times_doubt = Some(error.to_string()),
        }
    }
    let content_seed = plan.verify.then_some(shared.content_seed);
    Ok(Carried { measured, ending: shared.monitor.ending(), negotiated, content_seed, times_doubt })
}

fn not_waited_for(abandoned: u32, workers: u32) -> String {
    format!(
        "the target's times of {abandoned} of {workers} workers are left out: some of their operations were not waited for"
    )
}

fn carry_out(plan: &Plan, shared: Shared<'_>, number: u32, place: Place<'_>) -> Part {
    let (options, luns, unit_bytes) = match &plan.disk {
        Disk::Unit { options, lun } => (options, vec![*lun], u64::MAX),
        Disk::Units { options, luns, unit_bytes } => (options, luns.clone(), *unit_bytes),
        Disk::Local { volume, write } => {
            return through(Local::open(volume, *write), plan, shared, number, place);
        }
    };
    // A plan has far fewer workers.
    let options = options.beside(number as u16);
    let block_bytes = plan.block_bytes;
    let open = move || Session::open(&SessionDisk { options: &options, luns, unit_bytes, block_bytes });
    match unless_stopped(shared.monitor, open) {
        Some(session) => through(session, plan, shared, number, place),
        None => Ok(None),
    }
}

/// Opens a session, which may take very long, unless the measurement is to end before: then nobody waits for it, and whatever comes of it
/// is closed.
fn unless_stopped(
    monitor: &Monitor,
    open: impl FnOnce() -> Result<Session, LabError> + Send + 'static,
) -> Option<Result<Session, LabError>> {
    // What nobody takes comes back to who had it opened.
    let (opened, told) = mpsc::sync_channel(0);
    let run = move || {
        if let Err(mpsc::SendError(Ok(session))) = opened.send(open()) {
            session.close();
        }
    };
    let spawned = thread::Builder::new().name("bench-login".to_owned()).spawn(run);
    if let Err(source) = spawned {
        return Some(Err(LabError::System { what: "a thread", source }));
    }
    loop {
        match told.recv_timeout(LOOK_INTERVAL) {
            Ok(session) => return Some(session),
            Err(RecvTimeoutError::Disconnected) => return Some(Err(LabError::Panicked)),
            Err(RecvTimeoutError::Timeout) if monitor.is_stopped() => return None,
            Err(RecvTimeoutError::Timeout) => (),
        }
    }
}

/// Carries out one worker's part through its endpoint, if all others have theirs.
fn through<E: Endpoint>(
    opened: Result<E, LabError>,
    plan: &Plan,
    shared: Shared<'_>,
    number: u32,
    place: Place<'_>,
) -> Part {
    let monitor = shared.monitor;
    let prepared = opened.and_then(|mut endpoint| {
        let ledger = plan.ledger(number)?;
        let mut filled = Filled::Whole;
        if ledger.is_some() {
            monitor.enter(Phase::Filling);
            endpoint.fills(true);
            filled =
                fill(&mut endpoint, &[plan.share(number)], plan.transfers(), shared.content_seed, monitor)?;
            endpoint.fills(false);
        }
        Ok((endpoint, ledger, filled))
    });
    if prepared.is_err() {
        // What the others still write would be for nothing.
        monitor.stop();
    }
    // Nobody verifies what was never written.
    let is_ready = matches!(prepared, Ok((_, _, Filled::Whole)));
    let all_are_ready = is_ready.then_some(place).is_some_and(|place| place.pass(monitor));
    let (endpoint, ledger, filled) = prepared?;
    if filled != Filled::Whole {
        monitor.fail(Ending::InterruptedFilling);
    }
    if !all_are_ready {
        if filled == Filled::Abandoned {
            endpoint.abandon();
        } else {
            endpoint.close();
        }
        return Ok(None);
    }
    monitor.enter(Phase::WarmingUp);
    let negotiated = endpoint.negotiated();
    let worker = Worker::new(plan, shared, number, endpoint, ledger, negotiated.as_ref())?;
    let Done { endpoint, recorder, mut log, is_abandoned } = worker.run();
    if let Some(log) = log.as_mut().filter(|_| is_abandoned) {
        log.give_up();
    }
    let log = endpoint.session_name().zip(log);
    if is_abandoned {
        endpoint.abandon();
    } else {
        endpoint.close();
    }
    Ok(Some(Worked { recorder, negotiated, log, is_abandoned }))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    use lunette_block::{IdentityOverride, StoreSpec, Volume, VolumeSpec};
    use lunette_initiator::{Lun, TargetUrl};
    use lunette_workload::{Arrivals, Percent, Range, Sizes, Spread, Workload, content};

    use super::double::Double;
    use super::plan::{Until, Work};
    use super::*;
    use crate::WriteMode;

    /// 4 KiB at random, which read so many of a hundred times.
    fn plan(disk: Disk, read: Percent) -> Plan {
        let sizes = Sizes::one(4096);
        let workload = Workload { sizes, read, random: Percent::ALL, spread: Spread::Uniform };
        Plan {
            disk,
            block_bytes: 512,
            transfer_bytes_max: None,
            range: Range { offset_bytes: 0, length_bytes: 1 << 20 },
            work: Work::Workload { workload, arrivals: Arrivals::Closed },
            depth: 1,
            workers: 2,
            warm_up: Duration::ZERO,
            until: Until::Time(Duration::from_secs(1)),
            verify: false,
            target_times: None,
            seed: 1,
            interval: Duration::from_secs(1),
            patience: None,
        }
    }

    #[test]
    fn what_was_measured_is_told_where_the_target_s_times_are_not() {
        let url: TargetUrl = "iscsi://127.0.0.1/iqn.2026-11.io.lunette:lab/0".parse().expect("a URL");
        let disk = Disk::Unit { options: Box::new(url.options()), lun: Lun::default() };
        let plan = plan(disk, Percent::ALL);
        let (monitor, processor) = (Monitor::default(), Processor::new(2));
        let shared = Shared { monitor: &monitor, processor: &processor, content_seed: 1 };
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("t.0.times");
        fs::write(&path, "").expect("a file");
        let times = TargetTimes::from_now(&path).expect("it is there");
        let told = |abandoned: [bool; 2]| {
            let worked = abandoned.map(|is_abandoned| {
                let mut recorder = Recorder::new(plan.interval);
                recorder.end(Duration::from_secs(1), Duration::ZERO);
                Ok(Some(Worked { recorder, negotiated: None, log: None, is_abandoned }))
            });
            let carried = conclude(&plan, shared, Some(&times), worked.into()).expect("what was measured");
            (carried.measured.seconds, carried.times_doubt.unwrap_or_default())
        };
        assert_eq!(told([false, false]), (1.0, String::new()));
        assert!(told([false, true]).1.contains("of 1 of 2 workers are left out"));
        fs::remove_file(&path).expect("it was there");
        let (seconds, doubt) = told([false, false]);
        assert!(doubt.contains("t.0.times") && doubt.contains("cannot be read"), "{doubt}");
        assert!((seconds - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn where_one_cannot_begin_the_others_do_not_fill_their_part() {
        let url: TargetUrl = "iscsi://127.0.0.1/iqn.2026-11.io.lunette:lab/0".parse().expect("a URL");
        let disk = Disk::Unit { options: Box::new(url.options()), lun: Lun::default() };
        let plan = Plan { verify: true, ..plan(disk, Percent::ALL) };
        let (monitor, gate, processor) = (Monitor::default(), Gate::new(2), Processor::new(2));
        let shared = Shared { monitor: &monitor, processor: &processor, content_seed: 1 };
        let [place, other] = [gate.place(), gate.place()];
        let failed = Err::<Local, _>(LabError::NotReady("it is not there".into()));
        assert!(through(failed, &plan, shared, 0, place).is_err());
        let endpoint = Double::new(|at, _| at.all_good());
        assert!(matches!(through(Ok(endpoint), &plan, shared, 1, other), Ok(None)));
        assert_eq!(monitor.filled_bytes(), 0);
    }

    #[test]
    fn what_an_earlier_measurement_has_left_is_none_of_this_one_s() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("image");
        fs::write(&path, vec![0; 1 << 20]).expect("written");
        let spec = VolumeSpec {
            identity: IdentityOverride { serial: Some("verified".into()) },
            ..VolumeSpec::new("verified", StoreSpec::File { path: path.clone(), create_bytes: None })
        };
        let volume = Volume::open(&spec).expect("a volume");
        let only_reads = plan(Disk::Local { volume, write: WriteMode::Back }, Percent::ALL);
        let verified = Plan { verify: true, until: Until::Count(20), ..only_reads };
        let carry = || {
            let carried = bench(&verified, &Monitor::default()).expect("a measurement");
            assert_eq!((carried.ending, carried.measured.verified_bytes), (Ending::Complete, 20 * 4096));
            let seed = carried.content_seed.expect("it is verified");
            let image = fs::read(&path).expect("the image");
            assert_eq!(content::check(seed, 0, 1, &image), Ok(()));
            (seed, image)
        };
        let ((_, old), (seed, _)) = (carry(), carry());
        assert!(content::check(seed, 0, 1, &old).is_err(), "a lost write would not be seen");
        let unverified = Plan { verify: false, ..verified.clone() };
        let carried = bench(&unverified, &Monitor::default()).expect("a measurement");
        assert_eq!((carried.content_seed, carried.measured.verified_bytes), (None, 0));
    }

    #[test]
    fn a_login_that_takes_long_keeps_nobody_from_stopping() {
        // Whoever comes is never answered.
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = silent.local_addr().expect("an address").port();
        let url = format!("iscsi://127.0.0.1:{port}/iqn.2026-11.io.lunette:lab/0");
        let url: TargetUrl = url.parse().expect("a URL");
        let disk = Disk::Unit { options: Box::new(url.options()), lun: Lun::default() };
        let plan = plan(disk, Percent::ALL);
        let (monitor, begun) = (Monitor::default(), Instant::now());
        let carried = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(200));
                monitor.stop();
            });
            bench(&plan, &monitor)
        });
        let carried = carried.expect("what there is");
        assert_eq!((carried.ending, carried.measured.operations), (Ending::Interrupted, 0));
        assert!(begun.elapsed() < Duration::from_secs(10), "a login has 15 s: {:?}", begun.elapsed());
    }
}
