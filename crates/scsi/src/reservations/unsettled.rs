//! Who was preempted by a PREEMPT AND ABORT that has not seen all of its commands gone.
//!
//! One that is aborted itself, or whose session ends, waits no longer; its initiator may send it again, and then the registrations that
//! would say whom it is about are gone. Nothing of this is kept over a restart, after which there are no such commands.

use super::{Key, REGISTRANTS_MAX, Reservations};
use crate::nexus::NexusName;

/// See the module's documentation. Nobody is in it twice, and the oldest go where there are more than a unit has registrants.
#[derive(Debug, Default)]
pub(crate) struct Unsettled(Vec<(Key, NexusName)>);

impl Unsettled {
    /// Those that were preempted by this key and have not registered again.
    pub(crate) fn of(&mut self, victim: Key, reservations: &Reservations) -> Vec<NexusName> {
        self.0.retain(|(_, nexus)| reservations.key_of(nexus).is_none());
        self.0.iter().filter(|(key, _)| *key == victim).map(|(_, nexus)| nexus.clone()).collect()
    }

    /// These were preempted by this key, and their commands are being aborted.
    pub(crate) fn begin(&mut self, victim: Key, nexuses: &[NexusName]) {
        self.settle(nexuses);
        self.0.extend(nexuses.iter().map(|nexus| (victim, nexus.clone())));
        let beyond = self.0.len().saturating_sub(REGISTRANTS_MAX);
        self.0.drain(..beyond);
    }

    /// Nothing is left of their commands.
    pub(crate) fn settle(&mut self, nexuses: &[NexusName]) {
        self.0.retain(|(_, nexus)| !nexuses.contains(nexus));
    }

    /// Nothing is left of anybody's commands.
    pub(crate) fn settle_all(&mut self) {
        self.0.clear();
    }
}
