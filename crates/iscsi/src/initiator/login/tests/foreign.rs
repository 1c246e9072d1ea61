//! Answers as other targets give them, and every status.

use super::*;
use crate::login::LoginStatus;
use crate::parameters::SessionParameters;
use crate::parameters::keys::TABLE;

#[test]
fn a_target_that_answers_nothing_gets_the_defaults() {
    let outcome = Puppet::operational(settings()).ends(&[]);
    let expected = SessionParameters { default_time2retain_s: 20, ..SessionParameters::default() };
    assert_eq!(outcome.session, expected);
    assert_eq!(outcome.connection.max_send_data_segment_length, 8192);
    assert_eq!(outcome.connection.max_recv_data_segment_length, 256 * 1024);
}

#[test]
fn a_stage_may_begin_without_an_answer_to_authmethod() {
    let mut puppet = Puppet::new(settings());
    puppet.sends(OPERATIONAL, &[]);
    puppet.ends(&[]);
}

#[test]
fn answers_that_decline_leave_what_both_allow() {
    for word in ["Reject", "Irrelevant", "NotUnderstood"] {
        let wishes = Wishes { max_burst_length: 65536, first_burst_length: 4096, ..Wishes::default() };
        let mut puppet = Puppet::operational(LoginSettings { wishes, ..settings() });
        let outcome = puppet.ends(&[
            ("MaxBurstLength", word),
            ("FirstBurstLength", word),
            ("InitialR2T", word),
            ("HeaderDigest", word),
            ("MaxOutstandingR2T", word),
        ]);
        let session = outcome.session;
        assert_eq!((session.max_burst_length, session.first_burst_length), (65536, 4096));
        assert!(session.initial_r2t && session.max_outstanding_r2t == 1);
        let traced = puppet.login.trace().keys.iter().find(|key| key.name == "InitialR2T").unwrap();
        assert_eq!(traced.result, "Yes");
    }
}

#[test]
fn values_that_cannot_be_end_the_login() {
    for (key, value) in [
        ("MaxBurstLength", "16777215"),
        ("MaxBurstLength", "511"),
        ("FirstBurstLength", "0"),
        ("FirstBurstLength", "many"),
        ("MaxOutstandingR2T", "17"),
        ("DefaultTime2Wait", "3601"),
        ("InitialR2T", "yes"),
        ("ImmediateData", ""),
        ("HeaderDigest", "CRC64"),
        ("HeaderDigest", "None,CRC32C"),
        ("MaxRecvDataSegmentLength", "511"),
        ("MaxRecvDataSegmentLength", "16777216"),
        ("ErrorRecoveryLevel", "1"),
        ("TargetPortalGroupTag", "65536"),
        ("TargetPortalGroupTag", "2"),
        ("InitiatorName", "iqn.x"),
        ("CHAP_R", "0x00"),
        ("TaskReporting", "NotUnderstood"),
        ("X-com.example", "Reject"),
    ] {
        let error = Puppet::operational(settings()).fails(FULL, &[(key, value)]);
        assert!(matches!(error, LoginError::Key { .. }), "{key}={value}: {error}");
        assert!(error.to_string().contains(key), "{error}");
    }
}

#[test]
fn a_key_twice_is_borne_when_it_says_the_same() {
    let length = ("MaxRecvDataSegmentLength", "65536");
    let outcome = Puppet::operational(settings()).ends(&[length, length]);
    assert_eq!(outcome.connection.max_send_data_segment_length, 65536);
    let error = Puppet::operational(settings()).fails(FULL, &[length, ("MaxRecvDataSegmentLength", "65537")]);
    assert!(error.to_string().contains("differs"), "{error}");
}

#[test]
fn what_a_target_brings_up_is_answered() {
    let mut puppet = Puppet::operational(settings());
    puppet.sends(
        HERE,
        &[
            ("IFMarker", "No"),
            ("OFMarkInt", "2048~8192"),
            ("X-com.example.a", "1"),
            ("TaskReporting", "RFC3720"),
        ],
    );
    assert_eq!(said(&puppet.last, "IFMarker"), Some("No"));
    assert_eq!(said(&puppet.last, "OFMarkInt"), Some("Reject"));
    assert_eq!(said(&puppet.last, "X-com.example.a"), Some("NotUnderstood"));
    assert_eq!(said(&puppet.last, "TaskReporting"), Some("RFC3720"));
    assert!(puppet.last.pdu.transit, "T stays set (6.3.3)");
    puppet.ends(&[("TargetAlias", "LIO"), ("X#NodeArchitecture", "linux"), ("TargetName", TARGET)]);

    let mut joining = Puppet::operational(LoginSettings { tsih: Tsih(7), ..settings() });
    joining.sends(HERE, &[("MaxBurstLength", "65536")]);
    assert_eq!(said(&joining.last, "MaxBurstLength"), Some("Reject"), "the session has its own already");
    let mut discovery =
        Puppet::operational(LoginSettings { purpose: Purpose::Discovery(None), ..settings() });
    discovery.sends(HERE, &[("MaxBurstLength", "65536")]);
    assert_eq!(said(&discovery.last, "MaxBurstLength"), Some("Irrelevant"));
}

