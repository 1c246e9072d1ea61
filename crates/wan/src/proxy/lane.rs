//! One direction of a proxy: segments of all its connections, which share the link.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lunette_link::{Counts, Packet, Pipe, Shape};

use crate::carrier::{Carried, micros};
use crate::error::WanError;
use crate::pace::Pace;

/// How long a lane without anything under way sleeps; who sends wakes it.
const IDLE: Duration = Duration::from_secs(3600);

/// The bytes of one connection that are under way in one direction.
#[derive(Debug)]
pub(super) struct Parcel {
    arrived: Mutex<Sender<Vec<u8>>>,
    /// Bytes that were read and are not written yet; `None` if nobody takes them any more.
    under_way: Mutex<Option<u64>>,
    changed: Condvar,
}

impl Parcel {
    pub(super) fn new(arrived: Sender<Vec<u8>>) -> Self {
        Self { arrived: Mutex::new(arrived), under_way: Mutex::new(Some(0)), changed: Condvar::new() }
    }

    fn under_way(&self) -> MutexGuard<'_, Option<u64>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrive(&self, bytes: Vec<u8>) {
        let arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever does not wait for it any more has gone.
        let _ = arrived.send(bytes);
    }

    /// Ends it, whatever is under way.
    pub(super) fn end(&self) {
        self.refuse();
        self.arrive(Vec::new());
    }

    /// Waits until fewer bytes are under way; false if nobody takes them any more.
    pub(super) fn wait_for_room(&self, window_bytes: u64) -> bool {
        let mut under_way = self.under_way();
        while under_way.is_some_and(|bytes| bytes >= window_bytes) {
            under_way = self.changed.wait(under_way).unwrap_or_else(PoisonError::into_inner);
        }
        under_way.is_some()
    }

    /// So many bytes go on their way.
    pub(super) fn take(&self, bytes: u64) {
        if let Some(under_way) = &mut *self.under_way() {
            *under_way += bytes;
        }
    }

    /// So many have been written.
    pub(super) fn give_back(&self, bytes: u64) {
        if let Some(under_way) = &mut *self.under_way() {
            *under_way = under_way.saturating_sub(bytes);
        }
        self.changed.notify_all();
    }

    /// Nobody takes them any more.
    pub(super) fn refuse(&self) {
        *self.under_way() = None;
        self.changed.notify_all();
    }
}

/// Some bytes of a connection; none are its end.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    parcel: Arc<Parcel>,
    bytes: Vec<u8>,
    headers: usize,
}

impl Segment {
    pub(super) fn data(parcel: &Arc<Parcel>, bytes: &[u8], headers: usize) -> Self {
        Self { parcel: Arc::clone(parcel), bytes: bytes.to_vec(), headers }
    }

    /// What ends a connection is a segment as well.
    pub(super) fn end(parcel: &Arc<Parcel>, headers: usize) -> Self {
        Self::data(parcel, &[], headers)
    }
}

impl Packet for Segment {
    fn length(&self) -> usize {
        self.bytes.len() + self.headers
    }

    fn tcp_ports(&self) -> Option<[u16; 2]> {
        // A proxy takes no link with a reservation.
        None
    }

    fn flip(&mut self, _bit: u64) {
        // A proxy takes no link that damages packets.
    }
}

/// One direction.
#[derive(Debug)]
pub(super) struct Lane {
    /// `None` when it is to end.
    pipe: Mutex<Option<Pipe<Segment>>>,
    changed: Condvar,
    began: Instant,
    /// How it was kept, for whoever looks.
    carried: Arc<Mutex<Carried>>,
}

impl Lane {
    /// # Errors
    /// There is no memory for it.
    pub(super) fn new(shape: &Shape, seed: u64) -> Result<Self, WanError> {
        // Each connection has a window, so that the queue is bounded, and a proxy can drop nothing.
        let shape = Shape { queue_bytes: u64::MAX, ..shape.clone() };
        Ok(Self {
            pipe: Mutex::new(Some(Pipe::new(shape, seed))),
            changed: Condvar::new(),
            began: Instant::now(),
            carried: Arc::new(Mutex::new(Carried::new()?)),
        })
    }

    /// How it is kept: how late segments were handed over, and how many took this machine longer than the link.
    pub(super) const fn carried(&self) -> &Arc<Mutex<Carried>> {
        &self.carried
    }

    fn pipe(&self) -> MutexGuard<'_, Option<Pipe<Segment>>> {
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends segments of a connection, if it is not ended.
    pub(super) fn send(&self, segments: impl Iterator<Item = Segment>) {
        if let Some(pipe) = &mut *self.pipe() {
            let now = self.began.elapsed();
            segments.for_each(|segment| pipe.offer(now, segment));
        }
        self.changed.notify_all();
    }

    pub(super) fn counts(&self) -> Counts {
        self.pipe().as_ref().map(Pipe::counts).unwrap_or_default()
    }

    /// Ends it; what is under way is lost.
    pub(super) fn end(&self) {
        *self.pipe() = None;
        self.changed.notify_all();
    }

    /// Hands over what arrives, until it is ended.
    pub(super) fn carry(&self) {
        // Sleeps end when they should. Where the kernel refuses, they are 50 us longer.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut pace = Pace::default();
        let mut lateness_us = Vec::new();
        let mut guard = self.pipe();
        while let Some(pipe) = &mut *guard {
            let (woken, mut line_bytes) = (self.began.elapsed(), 0);
            let mut now = woken;
            while let Some((due, segment)) = pipe.arrive(now) {
                lateness_us.push(micros(now.saturating_sub(due)));
                line_bytes += segment.length() + usize::from(pipe.shape().overhead_bytes);
                segment.parcel.arrive(segment.bytes);
                now = self.began.elapsed();
            }
            let outpaced = pace.take([woken, now], lateness_us.len(), line_bytes, pipe.shape().rate);
            self.tell(&mut lateness_us, outpaced, pipe.counts());
            let wait = pipe.next_at().map_or(IDLE, |at| at.saturating_sub(self.began.elapsed()));
            guard = self.changed.wait_timeout(guard, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Has others see what was done in a turn.
    fn tell(&self, lateness_us: &mut Vec<u64>, outpaced: u64, counts: Counts) {
        if lateness_us.is_empty() && outpaced == 0 {
            return;
        }
        let mut carried = self.carried.lock().unwrap_or_else(PoisonError::into_inner);
        for late_us in lateness_us.drain(..) {
            carried.lateness_us.saturating_record(late_us);
        }
        carried.outpaced += outpaced;
        carried.counts = counts;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn what_is_handed_over_behind_its_time_is_late() {
        let link: lunette_link::Link = "delay=10ms".parse().expect("a link");
        let lane = Lane::new(&link.up, 1).expect("a lane");
        let (sender, arrived) = channel();
        let parcel = Arc::new(Parcel::new(sender));
        lane.send((0..30).map(|_| Segment::data(&parcel, &[7; 100], 52)));
        // Nobody carries for as long as that.
        thread::sleep(Duration::from_millis(60));
        thread::scope(|scope| {
            scope.spawn(|| lane.carry());
            assert_eq!(arrived.iter().take(30).map(|bytes| bytes.len()).sum::<usize>(), 3000);
            lane.end();
        });
        let statistics = lane.carried().lock().expect("whole").statistics(0);
        assert!(statistics.lateness_median >= Duration::from_millis(49), "{statistics:?}");
        assert_eq!((statistics.counts.arrived, statistics.overrun), (30, 0));
    }
}
