//! What a nexus sees of a device that shows it only some units, under other numbers, or for reading only (SAM-5).

use std::sync::Arc;

use lunette_scsi::{
    Device, Io, LogicalUnit, LogicalUnitConfig, Lun, LunMap, MappedUnit, Nexus, Saved, Status, Task,
};

use crate::host::*;

/// Units 0, 3 and 300; their serial numbers are their numbers.
fn three() -> Arc<Device> {
    let unit = |number: u16| {
        let mut config = config();
        config.identity.serial = format!("UNIT-{number}");
        (
            Lun::from_number(number),
            Arc::new(LogicalUnit::new(config, Saved::Nowhere).expect("a possible unit")),
        )
    };
    Arc::new(Device::new("iqn.x", [1], [0, 3, 300].map(unit)).expect("a possible device"))
}

/// A host that sees `units`, each as its own number, the device's, and whether it may only read.
fn host(device: &Arc<Device>, units: &[(u16, u16, bool)]) -> Host {
    let mapped = units.iter().map(|&(lun, unit, read_only)| MappedUnit {
        lun: Lun::from_number(lun),
        unit: Lun::from_number(unit),
        read_only,
    });
    let map = LunMap::new(device, mapped).expect("a possible view");
    let nexus = Nexus::mapped(
        Arc::clone(device),
        device.ports()[0],
        Arc::new(map),
        "iqn.host,i,0x800000000001".into(),
    );
    Host { nexus, lun: Lun::from_number(units[0].0), disk: Disk::new(), others: Default::default() }
}

fn serial(host: &mut Host, lun: u16) -> Vec<u8> {
    host.lun = Lun::from_number(lun);
    host.good(&padded(&[0x12, 1, 0x80, 0, 255]), &[])[4..].to_vec()
}

