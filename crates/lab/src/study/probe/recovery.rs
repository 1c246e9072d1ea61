//! How long a session takes to be as fast as before when packets were lost in a burst.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use lunette_link::{Link, Loss, Probability};

use super::disk::DiskProbe;
use super::{Duty, Further, Place, Run};
use crate::study::site::Site;
use crate::{Ending, LabError, Monitor, bench};

/// For so long packets are lost, with this chance each.
const BURST: Duration = Duration::from_millis(100);
const LOST: f64 = 0.5;
/// As fast as before, within this.
const RECOVERED: f64 = 0.9;
/// What is not over by then is told as so long, and as unfinished.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often is looked.
const STEP: Duration = Duration::from_millis(10);
/// The rate is back when it was there for at least so long, and for two round trips.
const SPAN: Duration = Duration::from_millis(100);
/// And for as long as so many times what is under way takes at the rate before: of what was held up, all is answered at once when a gap
/// is closed, and that alone must not pass for a rate.
const SPAN_OF_UNDER_WAY: f64 = 3.0;
/// What may be told of a line that loses nothing, in milliseconds: no recovery that is as short can be told from none.
pub(crate) const FLOOR: &str = "floor";

/// Has a burst of losses come, and tells the time from its end on, in milliseconds.
pub(super) fn run(place: Place<'_>, disk: &DiskProbe, duty: Duty) -> Result<Run, LabError> {
    let Some((site, link)) = place.over else {
        return Err(LabError::Plan("without a network no packets are lost".to_owned()));
    };
    let half = Probability::new(LOST).map_err(|error| LabError::Plan(error.to_string()))?;
    let mut lossy = link.clone();
    (lossy.up.loss, lossy.down.loss) = (Loss::Independent(half), Loss::Independent(half));
    let monitor = Monitor::default();
    let plan = disk.endless(site, duty)?;
    let (took, carried) = thread::scope(|scope| {
        let working = scope.spawn(|| {
            let carried = site.near(|| bench(&plan, &monitor));
            // It may not even have begun.
            monitor.stop();
            carried
        });
        let took = disturb((site, link), &lossy, &monitor, duty, disk.outstanding_bytes());
        monitor.stop();
        (took, working.join().map_err(|_| LabError::Panicked))
    });
    let carried = carried???;
    if let Ending::Mismatch(what) | Ending::Refused(what) | Ending::Lost(what) = carried.ending {
        return Err(LabError::NotReady(what));
    }
    let (took, floor) = took?;
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(Run {
        negotiated: carried.negotiated,
        is_unfinished: took.is_none(),
        further: vec![Further::new(FLOOR, milliseconds(floor), "ms")],
        ..Run::of(milliseconds(took.unwrap_or(PATIENCE)), None)
    })
}

/// How long it took, with so many bytes under way, nothing if it was not over in time; and the [`FLOOR`].
fn disturb(
    (site, link): (&Site, &Link),
    lossy: &Link,
    monitor: &Monitor,
    duty: Duty,
    under_way_bytes: u64,
) -> Result<(Option<Duration>, Duration), LabError> {
    while monitor.bytes() == 0 {
        if monitor.is_stopped() {
            return Ok((None, Duration::ZERO));
        }
        thread::sleep(STEP);
    }
    thread::sleep(duty.warm_up);
    let before = rate(monitor, duty.time.max(SPAN).max(link.round_trip() * 2));
    let span = span(link.round_trip(), under_way_bytes, before);
    let floor = floor(link.round_trip(), under_way_bytes, before);
    let emulator = site.emulator()?;
    let reshape = |link: &Link| emulator.reshape(link).map_err(LabError::system("another link"));
    reshape(lossy)?;
    thread::sleep(BURST);
    reshape(link)?;
    let ended = Instant::now();
    // What was under way is held up, and comes at once or not: that it has come is no rate.
    let held_up_until = monitor.bytes().saturating_add(under_way_bytes);
    // What was under way before the burst still arrives for a round trip.
    thread::sleep(link.round_trip());
    let mut returning = Returning::new(before * RECOVERED, span, held_up_until);
    while ended.elapsed() < PATIENCE + span && !monitor.is_stopped() {
        if let Some(began) = returning.look(ended.elapsed(), monitor.bytes()) {
            return Ok((Some(began).filter(|began| *began < PATIENCE), floor));
        }
        thread::sleep(STEP);
    }
    Ok((None, floor))
}

/// Bytes per second from now on.
fn rate(monitor: &Monitor, span: Duration) -> f64 {
    let (began, bytes) = (Instant::now(), monitor.bytes());
    thread::sleep(span);
    monitor.bytes().saturating_sub(bytes) as f64 / began.elapsed().as_secs_f64()
}

