//! Data from the initiator that is lost, and asked for again by a recovery R2T (RFC 7143, 7.3, 7.8, 7.9, 11.8).

use lunette_block::OperationKind;
use lunette_tests::raw::{BLOCK_BYTES, Raw, write};
use lunette_wire::initiator::ScsiDataOut;
use lunette_wire::target::{ReadyToTransfer, RejectReason};
use lunette_wire::{DataSn, InitiatorPdu, InitiatorTaskTag, TargetTransferTag};

use super::{DATA_OR_R2T, ask, copy, level_1_with_digests, next, snack, target};
use crate::{expect_on_disk, pattern};

const SOLICITED: [(&str, &str); 3] =
    [("InitialR2T", "Yes"), ("ImmediateData", "No"), ("MaxBurstLength", "1048576")];

/// What becomes of one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Whole,
    /// Its data digest is wrong.
    Spoilt,
    /// It never comes.
    Lost,
}

/// Sends a sequence in segments, each with its fate; answers how many were rejected.
fn send_sequence(
    session: &mut Raw,
    (tag, transfer_tag): (InitiatorTaskTag, TargetTransferTag),
    (start, data): (usize, &[u8]),
    fates: &[Fate],
) {
    let segment = data.len() / fates.len();
    for (index, fate) in fates.iter().enumerate() {
        let chunk = &data[index * segment..][..segment];
        let pdu = ScsiDataOut {
            is_final: index + 1 == fates.len(),
            initiator_task_tag: tag,
            target_transfer_tag: transfer_tag,
            exp_stat_sn: session.exp_stat_sn,
            data_sn: DataSn(index as u32),
            buffer_offset: (start + index * segment) as u32,
            ..ScsiDataOut::default()
        };
        match fate {
            Fate::Whole => session.send(&InitiatorPdu::ScsiDataOut(pdu), chunk).expect("sent"),
            Fate::Spoilt => {
                let mut bytes = session.connection().encode(&InitiatorPdu::ScsiDataOut(pdu), chunk);
                *bytes.last_mut().expect("a digest") ^= 0x40;
                session.connection().send_bytes(&bytes).expect("sent");
                let reason = session.rejected(&pdu.encode(segment)).expect("a Reject");
                assert_eq!(reason, RejectReason::DataDigestError as u8);
            }
            Fate::Lost => {}
        }
    }
}

fn range(r2t: &ReadyToTransfer) -> (u32, usize, usize) {
    (r2t.r2t_sn.0, r2t.buffer_offset as usize, r2t.desired_length as usize)
}

/// 7.8, 7.9: only what was lost is asked for again, under the next R2TSN, once the sequence is over; the write has it all.
#[test]
fn segments_that_are_lost_are_asked_for_again() {
    use Fate::{Lost, Spoilt, Whole};
    // Short segments lie whole in the receive buffer, long ones come straight into the command's buffer.
    for segment in [2 * BLOCK_BYTES, 128 << 10] {
        // Each hole: the segment it begins with, and how many it has.
        let cases = [
            ([Whole, Spoilt, Whole, Whole], vec![(1, 1)]),
            ([Spoilt, Whole, Whole, Spoilt], vec![(0, 1), (3, 1)]),
            ([Whole, Lost, Whole, Whole], vec![(1, 1)]),
            ([Lost, Lost, Whole, Spoilt], vec![(0, 2), (3, 1)]),
            ([Spoilt, Spoilt, Spoilt, Spoilt], vec![(0, 4)]),
        ];
        for (fates, holes) in cases {
            let target = target(1, 0);
            let mut session = level_1_with_digests(&target, &SOLICITED);
            let data = pattern(fates.len() * segment);
            let tag = session.command(&write(0, 0, data.len()), &[]).expect("sent");
            let r2t = session.r2t(tag).expect("an R2T");
            assert_eq!(range(&r2t), (0, 0, data.len()));
            send_sequence(&mut session, (tag, r2t.target_transfer_tag), (0, &data), &fates);
            for (index, hole) in holes.iter().enumerate() {
                let again = session.r2t(tag).expect("a recovery R2T");
                let (start, length) = (hole.0 * segment, hole.1 * segment);
                assert_eq!(range(&again), (index as u32 + 1, start, length), "{fates:?}");
                assert_ne!(again.target_transfer_tag, r2t.target_transfer_tag);
                assert_eq!(target.faults(0).calls(OperationKind::Write), 0, "{fates:?}");
                session.answer_r2t(&again, &data, segment).expect("sent");
            }
            session.good(tag).expect("the write");
            expect_on_disk(&mut session, 0, &data);
        }
    }
}

/// 7.8: what is asked for again may be lost again; each time what is left is asked for.
#[test]
fn a_recovery_r2t_recovers_itself() {
    let target = target(1, 0);
    let mut session = level_1_with_digests(&target, &SOLICITED);
    let data = pattern(8 * BLOCK_BYTES);
    let tag = session.command(&write(0, 0, data.len()), &[]).expect("sent");
    let r2t = session.r2t(tag).expect("an R2T");
    let tags = (tag, r2t.target_transfer_tag);
    send_sequence(&mut session, tags, (0, &data), &[Fate::Spoilt, Fate::Whole]);
    let again = session.r2t(tag).expect("a recovery R2T");
    assert_eq!(range(&again), (1, 0, data.len() / 2));
    let tags = (tag, again.target_transfer_tag);
    send_sequence(&mut session, tags, (0, &data[..data.len() / 2]), &[Fate::Whole, Fate::Spoilt]);
    let again = session.r2t(tag).expect("another");
    assert_eq!(range(&again), (2, data.len() / 4, data.len() / 4));
    session.answer_r2t(&again, &data, BLOCK_BYTES).expect("sent");
    session.good(tag).expect("the write");
    expect_on_disk(&mut session, 0, &data);
}

