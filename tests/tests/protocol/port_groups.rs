//! Asymmetric access end to end: what the operator says of a portal group, in the configuration and while it is served
//! (SPC-4, target port groups).

use lunette_target::config::{AccessState, PortGroupConfig, PortalConfig};
use lunette_tests::in_process::{InProcess, wait_until};
use lunette_tests::raw::{Raw, lun_field, plain};
use lunette_tests::reservations::{Action, persistent_reserve_in, persistent_reserve_out};
use lunette_wire::initiator::ScsiCommand;

use crate::{DISK, SECOND_DISK, expect_attention, expect_ready, ready_session as session};

const STATE_CHANGED: (u8, u8, u8) = (6, 0x2a, 6);
const IN_STANDBY: (u8, u8, u8) = (2, 0x04, 0x0b);

/// REPORT TARGET PORT GROUPS with the short header.
fn groups(session: &mut Raw) -> Vec<u8> {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[9]) = (0xa3, 0x0a, 255);
    let command =
        ScsiCommand { read: true, lun: lun_field(0), expected_data_transfer_length: 255, cdb, ..plain() };
    let tag = session.command(&command, &[]).expect("sent");
    session.data_in(tag).expect("target port groups").0
}

fn expect_standby(session: &mut Raw, lun: u8) {
    let ending = session.test_unit_ready(lun).expect("an answer");
    assert_eq!(ending.codes(), IN_STANDBY, "LUN {lun}");
}

#[test]
fn the_operator_changes_a_state_and_all_sessions_are_told() {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let mut sessions = [session(&target, 1), session(&target, 2)];
    assert_eq!(groups(&mut sessions[0]), [0, 0, 0, 12, 0, 0xcf, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]);
    target.set_access_state(1, AccessState::Standby);
    for session in &mut sessions {
        for lun in [0, 1] {
            let ending = session.test_unit_ready(lun).expect("an answer");
            assert_eq!(ending.codes(), STATE_CHANGED, "LUN {lun}");
            expect_standby(session, lun);
        }
        let read = session.read(0, 0, 1).expect("sent");
        assert_eq!(session.ending(read).expect("an answer").codes(), IN_STANDBY);
    }
    assert_eq!(groups(&mut sessions[1])[4..10], [2, 0xcf, 0, 1, 0, 2], "an implicit transition");
    target.set_access_state(1, AccessState::ActiveNonOptimized);
    for session in &mut sessions {
        expect_attention(session, 0, STATE_CHANGED);
        expect_attention(session, 1, STATE_CHANGED);
    }
}

/// A path that was taken out of service before a restart is not in service after it, until the operator says so.
#[test]
fn a_state_is_configured_and_outlives_a_restart() {
    let directory = tempfile::tempdir().expect("a directory");
    let disk = format!("0={},size=8M", directory.path().join("disk.img").display());
    let serve = |state: AccessState| {
        InProcess::start_with(&[&disk], |config| {
            config.targets[0].port_groups = vec![PortGroupConfig { tag: 1, state, preferred: true }];
        })
    };
    let login = |target: &InProcess| Raw::login(target.portal(), &target.options(1)).expect("a login");
    let target = serve(AccessState::Standby);
    let mut raw = login(&target);
    assert_eq!(raw.test_unit_ready(0).expect("an answer").codes(), (6, 0x29, 0));
    expect_standby(&mut raw, 0);
    assert_eq!(groups(&mut raw)[4], 0x82, "preferred, standby");
    target.set_access_state(1, AccessState::ActiveOptimized);
    expect_attention(&mut raw, 0, STATE_CHANGED);
    let state = directory.path().join("disk.img.lunette-state");
    wait_until("a stored state", || state.exists());
    drop((raw, target));
    let target = serve(AccessState::Standby);
    expect_ready(&mut target.session(1), 0);
    drop(target);
    let target = serve(AccessState::ActiveNonOptimized);
    assert_eq!(groups(&mut target.session(1))[4], 0x81, "the operator has changed his mind");
    drop(target);
    let target = serve(AccessState::Standby);
    let mut raw = login(&target);
    assert_eq!(raw.test_unit_ready(0).expect("an answer").codes(), (6, 0x29, 0));
    // What was set before that is over for good.
    expect_standby(&mut raw, 0);
}

/// Two portal groups of one target are two ports to the same units: what is registered through both is told apart, and
/// either can be taken out of service by a host.
#[test]
fn two_portal_groups_are_two_ports() {
    let target = InProcess::start_with(&[DISK, SECOND_DISK], |config| {
        let address = config.portals[0].address;
        config.portals = vec![PortalConfig { address, group: 1 }, PortalConfig { address, group: 7 }];
    });
    let [first, second] = target.portals() else { panic!("two portals") };
    let ready = |portal| {
        let mut session = Raw::ready(portal, &target.options(1), 0).expect("a session");
        session.make_ready(1).expect("a ready unit");
        session
    };
    // The same initiator port: two I_T nexuses, not one that replaces the other.
    let (mut near, mut far) = (ready(*first), ready(*second));
    let told = groups(&mut near);
    assert_eq!(told[4..16], [0, 0xcf, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]);
    assert_eq!(told[16..28], [0, 0xcf, 0, 7, 0, 0, 0, 1, 0, 0, 0, 7]);
    let register = |session: &mut Raw, key| {
        let ending = persistent_reserve_out(session, 0, Action::Register, 0, (0, key)).expect("an answer");
        assert_eq!(ending.status, 0);
    };
    register(&mut near, 1);
    register(&mut far, 2);
    let full = persistent_reserve_in(&mut far, 0, 3).expect("READ FULL STATUS");
    let length = 24 + usize::from(full[8 + 23]);
    let port = |place: usize| full[8 + place * length + 19];
    assert_eq!((port(0), port(1)), (1, 7), "RELATIVE TARGET PORT IDENTIFIER");

    let list = [0, 0, 0, 0, 2, 0, 0, 7];
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[9]) = (0xa4, 0x0a, list.len() as u8);
    let command = ScsiCommand {
        write: true,
        lun: lun_field(0),
        expected_data_transfer_length: list.len() as u32,
        cdb,
        ..plain()
    };
    let tag = near.command(&command, &list).expect("sent");
    near.good(tag).expect("SET TARGET PORT GROUPS");
    assert_eq!(far.test_unit_ready(0).expect("an answer").codes(), STATE_CHANGED);
    expect_standby(&mut far, 0);
    expect_ready(&mut far, 1);
    expect_ready(&mut near, 0);
}
