//! What recovery refuses, bounds and gives back (RFC 7143, 7.8, 11.16), with a session alone; what it does for an initiator
//! is tested with one, in `tests/pair` and end to end.

use std::rc::Rc;
use std::time::Duration;

use lunette_wire::initiator::{NopOut, ScsiCommand, ScsiDataOut, SnackRequest};
use lunette_wire::target::{ReadyToTransfer, RejectReason, ScsiResponse};
use lunette_wire::{Cid, CmdSn, DataSn, InitiatorTaskTag, StatSn, TargetPdu, TargetTransferTag};

use super::super::{
    CloseReason, Completion, Event, Outbox, Session, SessionSettings, Share, TaskId, Transfer,
};
use crate::parameters::{ConnectionParameters, SessionParameters, SessionType};

const CID: Cid = Cid(1);
const GOOD: u8 = 0;

/// The data of a read.
struct Data {
    counted: Rc<()>,
    kept_bytes: usize,
}

impl Share for Data {
    fn share(&mut self) -> Self {
        Self { counted: Rc::clone(&self.counted), ..*self }
    }

    fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }
}

/// A session at level 2 whose data is counted by its handles.
struct Bench {
    session: Session<Data>,
    outbox: Outbox<Data>,
    now: Duration,
    cmd_sn: u32,
    exp_stat_sn: StatSn,
    /// Whoever has a share of this has a read's data.
    data: Rc<()>,
}

impl Bench {
    fn new(kept_read_bytes_max: u64) -> Self {
        let parameters =
            SessionParameters { error_recovery_level: 2, initial_r2t: true, ..SessionParameters::default() };
        let settings = SessionSettings { window_depth: 8, kept_read_bytes_max, ..SessionSettings::default() };
        let leading = (CID, ConnectionParameters::default(), StatSn(1));
        let now = Duration::ZERO;
        let session = Session::new(SessionType::Normal, parameters, settings, leading, CmdSn(1), now);
        let outbox = Outbox::default();
        Self { session, outbox, now, cmd_sn: 1, exp_stat_sn: StatSn(1), data: Rc::new(()) }
    }

    fn command(&mut self, command: ScsiCommand) -> TaskId {
        let cmd_sn = CmdSn(self.cmd_sn);
        let initiator_task_tag = InitiatorTaskTag(self.cmd_sn);
        self.cmd_sn += 1;
        let exp_stat_sn = self.exp_stat_sn;
        let pdu = ScsiCommand { is_final: true, cmd_sn, initiator_task_tag, exp_stat_sn, ..command };
        let taken = self.session.command(self.now, CID, (&pdu.encode(0), &pdu, &[]), 0, &mut self.outbox);
        taken.expect("a command within the window")
    }

    /// A read that has been answered; returns its tag.
    fn read(&mut self, length: u32) -> InitiatorTaskTag {
        self.read_of(length, 0)
    }

    /// A read whose data keeps so many bytes of memory.
    fn read_of(&mut self, length: u32, kept_bytes: usize) -> InitiatorTaskTag {
        let command =
            ScsiCommand { read: true, expected_data_transfer_length: length, ..ScsiCommand::default() };
        let id = self.command(command);
        let transfer = Transfer::In { data: Data { counted: Rc::clone(&self.data), kept_bytes }, length };
        let completion =
            Completion { status: GOOD, status_qualifier: 0, sense: &[], transfer, fenced: false };
        self.session.complete(id, completion, &mut self.outbox);
        InitiatorTaskTag(self.cmd_sn - 1)
    }

    fn snack(&mut self, kind: u8, initiator_task_tag: InitiatorTaskTag, (begin_run, run_length): (u32, u32)) {
        let exp_stat_sn = self.exp_stat_sn;
        let pdu = SnackRequest {
            kind,
            initiator_task_tag,
            exp_stat_sn,
            begin_run,
            run_length,
            ..SnackRequest::default()
        };
        self.session.request(self.now, CID, &pdu.encode(), &[], &mut self.outbox);
    }

