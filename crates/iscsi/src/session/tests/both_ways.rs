//! Bidirectional commands (RFC 7143, 4.2.2.4, 11.2.2.4, 11.3.4, 11.4.6, 11.7.3): data both ways, and both residuals.

use lunette_wire::DataSn;
use lunette_wire::initiator::ScsiDataOut;
use lunette_wire::target::{ReadyToTransfer, Residual, ScsiDataIn, ScsiResponse};

use super::*;

/// An additional header segment with the expected bidirectional read data length.
fn read_length(bytes: u32) -> [u8; 8] {
    let [a, b, c, d] = bytes.to_be_bytes();
    [0, 5, 2, 0, a, b, c, d]
}

fn bench(error_recovery_level: u8) -> Bench {
    let mut bench = Bench::new(SessionType::Normal);
    bench.session.parameters.error_recovery_level = error_recovery_level;
    bench.session.parameters.initial_r2t = true;
    bench
}

/// A command that writes `out` bytes and for which `takes` bytes can be read.
fn begin(bench: &mut Bench, out: u32, takes: u32) -> TaskId {
    let pdu = ScsiCommand {
        is_final: true,
        read: true,
        write: true,
        expected_data_transfer_length: out,
        initiator_task_tag: InitiatorTaskTag(7),
        cmd_sn: CmdSn(1),
        ..ScsiCommand::default()
    };
    let header = (&pdu.encode(0), &pdu, &read_length(takes)[..]);
    let taken = bench.session.command(bench.now, CID, header, 0, &mut bench.outbox);
    let id = taken.expect("a command");
    let view = bench.session.task(id).unwrap();
    assert_eq!((view.expected_out, view.expected_in), (out, takes));
    id
}

fn r2t(bench: &mut Bench) -> ReadyToTransfer {
    let sent = bench.sent();
    let [TargetPdu::ReadyToTransfer(r2t)] = sent[..] else { panic!("an R2T, not {sent:?}") };
    r2t
}

fn answer(bench: &mut Bench, r2t: &ReadyToTransfer) {
    let pdu = ScsiDataOut {
        is_final: true,
        lun: r2t.lun,
        initiator_task_tag: r2t.initiator_task_tag,
        target_transfer_tag: r2t.target_transfer_tag,
        buffer_offset: r2t.buffer_offset,
        ..ScsiDataOut::default()
    };
    let length = r2t.desired_length;
    let header = (&pdu.encode(length as usize), &pdu);
    bench.session.data_out_arrived(bench.now, CID, header, length, true, &mut bench.outbox);
}

fn complete(bench: &mut Bench, id: TaskId, status: u8, transfer: Transfer<()>) {
    let completion = Completion { status, status_qualifier: 0, sense: &[], transfer, fenced: false };
    bench.session.complete(id, completion, &mut bench.outbox);
}

/// At every level: what is read counts on from the R2Ts and comes without status; the response has both residuals.
#[test]
fn data_goes_both_ways_and_the_status_comes_behind_it() {
    for level in 0..=2 {
        let mut bench = bench(level);
        let id = begin(&mut bench, 1024, 20_000);
        bench.session.solicit(id, 1000, &mut bench.outbox);
        let r2t = r2t(&mut bench);
        assert_eq!((r2t.r2t_sn, r2t.desired_length), (DataSn(0), 1000));
        answer(&mut bench, &r2t);
        complete(&mut bench, id, 0, Transfer::Both { data: (), length_in: 20_480, length_out: 1000 });
        let sent = bench.sent();
        let (response, data) = sent.split_last().expect("answers");
        let mut offset = 0;
        for (index, pdu) in data.iter().enumerate() {
            let TargetPdu::ScsiDataIn(ScsiDataIn { status, data_sn, buffer_offset, .. }) = *pdu else {
                panic!("{pdu:?}")
            };
            assert_eq!((status, data_sn, buffer_offset), (None, DataSn(1 + index as u32), offset));
            offset += 8192;
        }
        let TargetPdu::ScsiResponse(response) = *response else { panic!("{response:?}") };
        let ScsiResponse { residual, bidirectional_read_residual, exp_data_sn, status, .. } = response;
        assert_eq!((data.len(), exp_data_sn, status), (3, DataSn(4), 0), "level {level}");
        assert_eq!(residual, Residual::Underflow(24));
        assert_eq!(bidirectional_read_residual, Residual::Overflow(480));
    }
}

/// A command that moves nothing, or one way only, says so of both.
#[test]
fn what_does_not_move_is_residual() {
    let mut refused = bench(0);
    let id = begin(&mut refused, 512, 4096);
    complete(&mut refused, id, 2, Transfer::None);
    let mut read = bench(0);
    let id = begin(&mut read, 512, 4096);
    complete(&mut read, id, 0, Transfer::In { data: (), length: 4096 });
    let mut written = bench(0);
    let id = begin(&mut written, 512, 4096);
    complete(&mut written, id, 0, Transfer::Out { length: 512 });
    let whole = (Residual::Underflow(512), Residual::Underflow(4096));
    for (mut bench, residuals) in
        [(refused, whole), (read, (whole.0, Residual::None)), (written, (Residual::None, whole.1))]
    {
        let Some(TargetPdu::ScsiResponse(response)) = bench.sent().pop() else { panic!("a response") };
        assert_eq!((response.residual, response.bidirectional_read_residual), residuals);
    }
}

/// One that says nothing of what it reads can take nothing (11.3.4 wants the length).
#[test]
fn without_a_length_nothing_is_read() {
    let mut bench = bench(0);
    let pdu = ScsiCommand {
        is_final: true,
        read: true,
        write: true,
        expected_data_transfer_length: 512,
        cmd_sn: CmdSn(1),
        ..ScsiCommand::default()
    };
    let taken = bench.session.command(bench.now, CID, (&pdu.encode(0), &pdu, &[]), 0, &mut bench.outbox);
    complete(&mut bench, taken.unwrap(), 0, Transfer::In { data: (), length: 100 });
    let sent = bench.sent();
    let [TargetPdu::ScsiResponse(response)] = sent[..] else { panic!("{sent:?}") };
    assert_eq!(response.bidirectional_read_residual, Residual::Overflow(100));
}
