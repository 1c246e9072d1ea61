//! How often somebody may fail to authenticate: a limit by address and one by CHAP name.
//!
//! Each failure counts for a while; with too many that still count, an attempt is put off (status 0301) without a look
//! at its response. A name's limit does not hold for addresses from which that name was proven before, or whoever knows
//! the name could lock its owner out. Time is an argument; it may go back a little between threads.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

/// Addresses that are remembered. With more, those forget first whose failures are longest ago; the limit by name still
/// stands against who has so many.
const ADDRESSES_MAX: usize = 4096;

/// Addresses that are remembered for each name as its owner's: the paths of some hosts that share a name.
const OWNERS_MAX: usize = 16;

/// Who counts as one address: an IPv4 address, or the 64 bits of an IPv6 address that are its network's, since a host
/// has all addresses of its network to choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Origin(u128);

impl From<IpAddr> for Origin {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self(u128::from(u32::from(address))),
            // No IPv6 network is as small as an IPv4 address.
            IpAddr::V6(address) => Self(u128::from(address) >> 64 << 64 | 1 << 63),
        }
    }
}

/// What one address or name has against it: the moment at which its last failure stops counting, if each counts for
/// one interval and one after the other.
#[derive(Debug, Clone, Copy, Default)]
struct Debt {
    until: Duration,
}

impl Debt {
    fn leaves_room(self, now: Duration, interval: Duration, limit: Duration) -> bool {
        self.until.saturating_sub(now) + interval <= limit
    }

    fn add(&mut self, now: Duration, interval: Duration) {
        self.until = self.until.max(now) + interval;
    }
}

#[derive(Debug, Default)]
struct Name {
    debt: Debt,
    /// Where it was proven, latest first.
    owners: VecDeque<Origin>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Attempts {
    interval: Duration,
    /// The debt that nobody may exceed.
    limit: Duration,
    addresses: HashMap<Origin, Debt>,
    /// The configured names and no other, so that strangers cannot fill it.
    names: HashMap<String, Name>,
}

impl Attempts {
    /// `failures_max` may count at one time; each stops counting `interval` after the one before. `names`: the CHAP
    /// names that can be proven at all.
    pub(crate) fn new<'a>(
        failures_max: u32,
        interval: Duration,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        Self {
            interval,
            limit: interval * failures_max,
            addresses: HashMap::new(),
            names: names.into_iter().map(|name| (name.to_owned(), Name::default())).collect(),
        }
    }

