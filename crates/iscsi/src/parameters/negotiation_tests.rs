//! Each key's own rule, the rules between keys, and independence of order.

use lunette_cases::cases;
use lunette_wire::text::pairs;
use proptest::prelude::*;

use super::*;
use crate::parameters::keys::by_name;

/// Offers in order, then settles; gives the answers as text pairs.
fn negotiate(
    negotiation: &mut Negotiation,
    offers: &[(&str, &str)],
) -> Result<Vec<(String, String)>, KeyError> {
    let mut answers = Vec::new();
    for (key, value) in offers {
        negotiation.offer(by_name(key).unwrap(), value, &mut answers)?;
    }
    negotiation.settle(&mut answers);
    let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    Ok(pairs(&answers).unwrap().into_iter().map(owned).collect())
}

fn normal(limits: TargetLimits) -> Negotiation {
    Negotiation::new(limits, SessionType::Normal, true)
}

/// The answer to one offer in a normal session with the default limits.
fn answer(key: &str, value: &str) -> String {
    answer_with(TargetLimits::default(), key, value)
}

fn answer_with(limits: TargetLimits, key: &str, value: &str) -> String {
    let answers = negotiate(&mut normal(limits), &[(key, value)]).unwrap();
    assert_eq!(answers.len(), 1, "{key}={value}");
    assert_eq!(answers[0].0, key);
    answers[0].1.clone()
}

#[test]
fn booleans_follow_their_functions() {
    let picky = TargetLimits { initial_r2t: true, immediate_data: false, ..TargetLimits::default() };
    for (key, offer, ours_open, ours_picky) in [
        ("InitialR2T", "No", "No", "Yes"),
        ("InitialR2T", "Yes", "Yes", "Yes"),
        ("ImmediateData", "Yes", "Yes", "No"),
        ("ImmediateData", "No", "No", "No"),
        ("DataPDUInOrder", "No", "No", "No"),
        ("DataPDUInOrder", "Yes", "Yes", "Yes"),
        ("DataSequenceInOrder", "No", "No", "No"),
        ("DataSequenceInOrder", "Yes", "Yes", "Yes"),
    ] {
        assert_eq!(answer(key, offer), ours_open, "{key}={offer}");
        assert_eq!(answer_with(picky, key, offer), ours_picky, "{key}={offer}");
    }
}

/// Where lost data is to be recovered, the order of what comes tells what is missing.
#[test]
fn recovery_wants_order() {
    let limits = TargetLimits { error_recovery_level: 2, ..TargetLimits::default() };
    for (level, order) in [("0", "No"), ("1", "Yes"), ("2", "Yes")] {
        for offers in [
            [("DataPDUInOrder", "No"), ("DataSequenceInOrder", "No"), ("ErrorRecoveryLevel", level)],
            [("ErrorRecoveryLevel", level), ("DataSequenceInOrder", "No"), ("DataPDUInOrder", "No")],
        ] {
            let answers = negotiate(&mut normal(limits), &offers).unwrap();
            for key in ["DataPDUInOrder", "DataSequenceInOrder"] {
                assert!(answers.contains(&(key.to_owned(), order.to_owned())), "{level}: {answers:?}");
            }
        }
    }
}

#[test]
fn numbers_follow_their_functions() {
    for (key, offer, expected) in [
        ("MaxBurstLength", "16776192", "16773120"),
        ("MaxBurstLength", "262144", "262144"),
        ("MaxConnections", "32", "8"),
        ("MaxOutstandingR2T", "16", "16"),
        ("MaxOutstandingR2T", "1", "1"),
        ("MaxOutstandingR2T", "65535", "16"),
        ("ErrorRecoveryLevel", "2", "0"),
        ("DefaultTime2Wait", "2", "2"),
        ("DefaultTime2Retain", "20", "0"),
        ("FirstBurstLength", "0x10000", "65536"),
        ("FirstBurstLength", "262144", "262144"),
        ("iSCSIProtocolLevel", "1", "1"),
        ("iSCSIProtocolLevel", "2", "2"),
        ("iSCSIProtocolLevel", "31", "2"),
        ("iSCSIProtocolLevel", "0", "0"),
    ] {
        assert_eq!(answer(key, offer), expected, "{key}={offer}");
    }
    let waits = TargetLimits { default_time2wait_s: 5, default_time2retain_s: 60, ..TargetLimits::default() };
    assert_eq!(answer_with(waits, "DefaultTime2Wait", "2"), "5");
    assert_eq!(answer_with(waits, "DefaultTime2Retain", "20"), "20");
}