    /// What was sent since the last call; whose data it had is forgotten.
    fn sent(&mut self) -> Vec<TargetPdu> {
        self.outbox.pdus.drain(..).map(|pdu| TargetPdu::decode(&pdu.bhs).expect("our own PDU")).collect()
    }

    /// Reads whose data the session keeps.
    fn kept(&self) -> usize {
        assert!(self.outbox.pdus.is_empty(), "what is to be sent has shares, too");
        Rc::strong_count(&self.data) - 1
    }
}

fn rejects(pdus: &[TargetPdu]) -> Vec<u8> {
    let reason =
        |pdu: &TargetPdu| if let TargetPdu::Reject(reject) = pdu { Some(reject.reason) } else { None };
    pdus.iter().filter_map(reason).collect()
}

#[test]
fn data_of_reads_is_given_back_with_their_status() {
    let mut bench = Bench::new(1 << 20);
    for _ in 0..5 {
        bench.read(4096);
    }
    assert_eq!(bench.sent().len(), 5);
    assert_eq!(bench.kept(), 5);
    bench.exp_stat_sn = StatSn(4);
    bench.snack(2, InitiatorTaskTag::RESERVED, (0, 0));
    bench.sent();
    assert_eq!(bench.kept(), 2, "three statuses were acknowledged");
    bench.session.close(&mut bench.outbox);
    assert_eq!(bench.kept(), 0);
    assert!(bench.session.has_ended());
}

/// 11.7.2: memory is bounded; an acknowledgement is asked for before it runs out, and the oldest is forgotten when it has.
#[test]
fn data_that_is_kept_is_bounded() {
    let mut bench = Bench::new(10_000);
    let tags: Vec<_> = (0..6).map(|_| bench.read(3000)).collect();
    let sent = bench.sent();
    let asks = |pdu: &TargetPdu| matches!(pdu, TargetPdu::ScsiDataIn(pdu) if pdu.acknowledge);
    assert_eq!(sent.iter().map(asks).collect::<Vec<_>>(), [false, true, true, true, true, true]);
    assert_eq!(bench.kept(), 3);
    bench.snack(0, tags[0], (0, 0));
    assert_eq!(rejects(&bench.sent()), [RejectReason::SnackReject as u8]);
    bench.snack(0, tags[3], (0, 0));
    assert!(matches!(bench.sent()[..], [TargetPdu::ScsiDataIn(_)]));
    // The status of one without its data comes alone.
    bench.snack(1, InitiatorTaskTag::RESERVED, (1, 1));
    let [TargetPdu::ScsiResponse(ScsiResponse { status: GOOD, .. })] = bench.sent()[..] else {
        panic!("one response")
    };
}

/// 13.12: a Status SNACK brings nothing that is longer than the initiator takes by now; the data is for R-Data to ask (11.16.3).
#[test]
fn statuses_that_are_sent_again_fit_a_shorter_segment() {
    let mut bench = Bench::new(1 << 20);
    bench.read(5000);
    bench.read(8192 + 100);
    let ping = |length: usize| {
        let initiator_task_tag = InitiatorTaskTag(99);
        let pdu = NopOut { immediate: true, initiator_task_tag, exp_stat_sn: StatSn(1), ..NopOut::default() };
        (pdu.encode(length), vec![0; length])
    };
    for (bhs, data) in [ping(600), ping(512)] {
        bench.session.request(bench.now, CID, &bhs, &data, &mut bench.outbox);
    }
    assert_eq!(bench.sent().len(), 5);
    bench.session.set_max_send_data_segment_length(CID, 512);
    let mut again = |stat_sn: u32| {
        bench.snack(1, InitiatorTaskTag::RESERVED, (stat_sn, 1));
        let lengths: Vec<u32> = (bench.outbox.pdus.iter())
            .map(|pdu| u32::from_be_bytes([0, pdu.bhs[5], pdu.bhs[6], pdu.bhs[7]]))
            .collect();
        let [pdu] = bench.sent()[..] else { panic!("one PDU") };
        (pdu, lengths[0])
    };
    let (TargetPdu::ScsiResponse(response), 0) = again(1) else { panic!("a response without data") };
    assert_eq!((response.numbers.stat_sn, response.exp_data_sn), (StatSn(1), DataSn(1)));
    // What is short enough comes as it was, and of the rest there is nothing that could.
    assert!(matches!(again(2), (TargetPdu::ScsiDataIn(_), 100)));
    let (TargetPdu::Reject(reject), _) = again(3) else { panic!("a Reject") };
    assert_eq!(reject.reason, RejectReason::SnackReject as u8);
    assert!(matches!(again(4), (TargetPdu::NopIn(_), 512)));
    // R-Data has the data cut anew, and a response behind it.
    let (kind, snack_tag) = (3, TargetTransferTag(5));
    let initiator_task_tag = InitiatorTaskTag(1);
    let pdu = SnackRequest {
        kind,
        initiator_task_tag,
        target_transfer_tag: snack_tag,
        exp_stat_sn: StatSn(1),
        ..SnackRequest::default()
    };
    bench.session.request(bench.now, CID, &pdu.encode(), &[], &mut bench.outbox);
    let sent = bench.sent();
    assert_eq!(sent.len(), 5000_usize.div_ceil(512) + 1);
    assert!(matches!(sent.last(), Some(TargetPdu::ScsiResponse(response)) if response.snack_tag == 5));
}

