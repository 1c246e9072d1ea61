//! This crate's initiator session against its target: transfers, pings, text, task management, logout.

use lunette_iscsi::initiator::session::{Abort, Command, End, Event, Function, Logout, Notice, Settings};
use lunette_iscsi::parameters::TargetLimits;
use lunette_iscsi::session::SessionSettings;
use lunette_wire::initiator::TaskManagementFunction;
use lunette_wire::target::Residual;
use lunette_wire::{LunField, Opcode};

use crate::double::BLOCK;
use crate::double::core::{CoreWorld, Offer};
use crate::double::initiator::cdb;
use crate::double::target::{NO_UNIT, READ_10, UNIT, WRITE_10};

fn offer(keys: &[(&'static str, &str)]) -> Offer {
    keys.iter().map(|(key, value)| (*key, (*value).to_owned())).collect()
}

fn world(seed: u64, keys: &[(&'static str, &str)]) -> CoreWorld {
    CoreWorld::new(seed, TargetLimits::default(), SessionSettings::default(), offer(keys))
}

fn write_and_read(world: &mut CoreWorld, block: u32, blocks: u32) {
    let data = world.rng.bytes(blocks * BLOCK);
    let written = world.write(block, data.clone());
    world.settle();
    world.good(written);
    let read = world.read(block, blocks);
    world.settle();
    assert_eq!(world.good(read), data);
}

#[test]
fn every_mix_of_initial_r2t_and_immediate_data() {
    for initial_r2t in ["Yes", "No"] {
        for immediate_data in ["Yes", "No"] {
            for first_burst in ["512", "4096", "65536"] {
                for segment in [512, 1000, 8192] {
                    let keys = [
                        ("InitialR2T", initial_r2t),
                        ("ImmediateData", immediate_data),
                        ("FirstBurstLength", first_burst),
                        ("MaxBurstLength", "10000"),
                        ("MaxOutstandingR2T", "3"),
                    ];
                    let limits =
                        TargetLimits { max_recv_data_segment_length: segment, ..TargetLimits::default() };
                    let mut world = CoreWorld::new(7, limits, SessionSettings::default(), offer(&keys));
                    for blocks in [1, 2, 3, 9, 64, 200] {
                        write_and_read(&mut world, 100, blocks);
                    }
                    world.finish();
                }
            }
        }
    }
}

#[test]
fn digests_cover_every_pdu() {
    for (header, data) in [("CRC32C", "None"), ("None", "CRC32C"), ("CRC32C", "CRC32C")] {
        let mut world = world(2, &[("HeaderDigest", header), ("DataDigest", data)]);
        write_and_read(&mut world, 5, 200);
        world.finish();
    }
}

#[test]
fn a_write_within_the_first_burst_needs_no_r2t() {
    for (initial_r2t, immediate_data, data_outs) in [("No", "Yes", 0), ("No", "No", 1), ("Yes", "Yes", 0)] {
        let keys =
            [("InitialR2T", initial_r2t), ("ImmediateData", immediate_data), ("FirstBurstLength", "8192")];
        let mut world = world(3, &keys);
        let write = world.write(0, vec![1; 8192]);
        // Nothing of the target's has come yet.
        while world.send(0) {}
        let sent = world.sent.get(&(Opcode::ScsiDataOut as u8)).copied().unwrap_or(0);
        assert_eq!(sent, data_outs, "{initial_r2t} {immediate_data}");
        world.settle();
        world.good(write);
        world.finish();
    }
}

#[test]
fn residuals_of_reads_and_writes() {
    let mut world = CoreWorld::plain(8);
    let mut read = |blocks, read_length| {
        let cdb = cdb(READ_10, 0, blocks);
        world.submit(&Command { lun: UNIT, cdb: &cdb, read_length, ..Command::default() }, Vec::new())
    };
    let reads = [
        (read(2, 512), Residual::Overflow(512), 512),
        (read(2, 4096), Residual::Underflow(3072), 1024),
        (read(1, 100), Residual::Overflow(412), 100),
        (read(1, 0), Residual::Overflow(512), 0),
    ];
    let mut write = |blocks, write_length: u32| {
        let cdb = cdb(WRITE_10, 0, blocks);
        let command = Command { lun: UNIT, cdb: &cdb, write_length, ..Command::default() };
        world.submit(&command, vec![0; write_length as usize])
    };
    let writes =
        [(write(4, 1024), Residual::Overflow(1024), 0), (write(1, 2048), Residual::Underflow(1536), 0)];
    world.settle();
    for (task, residual, received) in reads.into_iter().chain(writes) {
        let End::Answered(answer) = world.end(task) else { panic!("{:?}", world.end(task)) };
        assert_eq!((answer.residual, answer.received), (residual, received));
    }
    world.finish();
}

#[test]
fn a_failed_command_has_its_sense_data() {
    let mut world = CoreWorld::plain(9);
    let failed = world.test_unit_ready(NO_UNIT);
    world.settle();
    let End::Answered(answer) = world.end(failed) else { panic!() };
    assert_eq!((answer.status, answer.sense.len()), (2, 18));
    world.finish();
}

#[test]
fn what_the_window_has_no_room_for_waits_in_order() {
    let limits = TargetLimits { command_window: 3, ..TargetLimits::default() };
    let settings = SessionSettings { window_depth: 3, ..SessionSettings::default() };
    let mut world = CoreWorld::new(10, limits, settings, Vec::new());
    let tasks: Vec<_> = (0..20).map(|block| world.read(block, 1)).collect();
    assert!(!world.session.is_waiting(tasks[2]) && world.session.is_waiting(tasks[3]));
    world.exchange();
    assert_eq!(world.target.operations(), 3);
    world.settle();
    for task in tasks {
        world.good(task);
    }
    world.finish();
}

#[test]
fn pings_measure_the_round_trip_and_come_back_as_they_were() {
    let mut world = CoreWorld::plain(11);
    let id = world.links[0].id;
    assert_eq!(world.session.round_trip(id).unwrap().smoothed(), None);
    let ping = world.session.nop(world.now, id, b"twelve bytes").unwrap();
    while world.send(0) {}
    let trip = std::time::Duration::from_millis(40);
    world.now += trip;
    world.settle();
    assert!(world.events.contains(&Event::Pong { request: ping, is_true: true }));
    assert_eq!(world.session.round_trip(id).unwrap().smoothed(), Some(trip));
    world.finish();
}

#[test]
fn silence_is_pinged_and_a_targets_pings_are_answered() {
    let mut world = CoreWorld::plain(12);
    // Longer than either side waits for an answer.
    world.pass(200);
    assert_eq!(world.events, []);
    assert!(world.sent[&(Opcode::NopOut as u8)] > 30);
    assert_eq!(world.target.closed(0), None);
    world.finish();
}

#[test]
fn a_target_that_says_nothing_is_given_up() {
    let own = Settings::default();
    let mut world = CoreWorld::plain(13);
    let read = world.read(0, 1);
    world.send(0);
    let waiting = world.read(1, 1);
    let deadline = world.session.next_deadline().unwrap();
    assert_eq!(deadline, world.now + own.nop_interval.unwrap());
    world.session.tick(deadline, &mut world.outbox);
    let last = world.session.next_deadline().unwrap();
    assert_eq!(last, deadline + own.nop_timeout);
    world.session.tick(last, &mut world.outbox);
    world.look();
    assert_eq!((world.end(read), world.end(waiting)), (&End::Unknown, &End::NotSent));
    assert!(world.session.is_over() && world.session.next_deadline().is_none());
}

#[test]
fn text_of_several_pdus_is_put_together() {
    let mut world = world(14, &[("MaxRecvDataSegmentLength", "512")]);
    let id = world.links[0].id;
    let request = world.session.text(world.now, id, b"SendTargets=\0").unwrap();
    world.settle();
    let text = world.events.iter().find_map(|event| match event {
        Event::Text { request: of, text } if *of == request => Some(text.clone()),
        _ => None,
    });
    assert!(text.unwrap().starts_with(b"TargetName=iqn.2026-11.io.lunette:disk0\0"));
    world.finish();
}

/// 6.4, 11.9.1 (event 4), 13.12: writes go on while the length of their segments changes; each fits what was declared.
#[test]
fn a_target_declares_another_segment_length_while_writes_go_on() {
    let mut world = world(16, &[("InitialR2T", "Yes"), ("MaxOutstandingR2T", "4")]);
    for bytes in [512, 65536, 1000, 4096] {
        let data: Vec<_> = (0..4).map(|_| world.rng.bytes(40 * BLOCK)).collect();
        let writes: Vec<_> =
            data.iter().enumerate().map(|(at, data)| world.write(40 * at as u32, data.clone())).collect();
        for _ in 0..20 {
            world.step();
        }
        world.target.declare_anew(bytes);
        world.settle();
        for write in writes {
            world.good(write);
        }
        let read = world.read(0, 160);
        world.settle();
        assert_eq!(world.good(read), data.concat());
        let is_told = |event: &Event| matches!(event, Event::Notice { notice, .. } if *notice == Notice::SegmentLength { bytes });
        assert!(world.events.iter().any(is_told));
    }
    world.finish();
}

#[test]
fn a_task_is_aborted_before_and_after_it_has_left() {
    let mut world = CoreWorld::plain(15);
    let (left, stays) = (world.read(0, 1), world.read(1, 1));
    world.exchange();
    let queued = world.read(2, 1);
    let done = world.session.abort(world.now, queued, &mut world.outbox).unwrap();
    assert_eq!(done, Abort::Done);
    let Ok(Abort::Requested(request)) = world.session.abort(world.now, left, &mut world.outbox) else {
        panic!()
    };
    world.exchange();
    world.settle();
    assert_eq!((world.end(queued), world.end(left)), (&End::Aborted, &End::Aborted));
    world.good(stays);
    let function = TaskManagementFunction::AbortTask;
    assert!(world.events.contains(&Event::Managed { request, function, response: 0, additional: [0; 3] }));
    // The number of what never left came alone.
    world.finish();
}

#[test]
fn a_unit_reset_ends_the_tasks_of_its_unit() {
    for reporting in ["RFC3720", "ResponseFence,RFC3720", "FastAbort,ResponseFence,RFC3720"] {
        let keys = [("TaskReporting", reporting), ("InitialR2T", "Yes"), ("ImmediateData", "No")];
        let mut world = world(16, &keys);
        let write = world.write(0, vec![1; 4096]);
        let read = world.read(1, 1);
        let other = world.test_unit_ready(NO_UNIT);
        world.send(0);
        world.send(0);
        // An R2T that is not answered before the function leaves.
        world.receive(0);
        let function = Function::LogicalUnitReset(UNIT);
        world.session.manage(world.now, function, &mut world.outbox).unwrap();
        world.settle();
        let data_outs = world.sent.get(&(Opcode::ScsiDataOut as u8)).copied().unwrap_or(0);
        assert_eq!(data_outs, u32::from(!reporting.starts_with("Fast")), "{reporting}");
        assert_eq!(world.end(write), &End::Aborted);
        assert_eq!(world.end(read), &End::Aborted);
        assert!(matches!(world.end(other), End::Answered(_)));
        write_and_read(&mut world, 0, 8);
        world.finish();
    }
}

#[test]
fn queries_need_the_protocol_level_that_has_them() {
    let mut old = CoreWorld::plain(17);
    let function = Function::QueryTaskSet(UNIT);
    assert!(old.session.manage(old.now, function, &mut old.outbox).is_err());
    let mut world = world(17, &[("iSCSIProtocolLevel", "2")]);
    let read = world.read(0, 1);
    world.exchange();
    world.session.manage(world.now, Function::QueryTask(read), &mut world.outbox).unwrap();
    world.exchange();
    assert!(matches!(world.events[..], [Event::Managed { response: 7, .. }]), "{:?}", world.events);
    world.settle();
    world.good(read);
    world.finish();
}

#[test]
fn a_logout_ends_what_is_under_way_and_sends_nothing_behind_itself() {
    let mut world = CoreWorld::plain(18);
    let read = world.read(0, 1);
    world.exchange();
    world.session.logout(world.now, Logout::Session, &mut world.outbox).unwrap();
    let late = Command { lun: LunField::default(), ..Command::default() };
    assert!(world.session.submit(&late).is_err());
    while world.send(0) {}
    let id = world.links[0].id;
    assert!(world.session.nop(world.now, id, b"").is_err());
    world.settle();
    assert_eq!(world.end(read), &End::LoggedOut);
    assert_eq!(world.events.last(), Some(&Event::SessionEnded));
    assert!(world.session.is_over());
    world.finish();
}

#[test]
fn a_target_that_stops_asks_for_a_logout() {
    let mut world = CoreWorld::plain(19);
    world.target.request_logout(0, std::time::Duration::from_secs(9));
    world.settle();
    let connection = world.links[0].id;
    assert_eq!(world.events, [Event::LogoutRequested { connection, within_s: 9 }]);
    let waits = world.read(0, 1);
    assert!(world.session.is_waiting(waits), "nothing new is sent on it");
    world.session.logout(world.now, Logout::Session, &mut world.outbox).unwrap();
    world.settle();
    assert_eq!(world.end(waits), &End::NotSent);
    assert!(world.session.is_over());
}

#[test]
fn a_lost_connection_ends_the_session_and_says_what_may_have_been_done() {
    let mut world = CoreWorld::plain(20);
    let (done, sent) = (world.read(0, 1), world.write(1, vec![1; 512]));
    world.settle();
    world.good(done);
    let under_way = world.write(1, vec![2; 512]);
    world.send(0);
    let queued = world.write(2, vec![3; 512]);
    world.break_link(0);
    world.good(sent);
    assert_eq!((world.end(under_way), world.end(queued)), (&End::Unknown, &End::NotSent));
    assert!(matches!(world.events.last(), Some(Event::SessionLost { .. })));
}

#[test]
fn connections_share_the_commands_by_their_load() {
    let keys = [("MaxConnections", "4"), ("InitialR2T", "Yes"), ("MaxOutstandingR2T", "4")];
    let mut world = world(21, &keys);
    for _ in 0..3 {
        world.join();
    }
    let data: Vec<_> = (0..12).map(|_| world.rng.bytes(40 * BLOCK)).collect();
    let writes: Vec<_> =
        data.iter().enumerate().map(|(at, data)| world.write(40 * at as u32, data.clone())).collect();
    for link in &world.links {
        assert_eq!(world.session.tasks_on(link.id), 3);
    }
    world.settle();
    for write in writes {
        world.good(write);
    }
    let reads: Vec<_> = (0..12).map(|at| world.read(40 * at, 40)).collect();
    world.settle();
    for (read, data) in reads.into_iter().zip(data) {
        assert_eq!(world.good(read), data);
    }
    world.finish();
}

#[test]
fn one_connection_of_several_leaves() {
    let mut world = world(22, &[("MaxConnections", "3")]);
    world.join();
    world.join();
    let tasks: Vec<_> = (0..9).map(|block| world.read(block, 1)).collect();
    // Three are under way on each connection; the commands of the second have not come when it is logged out.
    world.send(0);
    world.send(2);
    let id = world.links[1].id;
    world.session.logout(world.now, Logout::Connection(id), &mut world.outbox).unwrap();
    let late = world.read(20, 1);
    world.settle();
    assert!(world.events.contains(&Event::LoggedOut { connection: id }));
    assert_eq!(world.up(), [0, 2]);
    let aborted = tasks.iter().filter(|&&task| world.end(task) == &End::Aborted).count();
    assert!(aborted <= 3);
    world.good(late);
    world.join();
    write_and_read(&mut world, 7, 100);
    world.finish();
}
