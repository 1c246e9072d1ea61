//! The load generator against the yardstick and against the target itself: counts, checks and messages, no speeds.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use lunette_tests::lunette::{Lunette, binary};
use serde_json::Value;

const BENCH: &str = env!("CARGO_BIN_EXE_lunette-bench");

/// A running `lunette-bench floor`, or another yardstick; killed when dropped.
struct Floor {
    child: Child,
    portal: String,
    url: String,
}

impl Floor {
    fn start(arguments: &[&str]) -> Self {
        Self::serving(&[&["floor"], arguments].concat())
    }

    fn serving(arguments: &[&str]) -> Self {
        let mut child =
            Command::new(BENCH).args(arguments).stdout(Stdio::piped()).spawn().expect("the yardstick starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("its standard output");
        BufReader::new(stdout).read_line(&mut line).expect("its first line");
        let ready: Value = serde_json::from_str(&line).expect("JSON");
        let portal = ready["portal"].as_str().expect("a portal");
        Self {
            child,
            portal: portal.to_owned(),
            url: format!("iscsi://{portal}/iqn.2026-11.io.lunette:floor/0"),
        }
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        // It may have ended already; either way nothing is left afterwards.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn load(url: &str, arguments: &[&str]) -> Output {
    Command::new(BENCH).arg("load").arg(url).args(arguments).output().expect("the generator runs")
}

/// Runs the generator, which must succeed, and answers the object that it prints.
fn report(url: &str, arguments: &[&str]) -> Value {
    let output = load(url, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// Runs the generator, which must fail, and answers what it says.
fn fault(url: &str, arguments: &[&str]) -> String {
    let output = load(url, arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    assert!(output.stdout.is_empty(), "nothing is reported after a fault");
    String::from_utf8(output.stderr).expect("text")
}

/// Every path through the generator: immediate data, unsolicited data and R2T, reads whole and in pieces, barriers.
const WORKLOADS: &[&[&str]] = &[
    &["--count", "1"],
    &["--count", "1000", "--depth", "32"],
    &["--count", "1000", "--depth", "32", "--read-percent", "0"],
    &["--count", "100", "--depth", "8", "--block-bytes", "524288", "--order", "sequential"],
    &["--count", "100", "--depth", "8", "--block-bytes", "524288", "--read-percent", "0"],
    &["--count", "20", "--depth", "2", "--block-bytes", "4194304", "--read-percent", "50"],
    &["--count", "500", "--depth", "16", "--block-bytes", "512:1,8192:2,65536:1", "--read-percent", "50"],
    &["--count", "501", "--depth", "4", "--sessions", "5", "--threads", "2", "--read-percent", "50"],
    &["--count", "200", "--depth", "8", "--burst", "--read-percent", "50", "--wait", "adaptive"],
];

fn passes_all_workloads(url: &str) {
    for workload in WORKLOADS {
        let report = report(url, workload);
        let count: u64 = workload[1].parse().expect("a count");
        assert_eq!(report["operations"], count, "{workload:?}");
        assert_eq!(report["busy"], 0, "{workload:?}");
        assert_eq!(report["logouts_unanswered"], 0, "{workload:?}");
        for number in ["seconds", "operations_per_s", "bytes_per_s", "processor_s"] {
            assert!(report[number].as_f64() > Some(0.0), "{number}: {report}");
        }
        assert!(report["latency_us"]["max"].as_f64() >= report["latency_us"]["median"].as_f64());
        assert!(report["first_block_us"]["median"].as_f64() >= report["login_us"]["median"].as_f64());
        assert!(report["window"]["max"].as_u64() > Some(1), "{report}");
    }
}

fn image(directory: &Path) -> String {
    let path = directory.join("disk.img");
    std::fs::write(&path, vec![0x5a; 16 << 20]).expect("an image");
    path.into_os_string().into_string().expect("text")
}

#[test]
fn the_yardstick_serves_memory_and_files() {
    let directory = tempfile::tempdir().unwrap();
    let image = image(directory.path());
    let stores: [&[&str]; 4] =
        [&["mem:16M"], &[&image], &[&image, "--sendfile"], &["mem:16M", "--wait", "adaptive"]];
    for store in stores {
        passes_all_workloads(&Floor::start(store).url);
    }
}

#[test]
fn the_yardstick_keeps_what_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let image = image(directory.path());
    let floor = Floor::start(&[&image]);
    let whole = ["--count", "16", "--block-bytes", "1048576", "--order", "sequential", "--read-percent", "0"];
    report(&floor.url, &whole);
    let disk = std::fs::read(&image).unwrap();
    // Every transfer carries the same megabyte, whichever way its parts went.
    assert!(disk.chunks(1 << 20).all(|chunk| chunk == &disk[..1 << 20]));
    assert!(disk.iter().any(|&byte| byte != 0x5a) && disk.iter().any(|&byte| byte != 0));
}

#[test]
fn the_target_passes_what_the_generator_checks() {
    let lunette = Lunette::command(binary()).luns(["0=mem:16M"]).start().unwrap();
    let url = lunette.url(0);
    passes_all_workloads(&url);
    for digests in ["header", "data", "both"] {
        for size in ["512", "4096", "524288"] {
            let mut arguments = vec!["--count", "60", "--depth", "4", "--read-percent", "50"];
            arguments.extend(["--block-bytes", size, "--digests", digests]);
            assert_eq!(report(&url, &arguments)["operations"], 60);
        }
    }
    let flushed =
        report(&url, &["--count", "100", "--depth", "8", "--read-percent", "0", "--flush-every", "10"]);
    assert_eq!((flushed["operations"].as_u64(), flushed["flushes"].as_u64()), (Some(100), Some(9)));
    let timed = report(&url, &["--seconds", "2", "--warmup-s", "0.05", "--depth", "4"]);
    assert_eq!(timed["seconds"], 2.0);
    lunette.stop().unwrap();
}

#[test]
fn what_is_not_good_is_an_error() {
    let lunette = Lunette::command(binary()).luns(["0=mem:16M", "1=mem:16M,ro"]).start().unwrap();
    let no_unit = fault(&lunette.url(7), &["--count", "1"]);
    assert!(no_unit.contains("status 0x02"), "{no_unit}");
    let protected = fault(&lunette.url(1), &["--count", "1", "--read-percent", "0"]);
    assert!(protected.contains("status 0x02"), "{protected}");
    let beyond = fault(&lunette.url(0), &["--count", "1", "--span-bytes", "33554432"]);
    assert!(beyond.contains("span"), "{beyond}");
    let no_target = fault(&lunette.url(0).replace("lunette:", "nobody:"), &["--count", "1"]);
    assert!(no_target.contains("login refused: status 02"), "{no_target}");
    let nine_connections = fault(&lunette.url(0), &["--count", "1", "--connections", "9"]);
    assert!(nine_connections.contains("grants a session 8 connections"), "{nine_connections}");
    lunette.stop().unwrap();
    let floor = Floor::start(&["mem:1M"]);
    let no_digests = fault(&floor.url, &["--count", "1", "--digests", "both"]);
    assert!(no_digests.contains("agrees"), "{no_digests}");
}

/// Names and secret files for CHAP, as arguments of the target and of the generator.
struct Secrets(tempfile::TempDir);

impl Secrets {
    fn new() -> Self {
        let secrets = Self(tempfile::tempdir().expect("a directory"));
        for name in ["host", "disk", "other"] {
            let path = secrets.path(name);
            std::fs::write(&path, format!("the secret of {name}\n")).expect("a secret file");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("its mode");
        }
        secrets
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).into_os_string().into_string().expect("text")
    }

    fn one_way(&self, name: &str, secret: &str) -> [String; 4] {
        ["--chap-user", name, "--chap-secret-file", &self.path(secret)].map(str::to_owned)
    }

    fn mutual(&self, name: &str, secret: &str) -> [String; 4] {
        ["--chap-mutual", name, "--chap-mutual-secret-file", &self.path(secret)].map(str::to_owned)
    }
}

/// One session of two connections.
fn with<'a>(chap: &[&'a [String]]) -> Vec<&'a str> {
    let words = ["--count", "10", "--connections", "2"].into_iter();
    words.chain(chap.iter().copied().flatten().map(String::as_str)).collect()
}

