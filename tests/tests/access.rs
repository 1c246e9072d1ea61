//! Who may use a target, and what of it: access rules from outside, with foreign initiators and the tests' own (RFC 7143,
//! 4.2.7.1, 6.3.1, 11.13.5, appendix C).

use std::net::TcpListener;
use std::process::Command as Process;
use std::time::Duration;

use lunette_block::OperationKind;
use lunette_target::config::{AccessRule, ChapCredential, ChapUser, Config, Secret};
use lunette_tests::in_process::InProcess;
use lunette_tests::initiator::{ChapOptions, Initiator, LoginOptions};
use lunette_tests::lunette::{Lunette, TARGET_NAME};
use lunette_tests::packages::find_program;
use lunette_tests::process::{Finished, run};
use lunette_tests::raw::Raw;
use lunette_tests::{need_programs, skip};
use lunette_wire::initiator::TaskManagementFunction;
use lunette_wire::{Cid, Tsih};

const LIMIT: Duration = Duration::from_secs(60);
const HOST_A: &str = "iqn.2026-11.io.lunette:host-a";
const HOST_B: &str = "iqn.2026-11.io.lunette:host-b";

/// Three units; host A has the middle one as its LUN 0, host B may read all of them, others have nothing.
const RULES: &str = r#"
[[target.lun]]
number = 1
store = "mem:32M"
[[target.lun]]
number = 2
store = "mem:16M"
[[target.access]]
initiators = ["iqn.2026-11.io.lunette:host-a"]
luns = ["0=1", 2]
[[target.access]]
initiators = ["iqn.2026-11.io.lunette:host-*"]
addresses = ["127.0.0.0/8"]
ro = true
"#;

/// A tool of libiscsi under an initiator name.
fn tool_as(initiator: &str, program: &str, arguments: &[&str]) -> Finished {
    let mut command = Process::new(find_program(program).expect("the program"));
    command.args(["-i", initiator]).args(arguments).env("LC_ALL", "C");
    run(&mut command, LIMIT).expect("a run")
}

/// RFC 7143: C.
#[test]
fn libiscsi_finds_its_units_under_its_numbers() {
    need_programs!("iscsi-ls", "iscsi-inq");
    let target = Lunette::serve().configuration(RULES).start().expect("a target");
    let listed = |initiator: &str| tool_as(initiator, "iscsi-ls", &["-s", &target.portal_url()]).output;
    let own = listed(HOST_A);
    assert!(own.contains(TARGET_NAME), "{own}");
    // LUN 0 is the unit of 32 MiB, LUN 2 that of 16 MiB, and there is no third one.
    let sizes: Vec<&str> = own.lines().filter(|line| line.starts_with("Lun:")).collect();
    assert_eq!(sizes.len(), 2, "{own}");
    assert!(sizes[0].starts_with("Lun:0 ") && sizes[1].starts_with("Lun:2 "), "{own}");
    assert_eq!(listed(HOST_B).matches("Lun:").count(), 3);
    assert!(!listed("iqn.2026-11.io.lunette:stranger").contains("Target:"));
    let absent = tool_as(HOST_A, "iscsi-inq", &[&target.url(1)]).output;
    assert!(!absent.contains("Qualifier:CONNECTED"), "{absent}");
    let refused = tool_as("iqn.2026-11.io.lunette:stranger", "iscsi-inq", &[&target.url(0)]);
    assert!(!refused.success(), "{}", refused.output);
    let line = "login refused with status 0202";
    assert!(target.wait_for_log(LIMIT, |logged| logged.contains(line)).is_some(), "{}", target.log());
    target.stop().expect("a clean end");
}

