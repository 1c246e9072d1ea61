//! Random commands of several nexuses with every attribute and NACA, that fail, are aborted, reset, lost and cleared, against
//! a small model of SAM-5, 5.9: every command ends, as the model says, and nothing is left in the task set.

use std::sync::Mutex;

use lunette_cases::cases;
use proptest::prelude::*;

use super::*;
use crate::device::Device;
use crate::io::{IoError, IoOutcome};
use crate::mode::{ModeFlags, Selected};
use crate::status::Status;
use crate::task_set::Wake;
use crate::unit::tests::{config, unit_of};

const NEXUSES: usize = 3;
const BLOCK_BYTES: usize = 512;

/// Keeps the keys that were woken.
#[derive(Debug, Default)]
struct Woken(Mutex<Vec<u64>>);

impl Wake for Woken {
    fn wake(&self, key: u64) {
        self.0.lock().unwrap().push(key);
    }
}

/// What a command is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ready,
    Read,
    Write,
    /// Alone at the medium.
    Compare,
    /// Fails at once, in the task set.
    OutOfRange,
    /// Fails at once, outside it.
    NoSuchPage,
}

impl Kind {
    fn cdb(self, naca: bool) -> Cdb {
        let (bytes, control): (&[u8], usize) = match self {
            Kind::Ready => (&[0], 5),
            Kind::Read => (&[0x28, 0, 0, 0, 0, 0, 0, 0, 1], 9),
            Kind::Write => (&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1], 9),
            Kind::Compare => (&[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], 15),
            Kind::OutOfRange => (&[0x28, 0, 0xff, 0, 0, 0, 0, 0, 1], 9),
            Kind::NoSuchPage => (&[0x12, 1, 0x77], 5),
        };
        let mut cdb = [0; 16];
        cdb[..bytes.len()].copy_from_slice(bytes);
        cdb[control] = u8::from(naca) << 2;
        cdb
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    WantsData,
    Collects,
    InStore,
    Waits,
    Ended,
}

#[derive(Debug)]
struct Command {
    nexus: usize,
    attribute: Attribute,
    naca: bool,
    kind: Kind,
    task: Task,
    stage: Stage,
}

/// Where an answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Start,
    Step,
    /// It had waited; what was granted before an allegiance began is not taken back by it.
    Turn,
}

struct World {
    unit: Arc<LogicalUnit>,
    device: Arc<Device>,
    nexuses: Vec<Nexus>,
    woken: Arc<Woken>,
    commands: Vec<Command>,
    /// The model: whose allegiance stands.
    faulted: Option<usize>,
}

impl World {
    fn new() -> World {
        let unit = Arc::new(unit_of(config()));
        let units = [(Lun::from_number(0), Arc::clone(&unit))];
        let device = Arc::new(Device::new("iqn.x", [1], units).unwrap());
        let woken = Arc::default();
        let nexuses = (0..NEXUSES).map(|index| nexus(&device, &woken, index)).collect();
        World { unit, device, nexuses, woken, commands: Vec::new(), faulted: None }
    }

    fn open(&self) -> Vec<usize> {
        (0..self.commands.len()).filter(|&index| self.commands[index].stage != Stage::Ended).collect()
    }

    /// SAM-5, tables 37 and 38.
    fn expected_refusal(&self, nexus: usize, attribute: Attribute, naca: bool) -> Option<Status> {
        let is_turn_taken = self.open().iter().any(|&index| self.commands[index].attribute == Attribute::Aca);
        match self.faulted {
            Some(faulted) if faulted == nexus => {
                (attribute != Attribute::Aca || is_turn_taken).then_some(Status::AcaActive)
            }
            Some(_) if naca => Some(Status::AcaActive),
            Some(_) => Some(Status::Busy),
            None => None,
        }
    }

    fn start(&mut self, nexus: usize, attribute: Attribute, naca: bool, kind: Kind) {
        let (index, refusal) = (self.commands.len(), self.expected_refusal(nexus, attribute, naca));
        let terms = Terms { attribute, key: index as u64, ..Terms::default() };
        let (task, next) =
            Task::start_with(&self.nexuses[nexus], Lun::from_number(0), &kind.cdb(naca), &terms);
        // Without an allegiance the attribute means nothing.
        let is_wrong = attribute == Attribute::Aca && self.faulted.is_none();
        let counted = if is_wrong { Attribute::Simple } else { attribute };
        self.commands.push(Command { nexus, attribute: counted, naca, kind, task, stage: Stage::Waits });
        if let Some(status) = refusal {
            assert_eq!(next, Next::Done(Completion::status(status)));
            self.commands[index].stage = Stage::Ended;
            return;
        }
        if is_wrong && let Next::Done(done) = &next {
            assert_eq!(done.sense.map(|sense| sense.asc()), Some(0x49), "INVALID MESSAGE ERROR");
        }
        self.take(index, next, After::Start);
    }

