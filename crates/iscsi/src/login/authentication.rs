//! The authentication exchange at the target (RFC 7143, 6.3.2, 9.2, 12.1): the choice between CHAP and None, and the
//! steps of CHAP (12.1.3).
//!
//! What a response must be is `chap`'s affair; here is which keys each step has, and what a missing, wrong or
//! unexpected one means. Challenges cannot be reflected from one connection to another either: the target answers one
//! only when its sender is proven, and with a secret that lets nobody in here (9.2.1).

use std::sync::Arc;

use lunette_wire::text::push;

use super::{LoginFailure, LoginStatus, TargetDirectory};
use crate::Quoted;
use crate::chap::{
    CHAP_NAME_LENGTH_MAX, CHAP_VALUE_LENGTH_MAX, ChapAlgorithm, ChapNonce, ChapPolicy, decode_binary,
    encode_hex,
};
use crate::name::IscsiName;
use crate::parameters::KeyError;
use crate::parameters::keys::{Key, row};
use crate::parameters::value;

/// CHAP as a list value.
const CHAP: &str = "CHAP";

/// The authentication keys of one complete text.
#[derive(Debug, Default)]
pub(super) struct Keys<'a> {
    method: Option<&'a str>,
    algorithms: Option<&'a str>,
    identifier: Option<&'a str>,
    challenge: Option<&'a str>,
    name: Option<&'a str>,
    response: Option<&'a str>,
}

impl<'a> Keys<'a> {
    /// Takes a key if it is one of these.
    pub(super) fn take(&mut self, key: Key, value: &'a str) -> bool {
        let place = match key {
            Key::AuthMethod => &mut self.method,
            Key::ChapAlgorithm => &mut self.algorithms,
            Key::ChapIdentifier => &mut self.identifier,
            Key::ChapChallenge => &mut self.challenge,
            Key::ChapName => &mut self.name,
            Key::ChapResponse => &mut self.response,
            _ => return false,
        };
        *place = Some(value);
        true
    }

    /// The first key of CHAP that is here and not among `allowed`.
    fn other_than(&self, allowed: &[Key]) -> Option<&'static str> {
        [
            (Key::ChapAlgorithm, self.algorithms),
            (Key::ChapIdentifier, self.identifier),
            (Key::ChapChallenge, self.challenge),
            (Key::ChapName, self.name),
            (Key::ChapResponse, self.response),
        ]
        .into_iter()
        .find(|(key, value)| value.is_some() && !allowed.contains(key))
        .map(|(key, _)| row(key).name)
    }
}

/// What the exchange depends on.
pub(super) struct Circumstances<'a> {
    pub(super) nonce: &'a ChapNonce,
    pub(super) initiator: &'a IscsiName,
    pub(super) directory: &'a dyn TargetDirectory,
}

/// How far the exchange has come.
#[derive(Debug)]
enum State {
    /// No method was offered.
    Unsettled,
    /// Nobody is authenticated.
    Nobody,
    /// CHAP it is; CHAP_A must come.
    Chosen(Arc<ChapPolicy>),
    /// The challenge is out; CHAP_N and CHAP_R must come.
    Challenged(Arc<ChapPolicy>, ChapAlgorithm),
    /// This CHAP name is proven.
    Proven(String),
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Authentication {
    /// `None`: everybody may log in.
    policy: Option<Arc<ChapPolicy>>,
    state: State,
}

impl Authentication {
    pub(super) fn new(policy: Option<Arc<ChapPolicy>>) -> Self {
        Self { policy, state: State::Unsettled }
    }

    /// True where everybody may log in.
    pub(super) const fn is_open(&self) -> bool {
        self.policy.is_none()
    }

    /// True when nobody has anything to prove any more.
    pub(super) fn is_settled(&self) -> bool {
        self.is_open() || matches!(self.state, State::Proven(_))
    }

    /// For a login without a security stage.
    ///
    /// # Errors
    /// Status 0201 where CHAP is asked for.
    pub(super) fn check_skipped(&self) -> Result<(), LoginFailure> {
        match self.policy {
            None => Ok(()),
            Some(_) => Err(failed("the initiator offers no authentication, and CHAP is asked for here")),
        }
    }