#[test]
fn qemu_reads_what_it_may_not_write() {
    need_programs!("qemu-io", "qemu-img");
    let target = Lunette::serve().configuration(RULES).start().expect("a target");
    let drive = |host: &str, lun: u8| {
        let (address, port) = (target.portal().ip(), target.portal().port());
        format!(
            "driver=iscsi,transport=tcp,portal={address}:{port},target={TARGET_NAME},lun={lun},initiator-name={host}"
        )
    };
    let qemu_io = |host: &str, lun: u8, command: &str| {
        let mut process = Process::new(find_program("qemu-io").expect("the program"));
        process.args(["--image-opts", "-c", command, &drive(host, lun)]);
        if command.starts_with("read") {
            process.arg("-r");
        }
        run(&mut process, LIMIT).expect("a run")
    };
    let written = qemu_io(HOST_A, 0, "write -P 0x5a 1M 64k");
    assert!(written.success(), "{}", written.output);
    // Unit 1 is what host A calls 0; host B sees it under its own number, for reading.
    let read = qemu_io(HOST_B, 1, "read -P 0x5a 1M 64k");
    assert!(read.success() && !read.output.contains("verification failed"), "{}", read.output);
    assert!(!qemu_io(HOST_B, 1, "write -P 0x11 1M 64k").success());
    let again = qemu_io(HOST_A, 0, "read -P 0x5a 1M 64k");
    assert!(again.success() && !again.output.contains("verification failed"), "{}", again.output);
    target.stop().expect("a clean end");
}

fn rule(initiator: &str, units: &str) -> AccessRule {
    let text = format!(
        "[[target]]\nname = \"iqn.2026-11.io.lunette:t\"\nlun = [{{ number = 0, store = \"mem:1M\" }}, {{ number = 1, store = \
         \"mem:1M\" }}]\n[[target.access]]\ninitiators = [\"{initiator}\"]\n{units}\n"
    );
    let config = Config::from_toml(&text, "lunette.toml".as_ref()).expect("a good rule");
    config.targets[0].access[0].clone()
}

/// Two units; A has unit 1 as its LUN 0, B has both.
fn target_of_two() -> InProcess {
    InProcess::start_with(&["0=mem:8M", "1=mem:8M"], |config| {
        config.targets[0].access = vec![rule(HOST_A, "luns = [\"0=1\"]"), rule(HOST_B, "")];
    })
}

fn options(target: &InProcess, initiator: &str) -> LoginOptions {
    LoginOptions { initiator_name: initiator.to_owned(), ..target.options(1) }
}

#[test]
fn a_reset_finds_the_tasks_of_sessions_that_number_the_unit_otherwise() {
    let target = target_of_two();
    let mut asking = Raw::ready(target.portal(), &options(&target, HOST_A), 0).expect("a session");
    let mut other = Raw::ready(target.portal(), &options(&target, HOST_B), 0).expect("a session");
    other.make_ready(1).expect("ready");
    // The other session has a read on each unit, held in the stores.
    target.hold(0, OperationKind::Read);
    target.hold(1, OperationKind::Read);
    let spared = other.read(0, 0, 1).expect("sent");
    other.read(1, 0, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 1);
    target.wait_for_calls(1, OperationKind::Read, 1);
    let tag = asking.manage(TaskManagementFunction::LogicalUnitReset, 0).expect("sent");
    asking.silent().expect("the function waits for the store");
    other.silent().expect("its reactor knows");
    target.faults(1).clear();
    assert_eq!(asking.managed(tag).expect("an answer"), 0);
    target.faults(0).clear();
    other.data_in(spared).expect("unit 0 was not reset");
    // BUS DEVICE RESET FUNCTION OCCURRED at unit 1 alone.
    assert_eq!(other.test_unit_ready(1).expect("an answer").codes(), (6, 0x29, 3));
    assert_eq!(other.test_unit_ready(0).expect("an answer").status, 0);
    assert_eq!(asking.test_unit_ready(0).expect("an answer").codes(), (6, 0x29, 3));
}

