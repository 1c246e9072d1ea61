//! Many commands in one segment of TCP (4.2.2.1): each is answered for itself, once, with its own data.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;

use lunette_target::config::LunFlag;
use lunette_tests::in_process::InProcess;
use lunette_tests::initiator::LoginOptions;
use lunette_tests::random::{Random, fresh_seed};
use lunette_tests::raw::{BLOCK_BYTES, Raw, read, write};
use lunette_wan::tcp_connections;
use lunette_wire::frame::Digests;
use lunette_wire::initiator::{NopOut, ScsiCommand};
use lunette_wire::target::Residual;
use lunette_wire::{DataSn, InitiatorPdu, InitiatorTaskTag, TargetPdu, TargetTransferTag};

use crate::{CHECK_CONDITION, DISK, pattern};

const BATCHES: usize = 30;
const COMMANDS_MAX: u64 = 60;
/// Of the unit, so that writes and reads meet.
const SPAN_BLOCKS: usize = 256;
/// Answered at once, those that a read of the socket cuts as well.
const SHORT_BLOCKS_MAX: u64 = 32;
const DISK_BLOCKS: u64 = (8 << 20) / BLOCK_BYTES as u64;

/// What must come back for a request.
#[derive(Debug)]
enum Expected {
    Good,
    Data(Vec<u8>, Residual),
    Refused,
    Echo(Vec<u8>),
}

/// A batch that has not been sent.
struct Batch<'a> {
    session: &'a mut Raw,
    bytes: Vec<u8>,
    expected: BTreeMap<u32, Expected>,
    /// What each block is used for: commands may overtake each other, so that nothing is read that is written, or written twice.
    uses: Vec<Use>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    None,
    Read,
    Write,
}

impl Batch<'_> {
    fn command(&mut self, command: &ScsiCommand, data: &[u8], expected: Expected) {
        let command = self.session.number(command);
        let pdu = InitiatorPdu::ScsiCommand(command);
        self.bytes.extend(self.session.connection().encode(&pdu, data));
        self.expected.insert(command.initiator_task_tag.0, expected);
    }

    fn ping(&mut self, echo: &[u8]) {
        let tag = self.session.new_tag();
        // An immediate one, which uses up no CmdSN.
        let numbers = self.session.number(&ScsiCommand { immediate: true, ..ScsiCommand::default() });
        let pdu = NopOut {
            immediate: true,
            initiator_task_tag: tag,
            target_transfer_tag: TargetTransferTag::RESERVED,
            cmd_sn: numbers.cmd_sn,
            exp_stat_sn: numbers.exp_stat_sn,
            ..NopOut::default()
        };
        self.bytes.extend(self.session.connection().encode(&InitiatorPdu::NopOut(pdu), echo));
        self.expected.insert(tag.0, Expected::Echo(echo.to_vec()));
    }

    /// Whether these blocks may be used so beside all that is in the batch; if so they are.
    fn uses(&mut self, blocks: std::ops::Range<usize>, how: Use) -> bool {
        let Some(uses) = self.uses.get_mut(blocks) else { return false };
        let is_free = uses.iter().all(|of| *of == Use::None || (how == Use::Read && *of == Use::Read));
        if is_free {
            uses.fill(how);
        }
        is_free
    }

    fn run(self, what: &str) {
        let Self { session, bytes, mut expected, .. } = self;
        session.connection().send_bytes(&bytes).expect(what);
        let mut begun: BTreeMap<u32, (DataSn, Vec<u8>)> = BTreeMap::new();
        while !expected.is_empty() {
            let (pdu, data) = session.receive().expect(what);
            let mut take = |tag: InitiatorTaskTag| {
                expected.remove(&tag.0).unwrap_or_else(|| panic!("{what}: {pdu:?} answers nothing"))
            };
            match &pdu {
                TargetPdu::ScsiDataIn(pdu) => {
                    let (data_sn, so_far) = begun.entry(pdu.initiator_task_tag.0).or_default();
                    assert_eq!((pdu.data_sn, pdu.buffer_offset as usize), (*data_sn, so_far.len()), "{what}");
                    *data_sn = data_sn.next();
                    so_far.extend(data);
                    if pdu.status == Some(0) {
                        let Expected::Data(wanted, residual) = take(pdu.initiator_task_tag) else {
                            panic!("{what}: no data was expected: {pdu:?}")
                        };
                        assert!(*so_far == wanted, "{what}: other data than was written: {pdu:?}");
                        assert_eq!(pdu.residual, residual, "{what}");
                    }
                }
                TargetPdu::ScsiResponse(pdu) => match (take(pdu.initiator_task_tag), pdu.status) {
                    (Expected::Good, 0) | (Expected::Refused, CHECK_CONDITION) => {}
                    (expected, _) => panic!("{what}: {pdu:?} instead of {expected:?}"),
                },
                TargetPdu::NopIn(pdu) => {
                    let Expected::Echo(echo) = take(pdu.initiator_task_tag) else {
                        panic!("{what}: {pdu:?}")
                    };
                    assert_eq!(data, echo, "{what}");
                }
                other => panic!("{what}: {other:?}"),
            }
        }
    }
}

