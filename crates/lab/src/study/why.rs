//! Why a published figure is another one than ours: of networks, what both say about commands, by Little's law; of what else was in the
//! paper's figures, what the study knows.
//!
//! Nothing is known of the paper's hosts but their figures. A figure is a rate; with the size of a command and how many were allowed, it
//! is also the time of one, or how many of them there can have been under way. The reason is the one of these that the rate betrays.

use std::time::Duration;

use lunette_link::Link;
use lunette_workload::model::Limit;

use super::probe::{Keys, Load, Probe};
use super::published::LU_LIGHT;
use super::result::{CellResult, OFF};
use super::{Cell, Study, dalgic, lu};
use crate::report::figure_text;

/// From here on a round trip shows in the figures of the paper, whose hosts took some tenths of a millisecond for a command.
const LONG: Duration = Duration::from_millis(1);

/// What was under way in a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Background {
    /// Bytes of a command, and how many commands were allowed; none: a stream.
    commands: Option<(f64, u32)>,
    /// That a command takes at least.
    round_trips: f64,
    round_trip: Duration,
    /// Bytes per second that the link carries.
    line: f64,
}

/// Names the reason where the published figure is off by more than [`OFF`].
pub(super) fn why(study: &Study, cell: &Cell, result: &CellResult) -> Option<String> {
    if result.is_off_published() != Some(true) {
        return None;
    }
    let published = result.published?;
    if result.measured <= 0.0 {
        return Some("nothing came here".to_owned());
    }
    let is_worse =
        if result.unit == "ms" { result.measured > published } else { result.measured < published };
    if let Some(machine) = result.machine.as_ref().filter(|_| is_worse) {
        return Some(format!("this machine was the limit here: {machine}"));
    }
    if study.paper != dalgic::PAPER {
        return Some(elsewhere(study, cell, result, published));
    }
    let link: Link = cell.link.as_deref()?.parse().ok()?;
    let background = Background::of(&cell.probe, &link)?;
    Some(background.reason(result.measured * 1e6, published * 1e6, &result.limit))
}

/// What both figures say of an operation, if they do, and what the study knows of the paper's.
fn elsewhere(study: &Study, cell: &Cell, result: &CellResult, published: f64) -> String {
    let known = study.published_has;
    if let Some(alone) = without_network(study, cell) {
        return format!(
            "{} of the published ms are those of its disks and hosts without a network, and {} its network's; {known}",
            figure_text(alone),
            figure_text(published - alone)
        );
    }
    match &cell.probe {
        Probe::Disk(disk) if disk.depth > 1 => {
            let size_bytes = disk.mix().size_bytes;
            let ms = |figure| figure_text(disk.metric.command_s(disk.depth, size_bytes, figure) * 1e3);
            let (there, here) = (ms(published), ms(result.measured));
            format!("each of {} commands took {there} ms there and {here} ms here; {known}", disk.depth)
        }
        _ => known.to_owned(),
    }
}

/// What the paper of `lu-light` has of the same operation without a network, where it has one.
fn without_network(study: &Study, cell: &Cell) -> Option<f64> {
    if study.name != lu::LIGHT.name || cell.link.is_none() {
        return None;
    }
    let value = |name: &str| cell.parameters.iter().find(|own| own.0 == name).map(|own| own.1.as_str());
    let place =
        [("configuration", lu::WITHOUT_NETWORK), ("op", value("op")?), ("size_kib", value("size_kib")?)];
    LU_LIGHT.one(&place, "mean_ms")
}

/// Names what the model does not know, where more came than it expects.
pub(super) fn above(cell: &Cell, result: &CellResult, limit: Option<Limit>) -> Option<String> {
    if !result.exceeds_model() {
        return None;
    }
    let reason = match limit? {
        Limit::TcpWindow => return Some(window(cell, result)),
        Limit::Loss => "the model's rate under losses is a mean over many of them, and a run has few",
        _ => "the model leaves something out, or its round trip was measured in a slow moment",
    };
    Some(reason.to_owned())
}

/// The window that there was, by Little's law.
fn window(cell: &Cell, result: &CellResult) -> String {
    let round_trip = cell.link.as_deref().and_then(|link| link.parse::<Link>().ok());
    let round_trip_s = round_trip.map(|link| link.round_trip().as_secs_f64()).unwrap_or_default();
    let kilobytes = result.measured * 1e3 * round_trip_s;
    let under_way = if result.unit == "MB/s" && kilobytes >= 1.0 {
        format!("{kilobytes:.0} KB were under way in each round trip: ")
    } else {
        String::new()
    };
    format!(
        "{under_way}TCP's buffers are set, and the kernel makes a window of them; newer ones count what packets really take, which lets \
         more be under way than was set"
    )
}

