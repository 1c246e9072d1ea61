//! `lunette copy`: a disk or an image file to a disk or an image file.
//!
//! The source is looked at for what holds nothing; what is there is read and written, many commands at a time on both
//! sides, each side on a thread of its own. What holds nothing is made to read as zeros at the destination, unless that is
//! a new file, which does so by itself. Everything is stable before the copy counts as done, and before the record says so.

mod endpoint;
mod record;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use self::endpoint::{Endpoint, Extent, open_destination, open_source};
use self::record::Record;
use super::options::{CopyOptions, End};
use super::report::tell;
use super::transfer::{Difference, Transferred};
use crate::banner::size;
use crate::failure::{Failure, say};

/// How much is copied between two moments at which everything before is stable and noted: at first, at least and at most, and
/// for about how long.
const STEP_BYTES: u64 = 64 << 20;
const STEP_BYTES_MIN: u64 = 4 << 20;
const STEP_BYTES_MAX: u64 = 1 << 30;
const STEP_TIME: Duration = Duration::from_secs(15);

/// The next step, after one that has taken so long.
fn next_step(step_bytes: u64, time: Duration) -> u64 {
    let bytes = step_bytes as f64 * STEP_TIME.as_secs_f64() / time.as_secs_f64().max(1e-3);
    // A multiple of any grain, and no leap at once.
    let bytes = (bytes as u64).clamp(step_bytes / 4, step_bytes * 2).clamp(STEP_BYTES_MIN, STEP_BYTES_MAX);
    bytes >> 20 << 20
}

/// How often such a part is copied again, if the destination is reset before it is stable.
const REPEATS_MAX: u32 = 4;

#[derive(Debug, Serialize)]
struct Copied {
    size_bytes: u64,
    /// What held nothing and was not transferred.
    empty_bytes: u64,
    /// Where an earlier run had come to.
    resumed_at_bytes: u64,
    verified: bool,
    #[serde(flatten)]
    transferred: Transferred,
}

/// Sessions of one identifier with one target would end each other, the further ones of `--multipath` too.
fn check_identifiers(source: &End, destination: &End) -> Result<(), Failure> {
    match (source, destination) {
        (End::Disk(one), End::Disk(other))
            if one.target == other.target && one.isid.and(other.isid).is_some() =>
        {
            Err(Failure::usage("both ends are of one target, and both have an isid")
                .with_help("leave it out of one of the URLs: each of its sessions then has one of its own"))
        }
        _ => Ok(()),
    }
}

/// Copies.
pub(crate) fn run(options: &CopyOptions) -> Result<(), Failure> {
    let mut record = options.resume.as_deref().map(Record::open).transpose()?;
    check_identifiers(&options.source, &options.destination)?;
    let resumed = record.as_ref().and_then(Record::done).is_some();
    let mut source = open_source(&options.source, &options.access.of_source(), options.depth.into())?;
    let bytes = source.size_bytes();
    if is_same_file(&options.source, &options.destination) {
        return Err(Failure::usage("source and destination are the same file"));
    }
    let mut destination = open_destination(&options.destination, bytes, resumed, options)?;
    check_sizes(&*source, &*destination, options)?;
    let identities = [source.identity(), destination.identity()];
    let begin = match &mut record {
        Some(record) => record.begin(identities, source.changed_at(), bytes)?,
        None => 0,
    };
    let bar = progress(options, bytes);
    bar.set_position(begin);
    let start = Instant::now();
    let pieces = Pieces::new(&*source, &*destination, !options.no_sparse)?;
    let mut job = Job { pieces, empty_bytes: 0, moved_bytes: 0, bar: &bar };
    let (mut at, mut step_bytes) = (begin, STEP_BYTES);
    while at < bytes {
        let (end, began) = (bytes.min(at + step_bytes), Instant::now());
        job.stable_step(&mut *source, &mut *destination, at, end)?;
        if let Some(record) = &mut record {
            record.note(end)?;
        }
        at = end;
        step_bytes = next_step(step_bytes, began.elapsed());
    }
    let (empty_bytes, moved_bytes) = (job.empty_bytes, job.moved_bytes);
    if options.verify {
        bar.set_message("comparing");
        if let Err(failure) = compare(&mut *source, &mut *destination, pieces, &bar) {
            // What differs is copied again by the next run.
            record.as_mut().map_or(Ok(()), |record| record.note(0))?;
            return Err(failure);
        }
    }
    bar.finish_and_clear();
    if let Some(record) = record {
        record.remove()?;
    }
    source.close();
    destination.close();
    let copied = Copied {
        size_bytes: bytes,
        empty_bytes,
        resumed_at_bytes: begin,
        verified: options.verify,
        transferred: Transferred::since(start, moved_bytes),
    };
    tell(options.json, &copied, text)
}

