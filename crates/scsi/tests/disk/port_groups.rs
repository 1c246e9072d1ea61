//! Asymmetric logical unit access: what initiators are told of target port groups, change, and meet (SPC-4).

use lunette_scsi::{AccessState, Io, Lun, Saved, Status, TargetPort};

use crate::host::*;
use crate::reservations::hosts::Hosts;

const STATE_CHANGED: (u8, u8) = (0x2a, 0x06);

fn port(id: u16) -> TargetPort {
    TargetPort::new(id).unwrap_or_else(|| panic!("a port"))
}

fn report(format: u8) -> [u8; 16] {
    padded(&[0xa3, 0x0a | format << 5, 0, 0, 0, 0, 0, 0, 0, 255])
}

fn set_cdb(length: usize) -> [u8; 16] {
    padded(&[0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, length as u8])
}

/// The parameter list: state and group each.
fn list(groups: &[(u8, u16)]) -> Vec<u8> {
    let descriptors = groups.iter().flat_map(|&(state, group)| {
        let [high, low] = group.to_be_bytes();
        [state, 0, high, low]
    });
    [0; 4].into_iter().chain(descriptors).collect()
}

fn set(hosts: &mut Hosts, who: usize, groups: &[(u8, u16)]) -> Reply {
    let list = list(groups);
    hosts.all[who].run(&set_cdb(list.len()), &list)
}

/// Nexus 0 and 2 come through port 1, nexus 1 and 3 through port 2.
fn hosts() -> Hosts {
    Hosts::new(Saved::Nothing)
}

/// SPC-4: REPORT TARGET PORT GROUPS, SET TARGET PORT GROUPS.
#[test]
fn groups_are_reported_in_both_formats() {
    let mut hosts = hosts();
    let first = [0, 0xcf, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1];
    let second = [0x81, 0xcf, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2];
    hosts.unit().begin_access(port(2), AccessState::ActiveNonOptimized, true);
    let short = hosts.all[0].good(&report(0), &[]);
    assert_eq!(short, [&[0, 0, 0, 24][..], &first, &second].concat());
    let extended = hosts.all[0].good(&report(1), &[]);
    assert_eq!(extended, [&[0, 0, 0, 28, 0x10, 0, 0, 0][..], &first, &second].concat());
    assert_eq!(hosts.all[0].run(&report(2), &[]).field(), Some((1, Some(7))));
    let cut = hosts.all[0].good(&padded(&[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 4]), &[]);
    assert_eq!(cut, [0, 0, 0, 24], "the length tells of all there is");
}

/// SPC-4: REPORT TARGET PORT GROUPS, SET TARGET PORT GROUPS.
#[test]
fn an_initiator_changes_states_and_the_others_are_told() {
    let mut hosts = hosts();
    assert_eq!(set(&mut hosts, 0, &[(2, 2)]).status, Status::Good);
    assert_eq!(hosts.all[0].log(), [Io::SaveState], "stored before it is answered");
    for who in 0..4 {
        let told = if who == 0 { vec![] } else { vec![STATE_CHANGED] };
        assert_eq!(hosts.attentions(who), told, "{who}");
    }
    assert_eq!(
        hosts.all[0].good(&report(0), &[])[16..22],
        [2, 0xcf, 0, 2, 0, 1],
        "standby, by SET TARGET PORT GROUPS"
    );
    assert_eq!(set(&mut hosts, 0, &[(2, 2), (0, 1)]).status, Status::Good);
    assert!(hosts.attentions(2).is_empty(), "nothing has changed");
    assert_eq!(hosts.all[0].run(&set_cdb(0), &[]).status, Status::Good, "an empty list asks for nothing");
    // The nexus that is in standby can bring itself back.
    assert_eq!(set(&mut hosts, 3, &[(0, 2)]).status, Status::Good);
    assert_eq!(hosts.all[3].code(&[0]), GOOD);
}

/// SPC-4: REPORT TARGET PORT GROUPS, SET TARGET PORT GROUPS.
#[test]
fn each_state_lets_through_what_it_must() {
    let mut hosts = hosts();
    let standby_too = [
        padded(&[0x1a, 0, 0x3f, 0, 255]),
        padded(&[0x25]),
        padded(&[0x5e, 0, 0, 0, 0, 0, 0, 0, 255]),
        padded(&[0x1d, 4]),
        padded(&[0x4d, 0, 0x40, 0, 0, 0, 0, 0, 255]),
    ];
    let everywhere =
        [padded(&[0x12, 0, 0, 0, 36]), padded(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64]), report(0), set_cdb(0)];
    for (state, reason) in [
        (AccessState::ActiveNonOptimized, None),
        (AccessState::Standby, Some((2, 0x04, 0x0b))),
        (AccessState::Unavailable, Some((2, 0x04, 0x0c))),
        (AccessState::Offline, Some((2, 0x04, 0x12))),
        (AccessState::Transitioning, Some((2, 0x04, 0x0a))),
        (AccessState::ActiveOptimized, None),
    ] {
        assert!(hosts.unit().change_access_implicitly(&[(port(2), state)]));
        for who in 0..4 {
            assert_eq!(
                hosts.attentions(who).first(),
                Some(&STATE_CHANGED),
                "an implicit change is told to all"
            );
        }
        let refused = reason.unwrap_or(GOOD);
        let reached = state == AccessState::Standby || reason.is_none();
        for cdb in [padded(&[0]), cdb10(0x28, 0, 0, 1), cdb10(0x35, 0, 0, 0)] {
            assert_eq!(hosts.all[1].code(&cdb), refused, "{state:?} {cdb:02x?}");
            assert_eq!(hosts.all[0].code(&cdb), GOOD, "the other port");
        }
        assert_eq!(hosts.all[1].run(&cdb10(0x2a, 0, 0, 1), &[1; BLOCK]).code(), refused);
        for cdb in standby_too {
            assert_eq!(hosts.all[1].code(&cdb), if reached { GOOD } else { refused }, "{state:?} {cdb:02x?}");
        }
        for cdb in everywhere {
            assert_eq!(hosts.all[1].code(&cdb), GOOD, "{state:?} {cdb:02x?}");
        }
        let sense = hosts.all[1].good(&[0x03, 0, 0, 0, 18, 0], &[]);
        assert_eq!((sense[2], sense[12], sense[13]), refused, "REQUEST SENSE tells why");
    }
}

