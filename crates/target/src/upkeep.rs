//! What a server does for its logical units without being asked: one thread that looks after them.
//!
//! Not here: anything a command waits for.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{error, warn};

use crate::mailbox::Mailbox;
use crate::units::ServedTarget;

/// Volumes are looked at this often. It is how late an initiator may hear of a larger disk; a look costs one system call
/// that reads memory.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The thread; dropping this ends it.
#[derive(Debug)]
pub(crate) struct Upkeep {
    stop: Arc<Mailbox<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Upkeep {
    /// Starts the thread for these targets.
    ///
    /// # Errors
    /// When the system refuses a thread or a descriptor.
    pub(crate) fn spawn(targets: Vec<Arc<ServedTarget>>) -> io::Result<Self> {
        let stop = Arc::new(Mailbox::new()?);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("upkeep".to_owned()).spawn(move || {
            while !wait(&stopped) {
                targets.iter().for_each(|target| look_at_sizes(target));
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.stop.send(());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            error!("the thread that looks after logical units panicked");
        }
    }
}

/// Waits until it is time for the next look; true when there is to be none.
fn wait(stop: &Mailbox<()>) -> bool {
    let interval = Timespec { tv_sec: LOOK_INTERVAL.as_secs() as i64, tv_nsec: 0 };
    let mut watched = [PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
    // Failing, as an interrupted wait does, only makes the look come early.
    let _ = poll(&mut watched, Some(&interval));
    !stop.take().is_empty()
}

/// Gives units the sizes that their volumes have come to have.
fn look_at_sizes(target: &ServedTarget) {
    for ((lun, unit), volume) in target.device.units().zip(&target.volumes) {
        let Some(size_bytes) = volume.look_at_size() else { continue };
        if let Err(error) = unit.resize(size_bytes / u64::from(unit.block_length_bytes())) {
            warn!(target = target.name, %lun, %error, "the volume's new size is not served");
        }
    }
}
