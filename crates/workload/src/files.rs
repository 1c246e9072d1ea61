//! Work on files instead of ranges of a disk: what a mail server does to a directory of them, and what a file server is asked for.
//!
//! The mail server's is made to the description of PostMark (Katcher, Network Appliance TR3022, 1997): many small files that live shortly. It
//! is no copy of that program: its figures are comparable in kind.

use std::ops::RangeInclusive;

use crate::random::{Purpose, Random};

/// Something done to a file, which is opened and closed for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileOperation {
    /// A new file with so much in it.
    Create {
        /// The file; numbers are never used again.
        file: u64,
        /// How much is written, in bytes.
        length_bytes: u32,
    },
    /// All of a file.
    Read {
        /// The file.
        file: u64,
    },
    /// More at the end of a file.
    Append {
        /// The file.
        file: u64,
        /// How much is written, in bytes.
        length_bytes: u32,
    },
    /// The file is removed.
    Delete {
        /// The file.
        file: u64,
    },
}

/// A mail server's files, and what becomes of them.
#[derive(Debug, Clone)]
pub struct MailPool {
    lengths_bytes: RangeInclusive<u32>,
    files: Vec<u64>,
    next: u64,
    kinds: Random,
    lengths: Random,
    choices: Random,
}

impl MailPool {
    /// An empty one. What is written has lengths of this range, evenly.
    #[must_use]
    pub fn new(lengths_bytes: RangeInclusive<u32>, seed: u64) -> Self {
        Self {
            lengths_bytes,
            files: Vec::new(),
            next: 0,
            kinds: Random::new(seed, 0, Purpose::FileKind),
            lengths: Random::new(seed, 0, Purpose::FileLength),
            choices: Random::new(seed, 0, Purpose::FileChoice),
        }
    }

    /// One more file, as there are many before the first transaction.
    pub fn create(&mut self) -> FileOperation {
        let file = self.next;
        self.next += 1;
        self.files.push(file);
        FileOperation::Create { file, length_bytes: self.length_bytes() }
    }

    /// A transaction: a file is created or deleted, and one is read or appended to; each with the same chance.
    pub fn transaction(&mut self) -> [FileOperation; 2] {
        // The last file stays, so that there is one to be read.
        let first = if self.kinds.below(2) == 0 || self.files.len() < 2 {
            self.create()
        } else {
            let place = self.place();
            FileOperation::Delete { file: self.files.swap_remove(place) }
        };
        let place = self.place();
        let file = self.files[place];
        let second = if self.kinds.below(2) == 0 {
            FileOperation::Read { file }
        } else {
            FileOperation::Append { file, length_bytes: self.length_bytes() }
        };
        [first, second]
    }

    fn place(&mut self) -> usize {
        // Below a length that is a usize.
        self.choices.below(self.files.len() as u64) as usize
    }

    fn length_bytes(&mut self) -> u32 {
        let (low, high) = (*self.lengths_bytes.start(), *self.lengths_bytes.end());
        // At most the difference, which has 32 bits.
        low + self.lengths.below(u64::from(high.saturating_sub(low)) + 1) as u32
    }
}

/// Which file a file server is asked for: any of so many, at random, for ever.
#[derive(Debug, Clone)]
pub struct FileDraws {
    files: u32,
    choices: Random,
}

impl FileDraws {
    /// Of files 0 to `files` - 1; always 0 of none.
    #[must_use]
    pub fn new(files: u32, seed: u64) -> Self {
        Self { files, choices: Random::new(seed, 0, Purpose::FileChoice) }
    }
}

impl Iterator for FileDraws {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        // Below a number of 32 bits.
        Some(self.choices.below(self.files.into()) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    use proptest::prelude::*;

    proptest! {
        #![proptest_config(lunette_cases::cases(64))]

        #[test]
        fn files_are_used_while_they_exist(seed: u64, first in 0_u32..40, low in 0_u32..5000, more in 0_u32..20_000) {
            let range = low..=low + more;
            let mut pool = MailPool::new(range.clone(), seed);
            let mut lengths = HashMap::new();
            let mut begun: Vec<_> = (0..first).map(|_| pool.create()).collect();
            begun.extend((0..200).flat_map(|_| pool.transaction()));
            for operation in begun {
                match operation {
                    FileOperation::Create { file, length_bytes } => {
                        prop_assert!(range.contains(&length_bytes));
                        prop_assert_eq!(lengths.insert(file, length_bytes), None);
                    }
                    FileOperation::Read { file } => prop_assert!(lengths.contains_key(&file)),
                    FileOperation::Append { file, length_bytes } => {
                        prop_assert!(range.contains(&length_bytes) && lengths.contains_key(&file));
                    }
                    FileOperation::Delete { file } => prop_assert!(lengths.remove(&file).is_some()),
                }
            }
            prop_assert!(!lengths.is_empty());
        }

        #[test]
        fn draws_are_of_the_files_that_there_are(seed: u64, files: u32) {
            let draws: Vec<_> = FileDraws::new(files, seed).take(50).collect();
            prop_assert!(draws.iter().all(|file| *file < files.max(1)));
            prop_assert_eq!(draws, FileDraws::new(files, seed).take(50).collect::<Vec<_>>());
        }
    }

    #[test]
    fn each_kind_has_its_share() {
        let mut pool = MailPool::new(512..=16_384, 1);
        for _ in 0..1000 {
            pool.create();
        }
        let (mut counts, mut bytes, mut writes) = ([0_u32; 4], 0_u64, 0_u64);
        for operation in (0..10_000).flat_map(|_| pool.transaction()) {
            let (at, length_bytes) = match operation {
                FileOperation::Create { length_bytes, .. } => (0, length_bytes),
                FileOperation::Delete { .. } => (1, 0),
                FileOperation::Read { .. } => (2, 0),
                FileOperation::Append { length_bytes, .. } => (3, length_bytes),
            };
            counts[at] += 1;
            bytes += u64::from(length_bytes);
            writes += u64::from(length_bytes > 0);
        }
        assert!(counts.iter().all(|count| (4800..5200).contains(count)), "{counts:?}");
        // The middle of 512 and 16,384.
        assert!((8200..8700).contains(&(bytes / writes)), "{}", bytes / writes);
    }

    #[test]
    fn every_file_is_drawn() {
        let mut seen = [0_u32; 16];
        for file in FileDraws::new(16, 7).take(16_000) {
            seen[file as usize] += 1;
        }
        assert!(seen.iter().all(|count| (850..1150).contains(count)), "{seen:?}");
    }
}
