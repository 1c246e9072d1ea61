//! How the program fails: what it says on the standard error, and with which status it ends.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use lunette_block::OpenError;
use lunette_target::StartError;

/// Why the program ends without success.
#[derive(Debug)]
pub(crate) struct Failure {
    status: u8,
    message: String,
    help: Option<String>,
}

impl Failure {
    /// Something went wrong: status 1.
    pub(crate) fn new(what: impl Into<String>, error: &dyn Error) -> Self {
        Self { status: 1, message: format!("{}: {}", what.into(), chain(error)), help: None }
    }

    /// The server did not start: status 1.
    pub(crate) fn start(error: &StartError) -> Self {
        Self { status: 1, message: chain(error), help: help(error) }
    }

    /// The command line or the configuration is wrong: status 2.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { status: 2, message: message.into(), help: None }
    }

    /// Says it. A closed standard error is no reason for another failure.
    pub(crate) fn report(&self) -> ExitCode {
        say(&format!("error: {}", self.message));
        if let Some(help) = &self.help {
            say(&format!("help: {help}"));
        }
        ExitCode::from(self.status)
    }
}

/// Writes a line to the standard error.
pub(crate) fn say(line: &str) {
    // Nobody is left to be told.
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// The error and its causes. A cause that the text has already is not said again.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// What to type differently.
fn help(error: &StartError) -> Option<String> {
    match error {
        StartError::Portal { address, source } if source.kind() == io::ErrorKind::AddrInUse => {
            let mut free = *address;
            free.set_port(0);
            Some(format!("--portal {free} picks a free port and says which"))
        }
        StartError::Volume { source: OpenError::Io { path, source, .. }, .. }
            if source.kind() == io::ErrorKind::PermissionDenied && path.starts_with("/dev") =>
        {
            Some("disks are usually open to root and to the group disk only".to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_says_everything_once() {
        let in_use = || io::Error::from(io::ErrorKind::AddrInUse);
        let error = StartError::Portal { address: "127.0.0.1:3260".parse().unwrap(), source: in_use() };
        let text = chain(&error);
        assert!(text.starts_with("cannot listen on 127.0.0.1:3260: "), "{text}");
        assert_eq!(text.matches(&in_use().to_string()).count(), 1, "{text}");
        let outer = io::Error::other(io::Error::other("inner"));
        assert_eq!(chain(&outer), "inner");
    }

    #[test]
    fn a_taken_port_gets_a_flag_to_try() {
        let error = StartError::Portal {
            address: "[::1]:3260".parse().unwrap(),
            source: io::ErrorKind::AddrInUse.into(),
        };
        assert_eq!(help(&error).as_deref(), Some("--portal [::1]:0 picks a free port and says which"));
    }

    #[test]
    fn a_closed_device_gets_advice() {
        let refused = |path: &str, kind: io::ErrorKind| StartError::Volume {
            lun: 0,
            source: OpenError::Io { path: path.into(), doing: "open it", source: kind.into() },
        };
        assert!(help(&refused("/dev/sda", io::ErrorKind::PermissionDenied)).is_some());
        assert_eq!(help(&refused("/dev/sda", io::ErrorKind::NotFound)), None);
        assert_eq!(help(&refused("/srv/a.img", io::ErrorKind::PermissionDenied)), None);
    }
}
