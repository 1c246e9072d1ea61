//! Lives of connections and sessions (RFC 7143, 6.3.5, 7.1.4.4, 11.9, 11.14, 11.18, 11.19 and appendix C): keepalive,
//! logout, reinstatement, loss, discovery.

use std::time::Duration;

use lunette_iscsi::parameters::TargetLimits;
use lunette_iscsi::session::SessionSettings;
use lunette_wire::Isid;
use lunette_wire::target::RejectReason;

use crate::double::World;
use crate::double::initiator::{End, Wish};

/// A world in which the target pings after 5 s of silence and waits 3 s for the answer.
fn watchful() -> World {
    let settings = SessionSettings {
        nop_interval: Some(Duration::from_secs(5)),
        nop_timeout: Duration::from_secs(3),
        ..SessionSettings::default()
    };
    let mut world = World::new(70, TargetLimits::default(), settings);
    world.connect(Wish::default());
    world
}

#[test]
fn a_silent_initiator_is_pinged_and_lives_if_it_answers() {
    let mut world = watchful();
    world.pass(60);
    assert!(world.target.closed(0).is_none());
    assert!((8..=12).contains(&world.initiator().pings), "{} pings", world.initiator().pings);
    world.finish();
}

#[test]
fn an_initiator_that_answers_no_ping_is_dropped_with_its_session() {
    let mut world = watchful();
    world.initiator().manners.answers_pings = false;
    world.initiator().read(0, 1);
    world.exchange();
    world.pass(7);
    assert!(world.target.closed(0).is_none());
    world.pass(3);
    assert!(world.target.closed(0).is_some_and(|reason| reason.contains("NOP-In")));
    assert_eq!(world.initiator().pings, 1);
    world.initiator().give_up();
    world.finish();
    assert!(world.target.session(0).unwrap().has_ended());
}

#[test]
fn an_initiator_that_talks_is_not_pinged() {
    let mut world = watchful();
    for _ in 0..30 {
        world.initiator().ping(true, Vec::new());
        world.pass(2);
    }
    assert_eq!(world.initiator().pings, 0);
    world.finish();
}

#[test]
fn any_pdu_stands_for_the_answer_to_a_ping() {
    let mut world = watchful();
    world.initiator().manners.answers_pings = false;
    for _ in 0..10 {
        world.pass(6);
        world.initiator().test_unit_ready();
        world.settle();
    }
    assert!(world.target.closed(0).is_none());
    assert!(world.initiator().pings > 0);
    world.finish();
}

#[test]
fn without_an_interval_nobody_is_pinged() {
    let settings = SessionSettings { nop_interval: None, ..SessionSettings::default() };
    let mut world = World::new(71, TargetLimits::default(), settings);
    world.connect(Wish::default());
    world.pass(1000);
    assert_eq!(world.initiator().pings, 0);
    assert!(world.target.closed(0).is_none());
}

#[test]
fn a_ping_is_echoed_as_far_as_the_initiator_takes_it() {
    let mut world = World::with(72, Wish { max_recv_data_segment_length: 512, ..Wish::default() });
    for length in [0, 1, 511, 512, 513, 5000] {
        let data = world.rng.bytes(length);
        world.initiator().ping(true, data.clone());
        world.initiator().ping(false, data);
    }
    world.finish();
}

#[test]
fn a_logout_closes_an_idle_session() {
    let mut world = World::with(73, Wish::default());
    world.initiator().log_out();
    world.settle();
    assert!(world.initiator().logged_out);
    assert_eq!(world.target.closed(0), Some("the initiator logged out"));
    assert!(world.target.session(0).unwrap().has_ended());
    world.finish();
}

#[test]
fn a_logout_with_commands_outstanding_waits_for_the_store_and_answers_nothing_else() {
    let wish = Wish { initial_r2t: true, immediate_data: false, ..Wish::default() };
    let mut world = World::with(74, wish);
    world.initiator().manners.answers_r2ts = false;
    let stored = world.initiator().read(0, 1);
    let collecting = world.initiator().write(0, vec![0xee; 4096]);
    world.exchange();
    world.initiator().log_out();
    world.exchange();
    assert!(!world.initiator().logged_out, "a read is still in the store");
    world.settle();
    assert!(world.initiator().logged_out);
    assert_eq!(world.initiators[0].ends[&stored], End::Aborted);
    assert_eq!(world.initiators[0].ends[&collecting], End::Aborted);
    world.finish();
}

