//! STORE: the text that says where a logical unit's bytes are.
//!
//! `file:PATH`, `device:PATH`, `mem:SIZE`, `null:SIZE`, or a path alone: a block device below `/dev/`, otherwise an
//! image file. Options such as `size=` are not part of it (`super::lun`).

use std::fmt;
use std::path::{Path, PathBuf};

use lunette_block::StoreSpec;

use super::size::{Size, SizeError};

/// Why a text names no store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreTextError {
    /// Nothing where a path should be.
    #[error("the path is missing; write for example disk0.img,size=10G")]
    NoPath,
    /// A path cannot have a NUL character.
    #[error("the path has a NUL character in it, which no file can have")]
    Nul,
    /// A word and a colon that mean nothing here.
    #[error(
        "{scheme}: is not a kind of store; there are file:PATH, device:PATH, mem:SIZE and null:SIZE (an image with \
         a colon in its name is given as file:{scheme}:...)"
    )]
    Scheme {
        /// The word.
        scheme: String,
    },
    /// Memory or null without a size.
    #[error("{scheme} needs its size, as in {scheme}:1G (an image of that name is given as file:{scheme})")]
    NoSize {
        /// `mem` or `null`.
        scheme: &'static str,
    },
    /// Memory or null with something else than a size.
    #[error(transparent)]
    Size(#[from] SizeError),
}

/// Splits `word:rest`. A word is of letters alone, so that `./a:b` and `1:2` stay paths.
pub(super) fn split_scheme(text: &str) -> (Option<&str>, &str) {
    match text.split_once(':') {
        Some((word, rest)) if !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
            (Some(word), rest)
        }
        _ => (None, text),
    }
}

/// Makes a store of the two parts.
pub(super) fn from_parts(scheme: Option<&str>, rest: &str) -> Result<StoreSpec, StoreTextError> {
    match scheme {
        None => match rest {
            "mem" => Err(StoreTextError::NoSize { scheme: "mem" }),
            "null" => Err(StoreTextError::NoSize { scheme: "null" }),
            _ if is_below_dev(Path::new(rest)) => Ok(StoreSpec::BlockDevice { path: path(rest)? }),
            _ => Ok(StoreSpec::File { path: path(rest)?, create_bytes: None }),
        },
        Some("file") => Ok(StoreSpec::File { path: path(rest)?, create_bytes: None }),
        Some("device") => Ok(StoreSpec::BlockDevice { path: path(rest)? }),
        Some("mem") => Ok(StoreSpec::Memory { size_bytes: size("mem", rest)? }),
        Some("null") => Ok(StoreSpec::Null { size_bytes: size("null", rest)? }),
        Some(scheme) => Err(StoreTextError::Scheme { scheme: scheme.to_owned() }),
    }
}

fn path(text: &str) -> Result<PathBuf, StoreTextError> {
    if text.is_empty() {
        return Err(StoreTextError::NoPath);
    }
    if text.contains('\0') {
        return Err(StoreTextError::Nul);
    }
    Ok(PathBuf::from(text))
}

fn size(scheme: &'static str, text: &str) -> Result<u64, StoreTextError> {
    if text.is_empty() {
        return Err(StoreTextError::NoSize { scheme });
    }
    Ok(text.parse::<Size>()?.bytes())
}

/// A mistyped device must not become an image in `/dev`. Shared memory below it does hold files.
fn is_below_dev(path: &Path) -> bool {
    path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

/// Shows a store as text that parses to it. A path that is not UTF-8 is shown as well as it can be.
#[derive(Debug, Clone, Copy)]
pub struct StoreText<'a>(pub &'a StoreSpec);

impl fmt::Display for StoreText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            StoreSpec::File { path, .. } => write!(f, "file:{}", path.display()),
            StoreSpec::BlockDevice { path } => write!(f, "device:{}", path.display()),
            StoreSpec::Memory { size_bytes } => write!(f, "mem:{}", SizeText(*size_bytes)),
            StoreSpec::Null { size_bytes } => write!(f, "null:{}", SizeText(*size_bytes)),
        }
    }
}

/// A size that a program may have set out of range; then it is shown in bytes.
pub(super) struct SizeText(pub(super) u64);

impl fmt::Display for SizeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Size::from_bytes(self.0) {
            Ok(size) => size.fmt(f),
            Err(_) => self.0.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<StoreSpec, StoreTextError> {
        let (scheme, rest) = split_scheme(text);
        from_parts(scheme, rest)
    }

    fn file(path: &str) -> StoreSpec {
        StoreSpec::File { path: path.into(), create_bytes: None }
    }

    #[test]
    fn every_kind_of_store_has_a_text() {
        assert_eq!(parse("disk0.img"), Ok(file("disk0.img")));
        assert_eq!(parse("file:disk0.img"), Ok(file("disk0.img")));
        assert_eq!(parse("file:mem:1G"), Ok(file("mem:1G")));
        assert_eq!(parse("./a:b"), Ok(file("./a:b")));
        assert_eq!(parse("/dev/shm/a"), Ok(file("/dev/shm/a")));
        assert_eq!(parse("/devices.img"), Ok(file("/devices.img")));
        assert_eq!(parse("/dev/loop0"), Ok(StoreSpec::BlockDevice { path: "/dev/loop0".into() }));
        assert_eq!(parse("device:/srv/link"), Ok(StoreSpec::BlockDevice { path: "/srv/link".into() }));
        assert_eq!(parse("mem:1G"), Ok(StoreSpec::Memory { size_bytes: 1 << 30 }));
        assert_eq!(parse("null:1T"), Ok(StoreSpec::Null { size_bytes: 1 << 40 }));
    }

    #[test]
    fn what_names_no_store_is_told_apart() {
        assert_eq!(parse(""), Err(StoreTextError::NoPath));
        assert_eq!(parse("file:"), Err(StoreTextError::NoPath));
        assert_eq!(parse("device:"), Err(StoreTextError::NoPath));
        assert_eq!(parse("a\0b"), Err(StoreTextError::Nul));
        assert_eq!(parse("mem"), Err(StoreTextError::NoSize { scheme: "mem" }));
        assert_eq!(parse("null:"), Err(StoreTextError::NoSize { scheme: "null" }));
        assert_eq!(parse("mem:0"), Err(StoreTextError::Size(SizeError::Zero)));
        assert_eq!(parse("rbd:pool/disk"), Err(StoreTextError::Scheme { scheme: "rbd".into() }));
    }

    #[test]
    fn a_size_out_of_range_is_still_shown() {
        assert_eq!(StoreText(&StoreSpec::Null { size_bytes: 0 }).to_string(), "null:0");
        assert_eq!(
            StoreText(&StoreSpec::Null { size_bytes: u64::MAX }).to_string(),
            format!("null:{}", u64::MAX)
        );
    }
}
