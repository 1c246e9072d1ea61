//! Merged commands beside the same ones unmerged, on a disk of a few blocks.

use std::collections::BTreeMap;

use lunette_cases::cases;
use lunette_wire::target::Residual;
use proptest::prelude::*;

use super::*;
use crate::{CommandError, CommandId, Lun, Replay, Times};

const BLOCK: u32 = 512;

fn rule(_: LunField) -> Option<Merging> {
    Some(Merging { block_length_bytes: BLOCK, command_bytes_max: 8 * BLOCK })
}

fn lun(number: u16) -> Lun {
    Lun::new(number).unwrap()
}

fn cdb(opcode: u8, lba: u64, blocks: u16) -> Cdb {
    let (low, [a, b]) = ((lba as u32).to_be_bytes(), blocks.to_be_bytes());
    if opcode == READ_10 || opcode == WRITE_10 {
        return Cdb::from([opcode, 0, low[0], low[1], low[2], low[3], 0, a, b, 0]);
    }
    let mut bytes = [0; 16];
    bytes[0] = opcode;
    bytes[2..10].copy_from_slice(&lba.to_be_bytes());
    bytes[12..14].copy_from_slice(&[a, b]);
    Cdb::from(bytes)
}

fn read(lba: u64, blocks: u16) -> Command {
    let command = Command::new(lun(0), cdb(READ_10, lba, blocks));
    command.reading(vec![0; usize::from(blocks) * BLOCK as usize])
}

fn write(lba: u64, blocks: u16, with: u8) -> Command {
    let command = Command::new(lun(0), cdb(WRITE_16, lba, blocks));
    command.writing(vec![with; usize::from(blocks) * BLOCK as usize])
}

fn lengths(commands: Vec<Command>) -> Vec<usize> {
    let owned = commands.into_iter().map(|command| (command, ())).collect();
    merge(owned, rule).iter().map(|merged| merged.parts.0.len()).collect()
}

#[test]
fn neighbours_become_one() {
    assert_eq!(lengths(vec![read(0, 1), read(1, 2), read(3, 1)]), [3]);
    assert_eq!(lengths(vec![read(0, 1), write(9, 1, 1), read(1, 1), write(10, 1, 1)]), [2, 2]);
    let merged = merge(vec![(write(5, 1, 1), 'a'), (write(6, 2, 2), 'b')], rule).remove(0);
    assert_eq!(merged.command.cdb, cdb(WRITE_16, 5, 3));
    assert_eq!(merged.command.data, Data::Out([[1; 512], [2; 512], [2; 512]].concat()));
}

#[test]
fn what_is_not_alike_or_too_long_stays_alone() {
    assert_eq!(lengths(vec![read(0, 1), read(2, 1)]), [1, 1], "a gap");
    assert_eq!(lengths(vec![read(1, 1), read(0, 1)]), [1, 1], "backwards");
    assert_eq!(lengths(vec![read(0, 1), write(1, 1, 0)]), [1, 1], "not the same");
    assert_eq!(lengths(vec![read(0, 5), read(5, 3), read(8, 1)]), [2, 1], "as long as may be");
    assert_eq!(lengths(vec![write(0, 1, 1), write(1, 1, 1).replaying(Replay::Always)]), [1, 1]);
    let limited = read(1, 1).within(std::time::Duration::from_secs(1));
    assert_eq!(lengths(vec![read(0, 1), limited]), [1, 1]);
    let elsewhere = Command { lun: lun(1).field(), ..read(1, 1) };
    assert_eq!(lengths(vec![read(0, 1), elsewhere]), [1, 1]);
    assert_eq!(lengths(vec![read(0, 200), read(200, 1)]), [1, 1], "not small");
}