#[test]
fn a_command_behind_a_logout_is_rejected() {
    let mut world = World::with(75, Wish::default());
    world.initiator().read(0, 1);
    world.exchange();
    world.initiator().log_out();
    let late = world.initiator().read(0, 1);
    world.exchange();
    assert_eq!(world.initiator().rejects, [RejectReason::WaitingForLogout as u8]);
    world.initiator().conclude(late);
    world.finish();
}

#[test]
fn an_initiator_that_is_asked_to_log_out_can_do_so() {
    let mut world = World::with(76, Wish::default());
    world.pass(1);
    world.target.request_logout(0, Duration::from_secs(5));
    world.exchange();
    assert_eq!(world.initiator().logout_requests, 1);
    // What it had begun goes on until then.
    let read = world.initiator().read(0, 1);
    world.settle();
    world.initiators[0].good(read);
    world.initiator().log_out();
    world.settle();
    world.pass(10);
    assert_eq!(world.target.closed(0), Some("the initiator logged out"));
    world.finish();
}

#[test]
fn an_initiator_that_does_not_log_out_when_asked_is_dropped() {
    let mut world = World::with(77, Wish::default());
    world.pass(1);
    world.target.request_logout(0, Duration::from_secs(5));
    world.pass(4);
    assert!(world.target.closed(0).is_none());
    world.pass(2);
    assert!(world.target.closed(0).is_some_and(|reason| reason.contains("no logout")));
    world.initiator().give_up();
    world.finish();
    assert!(world.target.session(0).unwrap().has_ended());
}

#[test]
fn a_session_is_reinstated_only_when_the_old_one_has_no_task_left() {
    let mut world = World::with(78, Wish::default());
    let old = world.initiator().write(0, vec![0x11; 512]);
    world.exchange();
    assert_eq!(world.target.operations(), 1);
    // The same initiator port comes again.
    let index = world.start(Wish::default());
    world.initiators[0].give_up();
    world.exchange();
    assert!(world.target.closed(0).is_some());
    assert!(!world.initiators[index].is_logged_in(), "an old write could still overtake a new one");
    assert!(world.work());
    world.exchange();
    assert!(world.initiators[index].is_logged_in());
    assert_eq!(world.initiators[0].ends[&old], End::Aborted);
    let new = world.initiators[index].write(0, vec![0x22; 512]);
    world.settle();
    world.initiators[index].good(new);
    assert_eq!(world.target.disk()[..512], [0x22; 512]);
    world.finish();
}

#[test]
fn sessions_of_other_initiator_ports_are_independent() {
    let mut world = World::with(79, Wish::default());
    let read = world.initiator().read(0, 1);
    world.exchange();
    let other = world.start(Wish { isid: Isid([0x80, 0, 0, 0, 0, 2]), ..Wish::default() });
    world.exchange();
    assert!(world.initiators[other].is_logged_in());
    assert!(world.target.closed(0).is_none());
    world.settle();
    world.initiators[0].good(read);
    world.finish();
}

#[test]
fn a_lost_connection_takes_its_session_along_when_the_store_is_done() {
    let mut world = World::with(80, Wish { immediate_data: false, ..Wish::default() });
    for block in 0..10 {
        world.initiator().write(block, vec![1; 512]);
        world.initiator().read(block, 1);
    }
    for _ in 0..13 {
        world.send(0);
    }
    world.target.disconnect(0);
    world.initiator().give_up();
    assert!(!world.target.session(0).unwrap().has_ended());
    world.settle();
    assert!(world.target.session(0).unwrap().has_ended());
    world.finish();
}

#[test]
fn a_discovery_session_finds_targets_and_does_nothing_else() {
    let mut world = World::with(81, Wish { discovery: true, ..Wish::default() });
    world.initiator().text(b"SendTargets=All\0");
    world.settle();
    let expected = b"TargetName=iqn.2026-11.io.lunette:disk0\0TargetAddress=127.0.0.1:3260,1\0";
    assert_eq!(world.initiator().texts, expected);
    let read = world.initiator().read(0, 1);
    world.settle();
    assert_eq!(world.initiator().rejects, [RejectReason::CommandNotSupported as u8]);
    world.initiator().conclude(read);
    world.initiator().text(b"X-com.example.a=1\0");
    world.settle();
    assert_eq!(world.initiator().rejects[1..], [RejectReason::ProtocolError as u8]);
    world.initiator().log_out();
    world.finish();
    assert!(world.initiator().logged_out);
}

#[test]
fn a_normal_session_finds_its_own_target() {
    let mut world = World::with(82, Wish::default());
    world.initiator().text(b"SendTargets=\0");
    world.settle();
    assert!(world.initiator().texts.starts_with(b"TargetName=iqn.2026-11.io.lunette:disk0\0"));
    world.finish();
}
