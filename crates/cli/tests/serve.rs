//! `lunette serve` as a process: what it tells, and how signals end it. What it serves is tested across crates.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Far more than a start or an end takes.
const LIMIT: Duration = Duration::from_secs(30);

struct Served {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
    /// What was read of the standard error.
    said: String,
}

impl Served {
    /// Runs `lunette serve` with arguments and redirections as the shell takes them.
    fn shell(arguments: &str) -> Self {
        Self::shell_after("", arguments)
    }

    /// The same, after another command of the shell, which ends with a semicolon.
    fn shell_after(first: &str, arguments: &str) -> Self {
        let mut child = Command::new("sh")
            .args(["-c", &format!("{first} exec \"$LUNETTE\" serve {arguments}")])
            .env("LUNETTE", env!("CARGO_BIN_EXE_lunette"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a shell");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        Self { child, stdout, stderr, said: String::new() }
    }

    /// Reads up to the first line that begins with `prefix`.
    fn lines_up_to(&mut self, prefix: &str) -> String {
        let mut text = String::new();
        loop {
            let before = text.len();
            let read = self.stdout.read_line(&mut text).expect("readable");
            assert_ne!(read, 0, "no line begins with {prefix:?}: {text}");
            if text[before..].starts_with(prefix) {
                return text;
            }
        }
    }

    /// Waits until it says a line with `part` on the standard error.
    fn wait_until_said(&mut self, part: &str) {
        while !self.said.contains(part) {
            let read = self.stderr.read_line(&mut self.said).expect("text");
            assert_ne!(read, 0, "{part:?} is not said: {}", self.said);
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Waits for its end; returns the status and what it said on the standard error.
    fn end(mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            thread::sleep(Duration::from_millis(5));
        };
        self.stderr.read_to_string(&mut self.said).expect("text");
        (status, std::mem::take(&mut self.said))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It has ended already unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn people_get_a_banner_and_a_clean_end() {
    let mut served = Served::shell("--portal 127.0.0.1:0 --target iqn.2026-11.io.lunette:a --lun mem:1M");
    let banner = served.lines_up_to("Ctrl-C");
    let first = banner.lines().next().expect("a line");
    let port: u16 = first.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port at the end");
    assert_ne!(port, 0);
    for part in [
        "\niqn.2026-11.io.lunette:a\n  LUN 0   memory, 1 MiB: ".to_owned(),
        format!(
            "iscsiadm --mode node --targetname iqn.2026-11.io.lunette:a --portal 127.0.0.1:{port} --login\n"
        ),
        format!("iscsi://127.0.0.1:{port}/iqn.2026-11.io.lunette:a/0"),
        "Only this machine can connect.".to_owned(),
    ] {
        assert!(banner.contains(&part), "{part}\n{banner}");
    }
    served.signal(Signal::INT);
    let (status, said) = served.end();
    assert!(status.success(), "{status}: {said}");
    assert!(said.contains("lunette: draining: no new logins"), "{said}");
    assert!(said.contains("have 5 s to log out"), "{said}");
}

#[test]
fn programs_get_a_line_of_json() {
    let mut served = Served::shell(
        "--json --log off --portal 127.0.0.1:0 --portal '[::1]:0' \
         --target iqn.2026-11.io.lunette:a --lun 3=null:1T,ro,block=4096,serial=S-1 \
         --lun mem:1M,write=back,engine=sync",
    );
    let mut line = String::new();
    served.stdout.read_line(&mut line).expect("readable");
    let ready: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(ready["pid"], served.child.id());
    let portals: Vec<&str> =
        ready["portals"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert!(portals[0].starts_with("127.0.0.1:") && portals[1].starts_with("[::1]:"), "{portals:?}");
    assert_eq!(ready["targets"][0]["name"], "iqn.2026-11.io.lunette:a");
    let units = ready["targets"][0]["units"].as_array().expect("a list");
    let facts = |unit: &Value| {
        let keys = ["lun", "size_bytes", "block_bytes", "read_only", "write", "engine", "unmap"];
        keys.map(|key| unit[key].clone())
    };
    assert_eq!(
        Value::from(facts(&units[0]).to_vec()),
        serde_json::json!([0, 1_048_576, 512, false, "back", "sync", true])
    );
    assert_eq!(
        Value::from(facts(&units[1]).to_vec()),
        serde_json::json!([3, 1_099_511_627_776_u64, 4096, true, "through", "threads", false])
    );
    assert_eq!(units[0]["engine_reason"], Value::Null, "it was asked for");
    assert_eq!(units[1]["engine_reason"], "memory is never waited for");
    assert_eq!(units[1]["serial"], "S-1");
    assert!(
        units[1]["naa"].as_str().is_some_and(|naa| naa.starts_with("naa.3") && naa.len() == 20),
        "{line}"
    );
    served.signal(Signal::TERM);
    let mut rest = String::new();
    served.stdout.read_to_string(&mut rest).expect("text");
    assert_eq!(rest, "", "one line and nothing else");
    let (status, _) = served.end();
    assert!(status.success(), "{status}");
}

#[test]
fn the_ready_descriptor_gets_the_line_and_is_closed() {
    // The pipe that is read here ends when descriptor 3 is closed, as the standard output goes elsewhere.
    let mut served =
        Served::shell("--log off --portal 127.0.0.1:0 --lun mem:1M --ready-fd 3 3>&1 >/dev/null");
    let mut line = String::new();
    served.stdout.read_to_string(&mut line).expect("text");
    let ready: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(ready["pid"], served.child.id());
    assert!(served.child.try_wait().expect("a child").is_none(), "it goes on serving");
    served.signal(Signal::TERM);
    assert!(served.end().0.success());
}

#[test]
fn nobody_needs_to_read_the_standard_output() {
    let mut served = Served::shell("--portal 127.0.0.1:0 --lun mem:1M --ready-fd 3 3>&1 >/dev/full");
    served.lines_up_to("{");
    served.signal(Signal::HUP);
    served.wait_until_said("SIGHUP: there is no configuration file to read again; nothing changes");
    served.signal(Signal::TERM);
    let (status, said) = served.end();
    assert!(status.success(), "{status}: {said}");
    assert!(said.contains("cannot write to the standard output"), "{said}");
}

#[test]
fn a_configuration_serves_what_it_says() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("disks.toml");
    let text = "portals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"iqn.2026-11.io.lunette:a\"\nalias = \"Scratch\"\n\
                [[target.lun]]\nnumber = 7\nstore = \"disk.img\"\nsize = \"1M\"\nserial = \"S-7\"\n\
                [limits]\ndrain_timeout_s = 2\n";
    std::fs::write(&path, text).expect("written");
    let mut served = Served::shell(&format!("--json --config '{}'", path.display()));
    let mut line = String::new();
    served.stdout.read_line(&mut line).expect("readable");
    let ready: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(ready["targets"][0]["alias"], "Scratch");
    assert_eq!(ready["targets"][0]["units"][0]["lun"], 7);
    let image = directory.path().join("disk.img");
    assert_eq!(std::fs::metadata(image).expect("created beside the configuration").len(), 1 << 20);
    served.signal(Signal::TERM);
    let (status, said) = served.end();
    assert!(status.success(), "{status}: {said}");
    assert!(said.contains("have 2 s to log out"), "{said}");
}

#[test]
fn a_configuration_is_read_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("disks.toml");
    let text = |access: &str, window: u16| {
        format!(
            "portals = [\"127.0.0.1:0\"]\n[limits]\nwindow_depth = {window}\n[[target]]\nname = \"iqn.2026-11.io.lunette:a\"\n\
             [[target.lun]]\nnumber = 0\nstore = \"mem:1M\"\n[[target.access]]\ninitiators = [\"{access}\"]\n"
        )
    };
    std::fs::write(&path, text("iqn.a:*", 32)).expect("written");
    let mut served = Served::shell(&format!("--json --config '{}'", path.display()));
    let mut line = String::new();
    served.stdout.read_line(&mut line).expect("readable");
    served.signal(Signal::HUP);
    served.wait_until_said("SIGHUP: the configuration is as before");
    std::fs::write(&path, text("iqn.b:*", 64)).expect("written");
    served.signal(Signal::HUP);
    served.wait_until_said("changed now: target iqn.2026-11.io.lunette:a: who may log in");
    served.wait_until_said("changes with a restart only: [limits]");
    std::fs::write(&path, text("no name", 64)).expect("written");
    served.signal(Signal::HUP);
    served.wait_until_said("the configuration is not taken, and nothing changes");
    served.signal(Signal::TERM);
    let (status, said) = served.end();
    assert!(status.success(), "{status}: {said}");
    assert!(said.contains("disks.toml:10:"), "{said}");
}

/// A configuration whose one secret comes from a FIFO, as from a server of files that does not answer.
fn with_secret_in_a_fifo() -> (tempfile::TempDir, String, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("disks.toml");
    let text = "portals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"iqn.2026-11.io.lunette:a\"\n\
                [[target.lun]]\nnumber = 0\nstore = \"mem:1M\"\n[[target.user]]\nname = \"a\"\nsecret_file = \"secret\"\n";
    std::fs::write(&path, text).expect("written");
    let fifo = directory.path().join("secret");
    let made = Command::new("mkfifo").args([&fifo, &directory.path().join("other")]).status();
    assert!(made.expect("mkfifo runs").success());
    (directory, format!("--json --config '{}'", path.display()), fifo)
}

/// Waits until somebody reads the FIFO, and opens it for writing.
fn read_from(fifo: &Path) -> File {
    let deadline = Instant::now() + LIMIT;
    loop {
        // It is refused while nobody reads.
        let opened = rustix::fs::open(fifo, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty());
        if let Ok(opened) = opened {
            return opened.into();
        }
        assert!(Instant::now() < deadline, "nobody reads {}", fifo.display());
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_signal_ends_a_start_that_waits() {
    let (_directory, arguments, fifo) = with_secret_in_a_fifo();
    let served = Served::shell(&arguments);
    let _secret = read_from(&fifo);
    served.signal(Signal::TERM);
    let (status, said) = served.end();
    assert!(status.success(), "{status}: {said}");
    assert!(said.contains("lunette: ended during the start; nothing was served"), "{said}");
}

#[test]
fn a_reload_that_waits_holds_nothing_up() {
    let (directory, arguments, fifo) = with_secret_in_a_fifo();
    let mut served = Served::shell(&arguments);
    read_from(&fifo).write_all(b"0123456789abcdef\n").expect("read");
    let mut line = String::new();
    served.stdout.read_line(&mut line).expect("readable");
    served.signal(Signal::HUP);
    let mut secret = read_from(&fifo);
    // This one has another follow; it finds another FIFO, so that the two are told apart.
    served.signal(Signal::HUP);
    let other = directory.path().join("other");
    std::fs::rename(&other, &fifo).expect("renamed");
    secret.write_all(b"0123456789abcdef\n").expect("read");
    drop(secret);
    served.wait_until_said("SIGHUP: the configuration is as before");
    let _secret = read_from(&fifo);
    served.signal(Signal::TERM);
    let (status, said) = served.end();
    assert!(status.success(), "{status}: {said}");
    assert!(said.contains("lunette: draining: no new logins"), "{said}");
}

/// What an image has lost is found, given to nobody, and told to both sides.
#[test]
fn damage_of_an_image_is_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let target = "iqn.2026-11.io.lunette:a";
    let unit = format!("'{}',size=1M,protection=1", image.display());
    let mut served = Served::shell(&format!("--json --portal 127.0.0.1:0 --target {target} --lun {unit}"));
    let mut line = String::new();
    served.stdout.read_line(&mut line).expect("readable");
    let ready: Value = serde_json::from_str(&line).expect("JSON");
    let url = format!("iscsi://{}/{target}/0", ready["portals"][0].as_str().expect("a portal"));
    let lunette = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_lunette")).args(arguments).output().expect("it runs")
    };
    assert!(lunette(&["write", &url, "--pattern", "address"]).status.success());
    let file = std::fs::OpenOptions::new().write(true).open(&image).expect("an image");
    file.write_all_at(b"!", 5 * 512).expect("written");
    let read = lunette(&["read", &url]);
    let said = String::from_utf8_lossy(&read.stderr);
    assert_eq!(read.status.code(), Some(5), "{said}");
    assert!(said.contains("help: the data does not fit its protection information"), "{said}");
    served.wait_until_said("the stored data is damaged");
    served.signal(Signal::TERM);
    let (status, said) = served.end();
    assert!(status.success(), "{status}: {said}");
    let told = said.lines().find(|line| line.contains("the stored data is damaged")).expect("a line");
    for part in ["ERROR", "iqn.2026-11.io.lunette:a LUN 0", "lba=5", "check=guard"] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn a_processor_that_there_is_not_is_named() {
    let served = Served::shell("--cores 1023 --portal 127.0.0.1:0 --lun mem:1M");
    let (status, said) = served.end();
    assert!(!status.success(), "{said}");
    assert!(said.contains("may not use processor 1023"), "{said}");
}

/// What comes of it depends on this machine, unless large pages are forbidden to the process.
#[test]
fn what_comes_of_large_pages_is_said_and_shown() {
    let serve = |flag: &str| {
        let mut served = Served::shell(&format!("{flag} --portal 127.0.0.1:0 --lun mem:4M"));
        let banner = served.lines_up_to("Ctrl-C");
        served.signal(Signal::TERM);
        let (status, said) = served.end();
        assert!(status.success(), "{said}");
        (said, banner.contains("LUN 0   memory in large pages, 4 MiB: "))
    };
    let (said, is_shown) = serve("");
    assert!(!said.contains("large pages") && !is_shown, "{said}");
    let (said, is_shown) = serve("--large-pages");
    assert!(said.contains("large pages: "), "{said}");
    assert_ne!(is_shown, said.contains("all memory is in small pages until the next start"), "{said}");
    rustix::thread::disable_transparent_huge_pages(true).expect("it was allowed");
    let (said, is_shown) = serve("--large-pages");
    rustix::thread::disable_transparent_huge_pages(false).expect("it was allowed");
    assert!(said.contains("WARN large pages: ") && !is_shown, "{said}");
}

/// Serves an image, and answers its path, too.
fn serve_image(directory: &tempfile::TempDir, options: &str) -> (Served, std::path::PathBuf) {
    let image = directory.path().join("disk.img");
    let lun = format!("'{}{options}'", image.display());
    let mut served = Served::shell(&format!("--json --portal 127.0.0.1:0 --lun {lun}"));
    served.stdout.read_line(&mut String::new()).expect("readable");
    (served, image)
}

#[test]
fn an_image_that_is_removed_is_told_and_can_be_copied_and_the_end_is_not_clean() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut served, image) = serve_image(&directory, ",size=1M");
    std::fs::remove_file(&image).expect("it is there");
    served.wait_until_said("disk.img was removed; the file that is served, with all that was written");
    served.wait_until_said(" PATH");
    let (_, place) = served.said.rsplit_once("xattr /proc/").expect("where it is");
    let (place, _) = place.split_once(" PATH").expect("where it is");
    let saved = std::fs::read(format!("/proc/{place}")).expect("it is still open");
    assert_eq!(saved.len(), 1 << 20);
    served.signal(Signal::TERM);
    let (status, said) = served.end();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("error: the end was not clean: volume ") && !said.contains("is stable"), "{said}");
    assert_eq!(said.matches("before you end the target").count(), 1, "{said}");
}

#[test]
fn an_image_that_is_replaced_is_told_until_it_is_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut served, image) = serve_image(&directory, ",size=1M");
    let aside = directory.path().join("aside.img");
    std::fs::rename(&image, &aside).expect("it is there");
    std::fs::write(&image, "another").expect("written");
    served.wait_until_said("disk.img is another file now; the file that is served has another name");
    std::fs::rename(&aside, &image).expect("it is there");
    served.wait_until_said("disk.img leads to the file that is served again");
    std::fs::rename(&image, &aside).expect("it is there");
    std::fs::write(&image, "another").expect("written");
    // Whether it was looked at meanwhile or not, the end looks.
    served.signal(Signal::TERM);
    let (status, said) = served.end();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("not clean: volume ") && said.contains("another file now"), "{said}");
}

