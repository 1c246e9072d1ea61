//! Tests of volumes.
