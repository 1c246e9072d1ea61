//! Another configuration while the target runs: what changes at once, whom that disturbs, and what stays as it was (RFC 7143,
//! 9.2, 11.9.1, 11.13.5; SPC-4, asymmetric logical unit access).

use lunette_block::OperationKind;
use lunette_target::config::{
    AccessRule, AccessState, ChapCredential, ChapUser, Grant, PortGroupConfig, Secret,
};
use lunette_tests::in_process::InProcess;
use lunette_tests::initiator::{ChapOptions, LoginOptions};
use lunette_tests::raw::Raw;

use crate::preemption::{LONG_BLOCKS, READS, expect_end_without_news, leave, unsent_reads};
use crate::{DISK, SECOND_DISK, SESSION_DROP, event, expect_attention, expect_ready};

const STATE_CHANGED: (u8, u8, u8) = (6, 0x2a, 6);

const HOST_A: &str = "iqn.2026-11.io.lunette:host-a";
const HOST_B: &str = "iqn.2026-11.io.lunette:host-b";

fn options(target: &InProcess, initiator: &str) -> LoginOptions {
    LoginOptions { initiator_name: initiator.to_owned(), ..target.options(1) }
}

fn session(target: &InProcess, initiator: &str) -> Raw {
    Raw::ready(target.portal(), &options(target, initiator), 0).expect("a session")
}

fn refusal(target: &InProcess, options: &LoginOptions) -> String {
    format!("{:#}", Raw::login(target.portal(), options).expect_err("no login"))
}

/// Its session ends, and it is told.
fn expect_drop(session: &mut Raw) {
    assert_eq!(event(session), SESSION_DROP);
    session.ends().expect("the end");
}

fn rule(initiator: &str, grant: Grant) -> AccessRule {
    let initiators = vec![initiator.parse().expect("a name")];
    AccessRule { initiators, grant, ..AccessRule::default() }
}

fn unit(text: &str) -> Grant {
    Grant::Units(vec![text.parse().expect("a unit")])
}

/// ASYMMETRIC ACCESS STATE CHANGED for each I_T nexus (SPC-4).
#[test]
fn a_portal_group_has_another_state_and_all_sessions_are_told() {
    let mut target = InProcess::start(&[DISK]);
    let mut sessions = [session(&target, HOST_A), session(&target, HOST_B)];
    let group = |state| vec![PortGroupConfig { tag: 1, state, preferred: false }];
    let standby = target.reload(|config| config.targets[0].port_groups = group(AccessState::Standby));
    let standby = standby.expect("a good configuration");
    assert_eq!((standby.applied.len(), standby.waiting.len()), (1, 0), "{standby:?}");
    for session in &mut sessions {
        assert_eq!(session.test_unit_ready(0).expect("an answer").codes(), STATE_CHANGED);
        assert_eq!(session.test_unit_ready(0).expect("an answer").codes(), (2, 0x04, 0x0b), "in standby");
    }
    let again = target.reload(|_| {}).expect("a good configuration");
    assert_eq!((again.applied.len(), again.waiting.len()), (0, 0), "{again:?}");
    target.reload(|config| config.targets[0].port_groups.clear()).expect("a good configuration");
    for session in &mut sessions {
        expect_attention(session, 0, STATE_CHANGED);
    }
}

/// AsyncEvent 3 tells of the drop (11.9.1); status 0202 is "authorization failure" (11.13.5).
#[test]
fn who_may_see_something_else_is_sent_away_and_others_stay() {
    let mut target = InProcess::start_with(&[DISK, SECOND_DISK], |config| {
        config.targets[0].access = vec![rule(HOST_A, unit("0=1")), rule(HOST_B, unit("0"))];
    });
    let (mut first, mut other) = (session(&target, HOST_A), session(&target, HOST_B));
    target.hold(0, OperationKind::Read);
    let reading = other.read(0, 0, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 1);
    let locked_out = target.reload(|config| drop(config.targets[0].access.remove(0)));
    assert_eq!(locked_out.expect("a good configuration").applied.len(), 1);
    expect_drop(&mut first);
    assert!(refusal(&target, &options(&target, HOST_A)).contains("status 0202"));
    let in_again = target.reload(|config| config.targets[0].access.push(rule(HOST_A, unit("0=1"))));
    in_again.expect("a good configuration");
    let mut first = session(&target, HOST_A);
    target.reload(|config| config.targets[0].access[1].grant = unit("0=1,ro")).expect("a good configuration");
    expect_drop(&mut first);
    // Three times others were sent away.
    other.silent().expect("its read is in the store");
    target.faults(0).clear();
    other.data_in(reading).expect("its read goes on");
    expect_ready(&mut other, 0);
}

