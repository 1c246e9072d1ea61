//! `lunette read`, `write`, `verify` and `checksum`: a part of a disk, in order, many commands at a time.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use lunette_scsi::client::medium::Caching;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::amount::Span;
use super::disk::Disk;
use super::options::{Algorithm, ChecksumOptions, ReadOptions, SourceOptions, VerifyOptions, WriteOptions};
use super::pattern::Pattern;
use super::report::tell;
use super::stream::{Flow, ReadStream, WriteStream};
use crate::banner::size;
use crate::failure::{Failure, say};

/// What was transferred.
#[derive(Debug, Serialize)]
pub(crate) struct Transferred {
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
}

impl Transferred {
    pub(crate) fn since(start: Instant, bytes: u64) -> Transferred {
        Transferred { bytes, seconds: start.elapsed().as_secs_f64() }
    }

    /// `1 GiB in 2.0 s (512 MiB/s)`
    pub(crate) fn text(&self) -> String {
        let rate = self.bytes as f64 / self.seconds.max(1e-6) / f64::from(1 << 20);
        format!("{} in {:.1} s ({rate:.1} MiB/s)", size(self.bytes), self.seconds)
    }
}

fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// `lunette read`.
pub(crate) fn read(options: &ReadOptions) -> Result<(), Failure> {
    let mut disk = Disk::open(&options.url, &options.access)?;
    let span = options.range.resolve(&disk.capacity()?)?;
    let failed =
        |error: io::Error| Failure::new(format!("cannot write to {}", options.output.display()), &error);
    let mut output = if is_standard(&options.output) {
        File::from(io::stdout().as_fd().try_clone_to_owned().map_err(failed)?)
    } else {
        create(&options.output, options.force)?
    };
    let start = Instant::now();
    let mut stream = ReadStream::new(&disk, span, Flow::new(options.depth.into()));
    while let Some((_, data)) = stream.next(&mut disk)? {
        match output.write_all(&data) {
            // `| head` has read enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(failed)?,
        }
        stream.recycle(data);
    }
    store(&output).map_err(failed)?;
    let transferred = Transferred::since(start, span.length_bytes());
    disk.close()?;
    if options.json {
        // The standard output may be the data's.
        say(&serde_json::to_string(&transferred).unwrap_or_default());
    } else if !is_standard(&options.output) {
        say(&format!("read {}", transferred.text()));
    }
    Ok(())
}

/// Has what was written stored, where it is: many a file system, and every device, says only then that there is no room for it, or that
/// it is broken.
fn store(output: &File) -> io::Result<()> {
    let kind = output.metadata()?.file_type();
    if kind.is_file() || kind.is_block_device() { output.sync_all() } else { Ok(()) }
}

/// A file for what a disk has, which must not be there unless it may be overwritten. A new one is nobody else's to read, as the
/// images that are served.
pub(crate) fn create(path: &Path, force: bool) -> Result<File, Failure> {
    let mut open = OpenOptions::new();
    open.write(true).read(true).mode(0o600);
    let opened =
        if force { open.create(true).truncate(true).open(path) } else { open.create_new(true).open(path) };
    opened.map_err(|error| {
        let failure = Failure::new(format!("cannot create {}", path.display()), &error);
        if error.kind() == io::ErrorKind::AlreadyExists {
            return failure.with_help("--force overwrites it");
        }
        failure
    })
}

/// Reads what is there; nothing at the end.
fn read_some(from: &mut File, name: &str, buffer: &mut [u8]) -> Result<usize, Failure> {
    loop {
        match from.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read.map_err(|error| Failure::new(format!("cannot read {name}"), &error)),
        }
    }
}

/// Data for a range: from a file, the standard input, or a pattern.
enum Source {
    Pattern(Pattern),
    Stream {
        from: File,
        name: String,
        /// Of a file which the range was cut to: it had so many bytes when it was opened.
        file_bytes: Option<u64>,
    },
}

/// Waits until there is something to read, or its end; the session of a disk goes on meanwhile, however slowly a pipe brings it.
fn wait_for_input(from: &File, disk: &mut Disk) -> Result<(), Failure> {
    let mut events = [PollFd::new(from, PollFlags::IN)];
    loop {
        let patience = Timespec::try_from(disk.port.attend()?).ok();
        // Where that cannot be told, the read waits.
        if retry_on_intr(|| poll(&mut events, patience.as_ref())) != Ok(0) {
            return Ok(());
        }
    }
}

