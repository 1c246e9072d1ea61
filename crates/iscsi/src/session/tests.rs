//! What a session refuses or bounds, with PDUs that a well-behaved initiator does not send. Its ordinary work is tested
//! with an initiator on the other side, in `tests/pair`.

mod at_once;
mod both_ways;
mod declaration;
mod fence;
mod leaving;
mod order;

use lunette_wire::initiator::{
    LogoutRequest, NopOut, ScsiCommand, ScsiDataOut, TaskManagementFunction, TaskManagementRequest,
};
use lunette_wire::target::RejectReason;
use lunette_wire::{Bhs, TargetPdu};

use super::*;

const CID: Cid = Cid(0);
const SECOND: Duration = Duration::from_secs(1);

struct Bench {
    session: Session<()>,
    outbox: Outbox<()>,
    now: Duration,
}

impl Bench {
    fn new(kind: SessionType) -> Self {
        let connection = (CID, ConnectionParameters::default(), StatSn(1));
        let settings = SessionSettings::default();
        let parameters = SessionParameters::default();
        let session = Session::new(kind, parameters, settings, connection, CmdSn(1), Duration::ZERO);
        Self { session, outbox: Outbox::default(), now: Duration::ZERO }
    }

    fn request(&mut self, bhs: &Bhs, data: &[u8]) {
        self.session.request(self.now, CID, bhs, data, &mut self.outbox);
    }

    /// A command without data; `None` when it is not taken.
    fn command(&mut self, cmd_sn: u32) -> Option<TaskId> {
        let initiator_task_tag = InitiatorTaskTag(cmd_sn);
        let pdu = ScsiCommand {
            is_final: true,
            initiator_task_tag,
            cmd_sn: CmdSn(cmd_sn),
            ..ScsiCommand::default()
        };
        let bhs = pdu.encode(0);
        self.session.command(self.now, CID, (&bhs, &pdu, &[]), 0, &mut self.outbox)
    }

    fn manage(&mut self, function: TaskManagementFunction, cmd_sn: u32, tag: u32) {
        self.send_function(true, function, cmd_sn, tag);
    }

    /// As [`Self::manage`], at the turn of its own number.
    fn manage_in_order(&mut self, function: TaskManagementFunction, cmd_sn: u32, tag: u32) {
        self.send_function(false, function, cmd_sn, tag);
    }

    /// As many functions as there may be, numbered from 2: they wait for number 1.
    fn fill_with_functions(&mut self) {
        for cmd_sn in 2..MANAGEMENT_MAX as u32 + 2 {
            self.manage_in_order(TaskManagementFunction::AbortTask, cmd_sn, cmd_sn);
        }
    }

    fn send_function(&mut self, immediate: bool, function: TaskManagementFunction, cmd_sn: u32, tag: u32) {
        let request = TaskManagementRequest {
            immediate,
            function,
            initiator_task_tag: InitiatorTaskTag(tag),
            referenced_task_tag: InitiatorTaskTag::RESERVED,
            lun: LunField::default(),
            cmd_sn: CmdSn(cmd_sn),
            exp_stat_sn: StatSn(1),
            ref_cmd_sn: CmdSn(0),
            exp_data_sn: lunette_wire::DataSn(0),
        };
        self.request(&request.encode(), &[]);
    }

    fn nop(cmd_sn: u32, length: usize) -> Bhs {
        let initiator_task_tag = InitiatorTaskTag(0x1000 + cmd_sn);
        NopOut { initiator_task_tag, cmd_sn: CmdSn(cmd_sn), ..NopOut::default() }.encode(length)
    }

    /// What was sent since the last call.
    fn sent(&mut self) -> Vec<TargetPdu> {
        self.outbox.pdus.drain(..).map(|pdu| TargetPdu::decode(&pdu.bhs).expect("our own PDU")).collect()
    }

    fn tick_after(&mut self, pause: Duration) -> Vec<Event> {
        self.now += pause;
        self.session.tick(self.now, &mut self.outbox);
        std::mem::take(&mut self.outbox.events)
    }
}

