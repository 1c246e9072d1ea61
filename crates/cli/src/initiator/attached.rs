//! How `lunette detach` finds what `lunette attach` shows: each such process has a socket in a directory of the user's. Who connects
//! is told what is attached, and may ask for its end; then he is told how that went. A line of JSON each.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::runtime::directory;

/// The part of the user's directory.
const WHAT: &str = "attach";
/// How long the other side may be silent where it need not think.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest line that is read.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// What is attached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attached {
    pub(crate) url: String,
    /// The directory, or where the NBD export is, as `--nbd` has it; paths are absolute and without links.
    pub(crate) place: String,
    pub(crate) pid: u32,
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Request {
    Detach,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    pub(crate) status: u8,
    pub(crate) error: Option<String>,
    pub(crate) help: Option<String>,
}

/// The socket of a process that has a disk attached.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Who asked for the end.
    waiting: Mutex<Vec<UnixStream>>,
}

impl Socket {
    /// Makes it.
    ///
    /// # Errors
    /// The directory or the socket cannot be made.
    pub(crate) fn bind() -> io::Result<Self> {
        let path = directory(WHAT)?.join(format!("{}.socket", std::process::id()));
        // What is there was left by a process that had the same number.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(Self { listener: UnixListener::bind(&path)?, path, waiting: Mutex::default() })
    }

    /// Answers who asks; `detach` begins the end.
    pub(crate) fn serve(&self, what: &Attached, detach: impl Fn()) {
        for mut stream in self.listener.incoming().map_while(Result::ok) {
            if send(&mut stream, what).is_ok() && receive(&stream) == Ok(Request::Detach) {
                self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
                detach();
            }
        }
    }

    /// Tells those who asked for the end, and lets nobody in any more.
    pub(crate) fn close(&self, end: &End) {
        // The directory may have been cleared.
        let _ = fs::remove_file(&self.path);
        for mut stream in self.waiting.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // Who asked may have gone.
            let _ = send(&mut stream, end);
        }
    }
}

/// A process that has a disk attached, as others see it. Nobody keeps it waiting while others are looked at: it is connected to
/// again for its end.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) what: Attached,
    path: PathBuf,
}

impl Holder {
    /// All of this user's.
    ///
    /// # Errors
    /// There is no directory for them.
    pub(crate) fn all() -> io::Result<Vec<Holder>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(directory(WHAT)?)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "socket") {
                continue;
            }
            match UnixStream::connect(&path) {
                Ok(stream) => {
                    // Who ends at this moment says nothing any more.
                    if let Ok(what) = receive(&stream) {
                        all.push(Holder { what, path });
                    }
                }
                // Its process was killed.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    let _ = fs::remove_file(&path);
                }
                Err(_) => {}
            }
        }
        all.sort_by(|one, other| one.what.place.cmp(&other.what.place));
        Ok(all)
    }

    /// Has it end, and tells how that went; `waits` is called if it takes longer than people like.
    ///
    /// # Errors
    /// It is gone, and nobody knows.
    pub(crate) fn detach(&self, waits: impl FnOnce()) -> Result<End, Failure> {
        let gone = |error: &io::Error| {
            Failure::local(format!(
                "the process {} is gone and has not said how it ended: {error}",
                self.what.pid
            ))
            .with_help("what was not flushed before may be lost")
        };
        let mut stream = self.connect().map_err(|error| gone(&error))?;
        send(&mut stream, &Request::Detach).map_err(|error| gone(&error))?;
        if !has_answer(&stream) {
            waits();
        }
        // As long as somebody has the disk open, and for a target that is away.
        stream.set_read_timeout(None).map_err(|error| gone(&error))?;
        line(&stream).map_err(|error| gone(&error))
    }

    /// Unless another process has its number by now.
    fn connect(&self) -> io::Result<UnixStream> {
        let stream = UnixStream::connect(&self.path)?;
        match receive::<Attached>(&stream) {
            Ok(what) if what == self.what => Ok(stream),
            Ok(_) => Err(io::ErrorKind::NotFound.into()),
            Err(kind) => Err(kind.into()),
        }
    }
}

/// Whether something comes within the time that people wait without wondering.
fn has_answer(stream: &UnixStream) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let soon = Timespec { tv_sec: 2, tv_nsec: 0 };
    poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&soon)).is_ok_and(|ready| ready > 0)
}

fn send<T: Serialize>(stream: &mut UnixStream, what: &T) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all((serde_json::to_string(what)? + "\n").as_bytes())
}

fn receive<T: for<'de> Deserialize<'de>>(stream: &UnixStream) -> Result<T, io::ErrorKind> {
    let received = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| line(stream));
    received.map_err(|error| error.kind())
}

fn line<T: for<'de> Deserialize<'de>>(stream: &UnixStream) -> io::Result<T> {
    let mut line = String::new();
    BufReader::new(Read::take(stream, LINE_BYTES_MAX)).read_line(&mut line)?;
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_str(&line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
