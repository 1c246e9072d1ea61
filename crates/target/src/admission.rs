//! Who may log in to a target, and what of it they see: all that its operator may change while it is served.

use std::sync::{Arc, PoisonError, RwLock};

use lunette_iscsi::chap::ChapPolicy;
use lunette_iscsi::login::Redirection;
use lunette_scsi::{ConfigError, Device, LunMap};

use crate::access::{Access, Caller};
use crate::config::{ChapRules, Config, DiscoveryScope, TargetConfig};

/// What a login to one target meets.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) access: Access,
    /// Who may log in; `None`: everybody.
    pub(crate) policy: Option<Arc<ChapPolicy>>,
    /// Where the target is now, if not here.
    pub(crate) redirect: Option<Redirection>,
}

impl Admission {
    /// What `config` says of the logins to `device`.
    ///
    /// # Errors
    /// A rule grants a unit that is not there, or one twice.
    pub(crate) fn new(
        config: &TargetConfig,
        rules: &ChapRules,
        device: &Device,
    ) -> Result<Self, ConfigError> {
        let access = Access::new(&config.access, device)?;
        Ok(Self { access, policy: config.chap.policy(rules), redirect: config.redirect.clone() })
    }

    /// What an initiator sees of the target that has proven to be `user`; nothing where it may not log in. A secret counts as
    /// it was when it was asked for.
    pub(crate) fn admit(&self, caller: &Caller<'_>, user: Option<&str>) -> Option<Arc<LunMap>> {
        let Some(policy) = &self.policy else { return self.access.admit(caller, None) };
        let user = user.filter(|user| policy.users.iter().any(|known| known.is(user, caller.initiator)))?;
        self.access.admit(caller, Some(user))
    }
}

/// What holds for discovery.
#[derive(Debug)]
pub(crate) struct Discovery {
    /// Who may discover targets; `None`: everybody.
    pub(crate) policy: Option<Arc<ChapPolicy>>,
    pub(crate) scope: DiscoveryScope,
}

impl Discovery {
    pub(crate) fn new(config: &Config) -> Self {
        Self { policy: config.discovery.policy(&config.chap), scope: config.discovery_scope }
    }
}

/// A value that many look at and few change. Who looks keeps what he has seen.
#[derive(Debug)]
pub(crate) struct Changing<T>(RwLock<Arc<T>>);

impl<T> Changing<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(RwLock::new(Arc::new(value)))
    }

    pub(crate) fn get(&self) -> Arc<T> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set(&self, value: T) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
    }
}
