//! How finely runs tell a rate where packets are lost: commands behind a lost packet are answered when it has come again, many at
//! once, and those of before and behind the time count as they happen to be answered.

use super::Cell;
use super::probe::{CONGESTION_WINDOW, Probe, Run};
use super::result::CellResult;
use crate::report::figure_text;

/// More of what the model expects is not excused, however short the runs were.
const SHARE_MAX: f64 = 0.25;

/// How long the runs of a cell were, and what was lost in them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lasted {
    /// All of them together, in seconds.
    pub(super) all_s: f64,
    pub(super) runs: usize,
    /// Packets that the line lost of the directions that carry data, in all of them.
    pub(super) lost: u64,
    /// No other one may tell more.
    pub(super) is_final: bool,
}

impl Lasted {
    pub(super) fn of(cell: &Cell, runs: &[Run], is_final: bool) -> Self {
        let ways = cell.probe.data_ways();
        let lost = |run: &Run| {
            let each = run.keeping.lost.into_iter().zip(ways);
            each.filter(|(_, has_data)| *has_data).map(|(lost, _)| lost).sum::<u64>()
        };
        Self {
            all_s: runs.iter().map(|run| run.lasted.as_secs_f64()).sum(),
            runs: runs.len(),
            lost: runs.iter().map(lost).sum(),
            is_final,
        }
    }

    /// The mean of a run, in seconds.
    fn run_s(self) -> f64 {
        self.all_s / self.runs as f64
    }
}

/// Why a rate is off the model's by so little that runs of that time cannot tell. Nothing where no packet was lost, or where it is off by
/// more than TCP's windows and a command can have had under way.
pub(super) fn of_losses(cell: &Cell, result: &CellResult, lasted: Lasted) -> Option<String> {
    let Probe::Disk(disk) = &cell.probe else { return None };
    let model = result.model?;
    let outstanding = disk.outstanding_bytes() as f64 / 1e6;
    let window = result.further.iter().find(|one| one.name == CONGESTION_WINDOW)?.measured / 1e3;
    let under_way = outstanding.min(window + outstanding / f64::from(disk.depth));
    let (lost, told) = (result.lost + result.dropped, under_way / lasted.run_s());
    let off = (result.measured - model).abs();
    let is_it = off <= told && off <= model * SHARE_MAX && told.is_finite();
    (lasted.is_final && lost > 0 && result.unit == "MB/s" && is_it).then(|| {
        format!(
            "{lost} packets were lost, and commands behind a lost one are answered when it has come again, many at once: with {} MB under way a run of {} s \
             tells a rate to {} MB/s",
            figure_text(under_way),
            figure_text(lasted.run_s()),
            figure_text(told)
        )
    })
}

#[cfg(test)]
mod tests {
    use lunette_wan::Keeping;

    use super::*;
    use crate::study::{Further, study};

    #[test]
    fn what_was_lost_is_what_was_lost_of_the_data() {
        let of = |name: &str, wanted: &[&str]| {
            let cells = (study(name).expect("a study").cells)(1);
            let has = |cell: &Cell, value: &str| cell.parameters.iter().any(|own| own.1 == value);
            let cell = cells.iter().find(|cell| wanted.iter().all(|value| has(cell, value))).expect("a cell");
            let run = |lost| Run { keeping: Keeping { lost, ..Keeping::default() }, ..Run::of(1.0, None) };
            Lasted::of(cell, &[run([3, 40]), run([4, 50])], true).lost
        };
        assert_eq!([of("dalgic-sweep", &["write-unsolicited"]), of("dalgic-sweep", &["read"])], [7, 90]);
        assert_eq!([of("dalgic-tcp", &["I-to-T"]), of("dalgic-tcp", &["T-to-I"])], [7, 90]);
        assert_eq!(of("trinkle-profiles", &["sql-64k"]), 97, "reads and writes");
    }

    #[test]
    fn what_is_under_way_may_be_missing_or_too_much_where_packets_are_lost() {
        // 32 commands of 64 KiB are 2.1 MB.
        let cell = (study("dalgic-connections").expect("a study").cells)(1).remove(0);
        let of = |(measured, model): (f64, f64), window_kb, lost, unit, all_s, is_final| {
            let further = vec![Further::new(CONGESTION_WINDOW, window_kb, "KB")];
            let figures = CellResult {
                model: Some(model),
                lost,
                further,
                ..CellResult::of(Vec::new(), measured, unit)
            };
            of_losses(&cell, &figures, Lasted { all_s, runs: 2, lost, is_final })
        };
        let text = of((16.7, 18.7), 4400.0, 3, "MB/s", 1.08, true).unwrap_or_default();
        assert!(
            text.contains("3 packets were lost")
                && text.contains("2.10 MB under way")
                && text.contains("3.88"),
            "{text}"
        );
        assert!(of((21.4, 18.7), 4400.0, 1, "MB/s", 1.08, true).is_some());
        // Nothing was lost; it is off by more; a longer run would tell; it is no rate; nobody has looked how long it was; another run may
        // tell; windows were not as large; and of what many losses leave, one command is more than that.
        for (figures, window_kb, lost, unit, all_s, is_final) in [
            ((16.7, 18.7), 4400.0, 0, "MB/s", 1.08, true),
            ((14.0, 18.7), 4400.0, 3, "MB/s", 1.08, true),
            ((16.7, 18.7), 4400.0, 3, "MB/s", 5.0, true),
            ((16.7, 18.7), 4400.0, 3, "ms", 1.08, true),
            ((16.7, 18.7), 4400.0, 3, "MB/s", 0.0, true),
            ((16.7, 18.7), 4400.0, 3, "MB/s", 1.08, false),
            ((16.7, 18.7), 900.0, 3, "MB/s", 1.08, true),
            ((0.02, 0.18), 18.0, 40, "MB/s", 1.0, true),
        ] {
            let told = of(figures, window_kb, lost, unit, all_s, is_final);
            assert_eq!(told, None, "{figures:?} {window_kb} {lost} {unit} {all_s} {is_final}");
        }
    }

    #[test]
    fn plain_tcp_and_shared_links_are_excused_nothing() {
        for name in ["dalgic-tcp", "dr-shared"] {
            for cell in (study(name).expect("a study").cells)(1) {
                let further = vec![Further::new(CONGESTION_WINDOW, 4400.0, "KB")];
                let figures = CellResult {
                    model: Some(18.7),
                    lost: 3,
                    further,
                    ..CellResult::of(Vec::new(), 17.0, "MB/s")
                };
                let told =
                    of_losses(&cell, &figures, Lasted { all_s: 0.5, runs: 1, lost: 3, is_final: true });
                assert_eq!(told, None, "{name}");
            }
        }
    }
}
