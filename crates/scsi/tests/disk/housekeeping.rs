//! READ and WRITE BUFFER, the timestamp, identifying information, and log pages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lunette_scsi::{Device, Domain, Environment, Io, IoError, LogicalUnit, Lun, Saved, Status};

use crate::host::*;

const SEQUENCE_ERROR: (u8, u8, u8) = (5, 0x2c, 0);

/// READ BUFFER or WRITE BUFFER.
fn buffer(opcode: u8, mode: u8, id: u8, offset: u32, length: u32) -> [u8; 16] {
    let mut cdb = padded(&[opcode, mode, id]);
    cdb[3..6].copy_from_slice(&offset.to_be_bytes()[1..]);
    cdb[6..9].copy_from_slice(&length.to_be_bytes()[1..]);
    cdb
}

/// SPC-4: READ BUFFER, WRITE BUFFER.
#[test]
fn an_echo_comes_back_to_its_nexus_only() {
    let device = device(config());
    let (mut first, mut second) = (Host::on(device.clone()), Host::on(device));
    assert_eq!(first.good(&buffer(0x3c, 0x0b, 0, 0, 4), &[]), [1, 0, 0x10, 0], "4096 bytes for each nexus");
    assert_eq!(first.code(&buffer(0x3c, 0x0a, 0, 0, 16)), SEQUENCE_ERROR);
    first.good(&buffer(0x3b, 0x0a, 0, 0, 5), b"hello");
    assert_eq!(second.code(&buffer(0x3c, 0x0a, 0, 0, 16)), SEQUENCE_ERROR);
    assert_eq!(first.good(&buffer(0x3c, 0x0a, 0, 0, 16), &[]), b"hello");
    assert_eq!(first.good(&buffer(0x3c, 0x0a, 0, 0, 2), &[]), b"he");
    assert_eq!(first.run(&buffer(0x3b, 0x0a, 0, 0, 4097), &[0; 4097]).field(), Some((6, Some(7))));
}

/// SPC-4: READ BUFFER, WRITE BUFFER.
#[test]
fn the_data_buffer_has_offsets_and_bounds() {
    let mut host = Host::new(config());
    assert_eq!(host.good(&buffer(0x3c, 0x03, 0, 0, 4), &[]), [0, 0, 0x10, 0]);
    assert_eq!(host.good(&buffer(0x3c, 0x03, 1, 0, 4), &[]), [0; 4], "no such buffer");
    assert_eq!(host.good(&buffer(0x3c, 0x02, 0, 0, 8000), &[]), [0; 4096]);
    host.good(&buffer(0x3b, 0x02, 0, 4094, 2), &[1, 2]);
    assert_eq!(host.good(&buffer(0x3c, 0x02, 0, 4093, 8), &[]), [0, 1, 2]);
    assert_eq!(host.run(&buffer(0x3b, 0x02, 0, 4095, 2), &[1, 2]).field(), Some((6, Some(7))));
    assert_eq!(host.run(&buffer(0x3b, 0x02, 0, 4097, 0), &[]).field(), Some((3, Some(7))));
    assert_eq!(host.run(&buffer(0x3c, 0x02, 0, 4097, 1), &[]).field(), Some((3, Some(7))));
    assert_eq!(host.run(&buffer(0x3c, 0x02, 1, 0, 1), &[]).field(), Some((2, Some(7))));
    for (opcode, mode) in [(0x3b, 0x04), (0x3b, 0x05), (0x3b, 0x0e), (0x3c, 0x1c), (0x3c, 0x01)] {
        assert_eq!(host.run(&buffer(opcode, mode, 0, 0, 4), &[0; 4]).field(), Some((1, Some(4))));
    }
}

/// However many nexuses there are, their buffers have 8 MiB; who has one keeps it.
#[test]
fn buffers_of_all_nexuses_are_bounded() {
    const INSUFFICIENT_RESOURCES: (u8, u8, u8) = (5, 0x55, 3);
    let device = device(config());
    let mut hosts: Vec<Host> = (0..1024).map(|_| Host::on(device.clone())).collect();
    for host in &mut hosts {
        host.good(&buffer(0x3b, 0x02, 0, 0, 1), &[7]);
    }
    let mut late = Host::on(device);
    assert_eq!(late.run(&buffer(0x3b, 0x0a, 0, 0, 1), &[7]).code(), INSUFFICIENT_RESOURCES);
    hosts[0].good(&buffer(0x3b, 0x0a, 0, 0, 1), &[7]);
    hosts.pop();
    late.good(&buffer(0x3b, 0x0a, 0, 0, 1), &[7]);
}

#[derive(Debug, Default)]
struct Clocks(AtomicU64);

impl Environment for Clocks {
    fn uptime(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::Relaxed))
    }

    fn since_epoch(&self) -> Duration {
        Duration::from_secs(1_000_000) + self.uptime()
    }

    fn fill_random(&self, _: &mut [u8]) -> bool {
        false
    }
}

