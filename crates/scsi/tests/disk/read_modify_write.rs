//! COMPARE AND WRITE and ORWRITE against a disk in memory, and who waits while they are alone (SBC-3).

use std::sync::{Arc, Mutex};

use crate::host::*;
use lunette_scsi::{Event, Io, LogicalUnitConfig, Next, Nexus, Status, Task, Terms, Wake};

pub(crate) fn compare_and_write(flags: u8, lba: u64, blocks: u8) -> [u8; 16] {
    let mut cdb = cdb16(0x89, flags, lba, 0);
    cdb[13] = blocks;
    cdb
}

fn or_write(flags: u8, lba: u64, blocks: u32) -> [u8; 16] {
    cdb16(0x8b, flags, lba, blocks)
}

/// SBC-3: COMPARE AND WRITE.
#[test]
fn equal_blocks_are_replaced_and_others_stay() {
    let mut host = Host::new(config());
    host.good(&cdb16(0x8a, 0, 7, 2), &[0x11; 2 * BLOCK]);
    let both = [[0x11; 2 * BLOCK], [0x22; 2 * BLOCK]].concat();
    let cdb = compare_and_write(0, 7, 2);
    let reply = host.run(&cdb, &both);
    assert_eq!((reply.status, reply.asked_bytes), (Status::Good, 4 * BLOCK as u32));
    assert_eq!(host.good(&cdb16(0x88, 0, 7, 2), &[]), [0x22; 2 * BLOCK]);
    // The same again finds other blocks; INFORMATION tells where the first byte differs.
    let mut expected = [0x22; 2 * BLOCK];
    expected[BLOCK + 3] = 0;
    let reply = host.run(&cdb, &[expected, [0x33; 2 * BLOCK]].concat());
    assert_eq!(reply.code(), MISCOMPARE);
    assert_eq!(reply.sense[..7], [0xf0, 0, 0x0e, 0, 0, 2, 3]);
    assert_eq!(host.good(&cdb16(0x88, 0, 7, 2), &[]), [0x22; 2 * BLOCK]);
}

#[test]
fn compare_and_write_has_its_limits() {
    let mut host = Host::new(config());
    let limits = host.good(&[0x12, 1, 0xb0, 0, 64, 0], &[]);
    assert_eq!(limits[5], 255);
    assert_eq!(host.run(&compare_and_write(0, 0, 255), &[0; 510 * BLOCK]).status, Status::Good);
    assert_eq!(host.run(&compare_and_write(0, BLOCKS, 0), &[]).status, Status::Good, "no blocks");
    assert_eq!(host.code(&compare_and_write(0, BLOCKS, 1)), OUT_OF_RANGE);
    assert_eq!(host.code(&compare_and_write(0, BLOCKS + 1, 0)), OUT_OF_RANGE);
    assert_eq!(host.code(&compare_and_write(0x20, 0, 1)), INVALID_FIELD, "WRPROTECT");
    assert_eq!(host.run(&compare_and_write(0, 0, 1), &[0; BLOCK]).code(), INVALID_FIELD_IN_UNIT);
    for announced in [BLOCK, 4 * BLOCK] {
        let terms = Terms { data_out_bytes: Some(announced as u32), ..Terms::default() };
        let (task, next) = Task::start_with(&host.nexus, host.lun, &compare_and_write(0, 0, 1), &terms);
        let reply = host.finish(task, next, &vec![0; announced]);
        assert_eq!((reply.code(), reply.asked_bytes), (INVALID_FIELD_IN_UNIT, 0));
    }
    let terms = Terms { data_out_bytes: Some(512 * BLOCK as u32), ..Terms::default() };
    let (task, next) = Task::start_with(&host.nexus, host.lun, &compare_and_write(0, 0, 0), &terms);
    assert_eq!(host.finish(task, next, &[]).field(), Some((13, Some(7))), "256 blocks have no number");
    let config = LogicalUnitConfig {
        max_transfer_bytes: 4096,
        atomic_writes: None,
        optimal_transfer_bytes: 0,
        ..config()
    };
    let mut small = Host::new(config);
    assert_eq!(small.run(&compare_and_write(0, 0, 4), &[0; 8 * BLOCK]).status, Status::Good);
    assert_eq!(small.code(&compare_and_write(0, 0, 5)), INVALID_FIELD);
}

#[test]
fn forced_writes_are_stable() {
    let mut host = Host::new(config());
    let is_stable = |log: Vec<Io>| {
        log.into_iter().any(|io| {
            matches!(
                io,
                Io::WriteDataOut { stable: true, .. } | Io::WriteOwned { stable: true, .. } | Io::Flush
            )
        })
    };
    for (cdb, forced, length) in [
        (compare_and_write(0, 0, 1), compare_and_write(0x18, 0, 1), 2 * BLOCK),
        (or_write(0, 0, 1), or_write(0x18, 0, 1), BLOCK),
    ] {
        host.log();
        host.good(&cdb, &vec![0; length]);
        assert!(!is_stable(host.log()));
        host.good(&forced, &vec![0; length]);
        assert!(is_stable(host.log()));
    }
}

