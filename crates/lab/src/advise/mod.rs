//! What `lunette advise` measures: the path to a disk, and whether an advice keeps its word on an emulated link.
//!
//! What is advised is decided in `lunette_workload::model::advice`.

mod line;
mod path;
mod trial;

pub(crate) use line::lost;
pub use line::{line_path, unknown_to_model};
pub use path::{MeasuredPath, measure_path};
pub use trial::{Outcome, Trial, socket_buffers_bytes_max, tcp_window_bytes};

use std::time::Duration;

use lunette_workload::model::Settings;

use crate::Negotiated;

impl Negotiated {
    /// The same for the model, with so many commands under way, as far as the target lets them in; MaxRecvDataSegmentLength is the
    /// target's.
    #[must_use]
    pub fn settings(&self, depth: u32) -> Settings {
        Settings {
            initial_r2t: self.initial_r2t,
            immediate_data: self.immediate_data,
            first_burst_length: self.first_burst_length,
            max_burst_length: self.max_burst_length,
            max_outstanding_r2t: self.max_outstanding_r2t,
            max_recv_data_segment_length: self.target_max_recv_data_segment_length,
            connections: u16::try_from(self.connections).unwrap_or(u16::MAX),
            window: self.at_once(depth),
        }
    }

    /// How many of so many commands may be under way at once.
    #[must_use]
    pub fn at_once(&self, depth: u32) -> u32 {
        self.command_window.map_or(depth, |commands| depth.min(commands.max(1)))
    }

    /// The median time of a command without data; zero where nobody has looked.
    #[must_use]
    pub fn idle_round_trip(&self) -> Duration {
        let seconds = self.idle_round_trip_us.unwrap_or_default() / 1e6;
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_under_way_than_the_target_lets_in() {
        let of = |command_window, depth| {
            Negotiated { command_window, ..Negotiated::of_tests() }.settings(depth).window
        };
        assert_eq!([of(Some(16), 32), of(Some(16), 8), of(None, 32)], [16, 8, 32]);
        assert_eq!(of(Some(0), 32), 1, "a target that was busy at that moment lets one in sooner or later");
    }
}
