//! Whole files, and the messages for what is wrong in them.

use proptest::prelude::*;

use super::*;
use crate::config::Limits;

fn parse_at(text: &str) -> Result<Config, String> {
    Config::from_toml(text, Path::new("/etc/lunette.toml")).map_err(|error| error.to_string())
}

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
        write_mode: WriteMode::Through,
        engine: EngineKind::Threads,
        serial: None,
        vendor: None,
        product: None,
    };
    let target = TargetConfig { name: "iqn.2026-11.io.lunette:vm".into(), alias: None, units: vec![unit] };
    assert_eq!(
        config,
        Config {
            portals: default_portals(),
            targets: vec![target],
            limits: Limits::default(),
            reactors: Reactors::default()
        }
    );
}

#[test]
fn everything_can_be_said() {
    let config = parse_at(
        r#"
portals = ["0.0.0.0:3260", "[::1]"]

[[target]]
name = "iqn.2026-11.io.Lunette:vm"
alias = "Virtual machines"

[[target.lun]]
number = 3
store = "file:/srv/a,b.img"
size = "20G"
block = 4096
write = "back"
engine = "sync"
serial = 4711
vendor = "ACME"
product = "DISK"

[[target.lun]]
number = 1
store = "/dev/loop0"
ro = true

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
    assert_eq!(config.limits.window_depth, 32);
    assert_eq!(config.limits.header_digest, crate::config::DigestPolicy::Required);
    let [vm, scratch] = &config.targets[..] else { panic!("{config:?}") };
    assert_eq!(vm.name, "iqn.2026-11.io.lunette:vm");
    assert_eq!(vm.alias.as_deref(), Some("Virtual machines"));
    assert_eq!(scratch.units[0].store, StoreSpec::Memory { size_bytes: 1 << 30 });
    let [image, device] = &vm.units[..] else { panic!("{vm:?}") };
    let wanted = UnitConfig {
        lun: 3,
        store: StoreSpec::File { path: "/srv/a,b.img".into(), create_bytes: Some(20 << 30) },
        read_only: false,
        removable: false,
        block_length_bytes: Some(4096),
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
         write, engine, serial, vendor, product\n  wirte = \"back\"\n  ^^^^^"
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
        (unit("engine = \"uring\""), "7:10", ["target.lun.engine: ", "comes with a later release"]),
        (unit("serial = \" x\""), "7:10", ["target.lun.serial: ", "1 to 64 printable"]),
        (unit("vendor = \"TOOLONG89\""), "7:10", ["target.lun.vendor: ", "1 to 8 printable"]),
        (unit("number = 1"), "7:1", ["duplicate key", "number = 1"]),
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
        (top("portal = \"::1\""), "1:1", ["portal: ", "there are portals, target, limits, reactors"]),
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

    for text in ["x = 1", "[[target]]\nx = 1", "[[target]]\n[[target.lun]]\nx = 1", "[limits]\nx = 1"] {
        for key in keys(text) {
            let row = format!("| `{key}` |");
            let headings = [format!("## [[{key}]]"), format!("## [[target.{key}]]"), format!("## [{key}]")];
            let told = guide
                .lines()
                .any(|line| line.starts_with(&row) || headings.iter().any(|heading| heading == line));
            assert!(told, "{key}");
        }
    }
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
