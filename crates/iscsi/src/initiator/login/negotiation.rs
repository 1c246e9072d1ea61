//! Offers, answers and results of the operational stage as the offering side (RFC 7143, 6.2, 6.3.3, chapter 13).
//!
//! Strict where a wrong guess would garble what follows (digests, values out of range, a result that the key's function
//! cannot give). Where targets in use leave an answer out, or answer Reject, Irrelevant or NotUnderstood, the key keeps
//! what the RFC's default and our offer have in common, which is what such a target does.

use lunette_wire::frame::Digests;
use lunette_wire::text::push;

use super::LoginError;
use super::trace::{Reason, TracedKey};
use super::wishes::{Offer, Wishes, task_reporting_of};
use crate::parameters::keys::{Key, Row, Rule, Use, by_name, row};
use crate::parameters::negotiation::{default, in_range};
use crate::parameters::value::{self, IRRELEVANT, NOT_UNDERSTOOD, REJECT};
use crate::parameters::{
    ConnectionParameters, DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH, SessionParameters, SessionType, TaskReporting,
};

const CRC32C: &str = "CRC32C";
/// The most keys that a target may bring up by itself.
const TARGET_KEYS_MAX: usize = 64;

/// A key in this negotiation.
#[derive(Debug)]
struct Entry {
    row: &'static Row,
    offer: Option<String>,
    answer: Option<String>,
    /// Number or Boolean in force.
    result: u32,
    /// What a list came to.
    chosen: String,
    reason: Reason,
}

/// One login's operational negotiation.
#[derive(Debug)]
pub(super) struct Negotiation {
    entries: Vec<Entry>,
    /// Keys of the user's own: name, value and answer.
    additional: Vec<(String, String, Option<String>)>,
    /// Keys that the target brought up and nobody here knows.
    unknown: Vec<(String, String)>,
    session_type: SessionType,
    is_leading: bool,
    max_recv_data_segment_length: u32,
}

impl Negotiation {
    /// A negotiation and the text that begins it.
    pub(super) fn begin(wishes: &Wishes, session_type: SessionType, is_leading: bool) -> (Self, Vec<u8>) {
        let mut text = Vec::new();
        let mut entries = Vec::new();
        for (row, value) in wishes.offers(session_type, is_leading) {
            push(&mut text, row.name, &value);
            entries.push(Entry::offered((row, value)));
        }
        for (name, value) in &wishes.additional {
            push(&mut text, name, value);
        }
        let additional =
            wishes.additional.iter().map(|(name, value)| (name.clone(), value.clone(), None)).collect();
        let max_recv_data_segment_length = wishes.max_recv_data_segment_length;
        let unknown = Vec::new();
        (Self { entries, additional, unknown, session_type, is_leading, max_recv_data_segment_length }, text)
    }

