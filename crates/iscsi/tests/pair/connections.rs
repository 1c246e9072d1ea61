//! Several connections of a session in virtual time (RFC 7143, 4.2.2.1, 4.2.5.1, 6.3.4, 7.14, 11.14, 11.19): what the
//! clock decides, and what must not depend on it.

use std::time::Duration;

use lunette_iscsi::parameters::TargetLimits;
use lunette_iscsi::session::SessionSettings;

use crate::double::World;
use crate::double::initiator::{End, Wish};
use crate::double::target::UNIT;

/// A world whose session has so many connections; the target pings after 5 s of silence and waits 3 s for the answer.
fn world(seed: u64, connections: usize) -> World {
    let settings = SessionSettings {
        nop_interval: Some(Duration::from_secs(5)),
        nop_timeout: Duration::from_secs(3),
        ..SessionSettings::default()
    };
    let mut world = World::new(seed, TargetLimits::default(), settings);
    world.connect(Wish { max_connections: 8, ..Wish::default() });
    for _ in 1..connections {
        world.join();
        world.settle();
    }
    assert_eq!(world.initiator().up().len(), connections);
    world
}

#[test]
fn each_connection_is_pinged_by_itself() {
    let mut world = world(90, 3);
    for _ in 0..10 {
        world.initiator().on = 1;
        world.initiator().ping(true, Vec::new());
        world.pass(3);
    }
    let pings = world.initiator().pings;
    assert!((8..=12).contains(&pings), "{pings} pings, for two of three connections");
    world.finish();
}

#[test]
fn one_dead_connection_ends_the_session_and_is_told_on_the_others() {
    let mut world = world(91, 3);
    let wire = world.wire_of(1);
    let read = world.initiator().read(0, 1);
    world.exchange();
    // From here on nothing of the second connection arrives.
    world.initiator().links[1].is_gone = true;
    for _ in 0..3 {
        for link in [0, 2] {
            world.initiator().on = link;
            world.initiator().ping(true, Vec::new());
        }
        world.pass(3);
    }
    assert!(world.target.closed(wire).is_some_and(|reason| reason.contains("NOP-In")));
    for link in [0, 2] {
        let wire = world.wire_of(link);
        assert_eq!(world.target.closed(wire), Some("another connection of its session failed"));
    }
    assert_eq!(world.initiator().drop_notices, 2);
    assert!(!world.target.session(wire).unwrap().has_ended(), "a read is still in the store");
    world.initiator().give_up();
    world.finish();
    assert_eq!(world.initiators[0].ends[&read], End::Aborted);
    assert!(world.target.session(wire).unwrap().has_ended());
}

#[test]
fn a_joining_login_shares_the_window() {
    let mut world = world(92, 1);
    for _ in 0..128 {
        world.initiator().read(0, 1);
    }
    world.exchange();
    assert!(!world.initiator().may_send());
    world.join();
    world.exchange();
    world.initiator().on = 1;
    assert!(
        world.initiator().links[1].is_up && !world.initiator().may_send(),
        "a connection opens no window"
    );
    world.settle();
    assert!(world.initiator().may_send());
    world.finish();
}

/// 11.14.5: only units that had commands on the connection are told.
#[test]
fn a_reinstated_connection_loses_its_tasks_and_the_others_keep_theirs() {
    let mut world = world(93, 2);
    let kept = world.initiator().read(0, 1);
    world.initiator().on = 1;
    let lost = world.initiator().write(8, vec![0x11; 512]);
    world.exchange();
    world.reinstate(1);
    world.exchange();
    assert!(!world.initiator().links[1].is_up, "a write of the old connection is in the store");
    world.settle();
    assert!(world.initiator().links[1].is_up);
    assert_eq!(world.initiators[0].ends[&lost], End::Aborted);
    world.initiators[0].good(kept);
    assert_eq!(world.target.cleared, [UNIT]);
    world.reinstate(1);
    world.settle();
    assert_eq!(world.target.cleared, [UNIT], "nothing was lost this time");
    world.finish();
}

#[test]
fn connections_leave_one_after_the_other_and_the_last_one_ends_the_session() {
    let mut world = world(94, 4);
    for link in 0..3 {
        world.initiator().on = link;
        world.initiator().read(0, 1);
        world.initiator().log_out_of(Some(link));
        world.settle();
        assert!(world.initiator().links[link].is_gone && !world.initiator().logged_out);
    }
    world.initiator().on = 3;
    let read = world.initiator().read(0, 1);
    world.settle();
    world.initiators[0].good(read);
    world.initiator().log_out_of(Some(3));
    world.settle();
    assert!(world.initiator().logged_out);
    world.finish();
}

#[test]
fn a_target_that_drains_asks_on_each_connection() {
    let mut world = world(95, 3);
    world.pass(1);
    world.target.request_logout(0, Duration::from_secs(5));
    world.exchange();
    assert_eq!(world.initiator().logout_requests, 3);
    world.initiator().log_out();
    world.settle();
    for link in 0..3 {
        let wire = world.wire_of(link);
        assert_eq!(world.target.closed(wire), Some("the initiator logged out"));
    }
    world.finish();
}
