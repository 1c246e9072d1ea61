//! Portals, their groups, and redirection, from outside (RFC 7143, 4.4.1, 6.3.1, 11.13.5, 13.8, 13.9, appendix C).

use std::env;
use std::net::SocketAddr;
use std::process::{Command as Process, Stdio};
use std::time::Duration;

use lunette_target::config::{
    AccessRule, Config, DiscoveryScope, Grant, LunFlag, PortalConfig, Redirection, TargetConfig,
};
use lunette_tests::in_process::{InProcess, wait_until};
use lunette_tests::initiator::{Initiator, LoginOptions};
use lunette_tests::lunette::{Lunette, TARGET_NAME, binary};
use lunette_tests::packages::find_program;
use lunette_tests::process::run;
use lunette_tests::tool::{tool, tool_output};
use lunette_tests::{need_programs, skip};
use lunette_wire::{Cid, CmdSn};

const LIMIT: Duration = Duration::from_secs(60);
/// Set in the process that runs in a network namespace of its own.
const INSIDE: &str = "LUNETTE_TEST_NAMESPACE";

fn portal(address: &str, group: u16) -> PortalConfig {
    PortalConfig { address: address.parse().expect("an address"), group }
}

/// The first target is in groups 1 and 2, a second one in group 2 alone; one portal each for groups 1 and 2, and two for
/// group 3, which nothing is in.
fn grouped() -> InProcess {
    InProcess::start_with(&["0=mem:8M"], |config: &mut Config| {
        config.portals = vec![
            portal("127.0.0.1:0", 1),
            portal("127.0.0.2:0", 2),
            portal("127.0.0.3:0", 2),
            portal("127.0.0.4:0", 3),
        ];
        let lun: LunFlag = "mem:8M".parse().expect("a unit");
        let units = LunFlag::number_all(vec![lun]).expect("a number");
        let name = second_name(&config.targets[0].name);
        let second = TargetConfig { name, units, groups: vec![2], ..config.targets[0].clone() };
        config.targets[0].groups = vec![1, 2];
        config.targets.push(second);
    })
}

fn second_name(first: &str) -> String {
    format!("{first}-second")
}

fn discover(target: &InProcess, portal: SocketAddr, what: &str) -> Vec<(String, String)> {
    let options = LoginOptions { target_name: None, ..target.options(1) };
    let mut session = Initiator::login(portal, &options).expect("a discovery session");
    session.text(&[("SendTargets", what)]).expect("an answer")
}

fn expected(target: &str, addresses: &[(SocketAddr, u16)]) -> Vec<(String, String)> {
    let addresses = addresses.iter().map(|(at, group)| ("TargetAddress".to_owned(), format!("{at},{group}")));
    std::iter::once(("TargetName".to_owned(), target.to_owned())).chain(addresses).collect()
}

/// RFC 7143: C.
#[test]
fn discovery_tells_all_portals_of_the_groups_of_each_target() {
    let target = grouped();
    let [one, two, three, other] = target.portals() else { panic!("four portals") };
    let second = second_name(target.name());
    let both = [
        expected(target.name(), &[(*one, 1), (*two, 2), (*three, 2)]),
        expected(&second, &[(*two, 2), (*three, 2)]),
    ];
    assert_eq!(discover(&target, *one, "All"), both.concat());
    // The portal that was come to is the first one.
    let there = [
        expected(target.name(), &[(*three, 2), (*one, 1), (*two, 2)]),
        expected(&second, &[(*three, 2), (*two, 2)]),
    ];
    assert_eq!(discover(&target, *three, "All"), there.concat());
    assert_eq!(discover(&target, *other, "All"), both.concat(), "nothing is in its own group");
    assert_eq!(discover(&target, *one, &second), both[1]);
}

/// RFC 7143: 10.1.2.
#[test]
fn a_login_is_told_its_group_and_finds_the_targets_of_it_alone() {
    let target = grouped();
    let portals = target.portals();
    let tag = |portal: SocketAddr, options: &LoginOptions| {
        let session = Initiator::login(portal, options);
        session.map(|session| session.negotiated("TargetPortalGroupTag").expect("a tag").to_owned())
    };
    // One ISID at two portal groups: two ports of the target, so two sessions (4.4.3).
    let first = Initiator::login(portals[0], &target.options(1)).expect("a session");
    assert_eq!(first.negotiated("TargetPortalGroupTag"), Some("1"));
    assert_eq!(tag(portals[1], &target.options(1)).expect("another session"), "2");
    let mut first = first;
    first.ping(b"still there").expect("not reinstated by the session at the other group");
    let second = LoginOptions { target_name: Some(second_name(target.name())), ..target.options(2) };
    assert_eq!(tag(portals[2], &second).expect("a session"), "2");
    for (portal, options) in [(portals[0], &second), (portals[3], &second), (portals[3], &target.options(3))]
    {
        let refused = format!("{:#}", tag(portal, options).expect_err("a refusal"));
        assert!(refused.contains("status 0203"), "{portal}: {refused}");
    }
}