    /// Takes one key of the target's and writes an answer where one is due.
    ///
    /// # Errors
    /// [`LoginError::Key`] for a value that the key cannot have, or a second, different one.
    pub(super) fn take(&mut self, name: &str, value: &str, answers: &mut Vec<u8>) -> Result<(), LoginError> {
        let Some(row) = by_name(name) else { return self.take_unknown(name, value, answers) };
        let fault = |what| Err(LoginError::key(name, value, what));
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.row.key == row.key) {
            return entry.answered(value);
        }
        match row.rule {
            Rule::Declaration => fault("is not for a target to say in this stage"),
            // Its value may be a response, which is not for showing.
            Rule::Authentication => Err(LoginError::key(name, "...", "belongs to the security stage")),
            Rule::Obsolete { answer } => {
                push(answers, row.name, answer);
                Ok(())
            }
            _ if value::is_reserved(value) => fault("answers a key that was not offered"),
            // A target has nothing to negotiate for the session on a further connection (chapter 13, LO).
            _ if row.when == Use::LeadingLogin && !self.is_leading => {
                push(answers, row.name, REJECT);
                Ok(())
            }
            _ if row.irrelevant_in_discovery && self.session_type == SessionType::Discovery => {
                push(answers, row.name, IRRELEVANT);
                Ok(())
            }
            _ if self.entries.len() >= TARGET_KEYS_MAX => fault("is one key too many"),
            _ => self.take_offer(row, value, answers),
        }
    }

    /// The target offers a key that was not offered here: this side has no wish but the RFC's default.
    fn take_offer(
        &mut self,
        row: &'static Row,
        value: &str,
        answers: &mut Vec<u8>,
    ) -> Result<(), LoginError> {
        let mut entry = Entry { offer: None, ..Entry::offered((row, String::new())) };
        entry.answer = Some(value.to_owned());
        if let Rule::List { default } = row.rule {
            let chosen = value::first_known(value, &[default]);
            push(answers, row.name, chosen.unwrap_or(REJECT));
            entry.chosen = default.to_owned();
        } else {
            match entry.number(value) {
                Some(offer) => {
                    entry.result = combine(row, offer, default(row));
                    push(answers, row.name, &entry.shown());
                }
                None => push(answers, row.name, REJECT),
            }
        }
        entry.reason = Reason::TargetsOffer;
        self.entries.push(entry);
        Ok(())
    }

    fn take_unknown(&mut self, name: &str, value: &str, answers: &mut Vec<u8>) -> Result<(), LoginError> {
        if let Some((_, _, answer)) = self.additional.iter_mut().find(|(own, ..)| own == name) {
            *answer = Some(value.to_owned());
            return Ok(());
        }
        if value::is_reserved(value) {
            return Err(LoginError::key(name, value, "answers a key that was not offered"));
        }
        if self.unknown.iter().any(|(seen, _)| seen == name) {
            return Ok(());
        }
        if self.unknown.len() >= TARGET_KEYS_MAX {
            return Err(LoginError::key(name, value, "is one key too many"));
        }
        push(answers, name, NOT_UNDERSTOOD);
        self.unknown.push((name.to_owned(), value.to_owned()));
        Ok(())
    }

    /// The session's parameters; meaningless where a session is joined.
    pub(super) fn session(&self) -> SessionParameters {
        SessionParameters {
            max_connections: self.small(Key::MaxConnections),
            initial_r2t: self.number(Key::InitialR2T) != 0,
            immediate_data: self.number(Key::ImmediateData) != 0,
            max_burst_length: self.number(Key::MaxBurstLength),
            // 13.14 also binds a value that was never settled.
            first_burst_length: self.number(Key::FirstBurstLength).min(self.number(Key::MaxBurstLength)),
            max_outstanding_r2t: self.small(Key::MaxOutstandingR2T),
            data_pdu_in_order: self.number(Key::DataPduInOrder) != 0,
            data_sequence_in_order: self.number(Key::DataSequenceInOrder) != 0,
            error_recovery_level: self.small(Key::ErrorRecoveryLevel) as u8,
            default_time2wait_s: self.small(Key::DefaultTime2Wait),
            default_time2retain_s: self.small(Key::DefaultTime2Retain),
            task_reporting: self
                .entry(Key::TaskReporting)
                .and_then(|entry| task_reporting_of(&entry.chosen))
                .unwrap_or(TaskReporting::Rfc3720),
            protocol_level: self.small(Key::ProtocolLevel) as u8,
        }
    }

    /// The connection's parameters.
    ///
    /// # Errors
    /// [`LoginError::Key`] when a digest is required here and the target did not agree to it.
    pub(super) fn connection(&self) -> Result<ConnectionParameters, LoginError> {
        let digest = |key| {
            let Some(entry) = self.entry(key) else { return Ok(false) };
            let offer = entry.offer.as_deref().unwrap_or_default();
            if entry.chosen != CRC32C && offer == CRC32C {
                let answer = entry.answer.as_deref().unwrap_or("nothing");
                return Err(LoginError::key(
                    entry.row.name,
                    answer,
                    "is the target's answer where CRC32C is required here",
                ));
            }
            Ok(entry.chosen == CRC32C)
        };
        Ok(ConnectionParameters {
            digests: Digests { header: digest(Key::HeaderDigest)?, data: digest(Key::DataDigest)? },
            max_recv_data_segment_length: self.max_recv_data_segment_length,
            max_send_data_segment_length: self
                .entry(Key::MaxRecvDataSegmentLength)
                .map_or(DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH, |entry| entry.result),
        })
    }

    /// What became of each key, for the trace.
    pub(super) fn trace(&self) -> Vec<TracedKey> {
        let known = self.entries.iter().map(|entry| TracedKey {
            name: entry.row.name.to_owned(),
            offered: entry.offer.clone(),
            answered: entry.answer.clone(),
            result: entry.shown(),
            reason: entry.reason,
        });
        let additional = self.additional.iter().map(|(name, value, answer)| TracedKey {
            name: name.clone(),
            offered: Some(value.clone()),
            answered: answer.clone(),
            result: answer.clone().unwrap_or_default(),
            reason: match answer.as_deref() {
                None => Reason::NotAnswered,
                Some(NOT_UNDERSTOOD) => Reason::NotUnderstood,
                Some(REJECT) => Reason::Rejected,
                Some(_) => Reason::Agreed,
            },
        });
        let unknown = self.unknown.iter().map(|(name, value)| TracedKey {
            name: name.clone(),
            offered: None,
            answered: Some(value.clone()),
            result: NOT_UNDERSTOOD.to_owned(),
            reason: Reason::TargetsOffer,
        });
        known.chain(additional).chain(unknown).collect()
    }

    fn entry(&self, key: Key) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.row.key == key)
    }

    fn number(&self, key: Key) -> u32 {
        self.entry(key).map_or_else(|| default(row(key)), |entry| entry.result)
    }

    /// A number whose range ends at or below 65535.
    fn small(&self, key: Key) -> u16 {
        u16::try_from(self.number(key)).unwrap_or(u16::MAX)
    }
}

