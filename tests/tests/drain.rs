//! How the target ends: SIGTERM drains, a second signal ends at once, and status 0 means that all that was acknowledged
//! is stable (RFC 7143, 7.5.2, 11.9.1).

use std::net::TcpStream;
use std::time::{Duration, Instant};

use lunette_tests::initiator::{Command, Initiator, LoginOptions, cdb};
use lunette_tests::lunette::{Lunette, STOP_LIMIT};

/// AsyncEvent 1: the target asks for a logout (RFC 7143, 11.9.1).
const LOGOUT_REQUEST: u8 = 1;

/// "At once": well before a drain gives up waiting.
const AT_ONCE: Duration = Duration::from_secs(15);

/// A target that also has these units, and drains for longer than anything here takes.
fn patient(units: &str) -> Lunette {
    let configuration = format!("{units}[limits]\ndrain_timeout_s = 30\n");
    Lunette::serve().configuration(&configuration).start().expect("a target")
}

fn login(target: &Lunette) -> Initiator {
    let mut initiator = Initiator::login(target.portal(), &LoginOptions::default()).expect("a login");
    initiator.make_ready(0).expect("a ready unit");
    initiator
}

fn write(lun: u8, lba: u64, byte: u8) -> Command {
    Command { lun, cdb: cdb::write(lba, 8), data_out: vec![byte; 4096], ..Command::default() }
}

#[test]
fn without_sessions_it_ends_at_once() {
    let target = patient("");
    let portal = target.portal();
    let start = Instant::now();
    target.stop().expect("status 0");
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    assert!(TcpStream::connect(portal).is_err(), "the port is free again");
}

#[test]
fn an_initiator_is_asked_to_log_out_and_is_waited_for() {
    let mut target = patient("");
    let mut initiator = login(&target);
    target.terminate().expect("a signal");
    while initiator.events.is_empty() {
        initiator.take_in_one().expect("an asynchronous message");
    }
    assert_eq!(initiator.events[0].event, LOGOUT_REQUEST);
    assert!(initiator.events[0].parameters[2] > 0, "Parameter3 says how many seconds there are");
    // New initiators stay out; the old one is still served.
    assert!(Initiator::login(target.portal(), &LoginOptions::default()).is_err(), "a new login was taken");
    initiator.ping(b"one last").expect("an answer");
    assert!(target.is_running().expect("a state"), "it waits for the initiator");
    initiator.logout().expect("a logout");
    let status = target.wait(AT_ONCE).expect("a state").expect("an end after the last logout");
    assert!(status.success(), "{status}: {}", target.log());
}

#[test]
fn an_initiator_that_stays_is_dropped_in_the_end() {
    let mut target =
        Lunette::serve().configuration("[limits]\ndrain_timeout_s = 2\n").start().expect("a target");
    let initiator = login(&target);
    let start = Instant::now();
    target.terminate().expect("a signal");
    let status = target.wait(STOP_LIMIT).expect("a state").expect("an end although nobody logs out");
    assert!(status.success(), "{status}: {}", target.log());
    let elapsed = start.elapsed();
    assert!((Duration::from_secs(1)..Duration::from_secs(20)).contains(&elapsed), "{elapsed:?}");
    drop(initiator);
}

#[test]
fn running_commands_end_and_what_was_acknowledged_is_there() {
    const WRITES: u64 = 64;
    for mode in ["through", "back"] {
        let directory = tempfile::tempdir().expect("a directory");
        let image = directory.path().join("disk.img");
        let store = image.display();
        let mut target = patient(&format!(
            "[[target.lun]]\nnumber = 1\nstore = \"file:{store}\"\nsize = \"8M\"\nwrite = \"{mode}\"\n"
        ));
        let mut initiator = login(&target);
        initiator.make_ready(1).expect("a ready unit");
        let tags: Vec<_> = (0..WRITES)
            .map(|index| initiator.submit(write(1, index * 8, 1 + index as u8)).expect("sent"))
            .collect();
        target.terminate().expect("a signal");
        let mut acknowledged = Vec::new();
        while acknowledged.len() < tags.len() {
            let Ok(completion) = initiator.wait() else { break };
            assert_eq!(completion.status, 0, "{completion:?}");
            acknowledged.push(tags.iter().position(|tag| *tag == completion.tag).expect("one of ours"));
        }
        assert_eq!(acknowledged.len(), tags.len(), "running commands end before the connection does");
        initiator.logout().expect("a logout");
        let status = target.wait(STOP_LIMIT).expect("a state").expect("an end");
        assert!(status.success(), "{status}: {}", target.log());
        let bytes = std::fs::read(&image).expect("the image");
        for index in acknowledged {
            assert!(
                bytes[index * 4096..][..4096].iter().all(|byte| *byte == 1 + index as u8),
                "write {index}"
            );
        }
    }
}

#[test]
fn a_second_signal_ends_it_at_once_and_not_with_status_0() {
    let mut target = patient("");
    let mut initiator = login(&target);
    target.terminate().expect("a signal");
    while initiator.events.is_empty() {
        initiator.take_in_one().expect("an asynchronous message");
    }
    let start = Instant::now();
    target.terminate().expect("a second signal");
    let status = target.wait(STOP_LIMIT).expect("a state").expect("an end");
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    assert!(!status.success(), "status 0 promises more than a forced end can keep");
}
