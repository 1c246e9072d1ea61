//! One byte vector for each PDU, written down from the figures of RFC 7143, chapter 11, not from the code: a field at
//! a wrong offset would survive a round trip, but not this.

use lunette_wire::initiator::{
    LoginRequest, LoginStage, LogoutReason, LogoutRequest, NopOut, ScsiCommand, ScsiDataOut, SnackRequest,
    TaskAttribute, TaskManagementFunction, TaskManagementRequest, TextRequest,
};
use lunette_wire::target::{
    AsynchronousMessage, LoginResponse, LogoutResponse, NopIn, Numbers, ReadyToTransfer, Reject,
    RejectReason, Residual, ScsiDataIn, ScsiResponse, TaskManagementOutcome, TaskManagementResponse,
    TextResponse,
};
use lunette_wire::{
    BHS_LENGTH, Bhs, Cid, CmdSn, DataSn, InitiatorPdu, InitiatorTaskTag, Isid, LunField, StatSn, TargetPdu,
    TargetTransferTag, Tsih,
};

/// Twelve words of four bytes, as the figures draw them.
fn bhs(words: [&str; 12]) -> Bhs {
    let mut bytes = [0; BHS_LENGTH];
    for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
        let word = u32::from_str_radix(&word.replace(' ', ""), 16).expect("four bytes in hexadecimal");
        place.copy_from_slice(&word.to_be_bytes());
    }
    bytes
}

fn initiator(pdu: InitiatorPdu, data_length: usize, words: [&str; 12]) {
    assert_eq!(pdu.encode(data_length), bhs(words), "encoding {pdu:?}");
    assert_eq!(InitiatorPdu::decode(&bhs(words)), Ok(pdu));
}

fn target(pdu: TargetPdu, data_length: usize, words: [&str; 12]) {
    assert_eq!(pdu.encode(data_length), bhs(words), "encoding {pdu:?}");
    assert_eq!(TargetPdu::decode(&bhs(words)), Ok(pdu));
}

const LUN: LunField = LunField([0, 5, 0, 0, 0, 0, 0, 0]);
const ITT: InitiatorTaskTag = InitiatorTaskTag(0xa1a2_a3a4);
const TTT: TargetTransferTag = TargetTransferTag(0xb1b2_b3b4);
const CMD_SN: CmdSn = CmdSn(0xc1c2_c3c4);
const EXP_STAT_SN: StatSn = StatSn(0xd1d2_d3d4);
const NUMBERS: Numbers =
    Numbers { stat_sn: StatSn(0xe1e2_e3e4), exp_cmd_sn: CmdSn(0xf1f2_f3f4), max_cmd_sn: CmdSn(0x0102_0304) };

/// 11.3: flags F R W ATTR; 20 expected length, 24 CmdSN, 28 ExpStatSN, 32 CDB.
#[test]
fn scsi_command() {
    let cdb = [0x2a, 0, 0, 0, 0, 0x10, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0];
    let pdu = ScsiCommand {
        immediate: true,
        is_final: true,
        read: false,
        write: true,
        attribute: TaskAttribute::HeadOfQueue,
        priority: 0x0b,
        lun: LUN,
        initiator_task_tag: ITT,
        expected_data_transfer_length: 4096,
        cmd_sn: CMD_SN,
        exp_stat_sn: EXP_STAT_SN,
        cdb,
    };
    initiator(
        InitiatorPdu::ScsiCommand(pdu),
        4096,
        [
            "41 a3 b0 00",
            "00 00 10 00",
            "00 05 00 00",
            "00 00 00 00",
            "a1 a2 a3 a4",
            "00 00 10 00",
            "c1 c2 c3 c4",
            "d1 d2 d3 d4",
            "2a 00 00 00",
            "00 10 00 00",
            "08 00 00 00",
            "00 00 00 00",
        ],
    );
}

/// 11.5: 20 Referenced Task Tag, 32 RefCmdSN, 36 ExpDataSN.
#[test]
fn task_management_request() {
    let pdu = TaskManagementRequest {
        immediate: true,
        function: TaskManagementFunction::LogicalUnitReset,
        lun: LUN,
        initiator_task_tag: ITT,
        referenced_task_tag: InitiatorTaskTag::RESERVED,
        cmd_sn: CMD_SN,
        exp_stat_sn: EXP_STAT_SN,
        ref_cmd_sn: CmdSn(0x1112_1314),
        exp_data_sn: DataSn(0x2122_2324),
    };
    initiator(
        InitiatorPdu::TaskManagementRequest(pdu),
        0,
        [
            "42 85 00 00",
            "00 00 00 00",
            "00 05 00 00",
            "00 00 00 00",
            "a1 a2 a3 a4",
            "ff ff ff ff",
            "c1 c2 c3 c4",
            "d1 d2 d3 d4",
            "11 12 13 14",
            "21 22 23 24",
            "00 00 00 00",
            "00 00 00 00",
        ],
    );
}

