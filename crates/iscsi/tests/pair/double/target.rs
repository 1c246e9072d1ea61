//! A driver around `Login` and `Session`: the smallest one that does all a driver must, with a disk in memory.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lunette_iscsi::chap::{ChapNonce, ChapPolicy};
use lunette_iscsi::login::{
    Login, LoginFailure, LoginOutcome, LoginStatus, LoginStep, LookupFailure, TargetDirectory, TargetEntry,
};
use lunette_iscsi::parameters::{ConnectionParameters, DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH, TargetLimits};
use lunette_iscsi::session::{
    Completion, Event, Joining, Outbox, Outgoing, Payload, Placement, Session, SessionSettings, TaskId,
    Transfer,
};
use lunette_iscsi::text::{TextFacts, TextNegotiation, TextStep};
use lunette_wire::frame::Digests;
use lunette_wire::initiator::TaskManagementFunction;
use lunette_wire::target::{Numbers, RejectReason, TaskManagementOutcome};
use lunette_wire::{Bhs, Cid, InitiatorPdu, LunField, Tsih};

use super::frame::{self, Received};
use super::{BLOCK, Rng, frame::encode};

pub(crate) const TARGET_NAME: &str = "iqn.2026-11.io.lunette:disk0";
/// The one logical unit that there is.
pub(crate) const UNIT: LunField = LunField([0; 8]);
/// No logical unit: commands for it fail before any data is asked for.
pub(crate) const NO_UNIT: LunField = LunField([0, 1, 0, 0, 0, 0, 0, 0]);
pub(crate) const DISK_BLOCKS: u32 = 4096;

pub(crate) const GOOD: u8 = 0;
pub(crate) const CHECK_CONDITION: u8 = 2;
pub(crate) const TEST_UNIT_READY: u8 = 0x00;
pub(crate) const READ_10: u8 = 0x28;
pub(crate) const WRITE_10: u8 = 0x2a;

struct Directory<'a> {
    policy: Option<&'a Arc<ChapPolicy>>,
}

impl TargetDirectory for Directory<'_> {
    fn find(&self, name: &str, _: &str) -> Result<TargetEntry, LookupFailure> {
        let entry = TargetEntry { portal_group_tag: 1, alias: None, moved: None };
        if name == TARGET_NAME { Ok(entry) } else { Err(LookupFailure::NotFound) }
    }

    fn authentication(&self, _: Option<&str>) -> Option<Arc<ChapPolicy>> {
        self.policy.cloned()
    }
}

/// What an operation of the disk does when it ends.
#[derive(Debug)]
enum Operation {
    Read { offset: usize, length: u32 },
    Write { offset: usize, length: u32, called_for: u64 },
    Nothing,
}

#[derive(Debug, Default)]
struct Context {
    buffer: Vec<u8>,
}

pub(super) struct Full {
    pub(super) session: Session<Vec<u8>>,
    /// Of its leading login.
    outcome: LoginOutcome,
    tasks: HashMap<TaskId, Context>,
    /// Its connections, and theirs in the target.
    links: Vec<(Cid, usize)>,
    /// Logins that wait for the end of a connection.
    joiners: Vec<usize>,
}

enum Phase {
    Login(Box<Login>),
    /// Agreed, and waiting for the session or connection that it replaces to end.
    Waiting(Box<LoginOutcome>),
    Full {
        session: usize,
        outcome: Box<LoginOutcome>,
    },
    Refused,
}

struct Connection {
    phase: Phase,
    text: TextNegotiation,
    /// Bytes of a data segment that are taken in full feature phase.
    segment_max: u32,
    outbound: VecDeque<Vec<u8>>,
    closed: Option<String>,
}

pub(crate) struct Target {
    limits: TargetLimits,
    settings: SessionSettings,
    /// Who may log in; `None`: everybody.
    pub(crate) policy: Option<Arc<ChapPolicy>>,
    /// Random numbers for challenges.
    nonces: Rng,
    connections: Vec<Connection>,
    /// A session's handle is its place and one.
    pub(super) sessions: Vec<Full>,
    /// Units that had commands ended without an answer while their session went on.
    pub(crate) cleared: Vec<LunField>,
    /// Every response asks for a fence.
    pub(crate) fences: bool,
    /// Every other command ends before it is a task, if it can.
    pub(crate) answers_at_once: bool,
    pub(super) disk: Vec<u8>,
    operations: Vec<(usize, TaskId, Operation)>,
    now: Duration,
}

