//! What it learns, and what becomes of sessions that are asked at its pace, over lines in virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::*;

const PACKET_BYTES: usize = 1460;

/// As much as is asked for of a line that is to be full.
const MUCH: usize = 1 << 20;

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// So many bytes, 10 KB each millisecond.
fn stream(pace: &mut Pace, from: Duration, bytes: usize) -> Duration {
    let mut now = from;
    for _ in 0..bytes / 10_000 {
        now += ms(1);
        pace.came(10_000, MUCH, now);
    }
    now
}

/// How long nothing more is asked for after so many bytes, if nothing was before.
fn takes(pace: &mut Pace, bytes: usize, now: Duration) -> Duration {
    pace.next_at = now;
    pace.asked(bytes, now);
    pace.wait_until(now).map_or(Duration::ZERO, |until| until - now)
}

#[test]
fn data_is_asked_for_a_little_faster_than_it_came() {
    let mut pace = Pace::default();
    assert_eq!(takes(&mut pace, 1 << 20, ms(1000)), Duration::ZERO, "nobody knows the rate");
    // Each sample is of 140 KB.
    let now = stream(&mut pace, ms(1000), 500_000);
    assert_eq!(takes(&mut pace, 1 << 20, now), Duration::ZERO, "three samples are none");
    let now = stream(&mut pace, now, 500_000);
    // 10 MB/s and a tenth more.
    assert_eq!(takes(&mut pace, 1_100_000, now), ms(100));
    assert_eq!(takes(&mut pace, 4_000_000_000, now), ms(500), "nobody is held up for long");
    assert!(takes(&mut pace, 1_100_000, now + ms(400)) > Duration::ZERO);
    assert_eq!(takes(&mut pace, 1_100_000, now + ms(500)), Duration::ZERO, "it may be another way by now");
    assert_eq!(takes(&mut pace, 1_100_000, now), Duration::ZERO, "what was forgotten is");
    let now = stream(&mut pace, now + ms(5000), 500_000);
    assert_eq!(takes(&mut pace, 1 << 20, now), Duration::ZERO, "and does not count again");
}

#[test]
fn what_comes_while_little_is_asked_for_says_nothing() {
    let mut pace = Pace::default();
    let mut now = ms(1000);
    for _ in 0..2000 {
        now += ms(1);
        pace.came(1000, ASKED_BYTES_MIN - 1, now);
    }
    assert_eq!(takes(&mut pace, 1 << 20, now), Duration::ZERO);
}

/// What is asked for although it is not time, because nothing else is outstanding.
#[test]
fn who_does_not_wait_is_not_held_up_for_longer() {
    let mut pace = Pace::default();
    let now = stream(&mut pace, ms(1000), 3_000_000);
    for _ in 0..1000 {
        pace.asked(1_100_000, now);
    }
    assert_eq!(pace.wait_until(now), Some(now + ms(100)));
}

#[test]
fn gaps_say_nothing_of_the_rate_and_nor_does_what_comes_behind_them() {
    let mut pace = Pace::default();
    let mut now = ms(1000);
    for _ in 0..30 {
        now = stream(&mut pace, now + ms(40), 50_000);
        // A megabyte that a lost packet held up.
        pace.came(1_000_000, MUCH, now + ms(30));
        pace.came(1_000_000, MUCH, now + ms(30));
        now += ms(30);
    }
    assert_eq!(takes(&mut pace, 1_100_000, now), ms(100));
}

#[test]
fn a_few_good_samples_are_not_believed_and_many_bad_ones_not_either() {
    let mut pace = Pace::default();
    let mut now = stream(&mut pace, ms(1000), 3_000_000);
    for _ in 0..BETTER {
        // 100 MB/s.
        for _ in 0..10 {
            now += ms(1);
            pace.came(100_000, MUCH, now);
        }
    }
    assert_eq!(takes(&mut pace, 1_100_000, now), ms(100));
    for _ in 0..(SAMPLES - BETTER - 1) * 132 {
        // 1 MB/s.
        now += ms(1);
        pace.came(1000, MUCH, now);
    }
    assert!(takes(&mut pace, 1_100_000, now) <= ms(100));
}

#[test]
fn who_is_late_makes_up_for_little() {
    let mut pace = Pace::default();
    let now = stream(&mut pace, ms(1000), 3_000_000);
    pace.next_at = now;
    pace.asked(110_000, now + ms(300));
    assert_eq!(pace.wait_until(now + ms(300)), Some(now + ms(300 - 5 + 10)));
}

/// A session with one connection, whose initiator keeps so many writes under way.
#[derive(Debug, Clone, Copy)]
struct Line {
    bytes_per_s: f64,
    round_trip: Duration,
    depth: usize,
    write_bytes: usize,
    /// What one R2T asks for at most, of which one is outstanding.
    burst_bytes: usize,
    /// How long the initiator takes to answer one.
    late: Duration,
    /// Until then it keeps one write under way.
    alone: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A packet of a write reaches the target; the last one of a burst, or the command itself, that has none.
    Arrives { write: usize, bytes: usize, is_last: bool },
    /// An R2T reaches the initiator, and it answers.
    Asked { write: usize, bytes: usize },
    /// An answer has reached the initiator: the next write begins.
    Answered { write: usize },
    /// The target looks whether it is time.
    Due,
}

