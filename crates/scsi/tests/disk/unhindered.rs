//! READ and WRITE that nothing stands in the way of, for a driver that ends them at once. That they are what a task asks for is held by
//! everything that begins its commands with [`begin`].

use std::sync::Arc;

use lunette_scsi::{
    Attribute, Ended, Io, LogicalUnitConfig, Next, Nexus, ProtectionType, Saved, Status, Task, Terms,
    Unhindered, Way,
};

use crate::allegiance::{MARK, Pair, WRITE, done, establish, io, lun, start};
use crate::cache_end::{WCE, set_cache, without_cache};
use crate::host::*;

const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];

fn way(nexus: &Nexus) -> Way<'_> {
    nexus.way_to(lun(nexus)).expect("it has a unit")
}

fn foreseen(nexus: &Nexus, cdb: &[u8], attribute: Attribute) -> Option<Io> {
    let terms = Terms { attribute, ..Terms::default() };
    Unhindered::begin(way(nexus), &padded(cdb), &terms).map(|command| command.io())
}

fn is_unhindered(nexus: &Nexus, cdb: &[u8]) -> bool {
    foreseen(nexus, cdb, Attribute::Simple).is_some()
}

#[test]
fn plain_reads_and_writes_of_every_length_are() {
    let host = Host::new(config());
    let (offset_bytes, length_bytes) = (5 * BLOCK as u64, 2 * BLOCK as u32);
    let read = Io::Read { offset_bytes, length_bytes, inspected: false };
    let write = |stable| Io::WriteDataOut { offset_bytes, start: 0, length_bytes, stable };
    let six = |opcode| [opcode, 0, 0, 5, 2, 0].to_vec();
    let twelve = |opcode, flags| [&[opcode, flags, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0][..]].concat();
    let of = |cdb: &[u8]| foreseen(&host.nexus, cdb, Attribute::Simple);
    assert_eq!(of(&six(8)), Some(read.clone()));
    assert_eq!(of(&six(10)), Some(write(false)));
    for (reads, writes) in
        [(cdb10(0x28, 0, 5, 2), cdb10(0x2a, 0, 5, 2)), (cdb16(0x88, 0, 5, 2), cdb16(0x8a, 0, 5, 2))]
    {
        assert_eq!((of(&reads), of(&writes)), (Some(read.clone()), Some(write(false))));
    }
    assert_eq!((of(&twelve(0xa8, 0)), of(&twelve(0xaa, 8))), (Some(read), Some(write(true))), "FUA");
    let without_cache = Host::new(without_cache());
    assert_eq!(foreseen(&without_cache.nexus, &cdb10(0x2a, 0, 5, 2), Attribute::Simple), Some(write(true)));
}

/// It is told of a command that has not been looked at, so whatever is in that.
#[test]
fn where_another_one_would_go_is_told_if_it_is_within_the_unit() {
    let host = Host::new(config());
    let (cdb, terms) = (padded(&READ), Terms::default());
    let read = Unhindered::begin(way(&host.nexus), &cdb, &terms).expect("nothing is there");
    let range = Some((5 * BLOCK as u64, 2 * BLOCK as u32));
    assert_eq!([cdb10(0x28, 0, 5, 2), cdb16(0x8a, 0, 5, 2)].map(|cdb| read.range_of(&cdb)), [range; 2]);
    let no_range =
        [cdb10(0x28, 0, BLOCKS as u32, 1), cdb16(0x88, 0, u64::MAX, 1), padded(&[0; 6]), [0xff; 16]];
    assert_eq!(no_range.map(|cdb| read.range_of(&cdb)), [None; 4]);
}

/// Each of these has more to do, or something to tell, and that is left for a task.
#[test]
fn what_is_not_plain_is_left_to_a_task() {
    let host = Host::new(config());
    for cdb in [
        cdb10(0x28, 8, 0, 1),
        cdb10(0x28, 0, 0, 0),
        cdb10(0x28, 0, BLOCKS as u32, 1),
        cdb10(0x28, 0x20, 0, 1),
        cdb10(0x28, 1, 0, 1),
        cdb10(0x2e, 0, 0, 1),
        cdb10(0x2f, 0, 0, 1),
        cdb16(0x89, 0, 0, 1),
        padded(&[0; 6]),
    ] {
        assert!(!is_unhindered(&host.nexus, &cdb), "{cdb:02x?}");
    }
    for attribute in [Attribute::Ordered, Attribute::HeadOfQueue, Attribute::Aca] {
        assert_eq!(foreseen(&host.nexus, &READ, attribute), None, "{attribute:?}");
    }
    let protected = Host::new(LogicalUnitConfig {
        protection: Some(ProtectionType::Type1),
        atomic_writes: None,
        ..config()
    });
    assert!(!is_unhindered(&protected.nexus, &READ));
    let read_only = Host::new(LogicalUnitConfig { read_only: true, ..config() });
    assert_eq!([&READ, &WRITE].map(|cdb| is_unhindered(&read_only.nexus, cdb)), [true, false]);
    let stopped = &mut Host::new(config());
    stopped.good(&[0x1b, 0, 0, 0, 0, 0], &[]);
    assert!(!is_unhindered(&stopped.nexus, &READ));
}

