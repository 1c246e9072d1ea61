//! A target at the far end that writes down where the time of its tasks goes, for one run, and its files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::service::{Service, quoted};
use super::site::{DISK_BYTES, Site, TARGET};
use crate::LabError;

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// It ends when it is dropped, and its files go with it.
pub(crate) struct Recorded {
    _service: Service,
    directory: Directory,
}

/// Goes with what is in it.
struct Directory(PathBuf);

impl Recorded {
    /// Starts it, with a disk of memory as the site's own target has.
    pub(crate) fn start(site: &Site, binary: &Path, scratch: &Path) -> Result<Self, LabError> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = scratch.join(format!("lunette-lab-times-{}-{number}", std::process::id()));
        fs::create_dir(&directory).map_err(LabError::system("a directory for the times of tasks"))?;
        let directory = Directory(directory);
        let target = Service::target(TARGET, &format!("mem:{DISK_BYTES}"), "write = \"back\"\n");
        let traces = quoted(&directory.0.to_string_lossy());
        let configuration = format!("trace_directory = {traces}\ntask_times = true\n\n{target}");
        Ok(Self { _service: Service::start(site, binary, &configuration, &[])?, directory })
    }

    /// What it writes of its unit's tasks.
    pub(crate) fn times(&self) -> PathBuf {
        self.directory.0.join(format!("{TARGET}.0.times"))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What is left there is said to be in the guide.
        let _ = fs::remove_dir_all(&self.0);
    }
}
