//! Tests of the handshake: the bytes of each option, and clients that do not keep to the protocol.

use lunette_cases::cases;
use proptest::prelude::*;

use super::*;
use crate::Features;

const FIXED: [u8; 4] = [0, 0, 0, 3];

fn export() -> Export {
    Export::new(("disk", "a disk"), 0x1234_5600, (512, 4096), Features::default()).unwrap()
}

fn header(option: u32, length: u32) -> Vec<u8> {
    [&b"IHAVEOPT"[..], &option.to_be_bytes(), &length.to_be_bytes()].concat()
}

/// Sends an option after the flags.
fn ask<'a>(export: &'a Export, flags: [u8; 4], option: u32, data: &[u8]) -> (Handshake<'a>, Step) {
    let (mut handshake, _) = Handshake::begin(export);
    handshake.received(&flags);
    let mut step = handshake.received(&header(option, data.len() as u32));
    if !data.is_empty() && step.then != Then::Close {
        assert_eq!(step, Step { reply: vec![], then: Then::Read(data.len()) });
        step = handshake.received(data);
    }
    (handshake, step)
}

/// `NBD_OPT_GO`'s data.
fn wish(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = [&(name.len() as u32).to_be_bytes(), name.as_bytes()].concat();
    data.extend((wanted.len() as u16).to_be_bytes());
    data.extend(wanted.iter().flat_map(|kind| kind.to_be_bytes()));
    data
}

/// Kind and data of each reply to an option.
fn replies(option: u32, mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let mut fields = Fields(bytes);
        assert_eq!((fields.u64(), fields.u32()), (Some(REPLY_MAGIC), Some(option)));
        let (kind, length) = (fields.u32().unwrap(), fields.u32().unwrap());
        all.push((kind, fields.take(length as usize).unwrap().to_vec()));
        bytes = fields.0;
    }
    all
}

#[test]
fn the_greeting_is_newstyle() {
    let export = export();
    let (_, step) = Handshake::begin(&export);
    assert_eq!(step, Step { reply: b"NBDMAGICIHAVEOPT\0\x03".to_vec(), then: Then::Read(4) });
}

#[test]
fn go_tells_what_was_asked_for_and_ends_the_handshake() {
    let export = export();
    let (mut handshake, step) = ask(&export, FIXED, option::GO, &wish("disk", &[3, 2, 1, 999]));
    assert_eq!(step.then, Then::Transmit(Terms { knows_blocks: true, ..Terms::default() }));
    let expected = vec![
        (answer::INFO, vec![0, 0, 0, 0, 0, 0, 0x12, 0x34, 0x56, 0, 0x08, 0x4d]),
        (answer::INFO, b"\0\x01disk".to_vec()),
        (answer::INFO, b"\0\x02a disk".to_vec()),
        (answer::INFO, vec![0, 3, 0, 0, 2, 0, 0, 0, 0x10, 0, 2, 0, 0, 0]),
        (answer::ACK, vec![]),
    ];
    assert_eq!(replies(option::GO, &step.reply), expected);
    assert_eq!(handshake.received(&header(option::LIST, 0)).then, Then::Close, "it is over");
}

#[test]
fn info_goes_on_and_the_empty_name_is_the_export() {
    let export = export();
    let (mut handshake, step) = ask(&export, FIXED, option::INFO, &wish("", &[]));
    assert_eq!(step.then, Then::Read(16));
    assert_eq!(replies(option::INFO, &step.reply).len(), 2);
    let step = handshake.received(&header(option::LIST, 0));
    let expected = vec![(answer::SERVER, b"\0\0\0\x04diska disk".to_vec()), (answer::ACK, vec![])];
    assert_eq!(replies(option::LIST, &step.reply), expected);
    let step = handshake.received(&header(option::ABORT, 0));
    assert_eq!((replies(option::ABORT, &step.reply), step.then), (vec![(answer::ACK, vec![])], Then::Close));
}

