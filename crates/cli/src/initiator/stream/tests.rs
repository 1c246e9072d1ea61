//! Streams on a unit that takes few commands at once, and over a line in virtual time.

pub(crate) mod line;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lunette_initiator::CommandError;
use lunette_scsi::client::capacity::{Capacity, CapacityDetails};
use lunette_scsi::client::medium::Caching;
use lunette_scsi::client::mode::{self, ModePage, ModeParameters};
use lunette_scsi::client::{UnitFacts, UnitIdentity};
use lunette_scsi::{AdditionalSense, Lun, SenseData, SenseKey, Status};

use super::super::amount::Span;
use super::super::disk::Disk;
use super::super::port::{Done, Port};
use super::*;

const MODE_SENSE_6: u8 = 0x1a;
const MODE_SENSE_10: u8 = 0x5a;
const WRITE_SAME_16: u8 = 0x93;

/// A unit with room for so many commands; others end with TASK SET FULL.
#[derive(Default)]
struct Narrow {
    room: usize,
    /// The opcode that it does not know; 0: none.
    lacks: u8,
    /// The most blocks of a WRITE SAME(16), which it does not tell; 0: any number.
    same_blocks_max: u32,
    under_way: VecDeque<(u64, Vec<u8>)>,
    /// Without sense data: there is no room.
    refused: VecDeque<(Option<AdditionalSense>, u64, Vec<u8>)>,
    /// So many flushes end as one does whose unit was reset.
    resets: u32,
    /// The session is lost, and had again with a target that tells nothing, when so many commands have ended.
    lost_after: Vec<usize>,
    /// The command with this tag is lost, and the session goes on.
    unanswered: Option<u64>,
    /// What it says when it is asked whether it has a write cache; if nothing, it does not know the question.
    has_cache: Option<bool>,
    /// It has said that its modes were changed.
    has_other_modes: bool,
    /// Answers to that, which count nowhere.
    told: VecDeque<(u64, Vec<u8>)>,
    seen: Arc<Mutex<Seen>>,
}

/// What the unit has answered.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) good: usize,
    pub(crate) good_bytes: usize,
    pub(crate) refused: usize,
    /// The most that were under way at once.
    pub(crate) most_under_way: usize,
    /// The tags of all commands that came.
    pub(crate) tags: Vec<u64>,
    /// How many had been answered with GOOD when each flush came.
    pub(crate) flushed_after: Vec<usize>,
}

impl Port for Narrow {
    fn start(&mut self, _: Lun, tag: u64, command: &Command, data: Vec<u8>) -> Result<(), Failure> {
        if command.is_flush() {
            let mut seen = self.seen.lock().unwrap();
            let good = seen.good;
            seen.flushed_after.push(good);
        }
        if let (MODE_SENSE_6, Some(has_cache)) = (command.cdb()[0], self.has_cache) {
            assert!(self.under_way.is_empty() && self.refused.is_empty(), "it is asked alone");
            let mut parameters = vec![0; 24];
            // Its length, and the caching page with WCE.
            parameters[0] = 23;
            parameters[4..7].copy_from_slice(&[mode::CACHING.0, 18, if has_cache { 4 } else { 0 }]);
            self.told.push_back((tag, parameters));
            return Ok(());
        }
        let (opcode, length) = (command.cdb()[0], command.cdb().get(10..14));
        let same = length.and_then(|length| length.try_into().ok()).map_or(0, u32::from_be_bytes);
        let is_too_long = opcode == WRITE_SAME_16 && self.same_blocks_max > 0 && same > self.same_blocks_max;
        let is_unknown = [MODE_SENSE_6, MODE_SENSE_10].contains(&opcode);
        if is_unknown || self.lacks != 0 && opcode == self.lacks {
            self.refused.push_back((Some(AdditionalSense::INVALID_COMMAND_OPERATION_CODE), tag, data));
        } else if is_too_long {
            self.refused.push_back((Some(AdditionalSense::INVALID_FIELD_IN_CDB), tag, data));
        } else if self.under_way.len() < self.room {
            self.under_way.push_back((tag, data));
        } else {
            self.refused.push_back((None, tag, data));
        }
        let mut seen = self.seen.lock().unwrap();
        seen.tags.push(tag);
        seen.most_under_way = seen.most_under_way.max(self.under_way.len());
        Ok(())
    }

