//! How the program fails: what it says on the standard error, and with which status it ends.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use lunette_block::OpenError;
use lunette_initiator::{AnswerFault, CommandError};
use lunette_scsi::client::Unfit;
use lunette_target::StartError;
use rustix::io::Errno;
use serde::Serialize;

/// Exit statuses beside 0; those from 3 on are the initiator's.
const LOCAL: u8 = 1;
const USAGE: u8 = 2;
const SESSION: u8 = 3;
const AUTHENTICATION: u8 = 4;
const SCSI: u8 = 5;
const MISMATCH: u8 = 6;

/// `wan run` ends with its command's status otherwise, which is seldom this one.
const WAN: u8 = 125;

/// What to try where a session was lost, and where data was.
const LOST: &str =
    "look at the target's log and at the network; --recovery SECONDS waits longer for a session that is lost";
const SPOILT: &str = "something on the way changes data: look at the network and its devices";

/// Why the program ends without success.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    status: u8,
    message: String,
    help: Option<String>,
    /// Whose doing it is, where that is known.
    side: Option<&'static str>,
    /// It is this program's fault, or a consequence of another failure.
    internal: bool,
    /// The unit was reset before what was done was stable: to do it again helps.
    unflushed: bool,
    /// The target does not have the command, or not in this form.
    unfit: Option<Unfit>,
    /// What its port's caller calls the command that failed, where the session goes on.
    tag: Option<u64>,
    /// How it is told.
    form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Words,
    /// One line of JSON on the standard error.
    Json,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    error: &'a str,
    help: Option<&'a str>,
    side: Option<&'static str>,
    status: u8,
}

impl Failure {
    fn of(status: u8, message: String) -> Self {
        Self {
            status,
            message,
            help: None,
            side: None,
            internal: false,
            unflushed: false,
            unfit: None,
            tag: None,
            form: Form::Words,
        }
    }

    /// Something went wrong: status 1.
    pub(crate) fn new(what: impl Into<String>, error: &dyn Error) -> Self {
        Self::of(LOCAL, format!("{}: {}", what.into(), chain(error)))
    }

    /// Something on this machine, which has been said: status 1.
    pub(crate) fn local(message: String) -> Self {
        Self::of(LOCAL, message)
    }

    /// The server did not start: status 1.
    pub(crate) fn start(error: &StartError, said: Said) -> Self {
        Self { help: help(error, said), ..Self::of(LOCAL, chain(error)) }
    }

