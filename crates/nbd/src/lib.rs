//! The server's side of NBD (the protocol of the Network Block Device project, `doc/proto.md` there), as much of it as one
//! export needs: fixed newstyle handshake, simple and structured replies, the metadata context `base:allocation`.
//!
//! No I/O here: [`Handshake`] says how many bytes it wants next and what to answer to them, [`Request`] reads a request and
//! judges it by the export, [`reply`] makes the answer's header. Nothing that a client sends is trusted; whoever does not keep
//! to the protocol is disconnected. TLS and extended headers are refused, as the protocol allows.
//!
//! Client and server are this protocol's words; the server here is what the initiator's disk is shown by.

#![forbid(unsafe_code)]

mod context;
mod export;
mod fields;
mod handshake;
mod reply;
mod request;

pub use context::{Allocation, Extents};
pub use export::{Export, ExportError, Features, NAME_BYTES_MAX};
pub use handshake::{Handshake, OPTIONS_MAX, Step, Terms, Then};
pub use reply::{Cookie, Errno, Outcome, Refusal, reply};
pub use request::{REQUEST_BYTES, Request, Span, Work};

/// The port that is NBD's.
pub const DEFAULT_PORT: u16 = 10809;

/// The longest READ or WRITE that is carried out, in bytes: what every client may count on without asking.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
