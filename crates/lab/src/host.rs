//! What this machine is, so that a figure can be read later.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

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
    fn this_machine_has_a_kernel_and_memory() {
        let host = Host::look();
        assert!(host.kernel.starts_with("Linux ") && host.memory_bytes > 0 && host.cores > 0, "{host:?}");
    }
}
