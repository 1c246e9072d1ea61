//! Operational negotiation as the answering side (RFC 7143, 6.2 and chapter 13): takes an initiator's offers one by
//! one, writes the answers, and knows the result.
//!
//! The result does not depend on the order of the keys, nor on how they were spread over PDUs: an offer whose answer
//! hangs on other keys waits until `settle`. Stages, senders and repetition are the login's affair.

use std::collections::BTreeMap;

use lunette_wire::frame::Digests;
use lunette_wire::text::push;

use super::keys::{Key, Row, Rule, Use, row};
use super::value::{self, IRRELEVANT, NONE, REJECT};
use super::{
    ConnectionParameters, DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH, DigestPolicy, KeyError, SessionParameters,
    SessionType, TargetLimits, TaskReporting,
};

const CRC32C: &str = "CRC32C";
/// The semantics of 13.23, all of them served.
const TASK_REPORTING: [(&str, TaskReporting); 3] = [
    ("RFC3720", TaskReporting::Rfc3720),
    ("ResponseFence", TaskReporting::ResponseFence),
    ("FastAbort", TaskReporting::FastAbort),
];
/// The highest iSCSIProtocolLevel that is served: RFC 7144's.
const PROTOCOL_LEVEL: u32 = 2;

/// One login's operational negotiation.
#[derive(Debug)]
pub(crate) struct Negotiation {
    limits: TargetLimits,
    session_type: SessionType,
    is_leading: bool,
    /// Results so far; a Boolean is 0 or 1.
    agreed: BTreeMap<Key, u32>,
    /// Offers that wait for the keys on which their answers depend.
    waiting: Vec<(Key, u32)>,
    digests: Digests,
    task_reporting: TaskReporting,
    has_declared: bool,
}

impl Negotiation {
    /// A negotiation in which nothing has been said. `is_leading`: for a session's first connection.
    pub(crate) fn new(limits: TargetLimits, session_type: SessionType, is_leading: bool) -> Self {
        Self {
            limits,
            session_type,
            is_leading,
            agreed: BTreeMap::new(),
            waiting: Vec::new(),
            digests: Digests::default(),
            task_reporting: TaskReporting::default(),
            has_declared: false,
        }
    }

    /// Says what only this side can say: its MaxRecvDataSegmentLength. Once; later calls write nothing.
    pub(crate) fn declare(&mut self, answers: &mut Vec<u8>) {
        if !self.has_declared {
            self.has_declared = true;
            let length = self.ours(row(Key::MaxRecvDataSegmentLength));
            push(answers, row(Key::MaxRecvDataSegmentLength).name, &length.to_string());
        }
    }

    /// Takes one offer or declaration of the initiator's, and answers it unless the answer has to wait.
    ///
    /// # Errors
    /// [`KeyError::Declaration`] and [`KeyError::NoCommonValue`]: the negotiation has failed (7.12).
    pub(crate) fn offer(&mut self, row: &Row, value: &str, answers: &mut Vec<u8>) -> Result<(), KeyError> {
        match row.rule {
            Rule::Declaration | Rule::Authentication => {}
            Rule::DeclaredNumber { range, .. } => {
                let length = in_range(value, range)
                    .ok_or_else(|| KeyError::Declaration { key: row.name, value: value.to_owned() })?;
                self.agreed.insert(row.key, length);
            }
            Rule::Obsolete { answer } => push(answers, row.name, answer),
            _ if row.irrelevant_in_discovery && self.session_type == SessionType::Discovery => {
                push(answers, row.name, IRRELEVANT);
            }
            // Leading-only keys have no business here (chapter 13); Reject leaves the session's values alone.
            _ if row.when == Use::LeadingLogin && !self.is_leading => push(answers, row.name, REJECT),
            Rule::List { .. } => push(answers, row.name, self.choose(row, value)?),
            Rule::And { .. } | Rule::Or { .. } => match value::boolean(value) {
                Some(offer) if self.depends_on_others(row.key) => self.waiting.push((row.key, offer.into())),
                Some(offer) => self.agree(row, u32::from(offer), answers),
                None => push(answers, row.name, REJECT),
            },
            Rule::Minimum { range, .. } | Rule::Maximum { range, .. } => match in_range(value, range) {
                Some(offer) if self.depends_on_others(row.key) => self.waiting.push((row.key, offer)),
                Some(offer) => self.agree(row, offer, answers),
                None => push(answers, row.name, REJECT),
            },
        }
        Ok(())
    }

