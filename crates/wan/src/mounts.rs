//! A thread's own view of what is mounted: what is mounted there nobody else sees, and it goes with the last who does.

use std::io;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Where programs of the system keep their sockets and process numbers.
const RUNTIME: &str = "/run";

/// Moves the calling thread into a mount namespace of its own, with an empty `/run`, so that programs that it starts find none of
/// this machine's and leave nothing in theirs. Threads and processes that it starts are there, too; with the last of them everything goes
/// that was mounted there, however they ended.
///
/// # Errors
/// The process may not mount anything: it needs CAP_SYS_ADMIN.
pub fn isolate_mounts() -> io::Result<()> {
    unshare_mounts()?;
    // Else what is mounted here would be mounted for everybody.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount("lunette", RUNTIME, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, None)?;
    Ok(())
}

#[expect(unsafe_code, reason = "rustix cannot know that the flag has nothing to do with file descriptors")]
fn unshare_mounts() -> rustix::io::Result<()> {
    // SAFETY: what makes the call unsafe is a table of descriptors that threads stop sharing; NEWNS leaves it alone.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::thread;

    /// Needs no more than the networks' tests: a process with a user namespace of its own may mount in it.
    #[test]
    fn what_is_mounted_is_seen_by_this_thread_and_its_children_alone() {
        let made = thread::spawn(|| {
            isolate_mounts()?;
            fs::write("/run/lunette-mounts-test", "here")?;
            let child = thread::spawn(|| fs::read_to_string("/run/lunette-mounts-test"));
            child.join().expect("a thread")
        });
        match made.join().expect("a thread") {
            Ok(text) => assert_eq!(text, "here"),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return lunette_skip::record_lacking("the privilege to mount");
            }
            Err(error) => panic!("{error}"),
        }
        assert!(!fs::exists("/run/lunette-mounts-test").expect("an answer"));
    }
}
