//! `lunette erase`: UNMAP or WRITE SAME with zeros, several at once, or SANITIZE.

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

use lunette_scsi::AdditionalSense;
use lunette_scsi::client::DoesNotFit;
use lunette_scsi::client::medium::{self, BlockRange, Caching};
use lunette_scsi::client::unit::{self, Sanitize};
use serde::Serialize;

use super::amount::Span;
use super::disk::Disk;
use super::options::{EraseMethod, EraseOptions, is_whole};
use super::report::tell;
use super::stream::{Depth, Flow, WriteStream};
use super::zeros::Zeros;
use crate::banner::size;
use crate::failure::{Failure, say};

/// How often a unit that is sanitized is asked how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// How many unit attentions are taken while it lasts: a unit has one of each kind.
const ATTENTIONS_MAX: u32 = 64;
/// How often something is erased again.
const REPEATS_MAX: u32 = 4;
/// The most blocks that one UNMAP gets where the unit has no limit: 512 MiB of 512-byte blocks.
const BLOCKS_MAX: u32 = 1 << 20;

#[derive(Debug, Serialize)]
struct Erased {
    bytes: u64,
    method: &'static str,
    seconds: f64,
}

/// Erases, after asking.
pub(crate) fn run(options: &EraseOptions) -> Result<(), Failure> {
    let sanitizes = matches!(options.method, EraseMethod::SanitizeOverwrite | EraseMethod::SanitizeBlock);
    if sanitizes && !is_whole(&options.range) {
        return Err(Failure::usage("SANITIZE erases the whole disk: leave out --offset and --length"));
    }
    let mut disk = Disk::open(&options.url, &options.access)?;
    let span = options.range.resolve(&disk.capacity()?)?;
    if disk.facts.is_write_protected() {
        let message = format!("{} is read-only for this initiator", disk.name);
        return Err(Failure::scsi(message, Some("see the target's configuration".to_owned())));
    }
    if !options.yes {
        confirm(&disk, span)?;
    }
    let start = Instant::now();
    let method = match options.method {
        EraseMethod::Unmap => until_stable(|| unmap(&mut disk, span)).map(|()| "unmap"),
        EraseMethod::Zeros => until_stable(|| zeros(&mut disk, span)).map(|()| "zeros"),
        EraseMethod::SanitizeOverwrite => {
            let how = Sanitize::Overwrite { pattern: vec![0], passes: 1, invert: false };
            sanitize(&mut disk, &how).map(|()| "sanitize-overwrite")
        }
        EraseMethod::SanitizeBlock => sanitize(&mut disk, &Sanitize::BlockErase).map(|()| "sanitize-block"),
    }?;
    let erased = Erased { bytes: span.length_bytes(), method, seconds: start.elapsed().as_secs_f64() };
    disk.close();
    tell(options.json, &erased, |erased| {
        format!("erased {} in {:.1} s ({})\n", size(erased.bytes), erased.seconds, erased.method)
    })
}

/// Asks whoever sits at the terminal; without one, nothing is erased.
fn confirm(disk: &Disk, span: Span) -> Result<(), Failure> {
    let what = format!(
        "{} of {} ({} {})",
        size(span.length_bytes()),
        disk.name,
        disk.facts.inquiry.product,
        disk.facts.serial
    );
    if !io::stdin().is_terminal() {
        return Err(Failure::usage(format!("this erases {what}")).with_help("--yes does it without asking"));
    }
    let failed = |error: io::Error| Failure::new("cannot ask", &error);
    write!(io::stderr(), "This erases {what}. Type yes to go on: ").map_err(failed)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(failed)?;
    if answer.trim() == "yes" { Ok(()) } else { Err(Failure::usage("nothing was erased")) }
}

/// Pieces of a range, none longer than `blocks_max`.
fn pieces(span: Span, blocks_max: u32) -> impl Iterator<Item = BlockRange> {
    let end = span.lba + span.blocks;
    let mut lba = span.lba;
    std::iter::from_fn(move || {
        let blocks = (end - lba).min(blocks_max.into()) as u32;
        let piece = BlockRange { lba, blocks, block_length_bytes: span.block_bytes };
        lba += u64::from(blocks);
        (blocks > 0).then_some(piece)
    })
}

fn does_not_fit(error: DoesNotFit) -> Failure {
    Failure::internal(&error.to_string())
}

/// Erases, and does it again where the target may have lost it before it was flushed.
fn until_stable(mut erase: impl FnMut() -> Result<(), Failure>) -> Result<(), Failure> {
    for _ in 0..REPEATS_MAX {
        match erase() {
            Err(failure) if failure.is_unflushed() => {
                say(&format!("lunette: {failure}; erasing it again"));
            }
            ended => return ended,
        }
    }
    erase()
}

