//! How a link is kept from one moment to another.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use lunette_link::Counts;

use crate::carrier::Carried;
use crate::emulator::End;
use crate::namespace::Namespace;

/// A moment of a running network.
#[derive(Debug, Clone)]
pub struct Mark {
    lateness_us: [Histogram<u64>; 2],
    intake_lateness_us: [Histogram<u64>; 2],
    overruns: [u64; 2],
    outpaced: [u64; 2],
    counts: [Counts; 2],
}

/// How a link was kept for a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keeping {
    /// How long after its time a packet went out, there and back: the sum of both directions' medians.
    pub lateness_median: Duration,
    /// How long a packet waited at most until it was taken in, there and back: the sum of both directions' medians.
    pub intake_lateness_median: Duration,
    /// Packets of both directions that were lost beside the link, because this process was busy.
    pub overrun: u64,
    /// Packets that were lost on the wire, there and back, as the link has it.
    pub lost: [u64; 2],
    /// Packets of both directions for which the link's queues had no room.
    pub dropped: u64,
    /// Packets that came onto the wire, there and back: those that it may lose.
    pub passed: [u64; 2],
    /// Packets that went out in the direction that had fewer: of how many at least the lateness is.
    pub fewest: u64,
    /// What of each direction took this machine longer than the link's transmitter, there and back.
    pub outpaced: [Outpaced; 2],
}

/// Packets that took this machine longer than the link's transmitter ([`Statistics::outpaced`](crate::Statistics::outpaced)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outpaced {
    /// So many,
    pub packets: u64,
    /// of so many that went out.
    pub of: u64,
}

/// Looks at a running network, or at a proxy. It keeps the namespaces alive, and not the link.
#[derive(Debug)]
pub struct Watcher {
    carried: [Arc<Mutex<Carried>>; 2],
    /// Where the two directions begin; none of a proxy, for which the kernel drops nothing.
    ends: Option<[(Namespace, End); 2]>,
}

impl Watcher {
    pub(crate) const fn new(carried: [Arc<Mutex<Carried>>; 2], ends: [(Namespace, End); 2]) -> Self {
        Self { carried, ends: Some(ends) }
    }

    /// For a proxy, which has no devices.
    pub(crate) const fn of_proxy(carried: [Arc<Mutex<Carried>>; 2]) -> Self {
        Self { carried, ends: None }
    }

    /// This moment, for [`Self::since`].
    ///
    /// # Errors
    /// The kernel's counters cannot be read.
    pub fn mark(&self) -> io::Result<Mark> {
        let mut overruns = [0; 2];
        if let Some(ends) = &self.ends {
            let [near, far] = ends.each_ref().map(|(namespace, end)| dropped(namespace, *end));
            overruns = [near?, far?];
        }
        let (mut counts, mut outpaced) = ([Counts::default(); 2], [0; 2]);
        let both = std::array::from_fn(|way| {
            let carried = self.carried[way].lock().unwrap_or_else(PoisonError::into_inner);
            overruns[way] += carried.refused.packets + carried.unreadable;
            counts[way] = carried.counts();
            outpaced[way] = carried.outpaced;
            (carried.lateness_us.clone(), carried.intake_lateness_us.clone())
        });
        let [(up, up_intake), (down, down_intake)] = both;
        let (lateness_us, intake_lateness_us) = ([up, down], [up_intake, down_intake]);
        Ok(Mark { lateness_us, intake_lateness_us, overruns, outpaced, counts })
    }

    /// How the link was kept from then on.
    ///
    /// # Errors
    /// The kernel's counters cannot be read.
    pub fn since(&self, mark: &Mark) -> io::Result<Keeping> {
        let now = self.mark()?;
        let of = |now: &[Histogram<u64>; 2], before: &[Histogram<u64>; 2]| -> Vec<Histogram<u64>> {
            now.iter().zip(before).map(|(now, before)| between(before, now)).collect()
        };
        let median = |ways: &[Histogram<u64>]| {
            Duration::from_micros(ways.iter().map(|late| late.value_at_quantile(0.5)).sum())
        };
        let ways = of(&now.lateness_us, &mark.lateness_us);
        let intake = of(&now.intake_lateness_us, &mark.intake_lateness_us);
        let overrun = now.overruns.iter().zip(mark.overruns).map(|(now, before)| now.saturating_sub(before));
        let more =
            |way: usize, of: fn(&Counts) -> u64| of(&now.counts[way]).saturating_sub(of(&mark.counts[way]));
        let passed = |way: usize| {
            let [before, now] = [mark, &now].map(|at| at.counts[way].offered - at.counts[way].dropped);
            now.saturating_sub(before)
        };
        let outpaced = |way: usize| Outpaced {
            packets: now.outpaced[way].saturating_sub(mark.outpaced[way]),
            of: ways[way].len(),
        };
        Ok(Keeping {
            outpaced: [outpaced(0), outpaced(1)],
            passed: [passed(0), passed(1)],
            lateness_median: median(&ways),
            intake_lateness_median: median(&intake),
            overrun: overrun.sum(),
            lost: [0, 1].map(|way| more(way, |counts| counts.lost)),
            dropped: [0, 1].iter().map(|way| more(*way, |counts| counts.dropped)).sum(),
            fewest: ways.iter().map(Histogram::len).min().unwrap_or_default(),
        })
    }
}

/// What a histogram has now and had not before.
fn between(before: &Histogram<u64>, now: &Histogram<u64>) -> Histogram<u64> {
    let mut between = now.clone();
    // Both are of the same carrier, so that what was there before still is.
    match between.subtract(before) {
        Ok(()) => between,
        Err(_) => now.clone(),
    }
}

/// Packets that an end's device dropped on their way out, before they came to the link.
///
/// # Errors
/// The kernel's counters cannot be read.
pub(crate) fn dropped(namespace: &Namespace, end: End) -> io::Result<u64> {
    let table = namespace.within(|| std::fs::read_to_string("/proc/thread-self/net/dev"))?;
    let row = table.lines().find_map(|line| line.trim_start().strip_prefix(end.name)?.strip_prefix(':'));
    // Eight columns for what came, then bytes, packets, errors and drops of what went (proc(5)).
    let dropped = row.and_then(|row| row.split_ascii_whitespace().nth(11)?.parse().ok());
    dropped.ok_or_else(|| io::Error::other("/proc/net/dev does not say what a device dropped"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_late_before_is_not_late_again() {
        let mut before = Histogram::new_with_max(60_000_000, 2).expect("a histogram");
        assert_eq!(between(&before, &before).len(), 0, "no packet went out");
        before.record_n(50_000, 1000).expect("within its range");
        let mut now = before.clone();
        now.record_n(12, 9).expect("within its range");
        let late = between(&before, &now);
        assert_eq!((late.value_at_quantile(0.5), late.len()), (12, 9));
        assert!(now.value_at_quantile(0.5) > 49_000, "of all of them");
    }
}
