//! `lunette attach`: a disk as a file for file systems, and over NBD for QEMU's tools and for clients of the tests' own, over
//! restarts of its target, and with clients that break the rules.

mod answers;
mod caching;
mod detaching;
mod elsewhere;
mod file_system;
mod growing;
mod hostile;
mod keeping;
mod others;
mod restart;
mod serving;
mod signals;
mod sparse;
mod without_root;

use std::path::Path;

use lunette_tests::lunette::{Launch, Lunette};

/// Bytes that differ from place to place and from seed to seed.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut random = lunette_tests::random::Random::new(seed);
    (0..length).map(|_| random.next() as u8).collect()
}

/// A target with this image as unit 0; `more` are options of the unit.
fn serve(image: &Path, more: &str) -> Launch {
    Lunette::serve().luns([format!("0={},size=16M{more}", image.display())])
}
