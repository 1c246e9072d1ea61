//! What a peer can send before its login: nonsense, too much, too little, and nothing at all (RFC 7143, 4.2.4, 6.1, 6.3, 7.7, 7.12,
//! 7.13).

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use lunette_tests::connection::Connection;
use lunette_tests::initiator::{Initiator, LoginOptions};
use lunette_tests::lunette::{Lunette, TARGET_NAME};
use lunette_tests::skip;
use lunette_wire::initiator::{LoginRequest, LoginStage, ScsiCommand, TextRequest};
use lunette_wire::{BHS_LENGTH, InitiatorPdu, InitiatorTaskTag, Isid, TargetPdu, TargetTransferTag, text};

use crate::{Bystander, CLOSE_LIMIT, STRANGERS_BYTES_MAX, expect_dropped};

fn login_request(transit: bool, is_continued: bool) -> InitiatorPdu {
    InitiatorPdu::LoginRequest(LoginRequest {
        transit,
        is_continued,
        current_stage: LoginStage::Security,
        next_stage: LoginStage::Operational,
        isid: Isid([0x80, 0, 0, 0, 0, 9]),
        ..LoginRequest::default()
    })
}

fn login_text(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    pairs.iter().for_each(|(key, value)| text::push(&mut bytes, key, value));
    bytes
}

