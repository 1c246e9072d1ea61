//! What the kernel has counted of a thread.

#![allow(unsafe_code)]

/// How often the scheduler has had the calling thread give way so far, to others that could run (involuntary context switches,
/// getrusage(2)); zero where the kernel does not tell.
#[must_use]
pub fn times_given_way() -> i64 {
    of_this_thread().map_or(0, |usage| usage.ru_nivcsw)
}

/// Of the calling thread; `None` where the kernel does not tell.
pub(crate) fn of_this_thread() -> Option<libc::rusage> {
    // SAFETY: a structure of numbers, for which zeroes are good.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `rusage`, which outlives the call.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    (result == 0).then_some(usage)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::*;

    #[test]
    fn a_program_on_the_same_processor_is_given_way_to() {
        let allowed = sched_getaffinity(None).unwrap();
        let mut one = CpuSet::new();
        one.set((0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sched_setaffinity(None, &one).unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let gives_way = scope.spawn(|| {
                sched_setaffinity(None, &one).unwrap();
                let (before, began) = (times_given_way(), Instant::now());
                while times_given_way() < before + 3 && began.elapsed() < Duration::from_secs(20) {
                    std::hint::spin_loop();
                }
                is_over.store(true, Ordering::Relaxed);
                times_given_way() - before
            });
            assert!(gives_way.join().unwrap() >= 3);
        });
    }

    #[test]
    fn who_sleeps_gives_way_to_nobody() {
        // Others may want the processor while this test is awake, but hardly each time.
        let before = times_given_way();
        (0..50).for_each(|_| std::thread::sleep(Duration::from_micros(50)));
        assert!(times_given_way() - before < 50);
    }
}
