//! READ LONG and WRITE LONG, and the blocks that they mark, against a disk in memory (SBC-3).

use std::sync::Arc;

use crate::copying::{COPY, blocks, both, cdb as copy_cdb, lid1};
use crate::host::*;
use lunette_scsi::{Device, Identity, Io, IoError, LogicalUnit, LogicalUnitConfig, Lun, Saved, UnitState};

/// UNRECOVERED READ ERROR, and READ ERROR - LBA MARKED BAD BY APPLICATION CLIENT.
const UNRECOVERED: (u8, u8, u8) = (3, 0x11, 0);
const MARKED_BAD: (u8, u8, u8) = (3, 0x11, 0x14);

const WR_UNCOR: u8 = 0x40;
const COR_DIS: u8 = 0x80;
const PBLOCK: u8 = 0x20;

fn write_long(flags: u8, lba: u32, bytes: u16) -> [u8; 16] {
    cdb10(0x3f, flags, lba, bytes)
}

fn write_long_16(flags: u8, lba: u64, bytes: u16) -> [u8; 16] {
    let mut cdb = cdb16(0x9f, 0x11 | flags, lba, 0);
    cdb[12..14].copy_from_slice(&bytes.to_be_bytes());
    cdb
}

/// READ LONG (10) with PBLOCK 04h and CORRCT 02h.
fn read_long(flags: u8, lba: u32, bytes: u16) -> [u8; 16] {
    cdb10(0x3e, flags, lba, bytes)
}

fn read_long_16(flags: u8, lba: u64, bytes: u16) -> [u8; 16] {
    let mut cdb = cdb16(0x9e, 0x11, lba, 0);
    cdb[12..14].copy_from_slice(&bytes.to_be_bytes());
    cdb[14] = flags;
    cdb
}

fn host_of(config: LogicalUnitConfig, saved: Saved<'_>) -> Host {
    let unit = Arc::new(LogicalUnit::new(config, saved).expect("a possible unit"));
    let units = [(Lun::from_number(0), unit)];
    Host::on(Arc::new(Device::new("iqn.2026-11.io.lunette:t", [1], units).expect("a possible device")))
}

/// A unit whose state is kept, with data on its first blocks.
fn host() -> Host {
    let mut host = host_of(config(), Saved::Nothing);
    host.good(&cdb10(0x2a, 0, 0, 64), &[7; 64 * BLOCK]);
    host.log();
    host
}

fn state(host: &Host) -> UnitState {
    host.nexus.device().unit(host.lun).expect("a unit").state()
}

/// The sense data of a read of blocks 0 to 63, and the LBA that it names.
fn read_all(host: &mut Host) -> ((u8, u8, u8), u32) {
    let reply = host.run(&cdb10(0x28, 0, 0, 64), &[]);
    let information = if reply.sense.is_empty() { 0 } else { be32(&reply.sense[3..7]) };
    (reply.code(), information)
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().expect("four bytes"))
}

/// SBC-3: READ LONG (10, 16), WRITE LONG (10, 16).
#[test]
fn a_marked_block_fails_every_command_that_reads_it() {
    for (flags, code) in [(WR_UNCOR, UNRECOVERED), (WR_UNCOR | COR_DIS, MARKED_BAD), (COR_DIS, MARKED_BAD)] {
        let mut host = host();
        let (length, data) = if flags & WR_UNCOR == 0 { (512, vec![9; BLOCK]) } else { (0, Vec::new()) };
        host.good(&write_long(flags, 10, length), &data);
        assert!(host.log().ends_with(&[Io::SaveState]));
        assert_eq!(read_all(&mut host), (code, 10));
        assert_eq!(host.log(), [], "the store is not asked");
        for (cdb, data) in [
            (cdb10(0x2f, 0, 0, 64), vec![]),
            (cdb10(0x2f, 0x02, 10, 1), vec![7; BLOCK]),
            (crate::read_modify_write::compare_and_write(0, 10, 1), vec![7; 2 * BLOCK]),
            (cdb16(0x8b, 0, 10, 1), vec![7; BLOCK]),
            (read_long(0x02, 10, 512), vec![]),
            (cdb16(0x88, 0, 3, 8), vec![]),
        ] {
            assert_eq!(host.run(&cdb, &data).code(), code, "{cdb:02x?}");
        }
        assert_eq!(host.good(&cdb10(0x28, 0, 0, 10), &[]), [7; 10 * BLOCK]);
        assert_eq!(host.good(&cdb10(0x28, 0, 11, 10), &[]), [7; 10 * BLOCK]);
        let expected = if flags == COR_DIS { 9 } else { 7 };
        assert_eq!(host.good(&read_long(0, 10, 512), &[]), [expected; BLOCK], "as it is");
    }
}

