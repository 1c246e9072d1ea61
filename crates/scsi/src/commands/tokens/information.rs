//! RECEIVE ROD TOKEN INFORMATION and REPORT ALL ROD TOKENS (SPC-4).

use super::super::copy_results::{find, long_status};
use super::super::{Context, Progress, parameter_data};
use super::uptime;
use crate::bytes::{Cdb, cdb32};
use crate::copy::ListId;

/// TRANSFER COUNT UNITS: logical blocks.
const LOGICAL_BLOCKS: u8 = 0xf1;
/// The part of a token that a management list tells. It is none of the random part.
const MANAGEMENT_BYTES: usize = 96;

/// How a token command went, and the token that it made. Asking does not end the record: a host whose answer was lost asks again.
pub(crate) fn receive_rod_token_information(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let record = find(context, ListId(cdb32::<2>(cdb)))?;
    let progress = record.progress();
    let blocks = progress.bytes / u64::from(context.unit().block_length_bytes());
    let mut data = long_status(&record, progress, LOGICAL_BLOCKS, blocks);
    match record.token() {
        Some(token) => {
            // The descriptor: an identifier of the token in the list, and the token.
            data.extend((token.len() as u32 + 2).to_be_bytes());
            data.extend([0; 2]);
            data.extend(token);
        }
        None => data.extend([0; 4]),
    }
    let length = (data.len() - 4) as u32;
    data[..4].copy_from_slice(&length.to_be_bytes());
    parameter_data(data, cdb32::<10>(cdb))
}

/// The tokens that stand for blocks of this unit.
pub(crate) fn report_all_rod_tokens(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let tokens = context.nexus.device().domain().tokens().of_unit(&context.path.unit, uptime(context));
    let mut data = vec![0; 8];
    for rod in tokens {
        data.extend(&rod.token[..MANAGEMENT_BYTES]);
    }
    let length = (data.len() - 4) as u32;
    data[..4].copy_from_slice(&length.to_be_bytes());
    parameter_data(data, cdb32::<10>(cdb))
}
