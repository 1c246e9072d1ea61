//! Small reads and writes that lie beside each other become one command.
//!
//! Only what waits to be sent at the same moment is merged: nothing waits for more. Two commands are merged if both are READ or both
//! WRITE of 10 or 16 bytes without any bit set, of the same unit, and the second goes on where the first ends. It may pass others
//! that were submitted between the two only if they, too, are such reads and writes, and of other blocks where one of
//! them writes. So FUA, flushes and everything else stay where they are, and of commands that overlap each sees the other
//! as if nothing had been merged.
//!
//! No I/O and no clock.

use lunette_wire::LunField;
use lunette_wire::initiator::TaskAttribute;

use crate::{Cdb, Command, Completion, Data, Status};

/// A longer command is none that needs to be merged, in bytes.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// How many commands are looked at for one to continue.
const LOOK_BACK: usize = 64;

const READ_10: u8 = 0x28;
const WRITE_10: u8 = 0x2a;
const READ_16: u8 = 0x88;
const WRITE_16: u8 = 0x8a;

/// What may be merged on a logical unit: see [`crate::Session::merge`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merging {
    /// The length of the unit's blocks.
    pub block_length_bytes: u32,
    /// The longest command that comes of it: what the unit takes. It is never longer than the session's MaxBurstLength (RFC 7143,
    /// 13.13), too, so that a write needs no more than one sequence of data.
    pub command_bytes_max: u32,
}

/// One of the commands that became one.
#[derive(Debug)]
struct Part<T> {
    /// As it was submitted; nothing of a command alone.
    command: Option<Command>,
    owner: T,
}

impl<T> Part<T> {
    fn buffer(&self) -> &[u8] {
        match self.command.as_ref().map(|command| &command.data) {
            Some(Data::In(buffer) | Data::Out(buffer)) => buffer,
            _ => &[],
        }
    }
}

/// A command to be sent, for one or several owners.
#[derive(Debug)]
pub(crate) struct Merged<T> {
    pub(crate) command: Command,
    /// Those that became one; never none.
    parts: Owners<T>,
    place: Option<Place>,
}

/// Whom the answer is for.
#[derive(Debug)]
pub(crate) struct Owners<T>(Vec<Part<T>>);

/// What becomes of reads that were one and did not end well.
#[derive(Debug)]
pub(crate) struct Again<T> {
    /// Who is told what the unit had to tell: the first of them, as if it had come alone.
    pub(crate) told: Option<(T, Completion)>,
    /// Those that are tried again.
    pub(crate) commands: Vec<(Command, T)>,
}

/// What a command does where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    writes: bool,
    is_small: bool,
    lba: u64,
    blocks: u64,
}

impl Place {
    /// Of a plain READ or WRITE; nothing of anything else.
    fn of(command: &Command, block_bytes: u32) -> Option<Self> {
        let (data, writes) = match &command.data {
            Data::In(data) => (data, false),
            Data::Out(data) => (data, true),
            Data::None => return None,
        };
        let cdb = command.cdb.bytes();
        let (lba, blocks) = match *cdb {
            [READ_10 | WRITE_10, 0, a, b, c, d, 0, e, f, 0] => {
                (u64::from(u32::from_be_bytes([a, b, c, d])), u64::from(u16::from_be_bytes([e, f])))
            }
            [READ_16 | WRITE_16, 0, a, b, c, d, e, f, g, h, i, j, k, l, 0, 0] => {
                (u64::from_be_bytes([a, b, c, d, e, f, g, h]), u64::from(u32::from_be_bytes([i, j, k, l])))
            }
            _ => return None,
        };
        let is_write = matches!(cdb[0], WRITE_10 | WRITE_16);
        let is_whole = data.len() as u64 == blocks * u64::from(block_bytes);
        let is_plain = command.attribute == TaskAttribute::Simple && is_write == writes && is_whole;
        let is_small = blocks > 0 && data.len() <= SMALL_BYTES_MAX;
        let fits = lba.checked_add(blocks).is_some();
        (is_plain && fits).then_some(Self { writes, is_small, lba, blocks })
    }

    const fn end(self) -> u64 {
        self.lba + self.blocks
    }

    /// Their order does not matter.
    fn is_independent(self, other: Self) -> bool {
        !(self.writes || other.writes) || self.end() <= other.lba || other.end() <= self.lba
    }
}

/// The same CDB for so many blocks; nothing if it cannot tell so many.
fn with_blocks(cdb: &Cdb, blocks: u64) -> Option<Cdb> {
    let mut bytes = cdb.bytes().to_vec();
    match bytes[0] {
        READ_10 | WRITE_10 => bytes[7..9].copy_from_slice(&u16::try_from(blocks).ok()?.to_be_bytes()),
        _ => bytes[10..14].copy_from_slice(&u32::try_from(blocks).ok()?.to_be_bytes()),
    }
    Some(Cdb::new(&bytes))
}

impl<T> Merged<T> {
    fn alone(command: Command, owner: T, place: Option<Place>) -> Self {
        Self { command, parts: Owners::one(owner), place }
    }

    /// Whether a command may be sent before this one, although it was submitted later.
    fn lets_pass(&self, lun: LunField, place: Place) -> bool {
        self.command.lun != lun || self.place.is_some_and(|own| own.is_independent(place))
    }

