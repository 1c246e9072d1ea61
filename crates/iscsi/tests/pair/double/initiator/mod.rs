//! An initiator that logs in, sends commands and data as negotiated, and checks every PDU that it gets.
//!
//! It can be told to misbehave: see [`Manners`] and [`Initiator::send_raw`].

mod authenticate;
mod link;
mod receive;
mod send;
mod wish;

use std::collections::BTreeMap;

use lunette_iscsi::parameters::SessionParameters;
use lunette_wire::initiator::{LoginRequest, LoginStage, ScsiCommand};
use lunette_wire::target::Residual;
use lunette_wire::text::push;
use lunette_wire::{Cid, CmdSn, DataSn, InitiatorPdu, InitiatorTaskTag, TargetTransferTag, Tsih};

use link::Link;
pub(crate) use send::cdb;
pub(crate) use wish::{ChapWish, Manners, Wish};

use super::Rng;
use super::target::{GOOD, TARGET_NAME};

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    Answered {
        status: u8,
        residual: Residual,
        sense: Vec<u8>,
        data: Vec<u8>,
    },
    /// By a task management function, a reset, a logout or the loss of its connection: no answer may follow.
    Aborted,
}

#[derive(Debug)]
struct Task {
    command: ScsiCommand,
    /// The connection that it was sent on.
    link: usize,
    /// Data to send.
    out: Vec<u8>,
    /// Data that came.
    data: Vec<u8>,
    next_data_sn: DataSn,
    next_r2t_sn: DataSn,
    next_r2t_offset: u32,
    burst: u32,
    /// R2Ts whose last Data-Out has not left.
    r2ts_open: u16,
}

impl Task {
    fn new(link: usize, command: ScsiCommand, out: Vec<u8>, next_r2t_offset: u32) -> Self {
        Self {
            command,
            link,
            out,
            data: Vec::new(),
            next_data_sn: DataSn(0),
            next_r2t_sn: DataSn(0),
            next_r2t_offset,
            burst: 0,
            r2ts_open: 0,
        }
    }
}

#[derive(Debug)]
enum Outgoing {
    Pdu(InitiatorPdu, Vec<u8>),
    Raw(Vec<u8>),
}

/// What a request that is not a SCSI command is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Ping(Vec<u8>),
    /// A ping with a number that was sent on a connection that is gone. If it had been received, there is no answer.
    Filler,
    /// The tags that it aborts.
    Management(Vec<u32>),
    /// Of this connection, or of the session.
    Logout(Option<usize>),
    Text,
}

/// Such a request, which waits for its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Request {
    link: usize,
    /// Its number, unless it is immediate.
    cmd_sn: Option<CmdSn>,
    kind: Kind,
}

pub(crate) struct Initiator {
    wish: Wish,
    pub(crate) manners: Manners,
    rng: Rng,
    /// What was agreed, as the answers said.
    pub(crate) session: SessionParameters,
    pub(crate) links: Vec<Link>,
    /// The connection that requests are sent on.
    pub(crate) on: usize,
    /// Picks it anew for each command.
    pub(crate) spreads: bool,
    tsih: Tsih,
    pub(crate) cmd_sn: CmdSn,
    exp_cmd_sn: CmdSn,
    pub(crate) max_cmd_sn: CmdSn,
    next_tag: u32,
    tasks: BTreeMap<u32, Task>,
    requests: BTreeMap<u32, Request>,
    pub(crate) ends: BTreeMap<u32, End>,
    /// Outcomes of task management functions, by tag.
    pub(crate) outcomes: BTreeMap<u32, u8>,
    pub(crate) rejects: Vec<u8>,
    pub(crate) texts: Vec<u8>,
    pub(crate) pings: u32,
    pub(crate) logout_requests: u32,
    /// R2Ts that came, and the most of one task that were outstanding at once.
    pub(crate) r2ts: u32,
    pub(crate) r2ts_open_max: u16,
    last_r2t: TargetTransferTag,
    /// Data-In sequences, and PDUs.
    pub(crate) sequences: u32,
    pub(crate) segments: u32,
    /// Notices that the session is being dropped.
    pub(crate) drop_notices: u32,
    /// Task terminations that were announced.
    pub(crate) terminations: u32,
    pub(crate) logged_out: bool,
}

