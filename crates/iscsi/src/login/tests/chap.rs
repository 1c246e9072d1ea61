//! CHAP in a login (RFC 7143, 9.2, 9.2.1, 12.1.3, appendix B): one-way, mutual, every broken step.

use lunette_cases::cases;
use proptest::prelude::*;

use super::*;
use crate::chap::{ChapResponse, encode_hex};
use crate::name::IscsiName;

const LOCKED: &str = "iqn.2026-11.io.lunette:locked";
const MUTUAL: &str = "iqn.2026-11.io.lunette:mutual";
pub(super) const SECRET: &str = "alice's own 16 b";
const TARGET_SECRET: &str = "the target's 16b";

/// Alice for everybody, Bob for another initiator than that of the tests, and one who is over the limit.
pub(super) fn policy(is_mutual: bool) -> ChapPolicy {
    let credential =
        |name: &str, secret| ChapCredential { name: name.to_owned(), secret: Secret::new(secret) };
    let user = |name: &str, secret| ChapUser { credential: credential(name, secret), initiators: Vec::new() };
    let elsewhere = IscsiName::from_peer("iqn.2026-11.io.lunette:elsewhere").unwrap();
    let bob = ChapUser { initiators: vec![elsewhere], ..user("bob", "bob's secret 16b") };
    ChapPolicy {
        users: vec![user("alice", SECRET), bob, user("hasty", SECRET)],
        own: is_mutual.then(|| credential("storage", TARGET_SECRET)),
        algorithms: ChapAlgorithm::ALL.to_vec(),
    }
}

fn names_of(target: &'static str) -> Vec<(&'static str, &'static str)> {
    vec![("InitiatorName", INITIATOR), ("TargetName", target), ("SessionType", "Normal")]
}

/// A login that has agreed on CHAP, by libiscsi's offer.
pub(super) fn chosen(target: &'static str) -> Login {
    let mut login = login();
    let mut first = names_of(target);
    first.push(("AuthMethod", "CHAP,None"));
    let reply = respond(login.step(&request(SECURITY, Some(OPERATIONAL)), &text(&first), &Directory));
    assert!(!reply.pdu.transit && reply.pdu.current_stage == SECURITY, "the stage has only begun");
    assert_eq!(answers(&reply), [("TargetPortalGroupTag", "3"), ("AuthMethod", "CHAP")]);
    login
}

/// A login whose challenge is out.
pub(super) fn challenged(target: &'static str, algorithms: &str) -> Login {
    let mut login = chosen(target);
    let offer = text(&[("CHAP_A", algorithms)]);
    let reply = respond(login.step(&request(SECURITY, None), &offer, &Directory));
    assert!(!reply.pdu.transit);
    login
}

fn response(algorithm: ChapAlgorithm, secret: &str) -> ChapResponse {
    algorithm.respond(NONCE.identifier, &Secret::new(secret), &NONCE.challenge[..algorithm.digest_length()])
}

pub(super) fn hex(algorithm: ChapAlgorithm, secret: &str) -> String {
    encode_hex(response(algorithm, secret).bytes())
}

pub(super) const MD5: ChapAlgorithm = ChapAlgorithm::Md5;

/// The last step, with T as libiscsi and Linux set it.
pub(super) fn answer(login: &mut Login, pairs: &[(&str, &str)]) -> LoginStep {
    login.step(&request(SECURITY, Some(OPERATIONAL)), &text(pairs), &Directory)
}

fn refusal(login: &mut Login, pairs: &[(&str, &str)]) -> LoginStatus {
    refused(login, &request(SECURITY, Some(OPERATIONAL)), &text(pairs))
}

