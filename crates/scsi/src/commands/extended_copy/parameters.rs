//! The parameter lists of EXTENDED COPY: header, CSCD descriptors, segment descriptors (SPC-4, EXTENDED COPY).
//!
//! Only reads them: whom a descriptor means and whether a segment can be done is found when its turn comes.

use crate::bytes::{be16, be32, be64};
use crate::copy::ListId;
use crate::sense::{AdditionalSense, SenseData};

/// The most CSCD descriptors taken in one list.
pub(crate) const CSCDS_MAX: usize = 64;
/// The most segment descriptors taken in one list.
pub(crate) const SEGMENTS_MAX: usize = 256;
/// The most bytes of descriptors taken in one list.
pub(crate) const DESCRIPTORS_BYTES_MAX: usize = 16 << 10;
/// The most bytes copied by one segment: what the largest number of the largest blocks needs.
pub(crate) const SEGMENT_BYTES_MAX: u32 = 256 << 20;
/// The longest header, that of a list with a four-byte identifier.
const HEADER_BYTES_MAX: usize = 48;
/// The longest list taken.
pub(super) const LIST_BYTES_MAX: usize = HEADER_BYTES_MAX + DESCRIPTORS_BYTES_MAX;

const CSCD_BYTES: usize = 32;
/// NUL
const NULL_DEVICE: u8 = 0x20;
/// A CSCD that is named by a designation descriptor.
pub(crate) const IDENTIFICATION: u8 = 0xe4;
/// Blocks to blocks, counted in blocks.
pub(crate) const BLOCKS_TO_BLOCKS: u8 = 0x02;
/// See whether a unit is there.
pub(crate) const VERIFY: u8 = 0x07;
/// Blocks to blocks, counted in bytes.
pub(crate) const BYTES_TO_BYTES: u8 = 0x0a;
/// The number by which segments name the unit that the command was sent to.
pub(crate) const OWN_UNIT: u16 = 0xffff;

/// Which of the two headers a list has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListForm {
    /// List identifier of one byte.
    Lid1,
    /// List identifier of four bytes.
    Lid4,
}

/// A list as it was sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    /// `None`: nobody will ask about the operation.
    pub(super) list: Option<ListId>,
    pub(super) cscds: Vec<Cscd>,
    pub(super) segments: Vec<Segment>,
}

/// A unit to copy from or to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cscd {
    /// NUL: no unit at all, whatever else is in the descriptor.
    pub(super) is_null: bool,
    /// PERIPHERAL DEVICE TYPE
    pub(super) peripheral: u8,
    /// The designation descriptor, its designator filled up to twenty bytes.
    pub(super) designation: [u8; 24],
    /// What the list says a block has; 0 where it does not say.
    pub(super) block_length_bytes: u32,
}

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    /// Copy blocks.
    Copy(BlockCopy),
    /// See whether the unit `cscd` is there, and ready if that is to be tested.
    Verify { cscd: u16, test_ready: bool },
}

/// Blocks to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockCopy {
    pub(super) source: u16,
    pub(super) destination: u16,
    pub(super) amount: Amount,
    pub(super) source_lba: u64,
    pub(super) destination_lba: u64,
}

/// How much is to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Amount {
    SourceBlocks(u16),
    DestinationBlocks(u16),
    Bytes(u32),
}

impl Parameters {
    /// The identifier in the header of a list; `None` too where the header is wrong.
    pub(super) fn list(form: ListForm, list: &[u8]) -> Option<ListId> {
        Header::parse(form, list).ok()?.list
    }

    /// Reads a whole list.
    ///
    /// # Errors
    /// ILLEGAL REQUEST that says what is wrong, and points at it where it is in the list.
    pub(super) fn parse(form: ListForm, list: &[u8]) -> Result<Parameters, SenseData> {
        let header = Header::parse(form, list)?;
        let descriptors = list.get(header.length_bytes..).unwrap_or_default();
        if header.cscd_bytes + header.segment_bytes > DESCRIPTORS_BYTES_MAX
            || descriptors.len() < header.cscd_bytes + header.segment_bytes
        {
            return Err(too_short());
        }
        if header.inline_bytes > 0 {
            return Err(SenseData::illegal(AdditionalSense::INLINE_DATA_LENGTH_EXCEEDED));
        }
        let (cscds, rest) = descriptors.split_at(header.cscd_bytes);
        let cscds = parse_cscds(cscds, header.length_bytes)?;
        let at = header.length_bytes + header.cscd_bytes;
        let segments = parse_segments(&rest[..header.segment_bytes], at)?;
        Ok(Parameters { list: header.list, cscds, segments })
    }
}

fn too_short() -> SenseData {
    SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR)
}

struct Header {
    list: Option<ListId>,
    length_bytes: usize,
    cscd_bytes: usize,
    segment_bytes: usize,
    inline_bytes: usize,
}

impl Header {
    fn parse(form: ListForm, list: &[u8]) -> Result<Header, SenseData> {
        Header::read(form, list)?.ok_or(too_short())
    }

