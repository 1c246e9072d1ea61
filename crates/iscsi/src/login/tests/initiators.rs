//! The offers of initiators in the field: Windows as a third party saw it on the wire, open-iscsi, libiscsi (which is QEMU's
//! too) and FreeBSD from their sources, ESXi as it is commonly reported (not confirmed).

use super::*;
use crate::parameters::{SessionType, TaskReporting};

#[test]
fn open_iscsi() {
    let mut login = login();
    let first = text(&[
        ("InitiatorName", INITIATOR),
        ("InitiatorAlias", "host"),
        ("TargetName", TARGET),
        ("SessionType", "Normal"),
        ("AuthMethod", "None"),
    ]);
    let reply = respond(login.step(&request(SECURITY, Some(OPERATIONAL)), &first, &Directory));
    assert!(reply.pdu.transit && reply.pdu.next_stage == OPERATIONAL);
    assert_eq!(answers(&reply), [("TargetPortalGroupTag", "3"), ("AuthMethod", "None")]);
    let second = text(&[
        ("HeaderDigest", "None"),
        ("DataDigest", "None"),
        ("DefaultTime2Wait", "2"),
        ("DefaultTime2Retain", "0"),
        ("IFMarker", "No"),
        ("OFMarker", "No"),
        ("ErrorRecoveryLevel", "0"),
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("MaxBurstLength", "16776192"),
        ("FirstBurstLength", "262144"),
        ("MaxOutstandingR2T", "1"),
        ("MaxConnections", "1"),
        ("DataPDUInOrder", "Yes"),
        ("DataSequenceInOrder", "Yes"),
        ("MaxRecvDataSegmentLength", "262144"),
    ]);
    let outcome = ready(login.step(&request(OPERATIONAL, Some(FULL)), &second, &Directory));
    let expected = owned(&[
        ("MaxRecvDataSegmentLength", "262144"),
        ("HeaderDigest", "None"),
        ("DataDigest", "None"),
        ("DefaultTime2Wait", "2"),
        ("DefaultTime2Retain", "0"),
        ("IFMarker", "No"),
        ("OFMarker", "No"),
        ("ErrorRecoveryLevel", "0"),
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("MaxBurstLength", "16773120"),
        ("MaxOutstandingR2T", "1"),
        ("MaxConnections", "1"),
        ("DataPDUInOrder", "Yes"),
        ("DataSequenceInOrder", "Yes"),
        ("FirstBurstLength", "262144"),
    ]);
    assert_eq!(last_answers(&outcome), expected);
    assert_eq!(outcome.initiator_alias.as_deref(), Some("host"));
    assert_eq!(
        outcome.connection,
        ConnectionParameters {
            max_recv_data_segment_length: 262_144,
            max_send_data_segment_length: 262_144,
            ..ConnectionParameters::default()
        }
    );
}

#[test]
fn open_iscsi_discovery() {
    let mut login = login();
    let offers = text(&[
        ("InitiatorName", INITIATOR),
        ("SessionType", "Discovery"),
        ("HeaderDigest", "None"),
        ("DataDigest", "None"),
        ("DefaultTime2Wait", "2"),
        ("DefaultTime2Retain", "0"),
        ("IFMarker", "No"),
        ("OFMarker", "No"),
        ("ErrorRecoveryLevel", "0"),
        ("MaxRecvDataSegmentLength", "32768"),
    ]);
    let outcome = ready(login.step(&request(OPERATIONAL, Some(FULL)), &offers, &Directory));
    assert_eq!((outcome.session_type, outcome.target.clone()), (SessionType::Discovery, None));
    // The portal's own group stands in for a target's.
    assert_eq!(last_answers(&outcome)[0], ("TargetPortalGroupTag".to_owned(), "1".to_owned()));
    assert_eq!(outcome.connection.max_send_data_segment_length, 32768);
}

