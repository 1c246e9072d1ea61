//! SendTargets in all its forms, long answers, and what else a Text Request may and may not say.

use lunette_cases::cases;
use proptest::prelude::*;

use super::*;

const TAG: InitiatorTaskTag = InitiatorTaskTag(7);

fn request(is_final: bool, is_continued: bool, target_transfer_tag: TargetTransferTag) -> TextRequest {
    TextRequest {
        is_final,
        is_continued,
        initiator_task_tag: TAG,
        target_transfer_tag,
        ..TextRequest::default()
    }
}

fn first() -> TextRequest {
    request(true, false, TargetTransferTag::RESERVED)
}

fn targets() -> Vec<(String, Vec<String>)> {
    let addresses = |port: u16| vec![format!("127.0.0.1:{port},1"), format!("[::1]:{port},1")];
    vec![
        ("iqn.2026-11.io.lunette:a".to_owned(), addresses(3260)),
        ("iqn.2026-11.io.lunette:b".to_owned(), addresses(3261)),
    ]
}

const A: &str =
    "TargetName=iqn.2026-11.io.lunette:a\0TargetAddress=127.0.0.1:3260,1\0TargetAddress=[::1]:3260,1\0";
const B: &str =
    "TargetName=iqn.2026-11.io.lunette:b\0TargetAddress=127.0.0.1:3261,1\0TargetAddress=[::1]:3261,1\0";

fn discovery(targets: &[(String, Vec<String>)]) -> TextFacts<'_> {
    TextFacts {
        session_type: SessionType::Discovery,
        target: None,
        targets,
        max_send_data_segment_length: 8192,
        declares: None,
    }
}

fn normal(targets: &[(String, Vec<String>)]) -> TextFacts<'_> {
    TextFacts {
        session_type: SessionType::Normal,
        target: Some("iqn.2026-11.io.lunette:b"),
        targets,
        max_send_data_segment_length: 8192,
        declares: None,
    }
}

fn whole(text: &str) -> TextStep {
    TextStep::Reply {
        is_final: true,
        is_continued: false,
        target_transfer_tag: TargetTransferTag::RESERVED,
        text: text.as_bytes().to_vec(),
        max_send_data_segment_length: None,
        declared: None,
    }
}

fn ask(facts: &TextFacts<'_>, text: &[u8]) -> TextStep {
    TextNegotiation::default().step(&first(), text, facts)
}

#[test]
fn a_discovery_session_sees_all_or_the_named_one() {
    let targets = targets();
    let facts = discovery(&targets);
    assert_eq!(ask(&facts, b"SendTargets=All\0"), whole(&format!("{A}{B}")));
    assert_eq!(ask(&facts, b"SendTargets=iqn.2026-11.io.lunette:B\0"), whole(B));
    assert_eq!(ask(&facts, b"SendTargets=iqn.2026-11.io.lunette:c\0"), whole(""));
    assert_eq!(ask(&facts, b"SendTargets=\0"), whole(""));
    assert_eq!(ask(&discovery(&[]), b"SendTargets=All\0"), whole(""));
}

#[test]
fn a_normal_session_sees_its_own_target_alone() {
    let targets = targets();
    let facts = normal(&targets);
    assert_eq!(ask(&facts, b"SendTargets=\0"), whole(B));
    assert_eq!(ask(&facts, b"SendTargets=iqn.2026-11.io.lunette:b\0"), whole(B));
    assert_eq!(ask(&facts, b"SendTargets=iqn.2026-11.io.lunette:a\0"), whole(""));
    assert_eq!(ask(&facts, b"SendTargets=All\0"), whole(""));
}

#[test]
fn a_value_that_is_neither_name_nor_all_is_a_protocol_error() {
    let targets = targets();
    for text in
        [&b"SendTargets=Alle\0"[..], b"SendTargets=A\0", b"SendTargets=all\0", b"SendTargets=iqn. a\0"]
    {
        assert_eq!(ask(&normal(&targets), text), TextStep::Reject(RejectReason::ProtocolError));
        assert_eq!(ask(&discovery(&targets), text), TextStep::Reject(RejectReason::ProtocolError));
    }
}

#[test]
fn send_targets_stands_alone() {
    let targets = targets();
    for text in [
        &b"SendTargets=All\0SendTargets=All\0"[..],
        b"SendTargets=All\0X-a=b\0",
        b"MaxRecvDataSegmentLength=512\0SendTargets=\0",
    ] {
        assert_eq!(ask(&discovery(&targets), text), TextStep::Reject(RejectReason::ProtocolError));
        assert_eq!(ask(&normal(&targets), text), TextStep::Reject(RejectReason::ProtocolError));
    }
}

