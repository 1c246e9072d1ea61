//! The initiator's commands: what a target has, what a disk is, and its blocks (`lunette_initiator` carries them).
//!
//! Each command opens its session, does one thing, logs out (attach when it is told to), and ends with a status that says what
//! kind of failure it was.

mod access;
mod amount;
mod attach;
mod attached;
mod copy;
mod credentials;
mod detach;
mod discover;
mod disk;
mod erase;
mod info;
mod options;
mod pattern;
mod port;
mod report;
mod reserve;
mod session;
mod stream;
mod trace;
mod transfer;
mod zeros;

pub(crate) use access::TimeOptions;
pub(crate) use amount::RangeOptions;
pub(crate) use disk::Disk;
pub(crate) use options::{EXIT_STATUS, End, InitiatorCommand, URL_HELP};
pub(crate) use report::{Facts, print, table, tell};

use crate::failure::Failure;

/// Does what was asked for.
///
/// # Errors
/// [`Failure`], with the exit status that [`options::EXIT_STATUS`] lists.
pub(crate) fn run(command: &InitiatorCommand) -> Result<(), Failure> {
    let result = match command {
        InitiatorCommand::Discover(options) => discover::run(options),
        InitiatorCommand::LoginTrace(options) => trace::run(options),
        InitiatorCommand::Info(options) => info::run(options),
        InitiatorCommand::Read(options) => transfer::read(options),
        InitiatorCommand::Write(options) => transfer::write(options),
        InitiatorCommand::Verify(options) => transfer::verify(options),
        InitiatorCommand::Erase(options) => erase::run(options),
        InitiatorCommand::Checksum(options) => transfer::checksum(options),
        InitiatorCommand::Copy(options) => copy::run(options),
        InitiatorCommand::Reserve(options) => reserve::run(options),
        InitiatorCommand::Attach(options) => attach::run(options),
        InitiatorCommand::Detach(options) => detach::run(options),
    };
    result.map_err(|failure| if command.json() { failure.told_as_json() } else { failure })
}
