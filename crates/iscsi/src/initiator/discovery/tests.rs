//! Discovery sessions PDU by PDU.

use lunette_wire::target::{AsynchronousMessage, LogoutResponse, NopIn, Numbers, Reject, ScsiResponse};
use lunette_wire::text::push;

use super::*;
use crate::initiator::login::Purpose;
use crate::parameters::{ConnectionParameters, SessionParameters};

fn outcome() -> Outcome {
    Outcome {
        purpose: Purpose::Discovery(None),
        isid: Default::default(),
        tsih: Default::default(),
        cid: Default::default(),
        session: SessionParameters::default(),
        connection: ConnectionParameters::default(),
        target_alias: None,
        portal_group_tag: None,
        algorithm: None,
        cmd_sn: CmdSn(4),
        exp_cmd_sn: CmdSn(4),
        max_cmd_sn: CmdSn(4),
        exp_stat_sn: StatSn(9),
    }
}

fn begun() -> Discovery {
    let (discovery, request, text) = Discovery::begin(&outcome(), &Question::All);
    assert_eq!(text, b"SendTargets=All\0");
    let InitiatorPdu::TextRequest(request) = request else { panic!("{request:?}") };
    assert!(request.is_final && !request.is_continued);
    assert_eq!(request.target_transfer_tag, TargetTransferTag::RESERVED);
    assert_eq!((request.cmd_sn, request.exp_stat_sn), (CmdSn(4), StatSn(9)));
    discovery
}

fn response(is_final: bool) -> TextResponse {
    TextResponse {
        is_final,
        is_continued: !is_final,
        initiator_task_tag: TEXT_TAG,
        target_transfer_tag: if is_final { TargetTransferTag::RESERVED } else { TargetTransferTag(77) },
        numbers: Numbers { stat_sn: StatSn(9), ..Numbers::default() },
        ..TextResponse::default()
    }
}

fn answer() -> Vec<u8> {
    let mut text = Vec::new();
    push(&mut text, "TargetName", "iqn.2026-11.io.lunette:a");
    push(&mut text, "TargetAddress", "192.0.2.1:3260,1");
    text
}

/// 11.10.5: nobody may take less than 512 bytes in a PDU (13.12), and a request is never cut.
#[test]
fn the_longest_question_fits_any_target() {
    let name = format!("iqn.2026-11.io.lunette:{}", "x".repeat(200));
    let question = Question::One(crate::name::IscsiName::parse(&name).expect("a name of 223 bytes"));
    let (_, request, text) = Discovery::begin(&outcome(), &question);
    let InitiatorPdu::TextRequest(request) = request else { panic!("{request:?}") };
    assert!(text.len() > 223 && text.len() <= 512 && !request.is_continued && request.is_final);
}

#[test]
fn targets_are_asked_for_found_and_left() {
    let mut discovery = begun();
    let step = discovery.received(&TargetPdu::TextResponse(response(true)), &answer());
    let DiscoveryStep::Send(InitiatorPdu::LogoutRequest(logout), text) = step else { panic!("{step:?}") };
    assert_eq!((logout.exp_stat_sn, text.len()), (StatSn(10), 0));
    assert_eq!(discovery.targets().unwrap()[0].portals[0].to_string(), "192.0.2.1:3260,1");
    let step = discovery.received(&TargetPdu::LogoutResponse(LogoutResponse::default()), b"");
    assert!(matches!(step, DiscoveryStep::Done));
}

#[test]
fn an_answer_in_parts_is_fetched() {
    let (mut discovery, whole) = (begun(), answer());
    let (first, rest) = whole.split_at(7);
    let step = discovery.received(&TargetPdu::TextResponse(response(false)), first);
    let DiscoveryStep::Send(InitiatorPdu::TextRequest(request), text) = step else { panic!("{step:?}") };
    assert!(text.is_empty() && request.is_final);
    assert_eq!(request.target_transfer_tag, TargetTransferTag(77));
    discovery.received(&TargetPdu::TextResponse(response(true)), rest);
    assert_eq!(discovery.targets().unwrap().len(), 1);
}

#[test]
fn pings_are_answered_on_the_way() {
    let mut discovery = begun();
    let ping = NopIn {
        initiator_task_tag: InitiatorTaskTag::RESERVED,
        target_transfer_tag: TargetTransferTag(5),
        ..NopIn::default()
    };
    let step = discovery.received(&TargetPdu::NopIn(ping), b"ping");
    let DiscoveryStep::Send(InitiatorPdu::NopOut(pong), data) = step else { panic!("{step:?}") };
    assert_eq!((pong.target_transfer_tag, data.as_slice()), (TargetTransferTag(5), &b"ping"[..]));
    let silent = NopIn { target_transfer_tag: TargetTransferTag::RESERVED, ..ping };
    assert!(matches!(discovery.received(&TargetPdu::NopIn(silent), b""), DiscoveryStep::Wait));
}

#[test]
fn what_breaks_the_rules_is_an_error() {
    let failed = |pdu: TargetPdu, data: &[u8]| match begun().received(&pdu, data) {
        DiscoveryStep::Failed(error) => error,
        other => panic!("{other:?}"),
    };
    let text = |change: fn(&mut TextResponse)| {
        let mut pdu = response(true);
        change(&mut pdu);
        TargetPdu::TextResponse(pdu)
    };
    failed(text(|pdu| pdu.is_continued = true), b"");
    failed(text(|pdu| pdu.initiator_task_tag.0 += 1), b"");
    failed(text(|pdu| pdu.is_final = false), b"");
    failed(text(|_| ()), b"no pairs");
    let error = failed(TargetPdu::ScsiResponse(ScsiResponse::default()), b"");
    assert!(error.to_string().ends_with("ScsiResponse"), "{error}");
    assert_eq!(
        failed(TargetPdu::Reject(Reject { reason: 4, ..Reject::default() }), b""),
        DiscoveryError::Rejected(4)
    );
    let ended = failed(TargetPdu::AsynchronousMessage(AsynchronousMessage::default()), b"");
    assert_eq!(ended, DiscoveryError::Ended);
}

#[test]
fn an_endless_answer_is_left() {
    let mut discovery = begun();
    let segment = vec![b'x'; 64 * 1024];
    for sent in 0.. {
        match discovery.received(&TargetPdu::TextResponse(response(false)), &segment) {
            DiscoveryStep::Send(..) => assert!(sent * segment.len() <= ANSWER_LENGTH_MAX),
            DiscoveryStep::Failed(DiscoveryError::Endless(_)) => break,
            other => panic!("{other:?}"),
        }
    }
    let mut discovery = begun();
    for _ in 0..PDUS_MAX {
        assert!(matches!(
            discovery.received(&TargetPdu::TextResponse(response(false)), b""),
            DiscoveryStep::Send(..)
        ));
    }
    let step = discovery.received(&TargetPdu::TextResponse(response(false)), b"");
    assert!(matches!(step, DiscoveryStep::Failed(DiscoveryError::Endless(_))));
}
