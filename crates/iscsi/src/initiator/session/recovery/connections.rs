//! Connections that are lost at ErrorRecoveryLevel 2 (RFC 7143, 6.3.4, 7.1.4.3, 7.5, 11.14): each is removed for recovery,
//! by a Logout on another connection or by a login that takes its CID; then its tasks go on elsewhere.

use std::time::Duration;

use lunette_wire::initiator::{LogoutReason, LogoutRequest};
use lunette_wire::{Cid, CmdSn, InitiatorTaskTag, StatSn};

use super::super::connection::Entry;
use super::super::requests::Kind;
use super::super::task::Stage;
use super::super::{ConnectionId, End, Loss, Outbox, Session};

/// A connection that is lost and has not been removed for recovery.
#[derive(Debug)]
pub(in super::super) struct Lost {
    pub(in super::super) id: ConnectionId,
    pub(in super::super) cid: Cid,
    /// The last that it acknowledged.
    pub(in super::super) exp_stat_sn: StatSn,
    /// When recovery may begin and when the target forgets the tasks; set by the next look at the clock.
    pub(in super::super) period: Option<(Duration, Duration)>,
    /// Its logout is under way.
    pub(in super::super) is_asked: bool,
    /// The target has removed it; its tasks wait for another connection.
    pub(in super::super) is_removed: bool,
    /// Its own logout had left: the target may have ended its tasks.
    was_leaving: bool,
    /// Numbers that it was to bring without a command.
    pub(in super::super) numbers: Vec<CmdSn>,
}

impl Session {
    /// The lost connections whose place a new one can take (6.3.4): the CID, and the ExpStatSN that belongs into the first
    /// Login Request (11.12.9). With ErrorRecoveryLevel 2 only.
    pub fn lost_connections(&self) -> impl Iterator<Item = (Cid, StatSn)> {
        self.lost.iter().filter(|lost| !lost.is_asked).map(|lost| (lost.cid, lost.exp_stat_sn))
    }

    /// Keeps what a lost connection has left. It has been taken out of the list.
    pub(in super::super) fn retain(
        &mut self,
        connection: super::super::connection::Connection,
        outbox: &mut Outbox,
    ) {
        let id = connection.id;
        let of_ended = connection.requests.iter().filter_map(|entry| match entry {
            Entry::Command(tag, cmd_sn) if self.tasks.get(*tag).is_none() => Some(*cmd_sn),
            _ => None,
        });
        let numbers = of_ended.chain(connection.plugs.iter().copied()).collect();
        self.lost.push(Lost {
            id,
            cid: connection.cid,
            exp_stat_sn: connection.order.exp_stat_sn(),
            period: None,
            is_asked: false,
            is_removed: false,
            was_leaving: connection.is_silent,
            numbers,
        });
        // Immediate requests do not outlive their connection (7.14).
        self.drop_requests_of(id, outbox);
        self.remove_lost(None, outbox);
    }

    /// A connection is there that can carry the logout, and then the tasks.
    pub(in super::super) fn can_remove(&self, lost: &Lost) -> bool {
        !lost.is_asked && self.least_loaded().is_some()
    }

    /// Begins the removal of lost connections, where that is possible and time.
    pub(in super::super) fn remove_lost(&mut self, now: Option<Duration>, outbox: &mut Outbox) {
        if self.least_loaded().is_some()
            && let Some(removed) = self.lost.iter().find(|lost| lost.is_removed)
        {
            let id = removed.id;
            self.removed(now.unwrap_or_default(), id, outbox);
            return self.remove_lost(now, outbox);
        }
        let waits = self.parameters.default_time2wait_s > 0;
        for at in 0..self.lost.len() {
            let lost = &self.lost[at];
            let is_time = match (lost.period, now) {
                (Some((from, _)), Some(now)) => now >= from,
                _ => !waits,
            };
            let Some(on) = self.least_loaded().filter(|_| is_time && !lost.is_asked) else { continue };
            let (id, cid, exp_stat_sn) = (lost.id, lost.cid, lost.exp_stat_sn);
            let (cmd_sn, on) = (self.cmd_sn, self.connections[on].id);
            let asked = self.ask(now.unwrap_or_default(), on, Kind::Removal(id), &[], |initiator_task_tag| {
                LogoutRequest {
                    immediate: true,
                    reason: LogoutReason::RemoveConnectionForRecovery,
                    initiator_task_tag,
                    cid,
                    cmd_sn,
                    exp_stat_sn,
                }
                .encode()
            });
            self.lost[at].is_asked = asked.is_ok();
        }
    }