/// 11.7: 20 Target Transfer Tag, 28 ExpStatSN, 36 DataSN, 40 Buffer Offset; 24 and 32 are reserved.
#[test]
fn scsi_data_out() {
    let pdu = ScsiDataOut {
        is_final: true,
        lun: LUN,
        initiator_task_tag: ITT,
        target_transfer_tag: TTT,
        exp_stat_sn: EXP_STAT_SN,
        data_sn: DataSn(3),
        buffer_offset: 0x0001_0000,
    };
    initiator(
        InitiatorPdu::ScsiDataOut(pdu),
        0x0f_f0_01,
        [
            "05 80 00 00",
            "00 0f f0 01",
            "00 05 00 00",
            "00 00 00 00",
            "a1 a2 a3 a4",
            "b1 b2 b3 b4",
            "00 00 00 00",
            "d1 d2 d3 d4",
            "00 00 00 00",
            "00 00 00 03",
            "00 01 00 00",
            "00 00 00 00",
        ],
    );
}

/// 11.10: flags F C.
#[test]
fn text_request() {
    let pdu = TextRequest {
        immediate: false,
        is_final: false,
        is_continued: true,
        lun: LUN,
        initiator_task_tag: ITT,
        target_transfer_tag: TTT,
        cmd_sn: CMD_SN,
        exp_stat_sn: EXP_STAT_SN,
    };
    initiator(
        InitiatorPdu::TextRequest(pdu),
        16,
        [
            "04 40 00 00",
            "00 00 00 10",
            "00 05 00 00",
            "00 00 00 00",
            "a1 a2 a3 a4",
            "b1 b2 b3 b4",
            "c1 c2 c3 c4",
            "d1 d2 d3 d4",
            "00 00 00 00",
            "00 00 00 00",
            "00 00 00 00",
            "00 00 00 00",
        ],
    );
}

/// 11.12: flags T C . . CSG NSG; 2 Version-max, 3 Version-min, 8 ISID, 14 TSIH, 20 CID.
#[test]
fn login_request() {
    let pdu = LoginRequest {
        transit: true,
        is_continued: false,
        current_stage: LoginStage::Operational,
        next_stage: LoginStage::FullFeature,
        version_max: 2,
        version_min: 1,
        isid: Isid([0x80, 1, 2, 3, 4, 5]),
        tsih: Tsih(0x0607),
        initiator_task_tag: ITT,
        cid: Cid(0x0809),
        cmd_sn: CMD_SN,
        exp_stat_sn: EXP_STAT_SN,
    };
    initiator(
        InitiatorPdu::LoginRequest(pdu),
        300,
        [
            "43 87 02 01",
            "00 00 01 2c",
            "80 01 02 03",
            "04 05 06 07",
            "a1 a2 a3 a4",
            "08 09 00 00",
            "c1 c2 c3 c4",
            "d1 d2 d3 d4",
            "00 00 00 00",
            "00 00 00 00",
            "00 00 00 00",
            "00 00 00 00",
        ],
    );
}

/// 11.14: byte 1 is 1 and the reason; 20 CID.
#[test]
fn logout_request() {
    let pdu = LogoutRequest {
        immediate: true,
        reason: LogoutReason::CloseConnection,
        initiator_task_tag: ITT,
        cid: Cid(7),
        cmd_sn: CMD_SN,
        exp_stat_sn: EXP_STAT_SN,
    };
    initiator(
        InitiatorPdu::LogoutRequest(pdu),
        0,
        [
            "46 81 00 00",
            "00 00 00 00",
            "00 00 00 00",
            "00 00 00 00",
            "a1 a2 a3 a4",
            "00 07 00 00",
            "c1 c2 c3 c4",
            "d1 d2 d3 d4",
            "00 00 00 00",
            "00 00 00 00",
            "00 00 00 00",
            "00 00 00 00",
        ],
    );
}

/// 11.16: 40 BegRun, 44 RunLength.
#[test]
fn snack_request() {
    let pdu = SnackRequest {
        kind: 1,
        lun: LUN,
        initiator_task_tag: ITT,
        target_transfer_tag: TTT,
        exp_stat_sn: EXP_STAT_SN,
        begin_run: 0x3132_3334,
        run_length: 2,
    };
    initiator(
        InitiatorPdu::SnackRequest(pdu),
        0,
        [
            "10 81 00 00",
            "00 00 00 00",
            "00 05 00 00",
            "00 00 00 00",
            "a1 a2 a3 a4",
            "b1 b2 b3 b4",
            "00 00 00 00",
            "d1 d2 d3 d4",
            "00 00 00 00",
            "00 00 00 00",
            "31 32 33 34",
            "00 00 00 02",
        ],
    );
}

