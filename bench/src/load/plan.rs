//! What is read and written: sizes, order, shares. Decided by a seed, so that two runs do the same.

use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use crate::link::Capacity;

/// The largest transfer: what one FirstBurstLength and MaxBurstLength of ours take.
const BLOCK_BYTES_MAX: u32 = 16 << 20;

/// In which order the blocks of a unit are touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// Anywhere, evenly
    Random,
    /// One after the other; every session begins elsewhere
    Sequential,
}

/// Sizes of transfers with their weights: `4096`, or `8192:50,65536:50`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mix {
    /// Bytes, and the sum of the weights up to and with this size.
    sizes: Vec<(u32, u64)>,
}

impl FromStr for Mix {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut total = 0_u64;
        let mut sizes = Vec::new();
        for part in text.split(',') {
            let (bytes, weight) = part.split_once(':').unwrap_or((part, "1"));
            let bytes: u32 = bytes.parse().with_context(|| format!("{bytes:?} is no number of bytes"))?;
            let weight: u32 = weight.parse().with_context(|| format!("{weight:?} is no weight"))?;
            ensure!(bytes > 0 && bytes <= BLOCK_BYTES_MAX, "transfers have 1 to {BLOCK_BYTES_MAX} bytes");
            ensure!(weight > 0, "a weight of 0 is never chosen");
            total += u64::from(weight);
            sizes.push((bytes, total));
        }
        Ok(Self { sizes })
    }
}

impl Mix {
    pub(crate) fn largest(&self) -> u32 {
        self.sizes.iter().map(|&(bytes, _)| bytes).max().unwrap_or_default()
    }

    pub(crate) fn smallest(&self) -> u32 {
        self.sizes.iter().map(|&(bytes, _)| bytes).min().unwrap_or_default()
    }

    fn pick(&self, random: &mut Random) -> u32 {
        let [.., (last, total)] = self.sizes[..] else { return 0 };
        if self.sizes.len() == 1 {
            return last;
        }
        let point = random.below(total);
        self.sizes.iter().find(|&&(_, until)| point < until).map_or(last, |&(bytes, _)| bytes)
    }
}

/// A generator of numbers that look random: SplitMix64, after Steele, Lea and Flood (2014).
#[derive(Debug, Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `bound`, evenly but for what 64 bits do not divide by it.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// One transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transfer {
    pub(crate) is_read: bool,
    pub(crate) lba: u64,
    pub(crate) blocks: u32,
    pub(crate) bytes: u32,
}

/// The transfers of one session.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    mix: Mix,
    order: Order,
    read_percent: u8,
    block_bytes: u32,
    span_bytes: u64,
    position: u64,
    random: Random,
}

/// What the plans of all sessions have in common.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    pub(crate) mix: Mix,
    pub(crate) order: Order,
    pub(crate) read_percent: u8,
    /// How much of the unit is used, from its beginning; all of it without.
    pub(crate) span_bytes: Option<u64>,
    pub(crate) seed: u64,
}

impl Plan {
    /// The plan of session `number` out of `sessions`.
    ///
    /// # Errors
    /// The sizes are not whole blocks, or the unit is too small.
    pub(crate) fn new(pattern: &Pattern, capacity: Capacity, number: u32, sessions: u32) -> Result<Self> {
        let Capacity { blocks, block_bytes } = capacity;
        for (bytes, _) in &pattern.mix.sizes {
            ensure!(bytes % block_bytes == 0, "{bytes} bytes are not whole blocks of {block_bytes}");
        }
        let unit_bytes = blocks.saturating_mul(u64::from(block_bytes));
        let span_bytes = pattern.span_bytes.unwrap_or(unit_bytes);
        ensure!(span_bytes <= unit_bytes, "the unit has {unit_bytes} bytes, less than the span");
        ensure!(span_bytes >= u64::from(pattern.mix.largest()), "the span holds no transfer");
        let share = span_bytes / u64::from(sessions.max(1)) * u64::from(number);
        Ok(Self {
            mix: pattern.mix.clone(),
            order: pattern.order,
            read_percent: pattern.read_percent,
            block_bytes,
            span_bytes,
            position: share / u64::from(block_bytes) * u64::from(block_bytes),
            random: Random(pattern.seed.wrapping_add(u64::from(number) << 32)),
        })
    }

