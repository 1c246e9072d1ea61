//! Several connections of one session (RFC 7143, 4.2.2.1, 4.2.3.3, 4.2.5.1): they share the numbers and keep their tasks to
//! themselves. With two reactors every second one has to move to its session's.

mod joining;
mod leaving;
mod overtaking;
mod random;

use lunette_block::OperationKind;
use lunette_tests::connection::Connection;
use lunette_tests::in_process::InProcess;
use lunette_tests::initiator::LoginOptions;
use lunette_tests::raw::{BLOCK_BYTES, Raw, read, write};
use lunette_wire::initiator::{
    LoginRequest, LoginStage, LogoutReason, NopOut, ScsiDataOut, TaskManagementFunction as Function,
};
use lunette_wire::target::{LoginResponse, RejectReason};
use lunette_wire::{
    Cid, CmdSn, DataSn, InitiatorPdu, InitiatorTaskTag, Isid, LunField, TargetPdu, TargetTransferTag, text,
};

use crate::{
    A_WHILE, BUS_DEVICE_RESET, COMPLETE, DISK, SECOND_DISK, expect_attention, expect_on_disk, expect_ready,
    pattern,
};

/// Response "connection or session closed successfully", and "CID not found" (11.15.1).
const CLOSED: u8 = 0;
const CID_NOT_FOUND: u8 = 1;

/// One session; its connections have their place for a CID.
pub(crate) struct Session {
    options: LoginOptions,
    links: Vec<Raw>,
}

impl Session {
    /// A session that is ready, with so many connections.
    pub(crate) fn open(target: &InProcess, port: u8, connections: u16) -> Self {
        Self::open_with(target, port, connections, &[("InitialR2T", "No")])
    }

    /// As [`Self::open`], with other keys.
    pub(crate) fn open_with(target: &InProcess, port: u8, connections: u16, keys: &[(&str, &str)]) -> Self {
        Self::open_as(target, target.options_with(port, keys), connections)
    }

    /// As [`Self::open`], with other options.
    pub(crate) fn open_as(target: &InProcess, mut options: LoginOptions, connections: u16) -> Self {
        options.keys.push(("MaxConnections".to_owned(), "32".to_owned()));
        let leading = Raw::ready(target.portal(), &options, 0).expect("a leading login");
        let options = LoginOptions { tsih: leading.tsih, keys: Vec::new(), ..options };
        let mut session = Self { options, links: vec![leading] };
        for cid in 1..connections {
            let link = session.join(target, cid).expect("a login that joins");
            session.links.push(link);
        }
        session
    }

    /// The number of the session's next command.
    fn cmd_sn(&self) -> CmdSn {
        let numbers = self.links.iter().map(|link| link.cmd_sn);
        numbers.reduce(|newest, other| if newest.precedes(other) { other } else { newest }).expect("a link")
    }

    fn options(&self, cid: u16) -> LoginOptions {
        LoginOptions { cid: Cid(cid), first_cmd_sn: self.cmd_sn(), ..self.options.clone() }
    }

    fn join(&self, target: &InProcess, cid: u16) -> anyhow::Result<Raw> {
        Raw::login(target.portal(), &self.options(cid))
    }

    /// A connection, which goes on with the session's numbers.
    pub(crate) fn on(&mut self, cid: usize) -> &mut Raw {
        self.links[cid].cmd_sn = self.cmd_sn();
        &mut self.links[cid]
    }

    /// Every connection answers, and has nothing else to say.
    fn all_alive(&mut self) {
        for cid in 0..self.links.len() {
            self.on(cid).silent().expect("alive");
        }
    }

    /// All that came on any connection is acknowledged: no response has to wait for that of another one.
    pub(crate) fn acknowledge_all(&mut self) {
        for cid in 0..self.links.len() {
            self.on(cid).acknowledge(LunField::default()).expect("sent");
        }
        // What a connection has read before its next command has been read from the others, too.
        for cid in 0..self.links.len() {
            self.on(cid).silent().expect("alive");
            self.on(cid).acknowledge(LunField::default()).expect("sent");
        }
    }

