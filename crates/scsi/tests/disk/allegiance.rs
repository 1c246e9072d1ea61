//! Auto contingent allegiance (SAM-5, 5.9), and commands that are aborted because another has failed (SPC-4, QERR).

use std::sync::{Arc, Mutex};

use lunette_scsi::{
    Attribute, Completion, Device, Event, Io, IoOutcome, Lun, Next, Nexus, Saved, Status, Task, Terms, Wake,
};

use crate::copying;
use crate::host::*;

const NACA: u8 = 0x04;

/// Keeps the keys that were woken.
#[derive(Debug, Default)]
struct Woken(Mutex<Vec<u64>>);

impl Wake for Woken {
    fn wake(&self, key: u64) {
        self.0.lock().expect("no test fails with it").push(key);
    }
}

/// Two nexuses to one unit, which have heard of their POWER ON.
pub(crate) struct Pair {
    pub(crate) first: Nexus,
    pub(crate) second: Nexus,
    woken: Arc<Woken>,
}

impl Pair {
    pub(crate) fn new() -> Pair {
        Pair::on(device(config()))
    }

    pub(crate) fn on(device: Arc<Device>) -> Pair {
        let woken = Arc::<Woken>::default();
        let nexus = |name: &str| {
            let nexus = Nexus::new(Arc::clone(&device), device.ports()[0], name.into());
            let nexus = nexus.waking(Arc::clone(&woken) as _);
            assert_eq!(status(&nexus, &[0], Attribute::Simple), Status::CheckCondition, "POWER ON");
            nexus
        };
        let (first, second) = (nexus("iqn.a,i,0x1"), nexus("iqn.b,i,0x2"));
        Pair { first, second, woken }
    }

    pub(crate) fn woken(&self) -> Vec<u64> {
        std::mem::take(&mut *self.woken.0.lock().expect("no test fails with it"))
    }
}

pub(crate) fn start(nexus: &Nexus, cdb: &[u8], attribute: Attribute, key: u64) -> (Task, Next) {
    let lun = nexus.luns().next().expect("a unit");
    Task::start_with(nexus, lun, &padded(cdb), &Terms { attribute, key, ..Terms::default() })
}

pub(crate) fn done(next: Next) -> Completion {
    match next {
        Next::Done(completion) => completion,
        other => panic!("{other:?}"),
    }
}

/// The status of a command that ends at once.
fn status(nexus: &Nexus, cdb: &[u8], attribute: Attribute) -> Status {
    done(start(nexus, cdb, attribute, 0).1).status
}

fn code(completion: &Completion) -> (u8, u8) {
    completion.sense.as_ref().map_or((0, 0), |sense| (sense.key(), sense.asc()))
}

/// The operation that a task asked for is done.
pub(crate) fn io(task: &mut Task, nexus: &Nexus, medium: &[u8]) -> Next {
    task.resume(nexus, Event::Io { result: Ok(IoOutcome::Done), data_out: &[], medium })
}

/// A command that cannot be: INQUIRY of a page without EVPD, with NACA or without.
fn wrong(naca: u8) -> [u8; 6] {
    [0x12, 0, 1, 0, 255, naca]
}

const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
pub(crate) const WRITE: [u8; 10] = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];
const READY: [u8; 6] = [0; 6];
const READY_NACA: [u8; 6] = [0, 0, 0, 0, 0, NACA];

pub(crate) const MARK: [u8; 10] = [0x3f, 0x40, 0, 0, 0, 0, 0, 0, 0, 0];

/// Has the first nexus establish an allegiance.
pub(crate) fn establish(pair: &Pair) {
    assert_eq!(status(&pair.first, &wrong(NACA), Attribute::Simple), Status::CheckCondition);
}