#[test]
fn one_way_with_each_algorithm() {
    for (algorithm, length) in
        [(MD5, 16), (ChapAlgorithm::Sha1, 20), (ChapAlgorithm::Sha256, 32), (ChapAlgorithm::Sha3256, 32)]
    {
        let mut login = chosen(LOCKED);
        let number = algorithm.number().to_string();
        let offer = text(&[("CHAP_A", &number)]);
        let reply = respond(login.step(&request(SECURITY, None), &offer, &Directory));
        let challenge = format!("0x{}", "5c".repeat(length));
        assert_eq!(answers(&reply), [("CHAP_A", &*number), ("CHAP_I", "42"), ("CHAP_C", &*challenge)]);

        let hex = hex(algorithm, SECRET);
        let reply = respond(answer(&mut login, &[("CHAP_N", "alice"), ("CHAP_R", &hex)]));
        assert!(reply.pdu.transit && reply.pdu.next_stage == OPERATIONAL);
        assert!(reply.text.is_empty());
        let outcome = ready(login.step(&request(OPERATIONAL, Some(FULL)), b"", &Directory));
        assert_eq!(outcome.user.as_deref(), Some("alice"));
    }
}

/// Alice's last step towards a target that is to prove itself, after `challenged(.., "7,5")`.
/// Python: base64 of sha256(2a | secret | 32 x 5c), and sha256(07 | the target's secret | "0123456789abcdef").
pub(super) const MUTUAL_STEP: [(&str, &str); 4] = [
    ("CHAP_N", "alice"),
    ("CHAP_R", "0bK1MWXW9QTxCoFK23yiob1POYwdUJ8rRvsP2tTDkPjFU="),
    ("CHAP_I", "0x7"),
    ("CHAP_C", "0bMDEyMzQ1Njc4OWFiY2RlZg=="),
];

/// The challenge is cut by the algorithm, the identifier and the base64 form are as Windows' test kit has them.
#[test]
fn mutual_with_values_in_base64() {
    let mut login = challenged(MUTUAL, "7,5");
    let reply = respond(answer(&mut login, &MUTUAL_STEP));
    let expected = "0x40e07c91802fea0b07c780288505df31bd8d0455ed36d246f8c144374601d38d";
    assert_eq!(answers(&reply), [("CHAP_N", "storage"), ("CHAP_R", expected)]);
    assert!(reply.pdu.transit);
}

#[test]
fn the_alias_is_for_those_who_are_proven() {
    struct Named;
    impl TargetDirectory for Named {
        fn find(&self, _: &str, _: &str) -> Result<TargetEntry, LookupFailure> {
            Ok(TargetEntry { portal_group_tag: 1, alias: Some("A Disk".to_owned()), moved: None })
        }

        fn authentication(&self, _: Option<&str>) -> Option<Arc<ChapPolicy>> {
            Some(Arc::new(policy(false)))
        }
    }
    let mut login = login();
    let mut first = names_of(LOCKED);
    first.extend([("AuthMethod", "CHAP"), ("CHAP_A", "5")]);
    let reply = respond(login.step(&request(SECURITY, None), &text(&first), &Named));
    assert!(answers(&reply).iter().all(|(key, _)| *key != "TargetAlias"));
    let proof = text(&[("CHAP_N", "alice"), ("CHAP_R", &hex(MD5, SECRET))]);
    let reply = respond(login.step(&request(SECURITY, None), &proof, &Named));
    assert_eq!(answers(&reply), [("TargetAlias", "A Disk")]);
    let reply = respond(login.step(&request(SECURITY, Some(OPERATIONAL)), b"", &Named));
    assert!(reply.text.is_empty() && reply.pdu.transit);
}

#[test]
fn security_may_lead_straight_to_full_feature_once_somebody_is_proven() {
    let mut login = challenged(LOCKED, "5");
    let pairs = text(&[("CHAP_N", "alice"), ("CHAP_R", &hex(MD5, SECRET))]);
    let outcome = ready(login.step(&request(SECURITY, Some(FULL)), &pairs, &Directory));
    assert_eq!(outcome.user.as_deref(), Some("alice"));
}