/// For how long a rate is to be there, where so many bytes are under way and so many came in a second before.
fn span(round_trip: Duration, under_way_bytes: u64, before: f64) -> Duration {
    let of_under_way = Duration::try_from_secs_f64(under_way_bytes as f64 * SPAN_OF_UNDER_WAY / before);
    // Who had next to nothing before is not waited for longer than anybody else.
    SPAN.max(round_trip * 2).max(of_under_way.unwrap_or(PATIENCE).min(PATIENCE))
}

/// When the rate is seen at the latest where nothing was lost, which is when as much has come as was under way, and a round trip is over:
/// that is looked for in steps, of which two are let pass.
fn floor(round_trip: Duration, under_way_bytes: u64, before: f64) -> Duration {
    let of_under_way = Duration::try_from_secs_f64(under_way_bytes as f64 / before).unwrap_or(PATIENCE);
    round_trip.max(of_under_way.min(PATIENCE)) + STEP * 2
}

/// Sees when a rate is there for a whole span.
#[derive(Debug)]
struct Returning {
    /// In bytes per second.
    wanted: f64,
    span: Duration,
    /// Until so much has come it is what was held up.
    held_up_until: u64,
    /// When was looked and what had come by then: the first is the last one that is a whole span old, once there is one.
    looks: VecDeque<(Duration, u64)>,
}

impl Returning {
    const fn new(wanted: f64, span: Duration, held_up_until: u64) -> Self {
        Self { wanted, span, held_up_until, looks: VecDeque::new() }
    }

    /// So much has come by now; tells when the span began that has the rate, if this is its end.
    fn look(&mut self, now: Duration, bytes: u64) -> Option<Duration> {
        if bytes < self.held_up_until {
            return None;
        }
        self.looks.push_back((now, bytes));
        while self.looks.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= self.span) {
            self.looks.pop_front();
        }
        let (began, before) = *self.looks.front()?;
        let lasted = now.saturating_sub(began);
        let came = bytes.saturating_sub(before) as f64;
        (lasted >= self.span && came >= self.wanted * lasted.as_secs_f64()).then_some(began)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;
    /// 32 writes of 64 KiB.
    const UNDER_WAY: u64 = 2 << 20;
    /// The data of the line, in bytes per second.
    const LINE: f64 = 18.7e6;

    /// When the rate is back where so many bytes have come at each millisecond, looked at every 10 ms for 20 s.
    fn back(round_trip: Duration, came: impl Fn(u64) -> u64) -> Option<u64> {
        let mut returning = Returning::new(LINE * RECOVERED, span(round_trip, UNDER_WAY, LINE), UNDER_WAY);
        let began = (0..20_000).step_by(10).find_map(|ms| returning.look(MS(ms), came(ms)))?;
        Some(began.as_millis() as u64)
    }

    #[test]
    fn what_was_held_up_and_comes_at_once_is_no_rate() {
        let line = |ms: u64| (ms as f64 * LINE / 1e3) as u64;
        for round_trip in [0, 2, 10, 50].map(MS) {
            // What is under way takes 112 ms.
            assert_eq!(back(round_trip, line), Some(120));
            assert_eq!(
                floor(round_trip, UNDER_WAY, LINE).as_millis(),
                132,
                "it is told of a line that lost nothing"
            );
            // It comes at once behind a gap that is as long, and then the rate is there: not before.
            let repaid = |ms: u64| if ms < 160 { 0 } else { UNDER_WAY + line(ms - 160) };
            assert_eq!(back(round_trip, repaid), Some(160));
            // All of it is answered at 200 ms, and then a tenth of the rate is there until 3 s.
            let burst = |ms: u64| u64::from(ms >= 200) * UNDER_WAY + line(ms.min(3000)) / 10;
            assert_eq!(back(round_trip, burst), None, "nothing comes after it");
            let at = back(round_trip, |ms| burst(ms) + line(ms.saturating_sub(3000))).expect("it is back");
            assert!((2900..=3000).contains(&at), "{at}");
            // Nor is that so each time when it happens again.
            let again = |ms: u64| ms / 300 * UNDER_WAY;
            assert_eq!(back(round_trip, again), None, "37 % of the rate");
        }
    }

    #[test]
    fn a_rate_is_to_be_there_for_longer_than_what_is_under_way_can_make_it() {
        assert_eq!(span(MS(0), 65_536, LINE), SPAN);
        assert_eq!(span(MS(100), UNDER_WAY / 4, LINE), MS(200));
        assert_eq!(span(MS(50), UNDER_WAY, LINE).as_millis(), 336);
        assert_eq!(span(MS(50), UNDER_WAY, 1000.0), PATIENCE);
        assert_eq!(span(MS(50), UNDER_WAY, 0.0), PATIENCE);
        assert_eq!(
            (floor(MS(200), UNDER_WAY, LINE), floor(MS(50), UNDER_WAY, 0.0)),
            (MS(220), PATIENCE + MS(20))
        );
    }
}
