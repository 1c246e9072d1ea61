//! Long buffers come from the heap of who reads, and stay there (docs/decisions/0051).

#![allow(unsafe_code)]

/// The longest piece that comes from the heap: the most that glibc takes for it where addresses have 64 bits.
#[cfg(target_env = "gnu")]
const PIECE_BYTES_MAX: i32 = 32 << 20;

/// What is free at the heap's end and stays there.
#[cfg(target_env = "gnu")]
const FREE_BYTES_MAX: i32 = 64 << 20;

/// Has long buffers of this process come from the heap, each time anew, instead of mappings of their own.
///
/// Where the C library refuses, buffers are as good, and slower.
#[cfg(target_env = "gnu")]
pub(crate) fn keep_long_buffers() {
    for (option, bytes) in
        [(libc::M_MMAP_THRESHOLD, PIECE_BYTES_MAX), (libc::M_TRIM_THRESHOLD, FREE_BYTES_MAX)]
    {
        // SAFETY: it sets a number of the allocator's, under its own lock.
        let _ = unsafe { libc::mallopt(option, bytes) };
    }
}

/// Other C libraries have no such limits.
#[cfg(not(target_env = "gnu"))]
pub(crate) const fn keep_long_buffers() {}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// Whether a piece lies where the C library puts those that have a mapping of their own: 16 bytes behind a page.
    fn is_behind_a_page(bytes: &[u8]) -> bool {
        bytes.as_ptr().addr() % 4096 == 16
    }

    #[test]
    fn long_buffers_do_not_all_lie_just_behind_a_page() {
        keep_long_buffers();
        let buffers: Vec<Vec<u8>> = (0..8).map(|_| vec![0; 512 << 10]).collect();
        let behind = buffers.iter().filter(|buffer| is_behind_a_page(buffer)).count();
        assert!(behind <= 1, "{behind} of {}", buffers.len());
    }
}
