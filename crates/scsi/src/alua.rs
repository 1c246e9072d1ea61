//! Asymmetric logical unit access: how well a unit can be reached through each target port group (SPC-4).
//!
//! Every target port is a group of its own; its relative identifier is the group's too. The states are those of one
//! unit. What asks for them and changes them is in `commands/target_port_groups`.

use crate::bytes::be16;
use crate::device::TargetPort;
use crate::saved::SavedFault;
use crate::sense::{AdditionalSense, SenseData, SenseKey};

/// ASYMMETRIC ACCESS STATE (SPC-4). The discriminant is the field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AccessState {
    /// Everything works, and this is the way to take.
    #[default]
    ActiveOptimized = 0x0,
    /// Everything works; another way may be faster.
    ActiveNonOptimized = 0x1,
    /// The unit tells about itself and takes reservations, but its medium cannot be reached.
    Standby = 0x2,
    /// The unit tells what and where it is, and no more.
    Unavailable = 0x3,
    /// As unavailable, and no command of an initiator ends it.
    Offline = 0xe,
    /// On the way from one state to another: as unavailable, for a short time.
    Transitioning = 0xf,
}

impl AccessState {
    /// All states, those that initiators may ask for first.
    pub const ALL: [AccessState; 6] = [
        AccessState::ActiveOptimized,
        AccessState::ActiveNonOptimized,
        AccessState::Standby,
        AccessState::Unavailable,
        AccessState::Offline,
        AccessState::Transitioning,
    ];

    /// The state with this code, if there is one.
    pub fn from_code(code: u8) -> Option<AccessState> {
        AccessState::ALL.into_iter().find(|state| *state as u8 == code)
    }

    /// SET TARGET PORT GROUPS may ask for it.
    pub(crate) fn can_be_set(self) -> bool {
        !matches!(self, AccessState::Offline | AccessState::Transitioning)
    }

    /// Why a command is refused in this state, if it is.
    pub(crate) fn refusal(self, works: WorksIn) -> Option<SenseData> {
        use AdditionalSense as Code;
        let (least, code) = match self {
            AccessState::ActiveOptimized | AccessState::ActiveNonOptimized => return None,
            AccessState::Standby => (WorksIn::Standby, Code::TARGET_PORT_IN_STANDBY),
            AccessState::Unavailable => (WorksIn::EveryState, Code::TARGET_PORT_UNAVAILABLE),
            AccessState::Offline => (WorksIn::EveryState, Code::LOGICAL_UNIT_OFFLINE),
            AccessState::Transitioning => (WorksIn::EveryState, Code::ACCESS_STATE_TRANSITION),
        };
        (works < least).then(|| SenseData::new(SenseKey::NotReady, code))
    }
}

/// In which states a command works. The order is that of rising reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WorksIn {
    /// Where the medium can be reached.
    Active,
    /// In standby too.
    Standby,
    EveryState,
}

/// Who changed a state last. The discriminant is the STATUS CODE field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Cause {
    None = 0,
    /// SET TARGET PORT GROUPS.
    Explicit = 1,
    /// The device itself, which is its operator.
    Implicit = 2,
}

/// One target port group of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) port: TargetPort,
    /// What the operator wants at the start.
    initial: AccessState,
    pub(crate) state: AccessState,
    /// PREF
    pub(crate) preferred: bool,
    pub(crate) cause: Cause,
}

/// What changes when a group begins anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anew {
    Nothing,
    /// What is kept for a restart, and nothing that initiators see.
    Kept,
    /// What initiators see, too.
    Seen,
}

/// The states of one unit.
#[derive(Debug, Default)]
pub(crate) struct AsymmetricAccess {
    /// In rising order of port.
    groups: Vec<Group>,
    /// Port, initial state, and the state that was set since.
    saved: Vec<(TargetPort, AccessState, AccessState)>,
}

const SAVED_BYTES: usize = 4;

