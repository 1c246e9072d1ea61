//! Random commands with random protect fields on a medium that is damaged at random, held against a model of blocks.

use lunette_cases::cases;
use lunette_scsi::Status;
use proptest::prelude::*;

use super::*;

const AREA: u64 = 12;

#[derive(Debug, Clone)]
enum Doing {
    Read {
        lba: u64,
        count: u64,
        value: u8,
    },
    Verify {
        lba: u64,
        count: u64,
        value: u8,
    },
    Write {
        lba: u64,
        count: u64,
        value: u8,
        with: With,
    },
    WriteSame {
        lba: u64,
        count: u64,
        value: u8,
        with: With,
    },
    CompareAndWrite {
        lba: u64,
        count: u64,
        value: u8,
        expected: u8,
        with: With,
    },
    Or {
        lba: u64,
        count: u64,
        value: u8,
        with: With,
    },
    Unmap {
        lba: u64,
        count: u64,
    },
    /// A bit of a stored block turns over.
    Damage {
        lba: u64,
        bit: usize,
    },
}

/// What comes from the initiator: blocks of a byte with a tag, one of which may have a bit turned over.
#[derive(Debug, Clone)]
struct With {
    byte: u8,
    tag: u16,
    damage: Option<(usize, usize)>,
}

fn doings() -> impl Strategy<Value = Doing> {
    let range = (0..AREA, 1..=4u64).prop_map(|(lba, count)| (lba, count.min(AREA - lba)));
    let damage = prop::option::weighted(0.3, (0..4usize, bits()));
    let tag = prop_oneof![Just(0u16), Just(7), Just(0xffff)];
    let with = (0..3u8, tag, damage).prop_map(|(byte, tag, damage)| With { byte, tag, damage });
    (range, 0..=5u8, with, 0..9usize, 0..3u8, bits()).prop_map(
        |((lba, count), value, with, choice, expected, bit)| match choice {
            0 | 1 => Doing::Write { lba, count, value, with },
            2 => Doing::Verify { lba, count, value },
            3 => Doing::WriteSame { lba, count, value, with },
            4 => Doing::CompareAndWrite { lba, count, value, expected, with },
            5 => Doing::Or { lba, count, value, with },
            6 => Doing::Unmap { lba, count },
            7 => Doing::Damage { lba, bit },
            _ => Doing::Read { lba, count, value },
        },
    )
}

/// Half of them in the information.
fn bits() -> impl Strategy<Value = usize> {
    prop_oneof![0..BLOCK * 8, BLOCK * 8..STORED * 8]
}

type Stored = Vec<u8>;

struct Model {
    kind: ProtectionType,
    blocks: Vec<Stored>,
}

impl Model {
    /// What the check of a block by a field says.
    fn check(&self, stored: &[u8], lba: u64, value: u8) -> Option<(u8, u8, u8)> {
        let (data, rest) = stored.split_at(BLOCK);
        let tag_is_ones = rest[2..4] == [0xff; 2];
        let is_type_1 = self.kind == ProtectionType::Type1;
        if tag_is_ones && (is_type_1 || rest[4..] == [0xff; 4]) {
            return None;
        }
        if rest[..2] != guard(data).to_be_bytes() && matches!(value, 0 | 1 | 4 | 5) {
            return Some(GUARD);
        }
        let wrong = is_type_1 && rest[4..] != (lba as u32).to_be_bytes();
        (wrong && matches!(value, 0 | 1 | 2 | 5)).then_some(REFERENCE_TAG)
    }

    fn check_all<'a>(
        &self,
        blocks: impl Iterator<Item = (&'a Stored, u64)>,
        value: u8,
    ) -> Option<((u8, u8, u8), u32)> {
        blocks.filter_map(|(stored, lba)| Some((self.check(stored, lba, value)?, lba as u32))).next()
    }

    fn medium(&self, lba: u64, count: u64) -> impl Iterator<Item = (&Stored, u64)> {
        self.blocks[lba as usize..(lba + count) as usize].iter().zip(lba..)
    }