    /// Other CHAP names can be proven from now on; what is known of those that stay, stays.
    pub(crate) fn set_names<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        let mut known = std::mem::take(&mut self.names);
        let keep = |name: &str| (name.to_owned(), known.remove(name).unwrap_or_default());
        self.names = names.into_iter().map(keep).collect();
    }

    /// Whether somebody at `origin` may try to prove `name` now.
    pub(crate) fn may_try(&self, origin: Origin, name: &str, now: Duration) -> bool {
        let has_room = |debt: &Debt| debt.leaves_room(now, self.interval, self.limit);
        self.addresses.get(&origin).is_none_or(has_room)
            && self.names.get(name).is_none_or(|name| name.owners.contains(&origin) || has_room(&name.debt))
    }

    /// Notes how an attempt came out.
    pub(crate) fn tried(&mut self, origin: Origin, name: &str, is_right: bool, now: Duration) {
        let name = self.names.get_mut(name);
        if is_right {
            if let Some(name) = name {
                name.owners.retain(|owner| *owner != origin);
                name.owners.truncate(OWNERS_MAX - 1);
                name.owners.push_front(origin);
            }
            return;
        }
        if let Some(name) = name {
            name.debt.add(now, self.interval);
        }
        if self.addresses.len() >= ADDRESSES_MAX && !self.addresses.contains_key(&origin) {
            self.make_room(now);
        }
        self.addresses.entry(origin).or_default().add(now, self.interval);
    }

    fn make_room(&mut self, now: Duration) {
        self.addresses.retain(|_, debt| debt.until > now);
        if self.addresses.len() >= ADDRESSES_MAX {
            let least = self.addresses.iter().min_by_key(|(_, debt)| debt.until).map(|(origin, _)| *origin);
            least.map(|origin| self.addresses.remove(&origin));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Origin {
        text.parse::<IpAddr>().unwrap().into()
    }

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Three failures, each for ten seconds.
    fn attempts() -> Attempts {
        Attempts::new(3, s(10), ["alice", "bob"])
    }

    fn fail(attempts: &mut Attempts, origin: Origin, name: &str, now: Duration) {
        assert!(attempts.may_try(origin, name, now));
        attempts.tried(origin, name, false, now);
    }

    #[test]
    fn an_address_that_fails_too_often_waits_whatever_name_it_gives() {
        let mut attempts = attempts();
        let here = at("192.0.2.1");
        for name in ["alice", "nobody", "nobody else"] {
            fail(&mut attempts, here, name, s(100));
        }
        for name in ["alice", "bob", "nobody"] {
            assert!(!attempts.may_try(here, name, s(100)) && !attempts.may_try(here, name, s(109)));
            assert!(attempts.may_try(at("192.0.2.2"), name, s(100)));
        }
        // One is forgiven, and one more may be made.
        fail(&mut attempts, here, "bob", s(111));
        assert!(!attempts.may_try(here, "bob", s(111)));
        assert!(attempts.may_try(here, "bob", s(200)));
    }

    #[test]
    fn a_name_that_is_tried_from_everywhere_waits() {
        let mut attempts = attempts();
        for host in 1..=3 {
            fail(&mut attempts, at(&format!("192.0.2.{host}")), "alice", s(5));
        }
        assert!(!attempts.may_try(at("192.0.2.9"), "alice", s(6)));
        assert!(attempts.may_try(at("192.0.2.9"), "bob", s(6)));
        assert!(attempts.may_try(at("192.0.2.9"), "alice", s(30)));
    }

    #[test]
    fn nobody_can_lock_out_the_host_that_a_name_belongs_to() {
        let mut attempts = attempts();
        let owner = at("192.0.2.1");
        attempts.tried(owner, "alice", true, s(0));
        for host in 2..=4 {
            fail(&mut attempts, at(&format!("192.0.2.{host}")), "alice", s(5));
        }
        assert!(!attempts.may_try(at("192.0.2.9"), "alice", s(6)));
        assert!(attempts.may_try(owner, "alice", s(6)));
        // Its own failures count all the same.
        for _ in 0..3 {
            fail(&mut attempts, owner, "alice", s(6));
        }
        assert!(!attempts.may_try(owner, "alice", s(6)));
    }

    #[test]
    fn success_does_not_wipe_failures_out() {
        let mut attempts = attempts();
        let here = at("192.0.2.1");
        for _ in 0..3 {
            fail(&mut attempts, here, "alice", s(1));
            attempts.tried(here, "bob", true, s(1));
        }
        assert!(!attempts.may_try(here, "alice", s(1)));
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address_and_differs_from_others() {
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:1"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
        assert_ne!(at("::1"), at("0.0.0.1"));
        assert_ne!(at("::"), at("0.0.0.0"));
    }

    #[test]
    fn memory_is_bounded_and_the_newest_offenders_stay_known() {
        let mut attempts = attempts();
        let address = |number: u32| Origin::from(IpAddr::from(number.to_be_bytes()));
        for number in 0..3 * ADDRESSES_MAX as u32 {
            attempts.tried(address(number), "whoever", false, s(1));
            // This one fails again and again.
            attempts.tried(at("192.0.2.1"), "whoever", false, s(1));
        }
        assert_eq!(attempts.addresses.len(), ADDRESSES_MAX);
        assert!(!attempts.may_try(at("192.0.2.1"), "whoever", s(1)));
        attempts.tried(at("192.0.2.2"), "whoever", false, s(1_000_000));
        assert_eq!(attempts.addresses.len(), 1, "what is forgiven is forgotten");
        for number in 0..100 {
            attempts.tried(address(number), "alice", true, s(1));
        }
        assert_eq!(attempts.names["alice"].owners.len(), OWNERS_MAX);
        assert_eq!(attempts.names.len(), 2);
    }
}