/// ErrorRecoveryLevel 2, 32 connections, 16 R2Ts; it stalls without TargetPortalGroupTag in the security stage.
#[test]
fn windows() {
    let mut login = login();
    let first = with_names(&[("AuthMethod", "None")]);
    let reply = respond(login.step(&request(SECURITY, Some(OPERATIONAL)), &first, &Directory));
    assert_eq!(answers(&reply), [("TargetPortalGroupTag", "3"), ("AuthMethod", "None")]);
    let second = text(&[
        ("HeaderDigest", "None,CRC32C"),
        ("DataDigest", "None,CRC32C"),
        ("ErrorRecoveryLevel", "2"),
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("MaxRecvDataSegmentLength", "65536"),
        ("MaxBurstLength", "262144"),
        ("FirstBurstLength", "65536"),
        ("MaxConnections", "32"),
        ("MaxOutstandingR2T", "16"),
        ("DataPDUInOrder", "Yes"),
        ("DataSequenceInOrder", "Yes"),
        ("DefaultTime2Wait", "0"),
        ("DefaultTime2Retain", "60"),
    ]);
    let outcome = ready(login.step(&request(OPERATIONAL, Some(FULL)), &second, &Directory));
    let expected = SessionParameters {
        max_connections: 8,
        initial_r2t: false,
        immediate_data: true,
        max_burst_length: 262_144,
        first_burst_length: 65536,
        max_outstanding_r2t: 16,
        data_pdu_in_order: true,
        data_sequence_in_order: true,
        error_recovery_level: 0,
        default_time2wait_s: 0,
        default_time2retain_s: 0,
        task_reporting: TaskReporting::Rfc3720,
        protocol_level: 1,
    };
    assert_eq!(outcome.session, expected);
    assert_eq!(outcome.connection.max_send_data_segment_length, 65536);
    // Nothing is answered that was not offered, but for our own declaration.
    let offered: Vec<_> = pairs(&second).unwrap().into_iter().map(|(key, _)| key.to_owned()).collect();
    assert!(last_answers(&outcome).iter().all(|(key, _)| offered.contains(key)));
}

/// No user: libiscsi begins with the operational stage and says all in one request.
#[test]
fn libiscsi() {
    let mut login = login();
    let offers = with_names(&LIBISCSI);
    let outcome = ready(login.step(&request(OPERATIONAL, Some(FULL)), &offers, &Directory));
    assert_eq!(outcome.session.max_burst_length, 262_144);
    assert_eq!(outcome.session.first_burst_length, 262_144);
    assert_eq!(outcome.session.max_outstanding_r2t, 1);
    assert!(!outcome.session.initial_r2t && outcome.session.immediate_data);
    assert_eq!(last_answers(&outcome)[0], ("TargetPortalGroupTag".to_owned(), "3".to_owned()));
}

const LIBISCSI: [(&str, &str); 15] = [
    ("HeaderDigest", "None,CRC32C"),
    ("DataDigest", "None"),
    ("InitialR2T", "No"),
    ("ImmediateData", "Yes"),
    ("MaxBurstLength", "262144"),
    ("FirstBurstLength", "262144"),
    ("DefaultTime2Wait", "2"),
    ("DefaultTime2Retain", "0"),
    ("MaxOutstandingR2T", "1"),
    ("ErrorRecoveryLevel", "0"),
    ("IFMarker", "No"),
    ("OFMarker", "No"),
    ("MaxConnections", "1"),
    ("MaxRecvDataSegmentLength", "262144"),
    ("DataPDUInOrder", "Yes"),
];

/// With a user it repeats its names in the second stage when the target chose None.
#[test]
fn libiscsi_with_a_user() {
    let mut login = login();
    let first = with_names(&[("AuthMethod", "CHAP,None")]);
    respond(login.step(&request(SECURITY, Some(OPERATIONAL)), &first, &Directory));
    let second = with_names(&LIBISCSI);
    ready(login.step(&request(OPERATIONAL, Some(FULL)), &second, &Directory));
}

#[test]
fn esxi() {
    let mut login = login();
    let offers = with_names(&[
        ("HeaderDigest", "None"),
        ("DataDigest", "None"),
        ("ErrorRecoveryLevel", "0"),
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("MaxBurstLength", "262144"),
        ("FirstBurstLength", "262144"),
        ("MaxOutstandingR2T", "1"),
        ("MaxConnections", "1"),
        ("DefaultTime2Wait", "0"),
        ("DefaultTime2Retain", "0"),
        ("MaxRecvDataSegmentLength", "131072"),
    ]);
    let outcome = ready(login.step(&request(OPERATIONAL, Some(FULL)), &offers, &Directory));
    assert_eq!(outcome.session.first_burst_length, 262_144);
    assert_eq!(outcome.connection.max_send_data_segment_length, 131_072);
}

