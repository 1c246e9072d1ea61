//! A discovery session after its login (RFC 7143, 4.3, appendix C): SendTargets, its answer, and the logout.
//!
//! One [`Discovery`] drives one connection from the login's [`Outcome`] to its end; it carries no commands and needs no
//! session around it. What the answer says is read by `list`.

mod list;

use lunette_wire::TargetPdu;
use lunette_wire::initiator::{LogoutReason, LogoutRequest, NopOut, TextRequest};
use lunette_wire::target::TextResponse;
use lunette_wire::text::{TextBuffer, push};
use lunette_wire::{CmdSn, InitiatorPdu, InitiatorTaskTag, StatSn, TargetTransferTag};

pub use list::{DEFAULT_PORT, DiscoveredTarget, Portal, PortalError, TARGETS_MAX, read};

use super::login::Outcome;

/// The most text that an answer may have, in bytes: room for some ten thousand targets.
pub const ANSWER_LENGTH_MAX: usize = 4 * 1024 * 1024;
/// The most PDUs that a target may send in a discovery session. An answer of the greatest length in the smallest segments
/// that can be declared takes 8192.
pub const PDUS_MAX: u32 = 16 * 1024;
/// The tag of the Text Requests.
const TEXT_TAG: InitiatorTaskTag = InitiatorTaskTag(1);
/// The tag of the Logout Request.
const LOGOUT_TAG: InitiatorTaskTag = InitiatorTaskTag(2);

/// What went wrong in a discovery session. Text of the peer's is escaped and cut.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    /// The target broke a rule.
    #[error("the target's answer to SendTargets cannot be used: {0}")]
    Protocol(String),
    /// The target refused the request.
    #[error(
        "the target rejected SendTargets with reason {0:#04x}; ask it for its targets in another way, or name one"
    )]
    Rejected(u8),
    /// More than anybody has.
    #[error("the target's answer to SendTargets does not end: more than {0}")]
    Endless(String),
    /// The target wants us to go.
    #[error("the target ended the discovery session before it answered; try again")]
    Ended,
}

/// What is to be done next.
#[derive(Debug)]
pub enum DiscoveryStep {
    /// Send this: a header that wants the length of its data segment, and the segment.
    Send(InitiatorPdu, Vec<u8>),
    /// Nothing: wait for the next PDU.
    Wait,
    /// The session has ended well; close the connection. What was found is in [`Discovery::targets`].
    Done,
    /// Close the connection.
    Failed(DiscoveryError),
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// All targets.
    All,
    /// This target's addresses.
    One(crate::name::IscsiName),
}

/// A discovery session in its full feature phase.
#[derive(Debug)]
pub struct Discovery {
    cmd_sn: CmdSn,
    exp_stat_sn: StatSn,
    received: TextBuffer,
    pdus: u32,
    targets: Option<Vec<DiscoveredTarget>>,
}

impl Discovery {
    /// Begins after the login: answers with the Text Request to send.
    #[must_use]
    pub fn begin(outcome: &Outcome, question: &Question) -> (Self, InitiatorPdu, Vec<u8>) {
        let mut text = Vec::new();
        let value = match question {
            Question::All => "All",
            Question::One(name) => name.as_str(),
        };
        push(&mut text, "SendTargets", value);
        let discovery = Self {
            cmd_sn: outcome.cmd_sn,
            exp_stat_sn: outcome.exp_stat_sn,
            received: TextBuffer::default(),
            pdus: 0,
            targets: None,
        };
        let request = discovery.request(TextRequest {
            target_transfer_tag: TargetTransferTag::RESERVED,
            ..TextRequest::default()
        });
        (discovery, request, text)
    }

    /// What was found, once the answer is complete.
    #[must_use]
    pub fn targets(&self) -> Option<&[DiscoveredTarget]> {
        self.targets.as_deref()
    }

