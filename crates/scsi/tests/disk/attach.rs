//! What a host asks when it attaches a disk: INQUIRY, REPORT LUNS, capacity, mode pages, supported commands
//! (SPC-4, SBC-3).

use std::sync::Arc;

use lunette_scsi::{
    Completion, Device, Io, IoError, LogicalUnit, LogicalUnitConfig, Lun, Nexus, Saved, SenseKey, Status,
    Task,
};

use crate::host::*;

const LARGE: u16 = 4096;

fn inquiry(page: Option<u8>, allocation_length: u16) -> [u8; 16] {
    let mut cdb = padded(&[0x12, u8::from(page.is_some()), page.unwrap_or(0)]);
    cdb[3..5].copy_from_slice(&allocation_length.to_be_bytes());
    cdb
}

fn supported(option: u8, opcode: u8, service_action: u16) -> [u8; 16] {
    let mut cdb = padded(&[0xa3, 0x0c, option, opcode]);
    cdb[4..6].copy_from_slice(&service_action.to_be_bytes());
    cdb[8..10].copy_from_slice(&LARGE.to_be_bytes());
    cdb
}

/// SPC-4: INQUIRY.
#[test]
fn standard_inquiry() {
    let mut host = Host::new(config());
    let data = host.good(&inquiry(None, LARGE), &[]);
    assert_eq!(data.len(), 96);
    assert_eq!(data[..8], [0, 0, 6, 0x32, 91, 0x38, 0, 2]);
    assert_eq!(&data[8..36], b"LUNETTE VOLUME          0.1 ");
    assert_eq!(data[58..66], [0, 0xa0, 0x09, 0x60, 0x04, 0x60, 0x04, 0xc0]);
    for length in 0..=255 {
        let cut = host.good(&inquiry(None, length), &[]);
        assert_eq!(cut, data[..data.len().min(length.into())]);
    }
    assert_eq!(
        host.run(&padded(&[0x12, 0, 1, 1, 0]), &[]).field(),
        Some((2, Some(7))),
        "a page without EVPD"
    );
    assert_eq!(host.run(&inquiry(Some(0xb9), LARGE), &[]).field(), Some((2, Some(7))));
    assert_eq!(host.run(&padded(&[0x12, 2, 0, 0, 9]), &[]).field(), Some((1, Some(1))), "CMDDT");
    let mut removable = Host::new(LogicalUnitConfig { removable: true, ..config() });
    assert_eq!(removable.good(&inquiry(None, LARGE), &[])[1], 0x80);
    let unit = Arc::new(LogicalUnit::new(config(), Saved::Nowhere).expect("a possible unit"));
    let device = Device::new("iqn.x", [1, 2], [(Lun::from_number(0), unit)]).expect("a possible device");
    assert_eq!(Host::on(Arc::new(device)).good(&inquiry(None, LARGE), &[])[6], 0x10, "MULTIP");
}

/// SPC-4: 80h Unit Serial Number.
#[test]
fn vital_product_data() {
    let mut host = Host::new(config());
    let pages = host.good(&inquiry(Some(0), LARGE), &[]);
    assert_eq!(pages, [0, 0, 0, 9, 0x00, 0x80, 0x83, 0x86, 0x88, 0x8f, 0xb0, 0xb1, 0xb2]);
    for &page in &pages[4..] {
        assert_eq!(host.good(&inquiry(Some(page), LARGE), &[])[1], page);
    }
    assert_eq!(host.good(&inquiry(Some(0x80), LARGE), &[]), b"\0\x80\0\x08SERIAL-1");
}

