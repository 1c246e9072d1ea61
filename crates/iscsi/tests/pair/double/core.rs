//! This crate's own initiator session at the other end of the wires: a driver around `lunette_iscsi::initiator::session`, as
//! small as it can be, against the double's target. A seed decides what moves next, and what gets lost.

use std::collections::HashMap;
use std::time::Duration;

use lunette_iscsi::initiator::session::{
    Command, ConnectionId, End, Event, LoggedIn, Loss, Outbox, Outgoing, Payload, Place, Segment, Session,
    Settings, TaskHandle,
};
use lunette_iscsi::parameters::{ConnectionParameters, TargetLimits};
use lunette_iscsi::session::SessionSettings;
use lunette_wire::frame::Digests;
use lunette_wire::initiator::{LoginRequest, LoginStage};
use lunette_wire::text::push;
use lunette_wire::{Cid, CmdSn, InitiatorPdu, Isid, LunField, StatSn, TargetPdu, Tsih};

use super::frame::{decode, encode};
use super::initiator::cdb;
use super::rules::Rules;
use super::target::{READ_10, TARGET_NAME, TEST_UNIT_READY, Target, UNIT, WRITE_10};
use super::{BLOCK, Rng};

/// What the initiator offers: keys and values.
pub(crate) type Offer = Vec<(&'static str, String)>;

/// A connection, from this side.
pub(crate) struct CoreLink {
    pub(crate) id: ConnectionId,
    pub(crate) wire: usize,
    digests: Digests,
    data_max: u32,
    pub(crate) is_up: bool,
    /// PDUs of the target's that were taken from the wire and wait for the session.
    inbound: Vec<Vec<u8>>,
}

#[derive(Debug, Default)]
struct Buffers {
    read: Vec<u8>,
    write: Vec<u8>,
}

/// How often something gets lost: once in so many PDUs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Losses {
    /// The digest of a PDU's data is wrong, either way.
    pub(crate) spoilt: u32,
}

/// Nothing gets lost.
pub(crate) const NO_LOSSES: Losses = Losses { spoilt: u32::MAX };

/// One PDU that is to be spoilt: of those that a rule picks, the one with this number, from 0 on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spoiling {
    outgoing: Option<fn(&InitiatorPdu) -> bool>,
    incoming: Option<fn(&TargetPdu) -> bool>,
    after: u32,
}

impl Spoiling {
    pub(crate) const fn outgoing(rule: fn(&InitiatorPdu) -> bool, after: u32) -> Self {
        Self { outgoing: Some(rule), incoming: None, after }
    }

    pub(crate) const fn incoming(rule: fn(&TargetPdu) -> bool, after: u32) -> Self {
        Self { outgoing: None, incoming: Some(rule), after }
    }
}

/// A target, this crate's initiator, and the wires between them.
pub(crate) struct CoreWorld {
    pub(crate) now: Duration,
    pub(crate) rng: Rng,
    pub(crate) target: Target,
    pub(crate) session: Session,
    pub(crate) outbox: Outbox,
    pub(crate) links: Vec<CoreLink>,
    pub(crate) losses: Losses,
    pub(crate) spoil: Option<Spoiling>,
    /// ExpStatSN of the last PDU that was sent.
    pub(crate) last_exp_stat_sn: StatSn,
    tsih: Tsih,
    offer: Offer,
    buffers: HashMap<TaskHandle, Buffers>,
    /// How tasks ended, with what they read.
    pub(crate) ends: HashMap<TaskHandle, (End, Vec<u8>)>,
    /// All other events.
    pub(crate) events: Vec<Event>,
    /// PDUs that the initiator sent, by opcode.
    pub(crate) sent: HashMap<u8, u32>,
    rules: Rules,
}

impl CoreWorld {
    /// A session with one connection.
    pub(crate) fn new(seed: u64, limits: TargetLimits, settings: SessionSettings, offer: Offer) -> Self {
        Self::with(seed, limits, settings, offer, Settings::default())
    }

    pub(crate) fn with(
        seed: u64,
        limits: TargetLimits,
        settings: SessionSettings,
        offer: Offer,
        own: Settings,
    ) -> Self {
        let mut rng = Rng(seed);
        let cmd_sn = CmdSn(u32::MAX - rng.below(8));
        let mut world = Self {
            now: Duration::from_secs(1000),
            rng,
            target: Target::new(limits, settings),
            session: Session::new(Default::default(), cmd_sn, own),
            outbox: Outbox::default(),
            links: Vec::new(),
            losses: NO_LOSSES,
            spoil: None,
            last_exp_stat_sn: StatSn(0),
            tsih: Tsih(0),
            offer,
            buffers: HashMap::new(),
            ends: HashMap::new(),
            events: Vec::new(),
            sent: HashMap::new(),
            rules: Rules::default(),
        };
        let (wire, login) = world.log_in(Cid(7), StatSn(0));
        let agreed = world.target.outcome(wire).expect("it has logged in").session;
        world.session = Session::new(agreed, cmd_sn, own);
        world.add(wire, &login);
        world
    }

