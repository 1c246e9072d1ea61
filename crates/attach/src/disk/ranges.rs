//! Who may change which blocks now. Changes that overlap go one after the other, in the order in which they came: so that a
//! read-modify-write of a part of a block loses no neighbour, and a change that is sent again after a lost session cannot
//! undo a later one.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Blocks from the first to behind the last.
#[derive(Debug, Clone, Copy)]
struct Claim {
    ticket: u64,
    start: u64,
    end: u64,
}

impl Claim {
    fn overlaps(&self, other: &Claim) -> bool {
        // Nothing overlaps with an empty one.
        self.start.max(other.start) < self.end.min(other.end)
    }
}

#[derive(Debug, Default)]
struct Claims {
    tickets: u64,
    all: Vec<Claim>,
}

/// Ranges that are being changed, or wait for it.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    claims: Mutex<Claims>,
    released: Condvar,
}

/// A range that nobody else changes as long as this is there.
#[derive(Debug)]
pub(super) struct Held<'a> {
    ranges: &'a Ranges,
    ticket: u64,
}

impl Ranges {
    /// Waits until nobody who came before changes any of these blocks.
    pub(super) fn hold(&self, lba: u64, blocks: u64) -> Held<'_> {
        let mut claims = self.lock();
        claims.tickets += 1;
        let claim = Claim { ticket: claims.tickets, start: lba, end: lba.saturating_add(blocks) };
        claims.all.push(claim);
        let is_behind = |claims: &mut Claims| {
            claims.all.iter().any(|other| other.ticket < claim.ticket && other.overlaps(&claim))
        };
        let waited = self.released.wait_while(claims, is_behind);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        Held { ranges: self, ticket: claim.ticket }
    }

    fn lock(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.ranges.lock().all.retain(|claim| claim.ticket != self.ticket);
        self.ranges.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    /// Waits until so many claims are there: what waits has claimed, too.
    fn wait_for_claims(ranges: &Ranges, count: usize) {
        while ranges.lock().all.len() < count {
            thread::yield_now();
        }
    }

    #[test]
    fn what_does_not_overlap_does_not_wait() {
        let ranges = Ranges::default();
        let held = [ranges.hold(0, 8), ranges.hold(8, 8), ranges.hold(u64::MAX - 1, 8), ranges.hold(3, 0)];
        assert_eq!(ranges.lock().all.len(), held.len());
        drop(held);
        assert!(ranges.lock().all.is_empty());
    }

    #[test]
    fn what_overlaps_goes_in_its_order_and_is_not_overtaken() {
        let ranges = Ranges::default();
        let (sender, receiver) = channel();
        thread::scope(|scope| {
            let first = ranges.hold(0, 8);
            for (index, (lba, blocks)) in [(4, 100), (50, 1), (0, 2)].into_iter().enumerate() {
                let (ranges, sender) = (&ranges, sender.clone());
                scope.spawn(move || {
                    let held = ranges.hold(lba, blocks);
                    sender.send(index).unwrap();
                    drop(held);
                });
                wait_for_claims(ranges, index + 2);
            }
            // The second of them touches nothing that is held, but the first came before it.
            assert!(receiver.try_recv().is_err());
            drop(first);
        });
        let order: Vec<usize> = receiver.try_iter().collect();
        let place = |wanted: usize| order.iter().position(|index| *index == wanted);
        assert_eq!(order.len(), 3);
        assert!(place(0) < place(1), "{order:?}");
    }
}