/// Who comes through which portal sees what (4.4.1, appendix C): the rules hold for discovery and for logins alike.
#[test]
fn a_rule_may_ask_which_way_an_initiator_has_come() {
    let mut target = InProcess::start_with(&["0=mem:8M", "1=mem:8M"], |config: &mut Config| {
        config.portals = vec![
            portal("127.0.0.1:0", 1),
            portal("127.0.0.2:0", 2),
            portal("127.0.0.3:0", 2),
            portal("127.0.0.4:0", 3),
        ];
        let through_first = AccessRule {
            portals: vec!["127.0.0.1".parse().expect("an address")],
            grant: Grant::Units(vec!["0=1".parse().expect("a unit")]),
            ..AccessRule::default()
        };
        config.targets[0].access =
            vec![through_first, AccessRule { groups: vec![2], ..AccessRule::default() }];
    });
    let [one, two, three, closed] = target.portals() else { panic!("four portals") };
    let (one, two, three, closed) = (*one, *two, *three, *closed);
    // Whichever is asked, told are those that a login gets in through.
    assert_eq!(discover(&target, one, "All"), expected(target.name(), &[(one, 1), (two, 2), (three, 2)]));
    assert_eq!(discover(&target, closed, "All"), discover(&target, one, "All"));
    let luns = |portal: SocketAddr, port: u8| {
        Initiator::login(portal, &target.options(port))
            .map(|mut session| [0, 1].map(|lun| session.make_ready(lun).is_ok()))
    };
    assert_eq!(luns(one, 1).expect("a session"), [true, false]);
    assert_eq!(luns(two, 2).expect("a session"), [true, true]);
    let refused = format!("{:#}", luns(closed, 3).expect_err("a refusal"));
    assert!(refused.contains("status 0202"), "{refused}");
    // Two portals of one group may show different things; one session then has not both.
    let leading =
        Initiator::login(two, &target.options_with(4, &[("MaxConnections", "2")])).expect("a session");
    let only_second =
        AccessRule { portals: vec!["127.0.0.2".parse().expect("an address")], ..AccessRule::default() };
    let narrower = |config: &mut Config| config.targets[0].access = vec![only_second];
    target.reload(narrower).expect("a good configuration");
    let joining = LoginOptions {
        tsih: leading.tsih(),
        cid: Cid(1),
        first_cmd_sn: CmdSn(leading.cmd_sn().0),
        ..target.options(4)
    };
    let refused = format!("{:#}", Initiator::login(three, &joining).expect_err("a refusal"));
    assert!(refused.contains("status 0202"), "{refused}");
    let mut leading = leading;
    leading.ping(b"still there").expect("its own way is as it was");
    assert_eq!(discover(&target, three, "All"), expected(target.name(), &[(two, 2)]));
}

/// RFC 7143: C.
#[test]
fn a_scope_limits_what_discovery_tells() {
    let mut target = grouped();
    let portals = target.portals().to_vec();
    let [one, two, three, other] = portals[..] else { panic!("four portals") };
    let second = second_name(target.name());
    let mut in_scope = |scope| {
        target.reload(|config| config.discovery_scope = scope).expect("a good configuration").applied.len()
    };
    assert_eq!(in_scope(DiscoveryScope::Group), 1);
    assert_eq!(discover(&target, one, "All"), expected(target.name(), &[(one, 1)]));
    let there =
        [expected(target.name(), &[(three, 2), (two, 2)]), expected(&second, &[(three, 2), (two, 2)])];
    assert_eq!(discover(&target, three, "All"), there.concat());
    assert_eq!(discover(&target, other, "All"), [], "nothing is reached there");
    let mut in_scope =
        |scope| target.reload(|config| config.discovery_scope = scope).expect("a good configuration");
    in_scope(DiscoveryScope::Portal);
    assert_eq!(discover(&target, three, &second), expected(&second, &[(three, 2)]));
    assert_eq!(discover(&target, one, &second), []);
}

