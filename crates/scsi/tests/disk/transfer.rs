//! READ, WRITE, VERIFY, WRITE AND VERIFY, PRE-FETCH and SYNCHRONIZE CACHE against a disk in memory (SBC-3).

use crate::host::*;
use lunette_scsi::{Event, Io, IoError, LogicalUnitConfig, Next, Status, Task};

/// Every form of one command: `opcodes` in the order 6, 10, 12, 16 bytes.
fn forms(opcodes: [Option<u8>; 4], flags: u8, lba: u64, blocks: u32) -> Vec<[u8; 16]> {
    let mut forms = Vec::new();
    if let (Some(opcode), true) = (opcodes[0], flags == 0 && blocks > 0 && lba < 1 << 21) {
        forms.push(cdb6(opcode, lba as u32, blocks as u8));
    }
    if let (Some(opcode), Ok(lba)) = (opcodes[1], u32::try_from(lba)) {
        forms.push(cdb10(opcode, flags, lba, blocks as u16));
    }
    if let (Some(opcode), Ok(lba)) = (opcodes[2], u32::try_from(lba)) {
        forms.push(cdb12(opcode, flags, lba, blocks));
    }
    forms.extend(opcodes[3].map(|opcode| cdb16(opcode, flags, lba, blocks)));
    forms
}

const READ: [Option<u8>; 4] = [Some(0x08), Some(0x28), Some(0xa8), Some(0x88)];
const WRITE: [Option<u8>; 4] = [Some(0x0a), Some(0x2a), Some(0xaa), Some(0x8a)];
const WRITE_AND_VERIFY: [Option<u8>; 4] = [None, Some(0x2e), Some(0xae), Some(0x8e)];
const VERIFY: [Option<u8>; 4] = [None, Some(0x2f), Some(0xaf), Some(0x8f)];
const PREFETCH: [Option<u8>; 4] = [None, Some(0x34), None, Some(0x90)];
const SYNCHRONIZE: [Option<u8>; 4] = [None, Some(0x35), None, Some(0x91)];
const RANGED: [[Option<u8>; 4]; 6] = [READ, WRITE, WRITE_AND_VERIFY, VERIFY, PREFETCH, SYNCHRONIZE];

fn pattern(seed: u8, blocks: usize) -> Vec<u8> {
    (0..blocks * BLOCK).map(|index| (index / 7) as u8 ^ seed).collect()
}

/// SBC-3: READ (6, 10, 12, 16).
#[test]
fn what_is_written_is_read() {
    let mut host = Host::new(config());
    for (seed, write) in forms(WRITE, 0, 10, 3).iter().enumerate() {
        let data = pattern(seed as u8, 3);
        let reply = host.run(write, &data);
        assert_eq!((reply.status, reply.asked_bytes), (Status::Good, 3 * BLOCK as u32));
        for read in forms(READ, 0, 10, 3) {
            assert_eq!(host.good(&read, &[]), data, "{read:02x?}");
        }
    }
    assert!(host.disk.bytes[..10 * BLOCK].iter().all(|&byte| byte == 0));
    assert!(host.disk.bytes[13 * BLOCK..].iter().all(|&byte| byte == 0));
}

#[test]
fn six_byte_commands_with_no_length_move_256_blocks() {
    let mut host = Host::new(config());
    assert_eq!(host.good(&cdb6(0x08, 0, 0), &[]).len(), 256 * BLOCK);
    assert_eq!(host.run(&cdb6(0x0a, 0, 0), &pattern(1, 256)).asked_bytes, 256 * BLOCK as u32);
}

