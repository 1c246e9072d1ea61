//! Whole logins of any peer: every key there is, of any stage and sender, and keys that nobody knows, with right and wrong values, in
//! any order, some of them twice, cut anywhere. Each has one result or one clean failure.

use lunette_cases::cases;
use lunette_wire::text::push;
use proptest::prelude::*;

use super::*;
use crate::parameters::keys::TABLE;
use crate::parameters::{DigestPolicy, SessionType};

type Offers = Vec<(String, String)>;

/// What a login comes to: what was agreed on, and the answers whatever their order.
type Outcome = (SessionType, SessionParameters, ConnectionParameters, Offers);

pub(super) fn any_name() -> impl Strategy<Value = String> {
    let known: Vec<String> = TABLE.iter().map(|row| row.name.to_owned()).collect();
    prop_oneof![
        12 => proptest::sample::select(known),
        1 => "X-[a-c]\\.[a-c]".prop_map(String::from),
        1 => "X#[A-Za-z]{1,8}".prop_map(String::from),
        1 => "[A-Z][A-Za-z0-9.+@_-]{0,62}".prop_map(String::from),
        1 => "[!-<>-~]{1,70}".prop_map(String::from),
    ]
}

pub(super) fn any_value() -> impl Strategy<Value = String> {
    let words = [
        "Yes",
        "No",
        "None",
        "CRC32C",
        "None,CRC32C",
        "CRC32C,None",
        "CHAP",
        "CHAP,None",
        "Reject",
        "Irrelevant",
        "NotUnderstood",
        "RFC3720",
        "FastAbort,RFC3720",
        "ResponseFence,FastAbort",
        "Normal",
        "Discovery",
        "All",
        "",
        ",",
        "yes",
        "1~2",
        "0x200",
        "0xffffff",
        "4294967296",
        "-1",
        "0",
        INITIATOR,
        TARGET,
    ];
    prop_oneof![
        4 => proptest::sample::select(words.to_vec()).prop_map(str::to_owned),
        2 => (0..1u32 << 24).prop_map(|number| number.to_string()),
        1 => (0..70_000u32).prop_map(|number| format!("{number:#x}")),
        1 => "[ -~]{0,300}".prop_map(String::from),
    ]
}

/// Keys that make a login good, unless they are missing, and anything else; with luck no key twice.
fn any_offers() -> impl Strategy<Value = Offers> {
    let usual = [
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("MaxBurstLength", "65536"),
        ("FirstBurstLength", "70000"),
        ("MaxOutstandingR2T", "9"),
        ("MaxConnections", "32"),
        ("ErrorRecoveryLevel", "2"),
        ("DataSequenceInOrder", "Yes"),
        ("MaxRecvDataSegmentLength", "4096"),
        ("HeaderDigest", "CRC32C,None"),
        ("DefaultTime2Wait", "3"),
        ("DefaultTime2Retain", "60"),
        ("X-com.example", "1"),
    ];
    let usual = proptest::sample::subsequence(usual.to_vec(), 0..=usual.len());
    let more = proptest::collection::vec((any_name(), any_value()), 0..6);
    (usual, more, 0u8..8, any::<bool>()).prop_map(|(usual, more, left_out, repeats)| {
        let mut all: Offers = names()
            .into_iter()
            .enumerate()
            .filter(|(index, _)| *index != usize::from(left_out))
            .map(|(_, pair)| pair)
            .chain(usual)
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        for (key, value) in more {
            if repeats || all.iter().all(|(known, _)| *known != key) {
                all.push((key, value));
            }
        }
        all
    })
}

fn any_limits() -> impl Strategy<Value = TargetLimits> {
    let policy = || {
        proptest::sample::select(vec![DigestPolicy::Allowed, DigestPolicy::Required, DigestPolicy::Refused])
    };
    (512..1u32 << 24, 512..1u32 << 24, 1..40u16, 1..33u16, 0..3u8, policy(), policy()).prop_map(
        |(
            max_burst_length,
            first_burst_length,
            max_outstanding_r2t,
            max_connections,
            level,
            header,
            data,
        )| TargetLimits {
            max_burst_length,
            first_burst_length: first_burst_length.min(max_burst_length),
            max_outstanding_r2t,
            max_connections,
            error_recovery_level: level,
            header_digest: header,
            data_digest: data,
            ..TargetLimits::default()
        },
    )
}

