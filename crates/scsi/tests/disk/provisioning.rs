//! UNMAP, WRITE SAME and GET LBA STATUS against a disk in memory (SBC-3, logical block provisioning).

use crate::host::*;
use lunette_scsi::{Io, IoError, LogicalUnitConfig, Provisioning, Status, Task, Terms};

fn unmap(host: &mut Host, descriptors: &[(u64, u32)]) -> Reply {
    unmap_with(host, 0, descriptors)
}

fn unmap_with(host: &mut Host, anchor: u8, descriptors: &[(u64, u32)]) -> Reply {
    let length = (descriptors.len() * 16) as u16;
    let mut list = [&(length + 6).to_be_bytes()[..], &length.to_be_bytes(), &[0; 4]].concat();
    for (lba, blocks) in descriptors {
        list.extend([&lba.to_be_bytes()[..], &blocks.to_be_bytes(), &[0; 4]].concat());
    }
    let mut cdb = padded(&[0x42, anchor]);
    cdb[7..9].copy_from_slice(&(list.len() as u16).to_be_bytes());
    host.run(&cdb, &list)
}

fn announcing(bytes: usize) -> Terms {
    Terms { data_out_bytes: Some(bytes as u32), ..Terms::default() }
}

fn without(change: impl FnOnce(&mut Provisioning)) -> Host {
    let mut config = config();
    change(&mut config.provisioning);
    Host::new(config)
}

/// SBC-3: UNMAP.
#[test]
fn unmapped_blocks_read_as_zeros() {
    let mut host = Host::new(config());
    host.good(&cdb10(0x2a, 0, 0, 64), &[7; 64 * BLOCK]);
    host.log();
    assert_eq!(unmap(&mut host, &[(8, 8), (3, 0), (32, 1)]).status, Status::Good);
    let range = |lba: u64, blocks: u64| Io::Unmap { offset_bytes: lba * 512, length_bytes: blocks * 512 };
    assert_eq!(host.log(), [range(8, 8), range(32, 1)]);
    assert!(host.disk.bytes[8 * BLOCK..16 * BLOCK].iter().all(|&byte| byte == 0));
    assert!(host.disk.bytes[16 * BLOCK..32 * BLOCK].iter().all(|&byte| byte == 7));
}

/// SBC-3: UNMAP.
#[test]
fn unmap_takes_empty_lists_and_refuses_wrong_ones() {
    let mut host = Host::new(config());
    assert_eq!(unmap(&mut host, &[]).status, Status::Good);
    assert_eq!(unmap(&mut host, &[(BLOCKS, 0)]).status, Status::Good);
    assert_eq!(host.code(&[0x42]), GOOD, "no parameter list");
    assert_eq!(unmap(&mut host, &[(0, 1), (BLOCKS, 1)]).code(), OUT_OF_RANGE);
    assert_eq!(unmap(&mut host, &[(0, 0); 257]).code(), INVALID_PARAMETER);
    let mut cdb = padded(&[0x42]);
    cdb[8] = 7;
    assert_eq!(host.code(&cdb), LENGTH_ERROR);
    cdb[8] = 24;
    assert_eq!(host.run(&cdb, &[0; 23]).code(), LENGTH_ERROR, "the initiator has less");
    assert_eq!(host.log(), []);
}

/// SBC-3: 4.7 provisioning.
#[test]
fn units_without_unmap_do_not_know_it() {
    let mut host = without(|provisioning| provisioning.unmap = false);
    assert_eq!(unmap(&mut host, &[(0, 1)]).code(), INVALID_OPCODE);
    for cdb in [cdb10(0x41, 0x08, 0, 1), cdb16(0x93, 0x08, 0, 1)] {
        assert_eq!(host.run(&cdb, &[0; BLOCK]).field(), Some((1, Some(3))));
    }
    assert_eq!(host.good(&cdb16(0x9e, 0x10, 0, 32), &[])[14], 0, "LBPME");
}

#[test]
fn a_store_that_cannot_unmap_after_all() {
    let mut host = Host::new(config());
    host.disk.fail = Some((|io| matches!(io, Io::Unmap { .. }), IoError::Unsupported));
    assert_eq!(unmap(&mut host, &[(0, 1)]).code(), INVALID_OPCODE);
    host.disk.fail = Some((|io| matches!(io, Io::Unmap { .. }), IoError::NoSpace));
    assert_eq!(unmap(&mut host, &[(0, 1)]).code(), (7, 0x27, 0x07));
}

