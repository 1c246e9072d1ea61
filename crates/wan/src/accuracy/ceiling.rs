//! What this machine can carry at most.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::Way;
use super::source::source;
use crate::emulator::{Emulator, FAR};

/// How long the ceiling is looked for, twice.
const CEILING_TIME: Duration = Duration::from_secs(1);

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
