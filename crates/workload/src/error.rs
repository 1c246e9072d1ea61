//! Why a text or a number makes no workload.

/// Each is a sentence for the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// It is no size.
    #[error(
        "{0:?} is no mix of sizes: give bytes with K or M (1024 times the one before), or several with their weights, as 4K:60,64K:40"
    )]
    Sizes(String),
    /// It is no percentage.
    #[error("{0:?} is no whole percentage from 0 to 100")]
    Percent(String),
    /// It is no distribution of addresses.
    #[error(
        "{0:?} is no distribution: give uniform, zipf:EXPONENT (above 0, at most 5), or hot:SHARE%/HITS% as in hot:10%/90%"
    )]
    Spread(String),
    /// It is no profile.
    #[error("{name:?} is no profile; there are {}", crate::profile::names())]
    Profile {
        /// What was given.
        name: String,
    },
    /// It is no rate.
    #[error("{0:?} is no rate: give operations per second, from 0.001 to 10000000")]
    Rate(String),
    /// It is no pace.
    #[error(
        "{0:?} is no pace: give original, none (without think time), or how many times as fast, as 2x or 0.5x"
    )]
    Pace(String),
    /// A size is not of whole blocks.
    #[error("operations of {size_bytes} bytes are no whole blocks of {block_bytes} bytes")]
    Blocks {
        /// The size.
        size_bytes: u32,
        /// The block.
        block_bytes: u32,
    },
    /// The range holds not even one operation.
    #[error("the range of {range_bytes} bytes has no room for an operation of {size_bytes}")]
    Room {
        /// The range.
        range_bytes: u64,
        /// The largest size.
        size_bytes: u32,
    },
    /// More is to be verified than can be remembered.
    #[error(
        "verification remembers at most {max} places, and this range has {grains}: give a shorter range or larger operations"
    )]
    Grains {
        /// What there is.
        grains: u64,
        /// What there may be.
        max: u64,
    },
}
