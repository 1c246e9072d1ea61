//! What the commands that write put on the medium of a unit with protection information, and which of them write nothing
//! (SBC-3, 4.22).

use std::sync::Arc;

use lunette_scsi::{Allocation, Device, Io, LogicalUnit, Lun, Saved, Status};

use super::*;

/// WRPROTECT 000b: the information is generated; application tags are 0.
/// SBC-3: WRPROTECT, ORPROTECT.
#[test]
fn data_that_comes_alone_gets_its_information() {
    for (mut host, tag) in [(type_1(), None), (type_3(), Some(0xffff_ffff))] {
        let data: Vec<u8> = (0..3 * BLOCK).map(|index| (index / 7) as u8).collect();
        for cdb in [cdb6(0x0a, 40, 3), cdb10(0x2a, 0, 40, 3), cdb12(0xaa, 0, 40, 3), cdb16(0x8a, 0, 40, 3)] {
            let reply = host.run(&cdb, &data);
            assert_eq!((reply.status, reply.asked_bytes), (Status::Good, 3 * BLOCK as u32));
            for (index, data) in data.chunks(BLOCK).enumerate() {
                let reference_tag = tag.unwrap_or(40 + index as u32);
                assert_eq!(information_of(&host, 40 + index), information(data, 0, reference_tag));
            }
            assert_eq!(host.good(&cdb10(0x28, 0, 40, 3), &[]), data);
        }
    }
}

/// WRPROTECT other than 000b: what comes is checked as the field says and kept as it came.
/// SBC-3: WRPROTECT, ORPROTECT.
#[test]
fn information_that_comes_is_checked_and_kept() {
    let right = block(9, 0x1234, 50);
    let with = |at: usize| {
        let mut block = right.clone();
        block[at] ^= 0x80;
        block
    };
    let (of_guard, of_tag) = (Some((GUARD, [1, 4, 5])), Some((REFERENCE_TAG, [1, 2, 5])));
    let cases = [
        (right.clone(), None),
        (with(100), of_guard),
        (with(BLOCK), of_guard),
        (with(BLOCK + 3), None),
        (with(BLOCK + 6), of_tag),
    ];
    for (stored, wanted) in &cases {
        for value in 1..=5 {
            for opcode in [0x2a, 0x2e] {
                let mut host = type_1();
                let reply = host.run(&cdb10(opcode, field(value), 50, 1), stored);
                assert_eq!(reply.asked_bytes, STORED as u32);
                match wanted.filter(|(_, values)| values.contains(&value)) {
                    Some((code, _)) => {
                        assert_eq!((reply.code(), told_lba(&reply)), (code, 50), "{value}");
                        assert!(host.log().is_empty(), "nothing is written");
                    }
                    None => {
                        // WRITE AND VERIFY reads it back by the same field.
                        assert_eq!(reply.code(), GOOD, "{value}");
                        assert_eq!(host.disk.bytes[50 * BLOCK..51 * BLOCK], stored[..BLOCK]);
                        assert_eq!(information_of(&host, 50), stored[BLOCK..]);
                    }
                }
            }
        }
    }
}

#[test]
fn a_wrong_block_among_many_keeps_all_from_being_written() {
    let mut host = type_1();
    let mut data: Vec<u8> = (60..70).flat_map(|lba| block(3, 1, lba)).collect();
    data[7 * STORED + 5] ^= 1;
    let reply = host.run(&cdb10(0x2a, field(1), 60, 10), &data);
    assert_eq!((reply.code(), told_lba(&reply)), (GUARD, 67));
    assert!(host.log().is_empty());
}

/// The transport tells the residual; whole blocks are written, of their length on the way.
#[test]
fn fewer_blocks_than_announced_are_written() {
    let mut host = type_1();
    let data: Vec<u8> = (60..62).flat_map(|lba| block(3, 1, lba)).collect();
    let reply = host.run(&cdb10(0x2a, field(1), 60, 4), &data);
    assert_eq!((reply.code(), reply.asked_bytes), (GOOD, 4 * STORED as u32));
    assert_eq!(information_of(&host, 61), data[STORED + BLOCK..]);
    assert_eq!(information_of(&host, 62), [0xff; 8]);
    assert_eq!(host.run(&cdb10(0x2a, field(1), 60, 4), &data[..BLOCK]).code(), INVALID_FIELD_IN_UNIT);
    assert_eq!(host.run(&cdb10(0x2a, field(1), 60, 4), &[]).code(), GOOD);
}

