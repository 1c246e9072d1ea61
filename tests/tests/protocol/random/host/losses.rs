//! A connection of a session with ErrorRecoveryLevel 2 is lost, at any moment and in any way, and another one takes its tasks
//! (RFC 7143, 6.3.4, 7.2, 11.5.1, 11.14): what the target has received is reassigned, all else sent again.

use lunette_tests::in_process::InProcess;
use lunette_tests::initiator::LoginOptions;
use lunette_tests::random::Random;
use lunette_tests::raw::Raw;
use lunette_wire::frame::Digests;
use lunette_wire::initiator::{LogoutReason, TaskManagementFunction as Function, TaskManagementRequest};
use lunette_wire::{BHS_LENGTH, Cid, CmdSn, DataSn, InitiatorPdu, InitiatorTaskTag, LunField, TargetPdu};

use super::{COMPLETE, Host, NO_SUCH_TASK, QUEUE_ERROR_UNIT, SEGMENTS, UNITS, any_digests};

/// AsyncEvent "connection drop notification" (11.9.1).
const CONNECTION_DROP: u8 = 2;

impl Host {
    /// Loses its connection, if it can go on without.
    pub(in super::super) fn lose(&mut self, target: &InProcess, rng: &mut Random) {
        if self.level < 2 {
            return;
        }
        if rng.below(2) == 0 {
            self.take_some(rng.below(12));
        }
        if rng.below(2) == 0 {
            self.send_in_vain(rng);
        }
        let mut lost: Vec<InitiatorTaskTag> = self.open.keys().copied().collect();
        self.clearing.clear();
        lost.sort_unstable_by_key(|tag| self.open[tag].command.cmd_sn.since(CmdSn(0)));
        let is_alive = rng.below(2) == 0;
        if rng.below(2) == 0 {
            // A login with its CID, whether the target has seen it go or not (6.3.4).
            if !is_alive {
                self.cut();
            }
            let digests = any_digests(rng);
            self.raw = self.join(target, (self.cid, digests), rng);
            (self.digests, self.spoilt) = (digests, 0);
        } else {
            self.replace(target, is_alive, rng);
        }
        // The ExpCmdSN of the answer tells what has been received.
        self.reach();
        for tag in lost {
            self.recover(tag, rng);
        }
        // Requests to clear may have been lost, and the news of what they were about.
        (0..UNITS).for_each(|lun| self.may_have_failed(lun));
    }

    /// Takes so many PDUs, if as many come; the rest of what is on its way never does.
    fn take_some(&mut self, count: u64) {
        for _ in 0..count {
            if self.is_settled() {
                return;
            }
            assert_eq!(self.take(), None);
        }
    }

    /// Sends commands that never arrive, but for half of a header.
    fn send_in_vain(&mut self, rng: &mut Random) {
        self.raw.connection().send_bytes(&[0; BHS_LENGTH / 2]).expect("sent");
        self.is_cut_off = true;
        (0..rng.below(4)).for_each(|_| self.submit(rng));
        self.is_cut_off = false;
    }

    /// Another connection, which goes on with the numbers and tags.
    fn join(&self, target: &InProcess, (cid, digests): (u16, Digests), rng: &mut Random) -> Raw {
        let options = LoginOptions {
            tsih: self.raw.tsih,
            cid: Cid(cid),
            digests,
            first_cmd_sn: self.raw.cmd_sn,
            // Of use to the login that has the old CID (11.12.9), of none to another.
            exp_stat_sn: self.raw.exp_stat_sn,
            ..target.options_with(self.port, &SEGMENTS[rng.below(2) as usize..][..1])
        };
        let mut new = Raw::login(target.portal(), &options).expect("a login");
        new.go_on_after(&self.raw);
        new
    }

    /// A second connection has the first one removed for recovery, after commands of its own.
    fn replace(&mut self, target: &InProcess, is_alive: bool, rng: &mut Random) {
        let (old_cid, new_cid) = (self.cid, self.cid + 1);
        let digests = any_digests(rng);
        let new = self.join(target, (new_cid, digests), rng);
        if !is_alive {
            self.cut();
        }
        let old = std::mem::replace(&mut self.raw, new);
        (self.cid, self.digests, self.spoilt) = (new_cid, digests, 0);
        (0..rng.below(4)).for_each(|_| self.submit(rng));
        if !is_alive && rng.below(2) == 0 {
            self.hear_of(old_cid);
        }
        // It carries the number of the connection that it is about (11.14.4).
        self.raw.acknowledged = Some(old.exp_stat_sn);
        let request = self.raw.log_out(LogoutReason::RemoveConnectionForRecovery, old_cid).expect("sent");
        self.raw.acknowledged = None;
        loop {
            match self.take() {
                Some(TargetPdu::LogoutResponse(pdu)) if pdu.initiator_task_tag == request => {
                    return assert_eq!(pdu.response, 0);
                }
                // The target has seen it go before the request.
                Some(TargetPdu::AsynchronousMessage(pdu)) => assert_eq!(pdu.event, CONNECTION_DROP),
                None => {}
                Some(other) => panic!("{other:?}"),
            }
        }
    }

    /// Takes what comes until the target has told of the loss of a connection.
    fn hear_of(&mut self, cid: u16) {
        loop {
            match self.take() {
                Some(TargetPdu::AsynchronousMessage(pdu)) => {
                    return assert_eq!((pdu.event, pdu.parameters[0]), (CONNECTION_DROP, cid));
                }
                None => {}
                Some(other) => panic!("{other:?}"),
            }
        }
    }

    /// Has a task of the lost connection go on here.
    fn recover(&mut self, tag: InitiatorTaskTag, rng: &mut Random) {
        let Some(open) = self.open.get_mut(&tag) else { return };
        if !open.command.cmd_sn.precedes(self.raw.exp_cmd_sn()) {
            return self.send(tag);
        }
        // Either way all that is not acknowledged comes again (11.5.6).
        let exp_data_sn = if rng.below(2) == 0 { 0 } else { open.got_pdus };
        if exp_data_sn > 0 {
            open.acknowledged = (open.got.len(), open.got_pdus);
        }
        let (bytes, pdus) = open.acknowledged;
        open.got.truncate(bytes);
        open.got_pdus = pdus;
        let lun = open.lun;
        let request = self.reassign(tag, exp_data_sn);
        match self.managed(request) {
            COMPLETE => {}
            NO_SUCH_TASK => {
                assert_eq!(lun, QUEUE_ERROR_UNIT, "nothing has ended it");
                self.ended(tag, false);
            }
            other => panic!("response {other}"),
        }
    }

    fn reassign(&mut self, referenced_task_tag: InitiatorTaskTag, exp_data_sn: u32) -> InitiatorTaskTag {
        let request = TaskManagementRequest {
            immediate: true,
            function: Function::TaskReassign,
            lun: LunField::default(),
            initiator_task_tag: self.raw.new_tag(),
            referenced_task_tag,
            cmd_sn: self.raw.cmd_sn,
            exp_stat_sn: self.raw.acknowledged(),
            ref_cmd_sn: CmdSn(0),
            exp_data_sn: DataSn(exp_data_sn),
        };
        self.raw.send(&InitiatorPdu::TaskManagementRequest(request), &[]).expect("sent");
        request.initiator_task_tag
    }
}
