//! Hand-made PDUs of targets that break a rule, which the pair tests' target never does: each is refused by its clause.

use lunette_wire::target::{
    AsynchronousMessage, LogoutResponse, NopIn, Numbers, ReadyToTransfer, Reject, Residual, ScsiDataIn,
    ScsiResponse, TaskManagementResponse, TextResponse,
};
use lunette_wire::{DataSn, InitiatorPdu, InitiatorTaskTag, LunField, StatSn, TargetPdu, TargetTransferTag};

use super::*;
use crate::parameters::ConnectionParameters;

const NOW: Duration = Duration::from_secs(100);
const CMD_SN: CmdSn = CmdSn(u32::MAX - 1);
const STAT_SN: StatSn = StatSn(70);

struct World {
    session: Session,
    outbox: Outbox,
    id: ConnectionId,
    read: TaskHandle,
    write: TaskHandle,
}

/// A read of 2048 bytes and a write of 4096, of which 1024 have left; at this ErrorRecoveryLevel.
fn world_at(error_recovery_level: u8) -> World {
    world_with(SessionParameters { error_recovery_level, ..SessionParameters::default() })
}

fn world_with(agreed: SessionParameters) -> World {
    let parameters = SessionParameters {
        max_burst_length: 1024,
        first_burst_length: 1024,
        max_outstanding_r2t: 2,
        ..agreed
    };
    let mut session = Session::new(parameters, CMD_SN, Settings::default());
    let login = LoggedIn {
        cid: Cid(1),
        parameters: ConnectionParameters::default(),
        exp_stat_sn: STAT_SN,
        exp_cmd_sn: CMD_SN,
        max_cmd_sn: CMD_SN.plus(3),
    };
    let id = session.add_connection(NOW, &login).unwrap();
    let read = session.submit(&Command { read_length: 2048, ..Command::default() }).unwrap();
    let write = session.submit(&Command { write_length: 4096, ..Command::default() }).unwrap();
    let mut outbox = Outbox::default();
    session.transmit(NOW, id, usize::MAX, &mut outbox);
    outbox.pdus.clear();
    World { session, outbox, id, read, write }
}

fn world() -> World {
    world_at(0)
}

fn numbers(stat_sn: u32) -> Numbers {
    Numbers { stat_sn: STAT_SN.plus(stat_sn), exp_cmd_sn: CMD_SN.plus(2), max_cmd_sn: CMD_SN.plus(5) }
}

impl World {
    fn take(&mut self, pdu: TargetPdu, segment: &Segment<'_>) {
        let place = self.session.place(self.id, &pdu, segment.length);
        assert!(!matches!(pdu, TargetPdu::ScsiDataIn(_)) || place != Place::Core);
        self.session.received(NOW, self.id, &pdu, segment, &mut self.outbox);
    }

    /// The clause that a PDU is against, which ends the session.
    #[track_caller]
    fn refused(mut self, pdu: TargetPdu, segment: &Segment<'_>) -> &'static str {
        if matches!(pdu, TargetPdu::ScsiDataIn(_)) {
            assert_eq!(self.session.place(self.id, &pdu, segment.length), Place::Discard);
        }
        self.take(pdu, segment);
        match self.outbox.events.last() {
            Some(Event::SessionLost { loss: Loss::Violation(violation) }) => {
                assert!(violation.to_string().contains(violation.clause));
                violation.clause
            }
            other => panic!("it was taken: {other:?}"),
        }
    }

    fn data_in(&self) -> ScsiDataIn {
        ScsiDataIn {
            initiator_task_tag: self.read.initiator_task_tag(),
            target_transfer_tag: TargetTransferTag::RESERVED,
            numbers: numbers(0),
            ..ScsiDataIn::default()
        }
    }

    fn r2t(&self) -> ReadyToTransfer {
        ReadyToTransfer {
            initiator_task_tag: self.write.initiator_task_tag(),
            target_transfer_tag: TargetTransferTag(5),
            numbers: numbers(0),
            buffer_offset: 1024,
            desired_length: 1024,
            ..ReadyToTransfer::default()
        }
    }

    fn response(&self, task: TaskHandle) -> ScsiResponse {
        ScsiResponse {
            initiator_task_tag: task.initiator_task_tag(),
            numbers: numbers(0),
            ..ScsiResponse::default()
        }
    }

    fn end(&self) -> &End {
        match self.outbox.events.last() {
            Some(Event::Ended { end, .. }) => end,
            other => panic!("nothing has ended: {other:?}"),
        }
    }

    fn sent(&mut self) -> Vec<InitiatorPdu> {
        self.session.transmit(NOW, self.id, usize::MAX, &mut self.outbox);
        let pdus = self.outbox.pdus.drain(..);
        pdus.map(|pdu| InitiatorPdu::decode(&pdu.bhs).unwrap()).collect()
    }
}

fn segment(length: u32) -> Segment<'static> {
    Segment { length, bytes: &[], is_intact: true }
}