fn unmap(disk: &mut Disk, span: Span) -> Result<(), Failure> {
    let limits = disk.facts.limits;
    if !disk.facts.provisioning.unmap {
        let message = format!("{} does not take UNMAP", disk.name);
        return Err(Failure::scsi(message, Some("--method zeros writes zeros".to_owned())));
    }
    // A limit of 0 is not told; all ones is no limit.
    let blocks_max =
        if limits.unmap_blocks_max == 0 { BLOCKS_MAX } else { limits.unmap_blocks_max.min(BLOCKS_MAX) };
    let mut stream = WriteStream::new(disk, span.block_bytes, Flow::new(Depth::Measured), Caching::default());
    for piece in pieces(span, blocks_max) {
        let command = medium::unmap(&[(piece.lba, piece.blocks)], false).map_err(does_not_fit)?;
        stream.start_other(disk, piece, command, Vec::new())?;
    }
    stream.flush(disk)
}

fn zeros(disk: &mut Disk, span: Span) -> Result<(), Failure> {
    let end = span.lba + span.blocks;
    let mut stream = WriteStream::new(disk, span.block_bytes, Flow::new(Depth::Measured), Caching::default());
    let from = Zeros::of(disk, span.block_bytes).fill(disk, &mut stream, span.lba, end)?;
    stream.write_zeros(disk, from, end - from)?;
    stream.flush(disk)
}

/// Begins it, and waits until the unit is ready again.
fn sanitize(disk: &mut Disk, how: &Sanitize) -> Result<(), Failure> {
    let command = unit::sanitize(how, true, true).map_err(|error| Failure::internal(&error.to_string()))?;
    disk.run(&command, &[])?;
    let shows = io::stderr().is_terminal();
    let mut attentions = 0;
    loop {
        let sense = disk.ask(&unit::request_sense(false))?;
        let Some(sense) = sense else { break };
        // Something that the unit has to tell first is no end.
        if sense.is_unit_attention() && attentions < ATTENTIONS_MAX {
            attentions += 1;
            continue;
        }
        if sense.code != AdditionalSense::SANITIZE_IN_PROGRESS {
            break;
        }
        if shows && let Some(percent) = sense.progress_percent() {
            let _ = write!(io::stderr(), "\r{percent:5.1} %");
        }
        thread::sleep(PROGRESS_INTERVAL);
    }
    if shows {
        say("");
    }
    // A failure stays until another SANITIZE, and TEST UNIT READY tells it.
    let result = disk.run(&unit::test_unit_ready(), &[]);
    result
        .map(drop)
        .map_err(|failure| failure.with_help("what is on the disk is undefined; sanitize it again"))
}

#[cfg(test)]
mod tests {
    use super::super::stream::OTHERS_MAX;
    use super::super::stream::tests::disk_without;
    use super::*;

    #[test]
    fn zeros_are_written_where_the_unit_does_not_know_write_same() {
        const WRITE_SAME_16: u8 = 0x93;
        let (mut disk, seen) = disk_without(WRITE_SAME_16);
        zeros(&mut disk, Span { lba: 3, blocks: 5000, block_bytes: 512 }).unwrap();
        let seen = seen.lock().unwrap();
        assert_eq!((seen.refused, seen.good_bytes), (1, 5000 * 512), "it is asked once, and then written to");
    }

    #[test]
    fn what_a_target_may_have_lost_is_erased_again() {
        let mut tries = 0;
        let mut erase = |bad: u32| {
            until_stable(|| {
                tries += 1;
                if tries > bad { Ok(()) } else { Err(Failure::flushed_too_late("a disk")) }
            })
        };
        erase(2).unwrap();
        assert!(erase(u32::MAX).unwrap_err().is_unflushed());
        assert_eq!(tries, 3 + 1 + REPEATS_MAX, "not for ever");
        assert!(
            until_stable(|| Err(Failure::internal("another"))).is_err_and(|failure| failure.is_internal())
        );
    }

    #[test]
    fn space_is_given_back_in_pieces_that_the_unit_takes_several_at_once() {
        let (mut disk, seen) = disk_without(0);
        disk.facts.provisioning.unmap = true;
        disk.facts.limits.unmap_blocks_max = 100;
        unmap(&mut disk, Span { lba: 3, blocks: 5001, block_bytes: 512 }).unwrap();
        let seen = seen.lock().unwrap();
        assert_eq!((seen.good, seen.most_under_way), (51 + 1, OTHERS_MAX), "and a flush");
        assert_eq!(seen.good_bytes, 51 * 24, "each has one descriptor");
    }

    #[test]
    fn no_more_is_under_way_than_a_disk_can_write_in_time() {
        for (block_bytes, at_once) in [(512, 2), (4096, 1)] {
            let (mut disk, seen) = disk_without(0);
            disk.facts.provisioning.unmap = true;
            disk.facts.limits.write_same_blocks_max = u64::MAX;
            let span = Span { lba: 0, blocks: 20 * u64::from(BLOCKS_MAX), block_bytes };
            unmap(&mut disk, span).unwrap();
            zeros(&mut disk, span).unwrap();
            let seen = seen.lock().unwrap();
            assert_eq!((seen.good, seen.most_under_way), (2 * (20 + 1), at_once), "{block_bytes}");
        }
    }
}
