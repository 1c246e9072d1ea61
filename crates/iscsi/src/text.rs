//! Text negotiation in the full feature phase (RFC 7143, 6.4, 11.10, 11.11) and SendTargets (appendix C), at the
//! target.
//!
//! One [`TextNegotiation`] belongs to one connection. It reads the requests' text and writes the responses'; numbers,
//! headers and the command window are the session's affair, and which targets an initiator may see is the driver's.

use std::collections::BTreeSet;

use lunette_wire::initiator::TextRequest;
use lunette_wire::target::RejectReason;
use lunette_wire::text::{TextBuffer, pairs, push};
use lunette_wire::{InitiatorTaskTag, TargetTransferTag};

use crate::name::IscsiName;
use crate::parameters::SessionType;
use crate::parameters::keys::{Key, Rule, Use, by_name, row};
use crate::parameters::negotiation::in_range;
use crate::parameters::value::{NOT_UNDERSTOOD, REJECT, is_reserved};

/// The most text that an initiator may send in one negotiation, in bytes: what 6.1 asks for at least, times four.
pub const TEXT_LENGTH_MAX: usize = 32 * 1024;
/// The most requests that bring text in one negotiation; 6.2 asks for six exchanges.
pub const TEXT_REQUESTS_MAX: u32 = 64;

/// What an answer depends on.
#[derive(Debug, Clone, Copy)]
pub struct TextFacts<'a> {
    /// What the session is for.
    pub session_type: SessionType,
    /// The target that the session is logged in to; none in a discovery session.
    pub target: Option<&'a str>,
    /// The targets that this initiator may know of, each with its addresses as `host:port,portal-group-tag` (13.8).
    pub targets: &'a [(String, Vec<String>)],
    /// MaxRecvDataSegmentLength that the initiator declared, in bytes.
    pub max_send_data_segment_length: u32,
    /// MaxRecvDataSegmentLength that this side has to declare anew, in bytes.
    pub declares: Option<u32>,
}

/// What is to be done after a Text Request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextStep {
    /// Send a Text Response.
    Reply {
        /// F bit.
        is_final: bool,
        /// C bit.
        is_continued: bool,
        /// Reserved when final, else what the initiator has to echo.
        target_transfer_tag: TargetTransferTag,
        /// The data segment; never longer than the initiator takes.
        text: Vec<u8>,
        /// Only with a final response: the initiator declared a new MaxRecvDataSegmentLength (bytes), which holds
        /// from the next PDU on.
        max_send_data_segment_length: Option<u32>,
        /// Only with a final response: what this side has declared in the exchange (bytes), as [`TextFacts::declares`] wanted.
        declared: Option<u32>,
    },
    /// Reject the request (11.17); nothing of its negotiation takes effect (7.12).
    Reject(RejectReason),
}

/// The text negotiations of one connection, one after the other (an initiator has no more than one open, 11.10).
#[derive(Debug, Default)]
pub struct TextNegotiation {
    open: Option<Open>,
    last_tag: u32,
}

/// A negotiation that has begun and not ended.
#[derive(Debug)]
struct Open {
    initiator_task_tag: InitiatorTaskTag,
    target_transfer_tag: TargetTransferTag,
    requests: u32,
    text_length: usize,
    received: TextBuffer,
    /// What has not been sent yet.
    answers: Vec<u8>,
    seen: BTreeSet<String>,
    max_send_data_segment_length: Option<u32>,
    declared: Option<u32>,
}

impl TextNegotiation {
    /// Takes one Text Request with its data segment.
    pub fn step(&mut self, request: &TextRequest, data: &[u8], facts: &TextFacts<'_>) -> TextStep {
        let open = match self.resume(request) {
            Ok(open) => open,
            Err(reason) => return TextStep::Reject(reason),
        };
        match open.take(request, data, facts) {
            Ok((step, open)) => {
                self.open = open;
                step
            }
            // The negotiation that was at fault is gone, and with it all that was said in it.
            Err(reason) => TextStep::Reject(reason),
        }
    }

    /// The negotiation that the request goes on with, or a new one where its transfer tag is the reserved one, which
    /// also resets whatever was open (11.10.4).
    fn resume(&mut self, request: &TextRequest) -> Result<Open, RejectReason> {
        let before = self.open.take();
        if request.target_transfer_tag == TargetTransferTag::RESERVED {
            self.last_tag = (self.last_tag + 1) & 0x7fff_ffff;
            return Ok(Open::new(request.initiator_task_tag, TargetTransferTag(self.last_tag)));
        }
        before
            .filter(|open| {
                open.initiator_task_tag == request.initiator_task_tag
                    && open.target_transfer_tag == request.target_transfer_tag
            })
            .ok_or(RejectReason::ProtocolError)
    }
}

impl Open {
    fn new(initiator_task_tag: InitiatorTaskTag, target_transfer_tag: TargetTransferTag) -> Self {
        Self {
            initiator_task_tag,
            target_transfer_tag,
            requests: 0,
            text_length: 0,
            received: TextBuffer::default(),
            answers: Vec::new(),
            seen: BTreeSet::new(),
            max_send_data_segment_length: None,
            declared: None,
        }
    }

