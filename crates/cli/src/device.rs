//! Block devices of this machine, as the kernel tells of them under `/sys`.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use rustix::fs::{major, minor};

/// What is told of one.
#[derive(Debug)]
pub(crate) struct Device {
    directory: PathBuf,
}

impl Device {
    /// The one with this number.
    pub(crate) fn numbered(number: u64) -> Device {
        Device::at(format!("/sys/dev/block/{}:{}", major(number), minor(number)))
    }

    /// The one with this directory.
    pub(crate) fn at(directory: impl Into<PathBuf>) -> Device {
        Device { directory: directory.into() }
    }

    /// What a file there has, without the white space around it; nothing where that is nothing.
    pub(crate) fn attribute(&self, name: &str) -> Option<String> {
        let text = fs::read(self.directory.join(name)).ok()?;
        let text = String::from_utf8_lossy(&text);
        let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// The sector in which a partition begins.
    pub(crate) fn partition_start(&self) -> Option<String> {
        self.attribute("partition").and_then(|_| self.attribute("start"))
    }

    /// The whole disk: itself, or the one that it is a partition of.
    pub(crate) fn disk(&self) -> Device {
        let is_partition = self.attribute("partition").is_some();
        Device::at(if is_partition { self.directory.join("..") } else { self.directory.clone() })
    }

    /// The file in which a loop device has its data, as it was called when the device was set up.
    pub(crate) fn backing_file(&self) -> Option<PathBuf> {
        let mut told = fs::read(self.directory.join("loop/backing_file")).ok()?;
        told.pop_if(|last| *last == b'\n');
        (!told.is_empty()).then(|| OsString::from_vec(told).into())
    }
}
