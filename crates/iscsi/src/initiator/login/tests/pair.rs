//! Both roles in one thread: any wishes and any limits give one result on both sides.

use lunette_cases::cases;
use proptest::prelude::*;

use super::*;
use crate::initiator::discovery::Portal;
use crate::login::{
    Login as TargetLogin, LoginOutcome, LoginStep, LookupFailure, Redirection, TargetDirectory, TargetEntry,
};
use crate::parameters::{DigestPolicy, TargetLimits, TaskReporting};

/// One target, for all or for who has a secret.
pub(super) struct Directory {
    pub(super) policy: Policy,
    pub(super) moved: Option<Redirection>,
}

impl TargetDirectory for Directory {
    fn find(&self, name: &str, _: &str) -> Result<TargetEntry, LookupFailure> {
        let entry =
            TargetEntry { portal_group_tag: 3, alias: Some("A Disk".to_owned()), moved: self.moved.clone() };
        if name == TARGET { Ok(entry) } else { Err(LookupFailure::NotFound) }
    }

    fn authentication(&self, _: Option<&str>) -> Policy {
        self.policy.clone()
    }
}

/// What a login came to on both sides.
pub(super) struct Both {
    pub(super) initiator: Step,
    pub(super) target: Option<LoginOutcome>,
    pub(super) trace: Trace,
}