    /// Answers what has waited. To be called when the initiator has no more to offer.
    pub(crate) fn settle(&mut self, answers: &mut Vec<u8>) {
        let mut waiting = std::mem::take(&mut self.waiting);
        // What others hang on comes first: MaxOutstandingR2T looks at DataSequenceInOrder (13.19).
        waiting.sort_by_key(|(key, _)| *key == Key::MaxOutstandingR2T);
        for (key, offer) in waiting {
            let (initial_r2t, immediate_data) = (self.flag(Key::InitialR2T), self.flag(Key::ImmediateData));
            if key == Key::FirstBurstLength && initial_r2t && !immediate_data {
                push(answers, row(key).name, IRRELEVANT);
            } else {
                self.agree(row(key), offer, answers);
            }
        }
    }

    /// The session's parameters, as far as they are settled.
    pub(crate) fn session(&self) -> SessionParameters {
        SessionParameters {
            max_connections: self.small(Key::MaxConnections),
            initial_r2t: self.flag(Key::InitialR2T),
            immediate_data: self.flag(Key::ImmediateData),
            max_burst_length: self.number(Key::MaxBurstLength),
            // 13.14 also binds a value that was never offered.
            first_burst_length: self.number(Key::FirstBurstLength).min(self.number(Key::MaxBurstLength)),
            max_outstanding_r2t: self.small(Key::MaxOutstandingR2T),
            data_pdu_in_order: self.flag(Key::DataPduInOrder),
            data_sequence_in_order: self.flag(Key::DataSequenceInOrder),
            error_recovery_level: self.tiny(Key::ErrorRecoveryLevel),
            default_time2wait_s: self.small(Key::DefaultTime2Wait),
            default_time2retain_s: self.small(Key::DefaultTime2Retain),
            task_reporting: self.task_reporting,
            protocol_level: self.tiny(Key::ProtocolLevel),
        }
    }

    /// The connection's parameters.
    ///
    /// # Errors
    /// [`KeyError::NoCommonValue`] when a digest is required and was not even offered.
    pub(crate) fn connection(&self) -> Result<ConnectionParameters, KeyError> {
        for (key, policy, agreed) in [
            (Key::HeaderDigest, self.limits.header_digest, self.digests.header),
            (Key::DataDigest, self.limits.data_digest, self.digests.data),
        ] {
            if policy == DigestPolicy::Required && !agreed {
                return Err(KeyError::NoCommonValue { key: row(key).name, value: NONE.to_owned() });
            }
        }
        Ok(ConnectionParameters {
            digests: self.digests,
            max_recv_data_segment_length: if self.has_declared {
                self.ours(row(Key::MaxRecvDataSegmentLength))
            } else {
                DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH
            },
            max_send_data_segment_length: self.number(Key::MaxRecvDataSegmentLength),
        })
    }

    /// True for an answer that cannot be given before others are known: FirstBurstLength hangs on MaxBurstLength,
    /// InitialR2T and ImmediateData (13.14), MaxOutstandingR2T (13.19) and our wish for order on ErrorRecoveryLevel.
    fn depends_on_others(&self, key: Key) -> bool {
        match key {
            Key::FirstBurstLength => true,
            Key::MaxOutstandingR2T | Key::DataPduInOrder | Key::DataSequenceInOrder => {
                self.limits.error_recovery_level > 0
            }
            _ => false,
        }
    }

    /// Applies the key's result function and answers with the result.
    fn agree(&mut self, row: &Row, offer: u32, answers: &mut Vec<u8>) {
        let ours = self.ours(row);
        let result = match row.rule {
            Rule::Maximum { .. } => offer.max(ours),
            Rule::And { .. } => offer & ours,
            Rule::Or { .. } => offer | ours,
            _ => offer.min(ours),
        };
        self.agreed.insert(row.key, result);
        match row.rule {
            Rule::And { .. } | Rule::Or { .. } => push(answers, row.name, value::boolean_text(result == 1)),
            _ => push(answers, row.name, &result.to_string()),
        }
    }

