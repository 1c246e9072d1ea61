//! Many commands under way from one task: the beginning of a disk is read with 32 reads at once, and the slowest of them is told.
//!
//! `cargo run -p lunette-initiator --example asynchronous -- iscsi://HOST/TARGET/LUN`
//!
//! It needs no runtime: the engine has a thread of its own, and any executor can wait for the answers. The one below is the smallest.

use std::error::Error;
use std::future::Future;
use std::io::Write;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::Thread;

use lunette_initiator::{Command, Completion, Lun, Session, TargetUrl};
use lunette_scsi::client::capacity::{self, Capacity};
use lunette_scsi::client::medium::{self, BlockRange, Caching};
use lunette_scsi::client::unit;

/// Reads at once.
const READS: u64 = 32;
/// The length of each, in bytes.
const READ_BYTES: u32 = 64 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("give the disk's URL")?.parse()?;
    block_on(run(&url, &mut std::io::stdout().lock()))
}

pub(crate) async fn run(url: &TargetUrl, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let session = Session::connect(url.options()).await?;
    let disk = capacity_of(&session, url.lun).await?;
    let blocks = READ_BYTES / disk.block_length_bytes;
    let read = |place: u64| {
        let lba = place * u64::from(blocks);
        let range = BlockRange { lba, blocks, block_length_bytes: disk.block_length_bytes };
        medium::read(range.form(), range, Caching::default())
    };
    let reads = READS.min(disk.blocks / u64::from(blocks));
    // Each is under way once it is submitted. Who waits for the first one lets the others come meanwhile.
    let mut under_way = Vec::new();
    for place in 0..reads {
        under_way.push(session.submit(Command::of(url.lun, &read(place)?)));
    }
    let (mut bytes, mut slowest) = (0, None::<Completion>);
    for submitted in under_way {
        let completion = submitted.await;
        let status = completion.result.as_ref().map_err(Clone::clone)?;
        if !status.is_good() {
            return Err(status.to_string().into());
        }
        bytes += completion.data().len();
        if slowest.as_ref().is_none_or(|slowest| took(slowest) < took(&completion)) {
            slowest = Some(completion);
        }
    }
    writeln!(out, "{bytes} bytes by {reads} reads")?;
    if let Some(slowest) = slowest {
        let first = slowest.times.first_byte.map(|first| first.saturating_sub(slowest.times.queued));
        writeln!(out, "the slowest took {:?}, its first byte came after {first:?}", took(&slowest))?;
    }
    session.log_out().await;
    Ok(())
}

fn took(completion: &Completion) -> std::time::Duration {
    completion.times.done.saturating_sub(completion.times.queued)
}

/// How many unit attentions are taken in a row.
const ATTENTIONS_MAX: usize = 16;

/// Has the unit tell what has happened to it, which it does once, and asks for its size.
async fn capacity_of(session: &Session, lun: Lun) -> Result<Capacity, Box<dyn Error>> {
    for _ in 0..ATTENTIONS_MAX {
        let ready = session.submit(Command::of(lun, &unit::test_unit_ready())).await;
        if ready.is_good() {
            break;
        }
    }
    let query = capacity::read_capacity_16();
    let completion = session.submit(Command::of(lun, query.command())).await;
    let status = completion.result.as_ref().map_err(Clone::clone)?;
    if !status.is_good() {
        return Err(status.to_string().into());
    }
    Ok(query.decode(completion.data())?)
}

/// Runs a future on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let mut future = pin!(future);
    let waker = Arc::new(Unpark(std::thread::current())).into();
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}
