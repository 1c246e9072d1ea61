//! The login phase at the initiator (RFC 7143, 6.3, 8.1.3, 11.12, 11.13): one [`Login`] takes a connection from its first
//! request to the full feature phase.
//!
//! This module knows PDUs: stages, the T and C bits, numbers and bounds. What the keys mean is read by `authentication` and
//! `negotiation`. Time is only noted down for the [`Trace`]; how long a login may take is the driver's affair. Digests are
//! off during login (13.1).

mod authentication;
mod checks;
mod failure;
mod negotiation;
mod outcome;
mod redirection;
mod trace;
mod wishes;

use std::time::Duration;

use lunette_wire::initiator::{LoginRequest, LoginStage};
use lunette_wire::target::LoginResponse;
use lunette_wire::text::{TextBuffer, pairs, push};
use lunette_wire::{Cid, CmdSn, InitiatorTaskTag, Isid, StatSn, Tsih};

pub use authentication::Credentials;
pub use failure::{LoginError, Refusal, Side};
pub use outcome::Outcome;
pub use redirection::{Moved, REDIRECTIONS_MAX, Trail};
pub use trace::{Reason, Trace, TracedKey, TracedPdu};
pub use wishes::{ADDITIONAL_KEYS_MAX, ADDITIONAL_VALUE_LENGTH_MAX, DigestWish, Wishes};

use crate::Quoted;
use crate::chap::ChapNonce;
use crate::login::{LOGIN_SEGMENT_MAX, LOGIN_TEXT_MAX};
use crate::name::IscsiName;
use crate::parameters::SessionType;
use authentication::Authentication;
use negotiation::Negotiation;
use outcome::Told;

/// The most Login Requests that one login may take. A text of 64 KiB each way takes sixteen; a target that wants more talks
/// in circles.
pub const EXCHANGES_MAX: u32 = 64;
/// The longest alias, in bytes (6.1: 255).
pub const ALIAS_LENGTH_MAX: usize = 255;
/// The only protocol version (11.12.4).
const VERSION: u8 = 0x00;

/// What the session is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose {
    /// SCSI commands for this target.
    Normal(IscsiName),
    /// Finding targets; with a name, about that target alone (7.4.2.2).
    Discovery(Option<IscsiName>),
}

impl Purpose {
    const fn session_type(&self) -> SessionType {
        match self {
            Self::Normal(_) => SessionType::Normal,
            Self::Discovery(_) => SessionType::Discovery,
        }
    }
}

/// What a login is to bring about.
#[derive(Debug, Clone)]
pub struct LoginSettings {
    /// Who we are.
    pub initiator_name: IscsiName,
    /// How people call us (13.7), at most [`ALIAS_LENGTH_MAX`] bytes.
    pub initiator_alias: Option<String>,
    /// What for.
    pub purpose: Purpose,
    /// With the initiator's name, what tells our sessions apart (11.12.5).
    pub isid: Isid,
    /// Zero for a new session (or to reinstate one with the same ISID), else the session to join (6.3.1).
    pub tsih: Tsih,
    /// The connection's name in its session; that of an earlier connection reinstates it (6.3.4).
    pub cid: Cid,
    /// The first command's number in a new session, the next one where a session is joined (11.12.8).
    pub cmd_sn: CmdSn,
    /// Of the connection that this one takes the place of (11.12.9); none for any other.
    pub exp_stat_sn: Option<StatSn>,
    /// What is offered.
    pub wishes: Wishes,
    /// For CHAP; none: only `AuthMethod=None` is offered.
    pub credentials: Option<Credentials>,
    /// Without credentials: begin with the operational stage, which saves a round trip. A target may refuse that (6.3).
    pub skips_security: bool,
}

/// A Login Request with its data segment, without padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginPdu {
    /// The header.
    pub pdu: LoginRequest,
    /// The data segment: at most [`LOGIN_SEGMENT_MAX`] bytes.
    pub text: Vec<u8>,
}

