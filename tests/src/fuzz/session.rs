//! A session in full feature phase: PDUs with small tags and numbers near the window, on several connections that come and
//! go, mixed with what a driver does, in any order.
//!
//! Checked: bounds of tasks, functions and data, that no PDU is longer than the initiator takes or meant for a connection
//! that has gone, that data is only taken on its command's connection, and that a closed session ends once the driver has
//! finished what it had begun.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lunette_iscsi::parameters::{ConnectionParameters, SessionParameters, SessionType};
use lunette_iscsi::session::{
    Completion, Event, IMMEDIATE_TASKS_MAX, Joining, MANAGEMENT_MAX, Outbox, Payload, PendingText, Placement,
    Session, SessionSettings, TaskId, Transfer,
};
use lunette_iscsi::text::{TextFacts, TextNegotiation, TextStep};
use lunette_wire::target::TaskManagementOutcome;
use lunette_wire::{BHS_LENGTH, Bhs, Cid, CmdSn, InitiatorPdu, StatSn};

use super::Input;

/// CIDs are below this; the first one is the leading connection's.
const CIDS: u8 = 4;
const WINDOW_DEPTH: u16 = 8;
/// The shortest data segment that anybody declares (RFC 7143, 13.12), and the initiator at its logins.
const SEGMENT_MIN: u32 = 512;
/// Type of a SNACK (11.16.1).
const DATA_OR_R2T: u8 = 0;
/// More than any timer of a session.
const LONG: Duration = Duration::from_secs(3600);

struct Driver {
    session: Session<()>,
    kind: SessionType,
    outbox: Outbox<()>,
    now: Duration,
    /// Tasks whose turn has come and that have not ended.
    running: BTreeSet<TaskIdKey>,
    ids: Vec<TaskId>,
    /// Connections on which something may be sent.
    open: BTreeSet<u16>,
    texts: BTreeMap<u16, Texts>,
    /// The connection that the input is at.
    cid: Cid,
    ended: bool,
}

/// What was said on a connection.
struct Texts {
    negotiation: TextNegotiation,
    /// The longest data segment that the initiator takes, in bytes: now, and at any time before.
    takes: usize,
    took: usize,
}

impl Default for Texts {
    fn default() -> Self {
        let takes = SEGMENT_MIN as usize;
        Self { negotiation: TextNegotiation::default(), takes, took: takes }
    }
}

/// Where a task's id stands in [`Driver::ids`].
type TaskIdKey = usize;

/// Plays one session.
///
/// # Panics
/// A property does not hold.
pub fn session(data: &[u8]) {
    let mut input = Input(data);
    let settings = SessionSettings { window_depth: WINDOW_DEPTH, ..SessionSettings::default() };
    let flags = input.byte();
    let parameters = SessionParameters {
        initial_r2t: flags & 1 != 0,
        immediate_data: flags & 2 != 0,
        max_burst_length: 4096,
        first_burst_length: 1024,
        max_outstanding_r2t: 1 + u16::from(flags >> 6),
        error_recovery_level: if flags & 4 != 0 { 0 } else { (flags >> 4 & 3).min(2) },
        max_connections: if flags & 8 != 0 { u16::from(CIDS) } else { 1 },
        ..SessionParameters::default()
    };
    let kind = if flags & 4 != 0 { SessionType::Discovery } else { SessionType::Normal };
    let leading = (Cid(0), connection(), StatSn(0xffff_fff0));
    let cmd_sn = CmdSn(0xffff_fffc);
    let mut driver = Driver {
        kind,
        session: Session::new(kind, parameters, settings, leading, cmd_sn, Duration::ZERO),
        outbox: Outbox::default(),
        now: Duration::ZERO,
        running: BTreeSet::new(),
        ids: Vec::new(),
        open: BTreeSet::from([0]),
        texts: BTreeMap::new(),
        cid: Cid(0),
        ended: false,
    };
    while !input.is_empty() {
        driver.step(&mut input);
        driver.look_at_outbox();
    }
    driver.finish();
}

