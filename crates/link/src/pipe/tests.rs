//! What a pipe promises: nothing appears or vanishes, the rate is kept, order is kept where it is promised, a seed repeats.

use lunette_cases::cases;
use proptest::prelude::*;

use super::*;
use crate::chance::Probability;
use crate::loss::Loss;
use crate::ports::IscsiPorts;
use crate::shape::{Jitter, Link, Reorder};

#[derive(Debug, Clone, PartialEq, Eq)]
struct Numbered {
    number: usize,
    length: usize,
    is_iscsi: bool,
    flipped: Option<u64>,
}

impl Packet for Numbered {
    fn length(&self) -> usize {
        self.length
    }

    fn tcp_ports(&self) -> Option<[u16; 2]> {
        // In both directions, and beside other connections as well as what is not TCP.
        match (self.is_iscsi, self.number.is_multiple_of(2)) {
            (true, true) => Some([50_000, 3260]),
            (true, false) => Some([3260, 50_000]),
            (false, true) => Some([3261, 50_000]),
            (false, false) => None,
        }
    }

    fn flip(&mut self, bit: u64) {
        assert!(bit < self.length as u64 * 8 && self.flipped.is_none());
        self.flipped = Some(bit);
    }
}

fn packet(number: usize, length: usize) -> Numbered {
    Numbered { number, length, is_iscsi: true, flipped: None }
}

