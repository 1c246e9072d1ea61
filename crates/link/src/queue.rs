//! Where packets wait for the transmitter: one queue, or one for each of two classes.
//!
//! Two classes take turns by weight, as in start-time fair queueing (Goyal and others, 1996): the next packet is of the class
//! that had less of its share so far, and one that was idle begins where the others are: it has nothing to catch up on, and
//! nothing to pay for. Room is shared likewise: one may have what the other does not use, until that wants its share.

use std::collections::VecDeque;
use std::time::Duration;

use crate::shape::Shape;

/// Whose packet it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Of an iSCSI connection.
    Iscsi,
    /// Of anything else.
    Other,
}

#[derive(Debug, Clone)]
struct Waiting<P> {
    /// Which it is of all that have waited.
    number: u64,
    since: Duration,
    length: u64,
    packet: P,
}

#[derive(Debug, Clone)]
struct Lane<P> {
    packets: VecDeque<Waiting<P>>,
    bytes: u64,
    /// Bytes that it sent, divided by its weight; where its next packet begins.
    served: f64,
}

impl<P> Default for Lane<P> {
    fn default() -> Self {
        Self { packets: VecDeque::new(), bytes: 0, served: 0.0 }
    }
}

/// The queue of one direction. The second lane is in use where a share is reserved.
#[derive(Debug, Clone)]
pub(crate) struct Queue<P> {
    lanes: [Lane<P>; 2],
    /// Where the packet began that was sent last.
    clock: f64,
    /// Packets that were taken.
    taken: u64,
}

impl<P> Default for Queue<P> {
    fn default() -> Self {
        Self { lanes: [Lane::default(), Lane::default()], clock: 0.0, taken: 0 }
    }
}

/// The lane of a class, and its share of what there is.
fn lane(shape: &Shape, class: Class) -> (usize, f64) {
    match (shape.reserved, class) {
        (None, _) => (0, 1.0),
        (Some(share), Class::Iscsi) => (0, share.get()),
        (Some(share), Class::Other) => (1, 1.0 - share.get()),
    }
}

impl<P> Queue<P> {
    /// Takes a packet, and says how many are dropped for that: it itself where there is no room, or the last of the other class as far
    /// as that has more than its share while this one would not. An empty lane takes any packet, so that none is too long for good.
    pub(crate) fn push(&mut self, shape: &Shape, class: Class, now: Duration, length: u64, packet: P) -> u64 {
        let (index, share) = lane(shape, class);
        let [own, other] = [&self.lanes[index], &self.lanes[1 - index]];
        let room = |share: f64| (shape.queue_bytes as f64 * share) as u64;
        let too_many = (own.bytes + other.bytes + length).saturating_sub(shape.queue_bytes);
        let is_due = own.packets.is_empty() || own.bytes + length <= room(share);
        if too_many > 0 && !is_due {
            return 1;
        }
        let (mut pushed_out, mut freed) = (0, 0);
        // What a longer queue has left behind is not this packet's to clear away.
        while freed < too_many.min(length) {
            let other = &mut self.lanes[1 - index];
            let above_share = other.bytes.saturating_sub(room(1.0 - share));
            let Some(last) = other.packets.pop_back_if(|last| last.length <= above_share) else { break };
            other.bytes -= last.length;
            freed += last.length;
            pushed_out += 1;
        }
        let number = self.taken;
        self.taken += 1;
        self.add(index, Waiting { number, since: now, length, packet });
        pushed_out
    }

    fn add(&mut self, index: usize, waiting: Waiting<P>) {
        let lane = &mut self.lanes[index];
        if lane.packets.is_empty() {
            lane.served = lane.served.max(self.clock);
        }
        lane.bytes += waiting.length;
        lane.packets.push_back(waiting);
    }

    /// Puts all that wait where they belong by another shape, in the order in which they came. All of them have room.
    pub(crate) fn sort_anew(&mut self, shape: &Shape, class: impl Fn(&P) -> Class) {
        let mut all: Vec<Waiting<P>> = self.lanes.iter_mut().flat_map(|own| own.packets.drain(..)).collect();
        all.sort_unstable_by_key(|waiting| waiting.number);
        for own in &mut self.lanes {
            // Nobody has anything to catch up on, or to pay for.
            (own.bytes, own.served) = (0, self.clock);
        }
        for waiting in all {
            let (index, _) = lane(shape, class(&waiting.packet));
            self.add(index, waiting);
        }
    }

    /// Since when somebody waits.
    pub(crate) fn waits_since(&self) -> Option<Duration> {
        self.lanes.iter().filter_map(|lane| lane.packets.front()).map(|waiting| waiting.since).min()
    }

    /// The packet whose turn it is, and since when it has waited.
    pub(crate) fn pop(&mut self, shape: &Shape) -> Option<(Duration, P)> {
        let [first, second] = &self.lanes;
        let index = match (first.packets.is_empty(), second.packets.is_empty()) {
            (true, true) => return None,
            (false, false) => usize::from(second.served < first.served),
            (is_empty, _) => usize::from(is_empty),
        };
        let (_, share) = lane(shape, if index == 0 { Class::Iscsi } else { Class::Other });
        let lane = &mut self.lanes[index];
        let waiting = lane.packets.pop_front()?;
        lane.bytes -= waiting.length;
        self.clock = lane.served;
        // A share of nothing would be served without end.
        lane.served += waiting.length as f64 / share.max(1e-6);
        Some((waiting.since, waiting.packet))
    }

    /// Packets that wait.
    pub(crate) fn len(&self) -> usize {
        self.lanes.iter().map(|lane| lane.packets.len()).sum()
    }
}
