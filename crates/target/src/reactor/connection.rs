//! One TCP connection: its socket, its stage, its way in and its way out.

use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lunette_block::{BufferPool, SendError};
use lunette_iscsi::login::{Login, LoginOutcome};
use lunette_iscsi::session::{CloseReason, Payload};
use lunette_wire::frame::Digests;
use lunette_wire::{Bhs, Cid, FrameError};
use rustix::event::epoll;
use tracing::{debug, info, warn};

use super::company::{SendLimit, Sent};
use super::leaving::Reader;
use super::login::new_login;
use super::pace::Pace;
use super::receive::Receiver;
use super::strip::Strip;
use super::timing::TimedLogin;
use super::transmit::{Progress, Transmitter};
use crate::access::Caller;
use crate::server::Shared;

/// How long a connection that is being closed may take to accept what is still queued for it.
const CLOSING_PATIENCE: Duration = Duration::from_secs(5);

/// How long a connection stays after the last byte was sent, for the peer to close its side.
const LINGERING_PATIENCE: Duration = Duration::from_secs(1);

/// Names a connection of one reactor; a place is used again, a generation is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    pub(super) index: usize,
    pub(super) generation: u32,
}

impl Token {
    pub(super) const fn to_u64(self) -> u64 {
        (self.index as u64) << 32 | self.generation as u64
    }

    pub(super) const fn from_u64(token: u64) -> Self {
        Self { index: (token >> 32) as usize, generation: token as u32 }
    }
}

/// Where a connection stands (RFC 7143, 8.1: S4, S4 again while another session ends, S5 and S6).
pub(super) enum Stage {
    Login(Box<Login>),
    /// Agreed on everything; the session that has the same identity is being ended (6.3.5), or the connection that has the
    /// same CID (6.3.4).
    AwaitingReinstatement(Box<LoginOutcome>),
    FullFeature {
        session: usize,
        cid: Cid,
    },
    /// Nothing that comes counts any more; what is queued still goes out.
    Closing,
}

impl Stage {
    pub(super) const fn is_before_login(&self) -> bool {
        matches!(self, Self::Login(_) | Self::AwaitingReinstatement(_))
    }
}

/// Why a connection ends.
#[derive(Debug)]
pub(super) enum Disconnect {
    /// The peer closed it.
    Closed,
    /// The socket failed.
    Socket(io::Error),
    /// A store that had the data of an answer did not bring it.
    Store(io::Error),
    /// A PDU's lengths break a bound.
    Frame(FrameError),
    /// A header digest is wrong; where the next PDU starts is anybody's guess (RFC 7143, 7.8).
    HeaderDigest,
    /// What comes is not a login (RFC 7143, 6.3).
    NotALogin(u8),
    /// The login failed; the sentence says why.
    Login(String),
    LoginTimeout(Duration),
    HalfOpenLimit(usize),
    /// The session core gave it up.
    Session(CloseReason),
    /// Another login took the session's place, or the connection's.
    Reinstated,
    Reset,
    /// Another initiator has taken from it the right to read what it had not taken yet.
    Fenced,
    /// Its operator has changed who may do what.
    NotAdmitted,
    Draining,
}

impl fmt::Display for Disconnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => write!(f, "closed by the initiator"),
            Self::Socket(error) => write!(f, "connection failed: {error}"),
            Self::Store(error) => {
                write!(
                    f,
                    "the store failed while its data was being sent: {error}; the initiator must log in again"
                )
            }
            Self::Frame(error) => write!(f, "format error: {error}"),
            Self::HeaderDigest => write!(f, "header digest error"),
            Self::NotALogin(opcode) => write!(f, "opcode {opcode:#04x} before login"),
            Self::Login(reason) => write!(f, "login failed: {reason}"),
            Self::LoginTimeout(limit) => write!(f, "no login within {} s", limit.as_secs()),
            Self::HalfOpenLimit(limit) => write!(f, "oldest of {limit} connections without a login"),
            Self::Session(reason) => write!(f, "{reason}"),
            Self::Reinstated => write!(f, "the initiator logged in again"),
            Self::Reset => write!(f, "target cold reset"),
            Self::Fenced => write!(
                f,
                "another initiator took its reservation or preempted it while its reads were being sent"
            ),
            Self::NotAdmitted => write!(f, "the configuration does not let it in as before"),
            Self::Draining => write!(f, "shutting down"),
        }
    }
}

impl From<SendError> for Disconnect {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Socket(error) => Self::Socket(error),
            SendError::Store(error) => Self::Store(error),
        }
    }
}

impl Disconnect {
    /// Whether the initiator may go on with what the connection leaves, where that was agreed on: not after a format error
    /// (RFC 7143, 7.7), nor when a store has failed.
    pub(super) const fn is_recoverable(&self) -> bool {
        !matches!(self, Self::Frame(_) | Self::Store(_))
    }