/// 11.18.
#[test]
fn nop_out() {
    let pdu = NopOut {
        immediate: true,
        lun: LUN,
        initiator_task_tag: ITT,
        target_transfer_tag: TTT,
        cmd_sn: CMD_SN,
        exp_stat_sn: EXP_STAT_SN,
    };
    initiator(
        InitiatorPdu::NopOut(pdu),
        5,
        [
            "40 80 00 00",
            "00 00 00 05",
            "00 05 00 00",
            "00 00 00 00",
            "a1 a2 a3 a4",
            "b1 b2 b3 b4",
            "c1 c2 c3 c4",
            "d1 d2 d3 d4",
            "00 00 00 00",
            "00 00 00 00",
            "00 00 00 00",
            "00 00 00 00",
        ],
    );
}

/// 11.4: flags . . . o u O U .; 2 Response, 3 Status, 20 SNACK Tag, 36 ExpDataSN, 40 bidirectional read residual, 44 residual.
/// RFC 7144: 8 Status Qualifier.
#[test]
fn scsi_response() {
    let pdu = ScsiResponse {
        residual: Residual::Underflow(512),
        bidirectional_read_residual: Residual::Overflow(0x700),
        response: 0,
        status: 2,
        status_qualifier: 0x1234,
        initiator_task_tag: ITT,
        snack_tag: 0,
        numbers: NUMBERS,
        exp_data_sn: DataSn(9),
    };
    target(
        TargetPdu::ScsiResponse(pdu),
        20,
        [
            "21 92 00 02",
            "00 00 00 14",
            "12 34 00 00",
            "00 00 00 00",
            "a1 a2 a3 a4",
            "00 00 00 00",
            "e1 e2 e3 e4",
            "f1 f2 f3 f4",
            "01 02 03 04",
            "00 00 00 09",
            "00 00 07 00",
            "00 00 02 00",
        ],
    );
}

/// 11.6: 2 Response. RFC 7144: 8 Additional Response Information.
#[test]
fn task_management_response() {
    let pdu = TaskManagementResponse {
        response: TaskManagementOutcome::FunctionRejected as u8,
        additional: [0x26, 0x29, 0x01],
        initiator_task_tag: ITT,
        numbers: NUMBERS,
    };
    target(
        TargetPdu::TaskManagementResponse(pdu),
        0,
        [
            "22 80 ff 00",
            "00 00 00 00",
            "26 29 01 00",
            "00 00 00 00",
            "a1 a2 a3 a4",
            "00 00 00 00",
            "e1 e2 e3 e4",
            "f1 f2 f3 f4",
            "01 02 03 04",
            "00 00 00 00",
            "00 00 00 00",
            "00 00 00 00",
        ],
    );
}

/// 11.7: flags F A . . . O U S; 3 Status, 36 DataSN, 40 Buffer Offset, 44 residual.
#[test]
fn scsi_data_in() {
    let pdu = ScsiDataIn {
        is_final: true,
        acknowledge: true,
        status: Some(0),
        residual: Residual::Overflow(4),
        lun: LUN,
        initiator_task_tag: ITT,
        target_transfer_tag: TTT,
        numbers: NUMBERS,
        data_sn: DataSn(6),
        buffer_offset: 0x2000,
    };
    target(
        TargetPdu::ScsiDataIn(pdu),
        0x1000,
        [
            "25 c5 00 00",
            "00 00 10 00",
            "00 05 00 00",
            "00 00 00 00",
            "a1 a2 a3 a4",
            "b1 b2 b3 b4",
            "e1 e2 e3 e4",
            "f1 f2 f3 f4",
            "01 02 03 04",
            "00 00 00 06",
            "00 00 20 00",
            "00 00 00 04",
        ],
    );
}

/// 11.8: 36 R2TSN, 40 Buffer Offset, 44 Desired Data Transfer Length.
#[test]
fn ready_to_transfer() {
    let pdu = ReadyToTransfer {
        lun: LUN,
        initiator_task_tag: ITT,
        target_transfer_tag: TTT,
        numbers: NUMBERS,
        r2t_sn: DataSn(1),
        buffer_offset: 0x4_0000,
        desired_length: 0x4_0000,
    };
    target(
        TargetPdu::ReadyToTransfer(pdu),
        0,
        [
            "31 80 00 00",
            "00 00 00 00",
            "00 05 00 00",
            "00 00 00 00",
            "a1 a2 a3 a4",
            "b1 b2 b3 b4",
            "e1 e2 e3 e4",
            "f1 f2 f3 f4",
            "01 02 03 04",
            "00 00 00 01",
            "00 04 00 00",
            "00 04 00 00",
        ],
    );
}