    fn generated(&self, data: &[u8], lba: u64) -> Stored {
        let tag = if self.kind == ProtectionType::Type1 { lba as u32 } else { u32::MAX };
        [data, &information(data, 0, tag)].concat()
    }

    /// Blocks from the initiator, as they go over the wire with information.
    fn given(&self, lba: u64, count: u64, with: &With) -> Vec<Stored> {
        let tag = |lba: u64| if self.kind == ProtectionType::Type1 { lba as u32 } else { 0x1234_5678 };
        let mut blocks: Vec<Stored> =
            (lba..lba + count).map(|lba| block(with.byte, with.tag, tag(lba))).collect();
        if let Some((index, bit)) = with.damage
            && let Some(block) = blocks.get_mut(index)
        {
            block[bit / 8] ^= 1 << (bit % 8);
        }
        blocks
    }

    /// What a write leaves.
    fn written(&self, given: &[Stored], lba: u64, value: u8) -> Vec<Stored> {
        given
            .iter()
            .zip(lba..)
            .map(|(given, lba)| if value == 0 { self.generated(&given[..BLOCK], lba) } else { given.clone() })
            .collect()
    }

    fn put(&mut self, lba: u64, blocks: Vec<Stored>) {
        self.blocks.splice(lba as usize..lba as usize + blocks.len(), blocks);
    }
}

fn on_the_wire(blocks: &[Stored], value: u8) -> Vec<u8> {
    let length = if value == 0 { BLOCK } else { STORED };
    blocks.iter().flat_map(|block| &block[..length]).copied().collect()
}

fn expect(reply: &Reply, wanted: Option<((u8, u8, u8), u32)>, doing: &Doing) {
    match wanted {
        Some((code, lba)) => assert_eq!((reply.code(), told_lba(reply)), (code, lba), "{doing:?}"),
        None => assert_eq!((reply.code(), reply.status), (GOOD, Status::Good), "{doing:?}"),
    }
}

fn check_write(host: &mut Host, model: &mut Model, doing: &Doing) {
    match doing {
        Doing::Write { lba, count, value, with } => {
            let given = model.given(*lba, *count, with);
            let reply =
                host.run(&cdb16(0x8a, field(*value), *lba, *count as u32), &on_the_wire(&given, *value));
            let wanted = if *value == 0 { None } else { model.check_all(given.iter().zip(*lba..), *value) };
            expect(&reply, wanted, doing);
            if wanted.is_none() {
                model.put(*lba, model.written(&given, *lba, *value));
            }
        }
        Doing::WriteSame { lba, count, value, with } => {
            let given = model.given(*lba, 1, with);
            let reply =
                host.run(&cdb16(0x93, field(*value), *lba, *count as u32), &on_the_wire(&given, *value));
            let wanted = if *value == 0 { None } else { model.check_all(given.iter().zip(*lba..), *value) };
            expect(&reply, wanted, doing);
            if wanted.is_none() {
                let first = u32::from_be_bytes(given[0][BLOCK + 4..].try_into().expect("four bytes"));
                let mut blocks = vec![given[0].clone(); *count as usize];
                for (index, block) in blocks.iter_mut().enumerate() {
                    if model.kind == ProtectionType::Type1 {
                        block[BLOCK + 4..].copy_from_slice(&first.wrapping_add(index as u32).to_be_bytes());
                    }
                }
                model.put(*lba, model.written(&blocks, *lba, *value));
            }
        }
        Doing::CompareAndWrite { lba, count, value, expected, with } => {
            let compared = model.given(*lba, *count, &With { byte: *expected, damage: None, ..with.clone() });
            let given = model.given(*lba, *count, with);
            let mut cdb = cdb16(0x89, field(*value), *lba, 0);
            cdb[13] = *count as u8;
            let reply =
                host.run(&cdb, &[on_the_wire(&compared, *value), on_the_wire(&given, *value)].concat());
            let of_given = if *value == 0 { None } else { model.check_all(given.iter().zip(*lba..), *value) };
            let wanted = of_given.or_else(|| model.check_all(model.medium(*lba, *count), *value));
            let differs = model.medium(*lba, *count).any(|(stored, _)| stored[..BLOCK] != [*expected; BLOCK]);
            if wanted.is_none() && differs {
                assert_eq!(reply.code(), MISCOMPARE, "{doing:?}");
                return;
            }
            expect(&reply, wanted, doing);
            if wanted.is_none() {
                model.put(*lba, model.written(&given, *lba, *value));
            }
        }
        Doing::Or { lba, count, value, with } => {
            let given = model.given(*lba, *count, with);
            let reply =
                host.run(&cdb16(0x8b, field(*value), *lba, *count as u32), &on_the_wire(&given, *value));
            let of_given = if *value == 0 { None } else { model.check_all(given.iter().zip(*lba..), *value) };
            let wanted = of_given.or_else(|| model.check_all(model.medium(*lba, *count), *value));
            expect(&reply, wanted, doing);
            if wanted.is_none() {
                let results = given.iter().zip(model.medium(*lba, *count)).map(|(given, (stored, lba))| {
                    let data: Vec<u8> =
                        given[..BLOCK].iter().zip(stored).map(|(left, right)| left | right).collect();
                    if *value == 0 {
                        return model.generated(&data, lba);
                    }
                    [&data[..], &guard(&data).to_be_bytes(), &given[BLOCK + 2..]].concat()
                });
                let results = results.collect();
                model.put(*lba, results);
            }
        }
        _ => unreachable!("no write"),
    }
}

