//! A target at the far end that writes down where the time of its tasks goes, for one run, and its files.

use std::path::{Path, PathBuf};

use super::scratch::Directory;
use super::service::{Service, quoted};
use super::site::{DISK_BYTES, Site, TARGET};
use crate::LabError;

/// It ends when it is dropped, and its files go with it.
pub(crate) struct Recorded {
    _service: Service,
    directory: Directory,
}

impl Recorded {
    /// Starts it, with a disk of memory as the site's own target has.
    pub(crate) fn start(site: &Site, binary: &Path, scratch: &Path) -> Result<Self, LabError> {
        let made = Directory::make(scratch);
        let directory = made.map_err(LabError::system("a directory for the times of tasks"))?;
        let target = Service::target(TARGET, &format!("mem:{DISK_BYTES}"), "write = \"back\"\n");
        let traces = quoted(&directory.path().to_string_lossy());
        let configuration = format!("trace_directory = {traces}\ntask_times = true\n\n{target}");
        Ok(Self { _service: Service::start(site, binary, &configuration, &[])?, directory })
    }

    /// What it writes of its unit's tasks.
    pub(crate) fn times(&self) -> PathBuf {
        self.directory.path().join(format!("{TARGET}.0.times"))
    }
}
