//! One I_T nexus: an initiator port that is logged in to the target port (SAM-5, I_T nexus).

use std::cell::LazyCell;
use std::sync::Arc;

use crate::attention::{Herald, UnitAttention};
use crate::device::{Device, TargetPort};
use crate::domain::Membership;
use crate::identity::UnitName;
use crate::lun::Lun;
use crate::lun_map::LunMap;
use crate::paths::{Path, Paths};
use crate::sense::{AdditionalSense, EncodedSense, SenseData, SenseKey};
use crate::status::Status;
use crate::task_set::{NobodyWaits, Wake};

/// Which I_T nexus: by the names of its ports, whether it exists at the moment or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NexusName {
    /// The name of the initiator port; for iSCSI `iqn...,i,0x<ISID>`.
    pub initiator_port: Arc<str>,
    /// The target port.
    pub target_port: TargetPort,
}

/// An I_T nexus. The first answer of every unit to it is the POWER ON unit attention; dropping it is the I_T nexus loss.
#[derive(Debug)]
pub struct Nexus {
    pub(crate) paths: Arc<Paths>,
    /// In the device's [`crate::paths::Roster`].
    number: u64,
    waker: Arc<dyn Wake>,
    /// Its place among the nexuses of its initiator, if that is known.
    membership: Option<Membership>,
}

/// The way from a nexus to one of its units.
#[derive(Clone, Copy, Debug)]
pub struct Way<'a> {
    pub(crate) nexus: &'a Nexus,
    /// In the nexus's [`LunMap`].
    pub(crate) index: usize,
    pub(crate) path: &'a Path,
}

impl Way<'_> {
    /// The place of the unit in [`Device::units`].
    #[inline]
    pub fn place(&self) -> usize {
        self.path.place
    }
}

impl Nexus {
    /// A nexus of `initiator_port_name` (for iSCSI `iqn...,i,0x<ISID>`) with every unit of `device` through `target_port`, one
    /// of the device's ports.
    pub fn new(device: Arc<Device>, target_port: TargetPort, initiator_port_name: String) -> Nexus {
        let map = Arc::new(LunMap::everything(&device));
        Nexus::mapped(device, target_port, map, initiator_port_name)
    }

    /// As [`Nexus::new`], with what `map`, a view of this device, shows of it.
    pub fn mapped(
        device: Arc<Device>,
        target_port: TargetPort,
        map: Arc<LunMap>,
        initiator_port_name: String,
    ) -> Nexus {
        let name = NexusName { initiator_port: initiator_port_name.into(), target_port };
        let paths = Arc::new(Paths::new(device, name, map));
        let number = paths.device().roster().join(&paths);
        Nexus { paths, number, waker: Arc::new(NobodyWaits), membership: None }
    }

    /// The same, with somebody to tell when commands of this nexus that had to [wait](crate::Next::Wait) may go on. A
    /// driver that runs more than one command at a time needs it.
    pub fn waking(mut self, waker: Arc<dyn Wake>) -> Nexus {
        self.waker = waker;
        self
    }

    /// The same, for the initiator `party`: its copies reach what its other nexuses in the domain reach too.
    /// The driver answers for it that two nexuses of the same party have the same rights to everything.
    pub fn of_party(mut self, party: &str) -> Nexus {
        self.membership = Some(self.device().domain().join(party, Arc::clone(&self.paths)));
        self
    }

    /// The same, with somebody to tell of unit attention conditions as they come up, for who can tell the initiator of them before
    /// it asks. What has come up before this, as POWER ON, is not told.
    pub fn heralded(self, herald: &Arc<dyn Herald>) -> Nexus {
        self.paths.set_herald(herald);
        self
    }

    /// Sense data for a unit attention condition of the unit, in the format that the unit uses (D_SENSE); none where
    /// there is no such unit.
    pub fn attention_sense(&self, lun: Lun, code: AdditionalSense) -> Option<EncodedSense> {
        let (_, path) = self.find(lun)?;
        Some(SenseData::new(SenseKey::UnitAttention, code).encode(path.unit.mode().descriptor_sense()))
    }