/// SAM-5, tables 37 and 38: who may come while an allegiance stands.
#[test]
fn an_allegiance_keeps_new_commands_out() {
    let pair = Pair::new();
    assert_eq!(status(&pair.first, &wrong(0), Attribute::Simple), Status::CheckCondition);
    assert_eq!(
        status(&pair.first, &READY_NACA, Attribute::Simple),
        Status::Good,
        "without NACA nothing began"
    );
    establish(&pair);
    for attribute in [Attribute::Simple, Attribute::Ordered, Attribute::HeadOfQueue] {
        for cdb in
            [&READY[..], &READY_NACA, &READ, &wrong(0), &[0x12, 0, 0, 0, 36, 0], &[0x03, 0, 0, 0, 18, 0]]
        {
            assert_eq!(status(&pair.first, cdb, attribute), Status::AcaActive, "{cdb:02x?}");
        }
        assert_eq!(status(&pair.second, &READY, attribute), Status::Busy);
        assert_eq!(status(&pair.second, &[0x12, 0, 0, 0, 36, 0], attribute), Status::Busy, "INQUIRY");
        assert_eq!(status(&pair.second, &READY_NACA, attribute), Status::AcaActive);
    }
    assert_eq!(status(&pair.second, &READY, Attribute::Aca), Status::Busy);
    assert_eq!(status(&pair.first, &READY, Attribute::Aca), Status::Good);
    assert_eq!(status(&pair.first, &[0x12, 0, 0, 0, 36, 0], Attribute::Aca), Status::Good);
    pair.second.clear_aca(lun(&pair.second));
    assert_eq!(status(&pair.second, &READY, Attribute::Simple), Status::Busy, "it is not theirs to clear");
    pair.first.clear_aca(lun(&pair.first));
    assert_eq!(status(&pair.second, &READY, Attribute::Simple), Status::Good);
    assert_eq!(status(&pair.first, &READY, Attribute::Simple), Status::Good);
}

pub(crate) fn lun(nexus: &Nexus) -> lunette_scsi::Lun {
    nexus.luns().next().expect("a unit")
}

/// SAM-5, 8.6: the ACA attribute means something while an allegiance stands, and for one command at a time.
#[test]
fn the_aca_attribute_is_for_one_command_of_the_faulted_nexus() {
    let pair = Pair::new();
    let refused = done(start(&pair.first, &READY, Attribute::Aca, 0).1);
    assert_eq!(code(&refused), (5, 0x49), "INVALID MESSAGE ERROR");
    assert_eq!(status(&pair.first, &READY, Attribute::Simple), Status::Good);
    establish(&pair);
    let (mut task, next) = start(&pair.first, &READ, Attribute::Aca, 0);
    assert!(matches!(next, Next::Io(Io::Read { .. })));
    assert_eq!(status(&pair.first, &READY, Attribute::Aca), Status::AcaActive, "there is one already");
    assert_eq!(done(io(&mut task, &pair.first, &[0; BLOCK])).status, Status::Good);
    assert_eq!(status(&pair.first, &READY, Attribute::Aca), Status::Good);
    // The ACA attribute with NACA, where nothing stands: the CHECK CONDITION begins one.
    pair.first.clear_aca(lun(&pair.first));
    assert_eq!(status(&pair.first, &READY_NACA, Attribute::Aca), Status::CheckCondition);
    assert_eq!(status(&pair.second, &READY, Attribute::Simple), Status::Busy);
}

/// SAM-5, 5.9.5: an ACA command that fails ends the allegiance, or begins another.
#[test]
fn an_aca_command_that_fails_ends_it_or_begins_another() {
    let pair = Pair::new();
    establish(&pair);
    assert_eq!(status(&pair.first, &wrong(NACA), Attribute::Aca), Status::CheckCondition);
    assert_eq!(status(&pair.second, &READY, Attribute::Simple), Status::Busy, "another one");
    assert_eq!(status(&pair.first, &wrong(0), Attribute::Aca), Status::CheckCondition);
    assert_eq!(status(&pair.second, &READY, Attribute::Simple), Status::Good);
}

