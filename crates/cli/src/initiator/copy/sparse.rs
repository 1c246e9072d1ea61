//! A disk read in order, without what holds nothing: it is asked for that well before it is read there, so that nothing stops.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use lunette_scsi::client::lba_status::get_lba_status;

use super::super::disk::Disk;
use super::super::stream::{Flow, ReadStream, Step};
use super::endpoint::Extent;
use super::pieces::{Piece, Pieces};
use super::space::SpaceMap;
use crate::failure::Failure;

/// See the module's documentation.
pub(super) struct SparseReads {
    stream: ReadStream,
    space: SpaceMap,
    /// The block that each question begins with, by its tag.
    questions: HashMap<u64, u64>,
    pieces: Pieces,
    block_bytes: u32,
    /// What holds nothing and was not told yet, in bytes; neighbours are one.
    holes: VecDeque<Range<u64>>,
    /// Up to where it is decided what is read.
    planned_bytes: u64,
    /// Up to where everything was handed over.
    at_bytes: u64,
    end_bytes: u64,
}

impl SparseReads {
    /// Of these bytes, which are of whole blocks. Nothing is asked of a unit that does not tell.
    pub(super) fn new(
        disk: &Disk,
        bytes: &Range<u64>,
        block_bytes: u32,
        pieces: Pieces,
        tells_space: bool,
        flow: Flow,
    ) -> SparseReads {
        let block = u64::from(block_bytes);
        let mut space = SpaceMap::new(&(bytes.start / block..bytes.end / block));
        if !tells_space {
            space.is_not_told();
        }
        SparseReads {
            stream: ReadStream::empty(disk, block_bytes, flow),
            space,
            questions: HashMap::new(),
            pieces,
            block_bytes,
            holes: VecDeque::new(),
            planned_bytes: bytes.start,
            at_bytes: bytes.start,
            end_bytes: bytes.end,
        }
    }

    /// What comes next: data as it was read, or what holds nothing. `None` at the end.
    ///
    /// # Errors
    /// The session, or what the target said.
    pub(super) fn next(&mut self, disk: &mut Disk) -> Result<Option<Piece>, Failure> {
        loop {
            self.ask(disk)?;
            self.plan();
            if let Some(hole) = self.holes.pop_front_if(|hole| hole.start == self.at_bytes) {
                self.at_bytes = hole.end;
                return Ok(Some(Piece::Empty {
                    offset_bytes: hole.start,
                    length_bytes: hole.end - hole.start,
                }));
            }
            if self.at_bytes >= self.end_bytes {
                // Questions may be left whose answers others have made needless.
                self.stream.settle(disk)?;
                return Ok(None);
            }
            match self.stream.step(disk)? {
                Step::Data(offset_bytes, data) => {
                    self.at_bytes = offset_bytes + data.len() as u64;
                    return Ok(Some(Piece::Data { offset_bytes, data }));
                }
                Step::Answer(tag, answer) => self.answered(tag, answer)?,
                Step::Idle => return Err(Failure::internal("nothing is under way before the end")),
            }
        }
    }

    fn ask(&mut self, disk: &mut Disk) -> Result<(), Failure> {
        while let Some(lba) = self.space.question(self.stream.lacks_blocks()) {
            let query = get_lba_status(lba);
            let Some(tag) = self.stream.ask(disk, lba, query.command().clone())? else { break };
            self.space.asked(lba);
            self.questions.insert(tag, lba);
        }
        Ok(())
    }

