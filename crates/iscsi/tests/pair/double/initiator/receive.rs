//! What the initiator gets, checked field by field against RFC 7143 and against what it knows.

use lunette_wire::initiator::{LoginStage, NopOut, TextRequest};
use lunette_wire::target::{
    LoginResponse, NopIn, Numbers, ReadyToTransfer, Reject, ScsiDataIn, ScsiResponse, TaskManagementResponse,
};
use lunette_wire::text::pairs;
use lunette_wire::{Bhs, InitiatorPdu, InitiatorTaskTag, TargetPdu, TargetTransferTag};

use super::{End, Initiator, Kind, Outgoing, Task};
use crate::double::frame::decode;
use crate::double::target::GOOD;

impl Initiator {
    /// Takes one PDU of the target's from a connection.
    pub(crate) fn receive(&mut self, at: usize, bytes: &[u8]) {
        assert!(!self.logged_out, "a PDU came behind the Logout Response");
        let agreed = &self.links[at].connection;
        let received = decode(bytes, agreed.digests, agreed.max_recv_data_segment_length);
        assert!(received.header_intact && received.data_intact, "a digest of the target's is wrong");
        let (bhs, data) = (received.bhs, received.data);
        let pdu = TargetPdu::decode(&bhs).expect("a target's PDU");
        match pdu {
            TargetPdu::LoginResponse(pdu) => self.take_login(at, &pdu, &data),
            TargetPdu::ScsiResponse(pdu) => self.take_response(at, &pdu, &data),
            TargetPdu::ScsiDataIn(pdu) => self.take_data_in(at, &pdu, &data),
            TargetPdu::ReadyToTransfer(pdu) => self.take_r2t(at, &pdu),
            TargetPdu::TaskManagementResponse(pdu) => self.take_management(at, &pdu),
            TargetPdu::NopIn(pdu) => self.take_nop_in(at, &pdu, &data),
            TargetPdu::Reject(pdu) => self.take_reject(at, &pdu, &data),
            TargetPdu::LogoutResponse(pdu) => {
                self.count_status(at, pdu.numbers);
                let Kind::Logout(of) = self.answered(at, pdu.initiator_task_tag) else {
                    panic!("an answer to no logout")
                };
                assert_eq!(pdu.response, 0);
                match of {
                    Some(of) if !self.up().is_empty() => self.left(of, pdu.numbers.exp_cmd_sn),
                    _ => {
                        self.logged_out = true;
                        self.conclude_all();
                    }
                }
            }
            TargetPdu::TextResponse(pdu) => {
                self.count_status(at, pdu.numbers);
                self.texts.extend_from_slice(&data);
                if pdu.is_final {
                    assert_eq!(self.answered(at, pdu.initiator_task_tag), Kind::Text);
                } else {
                    let next = TextRequest {
                        immediate: true,
                        is_final: true,
                        initiator_task_tag: pdu.initiator_task_tag,
                        target_transfer_tag: pdu.target_transfer_tag,
                        cmd_sn: self.cmd_sn,
                        ..TextRequest::default()
                    };
                    let next = Outgoing::Pdu(InitiatorPdu::TextRequest(next), Vec::new());
                    self.links[at].queue.push_back(next);
                }
            }
            TargetPdu::AsynchronousMessage(pdu) => {
                self.count_status(at, pdu.numbers);
                match pdu.event {
                    1 => self.logout_requests += 1,
                    3 => self.drop_notices += 1,
                    5 => self.end_data(at, pdu.lun),
                    other => panic!("event {other} is not used"),
                }
            }
        }
    }

