//! The Internet Storage Name Service (RFC 4171), as much of it as a target needs: it registers itself with a server, shows
//! that it is still there, and takes itself out.
//!
//! No I/O here: [`Client`] says when to connect and what to send, [`Reader`] reads what comes. State change notifications and
//! status inquiries of the server are not asked for, so none come. A crate of its own, since nothing of it is iSCSI: the two
//! share names and addresses, and no state.

#![forbid(unsafe_code)]

mod client;
mod message;
mod registration;

pub use client::{Client, News, Step};
pub use message::{Fault, Reader, Request, Response};
pub use registration::{Node, Registration};

/// The port that servers listen on (RFC 4171, 2.9).
pub const DEFAULT_PORT: u16 = 3205;