/// A login that says all at once, in parts of so many bytes, and takes the answer in as many as it comes in.
fn run(limits: TargetLimits, offers: &Offers, part: usize) -> Result<Outcome, LoginStatus> {
    let mut login = Login::new(limits, 1, NONCE);
    let mut whole = Vec::new();
    offers.iter().for_each(|(key, value)| push(&mut whole, key, value));
    let mut parts = whole.chunks(part).peekable();
    let mut told = Vec::new();
    loop {
        let bytes = parts.next().unwrap_or_default();
        let sent = if parts.peek().is_some() {
            LoginRequest { is_continued: true, ..request(OPERATIONAL, None) }
        } else {
            request(OPERATIONAL, Some(FULL))
        };
        match login.step(&sent, bytes, &Directory) {
            LoginStep::Respond(reply) => {
                assert!(reply.text.len() <= LOGIN_SEGMENT_MAX);
                told.extend(reply.text);
            }
            LoginStep::Ready(outcome) => {
                told.extend(outcome.accept(Tsih(1), outcome.numbers).text);
                let mut told = owned(&pairs(&told).expect("answers are text"));
                told.sort();
                return Ok((outcome.session_type, outcome.session, outcome.connection, told));
            }
            LoginStep::Fail(reply, failure) => {
                let told = (reply.pdu.status_class, reply.pdu.status_detail);
                assert_eq!(told, (failure.status.class(), failure.status.detail()));
                assert!(
                    told.0 != 0 && !reply.pdu.transit,
                    "the initiator hears why, and nothing was agreed on"
                );
                return Err(failure.status);
            }
            LoginStep::Drop(failure) => panic!("nothing is dropped once a login has begun: {failure}"),
        }
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    /// Any offer in any order by any peer gives one result or one clean failure.
    #[test]
    fn any_offer_in_any_order_has_one_result_or_one_clean_failure(
        limits in any_limits(),
        (first, second) in any_offers().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
        (part, other_part) in (20usize..LOGIN_SEGMENT_MAX, 20usize..LOGIN_SEGMENT_MAX),
    ) {
        let ended = run(limits, &first, part);
        // Which of several faults is told may depend on which comes first; that there is one may not.
        prop_assert_eq!(ended.clone().ok(), run(limits, &second, other_part).ok());
        let Ok((kind, session, connection, told)) = ended else { return Ok(()) };
        let keys: std::collections::HashSet<&str> = first.iter().map(|(key, _)| key.as_str()).collect();
        prop_assert_eq!(keys.len(), first.len(), "a key twice is an error");
        for (key, value) in &told {
            let is_own = ["TargetPortalGroupTag", "TargetAlias", "MaxRecvDataSegmentLength"].contains(&key.as_str());
            prop_assert!(is_own || keys.contains(key.as_str()), "{} was not offered", key);
            prop_assert!(!value.is_empty());
        }
        let answered: std::collections::HashSet<&str> = told.iter().map(|(key, _)| key.as_str()).collect();
        prop_assert_eq!(answered.len(), told.len(), "each key is answered once");
        prop_assert!((512..=session.max_burst_length).contains(&session.first_burst_length));
        prop_assert!((1..=limits.max_connections).contains(&session.max_connections));
        prop_assert!((1..=limits.max_outstanding_r2t).contains(&session.max_outstanding_r2t));
        let level_max = if kind == SessionType::Discovery { 0 } else { limits.error_recovery_level };
        prop_assert!(session.error_recovery_level <= level_max);
        prop_assert!(
            session.error_recovery_level == 0 || !session.data_sequence_in_order || session.max_outstanding_r2t == 1
        );
        let digests = [(limits.header_digest, connection.digests.header), (limits.data_digest, connection.digests.data)];
        for (policy, is_on) in digests {
            prop_assert!(policy != DigestPolicy::Required || is_on);
            prop_assert!(policy != DigestPolicy::Refused || !is_on);
        }
        prop_assert!((512..1 << 24).contains(&connection.max_send_data_segment_length));
    }
}
