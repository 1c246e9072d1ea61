//! Token copies: POPULATE TOKEN, WRITE USING TOKEN, RECEIVE ROD TOKEN INFORMATION, REPORT ALL ROD TOKENS (SBC-3, SPC-4).
//!
//! What a token stands for, and what ends it, is in [`crate::rod`].

mod information;
mod populate;
mod write;

use super::Context;
use crate::bytes::{be16, be32, be64};
use crate::copy::ListId;
use crate::rod::Blocks;
use crate::sense::{AdditionalSense, SenseData};
use crate::unit::LogicalUnit;

pub(super) use information::{receive_rod_token_information, report_all_rod_tokens};
pub(crate) use populate::Populate;
pub(super) use populate::populate_token;
pub(crate) use write::WriteUsingToken;
pub(super) use write::write_using_token;

/// The most ranges in one parameter list.
pub(super) const RANGES_MAX: u16 = 64;
/// The most bytes that one command makes a token for, or writes: a second or so of copying.
const TRANSFER_BYTES_MAX: u64 = 256 << 20;
/// The transfer that suits best.
const TRANSFER_BYTES_OPTIMAL: u64 = 64 << 20;
/// How long a token lasts without being used, and how long at most.
pub(super) const TIMEOUT_S: u32 = 60;
pub(super) const TIMEOUT_S_MAX: u32 = 600;

/// ROD TYPE of the only tokens that are made: a point in time copy that is vulnerable to change.
pub(super) const CHANGE_VULNERABLE: u32 = 0x0080_0001;
/// ROD TYPE that leaves the choice among point in time copies.
const ANY_POINT_IN_TIME: [u32; 2] = [0x0080_0000, 0x0080_ffff];
/// ROD TYPE of the token that stands for zeros, as many as are wanted.
pub(super) const BLOCK_ZERO: u32 = 0xffff_0001;
/// What follows the first eight bytes of a token.
const TOKEN_LENGTH: u16 = 0x01f8;

const RANGE_BYTES: usize = 16;

/// MAXIMUM TOKEN TRANSFER SIZE and OPTIMAL TRANSFER COUNT of a unit, in its blocks.
pub(super) fn transfer_blocks(unit: &LogicalUnit) -> (u64, u64) {
    let block_length = u64::from(unit.block_length_bytes());
    (TRANSFER_BYTES_MAX / block_length, TRANSFER_BYTES_OPTIMAL / block_length)
}

/// Reads the range descriptors that begin at `at`, whose length in bytes stands in the two bytes before.
fn parse_ranges(unit: &LogicalUnit, list: &[u8], at: usize) -> Result<Vec<Blocks>, SenseData> {
    let too_short = SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);
    // The length of all that follows it, then the length of the ranges.
    let told = usize::from(be16(list, 0).ok_or(too_short)?) + 2;
    let length = usize::from(be16(list, at - 2).ok_or(too_short)?);
    if told < at + RANGE_BYTES {
        return Err(SenseData::invalid_parameter(0));
    }
    if length < RANGE_BYTES || told < at + length {
        return Err(SenseData::invalid_parameter(at as u16 - 2));
    }
    let descriptors = list.get(at..at + length).ok_or(too_short)?;
    // What is left of a descriptor is ignored (SBC-3).
    let descriptors = descriptors.chunks_exact(RANGE_BYTES);
    if descriptors.len() > RANGES_MAX.into() {
        return Err(SenseData::illegal(AdditionalSense::TOO_MANY_SEGMENT_DESCRIPTORS));
    }
    let mut ranges: Vec<Blocks> = Vec::with_capacity(descriptors.len());
    let mut total = 0;
    for (index, descriptor) in descriptors.enumerate() {
        let lba = be64(descriptor, 0).unwrap_or(0);
        let range = Blocks { lba, count: be32(descriptor, 8).unwrap_or(0) };
        if lba.checked_add(range.count.into()).is_none_or(|end| end > unit.blocks()) {
            return Err(SenseData::illegal(AdditionalSense::LBA_OUT_OF_RANGE));
        }
        let here = (at + index * RANGE_BYTES) as u16;
        if ranges.iter().any(|other| other.lba < range.end() && lba < other.end()) {
            return Err(SenseData::invalid_parameter(here));
        }
        total += u64::from(range.count);
        if total > transfer_blocks(unit).0 {
            return Err(SenseData::invalid_parameter(here + 8));
        }
        if range.count > 0 {
            ranges.push(range);
        }
    }
    Ok(ranges)
}

/// The list identifier of a command that has it in its CDB.
fn list_id(cdb: &crate::bytes::Cdb) -> ListId {
    ListId(crate::bytes::cdb32::<6>(cdb))
}

/// The time of a nexus's domain.
fn uptime(context: &Context<'_>) -> std::time::Duration {
    context.nexus.device().domain().environment().uptime()
}