fn reject_reasons(pdus: &[TargetPdu]) -> Vec<u8> {
    pdus.iter()
        .filter_map(|pdu| if let TargetPdu::Reject(reject) = pdu { Some(reject.reason) } else { None })
        .collect()
}

#[test]
fn a_discovery_session_takes_text_and_its_end_only() {
    let mut bench = Bench::new(SessionType::Discovery);
    bench.request(&Bench::nop(1, 0), &[]);
    bench.manage(TaskManagementFunction::LogicalUnitReset, 2, 9);
    let refused = RejectReason::CommandNotSupported as u8;
    assert_eq!(reject_reasons(&bench.sent()), [refused, refused]);
    // The number of the refused ping is still to come (7.3).
    let logout = LogoutRequest { cmd_sn: CmdSn(1), ..LogoutRequest::default() };
    bench.request(&logout.encode(), &[]);
    assert!(matches!(bench.sent()[..], [TargetPdu::LogoutResponse(_)]));
    assert!(bench.session.has_ended());
}

#[test]
fn an_idle_discovery_session_ends_without_a_ping() {
    let mut bench = Bench::new(SessionType::Discovery);
    assert!(bench.tick_after(59 * SECOND).is_empty());
    let events = bench.tick_after(SECOND);
    assert!(
        matches!(&events[0], Event::Close { reason: CloseReason::DiscoveryIdle(60_000), .. }),
        "{events:?}"
    );
    assert!(bench.sent().is_empty());
}

#[test]
fn functions_that_wait_for_a_store_are_bounded() {
    let mut bench = Bench::new(SessionType::Normal);
    assert!(bench.command(1).is_some(), "it stays in its store");
    for tag in 0..MANAGEMENT_MAX as u32 {
        bench.manage(TaskManagementFunction::AbortTaskSet, 2, tag);
    }
    assert!(bench.sent().is_empty(), "all wait for the command");
    bench.manage(TaskManagementFunction::AbortTaskSet, 2, 99);
    assert_eq!(reject_reasons(&bench.sent()), [RejectReason::ImmediateCommandReject as u8]);
}

/// 4.2.2.1: numbers give no more room than that; the number of one that is refused is still to come (7.3).
#[test]
fn functions_that_wait_for_their_numbers_are_bounded() {
    let most = MANAGEMENT_MAX as u32;
    let mut bench = Bench::new(SessionType::Normal);
    bench.fill_with_functions();
    assert!(bench.sent().is_empty(), "all wait for number 1");
    let refused = |bench: &mut Bench| {
        bench.manage_in_order(TaskManagementFunction::AbortTask, most + 2, most + 2);
        let reasons = reject_reasons(&bench.sent());
        assert!(reasons.is_empty() || reasons == [RejectReason::LongOperationReject as u8], "{reasons:?}");
        !reasons.is_empty()
    };
    assert!(refused(&mut bench));
    // The connection has its immediate one all the same, and no second one while that waits.
    bench.manage(TaskManagementFunction::AbortTaskSet, 2, 99);
    assert!(bench.sent().is_empty(), "it waits for number 1, too");
    bench.manage(TaskManagementFunction::AbortTaskSet, 2, 100);
    assert_eq!(reject_reasons(&bench.sent()), [RejectReason::ImmediateCommandReject as u8]);
    assert_eq!(bench.session.open_functions(), MANAGEMENT_MAX + 1);
    bench.request(&Bench::nop(1, 0), &[]);
    let answered = |pdu: &TargetPdu| matches!(pdu, TargetPdu::TaskManagementResponse(_));
    assert_eq!(bench.sent().iter().filter(|pdu| answered(pdu)).count(), MANAGEMENT_MAX);
    assert_eq!(bench.session.open_functions(), 1, "the driver works on it");
    assert!(!refused(&mut bench));
    assert_eq!(bench.session.window.exp_cmd_sn(), CmdSn(most + 3));
}