    /// `None` where the list ends inside the header.
    fn read(form: ListForm, list: &[u8]) -> Result<Option<Header>, SenseData> {
        let Some(&[first, flags]) = list.first_chunk() else { return Ok(None) };
        let identified = match flags >> 3 & 3 {
            // Results may be asked for; data is never held, so whether it would be makes no difference.
            0 | 2 => true,
            3 => false,
            _ => return Err(SenseData::invalid_parameter(1)),
        };
        let header = match form {
            ListForm::Lid1 => {
                (|| Some((16, u32::from(first), be16(list, 2)?.into(), be32(list, 8)?, be32(list, 12)?)))()
            }
            ListForm::Lid4 => {
                if first != 1 {
                    return Err(SenseData::invalid_parameter(0));
                }
                // G_SENSE asks for sense data with GOOD, which is not made here. IMMED is taken, and the status waits
                // all the same: a failure is then told in its own command.
                if list.get(15).is_some_and(|flags| flags & 0x02 != 0) {
                    return Err(SenseData::invalid_parameter(15));
                }
                (|| {
                    let lengths = (be16(list, 42)?, be16(list, 44)?, be16(list, 46)?);
                    Some((48, be32(list, 20)?, lengths.0.into(), lengths.1.into(), lengths.2.into()))
                })()
            }
        };
        Ok(header.map(|(length_bytes, list, cscd_bytes, segment_bytes, inline_bytes)| Header {
            list: identified.then_some(ListId(list)),
            length_bytes,
            cscd_bytes,
            segment_bytes: segment_bytes as usize,
            inline_bytes: inline_bytes as usize,
        }))
    }
}

/// `at` is where the descriptors begin in the list.
fn parse_cscds(bytes: &[u8], at: usize) -> Result<Vec<Cscd>, SenseData> {
    if bytes.len() > CSCDS_MAX * CSCD_BYTES {
        return Err(SenseData::illegal(AdditionalSense::TOO_MANY_TARGET_DESCRIPTORS));
    }
    let (descriptors, rest) = bytes.as_chunks::<CSCD_BYTES>();
    if !rest.is_empty() {
        return Err(SenseData::invalid_parameter(2));
    }
    let parse = |(index, descriptor): (usize, &[u8; CSCD_BYTES])| {
        if descriptor[0] != IDENTIFICATION {
            let unsupported = SenseData::illegal(AdditionalSense::UNSUPPORTED_TARGET_DESCRIPTOR);
            return Err(unsupported.pointing_at((at + index * CSCD_BYTES) as u16));
        }
        let mut designation = [0; 24];
        designation.copy_from_slice(&descriptor[4..28]);
        Ok(Cscd {
            // LU ID TYPE is not looked at in this descriptor (SPC-4).
            is_null: descriptor[1] & NULL_DEVICE != 0,
            peripheral: descriptor[1] & 0x1f,
            designation,
            block_length_bytes: u32::from_be_bytes([0, descriptor[29], descriptor[30], descriptor[31]]),
        })
    };
    descriptors.iter().enumerate().map(parse).collect()
}

fn parse_segments(bytes: &[u8], at: usize) -> Result<Vec<Segment>, SenseData> {
    let mut segments = Vec::new();
    let mut rest = bytes;
    while let Some(&kind) = rest.first() {
        if segments.len() == SEGMENTS_MAX {
            return Err(SenseData::illegal(AdditionalSense::TOO_MANY_SEGMENT_DESCRIPTORS));
        }
        // The list has less than 2^16 bytes.
        let here = (at + bytes.len() - rest.len()) as u16;
        let expected: u16 = match kind {
            BLOCKS_TO_BLOCKS => 0x18,
            BYTES_TO_BYTES => 0x1c,
            VERIFY => 0x08,
            _ => {
                let unsupported = SenseData::illegal(AdditionalSense::UNSUPPORTED_SEGMENT_DESCRIPTOR);
                return Err(unsupported.pointing_at(here));
            }
        };
        if be16(rest, 2).ok_or(too_short())? != expected {
            return Err(SenseData::invalid_parameter(here + 2));
        }
        let (descriptor, after) = rest.split_at_checked(4 + usize::from(expected)).ok_or(too_short())?;
        segments.push(parse_segment(descriptor, here)?);
        rest = after;
    }
    Ok(segments)
}

/// Reads a segment descriptor of the right length.
fn parse_segment(descriptor: &[u8], at: u16) -> Result<Segment, SenseData> {
    let field16 = |at| be16(descriptor, at).unwrap_or(0);
    let field64 = |at| be64(descriptor, at).unwrap_or(0);
    let amount = match descriptor[0] {
        VERIFY => {
            return Ok(Segment::Verify { cscd: field16(4), test_ready: descriptor[8] & 0x01 != 0 });
        }
        // DC: the number is of destination blocks.
        BLOCKS_TO_BLOCKS if descriptor[1] & 0x02 != 0 => Amount::DestinationBlocks(field16(10)),
        BLOCKS_TO_BLOCKS => Amount::SourceBlocks(field16(10)),
        _ => {
            // Byte offsets into blocks: a disk copies whole blocks.
            if let Some(offset) = [28u16, 30].into_iter().find(|&at| field16(at.into()) != 0) {
                return Err(SenseData::invalid_parameter(at + offset));
            }
            let bytes = be32(descriptor, 8).unwrap_or(0);
            if bytes > SEGMENT_BYTES_MAX {
                return Err(SenseData::invalid_parameter(at + 8));
            }
            Amount::Bytes(bytes)
        }
    };
    Ok(Segment::Copy(BlockCopy {
        source: field16(4),
        destination: field16(6),
        amount,
        source_lba: field64(12),
        destination_lba: field64(20),
    }))
}
