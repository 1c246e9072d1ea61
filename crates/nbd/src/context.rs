//! Metadata contexts: what a client may ask about ranges of the export. There is one, `base:allocation`, which tells where nothing
//! is stored (proto.md, "Metadata querying" and "The `base:` metadata namespace").
//!
//! [`Question`] is what the options about contexts carry, [`Extents`] what `NBD_CMD_BLOCK_STATUS` is answered with. Where space is,
//! others know.

use crate::Span;
use crate::fields::Fields;

/// The one context.
pub(crate) const ALLOCATION: &[u8] = b"base:allocation";
/// What replies call it; any number would do.
pub(crate) const ALLOCATION_ID: u32 = 1;
/// What stands for all contexts of its namespace, in lists only.
const WILDCARD: &[u8] = b"base:";

/// Of a descriptor's flags (`NBD_STATE_HOLE`, `NBD_STATE_ZERO`).
const HOLE: u32 = 1 << 0;
const ZERO: u32 = 1 << 1;

/// The most descriptors of one reply: what a few kilobytes hold. Who wants more asks again from where they end.
const EXTENTS_MAX: usize = 1024;

/// The data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
pub(crate) struct Question<'a> {
    /// The export's name.
    pub(crate) name: &'a [u8],
    queries: Vec<&'a [u8]>,
}

impl<'a> Question<'a> {
    /// Reads it. None: lengths that do not fit.
    pub(crate) fn decode(data: &'a [u8]) -> Option<Question<'a>> {
        let mut fields = Fields(data);
        let name = fields.string()?;
        let count = fields.u32()?;
        let mut queries = Vec::new();
        // Each takes some of the data, which ends it however many are told.
        for _ in 0..count {
            queries.push(fields.string()?);
        }
        fields.0.is_empty().then_some(Question { name, queries })
    }

    /// `base:allocation` is to be listed: no query is one for all.
    pub(crate) fn lists_allocation(&self) -> bool {
        self.queries.is_empty() || self.queries.contains(&WILDCARD) || self.selects_allocation()
    }

    /// `base:allocation` is to be selected. Other contexts are nobody's error.
    pub(crate) fn selects_allocation(&self) -> bool {
        self.queries.contains(&ALLOCATION)
    }
}

/// What space some bytes have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// They have space, or nobody knows.
    Data,
    /// They have space, and read as zeros.
    Zeros,
    /// They have none; what is read there is not said.
    Hole,
    /// They have none, and read as zeros.
    EmptyHole,
}

impl Allocation {
    fn flags(self) -> u32 {
        match self {
            Allocation::Data => 0,
            Allocation::Zeros => ZERO,
            Allocation::Hole => HOLE,
            Allocation::EmptyHole => HOLE | ZERO,
        }
    }
}

/// The answer to `NBD_CMD_BLOCK_STATUS`: what was asked for, from its first byte on, in pieces of one kind each.
///
/// ```
/// use lunette_nbd::{Allocation, Extents, Span};
///
/// let mut extents = Extents::new(Span { offset: 4096, length_bytes: 8192 }, false);
/// extents.push(4096, Allocation::Data);
/// extents.push(1 << 40, Allocation::EmptyHole);
/// assert!(extents.is_full());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extents {
    /// Bytes that are not told about yet.
    left_bytes: u32,
    only_first: bool,
    list: Vec<(u32, Allocation)>,
}

impl Extents {
    /// Nothing yet of what is asked for. With `only_first` one piece is enough (`NBD_CMD_FLAG_REQ_ONE`).
    #[must_use]
    pub fn new(asked: Span, only_first: bool) -> Extents {
        Extents { left_bytes: asked.length_bytes, only_first, list: Vec::new() }
    }

    /// Tells about so many more bytes; what is beyond the bytes that were asked for is left out, and so is what comes when enough is
    /// told.
    pub fn push(&mut self, length_bytes: u64, allocation: Allocation) {
        let length = u32::try_from(length_bytes).unwrap_or(u32::MAX).min(self.left_bytes);
        if length == 0 {
            return;
        }
        let is_next = self.list.last().is_none_or(|(_, last)| *last != allocation);
        if is_next && self.list.len() >= self.most() {
            self.left_bytes = 0;
            return;
        }
        match self.list.last_mut() {
            Some((told, _)) if !is_next => *told += length,
            _ => self.list.push((length, allocation)),
        }
        self.left_bytes -= length;
    }

    /// How many pieces there may be.
    fn most(&self) -> usize {
        if self.only_first { 1 } else { EXTENTS_MAX }
    }

    /// Nothing more need be told.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.left_bytes == 0
    }

    /// The payload of `NBD_REPLY_TYPE_BLOCK_STATUS`. Of what nobody has told anything about, nothing is known.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut payload = ALLOCATION_ID.to_be_bytes().to_vec();
        let unknown = [(self.left_bytes, Allocation::Data)];
        let list = if self.list.is_empty() { &unknown[..] } else { &self.list };
        for (length, allocation) in list {
            payload.extend(length.to_be_bytes());
            payload.extend(allocation.flags().to_be_bytes());
        }
        payload
    }
}

