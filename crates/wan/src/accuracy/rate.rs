//! How much a link lets through that is asked for more: by datagrams, and where this machine cannot send so many of them, by TCP.

use std::io;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use lunette_link::{Link, Loss, Rate, Shape};

use super::source::{batch, source};
use super::{CONFIDENCE, Figure, HEADERS, Means, TOLERANCE, Way, line_bytes};
use crate::bulk::Bulk;
use crate::emulator::Emulator;
use crate::sink::Sink;

/// How long a link that is asked for more than its rate is looked at: at least, and at most where it is slow.
const RATE_TIME: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(20)];

/// How many packets are to come in that time; on slow links they are shorter for it.
const RATE_PACKETS: f64 = 200.0;

/// Of fewer packets nobody can tell a rate.
const RATE_PACKETS_MIN: f64 = 8.0;

/// The data of packets is not made shorter than this.
const RATE_BYTES_MIN: usize = 36;

/// Packets that a right link may carry more or less of: one that comes just before or behind the time, and one that the kernel
/// sends by itself.
const RATE_PACKETS_OFF: f64 = 2.0;

/// How long counting what came may take: who is away for longer does not know of which moment the count is.
const COUNT_TIME_MAX: Duration = Duration::from_millis(20);

/// How much more it is asked for.
const RATE_EXCESS: f64 = 1.08;

/// A link is full as long as its queue is not empty. Who pauses for longer than this part of the time that a full queue lasts may
/// have left it empty.
const PAUSE_OF_QUEUE: f64 = 0.5;

/// How many round trips TCP has to find its rate, before it is looked at.
const TCP_ROUND_TRIPS: u32 = 20;

/// What is sent to measure a rate, and for how long it is looked at.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Load {
    /// Data of a packet, in bytes.
    data: usize,
    /// A packet on the line, in bits.
    line_bits: f64,
    time: Duration,
}

impl Load {
    fn of(rate: Rate, shape: &Shape, mtu: u16) -> Self {
        let longest = usize::from(mtu) - HEADERS;
        let room = rate.bytes_in(RATE_TIME[0].div_f64(RATE_PACKETS));
        let room = usize::try_from(room).unwrap_or(usize::MAX).saturating_sub(line_bytes(shape, 0));
        let data = room.max(RATE_BYTES_MIN).min(longest);
        let line_bits = line_bytes(shape, data) as f64 * 8.0;
        let [least, most] = RATE_TIME.map(|time| time.as_secs_f64());
        let seconds = |packets: f64| line_bits * packets / rate.bits_per_s() as f64;
        let needed = Some(seconds(needed(shape))).filter(|needed| *needed <= most).unwrap_or_default();
        let time = Duration::from_secs_f64(seconds(RATE_PACKETS).clamp(least, most).max(needed));
        Self { data, line_bits, time }
    }

    /// How many packets come in the time.
    fn packets(&self, rate: Rate) -> f64 {
        rate.bits_per_s() as f64 / self.line_bits * self.time.as_secs_f64()
    }

    /// Whether the packets are as long as the link lets them be.
    fn is_full(&self, mtu: u16) -> bool {
        self.data == usize::from(mtu) - HEADERS
    }
}

/// What share of the rate comes through: what the wire loses has used it, and what it doubles has not. Of what it damages the kernel
/// throws some away.
fn through(shape: &Shape) -> f64 {
    (1.0 - shape.loss.mean()) * (1.0 + shape.duplicate.get())
}

/// What chance makes of that in so many packets, as a share of the rate.
fn by_chance(shape: &Shape, packets: f64) -> f64 {
    let copies = shape.duplicate.get();
    let variance = shape.loss.variance(packets) + copies * (1.0 - copies) / packets;
    CONFIDENCE * variance.sqrt()
}

/// Of how many packets chance makes no more than what the rate is to be right within.
fn needed(shape: &Shape) -> f64 {
    (by_chance(shape, 1.0) / (through(shape) * TOLERANCE)).powi(2).ceil()
}

