//! The thread that carries the packets of one direction.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lunette_link::{Counts, Packet, Pipe, Shape};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::device::{Device, Intake, Outlet, Received, Refused};
use crate::direction::Statistics;
use crate::error::WanError;
use crate::pace::Pace;
use crate::packet::IpPacket;
use crate::waking::{Lateness, SLEEP_MAX, Waking};

/// Packets that are taken from the kernel before those that are due go out, and the other way round; a few more may come at once.
const BATCH: usize = 64;

/// The longest lateness that is told apart, in microseconds: a minute.
const LATENESS_MAX_US: u64 = 60_000_000;

/// What a carrier has seen.
#[derive(Debug, Clone)]
pub(crate) struct Carried {
    /// What the link has done.
    pub(crate) counts: Counts,
    /// What of it the device at the other end has refused.
    pub(crate) refused: Refused,
    /// How often the device has handed over what is no packet.
    pub(crate) unreadable: u64,
    /// How long after its time each packet went out, in microseconds.
    pub(crate) lateness_us: Histogram<u64>,
    /// How long packets waited until they were taken in, in microseconds: each the mean of some milliseconds.
    pub(crate) intake_lateness_us: Histogram<u64>,
    /// Packets that took this thread longer than the link's transmitter.
    pub(crate) outpaced: u64,
}

impl Carried {
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn new() -> Result<Self, WanError> {
        let lateness_us = Histogram::new_with_max(LATENESS_MAX_US, 2).map_err(io::Error::other);
        let lateness_us = lateness_us.map_err(WanError::of("a histogram"))?;
        Ok(Self {
            counts: Counts::default(),
            refused: Refused::default(),
            unreadable: 0,
            intake_lateness_us: lateness_us.clone(),
            lateness_us,
            outpaced: 0,
        })
    }

    /// All of it; `dropped` is what the kernel did not hand over.
    pub(crate) fn statistics(&self, dropped: u64) -> Statistics {
        let quantile = |share| Duration::from_micros(self.lateness_us.value_at_quantile(share));
        let intake = |share| Duration::from_micros(self.intake_lateness_us.value_at_quantile(share));
        Statistics {
            counts: self.counts(),
            lateness_median: quantile(0.5),
            lateness_p99: quantile(0.99),
            lateness_max: Duration::from_micros(self.lateness_us.max()),
            intake_lateness_median: intake(0.5),
            intake_lateness_p99: intake(0.99),
            intake_lateness_max: Duration::from_micros(self.intake_lateness_us.max()),
            overrun: dropped + self.refused.packets + self.unreadable,
            refused: self.refused.packets,
            outpaced: self.outpaced,
        }
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
    /// Until then segments go out each by itself: what a link that put some out of order has left on the wire.
    pub(crate) apart_until: Duration,
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
        let (mut waking, mut pace) = (Waking::new(), Pace::default());
        while let Some(Woken { there_is_more, overslept, at }) = self.wait()? {
            let mut turn = Turn::default();
            if there_is_more {
                self.take_in(&mut intake, &mut turn)?;
            }
            self.let_out(&mut outlet, &mut due, &mut turn)?;
            let now = self.began.elapsed();
            let rate = self.pipe.shape().rate;
            turn.outpaced = pace.take([at, now], turn.let_out, turn.let_out_bytes, rate);
            let late = waking.take(turn.taken, overslept, now);
            self.tell(&turn, late);
        }
        Ok(())
    }

    /// Waits for a packet, or for the time of one; `None` when it is time to end.
    fn wait(&mut self) -> io::Result<Option<Woken>> {
        let asked_at = self.began.elapsed();
        let left = self.pipe.next_at().map_or(SLEEP_MAX, |at| at.saturating_sub(asked_at).min(SLEEP_MAX));
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut descriptors = [
            PollFd::new(&*self.from, PollFlags::IN),
            PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
        ];
        match poll(&mut descriptors, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [there_is_more, is_called] = descriptors.map(|descriptor| !descriptor.revents().is_empty());
        let goes_on = !is_called || self.heed()?;
        let at = self.began.elapsed();
        let overslept = at.saturating_sub(asked_at + left);
        Ok(goes_on.then_some(Woken { there_is_more, overslept, at }))
    }

    /// What the other end of the pipe wants; false if it is gone.
    fn heed(&mut self) -> io::Result<bool> {
        if rustix::io::read(&self.wake, &mut [0; 16])? == 0 {
            return Ok(false);
        }
        let mut shape = self.order.shape.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shape) = shape.take() {
            if self.pipe.shape().reorder.share.get() > 0.0 {
                self.apart_until = self.pipe.last_at().unwrap_or_default();
            }
            self.pipe.reshape(self.began.elapsed(), shape);
            self.order.taken.notify_all();
        }
        Ok(true)
    }

