//! Connections that are lost at ErrorRecoveryLevel 2 (RFC 7143, 6.3.4, 6.3.6, 7.1.4.3, 7.5, 7.6, 11.9.1, 11.14): what is
//! kept, for how long, and who is told.

use lunette_block::OperationKind;
use lunette_tests::in_process::{InProcess, wait_until};
use lunette_tests::initiator::LoginOptions;
use lunette_tests::raw::{BLOCK_BYTES, Raw, write};
use lunette_wire::frame::Digests;
use lunette_wire::initiator::LogoutReason;
use lunette_wire::{Cid, InitiatorPdu, StatSn, TargetPdu};

use super::{options, reassign, target};
use crate::{COMPLETE, DISK, expect_on_disk, expect_ready};

/// AsyncEvent "connection drop notification" (11.9.1).
const CONNECTION_DROP: u8 = 2;
/// SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT.
const CLEARED_BY_PROTOCOL: (u8, u8, u8) = (6, 0x47, 0x7f);
/// Responses to TASK REASSIGN (11.6.1).
pub(super) const DOES_NOT_EXIST: u8 = 1;
pub(super) const STILL_ALLEGIANT: u8 = 3;
pub(super) const NOT_SUPPORTED: u8 = 4;
/// Responses to a Logout Request (11.15.1).
const CLOSED: u8 = 0;
const CID_NOT_FOUND: u8 = 1;
const RECOVERY_NOT_SUPPORTED: u8 = 2;

/// A session at level 2 that is ready, on the connection with CID 0.
pub(super) fn level_2(target: &InProcess, keys: &[(&str, &str)]) -> Raw {
    Raw::ready(target.portal(), &options(target, 2, keys), 0).expect("a login")
}

/// Another connection of the session, or its only one again.
pub(super) fn connect(target: &InProcess, session: &Raw, cid: u16) -> anyhow::Result<Raw> {
    let options = LoginOptions {
        tsih: session.tsih,
        cid: Cid(cid),
        first_cmd_sn: session.cmd_sn,
        keys: Vec::new(),
        ..options(target, 2, &[])
    };
    Raw::login(target.portal(), &options)
}

/// Breaks a connection off, and waits until the target has seen it: another one is told. Answers the times that it names.
pub(super) fn lose(connection: Raw, cid: u16, other: &mut Raw) -> [u16; 2] {
    drop(connection);
    let (TargetPdu::AsynchronousMessage(pdu), _) = other.receive().expect("a message") else {
        panic!("no Asynchronous Message")
    };
    assert_eq!((pdu.event, pdu.parameters[0]), (CONNECTION_DROP, cid));
    [pdu.parameters[1], pdu.parameters[2]]
}

/// Removes a connection for recovery by a Logout Request on another one.
pub(super) fn remove(other: &mut Raw, cid: u16) {
    let tag = other.log_out(LogoutReason::RemoveConnectionForRecovery, cid).expect("sent");
    assert_eq!(other.logged_out(tag).expect("an answer"), CLOSED);
}

/// 7.1.4.3, 7.2.2, 11.14: a lost connection is announced; its tasks belong to it until it is logged out for recovery, and
/// can then be had on another connection; the numbers stay whole.
#[test]
fn a_lost_connection_is_announced_and_its_tasks_are_kept() {
    let target = target(2, 60);
    let mut first = level_2(&target, &[]);
    let mut second = connect(&target, &first, 1).expect("a login");
    target.hold(0, OperationKind::Write);
    let tag = second.write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 1);
    first.cmd_sn = second.cmd_sn;
    assert_eq!(lose(second, 1, &mut first), [0, 60]);
    let early = reassign(&mut first, tag, 0);
    assert_eq!(first.managed(early).expect("an answer"), STILL_ALLEGIANT);
    remove(&mut first, 1);
    let request = reassign(&mut first, tag, 0);
    assert_eq!(first.managed(request).expect("the answer comes before the task goes on"), COMPLETE);
    first.silent().expect("it is in the store");
    target.faults(0).clear();
    first.acknowledged = Some(first.exp_stat_sn);
    first.good(tag).expect("the write");
    let again = reassign(&mut first, tag, 0);
    assert_eq!(first.managed(again).expect("an answer"), STILL_ALLEGIANT, "its status may be on its way");
    first.acknowledged = None;
    expect_ready(&mut first, 0);
    expect_on_disk(&mut first, 0, &[0xaa; BLOCK_BYTES]);
    assert_eq!(first.max_cmd_sn(), first.cmd_sn.plus(127), "the window has leaked");
}