    /// All that was sent has been taken in order, and the whole window is open.
    pub(crate) fn expect_open_window(&mut self) {
        self.on(0).silent().expect("alive");
        let (next, link) = (self.cmd_sn(), &self.links[0]);
        assert_eq!(link.exp_cmd_sn(), next, "a number is missing");
        assert_eq!(link.max_cmd_sn(), next.plus(127), "the window has leaked");
    }
}

fn refusal(login: anyhow::Result<Raw>) -> String {
    login.expect_err("a login that must be refused").to_string()
}

/// The next PDU must be a ping of the target's, whose answer acknowledges all that came before it.
fn acknowledge(link: &mut Raw) {
    let (TargetPdu::NopIn(ping), _) = link.receive().expect("a ping") else { panic!("no ping") };
    assert_ne!(ping.target_transfer_tag, TargetTransferTag::RESERVED);
    let answer = NopOut {
        immediate: true,
        lun: ping.lun,
        initiator_task_tag: InitiatorTaskTag::RESERVED,
        target_transfer_tag: ping.target_transfer_tag,
        cmd_sn: link.cmd_sn,
        exp_stat_sn: link.exp_stat_sn,
    };
    link.send(&InitiatorPdu::NopOut(answer), &[]).expect("sent");
}

/// RFC 7143: 4.2.5.1.
#[test]
fn any_command_goes_on_any_connection_and_is_answered_there() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 5);
    let data = pattern(5 * 4 * BLOCK_BYTES);
    for (cid, chunk) in data.chunks(4 * BLOCK_BYTES).enumerate() {
        let tag = session.on(cid).write(0, 4 * cid as u64, chunk).expect("sent");
        session.links[cid].good(tag).expect("a write");
    }
    session.all_alive();
    for cid in (0..5).rev() {
        expect_on_disk(session.on(cid), 0, &data);
    }
    session.all_alive();
    session.expect_open_window();
}

/// RFC 7143: 4.2.2.1.
#[test]
fn commands_run_in_the_order_of_their_numbers_over_all_connections() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 3);
    let first = session.cmd_sn();
    let mut tags = Vec::new();
    for cid in [2, 1, 0] {
        assert_eq!(target.faults(0).calls(OperationKind::Write), 0, "an earlier number is missing");
        let link = &mut session.links[cid];
        link.cmd_sn = first.plus(cid as u32);
        tags.push(link.write(0, cid as u64, &[cid as u8 + 1; BLOCK_BYTES]).expect("sent"));
        if cid > 0 {
            link.waits(A_WHILE).expect("an earlier number is missing");
        }
    }
    for (cid, tag) in tags.into_iter().rev().enumerate() {
        session.links[cid].good(tag).expect("a write");
    }
    expect_on_disk(session.on(0), 0, &[[1; BLOCK_BYTES], [2; BLOCK_BYTES], [3; BLOCK_BYTES]].concat());
    session.expect_open_window();
}

/// RFC 7143: 4.2.5.1.
#[test]
fn data_is_taken_on_the_connection_of_its_command_only() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 2);
    let data = pattern(4 * BLOCK_BYTES);
    let tag = session.on(0).command(&write(0, 0, data.len()), &[]).expect("sent");
    let r2t = session.links[0].r2t(tag).expect("an R2T on the connection of the command");
    let stray = ScsiDataOut {
        is_final: true,
        initiator_task_tag: tag,
        target_transfer_tag: r2t.target_transfer_tag,
        exp_stat_sn: session.links[1].exp_stat_sn,
        data_sn: DataSn(0),
        ..ScsiDataOut::default()
    };
    let stray = InitiatorPdu::ScsiDataOut(stray);
    let other = vec![0xee; data.len()];
    session.links[1].send(&stray, &other).expect("sent");
    let reason = session.links[1].rejected(&stray.encode(other.len())).expect("a Reject");
    assert_eq!(reason, RejectReason::ProtocolError as u8);
    session.links[0].answer_r2t(&r2t, &data, data.len()).expect("sent");
    session.links[0].good(tag).expect("the stray data has harmed nothing");
    expect_on_disk(session.on(1), 0, &data);
    session.expect_open_window();
}

