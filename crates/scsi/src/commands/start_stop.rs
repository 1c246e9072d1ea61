//! START STOP UNIT (SBC-3).

use super::{Context, Progress, State, Step, good, not_ready};
use crate::attention::UnitAttention;
use crate::bytes::Cdb;
use crate::io::{Direction, Io};
use crate::sense::{AdditionalSense, SenseData};
use crate::task::Event;
use crate::unit::Readiness;

const START: u8 = 0x01;
const LOAD_EJECT: u8 = 0x02;
const NO_FLUSH: u8 = 0x04;

/// IMMED is taken and the status waits all the same, as for SYNCHRONIZE CACHE.
pub(super) fn start_stop_unit(context: &Context<'_>, cdb: &Cdb) -> Progress {
    // A power condition other than START_VALID makes START and LOEJ ignored. A volume has no power conditions, so
    // every request for one, reserved codes too, is met by doing nothing.
    if cdb[4] & 0xf0 != 0 {
        return good();
    }
    match (cdb[4] & LOAD_EJECT != 0, cdb[4] & START != 0) {
        (true, load) => load_or_eject(context, cdb, load),
        (false, true) => start(context),
        (false, false) => stop(context, cdb),
    }
}

fn load_or_eject(context: &Context<'_>, cdb: &Cdb, load: bool) -> Progress {
    let unit = context.unit();
    if !unit.config().removable {
        return Err(SenseData::invalid_cdb_field(4, 1));
    }
    if unit.removal_prevented() {
        return Err(SenseData::illegal(AdditionalSense::MEDIUM_REMOVAL_PREVENTED));
    }
    if !load {
        return flush_then(Readiness::Ejected, context, cdb);
    }
    if unit.readiness() == Readiness::Ejected {
        unit.set_readiness(Readiness::Ready);
        // The nexus that loaded the medium knows.
        unit.establish_for_others(context.itl(), UnitAttention::MediumMayHaveChanged);
    }
    good()
}

fn start(context: &Context<'_>) -> Progress {
    let unit = context.unit();
    match unit.readiness() {
        Readiness::Ejected => not_ready(unit).map_or_else(good, Err),
        Readiness::Stopped | Readiness::Ready => {
            unit.set_readiness(Readiness::Ready);
            good()
        }
    }
}

/// A fixed unit stops. A removable one has a medium that comes and goes but no motor: its cache is flushed and it
/// stays ready, which is what hosts expect of a drive that they did not tell to eject.
fn stop(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let unit = context.unit();
    let readiness = match unit.readiness() {
        Readiness::Ejected => Readiness::Ejected,
        _ if unit.config().removable => Readiness::Ready,
        _ => Readiness::Stopped,
    };
    flush_then(readiness, context, cdb)
}

/// What was answered must be stable before the medium goes, unless the host asks for no flush.
fn flush_then(readiness: Readiness, context: &Context<'_>, cdb: &Cdb) -> Progress {
    let unit = context.unit();
    if cdb[4] & NO_FLUSH != 0 || unit.config().read_only {
        unit.set_readiness(readiness);
        return good();
    }
    Ok((State::StartStop(readiness), Step::Io(Io::Flush)))
}

pub(super) fn flushed(readiness: Readiness, context: &Context<'_>, event: Event<'_>) -> Progress {
    let unit = context.unit();
    event.io(Direction::Write, unit)?;
    // Another nexus may have prevented removal while the flush ran.
    if readiness == Readiness::Ejected && unit.readiness() != readiness && unit.removal_prevented() {
        return Err(SenseData::illegal(AdditionalSense::MEDIUM_REMOVAL_PREVENTED));
    }
    unit.set_readiness(readiness);
    good()
}