/// 11.15.1, 11.16: what a Logout for recovery is answered where there is nothing to recover, and below level 2.
#[test]
fn a_logout_for_recovery_needs_a_connection_and_level_2() {
    let target = target(2, 60);
    let mut session = level_2(&target, &[]);
    let tag = session.log_out(LogoutReason::RemoveConnectionForRecovery, 7).expect("sent");
    assert_eq!(session.logged_out(tag).expect("an answer"), CID_NOT_FOUND);
    let mut lower =
        Raw::ready(target.portal(), &LoginOptions { isid_qualifier: 2, ..options(&target, 1, &[]) }, 0)
            .expect("a login");
    let tag = lower.log_out(LogoutReason::RemoveConnectionForRecovery, 0).expect("sent");
    assert_eq!(lower.logged_out(tag).expect("an answer"), RECOVERY_NOT_SUPPORTED);
    let tag = reassign(&mut lower, tag, 0);
    assert_eq!(lower.managed(tag).expect("an answer"), NOT_SUPPORTED);
}

/// 6.3.4, 6.3.6: the only connection is lost, the session waits, and a login with its CID is the logout for recovery; that
/// does not wait for what is in a store.
#[test]
fn a_session_goes_on_after_its_only_connection_is_lost() {
    let target = target(2, 60);
    let mut old = level_2(&target, &[("MaxConnections", "1")]);
    target.hold(0, OperationKind::Write);
    let tag = old.write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 1);
    let (mut ghost, peer) = (connect_from(&old), old.connection().local_address().expect("an address"));
    drop(old);
    assert!(!target.log_about(peer, "closed by the initiator").is_empty());
    ghost.target = Some(target.name().to_owned());
    let mut new = ghost.login(&target).expect("the session is there");
    let request = reassign(&mut new, tag, 0);
    assert_eq!(new.managed(request).expect("an answer"), COMPLETE);
    target.faults(0).clear();
    new.good(tag).expect("the write");
    expect_ready(&mut new, 0);
    expect_on_disk(&mut new, 0, &[0xaa; BLOCK_BYTES]);
}

/// 11.12.9: the login that restarts a connection acknowledges what has arrived on the old one; a further connection's does not.
#[test]
fn a_login_that_restarts_a_connection_acknowledges_its_statuses() {
    for (cid, answer) in [(0, DOES_NOT_EXIST), (1, COMPLETE)] {
        let target = target(2, 60);
        let mut old = level_2(&target, &[]);
        let tag = old.write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
        old.good(tag).expect("a write");
        let joining = LoginOptions {
            tsih: old.tsih,
            cid: Cid(cid),
            first_cmd_sn: old.cmd_sn,
            exp_stat_sn: old.exp_stat_sn,
            keys: Vec::new(),
            ..options(&target, 2, &[])
        };
        let mut new = Raw::login(target.portal(), &joining).expect("a login");
        if cid > 0 {
            // Nothing of the old connection's has arrived, as far as this says (11.14.4).
            new.acknowledged = Some(StatSn(0));
            remove(&mut new, 0);
            new.acknowledged = None;
        }
        let request = reassign(&mut new, tag, 0);
        assert_eq!(new.managed(request).expect("an answer"), answer);
    }
}

/// What is needed to come back to a session whose connection is gone.
struct Ghost {
    target: Option<String>,
    tsih: lunette_wire::Tsih,
    cmd_sn: lunette_wire::CmdSn,
}

fn connect_from(session: &Raw) -> Ghost {
    Ghost { target: None, tsih: session.tsih, cmd_sn: session.cmd_sn }
}

impl Ghost {
    fn login(&self, target: &InProcess) -> anyhow::Result<Raw> {
        let options = LoginOptions {
            target_name: self.target.clone(),
            tsih: self.tsih,
            first_cmd_sn: self.cmd_sn,
            keys: Vec::new(),
            ..options(target, 2, &[])
        };
        Raw::login(target.portal(), &options)
    }
}

