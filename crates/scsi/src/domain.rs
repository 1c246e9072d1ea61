//! What all devices of one process share: a clock, random numbers, and the tokens that stand for data (SPC-4).
//!
//! The clock and the random numbers are the driver's; here is only what they are needed for.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::budget::Budget;
use crate::paths::Paths;
use crate::rod::Tokens;

/// What a driver brings of its surroundings.
pub trait Environment: fmt::Debug + Send + Sync {
    /// The time since a moment that does not move; never goes back.
    fn uptime(&self) -> Duration;

    /// The time since 1970-01-01, universal time.
    fn since_epoch(&self) -> Duration;

    /// Fills `bytes` with random numbers that nobody can guess; false where there are none.
    fn fill_random(&self, bytes: &mut [u8]) -> bool;
}

/// An environment without anything: time stands still, and no tokens can be made.
#[derive(Debug)]
struct Nothing;

impl Environment for Nothing {
    fn uptime(&self) -> Duration {
        Duration::ZERO
    }

    fn since_epoch(&self) -> Duration {
        Duration::ZERO
    }

    fn fill_random(&self, _: &mut [u8]) -> bool {
        false
    }
}

/// See the module's documentation. Devices of one domain take one another's tokens.
#[derive(Debug)]
pub struct Domain {
    environment: Arc<dyn Environment>,
    tokens: Tokens,
    members: Mutex<Members>,
    buffers: Arc<Budget>,
    copy_records: Arc<Budget>,
}

/// What the nexuses of a domain keep in buffers (WRITE BUFFER), all together. A host's tests take 8 KiB.
const BUFFERS_BYTES_MAX: usize = 8 << 20;
/// And in records of copies, of which a host has a few.
const COPY_RECORDS_BYTES_MAX: usize = 8 << 20;

/// A nexus among those of its initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Membership(u64);

/// The nexuses whose initiators are known.
#[derive(Debug, Default)]
struct Members {
    next: u64,
    /// Each with the name of its initiator.
    nexuses: BTreeMap<Membership, (Arc<str>, Arc<Paths>)>,
}

impl Domain {
    /// A domain in its surroundings.
    pub fn new(environment: Arc<dyn Environment>) -> Domain {
        let [buffers, copy_records] =
            [BUFFERS_BYTES_MAX, COPY_RECORDS_BYTES_MAX].map(|bytes| Arc::new(Budget::new(bytes)));
        Domain { environment, tokens: Tokens::default(), members: Mutex::default(), buffers, copy_records }
    }

    pub(crate) fn environment(&self) -> &dyn Environment {
        &*self.environment
    }

    pub(crate) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// For what WRITE BUFFER leaves.
    pub(crate) fn buffers(&self) -> &Arc<Budget> {
        &self.buffers
    }

    /// For what can be asked about copies.
    pub(crate) fn copy_records(&self) -> &Arc<Budget> {
        &self.copy_records
    }

    /// Forgets tokens that have not been used for too long, so that writes to what they stood for need not be looked at any more. The
    /// driver calls it now and then.
    pub fn forget_expired_tokens(&self) {
        self.tokens.forget_expired(self.environment.uptime());
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A nexus of the initiator `party` has come up, with these ways.
    pub(crate) fn join(&self, party: &str, paths: Arc<Paths>) -> Membership {
        let mut members = self.members();
        members.next += 1;
        let membership = Membership(members.next);
        members.nexuses.insert(membership, (party.into(), paths));
        membership
    }

    /// A nexus is lost.
    pub(crate) fn part(&self, membership: Membership) {
        self.members().nexuses.remove(&membership);
    }

    /// The ways of all nexuses of the same initiator.
    pub(crate) fn of_party(&self, membership: Membership) -> Vec<Arc<Paths>> {
        let members = self.members();
        let Some((party, _)) = members.nexuses.get(&membership) else { return Vec::new() };
        let of_party = members.nexuses.values().filter(|(other, _)| other == party);
        of_party.map(|(_, paths)| Arc::clone(paths)).collect()
    }
}

impl Default for Domain {
    /// A domain where time stands still and no tokens can be made.
    fn default() -> Domain {
        Domain::new(Arc::new(Nothing))
    }
}
