//! Layers: stores that wrap a store.

pub mod fault;