#[test]
fn wrong_lists_change_nothing() {
    let mut hosts = hosts();
    let mut field = |groups: &[(u8, u16)]| {
        let reply = set(&mut hosts, 0, groups);
        assert_eq!(reply.code(), INVALID_PARAMETER);
        reply.field()
    };
    assert_eq!(field(&[(2, 1), (2, 9)]), Some((10, None)), "no such group");
    assert_eq!(field(&[(2, 1), (4, 2)]), Some((8, Some(3))), "no such state");
    assert_eq!(field(&[(0x0e, 1)]), Some((4, Some(3))), "offline is not for initiators");
    assert_eq!(field(&[(0x0f, 1)]), Some((4, Some(3))), "nor is transitioning");
    for length in [1, 3, 5, 7] {
        assert_eq!(hosts.all[0].run(&set_cdb(length), &[0; 8]).code(), LENGTH_ERROR, "{length}");
    }
    assert_eq!(hosts.all[0].run(&set_cdb(8), &list(&[])).code(), LENGTH_ERROR, "less data than announced");
    let long = padded(&[0xa4, 0x0a, 0, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(hosts.all[0].run(&long, &[]).asked_bytes, 0, "more than is taken");
    assert_eq!(hosts.unit().access_state(port(1)), AccessState::ActiveOptimized);
}

#[test]
fn states_outlive_a_restart_and_a_session() {
    let mut hosts = hosts();
    assert_eq!(set(&mut hosts, 0, &[(3, 2)]).status, Status::Good);
    hosts.lose(3);
    assert_eq!(hosts.all[3].code(&[0]), (2, 0x04, 0x0c), "a nexus that comes up later");
    assert!(hosts.all[0].nexus.logical_unit_reset(Lun::from_number(0)));
    assert_eq!(hosts.unit().access_state(port(2)), AccessState::Unavailable, "a reset changes no state");
    let state = hosts.unit().state();
    let mut restarted = Hosts::new(state.saved());
    assert_eq!(restarted.all[1].code(&[0]), (2, 0x04, 0x0c));
    assert_eq!(restarted.all[0].code(&[0]), GOOD);
    // A unit that keeps nothing changes states all the same.
    let mut volatile = Hosts::new(Saved::Nowhere);
    assert_eq!(set(&mut volatile, 0, &[(3, 2)]).status, Status::Good);
    assert!(volatile.all[0].log().is_empty());
    assert_eq!(volatile.all[1].code(&[0]).1, 0x2a);
    assert_eq!(volatile.all[1].code(&[0]), (2, 0x04, 0x0c));
}

/// What the operator has wanted meanwhile ends what was set before, although he wants the first state again.
#[test]
fn a_state_that_did_not_come_back_once_does_not_come_back() {
    let mut hosts = hosts();
    assert_eq!(set(&mut hosts, 0, &[(3, 2)]).status, Status::Good);
    let restarted = |saved: Saved<'_>, initial| {
        let hosts = Hosts::new(saved);
        hosts.unit().begin_access(port(2), initial, false);
        hosts.unit().settle_access();
        hosts
    };
    let mut state = hosts.unit().state();
    for (initial, then, is_new) in [
        (AccessState::ActiveOptimized, AccessState::Unavailable, false),
        (AccessState::Standby, AccessState::Standby, true),
        (AccessState::ActiveOptimized, AccessState::ActiveOptimized, false),
    ] {
        let hosts = restarted(state.saved(), initial);
        let unit = hosts.unit();
        assert_eq!(unit.access_state(port(2)), then);
        assert_eq!(unit.next_work(), is_new.then_some(Io::SaveState), "{initial:?}");
        state = unit.state();
    }
}

/// What an initiator has set becomes what the operator wants: that is kept, and nobody is told of a change.
#[test]
fn who_begins_anew_in_the_state_that_was_set_tells_nobody() {
    let mut hosts = hosts();
    let initial = hosts.unit().state();
    assert_eq!(set(&mut hosts, 0, &[(1, 2)]).status, Status::Good);
    assert_ne!(hosts.unit().state(), initial);
    (0..4).for_each(|who| drop(hosts.attentions(who)));
    assert!(hosts.unit().begin_access_anew(port(2), AccessState::ActiveNonOptimized, false));
    assert_eq!(hosts.unit().state(), initial, "it is the initial one from now on");
    assert!((0..4).all(|who| hosts.attentions(who).is_empty()));
    assert!(hosts.unit().begin_access_anew(port(2), AccessState::ActiveNonOptimized, true));
    assert!((0..4).all(|who| hosts.attentions(who) == [STATE_CHANGED]), "PREF");
}
