//! Which generation each place of a range has, and who is busy there.
//!
//! Two operations that touch the same place are not under way at once unless both read: what a read must find is then known
//! exactly. A place is a *grain*, of which every operation is a multiple.

use crate::content::UNIT_BYTES;
use crate::{Kind, Operation, Range, WorkloadError};

/// The most places that are remembered; each takes six bytes.
pub const GRAINS_MAX: u64 = 1 << 26;

/// Somebody writes there.
const WRITER: u16 = u16::MAX;

/// See the module's documentation.
#[derive(Debug)]
pub struct Ledger {
    range: Range,
    grain_bytes: u64,
    generations: Vec<u32>,
    /// How many read there, or [`WRITER`].
    users: Vec<u16>,
}

impl Ledger {
    /// A range in which every grain has generation 1. The range begins and ends with a grain.
    ///
    /// # Errors
    /// The range has too many grains to remember, or a grain is not of whole units of [`crate::content`].
    pub fn new(range: Range, grain_bytes: u32) -> Result<Self, WorkloadError> {
        if grain_bytes == 0 || !grain_bytes.is_multiple_of(UNIT_BYTES as u32) {
            return Err(WorkloadError::Blocks { size_bytes: grain_bytes, block_bytes: UNIT_BYTES as u32 });
        }
        let grains = range.length_bytes / u64::from(grain_bytes);
        if grains > GRAINS_MAX {
            return Err(WorkloadError::Grains { grains, max: GRAINS_MAX });
        }
        Ok(Self {
            range,
            grain_bytes: grain_bytes.into(),
            generations: vec![1; grains as usize],
            users: vec![0; grains as usize],
        })
    }

    /// The length of a grain in bytes.
    #[must_use]
    pub const fn grain_bytes(&self) -> usize {
        self.grain_bytes as usize
    }

    /// An operation wants to begin; false while another one is in its way.
    #[must_use]
    pub fn begin(&mut self, operation: &Operation) -> bool {
        let grains = self.grains(operation);
        let users = &mut self.users[grains.clone()];
        match operation.kind {
            Kind::Read => {
                if users.iter().any(|users| *users >= WRITER - 1) {
                    return false;
                }
                users.iter_mut().for_each(|users| *users += 1);
            }
            Kind::Write => {
                if users.iter().any(|users| *users > 0) {
                    return false;
                }
                users.fill(WRITER);
                for generation in &mut self.generations[grains] {
                    *generation = generation.wrapping_add(1);
                }
            }
        }
        true
    }

    /// It has ended.
    pub fn end(&mut self, operation: &Operation) {
        let grains = self.grains(operation);
        for users in &mut self.users[grains] {
            *users = if operation.kind == Kind::Write { 0 } else { users.saturating_sub(1) };
        }
    }

    /// The grains of an operation that has begun: where each lies on the disk, in bytes, and its generation.
    pub fn generations(&self, operation: &Operation) -> impl Iterator<Item = (u64, u32)> {
        let places = (0..).map(|grain: u64| operation.offset_bytes + grain * self.grain_bytes);
        places.zip(self.generations[self.grains(operation)].iter().copied())
    }

    fn grains(&self, operation: &Operation) -> std::ops::Range<usize> {
        let first = operation.offset_bytes.saturating_sub(self.range.offset_bytes) / self.grain_bytes;
        let count = u64::from(operation.length_bytes) / self.grain_bytes;
        let all = self.users.len();
        (first as usize).min(all)..((first + count) as usize).min(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RANGE: Range = Range { offset_bytes: 8192, length_bytes: 64 * 4096 };

    fn operation(kind: Kind, grain: u64, grains: u32) -> Operation {
        Operation { kind, offset_bytes: RANGE.offset_bytes + grain * 4096, length_bytes: grains * 4096 }
    }

    proptest! {
        #![proptest_config(lunette_cases::cases(300))]

        /// Operations begin and end in any order: nobody is beside a writer, and a generation counts the writes.
        #[test]
        fn writers_are_alone_and_counted(
            steps in prop::collection::vec((any::<bool>(), 0_u64..60, 1_u32..4, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut ledger = Ledger::new(RANGE, 4096).unwrap();
            let mut under_way: Vec<Operation> = Vec::new();
            let mut writes = [1_u32; 64];
            for (writes_now, grain, grains, ended) in steps {
                let kind = if writes_now { Kind::Write } else { Kind::Read };
                let wanted = operation(kind, grain, grains);
                let touches = |other: &Operation| {
                    let end = |one: &Operation| one.offset_bytes + u64::from(one.length_bytes);
                    wanted.offset_bytes < end(other) && other.offset_bytes < end(&wanted)
                };
                let is_free = !under_way
                    .iter()
                    .any(|other| touches(other) && (kind == Kind::Write || other.kind == Kind::Write));
                prop_assert_eq!(ledger.begin(&wanted), is_free);
                if is_free {
                    under_way.push(wanted);
                    for at in grain..grain + u64::from(grains) {
                        writes[at as usize] += u32::from(kind == Kind::Write);
                    }
                    let known: Vec<_> = ledger.generations(&wanted).collect();
                    prop_assert_eq!(known.len(), grains as usize);
                    for (at, (offset, generation)) in known.into_iter().enumerate() {
                        prop_assert_eq!(offset, wanted.offset_bytes + at as u64 * 4096);
                        prop_assert_eq!(generation, writes[grain as usize + at]);
                    }
                } else {
                    let gone = under_way.swap_remove(ended.index(under_way.len()));
                    ledger.end(&gone);
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_remembered_is_refused() {
        let large = Range { offset_bytes: 0, length_bytes: (GRAINS_MAX + 1) * 512 };
        assert!(matches!(Ledger::new(large, 512), Err(WorkloadError::Grains { .. })));
        assert!(Ledger::new(RANGE, 100).is_err());
        assert!(Ledger::new(RANGE, 0).is_err());
    }
}
