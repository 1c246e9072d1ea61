//! The Internet Storage Name Service (RFC 4171), as much of it as targets and initiators need. A target registers itself with
//! a server, shows that it is still there, hears what becomes of it there and of initiators, and takes itself out. An
//! initiator asks for targets.
//!
//! No I/O here: [`Client`] says when to connect and what to send, [`Search`] asks once, [`Reader`] and [`Message`] read what
//! comes. A crate of its own, since nothing of it is iSCSI: the two share names and addresses, and no state.

#![forbid(unsafe_code)]

mod attributes;
mod client;
mod message;
mod notification;
mod registration;
mod search;

pub use attributes::Transport;
pub use client::{Client, News, Step};
pub use message::{Fault, Message, Reader, Response, ServerRequest};
pub use notification::Event;
pub use registration::{Node, Registration};
pub use search::{FoundTarget, Search, SearchStep};

/// The port that servers listen on (RFC 4171, 2.9).
pub const DEFAULT_PORT: u16 = 3205;
