//! How many packets a link loses.

use std::io;
use std::thread;
use std::time::Duration;

use lunette_link::Shape;

use super::source::{batch, source};
use super::{CONFIDENCE, Figure, Means, Way, line_bytes};
use crate::emulator::Emulator;

/// Data of the packets whose losses are counted.
const LOSS_BYTES: usize = 64;

/// Packets whose losses are counted.
const LOSS_PACKETS: f64 = 20_000.0;

/// How long that may take; there are fewer of them on slow links, and longer where even this many would not be sent.
const LOSS_TIME: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(20)];
const LOSS_PACKETS_MIN: f64 = 100.0;

/// So finely it is found out how many it takes.
const NEEDED_STEP: f64 = 1.02;

/// As many of them in a second at most.
const LOSS_PACKETS_PER_S: f64 = 20_000.0;

/// Packets are lost whole, and of rare losses chance makes more than of many.
const WHOLE_PACKETS: f64 = 2.0;

pub(super) fn loss(emulator: &Emulator, way: Way, shape: &Shape) -> io::Result<Figure> {
    let (source, mut sink) = source(emulator, way)?;
    let (mut mark, mut before) = (emulator.mark()?, 0);
    let bits = line_bytes(shape, LOSS_BYTES) as f64 * 8.0;
    let packets_per_s = shape
        .rate
        .map_or(LOSS_PACKETS_PER_S, |rate| (rate.bits_per_s() as f64 / bits / 2.0).min(LOSS_PACKETS_PER_S));
    let needed = needed(shape);
    let time = time(packets_per_s, needed);
    // What the last of them takes: each finds the transmitter free, or another one in it.
    let sending = shape.rate.map_or(Duration::ZERO, |rate| rate.time_for(line_bytes(shape, LOSS_BYTES)) * 2);
    let under_way = sending + shape.delay * 2 + shape.reorder.by + Duration::from_millis(100);
    let mut by = Means::Datagrams;
    let mut sent = source.send_evenly(LOSS_BYTES, 1, packets_per_s, time);
    let batch = batch(shape, LOSS_BYTES);
    if sent.is_none() && batch > 1 && source.take_apart(LOSS_BYTES).is_ok() {
        by = Means::Batches;
        // What has been sent already is still to come.
        thread::sleep(under_way);
        (mark, before) = (emulator.mark()?, sink.arrived()?);
        sent = source.send_evenly(LOSS_BYTES, batch, packets_per_s, time);
    }
    thread::sleep(under_way);
    let arrived = (sink.arrived()? - before) as f64;
    // What this machine has lost is not the link's, and what a short queue had no room for, since this machine sent too much at once, is
    // no loss of the wire.
    let keeping = emulator.since(&mark)?;
    let is_all_there = keeping.overrun == 0 && keeping.dropped == 0;
    let sent = sent.filter(|_| is_all_there).map(|sent| sent.packets);
    // All that has left and did not arrive, whatever became of it.
    let copies = shape.duplicate.get();
    let share = |sent: u64| 1.0 - arrived / (sent as f64 * (1.0 + copies));
    let packets = (time.as_secs_f64() * packets_per_s).max(1.0);
    Ok(Figure {
        what: if way == Way::Up { "loss, near to far" } else { "loss, far to near" },
        unit: "%",
        expected: shape.loss.mean() * 100.0,
        measured: sent.filter(|sent| *sent > 0).map(|sent| share(sent).max(0.0) * 100.0),
        by,
        tolerance: tolerance(shape, packets) * 100.0,
        needs: needed.filter(|needed| packets.round() < *needed).map(|needed| {
            if needed.is_finite() {
                format!("{needed:.0} packets")
            } else {
                "a link that damages less".to_owned()
            }
        }),
    })
}

/// Within which share of so many packets the loss is to be right.
fn tolerance(shape: &Shape, packets: f64) -> f64 {
    let copies = shape.duplicate.get();
    let deviation = (shape.loss.variance(packets) + copies * (1.0 - copies) / packets).sqrt();
    // What is damaged the kernel may throw away before it counts it.
    CONFIDENCE * deviation + WHOLE_PACKETS / packets + shape.corrupt.get()
}

/// Of how many packets the losses are told apart from none; nothing where there are to be none.
fn needed(shape: &Shape) -> Option<f64> {
    let mean = Some(shape.loss.mean()).filter(|mean| *mean > 0.0)?;
    if shape.corrupt.get() >= mean {
        return Some(f64::INFINITY);
    }
    let mut packets = 1.0_f64;
    while packets.is_finite() && tolerance(shape, packets) >= mean {
        packets *= NEEDED_STEP;
    }
    Some(packets.ceil())
}

/// How long packets are sent of which so many go in a second, and so many tell what is to be told.
fn time(packets_per_s: f64, needed: Option<f64>) -> Duration {
    let [usual, most] = LOSS_TIME.map(|time| time.as_secs_f64());
    let longest = (LOSS_PACKETS_MIN / packets_per_s).clamp(usual, most);
    let needed = needed.map_or(0.0, |needed| needed / packets_per_s);
    let time = (LOSS_PACKETS / packets_per_s).min(longest);
    Duration::from_secs_f64(if needed <= most { time.max(needed) } else { time })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_links_have_more_time_and_not_without_end() {
        let times = |needed| [20_000.0, 1000.0, 40.0, 10.0, 0.5].map(|rate| time(rate, needed).as_secs());
        assert_eq!(times(None), [1, 5, 5, 10, 20]);
        // What takes no longer than the slowest is taken as a whole.
        assert_eq!(times(Some(19_000.0)), [1, 19, 5, 10, 20]);
        assert_eq!(times(Some(300_000.0)), [15, 5, 5, 10, 20]);
        assert_eq!(times(Some(f64::INFINITY)), times(None));
    }

    #[test]
    fn losses_that_chance_hides_take_more_packets() {
        let of = |link: &str| needed(&link.parse::<lunette_link::Link>().expect("a link").up);
        assert_eq!((of("gige"), of("oc3-50,loss=0.1%,corrupt=1%")), (None, Some(f64::INFINITY)));
        for (link, packets) in [
            // 3.3 deviations and two packets are as many as are lost.
            ("loss=1%", 1400.0..1500.0),
            ("lte", 14_000.0..15_000.0),
            ("transatlantic", 1.4e6..1.5e6),
        ] {
            assert!(of(link).is_some_and(|needed| packets.contains(&needed)), "{link}: {:?}", of(link));
        }
    }
}