impl Initiator {
    pub(crate) fn new(wish: Wish, seed: u64) -> Self {
        let mut rng = Rng(seed);
        // Close to the wrap, so that it happens in most tests.
        let cmd_sn = CmdSn(u32::MAX - rng.below(8));
        let mut initiator = Self {
            manners: Manners {
                answers_pings: true,
                answers_r2ts: true,
                sends_for_aborted: true,
                uses_immediate_data: true,
                uses_unsolicited_data: true,
            },
            rng,
            session: SessionParameters::default(),
            links: Vec::new(),
            on: 0,
            spreads: false,
            tsih: Tsih(0),
            cmd_sn,
            exp_cmd_sn: cmd_sn,
            max_cmd_sn: cmd_sn,
            next_tag: 0,
            tasks: BTreeMap::new(),
            requests: BTreeMap::new(),
            ends: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            rejects: Vec::new(),
            texts: Vec::new(),
            pings: 0,
            logout_requests: 0,
            r2ts: 0,
            r2ts_open_max: 0,
            last_r2t: TargetTransferTag::RESERVED,
            sequences: 0,
            segments: 0,
            drop_notices: 0,
            terminations: 0,
            logged_out: false,
            wish,
        };
        initiator.begin_login(0, Cid(1));
        initiator
    }

    pub(crate) fn is_logged_in(&self) -> bool {
        self.links.iter().any(|link| link.is_up)
    }

    /// Begins the login of a connection: of a new session's first, or of one that joins it or takes the place of another.
    fn begin_login(&mut self, at: usize, cid: Cid) {
        let link = Link::new(cid, self.wish.max_recv_data_segment_length);
        if at == self.links.len() {
            self.links.push(link);
        } else {
            self.links[at] = link;
        }
        if self.wish.chap.is_some() {
            self.offer_chap(at);
        } else {
            self.log_in(at);
        }
    }

    /// Queues the request of the operational stage.
    fn log_in(&mut self, at: usize) {
        let wish = &self.wish;
        let is_leading = self.tsih == Tsih(0);
        let yes_or_no = |value| if value { "Yes" } else { "No" };
        let digest = |wanted| if wanted { "CRC32C,None" } else { "None" };
        let mut text = Vec::new();
        push(&mut text, "InitiatorName", "iqn.2026-11.io.lunette:double");
        if wish.discovery {
            push(&mut text, "SessionType", "Discovery");
        } else {
            push(&mut text, "TargetName", TARGET_NAME);
        }
        if !wish.discovery && is_leading {
            push(&mut text, "InitialR2T", yes_or_no(wish.initial_r2t));
            push(&mut text, "ImmediateData", yes_or_no(wish.immediate_data));
            push(&mut text, "MaxBurstLength", &wish.max_burst_length.to_string());
            push(&mut text, "FirstBurstLength", &wish.first_burst_length.to_string());
            push(&mut text, "MaxOutstandingR2T", &wish.max_outstanding_r2t.to_string());
            push(&mut text, "MaxConnections", &wish.max_connections.to_string());
            if let Some(offer) = wish.task_reporting {
                push(&mut text, "TaskReporting", offer);
            }
        }
        push(&mut text, "MaxRecvDataSegmentLength", &wish.max_recv_data_segment_length.to_string());
        push(&mut text, "HeaderDigest", digest(wish.header_digest));
        push(&mut text, "DataDigest", digest(wish.data_digest));
        self.request_login(at, LoginStage::Operational, LoginStage::FullFeature, text);
    }