#[test]
fn data_in_out_of_its_order_or_place_is_refused() {
    type Change = fn(&mut ScsiDataIn);
    let cases: [(Change, u32, &str); 6] = [
        (|pdu| pdu.data_sn = DataSn(1), 512, "11.7.5"),
        (|pdu| pdu.buffer_offset = 512, 512, "13.18"),
        (|pdu| pdu.buffer_offset = 2048, 1, "11.7.6"),
        (|pdu| pdu.buffer_offset = u32::MAX, 512, "11.7.6"),
        (|pdu| pdu.initiator_task_tag = InitiatorTaskTag(77), 512, "11.2.1.8"),
        (|pdu| (pdu.status, pdu.is_final) = (Some(0), false), 512, "11.7.3"),
    ];
    for (change, length, clause) in cases {
        let mut world = world();
        let mut pdu = world.data_in();
        change(&mut pdu);
        if clause == "11.7.3" {
            world.take(TargetPdu::ScsiDataIn(pdu), &segment(length));
            assert!(matches!(world.outbox.events.last(), Some(Event::SessionLost { .. })));
        } else {
            assert_eq!(world.refused(TargetPdu::ScsiDataIn(pdu), &segment(length)), clause);
        }
    }
    let mut again = world();
    again.take(TargetPdu::ScsiDataIn(again.data_in()), &segment(512));
    let pdu = ScsiDataIn { data_sn: DataSn(1), ..again.data_in() };
    assert_eq!(again.refused(TargetPdu::ScsiDataIn(pdu), &segment(512)), "13.18");
}

/// tgtd ends no sequence before the command's data; where PDUs come in order, that harms nobody.
#[test]
fn a_sequence_beyond_a_burst_is_borne_where_data_comes_in_order() {
    let mut world = world();
    let pdu = world.data_in();
    world.take(TargetPdu::ScsiDataIn(pdu), &segment(1028));
    assert!(world.outbox.events.is_empty(), "{:?}", world.outbox.events);
}

#[test]
fn a_sequence_is_bounded_where_its_pdus_may_come_in_any_order() {
    let mut world = world_with(SessionParameters { data_pdu_in_order: false, ..Default::default() });
    let behind = ScsiDataIn { buffer_offset: 512, ..world.data_in() };
    world.take(TargetPdu::ScsiDataIn(behind), &segment(512));
    assert!(!world.session.is_over());
    let longer = ScsiDataIn { data_sn: DataSn(1), ..world.data_in() };
    assert_eq!(world.refused(TargetPdu::ScsiDataIn(longer), &segment(513)), "13.13");
    let world = world_with(SessionParameters { data_pdu_in_order: false, ..Default::default() });
    let outside = ScsiDataIn { buffer_offset: 1000, ..world.data_in() };
    assert_eq!(world.refused(TargetPdu::ScsiDataIn(outside), &segment(512)), "13.19");
}

