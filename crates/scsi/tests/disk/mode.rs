//! Mode pages that are changed, saved, and come back (SPC-4, MODE SELECT; SBC-3, mode parameters).

use std::sync::Arc;

use lunette_scsi::{
    Device, Event, Io, IoError, LogicalUnit, LogicalUnitConfig, Lun, Next, Nexus, Saved, Space, Status, Task,
};

use crate::host::*;

const MIB: u64 = 1 << 20;
const THRESHOLD_REACHED: (u8, u8, u8) = (6, 0x38, 0x07);
const MODE_CHANGED: (u8, u8, u8) = (6, 0x2a, 0x01);
const NOT_SAVED: (u8, u8, u8) = (5, 0x39, 0x00);

const CURRENT: u8 = 0x00;
const CHANGEABLE: u8 = 0x40;
const DEFAULT: u8 = 0x80;
const SAVED: u8 = 0xc0;

/// A device whose state is kept, as far as `saved` says.
fn device_with(saved: Saved<'_>) -> (Arc<Device>, Arc<LogicalUnit>) {
    device_of(config(), saved)
}

fn device_of(config: LogicalUnitConfig, saved: Saved<'_>) -> (Arc<Device>, Arc<LogicalUnit>) {
    let unit = Arc::new(LogicalUnit::new(config, saved).expect("a possible unit"));
    unit.note_space(Space { used_bytes: 0, available_bytes: 100 * MIB });
    let units = [(Lun::from_number(0), Arc::clone(&unit))];
    (Arc::new(Device::new("iqn.2026-11.io.lunette:t", [1], units).expect("a possible device")), unit)
}

/// A page without header and descriptor.
fn sense(host: &mut Host, control: u8, page: u8, subpage: u8) -> Vec<u8> {
    host.good(&[0x1a, 0x08, control | page, subpage, 255], &[])[4..].to_vec()
}

fn select(host: &mut Host, flags: u8, page: &[u8]) -> Reply {
    let mut list = vec![0; 4];
    list.extend(page);
    host.run(&[0x15, 0x10 | flags, 0, 0, list.len() as u8], &list)
}

/// The control page with D_SENSE and SWP as asked for.
fn control(software_write_protect: bool) -> [u8; 12] {
    let mut page = [0; 12];
    (page[0], page[1], page[3]) = (0x0a, 0x0a, 0x10);
    page[4] = u8::from(software_write_protect) << 3;
    page
}

/// SPC-4: 0Ah Control: D_SENSE, TAS, SWP; SAM-5: 6.3 resets.
#[test]
fn saved_values_come_back_after_a_restart_and_a_reset() {
    let (device, unit) = device_with(Saved::Nothing);
    let (mut host, mut other) = (Host::on(device.clone()), Host::on(device));
    assert_eq!(sense(&mut host, SAVED, 0x0a, 0), sense(&mut host, DEFAULT, 0x0a, 0), "nothing was saved yet");
    assert_eq!(select(&mut host, 1, &control(true)).code(), GOOD);
    assert_eq!(host.log(), [Io::SaveState]);
    assert_eq!(other.code(&[0]), MODE_CHANGED);
    // What is changed without being saved goes with the reset.
    let mut caching = sense(&mut host, CURRENT, 0x08, 0);
    caching[2] = 0;
    assert_eq!(select(&mut host, 0, &caching).code(), GOOD);
    assert_eq!(host.log(), [Io::Flush]);
    assert_eq!(sense(&mut host, SAVED, 0x08, 0)[2], 0x04);
    let state = unit.state();
    assert!(host.nexus.logical_unit_reset(host.lun));
    assert_eq!(host.code(&[0]), (6, 0x29, 3));
    let (device, _) = device_with(state.saved());
    for host in [&mut host, &mut Host::on(device)] {
        assert_eq!(sense(host, CURRENT, 0x0a, 0)[4], 0x08, "SWP");
        assert_eq!(sense(host, SAVED, 0x0a, 0)[4], 0x08);
        assert_eq!(sense(host, DEFAULT, 0x0a, 0)[4], 0);
        assert_eq!(sense(host, CURRENT, 0x08, 0)[2], 0x04, "WCE");
        assert_eq!(host.code(&cdb10(0x2a, 0, 0, 1)), (7, 0x27, 0x02));
    }
}

