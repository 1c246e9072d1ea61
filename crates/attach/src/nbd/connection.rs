//! One NBD connection: a thread reads requests, others carry them out and answer, in whichever order they are done.

use std::io::{self, IoSlice, Read, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use lunette_nbd::{
    Allocation, Cookie, Errno, Export, Extents, Handshake, Outcome, PAYLOAD_BYTES_MAX, REQUEST_BYTES,
    Refusal, Request, Span, Terms, Then, Work, reply,
};
use socket2::{Socket, TcpKeepalive};

use super::budget::{Budget, Share};
use crate::{Disk, DiskError, Space};

/// The memory of the requests of one connection, in bytes: two of the longest.
const MEMORY_BYTES: u64 = 2 * PAYLOAD_BYTES_MAX as u64;
/// How long a TCP client may say nothing before its system is asked whether it is still there, how often it is asked, and how many times.
const IDLE_LIMIT: Duration = Duration::from_secs(60);
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
const PROBES: u32 = 6;
/// How long a client may take for each step of its handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(30);

/// A request to be carried out.
struct Job<'a> {
    cookie: Cookie,
    work: Result<Work, Errno>,
    payload: Vec<u8>,
    _memory: Share<'a>,
}

/// Serves a client until it goes.
///
/// # Errors
/// The connection broke, or the client did not keep to the protocol.
pub(super) fn serve(disk: &Disk, export: &Export, depth: usize, socket: &Socket) -> io::Result<()> {
    // Accepted from a listener that does not block; and small answers are not to wait for others.
    socket.set_nonblocking(false)?;
    if socket.local_addr()?.as_socket().is_some() {
        socket.set_tcp_nodelay(true)?;
        // A client whose machine is gone says nothing, and would have its place for ever.
        let probes =
            TcpKeepalive::new().with_time(IDLE_LIMIT).with_interval(PROBE_INTERVAL).with_retries(PROBES);
        socket.set_tcp_keepalive(&probes)?;
    }
    socket.set_read_timeout(Some(HANDSHAKE_LIMIT))?;
    let Some(terms) = shake_hands(export, socket)? else { return Ok(()) };
    socket.set_read_timeout(None)?;

    let budget = Budget::new(MEMORY_BYTES);
    // Many requests take no memory to speak of; they wait in the socket, not here, when nobody takes the answers.
    let (sender, receiver) = sync_channel(depth);
    let (receiver, answers) = (Mutex::new(receiver), Mutex::new(socket));
    thread::scope(|scope| {
        for _ in 0..depth {
            let work = || carry_out(disk, terms, &receiver, &answers);
            thread::Builder::new().name("nbd-work".into()).spawn_scoped(scope, work)?;
        }
        // The sender goes with this call, which is what ends the others once all requests are answered.
        read_requests(export, terms, socket, &budget, sender)
    })
}

/// None: the client went without wanting anything.
fn shake_hands(export: &Export, mut socket: &Socket) -> io::Result<Option<Terms>> {
    let (mut handshake, mut step) = Handshake::begin(export);
    loop {
        socket.write_all(&step.reply)?;
        match step.then {
            Then::Transmit(terms) => return Ok(Some(terms)),
            Then::Close => return Ok(None),
            Then::Read(length) => {
                // Bounded by the handshake.
                let mut bytes = vec![0; length];
                socket.read_exact(&mut bytes)?;
                step = handshake.received(&bytes);
            }
        }
    }
}

fn read_requests<'a>(
    export: &Export,
    terms: Terms,
    mut socket: &Socket,
    budget: &'a Budget,
    sender: SyncSender<Job<'a>>,
) -> io::Result<()> {
    loop {
        let mut header = [0; REQUEST_BYTES];
        socket.read_exact(&mut header)?;
        let Some(request) = Request::decode(&header) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the client sent no request"));
        };
        let work = request.judge(export, terms);
        if work == Ok(Work::Disconnect) {
            return Ok(());
        }
        let memory = budget.take(request.memory_bytes().into());
        // Bounded by what a request can be.
        let mut payload = vec![0; request.payload_bytes() as usize];
        socket.read_exact(&mut payload)?;
        let job = Job { cookie: request.cookie, work, payload, _memory: memory };
        if sender.send(job).is_err() {
            return Ok(());
        }
    }
}

/// Carries out requests until there are no more.
fn carry_out(disk: &Disk, terms: Terms, jobs: &Mutex<Receiver<Job<'_>>>, answers: &Mutex<&Socket>) {
    loop {
        let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else { return };
        let result = job.work.map_err(Refusal::from).and_then(|work| perform(disk, work, job.payload));
        let header = reply(terms, job.cookie, result.as_ref());
        let data = match &result {
            Ok(Outcome::Data { bytes, .. }) => &bytes[..],
            _ => &[],
        };
        let socket = answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answer(&socket, &header, data).is_err() {
            // Who reads the requests notices it, too.
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// What a request brings to its client.
fn perform(disk: &Disk, work: Work, payload: Vec<u8>) -> Result<Outcome, Refusal> {
    let done = match work {
        Work::Read(span) => {
            let bytes = disk.read(span.offset, span.length_bytes as usize).map_err(refusal)?;
            return Ok(Outcome::Data { offset: span.offset, bytes });
        }
        Work::BlockStatus { span, only_first } => {
            return extents(disk, span, only_first).map(Outcome::Extents).map_err(refusal);
        }
        Work::Write { span, fua } => disk.write(span.offset, payload, fua),
        // What cannot be changed need not be flushed.
        Work::Flush if disk.is_read_only() => Ok(()),
        Work::Flush => disk.flush(),
        Work::Trim { span, fua } => disk.discard(span.offset, span.length_bytes.into(), fua),
        Work::WriteZeroes { span, fua, may_unmap, fast } => {
            let length = span.length_bytes.into();
            if fast && !disk.zeroes_fast(span.offset, length, may_unmap) {
                return Err(Errno::NotSupported.into());
            }
            disk.zero(span.offset, length, may_unmap, fua)
        }
        Work::Disconnect => Ok(()),
    };
    done.map(|()| Outcome::Done).map_err(refusal)
}

fn refusal(error: DiskError) -> Refusal {
    Refusal { errno: error.nbd(), message: error.to_string() }
}

/// Where space is, as far as the unit says it at once.
fn extents(disk: &Disk, span: Span, only_first: bool) -> Result<Extents, DiskError> {
    let mut all = Extents::new(span, only_first);
    for extent in disk.extents(span.offset, span.length_bytes.into())? {
        let allocation = match extent.space {
            Space::Data => Allocation::Data,
            Space::Reserved => Allocation::Zeros,
            Space::Empty => Allocation::EmptyHole,
            Space::Undefined => Allocation::Hole,
        };
        all.push(extent.bytes.end - extent.bytes.start, allocation);
    }
    Ok(all)
}

fn answer(mut socket: &Socket, header: &[u8], data: &[u8]) -> io::Result<()> {
    let mut slices = &mut [IoSlice::new(header), IoSlice::new(data)][..];
    while !slices.is_empty() {
        match socket.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
