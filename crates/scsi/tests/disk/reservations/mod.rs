//! Persistent reservations, and RESERVE and RELEASE beside them (SPC-4, SPC-2): against a model, and byte by byte.

pub(crate) mod hosts;
mod lost;
mod model;
mod rules;

use lunette_cases::cases;
use lunette_scsi::{Io, Saved, Status};
use proptest::prelude::*;

use crate::host::*;
use hosts::{Hosts, LOST, same_host};
use model::{Class, End, Model, Step};

fn keys() -> impl Strategy<Value = u64> {
    // Few, so that they often match.
    prop_oneof![1 => Just(0), 6 => 1..=3u64]
}

fn kinds() -> impl Strategy<Value = u8> {
    prop::sample::select(vec![1, 3, 5, 6, 7, 8])
}

fn steps() -> impl Strategy<Value = Step> {
    let along = prop::option::weighted(0.1, prop::collection::vec(0..4usize, 1..3));
    prop_oneof![
        6 => (keys(), keys(), any::<bool>(), along, prop::bool::weighted(0.2), any::<bool>()).prop_map(
            |(key, new, ignore, along, all_ports, aptpl)| {
                Step::Register { key, new, ignore, along, all_ports, aptpl }
            }
        ),
        4 => (keys(), kinds()).prop_map(|(key, kind)| Step::Reserve { key, kind }),
        2 => (keys(), kinds()).prop_map(|(key, kind)| Step::Release { key, kind }),
        1 => keys().prop_map(|key| Step::Clear { key }),
        4 => (keys(), keys(), kinds(), any::<bool>())
            .prop_map(|(key, victim, kind, abort)| Step::Preempt { key, victim, kind, abort }),
        2 => (keys(), keys(), 0..4usize, any::<bool>())
            .prop_map(|(key, new, to, unregister)| Step::Move { key, new, to, unregister }),
        1 => Just(Step::Spc2Reserve),
        1 => Just(Step::Spc2Release),
        1 => Just(Step::NexusLoss),
        1 => Just(Step::LogicalUnitReset),
        1 => Just(Step::Loss),
        4 => (keys(), keys(), kinds()).prop_map(|(key, new, kind)| Step::ReplaceLost { key, new, kind }),
    ]
}

/// With the key that the nexus is registered with, most of the time, or too little would ever happen.
fn with_right_key(step: Step, registered: Option<u64>, right: bool) -> Step {
    let own = registered.unwrap_or(0);
    match step {
        _ if !right => step,
        Step::Register { new, ignore, along, all_ports, aptpl, .. } => {
            Step::Register { key: own, new, ignore, along, all_ports, aptpl }
        }
        Step::Reserve { kind, .. } => Step::Reserve { key: own, kind },
        Step::Release { kind, .. } => Step::Release { key: own, kind },
        Step::Clear { .. } => Step::Clear { key: own },
        Step::Preempt { victim, kind, abort, .. } => Step::Preempt { key: own, victim, kind, abort },
        Step::Move { new, to, unregister, .. } => Step::Move { key: own, new, to, unregister },
        Step::ReplaceLost { new, kind, .. } => Step::ReplaceLost { key: 0, new, kind },
        other => other,
    }
}

/// TransportIDs name initiator ports: through the port that the command came through the nexus is another one.
fn through_the_same_port(step: Step, who: usize) -> Step {
    match step {
        Step::Register { key, new, ignore, along: Some(along), all_ports, aptpl } => {
            let along = along.into_iter().map(|other| other / 2 * 2 + who % 2).collect();
            Step::Register { key, new, ignore, along: Some(along), all_ports, aptpl }
        }
        other => other,
    }
}

proptest! {
    #![proptest_config(cases(256))]

    /// Every answer, every unit attention, what every class of command meets, and what PERSISTENT RESERVE IN tells.
    /// SPC-4: PERSISTENT RESERVE IN, PERSISTENT RESERVE OUT, PERSISTENT RESERVE OUT, REPLACE LOST RESERVATION.
    #[test]
    fn random_reservations_agree_with_the_model(
        script in prop::collection::vec((0..4usize, steps(), prop::bool::weighted(0.85)), 1..40),
    ) {
        let mut hosts = Hosts::new(Saved::Nothing);
        let mut model = Model::default();
        for (who, step, right) in script {
            let step = with_right_key(step, model.keys.get(&who).copied(), right);
            let step = through_the_same_port(step, who);
            hosts.all[who].log();
            let (end, told, aborted) = model.step(who, &step, same_host);
            prop_assert_eq!(hosts.step(who, &step), end, "{} {:?}", who, &step);
            check_aborts(&mut hosts, who, &aborted);
            if !matches!(step, Step::NexusLoss | Step::LogicalUnitReset | Step::Loss) {
                for other in 0..4 {
                    let mut expected: Vec<_> =
                        told.iter().filter(|(whom, _)| *whom == other).map(|(_, what)| *what).collect();
                    expected.dedup();
                    prop_assert_eq!(hosts.attentions(other), expected, "{} after {:?} of {}", other, &step, who);
                }
            }
            (0..4).for_each(|other| drop(hosts.attentions(other)));
            check_access(&mut hosts, &model);
            check_reports(&mut hosts, &model);
        }
    }
}

