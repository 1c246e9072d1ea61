//! What stands beside the table of all cells: the paper's own tables, with every row of them, and the shares of the ceilings.

use lunette_workload::{Profile, profiles};

use super::{
    COMPARED, FRAMES, INITIATORS, NOBODY, STORE, TARGETS, TO_INITIATOR, TO_TARGET, is_iops, megabytes,
    of_paper, published,
};
use crate::report::figure_text;
use crate::study::conclusion::DEVIATION;
use crate::study::result::{CellResult, Summary};
use crate::study::statistics::{deviation, mean};
use crate::study::{Metric, OfPeer};

/// Our own target.
const OURS: &str = "lunette";
/// What is said of a target that nothing here stands for.
const A_MODULE: &str = "not measured here: a kernel module";

/// All of them.
pub(in crate::study) fn tables(cells: &[CellResult]) -> Vec<Summary> {
    vec![by_target(cells), shares(cells), appendix(cells)]
}

/// Whose figure it is: the target, the initiator and the frames.
fn kind(cell: &CellResult) -> [&str; 3] {
    [
        value(cell, "target").unwrap_or(OURS),
        value(cell, "initiator").unwrap_or_default(),
        value(cell, "frames").unwrap_or_default(),
    ]
}

fn value<'a>(cell: &'a CellResult, name: &str) -> Option<&'a str> {
    cell.parameters.iter().find(|pair| pair.0 == name).map(|pair| &*pair.1)
}

/// Those that have a profile; the others are the ceilings.
fn of_profiles(cells: &[CellResult]) -> impl Iterator<Item = &CellResult> {
    cells.iter().filter(|cell| value(cell, "initiator") != Some(NOBODY))
}

fn told(figure: Option<f64>) -> String {
    figure.map_or_else(|| "-".to_owned(), figure_text)
}

/// What is said of the row of one of the paper's targets, beside what it has published.
fn remark(counterpart: Option<&str>) -> String {
    if counterpart.is_some() { "published".to_owned() } else { format!("published; {A_MODULE}") }
}

/// What plain TCP and the store gave here, in 10^6 bytes per second.
struct Ceilings<'a>(Vec<&'a CellResult>);

impl<'a> Ceilings<'a> {
    fn of(cells: &'a [CellResult]) -> Self {
        Self(cells.iter().filter(|cell| value(cell, "initiator") == Some(NOBODY)).collect())
    }

    fn one(&self, profile: &str, frames: &str) -> Option<f64> {
        let is_it = |cell: &&&CellResult| {
            value(cell, "profile") == Some(profile) && value(cell, "frames") == Some(frames)
        };
        self.0.iter().find(is_it).map(|cell| cell.measured).filter(|measured| *measured > 0.0)
    }

    /// What the store gives.
    fn store(&self) -> Option<f64> {
        self.one(STORE, "-")
    }

    /// What the network carries of commands of which this share reads: reads come one way and writes go the other, until one of
    /// the two is full.
    fn network(&self, frames: &str, read: f64) -> Option<f64> {
        let way = |profile, share: f64| {
            if share > 0.0 { Some(self.one(profile, frames)? / share) } else { Some(f64::INFINITY) }
        };
        Some(way(TO_INITIATOR, read)?.min(way(TO_TARGET, 1.0 - read)?))
    }
}

