//! How busy the busiest thread was: one that has a processor to itself has no more to give, however idle the other processors are.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::param::clock_ticks_per_second;

use crate::bench::processor;
use crate::host::{ProcessorTime, Shares};

/// How often is looked: seldom enough that nobody notices.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How often is looked whether it is measured already.
const STEP: Duration = Duration::from_millis(5);
/// What is shorter tells nothing.
const TIME_MIN: Duration = Duration::from_millis(20);
/// The same where processor time is told in hundredths of a second.
const COARSE_TIME_MIN: Duration = Duration::from_millis(200);

/// How busy threads were: those of this process, and of all that it has started.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Busy {
    /// The largest share of a processor that one thread had, 0 to 1.
    pub(crate) busiest: f64,
    /// The largest share of the time in which one thread ran or waited for a processor that others had, 0 to 1. No less than
    /// `busiest`, and the same where the system does not tell who waits.
    pub(crate) loaded: f64,
    /// How many processors all of these threads together had on average.
    pub(crate) together: f64,
}

/// What was seen while something was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Watched {
    /// How busy threads were; nothing where the system does not tell, or it was too short.
    pub(crate) busy: Option<Busy>,
    /// What all processors did.
    pub(crate) shares: Shares,
    /// The share of one processor that this process had, which may be more than 1.
    pub(crate) own: f64,
    /// How long it was measured.
    pub(crate) lasted: Duration,
}

/// Does something, and tells how busy threads and processors were meanwhile, from the moment on in which it is measured until it
/// is no longer.
///
/// A thread counts that was there for half of the time at least; what began and ended in between was not what was waited for.
pub(crate) fn watched<T>(is_measured: &(dyn Fn() -> bool + Sync), work: impl FnOnce() -> T) -> (T, Watched) {
    thread::scope(|scope| {
        let (end, ended) = mpsc::channel::<()>();
        let watch = move || watch(is_measured, &ended);
        let watcher = thread::Builder::new().name("busy".into()).spawn_scoped(scope, watch);
        let done = work();
        drop(end);
        let seen = watcher.ok().and_then(|watcher| watcher.join().ok()).unwrap_or_default();
        (done, seen)
    })
}

fn watch(is_measured: &(dyn Fn() -> bool + Sync), ended: &Receiver<()>) -> Watched {
    let is_over = || ended.recv_timeout(STEP) != Err(RecvTimeoutError::Timeout);
    // What is never measured is looked at as a whole.
    let now = || (Instant::now(), ProcessorTime::now(), processor::now());
    let mut begun = now();
    let mut seen = Seen::look(Duration::ZERO);
    let mut waits = !is_measured();
    let mut waited = LOOK_INTERVAL;
    let told = |begun: &(Instant, Option<ProcessorTime>, Duration), seen: &mut Seen| {
        let (since, before, own_before) = *begun;
        let (until, after, own_after) = now();
        let own =
            own_after.saturating_sub(own_before).as_secs_f64() / (until - since).as_secs_f64().max(1e-9);
        seen.add_all(since.elapsed());
        let shares = before.zip(after).map(|(before, after)| after.since(before)).unwrap_or_default();
        let lasted = since.elapsed();
        Watched { busy: seen.busiest(lasted), shares, own, lasted }
    };
    let mut ended = None;
    while !is_over() {
        let is_measured = is_measured();
        if waits && is_measured {
            // What is measured anew is another one.
            (begun, waits, ended) = (now(), false, None);
            (seen, waited) = (Seen::look(Duration::ZERO), LOOK_INTERVAL);
        } else if !waits && !is_measured {
            (ended, waits) = (Some(told(&begun, &mut seen)), true);
        } else if !waited.is_zero() {
            waited = waited.saturating_sub(STEP);
        } else if ended.is_none() {
            seen.add_all(begun.0.elapsed());
            waited = LOOK_INTERVAL;
        }
    }
    ended.unwrap_or_else(|| told(&begun, &mut seen))
}

/// Processor time of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Time {
    ran: Duration,
    /// It could have run, and others had the processors.
    waited: Duration,
    /// The clock counts hundredths of a second, or so.
    is_coarse: bool,
}

/// Threads by their ids with their processor time: this process's but the calling one, and those of all that it has started, by
/// whatever is between them. A server may be behind a shell, and work in a process that it has begun for a client.
fn threads() -> Vec<(u32, Time)> {
    let own = fs::read_link("/proc/thread-self").ok();
    let own = own.and_then(|own| own.file_name()?.to_str()?.parse::<u32>().ok());
    let mut found = Vec::new();
    let mut processes = vec![PathBuf::from("/proc/self/task")];
    let mut seen = HashSet::new();
    while let Some(tasks) = processes.pop() {
        for entry in fs::read_dir(tasks).into_iter().flatten().flatten() {
            found.extend(time_of(&entry.path()).filter(|(id, _)| Some(*id) != own));
            // Some kernels have no such file; then only this process is told of.
            let started = fs::read_to_string(entry.path().join("children")).unwrap_or_default();
            let ids = started.split_whitespace().filter_map(|id| id.parse::<u32>().ok());
            // Who becomes another one's child meanwhile is counted once.
            processes.extend(ids.filter(|id| seen.insert(*id)).map(|id| format!("/proc/{id}/task").into()));
        }
    }
    found
}