fn check(host: &mut Host, model: &mut Model, doing: &Doing) {
    match doing {
        Doing::Read { lba, count, value } => {
            let reply = host.run(&cdb16(0x88, field(*value), *lba, *count as u32), &[]);
            expect(&reply, model.check_all(model.medium(*lba, *count), *value), doing);
            if reply.status == Status::Good {
                let blocks: Vec<Stored> =
                    model.medium(*lba, *count).map(|(block, _)| block.clone()).collect();
                assert!(reply.data == on_the_wire(&blocks, *value), "{doing:?}");
            }
        }
        Doing::Verify { lba, count, value } => {
            let reply = host.run(&cdb16(0x8f, field(*value), *lba, *count as u32), &[]);
            expect(&reply, model.check_all(model.medium(*lba, *count), *value), doing);
        }
        Doing::Unmap { lba, count } => {
            let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
            list.extend(lba.to_be_bytes());
            list.extend((*count as u32).to_be_bytes());
            list.extend([0; 4]);
            host.good(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list);
            model.put(*lba, vec![[vec![0; BLOCK], vec![0xff; 8]].concat(); *count as usize]);
        }
        Doing::Damage { lba, bit } => {
            let (byte, mask) = (bit / 8, 1 << (bit % 8));
            let index = *lba as usize;
            model.blocks[index][byte] ^= mask;
            match byte.checked_sub(BLOCK) {
                None => host.disk.bytes[index * BLOCK + byte] ^= mask,
                Some(byte) => {
                    let mut bytes = information_of(host, index);
                    bytes[byte] ^= mask;
                    set_information(host, index, bytes);
                }
            }
        }
        _ => check_write(host, model, doing),
    }
}

proptest! {
    #![proptest_config(cases(256))]

    /// SBC-3: WRPROTECT, ORPROTECT.
    #[test]
    fn every_command_does_what_the_model_does(
        kind in prop_oneof![Just(ProtectionType::Type1), Just(ProtectionType::Type3)],
        doings in prop::collection::vec(doings(), 1..25),
    ) {
        let mut host = Host::new(protected(kind));
        let blank = [vec![0; BLOCK], vec![0xff; 8]].concat();
        let mut model = Model { kind, blocks: vec![blank; AREA as usize] };
        for doing in &doings {
            check(&mut host, &mut model, doing);
            for (index, stored) in model.blocks.iter().enumerate() {
                prop_assert_eq!(&host.disk.bytes[index * BLOCK..(index + 1) * BLOCK], &stored[..BLOCK]);
                prop_assert_eq!(&information_of(&host, index)[..], &stored[BLOCK..], "{:?}", doing);
            }
        }
    }
}
