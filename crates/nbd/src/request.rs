//! Requests of the transmission phase: what a client wants is judged by the export before anybody acts on it.

use crate::{Cookie, Errno, Export, PAYLOAD_BYTES_MAX, Terms};

/// The length of a request without its payload.
pub const REQUEST_BYTES: usize = 28;

const REQUEST_MAGIC: u32 = 0x2560_9513;

mod command {
    pub(super) const READ: u16 = 0;
    pub(super) const WRITE: u16 = 1;
    pub(super) const DISCONNECT: u16 = 2;
    pub(super) const FLUSH: u16 = 3;
    pub(super) const TRIM: u16 = 4;
    pub(super) const WRITE_ZEROES: u16 = 6;
    pub(super) const BLOCK_STATUS: u16 = 7;
}

/// Of the command flags. FUA is allowed with every command, DF with READ, REQ_ONE with BLOCK_STATUS, the others with WRITE_ZEROES.
const FUA: u16 = 1 << 0;
const NO_HOLE: u16 = 1 << 1;
const DF: u16 = 1 << 2;
const REQ_ONE: u16 = 1 << 3;
const FAST_ZERO: u16 = 1 << 4;

/// A range of bytes; it lies within the export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first, in bytes.
    pub offset: u64,
    /// How many.
    pub length_bytes: u32,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Bring the bytes.
    Read(Span),
    /// Write the payload.
    Write {
        /// Where.
        span: Span,
        /// It has to be stable when it is answered.
        fua: bool,
    },
    /// Have everything stable that was answered before.
    Flush,
    /// Give the space back; what is read there afterwards is not said.
    Trim {
        /// Where.
        span: Span,
        /// It has to be stable when it is answered.
        fua: bool,
    },
    /// Write zeros.
    WriteZeroes {
        /// Where.
        span: Span,
        /// It has to be stable when it is answered.
        fua: bool,
        /// Space may be given back.
        may_unmap: bool,
        /// Do it only if that is faster than writing zeros.
        fast: bool,
    },
    /// Say where space is, and what reads as zeros.
    BlockStatus {
        /// Where; at least one byte.
        span: Span,
        /// One piece is enough, and no more is taken.
        only_first: bool,
    },
    /// The client goes: nothing is answered, the connection is closed once all else is.
    Disconnect,
}

/// A request as it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Its name.
    pub cookie: Cookie,
    flags: u16,
    command: u16,
    offset: u64,
    length_bytes: u32,
}

impl Request {
    /// Reads a request. None: it is none, and where the next one begins is not known; the connection has to be closed. The same
    /// holds for a payload that is longer than [`PAYLOAD_BYTES_MAX`].
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Option<Request> {
        let [m0, m1, m2, m3, f0, f1, c0, c1, rest @ ..] = *bytes;
        let word = |at: usize| u64::from_be_bytes(std::array::from_fn(|index| rest[at + index]));
        let length_bytes = u32::from_be_bytes(std::array::from_fn(|index| rest[16 + index]));
        let request = Request {
            cookie: Cookie(word(0)),
            flags: u16::from_be_bytes([f0, f1]),
            command: u16::from_be_bytes([c0, c1]),
            offset: word(8),
            length_bytes,
        };
        let is_one = u32::from_be_bytes([m0, m1, m2, m3]) == REQUEST_MAGIC;
        (is_one && request.payload_bytes() <= PAYLOAD_BYTES_MAX).then_some(request)
    }

    /// How many bytes follow that belong to it, whatever becomes of it.
    pub fn payload_bytes(&self) -> u32 {
        if self.command == command::WRITE { self.length_bytes } else { 0 }
    }

    /// How many bytes of memory it takes: its payload, or what it wants to read.
    pub fn memory_bytes(&self) -> u32 {
        match self.command {
            command::WRITE | command::READ => self.length_bytes.min(PAYLOAD_BYTES_MAX),
            _ => 0,
        }
    }