/// One request of any kind, with what must become of it.
fn add(batch: &mut Batch<'_>, lun: u8, random: &mut Random, disk: &mut [u8]) {
    let first = random.below(SPAN_BLOCKS as u64) as usize;
    let longest = if random.below(12) == 0 { 3 * SHORT_BLOCKS_MAX } else { SHORT_BLOCKS_MAX };
    let blocks = 1 + random.below(longest) as usize;
    let (start, length) = (first * BLOCK_BYTES, blocks * BLOCK_BYTES);
    let command = read(lun, first as u64, blocks as u32);
    match random.below(16) {
        0..=7 if batch.uses(first..first + blocks, Use::Read) => {
            let data = disk[start..start + length].to_vec();
            batch.command(&command, &[], Expected::Data(data, Residual::None));
        }
        // Of what the command reads its initiator wants a part, and not in whole words.
        8 if batch.uses(first..first + blocks, Use::Read) => {
            let wanted = 1 + random.below(length as u64 - 1) as usize;
            let residual = Residual::Overflow((length - wanted) as u32);
            let command = ScsiCommand { expected_data_transfer_length: wanted as u32, ..command };
            batch.command(&command, &[], Expected::Data(disk[start..start + wanted].to_vec(), residual));
        }
        9 => batch.command(&read(lun, DISK_BLOCKS - 1, 2), &[], Expected::Refused),
        // A READ whose initiator says that it writes: what it sends is not wanted, and nothing is sent to it.
        15 => {
            let command = ScsiCommand { read: false, write: true, ..command };
            batch.command(&command, &pattern(length), Expected::Good);
        }
        10 => batch.ping(&pattern(1 + random.below(9) as usize)),
        11..=14 if batch.uses(first..first + blocks, Use::Write) => {
            let salt = random.next() as u8;
            let data: Vec<u8> = pattern(length).iter().map(|byte| byte ^ salt).collect();
            disk[start..start + length].copy_from_slice(&data);
            batch.command(&write(lun, first as u64, length), &data, Expected::Good);
        }
        _ => {}
    }
}

/// RFC 7143: 4.2.2.1, 4.2.2.3, 11.4.5, 11.7, 11.7.3.
#[test]
fn whatever_comes_together_is_answered_one_by_one() {
    answers_one_by_one(&InProcess::start(&[DISK]), 0);
}

/// The same of a store that lends what is read of it (docs/decisions/0011).
#[test]
fn whatever_comes_together_for_memory_is_answered_one_by_one() {
    let unit = format!("1=mem:{}", DISK_BLOCKS as usize * BLOCK_BYTES).parse();
    let unit = unit.map(|flag| LunFlag::number_all(vec![flag]).expect("a free number"));
    // Without a fault layer, which would look at what is read.
    let target = InProcess::start_with(&[DISK], |config| {
        config.targets[0].units.extend(unit.expect("a good flag"));
    });
    answers_one_by_one(&target, 1);
}

fn answers_one_by_one(target: &InProcess, lun: u8) {
    let seed = fresh_seed();
    let mut random = Random::new(seed);
    let mut disk = vec![0; SPAN_BLOCKS * BLOCK_BYTES];
    for (header, data, segment) in
        [(false, false, "262144"), (true, true, "262144"), (false, true, "8192"), (true, false, "4100")]
    {
        let keys = [("MaxRecvDataSegmentLength", segment), ("InitialR2T", "No")];
        let options = LoginOptions { digests: Digests { header, data }, ..target.options_with(1, &keys) };
        let mut session = Raw::ready(target.portal(), &options, lun).expect("a login");
        for index in 0..BATCHES {
            let what = format!("seed {seed}, digests {header} {data}, segments of {segment}, batch {index}");
            let mut batch = Batch {
                session: &mut session,
                bytes: Vec::new(),
                expected: BTreeMap::new(),
                uses: vec![Use::None; SPAN_BLOCKS],
            };
            for _ in 0..=random.below(COMMANDS_MAX) {
                add(&mut batch, lun, &mut random, &mut disk);
            }
            batch.run(&what);
        }
        let tag = session.read(lun, 0, SPAN_BLOCKS as u32).expect("sent");
        assert!(session.data_in(tag).expect("a read").0 == disk, "seed {seed}");
        target.wait_for_its_buffers();
    }
}

/// How often the target has written to the one connection to its portal, as far as TCP tells: each write is a segment where it is shorter
/// than one, and nothing is lost over loopback.
fn segments_sent(portal: SocketAddr) -> u32 {
    let connections = tcp_connections().expect("what the kernel knows of its connections");
    let mut own = connections.iter().filter(|connection| connection.local_port == portal.port());
    own.next().expect("a connection to the portal").delivered
}

/// docs/decisions/0049.
#[test]
fn short_reads_that_come_together_are_answered_in_parts_where_many_are_under_way() {
    const TRIES: usize = 20;
    if thread::available_parallelism().is_ok_and(|processors| processors.get() < 2) {
        return lunette_skip::record_lacking("a single processor, which leaves none for an initiator");
    }
    let target = InProcess::start(&[DISK]);
    let mut session = target.session(1);
    let mut segments_for = |reads: u64| {
        let before = segments_sent(target.portal());
        let mut batch = Batch {
            session: &mut session,
            bytes: Vec::new(),
            expected: BTreeMap::new(),
            uses: vec![Use::None; SPAN_BLOCKS],
        };
        for lba in 0..reads {
            let data = Expected::Data(vec![0; BLOCK_BYTES], Residual::None);
            batch.command(&read(0, lba, 1), &[], data);
        }
        batch.run("reads");
        segments_sent(target.portal()) - before
    };
    // How many are under way the target knows of the batch before. What a busy machine delays may come in several pieces.
    let mut seen = Vec::new();
    let mut all_seen = |reads: u64, wanted: u32| {
        let is_seen = (0..TRIES).any(|_| {
            seen.push((reads, segments_for(reads)));
            seen.last() == Some(&(reads, wanted))
        });
        assert!(is_seen, "{reads} reads in {wanted} parts, not as (reads, parts) {seen:?}");
    };
    all_seen(32, 3);
    all_seen(7, 1);
}
