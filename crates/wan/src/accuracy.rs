//! How true the emulator is on this machine: what was asked for, and what real packets of the kernel find.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lunette_link::{Link, Loss, Shape};

use crate::emulator::{Emulator, FAR, NEAR};
use crate::sink::Sink;

/// Bytes of IPv4 and UDP before the data.
const HEADERS: usize = 28;

/// Data that UDP over IPv4 takes at once.
const UDP_BYTES_MAX: usize = 65_507;

/// Data of a packet that asks for an answer.
const ECHO_BYTES: usize = 36;

/// Round trips that are measured, at least and at most, and how long that should take.
const ECHOES: [u32; 2] = [20, 200];
const ECHO_TIME: Duration = Duration::from_secs(4);

/// The pause between the beginnings of two, at least.
const ECHO_PAUSE: Duration = Duration::from_millis(5);

/// How long a link that is asked for more than its rate is looked at.
const RATE_TIME: Duration = Duration::from_secs(2);

/// How long the ceiling is looked for, twice.
const CEILING_TIME: Duration = Duration::from_secs(1);

/// How much more it is asked for.
const RATE_EXCESS: f64 = 1.08;

/// Data of the packets whose losses are counted.
const LOSS_BYTES: usize = 64;

/// Packets whose losses are counted.
const LOSS_PACKETS: u64 = 20_000;

/// How long that may take; there are fewer of them on slow links.
const LOSS_TIME: Duration = Duration::from_secs(5);

/// As many of them in a second at most.
const LOSS_PACKETS_PER_S: f64 = 20_000.0;

/// How many standard deviations chance may explain: it takes more in one of a thousand cases.
const CONFIDENCE: f64 = 3.3;

/// A round trip and a rate are to be right within a fiftieth.
const TOLERANCE: f64 = 0.02;

/// A round trip that is right within this is right, too.
const ROUND_TRIP_TOLERANCE: Duration = Duration::from_micros(300);

/// Datagrams that are handed over at once where single ones are too slow: the kernel takes no more (`UDP_MAX_SEGMENTS`, before Linux 6.7).
const BATCH: usize = 64;

/// What is handed over at once is at most this part of a link's queue, so that it finds room there.
const BATCH_OF_QUEUE: u64 = 4;

/// A link is full as long as its queue is not empty. Who pauses for longer than this part of the time that a full queue lasts may have left it
/// empty.
const PAUSE_OF_QUEUE: f64 = 0.5;

/// How many round trips TCP has to find its rate, before it is looked at.
const TCP_ROUND_TRIPS: u32 = 20;

/// What measured a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// Datagrams, one at a time.
    Datagrams,
    /// Several datagrams in one call, which the kernel takes apart (UDP segmentation offload).
    Batches,
    /// One TCP connection, by the data that came and the headers that each full segment has.
    Tcp,
}

impl Means {
    /// Its name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Datagrams => "datagrams",
            Self::Batches => "batches of datagrams",
            Self::Tcp => "TCP",
        }
    }
}

/// One thing that a link promises, and what was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// What it is.
    pub what: &'static str,
    /// `ms`, `Mb/s` or `%`.
    pub unit: &'static str,
    /// What the link should do.
    pub expected: f64,
    /// What it did. `None` if this machine could not send enough to tell.
    pub measured: Option<f64>,
    /// By which means; where there is none, the last that was tried.
    pub by: Means,
    /// How far the two may be apart.
    pub tolerance: f64,
}

impl Figure {
    /// Whether it is as it should be.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.measured.is_some_and(|measured| (measured - self.expected).abs() <= self.tolerance)
    }
}

/// What this machine can carry at most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceiling {
    /// Data of one TCP connection in packets of 1500 bytes, in gigabits per second.
    pub tcp_gbit_per_s: f64,
    /// Packets of 64 bytes of data in a second, one way.
    pub packets_per_s: f64,
    /// Whether the kernel hands over several segments at once.
    pub offload: bool,
}