    /// One line a connection; a warning when the peer did something wrong.
    pub(super) fn log(&self, connection: &Connection) {
        let peer = connection.peer;
        match self {
            Self::Closed if connection.stage.is_before_login() => {
                debug!(%peer, reason = %self, "connection ended before login");
            }
            // iscsiadm ends its discovery sessions so, and a host that restarts all of its.
            Self::Socket(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                info!(%peer, reason = %self, "connection ended");
            }
            Self::Closed
            | Self::Draining
            | Self::Reinstated
            | Self::Reset
            | Self::NotAdmitted
            | Self::Session(CloseReason::Logout) => info!(%peer, reason = %self, "connection ended"),
            _ => warn!(%peer, reason = %self, "connection dropped"),
        }
    }
}

/// How far the end of a connection has come.
enum Closing {
    /// Something may still have to go out.
    Sending(Disconnect),
    /// All is sent and our side is shut. Closing the socket with input unread would reset the connection, and a reset
    /// can destroy the last answer before the peer has read it: so input is thrown away until the peer has closed.
    Lingering,
}

/// See the module's documentation.
pub(super) struct Connection {
    pub(super) token: Token,
    pub(super) socket: TcpStream,
    pub(super) peer: SocketAddr,
    /// The portal's address as the initiator reached it.
    pub(super) local: SocketAddr,
    /// Its portal group.
    pub(super) group: u16,
    pub(super) stage: Stage,
    pub(super) receiver: Receiver,
    pub(super) transmitter: Transmitter,
    /// Why nothing more can be sent, until that is dealt with.
    send_failure: Option<SendError>,
    pub(super) digests: Digests,
    /// The longest data segment that is taken in full feature phase, in bytes: what was declared to the initiator.
    pub(super) segment_max: u32,
    closing: Option<Closing>,
    /// Whose answers it sends still, once it is closing.
    pub(super) reader: Option<Arc<Reader>>,
    closing_since: Option<Duration>,
    accepted_at: Duration,
    /// It has come from another reactor, and will not be sent on.
    pub(super) has_moved: bool,
    /// When bytes last came, or went on a way that was blocked before.
    active_at: Duration,
    /// What has ever come, in bytes.
    pub(super) received_bytes: u64,
    /// What its peer had taken by then of what it had kept waiting.
    drained_bytes: u64,
    /// Where data was asked for on it, and the way is long.
    pub(super) pace: Option<Box<Pace>>,
    /// It has reached full feature phase.
    pub(super) has_logged_in: bool,
    /// What the target took of its login, where that is recorded.
    pub(super) login_times: Option<TimedLogin>,
    interest: epoll::EventFlags,
    pub(super) is_dirty: bool,
    /// A command waits until its initiator has taken answers ([`super::backlog`]).
    pub(super) withholds: bool,
    sent: Sent,
}

impl Connection {
    pub(super) fn new(
        token: Token,
        socket: TcpStream,
        peer: SocketAddr,
        shared: &Shared,
        now: Duration,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        // Answers are gathered before they are sent, so Nagle's algorithm could only delay them.
        socket.set_nodelay(true)?;
        let local = socket.local_addr()?;
        let group = shared
            .portals
            .group_of(local)
            .ok_or_else(|| io::Error::other(format!("it came to {local}, which is none of the portals")))?;
        let segment_max = shared.segment_max.load(Ordering::Acquire);
        Ok(Self {
            token,
            socket,
            peer,
            local,
            group,
            stage: Stage::Login(Box::new(new_login(shared, group, segment_max)?)),
            receiver: Receiver::default(),
            transmitter: Transmitter::default(),
            send_failure: None,
            digests: Digests::default(),
            segment_max,
            closing: None,
            reader: None,
            closing_since: None,
            accepted_at: now,
            has_moved: false,
            active_at: now,
            received_bytes: 0,
            drained_bytes: 0,
            pace: None,
            has_logged_in: false,
            login_times: None,
            interest: epoll::EventFlags::IN,
            is_dirty: false,
            withholds: false,
            sent: Sent::default(),
        })
    }