/// The first PDU is a Login Request (4.2.4, 7.13); format errors (7.7); keys that must be there, and none twice (6.1, 6.3).
#[test]
fn nonsense_before_login_is_dropped_and_named() {
    let target = Lunette::serve().luns(["0=mem:64M"]).start().expect("a target");
    let bystander = Bystander::start(&target);
    let mut header = login_request(true, false).encode(0);
    header[5..8].fill(0xff);
    let mut additional = login_request(true, false).encode(0);
    additional[4] = 0xff;
    let command = ScsiCommand { read: true, expected_data_transfer_length: 512, ..ScsiCommand::default() };
    let named = login_text(&[("InitiatorName", "iqn.2026-11.io.lunette:h"), ("SessionType", "Discovery")]);
    let with = |text: &[u8]| [&login_request(true, false).encode(text.len())[..], text, &[0; 3][..]].concat();
    let offences: Vec<(&str, Vec<u8>, &str)> = vec![
        ("a data segment of 16 MiB", header.to_vec(), "format error"),
        ("1020 bytes of additional headers", additional.to_vec(), "format error"),
        ("a command", command.encode(0).to_vec(), "before login"),
        ("all ones", vec![0xff; 4 * BHS_LENGTH], "before login"),
        (
            "another protocol",
            b"GET / HTTP/1.1\r\nHost: a-long-enough-name.example\r\n\r\n".to_vec(),
            "before login",
        ),
        (
            "noise",
            (0..4096_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect(),
            "before login",
        ),
        ("no name", with(&login_text(&[("SessionType", "Normal")])), "login failed"),
        ("no pair", with(b"InitiatorName"), "login failed"),
        ("a key twice", with(&[&named[..], &named[..]].concat()), "login failed"),
        ("no text", with(&[0xfe; 300]), "login failed"),
        (
            "a reserved stage",
            {
                let mut bytes = with(&named);
                bytes[1] = 0x8a;
                bytes
            },
            "CSG",
        ),
    ];
    for (what, bytes, reason) in offences {
        let mut offender = Connection::open(target.portal()).expect("a connection");
        // The target may have closed while more was on its way; that is its right.
        let _ = offender.send_bytes(&bytes);
        eprintln!("{what}");
        expect_dropped(&target, offender, reason);
    }
    bystander.finish();
    target.stop().expect("a clean end");
}

/// RFC 7143: 4.2.4.
#[test]
fn what_is_no_login_in_the_middle_of_one_is_refused() {
    let target = Lunette::serve().luns(["0=mem:64M"]).start().expect("a target");
    let bystander = Bystander::start(&target);
    let named = login_text(&[("InitiatorName", "iqn.2026-11.io.lunette:h"), ("SessionType", "Discovery")]);
    let command = ScsiCommand { write: true, expected_data_transfer_length: 512, ..ScsiCommand::default() };
    // All data there is, a part of it, and lengths that no login may have.
    for (announced, sent) in [(512, 512), (512, 100), (0x00ff_ffff, 0)] {
        let mut offender = Connection::open(target.portal()).expect("a connection");
        offender.send(&login_request(false, false), &named).expect("a first request");
        let (TargetPdu::LoginResponse(first), _) = offender.receive().expect("an answer") else {
            panic!("no Login Response")
        };
        assert_eq!(first.status_class, 0);
        let mut bytes = command.encode(0).to_vec();
        bytes[5..8].copy_from_slice(&u32::to_be_bytes(announced)[1..]);
        bytes.resize(BHS_LENGTH + sent, 0);
        offender.send_bytes(&bytes).expect("a command");
        let (TargetPdu::LoginResponse(last), _) = offender.receive().expect("an answer") else {
            panic!("no Login Response")
        };
        // "Invalid during login" (RFC 7143, 4.2.4, 11.13.5).
        assert_eq!((last.status_class, last.status_detail), (0x02, 0x0b), "{sent} of {announced} bytes");
        assert_eq!(last.numbers.stat_sn, first.numbers.stat_sn.next());
        expect_dropped(&target, offender, "status 020b: a PDU with opcode 0x01");
    }
    bystander.finish();
    target.stop().expect("a clean end");
}

/// Text in several requests (6.1, 11.12.2), within bounds.
#[test]
fn endless_text_ends() {
    let target = Lunette::serve().luns(["0=mem:64M"]).start().expect("a target");
    let bystander = Bystander::start(&target);
    let before = target.resident_bytes().expect("a number");
    // The C bit for ever, with the longest segments that a login may have.
    let mut offender = Connection::open(target.portal()).expect("a connection");
    let segment = vec![b'a'; 8192];
    let sent = (0..10_000)
        .take_while(|_| {
            offender.send(&login_request(false, true), &segment).is_ok() && offender.receive().is_ok()
        })
        .count();
    assert!(sent < 100, "{sent} segments were taken");
    expect_dropped(&target, offender, "login failed");
    // A login that goes on for ever with little.
    let mut offender = Connection::open(target.portal()).expect("a connection");
    let name = login_text(&[("InitiatorName", "iqn.2026-11.io.lunette:h"), ("SessionType", "Discovery")]);
    offender.send(&login_request(false, false), &name).expect("a first request");
    let mut requests = 0;
    while requests < 10_000 && offender.receive().is_ok() {
        if offender.send(&login_request(false, false), &[]).is_err() {
            break;
        }
        requests += 1;
    }
    assert!(requests < 1000, "{requests} requests were taken");
    expect_dropped(&target, offender, "login failed");
    // And in full feature phase: text requests that are continued and continued.
    let mut initiator = Initiator::login(target.portal(), &LoginOptions::default()).expect("a login");
    let request = TextRequest {
        immediate: true,
        is_continued: true,
        initiator_task_tag: InitiatorTaskTag(1),
        target_transfer_tag: TargetTransferTag::RESERVED,
        cmd_sn: initiator.cmd_sn(),
        ..TextRequest::default()
    };
    let (mut taken, mut transfer_tag) = (0, TargetTransferTag::RESERVED);
    while taken < 10_000 {
        let request = TextRequest { target_transfer_tag: transfer_tag, ..request };
        initiator.connection().send(&InitiatorPdu::TextRequest(request), &segment).expect("a text request");
        match initiator.connection().receive().expect("an answer") {
            (TargetPdu::TextResponse(response), _) => transfer_tag = response.target_transfer_tag,
            (TargetPdu::Reject(_), _) => break,
            (other, _) => panic!("{other:?}"),
        }
        taken += 1;
    }
    assert!(taken < 100, "{taken} requests were taken");
    initiator.logout().expect("a session that goes on");
    let grown = target.resident_bytes().expect("a number").saturating_sub(before);
    assert!(grown < STRANGERS_BYTES_MAX, "{grown} bytes more");
    bystander.finish();
    target.stop().expect("a clean end");
}

/// A login may time out (8.1.2, T7).
#[test]
fn half_pdus_that_stop_time_out() {
    const DRIP_LIMIT: Duration = Duration::from_secs(30);
    let target = Lunette::serve().configuration("[limits]\nlogin_timeout_s = 5\n").start().expect("a target");
    let bystander = Bystander::start(&target);
    let whole = Connection::open(target.portal()).expect("a connection").encode(
        &login_request(true, false),
        &login_text(&[("InitiatorName", "iqn.2026-11.io.lunette:h"), ("SessionType", "Discovery")]),
    );
    let offenders: Vec<Connection> = [0, 1, 47, 48, whole.len() - 1]
        .into_iter()
        .map(|length| {
            let mut offender = Connection::open(target.portal()).expect("a connection");
            offender.send_bytes(&whole[..length]).expect("a beginning");
            offender
        })
        .collect();
    // A byte now and then does not extend the time.
    let mut dripping = Connection::open(target.portal()).expect("a connection");
    let start = Instant::now();
    for byte in whole.iter().cycle() {
        if start.elapsed() > DRIP_LIMIT || dripping.send_bytes(&[*byte]).is_err() {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    assert!(start.elapsed() < DRIP_LIMIT, "a slow sender is kept for ever");
    for offender in offenders.into_iter().chain([dripping]) {
        expect_dropped(&target, offender, "no login within 5 s");
    }
    bystander.finish();
    target.stop().expect("a clean end");
}

#[test]
fn thousands_of_half_open_connections_cost_little() {
    const STRANGERS: usize = 3000;
    if !can_open(STRANGERS) {
        skip!("the hard limit on open files is below {STRANGERS} and some");
    }
    let target = Lunette::serve()
        .configuration("[limits]\nlogin_timeout_s = 60\nhalf_open_max = 256\n")
        .start()
        .expect("a target");
    let bystander = Bystander::start(&target);
    let before = target.resident_bytes().expect("a number");
    let mut strangers = Vec::new();
    let mut most = 0;
    for count in 0..STRANGERS {
        let mut stranger = Connection::open(target.portal()).expect("a connection");
        // Half of a header, so that there is something to keep.
        let _ = stranger.send_bytes(&login_request(true, false).encode(100)[..40]);
        strangers.push(stranger);
        if count % 500 == 0 {
            most = most.max(target.resident_bytes().expect("a number"));
            // One that means it still gets in.
            let options = LoginOptions { isid_qualifier: 2, ..LoginOptions::default() };
            let mut guest = Initiator::login(target.portal(), &options).expect("a login in the crowd");
            guest.ping(b"here").expect("an answer");
            guest.logout().expect("a logout");
        }
    }
    most = most.max(target.resident_bytes().expect("a number"));
    let grown = most.saturating_sub(before);
    assert!(grown < STRANGERS_BYTES_MAX, "{STRANGERS} strangers cost {grown} bytes");
    // Those beyond the limit were dropped, and the log says so of each.
    let dropped = || target.log().lines().filter(|line| line.contains("connections without a login")).count();
    let start = Instant::now();
    while dropped() < STRANGERS - 256 && start.elapsed() < CLOSE_LIMIT {
        thread::sleep(Duration::from_millis(50));
    }
    assert!(dropped() >= STRANGERS - 256, "{} were dropped", dropped());
    expect_dropped(&target, strangers.swap_remove(0), "connections without a login");
    drop(strangers);
    bystander.finish();
    target.stop().expect("a clean end");
}

#[test]
fn a_peer_cannot_write_into_the_log() {
    let target = Lunette::serve().luns(["0=mem:64M"]).start().expect("a target");
    for value in [
        "iqn.2026-11.io.lunette:h\nERROR all is lost",
        "iqn.2026-11.io.lunette:h\x1b[2J",
        "\u{202e}evil",
        "iqn.2026-11.io.lunette:go\u{200b}od",
        "iqn.2026-11.io.lunette:\u{2066}h\u{2069}",
    ] {
        let mut offender = Connection::open(target.portal()).expect("a connection");
        let keys = [("InitiatorName", value), ("TargetName", TARGET_NAME), ("X-\u{1b}[31m", "v")];
        offender.send(&login_request(true, false), &login_text(&keys)).expect("sent");
        expect_dropped(&target, offender, "login failed");
    }
    // A name that is only strange logs in, and stays one word of one line.
    let initiator_name = format!("iqn.2026-11.io.lunette:\"target={TARGET_NAME}\\n\u{5d0}");
    let options = LoginOptions { initiator_name: initiator_name.clone(), ..LoginOptions::default() };
    let guest = Initiator::login(target.portal(), &options).expect("a login");
    let word = format!(" initiator={initiator_name} ");
    let found = target.wait_for_log(CLOSE_LIMIT, |line| line.contains("logged in") && line.contains(&word));
    assert!(found.is_some(), "{}", target.log());
    guest.logout().expect("a logout");
    let log = target.log();
    let is_raw = |c: char| matches!(c, '\u{1b}' | '\u{200b}' | '\u{202e}' | '\u{2066}' | '\u{2069}');
    assert!(!log.contains(is_raw), "{log:?}");
    assert!(!log.lines().any(|line| line.starts_with("ERROR all")), "{log}");
    target.stop().expect("a clean end");
}

/// Raises this process's soft limit on descriptors to the hard one; true if `wanted` connections are possible then.
fn can_open(wanted: usize) -> bool {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .expect("the soft limit can be raised to the hard one");
    // Other tests of this process have connections and files, too.
    limit.maximum.is_none_or(|maximum| maximum >= wanted as u64 + 500)
}

#[test]
fn connecting_and_leaving_is_no_offence() {
    let target = Lunette::serve().luns(["0=mem:64M"]).start().expect("a target");
    for _ in 0..200 {
        drop(TcpStream::connect(target.portal()).expect("a connection"));
    }
    let mut initiator = Initiator::login(target.portal(), &LoginOptions::default()).expect("a login");
    initiator.ping(b"here").expect("an answer");
    initiator.logout().expect("a logout");
    assert!(!target.log().contains("WARN"), "{}", target.log());
    target.stop().expect("a clean end");
}
