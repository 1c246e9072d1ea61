//! A disk at the end of a line, in virtual time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lunette_scsi::client::{Command, UnitIdentity};
use lunette_scsi::{AdditionalSense, Lun, SenseData, SenseKey, Status};

use super::super::super::disk::Disk;
use super::super::super::port::{Done, Port};
use super::disk_at;
use crate::failure::Failure;

const READ_10: u8 = 0x28;
const READ_16: u8 = 0x88;
const GET_LBA_STATUS: u8 = 0x9e;
const BLOCK_BYTES: u64 = 512;

/// A disk at the end of a line, of whose blocks each begins with its LBA. What it takes to do something is the line's time alone.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// In bytes per second.
    pub(crate) rate: f64,
    /// There and back.
    pub(crate) delay: Duration,
    /// The blocks that have space begin with the first, and are followed by as many without.
    pub(crate) extent_blocks: u64,
    /// Where the disk ends.
    pub(crate) blocks: u64,
    /// How many extents one answer tells of at most.
    pub(crate) told_max: u64,
    /// How questions end, if not well.
    pub(crate) refusal: Option<(SenseKey, AdditionalSense)>,
}

impl Line {
    /// The disk, and its clock.
    pub(crate) fn disk(self) -> (Disk, Arc<Mutex<Duration>>) {
        let now = Arc::new(Mutex::new(Duration::ZERO));
        let (free_at, under_way) = Default::default();
        let port = LinePort { line: self, now: Arc::clone(&now), free_at, under_way };
        (disk_at(Box::new(port)), now)
    }

    /// Whether this block has no space.
    pub(crate) fn is_empty(&self, lba: u64) -> bool {
        lba / self.extent_blocks % 2 == 1
    }

    fn space(&self, from: u64) -> Vec<u8> {
        let mut answer = vec![0; 8];
        let mut lba = from;
        for _ in 0..self.told_max {
            if lba >= self.blocks {
                break;
            }
            let end = ((lba / self.extent_blocks + 1) * self.extent_blocks).min(self.blocks);
            answer.extend(lba.to_be_bytes());
            answer.extend(((end - lba) as u32).to_be_bytes());
            answer.extend([u8::from(self.is_empty(lba)), 0, 0, 0]);
            lba = end;
        }
        let length = (answer.len() - 4) as u32;
        answer[..4].copy_from_slice(&length.to_be_bytes());
        answer
    }
}

struct LinePort {
    line: Line,
    now: Arc<Mutex<Duration>>,
    /// When the line is free.
    free_at: Duration,
    /// With the time at which each ends.
    under_way: Vec<(Duration, Done)>,
}

impl Port for LinePort {
    fn start(&mut self, _: Lun, tag: u64, command: &Command, mut data: Vec<u8>) -> Result<(), Failure> {
        let cdb = command.cdb();
        let (mut status, mut sense) = (Status::Good, Vec::new());
        let lba = |place: std::ops::Range<usize>| {
            cdb[place].iter().fold(0, |lba, byte| lba << 8 | u64::from(*byte))
        };
        match (cdb[0], self.line.refusal) {
            (READ_10 | READ_16, _) => {
                let first = if cdb[0] == READ_10 { lba(2..6) } else { lba(2..10) };
                for (lba, block) in (first..).zip(data.chunks_mut(BLOCK_BYTES as usize)) {
                    assert!(lba < self.line.blocks, "read behind the end");
                    block[..8].copy_from_slice(&lba.to_be_bytes());
                }
            }
            (GET_LBA_STATUS, None) => data = self.line.space(lba(2..10)),
            (GET_LBA_STATUS, Some((key, code))) => {
                (status, data) = (Status::CheckCondition, Vec::new());
                sense = SenseData::new(key, code).encode(false).as_bytes().to_vec();
            }
            (other, _) => panic!("not expected: {other:#x}"),
        }
        let there = self.now() + self.line.delay / 2;
        self.free_at = self.free_at.max(there) + Duration::from_secs_f64(data.len() as f64 / self.line.rate);
        let done = Done { tag, status: Some(status), sense, data, session: 0 };
        self.under_way.push((self.free_at + self.line.delay / 2, done));
        Ok(())
    }

    fn finish(&mut self) -> Result<Done, Failure> {
        // They end in the order in which they were sent.
        let (end, done) = self.under_way.remove(0);
        let mut now = self.now.lock().unwrap();
        *now = end.max(*now);
        Ok(done)
    }

    fn now(&self) -> Duration {
        *self.now.lock().unwrap()
    }

    fn guard(&mut self, _: Lun, _: UnitIdentity) {}

    fn close(self: Box<Self>) -> Result<(), Failure> {
        Ok(())
    }
}