#[test]
fn send_targets_is_the_only_request_of_its_negotiation() {
    let targets = targets();
    let facts = normal(&targets);
    let mut negotiation = TextNegotiation::default();
    let open = request(false, false, TargetTransferTag::RESERVED);
    let TextStep::Reply { target_transfer_tag, .. } = negotiation.step(&open, b"X-a=1\0", &facts) else {
        panic!("the negotiation goes on");
    };
    let second = request(true, false, target_transfer_tag);
    assert_eq!(
        negotiation.step(&second, b"SendTargets=\0", &facts),
        TextStep::Reject(RejectReason::ProtocolError)
    );
}

#[test]
fn a_discovery_session_takes_nothing_but_send_targets() {
    for text in [&b"MaxRecvDataSegmentLength=512\0"[..], b"X-com.example.a=b\0", b"InitiatorAlias=me\0"] {
        assert_eq!(ask(&discovery(&[]), text), TextStep::Reject(RejectReason::ProtocolError));
    }
}

#[test]
fn a_declared_length_holds_once_the_negotiation_is_over() {
    let facts = normal(&[]);
    let mut negotiation = TextNegotiation::default();
    let open = request(false, false, TargetTransferTag::RESERVED);
    let TextStep::Reply { is_final: false, target_transfer_tag, max_send_data_segment_length: None, .. } =
        negotiation.step(&open, b"MaxRecvDataSegmentLength=65536\0", &facts)
    else {
        panic!("the negotiation goes on");
    };
    assert_ne!(target_transfer_tag, TargetTransferTag::RESERVED);
    let TextStep::Reply { is_final: true, max_send_data_segment_length, .. } =
        negotiation.step(&request(true, false, target_transfer_tag), b"", &facts)
    else {
        panic!("the negotiation ends");
    };
    assert_eq!(max_send_data_segment_length, Some(65536));
}

/// 6.4, 13.12: what this side declares anew goes into the next negotiation, once, and holds when that is over.
#[test]
fn this_side_declares_another_length_when_the_initiator_negotiates() {
    let targets = targets();
    let facts = TextFacts { declares: Some(65536), ..normal(&targets) };
    let own = "MaxRecvDataSegmentLength=65536\0";
    let TextStep::Reply { text, is_final: true, declared, .. } = ask(&facts, b"") else { panic!("no reply") };
    assert_eq!((text.as_slice(), declared), (own.as_bytes(), Some(65536)));
    let both = ask(&facts, b"MaxRecvDataSegmentLength=512\0X-a=1\0");
    let TextStep::Reply { text, max_send_data_segment_length, declared, .. } = both else {
        panic!("no reply")
    };
    assert_eq!(text, format!("X-a=NotUnderstood\0{own}").as_bytes());
    assert_eq!((max_send_data_segment_length, declared), (Some(512), Some(65536)));
    let mut negotiation = TextNegotiation::default();
    let open = request(false, false, TargetTransferTag::RESERVED);
    let TextStep::Reply { target_transfer_tag, text, declared: None, .. } =
        negotiation.step(&open, b"", &facts)
    else {
        panic!("the negotiation goes on");
    };
    assert_eq!(text, own.as_bytes());
    let last = negotiation.step(&request(true, false, target_transfer_tag), b"", &facts);
    let TextStep::Reply { text, declared, .. } = last else { panic!("the negotiation ends") };
    assert_eq!((text, declared), (Vec::new(), Some(65536)), "said once");
    assert_eq!(ask(&facts, b"SendTargets=\0"), whole(B), "a list of targets is nothing else (appendix C)");
}

#[test]
fn a_declared_length_out_of_range_is_refused() {
    for value in ["511", "16777216", "x"] {
        let text = format!("MaxRecvDataSegmentLength={value}\0");
        assert_eq!(ask(&normal(&[]), text.as_bytes()), TextStep::Reject(RejectReason::ProtocolError));
    }
}

#[test]
fn keys_of_the_login_are_rejected_and_unknown_ones_not_understood() {
    assert_eq!(
        ask(
            &normal(&[]),
            b"MaxBurstLength=512\0X-com.example.a=b\0InitiatorAlias=me\0SendTargetsPlease=All\0"
        ),
        whole("MaxBurstLength=Reject\0X-com.example.a=NotUnderstood\0SendTargetsPlease=NotUnderstood\0")
    );
}

#[test]
fn a_key_twice_a_targets_key_and_an_answers_word_are_protocol_errors() {
    for text in [
        &b"X-a=1\0X-a=1\0"[..],
        b"TargetAlias=x\0",
        b"X-a=Reject\0",
        b"X-a=NotUnderstood\0",
        b"MaxBurstLength=Irrelevant\0",
        b"no equals sign\0",
        b"unterminated=1",
    ] {
        assert_eq!(ask(&normal(&[]), text), TextStep::Reject(RejectReason::ProtocolError));
    }
}