    fn finish(&mut self) -> Result<Done, Failure> {
        if let Some((tag, data)) = self.told.pop_front() {
            return Ok(Done { tag, status: Some(Status::Good), sense: Vec::new(), data, session: 0 });
        }
        let mut seen = self.seen.lock().unwrap();
        // A flush has no data; the writes of these tests have.
        if self.resets > 0
            && let Some(at) = self.under_way.iter().position(|(_, data)| data.is_empty())
        {
            self.resets -= 1;
            let (tag, _) = self.under_way.remove(at).expect("a flush");
            return Err(Failure::command(&CommandError::ResetSinceFlush).of_tag(tag));
        }
        if let Some((code, tag, data)) = self.refused.pop_front() {
            seen.refused += 1;
            let status = if code.is_some() { Status::CheckCondition } else { Status::TaskSetFull };
            let sense = code.map(|code| SenseData::new(SenseKey::IllegalRequest, code).encode(false));
            let sense = sense.map(|sense| sense.as_bytes().to_vec()).unwrap_or_default();
            return Ok(Done { tag, status: Some(status), sense, data, session: 0 });
        }
        let session = self.lost_after.iter().filter(|after| seen.good >= **after).count() as u32;
        let (tag, data) = self.under_way.pop_front().expect("one is under way");
        if self.unanswered == Some(tag) {
            return Err(Failure::unanswered("the target does not know it").of_tag(tag));
        }
        seen.good += 1;
        seen.good_bytes += data.len();
        Ok(Done { tag, status: Some(Status::Good), sense: Vec::new(), data, session })
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn guard(&mut self, _: Lun, _: UnitIdentity) {}

    fn has_other_modes(&self) -> bool {
        self.has_other_modes
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        Ok(())
    }
}

fn disk(room: usize) -> (Disk, Arc<Mutex<Seen>>) {
    disk_of(Narrow { room, ..Narrow::default() })
}

/// A disk with room for everything that does not know the command with this opcode.
pub(crate) fn disk_without(opcode: u8) -> (Disk, Arc<Mutex<Seen>>) {
    disk_of(Narrow { room: usize::MAX, lacks: opcode, ..Narrow::default() })
}

/// The same that takes no longer WRITE SAME(16) than this, and does not tell so.
pub(crate) fn disk_with_short_same(same_blocks_max: u32) -> (Disk, Arc<Mutex<Seen>>) {
    disk_of(Narrow { room: usize::MAX, same_blocks_max, ..Narrow::default() })
}

fn disk_of(narrow: Narrow) -> (Disk, Arc<Mutex<Seen>>) {
    let seen = Arc::clone(&narrow.seen);
    (disk_at(Box::new(narrow)), seen)
}

/// A disk of 2^30 blocks of 512 bytes at this port.
pub(crate) fn disk_at(port: Box<dyn Port>) -> Disk {
    let details = CapacityDetails::default();
    let capacity = Capacity { blocks: 1 << 30, block_length_bytes: 512, details };
    let facts = UnitFacts { capacity: Some(capacity), ..UnitFacts::default() };
    Disk { port, lun: Lun::from_number(0), name: "a disk".to_owned(), facts, next_tag: 0 }
}

/// Nothing sleeps: after the first few no more are sent than there is room for.
#[test]
fn a_full_task_set_narrows_the_way() {
    let (mut disk, seen) = disk(4);
    let mut stream = WriteStream::new(&disk, 512, Flow::new(Depth::Commands(64)), Caching::default());
    for lba in 0..1000 {
        stream.write(&mut disk, lba, vec![1; 512]).unwrap();
    }
    stream.drain(&mut disk).unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.good, 1000, "each is written once");
    assert!((60..400).contains(&seen.refused), "{} were refused", seen.refused);
}

#[test]
fn reads_stay_in_order_on_a_narrow_way() {
    let (mut disk, seen) = disk(3);
    let span = Span { lba: 0, blocks: 500 * 2048, block_bytes: 512 };
    let mut stream = ReadStream::new(&disk, span, Flow::new(Depth::Commands(16)));
    let mut expected = 0;
    while let Some((offset_bytes, data)) = stream.next(&mut disk).unwrap() {
        assert_eq!((offset_bytes, data.len()), (expected, 1 << 20));
        expected += 1 << 20;
    }
    assert_eq!((expected, seen.lock().unwrap().good), (500 << 20, 500));
}

