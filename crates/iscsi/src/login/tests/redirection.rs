//! Logins that are sent elsewhere (RFC 7143, 11.13.5, 13.8): when, and what they are told.

use super::chap::{MD5, MUTUAL_STEP, SECRET, answer, challenged, chosen, hex};
use super::*;

const AWAY: &str = "iqn.2026-11.io.lunette:away";
const AWAY_LOCKED: &str = "iqn.2026-11.io.lunette:away:locked";
const AWAY_MUTUAL: &str = "iqn.2026-11.io.lunette:away:mutual";

/// The status of a redirection, which must be told with both addresses and end the login.
fn redirected(login: &mut Login, request: &LoginRequest, text: &[u8]) -> u16 {
    match login.step(request, text, &Directory) {
        LoginStep::Fail(reply, failure) => {
            assert_eq!(reply.pdu.status_class, 1);
            assert!(!reply.pdu.transit && !reply.pdu.is_continued);
            // 13.8: no portal group tag in it.
            assert_eq!(
                answers(&reply),
                [("TargetAddress", "192.0.2.7"), ("TargetAddress", "[2001:db8::7]:3261")]
            );
            assert!(failure.to_string().contains("at 192.0.2.7 [2001:db8::7]:3261"), "{failure}");
            assert!(matches!(login.step(request, b"", &Directory), LoginStep::Drop(_)));
            failure.status.code()
        }
        other => panic!("a redirection was expected, not {other:?}"),
    }
}

#[test]
fn where_nobody_has_anything_to_prove_the_first_response_redirects() {
    for (initiator, status) in [("iqn.a:now", 0x0101), ("iqn.a:for-good", 0x0102)] {
        let names = [("InitiatorName", initiator), ("TargetName", AWAY), ("AuthMethod", "None")];
        for first in [request(SECURITY, Some(OPERATIONAL)), request(SECURITY, None)] {
            assert_eq!(redirected(&mut login(), &first, &text(&names)), status);
        }
        let first = request(OPERATIONAL, Some(FULL));
        assert_eq!(redirected(&mut login(), &first, &text(&names[..2])), status);
    }
}

#[test]
fn a_text_in_parts_is_read_whole_before_it_redirects() {
    let mut login = login();
    let whole = text(&[("InitiatorName", INITIATOR), ("TargetName", AWAY), ("AuthMethod", "None")]);
    let (first, rest) = whole.split_at(20);
    let part = LoginRequest { is_continued: true, ..request(SECURITY, None) };
    assert!(respond(login.step(&part, first, &Directory)).text.is_empty());
    assert_eq!(redirected(&mut login, &request(SECURITY, Some(OPERATIONAL)), rest), 0x0101);
}

#[test]
fn who_has_proven_nothing_is_told_nothing() {
    let mut login = challenged(AWAY_LOCKED, "5");
    let step = answer(&mut login, &[("CHAP_N", "alice"), ("CHAP_R", &hex(MD5, "another secret 1"))]);
    let LoginStep::Fail(reply, failure) = step else { panic!("the response was wrong") };
    assert_eq!(failure.status, LoginStatus::AuthenticationFailure);
    assert!(reply.text.is_empty());
    // Nor who would skip the proof.
    let names = [("InitiatorName", INITIATOR), ("TargetName", AWAY_LOCKED)];
    assert_eq!(
        refused_at_once(&request(OPERATIONAL, Some(FULL)), &text(&names)),
        LoginStatus::AuthenticationFailure
    );
}

#[test]
fn after_the_proof_the_operational_stage_redirects() {
    let mut login = challenged(AWAY_LOCKED, "5");
    let reply = respond(answer(&mut login, &[("CHAP_N", "alice"), ("CHAP_R", &hex(MD5, SECRET))]));
    assert!(reply.pdu.transit);
    assert_eq!(redirected(&mut login, &request(OPERATIONAL, None), b""), 0x0101);
}

#[test]
fn the_targets_own_proof_comes_first() {
    let mut login = challenged(AWAY_MUTUAL, "7,5");
    let reply = respond(answer(&mut login, &MUTUAL_STEP));
    assert_eq!(answers(&reply).first().map(|(key, _)| *key), Some("CHAP_N"));
    let offers = text(&[("HeaderDigest", "None")]);
    assert_eq!(redirected(&mut login, &request(OPERATIONAL, Some(FULL)), &offers), 0x0101);
}

#[test]
fn a_login_that_skips_the_operational_stage_is_redirected_at_its_end() {
    let mut login = chosen(AWAY_LOCKED);
    respond(login.step(&request(SECURITY, None), &text(&[("CHAP_A", "5")]), &Directory));
    let proof = text(&[("CHAP_N", "alice"), ("CHAP_R", &hex(MD5, SECRET))]);
    assert_eq!(redirected(&mut login, &request(SECURITY, Some(FULL)), &proof), 0x0101);
}