/// SBC-3: READ (6, 10, 12, 16).
#[test]
fn ranges_past_the_end_are_refused() {
    let mut host = Host::new(config());
    let past =
        [(BLOCKS, 1), (BLOCKS - 1, 2), (BLOCKS + 1, 0), (0x8000_0000, 1), (0xffff_ffff, 0), (u64::MAX, 1)];
    for opcodes in RANGED {
        for (lba, blocks) in past {
            for cdb in forms(opcodes, 0, lba, blocks) {
                assert_eq!(host.code(&cdb), OUT_OF_RANGE, "{cdb:02x?}");
            }
        }
        for cdb in forms(opcodes, 0, BLOCKS - 4, 4) {
            let data = host.disk.bytes[(BLOCKS as usize - 4) * BLOCK..].to_vec();
            assert_eq!(host.run(&cdb, &data).status, Status::Good, "{cdb:02x?}");
        }
    }
}

#[test]
fn nothing_is_moved_for_a_length_of_zero() {
    let mut host = Host::new(config());
    for opcodes in [READ, WRITE, WRITE_AND_VERIFY, VERIFY] {
        for lba in [0, BLOCKS] {
            for flags in [0, 0x10] {
                for cdb in forms(opcodes, flags, lba, 0) {
                    assert_eq!(host.run(&cdb, &[]).asked_bytes, 0);
                }
            }
        }
    }
    assert_eq!(host.log(), []);
}

/// SBC-3: READ, WRITE, VERIFY, WRITE SAME, ORWRITE, COMPARE AND WRITE with more than may be.
#[test]
fn transfers_above_the_maximum_are_refused() {
    let mut host = Host::new(LogicalUnitConfig {
        max_transfer_bytes: 8 * 512,
        optimal_transfer_bytes: 0,
        atomic_writes: None,
        ..config()
    });
    for opcodes in [READ, WRITE, WRITE_AND_VERIFY, VERIFY] {
        for cdb in forms(opcodes, 0, 0, 9) {
            assert_eq!(host.code(&cdb), INVALID_FIELD, "{cdb:02x?}");
        }
        for cdb in forms(opcodes, 0, 0, 8) {
            assert_eq!(host.run(&cdb, &[0; 4096]).status, Status::Good, "{cdb:02x?}");
        }
    }
}

#[test]
fn protection_information_is_refused() {
    let mut host = Host::new(config());
    for opcodes in [READ, WRITE, WRITE_AND_VERIFY, VERIFY] {
        for protect in 1..8 {
            for cdb in forms(opcodes, protect << 5, 0, 1) {
                let reply = host.run(&cdb, &[0; BLOCK]);
                assert_eq!((reply.code(), reply.asked_bytes), (INVALID_FIELD, 0), "{cdb:02x?}");
                assert_eq!(reply.field().map(|(byte, _)| byte), Some(1));
            }
        }
    }
}

/// SBC-3: WRITE (6, 10, 12, 16).
#[test]
fn writes_are_stable_with_fua_or_without_a_cache() {
    let stable = |host: &mut Host, cdb: &[u8]| {
        host.good(cdb, &[1; BLOCK]);
        match host.log().as_slice() {
            [Io::WriteDataOut { stable, .. }] => *stable,
            other => panic!("{other:?}"),
        }
    };
    let mut cached = Host::new(config());
    let mut through = Host::new(LogicalUnitConfig { write_cache: false, ..config() });
    for (flags, with_cache) in
        [(0x00, false), (0x10, false), (0x08, true), (0x18, true), (0x02, true), (0x0a, true)]
    {
        for cdb in forms(WRITE, flags, 0, 1) {
            assert_eq!(stable(&mut cached, &cdb), with_cache, "{cdb:02x?}");
            assert!(stable(&mut through, &cdb), "{cdb:02x?}");
        }
    }
}

