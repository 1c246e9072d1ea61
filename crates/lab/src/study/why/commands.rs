//! The commands of a cell: what a figure says of each of them (Little's law).

use lunette_link::Link;

use super::payload_bytes_per_s;
use crate::study::probe::{Load, Metric, Probe};

/// Commands of a cell.
pub(super) struct Commands {
    pub(super) depth: u32,
    pub(super) size_bytes: u32,
    /// How many of a hundred go to a random place.
    pub(super) random_percent: u8,
    pub(super) metric: Metric,
}

impl Commands {
    pub(super) fn of(probe: &Probe) -> Option<Self> {
        match probe {
            Probe::Disk(disk) => Some(Self {
                depth: disk.depth,
                size_bytes: disk.mix().size_bytes,
                random_percent: match &disk.load {
                    Load::Workload(workload) => workload.random.get(),
                    Load::Trace(_) => 100,
                },
                metric: disk.metric,
            }),
            Probe::Virtual(virtual_one) => Some(Self {
                depth: virtual_one.profile.depth,
                size_bytes: virtual_one.profile.size_bytes,
                random_percent: virtual_one.profile.random.get(),
                metric: virtual_one.metric,
            }),
            _ => None,
        }
    }

    /// How long each of them took where this was the figure (Little's law).
    pub(super) fn time_ms(&self, figure: f64) -> f64 {
        self.metric.command_s(self.depth, self.size_bytes, figure) * 1e3
    }

    /// What share of the line of a link their data had where this was the figure.
    pub(super) fn share_of(&self, link: &Link, figure: f64) -> Option<f64> {
        let line = payload_bytes_per_s(link)?;
        let bytes_per_s = f64::from(self.depth) * f64::from(self.size_bytes) / (self.time_ms(figure) / 1e3);
        Some(bytes_per_s / line)
    }
}
