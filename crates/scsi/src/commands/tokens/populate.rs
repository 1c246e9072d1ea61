//! POPULATE TOKEN: makes a token for ranges of the unit (SBC-3). It copies nothing, so it is over at once.

use std::sync::Arc;

use super::super::capacity::protection_byte;
use super::super::extended_copy::parameters::IDENTIFICATION;
use super::super::extended_copy::{begin_record, forget_record};
use super::super::{Context, Progress, State, Step, good};
use super::{
    ANY_POINT_IN_TIME, CHANGE_VULNERABLE, RANGE_BYTES, RANGES_MAX, TIMEOUT_S, TIMEOUT_S_MAX, TOKEN_LENGTH,
    list_id, parse_ranges, uptime,
};
use crate::bytes::{Cdb, be32, cdb32};
use crate::copy::{ListId, Outcome};
use crate::rod::{Blocks, Rod, TOKEN_BYTES, Token};
use crate::sense::{AdditionalSense, SenseData};
use crate::task::Event;
use crate::transport_id::initiator_of;

const HEADER_BYTES: usize = 16;
/// RTV: the ROD TYPE field is valid.
const ROD_TYPE_VALID: u8 = 0x02;

pub(crate) fn populate_token(context: &Context<'_>, cdb: &Cdb) -> Progress {
    forget_record(context, list_id(cdb));
    let length_bytes = cdb32::<10>(cdb);
    let longest = HEADER_BYTES + (usize::from(RANGES_MAX) + 1) * RANGE_BYTES;
    if (length_bytes as usize) < HEADER_BYTES || length_bytes as usize > longest {
        return Err(SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR));
    }
    let populate = Populate { list: list_id(cdb), service_action: cdb[1] & 0x1f, length_bytes };
    // Alone: a write that has begun is over before the token stands for what it wrote.
    Ok((State::Populate(populate), Step::DataOutThenAlone(length_bytes)))
}

/// A POPULATE TOKEN that waits for its list.
#[derive(Debug)]
pub(crate) struct Populate {
    list: ListId,
    service_action: u8,
    length_bytes: u32,
}

impl Populate {
    pub(crate) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        let list = event.data_out(self.length_bytes)?;
        let unit = &context.path.unit;
        let ranges = parse_ranges(unit, list, HEADER_BYTES)?;
        // IMMED is taken: the command is over before it could be in the background.
        let timeout_s = match be32(list, 4).unwrap_or(0) {
            0 => TIMEOUT_S,
            timeout_s if timeout_s > TIMEOUT_S_MAX => return Err(SenseData::invalid_parameter(4)),
            timeout_s => timeout_s,
        };
        let kind = be32(list, 8).unwrap_or(0);
        let is_valid = list[2] & ROD_TYPE_VALID != 0;
        if is_valid && kind != CHANGE_VULNERABLE && !ANY_POINT_IN_TIME.contains(&kind) {
            return Err(SenseData::invalid_parameter(8));
        }
        if ranges.is_empty() {
            return Err(SenseData::invalid_parameter(HEADER_BYTES as u16 + 8));
        }
        let token = make_token(context, &ranges)
            .ok_or(SenseData::illegal(AdditionalSense::INSUFFICIENT_RESOURCES))?;
        let running = begin_record(context, Some(self.list), self.service_action)?;
        let port = &context.nexus.name().initiator_port;
        let owner = initiator_of(port).unwrap_or(port).into();
        let rod = Arc::new(Rod::new(token, Arc::clone(unit), ranges, owner, timeout_s));
        let blocks = rod.blocks();
        if !context.nexus.device().domain().tokens().add(rod, uptime(context)) {
            let sense = SenseData::illegal(AdditionalSense::INSUFFICIENT_RESOURCES);
            running.end(Outcome::Failed(sense.encode(unit.mode().descriptor_sense())));
            return Err(sense);
        }
        running.moved(blocks * u64::from(unit.block_length_bytes()));
        running.token(token);
        running.end(Outcome::Completed);
        good()
    }
}

/// The token's bytes (SPC-4, ROD token). `None`: there are no random numbers.
fn make_token(context: &Context<'_>, ranges: &[Blocks]) -> Option<Token> {
    let unit = &context.path.unit;
    let domain = context.nexus.device().domain();
    let mut token = [0; TOKEN_BYTES];
    // All that nothing else is written over is what makes the token impossible to guess.
    if !domain.environment().fill_random(&mut token[128..]) {
        return None;
    }
    token[..4].copy_from_slice(&CHANGE_VULNERABLE.to_be_bytes());
    token[6..8].copy_from_slice(&TOKEN_LENGTH.to_be_bytes());
    token[8..16].copy_from_slice(&domain.tokens().identifier().to_be_bytes());
    // The creator, as a CSCD descriptor with its NAA identifier.
    token[16] = IDENTIFICATION;
    token[20..24].copy_from_slice(&[0x01, 0x03, 0, 8]);
    token[24..32].copy_from_slice(&unit.identity().naa.to_be_bytes());
    token[45..48].copy_from_slice(&unit.block_length_bytes().to_be_bytes()[1..]);
    // NUMBER OF BYTES REPRESENTED has sixteen bytes.
    let blocks: u64 = ranges.iter().map(|range| u64::from(range.count)).sum();
    let bytes = blocks * u64::from(unit.block_length_bytes());
    token[56..64].copy_from_slice(&bytes.to_be_bytes());
    // What READ CAPACITY(16) tells of the blocks.
    token[96..100].copy_from_slice(&unit.block_length_bytes().to_be_bytes());
    token[100] = protection_byte(unit);
    token[101] = unit.config().physical_block_exponent;
    token[102] = if unit.config().provisioning.unmap { 0xc0 } else { 0 };
    Some(token)
}
