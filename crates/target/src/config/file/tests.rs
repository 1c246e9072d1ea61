//! Whole files, and the messages for what is wrong in them.

use lunette_cases::cases;
use lunette_scsi::ProtectionType;
use proptest::prelude::*;

use super::*;
use crate::config::{AccessState, ChapAlgorithm, ChapConfig, ChapRules, Limits, Secret};

fn parse_at(text: &str) -> Result<Config, String> {
    Config::from_toml(text, Path::new("/etc/lunette.toml")).map_err(|error| error.to_string())
}

const SMALLEST_NAME: &str = "iqn.2026-11.io.lunette:vm";

const SMALLEST: &str = r#"
[[target]]
name = "iqn.2026-11.io.lunette:vm"
[[target.lun]]
number = 0
store = "disk0.img"
"#;

#[test]
fn the_smallest_file_has_the_defaults_of_the_flags() {
    let config = parse_at(SMALLEST).unwrap();
    let unit = UnitConfig {
        lun: 0,
        store: StoreSpec::File { path: "/etc/disk0.img".into(), create_bytes: None },
        read_only: false,
        removable: false,
        block_length_bytes: None,
        protection: None,
        provisioning: Provisioning::Thin,
        write_mode: WriteMode::Through,
        engine: EngineKind::Auto,
        serial: None,
        vendor: None,
        product: None,
    };
    let target = TargetConfig {
        name: "iqn.2026-11.io.lunette:vm".into(),
        alias: None,
        units: vec![unit],
        chap: ChapConfig::default(),
        access: Vec::new(),
        port_groups: Vec::new(),
        groups: Vec::new(),
        scsi_events: false,
        redirect: None,
    };
    assert_eq!(
        config,
        Config {
            portals: default_portals(),
            targets: vec![target],
            discovery: ChapConfig::default(),
            discovery_scope: Default::default(),
            chap: ChapRules::default(),
            limits: Limits::default(),
            reactors: Reactors::default(),
            large_pages: false,
            state_directory: None,
            trace_directory: None,
            task_times: false,
            isns: crate::config::IsnsConfig::default(),
        }
    );
}

#[test]
fn everything_can_be_said() {
    let config = parse_at(
        r#"
portals = ["0.0.0.0:3260", "[::1]"]
state_directory = "state"
trace_directory = "/srv/traces"
task_times = true
large_pages = true

[[target]]
name = "iqn.2026-11.io.Lunette:vm"
alias = "Virtual machines"
scsi_events = true

[[target.lun]]
number = 3
store = "file:/srv/a,b.img"
size = "20G"
block = 4096
protection = 1
write = "back"
engine = "sync"
serial = 4711
vendor = "ACME"
product = "DISK"

[[target.lun]]
number = 1
store = "/dev/loop0"
ro = true

[[target.port_group]]
tag = 2
state = "standby"

[[target.port_group]]
tag = 1
preferred = true

[[target]]
name = "iqn.2026-11.io.lunette:scratch"

[[target.lun]]
number = 0
store = "mem:1G"

[limits]
window_depth = 32
header_digest = "require"
"#,
    )
    .unwrap();
    assert_eq!(config.portals, ["0.0.0.0:3260".parse().unwrap(), "[::1]:3260".parse().unwrap()]);
    assert_eq!(config.state_directory.as_deref(), Some(Path::new("/etc/state")), "beside the file");
    assert_eq!(config.trace_directory.as_deref(), Some(Path::new("/srv/traces")));
    assert!(config.task_times && config.large_pages);
    assert_eq!(config.limits.window_depth, 32);
    assert_eq!(config.limits.header_digest, crate::config::DigestPolicy::Required);
    let [vm, scratch] = &config.targets[..] else { panic!("{config:?}") };
    assert_eq!(vm.name, "iqn.2026-11.io.lunette:vm");
    assert_eq!(vm.alias.as_deref(), Some("Virtual machines"));
    assert_eq!((vm.scsi_events, scratch.scsi_events), (true, false));
    let groups = vm.port_groups.iter().map(|group| (group.tag, group.state, group.preferred));
    let wanted = [(2, AccessState::Standby, false), (1, AccessState::ActiveOptimized, true)];
    assert_eq!(groups.collect::<Vec<_>>(), wanted);
    assert_eq!(scratch.units[0].store, StoreSpec::Memory { size_bytes: 1 << 30 });
    let [image, device] = &vm.units[..] else { panic!("{vm:?}") };
    let wanted = UnitConfig {
        lun: 3,
        store: StoreSpec::File { path: "/srv/a,b.img".into(), create_bytes: Some(20 << 30) },
        read_only: false,
        removable: false,
        block_length_bytes: Some(4096),
        protection: Some(ProtectionType::Type1),
        provisioning: Provisioning::Thin,
        write_mode: WriteMode::Back,
        engine: EngineKind::Sync,
        serial: Some("4711".into()),
        vendor: Some("ACME".into()),
        product: Some("DISK".into()),
    };
    assert_eq!(*image, wanted);
    assert_eq!(device.store, StoreSpec::BlockDevice { path: "/dev/loop0".into() });
    assert!(device.read_only);
}