/// What is written is read again, however it is written; the mark is gone from the saved state before the answer.
/// SBC-3: READ LONG (10, 16), WRITE LONG (10, 16).
#[test]
fn every_kind_of_write_heals() {
    let unmap = {
        let mut cdb = padded(&[0x42]);
        cdb[8] = 24;
        (cdb, [&[0, 22, 0, 16, 0, 0, 0, 0][..], &10u64.to_be_bytes(), &[0, 0, 0, 1, 0, 0, 0, 0]].concat())
    };
    let mut atomic = cdb16(0x9c, 0, 8, 0);
    atomic[13] = 8;
    for (cdb, data) in [
        (cdb10(0x2a, 0, 8, 4), vec![1; 4 * BLOCK]),
        (cdb10(0x2a, 0x08, 10, 1), vec![1; BLOCK]),
        (cdb10(0x2e, 0x02, 10, 1), vec![1; BLOCK]),
        (cdb10(0x41, 0, 0, 64), vec![1; BLOCK]),
        (cdb16(0x93, 0x09, 10, 1), vec![]),
        unmap,
        (atomic, vec![1; 8 * BLOCK]),
        (write_long_16(0, 10, 512), vec![1; BLOCK]),
    ] {
        let mut host = host();
        let unmarked = state(&host);
        host.good(&write_long(WR_UNCOR, 10, 0), &[]);
        host.good(&write_long(WR_UNCOR, 100, 0), &[]);
        let marked = state(&host);
        host.log();
        host.good(&cdb, &data);
        let log = host.log();
        let save = log.iter().position(|io| *io == Io::SaveState).expect("the state is stored");
        assert_eq!(log[save - 1], Io::Flush, "the new block is stable before: {log:?}");
        assert_eq!(read_all(&mut host).0, GOOD, "{cdb:02x?}");
        assert_ne!(state(&host), marked);
        host.good(&cdb10(0x2a, 0, 100, 1), &[1; BLOCK]);
        assert_eq!(state(&host), unmarked, "nothing is left");
        host.log();
        host.good(&cdb, &data);
        assert!(!host.log().contains(&Io::SaveState), "as if nothing had been");
    }
}

#[test]
fn a_write_that_fails_heals_nothing() {
    let mut host = host();
    host.good(&write_long(WR_UNCOR, 10, 0), &[]);
    host.disk.fail = Some((|io| matches!(io, Io::WriteDataOut { .. }), IoError::NoSpace));
    assert_eq!(host.run(&cdb10(0x2a, 0, 10, 1), &[1; BLOCK]).code(), (7, 0x27, 7));
    host.disk.fail = Some((|io| *io == Io::Flush, IoError::Faulted));
    assert_eq!(host.run(&cdb10(0x2a, 0, 10, 1), &[1; BLOCK]).code(), (4, 0x03, 0));
    host.disk.fail = None;
    assert_eq!(read_all(&mut host), (UNRECOVERED, 10));
    // The mark is gone only when the state without it is stored, which the unit does when it can.
    host.disk.fail = Some((|io| *io == Io::SaveState, IoError::Hardware));
    for _ in 0..2 {
        assert_eq!(host.run(&cdb10(0x2a, 0, 10, 1), &[1; BLOCK]).code().0, 4);
        assert_eq!(read_all(&mut host), (UNRECOVERED, 10));
    }
    host.disk.fail = None;
    assert!(host.work(), "a state that is owed");
    assert!(!host.work());
    assert_eq!(read_all(&mut host).0, GOOD);
}