#[test]
fn an_inadmissible_value_is_rejected_and_leaves_the_default() {
    for (key, value) in [
        ("MaxBurstLength", "511"),
        ("MaxBurstLength", "16777216"),
        ("MaxBurstLength", "many"),
        ("FirstBurstLength", "512~1024"),
        ("MaxConnections", "0"),
        ("MaxOutstandingR2T", "65536"),
        ("DefaultTime2Wait", "3601"),
        ("ErrorRecoveryLevel", "3"),
        ("iSCSIProtocolLevel", "32"),
        ("InitialR2T", "no"),
        ("ImmediateData", ""),
        ("TaskReporting", "fastabort,NoFence"),
    ] {
        let mut negotiation = normal(TargetLimits::default());
        let answers = negotiate(&mut negotiation, &[(key, value)]).unwrap();
        assert_eq!(answers, [(key.to_owned(), "Reject".to_owned())], "{key}={value}");
        assert_eq!(negotiation.session(), SessionParameters::default());
    }
}

#[test]
fn obsolete_keys_have_one_answer() {
    for offer in ["Yes", "No", "anything"] {
        assert_eq!(answer("IFMarker", offer), "No");
        assert_eq!(answer("OFMarker", offer), "No");
        assert_eq!(answer("IFMarkInt", offer), "Reject");
        assert_eq!(answer("OFMarkInt", offer), "Reject");
    }
}

#[test]
fn the_first_digest_of_the_offer_that_the_policy_allows() {
    let with = |policy| TargetLimits { header_digest: policy, ..TargetLimits::default() };
    for (policy, offer, expected) in [
        (DigestPolicy::Allowed, "None,CRC32C", Some("None")),
        (DigestPolicy::Allowed, "CRC32C,None", Some("CRC32C")),
        (DigestPolicy::Allowed, "Y-com.example.sum,CRC32C", Some("CRC32C")),
        (DigestPolicy::Allowed, "Y-com.example.sum", None),
        (DigestPolicy::Required, "None,CRC32C", Some("CRC32C")),
        (DigestPolicy::Required, "None", None),
        (DigestPolicy::Refused, "CRC32C,None", Some("None")),
        (DigestPolicy::Refused, "CRC32C", None),
    ] {
        let mut negotiation = normal(with(policy));
        let answers = negotiate(&mut negotiation, &[("HeaderDigest", offer)]);
        match expected {
            Some(value) => {
                assert_eq!(answers.unwrap(), [("HeaderDigest".to_owned(), value.to_owned())]);
                let digests = negotiation.connection().unwrap().digests;
                assert_eq!(digests, Digests { header: value == "CRC32C", data: false });
            }
            None => assert_eq!(
                answers,
                Err(KeyError::NoCommonValue { key: "HeaderDigest", value: offer.to_owned() })
            ),
        }
    }
}

#[test]
fn a_required_digest_that_was_not_offered_fails() {
    let limits = TargetLimits { data_digest: DigestPolicy::Required, ..TargetLimits::default() };
    let negotiation = normal(limits);
    assert_eq!(
        negotiation.connection(),
        Err(KeyError::NoCommonValue { key: "DataDigest", value: "None".to_owned() })
    );
}

#[test]
fn task_reporting_takes_what_is_served() {
    for (offer, chosen, meaning) in [
        ("FastAbort,ResponseFence,RFC3720", "FastAbort", TaskReporting::FastAbort),
        ("ResponseFence,RFC3720", "ResponseFence", TaskReporting::ResponseFence),
        ("X-Other,RFC3720,FastAbort", "RFC3720", TaskReporting::Rfc3720),
    ] {
        let mut negotiation = normal(TargetLimits::default());
        let answers = negotiate(&mut negotiation, &[("TaskReporting", offer)]).unwrap();
        assert_eq!(answers, [("TaskReporting".to_owned(), chosen.to_owned())], "{offer}");
        assert_eq!(negotiation.session().task_reporting, meaning);
    }
}

