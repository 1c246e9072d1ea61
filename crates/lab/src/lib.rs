//! The lab: workloads carried out and measured.
//!
//! [`bench()`] has a [`Plan`] carried out by one or more workers, each with a session of its own, or on a file or block device of
//! this machine, and counts into histograms. A [`Laboratory`] runs a [`Study`]: measurements that others have published, over emulated
//! links, each beside the published figure and what the model expects. [`measure_path`] looks at a network, and a [`Trial`] holds
//! an advice about it against an emulated one. What the operations are is decided in `lunette_workload`, which does no I/O.

#![forbid(unsafe_code)]

mod advise;
mod bench;
mod endpoint;
mod error;
mod host;
mod latency;
pub mod report;
mod result;
mod stages;
mod study;
mod usual;

pub use advise::{
    MeasuredPath, Outcome, Trial, line_path, measure_path, socket_buffers_bytes_max, tcp_window_bytes,
    unknown_to_model,
};
pub use bench::monitor::{Monitor, Phase};
pub use bench::plan::{DEPTH_MAX, Disk, Plan, Until, WORKERS_MAX, Work};
pub use bench::{Carried, bench};
pub use endpoint::WriteMode;
pub use error::LabError;
pub use host::Host;
pub use latency::Latency;
pub use result::{BenchResult, DiskFacts, Ending, Measured, Negotiated, Series, WorkloadFacts};
pub use stages::{Stage, Stages, ToldApart};
pub use study::{
    CellResult, FORM, Failed, Further, Identity, Laboratory, Lacking, LatencyParts, LinkFacts, Parameter,
    Peer, REACHED, Setting, Study, StudyResult, Summary, Times, Told, remove_left, studies, study, summaries,
};
