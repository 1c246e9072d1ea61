//! Operational parameters (RFC 7143, chapter 13): what this target is willing to do, what was agreed, and the rules
//! between the two.
//!
//! The keys themselves are rows of `keys`; `negotiation` answers an initiator's offers.

pub mod keys;
pub(crate) mod negotiation;
pub(crate) mod value;

use lunette_wire::frame::Digests;

use crate::Quoted;

/// MaxRecvDataSegmentLength before anybody has declared one, and throughout the login (13.12, 6.3), in bytes.
pub const DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH: u32 = 8192;

/// The most connections that one session may have here. The key (13.2) goes to 65535; 32 is what Windows offers, and more
/// than a host has links and processors to gain from.
pub const CONNECTIONS_MAX: u16 = 32;

/// What a session is for (4.3, 13.21).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SessionType {
    /// SCSI commands.
    #[default]
    Normal,
    /// Finding targets by SendTargets, and nothing else.
    Discovery,
}

/// What a target does about one digest (13.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DigestPolicy {
    /// None and CRC32C are both taken; the initiator's order decides (6.2.1).
    #[default]
    Allowed,
    /// An initiator that does not offer CRC32C is refused.
    Required,
    /// An initiator that does not offer None is refused.
    Refused,
}

/// What this target is willing to do. Lengths are in bytes, times in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetLimits {
    /// The longest data segment that is received, 512 to 2^24 - 1. Default 256 KiB: what the Linux and libiscsi
    /// initiators send at most, and few headers for much data, while a receive buffer stays small.
    pub max_recv_data_segment_length: u32,
    /// The longest solicited sequence, 512 to 2^24 - 1. Default: the largest multiple of 4096 that the key can say, so
    /// that even a large write needs one R2T and one round trip, and bursts end on the borders of pages.
    pub max_burst_length: u32,
    /// The most unsolicited data of one command, 512 to 2^24 - 1. Default 256 KiB: what the Linux and libiscsi
    /// initiators offer; up to there a write needs no round trip at all.
    pub first_burst_length: u32,
    /// True makes every burst wait for an R2T. Default false: that would cost each write a round trip.
    pub initial_r2t: bool,
    /// False keeps data out of the command's own PDU. Default true: the cheapest way for a small write.
    pub immediate_data: bool,
    /// R2Ts that may be outstanding for one task, 1 to 65535. Default 16: what Windows offers; several bursts in
    /// flight hide the round trip of a long link.
    pub max_outstanding_r2t: u16,
    /// Connections of one session, 1 to [`CONNECTIONS_MAX`]. Default 8: more than most hosts have links,
    /// while one session's share of all connections stays small.
    pub max_connections: u16,
    /// 0 to 2. Default 0: no recovery but by a new session.
    pub error_recovery_level: u8,
    /// The least wait before a reconnection, 0 to 3600. Default 0: an initiator may come back at once, and the larger
    /// offer wins in any case.
    pub default_time2wait_s: u16,
    /// How long tasks outlive their connection, 0 to 3600. Default 0: below ErrorRecoveryLevel 2 they do not.
    pub default_time2retain_s: u16,
    /// The digest over headers. Default: the initiator decides.
    pub header_digest: DigestPolicy,
    /// The digest over data. Default: the initiator decides.
    pub data_digest: DigestPolicy,
    /// Commands that an initiator may send before the first one is answered, 1 to 2^31 - 1; MaxCmdSN in the login
    /// follows from it (4.2.2.1). Default 128: what the Linux initiator can make use of.
    pub command_window: u32,
}

impl Default for TargetLimits {
    fn default() -> Self {
        Self {
            max_recv_data_segment_length: 256 * 1024,
            max_burst_length: 4095 * 4096,
            first_burst_length: 256 * 1024,
            initial_r2t: false,
            immediate_data: true,
            max_outstanding_r2t: 16,
            max_connections: 8,
            error_recovery_level: 0,
            default_time2wait_s: 0,
            default_time2retain_s: 0,
            header_digest: DigestPolicy::Allowed,
            data_digest: DigestPolicy::Allowed,
            command_window: 128,
        }
    }
}

/// How the end of tasks that others aborted is reported (13.23).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TaskReporting {
    /// As RFC 3720 had it; no response fence is promised.
    #[default]
    Rfc3720,
    /// The response fence of 4.2.2.3.3.
    ResponseFence,
    /// The fast multi-task abort of 4.2.3.4.
    FastAbort,
}

