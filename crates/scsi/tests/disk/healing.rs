//! Writes of marked blocks, several at a time, with failures, aborts, marks made anew, and a crash at any moment: what was
//! answered stands ([`crate::marks`] has one command at a time; SBC-3, WRITE LONG).

use std::collections::BTreeMap;
use std::sync::Arc;

use lunette_cases::cases;
use lunette_scsi::{
    Device, Event, Io, IoError, IoOutcome, LogicalUnit, Lun, Next, Nexus, Saved, Status, Task, UnitState,
};
use proptest::prelude::*;

use crate::host::*;

const LUN: Lun = Lun::from_number(0);
/// What is written and marked.
const BLOCKS_USED: u32 = 4;

#[derive(Clone, Debug)]
enum Action {
    /// A WRITE of so many blocks from this one.
    Write(u32, u16),
    /// WRITE LONG with WR_UNCOR, where nothing else is under way.
    Mark(u32),
    /// The operation of one of the writes ends.
    End { which: usize, went_well: bool, is_aborted: bool },
    /// The unit's own work begins an operation, or it ends.
    Work { went_well: bool },
}

fn actions() -> impl Strategy<Value = Action> {
    let went_well = || prop::bool::weighted(0.7);
    prop_oneof![
        2 => (0..BLOCKS_USED, 1..=2u16).prop_map(|(lba, blocks)| Action::Write(lba, blocks)),
        1 => (0..BLOCKS_USED).prop_map(Action::Mark),
        5 => (any::<usize>(), went_well(), prop::bool::weighted(0.1))
            .prop_map(|(which, went_well, is_aborted)| Action::End { which, went_well, is_aborted }),
        1 => went_well().prop_map(|went_well| Action::Work { went_well }),
    ]
}

/// What a read of a block must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Must {
    Succeed,
    Fail,
    /// A command that changes it was not answered, or not well.
    Either,
}

/// An operation that is under way: what it stores, if it stores the state, which the driver takes no earlier and no
/// later than when it begins.
struct UnderWay(Option<Image>);

/// The state, and how many were taken before.
type Image = (usize, UnitState);

struct Writing {
    task: Task,
    blocks: std::ops::Range<u32>,
    io: UnderWay,
}

struct Model {
    unit: Arc<LogicalUnit>,
    nexus: Nexus,
    images: usize,
    stored: Image,
    must: BTreeMap<u32, Must>,
    writing: Vec<Writing>,
    work: Option<UnderWay>,
}

fn nexus_of(unit: &Arc<LogicalUnit>) -> Nexus {
    let device = Device::new("iqn.2026-11.io.lunette:t", [1], [(LUN, Arc::clone(unit))]);
    Host::on(Arc::new(device.expect("a possible device"))).nexus
}

fn can_be_read(nexus: &Nexus, lba: u32) -> bool {
    let (mut task, next) = Task::start(nexus, LUN, &cdb10(0x28, 0, lba, 1));
    match next {
        Next::Io(Io::Read { .. }) => task.abandon(nexus),
        Next::Done(ref done) => assert_eq!(done.status, Status::CheckCondition),
        other => panic!("{other:?}"),
    }
    !matches!(next, Next::Done(_))
}

fn event(went_well: bool, data_out: &[u8]) -> Event<'_> {
    let result = if went_well { Ok(IoOutcome::Done) } else { Err(IoError::Hardware) };
    Event::Io { result, data_out, medium: &[] }
}

impl Model {
    fn new() -> Model {
        let unit = Arc::new(LogicalUnit::new(config(), Saved::Nothing).expect("a possible unit"));
        let must = (0..BLOCKS_USED + 1).map(|lba| (lba, Must::Succeed)).collect();
        let (nexus, stored) = (nexus_of(&unit), (0, unit.state()));
        Model { unit, nexus, images: 0, stored, must, writing: Vec::new(), work: None }
    }

    fn begin(&mut self, io: &Io) -> UnderWay {
        self.images += 1;
        UnderWay((*io == Io::SaveState).then(|| (self.images, self.unit.state())))
    }

