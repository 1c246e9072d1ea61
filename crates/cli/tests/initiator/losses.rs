//! Sessions that are lost in the middle of a command.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::host::{Served, TARGET, good, path, run};

/// What happens to the target when a relay has sent enough to it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is killed and started again, and tells so.
    Restart,
    /// Nothing, but the connection breaks, and all that is told is the loss of a nexus. The restart of a target that tells no resets
    /// looks the same.
    Silence,
}

/// A relay to a target that meets its fate once so many bytes have been sent to it.
struct Faltering {
    portal: String,
    served: Arc<Mutex<Served>>,
}

impl Faltering {
    fn start(unit: &str, after_bytes: usize, fate: Fate) -> Faltering {
        Self::start_again(unit, after_bytes, fate, 1)
    }

    /// It meets its fate so many times, each time after so many bytes.
    fn start_again(unit: &str, after_bytes: usize, fate: Fate, mut times: u32) -> Faltering {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let portal = listener.local_addr().expect("an address").to_string();
        let served = Arc::new(Mutex::new(Served::start(&[unit], &[])));
        let (shared, unit, mut left) = (Arc::clone(&served), unit.to_owned(), Some(after_bytes));
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let target = shared.lock().expect("no panic").portal().to_owned();
                let far = TcpStream::connect(target).expect("a target");
                let back = [far.try_clone(), near.try_clone()].map(|end| end.expect("a descriptor"));
                let [from, to] = back;
                let answers = std::thread::spawn(move || {
                    carry(from, to, &mut None, |answer| {
                        if fate == Fate::Silence {
                            hush(answer);
                        }
                    });
                });
                carry(near, far, &mut left, |_| {});
                let _ = answers.join();
                if left == Some(0) {
                    times -= 1;
                    left = (times > 0).then_some(after_bytes);
                    if fate == Fate::Silence {
                        continue;
                    }
                    let mut served = shared.lock().expect("no panic");
                    served.kill();
                    *served = Served::start(&[&unit], &[]);
                }
            }
        });
        Faltering { portal, served }
    }

    fn url(&self) -> String {
        format!("iscsi://{}/{TARGET}/0", self.portal)
    }

    /// Past the relay.
    fn straight(&self) -> String {
        self.served.lock().expect("no panic").url(0)
    }
}

impl Drop for Faltering {
    /// The relay's thread outlives the test, and must not keep the target.
    fn drop(&mut self) {
        self.served.lock().expect("no panic").kill();
    }
}

/// Makes POWER ON, RESET, OR BUS DEVICE RESET OCCURRED (29h/00h) to I_T NEXUS LOSS OCCURRED (29h/07h).
fn hush(answer: &mut [u8]) {
    const RESET: [u8; 14] = [0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 0];
    let found = answer.windows(RESET.len()).position(|bytes| bytes == RESET);
    if let Some(at) = found {
        answer[at + RESET.len() - 1] = 7;
    }
}

