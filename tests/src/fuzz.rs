//! Entry points for fuzzing, one a function that takes any bytes and must return. `fuzz/` feeds them with new inputs; the
//! test `fuzz_corpus` runs them on the committed ones. They check more than "no panic": bounds, round trips, ends.

mod answers;
mod discovery;
mod initiator;
mod isns;
mod login;
mod nbd;
mod pdu;
mod scsi;
mod session;

pub use answers::answers;
pub use discovery::discovery;
pub use initiator::initiator;
pub use isns::isns;
pub use login::login;
pub use nbd::nbd;
pub use pdu::{pdu, text};
pub use scsi::scsi;
pub use session::session;

/// An entry point and the name of its target and corpus.
pub type Entry = (&'static str, fn(&[u8]));

/// All entry points.
pub const ENTRIES: &[Entry] = &[
    ("pdu", pdu),
    ("text", text),
    ("login", login),
    ("session", session),
    ("initiator", initiator),
    ("discovery", discovery),
    ("scsi", scsi),
    ("answers", answers),
    ("isns", isns),
    ("nbd", nbd),
];

/// Decisions read from the input; behind its end everything is zero.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        let byte = self.0.first().copied().unwrap_or(0);
        self.0 = self.0.get(1..).unwrap_or_default();
        byte
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    /// At most `length` bytes, fewer at the end.
    fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
