//! Random commands against the rules of SAM-5, in virtual time.

mod threads;

use lunette_cases::cases;
use proptest::prelude::*;

use super::*;
use crate::device::TargetPort;
use crate::nexus::NexusName;

/// Keeps the keys that were woken.
#[derive(Debug, Default)]
struct Woken(Mutex<Vec<u64>>);

impl Wake for Woken {
    fn wake(&self, key: u64) {
        self.0.lock().unwrap().push(key);
    }
}

/// A command that asks for nothing but its place.
fn plain(attribute: Attribute) -> Manner {
    Manner { attribute, naca: false, preempts: false }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Dormant(Ticket),
    Medium,
    Collecting,
    Stalled(Ticket),
    Alone,
    Ended,
}

/// What the test knows of a command.
#[derive(Debug)]
struct Command {
    nexus: usize,
    attribute: Attribute,
    wants_alone: bool,
    state: State,
}

impl Command {
    fn has_begun(&self) -> bool {
        !matches!(self.state, State::Dormant(_) | State::Ended)
    }
}

/// A driver with several nexuses, and all commands there were in the order in which they came.
struct World {
    set: TaskSet,
    members: Vec<Arc<Member>>,
    woken: Arc<Woken>,
    commands: Vec<Command>,
}

impl World {
    fn new() -> World {
        let set = TaskSet::default();
        let members = (0..3).map(|_| set.join()).collect();
        World { set, members, woken: Arc::default(), commands: Vec::new() }
    }

    fn turn(&self, index: usize) -> Turn {
        Turn {
            waker: Arc::clone(&self.woken) as _,
            key: index as u64,
            passes_allegiance: false,
            rank: (index % 16) as u8,
        }
    }

    fn arrive(&mut self, nexus: usize, attribute: Attribute, wants_alone: bool) {
        let index = self.commands.len();
        self.commands.push(Command { nexus, attribute, wants_alone, state: State::Ended });
        let member = &self.members[nexus];
        let entry = if self.set.enter(member, attribute) {
            Entry::Begun
        } else {
            self.set.enter_late(member, plain(attribute), self.turn(index))
        };
        match entry {
            Entry::Begun => self.begin(index),
            Entry::Waits(ticket) => self.commands[index].state = State::Dormant(ticket),
            Entry::Full | Entry::Refused(_) => panic!("there are few"),
        }
    }

    /// SAM-5: what may not be there when a command begins.
    fn begin(&mut self, index: usize) {
        let attribute = self.commands[index].attribute;
        for (other, command) in self.commands.iter().enumerate() {
            let is_older = other < index;
            let hinders = match (attribute, command.attribute) {
                _ if command.state == State::Ended || other == index => false,
                (Attribute::HeadOfQueue, _) => false,
                // A newer one may have come between this one's turn and the news of it.
                (_, Attribute::HeadOfQueue) => is_older,
                (Attribute::Ordered, _) => is_older || command.has_begun(),
                (Attribute::Simple, Attribute::Ordered) => is_older || command.has_begun(),
                (Attribute::Simple, Attribute::Simple) => false,
                (Attribute::Aca, _) | (_, Attribute::Aca) => panic!("there are none"),
            };
            assert!(!hinders, "{index} begins in spite of {other}: {:#?}", self.commands);
        }
        self.commands[index].state = State::Medium;
        self.check_company();
    }

    /// Whoever is alone is.
    fn check_company(&self) {
        let at_medium = |state| matches!(state, State::Medium | State::Alone);
        let count = self.commands.iter().filter(|command| at_medium(command.state)).count();
        let is_alone = self.commands.iter().any(|command| command.state == State::Alone);
        assert!(!is_alone || count == 1, "{:#?}", self.commands);
    }

