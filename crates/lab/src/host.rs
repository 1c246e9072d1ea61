//! What this machine is, so that a figure can be read later.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{major, minor};
use serde::{Deserialize, Serialize};

/// What cannot be found out.
const UNKNOWN: &str = "unknown";

/// Facts about the machine and the moment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Host {
    /// When, in seconds since 1970.
    pub time_unix_s: u64,
    /// The version of this program.
    pub lunette: String,
    /// The commit that it was built from, where that was said when it was built (`LUNETTE_COMMIT`).
    #[serde(default)]
    pub commit: Option<String>,
    /// The processor's name.
    pub processor: String,
    /// Processors that may be used.
    pub cores: usize,
    /// Memory in bytes; 0 where that is not known.
    pub memory_bytes: u64,
    /// The kernel.
    pub kernel: String,
    /// The load average of the last minute, before the measurement.
    pub load_average: String,
}

impl Host {
    /// Looks.
    #[must_use]
    pub fn look() -> Self {
        let memory = line_of("/proc/meminfo", "MemTotal");
        let kib: u64 = memory.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0);
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let system = rustix::system::uname();
        Self {
            time_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            lunette: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("LUNETTE_COMMIT").map(str::to_owned),
            processor: line_of("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: kib * 1024,
            kernel: format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy()),
            load_average: load
                .split(' ')
                .next()
                .filter(|load| !load.is_empty())
                .unwrap_or(UNKNOWN)
                .to_owned(),
        }
    }
}

/// Fewer ticks tell nothing of a share.
const STOLEN_TICKS_MIN: u64 = 3;

/// Time of all processors since the start, in the kernel's ticks: idle, stolen by other guests of the same host, and all of it
/// (proc(5), /proc/stat).
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessorTime {
    idle: u64,
    stolen: u64,
    all: u64,
    processors: usize,
}

/// What this machine's processors did between two moments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Shares {
    /// The share of all processors that nobody used, 0 to 1; 1 where no time has passed or the system does not tell.
    pub(crate) idle: f64,
    /// The share of the processor time that this machine wanted and its host gave to others, 0 to 1. 0 where nothing is known of that.
    pub(crate) stolen: f64,
    /// That was more than a tick or two, which come and go.
    pub(crate) is_stolen_sure: bool,
    /// How many processors were at work on average, or wanted to be, for whomever; 0 where the system does not tell.
    pub(crate) at_work: f64,
}

impl Shares {
    /// The share that was stolen, where it can be told.
    pub(crate) const fn stolen_for_sure(self) -> f64 {
        if self.is_stolen_sure { self.stolen } else { 0.0 }
    }
}

impl Default for Shares {
    fn default() -> Self {
        Self { idle: 1.0, stolen: 0.0, is_stolen_sure: false, at_work: 0.0 }
    }
}

impl ProcessorTime {
    /// Up to now; nothing where the system does not tell.
    pub(crate) fn now() -> Option<Self> {
        Self::read(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn read(text: &str) -> Option<Self> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        // User, nice, system, idle, iowait, irq, softirq, steal; what follows is counted in the first two already.
        let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
        let idle = ticks.get(3)?.saturating_add(*ticks.get(4)?);
        let is_one = |line: &&str| {
            line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|next: char| next.is_ascii_digit()))
        };
        let processors = text.lines().filter(is_one).count();
        let stolen = ticks.get(7).copied().unwrap_or_default();
        let all = ticks.iter().fold(0_u64, |sum, ticks| sum.saturating_add(*ticks));
        Some(Self { processors, idle, stolen, all })
    }

    /// What there was since then.
    pub(crate) fn since(self, before: Self) -> Shares {
        let all = self.all.saturating_sub(before.all);
        if all == 0 {
            return Shares::default();
        }
        let idle = self.idle.saturating_sub(before.idle).min(all);
        let stolen = self.stolen.saturating_sub(before.stolen);
        let wanted = (all - idle).max(1);
        let idle = idle as f64 / all as f64;
        Shares {
            idle,
            stolen: stolen as f64 / wanted as f64,
            is_stolen_sure: stolen >= STOLEN_TICKS_MIN,
            at_work: (1.0 - idle) * self.processors as f64,
        }
    }
}

/// Ten ticks of a kernel with a hundred in a second.
const TICKS: Duration = Duration::from_millis(100);

/// For how long the disk below a directory has had something to do since the start (Documentation/block/stat.rst). Twice:
/// `io_ticks`, in which a short request may count as a whole tick of the kernel's; and how long all requests took, in which those
/// count twice that are under way together. Both rather say too much, so that the smaller one is nearer to the truth.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskTime {
    busy_ms: u64,
    requests_ms: u64,
    at: Instant,
}