#[test]
fn a_function_that_all_others_wait_for_is_taken() {
    let mut bench = Bench::new(SessionType::Normal);
    bench.fill_with_functions();
    bench.manage_in_order(TaskManagementFunction::AbortTask, 1, 1);
    let sent = bench.sent();
    assert!(reject_reasons(&sent).is_empty());
    let answered = |pdu: &&TargetPdu| matches!(pdu, TargetPdu::TaskManagementResponse(_));
    assert_eq!(sent.iter().filter(answered).count(), MANAGEMENT_MAX + 1);
}

#[test]
fn functions_that_go_with_their_connection_give_their_room_back() {
    let mut bench = Bench::new(SessionType::Normal);
    let other = Cid(1);
    bench.session.parameters.max_connections = 2;
    bench.session.join(bench.now, other, ConnectionParameters::default(), StatSn(1));
    bench.fill_with_functions();
    assert_eq!(bench.session.open_functions(), MANAGEMENT_MAX);
    bench.session.reinstate(CID, StatSn(1), &mut bench.outbox);
    assert_eq!(bench.session.open_functions(), 0);
}

#[test]
fn a_reset_leaves_the_commands_behind_it_alone() {
    let mut bench = Bench::new(SessionType::Normal);
    assert!(bench.command(1).is_some());
    let behind = bench.command(3).expect("it waits for number 2");
    bench.manage(TaskManagementFunction::LogicalUnitReset, 3, 9);
    bench.outbox.events.clear();
    bench.command(2).expect("a command");
    assert!(bench.outbox.events.contains(&Event::Execute(behind)), "{:?}", bench.outbox.events);
}

/// 4.2.3.3, step b: commands before the function count, also those that come after it.
#[test]
fn a_function_waits_for_the_commands_before_it() {
    for function in [TaskManagementFunction::AbortTaskSet, TaskManagementFunction::LogicalUnitReset] {
        let mut bench = Bench::new(SessionType::Normal);
        let first = bench.command(1).expect("in the window");
        bench.manage(function, 3, 9);
        assert!(bench.outbox.events.iter().all(|event| !matches!(event, Event::Manage { .. })));
        let second = bench.command(2).expect("it was missing");
        let aborted = |id| bench.session.task(id).is_some_and(|task| task.aborted);
        assert!(aborted(first) && aborted(second));
        assert!(matches!(bench.outbox.events.last(), Some(Event::Manage { .. })));
    }
}

/// 4.2.3.3, step b, for a reset of the target: what has not come counts as received, and is ignored when it does.
#[test]
fn a_target_reset_plugs_the_numbers_before_it() {
    let mut bench = Bench::new(SessionType::Normal);
    let early = bench.command(2).expect("it waits for number 1");
    bench.manage(TaskManagementFunction::TargetWarmReset, 4, 9);
    assert_eq!(bench.session.window.exp_cmd_sn(), CmdSn(4));
    assert!(bench.session.task(early).is_none_or(|task| task.aborted));
    assert!(bench.command(1).is_none() && bench.command(3).is_none());
    assert!(bench.command(4).is_some());
}

/// What it plugs can deliver a Logout that came before it: then nobody is left to answer.
#[test]
fn a_target_reset_plugs_no_further_than_the_window() {
    let mut bench = Bench::new(SessionType::Normal);
    let last = bench.session.command_numbers().1;
    // Each plugged number moves the window on by one: without a bound this would be two thousand million steps.
    bench.manage(TaskManagementFunction::TargetWarmReset, 1 + 0x7fff_ffff, 9);
    let (exp_cmd_sn, _) = bench.session.command_numbers();
    assert_eq!(exp_cmd_sn, last.next());
    assert!(matches!(bench.outbox.events[..], [Event::Manage { .. }]), "it is carried out all the same");
    assert!(bench.command(exp_cmd_sn.0).is_some(), "and the session goes on");
}

