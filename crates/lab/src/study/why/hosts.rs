//! What a paper's hosts made of its figures: what they took for each command, the frames that they sent, and what a login waited for.

use lunette_link::Link;
use lunette_workload::model::TCP_HEADER_BYTES;

use super::commands::Commands;
use super::{LINE_FULL, link_of, payload_bytes_per_s, value};
use crate::report::figure_text;
use crate::study::judgement::OFF;
use crate::study::limits::EXCHANGES_MAX;
use crate::study::{Cell, Study, trinkle};

/// Of Ethernet's usual frames, in bytes.
const USUAL_MTU: f64 = 1500.0;

/// The hosts, where the line had room and disks were faster than that: something of theirs took the time.
pub(super) fn hosts(
    study: &Study,
    commands: &Commands,
    link: &Link,
    measured: f64,
    published: f64,
) -> Option<String> {
    let share = commands.share_of(link, published).filter(|share| *share < LINE_FULL)?;
    // Random blocks have been asked of the disks before, and were too fast for them.
    let of_disks = if commands.random_percent > 0 {
        "disks do not answer that fast".to_owned()
    } else {
        let bytes_per_s =
            f64::from(commands.depth) * f64::from(commands.size_bytes) / (commands.time_ms(published) / 1e3);
        let in_order = in_order_bytes_per_s(study)?;
        if bytes_per_s >= in_order * LINE_FULL {
            return None;
        }
        format!(
            "its disks gave {} MB/s in order, and these were {}",
            figure_text(in_order / 1e6),
            figure_text(bytes_per_s / 1e6)
        )
    };
    Some(format!(
        "hosts: each of {} commands took {} ms there and {} ms here; {:.0} % of such a line were in use there, and {of_disks}, \
         so that it is what the paper's hosts and targets took for each",
        commands.depth,
        figure_text(commands.time_ms(published)),
        figure_text(commands.time_ms(measured)),
        share * 100.0
    ))
}

/// What a paper's disks gave in order, in bytes per second, where it says so.
fn in_order_bytes_per_s(study: &Study) -> Option<f64> {
    let is_it = study.paper == trinkle::PROFILES.paper;
    trinkle::of_paper("store").filter(|_| is_it).map(|megabytes| megabytes * 1e6)
}

/// Plain TCP over long frames, where the published figure is what the usual ones carry.
pub(super) fn short_frames(link: &Link, published: f64) -> Option<String> {
    let line = payload_bytes_per_s(link)?;
    let on_line = USUAL_MTU + f64::from(link.up.overhead_bytes);
    let carried = line * (USUAL_MTU - f64::from(TCP_HEADER_BYTES)) / on_line / 1e6;
    (f64::from(link.mtu) > USUAL_MTU && (published / carried - 1.0).abs() <= OFF).then(|| {
        format!(
            "frames: of those of 1500 bytes such a line carries {} MB/s of data, which is near the published figure; the paper does not say with which it measured",
            figure_text(carried)
        )
    })
}

/// What frames of the other length gave the same hosts and disks, where that is what came here.
pub(super) fn other_frames(study: &Study, cell: &Cell, measured: f64) -> Option<String> {
    if study.name != trinkle::PROFILES.name {
        return None;
    }
    let value = |name: &str| value(cell, name);
    let is_it = |row: &&(&str, Option<&str>)| row.1.is_some() && row.1 == value("target");
    let target = trinkle::TARGETS.iter().find(is_it).map(|row| row.0);
    let published =
        |frames| trinkle::published(value("initiator")?, frames, value("profile")?, target).published;
    let (own, other) = match value("frames")? {
        "jumbo" => ("jumbo", "standard"),
        _ => ("standard", "jumbo"),
    };
    let figure = published(other).filter(|figure| (measured / figure - 1.0).abs() <= OFF)?;
    Some(format!(
        "hosts: with {other} frames the same hosts and disks had {}, which is what came here; the rest is what {own} frames cost them",
        figure_text(figure)
    ))
}

/// A login: more round trips than any has were somebody's waiting.
pub(super) fn waited(cell: &Cell, published: f64) -> Option<String> {
    let round_trip_ms = link_of(cell)?.round_trip().as_secs_f64() * 1e3;
    let exchanges = published / round_trip_ms;
    (exchanges.is_finite() && exchanges > EXCHANGES_MAX).then(|| {
        format!(
            "initiator: {} ms would be {exchanges:.0} round trips of this link, and no part of a login has so many; the paper saw no traffic in most \
             of the time, and suspects a timer of its initiator's driver",
            figure_text(published)
        )
    })
}