    /// Whether the security stage may end.
    ///
    /// # Errors
    /// As [`Self::check_skipped`], where no method was offered.
    pub(super) fn may_end(&self) -> Result<bool, LoginFailure> {
        match self.state {
            State::Unsettled => self.check_skipped().map(|()| true),
            State::Nobody | State::Proven(_) => Ok(true),
            State::Chosen(_) | State::Challenged(..) => Ok(false),
        }
    }

    /// The proven CHAP name, or that none is asked for; nothing as long as one is.
    pub(super) fn into_user(self) -> Option<Option<String>> {
        match (self.state, self.policy) {
            (State::Proven(user), _) => Some(Some(user)),
            (State::Unsettled | State::Nobody, None) => Some(None),
            _ => None,
        }
    }

    /// Takes the keys of one complete text.
    ///
    /// # Errors
    /// 0200 and 0207 for keys that do not fit the step (9.2), 0201 where nobody can be authenticated, 0301 when there
    /// were too many attempts.
    pub(super) fn take(
        &mut self,
        keys: &Keys<'_>,
        circumstances: &Circumstances<'_>,
        answers: &mut Vec<u8>,
    ) -> Result<(), LoginFailure> {
        if let Some(offer) = keys.method {
            self.choose(offer, answers)?;
        }
        self.state = match std::mem::replace(&mut self.state, State::Unsettled) {
            state @ (State::Unsettled | State::Nobody) => {
                no_other(keys, &[], KeyError::MethodNotAgreed)?;
                state
            }
            State::Chosen(policy) => {
                no_other(keys, &[Key::ChapAlgorithm], KeyError::OutOfStep)?;
                match keys.algorithms {
                    Some(offer) => challenge(policy, offer, circumstances.nonce, answers)?,
                    // The method has only just been chosen; the first step comes next.
                    None if keys.method.is_some() => State::Chosen(policy),
                    None => return Err(missing(Key::ChapAlgorithm)),
                }
            }
            State::Challenged(policy, algorithm) => {
                no_other(
                    keys,
                    &[Key::ChapName, Key::ChapResponse, Key::ChapIdentifier, Key::ChapChallenge],
                    KeyError::OutOfStep,
                )?;
                verify(&policy, algorithm, keys, circumstances, answers)?
            }
            state @ State::Proven(_) => {
                no_other(keys, &[], KeyError::OutOfStep)?;
                state
            }
        };
        Ok(())
    }

