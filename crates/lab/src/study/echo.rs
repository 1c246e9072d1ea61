//! What one byte takes there and back by plain TCP: a round trip with which no target and no initiator has anything to do.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::site::Site;
use super::statistics::median;
use crate::LabError;

/// Of nobody else here.
const PORT: u16 = 5007;
/// For so long is it looked, and at least so often.
const TIME: Duration = Duration::from_millis(50);
const TRIES_MIN: usize = 3;
/// Far longer than any link here takes, with losses.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a byte takes beside one run: before it, and behind it where its end leaves nothing on the link. How quickly this machine
/// wakes who waits changes within seconds.
#[derive(Clone, Copy)]
pub(super) struct Echo<'a> {
    site: &'a Site,
    before: Option<Duration>,
}

impl<'a> Echo<'a> {
    /// Before a run over this link.
    ///
    /// # Errors
    /// There is no connection, or it ends.
    pub(super) fn before(site: &'a Site) -> Result<Self, LabError> {
        Ok(Self { site, before: site.echo_round_trip()? })
    }

    /// Of both times the mean, where the link is clear behind the run, and else what it was before; the same where it cannot be
    /// had any more, for the run has its figure already. Nothing where a proxy stands for the network.
    pub(super) fn behind(self, is_clear: bool) -> Option<Duration> {
        let before = self.before?;
        let behind = is_clear.then(|| self.site.echo_round_trip().ok().flatten()).flatten();
        Some(behind.map_or(before, |behind| (before + behind) / 2))
    }
}

/// The middle one of several round trips over a link on which nothing else is. Each end is a thread that waits in the kernel for
/// the byte, so that being woken is part of it, as it is of everything that programs exchange.
///
/// # Errors
/// There is no connection, or it ends; a proxy has no far end.
pub(super) fn round_trip(site: &Site) -> Result<Duration, LabError> {
    let failed = LabError::system("an echo over the emulated link");
    let listener = site.far(|| TcpListener::bind(Site::address(PORT)))?;
    let near = site.near(|| connect(Site::address(PORT)))?.map_err(&failed)?;
    let (far, _) = listener.accept().map_err(&failed)?;
    thread::scope(|scope| {
        // It ends with the connection.
        scope.spawn(|| answer(&far));
        let times = ask(&near);
        drop(near);
        let seconds = times.map_err(&failed)?.iter().map(Duration::as_secs_f64).collect();
        let middle = median(seconds).and_then(|middle| Duration::try_from_secs_f64(middle).ok());
        middle.ok_or(LabError::Panicked)
    })
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&address, PATIENCE)
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))
}

fn answer(mut stream: &TcpStream) {
    let mut byte = [0];
    if prepare(stream).is_ok() {
        while stream.read_exact(&mut byte).and_then(|()| stream.write_all(&byte)).is_ok() {}
    }
}

fn ask(mut stream: &TcpStream) -> io::Result<Vec<Duration>> {
    prepare(stream)?;
    let (mut times, begun) = (Vec::new(), Instant::now());
    while times.len() < TRIES_MIN || begun.elapsed() < TIME {
        let (asked, mut byte) = (Instant::now(), [0]);
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        times.push(asked.elapsed());
    }
    Ok(times)
}
