//! How long the runs of a cell were, and what was lost meanwhile.

use super::Cell;
use super::probe::Run;

/// See the module's documentation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lasted {
    /// All of them together, in seconds.
    pub(super) all_s: f64,
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
            lost: runs.iter().map(lost).sum(),
            is_final,
        }
    }
}

#[cfg(test)]
mod tests {
    use lunette_wan::Keeping;

    use super::*;
    use crate::study::study;

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
}
