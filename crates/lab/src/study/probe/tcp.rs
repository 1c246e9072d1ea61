//! Plain TCP over a site: what a network carries when there is no iSCSI.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lunette_link::{Link, Shape};
use lunette_wan::Bulk;

use super::model::{self, Driven};
use super::tcp_facts::{self, Watched};
use super::{Duty, Run};
use crate::LabError;
use crate::study::site::Site;

/// Longer than any queue here holds something back.
const HELD_BACK_MAX: Duration = Duration::from_secs(2);
/// What fails where one is not had, or lost.
pub(super) const CONNECTION: &str = "a TCP connection over the emulated link";

/// What one connection carries, beside what the model expects. `is_measuring` is true while it is measured.
pub(super) fn run(
    site: &Site,
    link: &Link,
    to_target: bool,
    buffer_bytes: Option<usize>,
    duty: Duty,
    is_measuring: &AtomicBool,
) -> Result<Run, LabError> {
    let shape = if to_target { &link.up } else { &link.down };
    let window = buffer_bytes.map(|bytes| bytes as u64);
    let driven = Driven { link, congestion_control: &site.congestion_control()? };
    let path = model::path(driven, shape, link.round_trip(), window);
    let failed = LabError::system(CONNECTION);
    let bulk = Bulk::connect(site.emulator()?, to_target, buffer_bytes).map_err(&failed)?;
    let (bytes_per_s, looks) = tcp_facts::watch(
        site,
        Watched {
            port: bulk.port(),
            to_target,
            line_bytes_per_s: path.payload_bytes_per_s(),
            round_trip: link.round_trip(),
        },
        &|| is_measuring.load(Ordering::Relaxed),
        || bulk.carry(duty.warm_up, duty.time, is_measuring),
    );
    let bytes_per_s = bytes_per_s.map_err(failed)?;
    // What the line still holds back would be in the way of whoever comes next.
    thread::sleep(held_back(shape, window));
    Ok(Run { further: looks.told(), ..Run::of(bytes_per_s / 1e6, model::plain(&path)) })
}

/// How long a line is busy with what its queue may hold of a connection that has ended.
fn held_back(shape: &Shape, window_bytes: Option<u64>) -> Duration {
    let bytes = window_bytes.map_or(shape.queue_bytes, |window| window.min(shape.queue_bytes));
    // Far below what a double holds exactly.
    let seconds = shape.rate.map_or(0.0, |rate| bytes as f64 * 8.0 / rate.bits_per_s() as f64);
    Duration::try_from_secs_f64(seconds).map_or(HELD_BACK_MAX, |time| time.min(HELD_BACK_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_busy_with_what_a_window_has_left_in_its_queue() {
        let link: Link = "rate=80M,queue=5M".parse().expect("a link");
        let ms = |window| held_back(&link.up, window).as_millis();
        // 10^7 bytes a second.
        assert_eq!((ms(None), ms(Some(100_000)), ms(Some(1 << 30))), (524, 10, 524));
        let open: Link = "rtt=5ms".parse().expect("a link");
        assert_eq!(held_back(&open.up, Some(1 << 30)), Duration::ZERO);
    }
}