#[test]
fn what_nobody_wants_any_more_is_waited_for_however_it_ends() {
    let (mut disk, seen) = disk_of(Narrow { room: 64, unanswered: Some(2), ..Narrow::default() });
    let span = Span { lba: 0, blocks: 64 * 2048, block_bytes: 512 };
    let mut stream = ReadStream::new(&disk, span, Flow::new(Depth::Commands(8)));
    stream.next(&mut disk).unwrap();
    stream.settle(&mut disk).unwrap();
    let begun = seen.lock().unwrap().tags.len();
    assert!(begun >= 8 && seen.lock().unwrap().good == begun - 1, "only one has no answer");
    // None of these is taken for one of those.
    let mut stream = ReadStream::new(&disk, span, Flow::new(Depth::Commands(8)));
    while stream.next(&mut disk).unwrap().is_some() {}
    let tags = &seen.lock().unwrap().tags;
    assert_eq!(*tags, (0..begun as u64 + 64).collect::<Vec<_>>());
}

#[test]
fn zeros_are_written_in_pieces() {
    let (mut disk, seen) = disk(64);
    let mut stream = WriteStream::new(&disk, 512, Flow::new(Depth::Commands(4)), Caching::default());
    stream.write_zeros(&mut disk, 7, 5000).unwrap();
    stream.drain(&mut disk).unwrap();
    assert_eq!(seen.lock().unwrap().good, 3, "of at most 2048 blocks each");
}

#[test]
fn a_long_write_is_cut_for_a_way_that_is_not_known_yet() {
    let (mut disk, seen) = disk(64);
    let mut stream = WriteStream::new(&disk, 512, Flow::new(Depth::Measured), Caching::default());
    stream.write(&mut disk, 0, vec![1; 128 << 10]).unwrap();
    stream.drain(&mut disk).unwrap();
    assert_eq!(seen.lock().unwrap().good, 2);
}

#[test]
fn a_read_begins_with_short_pieces_where_the_way_is_not_known_yet() {
    let (mut disk, _) = disk(64);
    let span = Span { lba: 0, blocks: 2048, block_bytes: 512 };
    let mut stream = ReadStream::new(&disk, span, Flow::new(Depth::Measured));
    let (offset_bytes, data) = stream.next(&mut disk).unwrap().unwrap();
    assert_eq!((offset_bytes, data.len()), (0, 64 << 10));
}

/// The same disk that says it has no write cache; one that says nothing is taken to have one.
fn uncached((mut disk, seen): (Disk, Arc<Mutex<Seen>>)) -> (Disk, Arc<Mutex<Seen>>) {
    let page = ModePage { code: mode::CACHING.0, subpage: 0, savable: false, bytes: vec![0; 20] };
    let (write_protected, dpo_fua) = (false, false);
    disk.facts.mode =
        Some(ModeParameters { write_protected, dpo_fua, block_descriptor: None, pages: vec![page] });
    (disk, seen)
}

/// A disk whose session is lost each time when so many commands have ended.
fn forgetful(lost_after: &[usize]) -> (Disk, Arc<Mutex<Seen>>) {
    disk_of(Narrow { room: 64, lost_after: lost_after.to_vec(), ..Narrow::default() })
}

#[test]
fn a_flush_comes_after_what_was_written_before_it_and_stops_nothing() {
    let (mut disk, seen) = disk(64);
    let mut stream = WriteStream::new(&disk, 512, Flow::new(Depth::Commands(8)), Caching::default());
    for lba in 0..20 {
        stream.write(&mut disk, lba, vec![1; 512]).unwrap();
    }
    stream.begin_flush(&mut disk).unwrap();
    assert!(!stream.has_flushed() && seen.lock().unwrap().flushed_after.is_empty(), "eight are under way");
    for lba in 20..40 {
        stream.write(&mut disk, lba, vec![1; 512]).unwrap();
    }
    assert!(stream.has_flushed());
    assert_eq!(seen.lock().unwrap().flushed_after, [20]);
    stream.begin_flush(&mut disk).unwrap();
    stream.drain(&mut disk).unwrap();
    assert!(stream.has_flushed());
    assert_eq!(seen.lock().unwrap().flushed_after, [20, 41], "the first flush was answered, too");
}

/// It may have got a cache since it said that it has none.
#[test]
fn without_a_cache_it_is_flushed_all_the_same() {
    let (mut disk, seen) = uncached(disk(64));
    let mut stream = WriteStream::new(&disk, 512, Flow::new(Depth::Commands(8)), Caching::default());
    write_blocks(&mut disk, &mut stream, 1);
    stream.flush(&mut disk).unwrap();
    assert!(stream.has_flushed());
    assert_eq!(seen.lock().unwrap().flushed_after, [1]);
}

