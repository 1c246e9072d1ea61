//! The response fence (RFC 7143, 4.2.2.3): a response that overtakes none of those before it and is overtaken by none of
//! those behind it, whichever connections carry them.
//!
//! Which responses need one is said elsewhere: `management` knows the functions, the driver the commands
//! ([`super::Completion::fenced`]). One fence stands at a time, and it holds back all responses of the session rather than
//! those of one logical unit: fences are rare and come down within a round trip. On a single connection the order of
//! sending is the order of arrival, and there is none.

use std::collections::VecDeque;

use lunette_wire::{Cid, StatSn};

use super::management::ManagementId;
use super::task::{Phase, TaskId};
use super::{Completion, Outbox, Session, Share, Transfer};
use crate::parameters::TaskReporting;

/// Whose response it is that is fenced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    Task(TaskId),
    Function(ManagementId),
}

/// How far a fenced response has come.
#[derive(Debug)]
enum State {
    /// It waits: connections with the status numbers before which all must have arrived.
    Before(Vec<(Cid, StatSn)>),
    /// It went out on this connection; all before this number must have arrived. An acknowledgement is asked for once
    /// somebody waits for it.
    Sent { cid: Cid, stat_sn: StatSn, is_asked_for: bool },
}

/// A response that the fence holds back.
#[derive(Debug)]
enum Kept<D> {
    /// A command's end, as the driver told it.
    Completion { id: TaskId, status: u8, qualifier: u16, sense: Vec<u8>, transfer: Transfer<D>, fenced: bool },
    /// The task has its outcome.
    Held(TaskId),
}

/// The fence of a session.
#[derive(Debug)]
pub(super) struct Fence<D> {
    raised: Option<(Holder, State)>,
    /// In the order in which they were handed over. Each is a task of the session, so the window bounds them.
    kept: VecDeque<Kept<D>>,
}

impl<D> Default for Fence<D> {
    fn default() -> Self {
        Self { raised: None, kept: VecDeque::new() }
    }
}

impl<D> Fence<D> {
    pub(super) const fn is_up(&self) -> bool {
        self.raised.is_some()
    }

    /// Whether the fence stands until something that was sent on this connection is acknowledged.
    pub(super) fn waits_for(&self, connection: Cid) -> bool {
        match &self.raised {
            Some((_, State::Before(late))) => late.iter().any(|(cid, _)| *cid == connection),
            Some((_, State::Sent { cid, is_asked_for, .. })) => *is_asked_for && *cid == connection,
            None => false,
        }
    }

    fn keep(&mut self, id: TaskId, completion: Completion<'_, D>) {
        let Completion { status, status_qualifier: qualifier, sense, transfer, fenced } = completion;
        self.kept.push_back(Kept::Completion {
            id,
            status,
            qualifier,
            sense: sense.to_vec(),
            transfer,
            fenced,
        });
    }

    /// Whether it keeps a command's end.
    pub(super) fn keeps(&self, id: TaskId) -> bool {
        self.kept.iter().any(|kept| matches!(kept, Kept::Completion { id: of, .. } if *of == id))
    }

    /// Forgets a command's end that was kept, and says with which status it had ended; none when there is none.
    pub(super) fn forget(&mut self, id: TaskId) -> Option<u8> {
        let status = |kept: &Kept<D>| match kept {
            Kept::Completion { id: of, status, .. } if *of == id => Some(*status),
            _ => None,
        };
        let found = self.kept.iter().find_map(status)?;
        self.kept.retain(|kept| status(kept).is_none());
        Some(found)
    }
}

impl<D: Share> Session<D> {
    /// Whether the response of `holder`, which goes out on `cid`, may go out now. If it needs a fence, that is raised here.
    pub(super) fn passes_fence(
        &mut self,
        (holder, cid): (Holder, Cid),
        fenced: bool,
        outbox: &mut Outbox<D>,
    ) -> bool {
        match &self.fence.raised {
            Some((of, State::Before(late))) => *of == holder && late.is_empty(),
            Some((_, State::Sent { .. })) => {
                self.hasten(outbox);
                false
            }
            None if !fenced || !self.has_others(cid) => true,
            None => {
                let late = self.unacknowledged(cid);
                for &(other, _) in &late {
                    // It makes the initiator acknowledge at once; where it does not, `tick` finds that the connection is dead.
                    self.send_ping(other, outbox);
                }
                let is_clear = late.is_empty();
                self.fence.raised = Some((holder, State::Before(late)));
                is_clear
            }
        }
    }

    /// Keeps a command's end until the fence is down.
    pub(super) fn keep_behind_fence(
        &mut self,
        id: TaskId,
        completion: Completion<'_, D>,
        outbox: &mut Outbox<D>,
    ) {
        self.fence.keep(id, completion);
        self.hasten(outbox);
    }