/// More than a piece: the information is made piece by piece.
#[test]
fn long_writes_are_made_in_pieces() {
    let mut config = protected(ProtectionType::Type1);
    config.max_transfer_bytes = 4 << 20;
    let mut host = Host::new(config);
    let blocks = 3000usize;
    let data: Vec<u8> = (0..blocks * BLOCK).map(|index| (index / 300) as u8).collect();
    host.good(&cdb10(0x2a, 0, 7, blocks as u16), &data);
    assert!(
        host.log()
            .iter()
            .all(|io| matches!(io, Io::WriteOwned { bytes, .. } if bytes.len() <= 2048 * STORED))
    );
    assert_eq!(host.good(&cdb10(0x28, field(1), 7, blocks as u16), &[]).len(), blocks * STORED);
    assert_eq!(host.good(&cdb10(0x28, 0, 7, blocks as u16), &[]), data);
    host.good(&cdb10(0x2f, 0x02, 7, blocks as u16), &data);
    host.disk.bytes[(7 + 2500) * BLOCK] ^= 1;
    let reply = host.run(&cdb10(0x2f, 0, 7, blocks as u16), &[]);
    assert_eq!((reply.code(), told_lba(&reply)), (GUARD, 2507));
}

/// MAXIMUM TRANSFER LENGTH counts what is stored, so that buffers stay as long as they are for other units.
#[test]
fn the_longest_transfer_has_room_for_the_information() {
    let mut host = type_1();
    let limits = host.good(&[0x12, 1, 0xb0, 0, 64, 0], &[]);
    let most = (1 << 20) / STORED as u32;
    assert_eq!(u32::from_be_bytes([limits[8], limits[9], limits[10], limits[11]]), most);
    let data = vec![0; most as usize * STORED];
    assert_eq!(host.run(&cdb10(0x2a, field(3), 0, most as u16), &data).code(), GOOD);
    assert_eq!(host.run(&cdb10(0x2a, field(3), 0, most as u16 + 1), &data).code(), INVALID_FIELD);
}

#[test]
fn write_same_counts_reference_tags_up() {
    for (opcode, unmap) in [(0x41u8, 0u8), (0x93, 0), (0x93, 0x08)] {
        let cdb = |flags: u8| match opcode {
            0x41 => cdb10(opcode, flags, 70, 2500),
            _ => cdb16(opcode, flags, 70, 2500),
        };
        let mut host = type_1();
        let reply = host.run(&cdb(unmap), &[6; BLOCK]);
        assert_eq!((reply.code(), reply.asked_bytes), (GOOD, BLOCK as u32));
        for lba in [70, 2117, 2118, 2569] {
            assert_eq!(information_of(&host, lba), information(&[6; BLOCK], 0, lba as u32), "{lba}");
        }
        let reply = host.run(&cdb(unmap | field(1)), &block(5, 0xabcd, 70));
        assert_eq!((reply.code(), reply.asked_bytes), (GOOD, STORED as u32));
        for lba in [70, 2117, 2118, 2569] {
            assert_eq!(information_of(&host, lba), information(&[5; BLOCK], 0xabcd, lba as u32), "{lba}");
        }
        assert_eq!(host.run(&cdb(field(1)), &block(5, 1, 71)).code(), REFERENCE_TAG);
        let mut host = type_3();
        host.good(&cdb(field(1)), &block(5, 1, 0x7777));
        assert_eq!(information_of(&host, 2569), information(&[5; BLOCK], 1, 0x7777));
    }
}

#[test]
fn zeros_are_unmapped_only_where_they_read_the_same_afterwards() {
    let zeros = [0; BLOCK];
    let unchecked = [&zeros[..], &[0xff; 8]].concat();
    let cases: [(u8, Vec<u8>, bool); 6] = [
        (0x00, zeros.to_vec(), false),
        (0x08, zeros.to_vec(), true),
        (0x08 | field(1), block(0, 0, 80), false),
        (0x08 | field(1), unchecked.clone(), true),
        (field(1), unchecked, false),
        (0x09, Vec::new(), true),
    ];
    for (flags, data, is_unmapped) in cases {
        let mut host = type_1();
        host.good(&cdb16(0x8a, 0, 80, 8), &[7; 8 * BLOCK]);
        host.log();
        host.good(&cdb16(0x93, flags, 80, 8), &data);
        let unmaps = |io: &Io| matches!(io, Io::Zero { unmap: true, .. });
        assert_eq!(host.log().iter().any(unmaps), is_unmapped, "{flags:02x}");
        assert_eq!(host.good(&cdb16(0x88, 0, 80, 8), &[]), [0; 8 * BLOCK]);
        let wanted = match data.get(BLOCK..) {
            _ if is_unmapped => [0xff; 8],
            Some(information) if !information.is_empty() => information.try_into().unwrap(),
            _ => information(&zeros, 0, 80),
        };
        assert_eq!(information_of(&host, 80), wanted, "{flags:02x}");
    }
    // NDOB without UNMAP: zeros that have space and no information.
    let mut host = type_1();
    host.good(&cdb16(0x8a, 0, 80, 8), &[7; 8 * BLOCK]);
    host.good(&cdb16(0x93, 0x01, 80, 8), &[]);
    assert_eq!((information_of(&host, 87), host.disk.allocation[87]), ([0xff; 8], Allocation::Anchored));
}