type Out = Outbox<Vec<u8>>;

fn completion(status: u8, sense: &[u8], transfer: Transfer<Vec<u8>>) -> Completion<'_, Vec<u8>> {
    Completion { status, status_qualifier: 0, sense, transfer, fenced: false }
}

impl Target {
    pub(crate) fn new(limits: TargetLimits, settings: SessionSettings) -> Self {
        Self {
            limits,
            settings,
            policy: None,
            nonces: Rng(settings.window_depth.into()),
            connections: Vec::new(),
            sessions: Vec::new(),
            cleared: Vec::new(),
            fences: false,
            answers_at_once: false,
            disk: vec![0; (DISK_BLOCKS * BLOCK) as usize],
            operations: Vec::new(),
            now: Duration::ZERO,
        }
    }

    pub(crate) fn connect(&mut self) -> usize {
        let nonce = ChapNonce::from(std::array::from_fn(|_| self.nonces.next() as u8));
        let phase = Phase::Login(Box::new(Login::new(self.limits, 1, nonce)));
        let text = TextNegotiation::default();
        let segment_max = self.limits.max_recv_data_segment_length;
        self.connections.push(Connection {
            phase,
            text,
            segment_max,
            outbound: VecDeque::new(),
            closed: None,
        });
        self.connections.len() - 1
    }

    pub(crate) fn operations(&self) -> usize {
        self.operations.len()
    }

    pub(crate) fn disk(&self) -> &[u8] {
        &self.disk
    }

    /// Why the target closed the connection, if it did.
    pub(crate) fn closed(&self, index: usize) -> Option<&str> {
        self.connections[index].closed.as_deref()
    }

    /// The session of a connection that has logged in.
    pub(crate) fn session(&self, index: usize) -> Option<&Session<Vec<u8>>> {
        self.full(index).map(|full| &full.session)
    }

    fn full(&self, index: usize) -> Option<&Full> {
        match &self.connections[index].phase {
            Phase::Full { session, .. } => Some(&self.sessions[*session]),
            _ => None,
        }
    }

    /// What the login gave this side, for comparison with the initiator's view.
    pub(crate) fn outcome(&self, index: usize) -> Option<&LoginOutcome> {
        match &self.connections[index].phase {
            Phase::Full { outcome, .. } => Some(outcome),
            _ => None,
        }
    }

    pub(crate) const fn window_depth(&self) -> u16 {
        self.settings.window_depth
    }

    pub(crate) fn next_to_send(&mut self, index: usize) -> Option<Vec<u8>> {
        self.connections[index].outbound.pop_front()
    }

    /// The transport connection is gone without a word.
    pub(crate) fn disconnect(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        connection.outbound.clear();
        let is_first = connection.closed.is_none();
        connection.closed.get_or_insert_with(|| "disconnected".to_owned());
        if let Phase::Full { session, outcome } = &connection.phase
            && is_first
        {
            let (session, cid) = (*session, outcome.cid);
            self.with_session(session, |full, outbox| full.session.connection_lost(cid, true, outbox));
        }
    }

    pub(crate) fn tick(&mut self, now: Duration) {
        self.now = now;
        for session in 0..self.sessions.len() {
            self.with_session(session, |full, outbox| full.session.tick(now, outbox));
        }
    }

    /// Another MaxRecvDataSegmentLength of the target's.
    pub(crate) fn declare_anew(&mut self, bytes: u32) {
        self.limits.max_recv_data_segment_length = bytes;
        let now = self.now;
        for session in 0..self.sessions.len() {
            self.with_session(session, |full, outbox| full.session.declare_anew(now, bytes, outbox));
        }
    }

    /// Asks all connections of a connection's session to be logged out.
    pub(crate) fn request_logout(&mut self, index: usize, within: Duration) {
        let now = self.now;
        let Phase::Full { session, .. } = self.connections[index].phase else { return };
        self.with_session(session, |full, outbox| full.session.request_logout(now, within, outbox));
    }

