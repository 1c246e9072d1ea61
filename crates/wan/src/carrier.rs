//! The thread that carries the packets of one direction.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lunette_link::{Counts, Pipe};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tun_rs::SyncDevice;

use crate::packet::IpPacket;

/// Packets that are taken from the kernel before those that are due go out.
const BATCH: usize = 64;

/// The longest lateness that is told apart, in microseconds: a minute.
const LATENESS_MAX_US: u64 = 60_000_000;

/// What a carrier has seen.
#[derive(Debug, Clone)]
pub(crate) struct Carried {
    pub(crate) counts: Counts,
    /// How long after its time each packet went out, in microseconds.
    pub(crate) lateness_us: Histogram<u64>,
}

impl Carried {
    pub(crate) fn new() -> Result<Self, hdrhistogram::CreationError> {
        Ok(Self { counts: Counts::default(), lateness_us: Histogram::new_with_max(LATENESS_MAX_US, 2)? })
    }
}

/// One direction.
pub(crate) struct Carrier {
    pub(crate) from: Arc<SyncDevice>,
    pub(crate) to: Arc<SyncDevice>,
    pub(crate) pipe: Pipe<IpPacket>,
    pub(crate) carried: Arc<Mutex<Carried>>,
    /// Readable when it is time to end.
    pub(crate) stop: OwnedFd,
    pub(crate) packet_bytes_max: usize,
    pub(crate) began: Instant,
}

impl Carrier {
    /// Carries packets until it is told to stop.
    ///
    /// # Errors
    /// A device fails.
    pub(crate) fn run(mut self) -> io::Result<()> {
        // Sleeps end when they should and not up to 50 us later.
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
        let mut scratch = vec![0; self.packet_bytes_max];
        while !self.wait()? {
            self.take_in(&mut scratch)?;
            self.let_out()?;
        }
        Ok(())
    }

    /// Waits for a packet, or for the time of one; true when it is time to end.
    fn wait(&self) -> io::Result<bool> {
        let timeout = self.pipe.next_at().map(|at| {
            let left = at.saturating_sub(self.began.elapsed());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        let mut descriptors = [
            PollFd::new(&*self.from, PollFlags::IN),
            PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
        ];
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(_) => Ok(!descriptors[1].revents().is_empty()),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn take_in(&mut self, scratch: &mut [u8]) -> io::Result<()> {
        for _ in 0..BATCH {
            match self.from.recv(scratch) {
                Ok(length) => {
                    let packet = IpPacket(scratch[..length].to_vec());
                    self.pipe.offer(self.began.elapsed(), packet);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn let_out(&mut self) -> io::Result<()> {
        let mut lateness = [0u64; BATCH];
        let mut count = 0;
        while count < BATCH {
            let now = self.began.elapsed();
            let Some((due, packet)) = self.pipe.arrive(now) else { break };
            lateness[count] = micros(now.saturating_sub(due));
            count += 1;
            match self.to.send(&packet.0) {
                Ok(_) => {}
                // A full receive queue drops, as that of any network card.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // What the kernel cannot take for a packet, after a bit of its header was turned.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL)) => {}
                Err(error) => return Err(error),
            }
        }
        let mut carried = self.carried.lock().unwrap_or_else(PoisonError::into_inner);
        carried.counts = self.pipe.counts();
        for value in &lateness[..count] {
            carried.lateness_us.saturating_record(*value);
        }
        Ok(())
    }
}

fn micros(time: Duration) -> u64 {
    time.as_micros().try_into().unwrap_or(u64::MAX)
}
