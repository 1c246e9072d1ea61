//! What happens in the world of [`super`] one step after the other: ghosts, resets, paths that are not the right ones.

use super::*;

/// A world with two paths in these groups, of which the first has a write that its target keeps.
fn haunted(groups: &[u16]) -> World {
    let mut world = World::new(groups);
    world.finish();
    world.write(0);
    world.cut(0, 0);
    world
}

#[test]
fn what_was_under_way_goes_on_at_once_and_what_is_newer_waits() {
    let mut world = haunted(&[1, 2]);
    world.serve(1, 0);
    assert_eq!(world.ended, 1, "the write itself is sent again");
    world.write(0);
    world.write(1);
    world.serve(1, 0);
    world.serve(1, 0);
    assert_eq!(world.ended, 2, "another block's is not held up");
    // The dead path's target gets on at last, and harms nobody.
    world.serve(0, 0);
    assert_eq!(world.core.entries.len(), 1);
    world.is_cut[0] = false;
    world.pass(1);
    world.finish();
    world.serve(0, 0);
    world.serve(1, 0);
    assert_eq!(world.ended, 3);
}

#[test]
fn another_portal_of_the_group_ends_what_a_path_has_left_at_once() {
    let mut world = haunted(&[1, 1]);
    world.serve(1, 0);
    world.write(0);
    assert_eq!(world.core.ghosts.len(), 1);
    world.pass(0);
    assert_eq!(world.fencing, [(0, 1)]);
    assert!(world.opening.is_empty(), "not at the same time");
    world.finish();
    world.serve(1, 0);
    assert_eq!((world.core.ghosts.len(), world.ended), (0, 2));
}

#[test]
fn where_there_is_none_a_reset_ends_it_after_its_time() {
    let mut world = haunted(&[1, 2]);
    world.serve(1, 0);
    world.write(0);
    world.pass(59);
    assert_eq!(world.resetting, None);
    assert!(world.core.next_deadline().is_some_and(|at| at <= TIMING.ghost));
    world.pass(1);
    assert_eq!(world.resetting, Some(1));
    world.finish();
    world.serve(1, 0);
    assert_eq!((world.core.ghosts.len(), world.ended), (0, 2));
}

#[test]
fn a_reset_that_nobody_needs_is_not_done() {
    let mut world = haunted(&[1, 2]);
    world.serve(1, 0);
    world.pass(600);
    assert_eq!((world.resetting, world.core.ghosts.len()), (None, 1));
}

/// A reset ends the commands of others, too: it is done when it lets a command go, and not for what is older.
#[test]
fn a_reset_waits_for_the_ghosts_that_somebody_waits_for() {
    let mut world = haunted(&[1, 2, 2]);
    while world.core.entries.iter().any(|(_, entry)| entry.payload == 0) {
        world.serve(1, 0);
        world.serve(2, 0);
    }
    // Another path is lost half a minute later with a write that is newer, of another block.
    world.now += Duration::from_secs(30);
    let other = 1 + usize::from(world.core.paths[1].sent > world.core.paths[2].sent);
    world.groups[other] = 3;
    world.core.paths[other].portal_group_tag = Some(3);
    world.write(1);
    assert_eq!(world.far[other].last().map(|far| far.flying.len()), Some(1));
    world.cut(other, 0);
    let left = 3 - other;
    world.serve(left, 0);
    world.write(1);
    assert_eq!((world.core.ghosts.len(), world.core.entries.len()), (2, 1));
    world.now = Duration::from_secs(60);
    world.pass(29);
    assert_eq!(world.resetting, None, "nobody waits for the one whose time is over");
    world.pass(1);
    assert_eq!(world.resetting, Some(left));
    world.finish();
    world.serve(left, 0);
    assert_eq!((world.core.ghosts.len(), world.core.entries.len()), (0, 0));
}