#[test]
fn an_image_that_is_only_read_may_be_replaced() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("disk.img"), [0; 4096]).expect("written");
    let (mut served, image) = serve_image(&directory, ",ro");
    let newer = directory.path().join("newer.img");
    std::fs::write(&newer, [1; 4096]).expect("written");
    std::fs::rename(&newer, &image).expect("it is there");
    served.wait_until_said("the next start serves what is at the path then");
    served.signal(Signal::TERM);
    let (status, said) = served.end();
    assert!(status.success(), "{said}");
}

/// Many systems still start programs with a soft limit of 1024, and each image takes a descriptor.
#[test]
fn images_have_all_descriptors_that_there_may_be() {
    let directory = tempfile::tempdir().expect("a directory");
    let lun = |number| format!("--lun '{}/{number}.img,size=1M,engine=threads'", directory.path().display());
    let luns: Vec<String> = (0..40).map(lun).collect();
    let arguments = format!("--json --log off --portal 127.0.0.1:0 {}", luns.join(" "));
    let mut served = Served::shell_after("ulimit -Sn 40;", &arguments);
    served.lines_up_to("{");
    served.signal(Signal::TERM);
    assert!(served.end().0.success());
    let (status, said) = Served::shell_after("ulimit -n 40;", &arguments).end();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("help: ") && said.contains("LimitNOFILE") && said.contains("ulimit -Hn"), "{said}");
}