#[test]
fn data_in_for_a_write_is_refused() {
    let world = world();
    let pdu = ScsiDataIn { initiator_task_tag: world.write.initiator_task_tag(), ..world.data_in() };
    assert_eq!(world.refused(TargetPdu::ScsiDataIn(pdu), &segment(512)), "11.7.6");
}

#[test]
fn with_data_out_of_order_no_byte_comes_twice() {
    let mut world = world_at(1);
    let at =
        |buffer_offset, data_sn| ScsiDataIn { buffer_offset, data_sn: DataSn(data_sn), ..world.data_in() };
    let (behind, overlapping) = (at(1024, 2), at(1000, 1));
    world.take(TargetPdu::ScsiDataIn(behind), &segment(1024));
    // The same again is dropped, and goes nowhere.
    assert_eq!(world.session.place(world.id, &TargetPdu::ScsiDataIn(behind), 1024), Place::Discard);
    world.take(TargetPdu::ScsiDataIn(behind), &segment(1024));
    assert!(!world.session.is_over());
    assert_eq!(world.refused(TargetPdu::ScsiDataIn(overlapping), &segment(512)), "11.7.6");
}

#[test]
fn r2ts_out_of_their_order_or_bounds_are_refused() {
    type Change = fn(&mut ReadyToTransfer);
    let cases: [(Change, &str); 9] = [
        (|pdu| pdu.r2t_sn = DataSn(1), "11.8.1"),
        (|pdu| pdu.desired_length = 0, "11.8.4"),
        (|pdu| pdu.desired_length = 1025, "11.8.4"),
        (|pdu| (pdu.buffer_offset, pdu.desired_length) = (3500, 1000), "11.8"),
        (|pdu| pdu.buffer_offset = u32::MAX, "11.8"),
        (|pdu| pdu.buffer_offset = 0, "13.19"),
        (|pdu| pdu.target_transfer_tag = TargetTransferTag::RESERVED, "11.8.5"),
        (|pdu| pdu.lun = LunField([1; 8]), "4.2.5.3"),
        (|pdu| pdu.initiator_task_tag = InitiatorTaskTag(9), "11.2.1.8"),
    ];
    for (change, clause) in cases {
        let world = world();
        let mut pdu = world.r2t();
        change(&mut pdu);
        assert_eq!(world.refused(TargetPdu::ReadyToTransfer(pdu), &Segment::NONE), clause);
    }
    let mut world = world();
    for index in 0..2 {
        let pdu = ReadyToTransfer { r2t_sn: DataSn(index), buffer_offset: 1024 * (index + 1), ..world.r2t() };
        world.take(TargetPdu::ReadyToTransfer(pdu), &Segment::NONE);
    }
    let third = ReadyToTransfer { r2t_sn: DataSn(2), buffer_offset: 3072, ..world.r2t() };
    assert_eq!(world.refused(TargetPdu::ReadyToTransfer(third), &Segment::NONE), "13.17");
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    let world_of = world();
    let pdu = ScsiResponse { numbers: numbers(1), ..world_of.response(world_of.read) };
    assert_eq!(world_of.refused(TargetPdu::ScsiResponse(pdu), &Segment::NONE), "4.2.2.2");
    let world_of = world();
    let ahead = Numbers { exp_cmd_sn: CMD_SN.plus(3), ..numbers(0) };
    let pdu = ScsiResponse { numbers: ahead, ..world_of.response(world_of.read) };
    assert_eq!(world_of.refused(TargetPdu::ScsiResponse(pdu), &Segment::NONE), "4.2.2.1");
    let world_of = world_at(1);
    let far = ScsiResponse { numbers: numbers(1 << 20), ..world_of.response(world_of.read) };
    assert_eq!(world_of.refused(TargetPdu::ScsiResponse(far), &Segment::NONE), "4.2.2.2");
}