impl Background {
    fn of(probe: &Probe, link: &Link) -> Option<Self> {
        let line = link.up.rate.map_or(f64::INFINITY, |rate| rate.bits_per_s() as f64 / 8.0);
        let background = Self { commands: None, round_trips: 1.0, round_trip: link.round_trip(), line };
        match probe {
            Probe::Tcp { .. } => Some(background),
            Probe::Disk(disk) => {
                let Load::Workload(workload) = &disk.load else { return None };
                let commands = Some((f64::from(workload.sizes.largest()), disk.depth));
                let round_trips = if disk.keys == Keys::Solicited { 2.0 } else { 1.0 };
                Some(Self { commands, round_trips, ..background })
            }
            _ => None,
        }
    }

    /// Both rates are in bytes per second.
    fn reason(&self, ours: f64, theirs: f64, limit: &str) -> String {
        if let Some(reason) = rounded(ours, theirs) {
            return reason;
        }
        let round_trip_s = self.round_trip.as_secs_f64();
        let under_way = theirs * round_trip_s;
        let is_long = self.round_trip >= LONG;
        let Some((size, window)) = self.commands else {
            return if !is_long {
                let (there, here) = (theirs / 1e6, ours / 1e6);
                format!(
                    "no window is the limit where there is next to no round trip: line and hosts carried {there:.1} MB/s there and {here:.1} \
                     here, where the limit is {limit}"
                )
            } else if theirs < ours {
                format!(
                    "there {:.0} KB were under way in each round trip, here {:.0}: the window that TCP made of the same buffer",
                    under_way / 1e3,
                    ours * round_trip_s / 1e3
                )
            } else {
                format!("here {limit} lets less through; there {:.0} KB were under way", under_way / 1e3)
            };
        };
        // Little's law: so long a command took, if as many as were allowed were under way.
        let time_ms = |rate: f64| f64::from(window) * size / rate * 1e3;
        let (there, here) = (time_ms(theirs), time_ms(ours));
        let least = (self.round_trips * round_trip_s + size / self.line) * 1e3;
        if theirs > ours {
            return if there < least * (1.0 - OFF / 2.0) && window == 1 {
                format!(
                    "a command took {there:.2} ms there, less than its round trips and its data on the line take one after the other \
                     ({least:.2} ms): more than one was under way, as where a system reads ahead or writes behind"
                )
            } else {
                format!(
                    "a command took {there:.2} ms there and {here:.2} ms here, where the limit is {limit}"
                )
            };
        }
        if window > 1 && is_long {
            let commands = theirs * self.round_trips * round_trip_s / size;
            return format!(
                "there {:.0} KB were under way in each round trip, as of {commands:.1} of {window} commands: a window of the paper's hosts, not of \
                 the network; here the limit is {limit}",
                under_way / 1e3
            );
        }
        let each = |rate: f64| size / rate * 1e3;
        if window > 1 {
            return format!(
                "there {:.3} ms went by between two commands, here {:.3}: what the paper's hosts took for each; here the limit is {limit}",
                each(theirs),
                each(ours)
            );
        }
        format!(
            "a command took {there:.2} ms there and {here:.2} ms here: the paper's hosts took {:.2} ms more of it",
            there - here
        )
    }
}