    /// Takes in what there is.
    fn take_in(&mut self, intake: &mut Intake, turn: &mut Turn) -> io::Result<()> {
        while turn.taken < BATCH as u64 {
            let now = self.began.elapsed();
            let pipe = &mut self.pipe;
            match self.from.receive(intake, |packet| pipe.offer(now, packet))? {
                Received::Nothing => break,
                Received::Packets(more) => turn.taken += more as u64,
                Received::Unreadable => {
                    turn.unreadable += 1;
                    turn.taken += 1;
                }
            }
        }
        Ok(())
    }

    /// Lets out what is due.
    fn let_out(&mut self, outlet: &mut Outlet, due: &mut Vec<IpPacket>, turn: &mut Turn) -> io::Result<()> {
        let now = self.began.elapsed();
        // What this link puts out of order must not be put in order again.
        let mut may_join = self.pipe.shape().reorder.share.get() == 0.0;
        while turn.let_out < BATCH {
            let Some((at, packet)) = self.pipe.arrive(now) else { break };
            may_join &= at > self.apart_until;
            turn.lateness_us[turn.let_out] = micros(now.saturating_sub(at));
            turn.let_out += 1;
            turn.let_out_bytes += packet.length() + usize::from(self.pipe.shape().overhead_bytes);
            due.push(packet);
        }
        if turn.let_out == 0 {
            return Ok(());
        }
        turn.refused = self.to.send(outlet, due.drain(..), may_join)?;
        let took_us = micros(self.began.elapsed().saturating_sub(now));
        wait_for_each_other(&mut turn.lateness_us[..turn.let_out], took_us);
        Ok(())
    }

    /// Has others see what was done.
    fn tell(&self, turn: &Turn, late: Option<Lateness>) {
        if turn.taken == 0 && turn.let_out == 0 && late.is_none() {
            return;
        }
        let mut carried = self.carried.lock().unwrap_or_else(PoisonError::into_inner);
        carried.counts = self.pipe.counts();
        carried.refused += turn.refused;
        carried.unreadable += turn.unreadable;
        carried.outpaced += turn.outpaced;
        for late_us in &turn.lateness_us[..turn.let_out] {
            carried.lateness_us.saturating_record(*late_us);
        }
        if let Some((packets, late)) = late {
            carried.intake_lateness_us.saturating_record_n(micros(late), packets);
        }
    }
}

/// What ended a wait.
struct Woken {
    /// The device has something.
    there_is_more: bool,
    /// How much longer the wait was than it should be at most.
    overslept: Duration,
    /// When it ended.
    at: Duration,
}

/// What was done between two waits.
struct Turn {
    /// Packets that were taken in.
    taken: u64,
    /// How many of them are none.
    unreadable: u64,
    /// Packets that were let out.
    let_out: usize,
    /// What they had on the line.
    let_out_bytes: usize,
    /// Packets, of this turn and of some before it, that took longer than on the link.
    outpaced: u64,
    refused: Refused,
    /// How long after its time each went out.
    lateness_us: [u64; BATCH],
}

impl Default for Turn {
    fn default() -> Self {
        Self {
            taken: 0,
            unreadable: 0,
            let_out: 0,
            let_out_bytes: 0,
            outpaced: 0,
            refused: Refused::default(),
            lateness_us: [0; BATCH],
        }
    }
}

/// Packets that were handed over together in so much time went out one after the other: the kernel receives each before it takes the next.
fn wait_for_each_other(lateness_us: &mut [u64], took_us: u64) {
    let count = lateness_us.len() as u64;
    for (before, late_us) in (0..).zip(lateness_us) {
        *late_us += took_us * before / count;
    }
}

pub(crate) fn micros(time: Duration) -> u64 {
    time.as_micros().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_goes_out_behind_others_is_late_by_them_alone() {
        let late = |mut lateness_us: Vec<u64>| {
            wait_for_each_other(&mut lateness_us, 40);
            lateness_us
        };
        assert_eq!(late(vec![5]), [5], "what its receiver does with it comes behind");
        assert_eq!(late(vec![9, 5, 5, 0]), [9, 15, 25, 30]);
        assert!(late(vec![]).is_empty());
    }
}
