//! What sets the limit of a cell where the model names none, or where what stands beside the network has been looked at.
//!
//! Each name follows from something that was measured, and is there only where that makes what came: how busy the disk and the
//! processors were, how much of a shared link was in use, how long round trips and both ends took, how much fits into a cache.

mod logins;
mod serial;

use lunette_link::Link;
use lunette_workload::model::TCP_HEADER_BYTES;

use super::Cell;
use super::judgement::{REACHED, UNEXPLAINED};
use super::probe::{DISK_BUSY, DiskProbe, FLOOR, Figure, Probe, SharedProbe};
use super::result::CellResult;
use crate::report::figure_text;

/// From this share of the time on, a disk has been at work rather than waiting for some.
const DISK_BUSY_PERCENT: f64 = 50.0;
/// More round trips than any login and its first I/O have.
pub(super) const EXCHANGES_MAX: f64 = 24.0;
/// How far a hit rate may be off what fits into the cache, as a share of it, and by how many percent of all in any case.
const HITS_OFF: f64 = 0.1;
const HITS_OFF_PERCENT: f64 = 1.0;

/// Why nobody knows whether the disk was waited for.
const NO_COUNTERS: &str = "nobody knows whether the disk was at work: the kernel has no counters of what the files are on (as an overlay, or a file \
                           system without a block device of its own), or they are too coarse for so short a time";

/// A limit, and the figures that it follows from.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Named {
    pub(super) limit: &'static str,
    because: Option<String>,
}

impl Named {
    const fn only(limit: &'static str) -> Self {
        Self { limit, because: None }
    }

    const fn by(limit: &'static str, because: String) -> Self {
        Self { limit, because: Some(because) }
    }

    /// Has a cell tell it.
    pub(super) fn tell(self, result: &mut CellResult) {
        self.limit.clone_into(&mut result.limit);
        (result.machine, result.because) =
            if self.limit == "machine" { (self.because, None) } else { (None, self.because) };
    }
}

/// What the cell's own name is for its limit; nothing where the one it has is right. `of_run` is what a run has found out itself.
pub(super) fn named(cell: &Cell, result: &CellResult, of_run: Option<&'static str>) -> Option<Named> {
    let disk = result.further.iter().find(|one| one.name == DISK_BUSY).map(|one| one.measured);
    match (result.limit.as_str(), &cell.probe) {
        ("store", Probe::Files(_)) => Some(serial::one_by_one(cell, result, disk)),
        // Whether somebody has waited for it nobody knows.
        ("store", Probe::Transfer(_)) if disk.is_none() => {
            Some(Named::by(UNEXPLAINED, NO_COUNTERS.to_owned()))
        }
        // Nobody has waited for a disk that had nothing to do.
        ("store", _) if disk.is_some_and(|percent| percent < DISK_BUSY_PERCENT) => {
            let because = format!(
                "the disk was at work for {:.0} % of the time, and processors were idle for {:.0} %",
                disk.unwrap_or_default(),
                result.idle * 100.0
            );
            Some(Named::by("target", because))
        }
        (UNEXPLAINED, Probe::Shared(shared)) => {
            between_bulk(cell, shared, result).or_else(|| at_the_target(&shared.disk, result))
        }
        (UNEXPLAINED, Probe::Disk(disk)) => at_the_target(disk, result),
        ("none", _) => Some(without_model(cell, result, of_run, disk)),
        _ => None,
    }
}

/// Of commands that are alone.
fn at_the_target(disk: &DiskProbe, result: &CellResult) -> Option<Named> {
    let because = result.at_the_target(result.model.filter(|_| disk.depth == 1)?)?;
    Some(Named::by("target", because))
}

fn without_model(cell: &Cell, result: &CellResult, of_run: Option<&'static str>, disk: Option<f64>) -> Named {
    match &cell.probe {
        Probe::Login(login) => logins::of_login(cell, login, result),
        Probe::Recovery(_) => recovered(result),
        Probe::Files(files) if matches!(files.figure, Figure::Hits) => of_cache(result),
        _ if of_run.is_some() => Named::only(of_run.unwrap_or_default()),
        // Writes go to the page cache first and are flushed then, and of reads the system asks ahead: one of them has most of the time.
        Probe::Files(_) | Probe::Transfer(_) => serial::one_by_one(cell, result, disk),
        _ if result.has_busy_machine() => busy(result),
        Probe::Shared(_) | Probe::Tcp { .. } | Probe::Virtual(_) => Named::only(UNEXPLAINED),
        // It is memory of this process.
        Probe::Disk(_) => Named::only("store"),
    }
}

