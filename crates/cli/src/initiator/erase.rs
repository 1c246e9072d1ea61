//! `lunette erase`: UNMAP or WRITE SAME with zeros, several at once, or SANITIZE.

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

use lunette_scsi::client::medium::{self, BlockRange, Caching};
use lunette_scsi::client::unit::{self, Sanitize};
use lunette_scsi::client::{DoesNotFit, Sense};
use lunette_scsi::{AdditionalSense, SenseKey, Status};
use serde::Serialize;

use super::amount::Span;
use super::disk::{Disk, Verdict, judge, pause};
use super::options::{EraseMethod, EraseOptions, is_whole};
use super::port::Done;
use super::report::tell;
use super::stream::{Depth, Flow, WriteStream};
use super::zeros::Zeros;
use crate::banner::size;
use crate::failure::{Failure, say};

/// How often a unit that is sanitized is asked how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
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
            until_stable(|| sanitize(&mut disk, &how)).map(|()| "sanitize-overwrite")
        }
        EraseMethod::SanitizeBlock => {
            until_stable(|| sanitize(&mut disk, &Sanitize::BlockErase)).map(|()| "sanitize-block")
        }
    }?;
    let erased = Erased { bytes: span.length_bytes(), method, seconds: start.elapsed().as_secs_f64() };
    disk.close()?;
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

/// Erases, and does it again where the target may have lost it before it was stable.
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
///
/// It is asked by TEST UNIT READY, and not by REQUEST SENSE, which would take a unit attention or a deferred error as an answer like any
/// other: so a reset counts in [`Done::session`], and what says that this is another medium is a failure.
fn sanitize(disk: &mut Disk, how: &Sanitize) -> Result<(), Failure> {
    let command = unit::sanitize(how, true, true).map_err(|error| Failure::internal(&error.to_string()))?;
    let begun = disk.run_to_end(&command, &[])?;
    let shows = io::stderr().is_terminal();
    let ended = wait_until_ready(disk, begun.session, shows);
    if shows {
        say("");
    }
    ended
}

/// Waits for the end of a SANITIZE that was begun in this session.
fn wait_until_ready(disk: &mut Disk, begun_in: u32, shows: bool) -> Result<(), Failure> {
    let command = unit::test_unit_ready();
    // The last session in which it was there.
    let mut seen_in = begun_in;
    let mut tries = 0;
    loop {
        let done = disk.run_once(&command, &[])?;
        if let Some(sense) = progress(&done) {
            (seen_in, tries) = (done.session, 0);
            if shows && let Some(percent) = sense.progress_percent() {
                let _ = write!(io::stderr(), "\r{percent:5.1} %");
            }
            thread::sleep(PROGRESS_INTERVAL);
            continue;
        }
        match judge(&disk.name, &command, &done, tries) {
            // Whether it came to its end or was dropped by a restart, no target tells.
            Verdict::Good if done.session > seen_in => return Err(Failure::sanitize_in_doubt(&disk.name)),
            Verdict::Good => return Ok(()),
            Verdict::Again => {}
            Verdict::Later => pause(),
            // A failure stays until another SANITIZE.
            Verdict::Failed(failure) => {
                return Err(failure.with_help("what is on the disk is undefined; sanitize it again"));
            }
        }
        tries += 1;
    }
}