/// 6.3.4: where one connection is all there may be, a second one is taken to clean up the first, which the target believes
/// to be alive.
#[test]
fn a_second_connection_may_clean_up_the_only_one() {
    let target = target(2, 60);
    let mut old = level_2(&target, &[("MaxConnections", "1")]);
    target.hold(0, OperationKind::Read);
    let tag = old.read(0, 0, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 1);
    let mut new = connect(&target, &old, 1).expect("a login");
    let refused = connect(&target, &old, 2).expect_err("one more is one too many");
    assert!(refused.to_string().contains("status 0206"), "{refused:#}");
    remove(&mut new, 0);
    old.ends().expect("the old connection is closed");
    let request = reassign(&mut new, tag, 0);
    assert_eq!(new.managed(request).expect("an answer"), COMPLETE);
    target.faults(0).clear();
    assert_eq!(new.data_in(tag).expect("the read").0, [0; BLOCK_BYTES]);
}

/// 11.14.1: a connection may log itself out for recovery; the answer is the last word on it.
#[test]
fn a_connection_removes_itself() {
    let target = target(2, 60);
    let mut first = level_2(&target, &[]);
    let mut second = connect(&target, &first, 1).expect("a login");
    target.hold(0, OperationKind::Write);
    let tag = second.write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 1);
    remove(&mut second, 1);
    second.ends().expect("a closed connection");
    first.cmd_sn = second.cmd_sn;
    let request = reassign(&mut first, tag, 0);
    assert_eq!(first.managed(request).expect("an answer"), COMPLETE);
    target.faults(0).clear();
    first.good(tag).expect("the write");
}

/// 7.8: a header digest error closes the connection, and level 2 recovers that.
#[test]
fn a_header_digest_error_is_a_lost_connection() {
    let target = target(2, 60);
    let digests = Digests { header: true, data: true };
    let options = LoginOptions { digests, ..options(&target, 2, &[]) };
    let mut first = Raw::ready(target.portal(), &options, 0).expect("a login");
    let joining = LoginOptions {
        tsih: first.tsih,
        cid: Cid(1),
        first_cmd_sn: first.cmd_sn,
        keys: Vec::new(),
        ..options
    };
    let mut second = Some(Raw::login(target.portal(), &joining).expect("a login"));
    // The digest itself, the length of additional header segments, and that of data: more than anybody has declared.
    for damaged in [lunette_wire::BHS_LENGTH, 4, 5] {
        let mut joined = match second.take() {
            Some(second) => second,
            None => {
                let joining = LoginOptions { first_cmd_sn: first.cmd_sn, ..joining.clone() };
                Raw::login(target.portal(), &joining).expect("a login")
            }
        };
        let command = joined.number(&lunette_tests::raw::plain());
        let mut bytes = joined.connection().encode(&InitiatorPdu::ScsiCommand(command), &[]);
        bytes[damaged] ^= 0x80;
        // As much as the additional header segments would be.
        bytes.resize(1024, 0);
        joined.connection().send_bytes(&bytes).expect("sent");
        joined.ends().expect("a closed connection");
        assert_eq!(lose(joined, 1, &mut first), [0, 60], "byte {damaged}");
        remove(&mut first, 1);
        // The command was never received: the first connection brings it again (7.2.1).
        first.send(&InitiatorPdu::ScsiCommand(command), &[]).expect("sent");
        first.cmd_sn = command.cmd_sn.next();
        first.good(command.initiator_task_tag).expect("an answer");
    }
}

/// 7.7: a format error ends the session at every level.
#[test]
fn a_format_error_is_not_recovered() {
    let target = target(2, 60);
    let mut first = level_2(&target, &[]);
    let mut second = connect(&target, &first, 1).expect("a login");
    // A data segment of 16 MiB - 1.
    let mut header = InitiatorPdu::ScsiCommand(second.number(&lunette_tests::raw::plain())).encode(0);
    header[5..8].copy_from_slice(&[0xff; 3]);
    second.connection().send_bytes(&header).expect("sent");
    second.ends().expect("a closed connection");
    assert_eq!(crate::event(&mut first), crate::SESSION_DROP);
    first.ends().expect("the session is over");
}

