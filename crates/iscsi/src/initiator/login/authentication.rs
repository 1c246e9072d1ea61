//! The authentication exchange at the initiator (RFC 7143, 6.3.2, 9.2, 12.1): offer a method, answer the target's
//! challenge, and have the target prove itself where that is wanted (12.1.3).

use lunette_wire::text::push;

use super::LoginError;
use crate::Quoted;
use crate::chap::{
    CHAP_NAME_LENGTH_MAX, CHAP_VALUE_LENGTH_MAX, ChapAlgorithm, ChapCredential, ChapNonce, decode_binary,
    encode_hex,
};
use crate::parameters::keys::{Key, by_name, row};
use crate::parameters::value;

const CHAP: &str = "CHAP";

/// What an initiator knows for CHAP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Its own name and secret.
    pub own: ChapCredential,
    /// What the target has to prove; none: it has to prove nothing. Not the same secret as one's own (9.2.1).
    pub target: Option<ChapCredential>,
    /// The algorithms to offer, the best first; [`ChapAlgorithm::ALL`] unless there is a reason. At least one.
    pub algorithms: Vec<ChapAlgorithm>,
    /// True: a target that asks for no authentication is refused. Implied when the target has to prove itself.
    pub is_required: bool,
}

impl Credentials {
    /// Credentials with all algorithms, for a target that need not prove itself and may do without them.
    #[must_use]
    pub fn new(own: ChapCredential) -> Self {
        Self { own, target: None, algorithms: ChapAlgorithm::ALL.to_vec(), is_required: false }
    }

    fn needs_chap(&self) -> bool {
        self.is_required || self.target.is_some()
    }

    /// # Errors
    /// [`LoginError::Settings`] for a name of the wrong length, no algorithm, or one secret for both directions.
    pub(super) fn check(&self) -> Result<(), LoginError> {
        let fault = |text: &str| Err(LoginError::Settings(text.to_owned()));
        let names = [Some(&self.own), self.target.as_ref()];
        for credential in names.into_iter().flatten() {
            if credential.name.is_empty() || credential.name.len() > CHAP_NAME_LENGTH_MAX {
                return fault("a CHAP name has 1 to 255 bytes");
            }
            if credential.name.chars().any(char::is_control) {
                return fault("a CHAP name has no control characters");
            }
            if credential.secret.length() == 0 {
                return fault("a CHAP secret is empty");
            }
        }
        if self.algorithms.is_empty() {
            return fault("CHAP needs at least one algorithm");
        }
        if self.target.as_ref().is_some_and(|target| target.secret == self.own.secret) {
            return fault(
                "the initiator and the target have one CHAP secret; each needs its own (RFC 7143, 9.2.1)",
            );
        }
        Ok(())
    }
}

/// How far the exchange has come.
#[derive(Debug)]
enum State {
    /// The method was offered.
    Offered,
    /// CHAP it is, and the algorithms were offered.
    Chosen,
    /// The response went out; the target's own proof must come where it is wanted.
    Answered(ChapAlgorithm),
    /// Nobody has anything to prove any more.
    Settled,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Authentication {
    credentials: Option<Credentials>,
    nonce: ChapNonce,
    state: State,
    /// The algorithm that the target chose.
    algorithm: Option<ChapAlgorithm>,
}

/// The authentication keys of one complete text.
#[derive(Debug, Default)]
struct Keys<'a>([Option<&'a str>; 6]);

impl<'a> Keys<'a> {
    const ALL: [Key; 6] = [
        Key::AuthMethod,
        Key::ChapAlgorithm,
        Key::ChapIdentifier,
        Key::ChapChallenge,
        Key::ChapName,
        Key::ChapResponse,
    ];

