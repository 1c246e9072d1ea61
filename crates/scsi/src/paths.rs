//! The ways of a nexus to its units. Each comes into being when it is first used.
//!
//! A target may have thousands of units and thousands of initiators, each of which uses one of them. So a nexus attaches to a unit when
//! its first command gets there, or before the unit tells its nexuses anything ([`LogicalUnit::attach_all`]): whoever asks finds no
//! difference to a nexus that is attached to everything from its beginning.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::attention::{Herald, ItlNexus};
use crate::device::Device;
use crate::identity::UnitName;
use crate::lun::Lun;
use crate::lun_map::{Entry, LunMap};
use crate::nexus::NexusName;
use crate::reservations::access::Permission;
use crate::status::Status;
use crate::task_set::Member;
use crate::unit::LogicalUnit;

/// Ways that have their memory together, so that a nexus that uses few units has little.
type Group = Box<[OnceLock<Path>]>;

/// How many.
const GROUP_LENGTH: usize = 64;

/// The way from a nexus to one unit: the I_T_L nexus and its unit.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) unit: Arc<LogicalUnit>,
    pub(crate) itl: Arc<ItlNexus>,
    /// Where the unit is in [`Device::units`].
    pub(crate) place: usize,
    /// This nexus may not change the medium.
    pub(crate) read_only: bool,
    pub(crate) member: Arc<Member>,
}

impl Path {
    /// A command of the nexus ends with `status`, which the initiator may be told again (SPC-4, UA_INTLCK_CTRL).
    #[cold]
    pub(crate) fn note_refusal(&self, status: Status) {
        if self.unit.mode().tells_refusals() {
            self.itl.establish_after(status);
        }
    }

    /// True while WRITE and its kind are refused to this nexus.
    pub(crate) fn write_protected(&self) -> bool {
        self.read_only || self.unit.write_protected()
    }
}

/// All ways of one nexus, by their index in its [`LunMap`].
#[derive(Debug)]
pub(crate) struct Paths {
    device: Arc<Device>,
    name: NexusName,
    map: Arc<LunMap>,
    groups: Box<[OnceLock<Group>]>,
    /// Locked before anything of a unit.
    attaching: Mutex<Attaching>,
}

/// What is looked at when a way comes into being.
#[derive(Debug, Default)]
struct Attaching {
    /// The nexus is lost: no more.
    has_ended: bool,
    herald: Option<Arc<dyn Herald>>,
}

impl Paths {
    pub(crate) fn new(device: Arc<Device>, name: NexusName, map: Arc<LunMap>) -> Paths {
        let groups = map.entries().chunks(GROUP_LENGTH).map(|_| OnceLock::new()).collect();
        Paths { device, name, map, groups, attaching: Mutex::default() }
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn name(&self) -> &NexusName {
        &self.name
    }

    pub(crate) fn map(&self) -> &LunMap {
        &self.map
    }

    fn attaching(&self) -> MutexGuard<'_, Attaching> {
        self.attaching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way at `index`; none after the nexus is lost.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&Path> {
        match self.attached_at(index) {
            Some(path) => Some(path),
            None => self.attach(index),
        }
    }

    #[inline]
    fn attached_at(&self, index: usize) -> Option<&Path> {
        self.groups.get(index / GROUP_LENGTH)?.get()?.get(index % GROUP_LENGTH)?.get()
    }

    #[cold]
    fn attach(&self, index: usize) -> Option<&Path> {
        let Entry { number, place, read_only } = *self.map.entries().get(index)?;
        let attaching = self.attaching();
        if attaching.has_ended {
            return None;
        }
        let group = self.groups.get(index / GROUP_LENGTH)?.get_or_init(|| {
            let length = self.map.entries().len() - index / GROUP_LENGTH * GROUP_LENGTH;
            (0..length.min(GROUP_LENGTH)).map(|_| OnceLock::new()).collect()
        });
        let (slot, unit) = (group.get(index % GROUP_LENGTH)?, self.device.unit_at(place)?);
        Some(slot.get_or_init(|| {
            let (itl, member) = (unit.attach(&self.name), unit.tasks().join());
            // What comes with a nexus, POWER ON, is told to nobody.
            if let Some(herald) = &attaching.herald {
                itl.set_herald(Lun::from_number(number), Arc::clone(herald));
            }
            Path { unit: Arc::clone(unit), itl, member, place, read_only }
        }))
    }

    /// Those that have come into being.
    pub(crate) fn attached(&self) -> impl Iterator<Item = &Path> {
        self.groups.iter().filter_map(OnceLock::get).flatten().filter_map(OnceLock::get)
    }

    /// All, for what has to be kept for each of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Path> {
        (0..self.map.entries().len()).filter_map(|index| self.get(index))
    }