    /// A Login Request that wants to go on to `next_stage`.
    fn request_login(&mut self, at: usize, current_stage: LoginStage, next_stage: LoginStage, text: Vec<u8>) {
        let request = LoginRequest {
            transit: true,
            current_stage,
            next_stage,
            isid: self.wish.isid,
            tsih: self.tsih,
            cid: self.links[at].cid,
            cmd_sn: self.cmd_sn,
            ..LoginRequest::default()
        };
        self.links[at].queue.push_back(Outgoing::Pdu(InitiatorPdu::LoginRequest(request), text));
    }

    /// It asks for FastAbort, which the target agrees to: then no data follows an abort of several tasks (4.2.3.4).
    pub(crate) fn aborts_fast(&self) -> bool {
        self.wish.task_reporting.is_some_and(|offer| offer.starts_with("FastAbort"))
    }

    pub(crate) fn tag(&mut self) -> InitiatorTaskTag {
        // Few tags, so that they are used again as soon as they may be.
        loop {
            self.next_tag = (self.next_tag + 1) % 200;
            if !self.tasks.contains_key(&self.next_tag) && !self.requests.contains_key(&self.next_tag) {
                self.ends.remove(&self.next_tag);
                return InitiatorTaskTag(self.next_tag);
            }
        }
    }

    /// True when the window has room for another command.
    pub(crate) fn may_send(&self) -> bool {
        !self.max_cmd_sn.precedes(self.cmd_sn)
    }

    pub(crate) fn next_cmd_sn(&mut self) -> CmdSn {
        let cmd_sn = self.cmd_sn;
        self.cmd_sn = cmd_sn.next();
        cmd_sn
    }

    fn conclude_all(&mut self) {
        for tag in std::mem::take(&mut self.tasks).into_keys() {
            self.ends.insert(tag, End::Aborted);
        }
        self.requests.clear();
        self.links.iter_mut().for_each(Link::cut);
    }

    /// The session is gone: its tasks are, too.
    pub(crate) fn give_up(&mut self) {
        self.conclude_all();
    }

    /// Forgets a task that was made with `send_raw` or that the target refused.
    pub(crate) fn conclude(&mut self, tag: u32) {
        self.tasks.remove(&tag);
    }

    pub(crate) fn open_tasks(&self) -> Vec<u32> {
        self.tasks.keys().copied().collect()
    }

    pub(crate) fn is_idle(&self) -> bool {
        let has_requests = self.requests.values().any(|request| request.kind != Kind::Filler);
        self.tasks.is_empty() && !has_requests && self.links.iter().all(|link| link.queue.is_empty())
    }

    pub(crate) fn assert_all_concluded(&self) {
        assert_eq!(self.open_tasks(), [0u32; 0], "tasks without an answer");
        let open: Vec<_> = self.requests.values().filter(|request| request.kind != Kind::Filler).collect();
        assert!(open.is_empty(), "requests without an answer: {open:?}");
    }

    /// All that was sent has been received in order, and the whole window is open again.
    pub(crate) fn assert_window(&self, depth: u16) {
        if self.logged_out || !self.is_logged_in() {
            return;
        }
        assert_eq!(self.exp_cmd_sn, self.cmd_sn, "a CmdSN is missing at the target");
        assert_eq!(self.max_cmd_sn.since(self.cmd_sn) + 1, u32::from(depth), "the window has leaked");
    }

    /// The GOOD answer to a task, with its residual and data.
    pub(crate) fn good(&self, tag: u32) -> (Residual, &[u8]) {
        match self.ends.get(&tag) {
            Some(End::Answered { status: GOOD, residual, data, .. }) => (*residual, data),
            other => panic!("task {tag} ended with {other:?}"),
        }
    }

    /// The sense data of a CHECK CONDITION: key, ASC, ASCQ.
    pub(crate) fn sense(&self, tag: u32) -> (u8, u8, u8) {
        match self.ends.get(&tag) {
            Some(End::Answered { status: 2, sense, .. }) => (sense[2] & 0x0f, sense[12], sense[13]),
            other => panic!("task {tag} ended with {other:?}"),
        }
    }
}
