//! Whether the page cache has a range, and whether it alone has it: `cachestat(2)`, Linux 6.5.
//!
//! Not here: reading what is there. The answer may be out of date when it comes; who acts on it then waits for a device,
//! as any reader does.

#![allow(unsafe_code)]

use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::LazyLock;

/// The number of the system call, the same on all architectures. The C library has no function for it.
const SYS_CACHESTAT: libc::c_long = 451;

/// Page size below which no kernel goes, so that a count of pages can be compared without asking for it.
pub(super) const PAGE_BYTES: u64 = 4096;

/// `struct cachestat_range` of the kernel's interface.
#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

/// `struct cachestat` of the kernel's interface; all numbers are pages.
#[repr(C)]
#[derive(Default)]
struct Statistics {
    cached: u64,
    dirty: u64,
    under_writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Whether there is such a call, and no container's filter refuses it. It is asked about memory of this process: about a file that somebody
/// else owns and that is not open for writing, newer kernels refuse to tell, which says nothing of other files.
static CAN_BE_ASKED: LazyLock<bool> = LazyLock::new(|| {
    let own = rustix::fs::memfd_create("lunette", rustix::fs::MemfdFlags::CLOEXEC);
    own.is_ok_and(|own| ask(own.as_fd(), 0, PAGE_BYTES).is_some())
});

/// Has the kernel refuse the call to this thread from now on, as one does that does not know it; false if it does not do that.
#[cfg(test)]
pub(super) fn forbid() -> bool {
    let of = |code: u32, skip: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: skip, k };
    let errno = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    let mut program = [
        // The first word of `seccomp_data` is the number of the call.
        of(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        of(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, SYS_CACHESTAT as u32),
        of(libc::BPF_RET | libc::BPF_K, 0, errno),
        of(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel reads a program that outlives the calls. They change this thread alone.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    }
}

/// Whether the kernel cannot be asked.
#[cfg(test)]
pub(crate) fn is_refused() -> bool {
    !*CAN_BE_ASKED
}

/// Whether the page cache has every page of the range. `None` where the kernel cannot tell.
pub(super) fn is_cached(fd: BorrowedFd<'_>, offset: u64, length: u64) -> Option<bool> {
    // Larger pages make the count smaller, which only says "no" too often.
    Some(statistics(fd, offset, length)?.cached >= pages(offset, length))
}

/// How much of a range the page cache has that is not stable in the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pending {
    Nothing,
    Some,
    Everything,
}

/// How much of a range is still to be written back, or is being written back. `None` where the kernel cannot tell.
pub(super) fn pending(fd: BorrowedFd<'_>, offset: u64, length: u64) -> Option<Pending> {
    let Statistics { dirty, under_writeback, .. } = statistics(fd, offset, length)?;
    // One page may be both.
    Some(match dirty.max(under_writeback) {
        0 => Pending::Nothing,
        count if count >= pages(offset, length) => Pending::Everything,
        _ => Pending::Some,
    })
}

/// The pages that a range touches.
fn pages(offset: u64, length: u64) -> u64 {
    (offset + length).div_ceil(PAGE_BYTES) - offset / PAGE_BYTES
}

/// How many bytes of a file's beginning, of this length, the page cache has, in whole pages. `None` where the kernel cannot tell: before
/// Linux 6.5, or where a container's filter refuses the call. What file systems keep in caches of their own is not among it.
#[must_use]
pub fn cached_bytes(fd: BorrowedFd<'_>, length_bytes: u64) -> Option<u64> {
    Some(statistics(fd, 0, length_bytes)?.cached * page_bytes() as u64)
}

/// The page size of this machine.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: it takes a number and answers one.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(PAGE_BYTES as usize)
}

fn statistics(fd: BorrowedFd<'_>, offset: u64, length: u64) -> Option<Statistics> {
    if *CAN_BE_ASKED { ask(fd, offset, length) } else { None }
}

fn ask(fd: BorrowedFd<'_>, offset: u64, length: u64) -> Option<Statistics> {
    let range = Range { offset, length };
    let mut statistics = Statistics::default();
    // SAFETY: the descriptor is open for the time of the call, and the kernel reads one `cachestat_range` and writes
    // one `cachestat`, which the two structures are; both outlive the call.
    let result = unsafe {
        libc::syscall(SYS_CACHESTAT, fd.as_raw_fd(), &raw const range, &raw mut statistics, 0 as libc::c_uint)
    };
    (result == 0).then_some(statistics)
}

const _: () = assert!(mem::size_of::<Statistics>() == 40 && mem::size_of::<Range>() == 16);

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn what_was_written_is_cached_and_a_hole_is_not() {
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all(&[1; 64 << 10]).unwrap();
        let is_written_cached = is_cached(file.as_fd(), 0, 64 << 10);
        if is_refused() {
            return lunette_skip::record_lacking(
                "this kernel cannot tell what its page cache has (Linux 6.5 can)",
            );
        }
        assert_eq!(is_written_cached, Some(true));
        let cached = cached_bytes(file.as_fd(), 1 << 20);
        assert!(cached.is_some_and(|bytes| (64 << 10..1 << 20).contains(&bytes)), "{cached:?}");
        assert_eq!(is_cached(file.as_fd(), 512 << 10, 64 << 10), Some(false), "nobody has read the hole");
        assert_eq!(is_cached(file.as_fd(), 0, 1 << 20), Some(false), "part of it is a hole");
    }

    /// Newer kernels do not tell whoever could not write a file what is cached of it.
    #[test]
    fn a_file_of_which_nothing_is_told_leaves_the_others_alone() {
        if !rustix::process::geteuid().is_root() || is_refused() {
            return lunette_skip::record_lacking(
                "only root can be somebody else, and Linux before 6.5 tells nothing",
            );
        }
        let mut theirs = tempfile::NamedTempFile::new().unwrap();
        theirs.write_all(&[1; 8192]).unwrap();
        let theirs = std::fs::File::open(theirs.path()).unwrap();
        std::thread::spawn(move || {
            // SAFETY: it takes a number, and changes this thread alone, which ends below.
            unsafe { libc::setfsuid(65_534) };
            let told = cached_bytes(theirs.as_fd(), 8192);
            assert!(told.is_none_or(|bytes| bytes == 8192), "{told:?}");
            let mut own = std::fs::File::from(
                rustix::fs::memfd_create("own", rustix::fs::MemfdFlags::CLOEXEC).unwrap(),
            );
            own.write_all(&[1; 8192]).unwrap();
            assert_eq!(cached_bytes(own.as_fd(), 8192), Some(8192));
        })
        .join()
        .unwrap();
    }
}