/// SPC-4: REPORT TIMESTAMP, SET TIMESTAMP.
#[test]
fn the_timestamp_runs_and_can_be_set() {
    let clocks = Arc::new(Clocks::default());
    let unit = Arc::new(LogicalUnit::new(config(), Saved::Nowhere).expect("a possible unit"));
    let device = Device::new("iqn.x", [1], [(Lun::from_number(0), unit)]).expect("a possible device");
    let device = Arc::new(device.in_domain(Arc::new(Domain::new(clocks.clone()))));
    let (mut host, mut other) = (Host::on(device.clone()), Host::on(device));
    let report = padded(&[0xa3, 0x0f, 0, 0, 0, 0, 0, 0, 0, 12]);
    let told = |data: Vec<u8>| {
        assert_eq!((data.len(), &data[..2], data[3], &data[10..]), (12, &[0, 10][..], 0, &[0, 0][..]));
        (data[2], u64::from_be_bytes([0, 0, data[4], data[5], data[6], data[7], data[8], data[9]]))
    };
    clocks.0.store(5, Ordering::Relaxed);
    assert_eq!(told(host.good(&report, &[])), (3, 1_000_005_000));
    let set = padded(&[0xa4, 0x0f, 0, 0, 0, 0, 0, 0, 0, 12]);
    host.good(&set, &[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    clocks.0.store(7, Ordering::Relaxed);
    assert_eq!(other.code(&report), (6, 0x2a, 0x10), "TIMESTAMP CHANGED");
    assert_eq!(told(other.good(&report, &[])), (2, 256 + 2000));
    assert_eq!(host.code(&padded(&[0xa4, 0x0f, 0, 0, 0, 0, 0, 0, 0, 11])), LENGTH_ERROR);
    assert_eq!(host.run(&set, &[0; 11]).code(), LENGTH_ERROR);
    assert_eq!(host.code(&padded(&[0xa4, 0x0f])), GOOD);
}

/// REPORT (A3h) or SET (A4h) IDENTIFYING INFORMATION.
fn identifying(opcode: u8, action: u8, kind: u8, length: u32) -> [u8; 16] {
    let mut cdb = padded(&[opcode, action]);
    cdb[6..10].copy_from_slice(&length.to_be_bytes());
    cdb[10] = kind << 1;
    cdb
}

/// SPC-4: REPORT IDENTIFYING INFORMATION, SET IDENTIFYING INFORMATION.
#[test]
fn identifying_information_is_kept_over_a_restart() {
    let unit = Arc::new(LogicalUnit::new(config(), Saved::Nothing).expect("a possible unit"));
    let device = Device::new("iqn.x", [1], [(Lun::from_number(0), unit.clone())]).expect("a possible device");
    let device = Arc::new(device);
    let (mut host, mut other) = (Host::on(device.clone()), Host::on(device));
    assert_eq!(host.good(&identifying(0xa3, 5, 0, 64), &[]), [0; 4]);
    let supported = [0, 0, 0, 8, 0, 0, 0, 64, 4, 0, 1, 0];
    assert_eq!(host.good(&identifying(0xa3, 5, 127, 64), &[]), supported);
    host.good(&identifying(0xa4, 6, 0, 3), &[9, 8, 7]);
    assert_eq!(host.log(), [Io::SaveState]);
    assert_eq!(other.code(&[0]), (6, 0x3f, 0x05), "DEVICE IDENTIFIER CHANGED");
    host.good(&identifying(0xa4, 6, 2, 6), b"rack7\0");
    for wrong in [&b"rack7"[..], b"ra\0k7\0", b"\xff\0"] {
        let set = identifying(0xa4, 6, 2, wrong.len() as u32);
        assert_eq!(host.run(&set, wrong).field(), Some((0, None)), "{wrong:?}");
    }
    assert_eq!(host.run(&identifying(0xa4, 6, 0, 65), &[0; 65]).field(), Some((6, Some(7))));
    assert_eq!(host.run(&identifying(0xa4, 6, 1, 1), &[0]).field(), Some((10, Some(7))));

    let saved = unit.state();
    let again = LogicalUnit::new(config(), saved.saved()).expect("the same unit");
    let device = Device::new("iqn.x", [1], [(Lun::from_number(0), Arc::new(again))]).expect("a device");
    let mut host = Host::on(Arc::new(device));
    assert_eq!(host.good(&identifying(0xa3, 5, 0, 64), &[]), [0, 0, 0, 3, 9, 8, 7]);
    assert_eq!(host.good(&identifying(0xa3, 5, 2, 64), &[])[4..], *b"rack7\0");
    host.good(&identifying(0xa4, 6, 0, 0), &[]);
    assert_eq!(host.good(&identifying(0xa3, 5, 0, 64), &[]), [0; 4]);
    assert_eq!(host.good(&identifying(0xa3, 5, 2, 64), &[])[4..], *b"rack7\0", "the other one stays");
    assert_eq!(host.run(&identifying(0xa3, 5, 3, 64), &[]).status, Status::CheckCondition);
}

/// LOG SENSE.
fn log_sense(control: u8, page: u8, subpage: u8, pointer: u16) -> [u8; 16] {
    let mut cdb = padded(&[0x4d, 0, control << 6 | page, subpage]);
    cdb[5..7].copy_from_slice(&pointer.to_be_bytes());
    cdb[7] = 1;
    cdb
}

/// SPC-4: LOG SENSE, LOG SELECT, 00h Supported Log Pages, and with subpages, 02h Write Error Counter, 03h Read Error Counter.
#[test]
fn log_pages_count_what_the_store_gets_wrong() {
    let device = device(config());
    let (mut host, mut other) = (Host::on(device.clone()), Host::on(device));
    assert_eq!(host.good(&log_sense(1, 0, 0, 0), &[]), [0, 0, 0, 5, 0, 2, 3, 6, 0x2f]);
    let all = [0x40, 0xff, 0, 12, 0, 0, 0, 0xff, 2, 0, 3, 0, 6, 0, 0x2f, 0];
    assert_eq!(host.good(&log_sense(1, 0, 0xff, 0), &[]), all);
    host.disk.fail = Some((|io| matches!(io, Io::Read { .. }), IoError::Medium { offset_bytes: None }));
    (0..3).for_each(|_| assert_eq!(host.code(&cdb10(0x28, 0, 0, 1)), (3, 0x11, 0)));
    host.disk.fail = Some((|_| true, IoError::NoSpace));
    host.run(&cdb10(0x2a, 0, 0, 1), &[0; 512]);
    host.disk.fail = Some((|_| true, IoError::Hardware));
    host.run(&cdb10(0x2a, 0, 0, 1), &[0; 512]);
    let uncorrected = |data: Vec<u8>| data[16..].to_vec();
    let counter = |count: u8| [0, 6, 0, 8, 0, 0, 0, 0, 0, 0, 0, count];
    assert_eq!(uncorrected(host.good(&log_sense(1, 3, 0, 0), &[])), counter(3));
    assert_eq!(uncorrected(host.good(&log_sense(3, 3, 0, 0), &[])), counter(0), "the default");
    assert_eq!(uncorrected(host.good(&log_sense(1, 2, 0, 0), &[])), counter(0));
    assert_eq!(host.good(&log_sense(1, 3, 0, 4), &[])[4..], counter(3), "from a parameter on");
    assert_eq!(host.good(&log_sense(1, 6, 0, 0), &[])[8..], [0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(host.good(&log_sense(1, 0x2f, 0, 0), &[])[4..], [0, 0, 3, 4, 0, 0, 0xff, 0]);
    for (cdb, byte) in [
        (log_sense(1, 0x0d, 0, 0), 2),
        (log_sense(0, 3, 0, 0), 2),
        (log_sense(1, 3, 1, 0), 3),
        (log_sense(1, 3, 0, 7), 5),
    ] {
        assert_eq!(host.run(&cdb, &[]).field().map(|(byte, _)| byte), Some(byte), "{cdb:02x?}");
    }
    host.good(&[0x4c, 2], &[]);
    assert_eq!(other.code(&[0]), (6, 0x2a, 0x02), "LOG PARAMETERS CHANGED");
    assert_eq!(uncorrected(other.good(&log_sense(1, 3, 0, 0), &[])), counter(0));
    assert_eq!(host.run(&[0x4c, 0, 0, 0, 0, 0, 0, 0, 4, 0], &[0; 4]).field(), Some((7, Some(7))));
}

/// SBC-4: there is nothing to be started, stopped or put off, so doing nothing is right; what is reserved is refused.
#[test]
fn background_control_has_nothing_to_control() {
    let mut host = Host::new(config());
    for control in 0..3 {
        assert_eq!(host.code(&[0x9e, 0x15, control << 6, 0xff]), GOOD, "BO_CTL {control} with a BO_TIME");
    }
    assert_eq!(host.run(&[0x9e, 0x15, 0xc0], &[]).field(), Some((2, Some(7))));
    assert_eq!(host.run(&[0x9e, 0x15, 0x20], &[]).field(), Some((2, Some(5))));
    assert_eq!(host.log(), []);
    assert_eq!(host.good(&[0xa3, 0x0c, 0x02, 0x9e, 0, 0x15, 0, 0, 0, 64], &[])[1] & 0x07, 3, "supported");
    host.good(&[0x1b], &[]);
    assert_eq!(host.code(&[0x9e, 0x15]), GOOD, "also while the unit is stopped");
}
