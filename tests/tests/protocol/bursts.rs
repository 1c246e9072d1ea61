//! The longest bursts that the protocol has (RFC 7143, 13.13, 13.14), end to end.

use lunette_tests::in_process::InProcess;
use lunette_tests::initiator::LoginOptions;
use lunette_tests::raw::{BLOCK_BYTES, Raw, write};
use lunette_wire::frame::Digests;
use lunette_wire::initiator::ScsiCommand;
use lunette_wire::{TargetPdu, TargetTransferTag};

use crate::{DISK, expect_on_disk, pattern};

/// Bursts of up to 16 MiB - 1 both ways, asked for and not, with digests and without.
#[test]
fn bursts_are_as_long_as_the_longest_that_there_are() {
    const LONGEST: &str = "16777215";
    const BYTES: usize = (16 << 20) - BLOCK_BYTES;
    let target = InProcess::start_with(&["0=mem:32M,write=back"], |config| {
        config.limits.max_burst_length_bytes = (1 << 24) - 1;
        config.limits.first_burst_length_bytes = (1 << 24) - 1;
    });
    let mut data = pattern(BYTES);
    for (round, (is_digested, initial_r2t)) in
        [(false, "Yes"), (true, "Yes"), (false, "No"), (true, "No")].into_iter().enumerate()
    {
        data[BYTES / 2] = round as u8;
        let keys = [
            ("InitialR2T", initial_r2t),
            ("ImmediateData", "No"),
            ("MaxBurstLength", LONGEST),
            ("FirstBurstLength", LONGEST),
            ("MaxRecvDataSegmentLength", LONGEST),
        ];
        let digests = Digests { header: is_digested, data: is_digested };
        let options = LoginOptions { digests, ..target.options_with(1, &keys) };
        let mut session = Raw::ready(target.portal(), &options, 0).expect("a login");
        let is_unsolicited = initial_r2t == "No";
        let command = ScsiCommand { is_final: !is_unsolicited, ..write(0, 0, BYTES) };
        let tag = session.command(&command, &[]).expect("sent");
        if is_unsolicited {
            session.sequence((tag, TargetTransferTag::RESERVED), 0, &data, 1 << 18).expect("sent");
        } else {
            let r2t = session.r2t(tag).expect("an R2T");
            assert_eq!(r2t.desired_length as usize, BYTES, "one for all of it");
            session.answer_r2t(&r2t, &data, 1 << 18).expect("sent");
        }
        session.good(tag).expect("a write");
        let tag = session.read(0, 0, (BYTES / BLOCK_BYTES) as u32).expect("sent");
        let (TargetPdu::ScsiDataIn(pdu), read) = session.receive().expect("data") else { panic!("no data") };
        assert_eq!((pdu.initiator_task_tag, pdu.status), (tag, Some(0)), "one PDU has all of it");
        assert!(read == data, "other data was read");
    }
}

/// Who offers no FirstBurstLength, or one that is rejected, has the default of 64 KiB, whatever this side would have offered (13.14).
#[test]
fn a_first_burst_that_was_not_agreed_on_is_the_default() {
    const FIRST_BURST_BYTES: usize = 65_536;
    let target = InProcess::start_with(&["0=mem:8M,write=back"], |config| {
        config.limits.first_burst_length_bytes = 4096;
    });
    for (port, first_burst) in [(1, None), (2, Some("100"))] {
        let offers = [("InitialR2T", "No"), ("ImmediateData", "Yes")].into_iter();
        let offers = offers.chain(first_burst.map(|value| ("FirstBurstLength", value)));
        let offers = offers.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let options = LoginOptions { offers: Some(offers), ..target.options(port) };
        let mut session = Raw::ready(target.portal(), &options, 0).expect("a login");
        for length in [FIRST_BURST_BYTES, 300 << 10, 2 << 20] {
            let mut data = pattern(length);
            data[0] = port;
            let command = ScsiCommand { is_final: false, ..write(0, 0, length) };
            let tag = session.command(&command, &[]).expect("sent");
            let first = &data[..FIRST_BURST_BYTES];
            session.sequence((tag, TargetTransferTag::RESERVED), 0, first, 8192).expect("sent");
            let mut came = first.len();
            while came < length {
                let r2t = session.r2t(tag).expect("an R2T");
                assert_eq!(r2t.buffer_offset as usize, came);
                session.answer_r2t(&r2t, &data, 8192).expect("sent");
                came += r2t.desired_length as usize;
            }
            session.good(tag).expect("a write");
            expect_on_disk(&mut session, 0, &data);
        }
    }
}

/// Who logs in without an operational stage is told no MaxRecvDataSegmentLength, and may send segments of the default length, 8192 bytes
/// (13.12), and no longer ones.
#[test]
fn a_segment_length_that_was_not_declared_is_the_default() {
    const SEGMENT_BYTES: usize = 8192;
    for declared in [512, 65_536] {
        let target = InProcess::start_with(&[DISK], |config| {
            config.limits.max_recv_data_segment_length_bytes = declared;
        });
        let options = LoginOptions { skips_operational: true, ..target.options(1) };
        let mut session = Raw::ready(target.portal(), &options, 0).expect("a login");
        let data = pattern(4 * SEGMENT_BYTES);
        let tag = session.write(0, 0, &data[..SEGMENT_BYTES]).expect("sent");
        session.good(tag).expect("a write");
        let tag = session.command(&write(0, 0, data.len()), &[]).expect("sent");
        let r2t = session.r2t(tag).expect("an R2T");
        session.answer_r2t(&r2t, &data, SEGMENT_BYTES).expect("sent");
        session.good(tag).expect("a write");
        let tag = session.command(&write(0, 0, data.len()), &[]).expect("sent");
        let r2t = session.r2t(tag).expect("an R2T");
        session.answer_r2t(&r2t, &data, SEGMENT_BYTES + BLOCK_BYTES).expect("sent");
        session.ends().expect("a format error");
    }
}
