//! The command priorities of a logical unit's nexuses ([`crate::priority`]): each nexus keeps its own, so that commands take no
//! lock for it.

use std::collections::HashSet;
use std::sync::{MutexGuard, PoisonError};

use super::LogicalUnit;
use crate::attention::UnitAttention;
use crate::device::TargetPort;
use crate::nexus::NexusName;
use crate::priority::Priorities;
use crate::transport_id::TransportId;

/// Whose priority is to be set (SPC-4, I_T_L NEXUS TO SET).
#[derive(Debug)]
pub(crate) enum Whose<'a> {
    /// That of the nexus which asks for it. It is not told: it knows.
    Own(&'a NexusName),
    /// That of the nexuses between a target port and initiator ports. They are told, whoever asks for it (SPC-4, 01b).
    Named(TargetPort, TransportId),
    /// All get the initial one; every nexus but this is told.
    Everybodys(&'a NexusName),
}

/// No nexus has such a name; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoNexus;

impl LogicalUnit {
    pub(crate) fn priorities(&self) -> MutexGuard<'_, Priorities> {
        self.priorities.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// SET PRIORITY (SPC-4).
    ///
    /// # Errors
    /// [`NoNexus`]
    pub(crate) fn set_priority(&self, whose: &Whose<'_>, priority: u8) -> Result<(), NoNexus> {
        self.attach_all();
        let mut priorities = self.priorities();
        let nexuses = self.nexuses();
        let is_told = |name: &NexusName| match whose {
            Whose::Own(_) => false,
            Whose::Named(port, initiator) => {
                name.target_port == *port && initiator.names(&name.initiator_port)
            }
            Whose::Everybodys(issuer) => name != *issuer,
        };
        let names: HashSet<_> = nexuses.iter().map(|nexus| nexus.name()).collect();
        let mut assign = |name| priorities.assign(name, priority, |other| names.contains(other));
        match whose {
            Whose::Own(name) => assign(name),
            Whose::Named(..) if !names.iter().any(|name| is_told(name)) => return Err(NoNexus),
            Whose::Named(..) => names.iter().filter(|name| is_told(name)).for_each(|name| assign(name)),
            Whose::Everybodys(_) => priorities.assign_none(),
        }
        for nexus in nexuses.iter() {
            nexus.set_priority(priorities.of(nexus.name()));
            if is_told(nexus.name()) {
                nexus.establish(UnitAttention::PriorityChanged);
            }
        }
        Ok(())
    }

    /// INITIAL COMMAND PRIORITY has changed (SPC-4, control extension mode page). Who gets another priority by that is told. Called
    /// with the lock of the mode parameters held, so that of two changes the later one stands in both.
    pub(super) fn set_initial_priority(&self, initial: u8) {
        self.attach_all();
        let mut priorities = self.priorities();
        priorities.set_initial(initial);
        for nexus in self.nexuses().iter() {
            let priority = priorities.of(nexus.name());
            if nexus.set_priority(priority) != priority {
                nexus.establish(UnitAttention::PriorityChanged);
            }
        }
    }

    /// A logical unit reset ends what SET PRIORITY has set. Nobody is told but of the reset. Called as the one above.
    pub(super) fn reset_priorities(&self, initial: u8) {
        let mut priorities = self.priorities();
        *priorities = Priorities::new(initial);
        self.nexuses().iter().for_each(|nexus| {
            nexus.set_priority(initial);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::attention::Herald;
    use crate::lun::Lun;
    use crate::mode::{ModeValues, Selected};
    use crate::sense::AdditionalSense;
    use crate::unit::tests::{config, unit_of};

    /// Hears of another priority, and sees whether the mode parameters could be changed by somebody else just then.
    #[derive(Debug)]
    struct Onlooker {
        unit: Arc<LogicalUnit>,
        heard: AtomicUsize,
    }

    impl Herald for Onlooker {
        fn unit_attention(&self, _: Lun, code: AdditionalSense) {
            assert_eq!(code, AdditionalSense::PRIORITY_CHANGED);
            assert!(self.unit.modes.try_lock().is_err(), "a later change could overtake this one");
            self.heard.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn the_initial_priority_changes_with_its_page_and_not_behind_it() {
        let unit = Arc::new(unit_of(config()));
        let name = NexusName { initiator_port: "host".into(), target_port: TargetPort::new(1).unwrap() };
        let itl = unit.attach(&name);
        let onlooker = Arc::new(Onlooker { unit: Arc::clone(&unit), heard: AtomicUsize::new(0) });
        itl.set_herald(Lun::from_number(0), Arc::clone(&onlooker) as _);
        let change = |initial_priority| {
            let with_priority = |values: &ModeValues| Selected {
                values: ModeValues { initial_priority, ..*values },
                has_caching_page: false,
            };
            unit.change_mode(false, |values| Ok(with_priority(values))).unwrap();
        };
        change(5);
        assert_eq!((itl.priority(), onlooker.heard.load(Ordering::SeqCst)), (5, 1));
        unit.reset();
        assert_eq!((itl.priority(), unit.mode_values().initial_priority), (0, 0));
    }
}
