//! EXTENDED COPY with list identifiers of one and of four bytes, and COPY OPERATION ABORT (SPC-4).
//!
//! The copy manager is the device server of the unit that the command is sent to. It reaches what the initiator
//! itself reaches, so that nobody can copy what it could not read.

pub(crate) mod parameters;

use std::sync::Arc;

use super::mover::{Ending, Failure, Mover, Place, Way};
use super::{Context, Progress, State, Step, good, vpd};
use crate::bytes::{Cdb, cdb32};
use crate::copy::{CopyRecords, ListId, Refusal, Running};
use crate::io::{Direction, Io};
use crate::sense::{AdditionalSense, SenseData};
use crate::task::Event;
use crate::unit::LogicalUnit;
use parameters::{Amount, BlockCopy, Cscd, LIST_BYTES_MAX, ListForm, OWN_UNIT, Parameters, Segment};

pub(super) fn extended_copy_lid1(_: &Context<'_>, cdb: &Cdb) -> Progress {
    extended_copy(cdb, ListForm::Lid1)
}

pub(super) fn extended_copy_lid4(_: &Context<'_>, cdb: &Cdb) -> Progress {
    extended_copy(cdb, ListForm::Lid4)
}

fn extended_copy(cdb: &Cdb, form: ListForm) -> Progress {
    let length_bytes = cdb32::<10>(cdb);
    if length_bytes == 0 {
        return good();
    }
    if length_bytes as usize > LIST_BYTES_MAX {
        return Err(SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR));
    }
    let copy = ExtendedCopy::List { form, length_bytes, service_action: cdb[1] & 0x1f };
    Ok((State::ExtendedCopy(copy), Step::DataOut(length_bytes)))
}

/// Asks an operation of this nexus to end; it does at its next piece.
pub(super) fn copy_operation_abort(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let record = context.itl().copies().find(ListId(cdb32::<2>(cdb)));
    record.ok_or(SenseData::invalid_cdb_field(2, 7))?.abort();
    good()
}

/// A command has come with this list identifier. What an older one under it has come to is not told any more, whatever becomes of
/// the new one (SPC-4): it would be taken for the end of that.
pub(super) fn forget_record(context: &Context<'_>, list: ListId) {
    context.itl().copies().forget(list);
}

/// Begins the record of an operation that has a list identifier, or not.
pub(super) fn begin_record(
    context: &Context<'_>,
    list: Option<ListId>,
    service_action: u8,
) -> Result<Running, SenseData> {
    let Some(list) = list else { return Ok(CopyRecords::begin_unlisted(service_action)) };
    let kept = context.nexus.device().domain().copy_records();
    context.itl().copies().begin(list, service_action, kept).map_err(|refusal| {
        SenseData::illegal(match refusal {
            Refusal::InProgress => AdditionalSense::OPERATION_IN_PROGRESS,
            Refusal::TooMany => AdditionalSense::INSUFFICIENT_RESOURCES,
        })
    })
}

/// An EXTENDED COPY that waits for its list or for a medium.
#[derive(Debug)]
pub(crate) enum ExtendedCopy {
    List { form: ListForm, length_bytes: u32, service_action: u8 },
    Copying(Box<Copying>),
}

impl ExtendedCopy {
    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        match self {
            ExtendedCopy::List { form, length_bytes, service_action } => {
                let list = event.data_out(length_bytes)?;
                if let Some(list) = Parameters::list(form, list) {
                    forget_record(context, list);
                }
                let Parameters { list, cscds, segments } = Parameters::parse(form, list)?;
                let copying = Copying {
                    running: begin_record(context, list, service_action)?,
                    cscds: Reached::find(context, cscds),
                    own: Way::new(context.path.clone()),
                    segments,
                    segment: 0,
                    mover: None,
                    unflushed: Vec::new(),
                    ending: None,
                };
                copying.go_on(context)
            }
            ExtendedCopy::Copying(copying) => copying.resume(context, event),
        }
    }
}

/// A CSCD descriptor and the way to the unit that it names.
#[derive(Debug)]
struct Reached {
    cscd: Cscd,
    way: Option<Way>,
}

