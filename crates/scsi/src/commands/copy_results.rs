//! What can be asked about copy operations: RECEIVE COPY STATUS, DATA, FAILURE DETAILS and OPERATING PARAMETERS (SPC-4).

use std::sync::Arc;

use super::extended_copy::parameters::{
    BLOCKS_TO_BLOCKS, BYTES_TO_BYTES, CSCDS_MAX, DESCRIPTORS_BYTES_MAX, IDENTIFICATION, SEGMENT_BYTES_MAX,
    SEGMENTS_MAX, VERIFY,
};
use super::{Context, Progress, parameter_data};
use crate::bytes::{Cdb, cdb32};
use crate::copy::{self, COPIES_MAX, CopyRecord, ListId, Outcome};
use crate::sense::SenseData;
use crate::status::Status;

/// Every descriptor type that is taken, in rising order.
pub(super) const DESCRIPTOR_TYPES: [u8; 4] = [BLOCKS_TO_BLOCKS, VERIFY, BYTES_TO_BYTES, IDENTIFICATION];

/// TRANSFER COUNT UNITS
const BYTES: u8 = 0x00;
const MEBIBYTES: u8 = 0x02;

pub(super) fn find(context: &Context<'_>, list: ListId) -> Result<Arc<CopyRecord>, SenseData> {
    context.itl().copies().find(list).ok_or(SenseData::invalid_cdb_field(2, 7))
}

pub(super) fn status_lid1(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let record = find(context, ListId(cdb[2].into()))?;
    let progress = record.progress();
    let (status, _) = status_bytes(progress.outcome);
    // LID1 knows no aborted operations: they have failed.
    let status = if status == ABORTED { FAILED } else { status };
    let (units, count) = match u32::try_from(progress.bytes) {
        Ok(bytes) => (BYTES, bytes),
        Err(_) => (MEBIBYTES, u32::try_from(progress.bytes >> 20).unwrap_or(u32::MAX)),
    };
    let mut data = vec![0, 0, 0, 8, status, 0, 0, units];
    data[5..7].copy_from_slice(&progress.segments.to_be_bytes());
    data.extend(count.to_be_bytes());
    // Once it is known to have gone well there is nothing more to ask.
    if progress.outcome == Outcome::Completed {
        context.itl().copies().forget(record.list);
    }
    parameter_data(data, cdb32::<10>(cdb))
}

/// No data is ever held for the initiator.
pub(super) fn data_lid1(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let record = find(context, ListId(cdb[2].into()))?;
    if record.progress().outcome == Outcome::InProgress {
        return Err(SenseData::invalid_cdb_field(2, 7));
    }
    parameter_data(vec![0; 4], cdb32::<10>(cdb))
}

pub(super) fn failure_details_lid1(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let record = find(context, ListId(cdb[2].into()))?;
    let outcome = record.progress().outcome;
    if outcome == Outcome::InProgress {
        return Err(SenseData::invalid_cdb_field(2, 7));
    }
    context.itl().copies().forget(record.list);
    let Outcome::Failed(sense) = outcome else { return parameter_data(vec![0; 4], cdb32::<10>(cdb)) };
    let sense = sense.as_bytes();
    let mut data = vec![0; 60];
    data[..4].copy_from_slice(&(56 + sense.len() as u32).to_be_bytes());
    data[56] = FAILED;
    data[58..60].copy_from_slice(&(sense.len() as u16).to_be_bytes());
    data.extend(sense);
    parameter_data(data, cdb32::<10>(cdb))
}

pub(super) fn status_lid4(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let record = find(context, ListId(cdb32::<2>(cdb)))?;
    let progress = record.progress();
    let data = long_status(&record, progress, BYTES, progress.bytes);
    if progress.outcome != Outcome::InProgress {
        context.itl().copies().forget(record.list);
    }
    parameter_data(data, cdb32::<10>(cdb))
}

/// The status of an operation in the long form, with its length field right.
pub(super) fn long_status(record: &CopyRecord, progress: copy::Progress, units: u8, count: u64) -> Vec<u8> {
    let (status, completion) = status_bytes(progress.outcome);
    let status = if status == IN_PROGRESS_LID1 { IN_PROGRESS } else { status };
    let sense = match &progress.outcome {
        Outcome::Failed(sense) => sense.as_bytes(),
        _ => &[],
    };
    let mut data = vec![0; 32];
    data[4] = record.service_action;
    data[5] = status;
    data[6..8].copy_from_slice(&progress.operations.to_be_bytes());
    // ESTIMATED STATUS UPDATE DELAY: not known.
    data[8..12].fill(0xff);
    data[12] = completion;
    data[13] = sense.len() as u8;
    data[14] = sense.len() as u8;
    data[15] = units;
    data[16..24].copy_from_slice(&count.to_be_bytes());
    data[24..26].copy_from_slice(&progress.segments.to_be_bytes());
    data.extend(sense);
    let length = (data.len() - 4) as u32;
    data[..4].copy_from_slice(&length.to_be_bytes());
    data
}

const IN_PROGRESS_LID1: u8 = 0x00;
/// Before its status was returned, the long form says.
const IN_PROGRESS: u8 = 0x11;
const COMPLETED: u8 = 0x01;
const FAILED: u8 = 0x02;
const ABORTED: u8 = 0x60;

/// COPY COMMAND STATUS, and the status that the copy command has ended with.
fn status_bytes(outcome: Outcome) -> (u8, u8) {
    match outcome {
        Outcome::InProgress => (IN_PROGRESS_LID1, 0),
        Outcome::Completed => (COMPLETED, Status::Good.code()),
        Outcome::Failed(_) => (FAILED, Status::CheckCondition.code()),
        Outcome::Aborted => (ABORTED, Status::TaskAborted.code()),
    }
}

/// What lists may have. VPD page 8Fh says the same.
pub(super) fn operating_parameters(_: &Context<'_>, cdb: &Cdb) -> Progress {
    let mut data = vec![0; 44];
    // SNLID: operations without a list identifier are taken.
    data[4] = 0x01;
    data[8..10].copy_from_slice(&(CSCDS_MAX as u16).to_be_bytes());
    data[10..12].copy_from_slice(&(SEGMENTS_MAX as u16).to_be_bytes());
    data[12..16].copy_from_slice(&(DESCRIPTORS_BYTES_MAX as u32).to_be_bytes());
    data[16..20].copy_from_slice(&SEGMENT_BYTES_MAX.to_be_bytes());
    // No inline data, no held data, no streams: bytes 20 to 31 are zeros.
    data[34..36].copy_from_slice(&(COPIES_MAX as u16).to_be_bytes());
    data[36] = COPIES_MAX as u8;
    data[43] = DESCRIPTOR_TYPES.len() as u8;
    data.extend(DESCRIPTOR_TYPES);
    let length = (data.len() - 4) as u32;
    data[..4].copy_from_slice(&length.to_be_bytes());
    parameter_data(data, cdb32::<10>(cdb))
}
