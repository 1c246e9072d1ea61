//! A PDU on the wire: its lengths, worked out from its first 48 bytes, and its parts put together (RFC 7143, 11.1 and
//! 11.2.1).

use crate::digest::{DIGEST_LENGTH, crc32c};

/// Bytes in a basic header segment (11.2.1).
pub const BHS_LENGTH: usize = 48;

/// The bytes of a basic header segment.
pub type Bhs = [u8; BHS_LENGTH];

/// The largest DataSegmentLength that 24 bits can say, and the largest legal MaxRecvDataSegmentLength (13.12).
pub const DATA_SEGMENT_LENGTH_MAX: u32 = (1 << 24) - 1;

/// Why a PDU cannot be received: its stated lengths break a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The data segment is longer than the receiver declared.
    #[error("the data segment of {length} bytes exceeds the declared maximum of {max}")]
    DataSegment {
        /// DataSegmentLength of the PDU, in bytes.
        length: u32,
        /// The receiver's MaxRecvDataSegmentLength, in bytes.
        max: u32,
    },
    /// The additional header segments are longer than the receiver allows.
    #[error("additional header segments of {length} bytes exceed the allowed {max}")]
    Ahs {
        /// TotalAHSLength in bytes.
        length: u32,
        /// The bound in bytes.
        max: u32,
    },
}

/// Which digests a connection carries (13.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digests {
    /// HeaderDigest=CRC32C was negotiated.
    pub header: bool,
    /// DataDigest=CRC32C was negotiated.
    pub data: bool,
}

/// The layout of one PDU: all lengths in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Additional header segments, padding included.
    pub ahs_length: usize,
    /// The data segment, without padding.
    pub data_length: usize,
    /// Header digest: 0 or 4.
    pub header_digest_length: usize,
    /// Data digest: 0 or 4; 0 when there is no data segment.
    pub data_digest_length: usize,
}

impl Frame {
    /// Works out the lengths of the PDU that starts with `bhs`.
    ///
    /// # Errors
    /// [`FrameError`] when a stated length exceeds `data_max` or `ahs_max` (bytes).
    pub fn of(bhs: &Bhs, digests: Digests, data_max: u32, ahs_max: u32) -> Result<Self, FrameError> {
        let ahs = u32::from(bhs[4]) * 4;
        let data = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]);
        if ahs > ahs_max {
            return Err(FrameError::Ahs { length: ahs, max: ahs_max });
        }
        if data > data_max {
            return Err(FrameError::DataSegment { length: data, max: data_max });
        }
        Ok(Self {
            ahs_length: ahs as usize,
            data_length: data as usize,
            header_digest_length: if digests.header { DIGEST_LENGTH } else { 0 },
            data_digest_length: if digests.data && data > 0 { DIGEST_LENGTH } else { 0 },
        })
    }

    /// Where the data segment begins, in bytes from the start of the PDU.
    #[must_use]
    pub const fn data_offset(&self) -> usize {
        BHS_LENGTH + self.ahs_length + self.header_digest_length
    }

    /// Bytes of zero padding behind the data segment, 0 to 3 (11.7.5).
    #[must_use]
    pub const fn padding(&self) -> usize {
        padding(self.data_length)
    }

    /// The whole PDU with digests and padding, in bytes.
    #[must_use]
    pub const fn total_length(&self) -> usize {
        self.data_offset() + self.data_length + self.padding() + self.data_digest_length
    }
}

/// Bytes that pad `length` to a multiple of four.
#[must_use]
pub const fn padding(length: usize) -> usize {
    length.wrapping_neg() & 3
}

/// A PDU without additional header segments as it goes on the wire: header, data with its padding, and the digests. For
/// those to whom a copy is nothing; the target's own way out makes none.
#[must_use]
pub fn assemble(bhs: &Bhs, data: &[u8], digests: Digests) -> Vec<u8> {
    let mut bytes = bhs.to_vec();
    if digests.header {
        bytes.extend(crc32c(bhs));
    }
    let start = bytes.len();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len() + padding(data.len()), 0);
    if digests.data && !data.is_empty() {
        let digest = crc32c(&bytes[start..]);
        bytes.extend(digest);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bhs(ahs_words: u8, data: [u8; 3]) -> Bhs {
        let mut bhs = [0; BHS_LENGTH];
        bhs[4] = ahs_words;
        bhs[5..8].copy_from_slice(&data);
        bhs
    }

    #[test]
    fn lengths_add_up_with_digests_and_padding() {
        let both = Digests { header: true, data: true };
        let frame = Frame::of(&bhs(2, [0, 0, 5]), both, 8192, 64).unwrap();
        assert_eq!(frame.data_offset(), 48 + 8 + 4);
        assert_eq!(frame.padding(), 3);
        assert_eq!(frame.total_length(), 48 + 8 + 4 + 5 + 3 + 4);
    }

    #[test]
    fn assembled_parts_lie_where_a_receiver_works_them_out() {
        for (data, padded) in [(&b""[..], &b""[..]), (b"1234", b"1234"), (b"12345", b"12345\0\0\0")] {
            let header = bhs(0, [0, 0, data.len() as u8]);
            for (of_header, of_data) in [(false, false), (true, false), (false, true), (true, true)] {
                let digests = Digests { header: of_header, data: of_data };
                let bytes = assemble(&header, data, digests);
                let frame = Frame::of(&header, digests, 8192, 0).unwrap();
                assert_eq!(bytes.len(), frame.total_length());
                assert_eq!(bytes[..BHS_LENGTH], header);
                assert!(!of_header || bytes[BHS_LENGTH..frame.data_offset()] == crc32c(&header));
                let (segment, digest) = bytes[frame.data_offset()..].split_at(padded.len());
                assert_eq!(segment, padded);
                assert!(digest.is_empty() || digest == crc32c(padded));
            }
        }
    }

    #[test]
    fn no_data_segment_has_no_data_digest() {
        let frame = Frame::of(&bhs(0, [0; 3]), Digests { header: false, data: true }, 8192, 0).unwrap();
        assert_eq!(frame.total_length(), BHS_LENGTH);
    }

    #[test]
    fn a_length_over_its_bound_is_refused_before_it_is_used() {
        let long = bhs(0, [0xff, 0xff, 0xff]);
        assert_eq!(
            Frame::of(&long, Digests::default(), 8192, 64),
            Err(FrameError::DataSegment { length: DATA_SEGMENT_LENGTH_MAX, max: 8192 })
        );
        let ahs = bhs(0xff, [0; 3]);
        assert_eq!(
            Frame::of(&ahs, Digests::default(), 8192, 64),
            Err(FrameError::Ahs { length: 1020, max: 64 })
        );
    }
}