    /// The Logout Request that was to remove a connection has no answer.
    pub(in super::super) fn removal_failed(&mut self, id: ConnectionId) {
        if let Some(lost) = self.lost.iter_mut().find(|lost| lost.id == id) {
            lost.is_asked = false;
        }
    }

    /// The target does not remove a connection for recovery. That is so for one that it is closing already, as this side has
    /// asked for before; nobody knows what has become of its tasks then, and nothing may have left on it that writes. Otherwise no
    /// recovery is left but the session's.
    pub(in super::super) fn not_removed(
        &mut self,
        now: Duration,
        id: ConnectionId,
        response: u8,
        outbox: &mut Outbox,
    ) {
        let was_leaving = self.lost.iter().any(|lost| lost.id == id && lost.was_leaving);
        if !was_leaving || self.may_write_on(id) {
            return self.fail(Loss::LogoutRefused(response), outbox);
        }
        let on_it: Vec<_> = (self.tasks.iter())
            .filter(|(_, task)| task.stage != Stage::Waiting && task.connection == id)
            .map(|(tag, task)| (tag, if task.stage == Stage::Sent { End::Unknown } else { End::NotSent }))
            .collect();
        for (tag, end) in on_it {
            self.end_task(tag, end, outbox);
        }
        self.removed(now, id, outbox);
    }

    /// A connection was removed for recovery: commands that the target has not received are sent again, the others are given
    /// to other connections (7.2).
    pub(in super::super) fn removed(&mut self, now: Duration, id: ConnectionId, outbox: &mut Outbox) {
        let Some(at) = self.lost.iter().position(|lost| lost.id == id) else { return };
        if self.least_loaded().is_none() {
            (self.lost[at].is_removed, self.lost[at].is_asked) = (true, false);
            return;
        }
        let lost = self.lost.swap_remove(at);
        let mut unreceived: Vec<(CmdSn, InitiatorTaskTag)> =
            lost.numbers.into_iter().map(|cmd_sn| (cmd_sn, InitiatorTaskTag::RESERVED)).collect();
        let mut received = Vec::new();
        for (tag, task) in self.tasks.iter().filter(|(_, task)| task.connection == id) {
            match task.stage {
                Stage::Waiting => {}
                Stage::Sent if task.cmd_sn.precedes(self.exp_cmd_sn) => received.push(tag),
                Stage::Sent | Stage::Assigned => unreceived.push((task.cmd_sn, tag)),
            }
        }
        for &(_, tag) in &unreceived {
            // A function of this side may have used up its number; so that goes alone.
            if self.tasks.get(tag).is_some_and(|task| task.is_doomed) {
                self.end_task(tag, End::Aborted, outbox);
            }
        }
        unreceived.retain(|(cmd_sn, _)| !cmd_sn.precedes(self.exp_cmd_sn));
        unreceived.sort_by_key(|(cmd_sn, _)| cmd_sn.since(self.exp_cmd_sn));
        for (cmd_sn, tag) in unreceived {
            let Some(on) = self.least_loaded() else { return };
            let connection = &mut self.connections[on];
            if let Some(task) = self.tasks.get_mut(tag) {
                task.begin_anew();
                task.connection = connection.id;
                connection.load += task.load();
            }
            connection.requests.push_back(Entry::Command(tag, cmd_sn));
        }
        for tag in received {
            self.reassign(now, tag, outbox);
        }
    }

    /// Looks at the clock: removes what can be removed, and ends the session when the target has forgotten the tasks (7.5).
    pub(in super::super) fn tick_lost(&mut self, now: Duration, outbox: &mut Outbox) {
        let wait = Duration::from_secs(self.parameters.default_time2wait_s.into());
        let retain = Duration::from_secs(self.parameters.default_time2retain_s.into());
        let mut is_over = false;
        for lost in &mut self.lost {
            let (_, until) = *lost.period.get_or_insert((now + wait, now + wait + retain));
            // A logout that is under way is waited for.
            is_over |= now >= until && !lost.is_asked;
        }
        if is_over {
            return self.fail(Loss::NotRecovered, outbox);
        }
        self.remove_lost(Some(now), outbox);
    }
}