/// SBC-3: READ CAPACITY (10, 16).
#[test]
fn capacity() {
    let mut host = Host::new(config());
    assert_eq!(host.good(&[0x25], &[]), [0, 0, 0x0f, 0xff, 0, 0, 2, 0]);
    assert_eq!(
        host.run(&padded(&[0x25, 0, 0, 0, 0, 1]), &[]).field(),
        Some((5, Some(0))),
        "an LBA without PMI"
    );
    let data = host.good(&cdb16(0x9e, 0x10, 0, 32), &[]);
    assert_eq!(data[..16], [0, 0, 0, 0, 0, 0, 0x0f, 0xff, 0, 0, 2, 0, 0, 3, 0xc0, 0]);
    for length in 0..16 {
        assert_eq!(host.good(&cdb16(0x9e, 0x10, 0, length), &[]).len(), length as usize);
    }
    let mut large = Host::new(LogicalUnitConfig { blocks: (1 << 32) + 1, ..config() });
    assert_eq!(large.good(&[0x25], &[])[..4], [0xff; 4]);
    assert_eq!(large.good(&cdb16(0x9e, 0x10, 0, 32), &[])[..8], (1u64 << 32).to_be_bytes());
}

/// SPC-4: REPORT LUNS.
#[test]
fn report_luns_lists_the_inventory_to_any_lun() {
    let unit = || Arc::new(LogicalUnit::new(config(), Saved::Nowhere).unwrap());
    let units = [0, 1, 300].map(|number| (Lun::from_number(number), unit()));
    let device = Arc::new(Device::new("iqn.x", [1], units).unwrap());
    let mut host = Host::on(device);
    let report = |select: u8, length: u8| padded(&[0xa0, 0, select, 0, 0, 0, 0, 0, 0, length]);
    let expected =
        [&[0, 0, 0, 24, 0, 0, 0, 0][..], &[0; 8], &[0, 1, 0, 0, 0, 0, 0, 0], &[0x41, 0x2c, 0, 0, 0, 0, 0, 0]]
            .concat();
    for lun in [Lun::from_number(0), Lun::from_number(77), Lun::REPORT_LUNS, Lun::from_bytes([0xff; 8])] {
        host.lun = lun;
        assert_eq!(host.good(&report(0, 255), &[]), expected);
        assert_eq!(host.good(&report(0, 12), &[]), expected[..12]);
        assert_eq!(host.good(&report(1, 255), &[])[3..10], [8, 0, 0, 0, 0, 0xc1, 0x01]);
        assert_eq!(host.good(&report(2, 255), &[])[3], 32);
        assert_eq!(host.run(&report(3, 255), &[]).field(), Some((2, Some(7))));
    }
}

/// XDWRITEREAD, READ, VERIFY, WRITE, WRITE AND VERIFY, WRITE SAME, ORWRITE and WRITE ATOMIC (32).
/// SBC-3: 7Fh variable-length CDBs.
#[test]
fn variable_length_commands_are_reported_as_they_are_refused() {
    const NOT_SUPPORTED: [u8; 4] = [0, 0x01, 0, 0];
    let mut host = Host::new(config());
    let all = host.good(&supported(0, 0, 0), &[]);
    assert!(all[4..].chunks(8).all(|command| command[0] != 0x7f));
    for action in [0x07, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f] {
        for option in [2, 3] {
            assert_eq!(host.good(&supported(option, 0x7f, action), &[]), NOT_SUPPORTED, "{action:02x}");
        }
        let mut cdb = padded(&[0x7f, 0, 0, 0, 0, 0, 0, 24]);
        cdb[9] = action as u8;
        assert_eq!(host.code(&cdb), INVALID_OPCODE, "{action:02x}");
    }
}

#[test]
fn luns_without_a_unit() {
    let mut host = Host::new(config());
    host.lun = Lun::from_number(1);
    let data = host.good(&inquiry(None, LARGE), &[]);
    assert_eq!((data.len(), data[0], data[2]), (96, 0x7f, 6));
    assert_eq!(host.good(&inquiry(Some(0), LARGE), &[]), [0x7f, 0, 0, 1, 0]);
    assert_eq!(host.code(&inquiry(Some(0x83), LARGE)), INVALID_FIELD);
    assert_eq!(host.good(&[0x03, 0, 0, 0, 18], &[])[2..14], [5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x25, 0]);
    for opcode in [0x00, 0x28, 0x1a, 0x9e, 0xa3, 0xff] {
        assert_eq!(host.code(&[opcode]), NO_UNIT, "{opcode:02x}");
    }
    let (task, _) = Task::start(&host.nexus, host.lun, &[0; 16]);
    assert_eq!(task.unit_index(), None);
}