#[test]
fn without_a_cache_a_flush_need_not_be_known() {
    const SYNCHRONIZE_CACHE_10: u8 = 0x35;
    let flushed = |(mut disk, seen): (Disk, Arc<Mutex<Seen>>)| {
        let mut stream = WriteStream::new(&disk, 512, Flow::new(Depth::Commands(8)), Caching::default());
        write_blocks(&mut disk, &mut stream, 4);
        let flushed = stream.flush(&mut disk);
        let seen = seen.lock().unwrap();
        assert_eq!((seen.good, seen.refused), (4, 1));
        flushed
    };
    flushed(uncached(disk_without(SYNCHRONIZE_CACHE_10))).unwrap();
    assert!(flushed(disk_without(SYNCHRONIZE_CACHE_10)).is_err(), "with one it does");
}

#[test]
fn after_a_flush_that_failed_for_a_reset_the_stream_goes_on() {
    let (mut disk, seen) = disk_of(Narrow { room: 64, resets: 1, ..Narrow::default() });
    let mut stream = WriteStream::new(&disk, 512, Flow::new(Depth::Commands(8)), Caching::default());
    write_blocks(&mut disk, &mut stream, 2);
    stream.begin_flush(&mut disk).unwrap();
    write_blocks(&mut disk, &mut stream, 4);
    assert!(stream.drain(&mut disk).unwrap_err().is_unflushed());
    stream.drain(&mut disk).unwrap();
    stream.begin_flush(&mut disk).unwrap();
    stream.drain(&mut disk).unwrap();
    assert!(stream.has_flushed());
    assert_eq!(seen.lock().unwrap().flushed_after, [2, 6]);
}

/// Writes so many blocks.
fn write_blocks(disk: &mut Disk, stream: &mut WriteStream, blocks: u64) {
    for lba in 0..blocks {
        stream.write(disk, lba, vec![1; 512]).unwrap();
    }
}

#[test]
fn a_flush_proves_nothing_of_what_was_answered_in_an_earlier_session() {
    let (mut disk, seen) = forgetful(&[3]);
    let mut stream = WriteStream::new(&disk, 512, Flow::new(Depth::Commands(8)), Caching::default());
    write_blocks(&mut disk, &mut stream, 4);
    let failure = stream.flush(&mut disk).unwrap_err();
    assert!(failure.is_unflushed() && failure.to_string().contains("the session was lost"), "{failure}");
    write_blocks(&mut disk, &mut stream, 4);
    stream.flush(&mut disk).unwrap();
    assert_eq!(seen.lock().unwrap().flushed_after, [4, 9], "the second is of the session of all before it");
}

#[test]
fn what_came_behind_a_flush_is_covered_by_the_next_one() {
    let (mut disk, _) = forgetful(&[7]);
    let mut stream = WriteStream::new(&disk, 512, Flow::new(Depth::Commands(8)), Caching::default());
    write_blocks(&mut disk, &mut stream, 2);
    stream.begin_flush(&mut disk).unwrap();
    write_blocks(&mut disk, &mut stream, 4);
    stream.drain(&mut disk).unwrap();
    assert!(stream.has_flushed(), "nothing was lost until then");
    assert!(stream.flush(&mut disk).unwrap_err().is_unflushed(), "of the other four nobody knows");
    stream.flush(&mut disk).unwrap();
}

#[test]
fn what_was_under_way_when_a_flush_failed_is_not_held_against_the_next_one() {
    let (mut disk, _) = forgetful(&[2]);
    let mut stream = WriteStream::new(&disk, 512, Flow::new(Depth::Commands(8)), Caching::default());
    write_blocks(&mut disk, &mut stream, 2);
    stream.begin_flush(&mut disk).unwrap();
    let mut begun = 0;
    let failure = loop {
        if let Err(failure) = stream.write(&mut disk, 100, vec![1; 512]) {
            break failure;
        }
        begun += 1;
    };
    assert!(failure.is_unflushed() && begun > 1, "{failure}");
    stream.drain(&mut disk).unwrap();
    write_blocks(&mut disk, &mut stream, 2);
    stream.flush(&mut disk).unwrap();
}

