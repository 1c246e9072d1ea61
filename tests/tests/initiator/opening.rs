//! Units whose target does not give a usable answer to a question that none has to answer: they are opened without it.

use std::net::{SocketAddr, TcpListener};

use lunette_initiator::multipath::{self, PathOptions, PathState};
use lunette_tests::attach::Attached;
use lunette_tests::engine::{lun, options};
use lunette_wire::target::{Residual, ScsiResponse};
use lunette_wire::{DataSn, InitiatorPdu, StatSn, TargetPdu};

use super::hostile::{NAME, Script};

const INQUIRY: u8 = 0x12;
const MODE_SENSE_6: u8 = 0x1a;
const READ_CAPACITY_16: u8 = 0x9e;
/// REPORT SUPPORTED OPERATION CODES and REPORT TARGET PORT GROUPS.
const MAINTENANCE_IN: u8 = 0xa3;

/// What a small disk without VPD pages answers; `None`: that all came, and nothing does.
fn answer(cdb: &[u8; 16], broken: u8) -> Option<Vec<u8>> {
    match cdb[0] {
        opcode if opcode == broken => None,
        // Four bytes of header, and no page in the list.
        INQUIRY if cdb[1] & 1 == 1 => Some(vec![0; 4]),
        INQUIRY => Some([&[0, 0, 6, 2, 31][..], &[0; 31]].concat()),
        READ_CAPACITY_16 => Some([&[0, 0, 0, 0, 0, 0, 0, 63, 0, 0, 2, 0][..], &[0; 20]].concat()),
        MODE_SENSE_6 => Some(vec![3, 0, 0, 0]),
        _ => Some(Vec::new()),
    }
}

/// A target whose answer to one command is faulty.
fn serve(broken: u8) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let mut target = Script::log_in(listener.accept().expect("a connection").0);
        while let Some(pdu) = target.try_receive() {
            let InitiatorPdu::ScsiCommand(command) = pdu else { return };
            let wanted = command.expected_data_transfer_length;
            let mut data = answer(&command.cdb, broken);
            if let Some(data) = data.as_mut().filter(|data| !data.is_empty()) {
                data.truncate(wanted as usize);
                target.say(&TargetPdu::ScsiDataIn(target.data_in(&command)), data);
            }
            let length = data.as_ref().map_or(0, Vec::len);
            let residual = match wanted - length as u32 {
                missing if missing > 0 && data.is_some() => Residual::Underflow(missing),
                _ => Residual::None,
            };
            let exp_data_sn = DataSn((length > 0).into());
            let response = ScsiResponse { residual, exp_data_sn, ..target.response(&command) };
            target.say(&TargetPdu::ScsiResponse(response), &[]);
            target.stat_sn = StatSn(target.stat_sn.0.wrapping_add(1));
        }
    });
    address
}

fn attach(broken: u8) -> anyhow::Result<Attached> {
    Attached::start(&format!("iscsi://{}/{NAME}/0", serve(broken)), &[])
}

#[test]
fn a_disk_is_attached_without_answers_that_nobody_needs() {
    for broken in [MAINTENANCE_IN, MODE_SENSE_6] {
        let attached = attach(broken).unwrap_or_else(|error| panic!("{broken:02x}: {error}"));
        attached.detach().expect("nothing was written");
    }
    for broken in [INQUIRY, READ_CAPACITY_16] {
        assert!(attach(broken).is_err(), "{broken:02x}");
    }
}

#[test]
fn a_path_is_opened_by_a_unit_that_does_not_tell_its_port_groups() {
    let path = PathOptions::new(options(NAME, serve(MAINTENANCE_IN)), lun(0));
    let engine = multipath::Engine::connect(multipath::Options::new(vec![path]));
    let engine = engine.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(engine.paths()[0].state, PathState::Up);
}
