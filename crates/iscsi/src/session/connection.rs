//! One connection of a session in full feature phase: status numbers, segment sizes, keepalive.

use std::collections::VecDeque;
use std::time::Duration;

use lunette_wire::{Bhs, Cid, InitiatorTaskTag, LunField, Opcode, StatSn, TargetTransferTag};

use super::declaration::{DeclarationDue, Declared};
use super::recovery::{Resends, StatusLog};
use super::task::TaskId;
use super::termination::Termination;
use crate::parameters::ConnectionParameters;

/// A ping that has not been answered yet (11.19).
#[derive(Debug, Clone, Copy)]
pub(super) struct Ping {
    pub(super) tag: TargetTransferTag,
    pub(super) sent_at: Duration,
}

/// A logout that was asked for (11.9.1).
#[derive(Debug, Clone, Copy)]
pub(super) struct LogoutDue {
    pub(super) at: Duration,
    /// How long the initiator was given.
    pub(super) within: Duration,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) cid: Cid,
    pub(super) parameters: ConnectionParameters,
    stat_sn: StatSn,
    /// The newest ExpStatSN: everything before it has arrived at the initiator.
    acknowledged: StatSn,
    /// When the last sign of life was seen: a PDU, or what the driver saw of one ([`super::Session::saw_progress`]).
    pub(super) heard_at: Duration,
    pub(super) ping: Option<Ping>,
    next_ping_tag: u32,
    /// What had been acknowledged when a fence was last seen to wait for more, and since when it has been that.
    stuck: Option<(StatSn, Duration)>,
    /// The logout that the target asked for.
    pub(super) logout_due: Option<LogoutDue>,
    /// A Close event has been emitted, or the driver has dropped it: nothing more is taken from this connection.
    pub(super) closing: bool,
    /// It is being logged out, and goes with the last of its tasks; the session stays.
    pub(super) leaving: bool,
    /// Commands whose unsolicited data is still to come, in the order of the commands (4.2.5.2); may hold some that have
    /// ended.
    pub(super) unsolicited: VecDeque<TaskId>,
    /// Task terminations that are not acknowledged.
    pub(super) terminations: Vec<Termination>,
    /// Logical units whose commands were ended without an answer when it began to leave (11.14.5).
    pub(super) cleared: Vec<LunField>,
    /// It was lost, and waits to be logged out (CLEANUP_WAIT of 8.2); `closing` is set, too.
    pub(super) failed: bool,
    /// When that is given up.
    pub(super) failed_until: Option<Duration>,
    /// A text negotiation that has not ended.
    pub(super) text: Option<InitiatorTaskTag>,
    /// A MaxRecvDataSegmentLength that this side has to declare anew.
    pub(super) declaration: Option<DeclarationDue>,
    /// One that it has declared anew, until the initiator has seen it.
    pub(super) declared: Option<Declared>,
    /// What can be sent again, above ErrorRecoveryLevel 0.
    pub(super) log: StatusLog,
    pub(super) resends: Resends,
}

/// ExpStatSN, which has the same place in all PDUs of an initiator (11.3 to 11.18).
pub(super) const fn exp_stat_sn(bhs: &Bhs) -> StatSn {
    StatSn(u32::from_be_bytes([bhs[28], bhs[29], bhs[30], bhs[31]]))
}

/// The connection whose statuses a PDU on `cid` acknowledges: of a Logout Request the one that it closes (11.14.4).
pub(super) fn acknowledged_connection(cid: Cid, bhs: &Bhs) -> Cid {
    const CLOSE_SESSION: u8 = 0;
    let is_logout = Opcode::from_byte(bhs[0]) == Some(Opcode::LogoutRequest);
    if is_logout && bhs[1] & 0x7f != CLOSE_SESSION {
        Cid(u16::from_be_bytes([bhs[20], bhs[21]]))
    } else {
        cid
    }
}

impl Connection {
    pub(super) fn new(cid: Cid, parameters: ConnectionParameters, stat_sn: StatSn, now: Duration) -> Self {
        Self {
            cid,
            parameters,
            stat_sn,
            acknowledged: stat_sn,
            heard_at: now,
            ping: None,
            next_ping_tag: 0,
            stuck: None,
            logout_due: None,
            closing: false,
            leaving: false,
            unsolicited: VecDeque::new(),
            terminations: Vec::new(),
            cleared: Vec::new(),
            failed: false,
            failed_until: None,
            text: None,
            declaration: None,
            declared: None,
            log: StatusLog::new(stat_sn),
            resends: Resends::default(),
        }
    }

    /// Notes that it is alive, and what a PDU on it acknowledges that is no Logout Request.
    pub(super) fn hear(&mut self, now: Duration, bhs: &Bhs) {
        self.heard_at = now;
        self.acknowledge(exp_stat_sn(bhs));
    }

    /// Notes an ExpStatSN; one that is old, or that nothing was sent for, says nothing.
    pub(super) const fn acknowledge(&mut self, exp_stat_sn: StatSn) {
        if self.acknowledged.precedes(exp_stat_sn) && !self.stat_sn.precedes(exp_stat_sn) {
            self.acknowledged = exp_stat_sn;
        }
    }

    /// The oldest status that has not arrived, as far as is known.
    pub(super) const fn acknowledged(&self) -> StatSn {
        self.acknowledged
    }

    /// True when all status before `stat_sn` has arrived.
    pub(super) const fn has_acknowledged(&self, stat_sn: StatSn) -> bool {
        !self.acknowledged.precedes(stat_sn)
    }

    /// For how long it has acknowledged nothing; looked at about once a second. Zero while nobody waits for that.
    pub(super) fn stuck_for(&mut self, now: Duration, is_awaited: bool) -> Duration {
        let acknowledged = self.acknowledged;
        let stuck = self.stuck.filter(|&(before, _)| is_awaited && before == acknowledged);
        self.stuck = is_awaited.then(|| stuck.unwrap_or((acknowledged, now)));
        stuck.map_or(Duration::ZERO, |(_, since)| now.saturating_sub(since))
    }

    /// True while new requests are taken from it.
    pub(super) const fn is_open(&self) -> bool {
        !self.closing && !self.leaving
    }

    /// The next status number, without using it up.
    pub(super) const fn peek_stat_sn(&self) -> StatSn {
        self.stat_sn
    }

    /// Uses up one status number (4.2.2.2).
    pub(super) fn take_stat_sn(&mut self) -> StatSn {
        let taken = self.stat_sn;
        self.stat_sn = taken.next();
        taken
    }

    /// The tag of the latest ping.
    pub(super) const fn latest_ping_tag(&self) -> TargetTransferTag {
        // The top bit keeps pings apart from R2T tags.
        TargetTransferTag(0x8000_0000 | self.next_ping_tag)
    }

    /// A tag for the next ping; never the reserved value, nor the tag of the ping before.
    pub(super) fn ping_tag(&mut self) -> TargetTransferTag {
        self.next_ping_tag = (self.next_ping_tag + 1) % 0x7fff_ffff;
        self.latest_ping_tag()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_has_another_tag_than_the_one_before() {
        let mut connection =
            Connection::new(Cid(0), ConnectionParameters::default(), StatSn(0), Duration::ZERO);
        assert_ne!(connection.ping_tag(), connection.ping_tag());
        connection.next_ping_tag = 0x7fff_fffd;
        for _ in 0..3 {
            let tag = connection.ping_tag();
            assert!(tag != TargetTransferTag::RESERVED && tag.0 & 0x8000_0000 != 0);
        }
    }
}