/// What is to be done after a Login Response.
#[derive(Debug)]
pub enum Step {
    /// Send this and wait for the answer.
    Send(LoginPdu),
    /// The connection is in the full feature phase.
    Done(Box<Outcome>),
    /// Close the connection and log in elsewhere; see [`Trail`].
    Moved(Moved),
    /// Close the connection (6.3.2, 11.13.5).
    Failed(LoginError),
}

/// Where a login stands (S4, IN_LOGIN, of 8.1.3; a login begins with its first request).
#[derive(Debug)]
enum Stage {
    /// SecurityNegotiation.
    Security(Box<Authentication>),
    /// LoginOperationalNegotiation.
    Operational(Box<Negotiation>),
    /// S5 by T5, or S1 by T7.
    Ended,
}

/// One connection's login. See the module's documentation.
#[derive(Debug)]
pub struct Login {
    settings: LoginSettings,
    stage: Stage,
    /// NSG of the last request, where its T bit was set.
    asked_for: Option<LoginStage>,
    /// StatSN of the next response; none before the first.
    stat_sn: Option<StatSn>,
    requests: u32,
    text_length: usize,
    received: TextBuffer,
    /// What is still to be sent of our text, and the stage that it leads to.
    unsent: Vec<u8>,
    wants: Option<LoginStage>,
    told: Told,
    trace: Trace,
}

impl Login {
    /// Begins a login: answers with the request to send first. `nonce` is random, and new for each login.
    ///
    /// # Errors
    /// [`LoginError::Settings`] when something that is to be offered cannot be.
    pub fn begin(
        settings: LoginSettings,
        nonce: ChapNonce,
        now: Duration,
    ) -> Result<(Self, LoginPdu), LoginError> {
        settings.wishes.check()?;
        if let Some(credentials) = &settings.credentials {
            credentials.check()?;
        }
        let mut text = Vec::new();
        push(&mut text, "InitiatorName", settings.initiator_name.as_str());
        if let Some(alias) = &settings.initiator_alias {
            if alias.len() > ALIAS_LENGTH_MAX || alias.chars().any(char::is_control) {
                return Err(LoginError::Settings(format!(
                    "{} is no alias of up to 255 bytes",
                    Quoted(alias)
                )));
            }
            push(&mut text, "InitiatorAlias", alias);
        }
        match &settings.purpose {
            Purpose::Normal(target) => {
                push(&mut text, "SessionType", "Normal");
                push(&mut text, "TargetName", target.as_str());
            }
            Purpose::Discovery(target) => {
                push(&mut text, "SessionType", "Discovery");
                if let Some(target) = target {
                    push(&mut text, "TargetName", target.as_str());
                }
            }
        }
        let (stage, wants) = if settings.skips_security && settings.credentials.is_none() {
            let (stage, keys) = operational_stage(&settings);
            text.extend(keys);
            (stage, Some(LoginStage::FullFeature))
        } else {
            let authentication = Authentication::begin(settings.credentials.clone(), nonce, &mut text);
            let wants = authentication.may_leave().then_some(LoginStage::Operational);
            (Stage::Security(Box::new(authentication)), wants)
        };
        let mut login = Self {
            settings,
            stage,
            asked_for: None,
            stat_sn: None,
            requests: 0,
            text_length: 0,
            received: TextBuffer::default(),
            unsent: Vec::new(),
            wants: None,
            told: Told::default(),
            trace: Trace::default(),
        };
        let first = login.say(now, text, wants);
        Ok((login, first))
    }

    /// What was said so far.
    #[must_use]
    pub const fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Takes a Login Response with its data segment.
    pub fn received(&mut self, now: Duration, response: &LoginResponse, text: &[u8]) -> Step {
        self.note_response(now, response, text.len());
        match self.proceed(now, response, text) {
            Ok(step @ Step::Send(_)) => step,
            Ok(step) => {
                self.stage = Stage::Ended;
                step
            }
            Err(error) => {
                self.note_keys();
                self.stage = Stage::Ended;
                Step::Failed(error)
            }
        }
    }

    /// Takes a PDU that is no Login Response: nothing else may come now (6.3).
    pub fn other_pdu(&mut self, opcode: u8) -> Step {
        self.stage = Stage::Ended;
        Step::Failed(LoginError::protocol(format!(
            "a PDU with opcode {opcode:#04x} came where a Login Response was due; is this an iSCSI portal?"
        )))
    }

