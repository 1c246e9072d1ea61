//! What is kept of one block beside its data: its protection information, and while the block is being written that of
//! the new data too.
//!
//! An entry of zeroes belongs to a block that was never written, or was zeroed or unmapped: its information is all ones.
//! So a sparse file of entries is right from the start, and a hole in it says what a hole in the image says.

use std::io;

use crc_fast::CrcAlgorithm;
use rustix::io::Errno;

/// The protection information of a block, in bytes.
pub(crate) const INFORMATION_BYTES: usize = 8;

/// An entry, in bytes. It divides a page and a sector, so no crash leaves half of one.
pub(super) const ENTRY_BYTES: usize = 32;

pub(super) type Information = [u8; INFORMATION_BYTES];

/// What blocks without data have.
const BLANK: Information = [0xff; INFORMATION_BYTES];

/// The flag of an entry whose block may have either data.
const IS_BEING_WRITTEN: u8 = 1;

/// The place of the check, over all that precedes it.
const CHECK_AT: usize = 28;

/// What is known of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// The data has this information.
    Settled(Information),
    /// The data is the old with the old information, or the new with the new.
    BeingWritten { old: Information, new: Information, new_data_crc: u32 },
}

impl Entry {
    /// Reads an entry.
    ///
    /// # Errors
    /// It is damaged: a medium error, because there is no telling what it said.
    pub(super) fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> io::Result<Entry> {
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(Entry::Settled(BLANK));
        }
        let (content, check) = bytes.split_at(CHECK_AT);
        if check != crc(content).to_le_bytes() {
            return Err(Errno::BADMSG.into());
        }
        let field = |at: usize| -> Information { std::array::from_fn(|index| !content[at + index]) };
        let old = field(0);
        if content[20] & IS_BEING_WRITTEN == 0 {
            return Ok(Entry::Settled(old));
        }
        let new_data_crc = u32::from_le_bytes([content[16], content[17], content[18], content[19]]);
        Ok(Entry::BeingWritten { old, new: field(8), new_data_crc })
    }

    /// The bytes that say it.
    pub(super) fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        let mut put = |at: usize, information: Information| {
            bytes[at..at + INFORMATION_BYTES].copy_from_slice(&information.map(|byte| !byte));
        };
        match self {
            Entry::Settled(BLANK) => return bytes,
            Entry::Settled(information) => put(0, information),
            Entry::BeingWritten { old, new, new_data_crc } => {
                put(0, old);
                put(8, new);
                bytes[16..20].copy_from_slice(&new_data_crc.to_le_bytes());
                bytes[20] = IS_BEING_WRITTEN;
            }
        }
        let check = crc(&bytes[..CHECK_AT]).to_le_bytes();
        bytes[CHECK_AT..].copy_from_slice(&check);
        bytes
    }

    /// A block that has `old` is about to get `data` with `new`.
    pub(super) fn being_written(old: Information, new: Information, data: &[u8]) -> Entry {
        Entry::BeingWritten { old, new, new_data_crc: crc(data) }
    }

    /// The information that belongs to `data`, which the block has.
    pub(super) fn of_data(self, data: &[u8]) -> Information {
        match self {
            Entry::Settled(information) => information,
            Entry::BeingWritten { new, new_data_crc, .. } if crc(data) == new_data_crc => new,
            Entry::BeingWritten { old, .. } => old,
        }
    }
}

/// CRC-32C, which has nothing in common with the guard: what is written may have any guard.
fn crc(bytes: &[u8]) -> u32 {
    // It has 32 bits.
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Information = [1, 2, 3, 4, 5, 6, 7, 8];
    const NEW: Information = [9; 8];

    #[test]
    fn entries_say_what_they_were_made_from() {
        let being_written = Entry::being_written(OLD, NEW, b"new data");
        for entry in [Entry::Settled(OLD), Entry::Settled([0; 8]), Entry::Settled(BLANK), being_written] {
            assert_eq!(Entry::from_bytes(&entry.to_bytes()).unwrap(), entry);
        }
        assert_eq!(Entry::Settled(BLANK).to_bytes(), [0; ENTRY_BYTES], "a hole");
    }

    #[test]
    fn the_data_says_which_information_it_has() {
        let entry = Entry::being_written(OLD, NEW, b"new data");
        assert_eq!(entry.of_data(b"new data"), NEW);
        assert_eq!(entry.of_data(b"old data"), OLD);
        assert_eq!(entry.of_data(b"new dat?"), OLD, "torn inside the block: the old guard will tell");
    }

    #[test]
    fn damage_of_any_bit_is_found() {
        for entry in [Entry::Settled(OLD), Entry::being_written(OLD, NEW, b"data")] {
            for bit in 0..ENTRY_BYTES * 8 {
                let mut bytes = entry.to_bytes();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Entry::from_bytes(&bytes).unwrap_err().raw_os_error(), Some(74), "bit {bit}");
            }
        }
    }
}
