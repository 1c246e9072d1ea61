//! The stages of a login as a consuming enum (RFC 7143, 6.3, and states S3 and S4 of 8.1.4): what each knows, and how
//! it reads a complete text.
//!
//! PDUs, continuation and bounds are the parent module's affair.

use std::collections::BTreeSet;

use lunette_wire::initiator::LoginStage;
use lunette_wire::text::push;

use super::authentication::{Authentication, Circumstances, Keys};
use super::identity::Identity;
use super::{LoginFailure, Redirection, TargetDirectory};
use crate::chap::ChapNonce;
use crate::name::IscsiName;
use crate::parameters::keys::{Row, by_name};
use crate::parameters::negotiation::Negotiation;
use crate::parameters::value::{self, NOT_UNDERSTOOD};
use crate::parameters::{KeyError, TargetLimits};

/// The most keys that one stage takes; the RFCs define fewer than 40.
pub const STAGE_KEYS_MAX: usize = 256;

/// What all stages need to know about the connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting {
    pub(super) limits: TargetLimits,
    /// The group of the portal that the connection came through.
    pub(super) portal_group_tag: u16,
    /// False when the login joins a session.
    pub(super) is_leading: bool,
    /// For the challenge.
    pub(super) nonce: ChapNonce,
}

/// Where a login stands.
#[derive(Debug)]
pub(super) enum Stage {
    /// S3, XPT_UP: nothing complete has been received. The first request says with which stage it begins (T4).
    Start(LoginStage),
    /// S4, IN_LOGIN: SecurityNegotiation.
    Security(Box<Security>),
    /// S4, IN_LOGIN: LoginOperationalNegotiation.
    Operational(Box<Operational>),
    /// S5 by T5, or S1 by T7: this login is over.
    Ended,
}

/// SecurityNegotiation.
#[derive(Debug)]
pub(super) struct Security {
    identity: Identity,
    seen: Seen,
    authentication: Authentication,
}

/// LoginOperationalNegotiation.
#[derive(Debug)]
pub(super) struct Operational {
    identity: Identity,
    seen: Seen,
    negotiation: Negotiation,
}

/// The parties and the parameters of a login that is through.
pub(super) struct Agreed {
    pub(super) identity: Identity,
    pub(super) negotiation: Negotiation,
}

impl Stage {
    /// The stage code of requests that belong here; none after the end.
    pub(super) fn code(&self) -> Option<LoginStage> {
        match self {
            Self::Start(first) => Some(*first),
            Self::Security(_) => Some(LoginStage::Security),
            Self::Operational(_) => Some(LoginStage::Operational),
            Self::Ended => None,
        }
    }

    /// Reads one complete text and writes the answers.
    ///
    /// # Errors
    /// The login has failed; there is no stage any more.
    pub(super) fn take(
        self,
        setting: &Setting,
        pairs: &[(&str, &str)],
        directory: &dyn TargetDirectory,
        answers: &mut Vec<u8>,
    ) -> Result<Self, LoginFailure> {
        let entered = match self {
            Self::Start(first) => {
                let identity = Identity::read(pairs, directory)?;
                let target = identity.entry().map(|(name, _)| name.as_str());
                let authentication = Authentication::new(directory.authentication(target));
                introduce(&identity, setting, answers);
                if authentication.is_settled() {
                    tell_alias(&identity, answers);
                }
                if first == LoginStage::Security {
                    Self::Security(Box::new(Security { identity, seen: Seen::default(), authentication }))
                } else {
                    authentication.check_skipped()?;
                    Self::operational(identity, setting)
                }
            }
            other => other,
        };
        match entered {
            Self::Security(mut stage) => {
                stage.take(pairs, setting, directory, answers)?;
                Ok(Self::Security(stage))
            }
            Self::Operational(mut stage) => {
                stage.take(pairs, answers)?;
                Ok(Self::Operational(stage))
            }
            Self::Start(_) | Self::Ended => Ok(Self::Ended),
        }
    }

    /// Who the initiator says that it is; nothing before it has said so.
    pub(super) fn initiator_name(&self) -> Option<&IscsiName> {
        match self {
            Self::Security(stage) => Some(&stage.identity.initiator_name),
            Self::Operational(stage) => Some(&stage.identity.initiator_name),
            Self::Start(_) | Self::Ended => None,
        }
    }

    /// Where the initiator has to go, once nobody has anything to prove any more: with the security stage behind, so that
    /// the target's own proof has gone out too, or within it where no proof was asked for.
    pub(super) fn redirection(&self) -> Option<&Redirection> {
        match self {
            Self::Security(stage) if stage.authentication.is_open() => stage.identity.redirection(),
            Self::Operational(stage) => stage.identity.redirection(),
            Self::Start(_) | Self::Security(_) | Self::Ended => None,
        }
    }

    /// Answers what was put off until the initiator had said all.
    pub(super) fn settle(&mut self, answers: &mut Vec<u8>) {
        if let Self::Operational(stage) = self {
            stage.negotiation.settle(answers);
        }
    }

