//! EXTENDED COPY and what can be asked about it, between two units of one device (SPC-4).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunette_cases::cases;
use lunette_scsi::{
    Device, Domain, Event, Identity, Io, IoError, LogicalUnit, LogicalUnitConfig, Lun, Next, Nexus, Saved,
    Status, Task,
};
use proptest::prelude::*;

use crate::host::*;

pub(crate) const OTHER_NAA: u64 = 0x3eee_0000_0000_0001;
pub(crate) const COPY: [u8; 2] = [0x83, 0x00];

/// A host that reaches two units; commands go to the first.
pub(crate) fn host_with(first: LogicalUnitConfig, second: LogicalUnitConfig) -> Host {
    let identity = Identity { naa: OTHER_NAA, uuid: [8; 16], serial: "SERIAL-2".into(), ..config().identity };
    let units = [first, LogicalUnitConfig { identity, ..second }]
        .map(|config| Arc::new(LogicalUnit::new(config, Saved::Nowhere).expect("a possible unit")));
    let units = units.into_iter().enumerate().map(|(number, unit)| (Lun::from_number(number as u16), unit));
    let device = Device::new("iqn.2026-11.io.lunette:t", [1], units).expect("a possible device");
    let mut host = Host::on(Arc::new(device));
    host.others.insert(OTHER_NAA, Disk::new());
    for (index, byte) in host.disk.bytes.iter_mut().enumerate() {
        *byte = (index / BLOCK) as u8 ^ (index / BLOCK / 256) as u8 ^ index as u8;
    }
    host
}

pub(crate) fn host() -> Host {
    host_with(config(), config())
}

fn other(host: &mut Host) -> &mut Disk {
    host.others.get_mut(&OTHER_NAA).expect("the second unit")
}

/// A CSCD descriptor that names a unit by its NAA identifier.
fn cscd(naa: u64, block_length: u32) -> Vec<u8> {
    let mut descriptor = vec![0; 32];
    descriptor[0] = 0xe4;
    descriptor[4..8].copy_from_slice(&[0x01, 0x03, 0, 8]);
    descriptor[8..16].copy_from_slice(&naa.to_be_bytes());
    descriptor[29..].copy_from_slice(&block_length.to_be_bytes()[1..]);
    descriptor
}

/// Segment descriptor 02h.
pub(crate) fn blocks(source: u16, destination: u16, blocks: u16, from: u64, to: u64) -> Vec<u8> {
    let mut descriptor = vec![0x02, 0, 0, 0x18];
    for field in [source, destination, 0, blocks] {
        descriptor.extend(field.to_be_bytes());
    }
    descriptor.extend(from.to_be_bytes());
    descriptor.extend(to.to_be_bytes());
    descriptor
}

/// Segment descriptor 0Ah, without byte offsets.
fn bytes(source: u16, destination: u16, bytes: u32, from: u64, to: u64) -> Vec<u8> {
    let mut descriptor = vec![0x0a, 0, 0, 0x1c];
    descriptor.extend(source.to_be_bytes());
    descriptor.extend(destination.to_be_bytes());
    descriptor.extend(bytes.to_be_bytes());
    descriptor.extend(from.to_be_bytes());
    descriptor.extend(to.to_be_bytes());
    descriptor.extend([0; 4]);
    descriptor
}

/// Both units as CSCD descriptors 0 and 1.
pub(crate) fn both() -> Vec<u8> {
    [cscd(config().identity.naa, 512), cscd(OTHER_NAA, 512)].concat()
}

/// A LID1 list. `usage` is LIST ID USAGE.
pub(crate) fn lid1(list: u8, usage: u8, cscds: &[u8], segments: &[u8]) -> Vec<u8> {
    let mut header = vec![list, usage << 3];
    header.extend((cscds.len() as u16).to_be_bytes());
    header.extend([0; 4]);
    header.extend((segments.len() as u32).to_be_bytes());
    header.extend([0; 4]);
    [&header, cscds, segments].concat()
}