    /// Takes what a command says.
    fn take(&mut self, index: usize, next: Next, after: After) {
        self.commands[index].stage = match next {
            Next::DataOut { .. } => Stage::WantsData,
            Next::Wait => Stage::Waits,
            Next::Io(Io::AbortTasks { nexuses, .. }) => {
                let is_meant = |other: &usize| {
                    *other != index && nexuses.contains(self.nexuses[self.commands[*other].nexus].name())
                };
                let meant: Vec<_> = self.open().into_iter().filter(is_meant).collect();
                meant.into_iter().for_each(|other| self.abort(other));
                let next = self.resume(index, done(Ok(IoOutcome::Done)));
                // What it brought about was decided before.
                return self.take(index, next, After::Turn);
            }
            Next::Io(_) => {
                let command = &self.commands[index];
                // Who is alone at the medium goes on to its end there.
                let may_go_on =
                    after == After::Turn || self.is_its_own(command) || command.kind == Kind::Compare;
                assert!(self.faulted.is_none() || may_go_on, "{index} goes on though it is blocked");
                Stage::InStore
            }
            Next::Done(completion) => {
                self.answered(index, &completion, after);
                Stage::Ended
            }
            other => panic!("{other:?}"),
        };
    }

    /// The command deals with the allegiance that stands.
    fn is_its_own(&self, command: &Command) -> bool {
        self.faulted == Some(command.nexus) && command.attribute == Attribute::Aca
    }

    /// A command has ended with a status: what that does to the model, and whether it might.
    fn answered(&mut self, index: usize, completion: &Completion, after: After) {
        let Command { nexus, attribute, naca, .. } = self.commands[index];
        let is_aca = attribute == Attribute::Aca;
        let is_its_own = self.is_its_own(&self.commands[index]);
        assert!(self.faulted.is_none() || is_its_own || after == After::Turn, "{index} is blocked");
        if completion.status == Status::CheckCondition {
            match self.faulted {
                _ if is_aca && naca => self.faulted = Some(nexus),
                Some(faulted) if is_aca && faulted == nexus => self.faulted = None,
                None if naca => self.faulted = Some(nexus),
                _ => {}
            }
        }
    }

    fn resume(&mut self, index: usize, event: Event<'_>) -> Next {
        let command = &mut self.commands[index];
        command.task.resume(&self.nexuses[command.nexus], event)
    }

    /// A command that has begun goes on.
    fn step(&mut self, index: usize, collects: bool, fails: bool) {
        let command = &mut self.commands[index];
        let next = match command.stage {
            Stage::WantsData if collects => {
                command.task.collects(&self.nexuses[command.nexus]);
                command.stage = Stage::Collects;
                return;
            }
            Stage::WantsData | Stage::Collects => self.resume(index, Event::DataOut(&[0; 2 * BLOCK_BYTES])),
            Stage::InStore if fails => self.resume(index, done(Err(IoError::Hardware))),
            Stage::InStore => self.resume(index, done(Ok(IoOutcome::Done))),
            Stage::Waits | Stage::Ended => return,
        };
        self.take(index, next, After::Step);
    }

    fn abort(&mut self, index: usize) {
        let command = &mut self.commands[index];
        if command.task.is_open() {
            command.task.abandon(&self.nexuses[command.nexus]);
        }
        command.stage = Stage::Ended;
    }

    fn abort_all(&mut self, is_meant: impl Fn(&Command) -> bool) {
        for index in self.open() {
            if is_meant(&self.commands[index]) {
                self.abort(index);
            }
        }
    }

    /// The driver hears of those that may go on.
    fn hear(&mut self) {
        let woken = std::mem::take(&mut *self.woken.0.lock().unwrap());
        for index in woken.into_iter().map(|key| key as usize) {
            if self.commands[index].stage == Stage::Waits {
                let next = self.resume(index, Event::Turn { data_out: &[0; 2 * BLOCK_BYTES] });
                self.take(index, next, After::Turn);
            }
        }
    }

    fn clear(&mut self, nexus: usize) {
        self.abort_all(|command| command.nexus == nexus && command.attribute == Attribute::Aca);
        self.nexuses[nexus].clear_aca(Lun::from_number(0));
        self.ends(nexus);
    }

    /// An allegiance of this nexus is over.
    fn ends(&mut self, nexus: usize) {
        self.faulted.take_if(|faulted| *faulted == nexus);
    }