/// SPC-4: REPORT LUNS.
#[test]
fn the_report_luns_well_known_unit() {
    let mut host = Host::new(config());
    host.lun = Lun::REPORT_LUNS;
    assert_eq!(host.good(&inquiry(None, LARGE), &[])[0], 0x1e);
    assert_eq!(host.good(&inquiry(Some(0), LARGE), &[]), [0x1e, 0, 0, 2, 0, 0x83]);
    assert_eq!(host.good(&inquiry(Some(0x83), LARGE), &[])[4..8], [0x51, 0x94, 0, 4]);
    assert_eq!(host.good(&[0x03, 0, 0, 0, 18], &[])[2], 0);
    assert_eq!(host.code(&[0x00]), GOOD);
    assert_eq!(host.code(&[0x28]), INVALID_OPCODE);
}

fn mode_sense(page: u8, subpage: u8, flags: u8) -> [u8; 16] {
    padded(&[0x1a, flags, page, subpage, 255])
}

/// SPC-4: MODE SENSE, MODE SELECT (6, 10).
#[test]
fn mode_sense_returns_pages_in_order() {
    let mut host = Host::new(config());
    let all = host.good(&mode_sense(0x3f, 0, 0), &[]);
    assert_eq!(all.len(), 4 + 8 + 12 + 20 + 12 + 12);
    assert_eq!(all[..12], [67, 0, 0x10, 8, 0, 0, 0x10, 0, 0, 0, 2, 0]);
    assert_eq!((all[12], all[24], all[44], all[56]), (0x01, 0x08, 0x0a, 0x1c));
    assert_eq!(host.good(&[0x1a, 0, 0x3f, 0, 4], &[]), all[..4]);
    assert_eq!(host.good(&mode_sense(0x0a, 0, 8), &[])[4..], all[44..56], "DBD");
    let ten = host.good(&padded(&[0x5a, 0x10, 0x0a, 0, 0, 0, 0, 1, 0]), &[]);
    assert_eq!(ten[..8], [0, 34, 0, 0x10, 1, 0, 0, 16]);
    assert_eq!(ten[24..], all[44..56]);
    assert_eq!(host.code(&mode_sense(0xc8, 0, 0)), (5, 0x39, 0), "saved values");
    assert_eq!(host.run(&mode_sense(0x02, 0, 0), &[]).field(), Some((2, Some(5))));
}

/// Reads a page, changes one byte of it, and selects it.
fn change(host: &mut Host, page: u8, byte: usize, value: u8) -> Reply {
    let mut list = host.good(&mode_sense(page, 0, 8), &[]);
    list[0] = 0;
    list[4 + byte] = value;
    host.run(&padded(&[0x15, 0x10, 0, 0, list.len() as u8]), &list)
}

/// SPC-4: 0Ah Control: D_SENSE, TAS, SWP.
#[test]
fn software_write_protect() {
    let mut host = Host::new(config());
    assert_eq!(host.good(&mode_sense(0x4a, 0, 8), &[])[4 + 4], 0x38, "SWP and UA_INTLCK_CTRL are changeable");
    assert_eq!(change(&mut host, 0x0a, 4, 8).status, Status::Good);
    let list = host.good(&mode_sense(0x0a, 0, 8), &[]);
    assert_eq!((list[2], list[8]), (0x90, 8));
    host.good(&cdb10(0x28, 0, 0, 1), &[]);
    let reply = host.run(&cdb10(0x2a, 0, 0, 1), &[0; BLOCK]);
    assert_eq!((reply.code(), reply.asked_bytes), ((7, 0x27, 2), 0));
    assert_eq!(change(&mut host, 0x0a, 4, 0).status, Status::Good);
    host.good(&cdb10(0x2a, 0, 0, 1), &[0; BLOCK]);
}