    fn take(
        mut self,
        request: &TextRequest,
        data: &[u8],
        facts: &TextFacts<'_>,
    ) -> Result<(TextStep, Option<Self>), RejectReason> {
        if request.is_final && request.is_continued {
            return Err(RejectReason::ProtocolError);
        }
        if !self.answers.is_empty() {
            // Only an empty request may fetch the rest of an answer (6.2).
            if request.is_continued || !data.is_empty() {
                return Err(RejectReason::ProtocolError);
            }
            return Ok(self.reply(request, facts));
        }
        self.requests += 1;
        self.text_length = self.text_length.saturating_add(data.len());
        if self.requests > TEXT_REQUESTS_MAX || self.text_length > TEXT_LENGTH_MAX {
            return Err(RejectReason::LongOperationReject);
        }
        self.received.extend(data, TEXT_LENGTH_MAX).map_err(|_| RejectReason::LongOperationReject)?;
        if !request.is_continued {
            let whole = self.received.take();
            self.read(&whole, facts)?;
            self.declare(facts);
        }
        Ok(self.reply(request, facts))
    }

    /// Reads one complete text and writes the answers.
    fn read(&mut self, text: &[u8], facts: &TextFacts<'_>) -> Result<(), RejectReason> {
        let pairs = pairs(text).map_err(|_| RejectReason::ProtocolError)?;
        let send_targets = row(Key::SendTargets).name;
        if let [(key, value)] = pairs[..]
            && key == send_targets
            && self.seen.is_empty()
        {
            self.seen.insert(key.to_owned());
            return self.send_targets(value, facts);
        }
        for (key, value) in pairs {
            // A discovery session takes SendTargets and nothing else (4.3), and SendTargets stands alone (appendix C).
            if facts.session_type == SessionType::Discovery || key == send_targets {
                return Err(RejectReason::ProtocolError);
            }
            if is_reserved(value) || !self.seen.insert(key.to_owned()) {
                return Err(RejectReason::ProtocolError);
            }
            self.take_pair(key, value)?;
        }
        Ok(())
    }

    /// Declares what this side has to declare anew, once in a negotiation (6.4). SendTargets stands alone (appendix C).
    fn declare(&mut self, facts: &TextFacts<'_>) {
        if self.declared.is_some() || self.seen.contains(row(Key::SendTargets).name) {
            return;
        }
        if let Some(bytes) = facts.declares {
            push(&mut self.answers, row(Key::MaxRecvDataSegmentLength).name, &bytes.to_string());
            self.declared = Some(bytes);
        }
    }

    /// Takes a key that is not SendTargets: there is one that can still be settled in the full feature phase.
    fn take_pair(&mut self, key: &str, value: &str) -> Result<(), RejectReason> {
        match by_name(key) {
            None => push(&mut self.answers, key, NOT_UNDERSTOOD),
            Some(row) if row.when != Use::Always => push(&mut self.answers, key, REJECT),
            Some(row) => {
                if let Rule::DeclaredNumber { range, .. } = row.rule {
                    let length = in_range(value, range).ok_or(RejectReason::ProtocolError)?;
                    self.max_send_data_segment_length = Some(length);
                } else if row.key != Key::InitiatorAlias {
                    // The other declarations of this kind are the target's (13.6, 13.8).
                    return Err(RejectReason::ProtocolError);
                }
            }
        }
        Ok(())
    }

    /// Answers SendTargets (appendix C). A list may be empty; what an initiator may not see is not in `facts`.
    fn send_targets(&mut self, value: &str, facts: &TextFacts<'_>) -> Result<(), RejectReason> {
        let is_discovery = facts.session_type == SessionType::Discovery;
        let own = facts.target;
        let named = IscsiName::from_peer(value).ok();
        let wanted = |name: &str| match value {
            // On a normal session All has to get nothing.
            "All" => is_discovery,
            "" => own == Some(name),
            _ => {
                named.as_ref().is_some_and(|wanted| wanted.as_str() == name)
                    && (is_discovery || own == Some(name))
            }
        };
        let is_name = ["iqn.", "eui.", "naa."]
            .iter()
            .any(|kind| named.as_ref().is_some_and(|name| name.as_str().starts_with(kind)));
        if !matches!(value, "All" | "") && !is_name {
            return Err(RejectReason::ProtocolError);
        }
        for (name, addresses) in facts.targets.iter().filter(|(name, _)| wanted(name)) {
            push(&mut self.answers, row(Key::TargetName).name, name);
            for address in addresses {
                push(&mut self.answers, row(Key::TargetAddress).name, address);
            }
        }
        Ok(())
    }

    /// Sends what fits of the answers; F follows the request's when nothing is left (11.11.1).
    fn reply(mut self, request: &TextRequest, facts: &TextFacts<'_>) -> (TextStep, Option<Self>) {
        let fits = cut(&self.answers, facts.max_send_data_segment_length as usize);
        let rest = self.answers.split_off(fits);
        let text = std::mem::replace(&mut self.answers, rest);
        let is_continued = !self.answers.is_empty();
        let is_final = request.is_final && !is_continued;
        let step = TextStep::Reply {
            is_final,
            is_continued,
            target_transfer_tag: if is_final {
                TargetTransferTag::RESERVED
            } else {
                self.target_transfer_tag
            },
            text,
            max_send_data_segment_length: self.max_send_data_segment_length.filter(|_| is_final),
            declared: self.declared.filter(|_| is_final),
        };
        (step, (!is_final).then_some(self))
    }
}

/// How many bytes of a text go into one PDU of at most `max` bytes: as many whole pairs as fit, since some initiators
/// read each PDU by itself; part of one where not even that fits.
pub(crate) fn cut(text: &[u8], max: usize) -> usize {
    if text.len() <= max {
        return text.len();
    }
    // Nobody declares less than 512, but an empty part would never come to an end.
    let max = max.max(1);
    text[..max].iter().rposition(|&byte| byte == 0).map_or(max, |end| end + 1)
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