/// SBC-3: READ LONG (10, 16), WRITE LONG (10, 16).
#[test]
fn marks_are_there_after_a_restart() {
    let mut before = host();
    before.good(&write_long(WR_UNCOR | COR_DIS, 10, 0), &[]);
    before.good(&write_long_16(WR_UNCOR, 12, 0), &[]);
    let saved = state(&before);
    let mut host = host_of(config(), saved.saved());
    assert_eq!(read_all(&mut host), (MARKED_BAD, 10));
    host.good(&cdb10(0x2a, 0, 10, 1), &[1; BLOCK]);
    assert_eq!(read_all(&mut host), (UNRECOVERED, 12));
    let mut damaged = saved.clone();
    *damaged.settings.last_mut().expect("a kind of mark") = 9;
    assert!(LogicalUnit::new(config(), damaged.saved()).is_err());
}

#[test]
fn marks_are_there_in_blocks_of_another_length() {
    let mut before = host();
    before.good(&write_long(WR_UNCOR | COR_DIS, 10, 0), &[]);
    let longer = LogicalUnitConfig { block_length_bytes: 4096, blocks: BLOCKS / 8, ..config() };
    let mut host = host_of(longer, state(&before).saved());
    assert_eq!(host.code(&cdb10(0x28, 0, 0, 1)), GOOD);
    assert_eq!(host.code(&cdb10(0x28, 0, 1, 1)), MARKED_BAD);
    let mut after = host_of(config(), state(&host).saved());
    assert_eq!(read_all(&mut after), (MARKED_BAD, 8));
    assert_eq!(after.code(&cdb10(0x28, 0, 15, 1)), MARKED_BAD);
    assert_eq!(after.code(&cdb10(0x28, 0, 16, 1)), GOOD);
}

/// PBLOCK marks, writes and reads the whole physical block, of which the medium may end before the end.
#[test]
fn physical_blocks() {
    let mut host = host_of(LogicalUnitConfig { blocks: BLOCKS - 4, ..config() }, Saved::Nothing);
    host.good(&write_long(WR_UNCOR | PBLOCK, 13, 0), &[]);
    assert_eq!(host.run(&cdb10(0x28, 0, 8, 1), &[]).code(), UNRECOVERED);
    assert_eq!(host.run(&cdb10(0x28, 0, 15, 1), &[]).code(), UNRECOVERED);
    assert_eq!(host.code(&cdb10(0x28, 0, 7, 1)), GOOD);
    assert_eq!(host.code(&cdb10(0x28, 0, 16, 1)), GOOD);
    host.good(&write_long(PBLOCK, 13, 4096), &[3; 8 * BLOCK]);
    assert_eq!(host.good(&cdb10(0x28, 0, 8, 8), &[]), [3; 8 * BLOCK]);
    assert_eq!(host.good(&read_long(0x04, 13, 4096), &[]), [3; 8 * BLOCK]);
    assert_eq!(host.good(&read_long_16(0x02, 13, 4096), &[]), [3; 8 * BLOCK]);
    let last = BLOCKS as u32 - 5;
    assert_eq!(host.run(&read_long(0x04, last, 4096), &[]).code().1, 0x24);
    assert_eq!(host.good(&read_long(0x04, last, 2048), &[]), [0; 4 * BLOCK]);
}

