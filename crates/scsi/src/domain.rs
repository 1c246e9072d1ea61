//! What all devices of one process share: a clock, random numbers, and the tokens that stand for data (SPC-4).
//!
//! The clock and the random numbers are the driver's; here is only what they are needed for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::rod::Tokens;

/// What a driver brings of its surroundings.
pub trait Environment: fmt::Debug + Send + Sync {
    /// The time since a moment that does not move; never goes back.
    fn uptime(&self) -> Duration;

    /// The time since 1970-01-01, universal time.
    fn since_epoch(&self) -> Duration;

    /// Fills `bytes` with random numbers that nobody can guess; false where there are none.
    fn fill_random(&self, bytes: &mut [u8]) -> bool;
}

/// An environment without anything: time stands still, and no tokens can be made.
#[derive(Debug)]
struct Nothing;

impl Environment for Nothing {
    fn uptime(&self) -> Duration {
        Duration::ZERO
    }

    fn since_epoch(&self) -> Duration {
        Duration::ZERO
    }

    fn fill_random(&self, _: &mut [u8]) -> bool {
        false
    }
}

/// See the module's documentation. Devices of one domain take one another's tokens.
#[derive(Debug)]
pub struct Domain {
    environment: Arc<dyn Environment>,
    tokens: Tokens,
}

impl Domain {
    /// A domain in its surroundings.
    pub fn new(environment: Arc<dyn Environment>) -> Domain {
        Domain { environment, tokens: Tokens::default() }
    }

    pub(crate) fn environment(&self) -> &dyn Environment {
        &*self.environment
    }

    pub(crate) fn tokens(&self) -> &Tokens {
        &self.tokens
    }
}

impl Default for Domain {
    /// A domain where time stands still and no tokens can be made.
    fn default() -> Domain {
        Domain::new(Arc::new(Nothing))
    }
}
