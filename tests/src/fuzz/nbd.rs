//! An NBD client's bytes: a handshake that ends, asks for no more than a bounded number of bytes at a time and says no more than
//! that needs; then requests, each of which is within the export or has an error that the protocol knows.

use lunette_nbd::{
    Allocation, Cookie, Errno, Export, Extents, Features, Handshake, NAME_BYTES_MAX, OPTIONS_MAX, Outcome,
    PAYLOAD_BYTES_MAX, REQUEST_BYTES, Refusal, Request, Span, Step, Terms, Then, Work, reply,
};

use super::Input;

const SIZE_BYTES: u64 = 1 << 20;
const BLOCK_BYTES: u32 = 512;
/// No option has longer data: a name and a few queries.
const READ_BYTES_MAX: usize = 4 * NAME_BYTES_MAX;
/// More than everything that one option is answered with: each information with a name or a description.
const REPLY_BYTES_MAX: usize = 3 * (NAME_BYTES_MAX + 1024);

/// Feeds a handshake and what follows it.
///
/// # Panics
/// The server does what it must not do.
pub fn nbd(data: &[u8]) {
    let mut input = Input(data);
    let features = input.byte();
    let features = Features {
        read_only: features & 1 != 0,
        rotational: features & 2 != 0,
        trim: features & 4 != 0,
        multi_connection: features & 8 != 0,
    };
    let export = Export::new(("disk", "a disk"), SIZE_BYTES, (BLOCK_BYTES, 4096), features);
    let export = export.expect("a good export");
    if let Some(terms) = shake_hands(&export, &mut input) {
        while !input.is_empty() {
            request(&export, terms, &input.array());
        }
    }
}

fn shake_hands(export: &Export, input: &mut Input<'_>) -> Option<Terms> {
    let (mut handshake, mut step) = Handshake::begin(export);
    // The flags, then a header and data of each option, and one that is too much.
    for _ in 0..=2 * OPTIONS_MAX + 2 {
        let Step { reply, then } = step;
        assert!(reply.len() <= REPLY_BYTES_MAX, "{} bytes of reply", reply.len());
        match then {
            Then::Transmit(terms) => return Some(terms),
            Then::Close => return None,
            Then::Read(length) => {
                assert!((1..=READ_BYTES_MAX).contains(&length), "{length} bytes are asked for");
                let mut bytes = input.bytes(length).to_vec();
                bytes.resize(length, 0);
                step = handshake.received(&bytes);
            }
        }
    }
    panic!("a handshake without an end");
}

fn request(export: &Export, terms: Terms, bytes: &[u8; REQUEST_BYTES]) {
    let Some(request) = Request::decode(bytes) else { return };
    assert!(request.payload_bytes() <= request.memory_bytes() && request.memory_bytes() <= PAYLOAD_BYTES_MAX);
    let judged = request.judge(export, terms);
    check_reply(terms, bytes, judged);
    let is_change = matches!(judged, Ok(Work::Write { .. } | Work::Trim { .. } | Work::WriteZeroes { .. }));
    assert!(!(is_change && export.features().read_only), "a change of what is read-only");
    let span = match judged {
        Ok(Work::Read(span) | Work::Write { span, .. }) => {
            assert!(span.length_bytes <= request.memory_bytes());
            span
        }
        Ok(Work::Trim { span, .. } | Work::WriteZeroes { span, .. } | Work::BlockStatus { span, .. }) => span,
        Ok(Work::Flush | Work::Disconnect) | Err(_) => return,
    };
    let Span { offset, length_bytes } = span;
    assert!(offset + u64::from(length_bytes) <= SIZE_BYTES);
    let is_whole = offset.is_multiple_of(BLOCK_BYTES.into()) && length_bytes.is_multiple_of(BLOCK_BYTES);
    assert!(is_whole || !terms.knows_blocks);
}

/// A request that can be answered is, as it was agreed, and by its name.
fn check_reply(terms: Terms, request: &[u8; REQUEST_BYTES], judged: Result<Work, Errno>) {
    let cookie = Cookie(u64::from_be_bytes(std::array::from_fn(|index| request[8 + index])));
    let outcome = match judged {
        Ok(Work::Read(Span { offset, length_bytes })) => {
            Ok(Outcome::Data { offset, bytes: vec![0; length_bytes as usize] })
        }
        Ok(Work::BlockStatus { span, only_first }) => {
            assert!(terms.allocation && terms.structured, "nobody has asked for it");
            let mut extents = Extents::new(span, only_first);
            let pieces = [(512, Allocation::Data), (cookie.0, Allocation::Hole), (1, Allocation::EmptyHole)];
            pieces.into_iter().for_each(|(length, allocation)| extents.push(length, allocation));
            Ok(Outcome::Extents(extents))
        }
        Ok(_) => Ok(Outcome::Done),
        Err(errno) => Err(Refusal::from(errno)),
    };
    let header = reply(terms, cookie, outcome.as_ref());
    assert_eq!(header[8..16], request[8..16], "the reply has the request's cookie");
    if !terms.structured {
        assert_eq!((header.len(), header[4..8] == [0; 4]), (16, judged.is_ok()));
        return;
    }
    let rest = match &outcome {
        Ok(Outcome::Data { bytes, .. }) => bytes.len(),
        _ => 0,
    };
    let length = u32::from_be_bytes(std::array::from_fn(|index| header[16 + index])) as usize;
    assert_eq!(header.len() + rest, 20 + length, "a chunk is as long as it says");
    assert_eq!(header[6] & 0x80 != 0, judged.is_err(), "only errors are errors");
}