#[test]
fn a_window_below_what_is_expected_does_not_count() {
    let mut world = world();
    let odd = Numbers { exp_cmd_sn: CMD_SN.plus(2), max_cmd_sn: CMD_SN, ..numbers(0) };
    let nop = NopIn {
        lun: LunField::default(),
        initiator_task_tag: InitiatorTaskTag::RESERVED,
        target_transfer_tag: TargetTransferTag::RESERVED,
        numbers: odd,
    };
    let before = world.session.window();
    world.take(TargetPdu::NopIn(nop), &Segment::NONE);
    assert_eq!((world.session.window(), before), (2, 2));
    // Nor does one that goes back, since another connection's may be newer (4.2.2.1).
    let old = Numbers { exp_cmd_sn: CMD_SN, max_cmd_sn: CMD_SN.plus(1), ..numbers(0) };
    world.take(TargetPdu::NopIn(NopIn { numbers: old, ..nop }), &Segment::NONE);
    assert_eq!(world.session.window(), 2);
    world.take(TargetPdu::NopIn(NopIn { numbers: numbers(0), ..nop }), &Segment::NONE);
    assert_eq!(world.session.window(), 4);
}

#[test]
fn answers_that_do_not_agree_with_the_data_are_faults_of_their_task() {
    type Make = fn(&World) -> ScsiResponse;
    let cases: [(Make, AnswerFault); 5] = [
        (|world| world.response(world.read), AnswerFault::ReadLength { received: 0, announced: 2048 }),
        (
            |world| ScsiResponse { residual: Residual::Underflow(2000), ..world.response(world.read) },
            AnswerFault::ReadLength { received: 0, announced: 48 },
        ),
        (
            |world| ScsiResponse { residual: Residual::Underflow(2049), ..world.response(world.read) },
            AnswerFault::Residual { residual: 2049, expected: 2048 },
        ),
        (
            |world| ScsiResponse {
                residual: Residual::Underflow(2048),
                exp_data_sn: DataSn(2),
                ..world.response(world.read)
            },
            AnswerFault::DataMissing { received: 0, announced: 2 },
        ),
        (|world| world.response(world.write), AnswerFault::WriteLength { sent: 1024, announced: 4096 }),
    ];
    for (make, expected) in cases {
        let mut world = world();
        let pdu = make(&world);
        world.take(TargetPdu::ScsiResponse(pdu), &Segment::NONE);
        let End::Faulty(_, fault) = world.end() else { panic!("{:?}", world.end()) };
        assert_eq!(*fault, expected);
        assert!(!world.session.is_over(), "the session goes on");
    }
}

#[test]
fn both_halves_of_a_bidirectional_command_are_checked() {
    let (none, short) = (Residual::None, Residual::Underflow(1));
    for (residual, read_residual, fault) in [
        (none, none, None),
        (Residual::Overflow(9), none, None),
        (none, short, Some(AnswerFault::ReadLength { received: 512, announced: 511 })),
        (none, Residual::Underflow(513), Some(AnswerFault::Residual { residual: 513, expected: 512 })),
        (Residual::Underflow(2049), none, Some(AnswerFault::Residual { residual: 2049, expected: 2048 })),
    ] {
        let mut world = world();
        let command = Command { read_length: 512, write_length: 2048, ..Command::default() };
        let task = world.session.submit(&command).unwrap();
        let sent = world.sent();
        let [InitiatorPdu::ScsiCommand(header)] = sent[..] else { panic!("{sent:?}") };
        assert!(header.read && header.write && header.expected_data_transfer_length == 2048);
        // R2Ts and Data-In share their numbers (4.2.2.4).
        let initiator_task_tag = task.initiator_task_tag();
        let r2t = ReadyToTransfer { initiator_task_tag, ..world.r2t() };
        world.take(TargetPdu::ReadyToTransfer(r2t), &Segment::NONE);
        assert_eq!(world.sent().len(), 1);
        let data = ScsiDataIn { initiator_task_tag, data_sn: DataSn(1), is_final: true, ..world.data_in() };
        world.take(TargetPdu::ScsiDataIn(data), &segment(512));
        let response = ScsiResponse {
            residual,
            bidirectional_read_residual: read_residual,
            exp_data_sn: DataSn(2),
            ..world.response(task)
        };
        world.take(TargetPdu::ScsiResponse(response), &Segment::NONE);
        match (world.end(), fault) {
            (End::Answered(answer), None) => {
                assert_eq!((answer.received, answer.residual), (512, residual));
            }
            (End::Faulty(_, found), Some(fault)) => assert_eq!(*found, fault),
            (end, _) => panic!("{end:?}"),
        }
    }
}

