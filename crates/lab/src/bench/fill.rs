//! The range is written once before the workload, so that everything that is read later is known.

use std::time::Duration;

use lunette_workload::{Kind, Operation, Range, content};

use super::monitor::Monitor;
use crate::LabError;
use crate::endpoint::{End, Endpoint};

/// The length of each write in bytes.
const PIECE_BYTES: u64 = 256 << 10;
/// Writes under way at once.
const DEPTH: u32 = 8;
const PATIENCE: Duration = Duration::from_millis(100);

/// Writes generation 1 everywhere and makes it stable.
///
/// # Errors
/// A write fails. To be stopped is none.
pub(crate) fn fill<E: Endpoint>(
    endpoint: &mut E,
    range: Range,
    seed: u64,
    monitor: &Monitor,
) -> Result<(), LabError> {
    let (mut at, end) = (range.offset_bytes, range.offset_bytes + range.length_bytes);
    let mut slots = [None; DEPTH as usize];
    let mut free: Vec<u32> = (0..DEPTH).collect();
    let mut ended = Vec::new();
    while (at < end || free.len() < DEPTH as usize) && !monitor.is_stopped() {
        while at < end
            && let Some(slot) = free.pop()
        {
            // A piece is not longer than a number of 32 bits can say.
            let length_bytes = PIECE_BYTES.min(end - at) as u32;
            let operation = Operation { kind: Kind::Write, offset_bytes: at, length_bytes };
            let mut buffer = endpoint.buffer(length_bytes)?;
            content::fill(seed, at, 1, &mut buffer);
            slots[slot as usize] = Some(operation);
            endpoint.submit(slot, &operation, buffer);
            at += u64::from(length_bytes);
        }
        endpoint.poll(PATIENCE, &mut ended)?;
        for ended in ended.drain(..) {
            let (Some(operation), Some(buffer)) = (slots[ended.slot as usize], ended.buffer) else {
                continue;
            };
            match ended.end {
                End::Good => {
                    endpoint.recycle(buffer);
                    free.push(ended.slot);
                    monitor.add_filled(u64::from(operation.length_bytes));
                }
                End::Again | End::Busy => endpoint.submit(ended.slot, &operation, buffer),
                End::Failed(fault) => {
                    let reason = fault.reason();
                    let text = format!("writing at byte {}: {reason}", operation.offset_bytes);
                    return Err(LabError::NotReady(text));
                }
            }
        }
    }
    endpoint.flush()
}
