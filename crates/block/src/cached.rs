//! Reads that need no copy: the page cache has the data, and the socket takes its pages from there.
//!
//! The pages are not frozen. A write to the same blocks that begins before the socket has sent them may show in what
//! the initiator receives, as SAM allows for tasks that run at the same time.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};

use crate::error::{ErrorClass, classify};
use crate::volume::Volume;

/// A range of a volume that the page cache has.
#[derive(Debug)]
pub struct CachedRange {
    volume: Arc<Volume>,
    file: Arc<OwnedFd>,
    offset: u64,
}

/// Why a cached range could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The socket failed, or takes nothing for now.
    #[error("{0}")]
    Socket(#[source] io::Error),
    /// The store could not bring the data after all. The volume offers no cached ranges until it has another size.
    #[error("the store failed while its data was being sent: {0}")]
    Store(#[source] io::Error),
}

impl CachedRange {
    /// `None` where the page cache does not have all of the range, or the volume is not read through it.
    pub(crate) fn of(volume: &Arc<Volume>, offset: u64, length: u32) -> Option<Self> {
        let file = volume.store().cached_file(offset, length.into())?;
        Some(Self { volume: Arc::clone(volume), file, offset })
    }

    /// Sends the bytes from `start` to `end`, counted from the range's first, as far as the socket takes them, and answers
    /// how many it took. Both are at most the length that was asked for.
    ///
    /// # Errors
    /// [`SendError::Socket`] with the kind `WouldBlock` when the socket takes nothing for now. After any other error
    /// nobody knows how much was sent.
    pub fn send(&self, socket: impl AsFd, start: u32, end: u32) -> Result<usize, SendError> {
        let mut offset = self.offset + u64::from(start);
        let count = end.saturating_sub(start) as usize;
        let send = || retry_on_intr(|| rustix::fs::sendfile(&socket, &*self.file, Some(&mut offset), count));
        match self.volume.uncopied().watch(send) {
            Ok(0) if count > 0 => Err(self.cut()),
            Ok(sent) => Ok(sent),
            Err(errno) if is_of_socket(errno, &socket) => Err(SendError::Socket(errno.into())),
            Err(errno) => Err(self.failed(errno.into())),
        }
    }

    /// Reads the bytes from `start` on, counted from the range's first, for somebody who has to look at them before they are sent. They
    /// are within the length that was asked for.
    ///
    /// # Errors
    /// [`SendError::Store`].
    pub fn read(&self, start: u32, bytes: &mut [u8]) -> Result<(), SendError> {
        let mut filled = 0;
        while filled < bytes.len() {
            let offset = self.offset + u64::from(start) + filled as u64;
            let read = || retry_on_intr(|| rustix::io::pread(&*self.file, &mut bytes[filled..], offset));
            match self.volume.uncopied().watch(read) {
                Ok(0) => return Err(self.cut()),
                Ok(count) => filled += count,
                Err(errno) => return Err(self.failed(errno.into())),
            }
        }
        Ok(())
    }

    fn cut(&self) -> SendError {
        self.failed(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter"))
    }

    /// The next reads go the ordinary way, which can tell the initiator what is wrong; not if it is short of memory, say, when others may
    /// have more luck.
    fn failed(&self, error: io::Error) -> SendError {
        if classify(&error) != ErrorClass::Busy && self.volume.uncopied().fail() {
            let volume = self.volume.name();
            tracing::warn!(%volume, %error, "nothing is sent from the page cache any more, until the volume has another size");
        }
        SendError::Store(error)
    }
}

/// Whether it is the socket that failed, which it shows, or that takes nothing for now. File systems have many errors, and those of a
/// network file system are a socket's, too: to blame them on this one would have the initiator log in again and again.
fn is_of_socket(errno: Errno, socket: impl AsFd) -> bool {
    if matches!(errno, Errno::AGAIN | Errno::PIPE) {
        return true;
    }
    let mut sockets = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut sockets, Some(&now)).is_ok()
        && sockets[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::residency;
    use crate::{EngineKind, StoreSpec, VolumeSpec};
    use std::fs::OpenOptions;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::path::Path;

    const LENGTH: usize = 64 << 10;

    fn pattern() -> Vec<u8> {
        (0..2 * LENGTH as u32).map(|index| index.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
    }

    fn volume(path: &Path, engine: EngineKind) -> Arc<Volume> {
        let spec = VolumeSpec {
            engine,
            ..VolumeSpec::new("cached", StoreSpec::File { path: path.to_owned(), create_bytes: None })
        };
        Volume::open(&spec).unwrap()
    }

    fn sockets() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// What was just written is offered, unless the kernel cannot tell.
    fn offered(volume: &Arc<Volume>, offset: u64) -> Option<CachedRange> {
        let range = volume.cached(offset, LENGTH as u32);
        if range.is_none() {
            assert!(residency::is_refused(), "the page cache has what was just written");
            lunette_skip::record_lacking("this kernel does not tell what its page cache has");
        }
        range
    }

    #[test]
    fn what_the_page_cache_has_is_sent_from_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        std::fs::write(&path, pattern()).unwrap();
        let cached = volume(&path, EngineKind::Threads);
        assert!(cached.cached(LENGTH as u64, LENGTH as u32 + 1).is_none(), "it ends outside the volume");
        let Some(range) = offered(&cached, 512) else { return };
        let (near, mut far) = sockets();
        let (mut at, end) = (100, LENGTH as u32 - 7);
        while at < end {
            at += range.send(&near, at, end).unwrap() as u32;
        }
        drop(near);
        let mut received = Vec::new();
        far.read_to_end(&mut received).unwrap();
        assert!(received == pattern()[512 + 100..512 + LENGTH - 7]);
        cached.close().unwrap();
        assert!(cached.cached(0, 512).is_none(), "a closed volume offers nothing");
        assert!(volume(&path, EngineKind::Sync).cached(0, 512).is_none(), "this engine reads");
    }

    #[test]
    fn what_a_store_says_is_blamed_on_a_socket_only_if_that_has_failed() {
        let (near, far) = sockets();
        let of_stores = [
            Errno::IO,
            Errno::BADMSG,
            Errno::UCLEAN,
            Errno::STALE,
            Errno::NOMEM,
            Errno::TIMEDOUT,
            Errno::HOSTUNREACH,
        ];
        for errno in of_stores {
            assert!(!is_of_socket(errno, &near), "{errno}");
        }
        assert!(is_of_socket(Errno::AGAIN, &near));
        // Data that nobody has read makes a reset of it.
        rustix::io::write(&near, &[1]).unwrap();
        far.peek(&mut [0]).unwrap();
        drop(far);
        let reset = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            is_of_socket(Errno::TIMEDOUT, &near)
        });
        assert!(reset && is_of_socket(Errno::PIPE, &near));
    }

    #[test]
    fn only_what_passes_leaves_a_volume_its_cached_ranges() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        std::fs::write(&path, pattern()).unwrap();
        let volume = volume(&path, EngineKind::Threads);
        let Some(range) = offered(&volume, 0) else { return };
        assert!(matches!(range.failed(Errno::NOMEM.into()), SendError::Store(_)));
        assert!(volume.uncopied().is_allowed());
        assert!(matches!(range.failed(Errno::UCLEAN.into()), SendError::Store(_)));
        assert!(!volume.uncopied().is_allowed());
    }

    #[test]
    fn a_file_that_became_shorter_is_no_end_of_the_stream_and_nothing_is_offered_any_more() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        std::fs::write(&path, pattern()).unwrap();
        let volume = volume(&path, EngineKind::Threads);
        let Some(range) = offered(&volume, 0) else { return };
        OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let (near, _far) = sockets();
        assert_eq!(range.send(&near, 0, 8192).unwrap(), 4096, "what is there goes out");
        let error = range.send(&near, 4096, 8192).unwrap_err();
        assert!(matches!(&error, SendError::Store(_)), "{error}");
        assert!(volume.cached(0, 4096).is_none());
    }
}