/// SPC-4 has the caching page saved with any other: what a host has chosen stays, and what nobody has follows the configuration, which
/// may promise that writes are stable.
#[test]
fn a_write_cache_that_no_host_has_chosen_is_not_saved_with_other_pages() {
    const WCE: u8 = 0x04;
    let restarted =
        |write_cache, saved: Saved<'_>| device_of(LogicalUnitConfig { write_cache, ..config() }, saved);
    for configured in [true, false] {
        let (device, unit) = restarted(configured, Saved::Nothing);
        assert_eq!(select(&mut Host::on(device), 1, &control(true)).code(), GOOD);
        let state = unit.state();
        for later in [configured, !configured] {
            let (device, unit) = restarted(later, state.saved());
            let mut host = Host::on(device);
            let wce = if later { WCE } else { 0 };
            for control in [CURRENT, SAVED, DEFAULT] {
                assert_eq!(sense(&mut host, control, 0x08, 0)[2], wce, "{configured} {later}");
            }
            assert_eq!(unit.write_cache_enabled(), later);
            assert_eq!(sense(&mut host, CURRENT, 0x0a, 0)[4], 0x08, "SWP");
        }
    }
    // By its own page, and by what is in effect when another one is saved.
    for (flags, wce, page) in [(1, WCE, 0x08), (1, 0, 0x08), (0, 0, 0x0a)] {
        let (device, unit) = restarted(true, Saved::Nothing);
        let mut host = Host::on(device);
        let mut caching = sense(&mut host, CURRENT, 0x08, 0);
        caching[2] = wce;
        assert_eq!(select(&mut host, flags, &caching).code(), GOOD);
        if page == 0x0a {
            assert_eq!(select(&mut host, 1, &control(false)).code(), GOOD);
        }
        let mut state = unit.state();
        // And that stays so with each further page.
        for later in [true, false, true] {
            let (device, unit) = restarted(later, state.saved());
            let mut host = Host::on(device);
            assert_eq!(sense(&mut host, CURRENT, 0x08, 0)[2], wce, "{flags} {page:#x}");
            assert_eq!(select(&mut host, 1, &control(later)).code(), GOOD);
            state = unit.state();
        }
    }
}

/// A write cache that was not saved ends with a reset, and what was answered from it becomes stable. Until then there is
/// one for who asks, and for reads from the medium.
#[test]
fn a_reset_that_ends_the_write_cache_has_it_flushed() {
    const WCE: u8 = 0x04;
    const FUA: u8 = 0x08;
    let mut host = Host::new(LogicalUnitConfig { write_cache: false, ..config() });
    let caching = |host: &mut Host| sense(host, CURRENT, 0x08, 0);
    let mut on = caching(&mut host);
    assert_eq!(on[2], 0);
    on[2] = WCE;
    let begin = |host: &mut Host| {
        assert_eq!(select(host, 0, &on).code(), GOOD);
        host.good(&cdb10(0x2a, 0, 0, 1), &[1; BLOCK]);
        host.log();
        assert!(host.nexus.logical_unit_reset(host.lun));
        assert_eq!(host.code(&[0]), (6, 0x29, 3));
    };
    begin(&mut host);
    assert_eq!(caching(&mut host)[2], WCE, "as long as something is in it");
    host.good(&cdb10(0x28, FUA, 0, 1), &[]);
    assert_eq!(host.log()[0], Io::Flush);
    host.good(&cdb10(0x2a, 0, 0, 1), &[1; BLOCK]);
    assert!(matches!(host.log()[..], [Io::WriteDataOut { stable: true, .. }]), "nothing comes to it");
    host.disk.fail = Some((|io| *io == Io::Flush, IoError::Hardware));
    assert!(host.work());
    assert_eq!((host.log(), caching(&mut host)[2]), (vec![Io::Flush], WCE));
    host.disk.fail = None;
    assert!(host.work(), "again");
    assert_eq!(host.code(&[0]), MODE_CHANGED);
    assert_eq!((host.log(), caching(&mut host)[2], host.work()), (vec![Io::Flush], 0, false));

    // Who turns it off by itself meanwhile waits for a flush of its own.
    begin(&mut host);
    let unit = Arc::clone(host.nexus.device().unit(host.lun).expect("a unit"));
    assert_eq!(unit.next_work(), Some(Io::Flush));
    let mut off = on.clone();
    off[2] = 0;
    assert_eq!(select(&mut host, 0, &off).code(), GOOD);
    assert_eq!(host.log(), [Io::Flush]);
    // A second reset between the unit's own flush and its end has it flushed once more.
    begin(&mut host);
    unit.work_done(Ok(()));
    assert_eq!((caching(&mut host)[2], unit.next_work()), (WCE, Some(Io::Flush)));
}

