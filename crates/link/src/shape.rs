//! What a link is like, direction by direction.

use std::time::Duration;

use crate::chance::Probability;
use crate::loss::Loss;
use crate::ports::IscsiPorts;
use crate::quantity::Rate;

/// How much the delay of one packet differs from that of another. It alone never changes the packets' order: who would
/// overtake arrives together with the one before.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Jitter {
    /// The delay is between `delay - most` and `delay + most`, and even over that range, whatever the correlation: its variance is
    /// `most^2 / 3`. At most the delay.
    pub most: Duration,
    /// That a packet deviates just as the one before it; otherwise it deviates anew. So the correlation of two packets' delays is
    /// this share, to the power of how many packets they are apart (the first-order process of Jacobs and Lewis, 1978).
    pub correlation: Probability,
}

impl Jitter {
    /// How many times as far a mean or a median of successive packets' delays is off as one of packets that do not share theirs.
    /// Without end where all packets deviate alike.
    #[must_use]
    pub fn inflation(&self) -> f64 {
        let correlation = self.correlation.get();
        ((1.0 + correlation) / (1.0 - correlation)).sqrt()
    }
}

/// Packets that are held up on their way, so that later ones overtake them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Reorder {
    /// That a packet is held up.
    pub share: Probability,
    /// For how long.
    pub by: Duration,
}

/// One direction of a link.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Shape {
    /// Bits that the transmitter sends in a second; without one it takes no time.
    pub rate: Option<Rate>,
    /// Bytes that each packet has on the line besides its own: headers, preamble, the gap to the next.
    pub overhead_bytes: u16,
    /// From the last bit that was sent to the packet's arrival.
    pub delay: Duration,
    /// How the delay varies.
    pub jitter: Jitter,
    /// What is lost on the wire.
    pub loss: Loss,
    /// That a packet arrives twice.
    pub duplicate: Probability,
    /// That one bit of a packet is turned.
    pub corrupt: Probability,
    /// What arrives late.
    pub reorder: Reorder,
    /// Bytes that may wait for the transmitter, the packet that is being sent not counted. It says nothing without a rate.
    pub queue_bytes: u64,
    /// The share of the rate, and of the queue, that iSCSI has for itself while others want to send. What one of the two
    /// does not use, the other may. Without it they share one queue.
    pub reserved: Option<Probability>,
    /// What such a share takes for iSCSI: TCP from or to these ports.
    pub iscsi_ports: IscsiPorts,
}

/// A link between two ends.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// The longest packet, its IP header included, in bytes.
    pub mtu: u16,
    /// From the near end to the far one.
    pub up: Shape,
    /// From the far end to the near one.
    pub down: Shape,
}

impl Link {
    /// What a packet takes there and back when nothing else is under way, without its time in the transmitters.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        self.up.delay + self.down.delay
    }
}
