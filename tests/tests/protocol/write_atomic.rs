//! WRITE ATOMIC over sessions and reactors (SBC-4): nobody sees a part of it, and who is refused has changed nothing.

use std::thread;

use lunette_block::OperationKind;
use lunette_block::fault::{Effect, Errno, Rule, When};
use lunette_tests::in_process::InProcess;
use lunette_tests::raw::{BLOCK_BYTES, Raw, plain};
use lunette_wire::initiator::{ScsiCommand, TaskManagementFunction};

use crate::{A_WHILE, COMPLETE, DISK};

/// Over the boundary between two chunks of a store in memory, which would let half of a plain write be seen.
const LBA: u8 = 120;
const BLOCKS: u8 = 16;
const LENGTH: usize = BLOCKS as usize * BLOCK_BYTES;

fn write_atomic() -> ScsiCommand {
    let mut cdb = [0; 16];
    (cdb[0], cdb[9], cdb[13]) = (0x9c, LBA, BLOCKS);
    ScsiCommand { write: true, cdb, expected_data_transfer_length: LENGTH as u32, ..plain() }
}

/// What is there, which must be of one write.
fn look(session: &mut Raw) -> u8 {
    let tag = session.read(0, LBA.into(), BLOCKS.into()).expect("sent");
    let (found, _) = session.data_in(tag).expect("a read");
    assert_eq!(found, vec![found[0]; LENGTH], "parts of several writes");
    found[0]
}

#[test]
fn readers_see_whole_writes_of_any_session() {
    const ROUNDS: u8 = 200;
    let target = InProcess::start(&[DISK]);
    let writers: Vec<_> = (1..=2)
        .map(|port| {
            let mut session = target.session(port);
            thread::spawn(move || {
                for round in 1..=ROUNDS {
                    let tag = session.command(&write_atomic(), &vec![round; LENGTH]).expect("sent");
                    session.good(tag).expect("a write");
                }
            })
        })
        .collect();
    let mut session = target.session(3);
    while look(&mut session) < ROUNDS {}
    writers.into_iter().for_each(|writer| writer.join().expect("all its writes"));
}

/// An abort waits for the store: afterwards all of it is there (docs/decisions/0005).
#[test]
fn an_aborted_one_is_whole_or_not_there() {
    let target = InProcess::start(&[DISK]);
    let (mut writing, mut looking) = (target.session(1), target.session(2));
    target.hold(0, OperationKind::WriteAtomic);
    let cmd_sn = writing.cmd_sn;
    let write = writing.command(&write_atomic(), &[5; LENGTH]).expect("sent");
    target.wait_for_calls(0, OperationKind::WriteAtomic, 1);
    let read = looking.read(0, LBA.into(), 1).expect("sent");
    looking.waits(A_WHILE).expect("it may not look at the medium now");
    let abort = writing.manage_task(TaskManagementFunction::AbortTask, 0, write, cmd_sn).expect("sent");
    writing.waits(A_WHILE).expect("the store has it");
    target.faults(0).clear();
    assert_eq!(writing.managed(abort).expect("an answer"), COMPLETE);
    assert_eq!(looking.data_in(read).expect("a read").0, [5; BLOCK_BYTES]);
    assert_eq!(look(&mut looking), 5);
}

#[test]
fn a_failed_one_is_not_there() {
    let target = InProcess::start(&[DISK]);
    let mut session = target.session(1);
    let full = Rule::new(OperationKind::WriteAtomic, When::Nth(1), Effect::Fail(Errno::NOSPC));
    target.faults(0).add(full);
    let tag = session.command(&write_atomic(), &[5; LENGTH]).expect("sent");
    assert_eq!(session.ending(tag).expect("an answer").codes(), (7, 0x27, 7));
    // Half of its data, as its initiator announces.
    let half = ScsiCommand { expected_data_transfer_length: LENGTH as u32 / 2, ..write_atomic() };
    let tag = session.command(&half, &[6; LENGTH / 2]).expect("sent");
    assert_eq!(session.ending(tag).expect("an answer").codes(), (5, 0x0e, 3));
    assert_eq!(look(&mut session), 0);
}
