//! REPORT TIMESTAMP and SET TIMESTAMP (SPC-4): the unit's clock in milliseconds since 1970-01-01, universal time.
//!
//! It is the driver's clock until an initiator sets another one, which lasts until the target ends.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Context, Progress, State, Step, good, parameter_data};
use crate::attention::UnitAttention;
use crate::bytes::{Cdb, cdb32};
use crate::sense::{AdditionalSense, SenseData};
use crate::task::Event;

const PARAMETER_BYTES: u32 = 12;
const SIX_BYTES_MAX: u64 = (1 << 48) - 1;

/// TIMESTAMP ORIGIN: by SET TIMESTAMP, or by other means.
const SET: u8 = 0x02;
const OTHERWISE: u8 = 0x03;

/// A clock that an initiator may have set.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// What it was set to in milliseconds, and at which uptime.
    set: Mutex<Option<(u64, Duration)>>,
}

impl Clock {
    fn lock(&self) -> MutexGuard<'_, Option<(u64, Duration)>> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn report(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let environment = context.nexus.device().domain().environment();
    let (origin, milliseconds) = match *context.unit().clock().lock() {
        Some((value, at)) => {
            let since = environment.uptime().saturating_sub(at).as_millis() as u64;
            (SET, value.saturating_add(since))
        }
        None => (OTHERWISE, environment.since_epoch().as_millis() as u64),
    };
    let mut data = vec![0, 10, origin, 0];
    data.extend(&milliseconds.min(SIX_BYTES_MAX).to_be_bytes()[2..]);
    data.extend([0; 2]);
    parameter_data(data, cdb32::<6>(cdb))
}

pub(super) fn set(_: &Context<'_>, cdb: &Cdb) -> Progress {
    match cdb32::<6>(cdb) {
        0 => good(),
        PARAMETER_BYTES => Ok((State::SetTimestamp, Step::DataOut(PARAMETER_BYTES))),
        _ => Err(SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR)),
    }
}

/// The parameter list of SET TIMESTAMP has come.
pub(super) fn list_came(context: &Context<'_>, event: Event<'_>) -> Progress {
    let list = event.data_out(PARAMETER_BYTES)?;
    let too_short = SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);
    let &[_, _, _, _, a, b, c, d, e, f, ..] = list else { return Err(too_short) };
    if list.len() < PARAMETER_BYTES as usize {
        return Err(too_short);
    }
    let uptime = context.nexus.device().domain().environment().uptime();
    *context.unit().clock().lock() = Some((u64::from_be_bytes([0, 0, a, b, c, d, e, f]), uptime));
    context.unit().establish_for_others(context.itl(), UnitAttention::TimestampChanged);
    good()
}
