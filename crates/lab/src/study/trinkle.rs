//! Trinkle: a comparison of iSCSI targets by ten access profiles.

use lunette_workload::{Percent, Profile, Sizes, Spread, Workload, profiles};

use super::conclusion::DEVIATION;
use super::peer::Peer;
use super::probe::VirtualProbe;
use super::published::{TRINKLE, TRINKLE_BASELINE};
use super::result::{CellResult, Summary};
use super::statistics::median;
use super::{Cell, DiskProbe, Metric, OfPeer, Probe, Study, parameters};
use crate::report::figure_text;

const PAPER: &str = "Trinkle, a comparison of iSCSI targets (IET, SCST, LIO, ISTGT)";

/// Section 4.1.
pub(crate) const BASELINE: Study = Study {
    name: "trinkle-baseline",
    paper: PAPER,
    question: "what the network and the store reach without iSCSI (4.1): the ceilings of the profiles",
    differs: "One TCP connection instead of iperf's, in both directions; the paper does not say with which frames it had its 112 MB/s. \
              Instead of a RAID and hdparm, the memory that the profiles use as their disk, read in order 1 MiB at a time.",
    axes: None,
    cells: baseline,
};

/// Appendix G.
pub(crate) const PROFILES: Study = Study {
    name: "trinkle-profiles",
    paper: PAPER,
    question: "what a target reaches under ten access profiles, with standard and jumbo frames, from a physical and a virtual initiator",
    differs: "Our target on emulated Gigabit Ethernet, and beside it tgtd and istgt where they are installed, or those of --peers; memory instead of disks, so the profiles of applications show \
              the network and the target, and there the paper's disks. The physical initiator is ours, the virtual one Linux's with fio in a virtual \
              machine. Beside our target stands the median of the paper's four; beside tgtd IET, whose appendix B configures tgt, beside istgt ISTGT, \
              and beside lio LIO.",
    axes: None,
    cells,
};

/// Other targets that the comparison has where they are installed.
pub(super) const PEERS: [Peer; 2] = [Peer::Tgtd, Peer::Istgt];

/// The paper's targets, and which of ours each is beside.
pub(super) const TARGETS: [(&str, Option<&str>); 4] =
    [("IET", Some("tgtd")), ("SCST", None), ("LIO", Some("lio")), ("ISTGT", Some("istgt"))];

/// What was published of an initiator, frames and a profile: of one of the targets, or the median of all.
pub(super) fn published(initiator: &str, frames: &str, profile: &str, target: Option<&str>) -> OfPeer {
    let mut wanted = vec![("initiator", initiator), ("frames", frames), ("test", title(profile))];
    wanted.extend(target.map(|target| ("target", target)));
    let figure = |column| median(TRINKLE.all(&wanted, column));
    OfPeer {
        peer: TARGETS.iter().find(|row| Some(row.0) == target).and_then(|row| row.1).unwrap_or_default(),
        published: figure("mean"),
        beside: figure("std").map(|std| (DEVIATION, std)).into_iter().collect(),
    }
}

/// How the paper calls a profile.
fn title(profile: &str) -> &'static str {
    match profile {
        "max-throughput" => "Maximum Throughput",
        "max-iops" => "Maximum IOPS",
        "max-write-throughput" => "Maximum Write Throughput",
        "max-write-iops" => "Maximum Write IOPS",
        "exchange-2003" => "Exchange 03",
        "exchange-2007" => "Exchange 07",
        "sql-16k" => "SQL 16K",
        "sql-64k" => "SQL 64K",
        "web-server" => "Web Server",
        _ => "Workstation",
    }
}

fn baseline(_seed: u64) -> Vec<Cell> {
    let cell = |what: &str, frames: &str, direction: &str, link: Option<&str>, probe| Cell {
        parameters: parameters([
            ("what", what.to_owned()),
            ("frames", frames.to_owned()),
            ("direction", direction.to_owned()),
        ]),
        link: link.map(str::to_owned),
        probe,
        published: TRINKLE_BASELINE.one(&[("what", what)], "mb_per_s"),
        published_times: None,
        beside: Vec::new(),
        of_peers: Vec::new(),
    };
    let mut cells = Vec::new();
    for (frames, link) in [("standard", "gige"), ("jumbo", "gige-jumbo")] {
        for (direction, to_target) in [("to-target", true), ("to-initiator", false)] {
            let probe = Probe::Tcp { to_target, buffer_bytes: None };
            cells.push(cell("network", frames, direction, Some(link), probe));
        }
    }
    let in_order = Workload {
        sizes: Sizes::one(1 << 20),
        read: Percent::ALL,
        random: Percent::ZERO,
        spread: Spread::Uniform,
    };
    let probe = Probe::Disk(DiskProbe::new(in_order, 1, Metric::MegabytesPerSecond));
    cells.push(cell("store", "-", "read", None, probe));
    cells
}

