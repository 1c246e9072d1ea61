//! Copies between units with protection information and without: checked where they read, generated where they write
//! (SBC-3, 4.22; SPC-4).

use lunette_scsi::LogicalUnitConfig;

use super::*;
use crate::copying::{COPY, OTHER_NAA, blocks as segment, both, cdb, host_with, lid1};

fn copy(host: &mut Host, segment: &[u8]) -> Reply {
    let list = lid1(1, 0, &both(), segment);
    host.run(&cdb(&COPY, list.len()), &list)
}

/// Both ways, with the units' media as the configurations have it.
fn units(first: LogicalUnitConfig, second: LogicalUnitConfig) -> Host {
    let information =
        [&first, &second].map(|config| config.protection.map(|_| vec![[0xff; 8]; BLOCKS as usize]));
    let mut host = host_with(first, second);
    let [own, others] = information;
    host.disk.information = own;
    host.others.get_mut(&OTHER_NAA).expect("the second unit").information = others;
    host
}

#[test]
fn copies_check_what_they_read_and_generate_what_they_write() {
    let type_1 = || protected(ProtectionType::Type1);
    let type_3 = || protected(ProtectionType::Type3);
    for (first, second) in [(type_1(), type_3()), (config(), type_1()), (type_3(), config())] {
        let (source_is_protected, kind) = (first.protection.is_some(), second.protection);
        let mut host = units(first, second);
        host.good(&cdb10(0x2a, 0, 10, 40), &[6; 40 * BLOCK]);
        assert_eq!(copy(&mut host, &segment(0, 1, 40, 10, 300)).code(), GOOD);
        let other = &host.others[&OTHER_NAA];
        assert_eq!(other.bytes[300 * BLOCK..340 * BLOCK], [6; 40 * BLOCK]);
        if let Some(kind) = kind {
            let tag = if kind == ProtectionType::Type1 { 339 } else { u32::MAX };
            let found = other.information.as_ref().expect("it is protected")[339];
            assert_eq!(found, information(&[6; BLOCK], 0, tag));
        }
        let told = Told::of(&host);
        if source_is_protected {
            host.disk.bytes[17 * BLOCK] ^= 1;
            let before = host.others[&OTHER_NAA].bytes.clone();
            let reply = copy(&mut host, &segment(0, 1, 40, 10, 600));
            assert_eq!((reply.code(), told_lba(&reply)), ((0xa, 0x0d, 0x01), 17));
            assert_eq!(told.take(), [Damage { lba: 17, check: Check::Guard }]);
            assert!(host.others[&OTHER_NAA].bytes == before, "nothing was written");
        }
    }
}

/// Within a unit, over itself, in more than one piece.
#[test]
fn blocks_that_move_get_the_tags_of_their_places() {
    for (from, to) in [(0, 3), (3, 0)] {
        let mut host = units(protected(ProtectionType::Type1), config());
        let data: Vec<u8> = (0..3000 * BLOCK).map(|index| (index / BLOCK) as u8 ^ index as u8).collect();
        for (index, part) in data.chunks(1000 * BLOCK).enumerate() {
            host.good(&cdb10(0x2a, 0, from as u32 + 1000 * index as u32, 1000), part);
        }
        assert_eq!(copy(&mut host, &segment(0, 0, 3000, from, to)).code(), GOOD);
        for (index, part) in data.chunks(1000 * BLOCK).enumerate() {
            assert_eq!(host.good(&cdb10(0x28, 0, to as u32 + 1000 * index as u32, 1000), &[]), part);
        }
    }
}
