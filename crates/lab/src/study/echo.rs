//! What as many bytes as a command's take there and back by plain TCP: round trips with which no target and no initiator has
//! anything to do.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lunette_workload::model::{HEADER_BYTES, NetworkPath};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::collected::STOLEN_MAX;
use super::site::Site;
use super::statistics::median;
use crate::LabError;
use crate::host::{ProcessorTime, Shares};
use crate::usual::usual;

/// Of nobody else here.
const PORT: u16 = 5007;
/// For so long is each looked at, and at least so often.
const TIME: Duration = Duration::from_millis(50);
const TRIES_MIN: usize = 3;
/// Far longer than any link here takes, with losses.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most data that is exchanged. Over short ways TCP's window has room for it after an exchange or two; what is longer has hardly more
/// beside the line.
const DATA_BYTES_MAX: u32 = 64 << 10;
/// The same over [`LONG`] ways: less than TCP sends in its first round trip (RFC 6928).
const DATA_BYTES_MAX_LONG: u32 = 8 << 10;
/// Over ways as long as this and longer an exchange is measured once: how quickly a machine wakes who waits is less than two in a
/// hundred of it, unless its host gave to others meanwhile.
const LONG: Duration = Duration::from_millis(10);

/// What passes in one turn, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Exchange {
    there: usize,
    back: usize,
    /// A turn of headers goes before.
    is_asked: bool,
}

impl Exchange {
    /// A command and its response.
    const HEADERS: Self = Self { there: HEADER_BYTES as usize, back: HEADER_BYTES as usize, is_asked: false };

    const fn read(size_bytes: u32) -> Self {
        Self { back: Self::HEADERS.back + size_bytes as usize, ..Self::HEADERS }
    }

    const fn write(size_bytes: u32) -> Self {
        Self { there: Self::HEADERS.there + size_bytes as usize, ..Self::HEADERS }
    }

    /// A write that waits to be asked for its data: a command for an R2T, and then the data for a response.
    const fn asked(size_bytes: u32) -> Self {
        Self { is_asked: true, ..Self::write(size_bytes) }
    }

    /// What goes there and what comes back, turn by turn.
    fn turns(self) -> impl Iterator<Item = (usize, usize)> {
        let Self { there, back, is_asked } = self;
        let before = is_asked.then_some((Self::HEADERS.there, Self::HEADERS.back));
        before.into_iter().chain([(there, back)])
    }
}

/// What the commands of a workload carry: their size in bytes, and the way that their data takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Payload {
    pub(super) size_bytes: u32,
    /// The link's.
    pub(super) round_trip: Duration,
    /// There are reads, and what is on the way to the initiator.
    pub(super) reads: Option<NetworkPath>,
    /// There are writes, and what is on the way to the target.
    pub(super) writes: Option<NetworkPath>,
    /// All of their data waits to be asked for.
    pub(super) is_asked: bool,
}

/// What exchanges took at rest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Exchanged {
    /// A header each way, as of a command without data.
    pub(crate) header: Duration,
    /// A header there, and data with one back, less the time that the model has for data and its header on the line; nothing without reads.
    pub(crate) read: Option<Duration>,
    /// The other way around; nothing without writes.
    pub(crate) write: Option<Duration>,
    /// A header each way and then such a write, one behind the other: both turns together; nothing but of writes that wait to be asked.
    pub(crate) asked: Option<Duration>,
    /// The share of the processor time that this machine wanted meanwhile and its host gave to others; 0 where that cannot be told.
    pub(crate) stolen: f64,
}