#[test]
fn without_a_cache_unmap_ends_with_a_flush() {
    let mut host = Host::new(LogicalUnitConfig { write_cache: false, ..config() });
    assert_eq!(unmap(&mut host, &[(0, 8)]).status, Status::Good);
    assert_eq!(host.log(), [Io::Unmap { offset_bytes: 0, length_bytes: 4096 }, Io::Flush]);
    assert_eq!(unmap(&mut host, &[(0, 0)]).status, Status::Good);
    assert_eq!(host.log(), []);
    host.disk.fail = Some((|io| *io == Io::Flush, IoError::Faulted));
    assert_eq!(unmap(&mut host, &[(0, 8)]).code(), (4, 0x03, 0));
}

/// SBC-3: WRITE SAME (10, 16).
#[test]
fn write_same_repeats_its_block() {
    let mut host = Host::new(config());
    let block: Vec<u8> = (0..BLOCK).map(|index| index as u8).collect();
    for (cdb, blocks) in [(cdb10(0x41, 0, 4, 5), 5), (cdb16(0x93, 0, 4, 6), 6), (cdb16(0x93, 8, 4, 7), 7)] {
        host.disk.bytes.fill(0xee);
        host.good(&cdb, &block);
        assert_eq!(host.disk.bytes[4 * BLOCK..(4 + blocks) * BLOCK], block.repeat(blocks));
        assert_eq!(host.disk.bytes[..4 * BLOCK], [0xee; 4 * BLOCK]);
        assert_eq!(host.disk.bytes[(4 + blocks) * BLOCK], 0xee);
    }
}

/// SBC-3: WRITE SAME (10, 16).
#[test]
fn zeros_are_left_to_the_store() {
    let mut host = Host::new(config());
    let zero = |unmap| Io::Zero { offset_bytes: 2048, length_bytes: 4096, unmap, stable: false };
    for (cdb, unmap) in
        [(cdb10(0x41, 0, 4, 8), false), (cdb10(0x41, 8, 4, 8), true), (cdb16(0x93, 8, 4, 8), true)]
    {
        host.good(&cdb, &[0; BLOCK]);
        assert_eq!(host.log(), [zero(unmap)]);
    }
    for (flags, unmap) in [(0x01, false), (0x09, true)] {
        assert_eq!(host.run(&cdb16(0x93, flags, 4, 8), &[]).asked_bytes, 0, "NDOB");
        assert_eq!(host.log(), [zero(unmap)]);
    }
}

#[test]
fn zeros_are_written_where_the_store_cannot_make_them() {
    let written = Io::WriteOwned { offset_bytes: 0, bytes: vec![0; 1024], stable: false };
    let mut host = without(|provisioning| provisioning.write_zeroes = false);
    host.good(&cdb10(0x41, 0, 0, 2), &[0; BLOCK]);
    assert_eq!(host.log(), std::slice::from_ref(&written));
    let mut host = Host::new(config());
    host.disk.fail = Some((|io| matches!(io, Io::Zero { .. }), IoError::Unsupported));
    host.good(&cdb16(0x93, 0x09, 0, 2), &[]);
    assert_eq!(host.log()[1..], [written]);
}

