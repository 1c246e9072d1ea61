//! Plain TCP over a site: what a network carries when there is no iSCSI.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lunette_link::{Link, Shape};
use socket2::{Domain, Socket, Type};

use super::model::{self, Driven};
use super::tcp_facts::{self, Watched};
use super::{Duty, Run};
use crate::LabError;
use crate::study::site::Site;

const PORT: u16 = 5001;
/// Bytes that one call sends or takes at most.
const PIECE_BYTES: usize = 256 << 10;
/// Longer than any queue here holds something back.
const HELD_BACK_MAX: Duration = Duration::from_secs(2);
/// Far longer than any link here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// What one connection carries, beside what the model expects.
pub(super) fn run(
    site: &Site,
    link: &Link,
    to_target: bool,
    buffer_bytes: Option<usize>,
    duty: Duty,
) -> Result<Run, LabError> {
    let is_measuring = AtomicBool::new(false);
    let shape = if to_target { &link.up } else { &link.down };
    let window = buffer_bytes.map(|bytes| bytes as u64);
    let driven = Driven { link, congestion_control: &site.congestion_control()? };
    let path = model::path(driven, shape, link.round_trip(), window);
    let (bytes_per_s, further) = tcp_facts::watch(
        site,
        Watched {
            port: PORT,
            to_target,
            line_bytes_per_s: path.payload_bytes_per_s(),
            round_trip: link.round_trip(),
        },
        &|| is_measuring.load(Ordering::Relaxed),
        || carry(site, to_target, buffer_bytes, (duty.warm_up, duty.time), &is_measuring),
    );
    let bytes_per_s = bytes_per_s?;
    // What the line still holds back would be in the way of whoever comes next.
    thread::sleep(held_back(shape, window));
    Ok(Run { further, ..Run::of(bytes_per_s / 1e6, model::plain(&path)) })
}

/// How long a line is busy with what its queue may hold of a connection that has ended.
fn held_back(shape: &Shape, window_bytes: Option<u64>) -> Duration {
    let bytes = window_bytes.map_or(shape.queue_bytes, |window| window.min(shape.queue_bytes));
    // Far below what a double holds exactly.
    let seconds = shape.rate.map_or(0.0, |rate| bytes as f64 * 8.0 / rate.bits_per_s() as f64);
    Duration::try_from_secs_f64(seconds).map_or(HELD_BACK_MAX, |time| time.min(HELD_BACK_MAX))
}

/// Bytes per second of one connection, in one direction, for a time after a warm-up.
fn carry(
    site: &Site,
    to_target: bool,
    buffer_bytes: Option<usize>,
    (warm_up, time): (Duration, Duration),
    is_measuring: &AtomicBool,
) -> Result<f64, LabError> {
    let (near, far) = pair(site, buffer_bytes)?;
    let (sender, receiver) = if to_target { (near, far) } else { (far, near) };
    thread::scope(|scope| {
        let sending = scope.spawn(|| send(&sender));
        let rate = receive(&receiver, warm_up, time, is_measuring);
        // The sender's next call fails, which is its end.
        let _ = receiver.shutdown(Shutdown::Both);
        let _ = sender.shutdown(Shutdown::Both);
        sending.join().map_err(|_| LabError::Panicked)?;
        rate.map_err(failed)
    })
}

/// Both ends of a connection from the near end to the far one.
pub(super) fn pair(site: &Site, buffer_bytes: Option<usize>) -> Result<(TcpStream, TcpStream), LabError> {
    let listener = site.far(|| listen(buffer_bytes))?;
    let near = site.near(|| connect(buffer_bytes))?.map_err(failed)?;
    let far = accept(&listener).map_err(failed)?;
    Ok((near, far))
}

fn failed(error: io::Error) -> LabError {
    LabError::system("a TCP connection over the emulated link")(error)
}

/// A socket with buffers that are set before it connects, so that the window can be scaled to them (RFC 7323).
fn socket(buffer_bytes: Option<usize>) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    if let Some(bytes) = buffer_bytes {
        socket.set_recv_buffer_size(bytes)?;
        socket.set_send_buffer_size(bytes)?;
    }
    Ok(socket)
}

fn listen(buffer_bytes: Option<usize>) -> io::Result<TcpListener> {
    let socket = socket(buffer_bytes)?;
    socket.set_reuse_address(true)?;
    socket.bind(&Site::address(PORT).into())?;
    socket.listen(1)?;
    Ok(socket.into())
}

fn connect(buffer_bytes: Option<usize>) -> io::Result<TcpStream> {
    let socket = socket(buffer_bytes)?;
    socket.connect_timeout(&Site::address(PORT).into(), PATIENCE)?;
    Ok(socket.into())
}

/// The next connection, which is on its way.
fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let (stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn send(mut stream: &TcpStream) {
    let piece = vec![0x5a; PIECE_BYTES];
    while stream.write(&piece).is_ok_and(|sent| sent > 0) {}
}

/// Bytes per second that come after the warm-up.
fn receive(
    mut stream: &TcpStream,
    warm_up: Duration,
    time: Duration,
    is_measuring: &AtomicBool,
) -> io::Result<f64> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut piece = vec![0; PIECE_BYTES];
    let began = Instant::now();
    let mut counted: Option<(Instant, u64)> = None;
    loop {
        let taken = stream.read(&mut piece)? as u64;
        if taken == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let now = Instant::now();
        match &mut counted {
            None if now - began >= warm_up => {
                counted = Some((now, 0));
                is_measuring.store(true, Ordering::Relaxed);
            }
            None => {}
            Some((since, bytes)) => {
                *bytes += taken;
                let took = now - *since;
                if took >= time {
                    is_measuring.store(false, Ordering::Relaxed);
                    return Ok(*bytes as f64 / took.as_secs_f64());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_busy_with_what_a_window_has_left_in_its_queue() {
        let link: Link = "rate=80M,queue=5M".parse().expect("a link");
        let ms = |window| held_back(&link.up, window).as_millis();
        // 10^7 bytes a second.
        assert_eq!((ms(None), ms(Some(100_000)), ms(Some(1 << 30))), (524, 10, 524));
        let open: Link = "rtt=5ms".parse().expect("a link");
        assert_eq!(held_back(&open.up, Some(1 << 30)), Duration::ZERO);
    }
}
