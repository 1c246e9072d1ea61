//! What the initiator gets, checked field by field against RFC 7143 and against what it knows.

use lunette_wire::initiator::{LoginStage, NopOut, TextRequest};
use lunette_wire::target::{
    LoginResponse, NopIn, Numbers, ReadyToTransfer, Reject, ScsiDataIn, ScsiResponse, TaskManagementResponse,
};
use lunette_wire::text::pairs;
use lunette_wire::{Bhs, InitiatorPdu, InitiatorTaskTag, TargetPdu, TargetTransferTag};

use super::{End, Initiator, Outgoing, Request, Task};
use crate::double::frame::decode;
use crate::double::target::GOOD;

impl Initiator {
    /// Takes one PDU of the target's.
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        assert!(!self.logged_out, "a PDU came behind the Logout Response");
        let received = decode(bytes, self.connection.digests, self.connection.max_recv_data_segment_length);
        assert!(received.header_intact && received.data_intact, "a digest of the target's is wrong");
        let (bhs, data) = (received.bhs, received.data);
        let pdu = TargetPdu::decode(&bhs).expect("a target's PDU");
        match pdu {
            TargetPdu::LoginResponse(pdu) => self.take_login(&pdu, &data),
            TargetPdu::ScsiResponse(pdu) => self.take_response(&pdu, &data),
            TargetPdu::ScsiDataIn(pdu) => self.take_data_in(&pdu, &data),
            TargetPdu::ReadyToTransfer(pdu) => self.take_r2t(&pdu),
            TargetPdu::TaskManagementResponse(pdu) => self.take_management(&pdu),
            TargetPdu::NopIn(pdu) => self.take_nop_in(&pdu, &data),
            TargetPdu::Reject(pdu) => self.take_reject(&pdu, &data),
            TargetPdu::LogoutResponse(pdu) => {
                self.count_status(pdu.numbers);
                assert_eq!(self.requests.remove(&pdu.initiator_task_tag.0), Some(Request::Logout));
                assert_eq!(pdu.response, 0);
                self.logged_out = true;
                self.conclude_all();
            }
            TargetPdu::TextResponse(pdu) => {
                self.count_status(pdu.numbers);
                self.texts.extend_from_slice(&data);
                if pdu.is_final {
                    assert_eq!(self.requests.remove(&pdu.initiator_task_tag.0), Some(Request::Text));
                } else {
                    let next = TextRequest {
                        immediate: true,
                        is_final: true,
                        initiator_task_tag: pdu.initiator_task_tag,
                        target_transfer_tag: pdu.target_transfer_tag,
                        cmd_sn: self.cmd_sn,
                        ..TextRequest::default()
                    };
                    self.queue.push_back(Outgoing::Pdu(InitiatorPdu::TextRequest(next), Vec::new()));
                }
            }
            TargetPdu::AsynchronousMessage(pdu) => {
                self.count_status(pdu.numbers);
                assert_eq!(pdu.event, 1, "the only event that is used");
                self.logout_requests += 1;
            }
        }
    }

    fn take_login(&mut self, pdu: &LoginResponse, data: &[u8]) {
        assert!(!self.logged_in);
        self.login_status = Some((pdu.status_class, pdu.status_detail));
        if pdu.status_class != 0 {
            return;
        }
        self.count_status(pdu.numbers);
        if pdu.current_stage == LoginStage::Security {
            return self.authenticate(pdu, data);
        }
        assert!(pdu.transit && pdu.next_stage == LoginStage::FullFeature && pdu.tsih.0 != 0);
        self.session.max_burst_length = 262_144;
        for (key, value) in pairs(data).expect("text of key=value pairs") {
            let number = value.parse::<u32>();
            match key {
                "InitialR2T" => self.session.initial_r2t = value == "Yes",
                "ImmediateData" => self.session.immediate_data = value == "Yes",
                "MaxBurstLength" => self.session.max_burst_length = number.unwrap_or(262_144),
                "FirstBurstLength" => self.session.first_burst_length = number.unwrap_or(65536),
                "MaxOutstandingR2T" => self.session.max_outstanding_r2t = number.unwrap_or(1) as u16,
                "MaxRecvDataSegmentLength" => {
                    self.connection.max_send_data_segment_length = number.expect("a number");
                }
                "HeaderDigest" => self.connection.digests.header = value == "CRC32C",
                "DataDigest" => self.connection.digests.data = value == "CRC32C",
                _ => {}
            }
        }
        self.session.first_burst_length = self.session.first_burst_length.min(self.session.max_burst_length);
        self.logged_in = true;
    }

    /// Checks a PDU that uses up a StatSN, and the numbers in it.
    fn count_status(&mut self, numbers: Numbers) {
        let expected = *self.exp_stat_sn.get_or_insert(numbers.stat_sn);
        assert_eq!(numbers.stat_sn, expected, "StatSN has a gap or a repetition");
        self.exp_stat_sn = Some(expected.next());
        self.count_commands(numbers);
    }

    fn count_commands(&mut self, numbers: Numbers) {
        assert!(!numbers.exp_cmd_sn.precedes(self.exp_cmd_sn), "ExpCmdSN went backwards");
        assert!(!self.cmd_sn.precedes(numbers.exp_cmd_sn), "ExpCmdSN is ahead of what was sent");
        assert!(!numbers.max_cmd_sn.precedes(self.max_cmd_sn), "MaxCmdSN went backwards");
        assert!(!numbers.max_cmd_sn.next().precedes(numbers.exp_cmd_sn), "MaxCmdSN is below ExpCmdSN - 1");
        self.exp_cmd_sn = numbers.exp_cmd_sn;
        self.max_cmd_sn = numbers.max_cmd_sn;
    }

    fn end(&mut self, tag: InitiatorTaskTag, end: End) -> Task {
        let task = self.tasks.remove(&tag.0).expect("an answer to a task that is open");
        assert_eq!(self.ends.insert(tag.0, end), None, "a task was answered twice");
        task
    }

    fn take_response(&mut self, pdu: &ScsiResponse, data: &[u8]) {
        self.count_status(pdu.numbers);
        assert_eq!(pdu.response, 0);
        let sense = match data {
            [] => Vec::new(),
            [high, low, sense @ ..] => {
                assert_eq!(usize::from(u16::from_be_bytes([*high, *low])), sense.len());
                sense.to_vec()
            }
            _ => panic!("a SenseLength of one byte"),
        };
        let end = End::Answered {
            status: pdu.status,
            residual: pdu.residual,
            sense,
            data: self.tasks.get(&pdu.initiator_task_tag.0).map_or_else(Vec::new, |task| task.data.clone()),
        };
        let task = self.end(pdu.initiator_task_tag, end);
        // The number of Data-In PDUs, which a write has none of (11.4.8).
        assert_eq!(pdu.exp_data_sn, task.next_data_sn);
        assert_eq!(task.r2ts_open, 0, "answered with an R2T outstanding");
    }

    fn take_data_in(&mut self, pdu: &ScsiDataIn, data: &[u8]) {
        if pdu.status.is_some() {
            self.count_status(pdu.numbers);
        } else {
            self.count_commands(pdu.numbers);
        }
        let task = self.tasks.get_mut(&pdu.initiator_task_tag.0).expect("data for a task that is open");
        assert_eq!(pdu.data_sn, task.next_data_sn);
        assert_eq!(pdu.buffer_offset as usize, task.data.len());
        assert!(!data.is_empty());
        task.next_data_sn = task.next_data_sn.next();
        task.data.extend_from_slice(data);
        task.burst += data.len() as u32;
        assert!(task.burst <= self.session.max_burst_length, "a sequence longer than MaxBurstLength");
        assert!(task.data.len() <= task.command.expected_data_transfer_length as usize);
        self.segments += 1;
        if pdu.is_final {
            self.sequences += 1;
            task.burst = 0;
        }
        if let Some(status) = pdu.status {
            assert!(pdu.is_final && status == GOOD);
            let end = End::Answered {
                status,
                residual: pdu.residual,
                sense: Vec::new(),
                data: std::mem::take(&mut task.data),
            };
            self.end(pdu.initiator_task_tag, end);
        }
    }

    fn take_r2t(&mut self, pdu: &ReadyToTransfer) {
        self.count_commands(pdu.numbers);
        assert_eq!(Some(pdu.numbers.stat_sn), self.exp_stat_sn, "an R2T shows the next StatSN");
        assert_ne!(pdu.target_transfer_tag, TargetTransferTag::RESERVED);
        let limit = self.session.max_outstanding_r2t;
        let tag = pdu.initiator_task_tag;
        let task = self.tasks.get_mut(&tag.0).expect("an R2T for a task that is open");
        assert_eq!(pdu.lun, task.command.lun);
        assert_eq!(pdu.r2t_sn, task.next_r2t_sn);
        assert_eq!(pdu.buffer_offset, task.next_r2t_offset, "ranges follow one another");
        assert!(pdu.desired_length > 0 && pdu.desired_length <= self.session.max_burst_length);
        let end = pdu.buffer_offset + pdu.desired_length;
        assert!(end <= task.command.expected_data_transfer_length);
        task.next_r2t_sn = task.next_r2t_sn.next();
        task.next_r2t_offset = end;
        task.r2ts_open += 1;
        assert!(task.r2ts_open <= limit, "more R2Ts outstanding than agreed");
        self.r2ts += 1;
        self.last_r2t = pdu.target_transfer_tag;
        self.r2ts_open_max = self.r2ts_open_max.max(task.r2ts_open);
        let is_being_aborted = self
            .requests
            .values()
            .any(|request| matches!(request, Request::Management(tags) if tags.contains(&tag.0)));
        if self.manners.answers_r2ts && (self.manners.sends_for_aborted || !is_being_aborted) {
            self.queue_data(tag, pdu.lun, pdu.target_transfer_tag, pdu.buffer_offset..end);
        }
    }

    fn take_management(&mut self, pdu: &TaskManagementResponse) {
        self.count_status(pdu.numbers);
        let tag = pdu.initiator_task_tag.0;
        let Some(Request::Management(affected)) = self.requests.remove(&tag) else {
            panic!("a response to no function");
        };
        self.outcomes.insert(tag, pdu.response);
        if pdu.response == 0 {
            self.forget_queued_data(&affected);
            for task in affected {
                if self.tasks.remove(&task).is_some() {
                    self.ends.insert(task, End::Aborted);
                }
            }
        }
    }

    fn take_nop_in(&mut self, pdu: &NopIn, data: &[u8]) {
        if pdu.initiator_task_tag == InitiatorTaskTag::RESERVED {
            self.count_commands(pdu.numbers);
            assert_eq!(Some(pdu.numbers.stat_sn), self.exp_stat_sn, "a ping uses up no StatSN");
            if pdu.target_transfer_tag == TargetTransferTag::RESERVED {
                // It only carries numbers (11.19) and wants no answer.
                return;
            }
            self.pings += 1;
            if self.manners.answers_pings {
                let answer = NopOut {
                    immediate: true,
                    lun: pdu.lun,
                    initiator_task_tag: InitiatorTaskTag::RESERVED,
                    target_transfer_tag: pdu.target_transfer_tag,
                    cmd_sn: self.cmd_sn,
                    exp_stat_sn: self.exp_stat_sn.unwrap_or_default(),
                };
                self.queue.push_back(Outgoing::Pdu(InitiatorPdu::NopOut(answer), Vec::new()));
            }
            return;
        }
        self.count_status(pdu.numbers);
        assert_eq!(pdu.target_transfer_tag, TargetTransferTag::RESERVED);
        let Some(Request::Ping(mut sent)) = self.requests.remove(&pdu.initiator_task_tag.0) else {
            panic!("an answer to no ping");
        };
        sent.truncate(self.connection.max_recv_data_segment_length as usize);
        assert_eq!(data, sent, "a ping comes back as it was, as far as it fits");
    }

    fn take_reject(&mut self, pdu: &Reject, data: &[u8]) {
        self.count_status(pdu.numbers);
        let header: Bhs = data.try_into().expect("the header of the rejected PDU");
        let rejected = InitiatorTaskTag(u32::from_be_bytes([header[16], header[17], header[18], header[19]]));
        self.requests.remove(&rejected.0);
        self.rejects.push(pdu.reason);
    }
}
