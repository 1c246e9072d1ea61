//! Representations of data (ROD): tokens that stand for blocks of a unit, for whoever holds them (SPC-4, SBC-3).
//!
//! A token does not keep the data. It stands for what the blocks held when it was made, and is revoked by the first change
//! of any of them: what SPC-4 calls a point in time copy that is vulnerable to change. It is made while no write, of an
//! initiator or of a copy, is on its way to the unit, and revoked before a later one is given to the store; so it never
//! yields other data than it was made for, and costs nothing to make. docs/decisions/0020 has the reasons.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::io::{BlockLengths, Io};
use crate::unit::LogicalUnit;

/// The length of every token.
pub(crate) const TOKEN_BYTES: usize = 512;
/// Tokens of one initiator, whatever ports it has; the one used longest ago makes room for another.
const TOKENS_OF_ONE_MAX: usize = 128;
/// Tokens of all.
const TOKENS_MAX: usize = 4096;

/// A token's bytes.
pub(crate) type Token = [u8; TOKEN_BYTES];

/// Blocks in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocks {
    pub(crate) lba: u64,
    pub(crate) count: u32,
}

impl Blocks {
    pub(crate) fn end(self) -> u64 {
        self.lba.saturating_add(self.count.into())
    }
}

/// What one token stands for.
#[derive(Debug)]
pub(crate) struct Rod {
    pub(crate) token: Token,
    pub(crate) unit: Arc<LogicalUnit>,
    /// In the order in which they stand in the data; none is empty.
    pub(crate) ranges: Vec<Blocks>,
    /// The initiator that made it.
    owner: Arc<str>,
    is_revoked: AtomicBool,
    /// Not used for so long, it ends.
    timeout_s: AtomicU32,
    used_at_ms: AtomicU64,
}

impl Rod {
    pub(crate) fn new(
        token: Token,
        unit: Arc<LogicalUnit>,
        ranges: Vec<Blocks>,
        owner: Arc<str>,
        timeout_s: u32,
    ) -> Rod {
        Rod {
            token,
            unit,
            ranges,
            owner,
            is_revoked: AtomicBool::new(false),
            timeout_s: AtomicU32::new(timeout_s),
            used_at_ms: AtomicU64::new(0),
        }
    }

    /// The number of blocks that it stands for.
    pub(crate) fn blocks(&self) -> u64 {
        self.ranges.iter().map(|range| u64::from(range.count)).sum()
    }

    /// True once a block of it has changed.
    pub(crate) fn is_revoked(&self) -> bool {
        self.is_revoked.load(Ordering::SeqCst)
    }

    /// It is being used.
    pub(crate) fn touch(&self, now: Duration) {
        self.used_at_ms.store(now.as_millis() as u64, Ordering::Relaxed);
    }

    fn has_expired(&self, now: Duration) -> bool {
        let idle_ms = (now.as_millis() as u64).saturating_sub(self.used_at_ms.load(Ordering::Relaxed));
        idle_ms > u64::from(self.timeout_s.load(Ordering::Relaxed)) * 1000
    }

    /// True where it stands for any of these blocks.
    pub(crate) fn overlaps(&self, blocks: &Range<u64>) -> bool {
        self.ranges.iter().any(|range| range.lba < blocks.end && blocks.start < range.end())
    }
}

impl Drop for Rod {
    fn drop(&mut self) {
        self.unit.watch().remove(self);
    }
}

/// Why operations on a unit are looked at.
const TOKENS: u8 = 1;
const MARKS: u8 = 2;

/// The tokens that one unit's changes revoke; and whether operations must be looked at, for tokens or for another reason.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Not zero while there may be a reason: the only thing that the common path looks at.
    reasons: AtomicU8,
    rods: Mutex<Vec<Weak<Rod>>>,
}