/// Nothing can be done then, and the driver has nothing to be woken for.
#[test]
fn a_reset_that_no_path_carries_wakes_nobody() {
    let mut world = haunted(&[1, 2]);
    world.serve(1, 0);
    world.write(0);
    world.now = Duration::from_secs(90);
    world.core.has_access(world.now, world.now, 1, (Access::Standby, false));
    world.pass(0);
    assert_eq!(world.resetting, None);
    assert!(world.core.next_deadline().is_some_and(|at| at > world.now), "{:?}", world.core.next_deadline());
    world.core.has_access(world.now, world.now, 1, (Access::Optimized, false));
    world.pass(0);
    assert_eq!(world.resetting, Some(1));
}

#[test]
fn what_a_dead_path_has_left_is_ended_before_the_end_although_nobody_waits() {
    let mut world = haunted(&[1, 2]);
    world.serve(1, 0);
    assert_eq!((world.core.entries.len(), world.core.ghosts.len()), (0, 1));
    assert!(!world.core.is_settling(world.now), "not before the end");
    world.core.settle(world.now);
    world.pass(59);
    assert!(world.core.is_settling(world.now) && world.resetting.is_none());
    assert_eq!(world.core.next_deadline().map(|at| at.max(TIMING.ghost)), Some(TIMING.ghost));
    world.pass(1);
    assert_eq!(world.resetting, Some(1));
    world.finish();
    assert!(world.core.ghosts.is_empty() && !world.core.is_settling(world.now));
}

#[test]
fn before_the_end_only_paths_that_have_left_something_are_tried() {
    for groups in [[1, 1, 3], [1, 2, 3]] {
        let mut world = haunted(&groups);
        world.cut(2, 0);
        world.serve(1, 0);
        world.is_cut.fill(false);
        world.core.settle(world.now);
        world.pass(0);
        let is_fenced = groups[0] == groups[1];
        assert_eq!(world.fencing.len(), usize::from(is_fenced));
        let opening: &[usize] = if is_fenced { &[] } else { &[0] };
        assert_eq!(world.opening, opening);
        world.finish();
        assert!(world.core.ghosts.is_empty() && !world.core.is_settling(world.now));
    }
}

#[test]
fn the_end_is_not_put_off_for_ever_nor_without_a_path() {
    let mut world = haunted(&[1, 2]);
    world.serve(1, 0);
    world.core.settle(world.now);
    world.core.has_access(world.now, world.now, 1, (Access::Standby, false));
    world.pass(69);
    assert!(world.core.is_settling(world.now), "no path carries a reset yet");
    world.pass(1);
    assert!(!world.core.is_settling(world.now) && world.core.ghosts.len() == 1);
    let mut world = haunted(&[1, 2]);
    world.serve(1, 0);
    world.core.settle(world.now);
    world.cut(1, 0);
    assert!(!world.core.is_settling(world.now), "nothing can be done");
}

#[test]
fn a_path_that_is_doubted_carries_nothing_until_it_was_looked_at() {
    let mut world = World::new(&[1, 2]);
    world.finish();
    world.core.doubted(world.now, 0);
    world.pass(0);
    assert_eq!(world.looking, [0]);
    (0..BLOCKS).for_each(|block| world.write(block));
    world.core.doubted(world.now, 0);
    world.pass(60);
    let sent = |world: &World| [world.core.paths[0].sent, world.core.paths[1].sent];
    assert_eq!((sent(&world), &world.looking[..]), ([0, BLOCKS], &[0][..]), "one look at a time");
    world.core.looked(world.now, 0, false);
    assert!(world.core.next_deadline().is_some_and(|at| at <= world.now + timers::LOOK));
    world.pass(1);
    assert_eq!(world.looking, [0, 0]);
    // Without another one, commands wait.
    world.cut(1, 0);
    assert_eq!(sent(&world), [0, BLOCKS]);
    world.core.looked(world.now, 0, true);
    world.settle();
    assert_eq!(sent(&world), [BLOCKS, BLOCKS]);
}

