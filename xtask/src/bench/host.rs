//! What the machine was, so that a number can be read later.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lunette_tests::packages::find_program;
use lunette_tests::process::run;
use serde::{Deserialize, Serialize};

use crate::workspace::Workspace;

/// Facts about the host and the versions measured; what cannot be found out is "unknown".
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Facts {
    time_unix_s: u64,
    commit: String,
    processor: String,
    cores: usize,
    memory_bytes: u64,
    kernel: String,
    load_average: String,
    rustc: String,
    lunette: String,
    tgtd: String,
    istgt: String,
    qemu_img: String,
    fio: String,
}

impl Facts {
    pub(crate) fn collect(workspace: &Workspace, binary: &Path) -> Self {
        let processor = file_line("/proc/cpuinfo", "model name");
        let memory = file_line("/proc/meminfo", "MemTotal");
        let memory_kib: u64 =
            memory.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0);
        Self {
            time_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs()),
            commit: commit(workspace),
            processor,
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: memory_kib * 1024,
            kernel: first_line(Command::new("uname").arg("-r")),
            load_average: std::fs::read_to_string("/proc/loadavg")
                .map_or_else(|_| UNKNOWN.to_owned(), |text| text.trim().to_owned()),
            rustc: rustc(),
            lunette: first_line(Command::new(binary).arg("--version")),
            tgtd: version("tgtd", "--version"),
            istgt: version("istgt", "-V"),
            qemu_img: version("qemu-img", "--version"),
            fio: version("fio", "--version"),
        }
    }

    /// What a reader of a table needs to know; what is not installed is left out.
    pub(crate) fn sentence(&self) -> String {
        let mut programs = vec![format!("{} at {}", self.lunette, self.commit)];
        for (name, version) in
            [("tgtd", &self.tgtd), ("", &self.istgt), ("", &self.qemu_img), ("", &self.fio)]
        {
            if version != UNKNOWN {
                programs.push(format!("{name} {version}").trim().to_owned());
            }
        }
        format!(
            "Machine: {}, {} cores, {:.1} GiB, Linux {}, load {} before; {}.",
            self.processor,
            self.cores,
            self.memory_bytes as f64 / f64::from(1_u32 << 30),
            self.kernel,
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

/// The commit, with a mark if the checkout has changes of its own.
fn commit(workspace: &Workspace) -> String {
    let mut command = Command::new("git");
    first_line(command.args(["describe", "--always", "--dirty"]).current_dir(workspace.root()))
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