fn cells(_seed: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    for initiator in ["physical", "virtual"] {
        for profile in profiles() {
            for (frames, link) in [("standard", "gige"), ("jumbo", "gige-jumbo")] {
                let is_iops = profile.name.ends_with("iops");
                let metric = if is_iops { Metric::OperationsPerSecond } else { Metric::MebibytesPerSecond };
                let of = |target| published(initiator, frames, profile.name, target);
                let OfPeer { published, beside, .. } = of(None);
                let beside_ours = TARGETS.iter().filter(|target| target.1.is_some());
                cells.push(Cell {
                    parameters: parameters([
                        ("initiator", initiator.to_owned()),
                        ("profile", profile.name.to_owned()),
                        ("frames", frames.to_owned()),
                    ]),
                    link: Some(link.to_owned()),
                    probe: if initiator == "physical" {
                        Probe::Disk(DiskProbe::new(profile.workload(), profile.depth, metric))
                    } else {
                        Probe::Virtual(VirtualProbe { profile: *profile, metric })
                    },
                    published,
                    published_times: None,
                    beside,
                    of_peers: beside_ours.map(|target| of(Some(target.0))).collect(),
                });
            }
        }
    }
    cells
}

/// The profiles of the paper's comparison of targets (4.6).
const COMPARED: [&str; 4] = ["max-throughput", "max-write-throughput", "max-iops", "max-write-iops"];

/// Whether a cell has one of these profiles, standard frames, and an initiator that needs no virtual machine.
pub(super) fn is_compared(cell: &Cell) -> bool {
    let has =
        |name, values: &[&str]| cell.parameters.iter().any(|own| own.0 == name && values.contains(&&*own.1));
    has("profile", &COMPARED) && has("frames", &["standard"]) && !has("initiator", &["virtual"])
}

/// What share of the paper's two ceilings each cell has, and the paper's own: of what its network and its store gave without iSCSI (4.1).
pub(crate) fn shares(cells: &[CellResult]) -> Vec<Summary> {
    let ceiling = |what| TRINKLE_BASELINE.one(&[("what", what)], "mb_per_s");
    let (Some(network), Some(store)) = (ceiling("network"), ceiling("store")) else { return Vec::new() };
    let value = |cell: &CellResult, name: &str| {
        cell.parameters.iter().find(|pair| pair.0 == name).map(|pair| pair.1.clone())
    };
    let mebibytes = Metric::MebibytesPerSecond.unit();
    let megabytes = |mebibytes: f64| mebibytes * f64::from(1 << 20) / 1e6;
    let measured = |cell: &CellResult| {
        let beside = || cell.further.iter().find(|one| one.name == mebibytes).map(|one| one.measured);
        if cell.unit == mebibytes { Some(cell.measured) } else { beside() }.map(megabytes)
    };
    let published = |cell: &CellResult| {
        let profile: Profile = value(cell, "profile")?.parse().ok()?;
        let figure = cell.published?;
        let of_operations = figure * f64::from(profile.size_bytes) / 1e6;
        Some(if cell.unit == mebibytes { megabytes(figure) } else { of_operations })
    };
    let told = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), figure_text);
    let row = |cell: &CellResult| {
        let target = value(cell, "target").unwrap_or_else(|| "lunette".to_owned());
        let names = ["initiator", "frames", "profile"].map(|name| value(cell, name).unwrap_or_default());
        let figures = [measured(cell), published(cell)].into_iter().flat_map(|figure| {
            let share = |of: f64| figure.map(|figure| figure / of * 100.0);
            [figure, share(network), share(store)].map(told)
        });
        std::iter::once(target).chain(names).chain(figures).collect()
    };
    let columns = ["target", "initiator", "frames", "profile", "MB/s", "% of network", "% of store"];
    let published = ["MB/s published", "% of network published", "% of store published"];
    let columns = columns.iter().chain(&published).map(|name| (*name).to_owned()).collect();
    let title = format!(
        "Shares of the paper's two ceilings: {} MB/s by its network, {} MB/s by its store",
        figure_text(network),
        figure_text(store)
    );
    vec![Summary { title, columns, rows: cells.iter().map(row).collect() }]
}

