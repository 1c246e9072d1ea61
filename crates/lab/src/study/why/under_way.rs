//! Dalgic's figures, whose hosts had caches and no disks that count: by what was under way on the line.

use std::time::Duration;

use super::{CARRIED_MAX, link_of, payload_bytes_per_s};
use crate::study::Cell;
use crate::study::judgement::OFF;
use crate::study::probe::{Keys, Load, Probe};

/// From here on a round trip shows in the figures of the paper, whose hosts took some tenths of a millisecond for a command.
const LONG: Duration = Duration::from_millis(1);

/// What was under way in a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Background {
    /// Bytes of a command, and how many commands were allowed; none: a stream.
    commands: Option<(f64, u32)>,
    /// That a command takes at least.
    round_trips: f64,
    round_trip: Duration,
    /// Bytes per second that the link carries.
    line: f64,
}

impl Background {
    pub(super) fn of(cell: &Cell) -> Option<Self> {
        let link = link_of(cell)?;
        let line = payload_bytes_per_s(&link).unwrap_or(f64::INFINITY);
        let background = Self { commands: None, round_trips: 1.0, round_trip: link.round_trip(), line };
        match &cell.probe {
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

    /// What a command takes at least, in seconds: its round trips, and its data on the line.
    fn least_s(&self, size: f64) -> f64 {
        self.round_trips * self.round_trip.as_secs_f64() + size / self.line
    }

    /// Where a command took less there than it can: more of them were under way than the cell has.
    pub(super) fn more_under_way(&self, theirs: f64) -> Option<String> {
        let (size, window) = self.commands?;
        let (there_s, least_s) = (f64::from(window) * size / theirs, self.least_s(size));
        (there_s < least_s * (1.0 - OFF / 2.0)).then(|| {
            format!(
                "a command took {:.2} ms there, less than its round trips and its data on the line take one after the other \
                 ({:.2} ms): more than {window} was under way, as where a system reads ahead or writes behind",
                there_s * 1e3,
                least_s * 1e3
            )
        })
    }

    /// Why less came there. Both rates are in bytes per second.
    pub(super) fn there(&self, ours: f64, theirs: f64, limit: &str) -> Option<String> {
        if ours > self.line * CARRIED_MAX {
            return None;
        }
        let round_trip_s = self.round_trip.as_secs_f64();
        let under_way = theirs * round_trip_s;
        let is_long = self.round_trip >= LONG;
        let Some((size, window)) = self.commands else {
            return is_long.then(|| {
                format!(
                    "there {:.0} KB were under way in each round trip, here {:.0}: the window that TCP made of the same buffer",
                    under_way / 1e3,
                    ours * round_trip_s / 1e3
                )
            });
        };
        if window > 1 && is_long {
            let commands = theirs * self.round_trips * round_trip_s / size;
            return Some(format!(
                "hosts: there {:.0} KB were under way in each round trip, as of {commands:.1} of {window} commands: a window of the paper's hosts, not of \
                 the network; here the limit is {limit}",
                under_way / 1e3
            ));
        }
        let (there_ms, here_ms) = (size / theirs * 1e3, size / ours * 1e3);
        if window > 1 {
            return Some(format!(
                "hosts: there {there_ms:.3} ms went by between two commands, here {here_ms:.3}: what the paper's hosts took for each; here the limit is {limit}"
            ));
        }
        Some(format!(
            "hosts: a command took {there_ms:.2} ms there and {here_ms:.2} ms here: the paper's hosts took {:.2} ms more of it",
            there_ms - here_ms
        ))
    }
}

/// The paper tells one decimal, and two below 0.1: what it told as the same figure may be nearer to ours.
pub(super) fn rounded(ours: f64, theirs: f64) -> Option<String> {
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