#[test]
fn the_stage_may_end_in_a_request_of_its_own() {
    let mut login = challenged(LOCKED, "5");
    let pairs = text(&[("CHAP_N", "alice"), ("CHAP_R", &hex(MD5, SECRET))]);
    let reply = respond(login.step(&request(SECURITY, None), &pairs, &Directory));
    assert!(!reply.pdu.transit);
    assert!(respond(login.step(&request(SECURITY, Some(OPERATIONAL)), b"", &Directory)).pdu.transit);
}

#[test]
fn the_first_step_may_come_with_the_offer() {
    let mut login = login();
    let mut first = names_of(LOCKED);
    first.extend([("CHAP_A", "5"), ("AuthMethod", "CHAP")]);
    let reply = respond(login.step(&request(SECURITY, Some(OPERATIONAL)), &text(&first), &Directory));
    let keys: Vec<&str> = answers(&reply).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["TargetPortalGroupTag", "AuthMethod", "CHAP_A", "CHAP_I", "CHAP_C"]);
    assert!(!reply.pdu.transit);
}

#[test]
fn the_method_is_the_one_that_is_asked_for_wherever_it_stands() {
    for (target, offers, chosen) in [
        (LOCKED, ["CHAP", "CHAP,None", "None,CHAP", "KRB5,CHAP,SRP"], "CHAP"),
        (TARGET, ["None", "CHAP,None", "None,CHAP", "Z-com.example.x,None"], "None"),
    ] {
        for offer in offers {
            let mut first = names_of(target);
            first.push(("AuthMethod", offer));
            let reply = respond(login().step(&request(SECURITY, None), &text(&first), &Directory));
            assert_eq!(answers(&reply).last(), Some(&("AuthMethod", chosen)), "{offer}");
        }
    }
}

#[test]
fn nobody_gets_past_the_security_stage_without_chap() {
    let failed = LoginStatus::AuthenticationFailure;
    for offer in ["None", "KRB5", "", "chap", "CHAP5"] {
        let mut first = names_of(LOCKED);
        first.push(("AuthMethod", offer));
        assert_eq!(refused_at_once(&request(SECURITY, None), &text(&first)), failed, "{offer}");
    }
    let names = text(&names_of(LOCKED));
    for (stage, next) in [
        (OPERATIONAL, None),
        (OPERATIONAL, Some(FULL)),
        (SECURITY, Some(OPERATIONAL)),
        (SECURITY, Some(FULL)),
    ] {
        assert_eq!(refused_at_once(&request(stage, next), &names), failed, "{stage:?} to {next:?}");
    }
    // Nor later: the first request leaves the method open, the second wants to leave.
    let mut late = login();
    respond(late.step(&request(SECURITY, None), &names, &Directory));
    assert_eq!(refusal(&mut late, &[]), failed);
    // T changes nothing before all is proven.
    let mut login = chosen(LOCKED);
    let offer = text(&[("CHAP_A", "5")]);
    assert!(!respond(login.step(&request(SECURITY, Some(FULL)), &offer, &Directory)).pdu.transit);
    let early = request(OPERATIONAL, Some(FULL));
    assert_eq!(refused(&mut login, &early, b""), LoginStatus::InvalidDuringLogin);
}

#[test]
fn the_first_known_algorithm_is_taken_and_unknown_ones_are_passed_over() {
    for (offer, number) in [("5", "5"), ("7,5", "7"), ("99,x,,6,8", "6"), ("0x8", "8"), ("4294967301,8", "8")]
    {
        let mut login = chosen(LOCKED);
        let reply = respond(login.step(&request(SECURITY, None), &text(&[("CHAP_A", offer)]), &Directory));
        assert_eq!(answers(&reply)[0], ("CHAP_A", number), "{offer}");
    }
    for offer in ["", "4", "9", "MD5", "5;6", "-5", "05", "128,129"] {
        assert_eq!(refusal(&mut chosen(LOCKED), &[("CHAP_A", offer)]), LoginStatus::AuthenticationFailure);
    }
}

