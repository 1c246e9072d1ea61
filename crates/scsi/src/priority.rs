//! Command priority: which of the SIMPLE commands that wait goes on first (SAM-5, 8.7; SPC-4, SET PRIORITY).
//!
//! A command may bring its own, else it has that of its I_T nexus, and that is the initial one of the control extension mode
//! page until SET PRIORITY changes it. What a priority does to who waits is [`crate::task_set`]'s matter.

use crate::nexus::NexusName;

/// No priority of its own, or the initial one.
pub(crate) const NONE: u8 = 0;

/// The last; 1 is the first.
pub(crate) const MAX: u8 = 15;

/// Nexuses of one unit that have a priority of their own; a loss of the nexus does not end it.
const NEXUSES_MAX: usize = 256;

/// Where a command stands among those that wait: the lowest goes first.
pub(crate) type Rank = u8;

/// Of a command that is not SIMPLE: its attribute alone counts.
pub(crate) const FIRST: Rank = 0;

/// Of a command without any priority: in the middle, so that others can be both more and less urgent.
pub(crate) const MIDDLE: Rank = 8;

/// The rank of a SIMPLE command with a priority of its own and one of its nexus.
#[inline]
pub(crate) const fn rank(own: u8, of_nexus: u8) -> Rank {
    match (own, of_nexus) {
        (NONE, NONE) => MIDDLE,
        (NONE, of_nexus) => of_nexus,
        (own, _) => own,
    }
}

/// The priorities of a unit's nexuses, whether they exist at the moment or not.
#[derive(Debug, Default)]
pub(crate) struct Priorities {
    initial: u8,
    assigned: Vec<(NexusName, u8)>,
}

/// There is no room for one more nexus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Priorities {
    pub(crate) fn new(initial: u8) -> Priorities {
        Priorities { initial, assigned: Vec::new() }
    }

    /// What SET PRIORITY has given a nexus; [`NONE`]: it has the initial one.
    pub(crate) fn assigned(&self, nexus: &NexusName) -> u8 {
        self.assigned.iter().find(|(name, _)| name == nexus).map_or(NONE, |(_, priority)| *priority)
    }

    /// What the commands of a nexus have that bring none.
    pub(crate) fn of(&self, nexus: &NexusName) -> u8 {
        match self.assigned(nexus) {
            NONE => self.initial,
            assigned => assigned,
        }
    }

    /// All nexuses that do not have the initial priority.
    pub(crate) fn all_assigned(&self) -> &[(NexusName, u8)] {
        &self.assigned
    }

    /// Gives a nexus a priority; [`NONE`] and the initial one are the same.
    pub(crate) fn assign(&mut self, nexus: &NexusName, priority: u8) -> Result<(), Full> {
        let place = self.assigned.iter().position(|(name, _)| name == nexus);
        match (place, priority == NONE || priority == self.initial) {
            (Some(place), true) => drop(self.assigned.swap_remove(place)),
            (Some(place), false) => self.assigned[place].1 = priority,
            (None, true) => {}
            (None, false) if self.assigned.len() >= NEXUSES_MAX => return Err(Full),
            (None, false) => self.assigned.push((nexus.clone(), priority)),
        }
        Ok(())
    }

    /// Gives all nexuses the initial priority.
    pub(crate) fn assign_none(&mut self) {
        self.assigned.clear();
    }

    /// Another initial priority: those that were given another one keep it.
    pub(crate) fn set_initial(&mut self, initial: u8) {
        self.initial = initial;
        self.assigned.retain(|(_, priority)| *priority != initial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::TargetPort;

    fn nexus(number: usize) -> NexusName {
        let initiator_port = format!("iqn.2026-11.io.lunette:i,i,0x{number:012x}").into();
        NexusName { initiator_port, target_port: TargetPort::new(1).unwrap() }
    }

    #[test]
    fn the_nearest_priority_counts() {
        assert_eq!([rank(0, 0), rank(0, 3), rank(15, 3), rank(1, 0)], [MIDDLE, 3, 15, 1]);
    }

    #[test]
    fn the_initial_priority_is_that_of_all_that_were_given_no_other() {
        let mut priorities = Priorities::new(0);
        priorities.assign(&nexus(1), 5).unwrap();
        priorities.assign(&nexus(2), 9).unwrap();
        priorities.set_initial(9);
        assert_eq!([1, 2, 3].map(|number| priorities.of(&nexus(number))), [5, 9, 9]);
        assert_eq!(priorities.all_assigned(), [(nexus(1), 5)]);
        priorities.set_initial(2);
        assert_eq!([1, 2].map(|number| priorities.of(&nexus(number))), [5, 2], "9 was the initial one");
        priorities.assign(&nexus(1), 0).unwrap();
        priorities.assign(&nexus(2), 2).unwrap();
        assert_eq!(priorities.all_assigned(), []);
        priorities.assign(&nexus(1), 1).unwrap();
        priorities.assign_none();
        assert_eq!(priorities.of(&nexus(1)), 2);
    }

    #[test]
    fn there_is_room_for_so_many() {
        let mut priorities = Priorities::new(0);
        for number in 0..NEXUSES_MAX {
            priorities.assign(&nexus(number), 1).unwrap();
        }
        assert_eq!(priorities.assign(&nexus(NEXUSES_MAX), 1), Err(Full));
        assert_eq!(priorities.assign(&nexus(NEXUSES_MAX), 0), Ok(()));
        assert_eq!(priorities.assign(&nexus(3), 2), Ok(()));
    }
}
