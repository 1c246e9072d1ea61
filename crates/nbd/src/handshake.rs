//! The handshake in its fixed newstyle form, from the greeting to the export that the client wants, or to the end. The older
//! forms are not served, but for `NBD_OPT_EXPORT_NAME`, which old clients of the newstyle have instead of `NBD_OPT_GO`.

use crate::context::{ALLOCATION, ALLOCATION_ID, Question};
use crate::export::{Export, NAME_BYTES_MAX};
use crate::fields::Fields;

/// Options that one client may send before it goes over to transmission: a few are usual.
pub const OPTIONS_MAX: u32 = 64;

/// The longest data of an option: a name and a few queries of the longest strings, where one short query is usual.
const OPTION_BYTES_MAX: u32 = 4 * NAME_BYTES_MAX as u32;

const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Of the handshake flags of both sides.
const FIXED_NEWSTYLE: u16 = 1 << 0;
const NO_ZEROES: u16 = 1 << 1;

const CLIENT_FLAGS_BYTES: usize = 4;
const OPTION_HEADER_BYTES: usize = 16;
/// What follows size and flags in the answer to `NBD_OPT_EXPORT_NAME`, unless both sides can do without.
const ZEROES_BYTES: usize = 124;

mod option {
    pub(super) const EXPORT_NAME: u32 = 1;
    pub(super) const ABORT: u32 = 2;
    pub(super) const LIST: u32 = 3;
    pub(super) const INFO: u32 = 6;
    pub(super) const GO: u32 = 7;
    pub(super) const STRUCTURED_REPLY: u32 = 8;
    pub(super) const LIST_META_CONTEXT: u32 = 9;
    pub(super) const SET_META_CONTEXT: u32 = 10;
}

mod answer {
    pub(super) const ACK: u32 = 1;
    pub(super) const SERVER: u32 = 2;
    pub(super) const INFO: u32 = 3;
    pub(super) const META_CONTEXT: u32 = 4;
    pub(super) const UNSUPPORTED: u32 = 0x8000_0001;
    pub(super) const INVALID: u32 = 0x8000_0003;
    pub(super) const UNKNOWN: u32 = 0x8000_0006;
}

mod information {
    pub(super) const EXPORT: u16 = 0;
    pub(super) const NAME: u16 = 1;
    pub(super) const DESCRIPTION: u16 = 2;
    pub(super) const BLOCK_SIZE: u16 = 3;
}

/// What was agreed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Terms {
    /// The client knows the block lengths and has to keep to them. Another may access any bytes.
    pub knows_blocks: bool,
    /// The client takes structured replies.
    pub structured: bool,
    /// It may ask for block status in the context `base:allocation`, and takes structured replies.
    pub allocation: bool,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// To be sent first.
    pub reply: Vec<u8>,
    /// Afterwards.
    pub then: Then,
}

/// What comes after a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Bring exactly this many bytes to [`Handshake::received`].
    Read(usize),
    /// The handshake is over; requests follow.
    Transmit(Terms),
    /// Close the connection.
    Close,
}

/// What the next bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    ClientFlags,
    OptionHeader,
    OptionData { option: u32 },
    Over,
}

/// A handshake with one client.
///
/// ```
/// use lunette_nbd::{Export, Features, Handshake, Terms, Then};
///
/// let export = Export::new(("disk", "a disk"), 1 << 30, (512, 4096), Features::default())?;
/// let (mut handshake, greeting) = Handshake::begin(&export);
/// assert_eq!(&greeting.reply[..8], b"NBDMAGIC");
/// assert_eq!(greeting.then, Then::Read(4));
/// // Fixed newstyle without zeroes, then NBD_OPT_EXPORT_NAME with the empty name.
/// assert_eq!(handshake.received(&[0, 0, 0, 3]).then, Then::Read(16));
/// let end = handshake.received(b"IHAVEOPT\0\0\0\x01\0\0\0\0");
/// assert_eq!(end.reply[..8], (1u64 << 30).to_be_bytes());
/// assert_eq!(end.then, Then::Transmit(Terms::default()));
/// # Ok::<(), lunette_nbd::ExportError>(())
/// ```
#[derive(Debug)]
pub struct Handshake<'a> {
    export: &'a Export,
    state: State,
    options: u32,
    is_fixed: bool,
    no_zeroes: bool,
    terms: Terms,
}