/// 11.9: 16 reserved tag, 36 AsyncEvent, 37 AsyncVCode, 38 Parameter1, 40 Parameter2, 42 Parameter3.
#[test]
fn asynchronous_message() {
    let pdu = AsynchronousMessage {
        lun: LunField::default(),
        numbers: NUMBERS,
        event: 1,
        vendor_code: 0,
        parameters: [0x0a0b, 0x0c0d, 5],
    };
    target(
        TargetPdu::AsynchronousMessage(pdu),
        0,
        [
            "32 80 00 00",
            "00 00 00 00",
            "00 00 00 00",
            "00 00 00 00",
            "ff ff ff ff",
            "00 00 00 00",
            "e1 e2 e3 e4",
            "f1 f2 f3 f4",
            "01 02 03 04",
            "01 00 0a 0b",
            "0c 0d 00 05",
            "00 00 00 00",
        ],
    );
}

/// 11.11: flags F C.
#[test]
fn text_response() {
    let pdu = TextResponse {
        is_final: true,
        is_continued: false,
        lun: LUN,
        initiator_task_tag: ITT,
        target_transfer_tag: TargetTransferTag::RESERVED,
        numbers: NUMBERS,
    };
    target(
        TargetPdu::TextResponse(pdu),
        64,
        [
            "24 80 00 00",
            "00 00 00 40",
            "00 05 00 00",
            "00 00 00 00",
            "a1 a2 a3 a4",
            "ff ff ff ff",
            "e1 e2 e3 e4",
            "f1 f2 f3 f4",
            "01 02 03 04",
            "00 00 00 00",
            "00 00 00 00",
            "00 00 00 00",
        ],
    );
}

/// 11.13: 2 Version-max, 3 Version-active, 8 ISID, 14 TSIH, 36 Status-Class, 37 Status-Detail.
#[test]
fn login_response() {
    let pdu = LoginResponse {
        transit: true,
        is_continued: false,
        current_stage: LoginStage::Security,
        next_stage: LoginStage::Operational,
        version_max: 0,
        version_active: 0,
        isid: Isid([0x80, 1, 2, 3, 4, 5]),
        tsih: Tsih(0x0607),
        initiator_task_tag: ITT,
        numbers: NUMBERS,
        status_class: 2,
        status_detail: 3,
    };
    target(
        TargetPdu::LoginResponse(pdu),
        0,
        [
            "23 81 00 00",
            "00 00 00 00",
            "80 01 02 03",
            "04 05 06 07",
            "a1 a2 a3 a4",
            "00 00 00 00",
            "e1 e2 e3 e4",
            "f1 f2 f3 f4",
            "01 02 03 04",
            "02 03 00 00",
            "00 00 00 00",
            "00 00 00 00",
        ],
    );
}

/// 11.15: 2 Response, 40 Time2Wait, 42 Time2Retain.
#[test]
fn logout_response() {
    let pdu = LogoutResponse {
        response: 1,
        initiator_task_tag: ITT,
        numbers: NUMBERS,
        time2wait_s: 2,
        time2retain_s: 20,
    };
    target(
        TargetPdu::LogoutResponse(pdu),
        0,
        [
            "26 80 01 00",
            "00 00 00 00",
            "00 00 00 00",
            "00 00 00 00",
            "a1 a2 a3 a4",
            "00 00 00 00",
            "e1 e2 e3 e4",
            "f1 f2 f3 f4",
            "01 02 03 04",
            "00 00 00 00",
            "00 02 00 14",
            "00 00 00 00",
        ],
    );
}

/// 11.17: 2 Reason, 16 reserved tag, 36 DataSN or R2TSN.
#[test]
fn reject() {
    let pdu = Reject { reason: RejectReason::ProtocolError as u8, numbers: NUMBERS, data_sn: DataSn(8) };
    target(
        TargetPdu::Reject(pdu),
        48,
        [
            "3f 80 04 00",
            "00 00 00 30",
            "00 00 00 00",
            "00 00 00 00",
            "ff ff ff ff",
            "00 00 00 00",
            "e1 e2 e3 e4",
            "f1 f2 f3 f4",
            "01 02 03 04",
            "00 00 00 08",
            "00 00 00 00",
            "00 00 00 00",
        ],
    );
}

/// 11.19.
#[test]
fn nop_in() {
    let pdu = NopIn {
        lun: LUN,
        initiator_task_tag: InitiatorTaskTag::RESERVED,
        target_transfer_tag: TTT,
        numbers: NUMBERS,
    };
    target(
        TargetPdu::NopIn(pdu),
        0,
        [
            "20 80 00 00",
            "00 00 00 00",
            "00 05 00 00",
            "00 00 00 00",
            "ff ff ff ff",
            "b1 b2 b3 b4",
            "e1 e2 e3 e4",
            "f1 f2 f3 f4",
            "01 02 03 04",
            "00 00 00 00",
            "00 00 00 00",
            "00 00 00 00",
        ],
    );
}
