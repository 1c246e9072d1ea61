//! Command priority: which of the SIMPLE commands that wait goes on first (SAM-5, 8.7; SPC-4, SET PRIORITY).
//!
//! A command may bring its own, else it has that of its I_T nexus, and that is the initial one of the control extension mode
//! page until SET PRIORITY changes it. What a priority does to who waits is [`crate::task_set`]'s matter.

use crate::nexus::NexusName;

/// No priority of its own, or the initial one.
pub(crate) const NONE: u8 = 0;

/// The last; 1 is the first.
pub(crate) const MAX: u8 = 15;

/// Nexuses of one unit that have a priority of their own, before those that are lost make room for those that are there. A loss of
/// the nexus alone does not end its priority.
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
    /// Oldest first.
    assigned: Vec<(NexusName, u8)>,
}

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

    /// Gives a nexus that exists a priority; [`NONE`] and the initial one are the same. Where there are too many, the oldest of
    /// those that do not exist lose theirs: so nobody is refused, and what is kept is bounded by the nexuses that there are.
    pub(crate) fn assign(&mut self, nexus: &NexusName, priority: u8, exists: impl Fn(&NexusName) -> bool) {
        let place = self.assigned.iter().position(|(name, _)| name == nexus);
        match (place, priority == NONE || priority == self.initial) {
            (Some(place), true) => drop(self.assigned.remove(place)),
            (Some(place), false) => self.assigned[place].1 = priority,
            (None, true) => {}
            (None, false) => {
                let mut excess = (self.assigned.len() + 1).saturating_sub(NEXUSES_MAX);
                self.assigned.retain(|(name, _)| {
                    let stays = excess == 0 || exists(name);
                    excess -= usize::from(!stays);
                    stays
                });
                self.assigned.push((nexus.clone(), priority));
            }
        }
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
        let assign = |priorities: &mut Priorities, number, priority| {
            priorities.assign(&nexus(number), priority, |_| true);
        };
        assign(&mut priorities, 1, 5);
        assign(&mut priorities, 2, 9);
        priorities.set_initial(9);
        assert_eq!([1, 2, 3].map(|number| priorities.of(&nexus(number))), [5, 9, 9]);
        assert_eq!(priorities.all_assigned(), [(nexus(1), 5)]);
        priorities.set_initial(2);
        assert_eq!([1, 2].map(|number| priorities.of(&nexus(number))), [5, 2], "9 was the initial one");
        assign(&mut priorities, 1, 0);
        assign(&mut priorities, 2, 2);
        assert_eq!(priorities.all_assigned(), []);
        assign(&mut priorities, 1, 1);
        priorities.assign_none();
        assert_eq!(priorities.of(&nexus(1)), 2);
    }

    /// Somebody logs in again and again under other names to use up the room.
    #[test]
    fn nexuses_that_are_lost_make_room_for_those_that_exist() {
        let mut priorities = Priorities::new(0);
        let alive = |name: &NexusName| *name == nexus(0) || *name == nexus(7);
        for number in 0..NEXUSES_MAX {
            priorities.assign(&nexus(number), 1, alive);
        }
        let of = |priorities: &Priorities, numbers: [usize; 4]| {
            numbers.map(|number| priorities.assigned(&nexus(number)))
        };
        assert_eq!(of(&priorities, [0, 1, 2, 7]), [1; 4], "a loss alone ends nothing");
        priorities.assign(&nexus(NEXUSES_MAX), 3, alive);
        assert_eq!(of(&priorities, [0, 1, 2, NEXUSES_MAX]), [1, NONE, 1, 3], "the oldest that is lost goes");
        for number in 1000..2000 {
            priorities.assign(&nexus(number), 1, alive);
            assert_eq!(priorities.all_assigned().len(), NEXUSES_MAX);
        }
        assert_eq!(of(&priorities, [0, 7, NEXUSES_MAX, 1999]), [1, 1, NONE, 1]);
    }

    #[test]
    fn as_many_as_exist_have_room() {
        let mut priorities = Priorities::new(0);
        for number in 0..2 * NEXUSES_MAX {
            priorities.assign(&nexus(number), 1, |_| true);
        }
        assert_eq!(priorities.all_assigned().len(), 2 * NEXUSES_MAX);
        priorities.assign(&nexus(5000), 1, |name| *name == nexus(3));
        assert_eq!(priorities.all_assigned().len(), NEXUSES_MAX, "they are lost, but for one");
        assert_eq!([3, 5000].map(|number| priorities.assigned(&nexus(number))), [1, 1]);
    }
}