impl AsymmetricAccess {
    /// What [`AsymmetricAccess::to_bytes`] kept.
    ///
    /// # Errors
    /// [`SavedFault::Damaged`] for bytes that it cannot have returned.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<AsymmetricAccess, SavedFault> {
        let saved = bytes.chunks(SAVED_BYTES).map(|entry| {
            let &[_, _, initial, state] = entry else { return None };
            let port = TargetPort::new(be16(entry, 0)?)?;
            Some((port, AccessState::from_code(initial)?, AccessState::from_code(state)?))
        });
        let saved: Option<Vec<_>> = saved.collect();
        Ok(AsymmetricAccess { groups: Vec::new(), saved: saved.ok_or(SavedFault::Damaged)? })
    }

    /// The states that are not the initial ones.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let changed = self.groups.iter().filter(|group| group.state != group.initial);
        changed
            .flat_map(|group| {
                let [high, low] = group.port.id().to_be_bytes();
                [high, low, group.initial as u8, group.state as u8]
            })
            .collect()
    }

    pub(crate) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The state through a port; active for a port that nobody has told of.
    pub(crate) fn state(&self, port: TargetPort) -> AccessState {
        self.groups
            .iter()
            .find(|group| group.port == port)
            .map_or_else(AccessState::default, |group| group.state)
    }

    /// Says how the group of `port` begins. A state that was set since then comes back, unless the operator has changed his
    /// mind about the initial one.
    pub(crate) fn begin(&mut self, port: TargetPort, initial: AccessState, preferred: bool) {
        let set = self.saved.iter().find(|(saved, before, _)| *saved == port && *before == initial);
        let state = set.map_or(initial, |(_, _, state)| *state);
        self.groups.retain(|group| group.port != port);
        self.groups.push(Group { port, initial, state, preferred, cause: Cause::None });
        self.groups.sort_by_key(|group| group.port);
    }

    /// Has the group of `port` begin anew, as its operator wants it now. A port that is not there stays so.
    pub(crate) fn begin_anew(&mut self, port: TargetPort, initial: AccessState, preferred: bool) -> Anew {
        let Some(group) = self.groups.iter_mut().find(|group| group.port == port) else {
            return Anew::Nothing;
        };
        let before = *group;
        let cause = if before.state == initial { before.cause } else { Cause::Implicit };
        *group = Group { port, initial, state: initial, preferred, cause };
        match *group {
            now if now == before => Anew::Nothing,
            now if (now.state, now.preferred) == (before.state, before.preferred) => Anew::Kept,
            _ => Anew::Seen,
        }
    }

    /// Changes states; true if one is another than before. Ports that are not there stay so.
    pub(crate) fn change(&mut self, changes: &[(TargetPort, AccessState)], cause: Cause) -> bool {
        let mut has_changed = false;
        for &(port, state) in changes {
            let changed = self.groups.iter_mut().find(|group| group.port == port && group.state != state);
            if let Some(group) = changed {
                (group.state, group.cause) = (state, cause);
                has_changed = true;
            }
        }
        has_changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(id: u16) -> TargetPort {
        TargetPort::new(id).unwrap()
    }

    #[test]
    fn what_was_set_comes_back_until_the_operator_wants_something_else() {
        let mut access = AsymmetricAccess::default();
        access.begin(port(2), AccessState::Standby, false);
        access.begin(port(1), AccessState::ActiveOptimized, true);
        assert!(access.to_bytes().is_empty());
        assert!(access.change(&[(port(2), AccessState::ActiveOptimized)], Cause::Explicit));
        assert!(!access.change(&[(port(2), AccessState::ActiveOptimized)], Cause::Explicit));
        assert!(!access.change(&[(port(9), AccessState::Standby)], Cause::Explicit), "no such port");
        let bytes = access.to_bytes();
        for (initial, state) in [
            (AccessState::Standby, AccessState::ActiveOptimized),
            (AccessState::Unavailable, AccessState::Unavailable),
        ] {
            let mut restored = AsymmetricAccess::from_bytes(&bytes).unwrap();
            restored.begin(port(1), AccessState::ActiveOptimized, true);
            restored.begin(port(2), initial, false);
            assert_eq!(
                (restored.state(port(1)), restored.state(port(2))),
                (AccessState::ActiveOptimized, state)
            );
        }
        for damaged in [&bytes[..3], &[0, 0, 0, 1], &[0, 1, 4, 0], &[0, 1, 0, 4]] {
            assert_eq!(AsymmetricAccess::from_bytes(damaged).err(), Some(SavedFault::Damaged));
        }
    }

    #[test]
    fn what_the_operator_wants_now_counts_for_what_was_set_before() {
        let mut access = AsymmetricAccess::default();
        access.begin(port(1), AccessState::ActiveOptimized, false);
        access.change(&[(port(1), AccessState::Unavailable)], Cause::Explicit);
        assert_eq!(access.begin_anew(port(1), AccessState::Standby, true), Anew::Seen);
        let group = access.groups()[0];
        assert_eq!(
            (group.state, group.preferred, group.cause),
            (AccessState::Standby, true, Cause::Implicit)
        );
        assert!(access.to_bytes().is_empty(), "what was set before is forgotten");
        assert_eq!(access.begin_anew(port(1), AccessState::Standby, true), Anew::Nothing);
        assert_eq!(access.begin_anew(port(2), AccessState::Standby, true), Anew::Nothing, "no such port");
        assert_eq!(access.begin_anew(port(1), AccessState::Standby, false), Anew::Seen, "PREF");
    }

    #[test]
    fn states_let_through_what_they_must() {
        let code = |state: AccessState, works| {
            state.refusal(works).map(|sense| (sense.code.asc(), sense.code.ascq()))
        };
        use WorksIn::*;
        for (state, active, standby) in [
            (AccessState::ActiveOptimized, None, None),
            (AccessState::ActiveNonOptimized, None, None),
            (AccessState::Standby, Some((4, 0x0b)), None),
            (AccessState::Unavailable, Some((4, 0x0c)), Some((4, 0x0c))),
            (AccessState::Offline, Some((4, 0x12)), Some((4, 0x12))),
            (AccessState::Transitioning, Some((4, 0x0a)), Some((4, 0x0a))),
        ] {
            assert_eq!(
                [code(state, Active), code(state, Standby), code(state, EveryState)],
                [active, standby, None]
            );
        }
    }
}
