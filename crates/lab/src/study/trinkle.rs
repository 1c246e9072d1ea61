//! Trinkle: a comparison of iSCSI targets by ten access profiles.

mod tables;

use lunette_workload::{Percent, Profile, Sizes, Spread, Workload, profiles};

use super::conclusion::DEVIATION;
use super::peer::Peer;
use super::probe::VirtualProbe;
use super::published::{TRINKLE, TRINKLE_BASELINE};
use super::statistics::median;
use super::{Cell, DiskProbe, Metric, OfPeer, Probe, Study, parameters};

pub(super) use tables::tables;

const PAPER: &str = "Trinkle, a comparison of iSCSI targets (IET, SCST, LIO, ISTGT)";

/// Section 4.1.
pub(crate) const BASELINE: Study = Study {
    name: "trinkle-baseline",
    paper: PAPER,
    question: "what the network and the store reach without iSCSI (4.1): the ceilings of the profiles",
    differs: "One TCP connection instead of iperf's, in both directions; the paper does not say with which frames it had its 112 MB/s. \
              Its MB are of 2^20 bytes, of iperf and hdparm as of Iometer, whose 112.6 MB/s with standard frames \
              it holds against these 112: here they are 117 and 451 MB/s of 10^6. \
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
              and beside lio LIO. SCST is a kernel module that is not measured here: its figures are in the tables alone. The rows of the initiator none are the ceilings, measured \
              over the same links and by the same store in the same run.",
    axes: None,
    cells,
};

/// Other targets that the comparison has where they are installed.
pub(super) const PEERS: [Peer; 2] = [Peer::Tgtd, Peer::Istgt];

/// Frames by the paper's names, and the links that have them.
const FRAMES: [(&str, &str); 2] = [("standard", "gige"), ("jumbo", "gige-jumbo")];
const INITIATORS: [&str; 2] = ["physical", "virtual"];
/// Whose cells are ceilings, and how these are called in the place of a profile.
const NOBODY: &str = "none";
const TO_TARGET: &str = "network-to-target";
const TO_INITIATOR: &str = "network-to-initiator";
const STORE: &str = "store";

/// The paper's targets, and which of those here each is beside; SCST, a kernel module of its own, beside none.
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

/// What the paper's network or store gave, in 10^6 bytes per second. Its MB are 2^20 bytes: it compares what Iometer says in such directly
/// with its 112 MB/s by iperf (4.6), and up to 112.6 came over the same network with standard frames.
pub(super) fn of_paper(what: &str) -> Option<f64> {
    TRINKLE_BASELINE.one(&[("what", what)], "mb_per_s").map(megabytes)
}

/// 2^20 bytes in 10^6.
fn megabytes(mebibytes: f64) -> f64 {
    mebibytes * f64::from(1 << 20) / 1e6
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
    let named = |ceiling: &Ceiling| {
        parameters([
            ("what", ceiling.what.to_owned()),
            ("frames", ceiling.frames.to_owned()),
            ("direction", ceiling.direction.to_owned()),
        ])
    };
    ceilings()
        .into_iter()
        .map(|ceiling| (named(&ceiling), ceiling))
        .map(|(named, ceiling)| ceiling.cell(named))
        .collect()
}

/// What a network or a store gives without iSCSI.
struct Ceiling {
    /// How the published table has it.
    what: &'static str,
    frames: &'static str,
    direction: &'static str,
    /// What it is called among profiles.
    profile: &'static str,
    link: Option<&'static str>,
    probe: Probe,
}

