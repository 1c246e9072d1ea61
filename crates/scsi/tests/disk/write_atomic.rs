//! WRITE ATOMIC (16) against a disk in memory (SBC-4).

use std::sync::Arc;

use crate::host::*;
use crate::read_modify_write::Woken;
use lunette_scsi::{Event, Io, IoError, IoOutcome, LogicalUnitConfig, Next, Nexus, Status, Task, Terms};

fn write_atomic(flags: u8, lba: u64, boundary: u16, blocks: u16) -> [u8; 16] {
    let mut cdb = cdb16(0x9c, flags, lba, 0);
    cdb[10..12].copy_from_slice(&boundary.to_be_bytes());
    cdb[12..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// SBC-3: WRITE ATOMIC (16) (SBC-4).
#[test]
fn all_blocks_are_one_operation() {
    let mut host = Host::new(config());
    host.log();
    host.good(&write_atomic(0, 8, 0, 64), &[7; 64 * BLOCK]);
    let io = |stable| Io::WriteAtomic { offset_bytes: 8 * 512, length_bytes: 64 * 512, stable };
    assert_eq!(host.log(), [io(false)]);
    assert!(host.disk.bytes[8 * BLOCK..72 * BLOCK].iter().all(|&byte| byte == 7));
    host.good(&write_atomic(0x18, 8, 0, 64), &[7; 64 * BLOCK]);
    assert_eq!(host.log(), [io(true)], "DPO and FUA");
    let mut host = Host::new(LogicalUnitConfig { write_cache: false, ..config() });
    host.good(&write_atomic(0, 8, 16, 64), &[7; 64 * BLOCK]);
    assert_eq!(host.log(), [io(true)], "without a cache, and with a boundary");
}

/// SBC-4, Block Limits VPD page: what is refused is what the page says.
#[test]
fn limits_are_those_of_the_block_limits_page() {
    let mut host = Host::new(config());
    host.log();
    let field = |host: &mut Host, cdb: [u8; 16]| {
        let reply = host.run(&cdb, &[]);
        assert_eq!((reply.code(), reply.asked_bytes), (INVALID_FIELD, 0), "{cdb:02x?}");
        reply.field()
    };
    assert_eq!(field(&mut host, write_atomic(0, 4, 0, 8)), Some((2, Some(7))), "ATOMIC ALIGNMENT");
    assert_eq!(field(&mut host, write_atomic(0, 8, 0, 12)), Some((12, Some(7))), "GRANULARITY");
    assert_eq!(field(&mut host, write_atomic(0, 8, 0, 72)), Some((12, Some(7))), "MAXIMUM LENGTH");
    assert_eq!(field(&mut host, write_atomic(0, 8, 8, 72)), Some((12, Some(7))), "with a boundary");
    assert_eq!(field(&mut host, write_atomic(0, 8, 72, 64)), Some((10, Some(7))), "MAXIMUM BOUNDARY");
    assert_eq!(field(&mut host, write_atomic(0, 8, 12, 64)), Some((10, Some(7))), "between two units");
    assert_eq!(field(&mut host, write_atomic(0x20, 0, 0, 8)), Some((1, Some(5))), "WRPROTECT");
    assert_eq!(host.code(&write_atomic(0, BLOCKS, 0, 8)), OUT_OF_RANGE);
    assert_eq!(host.code(&write_atomic(0, u64::MAX, 0, 1)), OUT_OF_RANGE);
    assert_eq!(host.run(&write_atomic(0, 8, 0, 0), &[]).status, Status::Good, "no blocks");
    assert_eq!(host.run(&write_atomic(0, BLOCKS, 0, 0), &[]).status, Status::Good);
    assert_eq!(host.log(), []);
}

/// A part of the data cannot be written alone, so nothing is.
#[test]
fn too_little_data_is_refused_and_failures_are_told() {
    let mut host = Host::new(config());
    host.log();
    let cdb = write_atomic(0, 0, 0, 16);
    assert_eq!(host.run(&cdb, &[1; 8 * BLOCK]).code(), INVALID_FIELD_IN_UNIT);
    assert_eq!(host.log(), []);
    host.disk.fail = Some((|io| matches!(io, Io::WriteAtomic { .. }), IoError::NoSpace));
    assert_eq!(host.run(&cdb, &[1; 16 * BLOCK]).code(), (7, 0x27, 0x07));
    host.disk.fail = None;
    assert!(host.disk.bytes.iter().all(|&byte| byte == 0));
    let mut host = Host::new(LogicalUnitConfig { read_only: true, ..config() });
    assert_eq!(host.code(&cdb), WRITE_PROTECTED);
}

/// REPORT SUPPORTED OPERATION CODES, the Block Limits page and the command agree that there is none.
/// SBC-3: WRITE ATOMIC (16) (SBC-4).
#[test]
fn a_store_without_the_promise_has_no_such_command() {
    let supports =
        |host: &mut Host| host.good(&[0xa3, 0x0c, 0x01, 0x9c, 0, 0, 0, 0, 0, 255, 0, 0], &[])[1] & 0x07;
    let mut host = Host::new(LogicalUnitConfig { atomic_writes: None, ..config() });
    assert_eq!(host.code(&write_atomic(0, 0, 0, 8)), INVALID_OPCODE);
    assert_eq!(supports(&mut host), 1);
    assert_eq!(host.good(&[0x12, 1, 0xb0, 0, 64, 0], &[])[44..], [0; 20]);
    assert_eq!(supports(&mut Host::new(config())), 3);
}

/// No other command sees a part: those at the medium end first, later ones wait.
#[test]
fn it_is_alone_at_the_medium() {
    let host = Host::new(config());
    let woken = Arc::new(Woken::default());
    let device = Arc::clone(host.nexus.device());
    let port = host.nexus.target_port();
    let nexus = Nexus::new(device, port, "other".into()).waking(Arc::clone(&woken) as _);
    let start = |cdb: &[u8], key| {
        Task::start_with(&nexus, host.lun, &padded(cdb), &Terms { key, ..Terms::default() })
    };
    assert!(matches!(start(&[0], 0).1, Next::Done(_)));
    let (mut reading, next) = start(&cdb16(0x88, 0, 0, 1), 1);
    assert!(matches!(next, Next::Io(Io::Read { .. })));
    let (mut writing, next) = start(&write_atomic(0, 0, 0, 8), 2);
    assert!(matches!(next, Next::DataOut { .. }));
    let data = [3; 8 * BLOCK];
    assert_eq!(writing.resume(&nexus, Event::DataOut(&data)), Next::Wait, "for the read");
    let (mut later, next) = start(&cdb16(0x88, 0, 0, 1), 3);
    assert_eq!(next, Next::Wait, "behind the WRITE ATOMIC");
    let done = |data_out| Event::Io { result: Ok(IoOutcome::Done), data_out, medium: &[] };
    assert!(matches!(reading.resume(&nexus, done(&[])), Next::Done(_)));
    assert_eq!(woken.take(), [2]);
    let next = writing.resume(&nexus, Event::Turn { data_out: &data });
    assert!(matches!(next, Next::Io(Io::WriteAtomic { .. })), "{next:?}");
    assert!(matches!(writing.resume(&nexus, done(&data)), Next::Done(_)));
    assert_eq!(woken.take(), [3]);
    assert!(matches!(later.resume(&nexus, Event::Turn { data_out: &[] }), Next::Io(_)));
}