fn time_of(task: &Path) -> Option<(u32, Time)> {
    let id = task.file_name()?.to_str()?.parse().ok()?;
    let fine = || scheduled(&fs::read_to_string(task.join("schedstat")).ok()?);
    let coarse = || {
        let ticks = ticks(&fs::read_to_string(task.join("stat")).ok()?)?;
        let ran = Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64);
        Some(Time { ran, waited: Duration::ZERO, is_coarse: true })
    };
    Some((id, fine().or_else(coarse)?))
}

/// What a thread's `schedstat` says (Documentation/scheduler/sched-stats.rst): nanoseconds on a processor, nanoseconds in wait of
/// one. Kernels that do not count have zeroes, or no such file.
fn scheduled(text: &str) -> Option<Time> {
    let mut words = text.split_whitespace().map(str::parse::<u64>);
    let (ran, waited, turns) = (words.next()?.ok()?, words.next()?.ok()?, words.next()?.ok()?);
    let nanoseconds = Duration::from_nanos;
    (turns > 0).then(|| Time { ran: nanoseconds(ran), waited: nanoseconds(waited), is_coarse: false })
}

/// User and system time of a line of `stat` (proc(5)). A name in it is in parentheses, and may have anything in it.
fn ticks(stat: &str) -> Option<u64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    let mut words = behind_name.split_whitespace().skip(11);
    let mut next = || words.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// What was seen of each thread: when first and last, with its times then.
#[derive(Debug, Default)]
struct Seen(HashMap<u32, [(Duration, Time); 2]>);

impl Seen {
    /// All threads that there are now.
    fn look(now: Duration) -> Self {
        let mut seen = Self::default();
        seen.add_all(now);
        seen
    }

    fn add_all(&mut self, now: Duration) {
        threads().into_iter().for_each(|(thread, time)| self.add(thread, now, time));
    }

    fn add(&mut self, thread: u32, now: Duration, time: Time) {
        let [_, last] = self.0.entry(thread).or_insert([(now, time); 2]);
        if time.ran < last.1.ran || time.is_coarse != last.1.is_coarse {
            // Its number was another thread's before, or it has just begun to be counted.
            self.0.insert(thread, [(now, time); 2]);
        } else {
            *last = (now, time);
        }
    }

