//! What a step of a session leaves behind: PDUs to send and events for the driver, in order. The driver empties it and
//! gives the same one again, so that its memory is used again too.

use lunette_wire::initiator::TaskManagementFunction;
use lunette_wire::target::Residual;
use lunette_wire::{Bhs, LunField};

use super::fault::{AnswerFault, Loss};
use super::{ConnectionId, RequestHandle, TaskHandle};

/// Bytes of a task's own buffer, which only the driver has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataRange {
    /// The task.
    pub task: TaskHandle,
    /// First byte, from the start of what the command writes.
    pub offset: u32,
    /// In bytes.
    pub length: u32,
}

/// The data segment of an outgoing PDU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// No data segment.
    None,
    /// Bytes that the core has: text, ping data.
    Bytes(Box<[u8]>),
    /// A range of what a command writes. The driver keeps the buffer until it has sent this PDU, even if the task ends
    /// before.
    Data(DataRange),
}

/// One PDU to send on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// The connection that carries it.
    pub connection: ConnectionId,
    /// The finished header, lengths included.
    pub bhs: Bhs,
    /// Additional header segments, a multiple of four bytes; mostly none.
    pub ahs: Box<[u8]>,
    /// The data segment.
    pub payload: Payload,
    /// The task whose command this is, so that the driver can stamp the time at which it leaves.
    pub begins: Option<TaskHandle>,
}

/// Where the data segment of a PDU belongs whose header has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Into the buffer that the command reads into, from this offset on. It fits.
    Task {
        /// The task.
        task: TaskHandle,
        /// In bytes.
        offset: u32,
    },
    /// To [`super::Session::received`]: text, sense data, a rejected header, ping data.
    Core,
    /// Nowhere: the task has ended, or the PDU is against the protocol.
    Discard,
}

/// The data segment of a PDU that has come whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment<'a> {
    /// DataSegmentLength in bytes.
    pub length: u32,
    /// Its bytes, if its place was [`Place::Core`]; else empty.
    pub bytes: &'a [u8],
    /// Its digest was right, or there is none.
    pub is_intact: bool,
}

impl<'a> Segment<'a> {
    /// No data segment.
    pub const NONE: Segment<'static> = Segment { length: 0, bytes: &[], is_intact: true };

    /// A segment for the core, whose digest is right.
    #[must_use]
    pub const fn of(bytes: &'a [u8]) -> Self {
        // No segment has more than 24 bits can say.
        Self { length: bytes.len() as u32, bytes, is_intact: true }
    }
}

/// What a target answered to a command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// SAM status code.
    pub status: u8,
    /// Status qualifier (RFC 7144); zero at iSCSIProtocolLevel 1.
    pub status_qualifier: u16,
    /// Expected against transferred bytes, as the target counts them; of the write half of a bidirectional command.
    pub residual: Residual,
    /// The same of the read half of a bidirectional command.
    pub read_residual: Residual,
    /// Bytes of the read buffer that were filled, from its start and without a hole.
    pub received: u32,
    /// Sense data; empty unless the status has some.
    pub sense: Vec<u8>,
}

/// How a task ended. Each task ends once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The target answered, and the answer agrees with what came and went.
    Answered(Answer),
    /// The target answered, and the answer does not agree with what came and went: nothing that was read may be used, and
    /// what was written is in doubt.
    Faulty(Answer, AnswerFault),
    /// The target could not carry it out (Response other than "command completed at target", 11.4.3).
    TargetFailure {
        /// The Response code.
        response: u8,
    },
    /// By a task management function that this side asked for. It may have been carried out, in part or whole, before that; it
    /// is not any more.
    Aborted,
    /// By a logout that this side asked for, of its connection or of the session. It may have been carried out, in part or
    /// whole, before that; it is not any more.
    LoggedOut,
    /// It never left this side, or the target rejected its PDU (11.17): it has not begun.
    NotSent,
    /// It left and nobody answered: it may have been carried out, and it may still be.
    Unknown,
}