/// It carries no data in any case, and may not tell everything there.
#[test]
fn a_path_in_standby_is_looked_at_when_it_can_be_used() {
    let mut world = World::new(&[1, 2]);
    world.finish();
    world.core.has_access(world.now, world.now, 0, (Access::Standby, false));
    world.core.doubted(world.now, 0);
    world.pass(1);
    assert!(world.looking.is_empty());
    assert!(world.core.next_deadline().is_some_and(|at| at > world.now), "and nobody is woken for it");
    world.core.has_access(world.now, world.now, 0, (Access::Optimized, false));
    world.pass(0);
    assert_eq!(world.looking, [0]);
}

fn flush() -> Facts {
    Facts { kind: Kind::Flushes, replay: Replay::Always, extent: Extent::Nothing }
}

#[test]
fn a_reset_that_any_path_tells_of_fails_the_next_flush_once() {
    let mut world = World::new(&[1, 2]);
    world.finish();
    let core = &mut world.core;
    core.note_reset();
    let clean = core.submit(world.now, flush(), 0);
    assert_eq!(core.ended(world.now, clean, Outcome::Good), Verdict::Over, "nothing was written");
    core.take(clean);
    let facts = Facts { kind: Kind::Writes, replay: Replay::Always, extent: Extent::Unit };
    let write = core.submit(world.now, facts, 0);
    core.ended(world.now, write, Outcome::Good);
    core.take(write);
    let beside = core.submit(world.now, flush(), 0);
    core.note_reset();
    core.actions.clear();
    let after = core.submit(world.now, flush(), 0);
    assert_eq!(
        core.actions.pop_front(),
        Some(Action::Fail { key: after, failure: Failure::ResetSinceFlush })
    );
    core.take(after);
    assert_eq!(
        core.ended(world.now, beside, Outcome::Good),
        Verdict::ResetSinceFlush,
        "it may have been too early"
    );
    assert_eq!(core.session, 2);
}

/// It is no fault of the flush, and its caller can send another one; but none is good that does not come behind what is written again.
#[test]
fn a_flush_that_a_reset_of_ours_has_ended_tells_of_the_reset() {
    for is_told_first in [false, true] {
        let mut world = haunted(&[1, 2]);
        world.serve(1, 0);
        world.write(0);
        let submit = |world: &mut World| {
            let key = world.core.submit(world.now, flush(), 0);
            (key, world.core.actions.pop_front())
        };
        let (beside, sent) = submit(&mut world);
        assert_eq!(sent, Some(Action::Send { key: beside, path: 1 }));
        world.pass(60);
        assert_eq!(world.resetting.take(), Some(1));
        if is_told_first {
            world.core.reset(world.now, true);
        }
        assert_eq!(world.core.ended(world.now, beside, Outcome::Aborted), Verdict::ResetSinceFlush);
        world.core.take(beside);
        if !is_told_first {
            // The next one may be there before the answer to the reset.
            let (early, sent) = submit(&mut world);
            assert_eq!(sent, Some(Action::Send { key: early, path: 1 }));
            world.core.reset(world.now, true);
            assert_eq!(world.core.ended(world.now, early, Outcome::Good), Verdict::ResetSinceFlush);
            world.core.take(early);
        }
        assert_eq!(world.core.session, 1);
        world.settle();
        let (next, sent) = submit(&mut world);
        assert_eq!(sent, Some(Action::Fail { key: next, failure: Failure::ResetSinceFlush }));
        world.core.take(next);
        let (last, _) = submit(&mut world);
        assert_eq!(world.core.ended(world.now, last, Outcome::Good), Verdict::Over);
    }
}

/// What is answered in one turn is heard of behind the reset, whatever came first.
#[test]
fn a_write_beside_a_reset_counts_as_before_it() {
    let mut world = World::new(&[1, 2]);
    world.finish();
    let core = &mut world.core;
    let facts = |kind| Facts { kind, replay: Replay::Always, extent: Extent::Nothing };
    let kinds = [Kind::Writes, Kind::Other, Kind::Reads, Kind::Flushes];
    let keys = kinds.map(|kind| core.submit(world.now, facts(kind), 0));
    core.note_reset();
    assert_eq!(keys.map(|key| core.session_of(key)), [0, 0, 1, 1]);
    core.ended(world.now, keys[0], Outcome::NotYet);
    core.pump(world.now);
    assert_eq!(core.session_of(keys[0]), 1, "it was sent again");
}