/// A LID4 list.
fn lid4(list: u32, cscds: &[u8], segments: &[u8]) -> Vec<u8> {
    let mut header = vec![0; 48];
    header[..4].copy_from_slice(&[1, 0, 0, 0x20]);
    header[16] = 0xff;
    header[20..24].copy_from_slice(&list.to_be_bytes());
    header[42..44].copy_from_slice(&(cscds.len() as u16).to_be_bytes());
    header[44..46].copy_from_slice(&(segments.len() as u16).to_be_bytes());
    [&header, cscds, segments].concat()
}

pub(crate) fn cdb(head: &[u8], length: usize) -> [u8; 16] {
    let mut cdb = padded(head);
    cdb[10..14].copy_from_slice(&(length as u32).to_be_bytes());
    cdb
}

fn copy(host: &mut Host, list: &[u8]) -> Reply {
    host.run(&cdb(&COPY, list.len()), list)
}

/// RECEIVE COPY RESULTS.
fn receive(host: &mut Host, action: u8, list: u8) -> Reply {
    host.run(&cdb(&[0x84, action, list], 1024), &[])
}

/// SPC-4: EXTENDED COPY (LID1, LID4).
#[test]
fn blocks_go_from_one_unit_to_another_and_within_one() {
    let mut host = host();
    let segments = [blocks(0, 1, 100, 7, 300), bytes(1, 0xffff, 50 * 512, 300, 4000)].concat();
    assert_eq!(copy(&mut host, &lid1(1, 0, &both(), &segments)).code(), GOOD);
    let data = host.disk.bytes[7 * BLOCK..107 * BLOCK].to_vec();
    assert_eq!(other(&mut host).bytes[300 * BLOCK..400 * BLOCK], data);
    assert_eq!(other(&mut host).bytes[..300 * BLOCK], [0; 300 * BLOCK]);
    assert_eq!(host.disk.bytes[4000 * BLOCK..4050 * BLOCK], data[..50 * BLOCK]);
    let writes = [Io::WriteMedium { offset_bytes: 300 * 512, length_bytes: 51200, stable: false }];
    assert_eq!(other(&mut host).log[..1], writes);
}

#[test]
fn a_range_that_overlaps_itself_is_moved_whole() {
    for (from, to) in [(0, 100), (100, 0), (5, 5)] {
        // A maximum transfer length of one MiB makes pieces of 2048 blocks.
        let mut host = host();
        let before = host.disk.bytes.clone();
        let segment = blocks(0xffff, 0xffff, 3900, from, to);
        assert_eq!(copy(&mut host, &lid1(1, 3, &[], &segment)).code(), GOOD);
        let (from, to) = (from as usize * BLOCK, to as usize * BLOCK);
        assert!(host.disk.bytes[to..to + 3900 * BLOCK] == before[from..from + 3900 * BLOCK]);
    }
}

#[test]
fn without_a_write_cache_a_copy_is_stable_when_it_is_answered() {
    let mut host = host_with(config(), LogicalUnitConfig { write_cache: false, ..config() });
    assert_eq!(copy(&mut host, &lid1(1, 3, &both(), &blocks(0, 1, 4, 0, 0))).code(), GOOD);
    let one_piece = Io::WriteMedium { offset_bytes: 0, length_bytes: 2048, stable: true };
    assert_eq!(std::mem::take(&mut other(&mut host).log), [one_piece]);
    assert_eq!(copy(&mut host, &lid1(1, 3, &both(), &blocks(0, 1, 4096, 0, 0))).code(), GOOD);
    let log = std::mem::take(&mut other(&mut host).log);
    assert!(log[..log.len() - 1].iter().all(|io| matches!(io, Io::WriteMedium { stable: false, .. })));
    assert_eq!((log.len(), log.last()), (3, Some(&Io::Flush)));
    assert!(!host.log().contains(&Io::Flush), "nothing was written there");
}