/// Measures a link: its round trip, its rates and its losses. It takes some seconds.
///
/// # Errors
/// The network carries nothing, or sockets fail.
pub fn measure(emulator: &Emulator, link: &Link) -> io::Result<Vec<Figure>> {
    let mut figures = Vec::from_iter(round_trip(emulator, link)?);
    let ways = [(Way::Up, &link.up), (Way::Down, &link.down)];
    for (way, shape) in ways {
        figures.extend(rate(emulator, way, shape, link)?);
    }
    for (way, shape) in ways {
        figures.push(loss(emulator, way, shape)?);
    }
    Ok(figures)
}

/// Measures what this machine can carry, by a link that takes no time.
///
/// # Errors
/// There is no such network.
pub fn ceiling(emulator: &Emulator) -> io::Result<Ceiling> {
    let tcp_gbit_per_s = tcp(emulator)?;
    let (source, mut sink) = source(emulator, Way::Up)?;
    let (began, before) = (Instant::now(), sink.arrived()?);
    while began.elapsed() < CEILING_TIME {
        source.send(64);
    }
    let arrived = sink.arrived()? - before;
    let packets_per_s = arrived as f64 / began.elapsed().as_secs_f64();
    Ok(Ceiling { tcp_gbit_per_s, packets_per_s, offload: emulator.offloads() })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

/// Sends packets one way.
struct Source(UdpSocket);

/// What became of an attempt to send at a pace.
#[derive(Debug, Clone, Copy)]
struct Sent {
    packets: u64,
    /// The longest time in which nothing was handed over that was due.
    pause: Duration,
}

/// A source at one end and a sink at the other.
fn source(emulator: &Emulator, way: Way) -> io::Result<(Source, Sink<'_>)> {
    let (near, far) = ((emulator.near(), NEAR), (emulator.far(), FAR));
    let (from, to) = if way == Way::Up { (near, far) } else { (far, near) };
    let sink = Sink::new(to.0, to.1)?;
    let socket = from.0.within(|| UdpSocket::bind((from.1.ipv4, 0)))?;
    socket.connect(sink.address())?;
    Ok((Source(socket), sink))
}

impl Source {
    /// Sends so many bytes of data. What the kernel does not take is as good as lost in its queue, and missed later.
    fn send(&self, bytes: usize) {
        static DATA: [u8; UDP_BYTES_MAX] = [0; UDP_BYTES_MAX];
        let _ = self.0.send(&DATA[..bytes.min(DATA.len())]);
    }

    /// Sends packets at an even pace until the time is over, so many in one call; `None` if this machine is too slow for that.
    fn send_evenly(&self, bytes: usize, batch: usize, packets_per_s: f64, time: Duration) -> Option<Sent> {
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
    fn take_apart(&self, bytes: usize) -> io::Result<()> {
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

/// How many datagrams of so many bytes of data are sent at once over a link: as many as the kernel takes and its queue has room for.
fn batch(shape: &Shape, data: usize) -> usize {
    let room = shape.rate.map_or(u64::MAX, |_| shape.queue_bytes / BATCH_OF_QUEUE);
    let of_queue = usize::try_from(room).unwrap_or(usize::MAX) / line_bytes(shape, data);
    BATCH.min(UDP_BYTES_MAX / data.max(1)).min(of_queue).max(1)
}

/// Bytes that data of UDP have on the line.
fn line_bytes(shape: &Shape, data: usize) -> usize {
    data + HEADERS + usize::from(shape.overhead_bytes)
}

fn round_trip(emulator: &Emulator, link: &Link) -> io::Result<Option<Figure>> {
    let near = emulator.near().within(|| UdpSocket::bind((NEAR.ipv4, 0)))?;
    let far = emulator.far().within(|| UdpSocket::bind((FAR.ipv4, 0)))?;
    near.connect(far.local_addr()?)?;
    near.set_read_timeout(Some(link.round_trip() * 2 + Duration::from_secs(1)))?;
    far.set_read_timeout(Some(Duration::from_millis(50)))?;
    // With jitter none should have to wait for the one before, which must not be overtaken.
    let jitter = link.up.jitter.most.max(link.down.jitter.most);
    let pause = ECHO_PAUSE.max(jitter * 2);
    let count = ((ECHO_TIME.as_secs_f64() / pause.as_secs_f64()) as u32).clamp(ECHOES[0], ECHOES[1]);
    let (began, is_over) = (Instant::now(), AtomicBool::new(false));
    let mut times = thread::scope(|scope| {
        scope.spawn(|| echo(&far, &is_over));
        scope.spawn(|| ask(&near, began, count, pause));
        let times = answers(&near, began, count);
        is_over.store(true, Ordering::Relaxed);
        times
    });
    times.sort_unstable();
    let sending = |shape: &Shape| {
        shape.rate.map_or(Duration::ZERO, |rate| rate.time_for(line_bytes(shape, ECHO_BYTES)))
    };
    let expected = link.round_trip() + sending(&link.up) + sending(&link.down);
    let tolerance = ROUND_TRIP_TOLERANCE.max(expected.mul_f64(TOLERANCE))
        + median_deviation(link).mul_f64(CONFIDENCE / f64::from(count).sqrt());
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(times.get(times.len() / 2).map(|median| Figure {
        what: "round trip",
        unit: "ms",
        expected: ms(expected),
        measured: Some(ms(*median)),
        by: Means::Datagrams,
        tolerance: ms(tolerance),
    }))
}

/// The standard deviation of the median of what jitter does to round trips, for one of them.
fn median_deviation(link: &Link) -> Duration {
    let ways = [&link.up, &link.down].map(|shape| (shape.jitter.most.min(shape.delay), shape.jitter));
    // Each way it is even over twice its most, so that the density of their sum in its middle is 1 / (2 * the larger most), and the
    // deviation of a median is half of the inverse.
    let larger = ways.iter().map(|(most, _)| *most).max().unwrap_or_default();
    let varies = ways.iter().filter(|(most, _)| !most.is_zero());
    let inflation = varies.map(|(_, jitter)| jitter.inflation()).fold(1.0, f64::max);
    larger.mul_f64(inflation.min(INFLATION_MAX))
}

/// Where all packets deviate alike no number of them tells more than one.
const INFLATION_MAX: f64 = 14.0;

/// Sends packets that say when they were sent.
fn ask(near: &UdpSocket, began: Instant, count: u32, pause: Duration) {
    for number in 0..count {
        thread::sleep((pause * number).saturating_sub(began.elapsed()));
        let mut data = [0; ECHO_BYTES];
        data[..16].copy_from_slice(&began.elapsed().as_nanos().to_be_bytes());
        // What is not sent is missed like what is lost.
        let _ = near.send(&data);
    }
}

fn echo(far: &UdpSocket, is_over: &AtomicBool) {
    let mut data = [0; ECHO_BYTES];
    while !is_over.load(Ordering::Relaxed) {
        if let Ok((length, from)) = far.recv_from(&mut data) {
            let _ = far.send_to(&data[..length], from);
        }
    }
}

/// How long each packet was under way, until none comes any more.
fn answers(near: &UdpSocket, began: Instant, count: u32) -> Vec<Duration> {
    let mut times = Vec::new();
    let mut data = [0; ECHO_BYTES];
    while times.len() < count as usize && near.recv(&mut data).is_ok() {
        let sent = u128::from_be_bytes(std::array::from_fn(|index| data[index]));
        let sent = Duration::from_nanos(sent.try_into().unwrap_or(u64::MAX));
        times.push(began.elapsed().saturating_sub(sent));
    }
    times
}

fn rate(emulator: &Emulator, way: Way, shape: &Shape, link: &Link) -> io::Result<Option<Figure>> {
    let Some(rate) = shape.rate else { return Ok(None) };
    // What the wire loses has used the rate; what it doubles has not. Of what it damages the kernel throws some away.
    let through = (1.0 - shape.loss.mean()) * (1.0 + shape.duplicate.get());
    let expected = rate.bits_per_s() as f64 * through;
    // What chance makes of it in the packets of that time.
    let line_bits = line_bytes(shape, usize::from(link.mtu) - HEADERS) as f64 * 8.0;
    let packets = (rate.bits_per_s() as f64 / line_bits * RATE_TIME.as_secs_f64()).max(1.0);
    let copies = shape.duplicate.get();
    let variance = shape.loss.variance(packets) + copies * (1.0 - copies) / packets;
    let by_chance = rate.bits_per_s() as f64 * CONFIDENCE * variance.sqrt();
    let figure = |measured: Option<f64>, by| Figure {
        what: if way == Way::Up { "rate, near to far" } else { "rate, far to near" },
        unit: "Mb/s",
        expected: expected / 1e6,
        measured: measured.map(|measured| measured / 1e6),
        by,
        tolerance: (expected * (TOLERANCE + shape.corrupt.get()) + by_chance) / 1e6,
    };
    // Each fills more than the one before, and is less simple.
    let mut found = figure(None, Means::Datagrams);
    for by in [Means::Datagrams, Means::Batches, Means::Tcp] {
        let mark = emulator.mark()?;
        let carried = match by {
            Means::Datagrams => datagrams(emulator, way, shape, link.mtu, 1)?,
            Means::Batches => {
                let batch = batch(shape, usize::from(link.mtu) - HEADERS);
                if batch == 1 {
                    continue;
                }
                datagrams(emulator, way, shape, link.mtu, batch)?
            }
            // TCP sends less where anything is lost or changed, and what it has sent again is in no figure.
            Means::Tcp if !is_clean(&link.up) || !is_clean(&link.down) => continue,
            Means::Tcp => Some(Carried { bits_per_s: stream(emulator, way, shape, link)?, is_filled: false }),
        };
        let Some(Carried { bits_per_s, is_filled }) = carried else { continue };
        found = figure(Some(bits_per_s), by);
        // Whether less came because less was sent, or got lost beside the link, nobody knows: that is no figure of the link.
        let is_less = bits_per_s < expected;
        let has_come = is_filled && emulator.since(&mark)?.overrun == 0;
        if found.is_good() || !is_less || has_come {
            return Ok(Some(found));
        }
        found.measured = None;
    }
    Ok(Some(found))
}

/// What came over a link that was asked for more than its rate, in bits per second of the line, and whether it always had something to send.
#[derive(Debug, Clone, Copy)]
struct Carried {
    bits_per_s: f64,
    is_filled: bool,
}

/// By datagrams of full length, so many at once; `None` where this machine cannot send so many.
fn datagrams(
    emulator: &Emulator,
    way: Way,
    shape: &Shape,
    mtu: u16,
    batch: usize,
) -> io::Result<Option<Carried>> {
    let Some(rate) = shape.rate else { return Ok(None) };
    let (source, mut sink) = source(emulator, way)?;
    let data = usize::from(mtu) - HEADERS;
    if batch > 1 && source.take_apart(data).is_err() {
        return Ok(None);
    }
    let bits = line_bytes(shape, data) as f64 * 8.0;
    let packets_per_s = rate.bits_per_s() as f64 / bits * RATE_EXCESS;
    let warm_up = RATE_TIME / 4 + shape.delay;
    let queue_s = shape.queue_bytes as f64 * 8.0 / rate.bits_per_s() as f64;
    thread::scope(|scope| {
        let sender = scope.spawn(|| source.send_evenly(data, batch, packets_per_s, RATE_TIME + warm_up));
        thread::sleep(warm_up);
        let (began, before) = (Instant::now(), sink.arrived()?);
        thread::sleep(RATE_TIME - Duration::from_millis(50));
        let (time, after) = (began.elapsed(), sink.arrived()?);
        let sent = sender.join().ok().flatten();
        Ok(sent.map(|sent| Carried {
            bits_per_s: (after - before) as f64 * bits / time.as_secs_f64(),
            is_filled: sent.pause.as_secs_f64() <= queue_s * PAUSE_OF_QUEUE,
        }))
    })
}

/// Whether nothing happens to packets but that they wait and take their time.
fn is_clean(shape: &Shape) -> bool {
    let share = shape.duplicate.get() + shape.corrupt.get() + shape.reorder.share.get();
    shape.loss == Loss::None && share == 0.0 && shape.jitter.most.is_zero()
}

/// What TCP carries of the line, in bits per second: of each full segment the data comes, and the packet has been on it. Shorter ones make
/// it less than it was, and never more.
fn stream(emulator: &Emulator, way: Way, shape: &Shape, link: &Link) -> io::Result<f64> {
    let (near, far) = ((emulator.near(), NEAR), (emulator.far(), FAR));
    let (from, to) = if way == Way::Up { (near, far) } else { (far, near) };
    let listener = to.0.within(|| TcpListener::bind((to.1.ipv4, 0)))?;
    let address = listener.local_addr()?;
    let sender = from.0.within(|| TcpStream::connect_timeout(&address, TCP_PATIENCE))?;
    let receiver = listener.accept()?.0;
    receiver.set_read_timeout(Some(TCP_PATIENCE))?;
    let (warm_up, time) = (RATE_TIME / 4 + link.round_trip() * TCP_ROUND_TRIPS, RATE_TIME);
    let data_per_s = thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let data = vec![0; 256 << 10];
            while (&sender).write_all(&data).is_ok() {}
        });
        let came = come(&receiver, warm_up, time);
        // The sender's next call fails, which is its end.
        let _ = receiver.shutdown(Shutdown::Both);
        let _ = sender.shutdown(Shutdown::Both);
        sending.join().map_err(|_| io::Error::other("a sender panicked"))?;
        came
    })?;
    let line = f64::from(link.mtu) + f64::from(shape.overhead_bytes);
    Ok(data_per_s * 8.0 / f64::from(segment_bytes(link.mtu)) * line)
}