/// What is kept is the memory, of which a command that brings more than its initiator takes has more.
#[test]
fn data_counts_with_the_memory_that_it_keeps() {
    let mut bench = Bench::new(10_000);
    for _ in 0..6 {
        bench.read_of(16, 4096);
    }
    bench.sent();
    assert_eq!(bench.kept(), 2);
    bench.read(9000);
    bench.sent();
    assert_eq!(bench.kept(), 1);
    bench.exp_stat_sn = StatSn(8);
    bench.snack(2, InitiatorTaskTag::RESERVED, (0, 0));
    bench.sent();
    for _ in 0..3 {
        bench.read(3000);
    }
    bench.sent();
    assert_eq!(bench.kept(), 3, "all of it was given back");
}

/// The driver may find that others keep much as well.
#[test]
fn a_bound_that_becomes_lower_makes_room_at_once() {
    let mut bench = Bench::new(10_000);
    for _ in 0..3 {
        bench.read(3000);
    }
    bench.sent();
    assert_eq!((bench.kept(), bench.session.kept_read_bytes()), (3, 9000));
    bench.session.bound_kept_reads(6500);
    assert_eq!((bench.kept(), bench.session.kept_read_bytes()), (2, 6000));
    bench.read(3000);
    bench.sent();
    assert_eq!(bench.kept(), 2);
    bench.session.bound_kept_reads(1000);
    assert_eq!((bench.kept(), bench.session.kept_read_bytes()), (0, 0), "the newest, too");
    bench.session.bound_kept_reads(10_000);
    bench.read(3000);
    bench.sent();
    assert_eq!(bench.kept(), 1);
}

/// Responses that nobody acknowledges are bounded, too: a ping asks for it, then the oldest are forgotten.
#[test]
fn responses_that_are_kept_are_bounded() {
    let mut bench = Bench::new(1 << 20);
    let most = 2 * 8 + 256;
    for _ in 0..most + 1 {
        bench.snack(0, InitiatorTaskTag(77), (0, 1));
    }
    let sent = bench.sent();
    let pings = sent.iter().filter(|pdu| matches!(pdu, TargetPdu::NopIn(_))).count();
    assert_eq!((rejects(&sent).len(), pings), (most + 1, 1));
    bench.snack(1, InitiatorTaskTag::RESERVED, (1, 1));
    assert_eq!(rejects(&bench.sent()), [RejectReason::SnackReject as u8]);
}