fn login_request(session: &Session, cid: u16, from: LoginStage, to: LoginStage) -> InitiatorPdu {
    InitiatorPdu::LoginRequest(LoginRequest {
        transit: true,
        current_stage: from,
        next_stage: to,
        isid: Isid([0x80, 0x12, 0x34, 0x56, 0, session.options.isid_qualifier]),
        tsih: session.options.tsih,
        cid: Cid(cid),
        cmd_sn: session.cmd_sn(),
        ..LoginRequest::default()
    })
}

fn names(session: &Session) -> Vec<u8> {
    let mut keys = Vec::new();
    text::push(&mut keys, "InitiatorName", &session.options.initiator_name);
    text::push(&mut keys, "TargetName", session.options.target_name.as_deref().expect("a target"));
    keys
}

fn login_response(connection: &mut Connection) -> (LoginResponse, Vec<u8>) {
    match connection.receive().expect("an answer") {
        (TargetPdu::LoginResponse(pdu), data) => (pdu, data),
        (other, _) => panic!("{other:?}"),
    }
}

/// RFC 7143, 4.2.2.1: the answers to a login that joins a session have its command numbers; whoever has another name does not
/// hear them, though it knows TSIH and ISID.
#[test]
fn command_numbers_are_told_to_the_sessions_initiator_alone() {
    const OTHER: CmdSn = CmdSn(0x7000_0000);
    let target = InProcess::start(&[DISK]);
    let session = Session::open(&target, 1, 1);
    let mut stranger = Session { options: session.options.clone(), links: Vec::new() };
    stranger.options.initiator_name.push_str(".other");
    for (who, told) in [(&session, session.cmd_sn()), (&stranger, OTHER)] {
        let InitiatorPdu::LoginRequest(request) =
            login_request(&session, 1, LoginStage::Security, LoginStage::Operational)
        else {
            panic!("a Login Request");
        };
        let mut connection = Connection::open(target.portal()).expect("a connection");
        let request = LoginRequest { cmd_sn: OTHER, ..request };
        connection.send(&InitiatorPdu::LoginRequest(request), &names(who)).expect("sent");
        assert_eq!(login_response(&mut connection).0.numbers.exp_cmd_sn, told);
    }
}

#[test]
fn a_task_is_aborted_from_another_connection() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 2);
    target.hold(0, OperationKind::Read);
    let task = session.on(0).read(0, 0, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 1);
    let ref_cmd_sn = CmdSn(session.cmd_sn().0.wrapping_sub(1));
    let tag = session.on(1).manage_task(Function::AbortTask, 0, task, ref_cmd_sn).expect("sent");
    session.links[1].waits(A_WHILE).expect("the task is in the store");
    target.faults(0).clear();
    assert_eq!(session.links[1].managed(tag).expect("an answer"), COMPLETE);
    session.all_alive();
    session.expect_open_window();
}

/// RFC 7143: 4.2.2.3.4, 4.2.3.3.
#[test]
fn a_reset_ends_the_tasks_of_all_connections() {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let mut session = Session::open(&target, 1, 3);
    session.on(0).make_ready(1).expect("a ready unit");
    target.hold(0, OperationKind::Read);
    for cid in 0..3 {
        session.on(cid).read(0, cid as u64, 1).expect("sent");
    }
    target.wait_for_calls(0, OperationKind::Read, 3);
    let other = session.on(2).read(1, 0, 1).expect("sent");
    session.links[2].data_in(other).expect("the other unit is no concern of this");
    let tag = session.on(1).manage(Function::LogicalUnitReset, 0).expect("sent");
    session.links[1].waits(A_WHILE).expect("tasks are in the store");
    target.faults(0).clear();
    // It has the answer of the other unit, and has not said so; the first one has nothing to acknowledge.
    acknowledge(&mut session.links[2]);
    assert_eq!(session.links[1].managed(tag).expect("an answer"), COMPLETE);
    session.acknowledge_all();
    expect_attention(session.on(2), 0, BUS_DEVICE_RESET);
    expect_ready(session.on(0), 0);
    session.expect_open_window();
}