/// SBC-3: READ (6, 10, 12, 16).
#[test]
fn a_read_with_fua_flushes_the_cache_first() {
    let read = Io::Read { offset_bytes: 512, length_bytes: 512, inspected: false };
    // Without a cache somebody's write may be there that waits for its flush, and so for its answer.
    for write_cache in [true, false] {
        let mut host = Host::new(LogicalUnitConfig { write_cache, ..config() });
        for cdb in forms(READ, 0x08, 1, 1) {
            host.good(&cdb, &[]);
            assert_eq!(host.log(), [Io::Flush, read.clone()]);
        }
        host.good(&cdb10(0x28, 0x10, 1, 1), &[]);
        assert_eq!(host.log(), std::slice::from_ref(&read), "DPO alone");
        host.good(&cdb10(0x2f, 0, 1, 1), &[]);
        assert_eq!(host.log()[0], Io::Flush, "VERIFY");
    }
    let mut fixed = Host::new(LogicalUnitConfig { read_only: true, ..config() });
    fixed.good(&cdb10(0x28, 0x08, 1, 1), &[]);
    assert_eq!(fixed.log(), [read], "nobody writes");
}

/// SBC-3: WRITE (6, 10, 12, 16).
#[test]
fn an_initiator_with_less_data_writes_its_whole_blocks() {
    let mut host = Host::new(config());
    for opcodes in [WRITE, WRITE_AND_VERIFY] {
        for flags in [0, 0x02] {
            for cdb in forms(opcodes, flags, 0, 2) {
                host.disk.bytes.fill(b'a');
                assert_eq!(host.run(&cdb, &[b'b'; BLOCK]).status, Status::Good);
                assert_eq!(host.disk.bytes[..BLOCK], [b'b'; BLOCK]);
                assert_eq!(host.disk.bytes[BLOCK..2 * BLOCK], [b'a'; BLOCK]);
                assert_eq!(host.run(&cdb, &[]).status, Status::Good, "no data at all");

                host.disk.bytes.fill(b'a');
                assert_eq!(host.run(&cdb, &[b'b'; 200]).code(), INVALID_FIELD_IN_UNIT);
                assert!(host.disk.bytes.iter().all(|&byte| byte == b'a'));
            }
        }
    }
    assert_eq!(host.run(&cdb10(0x2f, 0x02, 0, 1), &[b'a'; 200]).code(), INVALID_FIELD_IN_UNIT, "VERIFY");
}

/// SBC-3: VERIFY (10, 12, 16).
#[test]
fn verify_compares_bytes() {
    let mut host = Host::new(config());
    let data = pattern(3, 300);
    host.good(&cdb10(0x2a, 0, 5, 300), &data);
    for cdb in forms(VERIFY, 0x02, 5, 300) {
        host.good(&cdb, &data);
        for offset in [0, 511, 512, 299 * BLOCK] {
            let mut changed = data.clone();
            changed[offset] ^= 0x58;
            let reply = host.run(&cdb, &changed);
            assert_eq!(reply.code(), MISCOMPARE);
            assert_eq!(reply.sense[..7], [&[0xf0, 0, 0x0e][..], &(offset as u32).to_be_bytes()].concat());
        }
    }
    for cdb in forms(VERIFY, 0, 5, 300) {
        let reply = host.run(&cdb, &[0xff; 4]);
        assert_eq!((reply.status, reply.asked_bytes), (Status::Good, 0), "BYTCHK 00b takes no data");
    }
    for cdb in forms(VERIFY, 0x04, 5, 300) {
        assert_eq!(host.code(&cdb), INVALID_FIELD, "BYTCHK 10b is reserved");
    }
}

/// SBC-3: VERIFY (10, 12, 16).
#[test]
fn verify_compares_one_block_with_all() {
    let mut host = Host::new(config());
    let block = pattern(9, 1);
    host.good(&cdb10(0x2a, 0, 0, 4), &block.repeat(4));
    for cdb in forms(VERIFY, 0x06, 0, 4) {
        assert_eq!(host.run(&cdb, &block).asked_bytes, BLOCK as u32);
        host.good(&cdb, &block);
    }
    for cdb in forms(VERIFY, 0x06, 0, 5) {
        let reply = host.run(&cdb, &block);
        assert_eq!(reply.code(), MISCOMPARE);
        assert_eq!(reply.sense[3..7], [0; 4], "the fifth block is zeros, the first byte differs");
    }
    for cdb in forms(WRITE_AND_VERIFY, 0x06, 0, 1) {
        assert_eq!(host.code(&cdb), INVALID_FIELD, "reserved in WRITE AND VERIFY");
    }
}