#[test]
fn a_session_has_all_its_connections_in_one_group() {
    let target = grouped();
    let portals = target.portals();
    let leading =
        Initiator::login(portals[1], &target.options_with(1, &[("MaxConnections", "4")])).expect("a session");
    let join = |portal: SocketAddr, cid: u16| {
        let options = LoginOptions {
            tsih: leading.tsih(),
            cid: Cid(cid),
            first_cmd_sn: CmdSn(leading.cmd_sn().0),
            ..target.options(1)
        };
        Initiator::login(portal, &options)
    };
    let refused = format!("{:#}", join(portals[0], 1).expect_err("a refusal"));
    assert!(refused.contains("status 0208"), "{refused}");
    let _same_group = join(portals[2], 2).expect("another portal of the group");
}

#[test]
fn the_port_that_a_disk_shows_is_the_group() {
    let target = grouped();
    for (portal, group) in [(target.portals()[0], 1), (target.portals()[1], 2)] {
        let mut session = Initiator::login(portal, &target.options(7)).expect("a session");
        // INQUIRY, device identification page.
        let mut cdb = [0; 16];
        cdb[..5].copy_from_slice(&[0x12, 1, 0x83, 1, 0]);
        let command = lunette_tests::initiator::Command { cdb, data_in_bytes: 256, ..Default::default() };
        let page = session.execute_good(command).expect("a page");
        let port = format!("{},t,0x{group:04x}", target.name());
        assert!(String::from_utf8_lossy(&page).contains(&port), "{port}: {page:02x?}");
    }
}

#[test]
fn libiscsi_discovers_groups_from_a_file() {
    need_programs!("iscsi-ls");
    let more = "groups = [1, 7]\n".to_owned();
    // Behind `[[target.lun]]` nothing can be said of the target, so another one has the groups.
    let text = format!(
        "[[target]]\nname = \"{TARGET_NAME}-grouped\"\n{more}[[target.lun]]\nnumber = 0\nstore = \"mem:8M\"\n\
         [[portal]]\naddress = \"localhost\"\nport = 0\ngroup = 7\n"
    );
    let target = Lunette::serve().configuration(&text).start().expect("a target");
    let output = tool_output("iscsi-ls", [&target.portal_url()]);
    assert!(output.contains(&format!("{TARGET_NAME} Portal:{},1", target.portal())), "{output}");
    assert!(output.contains(",7") && output.contains(&format!("{TARGET_NAME}-grouped Portal:")), "{output}");
    target.stop().expect("a clean end");
}

#[test]
fn a_wildcard_portal_is_told_as_all_addresses() {
    let target = InProcess::start_with(&["0=mem:8M"], |config| {
        config.portals = vec![portal("0.0.0.0:0", 1)];
    });
    let port = target.portals()[0].port();
    let told = discover(&target, SocketAddr::from(([127, 0, 0, 1], port)), "All");
    assert_eq!(told[1].1, format!("127.0.0.1:{port},1"));
    assert!(told[1..].iter().all(|(_, address)| !address.starts_with("0.0.0.0")), "{told:?}");
}

/// Runs one test of this file again, in a network namespace that has two linked interfaces.
fn in_a_namespace(test: &str) {
    need_programs!("unshare", "ip");
    let unshare = find_program("unshare").expect("the program");
    let probe = run(Process::new(&unshare).args(["--net", "true"]), LIMIT).expect("a run");
    if !probe.success() {
        skip!("no network namespace can be made here, which takes root: {}", probe.output.trim());
    }
    let setup = "ip link set lo up && ip link add east type veth peer name west && \
                 ip addr add fe80::1/64 dev east nodad && ip addr add fe80::2/64 dev west nodad && \
                 ip addr add 192.0.2.1/24 dev east && ip link set east up && ip link set west up && exec \"$@\"";
    let mut process = Process::new(unshare);
    process.args(["--net", "sh", "-c", setup, "sh"]).arg(env::current_exe().expect("this test"));
    process.args(["--exact", test, "--nocapture"]).env(INSIDE, "1");
    let finished = run(&mut process, LIMIT).expect("a run");
    assert!(finished.success() && finished.output.contains("1 passed"), "{}", finished.output);
}

