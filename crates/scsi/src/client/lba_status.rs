//! GET LBA STATUS: which blocks have space (SBC-3).

use super::answer::{Fields, Malformed};
use super::command::{Allocation, Command, Query};
use crate::codes::opcode;

/// 255 descriptors at first.
const ASKED_BYTES: u32 = 8 + 255 * DESCRIPTOR_BYTES as u32;
const HEADER_BYTES: usize = 8;
const DESCRIPTOR_BYTES: usize = 16;

/// What a block's space is (PROVISIONING STATUS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockStatus {
    /// It has space, or its space is not known.
    Mapped,
    /// It has none.
    Deallocated,
    /// Its space is reserved and holds nothing.
    Anchored,
    /// A value of a later standard: to be treated as mapped.
    Other(u8),
}

impl BlockStatus {
    /// It holds nothing that was written.
    pub fn holds_nothing(self) -> bool {
        matches!(self, BlockStatus::Deallocated | BlockStatus::Anchored)
    }
}

/// Blocks in a row with the same status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LbaExtent {
    /// The first.
    pub lba: u64,
    /// How many; at least 1. The last one's LBA fits 64 bits.
    pub blocks: u32,
    /// What they have.
    pub status: BlockStatus,
}

impl LbaExtent {
    /// The LBA behind the last block.
    pub fn end(&self) -> u64 {
        self.lba.saturating_add(self.blocks.into())
    }
}

/// GET LBA STATUS from `lba` on. The answer has at least one extent; they begin at `lba` and each begins where the last one
/// ends. It need not reach the end of the medium: ask again from where it ends.
pub fn get_lba_status(lba: u64) -> Query<Vec<LbaExtent>> {
    let command = Command::with_action(opcode::GET_LBA_STATUS).field(2, lba.to_be_bytes());
    Query::new(command, Allocation { at: 10, width: 4 }, ASKED_BYTES, |command, data| {
        let asked = Fields::new("the CDB", command.cdb()).be64(2, "STARTING LOGICAL BLOCK ADDRESS")?;
        decode(asked, data)
    })
}

fn decode(asked: u64, data: &[u8]) -> Result<Vec<LbaExtent>, Malformed> {
    let fields = Fields::new("GET LBA STATUS", data);
    // PARAMETER DATA LENGTH counts from byte 4. It tells of all there is: what did not fit is asked for with the next
    // command, so that a list which is cut off after a whole descriptor is as good as a whole one.
    let told = (fields.be32(0, "PARAMETER DATA LENGTH")? as usize).saturating_add(4);
    let fields = fields.part(0, told.min(data.len()), "the list")?;
    let mut extents: Vec<LbaExtent> = Vec::new();
    let mut next = asked;
    for descriptor in fields.parts(HEADER_BYTES, DESCRIPTOR_BYTES) {
        let lba = descriptor.be64(0, "LOGICAL BLOCK ADDRESS")?;
        let blocks = descriptor.be32(8, "NUMBER OF LOGICAL BLOCKS")?;
        if lba != next {
            return Err(fields.wrong("LOGICAL BLOCK ADDRESS", "the extents do not join"));
        }
        next = match lba.checked_add(blocks.into()) {
            Some(end) if blocks > 0 => end,
            _ => return Err(fields.wrong("NUMBER OF LOGICAL BLOCKS", "it is 0, or beyond any medium")),
        };
        let status = match descriptor.u8(12, "PROVISIONING STATUS")? & 0x0f {
            0 => BlockStatus::Mapped,
            1 => BlockStatus::Deallocated,
            2 => BlockStatus::Anchored,
            other => BlockStatus::Other(other),
        };
        extents.push(LbaExtent { lba, blocks, status });
    }
    if extents.is_empty() {
        return Err(fields.cut_off(HEADER_BYTES + DESCRIPTOR_BYTES, "the first LBA STATUS DESCRIPTOR"));
    }
    Ok(extents)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(extents: &[(u64, u32, u8)]) -> Vec<u8> {
        let mut data = ((extents.len() * 16 + 4) as u32).to_be_bytes().to_vec();
        data.extend([0; 4]);
        for (lba, blocks, status) in extents {
            data.extend([&lba.to_be_bytes()[..], &blocks.to_be_bytes(), &[*status, 0, 0, 0]].concat());
        }
        data
    }

    #[test]
    fn extents_are_read() {
        let data = answer(&[(8, 8, 0), (16, 1, 1), (17, u32::MAX, 2), (17 + u64::from(u32::MAX), 1, 7)]);
        let extents = get_lba_status(8).decode(&data).unwrap();
        let told: Vec<_> = extents.iter().map(|extent| (extent.end(), extent.status)).collect();
        assert_eq!(told[..2], [(16, BlockStatus::Mapped), (17, BlockStatus::Deallocated)]);
        assert_eq!(told[3].1, BlockStatus::Other(7));
        let empty: Vec<_> = extents.iter().map(|extent| extent.status.holds_nothing()).collect();
        assert_eq!(empty, [false, true, true, false]);
    }

    #[test]
    fn a_list_may_be_cut_off_between_descriptors() {
        let data = answer(&[(0, 8, 0), (8, 8, 1)]);
        assert_eq!(get_lba_status(0).decode(&data[..39]).unwrap().len(), 1);
        assert_eq!(get_lba_status(0).decode(&data[..23]).unwrap_err().needed_bytes(), Some(24));
        assert!(get_lba_status(0).decode(&answer(&[])).is_err());
        let mut short = data.clone();
        short[3] = 20;
        assert_eq!(get_lba_status(0).decode(&short).unwrap().len(), 1, "what follows is not told");
    }

    #[test]
    fn extents_that_cannot_be() {
        assert!(get_lba_status(0).decode(&answer(&[(8, 8, 0)])).is_err(), "not where it was asked");
        assert!(get_lba_status(0).decode(&answer(&[(0, 8, 0), (9, 1, 0)])).is_err());
        assert!(get_lba_status(0).decode(&answer(&[(0, 0, 0)])).is_err());
        let last = u64::MAX - 1;
        assert!(get_lba_status(last).decode(&answer(&[(last, 2, 0)])).is_err());
    }
}