fn busy(result: &CellResult) -> Named {
    Named::by("machine", result.busy().join(", "))
}

/// The same session on the same link had more before the burst: what is missing is what TCP has not given back yet. Nobody can tell
/// how much of that there was where it was over before it would be seen of a line that had lost nothing.
fn recovered(result: &CellResult) -> Named {
    let floor = result.further.iter().find(|one| one.name == FLOOR).map(|one| one.measured);
    let Some(floor) = floor else { return Named::only(UNEXPLAINED) };
    let told = format!(
        "as much has to come first as was under way, for which a line that loses nothing takes up to {} ms",
        figure_text(floor)
    );
    if result.measured <= floor {
        return Named::by("floor", format!("{told}: what is the losses' part of so little cannot be told"));
    }
    Named::by("loss-recovery", told)
}

/// Of a hit rate: what the page cache holds, if that is what fits there; nothing does of a design that reads past it.
fn of_cache(result: &CellResult) -> Named {
    let fits = result.model.unwrap_or_default();
    let because = format!(
        "{} % of what was read did not come from the disk, and the page cache has room for {} % of it",
        figure_text(result.measured),
        figure_text(fits)
    );
    let is_it = (result.measured - fits).abs() <= (fits * HITS_OFF).max(HITS_OFF_PERCENT);
    Named::by(if is_it { "cache" } else { UNEXPLAINED }, because)
}

/// Of a command beside bulk traffic with a reservation: the packets of others that may be on the line before each of its own, if
/// they take what is missing.
///
/// The first one waits for a packet that is on its way; between two of its own, both classes have their turns by their shares.
fn between_bulk(cell: &Cell, shared: &SharedProbe, result: &CellResult) -> Option<Named> {
    let link = cell.link.as_deref()?.parse::<Link>().ok()?;
    let reserved = link.up.reserved?.get();
    let is_alone = shared.disk.depth == 1 && shared.flows > 0 && result.unit == "ms";
    let model = result.model.filter(|_| is_alone && reserved > 0.0)?;
    let packet_bits = f64::from(link.mtu + link.up.overhead_bytes) * 8.0;
    // Far below what a double holds exactly.
    let packet_ms = packet_bits / link.up.rate?.bits_per_s() as f64 * 1e3;
    let data_bytes = f64::from(link.mtu.saturating_sub(TCP_HEADER_BYTES).max(1));
    let packets = (f64::from(shared.disk.mix().size_bytes) / data_bytes).ceil().max(1.0);
    let others = 1.0 + (packets - 1.0) * (1.0 - reserved) / reserved;
    let most = model + others * packet_ms;
    (result.measured * REACHED <= most).then(|| {
        let because = format!(
            "{others:.1} packets of bulk traffic may be on the line before the {packets:.0} of a command, {} ms each, which makes up to {} ms",
            figure_text(packet_ms),
            figure_text(most)
        );
        Named::by("shared-link", because)
    })
}

#[cfg(test)]
mod tests {
    use super::super::probe::{EXCHANGES, HANDSHAKE, INITIATOR_TOOK, TARGET_TOOK};
    use super::super::{Further, study};
    use super::*;