/// SAM-5, blocked task state: nothing goes on or ends until the allegiance does.
#[test]
fn commands_that_have_begun_are_blocked() {
    let pair = Pair::new();
    let (mut at_medium, next) = start(&pair.second, &READ, Attribute::Simple, 1);
    assert!(matches!(next, Next::Io(_)));
    let (mut collecting, next) = start(&pair.second, &WRITE, Attribute::Simple, 2);
    assert!(matches!(next, Next::DataOut { .. }));
    collecting.collects(&pair.second);
    let (mut of_first, next) = start(&pair.first, &WRITE, Attribute::Simple, 3);
    assert!(matches!(next, Next::DataOut { .. }));
    establish(&pair);
    let data = [7; BLOCK];
    assert_eq!(io(&mut at_medium, &pair.second, &data), Next::Wait, "it does not end");
    assert_eq!(collecting.resume(&pair.second, Event::DataOut(&data)), Next::Wait, "its data may come");
    assert_eq!(of_first.resume(&pair.first, Event::DataOut(&data)), Next::Wait);
    assert_eq!(pair.woken(), []);
    for (task, nexus) in [(&mut at_medium, &pair.second), (&mut collecting, &pair.second)] {
        assert_eq!(task.resume(nexus, Event::Turn { data_out: &data }), Next::Wait, "woken by mistake");
    }
    // Who has to be alone at the medium is not kept from it by those.
    let (mut alone, next) =
        start(&pair.first, &[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], Attribute::Aca, 4);
    assert!(matches!(next, Next::DataOut { .. }));
    let next = alone.resume(&pair.first, Event::DataOut(&[0; 2 * BLOCK]));
    assert!(matches!(next, Next::Io(Io::Read { .. })), "{next:?}");
    let next = alone.resume(
        &pair.first,
        Event::Io { result: Ok(IoOutcome::Done), data_out: &[0; 2 * BLOCK], medium: &[0; BLOCK] },
    );
    assert!(matches!(next, Next::Io(_)), "{next:?}");
    let next = alone.resume(
        &pair.first,
        Event::Io { result: Ok(IoOutcome::Done), data_out: &[0; 2 * BLOCK], medium: &[0; BLOCK] },
    );
    assert_eq!(done(next).status, Status::Good);
    pair.first.clear_aca(lun(&pair.first));
    let mut woken = pair.woken();
    woken.sort_unstable();
    assert_eq!(woken, [1, 2, 3]);
    let ended = done(at_medium.resume(&pair.second, Event::Turn { data_out: &[] }));
    assert_eq!(ended.status, Status::Good);
    for (task, nexus) in [(&mut collecting, &pair.second), (&mut of_first, &pair.first)] {
        let next = task.resume(nexus, Event::Turn { data_out: &data });
        assert!(matches!(next, Next::Io(Io::WriteDataOut { .. })), "{next:?}");
        assert_eq!(done(io(task, nexus, &[])).status, Status::Good);
    }
}

/// What a command with the ACA attribute has done to the unit keeps others from it that were at its medium before, as it keeps those that
/// waited elsewhere.
#[test]
fn a_write_that_was_held_back_meets_the_unit_as_it_is_then() {
    const STOP: [u8; 6] = [0x1b, 0, 0, 0, 0, 0];
    const WRITE_SAME: [u8; 16] = [0x93, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0];
    for stops in [false, true] {
        let pair = Pair::new();
        let (mut same, next) = start(&pair.second, &WRITE_SAME, Attribute::Simple, 1);
        assert!(matches!(next, Next::DataOut { .. }), "{next:?}");
        let data = [7; BLOCK];
        let next = same.resume(&pair.second, Event::DataOut(&data));
        assert!(matches!(next, Next::Io(Io::WriteOwned { .. })), "{next:?}");
        establish(&pair);
        let piece = Event::Io { result: Ok(IoOutcome::Done), data_out: &data, medium: &[] };
        assert_eq!(same.resume(&pair.second, piece), Next::Wait, "the next piece is held back");
        if stops {
            let (mut stop, mut next) = start(&pair.first, &STOP, Attribute::Aca, 2);
            while let Next::Io(_) = next {
                next = io(&mut stop, &pair.first, &[]);
            }
            assert_eq!(done(next).status, Status::Good);
        }
        pair.first.clear_aca(lun(&pair.first));
        let next = same.resume(&pair.second, Event::Turn { data_out: &data });
        if stops {
            assert_eq!(code(&done(next)), (2, 0x04), "NOT READY");
        } else {
            assert!(matches!(next, Next::Io(Io::WriteOwned { .. })), "{next:?}");
        }
    }
}