#[test]
fn block_lengths_may_differ_where_the_amount_is_whole_blocks_of_both() {
    let large = LogicalUnitConfig { block_length_bytes: 4096, blocks: 512, ..config() };
    let cscds = [cscd(config().identity.naa, 512), cscd(OTHER_NAA, 4096)].concat();
    let mut host = host_with(config(), large);
    assert_eq!(copy(&mut host, &lid1(1, 0, &cscds, &blocks(0, 1, 16, 8, 3))).code(), GOOD);
    let data = host.disk.bytes[8 * 512..24 * 512].to_vec();
    assert_eq!(other(&mut host).bytes[3 * 4096..5 * 4096], data);
    let mut of_destination = blocks(0, 1, 2, 8, 5);
    of_destination[1] = 0x02;
    assert_eq!(copy(&mut host, &lid1(1, 0, &cscds, &of_destination)).code(), GOOD, "DC");
    assert_eq!(other(&mut host).bytes[5 * 4096..7 * 4096], data);
    let inexact = lid1(1, 0, &cscds, &blocks(0, 1, 15, 8, 3));
    assert_eq!(copy(&mut host, &inexact).code(), (0xa, 0x26, 0x0a));
}

/// SPC-4: RECEIVE COPY RESULTS.
#[test]
fn results_can_be_asked_for_by_the_list_identifier() {
    let mut host = host();
    assert_eq!(receive(&mut host, 0x00, 9).field(), Some((2, Some(7))), "nothing is known of it");
    let segments = [blocks(0, 1, 8, 0, 0), blocks(0, 1, 0, 0, 0), blocks(0, 1, 4, 0, 8)].concat();
    assert_eq!(copy(&mut host, &lid1(9, 2, &both(), &segments)).code(), GOOD);
    let status = receive(&mut host, 0x00, 9).data;
    assert_eq!(status, [0, 0, 0, 8, 1, 0, 3, 0, 0, 0, 24, 0], "completed, three segments, 6144 bytes");
    assert_eq!(receive(&mut host, 0x00, 9).code(), INVALID_FIELD, "told once");
    assert_eq!(copy(&mut host, &lid1(9, 3, &both(), &segments)).code(), GOOD);
    assert_eq!(receive(&mut host, 0x00, 9).code(), INVALID_FIELD, "it had no identifier");

    let list = lid4(0x0102_0304, &both(), &segments);
    assert_eq!(host.run(&cdb(&[0x83, 0x01], list.len()), &list).code(), GOOD);
    let status = host.good(&cdb(&[0x84, 0x05, 1, 2, 3, 4], 1024), &[]);
    assert_eq!(status[..8], [0, 0, 0, 28, 1, 1, 0, 4]);
    assert_eq!(status[12..26], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 24, 0, 0, 3]);
}

/// SPC-4: RECEIVE COPY RESULTS.
#[test]
fn a_refused_list_leaves_no_older_record_under_its_identifier() {
    let mut host = host();
    let good = blocks(0, 1, 8, 0, 0);
    let mut wrong = good.clone();
    wrong[3] = 0x14;
    for list in [9, 10] {
        assert_eq!(copy(&mut host, &lid1(list, 0, &both(), &good)).code(), GOOD);
    }
    assert_eq!(copy(&mut host, &lid1(9, 0, &both(), &wrong)).code(), INVALID_PARAMETER);
    assert_eq!(copy(&mut host, &lid1(10, 3, &both(), &wrong)).code(), INVALID_PARAMETER);
    assert_eq!(receive(&mut host, 0x00, 9).code(), INVALID_FIELD, "it is not the end of the second");
    assert_eq!(receive(&mut host, 0x00, 10).data[4], 1, "it has no identifier");
}

/// SPC-4: 4.5.2.4.5 segment pointer.
#[test]
fn the_first_failure_ends_a_copy_and_names_its_segment() {
    let mut host = host();
    let segments = [blocks(0, 1, 8, 0, 0), blocks(0, 1, 8, 0, 16), blocks(0, 1, 8, 0, 32)].concat();
    let fails = |io: &Io| matches!(io, Io::WriteMedium { offset_bytes: 8192, .. });
    other(&mut host).fail = Some((fails, IoError::Medium { offset_bytes: Some(17 * 512) }));
    let reply = copy(&mut host, &lid1(5, 0, &both(), &segments));
    assert_eq!(reply.code(), (0xa, 0x0d, 0x01));
    assert_eq!(reply.sense[3..12], [0, 0, 0, 17, 10, 0, 0, 0, 1], "LBA 17, segment 1");
    assert_eq!(receive(&mut host, 0x00, 5).data[4..7], [2, 0, 1]);
    let details = receive(&mut host, 0x04, 5).data;
    assert_eq!(details[..4], 74u32.to_be_bytes());
    assert_eq!((details[56], &details[58..60]), (2, &[0, 18][..]));
    assert_eq!(details[60..], reply.sense);
    assert_eq!(receive(&mut host, 0x04, 5).code(), INVALID_FIELD, "told once");
}