#[test]
fn a_key_twice_is_found_across_requests() {
    let facts = normal(&[]);
    let mut negotiation = TextNegotiation::default();
    let open = request(false, false, TargetTransferTag::RESERVED);
    let TextStep::Reply { target_transfer_tag, .. } = negotiation.step(&open, b"X-a=1\0", &facts) else {
        panic!("the negotiation goes on");
    };
    let again = request(true, false, target_transfer_tag);
    assert_eq!(negotiation.step(&again, b"X-a=2\0", &facts), TextStep::Reject(RejectReason::ProtocolError));
    // It is gone: its tag names nothing any more.
    assert_eq!(negotiation.step(&again, b"", &facts), TextStep::Reject(RejectReason::ProtocolError));
}

#[test]
fn a_stale_tag_or_a_strangers_task_is_refused() {
    let facts = normal(&[]);
    let mut negotiation = TextNegotiation::default();
    let open = request(false, false, TargetTransferTag::RESERVED);
    let TextStep::Reply { target_transfer_tag, .. } = negotiation.step(&open, b"", &facts) else {
        panic!("the negotiation goes on");
    };
    let other =
        TextRequest { initiator_task_tag: InitiatorTaskTag(8), ..request(true, false, target_transfer_tag) };
    assert_eq!(negotiation.step(&other, b"", &facts), TextStep::Reject(RejectReason::ProtocolError));
    let stale = request(true, false, TargetTransferTag(99));
    assert_eq!(negotiation.step(&stale, b"", &facts), TextStep::Reject(RejectReason::ProtocolError));
}

#[test]
fn final_and_continued_exclude_each_other() {
    let both = request(true, true, TargetTransferTag::RESERVED);
    assert_eq!(
        TextNegotiation::default().step(&both, b"X-a=1\0", &normal(&[])),
        TextStep::Reject(RejectReason::ProtocolError)
    );
}

#[test]
fn a_request_without_end_is_refused() {
    let facts = normal(&[]);
    let mut negotiation = TextNegotiation::default();
    let mut tag = TargetTransferTag::RESERVED;
    let mut sent = 0;
    loop {
        match negotiation.step(&request(false, true, tag), &[b'a'; 4096], &facts) {
            TextStep::Reply { is_final: false, is_continued: false, target_transfer_tag, text, .. } => {
                assert!(text.is_empty());
                tag = target_transfer_tag;
                sent += 4096;
                assert!(sent <= TEXT_LENGTH_MAX);
            }
            step => {
                assert_eq!(step, TextStep::Reject(RejectReason::LongOperationReject));
                break;
            }
        }
    }
    assert_eq!(sent, TEXT_LENGTH_MAX);
}

#[test]
fn text_without_end_is_refused_in_complete_requests_too() {
    let facts = normal(&[]);
    let mut negotiation = TextNegotiation::default();
    let mut tag = TargetTransferTag::RESERVED;
    let mut sent = 0;
    for round in 0.. {
        let long = format!("X-{round}={}\0", "v".repeat(4000));
        sent += long.len();
        let step = negotiation.step(&request(false, false, tag), long.as_bytes(), &facts);
        if sent > TEXT_LENGTH_MAX {
            assert_eq!(step, TextStep::Reject(RejectReason::LongOperationReject));
            break;
        }
        let TextStep::Reply { target_transfer_tag, .. } = step else { panic!("{step:?} after {sent} bytes") };
        tag = target_transfer_tag;
    }
}

#[test]
fn rounds_without_end_are_refused() {
    let facts = normal(&[]);
    let mut negotiation = TextNegotiation::default();
    let mut tag = TargetTransferTag::RESERVED;
    let mut rounds = 0;
    while let TextStep::Reply { target_transfer_tag, .. } =
        negotiation.step(&request(false, false, tag), b"", &facts)
    {
        tag = target_transfer_tag;
        rounds += 1;
        assert!(rounds <= TEXT_REQUESTS_MAX);
    }
    assert_eq!(rounds, TEXT_REQUESTS_MAX);
}

#[test]
fn text_in_the_middle_of_an_answer_is_a_protocol_error() {
    let targets: Vec<_> = (0..100).map(|n| (format!("iqn.2026-11.io.lunette:{n}"), vec![])).collect();
    let facts = TextFacts { max_send_data_segment_length: 512, ..discovery(&targets) };
    let mut negotiation = TextNegotiation::default();
    let TextStep::Reply { is_continued: true, target_transfer_tag, .. } =
        negotiation.step(&first(), b"SendTargets=All\0", &facts)
    else {
        panic!("the answer is long");
    };
    assert_eq!(
        negotiation.step(&request(true, false, target_transfer_tag), b"X-a=1\0", &facts),
        TextStep::Reject(RejectReason::ProtocolError)
    );
}

