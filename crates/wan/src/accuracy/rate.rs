//! How much a link lets through that is asked for more: by datagrams, and where this machine cannot send so many of them, by TCP.

use std::io;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use lunette_link::{Link, Loss, Shape};

use super::source::{batch, source};
use super::{CONFIDENCE, Figure, HEADERS, Means, TOLERANCE, Way, line_bytes};
use crate::bulk::Bulk;
use crate::emulator::Emulator;
use crate::sink::Sink;

/// How long a link that is asked for more than its rate is looked at.
const RATE_TIME: Duration = Duration::from_secs(2);

/// How long counting what came may take: who is away for longer does not know of which moment the count is.
const COUNT_TIME_MAX: Duration = Duration::from_millis(20);

/// How much more it is asked for.
const RATE_EXCESS: f64 = 1.08;

/// A link is full as long as its queue is not empty. Who pauses for longer than this part of the time that a full queue lasts may
/// have left it empty.
const PAUSE_OF_QUEUE: f64 = 0.5;

/// How many round trips TCP has to find its rate, before it is looked at.
const TCP_ROUND_TRIPS: u32 = 20;

pub(super) fn rate(emulator: &Emulator, way: Way, shape: &Shape, link: &Link) -> io::Result<Option<Figure>> {
    let Some(rate) = shape.rate else { return Ok(None) };
    // What the wire loses has used the rate; what it doubles has not. Of what it damages the kernel throws some away.
    let through = (1.0 - shape.loss.mean()) * (1.0 + shape.duplicate.get());
    let expected = rate.bits_per_s() as f64 * through;
    // What chance makes of it in the packets of that time.
    let line_bits = line_bytes(shape, usize::from(link.mtu) - HEADERS) as f64 * 8.0;
    let packets = (rate.bits_per_s() as f64 / line_bits * RATE_TIME.as_secs_f64()).max(1.0);
    let copies = shape.duplicate.get();
    let variance = shape.loss.variance(packets) + copies * (1.0 - copies) / packets;
    let by_chance = rate.bits_per_s() as f64 * CONFIDENCE * variance.sqrt();
    let figure = |measured: Option<f64>, by| Figure {
        what: if way == Way::Up { "rate, near to far" } else { "rate, far to near" },
        unit: "Mb/s",
        expected: expected / 1e6,
        measured: measured.map(|measured| measured / 1e6),
        by,
        tolerance: (expected * (TOLERANCE + shape.corrupt.get()) + by_chance) / 1e6,
    };
    // Each fills more than the one before, and is less simple.
    let mut found = figure(None, Means::Datagrams);
    for by in [Means::Datagrams, Means::Batches, Means::Tcp] {
        let mark = emulator.mark()?;
        let carried = match by {
            Means::Datagrams => datagrams(emulator, way, shape, link.mtu, 1)?,
            Means::Batches => {
                let batch = batch(shape, usize::from(link.mtu) - HEADERS);
                if batch == 1 {
                    continue;
                }
                datagrams(emulator, way, shape, link.mtu, batch)?
            }
            // TCP sends less where anything is lost or changed, and what it has sent again is in no figure.
            Means::Tcp if !is_clean(&link.up) || !is_clean(&link.down) => continue,
            Means::Tcp => Some(Carried { bits_per_s: stream(emulator, way, shape, link)?, is_filled: false }),
        };
        let Some(Carried { bits_per_s, is_filled }) = carried else { continue };
        found = figure(Some(bits_per_s), by);
        // Whether less came because less was sent, or got lost beside the link, nobody knows: that is no figure of the link.
        let is_less = bits_per_s < expected;
        let has_come = is_filled && emulator.since(&mark)?.overrun == 0;
        if found.is_good() || !is_less || has_come {
            return Ok(Some(found));
        }
        found.measured = None;
    }
    Ok(Some(found))
}

/// What came over a link that was asked for more than its rate, in bits per second of the line, and whether it always had
/// something to send.
#[derive(Debug, Clone, Copy)]
struct Carried {
    bits_per_s: f64,
    is_filled: bool,
}

