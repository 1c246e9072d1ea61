//! Bringing up a namespace's loopback device. Not here: the devices between the ends, which a library makes.

use std::io;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Brings up `lo` in the calling thread's namespace.
///
/// # Errors
/// The process may not.
#[expect(unsafe_code, reason = "no crate of this workspace has the call")]
pub(crate) fn bring_up() -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut name = [0; libc::IFNAMSIZ];
    name[0] = b'l' as libc::c_char;
    name[1] = b'o' as libc::c_char;
    let mut request = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: libc::IFF_UP as libc::c_short },
    };
    // SAFETY: the descriptor is open for the time of the call, and the kernel reads an `ifreq`, which lives longer.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
