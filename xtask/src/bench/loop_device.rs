//! A block device of this machine: a file behind the kernel's loop driver, for benches of I/O engines.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lunette_tests::packages::find_program;
use lunette_tests::process::run;

use super::TOOL_LIMIT;

/// Detached when dropped.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    path: PathBuf,
    file: PathBuf,
}

impl LoopDevice {
    /// Past the page cache on both sides of the driver.
    ///
    /// # Errors
    /// There is no losetup or no loop driver, or this is not root.
    pub(crate) fn attach(file: PathBuf) -> Result<Self> {
        let losetup = losetup()?;
        let mut command = Command::new(losetup);
        let finished = run(command.args(["--find", "--show", "--direct-io=on"]).arg(&file), TOOL_LIMIT)?;
        let answer = finished.output.trim();
        ensure!(finished.success(), "{answer} (it takes root and the kernel's loop driver)");
        // Warnings come before it.
        let path = answer.lines().last().filter(|line| line.starts_with("/dev/"));
        let path = path.with_context(|| format!("losetup said {answer:?}"))?;
        Ok(Self { path: path.into(), file })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn losetup() -> Result<PathBuf> {
    find_program("losetup").context("losetup is not installed (Debian package mount)")
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = losetup().and_then(|losetup| {
            let finished = run(Command::new(losetup).arg("--detach").arg(&self.path), TOOL_LIMIT)?;
            ensure!(finished.success(), "{}", finished.output.trim());
            Ok(())
        });
        if let Err(error) = detached {
            eprintln!("{} is still attached to {}: {error:#}", self.path.display(), self.file.display());
        }
    }
}