    fn of(pairs: &[(&str, &'a str)]) -> Result<Self, LoginError> {
        let mut keys = Self::default();
        for &(name, value) in pairs {
            let key = by_name(name).map(|row| row.key);
            let Some(place) = Self::ALL.iter().position(|own| Some(*own) == key) else { continue };
            if keys.0[place].replace(value).is_some() {
                return Err(LoginError::key(name, "...", "came twice in one text (6.3)"));
            }
        }
        Ok(keys)
    }

    fn get(&self, key: Key) -> Option<&'a str> {
        Self::ALL.iter().position(|own| *own == key).and_then(|place| self.0[place])
    }

    fn need(&self, key: Key) -> Result<&'a str, LoginError> {
        self.get(key).ok_or_else(|| {
            LoginError::protocol(format!("{} is missing in this step of CHAP (12.1.3)", row(key).name))
        })
    }

    fn has_chap(&self) -> bool {
        self.0[1..].iter().any(Option::is_some)
    }
}

impl Authentication {
    /// The exchange and its first key.
    pub(super) fn begin(credentials: Option<Credentials>, nonce: ChapNonce, text: &mut Vec<u8>) -> Self {
        let offer = match &credentials {
            None => value::NONE,
            Some(credentials) if credentials.needs_chap() => CHAP,
            Some(_) => "CHAP,None",
        };
        push(text, row(Key::AuthMethod).name, offer);
        Self { credentials, nonce, state: State::Offered, algorithm: None }
    }

    /// True when this side can leave the stage: with the request that is sent next if `None` is all that is offered or the
    /// response goes out.
    pub(super) fn may_leave(&self) -> bool {
        match self.state {
            State::Offered => self.credentials.is_none(),
            State::Chosen => false,
            State::Answered(_) | State::Settled => true,
        }
    }

