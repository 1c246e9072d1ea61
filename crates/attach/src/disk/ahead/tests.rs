use lunette_cases::cases;
use proptest::prelude::*;

use super::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Has pieces come over a line with a rate in bytes per second and a delay there and back, one behind the other.
fn measure(ahead: &mut Ahead<()>, rate: u64, delay_ms: u64) {
    let left = |pieces: u64| Duration::from_nanos(pieces * CHUNK_BYTES_MIN * 1_000_000_000 / rate);
    for at in 0..2000 {
        ahead.came(left(at), left(at + 1) + Duration::from_millis(delay_ms), CHUNK_BYTES_MIN);
    }
}

/// Reads so much from `start` in requests of `length`; answers how far was read ahead.
fn read(ahead: &mut Ahead<()>, start: u64, length: u64, requests: u64) -> Option<u64> {
    let mut reached = None;
    for at in 0..requests {
        let from = start + at * length;
        for piece in ahead.read(&(from..from + length)) {
            assert!(piece.end - piece.start <= CHUNK_BYTES_MAX && piece.start % 512 == 0);
            reached = Some(piece.end);
            ahead.insert(piece, Arc::new(()));
        }
    }
    reached
}

#[test]
fn who_reads_in_order_is_read_ahead_of_further_and_further() {
    let mut ahead: Ahead<()> = Ahead::new(1 << 40, 512, MIB);
    measure(&mut ahead, 10 << 30, 100);
    assert_eq!(read(&mut ahead, 0, 4 * KIB, 15), None, "it may be chance");
    assert_eq!(read(&mut ahead, 60 * KIB, 4 * KIB, 1), Some(64 * KIB + WINDOW_BYTES_MIN));
    let reached = read(&mut ahead, 64 * KIB, 4 * KIB, 64 << 10).unwrap();
    let end = 256 * MIB + 64 * KIB;
    assert!(reached > end + WINDOW_BYTES_MAX / 2 - MIB && reached <= end + WINDOW_BYTES_MAX, "{reached}");
}

#[test]
fn requests_of_one_reader_may_overtake_each_other() {
    let mut ahead: Ahead<()> = Ahead::new(1 << 40, 4096, MIB);
    let mut pieces = Vec::new();
    for at in [1, 0, 3, 2, 5, 7, 6, 4] {
        pieces.extend(ahead.read(&((8 + at) * 128 * KIB..(9 + at) * 128 * KIB)));
    }
    assert_eq!(pieces.first().map(|piece| piece.start), Some(10 * 128 * KIB));
}

#[test]
fn who_leaps_is_not_read_ahead_of() {
    let mut ahead: Ahead<()> = Ahead::new(1 << 40, 512, MIB);
    for at in 0..1000 {
        assert!(ahead.read(&(at * 40 * KIB..at * 40 * KIB + 4 * KIB)).is_empty());
        let far = (at * 7919 % 1000 + 64) * 16 * MIB;
        assert!(ahead.read(&(far..far + 64 * KIB)).is_empty());
    }
}

#[test]
fn as_much_is_read_ahead_as_the_way_holds() {
    for (rate, delay_ms, least, most) in [
        (100 << 10, 50, WINDOW_BYTES_MIN, WINDOW_BYTES_MIN),
        (18 << 20, 50, 1800 * KIB, 3 * MIB),
        (120 << 20, 0, 2 * MIB, 4 * MIB),
        (120 << 20, 100, 24 * MIB, 30 * MIB),
        (2 << 30, 100, WINDOW_BYTES_MAX, WINDOW_BYTES_MAX),
    ] {
        let mut ahead: Ahead<()> = Ahead::new(1 << 40, 512, MIB);
        assert_eq!(ahead.window_max(), WINDOW_BYTES_MIN, "before anything is known");
        measure(&mut ahead, rate, delay_ms);
        let window = ahead.window_max();
        assert!((least..=most).contains(&window), "{rate} bytes/s, {delay_ms} ms: {window}");
    }
}

#[test]
fn a_small_window_has_short_pieces() {
    let mut ahead: Ahead<()> = Ahead::new(1 << 40, 512, MIB);
    read(&mut ahead, 0, 64 * KIB, 1);
    let pieces = ahead.read(&(64 * KIB..128 * KIB));
    assert!(
        pieces.len() == 4 && pieces.iter().all(|piece| piece.end - piece.start == 64 * KIB),
        "{pieces:?}"
    );
}