impl Exchanged {
    /// Now, on this link.
    ///
    /// # Errors
    /// There is no connection, or it ends; a proxy has no far end.
    fn now(site: &Site, payload: &Payload) -> Result<Self, LabError> {
        let is_long = payload.round_trip >= LONG;
        let size_bytes = payload.size_bytes.min(if is_long { DATA_BYTES_MAX_LONG } else { DATA_BYTES_MAX });
        let took = |exchange| site.echoes().take(exchange, is_long, || measured(site, exchange));
        let beside_the_line = |path: &NetworkPath, exchange| -> Result<Duration, LabError> {
            // The model counts the header that goes with the data as a part of it.
            let line_s = path.line_s(u64::from(size_bytes) + HEADER_BYTES);
            let took = took(exchange)?;
            Ok(took.saturating_sub(Duration::try_from_secs_f64(line_s).unwrap_or_default()))
        };
        let read = |path| beside_the_line(path, Exchange::read(size_bytes));
        let write = |path| beside_the_line(path, Exchange::write(size_bytes));
        let asked = |path| beside_the_line(path, Exchange::asked(size_bytes));
        let before = ProcessorTime::now();
        let (header, read, write, asked) = (
            took(Exchange::HEADERS)?,
            payload.reads.as_ref().map(read).transpose()?,
            payload.writes.as_ref().map(write).transpose()?,
            payload.writes.as_ref().filter(|_| payload.is_asked).map(asked).transpose()?,
        );
        Ok(Self { header, read, write, asked, stolen: stolen_since(before) })
    }

    /// Of both the mean, and the larger one of what was stolen.
    fn with(self, other: Self) -> Self {
        let mean = |one: Duration, other: Duration| (one + other) / 2;
        let both = |one: Option<Duration>, other: Option<Duration>| Some(mean(one?, other?));
        Self {
            header: mean(self.header, other.header),
            read: both(self.read, other.read),
            write: both(self.write, other.write),
            asked: both(self.asked, other.asked),
            stolen: self.stolen.max(other.stolen),
        }
    }
}

/// What exchanges have taken over one link.
#[derive(Debug, Default)]
pub(super) struct Echoes {
    /// Of headers, each time that it was measured.
    headers: Mutex<Vec<Duration>>,
    /// Of long ways, where the host gave hardly anything to others.
    kept: Mutex<HashMap<Exchange, Duration>>,
}

impl Echoes {
    /// What an exchange takes: what is kept of it over a long way, and else it is measured, which answers with what was stolen.
    fn take(
        &self,
        exchange: Exchange,
        is_long: bool,
        measure: impl FnOnce() -> Result<(Duration, f64), LabError>,
    ) -> Result<Duration, LabError> {
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept().get(&exchange).copied();
        if let Some(took) = known {
            return Ok(took);
        }
        let (took, stolen) = measure()?;
        if exchange == Exchange::HEADERS {
            self.headers.lock().unwrap_or_else(PoisonError::into_inner).push(took);
        }
        if is_long && stolen <= STOLEN_MAX {
            kept().insert(exchange, took);
        }
        Ok(took)
    }

    /// The middle one of all times that a header took there and back, in microseconds; nothing before the first.
    pub(super) fn header_us(&self) -> Option<f64> {
        let headers = self.headers.lock().unwrap_or_else(PoisonError::into_inner);
        median(headers.iter().map(|time| time.as_secs_f64() * 1e6).collect())
    }
}

/// What exchanges take beside one run: before it, and behind it where its end leaves nothing on the link. How quickly this machine
/// wakes who waits changes within seconds, and depends on for how long he has slept: so they are as long as those of commands.
#[derive(Clone, Copy)]
pub(super) struct Echo<'a> {
    site: &'a Site,
    payload: Payload,
    before: Option<Exchanged>,
}

impl<'a> Echo<'a> {
    /// Before a run over this link; there is none where a proxy stands for the network.
    ///
    /// # Errors
    /// There is no connection, or it ends.
    pub(super) fn before(site: &'a Site, payload: Payload) -> Result<Self, LabError> {
        let before = if site.is_proxied() { None } else { Some(Exchanged::now(site, &payload)?) };
        Ok(Self { site, payload, before })
    }