/// The data of a full segment over IPv4: with the time stamps that each has unless somebody has turned them off, when it is a little more.
const fn segment_bytes(mtu: u16) -> u16 {
    const IPV4_TCP_TIME: u16 = 20 + 20 + 12;
    mtu - IPV4_TCP_TIME
}

/// How long a connection may do nothing.
const TCP_PATIENCE: Duration = Duration::from_secs(10);

/// Bytes in a second that come for a time after a warm-up.
fn come(mut stream: &TcpStream, warm_up: Duration, time: Duration) -> io::Result<f64> {
    let mut room = vec![0; 256 << 10];
    let began = Instant::now();
    let mut counted: Option<(Instant, u64)> = None;
    loop {
        let bytes = stream.read(&mut room)? as u64;
        if bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let now = Instant::now();
        match &mut counted {
            None if now - began >= warm_up => counted = Some((now, 0)),
            None => {}
            Some((since, sum)) => {
                *sum += bytes;
                let took = now - *since;
                if took >= time {
                    return Ok(*sum as f64 / took.as_secs_f64());
                }
            }
        }
    }
}

fn loss(emulator: &Emulator, way: Way, shape: &Shape) -> io::Result<Figure> {
    let (source, mut sink) = source(emulator, way)?;
    let (mut mark, mut before) = (emulator.mark()?, 0);
    let bits = line_bytes(shape, LOSS_BYTES) as f64 * 8.0;
    let packets_per_s = shape
        .rate
        .map_or(LOSS_PACKETS_PER_S, |rate| (rate.bits_per_s() as f64 / bits / 2.0).min(LOSS_PACKETS_PER_S));
    let time = Duration::from_secs_f64(LOSS_PACKETS as f64 / packets_per_s).min(LOSS_TIME);
    let mut by = Means::Datagrams;
    let mut sent = source.send_evenly(LOSS_BYTES, 1, packets_per_s, time);
    let batch = batch(shape, LOSS_BYTES);
    if sent.is_none() && batch > 1 && source.take_apart(LOSS_BYTES).is_ok() {
        by = Means::Batches;
        // What has been sent already is still to come.
        thread::sleep(shape.delay * 2 + shape.reorder.by + Duration::from_millis(100));
        (mark, before) = (emulator.mark()?, sink.arrived()?);
        sent = source.send_evenly(LOSS_BYTES, batch, packets_per_s, time);
    }
    thread::sleep(shape.delay * 2 + shape.reorder.by + Duration::from_millis(100));
    let arrived = (sink.arrived()? - before) as f64;
    // What this machine has lost is not the link's.
    let is_all_there = emulator.since(&mark)?.overrun == 0;
    let sent = sent.filter(|_| is_all_there).map(|sent| sent.packets);
    // All that has left and did not arrive, whatever became of it.
    let copies = shape.duplicate.get();
    let share = |sent: u64| 1.0 - arrived / (sent as f64 * (1.0 + copies));
    let packets = (time.as_secs_f64() * packets_per_s).max(1.0);
    let deviation = (shape.loss.variance(packets) + copies * (1.0 - copies) / packets).sqrt();
    Ok(Figure {
        what: if way == Way::Up { "loss, near to far" } else { "loss, far to near" },
        unit: "%",
        expected: shape.loss.mean() * 100.0,
        measured: sent.filter(|sent| *sent > 0).map(|sent| share(sent).max(0.0) * 100.0),
        by,
        // What is damaged the kernel may throw away before it counts it.
        tolerance: (CONFIDENCE * deviation + WHOLE_PACKETS / packets + shape.corrupt.get()) * 100.0,
    })
}