/// A flush that a path has not carried out promises nothing: what it was to cover may still be lost.
#[test]
fn a_reset_while_a_flush_waits_for_another_path_fails_it() {
    let facts = Facts { kind: Kind::Writes, replay: Replay::Always, extent: Extent::Unit };
    let written = || {
        let mut world = World::new(&[1, 2]);
        world.finish();
        let write = world.core.submit(world.now, facts, 0);
        world.core.ended(world.now, write, Outcome::Good);
        world.core.take(write);
        let flush = world.core.submit(world.now, flush(), 0);
        world.core.actions.clear();
        (world, flush)
    };
    for outcome in [Outcome::Refused(Access::Transitioning), Outcome::NotYet, Outcome::NotSent] {
        let (mut world, flush) = written();
        assert_eq!(world.core.ended(world.now, flush, outcome), Verdict::Kept, "{outcome:?}");
        world.core.note_reset();
        world.core.tick(world.now);
        let failed = Action::Fail { key: flush, failure: Failure::ResetSinceFlush };
        assert!(world.core.actions.contains(&failed), "{outcome:?}: {:?}", world.core.actions);
    }
    // Its caller has to send another one, since no path is left; that one speaks of the same writes.
    let (mut world, lost) = written();
    world.cut(0, 0);
    world.cut(1, 0);
    assert_eq!(world.core.ended(world.now, lost, Outcome::NotSent), Verdict::Over);
    world.core.take(lost);
    world.core.opened(world.now, 0, Some(1), true);
    world.core.actions.clear();
    let next = world.core.submit(world.now, flush(), 0);
    let failed = Action::Fail { key: next, failure: Failure::ResetSinceFlush };
    assert_eq!(world.core.actions.pop_front(), Some(failed));
}

#[test]
fn without_a_path_commands_wait_and_then_fail() {
    let mut world = World::new(&[1]);
    world.finish();
    world.write(0);
    world.cut(0, 1);
    assert_eq!(world.ended, 0, "it had not left");
    world.pass(119);
    assert_eq!(world.ended, 0);
    world.pass(1);
    assert_eq!(world.ended, 1);
}

/// The first logins take as long as they do; once all paths are lost, none is tried again.
#[test]
fn without_time_for_recovery_paths_can_be_had_and_a_loss_is_the_end() {
    let timing = PathTiming { recovery: Duration::ZERO, ..TIMING };
    let mut world = World::with(&[1, 2], timing);
    assert_eq!((world.opening.as_slice(), world.is_over), (&[0, 1][..], false));
    world.pass(20);
    world.finish();
    world.write(0);
    world.cut(0, 0);
    world.serve(1, 0);
    world.pass(0);
    assert_eq!((world.ended, world.is_over), (1, false), "there is another one");
    world.opening.clear();
    world.write(1);
    world.cut(1, 0);
    world.pass(0);
    assert_eq!((world.ended, world.is_over, world.opening.len()), (2, true, 0));
}

#[test]
fn a_path_that_refuses_is_left_for_another_and_looked_at() {
    let mut world = World::new(&[1, 2]);
    world.finish();
    let facts = Facts { kind: Kind::Reads, replay: Replay::WhereSafe, extent: Extent::Nothing };
    let read = world.core.submit(world.now, facts, 0);
    let Some(Action::Send { path, .. }) = world.core.actions.pop_front() else { panic!("it is sent") };
    assert_eq!(world.core.ended(world.now, read, Outcome::Refused(Access::Standby)), Verdict::Kept);
    world.core.tick(world.now);
    let actions: Vec<_> = world.core.actions.drain(..).collect();
    assert!(actions.contains(&Action::Check { path }), "{actions:?}");
    assert!(actions.contains(&Action::Send { key: read, path: 1 - path }), "{actions:?}");
}

