//! Who tries to get in without a secret (RFC 7143, 9.2.1, 12.1.3): logins step by step, replayed, reflected, garbled, guessed.

use std::net::{IpAddr, Ipv4Addr};

use lunette_iscsi::chap::{ChapAlgorithm, Secret, decode_binary, encode_hex};
use lunette_tests::connection::Connection;
use lunette_tests::in_process::{InProcess, wait_until};
use lunette_tests::initiator::{Initiator, LoginOptions};
use lunette_wire::initiator::{LoginRequest, LoginStage};
use lunette_wire::target::LoginResponse;
use lunette_wire::{InitiatorPdu, Isid, TargetPdu, text};

use crate::{SECRET, chap, in_process};

/// A login that the test drives step by step.
struct Steps(Connection);

impl Steps {
    /// As far as the challenge: its identifier and its value as it came.
    fn challenged(target: &InProcess) -> (Self, u8, String) {
        Self::challenged_from(loopback(1), target)
    }

    /// From another of this machine's addresses.
    fn challenged_from(address: IpAddr, target: &InProcess) -> (Self, u8, String) {
        let mut steps = Self(Connection::open_from(address, target.portal()).expect("a connection"));
        let first = [
            ("InitiatorName", "iqn.2026-11.io.lunette:steps"),
            ("TargetName", target.name()),
            ("AuthMethod", "CHAP"),
        ];
        assert_eq!(steps.ask(&first).0.status_class, 0);
        let (_, answers) = steps.ask(&[("CHAP_A", "5")]);
        let value_of = |name| answers.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        let identifier = value_of("CHAP_I").and_then(|value| value.parse().ok()).expect("an identifier");
        (steps, identifier, value_of("CHAP_C").expect("a challenge"))
    }

    fn ask(&mut self, pairs: &[(&str, &str)]) -> (LoginResponse, Vec<(String, String)>) {
        let mut data = Vec::new();
        pairs.iter().for_each(|(key, value)| text::push(&mut data, key, value));
        let request = LoginRequest {
            current_stage: LoginStage::Security,
            isid: Isid([0x80, 0, 0, 0, 0, 7]),
            ..LoginRequest::default()
        };
        self.0.send(&InitiatorPdu::LoginRequest(request), &data).expect("a request");
        let (TargetPdu::LoginResponse(response), data) = self.0.receive().expect("an answer") else {
            panic!("no Login Response")
        };
        let pairs = text::pairs(&data).expect("pairs").into_iter();
        (response, pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    /// Answers the challenge and returns the status.
    fn answer(&mut self, pairs: &[(&str, &str)]) -> (u8, u8) {
        let (response, _) = self.ask(pairs);
        (response.status_class, response.status_detail)
    }

    /// Gives a response that may be wrong.
    fn guess(target: &InProcess, user: &str) -> (u8, u8) {
        Self::guess_from(loopback(1), target, user)
    }

    fn guess_from(address: IpAddr, target: &InProcess, user: &str) -> (u8, u8) {
        let (mut steps, _, _) = Self::challenged_from(address, target);
        steps.answer(&[("CHAP_N", user), ("CHAP_R", "0x00112233445566778899aabbccddeeff")])
    }
}

/// RFC 7143: 9.2.1.
#[test]
fn challenges_never_come_again() {
    let target = in_process(|_| ());
    let seen: std::collections::HashSet<String> = (0..50)
        .map(|_| Steps::challenged(&target).2)
        .inspect(|value| assert_eq!(value.len(), 2 + 32))
        .collect();
    assert_eq!(seen.len(), 50);
}

#[test]
fn a_recorded_login_is_of_no_use() {
    let target = in_process(|_| ());
    let (mut steps, identifier, challenge) = Steps::challenged(&target);
    let challenge = decode_binary(&challenge, 1024).expect("a value");
    let response = ChapAlgorithm::Md5.respond(identifier, &Secret::new(SECRET), &challenge);
    let recorded = encode_hex(response.bytes());
    let pairs = [("CHAP_N", "alice"), ("CHAP_R", recorded.as_str())];
    let (mut again, _, _) = Steps::challenged(&target);
    assert_eq!(again.answer(&pairs), (2, 1));
    // It was right where it belongs.
    assert_eq!(steps.answer(&pairs), (0, 0));
}

/// RFC 7143: 9.2.1.
#[test]
fn a_challenge_cannot_be_reflected_on_one_connection_or_over_two() {
    let target = in_process(|_| ());
    // Our own challenge back, in either form of its value.
    let (mut steps, _, challenge) = Steps::challenged(&target);
    let reflected =
        [("CHAP_N", "alice"), ("CHAP_R", "0x00"), ("CHAP_I", "1"), ("CHAP_C", challenge.as_str())];
    assert_eq!(steps.answer(&reflected), (2, 1));
    // To a second connection, to have it answered there for use on the first: nobody is answered before he is proven.
    let (_first, _, challenge) = Steps::challenged(&target);
    let (mut second, _, _) = Steps::challenged(&target);
    let (response, answers) = second.ask(&[
        ("CHAP_N", "alice"),
        ("CHAP_R", "0x00112233445566778899aabbccddeeff"),
        ("CHAP_I", "1"),
        ("CHAP_C", &challenge),
    ]);
    assert_eq!((response.status_class, response.status_detail), (2, 1));
    assert_eq!(answers, []);
    // Without a response (RFC 7143, 9.2).
    let (mut third, _, _) = Steps::challenged(&target);
    assert_eq!(third.answer(&[("CHAP_N", "alice"), ("CHAP_I", "1"), ("CHAP_C", &challenge)]), (2, 7));
}

#[test]
fn overlong_and_garbled_values_are_refused() {
    let target = in_process(|config| config.limits.login_failures_max = 1000);
    let hex = format!("0x{}", "00".repeat(4000));
    let base64 = format!("0b{}", "A".repeat(8000));
    let name = "n".repeat(8000);
    for pairs in [
        [("CHAP_N", "alice"), ("CHAP_R", hex.as_str())],
        [("CHAP_N", "alice"), ("CHAP_R", base64.as_str())],
        [("CHAP_N", "alice"), ("CHAP_R", "0b!!!!")],
        [("CHAP_N", "alice"), ("CHAP_R", "0x")],
        [("CHAP_N", "alice"), ("CHAP_R", "\u{1f512}")],
        [("CHAP_N", name.as_str()), ("CHAP_R", "0x00")],
    ] {
        let (mut steps, _, _) = Steps::challenged(&target);
        let peer = steps.0.local_address().expect("an address");
        assert_eq!(steps.answer(&pairs), (2, 0));
        let line = target.log_about(peer, "login failed");
        assert!(line.len() < 400, "{line}");
    }
}

/// Status 0301: not now (RFC 7143, 11.13.5).
const PUT_OFF: (u8, u8) = (3, 1);
/// Status 0201: authentication failure.
const REFUSED: (u8, u8) = (2, 1);

/// A target that bears with three failures, and forgives none while the test runs.
fn impatient() -> InProcess {
    in_process(|config| {
        config.limits.login_failures_max = 3;
        config.limits.login_failure_forgiven_s = 3600;
    })
}

/// An address of this machine.
const fn loopback(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, last))
}