    /// Of both times the mean, where the link is clear behind the run, and else what it was before; the same where it cannot be
    /// had any more, for the run has its figure already. Nothing where a proxy stands for the network.
    pub(super) fn behind(self, is_clear: bool) -> Option<Exchanged> {
        let before = self.before?;
        let behind = if is_clear { Exchanged::now(self.site, &self.payload).ok() } else { None };
        Some(behind.map_or(before, |behind| before.with(behind)))
    }
}

/// What was stolen since then, where it can be told.
fn stolen_since(before: Option<ProcessorTime>) -> f64 {
    let shares = before.and_then(|before| Some(ProcessorTime::now()?.since(before)));
    shares.map_or(0.0, Shares::stolen_for_sure)
}

/// A round trip, and what was stolen meanwhile.
fn measured(site: &Site, exchange: Exchange) -> Result<(Duration, f64), LabError> {
    let before = ProcessorTime::now();
    Ok((round_trip(site, exchange)?, stolen_since(before)))
}

/// What a round trip usually takes over a link on which nothing else is. Each end is a thread that waits in the kernel for
/// what is to come, so that being woken is part of it, as it is of everything that programs exchange; and it waits as programs do
/// that have many connections to wait for.
///
/// # Errors
/// There is no connection, or it ends; a proxy has no far end.
fn round_trip(site: &Site, exchange: Exchange) -> Result<Duration, LabError> {
    let failed = LabError::system("an echo over the emulated link");
    let listener = site.far(|| TcpListener::bind(Site::address(PORT)))?;
    let near = site.near(|| connect(Site::address(PORT)))?.map_err(&failed)?;
    let (far, _) = listener.accept().map_err(&failed)?;
    thread::scope(|scope| {
        // It ends with the connection.
        scope.spawn(|| answer(&far, exchange));
        let times = ask(&near, exchange);
        drop(near);
        usual(times.map_err(&failed)?).ok_or(LabError::Panicked)
    })
}

/// So many connections are begun to learn how long that takes, each after a pause, as one is that a program begins: its first packet
/// meets a machine that had nothing to do.
const CONNECTIONS: usize = 3;
const PAUSE: Duration = Duration::from_millis(20);

/// What it usually takes by plain TCP until a connection is there, over a link on which nothing else is; nothing where a proxy stands for
/// the network.
///
/// # Errors
/// There is no connection.
pub(super) fn handshake(site: &Site) -> Result<Option<Duration>, LabError> {
    if site.is_proxied() {
        return Ok(None);
    }
    let failed = LabError::system("a connection over the emulated link");
    let listener = site.far(|| TcpListener::bind(Site::address(PORT)))?;
    let times = site.near(|| {
        let time = |_| {
            thread::sleep(PAUSE);
            let began = Instant::now();
            let near = connect(Site::address(PORT))?;
            let took = began.elapsed();
            // Both ends are closed in order.
            let (far, _) = listener.accept()?;
            drop((near, far));
            Ok(took)
        };
        let times = (0..CONNECTIONS).map(time).collect::<io::Result<Vec<_>>>();
        thread::sleep(PAUSE);
        times
    })?;
    Ok(usual(times.map_err(failed)?))
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&address, PATIENCE)
}

/// A connection whose end is read by who first asks the kernel which one has something, as targets and initiators do.
struct Waited<'a> {
    stream: &'a TcpStream,
    epoll: OwnedFd,
}

impl<'a> Waited<'a> {
    fn new(stream: &'a TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, stream, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self { stream, epoll })
    }