#[test]
fn a_target_reset_behind_a_logout_has_no_effect() {
    let mut bench = Bench::new(SessionType::Normal);
    let logout = LogoutRequest { cmd_sn: CmdSn(2), ..LogoutRequest::default() };
    bench.request(&logout.encode(), &[]);
    assert!(bench.sent().is_empty(), "it waits for number 1");
    bench.manage(TaskManagementFunction::TargetWarmReset, 4, 9);
    assert!(matches!(bench.sent()[..], [TargetPdu::LogoutResponse(_)]));
    assert_eq!(bench.outbox.events.last(), Some(&Event::Ended));
}

/// 7.3: what is rejected was never received; the same number may come again, with something that is taken.
#[test]
fn the_number_of_what_is_rejected_is_still_to_come() {
    let mut bench = Bench::new(SessionType::Normal);
    let first = bench.command(1).expect("in the window");
    let pdu = ScsiCommand {
        is_final: true,
        initiator_task_tag: InitiatorTaskTag(1),
        cmd_sn: CmdSn(2),
        ..ScsiCommand::default()
    };
    let bhs = pdu.encode(0);
    assert_eq!(bench.session.command(bench.now, CID, (&bhs, &pdu, &[]), 0, &mut bench.outbox), None);
    let sent = bench.sent();
    let [TargetPdu::Reject(reject)] = sent[..] else { panic!("one Reject, not {sent:?}") };
    assert_eq!(reject.numbers.exp_cmd_sn, CmdSn(2));
    let behind = bench.command(3).expect("it waits for number 2");
    let again = bench.command(2).expect("under a tag of its own");
    let executed: Vec<_> = bench.outbox.events.iter().collect();
    assert_eq!(executed, [&Event::Execute(first), &Event::Execute(again), &Event::Execute(behind)]);
}

#[test]
fn data_that_waits_for_an_earlier_command_is_bounded() {
    const PIECE: usize = PARKED_BYTES_MAX / 4;
    let mut bench = Bench::new(SessionType::Normal);
    for cmd_sn in 2..6 {
        bench.request(&Bench::nop(cmd_sn, PIECE), &[0; PIECE]);
    }
    assert!(bench.sent().is_empty());
    bench.request(&Bench::nop(6, 1), &[0]);
    assert_eq!(reject_reasons(&bench.sent()), [RejectReason::LongOperationReject as u8]);
    // The missing one comes: all are answered, and there is room again.
    bench.request(&Bench::nop(1, 0), &[]);
    assert_eq!(bench.sent().len(), 5);
    assert_eq!(bench.session.window.exp_cmd_sn(), CmdSn(6));
    bench.request(&Bench::nop(7, PIECE), &[0; PIECE]);
    assert!(bench.sent().is_empty(), "taken, and waits for number 6");
}

#[test]
fn an_initiator_that_is_busy_with_one_long_pdu_is_not_silent() {
    let mut bench = Bench::new(SessionType::Normal);
    bench.tick_after(30 * SECOND);
    assert!(matches!(bench.sent()[..], [TargetPdu::NopIn(_)]));
    bench.session.saw_progress(55 * SECOND, CID);
    assert!(bench.tick_after(30 * SECOND).is_empty());
    // From then on it is silent.
    bench.tick_after(25 * SECOND);
    assert!(matches!(bench.sent()[..], [TargetPdu::NopIn(_)]));
    assert!(!bench.tick_after(30 * SECOND).is_empty());
    let sent = bench.sent();
    assert!(matches!(sent[..], [TargetPdu::AsynchronousMessage(message)] if message.event == 3), "{sent:?}");
}