    fn answered(&mut self, tag: u64, answer: Result<Vec<u8>, Failure>) -> Result<(), Failure> {
        let lba = self.questions.remove(&tag);
        let lba = lba.ok_or_else(|| Failure::internal("a question was answered that was not asked"))?;
        match answer {
            Ok(data) => match get_lba_status(lba).decode(&data) {
                Ok(extents) => self.space.answered(lba, &extents),
                Err(_) => self.space.is_not_told(),
            },
            Err(failure) if failure.unfit().is_some() => self.space.is_not_told(),
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Decides what is read, as far as it is known what there is.
    fn plan(&mut self) {
        let block = u64::from(self.block_bytes);
        while self.planned_bytes < self.end_bytes
            && let Some(run) = self.space.run(self.planned_bytes / block)
        {
            let at = self.planned_bytes;
            let extent = Extent { length_bytes: run.blocks.end * block - at, is_empty: run.is_empty };
            let Extent { length_bytes, is_empty } = self.pieces.cut(extent, at, self.end_bytes);
            let end = at + length_bytes;
            match self.holes.back_mut() {
                _ if !is_empty => self.stream.push(at / block..end / block),
                Some(last) if last.end == at => last.end = end,
                _ => self.holes.push_back(at..end),
            }
            self.planned_bytes = end;
        }
    }

    /// Takes a buffer back.
    pub(super) fn recycle(&mut self, buffer: Vec<u8>) {
        self.stream.recycle(buffer);
    }

    /// Waits for what is under way, when nobody wants it any more.
    ///
    /// # Errors
    /// The session.
    pub(super) fn settle(&mut self, disk: &mut Disk) -> Result<(), Failure> {
        self.stream.settle(disk)
    }

    /// What was learnt for the next reads: of the way, and whether the unit tells of its space.
    pub(super) fn into_parts(self) -> (Flow, bool) {
        (self.stream.into_flow(), self.space.is_told())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lunette_scsi::{AdditionalSense, SenseKey};

    use super::super::super::stream::Depth;
    use super::super::super::stream::tests::line::Line;
    use super::*;

    const BLOCKS: u64 = (256 << 20) / 512;

    fn line(extent_blocks: u64, told_max: u64) -> Line {
        let delay = Duration::from_millis(50);
        Line { rate: 18.7e6, delay, extent_blocks, blocks: BLOCKS, told_max, refusal: None }
    }

    /// Reads all of it, and checks each block; answers how long that took, and how much was left out.
    fn read(line: &Line, depth: Depth, grain_bytes: u64) -> Result<(Duration, u64), Failure> {
        let (mut disk, now) = line.clone().disk();
        let pieces = Pieces::of(grain_bytes, 1 << 20);
        let bytes = 0..line.blocks * 512;
        let mut reads = SparseReads::new(&disk, &bytes, 512, pieces, true, Flow::new(depth));
        let (mut at, mut empty) = (0, 0);
        while let Some(piece) = reads.next(&mut disk)? {
            match piece {
                Piece::Data { offset_bytes, data } => {
                    assert_eq!(offset_bytes, at);
                    for block in data.chunks(512) {
                        assert_eq!(block[..8], (at / 512).to_be_bytes());
                        at += 512;
                    }
                    reads.recycle(data);
                }
                Piece::Empty { offset_bytes, length_bytes } => {
                    assert_eq!((offset_bytes, length_bytes % grain_bytes), (at, 0));
                    assert!((at / 512..(at + length_bytes) / 512).all(|lba| line.is_empty(lba)));
                    (at, empty) = (at + length_bytes, empty + length_bytes);
                }
            }
        }
        assert_eq!(at, bytes.end);
        let took = *now.lock().unwrap();
        Ok((took, empty))
    }

    #[test]
    fn a_long_line_is_busy_over_the_borders_of_extents() {
        // 128 MiB of data in extents of 4 MiB and of 64 KiB, however little an answer tells.
        for (extent_bytes, told_max, depth, share) in [
            (4 << 20, 255, Depth::Measured, 0.9),
            (4 << 20, 8, Depth::Measured, 0.9),
            (4 << 20, 1, Depth::Measured, 0.9),
            (4 << 20, 1, Depth::Commands(64), 0.9),
            (64 << 10, 255, Depth::Measured, 0.9),
            (64 << 10, 32, Depth::Commands(64), 0.9),
        ] {
            let line = line(extent_bytes / 512, told_max);
            let (took, empty) = read(&line, depth, 512).unwrap();
            let moved = line.blocks * 512 - empty;
            assert_eq!(moved, 128 << 20);
            let used = moved as f64 / line.rate / took.as_secs_f64();
            assert!(
                used > share,
                "{extent_bytes} bytes, {told_max} an answer, {depth:?}: {used:.3} of the line"
            );
        }
    }

    #[test]
    fn what_is_left_out_is_of_whole_blocks_of_both_sides() {
        // 3.5 KiB each, of which the destination's blocks of 4 KiB are empty as a whole only now and then.
        let read = |extent_blocks, depth| {
            read(&Line { blocks: 7000, ..line(extent_blocks, 3) }, depth, 4096).unwrap()
        };
        assert_eq!(read(7, Depth::Commands(3)).1, 0);
        let (_, empty) = read(17, Depth::Commands(1));
        assert!((500_000..1_800_000).contains(&empty), "{empty}");
    }

    #[test]
    fn a_unit_that_does_not_tell_is_read_as_a_whole() {
        let refusal = Some((SenseKey::IllegalRequest, AdditionalSense::INVALID_COMMAND_OPERATION_CODE));
        let line = Line { blocks: 10_000, refusal, ..line(8, 1) };
        assert_eq!(read(&line, Depth::Measured, 512).unwrap().1, 0);
    }

    #[test]
    fn a_change_of_the_disk_is_not_taken_for_a_missing_command() {
        let refusal = Some((SenseKey::UnitAttention, AdditionalSense::CAPACITY_CHANGED));
        let line = Line { blocks: 10_000, refusal, ..line(8, 1) };
        let failure = read(&line, Depth::Measured, 512).unwrap_err();
        assert!(failure.to_string().contains("the capacity changed"), "{failure}");
    }
}