#[test]
fn export_name_answers_without_a_header() {
    let export = export();
    let (_, step) = ask(&export, FIXED, option::EXPORT_NAME, b"disk");
    assert_eq!(step.reply, [0, 0, 0, 0, 0x12, 0x34, 0x56, 0, 0x08, 0x4d]);
    assert_eq!(step.then, Then::Transmit(Terms::default()));
    let (_, step) = ask(&export, [0; 4], option::EXPORT_NAME, b"");
    assert_eq!((step.reply.len(), step.then), (134, Then::Transmit(Terms::default())), "with zeroes");
    let (_, step) = ask(&export, FIXED, option::EXPORT_NAME, b"other");
    assert_eq!(step, Step { reply: vec![], then: Then::Close });
}

#[test]
fn what_cannot_be_done_is_refused_and_the_client_may_go_on() {
    let export = export();
    let answered = |option, data: &[u8]| {
        let (_, step) = ask(&export, FIXED, option, data);
        assert_eq!(step.then, Then::Read(16));
        replies(option, &step.reply)
    };
    let refusal = |kind| vec![(kind, vec![])];
    for option in [5, 11, 77] {
        assert_eq!(answered(option, &[]), refusal(answer::UNSUPPORTED));
    }
    assert_eq!(answered(option::LIST, &[0]), refusal(answer::INVALID));
    assert_eq!(answered(option::STRUCTURED_REPLY, &[0]), refusal(answer::INVALID));
    assert_eq!(answered(option::GO, &wish("other", &[])), refusal(answer::UNKNOWN));
    let long = [&u32::MAX.to_be_bytes()[..], b"disk\0\0"].concat();
    for data in [&[][..], &[0, 0], &long, &wish("disk", &[3])[..9], &[&wish("", &[])[..], &[0]].concat()] {
        assert_eq!(answered(option::GO, data), refusal(answer::INVALID), "{data:?}");
    }
}

/// The data of options about contexts.
fn question(name: &str, query: &str) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
    [string(name), 1u32.to_be_bytes().to_vec(), string(query)].concat()
}

/// Sends another option to a handshake that goes on.
fn next(handshake: &mut Handshake<'_>, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut step = handshake.received(&header(option, data.len() as u32));
    if step.then == Then::Read(data.len()) && !data.is_empty() {
        step = handshake.received(data);
    }
    assert_eq!(step.then, Then::Read(OPTION_HEADER_BYTES));
    replies(option, &step.reply)
}

#[test]
fn structured_replies_and_their_context_are_there_for_who_asks() {
    let export = export();
    let (mut handshake, step) = ask(&export, FIXED, option::STRUCTURED_REPLY, &[]);
    assert_eq!(replies(option::STRUCTURED_REPLY, &step.reply), [(answer::ACK, vec![])]);
    let selected = next(&mut handshake, option::SET_META_CONTEXT, &question("disk", "base:allocation"));
    let context = b"\0\0\0\x01base:allocation".to_vec();
    assert_eq!(selected, [(answer::META_CONTEXT, context), (answer::ACK, vec![])]);
    let go = wish("", &[]);
    handshake.received(&header(option::GO, go.len() as u32));
    let step = handshake.received(&go);
    let terms = Terms { knows_blocks: false, structured: true, allocation: true };
    assert_eq!(step.then, Then::Transmit(terms));
    let told = replies(option::GO, &step.reply);
    assert_eq!(told[0].1[10..], [0x08, 0xcd], "reads in one piece are offered now");
}

#[test]
fn contexts_are_listed_with_and_without_queries_and_without_a_number() {
    let export = export();
    let listed = |data: &[u8]| {
        let (_, step) = ask(&export, FIXED, option::LIST_META_CONTEXT, data);
        replies(option::LIST_META_CONTEXT, &step.reply)
    };
    let found = [(answer::META_CONTEXT, b"\0\0\0\0base:allocation".to_vec()), (answer::ACK, vec![])];
    let all = b"\0\0\0\x04disk\0\0\0\0";
    for data in [&all[..], &question("", "base:"), &question("disk", "base:allocation")] {
        assert_eq!(listed(data), found);
    }
    assert_eq!(listed(&question("disk", "qemu:dirty-bitmap:a")), [(answer::ACK, vec![])]);
    assert_eq!(listed(&question("other", "base:")), [(answer::UNKNOWN, vec![])]);
    assert_eq!(listed(&all[..11]), [(answer::INVALID, vec![])]);
}