    /// What is to be done about it.
    ///
    /// # Errors
    /// What to answer instead.
    pub fn judge(&self, export: &Export, terms: Terms) -> Result<Work, Errno> {
        let special = match self.command {
            command::READ if terms.structured => DF,
            command::BLOCK_STATUS => REQ_ONE,
            command::WRITE_ZEROES => NO_HOLE | FAST_ZERO,
            _ => 0,
        };
        if self.flags & !(FUA | special) != 0 {
            return Err(Errno::Invalid);
        }
        let fua = self.flags & FUA != 0;
        Ok(match self.command {
            command::READ if self.length_bytes > PAYLOAD_BYTES_MAX => return Err(Errno::Invalid),
            command::READ => Work::Read(self.span(export, terms, Errno::Invalid)?),
            command::DISCONNECT => Work::Disconnect,
            command::FLUSH => Work::Flush,
            command::WRITE | command::TRIM | command::WRITE_ZEROES if export.features().read_only => {
                return Err(Errno::NotPermitted);
            }
            command::WRITE => Work::Write { span: self.span(export, terms, Errno::NoSpace)?, fua },
            command::TRIM if export.features().trim => {
                Work::Trim { span: self.span(export, terms, Errno::Invalid)?, fua }
            }
            command::WRITE_ZEROES => Work::WriteZeroes {
                span: self.span(export, terms, Errno::NoSpace)?,
                fua,
                may_unmap: self.flags & NO_HOLE == 0,
                fast: self.flags & FAST_ZERO != 0,
            },
            command::BLOCK_STATUS if terms.allocation && self.length_bytes > 0 => Work::BlockStatus {
                span: self.span(export, terms, Errno::Invalid)?,
                only_first: self.flags & REQ_ONE != 0,
            },
            _ => return Err(Errno::Invalid),
        })
    }

