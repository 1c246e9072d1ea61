//! A command as an application client sends it: CDB, what is transferred, and how the answer is read (SPC-4, SBC-3).

use std::fmt;

use super::answer::Malformed;
use crate::codes::opcode;

/// What a command transfers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Nothing.
    None,
    /// Data-In: at most this many bytes.
    In {
        /// In bytes.
        length_bytes: u32,
    },
    /// Data-Out that the caller brings: exactly this many bytes.
    Out {
        /// In bytes.
        length_bytes: u32,
    },
    /// Data-Out that belongs to the command: its parameter list.
    List(Vec<u8>),
}

/// A command descriptor block with what it transfers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    block: [u8; 16],
    block_bytes: u8,
    transfer: Transfer,
}

impl Command {
    /// A CDB of zeros but for the operation code, whose group code tells the length (SPC-4, operation code).
    pub(super) const fn new(opcode: u8) -> Command {
        let block_bytes = match opcode >> 5 {
            0 => 6,
            1 | 2 => 10,
            5 => 12,
            _ => 16,
        };
        let mut block = [0; 16];
        block[0] = opcode;
        Command { block, block_bytes, transfer: Transfer::None }
    }

    /// The same with a service action in the second byte.
    pub(super) const fn with_action((opcode, action): (u8, u8)) -> Command {
        let mut command = Command::new(opcode);
        command.block[1] = action;
        command
    }

    /// Sets the bits of `value` in byte `at`.
    pub(super) const fn bits(mut self, at: usize, value: u8) -> Command {
        self.block[at] |= value;
        self
    }

    /// Sets `mask` in byte `at` if `condition` holds.
    pub(super) const fn flag(self, at: usize, mask: u8, condition: bool) -> Command {
        if condition { self.bits(at, mask) } else { self }
    }

    /// Writes a field.
    pub(super) fn field<const N: usize>(mut self, at: usize, value: [u8; N]) -> Command {
        self.block[at..at + N].copy_from_slice(&value);
        self
    }

    pub(super) fn transferring(mut self, transfer: Transfer) -> Command {
        self.transfer = transfer;
        self
    }

    /// With Data-In of at most `length_bytes`.
    pub(super) fn reading(self, length_bytes: u32) -> Command {
        self.transferring(if length_bytes == 0 { Transfer::None } else { Transfer::In { length_bytes } })
    }

    /// With Data-Out of the caller's.
    pub(super) fn writing(self, length_bytes: u32) -> Command {
        self.transferring(if length_bytes == 0 { Transfer::None } else { Transfer::Out { length_bytes } })
    }

    /// The command descriptor block: 6, 10, 12 or 16 bytes.
    pub fn cdb(&self) -> &[u8] {
        &self.block[..usize::from(self.block_bytes)]
    }

    /// The same, filled with zeros: as iSCSI sends it.
    pub fn padded_cdb(&self) -> [u8; 16] {
        self.block
    }

    /// Whether twice is as good as once, where nobody else changes its blocks meanwhile: it reads them, or says what they are to be.
    pub fn is_idempotent(&self) -> bool {
        matches!(
            self.block[0],
            opcode::READ_10
                | opcode::READ_16
                | opcode::WRITE_10
                | opcode::WRITE_16
                | opcode::WRITE_SAME_10
                | opcode::WRITE_SAME_16
                | opcode::UNMAP
                | opcode::VERIFY_10
                | opcode::VERIFY_16
        )
    }

    /// What it transfers.
    pub fn transfer(&self) -> &Transfer {
        &self.transfer
    }

    /// The most that is read, in bytes.
    pub fn data_in_bytes(&self) -> u32 {
        match self.transfer {
            Transfer::In { length_bytes } => length_bytes,
            _ => 0,
        }
    }

    /// How much is written, in bytes.
    pub fn data_out_bytes(&self) -> u32 {
        match &self.transfer {
            Transfer::Out { length_bytes } => *length_bytes,
            // Parameter lists are made here, none longer than 64 KiB.
            Transfer::List(list) => list.len() as u32,
            Transfer::None | Transfer::In { .. } => 0,
        }
    }

    /// True for SYNCHRONIZE CACHE.
    pub fn is_flush(&self) -> bool {
        let flushes = [opcode::SYNCHRONIZE_CACHE_10, opcode::SYNCHRONIZE_CACHE_16];
        self.cdb().first().is_some_and(|code| flushes.contains(code))
    }

    /// The name of the command in the standards.
    pub fn name(&self) -> &'static str {
        crate::command_name(self.cdb()).unwrap_or("command")
    }
}

/// Where a CDB tells its ALLOCATION LENGTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allocation {
    pub(super) at: usize,
    /// The width of the field in bytes: 1, 2 or 4.
    pub(super) width: usize,
}

impl Allocation {
    /// The longest that the field can tell, and that is asked for.
    fn bytes_max(self) -> u32 {
        match self.width {
            1 => 0xff,
            2 => 0xffff,
            _ => ANSWER_BYTES_MAX,
        }
    }
}

