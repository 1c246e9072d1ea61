//! Any seed: long writes in segments and parts of any length, in the command, behind it and on request, in any order that was agreed on,
//! with digests and without, on several connections at a time. The disk has them (docs/decisions/0047; RFC 7143, 4.2.5).

use std::collections::VecDeque;
use std::ops::Range;
use std::thread;
use std::time::Duration;

use lunette_tests::in_process::InProcess;
use lunette_tests::initiator::LoginOptions;
use lunette_tests::random::{Random, fresh_seed};
use lunette_tests::raw::{BLOCK_BYTES, Raw};
use lunette_wire::InitiatorPdu;
use lunette_wire::frame::Digests;
use lunette_wire::initiator::{ScsiCommand, ScsiDataOut};
use lunette_wire::target::ReadyToTransfer;

use super::{PAGE, PAGES, data_out, read_bytes, unasked, write_bytes};
use crate::DISK;
use crate::connections::Session;

const DISK_BYTES: usize = 8 << 20;

#[test]
fn any_parts_make_the_same_disk() {
    let seed = fresh_seed();
    // Shown with whatever fails.
    eprintln!("seed {seed}");
    let mut random = Random::new(seed);
    let directory = tempfile::tempdir().expect("a directory");
    let file = format!("0=file:{},size=8M,write=back", directory.path().join("disk.img").display());
    for (unit, block_bytes) in [(DISK, BLOCK_BYTES), (&file, BLOCK_BYTES), (PAGES, PAGE)] {
        let target = InProcess::start(&[unit]);
        let mut model = vec![0; DISK_BYTES];
        for port in 1..=8 {
            let agreed = Agreed::any(&mut random, block_bytes);
            let links = 1 + random.below(3) as usize;
            let mut session =
                Session::open_as(&target, agreed.options(&target, port, &mut random), links as u16);
            for _ in 0..8_usize.div_ceil(links) {
                write_in_parts(&mut session, links, &mut random, &agreed, &mut model);
            }
            expect_all(session.on(0), &model, block_bytes);
        }
        target.wait_for_its_buffers();
    }
}

/// What a session's initiator may do, and its disk's blocks.
#[derive(Debug)]
struct Agreed {
    block_bytes: usize,
    brings_data: bool,
    sends_unasked: bool,
    first_burst: usize,
    burst: usize,
    r2ts_max: usize,
    keeps_pdus: bool,
    keeps_sequences: bool,
}

impl Agreed {
    fn any(random: &mut Random, block_bytes: usize) -> Self {
        let burst = [64 << 10, 256 << 10][random.below(2) as usize];
        Self {
            block_bytes,
            brings_data: random.below(2) == 0,
            sends_unasked: random.below(2) == 0,
            first_burst: burst,
            burst,
            r2ts_max: [1, 2, 16][random.below(3) as usize],
            keeps_pdus: random.below(2) == 0,
            keeps_sequences: random.below(2) == 0,
        }
    }

    fn options(&self, target: &InProcess, port: u8, random: &mut Random) -> LoginOptions {
        let yes_or_no = |is_so| if is_so { "Yes" } else { "No" };
        let keys = [
            ("InitialR2T", yes_or_no(!self.sends_unasked)),
            ("ImmediateData", yes_or_no(self.brings_data)),
            ("FirstBurstLength", &self.first_burst.to_string()),
            ("MaxBurstLength", &self.burst.to_string()),
            ("MaxOutstandingR2T", &self.r2ts_max.to_string()),
            ("DataPDUInOrder", yes_or_no(self.keeps_pdus)),
            ("DataSequenceInOrder", yes_or_no(self.keeps_sequences)),
        ];
        let digests = Digests { header: random.below(2) == 1, data: random.below(2) == 1 };
        LoginOptions { digests, ..target.options_with(port, &keys) }
    }
}

/// A write on each connection, each anywhere in a region of its own; their parts go out in any order.
fn write_in_parts(
    session: &mut Session,
    links: usize,
    random: &mut Random,
    agreed: &Agreed,
    model: &mut [u8],
) {
    let region = model.len() / links / PAGE * PAGE;
    // A command is all there before one with a later number waits for its data.
    let mut open: Vec<_> = (0..links)
        .map(|cid| (cid, Writing::begin(session.on(cid), random, agreed, cid * region..(cid + 1) * region)))
        .collect();
    while !open.is_empty() {
        let next = random.below(open.len() as u64) as usize;
        let (cid, writing) = &mut open[next];
        if writing.go_on(session.on(*cid), random, agreed) {
            let Writing { at, data, .. } = open.swap_remove(next).1;
            model[at..at + data.len()].copy_from_slice(&data);
        }
    }
}