impl Driver {
    fn step(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        match choice & 7 {
            0..=3 => {
                let bhs = header(input);
                self.receive(&bhs, input);
            }
            4 => self.complete(input),
            5 => {
                let wanted = u32::from(input.byte()) * 64;
                if let Some(&key) = self.running.first() {
                    let there = self.session.solicit(self.ids[key], wanted, &mut self.outbox);
                    assert!(there <= wanted);
                }
            }
            // The operator has changed what the target takes (11.9.1, event 4).
            6 if choice & 8 != 0 => {
                let bytes = SEGMENT_MIN << (choice >> 4 & 7);
                self.session.declare_anew(self.now, bytes, &mut self.outbox);
            }
            6 => {
                self.now += Duration::from_millis(u64::from(input.byte()) * 100);
                self.session.tick(self.now, &mut self.outbox);
            }
            _ if choice & 16 != 0 => self.shake(choice >> 5, input),
            _ if choice & 8 != 0 => {
                self.session.request_logout(self.now, Duration::from_secs(5), &mut self.outbox);
            }
            _ => {
                self.session.abort_tasks(None, &[], choice & 32 != 0, &mut self.outbox);
            }
        }
    }

    /// Something happens to a connection, and it is the one that is looked at from here on.
    fn shake(&mut self, what: u8, input: &mut Input<'_>) {
        self.cid = Cid(u16::from(input.byte() % CIDS));
        match (what, self.session.joining(self.cid)) {
            (0..=3, Joining::Free) => {
                self.session.join(self.now, self.cid, connection(), StatSn(0xffff_ffff));
                self.texts.remove(&self.cid.0);
                self.open.insert(self.cid.0);
            }
            (4, Joining::InUse) => {
                self.open.remove(&self.cid.0);
                let exp_stat_sn = StatSn(input.byte().into());
                self.session.reinstate(self.cid, exp_stat_sn, &mut self.outbox);
            }
            (5, _) => {
                self.open.remove(&self.cid.0);
                self.session.connection_lost(self.cid, true, &mut self.outbox);
            }
            _ => {}
        }
    }