    fn busiest(&self, whole: Duration) -> Option<Busy> {
        let is_coarse = self.0.values().any(|[_, last]| last.1.is_coarse && !last.1.ran.is_zero());
        if whole < if is_coarse { COARSE_TIME_MIN } else { TIME_MIN } {
            return None;
        }
        let ran = |[first, last]: &[(Duration, Time); 2]| last.1.ran.saturating_sub(first.1.ran);
        let shares = |both: &[(Duration, Time); 2]| {
            let [first, last] = both;
            let there = last.0.saturating_sub(first.0);
            let share = |time: Duration| (time.as_secs_f64() / there.as_secs_f64()).min(1.0);
            let waited = last.1.waited.saturating_sub(first.1.waited);
            (!there.is_zero() && there >= whole / 2).then(|| (share(ran(both)), share(ran(both) + waited)))
        };
        let larger = |one: (f64, f64), other: (f64, f64)| (one.0.max(other.0), one.1.max(other.1));
        let (busiest, loaded) = self.0.values().filter_map(shares).reduce(larger)?;
        let all: Duration = self.0.values().map(ran).sum();
        Some(Busy { busiest, loaded, together: all.as_secs_f64() / whole.as_secs_f64() })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn ticks_are_found_behind_any_name() {
        let line = "4711 (a) b (c) R 1 4711 4711 0 -1 4194560 100 0 0 0 123 45 0 0 20 0 1 0 999";
        assert_eq!(ticks(line), Some(168));
        for text in ["", "4711 (a) R 1 2", "4711 a R"] {
            assert_eq!(ticks(text), None, "{text}");
        }
    }

    fn time(ran_ms: u64, waited_ms: u64) -> Time {
        Time { ran: MS(ran_ms), waited: MS(waited_ms), is_coarse: false }
    }

    #[test]
    fn a_thread_runs_and_waits_by_the_kernels_account() {
        assert_eq!(scheduled("70000000 20000000 41\n"), Some(time(70, 20)));
        // It does not count.
        for text in ["0 0 0\n", "", "1 2", "a b c"] {
            assert_eq!(scheduled(text), None, "{text}");
        }
    }

    #[test]
    fn who_was_there_for_less_than_half_of_the_time_does_not_count() {
        let mut seen = Seen::default();
        for (thread, at_ms, ran_ms, waited_ms) in [
            (1, 0, 5000, 900),
            (1, 1000, 5700, 950),
            // It runs less, and has more to do than it gets to.
            (4, 0, 0, 0),
            (4, 1000, 500, 420),
            // Busier, and gone soon.
            (2, 0, 0, 0),
            (2, 400, 400, 0),
            // Idle, with a number that a busy one had before.
            (3, 0, 900, 0),
            (3, 100, 990, 0),
            (3, 200, 0, 0),
            (3, 1000, 10, 0),
        ] {
            seen.add(thread, MS(at_ms), time(ran_ms, waited_ms));
        }
        let busy = seen.busiest(MS(1000)).expect("shares");
        assert!((busy.busiest - 0.7).abs() < 1e-9 && (busy.loaded - 0.92).abs() < 1e-9, "{busy:?}");
        // 700, 500, 400 and 10 ms: what was there for a while only has worked as well.
        assert!((busy.together - 1.61).abs() < 1e-9, "{busy:?}");
        assert_eq!(seen.busiest(MS(10)), None, "it was too short");
        let coarse = |ran_ms| Time { is_coarse: true, ..time(ran_ms, 0) };
        seen.add(5, MS(0), coarse(10));
        seen.add(5, MS(1000), coarse(20));
        assert_eq!(seen.busiest(MS(100)), None, "it was too short for a clock of hundredths");
    }

    fn spin(time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time {
            std::hint::spin_loop();
        }
    }

    /// Waits until whoever watches has asked so often: he may begin late, and go on late.
    fn wait_until_asked(asked: &AtomicU32, times: u32) {
        let begun = Instant::now();
        while asked.load(Ordering::Relaxed) < times && begun.elapsed() < MS(60_000) {
            thread::sleep(STEP);
        }
    }

    #[test]
    fn a_thread_that_does_nothing_else_is_busy() {
        let asked = AtomicU32::new(0);
        let is_measured = || {
            asked.fetch_add(1, Ordering::Relaxed);
            true
        };
        let (had, seen) = watched(&is_measured, || {
            wait_until_asked(&asked, 1);
            let (begun, before) = (Instant::now(), clock_gettime(ClockId::ThreadCPUTime));
            let had =
                || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime) - before).expect("time goes on");
            while had() < MS(300) {
                std::hint::spin_loop();
            }
            had().as_secs_f64() / begun.elapsed().as_secs_f64()
        });
        let busy = seen.busy.expect("a share");
        // What others had of the processor is not its own.
        assert!(busy.busiest > had / 2.0 && busy.loaded >= busy.busiest, "{busy:?}");
        assert!(seen.own > had / 2.0, "{seen:?}");
        let Shares { idle, stolen, at_work, .. } = seen.shares;
        assert!((0.0..1.0).contains(&idle) && (0.0..1.0).contains(&stolen) && at_work > 0.0, "{seen:?}");
    }

    /// In a process of its own, since the other tests have threads that are busy.
    #[test]
    fn what_was_before_the_measurement_does_not_count() {
        const CHILD: &str = "LUNETTE_TEST_ALONE";
        if std::env::var_os(CHILD).is_none() {
            let name = "study::busy::tests::what_was_before_the_measurement_does_not_count";
            let program = std::env::current_exe().expect("this program");
            let mut child = std::process::Command::new(program);
            let child = child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").output();
            let child = child.expect("a process");
            return assert!(child.status.success(), "{child:?}");
        }
        let (begins, asked) = (AtomicBool::new(false), AtomicU32::new(0));
        let is_measured = || {
            let begins = begins.load(Ordering::Relaxed);
            asked.fetch_add(u32::from(begins), Ordering::Relaxed);
            begins
        };
        let ((), seen) = watched(&is_measured, || {
            let spinning = thread::spawn(|| spin(MS(300)));
            spinning.join().expect("an end");
            begins.store(true, Ordering::Relaxed);
            // Who asks again has begun.
            wait_until_asked(&asked, 2);
            thread::sleep(MS(300));
        });
        // That thread is gone, and was all that had something to do.
        assert!(seen.busy.is_some_and(|busy| busy.busiest < 0.5) && seen.own < 0.5, "{seen:?}");
    }

    #[test]
    fn what_counts_is_what_was_measured_last_and_nothing_behind_it() {
        // Measured when it is asked for the second and third time, or once more for the twentieth and the next.
        for last in [1, 19] {
            let asked_at: Mutex<Vec<Instant>> = Mutex::default();
            let asked = AtomicU32::new(0);
            let is_measured = || {
                let turn = asked.fetch_add(1, Ordering::Relaxed);
                asked_at.lock().expect("a list").push(Instant::now());
                (1..3).contains(&turn) || (last..last + 2).contains(&turn)
            };
            let ((), seen) = watched(&is_measured, || wait_until_asked(&asked, 60));
            let at = asked_at.into_inner().expect("a list");
            let last = last as usize;
            // From behind the question that finds the beginning to the one behind that which finds the end.
            assert!(seen.lasted <= at[last + 3] - at[last], "{seen:?}, {at:?}");
            assert!(seen.lasted >= at[last + 2] - at[last + 1], "{seen:?}, {at:?}");
        }
    }
}