/// Many targets tell each new session of a reset. A path that was there all the time knows better.
#[test]
fn a_reset_that_only_a_new_session_tells_of_needs_a_witness() {
    let is_proven = |world: &World| world.core.paths[0].rank().is_some();
    let comes_back = || {
        let mut world = World::new(&[1, 2]);
        world.finish();
        world.cut(0, 0);
        world.write(1);
        world.serve(1, 0);
        world.now += Duration::from_secs(10);
        world.core.opened(world.now, 0, Some(1), true);
        world
    };
    let mut world = comes_back();
    assert!(!is_proven(&world));
    world.core.tick(world.now);
    assert!(world.core.actions.contains(&Action::Check { path: 1 }), "the other one is asked");
    world.core.has_answered(1, world.now - Duration::from_secs(1));
    assert!(!is_proven(&world), "it was sent before");
    world.core.has_answered(0, world.now);
    assert!(!is_proven(&world), "it cannot speak for itself");
    world.core.has_answered(1, world.now);
    assert!(is_proven(&world) && world.core.session == 0);
    let mut world = comes_back();
    world.cut(1, 0);
    assert!(is_proven(&world) && world.core.session == 1, "nobody is left who knows: it counts");
}

/// The target was restarted, and its other connections are as dead as this one was, which nobody knows yet.
#[test]
fn a_path_that_comes_back_needs_a_witness_also_where_nothing_is_told() {
    let comes_back = || {
        let mut world = World::new(&[1, 2]);
        world.finish();
        world.write(1);
        (0..2).for_each(|path| world.serve(path, 0));
        world.cut(0, 0);
        world.now += Duration::from_secs(10);
        world.core.opened(world.now, 0, Some(1), false);
        assert!(world.core.paths[0].rank().is_none(), "nothing goes this way yet");
        world
    };
    let mut world = comes_back();
    world.core.actions.clear();
    world.core.lost(world.now, 1, Duration::ZERO);
    assert!(world.core.paths[0].rank().is_some() && world.core.session == 1, "it counts as a reset");
    let key = world.core.submit(world.now, flush(), 0);
    let failed = Action::Fail { key, failure: Failure::ResetSinceFlush };
    assert_eq!(world.core.actions.pop_front(), Some(failed));
    let mut world = comes_back();
    world.core.has_answered(1, world.now);
    assert!(world.core.paths[0].rank().is_some() && world.core.session == 0, "the target goes on");
}

/// It is the same with a path that was never there, once there is something to be lost.
#[test]
fn a_path_that_comes_for_the_first_time_beside_what_is_not_flushed_needs_a_witness() {
    let comes = |has_written, is_reset| {
        let mut world = World::new(&[1, 2]);
        world.is_cut[1] = true;
        world.finish();
        if has_written {
            world.write(1);
            world.serve(0, 0);
        }
        world.core.opened(world.now, 1, Some(2), is_reset);
        world
    };
    let is_usable = |world: &World| world.core.paths[1].rank().is_some();
    for is_reset in [true, false] {
        assert!(is_usable(&comes(false, is_reset)), "nothing was written");
        let mut world = comes(true, is_reset);
        assert!(!is_usable(&world));
        world.core.tick(world.now);
        assert!(world.core.actions.contains(&Action::Check { path: 0 }), "the other one is asked");
        world.core.has_answered(0, world.now);
        assert!(is_usable(&world) && world.core.session == 0, "the target goes on");
        let mut world = comes(true, is_reset);
        world.core.actions.clear();
        world.core.lost(world.now, 0, Duration::ZERO);
        assert!(is_usable(&world) && world.core.session == 1, "it counts as a reset");
        let key = world.core.submit(world.now, flush(), 0);
        let failed = Action::Fail { key, failure: Failure::ResetSinceFlush };
        assert_eq!(world.core.actions.pop_front(), Some(failed));
    }
}