#[test]
fn a_state_that_was_left_beside_its_image_is_not_dropped() {
    let directory = tempfile::tempdir().expect("a directory");
    let states = directory.path().join("states");
    let arguments = format!(
        "--json --portal 127.0.0.1:0 --state-directory '{}' --lun '{}/disk.img,size=1M'",
        states.display(),
        directory.path().display()
    );
    let beside = directory.path().join("disk.img.lunette-state");
    std::fs::write(&beside, "whatever it keeps").expect("written");
    let (status, said) = Served::shell(&arguments).end();
    assert_eq!(status.code(), Some(1), "{said}");
    let (_, advice) = said.split_once("its reservations, is in ").expect("the reason");
    assert!(advice.starts_with(&format!("{}, and not in the state directory", beside.display())), "{said}");
    let in_directory = format!("move it to {}/naa.3", states.display());
    assert!(advice.contains(&in_directory) && advice.contains("or remove it to go on without it"), "{said}");
    std::fs::remove_file(&beside).expect("it is there");
    let mut served = Served::shell(&arguments);
    served.lines_up_to("{");
    served.signal(Signal::TERM);
    assert!(served.end().0.success());
}

/// Root may write everywhere, unless that is taken away.
#[test]
fn a_state_directory_that_cannot_be_written_stops_the_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let states = directory.path().join("states");
    std::fs::create_dir(&states).expect("made");
    let is_root = rustix::process::geteuid().is_root();
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o555);
    std::fs::set_permissions(&states, closed).expect("permitted");
    let mut command = if is_root {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-dac_override,-dac_read_search", env!("CARGO_BIN_EXE_lunette")]);
        command
    } else {
        Command::new(env!("CARGO_BIN_EXE_lunette"))
    };
    let output = command
        .args(["serve", "--portal", "127.0.0.1:0", "--lun", "mem:1M", "--state-directory"])
        .arg(&states)
        .output()
        .expect("a process");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let expected = format!("error: state_directory {}: Permission denied", states.display());
    assert!(said.contains(&expected), "{said}");
}