#[test]
fn guessing_is_put_off_right_or_wrong() {
    let target = impatient();
    for _ in 0..3 {
        assert_eq!(Steps::guess(&target, "alice"), REFUSED);
    }
    assert_eq!(Steps::guess(&target, "alice"), PUT_OFF);
    // A right response is not looked at either, so that nobody learns that it was right.
    let options = LoginOptions { chap: Some(chap("5", SECRET, None)), ..target.options(1) };
    let error = Initiator::login(target.portal(), &options).expect_err("too many").to_string();
    assert!(error.contains("status 0301"), "{error}");
    wait_until("the log says so", || !target.log_with("too many failed logins").is_empty());
}

#[test]
fn an_address_is_put_off_whatever_name_it_guesses_at() {
    let target = impatient();
    for name in ["alice", "bob", "nobody"] {
        assert_eq!(Steps::guess_from(loopback(2), &target, name), REFUSED);
    }
    for name in ["alice", "bob", "nobody"] {
        assert_eq!(Steps::guess_from(loopback(2), &target, name), PUT_OFF);
    }
    assert_eq!(Steps::guess_from(loopback(3), &target, "alice"), REFUSED, "another address, as often as any");
}

#[test]
fn a_name_is_put_off_wherever_it_is_guessed_at_but_where_it_was_proven() {
    let target = impatient();
    let alice = LoginOptions { chap: Some(chap("5", SECRET, None)), ..target.options(1) };
    Initiator::login(target.portal(), &alice).expect("a login").logout().expect("a logout");
    for last in 2..5 {
        assert_eq!(Steps::guess_from(loopback(last), &target, "alice"), REFUSED);
    }
    // An address that has not failed before, wrong or right.
    assert_eq!(Steps::guess_from(loopback(5), &target, "alice"), PUT_OFF);
    let (mut steps, identifier, challenge) = Steps::challenged_from(loopback(5), &target);
    let challenge = decode_binary(&challenge, 1024).expect("a value");
    let response = ChapAlgorithm::Md5.respond(identifier, &Secret::new(SECRET), &challenge);
    let right = encode_hex(response.bytes());
    assert_eq!(steps.answer(&[("CHAP_N", "alice"), ("CHAP_R", &right)]), PUT_OFF);
    assert_eq!(Steps::guess_from(loopback(5), &target, "bob"), REFUSED, "another name");
    Initiator::login(target.portal(), &alice).expect("nobody locks Alice out").logout().expect("a logout");
}
