//! The record of a login for people: each PDU with its time, each key with what was offered, answered, and came of it.
//!
//! It holds no challenge and no response: with both, a secret could be guessed offline. Its size is bounded by the login's
//! own bounds.

use std::fmt;
use std::time::Duration;

use lunette_wire::initiator::LoginStage;

use super::failure::Side;
use crate::parameters::keys::{Key, by_name};

/// Everything that was said in a login.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// The PDUs in their order.
    pub pdus: Vec<TracedPdu>,
    /// The keys of the operational stage in the order in which they were offered.
    pub keys: Vec<TracedKey>,
}

impl Trace {
    /// The complete text that ended with the last PDU.
    pub(super) fn note_pairs(&mut self, pairs: &[(&str, &str)]) {
        if let Some(last) = self.pdus.last_mut() {
            last.pairs = shown(pairs);
        }
    }
}

/// One PDU of a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedPdu {
    /// When it was made or came, on the caller's clock.
    pub at: Duration,
    /// Who sent it.
    pub from: Side,
    /// CSG.
    pub stage: LoginStage,
    /// NSG, where the T bit is set.
    pub next_stage: Option<LoginStage>,
    /// C bit.
    pub is_continued: bool,
    /// Status-Class and Status-Detail of a response; zero in a request.
    pub status: u16,
    /// Bytes of text in it.
    pub text_length: usize,
    /// The pairs: of a text over several PDUs they are with the first when we sent it, and with the last when it came.
    pub pairs: Vec<(String, String)>,
}

/// What became of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedKey {
    /// Its name.
    pub name: String,
    /// What we offered; none where the target brought it up.
    pub offered: Option<String>,
    /// What the target said.
    pub answered: Option<String>,
    /// What is in force. For MaxRecvDataSegmentLength: how much we may send in one PDU.
    pub result: String,
    /// Why.
    pub reason: Reason,
}

/// Why a key has its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The target took what was offered.
    Agreed,
    /// Each side says for itself.
    Declared,
    /// The target's number is smaller, or its Boolean is No.
    TargetWantsLess,
    /// The target's number is larger, or its Boolean is Yes.
    TargetWantsMore,
    /// The target took a later value of the list.
    TargetsChoice,
    /// The target brought it up.
    TargetsOffer,
    /// The target said nothing about it.
    NotAnswered,
    /// The target answered Reject.
    Rejected,
    /// The target answered Irrelevant.
    Irrelevant,
    /// The target answered NotUnderstood.
    NotUnderstood,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Agreed => "the target agrees",
            Self::Declared => "each side says for itself",
            Self::TargetWantsLess => "the target wants less",
            Self::TargetWantsMore => "the target wants more",
            Self::TargetsChoice => "the target chose from our list",
            Self::TargetsOffer => "the target brought it up",
            Self::NotAnswered => "no answer: what the default and our offer have in common",
            Self::Rejected => "rejected: what the default and our offer have in common",
            Self::Irrelevant => "irrelevant beside the other keys",
            Self::NotUnderstood => "not understood: what the default and our offer have in common",
        })
    }
}

/// The pairs of a text, with what must not be written down left out.
pub(super) fn shown(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let is_hidden =
        |name| by_name(name).is_some_and(|row| matches!(row.key, Key::ChapChallenge | Key::ChapResponse));
    pairs
        .iter()
        .map(|&(name, value)| {
            let value =
                if is_hidden(name) { format!("({} characters)", value.len()) } else { value.to_owned() };
            (name.to_owned(), value)
        })
        .collect()
}
