//! A relay that understands as much of iSCSI as it needs to: it kills the target when a command of data comes, has another one in
//! its place, or spoils data on its way. For sessions of one connection without a header digest.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use lunette_wire::BHS_LENGTH;
use rustix::process::{Pid, Signal, kill_process};

const SCSI_COMMAND: u8 = 0x01;
const LOGIN_REQUEST: u8 = 0x03;
const LOGIN_RESPONSE: u8 = 0x23;
const DATA_IN: u8 = 0x25;
/// READ, WRITE, VERIFY, WRITE AND VERIFY, WRITE SAME and UNMAP, in the forms that are used.
const DATA_COMMANDS: [u8; 14] =
    [0x28, 0x2a, 0x2e, 0x2f, 0x41, 0x42, 0x88, 0x8a, 0x8e, 0x8f, 0x93, 0xa8, 0xaa, 0xaf];
/// Data-In that is shorter than this is no disk's content, in bytes.
const CONTENT_BYTES_MIN: usize = 4096;

/// A target to stand before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watched {
    pub(crate) portal: SocketAddr,
    pub(crate) pid: u32,
}

/// A running relay; its thread ends with the test.
pub(crate) struct Watch {
    pub(crate) address: SocketAddr,
    has_killed: Arc<AtomicBool>,
}

/// What is done to a target.
#[derive(Clone)]
struct Plan {
    target: Watched,
    /// Killed when this many commands of data have come; that one does not reach it. 0: never.
    kill_at: u32,
    /// Who is there afterwards.
    next: Option<Watched>,
    /// Sessions have a data digest.
    has_digest: bool,
    /// How many Data-In are spoilt.
    spoils: Arc<AtomicU32>,
    has_killed: Arc<AtomicBool>,
}

impl Watch {
    /// Only carries.
    pub(crate) fn only(target: Watched) -> Watch {
        Self::start(target, 0, None, None)
    }

    /// Kills the target.
    pub(crate) fn kill(target: Watched, at: u32) -> Watch {
        Self::start(target, at, None, None)
    }

    /// Kills it, and leads to another one from then on.
    pub(crate) fn replace(target: Watched, at: u32, next: Watched) -> Watch {
        Self::start(target, at, Some(next), None)
    }

    /// Changes a byte in each of so many Data-In with a disk's content, of sessions with a data digest.
    pub(crate) fn spoil(target: Watched, count: u32) -> Watch {
        Self::start(target, 0, None, Some(count))
    }

    /// True once the target was killed.
    pub(crate) fn has_killed(&self) -> bool {
        self.has_killed.load(Ordering::SeqCst)
    }

    fn start(target: Watched, kill_at: u32, next: Option<Watched>, spoils: Option<u32>) -> Watch {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let has_killed = Arc::new(AtomicBool::new(false));
        let has_digest = spoils.is_some();
        let spoils = Arc::new(AtomicU32::new(spoils.unwrap_or(0)));
        let plan = Plan { target, kill_at, next, has_digest, spoils, has_killed: Arc::clone(&has_killed) };
        std::thread::spawn(move || plan.serve(&listener));
        Watch { address, has_killed }
    }
}

impl Plan {
    fn serve(mut self, listener: &TcpListener) {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = TcpStream::connect(self.target.portal) else { continue };
            let [near_too, far_too] = [&near, &far].map(|end| end.try_clone().expect("a descriptor"));
            let (spoils, has_digest) = (Arc::clone(&self.spoils), self.has_digest);
            let back = std::thread::spawn(move || {
                carry(far_too, near_too, has_digest, |pdu| {
                    spoil(pdu, &spoils);
                    true
                });
            });
            let mut commands = 0;
            carry(near, far, has_digest, |pdu| {
                let is_data = pdu[0] & 0x3f == SCSI_COMMAND && DATA_COMMANDS.contains(&pdu[32]);
                commands += u32::from(is_data);
                self.kill_at == 0 || commands < self.kill_at || !is_data || !self.kill()
            });
            let _ = back.join();
        }
    }

    /// True if there was somebody to kill.
    fn kill(&mut self) -> bool {
        if self.has_killed.swap(true, Ordering::SeqCst) {
            return false;
        }
        let pid = Pid::from_raw(self.target.pid.cast_signed()).expect("a process");
        kill_process(pid, Signal::KILL).expect("it is there");
        self.target = self.next.unwrap_or(self.target);
        true
    }
}

/// Changes the first byte of a disk's content, where one is to be changed.
fn spoil(pdu: &mut [u8], left: &AtomicU32) {
    let is_content = pdu[0] & 0x3f == DATA_IN && pdu.len() >= BHS_LENGTH + CONTENT_BYTES_MIN;
    let take = |left: u32| left.checked_sub(1);
    if is_content && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
        pdu[BHS_LENGTH] ^= 1;
    }
}

/// Carries PDU by PDU, for as long as each may go on.
fn carry(mut from: TcpStream, mut to: TcpStream, has_digest: bool, mut look: impl FnMut(&mut [u8]) -> bool) {
    while let Some(mut pdu) = receive(&mut from, has_digest) {
        if !look(&mut pdu) || to.write_all(&pdu).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// Header, additional header segments, and data with padding and digest; a login has none.
fn receive(from: &mut TcpStream, has_digest: bool) -> Option<Vec<u8>> {
    let mut pdu = vec![0; BHS_LENGTH];
    from.read_exact(&mut pdu).ok()?;
    let data = usize::from(pdu[5]) << 16 | usize::from(pdu[6]) << 8 | usize::from(pdu[7]);
    let is_login = matches!(pdu[0] & 0x3f, LOGIN_REQUEST | LOGIN_RESPONSE);
    let digest = if has_digest && !is_login && data > 0 { 4 } else { 0 };
    let rest = usize::from(pdu[4]) * 4 + data.next_multiple_of(4) + digest;
    pdu.resize(BHS_LENGTH + rest, 0);
    from.read_exact(&mut pdu[BHS_LENGTH..]).ok()?;
    Some(pdu)
}
