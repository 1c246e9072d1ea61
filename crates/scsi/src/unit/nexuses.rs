//! What a logical unit has of its I_T nexuses: who they are, what each may do, and what all of them must hear.
//!
//! The rules are elsewhere: in [`crate::reservations`], [`crate::alua`] and [`crate::attention`].

use std::sync::{Arc, MutexGuard, PoisonError};

use super::{LogicalUnit, Readiness};
use crate::alua::{AccessState, Anew, AsymmetricAccess, Cause, Group};
use crate::attention::{ItlNexus, UnitAttention};
use crate::device::TargetPort;
use crate::nexus::NexusName;
use crate::paths::Devices;
use crate::reservations::unsettled::Unsettled;
use crate::reservations::{Effects, Refusal, Reservations};
use crate::saved::Section;

impl LogicalUnit {
    /// Attaches every nexus that can reach the unit, before all of them are to be told something or asked about. Not with a lock of the
    /// unit held that [`Self::attach`] takes.
    pub(super) fn attach_all(&self) {
        self.devices.attach_all();
    }

    /// The devices that the unit is part of.
    pub(crate) fn devices(&self) -> &Devices {
        &self.devices
    }

    /// Those that are attached.
    pub(super) fn nexuses(&self) -> MutexGuard<'_, Vec<Arc<ItlNexus>>> {
        self.nexuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whose commands a PREEMPT AND ABORT has yet to see gone.
    pub(crate) fn unsettled(&self) -> MutexGuard<'_, Unsettled> {
        self.unsettled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is reserved, and for whom.
    pub(crate) fn reservations(&self) -> MutexGuard<'_, Reservations> {
        self.reservations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Persistent reservations were to be kept, and are lost: nearly all commands are refused until an initiator replaces them
    /// (SPC-4, recoverable loss of persistent reservation information).
    pub fn has_lost_reservations(&self) -> bool {
        self.reservations().are_lost()
    }

    /// Changes what is reserved: every nexus is held to it at once, and told what it must know.
    ///
    /// # Errors
    /// Those of `change`, which then has changed nothing.
    pub(crate) fn change_reservations(
        &self,
        change: impl FnOnce(&mut Reservations) -> Result<Effects, Refusal>,
    ) -> Result<Effects, Refusal> {
        self.attach_all();
        let mut reservations = self.reservations();
        let effects = change(&mut reservations)?;
        reservations.count_command();
        self.saved.set_section(Section::Reservations, reservations.to_bytes());
        for nexus in self.nexuses().iter() {
            nexus.set_permission(reservations.permission(nexus.name()));
            let told = effects.told.iter().filter(|(name, _)| name == nexus.name());
            told.for_each(|(_, attention)| nexus.establish(*attention));
            if effects.preempted.contains(nexus.name()) {
                nexus.set_prevents_removal(false);
            }
        }
        Ok(effects)
    }

    fn access(&self) -> MutexGuard<'_, AsymmetricAccess> {
        self.access.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The target port groups in rising order.
    pub(crate) fn access_groups(&self) -> Vec<Group> {
        self.access().groups().to_vec()
    }

    /// How the unit can be reached through `port`.
    pub fn access_state(&self, port: TargetPort) -> AccessState {
        self.access().state(port)
    }

    /// Says, before anybody is attached, in which state the group of `port` begins, and whether it is the preferred one. A
    /// state that was set before a restart comes back as long as `initial` is what it was then. [`Self::settle_access`] ends this.
    pub fn begin_access(&self, port: TargetPort, initial: AccessState, preferred: bool) {
        self.access().begin(port, initial, preferred);
    }

    /// Every group has begun. A state that was set before the restart, and has not come back, is forgotten: it does not come back later
    /// either.
    pub fn settle_access(&self) {
        let section = self.access().to_bytes();
        if self.saved.section(Section::AccessStates).unwrap_or_default() != section {
            self.saved.set_section(Section::AccessStates, section);
            self.saved.owe();
        }
    }

    /// Changes the states of target port groups for a reason of the device's own (SPC-4, implicit transition), and tells
    /// every nexus. True if one is another than before: then [`LogicalUnit::state`] has changed too.
    pub fn change_access_implicitly(&self, changes: &[(TargetPort, AccessState)]) -> bool {
        self.change_access(changes, Cause::Implicit, None)
    }

    /// Has the group of `port` begin anew while the unit is in use, as its operator wants it now, and tells every nexus if that
    /// changes its state or its preference. True if it changes anything: then [`LogicalUnit::state`] has changed too.
    pub fn begin_access_anew(&self, port: TargetPort, initial: AccessState, preferred: bool) -> bool {
        self.attach_all();
        let mut access = self.access();
        match access.begin_anew(port, initial, preferred) {
            Anew::Nothing => return false,
            Anew::Kept => self.saved.set_section(Section::AccessStates, access.to_bytes()),
            Anew::Seen => self.tell_access(&access, None),
        }
        true
    }

