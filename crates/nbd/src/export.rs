//! What a server offers: a range of bytes with a name, and what can be done with it. What clients are told of it is
//! `NBD_INFO_EXPORT` and `NBD_INFO_BLOCK_SIZE`.

use std::fmt;

/// The longest name or description that strings of the protocol may have, in bytes.
pub const NAME_BYTES_MAX: usize = 4096;

const BLOCK_BYTES_MAX: u32 = 1 << 16;
/// The smallest preferred block length that may be told.
const PREFERRED_BYTES_MIN: u32 = 512;

const HAS_FLAGS: u16 = 1 << 0;
const READ_ONLY: u16 = 1 << 1;
const SEND_FLUSH: u16 = 1 << 2;
const SEND_FUA: u16 = 1 << 3;
const ROTATIONAL: u16 = 1 << 4;
const SEND_TRIM: u16 = 1 << 5;
const SEND_WRITE_ZEROES: u16 = 1 << 6;
const SEND_DF: u16 = 1 << 7;
const CAN_MULTI_CONN: u16 = 1 << 8;
const SEND_FAST_ZERO: u16 = 1 << 11;

/// What an export can do beside reads. FLUSH, FUA and WRITE_ZEROES are there in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// Nothing can be changed.
    pub read_only: bool,
    /// Seeks take time.
    pub rotational: bool,
    /// TRIM gives space back.
    pub trim: bool,
    /// A flush on one connection covers what was answered on all of them.
    pub multi_connection: bool,
}

/// Why an export cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportError {
    /// The name or the description is longer than [`NAME_BYTES_MAX`].
    Name,
    /// A block length that is not a power of two from 1 to 65,536.
    Block,
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExportError::Name => write!(f, "the name of an NBD export has at most {NAME_BYTES_MAX} bytes"),
            ExportError::Block => {
                write!(f, "NBD has blocks of 1 to {BLOCK_BYTES_MAX} bytes, in powers of two")
            }
        }
    }
}

impl std::error::Error for ExportError {}

/// An export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    name: String,
    description: String,
    size_bytes: u64,
    block_bytes: u32,
    preferred_bytes: u32,
    features: Features,
}

impl Export {
    /// An export of `size_bytes` in blocks of `block_bytes`; accesses of `preferred_bytes` cost no more than needed, which is
    /// made a power of two that can be told.
    ///
    /// # Errors
    /// [`ExportError`]
    pub fn new(
        (name, description): (&str, &str),
        size_bytes: u64,
        (block_bytes, preferred_bytes): (u32, u32),
        features: Features,
    ) -> Result<Export, ExportError> {
        if name.len() > NAME_BYTES_MAX || description.len() > NAME_BYTES_MAX {
            return Err(ExportError::Name);
        }
        if !block_bytes.is_power_of_two() || block_bytes > BLOCK_BYTES_MAX {
            return Err(ExportError::Block);
        }
        let preferred = preferred_bytes.clamp(block_bytes.max(PREFERRED_BYTES_MIN), crate::PAYLOAD_BYTES_MAX);
        Ok(Export {
            name: name.to_owned(),
            description: description.to_owned(),
            size_bytes,
            block_bytes,
            // No more than the clamp's upper end, which is a power of two.
            preferred_bytes: preferred.next_power_of_two(),
            features,
        })
    }

    /// The name; the empty one means this export, too.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A line for people.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The same with another size, in bytes.
    pub fn resize(&mut self, size_bytes: u64) {
        self.size_bytes = size_bytes;
    }

    /// The smallest block that can be accessed, in bytes.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// What it can do.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Whether a client that asks for this name means it.
    pub(crate) fn is_called(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// The transmission flags, for a client that takes structured replies or for another.
    pub(crate) fn flags(&self, structured: bool) -> u16 {
        let features = &self.features;
        let changes = !features.read_only;
        let flags = [
            (READ_ONLY, features.read_only),
            (ROTATIONAL, features.rotational),
            (SEND_FUA, changes),
            (SEND_TRIM, changes && features.trim),
            (SEND_WRITE_ZEROES | SEND_FAST_ZERO, changes),
            // Every read is answered in one piece.
            (SEND_DF, structured),
            (CAN_MULTI_CONN, features.multi_connection),
        ];
        let set = flags.into_iter().filter(|(_, is_set)| *is_set);
        set.fold(HAS_FLAGS | SEND_FLUSH, |all, (flag, _)| all | flag)
    }

    /// The smallest, the preferred and the longest access, in bytes.
    pub(crate) fn block_sizes(&self) -> [u32; 3] {
        [self.block_bytes, self.preferred_bytes, crate::PAYLOAD_BYTES_MAX]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(block: u32, preferred: u32, features: Features) -> Result<Export, ExportError> {
        Export::new(("disk", ""), 1 << 20, (block, preferred), features)
    }

    #[test]
    fn flags_say_what_can_be_done() {
        let flags = |features| export(512, 4096, features).unwrap().flags(false);
        assert_eq!(flags(Features::default()), 0x84d);
        let all = Features { rotational: true, trim: true, multi_connection: true, read_only: false };
        assert_eq!(flags(all), 0x97d);
        assert_eq!(flags(Features { read_only: true, ..all }), 0x117, "nothing that changes anything");
        assert_eq!(export(512, 4096, all).unwrap().flags(true), 0x9fd, "and reads in one piece");
    }

    #[test]
    fn preferred_sizes_are_powers_of_two_that_may_be_told() {
        let sizes = |block, preferred| export(block, preferred, Features::default()).unwrap().block_sizes();
        assert_eq!(sizes(512, 4096), [512, 4096, 32 << 20]);
        assert_eq!(sizes(4096, 0), [4096, 4096, 32 << 20]);
        assert_eq!(sizes(1, 0), [1, 512, 32 << 20]);
        assert_eq!(sizes(512, 5000)[1], 8192);
        assert_eq!(sizes(512, u32::MAX)[1], 32 << 20);
    }

    #[test]
    fn what_cannot_be_told_is_no_export() {
        for block in [0, 520, 3 << 10, 1 << 17] {
            assert_eq!(export(block, 0, Features::default()), Err(ExportError::Block));
        }
        let long = "n".repeat(NAME_BYTES_MAX + 1);
        assert_eq!(Export::new((&long, ""), 0, (512, 0), Features::default()), Err(ExportError::Name));
        assert_eq!(Export::new(("", &long), 0, (512, 0), Features::default()), Err(ExportError::Name));
    }

    #[test]
    fn the_empty_name_means_the_only_export() {
        let export = export(512, 0, Features::default()).unwrap();
        assert!(export.is_called(b"") && export.is_called(b"disk") && !export.is_called(b"disk0"));
    }
}
