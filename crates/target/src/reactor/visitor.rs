//! What a login finds out about this server: its targets, who may use them, and whether it was tried too often.

use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use lunette_iscsi::chap::ChapPolicy;
use lunette_iscsi::login::{LookupFailure, TargetDirectory, TargetEntry};

use crate::attempts::{Attempts, Origin};
use crate::server::Shared;
use crate::units::PORTAL_GROUP_TAG;

/// One who logs in, at one moment.
pub(super) struct Visitor<'a> {
    pub(super) shared: &'a Shared,
    pub(super) peer: SocketAddr,
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
        let target = target.ok_or(LookupFailure::NotFound)?;
        if !target.access.may_admit(initiator, self.peer.ip()) {
            return Err(LookupFailure::Forbidden);
        }
        Ok(TargetEntry { portal_group_tag: PORTAL_GROUP_TAG, alias: target.alias.clone(), moved: None })
    }

    fn authentication(&self, target: Option<&str>) -> Option<Arc<ChapPolicy>> {
        let Some(name) = target else { return self.shared.discovery.clone() };
        self.shared.targets.iter().find(|target| target.name == name)?.policy.clone()
    }

    fn may_try(&self, user: &str) -> bool {
        self.attempts().may_try(self.origin(), user, self.now)
    }

    fn tried(&self, user: &str, is_right: bool) {
        self.attempts().tried(self.origin(), user, is_right, self.now);
    }
}
