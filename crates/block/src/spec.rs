//! What a caller asks for when it opens a volume. Parsing flags or configuration files is done above.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Where the bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreSpec {
    /// An image file. A path that turns out to be a block device is opened as [`StoreSpec::BlockDevice`].
    File {
        /// The image.
        path: PathBuf,
        /// Size of a missing image, which is then created sparse. An existing image must have this size.
        create_bytes: Option<u64>,
    },
    /// A block device, claimed exclusively.
    BlockDevice {
        /// The device node.
        path: PathBuf,
    },
    /// Memory of this process; gone when it ends.
    Memory {
        /// Size in bytes, at most 64 TiB; memory is taken only for what is written.
        size_bytes: u64,
    },
    /// Reads zeroes and drops every write: for measuring what is above.
    Null {
        /// Size in bytes.
        size_bytes: u64,
    },
}

/// Who does the blocking calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EngineKind {
    /// The submitting thread, one operation after the other.
    Sync,
    /// The submitting thread where the page cache answers at once, otherwise a pool of threads.
    #[default]
    Threads,
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sync => "sync",
            Self::Threads => "threads",
        })
    }
}

/// Why a word does not name an engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The word is kept for an engine that does not exist yet.
    #[error("engine={word} comes with a later release; use sync or threads")]
    Later {
        /// The word.
        word: String,
    },
    /// The word means nothing.
    #[error("engine={word} is not known; use sync or threads")]
    Unknown {
        /// The word.
        word: String,
    },
}

impl FromStr for EngineKind {
    type Err = EngineError;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "sync" => Ok(Self::Sync),
            "threads" => Ok(Self::Threads),
            "direct" | "uring" | "auto" => Err(EngineError::Later { word: word.to_owned() }),
            _ => Err(EngineError::Unknown { word: word.to_owned() }),
        }
    }
}

/// What the configuration says about a volume's identity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdentityOverride {
    /// The serial number. When given, the whole identity derives from it and nothing is stored with the image.
    pub serial: Option<String>,
}

/// All that is needed to open a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeSpec {
    /// The name in logs.
    pub name: String,
    /// Where the bytes are.
    pub store: StoreSpec,
    /// Refuse every change.
    pub read_only: bool,
    /// Who does the blocking calls.
    pub engine: EngineKind,
    /// What the configuration says about the identity.
    pub identity: IdentityOverride,
    /// The block length that the volume is served with: a power of two from 512 to 65536. The size must be a
    /// multiple of it, and it must not be smaller than a block device's logical sector.
    pub block_length_bytes: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_have_words() {
        assert_eq!("sync".parse(), Ok(EngineKind::Sync));
        assert_eq!("threads".parse(), Ok(EngineKind::Threads));
        assert_eq!(EngineKind::Threads.to_string().parse(), Ok(EngineKind::default()));
        for word in ["direct", "uring", "auto"] {
            let error = word.parse::<EngineKind>().unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("engine={word} comes with a later release; use sync or threads")
            );
        }
        assert!(matches!("fast".parse::<EngineKind>(), Err(EngineError::Unknown { .. })));
    }
}
