//! An NBD client's bytes: a handshake that ends, asks for no more than a bounded number of bytes at a time and says no more than
//! that needs; then requests, each of which is within the export or has an error that the protocol knows.

use lunette_nbd::{
    Export, Features, Handshake, NAME_BYTES_MAX, OPTIONS_MAX, PAYLOAD_BYTES_MAX, REQUEST_BYTES, Request,
    Span, Step, Terms, Then, Work, reply,
};

use super::Input;

const SIZE_BYTES: u64 = 1 << 20;
const BLOCK_BYTES: u32 = 512;
/// More than any option's data: a name and the informations that it may ask for.
const READ_BYTES_MAX: usize = NAME_BYTES_MAX + 1024;
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
    let header = reply(request.cookie, judged.map(drop));
    assert_eq!(header[8..], bytes[8..16], "the reply has the request's cookie");
    assert_eq!(header[4..8] == [0; 4], judged.is_ok());
    let is_change = matches!(judged, Ok(Work::Write { .. } | Work::Trim { .. } | Work::WriteZeroes { .. }));
    assert!(!(is_change && export.features().read_only), "a change of what is read-only");
    let span = match judged {
        Ok(Work::Read(span) | Work::Write { span, .. }) => {
            assert!(span.length_bytes <= request.memory_bytes());
            span
        }
        Ok(Work::Trim { span, .. } | Work::WriteZeroes { span, .. }) => span,
        Ok(Work::Flush | Work::Disconnect) | Err(_) => return,
    };
    let Span { offset, length_bytes } = span;
    assert!(offset + u64::from(length_bytes) <= SIZE_BYTES);
    let is_whole = offset.is_multiple_of(BLOCK_BYTES.into()) && length_bytes.is_multiple_of(BLOCK_BYTES);
    assert!(is_whole || !terms.knows_blocks);
}
