//! SEND DIAGNOSTIC and READ DEFECT DATA: commands that a volume can only answer with "nothing is wrong"
//! (SPC-4, SBC-3).

use super::{Context, Progress, good, parameter_data};
use crate::bytes::{Cdb, cdb16, cdb32};
use crate::sense::SenseData;

/// The default self-test passes. There is nothing else: the table refuses self-test codes and parameter lists.
pub(super) fn send_diagnostic(_: &Context<'_>, cdb: &Cdb) -> Progress {
    const SELF_TEST: u8 = 0x04;
    if cdb[1] & SELF_TEST == 0 {
        return Err(SenseData::invalid_cdb_field(1, 2));
    }
    good()
}

/// An empty list. The flags and the format of the answer are those asked for.
pub(super) fn read_defect_data_10(_: &Context<'_>, cdb: &Cdb) -> Progress {
    parameter_data(vec![0, cdb[2] & 0x1f, 0, 0], cdb16::<7>(cdb).into())
}

pub(super) fn read_defect_data_12(_: &Context<'_>, cdb: &Cdb) -> Progress {
    parameter_data(vec![0, cdb[1] & 0x1f, 0, 0, 0, 0, 0, 0], cdb32::<6>(cdb))
}