    fn proceed(&mut self, now: Duration, response: &LoginResponse, text: &[u8]) -> Result<Step, LoginError> {
        let Some(stage) = self.stage_code() else {
            return Err(LoginError::protocol("a Login Response came after the login's end".into()));
        };
        self.count(text.len())?;
        self.check_header(response)?;
        if let Some(step) = self.ending(response, text)? {
            return Ok(step);
        }
        self.check_stage(response, stage)?;
        self.received.extend(text, LOGIN_TEXT_MAX)?;
        if response.is_continued {
            if !self.unsent.is_empty() {
                return Err(LoginError::protocol(
                    "a text came in parts while ours was on its way (6.2)".into(),
                ));
            }
            // Only an empty request may fetch the rest (6.2).
            return Ok(Step::Send(self.request(now, Vec::new())));
        }
        if !self.unsent.is_empty() {
            return Ok(Step::Send(self.next_part(now)));
        }
        let whole = self.received.take();
        let pairs = pairs(&whole)?;
        self.trace.note_pairs(&pairs);
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Security(authentication) => self.security(now, response, &pairs, authentication),
            Stage::Operational(negotiation) => self.operational(now, response, &pairs, negotiation),
            Stage::Ended => Err(LoginError::protocol("a Login Response came after the login's end".into())),
        }
    }

    /// A complete text of the security stage.
    fn security(
        &mut self,
        now: Duration,
        response: &LoginResponse,
        pairs: &[(&str, &str)],
        mut authentication: Box<Authentication>,
    ) -> Result<Step, LoginError> {
        self.told.take(pairs)?;
        let mut text = Vec::new();
        let result = authentication.take(pairs, &mut text);
        self.told.algorithm = authentication.algorithm();
        result?;
        if !response.transit {
            let wants = authentication.may_leave().then_some(LoginStage::Operational);
            self.stage = Stage::Security(authentication);
            return Ok(Step::Send(self.say(now, text, wants)));
        }
        if !authentication.is_settled() || !text.is_empty() {
            return Err(LoginError::protocol(
                "it ended the security stage in the middle of it (6.3.2)".into(),
            ));
        }
        let (stage, text) = operational_stage(&self.settings);
        self.stage = stage;
        Ok(Step::Send(self.say(now, text, Some(LoginStage::FullFeature))))
    }

    /// A complete text of the operational stage.
    fn operational(
        &mut self,
        now: Duration,
        response: &LoginResponse,
        pairs: &[(&str, &str)],
        mut negotiation: Box<Negotiation>,
    ) -> Result<Step, LoginError> {
        self.told.take(pairs)?;
        let mut answers = Vec::new();
        let others = pairs.iter().filter(|(name, _)| !Told::knows(name));
        let result =
            others.into_iter().try_for_each(|(name, value)| negotiation.take(name, value, &mut answers));
        self.trace.keys = negotiation.trace();
        result?;
        if !response.transit {
            self.stage = Stage::Operational(negotiation);
            return Ok(Step::Send(self.say(now, answers, Some(LoginStage::FullFeature))));
        }
        // What a target brings up in its last response cannot be answered any more; it has said itself that the
        // negotiation is over, so that such keys change nothing but what their own default allows.
        self.finish(response, &negotiation)
    }

    fn finish(&mut self, response: &LoginResponse, negotiation: &Negotiation) -> Result<Step, LoginError> {
        let asked = self.settings.tsih;
        let is_right = match asked {
            // Nothing in a discovery session needs the handle, and not every target gives one there.
            Tsih(0) => response.tsih != Tsih(0) || matches!(self.settings.purpose, Purpose::Discovery(_)),
            joined => response.tsih == joined,
        };
        if !is_right {
            return Err(LoginError::protocol(format!(
                "its last response has the session handle {:#06x} after we asked for {:#06x} (11.13.3)",
                response.tsih.0, asked.0
            )));
        }
        Ok(Step::Done(Box::new(Outcome {
            purpose: self.settings.purpose.clone(),
            isid: self.settings.isid,
            tsih: response.tsih,
            cid: self.settings.cid,
            session: negotiation.session(),
            connection: negotiation.connection()?,
            target_alias: self.told.alias.take(),
            portal_group_tag: self.told.portal_group_tag,
            algorithm: self.told.algorithm,
            cmd_sn: self.settings.cmd_sn,
            exp_cmd_sn: response.numbers.exp_cmd_sn,
            max_cmd_sn: response.numbers.max_cmd_sn,
            exp_stat_sn: response.numbers.stat_sn.next(),
        })))
    }

    fn stage_code(&self) -> Option<LoginStage> {
        match self.stage {
            Stage::Security(_) => Some(LoginStage::Security),
            Stage::Operational(_) => Some(LoginStage::Operational),
            Stage::Ended => None,
        }
    }

    /// Says a text, in as many requests as it takes, and that this side is then ready for the next stage.
    fn say(&mut self, now: Duration, text: Vec<u8>, wants: Option<LoginStage>) -> LoginPdu {
        self.wants = wants;
        self.unsent = text;
        let whole = std::mem::take(&mut self.unsent);
        // The text is ours, so it can be read.
        let said = trace::shown(&pairs(&whole).unwrap_or_default());
        self.unsent = whole;
        let part = self.next_part(now);
        if let Some(last) = self.trace.pdus.last_mut() {
            last.pairs = said;
        }
        part
    }

    fn next_part(&mut self, now: Duration) -> LoginPdu {
        let rest = self.unsent.split_off(self.unsent.len().min(LOGIN_SEGMENT_MAX));
        let part = std::mem::replace(&mut self.unsent, rest);
        self.request(now, part)
    }

    /// The request that brings `text`. T is set, and stays set, once all is said (6.3.3).
    fn request(&mut self, now: Duration, text: Vec<u8>) -> LoginPdu {
        let is_continued = !self.unsent.is_empty();
        self.asked_for = self.wants.filter(|_| !is_continued);
        self.requests += 1;
        let pdu = LoginRequest {
            transit: self.asked_for.is_some(),
            is_continued,
            current_stage: self.stage_code().unwrap_or_default(),
            next_stage: self.asked_for.unwrap_or_default(),
            version_max: VERSION,
            version_min: VERSION,
            isid: self.settings.isid,
            tsih: self.settings.tsih,
            initiator_task_tag: TAG,
            cid: self.settings.cid,
            cmd_sn: self.settings.cmd_sn,
            exp_stat_sn: self.stat_sn.or(self.settings.exp_stat_sn).unwrap_or_default(),
        };
        self.trace.pdus.push(TracedPdu {
            at: now,
            from: Side::Initiator,
            stage: pdu.current_stage,
            next_stage: self.asked_for,
            is_continued,
            status: 0,
            text_length: text.len(),
            pairs: Vec::new(),
        });
        LoginPdu { pdu, text }
    }

    fn note_response(&mut self, now: Duration, response: &LoginResponse, text_length: usize) {
        if self.stage_code().is_none() {
            return;
        }
        self.trace.pdus.push(TracedPdu {
            at: now,
            from: Side::Target,
            stage: response.current_stage,
            next_stage: response.transit.then_some(response.next_stage),
            is_continued: response.is_continued,
            status: u16::from_be_bytes([response.status_class, response.status_detail]),
            text_length,
            pairs: Vec::new(),
        });
    }

    /// Keeps what the negotiation came to before it failed.
    fn note_keys(&mut self) {
        if let Stage::Operational(negotiation) = &self.stage {
            self.trace.keys = negotiation.trace();
        }
    }
}

/// The operational stage, and the text that it begins with.
fn operational_stage(settings: &LoginSettings) -> (Stage, Vec<u8>) {
    let is_leading = settings.tsih == Tsih(0);
    let session_type = settings.purpose.session_type();
    let (negotiation, text) = Negotiation::begin(&settings.wishes, session_type, is_leading);
    (Stage::Operational(Box::new(negotiation)), text)
}

/// The tag of all requests of a login; there is no other task on the connection yet (11.12.6).
const TAG: InitiatorTaskTag = InitiatorTaskTag(0);

#[cfg(test)]
mod tests;