/// What it has read and not taken is taken from the medium later: what is written from now on is not for it.
#[test]
fn who_may_not_read_any_more_gets_nothing_that_is_written_afterwards() {
    for has_left in [false, true] {
        let (mut target, _, [mut reading, _]) = unsent_reads(|_| {});
        if has_left {
            leave(&target, &mut reading);
        }
        let everything = rule(HOST_B, Grant::Everything { read_only: false });
        let locked_out = target.reload(|config| config.targets[0].access = vec![everything]);
        assert_eq!(locked_out.expect("a good configuration").applied.len(), 1);
        let mut writing = session(&target, HOST_B);
        writing.make_ready(1).expect("a ready unit");
        let tag = writing.write(1, 0, &[0xbb; 65536]).expect("sent");
        writing.good(tag).expect("a write");
        expect_end_without_news(&mut reading, (READS, LONG_BLOCKS));
    }
}

fn user(name: &str, secret: &str) -> ChapUser {
    let credential = ChapCredential { name: name.to_owned(), secret: Secret::new(secret) };
    ChapUser { credential, initiators: Vec::new() }
}

/// A login proves itself with the secret of its day (9.2, 12.1.3); status 0201 otherwise (11.13.5).
#[test]
fn users_come_and_go_and_get_other_secrets() {
    let mut target = InProcess::start_with(&[DISK], |config| {
        config.targets[0].chap.users = vec![user("alice", "secret of alice"), user("bob", "secret of bob..")];
    });
    let as_user = |target: &InProcess, initiator: &str, name: &str, secret: &str| LoginOptions {
        chap: Some(ChapOptions {
            algorithms: "7".to_owned(),
            user: (name.to_owned(), secret.to_owned()),
            target: None,
        }),
        ..options(target, initiator)
    };
    let login = |target: &InProcess, options: &LoginOptions| Raw::ready(target.portal(), options, 0);
    let alice = as_user(&target, HOST_A, "alice", "secret of alice");
    let bob = as_user(&target, HOST_B, "bob", "secret of bob..");
    let mut staying = login(&target, &alice).expect("a session");
    let mut leaving = login(&target, &bob).expect("a session");
    let change = target.reload(|config| {
        config.targets[0].chap.users =
            vec![user("alice", "another one of alice"), user("carol", "secret of carol")];
    });
    change.expect("a good configuration");
    expect_drop(&mut leaving);
    staying.silent().expect("a secret that was right keeps a session");
    for gone in [&alice, &bob] {
        assert!(refusal(&target, gone).contains("status 0201"));
    }
    let newer = as_user(&target, HOST_A, "alice", "another one of alice");
    drop(login(&target, &newer).expect("the session of the same name is replaced"));
    let carol = as_user(&target, HOST_B, "carol", "secret of carol");
    login(&target, &carol).expect("a session");
}

/// No clause asks for it: who operates a target may err.
#[test]
fn what_is_broken_leaves_everything_as_it_was() {
    let mut target = InProcess::start(&[DISK, SECOND_DISK]);
    let mut session = session(&target, HOST_A);
    let broken = target.reload(|config| {
        config.targets[0].port_groups =
            vec![PortGroupConfig { tag: 1, state: AccessState::Offline, preferred: false }];
        config.targets[0].access = vec![rule(HOST_B, unit("0=9"))];
    });
    assert!(broken.expect_err("no such unit").to_string().contains('9'));
    let broken = target.reload(|config| {
        config.targets[0].access = vec![rule(HOST_B, unit("0"))];
        config.targets[0].port_groups =
            vec![PortGroupConfig { tag: 5, state: AccessState::Offline, preferred: false }];
    });
    assert!(broken.expect_err("no such group").to_string().contains("there is no portal group 5"));
    expect_ready(&mut session, 0);
}

