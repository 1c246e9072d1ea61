//! Why a published figure is another one than ours. Each reason follows from figures of both sides, and its kind is that of what
//! was the limit: a line, processors, disks, the exchanges of a protocol, a cache. Where none follows, none is told, and
//! `lunette lab check` counts it.
//!
//! Nothing is known of the papers' hosts but their figures, their disks and their lines. A figure is a rate; with the size of a command and
//! how many were allowed, it is also the time of one, or how many of them there can have been under way (Little's law). What is less here
//! than there is asked of our own limit, and what is more of theirs.

mod above;
mod beyond;
mod commands;
mod disks;
mod files;
mod hosts;
mod under_way;

use lunette_link::Link;

use super::probe::{DISK_BUSY, Figure, FilesProbe, Job, Probe};
use super::result::CellResult;
use super::{Cell, Study, dalgic};
use crate::report::figure_text;

pub(super) use above::above;
pub(super) use beyond::beyond_line;

use commands::Commands;
use disks::{Disks, apart, slow_disks};
use files::{cached, files};
use hosts::{hosts, other_frames, short_frames, waited};
use under_way::{Background, rounded};

/// A disk that is at work for this share of the time is a limit, in percent.
const DISK_BUSY_PERCENT: f64 = 50.0;
/// No line carries more than its rate; what is told so was measured with some error.
const CARRIED_MAX: f64 = 1.02;
/// A line with less than this share in use was not the limit.
const LINE_FULL: f64 = 0.9;

/// Names the reason where the published figure is off by more than [`OFF`](super::judgement::OFF); none where the figures do not tell one.
/// `above` of the result is told before.
pub(super) fn why(study: &Study, cell: &Cell, result: &CellResult) -> Option<String> {
    let published = result.published.filter(|_| result.is_off_published() == Some(true))?;
    // Nothing follows from what is not understood itself, or is not there at all.
    let has_limit = !["none", "not-recovered"].contains(&&*result.limit);
    if result.is_unexplained() || !has_limit || result.measured <= 0.0 {
        return None;
    }
    if let Probe::Files(FilesProbe { job: Job::Web { files, .. }, figure: Figure::Hits }) = cell.probe {
        return cached(files, result.measured, published);
    }
    let is_worse =
        if result.unit == "ms" { result.measured > published } else { result.measured < published };
    let background = if study.paper == dalgic::PAPER { Background::of(cell) } else { None };
    if background.is_some()
        && let Some(rounded) = rounded(result.measured * 1e6, published * 1e6)
    {
        return Some(rounded);
    }
    if is_worse {
        let here = here(cell, result, published)?;
        let there = background.and_then(|background| background.more_under_way(published * 1e6));
        return Some(there.map_or_else(|| here.clone(), |there| format!("{here}; {there}")));
    }
    match background {
        Some(background) => background.there(result.measured * 1e6, published * 1e6, &result.limit),
        None => there(study, cell, result, published),
    }
}