/// A MODE SELECT that turns the write cache off, and fails to flush it, is not good when it is repeated before the flush is. Nor is it
/// after one that was aborted.
#[test]
fn a_write_cache_that_could_not_be_flushed_is_there_until_it_is() {
    const WCE: u8 = 0x04;
    const SP: u8 = 1;
    let (device, unit) = device_with(Saved::Nothing);
    let mut host = Host::on(device.clone());
    let caching = |host: &mut Host| sense(host, CURRENT, 0x08, 0);
    let mut off = caching(&mut host);
    off[2] = 0;
    let mut other = Host::on(device);
    host.disk.fail = Some((|io| *io == Io::Flush, IoError::Hardware));
    for _ in 0..2 {
        assert_eq!(select(&mut host, SP, &off).code(), (4, 0x44, 0));
        assert_eq!((host.log(), caching(&mut host)[2]), (vec![Io::Flush], WCE));
    }
    assert!(host.work());
    assert_eq!((host.log(), caching(&mut host)[2]), (vec![Io::Flush], WCE));
    // What is owed besides does not wait for a flush that fails again and again.
    for io in [Io::SaveState, Io::Flush, Io::Flush] {
        assert!(host.work());
        assert_eq!(host.log(), [io]);
    }
    assert_eq!((other.code(&[0]), caching(&mut other)[2]), (MODE_CHANGED, WCE));
    host.disk.fail = None;
    assert_eq!(select(&mut host, SP, &off).code(), GOOD);
    assert_eq!(host.log(), [Io::Flush, Io::SaveState]);
    assert_eq!((caching(&mut host)[2], unit.write_cache_enabled()), (0, false));
    assert_eq!((other.code(&[0]), caching(&mut other)[2]), (MODE_CHANGED, 0));
    assert!(!host.work() && host.code(&[0]) == GOOD, "nothing is left to be done or told");

    let mut on = off.clone();
    on[2] = WCE;
    assert_eq!(select(&mut host, 0, &on).code(), GOOD);
    let list = [&[0; 4][..], &off].concat();
    let (mut task, _) = Task::start(&host.nexus, host.lun, &[0x15, 0x10, 0, 0, list.len() as u8]);
    assert_eq!(task.resume(&host.nexus, Event::DataOut(&list)), Next::Io(Io::Flush));
    task.abandon(&host.nexus);
    host.log();
    assert_eq!((caching(&mut host)[2], select(&mut host, 0, &off).code()), (WCE, GOOD));
    assert_eq!(host.log(), [Io::Flush]);
}

#[test]
fn where_nothing_is_kept_nothing_is_saved() {
    let mut host = Host::new(config());
    assert_eq!(host.code(&[0x1a, 0, SAVED | 0x08, 0, 255]), NOT_SAVED);
    let reply = select(&mut host, 1, &control(true));
    assert_eq!((reply.code(), reply.field()), (INVALID_FIELD, Some((1, Some(0)))), "SP");
    assert_eq!(sense(&mut host, CURRENT, 0x08, 0)[0], 0x08, "PS");
    let (device, _) = device_with(Saved::Nothing);
    assert_eq!(sense(&mut Host::on(device), CHANGEABLE, 0x08, 0)[0], 0x88, "PS");
}

#[test]
fn a_save_that_fails_is_told() {
    let (device, _) = device_with(Saved::Nothing);
    let mut host = Host::on(device);
    host.disk.fail = Some((|io| *io == Io::SaveState, IoError::Hardware));
    assert_eq!(select(&mut host, 1, &control(true)).code(), (4, 0x44, 0));
}