/// What share each figure has of the two ceilings (4.1): the measured ones of what was measured here, those that were published of
/// the paper's.
fn shares(cells: &[CellResult]) -> Summary {
    let here = Ceilings::of(cells);
    let (network, store) = (of_paper("network"), of_paper("store"));
    let mebibytes = Metric::MebibytesPerSecond.unit();
    let measured = |cell: &CellResult| {
        let beside = || cell.further.iter().find(|one| one.name == mebibytes).map(|one| one.measured);
        if cell.unit == mebibytes { Some(cell.measured) } else { beside() }.map(megabytes)
    };
    let in_megabytes = |profile: &Profile, figure: Option<f64>| {
        let bytes = if is_iops(profile) { f64::from(profile.size_bytes) } else { f64::from(1 << 20) };
        figure.map(|figure| figure * bytes / 1e6)
    };
    let share =
        |figure: Option<f64>, of: Option<f64>| told(figure.zip(of).map(|(figure, of)| figure / of * 100.0));
    let row = |kind: [&str; 3], profile: &Profile, own: Option<f64>, theirs: Option<f64>| -> Vec<String> {
        let carried = here.network(kind[2], f64::from(profile.read.get()) / 100.0);
        let [target, initiator, frames] = kind.map(str::to_owned);
        let figures = [
            told(own),
            told(carried),
            share(own, carried),
            share(own, here.store()),
            told(theirs),
            share(theirs, network),
            share(theirs, store),
        ];
        [target, initiator, frames, profile.name.to_owned()].into_iter().chain(figures).collect()
    };
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut places: Vec<(&str, &str, Profile)> = Vec::new();
    for cell in of_profiles(cells) {
        let Some(profile) = value(cell, "profile").and_then(|name| name.parse::<Profile>().ok()) else {
            continue;
        };
        let kind = kind(cell);
        rows.push(row(kind, &profile, measured(cell), in_megabytes(&profile, cell.published)));
        if !places.contains(&(kind[1], kind[2], profile)) {
            places.push((kind[1], kind[2], profile));
        }
    }
    for (target, _) in TARGETS.iter().filter(|target| target.1.is_none()) {
        let name = format!("{target} ({A_MODULE})");
        for (initiator, frames, profile) in &places {
            let figure = published(initiator, frames, profile.name, Some(target)).published;
            rows.push(row([&name, initiator, frames], profile, None, in_megabytes(profile, figure)));
        }
    }
    let columns = ["target", "initiator", "frames", "profile", "MB/s here", "the network here"];
    let shares = ["% of the network here", "% of the store here"];
    let published = ["MB/s published", "% of the paper's network", "% of the paper's store"];
    let columns = columns.iter().chain(&shares).chain(&published).map(|name| (*name).to_owned()).collect();
    let title = format!(
        "Shares of the two ceilings: of figures measured here, what plain TCP carried here of such a mix over the same link, and {} MB/s \
         by the store here; of published ones, the paper's {} MB/s by its network and {} MB/s by its store",
        told(here.store()),
        told(network),
        told(store)
    );
    Summary { title, columns, rows }
}

/// Throughput and operations by target, ours and the paper's: what its figures 4.21 and 4.22 compare.
fn by_target(cells: &[CellResult]) -> Summary {
    let mut kinds: Vec<[&str; 3]> = Vec::new();
    for kind in of_profiles(cells).map(kind) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let mut rows: Vec<Vec<String>> = Vec::new();
    for own in &kinds {
        let figure = |profile: &str| {
            let is_it = |cell: &&CellResult| kind(cell) == *own && value(cell, "profile") == Some(profile);
            cells.iter().find(is_it).map(|cell| cell.measured)
        };
        let row = own.iter().map(|name| (*name).to_owned()).chain(["measured".to_owned()]);
        rows.push(row.chain(COMPARED.map(|profile| told(figure(profile)))).collect());
    }
    let mut beside: Vec<&[&str]> = kinds.iter().map(|kind| &kind[1..]).collect();
    beside.sort_unstable();
    beside.dedup();
    for (target, counterpart) in TARGETS {
        for kind in &beside {
            let figure = |profile| published(kind[0], kind[1], profile, Some(target)).published;
            let row = [target.to_owned(), kind[0].to_owned(), kind[1].to_owned(), remark(counterpart)];
            rows.push(row.into_iter().chain(COMPARED.map(|profile| told(figure(profile)))).collect());
        }
    }
    let columns =
        ["target", "initiator", "frames", "", "read MiB/s", "write MiB/s", "read IOPS", "write IOPS"];
    let title = "Maximum throughput and operations by target".to_owned();
    Summary { title, columns: columns.map(str::to_owned).to_vec(), rows }
}