    pub(crate) fn waker(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.waker)
    }

    /// The target device of this nexus.
    pub fn device(&self) -> &Arc<Device> {
        self.paths.device()
    }

    /// The target port.
    pub fn target_port(&self) -> TargetPort {
        self.name().target_port
    }

    /// Its name.
    pub fn name(&self) -> &NexusName {
        self.paths.name()
    }

    /// The numbers of the units that this nexus can reach, in rising order.
    pub fn luns(&self) -> impl ExactSizeIterator<Item = Lun> {
        self.paths.map().entries().iter().map(|entry| Lun::from_number(entry.number))
    }

    /// The place in [`Device::units`] of the unit that `lun` names for this nexus.
    pub fn place_of(&self, lun: Lun) -> Option<usize> {
        let map = self.paths.map();
        Some(map.entries()[map.index_of(lun)?].place)
    }

    /// The number under which this nexus reaches the unit at a place of [`Device::units`].
    pub fn lun_at(&self, place: usize) -> Option<Lun> {
        let map = self.paths.map();
        map.index_of_place(place).map(|index| Lun::from_number(map.entries()[index].number))
    }

    /// Whether commands of others wait until answers to reads of this nexus have been taken from the medium, which may be until it ends:
    /// the driver is to give the initiator so much time and no more.
    pub fn keeps_others_waiting(&self) -> bool {
        self.paths.attached().any(|path| path.unit.tasks().waits_for_unsent(&path.member))
    }

    /// Whether answers to reads of this nexus have yet to be taken from the medium of the unit at `place` of [`Device::units`], or of any
    /// unit; if `reserved`, of one that it holds by a RESERVE (SPC-2), which a reset ends.
    pub fn has_unsent(&self, place: Option<usize>, reserved: bool) -> bool {
        self.paths.attached().any(|path| {
            place.is_none_or(|place| path.place == place)
                && path.unit.tasks().has_unsent(&path.member)
                && (!reserved || path.unit.reservations().is_spc2_holder(self.name()))
        })
    }

    /// The way to the unit that `lun` names for this nexus, for who begins commands there.
    #[inline]
    pub fn way_to(&self, lun: Lun) -> Option<Way<'_>> {
        let (index, path) = self.find(lun)?;
        Some(Way { nexus: self, index, path })
    }

    pub(crate) fn find(&self, lun: Lun) -> Option<(usize, &Path)> {
        let index = self.paths.map().index_of(lun)?;
        Some((index, self.paths.get(index)?))
    }

    pub(crate) fn path(&self, index: usize) -> Option<&Path> {
        self.paths.get(index)
    }

    /// The ways to the units of these names, among all that the initiator reaches: by this nexus where it does.
    pub(crate) fn reach(&self, names: impl Iterator<Item = Option<UnitName>>) -> Vec<Option<Path>> {
        // Looked for once and not for each name: an initiator may have many nexuses, and others more.
        let others = LazyCell::new(|| {
            self.membership.map_or_else(Vec::new, |membership| self.device().domain().of_party(membership))
        });
        let way = |name| {
            let own = self.paths.reach(name);
            own.or_else(|| others.iter().find_map(|paths| paths.reach(name))).cloned()
        };
        names.map(|name| name.and_then(way)).collect()
    }

    /// The state part of LOGICAL UNIT RESET (SAM-5); the driver aborts the commands first, and has
    /// [copies ended](crate::LogicalUnit::end_copies) before that. Every nexus,
    /// this one too, gets BUS DEVICE RESET FUNCTION OCCURRED. False: there is no such unit.
    pub fn logical_unit_reset(&self, lun: Lun) -> bool {
        self.find(lun).map(|(_, path)| path.unit.reset()).is_some()
    }

    /// The state part of a target reset (RFC 7143 11.5.1): every unit that this nexus can reach is reset.
    pub fn target_reset(&self) {
        for entry in self.paths.map().entries() {
            if let Some(unit) = self.device().unit_at(entry.place) {
                unit.reset();
            }
        }
    }

    /// Commands of this nexus were aborted by the CLEAR TASK SET of another one (SAM-5): it gets COMMANDS CLEARED BY
    /// ANOTHER INITIATOR, unless they end with a status that says so.
    pub fn commands_cleared(&self, lun: Lun) {
        if let Some((_, path)) = self.find(lun)
            && !path.unit.mode().task_aborted_status()
        {
            path.itl.establish(UnitAttention::CommandsCleared);
        }
    }

    /// Whether commands of this nexus that another one aborts end with TASK ABORTED, instead of without an answer (TAS
    /// bit of the control mode page). A target reset takes no notice of it.
    pub fn answers_aborted(&self, lun: Lun) -> bool {
        self.find(lun).is_some_and(|(_, path)| path.unit.mode().task_aborted_status())
    }

    /// The state part of I_T NEXUS RESET (SAM-5): what the loss of the nexus would undo is undone, and its next commands
    /// get I_T NEXUS LOSS OCCURRED. Copies that reach units through it, as commands of another nexus of the same initiator, end;
    /// what they have asked for before may still be under way.
    pub fn reset(&self) {
        for path in self.paths.all() {
            path.unit.lose(&path.itl);
            path.unit.tasks().end_allegiance_of(&path.member);
        }
    }

    /// The state part of CLEAR ACA (SAM-5): if this nexus has caused an auto contingent allegiance of the unit, it ends, and what
    /// it has blocked goes on. The driver aborts the commands with the ACA attribute first.
    pub fn clear_aca(&self, lun: Lun) {
        if let Some((_, path)) = self.find(lun) {
            path.unit.tasks().end_allegiance_of(&path.member);
        }
    }

    /// QUERY ASYNCHRONOUS EVENT (SAM-5): what the next command to the unit would be told, as additional response
    /// information: how many conditions there are (one, or more) with the sense key, then the additional sense code and its
    /// qualifier. None: nothing is pending, or there is no such unit.
    pub fn query_asynchronous_event(&self, lun: Lun) -> Option<[u8; 3]> {
        const ONE: u8 = 0x10;
        const SEVERAL: u8 = 0x20;
        let (first, count) = self.find(lun)?.1.itl.peek()?;
        let code = first.sense().code;
        let depth = if count == 1 { ONE } else { SEVERAL };
        Some([depth | SenseKey::UnitAttention as u8, code.asc(), code.ascq()])
    }

    /// The transport ended a command by `status` of its own, as BUSY or TASK SET FULL where it has no room.
    pub fn refused(&self, lun: Lun, status: Status) {
        if let Some((_, path)) = self.find(lun) {
            path.note_refusal(status);
        }
    }

    /// Commands of this nexus were ended without a status by an event of the transport, as the loss of a connection (RFC
    /// 7143, 11.14.5): its next command gets SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT. False: there is no such unit.
    pub fn commands_cleared_by_protocol(&self, lun: Lun) -> bool {
        self.find(lun).map(|(_, path)| path.itl.establish(UnitAttention::CommandsClearedByProtocol)).is_some()
    }
}

