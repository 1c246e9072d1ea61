//! A plan is carried out: workers on threads of their own begin together, and what they counted is added up.

#[cfg(test)]
mod double;
mod fill;
pub(crate) mod monitor;
pub(crate) mod plan;
mod processor;
pub(crate) mod recorder;
mod source;
pub(crate) mod split;
mod worker;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

pub(crate) use self::fill::{Filled, fill};
use self::monitor::{Monitor, Phase};
use self::plan::{Disk, Plan};
use self::processor::Processor;
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
    let gate = Gate { barrier: Barrier::new(plan.workers as usize), is_closed: AtomicBool::new(false) };
    let processor = Processor::new(plan.workers);
    let shared = Shared { monitor, processor: &processor };
    let results = thread::scope(|scope| {
        let spawn = |number| {
            let gate = &gate;
            let run = move || carry_out(plan, shared, number, gate);
            let name = format!("bench-{number}");
            let spawned = thread::Builder::new().name(name).spawn_scoped(scope, run);
            if spawned.is_err() {
                // Those that are there must not wait for one that is not.
                gate.refuse(plan.workers - number);
            }
            spawned
        };
        let mut threads = Vec::new();
        for number in 0..plan.workers {
            match spawn(number) {
                Ok(thread) => threads.push(thread),
                Err(source) => {
                    let failed = LabError::System { what: "a thread", source };
                    threads.into_iter().for_each(|thread| drop(thread.join()));
                    return vec![Err(failed)];
                }
            }
        }
        let joined =
            |thread: thread::ScopedJoinHandle<'_, _>| thread.join().unwrap_or(Err(LabError::Panicked));
        threads.into_iter().map(joined).collect()
    });
    conclude(plan, monitor, times.as_ref(), results)
}

/// What one worker has at its end.
struct Worked {
    recorder: Recorder,
    negotiated: Option<Negotiated>,
    log: Option<(SessionName, Log)>,
}

/// Nothing if one of them failed or was stopped before they began.
type Part = Result<Option<Worked>, LabError>;

fn conclude(
    plan: &Plan,
    monitor: &Monitor,
    times: Option<&TargetTimes>,
    results: Vec<Part>,
) -> Result<Carried, LabError> {
    let mut sum = Recorder::new(plan.interval);
    let mut negotiated = None;
    let mut logs = Vec::new();
    for result in results {
        if let Some(worked) = result? {
            sum.add(&worked.recorder);
            negotiated = negotiated.or(worked.negotiated);
            logs.extend(worked.log);
        }
    }
    let mut measured = Measured::of(&sum);
    if let Some(times) = times {
        measured.stages.tell_apart(&times.join(&logs)?);
    }
    Ok(Carried { measured, ending: monitor.ending(), negotiated })
}

/// Where workers wait for each other.
struct Gate {
    barrier: Barrier,
    is_closed: AtomicBool,
}

impl Gate {
    /// Waits for all; false if one of them is not ready.
    fn pass(&self, is_ready: bool) -> bool {
        if !is_ready {
            self.is_closed.store(true, Ordering::Relaxed);
        }
        self.barrier.wait();
        !self.is_closed.load(Ordering::Relaxed)
    }

    /// Passes in the place of workers that there are not.
    fn refuse(&self, missing: u32) {
        self.is_closed.store(true, Ordering::Relaxed);
        thread::scope(|scope| {
            for _ in 0..missing {
                scope.spawn(|| self.barrier.wait());
            }
        });
    }
}

fn carry_out(plan: &Plan, shared: Shared<'_>, number: u32, gate: &Gate) -> Part {
    match &plan.disk {
        Disk::Unit { options, lun } => {
            // A plan has far fewer workers.
            let options = options.beside(number as u16);
            let disk = SessionDisk::one(&options, *lun, plan.block_bytes);
            through(Session::open(&disk), plan, shared, number, gate)
        }
        Disk::Units { options, luns, unit_bytes } => {
            let options = options.beside(number as u16);
            let disk = SessionDisk {
                options: &options,
                luns: luns.clone(),
                unit_bytes: *unit_bytes,
                block_bytes: plan.block_bytes,
            };
            through(Session::open(&disk), plan, shared, number, gate)
        }
        Disk::Local(volume) => through(Local::open(volume), plan, shared, number, gate),
    }
}

/// Carries out one worker's part through its endpoint, if all others have theirs.
fn through<E: Endpoint>(
    opened: Result<E, LabError>,
    plan: &Plan,
    shared: Shared<'_>,
    number: u32,
    gate: &Gate,
) -> Part {
    let monitor = shared.monitor;
    let prepared = opened.and_then(|mut endpoint| {
        let ledger = plan.ledger(number)?;
        let mut filled = Filled::Whole;
        if ledger.is_some() {
            monitor.enter(Phase::Filling);
            filled = fill(&mut endpoint, &[plan.share(number)], plan.seed, monitor)?;
        }
        Ok((endpoint, ledger, filled))
    });
    // Nobody verifies what was never written.
    let all_are_ready = gate.pass(matches!(prepared, Ok((_, _, Filled::Whole))));
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
    let Done { endpoint, recorder, log, is_abandoned } = worker.run();
    let log = endpoint.session_name().zip(log);
    if is_abandoned {
        endpoint.abandon();
    } else {
        endpoint.close();
    }
    Ok(Some(Worked { recorder, negotiated, log }))
}