    /// A session with defaults on both sides.
    pub(crate) fn plain(seed: u64) -> Self {
        Self::new(seed, TargetLimits::default(), SessionSettings::default(), Vec::new())
    }

    /// Logs another connection in.
    pub(crate) fn join(&mut self) -> usize {
        let cid = self.session.free_cid();
        let (wire, login) = self.log_in(cid, StatSn(0));
        self.add(wire, &login);
        self.links.len() - 1
    }

    /// Logs a connection in that takes the place of a lost one, if there is one.
    pub(crate) fn reinstate(&mut self) {
        let lost = self.session.lost_connections().next();
        if let Some((cid, exp_stat_sn)) = lost {
            let (wire, login) = self.log_in(cid, exp_stat_sn);
            self.add(wire, &login);
        }
    }

    fn add(&mut self, wire: usize, login: &LoggedIn) {
        let id = self.session.add_connection(self.now, login).expect("there is room for it");
        let ConnectionParameters { digests, max_recv_data_segment_length: data_max, .. } = login.parameters;
        self.links.push(CoreLink { id, wire, digests, data_max, is_up: true, inbound: Vec::new() });
        self.session.tick(self.now, &mut self.outbox);
        self.look();
    }

    /// A login of one request; what was agreed is the target's view, turned round.
    fn log_in(&mut self, cid: Cid, exp_stat_sn: StatSn) -> (usize, LoggedIn) {
        let mut text = Vec::new();
        push(&mut text, "InitiatorName", "iqn.2026-11.io.lunette:core");
        push(&mut text, "TargetName", TARGET_NAME);
        for (key, value) in &self.offer {
            let is_of_connection = matches!(*key, "HeaderDigest" | "DataDigest" | "MaxRecvDataSegmentLength");
            if self.tsih == Tsih(0) || is_of_connection {
                push(&mut text, key, value);
            }
        }
        let request = LoginRequest {
            transit: true,
            current_stage: LoginStage::Operational,
            next_stage: LoginStage::FullFeature,
            isid: Isid([0x80, 0, 0, 0, 0, 1]),
            tsih: self.tsih,
            cid,
            cmd_sn: self.session.cmd_sn(),
            exp_stat_sn,
            ..LoginRequest::default()
        };
        let wire = self.target.connect();
        let bhs = InitiatorPdu::LoginRequest(request).encode(text.len());
        self.target.receive(self.now, wire, encode(&bhs, &text, Digests::default()));
        let bytes = self.target.next_to_send(wire).expect("a Login Response");
        let received = decode(&bytes, Digests::default(), 8192);
        let Ok(TargetPdu::LoginResponse(response)) = TargetPdu::decode(&received.bhs) else {
            panic!("no Login Response")
        };
        assert_eq!(response.status_class, 0, "refused: {:02x}", response.status_detail);
        self.tsih = response.tsih;
        let agreed = self.target.connection_parameters(wire);
        let parameters = ConnectionParameters {
            digests: agreed.digests,
            max_recv_data_segment_length: agreed.max_send_data_segment_length,
            max_send_data_segment_length: agreed.max_recv_data_segment_length,
        };
        let numbers = response.numbers;
        let (exp_cmd_sn, max_cmd_sn) = (numbers.exp_cmd_sn, numbers.max_cmd_sn);
        (wire, LoggedIn { cid, parameters, exp_stat_sn: numbers.stat_sn.next(), exp_cmd_sn, max_cmd_sn })
    }

    /// Submits a command.
    pub(crate) fn submit(&mut self, command: &Command<'_>, write: Vec<u8>) -> TaskHandle {
        assert_eq!(command.write_length as usize, write.len());
        let task = self.session.submit(command).expect("there is room for it");
        let read = vec![0xee; command.read_length as usize];
        assert!(self.buffers.insert(task, Buffers { read, write }).is_none(), "a tag is used twice");
        self.look();
        task
    }