/// The longest answer that is asked for, whatever the target says it has: 131,071 LUNs, or 43,690 registrants of
/// twenty-four bytes. It bounds what a target can make its initiator hold.
pub const ANSWER_BYTES_MAX: u32 = 1 << 20;

/// A command whose answer is a `T`.
#[derive(Clone)]
pub struct Query<T> {
    command: Command,
    allocation: Option<Allocation>,
    decode: fn(&Command, &[u8]) -> Result<T, Malformed>,
}

impl<T> Query<T> {
    /// A command without an allocation length, whose answer has `length_bytes`.
    pub(super) fn fixed(
        command: Command,
        length_bytes: u32,
        decode: fn(&Command, &[u8]) -> Result<T, Malformed>,
    ) -> Query<T> {
        Query { command: command.reading(length_bytes), allocation: None, decode }
    }

    /// A command with an allocation length, at first `length_bytes`.
    pub(super) fn new(
        command: Command,
        allocation: Allocation,
        length_bytes: u32,
        decode: fn(&Command, &[u8]) -> Result<T, Malformed>,
    ) -> Query<T> {
        Query { command, allocation: Some(allocation), decode }.asking_for(length_bytes)
    }

    /// The command to send.
    pub fn command(&self) -> &Command {
        &self.command
    }

    /// Reads what came. `data` is what was received, without what the target did not send.
    ///
    /// # Errors
    /// [`Malformed`] says what is missing or wrong. See [`Query::longer`] for the former.
    pub fn decode(&self, data: &[u8]) -> Result<T, Malformed> {
        (self.decode)(&self.command, data)
    }

    /// The same with another allocation length, in bytes; cut to what the field can tell and to [`ANSWER_BYTES_MAX`].
    /// A command without the field stays as it is.
    #[must_use]
    pub fn asking_for(mut self, length_bytes: u32) -> Query<T> {
        if let Some(allocation) = self.allocation {
            let length_bytes = length_bytes.min(allocation.bytes_max());
            let field = length_bytes.to_be_bytes();
            let place = allocation.at..allocation.at + allocation.width;
            self.command.block[place].copy_from_slice(&field[field.len() - allocation.width..]);
            self.command = self.command.reading(length_bytes);
        }
        self
    }

    /// What to ask instead when the answer was cut off because it was longer than what was asked for; `None` where
    /// asking for more would not help.
    #[must_use]
    pub fn longer(&self, malformed: &Malformed) -> Option<Query<T>> {
        let needed = u32::try_from(malformed.needed_bytes()?).ok()?;
        let asked = self.command.data_in_bytes();
        let longer = Query { command: self.command.clone(), ..*self }.asking_for(needed);
        (needed > asked && longer.command.data_in_bytes() >= needed).then_some(longer)
    }
}

impl<T> fmt::Debug for Query<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Query").field(&self.command).finish()
    }
}

/// A number does not fit the field of the CDB form that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoesNotFit {
    /// The field.
    pub field: &'static str,
}

impl fmt::Display for DoesNotFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the value does not fit {} of the command", self.field)
    }
}

impl std::error::Error for DoesNotFit {}

#[cfg(test)]
mod tests {
    use super::super::answer::Fields;
    use super::*;

    fn query(width: usize) -> Query<u8> {
        let decode = |_: &Command, data: &[u8]| Fields::new("TEST", data).u8(100, "FIELD");
        Query::new(Command::new(0xa0), Allocation { at: 6, width }, 8, decode)
    }

    #[test]
    fn allocation_lengths_are_written_where_they_belong() {
        assert_eq!(query(4).command().cdb(), [0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0]);
        assert_eq!(query(4).asking_for(0x1234).command().cdb()[6..10], [0, 0, 0x12, 0x34]);
        assert_eq!(query(2).asking_for(70_000).command().data_in_bytes(), 0xffff);
        assert_eq!(query(4).asking_for(u32::MAX).command().data_in_bytes(), ANSWER_BYTES_MAX);
        assert_eq!(query(1).asking_for(u32::MAX).command().cdb()[6], 0xff);
    }

    #[test]
    fn what_was_cut_off_is_asked_for_again() {
        let error = query(4).decode(&[0; 8]).unwrap_err();
        assert_eq!(query(4).longer(&error).unwrap().command().data_in_bytes(), 101);
        assert!(query(4).asking_for(101).longer(&error).is_none(), "the target sent less than it said");
        let error = Malformed { fault: super::super::Fault::Wrong("x"), ..error };
        assert!(query(4).longer(&error).is_none());
    }

    #[test]
    fn a_length_that_the_field_cannot_tell_is_not_asked_for() {
        let error = Fields::new("TEST", &[]).u8(255, "FIELD").unwrap_err();
        assert!(query(1).longer(&error).is_none());
        assert!(query(2).longer(&error).is_some());
    }
}