/// Bytes per second that were written in the four seconds from the third on.
fn written(line: Line, mut pace: Option<Pace>) -> f64 {
    let way = line.round_trip / 2;
    let mut events = BinaryHeap::new();
    let mut left = vec![0; line.depth];
    let (mut waiting, mut asked_bytes, mut free_at, mut total) = (VecDeque::new(), 0, Duration::ZERO, 0);
    events.extend((0..line.depth).map(|write| {
        let begins = if write == 0 { Duration::ZERO } else { line.alone };
        Reverse((begins, Event::Answered { write }))
    }));
    let mut due_at = None;
    while let Some(Reverse((now, event))) = events.pop()
        && now < ms(6000)
    {
        let mut put = |bytes: usize, from: Duration, event| {
            free_at = free_at.max(from) + Duration::from_secs_f64(bytes as f64 / line.bytes_per_s);
            events.push(Reverse((free_at + way, event)));
        };
        match event {
            Event::Answered { write } => {
                left[write] = line.write_bytes;
                put(100, now, Event::Arrives { write, bytes: 0, is_last: true });
            }
            Event::Asked { write, bytes } => {
                for at in (0..bytes).step_by(PACKET_BYTES) {
                    let part = PACKET_BYTES.min(bytes - at);
                    let is_last = at + part == bytes;
                    put(part, now, Event::Arrives { write, bytes: part, is_last });
                }
            }
            Event::Arrives { write, bytes, is_last } => {
                if let Some(pace) = pace.as_mut().filter(|_| bytes > 0) {
                    pace.came(bytes, asked_bytes, now);
                }
                asked_bytes -= bytes;
                left[write] -= bytes;
                total += if now >= ms(2000) { bytes } else { 0 };
                if is_last && left[write] == line.write_bytes {
                    waiting.push_back(write);
                } else if is_last && left[write] == 0 {
                    events.push(Reverse((now + way, Event::Answered { write })));
                } else if is_last {
                    // The session core asks for the next burst by itself.
                    let bytes = left[write].min(line.burst_bytes);
                    events.push(Reverse((now + way + line.late, Event::Asked { write, bytes })));
                }
            }
            Event::Due => due_at = None,
        }
        while let Some(&write) = waiting.front() {
            let bytes = line.write_bytes.min(line.burst_bytes);
            if let Some(pace) = &mut pace {
                if asked_bytes > 0
                    && let Some(due) = pace.wait_until(now)
                {
                    if due_at != Some(due) {
                        due_at = Some(due);
                        events.push(Reverse((due, Event::Due)));
                    }
                    break;
                }
                pace.asked(bytes, now);
            }
            asked_bytes += line.write_bytes;
            waiting.pop_front();
            events.push(Reverse((now + way + line.late, Event::Asked { write, bytes })));
        }
    }
    total as f64 / 4.0
}

const OC3: Line = Line {
    bytes_per_s: 18.7e6,
    round_trip: ms(50),
    depth: 32,
    write_bytes: 64 << 10,
    burst_bytes: 16 << 20,
    late: Duration::ZERO,
    alone: Duration::ZERO,
};

/// Its commands do not wait behind the data of others, which is what it is for.
#[test]
fn a_line_that_just_as_many_writes_fill_is_full() {
    let (paced, unpaced) = (written(OC3, Some(Pace::default())), written(OC3, None));
    assert!(unpaced < 0.92 * OC3.bytes_per_s, "{unpaced}");
    assert!(paced > 0.95 * OC3.bytes_per_s, "{paced}");
}

#[test]
fn nobody_is_slower_than_without() {
    let gigabit = Line { bytes_per_s: 120e6, ..OC3 };
    let lines = [
        Line { depth: 1, ..OC3 },
        Line { depth: 8, ..OC3 },
        Line { depth: 16, ..OC3 },
        Line { depth: 64, ..OC3 },
        Line { depth: 256, write_bytes: 4 << 10, ..OC3 },
        Line { write_bytes: 512 << 10, ..OC3 },
        Line { round_trip: ms(10), ..OC3 },
        // An initiator that answers late, and ones that are asked for a little at a time.
        Line { late: ms(20), ..OC3 },
        Line { late: ms(20), ..gigabit },
        Line { late: ms(20), write_bytes: 512 << 10, ..gigabit },
        Line { write_bytes: 1 << 20, burst_bytes: 256 << 10, ..gigabit },
        Line { write_bytes: 1 << 20, burst_bytes: 64 << 10, ..gigabit },
        Line { write_bytes: 1 << 20, burst_bytes: 256 << 10, depth: 4, ..gigabit },
        Line { round_trip: ms(200), depth: 128, ..gigabit },
        // Ones that have had little to do.
        Line { alone: ms(1900), ..OC3 },
        Line { alone: ms(1900), write_bytes: 512 << 10, ..gigabit },
        Line { alone: ms(1900), depth: 256, write_bytes: 4 << 10, ..OC3 },
        Line { bytes_per_s: 1.2e6, ..OC3 },
        Line { bytes_per_s: 0.1e6, ..OC3 },
    ];
    for line in lines {
        let (paced, unpaced) = (written(line, Some(Pace::default())), written(line, None));
        assert!(unpaced > 0.0 && paced >= 0.999 * unpaced, "{line:?}: {paced} of {unpaced}");
    }
}
