//! Which commands may end before they are tasks, and what their answers say.

use super::*;

fn read(cmd_sn: u32) -> ScsiCommand {
    ScsiCommand {
        is_final: true,
        read: true,
        expected_data_transfer_length: 512,
        initiator_task_tag: InitiatorTaskTag(cmd_sn),
        cmd_sn: CmdSn(cmd_sn),
        exp_stat_sn: StatSn(1),
        ..ScsiCommand::default()
    }
}

fn write(cmd_sn: u32) -> ScsiCommand {
    ScsiCommand { read: false, write: true, ..read(cmd_sn) }
}

impl Bench {
    fn takes(&self, pdu: &ScsiCommand, data_length: u32) -> bool {
        self.session.takes_at_once(CID, pdu, data_length).is_some()
    }

    fn answer(&mut self, pdu: &ScsiCommand, data_length: usize, length: u32) -> TargetPdu {
        let bhs = pdu.encode(data_length);
        let deliverable = self.session.takes_at_once(CID, pdu, data_length as u32).expect("it is taken");
        let answer = self.session.answer_at_once(self.now, deliverable, (&bhs, pdu), length);
        TargetPdu::decode(&answer.expect("its connection is there")).expect("it is a PDU")
    }
}

/// ExpCmdSN and MaxCmdSN (11.4.10, 11.4.11) count a command that never was a task as they count all others, and so do the
/// residuals (11.4.5).
#[test]
fn a_command_is_numbered_and_answered_as_if_it_had_been_a_task() {
    let mut bench = Bench::new(SessionType::Normal);
    let (_, max_before) = bench.session.command_numbers();
    let pdu = read(1);
    assert!(bench.takes(&pdu, 0));
    let TargetPdu::ScsiDataIn(data) = bench.answer(&pdu, 0, 1024) else { panic!("Data-In with the status") };
    assert_eq!((data.status, data.is_final, data.numbers.stat_sn), (Some(0), true, StatSn(1)));
    assert_eq!(data.residual, lunette_wire::target::Residual::Overflow(512));
    assert_eq!((data.numbers.exp_cmd_sn, data.numbers.max_cmd_sn), (CmdSn(2), max_before.next()));

    let pdu = read(2);
    let TargetPdu::ScsiDataIn(data) = bench.answer(&pdu, 0, 100) else { panic!("Data-In with the status") };
    assert_eq!(data.residual, lunette_wire::target::Residual::Underflow(412));

    let pdu = write(3);
    assert!(bench.takes(&pdu, 512));
    let TargetPdu::ScsiResponse(response) = bench.answer(&pdu, 512, 512) else { panic!("a response") };
    assert_eq!((response.status, response.numbers.stat_sn), (0, StatSn(3)));
    assert_eq!(response.numbers.max_cmd_sn, max_before.plus(3));
    assert_eq!(bench.session.open_tasks(), 0);
    assert!(bench.outbox.events.is_empty() && bench.outbox.pdus.is_empty());
}

/// Who has three under way sends each with what it had seen of the answers to those before (11.3.5).
#[test]
fn statuses_are_unacknowledged_until_a_later_command_has_seen_them() {
    let mut bench = Bench::new(SessionType::Normal);
    assert_eq!(bench.session.unacknowledged_statuses(CID), 0);
    for (cmd_sn, seen, under_way) in [(1, 1, 1), (2, 1, 2), (3, 1, 3), (4, 2, 3), (5, 3, 3), (6, 3, 4)] {
        bench.answer(&ScsiCommand { exp_stat_sn: StatSn(seen), ..read(cmd_sn) }, 0, 512);
        assert_eq!(bench.session.unacknowledged_statuses(CID), under_way, "behind command {cmd_sn}");
    }
    assert_eq!(bench.session.unacknowledged_statuses(Cid(7)), 0, "no connection of the session");
}

