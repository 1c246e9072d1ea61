//! Which session is where: sessions are found by their identity for reinstatement and joining (RFC 7143, 6.3.1, 6.3.5),
//! and by their TSIH.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use lunette_wire::{Isid, Tsih};

/// What makes two logins the same session (4.4.3): the initiator's name and ISID, and the end that they reach.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SessionKey {
    pub(crate) initiator: String,
    pub(crate) isid: Isid,
    pub(crate) at: SessionEnd,
}

/// The target's end of a session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum SessionEnd {
    /// A target port, by its target's name.
    Target { name: String, portal_group_tag: u16 },
    /// A portal: all that an unnamed discovery session has (7.4.2.1).
    Portal(SocketAddr),
}

/// Where a session lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionPlace {
    /// Index of its reactor.
    pub(crate) reactor: usize,
    /// Never used twice.
    pub(crate) serial: u64,
    /// Its handle.
    pub(crate) tsih: Tsih,
}

/// The answer to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The identity is now the claimant's.
    Granted(SessionPlace),
    /// This session has it and must end first.
    Taken(SessionPlace),
    /// A session has it that another CHAP user began: it is not the claimant's to end (9.2).
    Anothers,
    /// All 65,535 handles are in use.
    Full,
}

/// A session, and the CHAP user that began it.
#[derive(Debug)]
struct Entry {
    place: SessionPlace,
    user: Option<String>,
    /// It is for discovery, and nobody loses anything by its end.
    is_discovery: bool,
}

#[derive(Debug, Default)]
struct State {
    sessions: HashMap<SessionKey, Entry>,
    handles: HashMap<u16, SessionPlace>,
    next_serial: u64,
    next_tsih: u16,
}

impl State {
    /// A free handle; zero is not one (11.12.6).
    fn free_tsih(&mut self) -> Option<Tsih> {
        (0..u16::MAX).find_map(|_| {
            self.next_tsih = self.next_tsih.checked_add(1).unwrap_or(1);
            (!self.handles.contains_key(&self.next_tsih)).then_some(Tsih(self.next_tsih))
        })
    }
}

/// All sessions of a server. Only logins and ends of sessions take its lock.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    state: Mutex<State>,
}

impl Registry {
    /// Claims an identity for a new session of `user` on `reactor`. Anybody may have a discovery session's (7.4.2.2): whoever
    /// could begin one under the name of a host would else keep the host itself from logging in.
    pub(crate) fn claim(
        &self,
        key: &SessionKey,
        (user, is_discovery): (Option<&str>, bool),
        reactor: usize,
    ) -> Claim {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = state.sessions.get(key) {
            let is_theirs = entry.is_discovery || entry.user.as_deref() == user;
            return if is_theirs { Claim::Taken(entry.place) } else { Claim::Anothers };
        }
        let Some(tsih) = state.free_tsih() else { return Claim::Full };
        state.next_serial += 1;
        let place = SessionPlace { reactor, serial: state.next_serial, tsih };
        state.handles.insert(tsih.0, place);
        let user = user.map(str::to_owned);
        state.sessions.insert(key.clone(), Entry { place, user, is_discovery });
        Claim::Granted(place)
    }

