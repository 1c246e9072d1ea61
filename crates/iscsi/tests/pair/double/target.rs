//! A driver around `Login` and `Session`: the smallest one that does all a driver must, with a disk in memory.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lunette_iscsi::chap::{ChapNonce, ChapPolicy};
use lunette_iscsi::login::{Login, LoginOutcome, LoginStep, LookupFailure, TargetDirectory, TargetEntry};
use lunette_iscsi::parameters::{ConnectionParameters, DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH, TargetLimits};
use lunette_iscsi::session::{
    Completion, Event, Outbox, Payload, Placement, Session, SessionSettings, TaskId, Transfer,
};
use lunette_iscsi::text::{TextFacts, TextNegotiation, TextStep};
use lunette_wire::frame::Digests;
use lunette_wire::initiator::TaskManagementFunction;
use lunette_wire::target::TaskManagementOutcome;
use lunette_wire::{Bhs, Cid, InitiatorPdu, LunField, Tsih};

use super::frame::{self, Received};
use super::initiator::Initiator;
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
        let entry = TargetEntry { portal_group_tag: 1, alias: None };
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

struct Full {
    session: Session,
    text: TextNegotiation,
    outcome: LoginOutcome,
    tasks: HashMap<TaskId, Context>,
}

enum Phase {
    Login(Box<Login>),
    /// Agreed, and waiting for the session that it replaces to end.
    Waiting(Box<LoginOutcome>),
    Full(Box<Full>),
    Refused,
}

struct Connection {
    phase: Phase,
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
    disk: Vec<u8>,
    operations: Vec<(usize, TaskId, Operation)>,
    next_tsih: u16,
    now: Duration,
}

type Out = Outbox<Vec<u8>>;

impl Target {
    pub(crate) fn new(limits: TargetLimits, settings: SessionSettings) -> Self {
        Self {
            limits,
            settings,
            policy: None,
            nonces: Rng(settings.window_depth.into()),
            connections: Vec::new(),
            disk: vec![0; (DISK_BLOCKS * BLOCK) as usize],
            operations: Vec::new(),
            next_tsih: 0,
            now: Duration::ZERO,
        }
    }