/// Packets are lost whole, and of rare losses chance makes more than of many.
const WHOLE_PACKETS: f64 = 2.0;

/// Gigabits of data in a second by one connection.
fn tcp(emulator: &Emulator) -> io::Result<f64> {
    let listener = emulator.far().within(|| TcpListener::bind((FAR.ipv4, 0)))?;
    let address = listener.local_addr()?;
    thread::scope(|scope| {
        let reader = scope.spawn(move || -> io::Result<(u64, Duration)> {
            let mut stream = listener.accept()?.0;
            let mut room = vec![0; 256 << 10];
            let (began, mut bytes) = (Instant::now(), 0);
            loop {
                match stream.read(&mut room)? {
                    0 => return Ok((bytes, began.elapsed())),
                    count => bytes += count as u64,
                }
            }
        });
        let mut stream =
            emulator.near().within(|| TcpStream::connect_timeout(&address, Duration::from_secs(10)))?;
        let data = vec![0; 256 << 10];
        let began = Instant::now();
        while began.elapsed() < CEILING_TIME {
            stream.write_all(&data)?;
        }
        drop(stream);
        let (bytes, time) = reader.join().unwrap_or_else(|_| Err(io::Error::other("a reader panicked")))?;
        Ok(bytes as f64 * 8.0 / time.as_secs_f64() / 1e9)
    })
}