impl Watch {
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Rod>>> {
        self.rods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `rod` revoked by the next change of one of its blocks.
    pub(crate) fn add(&self, rod: &Arc<Rod>) {
        let mut rods = self.lock();
        rods.push(Arc::downgrade(rod));
        self.reasons.fetch_or(TOKENS, Ordering::SeqCst);
    }

    /// True while [`Self::about_to`] and [`crate::marks`] want to see operations before they are done.
    #[inline]
    pub(crate) fn is_armed(&self) -> bool {
        self.reasons.load(Ordering::SeqCst) != 0
    }

    /// The same for reads or for writes alone: a read revokes nothing.
    #[inline]
    pub(crate) fn is_armed_for(&self, writes: bool) -> bool {
        let mask = if writes { TOKENS | MARKS } else { MARKS };
        self.reasons.load(Ordering::SeqCst) & mask != 0
    }

    /// Whether blocks of the unit are marked.
    pub(crate) fn note_marks(&self, are_some: bool) {
        if are_some {
            self.reasons.fetch_or(MARKS, Ordering::SeqCst);
        } else {
            self.reasons.fetch_and(!MARKS, Ordering::SeqCst);
        }
    }

    /// `io` is about to be done on a medium with blocks of these lengths.
    pub(crate) fn about_to(&self, io: &Io, lengths: BlockLengths) {
        if self.reasons.load(Ordering::SeqCst) & TOKENS != 0
            && let Some(changed) = io.changes(lengths)
        {
            self.revoke(&changed);
        }
    }

    /// Blocks change without an operation of a command: by the unit's own work, or because the medium ends before them.
    pub(crate) fn about_to_change(&self, blocks: Range<u64>) {
        if self.reasons.load(Ordering::SeqCst) & TOKENS != 0 {
            self.revoke(&blocks);
        }
    }

    fn revoke(&self, changed: &Range<u64>) {
        // Dropped behind the lock: the last one of a rod takes it.
        let mut alive = Vec::new();
        let mut rods = self.lock();
        rods.retain(|rod| {
            let Some(rod) = rod.upgrade() else { return false };
            let is_changed = rod.overlaps(changed);
            if is_changed {
                rod.is_revoked.store(true, Ordering::SeqCst);
            }
            alive.push(rod);
            !is_changed
        });
        self.disarm_without(&rods);
    }

    /// Nobody uses the rod any more: its token has expired, or was deleted.
    fn remove(&self, rod: &Rod) {
        let mut rods = self.lock();
        if let Some(at) = rods.iter().position(|other| ptr::eq(other.as_ptr(), rod)) {
            rods.remove(at);
        }
        self.disarm_without(&rods);
    }

    /// With the lock of `rods` held.
    fn disarm_without(&self, rods: &[Weak<Rod>]) {
        if rods.is_empty() {
            self.reasons.fetch_and(!TOKENS, Ordering::SeqCst);
        }
    }
}

/// Every token of a domain.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    /// Oldest first.
    rods: Mutex<Vec<Arc<Rod>>>,
    next_identifier: AtomicU64,
}

impl Tokens {
    fn lock(&self, now: Duration) -> MutexGuard<'_, Vec<Arc<Rod>>> {
        let mut rods = self.rods.lock().unwrap_or_else(PoisonError::into_inner);
        rods.retain(|rod| !rod.has_expired(now));
        rods
    }

    /// Forgets those that have not been used for too long.
    pub(crate) fn forget_expired(&self, now: Duration) {
        drop(self.lock(now));
    }

    /// A number that no other token of the domain has.
    pub(crate) fn identifier(&self) -> u64 {
        self.next_identifier.fetch_add(1, Ordering::Relaxed)
    }

    /// Keeps a token. False: there are too many.
    pub(crate) fn add(&self, rod: Arc<Rod>, now: Duration) -> bool {
        rod.touch(now);
        let mut rods = self.lock(now);
        let owned = rods.iter().filter(|other| other.owner == rod.owner);
        if owned.clone().count() >= TOKENS_OF_ONE_MAX
            && let Some(oldest) =
                owned.min_by_key(|rod| rod.used_at_ms.load(Ordering::Relaxed)).map(Arc::clone)
        {
            rods.retain(|other| !Arc::ptr_eq(other, &oldest));
        }
        let has_room = rods.len() < TOKENS_MAX;
        if has_room {
            rod.unit.watch().add(&rod);
            rods.push(rod);
        }
        has_room
    }

    /// What `token` stands for.
    pub(crate) fn find(&self, token: &Token, now: Duration) -> Option<Arc<Rod>> {
        let found = self
            .lock(now)
            .iter()
            .find(|rod| rod.token[..16] == token[..16] && is_same(&rod.token, token))
            .map(Arc::clone)?;
        found.touch(now);
        Some(found)
    }

    /// Forgets a token.
    pub(crate) fn delete(&self, rod: &Arc<Rod>, now: Duration) {
        self.lock(now).retain(|other| !Arc::ptr_eq(other, rod));
    }

    /// The tokens of one unit.
    pub(crate) fn of_unit(&self, unit: &Arc<LogicalUnit>, now: Duration) -> Vec<Arc<Rod>> {
        self.lock(now).iter().filter(|rod| Arc::ptr_eq(&rod.unit, unit)).map(Arc::clone).collect()
    }
}