/// The long block has no bytes but the block's: another length tells by how much it is wrong.
#[test]
fn the_length_is_that_of_the_block() {
    let mut host = host();
    for (cdb, difference) in [
        (read_long(0, 0, 520), 8_i32),
        (read_long_16(0, 0, 500), -12),
        (write_long(0, 0, 4096), 3584),
        (write_long_16(COR_DIS, 0, 1), -511),
    ] {
        let reply = host.run(&cdb, &[0; 4096]);
        assert_eq!((reply.code().1, reply.asked_bytes), (0x24, 0), "{cdb:02x?}");
        assert_eq!((reply.sense[0], reply.sense[2]), (0xf0, 0x25), "VALID, and ILI with the key");
        assert_eq!(be32(&reply.sense[3..7]) as i32, difference);
    }
    assert_eq!(host.code(&read_long(0, 0, 0)), GOOD, "no bytes");
    assert_eq!(host.code(&write_long(0, 0, 0)), GOOD);
    assert_eq!(host.run(&write_long(0, 0, 512), &[0; 511]).code(), INVALID_FIELD_IN_UNIT);
    for cdb in [read_long(0, BLOCKS as u32, 512), write_long(WR_UNCOR, BLOCKS as u32, 0)] {
        assert_eq!(host.code(&cdb), OUT_OF_RANGE);
    }
    assert_eq!(host.log(), []);
}

/// SPC-4, Extended INQUIRY Data: WU_SUP and CRD_SUP. Without a place for the marks there is no WRITE LONG.
#[test]
fn units_that_keep_nothing_mark_nothing() {
    let support = |host: &mut Host| host.good(&[0x12, 1, 0x86, 0, 64, 0], &[])[6] & 0x0c;
    assert_eq!(support(&mut host()), 0x0c);
    let mut host = Host::new(config());
    assert_eq!(support(&mut host), 0);
    assert_eq!(host.code(&write_long(WR_UNCOR, 0, 0)), INVALID_OPCODE);
    assert_eq!(host.code(&write_long_16(0, 0, 512)), INVALID_OPCODE);
    assert_eq!(host.good(&read_long(0x02, 0, 512), &[]), [0; BLOCK]);
    let mut host = host_of(LogicalUnitConfig { read_only: true, ..config() }, Saved::Nothing);
    assert_eq!(host.code(&write_long(WR_UNCOR, 0, 0)), WRITE_PROTECTED);
}

#[test]
fn there_is_room_for_so_many_marks() {
    let mut host = host();
    for block in 0..128 {
        host.good(&write_long(WR_UNCOR | PBLOCK, block * 8, 0), &[]);
    }
    assert_eq!(host.code(&write_long(WR_UNCOR, 2000, 0)), (5, 0x55, 3));
    assert_eq!(host.code(&cdb10(0x28, 0, 2000, 1)), GOOD);
    host.good(&write_long(WR_UNCOR | COR_DIS, 5, 0), &[]);
    assert_eq!(host.code(&cdb10(0x28, 0, 5, 1)), MARKED_BAD, "a mark in place of another");
    host.good(&cdb10(0x41, 0, 0, 1024), &[0; BLOCK]);
    host.good(&write_long(WR_UNCOR, 2000, 0), &[]);
}

/// A block that is to be marked is not written where it cannot be: it would be read as good.
#[test]
fn what_cannot_be_marked_is_not_written() {
    let mut host = host();
    for lba in 1000..2024 {
        host.good(&write_long(WR_UNCOR, lba, 0), &[]);
    }
    host.log();
    let data = [9; BLOCK];
    for cdb in [write_long(COR_DIS, 5, 512), write_long(COR_DIS | PBLOCK, 5, 4096)] {
        let data = if cdb[1] & PBLOCK == 0 { &data[..] } else { &[9; 8 * BLOCK] };
        assert_eq!(host.run(&cdb, data).code(), (5, 0x55, 3));
        assert_eq!((host.log(), read_all(&mut host)), (vec![], (GOOD, 0)));
        assert!(host.disk.bytes[..64 * BLOCK].iter().all(|&byte| byte == 7));
        host.log();
    }
    host.good(&write_long(0, 5, 512), &data);
    host.good(&write_long(COR_DIS, 1000, 512), &data);
    host.good(&cdb10(0x2a, 0, 1001, 1), &data);
    host.good(&write_long(COR_DIS, 6, 512), &data);
    assert_eq!(read_all(&mut host), (MARKED_BAD, 6));
}