    fn receive(&mut self, bhs: &Bhs, input: &mut Input<'_>) {
        // As a driver does: what exceeds the declared maximum never gets here.
        let length = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) % 2048;
        let cid = self.cid;
        match InitiatorPdu::decode(bhs) {
            Ok(InitiatorPdu::ScsiCommand(pdu)) => {
                self.session.command(self.now, cid, (bhs, &pdu, &[]), length, &mut self.outbox);
            }
            Ok(InitiatorPdu::ScsiDataOut(pdu)) => {
                if let Placement::Task { id, offset } = self.session.locate_data_out(cid, &pdu, length) {
                    let task = self.session.task(id).expect("a placement names a task");
                    assert_eq!(task.cid, Some(cid), "data of another connection");
                    assert!(u64::from(offset) + u64::from(length) <= u64::from(task.expected_out));
                }
                let intact = bhs[3] & 1 == 0;
                self.session.data_out_arrived(self.now, cid, (bhs, &pdu), length, intact, &mut self.outbox);
            }
            // What may be declared in this phase (13.12), some of it out of bounds.
            Ok(InitiatorPdu::TextRequest(_)) if length & 3 == 1 => {
                let text = format!("MaxRecvDataSegmentLength={}\0", u32::from(input.byte()) << 5);
                self.session.request(self.now, cid, bhs, text.as_bytes(), &mut self.outbox);
            }
            // Data comes again as it was (11.16); what is longer than is taken by now is for R-Data to ask (11.16.3).
            Ok(InitiatorPdu::SnackRequest(pdu)) if pdu.kind == DATA_OR_R2T => {
                self.session.request(self.now, cid, bhs, &[], &mut self.outbox);
                self.look_at_pdus(true);
            }
            _ => self.session.request(self.now, cid, bhs, input.bytes(length as usize), &mut self.outbox),
        }
    }

    fn complete(&mut self, input: &mut Input<'_>) {
        let (which, kind) = (usize::from(input.byte()), input.byte());
        let Some(&key) = self.running.iter().nth(which % self.running.len().max(1)) else { return };
        self.running.remove(&key);
        let length = u32::from(input.byte()) * 32;
        let sense = [0x70; 18];
        let (status, sense, transfer) = match kind % 4 {
            0 => (0, &[][..], Transfer::None),
            1 => (0, &[][..], Transfer::In { data: (), length }),
            2 => (0, &[][..], Transfer::Out { length: length.into() }),
            _ => (2, &sense[..], Transfer::None),
        };
        self.session.complete(
            self.ids[key],
            Completion { status, status_qualifier: 0, sense, transfer, fenced: kind & 0x80 != 0 },
            &mut self.outbox,
        );
    }

    fn look_at_outbox(&mut self) {
        while !self.outbox.pdus.is_empty() || !self.outbox.events.is_empty() {
            self.look_once();
        }
        // Each connection may have an immediate command, whatever the others have.
        let bound = usize::from(WINDOW_DEPTH) + IMMEDIATE_TASKS_MAX + usize::from(CIDS);
        assert!(self.session.open_tasks() <= bound, "{} open tasks", self.session.open_tasks());
        // And an immediate function.
        let functions = self.session.open_functions();
        // As many again may be taken that others wait for.
        assert!(functions <= 2 * MANAGEMENT_MAX + usize::from(CIDS), "{functions} open functions");
    }

    /// Takes what is to be sent. Where it is sent `as_before`, it may be as long as the initiator ever took.
    fn look_at_pdus(&mut self, as_before: bool) {
        for pdu in self.outbox.pdus.drain(..) {
            let carried = match pdu.payload {
                Payload::None => 0,
                Payload::Bytes(bytes) => bytes.len(),
                Payload::Buffer { length, .. } => length as usize,
            };
            let taken = self
                .texts
                .get(&pdu.cid.0)
                .map_or(SEGMENT_MIN as usize, |texts| if as_before { texts.took } else { texts.takes });
            assert!(carried <= taken, "a PDU longer than the initiator takes");
            assert!(self.open.contains(&pdu.cid.0), "a PDU for a connection that has gone");
            assert_eq!(carried, u32::from_be_bytes([0, pdu.bhs[5], pdu.bhs[6], pdu.bhs[7]]) as usize);
        }
    }

    fn look_once(&mut self) {
        self.look_at_pdus(false);
        for event in std::mem::take(&mut self.outbox.events) {
            match event {
                Event::Execute(id) => {
                    self.running.insert(self.ids.len());
                    self.ids.push(id);
                }
                Event::Aborted(_) => {}
                // It may have been completed before.
                Event::Spoilt { id, .. } => {
                    self.running.extend(self.ids.iter().position(|known| *known == id));
                }
                Event::Dropped(id) => self.running.retain(|key| self.ids[*key] != id),
                Event::Manage { id, .. } => {
                    let outcome = TaskManagementOutcome::FunctionComplete;
                    self.session.management_done(id, outcome, &mut self.outbox);
                }
                Event::Ended => {
                    assert!(!self.ended, "a session ends once");
                    self.ended = true;
                }
                Event::Close { cid, .. } => assert!(self.open.remove(&cid.0), "a connection is closed once"),
                Event::ConnectionEnded { cid } => {
                    assert!(!self.open.contains(&cid.0), "it was closed before");
                    assert_ne!(self.session.joining(cid), Joining::InUse, "its CID is free");
                }
                Event::Text(pending) => self.answer_text(&pending),
                Event::SegmentLength { cid, bytes } => {
                    assert!(self.open.contains(&cid.0), "a length for a connection that has gone");
                    assert!(bytes >= SEGMENT_MIN, "no length that was declared");
                }
                Event::DataOutComplete(_) | Event::Untold { .. } | Event::Cleared { .. } => {}
            }
        }
    }

    fn answer_text(&mut self, pending: &PendingText) {
        let (cid, tag) = (pending.cid, pending.request.initiator_task_tag);
        let facts = TextFacts {
            session_type: self.kind,
            target: Some("iqn.x"),
            targets: &[],
            max_send_data_segment_length: self.session.max_send_data_segment_length(cid),
            declares: self.session.owed_declaration(cid),
        };
        let texts = self.texts.entry(cid.0).or_default();
        match texts.negotiation.step(&pending.request, &pending.text, &facts) {
            TextStep::Reply {
                is_final,
                is_continued,
                target_transfer_tag,
                text,
                max_send_data_segment_length,
                declared,
            } => {
                let flags = (is_final, is_continued, target_transfer_tag);
                self.session.send_text(cid, tag, flags, text, &mut self.outbox);
                if let Some(length) = max_send_data_segment_length {
                    // What was made before goes out as it is.
                    self.look_at_pdus(false);
                    let texts = self.texts.entry(cid.0).or_default();
                    texts.takes = length as usize;
                    texts.took = texts.took.max(texts.takes);
                    self.session.set_max_send_data_segment_length(cid, length);
                }
                if let Some(bytes) = declared {
                    self.session.has_declared(cid, bytes, &mut self.outbox);
                }
            }
            TextStep::Reject(reason) => self.session.reject(cid, &pending.bhs, reason, &mut self.outbox),
        }
    }

    fn finish(mut self) {
        self.open.clear();
        self.session.close(&mut self.outbox);
        self.look_at_outbox();
        for key in std::mem::take(&mut self.running) {
            let completion = Completion {
                status: 0,
                status_qualifier: 0,
                sense: &[],
                transfer: Transfer::None,
                fenced: false,
            };
            self.session.complete(self.ids[key], completion, &mut self.outbox);
            self.look_at_outbox();
        }
        self.now += LONG;
        self.session.tick(self.now, &mut self.outbox);
        self.look_at_outbox();
        assert!(self.session.has_ended() && self.ended, "the session does not end");
    }
}