#[test]
fn without_a_cache_a_lost_session_costs_nothing() {
    let narrow = Narrow { room: 64, lost_after: vec![1, 3], has_cache: Some(false), ..Narrow::default() };
    let (mut disk, seen) = uncached(disk_of(narrow));
    let mut stream = WriteStream::new(&disk, 512, Flow::new(Depth::Commands(8)), Caching::default());
    write_blocks(&mut disk, &mut stream, 5);
    stream.flush(&mut disk).unwrap();
    assert_eq!(seen.lock().unwrap().good, 5 + 1);
}

#[test]
fn without_a_cache_a_reset_costs_nothing() {
    let narrow = Narrow { room: 64, resets: 1, has_cache: Some(false), ..Narrow::default() };
    let (mut disk, seen) = uncached(disk_of(narrow));
    let mut stream = WriteStream::new(&disk, 512, Flow::new(Depth::Commands(8)), Caching::default());
    write_blocks(&mut disk, &mut stream, 4);
    stream.flush(&mut disk).unwrap();
    assert_eq!(seen.lock().unwrap().flushed_after, [4], "it is asked in its place");
}

/// The writes were answered in the session in which it had none; a restart may have taken what they left in the cache.
#[test]
fn a_disk_that_gets_a_cache_later_is_not_taken_to_have_none() {
    for (has_cache, has_other_modes) in [(Some(true), false), (None, false), (Some(false), true)] {
        let lost_after = vec![4];
        let narrow = Narrow { room: 64, lost_after, has_cache, has_other_modes, ..Narrow::default() };
        let (mut disk, _) = uncached(disk_of(narrow));
        let mut stream = WriteStream::new(&disk, 512, Flow::new(Depth::Commands(8)), Caching::default());
        write_blocks(&mut disk, &mut stream, 4);
        let failure = stream.flush(&mut disk).unwrap_err();
        assert!(failure.is_unflushed(), "{has_cache:?}, {has_other_modes}: {failure}");
        write_blocks(&mut disk, &mut stream, 4);
        stream.flush(&mut disk).unwrap();
    }
}

#[test]
fn without_a_cache_a_flush_that_proves_nothing_stops_no_stream() {
    let narrow = Narrow { room: 64, lost_after: vec![2], has_cache: Some(false), ..Narrow::default() };
    let (mut disk, seen) = uncached(disk_of(narrow));
    let mut stream = WriteStream::new(&disk, 512, Flow::new(Depth::Commands(8)), Caching::default());
    write_blocks(&mut disk, &mut stream, 2);
    stream.begin_flush(&mut disk).unwrap();
    write_blocks(&mut disk, &mut stream, 30);
    assert!(stream.has_flushed());
    stream.flush(&mut disk).unwrap();
    assert_eq!(seen.lock().unwrap().flushed_after, [2, 33]);
}

/// Each flush ends so, and nothing is lost by it.
#[test]
fn a_flush_that_costs_nothing_is_not_sent_again_for_ever() {
    let (mut disk, seen) = disk_of(Narrow { room: 64, resets: u32::MAX, ..Narrow::default() });
    let mut stream = WriteStream::new(&disk, 512, Flow::new(Depth::Commands(8)), Caching::default());
    assert!(stream.flush(&mut disk).unwrap_err().is_unflushed());
    assert_eq!(seen.lock().unwrap().flushed_after, [0; 33]);
}

#[test]
fn nobody_knows_whether_a_later_session_is_without_a_cache_too() {
    let (mut disk, _) = uncached(forgetful(&[1, 3]));
    let mut stream = WriteStream::new(&disk, 512, Flow::new(Depth::Commands(8)), Caching::default());
    write_blocks(&mut disk, &mut stream, 4);
    assert!(stream.flush(&mut disk).unwrap_err().is_unflushed(), "the second and third write may be lost");
    write_blocks(&mut disk, &mut stream, 4);
    stream.flush(&mut disk).unwrap();
}

#[test]
fn what_was_written_through_the_cache_outlives_its_session() {
    let (mut disk, _) = uncached(forgetful(&[3]));
    let mode = disk.facts.mode.as_mut().unwrap();
    // WCE is in the page's third byte.
    (mode.dpo_fua, mode.pages[0].bytes[2]) = (true, 4);
    assert!(disk.facts.has_write_cache());
    let fua = Caching { force_unit_access: true, ..Caching::default() };
    let mut stream = WriteStream::new(&disk, 512, Flow::new(Depth::Commands(8)), fua);
    write_blocks(&mut disk, &mut stream, 4);
    stream.flush(&mut disk).unwrap();
}
