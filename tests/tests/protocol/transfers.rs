//! Data both ways (4.2.5.2, 11.4.5, 11.7, 11.8): R2Ts, unsolicited data in all combinations, residuals.

use lunette_block::OperationKind;
use lunette_tests::in_process::InProcess;
use lunette_tests::initiator::cdb;
use lunette_tests::raw::{BLOCK_BYTES, Raw, plain, read, write};
use lunette_wire::initiator::{ScsiCommand, ScsiDataOut};
use lunette_wire::target::{RejectReason, Residual};
use lunette_wire::{DataSn, InitiatorPdu, TargetTransferTag};

use crate::{CHECK_CONDITION, DISK, expect_on_disk, pattern};

const UNEXPECTED_UNSOLICITED_DATA: (u8, u8, u8) = (0xb, 0x0c, 0x0c);
const INCORRECT_AMOUNT_OF_DATA: (u8, u8, u8) = (0xb, 0x0c, 0x0d);

fn login(target: &InProcess, keys: &[(&str, &str)]) -> Raw {
    Raw::ready(target.portal(), &target.options_with(1, keys), 0).expect("a login")
}

/// RFC 7143: 4.2.2.4, 11.8, 11.8.1.
#[test]
fn several_r2ts_are_outstanding_and_never_more_than_agreed() {
    const BURST: usize = 8192;
    const OUTSTANDING: usize = 4;
    let target = InProcess::start(&[DISK]);
    let mut session = login(
        &target,
        &[
            ("InitialR2T", "Yes"),
            ("ImmediateData", "No"),
            ("MaxBurstLength", "8192"),
            ("FirstBurstLength", "8192"),
            ("MaxOutstandingR2T", "4"),
        ],
    );
    let data = pattern(10 * BURST - 3 * BLOCK_BYTES);
    let tag = session.command(&write(0, 0, data.len()), &[]).expect("sent");
    let mut outstanding = std::collections::VecDeque::new();
    let bursts = data.len().div_ceil(BURST);
    for index in 0..bursts {
        if index >= OUTSTANDING {
            session.silent().expect("no R2T beyond what was agreed on");
            let oldest = outstanding.pop_front().expect("one that was not answered");
            session.answer_r2t(&oldest, &data, 3000).expect("sent");
        }
        let r2t = session.r2t(tag).expect("an R2T");
        assert_eq!((r2t.r2t_sn, r2t.buffer_offset as usize), (DataSn(index as u32), index * BURST));
        assert_eq!(r2t.desired_length as usize, BURST.min(data.len() - index * BURST));
        outstanding.push_back(r2t);
    }
    for r2t in outstanding {
        session.answer_r2t(&r2t, &data, BURST).expect("sent");
    }
    session.good(tag).expect("a write");
    expect_on_disk(&mut session, 0, &data);
}

#[test]
fn unsolicited_data_comes_in_every_form_that_was_agreed() {
    const BURST: usize = 8192;
    const SEGMENT: usize = 1024;
    let target = InProcess::start(&[DISK]);
    let answers = [false, true].map(|answer| if answer { "Yes" } else { "No" });
    for (immediate, r2t) in answers.iter().flat_map(|first| answers.map(|second| (*first, second))) {
        for length in [BLOCK_BYTES, 4096, 4096 + BLOCK_BYTES, 5 * BURST] {
            let what = format!("ImmediateData={immediate}, InitialR2T={r2t}, {length} bytes");
            let mut session = login(
                &target,
                &[
                    ("ImmediateData", immediate),
                    ("InitialR2T", r2t),
                    ("FirstBurstLength", "4096"),
                    ("MaxBurstLength", "8192"),
                ],
            );
            let data: Vec<u8> = pattern(length).iter().map(|byte| byte ^ length as u8).collect();
            let first_burst = length.min(4096);
            // With InitialR2T=No the rest of the first burst follows the command in PDUs of its own.
            let in_command = if immediate == "Yes" { first_burst.min(SEGMENT) } else { 0 };
            let unsolicited = if r2t == "No" { first_burst } else { in_command };
            let command = ScsiCommand { is_final: unsolicited == in_command, ..write(0, 64, length) };
            let tag = session.command(&command, &data[..in_command]).expect(&what);
            session
                .sequence(
                    (tag, TargetTransferTag::RESERVED),
                    in_command,
                    &data[in_command..unsolicited],
                    SEGMENT,
                )
                .expect(&what);
            let mut there = unsolicited;
            while there < length {
                let r2t = session.r2t(tag).expect(&what);
                assert_eq!(r2t.buffer_offset as usize, there, "{what}");
                assert!(r2t.desired_length as usize <= BURST, "{what}");
                session.answer_r2t(&r2t, &data, SEGMENT).expect(&what);
                there += r2t.desired_length as usize;
            }
            session.good(tag).expect(&what);
            expect_on_disk(&mut session, 64, &data);
        }
    }
}