    fn act(&mut self, action: Action) {
        let open = self.open();
        let pick = |choice: usize| open.get(choice % open.len().max(1)).copied();
        match action {
            Action::Start { nexus, attribute, naca, kind } => self.start(nexus, attribute, naca, kind),
            Action::Step { choice, collects, fails } => {
                pick(choice).into_iter().for_each(|index| self.step(index, collects, fails));
            }
            Action::Abort(choice) => pick(choice).into_iter().for_each(|index| self.abort(index)),
            Action::Hear => self.hear(),
            Action::Clear(nexus) => self.clear(nexus),
            Action::Reset => {
                self.abort_all(|_| true);
                assert!(self.nexuses[0].logical_unit_reset(Lun::from_number(0)));
                self.faulted = None;
            }
            Action::ResetNexus(nexus) => {
                self.abort_all(|command| command.nexus == nexus);
                self.nexuses[nexus].reset();
                self.ends(nexus);
            }
            Action::Lose(nexus) => {
                self.abort_all(|command| command.nexus == nexus);
                self.nexuses[nexus] = self::nexus(&self.device, &self.woken, nexus);
                self.ends(nexus);
            }
            Action::Mode(bits) => {
                let mut values = self.unit.mode_values();
                values.flags = ModeFlags::any_of(bits);
                let selected = Selected { values, has_caching_page: true };
                self.unit.change_mode(false, |_| Ok(selected)).unwrap();
            }
        }
        assert_eq!(self.unit.tasks().is_blocking(), self.faulted.is_some(), "after {action:?}");
        if matches!(action, Action::Hear) && self.faulted.is_none() && self.woken.0.lock().unwrap().is_empty()
        {
            let open = self.open();
            let has_begun = open.iter().any(|&index| self.commands[index].stage != Stage::Waits);
            assert!(has_begun || open.is_empty(), "nobody is left to wake them: {:#?}", self.commands);
        }
    }
}

fn nexus(device: &Arc<Device>, woken: &Arc<Woken>, index: usize) -> Nexus {
    let name = format!("iqn.{index},i,0x1");
    Nexus::new(Arc::clone(device), device.ports()[0], name).waking(Arc::clone(woken) as _)
}

/// An operation has ended.
fn done(result: Result<IoOutcome, IoError>) -> Event<'static> {
    Event::Io { result, data_out: &[0; 2 * BLOCK_BYTES], medium: &[0; BLOCK_BYTES] }
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Start { nexus: usize, attribute: Attribute, naca: bool, kind: Kind },
    Step { choice: usize, collects: bool, fails: bool },
    Abort(usize),
    Hear,
    Clear(usize),
    Reset,
    ResetNexus(usize),
    Lose(usize),
    Mode(u16),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let attribute = prop_oneof![
        5 => Just(Attribute::Simple), 2 => Just(Attribute::Ordered), 1 => Just(Attribute::HeadOfQueue),
        2 => Just(Attribute::Aca),
    ];
    let kind = prop::sample::select(vec![
        Kind::Ready,
        Kind::Read,
        Kind::Read,
        Kind::Write,
        Kind::Write,
        Kind::Compare,
        Kind::OutOfRange,
        Kind::NoSuchPage,
    ]);
    let start = (0..NEXUSES, attribute, prop::bool::weighted(0.3), kind)
        .prop_map(|(nexus, attribute, naca, kind)| Action::Start { nexus, attribute, naca, kind });
    let step = (any::<usize>(), prop::bool::weighted(0.3), prop::bool::weighted(0.1))
        .prop_map(|(choice, collects, fails)| Action::Step { choice, collects, fails });
    let action = prop_oneof![
        8 => start,
        8 => step,
        1 => any::<usize>().prop_map(Action::Abort),
        5 => Just(Action::Hear),
        3 => (0..NEXUSES).prop_map(Action::Clear),
        1 => Just(Action::Reset),
        1 => (0..NEXUSES).prop_map(Action::ResetNexus),
        1 => (0..NEXUSES).prop_map(Action::Lose),
        1 => any::<u16>().prop_map(Action::Mode),
    ];
    prop::collection::vec(action, 1..150)
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn allegiances_leave_nothing_unanswered(actions in actions()) {
        let mut world = World::new();
        actions.into_iter().for_each(|action| world.act(action));
        world.act(Action::Mode(0));
        // All ends if what has begun is carried on, and allegiances are cleared.
        for _ in 0..4 * world.commands.len() + 4 {
            (0..NEXUSES).for_each(|nexus| world.act(Action::Clear(nexus)));
            world.act(Action::Hear);
            world.open().into_iter().for_each(|index| world.step(index, false, false));
        }
        prop_assert!(world.open().is_empty(), "{:#?}", world.commands);
        (0..NEXUSES).for_each(|nexus| world.act(Action::Clear(nexus)));
        prop_assert!(world.unit.tasks().is_at_rest());
    }
}