/// A copy with the ACA attribute passes the allegiance of the unit that it was sent to, and no other: elsewhere it is as any SIMPLE
/// command.
#[test]
fn a_copy_does_not_pass_the_allegiance_of_another_unit() {
    let host = copying::host();
    let pair = Pair::on(Arc::clone(host.nexus.device()));
    let second = Lun::from_number(1);
    for nexus in [&pair.first, &pair.second] {
        assert!(matches!(Task::start(nexus, second, &padded(&[0])).1, Next::Done(_)), "POWER ON");
    }
    establish(&pair);
    let (_, next) = Task::start(&pair.second, second, &padded(&wrong(NACA)));
    assert_eq!(done(next).status, Status::CheckCondition);
    let list = copying::lid1(0, 3, &copying::both(), &copying::blocks(0, 1, 1, 0, 0));
    let cdb = copying::cdb(&copying::COPY, list.len());
    let (mut copy, next) = start(&pair.first, &cdb, Attribute::Aca, 1);
    assert!(matches!(next, Next::DataOut { .. }), "{next:?}");
    assert_eq!(copy.resume(&pair.first, Event::DataOut(&list)), Next::Yield);
    let turn = |copy: &mut Task| copy.resume(&pair.first, Event::Turn { data_out: &list });
    let piece = |copy: &mut Task| {
        let event = Event::Io { result: Ok(IoOutcome::Done), data_out: &list, medium: &[0; BLOCK] };
        copy.resume(&pair.first, event)
    };
    assert!(matches!(turn(&mut copy), Next::IoOn { .. }), "the read of its own unit");
    assert_eq!(piece(&mut copy), Next::Yield);
    assert_eq!(turn(&mut copy), Next::Wait, "the write of the other one");
    pair.woken();
    pair.second.clear_aca(second);
    assert_eq!(pair.woken(), [1]);
    assert!(matches!(turn(&mut copy), Next::IoOn { .. }));
    assert_eq!(done(piece(&mut copy)).status, Status::Good);
}

/// A command that is alone at the medium is seen as one: it ends there, and only its answer waits.
#[test]
fn who_is_alone_at_the_medium_is_blocked_behind_it() {
    let pair = Pair::new();
    let compare = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    let (mut alone, _) = start(&pair.second, &compare, Attribute::Simple, 1);
    let data = [0; 2 * BLOCK];
    assert!(matches!(alone.resume(&pair.second, Event::DataOut(&data)), Next::Io(Io::Read { .. })));
    establish(&pair);
    let (mut aborted, next) = start(&pair.first, &READ, Attribute::Aca, 3);
    assert_eq!(next, Next::Wait, "another is alone");
    assert_eq!(status(&pair.first, &READY, Attribute::Aca), Status::AcaActive);
    aborted.abandon(&pair.first);
    let (mut aca, next) = start(&pair.first, &READ, Attribute::Aca, 2);
    assert_eq!(next, Next::Wait);
    let event = || Event::Io { result: Ok(IoOutcome::Done), data_out: &data, medium: &data[..BLOCK] };
    assert!(matches!(alone.resume(&pair.second, event()), Next::Io(_)), "it writes");
    assert_eq!(alone.resume(&pair.second, event()), Next::Wait, "its answer waits");
    assert_eq!(pair.woken(), [2]);
    assert!(matches!(aca.resume(&pair.first, Event::Turn { data_out: &[] }), Next::Io(Io::Read { .. })));
    assert_eq!(done(io(&mut aca, &pair.first, &data[..BLOCK])).status, Status::Good);
    pair.first.clear_aca(lun(&pair.first));
    assert_eq!(pair.woken(), [1]);
    assert_eq!(done(alone.resume(&pair.second, Event::Turn { data_out: &[] })).status, Status::Good);
}

