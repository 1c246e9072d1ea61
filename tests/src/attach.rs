//! `lunette attach` as a child, and an NBD client of a few lines that can also do what no client should.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use crate::lunette::{STOP_LIMIT, binary};
use crate::server::{lines, next_line};

const START_LIMIT: Duration = Duration::from_secs(30);
/// How long a client waits for an answer: also over a restart of the target.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);

/// What `lunette attach --json` says on its first line.
#[derive(Debug, Clone, Deserialize)]
pub struct Ready {
    /// The export's URI.
    #[serde(default)]
    pub nbd: Option<String>,
    /// The file.
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// The disk's size.
    pub size_bytes: u64,
    /// The length of its blocks.
    pub block_bytes: u32,
    /// Nothing can be changed.
    pub read_only: bool,
}

/// True where this process may mount by FUSE; else the test is counted as skipped.
#[must_use]
pub fn can_mount() -> bool {
    let is_there = File::options().read(true).write(true).open("/dev/fuse").is_ok();
    let may = is_there && rustix::process::geteuid().is_root();
    if !may {
        crate::skip::record_lacking("FUSE file systems cannot be mounted here (no /dev/fuse, or not root)");
    }
    may
}

fn read(line: &str) -> Result<Ready> {
    serde_json::from_str(line).with_context(|| format!("ready line {line:?}"))
}

/// A disk that is attached; the process is killed when this is dropped.
#[derive(Debug)]
pub struct Attached {
    child: Child,
    /// What it said first.
    pub ready: Ready,
    lines: Mutex<Receiver<String>>,
    log: PathBuf,
    _directory: tempfile::TempDir,
}

impl Attached {
    /// Attaches the disk of this URL as an NBD export with further arguments; without `--nbd` among them at a free port.
    ///
    /// # Errors
    /// It ended, or said nothing; the text has its log.
    pub fn start(url: &str, arguments: &[&str]) -> Result<Self> {
        let address: &[&str] = if arguments.contains(&"--nbd") { &[] } else { &["--nbd", "127.0.0.1:0"] };
        Self::run(url, &[arguments, address].concat())
    }