/// 4.2.3.3, step b, over all connections: a function waits for commands before it wherever they come.
#[test]
fn a_function_waits_for_commands_of_other_connections() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 2);
    let missing = session.cmd_sn();
    session.links[1].cmd_sn = missing.next();
    let tag = session.links[1].manage(Function::AbortTaskSet, 0).expect("sent");
    session.links[1].waits(A_WHILE).expect("a command before it is missing");
    session.links[0].cmd_sn = missing;
    session.links[0].read(0, 0, 1).expect("sent");
    assert_eq!(session.links[1].managed(tag).expect("an answer"), COMPLETE);
    session.all_alive();
    assert_eq!(target.faults(0).calls(OperationKind::Read), 0);
    session.expect_open_window();
}

/// 4.2.3.3, step d, and 11.6.1: who is told that a task set is gone has all the answers that were sent before.
#[test]
fn the_response_to_a_function_on_many_tasks_overtakes_no_answer_of_another_connection() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 3);
    for cid in [0, 2] {
        let tag = session.on(cid).read(0, 0, 1).expect("sent");
        session.links[cid].data_in(tag).expect("a read");
    }
    let tag = session.on(1).manage(Function::AbortTaskSet, 0).expect("sent");
    session.links[1].is_quiet(A_WHILE).expect("two connections have acknowledged nothing");
    acknowledge(&mut session.links[2]);
    session.links[1].is_quiet(A_WHILE).expect("one connection has acknowledged nothing");
    acknowledge(&mut session.links[0]);
    assert_eq!(session.links[1].managed(tag).expect("an answer"), COMPLETE);
    // A connection that leaves will never acknowledge, and is not waited for.
    session.on(2).silent().expect("alive");
    session.on(0).silent().expect("alive");
    let tag = session.on(1).manage(Function::AbortTaskSet, 0).expect("sent");
    acknowledge(&mut session.links[0]);
    session.links[1].is_quiet(A_WHILE).expect("one connection has acknowledged nothing");
    let logout = session.on(1).log_out(LogoutReason::CloseConnection, 2).expect("sent");
    assert_eq!(session.links[1].managed(tag).expect("an answer"), COMPLETE);
    assert_eq!(session.links[1].logged_out(logout).expect("an answer"), CLOSED);
}

/// RFC 7143: 4.2.2.1.
#[test]
fn every_connection_may_have_an_immediate_command_open() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 2);
    target.hold(0, OperationKind::Read);
    let immediate = lunette_wire::initiator::ScsiCommand { immediate: true, ..read(0, 0, 1) };
    let first: Vec<_> = (0..32).map(|_| session.on(0).command(&immediate, &[]).expect("sent")).collect();
    session.links[0].silent().expect("they are taken");
    let second = session.on(1).command(&immediate, &[]).expect("sent");
    session.links[1].silent().expect("it is taken, though the session has its 32");
    let command = session.on(1).number(&immediate);
    session.links[1].send(&InitiatorPdu::ScsiCommand(command), &[]).expect("sent");
    let reason = session.links[1].rejected(&InitiatorPdu::ScsiCommand(command).encode(0)).expect("a Reject");
    assert_eq!(reason, RejectReason::ImmediateCommandReject as u8);
    target.faults(0).clear();
    session.links[1].data_in(second).expect("a read");
    for _ in first {
        let (TargetPdu::ScsiDataIn(pdu), _) = session.links[0].receive().expect("a read") else {
            panic!("no data")
        };
        assert_eq!(pdu.status, Some(0));
    }
}