impl Entry {
    /// An offer that has no answer yet: what holds is the RFC's default, as far as the offer allows it.
    fn offered((row, offer): Offer) -> Self {
        let mut entry = Self {
            row,
            offer: None,
            answer: None,
            result: default(row),
            chosen: String::new(),
            reason: Reason::NotAnswered,
        };
        if let Rule::List { default } = row.rule {
            entry.chosen = default.to_owned();
        } else if let Some(wish) = entry.number(&offer)
            && !matches!(row.rule, Rule::DeclaredNumber { .. })
        {
            entry.result = combine(row, wish, entry.result);
        }
        entry.offer = Some(offer);
        entry
    }

    /// Takes the target's answer (or, for MaxRecvDataSegmentLength, its own declaration).
    fn answered(&mut self, value: &str) -> Result<(), LoginError> {
        let fault = |what| Err(LoginError::key(self.row.name, value, what));
        if let Some(before) = &self.answer {
            // A key twice is an error (6.3); the same words twice do no harm, and targets are known to say them.
            return if before == value { Ok(()) } else { fault("differs from what the target said before") };
        }
        let offer = self.offer.as_deref().unwrap_or_default();
        self.reason = match value {
            REJECT => Reason::Rejected,
            IRRELEVANT => Reason::Irrelevant,
            NOT_UNDERSTOOD => Reason::NotUnderstood,
            _ => match self.row.rule {
                Rule::List { .. } if offer.split(',').any(|known| known == value) => {
                    self.chosen = value.to_owned();
                    if offer.split(',').next() == Some(value) {
                        Reason::Agreed
                    } else {
                        Reason::TargetsChoice
                    }
                }
                Rule::List { .. } => return fault("was not among the values that we offered (6.2.1)"),
                Rule::DeclaredNumber { .. } => {
                    let Some(length) = self.number(value) else { return fault("is out of the key's range") };
                    self.result = length;
                    Reason::Declared
                }
                _ => {
                    let Some(answer) = self.number(value) else { return fault("is out of the key's range") };
                    let wish = self.number(offer).unwrap_or_else(|| default(self.row));
                    if combine(self.row, wish, answer) != answer {
                        return fault("is no result that the key's function allows for our offer (6.2.2)");
                    }
                    self.result = answer;
                    match answer.cmp(&wish) {
                        std::cmp::Ordering::Equal => Reason::Agreed,
                        std::cmp::Ordering::Less => Reason::TargetWantsLess,
                        std::cmp::Ordering::Greater => Reason::TargetWantsMore,
                    }
                }
            },
        };
        self.answer = Some(value.to_owned());
        Ok(())
    }

    /// A value of this key as a number; a Boolean is 0 or 1.
    fn number(&self, text: &str) -> Option<u32> {
        match self.row.rule {
            Rule::And { .. } | Rule::Or { .. } => value::boolean(text).map(u32::from),
            Rule::Minimum { range, .. }
            | Rule::Maximum { range, .. }
            | Rule::DeclaredNumber { range, .. } => in_range(text, range),
            _ => None,
        }
    }

    /// What is in force, as text.
    fn shown(&self) -> String {
        match self.row.rule {
            Rule::List { .. } => self.chosen.clone(),
            Rule::And { .. } | Rule::Or { .. } => value::boolean_text(self.result == 1).to_owned(),
            _ => self.result.to_string(),
        }
    }
}

/// The key's result function.
fn combine(row: &Row, one: u32, other: u32) -> u32 {
    match row.rule {
        Rule::Maximum { .. } => one.max(other),
        Rule::And { .. } => one & other,
        Rule::Or { .. } => one | other,
        _ => one.min(other),
    }
}

#[cfg(test)]
#[path = "negotiation_tests.rs"]
mod tests;
