//! What limits work that does one thing after the other: files, and parts of a disk as long as files.

use super::{NO_COUNTERS, Named, busy};
use crate::study::Cell;
use crate::study::judgement::UNEXPLAINED;
use crate::study::probe::Probe;
use crate::study::result::CellResult;

/// Who has this share of the time has the most of it, whatever else goes on meanwhile.
const HALF: f64 = 0.5;

/// The disk, processors or what is left, which is waiting for the other end: whatever had the most of the time. Nothing is known where
/// nobody has looked at one of them, or where no other end is waited for and no file system.
///
/// How many processors were at work is no share of the time, unless one works at a time and nothing else does meanwhile: then it is,
/// and what disk and processors leave is the rest. If both make more than all of the time, some of it went on side by side. Then
/// processors had no less of the time than all of them together were at work, or their busiest thread, and who had half of the time
/// for certain is named; where nobody had, the shares overlap too much to tell.
pub(super) fn one_by_one(cell: &Cell, result: &CellResult, disk_percent: Option<f64>) -> Named {
    if result.has_busy_machine() {
        return busy(result);
    }
    let Some(disk_percent) = disk_percent else { return Named::by(UNEXPLAINED, NO_COUNTERS.to_owned()) };
    if result.processors <= 0.0 {
        return Named::only(UNEXPLAINED);
    }
    let disk = disk_percent / 100.0;
    let at_work = format!(
        "the disk was at work for {disk_percent:.0} % of the time, {:.1} processors on average",
        result.processors
    );
    let rest = 1.0 - disk - result.processors;
    if rest < 0.0 {
        let processors = result.busiest.max(1.0 - result.idle);
        let because =
            format!("{at_work}, for {:.0} % of the time at least, side by side", processors * 100.0);
        let limit = if disk.max(processors) < HALF {
            "overlap"
        } else if disk >= processors {
            "store"
        } else {
            "processing"
        };
        return Named::by(limit, because);
    }
    let because = format!("{at_work}, and for {:.0} % neither", rest * 100.0);
    let limit = if disk >= result.processors.max(rest) {
        "store"
    } else if result.processors >= rest {
        "processing"
    } else if cell.link.is_some() {
        "protocol"
    } else if matches!(cell.probe, Probe::Files(_)) {
        "file-system"
    } else {
        UNEXPLAINED
    };
    Named::by(limit, because)
}
