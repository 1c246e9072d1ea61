//! Which engine a volume gets, and why.

use std::path::Path;

use super::uring;
use crate::error::OpenError;
use crate::spec::EngineKind;
use crate::store::direct::Direct;

/// The engine of a volume.
#[derive(Debug, Clone)]
pub(crate) struct EngineChoice {
    /// Which; never [`EngineKind::Auto`].
    pub(crate) kind: EngineKind,
    /// Why it was picked, as half a sentence, when it was left to us.
    pub(crate) reason: Option<String>,
}

/// For stores that never wait. Every engine answers from them at once; `threads` also keeps the submitting thread free
/// when a layer makes calls wait.
pub(crate) fn in_memory(asked: EngineKind) -> EngineChoice {
    match asked {
        EngineKind::Auto => {
            EngineChoice { kind: EngineKind::Threads, reason: Some("memory is never waited for".to_owned()) }
        }
        kind => EngineChoice { kind, reason: None },
    }
}

/// For files and devices. `enter` takes an open one past the page cache.
pub(crate) fn choose(
    asked: EngineKind,
    path: &Path,
    enter: impl FnOnce() -> Result<Direct, OpenError>,
) -> Result<(EngineChoice, Option<Direct>), OpenError> {
    let direct = match asked {
        EngineKind::Sync | EngineKind::Threads | EngineKind::Auto => None,
        EngineKind::Direct => Some(enter()?),
        EngineKind::Uring => {
            if let Some(why) = uring::refusal() {
                return Err(OpenError::NoUring { path: path.to_owned(), why: why.to_owned() });
            }
            Some(enter()?)
        }
    };
    let choice = match asked {
        EngineKind::Auto => EngineChoice {
            kind: EngineKind::Threads,
            reason: Some("the page cache answers what was read or written before".to_owned()),
        },
        kind => EngineChoice { kind, reason: None },
    };
    Ok((choice, direct))
}