/// 7.8, a.1: a SNACK that is refused before the status ends its command, once its data has come.
#[test]
fn a_command_whose_snack_is_refused_fails() {
    let mut bench = Bench::new(1 << 20);
    let command = ScsiCommand { write: true, expected_data_transfer_length: 512, ..ScsiCommand::default() };
    let id = bench.command(command);
    bench.session.solicit(id, 512, &mut bench.outbox);
    let tag = InitiatorTaskTag(1);
    let [TargetPdu::ReadyToTransfer(ReadyToTransfer { target_transfer_tag, .. })] = bench.sent()[..] else {
        panic!("one R2T")
    };
    let mut copies = 0;
    let refused = loop {
        bench.snack(0, tag, (0, 1));
        match bench.sent()[..] {
            [TargetPdu::ReadyToTransfer(_)] => copies += 1,
            ref other => break rejects(other),
        }
    };
    assert_eq!(refused, [RejectReason::SnackReject as u8]);
    assert_eq!(copies, 16384);
    let data = ScsiDataOut {
        is_final: true,
        initiator_task_tag: tag,
        target_transfer_tag,
        ..ScsiDataOut::default()
    };
    let parts = (&data.encode(512), &data);
    bench.session.data_out_arrived(bench.now, CID, parts, 512, true, &mut bench.outbox);
    assert_eq!(bench.outbox.events.last(), Some(&Event::Spoilt { id, asc: 0x11, ascq: 0x13 }));
    let completion =
        Completion { status: 2, status_qualifier: 0, sense: &[], transfer: Transfer::None, fenced: false };
    bench.session.complete(id, completion, &mut bench.outbox);
    // A second later there is as much to be had as before.
    bench.now += Duration::from_secs(1);
    bench.sent();
    bench.snack(1, InitiatorTaskTag::RESERVED, (0, 0));
    assert!(matches!(bench.sent()[..], [TargetPdu::Reject(_), TargetPdu::ScsiResponse(_)]));
}

/// A tag in a DataACK that was never given out names nobody's data (11.16.5).
#[test]
fn transfer_tags_name_answers() {
    use super::answers::{AnswerId, Answers};
    let mut answers = Answers::<()>::new(0);
    assert_eq!(answers.of_transfer_tag(TargetTransferTag(1)), None, "nothing was sent");
    answers.skip_to_for_test(0x8000_0005);
    for (tag, id) in
        [(4, Some(0x8000_0004)), (0x7fff_ffff, Some(0x7fff_ffff)), (5, None), (0x8000_0004, None)]
    {
        assert_eq!(answers.of_transfer_tag(TargetTransferTag(tag)), id.map(AnswerId::for_test), "{tag:#x}");
    }
}

/// What a session at this level asks its driver to do in so many seconds, with a look at the clock in each.
fn events_within(bench: &mut Bench, seconds: u64) -> Vec<Event> {
    for _ in 0..seconds {
        bench.now += Duration::from_secs(1);
        bench.session.tick(bench.now, &mut bench.outbox);
    }
    std::mem::take(&mut bench.outbox.events)
}

/// 7.1.4.1: an R2T that nobody answers was lost, or what answered it was; it is sent anew, under the next number.
#[test]
fn an_r2t_without_an_answer_is_sent_anew() {
    let mut bench = Bench::new(1 << 20);
    let command = ScsiCommand { write: true, expected_data_transfer_length: 1024, ..ScsiCommand::default() };
    let id = bench.command(command);
    bench.session.solicit(id, 1024, &mut bench.outbox);
    let r2ts = |sent: &[TargetPdu]| -> Vec<(u32, u32, u32)> {
        let range = |pdu: &TargetPdu| match pdu {
            TargetPdu::ReadyToTransfer(r2t) => Some((r2t.r2t_sn.0, r2t.buffer_offset, r2t.desired_length)),
            _ => None,
        };
        sent.iter().filter_map(range).collect()
    };
    let sent = bench.sent();
    assert_eq!(r2ts(&sent), [(0, 0, 1024)]);
    let [TargetPdu::ReadyToTransfer(ReadyToTransfer { target_transfer_tag, .. })] = sent[..] else {
        panic!("one R2T")
    };
    events_within(&mut bench, 25);
    let data = ScsiDataOut {
        initiator_task_tag: InitiatorTaskTag(1),
        target_transfer_tag,
        ..ScsiDataOut::default()
    };
    let parts = (&data.encode(512), &data);
    bench.session.data_out_arrived(bench.now, CID, parts, 512, true, &mut bench.outbox);
    // Half of it came: from then on there is as much time again, and then the other half is asked for.
    events_within(&mut bench, 29);
    assert!(r2ts(&bench.sent()).is_empty());
    events_within(&mut bench, 3);
    assert_eq!(r2ts(&bench.sent()), [(1, 512, 512)]);
}

