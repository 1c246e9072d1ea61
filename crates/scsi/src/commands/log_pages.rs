//! LOG SENSE and LOG SELECT (SPC-4): counters of errors, and the space of a thin unit (SBC-3).
//!
//! Temperature, wear and traffic are not told: a volume has no thermometer, its store hides what it wears out, and to
//! count traffic would cost each command more than it tells.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Context, Progress, good, parameter_data};
use crate::attention::UnitAttention;
use crate::bytes::{Cdb, cdb16};
use crate::codes::log_page::*;
use crate::io::{Direction, IoError};
use crate::sense::SenseData;
use crate::unit::LogicalUnit;

const PAGES: [u8; 6] = [
    SUPPORTED_PAGES,
    WRITE_ERRORS,
    READ_ERRORS,
    NON_MEDIUM_ERRORS,
    LOGICAL_BLOCK_PROVISIONING,
    INFORMATIONAL_EXCEPTIONS,
];

/// Parameter codes of the error counter pages.
const TOTAL_CORRECTED: u16 = 0x0003;
const TOTAL_UNCORRECTED: u16 = 0x0006;

/// PAGE CONTROL: the values now, and those at the start.
const CUMULATIVE: u8 = 1;
const DEFAULT_CUMULATIVE: u8 = 3;
/// PCR: parameters are to go back to their defaults.
const RESET: u8 = 0x02;

/// Errors of a unit's store since the start or a reset of the counters.
#[derive(Debug, Default)]
pub(crate) struct ErrorCounters {
    reads: AtomicU64,
    writes: AtomicU64,
    others: AtomicU64,
}

impl ErrorCounters {
    /// The store has failed.
    pub(crate) fn count(&self, error: IoError, direction: Direction) {
        let counter = match (error, direction) {
            (IoError::Medium { .. }, Direction::Read) => &self.reads,
            (IoError::Medium { .. }, Direction::Write) => &self.writes,
            (IoError::Hardware | IoError::Faulted, _) => &self.others,
            // What the store refuses is no failure of it.
            _ => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn reset(&self) {
        for counter in [&self.reads, &self.writes, &self.others] {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

pub(super) fn log_sense(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let (control, page, subpage) = (cdb[2] >> 6, cdb[2] & 0x3f, cdb[3]);
    let is_thin = context.unit().space().is_known();
    let pages = || PAGES.into_iter().filter(|&page| is_thin || page != LOGICAL_BLOCK_PROVISIONING);
    let body = match (page, subpage) {
        (SUPPORTED_PAGES, 0) => pages().collect(),
        (SUPPORTED_PAGES, ALL_SUBPAGES) => {
            let subpages = pages().map(|page| [page, 0]).chain([[SUPPORTED_PAGES, ALL_SUBPAGES]]);
            let mut subpages: Vec<_> = subpages.collect();
            subpages.sort_unstable();
            subpages.concat()
        }
        (_, 0) => {
            let is_default = match control {
                CUMULATIVE => false,
                DEFAULT_CUMULATIVE => true,
                // No parameter has a threshold.
                _ => return Err(SenseData::invalid_cdb_field(2, 7)),
            };
            let parameters = parameters(context.unit(), page, is_default);
            parameters.ok_or(SenseData::invalid_cdb_field(2, 5))?.from(cdb16::<5>(cdb))?
        }
        _ => return Err(SenseData::invalid_cdb_field(3, 7)),
    };
    // SPF
    let first = if subpage == 0 { page } else { page | 0x40 };
    let header = [[first, subpage], (body.len() as u16).to_be_bytes()].concat();
    parameter_data([header, body].concat(), cdb16::<7>(cdb).into())
}

/// The parameters of one page: code, control byte, value.
struct Parameters(Vec<(u16, u8, Vec<u8>)>);

fn parameters(unit: &LogicalUnit, page: u8, is_default: bool) -> Option<Parameters> {
    let counter = |code, counter: &AtomicU64| {
        let value = if is_default { 0 } else { counter.load(Ordering::Relaxed) };
        (code, 0x00, value.to_be_bytes().to_vec())
    };
    let none = AtomicU64::new(0);
    let errors = unit.errors();
    Some(Parameters(match page {
        WRITE_ERRORS => vec![counter(TOTAL_CORRECTED, &none), counter(TOTAL_UNCORRECTED, &errors.writes)],
        READ_ERRORS => vec![counter(TOTAL_CORRECTED, &none), counter(TOTAL_UNCORRECTED, &errors.reads)],
        NON_MEDIUM_ERRORS => vec![counter(0, &errors.others)],
        LOGICAL_BLOCK_PROVISIONING => {
            const DEDICATED: u8 = 1;
            const SHARED: u8 = 2;
            let [available, used] = unit.space().counts(unit.space_unit_bytes())?;
            let resource = |count: u32, scope| [&count.to_be_bytes()[..], &[scope, 0, 0, 0]].concat();
            vec![(1, 0x03, resource(available, SHARED)), (2, 0x03, resource(used, DEDICATED))]
        }
        // No exception; the temperature is not known. The list is binary.
        INFORMATIONAL_EXCEPTIONS => vec![(0, 0x03, vec![0, 0, 0xff, 0])],
        _ => return None,
    }))
}

impl Parameters {
    /// The bytes of the parameters from code `first` on.
    fn from(self, first: u16) -> Result<Vec<u8>, SenseData> {
        if self.0.last().is_none_or(|(code, ..)| *code < first) {
            return Err(SenseData::invalid_cdb_field(5, 7));
        }
        let wanted = self.0.into_iter().filter(|(code, ..)| *code >= first);
        Ok(wanted
            .flat_map(|(code, control, value)| {
                [&code.to_be_bytes()[..], &[control, value.len() as u8], &value].concat()
            })
            .collect())
    }
}

/// Sets all counters back. There is nothing else to select: no threshold, nothing that could be saved.
pub(super) fn log_select(context: &Context<'_>, cdb: &Cdb) -> Progress {
    if cdb16::<7>(cdb) != 0 {
        return Err(SenseData::invalid_cdb_field(7, 7));
    }
    if cdb[1] & RESET != 0 || cdb[2] >> 6 == DEFAULT_CUMULATIVE {
        context.unit().errors().reset();
        context.unit().establish_for_others(context.itl(), UnitAttention::LogParametersChanged);
    }
    good()
}
