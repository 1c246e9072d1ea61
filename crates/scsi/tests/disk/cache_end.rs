//! The end of a write cache by a reset, for writes that begin before it and end after the flush (SBC-3, WCE).

use std::sync::Arc;

use lunette_scsi::{Event, Io, LogicalUnitConfig, Lun, Next, ProtectionType, Status, Task};

use crate::copying::{COPY, OTHER_NAA, blocks, both, cdb, host_with, lid1};
use crate::host::*;
use crate::read_modify_write::compare_and_write;
use crate::tokens;

pub(crate) const WCE: u8 = 0x04;

/// A unit without a cache after a reset.
pub(crate) fn without_cache() -> LogicalUnitConfig {
    LogicalUnitConfig { write_cache: false, ..config() }
}

fn caching(host: &mut Host) -> Vec<u8> {
    host.good(&[0x1a, 0x08, 0x08, 0, 255], &[])[4..].to_vec()
}

/// MODE SELECT of the caching page with WCE as asked for.
pub(crate) fn set_cache(host: &mut Host, wce: u8) {
    let mut page = caching(host);
    page[2] = wce;
    let list = [&[0; 4][..], &page].concat();
    host.good(&[0x15, 0x10, 0, 0, list.len() as u8], &list);
}

fn is_write(io: &Io) -> bool {
    !matches!(io, Io::Read { .. } | Io::Flush)
}

/// Runs a command whose first write is on its way to the medium when a reset of the unit `lun` turns the cache off, and is there
/// after the flush of that. Tells what the command asked for from that write on.
fn across_a_reset(host: &mut Host, lun: Lun, cdb: &[u8], data_out: &[u8]) -> Vec<Io> {
    let unit = Arc::clone(host.nexus.device().unit(lun).expect("a unit"));
    let (mut task, mut next) = Task::start(&host.nexus, host.lun, cdb);
    let (mut log, mut medium) = (Vec::new(), Vec::new());
    for _ in 0..STEPS_MAX {
        next = match next {
            Next::DataOut { .. } => task.resume(&host.nexus, Event::DataOut(data_out)),
            Next::Yield => task.resume(&host.nexus, Event::Turn { data_out }),
            Next::Io(io) | Next::IoOn { io, .. } => {
                if log.is_empty() && is_write(&io) {
                    assert!(host.nexus.logical_unit_reset(lun));
                    assert_eq!(unit.next_work(), Some(Io::Flush));
                    unit.work_done(Ok(()));
                    assert_eq!(unit.next_work(), None);
                }
                if !log.is_empty() || is_write(&io) {
                    log.push(io.clone());
                }
                let result = host.disk.run(io, data_out, &mut medium);
                task.resume(&host.nexus, Event::Io { result, data_out, medium: &medium })
            }
            Next::Done(done) => {
                assert_eq!(done.status, Status::Good, "{cdb:02x?}");
                return log;
            }
            other => panic!("{other:?}"),
        };
    }
    panic!("the command does not end");
}