#[test]
fn only_who_sees_the_whole_target_may_reset_it() {
    let target = target_of_two();
    let mut narrow = Raw::ready(target.portal(), &options(&target, HOST_A), 0).expect("a session");
    let mut wide = Raw::ready(target.portal(), &options(&target, HOST_B), 0).expect("a session");
    for function in [TaskManagementFunction::TargetWarmReset, TaskManagementFunction::TargetColdReset] {
        let tag = narrow.manage(function, 0).expect("sent");
        // 11.6.1: function authorization failed.
        assert_eq!(narrow.managed(tag).expect("an answer"), 6);
    }
    assert_eq!(wide.test_unit_ready(0).expect("an answer").status, 0);
    let tag = wide.manage(TaskManagementFunction::TargetWarmReset, 0).expect("sent");
    assert_eq!(wide.managed(tag).expect("an answer"), 0);
}

/// The status of a refused login, as the error of the tests' initiator has it.
fn refusal(target: &InProcess, options: &LoginOptions) -> String {
    format!("{:#}", Initiator::login(target.portal(), options).expect_err("a refusal"))
}

#[test]
fn a_user_gets_what_is_meant_for_it() {
    let user = |name: &str| ChapUser {
        credential: ChapCredential {
            name: name.to_owned(),
            secret: Secret::new(format!("secret of {name}, long")),
        },
        initiators: Vec::new(),
    };
    let target = InProcess::start_with(&["0=mem:8M", "1=mem:8M"], |config| {
        let target = &mut config.targets[0];
        target.chap.users = ["alice", "bob", "guest"].map(user).to_vec();
        let to = |name: &str, units: &str| AccessRule { users: vec![name.to_owned()], ..rule("*", units) };
        target.access = vec![to("alice", "luns = [\"0=1\"]"), to("bob", "")];
    });
    let as_user = |name: &str, port: u8| LoginOptions {
        chap: Some(ChapOptions {
            algorithms: "7".to_owned(),
            user: (name.to_owned(), format!("secret of {name}, long")),
            target: None,
        }),
        ..target.options(port)
    };
    let luns = |options: &LoginOptions| {
        let mut session = Initiator::login(target.portal(), options).expect("a session");
        let mut cdb = [0; 16];
        (cdb[0], cdb[8]) = (0xa0, 1);
        let command = lunette_tests::initiator::Command { cdb, data_in_bytes: 256, ..Default::default() };
        session.execute_good(command).expect("a list").len() / 8 - 1
    };
    assert_eq!(luns(&as_user("alice", 1)), 1);
    assert_eq!(luns(&as_user("bob", 2)), 2);
    // Proven, and not let in: 0202.
    let refused = refusal(&target, &as_user("guest", 3));
    assert!(refused.contains("0202"), "{refused}");
}

#[test]
fn a_connection_that_would_see_other_units_does_not_join() {
    if TcpListener::bind("[::1]:0").is_err() {
        skip!("this machine has no IPv6 loopback address");
    }
    let target = InProcess::start_with(&["0=mem:8M", "1=mem:8M"], |config| {
        config.portals.push("[::1]:0".parse().expect("an address"));
        let over_ipv4 = AccessRule {
            addresses: vec!["127.0.0.1".parse().expect("an address")],
            ..rule(HOST_A, "luns = [0]")
        };
        config.targets[0].access = vec![over_ipv4, rule(HOST_A, "luns = [1]")];
    });
    let two = vec![("MaxConnections".to_owned(), "2".to_owned())];
    let first = LoginOptions { keys: two, ..options(&target, HOST_A) };
    let session = Raw::login(target.portal(), &first).expect("a session");
    assert_ne!(session.tsih, Tsih(0));
    let joining = |portal| {
        let options = LoginOptions {
            tsih: session.tsih,
            cid: Cid(1),
            first_cmd_sn: session.cmd_sn,
            ..options(&target, HOST_A)
        };
        Initiator::login(portal, &options).map(drop)
    };
    let refused = format!("{:#}", joining(target.portals()[1]).expect_err("a refusal"));
    assert!(refused.contains("0208"), "{refused}");
    joining(target.portal()).expect("the same units");
}
