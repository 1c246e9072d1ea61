//! The command line from outside: help, messages, exit statuses, manual pages and completions.
//!
//! Nothing is served here; `serve.rs` does that.

use std::path::Path;
use std::process::{Command, Output};

/// The summary as people see it on a terminal of 100 columns.
const HELP: &str = "\
An iSCSI target and initiator in user space: serves disks, and reads, writes and copies them

Usage: lunette <COMMAND>

Commands:
  serve        Serve files, block devices and memory as SCSI disks
  secret       Make a random secret for CHAP
  discover     List the targets that a portal or an iSNS server tells of, with their units and sizes
  login-trace  Log in and tell each phase with its time, and each key with its result
  info         Tell all about a disk: names, size, limits, provisioning, modes, paths, reservations
  read         Read a disk, or a part of it, to a file or the standard output
  write        Write a file, the standard input or a pattern to a disk, and make it stable
  verify       Compare a disk with a file or a pattern, and name the first block that differs
  erase        Erase a disk or a part of it: give space back, write zeros, or SANITIZE
  checksum     Compute the checksum of a disk, or a part of it
  copy         Copy a disk or an image file to a disk or an image file
  reserve      Look at and change persistent reservations, with the words of sg_persist
  attach       Show a disk to programs that know no iSCSI, until SIGTERM or SIGINT (ctrl-C)
  detach       End an attach, once everything is stable, and tell how that went; or list all
  bench        Measure a disk under a workload: rates, latencies, where the time goes
  advise       Predict what a network lets through, and which settings lift it
  lab          Repeat published studies on emulated networks
  wan          Emulate a network on this machine
  man          Print a manual page, or write all of them
  completions  Print the completions for a shell
  help         Print this message or the help of the given subcommand(s)

Options:
  -h, --help     Print help
  -V, --version  Print version

Examples:
  lunette serve --lun disk0.img,size=10G
  lunette serve --config lunette.toml
  lunette discover 192.0.2.10
  lunette info iscsi://192.0.2.10/iqn.2026-11.io.lunette:vm/0
  lunette copy iscsi://192.0.2.10/iqn.2026-11.io.lunette:vm/0 vm.img
";

fn lunette(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lunette"))
        .args(arguments)
        .current_dir(directory)
        .env_remove("COLUMNS")
        .output()
        .expect("the binary runs")
}

fn stdout(arguments: &[&str]) -> String {
    let output = lunette(Path::new("."), arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// What is said on the standard error, and the exit status.
fn refused(directory: &Path, arguments: &[&str]) -> (String, Option<i32>) {
    let output = lunette(directory, arguments);
    assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}: {output:?}");
    (String::from_utf8(output.stderr).expect("text"), output.status.code())
}

#[test]
fn help_is_short_and_has_examples() {
    assert_eq!(stdout(&["--help"]), HELP);
    assert_eq!(stdout(&["--version"]), format!("lunette {}\n", env!("CARGO_PKG_VERSION")));
    let serve = stdout(&["serve", "--help"]);
    for flag in ["--lun", "--config", "--portal", "--target", "--chap-user", "--json", "--ready-fd", "--log"]
    {
        assert!(serve.contains(flag), "{flag}");
    }
    let keys = [
        "size=",
        "ro ",
        "removable ",
        "block=",
        "protection=",
        "provisioning=thin|thick",
        "write=",
        "engine=",
    ];
    for key in keys.into_iter().chain(["serial=", "vendor=", "product="]) {
        assert!(serve.contains(&format!("\n            {key}")), "{key}: {serve}");
    }
    assert!(
        serve.contains("--large-pages\n          Have buffers and disks in memory in large pages"),
        "{serve}"
    );
    assert!(serve.contains("Exit status: 0 when everything that was acknowledged is stable"), "{serve}");
}

#[test]
fn wrong_flags_end_with_status_2_and_a_place() {
    let (message, status) = refused(Path::new("."), &["serve", "--lun", "0=vm.img,wirte=back"]);
    assert_eq!(status, Some(2));
    let carets = "  0=vm.img,wirte=back\n           ^^^^^\n";
    assert!(message.contains("\"wirte\" is not an option") && message.contains(carets), "{message}");

    let (message, status) = refused(Path::new("."), &["serve", "--lun", "1=mem:1M", "--lun", "1=mem:2M"]);
    assert_eq!(
        (message.as_str(), status),
        ("error: LUN 1 is given twice; each logical unit has its own number\n", Some(2))
    );

    let (message, status) = refused(Path::new("."), &["serve", "--lun", "mem:1M", "--target", "disk0"]);
    assert_eq!(status, Some(2));
    assert!(message.contains("a good name is iqn.2026-11.io.lunette:disk0"), "{message}");
}

#[test]
fn what_is_missing_is_named_and_nothing_is_created() {
    let directory = tempfile::tempdir().expect("a directory");
    let (message, status) = refused(
        directory.path(),
        &[
            ["serve", "--portal", "127.0.0.1:0", "--log", "off"],
            ["--target", "iqn.2026-11.io.lunette:a", "--lun", "nowhere.img", "--json"],
        ]
        .concat(),
    );
    assert_eq!(
        (message.as_str(), status),
        (
            "error: iqn.2026-11.io.lunette:a LUN 0: nowhere.img does not exist; to create it, give its size, for example size=10G\n\
             help: options stand behind the path, after a comma: --lun PATH,size=10G\n",
            Some(1)
        )
    );
    assert_eq!(std::fs::read_dir(directory.path()).expect("readable").count(), 0);
}

#[test]
fn a_taken_port_is_named_with_a_way_out() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let portal = taken.local_addr().expect("an address").to_string();
    let (message, status) =
        refused(Path::new("."), &["serve", "--log", "off", "--lun", "mem:1M", "--portal", &portal]);
    assert_eq!(status, Some(1));
    assert!(message.starts_with(&format!("error: cannot listen on {portal}: ")), "{message}");
    assert!(message.ends_with("help: --portal 127.0.0.1:0 picks a free port and says which\n"), "{message}");
}