fn text(copied: &Copied) -> String {
    let mut text = format!("copied {}", copied.transferred.text());
    if copied.empty_bytes > 0 {
        text.push_str(&format!(", {} held nothing", size(copied.empty_bytes)));
    }
    if copied.resumed_at_bytes > 0 {
        text.push_str(&format!(", going on after {}", size(copied.resumed_at_bytes)));
    }
    text.push_str(if copied.verified {
        "; both were read again and are equal\n"
    } else {
        "; all of it is stable\n"
    });
    text
}

fn progress(options: &CopyOptions, bytes: u64) -> ProgressBar {
    let target = if options.quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(bytes), target);
    let template = "{msg} {wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message("copying");
    bar
}

fn check_sizes(
    source: &dyn Endpoint,
    destination: &dyn Endpoint,
    options: &CopyOptions,
) -> Result<(), Failure> {
    let (from, to) = (source.size_bytes(), destination.size_bytes());
    if to < from {
        return Err(Failure::usage(format!(
            "the source has {}, and the destination only {}",
            size(from),
            size(to)
        )));
    }
    let block = u64::from(destination.block_bytes());
    if !from.is_multiple_of(block) {
        return Err(Failure::usage(format!(
            "the source has {from} bytes, which is no multiple of the destination's blocks of {block} bytes"
        )));
    }
    if let (End::Disk(source), End::Disk(destination)) = (&options.source, &options.destination)
        && source.target == destination.target
        && source.lun == destination.lun
        && source.portal == destination.portal
    {
        return Err(Failure::usage("source and destination are the same disk"));
    }
    if let (Some(source), Some(destination)) = (source.unit(), destination.unit())
        && source.shares_unique_name(&destination)
    {
        return Err(Failure::usage(format!("source and destination are the same disk, {source}")));
    }
    Ok(())
}

/// Whether both ends are one file, by whatever names: it would be emptied before it is read.
fn is_same_file(source: &End, destination: &End) -> bool {
    let (End::File(source), End::File(destination)) = (source, destination) else { return false };
    let place = |path: &Path| std::fs::metadata(path).map(|file| (file.dev(), file.ino()));
    matches!((place(source), place(destination)), (Ok(source), Ok(destination)) if source == destination)
}

/// What the reading side hands to the writing one.
enum Piece {
    Data { offset_bytes: u64, data: Vec<u8> },
    Empty { offset_bytes: u64, length_bytes: u64 },
}

/// Pieces that wait between the two sides: with those under way, what bounds the memory.
const WAITING_MAX: usize = 8;

/// How a copy is cut: both sides read and write in the same pieces.
#[derive(Debug, Clone, Copy)]
struct Pieces {
    /// Each begins and ends at a multiple of this, but for the end of a file: a whole block on both sides.
    grain_bytes: u64,
    /// The longest; a multiple of the grain that both sides can transfer at once.
    piece_bytes: usize,
    /// What holds nothing is left out.
    sparse: bool,
}