/// Carries until one end is closed, or so many bytes have gone.
fn carry(mut from: TcpStream, mut to: TcpStream, left: &mut Option<usize>, change: impl Fn(&mut [u8])) {
    let mut bytes = vec![0; 65536];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        change(&mut bytes[..read]);
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
        if let Some(left) = left {
            *left = left.saturating_sub(read);
            if *left == 0 {
                break;
            }
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

fn image(directory: &tempfile::TempDir, name: &str) -> std::path::PathBuf {
    let image = directory.path().join(name);
    std::fs::File::create(&image).expect("a file").set_len(16 << 20).expect("room");
    image
}

/// The flush at the end would promise what the target may have lost.
#[test]
fn a_copy_copies_again_what_a_restart_may_have_lost() {
    let directory = tempfile::tempdir().expect("a directory");
    let (disk, source) = (image(&directory, "disk"), directory.path().join("source"));
    std::fs::write(&source, vec![0x5a; 16 << 20]).expect("written");
    let target = Faltering::start(&format!("0={},write=back", path(&disk)), 4 << 20, Fate::Restart);
    let said = run(&["copy", path(&source), &target.url(), "--quiet"]);
    assert_eq!(said.status, Some(0), "{said:?}");
    assert!(said.err.contains("the session was lost") && said.err.contains("copying the last"), "{said:?}");
    good(&["verify", &target.straight(), "--pattern", "hex:5a"]);
}

/// Without a cache nothing can be lost: every write that was answered is there.
#[test]
fn a_write_goes_on_after_a_restart() {
    let directory = tempfile::tempdir().expect("a directory");
    let disk = image(&directory, "disk");
    let target = Faltering::start(&format!("0={}", path(&disk)), 4 << 20, Fate::Restart);
    let said = run(&["write", &target.url(), "--pattern", "address"]);
    assert_eq!(said.status, Some(0), "{said:?}");
    assert!(said.err.contains("the session was lost") && said.err.contains("logged in again"), "{said:?}");
    good(&["verify", &target.straight(), "--pattern", "address"]);
}

/// What it has answered between two restarts is there, too: it has no cache afterwards, either.
#[test]
fn a_write_goes_on_after_two_restarts() {
    let directory = tempfile::tempdir().expect("a directory");
    let disk = image(&directory, "disk");
    let target = Faltering::start_again(&format!("0={}", path(&disk)), 4 << 20, Fate::Restart, 2);
    let said = run(&["write", &target.url(), "--pattern", "address"]);
    assert_eq!(said.status, Some(0), "{said:?}");
    assert_eq!(said.err.matches("logged in again").count(), 2, "{said:?}");
    good(&["verify", &target.straight(), "--pattern", "address"]);
}

/// It may have been a restart, and the target's cache may be empty.
#[test]
fn what_a_target_with_a_cache_may_have_lost_without_a_word_is_not_called_stable() {
    let directory = tempfile::tempdir().expect("a directory");
    let (disk, source) = (image(&directory, "disk"), directory.path().join("source"));
    std::fs::write(&source, vec![0x5a; 16 << 20]).expect("written");
    let start = || Faltering::start(&format!("0={},write=back", path(&disk)), 4 << 20, Fate::Silence);
    let target = start();
    let said = run(&["copy", path(&source), &target.url(), "--quiet"]);
    assert_eq!(said.status, Some(0), "{said:?}");
    assert!(said.err.contains("logged in again") && said.err.contains("copying the last"), "{said:?}");
    good(&["verify", &target.straight(), "--pattern", "hex:5a"]);
    drop(target);
    let said = run(&["write", &start().url(), "--pattern", "address"]);
    assert_eq!(said.status, Some(3), "{said:?}");
    assert!(said.err.contains("a target with a write cache may have lost"), "{said:?}");
    let target = start();
    let said = run(&["erase", &target.url(), "--yes"]);
    assert_eq!(said.status, Some(0), "{said:?}");
    good(&["verify", &target.straight(), "--pattern", "zeros"]);
}

/// Without a cache the connection may break as often as it likes.
#[test]
fn a_copy_to_a_disk_without_a_cache_goes_on_where_it_was() {
    let directory = tempfile::tempdir().expect("a directory");
    let (disk, source) = (image(&directory, "disk"), directory.path().join("source"));
    std::fs::write(&source, vec![0x5a; 16 << 20]).expect("written");
    let target = Faltering::start(&format!("0={}", path(&disk)), 4 << 20, Fate::Silence);
    let said = run(&["copy", path(&source), &target.url(), "--quiet"]);
    assert_eq!(said.status, Some(0), "{said:?}");
    assert!(said.err.contains("logged in again") && !said.err.contains("copying the last"), "{said:?}");
    good(&["verify", &target.straight(), "--pattern", "hex:5a"]);
}

/// A relay that loses each connection that carries a SYNCHRONIZE CACHE, and the command with it.
fn without_flushes(served: &Served) -> String {
    const SCSI_COMMAND: u8 = 0x01;
    const SYNCHRONIZE_CACHE_10: u8 = 0x35;
    let is_flush =
        |header: &[u8]| header[0] & 0x3f == SCSI_COMMAND && header.get(32) == Some(&SYNCHRONIZE_CACHE_10);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let portal = listener.local_addr().expect("an address").to_string();
    let target = served.portal().to_owned();
    std::thread::spawn(move || {
        for mut near in listener.incoming().map_while(Result::ok) {
            let Ok(mut far) = TcpStream::connect(&target) else { return };
            let [from, to] = [far.try_clone(), near.try_clone()].map(|end| end.expect("a descriptor"));
            let answers = std::thread::spawn(move || carry(from, to, &mut None, |_| {}));
            let mut bytes = vec![0; 65536];
            while let Ok(read @ 1..) = near.read(&mut bytes) {
                // What goes to the target behind the login here has no data.
                if bytes[..read].chunks(48).any(is_flush) || far.write_all(&bytes[..read]).is_err() {
                    break;
                }
            }
            for end in [&near, &far] {
                let _ = end.shutdown(Shutdown::Both);
            }
            let _ = answers.join();
        }
    });
    format!("iscsi://{portal}/{TARGET}/0")
}

/// What comes after each login is answered, but for the flush, and nothing can be lost with it.
#[test]
fn a_session_that_is_lost_at_each_flush_is_given_up() {
    let served = Served::start(&["mem:1M"], &[]);
    let said = run(&["write", &without_flushes(&served), "--input", "/dev/null"]);
    assert_eq!(said.status, Some(3), "{said:?}");
    assert!(said.err.contains("the session is lost each time before a command is answered"), "{said:?}");
    assert_eq!(said.err.matches("logged in again").count(), 8, "{said:?}");
}

/// What was sent last to a target: a relay of one connection.
fn last_opcode(served: &Served, run: impl FnOnce(&str)) -> u8 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let portal = listener.local_addr().expect("an address").to_string();
    let target = served.portal().to_owned();
    let relay = std::thread::spawn(move || {
        let (mut near, _) = listener.accept().expect("a connection");
        let far = TcpStream::connect(target).expect("a target");
        let [from, to] = [far.try_clone(), near.try_clone()].map(|end| end.expect("a descriptor"));
        let answers = std::thread::spawn(move || carry(from, to, &mut None, |_| {}));
        let (mut sent, mut bytes, mut far) = (Vec::new(), vec![0; 65536], far);
        while let Ok(read @ 1..) = near.read(&mut bytes) {
            sent.extend_from_slice(&bytes[..read]);
            far.write_all(&bytes[..read]).expect("a target");
        }
        let _ = far.shutdown(Shutdown::Both);
        answers.join().expect("it ends");
        // A Logout Request has no data: it is a header alone.
        sent[sent.len() - 48] & 0x3f
    });
    run(&format!("iscsi://{portal}/{TARGET}/0"));
    relay.join().expect("a connection")
}

#[test]
fn a_command_that_fails_logs_out() {
    const LOGOUT_REQUEST: u8 = 0x06;
    let served = Served::start(&["mem:1M"], &[]);
    let opcode = last_opcode(&served, |url| {
        crate::host::refused(6, &["verify", url, "--pattern", "ones"]);
    });
    assert_eq!(opcode, LOGOUT_REQUEST);
}