    /// A command that has begun moves on: to its data, to the medium alone, to its end.
    fn step(&mut self, index: usize, collects: bool) {
        let turn = self.turn(index);
        let Command { nexus, attribute, wants_alone, state } = self.commands[index];
        let member = Arc::clone(&self.members[nexus]);
        let next = match state {
            State::Medium if collects => {
                self.set.collect(&member);
                State::Collecting
            }
            State::Medium | State::Collecting if wants_alone => {
                // It is not at the medium while it waits to be alone there.
                self.commands[index].wants_alone = false;
                match self.set.be_alone(&member, state == State::Collecting, turn) {
                    Entry::Begun => State::Alone,
                    Entry::Waits(ticket) => {
                        self.commands[index].wants_alone = true;
                        State::Stalled(ticket)
                    }
                    Entry::Full | Entry::Refused(_) => panic!("no such bound"),
                }
            }
            State::Collecting => match self.set.go_on(&member, turn) {
                Entry::Begun => State::Medium,
                Entry::Waits(ticket) => State::Stalled(ticket),
                Entry::Full | Entry::Refused(_) => panic!("no such bound"),
            },
            // The end is known before others are let on by it.
            State::Medium => {
                self.commands[index].state = State::Ended;
                self.set.leave(&member, attribute, false);
                State::Ended
            }
            State::Alone => {
                self.commands[index].state = State::Ended;
                self.set.leave_alone(&member, attribute);
                State::Ended
            }
            State::Dormant(_) | State::Stalled(_) | State::Ended => state,
        };
        self.commands[index].state = next;
        self.check_company();
    }

    fn abort(&mut self, index: usize) {
        let command = &mut self.commands[index];
        let attribute = command.attribute;
        let member = Arc::clone(&self.members[command.nexus]);
        match std::mem::replace(&mut command.state, State::Ended) {
            State::Dormant(ticket) | State::Stalled(ticket) => self.set.cancel(ticket, &member, attribute),
            State::Medium => self.set.leave(&member, attribute, false),
            State::Collecting => self.set.leave(&member, attribute, true),
            State::Alone => self.set.leave_alone(&member, attribute),
            State::Ended => {}
        }
    }

    /// The driver hears of those that may go on.
    fn hear(&mut self) {
        let woken = std::mem::take(&mut *self.woken.0.lock().unwrap());
        for key in woken {
            let index = key as usize;
            match self.commands[index].state {
                State::Dormant(ticket) => {
                    assert!(self.set.take_turn(ticket), "woken for nothing");
                    self.begin(index);
                }
                State::Stalled(ticket) => {
                    assert!(self.set.take_turn(ticket), "woken for nothing");
                    let command = &mut self.commands[index];
                    let is_alone = std::mem::take(&mut command.wants_alone);
                    command.state = if is_alone { State::Alone } else { State::Medium };
                    self.check_company();
                }
                // It was aborted after it had been woken.
                State::Ended => {}
                other => panic!("{index} was woken as {other:?}"),
            }
        }
    }

    /// What must not wait any longer once all that was woken has been heard.
    fn check_progress(&self) {
        let is = |wanted: fn(&Command) -> bool| self.commands.iter().any(wanted);
        let begun = is(|of| matches!(of.state, State::Medium | State::Collecting | State::Alone));
        let waiting = is(|of| matches!(of.state, State::Dormant(_) | State::Stalled(_)));
        assert!(begun || !waiting, "nobody is left to wake them: {:#?}", self.commands);
        let alone = is(|of| of.state == State::Alone);
        let head = is(|of| of.attribute == Attribute::HeadOfQueue && matches!(of.state, State::Dormant(_)));
        assert!(alone || !head, "a HEAD OF QUEUE command waits: {:#?}", self.commands);
    }
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Arrive { nexus: usize, attribute: Attribute, wants_alone: bool },
    Step { choice: usize, collects: bool },
    Abort { choice: usize },
    Hear,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let attribute = prop_oneof![
        6 => Just(Attribute::Simple), 2 => Just(Attribute::Ordered), 1 => Just(Attribute::HeadOfQueue),
    ];
    let action = prop_oneof![
        4 => (0..3usize, attribute, prop::bool::weighted(0.2))
            .prop_map(|(nexus, attribute, wants_alone)| Action::Arrive { nexus, attribute, wants_alone }),
        6 => (any::<usize>(), prop::bool::weighted(0.3))
            .prop_map(|(choice, collects)| Action::Step { choice, collects }),
        1 => any::<usize>().prop_map(|choice| Action::Abort { choice }),
        3 => Just(Action::Hear),
    ];
    prop::collection::vec(action, 1..120)
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn commands_keep_the_order_and_none_is_forgotten(actions in actions()) {
        let mut world = World::new();
        for action in actions {
            let open: Vec<usize> = (0..world.commands.len())
                .filter(|&index| world.commands[index].state != State::Ended)
                .collect();
            let pick = |choice: usize| open.get(choice % open.len().max(1)).copied();
            match action {
                Action::Arrive { nexus, attribute, wants_alone } => world.arrive(nexus, attribute, wants_alone),
                Action::Step { choice, collects } => {
                    pick(choice).into_iter().for_each(|index| world.step(index, collects));
                }
                Action::Abort { choice } => pick(choice).into_iter().for_each(|index| world.abort(index)),
                Action::Hear => {
                    world.hear();
                    world.check_progress();
                }
            }
        }
        // Everything ends if only what has begun is carried on.
        for _ in 0..4 * world.commands.len() + 4 {
            world.hear();
            world.check_progress();
            (0..world.commands.len()).for_each(|index| world.step(index, false));
        }
        prop_assert!(world.commands.iter().all(|command| command.state == State::Ended));
        prop_assert!(world.members.iter().all(|member| member.tally.load(Ordering::SeqCst) == 0));
        prop_assert!(!world.set.is_shut.load(Ordering::SeqCst), "the gate is open again");
        prop_assert!(world.set.lock().is_plain());
    }
}