#[test]
fn a_declared_length_needs_no_answer_but_has_a_range() {
    let mut negotiation = normal(TargetLimits::default());
    assert_eq!(negotiate(&mut negotiation, &[("MaxRecvDataSegmentLength", "65536")]), Ok(vec![]));
    let connection = negotiation.connection().unwrap();
    assert_eq!(connection.max_send_data_segment_length, 65536);
    assert_eq!(connection.max_recv_data_segment_length, 8192);
    for value in ["511", "16777216", "", "Yes"] {
        assert_eq!(
            negotiate(&mut normal(TargetLimits::default()), &[("MaxRecvDataSegmentLength", value)]),
            Err(KeyError::Declaration { key: "MaxRecvDataSegmentLength", value: value.to_owned() })
        );
    }
}

#[test]
fn our_own_length_is_declared_once_and_then_holds() {
    let mut negotiation = normal(TargetLimits::default());
    let mut text = Vec::new();
    negotiation.declare(&mut text);
    negotiation.declare(&mut text);
    assert_eq!(pairs(&text).unwrap(), [("MaxRecvDataSegmentLength", "262144")]);
    assert_eq!(negotiation.connection().unwrap().max_recv_data_segment_length, 262_144);
}

#[test]
fn first_burst_is_irrelevant_without_unsolicited_data() {
    let offers = [("FirstBurstLength", "65536"), ("InitialR2T", "Yes"), ("ImmediateData", "No")];
    let answers = negotiate(&mut normal(TargetLimits::default()), &offers).unwrap();
    assert!(answers.contains(&("FirstBurstLength".to_owned(), "Irrelevant".to_owned())));
    let offers = [("FirstBurstLength", "65536"), ("InitialR2T", "Yes"), ("ImmediateData", "Yes")];
    let answers = negotiate(&mut normal(TargetLimits::default()), &offers).unwrap();
    assert!(answers.contains(&("FirstBurstLength".to_owned(), "65536".to_owned())));
}

#[test]
fn first_burst_stays_within_max_burst() {
    let mut negotiation = normal(TargetLimits::default());
    let offers = [("FirstBurstLength", "262144"), ("MaxBurstLength", "4096")];
    let answers = negotiate(&mut negotiation, &offers).unwrap();
    assert!(answers.contains(&("FirstBurstLength".to_owned(), "4096".to_owned())));
    assert_eq!(negotiation.session().first_burst_length, 4096);
    // The default of a key that was not offered is bound too.
    let mut negotiation = normal(TargetLimits::default());
    negotiate(&mut negotiation, &[("MaxBurstLength", "512")]).unwrap();
    assert_eq!(negotiation.session().first_burst_length, 512);
}

#[test]
fn ordered_sequences_allow_one_r2t_at_recovery_levels_above_zero() {
    let limits = TargetLimits { error_recovery_level: 2, ..TargetLimits::default() };
    for offers in [
        [("MaxOutstandingR2T", "8"), ("ErrorRecoveryLevel", "1")],
        [("ErrorRecoveryLevel", "1"), ("MaxOutstandingR2T", "8")],
    ] {
        let mut negotiation = normal(limits);
        let answers = negotiate(&mut negotiation, &offers).unwrap();
        assert!(answers.contains(&("MaxOutstandingR2T".to_owned(), "1".to_owned())), "{answers:?}");
        assert_eq!(negotiation.session().max_outstanding_r2t, 1);
    }
    assert_eq!(answer_with(limits, "MaxOutstandingR2T", "8"), "8");
}

