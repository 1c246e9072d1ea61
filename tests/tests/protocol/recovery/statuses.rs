//! Numbered responses that are lost (RFC 7143, 7.1.4.2, 11.4.9, 11.16).

use lunette_tests::raw::{Raw, lun_field, plain};
use lunette_wire::initiator::{ScsiCommand, TaskManagementFunction as Function};
use lunette_wire::target::RejectReason;
use lunette_wire::{InitiatorTaskTag, TargetPdu, TargetTransferTag};

use super::{DATA_OR_R2T, R_DATA, STATUS, ask, copy, level_1, next, snack, target};
use crate::{expect_on_disk, pattern};

const NO_TASK: InitiatorTaskTag = InitiatorTaskTag::RESERVED;

fn assert_rejected(session: &mut Raw, header: &[u8]) {
    assert_eq!(session.rejected(header).expect("a Reject"), RejectReason::ProtocolError as u8);
}

/// One response of each kind, none of them acknowledged.
fn one_of_each(session: &mut Raw) -> Vec<(TargetPdu, Vec<u8>)> {
    session.acknowledged = Some(session.exp_stat_sn);
    session.command(&plain(), &[]).expect("sent");
    // A unit that is not there: sense data.
    session.command(&ScsiCommand { lun: lun_field(9), ..plain() }, &[]).expect("sent");
    session.ping(b"what a ping has").expect("sent");
    session.read(0, 0, 1).expect("sent");
    session.write(0, 8, &pattern(512)).expect("sent");
    let mut came: Vec<_> = (0..5).map(|_| session.receive().expect("a response")).collect();
    session.manage(Function::AbortTaskSet, 0).expect("sent");
    came.push(session.receive().expect("a task management response"));
    let unknown = snack(DATA_OR_R2T, InitiatorTaskTag(0x9999), 0, 1);
    let first = session.acknowledged();
    ask(session, first, unknown);
    came.push(session.receive().expect("a Reject"));
    came
}

/// 11.16, 11.4.9: each response comes again as it was, under its own number.
#[test]
fn responses_are_sent_again_as_they_were() {
    let target = target(1, 0);
    let mut session = level_1(&target, &[]);
    let came = one_of_each(&mut session);
    let first = session.acknowledged();
    assert_eq!(session.exp_stat_sn, first.plus(7));
    for (begin, length, expected) in [(0, 1, 0..1), (1, 2, 1..3), (6, 1, 6..7), (3, 0, 3..7), (0, 7, 0..7)] {
        ask(&mut session, first, snack(STATUS, NO_TASK, first.plus(begin).0, length));
        for index in expected {
            assert_eq!(copy(next(&mut session)), copy(came[index].clone()), "response {index}");
        }
    }
    ask(&mut session, first, snack(STATUS, NO_TASK, 0, 0));
    for response in &came {
        assert_eq!(copy(next(&mut session)), copy(response.clone()), "all that is unacknowledged");
    }
    let header = ask(&mut session, first, snack(STATUS, NO_TASK, first.plus(7).0, 1));
    assert_rejected(&mut session, &header);
    let header = ask(&mut session, first.plus(2), snack(STATUS, NO_TASK, first.plus(1).0, 2));
    assert_rejected(&mut session, &header);
    session.acknowledged = None;
    session.silent().expect("and nothing else");
    expect_on_disk(&mut session, 8, &pattern(512));
}

/// A tag may be used again once its answer has come, whether that was acknowledged or not.
#[test]
fn a_tag_that_is_used_again_is_the_new_commands() {
    let target = target(1, 0);
    let mut session = level_1(&target, &[]);
    session.acknowledged = Some(session.exp_stat_sn);
    let first = session.acknowledged();
    let tag = session.read(0, 0, 4).expect("sent");
    session.data_in(tag).expect("a read");
    let again = ScsiCommand { initiator_task_tag: tag, ..plain() };
    session.command(&again, &[]).expect("sent");
    session.good(tag).expect("another command");
    let header = ask(&mut session, first, snack(DATA_OR_R2T, tag, 0, 1));
    assert_rejected(&mut session, &header);
    ask(&mut session, first, snack(STATUS, NO_TASK, first.plus(1).0, 1));
    assert!(matches!(next(&mut session).0, TargetPdu::ScsiResponse(pdu) if pdu.initiator_task_tag == tag));
    session.silent().expect("alive");
}

/// 7.8: what an initiator can have sent again in a second is bounded; beyond, its requests are rejected, and the session
/// goes on.
#[test]
fn a_storm_of_requests_is_bounded() {
    let target = target(1, 0);
    let mut session = level_1(&target, &[("MaxRecvDataSegmentLength", "512"), ("MaxBurstLength", "512")]);
    session.acknowledged = Some(session.exp_stat_sn);
    let first = session.acknowledged();
    let (segments, requests) = (4096, 64);
    let tag = session.read(0, 0, segments).expect("sent");
    session.data_in(tag).expect("a read");
    for _ in 0..requests {
        ask(&mut session, first, snack(DATA_OR_R2T, tag, 0, 0));
    }
    let (mut copies, mut rejects) = (0, 0);
    while copies + rejects * segments < requests * segments {
        match next(&mut session).0 {
            TargetPdu::ScsiDataIn(_) => copies += 1,
            TargetPdu::Reject(pdu) => {
                assert_eq!(pdu.reason, RejectReason::SnackReject as u8);
                session.exp_stat_sn = pdu.numbers.stat_sn.next();
                rejects += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(rejects > 0 && copies > 0, "{rejects} of {requests} requests were rejected");
    session.silent().expect("alive");
}

/// What nobody knows is refused, whatever its type.
/// RFC 7143: 4.2.5.1.
#[test]
fn unknown_tasks_are_refused() {
    let target = target(1, 0);
    let mut session = level_1(&target, &[]);
    for kind in [DATA_OR_R2T, R_DATA] {
        let request = lunette_wire::initiator::SnackRequest {
            target_transfer_tag: TargetTransferTag(5),
            ..snack(kind, InitiatorTaskTag(0x4444), 0, 0)
        };
        let exp_stat_sn = session.exp_stat_sn;
        let header = ask(&mut session, exp_stat_sn, request);
        assert_rejected(&mut session, &header);
    }
    session.silent().expect("alive");
}
