//! Commands that read and write logical blocks (SBC-3).

use super::command::{Command, DoesNotFit, Transfer};
use crate::codes::opcode;

/// Which form of CDB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CdbForm {
    /// Ten bytes: 32-bit LBA, at most 65,535 blocks. Every disk knows it.
    Ten,
    /// Sixteen bytes: 64-bit LBA, 32-bit number of blocks.
    Sixteen,
}

/// Logical blocks in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// The first.
    pub lba: u64,
    /// How many. What 0 means is the command's.
    pub blocks: u32,
    /// Bytes that each transfers.
    pub block_length_bytes: u32,
}

impl BlockRange {
    /// The shortest form of CDB that can tell it.
    pub fn form(&self) -> CdbForm {
        if u32::try_from(self.lba).is_ok() && u16::try_from(self.blocks).is_ok() {
            CdbForm::Ten
        } else {
            CdbForm::Sixteen
        }
    }

    /// What it transfers, in bytes.
    ///
    /// # Errors
    /// It is more than 4 GiB, which no transport could tell.
    pub fn length_bytes(&self) -> Result<u32, DoesNotFit> {
        self.blocks.checked_mul(self.block_length_bytes).ok_or(DoesNotFit { field: "TRANSFER LENGTH" })
    }

    /// A CDB of this form with LBA and length.
    fn cdb(&self, form: CdbForm, ten: u8, sixteen: u8) -> Result<Command, DoesNotFit> {
        match form {
            CdbForm::Ten => {
                let lba =
                    u32::try_from(self.lba).map_err(|_| DoesNotFit { field: "LOGICAL BLOCK ADDRESS" })?;
                let blocks =
                    u16::try_from(self.blocks).map_err(|_| DoesNotFit { field: "TRANSFER LENGTH" })?;
                Ok(Command::new(ten).field(2, lba.to_be_bytes()).field(7, blocks.to_be_bytes()))
            }
            CdbForm::Sixteen => Ok(Command::new(sixteen)
                .field(2, self.lba.to_be_bytes())
                .field(10, self.blocks.to_be_bytes())),
        }
    }
}

/// What the target's cache has to do with a read or a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caching {
    /// DPO: the blocks will not be wanted again soon.
    pub disable_page_out: bool,
    /// FUA: from the medium, or stable on it before the status comes.
    pub force_unit_access: bool,
}

impl Caching {
    fn put(self, command: Command) -> Command {
        command.flag(1, DPO, self.disable_page_out).flag(1, FUA, self.force_unit_access)
    }
}

const DPO: u8 = 0x10;
const FUA: u8 = 0x08;
/// BYTCHK: how VERIFY and WRITE AND VERIFY compare.
const BYTE_CHECK_DATA: u8 = 0x02;
const BYTE_CHECK_ONE_BLOCK: u8 = 0x06;
const IMMEDIATE: u8 = 0x02;
const ANCHOR: u8 = 0x10;
const UNMAP: u8 = 0x08;
const NO_DATA_OUT_BUFFER: u8 = 0x01;

/// READ.
///
/// # Errors
/// The range does not fit the form.
pub fn read(form: CdbForm, range: BlockRange, caching: Caching) -> Result<Command, DoesNotFit> {
    let length_bytes = range.length_bytes()?;
    let command = range.cdb(form, opcode::READ_10, opcode::READ_16)?;
    Ok(caching.put(command).reading(length_bytes))
}

/// WRITE.
///
/// # Errors
/// The range does not fit the form.
pub fn write(form: CdbForm, range: BlockRange, caching: Caching) -> Result<Command, DoesNotFit> {
    let length_bytes = range.length_bytes()?;
    let command = range.cdb(form, opcode::WRITE_10, opcode::WRITE_16)?;
    Ok(caching.put(command).writing(length_bytes))
}

/// WRITE AND VERIFY; with `compare` the medium is compared with the data afterwards, else only read.
///
/// # Errors
/// The range does not fit the form.
pub fn write_and_verify(form: CdbForm, range: BlockRange, compare: bool) -> Result<Command, DoesNotFit> {
    let length_bytes = range.length_bytes()?;
    let command = range.cdb(form, opcode::WRITE_AND_VERIFY_10, opcode::WRITE_AND_VERIFY_16)?;
    Ok(command.flag(1, BYTE_CHECK_DATA, compare).writing(length_bytes))
}