#[cfg(test)]
mod tests {
    use lunette_link::Pipe;

    use super::*;
    use crate::packet::IpPacket;

    #[test]
    fn what_is_far_off_or_not_known_is_not_good() {
        let figure = |measured| Figure {
            what: "rate",
            unit: "Mb/s",
            expected: 100.0,
            measured,
            by: Means::Tcp,
            tolerance: 2.0,
        };
        assert!(figure(Some(98.1)).is_good() && figure(Some(101.9)).is_good());
        assert!(!figure(Some(97.9)).is_good() && !figure(Some(102.1)).is_good() && !figure(None).is_good());
    }

    /// The delays that a link makes of packets that are far apart, in seconds more or less than its delay.
    fn deviations(shape: &Shape, seed: u64, count: u32) -> Vec<f64> {
        let mut pipe = Pipe::new(shape.clone(), seed);
        let times = (0..count).map(|number| {
            let sent = Duration::from_millis(100) * number;
            pipe.offer(sent, IpPacket::new(&[0; ECHO_BYTES]));
            let (arrived, _) = pipe.arrive(sent + Duration::from_millis(100)).expect("it has arrived");
            arrived.saturating_sub(sent).as_secs_f64() - shape.delay.as_secs_f64()
        });
        times.collect()
    }

    #[test]
    fn medians_of_round_trips_deviate_as_the_closed_form_says() {
        const COUNT: u32 = 201;
        const RUNS: u64 = 300;
        for text in [
            "delay=20ms,jitter=8ms",
            "delay=20ms,jitter=8ms/50%",
            "delay=20ms,up.jitter=8ms/30%",
            "delay=20ms,up.jitter=4ms,down.jitter=8ms",
        ] {
            let link: Link = text.parse().expect("a link");
            let squares = (0..RUNS).map(|run| {
                let up = deviations(&link.up, 2 * run, COUNT);
                let down = deviations(&link.down, 2 * run + 1, COUNT);
                let mut both: Vec<f64> = up.iter().zip(&down).map(|(up, down)| up + down).collect();
                both.sort_by(f64::total_cmp);
                both[both.len() / 2].powi(2)
            });
            let found = (squares.sum::<f64>() / RUNS as f64).sqrt();
            let expected = median_deviation(&link).as_secs_f64() / f64::from(COUNT).sqrt();
            // The deviation of so many is off by 1 / sqrt(600) itself; a median of 201 is nearly as one of many.
            assert!((found / expected - 1.0).abs() < 0.17, "{text}: {found}, not {expected}");
        }
    }

