//! CHAP in both directions (RFC 7143, 9.2, 9.2.1, 12.1.3): with our target, and with targets that cheat.

use super::pair::{Both, Directory, OPEN, play};
use super::*;
use crate::chap::{ChapAlgorithm, ChapPolicy, ChapUser, encode_hex};
use crate::parameters::TargetLimits;

const SECRET: &str = "alice's own 16 b";
const TARGET_SECRET: &str = "the target's 16b";

fn guarded(algorithms: &[ChapAlgorithm]) -> Directory {
    let users = vec![ChapUser { credential: credential("alice", SECRET), initiators: Vec::new() }];
    let own = Some(credential("storage", TARGET_SECRET));
    let policy = ChapPolicy { users, own, algorithms: algorithms.to_vec() };
    Directory { policy: Some(Arc::new(policy)), moved: None }
}

fn alice() -> Credentials {
    Credentials::new(credential("alice", SECRET))
}

fn mutual() -> Credentials {
    Credentials { target: Some(credential("storage", TARGET_SECRET)), ..alice() }
}

fn with(credentials: Credentials) -> LoginSettings {
    LoginSettings { credentials: Some(credentials), ..settings() }
}

fn tried(credentials: Option<Credentials>, directory: &Directory) -> Both {
    play(LoginSettings { credentials, ..settings() }, TargetLimits::default(), directory)
}

#[test]
fn each_algorithm_works_one_way_and_mutually_in_every_session() {
    for algorithm in ChapAlgorithm::ALL {
        for credentials in [alice(), mutual()] {
            for tsih in [Tsih(0), Tsih(5)] {
                let login = LoginSettings { tsih, ..with(credentials.clone()) };
                let both = play(login, TargetLimits::default(), &guarded(&[algorithm]));
                let (ours, theirs, _) = both.agreed();
                assert_eq!((ours.algorithm, theirs.user.as_deref()), (Some(algorithm), Some("alice")));
            }
        }
    }
}

#[test]
fn the_strongest_algorithm_that_both_have_is_used() {
    let both = tried(Some(alice()), &guarded(&[ChapAlgorithm::Md5, ChapAlgorithm::Sha256]));
    assert_eq!(both.agreed().0.algorithm, Some(ChapAlgorithm::Sha256));
    let weak = Credentials { algorithms: vec![ChapAlgorithm::Md5], ..alice() };
    let error = tried(Some(weak), &guarded(&[ChapAlgorithm::Sha256])).error();
    assert!(error.is_authentication() && error.to_string().contains("which algorithms"), "{error}");
}

#[test]
fn who_has_nothing_to_prove_logs_in_with_credentials_too() {
    assert_eq!(tried(Some(alice()), &OPEN).agreed().0.algorithm, None);
    for strict in [Credentials { is_required: true, ..alice() }, mutual()] {
        let error = tried(Some(strict), &OPEN).error();
        assert!(error.is_authentication(), "{error}");
    }
}

#[test]
fn who_is_not_let_in_learns_what_to_try() {
    let all = guarded(&ChapAlgorithm::ALL);
    let shown = |credentials| tried(credentials, &all).error().to_string();
    assert!(shown(None).contains("give a CHAP name and secret"));
    for wrong in [credential("alice", "bob's own 16 byt"), credential("bob", SECRET)] {
        let message = shown(Some(Credentials::new(wrong)));
        assert!(message.contains("check the CHAP name and secret on both sides"), "{message}");
    }
}

#[test]
fn a_target_that_cannot_prove_itself_is_left() {
    let all = guarded(&ChapAlgorithm::ALL);
    for (expected, word) in [
        (credential("storage", "another secret.."), "different secrets"),
        (credential("vault", TARGET_SECRET), "calls itself"),
    ] {
        let error = tried(Some(Credentials { target: Some(expected), ..alice() }), &all).error();
        assert!(matches!(&error, LoginError::TargetNotProven(reason) if reason.contains(word)), "{error}");
        assert_eq!(error.side(), Side::Target);
    }
}