#[test]
fn long_patterns_are_written_in_pieces() {
    let mut host = Host::new(LogicalUnitConfig { write_cache: false, ..config() });
    host.good(&cdb10(0x41, 0, 0, 3000), &[5; BLOCK]);
    let kinds: Vec<_> = host
        .log()
        .iter()
        .map(|io| match io {
            Io::WriteOwned { offset_bytes, bytes, stable } => (*offset_bytes, bytes.len(), *stable),
            Io::Flush => (u64::MAX, 0, true),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, [(0, 1 << 20, false), (1 << 20, 952 * BLOCK, false), (u64::MAX, 0, true)]);
    host.good(&cdb10(0x41, 0, 0, 2), &[5; BLOCK]);
    assert!(matches!(host.log().as_slice(), [Io::WriteOwned { stable: true, .. }]));
}

#[test]
fn no_blocks_are_refused() {
    let mut host = Host::new(config());
    for (cdb, blocks_at) in
        [(cdb10(0x41, 8, 1, 0), 7), (cdb16(0x93, 8, 1, 0), 10), (cdb16(0x93, 9, 1, 0), 10)]
    {
        assert_eq!(host.run(&cdb, &[0; BLOCK]).field(), Some((blocks_at, Some(7))));
    }
    for cdb in [cdb10(0x41, 0, BLOCKS as u32, 1), cdb10(0x41, 0, u32::MAX, 0), cdb16(0x93, 0, u64::MAX, 1)] {
        assert_eq!(host.code(&cdb), OUT_OF_RANGE);
    }
    assert_eq!(host.log(), []);
}

#[test]
fn write_same_has_a_longest_length() {
    let mut host = Host::new(LogicalUnitConfig { blocks: 1 << 20, ..config() });
    let limits = host.good(&[0x12, 1, 0xb0, 0, 64, 0], &[]);
    assert_eq!(limits[36..44], 65535u64.to_be_bytes());
    assert_eq!(host.run(&cdb16(0x93, 0, 0, 65536), &[0; BLOCK]).code(), INVALID_FIELD);
    assert_eq!(host.run(&cdb10(0x41, 0, 0, 1), &[0; BLOCK]).status, Status::Good);
}

#[test]
fn write_same_wants_one_block() {
    let mut host = Host::new(config());
    for cdb in [cdb10(0x41, 8, 0, 1), cdb16(0x93, 8, 0, 1)] {
        assert_eq!(host.run(&cdb, &[0; BLOCK / 2]).code(), INVALID_FIELD_IN_UNIT);
        for announced in [0, BLOCK / 2, 2 * BLOCK] {
            let (task, next) = Task::start_with(&host.nexus, host.lun, &cdb, &announcing(announced));
            let reply = host.finish(task, next, &vec![0; announced]);
            assert_eq!((reply.code(), reply.asked_bytes), (INVALID_FIELD_IN_UNIT, 0));
        }
        let (task, next) = Task::start_with(&host.nexus, host.lun, &cdb, &announcing(BLOCK));
        assert_eq!(host.finish(task, next, &[0; BLOCK]).status, Status::Good);
    }
    for flags in [0x10, 0x20, 0x04] {
        assert_eq!(host.code(&cdb10(0x41, flags, 0, 1)), INVALID_FIELD, "ANCHOR alone, WRPROTECT, PBDATA");
    }
}

fn descriptors(data: &[u8]) -> Vec<(u64, u32, u8)> {
    let field = |bytes: &[u8]| bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte));
    assert_eq!(field(&data[..4]) as usize, data.len() - 4);
    data[8..]
        .chunks_exact(16)
        .map(|descriptor| (field(&descriptor[..8]), field(&descriptor[8..12]) as u32, descriptor[12]))
        .collect()
}

/// SBC-3: GET LBA STATUS.
#[test]
fn lba_status_comes_from_the_extents() {
    let mut host = Host::new(config());
    host.good(&cdb10(0x2a, 0, 8, 8), &[1; 8 * BLOCK]);
    let all = host.good(&cdb16(0x9e, 0x12, 0, 4096), &[]);
    assert_eq!(descriptors(&all), [(0, 8, 1), (8, 8, 0), (16, BLOCKS as u32 - 16, 1)]);
    let rest = host.good(&cdb16(0x9e, 0x12, 10, 24), &[]);
    assert_eq!(rest[8..24], [0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 6, 0, 0, 0, 0], "cut to one descriptor");
    assert_eq!(host.good(&cdb16(0x9e, 0x12, BLOCKS - 1, 24), &[])[15], 0xff);
    for lba in [BLOCKS, BLOCKS + 1, 1 << 63, u64::MAX] {
        assert_eq!(host.code(&cdb16(0x9e, 0x12, lba, 24)), OUT_OF_RANGE);
    }
}

