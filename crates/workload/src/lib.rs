//! Workloads: what is read and written, where, when, and with which content. Nothing is carried out here.
//!
//! A [`Workload`] with a range and a seed is a [`Generator`], which says one [`Operation`] after the other; [`Arrivals`] say when
//! each is to begin. What is written is [`Noise`], which nothing can compress; or, to be compared, [`content`] that names its own
//! place and generation, and a [`Ledger`] knows which generation each place must have. [`profiles`] are workloads with names.
//! [`FileDraws`] are work on files. [`model`] says what a network lets through of all that.
//!
//! The same seed says the same in every version: figures can be compared over years. PURE: no clock, no I/O; time is an argument.

#![forbid(unsafe_code)]

mod arrivals;
pub mod content;
mod error;
mod files;
mod generator;
mod ledger;
pub mod model;
mod noise;
mod profile;
mod quantity;
mod random;
mod sizes;
mod spread;
mod trace;

pub use arrivals::{Arrivals, Schedule};
pub use error::WorkloadError;
pub use files::FileDraws;
pub use generator::{Generator, Kind, Operation, Range, Workload};
pub use ledger::{GRAINS_MAX, Ledger};
pub use noise::Noise;
pub use profile::{Profile, profiles};
pub use quantity::Percent;
pub use sizes::{SIZE_BYTES_MAX, Sizes};
pub use spread::Spread;
pub use trace::{Pace, Record, TRACE_LINE_BYTES_MAX, TRACE_OPERATIONS_MAX, Trace, TraceError, TraceReader};
