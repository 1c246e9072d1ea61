//! WRITE USING TOKEN: writes the data that a token stands for, or zeros, to ranges of the unit (SBC-3).

use std::sync::Arc;

use super::super::extended_copy::{begin_record, forget_record};
use super::super::mover::{Ending, Failure, Moved, Mover, Place, Way};
use super::super::write_same::WriteSame;
use super::super::{Context, Progress, State, Step, good, third_party_failure};
use super::{
    BLOCK_ZERO, CHANGE_VULNERABLE, RANGE_BYTES, RANGES_MAX, TOKEN_LENGTH, list_id, parse_ranges, uptime,
};
use crate::bytes::{Cdb, be16, be32, be64, cdb32};
use crate::copy::{ListId, Outcome, Running};
use crate::io::{Direction, Io};
use crate::rod::{Blocks, Rod, TOKEN_BYTES, Token};
use crate::sense::{AdditionalSense, SenseData};
use crate::status::Status;
use crate::task::Event;
use crate::unit::LogicalUnit;

const HEADER_BYTES: usize = 536;
const TOKEN_AT: usize = 16;
/// DEL_TKN: the token is not wanted any more.
const DELETE_TOKEN: u8 = 0x02;

pub(crate) fn write_using_token(context: &Context<'_>, cdb: &Cdb) -> Progress {
    forget_record(context, list_id(cdb));
    let length_bytes = cdb32::<10>(cdb);
    let longest = HEADER_BYTES + (usize::from(RANGES_MAX) + 1) * RANGE_BYTES;
    if (length_bytes as usize) < HEADER_BYTES || length_bytes as usize > longest {
        return Err(SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR));
    }
    let list = WriteUsingToken::List { list: list_id(cdb), service_action: cdb[1] & 0x1f, length_bytes };
    Ok((State::WriteUsingToken(list), Step::DataOut(length_bytes)))
}

/// A WRITE USING TOKEN that waits for its list or for a medium.
#[derive(Debug)]
pub(crate) enum WriteUsingToken {
    List { list: ListId, service_action: u8, length_bytes: u32 },
    Moving(Box<Moving>),
    Zeroing(Box<Zeroing>),
}

impl WriteUsingToken {
    pub(crate) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        match self {
            WriteUsingToken::List { list, service_action, length_bytes } => {
                let bytes = event.data_out(length_bytes)?;
                let ranges = parse_ranges(&context.path.unit, bytes, HEADER_BYTES)?;
                let kind = be32(bytes, TOKEN_AT).unwrap_or(0);
                check_token(kind, bytes)?;
                if kind == BLOCK_ZERO {
                    let running = begin_record(context, Some(list), service_action)?;
                    return Zeroing { running, ranges, next: 0, write: None }.go_on(context);
                }
                let moving = Moving::begin(context, bytes, &ranges)?;
                let running = begin_record(context, Some(list), service_action)?;
                Moving { running: Some(running), ..moving }.go_on(context)
            }
            WriteUsingToken::Moving(moving) => moving.resume(context, event),
            WriteUsingToken::Zeroing(zeroing) => zeroing.resume(context, event),
        }
    }
}

/// What can be said of a token without looking for it.
fn check_token(kind: u32, list: &[u8]) -> Result<(), SenseData> {
    if kind != BLOCK_ZERO && kind != CHANGE_VULNERABLE {
        return Err(SenseData::illegal(AdditionalSense::UNSUPPORTED_TOKEN_TYPE));
    }
    if be16(list, TOKEN_AT + 6) != Some(TOKEN_LENGTH) {
        return Err(SenseData::illegal(AdditionalSense::INVALID_TOKEN_LENGTH));
    }
    Ok(())
}

/// The blocks of the token have changed, or would.
fn revoked() -> SenseData {
    SenseData::illegal(AdditionalSense::TOKEN_REVOKED)
}

/// Data on its way from where the token was made.
#[derive(Debug)]
pub(crate) struct Moving {
    running: Option<Running>,
    rod: Arc<Rod>,
    /// DEL_TKN
    deletes_token: bool,
    /// The last is the next.
    movers: Vec<Mover>,
    left_volatile: bool,
    /// It only flushes from now on, and ends like this.
    ending: Option<Ending>,
}