/// A unit tells each nexus of a reset once, and a login that fails afterwards has heard it for all that follow.
#[test]
fn a_reset_that_a_failed_login_was_told_of_is_not_forgotten() {
    let second = Duration::from_secs(1);
    let is_usable = |world: &World| world.core.paths[0].rank().is_some();
    let told = |groups: &[u16]| {
        let mut world = World::new(groups);
        world.finish();
        world.write(1);
        (0..groups.len()).for_each(|path| world.serve(path, 0));
        world.cut(0, 0);
        world.now += 10 * second;
        world.core.open_failed(world.now, 0, false, Some(world.now - second));
        world
    };
    // The only path.
    let mut world = told(&[1]);
    assert_eq!(world.core.session, 1);
    world.core.opened(world.now, 0, Some(1), false);
    world.core.actions.clear();
    let key = world.core.submit(world.now, flush(), 0);
    let failed = Action::Fail { key, failure: Failure::ResetSinceFlush };
    assert_eq!(world.core.actions.pop_front(), Some(failed));
    // Another one knows better, once it has answered what was sent after that.
    let mut world = told(&[1, 2]);
    world.core.tick(world.now);
    assert!(world.core.actions.contains(&Action::Check { path: 1 }), "{:?}", world.core.actions);
    world.core.opened(world.now, 0, Some(1), false);
    world.core.has_answered(1, world.now - 2 * second);
    assert!(!is_usable(&world));
    world.core.has_answered(1, world.now);
    assert!(is_usable(&world) && world.core.session == 0);
    // It is lost before it has, or came only after that.
    let mut world = told(&[1, 2]);
    world.cut(1, 0);
    assert_eq!(world.core.session, 1);
    let mut world = World::new(&[1, 2]);
    world.finish();
    world.cut(0, 0);
    world.cut(1, 0);
    world.core.opened(10 * second, 1, Some(2), false);
    let before = world.core.session;
    world.core.open_failed(11 * second, 0, false, Some(9 * second));
    assert_eq!(world.core.session, before + 1);
}

/// The session that was told ends before another path has said what it knows.
#[test]
fn a_reset_that_a_lost_session_was_told_of_is_not_forgotten() {
    let mut world = World::new(&[1, 2]);
    world.finish();
    world.cut(0, 0);
    world.core.opened(world.now, 0, Some(1), true);
    world.core.lost(world.now, 0, Duration::ZERO);
    assert_eq!(world.core.session, 0, "another one is there that knows");
    world.core.lost(world.now, 1, Duration::ZERO);
    assert_eq!(world.core.session, 1);
}

#[test]
fn a_path_that_does_not_answer_a_command_is_left_for_others() {
    let mut world = World::new(&[1, 2]);
    world.finish();
    let facts = Facts { kind: Kind::Reads, replay: Replay::WhereSafe, extent: Extent::Nothing };
    let read = world.core.submit(world.now, facts, 0);
    let Some(Action::Send { path, .. }) = world.core.actions.pop_front() else { panic!("it is sent") };
    assert_eq!(world.core.ended(world.now, read, Outcome::Stopped), Verdict::Kept);
    for _ in 0..3 {
        let other = world.core.submit(world.now, facts, 0);
        let sent: Vec<_> = world.core.actions.drain(..).collect();
        assert!(sent.contains(&Action::Send { key: other, path: 1 - path }), "{sent:?}");
        assert!(!sent.iter().any(|action| matches!(action, Action::Send { path: to, .. } if *to == path)));
    }
}

