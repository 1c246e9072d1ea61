//! Commands to a LUN that names no unit, and to the REPORT LUNS well-known logical unit (SPC-4).

use super::{Progress, good, inquiry, readiness, report_luns, table};
use crate::bytes::Cdb;
use crate::lun::Lun;
use crate::nexus::Nexus;
use crate::sense::{AdditionalSense, SenseData, SenseKey};

/// INQUIRY, REPORT LUNS and REQUEST SENSE are answered for any LUN; the well-known unit knows TEST UNIT READY too.
pub(crate) fn start(nexus: &Nexus, lun: Lun, cdb: &Cdb) -> Progress {
    let well_known = lun == Lun::REPORT_LUNS;
    let missing = SenseData::illegal(AdditionalSense::LOGICAL_UNIT_NOT_SUPPORTED);
    let otherwise = if well_known {
        SenseData::illegal(AdditionalSense::INVALID_COMMAND_OPERATION_CODE)
    } else {
        missing
    };
    let row = table::find(cdb).map_err(|_| otherwise)?;
    if !well_known && !row.passes_unit_attention {
        return Err(missing);
    }
    row.check_usage(cdb)?;
    row.check_naca(cdb)?;
    match row.opcode {
        table::INQUIRY if well_known => inquiry::answer(inquiry::Subject::WellKnown(nexus), cdb),
        table::INQUIRY => inquiry::answer(inquiry::Subject::Missing, cdb),
        table::REPORT_LUNS => report_luns::list(nexus, cdb),
        table::REQUEST_SENSE if well_known => {
            readiness::sense_as_data(SenseData::new(SenseKey::NoSense, AdditionalSense::NONE), cdb)
        }
        table::REQUEST_SENSE => readiness::sense_as_data(missing, cdb),
        table::TEST_UNIT_READY if well_known => good(),
        _ => Err(otherwise),
    }
}