    /// True when nobody has anything to prove any more.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.state, State::Settled)
    }

    /// The algorithm that the target chose, if it came to that.
    pub(super) fn algorithm(&self) -> Option<ChapAlgorithm> {
        self.algorithm
    }

    /// Takes the authentication keys of one complete text and writes this side's.
    ///
    /// # Errors
    /// [`LoginError::Method`] where there is no method in common, [`LoginError::TargetNotProven`] where the target cannot
    /// prove itself, [`LoginError::Protocol`] and [`LoginError::Key`] for keys that do not fit the step.
    pub(super) fn take(&mut self, pairs: &[(&str, &str)], text: &mut Vec<u8>) -> Result<(), LoginError> {
        let keys = Keys::of(pairs)?;
        if keys.get(Key::AuthMethod).is_some() && !matches!(self.state, State::Offered) {
            return Err(LoginError::protocol(
                "AuthMethod came again in the middle of the authentication".into(),
            ));
        }
        self.state = match std::mem::replace(&mut self.state, State::Settled) {
            State::Offered => self.choose(&keys, text)?,
            State::Chosen => self.answer(&keys, text)?,
            State::Answered(algorithm) => self.judge(algorithm, &keys)?,
            State::Settled => State::Settled,
        };
        Ok(())
    }

    /// The target's answer to AuthMethod.
    fn choose(&self, keys: &Keys<'_>, text: &mut Vec<u8>) -> Result<State, LoginError> {
        if keys.has_chap() {
            return Err(LoginError::protocol("keys of CHAP came before CHAP was agreed on (12.1.3)".into()));
        }
        match (keys.get(Key::AuthMethod), &self.credentials) {
            (Some(CHAP), Some(credentials)) => {
                let numbers: Vec<String> =
                    credentials.algorithms.iter().map(|algorithm| algorithm.number().to_string()).collect();
                push(text, row(Key::ChapAlgorithm).name, &numbers.join(","));
                Ok(State::Chosen)
            }
            // Without an answer a target that asks for nothing goes on; if it did ask, it refuses the next request.
            (Some(value::NONE) | None, None) => Ok(State::Settled),
            (Some(value::NONE) | None, Some(credentials)) if !credentials.needs_chap() => Ok(State::Settled),
            (answer, _) => Err(LoginError::Method {
                answer: answer.map(|answer| Quoted(answer).to_string()),
                has_credentials: self.credentials.is_some(),
            }),
        }
    }

    /// The target's challenge, and this side's response.
    fn answer(&mut self, keys: &Keys<'_>, text: &mut Vec<u8>) -> Result<State, LoginError> {
        let Some(credentials) = &self.credentials else { return Ok(State::Settled) };
        let chosen = keys.need(Key::ChapAlgorithm)?;
        let algorithm = value::number(chosen)
            .and_then(ChapAlgorithm::from_number)
            .filter(|algorithm| credentials.algorithms.contains(algorithm))
            .ok_or_else(|| LoginError::key("CHAP_A", chosen, "is none of the algorithms that we offered"))?;
        let identifier = keys.need(Key::ChapIdentifier)?;
        let identifier = value::number(identifier)
            .and_then(|number| u8::try_from(number).ok())
            .ok_or_else(|| LoginError::key("CHAP_I", identifier, "is no number from 0 to 255"))?;
        let challenge = binary(Key::ChapChallenge, keys.need(Key::ChapChallenge)?)?;
        if challenge == self.own_challenge(algorithm) {
            return Err(LoginError::TargetNotProven("it sent our own challenge back (9.2.1)".into()));
        }
        let response = algorithm.respond(identifier, &credentials.own.secret, &challenge);
        push(text, row(Key::ChapName).name, &credentials.own.name);
        push(text, row(Key::ChapResponse).name, &encode_hex(response.bytes()));
        if credentials.target.is_some() {
            push(text, row(Key::ChapIdentifier).name, &self.nonce.identifier.to_string());
            push(text, row(Key::ChapChallenge).name, &encode_hex(self.own_challenge(algorithm)));
        }
        self.algorithm = Some(algorithm);
        Ok(State::Answered(algorithm))
    }

    /// The target's proof.
    fn judge(&self, algorithm: ChapAlgorithm, keys: &Keys<'_>) -> Result<State, LoginError> {
        let Some(credentials) = &self.credentials else { return Ok(State::Settled) };
        // Whoever was not asked may say what he likes.
        let Some(expected) = &credentials.target else { return Ok(State::Settled) };
        let fault = |reason: String| Err(LoginError::TargetNotProven(reason));
        let (Some(name), Some(response)) = (keys.get(Key::ChapName), keys.get(Key::ChapResponse)) else {
            return fault("it let us in without the proof that we asked for".into());
        };
        let response = binary(Key::ChapResponse, response)?;
        if name != expected.name {
            return fault(format!("it calls itself {}, not {}", Quoted(name), Quoted(&expected.name)));
        }
        let nonce = self.nonce.identifier;
        let challenge = self.own_challenge(algorithm);
        if algorithm.respond(nonce, &credentials.own.secret, challenge).is(&response) {
            return fault("it proves itself with our own secret (9.2.1)".into());
        }
        if response.len() != algorithm.digest_length() {
            return fault(format!(
                "its response has {} bytes where {algorithm} has {}; tgtd computes SHA-1 where SHA-256 is meant: offer \
                 MD5 alone to it",
                response.len(),
                algorithm.digest_length()
            ));
        }
        if !algorithm.respond(nonce, &expected.secret, challenge).is(&response) {
            return fault(
                "its response is wrong: the two sides have different secrets for the target".into(),
            );
        }
        Ok(State::Settled)
    }

    fn own_challenge(&self, algorithm: ChapAlgorithm) -> &[u8] {
        &self.nonce.challenge[..algorithm.digest_length()]
    }
}

fn binary(key: Key, value: &str) -> Result<Vec<u8>, LoginError> {
    decode_binary(value, CHAP_VALUE_LENGTH_MAX)
        .map_err(|error| LoginError::protocol(format!("the value of {} {error}", row(key).name)))
}
