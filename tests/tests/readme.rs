//! The commands of README.md and docs/guide are executed: each line of a `sh` block either runs here, against a real
//! target, or its program is in the list of those that cannot, with the reason.
//!
//! Addresses become a free port of the loopback address, block devices become files, and each command has a directory of
//! its own; otherwise the commands are run as they are printed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lunette_tests::attach::{Attached, can_mount};
use lunette_tests::lunette::{Launch, Lunette, binary};
use lunette_tests::process::run;
use lunette_tests::{need_programs, skip};

const LIMIT: Duration = Duration::from_secs(60);

/// Addresses that the pages use.
const ADDRESSES: &[&str] = &["127.0.0.1:3260", "0.0.0.0:3260", "192.0.2.7:3260"];

/// The hosts whose disks the initiator's commands use.
const OTHER_HOSTS: &[&str] = &["192.0.2.10", "192.0.2.11"];

/// Where the pages attach disks.
const ATTACHED: [&str; 3] = ["127.0.0.1:10809", "/mnt/disk0", "unix:/run/vm.socket"];

/// What an emulated network says where this user may have none.
const NO_NETWORK: &str = "there is no emulated network";

/// Programs that are shown and not run, and why.
const NOT_RUN: &[(&str, &str)] = &[
    ("cargo", "this test runs under cargo; the commands' parts are checked instead"),
    ("apt-get", "changes the machine"),
    ("iscsiadm", "needs a kernel with open-iscsi, and root"),
    ("lsblk", "shows the disks of iscsiadm"),
    ("qemu-system-x86_64", "boots a virtual machine; its block driver is tried through qemu-img and qemu-io"),
    ("esxcli", "runs on ESXi"),
    ("HBA", "runs on ESXi"),
    ("service", "runs on FreeBSD"),
    ("iscsictl", "runs on FreeBSD"),
    ("sg_sanitize", "needs a disk that the kernel's initiator has attached"),
    ("sg_wr_mode", "needs a disk that the kernel's initiator has attached"),
    ("sg_format", "needs a disk that the kernel's initiator has attached"),
    ("sg_write_long", "needs a disk that the kernel's initiator has attached"),
    ("mkfs.ext4", "the tests of `attach` make file systems on an attached disk"),
    ("mount", "the tests of `attach` mount an attached disk"),
    ("dd", "the tests of `attach` write to an attached disk"),
    ("nbd-client", "needs the kernel's NBD driver, and root"),
    ("kill", "is about the reader's own process; signals are sent by the tests of `serve`"),
    ("systemctl", "manages services of the machine"),
    ("useradd", "changes the machine"),
    ("setfattr", "is tried by lunette-block's tests of identities"),
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// README.md and the guide's pages, in order.
fn pages() -> Vec<(String, String)> {
    let guide = fs::read_dir(repository().join("docs/guide")).expect("docs/guide");
    let mut paths: Vec<PathBuf> = guide.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.sort();
    paths.insert(0, repository().join("README.md"));
    let page = |path: PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, fs::read_to_string(&path).expect("a page"))
    };
    paths.into_iter().map(page).collect()
}

/// The fenced blocks of one language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let head = format!("```{language}\n");
    text.split(&head)
        .skip(1)
        .filter_map(|rest| rest.split("\n```").next())
        .map(|block| block.to_owned() + "\n")
        .collect()
}