    /// Somebody waits for the acknowledgement of the fenced response: asks for it, once.
    fn hasten(&mut self, outbox: &mut Outbox<D>) {
        if let Some((_, State::Sent { cid, is_asked_for, .. })) = &mut self.fence.raised
            && !std::mem::replace(is_asked_for, true)
        {
            let cid = *cid;
            self.send_ping(cid, outbox);
        }
    }

    /// A task in phase Held may not be answered yet: it is looked at again when the fence is down.
    pub(super) fn hold_back(&mut self, id: TaskId) {
        let is_holder = matches!(self.fence.raised, Some((Holder::Task(of), _)) if of == id);
        let is_known = self.fence.kept.iter().any(|kept| matches!(kept, Kept::Held(of) if *of == id));
        if !is_holder && !is_known {
            self.fence.kept.push_back(Kept::Held(id));
        }
    }

    /// The holder of the fence has sent its response on `cid`: it must arrive before anything else is sent.
    pub(super) fn fenced_response_sent(&mut self, holder: Holder, cid: Cid, outbox: &mut Outbox<D>) {
        let Some((of, _)) = self.fence.raised else { return };
        debug_assert_eq!(of, holder);
        let stat_sn = self.connections.iter().find(|of| of.cid == cid).map(|of| of.peek_stat_sn());
        match stat_sn.filter(|_| self.has_others(cid)) {
            Some(stat_sn) => {
                self.fence.raised = Some((holder, State::Sent { cid, stat_sn, is_asked_for: false }));
                if !self.fence.kept.is_empty() || self.has_functions() {
                    self.hasten(outbox);
                }
            }
            None => self.lower_fence(outbox),
        }
    }

    /// Looks whether the fence can go on or come down, after something was acknowledged or has ended.
    pub(super) fn settle_fence(&mut self, outbox: &mut Outbox<D>) {
        let connections = &self.connections;
        let is_late = |cid: Cid, stat_sn| {
            connections.iter().any(|of| of.cid == cid && of.is_open() && !of.has_acknowledged(stat_sn))
        };
        let (holder, is_waiting) = match &mut self.fence.raised {
            None => return,
            Some((_, State::Sent { cid, stat_sn, .. })) if is_late(*cid, *stat_sn) => return,
            Some((_, State::Sent { .. })) => return self.lower_fence(outbox),
            Some((holder, State::Before(late))) => {
                late.retain(|&(cid, stat_sn)| is_late(cid, stat_sn));
                (*holder, !late.is_empty())
            }
        };
        match holder {
            Holder::Task(id) if self.tasks.get(id).is_some_and(|task| task.phase == Phase::Held) => {
                if !is_waiting {
                    self.finish_held(id, outbox);
                }
            }
            Holder::Function(id) if self.is_pending(id) => {
                if !is_waiting {
                    self.settle_management(outbox);
                }
            }
            // It was aborted, or has gone with its connection.
            Holder::Task(_) | Holder::Function(_) => self.lower_fence(outbox),
        }
    }

    /// Lets go what was held back, until the next fence.
    fn lower_fence(&mut self, outbox: &mut Outbox<D>) {
        self.fence.raised = None;
        while !self.fence.is_up()
            && let Some(kept) = self.fence.kept.pop_front()
        {
            match kept {
                Kept::Completion { id, status, qualifier, sense, transfer, fenced } => {
                    let completion =
                        Completion { status, status_qualifier: qualifier, sense: &sense, transfer, fenced };
                    self.complete(id, completion, outbox);
                }
                Kept::Held(id) if self.tasks.get(id).is_some_and(|task| task.phase == Phase::Held) => {
                    self.finish_held(id, outbox);
                }
                Kept::Held(_) => {}
            }
        }
        if !self.fence.is_up() {
            self.settle_management(outbox);
        }
    }

    fn has_others(&self, cid: Cid) -> bool {
        self.connections.iter().any(|other| other.cid != cid && other.is_open())
    }

    /// Connections whose last status is not acknowledged, with the number behind it. Of the response's own connection
    /// nobody needs to know; 4.2.2.3.3 asks for all where a fence was agreed on.
    fn unacknowledged(&self, cid: Cid) -> Vec<(Cid, StatSn)> {
        let takes_all = self.parameters.task_reporting != TaskReporting::Rfc3720;
        self.connections
            .iter()
            .filter(|other| (takes_all || other.cid != cid) && other.is_open())
            .filter(|other| !other.has_acknowledged(other.peek_stat_sn()))
            .map(|other| (other.cid, other.peek_stat_sn()))
            .collect()
    }
}