/// Every row of appendix G, beside what was measured here of it.
fn appendix(cells: &[CellResult]) -> Summary {
    let is_here = |target: &str| of_profiles(cells).any(|cell| kind(cell)[0] == target);
    let mut columns = ["initiator", "frames", "profile", "unit", OURS].map(str::to_owned).to_vec();
    let mut shown: Vec<(&str, Option<&str>)> = Vec::new();
    for (target, counterpart) in TARGETS {
        let counterpart_here = counterpart.filter(|name| is_here(name));
        columns.extend(counterpart_here.map(str::to_owned));
        columns.push(match (counterpart, counterpart_here) {
            (_, Some(_)) => format!("{target} published"),
            (Some(name), None) => format!("{target} published; {name} was not measured"),
            (None, None) => format!("{target} published; {A_MODULE}"),
        });
        shown.push((target, counterpart_here));
    }
    let mut rows = Vec::new();
    for initiator in INITIATORS {
        for profile in profiles() {
            for (frames, _) in FRAMES {
                let measured = |target: &str| {
                    let is_it = |cell: &&CellResult| {
                        kind(cell) == [target, initiator, frames]
                            && value(cell, "profile") == Some(profile.name)
                    };
                    of_profiles(cells).find(is_it).map_or_else(|| "-".to_owned(), with_deviation)
                };
                let unit =
                    if is_iops(profile) { Metric::OperationsPerSecond } else { Metric::MebibytesPerSecond };
                let names = [initiator, frames, profile.name, unit.unit()].map(str::to_owned);
                let mut row: Vec<String> = names.into_iter().chain([measured(OURS)]).collect();
                for (target, counterpart) in &shown {
                    row.extend(counterpart.map(measured));
                    row.push(of_the_paper(&published(initiator, frames, profile.name, Some(target))));
                }
                rows.push(row);
            }
        }
    }
    let title =
        "Appendix G, every row of it, beside what was measured here: mean and standard deviation of the runs"
            .to_owned();
    Summary { title, columns, rows }
}

/// A single run has no deviation.
fn with_deviation(cell: &CellResult) -> String {
    let alone = || figure_text(cell.measured);
    if cell.runs.len() < 2 {
        return alone();
    }
    format!("{} ± {}", figure_text(mean(&cell.runs)), figure_text(deviation(&cell.runs)))
}

