//! One direction of a link at work.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::chance::{Chance, Purpose};
use crate::loss::Wire;
use crate::quantity::{Rate, Rest};
use crate::queue::{Class, Queue};
use crate::shape::Shape;
use crate::sojourn::Sojourn;

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
    /// The queue had no room for them, or a wire with a bound ([`Pipe::bounded`]).
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
    /// How long packets were at the transmitter that have been sent, or are being sent.
    pub sojourn: Sojourn,
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

/// The packet that the transmitter began last, as it is on the wire.
#[derive(Debug, Clone, Copy, Default)]
struct Leaving {
    /// The number of its first copy; it has none if it was lost.
    first: u64,
    /// When the one before it arrives, which it must not overtake.
    before: Duration,
    /// For how long it was held up, if it was; then it may be overtaken.
    held_up: Option<Duration>,
    /// With what the line adds.
    line_bytes: usize,
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
    /// What that is too late by for being whole nanoseconds; the next packet has it back if it begins then.
    rounded_up: Rest,
    wire: Wire,
    chances: Chances,
    /// The last packet's deviation from the delay, -1 to 1 of the most; none before the first packet.
    deviation: Option<f64>,
    /// When the last packet arrives that was not held up.
    last_arrival: Duration,
    flying: BinaryHeap<Reverse<Flying<P>>>,
    /// What those take of the bound.
    flying_bytes: u64,
    bound_bytes: u64,
    leaving: Leaving,
    sent: u64,
    counts: Counts,
}

/// What a packet on the wire takes of a bound besides its length, in bytes: about what a driver keeps with it.
const BESIDE_BYTES: u64 = 128;

impl<P: Packet> Pipe<P> {
    /// An empty one. All that is left to chance comes from the seed.
    #[must_use]
    pub fn new(shape: Shape, seed: u64) -> Self {
        let chance = |purpose| Chance::new(seed, purpose);
        Self {
            shape,
            queue: Queue::default(),
            free_at: Duration::ZERO,
            rounded_up: Rest::default(),
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
            flying_bytes: 0,
            bound_bytes: u64::MAX,
            leaving: Leaving::default(),
            sent: 0,
            counts: Counts::default(),
        }
    }

    /// The same with so many bytes on the wire at most, each packet with 128 besides its own: where senders heed nothing, a long delay
    /// would take any memory. What comes beyond is dropped.
    #[must_use]
    pub const fn bounded(mut self, bytes: u64) -> Self {
        self.bound_bytes = bytes;
        self
    }

    /// A packet comes to the link. It is dropped if there is no room for it to wait.
    pub fn offer(&mut self, now: Duration, packet: P) {
        self.transmit(now);
        self.counts.offered += 1;
        let length = self.line_bytes(&packet) as u64;
        let class = class(&self.shape, &packet);
        self.counts.dropped += self.queue.push(&self.shape, class, now, length, packet);
        self.transmit(now);
    }

    /// The next packet that has arrived by now, and when.
    pub fn arrive(&mut self, now: Duration) -> Option<(Duration, P)> {
        self.transmit(now);
        if self.flying.peek()?.0.at > now {
            return None;
        }
        let Reverse(flying) = self.flying.pop()?;
        self.flying_bytes -= held_bytes(&flying.packet);
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

    /// From now on the link is another one. What waits or is on its way goes on, and stays in its order; the rest of the packet that is
    /// being sent is sent at the new rate.
    pub fn reshape(&mut self, now: Duration, shape: Shape) {
        self.transmit(now);
        self.change_rate(now, shape.rate);
        let ports = |shape: &Shape| shape.reserved.is_some().then(|| shape.iscsi_ports.clone());
        let has_other_classes = ports(&self.shape) != ports(&shape);
        self.shape = shape;
        if has_other_classes {
            let shape = &self.shape;
            self.queue.sort_anew(shape, |packet| class(shape, packet));
        }
    }

    /// What is left of the packet in the transmitter takes as long as another rate has it take.
    fn change_rate(&mut self, now: Duration, rate: Option<Rate>) {
        if rate == self.shape.rate {
            return;
        }
        // It is counted in the old rate's parts.
        self.rounded_up = Rest::default();
        let left = self.free_at.saturating_sub(now);
        if left.is_zero() {
            return;
        }
        let taken = match (self.shape.rate, rate) {
            (_, None) => Duration::ZERO,
            (Some(old), Some(new)) => old.time_at(left, new),
            (None, Some(_)) => left,
        };
        self.free_at = now.saturating_add(taken);
        let Leaving { first, before, held_up, line_bytes } = self.leaving;
        self.counts.sojourn.retime(line_bytes, left, taken);
        let mut flying = std::mem::take(&mut self.flying).into_vec();
        for Reverse(copy) in flying.iter_mut().filter(|flying| flying.0.number >= first) {
            let at = copy.at.saturating_sub(left).saturating_add(taken);
            copy.at = at.max(before.saturating_add(held_up.unwrap_or_default()));
            if held_up.is_none() {
                self.last_arrival = copy.at;
            }
        }
        self.flying = flying.into();
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

    /// When the last of the packets on the wire arrives.
    #[must_use]
    pub fn last_at(&self) -> Option<Duration> {
        self.flying.iter().map(|Reverse(flying)| flying.at).max()
    }

    /// Packets that wait or are on the wire.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.queue.len() + self.flying.len()
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
            let Some((since, packet)) = self.queue.pop(&self.shape) else { return };
            let before = if begin == self.free_at { self.rounded_up } else { Rest::default() };
            let line_bytes = self.line_bytes(&packet);
            let (time, rest) =
                self.shape.rate.map_or_else(Default::default, |rate| rate.time_behind(before, line_bytes));
            (self.free_at, self.rounded_up) = (begin.saturating_add(time), rest);
            self.counts.sojourn.add(line_bytes, self.free_at.saturating_sub(since));
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
        let held_up = is_late.then_some(self.shape.reorder.by);
        let line_bytes = self.line_bytes(&packet);
        self.leaving = Leaving { first: self.sent, before: self.last_arrival, held_up, line_bytes };
        if is_lost {
            self.counts.lost += 1;
            return;
        }
        let room_bytes = self.bound_bytes.saturating_sub(self.flying_bytes);
        if held_bytes(&packet) > room_bytes {
            self.counts.dropped += 1;
            return;
        }
        let is_doubled = is_doubled && held_bytes(&packet) * 2 <= room_bytes;
        if is_damaged && packet.length() > 0 {
            packet.flip(bit);
            self.counts.corrupted += 1;
        }
        let in_order = arrival.max(self.last_arrival);
        let at = if let Some(by) = held_up {
            self.counts.reordered += 1;
            in_order.saturating_add(by)
        } else {
            self.last_arrival = in_order;
            in_order
        };
        if is_doubled {
            self.counts.duplicated += 1;
            self.fly(at, packet.clone());
        }
        self.fly(at, packet);
    }

    fn fly(&mut self, at: Duration, packet: P) {
        self.flying_bytes += held_bytes(&packet);
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

/// Whose a packet is. It is looked at where that matters only.
fn class<P: Packet>(shape: &Shape, packet: &P) -> Class {
    let ports = shape.reserved.and_then(|_| packet.tcp_ports());
    match ports {
        Some(ports) if ports.iter().any(|port| shape.iscsi_ports.has(*port)) => Class::Iscsi,
        _ => Class::Other,
    }
}

/// What a packet takes of a wire's bound.
fn held_bytes<P: Packet>(packet: &P) -> u64 {
    packet.length() as u64 + BESIDE_BYTES
}

#[cfg(test)]
mod tests;