    /// What this side would have, within the key's range.
    fn ours(&self, row: &Row) -> u32 {
        let limits = &self.limits;
        let wish = match row.key {
            Key::MaxRecvDataSegmentLength => limits.max_recv_data_segment_length,
            Key::MaxBurstLength => limits.max_burst_length,
            Key::FirstBurstLength => limits.first_burst_length.min(self.number(Key::MaxBurstLength)),
            Key::InitialR2T => u32::from(limits.initial_r2t),
            Key::ImmediateData => u32::from(limits.immediate_data),
            // At recovery levels 1 and 2 ordered sequences allow one R2T only (13.19).
            Key::MaxOutstandingR2T
                if self.number(Key::ErrorRecoveryLevel) > 0 && self.flag(Key::DataSequenceInOrder) =>
            {
                1
            }
            Key::MaxOutstandingR2T => u32::from(limits.max_outstanding_r2t),
            Key::MaxConnections => u32::from(limits.max_connections),
            // A discovery session has no recovery (13.21).
            Key::ErrorRecoveryLevel if self.session_type == SessionType::Discovery => 0,
            Key::ErrorRecoveryLevel => u32::from(limits.error_recovery_level),
            Key::DefaultTime2Wait => u32::from(limits.default_time2wait_s),
            Key::DefaultTime2Retain => u32::from(limits.default_time2retain_s),
            Key::ProtocolLevel => PROTOCOL_LEVEL,
            // What is lost is found by the order of what comes (7.8); without recovery any order will do.
            Key::DataPduInOrder | Key::DataSequenceInOrder => {
                u32::from(self.number(Key::ErrorRecoveryLevel) > 0)
            }
            _ => default(row),
        };
        match row.rule {
            Rule::Minimum { range, .. }
            | Rule::Maximum { range, .. }
            | Rule::DeclaredNumber { range, .. } => wish.clamp(range.0, range.1),
            _ => wish,
        }
    }

    /// Picks from a list; for a digest there must be something to pick, since a guess would garble every later PDU.
    fn choose(&mut self, row: &Row, offer: &str) -> Result<&'static str, KeyError> {
        let (policy, agreed) = match row.key {
            Key::HeaderDigest => (self.limits.header_digest, &mut self.digests.header),
            Key::DataDigest => (self.limits.data_digest, &mut self.digests.data),
            _ => return Ok(self.choose_task_reporting(offer)),
        };
        let known: &[&str] = match policy {
            DigestPolicy::Allowed => &[NONE, CRC32C],
            DigestPolicy::Required => &[CRC32C],
            DigestPolicy::Refused => &[NONE],
        };
        let chosen = value::first_known(offer, known)
            .ok_or_else(|| KeyError::NoCommonValue { key: row.name, value: offer.to_owned() })?;
        *agreed = chosen == CRC32C;
        Ok(if *agreed { CRC32C } else { NONE })
    }

    /// The initiator's order decides, as in any list (6.2.1).
    fn choose_task_reporting(&mut self, offer: &str) -> &'static str {
        let known = TASK_REPORTING.map(|(name, _)| name);
        let chosen = value::first_known(offer, &known);
        let Some((name, meaning)) = TASK_REPORTING.iter().find(|(name, _)| chosen == Some(name)) else {
            return REJECT;
        };
        self.task_reporting = *meaning;
        name
    }

    /// The agreed value, or the RFC's default.
    fn number(&self, key: Key) -> u32 {
        self.agreed.get(&key).copied().unwrap_or_else(|| default(row(key)))
    }

    fn flag(&self, key: Key) -> bool {
        self.number(key) != 0
    }

    /// A number whose range ends at or below 65535.
    fn small(&self, key: Key) -> u16 {
        u16::try_from(self.number(key)).unwrap_or(u16::MAX)
    }

    /// A number whose range ends at or below 255.
    fn tiny(&self, key: Key) -> u8 {
        u8::try_from(self.number(key)).unwrap_or(u8::MAX)
    }
}

pub(crate) const fn default(row: &Row) -> u32 {
    match row.rule {
        Rule::Minimum { default, .. }
        | Rule::Maximum { default, .. }
        | Rule::DeclaredNumber { default, .. } => default,
        Rule::And { default } | Rule::Or { default } => default as u32,
        Rule::Declaration | Rule::List { .. } | Rule::Authentication | Rule::Obsolete { .. } => 0,
    }
}

/// A number within its range, or nothing.
pub(crate) fn in_range(text: &str, range: (u32, u32)) -> Option<u32> {
    let number = u32::try_from(value::number(text)?).ok()?;
    (range.0..=range.1).contains(&number).then_some(number)
}

#[cfg(test)]
#[path = "negotiation_tests.rs"]
mod tests;