impl Both {
    pub(super) fn error(self) -> LoginError {
        match self.initiator {
            Step::Failed(error) => error,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn agreed(self) -> (Outcome, LoginOutcome, Trace) {
        match (self.initiator, self.target) {
            (Step::Done(outcome), Some(target)) => (*outcome, target, self.trace),
            other => panic!("{other:?}"),
        }
    }
}

/// Lets the two log in.
pub(super) fn play(settings: LoginSettings, limits: TargetLimits, directory: &Directory) -> Both {
    let (mut login, mut request) = begin(settings);
    let first = request.pdu;
    let mut target = TargetLogin::new(limits, 3, nonce(0x5a)).starting_with(StatSn(0xffff_ffff));
    let mut accepted = None;
    loop {
        let reply = match target.step(&request.pdu, &request.text, directory) {
            LoginStep::Respond(reply) | LoginStep::Fail(reply, _) => reply,
            LoginStep::Ready(outcome) => {
                let tsih = if outcome.tsih == Tsih(0) { Tsih(9) } else { outcome.tsih };
                let reply = outcome.accept(tsih, outcome.numbers);
                accepted = Some(*outcome);
                reply
            }
            LoginStep::Drop(failure) => panic!("{failure}"),
        };
        match login.received(Duration::ZERO, &reply.pdu, &reply.text) {
            Step::Send(next) => {
                assert_is_of_login(&first, &next.pdu);
                request = next;
            }
            end => return Both { initiator: end, target: accepted, trace: login.trace().clone() },
        }
    }
}

/// What stays the same in all requests of a login (11.12.4 to 11.12.8).
fn assert_is_of_login(first: &LoginRequest, next: &LoginRequest) {
    assert_eq!((next.version_max, next.version_min), (0, 0), "11.12.4");
    let names = |pdu: &LoginRequest| {
        (pdu.version_max, pdu.version_min, pdu.isid, pdu.tsih, pdu.cid, pdu.initiator_task_tag)
    };
    assert_eq!(names(next), names(first));
}

pub(super) const OPEN: Directory = Directory { policy: None, moved: None };

#[test]
fn the_defaults_of_both_sides_agree() {
    let (ours, theirs, trace) = play(settings(), TargetLimits::default(), &OPEN).agreed();
    assert_eq!(ours.session, theirs.session);
    assert_eq!((ours.session.max_outstanding_r2t, ours.session.first_burst_length), (16, 256 * 1024));
    assert!(!ours.session.initial_r2t && ours.session.immediate_data);
    assert_eq!((ours.tsih, ours.portal_group_tag), (Tsih(9), Some(3)));
    assert_eq!(ours.target_alias.as_deref(), Some("A Disk"));
    assert_eq!((ours.exp_stat_sn, ours.max_cmd_sn), (theirs.next_stat_sn, theirs.numbers.max_cmd_sn));
    // Two exchanges, and nobody had to ask twice; each request is answered before the next.
    let from: Vec<_> = trace.pdus.iter().map(|pdu| pdu.from).collect();
    assert_eq!(from, [Side::Initiator, Side::Target, Side::Initiator, Side::Target]);
    let key = |name| trace.keys.iter().find(|key| key.name == name).unwrap();
    let burst = key("FirstBurstLength");
    assert_eq!((burst.offered.as_deref(), burst.answered.as_deref()), (Some("1048576"), Some("262144")));
    assert_eq!((burst.result.as_str(), burst.reason), ("262144", Reason::TargetWantsLess));
    assert_eq!(key("MaxRecvDataSegmentLength").reason, Reason::Declared);
}

#[test]
fn without_the_security_stage_one_exchange_brings_the_same() {
    let (whole, ..) = play(settings(), TargetLimits::default(), &OPEN).agreed();
    let without = LoginSettings { skips_security: true, ..settings() };
    let (ours, theirs, trace) = play(without, TargetLimits::default(), &OPEN).agreed();
    assert_eq!((ours.session, ours.connection), (whole.session, whole.connection));
    assert_eq!((ours.session, ours.portal_group_tag), (theirs.session, whole.portal_group_tag));
    assert_eq!(trace.pdus.len(), 2);
    assert!(trace.keys.iter().all(|key| key.reason != Reason::NotAnswered));
}

#[test]
fn a_further_connection_settles_what_is_its_own() {
    let joining = LoginSettings { tsih: Tsih(0x0102), cid: Cid(2), ..settings() };
    let (ours, theirs, trace) = play(joining, TargetLimits::default(), &OPEN).agreed();
    assert_eq!((ours.tsih, theirs.tsih, theirs.cid), (Tsih(0x0102), Tsih(0x0102), Cid(2)));
    assert_eq!(trace.keys.len(), 3);
    assert_eq!(ours.connection.max_send_data_segment_length, 256 * 1024);
}

/// 11.12.9: the target takes it for what has come of the old connection.
#[test]
fn a_connection_that_takes_anothers_place_acknowledges_its_statuses() {
    let first = |exp_stat_sn| {
        begin(LoginSettings { tsih: Tsih(0x0102), exp_stat_sn, ..settings() }).1.pdu.exp_stat_sn
    };
    assert_eq!(first(Some(StatSn(0xffff_fff0))), StatSn(0xffff_fff0));
    assert_eq!(first(None), StatSn(0));
    // Then it counts what this login brings.
    let replacing =
        LoginSettings { tsih: Tsih(0x0102), exp_stat_sn: Some(StatSn(0xffff_fff0)), ..settings() };
    let (ours, theirs, _) = play(replacing, TargetLimits::default(), &OPEN).agreed();
    assert_eq!(ours.exp_stat_sn, theirs.next_stat_sn);
}

#[test]
fn discovery_needs_no_target() {
    let discovery = LoginSettings { purpose: Purpose::Discovery(None), ..settings() };
    let (ours, theirs, _) = play(discovery, TargetLimits::default(), &OPEN).agreed();
    assert_eq!((theirs.session_type, theirs.target), (SessionType::Discovery, None));
    assert_eq!(ours.session, theirs.session);
    let named = LoginSettings { purpose: Purpose::Discovery(Some(name(TARGET))), ..settings() };
    assert!(play(named, TargetLimits::default(), &OPEN).agreed().1.target.is_some());
}

#[test]
fn a_redirection_is_told() {
    for is_permanent in [false, true] {
        let moved = Redirection::new(is_permanent, vec!["192.0.2.7:3261".parse().unwrap()]);
        let both = play(settings(), TargetLimits::default(), &Directory { policy: None, moved });
        let Step::Moved(moved) = both.initiator else { panic!("{:?}", both.initiator) };
        assert_eq!(moved.is_permanent, is_permanent);
        assert_eq!(moved.portals[0], Portal::new("192.0.2.7", 3261));
    }
}

#[test]
fn a_long_text_goes_in_parts() {
    let value = "v".repeat(ADDITIONAL_VALUE_LENGTH_MAX);
    let additional = (0..5).map(|n| (format!("X-com.example.k{n}"), value.clone())).collect();
    let wishes = Wishes { additional, ..Wishes::default() };
    let (ours, theirs, trace) =
        play(LoginSettings { wishes, ..settings() }, TargetLimits::default(), &OPEN).agreed();
    assert_eq!(ours.session, theirs.session);
    assert!(trace.pdus.iter().filter(|pdu| pdu.is_continued).count() >= 5);
    let unknown = trace.keys.iter().filter(|key| key.reason == Reason::NotUnderstood).count();
    assert_eq!(unknown, 5);
}

#[test]
fn a_digest_that_one_side_insists_on_and_the_other_refuses_ends_the_login() {
    let wishes = Wishes { data_digest: DigestWish::Required, ..Wishes::default() };
    let limits = TargetLimits { data_digest: DigestPolicy::Refused, ..TargetLimits::default() };
    let error = play(LoginSettings { wishes, ..settings() }, limits, &OPEN).error();
    assert!(error.to_string().contains("status 0200"), "{error}");
}

fn digest_wish() -> impl Strategy<Value = DigestWish> {
    prop_oneof![
        Just(DigestWish::Refused),
        Just(DigestWish::Accepted),
        Just(DigestWish::Preferred),
        Just(DigestWish::Required)
    ]
}

fn digest_policy() -> impl Strategy<Value = DigestPolicy> {
    prop_oneof![Just(DigestPolicy::Allowed), Just(DigestPolicy::Required), Just(DigestPolicy::Refused)]
}

fn length() -> impl Strategy<Value = u32> {
    prop_oneof![512..70_000u32, 512..1u32 << 24]
}

fn wishes() -> impl Strategy<Value = Wishes> {
    let reporting = prop_oneof![
        Just(vec![]),
        Just(vec![TaskReporting::FastAbort, TaskReporting::Rfc3720]),
        Just(vec![TaskReporting::ResponseFence])
    ];
    let flags = (any::<[bool; 4]>(), 0..3u8, 0..32u8, reporting);
    let lengths = (length(), length(), length());
    let counts = (1..300u16, 1..300u16, 0..=3600u16, 0..=3600u16);
    (flags, lengths, counts, digest_wish(), digest_wish()).prop_map(
        |((flags, level, protocol_level, task_reporting), lengths, counts, header_digest, data_digest)| {
            Wishes {
                max_recv_data_segment_length: lengths.0,
                max_burst_length: lengths.1.max(lengths.2),
                first_burst_length: lengths.1.min(lengths.2),
                initial_r2t: flags[0],
                immediate_data: flags[1],
                data_pdu_in_order: flags[2],
                data_sequence_in_order: flags[3],
                max_outstanding_r2t: counts.0,
                max_connections: counts.1,
                error_recovery_level: level,
                default_time2wait_s: counts.2,
                default_time2retain_s: counts.3,
                task_reporting,
                protocol_level,
                header_digest,
                data_digest,
                additional: Vec::new(),
            }
        },
    )
}

fn limits() -> impl Strategy<Value = TargetLimits> {
    let counts = (1..300u16, 1..=32u16, 0..3u8, 0..=3600u16, 0..=3600u16);
    let lengths = (length(), length(), length());
    (any::<[bool; 2]>(), lengths, counts, digest_policy(), digest_policy()).prop_map(
        |(flags, lengths, counts, header_digest, data_digest)| TargetLimits {
            max_recv_data_segment_length: lengths.0,
            max_burst_length: lengths.1,
            first_burst_length: lengths.2,
            initial_r2t: flags[0],
            immediate_data: flags[1],
            max_outstanding_r2t: counts.0,
            max_connections: counts.1,
            error_recovery_level: counts.2,
            default_time2wait_s: counts.3,
            default_time2retain_s: counts.4,
            header_digest,
            data_digest,
            command_window: 32,
        },
    )
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn any_wishes_and_limits_give_one_result(
        wishes in wishes(),
        limits in limits(),
        is_discovery: bool,
        skips_security: bool,
    ) {
        let purpose = if is_discovery { Purpose::Discovery(None) } else { Purpose::Normal(name(TARGET)) };
        let offered = wishes.clone();
        let clash = |wish, policy| matches!(
            (wish, policy),
            (DigestWish::Refused, DigestPolicy::Required) | (DigestWish::Required, DigestPolicy::Refused)
        );
        let is_hopeless = clash(offered.header_digest, limits.header_digest)
            || clash(offered.data_digest, limits.data_digest);
        let both = play(LoginSettings { purpose, wishes, skips_security, ..settings() }, limits, &OPEN);
        if is_hopeless {
            let is_refused = matches!(both.initiator, Step::Failed(LoginError::Refused { .. }));
            prop_assert!(is_refused);
            return Ok(());
        }
        let (mut ours, theirs, trace) = both.agreed();
        if ours.session.initial_r2t && !ours.session.immediate_data {
            // Irrelevant: there is no unsolicited data.
            ours.session.first_burst_length = theirs.session.first_burst_length;
        }
        prop_assert_eq!(ours.session, theirs.session);
        prop_assert_eq!(ours.connection.digests, theirs.connection.digests);
        prop_assert_eq!(
            (ours.connection.max_send_data_segment_length, ours.connection.max_recv_data_segment_length),
            (theirs.connection.max_recv_data_segment_length, theirs.connection.max_send_data_segment_length)
        );
        prop_assert_eq!(ours.connection.max_recv_data_segment_length, offered.max_recv_data_segment_length);
        prop_assert_eq!((ours.cmd_sn, ours.exp_stat_sn), (theirs.cmd_sn, theirs.next_stat_sn));
        prop_assert!(trace.keys.iter().all(|key| key.reason != Reason::NotAnswered));
    }
}