/// What the session has to keep, to order, or to reject takes the way of tasks.
#[test]
fn what_has_to_be_a_task_is_not_taken() {
    let mut bench = Bench::new(SessionType::Normal);
    assert!(!bench.takes(&read(2), 0), "an earlier one is missing (4.2.2.1)");
    assert!(!bench.takes(&ScsiCommand { immediate: true, ..read(1) }, 0), "immediate");
    assert!(!bench.takes(&ScsiCommand { write: true, ..read(1) }, 0), "both ways");
    assert!(!bench.takes(&ScsiCommand { read: false, ..read(1) }, 0), "no data");
    assert!(!bench.takes(&write(1), 0), "its data is still to come");
    assert!(!bench.takes(&ScsiCommand { is_final: false, ..write(1) }, 512), "unsolicited data follows");
    assert!(!bench.takes(&read(1), 4), "data where none belongs");
    let reserved = InitiatorTaskTag::RESERVED;
    assert!(!bench.takes(&ScsiCommand { initiator_task_tag: reserved, ..read(1) }, 0), "11.2.1.8");
    assert!(bench.session.takes_at_once(Cid(7), &read(1), 0).is_none(), "no connection of the session");
    assert!(bench.takes(&read(1), 0));

    // A later command waits for this one.
    assert!(bench.command(2).is_some());
    assert!(!bench.takes(&read(1), 0));
    let id = bench.command(1).expect("it is in order");
    assert!(!bench.takes(&ScsiCommand { initiator_task_tag: InitiatorTaskTag(2), ..read(3) }, 0), "the tag");
    assert!(bench.takes(&read(3), 0));
    assert_eq!(bench.session.next_task(), bench.command(3).expect("it is in order"));
    bench.session.complete(id, Completion::status(0), &mut bench.outbox);

    let discovery = Bench::new(SessionType::Discovery);
    assert!(!discovery.takes(&read(1), 0), "4.3");
}

/// A function, a declaration or an end that is under way is settled first (11.5.1, 13.12, 11.14).
#[test]
fn nothing_is_taken_beside_what_is_under_way() {
    let mut bench = Bench::new(SessionType::Normal);
    // It acts on commands that have not come yet.
    bench.manage(TaskManagementFunction::AbortTaskSet, 2, 0x77);
    assert!(!bench.takes(&read(1), 0), "a function waits for it");

    let mut bench = Bench::new(SessionType::Normal);
    bench.session.has_declared(CID, 1024, &mut bench.outbox);
    assert!(!bench.takes(&read(1), 0), "a declaration");

    let mut bench = Bench::new(SessionType::Normal);
    assert!(bench.takes(&read(1), 0));
    bench.session.close(&mut bench.outbox);
    assert!(!bench.takes(&read(1), 0), "the end");
}

/// A session with other parameters than the default ones.
fn session(change: impl FnOnce(&mut SessionParameters)) -> Session<()> {
    let connection = (CID, ConnectionParameters::default(), StatSn(1));
    let mut parameters = SessionParameters::default();
    change(&mut parameters);
    let settings = SessionSettings::default();
    Session::new(SessionType::Normal, parameters, settings, connection, CmdSn(1), Duration::ZERO)
}

/// Above level 0 an answer is kept until it is acknowledged (7.1.4).
#[test]
fn nothing_that_may_have_to_be_recovered_is_taken() {
    let session = session(|of| of.error_recovery_level = 1);
    assert!(session.takes_at_once(CID, &read(1), 0).is_none());
}

/// 13.12, 13.13: the longest data segment that the initiator takes, and the longest sequence.
#[test]
fn what_takes_several_pdus_is_not_taken() {
    let takes = |session: &Session<()>, bytes| {
        let pdu = ScsiCommand { expected_data_transfer_length: bytes, ..read(1) };
        session.takes_at_once(CID, &pdu, 0).is_some()
    };
    let mut in_segments = session(|of| of.max_burst_length = 1 << 20);
    in_segments.set_max_send_data_segment_length(CID, 8195);
    assert!(takes(&in_segments, 8192) && !takes(&in_segments, 8193), "a multiple of four (11.7.7)");
    let mut in_bursts = session(|of| of.max_burst_length = 4096);
    in_bursts.set_max_send_data_segment_length(CID, 1 << 20);
    assert!(takes(&in_bursts, 4096) && !takes(&in_bursts, 4097));
}

/// What was not agreed on (13.11) fails its command, as a task.
#[test]
fn immediate_data_that_was_not_agreed_on_is_not_taken() {
    let session = session(|of| of.immediate_data = false);
    assert!(session.takes_at_once(CID, &read(1), 0).is_some());
    assert!(session.takes_at_once(CID, &write(1), 512).is_none());
}

/// 4.2.2.1.
#[test]
fn a_number_is_early_while_one_before_it_is_missing() {
    let mut bench = Bench::new(SessionType::Normal);
    let (next, last) = bench.session.command_numbers();
    assert!(!bench.session.is_early(next), "it is the next one");
    assert!(bench.session.is_early(next.next()) && bench.session.is_early(last));
    assert!(!bench.session.is_early(last.next()), "outside the window");
    for pdu in [read(next.next().0), read(next.0)] {
        let (now, bhs) = (bench.now, pdu.encode(0));
        bench.session.command(now, CID, (&bhs, &pdu, &[]), 0, &mut bench.outbox).expect("in the window");
        assert!(!bench.session.is_early(pdu.cmd_sn), "it is there already");
    }
    assert!(!bench.session.is_early(next.plus(2)), "the next one, behind the two");
    assert!(bench.session.is_early(next.plus(3)));
}
