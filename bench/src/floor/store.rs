//! What the yardstick serves: a file by way of the page cache, or memory.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};

/// Bytes in a block of the one unit.
pub(super) const BLOCK_BYTES: u64 = 512;

/// `mem:SIZE`, or the path of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Memory(u64),
    File(String),
}

impl FromStr for Place {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some(size) = text.strip_prefix("mem:") else {
            let path = text.strip_prefix("file:").unwrap_or(text);
            ensure!(!path.is_empty(), "a path is empty");
            return Ok(Self::File(path.to_owned()));
        };
        let (digits, shift) = match size.as_bytes().last() {
            Some(b'K') => (&size[..size.len() - 1], 10),
            Some(b'M') => (&size[..size.len() - 1], 20),
            Some(b'G') => (&size[..size.len() - 1], 30),
            _ => (size, 0),
        };
        let number: u64 = digits.parse().with_context(|| format!("{size:?} is no size"))?;
        let bytes = number.checked_mul(1 << shift).with_context(|| format!("{size} is too much"))?;
        Ok(Self::Memory(bytes))
    }
}

/// An open store.
#[derive(Debug)]
pub(super) enum Store {
    File(File, u64),
    Memory(Vec<u8>),
}

impl Store {
    pub(super) fn open(place: &Place) -> Result<Self> {
        let store = match place {
            Place::Memory(bytes) => Self::Memory(vec![0; usize::try_from(*bytes)?]),
            Place::File(path) => {
                let file = OpenOptions::new().read(true).write(true).open(path);
                let file = file.with_context(|| path.clone())?;
                let bytes = file.metadata()?.len();
                Self::File(file, bytes)
            }
        };
        ensure!(store.bytes() >= BLOCK_BYTES, "the store holds no block");
        Ok(store)
    }

    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::File(_, bytes) => *bytes,
            Self::Memory(memory) => memory.len() as u64,
        }
    }

    /// Writes, from whatever address on.
    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self {
            Self::File(file, _) => file.write_all_at(bytes, offset),
            Self::Memory(memory) => {
                range(memory, offset, bytes.len())?.copy_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// Where data can be received into without a copy; nowhere with a file.
    pub(super) fn landing(&mut self, offset: u64, length: usize) -> io::Result<&mut [u8]> {
        match self {
            Self::File(..) => Ok(&mut []),
            Self::Memory(memory) => range(memory, offset, length),
        }
    }

    pub(super) fn flush(&self) -> io::Result<()> {
        match self {
            Self::File(file, _) => file.sync_data(),
            Self::Memory(_) => Ok(()),
        }
    }
}

fn range(memory: &mut [u8], offset: u64, length: usize) -> io::Result<&mut [u8]> {
    let start = usize::try_from(offset).map_err(io::Error::other)?;
    let end = start.checked_add(length).ok_or(io::ErrorKind::InvalidInput)?;
    memory.get_mut(start..end).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let place = |text: &str| text.parse::<Place>().unwrap();
        assert_eq!(place("mem:64M"), Place::Memory(64 << 20));
        assert_eq!(place("mem:512"), Place::Memory(512));
        assert_eq!(place("file:/a/b"), Place::File("/a/b".to_owned()));
        assert_eq!(place("/a/b"), Place::File("/a/b".to_owned()));
        for text in ["mem:", "mem:M", "mem:-1", "mem:99999999999G", ""] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }

    #[test]
    fn memory_is_written_within_its_bounds() {
        let mut store = Store::open(&Place::Memory(4096)).unwrap();
        store.write(b"abc", 4093).unwrap();
        assert_eq!(store.landing(4092, 4).unwrap(), b"\0abc");
        assert!(store.write(b"abc", 4094).is_err());
        assert!(store.landing(u64::MAX, 4096).is_err());
    }
}