#[test]
fn pages_and_subpages_are_told_apart() {
    let (device, _) = device_with(Saved::Nowhere);
    let mut host = Host::on(device);
    let codes = |list: &[u8]| {
        let (mut at, mut codes) = (0, Vec::new());
        while at < list.len() {
            let is_long = list[at] & 0x40 != 0;
            codes.push((list[at] & 0x3f, if is_long { list[at + 1] } else { 0 }));
            at += if is_long { 4 + usize::from(list[at + 3]) } else { 2 + usize::from(list[at + 1]) };
        }
        codes
    };
    let short = [(0x01, 0), (0x08, 0), (0x0a, 0), (0x1c, 0)];
    assert_eq!(codes(&sense(&mut host, CURRENT, 0x3f, 0)), short);
    let all = [(0x01, 0), (0x08, 0), (0x0a, 0), (0x0a, 1), (0x1c, 0), (0x1c, 2)];
    assert_eq!(codes(&sense(&mut host, CURRENT, 0x3f, 0xff)), all);
    assert_eq!(codes(&sense(&mut host, CURRENT, 0x0a, 0xff)), [(0x0a, 0), (0x0a, 1)]);
    assert_eq!(codes(&sense(&mut host, CURRENT, 0x1c, 2)), [(0x1c, 2)]);
    for (page, subpage, field) in [(0x0a, 2, (3, 7)), (0x3f, 1, (3, 7)), (0x03, 0, (2, 5)), (0x08, 1, (3, 7))]
    {
        let reply = host.run(&[0x1a, 0, page, subpage, 255], &[]);
        assert_eq!(reply.field(), Some((field.0, Some(field.1))), "{page:02x}/{subpage:02x}");
    }
}

/// SBC-3, logical block provisioning thresholds: told once for each time that one is reached.
#[test]
fn space_that_runs_out_is_told_in_time() {
    let (device, unit) = device_with(Saved::Nothing);
    let (mut first, mut second) = (Host::on(device.clone()), Host::on(device));
    let note = |available: u64| unit.note_space(Space { used_bytes: 0, available_bytes: available * MIB });
    let mut thresholds = sense(&mut first, CURRENT, 0x1c, 2);
    thresholds[16] = 0x80;
    thresholds[20..24].copy_from_slice(&50u32.to_be_bytes());
    assert_eq!(select(&mut first, 0, &thresholds).code(), GOOD);
    assert_eq!(second.code(&[0]), MODE_CHANGED);
    note(40);
    assert_eq!(first.code(&[0]), GOOD, "LBPERE is off");
    note(60);
    let mut recovery = sense(&mut first, CURRENT, 0x01, 0);
    recovery[7] = 0x80;
    assert_eq!(select(&mut first, 0, &recovery).code(), GOOD);
    assert_eq!(second.code(&[0]), MODE_CHANGED);
    note(50);
    for host in [&mut first, &mut second] {
        assert_eq!(host.code(&[0]), THRESHOLD_REACHED);
        assert_eq!(host.code(&[0]), GOOD);
    }
    note(49);
    assert_eq!(first.code(&[0]), GOOD);
    thresholds[4] = 0x01;
    assert_eq!(select(&mut first, 0, &thresholds).code(), GOOD);
    assert_eq!(second.code(&[0]), MODE_CHANGED);
    note(60);
    note(10);
    let told = [first.code(&[0]), second.code(&[0])];
    assert_eq!(told.iter().filter(|code| **code == THRESHOLD_REACHED).count(), 1, "SITUA: {told:02x?}");
    let page = first.good(&[0x12, 1, 0xb2, 0, 255, 0], &[]);
    assert_eq!(page[4], 11, "THRESHOLD EXPONENT");
}

/// Thresholds are kept over a restart, and space that has run short meanwhile has not come back.
///
/// SBC-3: 4.7.3.7 thresholds.
#[test]
fn who_comes_when_space_has_run_out_is_told() {
    let (device, unit) = device_with(Saved::Nothing);
    let note = |available: u64| unit.note_space(Space { used_bytes: 0, available_bytes: available * MIB });
    let mut host = Host::on(device.clone());
    set_threshold(&mut host, 50, 0);
    report_thresholds(&mut host);
    drop(host);
    note(40);
    let mut first = Host::on(device.clone());
    assert_eq!(first.code(&[0]), GOOD, "the space is not looked at all the time");
    note(40);
    assert_eq!(first.code(&[0]), THRESHOLD_REACHED);
    assert_eq!(first.code(&[0]), GOOD);
    let mut late = Host::on(device.clone());
    assert_eq!(late.code(&[0]), THRESHOLD_REACHED, "as all the others were");
    assert_eq!(late.code(&[0]), GOOD);
    note(40);
    assert_eq!([first.code(&[0]), late.code(&[0])], [GOOD; 2], "once");
    note(60);
    assert_eq!(Host::on(device.clone()).code(&[0]), GOOD, "there is space");

    set_threshold(&mut first, 50, 1);
    note(40);
    assert_eq!(late.code(&[0]), MODE_CHANGED);
    assert_eq!(Host::on(device).code(&[0]), GOOD, "SITUA: one knows already");
}