const REPORT_LUNS: [u8; 16] = [0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
const WRITE_ONE: [u8; 16] = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn units_are_found_under_the_numbers_of_the_view_and_no_others() {
    let device = three();
    let mut host = host(&device, &[(5, 300, false), (1, 0, false)]);
    assert_eq!(serial(&mut host, 1), b"UNIT-0");
    assert_eq!(serial(&mut host, 5), b"UNIT-300");
    // REPORT LUNS, asked at any number.
    host.lun = Lun::from_number(77);
    assert_eq!(host.good(&REPORT_LUNS, &[])[..8], [0, 0, 0, 16, 0, 0, 0, 0]);
    assert_eq!(host.good(&REPORT_LUNS, &[])[8..], [0, 1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0]);
    for absent in [0, 3, 300] {
        host.lun = Lun::from_number(absent);
        // SPC-4, INQUIRY: qualifier 011b, type 1Fh.
        assert_eq!(host.good(&padded(&[0x12, 0, 0, 0, 96]), &[])[0], 0x7f, "{absent}");
        assert_eq!(host.code(&[0]), NO_UNIT);
    }
    assert_eq!(host.nexus.lun_at(2), Some(Lun::from_number(5)));
    assert_eq!(host.nexus.lun_at(1), None);
    assert_eq!(host.nexus.place_of(Lun::from_number(5)), Some(2));
}

#[test]
fn a_task_names_its_unit_by_its_place_in_the_device() {
    let device = three();
    let host = host(&device, &[(0, 300, false)]);
    let (task, _) = Task::start(&host.nexus, Lun::from_number(0), &[0; 16]);
    assert_eq!(task.unit_index(), Some(2));
}

/// SBC-3: 4.17 write protection.
#[test]
fn what_may_only_be_read_is_so_for_its_nexus_alone() {
    let device = three();
    let mut reader = host(&device, &[(0, 0, true)]);
    let mut writer = host(&device, &[(0, 0, false)]);
    for host in [&mut reader, &mut writer] {
        assert_eq!(host.code(&[0]), (6, 0x29, 0));
    }
    // SBC-3, WP bit of the mode parameter header.
    let mode_sense = padded(&[0x1a, 8, 0x3f, 0, 255]);
    assert_eq!(reader.good(&mode_sense, &[])[2] & 0x80, 0x80);
    assert_eq!(writer.good(&mode_sense, &[])[2] & 0x80, 0);
    assert_eq!(reader.run(&WRITE_ONE, &[7; BLOCK]).code(), WRITE_PROTECTED);
    assert!(reader.log().is_empty());
    assert_eq!(writer.run(&WRITE_ONE, &[7; BLOCK]).status, Status::Good);
    assert_eq!(reader.run(&cdb10(0x28, 0, 0, 1), &[]).status, Status::Good);
}

/// Who may only read keeps nobody from the unit, and changes nothing that others see.
/// SAM-5: 5.9.2 establishing.
#[test]
fn who_may_only_read_decides_nothing_for_others() {
    let device = three();
    let mut reader = host(&device, &[(0, 0, true)]);
    let mut writer = host(&device, &[(0, 0, false)]);
    for host in [&mut reader, &mut writer] {
        assert_eq!(host.code(&[0]), (6, 0x29, 0));
    }
    let register = padded(&[0x5f, 6, 0, 0, 0, 0, 0, 0, 24]);
    let key = [&[0; 8][..], &7u64.to_be_bytes(), &[0; 8]].concat();
    let standby = padded(&[0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8]);
    for (cdb, data) in [
        (padded(&[0x16]), &[][..]),
        (padded(&[0x56]), &[]),
        (register, &key),
        (standby, &[0, 0, 0, 0, 2, 0, 0, 1]),
        (padded(&[0x1b, 0, 0, 0, 0]), &[]),
        (padded(&[0x1e, 0, 0, 0, 1]), &[]),
        (padded(&[0x15, 0x10, 0, 0, 4]), &[0; 4]),
    ] {
        assert_eq!(reader.run(&cdb, data).code(), WRITE_PROTECTED, "{cdb:02x?}");
    }
    let naca = reader.run(&padded(&[0, 0, 0, 0, 0, 4]), &[]);
    assert_eq!((naca.code(), naca.field()), (INVALID_FIELD, Some((5, Some(2)))));
    assert_eq!(writer.code(&[0]), GOOD, "no allegiance has begun");
    assert_eq!(reader.good(&padded(&[0x12, 0, 0, 0, 36]), &[])[3] & 0x20, 0, "NORMACA");
    assert_eq!(writer.good(&padded(&[0x12, 0, 0, 0, 36]), &[])[3] & 0x20, 0x20);
    // QERR 01b.
    let list = [0, 0, 0, 0, 0x0a, 0x0a, 0, 0x12, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(writer.run(&padded(&[0x15, 0x10, 0, 0, 16]), &list).code(), GOOD);
    assert_eq!(reader.code(&[0]), (6, 0x2a, 0x01));
    for (host, aborts) in [(&mut reader, 1), (&mut writer, 2)] {
        host.log();
        assert_eq!(host.code(&padded(&[0x12, 0, 1])), INVALID_FIELD);
        let log = host.log();
        assert!(matches!(&log[..], [Io::AbortTasks { nexuses, .. }] if nexuses.len() == aborts), "{log:?}");
    }
    assert_eq!(reader.code(&padded(&[0x17])), GOOD, "RELEASE of nothing");
    assert_eq!(reader.code(&padded(&[0x1e])), GOOD, "removal was allowed");
    assert_eq!(reader.good(&padded(&[0x5e, 0, 0, 0, 0, 0, 0, 0, 255]), &[]), [0; 8]);
    assert_eq!(writer.run(&register, &key).status, Status::Good);
}

#[test]
fn resets_act_on_the_shared_unit_and_stay_within_the_view() {
    let device = three();
    let mut narrow = host(&device, &[(9, 3, false)]);
    let mut wide = Host::on(Arc::clone(&device));
    let mut code = |lun: u16| {
        wide.lun = Lun::from_number(lun);
        wide.code(&[0])
    };
    assert_eq!([code(3), code(300)], [(6, 0x29, 0); 2]);
    assert!(!narrow.nexus.logical_unit_reset(Lun::from_number(3)));
    assert_eq!(code(3), GOOD);
    assert!(narrow.nexus.logical_unit_reset(Lun::from_number(9)));
    assert_eq!([code(0), code(3), code(300)], [GOOD, (6, 0x29, 3), GOOD]);
    narrow.nexus.target_reset();
    assert_eq!([code(0), code(3), code(300)], [GOOD, (6, 0x29, 3), GOOD]);
    assert_eq!(narrow.code(&[0]), (6, 0x29, 0));
}

#[test]
fn a_view_that_shows_nothing_still_answers() {
    let device = three();
    let map = LunMap::new(&device, []).unwrap();
    let port = device.ports()[0];
    let nexus = Nexus::mapped(device, port, Arc::new(map), "iqn.host,i,0x800000000001".into());
    let mut host = Host { nexus, lun: Lun::from_number(0), disk: Disk::new(), others: Default::default() };
    assert_eq!(host.good(&REPORT_LUNS, &[]), [0; 8]);
    assert_eq!(host.code(&[0]), NO_UNIT);
}

#[test]
fn only_the_units_of_the_view_keep_a_nexus() {
    let device = device(LogicalUnitConfig { removable: true, ..config() });
    let mut owner = Host::on(Arc::clone(&device));
    let other = host(&device, &[(4, 0, false)]);
    // PREVENT ALLOW MEDIUM REMOVAL of one nexus, whatever the number, holds for the unit.
    let mut other = Host { lun: Lun::from_number(4), ..other };
    assert_eq!(other.code(&[0]), (6, 0x29, 0));
    assert_eq!(other.code(&[0x1e, 0, 0, 0, 1]), GOOD);
    assert_eq!(owner.code(&[0x1b, 0, 0, 0, 2]), PREVENTED);
    drop(other);
    assert_eq!(owner.code(&[0x1b, 0, 0, 0, 2]), GOOD);
}
