//! What a caller asks for when it opens a volume. Parsing flags or configuration files is done above.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::area::Pages;
use crate::store::protected::INFORMATION_BYTES;

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
    /// What suits the volume; [`crate::Volume::engine`] says what that was. It is never `Auto` itself.
    #[default]
    Auto,
    /// The submitting thread, one operation after the other.
    Sync,
    /// The submitting thread where the page cache answers at once, otherwise a pool of threads.
    Threads,
    /// A pool of threads past the page cache (O_DIRECT).
    Direct,
    /// The kernel's own queue, io_uring, past the page cache (O_DIRECT).
    Uring,
}

impl EngineKind {
    /// All engines, in the order in which they are listed for people.
    pub const ALL: [Self; 5] = [Self::Auto, Self::Sync, Self::Threads, Self::Direct, Self::Uring];

    /// Whether files and devices are read and written through the page cache. Of [`Self::Auto`] that is not known: false.
    pub fn uses_page_cache(self) -> bool {
        matches!(self, Self::Sync | Self::Threads)
    }

    /// The word for it in flags, files and logs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Sync => "sync",
            Self::Threads => "threads",
            Self::Direct => "direct",
            Self::Uring => "uring",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A word that names no engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("engine={word} is not known; use auto, sync, threads, direct or uring")]
pub struct EngineError {
    /// The word.
    pub word: String,
}

impl FromStr for EngineKind {
    type Err = EngineError;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|engine| engine.word() == word);
        named.ok_or_else(|| EngineError { word: word.to_owned() })
    }
}

/// When a volume takes its space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Provisioning {
    /// When blocks are written; it can be given back.
    #[default]
    Thin,
    /// All of it when the volume is opened or enlarged, and none is given back: no write fails for want of it.
    Thick,
}

impl fmt::Display for Provisioning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Thin => "thin",
            Self::Thick => "thick",
        })
    }
}

/// A word that is neither.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("provisioning={word} is not known; use thin (space is taken by writes) or thick (all at once)")]
pub struct ProvisioningError {
    /// The word.
    pub word: String,
}

impl FromStr for Provisioning {
    type Err = ProvisioningError;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let named =
            [Self::Thin, Self::Thick].into_iter().find(|provisioning| provisioning.to_string() == word);
        named.ok_or_else(|| ProvisioningError { word: word.to_owned() })
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
    /// When it takes its space. Memory and null cannot be thick.
    pub provisioning: Provisioning,
    /// Who does the blocking calls.
    pub engine: EngineKind,
    /// What the configuration says about the identity.
    pub identity: IdentityOverride,
    /// The block length that the volume is served with: a power of two from 512 to 65536. The size must be a
    /// multiple of it, and it must not be smaller than a block device's logical sector.
    pub block_length_bytes: u32,
    /// Keep 8 bytes of protection information with each block, of a kind that this number names (T10 has types 1 and 3).
    /// Blocks are then read and written with it behind their data, so the volume's size and all offsets and lengths
    /// count `block_length_bytes + 8` a block; blocks without data have all ones. A volume is created with it or
    /// without: opening it otherwise is an error. Image files and memory can have it.
    pub protection: Option<u8>,
    /// What is kept in this process's memory is in large pages, where the kernel gives them. Means nothing to other stores.
    pub large_pages: bool,
}

impl VolumeSpec {
    /// A thin volume in blocks of 512 bytes that may be written, with what suits its store for everything else.
    #[must_use]
    pub fn new(name: impl Into<String>, store: StoreSpec) -> Self {
        Self {
            name: name.into(),
            store,
            read_only: false,
            provisioning: Provisioning::default(),
            engine: EngineKind::default(),
            identity: IdentityOverride::default(),
            block_length_bytes: 512,
            protection: None,
            large_pages: false,
        }
    }
}

impl VolumeSpec {
    /// The pages that memory is asked for in.
    pub(crate) fn pages(&self) -> Pages {
        if self.large_pages { Pages::Large } else { Pages::Small }
    }

    /// The bytes of a block as operations count them.
    pub fn stored_block_bytes(&self) -> u32 {
        self.block_length_bytes + if self.protection.is_some() { INFORMATION_BYTES as u32 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provisionings_have_words() {
        for provisioning in [Provisioning::Thin, Provisioning::Thick] {
            assert_eq!(provisioning.to_string().parse(), Ok(provisioning));
        }
        assert!("fat".parse::<Provisioning>().unwrap_err().to_string().contains("use thin"));
    }

    #[test]
    fn engines_have_words() {
        for engine in EngineKind::ALL {
            assert_eq!(engine.to_string().parse(), Ok(engine));
        }
        let error = "fast".parse::<EngineKind>().unwrap_err();
        assert_eq!(error.to_string(), "engine=fast is not known; use auto, sync, threads, direct or uring");
    }
}