    /// Attaches it as a file in this directory.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn mount(url: &str, directory: &Path, arguments: &[&str]) -> Result<Self> {
        let directory = directory.to_str().context("a path in UTF-8")?;
        Self::run(url, &[&[directory], arguments].concat())
    }

    fn run(url: &str, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(binary());
        command.args(["attach", url, "--json"]).args(arguments);
        Self::of(command)
    }

    /// Runs exactly this command, which must attach a disk and say so with `--json`.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn of(mut command: Command) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let log = directory.path().join("log");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .spawn()
            .context("cannot start lunette attach")?;
        let stdout = child.stdout.take().context("the child's standard output")?;
        let lines = lines(stdout);
        match next_line(&lines, START_LIMIT).and_then(|line| read(&line)) {
            Ok(ready) => Ok(Self { child, ready, lines: Mutex::new(lines), log, _directory: directory }),
            Err(error) => {
                let _ = child.kill();
                let ending = child.wait()?;
                Err(anyhow!("{error:#}; {ending}; its log:\n{}", std::fs::read_to_string(&log)?))
            }
        }
    }

    /// Waits until it says again what is there.
    ///
    /// # Errors
    /// It does not.
    pub fn next_ready(&self) -> Result<Ready> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        next_line(&lines, ANSWER_LIMIT).and_then(|line| read(&line))
    }

    /// All that it has said on its standard error.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Where its NBD server listens, if that is a TCP port.
    ///
    /// # Panics
    /// It is none.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        let address = self.uri().strip_prefix("nbd://").and_then(|address| address.parse().ok());
        address.unwrap_or_else(|| panic!("no address: {:?}", self.ready))
    }

    /// The URI of its NBD export.
    ///
    /// # Panics
    /// It has none.
    #[must_use]
    pub fn uri(&self) -> &str {
        self.ready.nbd.as_deref().expect("an export")
    }

    /// The file.
    ///
    /// # Panics
    /// It has none.
    #[must_use]
    pub fn file(&self) -> &Path {
        self.ready.file.as_deref().expect("a file")
    }

    /// A client that has chosen the export by `NBD_OPT_EXPORT_NAME` and may access any bytes.
    ///
    /// # Errors
    /// The server does not let it in.
    pub fn client(&self) -> Result<Client> {
        let stream = TcpStream::connect(self.address())?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        Client::begin(Box::new(stream))
    }

    /// A client with structured replies and the context `base:allocation`.
    ///
    /// # Errors
    /// The server does not let it in, or does not have them.
    pub fn structured_client(&self) -> Result<StructuredClient> {
        let stream = TcpStream::connect(self.address())?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        StructuredClient::begin(Box::new(stream))
    }

    /// Ends it by a signal; it must say that all is well.
    ///
    /// # Errors
    /// It does not end, or with another status than 0; the text has its log.
    pub fn detach(self) -> Result<()> {
        self.terminate()?;
        self.end()
    }

    /// Sends it SIGTERM.
    ///
    /// # Errors
    /// It has ended.
    pub fn terminate(&self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// It has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Waits for its end; it must say that all is well.
    ///
    /// # Errors
    /// As [`Self::detach`].
    pub fn end(mut self) -> Result<()> {
        let deadline = Instant::now() + STOP_LIMIT;
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break status,
                None => ensure!(Instant::now() < deadline, "it does not end; its log:\n{}", self.log()),
            }
            thread::sleep(Duration::from_millis(5));
        };
        ensure!(status.success(), "{status}; its log:\n{}", self.log());
        Ok(())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(directory) = self.ready.file.as_deref().and_then(Path::parent) {
            // It may be unmounted already; if not, nobody serves it any more.
            let _ = rustix::mount::unmount(directory, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Something that bytes go over.
trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A client in the transmission phase.
pub struct Client(Box<dyn Stream>);

/// Commands of the protocol, and some of their flags.
pub mod command {
    /// READ
    pub const READ: u16 = 0;
    /// WRITE
    pub const WRITE: u16 = 1;
    /// DISC
    pub const DISCONNECT: u16 = 2;
    /// FLUSH
    pub const FLUSH: u16 = 3;
    /// TRIM
    pub const TRIM: u16 = 4;
    /// WRITE_ZEROES
    pub const WRITE_ZEROES: u16 = 6;
    /// BLOCK_STATUS
    pub const BLOCK_STATUS: u16 = 7;
    /// Answered when it is stable.
    pub const FUA: u16 = 1;
    /// Only if it is faster than a write.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// One extent is enough.
    pub const REQ_ONE: u16 = 1 << 3;
}

impl Client {
    /// As [`Attached::client`], over a socket in the file system.
    ///
    /// # Errors
    /// The server does not let it in.
    pub fn at(path: &Path) -> Result<Self> {
        Self::begin(Box::new(UnixStream::connect(path)?))
    }

    fn begin(stream: Box<dyn Stream>) -> Result<Self> {
        let mut client = Self::greeted(stream)?;
        client.choose()?;
        Ok(client)
    }

    fn greeted(stream: Box<dyn Stream>) -> Result<Self> {
        let mut client = Self(stream);
        let greeting: [u8; 18] = client.bytes()?;
        ensure!(greeting == *b"NBDMAGICIHAVEOPT\0\x03", "{greeting:?}");
        client.send(b"\0\0\0\x03")?;
        Ok(client)
    }

    /// `NBD_OPT_EXPORT_NAME`, which has no other answer.
    fn choose(&mut self) -> Result<()> {
        self.send(b"IHAVEOPT\0\0\0\x01\0\0\0\0")?;
        let _size_and_flags: [u8; 10] = self.bytes()?;
        Ok(())
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.0.write_all(bytes)?)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// The header of a request.
    #[must_use]
    pub fn header((command, flags): (u16, u16), cookie: u64, offset: u64, length: u32) -> Vec<u8> {
        let fields =
            [0x2560_9513u32.to_be_bytes().as_slice(), &flags.to_be_bytes(), &command.to_be_bytes()].concat();
        [fields.as_slice(), &cookie.to_be_bytes(), &offset.to_be_bytes(), &length.to_be_bytes()].concat()
    }

    /// Begins a write.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn begin_write(&mut self, cookie: u64, offset: u64, data: &[u8]) -> Result<()> {
        let header = Self::header((command::WRITE, 0), cookie, offset, u32::try_from(data.len())?);
        self.send(&[header.as_slice(), data].concat())
    }

    /// The next answer without data: which request, and its error.
    ///
    /// # Errors
    /// The connection is closed, or this is no answer.
    pub fn answer(&mut self) -> Result<(u64, u32)> {
        let bytes: [u8; 16] = self.bytes()?;
        ensure!(bytes[..4] == 0x6744_6698u32.to_be_bytes(), "no reply: {bytes:?}");
        Ok((u64::from_be_bytes(bytes[8..].try_into()?), u32::from_be_bytes(bytes[4..8].try_into()?)))
    }

    /// Carries out a request without data; its error, 0 for none.
    ///
    /// # Errors
    /// As [`Self::answer`].
    pub fn request(&mut self, what: (u16, u16), offset: u64, length: u32) -> Result<u32> {
        self.send(&Self::header(what, 7, offset, length))?;
        let (cookie, error) = self.answer()?;
        ensure!(cookie == 7, "the reply to {cookie}");
        Ok(error)
    }

    /// Writes; the error, 0 for none.
    ///
    /// # Errors
    /// As [`Self::answer`].
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<u32> {
        self.begin_write(8, offset, data)?;
        Ok(self.answer()?.1)
    }

    /// Reads what must be readable.
    ///
    /// # Errors
    /// As [`Self::answer`], or the read failed.
    pub fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>> {
        let error = self.request((command::READ, 0), offset, length)?;
        ensure!(error == 0, "error {error}");
        let mut data = vec![0; length as usize];
        self.0.read_exact(&mut data)?;
        Ok(data)
    }

    /// Flushes; the error, 0 for none.
    ///
    /// # Errors
    /// As [`Self::answer`].
    pub fn flush(&mut self) -> Result<u32> {
        self.request((command::FLUSH, 0), 0, 0)
    }

    /// True if the server closes the connection without another byte.
    #[must_use]
    pub fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        matches!(self.0.read(&mut byte), Ok(0))
            || self.0.read(&mut byte).is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
    }
}