#[test]
fn long_verifications_read_in_pieces() {
    let mut host = Host::new(LogicalUnitConfig {
        max_transfer_bytes: 2 << 20,
        optimal_transfer_bytes: 0,
        atomic_writes: None,
        ..config()
    });
    let data = pattern(1, BLOCKS as usize);
    host.good(&cdb10(0x2a, 0, 0, BLOCKS as u16), &data);
    host.log();
    host.good(&cdb10(0x2f, 0x02, 0, BLOCKS as u16), &data);
    let piece = |offset_bytes| Io::Read { offset_bytes, length_bytes: 1 << 20, inspected: true };
    assert_eq!(host.log(), [Io::Flush, piece(0), piece(1 << 20)]);
    let mut changed = data;
    changed[(1 << 20) + 5] ^= 1;
    let reply = host.run(&cdb10(0x2f, 0x02, 0, BLOCKS as u16), &changed);
    assert_eq!(reply.sense[3..7], ((1u32 << 20) + 5).to_be_bytes());
}

/// SBC-3: WRITE AND VERIFY (10, 12, 16).
#[test]
fn write_and_verify_writes_stable_and_reads_back() {
    let mut host = Host::new(config());
    for flags in [0x00, 0x02, 0x12] {
        for cdb in forms(WRITE_AND_VERIFY, flags, 2, 1) {
            host.good(&cdb, &pattern(4, 1));
            let write = Io::WriteDataOut { offset_bytes: 1024, start: 0, length_bytes: 512, stable: true };
            let read = Io::Read { offset_bytes: 1024, length_bytes: 512, inspected: true };
            assert_eq!(host.log(), [write, read]);
        }
    }
}

/// SBC-3: PRE-FETCH (10, 16).
#[test]
fn prefetch_is_a_bounded_hint() {
    let mut host = Host::new(LogicalUnitConfig {
        max_transfer_bytes: 8 * 512,
        optimal_transfer_bytes: 0,
        atomic_writes: None,
        ..config()
    });
    let mut cdb = cdb10(0x34, 0x02, 1, 4);
    cdb[6] = 3;
    host.good(&cdb, &[]);
    assert_eq!(host.log(), [Io::Prefetch { offset_bytes: 512, length_bytes: 2048 }]);
    host.good(&cdb16(0x90, 0, BLOCKS - 1, 0), &[]);
    assert_eq!(host.log(), [Io::Prefetch { offset_bytes: (BLOCKS - 1) * 512, length_bytes: 512 }]);
    host.good(&cdb10(0x34, 0, 0, 0), &[]);
    assert_eq!(host.log(), [Io::Prefetch { offset_bytes: 0, length_bytes: 4096 }]);
    host.good(&cdb10(0x34, 0, BLOCKS as u32, 0), &[]);
    assert_eq!(host.log(), []);
    host.disk.fail = Some((|_| true, IoError::Unsupported));
    host.good(&cdb10(0x34, 0, 0, 1), &[]);
    host.disk.fail = Some((|_| true, IoError::Medium { offset_bytes: None }));
    assert_eq!(host.code(&cdb10(0x34, 0, 0, 1)), (3, 0x11, 0));
}

/// SBC-3: SYNCHRONIZE CACHE (10, 16).
#[test]
fn synchronize_cache_flushes() {
    let mut host = Host::new(config());
    for cdb in
        [forms(SYNCHRONIZE, 0, 0, 0), forms(SYNCHRONIZE, 0x02, 7, 9), forms(SYNCHRONIZE, 0x04, 7, 9)].concat()
    {
        host.good(&cdb, &[]);
        assert_eq!(host.log(), [Io::Flush]);
    }
    host.disk.fail = Some((|io| *io == Io::Flush, IoError::Faulted));
    assert_eq!(host.code(&cdb10(0x35, 0x02, 0, 0)), (4, 0x03, 0), "with IMMED too");
    let mut read_only = Host::new(LogicalUnitConfig { read_only: true, ..config() });
    read_only.good(&cdb10(0x35, 0, 0, 0), &[]);
    assert_eq!(read_only.log(), []);
}

