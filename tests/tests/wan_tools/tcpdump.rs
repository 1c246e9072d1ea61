//! Each packet's time at both ends, as tcpdump has it in nanoseconds.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use lunette_tests::need_programs;

use super::{wait_for, wan_run};

/// Requests, and as many answers.
const COUNT: usize = 400;
/// Of data in a packet; there are 28 of headers besides.
const DATA_BYTES: u64 = 1400;
const RATE_BITS_PER_S: u64 = 4_000_000;
const DELAY_NS: u64 = 5_000_000;
/// What a packet keeps the transmitter busy. ping sends all at once, so that they queue.
const SERIALISATION_NS: u64 = (DATA_BYTES + 28) * 8 * 1_000_000_000 / RATE_BITS_PER_S;
/// The clock of the day may be slewed by 500 parts in a million of the time under way, and steps by a microsecond.
const SLEW: u64 = 1_000;
const STEP_NS: u64 = 2_000;

/// A magic number of nanoseconds, version and five more words; then each packet after four words.
const FILE_HEADER: usize = 24;
const PACKET_HEADER: usize = 16;
const MAGIC: u32 = 0xa1b2_3c4d;

/// A packet's type (8 asks, 0 answers), its number, and its time.
type Seen = (u8, u16, u64);

/// What a capture has, in its order.
fn seen(path: &Path) -> Result<Vec<Seen>> {
    let bytes = fs::read(path)?;
    let word = |at: usize| -> Result<u32> {
        Ok(u32::from_ne_bytes(bytes.get(at..at + 4).context("a short capture")?.try_into()?))
    };
    ensure!(word(0)? == MAGIC, "no capture in nanoseconds");
    let (mut at, mut all) = (FILE_HEADER, Vec::new());
    while at < bytes.len() {
        let time = u64::from(word(at)?) * 1_000_000_000 + u64::from(word(at + 4)?);
        let packet = at + PACKET_HEADER;
        let length = word(at + 8)? as usize;
        // An IPv4 header of 20 bytes without options (there is no other), then type, code, sum, identity and number.
        let icmp = bytes.get(packet + 20..packet + 28).context("a short packet")?;
        all.push((icmp[0], u16::from_be_bytes([icmp[6], icmp[7]]), time));
        at = packet + length;
    }
    Ok(all)
}

fn one_way(all: &[Seen], kind: u8) -> Vec<(u16, u64)> {
    all.iter().filter(|seen| seen.0 == kind).map(|&(_, number, time)| (number, time)).collect()
}

#[test]
fn every_packet_takes_its_time_and_its_turn() {
    need_programs!("ping", "tcpdump");
    times().unwrap_or_else(|error| panic!("{error:#}"));
}

fn times() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = |name: &str| directory.path().join(name);
    let capture = |end: &str| {
        format!(
            "tcpdump -i {end} -n -s 64 -c {} --immediate-mode --time-stamp-precision=nano -w - icmp >{} 2>{}",
            2 * COUNT,
            file(end).display(),
            file(&format!("{end}.log")).display()
        )
    };
    let is_listening = |end: &str| wait_for(&file(&format!("{end}.log")), "listening on");
    let has_ended = |end: &str| wait_for(&file(&format!("{end}.log")), "packets captured");
    let near = format!(
        "{} & {}{}ping -q -n -c {COUNT} -l {COUNT} -s {DATA_BYTES} -W 10 $LUNETTE_FAR >&2; {}{}cat {}/*.log >&2",
        capture("near"),
        is_listening("near"),
        is_listening("far"),
        has_ended("near"),
        has_ended("far"),
        directory.path().display()
    );
    let link = format!("rate={RATE_BITS_PER_S},delay=5ms,queue=4M");
    let Some(used) = wan_run(&directory, &link, Some(&format!("exec {}", capture("far"))), &near)? else {
        return Ok(());
    };
    let (near, far) = (seen(&file("near"))?, seen(&file("far"))?);
    if [&near, &far].iter().any(|all| all.len() != 2 * COUNT) {
        return used.figure(&format!("packets are missing: {}", used.output), false, 10.0);
    }
    for (way, from, to, kind) in [("near to far", &near, &far, 8), ("far to near", &far, &near, 0)] {
        let (from, to) = (one_way(from, kind), one_way(to, kind));
        no_packet_is_early(&from, &to).with_context(|| way)?;
        // With a queue that is never empty each packet comes a serialisation after the one before.
        let mut gaps: Vec<u64> = to.windows(2).map(|pair| pair[1].1.saturating_sub(pair[0].1)).collect();
        gaps.sort_unstable();
        let gap = gaps[gaps.len() / 2];
        let is_right = gap.abs_diff(SERIALISATION_NS) <= SERIALISATION_NS / 50;
        used.figure(&format!("{way}: {gap} ns between packets, not {SERIALISATION_NS}"), is_right, 10.0)?;
    }
    Ok(())
}

/// No packet comes before the transmitter can have sent it and all before it, and the wire has carried it; and none
/// overtakes another.
fn no_packet_is_early(from: &[(u16, u64)], to: &[(u16, u64)]) -> Result<()> {
    let numbers = |packets: &[(u16, u64)]| -> Vec<u16> { packets.iter().map(|packet| packet.0).collect() };
    ensure!(numbers(from) == numbers(to), "they are out of order: {:?}", numbers(to));
    let arrivals: HashMap<u16, u64> = to.iter().copied().collect();
    let mut free_at = 0;
    for (number, sent_at) in from {
        free_at = free_at.max(*sent_at) + SERIALISATION_NS;
        let (earliest, arrival) = (free_at + DELAY_NS, arrivals[number]);
        let slack = STEP_NS + (earliest - from[0].1) / SLEW;
        ensure!(arrival + slack >= earliest, "packet {number} is {} ns early", earliest - arrival);
    }
    Ok(())
}