impl End {
    /// By an answer of the target to the command itself: it has come there.
    pub(super) const fn was_answered(&self) -> bool {
        matches!(self, Self::Answered(_) | Self::Faulty(..) | Self::TargetFailure { .. })
    }
}

/// What an Asynchronous Message said (11.9.1) that is for the layers above.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A SCSI event (0): its sense data.
    ScsiEvent {
        /// The logical unit.
        lun: LunField,
        /// Sense data.
        sense: Vec<u8>,
    },
    /// The target wants a negotiation (4) within so many seconds. The session has begun one.
    NegotiationRequest {
        /// Parameter3.
        within_s: u16,
    },
    /// The target has declared in it how long the data segments may be that it takes on the connection from now on (13.12).
    SegmentLength {
        /// In bytes.
        bytes: u32,
    },
    /// All tasks of a logical unit are being ended by another's function (5).
    TasksTerminated {
        /// The logical unit.
        lun: LunField,
    },
    /// A message of the vendor's (255 and below), as it came.
    Vendor {
        /// AsyncEvent.
        event: u8,
        /// AsyncVCode.
        code: u8,
        /// Parameter1 to Parameter3.
        parameters: [u16; 3],
        /// The data segment behind its sense data length.
        data: Vec<u8>,
    },
}

/// Something for the driver to do or to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A task is over; its buffers are the driver's again, once PDUs that use them have been sent.
    Ended {
        /// The task.
        task: TaskHandle,
        /// How.
        end: End,
    },
    /// A task management function was answered. Tasks that it ended were told before.
    Managed {
        /// The request.
        request: RequestHandle,
        /// What was asked for.
        function: TaskManagementFunction,
        /// The response code (11.6.1).
        response: u8,
        /// Additional Response Information (RFC 7144).
        additional: [u8; 3],
    },
    /// A ping was answered.
    Pong {
        /// The request.
        request: RequestHandle,
        /// What came back is what was sent, as far as it fits the segments that this side takes.
        is_true: bool,
    },
    /// A text exchange is over.
    Text {
        /// The request.
        request: RequestHandle,
        /// All that the target said.
        text: Vec<u8>,
    },
    /// A request ended without an answer, with its connection or by a Reject.
    Unanswered {
        /// The request.
        request: RequestHandle,
        /// The reason code of the Reject (11.17.1), if it was one.
        reject: Option<u8>,
    },
    /// The target said something unasked.
    Notice {
        /// On which connection.
        connection: ConnectionId,
        /// What.
        notice: Notice,
    },
    /// The target wants a connection to be logged out within so many seconds (event 1 of 11.9.1). Nothing new is sent on it;
    /// the driver calls [`super::Session::logout`] when it is ready.
    LogoutRequested {
        /// The connection.
        connection: ConnectionId,
        /// Parameter3.
        within_s: u16,
    },
    /// A PDU was rejected (11.17) that is no request which waits for an answer; for the log.
    Rejected {
        /// On which connection.
        connection: ConnectionId,
        /// The reason code.
        reason: u8,
        /// Opcode of the PDU that was rejected.
        opcode: u8,
    },
    /// A connection was logged out: the driver closes it.
    LoggedOut {
        /// The connection.
        connection: ConnectionId,
    },
    /// A connection is lost: the driver closes it.
    ConnectionFailed {
        /// The connection.
        connection: ConnectionId,
        /// Why.
        loss: Loss,
    },
    /// The session is over after a logout; all connections were told before.
    SessionEnded,
    /// The session is over because something failed. The driver closes all connections; each task was told before.
    SessionLost {
        /// Why.
        loss: Loss,
    },
}

/// PDUs and events, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    /// To be sent, by [`super::Session::transmit`].
    pub pdus: Vec<Outgoing>,
    /// To be handled.
    pub events: Vec<Event>,
}

impl Outbox {
    pub(super) fn tell(&mut self, event: Event) {
        self.events.push(event);
    }
}