impl Drop for Nexus {
    fn drop(&mut self) {
        if let Some(membership) = self.membership {
            self.device().domain().part(membership);
        }
        self.device().roster().part(self.number);
        self.paths.end();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::unit::tests::{config, unit_of};

    fn device() -> Arc<Device> {
        let units = [0, 2].map(|number| (Lun::from_number(number), Arc::new(unit_of(config()))));
        Arc::new(Device::new("iqn.x", [1], units).unwrap())
    }

    fn nexus(device: &Arc<Device>, initiator: &str) -> Nexus {
        Nexus::new(Arc::clone(device), device.ports()[0], initiator.into())
    }

    fn next(nexus: &Nexus, number: u16) -> Option<UnitAttention> {
        nexus.find(Lun::from_number(number)).unwrap().1.itl.take()
    }

    #[test]
    fn lookup_tells_the_place_in_the_device() {
        let nexus = nexus(&device(), "host");
        assert_eq!(nexus.find(Lun::from_number(2)).map(|(index, _)| index), Some(1));
        assert_eq!(nexus.way_to(Lun::from_number(2)).map(|way| way.place()), Some(1));
        assert!(nexus.find(Lun::from_number(1)).is_none() && nexus.way_to(Lun::from_number(1)).is_none());
        assert!(nexus.find(Lun::REPORT_LUNS).is_none());
    }

    #[test]
    fn resets_reach_every_nexus() {
        let device = device();
        let (first, second) = (nexus(&device, "a"), nexus(&device, "b"));
        for nexus in [&first, &second] {
            assert_eq!(next(nexus, 0), Some(UnitAttention::PowerOn));
            assert_eq!(next(nexus, 2), Some(UnitAttention::PowerOn));
        }
        assert!(first.logical_unit_reset(Lun::from_number(2)));
        assert!(!first.logical_unit_reset(Lun::from_number(9)));
        for nexus in [&first, &second] {
            assert_eq!(next(nexus, 0), None);
            assert_eq!(next(nexus, 2), Some(UnitAttention::BusDeviceReset));
        }
        second.target_reset();
        assert_eq!(next(&first, 0), Some(UnitAttention::BusDeviceReset));
    }

    /// Keeps what it is told.
    #[derive(Debug, Default)]
    pub(crate) struct Told(std::sync::Mutex<Vec<(Option<u16>, AdditionalSense)>>);

    impl Told {
        /// What was told since this was asked last: of which unit, and what.
        pub(crate) fn heard(&self) -> Vec<(Option<u16>, AdditionalSense)> {
            std::mem::take(&mut *self.0.lock().unwrap())
        }
    }

    impl Herald for Told {
        fn unit_attention(&self, lun: Lun, code: AdditionalSense) {
            self.0.lock().unwrap().push((lun.number(), code));
        }
    }

    #[test]
    fn who_wants_to_be_told_hears_of_each_condition_once_until_it_is_reported() {
        let device = device();
        let told = Arc::new(Told::default());
        let herald: Arc<dyn Herald> = told.clone();
        let (first, second) = (nexus(&device, "a").heralded(&herald), nexus(&device, "b"));
        let heard = || told.heard();
        let reset = |number| (Some(number), AdditionalSense::BUS_DEVICE_RESET);
        second.target_reset();
        assert_eq!(heard(), [], "POWER ON is pending, which stands for it");
        assert_eq!(
            (next(&first, 0), next(&first, 2)),
            (Some(UnitAttention::PowerOn), Some(UnitAttention::PowerOn))
        );
        second.target_reset();
        second.target_reset();
        assert_eq!(heard(), [reset(0), reset(2)]);
        assert_eq!(next(&first, 0), Some(UnitAttention::BusDeviceReset), "told or not, it waits");
        second.target_reset();
        assert_eq!(heard(), [reset(0)]);
        let sense = first.attention_sense(Lun::from_number(2), AdditionalSense::BUS_DEVICE_RESET).unwrap();
        let bytes = sense.as_bytes();
        assert_eq!((bytes[0], bytes[2], bytes[12], bytes[13]), (0x70, 6, 0x29, 3));
        assert!(first.attention_sense(Lun::from_number(9), AdditionalSense::BUS_DEVICE_RESET).is_none());
    }

    #[test]
    fn who_loses_commands_to_another_is_told_or_answered() {
        let device = device();
        let (first, second) = (nexus(&device, "a"), nexus(&device, "b"));
        let zero = Lun::from_number(0);
        assert!(next(&first, 0).is_some() && next(&second, 0).is_some());
        second.commands_cleared(zero);
        assert!(!second.answers_aborted(zero));
        assert_eq!((next(&first, 0), next(&second, 0)), (None, Some(UnitAttention::CommandsCleared)));
    }

    #[test]
    fn commands_cleared_by_the_transport_are_told_to_their_own_nexus() {
        let device = device();
        let (first, second) = (nexus(&device, "a"), nexus(&device, "b"));
        assert!(next(&first, 0).is_some() && next(&first, 2).is_some() && next(&second, 0).is_some());
        assert!(first.commands_cleared_by_protocol(Lun::from_number(0)));
        assert!(!first.commands_cleared_by_protocol(Lun::from_number(9)));
        assert_eq!(next(&first, 0), Some(UnitAttention::CommandsClearedByProtocol));
        assert_eq!((next(&first, 2), next(&second, 0)), (None, None));
    }

    #[test]
    fn a_query_tells_of_events_without_clearing_them() {
        let nexus = nexus(&device(), "a");
        let zero = Lun::from_number(0);
        assert_eq!(nexus.query_asynchronous_event(zero), Some([0x16, 0x29, 0x00]));
        assert!(nexus.commands_cleared_by_protocol(zero));
        assert_eq!(nexus.query_asynchronous_event(zero), Some([0x26, 0x29, 0x00]));
        assert_eq!(next(&nexus, 0), Some(UnitAttention::PowerOn));
        assert_eq!(nexus.query_asynchronous_event(zero), Some([0x16, 0x47, 0x7f]));
        assert!(next(&nexus, 0).is_some());
        assert_eq!(nexus.query_asynchronous_event(zero), None);
        assert_eq!(nexus.query_asynchronous_event(Lun::from_number(9)), None);
    }

    #[test]
    fn a_reset_nexus_has_lost_what_it_had_and_is_told() {
        let device = device();
        let (first, second) = (nexus(&device, "a"), nexus(&device, "b"));
        for number in [0, 2] {
            assert!(next(&first, number).is_some() && next(&second, number).is_some());
        }
        first.find(Lun::from_number(0)).unwrap().1.itl.set_prevents_removal(true);
        first.reset();
        assert!(!second.find(Lun::from_number(0)).unwrap().1.unit.removal_prevented());
        for number in [0, 2] {
            assert_eq!(next(&first, number), Some(UnitAttention::ItNexusLoss));
            assert_eq!(next(&second, number), None);
        }
    }

    #[test]
    fn a_dropped_nexus_prevents_nothing() {
        let device = device();
        let (first, second) = (nexus(&device, "a"), nexus(&device, "b"));
        let (_, path) = first.find(Lun::from_number(0)).unwrap();
        path.itl.set_prevents_removal(true);
        let unit = Arc::clone(&second.find(Lun::from_number(0)).unwrap().1.unit);
        assert!(unit.removal_prevented());
        drop(first);
        assert!(!unit.removal_prevented());
    }
}
