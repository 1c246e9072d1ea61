//! `lunette-bench stream`: blocks of a file over TCP with `sendfile` and nothing else, and who asks for them. No protocol can
//! answer large reads with less: what that costs is what iSCSI is held to.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use lunette_tcp::Acceptance;
use rustix::net::RecvFlags;
use socket2::{Domain, Protocol, Socket, Type};

/// Bytes of each answer.
const BLOCK_BYTES: u64 = 512 << 10;

/// Bytes of each request: a block's number, little-endian. Beyond the end of the file they begin again.
const REQUEST_BYTES: usize = 8;

/// As much is thrown away at a time as by the load generator.
const SCRATCH_BYTES: usize = 256 << 10;

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    side: Side,
}

#[derive(Debug, Subcommand)]
enum Side {
    /// Answers requests with blocks of a file until it is killed
    Serve {
        /// The file
        file: String,
    },
    /// Asks for blocks one after the other, as the load generator does, and says how many came
    Read {
        /// Where the server is
        portal: SocketAddr,
        /// Requests in flight
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
        depth: u64,
        /// How long to ask
        #[arg(long, value_name = "SECONDS")]
        seconds: f64,
    },
}

/// # Errors
/// The file cannot be read, or the other side is not there.
pub(crate) fn run(options: &Options) -> Result<()> {
    match &options.side {
        Side::Serve { file } => serve(file),
        Side::Read { portal, depth, seconds } => {
            read(*portal, *depth, Duration::try_from_secs_f64(*seconds)?)
        }
    }
}

fn serve(path: &str) -> Result<()> {
    let file = File::open(path).with_context(|| path.to_owned())?;
    let blocks = file.metadata()?.len() / BLOCK_BYTES;
    ensure!(blocks > 0, "{path} holds no block of {BLOCK_BYTES} bytes");
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let acceptance = Acceptance::prepare(&listener);
    println!("{}", serde_json::json!({ "portal": listener.local_addr()?.to_string() }));
    loop {
        let (socket, _) = listener.accept()?;
        acceptance.settle(&socket);
        if let Err(error) = answer(socket, &file, blocks) {
            eprintln!("{error:#}");
        }
    }
}

/// One connection, to its end.
fn answer(mut socket: TcpStream, file: &File, blocks: u64) -> Result<()> {
    socket.set_nodelay(true)?;
    let (mut requests, mut held) = ([0; 512 * REQUEST_BYTES], 0);
    loop {
        match socket.read(&mut requests[held..])? {
            0 => return Ok(()),
            read => held += read,
        }
        let (whole, rest) = requests[..held].as_chunks::<REQUEST_BYTES>();
        for request in whole {
            let mut at = u64::from_le_bytes(*request) % blocks * BLOCK_BYTES;
            let end = at + BLOCK_BYTES;
            while at < end {
                let length = usize::try_from(end - at)?;
                let sent = rustix::fs::sendfile(&socket, file, Some(&mut at), length)?;
                ensure!(sent > 0, "the file has become shorter");
            }
        }
        let (start, left) = (held - rest.len(), rest.len());
        requests.copy_within(start..held, 0);
        held = left;
    }
}

fn read(portal: SocketAddr, depth: u64, duration: Duration) -> Result<()> {
    let socket = Socket::new(Domain::for_address(portal), Type::STREAM, Some(Protocol::TCP))?;
    lunette_tcp::before_connecting(&socket, portal);
    socket.connect(&portal.into()).with_context(|| portal.to_string())?;
    socket.set_tcp_nodelay(true)?;
    let mut socket = TcpStream::from(socket);
    let mut scratch = vec![0; SCRATCH_BYTES];
    let began = Instant::now();
    let (mut asked, mut answered, mut bytes) = (0, 0, 0);
    while asked < depth {
        socket.write_all(&u64::to_le_bytes(asked))?;
        asked += 1;
    }
    while answered < asked {
        // TCP: the bytes are taken off the queue and copied nowhere.
        let (_, received) = rustix::net::recv(&socket, &mut scratch[..], RecvFlags::TRUNC)?;
        ensure!(received > 0, "the server closed the connection");
        bytes += received as u64;
        while bytes >= BLOCK_BYTES {
            bytes -= BLOCK_BYTES;
            answered += 1;
            if began.elapsed() < duration {
                socket.write_all(&u64::to_le_bytes(asked))?;
                asked += 1;
            }
        }
    }
    let bytes_per_s = (answered * BLOCK_BYTES) as f64 / began.elapsed().as_secs_f64();
    println!("{}", serde_json::json!({ "operations": answered, "bytes_per_s": bytes_per_s }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn blocks_come_in_the_order_asked_for_and_begin_again_behind_the_end() {
        let mut file = tempfile::tempfile().unwrap();
        let block = |number: u8| vec![number; BLOCK_BYTES as usize];
        for number in 0..3 {
            file.write_all(&block(number)).unwrap();
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = listener.accept().unwrap().0;
        let server = thread::spawn(move || answer(socket, &file, 3));
        // A request may come in two parts.
        let requests: Vec<u8> = [2_u64, 0, 4].into_iter().flat_map(u64::to_le_bytes).collect();
        client.write_all(&requests[..11]).unwrap();
        let mut came = vec![0; 3 * BLOCK_BYTES as usize];
        client.read_exact(&mut came[..100]).unwrap();
        client.write_all(&requests[11..]).unwrap();
        client.read_exact(&mut came[100..]).unwrap();
        assert!(came == [block(2), block(0), block(1)].concat());
        drop(client);
        server.join().unwrap().unwrap();
    }
}
