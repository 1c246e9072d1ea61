//! How finely a run tells a rate where packets are lost: commands behind a lost packet are answered when it has come again, many at
//! once, and those of before and behind the time count as they happen to be answered.

use super::Cell;
use super::result::CellResult;
use crate::report::figure_text;

/// To how many MB/s a run of so many seconds tells a rate where packets are lost: all that can be under way may be too much or missing.
pub(super) fn rate(cell: &Cell, run_s: f64) -> f64 {
    cell.probe.outstanding_bytes() as f64 / 1e6 / run_s
}

/// Why a rate is off the model's by so little that a run of so many seconds cannot tell. Nothing where no packet was lost, or where it is
/// off by more than all that can be under way.
pub(super) fn of_losses(cell: &Cell, result: &CellResult, run_s: f64) -> Option<String> {
    let off = (result.measured - result.model?).abs();
    let lost = result.lost + result.dropped;
    let told = rate(cell, run_s);
    (lost > 0 && result.unit == "MB/s" && told.is_finite() && off <= told).then(|| {
        format!(
            "{lost} packets were lost, and commands behind a lost one are answered when it has come again, many at once: with {} MB under way a run of {} s \
             tells a rate to {} MB/s",
            figure_text(told * run_s),
            figure_text(run_s),
            figure_text(told)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::study;

    #[test]
    fn what_is_under_way_may_be_missing_or_too_much_where_packets_are_lost() {
        let cells = (study("dalgic-connections").expect("a study").cells)(1);
        // 32 commands of 64 KiB: 2.1 MB.
        let cell = cells.first().expect("a cell");
        let told = |measured, lost, unit, run_s| {
            let result = CellResult { model: Some(18.7), lost, ..CellResult::of(Vec::new(), measured, unit) };
            of_losses(cell, &result, run_s)
        };
        let text = told(16.7, 3, "MB/s", 0.54).unwrap_or_default();
        assert!(
            text.contains("3 packets were lost")
                && text.contains("2.10 MB under way")
                && text.contains("3.88"),
            "{text}"
        );
        assert!(told(21.4, 1, "MB/s", 0.54).is_some());
        // Nothing was lost; it is off by more; a longer run would tell; it is no rate; nobody has looked how long it was.
        for (measured, lost, unit, run_s) in [
            (16.7, 0, "MB/s", 0.54),
            (14.7, 3, "MB/s", 0.54),
            (16.7, 3, "MB/s", 2.5),
            (16.7, 3, "ms", 0.54),
            (16.7, 3, "MB/s", 0.0),
        ] {
            assert_eq!(told(measured, lost, unit, run_s), None, "{measured} {lost} {unit} {run_s}");
        }
    }
}
