//! Trinkle: a comparison of iSCSI targets by ten access profiles.

use lunette_workload::{Profile, profiles};

use super::published::TRINKLE;
use super::result::median;
use super::{Cell, Keys, Metric, Probe, Study, parameters};

/// Appendix G.
pub(crate) const PROFILES: Study = Study {
    name: "trinkle-profiles",
    paper: "Trinkle, a comparison of iSCSI targets (IET, SCST, LIO, ISTGT), tables of appendix G",
    question: "what a target reaches under ten access profiles, with standard and jumbo frames",
    differs: "Our target and initiator on emulated Gigabit Ethernet; memory instead of disks, so the profiles of applications show the network \
              and the target, and there the paper's disks. The published figure is the median of the four targets' for a physical initiator.",
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
                probe: Probe::Disk {
                    workload: profile.workload(),
                    depth: profile.depth,
                    keys: Keys::Defaults,
                    metric,
                },
                published,
            });
        }
    }
    cells
}