    fn take_login(&mut self, at: usize, pdu: &LoginResponse, data: &[u8]) {
        assert!(!self.links[at].is_up);
        self.links[at].login_status = Some((pdu.status_class, pdu.status_detail));
        if pdu.status_class != 0 {
            return;
        }
        self.count_status(at, pdu.numbers);
        if pdu.current_stage == LoginStage::Security {
            return self.authenticate(at, pdu, data);
        }
        assert!(pdu.transit && pdu.next_stage == LoginStage::FullFeature && pdu.tsih.0 != 0);
        let is_leading = self.tsih.0 == 0;
        assert!(is_leading || pdu.tsih == self.tsih);
        self.tsih = pdu.tsih;
        if is_leading {
            self.session.max_burst_length = 262_144;
        }
        let connection = &mut self.links[at].connection;
        for (key, value) in pairs(data).expect("text of key=value pairs") {
            let number = value.parse::<u32>();
            match key {
                "InitialR2T" => self.session.initial_r2t = value == "Yes",
                "ImmediateData" => self.session.immediate_data = value == "Yes",
                "MaxBurstLength" => self.session.max_burst_length = number.unwrap_or(262_144),
                "FirstBurstLength" => self.session.first_burst_length = number.unwrap_or(65536),
                "MaxOutstandingR2T" => self.session.max_outstanding_r2t = number.unwrap_or(1) as u16,
                "MaxRecvDataSegmentLength" => {
                    connection.max_send_data_segment_length = number.expect("a number");
                }
                "HeaderDigest" => connection.digests.header = value == "CRC32C",
                "DataDigest" => connection.digests.data = value == "CRC32C",
                _ => {}
            }
        }
        self.session.first_burst_length = self.session.first_burst_length.min(self.session.max_burst_length);
        self.links[at].is_up = true;
        if !is_leading {
            self.replaced(at, pdu.numbers.exp_cmd_sn);
        }
    }

    /// Checks a PDU that uses up a StatSN, and the numbers in it.
    fn count_status(&mut self, at: usize, numbers: Numbers) {
        let expected = *self.links[at].exp_stat_sn.get_or_insert(numbers.stat_sn);
        assert_eq!(numbers.stat_sn, expected, "StatSN has a gap or a repetition");
        self.links[at].exp_stat_sn = Some(expected.next());
        self.count_commands(at, numbers);
    }

    /// Numbers never go back on one connection; those of another may have been on their way for longer.
    fn count_commands(&mut self, at: usize, numbers: Numbers) {
        let link = &mut self.links[at];
        let exp_before = link.exp_cmd_sn.replace(numbers.exp_cmd_sn).unwrap_or(numbers.exp_cmd_sn);
        let max_before = link.max_cmd_sn.replace(numbers.max_cmd_sn).unwrap_or(numbers.max_cmd_sn);
        assert!(!numbers.exp_cmd_sn.precedes(exp_before), "ExpCmdSN went backwards");
        assert!(!self.cmd_sn.precedes(numbers.exp_cmd_sn), "ExpCmdSN is ahead of what was sent");
        assert!(!numbers.max_cmd_sn.precedes(max_before), "MaxCmdSN went backwards");
        assert!(!numbers.max_cmd_sn.next().precedes(numbers.exp_cmd_sn), "MaxCmdSN is below ExpCmdSN - 1");
        if self.exp_cmd_sn.precedes(numbers.exp_cmd_sn) {
            self.exp_cmd_sn = numbers.exp_cmd_sn;
        }
        if self.max_cmd_sn.precedes(numbers.max_cmd_sn) {
            self.max_cmd_sn = numbers.max_cmd_sn;
        }
    }

    /// The request that a PDU on connection `at` answers.
    fn answered(&mut self, at: usize, tag: InitiatorTaskTag) -> Kind {
        let request = self.requests.remove(&tag.0).expect("an answer to a request that is open");
        assert_eq!(request.link, at, "answered on another connection");
        request.kind
    }

    /// What was on its way on a connection that is being logged out, for a task that was aborted on another meanwhile.
    fn is_stray(&self, at: usize, tag: InitiatorTaskTag) -> bool {
        self.links[at].is_leaving && self.tasks.get(&tag.0).is_none_or(|task| task.link != at)
    }

    fn end(&mut self, at: usize, tag: InitiatorTaskTag, end: End) -> Task {
        let task = self.tasks.remove(&tag.0).expect("an answer to a task that is open");
        assert_eq!(task.link, at, "answered on another connection");
        assert_eq!(self.ends.insert(tag.0, end), None, "a task was answered twice");
        task
    }