impl Reached {
    /// All when the copy begins: what resets a unit later ends what it has to do there.
    fn find(context: &Context<'_>, cscds: Vec<Cscd>) -> Vec<Reached> {
        let name = |cscd: &Cscd| if cscd.is_null { None } else { vpd::unit_name(&cscd.designation) };
        let ways = context.nexus.reach(cscds.iter().map(name));
        cscds.into_iter().zip(ways).map(|(cscd, way)| Reached { cscd, way: way.map(Way::new) }).collect()
    }
}

/// The segments of a list being done in their order.
#[derive(Debug)]
pub(crate) struct Copying {
    running: Running,
    cscds: Vec<Reached>,
    /// The way to the unit that the command was sent to.
    own: Way,
    segments: Vec<Segment>,
    /// The place of the segment that is being done.
    segment: usize,
    mover: Option<Mover>,
    /// Units that were written in several pieces.
    unflushed: Vec<Arc<LogicalUnit>>,
    /// It only flushes from now on, and ends like this.
    ending: Option<Ending>,
}

impl Copying {
    fn resume(mut self, context: &Context<'_>, event: Event<'_>) -> Progress {
        if let Some(ending) = self.ending.take() {
            return self.flushed(context, event, ending);
        }
        if let Event::Turn { .. } = event {
            return self.go_on(context);
        }
        let mover = self.mover.as_mut().ok_or(Failure::Destination(SenseData::internal()));
        let ended = mover.and_then(|mover| mover.ended(event));
        match ended {
            Ok(moved) => {
                self.running.moved(moved.bytes());
                self.go_on(context)
            }
            Err(failure) => self.third_party_failed(context, failure.sense()),
        }
    }

    fn go_on(mut self, context: &Context<'_>) -> Progress {
        loop {
            if self.running.is_aborted() {
                return self.finish(context, Ending::Aborted);
            }
            if let Some(mover) = &mut self.mover {
                match mover.next() {
                    Ok(Some(piece)) => return Ok(self.wait_for(piece)),
                    Ok(None) => self.segment_done(),
                    Err(failure) => return self.third_party_failed(context, failure.sense()),
                }
            }
            let Some(&segment) = self.segments.get(self.segment) else {
                return self.finish(context, Ending::Completed);
            };
            match self.begin(segment) {
                Ok(Some(mover)) => self.mover = Some(mover),
                Ok(None) => self.segment_done(),
                Err(sense) => return self.finish(context, Ending::Failed(sense)),
            }
        }
    }

    fn wait_for(self, piece: Step) -> (State, Step) {
        (State::ExtendedCopy(ExtendedCopy::Copying(Box::new(self))), piece)
    }

    fn segment_done(&mut self) {
        self.leave_mover();
        self.running.segment_done();
        self.segment += 1;
    }

    fn leave_mover(&mut self) {
        if let Some(mover) = self.mover.take().filter(Mover::left_volatile)
            && !self.unflushed.iter().any(|unit| Arc::ptr_eq(unit, mover.destination()))
        {
            self.unflushed.push(Arc::clone(mover.destination()));
        }
    }

    /// The last thing: what was written in pieces becomes stable where no write cache is declared.
    fn finish(mut self, context: &Context<'_>, ending: Ending) -> Progress {
        self.leave_mover();
        self.unflushed.retain(|unit| !unit.write_cache_enabled());
        match self.unflushed.last().map(Arc::clone) {
            // It changes nothing that others could see.
            Some(unit) => {
                self.ending = Some(ending);
                Ok(self.wait_for(Step::IoOn { unit, path: None, io: Io::Flush }))
            }
            None => ending.take_effect(Some(self.running), context.unit()),
        }
    }

    fn flushed(mut self, context: &Context<'_>, event: Event<'_>, ending: Ending) -> Progress {
        if let Event::Turn { .. } = event {
            return self.finish(context, ending);
        }
        let flushed = self.unflushed.pop().map_or(Ok(()), |unit| event.io(Direction::Write, &unit).map(drop));
        let Err(sense) = flushed else { return self.finish(context, ending) };
        self.running.forget_moved();
        if let Ending::Aborted = ending {
            return self.finish(context, ending);
        }
        // Nobody may go on behind the segment that is named, whatever else has failed: none counts as done.
        self.segment = 0;
        self.third_party_failed(context, &sense)
    }

