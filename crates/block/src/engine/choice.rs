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
///
/// # Errors
/// When an engine that was asked for by name cannot be had.
pub(crate) fn choose(
    asked: EngineKind,
    path: &Path,
    kind: Kind,
    size_bytes: u64,
    enter: impl FnOnce() -> Result<Direct, OpenError>,
) -> Result<(EngineChoice, Option<Direct>), OpenError> {
    let named = EngineChoice { kind: asked, reason: None };
    match asked {
        EngineKind::Sync | EngineKind::Threads => Ok((named, None)),
        EngineKind::Direct => Ok((named, Some(enter()?))),
        EngineKind::Uring => match uring::refusal() {
            None => Ok((named, Some(enter()?))),
            Some(why) => Err(OpenError::NoUring { path: path.to_owned(), why: why.to_owned() }),
        },
        EngineKind::Auto => {
            let choice = pick(kind, size_bytes, memory_bytes(), uring::refusal());
            if choice.kind != EngineKind::Uring {
                return Ok((choice, None));
            }
            Ok(match enter() {
                Ok(direct) => (choice, Some(direct)),
                Err(error) => (threads(error.to_string()), None),
            })
        }
    }
}

/// What is below a store, as far as the choice depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An image in a file system.
    File,
    /// A block device.
    Device,
}

fn pick(kind: Kind, size_bytes: u64, memory_bytes: u64, refusal: Option<&str>) -> EngineChoice {
    if kind == Kind::File || size_bytes <= memory_bytes {
        return threads("the page cache answers what was read or written before".to_owned());
    }
    match refusal {
        None => EngineChoice {
            kind: EngineKind::Uring,
            reason: Some(
                "the disk is larger than this machine's memory, so most reads reach it anyway".to_owned(),
            ),
        },
        Some(why) => threads(why.to_owned()),
    }
}

fn threads(reason: String) -> EngineChoice {
    EngineChoice { kind: EngineKind::Threads, reason: Some(reason) }
}

/// Memory of the machine.
fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    // One of the two types is 32 bits wide on some architectures.
    #[allow(clippy::unnecessary_cast, clippy::cast_lossless)]
    (info.totalram as u64).saturating_mul(info.mem_unit as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_cache_is_used_where_it_can_hold_something() {
        let memory = 8 << 30;
        let picked = |kind, size, refusal| pick(kind, size, memory, refusal);
        assert_eq!(picked(Kind::File, 1 << 40, None).kind, EngineKind::Threads);
        assert_eq!(picked(Kind::Device, memory, None).kind, EngineKind::Threads);
        let large = picked(Kind::Device, memory + 1, None);
        assert_eq!(large.kind, EngineKind::Uring);
        assert!(large.reason.is_some_and(|reason| reason.contains("larger than")));
        let refused = picked(Kind::Device, memory + 1, Some("io_uring is refused"));
        assert_eq!(refused.kind, EngineKind::Threads);
        assert_eq!(refused.reason.as_deref(), Some("io_uring is refused"), "it is said");
        assert!(memory_bytes() > 1 << 20);
    }

    #[test]
    fn what_auto_cannot_have_it_goes_without() {
        let path = Path::new("/dev/sdz");
        let no = || Err(OpenError::NoDirect { path: "/dev/sdz".into(), why: "of the weather".to_owned() });
        let (choice, direct) = choose(EngineKind::Auto, path, Kind::Device, u64::MAX, no).unwrap();
        assert_eq!(choice.kind, EngineKind::Threads);
        assert!(choice.reason.is_some() && direct.is_none());
        assert!(choose(EngineKind::Direct, path, Kind::Device, 1, no).is_err(), "by name it is an error");
    }
}
