//! Trinkle: a comparison of iSCSI targets by ten access profiles.

use lunette_workload::{Percent, Profile, Sizes, Spread, Workload, profiles};

use super::published::{TRINKLE, TRINKLE_BASELINE};
use super::result::median;
use super::{Cell, DiskProbe, Metric, Probe, Study, parameters};

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
    question: "what a target reaches under ten access profiles, with standard and jumbo frames",
    differs: "Our target and initiator on emulated Gigabit Ethernet; memory instead of disks, so the profiles of applications show the network \
              and the target, and there the paper's disks. The published figure is the median of the four targets' for a physical initiator, the same \
              whichever target is measured. The paper's standard deviations and its initiators in virtual machines are not repeated, and \
              neither is LIO.",
    axes: None,
    cells,
};

/// How the paper calls a profile.
fn title(profile: &Profile) -> &'static str {
    match profile.name {
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

fn baseline() -> Vec<Cell> {
    let cell = |what: &str, frames: &str, direction: &str, link: Option<&str>, probe| Cell {
        parameters: parameters([
            ("what", what.to_owned()),
            ("frames", frames.to_owned()),
            ("direction", direction.to_owned()),
        ]),
        link: link.map(str::to_owned),
        probe,
        published: TRINKLE_BASELINE.one(&[("what", what)], "mb_per_s"),
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

fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for profile in profiles() {
        for (frames, link) in [("standard", "gige"), ("jumbo", "gige-jumbo")] {
            let is_iops = profile.name.ends_with("iops");
            let metric = if is_iops { Metric::OperationsPerSecond } else { Metric::MebibytesPerSecond };
            let wanted = [("initiator", "physical"), ("frames", frames), ("test", title(profile))];
            let published = median(TRINKLE.all(&wanted, "mean"));
            cells.push(Cell {
                parameters: parameters([("profile", profile.name.to_owned()), ("frames", frames.to_owned())]),
                link: Some(link.to_owned()),
                probe: Probe::Disk(DiskProbe::new(profile.workload(), profile.depth, metric)),
                published,
            });
        }
    }
    cells
}
