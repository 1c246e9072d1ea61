//! What initiators ask the yardstick beside reads and writes: login, pings, task management, small commands
//! (RFC 7143, 11.5, 11.12, 11.14, 11.18).

use anyhow::{Result, bail, ensure};
use lunette_wire::frame::padding;
use lunette_wire::initiator::{LoginRequest, LoginStage, NopOut, ScsiCommand};
use lunette_wire::target::{
    LoginResponse, LogoutResponse, NopIn, Residual, ScsiDataIn, ScsiResponse, TaskManagementResponse,
};
use lunette_wire::{CmdSn, InitiatorPdu, InitiatorTaskTag, TargetTransferTag, Tsih};

use super::connection::Connection;
use super::login::answer;
use super::scsi::{self, Answer};
use super::store::Store;

impl Connection {
    pub(super) fn other_command(&mut self, pdu: &ScsiCommand, store: &Store) -> Result<()> {
        let answer = match pdu.lun.0 {
            [0, 0, ..] => scsi::answer(&pdu.cdb, store.bytes()),
            // LOGICAL UNIT NOT SUPPORTED.
            _ => Answer::Illegal(0x25),
        };
        match answer {
            Answer::Good => self.respond(pdu.initiator_task_tag),
            Answer::Flush => {
                store.flush()?;
                self.respond(pdu.initiator_task_tag);
            }
            Answer::Data(mut data) => {
                let expected = pdu.expected_data_transfer_length;
                data.truncate(expected as usize);
                let header = ScsiDataIn {
                    is_final: true,
                    status: Some(0),
                    residual: Residual::between(expected, data.len() as u64),
                    initiator_task_tag: pdu.initiator_task_tag,
                    target_transfer_tag: TargetTransferTag::RESERVED,
                    numbers: self.numbers(true),
                    ..ScsiDataIn::default()
                };
                self.outbox.push(&header.encode(data.len()));
                data.resize(data.len() + padding(data.len()), 0);
                self.outbox.push(&data);
            }
            Answer::Illegal(code) => {
                let sense = scsi::illegal_request(code);
                let response = ScsiResponse {
                    status: 2,
                    residual: Residual::between(pdu.expected_data_transfer_length, 0),
                    initiator_task_tag: pdu.initiator_task_tag,
                    numbers: self.numbers(true),
                    ..ScsiResponse::default()
                };
                self.outbox.push(&response.encode(sense.len()));
                self.outbox.push(&sense);
            }
        }
        Ok(())
    }

    /// What is neither a command nor its data.
    pub(super) fn control(&mut self, pdu: &InitiatorPdu, data: &[u8]) -> Result<()> {
        match pdu {
            InitiatorPdu::LoginRequest(request) => self.login(request, data)?,
            InitiatorPdu::NopOut(nop) => {
                self.count(nop.immediate, nop.cmd_sn);
                self.echo(nop, data);
            }
            InitiatorPdu::TaskManagementRequest(request) => {
                self.count(request.immediate, request.cmd_sn);
                let response = TaskManagementResponse {
                    response: 0,
                    additional: [0; 3],
                    initiator_task_tag: request.initiator_task_tag,
                    numbers: self.numbers(true),
                };
                self.outbox.push(&response.encode());
            }
            InitiatorPdu::LogoutRequest(request) => {
                self.count(request.immediate, request.cmd_sn);
                let response = LogoutResponse {
                    initiator_task_tag: request.initiator_task_tag,
                    numbers: self.numbers(true),
                    ..LogoutResponse::default()
                };
                self.outbox.push(&response.encode());
                self.is_ending = true;
            }
            _ => bail!("not known here: {pdu:?}"),
        }
        Ok(())
    }

    fn echo(&mut self, nop: &NopOut, data: &[u8]) {
        if nop.initiator_task_tag == InitiatorTaskTag::RESERVED {
            return;
        }
        let pong = NopIn {
            initiator_task_tag: nop.initiator_task_tag,
            target_transfer_tag: TargetTransferTag::RESERVED,
            numbers: self.numbers(true),
            ..NopIn::default()
        };
        self.outbox.push(&pong.encode(data.len()));
        self.outbox.push(data);
        self.outbox.push(&[0; 3][..padding(data.len())]);
    }

    fn login(&mut self, request: &LoginRequest, keys: &[u8]) -> Result<()> {
        ensure!(!request.is_continued, "a login that is spread over PDUs");
        let data = answer(request, keys, &mut self.agreed)?;
        self.exp_cmd_sn = request.cmd_sn;
        let is_last = request.transit && request.next_stage == LoginStage::FullFeature;
        let response = LoginResponse {
            transit: request.transit,
            is_continued: false,
            current_stage: request.current_stage,
            next_stage: request.next_stage,
            version_max: 0,
            version_active: 0,
            isid: request.isid,
            tsih: if is_last { Tsih(1) } else { request.tsih },
            initiator_task_tag: request.initiator_task_tag,
            numbers: self.numbers(true),
            status_class: 0,
            status_detail: 0,
        };
        self.outbox.push(&response.encode(data.len()));
        self.outbox.push(&data);
        self.outbox.push(&[0; 3][..padding(data.len())]);
        Ok(())
    }

    fn count(&mut self, immediate: bool, cmd_sn: CmdSn) {
        if !immediate {
            self.exp_cmd_sn = cmd_sn.next();
        }
    }
}
