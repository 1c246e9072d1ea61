//! What is built here is what the device server's command table takes: the same names, no bit set that it does not know.

use super::medium::{BlockRange, Caching, CdbForm, Comparison, SameBlock};
use super::mode::{ModeForm, ModePage, PageControl};
use super::reservations::{self, RegisterOptions, ReservationType, ReserveOut};
use super::unit::{Sanitize, StartStop};
use super::{Command, Transfer, capacity, inquiry, lba_status, log, medium, mode, port_groups, unit, vpd};
use crate::AccessState;
use crate::commands::check_cdb;

fn of_the_medium() -> Vec<(Command, &'static str)> {
    let range = BlockRange { lba: 0x1234, blocks: 200, block_length_bytes: 512 };
    let caching = Caching { disable_page_out: true, force_unit_access: true };
    let mut all = Vec::new();
    for (form, names) in [
        (
            CdbForm::Ten,
            [
                "READ(10)",
                "WRITE(10)",
                "WRITE AND VERIFY(10)",
                "VERIFY(10)",
                "WRITE SAME(10)",
                "SYNCHRONIZE CACHE(10)",
                "PRE-FETCH(10)",
            ],
        ),
        (
            CdbForm::Sixteen,
            [
                "READ(16)",
                "WRITE(16)",
                "WRITE AND VERIFY(16)",
                "VERIFY(16)",
                "WRITE SAME(16)",
                "SYNCHRONIZE CACHE(16)",
                "PRE-FETCH(16)",
            ],
        ),
    ] {
        let commands = [
            medium::read(form, range, caching),
            medium::write(form, range, caching),
            medium::write_and_verify(form, range, true),
            medium::verify(form, range, Comparison::OneBlock),
            medium::write_same(form, range, SameBlock::DataOrUnmap),
            medium::synchronize_cache(form, range),
            medium::pre_fetch(form, range, true),
        ];
        all.extend(commands.map(Result::unwrap).into_iter().zip(names));
    }
    let zeros = medium::write_same(CdbForm::Sixteen, range, SameBlock::ZerosUnmapped);
    all.push((zeros.unwrap(), "WRITE SAME(16)"));
    all.push((medium::compare_and_write(range, caching).unwrap(), "COMPARE AND WRITE"));
    all.push((medium::unmap(&[(1, 2)], false).unwrap(), "UNMAP"));
    all.push((lba_status::get_lba_status(7).command().clone(), "GET LBA STATUS"));
    all
}

fn of_the_unit() -> Vec<(Command, &'static str)> {
    let page = ModePage { code: 8, subpage: 0, savable: false, bytes: vec![8, 0] };
    let current = PageControl::Current;
    let overwrite = Sanitize::Overwrite { pattern: vec![0], passes: 1, invert: false };
    vec![
        (unit::test_unit_ready(), "TEST UNIT READY"),
        (unit::request_sense(true).command().clone(), "REQUEST SENSE"),
        (inquiry::standard().command().clone(), "INQUIRY"),
        (vpd::page(0xb0).command().clone(), "INQUIRY"),
        (capacity::read_capacity_10().command().clone(), "READ CAPACITY(10)"),
        (capacity::read_capacity_16().command().clone(), "READ CAPACITY(16)"),
        (capacity::report_luns().command().clone(), "REPORT LUNS"),
        (mode::mode_sense(ModeForm::Six, mode::ALL, current).command().clone(), "MODE SENSE(6)"),
        (mode::mode_sense(ModeForm::Ten, mode::CACHING, current).command().clone(), "MODE SENSE(10)"),
        (mode::mode_select(ModeForm::Six, std::slice::from_ref(&page), true).unwrap(), "MODE SELECT(6)"),
        (mode::mode_select(ModeForm::Ten, &[page], true).unwrap(), "MODE SELECT(10)"),
        (unit::start_stop_unit(StartStop::Eject, true), "START STOP UNIT"),
        (unit::sanitize(&overwrite, true, true).unwrap(), "SANITIZE, OVERWRITE"),
        (unit::sanitize(&Sanitize::BlockErase, true, true).unwrap(), "SANITIZE, BLOCK ERASE"),
        (unit::sanitize(&Sanitize::ExitFailureMode, true, true).unwrap(), "SANITIZE, EXIT FAILURE MODE"),
        (unit::supported_operation_codes().command().clone(), "REPORT SUPPORTED OPERATION CODES"),
        (unit::is_supported(0x9e, Some(0x10)).command().clone(), "REPORT SUPPORTED OPERATION CODES"),
        (unit::task_management().command().clone(), "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS"),
        (log::page(2).command().clone(), "LOG SENSE"),
        (port_groups::report_target_port_groups().command().clone(), "REPORT TARGET PORT GROUPS"),
        (
            port_groups::set_target_port_groups(&[(1, AccessState::Standby)]).unwrap(),
            "SET TARGET PORT GROUPS",
        ),
    ]
}

