//! Whole logins as operating systems in use send them, key for key, and the work that follows: what is granted is what both sides then
//! go by (RFC 7143, chapters 6 and 13). What the state machine makes of the same offers is in `crates/iscsi/src/login`.

use lunette_target::config::{ChapCredential, ChapUser, Config, DigestPolicy, Secret};
use lunette_tests::in_process::InProcess;
use lunette_tests::initiator::{ChapOptions, Initiator, LoginOptions};
use lunette_tests::raw::{Raw, read, write};
use lunette_wire::frame::Digests;
use lunette_wire::initiator::ScsiCommand;
use lunette_wire::target::Residual;
use lunette_wire::{Cid, TargetPdu};

use crate::{DISK, pattern};

type Offers = &'static [(&'static str, &'static str)];

const WINDOWS: Offers = &[
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
];

/// A further connection settles what is a connection's own.
const WINDOWS_JOINING: Offers =
    &[("HeaderDigest", "None,CRC32C"), ("DataDigest", "None,CRC32C"), ("MaxRecvDataSegmentLength", "65536")];

const ESXI: Offers = &[
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
];

const LINUX: Offers = &[
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
];

const FREEBSD: Offers = &[
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
];

const BOTH_DIGESTS: Digests = Digests { header: true, data: true };
const USER: &str = "host-a";
const SECRET: &str = "a secret of host a";

/// All that Windows offers can be had.
fn generous(config: &mut Config) {
    let limits = &mut config.limits;
    limits.max_connections = 32;
    limits.error_recovery_level = 2;
    limits.header_digest = DigestPolicy::Required;
    limits.data_digest = DigestPolicy::Required;
}

fn with_user(config: &mut Config) {
    let credential = ChapCredential { name: USER.to_owned(), secret: Secret::new(SECRET) };
    config.targets[0].chap.users = vec![ChapUser { credential, initiators: Vec::new() }];
}

fn options(target: &InProcess, offers: Offers, with_chap: bool) -> LoginOptions {
    let offers = offers.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let chap = with_chap.then(|| ChapOptions {
        algorithms: "5".to_owned(),
        user: (USER.to_owned(), SECRET.to_owned()),
        target: None,
    });
    LoginOptions { offers: Some(offers), chap, ..target.options(1) }
}

/// Logs in, and expects these answers among others.
fn login(target: &InProcess, options: &LoginOptions, granted: Offers) -> Raw {
    let initiator = Initiator::login(target.portal(), options).expect("a login");
    assert_eq!(initiator.negotiated("TargetPortalGroupTag"), Some("1"));
    for (key, value) in granted {
        assert_eq!(initiator.negotiated(key), Some(*value), "{key}");
    }
    let mut session = Raw::after_login(initiator, options.cid);
    session.make_ready(0).expect("a disk");
    session
}

/// What a session goes by, as far as its transfers show it.
#[derive(Clone, Copy)]
struct Terms {
    first_burst: usize,
    max_burst: usize,
    outstanding_r2ts: usize,
    /// What the initiator takes in one PDU.
    segment: usize,
}

