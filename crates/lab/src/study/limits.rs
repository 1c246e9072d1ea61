//! What sets the limit of a cell where the model names none, or where what stands beside the network has been looked at.
//!
//! Each name follows from something that was measured: how busy the disk and the processors were, how much of a shared link was in
//! use, how many round trips fit into the time.

use lunette_link::Link;

use super::Cell;
use super::probe::{DISK_BUSY, EXCHANGES, Figure, LoginPhase, Probe};
use super::result::CellResult;

/// From this share of the time on, a disk has been at work rather than waiting for some.
const DISK_BUSY_PERCENT: f64 = 50.0;
/// More round trips than any login and its first I/O have.
pub(super) const EXCHANGES_MAX: f64 = 24.0;
/// With this share of the time, round trips of the link are the most of it.
const ROUND_TRIPS_SHARE: f64 = 0.5;

/// What the cell's own name is for its limit; nothing where the one it has is right. `of_run` is what a run has found out itself.
pub(super) fn named(cell: &Cell, result: &CellResult, of_run: Option<&'static str>) -> Option<&'static str> {
    let disk = result.further.iter().find(|one| one.name == DISK_BUSY).map(|one| one.measured);
    let is_disk_busy = disk.map(|percent| percent >= DISK_BUSY_PERCENT);
    match result.limit.as_str() {
        // Nobody has waited for a disk that had nothing to do.
        "store" if is_disk_busy == Some(false) => Some(besides(&cell.probe)),
        "none" => Some(without_model(cell, result, of_run, is_disk_busy)),
        _ => None,
    }
}

/// What is there besides the network, the processors and the disk.
const fn besides(probe: &Probe) -> &'static str {
    if let Probe::Files(_) = probe { "protocol" } else { "target" }
}

fn without_model(
    cell: &Cell,
    result: &CellResult,
    of_run: Option<&'static str>,
    is_disk_busy: Option<bool>,
) -> &'static str {
    match &cell.probe {
        Probe::Login(login) => {
            let link = cell.link.as_deref().and_then(|link| link.parse::<Link>().ok());
            let round_trip_ms = link.map_or(0.0, |link| link.round_trip().as_secs_f64() * 1e3);
            let counted = result.further.iter().find(|one| one.name == EXCHANGES);
            // Where nobody has counted them, as many as there are to be.
            let round_trips_ms = counted.map(|one| one.measured * round_trip_ms).or(result.model);
            match of_login(login.phase, result.measured, round_trips_ms.unwrap_or_default()) {
                "target" if result.has_busy_machine() => "machine",
                name => name,
            }
        }
        // The same session on the same link had more before the burst: what is missing is what TCP has not given back yet.
        Probe::Recovery(_) => "loss-recovery",
        Probe::Files(files) if matches!(files.figure, Figure::Hits) => "cache",
        _ if of_run.is_some() => of_run.unwrap_or_default(),
        _ if result.has_busy_machine() => "machine",
        Probe::Files(_) if is_disk_busy == Some(false) && cell.link.is_none() => "file-system",
        Probe::Files(_) if is_disk_busy == Some(false) => "protocol",
        Probe::Shared(_) | Probe::Tcp { .. } | Probe::Virtual(_) => "unexplained",
        // Over a network it may be either, where nobody has looked at the disk.
        Probe::Files(_) if is_disk_busy.is_none() && cell.link.is_some() => "unexplained",
        Probe::Disk(_) | Probe::Transfer(_) | Probe::Files(_) => "store",
    }
}

/// A part of a login in which nothing was sent and answered is the initiator's. Else it is round trips, unless as many of the link's as were
/// counted are less than half of it: the target took longer.
fn of_login(phase: LoginPhase, milliseconds: f64, round_trips_ms: f64) -> &'static str {
    if round_trips_ms <= 0.0 || matches!(phase, LoginPhase::Initiator | LoginPhase::Rest) {
        "initiator"
    } else if round_trips_ms >= milliseconds * ROUND_TRIPS_SHARE {
        "round-trips"
    } else {
        "target"
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Further, study};
    use super::*;

    #[test]
    fn no_cell_is_without_a_limit() {
        for study in super::super::studies() {
            for cell in (study.cells)(1) {
                let result =
                    CellResult { limit: "none".into(), ..CellResult::of(vec![3.0], 3.0, cell.probe.unit()) };
                let limit = named(&cell, &result, None);
                assert!(limit.is_some_and(|limit| limit != "none"), "{} {:?}", study.name, cell.parameters);
            }
        }
    }

    fn limit_of(name: &str, wanted: &[(&str, &str)], change: impl FnOnce(&mut CellResult)) -> &'static str {
        let cells = (study(name).expect("a study").cells)(1);
        let has =
            |cell: &Cell, pair: &(&str, &str)| cell.parameters.iter().any(|own| (own.0, &*own.1) == *pair);
        let cell = cells.iter().find(|cell| wanted.iter().all(|pair| has(cell, pair))).expect("a cell");
        let mut result = CellResult { limit: "none".into(), ..CellResult::of(vec![3.0], 3.0, "ms") };
        change(&mut result);
        named(cell, &result, None).unwrap_or("as it was")
    }

    #[test]
    fn a_disk_that_has_nothing_to_do_is_no_limit() {
        let disk = |percent| vec![Further::new(DISK_BUSY, percent, "%")];
        let files =
            |percent| limit_of("lu-files", &[("scheme", "nfs")], |result| result.further = disk(percent));
        assert_eq!((files(80.0), files(5.0)), ("store", "protocol"));
        let direct =
            |percent| limit_of("lu-files", &[("scheme", "direct")], |result| result.further = disk(percent));
        assert_eq!((direct(80.0), direct(5.0)), ("store", "file-system"));
        let micro = |percent| {
            limit_of("fujita-micro", &[("design", "fileio")], |result| {
                (result.limit, result.further) = ("store".into(), disk(percent));
            })
        };
        assert_eq!((micro(80.0), micro(5.0)), ("as it was", "target"));
        let hits = [("figure", "hit-rate")];
        assert_eq!(limit_of("fujita-netserver", &hits, |result| result.further = disk(80.0)), "cache");
    }

    #[test]
    fn without_a_network_it_is_the_processor_or_the_store() {
        let local =
            |busiest| limit_of("lu-heavy", &[("configuration", "direct")], |result| result.busiest = busiest);
        assert_eq!((local(0.99), local(0.3)), ("machine", "store"));
    }

    #[test]
    fn logins_are_round_trips_unless_those_are_too_few() {
        assert_eq!(of_login(LoginPhase::Security, 2.3, 2.0), "round-trips");
        assert_eq!(of_login(LoginPhase::Total, 16.0, 14.0), "round-trips");
        // Seven of 2 ms are not ten seconds.
        assert_eq!(of_login(LoginPhase::Total, 10_000.0, 14.0), "target");
        assert_eq!(of_login(LoginPhase::Initiator, 2.3, 0.0), "initiator");
        assert_eq!(of_login(LoginPhase::ChapMethod, 0.4, 0.0), "initiator");
    }

    #[test]
    fn what_was_counted_decides_of_logins() {
        let wanted = [("session", "normal"), ("phase", "security"), ("authentication", "chap")];
        // Ten milliseconds, and round trips of 2 ms.
        let of = |exchanges: f64| {
            limit_of("lu-login", &wanted, |result| {
                result.measured = 10.0;
                result.further = vec![Further::new(EXCHANGES, exchanges, "")];
            })
        };
        assert_eq!((of(3.0), of(1.0), of(0.0)), ("round-trips", "target", "initiator"));
    }
}