#[test]
fn unsolicited_data_may_come_before_the_turn_of_its_command() {
    let target = InProcess::start(&[DISK]);
    let mut session = login(&target, &[("InitialR2T", "No"), ("FirstBurstLength", "8192")]);
    let data = pattern(16384);
    let first = session.number(&plain());
    let command = ScsiCommand { is_final: false, ..write(0, 0, data.len()) };
    let tag = session.command(&command, &data[..1024]).expect("sent");
    session.sequence((tag, TargetTransferTag::RESERVED), 1024, &data[1024..8192], 2048).expect("sent");
    session.silent().expect("nothing is asked for before its turn");
    session.send(&InitiatorPdu::ScsiCommand(first), &[]).expect("sent");
    session.good(first.initiator_task_tag).expect("the first");
    let r2t = session.r2t(tag).expect("an R2T for the rest");
    assert_eq!((r2t.buffer_offset, r2t.desired_length), (8192, 8192));
    session.answer_r2t(&r2t, &data, 4096).expect("sent");
    session.good(tag).expect("a write");
    expect_on_disk(&mut session, 0, &data);
}

/// RFC 7143: 7.3.
#[test]
fn too_much_immediate_data_is_rejected_and_its_number_is_still_to_come() {
    let target = InProcess::start(&[DISK]);
    let mut session = login(&target, &[("FirstBurstLength", "4096"), ("InitialR2T", "No")]);
    for (announced, sent) in [(8192, 4096 + BLOCK_BYTES), (BLOCK_BYTES, 2 * BLOCK_BYTES)] {
        let command = session.number(&write(0, 0, announced));
        session.send(&InitiatorPdu::ScsiCommand(command), &vec![0xaa; sent]).expect("sent");
        let reason = session.rejected(&command.encode(sent)).expect("a Reject");
        assert_eq!(reason, RejectReason::ProtocolError as u8);
        assert_eq!(session.exp_cmd_sn(), command.cmd_sn, "a gap (7.3)");
        session.cmd_sn = command.cmd_sn;
        assert_eq!(session.test_unit_ready(0).expect("the same number").status, 0);
    }
    assert_eq!(target.faults(0).calls(OperationKind::Write), 0);
}

/// Sends a command and unsolicited data that break an agreement, and expects CHECK CONDITION with these codes, after
/// `rejects` Rejects; nothing may reach the store, and the session must go on.
fn expect_fault(
    keys: &[(&str, &str)],
    command: &ScsiCommand,
    immediate: usize,
    unsolicited: &[(u32, usize, bool)],
    rejects: &[RejectReason],
    codes: (u8, u8, u8),
) {
    let target = InProcess::start(&[DISK]);
    let mut session = login(&target, keys);
    let tag = session.command(command, &vec![0xaa; immediate]).expect("sent");
    for (index, (offset, length, is_final)) in unsolicited.iter().enumerate() {
        let pdu = ScsiDataOut {
            is_final: *is_final,
            initiator_task_tag: tag,
            target_transfer_tag: TargetTransferTag::RESERVED,
            data_sn: DataSn(index as u32),
            buffer_offset: *offset,
            exp_stat_sn: session.exp_stat_sn,
            ..ScsiDataOut::default()
        };
        session.send(&InitiatorPdu::ScsiDataOut(pdu), &vec![0xaa; *length]).expect("sent");
    }
    for reason in rejects {
        let (pdu, _) = session.receive().expect("a Reject");
        assert!(
            matches!(pdu, lunette_wire::TargetPdu::Reject(pdu) if pdu.reason == *reason as u8),
            "{reason:?} was due: {pdu:?}"
        );
    }
    let ending = session.ending(tag).expect("an answer");
    assert_eq!((ending.status, ending.codes()), (CHECK_CONDITION, codes));
    assert_eq!(session.test_unit_ready(0).expect("the next number").status, 0);
    assert_eq!(target.faults(0).calls(OperationKind::Write), 0);
}

