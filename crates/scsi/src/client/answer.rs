//! Reading what a target answered: bounded, total, and exact about what is missing.
//!
//! A target is not trusted. An answer says how long it is; fields behind that length are fields that the target's version
//! of the standard does not have, and read as zero ("not told"). What is missing inside that length was cut off on the way:
//! an error that says how many bytes it takes.

use std::fmt;

/// Why an answer cannot be used. The command ended well; what it brought is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// What was answered: a command's or a page's name.
    pub answer: &'static str,
    /// The field that is missing or wrong.
    pub field: &'static str,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It ends too early.
    CutOff {
        /// How long it has to be, in bytes, for this field to be there; by what it says itself.
        needed_bytes: usize,
        /// How much came.
        received_bytes: usize,
    },
    /// The field has a value that it cannot have.
    Wrong(&'static str),
}

impl Malformed {
    /// How long the answer has to be at least, if being too short is its fault.
    pub fn needed_bytes(&self) -> Option<usize> {
        match self.fault {
            Fault::CutOff { needed_bytes, .. } => Some(needed_bytes),
            Fault::Wrong(_) => None,
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Malformed { answer, field, fault } = self;
        match fault {
            Fault::CutOff { needed_bytes, received_bytes } => write!(
                f,
                "the target's {answer} data ends after {received_bytes} bytes; {field} needs {needed_bytes}"
            ),
            Fault::Wrong(why) => write!(f, "{field} in the target's {answer} data is wrong: {why}"),
        }
    }
}

impl std::error::Error for Malformed {}

/// An answer, or a part of one, with its name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    answer: &'static str,
    /// Where the part begins in the answer.
    start: usize,
    bytes: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(answer: &'static str, bytes: &'a [u8]) -> Fields<'a> {
        Fields { answer, start: 0, bytes }
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn array<const N: usize>(&self, at: usize, field: &'static str) -> Result<[u8; N], Malformed> {
        let found = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        found.copied().ok_or_else(|| self.cut_off(at.saturating_add(N), field))
    }

    pub(super) fn u8(&self, at: usize, field: &'static str) -> Result<u8, Malformed> {
        self.array(at, field).map(|[byte]| byte)
    }

    pub(super) fn be16(&self, at: usize, field: &'static str) -> Result<u16, Malformed> {
        self.array(at, field).map(u16::from_be_bytes)
    }

    pub(super) fn be32(&self, at: usize, field: &'static str) -> Result<u32, Malformed> {
        self.array(at, field).map(u32::from_be_bytes)
    }

    pub(super) fn be64(&self, at: usize, field: &'static str) -> Result<u64, Malformed> {
        self.array(at, field).map(u64::from_be_bytes)
    }

    /// Fields that may lie behind what the answer says of its length: zero there.
    fn told<const N: usize>(&self, at: usize) -> [u8; N] {
        self.bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }

    pub(super) fn u8_told(&self, at: usize) -> u8 {
        let [byte] = self.told(at);
        byte
    }

    pub(super) fn be16_told(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.told(at))
    }

    pub(super) fn be32_told(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.told(at))
    }

    pub(super) fn be64_told(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.told(at))
    }

    /// True where bit `mask` of byte `at` is set.
    pub(super) fn bit_told(&self, at: usize, mask: u8) -> bool {
        self.u8_told(at) & mask != 0
    }

    /// The `length` bytes from `at`, which have to be there.
    pub(super) fn part(
        &self,
        at: usize,
        length: usize,
        field: &'static str,
    ) -> Result<Fields<'a>, Malformed> {
        let end = at.saturating_add(length);
        let bytes = self.bytes.get(at..end).ok_or_else(|| self.cut_off(end, field))?;
        Ok(Fields { answer: self.answer, start: self.start + at, bytes })
    }

    /// The first `length` bytes and the rest, if there are so many.
    pub(super) fn split(
        &self,
        length: usize,
        field: &'static str,
    ) -> Result<(Fields<'a>, Fields<'a>), Malformed> {
        let first = self.part(0, length, field)?;
        Ok((first, self.part(length, self.bytes.len() - length, field)?))
    }

    /// The whole parts of `length` bytes each that there are from `at` on; what is left over at the end is dropped.
    pub(super) fn parts(&self, at: usize, length: usize) -> impl Iterator<Item = Fields<'a>> {
        let (answer, start) = (self.answer, self.start + at);
        let rest = self.bytes.get(at..).unwrap_or_default();
        rest.chunks_exact(length).enumerate().map(move |(place, bytes)| Fields {
            answer,
            start: start + place * length,
            bytes,
        })
    }

    /// The error for a part that ends before byte `end`.
    pub(super) fn cut_off(&self, end: usize, field: &'static str) -> Malformed {
        let needed_bytes = self.start.saturating_add(end);
        let received_bytes = self.start + self.bytes.len();
        Malformed { answer: self.answer, field, fault: Fault::CutOff { needed_bytes, received_bytes } }
    }

    /// The error for a value that cannot be.
    pub(super) fn wrong(&self, field: &'static str, why: &'static str) -> Malformed {
        Malformed { answer: self.answer, field, fault: Fault::Wrong(why) }
    }
}

/// A text field without the spaces and nulls that fill it. Whatever is not printable ASCII becomes `?`: the text is shown on
/// terminals, and the target chose it.
pub(super) fn text(field: &[u8]) -> String {
    let shown = field.iter().map(|&byte| match byte {
        0x20..=0x7e => char::from(byte),
        0 => ' ',
        _ => '?',
    });
    shown.collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told() {
        let fields = Fields::new("TEST", &[1, 2, 3, 4, 5]);
        assert_eq!(fields.be16(3, "A"), Ok(0x0405));
        let error = fields.be32(3, "A").unwrap_err();
        assert_eq!(error.needed_bytes(), Some(7));
        assert_eq!(error.to_string(), "the target's TEST data ends after 5 bytes; A needs 7");
        let inner = fields.part(2, 3, "B").unwrap();
        assert_eq!(inner.u8(0, "C"), Ok(3));
        let error = inner.be64(0, "D").unwrap_err();
        assert_eq!(error.needed_bytes(), Some(10), "counted from the start of the answer");
        assert_eq!(fields.wrong("E", "no").to_string(), "E in the target's TEST data is wrong: no");
        assert!(fields.part(usize::MAX, 2, "F").is_err());
    }

    #[test]
    fn what_is_not_told_is_zero() {
        let fields = Fields::new("TEST", &[0xff, 1]);
        assert_eq!((fields.u8_told(1), fields.u8_told(2)), (1, 0));
        assert_eq!((fields.be16_told(0), fields.be16_told(1)), (0xff01, 0));
        assert_eq!((fields.be32_told(0), fields.be64_told(usize::MAX)), (0, 0));
        assert!(fields.bit_told(0, 0x80) && !fields.bit_told(1, 0x80));
    }

    #[test]
    fn text_is_fit_for_a_terminal() {
        assert_eq!(text(b"LUNETTE \0\0"), "LUNETTE");
        assert_eq!(text(b"\x1b[2J a\xc3\xa9 "), "?[2J a??");
        assert_eq!(text(b"    "), "");
    }
}
