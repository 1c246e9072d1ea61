//! What the kernel has counted of a thread.

#![allow(unsafe_code)]

/// Of the calling thread; `None` where the kernel does not tell.
pub(crate) fn of_this_thread() -> Option<libc::rusage> {
    // SAFETY: a structure of numbers, for which zeroes are good.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `rusage`, which outlives the call.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    (result == 0).then_some(usage)
}
