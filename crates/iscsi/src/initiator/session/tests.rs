//! Hand-made PDUs of targets that break a rule, which the pair tests' target never does: each is refused by its clause.

use lunette_wire::target::{
    AsynchronousMessage, LogoutResponse, NopIn, Numbers, ReadyToTransfer, Reject, Residual, ScsiDataIn,
    ScsiResponse, TaskManagementResponse, TextResponse,
};
use lunette_wire::{DataSn, InitiatorPdu, InitiatorTaskTag, LunField, StatSn, TargetPdu, TargetTransferTag};

use super::*;
use crate::parameters::ConnectionParameters;

mod negotiation;
mod recovery;
mod requests;
mod timers;
mod turns;

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

/// 4.2.2.1: a target may be late to say what it has had; what it has answered it has had all the same.
#[test]
fn numbers_of_answered_commands_are_not_kept_for_a_lost_connection() {
    let mut world = world();
    let numbers = Numbers { exp_cmd_sn: CMD_SN, ..numbers(0) };
    let response = ScsiResponse { response: 1, numbers, ..world.response(world.write) };
    world.take(TargetPdu::ScsiResponse(response), &segment(0));
    assert!(matches!(world.end(), End::TargetFailure { response: 1 }), "{:?}", world.outbox.events);
    assert!(world.session.connections[0].plugs.is_empty());
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

/// 11.7.7: it moves nothing, and counts.
#[test]
fn data_in_without_data_is_taken() {
    let mut world = world();
    world.take(TargetPdu::ScsiDataIn(world.data_in()), &segment(0));
    let first = ScsiDataIn { data_sn: DataSn(1), ..world.data_in() };
    world.take(TargetPdu::ScsiDataIn(first), &segment(1024));
    let second = ScsiDataIn { data_sn: DataSn(2), buffer_offset: 1024, ..world.data_in() };
    world.take(TargetPdu::ScsiDataIn(second), &segment(1024));
    let response = ScsiResponse { exp_data_sn: DataSn(3), ..world.response(world.read) };
    world.take(TargetPdu::ScsiResponse(response), &Segment::NONE);
    assert!(matches!(world.end(), End::Answered(answer) if answer.received == 2048), "{:?}", world.end());
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