#[test]
fn a_wrong_response_is_an_authentication_failure() {
    let good = hex(MD5, SECRET);
    let wrong_bytes = format!("{}00", &good[..good.len() - 2]);
    for (name, response) in [
        ("alice", wrong_bytes.as_str()),
        ("alice", &hex(MD5, "bob's secret 16b")),
        ("alice", &hex(ChapAlgorithm::Sha1, SECRET)),
        ("alice", &good[..8]),
        ("alice", &format!("{good}00")),
        ("alice", "0x00"),
        ("Alice", &good),
        ("alice ", &good),
        ("bob", &good),
        // Bound to another initiator.
        ("bob", &hex(MD5, "bob's secret 16b")),
        // What the target itself would say (9.2.1).
        ("alice", &hex(MD5, TARGET_SECRET)),
    ] {
        let mut login = challenged(MUTUAL, "5");
        let status = refusal(&mut login, &[("CHAP_N", name), ("CHAP_R", response)]);
        assert_eq!(status, LoginStatus::AuthenticationFailure, "{name} {response}");
    }
}

#[test]
fn keys_that_do_not_fit_their_step_are_the_initiators_error() {
    let response = hex(MD5, SECRET);
    let (long, long_name) = (format!("0x{}", "00".repeat(1025)), "a".repeat(256));
    let (missing, error) = (LoginStatus::MissingParameter, LoginStatus::InitiatorError);
    let proven = [("CHAP_N", "alice"), ("CHAP_R", response.as_str())];
    let with = |more: &[(&'static str, &'static str)]| [&proven[..], more].concat();
    let cases: Vec<(Vec<(&str, &str)>, LoginStatus)> = vec![
        (vec![], missing),
        (vec![("CHAP_N", "alice")], missing),
        (vec![("CHAP_R", &response)], missing),
        // The reflection of 9.2: no response, but a challenge.
        (vec![("CHAP_N", "alice"), ("CHAP_I", "42"), ("CHAP_C", "0x5c5c")], missing),
        (with(&[("CHAP_I", "1")]), missing),
        (with(&[("CHAP_C", "0x0102")]), missing),
        (with(&[("CHAP_I", "256"), ("CHAP_C", "0x0102")]), error),
        (with(&[("CHAP_I", "one"), ("CHAP_C", "0x0102")]), error),
        (with(&[("CHAP_I", "1"), ("CHAP_C", "0x")]), error),
        (with(&[("CHAP_I", "1"), ("CHAP_C", "12345")]), error),
        (with(&[("CHAP_I", "1"), ("CHAP_C", "0b***")]), error),
        (with(&[("CHAP_A", "5")]), error),
        (with(&[("AuthMethod", "CHAP")]), error),
        (vec![("CHAP_N", "alice"), ("CHAP_R", &long)], error),
        (vec![("CHAP_N", "alice"), ("CHAP_R", "0xzz")], error),
        (vec![("CHAP_N", "alice"), ("CHAP_R", "0bA")], error),
        (vec![("CHAP_N", "alice"), ("CHAP_R", "no prefix")], error),
        (vec![("CHAP_N", "alice"), ("CHAP_R", "")], error),
        (vec![("CHAP_N", ""), ("CHAP_R", &response)], error),
        (vec![("CHAP_N", &long_name), ("CHAP_R", &response)], error),
    ];
    for (pairs, status) in cases {
        assert_eq!(refusal(&mut challenged(MUTUAL, "5"), &pairs), status, "{pairs:?}");
    }
    for pairs in [[("CHAP_N", "alice"), ("CHAP_R", response.as_str())], [("CHAP_A", "5"), ("CHAP_I", "1")]] {
        assert_eq!(refusal(&mut chosen(LOCKED), &pairs), error, "{pairs:?}");
    }
    assert_eq!(refusal(&mut chosen(LOCKED), &[]), missing);
    assert_eq!(refusal(&mut chosen(LOCKED), &[("X-com.example.a", "1")]), missing);
}

