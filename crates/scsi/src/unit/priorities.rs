//! The command priorities of a logical unit's nexuses ([`crate::priority`]): each nexus keeps its own, so that commands take no
//! lock for it.

use std::sync::{MutexGuard, PoisonError};

use super::LogicalUnit;
use crate::attention::UnitAttention;
use crate::device::TargetPort;
use crate::nexus::NexusName;
use crate::priority::{Full, Priorities};
use crate::transport_id::TransportId;

/// Whose priority is to be set (SPC-4, I_T_L NEXUS TO SET).
#[derive(Debug)]
pub(crate) enum Whose<'a> {
    /// That of the nexus which asks for it. It is not told: it knows.
    Own(&'a NexusName),
    /// That of the nexuses between a target port and initiator ports.
    Named(TargetPort, TransportId),
    /// All get the initial one; every nexus but this is told.
    Everybodys(&'a NexusName),
}

/// Why no priority was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotSet {
    /// No nexus has such a name.
    NoNexus,
    /// Too many have one of their own.
    Full,
}

impl LogicalUnit {
    pub(crate) fn priorities(&self) -> MutexGuard<'_, Priorities> {
        self.priorities.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// SET PRIORITY (SPC-4).
    ///
    /// # Errors
    /// [`NotSet`], after which nothing has changed.
    pub(crate) fn set_priority(&self, whose: &Whose<'_>, priority: u8) -> Result<(), NotSet> {
        let mut priorities = self.priorities();
        let nexuses = self.nexuses();
        let is_told = |name: &NexusName| match whose {
            Whose::Own(_) => false,
            Whose::Named(port, initiator) => {
                name.target_port == *port && initiator.names(&name.initiator_port)
            }
            Whose::Everybodys(issuer) => name != *issuer,
        };
        match whose {
            Whose::Own(name) => assign(&mut priorities, &[name], priority)?,
            Whose::Named(..) => {
                let named: Vec<_> =
                    nexuses.iter().map(|nexus| nexus.name()).filter(|name| is_told(name)).collect();
                if named.is_empty() {
                    return Err(NotSet::NoNexus);
                }
                assign(&mut priorities, &named, priority)?;
            }
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

    /// INITIAL COMMAND PRIORITY has changed (SPC-4, control extension mode page). Who gets another priority by that is told.
    pub(super) fn set_initial_priority(&self, initial: u8) {
        let mut priorities = self.priorities();
        priorities.set_initial(initial);
        for nexus in self.nexuses().iter() {
            let priority = priorities.of(nexus.name());
            if nexus.set_priority(priority) != priority {
                nexus.establish(UnitAttention::PriorityChanged);
            }
        }
    }

    /// A logical unit reset ends what SET PRIORITY has set. Nobody is told but of the reset.
    pub(super) fn reset_priorities(&self, initial: u8) {
        let mut priorities = self.priorities();
        *priorities = Priorities::new(initial);
        self.nexuses().iter().for_each(|nexus| {
            nexus.set_priority(initial);
        });
    }
}

/// All or none.
fn assign(priorities: &mut Priorities, names: &[&NexusName], priority: u8) -> Result<(), NotSet> {
    let before: Vec<u8> = names.iter().map(|name| priorities.assigned(name)).collect();
    for (count, name) in names.iter().enumerate() {
        if let Err(Full) = priorities.assign(name, priority) {
            for (name, before) in names[..count].iter().zip(before) {
                // There was room for it.
                let _ = priorities.assign(name, before);
            }
            return Err(NotSet::Full);
        }
    }
    Ok(())
}
