//! The login at PDU level: numbers, transitions, answers and every refusal.

mod anything;
mod chap;
mod initiators;
mod properties;
mod proven;
mod redirection;

use lunette_wire::text::push;
use lunette_wire::{Cid, CmdSn, InitiatorTaskTag, Isid, Tsih};

use super::*;
use crate::chap::{ChapAlgorithm, ChapCredential, ChapUser, Secret};
use crate::parameters::{ConnectionParameters, DigestPolicy, SessionParameters};

const INITIATOR: &str = "iqn.2026-11.io.lunette:initiator";
const TARGET: &str = "iqn.2026-11.io.lunette:disk0";

const NONCE: ChapNonce = ChapNonce { identifier: 0x2a, challenge: [0x5c; 32] };

struct Directory;

impl TargetDirectory for Directory {
    fn find(&self, name: &str, initiator: &str) -> Result<TargetEntry, LookupFailure> {
        match name.strip_prefix("iqn.2026-11.io.lunette:") {
            Some("disk0") if initiator.ends_with(":stranger") => Err(LookupFailure::Forbidden),
            Some("disk0" | "locked" | "mutual") => {
                Ok(TargetEntry { portal_group_tag: 3, alias: None, moved: None })
            }
            Some("named") => {
                Ok(TargetEntry { portal_group_tag: 4, alias: Some("A Disk".to_owned()), moved: None })
            }
            Some("away" | "away:locked" | "away:mutual") => {
                let addresses = ["192.0.2.7", "[2001:db8::7]:3261"].map(|text| text.parse().unwrap());
                let moved = Redirection::new(initiator.ends_with(":for-good"), addresses.to_vec());
                Ok(TargetEntry { portal_group_tag: 3, alias: Some("A Disk".to_owned()), moved })
            }
            Some("gone") => Err(LookupFailure::Removed),
            Some("busy") => Err(LookupFailure::Busy),
            _ => Err(LookupFailure::NotFound),
        }
    }

    fn authentication(&self, target: Option<&str>) -> Option<Arc<ChapPolicy>> {
        let is_mutual = target.is_some_and(|name| name.ends_with(":mutual"));
        let is_locked = is_mutual || target.is_some_and(|name| name.ends_with(":locked"));
        is_locked.then(|| Arc::new(chap::policy(is_mutual)))
    }

    fn may_try(&self, user: &str) -> bool {
        user != "hasty"
    }
}

const SECURITY: LoginStage = LoginStage::Security;
const OPERATIONAL: LoginStage = LoginStage::Operational;
const FULL: LoginStage = LoginStage::FullFeature;

fn request(current_stage: LoginStage, next: Option<LoginStage>) -> LoginRequest {
    LoginRequest {
        transit: next.is_some(),
        current_stage,
        next_stage: next.unwrap_or_default(),
        isid: Isid([0x80, 1, 2, 3, 4, 5]),
        initiator_task_tag: InitiatorTaskTag(0x1234),
        cid: Cid(9),
        cmd_sn: CmdSn(0xffff_fffe),
        ..LoginRequest::default()
    }
}

fn text(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut text = Vec::new();
    pairs.iter().for_each(|(key, value)| push(&mut text, key, value));
    text
}

fn names() -> Vec<(&'static str, &'static str)> {
    vec![("InitiatorName", INITIATOR), ("TargetName", TARGET), ("SessionType", "Normal")]
}

fn with_names(offers: &[(&'static str, &'static str)]) -> Vec<u8> {
    let mut all = names();
    all.extend_from_slice(offers);
    text(&all)
}

fn login() -> Login {
    Login::new(TargetLimits::default(), 1, NONCE)
}

fn respond(step: LoginStep) -> LoginReply {
    match step {
        LoginStep::Respond(reply) => reply,
        other => panic!("a response was expected, not {other:?}"),
    }
}

fn ready(step: LoginStep) -> LoginOutcome {
    match step {
        LoginStep::Ready(outcome) => *outcome,
        other => panic!("an agreement was expected, not {other:?}"),
    }
}

/// The status of a refusal, which must be told and end the login.
fn refused(login: &mut Login, request: &LoginRequest, text: &[u8]) -> LoginStatus {
    match login.step(request, text, &Directory) {
        LoginStep::Fail(reply, failure) => {
            assert_eq!((reply.pdu.status_class, reply.pdu.status_detail), {
                (failure.status.class(), failure.status.detail())
            });
            assert!(!reply.pdu.transit && !reply.pdu.is_continued && reply.text.is_empty());
            assert!(matches!(login.step(request, b"", &Directory), LoginStep::Drop(_)));
            failure.status
        }
        other => panic!("a refusal was expected, not {other:?}"),
    }
}