    /// No older state is stored after a later one.
    fn end(&mut self, UnderWay(image): UnderWay, went_well: bool) {
        if let Some(image) = image.filter(|image| went_well && image.0 > self.stored.0) {
            self.stored = image;
        }
    }

    fn doubt(&mut self, blocks: std::ops::Range<u32>, certain: Must) {
        for (_, must) in self.must.range_mut(blocks).filter(|(_, must)| **must != certain) {
            *must = Must::Either;
        }
    }

    fn apply(&mut self, action: Action) {
        match action {
            Action::Write(lba, count) => {
                let blocks = lba..lba + u32::from(count);
                self.doubt(blocks.clone(), Must::Succeed);
                let (mut task, next) = Task::start(&self.nexus, LUN, &cdb10(0x2a, 0, lba, count));
                assert!(matches!(next, Next::DataOut { .. }));
                let next =
                    task.resume(&self.nexus, Event::DataOut(&[1; 2 * BLOCK][..usize::from(count) * BLOCK]));
                let Next::Io(io) = next else { panic!("{next:?}") };
                let io = self.begin(&io);
                self.writing.push(Writing { task, blocks, io });
            }
            Action::Mark(lba) if self.writing.is_empty() => {
                self.doubt(lba..lba + 1, Must::Fail);
                let (mut task, next) = Task::start(&self.nexus, LUN, &cdb10(0x3f, 0x40, lba, 0));
                assert_eq!(next, Next::Io(Io::SaveState));
                let save = self.begin(&Io::SaveState);
                self.end(save, true);
                assert!(matches!(task.resume(&self.nexus, event(true, &[])), Next::Done(_)));
                self.must.insert(lba, Must::Fail);
            }
            Action::End { which, went_well, is_aborted } if !self.writing.is_empty() => {
                let Writing { mut task, blocks, io } = self.writing.swap_remove(which % self.writing.len());
                self.end(io, went_well);
                if is_aborted {
                    return task.abandon(&self.nexus);
                }
                match task.resume(&self.nexus, event(went_well, &[])) {
                    Next::Io(io) => {
                        let io = self.begin(&io);
                        self.writing.push(Writing { task, blocks, io });
                    }
                    Next::Done(done) if done.status == Status::Good => {
                        self.must.range_mut(blocks).for_each(|(_, must)| *must = Must::Succeed);
                    }
                    Next::Done(_) => assert!(!went_well),
                    other => panic!("{other:?}"),
                }
            }
            Action::Work { went_well } => match self.work.take() {
                Some(io) => {
                    self.end(io, went_well);
                    self.unit.work_done(if went_well { Ok(()) } else { Err(IoError::Hardware) });
                }
                None => {
                    let io = self.unit.next_work();
                    self.work = io.map(|io| self.begin(&io));
                }
            },
            Action::Mark(_) | Action::End { .. } => {}
        }
    }

    fn judge(&self, nexus: &Nexus) {
        for (&lba, &must) in self.must.iter().filter(|(_, must)| **must != Must::Either) {
            assert_eq!(can_be_read(nexus, lba), must == Must::Succeed, "block {lba}");
        }
    }

    fn restarted(&self) -> LogicalUnit {
        LogicalUnit::new(config(), self.stored.1.saved()).expect("a sound state")
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn what_was_answered_stands_after_a_crash(actions in prop::collection::vec(actions(), 1..40)) {
        let mut model = Model::new();
        for action in actions {
            model.apply(action);
            model.judge(&model.nexus);
            model.judge(&nexus_of(&Arc::new(model.restarted())));
        }
        // Nothing is left undone for good: without failures the process and what is stored come to agree.
        while !model.writing.is_empty() {
            model.apply(Action::End { which: 0, went_well: true, is_aborted: false });
        }
        for _ in 0..4 {
            model.apply(Action::Work { went_well: true });
        }
        assert_eq!(model.restarted().state(), model.unit.state());
        let restarted = nexus_of(&Arc::new(model.restarted()));
        for lba in 0..=BLOCKS_USED {
            assert_eq!(can_be_read(&model.nexus, lba), can_be_read(&restarted, lba), "block {lba}");
        }
    }
}
