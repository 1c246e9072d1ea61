//! The login phase at the target (RFC 7143, 6.3, 8.1.4, 11.12, 11.13): one [`Login`] takes a connection from its first
//! PDU to the full feature phase.
//!
//! This module knows PDUs: versions, stages, the T and C bits, bounds and numbers. What the text means is read by the
//! stages. Digests are off during login (13.1); time is not known here, so how long a login may take is the driver's
//! affair, as are session reinstatement and the joining of sessions (6.3.1).

mod authentication;
mod failure;
mod identity;
mod outcome;
mod redirection;
mod stage;

use std::sync::Arc;

use lunette_wire::StatSn;
use lunette_wire::initiator::{LoginRequest, LoginStage};
use lunette_wire::target::{LoginResponse, Numbers};
use lunette_wire::text::{TextBuffer, pairs};

pub use failure::{LoginFailure, LoginStatus};
pub use outcome::LoginOutcome;
pub use redirection::{REDIRECTION_ADDRESSES_MAX, Redirection, TargetAddress, TargetAddressError};
pub use stage::STAGE_KEYS_MAX;

use crate::chap::{ChapNonce, ChapPolicy};
use crate::name::IscsiName;
use crate::parameters::{DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH, TargetLimits};
use crate::text::cut;
use stage::{Setting, Stage};

/// The most text that a peer may send in one login, in bytes. Nobody is authenticated yet; 6.1 asks for 8192, and for
/// 64 KiB where a method has long items.
pub const LOGIN_TEXT_MAX: usize = 64 * 1024;
/// The most Login Requests in one login. 6.2 asks for six; a text of 64 KiB takes eight.
pub const LOGIN_REQUESTS_MAX: u32 = 64;
/// The longest data segment of a login PDU, in bytes: the default holds throughout the login (6.3).
pub const LOGIN_SEGMENT_MAX: usize = DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH as usize;
/// The only protocol version (11.12.4).
const VERSION: u8 = 0x00;

/// Where a login finds out about targets, and about those who want to use them.
pub trait TargetDirectory {
    /// Looks up the target `name` for the initiator `initiator`; both are in lower case.
    ///
    /// # Errors
    /// [`LookupFailure`] says why this initiator cannot have it.
    fn find(&self, name: &str, initiator: &str) -> Result<TargetEntry, LookupFailure>;

    /// Who may log in to the target `name`, or to discovery; `None` lets everybody in.
    fn authentication(&self, target: Option<&str>) -> Option<Arc<ChapPolicy>>;

    /// Whether a response of the CHAP name `user` may be looked at now. If not, the login ends with status 0301 and
    /// nobody learns whether the response was right.
    fn may_try(&self, _user: &str) -> bool {
        true
    }

    /// How a response that was looked at came out.
    fn tried(&self, _user: &str, _is_right: bool) {}
}

/// What a login has to know about a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetEntry {
    /// The group of the target's portals that the connection came through (13.9).
    pub portal_group_tag: u16,
    /// The target's name for people (13.6).
    pub alias: Option<String>,
    /// Where this initiator has to go instead. It is told as soon as all authentication that is asked for is through: who
    /// is nobody here learns nothing, and every initiator takes a redirection then (11.13.5).
    pub moved: Option<Redirection>,
}

/// Why a target cannot be logged in to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupFailure {
    /// There is no such target: status 0203.
    NotFound,
    /// There was one: status 0204.
    Removed,
    /// This initiator may not: status 0202.
    Forbidden,
    /// Not now (starting, draining, faulted): status 0301.
    Busy,
}

/// A Login Response with its data segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginReply {
    /// The header.
    pub pdu: LoginResponse,
    /// The data segment: at most [`LOGIN_SEGMENT_MAX`] bytes.
    pub text: Vec<u8>,
}

/// What is to be done after a Login Request.
#[derive(Debug)]
pub enum LoginStep {
    /// Send this and go on.
    Respond(LoginReply),
    /// Both sides agree: the driver settles TSIH and session, and takes the last reply from the outcome.
    Ready(Box<LoginOutcome>),
    /// Send this, then close the connection (11.13.5).
    Fail(LoginReply, LoginFailure),
    /// Close the connection without a word.
    Drop(LoginFailure),
}

/// The fields of the first request that hold for the whole login (11.12.4 to 11.12.8).
type Head = LoginRequest;

/// One connection's login, from its first PDU on.
#[derive(Debug)]
pub struct Login {
    setting: Setting,
    stage: Stage,
    head: Option<Head>,
    stat_sn: StatSn,
    requests: u32,
    text_length: usize,
    received: TextBuffer,
    /// Answers that have not been sent yet.
    answers: Vec<u8>,
}

