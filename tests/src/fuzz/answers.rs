//! The application client: any bytes as the answer to any query, as sense data, and as the replies to a probe.
//!
//! Checked: every decoder ends; an answer that was cut off is asked for again at most with what it needs; what is shown of
//! a target's texts is fit for a terminal; a probe ends after a bounded number of commands.

use lunette_scsi::Status;
use lunette_scsi::client::mode::{self, ModeForm, PageControl};
use lunette_scsi::client::vpd::{self, block, identification};
use lunette_scsi::client::{
    ANSWER_BYTES_MAX, Next, Probe, Query, Reply, Sense, capacity, inquiry, lba_status, log, port_groups,
    reservations, unit,
};

use super::Input;

/// A probe sends every command once, once more if its answer was cut off, and again after 64 unit attentions and, for each of
/// its fifteen questions and each time, 30 times BUSY.
const PROBE_COMMANDS_MAX: usize = 2 * 15 + 64 + 2 * 15 * 30;
/// The longest answer that is made up for a probe.
const ANSWER_BYTES: usize = 96;

/// Decodes the input as everything that it could be, and then answers a probe with it.
///
/// # Panics
/// A property does not hold.
pub fn answers(data: &[u8]) {
    let mut input = Input(data);
    let (page, lba) = (input.byte(), u64::from_be_bytes(input.array()));
    decode(input.0, page, lba);
    probe(&mut input);
}

fn each<T>(query: Query<T>, data: &[u8]) {
    // A transport brings no more than what was asked for.
    let data = &data[..data.len().min(query.command().data_in_bytes() as usize)];
    let Err(error) = query.decode(data) else { return };
    check_text(&error.to_string());
    if let Some(longer) = query.longer(&error) {
        let (asked, now) = (query.command().data_in_bytes(), longer.command().data_in_bytes());
        assert!(asked < now && now <= ANSWER_BYTES_MAX, "{asked} {now}");
        assert!(error.needed_bytes().is_some_and(|needed| needed > data.len()));
    }
}

fn check_text(text: &str) {
    assert!(!text.chars().any(char::is_control), "{text:?}");
}

fn decode(data: &[u8], page: u8, lba: u64) {
    each(vpd::page(page), data);
    each(vpd::supported_pages(), data);
    each(vpd::extended_inquiry(), data);
    each(block::limits(), data);
    each(block::characteristics(), data);
    each(block::provisioning(), data);
    each(capacity::read_capacity_10(), data);
    each(capacity::report_luns(), data);
    each(lba_status::get_lba_status(lba), data);
    each(log::page(page), data);
    each(log::space(), data);
    each(log::supported_pages(), data);
    each(reservations::read_keys(), data);
    each(reservations::read_reservation(), data);
    each(reservations::report_capabilities(), data);
    each(port_groups::report_target_port_groups(), data);
    each(unit::supported_operation_codes(), data);
    each(unit::is_supported(page, None), data);
    each(unit::task_management(), data);
    for form in [ModeForm::Six, ModeForm::Ten] {
        each(mode::mode_sense(form, mode::ALL, PageControl::Current), data);
    }
    if let Ok(found) = capacity::read_capacity_16().decode(data) {
        assert!(found.blocks > 0 && found.bytes() / found.blocks == u64::from(found.block_length_bytes));
    }
    if let Ok(inquiry) = inquiry::standard().decode(data) {
        [inquiry.vendor, inquiry.product, inquiry.revision].iter().for_each(|text| check_text(text));
    }
    if let Ok(serial) = vpd::unit_serial_number().decode(data) {
        check_text(&serial);
    }
    let names = identification::device_identification().decode(data).unwrap_or_default();
    let ports = identification::scsi_ports().decode(data).unwrap_or_default();
    let of_ports = ports.into_iter().flat_map(|port| port.designations);
    names.into_iter().chain(of_ports).for_each(|name| check_text(&name.designator.to_string()));
    if let Ok(full) = reservations::read_full_status().decode(data) {
        full.registrants.iter().for_each(|registrant| check_text(&registrant.initiator.to_string()));
    }
    if let Some(sense) = Sense::decode(data) {
        check_text(&sense.to_string());
    }
}

/// Each reply: a byte that says which of the commands under way ends, a byte that says how, then the answer or the sense data.
fn probe(input: &mut Input<'_>) {
    let mut probe = Probe::new().with_write_same().with_port_groups();
    let mut under_way = Vec::new();
    let mut commands = 0;
    loop {
        match probe.proceed() {
            Next::Send(ticket, command) => {
                commands += 1;
                assert!(commands <= PROBE_COMMANDS_MAX, "the probe does not end");
                assert!(under_way.iter().all(|(other, _)| *other != ticket), "two questions with one ticket");
                under_way.push((ticket, command));
            }
            Next::Wait => {
                assert!(!under_way.is_empty(), "it waits for nothing");
                let (ticket, command) = under_way.swap_remove(usize::from(input.byte()) % under_way.len());
                let choice = input.byte();
                let bytes = input.bytes(usize::from(choice >> 2).min(ANSWER_BYTES)).to_vec();
                let length = bytes.len().min(command.data_in_bytes() as usize);
                let nothing: &[u8] = &[];
                let (status, sense, data) = match choice & 3 {
                    3 => (Status::CheckCondition, &bytes[..], nothing),
                    2 => (Status::Busy, nothing, nothing),
                    _ => (Status::Good, nothing, &bytes[..length]),
                };
                probe.answered(ticket, Reply { status: Some(status), sense, data });
            }
            Next::Pause => {
                assert!(under_way.is_empty(), "it pauses with commands under way");
                probe.rested();
            }
            Next::Done => break,
        }
    }
    assert!(under_way.is_empty(), "it is done with commands under way");
    if let Err(error) = probe.into_facts() {
        check_text(&error.to_string());
    }
}