#[test]
fn a_discovery_session_has_few_relevant_keys() {
    let limits = TargetLimits { error_recovery_level: 2, ..TargetLimits::default() };
    for (key, offer, expected) in [
        ("MaxConnections", "4", "Irrelevant"),
        ("InitialR2T", "No", "Irrelevant"),
        ("ImmediateData", "Yes", "Irrelevant"),
        ("MaxBurstLength", "262144", "Irrelevant"),
        ("FirstBurstLength", "65536", "Irrelevant"),
        ("MaxOutstandingR2T", "1", "Irrelevant"),
        ("DataPDUInOrder", "Yes", "Irrelevant"),
        ("DataSequenceInOrder", "Yes", "Irrelevant"),
        ("TaskReporting", "RFC3720", "Irrelevant"),
        ("iSCSIProtocolLevel", "1", "Irrelevant"),
        ("ErrorRecoveryLevel", "2", "0"),
        ("DefaultTime2Wait", "0", "0"),
        ("DefaultTime2Retain", "60", "0"),
        ("HeaderDigest", "None,CRC32C", "None"),
    ] {
        let mut negotiation = Negotiation::new(limits, SessionType::Discovery, true);
        let answers = negotiate(&mut negotiation, &[(key, offer)]).unwrap();
        assert_eq!(answers, [(key.to_owned(), expected.to_owned())]);
    }
}

#[test]
fn leading_only_keys_are_rejected_on_a_further_connection() {
    let mut negotiation = Negotiation::new(TargetLimits::default(), SessionType::Normal, false);
    let offers = [("MaxBurstLength", "4096"), ("InitialR2T", "No"), ("DataDigest", "CRC32C")];
    let answers = negotiate(&mut negotiation, &offers).unwrap();
    let values: Vec<_> = answers.iter().map(|(_, value)| value.as_str()).collect();
    assert_eq!(values, ["Reject", "Reject", "CRC32C"]);
}

#[test]
fn limits_beyond_the_range_are_brought_into_it() {
    let limits = TargetLimits {
        max_burst_length: u32::MAX,
        first_burst_length: 1,
        max_recv_data_segment_length: 0,
        ..TargetLimits::default()
    };
    assert_eq!(answer_with(limits, "MaxBurstLength", "16777215"), "16777215");
    assert_eq!(answer_with(limits, "FirstBurstLength", "65536"), "512");
    let mut text = Vec::new();
    normal(limits).declare(&mut text);
    assert_eq!(pairs(&text).unwrap(), [("MaxRecvDataSegmentLength", "512")]);
}

fn limits() -> impl Strategy<Value = TargetLimits> {
    (512..1u32 << 24, 512..1u32 << 24, any::<bool>(), any::<bool>(), 1..99u16, 0..3u8).prop_map(
        |(max_burst_length, first_burst_length, initial_r2t, immediate_data, max_outstanding_r2t, level)| {
            TargetLimits {
                max_burst_length,
                first_burst_length,
                initial_r2t,
                immediate_data,
                max_outstanding_r2t,
                error_recovery_level: level,
                ..TargetLimits::default()
            }
        },
    )
}

fn yes_or_no() -> impl Strategy<Value = String> {
    prop_oneof![Just("Yes".to_owned()), Just("No".to_owned())]
}

fn number_up_to(max: u32) -> impl Strategy<Value = String> {
    prop_oneof![0..=max, 500..1000u32].prop_map(|number| number.to_string())
}