#[test]
fn everything_is_mapped_where_nothing_is_known() {
    let mut thick = without(|provisioning| provisioning.unmap = false);
    assert_eq!(descriptors(&thick.good(&cdb16(0x9e, 0x12, 1, 4096), &[])), [(1, BLOCKS as u32 - 1, 0)]);
    assert_eq!(thick.log(), []);
    let mut host = Host::new(config());
    host.disk.fail = Some((|_| true, IoError::Unsupported));
    assert_eq!(descriptors(&host.good(&cdb16(0x9e, 0x12, 1, 4096), &[])), [(1, BLOCKS as u32 - 1, 0)]);
    host.disk.fail = Some((|_| true, IoError::Hardware));
    assert_eq!(host.code(&cdb16(0x9e, 0x12, 1, 4096)), (4, 0x44, 0));
}

/// SBC-3, ANCHOR: the blocks read as zeros and have space, which a later write finds there.
#[test]
fn anchored_blocks_have_space_and_read_as_zeros() {
    let mut host = Host::new(LogicalUnitConfig { write_cache: false, ..config() });
    host.good(&cdb10(0x2a, 0, 0, 32), &[7; 32 * BLOCK]);
    host.log();
    assert_eq!(unmap_with(&mut host, 1, &[(4, 4), (40, 8)]).status, Status::Good);
    let zero = |lba: u64, blocks: u64, stable| Io::Zero {
        offset_bytes: lba * 512,
        length_bytes: blocks * 512,
        unmap: false,
        stable,
    };
    assert_eq!(host.log(), [zero(4, 4, false), zero(40, 8, false), Io::Flush]);
    for (cdb, data) in [
        (cdb10(0x41, 0x18, 16, 8), &[0; BLOCK][..]),
        (cdb16(0x93, 0x18, 16, 8), &[0; BLOCK]),
        (cdb16(0x93, 0x19, 16, 8), &[]),
    ] {
        assert_eq!(host.run(&cdb, data).status, Status::Good);
        assert_eq!(host.log(), [zero(16, 8, true)]);
    }
    assert_eq!(host.good(&cdb10(0x28, 0, 4, 4), &[]), [0; 4 * BLOCK]);
    // What is not zeros is written; what is written to is mapped, and what is unmapped has no space any more.
    host.good(&cdb10(0x41, 0x18, 18, 1), &[5; BLOCK]);
    host.good(&cdb10(0x2a, 0, 20, 1), &[7; BLOCK]);
    assert_eq!(unmap(&mut host, &[(42, 1)]).status, Status::Good);
    let told = descriptors(&host.good(&cdb16(0x9e, 0x12, 0, 4096), &[]));
    let runs: Vec<_> = told.iter().map(|&(lba, _, status)| (lba, status)).collect();
    let wanted = [
        (0, 0),
        (4, 2),
        (8, 0),
        (16, 2),
        (18, 0),
        (19, 2),
        (20, 0),
        (21, 2),
        (24, 0),
        (32, 1),
        (40, 2),
        (42, 1),
        (43, 2),
        (48, 1),
    ];
    assert_eq!(runs, wanted);
}

#[test]
fn space_that_cannot_be_anchored_is_refused() {
    let mut host = Host::new(config());
    host.disk.fail = Some((|io| matches!(io, Io::Zero { .. }), IoError::NoSpace));
    assert_eq!(unmap_with(&mut host, 1, &[(0, 8)]).code(), (7, 0x27, 0x07));
    assert_eq!(host.run(&cdb10(0x41, 0x18, 0, 8), &[0; BLOCK]).code(), (7, 0x27, 0x07));
}

/// SBC-3: ANC_SUP 0 refuses the bit wherever it stands, and WRITE SAME wants UNMAP beside it.
#[test]
fn who_may_not_anchor_hears_which_bit_is_wrong() {
    let mut host = without(|provisioning| provisioning.anchors = false);
    assert_eq!(unmap_with(&mut host, 1, &[(0, 8)]).field(), Some((1, Some(0))));
    for cdb in [cdb10(0x41, 0x18, 0, 8), cdb16(0x93, 0x18, 0, 8)] {
        assert_eq!(host.run(&cdb, &[0; BLOCK]).field(), Some((1, Some(4))));
    }
    assert_eq!(host.log(), []);
    let mut host = Host::new(config());
    for cdb in [cdb10(0x41, 0x10, 0, 8), cdb16(0x93, 0x10, 0, 8)] {
        assert_eq!(host.run(&cdb, &[0; BLOCK]).field(), Some((1, Some(4))), "without UNMAP");
    }
    assert_eq!(host.log(), []);
}
