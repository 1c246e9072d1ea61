//! Which parts of a disk of memory are to be written because a cell reads them.

use lunette_workload::Range;

use super::disk::{DiskProbe, Load};
use crate::study::written::read_by;
use crate::{Plan, Until};

impl DiskProbe {
    /// What of its disk is memory that it reads: a workload any of it.
    pub(super) fn read_ranges(&self, plan: &Plan) -> Vec<Range> {
        match (&self.load, &plan.until) {
            _ if self.design.is_some() || self.mix().read_share <= 0.0 => Vec::new(),
            (Load::Workload(_), _) => vec![plan.range],
            (Load::Trace(trace), Until::Count(count)) => read_by(trace, *count),
            (Load::Trace(trace), _) => read_by(trace, u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use lunette_block::{StoreSpec, Volume, VolumeSpec};
    use lunette_workload::{Percent, Sizes, Spread, Trace, Workload};

    use super::*;
    use crate::study::probe::{Design, Duty, Metric, Turn};
    use crate::study::site::{BLOCK_BYTES, RANGE_BYTES};
    use crate::{Disk, WriteMode};

    #[test]
    fn what_is_read_of_memory_is_written_before() {
        let spec = VolumeSpec {
            block_length_bytes: BLOCK_BYTES,
            ..VolumeSpec::new("memory", StoreSpec::Memory { size_bytes: RANGE_BYTES })
        };
        let volume = Volume::open(&spec).expect("a volume");
        let disk = || Disk::Local { volume: Arc::clone(&volume), write: WriteMode::Back };
        let duty = |is_quick| {
            Duty::on(Duration::ZERO, Turn { outstanding_bytes: 1, round_trips: 1, losses: None }, 1, is_quick)
        };
        let of = |read: u8, change: &dyn Fn(&mut DiskProbe)| {
            let workload = Workload {
                sizes: Sizes::one(4096),
                read: Percent::new(read),
                random: Percent::ALL,
                spread: Spread::Uniform,
            };
            let mut probe = DiskProbe::new(workload, 1, Metric::MegabytesPerSecond);
            change(&mut probe);
            let told = |is_quick| {
                let ranges = probe.read_ranges(&probe.plan(disk(), duty(is_quick)));
                (ranges.len(), ranges.iter().map(|range| range.length_bytes).sum::<u64>())
            };
            (told(false), told(true))
        };
        let whole = (1, RANGE_BYTES);
        assert_eq!(of(100, &|_| ()), (whole, whole));
        assert_eq!(of(20, &|_| ()), (whole, whole));
        assert_eq!(of(0, &|_| ()), ((0, 0), (0, 0)), "nobody reads");
        assert_eq!(of(100, &|probe| probe.units = 6), ((1, (42 * 6) << 20), (1, (42 * 6) << 20)));
        assert_eq!(
            of(100, &|probe| probe.design = Some(Design::Uring)),
            ((0, 0), (0, 0)),
            "an image is written"
        );
        let trace = Arc::new(Trace::lu_du(1).expect("a trace"));
        let ((_, all), (few, quick)) = of(0, &|probe| probe.load = Load::Trace(Arc::clone(&trace)));
        assert!(few > 1000 && quick < all / 3 && all < 100 << 20, "{all} {quick}");
        let _ = volume.close();
    }
}
