//! What is written: bytes that say where they belong and how often that place was written, so that a read can tell a
//! misplaced block, a lost write and a damaged byte from each other.
//!
//! Each unit of 512 bytes begins with its offset on the disk and its generation, 8 bytes each, the high byte first; the rest
//! follows from these two and the seed.

use crate::random::scrambled;

/// Each so many bytes name their place. No logical block is shorter, and all are multiples of it.
pub const UNIT_BYTES: usize = 512;
const WORD_BYTES: usize = 8;
/// The distance between two words: the golden ratio's, with which multiples stay far apart.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Fills what lies at `offset_bytes`; both are multiples of [`UNIT_BYTES`], what is more stays as it was.
pub fn fill(seed: u64, offset_bytes: u64, generation: u32, buffer: &mut [u8]) {
    for (unit, offset) in buffer.chunks_exact_mut(UNIT_BYTES).zip(offsets(offset_bytes)) {
        let base = base(seed, offset, generation);
        for (at, word) in unit.chunks_exact_mut(WORD_BYTES).enumerate() {
            word.copy_from_slice(&word_at(base, offset, generation, at).to_be_bytes());
        }
    }
}

/// Compares what was read at `offset_bytes` with what [`fill`] wrote there.
///
/// # Errors
/// The first unit that differs, and how.
pub fn check(seed: u64, offset_bytes: u64, generation: u32, buffer: &[u8]) -> Result<(), Mismatch> {
    for (unit, offset) in buffer.chunks_exact(UNIT_BYTES).zip(offsets(offset_bytes)) {
        let base = base(seed, offset, generation);
        let words = unit.chunks_exact(WORD_BYTES).enumerate();
        // No early end: a loop without one is done many words at a time.
        let differences = words.fold(0, |differences, (at, word)| {
            differences | (value(word) ^ word_at(base, offset, generation, at))
        });
        if differences != 0 {
            return Err(mismatch(seed, offset, generation, unit));
        }
    }
    Ok(())
}

/// How a unit differs from what must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// It was right once: a write was lost, or came late.
    #[error(
        "at byte {offset_bytes} there is write number {found} of this place instead of number {expected}"
    )]
    Stale {
        /// Where, in bytes.
        offset_bytes: u64,
        /// The generation that must be there.
        expected: u32,
        /// The generation that is there.
        found: u32,
    },
    /// It belongs elsewhere.
    #[error("at byte {offset_bytes} there is what was written to byte {found_bytes}")]
    Misplaced {
        /// Where, in bytes.
        offset_bytes: u64,
        /// Where it belongs.
        found_bytes: u64,
    },
    /// It was never written like this.
    #[error("at byte {offset_bytes} there is what was never written, from byte {first_bytes} on")]
    Damaged {
        /// Where its unit begins, in bytes.
        offset_bytes: u64,
        /// Where the first wrong word is.
        first_bytes: u64,
    },
}

fn offsets(offset_bytes: u64) -> impl Iterator<Item = u64> {
    (0..).map(move |unit: u64| offset_bytes + unit * UNIT_BYTES as u64)
}

fn base(seed: u64, offset: u64, generation: u32) -> u64 {
    scrambled(scrambled(seed ^ scrambled(offset)) ^ u64::from(generation))
}

fn word_at(base: u64, offset: u64, generation: u32, at: usize) -> u64 {
    match at {
        0 => offset,
        1 => u64::from(generation),
        at => base.wrapping_add((at as u64).wrapping_mul(STEP)),
    }
}

fn value(word: &[u8]) -> u64 {
    word.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// Looks closer at a unit that differs.
fn mismatch(seed: u64, offset: u64, generation: u32, unit: &[u8]) -> Mismatch {
    let words: Vec<u64> = unit.chunks_exact(WORD_BYTES).map(value).collect();
    let said_offset = words.first().copied().unwrap_or(0);
    let said_generation = words.get(1).copied().unwrap_or(0);
    let is_whole = |offset, generation: u32| {
        let base = base(seed, offset, generation);
        words.iter().enumerate().all(|(at, word)| *word == word_at(base, offset, generation, at))
    };
    match u32::try_from(said_generation) {
        Ok(found) if said_offset != offset && is_whole(said_offset, found) => {
            Mismatch::Misplaced { offset_bytes: offset, found_bytes: said_offset }
        }
        Ok(found) if said_offset == offset && is_whole(offset, found) => {
            Mismatch::Stale { offset_bytes: offset, expected: generation, found }
        }
        _ => {
            let base = base(seed, offset, generation);
            let differs = |(at, word): (usize, &u64)| *word != word_at(base, offset, generation, at);
            let first = words.iter().enumerate().position(differs).unwrap_or(0);
            Mismatch::Damaged { offset_bytes: offset, first_bytes: offset + (first * WORD_BYTES) as u64 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(seed: u64, offset_bytes: u64, generation: u32, units: usize) -> Vec<u8> {
        let mut buffer = vec![0; units * UNIT_BYTES];
        fill(seed, offset_bytes, generation, &mut buffer);
        buffer
    }

    proptest! {
        #![proptest_config(lunette_cases::cases(500))]

        #[test]
        fn what_was_written_is_found_and_one_turned_bit_as_well(
            seed: u64,
            place in 0_u64..1 << 40,
            generation: u32,
            units in 1_usize..5,
            byte: prop::sample::Index,
            bit in 0_u8..8,
        ) {
            let offset = place * UNIT_BYTES as u64;
            let mut buffer = filled(seed, offset, generation, units);
            prop_assert_eq!(check(seed, offset, generation, &buffer), Ok(()));
            let at = byte.index(buffer.len());
            buffer[at] ^= 1 << bit;
            let found = check(seed, offset, generation, &buffer);
            let first_bytes = offset + (at / WORD_BYTES * WORD_BYTES) as u64;
            let offset_bytes = offset + (at / UNIT_BYTES * UNIT_BYTES) as u64;
            prop_assert_eq!(found, Err(Mismatch::Damaged { offset_bytes, first_bytes }));
        }

        #[test]
        fn any_part_is_checked_alone(seed: u64, unit in 0_usize..8) {
            let whole = filled(seed, 4096, 3, 8);
            let part = &whole[unit * UNIT_BYTES..][..UNIT_BYTES];
            prop_assert_eq!(check(seed, 4096 + (unit * UNIT_BYTES) as u64, 3, part), Ok(()));
        }
    }

    #[test]
    fn faults_are_told_apart() {
        let old = filled(1, 1024, 4, 1);
        let stale = Mismatch::Stale { offset_bytes: 1024, expected: 5, found: 4 };
        assert_eq!(check(1, 1024, 5, &old), Err(stale));
        let misplaced = Mismatch::Misplaced { offset_bytes: 2048, found_bytes: 1024 };
        assert_eq!(check(1, 2048, 5, &old), Err(misplaced));
        let of_other_seed = Mismatch::Damaged { offset_bytes: 1024, first_bytes: 1040 };
        assert_eq!(check(2, 1024, 4, &old), Err(of_other_seed));
        let zeros = Mismatch::Damaged { offset_bytes: 1024, first_bytes: 1024 };
        assert_eq!(check(1, 1024, 4, &[0; UNIT_BYTES]), Err(zeros));
    }
}
