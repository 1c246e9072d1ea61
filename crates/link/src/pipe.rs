//! One direction of a link at work.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::chance::{Chance, Purpose};
use crate::loss::Wire;
use crate::queue::{Class, Queue};
use crate::shape::Shape;

/// What is sent over a link.
pub trait Packet: Clone {
    /// Bytes, without those that the line adds.
    fn length(&self) -> usize;

    /// The ports that it comes from and goes to, if it is a segment of TCP.
    fn tcp_ports(&self) -> Option<[u16; 2]>;

    /// Turns this bit of it, counted from the first; less than 8 times the length.
    fn flip(&mut self, bit: u64);
}

/// What became of packets so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// They were offered.
    pub offered: u64,
    /// The queue had no room for them.
    pub dropped: u64,
    /// They were lost on the wire.
    pub lost: u64,
    /// Copies that the wire made.
    pub duplicated: u64,
    /// They had a bit turned.
    pub corrupted: u64,
    /// They were held up, so that others could overtake them.
    pub reordered: u64,
    /// They arrived, copies included.
    pub arrived: u64,
    /// Bytes of those.
    pub arrived_bytes: u64,
}

/// A packet on the wire. Of two that arrive at one time, the one that was sent first comes first.
#[derive(Debug, Clone)]
struct Flying<P> {
    at: Duration,
    number: u64,
    packet: P,
}

impl<P> PartialEq for Flying<P> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<P> Eq for Flying<P> {}

impl<P> PartialOrd for Flying<P> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> Ord for Flying<P> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

#[derive(Debug, Clone)]
struct Chances {
    loss: Chance,
    duplication: Chance,
    corruption: Chance,
    reordering: Chance,
    jitter: Chance,
}

/// One direction of a link. Times are since a beginning that the caller chooses; they never go back.
#[derive(Debug, Clone)]
pub struct Pipe<P> {
    shape: Shape,
    queue: Queue<P>,
    /// When the transmitter has sent what it took.
    free_at: Duration,
    wire: Wire,
    chances: Chances,
    /// The last packet's deviation from the delay, -1 to 1 of the most; none before the first packet.
    deviation: Option<f64>,
    /// When the last packet arrives that was not held up.
    last_arrival: Duration,
    flying: BinaryHeap<Reverse<Flying<P>>>,
    sent: u64,
    counts: Counts,
}

impl<P: Packet> Pipe<P> {
    /// An empty one. All that is left to chance comes from the seed.
    #[must_use]
    pub fn new(shape: Shape, seed: u64) -> Self {
        let chance = |purpose| Chance::new(seed, purpose);
        Self {
            shape,
            queue: Queue::default(),
            free_at: Duration::ZERO,
            wire: Wire::default(),
            chances: Chances {
                loss: chance(Purpose::Loss),
                duplication: chance(Purpose::Duplication),
                corruption: chance(Purpose::Corruption),
                reordering: chance(Purpose::Reordering),
                jitter: chance(Purpose::Jitter),
            },
            deviation: None,
            last_arrival: Duration::ZERO,
            flying: BinaryHeap::new(),
            sent: 0,
            counts: Counts::default(),
        }
    }

    /// A packet comes to the link. It is dropped if there is no room for it to wait.
    pub fn offer(&mut self, now: Duration, packet: P) {
        self.transmit(now);
        self.counts.offered += 1;
        let length = self.line_bytes(&packet) as u64;
        let class = self.class(&packet);
        if !self.queue.push(&self.shape, class, now, length, packet) {
            self.counts.dropped += 1;
        }
        self.transmit(now);
    }

    /// The next packet that has arrived by now, and when.
    pub fn arrive(&mut self, now: Duration) -> Option<(Duration, P)> {
        self.transmit(now);
        if self.flying.peek()?.0.at > now {
            return None;
        }
        let Reverse(flying) = self.flying.pop()?;
        self.counts.arrived += 1;
        self.counts.arrived_bytes += flying.packet.length() as u64;
        Some((flying.at, flying.packet))
    }