/// What was the limit here, where less came than there: only what was measured, or what the link lets through and was reached.
fn here(cell: &Cell, result: &CellResult, published: f64) -> Option<String> {
    if let Some(machine) = &result.machine {
        return Some(format!("this machine was the limit here: {machine}"));
    }
    let unit = &result.unit;
    let reached = result.model.filter(|_| result.reaches_model() == Some(true)).map(figure_text);
    let of_model = |what: &str| {
        let model = reached.as_ref()?;
        Some(format!("{what} {model} {unit}, which is reached; the published figure is beyond that"))
    };
    let round_trip_ms = link_of(cell).map_or(0.0, |link| link.round_trip().as_secs_f64() * 1e3);
    match &*result.limit {
        "link-rate" => of_model("the line here lets through"),
        "command-window" => of_model("so many commands over the round trips of this link make"),
        "tcp-window" => of_model("TCP's window over the round trip of this link makes"),
        "loss" => of_model("the losses of this link leave"),
        "store" => {
            let busy = disk_busy(result).filter(|percent| *percent >= DISK_BUSY_PERCENT);
            let named = || Some(format!("the disk here was the limit: {}", result.because.as_ref()?));
            let busy = busy.map(|busy| format!("the disk here was the limit, which was at work for {busy:.0} % of the time"));
            busy.or_else(named)
        }
        "processing" => Some(format!("processors here were the limit: {}", result.because.as_ref()?)),
        "ends" => Some(format!("initiator and target were the limit here: {}", result.because.as_ref()?)),
        "together" => Some(format!("less came than the line lets through: {}", result.because.as_ref()?)),
        // Whatever is exchanged is whole round trips of a link where those are long.
        "protocol" | "round-trips" if round_trip_ms >= 1.0 && result.measured >= round_trip_ms && unit == "ms" => {
            Some(format!(
                "{} ms are {:.1} round trips of this link ({} ms each), and {} ms would be {:.1}: the exchanges of the protocol, over a link that may \
                 be longer than the paper's",
                figure_text(result.measured),
                result.measured / round_trip_ms,
                figure_text(round_trip_ms),
                figure_text(published),
                published / round_trip_ms
            ))
        }
        // It is named so where neither the link nor this machine's processors were at their end.
        "target" if is_peer(cell) => Some(format!(
            "the target was the limit here, for neither link nor processors were at their end: these were idle for {:.0} % of the time, and the \
             busiest thread had {:.0} % of one",
            result.idle * 100.0,
            result.busiest * 100.0
        )),
        "target" => Some(format!("our target was the limit here: {}", result.because.as_ref()?)),
        "initiator" if matches!(cell.probe, Probe::Virtual(_)) => Some(
            "the initiator in its virtual machine was the limit here, for less than nine tenths of the link were in use".to_owned(),
        ),
        // Named by a run in a machine without an accelerator.
        "machine" if matches!(cell.probe, Probe::Virtual(_)) => {
            Some("the processor of the initiator's virtual machine is emulated here".to_owned())
        }
        _ => None,
    }
}

/// What was the limit there, where more came here: what the paper's figures say of its disks, its line and its hosts.
fn there(study: &Study, cell: &Cell, result: &CellResult, published: f64) -> Option<String> {
    match &cell.probe {
        Probe::Login(_) => waited(cell, published),
        Probe::Files(FilesProbe { figure: Figure::Each { is_deviation, .. }, .. }) => {
            files(Disks::of(study)?, cell, result, published, *is_deviation)
        }
        Probe::Tcp { .. } => short_frames(&link_of(cell)?, published),
        probe => {
            let commands = Commands::of(probe)?;
            let disks = Disks::of(study);
            let link = link_of(cell);
            if let Some(link) = &link
                && commands.share_of(link, result.measured).is_some_and(|share| share > 2.0 * CARRIED_MAX)
            {
                // Reads and writes have a direction each; more than both carry was not measured.
                return None;
            }
            let with_network = || apart(study, cell, &commands, result.measured, published);
            let frames = || other_frames(study, cell, result.measured);
            let of_disks = || slow_disks(disks?, cell, &commands, result.measured, published);
            let of_hosts = || hosts(study, &commands, link.as_ref()?, result.measured, published);
            with_network().or_else(frames).or_else(of_disks).or_else(of_hosts)
        }
    }
}

fn value<'a>(cell: &'a Cell, name: &str) -> Option<&'a str> {
    cell.parameters.iter().find(|own| own.0 == name).map(|own| own.1.as_str())
}

fn is_peer(cell: &Cell) -> bool {
    value(cell, "target").is_some_and(|target| target != "lunette")
}

fn link_of(cell: &Cell) -> Option<Link> {
    cell.link.as_deref()?.parse().ok()
}

/// What the slower direction of a link carries of bits, in bytes per second.
fn payload_bytes_per_s(link: &Link) -> Option<f64> {
    // Far below what a double holds exactly.
    let rate = |shape: &lunette_link::Shape| shape.rate.map(|rate| rate.bits_per_s() as f64 / 8.0);
    rate(&link.up).into_iter().chain(rate(&link.down)).reduce(f64::min)
}

fn disk_busy(result: &CellResult) -> Option<f64> {
    result.further.iter().find(|one| one.name == DISK_BUSY).map(|one| one.measured)
}

#[cfg(test)]
mod tests;