#[test]
fn nothing_of_the_exchange_may_come_again() {
    let response = hex(MD5, SECRET);
    for again in [
        ("CHAP_N", "alice"),
        ("CHAP_R", response.as_str()),
        ("CHAP_A", "5"),
        ("CHAP_I", "3"),
        ("CHAP_C", "0x01"),
    ] {
        let mut login = challenged(MUTUAL, "5");
        let pairs = text(&[("CHAP_N", "alice"), ("CHAP_R", &response)]);
        respond(login.step(&request(SECURITY, None), &pairs, &Directory));
        assert_eq!(refusal(&mut login, &[again]), LoginStatus::InitiatorError, "{again:?}");
    }
}

#[test]
fn our_challenge_must_not_come_back() {
    let proven = hex(MD5, SECRET);
    for challenge in [format!("0x{}", "5c".repeat(16)), "0bXFxcXFxcXFxcXFxcXFxcXA==".to_owned()] {
        let pairs = [("CHAP_N", "alice"), ("CHAP_R", &*proven), ("CHAP_I", "1"), ("CHAP_C", &*challenge)];
        assert_eq!(refusal(&mut challenged(MUTUAL, "5"), &pairs), LoginStatus::AuthenticationFailure);
    }
}

#[test]
fn a_target_without_a_secret_of_its_own_cannot_prove_itself() {
    let proven = hex(MD5, SECRET);
    let pairs = [("CHAP_N", "alice"), ("CHAP_R", &*proven), ("CHAP_I", "1"), ("CHAP_C", "0x0102")];
    assert_eq!(refusal(&mut challenged(LOCKED, "5"), &pairs), LoginStatus::AuthenticationFailure);
}

/// A response that was heard on the wire is of no use for another challenge.
#[test]
fn a_replay_fails() {
    let heard = hex(MD5, SECRET);
    let nonce = ChapNonce { challenge: [0x5d; 32], ..NONCE };
    let mut login = Login::new(TargetLimits::default(), 1, nonce);
    let mut first = names_of(LOCKED);
    first.extend([("AuthMethod", "CHAP"), ("CHAP_A", "5")]);
    respond(login.step(&request(SECURITY, None), &text(&first), &Directory));
    let status = refusal(&mut login, &[("CHAP_N", "alice"), ("CHAP_R", &heard)]);
    assert_eq!(status, LoginStatus::AuthenticationFailure);
}

#[test]
fn too_many_attempts_are_put_off_right_or_wrong() {
    for response in [hex(MD5, SECRET), hex(MD5, "a guess")] {
        let pairs = [("CHAP_N", "hasty"), ("CHAP_R", &*response)];
        assert_eq!(refusal(&mut challenged(LOCKED, "5"), &pairs), LoginStatus::ServiceUnavailable);
    }
}