impl Ceiling {
    fn cell(self, parameters: Vec<(&'static str, String)>) -> Cell {
        Cell {
            parameters,
            link: self.link.map(str::to_owned),
            probe: self.probe,
            published: of_paper(self.what),
            published_times: None,
            beside: Vec::new(),
            of_peers: Vec::new(),
        }
    }
}

/// Plain TCP both ways over each link, and the store, read in order.
fn ceilings() -> Vec<Ceiling> {
    let mut ceilings = Vec::new();
    for (frames, link) in FRAMES {
        for (direction, profile, to_target) in
            [("to-target", TO_TARGET, true), ("to-initiator", TO_INITIATOR, false)]
        {
            let probe = Probe::Tcp { to_target, buffer_bytes: None };
            ceilings.push(Ceiling { what: "network", frames, direction, profile, link: Some(link), probe });
        }
    }
    let in_order = Workload {
        sizes: Sizes::one(1 << 20),
        read: Percent::ALL,
        random: Percent::ZERO,
        spread: Spread::Uniform,
    };
    let probe = Probe::Disk(DiskProbe::new(in_order, 1, Metric::MegabytesPerSecond));
    ceilings.push(Ceiling {
        what: "store",
        frames: "-",
        direction: "read",
        profile: STORE,
        link: None,
        probe,
    });
    ceilings
}

/// Whether the paper tells a profile's operations per second, and not its rate.
fn is_iops(profile: &Profile) -> bool {
    profile.name.ends_with("iops")
}

/// Whether a cell of the profiles is one of the ceilings that the others are divided by.
pub(super) fn is_ceiling(cell: &Cell) -> bool {
    cell.parameters.iter().any(|own| own.0 == "initiator" && own.1 == NOBODY)
}

fn cells(_seed: u64) -> Vec<Cell> {
    let named = |initiator: &str, profile: &str, frames: &str| {
        parameters([
            ("initiator", initiator.to_owned()),
            ("profile", profile.to_owned()),
            ("frames", frames.to_owned()),
        ])
    };
    let mut cells = Vec::new();
    for initiator in INITIATORS {
        for profile in profiles() {
            for (frames, link) in FRAMES {
                let metric =
                    if is_iops(profile) { Metric::OperationsPerSecond } else { Metric::MebibytesPerSecond };
                let of = |target| published(initiator, frames, profile.name, target);
                let OfPeer { published, beside, .. } = of(None);
                let beside_ours = TARGETS.iter().filter(|target| target.1.is_some());
                cells.push(Cell {
                    parameters: named(initiator, profile.name, frames),
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
    cells.extend(ceilings().into_iter().map(|ceiling| {
        let parameters = named(NOBODY, ceiling.profile, ceiling.frames);
        ceiling.cell(parameters)
    }));
    cells
}

/// The profiles of the paper's comparison of targets (4.6).
const COMPARED: [&str; 4] = ["max-throughput", "max-write-throughput", "max-iops", "max-write-iops"];

/// Whether a cell has one of these profiles, standard frames, and an initiator that needs no virtual machine.
pub(super) fn is_compared(cell: &Cell) -> bool {
    is_of_comparison(cell) && !is_virtual(cell)
}

/// Whether a cell is too much for a quick run of all: in a virtual machine each takes some seconds, and the first over a link
/// boots one.
pub(super) fn is_wide(cell: &Cell) -> bool {
    is_virtual(cell) && !is_of_comparison(cell)
}

fn is_of_comparison(cell: &Cell) -> bool {
    let has =
        |name, values: &[&str]| cell.parameters.iter().any(|own| own.0 == name && values.contains(&&*own.1));
    has("profile", &COMPARED) && has("frames", &["standard"])
}

const fn is_virtual(cell: &Cell) -> bool {
    matches!(cell.probe, Probe::Virtual(_))
}

#[cfg(test)]
mod tests {
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
        assert!(cells.iter().all(|cell| cell.published.is_some()));
        assert!(cells.iter().all(|cell| cell.beside.len() == usize::from(!is_ceiling(cell))));
    }

    #[test]
    fn the_papers_megabytes_are_the_same_everywhere() {
        let published = baseline(1).into_iter().filter_map(|cell| cell.published);
        let published: Vec<String> = published.map(|figure| format!("{figure:.1}")).collect();
        assert_eq!(published, ["117.4", "117.4", "117.4", "117.4", "450.9"]);
        // What came over the network with the usual frames is as much as the network, and not a twentieth more.
        let wanted = ["Maximum Throughput", "Maximum Write Throughput"];
        let wanted = wanted.map(|test| [("test", test), ("frames", "standard")]);
        let all = wanted.iter().flat_map(|wanted| TRINKLE.all(wanted, "mean"));
        let most = all.map(megabytes).fold(0.0, f64::max);
        assert!(
            of_paper("network").is_some_and(|network| (0.99..1.02).contains(&(most / network))),
            "{most}"
        );
    }

    #[test]
    fn the_ceilings_are_measured_over_the_links_of_what_is_divided_by_them() {
        let cells = cells(1);
        let (ceilings, others): (Vec<&Cell>, Vec<&Cell>) = cells.iter().partition(|cell| is_ceiling(cell));
        assert_eq!((ceilings.len(), others.len()), (5, 40));
        let links = |cells: &[&Cell], frames: &str| {
            let has = |cell: &&&Cell| cell.parameters.contains(&("frames", frames.to_owned()));
            let mut links: Vec<_> = cells.iter().filter(has).map(|cell| cell.link.clone()).collect();
            links.dedup();
            links
        };
        for (frames, _) in FRAMES {
            assert_eq!(links(&ceilings, frames), links(&others, frames), "{frames}");
        }
        // What is measured is what the study of the ceilings alone has.
        let told = |cells: &[Cell]| {
            let ceilings =
                cells.iter().filter(|cell| matches!(cell.probe, Probe::Tcp { .. }) || cell.link.is_none());
            ceilings
                .map(|cell| format!("{:?} {:?} {:?}", cell.link, cell.probe, cell.published))
                .collect::<Vec<_>>()
        };
        assert_eq!(told(&cells), told(&baseline(1)));
    }
}
