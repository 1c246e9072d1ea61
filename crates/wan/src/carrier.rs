//! The thread that carries the packets of one direction.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lunette_link::{Counts, Pipe, Shape};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::device::{Device, Intake, Outlet, Received, Refused};
use crate::packet::IpPacket;
use crate::waking::{SLEEP_MAX, Waking};

/// Packets that are taken from the kernel before those that are due go out, and the other way round; a few more may come at once.
const BATCH: usize = 64;

/// The longest lateness that is told apart, in microseconds: a minute.
const LATENESS_MAX_US: u64 = 60_000_000;

/// What a carrier has seen.
#[derive(Debug, Clone)]
pub(crate) struct Carried {
    /// What the link has done.
    counts: Counts,
    /// What of it the device at the other end has refused.
    pub(crate) refused: Refused,
    /// How often the device has handed over what is no packet.
    pub(crate) unreadable: u64,
    /// How long after its time each packet went out, in microseconds.
    pub(crate) lateness_us: Histogram<u64>,
    /// How long each packet waited at most until it was taken in, in microseconds.
    pub(crate) intake_lateness_us: Histogram<u64>,
}

impl Carried {
    pub(crate) fn new() -> Result<Self, hdrhistogram::CreationError> {
        let lateness_us = Histogram::new_with_max(LATENESS_MAX_US, 2)?;
        Ok(Self {
            counts: Counts::default(),
            refused: Refused::default(),
            unreadable: 0,
            intake_lateness_us: lateness_us.clone(),
            lateness_us,
        })
    }

    /// What became of the packets. What was refused has not arrived.
    pub(crate) fn counts(&self) -> Counts {
        let Counts { arrived, arrived_bytes, .. } = self.counts;
        let Refused { packets, bytes } = self.refused;
        Counts {
            arrived: arrived.saturating_sub(packets),
            arrived_bytes: arrived_bytes.saturating_sub(bytes),
            ..self.counts
        }
    }
}

/// Another link for a carrier, until it has taken it.
#[derive(Debug, Default)]
pub(crate) struct ReshapeOrder {
    pub(crate) shape: Mutex<Option<Shape>>,
    pub(crate) taken: Condvar,
}

/// One direction.
pub(crate) struct Carrier {
    pub(crate) from: Arc<Device>,
    pub(crate) to: Arc<Device>,
    pub(crate) pipe: Pipe<IpPacket>,
    pub(crate) carried: Arc<Mutex<Carried>>,
    /// Readable when there is an order, or when it is time to end.
    pub(crate) wake: OwnedFd,
    pub(crate) order: Arc<ReshapeOrder>,
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
        let (mut intake, mut outlet) = (Intake::new(), Outlet::default());
        let mut due = Vec::with_capacity(BATCH);
        let mut waking = Waking::new();
        while let Some(overslept) = self.wait()? {
            let taken = self.take_in(&mut intake)?;
            self.let_out(&mut outlet, &mut due)?;
            if let Some((packets, late)) = waking.take(taken as u64, overslept, self.began.elapsed()) {
                let mut carried = self.carried.lock().unwrap_or_else(PoisonError::into_inner);
                carried.intake_lateness_us.saturating_record_n(micros(late), packets);
            }
        }
        Ok(())
    }

    /// Waits for a packet, or for the time of one, and says how much longer that took than it should at most; `None` when it is
    /// time to end.
    fn wait(&mut self) -> io::Result<Option<Duration>> {
        let asked_at = self.began.elapsed();
        let left = self.pipe.next_at().map_or(SLEEP_MAX, |at| at.saturating_sub(asked_at).min(SLEEP_MAX));
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut descriptors = [
            PollFd::new(&*self.from, PollFlags::IN),
            PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
        ];
        let goes_on = match poll(&mut descriptors, Some(&timeout)) {
            Ok(_) if descriptors[1].revents().is_empty() => true,
            Ok(_) => self.heed()?,
            Err(Errno::INTR) => true,
            Err(error) => return Err(error.into()),
        };
        Ok(goes_on.then(|| self.began.elapsed().saturating_sub(asked_at + left)))
    }

    /// What the other end of the pipe wants; false if it is gone.
    fn heed(&mut self) -> io::Result<bool> {
        if rustix::io::read(&self.wake, &mut [0; 16])? == 0 {
            return Ok(false);
        }
        let mut shape = self.order.shape.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shape) = shape.take() {
            self.pipe.reshape(self.began.elapsed(), shape);
            self.order.taken.notify_all();
        }
        Ok(true)
    }

    /// Takes in what there is, and says how many packets that were.
    fn take_in(&mut self, intake: &mut Intake) -> io::Result<usize> {
        let mut count = 0;
        while count < BATCH {
            let now = self.began.elapsed();
            let pipe = &mut self.pipe;
            match self.from.receive(intake, |packet| pipe.offer(now, packet))? {
                Received::Nothing => break,
                Received::Packets(more) => count += more,
                Received::Unreadable => {
                    self.carried.lock().unwrap_or_else(PoisonError::into_inner).unreadable += 1;
                    count += 1;
                }
            }
        }
        Ok(count)
    }

    fn let_out(&mut self, outlet: &mut Outlet, due: &mut Vec<IpPacket>) -> io::Result<()> {
        let mut lateness = [0u64; BATCH];
        let now = self.began.elapsed();
        while due.len() < BATCH {
            let Some((at, packet)) = self.pipe.arrive(now) else { break };
            lateness[due.len()] = micros(now.saturating_sub(at));
            due.push(packet);
        }
        let count = due.len();
        // What this link puts out of order must not be put in order again.
        let may_join = self.pipe.shape().reorder.share.get() == 0.0;
        let refused = self.to.send(outlet, due.drain(..), may_join)?;
        let mut carried = self.carried.lock().unwrap_or_else(PoisonError::into_inner);
        carried.counts = self.pipe.counts();
        carried.refused += refused;
        for value in &lateness[..count] {
            carried.lateness_us.saturating_record(*value);
        }
        Ok(())
    }
}

fn micros(time: Duration) -> u64 {
    time.as_micros().try_into().unwrap_or(u64::MAX)
}
