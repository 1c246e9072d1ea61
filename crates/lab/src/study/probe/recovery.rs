//! How long a session takes to be as fast as before when packets were lost in a burst.

use std::thread;
use std::time::{Duration, Instant};

use lunette_link::{Link, Loss, Probability};

use super::disk::DiskProbe;
use super::{Duty, Place, Run};
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
/// Rates are taken over at least so long, and over two round trips.
const SPAN: Duration = Duration::from_millis(100);

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
        let working = scope.spawn(|| site.near(|| bench(&plan, &monitor)));
        let took = disturb(site, link, &lossy, &monitor, duty);
        monitor.stop();
        (took, working.join().map_err(|_| LabError::Panicked))
    });
    let carried = carried???;
    if let Ending::Mismatch(what) | Ending::Refused(what) | Ending::Lost(what) = carried.ending {
        return Err(LabError::NotReady(what));
    }
    let took = took?;
    let milliseconds = took.unwrap_or(PATIENCE).as_secs_f64() * 1e3;
    Ok(Run { negotiated: carried.negotiated, is_unfinished: took.is_none(), ..Run::of(milliseconds, None) })
}

/// How long it took; nothing if it was not over in time.
fn disturb(
    site: &Site,
    link: &Link,
    lossy: &Link,
    monitor: &Monitor,
    duty: Duty,
) -> Result<Option<Duration>, LabError> {
    let span = SPAN.max(link.round_trip() * 2);
    while monitor.bytes() == 0 && !monitor.is_stopped() {
        thread::sleep(STEP);
    }
    thread::sleep(duty.warm_up);
    let before = rate(monitor, duty.time.max(span));
    let emulator = site.emulator()?;
    let reshape = |link: &Link| emulator.reshape(link).map_err(LabError::system("another link"));
    reshape(lossy)?;
    thread::sleep(BURST);
    reshape(link)?;
    let ended = Instant::now();
    // What was under way before the burst still arrives for a round trip.
    thread::sleep(link.round_trip());
    while ended.elapsed() < PATIENCE && !monitor.is_stopped() {
        let began = ended.elapsed();
        if rate(monitor, span) >= before * RECOVERED {
            return Ok(Some(began));
        }
    }
    Ok(None)
}

/// Bytes per second from now on.
fn rate(monitor: &Monitor, span: Duration) -> f64 {
    let (began, bytes) = (Instant::now(), monitor.bytes());
    thread::sleep(span);
    monitor.bytes().saturating_sub(bytes) as f64 / began.elapsed().as_secs_f64()
}
