//! The longest bursts that the protocol has (RFC 7143, 13.13, 13.14), end to end.

use lunette_tests::in_process::InProcess;
use lunette_tests::initiator::LoginOptions;
use lunette_tests::raw::{BLOCK_BYTES, Raw, write};
use lunette_wire::frame::Digests;
use lunette_wire::initiator::ScsiCommand;
use lunette_wire::{TargetPdu, TargetTransferTag};

use crate::pattern;

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