#[test]
fn what_is_true_of_a_failed_command_is_believed() {
    let mut world = world();
    let pdu = ScsiResponse { status: 2, residual: Residual::Underflow(2048), ..world.response(world.read) };
    world.take(TargetPdu::ScsiResponse(pdu), &Segment::of(&[0, 2, 0x70, 1, 9, 9]));
    let End::Answered(answer) = world.end() else { panic!() };
    assert_eq!((answer.status, &answer.sense[..]), (2, &[0x70, 1][..]));
    let failed = ScsiResponse { response: 1, numbers: numbers(1), ..world.response(world.write) };
    world.take(TargetPdu::ScsiResponse(failed), &Segment::NONE);
    assert_eq!(world.end(), &End::TargetFailure { response: 1 });
}

#[test]
fn sense_data_that_is_missing_or_cut_is_a_format_error() {
    for (bytes, clause) in
        [(&[][..], "7.7"), (&[0][..], "11.4.7"), (&[0, 3, 1, 2][..], "11.4.7"), (&[0xff; 4][..], "11.4.7")]
    {
        let world = world();
        let pdu = ScsiResponse { status: 2, ..world.response(world.read) };
        assert_eq!(world.refused(TargetPdu::ScsiResponse(pdu), &Segment::of(bytes)), clause);
    }
    let world = world();
    let pdu = ScsiDataIn { status: Some(2), is_final: true, ..world.data_in() };
    let mut world = world;
    world.take(TargetPdu::ScsiDataIn(pdu), &segment(512));
    assert!(matches!(
        world.outbox.events.last(),
        Some(Event::SessionLost { loss: Loss::Violation(Violation { clause: "11.7.3", .. }) })
    ));
}

#[test]
fn answers_to_nothing_are_refused() {
    let initiator_task_tag = InitiatorTaskTag(0x8000_0007);
    let nop = NopIn {
        lun: LunField::default(),
        initiator_task_tag,
        target_transfer_tag: TargetTransferTag::RESERVED,
        numbers: numbers(0),
    };
    let pdus = [
        TargetPdu::NopIn(nop),
        TargetPdu::TextResponse(TextResponse {
            is_final: true,
            initiator_task_tag,
            numbers: numbers(0),
            ..TextResponse::default()
        }),
        TargetPdu::LogoutResponse(LogoutResponse {
            initiator_task_tag,
            numbers: numbers(0),
            ..LogoutResponse::default()
        }),
        TargetPdu::TaskManagementResponse(TaskManagementResponse {
            initiator_task_tag,
            numbers: numbers(0),
            ..TaskManagementResponse::default()
        }),
    ];
    for pdu in pdus {
        assert_eq!(world().refused(pdu, &Segment::NONE), "11.2.1.8");
    }
    let both = NopIn { target_transfer_tag: TargetTransferTag(1), ..nop };
    assert_eq!(world().refused(TargetPdu::NopIn(both), &Segment::NONE), "7.7");
    let login = lunette_wire::target::LoginResponse {
        transit: true,
        is_continued: false,
        current_stage: lunette_wire::initiator::LoginStage::Operational,
        next_stage: lunette_wire::initiator::LoginStage::FullFeature,
        version_max: 0,
        version_active: 0,
        isid: lunette_wire::Isid::default(),
        tsih: lunette_wire::Tsih(1),
        initiator_task_tag,
        numbers: numbers(0),
        status_class: 0,
        status_detail: 0,
    };
    assert_eq!(world().refused(TargetPdu::LoginResponse(login), &Segment::NONE), "4.2.4");
}

