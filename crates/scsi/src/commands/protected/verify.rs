//! VERIFY, and the verification after WRITE AND VERIFY, on a unit with protection information.

use super::{Piece, Protected, Transfer, wrong_amount};
use crate::commands::range::ByteRange;
use crate::commands::read_write::may_be_unstable;
use crate::commands::verify::{Compare, difference, miscompare_at};
use crate::commands::{Context, Progress, State, Step, good};
use crate::io::{Direction, Io};
use crate::protection::{Checks, Information, ProtectField, Protection, ProtectionType};
use crate::sense::{AdditionalSense, SenseData, SenseKey};
use crate::task::Event;

/// A verification that waits for its data, its flush, or a piece of the medium.
#[derive(Debug)]
pub(crate) struct Verify {
    transfer: Transfer,
    compare: Compare,
    waiting: Waiting,
    /// How much has been verified, in bytes of data.
    position: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    DataOut,
    Flush,
    Piece,
}

/// Begins a VERIFY. With `flush_first` what the volatile cache holds has to get to the medium before.
#[cold]
pub(in crate::commands) fn verify(
    protection: Protection,
    field: ProtectField,
    range: ByteRange,
    compare: Compare,
    flush_first: bool,
) -> Progress {
    if range.length_bytes == 0 {
        return good();
    }
    let transfer = Transfer::new(protection, field, range);
    let verify = Verify { transfer, compare, waiting: Waiting::DataOut, position: 0 };
    match verify.data_out_bytes() {
        0 => Ok(verify.data_is_there(flush_first)),
        length_bytes => Ok(Protected::Verify(verify).goes_on(Step::DataOut(length_bytes))),
    }
}

impl Verify {
    /// Reads back what a WRITE AND VERIFY has just put on the medium.
    pub(super) fn after_write(transfer: Transfer, compare: Compare) -> (State, Step) {
        Verify { transfer, compare, waiting: Waiting::Piece, position: 0 }.next_piece()
    }

    fn data_out_bytes(&self) -> u32 {
        match self.compare {
            Compare::Nothing => 0,
            Compare::Bytes => self.transfer.bytes(self.transfer.range.length_bytes),
            Compare::OneBlock => self.transfer.block_bytes(),
        }
    }

    fn data_is_there(self, flush_first: bool) -> (State, Step) {
        if flush_first {
            Protected::Verify(Verify { waiting: Waiting::Flush, ..self }).goes_on(Step::Io(Io::Flush))
        } else {
            self.next_piece()
        }
    }

    fn next_piece(self) -> (State, Step) {
        let io = self.transfer.piece(self.position).read();
        Protected::Verify(Verify { waiting: Waiting::Piece, ..self }).goes_on(Step::Io(io))
    }

    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        let Transfer { protection, field, lba, .. } = self.transfer;
        match self.waiting {
            Waiting::DataOut => {
                let needed = self.data_out_bytes();
                let data_out = event.data_out(needed)?;
                if data_out.len() as u32 != needed {
                    return Err(wrong_amount());
                }
                if field.is_transferred() {
                    // One block that stands for all of them is as it would be for the first.
                    protection.check(data_out, lba, field.checks())?;
                }
                let flush_first = may_be_unstable(context);
                Ok(self.data_is_there(flush_first))
            }
            Waiting::Flush => {
                event.io(Direction::Write, context.unit())?;
                Ok(self.next_piece())
            }
            Waiting::Piece => {
                let done = event.io(Direction::Read, context.unit())?;
                self.piece_came(context, done.data_out, done.medium)
            }
        }
    }

    fn piece_came(self, context: &Context<'_>, data_out: &[u8], medium: &[u8]) -> Progress {
        let piece = self.transfer.piece(self.position);
        let Transfer { protection, field, range, .. } = self.transfer;
        let medium = piece.of_medium(protection, medium)?;
        context.unit().check_stored(protection, medium, piece.lba, self.medium_checks(field))?;
        self.compare_piece(&piece, data_out, medium)?;
        let position = self.position + piece.length_bytes;
        if position == range.length_bytes {
            return good();
        }
        Ok(Verify { position, ..self }.next_piece())
    }

    fn medium_checks(&self, field: ProtectField) -> Checks {
        match self.compare {
            Compare::Nothing => field.checks(),
            Compare::Bytes | Compare::OneBlock => field.checks_of_compared_medium(),
        }
    }

    fn compare_piece(&self, piece: &Piece, data_out: &[u8], medium: &[u8]) -> Result<(), SenseData> {
        let block_bytes = self.transfer.block_bytes() as usize;
        let expected = match self.compare {
            Compare::Nothing => return Ok(()),
            Compare::Bytes => self.transfer.part(data_out, self.position, piece)?,
            Compare::OneBlock => data_out.get(..block_bytes).ok_or(SenseData::internal())?,
        };
        let position = match self.compare {
            Compare::OneBlock => 0,
            _ => u64::from(self.transfer.bytes(self.position)),
        };
        let expected = expected.chunks_exact(block_bytes).cycle();
        let blocks = self.transfer.protection.blocks(medium);
        let first = piece.lba - self.transfer.lba;
        for ((expected, (data, information)), index) in expected.zip(blocks).zip(first..) {
            let at = match self.compare {
                Compare::OneBlock => 0,
                _ => position + (index - first) * block_bytes as u64,
            };
            let (expected_data, expected_information) =
                expected.split_at_checked(data.len()).ok_or(SenseData::internal())?;
            if let Some(offset) = difference(expected_data, data) {
                return Err(miscompare_at(at + offset as u64));
            }
            if let Ok(bytes) = expected_information.try_into() {
                let expected = self.expected(Information::from_bytes(bytes), index);
                self.compare_information(expected, information, at + data.len() as u64)?;
            }
        }
        Ok(())
    }

    /// What the information of a block should be: one block that stands for all counts its reference tag up, as in WRITE
    /// SAME.
    fn expected(&self, given: Information, index: u64) -> Information {
        match (self.compare, self.transfer.protection.kind) {
            (Compare::OneBlock, ProtectionType::Type1) => {
                // As far as it has bits.
                let reference_tag = given.reference_tag.wrapping_add(index as u32);
                Information { reference_tag, ..given }
            }
            _ => given,
        }
    }

    fn compare_information(
        &self,
        expected: Information,
        found: Information,
        at: u64,
    ) -> Result<(), SenseData> {
        let compared = self.transfer.field.compared(self.transfer.protection.kind);
        let (code, offset) = if compared.guard && expected.guard != found.guard {
            (AdditionalSense::GUARD_CHECK_FAILED, 0)
        } else if compared.application_tag && expected.application_tag != found.application_tag {
            (AdditionalSense::APPLICATION_TAG_CHECK_FAILED, 2)
        } else if compared.reference_tag && expected.reference_tag != found.reference_tag {
            (AdditionalSense::REFERENCE_TAG_CHECK_FAILED, 4)
        } else {
            return Ok(());
        };
        Err(SenseData::new(SenseKey::Miscompare, code).with_information(Some(at + offset)))
    }
}