impl Pieces {
    fn new(source: &dyn Endpoint, destination: &dyn Endpoint, sparse: bool) -> Result<Pieces, Failure> {
        let grain = source.block_bytes().max(destination.block_bytes()) as usize;
        let most = source.piece_bytes().min(destination.piece_bytes());
        let piece_bytes = most / grain * grain;
        // Block lengths are powers of two on all disks that there are.
        let is_possible = grain.is_multiple_of(source.block_bytes() as usize)
            && grain.is_multiple_of(destination.block_bytes() as usize);
        if piece_bytes == 0 || !is_possible {
            return Err(Failure::scsi(
                format!(
                    "blocks of {} and {} bytes do not go together",
                    source.block_bytes(),
                    destination.block_bytes()
                ),
                Some("copy to a file first, then from there".to_owned()),
            ));
        }
        Ok(Pieces { grain_bytes: grain as u64, piece_bytes, sparse })
    }

    /// The part of an extent at `at` that is of whole grains: of one that is empty no more than it has, of one that is not
    /// everything up to the next boundary. At `end` everything ends.
    fn cut(&self, extent: Extent, at: u64, end: u64) -> Extent {
        let stop = at.saturating_add(extent.length_bytes).min(end);
        let below = stop / self.grain_bytes * self.grain_bytes;
        let above = stop.div_ceil(self.grain_bytes).saturating_mul(self.grain_bytes).min(end);
        if extent.is_empty && (stop == end || below > at) {
            let stop = if stop == end { end } else { below };
            return Extent { length_bytes: stop - at, is_empty: true };
        }
        Extent { length_bytes: above - at, is_empty: false }
    }
}

struct Job<'a> {
    pieces: Pieces,
    empty_bytes: u64,
    moved_bytes: u64,
    bar: &'a ProgressBar,
}

impl Job<'_> {
    /// Copies what lies between two places, and makes it stable. If the destination was reset on the way, it may have lost
    /// what it had in its cache: then all of it is copied again.
    fn stable_step(
        &mut self,
        source: &mut dyn Endpoint,
        destination: &mut dyn Endpoint,
        at: u64,
        end: u64,
    ) -> Result<(), Failure> {
        let (before, mut tries) = ((self.empty_bytes, self.moved_bytes), 0);
        loop {
            self.step(source, destination, at, end)?;
            match destination.flush() {
                Err(failure) if failure.is_unflushed() && tries < REPEATS_MAX => {
                    tries += 1;
                    say(&format!("lunette: {failure}; copying the last {} again", size(end - at)));
                    (self.empty_bytes, self.moved_bytes) = before;
                    self.bar.set_position(at);
                }
                flushed => return flushed,
            }
        }
    }

    /// Copies what lies between two places.
    fn step(
        &mut self,
        source: &mut dyn Endpoint,
        destination: &mut dyn Endpoint,
        at: u64,
        end: u64,
    ) -> Result<(), Failure> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let pieces = self.pieces;
        thread::scope(|scope| {
            let reader = scope.spawn(move || read(source, at, end, pieces, &sender));
            let written = self.write(destination, &receiver);
            drop(receiver);
            let read = reader.join().unwrap_or_else(|_| Err(Failure::internal("the reading side failed")));
            // A reader whose pieces nobody takes says so, too: the reason is with the writer.
            written.and(read)
        })
    }

    fn write(&mut self, destination: &mut dyn Endpoint, pieces: &Receiver<Piece>) -> Result<(), Failure> {
        for piece in pieces {
            match piece {
                Piece::Data { offset_bytes, data } => {
                    let length = data.len() as u64;
                    destination.write(offset_bytes, data)?;
                    self.moved_bytes += length;
                    self.bar.inc(length);
                }
                Piece::Empty { offset_bytes, length_bytes } => {
                    destination.empty(offset_bytes, length_bytes)?;
                    self.empty_bytes += length_bytes;
                    self.bar.inc(length_bytes);
                }
            }
        }
        destination.drain()
    }
}

