//! What a login finds out about this server: its targets, who may use them, and whether it was tried too often.

use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use lunette_iscsi::chap::ChapPolicy;
use lunette_iscsi::login::{LookupFailure, TargetDirectory, TargetEntry};

use crate::access::Caller;
use crate::attempts::{Attempts, Origin};
use crate::server::Shared;

/// One who logs in, at one moment.
pub(super) struct Visitor<'a> {
    pub(super) shared: &'a Shared,
    pub(super) peer: SocketAddr,
    /// Where it has come to, and the portal group of that.
    pub(super) local: SocketAddr,
    pub(super) group: u16,
    pub(super) now: Duration,
}

impl Visitor<'_> {
    fn origin(&self) -> Origin {
        self.peer.ip().into()
    }

    /// Only logins with CHAP take this lock.
    fn attempts(&self) -> MutexGuard<'_, Attempts> {
        self.shared.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TargetDirectory for Visitor<'_> {
    fn find(&self, name: &str, initiator: &str) -> Result<TargetEntry, LookupFailure> {
        let target = self.shared.targets.iter().find(|target| target.name == name);
        // A target that is elsewhere is not found here (11.13.5: "at this address").
        let target = target.filter(|target| target.groups.contains(&self.group));
        let target = target.ok_or(LookupFailure::NotFound)?;
        let admission = target.admission.get();
        let (address, portal, group) = (self.peer.ip(), self.local.ip(), self.group);
        if !admission.access.may_admit(&Caller { initiator, address, portal, group }) {
            return Err(LookupFailure::Forbidden);
        }
        let (alias, moved) = (target.alias.clone(), admission.redirect.clone());
        Ok(TargetEntry { portal_group_tag: self.group, alias, moved })
    }

    fn authentication(&self, target: Option<&str>) -> Option<Arc<ChapPolicy>> {
        let Some(name) = target else { return self.shared.discovery.get().policy.clone() };
        self.shared.targets.iter().find(|target| target.name == name)?.admission.get().policy.clone()
    }

    fn may_try(&self, user: &str) -> bool {
        self.attempts().may_try(self.origin(), user, self.now)
    }

    fn tried(&self, user: &str, is_right: bool) {
        self.attempts().tried(self.origin(), user, is_right, self.now);
    }
}
