//! REPORT LUNS (SPC-4).

use super::{Context, Progress, parameter_data};
use crate::bytes::{Cdb, cdb32};
use crate::lun::Lun;
use crate::nexus::Nexus;
use crate::sense::SenseData;

pub(super) fn report_luns(context: &Context<'_>, cdb: &Cdb) -> Progress {
    list(context.nexus, cdb)
}

/// The list is the nexus's, so any LUN, even one without a unit, may be asked for it.
pub(super) fn list(nexus: &Nexus, cdb: &Cdb) -> Progress {
    let (units, well_known) = match cdb[2] {
        0x00 => (true, false),
        0x01 => (false, true),
        0x02 => (true, true),
        _ => return Err(SenseData::invalid_cdb_field(2, 7)),
    };
    let mut luns = Vec::new();
    if well_known {
        luns.push(Lun::REPORT_LUNS);
    }
    if units {
        luns.extend(nexus.luns());
    }
    let mut data = vec![0; 8];
    data[..4].copy_from_slice(&((luns.len() * 8) as u32).to_be_bytes());
    data.extend(luns.into_iter().flat_map(Lun::to_bytes));
    parameter_data(data, cdb32::<6>(cdb))
}
