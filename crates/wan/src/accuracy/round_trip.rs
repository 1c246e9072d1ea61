//! How long packets take there and back.

use std::io;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lunette_link::{Link, Shape};

use super::{CONFIDENCE, Figure, Means, TOLERANCE, line_bytes};
use crate::doubt::ROUND_TRIP_TOLERANCE;
use crate::emulator::{Emulator, FAR, NEAR};

/// Data of a packet that asks for an answer.
const ECHO_BYTES: usize = 36;

/// Round trips that are measured, at least and at most, and how long that should take, and may.
const ECHOES: [u32; 2] = [20, 200];
const ECHO_TIME: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(80)];

/// With jitter there are as many as it takes to tell what a round trip is to be right within, if that takes no longer.
const ECHO_TIME_OF_JITTER: Duration = Duration::from_mins(1);

/// The pause between the beginnings of two, at least.
const ECHO_PAUSE: Duration = Duration::from_millis(5);

/// How many times as long as a packet takes the transmitter that pause is, so that none has to wait for the one before.
const PAUSE_OF_SENDING: u32 = 4;

/// How long a look for an answer takes.
const LOOK: Duration = Duration::from_millis(50);

pub(super) fn round_trip(emulator: &Emulator, link: &Link) -> io::Result<Figure> {
    let near = emulator.near().within(|| UdpSocket::bind((NEAR.ipv4, 0)))?;
    let far = emulator.far().within(|| UdpSocket::bind((FAR.ipv4, 0)))?;
    near.connect(far.local_addr()?)?;
    near.set_read_timeout(Some(LOOK))?;
    far.set_read_timeout(Some(LOOK))?;
    let (pause, count) = pace(link);
    let expected = expected(link);
    let on_time = on_time(link);
    let by_chance = median_deviation(link).mul_f64(CONFIDENCE / (f64::from(count) * of_use(on_time)).sqrt());
    let tolerance = promised(link) + by_chance;
    let needs = needs(link, count);
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let figure = |median: Option<Duration>| Figure {
        what: "round trip",
        unit: "ms",
        expected: ms(expected),
        measured: median.map(ms),
        by: Means::Datagrams,
        tolerance: ms(tolerance),
        needs: needs.clone(),
    };
    let whole = pause * count;
    if whole > ECHO_TIME[1] {
        return Ok(figure(None));
    }
    let until = whole + expected * 2 + Duration::from_secs(1);
    let (began, is_over) = (Instant::now(), AtomicBool::new(false));
    let mut times = thread::scope(|scope| {
        scope.spawn(|| echo(&far, &is_over));
        scope.spawn(|| ask(&near, began, count, pause));
        let times = answers(&near, began, count, until);
        is_over.store(true, Ordering::Relaxed);
        times
    });
    times.sort_unstable();
    // Those that nothing has held up are the shortest.
    let middle = (times.len() as f64 * on_time / 2.0) as usize;
    Ok(figure(times.get(middle).copied()))
}

/// How many of all round trips nothing holds up in either direction.
fn on_time(link: &Link) -> f64 {
    let ways = [&link.up, &link.down].into_iter();
    ways.filter(|shape| holds_up_some(shape)).map(|shape| 1.0 - shape.reorder.share.get()).product()
}

/// What one of all round trips is worth for the median of those: how many of them there are is chance, too.
fn of_use(on_time: f64) -> f64 {
    on_time / (2.0 - on_time)
}

/// What would tell more than so many round trips, if those tell nothing.
fn needs(link: &Link, count: u32) -> Option<String> {
    let ways = || [&link.up, &link.down].into_iter();
    if ways().any(|shape| !shape.jitter.most.is_zero() && shape.jitter.correlation.get() >= 1.0) {
        return Some("a link whose packets do not all deviate alike".to_owned());
    }
    // Then those that were held up are no longer than others.
    let jitter: Duration = ways().map(|shape| shape.jitter.most * 2).sum();
    if ways().any(|shape| holds_up_some(shape) && shape.reorder.by < jitter) {
        return Some("a link that holds packets up for longer than its jitter".to_owned());
    }
    let needed = echoes_needed(link);
    (f64::from(count) < needed).then(|| format!("{needed:.0} round trips"))
}

fn expected(link: &Link) -> Duration {
    let way =
        |shape: &Shape| sending(shape) + if holds_up_all(shape) { shape.reorder.by } else { Duration::ZERO };
    link.round_trip() + way(&link.up) + way(&link.down)
}

/// Where that is so it is a delay like others.
fn holds_up_all(shape: &Shape) -> bool {
    shape.reorder.share.get() >= 1.0
}

/// Whether it holds up some packets and others not.
fn holds_up_some(shape: &Shape) -> bool {
    shape.reorder.share.get() > 0.0 && !holds_up_all(shape)
}

/// What a round trip is to be right within, but for what chance makes of it.
fn promised(link: &Link) -> Duration {
    ROUND_TRIP_TOLERANCE.max(expected(link).mul_f64(TOLERANCE))
}