#[test]
fn a_refusal_tells_the_peer_nothing_and_the_log_no_secret() {
    let response = hex(MD5, "a guess");
    for name in ["alice", "nobody"] {
        let pairs = text(&[("CHAP_N", name), ("CHAP_R", &response)]);
        let mut login = challenged(LOCKED, "5");
        match login.step(&request(SECURITY, None), &pairs, &Directory) {
            LoginStep::Fail(reply, failure) => {
                assert!(reply.text.is_empty() && reply.pdu.status_detail == 1);
                let shown = format!("{failure} {failure:?} {login:?}");
                assert!(shown.contains(name));
                assert!(!shown.contains(SECRET) && !shown.contains(&response[2..]), "{shown}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn discovery_has_a_policy_of_its_own() {
    struct LockedDiscovery;
    impl TargetDirectory for LockedDiscovery {
        fn find(&self, _: &str, _: &str) -> Result<TargetEntry, LookupFailure> {
            Ok(TargetEntry { portal_group_tag: 1, alias: None, moved: None })
        }

        fn authentication(&self, target: Option<&str>) -> Option<Arc<ChapPolicy>> {
            target.is_none().then(|| Arc::new(policy(false)))
        }
    }
    let first = text(&[("InitiatorName", INITIATOR), ("SessionType", "Discovery")]);
    match login().step(&request(OPERATIONAL, Some(FULL)), &first, &LockedDiscovery) {
        LoginStep::Fail(_, failure) => assert_eq!(failure.status, LoginStatus::AuthenticationFailure),
        other => panic!("{other:?}"),
    }
    let normal = with_names(&[]);
    ready(login().step(&request(OPERATIONAL, Some(FULL)), &normal, &LockedDiscovery));
}

/// Keys of the exchange with good, bad and strange values.
fn any_key() -> impl Strategy<Value = (&'static str, String)> {
    let key =
        prop::sample::select(vec!["AuthMethod", "CHAP_A", "CHAP_I", "CHAP_C", "CHAP_N", "CHAP_R", "X-a"]);
    let values = ["CHAP", "CHAP,None", "None", "5", "7", "42", "0x0102", "0bAAAA", "alice", "bob", ""];
    let value = prop_oneof![
        4 => prop::sample::select(values.to_vec()).prop_map(str::to_owned),
        2 => Just(hex(MD5, "a guess")),
        1 => "\\PC{0,12}",
        1 => "0[xb][0-9a-zA-Z=]{0,40}",
    ];
    (key, value)
}

proptest! {
    #![proptest_config(cases(256))]

    /// Without the secret no order of any keys leads out of the security stage; every way ends in one clean failure.
    #[test]
    fn nobody_gets_in_without_a_secret(
        steps in prop::collection::vec((prop::collection::vec(any_key(), 0..5), 0u8..3), 1..8),
    ) {
        let mut login = login();
        let mut is_first = true;
        for (keys, transit) in steps {
            let mut pairs: Vec<(&str, &str)> = if is_first { names_of(MUTUAL) } else { Vec::new() };
            is_first = false;
            pairs.extend(keys.iter().map(|(key, value)| (*key, value.as_str())));
            let next = [None, Some(OPERATIONAL), Some(FULL)][usize::from(transit)];
            match login.step(&request(SECURITY, next), &text(&pairs), &Directory) {
                LoginStep::Respond(reply) => prop_assert!(!reply.pdu.transit),
                LoginStep::Fail(reply, failure) => {
                    prop_assert_eq!(reply.pdu.status_class, failure.status.class());
                    prop_assert!(reply.text.is_empty());
                    return Ok(());
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }

    /// Whatever the order of the keys in each step, and however the text is split, the result is one.
    #[test]
    fn the_order_of_keys_makes_no_difference(
        first in Just(vec![0usize, 1, 2, 3]).prop_shuffle(),
        last in Just(vec![0usize, 1, 2, 3]).prop_shuffle(),
        part in 5usize..80,
    ) {
        let response = hex(MD5, SECRET);
        let offer = [("InitiatorName", INITIATOR), ("TargetName", MUTUAL), ("AuthMethod", "CHAP"), ("CHAP_A", "5")];
        let proof = [("CHAP_N", "alice"), ("CHAP_R", response.as_str()), ("CHAP_I", "9"), ("CHAP_C", "0x0102")];
        let mut login = login();
        for (all, order) in [(offer, first), (proof, last)] {
            let pairs: Vec<_> = order.into_iter().map(|at| all[at]).collect();
            let whole = text(&pairs);
            let mut parts = whole.chunks(part).peekable();
            while let Some(bytes) = parts.next() {
                let is_continued = parts.peek().is_some();
                let next = (!is_continued).then_some(OPERATIONAL);
                let sent = LoginRequest { is_continued, ..request(SECURITY, next) };
                respond(login.step(&sent, bytes, &Directory));
            }
        }
        let outcome = ready(login.step(&request(OPERATIONAL, Some(FULL)), b"", &Directory));
        prop_assert_eq!(outcome.user.as_deref(), Some("alice"));
    }
}