/// What VERIFY compares the medium with (BYTCHK).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Nothing: the medium is read, and that has to work.
    Nothing,
    /// Data-Out, block by block.
    Data,
    /// One block of Data-Out, with each block of the range.
    OneBlock,
}

/// VERIFY.
///
/// # Errors
/// The range does not fit the form.
pub fn verify(form: CdbForm, range: BlockRange, comparison: Comparison) -> Result<Command, DoesNotFit> {
    let command = range.cdb(form, opcode::VERIFY_10, opcode::VERIFY_16)?;
    Ok(match comparison {
        Comparison::Nothing => command,
        Comparison::Data => command.bits(1, BYTE_CHECK_DATA).writing(range.length_bytes()?),
        Comparison::OneBlock if range.blocks == 0 => command.bits(1, BYTE_CHECK_ONE_BLOCK),
        Comparison::OneBlock => command.bits(1, BYTE_CHECK_ONE_BLOCK).writing(range.block_length_bytes),
    })
}

/// What WRITE SAME writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameBlock {
    /// One block of Data-Out, again and again.
    Data,
    /// As above; where that can be, as with zeros, the target gives the space back instead (UNMAP).
    DataOrUnmap,
    /// As above, keeping the space reserved (ANCHOR).
    DataOrAnchor,
    /// Zeros without Data-Out (NDOB), giving the space back. Only in the sixteen-byte form.
    ZerosUnmapped,
    /// Zeros without Data-Out (NDOB).
    Zeros,
}

/// WRITE SAME. A range of 0 blocks goes to the end of the medium, where the target allows it.
///
/// # Errors
/// The range, or zeros without Data-Out, do not fit the form.
pub fn write_same(form: CdbForm, range: BlockRange, same: SameBlock) -> Result<Command, DoesNotFit> {
    let command = range.cdb(form, opcode::WRITE_SAME_10, opcode::WRITE_SAME_16)?;
    let no_data_out = matches!(same, SameBlock::Zeros | SameBlock::ZerosUnmapped);
    if no_data_out && form == CdbForm::Ten {
        return Err(DoesNotFit { field: "NDOB" });
    }
    let command = match same {
        SameBlock::Data => command,
        SameBlock::DataOrUnmap => command.bits(1, UNMAP),
        SameBlock::DataOrAnchor => command.bits(1, UNMAP | ANCHOR),
        SameBlock::ZerosUnmapped => command.bits(1, UNMAP | NO_DATA_OUT_BUFFER),
        SameBlock::Zeros => command.bits(1, NO_DATA_OUT_BUFFER),
    };
    Ok(if no_data_out { command } else { command.writing(range.block_length_bytes) })
}

/// COMPARE AND WRITE: Data-Out is what has to be there, then what is written.
///
/// # Errors
/// There are more than 255 blocks.
pub fn compare_and_write(range: BlockRange, caching: Caching) -> Result<Command, DoesNotFit> {
    let field = "NUMBER OF LOGICAL BLOCKS";
    let blocks = u8::try_from(range.blocks).map_err(|_| DoesNotFit { field })?;
    let length_bytes = range.length_bytes()?.checked_mul(2).ok_or(DoesNotFit { field })?;
    let command = Command::new(opcode::COMPARE_AND_WRITE).field(2, range.lba.to_be_bytes()).bits(13, blocks);
    Ok(caching.put(command).writing(length_bytes))
}

/// SYNCHRONIZE CACHE: what was written is stable when the status comes. 0 blocks go to the end of the medium.
///
/// # Errors
/// The range does not fit the form.
pub fn synchronize_cache(form: CdbForm, range: BlockRange) -> Result<Command, DoesNotFit> {
    range.cdb(form, opcode::SYNCHRONIZE_CACHE_10, opcode::SYNCHRONIZE_CACHE_16)
}

/// PRE-FETCH; with `immediate` the status comes before the blocks are in the cache.
///
/// # Errors
/// The range does not fit the form.
pub fn pre_fetch(form: CdbForm, range: BlockRange, immediate: bool) -> Result<Command, DoesNotFit> {
    Ok(range.cdb(form, opcode::PRE_FETCH_10, opcode::PRE_FETCH_16)?.flag(1, IMMEDIATE, immediate))
}

/// How many ranges the parameter list of one UNMAP can tell.
pub const UNMAP_RANGES_MAX: usize = (u16::MAX as usize - UNMAP_HEADER_BYTES) / UNMAP_DESCRIPTOR_BYTES;
const UNMAP_HEADER_BYTES: usize = 8;
const UNMAP_DESCRIPTOR_BYTES: usize = 16;