/// What this side did not offer itself, it answers by the rules (6.2.1, 6.2.2).
#[test]
fn what_a_target_offers_has_its_result_for_an_answer() {
    for (key, offered, answer) in [
        // The first of a list that is known, if one is.
        ("TaskReporting", "X-fast,RFC3720", "RFC3720"),
        ("TaskReporting", "X-fast", "Reject"),
        ("IFMarker", "Yes", "No"),
        ("iSCSIProtocolLevel", "2", "1"),
        ("iSCSIProtocolLevel", "two", "Reject"),
        ("iSCSIProtocolLevel", "32", "Reject"),
    ] {
        let mut puppet = Puppet::operational(settings());
        assert_eq!(said(&puppet.last, key), None, "{key} is not offered here");
        puppet.sends(HERE, &[(key, offered)]);
        assert_eq!(said(&puppet.last, key), Some(answer), "{key}={offered}");
    }
}

/// 13.7: told where there is one, and not made up.
#[test]
fn an_alias_is_told() {
    let named = LoginSettings { initiator_alias: Some("A Host".to_owned()), ..settings() };
    assert_eq!(said(&Puppet::new(named).last, "InitiatorAlias"), Some("A Host"));
    assert_eq!(said(&Puppet::new(settings()).last, "InitiatorAlias"), None);
}

#[test]
fn a_long_answer_is_fetched_in_parts() {
    let mut puppet = Puppet::operational(settings());
    let mut response = puppet.response(HERE);
    response.is_continued = true;
    let step = puppet.login.received(Duration::ZERO, &response, b"MaxBurst");
    let Step::Send(empty) = step else { panic!("{step:?}") };
    assert!(empty.text.is_empty() && empty.pdu.transit && !empty.pdu.is_continued);
    puppet.last = empty;
    let response = puppet.response(FULL);
    let step = puppet.login.received(Duration::ZERO, &response, b"Length=65536\0");
    let Step::Done(outcome) = step else { panic!("{step:?}") };
    assert_eq!(outcome.session.max_burst_length, 65536);
}

#[test]
fn a_discovery_session_may_have_no_handle_and_a_normal_one_not() {
    let purpose = Purpose::Discovery(None);
    for (purpose, tsih, asked, is_good) in [
        (purpose, Tsih(0), Tsih(0), true),
        (Purpose::Normal(name(TARGET)), Tsih(0), Tsih(0), false),
        (Purpose::Normal(name(TARGET)), Tsih(8), Tsih(9), false),
    ] {
        let mut puppet = Puppet::operational(LoginSettings { purpose, tsih: asked, ..settings() });
        let response = LoginResponse { tsih, ..puppet.response(FULL) };
        let step = puppet.login.received(Duration::ZERO, &response, b"");
        assert_eq!(matches!(step, Step::Done(_)), is_good, "{step:?}");
    }
}

#[test]
fn every_refusal_is_told_whatever_else_the_response_says() {
    for code in (0x0200..0x0210).chain(0x0300..0x0310).chain([0x0400, 0xffff]) {
        let mut puppet = Puppet::new(settings());
        let [status_class, status_detail] = u16::to_be_bytes(code);
        // Numbers, echoes and stages mean nothing in a refusal, and not all targets fill them in.
        let response = LoginResponse { status_class, status_detail, ..LoginResponse::default() };
        let step = puppet.login.received(Duration::ZERO, &response, b"");
        let Step::Failed(LoginError::Refused { refusal }) = step else { panic!("{step:?}") };
        assert_eq!(refusal.code, code);
        assert_eq!(refusal.known(), LoginStatus::from_code(code));
    }
}

#[test]
fn a_redirection_without_an_address_is_none() {
    let mut puppet = Puppet::new(settings());
    let moved = LoginResponse { status_class: 1, status_detail: 1, ..LoginResponse::default() };
    let step = puppet.login.received(Duration::ZERO, &moved, b"");
    assert!(matches!(step, Step::Failed(LoginError::Protocol(_))), "{step:?}");
}

#[test]
fn every_operational_key_of_the_rfc_can_be_brought_up_without_harm() {
    for row in TABLE {
        for value in ["1", "No", "None", "512", ""] {
            let mut puppet = Puppet::operational(settings());
            puppet.answers(HERE, &[(row.name, value)]);
        }
    }
}