/// SPC-4: EXTENDED COPY (LID1, LID4).
#[test]
fn what_cannot_be_reached_is_pointed_at() {
    let mut host = host();
    let mut check = |cscds: &[u8], segment: &[u8]| {
        let segments = [&blocks(0xffff, 0xffff, 1, 0, 1)[..], segment].concat();
        let reply = copy(&mut host, &lid1(1, 0, cscds, &segments));
        assert_eq!(reply.sense[8..12], [0, 0, 0, 1], "the second segment");
        assert_eq!(reply.sense[15], 0xa0, "counted from the segment descriptor");
        (reply.code(), reply.field().map(|(byte, _)| byte))
    };
    let not_reachable = (0xa, 0x0d, 0x02);
    assert_eq!(check(&both(), &blocks(2, 0, 1, 0, 0)), ((0xa, 0x08, 0x04), Some(4)));
    assert_eq!(check(&both(), &blocks(0, 2, 1, 0, 0)), ((0xa, 0x08, 0x04), Some(6)));
    let stranger = cscd(0x3000_0000_0000_0001, 512);
    assert_eq!(check(&stranger, &blocks(0, 0xffff, 1, 0, 0)), (not_reachable, Some(4)));
    assert_eq!(check(&both(), &blocks(0, 1, 2, 4095, 0)), (not_reachable, Some(12)));
    assert_eq!(check(&both(), &blocks(0, 1, 2, 0, u64::MAX)), (not_reachable, Some(20)));
    let mut null = cscd(OTHER_NAA, 512);
    null[1] = 0x20;
    assert_eq!(check(&null, &blocks(0xffff, 0, 1, 0, 0)), (not_reachable, Some(6)), "NUL");
    let wrong_type = (0xa, 0x0d, 0x03);
    assert_eq!(check(&cscd(OTHER_NAA, 4096), &blocks(0, 0xffff, 8, 0, 0)), (wrong_type, Some(4)));
    let mut tape = cscd(OTHER_NAA, 0);
    tape[1] = 0x01;
    assert_eq!(check(&tape, &blocks(0, 0xffff, 8, 0, 0)), (wrong_type, Some(4)));
}

#[test]
fn protected_and_stopped_units_are_left_alone() {
    let mut host = host_with(config(), LogicalUnitConfig { read_only: true, ..config() });
    let third_party = (0xa, 0x0d, 0x01);
    assert_eq!(copy(&mut host, &lid1(1, 0, &both(), &blocks(0, 1, 1, 0, 0))).code(), third_party);
    assert_eq!(copy(&mut host, &lid1(1, 0, &both(), &blocks(1, 0, 1, 0, 0))).code(), GOOD);
    let verify = |test| [&[0x07, 0, 0, 8, 0, 1, 0, 0, test][..], &[0; 3]].concat();
    assert_eq!(copy(&mut host, &lid1(1, 0, &both(), &verify(1))).code(), GOOD);
    host.lun = Lun::from_number(1);
    assert_eq!(host.code(&[0]), (6, 0x29, 0));
    assert_eq!(host.code(&[0x1b, 0, 0, 0, 0]), GOOD);
    host.lun = Lun::from_number(0);
    assert_eq!(copy(&mut host, &lid1(1, 0, &both(), &verify(1))).code(), third_party);
    assert_eq!(copy(&mut host, &lid1(1, 0, &both(), &verify(0))).code(), GOOD);
    assert_eq!(copy(&mut host, &lid1(1, 0, &both(), &blocks(1, 0, 1, 0, 0))).code(), third_party);
    assert_eq!(host.run(&cdb(&COPY, 0), &[]).status, Status::Good, "nothing to do");
}