/// Reads a part of the source and hands it over, until the other side has gone.
fn read(
    source: &mut dyn Endpoint,
    begin: u64,
    end: u64,
    pieces: Pieces,
    sender: &SyncSender<Piece>,
) -> Result<(), Failure> {
    let gone = || Failure::internal("the writing side has ended");
    let mut at = begin;
    while at < end {
        let rest = Extent { length_bytes: end - at, is_empty: false };
        let extent = if pieces.sparse { pieces.cut(source.extent(at, end)?, at, end) } else { rest };
        if extent.is_empty {
            let piece = Piece::Empty { offset_bytes: at, length_bytes: extent.length_bytes };
            sender.send(piece).map_err(|_| gone())?;
        } else {
            source.read(at, extent.length_bytes, pieces.piece_bytes, &mut |offset_bytes, data| {
                sender.send(Piece::Data { offset_bytes, data }).map_err(|_| gone())
            })?;
        }
        at += extent.length_bytes;
    }
    Ok(())
}

/// Reads both and compares them.
fn compare(
    source: &mut dyn Endpoint,
    destination: &mut dyn Endpoint,
    pieces: Pieces,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    bar.set_position(0);
    let pieces = Pieces { sparse: false, ..pieces };
    let bytes = source.size_bytes();
    let mut at = 0;
    while at < bytes {
        let length = (bytes - at).min(STEP_BYTES_MAX);
        compare_step(source, destination, at, length, pieces, bar)?;
        at += length;
    }
    Ok(())
}

fn compare_step(
    source: &mut dyn Endpoint,
    destination: &mut dyn Endpoint,
    at: u64,
    length: u64,
    pieces: Pieces,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    let (block_bytes, name) = (destination.block_bytes(), destination.name());
    let (sender, receiver) = sync_channel(WAITING_MAX);
    thread::scope(|scope| {
        let reader = scope.spawn(move || read(source, at, at + length, pieces, &sender));
        let compared = destination.read(at, length, pieces.piece_bytes, &mut |offset_bytes, found| {
            let expected = match receiver.recv() {
                Ok(Piece::Data { offset_bytes: of, data })
                    if of == offset_bytes && data.len() == found.len() =>
                {
                    data
                }
                // Why is with the reader.
                _ => return Err(Failure::internal("the two sides are not read alike")),
            };
            bar.inc(found.len() as u64);
            match Difference::find(offset_bytes, block_bytes, &expected, &found) {
                Some(difference) => Err(difference.failure(&name, block_bytes)),
                None => Ok(()),
            }
        });
        drop(receiver);
        let read = reader.join().unwrap_or_else(|_| Err(Failure::internal("the reading side failed")));
        match compared {
            Err(failure) if failure.is_internal() => read.and(Err(failure)),
            compared => compared,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_take_about_as_long_on_every_line() {
        let seconds = Duration::from_secs;
        assert_eq!(next_step(64 << 20, seconds(15)), 64 << 20);
        assert_eq!(next_step(64 << 20, seconds(10)), 96 << 20);
        assert_eq!(next_step(64 << 20, Duration::ZERO), 128 << 20);
        assert_eq!(next_step(64 << 20, seconds(600)), 16 << 20);
        assert_eq!(next_step(4 << 20, seconds(600)), STEP_BYTES_MIN);
        assert_eq!(next_step(1 << 30, seconds(1)), STEP_BYTES_MAX);
    }

    #[test]
    fn extents_are_cut_to_whole_blocks_of_both_sides() {
        let pieces = Pieces { grain_bytes: 4096, piece_bytes: 1 << 20, sparse: true };
        let cut = |is_empty, at, length_bytes| {
            let extent = pieces.cut(Extent { length_bytes, is_empty }, at, 100_000);
            (extent.length_bytes, extent.is_empty)
        };
        assert_eq!(cut(true, 0, 8192), (8192, true));
        assert_eq!(cut(true, 0, 9000), (8192, true), "no more than is empty");
        assert_eq!(cut(true, 0, 512), (4096, false), "not a whole block: read");
        assert_eq!(cut(false, 0, 512), (4096, false));
        assert_eq!(cut(false, 4096, 8192), (8192, false));
        assert_eq!(cut(true, 98_304, 1696), (1696, true), "the end of a file");
        assert_eq!(cut(false, 98_304, 1), (1696, false));
        assert_eq!(cut(true, 0, u64::MAX), (100_000, true));
    }
}
