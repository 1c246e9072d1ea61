//! A network link in virtual time: what a rate, a delay, a queue and bad luck do to the packets that are sent over it.
//!
//! [`Pipe`] carries packets in one direction; a [`Link`] is the description of two. No I/O and no clock here: the caller says
//! what time it is and asks for what has arrived by then, so that the same seed does the same to the same packets, in a test
//! within milliseconds and before real network devices alike. What a packet is, the caller says too ([`Packet`]).
//!
//! A packet's way: it is dropped if the queue has no room; it waits for its turn; it takes the transmitter for its length
//! divided by the rate; on the wire it may be lost, damaged, doubled or held up; after the delay it arrives. What is lost on
//! the wire has used the rate, as on a real line.

#![forbid(unsafe_code)]

mod chance;
mod describe;
mod loss;
mod named;
mod pipe;
mod ports;
mod quantity;
mod queue;
mod shape;
mod sojourn;

pub use chance::Probability;
pub use describe::LinkError;
pub use loss::Loss;
pub use named::{NamedLink, named_links};
pub use pipe::{Counts, Packet, Pipe};
pub use ports::IscsiPorts;
pub use quantity::{QuantityError, Rate};
pub use shape::{Jitter, Link, Reorder, Shape};
pub use sojourn::Sojourn;