fn at(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn shape(text: &str) -> Shape {
    text.parse::<Link>().unwrap().up
}

/// All that arrives, and when, if each packet is offered at its time; asked for at the times that the pipe names, as a
/// driver does.
fn run(shape: &Shape, seed: u64, offers: &[(Duration, Numbered)]) -> (Vec<(Duration, Numbered)>, Counts) {
    let mut pipe = Pipe::new(shape.clone(), seed);
    let mut arrived = Vec::new();
    let mut offers = offers.iter().peekable();
    loop {
        let due = match (pipe.next_at(), offers.peek()) {
            (Some(next), Some((at, _))) if next <= *at => next,
            (_, Some((at, packet))) => {
                pipe.offer(*at, packet.clone());
                offers.next();
                continue;
            }
            (Some(next), None) => next,
            (None, None) => break,
        };
        while let Some((at, packet)) = pipe.arrive(due) {
            assert_eq!(at, due, "the pipe named its time");
            arrived.push((at, packet));
        }
    }
    assert_eq!(pipe.under_way(), 0);
    (arrived, pipe.counts())
}

fn at_once(count: usize, length: usize) -> Vec<(Duration, Numbered)> {
    (0..count).map(|number| (Duration::ZERO, packet(number, length))).collect()
}

#[test]
fn the_first_bit_waits_and_the_last_arrives_after_the_delay() {
    let shape = shape("rate=155M,rtt=50ms");
    let (arrived, _) = run(&shape, 1, &at_once(3, 1500));
    let times: Vec<_> = arrived.iter().map(|(at, _)| at.as_nanos()).collect();
    assert_eq!(times, [25_077_420, 25_154_839, 25_232_259], "77,419.35 ns each");
}

#[test]
fn the_time_at_the_transmitter_is_that_of_waiting_and_sending() {
    let microseconds = |shape: &str, offers: &[(Duration, Numbered)]| {
        run(&self::shape(shape), 1, offers).1.sojourn.mean().as_micros()
    };
    // One, two and three times 100 us, whatever the way takes.
    assert_eq!(microseconds("rate=100M,rtt=50ms", &at_once(3, 1250)), 200);
    assert_eq!(microseconds("rate=100M,overhead=250", &at_once(3, 1000)), 200, "with what the line adds");
    let apart: Vec<_> = (0..3).map(|number| (at(number as u64), packet(number, 1250))).collect();
    assert_eq!(microseconds("rate=100M", &apart), 100, "nobody waits");
    assert_eq!(microseconds("delay=1ms", &apart), 0, "without a rate");
    // Acknowledgements hardly count: 104 us for 1250 bytes, and 4 us for 50.
    let both = [(at(0), packet(0, 50)), (at(0), packet(1, 1250))];
    assert_eq!(microseconds("rate=100M", &both), 100);
    // At another rate the rest of a packet takes another time: 1 of 10 ms, and then 0.9 of 1 ms; and the other way around.
    for (from, to, microseconds) in [("rate=1M", "rate=10M", 1900), ("rate=10M", "rate=1M", 5500)] {
        let mut pipe = Pipe::new(shape(from), 1);
        pipe.offer(Duration::ZERO, packet(0, 1250));
        let changed_at = if from == "rate=1M" { at(1) } else { Duration::from_micros(500) };
        pipe.reshape(changed_at, shape(to));
        assert_eq!(pipe.counts().sojourn.mean().as_micros(), microseconds, "{from}");
    }
    // What was dropped has not been sent.
    assert_eq!(microseconds("rate=100M,queue=1250", &at_once(9, 1250)), 150);
}

#[test]
fn short_packets_take_no_longer_than_the_rate_says() {
    // 5.12 ns each, of which none may be lost to whole nanoseconds.
    let (arrived, _) = run(&shape("rate=100G,queue=1M"), 1, &at_once(10_000, 64));
    assert_eq!(arrived.last().map(|(at, _)| at.as_nanos()), Some(51_200));
    // What is behind a pause begins anew: 6 ns each.
    let offers: Vec<_> =
        (0..3).map(|number| (Duration::from_nanos(number as u64 * 10), packet(number, 64))).collect();
    let (arrived, _) = run(&shape("rate=100G,queue=1M"), 1, &offers);
    assert_eq!(arrived.iter().map(|(at, _)| at.as_nanos()).collect::<Vec<_>>(), [6, 16, 26]);
}

#[test]
fn what_does_not_fit_into_the_queue_is_dropped() {
    // One in the transmitter, two that wait.
    let (arrived, counts) = run(&shape("rate=1M,queue=3000"), 1, &at_once(5, 1500));
    assert_eq!(arrived.iter().map(|(_, packet)| packet.number).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!((counts.offered, counts.dropped, counts.arrived_bytes), (5, 2, 4500));
    let (arrived, _) = run(&shape("rate=1M,queue=100"), 1, &at_once(2, 1500));
    assert_eq!(arrived.len(), 2, "an empty queue takes any packet");
}

#[test]
fn without_a_rate_nobody_waits() {
    let (arrived, counts) = run(&shape("delay=1ms"), 1, &at_once(1000, 1500));
    assert!(arrived.iter().all(|(at, _)| *at == Duration::from_millis(1)));
    assert_eq!(counts.dropped, 0);
}

/// The delays of packets so far apart that none has to wait for the one before, in milliseconds.
fn delays(text: &str, count: usize) -> Vec<f64> {
    let offers: Vec<_> =
        (0..count).map(|number| (Duration::from_millis(number as u64 * 20), packet(number, 100))).collect();
    let (arrived, _) = run(&shape(text), 3, &offers);
    arrived.iter().map(|(at, packet)| (*at - offers[packet.number].0).as_secs_f64() * 1000.0).collect()
}

/// The mean product of deviations from 10 ms so many packets apart: 0 for the variance.
fn covariance(delays: &[f64], apart: usize) -> f64 {
    let products = delays.iter().zip(&delays[apart..]).map(|(one, other)| (one - 10.0) * (other - 10.0));
    products.sum::<f64>() / (delays.len() - apart) as f64
}

#[test]
fn jitter_is_as_wide_and_as_correlated_as_it_says() {
    const COUNT: usize = 100_000;
    for percent in [0, 25, 60, 90] {
        let delays = delays(&format!("delay=10ms,jitter=4ms/{percent}%"), COUNT);
        assert_eq!(delays.len(), COUNT);
        assert!(delays.iter().all(|delay| (6.0..=14.0).contains(delay)), "{percent}");
        let correlation = f64::from(percent) / 100.0;
        let jitter = shape(&format!("delay=10ms,jitter=4ms/{percent}%")).jitter;
        // Even over 8 ms: 8^2 / 12.
        let variance: f64 = 64.0 / 12.0;
        // Four deviations each: of the mean, and of the mean square, whose variance is (4^4 / 5 - variance^2) for one packet.
        let packets = (COUNT as f64).sqrt();
        let mean = delays.iter().sum::<f64>() / COUNT as f64;
        assert!(
            (mean - 10.0).abs() < 4.0 * variance.sqrt() * jitter.inflation() / packets,
            "{percent}: {mean}"
        );
        let spread = covariance(&delays, 0);
        let deviation = (256.0 / 5.0 - variance * variance).sqrt() * jitter.inflation() / packets;
        assert!((spread - variance).abs() < 4.0 * deviation, "{percent}: {spread}");
        for apart in [1, 2, 5] {
            let found = covariance(&delays, apart) / spread;
            let expected = correlation.powi(apart as i32);
            assert!((found - expected).abs() < 0.02, "{percent} % {apart} apart: {found}, not {expected}");
        }
    }
}

#[test]
fn means_of_correlated_delays_are_off_by_as_much_as_is_said() {
    let text = "delay=10ms,jitter=4ms/60%";
    let (all, each) = (delays(text, 400_000), 400);
    let squares = all.chunks(each).map(|run| (run.iter().sum::<f64>() / each as f64 - 10.0).powi(2));
    let deviation = (squares.sum::<f64>() / (all.len() / each) as f64).sqrt();
    let expected = (64.0 / 12.0 / each as f64).sqrt() * shape(text).jitter.inflation();
    // Of a thousand runs it has a deviation of 1 / sqrt(2000) itself, of which this is four and more.
    assert!((deviation / expected - 1.0).abs() < 0.1, "{deviation}, not {expected}");
}

#[test]
fn with_all_of_it_shared_every_packet_deviates_as_the_first() {
    let delays = delays("delay=10ms,jitter=4ms/100%", 100);
    assert!(delays.iter().all(|delay| (delay - delays[0]).abs() < 1e-6));
    assert!((delays[0] - 10.0).abs() > 1e-3, "and the first as chance has it");
}

#[test]
fn as_many_are_doubled_damaged_and_held_up_as_the_link_says() {
    const COUNT: usize = 100_000;
    let shape = shape("delay=5ms,loss=10%,duplicate=2%,corrupt=0.5%,reorder=5%/1ms");
    let offers: Vec<_> =
        (0..COUNT).map(|number| (Duration::from_millis(number as u64 * 20), packet(number, 100))).collect();
    let (arrived, counts) = run(&shape, 8, &offers);
    // What comes, and not what the pipe says of it.
    let is_copy = |pair: &&[(Duration, Numbered)]| pair[0].1.number == pair[1].1.number;
    let copies = arrived.windows(2).filter(is_copy).count();
    let mut firsts = arrived.clone();
    firsts.dedup_by_key(|(_, packet)| packet.number);
    let damaged = firsts.iter().filter(|(_, packet)| packet.flipped.is_some()).count();
    let late = firsts.iter().filter(|(at, packet)| *at - offers[packet.number].0 == Duration::from_millis(6));
    let late = late.count();
    assert_eq!((counts.duplicated, counts.corrupted), (copies as u64, damaged as u64));
    assert_eq!((counts.reordered, counts.lost), (late as u64, (COUNT - firsts.len()) as u64));
    for (what, found, of, share) in [
        ("lost", COUNT - firsts.len(), COUNT, 0.1),
        ("doubled", copies, firsts.len(), 0.02),
        ("damaged", damaged, firsts.len(), 0.005),
        ("held up", late, firsts.len(), 0.05),
    ] {
        let (found, of) = (found as f64, of as f64);
        let deviation = (share * (1.0 - share) * of).sqrt();
        assert!((found - share * of).abs() <= 4.0 * deviation, "{what}: {found} of {of}");
    }
    // Which bits are turned: none more likely than others.
    let bits = firsts.iter().filter_map(|(_, packet)| packet.flipped).map(|bit| bit as f64);
    let mean = bits.sum::<f64>() / damaged as f64;
    assert!((mean - 399.5).abs() <= 4.0 * 800.0 / (12.0 * damaged as f64).sqrt(), "{mean}");
}

#[test]
fn what_comes_after_a_change_has_the_new_link_and_stays_behind_the_rest() {
    let mut pipe = Pipe::new(shape("rate=8M,delay=30ms"), 1);
    // A millisecond each in the transmitter.
    for number in 0..4 {
        pipe.offer(Duration::ZERO, packet(number, 1000));
    }
    pipe.reshape(at(2), shape("rate=16M,delay=1ms"));
    pipe.offer(at(2), packet(4, 1000));
    let arrived: Vec<_> = std::iter::from_fn(|| pipe.arrive(at(100)))
        .map(|(at, packet)| (packet.number, at.as_micros()))
        .collect();
    // Three began before the change, the last of them then, which takes half as long; nobody overtakes them. The link is free at 3.5 ms.
    assert_eq!(arrived, [(0, 31_000), (1, 32_000), (2, 32_500), (3, 32_500), (4, 32_500)]);
    pipe.offer(at(200), packet(5, 1000));
    assert_eq!(pipe.next_at(), Some(Duration::from_micros(201_500)));
}

/// A transmitter with a rate that nobody can want is busy for minutes with one packet.
#[test]
fn a_link_that_was_set_to_nonsense_is_itself_again_at_once() {
    for text in ["delay=1ms", "rate=1G,delay=1ms"] {
        let mut pipe = Pipe::new(shape("rate=1K,delay=1ms"), 1);
        // Eight minutes of this rate, and what waits behind it.
        pipe.offer(Duration::ZERO, packet(0, 60_000));
        pipe.offer(Duration::ZERO, packet(1, 1000));
        pipe.reshape(at(1), shape(text));
        for number in 2..50 {
            pipe.offer(at(1), packet(number, 1000));
        }
        let arrived = std::iter::from_fn(|| pipe.arrive(at(3))).map(|(_, packet)| packet.number);
        assert_eq!(arrived.collect::<Vec<_>>(), (0..50).collect::<Vec<_>>(), "{text}");
        assert_eq!((pipe.counts().dropped, pipe.under_way()), (0, 0), "{text}");
    }
    // And the other way round: what is left takes as long as the rate has it.
    let mut pipe = Pipe::new(shape("rate=8M,delay=1ms"), 1);
    pipe.offer(Duration::ZERO, packet(0, 1000));
    pipe.reshape(Duration::from_micros(500), shape("rate=8K,delay=1ms"));
    assert_eq!(pipe.next_at(), Some(Duration::from_micros(500 + 500_000 + 1000)));
}

#[test]
fn a_reservation_that_comes_or_goes_changes_no_order() {
    let (plain, reserved) = ("rate=8M,queue=256K", "rate=8M,reserve=60%,queue=256K");
    let of_others = "rate=8M,reserve=60%,iscsi-port=3261,queue=256K";
    for (before, after) in [(plain, reserved), (reserved, plain), (reserved, of_others)] {
        let mut pipe = Pipe::new(shape(before), 1);
        let of = |number: usize| Numbered { is_iscsi: number % 4 < 2, ..packet(number, 1000) };
        for number in 0..20 {
            pipe.offer(Duration::ZERO, of(number));
        }
        pipe.reshape(at(3), shape(after));
        for number in 20..40 {
            pipe.offer(at(3), of(number));
        }
        let arrived: Vec<_> =
            std::iter::from_fn(|| pipe.arrive(at(1000))).map(|(_, packet)| packet).collect();
        assert_eq!(arrived.len(), 40, "{before} to {after}");
        // Each of the four is a connection of its own.
        for connection in 0..4 {
            let numbers =
                arrived.iter().map(|packet| packet.number).filter(|number| number % 4 == connection);
            assert!(numbers.is_sorted(), "{before} to {after}: {arrived:?}");
        }
    }
}

#[test]
fn a_wire_with_a_bound_holds_no_more() {
    let mut pipe = Pipe::new(shape("delay=60s,duplicate=50%"), 1).bounded(100_000);
    for number in 0..1000 {
        pipe.offer(at(number as u64), packet(number, 900));
        assert!(pipe.under_way() * (900 + 128) <= 100_000);
    }
    let full = pipe.counts();
    assert_eq!(full.dropped + pipe.under_way() as u64, 1000 + full.duplicated);
    assert!(full.dropped > 800 && pipe.under_way() == 97, "{full:?}");
    // What has arrived makes room.
    assert_eq!(std::iter::from_fn(|| pipe.arrive(at(120_000))).count(), 97);
    pipe.offer(at(120_000), packet(1000, 900));
    assert!(pipe.under_way() > 0);
}

proptest! {
    #![proptest_config(cases(256))]

    /// Whatever links follow one another, nothing appears or vanishes, nobody overtakes, and no transmitter is busy for much
    /// longer than its packet takes.
    #[test]
    fn changes_of_a_link_lose_nothing_and_keep_order(
        steps in prop::collection::vec((0_u64..5000, 0_usize..6, 0_usize..40), 1..40),
        seed in 0_u64..1000,
    ) {
        let links = [
            "delay=1ms",
            "rate=1K,delay=1ms",
            "rate=1M,delay=3ms,queue=8K",
            "rate=1G,reserve=50%",
            "rate=8M,reserve=20%,delay=9ms,loss=10%,duplicate=10%",
            "rate=100M,delay=20ms,jitter=5ms",
        ];
        let mut pipe = Pipe::new(shape(links[0]), seed);
        let (mut now, mut next, mut arrived) = (Duration::ZERO, 0, Vec::new());
        for (wait_us, link, packets) in steps {
            now += Duration::from_micros(wait_us);
            while let Some((at, packet)) = pipe.arrive(now) {
                prop_assert!(at <= now);
                arrived.push(packet);
            }
            pipe.reshape(now, shape(links[link]));
            for _ in 0..packets {
                pipe.offer(now, Numbered { is_iscsi: next % 6 < 2, ..packet(next, 1000) });
                next += 1;
            }
            let counts = pipe.counts();
            prop_assert_eq!(counts.offered, next as u64);
            prop_assert_eq!(
                counts.offered + counts.duplicated,
                counts.dropped + counts.lost + counts.arrived + pipe.under_way() as u64
            );
            prop_assert!(pipe.free_at <= now + Duration::from_secs(9), "{:?} at {:?}", pipe.free_at, now);
        }
        // Connections of iSCSI, and all others.
        for is_iscsi in [true, false] {
            let numbers = arrived.iter().filter(|packet: &&Numbered| packet.is_iscsi == is_iscsi);
            prop_assert!(numbers.map(|packet| packet.number).is_sorted());
        }
    }
}

#[test]
fn the_same_packets_are_lost_with_and_without_jitter() {
    let lost = |text: &str| {
        let (arrived, _) = run(&shape(text), 9, &at_once(2000, 100));
        let arrived: Vec<_> = arrived.into_iter().map(|(_, packet)| packet.number).collect();
        (0..2000).filter(|number| !arrived.contains(number)).collect::<Vec<_>>()
    };
    let plain = lost("loss=5%");
    assert!(plain.len() > 50);
    assert_eq!(plain, lost("loss=5%,delay=5ms,jitter=2ms,corrupt=10%,reorder=10%/1ms"));
}

#[test]
fn what_is_held_up_is_overtaken() {
    let shape = shape("rate=10M,delay=5ms,reorder=10%/3ms,queue=1024K");
    let (arrived, counts) = run(&shape, 4, &at_once(500, 1000));
    let inversions = arrived.windows(2).filter(|pair| pair[0].1.number > pair[1].1.number).count();
    assert!(counts.reordered > 20 && inversions > 10, "{counts:?} {inversions}");
}

/// Whatever jitter does to those around it.
#[test]
fn what_is_held_up_comes_so_much_later_than_in_its_turn() {
    const COUNT: usize = 5000;
    let arrivals = |by: &str| {
        let shape = shape(&format!("rate=155M,delay=30ms,jitter=8ms,reorder=5%/{by},queue=16M"));
        let (mut arrived, _) = run(&shape, 4, &at_once(COUNT, 1000));
        arrived.sort_by_key(|(_, packet)| packet.number);
        arrived.into_iter().map(|(at, _)| at).collect::<Vec<_>>()
    };
    let by = at(5);
    let (times, far_apart) = (arrivals("5ms"), arrivals("50s"));
    let (mut last, mut late) = (Duration::ZERO, 0);
    for (time, apart) in times.iter().zip(&far_apart) {
        if *apart > at(40_000) {
            late += 1;
            assert!(*time >= last + by, "{time:?}, {last:?}");
        } else {
            assert_eq!(time, apart);
            last = *time;
        }
    }
    assert!((150..400).contains(&late), "{late}");
}

/// Sends both classes as fast as they go for a second; the shares of the bytes that arrived.
fn shares(text: &str, offers_iscsi: impl Fn(usize) -> bool) -> (f64, f64) {
    let offers: Vec<_> = (0..40_000)
        .map(|number| {
            let is_iscsi = offers_iscsi(number);
            (Duration::from_micros(number as u64 * 25), Numbered { is_iscsi, ..packet(number, 1000) })
        })
        .collect();
    let (arrived, _) = run(&shape(text), 5, &offers);
    let iscsi = arrived.iter().filter(|(_, packet)| packet.is_iscsi).count() as f64;
    (iscsi / arrived.len() as f64, arrived.len() as f64)
}

#[test]
fn a_reservation_is_kept_and_what_is_unused_is_given_on() {
    // 320 Mb/s for a line of 40, nine tenths of it of others.
    let (reserved, all) = shares("rate=40M,queue=64K,reserve=60%", |number| number % 10 < 2);
    assert!((reserved - 0.6).abs() < 0.02, "{reserved}");
    let (shared, as_many) = shares("rate=40M,queue=64K", |number| number % 10 < 2);
    assert!((shared - 0.2).abs() < 0.05, "{shared}");
    assert!((all / as_many - 1.0).abs() < 0.02, "the line is full either way");
    let (alone, with_all) = shares("rate=40M,queue=64K,reserve=60%", |_| false);
    assert!(alone.abs() < f64::EPSILON && (with_all / all - 1.0).abs() < 0.02, "{with_all} of {all}");
}

#[test]
fn room_that_nobody_else_uses_is_given_on_too() {
    let of = |is_iscsi: bool, numbers: std::ops::Range<usize>| {
        numbers.map(move |number| (Duration::ZERO, Numbered { is_iscsi, ..packet(number, 1000) }))
    };
    let counts = |offers: Vec<_>| {
        let (arrived, counts) = run(&shape("rate=1M,queue=10000,reserve=60%"), 1, &offers);
        let iscsi: Vec<_> = arrived.iter().filter(|(_, packet)| packet.is_iscsi).collect();
        assert_eq!(arrived.len() as u64 + counts.dropped, counts.offered);
        (iscsi.len(), arrived.len() - iscsi.len(), counts.dropped)
    };
    // One in the transmitter, and ten that wait.
    assert_eq!(counts(of(false, 0..15).collect()), (0, 11, 4), "others alone have all of the queue");
    assert_eq!(counts(of(true, 0..15).collect()), (11, 0, 4), "and so has iSCSI");
    let others_first = of(false, 0..15).chain(of(true, 15..30)).collect();
    assert_eq!(counts(others_first), (6, 5, 19), "who has more than its share gives way");
    let iscsi_first = of(true, 0..15).chain(of(false, 15..30)).collect();
    assert_eq!(counts(iscsi_first), (7, 4, 19));
}

#[test]
fn nobody_is_pushed_out_of_his_share() {
    let of = |is_iscsi: bool, at: u64| {
        (Duration::from_micros(at), Numbered { is_iscsi, ..packet(at as usize, 1500) })
    };
    // One of iSCSI in the transmitter and one that waits, within its 2700 bytes; then others as fast as they can.
    let offers: Vec<_> =
        [of(true, 0), of(true, 1)].into_iter().chain((2..50).map(|at| of(false, at))).collect();
    let (arrived, counts) = run(&shape("rate=1M,queue=3000,reserve=90%"), 1, &offers);
    let iscsi = arrived.iter().filter(|(_, packet)| packet.is_iscsi).count();
    assert_eq!((iscsi, arrived.len(), counts.dropped), (2, 3, 47));
}

#[test]
fn a_shorter_queue_is_not_cleared_by_one_packet() {
    let mut pipe = Pipe::new(shape("rate=1M,queue=100000,reserve=60%"), 1);
    let other = |number| Numbered { is_iscsi: false, ..packet(number, 1000) };
    (0..91).for_each(|number| pipe.offer(Duration::ZERO, other(number)));
    pipe.reshape(Duration::ZERO, shape("rate=1M,queue=10000,reserve=60%"));
    pipe.offer(Duration::ZERO, Numbered { is_iscsi: true, ..packet(91, 1000) });
    assert_eq!((pipe.counts().dropped, pipe.under_way()), (1, 91));
}

#[test]
fn what_was_rounded_up_is_of_the_rate_that_it_was_rounded_for() {
    let mut pipe = Pipe::new(shape("rate=100G"), 1);
    pipe.offer(Duration::ZERO, packet(0, 64));
    let free_at = Duration::from_nanos(6);
    pipe.reshape(free_at, shape("rate=1K"));
    pipe.offer(free_at, packet(1, 64));
    assert_eq!(pipe.last_at(), Some(free_at + Duration::from_millis(512)));
}

#[test]
fn a_reservation_is_for_the_ports_that_it_names() {
    // Without their port packets are as any others; with 3261 it is the others that have the share.
    let (reserved, _) = shares("rate=40M,queue=64K,reserve=60%,iscsi-port=3262", |number| number % 10 < 2);
    assert!((reserved - 0.2).abs() < 0.05, "{reserved}");
    let (others, _) = shares("rate=40M,queue=64K,reserve=60%,iscsi-port=3262/3261", |number| number % 2 == 1);
    assert!((others - 0.4).abs() < 0.02, "{others}");
    let (both, _) = shares("rate=40M,queue=64K,reserve=60%,iscsi-port=3260/3262", |number| number % 10 < 2);
    assert!((both - 0.6).abs() < 0.02, "{both}");
}

#[test]
fn who_sent_alone_has_nothing_to_pay_for() {
    // iSCSI at 32 of 40 Mb/s for a second, then others as fast as they can beside it; and the other way round.
    for alone in [true, false] {
        let sent_alone = (0..4000).map(|number| {
            let packet = Numbered { is_iscsi: alone, ..packet(number, 1000) };
            (Duration::from_micros(number as u64 * 250), packet)
        });
        let together = (4000..20_000).map(|number| {
            let packet = Numbered { is_iscsi: (number % 8 == 0) == alone, ..packet(number, 1000) };
            (Duration::from_secs(1) + Duration::from_micros((number as u64 - 4000) * 31), packet)
        });
        let offers: Vec<_> = sent_alone.chain(together).collect();
        let (arrived, _) = run(&shape("rate=40M,queue=64K,reserve=50%"), 5, &offers);
        let soon = Duration::from_secs(1)..Duration::from_millis(1400);
        let count = |iscsi: bool| {
            arrived.iter().filter(|(at, packet)| soon.contains(at) && packet.is_iscsi == iscsi).count() as f64
        };
        let share = count(alone) / (count(alone) + count(!alone));
        assert!((share - 0.5).abs() < 0.05, "{alone}: {share}");
    }
}

fn probability() -> impl Strategy<Value = Probability> {
    prop_oneof![Just(0.0), 0.0..0.3, Just(1.0)].prop_map(|value| Probability::new(value).unwrap())
}

fn any_loss() -> impl Strategy<Value = Loss> {
    prop_oneof![
        Just(Loss::None),
        probability().prop_map(Loss::Independent),
        (probability(), probability(), probability(), probability())
            .prop_map(|(to_bad, to_good, bad, good)| Loss::Bursts { to_bad, to_good, bad, good }),
    ]
}

prop_compose! {
    fn any_shape()(
        rate in prop_oneof![Just(None), (1000u64..10_000_000_000).prop_map(Some)],
        overhead_bytes in 0u16..100,
        delay_us in 0u64..100_000,
        jitter_us in 0u64..10_000,
        correlation in probability(),
        loss in any_loss(),
        duplicate in probability(),
        corrupt in probability(),
        reorder in (probability(), 0u64..20_000),
        queue_bytes in 1u64..200_000,
        reserved in prop_oneof![Just(None), probability().prop_map(Some)],
    ) -> Shape {
        Shape {
            rate: rate.map(|rate| crate::Rate::from_bits_per_s(rate).unwrap()),
            overhead_bytes,
            delay: Duration::from_micros(delay_us),
            jitter: Jitter { most: Duration::from_micros(jitter_us.min(delay_us)), correlation },
            loss,
            duplicate,
            corrupt,
            reorder: Reorder { share: reorder.0, by: Duration::from_micros(reorder.1) },
            queue_bytes,
            reserved,
            iscsi_ports: IscsiPorts::default(),
        }
    }
}

fn offers() -> impl Strategy<Value = Vec<(Duration, Numbered)>> {
    prop::collection::vec((0u64..2000, 0usize..9001, any::<bool>()), 1..200).prop_map(|steps| {
        let mut now = Duration::ZERO;
        let of = |(number, (gap_us, length, is_iscsi)): (usize, (u64, usize, bool))| {
            now += Duration::from_micros(gap_us);
            (now, Numbered { is_iscsi, ..packet(number, length) })
        };
        steps.into_iter().enumerate().map(of).collect()
    })
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn nothing_appears_or_vanishes_and_a_seed_repeats(shape in any_shape(), offers in offers(), seed: u64) {
        let (arrived, counts) = run(&shape, seed, &offers);
        prop_assert_eq!(counts.offered, offers.len() as u64);
        prop_assert_eq!(counts.offered + counts.duplicated, counts.arrived + counts.dropped + counts.lost);
        prop_assert_eq!(counts.arrived, arrived.len() as u64);
        prop_assert_eq!(run(&shape, seed, &offers), (arrived, counts));
    }

    #[test]
    fn nothing_is_early_and_the_rate_is_kept(shape in any_shape(), offers in offers(), seed: u64) {
        // Each packet once.
        let shape = Shape { duplicate: Probability::NEVER, ..shape };
        let (arrived, _) = run(&shape, seed, &offers);
        let time = |length: usize| {
            shape.rate.map_or(Duration::ZERO, |rate| rate.time_for(length + usize::from(shape.overhead_bytes)))
        };
        let least = shape.delay - shape.jitter.most;
        for (at, packet) in &arrived {
            prop_assert!(*at >= offers[packet.number].0 + time(packet.length) + least);
        }
        // From the first offer on, so many bits cannot have left sooner.
        let all: Duration = arrived.iter().map(|(_, packet)| time(packet.length)).sum();
        if let Some(last) = arrived.iter().map(|(at, _)| *at).max() {
            prop_assert!(last + Duration::from_nanos(1) >= offers[0].0 + all + least);
        }
    }

    #[test]
    fn order_is_kept_unless_a_packet_is_held_up(shape in any_shape(), offers in offers(), seed: u64) {
        let reorder = Reorder::default();
        let shape = Shape { reorder, reserved: None, ..shape };
        let (arrived, _) = run(&shape, seed, &offers);
        prop_assert!(arrived.windows(2).all(|pair| pair[0].1.number <= pair[1].1.number));
        let shape = Shape { reserved: Some(Probability::new(0.5).unwrap()), ..shape };
        let (arrived, _) = run(&shape, seed, &offers);
        for is_iscsi in [true, false] {
            let numbers: Vec<_> =
                arrived.iter().filter(|(_, packet)| packet.is_iscsi == is_iscsi).map(|(_, packet)| packet.number).collect();
            prop_assert!(numbers.is_sorted(), "within a class: {:?}", numbers);
        }
    }

    /// With or without a reservation: what leaves at the end of a window of time has been sent in it, but for one packet, and for the
    /// nanosecond to which times are rounded.
    #[test]
    fn no_window_of_time_has_more_than_the_rate_and_a_packet(
        shape in any_shape(), bits_per_s in 1000u64..10_000_000_000, offers in offers(), seed: u64,
    ) {
        let rate = crate::Rate::from_bits_per_s(bits_per_s).unwrap();
        // Each packet once, and as long on the wire as any other.
        let (jitter, reorder, duplicate) = (Jitter::default(), Reorder::default(), Probability::NEVER);
        let shape = Shape { rate: Some(rate), jitter, reorder, duplicate, ..shape };
        let (arrived, _) = run(&shape, seed, &offers);
        let bits: Vec<_> =
            arrived.iter().map(|(_, packet)| (packet.length as u128 + u128::from(shape.overhead_bytes)) * 8).collect();
        for (first, (begin, _)) in arrived.iter().enumerate() {
            let (mut sum, bits_of_first) = (0, bits[first]);
            for ((end, _), bits) in arrived.iter().zip(&bits).skip(first) {
                sum += bits;
                let nanoseconds = (*end - *begin).as_nanos() + 1;
                let most = nanoseconds * u128::from(bits_per_s) + bits_of_first * 1_000_000_000;
                prop_assert!(sum * 1_000_000_000 <= most, "{} bits from {:?} to {:?}", sum, begin, end);
            }
        }
    }
}