#[test]
fn a_wrong_value_is_shown_in_its_place() {
    let text = format!("{SMALLEST}block = 1024\n");
    assert_eq!(
        parse_at(&text).unwrap_err(),
        "/etc/lunette.toml:7:9: target.lun.block: block=1024 is not possible; a logical block has 512 or 4096 bytes\n  \
         block = 1024\n          ^^^^"
    );
}

#[test]
fn an_unknown_key_is_shown_with_the_known_ones() {
    let text = format!("{SMALLEST}\nwirte = \"back\"\n");
    assert_eq!(
        parse_at(&text).unwrap_err(),
        "/etc/lunette.toml:8:1: target.lun.wirte: wirte is not a key here; there are number, store, size, ro, removable, block, \
         protection, provisioning, write, engine, serial, vendor, product\n  wirte = \"back\"\n  ^^^^^"
    );
}

#[test]
fn a_broken_rule_between_values_is_shown_in_its_place() {
    let text = format!("{SMALLEST}[[target.lun]]\nnumber = 0\nstore = \"mem:1G\"\n");
    assert_eq!(
        parse_at(&text).unwrap_err(),
        "/etc/lunette.toml:8:10: target.lun.number: LUN 0 is given twice; each logical unit has its own number\n  \
         number = 0\n           ^"
    );
}

