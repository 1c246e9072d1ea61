//! Tests of volumes through their public interface, with real files and, where root is had, real block devices.

mod common;
mod durability;
mod identities;
mod model;
mod opening;
mod stores;
mod threads;