    /// Takes the bytes of one PDU.
    pub(crate) fn receive(&mut self, now: Duration, index: usize, bytes: Vec<u8>) {
        self.now = now;
        if self.connections[index].closed.is_some() {
            return;
        }
        match &mut self.connections[index].phase {
            Phase::Login(login) => {
                let received =
                    frame::decode(&bytes, Digests::default(), DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH);
                let step = match InitiatorPdu::decode(&received.bhs) {
                    Ok(InitiatorPdu::LoginRequest(pdu)) => {
                        login.step(&pdu, &received.data, &Directory { policy: self.policy.as_ref() })
                    }
                    _ => login.other_pdu(received.bhs[0] & 0x3f),
                };
                self.log_in(index, step);
            }
            Phase::Full { session, outcome } => {
                let (session, cid, digests) = (*session, outcome.cid, outcome.connection.digests);
                let received = frame::decode(&bytes, digests, self.connections[index].segment_max);
                if received.header_intact {
                    self.take(session, cid, received);
                } else {
                    // The length may be wrong too, so nothing behind it can be found (7.8).
                    self.disconnect(index);
                }
            }
            Phase::Waiting(_) | Phase::Refused => panic!("the initiator has nothing to say now"),
        }
    }

    fn log_in(&mut self, index: usize, step: LoginStep) {
        let connection = &mut self.connections[index];
        match step {
            LoginStep::Respond(reply) => {
                let bhs = reply.pdu.encode(reply.text.len());
                connection.outbound.push_back(encode(&bhs, &reply.text, Digests::default()));
            }
            LoginStep::Fail(reply, failure) => {
                let bhs = reply.pdu.encode(reply.text.len());
                connection.outbound.push_back(encode(&bhs, &reply.text, Digests::default()));
                connection.closed = Some(failure.to_string());
                connection.phase = Phase::Refused;
            }
            LoginStep::Drop(failure) => {
                connection.closed = Some(failure.to_string());
                connection.phase = Phase::Refused;
            }
            LoginStep::Ready(outcome) if outcome.tsih != Tsih(0) => self.join(index, outcome),
            LoginStep::Ready(outcome) => {
                self.replace_session(index, &outcome);
                self.connections[index].phase = Phase::Waiting(outcome);
                self.enter_full_feature(index);
            }
        }
    }

    /// Session reinstatement (6.3.5): the same initiator port, logging in anew, ends what it had.
    fn replace_session(&mut self, index: usize, outcome: &LoginOutcome) {
        for session in 0..self.sessions.len() {
            let full = &self.sessions[session];
            let is_same =
                full.outcome.initiator_name == outcome.initiator_name && full.outcome.isid == outcome.isid;
            if !is_same || full.session.has_ended() {
                continue;
            }
            for (_, connection) in full.links.clone() {
                assert_ne!(connection, index);
                self.connections[connection].closed.get_or_insert_with(|| "replaced".to_owned());
                self.connections[connection].outbound.clear();
            }
            self.with_session(session, |full, outbox| full.session.close(outbox));
        }
    }

    /// Accepts a login once no replaced session has a task left.
    fn enter_full_feature(&mut self, index: usize) {
        if self.sessions.iter().any(|full| full.session.is_closing() && !full.session.has_ended()) {
            return;
        }
        let Phase::Waiting(outcome) = std::mem::replace(&mut self.connections[index].phase, Phase::Refused)
        else {
            return;
        };
        let session = Session::new(
            outcome.session_type,
            outcome.session,
            self.settings,
            (outcome.cid, outcome.connection, outcome.next_stat_sn),
            outcome.cmd_sn,
            self.now,
        );
        let links = vec![(outcome.cid, index)];
        let (tasks, joiners) = (HashMap::new(), Vec::new());
        self.sessions.push(Full { session, outcome: (*outcome).clone(), tasks, links, joiners });
        self.accept(index, self.sessions.len() - 1, outcome);
    }

    /// A login names a session (6.3.1): adds its connection, or brings one again (6.3.4).
    fn join(&mut self, index: usize, outcome: Box<LoginOutcome>) {
        let session = usize::from(outcome.tsih.0) - 1;
        let cid = outcome.cid;
        let full = &mut self.sessions[session];
        match full.session.joining(cid) {
            Joining::Free => {
                full.session.join(self.now, cid, outcome.connection, outcome.next_stat_sn);
                full.links.push((cid, index));
                self.accept(index, session, outcome);
            }
            Joining::InUse => {
                full.joiners.push(index);
                if let Some(&(_, old)) = full.links.iter().find(|(of, _)| *of == cid) {
                    self.connections[old].closed.get_or_insert_with(|| "reinstated".to_owned());
                    self.connections[old].outbound.clear();
                }
                let exp_stat_sn = outcome.exp_stat_sn;
                self.connections[index].phase = Phase::Waiting(outcome);
                self.with_session(session, |full, outbox| full.session.reinstate(cid, exp_stat_sn, outbox));
            }
            other @ (Joining::Full | Joining::Over) => {
                let status = if other == Joining::Full {
                    LoginStatus::TooManyConnections
                } else {
                    LoginStatus::SessionDoesNotExist
                };
                let failure = LoginFailure::new(status, "the session cannot be joined");
                self.log_in(index, LoginStep::Fail(outcome.refuse(&failure), failure));
            }
        }
    }

