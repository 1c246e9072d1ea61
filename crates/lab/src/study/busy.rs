//! How busy the busiest thread was: one that has a processor to itself has no more to give, however idle the other processors are.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::param::clock_ticks_per_second;

/// How often is looked: seldom enough that nobody notices.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// What is shorter tells nothing: processor time is told in hundredths of a second.
const TIME_MIN: Duration = Duration::from_millis(200);

/// Does something, and tells the largest share of a processor that one thread had meanwhile, 0 to 1: of this process and of those that it
/// and they have started. Nothing where the system does not tell, or it was too short.
///
/// A thread counts that was there for half of the time at least; what began and ended in between was not what was waited for.
pub(crate) fn watched<T>(work: impl FnOnce() -> T) -> (T, Option<f64>) {
    thread::scope(|scope| {
        let (end, ended) = mpsc::channel::<()>();
        let watcher = thread::Builder::new().name("busy".into()).spawn_scoped(scope, move || watch(&ended));
        let done = work();
        drop(end);
        let busiest = watcher.ok().and_then(|watcher| watcher.join().ok()).flatten();
        (done, busiest)
    })
}

fn watch(ended: &Receiver<()>) -> Option<f64> {
    let begun = Instant::now();
    let mut seen = Seen::default();
    loop {
        for (thread, ticks) in threads() {
            seen.add(thread, begun.elapsed(), ticks);
        }
        if ended.recv_timeout(LOOK_INTERVAL) != Err(RecvTimeoutError::Timeout) {
            break;
        }
    }
    for (thread, ticks) in threads() {
        seen.add(thread, begun.elapsed(), ticks);
    }
    seen.busiest(begun.elapsed(), clock_ticks_per_second() as f64)
}

/// Threads by their ids, and the processor time of each in the kernel's ticks: this process's, and those of all that it has started, by
/// whatever is between them. A server may be behind a shell, and work in a process that it has begun for a client.
fn threads() -> Vec<(u32, u64)> {
    let mut found = Vec::new();
    let mut processes = vec![PathBuf::from("/proc/self/task")];
    let mut seen = HashSet::new();
    while let Some(tasks) = processes.pop() {
        for entry in fs::read_dir(tasks).into_iter().flatten().flatten() {
            found.extend(time_of(&entry.path()));
            // Some kernels have no such file; then only this process is told of.
            let started = fs::read_to_string(entry.path().join("children")).unwrap_or_default();
            let ids = started.split_whitespace().filter_map(|id| id.parse::<u32>().ok());
            // Who becomes another one's child meanwhile is counted once.
            processes.extend(ids.filter(|id| seen.insert(*id)).map(|id| format!("/proc/{id}/task").into()));
        }
    }
    found
}

fn time_of(task: &Path) -> Option<(u32, u64)> {
    let id = task.file_name()?.to_str()?.parse().ok()?;
    Some((id, ticks(&fs::read_to_string(task.join("stat")).ok()?)?))
}

/// User and system time of a line of `stat` (proc(5)). A name in it is in parentheses, and may have anything in it.
fn ticks(stat: &str) -> Option<u64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    let mut words = behind_name.split_whitespace().skip(11);
    let mut next = || words.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// What was seen of each thread: when first and last, with its ticks then.
#[derive(Debug, Default)]
struct Seen(HashMap<u32, [(Duration, u64); 2]>);

impl Seen {
    fn add(&mut self, thread: u32, now: Duration, ticks: u64) {
        let [_, last] = self.0.entry(thread).or_insert([(now, ticks); 2]);
        if ticks < last.1 {
            // Its number was another thread's before.
            self.0.insert(thread, [(now, ticks); 2]);
        } else {
            *last = (now, ticks);
        }
    }

    fn busiest(&self, whole: Duration, ticks_per_s: f64) -> Option<f64> {
        if whole < TIME_MIN {
            return None;
        }
        let share = |[first, last]: &[(Duration, u64); 2]| {
            let there = last.0.saturating_sub(first.0);
            let busy_s = (last.1 - first.1) as f64 / ticks_per_s;
            (there >= whole / 2).then(|| (busy_s / there.as_secs_f64()).min(1.0))
        };
        self.0.values().filter_map(share).reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn who_was_there_for_less_than_half_of_the_time_does_not_count() {
        let mut seen = Seen::default();
        for (thread, at_ms, ticks) in [
            (1, 0, 500),
            (1, 1000, 570),
            // Busier, and gone soon.
            (2, 0, 0),
            (2, 400, 40),
            // Idle, with a number that a busy one had before.
            (3, 0, 90),
            (3, 100, 99),
            (3, 200, 0),
            (3, 1000, 1),
        ] {
            seen.add(thread, MS(at_ms), ticks);
        }
        let busiest = seen.busiest(MS(1000), 100.0).expect("a share");
        assert!((busiest - 0.7).abs() < 1e-9, "{busiest}");
        assert_eq!(seen.busiest(MS(100), 100.0), None, "it was too short");
    }

    #[test]
    fn a_thread_that_does_nothing_else_is_busy() {
        let (done, busiest) = watched(|| {
            let begun = Instant::now();
            let mut turns = 0_u64;
            while begun.elapsed() < MS(400) {
                turns += 1;
            }
            turns > 0
        });
        // Others may have had the processor, but not all the time.
        assert!(done && busiest.is_some_and(|share| share > 0.05), "{busiest:?}");
    }
}
