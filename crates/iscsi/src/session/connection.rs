//! One connection of a session in full feature phase: status numbers, segment sizes, keepalive.

use std::time::Duration;

use lunette_wire::{Cid, StatSn, TargetTransferTag};

use crate::parameters::ConnectionParameters;

/// A ping that has not been answered yet (11.19).
#[derive(Debug, Clone, Copy)]
pub(super) struct Ping {
    pub(super) tag: TargetTransferTag,
    pub(super) sent_at: Duration,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) cid: Cid,
    pub(super) parameters: ConnectionParameters,
    stat_sn: StatSn,
    /// When the last PDU of any kind came in.
    pub(super) heard_at: Duration,
    pub(super) ping: Option<Ping>,
    next_ping_tag: u32,
    /// When a logout that the target asked for is overdue.
    pub(super) logout_due: Option<Duration>,
    /// A Close event has been emitted; nothing more is taken from this connection.
    pub(super) closing: bool,
}

impl Connection {
    pub(super) fn new(cid: Cid, parameters: ConnectionParameters, stat_sn: StatSn, now: Duration) -> Self {
        Self {
            cid,
            parameters,
            stat_sn,
            heard_at: now,
            ping: None,
            next_ping_tag: 0,
            logout_due: None,
            closing: false,
        }
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

    /// A tag for the next ping; never the reserved value.
    pub(super) fn ping_tag(&mut self) -> TargetTransferTag {
        // The top bit keeps pings apart from R2T tags.
        self.next_ping_tag = (self.next_ping_tag + 1) & 0x7fff_fffe;
        TargetTransferTag(0x8000_0000 | self.next_ping_tag)
    }
}
