//! Hostile input: what a peer can send before and after its login to break, exhaust or confuse the target.
//!
//! Each test keeps a well-behaved session busy meanwhile and demands that it was served all along, that memory stays
//! within a stated bound, and that each offence is one log line with the peer's address and the reason.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lunette_tests::connection::Connection;
use lunette_tests::initiator::{Command, Initiator, LoginOptions, cdb};
use lunette_tests::lunette::{Lunette, TARGET_NAME};
use lunette_wire::frame::Digests;
use lunette_wire::initiator::{LoginRequest, LoginStage, NopOut, ScsiCommand, ScsiDataOut, TextRequest};
use lunette_wire::{BHS_LENGTH, InitiatorPdu, InitiatorTaskTag, Isid, TargetPdu, TargetTransferTag, text};

/// What a command of the well-behaved session may take while others misbehave. Generous: tests share the machine.
const SERVICE_LIMIT: Duration = Duration::from_secs(5);

/// How soon an offender's connection must be closed.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// How much memory strangers may make the target use, beyond what it used before.
const STRANGERS_BYTES_MAX: u64 = 48 << 20;

/// A session that reads and writes until it is told to stop.
struct Bystander {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(u64, Duration)>,
}

impl Bystander {
    fn start(target: &Lunette) -> Self {
        let options = LoginOptions { isid_qualifier: 0xb0, ..LoginOptions::default() };
        let mut initiator = Initiator::login(target.portal(), &options).expect("a login");
        initiator.make_ready(0).expect("a ready unit");
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let (mut rounds, mut longest) = (0_u64, Duration::ZERO);
            // At least one round, however short the test.
            while rounds == 0 || !told.load(Ordering::Relaxed) {
                let start = Instant::now();
                let lba = rounds % 1000 * 8;
                let data = vec![rounds as u8; 4096];
                let write = Command { cdb: cdb::write(lba, 8), data_out: data.clone(), ..Command::default() };
                initiator.execute_good(write).expect("a write");
                let read = Command { cdb: cdb::read(lba, 8), data_in_bytes: 4096, ..Command::default() };
                assert!(initiator.execute_good(read).expect("a read") == data, "other data was read");
                longest = longest.max(start.elapsed());
                rounds += 1;
                thread::sleep(Duration::from_millis(1));
            }
            initiator.logout().expect("a logout");
            (rounds, longest)
        });
        Self { stop, thread }
    }

    /// Ends the session; it must have been served all the time.
    fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        let (rounds, longest) = self.thread.join().expect("the well-behaved session was served");
        assert!(longest < SERVICE_LIMIT, "{rounds} rounds, the longest {longest:?}");
    }
}

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

/// Log lines that name the peer.
fn lines_about(target: &Lunette, peer: SocketAddr) -> Vec<String> {
    let peer = peer.to_string();
    let log = target.log();
    // Otherwise a port could be found as the beginning of a longer one.
    let names = |line: &&str| {
        line.match_indices(&peer)
            .any(|(at, _)| !line[at + peer.len()..].starts_with(|next: char| next.is_ascii_digit()))
    };
    log.lines().filter(names).map(str::to_owned).collect()
}

/// The offender's connection is closed, and exactly one line of the log gives `reason` for it.
fn expect_dropped(target: &Lunette, mut offender: Connection, reason: &str) {
    let peer = offender.local_address().expect("an address");
    offender.drain(CLOSE_LIMIT).unwrap_or_else(|error| panic!("{reason}: {error:#}"));
    let about = peer.to_string();
    let found = target.wait_for_log(CLOSE_LIMIT, |line| line.contains(&about) && line.contains(reason));
    assert!(found.is_some(), "no line with {about} and {reason:?} in\n{}", target.log());
    let warnings: Vec<String> = lines_about(target, peer)
        .into_iter()
        .filter(|line| line.contains("WARN") || line.contains("ERROR"))
        .collect();
    assert_eq!(warnings.len(), 1, "one line an offence: {warnings:#?}");
}

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

