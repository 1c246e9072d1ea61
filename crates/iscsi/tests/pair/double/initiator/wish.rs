//! What an initiator offers, and how well it behaves.

use lunette_wire::Isid;

/// What the initiator offers at login.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    pub(crate) isid: Isid,
    pub(crate) initial_r2t: bool,
    pub(crate) immediate_data: bool,
    pub(crate) max_burst_length: u32,
    pub(crate) first_burst_length: u32,
    pub(crate) max_outstanding_r2t: u16,
    pub(crate) max_recv_data_segment_length: u32,
    pub(crate) header_digest: bool,
    pub(crate) data_digest: bool,
    pub(crate) discovery: bool,
    pub(crate) max_connections: u16,
    /// TaskReporting, if it is offered.
    pub(crate) task_reporting: Option<&'static str>,
    /// Log in with CHAP.
    pub(crate) chap: Option<ChapWish>,
}

/// What the initiator knows for CHAP.
#[derive(Debug, Clone)]
pub(crate) struct ChapWish {
    /// CHAP_A.
    pub(crate) algorithms: &'static str,
    /// Its name and secret.
    pub(crate) name: &'static str,
    pub(crate) secret: &'static str,
    /// What the target has to prove, if anything.
    pub(crate) target: Option<(&'static str, &'static str)>,
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            isid: Isid([0x80, 0, 0, 0, 0, 1]),
            initial_r2t: false,
            immediate_data: true,
            max_burst_length: 262_144,
            first_burst_length: 65536,
            max_outstanding_r2t: 1,
            max_recv_data_segment_length: 65536,
            header_digest: false,
            data_digest: false,
            discovery: false,
            chap: None,
            max_connections: 1,
            task_reporting: None,
        }
    }
}

/// How well the initiator behaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manners {
    /// Answers the target's pings.
    pub(crate) answers_pings: bool,
    /// Answers R2Ts at all.
    pub(crate) answers_r2ts: bool,
    /// Goes on sending data for a task that it has asked to be aborted, as 4.2.3.3 demands.
    pub(crate) sends_for_aborted: bool,
    /// Puts data into the command PDU where it may.
    pub(crate) uses_immediate_data: bool,
    /// Sends Data-Out without an R2T where it may.
    pub(crate) uses_unsolicited_data: bool,
}