    /// An initiator at the other end, as access rules see it.
    pub(super) const fn caller<'a>(&self, initiator: &'a str) -> Caller<'a> {
        Caller { initiator, address: self.peer.ip(), portal: self.local.ip(), group: self.group }
    }

    /// How long ago it was accepted.
    pub(super) const fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.accepted_at)
    }

    /// Notes that it has come from another reactor, where it was accepted so long ago.
    pub(super) const fn moved(&mut self, now: Duration, age: Duration) {
        self.has_moved = true;
        self.accepted_at = now.saturating_sub(age);
    }

    pub(super) fn is_login_overdue(&self, now: Duration, limit: Duration) -> bool {
        self.stage.is_before_login() && self.age(now) >= limit
    }

    /// Closes the connection when all that is queued has gone out.
    pub(super) fn close_after_sending(&mut self, reason: Disconnect, reader: Option<Arc<Reader>>) {
        self.stage = Stage::Closing;
        self.reader = reader;
        self.closing.get_or_insert(Closing::Sending(reason));
    }

    /// True when its end has been logged and only the peer's is waited for.
    pub(super) const fn is_lingering(&self) -> bool {
        matches!(self.closing, Some(Closing::Lingering))
    }

    pub(super) fn is_stalled(&mut self, now: Duration) -> bool {
        let patience = match self.closing {
            None => return false,
            Some(Closing::Sending(_)) => CLOSING_PATIENCE,
            Some(Closing::Lingering) => LINGERING_PATIENCE,
        };
        now.saturating_sub(*self.closing_since.get_or_insert(now)) >= patience
    }

    /// Why it ends, if the last answers have not been taken.
    pub(super) fn take_reason(&mut self) -> Option<Disconnect> {
        match self.closing.take_if(|closing| matches!(closing, Closing::Sending(_))) {
            Some(Closing::Sending(reason)) => Some(reason),
            _ => None,
        }
    }

    /// Notes that bytes have come.
    pub(super) const fn bytes_came(&mut self, now: Duration, bytes: usize) {
        self.active_at = now;
        self.received_bytes += bytes as u64;
    }

    /// When the peer last showed that it lives: by bytes that came, or by taking some that it had kept waiting.
    pub(super) fn active_at(&mut self, now: Duration) -> Duration {
        let drained_bytes = self.transmitter.drained_bytes();
        if std::mem::replace(&mut self.drained_bytes, drained_bytes) != drained_bytes {
            self.active_at = now;
        }
        self.active_at
    }

    /// Begins to linger when nothing is left to send.
    fn shut(&mut self) -> Result<(), Disconnect> {
        if let Some(Closing::Sending(reason)) = &self.closing {
            reason.log(self);
            self.closing = Some(Closing::Lingering);
            self.closing_since = None;
            self.socket.shutdown(Shutdown::Write).map_err(Disconnect::Socket)?;
        }
        Ok(())
    }

    fn takes_input(&self) -> bool {
        match self.stage {
            Stage::Closing => self.is_lingering(),
            _ => !self.transmitter.is_full(),
        }
    }

    /// Queues a PDU without data beside others of its kind: in a strip, as long as there is memory for one.
    pub(super) fn push_header(&mut self, bhs: &Bhs, pool: &BufferPool) {
        if self.transmitter.push_to_strip(bhs, self.digests) {
            return;
        }
        let is_blocked = self.transmitter.is_blocked();
        match if is_blocked { None } else { Strip::of_headers(pool, self.digests) } {
            Some(mut strip) => {
                strip.close(bhs, 0, self.digests);
                self.transmitter.push_strip(strip);
            }
            None => self.transmitter.push(bhs, Payload::None, self.digests),
        }
    }

    /// Sends before the turn ends if that pays; see [`Transmitter::is_eager`].
    #[inline]
    pub(super) fn send_early(&mut self, limit: SendLimit) {
        if self.transmitter.is_eager() {
            self.send_part(limit);
        }
    }

    /// Sends what there is of a turn's answers ([`super::parts`]). A failure is dealt with when the rest of them is to be sent.
    pub(super) fn send_part(&mut self, limit: SendLimit) {
        if self.send_failure.is_none() && !self.transmitter.is_blocked() {
            self.send_failure = self.send(limit).err();
        }
    }

    /// Sends what is queued, as far as the socket takes it and up to about what `limit` leaves.
    #[inline(never)]
    fn send(&mut self, limit: SendLimit) -> Result<Progress, SendError> {
        let before = self.transmitter.queued_bytes();
        let progress = self.transmitter.send(&self.socket, self.sent.left(limit));
        self.sent.note(before - self.transmitter.queued_bytes());
        progress
    }

    /// The same, and asks epoll for what is to be waited for.
    pub(super) fn flush(&mut self, epoll: &impl AsFd, limit: SendLimit) -> Result<(), Disconnect> {
        self.is_dirty = false;
        // The next one would say something else: a connection that was reset is a broken pipe from then on.
        if let Some(failure) = self.send_failure.take() {
            return Err(failure.into());
        }
        let progress = self.send(limit).map_err(Disconnect::from)?;
        if progress == Progress::Everything {
            self.shut()?;
        }
        let mut wanted = epoll::EventFlags::empty();
        if self.takes_input() {
            wanted |= epoll::EventFlags::IN;
        }
        if progress != Progress::Everything {
            wanted |= epoll::EventFlags::OUT;
        }
        if wanted != self.interest {
            let data = epoll::EventData::new_u64(self.token.to_u64());
            epoll::modify(epoll, &self.socket, data, wanted)
                .map_err(|error| Disconnect::Socket(error.into()))?;
            self.interest = wanted;
        }
        Ok(())
    }
}