#[test]
fn half_pdus_that_stop_time_out() {
    let target = Lunette::serve().configuration("[limits]\nlogin_timeout_s = 2\n").start().expect("a target");
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
        if start.elapsed() > Duration::from_secs(8) || dripping.send_bytes(&[*byte]).is_err() {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    assert!(start.elapsed() < Duration::from_secs(8), "a slow sender is kept for ever");
    for offender in offenders {
        expect_dropped(&target, offender, "no login within 2 s");
    }
    bystander.finish();
    target.stop().expect("a clean end");
}

#[test]
fn thousands_of_half_open_connections_cost_little() {
    const STRANGERS: usize = 3000;
    let target = Lunette::serve()
        .configuration("[limits]\nlogin_timeout_s = 60\nhalf_open_max = 256\n")
        .start()
        .expect("a target");
    raise_descriptor_limit();
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
fn wrong_digests_are_found() {
    let target = Lunette::serve().luns(["0=mem:64M"]).start().expect("a target");
    let bystander = Bystander::start(&target);
    let digests = Digests { header: true, data: true };
    let login = || {
        let mut initiator =
            Initiator::login(target.portal(), &LoginOptions { digests, ..LoginOptions::default() })
                .expect("a login");
        initiator.make_ready(0).expect("a ready unit");
        initiator
    };
    let nop = |initiator: &Initiator| {
        InitiatorPdu::NopOut(NopOut {
            immediate: true,
            initiator_task_tag: InitiatorTaskTag(77),
            target_transfer_tag: TargetTransferTag::RESERVED,
            cmd_sn: initiator.cmd_sn(),
            ..NopOut::default()
        })
    };
    // A wrong header digest: nobody knows where the next PDU starts, so the connection goes.
    let mut initiator = login();
    let pdu = nop(&initiator);
    let mut bytes = initiator.connection().encode(&pdu, b"data");
    bytes[BHS_LENGTH] ^= 1;
    initiator.connection().send_bytes(&bytes).expect("sent");
    expect_dropped(&target, initiator.into_connection(), "header digest error");

    // A wrong data digest: the PDU is rejected (RFC 7143, 7.8), the session goes on.
    let mut initiator = login();
    let pdu = nop(&initiator);
    let mut bytes = initiator.connection().encode(&pdu, b"data");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    initiator.connection().send_bytes(&bytes).expect("sent");
    match initiator.connection().receive().expect("an answer") {
        (TargetPdu::Reject(reject), header) => {
            assert_eq!(reject.reason, 0x02, "reason Data-Digest Error");
            assert_eq!(header[..BHS_LENGTH], bytes[..BHS_LENGTH], "the rejected header comes back");
        }
        (other, _) => panic!("{other:?}"),
    }
    initiator.ping(b"still here").expect("the session goes on");

    // A write whose immediate data are damaged must not be carried out.
    let zeroes = Command { cdb: cdb::read(100, 1), data_in_bytes: 512, ..Command::default() };
    let before = initiator.execute_good(zeroes.clone()).expect("a read");
    let command = ScsiCommand {
        is_final: true,
        write: true,
        initiator_task_tag: InitiatorTaskTag(78),
        expected_data_transfer_length: 512,
        cmd_sn: initiator.cmd_sn(),
        cdb: cdb::write(100, 1),
        ..ScsiCommand::default()
    };
    let mut bytes = initiator.connection().encode(&InitiatorPdu::ScsiCommand(command), &[0xa5; 512]);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    initiator.connection().send_bytes(&bytes).expect("sent");
    drop(initiator);
    let mut initiator = login();
    assert_eq!(initiator.execute_good(zeroes).expect("a read"), before, "damaged data was written");
    initiator.logout().expect("a logout");
    bystander.finish();
    target.stop().expect("a clean end");
}

#[test]
fn nonsense_in_full_feature_phase_harms_only_its_sender() {
    let target = Lunette::serve().luns(["0=mem:64M"]).start().expect("a target");
    let bystander = Bystander::start(&target);
    let login = || {
        let mut initiator = Initiator::login(target.portal(), &LoginOptions::default()).expect("a login");
        initiator.make_ready(0).expect("a ready unit");
        initiator
    };
    // Longer than the declared MaxRecvDataSegmentLength.
    let mut initiator = login();
    let mut header =
        ScsiDataOut { initiator_task_tag: InitiatorTaskTag(1), ..ScsiDataOut::default() }.encode(0);
    header[5..8].fill(0xff);
    initiator.connection().send_bytes(&header).expect("sent");
    expect_dropped(&target, initiator.into_connection(), "format error");

    // An opcode that does not exist, one that only a target sends, a SNACK, a login: each is rejected.
    let mut initiator = login();
    for opcode in [0x1c, 0x21, 0x10, 0x43] {
        let mut header = [0; BHS_LENGTH];
        (header[0], header[1]) = (opcode, 0x80);
        initiator.connection().send_bytes(&header).expect("sent");
        match initiator.connection().receive().unwrap_or_else(|error| panic!("opcode {opcode:#x}: {error:#}"))
        {
            (TargetPdu::Reject(_), rejected) => assert_eq!(rejected[..BHS_LENGTH], header),
            (other, _) => panic!("opcode {opcode:#x}: {other:?}"),
        }
    }
    // Data-Out for nothing, and a command far outside the window, are ignored.
    let stray =
        ScsiDataOut { is_final: true, initiator_task_tag: InitiatorTaskTag(999), ..ScsiDataOut::default() };
    initiator.connection().send(&InitiatorPdu::ScsiDataOut(stray), &[1; 512]).expect("sent");
    let far = ScsiCommand {
        is_final: true,
        initiator_task_tag: InitiatorTaskTag(998),
        cmd_sn: initiator.cmd_sn().plus(100_000),
        ..ScsiCommand::default()
    };
    initiator.connection().send(&InitiatorPdu::ScsiCommand(far), &[]).expect("sent");
    initiator.ping(b"still here").expect("the session goes on");
    initiator.logout().expect("a logout");

    // Data that was never asked for, behind the end of the command's data: not beyond the buffer.
    let mut initiator = login();
    let command = ScsiCommand {
        is_final: true,
        write: true,
        initiator_task_tag: InitiatorTaskTag(5),
        expected_data_transfer_length: 1 << 20,
        cmd_sn: initiator.cmd_sn(),
        cdb: cdb::write(0, 2048),
        ..ScsiCommand::default()
    };
    initiator.connection().send(&InitiatorPdu::ScsiCommand(command), &[]).expect("sent");
    let (TargetPdu::ReadyToTransfer(r2t), _) = initiator.connection().receive().expect("an R2T") else {
        panic!("no R2T");
    };
    let beyond = ScsiDataOut {
        is_final: true,
        initiator_task_tag: r2t.initiator_task_tag,
        target_transfer_tag: r2t.target_transfer_tag,
        buffer_offset: u32::MAX - 100,
        ..ScsiDataOut::default()
    };
    initiator.connection().send(&InitiatorPdu::ScsiDataOut(beyond), &[1; 512]).expect("sent");
    drop(initiator);
    bystander.finish();
    target.stop().expect("a clean end");
}

/// Memory for command data is one pool: while some hold all of it, others are told to try again (TASK SET FULL), at once
/// and not for longer than the pool is used up.
#[test]
fn readers_that_take_nothing_are_bounded() {
    const READ_BLOCKS: u32 = 2048;
    const MEMORY_BYTES: u64 = 64 << 20;
    const GOOD: u8 = 0;
    const TASK_SET_FULL: u8 = 0x28;
    let configuration = format!("[limits]\nbuffer_memory_bytes = {MEMORY_BYTES}\n");
    let target = Lunette::serve().configuration(&configuration).start().expect("a target");
    let before = target.resident_bytes().expect("a number");
    let greedy: Vec<Initiator> = (1..=4)
        .map(|isid_qualifier| {
            let options = LoginOptions { isid_qualifier, ..LoginOptions::default() };
            let mut initiator = Initiator::login(target.portal(), &options).expect("a login");
            initiator.make_ready(0).expect("a ready unit");
            for _ in 0..100 {
                let read = Command {
                    cdb: cdb::read(0, READ_BLOCKS),
                    data_in_bytes: READ_BLOCKS * 512,
                    ..Command::default()
                };
                initiator.submit(read).expect("a place in the window");
            }
            initiator
        })
        .collect();
    let options = LoginOptions { isid_qualifier: 0xb0, ..LoginOptions::default() };
    let mut other = Initiator::login(target.portal(), &options).expect("a login");
    other.make_ready(0).expect("a ready unit");
    let read = Command { cdb: cdb::read(0, 8), data_in_bytes: 4096, ..Command::default() };
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        let asked = Instant::now();
        let status = other.execute(read.clone()).expect("an answer").status;
        assert!([GOOD, TASK_SET_FULL].contains(&status), "status {status:#x}");
        assert!(asked.elapsed() < SERVICE_LIMIT, "{:?}", asked.elapsed());
        thread::sleep(Duration::from_millis(10));
    }
    let grown = target.resident_bytes().expect("a number").saturating_sub(before);
    assert!(grown < MEMORY_BYTES + STRANGERS_BYTES_MAX, "{grown} bytes more");
    drop(greedy);
    let start = Instant::now();
    while other.execute(read.clone()).expect("an answer").status != GOOD {
        assert!(start.elapsed() < SERVICE_LIMIT, "memory does not come back");
        thread::sleep(Duration::from_millis(10));
    }
    other.logout().expect("a logout");
    target.stop().expect("a clean end");
}

#[test]
fn a_peer_cannot_write_into_the_log() {
    let target = Lunette::serve().luns(["0=mem:64M"]).start().expect("a target");
    for value in
        ["iqn.2026-11.io.lunette:h\nERROR all is lost", "iqn.2026-11.io.lunette:h\x1b[2J", "\u{202e}evil"]
    {
        let mut offender = Connection::open(target.portal()).expect("a connection");
        let keys = [("InitiatorName", value), ("TargetName", TARGET_NAME), ("X-\u{1b}[31m", "v")];
        offender.send(&login_request(true, false), &login_text(&keys)).expect("sent");
        expect_dropped(&target, offender, "login failed");
    }
    let log = target.log();
    assert!(!log.contains('\u{1b}') && !log.contains('\u{202e}'), "{log:?}");
    assert!(!log.lines().any(|line| line.starts_with("ERROR all")), "{log}");
    target.stop().expect("a clean end");
}

/// The test's own end of thousands of connections.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .expect("the soft limit can be raised to the hard one");
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
