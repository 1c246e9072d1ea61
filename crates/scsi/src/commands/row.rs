//! One row of the command table: what a command looks at in its CDB, and when it may run.
//!
//! The rows themselves are in [`super::table`].

use super::Handler;
use crate::alua::WorksIn;
use crate::bytes::{Cdb, NACA, control_at};
use crate::codes::opcode::{FORMAT_UNIT, SANITIZE};
use crate::reservations::access::Access;
use crate::sense::SenseData;
use crate::unit::LogicalUnit;
use crate::work::Occupation;

/// Which other commands of the unit may be at the medium while this one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Company {
    /// Any that want company too.
    Any,
    /// None from the moment when its Data-Out is there. It has one, or does nothing.
    NoneAfterData,
    /// None, and it has no Data-Out to wait for.
    None,
}

/// One command.
#[derive(Clone, Copy)]
pub(crate) struct Command {
    pub(crate) opcode: u8,
    pub(crate) service_action: Option<u8>,
    pub(crate) name: &'static str,
    pub(super) handler: Handler,
    /// What it does to a unit that is reserved.
    pub(crate) access: Access,
    /// In which asymmetric access states it works.
    pub(crate) works_in: WorksIn,
    /// CDB USAGE DATA: the operation code, then a one for every bit that is looked at. Its length is the CDB's.
    pub(crate) usage: &'static [u8],
    /// The bits that may be set, in the order of the CDB; all ones after the CDB's end.
    allowed: u128,
    /// The bits of byte 1 that may be set, too, where the unit has protection information.
    protect_bits: u8,
    /// Runs and keeps pending unit attentions (SAM-5).
    pub(crate) passes_unit_attention: bool,
    /// Runs while the unit is stopped or has no medium.
    pub(crate) runs_when_not_ready: bool,
    /// Runs while the unit sanitizes or formats itself, or has failed to (SBC-3, SANITIZE).
    pub(crate) runs_when_occupied: bool,
    /// Which CDBs run while the unit's persistent reservations are lost (SPC-4, 5.13.5.3); `None`: none.
    runs_when_lost: Option<fn(&Cdb) -> bool>,
    /// Refused while the unit is write-protected.
    pub(crate) writes_medium: bool,
    /// Refused to a nexus that may only read, whatever the unit allows: it would decide for others.
    pub(crate) changes_for_others: bool,
    /// Whether a unit has it; `None`: every unit.
    exists_on: Option<fn(&LogicalUnit) -> bool>,
    pub(super) company: Company,
    /// RECOMMENDED COMMAND TIMEOUT in seconds.
    pub(crate) timeout_s: u32,
}

/// What an initiator should give a command that touches the medium.
pub(super) const MEDIUM_TIMEOUT_S: u32 = 60;
/// What it should give one that is answered from memory.
pub(super) const MEMORY_TIMEOUT_S: u32 = 10;

/// A row for a command of the medium: it reports unit attentions, needs a ready unit that is active, and reads.
pub(super) const fn row(
    name: &'static str,
    access: Access,
    handler: Handler,
    usage: &'static [u8],
) -> Command {
    let mut allowed = 0;
    let mut index = 0;
    while index < 16 {
        let byte = if index == 0 || index >= usage.len() { 0xff } else { usage[index] };
        allowed = allowed << 8 | byte as u128;
        index += 1;
    }
    if let Some(at) = control_at(usage[0]) {
        allowed |= (NACA as u128) << (8 * (15 - at));
    }
    Command {
        opcode: usage[0],
        service_action: None,
        name,
        handler,
        access,
        works_in: WorksIn::Active,
        usage,
        allowed,
        protect_bits: 0,
        passes_unit_attention: false,
        runs_when_not_ready: false,
        runs_when_occupied: false,
        runs_when_lost: None,
        writes_medium: false,
        changes_for_others: false,
        exists_on: None,
        company: Company::Any,
        timeout_s: MEDIUM_TIMEOUT_S,
    }
}

impl Command {
    /// The second byte's low five bits are a service action with this row's value.
    pub(super) const fn service_action(mut self) -> Command {
        self.service_action = Some(self.usage[1] & 0x1f);
        self.allowed |= 0x1f << 112;
        self
    }

    /// RDPROTECT, WRPROTECT, VRPROTECT or ORPROTECT, or FMTPINFO: only looked at where the unit has protection
    /// information.
    pub(super) const fn protect_bits(mut self, bits: u8) -> Command {
        self.protect_bits = bits;
        self
    }

    pub(super) const fn writes(mut self) -> Command {
        self.writes_medium = true;
        self
    }

    pub(super) const fn changes_for_others(mut self) -> Command {
        self.changes_for_others = true;
        self
    }

