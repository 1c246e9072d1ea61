//! The numbered responses of a connection that its initiator has not acknowledged (RFC 7143, 4.2.2.2, 11.16.1).

use std::collections::VecDeque;

use lunette_wire::{Bhs, StatSn};

use super::answers::AnswerId;

/// Bytes of text, ping data and the like that a connection keeps; what is older than that is forgotten.
const LOG_BYTES_MAX: usize = 1 << 20;

/// One response, as far as it takes to send it again.
#[derive(Debug)]
pub(in super::super) enum Logged {
    /// As it went out.
    Pdu(Box<Bhs>, Vec<u8>),
    /// The end of a command.
    Answer(AnswerId),
}

impl Logged {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Pdu(_, data) => data.len(),
            Self::Answer(_) => 0,
        }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(in super::super) struct StatusLog {
    /// The status number of the first entry.
    first: StatSn,
    entries: VecDeque<Logged>,
    bytes: usize,
}

impl StatusLog {
    /// An empty log; the first entry will have this number.
    pub(in super::super) const fn new(first: StatSn) -> Self {
        Self { first, entries: VecDeque::new(), bytes: 0 }
    }

    /// The oldest number that can be sent again.
    pub(super) const fn first(&self) -> StatSn {
        self.first
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Keeps the next response.
    pub(super) fn push(&mut self, logged: Logged) {
        self.bytes += logged.bytes();
        self.entries.push_back(logged);
    }

    /// Takes out one response that is to be forgotten, because there are more than `entries_max`, or too many bytes.
    pub(super) fn take_excess(&mut self, entries_max: usize) -> Option<Logged> {
        (self.entries.len() > entries_max || self.bytes > LOG_BYTES_MAX).then(|| self.pop()).flatten()
    }

    fn pop(&mut self) -> Option<Logged> {
        let popped = self.entries.pop_front()?;
        self.first = self.first.next();
        self.bytes -= popped.bytes();
        Some(popped)
    }

    /// Takes out one response that has been acknowledged.
    pub(super) fn take_before(&mut self, exp_stat_sn: StatSn) -> Option<Logged> {
        self.first.precedes(exp_stat_sn).then(|| self.pop()).flatten()
    }

    pub(super) fn get(&self, stat_sn: StatSn) -> Option<&Logged> {
        self.entries.get(stat_sn.since(self.first) as usize)
    }
}