/// Each text, the place of its fault as line:column, and parts of what is said.
#[test]
fn each_fault_has_its_place() {
    let unit = |line: &str| format!("{SMALLEST}{line}\n");
    let top = |line: &str| format!("{line}\n{SMALLEST}");
    for (text, place, parts) in [
        (unit("size = \"10GB\""), "7:8", ["target.lun.size: ", "\"GB\" is not a unit of size"]),
        (unit("size = 0"), "7:8", ["target.lun.size: ", "the size is zero"]),
        (unit("size = 1.5"), "7:8", ["target.lun.size: ", "expected a string or a whole number"]),
        (unit("ro = \"yes\""), "7:6", ["target.lun.ro: ", "expected a boolean"]),
        (unit("write = \"never\""), "7:9", ["target.lun.write: ", "use through"]),
        (unit("engine = \"warp\""), "7:10", ["target.lun.engine: ", "use auto, sync, threads"]),
        (unit("serial = \" x\""), "7:10", ["target.lun.serial: ", "1 to 64 printable"]),
        (unit("vendor = \"TOOLONG89\""), "7:10", ["target.lun.vendor: ", "1 to 8 printable"]),
        (unit("number = 1"), "7:1", ["duplicate key", "number = 1"]),
        (unit("[[target.port_group]]\ntag = 0"), "8:7", ["target.port_group.tag: ", "use 1 to 65535"]),
        (
            unit("[[target.port_group]]\ntag = 1\nstate = \"idle\""),
            "9:9",
            ["target.port_group.state: ", "use active-optimized,"],
        ),
        (
            unit("[[target.port_group]]\ntag = 1\n[[target.port_group]]\ntag = 1"),
            "10:7",
            ["target.port_group.tag: ", "portal group 1 is given twice"],
        ),
        (unit("block ="), "7:8", ["", "string values must be quoted"]),
        (unit("[limits]\nwindow_depth = 0"), "8:16", ["limits.window_depth: ", "must be 1 to 4096, not 0"]),
        (unit("[limits]\nwindow_size = 0"), "8:1", ["limits.window_size: ", "there are window_depth,"]),
        (
            unit("[limits]\nmax_burst_length_bytes = \"4K\""),
            "7:1",
            ["limits: ", "first_burst_length_bytes (262144) must not be above max_burst_length_bytes (4096)"],
        ),
        (top("portals = [\"localhost\"]"), "1:12", ["portals: ", "is not an IP address with a port"]),
        (top("portals = []"), "1:11", ["portals: ", "no portal"]),
        (
            top("portals = [\"[::1]\", \"[::1]:3260\"]"),
            "1:21",
            ["portals: ", "portal [::1]:3260 is given twice"],
        ),
        (
            top("portls = \"::1\""),
            "1:1",
            [
                "portls: ",
                "there are portals, portal, target, discovery, chap, limits, reactors, large_pages, state_directory, trace_directory, task_times, isns",
            ],
        ),
        (top("task_times = true"), "1:14", ["task_times: ", "trace_directory is to say where"]),
        (unit("[[target.access]]\nluns = [1]"), "8:8", ["target.access.luns: ", "has no logical unit 1"]),
        (
            unit("[[target.access]]\nluns = [0, \"5=0\"]"),
            "8:8",
            ["target.access.luns: ", "would take it for two disks"],
        ),
        (unit("[[target.access]]\nluns = [\"0=x\"]"), "8:9", ["target.access.luns: ", "is not a LUN from 0"]),
        (unit("[[target.access]]\nluns = []"), "8:8", ["target.access.luns: ", "write refuse = true"]),
        (unit("[[target.access]]\nrefuse = true\nro = true"), "7:1", ["target.access: ", "grants nothing"]),
        (
            unit("[[target.access]]\nportals = [\"192.0.2.1\"]"),
            "8:11",
            ["target.access.portals: ", "no portal with the address 192.0.2.1"],
        ),
        (
            unit("[[target.access]]\ngroups = [2]"),
            "8:10",
            ["target.access.groups: ", "not reached through portal group 2"],
        ),
        (
            "[discovery]\nscope = \"some\"".into(),
            "2:9",
            ["discovery.scope: ", "portal (the one that was asked)"],
        ),
        (unit("[[target.access]]\nusers = [\"eve\"]"), "8:9", ["target.access.users: ", "no CHAP user eve"]),
        (
            unit("[[target.access]]\naddresses = [\"192.0.2.1/8\"]"),
            "8:14",
            ["target.access.addresses: ", "write 192.0.0.0/8"],
        ),
        (unit("[[target.access]]\n[[target.access]]\nro = true"), "8:1", ["", "never looked at: rule 1"]),
        (top("[[portal]]\naddress = \"::1\"\ngroup = 0"), "3:9", ["portal.group: ", "numbered 1 to 65535"]),
        (top("[[portal]]\naddress = \"a b\""), "2:11", ["portal.address: ", "is no address"]),
        (top("[[portal]]\naddress = \"::1%nowhere\""), "2:11", ["portal.address: ", "no network interface"]),
        (top("portals = [\"fe80::1\"]"), "1:12", ["portals: ", "say on which interface"]),
        (
            SMALLEST.replace("[[target.lun]]", "groups = [2]\n[[target.lun]]"),
            "4:10",
            ["target.groups: ", "no portal in group 2"],
        ),
        (
            SMALLEST.replace("[[target.lun]]", "redirect.to = []\n[[target.lun]]"),
            "4:1",
            ["target.redirect", "1 to 16 addresses"],
        ),
        (
            SMALLEST.replace("[[target.lun]]", "redirect.to = [\"192.0.2.7,1\"]\n[[target.lun]]"),
            "4:16",
            ["target.redirect.to: ", "is not an address to log in to"],
        ),
        (unit("[isns]\nservers = [\"a b\"]"), "8:12", ["isns.servers: ", "is not the address of an iSNS"]),
        (unit("[isns]\nperiod_s = 9"), "8:12", ["isns.period_s: ", "10 to 86400"]),
        (unit("[isns]\nentity = \"\""), "8:10", ["isns.entity: ", "1 to 255 bytes"]),
        (unit("[isns]\nnotifications = \"sctp\""), "8:17", ["isns.notifications: ", "use tcp, udp or none"]),
        (
            unit("[isns]\nnotification_port = 65535\nservers = [\"a\", \"b\"]"),
            "8:21",
            ["isns.notification_port: ", "no port for each of 2 servers"],
        ),
        (
            unit("[isns]\nnotification_port = 3260\nservers = [\"a\"]"),
            "8:21",
            ["isns.notification_port: ", "the port 3260 is that of a portal"],
        ),
        (String::new(), "1:1", ["", "there is no target"]),
        ("[[target]]\nname = \"disk\"\n".into(), "2:8", ["target.name: ", "a good name is"]),
        ("[[target]]\nalias = \"x\"\n".into(), "1:1", ["target: ", "the key name is missing"]),
        (
            "[[target]]\nname = \"iqn.2026-11.io.lunette:a\"\n".into(),
            "1:1",
            ["target: ", "has no logical unit"],
        ),
        (SMALLEST.replace("number = 0", ""), "4:1", ["target.lun: ", "the key number is missing"]),
        (
            SMALLEST.replace("disk0.img", "rbd:x"),
            "6:9",
            ["target.lun.store: ", "rbd: is not a kind of store"],
        ),
        (SMALLEST.replace("number = 0", "number = 16384"), "5:10", ["target.lun.number: ", "0 to 16383"]),
        (
            SMALLEST.replace("disk0.img", "mem:1G\"\nsize = \"1G"),
            "7:8",
            ["target.lun.size: ", "behind its colon"],
        ),
    ] {
        let error = parse_at(&text).expect_err(&text);
        assert!(error.starts_with(&format!("/etc/lunette.toml:{place}: {}", parts[0])), "{text}\n{error}");
        assert!(error.contains(parts[1]), "{text}\n{error}");
    }
}

