//! Whole logins of a peer that knows the secret: CHAP's keys and those of the operational stage in any mix, in either stage, with
//! changes of stage wherever it likes. Each has one result or one clean failure, whatever the order of the keys in a
//! request (RFC 7143, 6.2, 6.3, 9.2, 12.1.3).

use lunette_cases::cases;
use proptest::prelude::*;

use super::anything::{any_name, any_value};
use super::chap::{MD5, SECRET, hex};
use super::*;

type Offers = Vec<(String, String)>;
/// Who was proven, what was agreed on, and the answers whatever their order.
type Outcome = (Option<String>, SessionParameters, ConnectionParameters, Offers);

/// One request: its stage, the stage that it wants next, its keys.
#[derive(Debug, Clone)]
struct Step {
    stage: LoginStage,
    next: Option<LoginStage>,
    offers: Offers,
}

fn owned_pairs(pairs: &[(&str, &str)]) -> Offers {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Mostly nothing; else keys of the other stage, of CHAP once more, or any.
fn strays() -> impl Strategy<Value = Offers> {
    let known = [
        ("HeaderDigest", "CRC32C,None"),
        ("MaxRecvDataSegmentLength", "4096"),
        ("InitialR2T", "No"),
        ("InitiatorAlias", "me"),
        ("X-com.example", "1"),
        ("AuthMethod", "CHAP,None"),
        ("CHAP_A", "7"),
        ("CHAP_N", "bob"),
        ("CHAP_I", "9"),
        ("CHAP_C", "0x0102"),
    ];
    prop_oneof![
        6 => Just(Vec::new()),
        3 => proptest::sample::subsequence(known.to_vec(), 1..=2).prop_map(|pairs| owned_pairs(&pairs)),
        1 => proptest::collection::vec((any_name(), any_value()), 1..2),
    ]
}

fn usual() -> impl Strategy<Value = Offers> {
    let usual = [
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("MaxBurstLength", "65536"),
        ("MaxConnections", "32"),
        ("ErrorRecoveryLevel", "2"),
        ("MaxRecvDataSegmentLength", "4096"),
        ("HeaderDigest", "CRC32C,None"),
        ("X-com.example", "1"),
    ];
    proptest::sample::subsequence(usual.to_vec(), 0..=usual.len()).prop_map(|pairs| owned_pairs(&pairs))
}

/// Where a request wants to go: nowhere, or as far as it has got, mostly.
fn any_next() -> impl Strategy<Value = Option<LoginStage>> {
    prop_oneof![2 => Just(None), 3 => Just(Some(OPERATIONAL)), 1 => Just(Some(FULL))]
}

/// The steps of one login: to the challenge, to the proof, and through the operational stage.
fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    let target = proptest::sample::select(vec!["locked", "mutual"]);
    let proves = prop_oneof![8 => Just(true), 1 => Just(false)];
    let mixed = proptest::collection::vec((strays(), any_next()), 3);
    (target, any::<bool>(), proves, any::<bool>(), mixed, usual(), strays()).prop_map(
        |(target, at_once, proves, asks_back, mixed, usual, stray)| {
            let names = [
                ("InitiatorName", INITIATOR.to_owned()),
                ("TargetName", format!("iqn.2026-11.io.lunette:{target}")),
                ("AuthMethod", "CHAP".to_owned()),
            ];
            let algorithm = ("CHAP_A", "5".to_owned());
            let mut first: Vec<_> = names.into();
            let mut second = Vec::new();
            if at_once {
                first.push(algorithm);
            } else {
                second.push(algorithm);
            }
            let secret = if proves { SECRET } else { "a secret that isn't" };
            let mut proof = vec![("CHAP_N", "alice".to_owned()), ("CHAP_R", hex(MD5, secret))];
            if asks_back {
                proof.extend([("CHAP_I", "9".to_owned()), ("CHAP_C", "0x0102".to_owned())]);
            }
            let mut steps: Vec<Step> = [first, second, proof]
                .into_iter()
                .zip(mixed)
                .filter(|(own, _)| !own.is_empty())
                .map(|(own, (strays, next))| {
                    let own = own.into_iter().map(|(key, value)| (key.to_owned(), value));
                    Step { stage: SECURITY, next, offers: own.chain(strays).collect() }
                })
                .collect();
            let offers = usual.into_iter().chain(stray).collect();
            steps.push(Step { stage: OPERATIONAL, next: Some(FULL), offers });
            steps
        },
    )
}