/// Keys that are declared or negotiated at a login only (clause 13) wait for one.
#[test]
fn what_takes_a_restart_is_named_until_there_is_one() {
    let mut target = InProcess::start(&[DISK, SECOND_DISK]);
    let name = target.name().to_owned();
    for _ in 0..2 {
        let reloaded = target.reload(|config| {
            config.limits.window_depth = 7;
            config.large_pages = true;
            config.targets[0].units[1].read_only = true;
            let mut more = config.targets[0].clone();
            more.name = format!("{name}-more");
            config.targets.truncate(1);
            config.targets.push(more);
        });
        let reloaded = reloaded.expect("a good configuration");
        assert!(reloaded.applied.is_empty(), "{reloaded:?}");
        let named = [
            "[limits]".to_owned(),
            "large_pages".to_owned(),
            format!("target {name}: LUN 1"),
            format!("target {name}-more, which is new"),
        ];
        assert_eq!(reloaded.waiting, named);
    }
    drop(session(&target, HOST_A));
}

/// No clause asks for it: no configuration grants the disk of the one to the hosts of the other.
#[test]
fn new_rules_do_not_open_a_disk_that_another_one_is_to_replace() {
    let mut target = InProcess::start_with(&[DISK], |config| {
        config.targets[0].access = vec![rule(HOST_A, unit("0"))];
    });
    let name = target.name().to_owned();
    let mut staying = session(&target, HOST_A);
    for what in ["has another serial number", "becomes read-only"] {
        let refused = target.reload(|config| {
            let unit = &mut config.targets[0].units[0];
            if what == "becomes read-only" {
                unit.read_only = true;
            } else {
                unit.serial = Some("another".to_owned());
            }
            config.limits.max_recv_data_segment_length_bytes = 8192;
            config.targets[0].access = vec![rule(HOST_B, Grant::default())];
        });
        let refused = refused.expect_err("somebody else's disk").to_string();
        assert!(
            refused.starts_with(&format!("target {name}: LUN 0 {what}, which takes a restart")),
            "{refused}"
        );
        assert!(refusal(&target, &options(&target, HOST_B)).contains("status 0202"));
        staying.silent().expect("nothing has changed");
    }
    // What is said of the target before it is said of the disk holds for the disk of now.
    let opened = target.reload(|config| config.targets[0].access = vec![rule(HOST_B, Grant::default())]);
    assert_eq!(opened.expect("a good configuration").applied.len(), 1);
    expect_drop(&mut staying);
    drop(session(&target, HOST_B));
    let replaced = target.reload(|config| config.targets[0].units[0].serial = Some("another".to_owned()));
    assert_eq!(replaced.expect("a good configuration").waiting, [format!("target {name}: LUN 0")]);
}

/// Rules speak of the portal groups of their own file (4.4.1), and a login comes through one that is served.
#[test]
fn new_rules_do_not_speak_of_portal_groups_that_are_numbered_anew() {
    let mut target = InProcess::start(&[DISK]);
    let mut staying = session(&target, HOST_A);
    let refused = target.reload(|config| {
        config.portals[0].group = 2;
        config.targets[0].access = vec![AccessRule { groups: vec![2], ..rule(HOST_B, Grant::default()) }];
    });
    let refused = refused.expect_err("another group 2").to_string();
    assert!(refused.contains("the portals or groups through which it is reached change"), "{refused}");
    staying.silent().expect("nothing has changed");
    let waiting = target.reload(|config| config.portals[0].group = 2).expect("a good configuration").waiting;
    assert_eq!(waiting, ["the portals"]);
}