fn of_reservations() -> Vec<(Command, &'static str)> {
    let kind = ReservationType::ExclusiveAccessAllRegistrants;
    let options = RegisterOptions { persist: true, ..RegisterOptions::default() };
    let out = |out: &ReserveOut| reservations::reserve_out(out).unwrap();
    let port = "iqn.x,i,0x000000000001".to_owned();
    vec![
        (reservations::read_keys().command().clone(), "PERSISTENT RESERVE IN, READ KEYS"),
        (reservations::read_reservation().command().clone(), "PERSISTENT RESERVE IN, READ RESERVATION"),
        (reservations::report_capabilities().command().clone(), "PERSISTENT RESERVE IN, REPORT CAPABILITIES"),
        (reservations::read_full_status().command().clone(), "PERSISTENT RESERVE IN, READ FULL STATUS"),
        (
            out(&ReserveOut::Register { key: 1, new_key: 2, options: options.clone() }),
            "PERSISTENT RESERVE OUT, REGISTER",
        ),
        (out(&ReserveOut::Reserve { key: 1, kind }), "PERSISTENT RESERVE OUT, RESERVE"),
        (out(&ReserveOut::Release { key: 1, kind }), "PERSISTENT RESERVE OUT, RELEASE"),
        (out(&ReserveOut::Clear { key: 1 }), "PERSISTENT RESERVE OUT, CLEAR"),
        (
            out(&ReserveOut::Preempt { key: 1, victim: 2, kind, abort: false }),
            "PERSISTENT RESERVE OUT, PREEMPT",
        ),
        (
            out(&ReserveOut::Preempt { key: 1, victim: 2, kind, abort: true }),
            "PERSISTENT RESERVE OUT, PREEMPT AND ABORT",
        ),
        (
            out(&ReserveOut::RegisterAndIgnore { new_key: 2, options }),
            "PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY",
        ),
        (
            out(&ReserveOut::Move {
                key: 1,
                new_key: 2,
                unregister: true,
                persist: true,
                target_port: 1,
                initiator_port: port,
            }),
            "PERSISTENT RESERVE OUT, REGISTER AND MOVE",
        ),
        (
            out(&ReserveOut::ReplaceLost { new_key: 1, kind, persist: true }),
            "PERSISTENT RESERVE OUT, REPLACE LOST RESERVATION",
        ),
    ]
}

#[test]
fn every_command_is_one_that_the_device_server_takes() {
    for (command, name) in [of_the_medium(), of_the_unit(), of_reservations()].concat() {
        assert_eq!(command.name(), name);
        assert_eq!(check_cdb(&command.padded_cdb()), Ok(()), "{name}");
        let length = command.cdb().len();
        assert_eq!(command.padded_cdb()[length..], [0; 16][length..], "{name}");
    }
}

#[test]
fn a_command_transfers_in_one_direction() {
    for (command, name) in [of_the_medium(), of_the_unit(), of_reservations()].concat() {
        assert!(command.data_in_bytes() == 0 || command.data_out_bytes() == 0, "{name}");
        let has_data = command.data_in_bytes() > 0 || command.data_out_bytes() > 0;
        assert_eq!(has_data, command.transfer() != &Transfer::None, "{name}");
    }
}
