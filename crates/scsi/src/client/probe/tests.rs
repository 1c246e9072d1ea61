use super::*;
use crate::sense::{AdditionalSense, SenseData, SenseKey};

const GOOD: Reply<'static> = Reply { status: Some(Status::Good), sense: &[], data: &[] };

fn command(probe: &Probe) -> &'static str {
    match probe.next() {
        Next::Send(command) | Next::SendLater(command) => command.name(),
        Next::Done => "",
    }
}

fn good<'a>(data: &'a [u8]) -> Reply<'a> {
    Reply { data, ..GOOD }
}

fn refuse(probe: &mut Probe, key: SenseKey, code: AdditionalSense) -> Result<(), ProbeError> {
    let sense = SenseData::new(key, code).encode(false);
    probe.answered(Reply { status: Some(Status::CheckCondition), sense: sense.as_bytes(), data: &[] })
}

fn unknown(probe: &mut Probe) -> Result<(), ProbeError> {
    refuse(probe, SenseKey::IllegalRequest, AdditionalSense::INVALID_COMMAND_OPERATION_CODE)
}

/// A probe that knows that there is a disk.
fn of_disk() -> Probe {
    let mut probe = Probe::new();
    let mut data = [0; 36];
    data[4] = 31;
    probe.answered(good(&data)).unwrap();
    assert_eq!(command(&probe), "TEST UNIT READY");
    probe
}

#[test]
fn the_plainest_disk_of_old() {
    let mut probe = of_disk();
    probe.answered(GOOD).unwrap();
    assert_eq!(command(&probe), "INQUIRY");
    unknown(&mut probe).unwrap();
    assert_eq!(command(&probe), "READ CAPACITY(16)");
    unknown(&mut probe).unwrap();
    assert_eq!(command(&probe), "READ CAPACITY(10)");
    probe.answered(good(&[0, 0, 0, 9, 0, 0, 2, 0])).unwrap();
    assert_eq!(command(&probe), "MODE SENSE(6)");
    unknown(&mut probe).unwrap();
    assert_eq!(command(&probe), "MODE SENSE(10)");
    unknown(&mut probe).unwrap();
    assert_eq!(probe.next(), Next::Done);
    let facts = probe.into_facts();
    assert_eq!(facts.capacity.map(|capacity| capacity.blocks), Some(10));
    assert!(facts.has_write_cache() && !facts.is_write_protected());
    assert_eq!(facts.transfer_blocks_max(1 << 20), 2048);
}

#[test]
fn unit_attentions_are_drained_and_kept() {
    let mut probe = of_disk();
    refuse(&mut probe, SenseKey::UnitAttention, AdditionalSense::POWER_ON).unwrap();
    refuse(&mut probe, SenseKey::UnitAttention, AdditionalSense::CAPACITY_CHANGED).unwrap();
    assert_eq!(command(&probe), "TEST UNIT READY");
    probe.answered(GOOD).unwrap();
    refuse(&mut probe, SenseKey::UnitAttention, AdditionalSense::POWER_ON).unwrap();
    assert_eq!(command(&probe), "INQUIRY");
    assert_eq!(probe.facts().attentions.len(), 3);
    let endless = (0..ATTENTIONS_MAX)
        .find_map(|_| refuse(&mut probe, SenseKey::UnitAttention, AdditionalSense::POWER_ON).err());
    assert_eq!(endless, Some(ProbeError::EndlessAttentions));
}

#[test]
fn a_busy_unit_is_asked_later_and_not_for_ever() {
    let busy = Reply { status: Some(Status::Busy), ..GOOD };
    let mut probe = of_disk();
    for _ in 0..RETRIES_MAX {
        probe.answered(busy).unwrap();
        assert!(matches!(probe.next(), Next::SendLater(_)));
    }
    let error = probe.answered(busy).unwrap_err();
    assert_eq!(error.to_string(), "the target refused TEST UNIT READY: BUSY");
}

#[test]
fn a_unit_that_is_not_ready_is_told_as_such() {
    let mut probe = of_disk();
    let sense = (SenseKey::NotReady, AdditionalSense::MEDIUM_NOT_PRESENT);
    refuse(&mut probe, sense.0, sense.1).unwrap();
    for _ in 0..5 {
        refuse(&mut probe, sense.0, sense.1).unwrap();
    }
    assert_eq!(probe.next(), Next::Done);
    let facts = probe.into_facts();
    assert_eq!(facts.not_ready.map(|sense| sense.code), Some(AdditionalSense::MEDIUM_NOT_PRESENT));
    assert_eq!(facts.capacity, None);
}

#[test]
fn a_disk_without_a_capacity_is_an_error() {
    let mut probe = of_disk();
    probe.answered(GOOD).unwrap();
    for _ in 0..2 {
        unknown(&mut probe).unwrap();
    }
    assert!(matches!(unknown(&mut probe), Err(ProbeError::Refused { command: "READ CAPACITY(10)", .. })));
}

#[test]
fn what_was_cut_off_is_asked_for_once_more_and_then_left_out() {
    let mut probe = of_disk();
    probe.answered(GOOD).unwrap();
    probe.answered(good(&[0, 0x00, 0, 2, 0x80, 0x83])).unwrap();
    let cut = [0, 0x80, 0x10, 0];
    probe.answered(good(&cut)).unwrap();
    let Next::Send(longer) = probe.next() else { panic!("not done") };
    assert_eq!((longer.cdb()[2], longer.data_in_bytes()), (0x80, 0x1004));
    probe.answered(good(&[0, 0x80, 0x20, 0])).unwrap();
    let Next::Send(next) = probe.next() else { panic!("not done") };
    assert_eq!((next.cdb()[2], next.data_in_bytes()), (0x83, 255), "the next page, as usual");
    assert_eq!(probe.facts().serial, "");
}

#[test]
fn no_disk_and_no_unit() {
    let mut data = [0; 36];
    data[4] = 31;
    data[0] = 0x7f;
    assert_eq!(Probe::new().answered(good(&data)), Err(ProbeError::NoUnit));
    data[0] = 0x05;
    let mut probe = Probe::new();
    probe.answered(good(&data)).unwrap();
    probe.answered(GOOD).unwrap();
    unknown(&mut probe).unwrap();
    assert_eq!(probe.next(), Next::Done, "no capacity is asked for");
    assert!(matches!(Probe::new().answered(good(&[0; 4])), Err(ProbeError::Malformed(_))));
}