/// A write that has not ended.
struct Writing {
    at: usize,
    data: Vec<u8>,
    segment: usize,
    /// What of it was sent or asked for.
    asked: usize,
    r2ts: Vec<ReadyToTransfer>,
    /// Of the sequence that is being sent.
    segments: VecDeque<Range<usize>>,
    sequence: ReadyToTransfer,
    data_sn: u32,
    /// The rest of a PDU, and the longest part of it that is sent at a time.
    unsent: Vec<u8>,
    part_max: usize,
}

impl Writing {
    /// A write of any length; its command is sent.
    fn begin(link: &mut Raw, random: &mut Random, agreed: &Agreed, region: Range<usize>) -> Self {
        // Often on the borders of pages, and often not.
        let unit = [agreed.block_bytes, PAGE][random.below(2) as usize];
        let longest = [600 << 10, 240 << 10][random.below(2) as usize];
        let length = unit * (1 + random.below(longest / unit as u64) as usize);
        let at = region.start + unit * random.below(((region.len() - length) / unit) as u64 + 1) as usize;
        let data: Vec<u8> =
            (0..length.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).take(length).collect();
        let segment = [PAGE * 9, 64 << 10, 256 << 10, 33_000][random.below(4) as usize];

        let burst = length.min(agreed.first_burst);
        let first = if agreed.brings_data { segment.min(burst) } else { 0 };
        let follows = agreed.sends_unasked && first < burst && random.below(4) > 0;
        let command = ScsiCommand { is_final: !follows, ..write_bytes(agreed.block_bytes, at, length) };
        let command = link.number(&command);
        let mut writing = Self {
            at,
            data,
            segment,
            asked: first,
            r2ts: Vec::new(),
            segments: VecDeque::new(),
            sequence: unasked(command.initiator_task_tag, first..burst),
            data_sn: 0,
            unsent: Vec::new(),
            part_max: 0,
        };
        writing.unsent =
            link.connection().encode(&InitiatorPdu::ScsiCommand(command), &writing.data[..first]);
        writing.begin_pdu(random);
        while !writing.unsent.is_empty() {
            writing.send_part(link, random);
        }
        if follows {
            writing.asked = burst;
            writing.begin_sequence(random, agreed);
        }
        writing
    }

    /// Sends something, or takes what comes next; whether that was its end.
    fn go_on(&mut self, link: &mut Raw, random: &mut Random, agreed: &Agreed) -> bool {
        let tag = self.sequence.initiator_task_tag;
        if !self.unsent.is_empty() {
            self.send_part(link, random);
        } else if let Some(range) = self.segments.pop_front() {
            let pdu = ScsiDataOut {
                is_final: self.segments.is_empty(),
                ..data_out(link, &self.sequence, range.clone(), self.data_sn)
            };
            self.data_sn += 1;
            self.unsent = link.connection().encode(&InitiatorPdu::ScsiDataOut(pdu), &self.data[range]);
            self.begin_pdu(random);
        } else if self.r2ts.len() < agreed.r2ts_max && self.asked < self.data.len() {
            let r2t = link.r2t(tag).expect("an R2T");
            assert_eq!(r2t.buffer_offset as usize, self.asked);
            assert_eq!(r2t.desired_length as usize, agreed.burst.min(self.data.len() - self.asked));
            self.asked += r2t.desired_length as usize;
            self.r2ts.push(r2t);
        } else if self.r2ts.is_empty() {
            link.good(tag).expect("a write");
            return true;
        } else {
            let next = if agreed.keeps_sequences { 0 } else { random.below(self.r2ts.len() as u64) as usize };
            self.sequence = self.r2ts.remove(next);
            self.begin_sequence(random, agreed);
        }
        false
    }

    fn begin_sequence(&mut self, random: &mut Random, agreed: &Agreed) {
        let start = self.sequence.buffer_offset as usize;
        let end = start + self.sequence.desired_length as usize;
        let ranges = (start..end).step_by(self.segment).map(|at| at..(at + self.segment).min(end));
        self.segments = ranges.collect();
        self.data_sn = 0;
        if !agreed.keeps_pdus {
            for last in (1..self.segments.len()).rev() {
                self.segments.swap(last, random.below(last as u64 + 1) as usize);
            }
        }
    }

    fn begin_pdu(&mut self, random: &mut Random) {
        self.part_max = [self.unsent.len(), 100_000, 5000, 700][random.below(4) as usize];
    }

    fn send_part(&mut self, link: &mut Raw, random: &mut Random) {
        let length = self.unsent.len().min(1 + random.below(self.part_max as u64) as usize);
        link.connection().send_bytes(&self.unsent[..length]).expect("sent");
        self.unsent.drain(..length);
        if random.below(8) == 0 {
            thread::sleep(Duration::from_micros(200));
        }
    }
}

fn expect_all(session: &mut Raw, model: &[u8], block_bytes: usize) {
    for (index, part) in model.chunks(1 << 20).enumerate() {
        let at = index << 20;
        let tag = session.command(&read_bytes(block_bytes, at, part.len()), &[]).expect("sent");
        assert!(session.data_in(tag).expect("a read").0 == part, "other data from byte {at} on");
    }
}