/// A unit attention is told by the task that comes after (SAM-5, unit attention condition).
#[test]
fn a_unit_attention_stays_for_the_task() {
    let pair = Pair::new();
    assert!(is_unhindered(&pair.first, &READ));
    pair.second.logical_unit_reset(lun(&pair.second));
    assert!(!is_unhindered(&pair.first, &READ));
    assert_eq!(done(start(&pair.first, &READ, Attribute::Simple, 0).1).status, Status::CheckCondition);
    assert!(is_unhindered(&pair.first, &READ));
}

#[test]
fn marked_blocks_and_reservations_are_left_to_a_task() {
    let pair = Pair::on(device_keeping(config(), Saved::Nothing));
    assert_eq!(done(start(&pair.first, &[0x16, 0, 0, 0, 0, 0], Attribute::Simple, 0).1).status, Status::Good);
    assert_eq!([&pair.first, &pair.second].map(|nexus| is_unhindered(nexus, &READ)), [true, false]);
    assert_eq!(done(start(&pair.first, &[0x17, 0, 0, 0, 0, 0], Attribute::Simple, 0).1).status, Status::Good);
    let (mut mark, next) = start(&pair.first, &MARK, Attribute::Simple, 0);
    let next = if matches!(next, Next::Io(_)) { io(&mut mark, &pair.first, &[]) } else { next };
    assert_eq!(done(next).status, Status::Good);
    assert!(!is_unhindered(&pair.second, &READ));
}

/// It is in the task set until it ends or is dropped: what comes ORDERED waits for it, and what waits keeps it out (SAM-5, 8.6).
#[test]
fn it_has_its_place_among_the_commands_of_its_unit() {
    let pair = Pair::new();
    let (cdb, terms) = (padded(&READ), Terms::default());
    for is_dropped in [true, false] {
        let read = Unhindered::begin(way(&pair.first), &cdb, &terms).expect("nothing is there");
        let (mut ordered, next) = start(&pair.second, &WRITE, Attribute::Ordered, 7);
        assert_eq!(next, Next::Wait);
        assert!(!is_unhindered(&pair.first, &READ), "the older one is ORDERED");
        assert_eq!(pair.woken(), []);
        if is_dropped {
            drop(read);
        } else {
            assert!(matches!(read.end(), Ended::Good));
        }
        assert_eq!(pair.woken(), [7]);
        ordered.abandon(&pair.second);
    }
    assert!(is_unhindered(&pair.first, &READ));
}

/// What is sent after it has ended keeps ORDERED commands waiting, and is done without for a while then.
#[test]
fn what_is_sent_later_holds_up_who_is_ordered() {
    let pair = Pair::new();
    let (cdb, terms) = (padded(&READ), Terms::default());
    let read = Unhindered::begin(way(&pair.first), &cdb, &terms).expect("nothing is there");
    let unsent = read.send_later().expect("nobody would have to wait for it");
    assert!(matches!(read.end(), Ended::Good));
    let (mut ordered, next) = start(&pair.second, &WRITE, Attribute::Ordered, 7);
    assert_eq!((next, pair.woken()), (Next::Wait, vec![]));
    drop(unsent);
    assert_eq!(pair.woken(), [7]);
    ordered.abandon(&pair.second);
    let read = Unhindered::begin(way(&pair.first), &cdb, &terms).expect("the ordered one is gone");
    assert!(read.send_later().is_none(), "another one may come");
}

/// What ends while an auto contingent allegiance stands is answered when that is over (SAM-5, 5.9): a read is then to be done, a write has
/// been.
#[test]
fn an_allegiance_holds_the_answer_back() {
    let pair = Pair::new();
    let (read, write) = (padded(&READ), padded(&WRITE));
    let terms = Terms { key: 9, ..Terms::default() };
    let begin = |cdb| Unhindered::begin(way(&pair.second), cdb, &terms).expect("nothing is there");
    let (reads, writes) = (begin(&read), begin(&write));
    establish(&pair);
    assert!(matches!(reads.end(), Ended::Again));
    let Ended::Later(later) = writes.end() else { panic!("an allegiance stands") };
    let (mut task, next) = *later;
    assert_eq!(next, Next::Wait);
    pair.first.clear_aca(lun(&pair.first));
    assert_eq!(pair.woken(), [9]);
    let next = task.resume(&pair.second, lunette_scsi::Event::Turn { data_out: &[] });
    assert_eq!(done(next).status, Status::Good);
    assert!(is_unhindered(&pair.first, &READ), "the task set is at rest");
}

/// What was written to a cache that a reset has turned off is flushed before it is answered (SBC-3, WCE).
#[test]
fn what_was_written_to_a_cache_that_is_gone_is_flushed() {
    let mut host = Host::new(without_cache());
    set_cache(&mut host, WCE);
    let (cdb, terms) = (padded(&WRITE), Terms::default());
    let write = Unhindered::begin(way(&host.nexus), &cdb, &terms).expect("nothing is there");
    assert!(!write.stable());
    let unit = Arc::clone(host.nexus.device().unit(host.lun).expect("a unit"));
    assert!(host.nexus.logical_unit_reset(host.lun));
    assert_eq!(unit.next_work(), Some(Io::Flush));
    unit.work_done(Ok(()));
    let Ended::Later(later) = write.end() else { panic!("there is no cache") };
    let (mut task, next): (Task, Next) = *later;
    assert_eq!(next, Next::Io(Io::Flush));
    assert_eq!(done(io(&mut task, &host.nexus, &[])).status, Status::Good);
}
