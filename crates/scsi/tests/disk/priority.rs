//! Command priority: REPORT PRIORITY, SET PRIORITY, the initial priority, and who goes on first (SPC-4; SAM-5, 8.7).

use std::sync::{Arc, Mutex};

use lunette_scsi::{
    Attribute, Device, Event, IoOutcome, LogicalUnit, Lun, Next, Nexus, Saved, Task, Terms, Wake,
};

use crate::host::*;

const PRIORITY_CHANGED: (u8, u8, u8) = (6, 0x2a, 0x08);
const MODE_CHANGED: (u8, u8, u8) = (6, 0x2a, 0x01);
const BUS_DEVICE_RESET: (u8, u8, u8) = (6, 0x29, 0x03);

const FIRST: &str = "iqn.2026-11.io.lunette:a,i,0x800000000001";
const SECOND: &str = "iqn.2026-11.io.lunette:b,i,0x800000000002";

fn host(device: &Arc<Device>, name: &str) -> Host {
    let mut host = Host::on(Arc::clone(device));
    host.nexus = Nexus::new(Arc::clone(device), device.ports()[0], name.into());
    assert_eq!(host.code(&[0]), (6, 0x29, 0));
    host
}

fn hosts() -> (Host, Host) {
    let device = device(config());
    (host(&device, FIRST), host(&device, SECOND))
}

fn transport_id(name: &str) -> Vec<u8> {
    let mut field = name.as_bytes().to_vec();
    field.resize((name.len() + 1).next_multiple_of(4), 0);
    [&[0x45, 0, 0, field.len() as u8], &field[..]].concat()
}

/// REPORT PRIORITY of the own nexus or of all: priorities and TransportIDs.
fn report(host: &mut Host, reported: u8) -> Vec<(u8, Vec<u8>)> {
    let data = host.good(&[0xa3, 0x0e, reported << 6, 0, 0, 0, 0, 0, 4, 0, 0, 0], &[]);
    let mut rest = &data[4..];
    assert_eq!(data[..4], (rest.len() as u32).to_be_bytes());
    let mut told = Vec::new();
    while let [priority, 0, 0, 1, 0, 0, high, low, body @ ..] = rest {
        let (id, behind) = body.split_at(usize::from(u16::from_be_bytes([*high, *low])));
        told.push((*priority, id.to_vec()));
        rest = behind;
    }
    assert!(rest.is_empty());
    told
}

fn own(host: &mut Host) -> u8 {
    report(host, 0)[0].0
}

/// A SET PRIORITY with a list.
fn set(host: &mut Host, whose: u8, list: &[u8]) -> Reply {
    let mut cdb = padded(&[0xa4, 0x0e, whose << 6]);
    cdb[6..10].copy_from_slice(&(list.len() as u32).to_be_bytes());
    host.run(&cdb, list)
}

fn named(priority: u8, port: u8, name: &str) -> Vec<u8> {
    let id = transport_id(name);
    [&[priority, 0, 0, port, 0, 0, 0, id.len() as u8], &id[..]].concat()
}

/// MODE SELECT of INITIAL COMMAND PRIORITY.
fn set_initial(host: &mut Host, priority: u8) {
    let mut list = vec![0; 4];
    list.extend([0x4a, 0x01, 0, 0x1c, 0x07, priority]);
    list.resize(36, 0);
    host.good(&[0x15, 0x10, 0, 0, 36, 0], &list);
}

/// SPC-4: REPORT PRIORITY, SET PRIORITY.
#[test]
fn a_nexus_sets_its_own_priority() {
    let (mut first, mut second) = hosts();
    assert_eq!(first.good(&[0x12, 1, 0x86, 0, 64, 0], &[])[5] & 0x08, 0x08, "PRIOR_SUP");
    assert_eq!(report(&mut first, 0), [(0, transport_id(FIRST))], "the initial one is 0 here");
    assert_eq!(report(&mut first, 1), []);
    assert_eq!(set(&mut first, 0, &[3]).code(), GOOD, "only the first byte counts");
    assert_eq!((own(&mut first), own(&mut second)), (3, 0));
    assert_eq!(report(&mut second, 1), [(3, transport_id(FIRST))]);
    assert_eq!((first.code(&[0]), second.code(&[0])), (GOOD, GOOD), "nobody has to be told");
    assert_eq!(set(&mut first, 0, &[0, 0, 0, 0, 0, 0, 0, 0]).code(), GOOD);
    assert_eq!(report(&mut second, 1), []);
}

