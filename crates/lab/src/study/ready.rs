//! Programs that tell when they are ready: by one line on their standard output.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::LabError;

/// How long a program of ours may take until it is ready: far more than it takes to open disks, or to log in over a slow link.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// The longest line, in bytes.
const LINE_BYTES_MAX: usize = 64 << 10;

/// The line of a program whose standard output is a pipe, which is closed then. The program is not ended.
///
/// # Errors
/// It has ended without a word, as it does when it cannot be ready, or says nothing.
pub(crate) fn wait(child: &mut Child, name: &str, patience: Duration) -> Result<String, LabError> {
    let line = child.stdout.take().map_or(Ok(String::new()), |output| first_line(output, patience));
    match line {
        Ok(line) if !line.is_empty() => Ok(line),
        Ok(_) => Err(LabError::NotReady(format!("{name} has ended"))),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(LabError::NotReady(format!(
            "{name} has not said within {} s that it is ready",
            patience.as_secs()
        ))),
        Err(error) => Err(LabError::NotReady(format!("{name} cannot be heard: {error}"))),
    }
}

/// What comes up to the end of a line, or of everything.
fn first_line(mut output: impl Read + AsFd, patience: Duration) -> io::Result<String> {
    let begun = Instant::now();
    let mut line = Vec::new();
    while !line.contains(&b'\n') && line.len() < LINE_BYTES_MAX {
        let left = Timespec::try_from(patience.saturating_sub(begun.elapsed())).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&output, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let mut piece = [0; 4096];
        match output.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => line.extend_from_slice(&piece[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// What comes of a script, within a time.
    fn wait_for(script: &str, patience: Duration) -> Result<String, String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a shell");
        let told = wait(&mut child, "it", patience).map_err(|error| error.to_string());
        let _ = child.kill();
        let _ = child.wait();
        told
    }

    #[test]
    fn who_says_nothing_is_not_waited_for_for_ever() {
        let long = Duration::from_secs(600);
        assert_eq!(wait_for("printf 'rea'; printf 'dy\\n'; exec sleep 600", long), Ok("ready\n".to_owned()));
        assert!(wait_for("exit 1", long).is_err_and(|told| told.ends_with("it has ended")));
        // Neither does one who does not come to the end of his line.
        for script in ["exec sleep 600", "printf rea; exec sleep 600"] {
            let told = wait_for(script, Duration::from_millis(1100));
            assert!(told.is_err_and(|told| told.contains("has not said within 1 s")), "{script}");
        }
    }
}