impl DiskTime {
    /// Up to now; nothing where no block device is below it that tells.
    pub(crate) fn now(directory: &Path) -> Option<Self> {
        let device = fs::metadata(directory).ok()?.dev();
        let path = format!("/sys/dev/block/{}:{}/stat", major(device), minor(device));
        Self::read(&fs::read_to_string(path).ok()?)
    }

    fn read(text: &str) -> Option<Self> {
        let numbers: Vec<u64> = text.split_whitespace().map_while(|word| word.parse().ok()).collect();
        // Of reads and writes, and where the kernel has them, of discards and flushes.
        let requests_ms = [3, 7, 14, 16].iter().filter_map(|at| numbers.get(*at)).sum();
        Some(Self { busy_ms: *numbers.get(9)?, requests_ms, at: Instant::now() })
    }

    /// The share of the time since then, in percent; nothing where that is too short for a clock of the kernel's ticks.
    pub(crate) fn busy_percent_since(self, before: Self) -> Option<f64> {
        let passed = self.at.duration_since(before.at);
        let requests_ms = self.requests_ms.saturating_sub(before.requests_ms);
        let busy_ms = self.busy_ms.saturating_sub(before.busy_ms).min(requests_ms) as f64;
        (passed >= TICKS).then(|| (busy_ms / (passed.as_secs_f64() * 1e3) * 100.0).min(100.0))
    }
}

/// What stands behind `KEY:` in a file of /proc.
fn line_of(path: &str, key: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let value = text.lines().find(|line| line.starts_with(key)).and_then(|line| line.split_once(':'));
    value.map_or(UNKNOWN, |(_, value)| value.trim()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shares_of_all() {
        let before = ProcessorTime::read("cpu  10 0 10 80 0 0 0 3 5 5\ncpu0 1").unwrap();
        let after =
            ProcessorTime::read("cpu  35 0 20 120 20 0 0 8 50 50\ncpu0 1 2\ncpu1 3\ncpufreq 4\n").unwrap();
        let Shares { idle, stolen, at_work, .. } = after.since(before);
        assert!((idle - 0.6).abs() < 1e-9 && (stolen - 5.0 / 40.0).abs() < 1e-9, "{idle} {stolen}");
        assert!((at_work - 0.8).abs() < 1e-9, "0.4 of each of two");
        assert_eq!(before.since(before), Shares::default());
        let old = ProcessorTime::read("cpu  10 0 10 80 0 0 0\ncpu0 1").expect("a kernel before 2.6.11");
        assert_eq!(after.since(old).stolen, 8.0 / 43.0);
        let soon = ProcessorTime::read("cpu  10 0 10 90 0 0 0 5 5 5\ncpu0 1").expect("a moment later");
        let soon = soon.since(before);
        assert_eq!((soon.stolen, soon.stolen_for_sure()), (1.0, 0.0), "two ticks of two tell nothing");
        assert_eq!(after.since(before).stolen_for_sure(), 5.0 / 40.0);
        for text in ["", "cpu", "cpu 1 2 3", "intr 1 2 3 4 5"] {
            assert!(ProcessorTime::read(text).is_none(), "{text}");
        }
        assert!(ProcessorTime::now().is_some());
    }

    #[test]
    fn a_disk_is_busy_for_a_share_of_the_time() {
        // A file of the kernel's: the tenth number is the time in which there was something to do; requests took 216 + 40 + 3 + 1.
        let at = |busy_ms: u64, reads_ms: u64| {
            let text = format!("  446 0 64 {reads_ms} 59 1 8 40 0 {busy_ms} 256 0 0 0 3 5 1");
            DiskTime::read(&text).expect("a time")
        };
        let before = at(100, 216);
        assert_eq!(before.requests_ms, 260);
        let later = |busy_ms, reads_ms| DiskTime {
            at: before.at + Duration::from_millis(400),
            ..at(busy_ms, reads_ms)
        };
        // Several at a time, and none for as long as the ticks that it was in.
        assert_eq!(later(200, 616).busy_percent_since(before).map(f64::round), Some(25.0));
        assert_eq!(later(200, 256).busy_percent_since(before).map(f64::round), Some(10.0));
        let after = later(200, 9000);
        let more = DiskTime { busy_ms: 1000, ..after };
        assert_eq!(more.busy_percent_since(before).map(f64::round), Some(100.0));
        let soon = DiskTime { at: before.at + Duration::from_millis(10), ..after };
        assert_eq!(soon.busy_percent_since(before), None, "a tick more or less would be all of it");
        assert!(DiskTime::read("1 2 3").is_none() && DiskTime::now(Path::new("/proc")).is_none());
    }

    #[test]
    fn this_machine_has_a_kernel_and_memory() {
        let host = Host::look();
        assert_eq!(host.commit.as_deref(), option_env!("LUNETTE_COMMIT"));
        assert!(host.kernel.starts_with("Linux ") && host.memory_bytes > 0 && host.cores > 0, "{host:?}");
    }
}