    /// Takes a PDU of the target's with its data segment.
    pub fn received(&mut self, pdu: &TargetPdu, data: &[u8]) -> DiscoveryStep {
        self.pdus += 1;
        if self.pdus > PDUS_MAX {
            return DiscoveryStep::Failed(DiscoveryError::Endless(format!("{PDUS_MAX} PDUs")));
        }
        self.proceed(pdu, data).unwrap_or_else(DiscoveryStep::Failed)
    }

    fn proceed(&mut self, pdu: &TargetPdu, data: &[u8]) -> Result<DiscoveryStep, DiscoveryError> {
        match pdu {
            TargetPdu::TextResponse(response) => self.text(response, data),
            TargetPdu::NopIn(ping) => {
                if ping.target_transfer_tag == TargetTransferTag::RESERVED {
                    return Ok(DiscoveryStep::Wait);
                }
                // It wants to know whether we are there (11.19). Its own StatSN is not consumed.
                let answer = NopOut {
                    immediate: true,
                    lun: ping.lun,
                    initiator_task_tag: InitiatorTaskTag::RESERVED,
                    target_transfer_tag: ping.target_transfer_tag,
                    cmd_sn: self.cmd_sn,
                    exp_stat_sn: self.exp_stat_sn,
                };
                Ok(DiscoveryStep::Send(InitiatorPdu::NopOut(answer), data.to_vec()))
            }
            TargetPdu::LogoutResponse(_) if self.targets.is_some() => Ok(DiscoveryStep::Done),
            TargetPdu::Reject(reject) if self.targets.is_none() => {
                Err(DiscoveryError::Rejected(reject.reason))
            }
            // The answer is there; how the session ends does not matter.
            _ if self.targets.is_some() => Ok(DiscoveryStep::Done),
            TargetPdu::AsynchronousMessage(_) => Err(DiscoveryError::Ended),
            other => {
                let name = format!("{other:?}");
                let name = name.split(['(', ' ']).next().unwrap_or_default();
                Err(DiscoveryError::Protocol(format!("a PDU came that has no place in discovery: {name}")))
            }
        }
    }

    fn text(&mut self, response: &TextResponse, data: &[u8]) -> Result<DiscoveryStep, DiscoveryError> {
        let fault = |what: &str| Err(DiscoveryError::Protocol(what.to_owned()));
        if response.initiator_task_tag != TEXT_TAG || self.targets.is_some() {
            return fault("a Text Response came that nobody asked for (11.11)");
        }
        if response.is_final && response.is_continued {
            return fault("a Text Response has both the F and the C bit set (11.11)");
        }
        self.exp_stat_sn = response.numbers.stat_sn.next();
        self.received
            .extend(data, ANSWER_LENGTH_MAX)
            .map_err(|_| DiscoveryError::Endless(format!("{ANSWER_LENGTH_MAX} bytes")))?;
        if !response.is_final {
            if response.target_transfer_tag == TargetTransferTag::RESERVED {
                return fault("a Text Response that is not the last one has no transfer tag (11.11.4)");
            }
            // Empty and final: we have said all, and fetch the rest (6.2).
            let request = self.request(TextRequest {
                lun: response.lun,
                target_transfer_tag: response.target_transfer_tag,
                ..TextRequest::default()
            });
            return Ok(DiscoveryStep::Send(request, Vec::new()));
        }
        self.targets = Some(read(&self.received.take())?);
        let logout = LogoutRequest {
            immediate: true,
            reason: LogoutReason::CloseSession,
            initiator_task_tag: LOGOUT_TAG,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            ..LogoutRequest::default()
        };
        Ok(DiscoveryStep::Send(InitiatorPdu::LogoutRequest(logout), Vec::new()))
    }

    /// A Text Request with its numbers. It is immediate, so that the command window does not matter, and final: all is
    /// said in the first one.
    fn request(&self, request: TextRequest) -> InitiatorPdu {
        InitiatorPdu::TextRequest(TextRequest {
            immediate: true,
            is_final: true,
            initiator_task_tag: TEXT_TAG,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            ..request
        })
    }
}

#[cfg(test)]
mod tests;