#[test]
fn one_serial_number_twice_is_not_called_a_copy() {
    let (status, said) =
        Served::shell("--portal 127.0.0.1:0 --lun mem:1M,serial=S --lun mem:1M,serial=S").end();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("LUN 1 both have serial=S") && !said.contains("setfattr"), "{said}");
}

#[test]
fn a_file_is_told_what_to_write_in_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("disks.toml");
    let text = "portals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"iqn.2026-11.io.lunette:a\"\n\
                [[target.lun]]\nnumber = 7\nstore = \"disk.img\"\n";
    std::fs::write(&path, text).expect("written");
    let (status, said) = Served::shell(&format!("--config '{}'", path.display())).end();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("error: iqn.2026-11.io.lunette:a LUN 7: "), "{said}");
    assert!(
        said.contains("help: in its [[target.lun]]: size = \"10G\"") && !said.contains(",size"),
        "{said}"
    );
}

#[test]
fn overlapping_portals_are_a_mistake_of_the_command_line() {
    let (status, said) = Served::shell("--portal 127.0.0.1:3299 --portal 0.0.0.0:3299 --lun mem:1M").end();
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains("overlap"), "{said}");
}

#[test]
fn a_size_that_the_next_start_refuses_is_told_when_the_image_grows() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut served, image) = serve_image(&directory, ",size=1M");
    let length = |bytes| {
        std::fs::OpenOptions::new()
            .write(true)
            .open(&image)
            .and_then(|file| file.set_len(bytes))
            .expect("set");
    };
    length(3 << 20);
    served.wait_until_said(
        "size=1M is no longer the image's: the next start refuses it; set size=3M or leave it out",
    );
    length(1 << 20);
    served.wait_until_said("the volume was cut");
    served.signal(Signal::TERM);
    let (status, said) = served.end();
    assert!(status.success(), "{said}");
    assert_eq!(said.matches("the next start refuses it").count(), 1, "{said}");
}
