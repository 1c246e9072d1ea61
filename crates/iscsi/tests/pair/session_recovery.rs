//! What this crate's initiator session does about losses, one at a time (RFC 7143, chapter 7): digests that are wrong, and
//! connections that break.

use lunette_iscsi::initiator::session::{Abort, AnswerFault, End, Event, Loss, Settings};
use lunette_iscsi::parameters::TargetLimits;
use lunette_iscsi::session::SessionSettings;
use lunette_wire::target::RejectReason;
use lunette_wire::{InitiatorPdu, Opcode, TargetPdu};

use crate::double::BLOCK;
use crate::double::core::{CoreWorld, Losses, NO_LOSSES, Spoiling};

fn world(level: u8, keys: &[(&'static str, &str)]) -> CoreWorld {
    let limits = TargetLimits {
        error_recovery_level: level,
        default_time2retain_s: 60,
        max_recv_data_segment_length: 1024,
        ..TargetLimits::default()
    };
    let settings = SessionSettings { nop_interval: None, ..SessionSettings::default() };
    let mut offer = vec![
        ("ErrorRecoveryLevel", level.to_string()),
        ("DefaultTime2Wait", "0".to_owned()),
        ("DefaultTime2Retain", "60".to_owned()),
        ("DataDigest", "CRC32C".to_owned()),
        ("MaxRecvDataSegmentLength", "1024".to_owned()),
        ("MaxConnections", "4".to_owned()),
    ];
    offer.retain(|(key, _)| !keys.iter().any(|(other, _)| other == key));
    offer.extend(keys.iter().map(|(key, value)| (*key, (*value).to_owned())));
    CoreWorld::new(u64::from(level), limits, settings, offer)
}

/// Data on the disk, to be read.
fn written(world: &mut CoreWorld, blocks: u32) -> Vec<u8> {
    let data = world.rng.bytes(blocks * BLOCK);
    let write = world.write(0, data.clone());
    world.settle();
    world.good(write);
    data
}

fn sent(world: &CoreWorld, opcode: Opcode) -> u32 {
    world.sent.get(&(opcode as u8)).copied().unwrap_or(0)
}

fn is_data_in(pdu: &TargetPdu) -> bool {
    matches!(pdu, TargetPdu::ScsiDataIn(_))
}

#[test]
fn spoilt_data_is_asked_for_and_the_answer_waits_for_it() {
    for which in 0..8 {
        let mut world = world(1, &[]);
        let data = written(&mut world, 16);
        let read = world.read(0, 16);
        world.spoil = Some(Spoiling::incoming(is_data_in, which));
        world.settle();
        assert!(world.spoil.is_none(), "it has come");
        assert_eq!(world.good(read), data);
        // The last of eight PDUs has the status, so that is asked for.
        assert_eq!(sent(&world, Opcode::SnackRequest), 1);
        world.finish();
    }
}

#[test]
fn data_that_is_spoilt_twice_is_asked_for_twice() {
    let mut world = world(1, &[]);
    let data = written(&mut world, 16);
    let read = world.read(0, 16);
    world.exchange();
    world.work();
    while world.send(0) {}
    // Every other one of the eight that come, and again of those that come for them.
    world.losses = Losses { spoilt: 2 };
    while world.receive(0) || world.send(0) {}
    world.losses = NO_LOSSES;
    assert!(sent(&world, Opcode::SnackRequest) > 1);
    world.pass(5);
    world.settle();
    assert_eq!(world.good(read), data);
    world.finish();
}

#[test]
fn at_level_0_spoilt_data_ends_its_task_with_an_error() {
    let mut world = world(0, &[]);
    written(&mut world, 16);
    let (read, other) = (world.read(0, 16), world.read(0, 1));
    world.spoil = Some(Spoiling::incoming(is_data_in, 2));
    world.settle();
    assert!(matches!(world.end(read), End::Faulty(_, AnswerFault::DataDigest)), "{:?}", world.end(read));
    world.good(other);
    assert_eq!(sent(&world, Opcode::TaskManagementRequest), 1, "it was aborted (7.8)");
    assert_eq!(sent(&world, Opcode::SnackRequest), 0);
    world.finish();
}

#[test]
fn spoilt_answers_are_asked_for() {
    let is_answer = |pdu: &TargetPdu| matches!(pdu, TargetPdu::ScsiResponse(_));
    for which in 0..3 {
        let mut world = world(1, &[]);
        let tasks: Vec<_> = (0..3).map(|_| world.test_unit_ready(crate::double::target::NO_UNIT)).collect();
        world.spoil = Some(Spoiling::incoming(is_answer, which));
        world.settle();
        // Nothing shows that the last one is missing but a ping.
        world.pass(5);
        world.settle();
        for task in tasks {
            assert!(matches!(world.end(task), End::Answered(answer) if answer.sense.len() == 18));
        }
        assert_eq!(sent(&world, Opcode::SnackRequest), 1);
        world.finish();
    }
}

#[test]
fn at_level_0_a_spoilt_answer_ends_the_session() {
    let mut world = world(0, &[]);
    let task = world.test_unit_ready(crate::double::target::NO_UNIT);
    world.spoil = Some(Spoiling::incoming(|pdu| matches!(pdu, TargetPdu::ScsiResponse(_)), 0));
    world.settle();
    assert_eq!(world.end(task), &End::Unknown);
    assert_eq!(world.events.last(), Some(&Event::SessionLost { loss: Loss::DataDigest("SCSI Response") }));
}

#[test]
fn a_command_whose_data_was_spoilt_is_sent_again() {
    for level in [0, 1] {
        for unsolicited in ["Yes", "No"] {
            let mut world = world(level, &[("InitialR2T", unsolicited)]);
            let data = world.rng.bytes(16 * BLOCK);
            let write = world.write(0, data.clone());
            let behind = world.write(100, vec![7; 512]);
            let is_command = |pdu: &InitiatorPdu| matches!(pdu, InitiatorPdu::ScsiCommand(_));
            world.spoil = Some(Spoiling::outgoing(is_command, 0));
            world.settle();
            world.good(write);
            world.good(behind);
            let reason = RejectReason::DataDigestError as u8;
            let rejected =
                |event: &&Event| matches!(event, Event::Rejected { reason: of, .. } if *of == reason);
            assert!(world.events.iter().any(|event| rejected(&event)));
            assert_eq!(world.target.disk()[..data.len()], data);
            world.finish();
        }
    }
}

#[test]
fn data_out_that_was_spoilt_is_asked_for_by_the_target() {
    for which in 0..3 {
        let mut world = world(1, &[("InitialR2T", "Yes"), ("ImmediateData", "No")]);
        let data = world.rng.bytes(16 * BLOCK);
        let write = world.write(0, data.clone());
        world.spoil = Some(Spoiling::outgoing(|pdu| matches!(pdu, InitiatorPdu::ScsiDataOut(_)), which));
        world.settle();
        world.pass(60);
        world.settle();
        world.good(write);
        assert_eq!(world.target.disk()[..data.len()], data);
        world.finish();
    }
}

#[test]
fn a_broken_connections_tasks_go_on_over_another() {
    let mut world = world(2, &[]);
    world.join();
    let data = written(&mut world, 64);
    // Several on each: some have not left, some wait for the disk, some have half their data.
    let reads: Vec<_> = (0..8).map(|_| world.read(0, 64)).collect();
    let writes: Vec<_> = (0..8).map(|at| world.write(100 + 8 * at, vec![at as u8; 4096])).collect();
    for _ in 0..3 {
        world.send(0);
        world.send(1);
        world.work();
        world.receive(0);
        world.receive(0);
    }
    world.break_link(0);
    world.settle();
    for read in reads {
        assert_eq!(world.good(read), data);
    }
    for (at, write) in writes.into_iter().enumerate() {
        world.good(write);
        let start = (100 + 8 * at) * BLOCK as usize;
        assert_eq!(world.target.disk()[start..start + 4096], [at as u8; 4096]);
    }
    assert_eq!(sent(&world, Opcode::LogoutRequest), 1, "it was removed for recovery");
    assert!(sent(&world, Opcode::TaskManagementRequest) > 0, "tasks were reassigned");
    assert_eq!(world.session.lost_connections().next(), None);
    world.finish();
}

#[test]
fn the_only_connection_is_reinstated_and_its_tasks_go_on() {
    let mut world = world(2, &[]);
    let data = written(&mut world, 64);
    let (first, second) = (world.read(0, 64), world.write(100, vec![9; 8192]));
    world.exchange();
    world.break_link(0);
    let late = world.read(0, 1);
    assert!(world.session.is_waiting(late), "there is no connection");
    world.pass(50);
    assert!(world.events.iter().all(|event| !matches!(event, Event::SessionLost { .. })));
    world.reinstate();
    world.settle();
    assert_eq!(world.good(first), data);
    assert_eq!(world.good(late), &data[..512]);
    world.good(second);
    assert_eq!(sent(&world, Opcode::LogoutRequest), 0, "the login was one");
    world.finish();
}

#[test]
fn a_connection_that_does_not_come_back_in_time_ends_the_session() {
    let mut world = world(2, &[]);
    let read = world.read(0, 1);
    world.send(0);
    world.break_link(0);
    // Time2Wait is 0, Time2Retain 60 seconds; the first look at the clock begins them.
    world.pass(60);
    assert!(!world.session.is_over());
    assert_eq!(world.session.next_deadline(), Some(world.now + std::time::Duration::from_secs(1)));
    world.pass(1);
    assert_eq!(world.end(read), &End::Unknown);
    assert_eq!(world.events.last(), Some(&Event::SessionLost { loss: Loss::NotRecovered }));
}

#[test]
fn nothing_is_recovered_before_the_time_to_wait() {
    let mut world = world(2, &[("DefaultTime2Wait", "3")]);
    world.join();
    let reads = [world.read(0, 8), world.read(0, 8)];
    world.send(0);
    world.send(1);
    world.break_link(0);
    // The first look at the clock begins the wait.
    world.pass(3);
    assert_eq!(sent(&world, Opcode::LogoutRequest), 0);
    world.pass(1);
    world.settle();
    assert_eq!(sent(&world, Opcode::LogoutRequest), 1);
    for read in reads {
        assert_eq!(world.good(read).len(), 4096);
    }
    world.finish();
}

#[test]
fn a_dropped_connection_is_announced_on_another() {
    let mut world = world(2, &[]);
    world.join();
    let read = world.read(0, 8);
    let other = world.read(0, 8);
    world.exchange();
    // The target loses it; this side has heard nothing.
    world.target.disconnect(world.links[0].wire);
    world.settle();
    world.good(read);
    world.good(other);
    let connection = world.links[0].id;
    assert!(world.events.contains(&Event::ConnectionFailed { connection, loss: Loss::Dropped }));
    world.finish();
}

#[test]
fn a_task_that_lacks_data_is_given_up_when_it_is_aborted() {
    let mut world = world(1, &[]);
    written(&mut world, 16);
    let read = world.read(0, 16);
    world.exchange();
    world.work();
    world.spoil = Some(Spoiling::incoming(is_data_in, 3));
    while world.receive(0) {}
    let done = world.session.abort(world.now, read, &mut world.outbox).unwrap();
    assert_eq!(done, Abort::Done);
    world.look();
    assert!(matches!(world.end(read), End::Faulty(_, AnswerFault::DataMissing { .. })));
    world.finish();
}

#[test]
fn statuses_are_acknowledged_when_their_data_is_there() {
    let mut world = world(1, &[]);
    written(&mut world, 16);
    let own = Settings::default();
    let read = world.read(0, 16);
    world.exchange();
    world.work();
    world.spoil = Some(Spoiling::incoming(is_data_in, 3));
    while world.receive(0) {}
    let (id, before) = (world.links[0].id, world.last_exp_stat_sn);
    world.session.nop(world.now, id, b"").unwrap();
    // A SNACK and the ping: neither acknowledges the read's status (7.9).
    while world.send(0) {}
    assert_eq!(world.last_exp_stat_sn, before);
    world.settle();
    world.good(read);
    world.session.nop(world.now + own.nop_timeout, id, b"").unwrap();
    world.settle();
    assert!(before.precedes(world.last_exp_stat_sn));
    world.finish();
}
