//! What the machine was, so that a number can be read later.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lunette_tests::packages::find_program;
use lunette_tests::process::run;
use serde::{Deserialize, Serialize};

use crate::workspace::Workspace;

/// Virtual machines have none.
const GOVERNOR: &str = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";

/// The congestion control that connections of this host begin with.
const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// Facts about the host and the versions measured; what cannot be found out is "unknown".
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Facts {
    time_unix_s: u64,
    commit: String,
    processor: String,
    cores: usize,
    memory_bytes: u64,
    /// How the first core's frequency is chosen, where the machine tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    governor: Option<String>,
    kernel: String,
    /// What TCP of programs has that do not choose another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    congestion_control: Option<String>,
    load_average: String,
    rustc: String,
    lunette: String,
    /// Others' programs that ran, with their versions.
    #[serde(default)]
    programs: Vec<String>,
}

impl Facts {
    pub(crate) fn collect(workspace: &Workspace, binary: &Path) -> Self {
        let processor = file_line("/proc/cpuinfo", "model name");
        let memory = file_line("/proc/meminfo", "MemTotal");
        let memory_kib: u64 =
            memory.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0);
        Self {
            time_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs()),
            commit: workspace.commit(),
            processor,
            governor: trimmed(GOVERNOR),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: memory_kib * 1024,
            kernel: first_line(Command::new("uname").arg("-r")),
            congestion_control: trimmed(CONGESTION_CONTROL),
            load_average: std::fs::read_to_string("/proc/loadavg")
                .map_or_else(|_| UNKNOWN.to_owned(), |text| text.trim().to_owned()),
            rustc: rustc(),
            lunette: first_line(Command::new(binary).arg("--version")),
            programs: Vec::new(),
        }
    }

    /// The same with the programs that the benchmark has found to run.
    pub(crate) fn with(mut self, programs: Vec<String>) -> Self {
        self.programs = programs;
        self
    }

    /// What a reader of a table needs to know.
    pub(crate) fn sentence(&self) -> String {
        let mut programs = vec![format!("{} at {}", self.lunette, self.commit)];
        programs.extend(self.programs.iter().cloned());
        let governor = self.governor.as_ref().map(|governor| format!("governor {governor}, "));
        let control = self.congestion_control.as_ref().map(|control| format!("TCP with {control}, "));
        format!(
            "Machine: {}, {} cores, {}{:.1} GiB, Linux {}, {}load {} before; {}.",
            self.processor,
            self.cores,
            governor.unwrap_or_default(),
            self.memory_bytes as f64 / f64::from(1_u32 << 30),
            self.kernel,
            control.unwrap_or_default(),
            self.load_average.split(' ').next().unwrap_or_default(),
            programs.join(", ")
        )
    }
}

/// The compiler, in one line.
pub(crate) fn rustc() -> String {
    first_line(Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("--version"))
}

/// What a foreign program calls its version.
pub(crate) fn version(program: &str, option: &str) -> String {
    find_program(program)
        .map_or_else(|| UNKNOWN.to_owned(), |path| first_line(Command::new(path).arg(option)))
}

/// What a file of the kernel says, where there is one.
fn trimmed(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// What stands for a fact that cannot be found out.
const UNKNOWN: &str = "unknown";

pub(crate) fn first_line(command: &mut Command) -> String {
    run(command, Duration::from_secs(20))
        .ok()
        .filter(|finished| finished.success())
        .and_then(|finished| finished.output.lines().next().map(|line| line.trim().to_owned()))
        .unwrap_or_else(|| UNKNOWN.to_owned())
}

/// What stands behind "KEY :" in a file of /proc.
pub(crate) fn file_line(path: &str, key: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let value = text.lines().find(|line| line.starts_with(key)).and_then(|line| line.split_once(':'));
    value.map_or_else(|| UNKNOWN.to_owned(), |(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_what_ran_and_a_governor_where_there_is_one() {
        let facts = Facts { lunette: "lunette 1".to_owned(), commit: "abc".to_owned(), ..Facts::default() };
        let facts = facts.with(vec!["tgtd 1.0.85".to_owned(), "fio-3.33".to_owned()]);
        let sentence = facts.sentence();
        assert!(sentence.ends_with("; lunette 1 at abc, tgtd 1.0.85, fio-3.33."), "{sentence}");
        assert!(!sentence.contains("governor") && !sentence.contains("TCP"), "{sentence}");
        let facts = Facts { congestion_control: Some("bbr".to_owned()), ..facts };
        assert!(facts.sentence().contains(", TCP with bbr, load "), "{}", facts.sentence());
        let sentence = Facts { governor: Some("performance".to_owned()), ..facts }.sentence();
        assert!(sentence.contains("0 cores, governor performance, 0.0 GiB"), "{sentence}");
    }
}
