//! What a disk gives through each engine, in one process and without a network: for choosing and for profiling.
//!
//! `engines FILE [SECONDS] [ENGINE,...] [CASE,...]` takes an existing image of which it overwrites the contents, and
//! prints operations per second of 4 KiB at random places: for each engine, case and depth the median of five rounds
//! in which the engines take turns. Cases are `read`, `write`, `stable` (each write is flushed) and `hundred` (a flush
//! after every hundred writes). The waiting is that of a reactor: awake for a moment at depth 1, otherwise asleep.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunette_block::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const BLOCK_BYTES: usize = 4096;
const DEPTHS: [usize; 4] = [1, 8, 32, 128];
const ROUNDS: usize = 5;
const AWAKE: Duration = Duration::from_micros(150);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(arguments.next().ok_or("the image is missing")?);
    let seconds: f64 = arguments.next().map_or(Ok(0.5), |text| text.parse())?;
    let engines = arguments.next().unwrap_or_else(|| "sync,threads,direct,uring".to_owned());
    let engines: Vec<EngineKind> = engines.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let cases = arguments.next().unwrap_or_else(|| "read,write,stable,hundred".to_owned());
    let mut out = std::io::stdout().lock();
    for case in cases.split(',') {
        for depth in DEPTHS {
            let mut rates = vec![Vec::new(); engines.len()];
            for _ in 0..ROUNDS {
                for (engine, rates) in engines.iter().zip(&mut rates) {
                    rates.push(measure(&path, *engine, case, depth, Duration::from_secs_f64(seconds))?);
                }
            }
            write!(out, "{case:8} depth {depth:3}:")?;
            for (engine, rates) in engines.iter().zip(&mut rates) {
                rates.sort_by(f64::total_cmp);
                let (low, middle, high) = (rates[0], rates[ROUNDS / 2], rates[ROUNDS - 1]);
                write!(out, "  {engine} {middle:.0} ({low:.0}-{high:.0})")?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}

/// Operations per second.
fn measure(
    path: &std::path::Path,
    engine: EngineKind,
    case: &str,
    depth: usize,
    how_long: Duration,
) -> Result<f64, Box<dyn Error>> {
    let volume = Volume::open(&VolumeSpec {
        engine,
        identity: IdentityOverride { serial: Some("bench".to_owned()) },
        ..VolumeSpec::new("bench", StoreSpec::File { path: path.to_owned(), create_bytes: None })
    })?;
    let pool = BufferPool::new(64 << 20);
    let mut load = Load { volume: Arc::clone(&volume), pool, case, random: 88172645463325252, count: 0 };
    let mut context = IoContext::new()?;
    let mut finished = Vec::new();
    for _ in 0..depth {
        load.submit(&mut context);
    }
    let began = Instant::now();
    let mut operations = 0_u64;
    while began.elapsed() < how_long {
        context.complete(&mut finished);
        if finished.is_empty() {
            wait(&context, depth)?;
        }
        for completion in finished.drain(..) {
            completion.result?;
            operations += 1;
            load.submit(&mut context);
        }
    }
    let took = began.elapsed();
    while context.in_flight() > 0 {
        context.complete(&mut finished);
    }
    volume.close()?;
    Ok(operations as f64 / took.as_secs_f64())
}

fn wait(context: &IoContext, depth: usize) -> Result<(), Box<dyn Error>> {
    let mut fds = [PollFd::new(context, PollFlags::IN)];
    let began = Instant::now();
    while depth == 1 && began.elapsed() < AWAKE {
        if matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1)) {
            return Ok(());
        }
        rustix::thread::sched_yield();
    }
    match poll(&mut fds, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

struct Load<'a> {
    volume: Arc<Volume>,
    pool: BufferPool,
    case: &'a str,
    random: u64,
    count: u64,
}

impl Load<'_> {
    fn submit(&mut self, context: &mut IoContext) {
        self.count += 1;
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let offset = self.random % (self.volume.size_bytes() / BLOCK_BYTES as u64) * BLOCK_BYTES as u64;
        let operation = match (self.case, self.pool.allocate(BLOCK_BYTES)) {
            ("read", Some(buffer)) => Operation::Read { offset, buffer },
            ("hundred", Some(_)) if self.count.is_multiple_of(101) => Operation::Flush,
            (case, Some(buffer)) => {
                let buffer = WriteSource { buffer: buffer.into(), range: 0..BLOCK_BYTES };
                Operation::Write { offset, buffer, stable: case == "stable" }
            }
            (_, None) => Operation::Flush,
        };
        context.submit(&self.volume, self.count, operation);
    }
}
