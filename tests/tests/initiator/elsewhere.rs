//! Logins that do not go straight: targets that have moved, and targets that compute weaker hashes than they say.

use lunette_initiator::{
    ChapAlgorithm, ChapCredential, Credentials, Engine, Error, LoginRecord, Options, Secret, login_trace,
};
use lunette_iscsi::chap::ChapUser;
use lunette_target::config::{ChapConfig, Redirection};
use lunette_tests::engine::{exercise, options};
use lunette_tests::in_process::InProcess;
use lunette_tests::need_programs;
use lunette_tests::relay::Relay;
use lunette_tests::tgtd::{TARGET_NAME, Tgtd};

const NAME: &str = "iqn.2026-11.io.lunette:elsewhere";

fn serve() -> InProcess {
    InProcess::start_with(&["mem:16M"], |config| config.targets[0].name = NAME.to_owned())
}

/// A target that is somewhere else now.
fn moved(is_permanent: bool, to: std::net::SocketAddr) -> InProcess {
    InProcess::start_with(&["mem:1M"], |config| {
        config.targets[0].name = NAME.to_owned();
        let address = to.to_string().parse().expect("an address");
        config.targets[0].redirect = Redirection::new(is_permanent, vec![address]);
    })
}

#[test]
fn a_target_that_has_moved_is_followed() {
    let target = serve();
    for (is_permanent, how) in [(false, "for now"), (true, "permanently")] {
        let old = moved(is_permanent, target.portal());
        let options = options(NAME, old.portal());
        let (record, outcome) = login_trace(&options);
        outcome.expect("a login elsewhere");
        let ends: Vec<&str> = record.attempts.iter().map(|attempt| attempt.end.as_str()).collect();
        assert_eq!(ends, [&format!("sent elsewhere, {how}"), "logged in"]);
        assert_eq!(record.attempts[1].address, Some(target.portal()));
        // Every connection of a session finds its way.
        let mut engine = Engine::connect(Options { connections: 2, ..options }).expect("a session");
        assert_eq!(engine.connections().len(), 2);
        exercise(&mut engine, 0, 512, 3);
        engine.close().expect("a logout");
    }
}

fn endless(record: &LoginRecord, error: &Error, word: &str) {
    assert!(matches!(error, Error::Login { .. }) && error.to_string().contains(word), "{error}");
    assert!(record.attempts.len() <= 9, "{}", record.attempts.len());
    assert!(!error.is_temporary(), "it is not tried again");
}

#[test]
fn a_way_in_circles_or_without_an_end_is_left() {
    let target = serve();
    let relay = Relay::to(target.portal());
    let itself = moved(false, relay.address);
    relay.lead_to(itself.portal());
    let (record, outcome) = login_trace(&options(NAME, itself.portal()));
    endless(&record, &outcome.expect_err("a circle"), "in circles");

    let mut chain = vec![target];
    for _ in 0..9 {
        let next = moved(true, chain[chain.len() - 1].portal());
        chain.push(next);
    }
    let (record, outcome) = login_trace(&options(NAME, chain[8].portal()));
    outcome.expect("eight steps");
    assert_eq!(record.attempts.len(), 9);
    let (record, outcome) = login_trace(&options(NAME, chain[9].portal()));
    endless(&record, &outcome.expect_err("nine steps"), "more than 8 times");
}

fn alice(secret: &str, algorithms: Vec<ChapAlgorithm>) -> Option<Credentials> {
    let user = ChapCredential { name: "alice".to_owned(), secret: Secret::new(secret) };
    Some(Credentials { algorithms, ..Credentials::new(user) })
}

/// The algorithm that each login was answered with.
fn chosen(record: &LoginRecord) -> Vec<Option<String>> {
    let of = |attempt: &lunette_initiator::Attempt| {
        let mut pairs = attempt.trace.pdus.iter().flat_map(|pdu| &pdu.pairs);
        pairs.rfind(|(key, _)| key == "CHAP_A").map(|(_, value)| value.clone())
    };
    record.attempts.iter().map(of).collect()
}

/// tgtd computes SHA-1 where it says SHA-256.
#[test]
fn tgtd_is_logged_in_to_with_md5_where_it_fails_with_more() {
    need_programs!("tgtd", "tgtadm");
    let directory = tempfile::tempdir().expect("a directory");
    let tgtd = Tgtd::start(&directory.path().join("log")).expect("tgtd");
    tgtd.require_user("alice", "alice's own 16 b").expect("a user");
    for algorithms in [
        Credentials::new(ChapCredential { name: String::new(), secret: Secret::new("") }).algorithms,
        vec![ChapAlgorithm::Sha256, ChapAlgorithm::Md5],
    ] {
        let credentials = alice("alice's own 16 b", algorithms);
        let (record, outcome) = login_trace(&Options { credentials, ..options(TARGET_NAME, tgtd.portal()) });
        outcome.unwrap_or_else(|error| panic!("{error}: {record:#?}"));
        let tried = [ChapAlgorithm::Sha256, ChapAlgorithm::Md5].map(|tried| Some(tried.number().to_string()));
        assert!(chosen(&record) == tried || record.attempts.len() == 1, "{record:#?}");
    }
    let credentials = alice("not alice's own.", vec![ChapAlgorithm::Sha256, ChapAlgorithm::Md5]);
    let (_, outcome) = login_trace(&Options { credentials, ..options(TARGET_NAME, tgtd.portal()) });
    assert!(outcome.expect_err("a wrong secret").is_authentication());
}

#[test]
fn a_wrong_secret_is_tried_with_md5_once_and_not_where_that_is_not_wanted() {
    let target = InProcess::start_with(&["mem:16M"], |config| {
        let credential = ChapCredential { name: "alice".to_owned(), secret: Secret::new("alice's own 16 b") };
        let user = ChapUser { credential, initiators: Vec::new() };
        config.targets[0].chap = ChapConfig { users: vec![user], mutual: None };
    });
    let (sha_256, md5) = (ChapAlgorithm::Sha256, ChapAlgorithm::Md5);
    let number = |algorithm: ChapAlgorithm| Some(algorithm.number().to_string());
    for (secret, offered, wanted) in [
        ("alice's own 16 b", vec![sha_256, md5], vec![number(sha_256)]),
        ("not alice's own.", vec![sha_256, md5], vec![number(sha_256), number(md5)]),
        ("not alice's own.", vec![sha_256], vec![number(sha_256)]),
        ("not alice's own.", vec![ChapAlgorithm::Sha3256, md5], vec![number(ChapAlgorithm::Sha3256)]),
    ] {
        let credentials = alice(secret, offered);
        let options = Options { credentials, ..options(target.name(), target.portal()) };
        let (record, outcome) = login_trace(&options);
        assert_eq!(outcome.is_ok(), secret == "alice's own 16 b");
        assert_eq!(chosen(&record), wanted);
        if let Err(error) = outcome {
            assert!(error.is_authentication() && error.to_string().contains("0201"), "{error}");
        }
    }
}