/// SPC-4: REQUEST SENSE, 4.5 formats, 0Ah Control: D_SENSE, TAS, SWP.
#[test]
fn descriptor_sense() {
    let mut host = Host::new(config());
    assert_eq!(change(&mut host, 0x0a, 2, 4).status, Status::Good);
    let reply = host.run(&cdb16(0x88, 0, u64::MAX, 1), &[]);
    assert_eq!(reply.sense, [0x72, 5, 0x21, 0, 0, 0, 0, 0]);
    assert_eq!(host.good(&[0x03, 0, 0, 0, 255], &[])[0], 0x70, "REQUEST SENSE has its own bit");
    assert_eq!(host.good(&[0x03, 1, 0, 0, 255], &[]), [0x72, 0, 0, 0, 0, 0, 0, 0]);
    host.disk.fail = Some((|_| true, IoError::Medium { offset_bytes: Some(512) }));
    assert_eq!(host.run(&cdb10(0x28, 0, 0, 4), &[]).sense[8..20], [0, 10, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
}

/// SBC-3: Mode 08h Caching.
#[test]
fn turning_the_write_cache_off_flushes_it() {
    let mut host = Host::new(config());
    assert_eq!(change(&mut host, 0x08, 2, 0).status, Status::Good);
    assert_eq!(host.log(), [Io::Flush]);
    host.good(&cdb10(0x2a, 0, 0, 1), &[0; BLOCK]);
    assert!(matches!(host.log().as_slice(), [Io::WriteDataOut { stable: true, .. }]));
    assert_eq!(change(&mut host, 0x08, 2, 4).status, Status::Good);
    assert_eq!(host.log(), []);
    host.disk.fail = Some((|io| *io == Io::Flush, IoError::Faulted));
    assert_eq!(change(&mut host, 0x08, 2, 0).code(), (4, 0x03, 0));
    assert!(!host.nexus.device().unit(host.lun).unwrap().write_cache_enabled(), "off is the safe side");
}

/// SPC-4: MODE SENSE, MODE SELECT (6, 10).
#[test]
fn mode_select_refuses() {
    let mut host = Host::new(config());
    assert_eq!(change(&mut host, 0x08, 3, 0xff).field(), Some((4 + 3, Some(7))));
    assert_eq!(host.run(&padded(&[0x15, 0x11, 0, 0, 4]), &[0; 4]).field(), Some((1, Some(0))), "SP");
    assert_eq!(host.run(&padded(&[0x15, 0x00, 0, 0, 4]), &[0; 4]).field(), Some((1, Some(4))), "PF");
    assert_eq!(host.run(&padded(&[0x15, 0x10, 0, 0, 4]), &[0; 3]).code(), LENGTH_ERROR);
    assert_eq!(host.run(&padded(&[0x55, 0x10, 0, 0, 0, 0, 0, 0, 7]), &[0; 7]).code(), LENGTH_ERROR);
    assert_eq!(host.code(&[0x15, 0x10]), GOOD, "no list");
    assert_eq!(host.run(&padded(&[0x15, 0x10, 0, 0, 4]), &[0; 4]).status, Status::Good, "a header alone");
}

/// SPC-4: MODE SENSE, MODE SELECT (6, 10).
#[test]
fn other_nexuses_hear_of_changed_pages() {
    let device = device(config());
    let (mut first, mut second) = (Host::on(device.clone()), Host::on(device));
    assert_eq!(change(&mut first, 0x0a, 2, 4).status, Status::Good);
    assert_eq!(first.code(&[0]), GOOD);
    assert_eq!(second.code(&[0]), (6, 0x2a, 1));
    assert_eq!(change(&mut first, 0x0a, 2, 4).status, Status::Good);
    assert_eq!(second.code(&[0]), GOOD, "nothing has changed");
    assert!(second.nexus.logical_unit_reset(second.lun));
    assert_eq!(first.code(&[0]), (6, 0x29, 3));
    assert_eq!(first.run(&[0xff], &[]).sense[0], 0x70, "D_SENSE is back at its default");
}

/// SPC-4: REPORT SUPPORTED OPERATION CODES.
#[test]
fn supported_operation_codes() {
    let mut host = Host::new(config());
    let all = host.good(&supported(0, 0, 0), &[]);
    let timed = host.good(&supported(0x80, 0, 0), &[]);
    let count = (all.len() - 4) / 8;
    assert_eq!(u32::from_be_bytes(all[..4].try_into().unwrap()) as usize, all.len() - 4);
    assert_eq!(timed.len() - 4, count * 20);
    for (plain, timed) in all[4..].chunks(8).zip(timed[4..].chunks(20)) {
        let (opcode, action, flags) = (plain[0], u16::from_be_bytes([plain[2], plain[3]]), plain[5]);
        assert_eq!((timed[5], &timed[8..10]), (flags | 2, &[0, 10][..]), "CTDP and its descriptor");
        assert!(timed[16..20] != [0; 4], "recommended timeout");
        let (right, wrong) = if flags & 1 != 0 { (2, 1) } else { (1, 2) };
        let one = host.good(&supported(right, opcode, action), &[]);
        assert_eq!(one[..4], [0, 3, plain[6], plain[7]]);
        assert_eq!(one[4], opcode);
        assert_eq!(one.len(), 4 + usize::from(plain[7]));
        assert_eq!(host.good(&supported(3, opcode, action), &[]), one);
        assert_eq!(host.run(&supported(wrong, opcode, action), &[]).field(), Some((2, Some(2))));
        let timed_one = host.good(&supported(right | 0x80, opcode, action), &[]);
        assert_eq!((timed_one[1], &timed_one[one.len()..]), (0x83, &timed[8..]));
    }
    for unsupported in [supported(1, 0xff, 0), supported(2, 0x9e, 0x1f), supported(3, 0x28, 5)] {
        assert_eq!(host.good(&unsupported, &[]), [0, 1, 0, 0]);
    }
    assert_eq!(host.run(&supported(4, 0, 0), &[]).field(), Some((2, Some(2))));
    assert_eq!(host.good(&supported(1, 0x28, 0), &[])[5] & 0x18, 0x18, "DPO and FUA of READ(10)");
}

#[test]
fn unmap_is_listed_where_it_exists() {
    let mut config = config();
    config.provisioning.unmap = false;
    let mut host = Host::new(config);
    assert_eq!(host.good(&supported(1, 0x42, 0), &[]), [0, 1, 0, 0]);
    let all = host.good(&supported(0, 0, 0), &[]);
    assert!(all[4..].chunks(8).all(|descriptor| descriptor[0] != 0x42));
}

/// RFC 7143: 7144; SPC-4: REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
#[test]
fn task_management_functions() {
    let mut host = Host::new(config());
    let mut cdb = padded(&[0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 255]);
    assert_eq!(host.good(&cdb, &[]), [0xfe, 0x07, 0, 0]);
    cdb[2] = 0x80;
    assert_eq!(host.good(&cdb, &[])[..4], [0xfe, 0x07, 0, 12]);
    assert_eq!(host.good(&cdb, &[]).len(), 16);
    cdb[9] = 3;
    assert_eq!(host.code(&cdb), INVALID_FIELD);
    cdb[1] = 0x1e;
    assert_eq!(host.run(&cdb, &[]).field(), Some((1, Some(4))), "an unknown service action");
}

/// SBC-3: READ DEFECT DATA (10, 12); SPC-4: SEND DIAGNOSTIC.
#[test]
fn nothing_is_wrong_with_the_medium() {
    let mut host = Host::new(config());
    assert_eq!(host.good(&cdb10(0x37, 0, 0, 32), &[]), [0; 4]);
    assert_eq!(host.good(&padded(&[0x37, 0, 0x1d, 0, 0, 0, 0, 0, 32]), &[]), [0, 0x1d, 0, 0]);
    assert_eq!(host.good(&padded(&[0xb7, 0x08, 0, 0, 0, 0, 0, 0, 0, 32]), &[]), [0, 8, 0, 0, 0, 0, 0, 0]);
    assert_eq!(host.code(&[0x1d, 0x04]), GOOD, "default self-test");
    assert_eq!(host.code(&[0x1d, 0x24]), INVALID_FIELD);
    assert_eq!(host.code(&[0x1d]), INVALID_FIELD);
}

/// SAM-5: 5.3.3 precedence, 5.14 commands without.
#[test]
fn unit_attentions_pass_by_the_commands_that_may_not_report_them() {
    let device = device(config());
    let port = device.ports()[0];
    let nexus = Nexus::new(device, port, "host".into());
    let mut host = Host { nexus, lun: Lun::from_number(0), disk: Disk::new(), others: Default::default() };
    host.good(&inquiry(None, LARGE), &[]);
    host.good(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16], &[]);
    assert_eq!(host.good(&[0x03, 0, 0, 0, 18], &[])[2..14], [6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 0]);
    assert_eq!(host.good(&[0x03, 0, 0, 0, 18], &[])[2], 0, "reported once");
    assert!(host.nexus.logical_unit_reset(host.lun));
    assert_eq!(host.code(&[0xff]), (6, 0x29, 3), "before anything else");
    assert_eq!(host.code(&[0xff]), INVALID_OPCODE);
    let (task, _) = Task::start(&host.nexus, host.lun, &[0; 16]);
    assert_eq!(task.unit_index(), Some(0));
}

#[test]
fn completions_for_the_driver() {
    let done = Completion::check_condition(SenseKey::AbortedCommand, 0x0e, 0x03);
    assert_eq!(done.sense.unwrap().as_bytes()[..14], [0x70, 0, 0xb, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x0e, 3]);
    assert_eq!(Completion::status(Status::TaskSetFull).status.code(), 0x28);
}

/// SBC-3, READ CAPACITY: a change of the capacity is told to every nexus, once.
#[test]
fn another_capacity_is_told_to_every_nexus() {
    let device = device(config());
    let (mut first, mut second) = (Host::on(device.clone()), Host::on(device.clone()));
    let (_, unit) = device.units().next().expect("a unit");
    assert_eq!(unit.resize(BLOCKS), Ok(false));
    assert_eq!(first.code(&[0]), GOOD);
    assert_eq!(unit.resize(BLOCKS / 2), Ok(true));
    assert_eq!(unit.capacity_bytes(), BLOCKS / 2 * BLOCK as u64);
    for host in [&mut first, &mut second] {
        assert_eq!(host.code(&[0]), (6, 0x2a, 0x09));
        assert_eq!(host.good(&padded(&[0x25]), &[])[..4], (BLOCKS as u32 / 2 - 1).to_be_bytes());
        assert_eq!(host.code(&cdb10(0x28, 0, BLOCKS as u32 / 2, 1)), OUT_OF_RANGE);
        assert_eq!(host.code(&cdb16(0x9e, 0x12, BLOCKS / 2, 24)), OUT_OF_RANGE);
    }
    assert!(unit.resize(0).is_err() && unit.resize(1 << 55).is_err());
    assert_eq!(first.code(&[0]), GOOD);
}

/// What was in range when the command began may not be when the store gets it.
#[test]
fn a_medium_that_is_cut_under_a_command_is_told() {
    let mut host = Host::new(config());
    host.disk.fail = Some((|_| true, IoError::OutOfRange));
    assert_eq!(host.code(&cdb10(0x28, 0, 0, 1)), OUT_OF_RANGE);
}