    fn take_response(&mut self, at: usize, pdu: &ScsiResponse, data: &[u8]) {
        self.count_status(at, pdu.numbers);
        assert_eq!(pdu.response, 0);
        if self.is_stray(at, pdu.initiator_task_tag) {
            return;
        }
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
        let task = self.end(at, pdu.initiator_task_tag, end);
        // The number of Data-In PDUs, which a write has none of (11.4.8).
        assert_eq!(pdu.exp_data_sn, task.next_data_sn);
        assert_eq!(task.r2ts_open, 0, "answered with an R2T outstanding");
    }

    fn take_data_in(&mut self, at: usize, pdu: &ScsiDataIn, data: &[u8]) {
        if pdu.status.is_some() {
            self.count_status(at, pdu.numbers);
        } else {
            self.count_commands(at, pdu.numbers);
        }
        if self.is_stray(at, pdu.initiator_task_tag) {
            return;
        }
        let task = self.tasks.get_mut(&pdu.initiator_task_tag.0).expect("data for a task that is open");
        assert_eq!(task.link, at, "data on another connection");
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
            self.end(at, pdu.initiator_task_tag, end);
        }
    }

    fn take_r2t(&mut self, at: usize, pdu: &ReadyToTransfer) {
        self.count_commands(at, pdu.numbers);
        assert_eq!(Some(pdu.numbers.stat_sn), self.links[at].exp_stat_sn, "an R2T shows the next StatSN");
        assert_ne!(pdu.target_transfer_tag, TargetTransferTag::RESERVED);
        let limit = self.session.max_outstanding_r2t;
        let tag = pdu.initiator_task_tag;
        if self.is_stray(at, tag) {
            return;
        }
        if self.aborts_fast() && self.tasks.get(&tag.0).is_none_or(|task| task.link != at) {
            // It was under way when its task was aborted on another connection: nobody waits for its answer.
            return;
        }
        let task = self.tasks.get_mut(&tag.0).expect("an R2T for a task that is open");
        assert_eq!(task.link, at, "an R2T on another connection");
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
            .any(|request| matches!(&request.kind, Kind::Management(tags) if tags.contains(&tag.0)));
        if self.manners.answers_r2ts && (self.manners.sends_for_aborted || !is_being_aborted) {
            self.queue_data(tag, pdu.lun, pdu.target_transfer_tag, pdu.buffer_offset..end);
        }
    }

    fn take_management(&mut self, at: usize, pdu: &TaskManagementResponse) {
        self.count_status(at, pdu.numbers);
        let tag = pdu.initiator_task_tag.0;
        let Kind::Management(affected) = self.answered(at, pdu.initiator_task_tag) else {
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

    fn take_nop_in(&mut self, at: usize, pdu: &NopIn, data: &[u8]) {
        if pdu.initiator_task_tag == InitiatorTaskTag::RESERVED {
            self.count_commands(at, pdu.numbers);
            assert_eq!(Some(pdu.numbers.stat_sn), self.links[at].exp_stat_sn, "a ping uses up no StatSN");
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
                    exp_stat_sn: self.links[at].exp_stat_sn.unwrap_or_default(),
                };
                self.links[at].queue.push_back(Outgoing::Pdu(InitiatorPdu::NopOut(answer), Vec::new()));
            }
            return;
        }
        self.count_status(at, pdu.numbers);
        assert_eq!(pdu.target_transfer_tag, TargetTransferTag::RESERVED);
        let mut sent = match self.answered(at, pdu.initiator_task_tag) {
            Kind::Ping(sent) => sent,
            Kind::Filler => Vec::new(),
            other => panic!("an echo of {other:?}"),
        };
        sent.truncate(self.links[at].connection.max_recv_data_segment_length as usize);
        assert_eq!(data, sent, "a ping comes back as it was, as far as it fits");
    }

    fn take_reject(&mut self, at: usize, pdu: &Reject, data: &[u8]) {
        self.count_status(at, pdu.numbers);
        let header: Bhs = data.try_into().expect("the header of the rejected PDU");
        let rejected = InitiatorTaskTag(u32::from_be_bytes([header[16], header[17], header[18], header[19]]));
        self.requests.remove(&rejected.0);
        self.rejects.push(pdu.reason);
    }
}