impl<'a> Handshake<'a> {
    /// Begins with the greeting.
    pub fn begin(export: &'a Export) -> (Handshake<'a>, Step) {
        let mut reply = GREETING_MAGIC.to_be_bytes().to_vec();
        reply.extend(OPTION_MAGIC.to_be_bytes());
        reply.extend((FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
        let (state, terms) = (State::ClientFlags, Terms::default());
        let handshake = Handshake { export, state, options: 0, is_fixed: false, no_zeroes: false, terms };
        (handshake, Step { reply, then: Then::Read(CLIENT_FLAGS_BYTES) })
    }

    /// Takes what the last step wanted to have read. Bytes of another number end the handshake.
    pub fn received(&mut self, bytes: &[u8]) -> Step {
        match self.state {
            State::ClientFlags => self.client_flags(bytes),
            State::OptionHeader => self.option_header(bytes),
            State::OptionData { option } => self.option(option, bytes),
            State::Over => self.close(),
        }
    }

    fn client_flags(&mut self, bytes: &[u8]) -> Step {
        let known = u32::from(FIXED_NEWSTYLE | NO_ZEROES);
        let flags = bytes.try_into().map(u32::from_be_bytes);
        let Some(flags) = flags.ok().filter(|flags| flags & !known == 0) else { return self.close() };
        self.is_fixed = flags & u32::from(FIXED_NEWSTYLE) != 0;
        self.no_zeroes = flags & u32::from(NO_ZEROES) != 0;
        self.next_option(Vec::new())
    }

    fn next_option(&mut self, reply: Vec<u8>) -> Step {
        self.state = State::OptionHeader;
        Step { reply, then: Then::Read(OPTION_HEADER_BYTES) }
    }

    fn option_header(&mut self, bytes: &[u8]) -> Step {
        let mut fields = Fields(bytes);
        let (magic, option, length) = (fields.u64(), fields.u32(), fields.u32());
        let (Some(OPTION_MAGIC), Some(option), Some(length)) = (magic, option, length) else {
            return self.close();
        };
        self.options += 1;
        // Before there were replies to options there was only one of them.
        let is_allowed = self.is_fixed || option == option::EXPORT_NAME;
        if !is_allowed || length > OPTION_BYTES_MAX || self.options > OPTIONS_MAX {
            return self.close();
        }
        if length == 0 {
            return self.option(option, &[]);
        }
        self.state = State::OptionData { option };
        // Bounded just above.
        Step { reply: Vec::new(), then: Then::Read(length as usize) }
    }

    fn option(&mut self, option: u32, data: &[u8]) -> Step {
        match option {
            option::EXPORT_NAME => self.export_name(data),
            option::ABORT => Step { then: Then::Close, ..self.answered(option, answer::ACK) },
            option::LIST if data.is_empty() => self.list(),
            option::LIST => self.answered(option, answer::INVALID),
            option::INFO | option::GO => self.go(option, data),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.terms.structured = true;
                self.answered(option, answer::ACK)
            }
            option::STRUCTURED_REPLY => self.answered(option, answer::INVALID),
            option::LIST_META_CONTEXT => self.list_contexts(data),
            option::SET_META_CONTEXT => self.set_contexts(data),
            _ => self.answered(option, answer::UNSUPPORTED),
        }
    }

    fn export_name(&mut self, name: &[u8]) -> Step {
        if !self.export.is_called(name) {
            // This option has no other way to say so.
            return self.close();
        }
        let mut reply = self.size_and_flags();
        if !self.no_zeroes {
            reply.resize(reply.len() + ZEROES_BYTES, 0);
        }
        self.state = State::Over;
        Step { reply, then: Then::Transmit(self.terms) }
    }

    /// The export's size and its transmission flags.
    fn size_and_flags(&self) -> Vec<u8> {
        let flags = self.export.flags(self.terms.structured);
        [&self.export.size_bytes().to_be_bytes()[..], &flags.to_be_bytes()].concat()
    }

    fn list(&mut self) -> Step {
        let (name, description) = (self.export.name().as_bytes(), self.export.description().as_bytes());
        // Bounded when the export was made.
        let length = (name.len() as u32).to_be_bytes();
        let mut reply = answer(option::LIST, answer::SERVER, &[&length, name, description].concat());
        reply.extend(answer(option::LIST, answer::ACK, &[]));
        self.next_option(reply)
    }

    /// `NBD_OPT_INFO` and `NBD_OPT_GO`.
    fn go(&mut self, option: u32, data: &[u8]) -> Step {
        let Some((name, wanted)) = asked(data) else { return self.answered(option, answer::INVALID) };
        if !self.export.is_called(name) {
            return self.answered(option, answer::UNKNOWN);
        }
        let export = self.export;
        let mut reply = information(option, information::EXPORT, &self.size_and_flags());
        let mut knows_blocks = false;
        let asks = |kind| wanted.chunks_exact(2).any(|pair| pair == u16::to_be_bytes(kind));
        if asks(information::NAME) {
            reply.extend(information(option, information::NAME, export.name().as_bytes()));
        }
        if asks(information::DESCRIPTION) {
            reply.extend(information(option, information::DESCRIPTION, export.description().as_bytes()));
        }
        if asks(information::BLOCK_SIZE) {
            let sizes = export.block_sizes().map(u32::to_be_bytes).concat();
            reply.extend(information(option, information::BLOCK_SIZE, &sizes));
            knows_blocks = true;
        }
        reply.extend(answer(option, answer::ACK, &[]));
        if option == option::INFO {
            return self.next_option(reply);
        }
        self.state = State::Over;
        Step { reply, then: Then::Transmit(Terms { knows_blocks, ..self.terms }) }
    }

    fn list_contexts(&mut self, data: &[u8]) -> Step {
        const OPTION: u32 = option::LIST_META_CONTEXT;
        match Question::decode(data) {
            None => self.answered(OPTION, answer::INVALID),
            Some(question) if !self.export.is_called(question.name) => self.answered(OPTION, answer::UNKNOWN),
            // Numbers in lists are reserved.
            Some(question) => self.tell_contexts(OPTION, question.lists_allocation(), 0),
        }
    }

    /// What was selected before is not any more, also where this fails. There is one export, so whatever it is called here, it is the one
    /// that the client will have.
    fn set_contexts(&mut self, data: &[u8]) -> Step {
        const OPTION: u32 = option::SET_META_CONTEXT;
        self.terms.allocation = false;
        match Question::decode(data) {
            Some(question) if self.terms.structured => {
                if !self.export.is_called(question.name) {
                    return self.answered(OPTION, answer::UNKNOWN);
                }
                self.terms.allocation = question.selects_allocation();
                self.tell_contexts(OPTION, self.terms.allocation, ALLOCATION_ID)
            }
            _ => self.answered(OPTION, answer::INVALID),
        }
    }

    fn tell_contexts(&mut self, option: u32, has_allocation: bool, number: u32) -> Step {
        let context = [&number.to_be_bytes()[..], ALLOCATION].concat();
        let mut reply =
            if has_allocation { answer(option, answer::META_CONTEXT, &context) } else { Vec::new() };
        reply.extend(answer(option, answer::ACK, &[]));
        self.next_option(reply)
    }

    fn answered(&mut self, option: u32, kind: u32) -> Step {
        self.next_option(answer(option, kind, &[]))
    }

    fn close(&mut self) -> Step {
        self.state = State::Over;
        Step { reply: Vec::new(), then: Then::Close }
    }
}

/// Name and information requests of `NBD_OPT_INFO` and `NBD_OPT_GO`.
fn asked(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let requests = usize::from(fields.u16()?);
    (fields.0.len() == 2 * requests).then_some((name, fields.0))
}

/// A reply to an option.
fn answer(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut reply = REPLY_MAGIC.to_be_bytes().to_vec();
    // What is told is made of strings that are bounded when the export is made.
    for field in [option, kind, data.len() as u32] {
        reply.extend(field.to_be_bytes());
    }
    reply.extend(data);
    reply
}

/// A reply that tells something about the export.
fn information(option: u32, kind: u16, payload: &[u8]) -> Vec<u8> {
    answer(option, answer::INFO, &[&kind.to_be_bytes(), payload].concat())
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
