//! iSCSI as state machines without I/O (RFC 7143): names, negotiation, authentication, login, sessions and their
//! transfers.
//!
//! Nothing here reads a clock, a socket or a file: time and identifiers are arguments, PDUs come in as decoded
//! headers with their data, and go out through an outbox. A CDB, a LUN and sense data are bytes.

#![forbid(unsafe_code)]

pub mod chap;
pub mod initiator;
pub mod login;
pub mod name;
pub mod parameters;
mod quoted;
pub mod session;
pub mod text;

pub use quoted::Quoted;