/// A virtual machine of QEMU's: libiscsi, under a name with the machine's in it, which may have an underscore.
#[test]
fn qemu() {
    let mut offers = vec![
        ("InitiatorName", "iqn.2008-11.org.linux-kvm:my_vm"),
        ("TargetName", TARGET),
        ("SessionType", "Normal"),
    ];
    offers.extend(LIBISCSI);
    let outcome = ready(login().step(&request(OPERATIONAL, Some(FULL)), &text(&offers), &Directory));
    assert_eq!(outcome.initiator_name.as_str(), "iqn.2008-11.org.linux-kvm:my_vm");
}

/// FreeBSD's iscsid: a security stage of its own, then digests and lengths; it waits for an R2T before any write.
#[test]
fn freebsd() {
    let mut login = login();
    let first = with_names(&[("InitiatorAlias", ""), ("AuthMethod", "None")]);
    let reply = respond(login.step(&request(SECURITY, Some(OPERATIONAL)), &first, &Directory));
    assert_eq!(answers(&reply), [("TargetPortalGroupTag", "3"), ("AuthMethod", "None")]);
    let second = text(&[
        ("HeaderDigest", "CRC32C"),
        ("DataDigest", "None"),
        ("ImmediateData", "Yes"),
        ("MaxBurstLength", "1048576"),
        ("FirstBurstLength", "1048576"),
        ("InitialR2T", "Yes"),
        ("MaxOutstandingR2T", "1"),
        ("MaxRecvDataSegmentLength", "262144"),
        ("DefaultTime2Wait", "0"),
        ("DefaultTime2Retain", "0"),
        ("ErrorRecoveryLevel", "0"),
    ]);
    let outcome = ready(login.step(&request(OPERATIONAL, Some(FULL)), &second, &Directory));
    assert!(outcome.session.initial_r2t && outcome.session.immediate_data);
    assert_eq!(outcome.session.max_burst_length, 1 << 20);
    assert_eq!(outcome.session.first_burst_length, 256 << 10);
    assert!(outcome.connection.digests.header && !outcome.connection.digests.data);
}

/// An initiator that knows all of RFC 7143 and RFC 7144.
#[test]
fn one_that_offers_everything() {
    let offers = with_names(&[
        ("TaskReporting", "FastAbort,ResponseFence,RFC3720"),
        ("iSCSIProtocolLevel", "2"),
        ("X#NodeArchitecture", "ExampleOS/v1234"),
    ]);
    let outcome = ready(login().step(&request(OPERATIONAL, Some(FULL)), &offers, &Directory));
    assert_eq!(
        (outcome.session.task_reporting, outcome.session.protocol_level),
        (TaskReporting::FastAbort, 2)
    );
    assert_eq!(outcome.initiator_architecture.as_deref(), Some("ExampleOS/v1234"));
    let told: Vec<_> = last_answers(&outcome).into_iter().map(|(key, _)| key).collect();
    let expected =
        ["TargetPortalGroupTag", "MaxRecvDataSegmentLength", "TaskReporting", "iSCSIProtocolLevel"];
    assert_eq!(told, expected, "declarations have no answers");
}

/// iSER's keys (RFC 7145) are not served.
#[test]
fn keys_of_other_standards_are_not_understood() {
    let mut login = login();
    let offers = with_names(&[("RDMAExtensions", "Yes"), ("X-com.example.a", "1")]);
    let outcome = ready(login.step(&request(OPERATIONAL, Some(FULL)), &offers, &Directory));
    let answers = last_answers(&outcome);
    assert!(answers.contains(&("RDMAExtensions".to_owned(), "NotUnderstood".to_owned())));
    assert!(answers.contains(&("X-com.example.a".to_owned(), "NotUnderstood".to_owned())));
}