    /// Changes states, and tells every nexus but `issuer`. True if one is another than before.
    pub(crate) fn change_access(
        &self,
        changes: &[(TargetPort, AccessState)],
        cause: Cause,
        issuer: Option<&NexusName>,
    ) -> bool {
        self.attach_all();
        let mut access = self.access();
        let has_changed = access.change(changes, cause);
        if has_changed {
            self.tell_access(&access, issuer);
        }
        has_changed
    }

    fn tell_access(&self, access: &AsymmetricAccess, issuer: Option<&NexusName>) {
        self.saved.set_section(Section::AccessStates, access.to_bytes());
        for nexus in self.nexuses().iter() {
            nexus.set_access_state(access.state(nexus.name().target_port));
            if issuer != Some(nexus.name()) {
                nexus.establish(UnitAttention::AccessStateChanged);
            }
        }
    }

    /// The nexuses that exist at the moment.
    pub(crate) fn nexus_names(&self) -> Vec<NexusName> {
        self.attach_all();
        self.nexuses().iter().map(|nexus| nexus.name().clone()).collect()
    }

    pub(crate) fn attach(&self, name: &NexusName) -> Arc<ItlNexus> {
        let reservations = self.reservations();
        let nexus = Arc::new(ItlNexus::new(name.clone()));
        nexus.set_permission(reservations.permission(name));
        let priorities = self.priorities();
        nexus.set_priority(priorities.of(name));
        let access = self.access();
        nexus.set_access_state(access.state(name.target_port));
        self.nexuses().push(Arc::clone(&nexus));
        // After that: what is reached from now on is told to it with the others.
        self.tell_of_space(&nexus);
        nexus
    }

    /// Forgets a nexus, with its unit attentions, its prevention of medium removal (SPC-4, PREVENT ALLOW MEDIUM REMOVAL)
    /// and what it reserved by RESERVE (SPC-2). Its registration stays.
    pub(crate) fn detach(&self, nexus: &Arc<ItlNexus>) {
        self.nexuses().retain(|other| !Arc::ptr_eq(other, nexus));
        self.end_spc2_reservation(Some(nexus.name()));
    }

    /// An I_T nexus loss (SAM-5) after which the nexus is there again: it holds nothing any more, and is told.
    pub(crate) fn lose(&self, nexus: &ItlNexus) {
        nexus.end_copies();
        nexus.set_prevents_removal(false);
        self.end_spc2_reservation(Some(nexus.name()));
        nexus.establish(UnitAttention::ItNexusLoss);
    }

    fn end_spc2_reservation(&self, holder: Option<&NexusName>) {
        if self.reservations().is_reserved_by_spc2() {
            let ended = self.change_reservations(|reservations| {
                reservations.end_spc2(holder);
                Ok(Effects::default())
            });
            debug_assert!(ended.is_ok(), "the change refuses nothing");
        }
    }

    /// Tells every nexus but `issuer`.
    pub(crate) fn establish_for_others(&self, issuer: &Arc<ItlNexus>, attention: UnitAttention) {
        self.attach_all();
        for nexus in self.nexuses().iter().filter(|nexus| !Arc::ptr_eq(nexus, issuer)) {
            nexus.establish(attention);
        }
    }

    /// True while any nexus prevents medium removal.
    pub(crate) fn removal_prevented(&self) -> bool {
        self.nexuses().iter().any(|nexus| nexus.prevents_removal())
    }

    /// Copies that reach the unit as commands of other units do nothing more here, through whichever nexus. What they have
    /// asked for before may still be under way.
    pub fn end_copies(&self) {
        self.nexuses().iter().for_each(|nexus| nexus.end_copies());
    }

    /// The same of copies through these nexuses.
    pub(crate) fn end_copies_through(&self, names: &[NexusName]) {
        let nexuses = self.nexuses();
        nexuses.iter().filter(|nexus| names.contains(nexus.name())).for_each(|nexus| nexus.end_copies());
    }

    /// The logical unit reset (SAM-5): mode pages go back to their saved values, nexuses to the initial priority, medium removal
    /// is allowed, a stopped unit runs again, what RESERVE reserved is released, and every nexus is told. Aborting the commands
    /// is the driver's part. Who is not attached will be told of POWER ON, which stands for any reset.
    pub(crate) fn reset(&self) {
        self.end_spc2_reservation(None);
        self.unsettled().settle_all();
        self.restore_mode();
        let nexuses = self.nexuses();
        // What was not heard of it yet goes with the conditions that a reset clears.
        self.space().forget_reached();
        self.tasks.end_allegiance();
        if self.readiness() == Readiness::Stopped {
            self.set_readiness(Readiness::Ready);
        }
        for nexus in nexuses.iter() {
            nexus.set_prevents_removal(false);
            nexus.copies().clear();
            nexus.establish(UnitAttention::BusDeviceReset);
        }
    }
}
