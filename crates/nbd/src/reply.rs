//! Replies of the transmission phase: simple ones, and structured ones for clients that have asked for them.
//!
//! A structured reply is one chunk here: what was read, what space there is, why something failed, or that it is done. A READ that
//! comes in one piece is what clients with `NBD_CMD_FLAG_DF` want, too.

use std::fmt;

use crate::handshake::Terms;
use crate::{Extents, NAME_BYTES_MAX};

const SIMPLE_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;
/// The last chunk of its reply.
const DONE: u16 = 1 << 0;

mod chunk {
    pub(super) const NONE: u16 = 0;
    pub(super) const OFFSET_DATA: u16 = 1;
    pub(super) const BLOCK_STATUS: u16 = 5;
    pub(super) const ERROR: u16 = 1 << 15 | 1;
}

/// What the client calls a request; its reply has the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cookie(pub u64);

/// The errors that a reply can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errno {
    /// EPERM: a change of what is read-only, or reserved for another.
    NotPermitted,
    /// EIO
    Io,
    /// EINVAL: the request is not what the protocol or the export allows.
    Invalid,
    /// ENOSPC: beyond the end, or the store is full.
    NoSpace,
    /// ENOTSUP: WRITE_ZEROES was to be fast, and is not.
    NotSupported,
    /// ESHUTDOWN: the server ends.
    Shutdown,
}

impl Errno {
    /// The number in a reply.
    pub fn code(self) -> u32 {
        match self {
            Errno::NotPermitted => 1,
            Errno::Io => 5,
            Errno::Invalid => 22,
            Errno::NoSpace => 28,
            Errno::NotSupported => 95,
            Errno::Shutdown => 108,
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Errno::NotPermitted => "the export cannot be changed",
            Errno::Io => "the disk failed",
            Errno::Invalid => "the request is not one that this export allows",
            Errno::NoSpace => "beyond the end of the export, or no space for it",
            Errno::NotSupported => "zeros are not faster than data here",
            Errno::Shutdown => "the server ends",
        })
    }
}

/// Why a request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// For programs.
    pub errno: Errno,
    /// For people; clients with structured replies get it, as far as a string of the protocol is long.
    pub message: String,
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Refusal {
        Refusal { errno, message: errno.to_string() }
    }
}

/// What a request has brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// What was read.
    Data {
        /// From where, in bytes.
        offset: u64,
        /// What is there.
        bytes: Vec<u8>,
    },
    /// What space there is. Only who asked for `base:allocation` asks for it, and that is with structured replies.
    Extents(Extents),
}

/// A reply, but for the bytes that were read: they follow it.
pub fn reply(terms: Terms, cookie: Cookie, result: Result<&Outcome, &Refusal>) -> Vec<u8> {
    if !terms.structured {
        let code = result.err().map_or(0, |refusal| refusal.errno.code());
        return [&SIMPLE_MAGIC.to_be_bytes()[..], &code.to_be_bytes(), &cookie.0.to_be_bytes()].concat();
    }
    match result {
        // An empty read has nothing that could be put in a chunk.
        Ok(Outcome::Data { offset, bytes }) if !bytes.is_empty() => {
            structured(cookie, chunk::OFFSET_DATA, &offset.to_be_bytes(), bytes.len())
        }
        Ok(Outcome::Done | Outcome::Data { .. }) => structured(cookie, chunk::NONE, &[], 0),
        Ok(Outcome::Extents(extents)) => structured(cookie, chunk::BLOCK_STATUS, &extents.encode(), 0),
        Err(Refusal { errno, message }) => {
            let message = &message.as_bytes()[..message.floor_char_boundary(NAME_BYTES_MAX)];
            // Bounded just above.
            let length = (message.len() as u16).to_be_bytes();
            structured(cookie, chunk::ERROR, &[&errno.code().to_be_bytes(), &length[..], message].concat(), 0)
        }
    }
}

/// The one chunk of a reply, with `rest` bytes to follow it.
fn structured(cookie: Cookie, kind: u16, payload: &[u8], rest: usize) -> Vec<u8> {
    // No longer than a READ may be, and a few bytes.
    let length = (payload.len() + rest) as u32;
    let mut bytes = CHUNK_MAGIC.to_be_bytes().to_vec();
    bytes.extend(DONE.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.0.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes.extend(payload);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Allocation, Span};

    const COOKIE: Cookie = Cookie(7);
    const STRUCTURED: Terms = Terms { knows_blocks: true, structured: true, allocation: true };

    fn told(terms: Terms, outcome: &Outcome) -> Vec<u8> {
        reply(terms, COOKIE, Ok(outcome))
    }

    /// The head of a chunk, of this type and length.
    fn head(kind: u16, length: u32) -> Vec<u8> {
        let fields =
            [&[0x66, 0x8e, 0x33, 0xef, 0, 1][..], &kind.to_be_bytes(), &[0, 0, 0, 0, 0, 0, 0, 7]].concat();
        [&fields[..], &length.to_be_bytes()].concat()
    }

    #[test]
    fn simple_replies() {
        let simple = Terms::default();
        let expected = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
        assert_eq!(told(simple, &Outcome::Done), expected);
        assert_eq!(told(simple, &Outcome::Data { offset: 1, bytes: vec![1; 9] }), expected);
        let codes = [1, 5, 22, 28, 95, 108];
        let errors = [
            Errno::NotPermitted,
            Errno::Io,
            Errno::Invalid,
            Errno::NoSpace,
            Errno::NotSupported,
            Errno::Shutdown,
        ];
        for (error, code) in errors.into_iter().zip(codes) {
            let bytes = reply(simple, COOKIE, Err(&error.into()));
            assert_eq!((bytes.len(), bytes[7]), (16, code));
        }
    }

    #[test]
    fn structured_replies() {
        assert_eq!(told(STRUCTURED, &Outcome::Done), head(0, 0));
        let data = Outcome::Data { offset: 0x1000, bytes: vec![1; 9] };
        let expected = [head(1, 17), vec![0, 0, 0, 0, 0, 0, 0x10, 0]].concat();
        assert_eq!(told(STRUCTURED, &data), expected);
        let nothing = Outcome::Data { offset: 0x1000, bytes: vec![] };
        assert_eq!(told(STRUCTURED, &nothing), head(0, 0));
        let mut extents = Extents::new(Span { offset: 0, length_bytes: 4096 }, false);
        extents.push(4096, Allocation::EmptyHole);
        let expected = [head(5, 12), vec![0, 0, 0, 1, 0, 0, 0x10, 0, 0, 0, 0, 3]].concat();
        assert_eq!(told(STRUCTURED, &Outcome::Extents(extents)), expected);
    }

    #[test]
    fn errors_have_their_words_with_them() {
        let refusal = Refusal { errno: Errno::Io, message: "no".to_owned() };
        let expected = [head(0x8001, 8), vec![0, 0, 0, 5, 0, 2, b'n', b'o']].concat();
        assert_eq!(reply(STRUCTURED, COOKIE, Err(&refusal)), expected);
        // Two bytes each, behind one: the last that would fit is cut in two.
        let long = Refusal { errno: Errno::Io, message: format!("a{}", "\u{e9}".repeat(4000)) };
        let bytes = reply(STRUCTURED, COOKIE, Err(&long));
        assert_eq!(bytes[..20], head(0x8001, 6 + 4095));
        assert_eq!((bytes.len(), &bytes[24..26]), (20 + 6 + 4095, &4095u16.to_be_bytes()[..]));
        assert!(std::str::from_utf8(&bytes[26..]).is_ok());
    }
}
