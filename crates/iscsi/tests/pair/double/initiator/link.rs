//! One connection of the initiator: what was agreed for it, its status numbers, and what waits to be sent on it; and how
//! connections join a session and leave it.

use std::collections::VecDeque;

use lunette_iscsi::parameters::ConnectionParameters;
use lunette_wire::initiator::{LogoutReason, LogoutRequest, NopOut};
use lunette_wire::{Cid, CmdSn, InitiatorPdu, StatSn, TargetTransferTag};

use super::authenticate::Step;
use super::{End, Initiator, Kind, Outgoing};

pub(crate) struct Link {
    pub(super) cid: Cid,
    /// From this side: what it may send and what it takes.
    pub(crate) connection: ConnectionParameters,
    /// It is in full feature phase.
    pub(crate) is_up: bool,
    /// Its logout has been asked for.
    pub(super) is_leaving: bool,
    /// Nothing comes or goes on it any more.
    pub(crate) is_gone: bool,
    pub(crate) login_status: Option<(u8, u8)>,
    pub(super) authentication: Step,
    pub(super) exp_stat_sn: Option<StatSn>,
    /// The newest numbers that came on it.
    pub(super) exp_cmd_sn: Option<CmdSn>,
    pub(super) max_cmd_sn: Option<CmdSn>,
    pub(super) queue: VecDeque<Outgoing>,
    /// Numbers that were sent on the connection in whose place it comes, as far as they were not acknowledged.
    unsure: Vec<CmdSn>,
}

impl Link {
    pub(super) fn new(cid: Cid, max_recv_data_segment_length: u32) -> Self {
        Self {
            cid,
            connection: ConnectionParameters {
                max_recv_data_segment_length,
                ..ConnectionParameters::default()
            },
            is_up: false,
            is_leaving: false,
            is_gone: false,
            login_status: None,
            authentication: Step::NotAsked,
            exp_stat_sn: None,
            exp_cmd_sn: None,
            max_cmd_sn: None,
            queue: VecDeque::new(),
            unsure: Vec::new(),
        }
    }

    pub(super) fn cut(&mut self) {
        self.is_up = false;
        self.is_gone = true;
        self.queue.clear();
    }
}

impl Initiator {
    /// Queues the login of another connection; answers its place.
    pub(crate) fn join(&mut self) -> usize {
        let at = self.links.len();
        self.begin_login(at, Cid(1 + at as u16));
        at
    }

    /// Gives a connection up, and queues the login that takes its place (6.3.4). Its tasks end when that is through.
    pub(crate) fn reinstate(&mut self, at: usize) {
        let unsure = self.numbers_of(at);
        let cid = self.links[at].cid;
        self.begin_login(at, cid);
        self.links[at].unsure = unsure;
    }

    /// A login has been accepted that may have taken another connection's place.
    pub(super) fn replaced(&mut self, at: usize, exp_cmd_sn: CmdSn) {
        let unsure = std::mem::take(&mut self.links[at].unsure);
        self.conclude_link(at);
        self.fill(at, unsure, exp_cmd_sn);
    }

    /// The connections that requests can be sent on.
    pub(crate) fn up(&self) -> Vec<usize> {
        (0..self.links.len()).filter(|&at| self.links[at].is_up && !self.links[at].is_leaving).collect()
    }

    /// A task management function was asked for on a connection: what it has done is not known if that goes now.
    pub(crate) fn has_function_on(&self, at: usize) -> bool {
        let mut on_it = self.requests.values().filter(|request| request.link == at);
        on_it.any(|request| matches!(request.kind, Kind::Management(_)))
    }

    /// No connection is on its way in or out.
    pub(crate) fn is_steady(&self) -> bool {
        self.links.iter().all(|link| link.is_gone || link.is_up && !link.is_leaving)
    }

    pub(super) fn pick_link(&mut self) {
        let up = self.up();
        if self.spreads && !up.is_empty() {
            self.on = up[self.rng.below(up.len() as u32) as usize];
        }
    }

    /// Queues, on the present connection, the logout of a connection, or of the session.
    pub(crate) fn log_out_of(&mut self, of: Option<usize>) -> u32 {
        let tag = self.tag();
        let reason = if of.is_some() { LogoutReason::CloseConnection } else { LogoutReason::CloseSession };
        let pdu = LogoutRequest {
            immediate: true,
            reason,
            initiator_task_tag: tag,
            cid: self.links[of.unwrap_or(0)].cid,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn(),
        };
        self.ask(tag, None, Kind::Logout(of), InitiatorPdu::LogoutRequest(pdu), Vec::new());
        if let Some(of) = of {
            self.links[of].is_leaving = true;
        }
        tag.0
    }

    /// A logout has been answered: what belonged to the connection has ended, and its numbers that were not received are
    /// brought by another one.
    pub(super) fn left(&mut self, at: usize, exp_cmd_sn: CmdSn) {
        let unsure = self.numbers_of(at);
        self.links[at].cut();
        self.conclude_link(at);
        let up = self.up();
        if let Some(&other) = up.first() {
            self.fill(other, unsure, exp_cmd_sn);
        }
    }

    /// The numbers of all that a connection has carried, or was to carry, without an answer.
    fn numbers_of(&self, at: usize) -> Vec<CmdSn> {
        let tasks = self.tasks.values().filter(|task| task.link == at).map(|task| task.command.cmd_sn);
        let requests = self.requests.values().filter(|request| request.link == at);
        tasks.chain(requests.filter_map(|request| request.cmd_sn)).collect()
    }

    fn conclude_link(&mut self, at: usize) {
        for (tag, _) in self.tasks.extract_if(.., |_, task| task.link == at) {
            self.ends.insert(tag, End::Aborted);
        }
        self.requests.retain(|_, request| request.link != at);
    }

    fn fill(&mut self, at: usize, unsure: Vec<CmdSn>, exp_cmd_sn: CmdSn) {
        let before = std::mem::replace(&mut self.on, at);
        for cmd_sn in unsure.into_iter().filter(|cmd_sn| !cmd_sn.precedes(exp_cmd_sn)) {
            let tag = self.tag();
            let pdu = NopOut {
                initiator_task_tag: tag,
                target_transfer_tag: TargetTransferTag::RESERVED,
                cmd_sn,
                ..NopOut::default()
            };
            self.ask(tag, Some(cmd_sn), Kind::Filler, InitiatorPdu::NopOut(pdu), Vec::new());
        }
        self.on = before;
    }
}