/// SBC-3: 4.7.3.7 thresholds.
#[test]
fn a_threshold_that_was_passed_before_it_was_set_is_told() {
    let (device, unit) = device_with(Saved::Nothing);
    let mut host = Host::on(device);
    let note = |host: &mut Host| {
        unit.note_space(Space { used_bytes: 0, available_bytes: 40 * MIB });
        host.code(&[0])
    };
    set_threshold(&mut host, 50, 0);
    assert_eq!(note(&mut host), GOOD, "LBPERE is off");
    report_thresholds(&mut host);
    assert_eq!(note(&mut host), THRESHOLD_REACHED, "and on");
    assert_eq!(note(&mut host), GOOD);
    set_threshold(&mut host, 45, 0);
    assert_eq!(note(&mut host), THRESHOLD_REACHED, "another one");
    assert_eq!(note(&mut host), GOOD);
    assert!(host.nexus.logical_unit_reset(host.lun));
    assert_eq!(host.code(&[0]), (6, 0x29, 3));
    set_threshold(&mut host, 45, 0);
    report_thresholds(&mut host);
    assert_eq!(note(&mut host), THRESHOLD_REACHED, "it would not have been heard before the reset");
}

/// Sets a threshold on the available space, in MiB. `flags` are those of byte 4.
fn set_threshold(host: &mut Host, count: u32, flags: u8) {
    let mut page = sense(host, CURRENT, 0x1c, 2);
    (page[4], page[16]) = (flags, 0x80);
    page[20..24].copy_from_slice(&count.to_be_bytes());
    assert_eq!(select(host, 0, &page).code(), GOOD);
}

/// LBPERE
fn report_thresholds(host: &mut Host) {
    let mut page = sense(host, CURRENT, 0x01, 0);
    page[7] = 0x80;
    assert_eq!(select(host, 0, &page).code(), GOOD);
}

/// SBC-3, Logical Block Provisioning log page: both resources, in the unit of the thresholds.
#[test]
fn the_space_is_in_the_log() {
    let (device, unit) = device_with(Saved::Nothing);
    let mut host = Host::on(device);
    unit.note_space(Space { used_bytes: 3 * MIB, available_bytes: 70 * MIB });
    assert!(host.good(&padded(&[0x4d, 0, 0x40, 0, 0, 0, 0, 0, 255]), &[])[4..].contains(&0x0c));
    let log = host.good(&padded(&[0x4d, 0, 0x4c, 0, 0, 0, 0, 0, 255]), &[]);
    assert_eq!(log[..16], [0x0c, 0, 0, 24, 0, 1, 3, 8, 0, 0, 0, 70, 2, 0, 0, 0]);
    assert_eq!(log[16..], [0, 2, 3, 8, 0, 0, 0, 3, 1, 0, 0, 0]);
    let mut unknown = Host::new(config());
    assert_eq!(unknown.run(&padded(&[0x4d, 0, 0x4c, 0, 0, 0, 0, 0, 255]), &[]).field(), Some((2, Some(5))));
}

/// The control page with byte 3 or 4 as asked for.
fn control_with(at: usize, value: u8) -> [u8; 12] {
    let mut page = control(false);
    page[at] = value;
    page
}

const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];