impl Source {
    /// Opens it. With a file whose length is known the range is cut to it, if it was not given; what has another length
    /// than what was given is an error later, when the data ends.
    fn open(options: &SourceOptions, span: Span, is_given: bool) -> Result<(Source, Span), Failure> {
        let path = match (&options.pattern, &options.input) {
            (Some(pattern), _) => return Ok((Source::Pattern(pattern.clone()), span)),
            (None, Some(path)) => path,
            (None, None) => return Err(Failure::usage("give --input or --pattern")),
        };
        if is_standard(path) {
            let name = "the standard input".to_owned();
            let from = io::stdin().as_fd().try_clone_to_owned();
            let from = from.map_err(|error| Failure::new(format!("cannot read {name}"), &error))?;
            return Ok((Source::Stream { from: File::from(from), name, file_bytes: None }, span));
        }
        let name = path.display().to_string();
        let failed = |error: io::Error| Failure::new(format!("cannot read {name}"), &error);
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return Err(Failure::usage(format!("{name} is a directory")));
        }
        let (mut span, mut file_bytes) = (span, None);
        if metadata.is_file() && !is_given {
            let block = u64::from(span.block_bytes);
            if !metadata.len().is_multiple_of(block) {
                return Err(Failure::usage(format!(
                    "{name} has {} bytes, which is no multiple of the disk's blocks of {block} bytes",
                    metadata.len()
                )));
            }
            if metadata.len() > span.length_bytes() {
                return Err(Failure::usage(format!(
                    "{name} has {} bytes, and the disk has room for {} from there",
                    metadata.len(),
                    span.length_bytes()
                )));
            }
            span.blocks = metadata.len() / block;
            file_bytes = Some(metadata.len());
        }
        Ok((Source::Stream { from: file, name, file_bytes }, span))
    }

    /// Fills a buffer with what belongs at `offset_bytes` of the disk, and says how much of it; less where the data has ended.
    fn fill(&mut self, offset_bytes: u64, buffer: &mut [u8], disk: &mut Disk) -> Result<usize, Failure> {
        match self {
            Source::Pattern(pattern) => {
                pattern.fill(offset_bytes, buffer);
                Ok(buffer.len())
            }
            Source::Stream { from, name, .. } => {
                let mut filled = 0;
                while filled < buffer.len() {
                    wait_for_input(from, disk)?;
                    match read_some(from, name, &mut buffer[filled..])? {
                        0 => break,
                        count => filled += count,
                    }
                }
                Ok(filled)
            }
        }
    }

    /// There is data that has not been read: `beyond` is the failure of a stream that goes on where the disk ends. All is done with the
    /// disk, whatever becomes of its session meanwhile.
    ///
    /// # Errors
    /// That, or what became of a file.
    fn end(&mut self, beyond: impl FnOnce() -> Failure) -> Result<(), Failure> {
        let Source::Stream { from, name, file_bytes } = self else { return Ok(()) };
        if read_some(from, name, &mut [0])? == 0 {
            return Ok(());
        }
        Err(file_bytes.map_or_else(beyond, |bytes| {
            Failure::local(format!(
                "{name} has grown while it was read: only its first {bytes} bytes were taken"
            ))
        }))
    }

    /// What is wrong with data that ends `filled` bytes into a piece that should be longer.
    fn ended(&self, at_bytes: u64, filled: usize, block_bytes: u32, is_given: bool) -> Option<Failure> {
        let Source::Stream { name, file_bytes, .. } = self else { return None };
        if let Some(bytes) = file_bytes {
            return Some(Failure::local(format!(
                "{name} became shorter while it was read: it had {bytes} bytes, and ends after {at_bytes}"
            )));
        }
        if is_given {
            return Some(Failure::usage(format!(
                "{name} ends after {at_bytes} bytes, before --length is reached"
            )));
        }
        (!filled.is_multiple_of(block_bytes as usize)).then(|| {
            Failure::usage(format!(
                "{name} ends after {at_bytes} bytes, inside a block of {block_bytes} bytes"
            ))
        })
    }
}