/// Refusal of a first and only request.
fn refused_at_once(request: &LoginRequest, text: &[u8]) -> LoginStatus {
    refused(&mut login(), request, text)
}

fn answers(reply: &LoginReply) -> Vec<(&str, &str)> {
    pairs(&reply.text).unwrap()
}

fn last_answers(outcome: &LoginOutcome) -> Vec<(String, String)> {
    let reply = outcome.accept(Tsih(1), outcome.numbers);
    answers(&reply).into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn responses_carry_the_logins_numbers() {
    let limits = TargetLimits { command_window: 32, ..TargetLimits::default() };
    let mut login = Login::new(limits, 1, NONCE).starting_with(StatSn(0xffff_ffff));
    let reply = respond(login.step(&request(SECURITY, None), &with_names(&[]), &Directory));
    assert_eq!(reply.pdu.isid, Isid([0x80, 1, 2, 3, 4, 5]));
    assert_eq!(reply.pdu.tsih, Tsih(0));
    assert_eq!(reply.pdu.initiator_task_tag, InitiatorTaskTag(0x1234));
    let numbers = |stat_sn| Numbers {
        stat_sn: StatSn(stat_sn),
        exp_cmd_sn: CmdSn(0xffff_fffe),
        max_cmd_sn: CmdSn(0x1d),
    };
    assert_eq!(reply.pdu.numbers, numbers(0xffff_ffff));
    let reply = respond(login.step(&request(SECURITY, Some(OPERATIONAL)), b"", &Directory));
    assert_eq!(reply.pdu.numbers, numbers(0));
    let outcome = ready(login.step(&request(OPERATIONAL, Some(FULL)), b"", &Directory));
    assert_eq!(outcome.numbers, numbers(1));
    assert_eq!(outcome.next_stat_sn, StatSn(2));
    assert_eq!((outcome.cid, outcome.cmd_sn), (Cid(9), CmdSn(0xffff_fffe)));
    let last = outcome.accept(Tsih(77), outcome.numbers);
    assert_eq!((last.pdu.tsih, last.pdu.next_stage, last.pdu.transit), (Tsih(77), FULL, true));
    let failure = LoginFailure::new(LoginStatus::OutOfResources, "full");
    let refusal = outcome.refuse(&failure);
    assert_eq!((refusal.pdu.status_class, refusal.pdu.status_detail), (3, 2));
    assert!(!refusal.pdu.transit && refusal.text.is_empty());
}

#[test]
fn security_may_lead_straight_to_full_feature_with_the_defaults() {
    let mut login = login();
    let outcome = ready(login.step(&request(SECURITY, Some(FULL)), &with_names(&[]), &Directory));
    assert_eq!(outcome.session, SessionParameters::default());
    assert_eq!(outcome.connection, ConnectionParameters::default());
    assert_eq!(last_answers(&outcome), owned(&[("TargetPortalGroupTag", "3")]));
}

#[test]
fn the_portal_group_tag_comes_once_in_the_first_response_that_may_have_it() {
    for (stage, next) in [(SECURITY, OPERATIONAL), (OPERATIONAL, FULL)] {
        let mut login = login();
        let whole = with_names(&[]);
        let (head, tail) = whole.split_at(20);
        let reply = respond(login.step(
            &LoginRequest { is_continued: true, ..request(stage, None) },
            head,
            &Directory,
        ));
        assert!(reply.text.is_empty());
        let reply = respond(login.step(&request(stage, None), tail, &Directory));
        assert_eq!(answers(&reply)[0], ("TargetPortalGroupTag", "3"));
        match login.step(&request(stage, Some(next)), b"", &Directory) {
            LoginStep::Respond(reply) => assert!(reply.text.is_empty()),
            LoginStep::Ready(outcome) => assert!(last_answers(&outcome).is_empty()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_alias_is_told() {
    let mut login = login();
    let first = text(&[("InitiatorName", INITIATOR), ("TargetName", "iqn.2026-11.io.lunette:named")]);
    let reply = respond(login.step(&request(SECURITY, None), &first, &Directory));
    assert_eq!(answers(&reply), [("TargetPortalGroupTag", "4"), ("TargetAlias", "A Disk")]);
}

#[test]
fn names_are_compared_in_lower_case() {
    let mut login = login();
    let first =
        text(&[("InitiatorName", "EUI.02004567A425678D"), ("TargetName", "IQN.2026-11.io.Lunette:Disk0")]);
    let outcome = ready(login.step(&request(OPERATIONAL, Some(FULL)), &first, &Directory));
    assert_eq!(outcome.initiator_name.as_str(), "eui.02004567a425678d");
    assert_eq!(outcome.target.unwrap().0.as_str(), TARGET);
}

#[test]
fn a_session_to_join_is_left_to_the_driver() {
    let mut login = login();
    let join = |next| LoginRequest { tsih: Tsih(5), ..request(OPERATIONAL, next) };
    let offers = with_names(&[("MaxBurstLength", "512"), ("DataDigest", "CRC32C")]);
    let outcome = ready(login.step(&join(Some(FULL)), &offers, &Directory));
    assert_eq!(outcome.tsih, Tsih(5));
    assert!(outcome.connection.digests.data);
    assert!(last_answers(&outcome).contains(&("MaxBurstLength".to_owned(), "Reject".to_owned())));
    let failure = LoginFailure::new(LoginStatus::SessionDoesNotExist, "no such session");
    let refusal = outcome.refuse(&failure);
    assert_eq!((refusal.pdu.status_class, refusal.pdu.status_detail), (2, 0x0a));
    assert_eq!(refusal.pdu.tsih, Tsih(5));
}

#[test]
fn versions_must_include_ours() {
    let newer = LoginRequest { version_min: 1, version_max: 2, ..request(OPERATIONAL, Some(FULL)) };
    assert_eq!(refused_at_once(&newer, &with_names(&[])), LoginStatus::UnsupportedVersion);
    let wide = LoginRequest { version_max: 2, ..request(OPERATIONAL, Some(FULL)) };
    let outcome = ready(login().step(&wide, &with_names(&[]), &Directory));
    let last = outcome.accept(Tsih(1), outcome.numbers);
    assert_eq!((last.pdu.version_max, last.pdu.version_active), (0, 0));
}

#[test]
fn names_must_be_in_the_first_request() {
    for stage in [SECURITY, OPERATIONAL] {
        let first = request(stage, Some(FULL));
        assert_eq!(refused_at_once(&first, b""), LoginStatus::MissingParameter);
        assert_eq!(refused_at_once(&first, &text(&[("TargetName", TARGET)])), LoginStatus::MissingParameter);
        assert_eq!(
            refused_at_once(&first, &text(&[("InitiatorName", INITIATOR)])),
            LoginStatus::MissingParameter
        );
    }
}

#[test]
fn the_directory_decides_about_the_target() {
    for (target, status) in [
        ("iqn.2026-11.io.lunette:nowhere", LoginStatus::NotFound),
        ("iqn.2026-11.io.lunette:gone", LoginStatus::TargetRemoved),
        ("iqn.2026-11.io.lunette:busy", LoginStatus::ServiceUnavailable),
    ] {
        let names = text(&[("InitiatorName", INITIATOR), ("TargetName", target)]);
        assert_eq!(refused_at_once(&request(SECURITY, None), &names), status);
    }
    let stranger = text(&[("InitiatorName", "iqn.2026-11.io.lunette:stranger"), ("TargetName", TARGET)]);
    assert_eq!(refused_at_once(&request(SECURITY, None), &stranger), LoginStatus::AuthorizationFailure);
}

#[test]
fn a_text_that_is_no_name_is_refused() {
    let long = "i".repeat(224);
    for name in ["", "a b", &long] {
        let names = text(&[("InitiatorName", name), ("TargetName", TARGET)]);
        assert_eq!(refused_at_once(&request(SECURITY, None), &names), LoginStatus::InitiatorError);
    }
}

/// 7.4.2.2: it has the target's portal group, is let in as discovery is, and logs in to nothing.
#[test]
fn a_discovery_session_may_name_a_target() {
    let named = |target: &'static str| {
        text(&[("InitiatorName", INITIATOR), ("SessionType", "Discovery"), ("TargetName", target)])
    };
    for (target, tag) in [
        ("iqn.2026-11.io.lunette:named", "4"),
        ("iqn.2026-11.io.lunette:locked", "3"),
        ("iqn.2026-11.io.lunette:away", "3"),
    ] {
        let step = login().step(&request(OPERATIONAL, Some(FULL)), &named(target), &Directory);
        let outcome = ready(step);
        assert_eq!(outcome.target.as_ref().map(|(name, _)| name.as_str()), Some(target));
        assert_eq!(last_answers(&outcome)[0], ("TargetPortalGroupTag".to_owned(), tag.to_owned()));
        assert!(last_answers(&outcome).iter().all(|(key, _)| key != "TargetAlias"));
    }
    let unknown = named("iqn.2026-11.io.lunette:elsewhere");
    assert_eq!(refused_at_once(&request(OPERATIONAL, Some(FULL)), &unknown), LoginStatus::NotFound);
}

#[test]
fn other_session_types_are_refused() {
    let first = text(&[("InitiatorName", INITIATOR), ("SessionType", "discovery")]);
    assert_eq!(
        refused_at_once(&request(OPERATIONAL, Some(FULL)), &first),
        LoginStatus::SessionTypeNotSupported
    );
}

#[test]
fn an_offer_without_none_is_an_authentication_failure() {
    let first = with_names(&[("AuthMethod", "CHAP")]);
    assert_eq!(
        refused_at_once(&request(SECURITY, Some(OPERATIONAL)), &first),
        LoginStatus::AuthenticationFailure
    );
}

#[test]
fn keys_of_a_method_that_was_not_agreed_on_are_refused() {
    for key in ["CHAP_A", "CHAP_I", "CHAP_C", "CHAP_N", "CHAP_R"] {
        let first = with_names(&[("AuthMethod", "None"), (key, "5")]);
        assert_eq!(refused_at_once(&request(SECURITY, None), &first), LoginStatus::InitiatorError);
    }
}

#[test]
fn stages_go_forward_only() {
    let names = with_names(&[]);
    for (current, next) in
        [(SECURITY, SECURITY), (OPERATIONAL, SECURITY), (OPERATIONAL, OPERATIONAL), (FULL, FULL)]
    {
        let first = request(current, Some(next));
        assert_eq!(refused_at_once(&first, &names), LoginStatus::InvalidDuringLogin);
    }
    assert_eq!(refused_at_once(&request(FULL, None), &names), LoginStatus::InvalidDuringLogin);
    let mut skipped = login();
    respond(skipped.step(&request(SECURITY, None), &names, &Directory));
    let early = request(OPERATIONAL, Some(FULL));
    assert_eq!(refused(&mut skipped, &early, b""), LoginStatus::InvalidDuringLogin);
    let mut back = login();
    respond(back.step(&request(OPERATIONAL, None), &names, &Directory));
    assert_eq!(refused(&mut back, &request(SECURITY, None), b""), LoginStatus::InvalidDuringLogin);
}

#[test]
fn transit_and_continue_exclude_each_other() {
    let both = LoginRequest { is_continued: true, ..request(OPERATIONAL, Some(FULL)) };
    assert_eq!(refused_at_once(&both, &with_names(&[])), LoginStatus::InitiatorError);
}

#[test]
fn a_key_twice_in_one_stage_is_refused() {
    for offers in [
        [("MaxBurstLength", "512"), ("MaxBurstLength", "512")],
        [("InitiatorName", INITIATOR), ("HeaderDigest", "None")],
        [("X-com.example.a", "1"), ("X-com.example.a", "2")],
    ] {
        assert_eq!(
            refused_at_once(&request(OPERATIONAL, None), &with_names(&offers)),
            LoginStatus::InitiatorError
        );
    }
    let mut later = login();
    respond(later.step(&request(OPERATIONAL, None), &with_names(&[("InitialR2T", "No")]), &Directory));
    let again = text(&[("InitialR2T", "Yes")]);
    assert_eq!(refused(&mut later, &request(OPERATIONAL, Some(FULL)), &again), LoginStatus::InitiatorError);
}

#[test]
fn a_name_that_changes_between_stages_is_refused() {
    for key in ["InitiatorName", "TargetName"] {
        let mut login = login();
        respond(login.step(&request(SECURITY, Some(OPERATIONAL)), &with_names(&[]), &Directory));
        let changed = text(&[(key, "iqn.2026-11.io.lunette:other")]);
        assert_eq!(
            refused(&mut login, &request(OPERATIONAL, Some(FULL)), &changed),
            LoginStatus::InitiatorError
        );
    }
}

#[test]
fn keys_out_of_place_are_refused() {
    for (stage, key, value) in [
        (SECURITY, "HeaderDigest", "None"),
        (SECURITY, "MaxRecvDataSegmentLength", "8192"),
        (OPERATIONAL, "AuthMethod", "None"),
        (OPERATIONAL, "SendTargets", "All"),
        (OPERATIONAL, "TargetPortalGroupTag", "1"),
        (SECURITY, "TargetAddress", "127.0.0.1"),
        (OPERATIONAL, "MaxBurstLength", "Reject"),
        (OPERATIONAL, "X-com.example.a", "NotUnderstood"),
        (OPERATIONAL, "InitialR2T", "Irrelevant"),
        (OPERATIONAL, "MaxRecvDataSegmentLength", "100"),
        (OPERATIONAL, "HeaderDigest", "SHA1"),
    ] {
        let first = with_names(&[(key, value)]);
        assert_eq!(refused_at_once(&request(stage, None), &first), LoginStatus::InitiatorError, "{key}");
    }
}

#[test]
fn a_required_digest_decides_even_when_nothing_was_negotiated() {
    let limits = TargetLimits { header_digest: DigestPolicy::Required, ..TargetLimits::default() };
    let mut strict = Login::new(limits, 1, NONCE);
    let straight = request(SECURITY, Some(FULL));
    assert_eq!(refused(&mut strict, &straight, &with_names(&[])), LoginStatus::InitiatorError);
}

#[test]
fn malformed_text_is_refused() {
    for bad in [&b"InitiatorName"[..], b"InitiatorName=a", b"=b\0", b"a=\xff\0"] {
        assert_eq!(refused_at_once(&request(SECURITY, None), bad), LoginStatus::InitiatorError);
    }
}

#[test]
fn the_login_is_one_task_of_one_isid() {
    let changed = [
        LoginRequest { initiator_task_tag: InitiatorTaskTag(1), ..request(SECURITY, None) },
        LoginRequest { isid: Isid([0; 6]), ..request(SECURITY, None) },
    ];
    for second in changed {
        let mut login = login();
        respond(login.step(&request(SECURITY, None), &with_names(&[]), &Directory));
        assert_eq!(refused(&mut login, &second, b""), LoginStatus::InitiatorError);
    }
}

#[test]
fn of_other_fields_the_first_ones_count() {
    let mut login = login();
    respond(login.step(&request(SECURITY, None), &with_names(&[]), &Directory));
    let second = LoginRequest {
        version_min: 7,
        tsih: Tsih(7),
        cid: Cid(7),
        cmd_sn: CmdSn(7),
        ..request(SECURITY, Some(FULL))
    };
    let outcome = ready(login.step(&second, b"", &Directory));
    assert_eq!((outcome.tsih, outcome.cid, outcome.cmd_sn), (Tsih(0), Cid(9), CmdSn(0xffff_fffe)));
}

#[test]
fn other_pdus_are_refused_under_way_and_dropped_before() {
    assert!(matches!(login().other_pdu(0x01), LoginStep::Drop(_)));
    let mut login = login();
    respond(login.step(&request(SECURITY, None), &with_names(&[]), &Directory));
    match login.other_pdu(0x01) {
        LoginStep::Fail(reply, failure) => {
            assert_eq!(failure.status, LoginStatus::InvalidDuringLogin);
            assert_eq!((reply.pdu.status_class, reply.pdu.status_detail), (2, 0x0b));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(login.other_pdu(0x01), LoginStep::Drop(_)));
}

#[test]
fn text_without_end_is_refused() {
    let mut login = login();
    let more = LoginRequest { is_continued: true, ..request(SECURITY, None) };
    for _ in 0..LOGIN_TEXT_MAX / LOGIN_SEGMENT_MAX {
        let reply = respond(login.step(&more, &[b'a'; LOGIN_SEGMENT_MAX], &Directory));
        assert!(reply.text.is_empty() && !reply.pdu.is_continued && !reply.pdu.transit);
    }
    assert_eq!(refused(&mut login, &more, b"a"), LoginStatus::InitiatorError);
}

#[test]
fn text_without_end_is_refused_in_complete_requests_too() {
    let mut login = login();
    respond(login.step(&request(OPERATIONAL, None), &with_names(&[]), &Directory));
    let mut sent = with_names(&[]).len();
    for round in 0.. {
        let long = format!("X-{round}={}\0", "v".repeat(8000));
        sent += long.len();
        if sent > LOGIN_TEXT_MAX {
            let more = request(OPERATIONAL, None);
            assert_eq!(refused(&mut login, &more, long.as_bytes()), LoginStatus::InitiatorError);
            break;
        }
        respond(login.step(&request(OPERATIONAL, None), long.as_bytes(), &Directory));
    }
}

#[test]
fn requests_without_end_are_refused() {
    let mut login = login();
    respond(login.step(&request(SECURITY, None), &with_names(&[]), &Directory));
    for _ in 1..LOGIN_REQUESTS_MAX {
        respond(login.step(&request(SECURITY, None), b"", &Directory));
    }
    assert_eq!(refused(&mut login, &request(SECURITY, None), b""), LoginStatus::InitiatorError);
}

#[test]
fn keys_without_end_are_refused() {
    let mut login = login();
    respond(login.step(&request(OPERATIONAL, None), &with_names(&[]), &Directory));
    let mut seen = names().len();
    loop {
        let many: Vec<u8> = (0..100).flat_map(|n| format!("X-{}=\0", seen + n).into_bytes()).collect();
        match login.step(&request(OPERATIONAL, None), &many, &Directory) {
            LoginStep::Respond(_) => seen += 100,
            LoginStep::Fail(_, failure) => {
                assert_eq!(failure.status, LoginStatus::InitiatorError);
                break;
            }
            other => panic!("{other:?}"),
        }
        assert!(seen <= STAGE_KEYS_MAX);
    }
}

#[test]
fn an_oversized_segment_is_refused() {
    let long = vec![0; LOGIN_SEGMENT_MAX + 1];
    assert_eq!(refused_at_once(&request(SECURITY, None), &long), LoginStatus::InitiatorError);
}

/// 120 long names of unknown keys: their answers do not fit into one PDU.
fn many_unknown() -> Vec<u8> {
    (0..120).flat_map(|n| format!("X-{n:0>61}=\0").into_bytes()).collect()
}

#[test]
fn a_long_answer_is_fetched_with_empty_requests() {
    let mut login = login();
    respond(login.step(&request(OPERATIONAL, None), &with_names(&[]), &Directory));
    let reply = respond(login.step(&request(OPERATIONAL, Some(FULL)), &many_unknown(), &Directory));
    assert!(reply.pdu.is_continued && !reply.pdu.transit);
    assert!(reply.text.len() <= LOGIN_SEGMENT_MAX && reply.text.len() > LOGIN_SEGMENT_MAX - 100);
    let outcome = ready(login.step(&request(OPERATIONAL, Some(FULL)), b"", &Directory));
    let answered = answers(&reply).len() + last_answers(&outcome).len();
    assert_eq!(answered, 120);
}

#[test]
fn t_in_a_response_needs_t_in_its_own_request() {
    let mut login = login();
    respond(login.step(&request(OPERATIONAL, None), &with_names(&[]), &Directory));
    let reply = respond(login.step(&request(OPERATIONAL, Some(FULL)), &many_unknown(), &Directory));
    assert!(reply.pdu.is_continued);
    let reply = respond(login.step(&request(OPERATIONAL, None), b"", &Directory));
    assert!(!reply.pdu.is_continued && !reply.pdu.transit);
    ready(login.step(&request(OPERATIONAL, Some(FULL)), b"", &Directory));
}

#[test]
fn text_while_an_answer_is_on_its_way_is_refused() {
    let mut login = login();
    respond(login.step(&request(OPERATIONAL, None), &with_names(&[]), &Directory));
    respond(login.step(&request(OPERATIONAL, Some(FULL)), &many_unknown(), &Directory));
    let late = text(&[("InitialR2T", "No")]);
    assert_eq!(refused(&mut login, &request(OPERATIONAL, Some(FULL)), &late), LoginStatus::InitiatorError);
}

#[test]
fn an_answer_that_waits_comes_to_an_empty_request() {
    let mut login = login();
    let offers = with_names(&[("FirstBurstLength", "65536")]);
    let reply = respond(login.step(&request(OPERATIONAL, None), &offers, &Directory));
    assert!(!answers(&reply).iter().any(|(key, _)| *key == "FirstBurstLength"));
    let reply = respond(login.step(&request(OPERATIONAL, None), b"", &Directory));
    assert_eq!(answers(&reply), [("FirstBurstLength", "65536")]);
}