#[test]
fn an_overdue_logout_says_how_long_there_was() {
    let mut bench = Bench::new(SessionType::Normal);
    bench.session.request_logout(bench.now, 5 * SECOND, &mut bench.outbox);
    let events = bench.tick_after(6 * SECOND);
    assert!(
        matches!(&events[0], Event::Close { reason: CloseReason::LogoutOverdue(5000), .. }),
        "{events:?}"
    );
    let sent = bench.sent();
    let [TargetPdu::AsynchronousMessage(request), TargetPdu::AsynchronousMessage(drop)] = sent[..] else {
        panic!("the request and the drop, not {sent:?}")
    };
    assert_eq!((request.event, drop.event), (1, 3));
}

/// 11.4.11: a command that another session's reset took away gives its place back, and its initiator, who gets no
/// answer, is told.
#[test]
fn a_window_that_moves_without_an_answer_is_told() {
    let mut bench = Bench::new(SessionType::Normal);
    let id = bench.command(1).expect("in the window");
    let before = bench.session.window.max_cmd_sn();
    bench.outbox = Outbox::default();
    assert_eq!(bench.session.abort_tasks(None, &[], false, &mut bench.outbox), [id]);
    assert!(bench.sent().is_empty(), "it is still in its store");
    let ended =
        Completion { status: 0, status_qualifier: 0, sense: &[], transfer: Transfer::None, fenced: false };
    bench.session.complete(id, ended, &mut bench.outbox);
    let sent = bench.sent();
    let [TargetPdu::NopIn(notice)] = sent[..] else { panic!("one NOP-In, not {sent:?}") };
    assert_eq!(notice.target_transfer_tag, TargetTransferTag::RESERVED);
    assert_eq!(notice.numbers.max_cmd_sn, before.next());
}

/// An initiator that answers pings may leave the answers to its reads where they are: others are not to wait so long.
#[test]
fn reads_that_others_wait_for_have_a_limit() {
    let mut bench = Bench::new(SessionType::Normal);
    let say = |bench: &mut Bench, do_wait| {
        bench.session.others_wait_for_reads(bench.now, do_wait, &mut bench.outbox);
    };
    say(&mut bench, true);
    bench.now += 29 * SECOND;
    say(&mut bench, true);
    say(&mut bench, false);
    bench.now += SECOND;
    say(&mut bench, true);
    bench.now += 29 * SECOND;
    say(&mut bench, true);
    assert!(bench.outbox.events.is_empty(), "they did not wait all the time");
    bench.now += SECOND;
    say(&mut bench, true);
    let events = std::mem::take(&mut bench.outbox.events);
    assert!(
        matches!(events[..], [Event::Close { reason: CloseReason::ReadsOverdue(30_000), .. }, Event::Ended]),
        "{events:?}"
    );
    assert!(matches!(bench.sent()[..], [TargetPdu::AsynchronousMessage(_)]), "it is told (11.9.1)");
}

/// An initiator that answers pings may owe data for ever: others are not to wait so long (7.1.4.4).
#[test]
fn data_that_others_wait_for_has_a_limit() {
    let mut bench = Bench::new(SessionType::Normal);
    let pdu = ScsiCommand {
        is_final: true,
        write: true,
        expected_data_transfer_length: 512,
        initiator_task_tag: InitiatorTaskTag(1),
        cmd_sn: CmdSn(1),
        ..ScsiCommand::default()
    };
    let taken = bench.session.command(bench.now, CID, (&pdu.encode(0), &pdu, &[]), 0, &mut bench.outbox);
    let id = taken.expect("a command");
    bench.session.others_wait(bench.now, id, true, &mut bench.outbox);
    bench.now += 60 * SECOND;
    bench.session.others_wait(bench.now, id, true, &mut bench.outbox);
    // Until data is asked for, the task is not its initiator's affair.
    assert!(matches!(bench.outbox.events[..], [Event::Execute(_)]));
    bench.session.solicit(id, 512, &mut bench.outbox);
    assert!(matches!(bench.sent()[..], [TargetPdu::ReadyToTransfer(_)]));
    bench.outbox.events.clear();
    bench.session.others_wait(bench.now, id, true, &mut bench.outbox);
    bench.now += 29 * SECOND;
    bench.session.others_wait(bench.now, id, true, &mut bench.outbox);
    bench.session.others_wait(bench.now, id, false, &mut bench.outbox);
    bench.now += SECOND;
    bench.session.others_wait(bench.now, id, true, &mut bench.outbox);
    bench.now += 29 * SECOND;
    bench.session.others_wait(bench.now, id, true, &mut bench.outbox);
    assert!(bench.outbox.events.is_empty(), "they did not wait all the time");
    bench.now += SECOND;
    bench.session.others_wait(bench.now, id, true, &mut bench.outbox);
    let events = std::mem::take(&mut bench.outbox.events);
    assert!(
        matches!(
            events[..],
            [Event::Close { reason: CloseReason::DataOverdue(30_000), .. }, Event::Dropped(_), Event::Ended]
        ),
        "{events:?}"
    );
    assert!(matches!(bench.sent()[..], [TargetPdu::AsynchronousMessage(_)]), "it is told (11.9.1)");
    bench.session.others_wait(bench.now, id, true, &mut bench.outbox);
    assert!(bench.outbox.events.is_empty(), "the task has gone");
}

