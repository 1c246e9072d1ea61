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
    let time = time(packets_per_s);
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
    // What this machine has lost is not the link's.
    let is_all_there = emulator.since(&mark)?.overrun == 0;
    let sent = sent.filter(|_| is_all_there).map(|sent| sent.packets);
    // All that has left and did not arrive, whatever became of it.
    let copies = shape.duplicate.get();
    let share = |sent: u64| 1.0 - arrived / (sent as f64 * (1.0 + copies));
    let packets = (time.as_secs_f64() * packets_per_s).max(1.0);
    let deviation = (shape.loss.variance(packets) + copies * (1.0 - copies) / packets).sqrt();
    Ok(Figure {
        what: if way == Way::Up { "loss, near to far" } else { "loss, far to near" },
        unit: "%",
        expected: shape.loss.mean() * 100.0,
        measured: sent.filter(|sent| *sent > 0).map(|sent| share(sent).max(0.0) * 100.0),
        by,
        // What is damaged the kernel may throw away before it counts it.
        tolerance: (CONFIDENCE * deviation + WHOLE_PACKETS / packets + shape.corrupt.get()) * 100.0,
    })
}

/// How long packets are sent of which so many go in a second.
fn time(packets_per_s: f64) -> Duration {
    let [usual, most] = LOSS_TIME.map(|time| time.as_secs_f64());
    let longest = (LOSS_PACKETS_MIN / packets_per_s).clamp(usual, most);
    Duration::from_secs_f64((LOSS_PACKETS / packets_per_s).min(longest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_links_have_more_time_and_not_without_end() {
        assert_eq!([20_000.0, 1000.0, 40.0, 10.0, 0.5].map(|rate| time(rate).as_secs()), [1, 5, 5, 10, 20]);
    }
}
