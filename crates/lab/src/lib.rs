//! The lab: workloads carried out and measured.
//!
//! [`bench()`] has a [`Plan`] carried out by one or more workers, each with a session of its own, or on a file or block device of
//! this machine, and counts into histograms. What the operations are is decided in `lunette_workload`, which does no I/O.

#![forbid(unsafe_code)]

mod bench;
mod endpoint;
mod error;
mod host;
mod result;

pub use bench::monitor::{Monitor, Phase};
pub use bench::plan::{DEPTH_MAX, Disk, Plan, Until, WORKERS_MAX, Work};
pub use bench::{Carried, bench};
pub use error::LabError;
pub use host::Host;
pub use result::{
    BenchResult, DiskFacts, Ending, Latency, Measured, Negotiated, Series, Stage, Stages, WorkloadFacts,
};