#[test]
fn link_local_portals_are_reached_and_told_on_their_link() {
    if env::var_os(INSIDE).is_none() {
        return in_a_namespace("link_local_portals_are_reached_and_told_on_their_link");
    }
    let target = InProcess::start_with(&["0=mem:8M"], |config| {
        config.portals = vec![
            "[fe80::1%east]:3260".parse().expect("a portal"),
            portal("0.0.0.0:3261", 1),
            portal("[::]:3262", 1),
        ];
    });
    let link_local = target.portals()[0];
    let mut told = Vec::new();
    wait_until("the link is up", || {
        let options = LoginOptions { target_name: None, ..target.options(1) };
        let Ok(mut session) = Initiator::login(link_local, &options) else { return false };
        told = session.text(&[("SendTargets", "All")]).expect("an answer");
        // An interface counts from when its carrier is there.
        told.iter().any(|(_, address)| address == "[fe80::1]:3262,1")
    });
    let told: Vec<&str> = told[1..].iter().map(|(_, address)| address.as_str()).collect();
    // Without the interface, which has another number over there; and what is on the other link is not told.
    assert_eq!(told[0], "[fe80::1]:3260,1");
    assert!(told.contains(&"192.0.2.1:3261,1"), "{told:?}");
    assert!(!told.iter().any(|at| at.contains("127.0.0.1") || at.contains("[fe80::2]")), "{told:?}");
    let mut session = Initiator::login(link_local, &target.options(2)).expect("a session");
    session.make_ready(0).expect("a disk");
    let elsewhere = discover(&target, "192.0.2.1:3261".parse().expect("an address"), "All");
    assert!(!elsewhere.iter().any(|(_, address)| address.contains("fe80")), "{elsewhere:?}");
}

/// Addresses and ports that something listens on in this network namespace, as the kernel writes them.
fn listening() -> Vec<String> {
    const LISTEN: &str = "0A";
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"]
        .map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let rows = tables.iter().flat_map(|table| table.lines().skip(1));
    let fields = rows.map(|row| row.split_whitespace().collect::<Vec<_>>());
    fields.filter(|row| row.get(3) == Some(&LISTEN)).map(|row| row[1].to_owned()).collect()
}

/// RFC 7143, 9: a target that is told nothing about portals can be reached from this machine alone.
#[test]
fn nothing_listens_beyond_loopback_unless_it_is_told_to() {
    if env::var_os(INSIDE).is_none() {
        return in_a_namespace("nothing_listens_beyond_loopback_unless_it_is_told_to");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("lunette.toml");
    let text =
        format!("[[target]]\nname = \"{TARGET_NAME}\"\n[[target.lun]]\nnumber = 0\nstore = \"mem:8M\"\n");
    std::fs::write(&file, text).expect("a file");
    let file = file.display().to_string();
    // 127.0.0.1 and 3260, in the kernel's order of bytes; and every address, where that is wanted.
    let cases = [
        (&["--lun", "mem:8M"][..], "0100007F:0CBC"),
        (&["--config", &file], "0100007F:0CBC"),
        (&["--lun", "mem:8M", "--portal", "0.0.0.0"], "00000000:0CBC"),
    ];
    for (arguments, expected) in cases {
        assert_eq!(listening(), [""; 0]);
        let mut serving = Process::new(binary());
        serving.arg("serve").args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        let mut serving = serving.spawn().expect("a process");
        wait_until("it listens", || !listening().is_empty());
        let found = listening();
        serving.kill().expect("it runs");
        serving.wait().expect("its end");
        assert_eq!(found, [expected], "{arguments:?}");
    }
}

/// A target that sends initiators to another one of the same name.
fn moved(to: &str, permanent: bool) -> InProcess {
    InProcess::start_with(&[], |config| {
        let address = to.parse().expect("an address");
        config.targets[0].name = TARGET_NAME.to_owned();
        config.targets[0].redirect = Redirection::new(permanent, vec![address]);
    })
}

#[test]
fn a_target_that_has_moved_says_where_it_is() {
    for (permanent, status) in [(false, "status 0101"), (true, "status 0102")] {
        let target = moved("storage2.example.com:3261", permanent);
        let refused = Initiator::login(target.portal(), &LoginOptions::default()).expect_err("a redirection");
        assert!(format!("{refused:#}").contains(status), "{refused:#}");
    }
}

#[test]
fn libiscsi_follows_a_redirection() {
    need_programs!("iscsi-inq");
    let real = Lunette::serve().luns(["0=mem:8M,serial=SN-MOVED"]).start().expect("a target");
    let old = moved(&real.portal().to_string(), false);
    let url = format!("iscsi://{}/{TARGET_NAME}/0", old.portal());
    let inquiry = tool("iscsi-inq", ["-e", "1", "-c", "128", &url]);
    assert!(inquiry.output.contains("SN-MOVED"), "{}", inquiry.output);
    real.stop().expect("a clean end");
}
