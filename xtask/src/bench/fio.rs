//! Debian's fio on a local file: what the disk gives without a network and a protocol in between.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lunette_tests::packages::find_program;
use lunette_tests::process::run;
use serde_json::Value;

use super::TOOL_LIMIT;
use super::host::version;

const BLOCK_BYTES: u64 = 4 << 10;

/// How fio waits for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// `O_DIRECT` and a ring.
    Ring,
    /// `pwrite`, and `fdatasync` after so many.
    Fdatasync(u32),
}

/// Random 4-KiB reads or writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalFio<'a> {
    pub(crate) file: &'a Path,
    pub(crate) is_write: bool,
    pub(crate) depth: u32,
    pub(crate) method: Method,
    pub(crate) seconds: f64,
}

/// The program and its version.
pub(crate) fn program() -> String {
    version("fio", "--version")
}

impl LocalFio<'_> {
    /// Operations a second.
    pub(crate) fn run(&self) -> Result<f64> {
        let program = find_program("fio").context("fio is not installed (Debian package fio)")?;
        let mut command = Command::new(program);
        // Without --invalidate=0 it would empty the page cache of the file first.
        command.args(["--name=local", "--time_based", "--invalidate=0", "--output-format=json"]);
        command.arg(format!("--filename={}", self.file.display()));
        command.arg(format!("--rw={}", if self.is_write { "randwrite" } else { "randread" }));
        command.args([format!("--bs={BLOCK_BYTES}"), format!("--iodepth={}", self.depth)]);
        command.arg(format!("--runtime={:.0}ms", self.seconds * 1e3));
        match self.method {
            Method::Ring => command.args(["--ioengine=io_uring", "--direct=1"]),
            Method::Fdatasync(every) => command.args(["--ioengine=psync", &format!("--fdatasync={every}")]),
        };
        let finished = run(&mut command, TOOL_LIMIT)?;
        ensure!(finished.success(), "fio: {}: {}", finished.ending(), finished.output.trim());
        read(&finished.output, self.is_write).with_context(|| format!("fio said {:?}", finished.output))
    }
}

/// Warnings may come before the JSON.
fn read(output: &str, is_write: bool) -> Option<f64> {
    let result: Value = serde_json::from_str(&output[output.find('{')?..]).ok()?;
    result["jobs"][0][if is_write { "write" } else { "read" }]["iops"].as_f64().filter(|rate| *rate > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_rate_of_the_right_direction() {
        let output = "note: x\n{\"jobs\":[{\"read\":{\"iops\":0.0},\"write\":{\"iops\":812.5}}]}\n";
        assert_eq!(read(output, true), Some(812.5));
        assert_eq!(read(output, false), None);
        assert_eq!(read("fio: no\n", true), None);
    }
}