fn connection() -> ConnectionParameters {
    ConnectionParameters { max_send_data_segment_length: SEGMENT_MIN, ..ConnectionParameters::default() }
}

/// A header with a defined opcode, small tags and numbers near the window; the rest as the input has it.
fn header(input: &mut Input<'_>) -> Bhs {
    const OPCODES: [u8; 8] = [0x01, 0x01, 0x05, 0x00, 0x02, 0x04, 0x06, 0x10];
    let mut bhs = [0; BHS_LENGTH];
    let shape = input.byte();
    if shape == 0xff {
        return input.array();
    }
    bhs[0] = OPCODES[usize::from(shape & 7)] | (shape & 0x40);
    bhs[1] = input.byte();
    bhs[6..8].copy_from_slice(&input.array::<2>());
    bhs[19] = input.byte() & 15;
    match shape & 7 {
        // Command: expected length. Data-Out: transfer tag, numbers and offset. Others: referenced tag.
        0 | 1 => bhs[22..24].copy_from_slice(&input.array::<2>()),
        2 => {
            bhs[20..24].copy_from_slice(&if shape & 8 != 0 {
                [0xff; 4]
            } else {
                [0, input.byte(), 0, input.byte()]
            });
            bhs[39] = input.byte() & 3;
            bhs[42..44].copy_from_slice(&input.array::<2>());
        }
        // Logout: a connection.
        6 => bhs[20..22].copy_from_slice(&[0, input.byte() % CIDS]),
        _ => bhs[20..24].copy_from_slice(&[0xff, 0xff, 0xff, 0xff]),
    }
    if shape & 7 == 4 {
        bhs[20..24].copy_from_slice(&[0, 0, 0, input.byte() & 15]);
    }
    let near = CmdSn(0xffff_fffc).plus(u32::from(input.byte()) & 63);
    if shape & 7 != 2 {
        bhs[24..28].copy_from_slice(&near.0.to_be_bytes());
    }
    bhs
}
