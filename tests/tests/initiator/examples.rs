//! The examples of `lunette-initiator`, as they stand, against our own target.

use std::io::Write;
use std::os::unix::net::UnixStream;

use lunette_initiator::TargetUrl;
use lunette_initiator::multipath::{Options, PathOptions};
use lunette_tests::in_process::InProcess;

#[path = "../../../crates/initiator/examples/asynchronous.rs"]
#[allow(dead_code, reason = "main is for who starts the example")]
mod asynchronous;
#[path = "../../../crates/initiator/examples/blocking.rs"]
#[allow(dead_code, reason = "main is for who starts the example")]
mod blocking;
#[path = "../../../crates/initiator/examples/event_loop.rs"]
#[allow(dead_code, reason = "main is for who starts the example")]
mod event_loop;
#[path = "../../../crates/initiator/examples/multipath.rs"]
#[allow(dead_code, reason = "main is for who starts the example")]
mod multipath;

fn url(target: &InProcess) -> TargetUrl {
    format!("iscsi://{}/{}/0", target.portal(), target.name()).parse().expect("a good URL")
}

fn text(out: Vec<u8>) -> String {
    String::from_utf8(out).expect("text")
}

#[test]
fn blocking() {
    let target = InProcess::start(&["mem:16M,block=4096"]);
    let said = |lba, text: Option<&str>| {
        let mut out = Vec::new();
        let ended = blocking::run(&url(&target), lba, text, &mut out).map_err(|error| error.to_string());
        (ended, String::from_utf8(out).expect("text"))
    };
    let (ended, out) = said(7, Some("a text of ours"));
    assert_eq!(ended, Ok(()));
    assert!(
        out.starts_with("4096 blocks of 4096 bytes\nblock 7 holds \"a text of ours\"\nsent after Some("),
        "{out}"
    );
    // It is on the disk, and nowhere else.
    assert!(said(7, None).1.contains("holds \"a text of ours\""));
    assert!(said(6, None).1.contains("holds \"\""));
    let (ended, _) = said(4096, None);
    assert!(ended.is_err_and(|error| error.starts_with("CHECK CONDITION: ILLEGAL REQUEST: ")));
}

#[test]
fn asynchronous() {
    let target = InProcess::start(&["mem:16M"]);
    let mut out = Vec::new();
    asynchronous::block_on(asynchronous::run(&url(&target), &mut out)).expect("it ends well");
    let out = text(out);
    assert!(out.starts_with("2097152 bytes by 32 reads\nthe slowest took "), "{out}");
}

#[test]
fn event_loop() {
    let target = InProcess::start(&["mem:16M"]);
    blocking::run(&url(&target), 5, Some("fifth"), &mut Vec::new()).expect("a block is written");
    let (mut input, mut here) = UnixStream::pair().expect("a pair of sockets");
    let url = url(&target);
    let run = std::thread::spawn(move || {
        let mut out = Vec::new();
        event_loop::run(&url, &mut input, &mut out).map(|()| out).map_err(|error| error.to_string())
    });
    // A line in two parts, and two lines in one.
    for part in [&b"5"[..], b"\n4\n99999", b"999\n"] {
        here.write_all(part).expect("it reads");
    }
    drop(here);
    let out = text(run.join().expect("it does not panic").expect("it ends well"));
    let mut lines: Vec<_> = out.lines().collect();
    lines.sort_unstable();
    let zeros = "00, ".repeat(10);
    let [four, five, far] = &lines[..] else { panic!("{out}") };
    assert!(four.starts_with(&format!("4: [{zeros}")), "{four}");
    assert!(five.starts_with("5: [66, 69, 66, 74, 68, 00, "), "{five}");
    assert!(
        far.starts_with("99999999: CHECK CONDITION: ILLEGAL REQUEST: LOGICAL BLOCK ADDRESS OUT OF RANGE"),
        "{far}"
    );
}

#[test]
fn multipath() {
    let target = InProcess::start_with(&["mem:64M"], |config| {
        config.portals.push("127.0.0.1:0".parse().expect("an address"));
    });
    let url = url(&target);
    let options = Options::discover(PathOptions::new(url.options(), url.lun)).expect("two portals");
    assert_eq!(options.paths.len(), 2);
    let mut out = Vec::new();
    multipath::run(&url, options, &mut out).expect("it ends well");
    let out = text(out);
    assert!(out.contains("67108864 bytes; no read was sent more than 1 times"), "{out}");
    assert!(target.portals().iter().all(|portal| out.contains(&format!("{portal}"))), "{out}");
}