    /// The way to the unit of this name.
    pub(crate) fn reach(&self, name: UnitName) -> Option<&Path> {
        let indices = self.device.places_of(name).filter_map(|place| self.map.index_of_place(place));
        self.get(indices.min()?)
    }

    /// Has `herald` told of what comes up from now on. Only the first one is.
    pub(crate) fn set_herald(&self, herald: &Arc<dyn Herald>) {
        let mut attaching = self.attaching();
        let herald = attaching.herald.get_or_insert_with(|| Arc::clone(herald));
        for (index, entry) in self.map.entries().iter().enumerate() {
            if let Some(path) = self.attached_at(index) {
                path.itl.set_herald(Lun::from_number(entry.number), Arc::clone(herald));
            }
        }
    }

    /// The nexus is lost: from now on nothing comes into being, and what has is no more of its units'.
    pub(crate) fn end(&self) {
        self.attaching().has_ended = true;
        for path in self.attached() {
            path.unit.detach(&path.itl);
            // A copy that still has the way must not go on: reservations are not told to it any more.
            path.itl.set_permission(Permission::Identify);
            path.unit.tasks().part(&path.member);
        }
    }
}

/// The nexuses of a device.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    nexuses: Mutex<Nexuses>,
}

#[derive(Debug, Default)]
struct Nexuses {
    next: u64,
    /// In the order in which they came up.
    by_number: BTreeMap<u64, Weak<Paths>>,
}

impl Roster {
    fn nexuses(&self) -> MutexGuard<'_, Nexuses> {
        self.nexuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A nexus has come up; answers what it is to part with.
    pub(crate) fn join(&self, paths: &Arc<Paths>) -> u64 {
        let mut nexuses = self.nexuses();
        nexuses.next += 1;
        let number = nexuses.next;
        nexuses.by_number.insert(number, Arc::downgrade(paths));
        number
    }

    pub(crate) fn part(&self, number: u64) {
        self.nexuses().by_number.remove(&number);
    }

    /// Attaches every nexus that can reach the unit at `place` of the device.
    fn attach_all(&self, place: usize) {
        let all: Vec<_> = self.nexuses().by_number.values().filter_map(Weak::upgrade).collect();
        for paths in all {
            if let Some(index) = paths.map.index_of_place(place) {
                paths.get(index);
            }
        }
    }
}

/// The devices that a unit is part of, each with its place there.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    rosters: Mutex<Vec<(Weak<Roster>, usize)>>,
}

impl Devices {
    fn rosters(&self) -> MutexGuard<'_, Vec<(Weak<Roster>, usize)>> {
        self.rosters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn join(&self, roster: &Arc<Roster>, place: usize) {
        let mut rosters = self.rosters();
        rosters.retain(|(other, _)| other.strong_count() > 0);
        rosters.push((Arc::downgrade(roster), place));
    }

