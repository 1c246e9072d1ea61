//! INQUIRY: standard data (SPC-4, INQUIRY). The vital product data pages are in [`super::vpd`].

use super::{Context, Progress, parameter_data, vpd};
use crate::bytes::{Cdb, cdb16};
use crate::identity::put_padded;
use crate::nexus::Nexus;
use crate::paths::Path;
use crate::sense::SenseData;

/// What is asked about.
#[derive(Clone, Copy)]
pub(super) enum Subject<'a> {
    /// A disk, reached through a nexus.
    Unit(&'a Path, &'a Nexus),
    /// The REPORT LUNS well-known logical unit of a nexus's device.
    WellKnown(&'a Nexus),
    /// A LUN that names no unit.
    Missing,
}

impl Subject<'_> {
    /// PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE.
    pub(super) fn peripheral(&self) -> u8 {
        match self {
            Subject::Unit(..) => 0x00,
            Subject::WellKnown(_) => 0x1e,
            // Qualifier 011b: this LUN cannot have a unit.
            Subject::Missing => 0x7f,
        }
    }
}

pub(super) fn inquiry(context: &Context<'_>, cdb: &Cdb) -> Progress {
    answer(Subject::Unit(context.path, context.nexus), cdb)
}

pub(super) fn answer(subject: Subject<'_>, cdb: &Cdb) -> Progress {
    let allocation_length = cdb16::<3>(cdb).into();
    let vital_product_data = cdb[1] & 1 != 0;
    if vital_product_data {
        let page = vpd::page(cdb[2], subject).ok_or(SenseData::invalid_cdb_field(2, 7))?;
        return parameter_data(page, allocation_length);
    }
    if cdb[2] != 0 {
        return Err(SenseData::invalid_cdb_field(2, 7));
    }
    parameter_data(standard(subject), allocation_length)
}

fn standard(subject: Subject<'_>) -> Vec<u8> {
    // Up to the end of the version descriptors and what is reserved after them.
    let mut data = vec![0; 96];
    data[0] = subject.peripheral();
    data[2] = 0x06; // VERSION: SPC-4
    data[3] = 0x12; // HISUP, RESPONSE DATA FORMAT 2
    data[4] = (data.len() - 5) as u8;
    data[7] = 0x02; // CMDQUE
    let (vendor, product, revision) = match subject {
        Subject::Unit(path, nexus) => {
            let unit = &path.unit;
            data[6] |= u8::from(nexus.device().ports().len() > 1) << 4; // MULTIP
            data[3] |= u8::from(!path.read_only) << 5; // NORMACA
            data[1] = u8::from(unit.config().removable) << 7;
            // TPGS: states of target port groups change by themselves and by command; 3PC: copies of third parties.
            data[5] = 0x30 | 0x08;
            // PROTECT
            data[5] |= u8::from(unit.protection().is_some());
            let identity = unit.identity();
            (identity.vendor.as_str(), identity.product.as_str(), identity.revision.as_str())
        }
        Subject::WellKnown(_) | Subject::Missing => ("", "", ""),
    };
    put_padded(&mut data[8..16], vendor);
    put_padded(&mut data[16..32], product);
    put_padded(&mut data[32..36], revision);
    // VERSION DESCRIPTORS: SAM-5, iSCSI, SPC-4, SBC-3, each with no version claimed (SPC-4).
    for (place, descriptor) in data[58..66].chunks_exact_mut(2).zip([0x00a0u16, 0x0960, 0x0460, 0x04c0]) {
        place.copy_from_slice(&descriptor.to_be_bytes());
    }
    data
}