/// Fetches a whole answer, checking each part's bits and length; `always_final` as the RFC's example has it.
fn fetch(facts: &TextFacts<'_>, asked: &[u8], always_final: bool) -> (Vec<u8>, usize) {
    let mut negotiation = TextNegotiation::default();
    let mut next = request(always_final, false, TargetTransferTag::RESERVED);
    let (mut all, mut parts) = (Vec::new(), 0);
    let mut data = asked;
    loop {
        let TextStep::Reply { is_final, is_continued, target_transfer_tag, text, .. } =
            negotiation.step(&next, data, facts)
        else {
            panic!("no reason to reject");
        };
        assert!(text.len() <= facts.max_send_data_segment_length as usize);
        assert!(!(is_final && is_continued));
        assert_eq!(is_final, target_transfer_tag == TargetTransferTag::RESERVED);
        all.extend_from_slice(&text);
        parts += 1;
        if is_final {
            return (all, parts);
        }
        next = request(always_final || !is_continued, false, target_transfer_tag);
        data = b"";
    }
}

#[test]
fn a_request_in_parts_is_read_as_one() {
    let targets = targets();
    let facts = discovery(&targets);
    let mut negotiation = TextNegotiation::default();
    let TextStep::Reply { is_final: false, is_continued: false, target_transfer_tag, text, .. } =
        negotiation.step(&request(false, true, TargetTransferTag::RESERVED), b"SendTar", &facts)
    else {
        panic!("the rest is awaited");
    };
    assert!(text.is_empty());
    assert_eq!(
        negotiation.step(&request(true, false, target_transfer_tag), b"gets=All\0", &facts),
        whole(&format!("{A}{B}"))
    );
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn long_answers_arrive_whole(
        count in 0usize..200, max in 512u32..4096, always_final: bool, addresses in 0usize..4,
    ) {
        let targets: Vec<_> = (0..count)
            .map(|n| {
                let address = |m| format!("10.0.0.{m}:3260,{m}");
                (format!("iqn.2026-11.io.lunette:{n}"), (0..addresses).map(address).collect::<Vec<_>>())
            })
            .collect();
        let facts = TextFacts { max_send_data_segment_length: max, ..discovery(&targets) };
        let (all, parts) = fetch(&facts, b"SendTargets=All\0", always_final);
        let found = pairs_unbounded(&all);
        let expected: Vec<_> = targets
            .iter()
            .flat_map(|(name, addresses)| {
                let name = std::iter::once(format!("TargetName={name}"));
                name.chain(addresses.iter().map(|address| format!("TargetAddress={address}")))
            })
            .collect();
        prop_assert_eq!(found, expected);
        // Pairs are kept whole, so at most one pair's length of each part is empty.
        prop_assert!(parts <= all.len() / (max as usize - 64) + 2);
    }

    #[test]
    fn any_requests_are_answered_in_bounds(
        steps in proptest::collection::vec(
            (any::<bool>(), any::<bool>(), 0u32..4, proptest::sample::select(vec![
                &b""[..], b"SendTargets=All\0", b"SendTargets=", b"\0", b"X-a=1\0", b"MaxRecvDataSegmentLength=600\0",
                b"=", b"\xff\0",
            ])),
            0..40,
        ),
    ) {
        let targets = targets();
        let mut negotiation = TextNegotiation::default();
        for (is_final, is_continued, tag, data) in steps {
            let tag = if tag == 0 { TargetTransferTag::RESERVED } else { TargetTransferTag(tag) };
            let facts = TextFacts { max_send_data_segment_length: 64, ..normal(&targets) };
            if let TextStep::Reply { is_final: answered, is_continued: more, text, target_transfer_tag, .. } =
                negotiation.step(&request(is_final, is_continued, tag), data, &facts)
            {
                prop_assert!(text.len() <= 64);
                prop_assert!(!answered || is_final);
                prop_assert!(!(answered && more));
                prop_assert_eq!(answered, target_transfer_tag == TargetTransferTag::RESERVED);
            }
        }
    }

    #[test]
    fn a_cut_makes_progress_and_fits(text in proptest::collection::vec(any::<u8>(), 1..300), max in 0usize..300) {
        let length = cut(&text, max);
        prop_assert!(length >= 1 && length <= max.max(1));
        prop_assert!(length == text.len() || length == max.max(1) || text[length - 1] == 0);
    }
}

fn pairs_unbounded(text: &[u8]) -> Vec<String> {
    text.split(|&byte| byte == 0)
        .filter(|pair| !pair.is_empty())
        .map(|pair| String::from_utf8(pair.to_vec()).unwrap())
        .collect()
}
