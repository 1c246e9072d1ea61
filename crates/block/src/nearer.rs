//! Memory that is about to be read or written, brought nearer to the processor while it does something else.
//!
//! Who reads a disk here and there finds each block in memory, and its page's address in tables that are in memory, too: some 200
//! nanoseconds, half of what a short command costs otherwise (docs/decisions/0041).

#![allow(unsafe_code)]

/// What the processor moves between memory and its caches, in bytes.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// How many lines are asked for. The processor goes on by itself from there; and it keeps account of some ten at a time.
#[cfg(target_arch = "x86_64")]
const LINES: usize = 8;

/// Asks for the first of so many bytes. They may be anywhere, or nowhere.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn bring(start: *const u8, length_bytes: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    for line in 0..length_bytes.div_ceil(LINE_BYTES).min(LINES) {
        // SAFETY: it reads nothing and cannot fail, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line * LINE_BYTES).cast()) };
    }
}

/// There is nothing for it that stable Rust offers.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn bring(_start: *const u8, _length_bytes: usize) {}