    /// A unit failed while it was read or written: COPY ABORTED says where (SPC-4).
    fn third_party_failed(self, context: &Context<'_>, sense: &SenseData) -> Progress {
        let number = self.segment as u16;
        let failure = SenseData::copy_aborted(AdditionalSense::THIRD_PARTY_DEVICE_FAILURE, number);
        self.finish(context, Ending::Failed(failure.with_information(sense.information)))
    }

    /// Looks at a segment. `None`: there is nothing to move.
    fn begin(&self, segment: Segment) -> Result<Option<Mover>, SenseData> {
        match segment {
            Segment::Copy(copy) => self.begin_copy(&copy),
            Segment::Verify { cscd, test_ready } => {
                let way = self.way(cscd, 4)?;
                match way.refuses(false).filter(|_| test_ready) {
                    Some(_) => Err(self.aborted(AdditionalSense::THIRD_PARTY_DEVICE_FAILURE)),
                    None => Ok(None),
                }
            }
        }
    }

    fn begin_copy(&self, copy: &BlockCopy) -> Result<Option<Mover>, SenseData> {
        let source = self.way(copy.source, 4)?;
        let destination = self.way(copy.destination, 6)?;
        let source_block = u64::from(source.path.unit.block_length_bytes());
        let destination_block = u64::from(destination.path.unit.block_length_bytes());
        let length_bytes = match copy.amount {
            Amount::SourceBlocks(blocks) => u64::from(blocks) * source_block,
            Amount::DestinationBlocks(blocks) => u64::from(blocks) * destination_block,
            Amount::Bytes(bytes) => bytes.into(),
        };
        // What is left of a block is neither padded nor carried to the next segment.
        if !length_bytes.is_multiple_of(source_block) || !length_bytes.is_multiple_of(destination_block) {
            return Err(self.aborted(AdditionalSense::UNEXPECTED_INEXACT_SEGMENT));
        }
        let place = |way: &Way, lba: u64, field: u16| {
            let unit = &way.path.unit;
            let block_length = u64::from(unit.block_length_bytes());
            match lba.checked_add(length_bytes / block_length) {
                Some(end) if end <= unit.blocks() => Ok(Place::of(way.clone(), lba * block_length)),
                _ => Err(self
                    .aborted(AdditionalSense::COPY_TARGET_DEVICE_NOT_REACHABLE)
                    .pointing_into_segment(field)),
            }
        };
        let source = place(source, copy.source_lba, 12)?;
        let destination = place(destination, copy.destination_lba, 20)?;
        Ok((length_bytes > 0).then(|| Mover::new(source, destination, length_bytes)))
    }

    /// The way to the unit that a segment names at `field`.
    fn way(&self, cscd: u16, field: u16) -> Result<&Way, SenseData> {
        if cscd == OWN_UNIT {
            return Ok(&self.own);
        }
        let refuse = |code| self.aborted(code).pointing_into_segment(field);
        let reached =
            self.cscds.get(usize::from(cscd)).ok_or(refuse(AdditionalSense::UNREACHABLE_COPY_TARGET))?;
        let way = reached.way.as_ref();
        let way = way.ok_or(refuse(AdditionalSense::COPY_TARGET_DEVICE_NOT_REACHABLE))?;
        let block_length = reached.cscd.block_length_bytes;
        if reached.cscd.peripheral != 0
            || block_length != 0 && block_length != way.path.unit.block_length_bytes()
        {
            return Err(refuse(AdditionalSense::INCORRECT_COPY_TARGET_DEVICE_TYPE));
        }
        Ok(way)
    }

    fn aborted(&self, code: AdditionalSense) -> SenseData {
        // There are at most SEGMENTS_MAX.
        SenseData::copy_aborted(code, self.segment as u16)
    }
}