#[test]
fn chap_lets_in_who_knows_the_secrets() {
    let secrets = Secrets::new();
    let flag = |name: &str| format!("{name}=file:{}", secrets.path(name));
    let lunette = Lunette::command(binary())
        .luns(["0=mem:16M"])
        .args(["--chap-user", &flag("host"), "--chap-mutual", &flag("disk")])
        .start()
        .unwrap();
    let url = lunette.url(0);
    let (user, target) = (secrets.one_way("host", "host"), secrets.mutual("disk", "disk"));
    for chap in [&[&user[..]][..], &[&user, &target]] {
        let report = report(&url, &with(chap));
        assert_eq!(report["operations"], 10);
        assert!(report["first_block_us"]["median"].as_f64() >= report["login_us"]["median"].as_f64());
    }
    let refused = "login refused: status 0201";
    for (chap, wanted) in [
        (&[][..], refused),
        (&[&secrets.one_way("host", "other")[..]], refused),
        (&[&secrets.one_way("other", "host")], refused),
        (&[&user, &secrets.mutual("disk", "other")], "does not prove itself"),
        (&[&user, &secrets.mutual("other", "disk")], "calls itself \"disk\""),
        (&[&secrets.one_way("host", "nowhere")], "cannot read the secret file"),
    ] {
        let message = fault(&url, &with(chap));
        assert!(message.contains(wanted) && !message.contains("the secret of"), "{message}");
    }
    // Each name needs its secret, and a target that proves itself needs a user.
    for words in [&user[..2], &user[2..], &target] {
        assert_eq!(load(&url, &with(&[words])).status.code(), Some(2), "{words:?}");
    }
    lunette.stop().unwrap();
    // Who lets everybody in cannot be asked for CHAP.
    let floor = Floor::start(&["mem:1M"]);
    assert!(!load(&floor.url, &with(&[&user])).status.success());
}

#[test]
fn idle_sessions_stay_until_the_input_ends() {
    let lunette = Lunette::command(binary()).luns(["0=mem:1M"]).start().unwrap();
    let mut idle = Command::new(BENCH)
        .args(["idle", &lunette.url(0), "--sessions", "40"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(idle.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(ready["sessions"], 40);
    assert!(ready["login_us"]["max"].as_f64() >= ready["login_us"]["median"].as_f64());
    // Sessions of another process do not replace them.
    report(&lunette.url(0), &["--count", "10", "--sessions", "3"]);
    assert!(idle.try_wait().unwrap().is_none(), "it ended before its input");
    drop(idle.stdin.take());
    line.clear();
    output.read_to_string(&mut line).unwrap();
    assert_eq!(line, "");
    assert!(idle.wait().unwrap().success());
    lunette.stop().unwrap();
}

#[test]
fn a_file_is_read_by_sendfile_alone() {
    let directory = tempfile::tempdir().unwrap();
    let server = Floor::serving(&["stream", "serve", &image(directory.path())]);
    let output = Command::new(BENCH)
        .args(["stream", "read", &server.portal, "--depth", "8", "--seconds", "0.1"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["operations"].as_u64() >= Some(8), "{report}");
    assert!(report["bytes_per_s"].as_f64() > Some(0.0), "{report}");
}
