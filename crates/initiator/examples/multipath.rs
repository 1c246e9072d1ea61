//! A disk over all portals of its target: it is read from its beginning to its end while paths come and go, and what happens to them is
//! told.
//!
//! `cargo run -p lunette-initiator --example multipath -- iscsi://HOST/TARGET/LUN`

use std::error::Error;
use std::io::Write;

use lunette_initiator::multipath::{Engine, Options, PathOptions, Policy};
use lunette_initiator::{Command, Completion, EngineEvent, TargetUrl};
use lunette_scsi::client::capacity;
use lunette_scsi::client::medium::{self, BlockRange, Caching};

/// Reads at once.
const DEPTH: usize = 32;
/// The length of each, in bytes.
const READ_BYTES: u32 = 256 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let url: TargetUrl = std::env::args().nth(1).ok_or("give the disk's URL")?.parse()?;
    // SendTargets tells the portals. Paths that are known otherwise go into `Options::new`.
    let options = Options::discover(PathOptions::new(url.options(), url.lun))?;
    run(&url, options, &mut std::io::stdout().lock())
}

pub(crate) fn run(url: &TargetUrl, options: Options, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    // It returns with the first path; the others join when they are there.
    let mut engine = Engine::connect(Options { policy: Policy::RoundRobin, ..options })?;
    let query = capacity::read_capacity_16();
    engine.submit(Command::of(url.lun, query.command()));
    let mut done = Vec::new();
    wait(&mut engine, &mut done, out)?;
    let disk = query.decode(good(done.pop())?.data())?;

    let mut lba = 0;
    let (mut bytes, mut longest) = (0, 0);
    while lba < disk.blocks || engine.outstanding() > 0 {
        while lba < disk.blocks && engine.outstanding() < DEPTH {
            let left = u32::try_from(disk.blocks - lba).unwrap_or(u32::MAX);
            let blocks = left.min(READ_BYTES / disk.block_length_bytes);
            let range = BlockRange { lba, blocks, block_length_bytes: disk.block_length_bytes };
            // Which path it takes is the engine's affair. Where that one dies, it goes on over another one.
            let read = medium::read(range.form(), range, Caching::default())?;
            engine.submit(Command::of(url.lun, &read));
            lba += u64::from(blocks);
        }
        wait(&mut engine, &mut done, out)?;
        for completion in done.drain(..) {
            longest = longest.max(completion.attempts);
            bytes += good(Some(completion))?.data().len();
        }
    }
    writeln!(out, "{bytes} bytes; no read was sent more than {longest} times")?;
    for path in engine.paths() {
        let (state, access) = (path.state.name(), path.access.name());
        writeln!(out, "{}: {state}, {access}, {} commands", path.portal, path.sent)?;
    }
    engine.close()?;
    Ok(())
}

/// Waits until a command is over, and tells what has happened to the paths.
fn wait(engine: &mut Engine, done: &mut Vec<Completion>, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    while done.is_empty() {
        engine.poll(None, done)?;
        while let Some(event) = engine.event() {
            if let EngineEvent::Path { portal, news, .. } = event {
                writeln!(out, "{portal}: {news:?}")?;
            }
        }
    }
    Ok(())
}

/// The unit attentions of a new session were taken when its path was opened.
fn good(completion: Option<Completion>) -> Result<Completion, Box<dyn Error>> {
    let completion = completion.ok_or("a command ends")?;
    let status = completion.result.as_ref().map_err(Clone::clone)?;
    if status.is_good() { Ok(completion) } else { Err(status.to_string().into()) }
}