/// What a unit says that is still sanitized.
fn progress(done: &Done) -> Option<Sense> {
    let sense = Sense::decode(&done.sense).filter(|_| done.status == Some(Status::CheckCondition))?;
    let is_under_way = sense.key() == Some(SenseKey::NotReady)
        && sense.code == AdditionalSense::SANITIZE_IN_PROGRESS
        && !sense.deferred;
    is_under_way.then_some(sense)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use lunette_scsi::client::{Command, UnitIdentity};
    use lunette_scsi::{Lun, SenseData};

    use super::super::port::Port;
    use super::super::stream::OTHERS_MAX;
    use super::super::stream::tests::{disk_at, disk_without};
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

    const SANITIZE: u8 = 0x48;
    const TEST_UNIT_READY: u8 = 0x00;
    /// What a unit says that is being sanitized.
    const BUSY: Option<SenseData> = Some(SenseData {
        progress: Some(0x8000),
        ..SenseData::new(SenseKey::NotReady, AdditionalSense::SANITIZE_IN_PROGRESS)
    });

    /// A unit with answers for one command after the other.
    struct Scripted {
        answers: VecDeque<(u32, Option<SenseData>)>,
        sent: Arc<Mutex<Vec<u8>>>,
    }

    impl Port for Scripted {
        fn start(&mut self, _: Lun, _: u64, command: &Command, _: Vec<u8>) -> Result<(), Failure> {
            self.sent.lock().unwrap().push(command.cdb()[0]);
            Ok(())
        }

        fn finish(&mut self) -> Result<Done, Failure> {
            let (session, sense) = self.answers.pop_front().expect("an answer");
            let status = if sense.is_some() { Status::CheckCondition } else { Status::Good };
            let sense = sense.map(|sense| sense.encode(false).as_bytes().to_vec()).unwrap_or_default();
            Ok(Done { tag: 0, status: Some(status), sense, data: Vec::new(), session })
        }

        fn now(&self) -> Duration {
            Duration::ZERO
        }

        fn guard(&mut self, _: Lun, _: UnitIdentity) {}

        fn close(self: Box<Self>) -> Result<(), Failure> {
            Ok(())
        }
    }

    /// Sanitizes a unit that answers so, each time in this session; tells how that ended, and what was sent.
    fn sanitized(answers: &[(u32, Option<SenseData>)]) -> (Result<(), Failure>, Vec<u8>) {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let scripted = Scripted { answers: answers.to_vec().into(), sent: Arc::clone(&sent) };
        let mut disk = disk_at(Box::new(scripted));
        let ended = until_stable(|| sanitize(&mut disk, &Sanitize::BlockErase));
        let sent = sent.lock().unwrap().clone();
        (ended, sent)
    }

    #[test]
    fn a_sanitize_that_was_seen_at_work_in_each_session_is_not_sent_again() {
        let (ended, sent) = sanitized(&[(0, None), (0, BUSY), (2, BUSY), (2, None)]);
        ended.unwrap();
        assert_eq!(sent, [SANITIZE, TEST_UNIT_READY, TEST_UNIT_READY, TEST_UNIT_READY]);
        let (ended, sent) = sanitized(&[(3, None), (3, None)]);
        ended.unwrap();
        assert_eq!(sent, [SANITIZE, TEST_UNIT_READY], "a small disk is ready at once");
    }

    #[test]
    fn a_unit_that_is_ready_in_a_session_in_which_it_was_not_seen_at_work_is_sanitized_again() {
        let (ended, sent) = sanitized(&[(0, None), (0, BUSY), (1, None), (1, None), (1, None)]);
        ended.unwrap();
        assert_eq!(
            sent,
            [SANITIZE, TEST_UNIT_READY, TEST_UNIT_READY, SANITIZE, TEST_UNIT_READY],
            "nobody knows whether the first one came to its end"
        );
        // A target that is restarted each time.
        let answers: Vec<_> = (0..100).map(|session| (session, None)).collect();
        let (ended, sent) = sanitized(&answers);
        let failure = ended.unwrap_err();
        assert_eq!(failure.status_and_help().0, 3);
        assert!(failure.to_string().contains("SANITIZE"), "{failure}");
        assert_eq!(sent.len(), 2 * (1 + REPEATS_MAX as usize), "not for ever");
    }

    #[test]
    fn what_a_unit_tells_while_it_is_sanitized_is_not_passed_over() {
        let attention = |code| Some(SenseData::new(SenseKey::UnitAttention, code));
        let (ended, _) = sanitized(&[(0, None), (0, attention(AdditionalSense::MEDIUM_MAY_HAVE_CHANGED))]);
        let failure = ended.unwrap_err();
        assert!(failure.to_string().contains("the medium may have been changed"), "{failure}");
        let (ended, _) = sanitized(&[
            (0, None),
            (0, BUSY),
            (0, Some(SenseData::new(SenseKey::MediumError, AdditionalSense::SANITIZE_COMMAND_FAILED))),
        ]);
        let failure = ended.unwrap_err();
        assert!(failure.status_and_help().1.is_some_and(|help| help.contains("sanitize it again")));
        // A reset, which the session counts.
        let reset = attention(AdditionalSense::POWER_ON);
        let (ended, sent) = sanitized(&[(0, None), (1, reset), (1, None), (1, None), (1, None)]);
        ended.unwrap();
        assert_eq!(sent, [SANITIZE, TEST_UNIT_READY, TEST_UNIT_READY, SANITIZE, TEST_UNIT_READY]);
    }
}