/// A directory with a good secret for `alice` and one for the target, and a configuration in it.
fn with_secrets(more: &str) -> (tempfile::TempDir, Result<Config, String>) {
    let directory = tempfile::tempdir().unwrap();
    for (name, secret, mode) in [
        ("alice", "alice's own 16 b\n", 0o600),
        ("target", "the target's 16b", 0o640),
        ("open", "alice's own 16 b", 0o644),
        ("short", "hunter2", 0o600),
    ] {
        let path = directory.path().join(name);
        std::fs::write(&path, secret).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    }
    let text = format!("{SMALLEST}{more}\n");
    let config =
        Config::from_toml(&text, &directory.path().join("l.toml")).map_err(|error| error.to_string());
    (directory, config)
}

#[test]
fn users_get_their_secrets_from_files_and_the_environment() {
    let (_directory, config) = with_secrets(
        r#"
[[target.user]]
name = "alice"
secret_file = "alice"
initiators = ["iqn.2026-11.io.Lunette:host_a"]
[[target.user]]
name = "bob"
secret_env = "CARGO_PKG_DESCRIPTION"
[target.mutual]
secret_file = "target"
[[discovery.user]]
name = "seeker"
secret_file = "alice"
[discovery.mutual]
name = "portal"
secret_file = "target"
[chap]
algorithms = ["SHA-256", "MD5"]
secret_length_min_bytes = 16"#,
    );
    let config = config.unwrap();
    let [alice, bob] = &config.targets[0].chap.users[..] else { panic!("two users") };
    assert_eq!(alice.credential.secret, Secret::new("alice's own 16 b"));
    assert_eq!(alice.initiators[0].as_str(), "iqn.2026-11.io.lunette:host_a");
    assert_eq!(bob.credential.secret, Secret::new(env!("CARGO_PKG_DESCRIPTION")));
    let own = config.targets[0].chap.mutual.as_ref().unwrap();
    assert_eq!((own.name.as_str(), &own.secret), (SMALLEST_NAME, &Secret::new("the target's 16b")));
    assert_eq!(config.discovery.users[0].credential.name, "seeker");
    assert_eq!(config.discovery.mutual.as_ref().unwrap().name, "portal");
    assert_eq!(config.chap.algorithms, [ChapAlgorithm::Sha256, ChapAlgorithm::Md5]);
    assert_eq!(config.chap.secret_length_min_bytes, 16);
    let shown = format!("{config:?}");
    assert!(shown.contains("alice") && !shown.contains("16 b"), "{shown}");
}