    pub(crate) fn write(&mut self, block: u32, data: Vec<u8>) -> TaskHandle {
        let length = data.len() as u32;
        let cdb = cdb(WRITE_10, block, length / BLOCK);
        self.submit(&Command { lun: UNIT, cdb: &cdb[..10], write_length: length, ..Command::default() }, data)
    }

    pub(crate) fn read(&mut self, block: u32, blocks: u32) -> TaskHandle {
        let cdb = cdb(READ_10, block, blocks);
        let read_length = blocks * BLOCK;
        self.submit(&Command { lun: UNIT, cdb: &cdb[..10], read_length, ..Command::default() }, Vec::new())
    }

    pub(crate) fn test_unit_ready(&mut self, lun: LunField) -> TaskHandle {
        self.submit(&Command { lun, cdb: &[TEST_UNIT_READY; 6], ..Command::default() }, Vec::new())
    }

    /// What a task read that ended well.
    #[track_caller]
    pub(crate) fn good(&self, task: TaskHandle) -> &[u8] {
        match &self.ends.get(&task).expect("it has ended") {
            (End::Answered(answer), read) => {
                assert_eq!(answer.status, 0, "{answer:?}");
                read
            }
            (end, _) => panic!("it ended otherwise: {end:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn end(&self, task: TaskHandle) -> &End {
        &self.ends.get(&task).expect("it has ended").0
    }

    /// Handles the events that the session has left.
    pub(crate) fn look(&mut self) {
        for event in std::mem::take(&mut self.outbox.events) {
            match event {
                Event::Ended { task, end } => {
                    let buffers = self.buffers.remove(&task).expect("a task ends once");
                    assert!(self.ends.insert(task, (end, buffers.read)).is_none());
                }
                other => {
                    if let Event::LoggedOut { connection } | Event::ConnectionFailed { connection, .. } =
                        other
                    {
                        self.close(connection);
                    }
                    if let Event::SessionLost { .. } = other {
                        for at in 0..self.links.len() {
                            self.close(self.links[at].id);
                        }
                    }
                    self.events.push(other);
                }
            }
        }
    }

    fn close(&mut self, connection: ConnectionId) {
        let link = self.links.iter_mut().find(|link| link.id == connection).expect("it is there");
        if link.is_up {
            link.is_up = false;
            link.inbound.clear();
            let wire = link.wire;
            if self.target.closed(wire).is_none() {
                self.target.disconnect(wire);
            }
        }
    }

    /// The transport of a connection breaks: what is on it is lost.
    pub(crate) fn break_link(&mut self, at: usize) {
        let id = self.links[at].id;
        self.close(id);
        self.session.connection_lost(id, Loss::Transport, &mut self.outbox);
        self.look();
    }

    /// Moves one PDU to the target.
    pub(crate) fn send(&mut self, at: usize) -> bool {
        if !self.links[at].is_up {
            return false;
        }
        let id = self.links[at].id;
        let mut moved = false;
        self.session.transmit(self.now, id, 1, &mut self.outbox);
        for pdu in std::mem::take(&mut self.outbox.pdus) {
            assert_eq!(pdu.connection, id);
            self.put(at, &pdu);
            moved = true;
        }
        assert!(moved || !self.session.has_work(id) || self.session.is_over());
        self.look();
        moved
    }

    fn put(&mut self, at: usize, pdu: &Outgoing) {
        let data = match &pdu.payload {
            Payload::None => Vec::new(),
            Payload::Bytes(bytes) => bytes.to_vec(),
            Payload::Data(range) => {
                let buffer = &self.buffers[&range.task].write;
                buffer[range.offset as usize..][..range.length as usize].to_vec()
            }
        };
        let links = &self.links;
        let is_up = |id| links.iter().any(|link| link.id == id && link.is_up);
        self.rules.leaves(pdu, data.len(), is_up, links.iter().all(|link| link.is_up));
        *self.sent.entry(pdu.bhs[0] & 0x3f).or_default() += 1;
        self.last_exp_stat_sn = StatSn(u32::from_be_bytes(pdu.bhs[28..32].try_into().expect("four bytes")));
        let decoded = InitiatorPdu::decode(&pdu.bhs).expect("an initiator's PDU");
        let is_picked = self.pick(|spoil| spoil.outgoing.is_some_and(|rule| rule(&decoded)));
        let link = &self.links[at];
        let mut bytes = encode(&pdu.bhs, &data, link.digests);
        if link.digests.data && !data.is_empty() && (is_picked || self.rng.one_in(self.losses.spoilt)) {
            *bytes.last_mut().expect("a digest") ^= 1;
        }
        self.target.receive(self.now, link.wire, bytes);
    }

    /// Whether this is the PDU that is to be spoilt.
    fn pick(&mut self, is_of_rule: impl FnOnce(&Spoiling) -> bool) -> bool {
        let Some(spoil) = self.spoil.as_mut().filter(|spoil| is_of_rule(spoil)) else { return false };
        let is_picked = spoil.after == 0;
        spoil.after = spoil.after.saturating_sub(1);
        if is_picked {
            self.spoil = None;
        }
        is_picked
    }

    /// Moves one PDU of the target's to the initiator.
    pub(crate) fn receive(&mut self, at: usize) -> bool {
        let link = &mut self.links[at];
        let Some(mut bytes) = self.target.next_to_send(link.wire) else { return false };
        if !link.is_up {
            return true;
        }
        let id = link.id;
        let bhs = bytes[..48].try_into().expect("a header");
        let decoded = TargetPdu::decode(&bhs).expect("a target's PDU");
        if let TargetPdu::ReadyToTransfer(pdu) = &decoded {
            self.rules.asked(pdu);
        }
        let is_picked = self.pick(|spoil| spoil.incoming.is_some_and(|rule| rule(&decoded)));
        let has_data = bytes[5..8] != [0; 3];
        let link = &self.links[at];
        if link.digests.data && has_data && (is_picked || self.rng.one_in(self.losses.spoilt)) {
            *bytes.last_mut().expect("a digest") ^= 1;
        }
        let received = decode(&bytes, link.digests, link.data_max);
        assert!(received.header_intact);
        let pdu = TargetPdu::decode(&received.bhs).expect("a target's PDU");
        let length = received.data.len() as u32;
        let bytes = match self.session.place(id, &pdu, length) {
            Place::Task { task, offset } => {
                let buffer = &mut self.buffers.get_mut(&task).expect("a task that is open").read;
                buffer[offset as usize..][..received.data.len()].copy_from_slice(&received.data);
                &[][..]
            }
            Place::Core => &received.data,
            Place::Discard => &[],
        };
        let segment = Segment { length, bytes, is_intact: received.data_intact };
        self.session.received(self.now, id, &pdu, &segment, &mut self.outbox);
        self.look();
        true
    }

    /// Lets the disk end one operation.
    pub(crate) fn work(&mut self) -> bool {
        let waiting = self.target.operations() as u32;
        if waiting > 0 {
            let pick = self.rng.below(waiting) as usize;
            self.target.work(pick);
        }
        waiting > 0
    }

    /// Does one thing that can be done, at random; false when there is nothing.
    pub(crate) fn step(&mut self) -> bool {
        let choices = 2 * self.links.len() as u32 + 1;
        let first = self.rng.below(choices);
        (0..choices).any(|offset| match (first + offset) % choices {
            0 => self.work(),
            choice if choice % 2 == 1 => self.send(choice as usize / 2),
            choice => self.receive(choice as usize / 2 - 1),
        })
    }

    /// Goes on until nothing is left to do.
    pub(crate) fn settle(&mut self) {
        while self.step() {}
    }

    /// Moves PDUs until the wires are empty, and leaves the disk's operations where they are.
    pub(crate) fn exchange(&mut self) {
        while (0..self.links.len()).any(|at| self.receive(at) || self.send(at)) {}
    }

    /// Lets time pass, a second at a time.
    pub(crate) fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += Duration::from_secs(1);
            self.target.tick(self.now);
            self.session.tick(self.now, &mut self.outbox);
            self.look();
            self.exchange();
        }
    }

    /// Places of connections that are up.
    pub(crate) fn up(&self) -> Vec<usize> {
        (0..self.links.len()).filter(|&at| self.links[at].is_up).collect()
    }

    /// Ends the test: all was answered, nothing is kept on either side, no number is missing.
    pub(crate) fn finish(&mut self) {
        self.settle();
        assert!(self.buffers.is_empty(), "without an end: {:?}", self.buffers.keys());
        assert_eq!(self.session.open_tasks(), 0);
        let Some(&at) = self.up().first() else { return };
        // Fetches the numbers as they are now.
        let (id, wire) = (self.links[at].id, self.links[at].wire);
        self.session.nop(self.now, id, b"the last one").expect("a ping");
        self.settle();
        assert!(matches!(self.events.last(), Some(Event::Pong { is_true: true, .. })), "{:?}", self.events);
        assert_eq!(self.session.window(), u32::from(self.target.window_depth()), "a CmdSN is missing");
        self.target.assert_clean(wire);
        assert_eq!(self.target.operations(), 0);
    }
}