/// Compares in a time that does not depend on where the two differ: what follows a token's identifier is secret.
fn is_same(one: &Token, other: &Token) -> bool {
    one.iter().zip(other).fold(0, |difference, (one, other)| difference | (one ^ other)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::tests::{config, unit_of};

    const NOW: Duration = Duration::from_secs(100);
    const LENGTHS: BlockLengths = BlockLengths { data: 512, stored: 512 };

    fn rod(unit: &Arc<LogicalUnit>, owner: &str, number: u16) -> Arc<Rod> {
        let mut token = [0; TOKEN_BYTES];
        token[..2].copy_from_slice(&number.to_be_bytes());
        let ranges = vec![Blocks { lba: 8, count: 4 }, Blocks { lba: 100, count: 1 }];
        Arc::new(Rod::new(token, Arc::clone(unit), ranges, owner.into(), 60))
    }

    fn write(offset_bytes: u64, length_bytes: u64) -> Io {
        Io::Unmap { offset_bytes, length_bytes }
    }

    #[test]
    fn a_change_of_any_block_revokes() {
        let unit = Arc::new(unit_of(config()));
        let tokens = Tokens::default();
        for (offset, length, revoked) in
            [(0, 4096, false), (0, 4097, true), (6144, 512, false), (6143, 1, true), (51200, 512, true)]
        {
            let rod = rod(&unit, "a", 1);
            assert!(tokens.add(Arc::clone(&rod), NOW));
            unit.watch()
                .about_to(&Io::Read { offset_bytes: 0, length_bytes: 1 << 19, inspected: true }, LENGTHS);
            unit.watch().about_to(&write(offset, length), LENGTHS);
            assert_eq!(rod.is_revoked(), revoked, "{offset} {length}");
            unit.watch().about_to_change(0..u64::MAX);
            assert!(rod.is_revoked());
            assert!(!unit.watch().is_armed());
            tokens.delete(&rod, NOW);
        }
    }

    #[test]
    fn tokens_end_when_they_are_not_used() {
        let unit = Arc::new(unit_of(config()));
        let tokens = Tokens::default();
        let kept = rod(&unit, "a", 1);
        assert!(tokens.add(Arc::clone(&kept), NOW));
        let later = NOW + Duration::from_secs(60);
        assert!(tokens.find(&kept.token, later).is_some());
        assert!(tokens.find(&kept.token, later + Duration::from_secs(60)).is_some());
        assert!(tokens.find(&kept.token, later + Duration::from_secs(121)).is_none());
    }

    /// A copy that goes on with a token that was deleted is told of changes all the same.
    #[test]
    fn a_unit_is_watched_until_the_last_user_of_a_token_has_ended() {
        let unit = Arc::new(unit_of(config()));
        let tokens = Tokens::default();
        let [first, second] = [1, 2].map(|number| rod(&unit, "a", number));
        for rod in [&first, &second] {
            assert!(tokens.add(Arc::clone(rod), NOW));
        }
        tokens.delete(&first, NOW);
        drop(second);
        tokens.forget_expired(NOW + Duration::from_secs(61));
        assert!(unit.watch().is_armed_for(true) && !unit.watch().is_armed_for(false));
        unit.watch().about_to_change(0..1);
        assert!(!first.is_revoked());
        drop(first);
        assert!(!unit.watch().is_armed());
    }

    /// The last of a rod may go while a change looks at it.
    #[test]
    fn tokens_that_go_during_a_change_leave_the_unit_free() {
        let unit = Arc::new(unit_of(config()));
        std::thread::scope(|scope| {
            scope.spawn(|| (0..2000).for_each(|_| unit.watch().about_to_change(0..1)));
            for number in 0..2000 {
                let rod = rod(&unit, "a", number);
                unit.watch().add(&rod);
            }
        });
        assert!(!unit.watch().is_armed());
    }

    #[test]
    fn one_initiator_cannot_take_the_room_of_all() {
        let unit = Arc::new(unit_of(config()));
        let tokens = Tokens::default();
        let first = rod(&unit, "a", 0);
        assert!(tokens.add(Arc::clone(&first), NOW));
        for number in 1..=TOKENS_OF_ONE_MAX as u16 {
            assert!(tokens.add(rod(&unit, "a", number), NOW + Duration::from_secs(1)));
        }
        assert!(tokens.find(&first.token, NOW).is_none());
        assert_eq!(tokens.of_unit(&unit, NOW).len(), TOKENS_OF_ONE_MAX);
        assert!(tokens.add(rod(&unit, "b", 9999), NOW));
    }
}