    pub(super) const fn any_readiness(mut self) -> Command {
        self.runs_when_not_ready = true;
        self.timeout_s = MEMORY_TIMEOUT_S;
        self
    }

    pub(super) const fn any_occupation(mut self) -> Command {
        self.runs_when_occupied = true;
        self.any_readiness()
    }

    /// Works in standby too (SPC-4, standby state).
    pub(super) const fn in_standby(mut self) -> Command {
        self.works_in = WorksIn::Standby;
        self
    }

    /// Works however badly the unit can be reached (SPC-4, unavailable state).
    pub(super) const fn in_every_state(mut self) -> Command {
        self.works_in = WorksIn::EveryState;
        self
    }

    pub(super) const fn passes_attention(mut self) -> Command {
        self.passes_unit_attention = true;
        self.in_every_state().any_occupation().when_lost(|_| true)
    }

    /// Runs while persistent reservations are lost, with CDBs of which this is true.
    pub(super) const fn when_lost(mut self, runs: fn(&Cdb) -> bool) -> Command {
        self.runs_when_lost = Some(runs);
        self
    }

    /// Exists only on units of which this is true.
    pub(super) const fn exists_on(mut self, has_it: fn(&LogicalUnit) -> bool) -> Command {
        self.exists_on = Some(has_it);
        self
    }

    /// Exists only where the store can unmap.
    pub(super) const fn needs_unmap(self) -> Command {
        self.exists_on(|unit| unit.config().provisioning.unmap)
    }

    /// Others see either all of it or nothing; it takes its Data-Out before.
    pub(super) const fn alone_after_data(mut self) -> Command {
        self.company = Company::NoneAfterData;
        self
    }

    /// Others see either all of it or nothing; it has no Data-Out.
    pub(super) const fn alone(mut self) -> Command {
        self.company = Company::None;
        self
    }

    pub(super) const fn timeout_s(mut self, timeout_s: u32) -> Command {
        self.timeout_s = timeout_s;
        self
    }

    /// Runs although such a failure keeps others from the medium, because it may end that.
    pub(super) fn mends(&self, occupation: Occupation) -> bool {
        match occupation {
            Occupation::SanitizeFailed | Occupation::SanitizeFailedUnrestricted => self.opcode == SANITIZE,
            Occupation::FormatFailed => matches!(self.opcode, SANITIZE | FORMAT_UNIT),
            Occupation::None | Occupation::Sanitizing | Occupation::Formatting => false,
        }
    }

    /// Runs although the persistent reservations of the unit are lost.
    pub(super) fn survives_loss(&self, cdb: &Cdb) -> bool {
        self.runs_when_lost.is_some_and(|runs| runs(cdb))
    }

    /// Whether a CDB that [`Self::check_usage`] refuses is only that of a unit with protection information.
    #[cold]
    pub(super) fn check_protect_field(&self, unit: &LogicalUnit, cdb: &Cdb) -> Option<()> {
        let mut without = *cdb;
        without[1] &= !self.protect_bits;
        (unit.protection().is_some() && self.check_usage(&without).is_ok()).then_some(())
    }

    pub(crate) fn supported_by(&self, unit: &LogicalUnit) -> bool {
        self.exists_on.is_none_or(|has_it| has_it(unit))
    }

    /// CDB USAGE DATA as an initiator is told it: NACA of the CONTROL byte is looked at for every command.
    pub(super) fn usage_data(&self, unit: &LogicalUnit) -> Vec<u8> {
        let mut data = self.usage.to_vec();
        if unit.protection().is_some() {
            data[1] |= self.protect_bits;
        }
        if let Some(control) = control_at(self.opcode).and_then(|at| data.get_mut(at)) {
            *control |= NACA;
        }
        data
    }

    /// Refuses NACA, where it could establish no auto contingent allegiance (SAM-5, CONTROL byte): without a unit, and for who may
    /// only read one, since it would hold up the others.
    pub(super) fn check_naca(&self, cdb: &Cdb) -> Result<(), SenseData> {
        match control_at(self.opcode) {
            Some(at) if cdb[at] & NACA != 0 => {
                Err(SenseData::invalid_cdb_field(at as u16, NACA.trailing_zeros() as u8))
            }
            _ => Ok(()),
        }
    }

    /// Refuses set bits that the command does not define. The field pointer shows the first of them.
    pub(crate) fn check_usage(&self, cdb: &Cdb) -> Result<(), SenseData> {
        let wrong = u128::from_be_bytes(*cdb) & !self.allowed;
        if wrong == 0 {
            return Ok(());
        }
        let place = wrong.leading_zeros();
        Err(SenseData::invalid_cdb_field((place / 8) as u16, 7 - (place % 8) as u8))
    }
}