/// The same steps, each with its keys in another order.
fn shuffled(steps: Vec<Step>) -> impl Strategy<Value = (Vec<Step>, Vec<Step>)> {
    let orders: Vec<_> = steps.iter().map(|step| Just(step.offers.clone()).prop_shuffle()).collect();
    (Just(steps), orders).prop_map(|(steps, orders)| {
        let others = steps.iter().zip(orders).map(|(step, offers)| Step { offers, ..step.clone() }).collect();
        (steps, others)
    })
}

/// Goes through the steps as the stages come; before the last, whoever is still in the security stage asks for the next one.
fn run(steps: &[Step]) -> Result<Outcome, LoginStatus> {
    let mut login = login();
    let mut told = Vec::new();
    let mut stage = SECURITY;
    let ask = Step { stage: SECURITY, next: Some(OPERATIONAL), offers: Vec::new() };
    let (last, before) = steps.split_last().expect("there are some");
    for step in before.iter().chain([&ask, last]) {
        // Who is in the next stage already says nothing more of the first.
        if step.stage == SECURITY && stage == OPERATIONAL {
            continue;
        }
        let mut bytes = Vec::new();
        step.offers.iter().for_each(|(key, value)| push(&mut bytes, key, value));
        match login.step(&request(step.stage, step.next), &bytes, &Directory) {
            LoginStep::Respond(reply) => {
                assert!(reply.text.len() <= LOGIN_SEGMENT_MAX);
                assert!(!reply.pdu.transit || step.next == Some(reply.pdu.next_stage));
                if reply.pdu.transit {
                    stage = reply.pdu.next_stage;
                }
                told.extend(reply.text);
            }
            LoginStep::Ready(outcome) => {
                assert_eq!(step.next, Some(FULL));
                told.extend(outcome.accept(Tsih(1), outcome.numbers).text);
                let mut told = owned(&pairs(&told).expect("answers are text"));
                told.sort();
                return Ok((outcome.user, outcome.session, outcome.connection, told));
            }
            LoginStep::Fail(reply, failure) => {
                let status = (reply.pdu.status_class, reply.pdu.status_detail);
                assert_eq!(status, (failure.status.class(), failure.status.detail()));
                assert!(status.0 != 0 && !reply.pdu.transit && reply.text.is_empty());
                return Err(failure.status);
            }
            LoginStep::Drop(failure) => panic!("nothing is dropped once a login has begun: {failure}"),
        }
    }
    panic!("the last request asks for the full feature phase");
}

proptest! {
    #![proptest_config(cases(2000))]

    /// Any offer in any order by any peer, CHAP's included, gives one result or one clean failure.
    #[test]
    fn a_proof_among_any_keys_in_any_order_has_one_result_or_one_clean_failure(
        (steps, others) in any_steps().prop_flat_map(shuffled),
    ) {
        let ended = run(&steps);
        // Which of several faults is told may depend on which comes first; that there is one may not.
        prop_assert_eq!(ended.clone().ok(), run(&others).ok());
        let right = hex(MD5, SECRET);
        let proves = steps.iter().flat_map(|step| &step.offers).any(|(_, value)| *value == right);
        if let Ok((user, ..)) = ended {
            prop_assert!(proves);
            prop_assert_eq!(user.as_deref(), Some("alice"));
        }
    }
}