#[test]
fn one_secret_for_both_directions_is_not_even_tried() {
    let same = Credentials { target: Some(credential("storage", SECRET)), ..alice() };
    let error = Login::begin(with(same), nonce(1), Duration::ZERO).unwrap_err();
    assert!(matches!(&error, LoginError::Settings(reason) if reason.contains("9.2.1")), "{error}");
    for bad in [
        Credentials::new(credential("", SECRET)),
        Credentials::new(credential(&"x".repeat(256), SECRET)),
        Credentials::new(credential("a\0b", SECRET)),
        Credentials::new(credential("alice", "")),
        Credentials { algorithms: vec![], ..alice() },
    ] {
        assert!(Login::begin(with(bad), nonce(1), Duration::ZERO).is_err());
    }
}

/// A target that has agreed on CHAP.
fn chosen(credentials: Credentials) -> Puppet {
    let mut puppet = Puppet::new(with(credentials));
    assert!(!puppet.last.pdu.transit, "CHAP is not through with one request");
    puppet.sends(HERE, &[("AuthMethod", "CHAP")]);
    assert_eq!(said(&puppet.last, "CHAP_A"), Some("8,7,6,5"));
    puppet
}

const CHALLENGE: &str = "0x000102030405060708090a0b0c0d0e0f";

/// A target that waits for our response.
fn answered(credentials: Credentials) -> Puppet {
    let mut puppet = chosen(credentials);
    puppet.sends(HERE, &[("CHAP_A", "5"), ("CHAP_I", "7"), ("CHAP_C", CHALLENGE)]);
    assert_eq!(puppet.last.pdu.next_stage, OPERATIONAL);
    puppet
}

#[test]
fn a_reflected_challenge_is_refused() {
    let mut puppet = chosen(mutual());
    let own = encode_hex(&[0xa5; 16]);
    let error = puppet.fails(HERE, &[("CHAP_A", "5"), ("CHAP_I", "165"), ("CHAP_C", &own)]);
    assert!(matches!(&error, LoginError::TargetNotProven(reason) if reason.contains("9.2.1")), "{error}");
}

#[test]
fn a_proof_with_our_own_secret_is_none() {
    let mut puppet = answered(mutual());
    let (identifier, challenge) = (nonce(0xa5).identifier, [0xa5; 16]);
    let response = ChapAlgorithm::Md5.respond(identifier, &Secret::new(SECRET), &challenge);
    let proof = encode_hex(response.bytes());
    let error = puppet.fails(OPERATIONAL, &[("CHAP_N", "storage"), ("CHAP_R", &proof)]);
    assert!(error.to_string().contains("our own secret"), "{error}");
}

#[test]
fn a_target_that_lets_us_in_without_its_proof_is_left() {
    for next in [HERE, OPERATIONAL] {
        let error = answered(mutual()).fails(next, &[]);
        assert!(error.to_string().contains("without the proof"), "{error}");
    }
    let short = [("CHAP_N", "storage"), ("CHAP_R", "0x0102")];
    let error = answered(mutual()).fails(OPERATIONAL, &short);
    assert!(error.to_string().contains("has 2 bytes where MD5 has 16"), "{error}");
}

#[test]
fn a_target_may_take_its_time_with_the_last_step() {
    let mut puppet = answered(alice());
    puppet.sends(HERE, &[]);
    assert!(puppet.last.text.is_empty() && puppet.last.pdu.transit, "T stays set (6.3.3)");
    puppet.sends(OPERATIONAL, &[]);
    assert_eq!(puppet.last.pdu.current_stage, OPERATIONAL);
}

#[test]
fn broken_steps_end_the_login() {
    let full = [("CHAP_A", "5"), ("CHAP_I", "7"), ("CHAP_C", CHALLENGE)];
    for missing in 0..3 {
        let mut keys = full.to_vec();
        let (key, _) = keys.remove(missing);
        let error = chosen(alice()).fails(HERE, &keys);
        assert!(error.to_string().contains(&format!("{key} is missing")), "{error}");
    }
    for (key, value) in
        [("CHAP_A", "9"), ("CHAP_A", "x"), ("CHAP_I", "256"), ("CHAP_C", "1234"), ("CHAP_C", "0x")]
    {
        let keys = full.map(|(name, before)| (name, if name == key { value } else { before }));
        let error = chosen(alice()).fails(HERE, &keys);
        assert!(error.to_string().contains(key) && error.side() == Side::Target, "{error}");
    }
    // CHAP without its choice, twice the same key, the end in the middle.
    let early = Puppet::new(with(alice())).fails(HERE, &[("CHAP_A", "5")]);
    assert!(early.to_string().contains("before CHAP was agreed on"), "{early}");
    let twice = chosen(alice()).fails(HERE, &[("CHAP_A", "5"), ("CHAP_A", "5")]);
    assert!(twice.to_string().contains("twice"), "{twice}");
    let again = chosen(alice()).fails(HERE, &[("AuthMethod", "CHAP")]);
    assert!(again.to_string().contains("came again"), "{again}");
    let ended = Puppet::new(settings()).fails(FULL, &[("AuthMethod", "None")]);
    assert!(ended.to_string().contains("did not ask for"), "{ended}");
}