    #[test]
    fn what_is_sent_at_once_has_room_in_the_queue() {
        let of = |link: &str, data| batch(&link.parse::<Link>().expect("a link").up, data);
        assert_eq!(of("gige", 1472), UDP_BYTES_MAX / 1472);
        assert_eq!(of("gige,queue=32K", 1472), 8192 / (1472 + HEADERS + 38));
        assert_eq!(of("gige,queue=4K", 1472), 1);
        assert_eq!((of("delay=1ms", 64), of("mtu=65535", 65_507)), (BATCH, 1));
    }

    /// What the sender hands over at once are packets of their own on the link, and full segments carry what they are said to.
    #[test]
    fn each_of_the_means_finds_the_rate_and_none_finds_more() {
        let link: Link = "rate=20M,mtu=1500,overhead=38".parse().expect("a link");
        let emulator = match Emulator::start(&link, 1) {
            Ok(emulator) => emulator,
            Err(error) => return lunette_skip::record_lacking(&error.to_string()),
        };
        let batch = batch(&link.up, 1500 - HEADERS);
        assert!(batch > 8);
        let one = datagrams(&emulator, Way::Up, &link.up, link.mtu, 1).expect("a network");
        let many = datagrams(&emulator, Way::Down, &link.down, link.mtu, batch).expect("a network");
        let tcp = Some(stream(&emulator, Way::Up, &link.up, &link).expect("a network"));
        for (means, found) in [
            (Means::Datagrams, one.map(|one| one.bits_per_s)),
            (Means::Batches, many.map(|many| many.bits_per_s)),
            (Means::Tcp, tcp),
        ] {
            let Some(found) = found else {
                lunette_skip::record_lacking(&format!("{}: this machine was too busy", means.name()));
                continue;
            };
            // How much less depends on the machine; a queue that empties itself at the end is in it.
            assert!(found <= 20e6 * 1.05 && found > 1e6, "{}: {found}", means.name());
        }
    }

    #[test]
    fn what_changes_packets_is_not_measured_by_tcp() {
        let clean = |link: &str| is_clean(&link.parse::<Link>().expect("a link").up);
        assert!(clean("gige,rtt=20ms"));
        for link in ["gige,loss=1%", "gige,duplicate=1%", "gige,corrupt=1%", "gige,reorder=1%/1ms"] {
            assert!(!clean(link), "{link}");
        }
    }
}