/// By datagrams of full length, so many at once; `None` where this machine cannot send so many, or count them in time.
fn datagrams(
    emulator: &Emulator,
    way: Way,
    shape: &Shape,
    mtu: u16,
    batch: usize,
) -> io::Result<Option<Carried>> {
    let Some(rate) = shape.rate else { return Ok(None) };
    let (source, mut sink) = source(emulator, way)?;
    let data = usize::from(mtu) - HEADERS;
    if batch > 1 && source.take_apart(data).is_err() {
        return Ok(None);
    }
    let bits = line_bytes(shape, data) as f64 * 8.0;
    let packets_per_s = rate.bits_per_s() as f64 / bits * RATE_EXCESS;
    let warm_up = RATE_TIME / 4 + shape.delay;
    let queue_s = shape.queue_bytes as f64 * 8.0 / rate.bits_per_s() as f64;
    thread::scope(|scope| {
        let sender = scope.spawn(|| source.send_evenly(data, batch, packets_per_s, RATE_TIME + warm_up));
        thread::sleep(warm_up);
        let before = arrived(&mut sink)?;
        thread::sleep(RATE_TIME - Duration::from_millis(50));
        let after = arrived(&mut sink)?;
        let sent = sender.join().ok().flatten();
        Ok(sent.zip(before.zip(after)).map(|(sent, ((began, before), (ended, after)))| Carried {
            bits_per_s: (after - before) as f64 * bits / (ended - began).as_secs_f64(),
            is_filled: sent.pause.as_secs_f64() <= queue_s * PAUSE_OF_QUEUE,
        }))
    })
}

/// What has arrived so far, and when that was so; `None` where this machine was too busy to tell.
fn arrived(sink: &mut Sink<'_>) -> io::Result<Option<(Instant, u64)>> {
    let began = Instant::now();
    let arrived = sink.arrived()?;
    let took = began.elapsed();
    Ok((took <= COUNT_TIME_MAX).then(|| (began + took / 2, arrived)))
}

/// Whether nothing happens to packets but that they wait and take their time.
fn is_clean(shape: &Shape) -> bool {
    let share = shape.duplicate.get() + shape.corrupt.get() + shape.reorder.share.get();
    shape.loss == Loss::None && share == 0.0 && shape.jitter.most.is_zero()
}

/// What TCP carries of the line, in bits per second: of each full segment the data comes, and the packet has been on it. Shorter ones make
/// it less than it was, and never more.
fn stream(emulator: &Emulator, way: Way, shape: &Shape, link: &Link) -> io::Result<f64> {
    let bulk = Bulk::connect(emulator, way == Way::Up, None)?;
    let warm_up = RATE_TIME / 4 + link.round_trip() * TCP_ROUND_TRIPS;
    let data_per_s = bulk.carry(warm_up, RATE_TIME, &AtomicBool::default())?;
    let line = f64::from(link.mtu) + f64::from(shape.overhead_bytes);
    Ok(data_per_s * 8.0 / f64::from(segment_bytes(link.mtu)) * line)
}

/// The data of a full segment over IPv4: with the time stamps that each has unless somebody has turned them off, when it is a little more.
const fn segment_bytes(mtu: u16) -> u16 {
    const IPV4_TCP_TIME: u16 = 20 + 20 + 12;
    mtu - IPV4_TCP_TIME
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the sender hands over at once are packets of their own on the link, and full segments carry what they are said to.
    #[test]
    fn each_of_the_means_finds_the_rate_and_none_finds_more() {
        let link: Link = "rate=20M,mtu=1500,overhead=38".parse().expect("a link");
        let emulator = match Emulator::start(&link, 1) {
            Ok(emulator) => emulator,
            Err(error) => return lunette_skip::record_lacking(&error.to_string()),
        };
        let batch = batch(&link.up, 1500 - HEADERS);
        assert!(batch > 8);
        let one = datagrams(&emulator, Way::Up, &link.up, link.mtu, 1).expect("a network");
        let many = datagrams(&emulator, Way::Down, &link.down, link.mtu, batch).expect("a network");
        let tcp = Some(stream(&emulator, Way::Up, &link.up, &link).expect("a network"));
        for (means, found) in [
            (Means::Datagrams, one.map(|one| one.bits_per_s)),
            (Means::Batches, many.map(|many| many.bits_per_s)),
            (Means::Tcp, tcp),
        ] {
            let Some(found) = found else {
                lunette_skip::record_lacking(&format!("{}: this machine was too busy", means.name()));
                continue;
            };
            // How much less depends on the machine; a queue that empties itself at the end is in it.
            assert!(found <= 20e6 * 1.05 && found > 1e6, "{}: {found}", means.name());
        }
    }

    #[test]
    fn what_changes_packets_is_not_measured_by_tcp() {
        let clean = |link: &str| is_clean(&link.parse::<Link>().expect("a link").up);
        assert!(clean("gige,rtt=20ms"));
        for link in ["gige,loss=1%", "gige,duplicate=1%", "gige,corrupt=1%", "gige,reorder=1%/1ms"] {
            assert!(!clean(link), "{link}");
        }
    }
}