    fn accept(&mut self, index: usize, session: usize, outcome: Box<LoginOutcome>) {
        let (exp_cmd_sn, max_cmd_sn) = self.sessions[session].session.command_numbers();
        let numbers = Numbers { exp_cmd_sn, max_cmd_sn, ..outcome.numbers };
        let reply = outcome.accept(Tsih(session as u16 + 1), numbers);
        let bhs = reply.pdu.encode(reply.text.len());
        let connection = &mut self.connections[index];
        connection.outbound.push_back(encode(&bhs, &reply.text, Digests::default()));
        connection.phase = Phase::Full { session, outcome };
    }

    fn take(&mut self, session: usize, cid: Cid, received: Received) {
        let now = self.now;
        let Received { bhs, data, data_intact, .. } = received;
        if let Ok(InitiatorPdu::ScsiCommand(pdu)) = InitiatorPdu::decode(&bhs)
            && data_intact
            && let Some((deliverable, length, data)) = self.do_at_once(session, cid, &pdu, &data)
        {
            return self.with_session(session, |full, outbox| {
                let bhs = full.session.answer_at_once(now, deliverable, (&bhs, &pdu), length);
                let bhs = bhs.expect("its connection is there");
                let payload = if data.is_empty() { Payload::None } else { Payload::Bytes(data) };
                outbox.pdus.push(Outgoing { cid, bhs, payload });
            });
        }
        self.with_session(session, |full, outbox| {
            let length = data.len() as u32;
            match InitiatorPdu::decode(&bhs) {
                Ok(pdu) if !data_intact && !matches!(pdu, InitiatorPdu::ScsiDataOut(_)) => {
                    full.session.reject(cid, &bhs, RejectReason::DataDigestError, outbox);
                }
                Ok(InitiatorPdu::ScsiCommand(pdu)) => {
                    let taken = full.session.command(now, cid, (&bhs, &pdu, &[]), length, outbox);
                    if let Some(id) = taken {
                        let mut buffer = data;
                        buffer.resize(pdu.expected_data_transfer_length.max(length) as usize, 0);
                        full.tasks.insert(id, Context { buffer });
                    }
                }
                Ok(InitiatorPdu::ScsiDataOut(pdu)) => {
                    if let Placement::Task { id, offset } = full.session.locate_data_out(cid, &pdu, length) {
                        let context = full.tasks.get_mut(&id).expect("the task is open");
                        context.buffer[offset as usize..][..data.len()].copy_from_slice(&data);
                    }
                    full.session.data_out_arrived(now, cid, (&bhs, &pdu), length, data_intact, outbox);
                }
                _ => full.session.request(now, cid, &bhs, &data, outbox),
            }
        });
    }

    /// Ends the operation at `pick`.
    pub(crate) fn work(&mut self, pick: usize) {
        let (index, id, operation) = self.operations.swap_remove(pick);
        let full = &mut self.sessions[index];
        let context = full.tasks.remove(&id).expect("an open operation has its task");
        let transfer = match operation {
            Operation::Read { offset, length } => {
                Transfer::In { data: self.disk[offset..offset + length as usize].to_vec(), length }
            }
            Operation::Write { offset, length, called_for } => {
                let length = length as usize;
                self.disk[offset..offset + length].copy_from_slice(&context.buffer[..length]);
                Transfer::Out { length: called_for }
            }
            Operation::Nothing => Transfer::None,
        };
        let completion = Completion { fenced: self.fences, ..completion(GOOD, &[], transfer) };
        self.with_session(index, |full, outbox| full.session.complete(id, completion, outbox));
    }

    /// Steps a session, then does what it asks for until it asks for nothing more.
    fn with_session(&mut self, index: usize, step: impl FnOnce(&mut Full, &mut Out)) {
        let mut outbox = Out::default();
        step(&mut self.sessions[index], &mut outbox);
        let mut ended = false;
        while !outbox.events.is_empty() || !outbox.pdus.is_empty() {
            self.flush(index, &mut outbox);
            for event in std::mem::take(&mut outbox.events) {
                ended |= event == Event::Ended;
                self.handle(index, event, &mut outbox);
            }
        }
        if ended {
            for waiting in 0..self.connections.len() {
                let is_joiner = self.sessions.iter().any(|full| full.joiners.contains(&waiting));
                if matches!(self.connections[waiting].phase, Phase::Waiting(_)) && !is_joiner {
                    self.enter_full_feature(waiting);
                }
            }
            self.retry_joiners(index);
        }
    }