/// Each fault with its place and what is said; no message has a secret in it.
#[test]
fn wrong_users_are_shown_in_their_place_and_secrets_are_not() {
    let user = |lines: &str| format!("[[target.user]]\nname = \"alice\"\n{lines}");
    let two = "secret_file = \"alice\"\n[[target.user]]\nname = \"alice\"\nsecret_file = \"target\"";
    let one_secret = "secret_file = \"alice\"\n[target.mutual]\nsecret_file = \"alice\"";
    for (text, place, parts) in [
        (user(""), "7:1", ["target.user: ", "give secret_file or secret_env"]),
        (
            user("secret_file = \"nowhere\""),
            "9:15",
            ["target.user.secret_file: ", "cannot read the secret file"],
        ),
        (user("secret_file = \"open\""), "9:15", ["target.user.secret_file: ", "mode 0644"]),
        (
            user("secret_file = \"short\""),
            "9:15",
            ["target.user.secret_file: ", "a secret of 7 bytes, and 12"],
        ),
        (user("secret = \"hunter2\""), "9:1", ["target.user.secret: ", "secret is not a key here"]),
        (
            user("secret_env = \"hunter2-hunter2\""),
            "9:14",
            ["target.user.secret_env: ", "letters, digits and _"],
        ),
        (user("secret_env = \"NOT_SET_ANYWHERE\""), "9:14", ["target.user.secret_env: ", "is not set"]),
        (
            user("secret_file = \"alice\"\nsecret_env = \"A\""),
            "10:14",
            ["target.user.secret_env: ", "give one of the two"],
        ),
        (user(two), "11:8", ["target.user.name: ", "two users named alice"]),
        (user(one_secret), "10:1", ["target.mutual: ", "have one secret"]),
        (
            user("secret_file = \"alice\"\ninitiators = [\"a b\"]"),
            "10:15",
            ["target.user.initiators: ", "an iSCSI name is made of"],
        ),
        ("[target.mutual]\nsecret_file = \"target\"".into(), "7:1", ["target.mutual: ", "add a user"]),
        ("mutual = \"hunter2\"".into(), "7:1", ["target.lun.mutual: ", "mutual is not a key here"]),
        (
            "[discovery.mutual]\nsecret_file = \"target\"".into(),
            "7:1",
            ["discovery.mutual: ", "discovery belongs to no target"],
        ),
        ("[discovery]\nuser = \"hunter2\"".into(), "8:8", ["discovery.user: ", "invalid type"]),
        ("[chap]\nalgorithms = [\"MD4\"]".into(), "8:14", ["chap.algorithms: ", "\"SHA3-256\""]),
        ("[chap]\nalgorithms = []".into(), "8:14", ["chap.algorithms: ", "nobody can log in"]),
        (
            "[chap]\nsecret_length_min_bytes = 0".into(),
            "8:27",
            ["chap.secret_length_min_bytes: ", "must be 1 to 64"],
        ),
    ] {
        let (directory, config) = with_secrets(&text);
        let error = config.expect_err(&text);
        let head = format!("{}:{place}: {}", directory.path().join("l.toml").display(), parts[0]);
        assert!(error.starts_with(&head), "{text}\n{head}\n{error}");
        assert!(error.contains(parts[1]), "{text}\n{error}");
        assert!(!error.contains("hunter2"), "{text}\n{error}");
    }
}

