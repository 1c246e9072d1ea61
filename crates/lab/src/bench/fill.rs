//! The range is written once before the workload, so that everything that is read later is known.

use std::time::Duration;

use lunette_workload::{Kind, Operation, Range, content};

use super::monitor::Monitor;
use super::worker::{AGAIN_MAX, BUSY_PAUSE, STOP_PATIENCE};
use crate::LabError;
use crate::endpoint::{End, Endpoint};

/// The length of each write in bytes, where the disk takes as much in one command.
const PIECE_BYTES: u64 = 256 << 10;
/// Writes under way at once.
const DEPTH: u32 = 8;
const PATIENCE: Duration = Duration::from_millis(100);

/// What one command of a disk moves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transfers {
    /// The length of its logical blocks in bytes.
    pub(crate) block_bytes: u32,
    /// The most in bytes; none: it says nothing.
    pub(crate) longest_bytes: Option<u32>,
}

impl Transfers {
    /// As much as one command moves of so many bytes: whole blocks, one at least.
    pub(crate) fn at_most(self, bytes: u64) -> u64 {
        let block_bytes = u64::from(self.block_bytes.max(1));
        let bytes = self.longest_bytes.map_or(bytes, |longest| bytes.min(longest.into()));
        (bytes / block_bytes).max(1) * block_bytes
    }
}

/// How the filling ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filled {
    /// The range is written and stable.
    Whole,
    /// It was stopped; nothing is under way any more.
    Stopped,
    /// It was stopped, and some writes had not ended in the time that a stop leaves them, or what was written is not stable.
    Abandoned,
}

/// Writes generation 1 everywhere in these ranges and makes it stable. When it is stopped, the writes under way are waited for.
///
/// # Errors
/// A write fails. To be stopped is none.
pub(crate) fn fill<E: Endpoint>(
    endpoint: &mut E,
    ranges: &[Range],
    transfers: Transfers,
    seed: u64,
    monitor: &Monitor,
) -> Result<Filled, LabError> {
    let piece_bytes = transfers.at_most(PIECE_BYTES);
    let mut left = ranges.iter().flat_map(|range| pieces(*range, piece_bytes)).peekable();
    // Each write, and how often it was sent again because the unit had something else to tell.
    let mut slots = [None; DEPTH as usize];
    // What a busy unit did not take.
    let mut refused: Vec<(u32, Operation, E::Buffer)> = Vec::new();
    let mut free: Vec<u32> = (0..DEPTH).collect();
    let mut ended = Vec::new();
    let mut stopped = None;
    while left.peek().is_some() || free.len() < DEPTH as usize {
        if monitor.is_stopped() {
            let now = endpoint.now();
            free.extend(refused.drain(..).map(|(slot, ..)| slot));
            if free.len() == DEPTH as usize {
                return Ok(Filled::Stopped);
            }
            if now > stopped.get_or_insert(now).saturating_add(STOP_PATIENCE) {
                return Ok(Filled::Abandoned);
            }
        }
        while stopped.is_none()
            && !free.is_empty()
            && let Some(operation) = left.next()
            && let Some(slot) = free.pop()
        {
            let mut buffer = endpoint.buffer(operation.length_bytes)?;
            content::fill(seed, operation.offset_bytes, 1, &mut buffer);
            slots[slot as usize] = Some((operation, 0));
            endpoint.submit(slot, &operation, buffer);
        }
        // One at a time, so that the way stays narrow while it is busy.
        if let Some((slot, operation, buffer)) = refused.pop() {
            if free.len() + refused.len() + 1 == DEPTH as usize {
                std::thread::sleep(BUSY_PAUSE);
            }
            endpoint.submit(slot, &operation, buffer);
        }
        endpoint.poll(PATIENCE, &mut ended)?;
        for ended in ended.drain(..) {
            let (Some((operation, again)), Some(buffer)) = (&mut slots[ended.slot as usize], ended.buffer)
            else {
                continue;
            };
            let of_it = |reason: &str| {
                LabError::NotReady(format!("writing at byte {}: {reason}", operation.offset_bytes))
            };
            match ended.end {
                End::Good => {
                    endpoint.recycle(buffer);
                    free.push(ended.slot);
                    monitor.add_filled(u64::from(operation.length_bytes));
                }
                End::Again | End::Busy if stopped.is_some() => free.push(ended.slot),
                End::Busy => refused.push((ended.slot, *operation, buffer)),
                End::Again if *again < AGAIN_MAX => {
                    *again += 1;
                    endpoint.submit(ended.slot, operation, buffer);
                }
                End::Again => return Err(of_it("the unit has something else to tell each time")),
                End::Failed(fault) => return Err(of_it(fault.reason())),
            }
        }
    }
    if stopped.is_some() {
        return Ok(Filled::Stopped);
    }
    let is_stable = endpoint.flush_unless(&|| monitor.is_stopped())?;
    Ok(if is_stable { Filled::Whole } else { Filled::Abandoned })
}

/// The writes of a range, one behind the other, of so many bytes.
fn pieces(range: Range, piece_bytes: u64) -> impl Iterator<Item = Operation> {
    let end = range.offset_bytes + range.length_bytes;
    let mut at = range.offset_bytes;
    std::iter::from_fn(move || {
        let offset_bytes = at;
        // A piece is not longer than a number of 32 bits can say.
        let length_bytes = piece_bytes.min(end - at) as u32;
        at += u64::from(length_bytes);
        (length_bytes > 0).then_some(Operation { kind: Kind::Write, offset_bytes, length_bytes })
    })
}