/// 7.8: unsolicited data is recovered in the same way; the R2T for the rest of the write comes behind.
#[test]
fn unsolicited_data_is_asked_for_again() {
    let target = target(1, 0);
    let keys = [("InitialR2T", "No"), ("ImmediateData", "No"), ("FirstBurstLength", "4096")];
    let mut session = level_1_with_digests(&target, &keys);
    let data = pattern(8192);
    let command = lunette_wire::initiator::ScsiCommand { is_final: false, ..write(0, 0, data.len()) };
    let tag = session.command(&command, &[]).expect("sent");
    let tags = (tag, TargetTransferTag::RESERVED);
    send_sequence(
        &mut session,
        tags,
        (0, &data[..4096]),
        &[Fate::Whole, Fate::Spoilt, Fate::Whole, Fate::Lost],
    );
    // The last segment of the sequence is missing, so it is not over.
    session.silent().expect("the sequence goes on");
    let last = ScsiDataOut {
        is_final: true,
        initiator_task_tag: tag,
        target_transfer_tag: TargetTransferTag::RESERVED,
        exp_stat_sn: session.exp_stat_sn,
        data_sn: DataSn(3),
        buffer_offset: 3072,
        ..ScsiDataOut::default()
    };
    session.send(&InitiatorPdu::ScsiDataOut(last), &data[3072..4096]).expect("sent");
    let again = session.r2t(tag).expect("a recovery R2T");
    assert_eq!(range(&again), (0, 1024, 1024));
    session.answer_r2t(&again, &data, 1024).expect("sent");
    let rest = session.r2t(tag).expect("an R2T for the rest");
    assert_eq!(range(&rest), (1, 4096, 4096));
    session.answer_r2t(&rest, &data, 4096).expect("sent");
    session.good(tag).expect("the write");
    expect_on_disk(&mut session, 0, &data);
}

/// 11.16: an R2T that is asked for by SNACK is a copy of the one that was sent; one that was answered is not sent again, nor
/// is one that was never sent, and the write goes on all the same.
#[test]
fn an_r2t_is_sent_again() {
    let target = target(1, 0);
    let keys = [("InitialR2T", "Yes"), ("ImmediateData", "No"), ("MaxBurstLength", "2048")];
    let mut session = level_1_with_digests(&target, &keys);
    let data = pattern(4096);
    let tag = session.command(&write(0, 0, data.len()), &[]).expect("sent");
    let first = session.receive().expect("an R2T");
    let exp_stat_sn = session.exp_stat_sn;
    for (begin, length) in [(0, 1), (0, 0)] {
        ask(&mut session, exp_stat_sn, snack(DATA_OR_R2T, tag, begin, length));
        assert_eq!(copy(next(&mut session)), copy(first.clone()));
    }
    let header = ask(&mut session, exp_stat_sn, snack(DATA_OR_R2T, tag, 1, 1));
    let reason = session.rejected(&header).expect("never sent");
    assert_eq!(reason, RejectReason::ProtocolError as u8);
    let lunette_wire::TargetPdu::ReadyToTransfer(r2t) = first.0 else { panic!("no R2T: {first:?}") };
    session.answer_r2t(&r2t, &data, 2048).expect("sent");
    let second = session.r2t(tag).expect("the next R2T");
    assert_eq!(range(&second), (1, 2048, 2048));
    let exp_stat_sn = session.exp_stat_sn;
    let header = ask(&mut session, exp_stat_sn, snack(DATA_OR_R2T, tag, 0, 1));
    let reason = session.rejected(&header).expect("answered by data");
    assert_eq!(reason, RejectReason::ProtocolError as u8);
    session.answer_r2t(&second, &data, 2048).expect("sent");
    session.good(tag).expect("the write");
    expect_on_disk(&mut session, 0, &data);
}

/// Data under a transfer tag that is not open is refused; at level 0 it would fail the write (11.17.1).
#[test]
fn data_that_comes_too_late_harms_nothing() {
    let target = target(1, 0);
    let mut session = level_1_with_digests(&target, &SOLICITED);
    let data = pattern(4096);
    let tag = session.command(&write(0, 0, data.len()), &[]).expect("sent");
    let r2t = session.r2t(tag).expect("an R2T");
    send_sequence(&mut session, (tag, r2t.target_transfer_tag), (0, &data), &[Fate::Spoilt, Fate::Whole]);
    let again = session.r2t(tag).expect("a recovery R2T");
    let stale = ScsiDataOut {
        is_final: true,
        initiator_task_tag: tag,
        target_transfer_tag: r2t.target_transfer_tag,
        exp_stat_sn: session.exp_stat_sn,
        ..ScsiDataOut::default()
    };
    session.send(&InitiatorPdu::ScsiDataOut(stale), &[0xee; 2048]).expect("sent");
    let reason = session.rejected(&stale.encode(2048)).expect("a Reject");
    assert_eq!(reason, RejectReason::InvalidPduField as u8);
    session.answer_r2t(&again, &data, 2048).expect("sent");
    session.good(tag).expect("the write");
    expect_on_disk(&mut session, 0, &data);
}