impl Moving {
    fn begin(context: &Context<'_>, list: &[u8], ranges: &[Blocks]) -> Result<Moving, SenseData> {
        let unit = &context.path.unit;
        let tokens = context.nexus.device().domain().tokens();
        let token: &Token =
            list[TOKEN_AT..].first_chunk::<TOKEN_BYTES>().ok_or(SenseData::invalid_parameter(16))?;
        let rod =
            tokens.find(token, uptime(context)).ok_or(SenseData::illegal(AdditionalSense::TOKEN_UNKNOWN))?;
        if rod.unit.block_length_bytes() != unit.block_length_bytes() {
            return Err(SenseData::illegal(AdditionalSense::INVALID_TOKEN_OPERATION));
        }
        let offset = be64(list, 8).unwrap_or(0);
        let wanted: u64 = ranges.iter().map(|range| u64::from(range.count)).sum();
        if offset.checked_add(wanted).is_none_or(|end| end > rod.blocks()) {
            return Err(SenseData::invalid_parameter(8));
        }
        let mut movers = pair(&rod, offset, context, ranges);
        if revokes_own_token(&rod, unit, &movers) {
            return Err(revoked());
        }
        movers.reverse();
        let deletes_token = list[2] & DELETE_TOKEN != 0;
        Ok(Moving { running: None, rod, deletes_token, movers, left_volatile: false, ending: None })
    }

    fn resume(mut self, context: &Context<'_>, event: Event<'_>) -> Progress {
        if let Some(ending) = self.ending.take() {
            return self.flushed(context, event, ending);
        }
        if let Event::Turn { .. } = event {
            return self.go_on(context);
        }
        let mover = self.movers.last_mut().ok_or(Failure::Destination(SenseData::internal()));
        match mover.and_then(|mover| mover.ended(event)) {
            // What it brought is what the token stands for if nothing was changed before.
            Ok(Moved::Read) if self.rod.is_revoked() => self.finish(context, Ending::Failed(revoked())),
            Ok(moved) => {
                self.rod.touch(uptime(context));
                if let Some(running) = &self.running {
                    running.moved(moved.bytes());
                }
                self.go_on(context)
            }
            Err(failure) => self.failed(context, failure),
        }
    }

    fn go_on(mut self, context: &Context<'_>) -> Progress {
        if self.running.as_ref().is_some_and(Running::is_aborted) {
            return self.finish(context, Ending::Aborted);
        }
        while let Some(mover) = self.movers.last_mut() {
            match mover.next() {
                Ok(Some(piece)) => {
                    let state = State::WriteUsingToken(WriteUsingToken::Moving(Box::new(self)));
                    return Ok((state, piece));
                }
                Ok(None) => {
                    self.left_volatile |= mover.left_volatile();
                    self.movers.pop();
                }
                Err(failure) => return self.failed(context, failure),
            }
        }
        self.finish(context, Ending::Completed)
    }

    /// The last thing: what was written in pieces becomes stable where no write cache is declared.
    fn finish(mut self, context: &Context<'_>, ending: Ending) -> Progress {
        let left_volatile = self.left_volatile || self.movers.last().is_some_and(Mover::left_volatile);
        if !left_volatile || context.unit().write_cache_enabled() {
            return self.end(context, ending);
        }
        self.ending = Some(ending);
        Ok((State::WriteUsingToken(WriteUsingToken::Moving(Box::new(self))), Step::Io(Io::Flush)))
    }

    fn flushed(self, context: &Context<'_>, event: Event<'_>, ending: Ending) -> Progress {
        let failure = event.io(Direction::Write, context.unit()).err();
        if let (Some(_), Some(running)) = (&failure, &self.running) {
            running.forget_moved();
        }
        let ending = match (ending, failure) {
            (Ending::Completed, Some(sense)) => Ending::Failed(sense),
            (ending, _) => ending,
        };
        self.end(context, ending)
    }

    fn end(self, context: &Context<'_>, ending: Ending) -> Progress {
        // The rest of what has failed may yet be wanted. Who uses the token already goes on.
        if self.deletes_token && matches!(ending, Ending::Completed) {
            context.nexus.device().domain().tokens().delete(&self.rod, uptime(context));
        }
        ending.take_effect(self.running, context.unit())
    }