/// The paper tells one decimal, and two below 0.1: what it told as the same figure may be nearer to ours.
fn rounded(ours: f64, theirs: f64) -> Option<String> {
    let (half, decimals) = if theirs < 1e5 { (5e3, 3) } else { (5e4, 2) };
    let (low, high) = (theirs - half, theirs + half);
    let is_near = ours >= low * (1.0 - OFF) && ours <= high * (1.0 + OFF);
    is_near.then(|| {
        format!(
            "the published figure is rounded: it stands for {:.decimals$} to {:.decimals$} MB/s",
            low / 1e6,
            high / 1e6
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::{studies, study};
    use super::*;

    fn reason(name: &str, wanted: &[&str], measured: f64, limit: &str) -> Option<String> {
        let study = study(name).expect("a study");
        let cells = (study.cells)(1);
        let is_it = |cell: &&Cell| cell.parameters.iter().map(|pair| &*pair.1).eq(wanted.iter().copied());
        let cell = cells.iter().find(is_it).expect("a cell");
        why(study, cell, &result(cell, measured, limit))
    }

    fn result(cell: &Cell, measured: f64, limit: &str) -> CellResult {
        CellResult {
            published: cell.published,
            limit: limit.to_owned(),
            ..CellResult::of(Vec::new(), measured, cell.probe.unit())
        }
    }

    #[test]
    fn the_reason_is_what_the_figures_say() {
        let sweep = |wanted: &[&str], measured| {
            reason("dalgic-sweep", wanted, measured, "link-rate").unwrap_or_default()
        };
        // 4.5 MB/s are 225 KB in 50 ms, and two of these round trips are a command's.
        let text = sweep(&["write-solicited", "64", "32", "50"], 17.3);
        assert!(text.contains("225 KB") && text.contains("6.9 of 32 commands"), "{text}");
        // 17.2 MB/s: 64 KiB in 3.8 ms, of which 2 are the round trip, and 3.4 are on the line.
        let text = sweep(&["read", "64", "1", "2"], 11.5);
        assert!(text.contains("took 3.81 ms there") && text.contains("reads ahead"), "{text}");
        let text = sweep(&["write-unsolicited", "8", "1", "50"], 0.161);
        assert!(text.contains("stands for 0.15 to 0.25 MB/s"), "{text}");
        let text = sweep(&["write-solicited", "1", "1", "0"], 3.4);
        assert!(text.contains("took 0.79 ms there and 0.30 ms here: the paper's hosts took 0.49"), "{text}");
        let text = reason("dalgic-tcp", &["64KB", "I-to-T", "10"], 6.4, "tcp-window").unwrap_or_default();
        assert!(text.contains("44 KB") && text.contains("here 64"), "{text}");
        assert_eq!(reason("dalgic-sweep", &["read", "64", "1", "2"], 17.0, "link-rate"), None, "it is near");
    }

    #[test]
    fn more_than_the_model_has_a_reason_and_the_window_a_figure() {
        let cells = (study("dr-wan").expect("a study").cells)(1);
        let is_it = |cell: &&Cell| cell.link.as_deref() == Some("gige,rtt=50ms,loss=0%");
        let cell = cells.iter().find(is_it).expect("a cell");
        let of = |measured, limit| {
            let result = CellResult { model: Some(1.31), ..CellResult::of(Vec::new(), measured, "MB/s") };
            above(cell, &result, limit)
        };
        let text = of(1.62, Some(Limit::TcpWindow)).unwrap_or_default();
        assert!(text.starts_with("81 KB were under way in each round trip: "), "{text}");
        assert!(of(1.62, Some(Limit::Loss)).is_some() && of(1.62, Some(Limit::Link)).is_some());
        assert_eq!((of(1.40, Some(Limit::TcpWindow)), of(1.62, None)), (None, None));
    }

    #[test]
    fn no_published_figure_is_without_a_reason() {
        let mut count = 0;
        for study in studies() {
            for cell in (study.cells)(1) {
                let Some(published) = cell.published else { continue };
                count += 1;
                for times in [0.0, 0.01, 0.5, 0.89, 1.11, 3.0, 100.0] {
                    for limit in ["link-rate", "command-window", "tcp-window", "machine"] {
                        let why = why(study, &cell, &result(&cell, published * times, limit));
                        let is_sound = |why: &String| {
                            let faults = ["NaN", "inf", " 0 KB"];
                            !why.is_empty() && !faults.iter().any(|fault| why.contains(fault))
                        };
                        assert!(
                            why.as_ref().is_some_and(is_sound),
                            "{} {:?} {times}: {why:?}",
                            study.name,
                            cell.parameters
                        );
                    }
                }
            }
        }
        assert!(count > 300, "{count}");
    }

    #[test]
    fn without_a_round_trip_nothing_is_told_of_round_trips() {
        let text = reason("dalgic-tcp", &["64KB", "I-to-T", "0"], 12.0, "machine").unwrap_or_default();
        assert!(text.contains("19.0 MB/s there and 12.0 here, where the limit is machine"), "{text}");
        let text = reason("dalgic-tcp", &["64KB", "T-to-I", "0"], 40.0, "link-rate").unwrap_or_default();
        assert!(text.contains("next to no round trip"), "{text}");
        assert_eq!(
            reason("dalgic-sweep", &["read", "64", "1", "2"], 0.0, "none").as_deref(),
            Some("nothing came here")
        );
    }

    #[test]
    fn where_this_machine_was_too_slow_the_paper_is_not_asked() {
        let study = study("dalgic-tcp").expect("a study");
        let cells = (study.cells)(1);
        let cell = cells.first().expect("a cell");
        let why = |measured| {
            let machine = Some("one thread had 97 % of a processor".to_owned());
            why(study, cell, &CellResult { machine, ..result(cell, measured, "machine") }).unwrap_or_default()
        };
        assert_eq!(why(9.0), "this machine was the limit here: one thread had 97 % of a processor");
        assert!(why(40.0).contains("next to no round trip"), "{}", why(40.0));
    }

    #[test]
    fn disks_are_told_from_networks() {
        let text = reason("lu-light", &["campus-iscsi", "read", "64"], 8.0, "link-rate").unwrap_or_default();
        assert!(
            text.starts_with("14.4 of the published ms are those of its disks")
                && text.contains("and 9.82 its network's"),
            "{text}"
        );
        let text = reason("lu-heavy", &["fc-san", "64", "100"], 4000.0, "none").unwrap_or_default();
        assert!(text.starts_with("each of 64 commands took 161 ms there and 1.05 ms here; "), "{text}");
    }
}