/// RFC 7143: 11.4.7, 11.8, 13.11.
#[test]
fn unsolicited_data_that_was_not_agreed_on_fails_its_command() {
    expect_fault(&[("ImmediateData", "No")], &write(0, 0, 4096), 4096, &[], &[], UNEXPECTED_UNSOLICITED_DATA);
    expect_fault(
        &[("InitialR2T", "Yes")],
        &ScsiCommand { is_final: false, ..write(0, 0, 4096) },
        0,
        &[(0, 4096, true)],
        &[],
        UNEXPECTED_UNSOLICITED_DATA,
    );
}

/// RFC 7143: 4.2.5.2, 11.7.1.
#[test]
fn unsolicited_data_beyond_the_first_burst_or_short_of_it_fails_its_command() {
    let keys = [("InitialR2T", "No"), ("ImmediateData", "No"), ("FirstBurstLength", "4096")];
    let command = ScsiCommand { is_final: false, ..write(0, 0, 8192) };
    expect_fault(
        &keys,
        &command,
        0,
        &[(0, 4096, false), (4096, 512, true)],
        &[RejectReason::InvalidPduField],
        INCORRECT_AMOUNT_OF_DATA,
    );
    expect_fault(&keys, &command, 0, &[(0, 2048, true)], &[], INCORRECT_AMOUNT_OF_DATA);
    // A gap in the sequence.
    expect_fault(
        &keys,
        &command,
        0,
        &[(0, 1024, false), (2048, 1024, true)],
        &[RejectReason::InvalidPduField],
        INCORRECT_AMOUNT_OF_DATA,
    );
}

