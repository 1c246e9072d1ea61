//! Pair tests: an initiator-side test double against this crate's target role, in one thread and
//! virtual time.

mod double;

mod authentication;
mod connection;
mod connections;
mod faults;
mod management;
mod property;
mod recovery;
mod session;
mod session_property;
mod session_recovery;
mod transfers;
mod window;