/// `lunette write`.
pub(crate) fn write(options: &WriteOptions) -> Result<(), Failure> {
    let mut disk = Disk::open(&options.url, &options.access)?;
    let span = options.range.resolve(&disk.capacity()?)?;
    if disk.facts.is_write_protected() {
        let message = format!("{} is read-only for this initiator", disk.name);
        return Err(Failure::scsi(message, Some("see the target's configuration".to_owned())));
    }
    let is_given = options.range.length.is_some();
    let (mut source, span) = Source::open(&options.source, span, is_given)?;
    let start = Instant::now();
    let caching = Caching { force_unit_access: options.fua, ..Caching::default() };
    let mut stream = WriteStream::new(&disk, span.block_bytes, Flow::new(options.depth.into()), caching);
    let mut done_bytes = 0;
    while done_bytes < span.length_bytes() {
        let length = (span.length_bytes() - done_bytes).min(stream.piece_bytes() as u64) as usize;
        let mut buffer = stream.buffer(length);
        let offset_bytes = span.offset_bytes() + done_bytes;
        let filled = source.fill(offset_bytes, &mut buffer, &mut disk)?;
        let ended = filled < length;
        if ended
            && let Some(failure) =
                source.ended(done_bytes + filled as u64, filled, span.block_bytes, is_given)
        {
            // What was written before is told to be there.
            stream.flush(&mut disk)?;
            return Err(failure);
        }
        buffer.truncate(filled);
        if filled > 0 {
            stream.write(&mut disk, offset_bytes / u64::from(span.block_bytes), buffer)?;
            done_bytes += filled as u64;
        }
        if ended {
            break;
        }
    }
    stream.flush(&mut disk)?;
    if !is_given {
        source.end(|| {
            Failure::usage(format!(
                "there is more data than the disk has room for: its {} bytes from there are written",
                span.length_bytes()
            ))
        })?;
    }
    let transferred = Transferred::since(start, done_bytes);
    disk.close()?;
    tell(options.json, &transferred, |transferred| {
        format!("wrote {}, and it is stable\n", transferred.text())
    })
}

#[derive(Debug, Serialize)]
struct Verified {
    equal: bool,
    #[serde(flatten)]
    transferred: Transferred,
    first_difference: Option<Difference>,
}

/// Where data first differs.
#[derive(Debug, Serialize)]
pub(crate) struct Difference {
    pub(crate) lba: u64,
    pub(crate) offset_bytes: u64,
    pub(crate) expected: String,
    pub(crate) found: String,
}

impl Difference {
    /// Compares what lies at `offset_bytes` of the disk.
    pub(crate) fn find(
        offset_bytes: u64,
        block_bytes: u32,
        expected: &[u8],
        found: &[u8],
    ) -> Option<Difference> {
        if expected == found {
            return None;
        }
        let at = expected.iter().zip(found).position(|(expected, found)| expected != found)?;
        let shown = |data: &[u8]| {
            data[at..].iter().take(8).map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
        };
        let offset_bytes = offset_bytes + at as u64;
        Some(Difference {
            lba: offset_bytes / u64::from(block_bytes),
            offset_bytes,
            expected: shown(expected),
            found: shown(found),
        })
    }

    pub(crate) fn failure(&self, name: &str, block_bytes: u32) -> Failure {
        Failure::mismatch(format!(
            "{name} differs first in block {}, byte {} of it (byte {} of the disk): expected {}, found {}",
            self.lba,
            self.offset_bytes % u64::from(block_bytes),
            self.offset_bytes,
            self.expected,
            self.found
        ))
    }
}

/// `lunette verify`.
pub(crate) fn verify(options: &VerifyOptions) -> Result<(), Failure> {
    let mut disk = Disk::open(&options.url, &options.access)?;
    let span = options.range.resolve(&disk.capacity()?)?;
    let is_given = options.range.length.is_some();
    let (mut source, span) = Source::open(&options.source, span, is_given)?;
    let start = Instant::now();
    let mut stream = ReadStream::new(&disk, span, Flow::new(options.depth.into()));
    let mut expected = Vec::new();
    let mut compared_bytes = 0;
    let mut difference = None;
    while let Some((offset_bytes, data)) = stream.next(&mut disk)? {
        expected.resize(data.len(), 0);
        let filled = source.fill(offset_bytes, &mut expected, &mut disk)?;
        let ended = filled < data.len();
        if ended
            && let Some(failure) =
                source.ended(compared_bytes + filled as u64, filled, span.block_bytes, is_given)
        {
            return Err(failure);
        }
        difference = Difference::find(offset_bytes, span.block_bytes, &expected[..filled], &data[..filled]);
        compared_bytes += filled as u64;
        if ended || difference.is_some() {
            break;
        }
        stream.recycle(data);
    }
    if difference.is_none() && !is_given {
        source.end(|| {
            Failure::mismatch(format!(
                "the input is longer than the {} bytes of the disk from there, which are equal",
                span.length_bytes()
            ))
        })?;
    }
    let name = disk.name.clone();
    let failure = difference.as_ref().map(|difference| difference.failure(&name, span.block_bytes));
    let transferred = Transferred::since(start, compared_bytes);
    let verified = Verified { equal: difference.is_none(), transferred, first_difference: difference };
    if failure.is_none() || options.json {
        tell(options.json, &verified, |verified| format!("equal: {}\n", verified.transferred.text()))?;
    }
    failure.map_or(Ok(()), Err)
}

