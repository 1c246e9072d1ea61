//! Targets that break the rules: wrong headers, texts without end, anything at all.

use lunette_cases::cases;
use proptest::prelude::*;

use super::*;
use crate::login::LOGIN_REQUESTS_MAX;

fn broken(change: impl FnOnce(&mut LoginResponse)) -> LoginError {
    let mut puppet = Puppet::operational(settings());
    let mut response = puppet.response(FULL);
    change(&mut response);
    match puppet.login.received(Duration::ZERO, &response, b"") {
        Step::Failed(error) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn headers_that_do_not_fit_are_named() {
    for (error, word) in [
        (broken(|pdu| pdu.initiator_task_tag.0 += 1), "Initiator Task Tag"),
        (broken(|pdu| pdu.isid.0[5] += 1), "ISID"),
        (broken(|pdu| pdu.version_active = 1), "version"),
        (broken(|pdu| pdu.numbers.stat_sn = StatSn(5)), "status numbers"),
        (broken(|pdu| pdu.current_stage = LoginStage::Security), "stage that the login is not in"),
        (broken(|pdu| pdu.is_continued = true), "both the T and the C bit"),
        (broken(|pdu| pdu.next_stage = LoginStage::Operational), "did not ask for"),
    ] {
        assert!(matches!(error, LoginError::Protocol(_)) && error.to_string().contains(word), "{error}");
    }
}

#[test]
fn nothing_comes_after_the_end() {
    let mut puppet = Puppet::operational(settings());
    puppet.ends(&[]);
    let pdus = puppet.login.trace().pdus.len();
    let error = puppet.fails(FULL, &[]);
    assert!(error.to_string().contains("after the login's end"), "{error}");
    assert_eq!(puppet.login.trace().pdus.len(), pdus);
    let step = Puppet::new(settings()).login.other_pdu(0x25);
    assert!(matches!(step, Step::Failed(LoginError::Protocol(_))));
}

#[test]
fn an_endless_target_is_left() {
    let mut puppet = Puppet::operational(settings());
    let mut rounds = 0;
    let error = loop {
        match puppet.answers(HERE, &[]) {
            Step::Send(pdu) => puppet.last = pdu,
            Step::Failed(error) => break error,
            other => panic!("{other:?}"),
        }
        rounds += 1;
        assert!(rounds <= EXCHANGES_MAX);
    };
    assert!(matches!(error, LoginError::Endless(_)), "{error}");

    let mut puppet = Puppet::operational(settings());
    let mut response = puppet.response(HERE);
    let step = puppet.login.received(Duration::ZERO, &response, &[b'x'; LOGIN_SEGMENT_MAX + 1]);
    assert!(matches!(step, Step::Failed(LoginError::Endless(_))), "{step:?}");

    let mut puppet = Puppet::operational(settings());
    for sent in 1.. {
        response = puppet.response(HERE);
        response.is_continued = true;
        match puppet.login.received(Duration::ZERO, &response, &[b'x'; LOGIN_SEGMENT_MAX]) {
            Step::Send(pdu) => puppet.last = pdu,
            step => return assert!(matches!(step, Step::Failed(LoginError::Endless(_))), "{step:?}"),
        }
        assert!(sent * LOGIN_SEGMENT_MAX <= LOGIN_TEXT_MAX);
    }
}

#[test]
fn keys_without_end_are_refused() {
    let many: Vec<_> = (0..100).map(|n| (format!("X-{n}"), "1")).collect();
    let pairs: Vec<_> = many.iter().map(|(key, value)| (key.as_str(), *value)).collect();
    let error = Puppet::operational(settings()).fails(HERE, &pairs);
    assert!(error.to_string().contains("too many"), "{error}");
}

#[test]
fn a_text_while_ours_is_on_its_way_is_taken_and_one_in_parts_is_not() {
    let value = "v".repeat(ADDITIONAL_VALUE_LENGTH_MAX);
    let additional = vec![("X-a.b".to_owned(), value.clone()), ("X-a.c".to_owned(), value)];
    let wishes = Wishes { additional, ..Wishes::default() };
    let mut puppet = Puppet::operational(LoginSettings { wishes, ..settings() });
    assert!(puppet.last.pdu.is_continued && !puppet.last.pdu.transit);
    let response = LoginResponse { is_continued: true, ..puppet.response(HERE) };
    let step = puppet.login.received(Duration::ZERO, &response, b"X");
    assert!(matches!(step, Step::Failed(LoginError::Protocol(_))), "{step:?}");
}

const STAGES: [LoginStage; 3] = [HERE, OPERATIONAL, FULL];

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn any_answers_end_in_bounds(
        with_chap: bool,
        answers in proptest::collection::vec(
            (0..3usize, any::<bool>(), 0..12u8, proptest::collection::vec((0..40usize, 0..12usize), 0..6)), 0..100
        ),
    ) {
        let names: Vec<&str> =
            crate::parameters::keys::TABLE.iter().map(|row| row.name).chain(["X-a.b", "bad key"]).collect();
        let values =
            ["Yes", "No", "1", "512", "0", "None", "CRC32C", "CHAP", "5", "0x00112233", "Reject", "NotUnderstood"];
        let credentials = with_chap.then(|| Credentials::new(credential("alice", "a secret of 16 b")));
        let mut puppet = Puppet::new(LoginSettings { credentials, ..settings() });
        for (next, is_continued, change, keys) in answers {
            let keys: Vec<_> =
                keys.into_iter().map(|(key, value)| (names[key % names.len()], values[value])).collect();
            let mut response = puppet.response(STAGES[next]);
            response.is_continued = is_continued && next == 0;
            if change == 0 {
                response.status_class = 2;
            }
            match puppet.login.received(Duration::ZERO, &response, &text(&keys)) {
                Step::Send(pdu) => {
                    prop_assert!(pdu.text.len() <= LOGIN_SEGMENT_MAX);
                    prop_assert!(!(pdu.pdu.transit && pdu.pdu.is_continued));
                    puppet.last = pdu;
                }
                Step::Done(outcome) => {
                    prop_assert!(outcome.session.first_burst_length <= outcome.session.max_burst_length);
                    prop_assert!((512..1 << 24).contains(&outcome.connection.max_send_data_segment_length));
                    break;
                }
                Step::Moved(_) | Step::Failed(_) => break,
            }
        }
        prop_assert!(puppet.login.trace().pdus.len() <= 2 * LOGIN_REQUESTS_MAX as usize + 2);
    }

    #[test]
    fn any_bytes_end_in_bounds(
        headers in proptest::collection::vec((any::<[u8; 48]>(), proptest::collection::vec(any::<u8>(), 0..64)), 1..20),
    ) {
        let (mut login, _) = begin(settings());
        for (mut bhs, data) in headers {
            bhs[0] = 0x23;
            let Ok(lunette_wire::TargetPdu::LoginResponse(response)) = lunette_wire::TargetPdu::decode(&bhs) else {
                continue;
            };
            login.received(Duration::ZERO, &response, &data);
        }
    }
}