/// 7.5, 7.6: tasks of a lost connection are kept for Time2Wait and Time2Retain together, and so is a session without a
/// connection (6.3.5); not longer.
#[test]
fn what_is_retained_ends_in_time() {
    let (wait, retain) = (2, 20);
    let mut bench = Bench::new(1 << 20);
    bench.read(512);
    let command = ScsiCommand { read: true, expected_data_transfer_length: 512, ..ScsiCommand::default() };
    let id = bench.command(command);
    bench.outbox.events.clear();
    bench.sent();
    bench.session.connection_lost(CID, true, &mut bench.outbox);
    assert!(bench.session.is_alone() && bench.outbox.events.is_empty());
    assert!(events_within(&mut bench, wait + retain).is_empty());
    assert_eq!((bench.kept(), bench.session.open_tasks()), (1, 1));
    let events = events_within(&mut bench, 1);
    assert!(events.iter().all(|event| *event == Event::Aborted(id)), "it is still in its store: {events:?}");
    assert_eq!(bench.kept(), 0);
    let completion =
        Completion { status: GOOD, status_qualifier: 0, sense: &[], transfer: Transfer::None, fenced: false };
    bench.session.complete(id, completion, &mut bench.outbox);
    assert_eq!(bench.outbox.events, [Event::Ended]);
}

/// 7.14: a connection that answers no ping is lost like any other: the session goes on without it.
#[test]
fn a_silent_connection_is_lost_and_not_its_session() {
    let mut bench = Bench::new(1 << 20);
    bench.read(512);
    bench.sent();
    bench.outbox.events.clear();
    let events = events_within(&mut bench, 61);
    assert!(matches!(&events[..], [Event::Close { cid: CID, reason: CloseReason::Silent(_) }]), "{events:?}");
    assert!(bench.session.is_alone() && !bench.session.is_closing());
    bench.outbox.pdus.clear();
    assert_eq!(bench.kept(), 1);
}

/// A target that drains asks nobody to come back: what it kept ends at once.
#[test]
fn a_target_that_drains_keeps_nothing() {
    let mut bench = Bench::new(1 << 20);
    bench.read(512);
    bench.sent();
    bench.session.connection_lost(CID, true, &mut bench.outbox);
    bench.outbox.events.clear();
    bench.session.request_logout(bench.now, Duration::from_secs(5), &mut bench.outbox);
    assert_eq!(bench.outbox.events, [Event::Ended]);
    assert_eq!(bench.kept(), 0);
}

/// A task that is kept for an initiator that may come back does not keep others waiting longer than any other.
#[test]
fn a_kept_task_that_others_wait_for_is_given_up() {
    let mut bench = Bench::new(1 << 20);
    let command = ScsiCommand { write: true, expected_data_transfer_length: 1024, ..ScsiCommand::default() };
    let id = bench.command(command);
    bench.session.solicit(id, 1024, &mut bench.outbox);
    bench.session.others_wait(bench.now, id, true, &mut bench.outbox);
    bench.session.connection_lost(CID, true, &mut bench.outbox);
    bench.outbox.events.clear();
    bench.session.others_wait(bench.now + Duration::from_secs(29), id, true, &mut bench.outbox);
    assert!(bench.outbox.events.is_empty());
    bench.session.others_wait(bench.now + Duration::from_secs(30), id, true, &mut bench.outbox);
    assert!(matches!(bench.outbox.events[..], [Event::Dropped(dropped)] if dropped == id));
    assert!(!bench.session.has_ended());
}
