//! Copies in the task sets of the units that they read and write: who waits for their pieces, and for whom these wait
//! (SAM-5, task set management; SPC-4, third-party copies).

use std::sync::Arc;

use lunette_scsi::{Event, IoOutcome, Lun, Next, Nexus, Status, Task, Terms};

use crate::copying::{COPY, blocks, both, cdb, host, lid1};
use crate::host::*;
use crate::read_modify_write::{Woken, compare_and_write};

const FIRST: Lun = Lun::from_number(0);
const SECOND: Lun = Lun::from_number(1);
const NOTHING: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

/// A nexus to both units, and who of its commands was woken.
fn nexus() -> (Nexus, Arc<Woken>) {
    let host = host();
    let woken = Arc::new(Woken::default());
    let device = Arc::clone(host.nexus.device());
    let nexus = Nexus::new(device, host.nexus.target_port(), "other".into()).waking(Arc::clone(&woken) as _);
    for lun in [FIRST, SECOND] {
        assert!(matches!(Task::start(&nexus, lun, &[0]).1, Next::Done(_)));
    }
    (nexus, woken)
}

/// A command with its data, and what it wants then.
fn start(nexus: &Nexus, lun: Lun, cdb: &[u8], data: &[u8], key: u64) -> (Task, Next) {
    let (mut task, next) = Task::start_with(nexus, lun, cdb, &Terms { key, ..Terms::default() });
    assert!(matches!(next, Next::DataOut { .. }), "{next:?}");
    let next = task.resume(nexus, Event::DataOut(data));
    (task, next)
}

/// A copy of one block, in one piece, that has yet to do anything.
fn start_copy(nexus: &Nexus, lun: Lun, from: u16, to: u16, key: u64) -> Task {
    let list = lid1(0, 3, &both(), &blocks(from, to, 1, 0, 9));
    let (task, next) = start(nexus, lun, &cdb(&COPY, list.len()), &list, key);
    assert_eq!(next, Next::Yield);
    task
}

fn turn(task: &mut Task, nexus: &Nexus) -> Next {
    task.resume(nexus, Event::Turn { data_out: &NOTHING })
}

fn io(task: &mut Task, nexus: &Nexus) -> Next {
    task.resume(
        nexus,
        Event::Io { result: Ok(IoOutcome::Done), data_out: &NOTHING, medium: &NOTHING[..BLOCK] },
    )
}

fn is_good(next: &Next) -> bool {
    matches!(next, Next::Done(done) if done.status == Status::Good)
}

#[test]
fn a_compare_and_write_is_alone_with_copies_too() {
    let (nexus, woken) = nexus();
    let mut copy = start_copy(&nexus, FIRST, 0, 1, 1);
    assert!(matches!(turn(&mut copy, &nexus), Next::IoOn { .. }), "the read");
    assert_eq!(io(&mut copy, &nexus), Next::Yield);
    assert!(matches!(turn(&mut copy, &nexus), Next::IoOn { .. }), "the write");
    let swap = compare_and_write(0, 0, 1);
    let (mut swapping, next) = start(&nexus, SECOND, &swap, &NOTHING, 2);
    assert_eq!(next, Next::Wait, "for the write");
    let mut late = start_copy(&nexus, FIRST, 0, 1, 3);
    assert!(matches!(turn(&mut late, &nexus), Next::IoOn { .. }), "the other unit is free");
    assert_eq!(io(&mut late, &nexus), Next::Yield);
    assert_eq!(turn(&mut late, &nexus), Next::Wait, "behind the COMPARE AND WRITE");
    assert!(is_good(&io(&mut copy, &nexus)));
    assert_eq!(woken.take(), [2]);
    assert!(matches!(turn(&mut swapping, &nexus), Next::Io(_)));
    assert_eq!(turn(&mut late, &nexus), Next::Wait, "woken too soon");
    assert!(matches!(io(&mut swapping, &nexus), Next::Io(_)), "the write of an equal block");
    assert!(matches!(io(&mut swapping, &nexus), Next::Done(_)));
    assert_eq!(woken.take(), [3]);
    assert!(matches!(turn(&mut late, &nexus), Next::IoOn { .. }));
    assert!(is_good(&io(&mut late, &nexus)));
}