/// Of how many the median is right within that, as far as jitter goes.
fn echoes_needed(link: &Link) -> f64 {
    let deviations = median_deviation(link).as_secs_f64() * CONFIDENCE / promised(link).as_secs_f64();
    let on_time = on_time(link);
    // Some of them have to be those that are looked at.
    let least = if on_time < 1.0 { f64::from(ECHOES[0]) } else { 0.0 };
    (deviations.powi(2).max(least) / of_use(on_time)).ceil()
}

/// How long a packet takes the transmitter.
fn sending(shape: &Shape) -> Duration {
    shape.rate.map_or(Duration::ZERO, |rate| rate.time_for(line_bytes(shape, ECHO_BYTES)))
}

/// The pause between two packets, and how many there are.
fn pace(link: &Link) -> (Duration, u32) {
    let slower = sending(&link.up).max(sending(&link.down));
    // With jitter none should have to wait for the one before, which must not be overtaken.
    let jitter = link.up.jitter.most.max(link.down.jitter.most);
    let pause = ECHO_PAUSE.max(jitter * 2).max(slower * PAUSE_OF_SENDING);
    let count = ((ECHO_TIME[0].as_secs_f64() / pause.as_secs_f64()) as u32).clamp(ECHOES[0], ECHOES[1]);
    let needed = echoes_needed(link);
    let is_soon = needed * pause.as_secs_f64() <= ECHO_TIME_OF_JITTER.as_secs_f64();
    // A minute has fewer pauses than a number of 32 bits tells.
    (pause, if is_soon { count.max(needed as u32) } else { count })
}

/// The standard deviation of the median of what jitter does to round trips, for one of them.
fn median_deviation(link: &Link) -> Duration {
    let ways = [&link.up, &link.down].map(|shape| (shape.jitter.most.min(shape.delay), shape.jitter));
    // Each way it is even over twice its most, so that the density of their sum in its middle is 1 / (2 * the larger most), and the
    // deviation of a median is half of the inverse.
    let larger = ways.iter().map(|(most, _)| *most).max().unwrap_or_default();
    let varies = ways.iter().filter(|(most, _)| !most.is_zero());
    let inflation = varies.map(|(_, jitter)| jitter.inflation()).fold(1.0, f64::max);
    larger.mul_f64(inflation.min(INFLATION_MAX))
}

/// Where all packets deviate alike no number of them tells more than one.
const INFLATION_MAX: f64 = 14.0;

/// Sends packets that say when they were sent.
fn ask(near: &UdpSocket, began: Instant, count: u32, pause: Duration) {
    for number in 0..count {
        thread::sleep((pause * number).saturating_sub(began.elapsed()));
        let mut data = [0; ECHO_BYTES];
        data[..16].copy_from_slice(&began.elapsed().as_nanos().to_be_bytes());
        // What is not sent is missed like what is lost.
        let _ = near.send(&data);
    }
}

fn echo(far: &UdpSocket, is_over: &AtomicBool) {
    let mut data = [0; ECHO_BYTES];
    while !is_over.load(Ordering::Relaxed) {
        if let Ok((length, from)) = far.recv_from(&mut data) {
            let _ = far.send_to(&data[..length], from);
        }
    }
}

/// How long each packet was under way that comes until then.
fn answers(near: &UdpSocket, began: Instant, count: u32, until: Duration) -> Vec<Duration> {
    let mut times = Vec::new();
    let mut data = [0; ECHO_BYTES];
    while times.len() < count as usize && began.elapsed() < until {
        if near.recv(&mut data).is_err() {
            continue;
        }
        let sent = u128::from_be_bytes(std::array::from_fn(|index| data[index]));
        let sent = Duration::from_nanos(sent.try_into().unwrap_or(u64::MAX));
        times.push(began.elapsed().saturating_sub(sent));
    }
    times
}

#[cfg(test)]
mod tests {
    use lunette_link::Pipe;

    use super::super::Verdict;
    use super::*;
    use crate::packet::IpPacket;

    #[test]
    fn packets_are_so_far_apart_that_none_waits_for_another() {
        let of = |link: &str| {
            let (pause, count) = pace(&link.parse().expect("a link"));
            (pause.as_micros(), count)
        };
        assert_eq!(of("gige"), (5000, 200));
        // As many as it takes to have the median of 40 ms right within 0.8 ms, and no more than in a minute.
        assert_eq!(of("delay=20ms,jitter=7ms"), (14_000, 834));
        assert_eq!(of("lte").0, 16_000);
        assert!((2000..3000).contains(&of("lte").1), "{:?}", of("lte"));
        assert_eq!(of("delay=20ms,jitter=8ms/90%"), (16_000, 200));
        assert_eq!(of("campus"), (5000, 200), "that is enough");
        // 64 bytes, and 102, at the slower of both rates.
        assert_eq!(of("rate=64K"), (32_000, 125));
        assert_eq!(of("up.rate=10M,down.rate=64K,overhead=38"), (51_000, 78));
        assert_eq!(of("rate=1K"), (2_048_000, 20));
    }