/// SPC-4: REPORT PRIORITY, SET PRIORITY.
#[test]
fn a_nexus_sets_the_priority_of_another_which_is_told() {
    let (mut first, mut second) = hosts();
    assert_eq!(set(&mut first, 1, &named(9, 1, SECOND)).code(), GOOD);
    assert_eq!((first.code(&[0]), second.code(&[0])), (GOOD, PRIORITY_CHANGED));
    assert_eq!((own(&mut first), own(&mut second)), (0, 9));
    assert_eq!(set(&mut first, 1, &named(6, 1, FIRST)).code(), GOOD);
    assert_eq!((first.code(&[0]), own(&mut first)), (PRIORITY_CHANGED, 6), "whoever it is");
    assert_eq!(set(&mut second, 0, &[2]).code(), GOOD);
    assert_eq!(set(&mut first, 0, &[1]).code(), GOOD);
    assert_eq!(report(&mut first, 1).len(), 2);
    // Back to the initial one for all, whatever list comes along.
    for length in [0, 24] {
        let mut cdb = padded(&[0xa4, 0x0e, 0x80]);
        cdb[9] = length;
        assert_eq!(first.run(&cdb, &[0xff; 24]).code(), GOOD);
        assert_eq!(second.code(&[0]), PRIORITY_CHANGED);
    }
    assert_eq!((report(&mut first, 1), first.code(&[0])), (vec![], GOOD));
}

/// SPC-4: REPORT PRIORITY, SET PRIORITY.
#[test]
fn a_loss_of_the_nexus_keeps_it_and_a_reset_ends_it() {
    let device = device(config());
    let mut first = host(&device, FIRST);
    let mut second = host(&device, SECOND);
    assert_eq!(set(&mut second, 0, &[7]).code(), GOOD);
    drop(second);
    assert_eq!(report(&mut first, 1), [(7, transport_id(SECOND))]);
    let mut second = host(&device, SECOND);
    assert_eq!(own(&mut second), 7);
    assert!(first.nexus.logical_unit_reset(first.lun));
    assert_eq!((first.code(&[0]), second.code(&[0])), (BUS_DEVICE_RESET, BUS_DEVICE_RESET));
    assert_eq!((own(&mut second), report(&mut first, 1)), (0, vec![]));
}

/// SPC-4, control extension mode page.
#[test]
fn the_initial_priority_is_in_a_mode_page() {
    let (mut first, mut second) = hosts();
    let page = |host: &mut Host, control: u8| {
        host.good(&[0x5a, 0x08, control << 6 | 0x0a, 1, 0, 0, 0, 0, 255, 0], &[])[8..14].to_vec()
    };
    assert_eq!(page(&mut first, 1), [0x4a, 0x01, 0, 0x1c, 0, 0x0f], "changeable");
    assert_eq!(set(&mut second, 0, &[5]).code(), GOOD);
    set_initial(&mut first, 4);
    assert_eq!(first.code(&[0]), PRIORITY_CHANGED, "it has another priority now");
    assert_eq!(page(&mut first, 0)[5], 4);
    assert_eq!((second.code(&[0]), second.code(&[0])), (MODE_CHANGED, GOOD), "and this has not");
    assert_eq!((own(&mut first), own(&mut second)), (0, 5));
    // Who was given what is now the initial one goes with it from now on.
    set_initial(&mut first, 5);
    assert_eq!((first.code(&[0]), second.code(&[0])), (PRIORITY_CHANGED, MODE_CHANGED));
    assert_eq!(report(&mut second, 1), []);
    // It can be saved.
    let unit = Arc::new(LogicalUnit::new(config(), Saved::Nothing).expect("a possible unit"));
    let units = [(Lun::from_number(0), Arc::clone(&unit))];
    let device = Arc::new(Device::new("iqn.2026-11.io.lunette:t", [1], units).expect("a device"));
    let mut list = vec![0; 4];
    list.extend([0x4a, 0x01, 0, 0x1c, 0x07, 11]);
    list.resize(36, 0);
    host(&device, FIRST).good(&[0x15, 0x11, 0, 0, 36, 0], &list);
    let mut again = Host::on(device_keeping(config(), unit.state().saved()));
    assert_eq!(page(&mut again, 3)[5], 11);
    assert_eq!(page(&mut again, 0)[5], 11);
}

