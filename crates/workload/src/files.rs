//! Work on files instead of ranges of a disk: what a file server is asked for.

use crate::random::{Purpose, Random};

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

    use proptest::prelude::*;

    proptest! {
        #![proptest_config(lunette_cases::cases(64))]

        #[test]
        fn draws_are_of_the_files_that_there_are(seed: u64, files: u32) {
            let draws: Vec<_> = FileDraws::new(files, seed).take(50).collect();
            prop_assert!(draws.iter().all(|file| *file < files.max(1)));
            prop_assert_eq!(draws, FileDraws::new(files, seed).take(50).collect::<Vec<_>>());
        }
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
