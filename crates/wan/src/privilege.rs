//! The privileges that a network needs, by a user namespace where the caller has none.

use std::fs;

use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, unshare_unsafe};

use crate::error::WanError;

/// Sees to it that this process may make namespaces and devices. A process without CAP_NET_ADMIN and CAP_SYS_ADMIN moves
/// into a user namespace of its own, in which it stays who it is and has them; commands that it starts do not get them.
///
/// # Errors
/// The process has more than one thread, or the system refuses user namespaces.
pub fn acquire_privileges() -> Result<(), WanError> {
    let needed = CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN;
    let has_all = capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
    if has_all {
        return Ok(());
    }
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    move_into_user_namespace()?;
    // Without this the kernel lets nobody write a map of groups.
    fs::write("/proc/self/setgroups", "deny").map_err(WanError::of("writing /proc/self/setgroups"))?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))
        .map_err(WanError::of("writing /proc/self/uid_map"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
        .map_err(WanError::of("writing /proc/self/gid_map"))
}

#[expect(unsafe_code, reason = "rustix cannot know that the flag has nothing to do with file descriptors")]
fn move_into_user_namespace() -> Result<(), WanError> {
    // SAFETY: what makes the call unsafe is a table of descriptors that threads stop sharing; NEWUSER leaves it alone.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }
        .map_err(WanError::of("this user has no CAP_NET_ADMIN, and the system refuses a user namespace"))
}
