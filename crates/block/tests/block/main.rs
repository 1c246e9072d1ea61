//! Tests of volumes through their public interface, with real files and, where root is had, real block devices.

// Clippy allows this in test functions; the checks that they share are tests too.
#![allow(clippy::unwrap_used)]

mod atomic;
mod common;
mod durability;
mod engines;
mod identities;
mod model;
mod opening;
mod protected;
mod reserved;
mod stores;
mod thick;
mod threads;
