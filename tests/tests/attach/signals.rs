//! What signals do to `lunette attach`: before the disk is there, when its terminal is closed, and where that is not to matter.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lunette_tests::attach::Attached;
use lunette_tests::lunette::{Lunette, binary};
use rustix::process::{Pid, Signal, kill_process};

use super::{pattern, serve};

/// Far less than the login may take, and than a lost session is waited for.
const SOON: Duration = Duration::from_secs(10);
/// Long enough for a signal to be heeded.
const A_WHILE: Duration = Duration::from_millis(300);

/// Whoever runs these tests may be told to outlive a terminal (nohup), which all that he starts inherits.
fn heeding_its_terminal() -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(binary());
    command
}

#[test]
fn a_signal_before_the_disk_is_there_ends_it_at_once() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let portal = silent.local_addr().expect("an address");
    let url = format!("iscsi://{portal}/iqn.2026-11.io.lunette:disk/0");
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut command = heeding_its_terminal();
        command.args(["attach", &url, "--nbd", "127.0.0.1:0"]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        // It logs in, and nobody answers.
        let _connection = silent.accept().expect("a connection");
        let since = Instant::now();
        kill_process(Pid::from_child(&child), signal).expect("it is there");
        let ended = child.wait().expect("its end");
        assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
        let mut said = String::new();
        child.stderr.take().expect("its words").read_to_string(&mut said).expect("words");
        assert_eq!(ended.code(), Some(status), "{said}");
        assert!(said.contains("before the disk was there"), "{said}");
    }
}

/// The kernel and the shell may both send it.
#[test]
fn a_terminal_that_is_closed_detaches_however_often_it_says_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let target = serve(&image, ",write=back").start().expect("a target");
    let mut command = heeding_its_terminal();
    command.args(["attach", &target.url(0), "--json", "--nbd", "127.0.0.1:0"]);
    let attached = Attached::of(command).expect("attached");
    let mut client = attached.client().expect("a client");
    let data = pattern(1, 1 << 20);
    assert_eq!(client.write(0, &data).expect("an answer"), 0);
    for _ in 0..3 {
        // It may have ended.
        let _ = attached.signal(Signal::HUP);
        thread::sleep(Duration::from_millis(1));
    }
    attached.end().expect("all is stable");
    assert!(std::fs::read(&image).expect("the image")[..1 << 20] == data);
    target.stop().expect("a clean end");
}

#[test]
fn what_was_started_to_outlive_its_terminal_does() {
    let target = Lunette::serve().luns(["0=mem:1M"]).start().expect("a target");
    let mut command = Command::new("sh");
    let program = binary().to_str().expect("a path in UTF-8");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh", program, "attach", &target.url(0), "--json"]);
    command.args(["--nbd", "127.0.0.1:0"]);
    let attached = Attached::of(command).expect("attached");
    attached.signal(Signal::HUP).expect("it is there");
    thread::sleep(A_WHILE);
    assert_eq!(attached.client().expect("a client").write(0, &[7; 512]).expect("an answer"), 0);
    attached.detach().expect("all is stable");
    target.stop().expect("a clean end");
}