    #[test]
    fn no_cell_is_without_a_limit() {
        for study in super::super::studies() {
            for cell in (study.cells)(1) {
                let result =
                    CellResult { limit: "none".into(), ..CellResult::of(vec![3.0], 3.0, cell.probe.unit()) };
                let named = named(&cell, &result, None);
                assert!(
                    named.is_some_and(|named| named.limit != "none"),
                    "{} {:?}",
                    study.name,
                    cell.parameters
                );
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
        named(cell, &result, None).map_or("as it was", |named| named.limit)
    }

    /// With the disk at work for so much of the time, and so many processors.
    fn looked_at(name: &str, wanted: &[(&str, &str)], disk_percent: f64, processors: f64) -> &'static str {
        limit_of(name, wanted, |result| {
            result.further = vec![Further::new(DISK_BUSY, disk_percent, "%")];
            (result.processors, result.idle) = (processors, 1.0 - processors / 2.0);
        })
    }

    #[test]
    fn files_wait_for_what_had_the_most_of_the_time() {
        let [nfs, direct] = [[("scheme", "nfs")], [("scheme", "direct")]];
        let of = |wanted, disk, processors| looked_at("lu-files", wanted, disk, processors);
        assert_eq!((of(&nfs, 80.0, 0.9), of(&nfs, 5.0, 0.2)), ("store", "protocol"));
        assert_eq!((of(&direct, 80.0, 0.3), of(&direct, 5.0, 0.2)), ("store", "file-system"));
        assert_eq!((of(&nfs, 5.0, 0.6), of(&nfs, 30.0, 1.3)), ("processing", "processing"));
        // More than all of the time is no share of it: processors had 40 % for certain, and 80 % at most.
        assert_eq!((of(&nfs, 38.0, 0.8), of(&nfs, 60.0, 0.8)), ("overlap", "store"));
        let thread = limit_of("lu-files", &nfs, |result| {
            result.further = vec![Further::new(DISK_BUSY, 38.0, "%")];
            (result.processors, result.idle, result.busiest) = (0.8, 0.6, 0.7);
        });
        assert_eq!(thread, "processing", "one thread had more than half");
        // Less than half each, and the most is the most.
        assert_eq!((of(&nfs, 40.0, 0.3), of(&nfs, 30.0, 0.3)), ("store", "protocol"));
        // Who has looked at nothing knows nothing.
        assert_eq!(limit_of("lu-files", &nfs, |_| ()), "unexplained");
        assert_eq!(of(&nfs, 5.0, 0.0), "unexplained");
    }

    #[test]
    fn a_recovery_that_is_not_told_from_none_is_at_the_floor() {
        let of = |measured, floor: Option<f64>| {
            limit_of("dalgic-connections", &[("figure", "recovery")], |result| {
                result.measured = measured;
                result.further = floor.map(|floor| Further::new(FLOOR, floor, "ms")).into_iter().collect();
            })
        };
        assert_eq!((of(120.0, Some(132.0)), of(600.0, Some(132.0))), ("floor", "loss-recovery"));
        assert_eq!(of(120.0, None), "unexplained", "nobody knows what is told at least");
    }

    #[test]
    fn a_hit_rate_is_that_of_a_cache_only_as_far_as_it_holds_the_files() {
        let of = |design, measured, model: Option<f64>| {
            let wanted = [("figure", "hit-rate"), ("files", "512"), ("design", design)];
            limit_of("fujita-netserver", &wanted, |result| {
                (result.measured, result.model, result.unit) = (measured, model, "%".into());
            })
        };
        assert_eq!(
            (of("threads", 85.4, Some(87.5)), of("threads", 60.0, Some(87.5))),
            ("cache", "unexplained")
        );
        assert_eq!(of("threads", 100.0, Some(87.5)), "unexplained", "more than fits");
        assert_eq!(
            (of("uring", 0.0, None), of("uring", 20.0, None)),
            ("cache", "unexplained"),
            "it reads past it"
        );
    }

    #[test]
    fn a_part_of_a_login_is_what_makes_it() {
        let of = |phase: &'static str, measured, told: [f64; 3], change: &dyn Fn(&mut CellResult)| {
            let wanted = [("session", "normal"), ("phase", phase), ("authentication", "chap")];
            limit_of("lu-login", &wanted, |result| {
                (result.measured, result.echo_us) = (measured, Some(2400.0));
                let named = [(EXCHANGES, ""), (TARGET_TOOK, "ms"), (INITIATOR_TOOK, "ms")];
                result.further = named
                    .iter()
                    .zip(told)
                    .map(|((name, unit), told)| Further::new(name, told, unit))
                    .collect();
                change(result);
            })
        };
        let as_it_is = |_: &mut CellResult| ();
        let total = |measured, told| of("total", measured, told, &as_it_is);
        assert_eq!(total(23.0, [9.0, 0.1, 0.8]), "round-trips");
        // Nine of them are not ten seconds, whoever had the rest.
        assert_eq!(total(10_000.0, [9.0, 0.1, 0.8]), "unexplained");
        assert_eq!(total(10_000.0, [9.0, 9_900.0, 0.8]), "target");
        assert_eq!(total(10_000.0, [9.0, 0.1, 9_900.0]), "initiator");
        assert_eq!(of("total", 10_000.0, [9.0, 0.1, 0.8], &|result| result.busiest = 0.95), "machine");
        // Who took his time in the stages did not do so in the handshake.
        assert_eq!(of("security", 50.0, [3.0, 43.0, 0.1], &as_it_is), "target");
        assert_eq!(of("tcp-connect", 50.0, [1.0, 43.0, 8.0], &as_it_is), "unexplained");
        assert_eq!(of("waiting", 50.0, [9.0, 0.1, 43.0], &as_it_is), "unexplained");
        // Less than a millisecond has its waking, and short round trips their jitter, but no more of it.
        assert_eq!(of("security", 7.5, [3.0, 0.1, 0.1], &as_it_is), "round-trips");
        assert_eq!(of("tcp-connect", 1.9, [1.0, 0.1, 0.1], &as_it_is), "round-trips");
        assert_eq!(of("tcp-connect", 1.2, [1.0, 0.1, 0.1], &as_it_is), "unexplained");
        // As long as a connection takes by plain TCP, and no longer.
        let begun = &|result: &mut CellResult| result.further.push(Further::new(HANDSHAKE, 3.1, "ms"));
        assert_eq!(of("tcp-connect", 3.3, [1.0, 0.1, 0.1], &as_it_is), "unexplained");
        assert_eq!(of("tcp-connect", 3.3, [1.0, 0.1, 0.1], begun), "round-trips");
        assert_eq!(of("tcp-connect", 2.4, [1.0, 0.1, 0.1], begun), "unexplained", "one that was held up");
        assert_eq!(of("chap-method", 0.4, [0.0, 0.1, 0.3], &as_it_is), "initiator");
        // What the parts are themselves.
        assert_eq!(of("initiator", 2.3, [0.0, 0.1, 2.3], &as_it_is), "initiator");
        assert_eq!(of("target", 0.2, [4.0, 0.2, 0.1], &as_it_is), "target");
        // Without an echo it is the link's.
        assert_eq!(of("security", 6.3, [3.0, 0.0, 0.0], &|result| result.echo_us = None), "round-trips");
    }