#[derive(Debug, Serialize)]
struct Checksum {
    algorithm: &'static str,
    checksum: String,
    #[serde(flatten)]
    transferred: Transferred,
}

/// A checksum as it is computed.
enum Sum {
    Sha256(Sha256),
    Crc32c(crc_fast::Digest),
}

impl Sum {
    fn new(algorithm: Algorithm) -> Sum {
        match algorithm {
            Algorithm::Sha256 => Sum::Sha256(Sha256::new()),
            Algorithm::Crc32c => Sum::Crc32c(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi)),
        }
    }

    fn update(&mut self, data: &[u8]) {
        match self {
            Sum::Sha256(sum) => sum.update(data),
            Sum::Crc32c(sum) => sum.update(data),
        }
    }

    fn finish(self) -> (&'static str, String) {
        match self {
            Sum::Sha256(sum) => ("sha256", sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            Sum::Crc32c(sum) => ("crc32c", format!("{:08x}", sum.finalize())),
        }
    }
}

/// `lunette checksum`.
pub(crate) fn checksum(options: &ChecksumOptions) -> Result<(), Failure> {
    let mut disk = Disk::open(&options.url, &options.access)?;
    let span = options.range.resolve(&disk.capacity()?)?;
    let start = Instant::now();
    let mut sum = Sum::new(options.algorithm);
    let mut stream = ReadStream::new(&disk, span, Flow::new(options.depth.into()));
    while let Some((_, data)) = stream.next(&mut disk)? {
        sum.update(&data);
        stream.recycle(data);
    }
    let name = disk.name.clone();
    disk.close()?;
    let (algorithm, checksum) = sum.finish();
    let report =
        Checksum { algorithm, checksum, transferred: Transferred::since(start, span.length_bytes()) };
    tell(options.json, &report, |report| format!("{}  {name}\n", report.checksum))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::process::{self, Command};

    use rustix::fs::{MemfdFlags, SealFlags};

    use super::*;

    /// Its image, in memory, can be written no more, which the device finds out later than who writes to it.
    #[test]
    fn what_is_written_and_cannot_be_stored_is_an_error() {
        let image = rustix::fs::memfd_create("image", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let image = File::from(image.unwrap());
        image.set_len(1 << 20).unwrap();
        let path = format!("/proc/{}/fd/{}", process::id(), image.as_raw_fd());
        let made = Command::new("losetup").args(["--find", "--show", &path]).output();
        let Some(made) = made.ok().filter(|made| made.status.success()) else {
            lunette_skip::record_lacking("losetup, or the right to make loop devices");
            return;
        };
        let device = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        rustix::fs::fcntl_add_seals(&image, SealFlags::WRITE).unwrap();
        let mut output = create(Path::new(&device), true).unwrap();
        let written = output.write_all(&[7; 1 << 16]);
        let stored = store(&output);
        drop(output);
        let ended = Command::new("losetup").args(["--detach", &device]).status().unwrap();
        assert!(ended.success() && written.is_ok(), "{written:?}");
        assert!(stored.is_err());
        // What has nothing to store.
        store(&File::options().write(true).open("/dev/null").unwrap()).unwrap();
    }

    #[test]
    fn the_first_difference_is_named() {
        let mut found = vec![7; 2048];
        assert!(Difference::find(4096, 512, &[7; 2048], &found).is_none());
        found[1030] = 8;
        let difference = Difference::find(4096, 512, &[7; 2048], &found).unwrap();
        assert_eq!((difference.lba, difference.offset_bytes), (10, 5126));
        let text = difference.failure("iscsi://x", 512).to_string();
        assert!(text.contains("block 10, byte 6 of it (byte 5126 of the disk)"), "{text}");
        assert!(text.contains("expected 07 07 07 07 07 07 07 07, found 08 07"), "{text}");
    }

    #[test]
    fn checksums_are_those_of_other_tools() {
        let of = |algorithm| {
            let mut sum = Sum::new(algorithm);
            sum.update(b"1234");
            sum.update(b"56789");
            sum.finish().1
        };
        assert_eq!(of(Algorithm::Crc32c), "e3069283", "the check value of the Castagnoli polynomial");
        assert_eq!(of(Algorithm::Sha256), "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225");
    }
}