#[test]
fn an_ordered_command_waits_for_answers_that_are_still_on_the_medium() {
    let mut world = World::new();
    world.set.hold_unsent(&world.members[1]);
    world.arrive(0, Attribute::Ordered, false);
    world.hear();
    assert!(matches!(world.commands[0].state, State::Dormant(_)));
    world.arrive(2, Attribute::Simple, false);
    let gone = world.members.swap_remove(1);
    world.set.part(&gone);
    world.hear();
    assert!(matches!(world.commands[0].state, State::Dormant(_)), "its nexus has gone, its answer not");
    world.set.release_unsent(&gone);
    world.hear();
    assert_eq!(world.commands[0].state, State::Medium);
}

/// COMPARE AND WRITE would otherwise show in a part of what an older read sends.
#[test]
fn who_is_to_be_alone_waits_for_answers_that_are_still_on_the_medium() {
    let mut world = World::new();
    world.set.hold_unsent(&world.members[1]);
    world.arrive(0, Attribute::Simple, true);
    world.step(0, false);
    assert!(matches!(world.commands[0].state, State::Stalled(_)));
    world.set.hold_unsent(&world.members[2]);
    world.set.release_unsent(&world.members[1]);
    world.hear();
    assert!(matches!(world.commands[0].state, State::Stalled(_)), "another answer is left");
    world.set.release_unsent(&world.members[2]);
    world.hear();
    assert_eq!(world.commands[0].state, State::Alone);
}

/// It could never come to its end otherwise: nothing of a blocked answer is sent before the condition is over, which that command may end.
#[test]
fn who_is_to_be_alone_does_not_wait_for_an_answer_that_is_blocked() {
    let world = World::new();
    let [reading, faulted] = [0, 1].map(|index| &world.members[index]);
    let name = NexusName {
        initiator_port: "iqn.2026-11.io.lunette:i,i,0x1".into(),
        target_port: TargetPort::new(1).unwrap(),
    };
    let manner = Manner { naca: true, ..plain(Attribute::Simple) };
    assert_eq!(world.set.fault(faulted, manner, &name, world.turn(1)), Entry::Begun);
    world.set.hold_unsent(reading);
    let Entry::Waits(blocked) = world.set.block(reading, Blocked::Unsent, world.turn(0)) else {
        panic!("a condition stands")
    };
    let passing = |key| Turn { passes_allegiance: true, ..world.turn(key) };
    let alone = plain(Attribute::Aca);
    assert!(matches!(world.set.enter_late(faulted, alone, passing(2)), Entry::Begun));
    assert_eq!(world.set.be_alone(faulted, false, passing(2)), Entry::Begun, "nothing is on its way");
    world.set.leave_alone(faulted, Attribute::Aca);
    // The answer goes out when the condition is over, and is waited for then.
    world.set.end_allegiance();
    assert!(world.set.take_turn(blocked));
    assert!(world.set.enter(faulted, Attribute::Simple), "nobody waits");
    let Entry::Waits(ticket) = world.set.be_alone(faulted, false, world.turn(3)) else {
        panic!("an answer is on its way")
    };
    world.set.leave(reading, Attribute::Simple, false);
    world.set.release_unsent(reading);
    assert!(world.set.take_turn(ticket));
}