#[test]
fn nothing_is_merged_over_a_barrier_or_with_bits_set() {
    let mut fua = cdb(WRITE_10, 1, 1).bytes().to_vec();
    fua[1] = 0x08;
    let fua = Command { cdb: Cdb::new(&fua), ..write(1, 1, 1) };
    assert_eq!(lengths(vec![write(0, 1, 1), fua.clone(), write(2, 1, 1)]), [1, 1, 1]);
    assert_eq!(lengths(vec![write(0, 1, 1), fua, write(1, 1, 1)]), [1, 1, 1], "not over it");
    let flush = Command::new(lun(0), [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(lengths(vec![write(0, 1, 1), flush, write(1, 1, 1)]), [1, 1, 1]);
    let ordered = Command { attribute: TaskAttribute::Ordered, ..read(7, 1) };
    assert_eq!(lengths(vec![read(0, 1), ordered, read(1, 1)]), [1, 1, 1]);
}

#[test]
fn without_a_rule_nothing_changes() {
    let commands = vec![(read(0, 1), ()), (read(1, 1), ())];
    assert_eq!(merge(commands, |_| None).len(), 2);
}

fn completion(result: Result<Status, CommandError>, buffer: Vec<u8>, received: u32) -> Completion {
    let (id, times) = (CommandId { place: 0, serial: 0 }, Times::default());
    Completion { id, result, buffer, received, times, attempts: 1, session: 3 }
}

#[test]
fn each_owner_gets_its_part_and_the_session() {
    let merged = merge(vec![(read(0, 1), 'a'), (read(1, 2), 'b')], rule).remove(0);
    let (_, owners) = merged.into_parts();
    let data = [vec![1; 512], vec![2; 600], vec![0; 424]].concat();
    let answers = owners.answers(completion(Ok(Status::default()), data, 1112));
    let told: Vec<_> =
        answers.iter().map(|(owner, answer)| (*owner, answer.data().to_vec(), answer.session)).collect();
    assert_eq!(told, [('a', vec![1; 512], 3), ('b', vec![2; 600], 3)]);
}

#[test]
fn reads_that_fail_are_tried_alone_and_writes_fail_together() {
    let check = || Status { code: 2, residual: Residual::None, ..Status::default() };
    let merged = merge(vec![(read(0, 1), 'a'), (read(1, 2), 'b')], rule).remove(0);
    let failed = completion(Ok(check()), vec![0; 1536], 0);
    let again = merged.into_parts().1.again(&failed).unwrap();
    assert!(again.told.is_none());
    assert_eq!(again.commands, [(read(0, 1), 'a'), (read(1, 2), 'b')]);

    let merged = merge(vec![(write(0, 1, 7), 'a'), (write(1, 2, 8), 'b')], rule).remove(0);
    let (command, owners) = merged.into_parts();
    let Data::Out(sent) = command.data else { panic!("it writes") };
    let failed = completion(Ok(check()), sent, 0);
    let answers = owners.again(&failed).unwrap_err().answers(failed);
    assert!(answers.iter().all(|(_, answer)| answer.result == Ok(check())));
    assert_eq!(answers[1].1.buffer, vec![8; 1024], "each has its buffer back");

    let alone = merge(vec![(read(0, 1), 'a')], rule).remove(0).into_parts().1;
    assert!(alone.again(&completion(Ok(check()), vec![0; 512], 0)).is_err());
}

#[test]
fn one_of_the_reads_that_met_a_unit_attention_ends_with_it() {
    let merged = merge(vec![(read(0, 1), 'a'), (read(1, 2), 'b'), (read(3, 1), 'c')], rule).remove(0);
    // CAPACITY DATA HAS CHANGED
    let sense = vec![0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x2a, 9, 0, 0, 0, 0];
    let status = Status { code: 2, sense, residual: Residual::None, ..Status::default() };
    let failed = completion(Ok(status), vec![0; 2048], 0);
    let again = merged.into_parts().1.again(&failed).unwrap();
    let (owner, told) = again.told.expect("it is told");
    assert_eq!((owner, &told.result, told.buffer.len(), told.received), ('a', &failed.result, 512, 0));
    assert_eq!(again.commands, [(read(1, 2), 'b'), (read(3, 1), 'c')]);
}

/// Carries out a command on blocks that hold one byte each.
fn carry_out(disk: &mut BTreeMap<u64, u8>, command: &Command) -> Vec<u8> {
    let Some(place) = Place::of(command, BLOCK) else { return Vec::new() };
    let blocks = place.lba..place.end();
    match &command.data {
        Data::Out(data) => {
            disk.extend(blocks.zip(data.chunks(BLOCK as usize).map(|block| block[0])));
            data.clone()
        }
        _ => blocks.flat_map(|lba| [disk.get(&lba).copied().unwrap_or(0); BLOCK as usize]).collect(),
    }
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn it_makes_no_difference(
        steps in prop::collection::vec((any::<bool>(), 0u64..24, 1u16..5, 0u8..12), 0..40),
    ) {
        let mut next = 0;
        let commands: Vec<Command> = steps.iter().enumerate().map(|(index, (writes, lba, blocks, kind))| {
            // Mostly where the last one ended.
            let lba = if *kind < 8 { next } else { *lba };
            next = lba + u64::from(*blocks);
            match kind {
                0 => Command::new(lun(0), [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
                _ if *writes => write(lba, *blocks, index as u8 + 1),
                _ => read(lba, *blocks),
            }
        }).collect();
        let (mut plain, mut merged_disk) = (BTreeMap::new(), BTreeMap::new());
        let expected: Vec<Vec<u8>> =
            commands.iter().map(|command| carry_out(&mut plain, command)).collect();
        let mut told = vec![None; commands.len()];
        let owned = commands.into_iter().enumerate().map(|(index, command)| (command, index)).collect();
        for merged in merge(owned, rule) {
            let (command, owners) = merged.into_parts();
            let data = carry_out(&mut merged_disk, &command);
            prop_assert!(data.len() <= 8 * BLOCK as usize);
            let received = if matches!(command.data, Data::In(_)) { data.len() as u32 } else { 0 };
            for (index, answer) in owners.answers(completion(Ok(Status::default()), data, received)) {
                prop_assert!(told[index].replace(answer.buffer).is_none());
            }
        }
        let told: Vec<Vec<u8>> = told.into_iter().flatten().collect();
        prop_assert_eq!(told, expected);
        prop_assert_eq!(merged_disk, plain);
    }
}
