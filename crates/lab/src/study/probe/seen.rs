//! What is seen of this machine and of the link while something is measured, and no longer.

use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lunette_wan::{Emulator, Keeping, Mark};

use super::{Further, Place, disk_busy};
use crate::LabError;
use crate::host::{DiskTime, Shares};
use crate::study::busy::{self, Busy, Watched};

/// What was seen.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// What all processors did.
    pub(super) shares: Shares,
    /// The share of one processor that this process had.
    pub(super) processor: f64,
    /// How busy threads were; zeroes where the system does not tell.
    pub(super) busy: Busy,
    /// How the link was kept.
    pub(super) keeping: Keeping,
    /// Packets that were lost on the line, or found no room there, before it was looked.
    pub(super) lost_before: u64,
    /// How long it was looked.
    pub(super) lasted: Duration,
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
        self.watch_while(&|| true, work)
    }

    /// The same; processors, threads and the network are looked at while it is measured.
    ///
    /// # Errors
    /// The network's counters cannot be read.
    pub(super) fn watch_while<T>(
        self,
        is_measured: &(dyn Fn() -> bool + Sync),
        work: impl FnOnce() -> T,
    ) -> Result<(T, Seen), LabError> {
        let failed = LabError::system("counters of the network");
        let network = self.network.map(|network| Watch::begin(network).map_err(&failed)).transpose()?;
        let network = network.map(Mutex::new);
        let disk = DiskTime::now(self.scratch);
        let is_measured = || {
            let is_measured = is_measured();
            if let Some(network) = &network {
                network.lock().unwrap_or_else(PoisonError::into_inner).look(is_measured);
            }
            is_measured
        };
        let (done, watched) = busy::watched(&is_measured, work);
        let busy = watched.busy.unwrap_or_default();
        let disk = disk_busy(self.scratch, disk);
        let network = network.map(|network| network.into_inner().unwrap_or_else(PoisonError::into_inner));
        let kept = network.map(|network| network.end().map_err(&failed)).transpose()?;
        let (keeping, lost_before) = kept.unwrap_or_default();
        let Watched { shares, own: processor, lasted, .. } = watched;
        Ok((done, Seen { shares, processor, busy, keeping, lost_before, lasted, disk }))
    }
}

/// How a network is kept while it is measured; what never is, is looked at as a whole.
struct Watch<'a> {
    network: &'a Emulator,
    mark: Mark,
    has_begun: bool,
    lost_before: u64,
    kept: Option<Keeping>,
}

impl<'a> Watch<'a> {
    fn begin(network: &'a Emulator) -> io::Result<Self> {
        Ok(Self { network, mark: network.mark()?, has_begun: false, lost_before: 0, kept: None })
    }

    /// Counters that cannot be read are told at the end, if they still cannot.
    fn look(&mut self, is_measured: bool) {
        if is_measured && (!self.has_begun || self.kept.is_some()) {
            // What is measured anew is another one.
            (self.has_begun, self.kept) = (true, None);
            if let (Ok(before), Ok(mark)) = (self.network.since(&self.mark), self.network.mark()) {
                self.lost_before += before.lost.iter().sum::<u64>() + before.dropped;
                self.mark = mark;
            }
        } else if !is_measured && self.has_begun && self.kept.is_none() {
            self.kept = self.network.since(&self.mark).ok();
        }
    }

    /// How it was kept, and how many packets were lost before.
    fn end(self) -> io::Result<(Keeping, u64)> {
        let kept = self.kept.map_or_else(|| self.network.since(&self.mark), Ok)?;
        Ok((kept, self.lost_before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;
    use std::fs;
    use std::process::Command;
    use std::time::Instant;

    use rustix::param::clock_ticks_per_second;

    /// Says to this test that it is the only one of its process.
    const ALONE: &str = "LUNETTE_SEEN_ALONE";

    /// Processor time of this process, and of its children that have ended, in seconds (proc(5), utime to cstime).
    fn processor_s() -> [f64; 2] {
        let stat = fs::read_to_string("/proc/self/stat").expect("a line");
        let (_, behind_name) = stat.rsplit_once(')').expect("a name");
        let words = behind_name.split_whitespace().skip(11).take(4);
        let ticks: Vec<f64> = words.map(|word| word.parse().expect("a number")).collect();
        [ticks[0] + ticks[1], ticks[2] + ticks[3]].map(|ticks| ticks / clock_ticks_per_second() as f64)
    }

    /// Other tests would keep threads of this process busy meanwhile, so that it runs itself in a process of its own.
    #[test]
    fn only_what_is_measured_is_seen() {
        if env::var_os(ALONE).is_none() {
            let name = std::thread::current().name().expect("a test's").to_owned();
            let mut alone = Command::new(env::current_exe().expect("a program"));
            let ended =
                alone.args(["--exact", &name, "--nocapture"]).env(ALONE, "1").output().expect("an end");
            let said = String::from_utf8_lossy(&ended.stdout);
            assert!(
                ended.status.success() && said.contains("1 passed"),
                "{said}{}",
                String::from_utf8_lossy(&ended.stderr)
            );
            return;
        }
        let root = tempfile::tempdir().expect("a directory");
        let observer = Observer::without_network(root.path());
        // Half a second of a processor before, and none while it is looked: a sleeping thread has none, however busy the machine is.
        while processor_s()[0] < 0.5 {}
        let ((), seen) = observer.watch(|| std::thread::sleep(Duration::from_millis(500))).expect("a look");
        assert!(seen.busy.busiest < 0.25 && seen.processor < 0.25, "{seen:?}");
        assert_eq!(seen.keeping, Keeping::default());
        assert!((0.0..=1.0).contains(&seen.shares.idle), "{seen:?}");
        assert!(seen.disk.is_none_or(|disk| (0.0..=100.0).contains(&disk.measured)));
        // The children of a child are looked at, as those of a server behind a shell are.
        let children = format!("/proc/self/task/{}/children", rustix::thread::gettid().as_raw_nonzero());
        if fs::metadata(children).is_err() {
            return lunette_skip::record_lacking("a kernel that tells the children of a thread");
        }
        let work = || {
            let script = "sh -c 'i=0; while [ $i -lt 1500000 ]; do i=$((i + 1)); done; true'; true";
            Command::new("sh").args(["-c", script]).status()
        };
        let (begun, before) = (Instant::now(), processor_s()[1]);
        let (status, seen) = observer.watch(work).expect("a look");
        assert!(status.expect("a shell").success());
        // What the machine has given it is what is seen, or nearly: the last look was a moment before its end.
        let had = (processor_s()[1] - before) / begun.elapsed().as_secs_f64();
        assert!(had > 0.0 && seen.busy.busiest > had / 2.0, "{had}: {seen:?}");
    }
}
