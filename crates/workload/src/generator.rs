//! One operation after the other.

use crate::random::{Purpose, Random};
use crate::spread::Places;
use crate::{Percent, Sizes, Spread, WorkloadError};

/// What is done, but for where and how often.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// How much at a time.
    pub sizes: Sizes,
    /// How many of a hundred operations read.
    pub read: Percent,
    /// How many of a hundred go to a random place; the others go on where the one before ended.
    pub random: Percent,
    /// How the random ones are distributed.
    pub spread: Spread,
}

/// A part of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Where it begins, in bytes.
    pub offset_bytes: u64,
    /// How long it is, in bytes.
    pub length_bytes: u64,
}

impl Range {
    /// The part of one of several workers, none of which touches what is another's: of equal length, whole grains.
    #[must_use]
    pub const fn share(self, worker: u32, workers: u32, grain_bytes: u32) -> Self {
        let grain = grain_bytes as u64;
        let length_bytes = self.length_bytes / workers as u64 / grain * grain;
        Self { offset_bytes: self.offset_bytes + length_bytes * worker as u64, length_bytes }
    }
}

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

/// One read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// What it does.
    pub kind: Kind,
    /// Where, in bytes from the beginning of the disk.
    pub offset_bytes: u64,
    /// How much, in bytes.
    pub length_bytes: u32,
}

/// A workload on a range of a disk, for one worker.
///
/// Each operation lies at a multiple of its own size from the beginning of the range, as a file system would have it.
#[derive(Debug, Clone)]
pub struct Generator {
    workload: Workload,
    range: Range,
    /// Each size with the places that it has.
    sizes: Vec<(u64, Places)>,
    /// Where the last operation ended, from the beginning of the range.
    position: u64,
    kind: Random,
    size: Random,
    order: Random,
    place: Random,
}

impl Generator {
    /// The operations of this worker out of `workers`. What is sequential begins elsewhere for each.
    ///
    /// # Errors
    /// A size is not of whole blocks of the disk, or the range has no room for it.
    pub fn new(
        workload: &Workload,
        range: Range,
        block_bytes: u32,
        seed: u64,
        (worker, workers): (u32, u32),
    ) -> Result<Self, WorkloadError> {
        for size_bytes in workload.sizes.iter() {
            if !size_bytes.is_multiple_of(block_bytes.max(1)) {
                return Err(WorkloadError::Blocks { size_bytes, block_bytes });
            }
            if u64::from(size_bytes) > range.length_bytes {
                return Err(WorkloadError::Room { range_bytes: range.length_bytes, size_bytes });
            }
        }
        let places =
            |size: u32| (u64::from(size), Places::new(workload.spread, range.length_bytes / u64::from(size)));
        let stream = |purpose| Random::new(seed, worker, purpose);
        Ok(Self {
            sizes: workload.sizes.iter().map(places).collect(),
            workload: workload.clone(),
            range,
            position: range.length_bytes / u64::from(workers.max(1)) * u64::from(worker),
            kind: stream(Purpose::Kind),
            size: stream(Purpose::Size),
            order: stream(Purpose::Order),
            place: stream(Purpose::Place),
        })
    }

    /// The next one.
    pub fn generate(&mut self) -> Operation {
        let (size, places) = &self.sizes[self.workload.sizes.pick(&mut self.size)];
        let offset = if happens(self.workload.random, &mut self.order) {
            places.pick(&mut self.place) * size
        } else {
            let next = self.position.next_multiple_of(*size);
            if next + size <= self.range.length_bytes { next } else { 0 }
        };
        self.position = offset + size;
        let reads = happens(self.workload.read, &mut self.kind);
        Operation {
            kind: if reads { Kind::Read } else { Kind::Write },
            offset_bytes: self.range.offset_bytes + offset,
            // Sizes are 32 bits.
            length_bytes: *size as u32,
        }
    }
}