/// What is answered when there is no cache any more is stable, whoever began it when there was one.
/// SBC-3: Mode 08h Caching.
#[test]
fn a_write_that_lands_after_the_flush_is_flushed_before_it_is_answered() {
    let unmap = [&[0, 22, 0, 16, 0, 0, 0, 0][..], &[0; 8], &[0, 0, 0, 8], &[0; 4]].concat();
    let mut unmap_cdb = padded(&[0x42]);
    unmap_cdb[8] = unmap.len() as u8;
    let mut write_atomic = padded(&[0x9c]);
    write_atomic[13] = 8;
    let zeros = tokens::write_list(&tokens::zero_token(), 0, 0, &[(0, 8)]);
    let commands = [
        (cdb10(0x2a, 0, 0, 8), vec![1; 8 * BLOCK]),
        (write_atomic, vec![1; 8 * BLOCK]),
        (compare_and_write(0, 0, 1), vec![0; 2 * BLOCK]),
        (cdb16(0x8b, 0, 0, 1), vec![1; BLOCK]),
        (cdb10(0x41, 0, 0, 8), vec![1; BLOCK]),
        (cdb10(0x41, 0, 0, 8), vec![0; BLOCK]),
        (unmap_cdb, unmap),
        (tokens::cdb(0x83, 0x11, 7, zeros.len()), zeros),
    ];
    for protection in [None, Some(ProtectionType::Type1)] {
        for (cdb, data_out) in &commands {
            if protection.is_some() && cdb[0] == 0x9c {
                continue;
            }
            let atomic_writes = without_cache().atomic_writes.filter(|_| protection.is_none());
            let mut host = Host::new(LogicalUnitConfig { protection, atomic_writes, ..without_cache() });
            set_cache(&mut host, WCE);
            let lun = host.lun;
            let log = across_a_reset(&mut host, lun, cdb, data_out);
            assert_eq!((log.len(), log.last()), (2, Some(&Io::Flush)), "{protection:?} {cdb:02x?}: {log:?}");
        }
    }
}

/// With the cache as it was, or with FUA, nothing more is flushed.
#[test]
fn a_write_that_nothing_happens_to_is_not_flushed() {
    for (config, flags) in [(config(), 0), (config(), 8), (without_cache(), 0)] {
        let mut host = Host::new(config);
        host.good(&cdb10(0x2a, flags, 0, 1), &[1; BLOCK]);
        assert!(matches!(host.log()[..], [Io::WriteDataOut { .. }]));
    }
    let mut host = Host::new(without_cache());
    set_cache(&mut host, WCE);
    let lun = host.lun;
    let log = across_a_reset(&mut host, lun, &cdb10(0x2a, 8, 0, 1), &[1; BLOCK]);
    assert!(matches!(log[..], [Io::WriteDataOut { stable: true, .. }]));
}

#[test]
fn so_is_a_copy_in_one_piece() {
    let mut host = host_with(config(), without_cache());
    let (first, second) = (host.lun, Lun::from_number(1));
    host.lun = second;
    assert_eq!(host.code(&[0]), (6, 0x29, 0));
    set_cache(&mut host, WCE);
    host.lun = first;
    let list = lid1(5, 0, &both(), &blocks(0, 1, 4, 0, 0));
    let log = across_a_reset(&mut host, second, &cdb(&COPY, list.len()), &list);
    assert!(matches!(log[..], [Io::WriteMedium { stable: false, .. }, Io::Flush]), "{log:?}");
    assert!(host.others.contains_key(&OTHER_NAA));
}

/// MODE SENSE tells of the cache until it is empty; who writes back what was told does not turn it on again.
#[test]
fn who_writes_the_page_back_meanwhile_gets_no_new_cache() {
    let mut host = Host::new(without_cache());
    set_cache(&mut host, WCE);
    assert!(host.nexus.logical_unit_reset(host.lun));
    assert_eq!(host.code(&[0]), (6, 0x29, 3));
    let told = caching(&mut host)[2];
    assert_eq!(told, WCE);
    set_cache(&mut host, told);
    let unit = Arc::clone(host.nexus.device().unit(host.lun).expect("a unit"));
    assert!(!unit.write_cache_enabled());
    assert!(host.work());
    assert_eq!((host.code(&[0]), caching(&mut host)[2]), ((6, 0x2a, 0x01), 0));
}

/// Who was given the flush and could not begin it is given it again.
#[test]
fn a_flush_that_was_not_begun_is_given_again() {
    let mut host = Host::new(without_cache());
    set_cache(&mut host, WCE);
    assert!(host.nexus.logical_unit_reset(host.lun));
    let unit = Arc::clone(host.nexus.device().unit(host.lun).expect("a unit"));
    assert_eq!((unit.next_work(), unit.next_work()), (Some(Io::Flush), Some(Io::Flush)));
    unit.work_done(Ok(()));
    assert_eq!(unit.next_work(), None);
}
