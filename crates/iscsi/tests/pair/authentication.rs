//! CHAP between the two roles (RFC 7143, 9.2, 12.1.3): who gets in, who does not, and that the session is then as any.

use std::sync::Arc;

use lunette_iscsi::chap::{ChapAlgorithm, ChapCredential, ChapPolicy, ChapUser, Secret};
use lunette_iscsi::parameters::TargetLimits;
use lunette_iscsi::session::SessionSettings;

use crate::double::World;
use crate::double::initiator::{ChapWish, Wish};

const ALICE: ChapWish =
    ChapWish { algorithms: "8,7,6,5", name: "alice", secret: "alice's own 16 b", target: None };

/// A target that knows Alice and has a secret of its own.
fn guarded(seed: u64) -> World {
    let credential =
        |name: &str, secret: &str| ChapCredential { name: name.to_owned(), secret: Secret::new(secret) };
    let mut world = World::new(seed, TargetLimits::default(), SessionSettings::default());
    world.target.policy = Some(Arc::new(ChapPolicy {
        users: vec![ChapUser { credential: credential("alice", ALICE.secret), initiators: vec![] }],
        own: Some(credential("storage", "the target's 16b")),
        algorithms: ChapAlgorithm::ALL.to_vec(),
    }));
    world
}

fn with(chap: ChapWish) -> Wish {
    Wish { chap: Some(chap), ..Wish::default() }
}

#[test]
fn each_algorithm_leads_to_a_session_that_works() {
    for algorithms in ["5", "6", "7", "8", "8,7,6,5", "77,5"] {
        for target in [None, Some(("storage", "the target's 16b"))] {
            let mut world = guarded(1);
            world.connect(with(ChapWish { algorithms, target, ..ALICE }));
            assert_eq!(world.target.outcome(0).unwrap().user.as_deref(), Some("alice"));
            let tag = world.initiator().read(3, 1);
            world.settle();
            world.initiator().good(tag);
            world.finish();
        }
    }
}

#[test]
fn who_cannot_prove_anything_is_told_so_and_has_no_session() {
    let refused = Some((2, 1));
    for wish in [
        Wish::default(),
        Wish { discovery: true, ..Wish::default() },
        with(ChapWish { secret: "bob's own 16 byt", ..ALICE }),
        with(ChapWish { name: "bob", ..ALICE }),
        with(ChapWish { algorithms: "4,9", ..ALICE }),
        // The target's secret lets nobody in, not even under its own name.
        with(ChapWish { secret: "the target's 16b", ..ALICE }),
        with(ChapWish { name: "storage", secret: "the target's 16b", ..ALICE }),
    ] {
        let mut world = guarded(2);
        let shown = format!("{wish:?}");
        world.start(wish);
        world.settle();
        assert_eq!(world.initiator().links[0].login_status, refused, "{shown}");
        assert!(world.target.outcome(0).is_none() && world.target.closed(0).is_some(), "{shown}");
    }
}

#[test]
fn an_initiator_recognizes_a_target_that_cannot_prove_itself() {
    for target in [Some(("storage", "another secret..")), Some(("vault", "the target's 16b"))] {
        let mut world = guarded(3);
        world.start(with(ChapWish { target, ..ALICE }));
        world.settle();
        assert!(world.initiator().has_seen_a_rogue());
        assert!(!world.initiator().is_logged_in());
    }
}

#[test]
fn discovery_is_authenticated_too() {
    let mut world = guarded(4);
    world.connect(Wish { discovery: true, ..with(ALICE) });
    assert_eq!(world.target.outcome(0).unwrap().user.as_deref(), Some("alice"));
    world.finish();
}

#[test]
fn an_initiator_with_a_user_gets_in_where_nobody_is_asked() {
    let mut world = World::with(5, with(ALICE));
    assert_eq!(world.target.outcome(0).unwrap().user, None);
    world.finish();
}