    #[test]
    fn parts_of_a_disk_have_the_limit_that_was_seen() {
        let local = [("through", "blocks"), ("disk", "local"), ("op", "read")];
        let of = |disk, processors| looked_at("dr-local", &local, disk, processors);
        assert_eq!((of(80.0, 0.3), of(40.0, 0.5), of(10.0, 0.3)), ("store", "processing", "unexplained"));
        // Nobody has told that the disk was busy.
        assert_eq!(limit_of("dr-local", &local, |result| result.processors = 0.3), "unexplained");
        let cell = (study("dr-local").expect("a study").cells)(1).remove(0);
        let untold = CellResult { limit: "store".into(), ..CellResult::of(vec![3.0], 3.0, "MB/s") };
        let because = named(&cell, &untold, None).and_then(|named| named.because);
        assert!(because.is_some_and(|because| because.contains("no counters")), "it says why");
        let over_iscsi = [("through", "blocks"), ("disk", "iscsi-gige"), ("op", "read")];
        let behind = |disk: Option<f64>| {
            limit_of("dr-local", &over_iscsi, |result| {
                result.limit = "store".into();
                result.further =
                    disk.map(|percent| Further::new(DISK_BUSY, percent, "%")).into_iter().collect();
            })
        };
        assert_eq!(
            (behind(Some(80.0)), behind(Some(5.0)), behind(None)),
            ("as it was", "target", "unexplained")
        );
    }

    #[test]
    fn a_disk_that_has_nothing_to_do_is_no_limit() {
        let micro = |percent| {
            limit_of("fujita-micro", &[("design", "fileio")], |result| {
                (result.limit, result.further) =
                    ("store".into(), vec![Further::new(DISK_BUSY, percent, "%")]);
            })
        };
        assert_eq!((micro(80.0), micro(5.0)), ("as it was", "target"));
    }

    #[test]
    fn a_command_waits_for_no_more_packets_than_may_be_before_it() {
        // Three packets of 4 KiB: one of 123 us before the first, and 1.33 between.
        let late = |flows, measured| {
            let wanted = [("figure", "iscsi-latency"), ("reserved", "60%"), ("flows", flows)];
            limit_of("dr-shared", &wanted, |result| {
                (result.limit, result.model, result.measured) = (UNEXPLAINED.into(), Some(0.73), measured);
            })
        };
        assert_eq!(
            (late("4", 0.85), late("4", 1.2), late("0", 0.85)),
            ("shared-link", "as it was", "as it was")
        );
    }

    #[test]
    fn without_a_network_it_is_the_processor_or_the_store() {
        let local =
            |busiest| limit_of("lu-heavy", &[("configuration", "direct")], |result| result.busiest = busiest);
        assert_eq!((local(0.99), local(0.3)), ("machine", "store"));
    }
}
