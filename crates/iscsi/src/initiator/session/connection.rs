//! One connection of a session: what was agreed for it, its status numbers, and what waits to be sent on it.

use std::collections::VecDeque;
use std::time::Duration;

use lunette_wire::{Bhs, Cid, CmdSn, InitiatorTaskTag, StatSn, TargetTransferTag};

use super::management::Management;
use super::recovery::StatusOrder;
use super::round_trip::RoundTrip;
use super::{ConnectionId, RequestHandle};
use crate::initiator::login::Outcome;
use crate::parameters::ConnectionParameters;

/// Answers to what a target says unasked that may wait to be sent; who says more does not read what it gets.
const PONGS_MAX: usize = 32;

/// Functions that are remembered for what the target may say about them.
const TERMINATIONS_MAX: usize = 16;

/// What a login brought, for [`super::Session::add_connection`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedIn {
    /// Its name in the session.
    pub cid: Cid,
    /// What was agreed for it.
    pub parameters: ConnectionParameters,
    /// StatSN of the first status in full feature phase.
    pub exp_stat_sn: StatSn,
    /// ExpCmdSN of the last Login Response.
    pub exp_cmd_sn: CmdSn,
    /// MaxCmdSN of the last Login Response.
    pub max_cmd_sn: CmdSn,
}

impl From<&Outcome> for LoggedIn {
    fn from(login: &Outcome) -> Self {
        Self {
            cid: login.cid,
            parameters: login.connection,
            exp_stat_sn: login.exp_stat_sn,
            exp_cmd_sn: login.exp_cmd_sn,
            max_cmd_sn: login.max_cmd_sn,
        }
    }
}

/// Something that waits to be sent.
#[derive(Debug)]
pub(super) enum Entry {
    /// A command, with its immediate data; and its number, which is sent without it if the task has ended by then.
    Command(InitiatorTaskTag, CmdSn),
    /// The rest of a sequence of Data-Out.
    Data(DataOut),
    /// Any other PDU; ExpStatSN is put in when it leaves.
    Pdu(Box<(Bhs, Box<[u8]>)>, Meaning),
}

/// What a PDU is that is no command and no data.
#[derive(Debug, Clone, Copy)]
pub(super) enum Meaning {
    /// A request that waits for an answer.
    Request(InitiatorTaskTag),
    /// An answer to something that the target said unasked.
    Answer,
    /// A SNACK (11.16).
    Snack,
}

/// A sequence of Data-Out that is under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct DataOut {
    pub(super) task: InitiatorTaskTag,
    /// Of the R2T; reserved for unsolicited data.
    pub(super) target_transfer_tag: TargetTransferTag,
    pub(super) next: u32,
    pub(super) end: u32,
    pub(super) data_sn: u32,
}

impl DataOut {
    pub(super) fn is_solicited(&self) -> bool {
        self.target_transfer_tag != TargetTransferTag::RESERVED
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    pub(super) cid: Cid,
    pub(super) parameters: ConnectionParameters,
    pub(super) order: StatusOrder,
    /// Requests and unsolicited data, in the order of their numbers (4.2.2.1, 4.2.5.2).
    pub(super) requests: VecDeque<Entry>,
    /// Answers to R2Ts, in the order of the R2Ts (11.8).
    pub(super) solicited: VecDeque<DataOut>,
    /// Answers to what the target said unasked among the requests.
    pub(super) pongs: usize,
    /// Functions that left on other connections, and of which this one may hear (4.2.3.4, d).
    terminations: VecDeque<Management>,
    /// SNACKs among the requests.
    pub(super) snacks: usize,
    /// Numbers that went alone (7.2.1), as long as they may be lost with the connection.
    pub(super) plugs: Vec<CmdSn>,
    /// When what is missing is asked for again.
    pub(super) ask_at: Option<Duration>,
    /// Nothing new is sent on it: a logout was asked for, by the target or by this side.
    pub(super) is_leaving: bool,
    /// Its Logout Request has left: nothing at all is sent behind it (11.14).
    pub(super) is_silent: bool,
    /// Bytes of tasks that are under way on it.
    pub(super) load: u64,
    /// What was sent last waits in front of it ([`super::Session::set_full`]).
    pub(super) is_full: bool,
    pub(super) heard_at: Duration,
    /// When data last came on it.
    pub(super) data_at: Duration,
    /// The keepalive that is under way, and when it was begun.
    pub(super) keepalive: Option<(RequestHandle, Duration)>,
    pub(super) round_trip: RoundTrip,
    /// A text exchange is under way; there is one at a time (11.10).
    pub(super) has_text: bool,
    /// The target wants a negotiation, which waits for the end of that exchange (11.9.1).
    pub(super) owes_negotiation: bool,
}

impl Connection {
    pub(super) fn new(now: Duration, id: ConnectionId, login: &LoggedIn) -> Self {
        Self {
            id,
            cid: login.cid,
            parameters: login.parameters,
            order: StatusOrder::new(login.exp_stat_sn),
            requests: VecDeque::new(),
            solicited: VecDeque::new(),
            pongs: 0,
            terminations: VecDeque::new(),
            snacks: 0,
            plugs: Vec::new(),
            ask_at: None,
            is_leaving: false,
            is_silent: false,
            load: 0,
            is_full: false,
            heard_at: now,
            data_at: now,
            keepalive: None,
            round_trip: RoundTrip::default(),
            has_text: false,
            owes_negotiation: false,
        }
    }

    /// The longest data segment that the target takes, in bytes; a multiple of four, so that only the last PDU of a
    /// sequence is padded (11.7.7).
    pub(super) const fn segment_max(&self) -> u32 {
        self.parameters.max_send_data_segment_length & !3
    }

    pub(super) fn queue(&mut self, bhs: Bhs, data: Box<[u8]>, meaning: Meaning) {
        self.requests.push_back(Entry::Pdu(Box::new((bhs, data)), meaning));
    }

    /// A number has gone alone, or its command has ended without an answer. Those before `exp_cmd_sn` have come.
    pub(super) fn note_plug(&mut self, cmd_sn: CmdSn, exp_cmd_sn: CmdSn) {
        self.plugs.retain(|plug| !plug.precedes(exp_cmd_sn));
        self.plugs.push(cmd_sn);
    }

    /// Counts an answer to something that the target said unasked; false when it has not read those before.
    pub(super) const fn owes_another_answer(&mut self) -> bool {
        self.pongs += 1;
        self.pongs <= PONGS_MAX
    }

    /// A function has left on another connection that may end tasks of this one.
    pub(super) fn expect_termination(&mut self, function: Management) {
        if self.terminations.len() == TERMINATIONS_MAX {
            self.terminations.pop_front();
        }
        self.terminations.push_back(function);
    }

    /// The oldest function that explains why tasks are being ended. One that is about all units explains it once for each.
    pub(super) fn termination(&mut self, explains: impl Fn(&Management) -> bool) -> Option<Management> {
        let at = self.terminations.iter().position(explains)?;
        let function = self.terminations[at];
        if function.is_of_unit() {
            self.terminations.remove(at);
        }
        Some(function)
    }
}