    /// What to do next.
    pub(crate) fn next(&mut self) -> Transfer {
        let bytes = self.mix.pick(&mut self.random);
        let is_read = match self.read_percent {
            0 => false,
            100.. => true,
            percent => self.random.below(100) < u64::from(percent),
        };
        let length = u64::from(bytes);
        let offset = match self.order {
            // Aligned to its own size, as a file system would.
            Order::Random => self.random.below(self.span_bytes / length) * length,
            Order::Sequential => {
                let fits = self.position + length <= self.span_bytes;
                let offset = if fits { self.position } else { 0 };
                self.position = offset + length;
                offset
            }
        };
        Transfer {
            is_read,
            lba: offset / u64::from(self.block_bytes),
            blocks: bytes / self.block_bytes,
            bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(mix: &str, order: Order, read_percent: u8, span_bytes: Option<u64>) -> Pattern {
        Pattern { mix: mix.parse().unwrap(), order, read_percent, span_bytes, seed: 1 }
    }

    const CAPACITY: Capacity = Capacity { blocks: 2048, block_bytes: 512 };

    #[test]
    fn mixes_are_sizes_with_weights() {
        assert_eq!("4096".parse::<Mix>().unwrap().sizes, [(4096, 1)]);
        let mix: Mix = "8192:30,65536:70".parse().unwrap();
        assert_eq!(mix.sizes, [(8192, 30), (65536, 100)]);
        assert_eq!((mix.smallest(), mix.largest()), (8192, 65536));
        for text in ["", "0", "x", "512:", "512:0", "512:-1", "33554432", "512,,512"] {
            assert!(text.parse::<Mix>().is_err(), "{text}");
        }
    }

    #[test]
    fn shares_are_kept_and_all_lies_within_the_span() {
        let pattern = pattern("512:75,4096:25", Order::Random, 60, Some(65536));
        let mut plan = Plan::new(&pattern, CAPACITY, 0, 1).unwrap();
        let transfers: Vec<_> = (0..10_000).map(|_| plan.next()).collect();
        let small = transfers.iter().filter(|transfer| transfer.bytes == 512).count();
        let reads = transfers.iter().filter(|transfer| transfer.is_read).count();
        assert!((7300..7700).contains(&small), "{small}");
        assert!((5800..6200).contains(&reads), "{reads}");
        assert!(transfers.iter().all(|transfer| {
            transfer.blocks * 512 == transfer.bytes
                && transfer.lba + u64::from(transfer.blocks) <= 128
                && transfer.lba % u64::from(transfer.blocks) == 0
        }));
        let mut again = Plan::new(&pattern, CAPACITY, 0, 1).unwrap();
        assert!(transfers.iter().all(|&transfer| transfer == again.next()), "one seed, one plan");
        let mut other = Plan::new(&pattern, CAPACITY, 1, 2).unwrap();
        assert!(transfers.iter().any(|&transfer| transfer != other.next()), "sessions differ");
    }

    #[test]
    fn sequences_begin_apart_and_wrap() {
        let pattern = pattern("262144", Order::Sequential, 0, None);
        let mut plan = Plan::new(&pattern, CAPACITY, 1, 2).unwrap();
        let lbas: Vec<_> = (0..4).map(|_| plan.next().lba).collect();
        assert_eq!(lbas, [1024, 1536, 0, 512]);
        assert!(!plan.next().is_read);
    }

    #[test]
    fn what_does_not_fit_the_unit_is_refused() {
        let refused = |mix, span| Plan::new(&pattern(mix, Order::Random, 100, span), CAPACITY, 0, 1).is_err();
        assert!(refused("1000", None));
        assert!(refused("4096", Some(2048)));
        assert!(refused("4096", Some(2 << 20)));
        assert!(!refused("1048576", None));
    }
}