/// Throughput and operations by target, ours and the paper's: what its figures 4.21 and 4.22 compare.
pub(crate) fn by_target(cells: &[CellResult]) -> Vec<Summary> {
    let value = |cell: &CellResult, name: &str| {
        cell.parameters.iter().find(|pair| pair.0 == name).map(|pair| pair.1.clone())
    };
    let kind = |cell: &CellResult| {
        let target = value(cell, "target").unwrap_or_else(|| "lunette".to_owned());
        [target, value(cell, "initiator").unwrap_or_default(), value(cell, "frames").unwrap_or_default()]
    };
    let mut kinds: Vec<[String; 3]> = Vec::new();
    for kind in cells.iter().map(kind) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let told = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), figure_text);
    let mut rows: Vec<Vec<String>> = Vec::new();
    for own in &kinds {
        let figure = |profile: &str| {
            let is_it =
                |cell: &&CellResult| kind(cell) == *own && value(cell, "profile").as_deref() == Some(profile);
            cells.iter().find(is_it).map(|cell| cell.measured)
        };
        let row = own.iter().cloned().chain(["measured".to_owned()]);
        rows.push(row.chain(COMPARED.map(|profile| told(figure(profile)))).collect());
    }
    let mut beside: Vec<&[String]> = kinds.iter().map(|kind| &kind[1..]).collect();
    beside.sort();
    beside.dedup();
    for (target, _) in TARGETS {
        for kind in &beside {
            let figure = |profile| published(&kind[0], &kind[1], profile, Some(target)).published;
            let row = [target.to_owned(), kind[0].clone(), kind[1].clone(), "published".to_owned()];
            rows.push(row.into_iter().chain(COMPARED.map(|profile| told(figure(profile)))).collect());
        }
    }
    let columns =
        ["target", "initiator", "frames", "", "read MiB/s", "write MiB/s", "read IOPS", "write IOPS"];
    let title = "Maximum throughput and operations by target".to_owned();
    vec![Summary { title, columns: columns.map(str::to_owned).to_vec(), rows }]
}

#[cfg(test)]
mod tests {
    use super::super::Further;
    use super::*;

    #[test]
    fn each_target_stands_beside_the_papers_own() {
        let cells = cells(1);
        let first = &cells[0];
        let of = |peer| first.of_peers.iter().find(|own| own.peer == peer).and_then(|own| own.published);
        let paper = |target| {
            let wanted = [
                ("target", target),
                ("initiator", "physical"),
                ("frames", "standard"),
                ("test", "Maximum Throughput"),
            ];
            TRINKLE.one(&wanted, "mean")
        };
        assert!(of("tgtd").is_some() && of("tgtd") == paper("IET") && of("istgt") == paper("ISTGT"));
        assert_eq!((of("lio"), first.of_peers.len()), (paper("LIO"), 3));
        assert!(cells.iter().all(|cell| cell.published.is_some() && cell.beside.len() == 1));
    }

    #[test]
    fn targets_are_compared_beside_the_papers() {
        let cell = |profile: &str, target: &str, measured| CellResult {
            parameters: vec![
                ("initiator".into(), "physical".into()),
                ("profile".into(), profile.into()),
                ("frames".into(), "standard".into()),
                ("target".into(), target.into()),
            ],
            ..CellResult::of(vec![measured], measured, "IOPS")
        };
        let cells = [
            cell("max-iops", "lunette", 50_000.0),
            cell("max-iops", "tgtd", 30_000.0),
            cell("sql-16k", "tgtd", 1.0),
        ];
        let rows = by_target(&cells).remove(0).rows;
        assert_eq!(rows[0].join(" "), "lunette physical standard measured - - 50000 -");
        assert_eq!(rows[1].join(" "), "tgtd physical standard measured - - 30000 -");
        assert_eq!(rows[2].join(" "), "IET physical standard published 113 109 49157 53569");
        assert_eq!(rows.len(), 2 + 4);
        assert!(rows.iter().all(|row| row.len() == 8));
    }

    #[test]
    fn each_cell_has_its_share_of_both_ceilings() {
        let cell = |profile: &str, measured, unit, published, further| CellResult {
            parameters: vec![
                ("initiator".into(), "physical".into()),
                ("profile".into(), profile.into()),
                ("frames".into(), "standard".into()),
                ("target".into(), "tgtd".into()),
            ],
            published,
            further,
            ..CellResult::of(vec![measured], measured, unit)
        };
        let beside = vec![Further::new("MiB/s", 25.0, "")];
        let cells = [
            cell("max-throughput", 100.0, "MiB/s", Some(106.8), Vec::new()),
            cell("max-iops", 51_200.0, "IOPS", Some(43_750.0), beside),
            cell("max-iops", 51_200.0, "IOPS", None, Vec::new()),
        ];
        let Summary { title, columns, rows } = shares(&cells).remove(0);
        assert!(title.contains("112 MB/s by its network, 430 MB/s by its store"), "{title}");
        assert_eq!(rows[0].join(" "), "tgtd physical standard max-throughput 105 93.6 24.4 112 100.0 26.0");
        assert_eq!(rows[1].join(" "), "tgtd physical standard max-iops 26.2 23.4 6.10 22.4 20.0 5.21");
        assert_eq!(rows[2][4..], ["-"; 6]);
        assert!(rows.iter().all(|row| row.len() == columns.len()));
    }
}
