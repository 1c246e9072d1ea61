//! WRITE SAME on a unit with protection information.
//!
//! Blocks of zeros are only left to the store where they are to have no information either: where they are unmapped, or
//! come from nowhere (NDOB).

use super::{Protected, wrong_amount};
use crate::commands::{Context, Progress, State, Step, written};
use crate::io::{Direction, Io, IoError, PIECE_BYTES};
use crate::protection::{
    INFORMATION_BYTES, Information, InformationBytes, ProtectField, Protection, ProtectionType, UNCHECKED,
};
use crate::sense::SenseData;
use crate::task::Event;

/// Where the block comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commands) enum Pattern {
    DataOut(ProtectField),
    /// NDOB, or another command that wants zeros: the information is all ones.
    Zeros,
}

/// A WRITE SAME that waits for its block or for the medium.
#[derive(Debug)]
pub(crate) struct WriteSame {
    protection: Protection,
    lba: u64,
    /// What is left to write.
    blocks: u32,
    unmap: bool,
    waiting: Waiting,
}

#[derive(Debug)]
enum Waiting {
    DataOut(ProtectField),
    Zero { stable: bool },
    Piece { data: Vec<u8>, source: Source },
}

/// Where the information of the next block comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Generated,
    /// It came with the block.
    Given(Information),
    None,
}

/// Begins to write blocks that are inside the medium.
#[cold]
pub(in crate::commands) fn write_same(
    protection: Protection,
    (lba, blocks): (u64, u32),
    pattern: Pattern,
    unmap: bool,
    context: &Context<'_>,
) -> (State, Step) {
    match pattern {
        Pattern::DataOut(field) => {
            let waiting = Waiting::DataOut(field);
            let write_same = WriteSame { protection, lba, blocks, unmap, waiting };
            let length_bytes = write_same.data_out_bytes(field);
            Protected::WriteSame(write_same).goes_on(Step::DataOut(length_bytes))
        }
        Pattern::Zeros => {
            WriteSame { protection, lba, blocks, unmap, waiting: Waiting::Zero { stable: false } }
                .zero(context)
        }
    }
}

/// The length of the block of a WRITE SAME as it comes from the initiator.
pub(in crate::commands) fn block_bytes(protection: Protection, field: ProtectField) -> u32 {
    if field.is_transferred() { protection.stored_block_bytes() } else { protection.block_length_bytes }
}

impl WriteSame {
    fn data_out_bytes(&self, field: ProtectField) -> u32 {
        block_bytes(self.protection, field)
    }

    pub(super) fn resume(mut self, context: &Context<'_>, event: Event<'_>) -> Progress {
        let unit = context.unit();
        match std::mem::replace(&mut self.waiting, Waiting::Zero { stable: false }) {
            Waiting::DataOut(field) => {
                let needed = self.data_out_bytes(field);
                let block = event.data_out(needed)?;
                if block.len() as u32 != needed {
                    return Err(wrong_amount());
                }
                self.block_came(context, field, block)
            }
            Waiting::Zero { stable } => match event.io_result()? {
                Ok(_) => written(context, stable),
                Err(IoError::Unsupported) => {
                    let data = vec![0; self.protection.block_length_bytes as usize];
                    Ok(self.next_piece(data, Source::None))
                }
                Err(error) => Err(error.sense(Direction::Write, unit)),
            },
            Waiting::Piece { data, source } => {
                event.io(Direction::Write, unit)?;
                let done = self.piece_blocks();
                self.lba += u64::from(done);
                self.blocks -= done;
                if self.blocks > 0 {
                    let source = source.after(self.protection.kind, done);
                    return Ok(self.next_piece(data, source));
                }
                written(context, false)
            }
        }
    }

    /// With UNMAP, blocks that read afterwards as they were given may be unmapped: zeros, with information of all ones
    /// if any was given.
    fn block_came(self, context: &Context<'_>, field: ProtectField, block: &[u8]) -> Progress {
        let (data, information) = block
            .split_at_checked(self.protection.block_length_bytes as usize)
            .ok_or(SenseData::internal())?;
        let source = match InformationBytes::try_from(information) {
            Ok(bytes) => {
                self.protection.check(block, self.lba, field.checks())?;
                Source::Given(Information::from_bytes(bytes))
            }
            Err(_) => Source::Generated,
        };
        let is_zeros = data.iter().all(|&byte| byte == 0);
        let reads_so_when_unmapped = match source {
            Source::Given(information) => information.to_bytes() == UNCHECKED,
            Source::Generated | Source::None => true,
        };
        if self.unmap && is_zeros && reads_so_when_unmapped {
            return Ok(self.zero(context));
        }
        Ok(self.next_piece(data.to_vec(), source))
    }

    fn zero(self, context: &Context<'_>) -> (State, Step) {
        let block_length = u64::from(self.protection.block_length_bytes);
        let stable = !context.unit().write_cache_enabled();
        let io = Io::Zero {
            offset_bytes: self.lba * block_length,
            length_bytes: u64::from(self.blocks) * block_length,
            unmap: self.unmap,
            stable,
        };
        Protected::WriteSame(WriteSame { waiting: Waiting::Zero { stable }, ..self }).goes_on(Step::Io(io))
    }

    fn piece_blocks(&self) -> u32 {
        self.blocks.min(PIECE_BYTES / self.protection.block_length_bytes)
    }

    /// What is written in pieces is made stable by one flush at the end.
    fn next_piece(self, data: Vec<u8>, source: Source) -> (State, Step) {
        let blocks = self.piece_blocks();
        let mut bytes = Vec::with_capacity(blocks as usize * (data.len() + INFORMATION_BYTES));
        // The guard is the same for all.
        let generated = self.protection.generate(&data, self.lba);
        for index in 0..blocks {
            bytes.extend_from_slice(&data);
            let kind = self.protection.kind;
            bytes.extend(match source {
                Source::Generated => counted(generated, kind, index).to_bytes(),
                Source::Given(information) => counted(information, kind, index).to_bytes(),
                Source::None => UNCHECKED,
            });
        }
        let offset_bytes = self.lba * u64::from(self.protection.block_length_bytes);
        let waiting = Waiting::Piece { data, source };
        let io = Io::WriteOwned { offset_bytes, bytes, stable: false };
        Protected::WriteSame(WriteSame { waiting, ..self }).goes_on(Step::Io(io))
    }
}

impl Source {
    fn after(self, kind: ProtectionType, blocks: u32) -> Source {
        match self {
            Source::Given(information) => Source::Given(counted(information, kind, blocks)),
            other => other,
        }
    }
}

/// The information of the block `index` behind one that has `first`: reference tags of type 1 count up.
fn counted(first: Information, kind: ProtectionType, index: u32) -> Information {
    match kind {
        ProtectionType::Type1 => {
            Information { reference_tag: first.reference_tag.wrapping_add(index), ..first }
        }
        ProtectionType::Type3 => first,
    }
}