/// Reads 64 KiB so many times, with a pause before each; tells how many pieces were too old.
fn read_slowly(
    ahead: &mut Ahead<Duration>,
    now: &mut Duration,
    from: u64,
    times: u64,
    pause: Duration,
) -> u64 {
    let mut old = 0;
    for at in (from..).step_by(64 << 10).take(times as usize) {
        *now += pause;
        let end = at + 64 * KIB;
        for piece in ahead.read(&(at..end)) {
            ahead.insert(piece, Arc::new(*now));
        }
        let mut next = at;
        while next < end {
            match ahead.find(next, end) {
                Ok((piece, asked_at)) if ahead.may_use(next, *now - *asked_at) => {
                    let to = piece.end.min(end);
                    ahead.used(piece.start, to - next);
                    next = to;
                }
                Ok(_) => old += 1,
                Err(stop) => next = stop,
            }
        }
    }
    old
}

#[test]
fn nothing_is_read_so_far_ahead_of_a_slow_reader_that_it_becomes_old() {
    let mut ahead: Ahead<Duration> = Ahead::new(1 << 40, 512, MIB);
    let mut now = Duration::ZERO;
    let slow = Duration::from_millis(125);
    assert!(read_slowly(&mut ahead, &mut now, 0, 100, slow) < 4);
    assert_eq!(read_slowly(&mut ahead, &mut now, 100 * 64 * KIB, 1000, slow), 0);
    let quick = Duration::from_millis(1);
    assert_eq!(read_slowly(&mut ahead, &mut now, 1100 * 64 * KIB, 1000, quick), 0);
    assert_eq!(ahead.streams.back().unwrap().window_max, WINDOW_BYTES_MAX);
}

#[test]
fn what_is_old_is_forgotten_with_what_is_behind_it_and_read_ahead_again() {
    let mut ahead: Ahead<()> = Ahead::new(1 << 40, 512, 64 * KIB);
    assert_eq!(read(&mut ahead, 0, 4 * KIB, 16), Some(320 * KIB));
    assert!(ahead.may_use(64 * KIB, AGE_MAX - Duration::from_nanos(1)));
    assert!(ahead.may_use(256 * KIB, Duration::ZERO));
    assert!(!ahead.may_use(128 * KIB, AGE_MAX));
    assert!(ahead.find(64 * KIB, MIB).is_ok(), "what is before it is told of when it is wanted");
    assert_eq!((ahead.find(128 * KIB, MIB).err(), ahead.bytes), (Some(MIB), 64 * KIB));
    assert!(!ahead.may_use(64 * KIB, Duration::from_secs(3600)));
    assert_eq!((ahead.chunks.len(), ahead.bytes), (0, 0));
    assert!(read(&mut ahead, 64 * KIB, 4 * KIB, 1).unwrap() > 68 * KIB);
    assert!(ahead.find(68 * KIB, MIB).is_ok());
}

#[test]
fn nothing_is_read_behind_the_end() {
    let mut ahead: Ahead<()> = Ahead::new(300 * KIB, 512, MIB);
    assert_eq!(read(&mut ahead, 0, 100 * KIB, 3), Some(300 * KIB));
    assert!(ahead.find(300 * KIB, 301 * KIB).is_err());
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn chunks_never_overlap_and_are_bounded_and_what_is_forgotten_is_gone(
        steps in prop::collection::vec((0u64..64, 1u64..64, 0u8..3, 0u64..2500), 1..200),
    ) {
        let mut ahead: Ahead<()> = Ahead::new(40 * MIB + 512, 512, MIB);
        let mut at = 0;
        for (place, length, what, age) in steps {
            let range = match what {
                // On from where the last one was.
                0 => at..at + length * 4 * KIB,
                _ => place * MIB / 2..place * MIB / 2 + length * 16 * KIB,
            };
            let range = range.start.min(ahead.size)..range.end.min(ahead.size);
            if what == 2 {
                ahead.forget(&range);
                prop_assert!(ahead.overlapping(&range).next().is_none());
            } else {
                for piece in ahead.read(&range) {
                    prop_assert!(piece.end <= ahead.size && piece.start < piece.end);
                    ahead.insert(piece, Arc::new(()));
                }
                if let Ok((chunk, _)) = ahead.find(range.start, range.end) {
                    prop_assert!(chunk.contains(&range.start));
                    if ahead.may_use(range.start, Duration::from_millis(age)) {
                        ahead.used(chunk.start, chunk.end.min(range.end) - range.start);
                    } else {
                        prop_assert!(ahead.overlapping(&chunk).next().is_none());
                    }
                }
                at = range.end;
            }
            let mut end = 0;
            for (start, chunk) in &ahead.chunks {
                prop_assert!(*start >= end && *start < chunk.end);
                end = chunk.end;
            }
            let bytes: u64 = ahead.chunks.iter().map(|(start, chunk)| chunk.end - start).sum();
            prop_assert_eq!(bytes, ahead.bytes);
            prop_assert!(bytes <= BYTES_MAX);
        }
    }
}
