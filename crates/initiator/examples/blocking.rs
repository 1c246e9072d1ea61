//! One thing at a time: how large a disk is, what one of its blocks holds, and, where a text is given, that text written to the block.
//!
//! `cargo run -p lunette-initiator --example blocking -- iscsi://HOST/TARGET/LUN LBA [TEXT]`

use std::error::Error;
use std::io::Write;

use lunette_initiator::blocking::Session;
use lunette_initiator::{Command, Completion, TargetUrl};
use lunette_scsi::client::capacity;
use lunette_scsi::client::medium::{self, BlockRange, Caching};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("give the disk's URL")?.parse()?;
    let lba = arguments.next().ok_or("give the number of a block")?.parse()?;
    run(&url, lba, arguments.next().as_deref(), &mut std::io::stdout().lock())
}

pub(crate) fn run(
    url: &TargetUrl,
    lba: u64,
    text: Option<&str>,
    out: &mut impl Write,
) -> Result<(), Box<dyn Error>> {
    let session = Session::connect(url.options())?;
    let query = capacity::read_capacity_16();
    let answer = good(&session, &Command::of(url.lun, query.command()))?;
    let disk = query.decode(answer.data())?;
    writeln!(out, "{} blocks of {} bytes", disk.blocks, disk.block_length_bytes)?;

    let block = BlockRange { lba, blocks: 1, block_length_bytes: disk.block_length_bytes };
    if let Some(text) = text {
        let mut data = vec![0; block.length_bytes()? as usize];
        data.get_mut(..text.len()).ok_or("the text is longer than a block")?.copy_from_slice(text.as_bytes());
        // FUA: the answer comes when the block is stable, so that no flush is needed.
        let caching = Caching { force_unit_access: true, ..Caching::default() };
        let write = medium::write(block.form(), block, caching)?;
        good(&session, &Command::of(url.lun, &write).writing(data))?;
    }
    let read = medium::read(block.form(), block, Caching::default())?;
    let answer = good(&session, &Command::of(url.lun, &read))?;
    let text = answer.data().split(|&byte| byte == 0).next().unwrap_or_default();
    writeln!(out, "block {lba} holds {:?}", String::from_utf8_lossy(text))?;
    let times = answer.times;
    let after = |time: std::time::Duration| time.saturating_sub(times.queued);
    let (sent, first) = (times.sent.map(after), times.first_byte.map(after));
    writeln!(out, "sent after {sent:?}, first byte after {first:?}, done after {:?}", after(times.done))?;
    // Else the session would be logged out when its last handle goes.
    session.log_out();
    Ok(())
}

/// How many unit attentions are taken in a row.
const ATTENTIONS_MAX: usize = 16;

/// Carries a command out. A unit first tells what has happened to it: that somebody has logged in, for one. The command that
/// meets such a unit attention was not carried out, and is sent again.
fn good(session: &Session, command: &Command) -> Result<Completion, Box<dyn Error>> {
    for _ in 0..ATTENTIONS_MAX {
        let completion = session.execute(command.clone());
        match &completion.result {
            Ok(status) if status.is_good() => return Ok(completion),
            Ok(status) if status.decoded_sense().is_some_and(|sense| sense.is_unit_attention()) => {}
            Ok(status) => return Err(status.to_string().into()),
            Err(error) => return Err(error.clone().into()),
        }
    }
    Err("the unit has more unit attentions than can be".into())
}