    /// Whether the stage can end now that the initiator wants it to; if not, it has to go on first.
    ///
    /// # Errors
    /// It cannot end at all: see [`Authentication::may_end`].
    pub(super) fn may_end(&self) -> Result<bool, LoginFailure> {
        match self {
            Self::Security(stage) => stage.authentication.may_end(),
            _ => Ok(true),
        }
    }

    /// Goes on from security to operational negotiation; from anywhere else there is no such way.
    pub(super) fn into_operational(self, setting: &Setting) -> Self {
        match self {
            Self::Security(stage) => {
                stage.settled().map_or(Self::Ended, |identity| Self::operational(identity, setting))
            }
            _ => Self::Ended,
        }
    }

    /// Ends the login with what was agreed, out of either stage.
    pub(super) fn into_agreed(self, setting: &Setting) -> Option<Agreed> {
        match self {
            Self::Security(stage) => {
                let identity = stage.settled()?;
                let negotiation = Negotiation::new(setting.limits, identity.session_type, setting.is_leading);
                Some(Agreed { identity, negotiation })
            }
            Self::Operational(stage) => {
                let Operational { identity, negotiation, .. } = *stage;
                Some(Agreed { identity, negotiation })
            }
            Self::Start(_) | Self::Ended => None,
        }
    }

    fn operational(identity: Identity, setting: &Setting) -> Self {
        let negotiation = Negotiation::new(setting.limits, identity.session_type, setting.is_leading);
        Self::Operational(Box::new(Operational { identity, seen: Seen::default(), negotiation }))
    }
}

/// Says which portal group serves the login, in the first response that may say so, for every type of session (6.3.1;
/// Windows waits for it).
fn introduce(identity: &Identity, setting: &Setting, answers: &mut Vec<u8>) {
    let entry = identity.target.as_ref().map(|(_, entry)| entry);
    let tag = entry.map_or(setting.portal_group_tag, |entry| entry.portal_group_tag);
    push(answers, "TargetPortalGroupTag", &tag.to_string());
}

/// Says how the target calls itself (13.6), to nobody who has still to prove something.
fn tell_alias(identity: &Identity, answers: &mut Vec<u8>) {
    if let Some(alias) = identity.entry().and_then(|(_, entry)| entry.alias.as_deref()) {
        push(answers, "TargetAlias", alias);
    }
}

impl Security {
    fn take(
        &mut self,
        pairs: &[(&str, &str)],
        setting: &Setting,
        directory: &dyn TargetDirectory,
        answers: &mut Vec<u8>,
    ) -> Result<(), LoginFailure> {
        let mut keys = Keys::default();
        for (name, value) in pairs {
            let Some(row) = self.seen.look_up(name, value, LoginStage::Security, answers)? else { continue };
            if !keys.take(row.key, value) {
                self.identity.declare(row.key, row.name, value)?;
            }
        }
        let circumstances =
            Circumstances { nonce: &setting.nonce, initiator: &self.identity.initiator_name, directory };
        let was_settled = self.authentication.is_settled();
        self.authentication.take(&keys, &circumstances, answers)?;
        if !was_settled && self.authentication.is_settled() {
            tell_alias(&self.identity, answers);
        }
        Ok(())
    }

    /// The parties, once everybody is who they have to be.
    fn settled(self) -> Option<Identity> {
        let user = self.authentication.into_user()?;
        Some(Identity { user, ..self.identity })
    }
}

impl Operational {
    fn take(&mut self, pairs: &[(&str, &str)], answers: &mut Vec<u8>) -> Result<(), LoginFailure> {
        self.negotiation.declare(answers);
        for (name, value) in pairs {
            let Some(row) = self.seen.look_up(name, value, LoginStage::Operational, answers)? else {
                continue;
            };
            self.identity.declare(row.key, row.name, value)?;
            self.negotiation.offer(row, value, answers)?;
        }
        Ok(())
    }
}

/// The keys that came in this stage. A second time is an error (6.3).
#[derive(Debug, Default)]
struct Seen(BTreeSet<String>);

impl Seen {
    /// Finds the row of a key that may be sent here and now; answers a key that nobody knows.
    fn look_up(
        &mut self,
        name: &str,
        value: &str,
        stage: LoginStage,
        answers: &mut Vec<u8>,
    ) -> Result<Option<&'static Row>, KeyError> {
        if self.0.len() == STAGE_KEYS_MAX {
            return Err(KeyError::TooMany(STAGE_KEYS_MAX));
        }
        if !self.0.insert(name.to_owned()) {
            return Err(KeyError::Repeated(name.to_owned()));
        }
        // No key that this side declares may be answered with one of these words either (6.2).
        if value::is_reserved(value) {
            return Err(KeyError::ReservedWord { key: name.to_owned(), value: value.to_owned() });
        }
        let Some(row) = by_name(name) else {
            push(answers, name, NOT_UNDERSTOOD);
            return Ok(None);
        };
        row.check_login(stage)?;
        Ok(Some(row))
    }
}