type Offers = Vec<(&'static str, String)>;

fn offers() -> impl Strategy<Value = Offers> {
    let burst = || number_up_to(1 << 24);
    let all = (
        (yes_or_no(), yes_or_no(), yes_or_no(), yes_or_no()),
        (burst(), burst(), number_up_to(100), number_up_to(3)),
    );
    (all, any::<u8>()).prop_map(|(((r2t, immediate, pdus, sequences), (max, first, r2ts, level)), mask)| {
        let all = [
            ("InitialR2T", r2t),
            ("ImmediateData", immediate),
            ("DataPDUInOrder", pdus),
            ("DataSequenceInOrder", sequences),
            ("MaxBurstLength", max),
            ("FirstBurstLength", first),
            ("MaxOutstandingR2T", r2ts),
            ("ErrorRecoveryLevel", level),
        ];
        all.into_iter().enumerate().filter(|(bit, _)| mask & 1 << bit != 0).map(|(_, offer)| offer).collect()
    })
}

fn run(limits: TargetLimits, offers: &Offers) -> (Vec<(String, String)>, SessionParameters) {
    let borrowed: Vec<_> = offers.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let mut negotiation = normal(limits);
    let mut answers = negotiate(&mut negotiation, &borrowed).unwrap();
    answers.sort();
    (answers, negotiation.session())
}

/// Any value of any key, right or wrong.
fn anything() -> impl Strategy<Value = String> {
    prop_oneof![
        yes_or_no(),
        number_up_to(1 << 24),
        (0..70_000u32).prop_map(|number| format!("{number:#x}")),
        proptest::sample::select(vec![
            "None",
            "CRC32C",
            "CRC32C,None",
            "None,CRC32C",
            "RFC3720",
            "FastAbort,RFC3720",
            "ResponseFence",
            "Y-other",
            "",
            ",",
            "yes",
            "1~2",
            "4294967296",
        ])
        .prop_map(str::to_owned),
        "[ -~]{0,12}",
    ]
}

/// Each operational key at most once, in any order.
fn offers_of_anything() -> impl Strategy<Value = Offers> {
    let keys: Vec<&'static str> = super::super::keys::TABLE
        .iter()
        .filter(|row| row.check_login(lunette_wire::initiator::LoginStage::Operational).is_ok())
        .map(|row| row.name)
        .collect();
    let some = proptest::sample::subsequence(keys.clone(), 0..=keys.len()).prop_shuffle();
    some.prop_flat_map(|keys| {
        let values = proptest::collection::vec(anything(), keys.len());
        values.prop_map(move |values| keys.iter().copied().zip(values).collect::<Offers>())
    })
}

type Result3 = Result<(Vec<(String, String)>, SessionParameters, ConnectionParameters), ()>;

fn end(limits: TargetLimits, kind: SessionType, offers: &Offers) -> Result3 {
    let borrowed: Vec<_> = offers.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let mut negotiation = Negotiation::new(limits, kind, true);
    let mut answers = negotiate(&mut negotiation, &borrowed).map_err(drop)?;
    answers.sort();
    let connection = negotiation.connection().map_err(drop)?;
    Ok((answers, negotiation.session(), connection))
}

proptest! {
    #![proptest_config(cases(2000))]

    /// Any offer in any order by any peer gives one result or one clean failure.
    #[test]
    fn anything_at_all_has_one_end_in_any_order(
        limits in limits(),
        (first, second) in offers_of_anything().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
        is_discovery: bool,
    ) {
        let kind = if is_discovery { SessionType::Discovery } else { SessionType::Normal };
        let ended = end(limits, kind, &first);
        prop_assert_eq!(&ended, &end(limits, kind, &second));
        let Ok((answers, session, connection)) = ended else { return Ok(()) };
        // Only what was offered is answered, and once; the result is within what both sides and the RFC allow.
        for (index, (key, value)) in answers.iter().enumerate() {
            prop_assert!(first.iter().any(|(offered, _)| offered == key));
            prop_assert!(index == 0 || answers[index - 1].0 != *key);
            prop_assert!(!value.is_empty() && value != "NotUnderstood");
        }
        prop_assert!((512..1 << 24).contains(&session.max_burst_length));
        prop_assert!((512..=session.max_burst_length).contains(&session.first_burst_length));
        prop_assert!(session.max_outstanding_r2t >= 1 && session.max_connections >= 1);
        prop_assert!(session.max_connections <= limits.max_connections.max(1));
        let level_max = if is_discovery { 0 } else { limits.error_recovery_level };
        prop_assert!(session.error_recovery_level <= level_max);
        prop_assert!(session.default_time2wait_s <= 3600 && session.default_time2retain_s <= 3600);
        prop_assert!(session.protocol_level <= 2);
        prop_assert!((512..1 << 24).contains(&connection.max_send_data_segment_length));
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn order_makes_no_difference(
        limits in limits(),
        (first, second) in offers().prop_flat_map(|offers| (Just(offers.clone()), Just(offers).prop_shuffle())),
    ) {
        prop_assert_eq!(run(limits, &first), run(limits, &second));
    }

    #[test]
    fn results_obey_the_rules_between_keys(limits in limits(), offers in offers()) {
        let (answers, session) = run(limits, &offers);
        prop_assert_eq!(answers.len(), offers.len());
        prop_assert!(session.first_burst_length <= session.max_burst_length);
        prop_assert!(
            session.error_recovery_level == 0
                || !session.data_sequence_in_order
                || session.max_outstanding_r2t == 1
        );
    }
}