#[test]
fn an_answer_of_the_wrong_kind_is_refused() {
    let mut world = world();
    let id = world.id;
    let RequestHandle(initiator_task_tag) = world.session.nop(NOW, id, b"").unwrap();
    let pdu = LogoutResponse { initiator_task_tag, numbers: numbers(0), ..LogoutResponse::default() };
    assert_eq!(world.refused(TargetPdu::LogoutResponse(pdu), &Segment::NONE), "11.15");
}

#[test]
fn pings_are_answered_with_their_tag_and_unit_and_not_without_end() {
    let mut world = world();
    let ping = NopIn {
        lun: LunField([0, 3, 0, 0, 0, 0, 0, 0]),
        initiator_task_tag: InitiatorTaskTag::RESERVED,
        target_transfer_tag: TargetTransferTag(0x1234),
        numbers: numbers(0),
    };
    world.take(TargetPdu::NopIn(ping), &Segment::NONE);
    // One without a tag only brings numbers, and has no answer (11.18).
    let quiet = NopIn { target_transfer_tag: TargetTransferTag::RESERVED, ..ping };
    world.take(TargetPdu::NopIn(quiet), &Segment::NONE);
    let [InitiatorPdu::NopOut(answer)] = world.sent()[..] else { panic!() };
    assert!(answer.immediate && answer.initiator_task_tag == InitiatorTaskTag::RESERVED);
    assert_eq!((answer.target_transfer_tag, answer.lun), (TargetTransferTag(0x1234), ping.lun));
    assert_eq!((answer.cmd_sn, answer.exp_stat_sn), (CMD_SN.plus(2), STAT_SN));
    for _ in 0..32 {
        world.take(TargetPdu::NopIn(ping), &Segment::NONE);
    }
    assert_eq!(world.refused(TargetPdu::NopIn(ping), &Segment::NONE), "11.19");
}

#[test]
fn asynchronous_messages_are_told() {
    let message = |event, parameters, stat_sn| {
        TargetPdu::AsynchronousMessage(AsynchronousMessage {
            lun: LunField([0, 2, 0, 0, 0, 0, 0, 0]),
            numbers: numbers(stat_sn),
            event,
            vendor_code: 8,
            parameters,
        })
    };
    let mut world = world();
    let lun = LunField([0, 2, 0, 0, 0, 0, 0, 0]);
    world.take(message(0, [0; 3], 0), &Segment::of(&[0, 2, 0x72, 5]));
    world.take(message(4, [0, 0, 30], 1), &Segment::NONE);
    world.take(message(255, [1, 2, 3], 2), &Segment::of(&[0, 1, 7, 6, 5]));
    world.take(message(5, [0; 3], 3), &Segment::NONE);
    world.take(message(1, [0, 0, 9], 4), &Segment::NONE);
    let connection = world.id;
    let notices = [
        Notice::ScsiEvent { lun, sense: vec![0x72, 5] },
        Notice::NegotiationRequest { within_s: 30 },
        Notice::Vendor { event: 255, code: 8, parameters: [1, 2, 3], data: vec![6, 5] },
        Notice::TasksTerminated { lun },
    ];
    let mut expected: Vec<_> = notices.map(|notice| Event::Notice { connection, notice }).into();
    expected.push(Event::LogoutRequested { connection, within_s: 9 });
    assert_eq!(world.outbox.events, expected);
    // The end of tasks is acknowledged with its unit (11.9.1).
    let [InitiatorPdu::NopOut(answer)] = world.sent()[..] else { panic!() };
    assert_eq!((answer.lun, answer.target_transfer_tag), (lun, TargetTransferTag::RESERVED));
    let late = world.session.submit(&Command::default()).unwrap();
    assert!(world.session.is_waiting(late), "nothing new goes on a connection that is to be logged out");
    world.take(message(3, [0; 3], 5), &Segment::NONE);
    assert!(matches!(world.outbox.events.last(), Some(Event::SessionLost { loss: Loss::Dropped })));
}