#[cfg(test)]
mod tests {
    use super::super::double::Double;
    use super::*;

    /// Of a disk that does not say how much it takes.
    const ANY: Transfers = Transfers { block_bytes: 512, longest_bytes: None };

    /// How a filling ends whose unit refuses so many writes before it takes any; and the most that it had at once near the end.
    fn refused(end: fn() -> End, mut left: u32) -> (Result<Filled, String>, usize) {
        let mut most = 0;
        let mut endpoint = Double::new(|at, _| {
            if left < 100 {
                most = most.max(at.under_way.len());
            }
            let end = |slot| {
                let end = if left > 0 { end() } else { End::Good };
                left = left.saturating_sub(1);
                (slot, end)
            };
            at.under_way.drain(..).map(end).collect()
        });
        let range = Range { offset_bytes: 0, length_bytes: 8 * PIECE_BYTES };
        let filled = fill(&mut endpoint, &[range], ANY, 1, &Monitor::default());
        drop(endpoint);
        (filled.map_err(|error| error.to_string()), most)
    }

    #[test]
    fn a_busy_unit_is_asked_one_at_a_time_and_one_that_always_has_something_to_tell_not_for_ever() {
        assert_eq!(refused(|| End::Busy, 120), (Ok(Filled::Whole), 1));
        assert_eq!(refused(|| End::Again, 400).0, Ok(Filled::Whole), "50 times each");
        let (told, _) = refused(|| End::Again, u32::MAX);
        assert!(told.is_err_and(|text| text.contains("something else to tell")));
    }

    /// How a filling ends that is stopped when its first writes are under way, which end after so long; how many writes there were, and
    /// how many were left.
    fn stopped(pieces: u64, until: Duration, end: fn() -> End) -> (Filled, u32, usize) {
        let monitor = Monitor::default();
        let mut endpoint = Double::new(|at, timeout| {
            monitor.stop();
            at.now += timeout;
            if at.now < until {
                return Vec::new();
            }
            at.under_way.drain(..).map(|slot| (slot, end())).collect()
        });
        let range = Range { offset_bytes: 0, length_bytes: pieces * PIECE_BYTES };
        let filled = fill(&mut endpoint, &[range], ANY, 1, &monitor).expect("no fault");
        (filled, endpoint.at.submitted, endpoint.at.under_way.len())
    }

    #[test]
    fn each_range_is_written_from_its_begin_to_its_end() {
        let range = |offset_bytes, length_bytes| Range { offset_bytes, length_bytes };
        let ranges = [range(512, 0), range(1024, 512), range(PIECE_BYTES, 2 * PIECE_BYTES + 512)];
        let told = |operation: Operation| (operation.offset_bytes, u64::from(operation.length_bytes));
        let written: Vec<_> =
            ranges.into_iter().flat_map(|range| pieces(range, PIECE_BYTES)).map(told).collect();
        let whole = |at: u64| (at * PIECE_BYTES, PIECE_BYTES);
        assert_eq!(written, [(1024, 512), whole(1), whole(2), (3 * PIECE_BYTES, 512)]);
    }

    #[test]
    fn no_write_is_longer_than_the_disk_takes() {
        let at_most =
            |block_bytes, longest_bytes| Transfers { block_bytes, longest_bytes }.at_most(PIECE_BYTES);
        assert_eq!([at_most(512, None), at_most(512, Some(16 << 20))], [PIECE_BYTES; 2]);
        assert_eq!([at_most(512, Some(64 << 10)), at_most(4096, Some(127 << 10))], [64 << 10, 124 << 10]);
        assert_eq!([at_most(4096, Some(512)), at_most(3 << 9, None)], [4096, PIECE_BYTES / 1536 * 1536]);
        let mut endpoint = Double::new(|at, _| at.all_good());
        let range = Range { offset_bytes: 0, length_bytes: 1 << 20 };
        let transfers = Transfers { block_bytes: 512, longest_bytes: Some(64 << 10) };
        assert_eq!(
            fill(&mut endpoint, &[range], transfers, 1, &Monitor::default()).ok(),
            Some(Filled::Whole)
        );
        assert_eq!((endpoint.at.submitted, endpoint.at.longest_bytes), (16, 64 << 10));
    }

    #[test]
    fn a_stop_waits_for_the_writes_under_way_and_begins_no_more() {
        let second = Duration::from_secs(1);
        assert_eq!(stopped(100, second, || End::Good), (Filled::Stopped, 8, 0));
        assert_eq!(stopped(100, second * 60, || End::Good), (Filled::Abandoned, 8, 8));
        // All of it is under way, and none of it is written.
        assert_eq!(stopped(3, second, || End::Busy), (Filled::Stopped, 3, 0));
    }

    #[test]
    fn a_flush_may_take_longer_than_anything_else_and_be_stopped() {
        let (monitor, hour) = (Monitor::default(), Duration::from_secs(3600));
        let mut endpoint = Double::new(|at, timeout| {
            at.now += timeout;
            if at.now > hour {
                monitor.stop();
            }
            at.all_good()
        });
        endpoint.at.hangs_in_flush = true;
        let range = Range { offset_bytes: 0, length_bytes: PIECE_BYTES };
        assert_eq!(fill(&mut endpoint, &[range], ANY, 1, &monitor).ok(), Some(Filled::Abandoned));
        assert!(endpoint.at.now > hour, "it was waited for");
    }
}