/// UNMAP of ranges, each an LBA and a number of blocks; with `anchor` their space stays reserved.
///
/// # Errors
/// There are more than [`UNMAP_RANGES_MAX`].
pub fn unmap(ranges: &[(u64, u32)], anchor: bool) -> Result<Command, DoesNotFit> {
    if ranges.len() > UNMAP_RANGES_MAX {
        return Err(DoesNotFit { field: "PARAMETER LIST LENGTH" });
    }
    let descriptors = (ranges.len() * UNMAP_DESCRIPTOR_BYTES) as u16;
    let mut list = [&(descriptors + 6).to_be_bytes()[..], &descriptors.to_be_bytes(), &[0; 4]].concat();
    for (lba, blocks) in ranges {
        list.extend(lba.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
    }
    let length = (list.len() as u16).to_be_bytes();
    Ok(Command::new(opcode::UNMAP).flag(1, 0x01, anchor).field(7, length).transferring(Transfer::List(list)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(lba: u64, blocks: u32) -> BlockRange {
        BlockRange { lba, blocks, block_length_bytes: 512 }
    }

    #[test]
    fn forms() {
        assert_eq!(range(0xffff_ffff, 0xffff).form(), CdbForm::Ten);
        assert_eq!(range(0x1_0000_0000, 1).form(), CdbForm::Sixteen);
        assert_eq!(range(0, 0x1_0000).form(), CdbForm::Sixteen);
        let fua = Caching { force_unit_access: true, disable_page_out: true };
        let ten = read(CdbForm::Ten, range(0x0102_0304, 0x0506), fua).unwrap();
        assert_eq!(ten.cdb(), [0x28, 0x18, 1, 2, 3, 4, 0, 5, 6, 0]);
        assert_eq!(ten.transfer(), &Transfer::In { length_bytes: 0x0506 * 512 });
        let sixteen = write(CdbForm::Sixteen, range(1 << 40, 2), Caching::default()).unwrap();
        assert_eq!(sixteen.cdb(), [0x8a, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0]);
        assert_eq!(sixteen.data_out_bytes(), 1024);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let field = |result: Result<Command, DoesNotFit>| result.unwrap_err().field;
        let caching = Caching::default();
        assert_eq!(field(read(CdbForm::Ten, range(1 << 32, 1), caching)), "LOGICAL BLOCK ADDRESS");
        assert_eq!(field(write(CdbForm::Ten, range(0, 1 << 16), caching)), "TRANSFER LENGTH");
        assert_eq!(field(read(CdbForm::Sixteen, range(0, 1 << 23), caching)), "TRANSFER LENGTH");
        assert_eq!(field(compare_and_write(range(0, 256), caching)), "NUMBER OF LOGICAL BLOCKS");
        assert_eq!(field(write_same(CdbForm::Ten, range(0, 1), SameBlock::Zeros)), "NDOB");
        assert_eq!(field(unmap(&[(0, 1); UNMAP_RANGES_MAX + 1], false)), "PARAMETER LIST LENGTH");
        assert!(unmap(&[(0, 1); UNMAP_RANGES_MAX], false).is_ok());
        assert!(
            verify(CdbForm::Sixteen, range(0, u32::MAX), Comparison::Nothing).is_ok(),
            "no data, no limit"
        );
    }

    #[test]
    fn what_is_sent_along() {
        let out = |command: Result<Command, DoesNotFit>| command.unwrap().data_out_bytes();
        let form = CdbForm::Sixteen;
        assert_eq!(out(verify(form, range(0, 3), Comparison::Data)), 1536);
        assert_eq!(out(verify(form, range(0, 3), Comparison::OneBlock)), 512);
        assert_eq!(out(verify(form, range(0, 3), Comparison::Nothing)), 0);
        assert_eq!(out(write_same(form, range(0, 3), SameBlock::DataOrUnmap)), 512);
        assert_eq!(out(write_same(form, range(0, 3), SameBlock::ZerosUnmapped)), 0);
        assert_eq!(out(compare_and_write(range(0, 3), Caching::default())), 3072);
        assert_eq!(out(write_and_verify(form, range(0, 3), true)), 1536);
    }

    #[test]
    fn unmap_lists() {
        let command = unmap(&[(8, 9)], false).unwrap();
        assert_eq!(command.cdb(), [0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0]);
        let list = [0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 0];
        assert_eq!(command.transfer(), &Transfer::List(list.to_vec()));
    }
}
