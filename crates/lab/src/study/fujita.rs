//! Fujita and Ogawara: analysis of iSCSI target software.

use lunette_workload::{Percent, Sizes, Spread, Workload};

use super::probe::Design;
use super::{Cell, DiskProbe, Keys, Metric, Probe, Study, parameters};

/// Figures 3 to 6.
pub(crate) const MICRO: Study = Study {
    name: "fujita-micro",
    paper: "Fujita and Ogawara, Analysis of iSCSI Target Software",
    question: "what the design of a target makes of small requests, in order and at random, with cold caches (figures 3 to 6)",
    differs: "All designs are engines of one target: fileio and fileio-sync one blocking operation at a time, without and with every write \
              stable, diskio without a page cache, threads as Threaded-Ardis, and io_uring. The paper has figures and no \
              numbers. Before each run the image is written back and dropped from this machine's page cache; what \
              the disk below has in memory stays there. 50,000 operations a run, 32 under way; a quick run is a part of a second.",
    axes: Some(("size_kib", "design")),
    cells: micro,
};

fn micro() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (order, random) in [("sequential", Percent::ZERO), ("random", Percent::ALL)] {
        for (op, read) in [("write", Percent::ZERO), ("read", Percent::ALL)] {
            for design in Design::ALL {
                // Without writes these two are the same.
                if op == "read" && design == Design::FileioSync {
                    continue;
                }
                for size_kib in [2_u32, 4, 8, 16, 32] {
                    let sizes = Sizes::one(size_kib << 10);
                    let workload = Workload { sizes, read, random, spread: Spread::Uniform };
                    let disk = DiskProbe::new(workload, 32, Metric::MegabytesPerSecond);
                    cells.push(Cell {
                        parameters: parameters([
                            ("access", format!("{order}-{op}")),
                            ("design", design.name().to_owned()),
                            ("size_kib", size_kib.to_string()),
                        ]),
                        link: Some("gige".to_owned()),
                        probe: Probe::Disk(DiskProbe { keys: Keys::Fujita, design: Some(design), ..disk }),
                        published: None,
                    });
                }
            }
        }
    }
    cells
}