/// Each copy waits at the unit of the other for a command that must be alone there.
#[test]
fn copies_that_cross_do_not_wait_for_each_other() {
    let (nexus, woken) = nexus();
    let mut copies = [(FIRST, 0, 1, 1), (SECOND, 1, 0, 2)]
        .map(|(lun, from, to, key)| start_copy(&nexus, lun, from, to, key));
    for copy in &mut copies {
        assert!(matches!(turn(copy, &nexus), Next::IoOn { .. }), "the read");
    }
    let mut swaps = [(FIRST, 3), (SECOND, 4)].map(|(lun, key)| {
        let (task, next) = start(&nexus, lun, &compare_and_write(0, 0, 1), &NOTHING, key);
        assert_eq!(next, Next::Wait, "for a read");
        task
    });
    for copy in &mut copies {
        assert_eq!(io(copy, &nexus), Next::Yield);
    }
    assert_eq!(woken.take(), [3, 4], "data that waits to be written holds up nobody");
    for copy in &mut copies {
        assert_eq!(turn(copy, &nexus), Next::Wait);
    }
    for swap in &mut swaps {
        assert!(matches!(turn(swap, &nexus), Next::Io(_)));
        assert!(matches!(io(swap, &nexus), Next::Io(_)));
        assert!(matches!(io(swap, &nexus), Next::Done(_)));
    }
    assert_eq!(woken.take(), [1, 2]);
    for copy in &mut copies {
        assert!(matches!(turn(copy, &nexus), Next::IoOn { .. }), "the write");
        assert!(is_good(&io(copy, &nexus)));
    }
}

/// What reservations let a copy do is looked at after it can be waited for, not when its piece was asked for.
#[test]
fn a_piece_that_waited_is_looked_at_again() {
    let (nexus, _) = nexus();
    let holder = Nexus::new(Arc::clone(nexus.device()), nexus.target_port(), "holder".into());
    assert!(matches!(Task::start(&holder, SECOND, &[0]).1, Next::Done(_)));
    let mut copy = start_copy(&nexus, FIRST, 0, 1, 1);
    assert!(matches!(turn(&mut copy, &nexus), Next::IoOn { .. }));
    assert_eq!(io(&mut copy, &nexus), Next::Yield);
    let (mut register, mut reserve) = ([0; 24], [0; 24]);
    (register[15], reserve[7]) = (1, 1);
    for (action, list) in [(0, register), (1, reserve)] {
        let cdb = padded(&[0x5f, action, 1, 0, 0, 0, 0, 0, 24, 0]);
        assert!(is_good(&start(&holder, SECOND, &cdb, &list, 0).1));
    }
    let Next::Done(done) = turn(&mut copy, &nexus) else { panic!("the write was begun") };
    assert_eq!(done.status, Status::CheckCondition);
}

#[test]
fn a_copy_that_is_given_up_holds_nobody() {
    let (nexus, woken) = nexus();
    let swap = compare_and_write(0, 0, 1);
    // While it is being done, and while it waits to be.
    let mut running = start_copy(&nexus, SECOND, 1, 0, 1);
    assert!(matches!(turn(&mut running, &nexus), Next::IoOn { .. }), "a read of the second unit");
    let (mut swapping, next) = start(&nexus, SECOND, &swap, &NOTHING, 2);
    assert_eq!(next, Next::Wait);
    let mut waiting = start_copy(&nexus, FIRST, 1, 0, 3);
    assert_eq!(turn(&mut waiting, &nexus), Next::Wait);
    running.abandon(&nexus);
    assert_eq!(woken.take(), [2]);
    waiting.abandon(&nexus);
    assert!(matches!(turn(&mut swapping, &nexus), Next::Io(_)));
    swapping.abandon(&nexus);
    assert!(matches!(start(&nexus, SECOND, &swap, &NOTHING, 4).1, Next::Io(_)));
    assert!(matches!(start(&nexus, FIRST, &swap, &NOTHING, 5).1, Next::Io(_)));
}