#[test]
fn the_last_selection_holds_also_if_it_fails() {
    let export = export();
    let (mut handshake, _) = ask(&export, FIXED, option::SET_META_CONTEXT, &question("", "base:allocation"));
    assert!(!handshake.terms.allocation, "not without structured replies");
    next(&mut handshake, option::STRUCTURED_REPLY, &[]);
    let good = question("", "base:allocation");
    for (bad, answered) in [
        (question("other", "base:allocation"), answer::UNKNOWN),
        (question("", "base:"), answer::ACK),
        (good[..good.len() - 1].to_vec(), answer::INVALID),
    ] {
        next(&mut handshake, option::SET_META_CONTEXT, &good);
        assert!(handshake.terms.allocation);
        assert_eq!(next(&mut handshake, option::SET_META_CONTEXT, &bad), [(answered, vec![])]);
        assert!(!handshake.terms.allocation);
    }
}

#[test]
fn who_does_not_keep_to_the_protocol_is_disconnected() {
    let export = export();
    let closed = Step { reply: vec![], then: Then::Close };
    assert_eq!(Handshake::begin(&export).0.received(&[0, 0, 0, 4]), closed, "a flag that nobody knows");
    assert_eq!(Handshake::begin(&export).0.received(&[0, 0, 0]), closed);
    assert_eq!(ask(&export, [0; 4], option::GO, &wish("", &[])).1, closed, "not in the first newstyle");
    let (mut handshake, _) = Handshake::begin(&export);
    handshake.received(&FIXED);
    assert_eq!(handshake.received(&header(option::GO, OPTION_BYTES_MAX + 1)), closed, "too long");
    let (mut handshake, _) = Handshake::begin(&export);
    handshake.received(&FIXED);
    assert_eq!(handshake.received(b"NOOPTION\0\0\0\x03\0\0\0\0"), closed);
    let (mut handshake, _) = Handshake::begin(&export);
    handshake.received(&FIXED);
    for _ in 0..OPTIONS_MAX {
        assert_eq!(handshake.received(&header(option::LIST, 0)).then, Then::Read(16));
    }
    assert_eq!(handshake.received(&header(option::LIST, 0)), closed, "it never ends");
}

proptest! {
    #![proptest_config(cases(256))]

    /// Whatever comes, the handshake ends after a bounded number of bytes, and never wants more than an option may have.
    #[test]
    fn any_bytes_end_it(bytes in prop::collection::vec(any::<u8>(), 0..4096), is_polite in any::<bool>()) {
        let export = export();
        let (mut handshake, mut step) = Handshake::begin(&export);
        let mut left = &bytes[..];
        let mut turns = 0;
        while let Then::Read(length) = step.then {
            prop_assert!(length <= OPTION_BYTES_MAX as usize && turns <= 2 * OPTIONS_MAX + 2);
            turns += 1;
            let Some((taken, rest)) = left.split_at_checked(length) else { break };
            left = rest;
            let mut taken = taken.to_vec();
            if is_polite && length == 4 {
                taken = FIXED.to_vec();
            } else if is_polite && length == OPTION_HEADER_BYTES {
                taken[..8].copy_from_slice(b"IHAVEOPT");
                let option = taken[11] % 12;
                taken[8..15].copy_from_slice(&[0, 0, 0, option, 0, 0, 0]);
            }
            step = handshake.received(&taken);
        }
        if step.then == Then::Close {
            prop_assert_eq!(handshake.received(&[]).then, Then::Close);
        }
    }
}