/// A read that was to be sent from the medium is kept back with its answer, and keeps nobody from being alone there.
#[test]
fn a_blocked_read_does_not_count_as_being_sent() {
    let pair = Pair::new();
    let (mut read, next) = start(&pair.second, &READ, Attribute::Simple, 1);
    assert!(matches!(next, Next::Io(Io::Read { .. })), "{next:?}");
    establish(&pair);
    let unsent = read.send_later(&pair.second).expect("a unit");
    assert_eq!(io(&mut read, &pair.second, &[]), Next::Wait);
    // START STOP UNIT (stop) is alone at the medium.
    let (mut stop, mut next) = start(&pair.first, &[0x1b, 0, 0, 0, 0, 0], Attribute::Aca, 2);
    while let Next::Io(_) = next {
        next = io(&mut stop, &pair.first, &[]);
    }
    assert_eq!(done(next).status, Status::Good);
    pair.first.clear_aca(lun(&pair.first));
    assert_eq!(pair.woken(), [1]);
    assert_eq!(done(read.resume(&pair.second, Event::Turn { data_out: &[] })).status, Status::Good);
    drop(unsent);
}

/// Two commands with NACA fail at the same time: the second is blocked, and begins its own allegiance afterwards.
/// SAM-5: 5.9 at most one.
#[test]
fn allegiances_follow_one_another() {
    let pair = Pair::new();
    let mut with_naca = READ;
    with_naca[9] = NACA;
    let (mut second, next) = start(&pair.second, &with_naca, Attribute::Ordered, 1);
    assert!(matches!(next, Next::Io(_)));
    establish(&pair);
    let failed = Event::Io { result: Err(lunette_scsi::IoError::Hardware), data_out: &[], medium: &[] };
    assert_eq!(second.resume(&pair.second, failed), Next::Wait);
    pair.first.clear_aca(lun(&pair.first));
    assert_eq!(status(&pair.first, &READY, Attribute::Simple), Status::Good, "it has not been told yet");
    assert_eq!(code(&done(second.resume(&pair.second, Event::Turn { data_out: &[] }))), (4, 0x44));
    assert_eq!(status(&pair.first, &READY, Attribute::Simple), Status::Busy);
    assert_eq!(status(&pair.second, &READY, Attribute::Simple), Status::AcaActive);
    pair.second.clear_aca(lun(&pair.second));
    assert_eq!(status(&pair.first, &READY, Attribute::Simple), Status::Good);
}

/// SAM-5, 5.9.5: resets and the loss of the nexus end it.
#[test]
fn resets_and_losses_end_it() {
    let pair = Pair::new();
    establish(&pair);
    assert!(pair.second.logical_unit_reset(lun(&pair.second)));
    assert_eq!(status(&pair.first, &READY, Attribute::Simple), Status::CheckCondition, "the reset is told");
    assert_eq!(status(&pair.second, &READY, Attribute::Simple), Status::CheckCondition);
    establish(&pair);
    pair.second.reset();
    assert_eq!(status(&pair.second, &READY, Attribute::Simple), Status::Busy, "it was not their nexus");
    pair.first.reset();
    assert_eq!(status(&pair.second, &READY, Attribute::Simple), Status::CheckCondition, "their own loss");
    assert_eq!(status(&pair.second, &READY, Attribute::Simple), Status::Good);
    assert_eq!(status(&pair.first, &READY, Attribute::Simple), Status::CheckCondition);
    establish(&pair);
    let Pair { first, second, .. } = pair;
    drop(first);
    assert_eq!(status(&second, &READY, Attribute::Simple), Status::Good);
}