    #[test]
    fn where_packets_are_held_up_the_others_tell() {
        let of = |link: &str| {
            let link = link.parse().expect("a link");
            let (_, count) = pace(&link);
            ((on_time(&link) * 1000.0).round(), count, needs(&link, count))
        };
        assert_eq!(of("delay=10ms,reorder=30%/5ms"), (490.0, 200, None));
        assert_eq!(of("delay=20ms,jitter=2ms,up.reorder=10%/9ms").2, None);
        assert_eq!(of("reorder=100%/5ms"), (1000.0, 200, None));
        assert_eq!(expected(&"reorder=100%/5ms".parse().expect("a link")).as_millis(), 10);
        for (link, says) in [
            ("delay=20ms,jitter=8ms,reorder=10%/20ms", "holds packets up for longer than its jitter"),
            ("delay=20ms,jitter=8ms/100%", "do not all deviate alike"),
        ] {
            assert!(of(link).2.is_some_and(|needs| needs.contains(says)), "{link}");
        }
    }

    /// More than half of the round trips are held up, and so is the median of all of them.
    #[test]
    fn a_link_that_holds_packets_up_has_its_round_trip() {
        let link: Link = "delay=5ms,reorder=40%/20ms".parse().expect("a link");
        let emulator = match Emulator::start(&link, 1) {
            Ok(emulator) => emulator,
            Err(error) => return lunette_skip::record_lacking(&error.to_string()),
        };
        let found = round_trip(&emulator, &link).expect("a network");
        // The machine may be late, but not for as long as a packet is held up.
        assert!(found.measured.is_some_and(|ms| (10.0..25.0).contains(&ms)), "{found:?}");
    }

    #[test]
    fn where_nothing_comes_back_the_round_trip_is_not_known() {
        let link: Link = "loss=100%".parse().expect("a link");
        let emulator = match Emulator::start(&link, 1) {
            Ok(emulator) => emulator,
            Err(error) => return lunette_skip::record_lacking(&error.to_string()),
        };
        let found = round_trip(&emulator, &link).expect("a network");
        assert_eq!((found.measured, found.verdict()), (None, Verdict::NotKnown));
    }

    #[test]
    fn a_slow_links_own_queue_is_not_measured() {
        let link: Link = "rate=64K,overhead=38".parse().expect("a link");
        let emulator = match Emulator::start(&link, 1) {
            Ok(emulator) => emulator,
            Err(error) => return lunette_skip::record_lacking(&error.to_string()),
        };
        let found = round_trip(&emulator, &link).expect("a network");
        assert_eq!(found.expected, 25.5);
        // Whether it is within a millisecond depends on the machine; with a queue it would be many seconds.
        let measured = found.measured.expect("answers");
        assert!((25.5..1000.0).contains(&measured), "{found:?}");
    }

    /// The delays that a link makes of packets that are far apart, in seconds more or less than its delay.
    fn deviations(shape: &Shape, seed: u64, count: u32) -> Vec<f64> {
        let mut pipe = Pipe::new(shape.clone(), seed);
        let times = (0..count).map(|number| {
            let sent = Duration::from_millis(100) * number;
            pipe.offer(sent, IpPacket::new(&[0; ECHO_BYTES]));
            let (arrived, _) = pipe.arrive(sent + Duration::from_millis(100)).expect("it has arrived");
            arrived.saturating_sub(sent).as_secs_f64() - shape.delay.as_secs_f64()
        });
        times.collect()
    }

    #[test]
    fn medians_of_round_trips_deviate_as_the_closed_form_says() {
        const COUNT: u32 = 201;
        const RUNS: u64 = 300;
        for text in [
            "delay=20ms,jitter=8ms",
            "delay=20ms,jitter=8ms/50%",
            "delay=20ms,up.jitter=8ms/30%",
            "delay=20ms,up.jitter=4ms,down.jitter=8ms",
        ] {
            let link: Link = text.parse().expect("a link");
            let squares = (0..RUNS).map(|run| {
                let up = deviations(&link.up, 2 * run, COUNT);
                let down = deviations(&link.down, 2 * run + 1, COUNT);
                let mut both: Vec<f64> = up.iter().zip(&down).map(|(up, down)| up + down).collect();
                both.sort_by(f64::total_cmp);
                both[both.len() / 2].powi(2)
            });
            let found = (squares.sum::<f64>() / RUNS as f64).sqrt();
            let expected = median_deviation(&link).as_secs_f64() / f64::from(COUNT).sqrt();
            // The deviation of so many is off by 1 / sqrt(600) itself; a median of 201 is nearly as one of many.
            assert!((found / expected - 1.0).abs() < 0.17, "{text}: {found}, not {expected}");
        }
    }
}