/// 12.1.3: MD5 is what every target has, and 1024 bytes are the most in either direction.
#[test]
fn every_target_is_offered_md5_and_challenges_are_bounded() {
    let offered = said(&chosen(alice()).last, "CHAP_A").map(str::to_owned);
    assert!(offered.is_some_and(|list| list.split(',').any(|algorithm| algorithm == "5")));
    for (length, is_taken) in [(1024, true), (1025, false)] {
        let mut puppet = chosen(alice());
        let challenge = encode_hex(&vec![7; length]);
        let step = puppet.answers(HERE, &[("CHAP_A", "5"), ("CHAP_I", "7"), ("CHAP_C", &challenge)]);
        match step {
            Step::Send(pdu) => {
                assert!(is_taken);
                assert_eq!(said(&pdu, "CHAP_R").map(str::len), Some(2 + 2 * 16));
            }
            Step::Failed(error) => assert!(!is_taken && error.to_string().contains("CHAP_C"), "{error}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn methods_that_nobody_offered_are_refused() {
    for (credentials, answer) in
        [(None, "CHAP"), (None, "Reject"), (Some(alice()), "KRB5"), (Some(mutual()), "None")]
    {
        let error =
            Puppet::new(LoginSettings { credentials, ..settings() }).fails(HERE, &[("AuthMethod", answer)]);
        assert!(error.is_authentication() && error.to_string().contains(answer), "{error}");
    }
}

#[test]
fn nothing_secret_is_shown() {
    let both = tried(Some(mutual()), &guarded(&ChapAlgorithm::ALL));
    let shown = format!("{:?}", both.trace);
    let (_, _, trace) = both.agreed();
    let pairs: Vec<_> = trace.pdus.iter().flat_map(|pdu| &pdu.pairs).collect();
    let hidden: Vec<_> = pairs.iter().filter(|(name, _)| name == "CHAP_R" || name == "CHAP_C").collect();
    assert_eq!(hidden.len(), 4);
    assert!(hidden.iter().all(|(_, value)| value == "(66 characters)"), "{hidden:?}");
    assert!(!shown.contains("0x"), "{shown}");
    let (login, _) = begin(with(mutual()));
    let shown = format!("{login:?}");
    assert!(!shown.contains(SECRET) && !shown.contains(TARGET_SECRET));
}

#[test]
fn the_security_stage_is_left_out_by_who_has_no_secret_only() {
    let login =
        LoginSettings { skips_security: true, ..with(Credentials::new(credential("user", "0123456789ab"))) };
    assert_eq!(begin(login).1.pdu.current_stage, HERE);

    let mut puppet = Puppet::new(LoginSettings { skips_security: true, ..settings() });
    assert_eq!((puppet.last.pdu.current_stage, puppet.last.pdu.next_stage), (OPERATIONAL, FULL));
    assert_eq!((said(&puppet.last, "AuthMethod"), said(&puppet.last, "TargetName")), (None, Some(TARGET)));
    let refused = |puppet: &mut Puppet, code: u16| {
        let [status_class, status_detail] = code.to_be_bytes();
        let response = LoginResponse { status_class, status_detail, ..puppet.response(HERE) };
        match puppet.login.received(Duration::ZERO, &response, &[]) {
            Step::Failed(error) => error,
            other => panic!("{other:?}"),
        }
    };
    assert!(refused(&mut puppet, 0x0201).may_miss_security());
    for (code, may) in
        [(0x0200, true), (0x020b, true), (0x02ff, true), (0x0202, false), (0x0203, false), (0x0301, false)]
    {
        let mut puppet = Puppet::new(LoginSettings { skips_security: true, ..settings() });
        assert_eq!(refused(&mut puppet, code).may_miss_security(), may, "{code:04x}");
    }
}