    pub(crate) fn connect(&mut self) -> usize {
        let nonce = ChapNonce::from(std::array::from_fn(|_| self.nonces.next() as u8));
        let phase = Phase::Login(Box::new(Login::new(self.limits, 1, nonce)));
        self.connections.push(Connection { phase, outbound: VecDeque::new(), closed: None });
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

    pub(crate) fn session(&self, index: usize) -> Option<&Session> {
        match &self.connections[index].phase {
            Phase::Full(full) => Some(&full.session),
            _ => None,
        }
    }

    /// What the login gave this side, for comparison with the initiator's view.
    pub(crate) fn outcome(&self, index: usize) -> Option<&LoginOutcome> {
        match &self.connections[index].phase {
            Phase::Full(full) => Some(&full.outcome),
            _ => None,
        }
    }

    pub(crate) fn next_to_send(&mut self, index: usize) -> Option<Vec<u8>> {
        self.connections[index].outbound.pop_front()
    }

    /// The transport connection is gone without a word.
    pub(crate) fn disconnect(&mut self, index: usize) {
        self.connections[index].closed.get_or_insert_with(|| "disconnected".to_owned());
        self.connections[index].outbound.clear();
        self.with_session(index, |full, outbox| full.session.close(outbox));
    }

    pub(crate) fn tick(&mut self, now: Duration) {
        self.now = now;
        for index in 0..self.connections.len() {
            self.with_session(index, |full, outbox| full.session.tick(now, outbox));
        }
    }

    pub(crate) fn request_logout(&mut self, index: usize, within: Duration) {
        let now = self.now;
        self.with_session(index, |full, outbox| full.session.request_logout(now, within, outbox));
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
            Phase::Full(full) => {
                let parameters = full.outcome.connection;
                let data_max = parameters.max_recv_data_segment_length;
                let received = frame::decode(&bytes, parameters.digests, data_max);
                if received.header_intact {
                    self.take(index, received);
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
            LoginStep::Ready(outcome) => {
                self.replace_session(index, &outcome);
                self.connections[index].phase = Phase::Waiting(outcome);
                self.enter_full_feature(index);
            }
        }
    }

    /// Session reinstatement (6.3.5): the same initiator port, logging in anew, ends what it had.
    fn replace_session(&mut self, index: usize, outcome: &LoginOutcome) {
        for other in 0..self.connections.len() {
            let is_same = |full: &Full| {
                full.outcome.initiator_name == outcome.initiator_name && full.outcome.isid == outcome.isid
            };
            if other != index && matches!(&self.connections[other].phase, Phase::Full(full) if is_same(full))
            {
                self.disconnect(other);
            }
        }
    }

    /// Accepts a login once no replaced session has a task left.
    fn enter_full_feature(&mut self, index: usize) {
        let is_ending = |connection: &Connection| match &connection.phase {
            Phase::Full(full) => connection.closed.is_some() && !full.session.has_ended(),
            _ => false,
        };
        if self.connections.iter().any(is_ending) {
            return;
        }
        let connection = &mut self.connections[index];
        let Phase::Waiting(outcome) = std::mem::replace(&mut connection.phase, Phase::Refused) else {
            return;
        };
        self.next_tsih += 1;
        let reply = outcome.accept(Tsih(self.next_tsih), outcome.numbers);
        let bhs = reply.pdu.encode(reply.text.len());
        connection.outbound.push_back(encode(&bhs, &reply.text, Digests::default()));
        let session = Session::new(
            outcome.session_type,
            outcome.session,
            self.settings,
            (outcome.cid, outcome.connection, outcome.next_stat_sn),
            outcome.cmd_sn,
            self.now,
        );
        connection.phase = Phase::Full(Box::new(Full {
            session,
            text: TextNegotiation::default(),
            outcome: *outcome,
            tasks: HashMap::new(),
        }));
    }

    fn take(&mut self, index: usize, received: Received) {
        let now = self.now;
        let Received { bhs, data, data_intact, .. } = received;
        self.with_session(index, |full, outbox| {
            let cid = full.outcome.cid;
            let length = data.len() as u32;
            match InitiatorPdu::decode(&bhs) {
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
        let Phase::Full(full) = &mut self.connections[index].phase else { panic!("the session has gone") };
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
        let completion = Completion { status: GOOD, sense: &[], transfer };
        self.with_session(index, |full, outbox| full.session.complete(id, completion, outbox));
    }

    /// Steps the session of a connection, then does what it asks for until it asks for nothing more.
    fn with_session(&mut self, index: usize, step: impl FnOnce(&mut Full, &mut Out)) {
        let Phase::Full(full) = &mut self.connections[index].phase else { return };
        let mut outbox = Out::default();
        step(full, &mut outbox);
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
                if matches!(self.connections[waiting].phase, Phase::Waiting(_)) {
                    self.enter_full_feature(waiting);
                }
            }
        }
    }

    fn flush(&mut self, index: usize, outbox: &mut Out) {
        let connection = &mut self.connections[index];
        let Phase::Full(full) = &connection.phase else { return };
        for pdu in std::mem::take(&mut outbox.pdus) {
            let bytes = match &pdu.payload {
                Payload::None => &[][..],
                Payload::Bytes(bytes) => bytes,
                Payload::Buffer { data, start, length } => &data[*start as usize..][..*length as usize],
            };
            if connection.closed.is_none() {
                connection.outbound.push_back(encode(&pdu.bhs, bytes, full.outcome.connection.digests));
            }
        }
    }

    fn handle(&mut self, index: usize, event: Event, outbox: &mut Out) {
        let connection = &mut self.connections[index];
        let Phase::Full(full) = &mut connection.phase else { panic!("the session has gone") };
        match event {
            Event::Execute(id) => self.execute(index, id, outbox),
            Event::DataOutComplete(id) => self.submit_write(index, id),
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
            Event::Text { cid, request, bhs, text } => {
                answer_text(full, cid, (&request, &bhs, &text), outbox);
            }
            Event::Close { reason, .. } => {
                connection.closed.get_or_insert_with(|| reason.to_string());
            }
            Event::Cleared { .. } | Event::ConnectionEnded { .. } | Event::Ended => {}
        }
    }

    fn execute(&mut self, index: usize, id: TaskId, outbox: &mut Out) {
        let Phase::Full(full) = &mut self.connections[index].phase else { panic!("the session has gone") };
        let task = full.session.task(id).expect("a task that is to be executed is open");
        let (offset, length) = extent(task.cdb);
        match task.cdb[0] {
            _ if task.lun != UNIT => {
                full.tasks.remove(&id).expect("the task is open");
                let failed = Completion { status: CHECK_CONDITION, sense: &SENSE, transfer: Transfer::None };
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
        let task = self.session(index).and_then(|session| session.task(id)).expect("the task is open");
        let (offset, called_for) = extent(task.cdb);
        // Whole blocks of what the initiator has.
        let length = called_for.min(task.expected_out) / BLOCK * BLOCK;
        let called_for = u64::from(called_for);
        self.operations.push((index, id, Operation::Write { offset, length, called_for }));
    }

    /// Nothing of this connection is kept, and no number is missing.
    pub(crate) fn assert_clean(&self, index: usize, initiator: &Initiator) {
        let Phase::Full(full) = &self.connections[index].phase else { return };
        assert_eq!(full.session.open_tasks(), 0, "the session keeps a task");
        assert!(full.tasks.is_empty(), "the driver keeps a context");
        if self.connections[index].closed.is_none() {
            initiator.assert_window(self.settings.window_depth);
        } else {
            assert!(full.session.has_ended(), "a session without a connection lives on");
        }
    }

    pub(crate) fn connection_parameters(&self, index: usize) -> ConnectionParameters {
        self.outcome(index).expect("the login is over").connection
    }
}

/// ILLEGAL REQUEST, LOGICAL UNIT NOT SUPPORTED, as fixed sense data.
pub(crate) const SENSE: [u8; 18] = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x25, 0, 0, 0, 0, 0];

/// Byte offset and length of a 10-byte read or write.
fn extent(cdb: &[u8; 16]) -> (usize, u32) {
    let block = u32::from_be_bytes([cdb[2], cdb[3], cdb[4], cdb[5]]);
    let blocks = u32::from(u16::from_be_bytes([cdb[7], cdb[8]]));
    ((block * BLOCK) as usize, blocks * BLOCK)
}

fn answer_text(
    full: &mut Full,
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
    };
    match full.text.step(request, text, &facts) {
        TextStep::Reply {
            is_final,
            is_continued,
            target_transfer_tag,
            text,
            max_send_data_segment_length,
        } => {
            let flags = (is_final, is_continued, target_transfer_tag);
            full.session.send_text(cid, request.initiator_task_tag, flags, text, outbox);
            if let Some(length) = max_send_data_segment_length {
                full.session.set_max_send_data_segment_length(cid, length);
            }
        }
        TextStep::Reject(reason) => full.session.reject(cid, bhs, reason, outbox),
    }
}