    /// Gives an identity back when its session has ended.
    pub(crate) fn release(&self, key: &SessionKey, place: SessionPlace) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.handles.remove(&place.tsih.0);
        if state.sessions.get(key).is_some_and(|entry| entry.place == place) {
            state.sessions.remove(key);
        }
    }

    /// The session that has this identity and handle: one without the other names nobody's (6.3.1).
    pub(crate) fn find(&self, key: &SessionKey, tsih: Tsih) -> Option<SessionPlace> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.sessions.get(key).map(|entry| entry.place).filter(|place| place.tsih == tsih)
    }

    /// The reactor of the session that has this handle.
    pub(crate) fn reactor_of(&self, tsih: Tsih) -> Option<usize> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.handles.get(&tsih.0).map(|place| place.reactor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(initiator: &str) -> SessionKey {
        SessionKey {
            initiator: initiator.into(),
            isid: Isid([0x80, 0, 0, 0, 0, 1]),
            at: SessionEnd::Target { name: "iqn.2026-11.io.lunette:t".into(), portal_group_tag: 1 },
        }
    }

    #[test]
    fn an_identity_has_one_session_at_a_time() {
        let registry = Registry::default();
        let Claim::Granted(first) = registry.claim(&key("a"), (None, false), 0) else { panic!("free") };
        assert_eq!(registry.claim(&key("a"), (None, false), 1), Claim::Taken(first));
        assert!(matches!(registry.claim(&key("b"), (None, false), 1), Claim::Granted(_)));
        registry.release(&key("a"), first);
        let Claim::Granted(second) = registry.claim(&key("a"), (None, false), 1) else {
            panic!("free again")
        };
        assert_ne!(first.serial, second.serial);
        // A late release of the first must not take the second's identity away.
        registry.release(&key("a"), first);
        assert_eq!(registry.claim(&key("a"), (None, false), 1), Claim::Taken(second));
    }

    #[test]
    fn a_session_is_for_the_user_that_began_it() {
        let registry = Registry::default();
        let Claim::Granted(first) = registry.claim(&key("a"), (Some("alice"), false), 0) else {
            panic!("free")
        };
        assert_eq!(registry.claim(&key("a"), (Some("bob"), false), 0), Claim::Anothers);
        assert_eq!(registry.claim(&key("a"), (None, false), 0), Claim::Anothers);
        assert_eq!(registry.claim(&key("a"), (Some("alice"), false), 1), Claim::Taken(first));
        registry.release(&key("a"), first);
        assert!(matches!(registry.claim(&key("a"), (Some("bob"), false), 0), Claim::Granted(_)));
    }

    #[test]
    fn a_handle_needs_its_identity() {
        let registry = Registry::default();
        let Claim::Granted(place) = registry.claim(&key("a"), (None, false), 3) else { panic!("free") };
        let Claim::Granted(other) = registry.claim(&key("b"), (None, false), 1) else { panic!("free") };
        assert_eq!(registry.find(&key("a"), place.tsih), Some(place));
        assert_eq!(registry.find(&key("a"), other.tsih), None);
        assert_eq!(registry.find(&key("c"), place.tsih), None);
        assert_eq!((registry.reactor_of(place.tsih), registry.reactor_of(Tsih(9999))), (Some(3), None));
        registry.release(&key("a"), place);
        assert_eq!((registry.find(&key("a"), place.tsih), registry.reactor_of(place.tsih)), (None, None));
    }

    /// 7.4.2.2: under CHAP, too.
    #[test]
    fn a_discovery_session_keeps_nobody_out() {
        let registry = Registry::default();
        let Claim::Granted(found) = registry.claim(&key("a"), (None, true), 0) else { panic!("free") };
        assert_eq!(registry.claim(&key("a"), (Some("alice"), false), 0), Claim::Taken(found));
        registry.release(&key("a"), found);
        assert!(matches!(registry.claim(&key("a"), (Some("alice"), false), 0), Claim::Granted(_)));
        assert_eq!(registry.claim(&key("a"), (None, true), 0), Claim::Anothers);
    }

    #[test]
    fn handles_are_never_zero_nor_shared() {
        let registry = Registry::default();
        let mut seen = std::collections::HashSet::new();
        for number in 0..u16::MAX {
            let Claim::Granted(place) = registry.claim(&key(&number.to_string()), (None, false), 0) else {
                panic!("handles are left")
            };
            assert!(place.tsih.0 != 0 && seen.insert(place.tsih.0));
        }
        assert_eq!(registry.claim(&key("one more"), (None, false), 0), Claim::Full);
    }
}