#[test]
fn a_wrong_configuration_is_shown_in_its_place() {
    let directory = tempfile::tempdir().expect("a directory");
    let text =
        "[[target]]\nname = \"iqn.2026-11.io.lunette:a\"\n\n[[target.lun]]\nnumber = 0\nstore = \"rbd:x\"\n";
    std::fs::write(directory.path().join("lunette.toml"), text).expect("written");
    let (message, status) = refused(directory.path(), &["serve", "--config", "lunette.toml"]);
    assert_eq!(status, Some(2));
    assert!(
        message.starts_with("error: lunette.toml:6:9: target.lun.store: rbd: is not a kind of store"),
        "{message}"
    );
    assert!(message.ends_with("\n  store = \"rbd:x\"\n          ^^^^^^^\n"), "{message}");

    let (message, status) = refused(directory.path(), &["serve", "--config", "other.toml"]);
    assert_eq!(status, Some(2));
    assert!(message.starts_with("error: cannot read other.toml: No such file"), "{message}");
}

#[test]
fn a_descriptor_that_is_not_open_is_refused() {
    let (message, status) = refused(Path::new("."), &["serve", "--lun", "mem:1M", "--ready-fd", "900"]);
    assert_eq!(status, Some(2));
    assert!(
        message.starts_with("error: --ready-fd 900: ") && message.contains("must be a descriptor"),
        "{message}"
    );
}

#[test]
fn every_subcommand_has_a_manual_page() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = lunette(directory.path(), &["man", "--out", "pages/man1"]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    let read = |name: &str| {
        std::fs::read_to_string(directory.path().join("pages/man1").join(name))
            .unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    for (name, heading) in [
        ("lunette.1", ".TH lunette 1"),
        ("lunette-serve.1", ".TH lunette-serve 1"),
        ("lunette-secret.1", ".TH lunette-secret 1"),
        ("lunette-copy.1", ".TH lunette-copy 1"),
        ("lunette-login-trace.1", ".TH lunette-login-trace 1"),
        ("lunette-wan.1", ".TH lunette-wan 1"),
        ("lunette-wan-run.1", ".TH lunette-wan-run 1"),
        ("lunette-man.1", ".TH lunette-man 1"),
        ("lunette-completions.1", ".TH lunette-completions 1"),
    ] {
        let page = read(name);
        assert!(page.contains(heading) && page.contains(".SH SYNOPSIS"), "{page}");
    }
    assert_eq!(stdout(&["man"]), read("lunette.1"));
    assert_eq!(stdout(&["man", "serve"]), read("lunette-serve.1"));
    assert_eq!(stdout(&["man", "wan-run"]), read("lunette-wan-run.1"));
    assert!(read("lunette-serve.1").contains("\\-\\-lun"));
    let (message, status) = refused(Path::new("."), &["man", "sevre"]);
    assert_eq!(status, Some(2));
    assert!(message.contains("there are serve, secret, discover, "), "{message}");
}

#[test]
fn shells_get_completions() {
    for (shell, registration) in
        [("bash", "complete -F _lunette"), ("zsh", "#compdef lunette"), ("fish", "complete -c lunette")]
    {
        let script = stdout(&["completions", shell]);
        assert!(script.contains(registration), "{shell}");
        assert!(script.contains("ready-fd"), "{shell}");
    }
}