    /// The host has asked this unit, and knows nothing of the other one: what happens there is not told as if it were here.
    fn failed(self, context: &Context<'_>, failure: Failure) -> Progress {
        let sense = match failure {
            Failure::Source(_) if self.rod.is_revoked() => revoked(),
            Failure::Source(_) => third_party_failure(),
            Failure::Destination(sense) => sense,
        };
        self.finish(context, Ending::Failed(sense))
    }
}

/// Which piece of the token's data goes where, from block `offset` of it on.
fn pair(rod: &Rod, offset: u64, context: &Context<'_>, ranges: &[Blocks]) -> Vec<Mover> {
    let block_length = u64::from(rod.unit.block_length_bytes());
    let mut sources = rod.ranges.iter().copied();
    let (mut source, mut skip) = (sources.next(), offset);
    let way = Way::new(context.path.clone());
    let mut movers = Vec::new();
    for range in ranges {
        let mut done = 0;
        while done < u64::from(range.count)
            && let Some(from) = source
        {
            let left = u64::from(from.count) - skip.min(from.count.into());
            if left == 0 {
                skip -= u64::from(from.count);
                source = sources.next();
                continue;
            }
            let count = left.min(u64::from(range.count) - done);
            movers.push(Mover::new(
                Place::unchecked(&rod.unit, (from.lba + skip) * block_length),
                Place::of(way.clone(), (range.lba + done) * block_length),
                count * block_length,
            ));
            done += count;
            skip += count;
        }
    }
    movers
}

/// Whether a copy would change blocks of its token before it has read all that it wants. It would end by that, with data of the token
/// written over that its host still needs.
fn revokes_own_token(rod: &Rod, destination: &Arc<LogicalUnit>, movers: &[Mover]) -> bool {
    let Some((last, before)) = movers.split_last() else { return false };
    let mut writes = before.iter().map(Mover::writes).chain([last.writes_before_last_read()]);
    Arc::ptr_eq(&rod.unit, destination) && writes.any(|blocks| !blocks.is_empty() && rod.overlaps(&blocks))
}

/// Zeros being written: the token for them has no source.
#[derive(Debug)]
pub(crate) struct Zeroing {
    running: Running,
    ranges: Vec<Blocks>,
    next: usize,
    /// The WRITE SAME that does the work on a range, or the flush behind it.
    write: Option<State>,
}

impl Zeroing {
    fn resume(mut self, context: &Context<'_>, event: Event<'_>) -> Progress {
        let Some(write) = self.write.take() else { return Err(SenseData::internal()) };
        let progress = write.resume(context, event);
        self.continue_with(context, progress)
    }

    fn go_on(mut self, context: &Context<'_>) -> Progress {
        if self.running.is_aborted() {
            return Ok((State::Finished, Step::End(Status::TaskAborted)));
        }
        let Some(&range) = self.ranges.get(self.next) else {
            self.running.end(Outcome::Completed);
            return good();
        };
        self.next += 1;
        let progress = Ok(WriteSame::zeros(context, range.lba, range.count));
        self.continue_with(context, progress)
    }

    /// A WRITE SAME of zeros does the work on a range; when it is over the next one begins.
    fn continue_with(mut self, context: &Context<'_>, progress: Progress) -> Progress {
        match progress {
            // Whatever it asks for is a part of it: behind the zeros, a flush where there is no write cache any more.
            Ok((write, step @ Step::Io(_))) => {
                self.write = Some(write);
                Ok((State::WriteUsingToken(WriteUsingToken::Zeroing(Box::new(self))), step))
            }
            Ok(_) => {
                let blocks = self.next.checked_sub(1).and_then(|last| self.ranges.get(last));
                let blocks = blocks.map_or(0, |range| u64::from(range.count));
                self.running.moved(blocks * u64::from(context.unit().block_length_bytes()));
                self.go_on(context)
            }
            Err(sense) => {
                self.running.end(Outcome::Failed(sense.encode(context.unit().mode().descriptor_sense())));
                Err(sense)
            }
        }
    }
}
