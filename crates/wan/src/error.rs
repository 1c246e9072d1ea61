//! What can be wrong with the machine.

use std::io;

/// Why there is no emulated network.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct WanError {
    /// What was tried.
    pub what: &'static str,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

impl WanError {
    /// For `map_err`.
    pub(crate) fn of<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self { what, source: source.into() }
    }
}