/// A write of some bursts and its read: each R2T and each segment within its bounds.
fn write_and_read(session: &mut Raw, lba: u64, terms: Terms) {
    let length = terms.first_burst + 3 * terms.max_burst + 512;
    let data = pattern(length);
    let command = ScsiCommand { ..write(0, lba, length) };
    let tag = session.command(&command, &data[..terms.first_burst]).expect("sent");
    let mut asked = terms.first_burst;
    let mut waiting = std::collections::VecDeque::new();
    while asked < length {
        while waiting.len() < terms.outstanding_r2ts && asked < length {
            let r2t = session.r2t(tag).expect("an R2T");
            assert_eq!(r2t.buffer_offset as usize, asked);
            assert_eq!(r2t.desired_length as usize, terms.max_burst.min(length - asked));
            asked += r2t.desired_length as usize;
            waiting.push_back(r2t);
        }
        let r2t = waiting.pop_front().expect("one is outstanding");
        session.answer_r2t(&r2t, &data, 65536).expect("sent");
    }
    for r2t in waiting {
        session.answer_r2t(&r2t, &data, 65536).expect("sent");
    }
    session.good(tag).expect("written");
    let tag = session.command(&read(0, lba, (length / 512) as u32), &[]).expect("sent");
    let mut back = Vec::new();
    while back.len() < length {
        match session.receive().expect("data") {
            (TargetPdu::ScsiDataIn(pdu), bytes) => {
                assert_eq!((pdu.initiator_task_tag, pdu.buffer_offset as usize), (tag, back.len()));
                assert!(bytes.len() <= terms.segment, "{} bytes in one PDU", bytes.len());
                back.extend(bytes);
                assert_eq!(pdu.status, (back.len() == length).then_some(0));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(back == data, "other data was read");
}

/// ESXi gives a disk up whose residual counts are not exact (11.4.5.1).
fn residuals_are_exact(session: &mut Raw) {
    for (expected, residual) in
        [(1024, Residual::None), (4096, Residual::Underflow(3072)), (512, Residual::Overflow(512))]
    {
        let command = ScsiCommand { expected_data_transfer_length: expected, ..read(0, 0, 2) };
        let tag = session.command(&command, &[]).expect("sent");
        let (data, found) = session.data_in(tag).expect("data");
        assert_eq!((data.len(), found), (1024.min(expected as usize), residual));
    }
    // REPORT LUNS (11.4.5.3): the list has 16 bytes; its own allocation length cuts it without a word.
    for (allocation, expected, residual) in [
        (16, 16, Residual::None),
        (8, 8, Residual::None),
        (64, 64, Residual::Underflow(48)),
        (8, 64, Residual::Underflow(56)),
    ] {
        let cdb = [0xa0, 0, 0, 0, 0, 0, 0, 0, 0, allocation, 0, 0, 0, 0, 0, 0];
        let command = ScsiCommand { cdb, expected_data_transfer_length: expected, ..read(0, 0, 0) };
        let tag = session.command(&command, &[]).expect("sent");
        let (data, found) = session.data_in(tag).expect("a list");
        assert_eq!((data.len(), found), (usize::from(allocation).min(16), residual));
    }
}

#[test]
fn windows_is_granted_what_the_configuration_has_and_works_by_it() {
    for with_chap in [false, true] {
        let target = InProcess::start_with(&[DISK], |config| {
            if with_chap {
                with_user(config);
            }
        });
        let granted: Offers = &[
            ("HeaderDigest", "None"),
            ("DataDigest", "None"),
            ("ErrorRecoveryLevel", "0"),
            ("MaxConnections", "8"),
            ("MaxOutstandingR2T", "16"),
            ("MaxRecvDataSegmentLength", "262144"),
            ("DefaultTime2Retain", "0"),
        ];
        let mut session = login(&target, &options(&target, WINDOWS, with_chap), granted);
        let terms = Terms { first_burst: 65536, max_burst: 262_144, outstanding_r2ts: 4, segment: 65536 };
        write_and_read(&mut session, 8, terms);
        residuals_are_exact(&mut session);
    }
}

/// RFC 7143: 4.4.3.
#[test]
fn windows_is_granted_all_that_it_offers_and_has_thirty_two_connections_with_digests() {
    for with_chap in [false, true] {
        let target = InProcess::start_with(&[DISK], |config| {
            generous(config);
            if with_chap {
                with_user(config);
            }
        });
        // Sequences in order above level 0 have one R2T at a time (13.19).
        let granted: Offers = &[
            ("HeaderDigest", "CRC32C"),
            ("DataDigest", "CRC32C"),
            ("ErrorRecoveryLevel", "2"),
            ("MaxConnections", "32"),
            ("MaxOutstandingR2T", "1"),
            ("DefaultTime2Retain", "20"),
        ];
        let options = LoginOptions { digests: BOTH_DIGESTS, ..options(&target, WINDOWS, with_chap) };
        let mut leading = login(&target, &options, granted);
        let terms = Terms { first_burst: 65536, max_burst: 262_144, outstanding_r2ts: 1, segment: 65536 };
        write_and_read(&mut leading, 8, terms);
        residuals_are_exact(&mut leading);
        let offers = self::options(&target, WINDOWS_JOINING, with_chap).offers;
        let mut session = vec![leading];
        for cid in 1..32 {
            let first_cmd_sn = session[0].cmd_sn;
            let joining = LoginOptions {
                offers: offers.clone(),
                tsih: session[0].tsih,
                cid: Cid(cid),
                first_cmd_sn,
                ..options.clone()
            };
            let initiator = Initiator::login(target.portal(), &joining).expect("a further connection");
            assert_eq!(initiator.tsih(), session[0].tsih, "the handle stays (4.4.3)");
            assert_eq!(initiator.negotiated("DataDigest"), Some("CRC32C"));
            session.push(Raw::after_login(initiator, Cid(cid)));
        }
        // One numbering for all of them (4.2.2.1).
        let mut next = session[0].cmd_sn;
        for (at, connection) in session.iter_mut().enumerate() {
            connection.cmd_sn = next;
            let data = vec![at as u8 + 1; 4096];
            let tag = connection.write(0, 8 * at as u64, &data).expect("sent");
            connection.good(tag).expect("written");
            let tag = connection.read(0, 8 * at as u64, 8).expect("sent");
            assert!(connection.data_in(tag).expect("read").0 == data);
            next = connection.cmd_sn;
        }
        let last = session.last_mut().expect("there are 32");
        let refused = LoginOptions {
            offers,
            tsih: last.tsih,
            cid: Cid(99),
            first_cmd_sn: last.cmd_sn,
            ..options.clone()
        };
        let _spare =
            Initiator::login(target.portal(), &refused).expect("level 2 has room for a replacement (6.3.4)");
        let refused = LoginOptions { cid: Cid(98), ..refused };
        let error = Initiator::login(target.portal(), &refused).expect_err("no 34th connection");
        assert!(format!("{error:#}").contains("status 0206"), "{error:#}");
    }
}

/// RFC 7143: 11.4.5.3.
#[test]
fn esxi_and_linux_log_in_and_work_by_what_they_are_granted() {
    for (offers, max_burst, segment) in [(ESXI, 262_144, 131_072), (LINUX, 1 << 20, 262_144)] {
        for with_chap in [false, true] {
            let target = InProcess::start_with(&[DISK], |config| {
                config.limits.max_burst_length_bytes = max_burst as u32;
                if with_chap {
                    with_user(config);
                }
            });
            // Who has no user begins with the operational stage.
            let options = LoginOptions { skips_security: !with_chap, ..options(&target, offers, with_chap) };
            let granted: Offers = &[
                ("ErrorRecoveryLevel", "0"),
                ("InitialR2T", "No"),
                ("ImmediateData", "Yes"),
                ("MaxOutstandingR2T", "1"),
                ("FirstBurstLength", "262144"),
                ("MaxRecvDataSegmentLength", "262144"),
            ];
            let mut session = login(&target, &options, granted);
            let terms = Terms { first_burst: 262_144, max_burst, outstanding_r2ts: 1, segment };
            write_and_read(&mut session, 8, terms);
            residuals_are_exact(&mut session);
        }
    }
}

/// FreeBSD's iscsid: a header digest alone, and an R2T before anything that is not immediate.
#[test]
fn freebsd_logs_in_and_works_by_what_it_is_granted() {
    let target = InProcess::start(&[DISK]);
    let digests = Digests { header: true, data: false };
    let options = LoginOptions { digests, ..options(&target, FREEBSD, false) };
    let granted: Offers = &[
        ("HeaderDigest", "CRC32C"),
        ("DataDigest", "None"),
        ("InitialR2T", "Yes"),
        ("MaxBurstLength", "1048576"),
        ("FirstBurstLength", "262144"),
    ];
    let mut session = login(&target, &options, granted);
    let terms = Terms { first_burst: 262_144, max_burst: 1 << 20, outstanding_r2ts: 1, segment: 262_144 };
    write_and_read(&mut session, 8, terms);
    residuals_are_exact(&mut session);
}