/// SPC-4, UA_INTLCK_CTRL 10b: a unit attention is told until REQUEST SENSE fetches it.
#[test]
fn interlocked_attentions_stay_until_they_are_fetched() {
    let (device, _) = device_with(Saved::Nowhere);
    let (mut host, mut other) = (Host::on(device.clone()), Host::on(device));
    assert_eq!(select(&mut host, 0, &control_with(4, 0x20)).code(), GOOD);
    for _ in 0..3 {
        assert_eq!(other.code(&[0]), MODE_CHANGED);
        assert_eq!(other.code(&READ), MODE_CHANGED);
    }
    let sense = other.good(&[0x03, 0, 0, 0, 18], &[]);
    assert_eq!((sense[2], sense[12], sense[13]), MODE_CHANGED);
    assert_eq!(other.code(&[0]), GOOD);
    assert_eq!(select(&mut host, 0, &control_with(4, 0x10)).field(), Some((8, Some(5))), "01b is reserved");
}

/// SPC-4, UA_INTLCK_CTRL 11b: a refusal without sense data is told again, once until it is fetched.
#[test]
fn refusals_are_followed_by_an_attention() {
    let (device, _) = device_with(Saved::Nowhere);
    let (mut host, mut other) = (Host::on(device.clone()), Host::on(device.clone()));
    other.nexus = Nexus::new(device.clone(), device.ports()[0], "iqn.other,i,0x800000000002".into());
    assert_eq!(other.code(&[0]), (6, 0x29, 0));
    assert_eq!(host.run(&[0x16], &[]).status, Status::Good, "RESERVE(6)");
    assert_eq!(other.run(&READ, &[]).status, Status::ReservationConflict);
    assert_eq!(other.code(&[0x12, 0, 0, 0, 36]), GOOD);
    assert_eq!(select(&mut host, 0, &control_with(4, 0x30)).code(), GOOD);
    let fetch = |host: &mut Host| {
        let sense = host.good(&[0x03, 0, 0, 0, 18], &[]);
        (sense[2], sense[12], sense[13])
    };
    assert_eq!(fetch(&mut other), MODE_CHANGED);
    for _ in 0..2 {
        assert_eq!(other.run(&READ, &[]).status, Status::ReservationConflict);
        other.nexus.refused(other.lun, Status::Busy);
        assert_eq!(other.code(&READ), (6, 0x2c, 0x09), "PREVIOUS RESERVATION CONFLICT STATUS");
        assert_eq!(other.code(&[0]), (6, 0x2c, 0x09), "and it stays");
        assert_eq!(fetch(&mut other), (6, 0x2c, 0x09));
        assert_eq!(fetch(&mut other), GOOD);
    }
    other.nexus.refused(other.lun, Status::TaskSetFull);
    assert_eq!(fetch(&mut other), (6, 0x2c, 0x08));
    other.nexus.refused(other.lun, Status::Busy);
    assert_eq!(fetch(&mut other), (6, 0x2c, 0x07));
    other.nexus.refused(other.lun, Status::TaskAborted);
    assert_eq!(fetch(&mut other), GOOD);
}

/// SPC-4, QUEUE ALGORITHM MODIFIER 0h: what a nexus writes takes effect in the order in which it came.
#[test]
fn writes_keep_their_order_where_that_is_asked_for() {
    let (device, _) = device_with(Saved::Nowhere);
    let mut host = Host::on(device);
    let write = padded(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    let begin = |host: &Host| Task::start(&host.nexus, host.lun, &write);
    let (first, second) = (begin(&host), begin(&host));
    assert!(matches!((&first.1, &second.1), (Next::DataOut { .. }, Next::DataOut { .. })));
    for (task, next) in [first, second] {
        assert_eq!(host.finish(task, next, &[1; BLOCK]).code(), GOOD);
    }
    assert_eq!(select(&mut host, 0, &control_with(3, 0)).code(), GOOD);
    let ((first, next), (mut second, waits)) = (begin(&host), begin(&host));
    assert_eq!(waits, Next::Wait);
    let (mut read, reads) = Task::start(&host.nexus, host.lun, &padded(&READ));
    assert_eq!(reads, Next::Wait, "an ORDERED write is before it");
    assert_eq!(host.finish(first, next, &[2; BLOCK]).code(), GOOD);
    let next = second.resume(&host.nexus, Event::Turn { data_out: &[] });
    assert_eq!(host.finish(second, next, &[3; BLOCK]).code(), GOOD);
    let next = read.resume(&host.nexus, Event::Turn { data_out: &[] });
    assert_eq!(host.finish(read, next, &[]).data, [3; BLOCK]);
    assert_eq!(select(&mut host, 0, &control_with(3, 0x20)).field(), Some((7, Some(5))), "2h is reserved");
}
