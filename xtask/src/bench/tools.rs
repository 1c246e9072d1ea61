//! The measuring tools and how each says its number: libiscsi's `iscsi-perf`, QEMU's `qemu-img bench`, and fio where it
//! was built with libiscsi.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunette_tests::packages::find_program;
use lunette_tests::process::run;

use super::TOOL_LIMIT;
use super::host::{first_line, version};

/// Blocks of this size measure operations, of [`LARGE_BYTES`] throughput.
const SMALL_BYTES: u64 = 4 << 10;
const LARGE_BYTES: u64 = 512 << 10;
/// Enough 512-KiB operations in flight to keep both ends busy.
const LARGE_DEPTH: u32 = 8;
/// iscsi-perf counts blocks of the logical unit.
const LOGICAL_BLOCK_BYTES: u64 = 512;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Tool {
    IscsiPerf,
    QemuImg,
    Fio(PathBuf),
}

/// One line of the table: a tool and what it does.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    tool: Tool,
    write: bool,
    block_bytes: u64,
    depth: u32,
    duration_s: f64,
}

/// All rows that the installed tools allow; each sample takes about `duration_s`.
pub(crate) fn rows(duration_s: f64) -> Vec<Row> {
    let mut tools = Vec::new();
    if find_program("iscsi-perf").is_some() {
        tools.push(Tool::IscsiPerf);
    }
    if find_program("qemu-img").is_some() {
        tools.push(Tool::QemuImg);
    }
    tools.extend(fio_with_libiscsi().map(Tool::Fio));
    let mut rows = Vec::new();
    for tool in tools {
        for (block_bytes, depth) in [(SMALL_BYTES, 1), (SMALL_BYTES, 32), (LARGE_BYTES, LARGE_DEPTH)] {
            for write in [false, true] {
                // iscsi-perf only reads.
                if !(write && tool == Tool::IscsiPerf) {
                    rows.push(Row { tool: tool.clone(), write, block_bytes, depth, duration_s });
                }
            }
        }
    }
    rows
}

/// The fio that `$FIO` names or the PATH has, if it has the engine.
fn fio_with_libiscsi() -> Option<PathBuf> {
    let fio = env::var_os("FIO").map(PathBuf::from).or_else(|| find_program("fio"))?;
    let finished = run(Command::new(&fio).arg("--enghelp"), TOOL_LIMIT).ok()?;
    finished.output.lines().any(|line| line.trim() == "libiscsi").then_some(fio)
}

impl Row {
    pub(crate) fn tool_name(&self) -> &'static str {
        match self.tool {
            Tool::IscsiPerf => "iscsi-perf",
            Tool::QemuImg => "qemu-img bench",
            Tool::Fio(_) => "fio libiscsi",
        }
    }

    /// The program and its version, as far as it tells one.
    pub(crate) fn program(&self) -> String {
        match &self.tool {
            // It has no option for that; its package has one.
            Tool::IscsiPerf => {
                let mut query = Command::new("dpkg-query");
                let version = first_line(query.args(["-W", "-f=${Version}", "libiscsi-bin"]));
                format!("iscsi-perf {version}")
            }
            Tool::QemuImg => version("qemu-img", "--version"),
            Tool::Fio(program) => {
                format!("{} with libiscsi", first_line(Command::new(program).arg("--version")))
            }
        }
    }

    /// In words: "4 KiB random read, depth 32". Small blocks are random but for qemu-img, which knows only steps.
    pub(crate) fn workload(&self) -> String {
        let order = if self.random() { "random" } else { "sequential" };
        let verb = if self.write { "write" } else { "read" };
        format!("{} KiB {order} {verb}, depth {}", self.block_bytes >> 10, self.depth)
    }

    /// (bytes a block, depth, true for writes)
    pub(crate) fn shape(&self) -> (u64, u32, bool) {
        (self.block_bytes, self.depth, self.write)
    }

    fn random(&self) -> bool {
        self.block_bytes == SMALL_BYTES && self.tool != Tool::QemuImg
    }

    /// How many operations take about the wanted time, for the tool that counts operations instead of seconds.
    pub(crate) fn calibrate(&self, url: &str) -> Result<u64> {
        if self.tool != Tool::QemuImg {
            return Ok(0);
        }
        let probe = if self.block_bytes == SMALL_BYTES { 1000 } else { 100 };
        let per_s = self.run(url, probe)?;
        Ok(((per_s * self.duration_s) as u64).max(probe))
    }

    /// One sample, in operations a second. `count` is [`Self::calibrate`]'s answer for this URL.
    pub(crate) fn run(&self, url: &str, count: u64) -> Result<f64> {
        let mut command = match &self.tool {
            Tool::IscsiPerf => self.iscsi_perf(url),
            Tool::QemuImg => self.qemu_img(url, count),
            Tool::Fio(program) => self.fio(program, url),
        };
        let finished = run(&mut command, TOOL_LIMIT)?;
        let fault = || {
            format!("{} ({}): {}: {}", self.tool_name(), self.workload(), finished.ending(), finished.output)
        };
        ensure!(finished.success(), fault());
        match self.tool {
            Tool::IscsiPerf => read_iscsi_perf(&finished.output),
            Tool::QemuImg => read_qemu_img(&finished.output).map(|seconds| count as f64 / seconds),
            Tool::Fio(_) => read_fio(&finished.output, self.write),
        }
        .with_context(fault)
    }

    /// How many operations a run of this rate was. fio takes a while before it begins, and keeps to its time.
    pub(crate) fn operations(&self, operations_per_s: f64, elapsed_s: f64) -> f64 {
        let seconds = match self.tool {
            Tool::Fio(_) => self.whole_seconds() as f64,
            Tool::IscsiPerf | Tool::QemuImg => elapsed_s,
        };
        operations_per_s * seconds
    }

    fn whole_seconds(&self) -> u64 {
        Duration::from_secs_f64(self.duration_s).as_secs().max(1)
    }

    fn iscsi_perf(&self, url: &str) -> Command {
        let mut command = Command::new("iscsi-perf");
        let blocks = self.block_bytes / LOGICAL_BLOCK_BYTES;
        command.args(["-m", &self.depth.to_string(), "-b", &blocks.to_string()]);
        // Its average has a granularity of a second; two make it steadier.
        command.args(["-t", &(self.whole_seconds() * 2).to_string()]);
        if self.random() {
            command.arg("-r");
        }
        command.arg(url);
        command
    }

    fn qemu_img(&self, url: &str, count: u64) -> Command {
        let mut command = Command::new("qemu-img");
        command.args(["bench", "-f", "raw", "-t", "none", "-c", &count.to_string()]);
        command.args(["-d", &self.depth.to_string(), "-s", &self.block_bytes.to_string()]);
        if self.write {
            command.args(["-w", "--pattern=165"]);
        }
        command.arg(url);
        command
    }

    fn fio(&self, program: &PathBuf, url: &str) -> Command {
        let mode = match (self.random(), self.write) {
            (true, false) => "randread",
            (true, true) => "randwrite",
            (false, false) => "read",
            (false, true) => "write",
        };
        // fio takes ':' for a separator of file names.
        let file = format!("--filename={}", url.replace(':', "\\:"));
        let mut command = Command::new(program);
        command.args(["--name=smoke", "--ioengine=libiscsi", "--thread", "--time_based", &file]);
        command.args([format!("--rw={mode}"), format!("--bs={}", self.block_bytes)]);
        command.args([format!("--iodepth={}", self.depth), format!("--runtime={}", self.whole_seconds())]);
        command.args(["--output-format=terse", "--terse-version=3"]);
        command
    }
}