/// SPC-4: REPORT PRIORITY, SET PRIORITY.
#[test]
fn wrong_lists_and_fields_are_refused() {
    let (mut first, _second) = hosts();
    for (opcode, value) in [(0xa3, 2), (0xa3, 3), (0xa4, 3)] {
        assert_eq!(first.run(&[opcode, 0x0e, value << 6], &[]).field(), Some((2, Some(7))));
    }
    assert_eq!(set(&mut first, 0, &[]).code(), LENGTH_ERROR);
    let whole = named(9, 1, SECOND);
    for length in 0..whole.len() {
        assert_eq!(set(&mut first, 1, &whole[..length]).code(), LENGTH_ERROR, "{length}");
    }
    assert_eq!(set(&mut first, 1, &[9; 513]).code(), LENGTH_ERROR);
    assert_eq!(set(&mut first, 1, &named(9, 2, SECOND)).field(), Some((2, None)), "no such port");
    let other = "iqn.2026-11.io.lunette:c,i,0x800000000003";
    assert_eq!(set(&mut first, 1, &named(9, 1, other)).field(), Some((8, None)), "no such nexus");
    assert_eq!(set(&mut first, 1, &named(9, 1, "c")).field(), Some((8, None)), "no TransportID");
    assert_eq!(report(&mut first, 1), []);
}

/// What is set for nexuses that are gone has a bound, and keeps nobody from setting its own.
/// SPC-4: REPORT PRIORITY, SET PRIORITY.
#[test]
fn nexuses_that_are_gone_make_room_for_others() {
    let device = device(config());
    let name = |number: usize| format!("iqn.2026-11.io.lunette:a,i,0x{number:012x}");
    let mut first = host(&device, &name(0));
    assert_eq!(set(&mut first, 0, &[2]).code(), GOOD);
    for number in 1..=256 {
        assert_eq!(set(&mut host(&device, &name(number)), 0, &[1]).code(), GOOD, "{number}");
    }
    assert_eq!(own(&mut first), 2, "the oldest, but it is there");
    assert_eq!(own(&mut host(&device, &name(1))), 0);
    assert_eq!(own(&mut host(&device, &name(2))), 1);
}

#[derive(Debug, Default)]
struct Woken(Mutex<Vec<u64>>);

impl Wake for Woken {
    fn wake(&self, key: u64) {
        self.0.lock().expect("no test fails with it").push(key);
    }
}

/// In which order commands that wait for the end of another one are told to go on.
/// SAM-5: 8.7 priority.
#[test]
fn the_more_urgent_of_those_that_wait_goes_on_first() {
    let device = device(config());
    let woken = Arc::new(Woken::default());
    let nexus = |name: &str| {
        let nexus = Nexus::new(Arc::clone(&device), device.ports()[0], name.into());
        nexus.waking(Arc::clone(&woken) as Arc<dyn Wake>)
    };
    let (plain, given) = (nexus(FIRST), nexus(SECOND));
    let lun = Lun::from_number(0);
    let start = |nexus: &Nexus, terms: Terms| {
        Task::start_with(nexus, lun, &padded(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]), &terms)
    };
    for nexus in [&plain, &given] {
        start(nexus, Terms::default());
    }
    let (mut setting, next) =
        Task::start_with(&given, lun, &padded(&[0xa4, 0x0e, 0, 0, 0, 0, 0, 0, 0, 1]), &Terms::default());
    assert!(matches!(next, Next::DataOut { .. }));
    assert!(matches!(setting.resume(&given, Event::DataOut(&[6])), Next::Done(_)));
    let (mut ordered, next) = start(&plain, Terms { attribute: Attribute::Ordered, ..Terms::default() });
    assert!(matches!(next, Next::Io(_)));
    let waiting =
        [(&plain, 15), (&plain, 0), (&plain, 7), (&given, 0), (&given, 8), (&plain, 1), (&plain, 0)];
    let mut tasks: Vec<_> = waiting
        .iter()
        .zip(0..)
        .map(|(&(nexus, priority), key)| {
            let (task, next) = start(nexus, Terms { priority, key, ..Terms::default() });
            assert_eq!(next, Next::Wait);
            (nexus, task)
        })
        .collect();
    let ended = Event::Io { result: Ok(IoOutcome::Done), data_out: &[], medium: &[0; 512] };
    assert!(matches!(ordered.resume(&plain, ended), Next::Done(_)));
    let order = std::mem::take(&mut *woken.0.lock().expect("no test fails with it"));
    assert_eq!(order, [5, 3, 2, 1, 4, 6, 0], "1, 6 of its nexus, 7, none as 8, 15");
    for (nexus, task) in &mut tasks {
        assert!(matches!(task.resume(nexus, Event::Turn { data_out: &[] }), Next::Io(_)));
        task.abandon(nexus);
    }
}