    fn takes(&self, command: &Command, place: Place, rule: Merging) -> Option<(Place, Cdb)> {
        let own = self.place.filter(|own| own.is_small && place.is_small)?;
        let blocks = own.blocks + place.blocks;
        let is_alike = own.writes == place.writes
            && own.end() == place.lba
            && self.command.lun == command.lun
            && self.command.replay == command.replay
            && self.command.time_limit == command.time_limit;
        let is_short = blocks * u64::from(rule.block_length_bytes) <= u64::from(rule.command_bytes_max);
        let cdb = (is_alike && is_short).then(|| with_blocks(&self.command.cdb, blocks))??;
        Some((Place { blocks, ..own }, cdb))
    }

    fn add(&mut self, command: Command, owner: T, (place, cdb): (Place, Cdb)) {
        if let [first] = &mut self.parts.0[..] {
            first.command = Some(self.command.clone());
        }
        let part = Part { command: Some(command), owner };
        if let Data::In(all) | Data::Out(all) = &mut self.command.data {
            all.extend_from_slice(part.buffer());
        }
        self.parts.0.push(part);
        (self.place, self.command.cdb) = (Some(place), cdb);
    }

    /// What is sent, and whom its answer is for.
    pub(crate) fn into_parts(self) -> (Command, Owners<T>) {
        (self.command, self.parts)
    }
}

/// Merges what may be merged, by the rule of each unit; without one a unit's commands stay as they are.
pub(crate) fn merge<T>(
    commands: Vec<(Command, T)>,
    rule: impl Fn(LunField) -> Option<Merging>,
) -> Vec<Merged<T>> {
    let mut merged: Vec<Merged<T>> = Vec::with_capacity(commands.len());
    for (command, owner) in commands {
        let rule = rule(command.lun);
        let place = rule.and_then(|rule| Place::of(&command, rule.block_length_bytes));
        let mut found = None;
        if let (Some(rule), Some(place)) = (rule, place) {
            for (at, earlier) in merged.iter().enumerate().rev().take(LOOK_BACK) {
                if let Some(longer) = earlier.takes(&command, place, rule) {
                    found = Some((at, longer));
                    break;
                }
                if !earlier.lets_pass(command.lun, place) {
                    break;
                }
            }
        }
        match found {
            Some((at, longer)) => merged[at].add(command, owner, longer),
            None => merged.push(Merged::alone(command, owner, place)),
        }
    }
    merged
}

impl<T> Owners<T> {
    /// Of a command alone.
    pub(crate) fn one(owner: T) -> Self {
        Self(vec![Part { command: None, owner }])
    }

    fn is_one(&self) -> bool {
        self.0.len() == 1
    }

    /// What each of them is told: of a command that ended well its own part; of one that did not, the same as all others.
    pub(crate) fn answers(self, completion: Completion) -> Vec<(T, Completion)> {
        if self.is_one() {
            return self.0.into_iter().map(|part| part.owner).zip([completion]).collect();
        }
        let mut at = 0;
        let answers = self.0.into_iter().map(|part| {
            let length = part.buffer().len();
            let buffer = completion.buffer.get(at..at + length).unwrap_or_default().to_vec();
            let received = (completion.received as usize).clamp(at, at + length) - at;
            at += length;
            let answer = Completion {
                id: completion.id,
                result: completion.result.clone(),
                buffer,
                // No more than the buffer has, which one command can transfer.
                received: received as u32,
                times: completion.times,
                attempts: completion.attempts,
                session: completion.session,
            };
            (part.owner, answer)
        });
        answers.collect()
    }

    /// The commands that a read was made of, if it did not end well: each may do better alone. A unit attention or a deferred error is
    /// told once and then forgotten by the unit, so one of them ends with it. A write is not tried again, since something newer may have
    /// been written to the same place by now.
    ///
    /// # Errors
    /// There is nothing to be tried again: it ended well, or was a command alone, or wrote.
    pub(crate) fn again(self, completion: &Completion) -> Result<Again<T>, Self> {
        let is_good = completion.result.as_ref().is_ok_and(Status::is_good);
        let is_read =
            |part: &Part<T>| part.command.as_ref().is_some_and(|command| matches!(command.data, Data::In(_)));
        if is_good || !self.0.iter().all(is_read) {
            return Err(self);
        }
        let mut commands = self.0.into_iter().filter_map(|part| Some((part.command?, part.owner)));
        let told = attention_of(completion).and_then(|_| commands.next()).map(|(command, owner)| {
            let buffer = if let Data::In(buffer) = command.data { buffer } else { Vec::new() };
            let Completion { id, ref result, times, attempts, session, .. } = *completion;
            (owner, Completion { id, result: result.clone(), buffer, received: 0, times, attempts, session })
        });
        Ok(Again { told, commands: commands.collect() })
    }
}

/// The sense data of a unit attention or a deferred error that a command has met: it says nothing of the command.
pub(crate) fn attention_of(completion: &Completion) -> Option<&[u8]> {
    let status = completion.result.as_ref().ok().filter(|status| status.is_check_condition())?;
    let sense = status.decoded_sense();
    let is_attention = sense.is_some_and(|sense| sense.is_unit_attention() || sense.deferred);
    is_attention.then_some(&status.sense)
}

#[cfg(test)]
mod tests;