pub(super) fn rate(emulator: &Emulator, way: Way, shape: &Shape, link: &Link) -> io::Result<Option<Figure>> {
    let Some(rate) = shape.rate else { return Ok(None) };
    let load = Load::of(rate, shape, link.mtu);
    let expected = rate.bits_per_s() as f64 * through(shape);
    let packets = load.packets(rate).max(1.0);
    let by_chance = rate.bits_per_s() as f64 * by_chance(shape, packets);
    let needed = needed(shape);
    let figure = |measured: Option<f64>, by| Figure {
        what: if way == Way::Up { "rate, near to far" } else { "rate, far to near" },
        unit: "Mb/s",
        expected: expected / 1e6,
        measured: measured.map(|measured| measured / 1e6),
        by,
        tolerance: (expected * (TOLERANCE + RATE_PACKETS_OFF / packets + shape.corrupt.get()) + by_chance)
            / 1e6,
        needs: (packets < needed).then(|| format!("{needed:.0} packets")),
    };
    if packets < RATE_PACKETS_MIN {
        return Ok(Some(figure(None, Means::Datagrams)));
    }
    // Each fills more than the one before, and is less simple.
    let mut found = figure(None, Means::Datagrams);
    for by in [Means::Datagrams, Means::Batches, Means::Tcp] {
        let mark = emulator.mark()?;
        let carried = match by {
            Means::Datagrams => datagrams(emulator, way, shape, &load, 1)?,
            Means::Batches => {
                let batch = batch(shape, load.data);
                if batch == 1 {
                    continue;
                }
                datagrams(emulator, way, shape, &load, batch)?
            }
            // TCP sends less where anything is lost or changed, and what it has sent again is in no figure. Of its long segments
            // too few come over a slow link.
            Means::Tcp if !load.is_full(link.mtu) || !is_clean(&link.up) || !is_clean(&link.down) => continue,
            Means::Tcp => Some(Carried { bits_per_s: stream(emulator, way, shape, link)?, is_filled: false }),
        };
        let Some(Carried { bits_per_s, is_filled }) = carried else { continue };
        found = figure(Some(bits_per_s), by);
        // Whether less came because less was sent, or got lost beside the link, nobody knows: that is no figure of the link.
        let is_less = bits_per_s < expected;
        let has_come = is_filled && emulator.since(&mark)?.overrun == 0;
        if found.verdict().is_no_fault() || !is_less || has_come {
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

/// By datagrams, so many at once; `None` where this machine cannot send so many, or count them in time.
fn datagrams(
    emulator: &Emulator,
    way: Way,
    shape: &Shape,
    load: &Load,
    batch: usize,
) -> io::Result<Option<Carried>> {
    let Some(rate) = shape.rate else { return Ok(None) };
    let (source, mut sink) = source(emulator, way)?;
    let Load { data, line_bits: bits, time } = *load;
    if batch > 1 && source.take_apart(data).is_err() {
        return Ok(None);
    }
    let packets_per_s = rate.bits_per_s() as f64 / bits * RATE_EXCESS;
    // Until then packets may come that are late, and not yet those that others are as late as.
    let under_way = shape.delay + shape.jitter.most + shape.reorder.by;
    let warm_up = time / 4 + under_way;
    let queue_s = shape.queue_bytes as f64 * 8.0 / rate.bits_per_s() as f64;
    thread::scope(|scope| {
        let sender = scope.spawn(|| source.send_evenly(data, batch, packets_per_s, time + warm_up));
        thread::sleep(warm_up);
        let before = arrived(&mut sink)?;
        thread::sleep(time - Duration::from_millis(50));
        let after = arrived(&mut sink)?;
        let sent = sender.join().ok().flatten();
        // What is left has its socket until it has come: without one the far end would answer that there is none.
        let excess = (time + warm_up).mul_f64(RATE_EXCESS - 1.0);
        thread::sleep(excess.min(Duration::from_secs_f64(queue_s)) + under_way);
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
    let [time, _] = RATE_TIME;
    let warm_up = time / 4 + link.round_trip() * TCP_ROUND_TRIPS;
    let data_per_s = bulk.carry(warm_up, time, &AtomicBool::default())?;
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
    use super::super::Verdict;
    use super::*;

    const TRIES: usize = 4;

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
        let load = Load::of(link.up.rate.expect("a rate"), &link.up, link.mtu);
        assert!(load.is_full(link.mtu));
        let by_datagrams = |way, shape: &Shape, batch| {
            let carried = datagrams(&emulator, way, shape, &load, batch).expect("a network");
            carried.map(|carried| carried.bits_per_s)
        };
        let by_means = |means| match means {
            Means::Datagrams => by_datagrams(Way::Up, &link.up, 1),
            Means::Batches => by_datagrams(Way::Down, &link.down, batch),
            Means::Tcp => Some(stream(&emulator, Way::Up, &link.up, &link).expect("a network")),
        };
        for means in [Means::Datagrams, Means::Batches, Means::Tcp] {
            // What was held up before it was counted may come with the rest; not each time.
            let mut found: Option<f64> = None;
            for _ in 0..TRIES {
                found = by_means(means).or(found);
                if found.is_some_and(|found| found <= 20e6 * 1.05) {
                    break;
                }
            }
            let Some(found) = found else {
                lunette_skip::record_lacking(&format!("{}: this machine was too busy", means.name()));
                continue;
            };
            // How much less depends on the machine; a queue that empties itself at the end is in it.
            assert!(found <= 20e6 * 1.05 && found > 1e6, "{}: {found}", means.name());
        }
    }

    #[test]
    fn so_much_is_sent_over_a_slow_link_that_one_packet_is_no_matter() {
        for (link, packets, bytes, seconds) in [
            ("gige", 162_000.0..163_000.0, 1500, 2),
            ("rate=1200K,overhead=38", 200.0..201.0, 1462, 2),
            ("rate=64K", 200.0..201.0, 80, 2),
            ("rate=64K,overhead=38", 199.9..200.1, 64, 2),
            ("rate=1K", 39.0..40.0, 64, 20),
            ("rate=1K,overhead=38", 24.0..25.0, 64, 20),
        ] {
            let link: Link = link.parse().expect("a link");
            let rate = link.up.rate.expect("a rate");
            let load = Load::of(rate, &link.up, link.mtu);
            assert_eq!((load.data + HEADERS, load.time.as_secs()), (bytes, seconds), "{link}");
            assert!(packets.contains(&load.packets(rate)), "{link}: {}", load.packets(rate));
        }
    }

    #[test]
    fn where_chance_makes_much_of_a_rate_it_is_looked_at_for_longer() {
        let of = |link: &str| {
            let link: Link = link.parse().expect("a link");
            let load = Load::of(link.up.rate.expect("a rate"), &link.up, link.mtu);
            (load.time.as_secs(), load.packets(link.up.rate.expect("a rate")) >= needed(&link.up))
        };
        assert_eq!((of("gige"), of("gige,loss=1%"), of("lte")), ((2, true), (2, true), (2, true)));
        // Of packets of 12,000 bits, 6,800 tell.
        let (seconds, is_told) = of("rate=10M,loss=20%");
        assert!((7..10).contains(&seconds) && is_told, "{seconds}");
        assert_eq!(of("rate=1M,loss=20%"), (2, false), "it would take more than 20 s");
        assert_eq!(of("rate=1M,loss=1%/10%/100%"), (2, false));
    }

    /// The emulator has another rate than the one that it is held to.
    #[test]
    fn a_slow_link_is_good_if_it_has_its_rate_and_not_if_it_has_not() {
        for (is, should_be, good) in [("64K", "64K", true), ("60K", "64K", false), ("68K", "64K", false)] {
            let link = |rate: &str| format!("rate={rate},overhead=38").parse::<Link>().expect("a link");
            let emulator = match Emulator::start(&link(is), 1) {
                Ok(emulator) => emulator,
                Err(error) => return lunette_skip::record_lacking(&error.to_string()),
            };
            let link = link(should_be);
            for (way, shape) in [(Way::Up, &link.up), (Way::Down, &link.down)] {
                // Whoever carries may be kept from it just when it is counted; not each time.
                let mut looks = Vec::new();
                let is_seen = (0..TRIES).any(|_| {
                    let found = rate(&emulator, way, shape, &link).expect("a network").expect("a rate");
                    let is_seen = found.measured.is_some() && (found.verdict() == Verdict::Good) == good;
                    looks.push(found);
                    is_seen
                });
                if looks.iter().all(|found| found.measured.is_none()) {
                    lunette_skip::record_lacking("this machine was too busy");
                    continue;
                }
                assert!(is_seen, "{is}: {looks:?}");
            }
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
