//! Packets that are sent one way, at a pace or as fast as it goes, and the sink that counts those that come.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use lunette_link::{Rate, Shape};

use super::{Way, line_bytes};
use crate::emulator::{Emulator, FAR, NEAR};
use crate::sink::Sink;

/// Data that UDP over IPv4 takes at once.
const UDP_BYTES_MAX: usize = 65_507;

/// Datagrams that are handed over at once where single ones are too slow: the kernel takes no more (`UDP_MAX_SEGMENTS`, before Linux 6.7).
const BATCH: usize = 64;

/// What is handed over at once is at most this part of a link's queue, so that it finds room there.
const BATCH_OF_QUEUE: u64 = 4;

/// And takes the link at most so long, so that a slow one's pace stays even.
const BATCH_TIME: Duration = Duration::from_millis(10);

/// Sends packets one way.
pub(super) struct Source(UdpSocket);

/// What became of an attempt to send at a pace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) packets: u64,
    /// The longest time in which nothing was handed over that was due.
    pub(super) pause: Duration,
}

/// A source at one end and a sink at the other.
pub(super) fn source(emulator: &Emulator, way: Way) -> io::Result<(Source, Sink<'_>)> {
    let (near, far) = ((emulator.near(), NEAR), (emulator.far(), FAR));
    let (from, to) = if way == Way::Up { (near, far) } else { (far, near) };
    let sink = Sink::new(to.0, to.1)?;
    let socket = from.0.within(|| UdpSocket::bind((from.1.ipv4, 0)))?;
    socket.connect(sink.address())?;
    Ok((Source(socket), sink))
}

impl Source {
    /// Sends so many bytes of data. What the kernel does not take is as good as lost in its queue, and missed later.
    pub(super) fn send(&self, bytes: usize) {
        static DATA: [u8; UDP_BYTES_MAX] = [0; UDP_BYTES_MAX];
        let _ = self.0.send(&DATA[..bytes.min(DATA.len())]);
    }

    /// Sends packets at an even pace until the time is over, so many in one call; `None` if this machine is too slow for that.
    pub(super) fn send_evenly(
        &self,
        bytes: usize,
        batch: usize,
        packets_per_s: f64,
        time: Duration,
    ) -> Option<Sent> {
        let began = Instant::now();
        let batch = batch as u64;
        let (mut packets, mut pause, mut last) = (0, Duration::ZERO, Duration::ZERO);
        loop {
            let elapsed = began.elapsed();
            let due = (elapsed.min(time).as_secs_f64() * packets_per_s) as u64 / batch * batch;
            while packets < due && began.elapsed() < time + time / 50 {
                self.send(bytes * batch as usize);
                packets += batch;
                let now = began.elapsed();
                (pause, last) = (pause.max(now.saturating_sub(last)), now);
            }
            if elapsed >= time {
                return (packets == due).then_some(Sent { packets, pause });
            }
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// Has the kernel take apart what is sent at once into datagrams of so many bytes of data.
    ///
    /// # Errors
    /// The kernel cannot (before Linux 4.18).
    #[expect(unsafe_code, reason = "no crate of this workspace has the option")]
    pub(super) fn take_apart(&self, bytes: usize) -> io::Result<()> {
        let bytes = libc::c_int::try_from(bytes).map_err(io::Error::other)?;
        let length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the descriptor is open for the time of the call, and the kernel reads one number of this length, which lives longer.
        let result = unsafe {
            let value = (&raw const bytes).cast();
            libc::setsockopt(self.0.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, value, length)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// How many datagrams of so many bytes of data are sent at once over a link: as many as the kernel takes, its queue has room for
/// and it sends in a moment.
pub(super) fn batch(shape: &Shape, data: usize) -> usize {
    let room = |rate: Rate| (shape.queue_bytes / BATCH_OF_QUEUE).min(rate.bytes_in(BATCH_TIME));
    let room = usize::try_from(shape.rate.map_or(u64::MAX, room)).unwrap_or(usize::MAX);
    BATCH.min(UDP_BYTES_MAX / data.max(1)).min(room / line_bytes(shape, data)).max(1)
}

#[cfg(test)]
mod tests {
    use super::super::HEADERS;
    use super::*;
    use lunette_link::Link;

    #[test]
    fn what_is_sent_at_once_has_room_in_the_queue() {
        let of = |link: &str, data| batch(&link.parse::<Link>().expect("a link").up, data);
        assert_eq!(of("gige", 1472), UDP_BYTES_MAX / 1472);
        assert_eq!(of("gige,queue=32K", 1472), 8192 / (1472 + HEADERS + 38));
        assert_eq!(of("gige,queue=4K", 1472), 1);
        assert_eq!((of("rate=10M", 1472), of("rate=64K", 36)), (8, 1));
        assert_eq!((of("delay=1ms", 64), of("mtu=65535", 65_507)), (BATCH, 1));
    }
}
