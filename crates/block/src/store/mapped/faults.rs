//! Whether a thread has waited for a page.

#![allow(unsafe_code)]

use std::cell::Cell;

/// Whether this thread has had to wait for pages since it last asked: for those of a mapping, but also for others that were thrown out, which
/// says as much of the memory that there is. The first time nothing is known.
pub(super) fn have_waited() -> bool {
    thread_local! {
        static BEFORE: Cell<Option<i64>> = const { Cell::new(None) };
    }
    let now = major_faults();
    BEFORE.replace(Some(now)).is_some_and(|before| now > before)
}

fn major_faults() -> i64 {
    // SAFETY: a structure of numbers, for which zeroes are good.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `rusage`, which outlives the call.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    if result == 0 { usage.ru_majflt } else { 0 }
}