    fn retry_joiners(&mut self, session: usize) {
        for index in std::mem::take(&mut self.sessions[session].joiners) {
            let phase = std::mem::replace(&mut self.connections[index].phase, Phase::Refused);
            if let Phase::Waiting(outcome) = phase
                && self.connections[index].closed.is_none()
            {
                self.join(index, outcome);
            }
        }
    }

    fn flush(&mut self, index: usize, outbox: &mut Out) {
        for pdu in std::mem::take(&mut outbox.pdus) {
            let bytes = match &pdu.payload {
                Payload::None => &[][..],
                Payload::Bytes(bytes) => bytes,
                Payload::Buffer { data, start, length } => &data[*start as usize..][..*length as usize],
            };
            let link = self.sessions[index].links.iter().find(|(cid, _)| *cid == pdu.cid);
            let Some(&(_, connection)) = link else { panic!("a PDU for a connection that has gone") };
            let connection = &mut self.connections[connection];
            if connection.closed.is_none()
                && let Phase::Full { outcome, .. } = &connection.phase
            {
                connection.outbound.push_back(encode(&pdu.bhs, bytes, outcome.connection.digests));
            }
        }
    }

    fn handle(&mut self, index: usize, event: Event, outbox: &mut Out) {
        let full = &mut self.sessions[index];
        match event {
            Event::Execute(id) => self.execute(index, id, outbox),
            Event::DataOutComplete(id) => self.submit_write(index, id),
            // It completes whatever it has begun.
            Event::Aborted(_) | Event::Untold { .. } => {}
            Event::Spoilt { id, asc, ascq } => {
                full.tasks.remove(&id);
                let sense = aborted_command(asc, ascq);
                full.session.complete(id, completion(CHECK_CONDITION, &sense, Transfer::None), outbox);
            }
            Event::Dropped(id) => {
                full.tasks.remove(&id).expect("a dropped task was open");
                assert!(!self.operations.iter().any(|(at, busy, _)| *at == index && *busy == id));
            }
            Event::Manage { id, function, lun } => {
                let outcome = if function == TaskManagementFunction::LogicalUnitReset && lun != UNIT {
                    TaskManagementOutcome::LunDoesNotExist
                } else {
                    TaskManagementOutcome::FunctionComplete
                };
                full.session.management_done(id, outcome, outbox);
            }
            Event::Text(pending) => {
                let cid = pending.cid;
                let connection =
                    full.links.iter().find(|(of, _)| *of == cid).expect("the connection is there").1;
                let text_state = &mut self.connections[connection].text;
                let parts = (&pending.request, &pending.bhs, pending.text.as_slice());
                answer_text(full, text_state, cid, parts, outbox);
            }
            Event::Close { cid, reason } => {
                // What the session had to say before goes out.
                self.flush(index, outbox);
                let link = self.sessions[index].links.iter().find(|(of, _)| *of == cid);
                let connection = link.expect("the connection is there").1;
                self.connections[connection].closed.get_or_insert_with(|| reason.to_string());
            }
            Event::SegmentLength { cid, bytes } => {
                let link = full.links.iter().find(|(of, _)| *of == cid);
                self.connections[link.expect("the connection is there").1].segment_max = bytes;
            }
            Event::Cleared { lun } => self.cleared.push(lun),
            Event::ConnectionEnded { cid } => {
                full.links.retain(|(of, _)| *of != cid);
                self.retry_joiners(index);
                let Full { session, links, .. } = &mut self.sessions[index];
                if links.is_empty() && !session.is_closing() && !session.retains() {
                    session.close(outbox);
                }
            }
            Event::Ended => {}
        }
    }