/// A client in the transmission phase that gets structured replies, and may ask for `base:allocation`.
pub struct StructuredClient {
    client: Client,
    context: u32,
}

/// The reply to a request of such a client: each must come in one chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunk {
    /// It is done.
    Done,
    /// What is there from this offset on.
    Data(u64, Vec<u8>),
    /// Lengths and flags.
    Extents(Vec<(u32, u32)>),
    /// The error and its words.
    Error(u32, String),
}

impl StructuredClient {
    fn begin(stream: Box<dyn Stream>) -> Result<Self> {
        const CONTEXT: &[u8] = b"base:allocation";
        let mut client = Client::greeted(stream)?;
        let mut answer = |option: u8, data: &[u8]| -> Result<Vec<u8>> {
            client.send(
                &[b"IHAVEOPT\0\0\0", &[option][..], &(data.len() as u32).to_be_bytes(), data].concat(),
            )?;
            let (mut last, mut kind) = (Vec::new(), [0; 4]);
            while kind != [0, 0, 0, 1] {
                let head: [u8; 20] = client.bytes()?;
                kind = std::array::from_fn(|index| head[12 + index]);
                ensure!(kind[0] == 0, "option {option} is refused: {kind:?}");
                let mut data =
                    vec![0; u32::from_be_bytes(std::array::from_fn(|index| head[16 + index])) as usize];
                client.0.read_exact(&mut data)?;
                last = if data.is_empty() { last } else { data };
            }
            Ok(last)
        };
        answer(8, &[])?;
        let query = [b"\0\0\0\0\0\0\0\x01\0\0\0\x0f", CONTEXT].concat();
        let context = answer(10, &query)?;
        ensure!(context.get(4..) == Some(CONTEXT), "{context:?}");
        client.choose()?;
        Ok(Self { client, context: u32::from_be_bytes(context[..4].try_into()?) })
    }

    /// Carries out a request without data.
    ///
    /// # Errors
    /// The connection is closed, or this is no reply to it in one chunk.
    pub fn request(&mut self, what: (u16, u16), offset: u64, length: u32) -> Result<Chunk> {
        self.client.send(&Client::header(what, 7, offset, length))?;
        let head: [u8; 20] = self.client.bytes()?;
        ensure!(head[..6] == [0x66, 0x8e, 0x33, 0xef, 0, 1] && head[15] == 7, "no only chunk: {head:?}");
        let mut data = vec![0; u32::from_be_bytes(head[16..].try_into()?) as usize];
        self.client.0.read_exact(&mut data)?;
        let number =
            |at: usize| data.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
        Ok(match head[6..8] {
            [0, 0] if data.is_empty() => Chunk::Done,
            [0, 1] if data.len() > 8 => {
                Chunk::Data(u64::from_be_bytes(data[..8].try_into()?), data.split_off(8))
            }
            [0, 5] if number(0) == Some(self.context) && data.len() % 8 == 4 => {
                let pairs = data[4..]
                    .chunks_exact(4)
                    .map(|bytes| u32::from_be_bytes(std::array::from_fn(|index| bytes[index])));
                let all: Vec<u32> = pairs.collect();
                Chunk::Extents(all.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
            }
            [0x80, 1] => Chunk::Error(number(0).unwrap_or(0), String::from_utf8(data.split_off(6))?),
            _ => anyhow::bail!("no such chunk: {head:?}"),
        })
    }
}