/// TASK ABORTED after a reset of ours or of another initiator: with TAS it is what an end without a word is without.
#[test]
fn a_command_that_others_have_aborted_goes_on_where_it_may() {
    let block = Extent::Blocks { start: 0, end: 1 };
    let write = |replay| Facts { kind: Kind::Writes, replay, extent: block };
    let read = Facts { kind: Kind::Reads, replay: Replay::WhereSafe, extent: Extent::Nothing };
    for (facts, verdict) in [
        (read, Verdict::Kept),
        (write(Replay::Always), Verdict::Kept),
        (write(Replay::WhereSafe), Verdict::Over),
        (flush(), Verdict::Over),
    ] {
        let mut world = World::new(&[1]);
        world.finish();
        let key = world.core.submit(world.now, facts, 0);
        world.core.actions.clear();
        assert_eq!(world.core.ended(world.now, key, Outcome::Aborted), verdict, "{facts:?}");
        assert_eq!(world.core.ghosts.len(), 0, "it does nothing any more");
        assert!(world.core.paths[0].eligible_at <= world.now, "the path has answered");
        world.core.tick(world.now);
        let is_again = world.core.actions.contains(&Action::Send { key, path: 0 });
        assert_eq!(is_again, verdict == Verdict::Kept, "{facts:?}");
    }
}

/// Each path asks by itself, and an answer may be long on its way.
#[test]
fn an_answer_to_an_older_question_is_not_believed_but_asked_for_again() {
    let ms = Duration::from_millis;
    let mut world = World::new(&[1, 2]);
    world.finish();
    world.core.tick(world.now);
    world.core.actions.clear();
    let states = |world: &World| world.core.paths.iter().map(|path| path.access).collect::<Vec<_>>();
    world.now = ms(30);
    world.core.has_access(world.now, ms(20), 0, (Access::Standby, false));
    world.core.has_access(world.now, ms(20), 1, (Access::Optimized, false));
    // The answer of a path that had been asked before that comes only now.
    world.now = ms(40);
    world.core.has_access(world.now, ms(10), 0, (Access::Optimized, false));
    world.core.has_access(world.now, ms(10), 1, (Access::Optimized, false));
    assert_eq!(states(&world), [Access::Standby, Access::Optimized]);
    world.core.tick(world.now);
    let actions: Vec<_> = world.core.actions.drain(..).collect();
    assert_eq!(actions, [Action::Check { path: 0 }], "only where it says something else");
    world.core.has_access(ms(50), ms(41), 0, (Access::Optimized, false));
    assert_eq!(states(&world), [Access::Optimized; 2]);
}

/// What a login has found about states is not the last word where that is in doubt.
#[test]
fn a_path_that_comes_back_is_asked_again_as_soon_as_its_state_demands() {
    let s = Duration::from_secs;
    let looked_at = |state, asked_at| {
        let mut world = World::new(&[1, 2]);
        world.finish();
        world.cut(0, 0);
        world.core.has_access(s(20), s(20), 0, (Access::Standby, false));
        // As the driver tells of a login.
        world.core.has_access(s(30), asked_at, 0, (state, false));
        world.core.opened(s(30), 0, Some(1), false);
        world.core.paths[0].check_at
    };
    assert_eq!(looked_at(Access::Optimized, s(19)), s(30), "something newer says otherwise");
    assert_eq!(looked_at(Access::Transitioning, s(21)), s(31));
    assert_eq!(looked_at(Access::Optimized, s(21)), s(35));
}

/// A command that is refused speaks of its path as a question does.
#[test]
fn a_refusal_counts_from_when_the_command_was_sent() {
    let ms = Duration::from_millis;
    let facts = Facts { kind: Kind::Reads, replay: Replay::WhereSafe, extent: Extent::Nothing };
    let refused = |asked_at| {
        let mut world = World::new(&[1]);
        world.finish();
        world.now = ms(10);
        let read = world.core.submit(world.now, facts, 0);
        world.core.has_access(ms(30), asked_at, 0, (Access::NonOptimized, false));
        world.core.actions.clear();
        let verdict = world.core.ended(ms(40), read, Outcome::Refused(Access::Standby));
        assert_eq!((verdict, world.core.paths[0].check_at), (Verdict::Kept, ms(40)), "asked for at any rate");
        world.core.paths[0].access
    };
    assert_eq!(refused(ms(9)), Access::Standby);
    assert_eq!(refused(ms(20)), Access::NonOptimized, "what was asked for later is believed");
}
