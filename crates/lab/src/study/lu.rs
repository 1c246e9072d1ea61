//! Lu and Du: performance study of iSCSI-based storage subsystems.

use lunette_workload::{Percent, Sizes, Spread, Workload};

use super::published::LU_LIGHT;
use super::{Cell, Keys, Metric, Probe, Study, parameters};

/// Table 2.
pub(crate) const LIGHT: Study = Study {
    name: "lu-light",
    paper: "Lu and Du, Performance Study of iSCSI-Based Storage Subsystems",
    question: "how long one random read or write takes, near and far (table 2)",
    differs: "Memory instead of a RAID: of the published latencies about 9 ms are its disks'. Access without a network stands for the Fibre \
              Channel loop. What a network adds to the first column is what can be compared.",
    cells: light,
};

fn light() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (configuration, link) in
        [("fc-san", None), ("gige-lan-iscsi", Some("gige")), ("campus-iscsi", Some("campus"))]
    {
        for (op, read) in [("read", Percent::ALL), ("write", Percent::ZERO)] {
            for size_kib in [1_u32, 4, 16, 64] {
                let size = size_kib.to_string();
                let wanted = [("configuration", configuration), ("op", op), ("size_kib", &*size)];
                let workload = Workload {
                    sizes: Sizes::one(size_kib << 10),
                    read,
                    random: Percent::ALL,
                    spread: Spread::Uniform,
                };
                cells.push(Cell {
                    published: LU_LIGHT.one(&wanted, "mean_ms"),
                    link: link.map(str::to_owned),
                    probe: Probe::Disk {
                        workload,
                        depth: 1,
                        keys: Keys::Defaults,
                        metric: Metric::MeanMilliseconds,
                    },
                    parameters: parameters([
                        ("configuration", configuration.to_owned()),
                        ("op", op.to_owned()),
                        ("size_kib", size.clone()),
                    ]),
                });
            }
        }
    }
    cells
}