#[cfg(test)]
mod tests {
    use lunette_cases::cases;
    use proptest::prelude::*;

    use super::*;

    const ASKED: Span = Span { offset: 512, length_bytes: 10_000 };

    fn told(extents: &Extents) -> Vec<(u32, u32)> {
        let payload = extents.encode();
        assert_eq!(payload[..4], ALLOCATION_ID.to_be_bytes());
        let mut fields = Fields(&payload[4..]);
        let mut all = Vec::new();
        while let (Some(length), Some(flags)) = (fields.u32(), fields.u32()) {
            all.push((length, flags));
        }
        assert!(fields.0.is_empty());
        all
    }

    fn question(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
        let string = |text: &[u8]| [&(text.len() as u32).to_be_bytes(), text].concat();
        let mut data = string(name);
        data.extend((queries.len() as u32).to_be_bytes());
        data.extend(queries.iter().flat_map(|query| string(query)));
        data
    }

    #[test]
    fn queries_name_the_context_or_their_namespace() {
        for (queries, is_listed, is_selected) in [
            (&[][..], true, false),
            (&[ALLOCATION], true, true),
            (&[b"qemu:x", ALLOCATION, ALLOCATION], true, true),
            (&[WILDCARD], true, false),
            (&[b"base:allocations", b"base", b"", b"qemu:allocation"], false, false),
        ] {
            let data = question(b"disk", queries);
            let question = Question::decode(&data).unwrap();
            assert_eq!(question.name, b"disk");
            assert_eq!(
                (question.lists_allocation(), question.selects_allocation()),
                (is_listed, is_selected)
            );
            assert!(Question::decode(&data[..data.len() - 1]).is_none());
            assert!(Question::decode(&[&data[..], &[0]].concat()).is_none());
        }
        assert!(Question::decode(b"\0\0\0\0\xff\xff\xff\xff").is_none(), "more than there is room for");
    }

    #[test]
    fn pieces_of_one_kind_are_one_and_none_is_longer_than_was_asked_for() {
        let mut extents = Extents::new(ASKED, false);
        assert_eq!(told(&extents), [(10_000, 0)], "nothing is known");
        extents.push(0, Allocation::Hole);
        extents.push(1000, Allocation::Zeros);
        extents.push(1000, Allocation::Hole);
        extents.push(1000, Allocation::Hole);
        assert!(!extents.is_full());
        extents.push(u64::MAX, Allocation::EmptyHole);
        assert!(extents.is_full());
        extents.push(1, Allocation::Data);
        assert_eq!(told(&extents), [(1000, 2), (2000, 1), (7000, 3)]);
    }

    #[test]
    fn one_piece_is_enough_if_that_is_asked_for() {
        let mut extents = Extents::new(ASKED, true);
        extents.push(1000, Allocation::EmptyHole);
        extents.push(1000, Allocation::EmptyHole);
        assert!(!extents.is_full(), "it may go on");
        extents.push(1000, Allocation::Data);
        assert!(extents.is_full());
        extents.push(1000, Allocation::EmptyHole);
        assert_eq!(told(&extents), [(2000, 3)]);
    }

    #[test]
    fn a_reply_is_bounded() {
        let mut extents = Extents::new(Span { length_bytes: u32::MAX, ..ASKED }, false);
        for turn in 0..2 * EXTENTS_MAX {
            let allocation = if turn % 2 == 0 { Allocation::Data } else { Allocation::Hole };
            extents.push(512, allocation);
        }
        assert!(extents.is_full());
        assert_eq!(told(&extents).len(), EXTENTS_MAX);
    }

    proptest! {
        #![proptest_config(cases(256))]

        /// Whatever is told: one piece at least, none of them empty or like the one before it, and no more bytes than were asked for.
        #[test]
        fn descriptors_are_as_the_protocol_wants(
            length_bytes in prop_oneof![1u32..5000, any::<u32>().prop_map(|length| length.max(1))],
            only_first in any::<bool>(),
            pieces in prop::collection::vec((prop_oneof![0u64..3000, any::<u64>()], 0usize..4), 0..40),
        ) {
            const ALL: [Allocation; 4] =
                [Allocation::Data, Allocation::Zeros, Allocation::Hole, Allocation::EmptyHole];
            let mut extents = Extents::new(Span { length_bytes, ..ASKED }, only_first);
            for (length, kind) in pieces {
                extents.push(length, ALL[kind]);
            }
            let told = told(&extents);
            prop_assert!(!told.is_empty() && (told.len() == 1 || !only_first));
            prop_assert!(told.iter().all(|(length, _)| *length > 0));
            prop_assert!(told.windows(2).all(|pair| pair[0].1 != pair[1].1));
            prop_assert!(told.iter().map(|(length, _)| u64::from(*length)).sum::<u64>() <= length_bytes.into());
        }
    }
}