#[test]
fn a_rejected_command_has_not_begun_and_its_number_goes_alone() {
    let mut world = world();
    let mut header = [0; 48];
    header[0] = 1;
    header[16..20].copy_from_slice(&world.write.initiator_task_tag().0.to_be_bytes());
    let numbers = Numbers { exp_cmd_sn: CMD_SN.plus(1), ..numbers(0) };
    let reject = Reject { reason: 9, numbers, data_sn: DataSn(0) };
    world.take(TargetPdu::Reject(reject), &Segment::of(&header));
    assert!(world.outbox.events.contains(&Event::Ended { task: world.write, end: End::NotSent }));
    let sent = world.sent();
    let [InitiatorPdu::NopOut(plug)] = sent[..] else { panic!("{sent:?}") };
    assert_eq!((plug.immediate, plug.cmd_sn), (false, CMD_SN.plus(1)));
    let answer = NopIn {
        lun: LunField::default(),
        initiator_task_tag: plug.initiator_task_tag,
        target_transfer_tag: TargetTransferTag::RESERVED,
        numbers: Numbers { stat_sn: STAT_SN.next(), ..numbers },
    };
    world.take(TargetPdu::NopIn(answer), &Segment::NONE);
    assert!(!world.session.is_over(), "nobody waits for its answer, and it is no fault");
    let cut =
        TargetPdu::Reject(Reject { numbers: Numbers { stat_sn: STAT_SN.plus(2), ..numbers }, ..reject });
    assert_eq!(world.refused(cut, &Segment::of(&header[..47])), "11.17");
}

#[test]
fn text_without_end_is_refused() {
    let mut world = world();
    let id = world.id;
    let RequestHandle(initiator_task_tag) = world.session.text(NOW, id, b"SendTargets=All\0").unwrap();
    assert_eq!(world.session.text(NOW, id, b"a=b\0"), Err(RequestError::TextUnderWay));
    world.sent();
    let part = |stat_sn| TextResponse {
        is_final: false,
        is_continued: true,
        initiator_task_tag,
        target_transfer_tag: TargetTransferTag(3),
        numbers: numbers(stat_sn),
        ..TextResponse::default()
    };
    let text = vec![b'a'; 8192];
    let rounds = (Settings::default().text_length_max / text.len()) as u32;
    for round in 0..rounds {
        world.take(TargetPdu::TextResponse(part(round)), &Segment::of(&text));
        let [InitiatorPdu::TextRequest(next)] = world.sent()[..] else { panic!() };
        assert_eq!(next.target_transfer_tag, TargetTransferTag(3));
        assert_eq!((next.initiator_task_tag, next.is_final), (initiator_task_tag, true));
    }
    assert_eq!(world.refused(TargetPdu::TextResponse(part(rounds)), &Segment::of(&text)), "11.11");
}

#[test]
fn what_cannot_be_sent_is_not_taken() {
    let mut world = world();
    let command = Command { cdb: &[], ..Command::default() };
    assert_eq!(world.session.submit(&command), Err(SubmitError::CdbLength(0)));
    let command = Command { cdb: &[0; CDB_LENGTH_MAX + 1], ..Command::default() };
    assert_eq!(world.session.submit(&command), Err(SubmitError::CdbLength(CDB_LENGTH_MAX + 1)));
    let too_long = RequestError::TooLong { length: 8193, max: 8192 };
    let id = world.id;
    assert_eq!(world.session.nop(NOW, id, &[0; 8193]), Err(too_long));
    let waiting = (0..).take_while(|_| world.session.submit(&Command::default()).is_ok()).count();
    assert_eq!(waiting + 2, Settings::default().tasks_max);
    let ended = world.read;
    world.take(TargetPdu::ScsiDataIn(ScsiDataIn { is_final: true, ..world.data_in() }), &segment(1024));
    let last = ScsiDataIn {
        is_final: true,
        status: Some(0),
        data_sn: DataSn(1),
        buffer_offset: 1024,
        ..world.data_in()
    };
    world.take(TargetPdu::ScsiDataIn(last), &segment(1024));
    assert_eq!(world.session.abort(NOW, ended, &mut world.outbox), Err(RequestError::NoTask));
}