#[test]
fn reads_are_copied_for_a_while_after_a_command_that_would_wait_for_them() {
    let mut world = World::new();
    assert!(world.set.may_send_later());
    for (attribute, wants_alone) in
        [(Attribute::Ordered, false), (Attribute::HeadOfQueue, false), (Attribute::Simple, true)]
    {
        world.arrive(0, attribute, wants_alone);
        let index = world.commands.len() - 1;
        world.step(index, false);
        world.step(index, false);
        assert!(world.commands.iter().all(|command| command.state == State::Ended));
        assert!(
            (0..Restraint::TIMES).all(|_| !world.set.may_send_short_later() && !world.set.may_send_later())
        );
        assert!(world.set.may_send_short_later());
        assert!(world.set.may_send_later(), "it is long ago");
        world.arrive(1, Attribute::Simple, false);
        world.step(index + 1, false);
        assert!(world.set.may_send_later(), "a SIMPLE command does not matter");
    }
}

#[test]
fn who_collects_data_knows_whether_others_wait() {
    let mut world = World::new();
    let waits = |world: &World, attribute| {
        [0, 1].map(|nexus| world.set.waits_for_data(&world.members[nexus], attribute))
    };
    world.arrive(0, Attribute::Simple, false);
    world.step(0, true);
    assert_eq!(waits(&world, Attribute::Simple), [false, false], "nobody is there");
    world.arrive(0, Attribute::Ordered, false);
    assert_eq!(waits(&world, Attribute::Simple), [false, true], "whoever waits for itself harms nobody");
    world.arrive(1, Attribute::Simple, false);
    assert_eq!(waits(&world, Attribute::Simple), [true, true], "it is behind the ordered one");
    world.abort(2);
    world.abort(1);
    world.arrive(1, Attribute::Ordered, false);
    assert_eq!(waits(&world, Attribute::Simple), [true, false]);
    let name = NexusName {
        initiator_port: "iqn.2026-11.io.lunette:i,i,0x1".into(),
        target_port: TargetPort::new(1).unwrap(),
    };
    let faulty = Manner { naca: true, ..plain(Attribute::Simple) };
    assert_eq!(world.set.fault(&world.members[2], faulty, &name, world.turn(0)), Entry::Begun);
    assert_eq!(waits(&world, Attribute::Simple), [false, false], "whoever is blocked waits for another");
    world.set.end_allegiance();
    world.abort(3);
    assert_eq!(waits(&world, Attribute::Simple), [false, false]);
}

/// What is before a COMPARE AND WRITE at the medium goes on without the data, and so do those that wait behind that.
#[test]
fn who_waits_for_the_medium_waits_for_nobodys_data() {
    let mut world = World::new();
    world.arrive(0, Attribute::Simple, false);
    world.step(0, true);
    world.arrive(1, Attribute::Simple, true);
    world.step(1, false);
    assert_eq!(world.commands[1].state, State::Alone);
    world.arrive(2, Attribute::Simple, false);
    assert!(matches!(world.commands[2].state, State::Dormant(_)));
    assert!(!world.set.waits_for_data(&world.members[0], Attribute::Simple));
    world.arrive(2, Attribute::Ordered, false);
    assert!(world.set.waits_for_data(&world.members[0], Attribute::Simple), "it will");
}

#[test]
fn a_command_that_all_newer_ones_wait_for_knows_it_while_it_collects_data() {
    for attribute in [Attribute::Ordered, Attribute::HeadOfQueue] {
        let mut world = World::new();
        world.arrive(0, attribute, false);
        world.step(0, true);
        world.arrive(0, Attribute::Simple, false);
        assert!(!world.set.waits_for_data(&world.members[0], attribute));
        world.arrive(1, Attribute::HeadOfQueue, false);
        assert!(!world.set.waits_for_data(&world.members[0], attribute), "it begins at once");
        world.arrive(1, Attribute::Simple, false);
        assert!(world.set.waits_for_data(&world.members[0], attribute));
    }
}

