//! Hostile input: what a peer can send before and after its login to break, exhaust or confuse the target.
//!
//! Each test keeps a well-behaved session busy meanwhile and demands that it was served all along, that memory stays
//! within a stated bound, and that each offence is one log line with the peer's address and the reason.

mod before_login;
mod full_feature;
mod memory;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lunette_tests::connection::Connection;
use lunette_tests::initiator::{Command, Initiator, LoginOptions, cdb};
use lunette_tests::lunette::Lunette;

/// What a command of the well-behaved session may take while others misbehave. Generous: tests share the machine.
const SERVICE_LIMIT: Duration = Duration::from_secs(25);

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
