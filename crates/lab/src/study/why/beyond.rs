//! More than a line carries: no reason makes that of a link, so that something was measured wrongly.

use super::commands::Commands;
use super::{CARRIED_MAX, link_of};
use crate::advise::line_path;
use crate::report::figure_text;
use crate::study::probe::{FilesProbe, Job, Load, Metric, Probe};
use crate::study::{Cell, CellResult};

/// What is wrong with a figure that is more than the line carries of TCP's data; of both directions together where both have data. Nothing
/// where that is not so, where the line has no rate, or where the bytes do not follow from the figure.
pub(in crate::study) fn beyond_line(cell: &Cell, result: &CellResult) -> Option<String> {
    let link = link_of(cell)?;
    let bytes_per_s = bytes_per_s(&cell.probe, result)?;
    let ways = [&link.up, &link.down].into_iter().zip(cell.probe.data_ways()).filter(|way| way.1);
    let carried: Option<Vec<f64>> =
        ways.map(|(shape, _)| line_path(&link, shape).payload_bytes_per_s()).collect();
    let carried: f64 = carried?.iter().sum();
    (bytes_per_s > carried * CARRIED_MAX).then(|| {
        format!(
            "{} MB/s are more than the {} MB/s of TCP's data that the line carries: they were not measured as they came",
            figure_text(bytes_per_s / 1e6),
            figure_text(carried / 1e6)
        )
    })
}

/// Bytes of data per second where this is the figure.
fn bytes_per_s(probe: &Probe, result: &CellResult) -> Option<f64> {
    // PostMark counts what its own file system has in memory and never sends.
    let is_mail = matches!(probe, Probe::Files(FilesProbe { job: Job::Mail(_), .. }));
    if result.measured <= 0.0 || is_mail {
        return None;
    }
    if result.unit == Metric::MegabytesPerSecond.unit() {
        return Some(result.measured * 1e6);
    }
    let Probe::Disk(disk) = probe else { return None };
    let is_bytes = disk.metric == Metric::MebibytesPerSecond;
    // Operations of a trace have many sizes.
    let commands = Commands::of(probe).filter(|_| is_bytes || matches!(disk.load, Load::Workload(_)))?;
    let all_bytes = f64::from(commands.depth) * f64::from(commands.size_bytes);
    Some(all_bytes / (commands.time_ms(result.measured) / 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::study;

    /// Of the first cell of a study whose parameters have all of these values.
    fn told(name: &str, wanted: &[&str], measured: f64) -> Option<String> {
        let cells = (study(name).expect("a study").cells)(1);
        let has = |cell: &Cell, value: &str| cell.parameters.iter().any(|own| own.1 == value);
        let cell = cells.iter().find(|cell| wanted.iter().all(|value| has(cell, value))).expect("a cell");
        beyond_line(cell, &CellResult::of(Vec::new(), measured, cell.probe.unit()))
    }

    #[test]
    fn no_line_carries_more_than_its_rate() {
        // 155 Mb/s of whole packets, of which 18.7 MB/s are data.
        let text = told("dalgic-sweep", &["read", "64", "32", "2"], 19.7).unwrap_or_default();
        assert!(text.starts_with("19.7 MB/s are more than the 18.7 MB/s"), "{text}");
        for (name, wanted, most) in [
            ("dalgic-sweep", &["read", "64", "32", "2"] as &[&str], 19.0),
            ("dalgic-tcp", &["10MB", "I-to-T", "2"], 19.0),
            // Reads and writes have a direction each.
            ("trinkle-profiles", &["sql-64k", "standard"], 228.0),
            // In 512 bytes, or 4 KiB, and as the time of one of 64.
            ("trinkle-profiles", &["max-iops", "standard"], 233_000.0),
        ] {
            let of = |measured| told(name, wanted, measured).is_some();
            assert_eq!([of(most), of(most * 1.02)], [false, true], "{name} {wanted:?}");
        }
        assert_eq!(told("lu-light", &["gige-lan-iscsi", "read", "64"], 0.55), None);
        assert!(told("lu-light", &["gige-lan-iscsi", "read", "64"], 0.5).is_some(), "sooner than its data");
        assert_eq!(told("lu-heavy", &["direct"], 1e9), None, "there is no line");
        assert_eq!(told("fujita-postmark", &["read"], 300.0), None, "files that were just written");
        assert_eq!(told("dalgic-sweep", &["read", "64", "32", "2"], 0.0), None);
    }
}
