//! Data for the initiator that is lost, acknowledged, and cut anew (RFC 7143, 7.8, 11.7.2, 11.16.2, 11.16.3).

use lunette_target::config::LunFlag;
use lunette_tests::raw::{BLOCK_BYTES, Raw};
use lunette_wire::initiator::{SnackRequest, TextRequest};
use lunette_wire::target::{RejectReason, ScsiDataIn};
use lunette_wire::{InitiatorPdu, InitiatorTaskTag, StatSn, TargetPdu, TargetTransferTag};

use super::{DATA_ACK, DATA_OR_R2T, R_DATA, STATUS, ask, copy, level_1, next, options, snack, target};
use crate::pattern;

const SEGMENT: usize = 1024;
const BLOCKS: u32 = 16;

/// A disk that has a pattern, and a session with short segments and sequences.
fn reader(target: &lunette_tests::in_process::InProcess) -> (Raw, Vec<u8>) {
    let keys = [("MaxRecvDataSegmentLength", "1024"), ("MaxBurstLength", "3072")];
    let mut writer = target.session(2);
    let data = pattern(BLOCKS as usize * BLOCK_BYTES);
    let tag = writer.write(0, 0, &data).expect("sent");
    writer.good(tag).expect("a write");
    (level_1(target, &keys), data)
}

/// Reads everything, without an acknowledgement of its status; answers the tag, what came, and the status number.
fn read(session: &mut Raw) -> (InitiatorTaskTag, Vec<(TargetPdu, Vec<u8>)>, StatSn) {
    let stat_sn = session.exp_stat_sn;
    let tag = session.read(0, 0, BLOCKS).expect("sent");
    let count = BLOCKS as usize * BLOCK_BYTES / SEGMENT;
    let came = (0..count).map(|_| session.receive().expect("data")).collect();
    (tag, came, stat_sn)
}

fn data_in(pdu: &TargetPdu) -> ScsiDataIn {
    let TargetPdu::ScsiDataIn(pdu) = pdu else { panic!("no Data-In: {pdu:?}") };
    *pdu
}

fn assert_rejected(session: &mut Raw, header: &[u8], reason: RejectReason) {
    assert_eq!(session.rejected(header).expect("a Reject"), reason as u8);
}

/// 11.16: any run of a read's data comes again as it was, the last PDU with its status under the same number.
#[test]
fn data_is_sent_again_as_it_was() {
    let target = target(1, 0);
    let (mut session, _) = reader(&target);
    let (tag, came, stat_sn) = read(&mut session);
    for (begin, length, expected) in
        [(2, 3, 2..5), (7, 1, 7..8), (5, 0, 5..8), (0, 0, 0..8), (0, 8, 0..8), (0, 1, 0..1)]
    {
        ask(&mut session, stat_sn, snack(DATA_OR_R2T, tag, begin, length));
        for index in expected {
            assert_eq!(
                copy(next(&mut session)),
                copy(came[index].clone()),
                "PDU {index} of {begin}+{length}"
            );
        }
    }
    // What was never sent, and what is acknowledged with the status.
    for (begin, length) in [(8, 1), (7, 2), (9, 0)] {
        let header = ask(&mut session, stat_sn, snack(DATA_OR_R2T, tag, begin, length));
        assert_rejected(&mut session, &header, RejectReason::ProtocolError);
    }
    let acknowledged = session.exp_stat_sn;
    let header = ask(&mut session, acknowledged, snack(DATA_OR_R2T, tag, 0, 0));
    assert_rejected(&mut session, &header, RejectReason::ProtocolError);
    session.silent().expect("and nothing else");
}

/// What is sent again is what was read, whatever has been written since (11.16: exact replicas).
#[test]
fn data_that_is_sent_again_is_what_was_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("image");
    std::fs::write(&path, vec![0; 8 << 20]).expect("an image");
    // Without a fault layer, which would look at what is read.
    let flags = [format!("1={},write=back", path.display()), "2=mem:8M".to_owned()];
    let units = flags.iter().map(|flag| flag.parse().expect("a good flag")).collect();
    let target = lunette_tests::in_process::InProcess::start_with(&[crate::DISK], |config| {
        config.limits.error_recovery_level = 1;
        config.targets[0].units.extend(LunFlag::number_all(units).expect("free numbers"));
    });
    // Long enough to be sent from where it lies at level 0.
    let (blocks, keys) = (512, [("MaxRecvDataSegmentLength", "262144")]);
    for lun in [1, 2] {
        let mut session = Raw::ready(target.portal(), &options(&target, 1, &keys), lun).expect("a login");
        let mut other = Raw::ready(target.portal(), &target.options(2), lun).expect("a login");
        let mut fill = |byte| {
            for lba in (0..blocks).step_by(64) {
                let write = other.write(lun, lba.into(), &[byte; 64 * BLOCK_BYTES]).expect("sent");
                other.good(write).expect("a write of another");
            }
        };
        fill(0x11);
        let stat_sn = session.exp_stat_sn;
        let tag = session.read(lun, 0, blocks).expect("sent");
        let first = session.receive().expect("data");
        assert!(first.1.iter().all(|&byte| byte == 0x11));
        fill(0x22);
        ask(&mut session, stat_sn, snack(DATA_OR_R2T, tag, 0, 0));
        assert_eq!(copy(next(&mut session)), copy(first));
    }
}