#[test]
fn a_data_ack_waits_until_nothing_is_missing() {
    let mut world = world_at(1);
    let wanted = ScsiDataIn {
        acknowledge: true,
        lun: LunField([4; 8]),
        target_transfer_tag: TargetTransferTag(9),
        data_sn: DataSn(1),
        buffer_offset: 512,
        ..world.data_in()
    };
    world.take(TargetPdu::ScsiDataIn(wanted), &segment(512));
    let sent = world.sent();
    let [InitiatorPdu::SnackRequest(missing)] = sent[..] else { panic!("{sent:?}") };
    assert_eq!((missing.kind, missing.begin_run, missing.run_length), (0, 0, 1));
    assert_eq!(missing.initiator_task_tag, world.read.initiator_task_tag());
    assert_eq!(missing.target_transfer_tag, TargetTransferTag::RESERVED);
    world.take(TargetPdu::ScsiDataIn(world.data_in()), &segment(512));
    let sent = world.sent();
    let [InitiatorPdu::SnackRequest(ack)] = sent[..] else { panic!("{sent:?}") };
    assert_eq!((ack.kind, ack.begin_run, ack.run_length), (2, 2, 0));
    assert_eq!(ack.initiator_task_tag, InitiatorTaskTag::RESERVED);
    assert_eq!((ack.target_transfer_tag, ack.lun), (TargetTransferTag(9), LunField([4; 8])));
}

#[test]
fn data_that_cannot_be_had_again_is_a_fault_of_its_task() {
    let mut world = world_at(1);
    world.take(TargetPdu::ScsiDataIn(world.data_in()), &Segment { is_intact: false, ..segment(512) });
    let sent = world.sent();
    let [InitiatorPdu::SnackRequest(request)] = sent[..] else { panic!("{sent:?}") };
    let reject = Reject { reason: 3, numbers: numbers(0), data_sn: DataSn(0) };
    world.take(TargetPdu::Reject(reject), &Segment::of(&request.encode()));
    // The target ends the command by itself (7.8, a.1).
    let pdu = ScsiResponse { status: 2, numbers: numbers(1), ..world.response(world.read) };
    world.take(TargetPdu::ScsiResponse(pdu), &Segment::of(&[0, 1, 0x70]));
    assert!(matches!(world.end(), End::Faulty(answer, AnswerFault::DataDigest) if answer.status == 2));
}

#[test]
fn a_status_that_cannot_be_had_again_costs_the_session() {
    let mut world = world_at(1);
    let later = ScsiResponse {
        residual: Residual::Underflow(2048),
        numbers: numbers(1),
        ..world.response(world.read)
    };
    world.take(TargetPdu::ScsiResponse(later), &Segment::NONE);
    assert_eq!(world.outbox.events, [], "those before it come first");
    let sent = world.sent();
    let [InitiatorPdu::SnackRequest(request)] = sent[..] else { panic!("{sent:?}") };
    assert_eq!((request.kind, request.begin_run, request.run_length), (1, STAT_SN.0, 1));
    let reject = Reject { reason: 3, numbers: numbers(2), data_sn: DataSn(0) };
    world.take(TargetPdu::Reject(reject), &Segment::of(&request.encode()));
    // The Reject has a number too, but cannot wait for its turn.
    assert_eq!(world.outbox.events.last(), Some(&Event::SessionLost { loss: Loss::StatusGone }));
}