impl Login {
    /// A login in which nothing has been said (S3 of 8.1.4). `portal_group_tag` is that of the portal that the
    /// connection came through; a target's own entry overrides it. `nonce` is random, and new for each login.
    #[must_use]
    pub fn new(limits: TargetLimits, portal_group_tag: u16, nonce: ChapNonce) -> Self {
        Self {
            setting: Setting { limits, portal_group_tag, is_leading: true, nonce },
            stage: Stage::Start(LoginStage::Security),
            head: None,
            stat_sn: StatSn(0),
            requests: 0,
            text_length: 0,
            received: TextBuffer::default(),
            answers: Vec::new(),
        }
    }

    /// Makes the connection's status numbers begin with `stat_sn` (11.13.4) and not with zero.
    #[must_use]
    pub const fn starting_with(mut self, stat_sn: StatSn) -> Self {
        self.stat_sn = stat_sn;
        self
    }

    /// True once a Login Request has been taken.
    #[must_use]
    pub const fn has_begun(&self) -> bool {
        self.head.is_some()
    }

    /// Who the initiator says that it is, which it may not have proven; nothing before it has said so, and after the end.
    #[must_use]
    pub fn initiator_name(&self) -> Option<&IscsiName> {
        self.stage.initiator_name()
    }

    /// Takes one Login Request with its data segment.
    pub fn step(
        &mut self,
        request: &LoginRequest,
        text: &[u8],
        directory: &dyn TargetDirectory,
    ) -> LoginStep {
        if self.head.is_some() && self.stage.code().is_none() {
            return LoginStep::Drop(LoginFailure::initiator("a Login Request came after the login's end"));
        }
        match self.proceed(request, text, directory) {
            Ok(step) => step,
            Err(failure) => self.fail(failure),
        }
    }

    /// Takes a PDU that is no Login Request: before the first of them the connection is dropped at once, later the
    /// login is refused (4.2.4).
    pub fn other_pdu(&mut self, opcode: u8) -> LoginStep {
        let reason = format!("a PDU with opcode {opcode:#04x} came during login");
        let failure = LoginFailure::new(LoginStatus::InvalidDuringLogin, reason);
        if self.head.is_none() || self.stage.code().is_none() {
            self.stage = Stage::Ended;
            return LoginStep::Drop(failure);
        }
        self.fail(failure)
    }

    fn fail(&mut self, failure: LoginFailure) -> LoginStep {
        self.stage = Stage::Ended;
        let head = self.head.unwrap_or_default();
        let reply = LoginReply::refusal(self.response(&head), &failure);
        LoginStep::Fail(reply, failure)
    }

    fn proceed(
        &mut self,
        request: &LoginRequest,
        text: &[u8],
        directory: &dyn TargetDirectory,
    ) -> Result<LoginStep, LoginFailure> {
        let head = self.head(request)?;
        self.count(text.len())?;
        self.check_stage(request)?;
        let is_answering = !self.answers.is_empty();
        if is_answering && (request.is_continued || !text.is_empty()) {
            return Err(LoginFailure::initiator("a request with text came while our answer was on its way"));
        }
        if request.is_continued {
            self.received.extend(text, LOGIN_TEXT_MAX)?;
            return Ok(self.respond(&head, request, Vec::new()));
        }
        let mut is_waiting = false;
        if !is_answering {
            self.received.extend(text, LOGIN_TEXT_MAX)?;
            is_waiting = self.read(directory)?;
            if let Some(moved) = self.stage.redirection() {
                return Err(LoginFailure::moved(moved));
            }
        }
        // T says that the initiator has offered all; a request without text, that it waits for answers.
        if request.transit || is_waiting {
            self.stage.settle(&mut self.answers);
        }
        let may_leave = !request.transit || self.stage.may_end()?;
        self.answer(&head, &LoginRequest { transit: request.transit && may_leave, ..*request })
    }

    /// The first request, with which the others have to agree.
    fn head(&mut self, request: &LoginRequest) -> Result<Head, LoginFailure> {
        let Some(head) = self.head else {
            self.head = Some(*request);
            self.stage = Stage::Start(request.current_stage);
            self.setting.is_leading = request.tsih.0 == 0;
            if request.version_min > VERSION {
                return Err(LoginFailure::new(
                    LoginStatus::UnsupportedVersion,
                    format!(
                        "the initiator speaks versions {:#04x} to {:#04x}, this target only {VERSION:#04x}",
                        request.version_min, request.version_max
                    ),
                ));
            }
            return Ok(*request);
        };
        // Of versions, TSIH, CID and CmdSN the first ones count (11.12.4 to 11.12.8); tag and ISID name the login.
        if request.initiator_task_tag != head.initiator_task_tag || request.isid != head.isid {
            return Err(LoginFailure::initiator(
                "the Initiator Task Tag or the ISID changed during the login",
            ));
        }
        Ok(head)
    }

