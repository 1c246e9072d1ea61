//! The iSCSI protocol end to end: a target in this process, real sockets, an initiator that says exactly what a test
//! wants, and stores that wait when they are told to (RFC 7143).
//!
//! Not here: what the session core does in virtual time (`crates/iscsi/tests/pair`), and the binary (`drain`, `hostile`).

mod management;
mod pressure;
mod requests;
mod sessions;
mod transfers;

use std::time::Duration;

/// Long enough for a target that does not wait to have answered.
const A_WHILE: Duration = Duration::from_millis(100);

/// A unit in memory that answers writes when they are in it, so that a held write is held before it lands.
const DISK: &str = "0=mem:8M,write=back";
const SECOND_DISK: &str = "1=mem:8M,write=back";

/// Sense key, additional sense code and qualifier that say which unit attention it is.
const BUS_DEVICE_RESET: (u8, u8, u8) = (6, 0x29, 3);
const COMMANDS_CLEARED: (u8, u8, u8) = (6, 0x2f, 0);

const TASK_SET_FULL: u8 = 0x28;