    fn execute(&mut self, index: usize, id: TaskId, outbox: &mut Out) {
        let full = &mut self.sessions[index];
        let task = full.session.task(id).expect("a task that is to be executed is open");
        let (offset, length) = extent(task.cdb);
        match task.cdb[0] {
            // A function that was waiting for it has aborted it already.
            _ if task.aborted => {
                full.tasks.remove(&id).expect("the task is open");
                let ended = Completion { fenced: self.fences, ..completion(GOOD, &[], Transfer::None) };
                full.session.complete(id, ended, outbox);
            }
            _ if task.lun != UNIT => {
                full.tasks.remove(&id).expect("the task is open");
                let failed = completion(CHECK_CONDITION, &SENSE, Transfer::None);
                full.session.complete(id, failed, outbox);
            }
            WRITE_10 => {
                full.session.solicit(id, length, outbox);
            }
            READ_10 => self.operations.push((index, id, Operation::Read { offset, length })),
            _ => self.operations.push((index, id, Operation::Nothing)),
        }
    }

    fn submit_write(&mut self, index: usize, id: TaskId) {
        let task = self.sessions[index].session.task(id).expect("the task is open");
        let (offset, called_for) = extent(task.cdb);
        // Whole blocks of what the initiator has.
        let length = called_for.min(task.expected_out) / BLOCK * BLOCK;
        let called_for = u64::from(called_for);
        self.operations.push((index, id, Operation::Write { offset, length, called_for }));
    }

    /// Nothing of this connection's session is kept.
    pub(crate) fn assert_clean(&self, index: usize) {
        let Some(full) = self.full(index) else { return };
        assert_eq!(full.session.open_tasks(), 0, "the session keeps a task");
        assert!(full.tasks.is_empty(), "the driver keeps a context");
        let is_alive =
            full.links.iter().any(|&(_, connection)| self.connections[connection].closed.is_none());
        assert_eq!(full.session.has_ended(), !is_alive, "a session lives as long as a connection of it");
    }

    /// Nothing of this connection's session is kept, and it lives.
    pub(crate) fn assert_nothing_kept(&self, index: usize) {
        let full = self.full(index).expect("a connection that has logged in");
        assert_eq!(full.session.open_tasks(), 0, "the session keeps a task");
        assert!(full.tasks.is_empty(), "the driver keeps a context");
        assert!(!full.session.is_closing() && self.operations.is_empty());
    }

    pub(crate) fn connection_parameters(&self, index: usize) -> ConnectionParameters {
        self.outcome(index).expect("the login is over").connection
    }
}

/// ABORTED COMMAND, as fixed sense data.
fn aborted_command(asc: u8, ascq: u8) -> [u8; 18] {
    [0x70, 0, 0x0b, 0, 0, 0, 0, 10, 0, 0, 0, 0, asc, ascq, 0, 0, 0, 0]
}

/// ILLEGAL REQUEST, LOGICAL UNIT NOT SUPPORTED, as fixed sense data.
pub(crate) const SENSE: [u8; 18] = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x25, 0, 0, 0, 0, 0];

/// Byte offset and length of a 10-byte read or write.
pub(super) fn extent(cdb: &[u8; 16]) -> (usize, u32) {
    let block = u32::from_be_bytes([cdb[2], cdb[3], cdb[4], cdb[5]]);
    let blocks = u32::from(u16::from_be_bytes([cdb[7], cdb[8]]));
    ((block * BLOCK) as usize, blocks * BLOCK)
}

fn answer_text(
    full: &mut Full,
    negotiation: &mut TextNegotiation,
    cid: Cid,
    (request, bhs, text): (&lunette_wire::initiator::TextRequest, &Bhs, &[u8]),
    outbox: &mut Out,
) {
    let targets = [(TARGET_NAME.to_owned(), vec!["127.0.0.1:3260,1".to_owned()])];
    let facts = TextFacts {
        session_type: full.outcome.session_type,
        target: full.outcome.target.as_ref().map(|(name, _)| name.as_str()),
        targets: &targets,
        max_send_data_segment_length: full.session.max_send_data_segment_length(cid),
        declares: full.session.owed_declaration(cid),
    };
    match negotiation.step(request, text, &facts) {
        TextStep::Reply {
            is_final,
            is_continued,
            target_transfer_tag,
            text,
            max_send_data_segment_length,
            declared,
        } => {
            let flags = (is_final, is_continued, target_transfer_tag);
            full.session.send_text(cid, request.initiator_task_tag, flags, text, outbox);
            if let Some(length) = max_send_data_segment_length {
                full.session.set_max_send_data_segment_length(cid, length);
            }
            if let Some(bytes) = declared {
                full.session.has_declared(cid, bytes, outbox);
            }
        }
        TextStep::Reject(reason) => full.session.reject(cid, bhs, reason, outbox),
    }
}