    /// Picks the first method of the offer that may be used (6.3.2).
    fn choose(&mut self, offer: &str, answers: &mut Vec<u8>) -> Result<(), LoginFailure> {
        let (chosen, state) = match &self.policy {
            None => (value::NONE, State::Nobody),
            Some(policy) => (CHAP, State::Chosen(Arc::clone(policy))),
        };
        // The login has failed where there is none (7.12); a bare Reject would leave the initiator guessing.
        if value::first_known(offer, &[chosen]).is_none() {
            let reason =
                format!("AuthMethod={} has no method that is served here: offer {chosen}", Quoted(offer));
            return Err(failed(reason));
        }
        push(answers, row(Key::AuthMethod).name, chosen);
        self.state = state;
        Ok(())
    }
}

/// The target's first step: algorithm, identifier and challenge.
fn challenge(
    policy: Arc<ChapPolicy>,
    offer: &str,
    nonce: &ChapNonce,
    answers: &mut Vec<u8>,
) -> Result<State, LoginFailure> {
    let known = |text: &str| value::number(text).and_then(ChapAlgorithm::from_number);
    let algorithm =
        offer.split(',').filter_map(known).find(|algorithm| policy.algorithms.contains(algorithm));
    let Some(algorithm) = algorithm else {
        let served: Vec<String> =
            policy.algorithms.iter().map(|algorithm| algorithm.number().to_string()).collect();
        return Err(failed(format!(
            "CHAP_A={} has no algorithm that is served here: offer {}",
            Quoted(offer),
            served.join(" or ")
        )));
    };
    push(answers, row(Key::ChapAlgorithm).name, &algorithm.number().to_string());
    push(answers, row(Key::ChapIdentifier).name, &nonce.identifier.to_string());
    push(answers, row(Key::ChapChallenge).name, &encode_hex(challenge_of(nonce, algorithm)));
    Ok(State::Challenged(policy, algorithm))
}

fn challenge_of(nonce: &ChapNonce, algorithm: ChapAlgorithm) -> &[u8] {
    &nonce.challenge[..algorithm.digest_length()]
}

/// The target's second step: the initiator is proven, and gets the target's own response if it asked for it.
fn verify(
    policy: &ChapPolicy,
    algorithm: ChapAlgorithm,
    keys: &Keys<'_>,
    circumstances: &Circumstances<'_>,
    answers: &mut Vec<u8>,
) -> Result<State, LoginFailure> {
    let name = keys.name.ok_or_else(|| missing(Key::ChapName))?;
    // Without this a target that proves itself first could be made to answer its own challenge (9.2).
    let response = keys.response.ok_or_else(|| missing(Key::ChapResponse))?;
    if name.is_empty() || name.len() > CHAP_NAME_LENGTH_MAX {
        let reason = format!("a CHAP name has 1 to {CHAP_NAME_LENGTH_MAX} bytes, not {}", name.len());
        return Err(LoginFailure::initiator(reason));
    }
    let response = binary(Key::ChapResponse, response)?;
    let returned = counter_challenge(keys)?;

    let nonce = circumstances.nonce;
    let challenge = challenge_of(nonce, algorithm);
    if returned.as_ref().is_some_and(|(_, returned)| returned == challenge) {
        return Err(failed("the initiator sent our own challenge back (9.2.1)"));
    }
    if !circumstances.directory.may_try(name) {
        let reason = format!("too many failed logins of CHAP user {} or from its address", Quoted(name));
        return Err(LoginFailure::new(LoginStatus::ServiceUnavailable, reason));
    }
    let respond = |secret: &_| algorithm.respond(nonce.identifier, secret, challenge);
    let verdict = policy.verify(name, circumstances.initiator, &response, respond);
    circumstances.directory.tried(name, verdict.is_ok());
    verdict.map_err(|refusal| failed(refusal.to_string()))?;

    if let Some((identifier, challenge)) = returned {
        let Some(own) = &policy.own else {
            let reason =
                "the initiator asks this target to prove itself, and it has no name and secret for that";
            return Err(failed(reason));
        };
        let response = algorithm.respond(identifier, &own.secret, &challenge);
        push(answers, row(Key::ChapName).name, &own.name);
        push(answers, row(Key::ChapResponse).name, &encode_hex(response.bytes()));
    }
    Ok(State::Proven(name.to_owned()))
}

/// The initiator's identifier and challenge for the target, if it sent them: both or none.
fn counter_challenge(keys: &Keys<'_>) -> Result<Option<(u8, Vec<u8>)>, LoginFailure> {
    let (identifier, challenge) = match (keys.identifier, keys.challenge) {
        (None, None) => return Ok(None),
        (None, Some(_)) => return Err(missing(Key::ChapIdentifier)),
        (Some(_), None) => return Err(missing(Key::ChapChallenge)),
        (Some(identifier), Some(challenge)) => (identifier, challenge),
    };
    let number = value::number(identifier).and_then(|number| u8::try_from(number).ok());
    let number = number.ok_or_else(|| {
        LoginFailure::initiator(format!("CHAP_I={} is no number from 0 to 255", Quoted(identifier)))
    })?;
    Ok(Some((number, binary(Key::ChapChallenge, challenge)?)))
}

fn binary(key: Key, value: &str) -> Result<Vec<u8>, LoginFailure> {
    decode_binary(value, CHAP_VALUE_LENGTH_MAX)
        .map_err(|error| LoginFailure::initiator(format!("the value of {} {error}", row(key).name)))
}

/// Fails for a key that is not among those of the step.
fn no_other(
    keys: &Keys<'_>,
    allowed: &[Key],
    error: fn(&'static str) -> KeyError,
) -> Result<(), LoginFailure> {
    keys.other_than(allowed).map_or(Ok(()), |name| Err(error(name).into()))
}

fn failed(reason: impl Into<String>) -> LoginFailure {
    LoginFailure::new(LoginStatus::AuthenticationFailure, reason)
}

fn missing(key: Key) -> LoginFailure {
    LoginFailure::new(
        LoginStatus::MissingParameter,
        format!("{} is missing in this step of CHAP", row(key).name),
    )
}