const GUIDE: &str = "../../docs/guide/configuration.md";

/// The keys of a table, as the message about an unknown one lists them.
fn keys(text: &str) -> Vec<String> {
    let message = parse_at(text).expect_err("an unknown key");
    let list = message.split("there are ").nth(1).and_then(|rest| rest.lines().next()).expect("a list");
    list.split(", ").map(str::to_owned).collect()
}

#[test]
fn the_guide_is_right_and_complete() {
    let guide = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(GUIDE)).unwrap();
    let example = guide.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let config = parse_at(example).unwrap();
    assert_eq!(config.targets.len(), 2);

    for text in [
        "x = 1",
        "[[target]]\nx = 1",
        "[[target]]\n[[target.lun]]\nx = 1",
        "[[target]]\n[[target.user]]\nx = 1",
        "[[target]]\n[target.mutual]\nx = 1",
        "[discovery]\nx = 1",
        "[chap]\nx = 1",
        "[limits]\nx = 1",
    ] {
        for key in keys(text) {
            let row = format!("| `{key}` |");
            let headings = [
                format!("## [[{key}]]"),
                format!("## [[target.{key}]]"),
                format!("## [target.{key}]"),
                format!("## [{key}]"),
            ];
            let told = guide
                .lines()
                .any(|line| line.starts_with(&row) || headings.iter().any(|heading| heading == line));
            assert!(told, "{key}");
        }
    }
}

#[test]
fn the_examples_of_the_guide_to_authentication_are_good() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/authentication.md");
    let guide = std::fs::read_to_string(path).unwrap();
    let [users, rules] = &guide
        .split("```toml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap().replace("HOST_B_SECRET", "CARGO_PKG_DESCRIPTION"))
        .collect::<Vec<_>>()[..]
    else {
        panic!("two examples")
    };
    let directory = tempfile::tempdir().unwrap();
    for name in ["host-a.secret", "target.secret", "discovery.secret"] {
        let path = directory.path().join(name);
        std::fs::write(&path, format!("{name:-<16}")).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    }
    let config = Config::from_toml(&format!("{users}{rules}"), &directory.path().join("l.toml")).unwrap();
    assert_eq!((config.targets[0].chap.users.len(), config.discovery.users.len()), (2, 1));
    assert_eq!(config.chap.algorithms.len(), 2);
}

#[test]
fn a_file_is_read_from_disk() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lunette.toml");
    let missing = Config::read(&path).unwrap_err().to_string();
    assert!(missing.starts_with(&format!("cannot read {}: ", path.display())), "{missing}");

    std::fs::write(&path, SMALLEST).unwrap();
    let config = Config::read(&path).unwrap();
    let image = directory.path().join("disk0.img");
    assert_eq!(config.targets[0].units[0].store, StoreSpec::File { path: image, create_bytes: None });

    std::fs::write(&path, b"# one\n# two \xff\n").unwrap();
    assert_eq!(
        Config::read(&path).unwrap_err().to_string(),
        format!("{}:2: there is a byte here that is not UTF-8 text", path.display())
    );

    let file = std::fs::File::create(&path).unwrap();
    file.set_len(FILE_LENGTH_MAX + 1).unwrap();
    assert!(matches!(Config::read(&path), Err(FileError::TooLong { .. })));
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn any_text_has_an_answer(
        lines in proptest::collection::vec(
            prop_oneof![
                r"\[\[?(target|target.lun|limits)\]?\]",
                r#"(name|store|size|number|portals|x) ?= ?("\PC{0,8}"|[0-9]{1,3}|\[\PC{0,4}\]?)"#,
                r"\PC{0,12}",
            ],
            0..8,
        ),
    ) {
        if let Err(error) = Config::from_toml(&lines.join("\n"), Path::new("l.toml")) {
            prop_assert!(error.to_string().starts_with("l.toml:"));
        }
    }
}
