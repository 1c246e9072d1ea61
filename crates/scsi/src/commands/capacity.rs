//! READ CAPACITY (SBC-3).

use super::{Context, Progress, parameter_data};
use crate::bytes::{Cdb, cdb32, saturate_u32};
use crate::unit::LogicalUnit;

pub(super) fn read_capacity_10(context: &Context<'_>, _: &Cdb) -> Progress {
    let unit = context.unit();
    // All ones in the LBA send the host to READ CAPACITY(16).
    let last_lba = saturate_u32(unit.blocks() - 1);
    let data = [last_lba.to_be_bytes(), unit.block_length_bytes().to_be_bytes()].concat();
    parameter_data(data, 8)
}

/// P_TYPE and PROT_EN.
pub(super) fn protection_byte(unit: &LogicalUnit) -> u8 {
    unit.protection().map_or(0, |protection| protection.kind.capacity_byte())
}

pub(super) fn read_capacity_16(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let unit = context.unit();
    let config = unit.config();
    let mut data = vec![0; 32];
    data[..8].copy_from_slice(&(unit.blocks() - 1).to_be_bytes());
    data[8..12].copy_from_slice(&unit.block_length_bytes().to_be_bytes());
    // One protection information interval to a block: P_I_EXPONENT is 0; so is the lowest aligned LBA in bytes 14 and 15.
    data[12] = protection_byte(unit);
    data[13] = config.physical_block_exponent;
    if config.provisioning.unmap {
        // LBPME and LBPRZ
        data[14] = 0xc0;
    }
    parameter_data(data, cdb32::<10>(cdb))
}