#[test]
fn reservations_of_others_hold_for_copies_too() {
    let mut host = host();
    let device = Arc::clone(host.nexus.device());
    let port = device.ports()[0];
    let mut holder = Host {
        nexus: Nexus::new(device, port, "iqn.holder,i,0x800000000002".into()),
        lun: Lun::from_number(1),
        disk: Disk::new(),
        others: BTreeMap::new(),
    };
    assert_eq!(holder.code(&[0]), (6, 0x29, 0));
    let mut register = [0; 24];
    register[15] = 1;
    holder.good(&[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &register);
    let mut reserve = [0; 24];
    reserve[7] = 1;
    let reserve_as = |kind| [0x5f, 1, kind, 0, 0, 0, 0, 0, 24, 0];
    holder.good(&reserve_as(0x01), &reserve);
    let third_party = (0xa, 0x0d, 0x01);
    assert_eq!(copy(&mut host, &lid1(1, 0, &both(), &blocks(0, 1, 1, 0, 0))).code(), third_party);
    assert_eq!(copy(&mut host, &lid1(1, 0, &both(), &blocks(1, 0, 1, 0, 0))).code(), GOOD, "write exclusive");
    holder.good(&[0x5f, 2, 1, 0, 0, 0, 0, 0, 24, 0], &reserve);
    holder.good(&reserve_as(0x03), &reserve);
    assert_eq!(copy(&mut host, &lid1(1, 0, &both(), &blocks(1, 0, 1, 0, 0))).code(), third_party);
}

#[test]
fn lists_that_are_wrong_copy_nothing() {
    let mut host = host();
    let good = lid1(1, 0, &both(), &blocks(0, 1, 1, 0, 0));
    for length in 1..good.len() {
        assert_eq!(copy(&mut host, &good[..length]).code(), LENGTH_ERROR, "{length}");
    }
    let mut with = |at: usize, value: u8| {
        let mut list = good.clone();
        list[at] = value;
        let reply = copy(&mut host, &list);
        (reply.code(), reply.field().map(|(byte, _)| byte))
    };
    assert_eq!(with(1, 1 << 3), (INVALID_PARAMETER, Some(1)), "LIST ID USAGE");
    assert_eq!(with(16 + 32, 0xe0), ((5, 0x26, 0x07), Some(48)));
    assert_eq!(with(80, 0x03), ((5, 0x26, 0x09), Some(80)));
    assert_eq!(with(83, 0x14), (INVALID_PARAMETER, Some(82)));
    assert_eq!(with(15, 1).0, (5, 0x26, 0x0b));
    let mut offset = bytes(0, 1, 512, 0, 0);
    offset[31] = 1;
    let reply = copy(&mut host, &lid1(1, 0, &both(), &offset));
    assert_eq!((reply.code(), reply.field()), (INVALID_PARAMETER, Some((110, None))));
    let many = lid1(1, 0, &cscd(OTHER_NAA, 512).repeat(65), &blocks(0, 1, 1, 0, 0));
    assert_eq!(copy(&mut host, &many).code(), (5, 0x26, 0x06));
    let many = lid1(1, 0, &both(), &blocks(0, 1, 1, 0, 0).repeat(257));
    assert_eq!(copy(&mut host, &many).code(), (5, 0x26, 0x08));
    assert!(host.log().is_empty() && other(&mut host).log.is_empty());
}

/// SPC-4: COPY OPERATION ABORT.
#[test]
fn an_operation_is_aborted_at_its_next_piece() {
    let mut host = host();
    let list = lid1(3, 0, &both(), &blocks(0, 1, 1, 0, 0).repeat(2));
    let (mut task, next) = Task::start(&host.nexus, host.lun, &cdb(&COPY, list.len()));
    assert!(matches!(next, Next::DataOut { .. }));
    assert_eq!(task.resume(&host.nexus, Event::DataOut(&list)), Next::Yield);
    let next = task.resume(&host.nexus, Event::Turn { data_out: &list });
    assert!(matches!(next, Next::IoOn { .. }));
    assert_eq!(copy(&mut host, &list).code(), (5, 0x00, 0x16), "OPERATION IN PROGRESS");
    assert_eq!(receive(&mut host, 0x00, 3).data[4], 0);
    assert_eq!(receive(&mut host, 0x04, 3).code(), INVALID_FIELD, "not over");
    assert_eq!(host.code(&[0x83, 0x1c, 0, 0, 0, 4]), INVALID_FIELD, "no such list");
    host.good(&[0x83, 0x1c, 0, 0, 0, 3], &[]);
    let done = Ok(lunette_scsi::IoOutcome::Done);
    let next = task.resume(&host.nexus, Event::Io { result: done, data_out: &list, medium: &[0; 512] });
    assert!(matches!(next, Next::Done(done) if done.status == Status::TaskAborted));
    let status = host.good(&cdb(&[0x84, 0x05, 0, 0, 0, 3], 1024), &[]);
    assert_eq!((status[5], status[12]), (0x60, 0x40));
}

#[test]
fn a_dropped_task_is_an_aborted_operation_and_a_reset_forgets_it() {
    let mut host = host();
    let list = lid1(3, 0, &both(), &blocks(0, 1, 1, 0, 0));
    let (mut task, _) = Task::start(&host.nexus, host.lun, &cdb(&COPY, list.len()));
    task.resume(&host.nexus, Event::DataOut(&list));
    drop(task);
    assert_eq!(receive(&mut host, 0x00, 3).data[4], 2);
    assert!(host.nexus.logical_unit_reset(host.lun));
    assert_eq!(host.code(&[0]), (6, 0x29, 3));
    assert_eq!(receive(&mut host, 0x00, 3).code(), INVALID_FIELD);
}

/// SPC-4: RECEIVE COPY RESULTS.
#[test]
fn operating_parameters_tell_the_limits() {
    let mut host = host();
    let data = receive(&mut host, 0x03, 0).data;
    assert_eq!(data[..5], [0, 0, 0, 44, 1]);
    assert_eq!(data[8..20], [0, 64, 1, 0, 0, 0, 0x40, 0, 0x10, 0, 0, 0]);
    assert_eq!(data[43..], [4, 0x02, 0x07, 0x0a, 0xe4]);
    let inquiry = host.good(&[0x12, 0, 0, 0, 36], &[]);
    assert_eq!(inquiry[5] & 0x08, 0x08, "3PC");
}

/// One segment of a random list: which units, how much, from where and to where.
fn segment() -> impl Strategy<Value = (usize, usize, u16, u64, u64)> {
    (0usize..2, 0usize..2, 0u16..3000, 0u64..4200, 0u64..4200)
}

proptest! {
    #![proptest_config(cases(64))]

    /// Random lists do what the same copies between two arrays of bytes do, up to the first that cannot be.
    #[test]
    fn copies_agree_with_a_model(list in prop::collection::vec(segment(), 0..12)) {
        let mut host = host();
        let mut model = [host.disk.bytes.clone(), other(&mut host).bytes.clone()];
        let mut expected = GOOD;
        let mut segments = Vec::new();
        for &(source, destination, count, from, to) in &list {
            segments.extend(blocks(source as u16, destination as u16, count, from, to));
            if from + u64::from(count) > BLOCKS || to + u64::from(count) > BLOCKS {
                expected = (0xa, 0x0d, 0x02);
            }
            if expected == GOOD {
                let (from, to, count) = (from as usize * BLOCK, to as usize * BLOCK, count as usize * BLOCK);
                let data = model[source][from..from + count].to_vec();
                model[destination][to..to + count].copy_from_slice(&data);
            }
        }
        prop_assert_eq!(copy(&mut host, &lid1(1, 0, &both(), &segments)).code(), expected);
        prop_assert!(host.disk.bytes == model[0] && other(&mut host).bytes == model[1]);
    }

    /// Any bytes as a list end the command, and never reach beyond a medium (the disks would panic).
    #[test]
    fn any_list_ends(
        action in prop::sample::select(vec![0u8, 1]),
        mut list in prop::collection::vec(any::<u8>(), 1..400),
        shape in any::<bool>(),
    ) {
        let mut host = host();
        if shape && list.len() > 130 {
            let good = [blocks(0, 1, 3, 1, 2), bytes(1, 0xffff, 1024, 3, 4)].concat();
            let form = if action == 0 { lid1(1, 0, &both(), &good) } else { lid4(1, &both(), &good) };
            let noise = usize::from(list[0]) % form.len();
            let length = list.len().min(form.len());
            let kept = list[noise % list.len()];
            list[..length].copy_from_slice(&form[..length]);
            if noise < length {
                list[noise] = kept;
            }
        }
        host.run(&cdb(&[0x83, action], list.len()), &list);
    }
}

/// A device with one unit, in `domain`.
fn device_in(domain: &Arc<Domain>, naa: u64) -> Arc<Device> {
    let identity = Identity { naa, uuid: [naa as u8; 16], ..config().identity };
    let config = LogicalUnitConfig { identity, ..config() };
    let unit = Arc::new(LogicalUnit::new(config, Saved::Nowhere).expect("a possible unit"));
    let device = Device::new(format!("iqn.x:{naa:x}"), [1], [(Lun::from_number(0), unit)]);
    Arc::new(device.expect("a possible device").in_domain(Arc::clone(domain)))
}

/// A nexus of `party` to a device, after its POWER ON unit attention.
fn nexus_of(device: &Arc<Device>, party: Option<&str>) -> Host {
    let nexus = Nexus::new(Arc::clone(device), device.ports()[0], "iqn.host,i,0x800000000001".into());
    let nexus = match party {
        Some(party) => nexus.of_party(party),
        None => nexus,
    };
    let others = BTreeMap::from([(OTHER_NAA, Disk::new())]);
    let mut host = Host { nexus, lun: Lun::from_number(0), disk: Disk::new(), others };
    assert_eq!(host.code(&[0]), (6, 0x29, 0));
    host
}

#[test]
fn other_devices_are_reached_as_far_as_the_same_initiator_has_a_nexus_to_them() {
    let domain = Arc::new(Domain::default());
    let (near, far) = (device_in(&domain, config().identity.naa), device_in(&domain, OTHER_NAA));
    let list = lid1(1, 3, &cscd(OTHER_NAA, 512), &blocks(0xffff, 0, 8, 0, 16));
    let not_reachable = (0xa, 0x0d, 0x02);
    let mut host = nexus_of(&near, Some("alice"));
    assert_eq!(copy(&mut host, &list).code(), not_reachable, "no nexus to it");
    let somebody = nexus_of(&far, Some("bob"));
    let unknown = nexus_of(&far, None);
    assert_eq!(copy(&mut host, &list).code(), not_reachable, "those of others");
    assert_eq!(
        copy(&mut nexus_of(&near, None), &list).code(),
        not_reachable,
        "unknown ones are not the same"
    );
    drop((somebody, unknown));
    let own = nexus_of(&far, Some("alice"));
    host.disk.bytes[..8 * BLOCK].fill(0x5a);
    assert_eq!(copy(&mut host, &list).code(), GOOD);
    assert!(other(&mut host).bytes[16 * BLOCK..24 * BLOCK].iter().all(|&byte| byte == 0x5a));
    drop(own);
    assert_eq!(copy(&mut host, &list).code(), not_reachable, "it is lost");
}

/// Its time does not go with units times nexuses times descriptors.
#[test]
#[allow(clippy::disallowed_methods, reason = "time is what is tested here")]
fn names_of_no_unit_are_looked_for_in_no_time() {
    let domain = Arc::new(Domain::default());
    let unit = |number: u16| {
        let identity = Identity { naa: config().identity.naa + u64::from(number), ..config().identity };
        let unit = LogicalUnit::new(LogicalUnitConfig { identity, ..config() }, Saved::Nowhere);
        (Lun::from_number(number), Arc::new(unit.expect("a possible unit")))
    };
    let device = Device::new("iqn.x", [1], (0..64).map(unit)).expect("a possible device");
    let device = Arc::new(device.in_domain(domain));
    let mut hosts: Vec<_> = (0..500).map(|_| nexus_of(&device, Some("alice"))).collect();
    let cscds: Vec<_> = (0..64).flat_map(|number| cscd(OTHER_NAA + number, 512)).collect();
    let list = lid1(1, 3, &cscds, &[]);
    // The machine may be late once.
    let took = (0..3).map(|_| {
        let began = Instant::now();
        assert_eq!(copy(&mut hosts[0], &list).code(), GOOD);
        began.elapsed()
    });
    let took = took.min().unwrap_or_default();
    assert!(took < Duration::from_secs(1), "{took:?}");
}