#[test]
fn what_comes_by_itself_need_not_be_solicited() {
    let mut bench = Bench::new(SessionType::Normal);
    let mut command = |cmd_sn: u32, is_final: bool, immediate: u32| {
        let pdu = ScsiCommand {
            is_final,
            write: true,
            expected_data_transfer_length: 100_000,
            initiator_task_tag: InitiatorTaskTag(cmd_sn),
            cmd_sn: CmdSn(cmd_sn),
            ..ScsiCommand::default()
        };
        let bhs = pdu.encode(immediate as usize);
        bench.session.command(bench.now, CID, (&bhs, &pdu, &[]), immediate, &mut bench.outbox)
    };
    let [immediate, none, announced] = [(1, true, 1000), (2, true, 0), (3, false, 1000)]
        .map(|(cmd_sn, is_final, bytes)| command(cmd_sn, is_final, bytes).expect("a command"));
    let to_solicit = |id, wanted| bench.session.bytes_to_solicit(id, wanted);
    assert_eq!((to_solicit(immediate, 100_000), to_solicit(immediate, 1000)), (99_000, 0));
    assert_eq!((to_solicit(none, 100_000), to_solicit(none, u32::MAX)), (100_000, 100_000));
    // FirstBurstLength is 65,536.
    assert_eq!(to_solicit(announced, 100_000), 34_464);
}

/// What the driver had no room for must not end with GOOD, though its sequence is complete.
#[test]
fn data_that_was_lost_spoils_its_command() {
    let mut bench = Bench::new(SessionType::Normal);
    let pdu = ScsiCommand {
        write: true,
        expected_data_transfer_length: 512,
        initiator_task_tag: InitiatorTaskTag(1),
        cmd_sn: CmdSn(1),
        ..ScsiCommand::default()
    };
    bench.session.parameters.initial_r2t = false;
    let taken = bench.session.command(bench.now, CID, (&pdu.encode(0), &pdu, &[]), 0, &mut bench.outbox);
    let id = taken.expect("a command");
    bench.session.solicit(id, 512, &mut bench.outbox);
    bench.outbox.events.clear();
    let data = ScsiDataOut {
        is_final: true,
        initiator_task_tag: InitiatorTaskTag(1),
        target_transfer_tag: TargetTransferTag::RESERVED,
        ..ScsiDataOut::default()
    };
    assert_eq!(bench.session.locate_data_out(CID, &data, 512), Placement::Task { id, offset: 0 });
    bench.session.data_out_lost(id);
    let header = data.encode(512);
    bench.session.data_out_arrived(bench.now, CID, (&header, &data), 512, true, &mut bench.outbox);
    let events = std::mem::take(&mut bench.outbox.events);
    assert!(matches!(events[..], [Event::Spoilt { asc: 0x44, ascq: 0, .. }]), "{events:?}");
}