fn happens(percent: Percent, random: &mut Random) -> bool {
    match percent.get() {
        0 => false,
        100 => true,
        percent => random.below(100) < u64::from(percent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RANGE: Range = Range { offset_bytes: 1 << 20, length_bytes: 64 << 20 };

    fn workload(sizes: &str, read: u8, random: u8, spread: &str) -> Workload {
        Workload {
            sizes: sizes.parse().unwrap(),
            read: Percent::new(read),
            random: Percent::new(random),
            spread: spread.parse().unwrap(),
        }
    }

    fn generator(workload: &Workload, worker: u32) -> Generator {
        Generator::new(workload, RANGE, 512, 7, (worker, 2)).unwrap()
    }

    /// How many of these should happen with this probability, within six standard deviations:
    /// chance exceeds them once in half a billion.
    fn assert_share(happened: usize, of: usize, probability: f64) {
        let (of, happened) = (of as f64, happened as f64);
        let deviation = (of * probability * (1.0 - probability)).sqrt();
        assert!((happened - of * probability).abs() <= 6.0 * deviation, "{happened} of {of}: {probability}");
    }

    fn any_workload() -> impl Strategy<Value = Workload> {
        let sizes = proptest::sample::select(vec!["512", "4K", "4K:60,64K:40", "1536:1,512:3", "1M:1,8K:9"]);
        let spread = proptest::sample::select(vec!["uniform", "zipf:1.1", "hot:5%/80%"]);
        (sizes, 0_u8..=100, 0_u8..=100, spread)
            .prop_map(|(sizes, read, random, spread)| workload(sizes, read, random, spread))
    }

    proptest! {
        #![proptest_config(lunette_cases::cases(200))]

        #[test]
        fn operations_lie_in_the_range_at_multiples_of_their_size(
            workload in any_workload(),
            offset_blocks in 0_u64..1000,
            length_blocks in 2048_u64..10_000,
            seed: u64,
        ) {
            let range = Range { offset_bytes: offset_blocks * 512, length_bytes: length_blocks * 512 };
            let mut generator = Generator::new(&workload, range, 512, seed, (0, 1)).unwrap();
            let mut again = generator.clone();
            for _ in 0..200 {
                let operation = generator.generate();
                prop_assert_eq!(operation, again.generate());
                let from = operation.offset_bytes - range.offset_bytes;
                let length = u64::from(operation.length_bytes);
                prop_assert!(from.is_multiple_of(length) && from + length <= range.length_bytes);
                prop_assert!(workload.sizes.iter().any(|size| size == operation.length_bytes));
            }
        }

        #[test]
        fn shares_are_kept(workload in any_workload(), seed: u64) {
            let mut generator = Generator::new(&workload, RANGE, 512, seed, (0, 1)).unwrap();
            let operations: Vec<_> = (0..4000).map(|_| generator.generate()).collect();
            let reads = operations.iter().filter(|operation| operation.kind == Kind::Read).count();
            let probability = f64::from(workload.read.get()) / 100.0;
            assert_share(reads, operations.len(), probability);
        }

        #[test]
        fn workers_that_share_a_range_do_not_meet(workers in 1_u32..9, length in 1_u64..1 << 30) {
            let range = Range { offset_bytes: 512, length_bytes: length };
            let mut end = range.offset_bytes;
            for worker in 0..workers {
                let share = range.share(worker, workers, 4096);
                prop_assert!(share.offset_bytes == end && share.length_bytes.is_multiple_of(4096));
                end += share.length_bytes;
            }
            prop_assert!(end <= range.offset_bytes + range.length_bytes);
        }
    }

    #[test]
    fn sizes_and_orders_have_their_shares() {
        let mixed = workload("4K:75,64K:25", 100, 30, "uniform");
        let mut generator = generator(&mixed, 0);
        let operations: Vec<_> = (0..40_000).map(|_| generator.generate()).collect();
        let small = operations.iter().filter(|operation| operation.length_bytes == 4096).count();
        assert_share(small, operations.len(), 0.75);
        // Of small ones in a row, one that does not follow the one before was sent elsewhere; by chance 1 of 16,384 follows.
        let pairs = operations.windows(2).filter(|pair| pair.iter().all(|one| one.length_bytes == 4096));
        let (follow, all) = pairs.fold((0, 0), |(follow, all), pair| {
            (follow + usize::from(pair[1].offset_bytes == pair[0].offset_bytes + 4096), all + 1)
        });
        assert_share(follow, all, 0.7);
    }

    #[test]
    fn sequences_begin_apart_and_wrap() {
        let all = workload("16M", 0, 0, "uniform");
        let mut second = generator(&all, 1);
        let places: Vec<_> =
            (0..4).map(|_| (second.generate().offset_bytes - RANGE.offset_bytes) >> 20).collect();
        assert_eq!(places, [32, 48, 0, 16]);
        assert_eq!(second.generate().kind, Kind::Write);
    }

    #[test]
    fn workers_and_seeds_differ() {
        let random = workload("4K", 50, 100, "uniform");
        let first = |seed, worker| {
            let mut generator = Generator::new(&random, RANGE, 512, seed, (worker, 4)).unwrap();
            (0..4).map(|_| generator.generate().offset_bytes).collect::<Vec<_>>()
        };
        assert_ne!(first(1, 0), first(2, 0));
        assert_ne!(first(1, 0), first(1, 1));
    }

    #[test]
    fn the_operations_of_a_seed_are_the_same_in_every_version() {
        let mixed = workload("4K:60,64K:40", 66, 80, "hot:10%/90%");
        let mut generator = generator(&mixed, 0);
        let places: Vec<_> =
            (0..4).map(|_| generator.generate()).map(|operation| operation.offset_bytes).collect();
        assert_eq!(places, [1_048_576, 1_400_832, 5_308_416, 4_251_648]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let refused = |sizes: &str, length_bytes| {
            let range = Range { offset_bytes: 0, length_bytes };
            Generator::new(&workload(sizes, 0, 0, "uniform"), range, 512, 1, (0, 1)).map(drop)
        };
        assert_eq!(refused("1000", 4096), Err(WorkloadError::Blocks { size_bytes: 1000, block_bytes: 512 }));
        assert_eq!(refused("8K", 4096), Err(WorkloadError::Room { range_bytes: 4096, size_bytes: 8192 }));
        assert_eq!(refused("4K", 4096), Ok(()));
    }
}