fn check_aborts(hosts: &mut Hosts, who: usize, aborted: &[usize]) {
    let mut expected: Vec<_> = aborted.iter().map(|&other| hosts.all[other].nexus.name().clone()).collect();
    expected.sort();
    let asked = hosts.all[who].log().into_iter().find_map(|io| match io {
        Io::AbortTasks { nexuses, is_told: false } => Some(nexuses),
        _ => None,
    });
    let mut asked = asked.unwrap_or_default();
    asked.sort();
    assert_eq!(asked, expected);
}

fn check_access(hosts: &mut Hosts, model: &Model) {
    let inquiry = padded(&[0x12, 0, 0, 0, 36]);
    let commands = [
        (Class::Identify, inquiry, &[][..]),
        (Class::Inspect, padded(&[0]), &[]),
        (Class::Read, cdb10(0x28, 0, 0, 1), &[]),
        (Class::Write, cdb10(0x2a, 0, 0, 1), &[7; BLOCK]),
    ];
    for who in 0..4 {
        for (class, cdb, data) in commands {
            let reply = hosts.all[who].run(&cdb, data);
            let end = match (reply.status, reply.code()) {
                (Status::Good, _) => End::Good,
                (Status::ReservationConflict, _) => End::Conflict,
                (Status::CheckCondition, LOST) => End::Lost,
                other => panic!("{class:?} ends with {other:02x?}"),
            };
            assert_eq!(end, model.meets(who, class), "{class:?} of {who}: {model:?}");
        }
    }
}

fn check_reports(hosts: &mut Hosts, model: &Model) {
    if model.lost || model.spc2.is_some() {
        let refused = hosts.all[0].run(&[0x5e, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0], &[]);
        if model.lost {
            assert_eq!(refused.code(), LOST);
        } else {
            assert_eq!(refused.status, Status::ReservationConflict);
        }
        return;
    }
    let keys = hosts.report(0, 0);
    assert_eq!(keys[..4], model.generation.to_be_bytes());
    let mut told: Vec<_> =
        keys[8..].chunks(8).map(|key| u64::from_be_bytes(key.try_into().expect("eight bytes"))).collect();
    told.sort_unstable();
    let mut expected: Vec<_> = model.keys.values().copied().collect();
    expected.sort_unstable();
    assert_eq!(told, expected);
    assert_eq!(hosts.report(3, 2)[3] & 1 != 0, model.kept, "PTPL_A");
    let reservation = hosts.report(1, 1);
    match model.held {
        None => assert_eq!(reservation[4..], [0; 4]),
        Some((kind, holder)) => {
            let key = if kind >= 7 { 0 } else { model.keys[&holder] };
            assert_eq!(reservation[8..16], key.to_be_bytes());
            assert_eq!(reservation[20..], [0, kind, 0, 0]);
        }
    }
    let full = hosts.report(2, 3);
    let holders = full_status(&full).iter().filter(|descriptor| descriptor[12] & 1 != 0).count();
    assert_eq!(holders, (0..4).filter(|&who| model.holds(who)).count());
}

/// The descriptors of READ FULL STATUS.
fn full_status(data: &[u8]) -> Vec<&[u8]> {
    let mut rest = &data[8..];
    let mut descriptors = Vec::new();
    while !rest.is_empty() {
        let length = 24 + u32::from_be_bytes(rest[20..24].try_into().expect("four bytes")) as usize;
        let (descriptor, after) = rest.split_at(length);
        descriptors.push(descriptor);
        rest = after;
    }
    descriptors
}

/// SAM-5: 5.3.1 status.
#[test]
fn a_conflict_is_a_status_without_sense() {
    let mut hosts = Hosts::new(Saved::Nowhere);
    let reserve = Step::Reserve { key: 1, kind: 1 };
    assert_eq!(hosts.step(0, &reserve), End::Conflict, "nobody is registered");
    let reply = hosts.out(0, 1, 1, &hosts::list(1, 0, 0));
    assert_eq!((reply.status, reply.sense.len()), (Status::ReservationConflict, 0));
}
