//! An engine in a loop that also waits for something else: numbers of blocks come on the standard input, one a line, and each block's first
//! bytes are told when they are there. Numbers are taken while reads are under way, in whatever order those end.
//!
//! `cargo run -p lunette-initiator --example event_loop -- iscsi://HOST/TARGET/LUN`

use std::collections::HashMap;
use std::error::Error;
use std::io::{Read, Write};
use std::time::Duration;

use lunette_initiator::{Command, CommandId, Engine, TargetUrl};
use lunette_scsi::client::capacity;
use lunette_scsi::client::medium::{self, BlockRange, Caching};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;

/// Bytes of a block that are told.
const SHOWN: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("give the disk's URL")?.parse()?;
    // Not the locked one, which reads ahead of what its caller takes.
    let mut input = std::fs::File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    run(&url, &mut input, &mut std::io::stdout().lock())
}

pub(crate) fn run(
    url: &TargetUrl,
    input: &mut (impl Read + AsFd),
    out: &mut impl Write,
) -> Result<(), Box<dyn Error>> {
    let mut engine = Engine::connect(url.options())?;
    let block_length_bytes = block_length(&mut engine, url)?;
    let mut wanted: HashMap<CommandId, u64> = HashMap::new();
    let (mut line, mut buffer) = (Vec::new(), [0; 4096]);
    let (mut done, mut is_open) = (Vec::new(), true);
    loop {
        // Without waiting: what was submitted is sent, what has come is handed out.
        engine.poll(Some(Duration::ZERO), &mut done)?;
        for completion in done.drain(..) {
            let Some(lba) = wanted.remove(&completion.id) else { continue };
            match &completion.result {
                Ok(status) if status.is_good() => {
                    let data = completion.data();
                    writeln!(out, "{lba}: {:02x?}", &data[..data.len().min(SHOWN)])?;
                }
                Ok(status) => writeln!(out, "{lba}: {status}")?,
                Err(error) => writeln!(out, "{lba}: {error}")?,
            }
        }
        // That the session is lost and there again, for one; its commands go on by themselves.
        while let Some(event) = engine.event() {
            writeln!(out, "{event:?}")?;
        }
        if !is_open && engine.outstanding() == 0 {
            break;
        }
        let limit = engine.idle_for().map(Timespec::try_from).transpose()?;
        let mut watched = vec![PollFd::new(&engine, PollFlags::IN)];
        if is_open {
            watched.push(PollFd::new(input, PollFlags::IN));
        }
        match poll(&mut watched, limit.as_ref()) {
            Err(rustix::io::Errno::INTR) => continue,
            ended => ended?,
        };
        let has_come = watched.get(1).is_some_and(|input| !input.revents().is_empty());
        drop(watched);
        if !has_come {
            continue;
        }
        let length = input.read(&mut buffer)?;
        is_open = length > 0;
        line.extend_from_slice(&buffer[..length]);
        while let Some(end) = line.iter().position(|&byte| byte == b'\n') {
            let lba = std::str::from_utf8(&line[..end])?.trim().parse()?;
            line.drain(..=end);
            let block = BlockRange { lba, blocks: 1, block_length_bytes };
            let read = medium::read(block.form(), block, Caching::default())?;
            wanted.insert(engine.submit(Command::of(url.lun, &read)), lba);
        }
    }
    engine.close()?;
    Ok(())
}

/// How many unit attentions are taken in a row.
const ATTENTIONS_MAX: usize = 16;

/// Asks for the length of blocks, until the unit has told all that has happened to it.
fn block_length(engine: &mut Engine, url: &TargetUrl) -> Result<u32, Box<dyn Error>> {
    let query = capacity::read_capacity_16();
    let mut done = Vec::new();
    for _ in 0..ATTENTIONS_MAX {
        engine.submit(Command::of(url.lun, query.command()));
        while engine.outstanding() > 0 {
            engine.poll(None, &mut done)?;
        }
        let completion = done.pop().ok_or("a command ends")?;
        let status = completion.result.as_ref().map_err(Clone::clone)?;
        if status.is_good() {
            return Ok(query.decode(completion.data())?.block_length_bytes);
        }
        if !status.decoded_sense().is_some_and(|sense| sense.is_unit_attention()) {
            return Err(status.to_string().into());
        }
    }
    Err("the unit has more unit attentions than can be".into())
}