/// Runs PERSISTENT RESERVE OUT.
fn reserve_out(nexus: &Nexus, action: u8, keys: [u64; 2], steps: &mut Vec<Io>) -> Status {
    let mut list = [0; 24];
    list[..8].copy_from_slice(&keys[0].to_be_bytes());
    list[8..16].copy_from_slice(&keys[1].to_be_bytes());
    let (mut task, mut next) = start(nexus, &[0x5f, action, 1, 0, 0, 0, 0, 0, 24, 0], Attribute::Ordered, 9);
    loop {
        next = match next {
            Next::DataOut { .. } => {
                task.collects(nexus);
                task.resume(nexus, Event::DataOut(&list))
            }
            Next::Io(step) => {
                steps.push(step);
                io(&mut task, nexus, &[])
            }
            next => return done(next).status,
        };
    }
}

/// SPC-4, PREEMPT AND ABORT: it is let in while an allegiance stands, and ends that of a nexus whose commands it aborts.
#[test]
fn preempt_and_abort_ends_it() {
    let pair = Pair::new();
    let mut steps = Vec::new();
    assert_eq!(reserve_out(&pair.first, 0, [0, 1], &mut steps), Status::Good);
    assert_eq!(reserve_out(&pair.second, 0, [0, 2], &mut steps), Status::Good);
    let (mut blocked, _) = start(&pair.second, &READ, Attribute::Simple, 1);
    establish(&pair);
    assert_eq!(io(&mut blocked, &pair.second, &[0; BLOCK]), Next::Wait);
    assert_eq!(reserve_out(&pair.second, 4, [2, 1], &mut steps), Status::Busy, "PREEMPT alone is not let in");
    assert_eq!(steps, []);
    assert_eq!(reserve_out(&pair.second, 5, [2, 1], &mut steps), Status::Good);
    assert!(matches!(&steps[..], [Io::AbortTasks { nexuses, is_told: false }] if nexuses.len() == 1));
    assert_eq!(pair.woken(), [1]);
    assert_eq!(done(blocked.resume(&pair.second, Event::Turn { data_out: &[] })).status, Status::Good);
    assert_eq!(status(&pair.second, &READY, Attribute::Simple), Status::Good);
}

/// Has MODE SELECT set QERR.
fn select_queue_error(nexus: &Nexus, bits: u8) {
    let list = [0, 0, 0, 0, 0x0a, 0x0a, 0, 0x10 | bits << 1, 0, 0, 0, 0, 0, 0, 0, 0];
    let (mut task, next) = start(nexus, &[0x15, 0x10, 0, 0, 16, 0], Attribute::Simple, 0);
    assert!(matches!(next, Next::DataOut { .. }));
    assert_eq!(done(task.resume(nexus, Event::DataOut(&list))).status, Status::Good);
}

/// SPC-4, QERR: whose commands are aborted before a CHECK CONDITION is sent.
#[test]
fn a_failed_command_aborts_others_where_that_is_asked_for() {
    let pair = Pair::new();
    for (bits, expected) in [(1, 2), (3, 1), (0, 0)] {
        select_queue_error(&pair.first, bits);
        // Fetched, that the mode has changed is no failure.
        assert_eq!(status(&pair.second, &[0x03, 0, 0, 0, 18, 0], Attribute::Simple), Status::Good);
        for naca in [0, NACA] {
            let (mut task, next) = start(&pair.first, &wrong(naca), Attribute::Simple, 0);
            let next = match next {
                Next::Io(Io::AbortTasks { nexuses, is_told: true }) => {
                    assert_eq!(nexuses.len(), expected, "QERR {bits:02b}");
                    assert!(nexuses.contains(pair.first.name()));
                    io(&mut task, &pair.first, &[])
                }
                next => {
                    assert_eq!(expected, 0);
                    next
                }
            };
            assert_eq!(code(&done(next)), (5, 0x24));
            assert!(!task.is_open());
            let expected = if naca == 0 { Status::Good } else { Status::Busy };
            assert_eq!(status(&pair.second, &READY, Attribute::Simple), expected);
            pair.first.clear_aca(lun(&pair.first));
        }
    }
}