    fn read_exact(&mut self, mut buffer: &mut [u8]) -> io::Result<()> {
        let limit = Timespec::try_from(PATIENCE).ok();
        while !buffer.is_empty() {
            let mut events = [const { MaybeUninit::uninit() }; 1];
            match epoll::wait(&self.epoll, &mut events, limit.as_ref()) {
                Ok(([], _)) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            match self.stream.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => buffer = &mut buffer[length..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }
}

fn answer(stream: &TcpStream, exchange: Exchange) {
    let (mut asked, answer) = (vec![0; exchange.there], vec![0; exchange.back]);
    if let Ok(mut end) = Waited::new(stream) {
        let mut turn = |(there, back): (usize, usize)| {
            end.read_exact(&mut asked[..there]).and_then(|()| end.write_all(&answer[..back]))
        };
        while exchange.turns().try_for_each(&mut turn).is_ok() {}
    }
}

fn ask(stream: &TcpStream, exchange: Exchange) -> io::Result<Vec<Duration>> {
    let mut end = Waited::new(stream)?;
    let (question, mut answer) = (vec![0; exchange.there], vec![0; exchange.back]);
    let (mut times, begun) = (Vec::new(), Instant::now());
    while times.len() < TRIES_MIN || begun.elapsed() < TIME {
        let asked = Instant::now();
        for (there, back) in exchange.turns() {
            end.write_all(&question[..there])?;
            end.read_exact(&mut answer[..back])?;
        }
        times.push(asked.elapsed());
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let near = connect(listener.local_addr().expect("an address")).expect("a connection");
        (near, listener.accept().expect("a connection").0)
    }

    #[test]
    fn over_long_ways_an_exchange_is_measured_once_unless_the_host_held_it_up() {
        let echoes = Echoes::default();
        let took = |exchange, is_long, (ms, stolen)| {
            let took = echoes.take(exchange, is_long, || Ok((Duration::from_millis(ms), stolen)));
            took.expect("a time").as_millis()
        };
        let of_headers = |is_long, measured| took(Exchange::HEADERS, is_long, measured);
        assert_eq!([of_headers(false, (2, 0.0)), of_headers(false, (50, 0.0))], [2, 50], "a short way");
        assert_eq!([of_headers(true, (90, 0.5)), of_headers(true, (51, 0.05))], [90, 51], "it was held up");
        assert_eq!(of_headers(true, (90, 0.0)), 51);
        assert_eq!(took(Exchange::read(1024), true, (61, 0.0)), 61, "of others nothing is known");
        assert_eq!(echoes.header_us(), Some(50_500.0), "of 2, 50, 51 and 90");
        assert!(echoes.take(Exchange::write(512), true, || Err(LabError::Panicked)).is_err());
        assert_eq!(took(Exchange::write(512), true, (70, 0.0)), 70);
    }

    #[test]
    fn who_waits_to_be_asked_has_a_turn_before() {
        let (near, far) = connected();
        let exchange = Exchange::asked(1024);
        assert_eq!(exchange.turns().collect::<Vec<_>>(), [(48, 48), (1072, 48)]);
        let answering = thread::spawn(move || answer(&far, exchange));
        assert!(ask(&near, exchange).expect("answers").len() >= TRIES_MIN);
        drop(near);
        answering.join().expect("no panic");
    }

    #[test]
    fn as_many_bytes_pass_as_of_a_command() {
        for (exchange, there, back) in
            [(Exchange::HEADERS, 48, 48), (Exchange::read(1024), 48, 1072), (Exchange::write(1024), 1072, 48)]
        {
            let (near, mut far) = connected();
            let asking = thread::spawn(move || ask(&near, exchange));
            let mut turns = 0;
            while far.read_exact(&mut vec![0; there]).is_ok() {
                far.write_all(&vec![0; back]).expect("an answer");
                turns += 1;
            }
            let times = asking.join().expect("no panic").expect("answers");
            assert!(times.len() == turns && turns >= TRIES_MIN, "{exchange:?}: {turns}");

            let (mut near, far) = connected();
            let answering = thread::spawn(move || answer(&far, exchange));
            near.write_all(&vec![0; there]).expect("a question");
            near.read_exact(&mut vec![0; back]).expect("an answer");
            near.shutdown(std::net::Shutdown::Write).expect("an end");
            assert_eq!(near.read(&mut [0]).ok(), Some(0), "{exchange:?}: nothing more comes");
            answering.join().expect("no panic");
        }
    }
}