/// 11.7.2, 11.7.4, 11.16.2: an acknowledgement is asked for once every MaxBurstLength; what is acknowledged does not come
/// again.
#[test]
fn acknowledged_data_is_given_back() {
    let target = target(1, 0);
    let (mut session, data) = reader(&target);
    let (tag, came, stat_sn) = read(&mut session);
    let asking: Vec<_> = came.iter().map(|(pdu, _)| data_in(pdu)).filter(|pdu| pdu.acknowledge).collect();
    assert_eq!(
        asking.iter().map(|pdu| pdu.data_sn.0).collect::<Vec<_>>(),
        [2, 5],
        "bursts of three segments"
    );
    assert!(asking.iter().all(|pdu| pdu.is_final && pdu.target_transfer_tag != TargetTransferTag::RESERVED));
    assert!(
        came.iter()
            .map(|(pdu, _)| data_in(pdu))
            .all(|pdu| pdu.acknowledge || pdu.target_transfer_tag == TargetTransferTag::RESERVED)
    );
    let acknowledge = |exp_data_sn| SnackRequest {
        target_transfer_tag: asking[0].target_transfer_tag,
        lun: asking[0].lun,
        ..snack(DATA_ACK, InitiatorTaskTag::RESERVED, exp_data_sn, 0)
    };
    ask(&mut session, stat_sn, acknowledge(3));
    let header = ask(&mut session, stat_sn, snack(DATA_OR_R2T, tag, 1, 2));
    assert_rejected(&mut session, &header, RejectReason::ProtocolError);
    ask(&mut session, stat_sn, snack(DATA_OR_R2T, tag, 0, 0));
    for original in &came[3..] {
        assert_eq!(copy(next(&mut session)), copy(original.clone()), "all that is unacknowledged");
    }
    // An old number changes nothing; one that was not sent is refused.
    ask(&mut session, stat_sn, acknowledge(1));
    let header = ask(&mut session, stat_sn, acknowledge(9));
    assert_rejected(&mut session, &header, RejectReason::InvalidDataAck);
    // With all data acknowledged the status has no Data-In to come in any more.
    ask(&mut session, stat_sn, acknowledge(8));
    ask(&mut session, stat_sn, snack(STATUS, InitiatorTaskTag::RESERVED, stat_sn.0, 1));
    let (TargetPdu::ScsiResponse(response), _) = next(&mut session) else { panic!("no response") };
    assert_eq!((response.numbers.stat_sn, response.status, response.exp_data_sn.0), (stat_sn, 0, 8));
    let never = SnackRequest { target_transfer_tag: TargetTransferTag(0x7000_0000), ..acknowledge(1) };
    let header = ask(&mut session, stat_sn, never);
    assert_rejected(&mut session, &header, RejectReason::InvalidDataAck);
    assert_eq!(came.into_iter().flat_map(|(_, data)| data).collect::<Vec<_>>(), data);
}

/// 11.16.3, 11.4.4: after a change of MaxRecvDataSegmentLength the data comes cut anew, then a response with the SNACK Tag
/// under the status number of before; and that is what a status SNACK brings from then on.
#[test]
fn data_is_cut_anew() {
    let target = target(1, 0);
    let (mut session, data) = reader(&target);
    let (tag, came, stat_sn) = read(&mut session);
    let acknowledge = SnackRequest {
        target_transfer_tag: data_in(&came[2].0).target_transfer_tag,
        ..snack(DATA_ACK, InitiatorTaskTag::RESERVED, 3, 0)
    };
    ask(&mut session, stat_sn, acknowledge);
    let text = TextRequest {
        immediate: true,
        is_final: true,
        initiator_task_tag: session.new_tag(),
        target_transfer_tag: TargetTransferTag::RESERVED,
        cmd_sn: session.cmd_sn,
        exp_stat_sn: stat_sn,
        ..TextRequest::default()
    };
    session.send(&InitiatorPdu::TextRequest(text), b"MaxRecvDataSegmentLength=2048\0").expect("sent");
    assert!(matches!(session.receive().expect("an answer").0, TargetPdu::TextResponse(pdu) if pdu.is_final));
    for snack_tag in [7, 8] {
        let resegment =
            SnackRequest { target_transfer_tag: TargetTransferTag(snack_tag), ..snack(R_DATA, tag, 0, 0) };
        ask(&mut session, stat_sn, resegment);
        // From the last acknowledgement on; a sequence still ends every 3072 bytes.
        let mut offset = 3 * SEGMENT;
        for (data_sn, length) in [(3, 2048), (4, 1024), (5, 2048)] {
            let (pdu, bytes) = next(&mut session);
            let pdu = data_in(&pdu);
            assert_eq!((pdu.data_sn.0, pdu.buffer_offset as usize, pdu.status), (data_sn, offset, None));
            assert_eq!(bytes, data[offset..offset + length]);
            offset += length;
        }
        assert_eq!(offset, data.len());
        for _ in 0..2 {
            let (TargetPdu::ScsiResponse(response), _) = next(&mut session) else { panic!("no response") };
            assert_eq!((response.snack_tag, response.numbers.stat_sn), (snack_tag, stat_sn));
            assert_eq!((response.status, response.exp_data_sn.0), (0, 6));
            ask(&mut session, stat_sn, snack(STATUS, InitiatorTaskTag::RESERVED, stat_sn.0, 1));
        }
        let (TargetPdu::ScsiResponse(_), _) = next(&mut session) else { panic!("no response") };
    }
    for bad in [0, u32::MAX] {
        let bad = SnackRequest { target_transfer_tag: TargetTransferTag(bad), ..snack(R_DATA, tag, 0, 0) };
        let header = ask(&mut session, stat_sn, bad);
        assert_rejected(&mut session, &header, RejectReason::InvalidPduField);
    }
}
