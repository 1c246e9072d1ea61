//! How many cases a property test runs: each names what a run before a merge has time for, and [`TIMES`] multiplies all of
//! them, so that a night can look further without a change to any test. `PROPTEST_CASES` cannot do that: it is only a
//! default, which tests with a number of their own do not see.
//!
//! Before a merge the cases are the same each time, so that what a run says is of the commit and not of chance; a night draws others.
//! `PROPTEST_RNG_SEED` chooses: any number.

#![forbid(unsafe_code)]

use std::env;

pub use proptest::test_runner::Config;
use proptest::test_runner::RngSeed;

/// The environment variable with the number by which every property test's cases are multiplied: 1 without it.
pub const TIMES: &str = "LUNETTE_CASES_TIMES";

/// What the cases before a merge are drawn from.
const SEED: u64 = 7143;

/// The configuration of a property test that runs `count` cases before a merge.
///
/// # Panics
/// When [`TIMES`] is no number.
#[must_use]
pub fn cases(count: u32) -> Config {
    let times = env::var(TIMES)
        .map_or(1, |text| text.parse::<u32>().unwrap_or_else(|error| panic!("{TIMES}={text}: {error}")));
    let config = Config::with_cases(count.saturating_mul(times));
    let rng_seed = match config.rng_seed {
        RngSeed::Random if times == 1 => RngSeed::Fixed(SEED),
        chosen => chosen,
    };
    // What a property has no answer for may come up as much more often.
    Config { max_global_rejects: config.max_global_rejects.saturating_mul(times), rng_seed, ..config }
}