/// SBC-3: ORWRITE (16).
#[test]
fn or_write_sets_bits_and_clears_none() {
    let config = LogicalUnitConfig {
        max_transfer_bytes: 2 << 20,
        optimal_transfer_bytes: 0,
        write_cache: false,
        ..config()
    };
    let mut host = Host::new(config);
    host.good(&cdb16(0x8a, 0, 0, 1), &[0x0f; BLOCK]);
    // More than one piece, so that the last one is followed by a flush.
    let blocks = BLOCKS as u32 - 1;
    host.log();
    host.good(&or_write(0, 0, blocks), &vec![0xa5; blocks as usize * BLOCK]);
    assert_eq!(host.log().last(), Some(&Io::Flush));
    assert_eq!(host.good(&cdb16(0x88, 0, 0, 1), &[]), [0xaf; BLOCK]);
    assert_eq!(
        host.good(&cdb16(0x88, 0, u64::from(blocks) - 1, 2), &[]),
        [[0xa5; BLOCK], [0; BLOCK]].concat()
    );
    assert_eq!(host.run(&or_write(0, 0, 2), &[0; BLOCK]).code(), INVALID_FIELD_IN_UNIT);
    assert_eq!(host.code(&or_write(0, BLOCKS, 1)), OUT_OF_RANGE);
}

/// Keeps the keys that were woken.
#[derive(Debug, Default)]
pub(crate) struct Woken(Mutex<Vec<u64>>);

impl Wake for Woken {
    fn wake(&self, key: u64) {
        self.0.lock().expect("no panic before").push(key);
    }
}

impl Woken {
    /// Those since the last call, in rising order.
    pub(crate) fn take(&self) -> Vec<u64> {
        let mut keys = std::mem::take(&mut *self.0.lock().expect("no panic before"));
        keys.sort_unstable();
        keys
    }
}

/// SBC-3: COMPARE AND WRITE.
#[test]
fn others_wait_while_a_compare_and_write_is_at_the_medium() {
    let host = Host::new(config());
    let woken = Arc::new(Woken::default());
    let device = Arc::clone(host.nexus.device());
    let port = host.nexus.target_port();
    let nexus = Nexus::new(device, port, "other".into()).waking(Arc::clone(&woken) as _);
    let start = |cdb: &[u8], key| {
        Task::start_with(&nexus, host.lun, &padded(cdb), &Terms { key, ..Terms::default() })
    };
    let (_, power_on) = start(&[0], 0);
    assert!(matches!(power_on, Next::Done(_)));
    // A read is at the medium, a write waits for its data.
    let (mut reading, next) = start(&cdb16(0x88, 0, 0, 1), 1);
    assert!(matches!(next, Next::Io(Io::Read { .. })));
    let (mut writing, next) = start(&cdb16(0x8a, 0, 0, 1), 2);
    assert!(matches!(next, Next::DataOut { .. }));
    writing.collects(&nexus);
    let (mut swapping, next) = start(&compare_and_write(0, 0, 1), 3);
    assert!(matches!(next, Next::DataOut { .. }));
    let data = [[0; BLOCK], [1; BLOCK]].concat();
    assert_eq!(swapping.resume(&nexus, Event::DataOut(&data)), Next::Wait, "for the read");
    let (mut later, next) = start(&cdb16(0x88, 0, 0, 1), 4);
    assert_eq!(next, Next::Wait, "behind the COMPARE AND WRITE");
    assert_eq!(writing.resume(&nexus, Event::DataOut(&[2; BLOCK])), Next::Wait, "its data comes too soon");
    // Woken too soon, they wait on.
    assert_eq!(swapping.resume(&nexus, Event::Turn { data_out: &data }), Next::Wait);
    assert_eq!(later.resume(&nexus, Event::Turn { data_out: &[] }), Next::Wait);

    let io = |data_out, medium| Event::Io { result: Ok(lunette_scsi::IoOutcome::Done), data_out, medium };
    assert!(matches!(reading.resume(&nexus, io(&[], &[0; BLOCK])), Next::Done(_)));
    assert_eq!(woken.take(), [3]);
    let next = swapping.resume(&nexus, Event::Turn { data_out: &data });
    assert!(matches!(next, Next::Io(Io::Read { inspected: true, .. })));
    let next = swapping.resume(&nexus, io(&data, &[0; BLOCK]));
    assert!(matches!(next, Next::Io(Io::WriteDataOut { start: 512, .. })), "{next:?}");
    assert!(matches!(swapping.resume(&nexus, io(&data, &[])), Next::Done(_)));
    assert_eq!(woken.take(), [2, 4]);
    // One of them goes on, the other is aborted: nothing is left that would keep a third waiting.
    assert!(matches!(writing.resume(&nexus, Event::Turn { data_out: &[2; BLOCK] }), Next::Io(_)));
    later.abandon(&nexus);
    assert!(!later.is_open());
    assert!(matches!(writing.resume(&nexus, io(&[2; BLOCK], &[])), Next::Done(_)));
    let (_, next) = start(&cdb16(0x88, 0, 0, 1), 5);
    assert!(matches!(next, Next::Io(_)));
}