/// The commands of a block: continued lines are joined, comments cut off.
fn commands(block: &str) -> Vec<String> {
    let joined = block.replace("\\\n", " ");
    let without_comment = |line: &str| line.split(" #").next().unwrap_or(line).trim().to_owned();
    joined.lines().map(without_comment).filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

fn program(command: &str) -> &str {
    command.split([' ', '=']).next().unwrap_or(command)
}

/// A directory for one command, with `lunette` in it and every image and secret that the command expects to be there.
fn prepare(command: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::symlink(binary(), directory.path().join("lunette")).expect("a link");
    for word in command.split([' ', ',', '=', '\'', ':', '"', '\n']) {
        let is_image = word.ends_with(".img") || word == "loop0";
        if is_image
            && !command.contains(&format!("{word},size="))
            && !command.contains(&format!("{word}\"\nsize"))
        {
            let image = fs::File::create(directory.path().join(word)).expect("an image");
            image.set_len(8 << 20).expect("a length");
        }
        if word.ends_with(".secret") && command.contains("serve") {
            let secret = directory.path().join(word);
            // Each is another one: a user and the target must not share theirs.
            fs::write(&secret, format!("{word:->16}\n")).expect("a secret");
            fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("a mode");
        }
    }
    directory
}

/// What stands for the machine that the page is about.
fn localized(command: &str, portal: &str) -> String {
    let with_portal =
        ADDRESSES.iter().fold(command.to_owned(), |text, address| text.replace(address, portal));
    with_portal.replace("/dev/loop0", "loop0")
}

fn shell(directory: &Path, script: &str) -> Command {
    let mut command = Command::new("sh");
    let path = std::env::var("PATH").unwrap_or_default();
    command.args(["-e", "-c", script]).current_dir(directory);
    command.env("PATH", format!("{}:/usr/sbin:/sbin:{path}", directory.display()));
    command
}

fn run_script(directory: &Path, script: &str) {
    let finished = run(&mut shell(directory, script), LIMIT).expect("a shell");
    assert!(finished.success(), "{script}: {}:\n{}", finished.ending(), finished.output);
    assert!(!finished.output.trim().is_empty(), "{script} says nothing");
}

/// Runs `lunette serve ...` until it is ready, and ends it.
fn serve(command: &str) {
    let mut line = localized(command, "127.0.0.1:0");
    if line.contains("--help") {
        let directory = prepare("");
        return run_script(directory.path(), &line);
    }
    if !line.contains("--portal") && !line.contains("--config") {
        line.push_str(" --portal 127.0.0.1:0");
    }
    let configuration = line.contains("--config lunette.toml").then(example_configuration);
    let directory = prepare(configuration.as_deref().unwrap_or(&line));
    if let Some(text) = configuration {
        fs::write(directory.path().join("lunette.toml"), text).expect("a file");
    }
    let shell = shell(directory.path(), &format!("exec {line} --json"));
    let target = Launch::of(shell).start().unwrap_or_else(|error| panic!("{command}: {error:#}"));
    target.stop().unwrap_or_else(|error| panic!("{command}: {error:#}"));
}

/// The example of docs/guide/configuration.md, on a free port.
fn example_configuration() -> String {
    let page = fs::read_to_string(repository().join("docs/guide/configuration.md")).expect("the page");
    let example = blocks(&page, "toml").into_iter().next().expect("an example of lunette.toml");
    let mut lines = String::new();
    for line in localized(&example, "127.0.0.1:0").lines() {
        // Not every machine has IPv6. Without comments, `prepare` sees which images are to be created.
        let line = if line.starts_with("portals") { "portals = [\"127.0.0.1:0\"]" } else { line };
        lines.push_str(line.split(" #").next().unwrap_or(line).trim_end());
        lines.push('\n');
    }
    assert!(lines.contains("portals = "), "the example shows portals");
    lines
}

/// Runs a tool of libiscsi or QEMU against a target with the name that the pages use.
fn connect(command: &str) {
    let directory = prepare("");
    let shell_target = shell(
        directory.path(),
        "exec lunette serve --json --portal 127.0.0.1:0 --target iqn.2026-11.io.lunette:vm --lun mem:16M",
    );
    let target = Launch::of(shell_target).start().expect("a target");
    let mut script = localized(command, &target.portal().to_string());
    if script.contains("system.qcow2") {
        script = format!("qemu-img create -f qcow2 system.qcow2 8M\n{script}");
    }
    run_script(directory.path(), &script);
    target.stop().expect("a clean end");
}

/// Runs a block of the initiator's commands in their order, each host being a target of its own; tells how many there were.
fn initiate(page: &str, block: &str) -> u32 {
    let directory = prepare("");
    let secret = directory.path().join("host-a.secret");
    fs::write(&secret, "a secret of 16 b\n").expect("a secret");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("a mode");
    let targets: Vec<_> = OTHER_HOSTS
        .iter()
        .map(|_| {
            let serve =
                "exec lunette serve --json --portal 127.0.0.1:0 --target iqn.2026-11.io.lunette:vm --lun mem:16M";
            Launch::of(shell(directory.path(), serve)).start().expect("a target")
        })
        .collect();
    let mut run = 0;
    for command in commands(block) {
        eprintln!("{page}: {command}");
        let line = command.split('|').next().unwrap_or(&command).trim().replace(":3260", "");
        let line = OTHER_HOSTS
            .iter()
            .zip(&targets)
            .fold(line, |line, (host, target)| line.replace(host, &target.portal().to_string()));
        if line.starts_with("lunette attach") {
            attach(directory.path(), &line);
        } else {
            run_script(directory.path(), &line);
        }
        run += 1;
    }
    for target in targets {
        target.stop().expect("a clean end");
    }
    run
}

/// Runs `lunette attach ...` until the disk is there, and ends it.
fn attach(directory: &Path, line: &str) {
    if line.contains(ATTACHED[1]) && !can_mount() {
        return;
    }
    let (mount, socket) = (directory.join("mount"), directory.join("socket"));
    fs::create_dir_all(&mount).expect("a directory");
    let here = ["127.0.0.1:0".into(), mount.display().to_string(), format!("unix:{}", socket.display())];
    let line =
        ATTACHED.iter().zip(here).fold(line.to_owned(), |line, (there, here)| line.replace(there, &here));
    let attached = Attached::of(shell(directory, &format!("exec {line} --json")));
    let attached = attached.unwrap_or_else(|error| panic!("{line}: {error:#}"));
    attached.detach().unwrap_or_else(|error| panic!("{line}: {error:#}"));
}

/// Runs `lunette detach PLACE` where something is attached.
fn detach(command: &str) {
    if command.contains(ATTACHED[1]) && !can_mount() {
        return;
    }
    let (directory, mount) = (prepare(""), tempfile::tempdir().expect("a directory"));
    let target = Lunette::serve().luns(["mem:16M"]).start().expect("a target");
    let attached = if command.contains(ATTACHED[1]) {
        Attached::mount(&target.url(0), mount.path(), &[]).expect("attached")
    } else {
        Attached::start(&target.url(0), &[]).expect("attached")
    };
    let place = attached.ready.nbd.as_deref().and_then(|uri| uri.strip_prefix("nbd://"));
    let place = place.map_or_else(|| mount.path().display().to_string(), ToOwned::to_owned);
    let there = ATTACHED.iter().find(|there| command.contains(**there)).expect("a place");
    run_script(directory.path(), &command.replace(there, &place));
    attached.end().expect("a clean end");
    target.stop().expect("a clean end");
}

/// Runs an NBD client against an attached disk.
fn over_nbd(command: &str) {
    let directory = prepare("");
    let target = Lunette::serve().luns(["mem:16M"]).start().expect("a target");
    let attached = Attached::start(&target.url(0), &[]).expect("attached");
    let command = command.replace(ATTACHED[0], &attached.address().to_string());
    // Not all of them say something.
    run_script(directory.path(), &format!("{command} && echo done"));
    attached.detach().expect("a clean end");
    target.stop().expect("a clean end");
}

/// Runs a command over an emulated link, with a small disk at the far end.
fn emulate(command: &str) {
    let directory = prepare("");
    let finished = run(&mut shell(directory.path(), &command.replace("mem:1G", "mem:4M")), LIMIT);
    let finished = finished.expect("a shell");
    if finished.output.contains(NO_NETWORK) {
        return skip::record_lacking(finished.output.trim());
    }
    assert!(finished.success(), "{command}: {}:\n{}", finished.ending(), finished.output);
}

#[test]
fn every_command_runs_or_has_a_reason() {
    need_programs!("iscsi-ls", "qemu-img", "nbdcopy");
    let (mut run, mut shown) = (0, 0);
    for (page, text) in pages() {
        for block in blocks(&text, "sh") {
            if block.contains("--ready-fd") {
                wait_for_readiness(&block);
                run += 1;
                continue;
            }
            if block.contains(OTHER_HOSTS[0]) {
                run += initiate(&page, &block);
                continue;
            }
            for command in commands(&block) {
                eprintln!("{page}: {command}");
                let command = command.replace("cargo run --release -- serve", "lunette serve");
                match program(&command) {
                    "lunette" if command.starts_with("lunette serve") => serve(&command),
                    "lunette" if command.starts_with("lunette wan run") => emulate(&command),
                    "lunette" if command.starts_with("lunette detach ") => detach(&command),
                    "lunette" => print(&command),
                    "qemu-img" | "nbdcopy" if command.contains("nbd://") => over_nbd(&command),
                    "iscsi-ls" | "iscsi-inq" | "iscsi-readcapacity16" | "iscsi-perf" | "qemu-img" => {
                        connect(&command);
                    }
                    other => {
                        let known = NOT_RUN.iter().any(|(name, _)| *name == other);
                        assert!(known, "{page}: {command}: this test does not know what to do with {other}");
                        shown += 1;
                        continue;
                    }
                }
                run += 1;
            }
        }
    }
    eprintln!("{run} commands were run, {shown} only shown");
    assert!(run >= 10, "only {run} commands were found");
}

/// `lunette man` and the like: without the program behind the pipe, and into a directory of our own.
fn print(command: &str) {
    let directory = prepare("");
    let line = command.split(['|', '>']).next().unwrap_or(command).trim();
    match line.split_once("--out ") {
        Some((before, _)) => {
            run_script(directory.path(), &format!("{before} --out pages && ls pages"));
        }
        None => run_script(directory.path(), line),
    }
}

/// The block that shows how a script waits until all is ready, as one script.
fn wait_for_readiness(block: &str) {
    let directory = prepare("");
    run_script(
        directory.path(),
        &format!("{block}\necho \"$line\" | grep portals\nkill -TERM $!\nwait $!\n"),
    );
}

#[test]
fn cargo_commands_name_what_exists() {
    let (_, readme) = pages().swap_remove(0);
    let commands: Vec<String> = blocks(&readme, "sh").iter().flat_map(|block| commands(block)).collect();
    // The first command builds and serves, the second is what CI runs.
    assert!(commands[0].starts_with("cargo run --release -- serve --lun "), "{}", commands[0]);
    assert_eq!(commands[1], "cargo xtask test");
    let ci = fs::read_to_string(repository().join(".ci/run")).expect(".ci/run");
    assert!(ci.contains(&commands[1]), "{ci}");
    let manifest = fs::read_to_string(repository().join("Cargo.toml")).expect("Cargo.toml");
    assert!(manifest.contains("default-members = [\"crates/cli\"]"), "`cargo run` means the binary");
    for command in commands.iter().filter(|command| command.starts_with("cargo install")) {
        let (_, path) = command.split_once("--path ").expect("a path");
        assert!(repository().join(path).join("src/main.rs").is_file(), "{command}");
    }
}

#[test]
fn links_lead_somewhere() {
    for (page, text) in pages() {
        let base = if page == "README.md" { repository() } else { repository().join("docs/guide") };
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = link.split('#').next().unwrap_or(link);
            if !path.is_empty() && !path.contains("://") {
                assert!(base.join(path).exists(), "{page}: {link}");
            }
        }
    }
}