    /// The range, if the export has it; `beyond` is what to answer if not.
    fn span(&self, export: &Export, terms: Terms, beyond: Errno) -> Result<Span, Errno> {
        let length = u64::from(self.length_bytes);
        let block = u64::from(export.block_bytes());
        if self.offset.checked_add(length).is_none_or(|end| end > export.size_bytes()) {
            return Err(beyond);
        }
        if terms.knows_blocks && (!self.offset.is_multiple_of(block) || !length.is_multiple_of(block)) {
            return Err(Errno::Invalid);
        }
        Ok(Span { offset: self.offset, length_bytes: self.length_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Features;
    use lunette_cases::cases;
    use proptest::prelude::*;

    const SIZE: u64 = 1 << 20;

    fn export(read_only: bool) -> Export {
        let features = Features { read_only, trim: true, ..Features::default() };
        Export::new(("disk", ""), SIZE, (512, 4096), features).unwrap()
    }

    fn bytes(flags: u16, command: u16, offset: u64, length: u32) -> [u8; REQUEST_BYTES] {
        let fields = [
            &REQUEST_MAGIC.to_be_bytes()[..],
            &flags.to_be_bytes(),
            &command.to_be_bytes(),
            &7u64.to_be_bytes(),
            &offset.to_be_bytes(),
            &length.to_be_bytes(),
        ];
        fields.concat().try_into().unwrap()
    }

    fn judged(flags: u16, command: u16, offset: u64, length: u32) -> Result<Work, Errno> {
        judged_by(Terms { knows_blocks: true, ..Terms::default() }, (flags, command), offset, length)
    }

    fn judged_by(
        terms: Terms,
        (flags, command): (u16, u16),
        offset: u64,
        length: u32,
    ) -> Result<Work, Errno> {
        Request::decode(&bytes(flags, command, offset, length)).unwrap().judge(&export(false), terms)
    }

    #[test]
    fn requests_become_work() {
        let span = Span { offset: 512, length_bytes: 1024 };
        assert_eq!(judged(0, command::READ, 512, 1024), Ok(Work::Read(span)));
        assert_eq!(judged(1, command::WRITE, 512, 1024), Ok(Work::Write { span, fua: true }));
        assert_eq!(judged(0, command::TRIM, 512, 1024), Ok(Work::Trim { span, fua: false }));
        assert_eq!(judged(0, command::FLUSH, 0, 0), Ok(Work::Flush));
        assert_eq!(judged(0, command::DISCONNECT, 0, 0), Ok(Work::Disconnect));
        let zeroes = |fua, may_unmap, fast| Ok(Work::WriteZeroes { span, fua, may_unmap, fast });
        assert_eq!(judged(0, command::WRITE_ZEROES, 512, 1024), zeroes(false, true, false));
        assert_eq!(judged(0x13, command::WRITE_ZEROES, 512, 1024), zeroes(true, false, true));
        let request = Request::decode(&bytes(0, command::WRITE, 0, 3)).unwrap();
        assert_eq!((request.cookie, request.payload_bytes()), (Cookie(7), 3));
    }

    #[test]
    fn what_is_not_allowed_has_the_error_that_the_protocol_wants() {
        for (command, error) in [
            (command::READ, Errno::Invalid),
            (command::WRITE, Errno::NoSpace),
            (command::TRIM, Errno::Invalid),
            (command::WRITE_ZEROES, Errno::NoSpace),
        ] {
            assert_eq!(judged(0, command, SIZE, 512), Err(error), "beyond the end");
            assert_eq!(judged(0, command, u64::MAX, 512), Err(error), "no end at all");
            assert_eq!(judged(0, command, 1, 512), Err(Errno::Invalid), "not at a block");
            assert_eq!(judged(0, command, 0, 1), Err(Errno::Invalid), "not of blocks");
            assert_eq!(judged(1 << 2, command, 0, 512), Err(Errno::Invalid), "an unknown flag");
        }
        assert_eq!(judged(0, command::READ, 0, u32::MAX), Err(Errno::Invalid));
        for command in [5, 7, 8, 999] {
            assert_eq!(judged(0, command, 0, 512), Err(Errno::Invalid));
        }
        assert_eq!(judged(NO_HOLE, command::WRITE, 0, 512), Err(Errno::Invalid));
    }

    #[test]
    fn what_is_negotiated_may_be_asked_for() {
        let span = Span { offset: 512, length_bytes: 1024 };
        let terms = Terms { knows_blocks: true, structured: true, allocation: true };
        let status = |terms, flags| judged_by(terms, (flags, command::BLOCK_STATUS), 512, 1024);
        assert_eq!(status(terms, 0), Ok(Work::BlockStatus { span, only_first: false }));
        assert_eq!(status(terms, REQ_ONE | FUA), Ok(Work::BlockStatus { span, only_first: true }));
        assert_eq!(status(terms, DF), Err(Errno::Invalid));
        assert_eq!(status(Terms { allocation: false, ..terms }, 0), Err(Errno::Invalid));
        for (offset, length) in [(512, 0), (SIZE, 512), (u64::MAX, 512), (1, 512), (0, 1)] {
            let judged = judged_by(terms, (0, command::BLOCK_STATUS), offset, length);
            assert_eq!(judged, Err(Errno::Invalid), "{length} from {offset} on");
        }
        let whole = |terms| judged_by(terms, (DF, command::READ), 512, 1024);
        assert_eq!(whole(terms), Ok(Work::Read(span)));
        assert_eq!(whole(Terms::default()), Err(Errno::Invalid));
    }

    #[test]
    fn a_client_that_was_told_no_blocks_may_access_bytes() {
        let request = Request::decode(&bytes(0, command::WRITE, 1, 3)).unwrap();
        let work = request.judge(&export(false), Terms::default());
        assert_eq!(work, Ok(Work::Write { span: Span { offset: 1, length_bytes: 3 }, fua: false }));
    }

    #[test]
    fn nothing_changes_what_is_read_only() {
        for command in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
            let request = Request::decode(&bytes(0, command, 0, 512)).unwrap();
            assert_eq!(request.judge(&export(true), Terms::default()), Err(Errno::NotPermitted));
        }
    }

    #[test]
    fn what_cannot_be_skipped_is_no_request() {
        let mut wrong = bytes(0, command::READ, 0, 512);
        wrong[3] ^= 1;
        assert_eq!(Request::decode(&wrong), None);
        assert_eq!(Request::decode(&bytes(0, command::WRITE, 0, PAYLOAD_BYTES_MAX + 1)), None);
        assert!(Request::decode(&bytes(0, command::WRITE, 0, PAYLOAD_BYTES_MAX)).is_some());
    }

    proptest! {
        #![proptest_config(cases(256))]

        /// Work that touches the export lies within it, and takes no more memory than is said.
        #[test]
        fn work_is_within_the_export(
            flags in 0u16..32,
            command in 0u16..9,
            offset in prop_oneof![0..2 * SIZE, any::<u64>()],
            length in prop_oneof![0u32..1 << 21, any::<u32>()],
            [knows_blocks, structured, allocation] in any::<[bool; 3]>(),
        ) {
            let terms = Terms { knows_blocks, structured, allocation };
            let Some(request) = Request::decode(&bytes(flags, command, offset, length)) else {
                prop_assert!(command == command::WRITE && length > PAYLOAD_BYTES_MAX);
                return Ok(());
            };
            let span = match request.judge(&export(false), terms) {
                Ok(Work::Read(span) | Work::Write { span, .. }) => {
                    prop_assert!(span.length_bytes <= request.memory_bytes());
                    span
                }
                Ok(Work::Trim { span, .. } | Work::WriteZeroes { span, .. }) => span,
                Ok(Work::BlockStatus { span, .. }) => {
                    prop_assert!(allocation && span.length_bytes > 0);
                    span
                }
                Ok(Work::Flush | Work::Disconnect) | Err(_) => return Ok(()),
            };
            prop_assert!(span.offset + u64::from(span.length_bytes) <= SIZE);
            prop_assert!(!knows_blocks || (span.offset % 512 == 0 && span.length_bytes % 512 == 0));
        }

        /// Any bytes are a request or none.
        #[test]
        fn decoding_is_total(bytes in any::<[u8; REQUEST_BYTES]>()) {
            let mut bytes = bytes;
            bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
            if let Some(request) = Request::decode(&bytes) {
                prop_assert!(request.payload_bytes() <= PAYLOAD_BYTES_MAX);
                let _ = request.judge(&export(false), Terms::default());
            }
        }
    }
}