#[test]
fn who_leaves_answers_where_they_are_knows_whether_others_wait() {
    let mut world = World::new();
    let waits = |world: &World| [0, 1].map(|nexus| world.set.waits_for_unsent(&world.members[nexus]));
    world.set.hold_unsent(&world.members[0]);
    assert_eq!(waits(&world), [false, false], "nobody is there");
    world.arrive(0, Attribute::Ordered, false);
    assert_eq!(waits(&world), [false, false], "whoever waits for its own answers harms nobody");
    world.arrive(1, Attribute::Ordered, false);
    assert_eq!(waits(&world), [true, false]);
    let name = NexusName {
        initiator_port: "iqn.2026-11.io.lunette:i,i,0x1".into(),
        target_port: TargetPort::new(1).unwrap(),
    };
    let faulty = Manner { naca: true, ..plain(Attribute::Simple) };
    assert_eq!(world.set.fault(&world.members[2], faulty, &name, world.turn(0)), Entry::Begun);
    assert_eq!(waits(&world), [false, false], "whoever is blocked waits for another");
    world.set.end_allegiance();
    assert_eq!(waits(&world), [true, false]);
    world.set.release_unsent(&world.members[0]);
    assert_eq!(waits(&world), [false, false]);
}

#[test]
fn a_command_that_never_gets_its_data_keeps_nobody_from_being_alone() {
    let mut world = World::new();
    world.arrive(0, Attribute::Simple, false);
    world.step(0, true);
    world.arrive(1, Attribute::Simple, true);
    world.step(1, false);
    assert_eq!(world.commands[1].state, State::Alone);
    world.step(0, false);
    assert!(matches!(world.commands[0].state, State::Stalled(_)), "its data comes too soon");
    world.step(1, false);
    world.hear();
    assert_eq!(world.commands[0].state, State::Medium);
}

#[test]
fn there_is_room_for_so_many() {
    let mut world = World::new();
    world.arrive(0, Attribute::Ordered, false);
    let mut room = queue::DORMANT_MAX;
    for member in world.members.clone() {
        let enters = || world.set.enter_late(&member, plain(Attribute::Simple), world.turn(0)) != Entry::Full;
        let taken = (0..=queue::DORMANT_MAX).take_while(|_| enters()).count();
        assert_eq!(taken, room / 2, "as many as it leaves to the others");
        room -= taken;
    }
}

/// SAM-5, 8.7. The ranks of those that wait to be alone, and in which order they are.
fn order_of(ranks: &[u8]) -> Vec<usize> {
    let mut world = World::new();
    world.arrive(0, Attribute::Simple, true);
    world.step(0, false);
    let member = Arc::clone(&world.members[1]);
    let turn = |index: usize, rank| Turn { rank, ..world.turn(index) };
    let tickets: Vec<Ticket> = ranks
        .iter()
        .enumerate()
        .map(|(index, &rank)| {
            member.add(RUNNING);
            match world.set.be_alone(&member, false, turn(index, rank)) {
                Entry::Waits(ticket) => ticket,
                other => panic!("{other:?}"),
            }
        })
        .collect();
    world.set.leave_alone(&world.members[0], Attribute::Simple);
    let mut order = Vec::new();
    for _ in ranks {
        let woken = std::mem::take(&mut *world.woken.0.lock().unwrap());
        let [key] = woken[..] else { panic!("one at a time: {woken:?}") };
        order.push(key as usize);
        assert!(world.set.take_turn(tickets[key as usize]));
        world.set.leave_alone(&member, Attribute::Simple);
    }
    order
}

#[test]
fn the_more_urgent_are_at_the_medium_first() {
    assert_eq!(order_of(&[8, 15, 3, 8, 0, 3]), [4, 2, 5, 0, 3, 1]);
}

#[test]
fn nobody_is_passed_for_ever() {
    let count = queue::PASSED_MAX as usize + 50;
    let ranks: Vec<u8> = std::iter::once(15).chain(std::iter::repeat_n(1, count)).collect();
    let place = order_of(&ranks).iter().position(|&index| index == 0);
    assert_eq!(place, Some(queue::PASSED_MAX as usize), "the oldest, which is the least urgent");
}