    /// The command line or the configuration is wrong: status 2.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::of(USAGE, message.into())
    }

    /// Something that cannot be, or that is a consequence of another failure: status 1.
    pub(crate) fn internal(message: &str) -> Self {
        Self { internal: true, ..Self::of(LOCAL, message.to_owned()) }
    }

    /// There is no session: status 2, 3 or 4.
    pub(crate) fn initiator(error: &lunette_initiator::Error) -> Self {
        let status = match error {
            lunette_initiator::Error::Options(_) => USAGE,
            lunette_initiator::Error::System { .. } => LOCAL,
            error if error.is_authentication() => AUTHENTICATION,
            _ => SESSION,
        };
        let side = error.side().map(|side| match side {
            lunette_initiator::Side::Initiator => "initiator",
            lunette_initiator::Side::Target => "target",
        });
        Self { side, ..Self::of(status, chain(error)).with_help(error.advice()) }
    }

    /// A session that does not last: status 3.
    pub(crate) fn session(message: String) -> Self {
        Self::of(SESSION, message).with_help("look at the target's log and at the network")
    }

    /// A command has no status that could be used: status 3, or 5 where it is the target's doing.
    pub(crate) fn command(error: &CommandError) -> Self {
        let (status, side) = match error {
            CommandError::Faulty { .. }
            | CommandError::TargetFailure { .. }
            | CommandError::Changed(_)
            | CommandError::Overdue { .. } => (SCSI, Some("target")),
            _ => (SESSION, None),
        };
        let help = match error {
            CommandError::NotSent(_) | CommandError::Unknown(_) => Some(LOST),
            CommandError::Faulty { fault: AnswerFault::DataDigest, .. } => Some(SPOILT),
            _ => None,
        };
        let (unflushed, help) = (*error == CommandError::ResetSinceFlush, help.map(ToOwned::to_owned));
        Self { help, side, unflushed, ..Self::of(status, chain(error)) }
    }

    /// The session was lost under a command that changes nothing: status 3.
    pub(crate) fn unanswered(why: &str) -> Self {
        Self::of(SESSION, format!("the session was lost before a command was answered: {why}"))
            .with_help(LOST)
    }

    /// A flush was answered in a later session than something that it was to cover: status 3.
    pub(crate) fn flushed_too_late(name: &str) -> Self {
        let message = format!(
            "{name}: the session was lost between a write and its flush, and a target with a write cache may have lost the write, too"
        );
        Self::of(SESSION, message)
            .with_help("do it again: what was written is not known to be there")
            .of_flush()
    }

    /// A unit is ready in a later session than it was last sanitized in, and may have been restarted in the middle: status 3.
    pub(crate) fn sanitize_in_doubt(name: &str) -> Self {
        let message = format!(
            "{name}: the session was lost, or the unit reset, before the end of SANITIZE was seen, and a target that keeps no state \
             drops it then"
        );
        Self::of(SESSION, message)
            .with_help("do it again: what is on the disk is not known to be erased")
            .of_flush()
    }

    /// The target refused a command, or did not follow the standard: status 5.
    pub(crate) fn scsi(message: String, help: Option<String>) -> Self {
        Self { help, side: Some("target"), ..Self::of(SCSI, message) }
    }

    /// An emulated network has not what it takes: status 125.
    pub(crate) fn wan(message: String) -> Self {
        Self::of(WAN, message)
    }

    /// The system refused something that an emulated network takes: status 125.
    pub(crate) fn network(what: impl Into<String>, error: &dyn Error) -> Self {
        Self::of(WAN, format!("{}: {}", what.into(), chain(error)))
    }

    /// Data differ: status 6.
    pub(crate) fn mismatch(message: String) -> Self {
        Self::of(MISMATCH, message)
    }

    /// What another process of ours has said of its end.
    pub(crate) fn elsewhere(status: u8, message: String, help: Option<String>) -> Self {
        Self { help, ..Self::of(status.max(LOCAL), message) }
    }

    /// Its status, and what to try.
    pub(crate) fn status_and_help(&self) -> (u8, Option<&str>) {
        (self.status, self.help.as_deref())
    }

    /// The same with what to try.
    pub(crate) fn with_help(self, help: &str) -> Self {
        Self { help: Some(help.to_owned()), ..self }
    }

    /// The same with where it was.
    pub(crate) fn with_place(self, place: &str) -> Self {
        Self { message: format!("{}, {place}", self.message), ..self }
    }

    /// The same, to be told as one line of JSON.
    pub(crate) fn told_as_json(self) -> Self {
        Self { form: Form::Json, ..self }
    }

    /// The target said no, or something strange; the session goes on.
    pub(crate) fn is_of_scsi(&self) -> bool {
        self.status == SCSI
    }

    /// What was done since the last flush may be lost, and can be done again.
    pub(crate) fn is_unflushed(&self) -> bool {
        self.unflushed
    }

    /// The same failure, of a flush that may not have been carried out.
    pub(crate) fn of_flush(self) -> Self {
        Self { unflushed: true, ..self }
    }

    /// The same, because the target does not have the command, or not in this form.
    pub(crate) fn of_unfit(self, unfit: Option<Unfit>) -> Self {
        Self { unfit, ..self }
    }

    /// Whether the target does not have the command, or not in this form.
    pub(crate) fn unfit(&self) -> Option<Unfit> {
        self.unfit
    }

    /// The same, of this command alone.
    pub(crate) fn of_tag(self, tag: u64) -> Self {
        Self { tag: Some(tag), ..self }
    }

    /// Which command it is of, where the session goes on.
    pub(crate) fn tag(&self) -> Option<u64> {
        self.tag
    }

    /// See [`Failure::internal`].
    pub(crate) fn is_internal(&self) -> bool {
        self.internal
    }

    /// Says it. A closed standard error is no reason for another failure.
    pub(crate) fn report(&self) -> ExitCode {
        if self.form == Form::Json {
            let help = self.help.as_deref();
            let report = Report { error: &self.message, help, side: self.side, status: self.status };
            say(&serde_json::to_string(&report).unwrap_or_default());
            return ExitCode::from(self.status);
        }
        say(&format!("error: {}", self.message));
        if let Some(help) = &self.help {
            say(&format!("help: {help}"));
        }
        ExitCode::from(self.status)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
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

/// Where the operator says what is served, and so the syntax of advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    InFlags,
    /// In the file of `--config`.
    InFile,
}

/// What to type differently.
fn help(error: &StartError, said: Said) -> Option<String> {
    if is_out_of_descriptors(error) {
        let help = "the process may not have more open files: raise LimitNOFILE= of its systemd unit (`ulimit -Hn` shows it)";
        return Some(help.to_owned());
    }
    match error {
        StartError::Portal { address, source } if source.kind() == io::ErrorKind::AddrInUse => {
            let mut free = *address;
            free.set_port(0);
            Some(match said {
                Said::InFlags => format!("--portal {free} picks a free port and says which"),
                Said::InFile => {
                    format!(
                        "\"{free}\" in portals, or port = 0 in its [[portal]], picks a free port and says which"
                    )
                }
            })
        }
        StartError::Volume { source: OpenError::Io { path, source, .. }, .. }
            if source.kind() == io::ErrorKind::PermissionDenied && path.starts_with("/dev") =>
        {
            Some("disks are usually open to root and to the group disk only".to_owned())
        }
        StartError::Volume { source, .. } => option_of(source).map(|options| match said {
            Said::InFlags => {
                let flags =
                    options.replace(" = ", "=").replace(", ", ",").replace('"', "").replace("ro=true", "ro");
                format!("options stand behind the path, after a comma: --lun PATH,{flags}")
            }
            Said::InFile => format!("in its [[target.lun]]: {options}"),
        }),
        _ => None,
    }
}