    pub(crate) fn attach_all(&self) {
        let rosters = self.rosters().clone();
        for (roster, place) in rosters {
            if let Some(roster) = roster.upgrade() {
                roster.attach_all(place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alua::AccessState;
    use crate::attention::UnitAttention;
    use crate::nexus::Nexus;
    use crate::nexus::tests::Told;
    use crate::sense::AdditionalSense;
    use crate::unit::Whose;
    use crate::unit::tests::{config, unit_of};

    const UNITS: u16 = 200;

    fn device() -> Arc<Device> {
        let units = (0..UNITS).map(|number| (Lun::from_number(number), Arc::new(unit_of(config()))));
        Arc::new(Device::new("iqn.x", [1], units).unwrap())
    }

    fn nexus(device: &Arc<Device>, initiator: &str) -> Nexus {
        Nexus::new(Arc::clone(device), device.ports()[0], initiator.into())
    }

    fn lun(number: u16) -> Lun {
        Lun::from_number(number)
    }

    /// What commands of the nexus to the unit would be told.
    fn told(nexus: &Nexus, number: u16) -> Vec<UnitAttention> {
        let (_, path) = nexus.find(lun(number)).unwrap();
        std::iter::from_fn(|| path.itl.take()).collect()
    }

    fn attached(device: &Device, number: u16) -> usize {
        let names: Vec<_> = device.roster().nexuses().by_number.values().filter_map(Weak::upgrade).collect();
        let is_there = |path: &Path| path.place == usize::from(number);
        names.iter().filter(|paths| paths.attached().any(is_there)).count()
    }

    #[test]
    fn a_nexus_attaches_to_what_it_uses() {
        let device = device();
        let (user, idler) = (nexus(&device, "a"), nexus(&device, "b"));
        assert!(user.find(lun(150)).is_some());
        assert_eq!((attached(&device, 150), attached(&device, 0)), (1, 0));
        assert_eq!(user.luns().len(), idler.luns().len());
        assert_eq!(user.place_of(lun(7)), Some(7));
        assert_eq!(user.lun_at(199), Some(lun(199)));
        assert!(user.find(lun(UNITS)).is_none());
        assert_eq!(attached(&device, 7), 0, "to ask for a number is no use");
    }

    /// Changes that the nexuses of a unit are told of.
    type Change = fn(&LogicalUnit, &Nexus);

    #[test]
    fn who_is_not_attached_is_told_what_the_others_are() {
        let changes: &[(Change, UnitAttention)] = &[
            (|unit, _| assert!(unit.resize(1234).unwrap()), UnitAttention::CapacityChanged),
            (
                |unit, nexus| {
                    let state = AccessState::ActiveNonOptimized;
                    assert!(unit.change_access_implicitly(&[(nexus.target_port(), state)]));
                },
                UnitAttention::AccessStateChanged,
            ),
            (
                |unit, nexus| unit.set_priority(&Whose::Everybodys(nexus.name()), 3).unwrap(),
                UnitAttention::PriorityChanged,
            ),
            (
                |unit, nexus| {
                    let itl = Arc::clone(&nexus.find(lun(9)).unwrap().1.itl);
                    unit.establish_for_others(&itl, UnitAttention::TimestampChanged);
                },
                UnitAttention::TimestampChanged,
            ),
        ];
        for (change, attention) in changes {
            let device = device();
            let (issuer, user, idler) = (nexus(&device, "i"), nexus(&device, "u"), nexus(&device, "d"));
            assert!(user.find(lun(9)).is_some() && attached(&device, 9) == 1);
            change(device.unit_at(9).unwrap(), &issuer);
            assert_eq!(attached(&device, 9), 3, "{attention:?}");
            assert_eq!(told(&user, 9), [UnitAttention::PowerOn, *attention]);
            assert_eq!(told(&idler, 9), [UnitAttention::PowerOn, *attention]);
        }
    }

    #[test]
    fn a_reset_is_told_by_power_on_and_attaches_nobody() {
        let device = device();
        let (first, second) = (nexus(&device, "a"), nexus(&device, "b"));
        first.target_reset();
        assert_eq!(attached(&device, 3), 0);
        assert_eq!(told(&second, 3), [UnitAttention::PowerOn]);
    }

    #[test]
    fn a_lost_nexus_is_attached_to_nothing_and_stays_so() {
        let device = device();
        let lost = nexus(&device, "a");
        assert!(lost.find(lun(1)).is_some());
        let paths = Arc::clone(&lost.paths);
        drop(lost);
        assert!(paths.get(2).is_none());
        assert!(device.roster().nexuses().by_number.is_empty());
        let unit = device.unit_at(1).unwrap();
        assert!(unit.nexus_names().is_empty());
    }

    #[test]
    fn who_wants_to_be_told_hears_of_units_that_were_never_used() {
        let device = device();
        let told = Arc::new(Told::default());
        let herald: Arc<dyn Herald> = told.clone();
        let before = nexus(&device, "a");
        assert!(before.find(lun(1)).is_some());
        let _before = before.heralded(&herald);
        for number in [1, 2] {
            assert!(device.unit_at(number).unwrap().resize(99).unwrap());
        }
        let expected = [1, 2].map(|number| (Some(number), AdditionalSense::CAPACITY_CHANGED));
        assert_eq!(told.heard(), expected);
    }

    #[test]
    fn nexuses_that_come_and_go_leave_nothing_behind_while_units_tell_of_things() {
        let device = device();
        std::thread::scope(|scope| {
            let units = scope.spawn(|| {
                for blocks in 1..2000 {
                    let _ = device.unit_at(blocks as usize % 4).unwrap().resize(blocks);
                }
            });
            for name in ["a", "b"] {
                let device = &device;
                scope.spawn(move || {
                    for round in 0..300_u16 {
                        let nexus = nexus(device, name);
                        let power_on = told(&nexus, round % 4).first().copied();
                        assert_eq!(power_on, Some(UnitAttention::PowerOn));
                    }
                });
            }
            units.join().unwrap();
        });
        assert!((0..4).all(|place| device.unit_at(place).unwrap().nexus_names().is_empty()));
    }
}
