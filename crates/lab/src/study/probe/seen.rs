//! What is seen of this machine and of the link while something is measured, and no longer.

use std::path::Path;

use lunette_wan::{Emulator, Keeping};

use super::{Further, Place, disk_busy};
use crate::LabError;
use crate::host::{DiskTime, ProcessorTime};
use crate::study::busy;

/// What was seen.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// The share of all processors that nobody used.
    pub(super) idle: f64,
    /// The largest share of a processor that one thread had; 0 where the system does not tell.
    pub(super) busiest: f64,
    /// How the link was kept.
    pub(super) keeping: Keeping,
    /// How busy the disk below the scratch directory was, where it tells.
    pub(super) disk: Option<Further>,
}

/// Who looks. Another thread than the place's may have it.
#[derive(Clone, Copy)]
pub(super) struct Observer<'a> {
    scratch: &'a Path,
    /// None without a network, and where a proxy stands for it, which does not tell.
    network: Option<&'a Emulator>,
}

impl<'a> Observer<'a> {
    pub(super) fn at(place: Place<'a>) -> Self {
        let network = place.over.and_then(|(site, _)| site.emulator().ok());
        Self { scratch: place.scratch, network }
    }

    /// For what no network is in the way of.
    #[cfg(test)]
    pub(super) const fn without_network(scratch: &'a Path) -> Self {
        Self { scratch, network: None }
    }

    /// Does something and looks meanwhile.
    ///
    /// # Errors
    /// The network's counters cannot be read.
    pub(super) fn watch<T>(self, work: impl FnOnce() -> T) -> Result<(T, Seen), LabError> {
        let failed = LabError::system("counters of the network");
        let marked = self.network.map(|network| network.mark().map(|mark| (network, mark)));
        let marked = marked.transpose().map_err(&failed)?;
        let (disk, processors) = (DiskTime::now(self.scratch), ProcessorTime::now());
        let (done, busiest) = busy::watched(work);
        let idle =
            processors.zip(ProcessorTime::now()).map_or(1.0, |(before, after)| after.idle_since(before));
        let disk = disk_busy(self.scratch, disk);
        let keeping = marked.map(|(network, mark)| network.since(&mark)).transpose().map_err(&failed)?;
        let keeping = keeping.unwrap_or_default();
        Ok((done, Seen { idle, busiest: busiest.unwrap_or_default(), keeping, disk }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn only_what_is_measured_is_seen() {
        let root = tempfile::tempdir().expect("a directory");
        let spin = |time| {
            let begun = Instant::now();
            while begun.elapsed() < time {}
        };
        // Busy before, and idle while it is looked.
        spin(Duration::from_millis(500));
        let observer = Observer::without_network(root.path());
        let ((), seen) = observer.watch(|| std::thread::sleep(Duration::from_millis(500))).expect("a look");
        assert_eq!(seen.keeping, Keeping::default());
        assert!(seen.idle >= 0.0 && seen.disk.is_none_or(|disk| disk.measured <= 100.0));
        // The children of a child are looked at, as those of a server behind a shell are.
        let work = || {
            let script = "sh -c 'end=$(($(date +%s) + 3)); while [ $(date +%s) -lt $end ]; do i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; done; true'; true";
            Command::new("sh").args(["-c", script]).status()
        };
        let (status, seen) = observer.watch(work).expect("a look");
        assert!(status.expect("a shell").success());
        let has_children = fs::metadata("/proc/self/task").is_ok()
            && fs::metadata(format!("/proc/self/task/{}/children", std::process::id())).is_ok();
        assert!(!has_children || seen.busiest > 0.1, "{seen:?}");
    }
}