/// The options of a logical unit that an error speaks of, as a file has them.
fn option_of(error: &OpenError) -> Option<String> {
    match error {
        OpenError::Missing { .. } => Some("size = \"10G\"".to_owned()),
        OpenError::NoIdentity { .. } => Some("serial = \"NAME\"".to_owned()),
        OpenError::NoDirect { .. } | OpenError::NoUring { .. } => Some("engine = \"threads\"".to_owned()),
        OpenError::Protected { kind, block_length_bytes, .. } => {
            Some(format!("protection = {kind}, block = {block_length_bytes}"))
        }
        OpenError::Io { doing, .. } if doing.ends_with("(ro serves it read-only)") => {
            Some("ro = true".to_owned())
        }
        _ => None,
    }
}

/// Whether the process has as many open files as it may have.
fn is_out_of_descriptors(error: &dyn Error) -> bool {
    let is_one = |error: &(dyn Error + 'static)| {
        let error = error.downcast_ref::<io::Error>();
        error.and_then(io::Error::raw_os_error) == Some(Errno::MFILE.raw_os_error())
    };
    std::iter::successors(error.source(), |&error| error.source()).any(is_one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_target::UnitPlace;

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
        assert_eq!(
            help(&error, Said::InFlags).as_deref(),
            Some("--portal [::1]:0 picks a free port and says which")
        );
        let in_file = help(&error, Said::InFile).unwrap();
        assert!(in_file.contains("\"[::1]:0\" in portals") && !in_file.contains("--portal"), "{in_file}");
    }

    fn not_opened(source: OpenError) -> StartError {
        let unit = UnitPlace { target: "iqn.2026-11.io.lunette:a".into(), lun: 3 };
        StartError::Volume { unit, source }
    }

    #[test]
    fn options_are_told_as_they_are_written() {
        let told = |source: OpenError| {
            let error = not_opened(source);
            [Said::InFlags, Said::InFile].map(|said| help(&error, said).unwrap())
        };
        let [flags, file] = told(OpenError::Missing { path: "a.img".into() });
        assert!(flags.ends_with(": --lun PATH,size=10G"), "{flags}");
        assert_eq!(file, "in its [[target.lun]]: size = \"10G\"");
        let doing = "open it for writing (ro serves it read-only)";
        let source = io::ErrorKind::PermissionDenied.into();
        let [flags, file] = told(OpenError::Io { path: "a.img".into(), doing, source });
        assert!(flags.ends_with(",ro") && file.ends_with(": ro = true"), "{flags} {file}");
        let (path, beside) = ("a.img".into(), "a.img.pi".into());
        let [flags, file] = told(OpenError::Protected { path, beside, kind: 1, block_length_bytes: 512 });
        assert!(flags.ends_with(",protection=1,block=512"), "{flags}");
        assert!(file.ends_with("protection = 1, block = 512"), "{file}");
    }

    #[test]
    fn the_unit_is_named_with_its_target() {
        let text = chain(&not_opened(OpenError::Missing { path: "a.img".into() }));
        assert!(text.starts_with("iqn.2026-11.io.lunette:a LUN 3: a.img does not exist"), "{text}");
    }

    #[test]
    fn too_few_descriptors_are_told_where_there_are_more() {
        let source = io::Error::from_raw_os_error(Errno::MFILE.raw_os_error());
        let error = not_opened(OpenError::Io { path: "a.img".into(), doing: "open it", source });
        assert!(help(&error, Said::InFile).unwrap().contains("LimitNOFILE"));
        let source = io::Error::from_raw_os_error(Errno::MFILE.raw_os_error());
        assert!(help(&StartError::System(source), Said::InFlags).unwrap().contains("ulimit -Hn"));
    }

    #[test]
    fn a_closed_device_gets_advice() {
        let refused = |path: &str, kind: io::ErrorKind| {
            not_opened(OpenError::Io { path: path.into(), doing: "open it", source: kind.into() })
        };
        let help = |error: &StartError| help(error, Said::InFlags);
        assert!(help(&refused("/dev/sda", io::ErrorKind::PermissionDenied)).is_some());
        assert_eq!(help(&refused("/dev/sda", io::ErrorKind::NotFound)), None);
        assert_eq!(help(&refused("/srv/a.img", io::ErrorKind::PermissionDenied)), None);
    }
}