/// SBC-4, GET LBA STATUS: ADDITIONAL STATUS 01h, the blocks may contain unrecovered errors.
#[test]
fn get_lba_status_tells_marked_blocks() {
    let mut host = host();
    host.good(&write_long(WR_UNCOR, 10, 0), &[]);
    host.good(&write_long(WR_UNCOR, 11, 0), &[]);
    host.good(&write_long(WR_UNCOR, 80, 0), &[]);
    let data = host.good(&cdb16(0x9e, 0x12, 0, 8 + 6 * 16), &[]);
    let told: Vec<_> =
        data[8..].chunks(16).map(|run| (run[7], be32(&run[8..12]), run[12], run[13])).collect();
    let left = BLOCKS as u32 - 81;
    assert_eq!(
        told,
        [(0, 10, 0, 0), (10, 2, 0, 1), (12, 52, 0, 0), (64, 16, 1, 0), (80, 1, 1, 1), (81, left, 1, 0)]
    );
}

/// SBC-3, SANITIZE and FORMAT UNIT write every block.
#[test]
fn erasing_the_medium_takes_all_marks_away() {
    for cdb in [padded(&[0x48, 0x02]), padded(&[0x04])] {
        let mut host = host();
        host.good(&write_long(WR_UNCOR, 10, 0), &[]);
        let marked = state(&host);
        host.good(&cdb, &[]);
        assert_eq!(read_all(&mut host).0, GOOD);
        assert_ne!(state(&host), marked);
        let saved = state(&host);
        assert_eq!(read_all(&mut host_of(config(), saved.saved())).0, GOOD);
    }
}

/// A copy reads and writes like any command; what it heals is stored where it belongs.
#[test]
fn copies_meet_and_heal_marks() {
    const OTHER_NAA: u64 = 0x3eee_0000_0000_0001;
    let identity = Identity { naa: OTHER_NAA, uuid: [8; 16], ..config().identity };
    let units = [config(), LogicalUnitConfig { identity, ..config() }]
        .map(|config| Arc::new(LogicalUnit::new(config, Saved::Nothing).expect("a possible unit")));
    let other = Arc::clone(&units[1]);
    let units = units.into_iter().enumerate().map(|(number, unit)| (Lun::from_number(number as u16), unit));
    let mut host = Host::on(Arc::new(Device::new("iqn.2026-11.io.lunette:t", [1], units).expect("a device")));
    host.others.insert(OTHER_NAA, Disk::new());
    host.lun = Lun::from_number(1);
    assert_eq!(host.code(&[0]), (6, 0x29, 0));
    host.good(&write_long(WR_UNCOR, 10, 0), &[]);
    let marked = other.state();
    host.lun = Lun::from_number(0);
    let copy = |host: &mut Host, segment: Vec<u8>| {
        let list = lid1(1, 3, &both(), &segment);
        host.run(&copy_cdb(&COPY, list.len()), &list)
    };
    assert_eq!(copy(&mut host, blocks(1, 0, 16, 0, 0)).code().0, 0x0a, "COPY ABORTED");
    assert_eq!(copy(&mut host, blocks(0, 1, 16, 0, 0)).code(), GOOD);
    assert_ne!(other.state(), marked);
    let log = &host.others[&OTHER_NAA].log;
    assert!(log.ends_with(&[Io::Flush, Io::SaveState]), "on the other unit: {log:?}");
    assert_eq!(copy(&mut host, blocks(1, 0, 16, 0, 0)).code(), GOOD);
}