    fn count(&mut self, length: usize) -> Result<(), LoginFailure> {
        self.requests += 1;
        self.text_length = self.text_length.saturating_add(length);
        if length > LOGIN_SEGMENT_MAX {
            return Err(LoginFailure::initiator(format!(
                "a data segment of {length} bytes came during login, where {LOGIN_SEGMENT_MAX} are the limit"
            )));
        }
        if self.requests > LOGIN_REQUESTS_MAX {
            return Err(LoginFailure::initiator(format!(
                "the login took more than {LOGIN_REQUESTS_MAX} requests"
            )));
        }
        if self.text_length > LOGIN_TEXT_MAX {
            return Err(LoginFailure::initiator(format!(
                "the login brought more than {LOGIN_TEXT_MAX} bytes of text"
            )));
        }
        Ok(())
    }

    /// Holds CSG, NSG, T and C against 6.3 and 11.12.
    fn check_stage(&self, request: &LoginRequest) -> Result<(), LoginFailure> {
        let invalid = |reason: &str| Err(LoginFailure::new(LoginStatus::InvalidDuringLogin, reason));
        if request.transit && request.is_continued {
            return Err(LoginFailure::initiator("a request has both the T and the C bit set"));
        }
        if request.current_stage == LoginStage::FullFeature
            || self.stage.code() != Some(request.current_stage)
        {
            return invalid("a request belongs to a stage that the login is not in");
        }
        if request.transit && request.next_stage as u8 <= request.current_stage as u8 {
            return invalid("a request asks for a stage that does not follow its own");
        }
        Ok(())
    }

    /// Reads what has been received as a complete text; true when it is empty.
    fn read(&mut self, directory: &dyn TargetDirectory) -> Result<bool, LoginFailure> {
        let whole = self.received.take();
        let pairs = pairs(&whole)?;
        let stage = std::mem::replace(&mut self.stage, Stage::Ended);
        self.stage = stage.take(&self.setting, &pairs, directory, &mut self.answers)?;
        Ok(pairs.is_empty())
    }

    /// Sends what fits of the answers, and goes on to the next stage when all is said and the initiator wants to.
    fn answer(&mut self, head: &Head, request: &LoginRequest) -> Result<LoginStep, LoginFailure> {
        let rest = self.answers.split_off(cut(&self.answers, LOGIN_SEGMENT_MAX));
        let text = std::mem::replace(&mut self.answers, rest);
        if !self.answers.is_empty() || !request.transit {
            return Ok(self.respond(head, request, text));
        }
        let stage = std::mem::replace(&mut self.stage, Stage::Ended);
        if request.next_stage == LoginStage::Operational {
            self.stage = stage.into_operational(&self.setting);
            return Ok(self.respond(head, request, text));
        }
        let agreed = stage
            .into_agreed(&self.setting)
            .ok_or_else(|| LoginFailure::new(LoginStatus::TargetError, "the login has no stage to end"))?;
        if let Some(moved) = agreed.identity.redirection() {
            return Err(LoginFailure::moved(moved));
        }
        let connection = agreed.negotiation.connection()?;
        let pdu = self.transition(head, request);
        self.stat_sn = self.stat_sn.next();
        let identity = agreed.identity;
        Ok(LoginStep::Ready(Box::new(LoginOutcome {
            initiator_name: identity.initiator_name,
            initiator_alias: identity.initiator_alias,
            initiator_architecture: identity.initiator_architecture,
            target: identity.target,
            session_type: identity.session_type,
            isid: head.isid,
            tsih: head.tsih,
            cid: head.cid,
            session: agreed.negotiation.session(),
            connection,
            numbers: pdu.numbers,
            next_stat_sn: self.stat_sn,
            cmd_sn: head.cmd_sn,
            exp_stat_sn: head.exp_stat_sn,
            user: identity.user,
            reply: LoginReply { pdu, text },
        })))
    }

    /// A reply that leaves the login open. T follows the request's once there is nothing left to say (11.13.6).
    fn respond(&mut self, head: &Head, request: &LoginRequest, text: Vec<u8>) -> LoginStep {
        let is_continued = !self.answers.is_empty();
        let pdu = if request.transit && !is_continued {
            self.transition(head, request)
        } else {
            LoginResponse { is_continued, current_stage: request.current_stage, ..self.response(head) }
        };
        self.stat_sn = self.stat_sn.next();
        LoginStep::Respond(LoginReply { pdu, text })
    }

    fn transition(&self, head: &Head, request: &LoginRequest) -> LoginResponse {
        LoginResponse {
            transit: true,
            current_stage: request.current_stage,
            next_stage: request.next_stage,
            ..self.response(head)
        }
    }

    /// The fields that all responses of this login have in common.
    fn response(&self, head: &Head) -> LoginResponse {
        LoginResponse {
            version_max: VERSION,
            version_active: VERSION,
            isid: head.isid,
            tsih: head.tsih,
            initiator_task_tag: head.initiator_task_tag,
            numbers: Numbers {
                stat_sn: self.stat_sn,
                exp_cmd_sn: head.cmd_sn,
                max_cmd_sn: head.cmd_sn.plus(self.setting.limits.command_window.saturating_sub(1)),
            },
            ..LoginResponse::default()
        }
    }
}

#[cfg(test)]
mod tests;