/// "iops average 22774 (88 MB/s)" of the last line; progress before it is separated by carriage returns.
fn read_iscsi_perf(output: &str) -> Option<f64> {
    let (_, rest) = output.rsplit_once("iops average ")?;
    rest.split_whitespace().next()?.parse().ok()
}

/// "Run completed in 0.690 seconds."
fn read_qemu_img(output: &str) -> Option<f64> {
    let (_, rest) = output.rsplit_once("Run completed in ")?;
    let seconds: f64 = rest.split_whitespace().next()?.parse().ok()?;
    (seconds > 0.0).then_some(seconds)
}

/// Operations a second: fields 8 and 49 of fio's terse line, version 3.
fn read_fio(output: &str, write: bool) -> Option<f64> {
    let line = output.lines().find(|line| line.starts_with("3;"))?;
    line.split(';').nth(if write { 48 } else { 7 })?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_each_tools_number() {
        let perf = "00:00:01 - lba 1, iops current 5 (9 MB/s), iops average 7 (1 MB/s)\r\niops average 22774 (88 MB/s)\n";
        assert_eq!(read_iscsi_perf(perf), Some(22774.0));
        assert_eq!(read_qemu_img("Sending 2 read requests\nRun completed in 0.690 seconds.\n"), Some(0.690));
        assert_eq!(read_qemu_img("qemu-img: Could not open\n"), None);
        let mut fields = vec!["0".to_owned(); 60];
        (fields[0], fields[7], fields[48]) = ("3".to_owned(), "111".to_owned(), "222".to_owned());
        let line = fields.join(";");
        assert_eq!((read_fio(&line, false), read_fio(&line, true)), (Some(111.0), Some(222.0)));
    }

    #[test]
    fn workloads_have_distinct_names() {
        let row = |tool, write, block_bytes| Row { tool, write, block_bytes, depth: 1, duration_s: 1.0 };
        assert_eq!(row(Tool::IscsiPerf, false, SMALL_BYTES).workload(), "4 KiB random read, depth 1");
        assert_eq!(row(Tool::QemuImg, true, LARGE_BYTES).workload(), "512 KiB sequential write, depth 1");
    }

    #[test]
    fn the_time_before_fio_begins_is_not_its_runs() {
        let row = |tool| Row { tool, write: false, block_bytes: SMALL_BYTES, depth: 1, duration_s: 2.5 };
        assert_eq!(row(Tool::Fio("fio".into())).operations(100.0, 3.0), 200.0);
        assert_eq!(row(Tool::IscsiPerf).operations(100.0, 3.0), 300.0);
    }
}