/// RFC 7143: 11.4.5.1, 11.4.5.2.
#[test]
fn a_read_of_less_or_more_than_expected_has_a_residual() {
    let target = InProcess::start(&[DISK]);
    let mut session = login(&target, &[]);
    let data = pattern(4 * BLOCK_BYTES);
    let tag = session.write(0, 0, &data).expect("sent");
    session.good(tag).expect("a write");
    for (expected, got, residual) in [
        (4096, 2048, Residual::Underflow(2048)),
        (2048, 2048, Residual::None),
        (1024, 1024, Residual::Overflow(1024)),
        (700, 700, Residual::Overflow(1348)),
    ] {
        let command = ScsiCommand { expected_data_transfer_length: expected, ..read(0, 0, 4) };
        let tag = session.command(&command, &[]).expect("sent");
        let (bytes, found) = session.data_in(tag).expect("a read");
        assert_eq!((bytes.len(), found), (got, residual));
        assert!(bytes == data[..got]);
    }
    // Nothing is expected at all.
    let command = ScsiCommand { expected_data_transfer_length: 0, read: false, ..read(0, 0, 4) };
    let tag = session.command(&command, &[]).expect("sent");
    let ending = session.ending(tag).expect("an answer");
    assert_eq!((ending.status, ending.residual), (0, Residual::Overflow(2048)));
    // Parameter data.
    let inquiry = ScsiCommand {
        read: true,
        expected_data_transfer_length: 255,
        cdb: [0x12, 0, 0, 0, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ..plain()
    };
    let tag = session.command(&inquiry, &[]).expect("sent");
    let (bytes, found) = session.data_in(tag).expect("data");
    assert!((36..255).contains(&bytes.len()));
    assert_eq!(found, Residual::Underflow(255 - bytes.len() as u32));
}

/// RFC 7143: 11.4.5.1, 11.4.5.2.
#[test]
fn a_write_of_less_or_more_than_expected_has_a_residual() {
    let target = InProcess::start(&[DISK]);
    let mut session = login(&target, &[]);
    // The command takes two blocks of the four that the initiator has.
    let data = pattern(4 * BLOCK_BYTES);
    let command = ScsiCommand { cdb: cdb::write(0, 2), ..write(0, 0, data.len()) };
    let tag = session.command(&command, &data).expect("sent");
    let ending = session.ending(tag).expect("an answer");
    assert_eq!((ending.status, ending.residual), (0, Residual::Underflow(1024)));
    expect_on_disk(&mut session, 0, &[&data[..1024], &[0; 1024][..]].concat());
    // The same unasked and in segments, of which one begins in what the command takes and ends behind it.
    let mut unasked = login(&target, &[("InitialR2T", "No"), ("ImmediateData", "No")]);
    let data: Vec<u8> = data.iter().map(|byte| !byte).collect();
    let command = ScsiCommand { cdb: cdb::write(16, 3), is_final: false, ..write(0, 16, data.len()) };
    let tag = unasked.command(&command, &[]).expect("sent");
    unasked.sequence((tag, TargetTransferTag::RESERVED), 0, &data, 1024).expect("sent");
    let ending = unasked.ending(tag).expect("an answer");
    assert_eq!((ending.status, ending.residual), (0, Residual::Underflow(512)));
    expect_on_disk(&mut unasked, 16, &[&data[..1536], &[0; 512][..]].concat());
    drop(unasked);
    let mut session = login(&target, &[]);
    let data = pattern(4 * BLOCK_BYTES);
    // The command takes four blocks where the initiator has two.
    let command = ScsiCommand { cdb: cdb::write(8, 4), ..write(0, 8, 1024) };
    let tag = session.command(&command, &data[..1024]).expect("sent");
    let ending = session.ending(tag).expect("an answer");
    assert_eq!((ending.status, ending.residual), (0, Residual::Overflow(1024)));
    expect_on_disk(&mut session, 8, &[&data[..1024], &[0; 1024][..]].concat());
    // A command that fails has moved nothing.
    let command = ScsiCommand { cdb: cdb::write(1 << 40, 2), ..write(0, 0, 1024) };
    let tag = session.command(&command, &data[..1024]).expect("sent");
    let ending = session.ending(tag).expect("an answer");
    assert_eq!((ending.codes(), ending.residual), ((5, 0x21, 0), Residual::Underflow(1024)));
}

/// 13.18: with DataPDUInOrder=No each sequence may come in any order, whatever else was agreed on.
#[test]
fn data_comes_in_any_order_where_that_was_agreed_on() {
    const SEGMENT: usize = 512;
    let target = InProcess::start(&[DISK]);
    let data = pattern(16 * 1024);
    let combinations = [
        ("Yes", "No", "1"),
        ("Yes", "No", "16"),
        ("Yes", "Yes", "3"),
        ("No", "No", "2"),
        ("No", "Yes", "16"),
    ];
    for (index, (initial_r2t, immediate_data, r2ts)) in combinations.into_iter().enumerate() {
        let keys = [
            ("DataPDUInOrder", "No"),
            ("DataSequenceInOrder", "No"),
            ("InitialR2T", initial_r2t),
            ("ImmediateData", immediate_data),
            ("MaxOutstandingR2T", r2ts),
            ("MaxBurstLength", "2048"),
            ("FirstBurstLength", "2048"),
        ];
        let mut session = login(&target, &keys);
        let mut come = if immediate_data == "Yes" { SEGMENT } else { 0 };
        let is_unsolicited = initial_r2t == "No";
        let lba = 64 * index as u64;
        let command = ScsiCommand { is_final: !is_unsolicited, ..write(0, lba, data.len()) };
        let tag = session.command(&command, &data[..come]).expect("sent");
        // The last segment of a sequence first, then the others from the front.
        let send = |session: &mut Raw, target_transfer_tag, range: std::ops::Range<usize>| {
            let mut starts: Vec<usize> = range.step_by(SEGMENT).collect();
            starts.rotate_right(1);
            for (index, &start) in starts.iter().enumerate() {
                let pdu = ScsiDataOut {
                    is_final: index + 1 == starts.len(),
                    lun: command.lun,
                    initiator_task_tag: tag,
                    target_transfer_tag,
                    data_sn: DataSn(index as u32),
                    buffer_offset: start as u32,
                    ..ScsiDataOut::default()
                };
                let segment = &data[start..start + SEGMENT];
                session.send(&InitiatorPdu::ScsiDataOut(pdu), segment).expect("sent");
            }
        };
        if is_unsolicited {
            send(&mut session, TargetTransferTag::RESERVED, come..2048);
            come = 2048;
        }
        while come < data.len() {
            let r2t = session.r2t(tag).expect("an R2T");
            assert_eq!(r2t.buffer_offset as usize, come, "sequences stay in order");
            let end = come + r2t.desired_length as usize;
            send(&mut session, r2t.target_transfer_tag, come..end);
            come = end;
        }
        session.good(tag).expect("a write");
        expect_on_disk(&mut session, lba, &data);
    }
}

/// A byte that comes twice, or never, fails its command all the same.
#[test]
fn any_order_is_no_licence_for_gaps_and_overlaps() {
    let target = InProcess::start(&[DISK]);
    let keys = [("DataPDUInOrder", "No"), ("InitialR2T", "Yes"), ("ImmediateData", "No")];
    for (pieces, rejects_min) in [
        // A gap that stays, an overlap with what has come, one beyond the end, one before the sequence's first PDU again.
        (vec![(0, 512), (1024, 1024)], 0),
        (vec![(512, 512), (256, 512), (1024, 1024)], 1),
        (vec![(1536, 1024), (0, 1536)], 1),
        (vec![(0, 1024), (0, 512), (1024, 1024)], 1),
    ] {
        let mut session = login(&target, &keys);
        let command = write(0, 64, 2048);
        let tag = session.command(&command, &[]).expect("sent");
        let r2t = session.r2t(tag).expect("an R2T");
        for (index, &(start, length)) in pieces.iter().enumerate() {
            let pdu = ScsiDataOut {
                is_final: index + 1 == pieces.len(),
                lun: command.lun,
                initiator_task_tag: tag,
                target_transfer_tag: r2t.target_transfer_tag,
                data_sn: DataSn(index as u32),
                buffer_offset: start,
                ..ScsiDataOut::default()
            };
            session.send(&InitiatorPdu::ScsiDataOut(pdu), &vec![0xee; length]).expect("sent");
        }
        let mut rejected = 0;
        let ending = loop {
            match session.receive().expect("an answer") {
                (lunette_wire::TargetPdu::Reject(_), _) => rejected += 1,
                (lunette_wire::TargetPdu::ScsiResponse(pdu), _) => break pdu,
                other => panic!("{other:?}"),
            }
        };
        assert!(rejected >= rejects_min, "{pieces:?}");
        assert_eq!(ending.status, 2, "{pieces:?}");
        expect_on_disk(&mut session, 64, &[0; 2048]);
    }
}

/// Segments may be as short as their sender likes, and as far apart; of too many gaps none is remembered, and the command fails.
#[test]
fn bytes_that_are_scattered_without_end_fail_their_command_alone() {
    const SCATTERED: u32 = 20_000;
    let target = InProcess::start(&[DISK]);
    let keys = [("DataPDUInOrder", "No"), ("InitialR2T", "No"), ("ImmediateData", "No")];
    let mut session = login(&target, &keys);
    let command = ScsiCommand { is_final: false, ..write(0, 64, 64 << 10) };
    let tag = session.command(&command, &[]).expect("sent");
    let mut bytes = Vec::new();
    // The last place first: it leaves a gap before it, which each of the others divides.
    for (data_sn, buffer_offset) in std::iter::once(64 << 10).chain(1..SCATTERED).enumerate() {
        let pdu = ScsiDataOut {
            is_final: buffer_offset + 1 == SCATTERED,
            lun: command.lun,
            initiator_task_tag: tag,
            target_transfer_tag: TargetTransferTag::RESERVED,
            data_sn: DataSn(data_sn as u32),
            buffer_offset,
            ..ScsiDataOut::default()
        };
        bytes.extend(session.connection().encode(&InitiatorPdu::ScsiDataOut(pdu), &[]));
    }
    session.connection().send_bytes(&bytes).expect("sent");
    assert_eq!(session.ending(tag).expect("an answer").status, 2);
    expect_on_disk(&mut session, 64, &[0; 2048]);
}

/// 11.4.5: what fails moves nothing, in either direction; ESXi gives a disk up whose counts are wrong.
#[test]
fn a_command_that_moves_nothing_has_all_that_was_expected_as_residual() {
    let target = InProcess::start(&[DISK]);
    let mut session = login(&target, &[("InitialR2T", "Yes"), ("ImmediateData", "No")]);
    let outside = [0x88, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0];
    let unknown = [0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let ready = plain().cdb;
    let expecting = |read: bool, length: u32, cdb: [u8; 16]| ScsiCommand {
        read,
        write: !read,
        expected_data_transfer_length: length,
        cdb,
        ..plain()
    };
    for (command, status, residual) in [
        (expecting(true, 2048, outside), 2, Residual::Underflow(2048)),
        (expecting(true, 0xffff_fffc, outside), 2, Residual::Underflow(0xffff_fffc)),
        (expecting(true, 36, unknown), 2, Residual::Underflow(36)),
        (expecting(false, 1024, unknown), 2, Residual::Underflow(1024)),
        (expecting(true, 512, ready), 0, Residual::Underflow(512)),
        (expecting(false, 512, ready), 0, Residual::Underflow(512)),
        (expecting(true, 0, outside), 2, Residual::None),
        // Nothing is asked for, so nothing is short.
        (
            expecting(true, 512, [0x28, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            0,
            Residual::Underflow(512),
        ),
        // All that it has to say is lost on an initiator that expects to write.
        (
            expecting(false, 512, [0x12, 0, 0, 0, 36, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            0,
            Residual::Underflow(476),
        ),
    ] {
        let tag = session.command(&command, &[]).expect("sent");
        let ending = session.ending(tag).expect("an answer without data");
        assert_eq!((ending.status, ending.residual), (status, residual), "{command:?}");
    }
    session.silent().expect("alive");
}

/// RFC 7143: 11.7.1.
#[test]
fn data_in_is_cut_by_what_the_initiator_takes() {
    let target = InProcess::start(&[DISK]);
    let mut session = login(&target, &[("MaxRecvDataSegmentLength", "1024"), ("MaxBurstLength", "2560")]);
    let data = pattern(8192);
    let tag = session.command(&write(0, 0, data.len()), &[]).expect("sent");
    // Three bursts of 2560 bytes and the rest.
    for _ in 0..4 {
        let r2t = session.r2t(tag).expect("an R2T");
        session.answer_r2t(&r2t, &data, 1024).expect("sent");
    }
    session.good(tag).expect("a write");
    let tag = session.read(0, 0, 16).expect("sent");
    let (mut at, mut burst) = (0, 0);
    loop {
        let (lunette_wire::TargetPdu::ScsiDataIn(pdu), bytes) = session.receive().expect("data") else {
            panic!("no data");
        };
        assert_eq!((pdu.initiator_task_tag, pdu.buffer_offset as usize), (tag, at));
        assert!(bytes.len() <= 1024 && bytes == data[at..at + bytes.len()]);
        at += bytes.len();
        burst += bytes.len();
        assert!(burst <= 2560, "a burst of {burst}");
        if pdu.is_final {
            burst = 0;
        }
        if pdu.status.is_some() {
            break;
        }
    }
    assert_eq!(at, data.len());
}

/// 11.7.7: only the last segment of a sequence may need padding.
#[test]
fn data_in_is_sent_in_whole_words() {
    let target = InProcess::start(&[DISK]);
    let mut session = login(&target, &[("MaxRecvDataSegmentLength", "1023")]);
    let tag = session.read(0, 0, 4).expect("sent");
    let lengths = [(); 3].map(|()| {
        let (lunette_wire::TargetPdu::ScsiDataIn(pdu), bytes) = session.receive().expect("data") else {
            panic!("no data");
        };
        assert_eq!(pdu.initiator_task_tag, tag);
        bytes.len()
    });
    assert_eq!(lengths, [1020, 1020, 8]);
}