/// A blocked command that is aborted leaves nothing behind.
#[test]
fn blocked_commands_can_be_aborted() {
    let pair = Pair::new();
    let begin = |key| start(&pair.second, &READ, Attribute::Ordered, key);
    let (mut first, next) = begin(1);
    assert!(matches!(next, Next::Io(_)));
    let (mut dormant, next) = begin(2);
    assert_eq!(next, Next::Wait);
    establish(&pair);
    assert_eq!(io(&mut first, &pair.second, &[0; BLOCK]), Next::Wait);
    assert!(first.is_open() && dormant.is_open());
    first.abandon(&pair.second);
    assert_eq!(pair.woken(), [], "the dormant one waits for more");
    dormant.abandon(&pair.second);
    pair.first.clear_aca(lun(&pair.first));
    assert_eq!(pair.woken(), []);
    assert_eq!(status(&pair.second, &READY, Attribute::Ordered), Status::Good);
}

/// A unit that is not there establishes nothing, and says so.
#[test]
fn a_missing_unit_has_no_allegiance() {
    let pair = Pair::new();
    let lun = lunette_scsi::Lun::from_number(7);
    let (_, next) = Task::start(&pair.first, lun, &padded(&[0x12, 0, 0, 0, 36, NACA]));
    assert_eq!(code(&done(next)), (5, 0x24));
    assert_eq!(status(&pair.first, &READY, Attribute::Simple), Status::Good);
}

/// A write that meets a marked block is blocked before it is at the medium, as every other, and goes on with the mark.
#[test]
fn writes_to_marked_blocks_are_blocked() {
    let pair = Pair::on(device_keeping(config(), Saved::Nothing));
    let (mut marks, next) = start(&pair.first, &MARK, Attribute::Simple, 0);
    assert_eq!(next, Next::Io(Io::SaveState));
    assert_eq!(done(io(&mut marks, &pair.first, &[])).status, Status::Good);
    let data = [7; BLOCK];
    let (mut blocked, _) = start(&pair.second, &WRITE, Attribute::Simple, 1);
    let (mut aborted, _) = start(&pair.second, &WRITE, Attribute::Simple, 2);
    establish(&pair);
    for task in [&mut blocked, &mut aborted] {
        assert_eq!(task.resume(&pair.second, Event::DataOut(&data)), Next::Wait);
    }
    aborted.abandon(&pair.second);
    pair.first.clear_aca(lun(&pair.first));
    assert_eq!(pair.woken(), [1]);
    let next = blocked.resume(&pair.second, Event::Turn { data_out: &data });
    assert!(matches!(next, Next::Io(Io::WriteDataOut { .. })), "{next:?}");
    assert_eq!(io(&mut blocked, &pair.second, &[]), Next::Io(Io::Flush));
    assert_eq!(io(&mut blocked, &pair.second, &[]), Next::Io(Io::SaveState));
    assert_eq!(done(io(&mut blocked, &pair.second, &[])).status, Status::Good);
    // Nothing is left in the task set that one that is alone would wait for.
    assert_eq!(status(&pair.first, &READY, Attribute::Ordered), Status::Good);
}

/// The CONTROL byte of a variable-length CDB is byte 1 (SPC-4, 4.3.3), also where there is no such command.
#[test]
fn variable_length_cdbs_ask_for_it_in_byte_1() {
    let mut read_32 = [0; 32];
    (read_32[0], read_32[7], read_32[9], read_32[31]) = (0x7f, 24, 0x09, 1);
    for (at, after) in [(15, Status::Good), (5, Status::Good), (1, Status::Busy)] {
        let pair = Pair::new();
        let mut cdb = read_32;
        cdb[at] = NACA;
        let lun = pair.first.luns().next().expect("a unit");
        let failed = done(Task::start_with(&pair.first, lun, &cdb, &Terms::default()).1);
        assert_eq!(code(&failed), (5, 0x20));
        assert_eq!(status(&pair.second, &READY, Attribute::Simple), after, "byte {at}");
    }
}