fn of_the_paper(published: &OfPeer) -> String {
    let deviation = published.beside.iter().find(|named| named.0 == DEVIATION);
    let deviation = deviation.map(|named| format!(" ± {}", figure_text(named.1))).unwrap_or_default();
    told(published.published) + &deviation
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Further;
    use crate::study::published::TRINKLE;

    fn cell(of: [&str; 3], target: &str, measured: f64, unit: &str) -> CellResult {
        let names = ["initiator", "profile", "frames", "target"];
        let values = of.into_iter().chain([target]);
        CellResult {
            parameters: names
                .iter()
                .zip(values)
                .map(|(name, value)| ((*name).into(), value.into()))
                .collect(),
            ..CellResult::of(vec![measured], measured, unit)
        }
    }

    #[test]
    fn targets_are_compared_beside_the_papers() {
        let cell = |profile: &str, target: &str, measured| {
            cell(["physical", profile, "standard"], target, measured, "IOPS")
        };
        let cells = [
            cell("max-iops", "lunette", 50_000.0),
            cell("max-iops", "tgtd", 30_000.0),
            cell("sql-16k", "tgtd", 1.0),
            self::cell([NOBODY, TO_TARGET, "standard"], "lunette", 118.0, "MB/s"),
        ];
        let rows = by_target(&cells).rows;
        assert_eq!(rows[0].join(" "), "lunette physical standard measured - - 50000 -");
        assert_eq!(rows[1].join(" "), "tgtd physical standard measured - - 30000 -");
        assert_eq!(rows[2].join(" "), "IET physical standard published 113 109 49157 53569");
        assert_eq!(
            rows[3][..4].join(" "),
            "SCST physical standard published; not measured here: a kernel module"
        );
        assert_eq!(rows.len(), 2 + 4, "ceilings are no target's");
        assert!(rows.iter().all(|row| row.len() == 8));
    }

    #[test]
    fn figures_have_their_share_of_the_ceilings_here_and_published_ones_of_the_papers() {
        let standard = |profile: &str, measured, unit, published, further| CellResult {
            published,
            further,
            ..cell(["physical", profile, "standard"], "tgtd", measured, unit)
        };
        let beside = vec![Further::new("MiB/s", 25.0, "")];
        let ceiling =
            |what: &str, frames: &str, measured| cell([NOBODY, what, frames], "lunette", measured, "MB/s");
        let mut cells = vec![
            standard("max-throughput", 100.0, "MiB/s", Some(106.8), Vec::new()),
            standard("max-iops", 51_200.0, "IOPS", Some(43_750.0), beside),
            standard("max-iops", 51_200.0, "IOPS", None, Vec::new()),
            standard("sql-64k", 100.0, "MiB/s", None, Vec::new()),
            standard("max-write-throughput", 100.0, "MiB/s", None, Vec::new()),
        ];
        // Without ceilings of its own a figure is divided by none, least of all by the paper's.
        let row = |cells: &[CellResult], at: usize| shares(cells).rows[at][4..].join(" ");
        assert_eq!(row(&cells, 0), "105 - - - 112 95.4 24.8");
        cells.extend([
            ceiling(TO_INITIATOR, "standard", 116.0),
            ceiling(TO_TARGET, "standard", 110.0),
            ceiling(TO_TARGET, "jumbo", 123.0),
            ceiling(STORE, "-", 8000.0),
        ]);
        let Summary { title, columns, rows } = shares(&cells);
        assert!(
            title.contains("8000 MB/s by the store here") && title.contains("117 MB/s by its network"),
            "{title}"
        );
        assert_eq!(rows[0][..4].join(" "), "tgtd physical standard max-throughput");
        assert_eq!(row(&cells, 0), "105 116 90.4 1.31 112 95.4 24.8");
        assert_eq!(row(&cells, 1), "26.2 116 22.6 0.328 22.4 19.1 4.97");
        assert_eq!(row(&cells, 2), "- 116 - - - - -");
        // 66 % of 176 MB/s come down, which is full then.
        assert_eq!(row(&cells, 3), "105 176 59.7 1.31 - - -");
        assert_eq!(row(&cells, 4), "105 110 95.3 1.31 - - -");
        // SCST has the same profiles, each once.
        assert_eq!(rows.len(), 5 + 4);
        assert_eq!(rows[5][0], "SCST (not measured here: a kernel module)");
        assert_eq!(row(&cells, 5), "- 116 - - 117 99.8 26.0");
        assert!(rows.iter().all(|row| row.len() == columns.len()));
    }

    #[test]
    fn every_row_of_appendix_g_is_told() {
        let of_a_run = |target: &str| CellResult {
            runs: vec![100.0, 104.0],
            ..cell(["physical", "max-throughput", "standard"], target, 102.0, "MiB/s")
        };
        let Summary { columns, rows, .. } = appendix(&[of_a_run("lunette"), of_a_run("tgtd")]);
        assert_eq!(
            columns[4..],
            [
                "lunette",
                "tgtd",
                "IET published",
                "SCST published; not measured here: a kernel module",
                "LIO published; lio was not measured",
                "ISTGT published; istgt was not measured"
            ]
        );
        let first =
            "physical standard max-throughput MiB/s 102 ± 2.00 102 ± 2.00 113 ± 0.290 112 ± 0.580 109 ± 2.19";
        assert!(rows[0].join(" ").starts_with(first), "{:?}", rows[0]);
        let told = |row: &Vec<String>| row[6..].iter().filter(|figure| figure.contains(" ± ")).count();
        assert_eq!(rows.iter().map(told).sum::<usize>(), TRINKLE.all(&[], "mean").len());
        assert!(rows.iter().all(|row| row.len() == columns.len()));
    }
}
