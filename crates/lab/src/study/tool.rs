//! Programs of the system's that are run to their end, and not for longer than they may take.

use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lunette_wan::spawn_here;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::LabError;

/// How long a tool may take that has little to do: a busy disk may keep it waiting.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);
/// What is kept of each end of what a program says, in bytes: how it begins, and why it has failed.
const END_BYTES_MAX: usize = 32 << 10;
/// How often is looked whether a program that says nothing more has ended.
const STEP: Duration = Duration::from_millis(2);
/// How long a killed one is waited for. One that waits for a disk that is gone may stay for longer, and is left then.
const FAREWELL: Duration = Duration::from_secs(5);

/// Runs a program, and answers what it has said.
///
/// # Errors
/// It cannot be started, fails, or has not ended in time; it is killed then.
pub(crate) fn run(command: Command, name: &str, limit: Duration) -> Result<String, LabError> {
    listen(command, name, "", limit, |_| ())
}

/// The same with something on its standard input; `hear` has all that is kept of what it has said, each time it has said more.
///
/// # Errors
/// As [`run`].
pub(crate) fn listen(
    mut command: Command,
    name: &str,
    input: &str,
    limit: Duration,
    mut hear: impl FnMut(&str),
) -> Result<String, LabError> {
    let failed = LabError::system("a program of the system's");
    let (mut output, told) = io::pipe().map_err(&failed)?;
    command.stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() });
    command.stdout(told.try_clone().map_err(&failed)?).stderr(told);
    let mut running = Running(spawn_here(&mut command).map_err(&failed)?);
    // It is to have the only writing ends of the pipe, so that its end is the end of what it says.
    drop(command);
    if let Some(mut stdin) = running.0.stdin.take() {
        // Who does not read it says so.
        let _ = stdin.write_all(input.as_bytes());
    }
    let late = || LabError::NotReady(format!("{name} has not ended within {} s", limit.as_secs()));
    let begun = Instant::now();
    let mut said = Said::default();
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        let left = Timespec::try_from(left).map_err(|error| failed(io::Error::other(error)))?;
        match poll(&mut [PollFd::new(&output, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Err(late()),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(failed(error.into())),
        }
        let mut piece = [0; 4096];
        match output.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => {
                said.add(&piece[..length]);
                hear(&said.text());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    let status = running.end(limit.saturating_sub(begun.elapsed())).map_err(&failed)?.ok_or_else(late)?;
    let said = said.text();
    if status.success() {
        return Ok(said);
    }
    let said = end_of(&said);
    Err(LabError::NotReady(if said.is_empty() {
        format!("{name} has ended with {status}")
    } else {
        format!("{name} says: {said}")
    }))
}

/// Both ends of what a program says.
#[derive(Debug, Default)]
struct Said {
    begin: Vec<u8>,
    /// What comes behind that, as far as it is kept.
    end: Vec<u8>,
    /// Bytes between them that are not kept.
    left_out: usize,
}

impl Said {
    fn add(&mut self, piece: &[u8]) {
        let room = END_BYTES_MAX - self.begin.len();
        let (first, rest) = piece.split_at(room.min(piece.len()));
        self.begin.extend_from_slice(first);
        self.end.extend_from_slice(rest);
        let over = self.end.len().saturating_sub(END_BYTES_MAX);
        self.end.drain(..over);
        self.left_out += over;
    }

    fn text(&self) -> String {
        let begin = String::from_utf8_lossy(&self.begin);
        let end = String::from_utf8_lossy(&self.end);
        match self.left_out {
            // A character may be in both.
            0 => String::from_utf8_lossy(&[&*self.begin, &*self.end].concat()).into_owned(),
            bytes => format!("{begin}\n... {bytes} bytes are left out here ...\n{end}"),
        }
    }
}

/// The last lines of what a program says, for people.
pub(crate) fn end_of(said: &str) -> String {
    let lines: Vec<&str> = said.trim().lines().collect();
    lines[lines.len().saturating_sub(5)..].join("; ")
}

/// It is killed when it is dropped.
struct Running(Child);

impl Running {
    /// Waits until it has ended, for so long.
    fn end(&mut self, patience: Duration) -> io::Result<Option<ExitStatus>> {
        let begun = Instant::now();
        loop {
            let status = self.0.try_wait()?;
            if status.is_some() || begun.elapsed() >= patience {
                return Ok(status);
            }
            thread::sleep(STEP);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.end(FAREWELL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_tool_that_fails_is_quoted() {
        let failed = |script| run(shell(script), "sh", LIMIT).map_err(|error| error.to_string());
        assert!(
            failed("echo out; echo no >&2; exit 1").is_err_and(|text| text.ends_with("sh says: out; no"))
        );
        assert!(failed("exit 3").is_err_and(|text| text.contains("sh has ended with exit status: 3")));
        assert_eq!(run(shell("echo yes"), "sh", LIMIT).ok().as_deref(), Some("yes\n"));
        assert!(run(Command::new("/no/such/program"), "it", LIMIT).is_err());
    }

    #[test]
    fn who_takes_too_long_is_ended() {
        let begun = Instant::now();
        // One who goes on in silence, and one who has closed what he would say it on.
        for script in ["exec sleep 600", "exec sleep 600 >/dev/null 2>&1"] {
            let late =
                run(shell(script), "sleep", Duration::from_millis(1100)).map_err(|error| error.to_string());
            assert!(late.is_err_and(|text| text.contains("sleep has not ended within 1 s")), "{script}");
        }
        assert!(begun.elapsed() < Duration::from_secs(300), "{:?}", begun.elapsed());
    }

    #[test]
    fn what_is_said_is_heard_when_it_is_said() {
        let directory = tempfile::tempdir().expect("a directory");
        let is_heard = directory.path().join("heard");
        let mut heard = Vec::new();
        // It says no more before it was heard.
        let script = format!(
            "read word; echo $word; while ! test -e {}; do sleep 0.05; done; seq 20000",
            is_heard.display()
        );
        let said = listen(shell(&script), "sh", "begun\nmore\n", LIMIT, |text| {
            heard.push(text.len());
            std::fs::write(&is_heard, "").expect("a file");
        });
        let said = said.expect("an end");
        assert!(said.starts_with("begun\n1\n") && heard[0] == 6 && heard.len() > 1, "{heard:?}");
        // What is too much to be kept keeps nobody from ending, and both ends are kept.
        assert!(
            said.len() < 2 * END_BYTES_MAX + 4096 && said.ends_with("\n19999\n20000\n"),
            "{}",
            said.len()
        );
        assert!(said.contains(" bytes are left out here ..."), "{said}");
    }

    #[test]
    fn a_tool_that_says_much_is_quoted_with_what_it_says_last() {
        let script = "seq 100000; echo 'no space left' >&2; exit 1";
        let failed = run(shell(script), "sh", LIMIT).map_err(|error| error.to_string());
        assert!(failed.is_err_and(|text| text.ends_with("99999; 100000; no space left")));
    }

    #[test]
    fn what_is_kept_is_all_of_it_as_long_as_that_fits() {
        let mut said = Said::default();
        // An odd number of bytes, so that a character of two has one on each side.
        said.add(&vec![b'x'; END_BYTES_MAX - 1]);
        said.add("é".as_bytes());
        assert!(said.text().ends_with("xé") && said.text().len() == END_BYTES_MAX + 1);
        said.add(&vec![b'y'; END_BYTES_MAX - 1]);
        assert_eq!((said.text().len(), said.left_out), (2 * END_BYTES_MAX, 0));
        said.add(b"zz");
        assert_eq!((said.end.len(), said.left_out), (END_BYTES_MAX, 2));
        assert!(said.text().ends_with("yzz") && said.text().contains("... 2 bytes are left out here ..."));
    }
}
