//! The Internet Storage Name Service (RFC 4171), as much of it as a target needs: it registers itself with a server, shows
//! that it is still there, hears what becomes of it there and of initiators, and takes itself out.
//!
//! No I/O here: [`Client`] says when to connect and what to send, [`Reader`] and [`Message`] read what comes. A crate of its
//! own, since nothing of it is iSCSI: the two share names and addresses, and no state.

#![forbid(unsafe_code)]

mod attributes;
mod client;
mod message;
mod notification;
mod registration;

pub use attributes::Transport;
pub use client::{Client, News, Step};
pub use message::{Fault, Message, Reader, Response, ServerRequest};
pub use notification::Event;
pub use registration::{Node, Registration};

/// The port that servers listen on (RFC 4171, 2.9).
pub const DEFAULT_PORT: u16 = 3205;