/// 7.6, 11.14.5: tasks that nobody asks for end after Time2Retain, whether their connection was removed for recovery or
/// was only lost; the nexus is told of each unit.
#[test]
fn what_nobody_comes_back_for_ends() {
    let target = target(2, 5);
    let keys = [("InitialR2T", "Yes"), ("ImmediateData", "No")];
    let mut first = level_2(&target, &keys);
    first.make_ready(1).expect("a ready unit");
    let mut tags = Vec::new();
    let mut others = [1, 2].map(|cid| connect(&target, &first, cid).expect("a login"));
    for (lun, other) in others.iter_mut().enumerate() {
        other.cmd_sn = first.cmd_sn;
        let tag = other.command(&write(lun as u8, 0, BLOCK_BYTES), &[]).expect("sent");
        other.r2t(tag).expect("it waits for its data");
        first.cmd_sn = other.cmd_sn;
        tags.push(tag);
    }
    for (index, other) in others.into_iter().enumerate() {
        assert_eq!(lose(other, 1 + index as u16, &mut first), [0, 5]);
    }
    remove(&mut first, 1);
    for lun in [0, 1] {
        wait_until("a unit attention", || {
            let ending = first.test_unit_ready(lun).expect("an answer");
            ending.status != 0 && ending.codes() == CLEARED_BY_PROTOCOL
        });
        expect_ready(&mut first, lun);
    }
    for tag in tags {
        let request = reassign(&mut first, tag, 0);
        assert_eq!(first.managed(request).expect("an answer"), DOES_NOT_EXIST);
    }
    let tag = first.log_out(LogoutReason::RemoveConnectionForRecovery, 2).expect("sent");
    assert_eq!(first.logged_out(tag).expect("an answer"), CID_NOT_FOUND);
    assert_eq!(first.max_cmd_sn(), first.cmd_sn.plus(127), "the window has leaked");
}

/// Where no more sessions may be kept, one ends with its last connection that had not been logged out (6.3.5); another, which still waits
/// for a store to answer its logout, is closed with it, or it would speak in the next session at that place.
#[test]
fn a_connection_that_leaves_does_not_outlive_its_session() {
    let target = InProcess::start_with(&[DISK], |config| {
        config.limits.error_recovery_level = 2;
        config.limits.time2retain_s = 3600;
        config.limits.retained_sessions_max = 0;
    });
    let mut first = level_2(&target, &[]);
    let second = connect(&target, &first, 1).expect("a login");
    target.hold(0, OperationKind::Write);
    first.write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 1);
    first.log_out(LogoutReason::CloseConnection, 0).expect("sent");
    first.silent().expect("the answer waits for the store");
    drop(second);
    first.ends().expect("it is closed with its session");
    target.faults(0).clear();
    let mut next = level_2(&target, &[]);
    expect_ready(&mut next, 0);
}

/// A session that nobody comes back to ends after Time2Retain (6.3.5), at once where as many as may be are kept already,
/// and when the target stops.
#[test]
fn a_session_without_a_connection_does_not_stay() {
    let target = target(2, 1);
    let old = level_2(&target, &[]);
    let gone = LoginOptions { tsih: old.tsih, keys: Vec::new(), ..options(&target, 2, &[]) };
    drop(old);
    wait_until("the end of the session", || {
        Raw::login(target.portal(), &LoginOptions { cid: Cid(9), ..gone.clone() })
            .is_err_and(|error| error.to_string().contains("status 020a"))
    });

    let target = InProcess::start_with(&[DISK], |config| {
        config.limits.error_recovery_level = 2;
        config.limits.time2retain_s = 3600;
        config.limits.retained_sessions_max = 0;
    });
    let old = level_2(&target, &[]);
    let gone = LoginOptions { tsih: old.tsih, keys: Vec::new(), ..options(&target, 2, &[]) };
    drop(old);
    wait_until("the end of the session", || {
        Raw::login(target.portal(), &gone).is_err_and(|error| error.to_string().contains("status 020a"))
    });

    let target = super::target(2, 3600);
    let mut old = level_2(&target, &[]);
    let peer = old.connection().local_address().expect("an address");
    drop(old);
    assert!(!target.log_about(peer, "closed by the initiator").is_empty());
    target.drain();
    target.end().expect("an end").expect("a clean one");
}