#[test]
fn unmap_takes_the_information_away() {
    let mut host = type_1();
    host.good(&cdb10(0x2a, 0, 80, 8), &[7; 8 * BLOCK]);
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
    list.extend(82u64.to_be_bytes());
    list.extend([0, 0, 0, 4, 0, 0, 0, 0]);
    let mut cdb = padded(&[0x42]);
    cdb[8] = list.len() as u8;
    host.good(&cdb, &list);
    assert_eq!(information_of(&host, 82), [0xff; 8]);
    assert_eq!(information_of(&host, 86), information(&[7; BLOCK], 0, 86));
    assert_eq!(host.good(&cdb10(0x28, 0, 80, 8), &[])[2 * BLOCK..6 * BLOCK], [0; 4 * BLOCK]);
}

#[test]
fn compare_and_write_compares_data_and_writes_its_information() {
    let cdb = |value: u8| {
        let mut cdb = cdb16(0x89, field(value), 90, 0);
        cdb[13] = 2;
        cdb
    };
    let mut host = type_1();
    host.good(&cdb10(0x2a, 0, 90, 2), &[1; 2 * BLOCK]);
    let reply = host.run(&cdb(0), &[[1; 2 * BLOCK], [2; 2 * BLOCK]].concat());
    assert_eq!((reply.code(), reply.asked_bytes), (GOOD, 4 * BLOCK as u32));
    assert_eq!(information_of(&host, 91), information(&[2; BLOCK], 0, 91));
    let two = |byte, tag| [block(byte, tag, 90), block(byte, tag, 91)].concat();
    let reply = host.run(&cdb(1), &[two(2, 5), two(3, 6)].concat());
    assert_eq!((reply.code(), reply.asked_bytes), (GOOD, 4 * STORED as u32));
    assert_eq!(information_of(&host, 91), information(&[3; BLOCK], 6, 91));
    let mut other = two(3, 0);
    other[STORED + 10] = 9;
    let fix = information(&other[STORED..STORED + BLOCK], 0, 91);
    other[STORED + BLOCK..].copy_from_slice(&fix);
    let reply = host.run(&cdb(1), &[other, two(4, 0)].concat());
    assert_eq!((reply.code(), told_lba(&reply)), (MISCOMPARE, STORED as u32 + 10));
    let mut wrong = [two(3, 0), two(4, 0)].concat();
    wrong[3 * STORED] ^= 1;
    let reply = host.run(&cdb(1), &wrong);
    assert_eq!((reply.code(), told_lba(&reply)), (GUARD, 91));
    assert_eq!(host.good(&cdb10(0x28, 0, 90, 2), &[]), [3; 2 * BLOCK]);
}

#[test]
fn or_write_makes_the_guard_of_its_result() {
    let mut host = type_1();
    host.good(&cdb10(0x2a, 0, 95, 2), &[0x0f; 2 * BLOCK]);
    host.good(&cdb16(0x8b, 0, 95, 2), &[0x30; 2 * BLOCK]);
    assert_eq!(information_of(&host, 96), information(&[0x3f; BLOCK], 0, 96));
    let given = [block(0x40, 0x77, 95), block(0x40, 0x77, 96)].concat();
    host.good(&cdb16(0x8b, field(1), 95, 2), &given);
    assert_eq!(information_of(&host, 96), information(&[0x7f; BLOCK], 0x77, 96));
    assert_eq!(host.good(&cdb10(0x28, 0, 95, 2), &[]), [0x7f; 2 * BLOCK]);
    let mut wrong = given;
    wrong[STORED] ^= 1;
    assert_eq!(host.run(&cdb16(0x8b, field(1), 95, 2), &wrong).code(), GUARD);
    assert_eq!(host.good(&cdb10(0x28, 0, 95, 2), &[]), [0x7f; 2 * BLOCK]);
}

/// A long block has its information, and nobody checks it.
#[test]
fn long_blocks_have_their_information() {
    let device =
        Arc::new(LogicalUnit::new(protected(ProtectionType::Type1), Saved::Nothing).expect("a unit"));
    let device = Device::new("iqn.x", [1], [(Lun::from_number(0), device)]).expect("a device");
    let mut host = Host::on(Arc::new(device));
    host.disk = Disk::protected();
    let wrong = [[7; BLOCK].to_vec(), vec![1; 8]].concat();
    let long = |opcode, lba| cdb10(opcode, 0, lba, STORED as u16);
    assert_eq!(host.run(&long(0x3f, 33), &wrong).code(), GOOD);
    assert_eq!(information_of(&host, 33), [1; 8]);
    assert_eq!(host.good(&long(0x3e, 33), &[]), wrong);
    assert_eq!(host.run(&cdb10(0x28, 0, 33, 1), &[]).code(), GUARD);
    // Marked as unreadable, and readable again when written: the block itself, not its neighbour.
    host.good(&cdb10(0x3f, 0x40, 34, 0), &[]);
    host.good(&cdb10(0x2a, 0, 33, 1), &[1; BLOCK]);
    assert_eq!(host.run(&cdb10(0x28, 0, 34, 1), &[]).code(), (3, 0x11, 0x00));
    host.good(&cdb10(0x2a, field(1), 34, 1), &block(3, 0, 34));
    assert_eq!(host.good(&cdb10(0x28, 0, 33, 2), &[]), [[1; BLOCK], [3; BLOCK]].concat());
}