/// SBC-3: 4.10 write failures.
#[test]
fn errors_of_the_store_become_sense_data() {
    let mut host = Host::new(config());
    let (read, write) = (cdb10(0x28, 0, 8, 4), cdb10(0x2a, 0, 8, 4));
    let mut expect = |error, cdb: &[u8], code| {
        host.disk.fail = Some((|_| true, error));
        let reply = host.run(cdb, &[0; 4 * BLOCK]);
        assert_eq!(reply.code(), code, "{error:?}");
        reply.sense
    };
    let medium = IoError::Medium { offset_bytes: Some(9 * 512 + 100) };
    assert_eq!(expect(medium, &read, (3, 0x11, 0))[..7], [0xf0, 0, 3, 0, 0, 0, 9]);
    assert_eq!(expect(medium, &write, (3, 0x0c, 0))[..7], [0xf0, 0, 3, 0, 0, 0, 9]);
    assert_eq!(expect(IoError::Medium { offset_bytes: None }, &read, (3, 0x11, 0))[0], 0x70);
    expect(IoError::Hardware, &read, (4, 0x44, 0));
    expect(IoError::NoSpace, &write, (7, 0x27, 0x07));
    expect(IoError::WriteProtected, &write, WRITE_PROTECTED);
    expect(IoError::Faulted, &write, (4, 0x03, 0));
    expect(IoError::Unsupported, &write, INVALID_FIELD);
}

#[test]
fn events_that_were_not_asked_for_end_the_command() {
    let mut host = Host::new(config());
    let (mut task, next) = Task::start(&host.nexus, host.lun, &cdb10(0x28, 0, 0, 1));
    assert!(matches!(next, Next::Io(_)));
    for _ in 0..2 {
        match task.resume(&host.nexus, Event::DataOut(&[])) {
            Next::Done(done) => assert_eq!(done.sense.unwrap().as_bytes()[2], 4),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(host.code(&[0]), GOOD);
}

#[test]
fn more_data_than_was_asked_for_is_not_written() {
    let host = Host::new(config());
    let (mut task, next) = Task::start(&host.nexus, host.lun, &cdb10(0x2a, 0, 0, 1));
    assert_eq!(next, Next::DataOut { length_bytes: 512 });
    let io = Io::WriteDataOut { offset_bytes: 0, start: 0, length_bytes: 512, stable: false };
    assert_eq!(task.resume(&host.nexus, Event::DataOut(&[0; 2 * BLOCK])), Next::Io(io));
}

/// SBC-3: 4.17 write protection.
#[test]
fn write_protected_units_refuse_before_data_moves() {
    let read_only = LogicalUnitConfig { read_only: true, ..config() };
    let mut host = Host::new(read_only);
    let mut unmap = padded(&[0x42]);
    unmap[8] = 24;
    let mut writes = [forms(WRITE, 0, 0, 1), forms(WRITE_AND_VERIFY, 0x02, 0, 1)].concat();
    writes.extend([
        cdb10(0x41, 0, 0, 1),
        cdb10(0x41, 8, 0, 1),
        cdb16(0x93, 0, 0, 1),
        cdb16(0x93, 8, 0, 1),
        unmap,
    ]);
    for cdb in &writes {
        let reply = host.run(cdb, &[0; BLOCK]);
        assert_eq!((reply.code(), reply.asked_bytes), (WRITE_PROTECTED, 0), "{cdb:02x?}");
    }
    for cdb in [forms(READ, 0, 0, 1), forms(VERIFY, 0x02, 0, 1)].concat() {
        host.good(&cdb, &[0; BLOCK]);
    }
    assert!(host.log().iter().all(|io| matches!(io, Io::Read { .. })));
}
