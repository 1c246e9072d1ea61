//! Lu and Du: performance study of iSCSI-based storage subsystems.

use std::sync::Arc;

use lunette_workload::{Percent, Sizes, Spread, Trace, Workload};

use super::published::{LU_HEAVY, LU_LIGHT, LU_TRACE};
use super::{Cell, DiskProbe, Load, Metric, Probe, Study, parameters};

const PAPER: &str = "Lu and Du, Performance Study of iSCSI-Based Storage Subsystems";

/// Their configurations, and the links that are here in their place.
const CONFIGURATIONS: [(&str, Option<&str>); 3] =
    [("fc-san", None), ("gige-lan-iscsi", Some("gige")), ("campus-iscsi", Some("campus"))];

/// Table 2.
pub(crate) const LIGHT: Study = Study {
    name: "lu-light",
    paper: PAPER,
    question: "how long one random read or write takes, near and far (table 2)",
    differs: "Memory instead of a RAID: of the published latencies about 9 ms are its disks'. Access without a network stands for the Fibre \
              Channel loop. What a network adds to the first column is what can be compared.",
    cells: light,
};

/// Figure 2.
pub(crate) const HEAVY: Study = Study {
    name: "lu-heavy",
    paper: PAPER,
    question: "what 64 random commands under way reach, near and far (figure 2)",
    differs: "Six parts of one memory instead of six disks, whose seeks were the paper's limit but for 64 KiB over the campus. The paper \
              says that the share of reads makes less than 5 %, and gives one figure for all of them.",
    cells: heavy,
};

/// The section on a database trace.
pub(crate) const TRACE: Study = Study {
    name: "lu-trace",
    paper: PAPER,
    question: "what a database's requests reach, 32 under way and without think time",
    differs: "The trace was never published; a made one has its count, its share of reads, its blocks and its mean size. Memory instead \
              of the paper's disks, which were its limit but over the campus.",
    cells: trace,
};

fn random(size_bytes: u32, read: Percent) -> Workload {
    Workload { sizes: Sizes::one(size_bytes), read, random: Percent::ALL, spread: Spread::Uniform }
}

fn light() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (configuration, link) in CONFIGURATIONS {
        for (op, read) in [("read", Percent::ALL), ("write", Percent::ZERO)] {
            for size_kib in [1_u32, 4, 16, 64] {
                let size = size_kib.to_string();
                let wanted = [("configuration", configuration), ("op", op), ("size_kib", &*size)];
                let disk = DiskProbe::new(random(size_kib << 10, read), 1, Metric::MeanMilliseconds);
                cells.push(Cell {
                    published: LU_LIGHT.one(&wanted, "mean_ms"),
                    link: link.map(str::to_owned),
                    probe: Probe::Disk(disk),
                    parameters: wanted.iter().map(|&(name, value)| (name, value.to_owned())).collect(),
                });
            }
        }
    }
    cells
}

fn heavy() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (configuration, link) in CONFIGURATIONS {
        for size_kib in [4_u32, 64] {
            for read in [100, 80, 20, 0] {
                let size = size_kib.to_string();
                let wanted = [("configuration", configuration), ("size_kib", &*size)];
                let workload = random(size_kib << 10, Percent::new(read));
                cells.push(Cell {
                    published: LU_HEAVY.one(&wanted, "approx_mb_per_s"),
                    link: link.map(str::to_owned),
                    probe: Probe::Disk(DiskProbe::new(workload, 64, Metric::MegabytesPerSecond)),
                    parameters: parameters([
                        ("configuration", configuration.to_owned()),
                        ("size_kib", size.clone()),
                        ("read_percent", read.to_string()),
                    ]),
                });
            }
        }
    }
    cells
}

fn trace() -> Vec<Cell> {
    let trace = Arc::new(Trace::lu_du(1).unwrap_or_default());
    let mut cells = Vec::new();
    for (column, metric) in
        [("mb_per_s", Metric::MegabytesPerSecond), ("mean_response_ms", Metric::MeanMilliseconds)]
    {
        for (configuration, link) in CONFIGURATIONS {
            let workload = random(16 << 10, Percent::new(70));
            let disk =
                DiskProbe { load: Load::Trace(Arc::clone(&trace)), ..DiskProbe::new(workload, 32, metric) };
            cells.push(Cell {
                published: LU_TRACE.one(&[("configuration", configuration)], column),
                link: link.map(str::to_owned),
                probe: Probe::Disk(disk),
                parameters: parameters([
                    ("figure", column.to_owned()),
                    ("configuration", configuration.to_owned()),
                ]),
            });
        }
    }
    cells
}
