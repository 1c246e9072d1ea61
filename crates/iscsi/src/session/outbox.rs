//! What a step of a session leaves behind: PDUs to send and events for the driver, in order.

use lunette_wire::{Bhs, Cid, LunField, initiator::TaskManagementFunction, initiator::TextRequest};

use super::{ManagementId, TaskId};

/// The data segment of an outgoing PDU. `D` is the driver's handle for a buffer that several PDUs may share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload<D> {
    /// No data segment.
    None,
    /// Bytes that the core made: text, sense data, a rejected header, an echoed ping.
    Bytes(Vec<u8>),
    /// A range of a buffer that the driver handed in with a completion.
    Buffer {
        /// The driver's handle.
        data: D,
        /// First byte of the range.
        start: u32,
        /// Length of the range in bytes.
        length: u32,
    },
}

/// A handle for data that several PDUs may share. Most commands have one PDU, which then owns the data alone.
pub trait Share: Sized {
    /// Another handle for the same data.
    #[must_use]
    fn share(&mut self) -> Self;

    /// Bytes of memory that are kept as long as there is a handle; 0 where no more are than what is sent of the data.
    fn kept_bytes(&self) -> usize {
        0
    }
}

impl<T: Clone> Share for T {
    fn share(&mut self) -> Self {
        self.clone()
    }
}

/// One PDU to send on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing<D> {
    /// The connection that carries it.
    pub cid: Cid,
    /// The finished header, DataSegmentLength included.
    pub bhs: Bhs,
    /// The data segment.
    pub payload: Payload<D>,
}

/// Why the core gives up a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The initiator logged out; what is queued goes out first.
    #[error("the initiator logged out")]
    Logout,
    /// Another connection of the session failed, and with ErrorRecoveryLevel 0 that ends the session (7.1.4.4).
    #[error("another connection of its session failed")]
    SessionFailed,
    /// A format error (7.7): session recovery is the only answer.
    #[error("format error: {0}")]
    Format(String),
    /// A protocol error that leaves the two sides without a common state.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The initiator answered no ping and sent nothing else.
    #[error("no answer to a NOP-In within {0} ms")]
    Silent(u128),
    /// The initiator sent things, but acknowledged nothing of what a fence waits for.
    #[error("no acknowledgement of a status within {0} ms")]
    Unacknowledged(u128),
    /// A discovery session, which is not pinged, asked for nothing.
    #[error("no request in a discovery session for {0} ms")]
    DiscoveryIdle(u128),
    /// The target stops, and a discovery session is not asked to log out.
    #[error("the discovery session was ended")]
    DiscoveryOver,
    /// The initiator did not log out within the time that it was given.
    #[error("no logout within {0} ms of the request")]
    LogoutOverdue(u128),
    /// Other initiators' commands waited for one whose data did not come.
    #[error("data that others wait for did not come within {0} ms")]
    DataOverdue(u128),
    /// Other initiators' commands waited until answers to reads were taken.
    #[error("answers to reads that others wait for were not taken within {0} ms")]
    ReadsOverdue(u128),
    /// Other initiators' commands waited for memory, and of what this session keeps there less than half was moved.
    #[error("too little of what is kept in memory that others wait for was taken or sent within {0} ms")]
    MemoryKept(u128),
}

/// Something for the driver to do or to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The task's turn has come (4.2.2.1): start its command.
    Execute(TaskId),
    /// All data that [`super::Session::solicit`] asked for is in the task's buffer.
    DataOutComplete(TaskId),
    /// The task, whose command has begun, was aborted: it is to be ended as soon as that can be, with a completion that
    /// goes nowhere.
    Aborted(TaskId),
    /// The transport has spoilt the task (11.4.7.2), whose command waits for its data, or has ended with GOOD: it is to be completed
    /// with CHECK CONDITION, sense key ABORTED COMMAND, and what that does to other tasks is to be done.
    Spoilt {
        /// The task.
        id: TaskId,
        /// ADDITIONAL SENSE CODE.
        asc: u8,
        /// ADDITIONAL SENSE CODE QUALIFIER.
        ascq: u8,
    },
    /// A command was aborted that had ended in another way than with GOOD, before its initiator was told: what that has done to
    /// other commands is to be undone.
    Untold {
        /// The logical unit.
        lun: LunField,
        /// Its CDB.
        cdb: [u8; 16],
        /// How it had ended.
        status: u8,
    },
    /// The task ended without a completion by the driver; its context can be freed.
    Dropped(TaskId),
    /// Carry out a function beyond this session, then call [`super::Session::management_done`].
    Manage {
        /// To be given back.
        id: ManagementId,
        /// What to do.
        function: TaskManagementFunction,
        /// The logical unit, where the function has one.
        lun: LunField,
    },
    /// A Text Request whose turn has come; answer with [`super::Session::send_text`] or
    /// [`super::Session::reject`].
    Text(Box<PendingText>),
    /// Data segments of the initiator's PDUs have up to so many bytes on the connection from now on (13.12): this side has
    /// declared another length.
    SegmentLength {
        /// The connection.
        cid: Cid,
        /// In bytes.
        bytes: u32,
    },
    /// Commands for this logical unit were ended without an answer, because their connection was logged out while the
    /// session goes on (11.14.5). None of them is in a store any more.
    Cleared {
        /// The logical unit.
        lun: LunField,
    },
    /// A connection has left the session, and none of its tasks is anywhere: its CID is free.
    ConnectionEnded {
        /// The connection.
        cid: Cid,
    },
    /// Send what is queued on the connection, then close it.
    Close {
        /// The connection.
        cid: Cid,
        /// Why.
        reason: CloseReason,
    },
    /// No task of the session is left anywhere and no connection will be used again.
    Ended,
}

/// A Text Request whose turn has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingText {
    /// The connection it came on.
    pub cid: Cid,
    /// Its header, decoded.
    pub request: TextRequest,
    /// Its header as it came, for a Reject.
    pub bhs: Bhs,
    /// Its text.
    pub text: Vec<u8>,
}

/// Collects the PDUs and events of one or more steps.
#[derive(Debug)]
pub struct Outbox<D> {
    /// PDUs in the order in which they must be sent.
    pub pdus: Vec<Outgoing<D>>,
    /// Events in the order in which they happened.
    pub events: Vec<Event>,
}

impl<D> Default for Outbox<D> {
    fn default() -> Self {
        Self { pdus: Vec::new(), events: Vec::new() }
    }
}

impl<D> Outbox<D> {
    pub(super) fn send(&mut self, cid: Cid, bhs: Bhs) {
        self.pdus.push(Outgoing { cid, bhs, payload: Payload::None });
    }

    pub(super) fn send_bytes(&mut self, cid: Cid, bhs: Bhs, bytes: Vec<u8>) {
        let payload = if bytes.is_empty() { Payload::None } else { Payload::Bytes(bytes) };
        self.pdus.push(Outgoing { cid, bhs, payload });
    }

    pub(super) fn event(&mut self, event: Event) {
        self.events.push(event);
    }
}