    /// When to ask again for what has arrived; `None` when nothing is under way.
    #[must_use]
    pub fn next_at(&self) -> Option<Duration> {
        let arrival = self.flying.peek().map(|Reverse(flying)| flying.at);
        let turn = self.queue.waits_since().map(|since| since.max(self.free_at));
        match (arrival, turn) {
            (Some(arrival), Some(turn)) => Some(arrival.min(turn)),
            (arrival, turn) => arrival.or(turn),
        }
    }

    /// From now on the link is another one. What waits or is on its way goes on, and stays in its order.
    pub fn reshape(&mut self, now: Duration, shape: Shape) {
        self.transmit(now);
        self.shape = shape;
    }

    /// What the link is like.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// What became of packets so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Packets that wait or are on the wire.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.queue.len() + self.flying.len()
    }

    /// Whose it is. It is looked at where that matters only.
    fn class(&self, packet: &P) -> Class {
        let ports = self.shape.reserved.and_then(|_| packet.tcp_ports());
        match ports {
            Some(ports) if ports.iter().any(|port| self.shape.iscsi_ports.has(*port)) => Class::Iscsi,
            _ => Class::Other,
        }
    }

    fn line_bytes(&self, packet: &P) -> usize {
        packet.length() + usize::from(self.shape.overhead_bytes)
    }

    /// Lets the transmitter take all whose turn comes by now.
    fn transmit(&mut self, now: Duration) {
        while let Some(begin) = self.queue.waits_since().map(|since| since.max(self.free_at)) {
            if begin > now {
                return;
            }
            let Some(packet) = self.queue.pop(&self.shape) else { return };
            let time = self.shape.rate.map_or(Duration::ZERO, |rate| rate.time_for(self.line_bytes(&packet)));
            self.free_at = begin.saturating_add(time);
            self.put_on_wire(packet);
        }
    }

    /// A packet whose last bit has left. Each chance is drawn for each packet, whatever the others decide.
    fn put_on_wire(&mut self, mut packet: P) {
        let is_lost = self.wire.loses(&self.shape.loss, &mut self.chances.loss);
        let is_doubled = self.chances.duplication.happens(self.shape.duplicate);
        let is_damaged = self.chances.corruption.happens(self.shape.corrupt);
        let bit = self.chances.corruption.below(packet.length() as u64 * 8);
        let is_late = self.chances.reordering.happens(self.shape.reorder.share);
        let arrival = self.arrival();
        if is_lost {
            self.counts.lost += 1;
            return;
        }
        if is_damaged && packet.length() > 0 {
            packet.flip(bit);
            self.counts.corrupted += 1;
        }
        let at = if is_late {
            self.counts.reordered += 1;
            arrival.saturating_add(self.shape.reorder.by)
        } else {
            let at = arrival.max(self.last_arrival);
            self.last_arrival = at;
            at
        };
        if is_doubled {
            self.counts.duplicated += 1;
            self.fly(at, packet.clone());
        }
        self.fly(at, packet);
    }

    fn fly(&mut self, at: Duration, packet: P) {
        self.flying.push(Reverse(Flying { at, number: self.sent, packet }));
        self.sent += 1;
    }

    /// When a packet would arrive that has been sent by `free_at`, if nothing held it up.
    fn arrival(&mut self) -> Duration {
        let jitter = self.shape.jitter;
        let fresh = self.chances.jitter.fraction() * 2.0 - 1.0;
        let stays = self.chances.jitter.happens(jitter.correlation);
        let deviation = self.deviation.filter(|_| stays).unwrap_or(fresh);
        self.deviation = Some(deviation);
        let most = jitter.most.min(self.shape.delay);
        let least = self.free_at + (self.shape.delay - most);
        least + most.mul_f64((deviation + 1.0).clamp(0.0, 2.0))
    }
}

#[cfg(test)]
mod tests;