/// What holds for a whole session, as agreed in its leading login. Lengths are in bytes, times in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionParameters {
    /// Connections that the session may have (13.2).
    pub max_connections: u16,
    /// True: no Data-Out without an R2T (13.10).
    pub initial_r2t: bool,
    /// True: commands may carry data (13.11).
    pub immediate_data: bool,
    /// The longest sequence of Data-In, or of Data-Out for one R2T (13.13).
    pub max_burst_length: u32,
    /// The most unsolicited data of one command; never above `max_burst_length` (13.14).
    pub first_burst_length: u32,
    /// R2Ts that one task may have outstanding (13.17).
    pub max_outstanding_r2t: u16,
    /// True: the PDUs of a sequence come in order (13.18).
    pub data_pdu_in_order: bool,
    /// True: the sequences of a task come in order (13.19).
    pub data_sequence_in_order: bool,
    /// 0 to 2 (13.20).
    pub error_recovery_level: u8,
    /// The least wait before a reconnection (13.15).
    pub default_time2wait_s: u16,
    /// How long tasks outlive their connection after that wait (13.16).
    pub default_time2retain_s: u16,
    /// How aborted tasks are reported (13.23).
    pub task_reporting: TaskReporting,
    /// iSCSIProtocolLevel (13.24, RFC 7144): 1 is RFC 7143.
    pub protocol_level: u8,
}

impl Default for SessionParameters {
    /// What holds when nothing is negotiated: the defaults of chapter 13.
    fn default() -> Self {
        negotiation::Negotiation::new(TargetLimits::default(), SessionType::Normal, true).session()
    }
}

/// What holds for one connection. Lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionParameters {
    /// The digests of every PDU in the full feature phase (13.1).
    pub digests: Digests,
    /// The longest data segment that we declared to take.
    pub max_recv_data_segment_length: u32,
    /// The longest data segment that the peer declared to take.
    pub max_send_data_segment_length: u32,
}

impl Default for ConnectionParameters {
    /// What holds when nothing is negotiated: the defaults of chapter 13.
    fn default() -> Self {
        Self {
            digests: Digests::default(),
            max_recv_data_segment_length: DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH,
            max_send_data_segment_length: DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH,
        }
    }
}

/// What a peer got wrong about a key, or what the two sides cannot agree on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A key came twice in one negotiation (6.3, 6.4).
    #[error("the key {} came twice in one negotiation", Quoted(.0))]
    Repeated(String),
    /// A key that said something else before in this login.
    #[error("the key {0} was declared anew with another value")]
    Redeclared(&'static str),
    /// More keys than a peer has reason to send.
    #[error("more than {0} keys came in one negotiation")]
    TooMany(usize),
    /// A key that only the other side may send.
    #[error("the key {0} is for the target to send")]
    Sender(&'static str),
    /// A key in a stage where it may not be sent.
    #[error("the key {0} may not be sent in this stage")]
    Stage(&'static str),
    /// A word that only an answer may be (6.2).
    #[error("the key {} came with {value:?}, which is for answers only", Quoted(key))]
    ReservedWord {
        /// The key.
        key: String,
        /// The word.
        value: String,
    },
    /// A declared value outside its range (7.12).
    #[error("{key}={} is outside the admissible range", Quoted(value))]
    Declaration {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
    },
    /// Nothing in a list is acceptable (7.12).
    #[error("{key}={} has no value that is acceptable here", Quoted(value))]
    NoCommonValue {
        /// The key.
        key: &'static str,
        /// The offer.
        value: String,
    },
    /// A key of an authentication method that was not agreed on.
    #[error("the key {0} belongs to an authentication method that was not agreed on")]
    MethodNotAgreed(&'static str),
    /// A key that does not belong to the present step of the authentication (9.2).
    #[error("the key {0} does not belong to this step of the authentication")]
    OutOfStep(&'static str),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The defaults that clauses 13.2 to 13.24 state, written out.
    #[test]
    fn defaults_are_the_rfcs() {
        let expected = SessionParameters {
            max_connections: 1,
            initial_r2t: true,
            immediate_data: true,
            max_burst_length: 262_144,
            first_burst_length: 65536,
            max_outstanding_r2t: 1,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            error_recovery_level: 0,
            default_time2wait_s: 2,
            default_time2retain_s: 20,
            task_reporting: TaskReporting::Rfc3720,
            protocol_level: 1,
        };
        assert_eq!(SessionParameters::default(), expected);
    }

    #[test]
    fn the_targets_own_limits_are_admissible() {
        let limits = TargetLimits::default();
        for length in
            [limits.max_recv_data_segment_length, limits.max_burst_length, limits.first_burst_length]
        {
            assert!((512..1 << 24).contains(&length));
        }
        assert!(limits.first_burst_length <= limits.max_burst_length);
        assert_eq!(limits.max_burst_length % 4096, 0);
    }
}
