//! Commands whose data stops coming for longer than a target lets an initiator be silent: their sessions stay, and so does what was
//! written.

use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::Duration;

use lunette_block::OperationKind;
use lunette_tests::commands::good;
use lunette_tests::engine::pattern;
use lunette_tests::in_process::{InProcess, wait_until};
use lunette_tests::lunette::{Lunette, binary};

const BYTES: usize = 1 << 20;
const LENGTH: &str = "1M";

/// A target pings after a second of silence, and ends the session when another one has gone by, and a tick of its clock.
const PAUSE: Duration = Duration::from_secs(5);

fn impatient() -> InProcess {
    InProcess::start_with(&["mem:64M,write=back"], |config| {
        config.limits.nop_interval_s = 1;
        config.limits.nop_timeout_s = 1;
    })
}

fn url(target: &InProcess) -> String {
    format!("iscsi://{}/{}/0", target.portal(), target.name())
}

/// `lunette write` from a pipe.
fn writing(url: &str, more: &[&str]) -> (Child, ChildStdin) {
    let mut command = Command::new(binary());
    command.args(["write", url, "--input", "-", "--length", LENGTH]).args(more);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    let pipe = child.stdin.take().expect("a pipe");
    (child, pipe)
}

fn takes_what_comes_like(feed: impl FnOnce(&mut ChildStdin, &[u8])) {
    let target = impatient();
    let (url, data) = (url(&target), pattern(3, BYTES));
    let (child, mut pipe) = writing(&url, &[]);
    feed(&mut pipe, &data);
    drop(pipe);
    let output = child.wait_with_output().expect("an end");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let directory = tempfile::tempdir().expect("a directory");
    let back = directory.path().join("back").display().to_string();
    good(&["read", &url, "--length", LENGTH, "--output", &back]);
    assert!(std::fs::read(&back).expect("a file") == data);
}

#[test]
fn a_pipe_may_bring_nothing_for_long() {
    takes_what_comes_like(|pipe, data| {
        let (first, rest) = data.split_at(BYTES / 2 + 7);
        pipe.write_all(first).expect("it reads");
        thread::sleep(PAUSE);
        pipe.write_all(rest).expect("it reads on");
    });
}

#[test]
fn a_pipe_may_bring_little_at_a_time() {
    const PIECES: usize = 50;
    takes_what_comes_like(|pipe, data| {
        for piece in data.chunks(BYTES.div_ceil(PIECES)) {
            pipe.write_all(piece).expect("it reads");
            thread::sleep(PAUSE / PIECES as u32);
        }
    });
}

/// Nobody has to send more only to hear that it cannot be written.
#[test]
fn a_target_that_is_gone_for_good_is_told_before_more_comes() {
    let target = Lunette::serve().luns(["0=mem:4M"]).start().expect("a target");
    let (mut child, mut pipe) = writing(&target.url(0), &["--recovery", "1"]);
    pipe.write_all(&[7; 4096]).expect("it reads");
    // It may not have logged in before.
    thread::sleep(Duration::from_secs(3));
    target.kill().expect("an end");
    wait_until("the command ends", || child.try_wait().expect("a child").is_some());
    let output = child.wait_with_output().expect("an end");
    let said = String::from_utf8_lossy(&output.stderr);
    let is_told = said.contains("the session was lost") && said.contains("error: ");
    assert!(output.status.code() == Some(3) && is_told, "{output:?}");
    drop(pipe);
}

#[test]
fn the_destination_of_a_copy_waits_for_a_source_that_has_stopped() {
    let (source, destination) = (impatient(), impatient());
    let (from, to) = (url(&source), url(&destination));
    good(&["write", &from, "--pattern", "address"]);
    let mut copy = Command::new(binary());
    copy.args(["copy", &from, &to, "--depth", "1"]).stdin(Stdio::null());
    let calls = source.faults(0).calls(OperationKind::Read);
    let copying = copy.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    // Some of it has been written by then.
    source.wait_for_calls(0, OperationKind::Read, calls + 4);
    source.hold(0, OperationKind::Read);
    let held = source.faults(0).calls(OperationKind::Read);
    source.wait_for_calls(0, OperationKind::Read, held + 1);
    let written = destination.faults(0).calls(OperationKind::Write);
    assert!(written > 0, "nothing is there that could be lost");
    thread::sleep(PAUSE);
    source.faults(0).clear();
    let output = copying.wait_with_output().expect("an end");
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("lost") && !said.contains("again"), "{from} to {to}: {said}");
}
