//! What the kernel tells about block devices under `/sys/dev/block`. Only reads; nothing found is an answer too.

use std::path::{Path, PathBuf};

/// The sysfs directory of one block device.
#[derive(Debug, Clone)]
pub(crate) struct DeviceDirectory {
    path: PathBuf,
}

impl DeviceDirectory {
    /// The directory of the device number `device`.
    pub(crate) fn of(device: u64) -> Self {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        Self { path: PathBuf::from(format!("/sys/dev/block/{major}:{minor}")) }
    }

    /// A directory made up by a test.
    #[cfg(test)]
    pub(crate) fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// An attribute's text without the white space around it; `None` when it is missing or empty.
    pub(crate) fn attribute(&self, name: impl AsRef<Path>) -> Option<String> {
        let text = std::fs::read(self.path.join(name)).ok()?;
        let text = String::from_utf8_lossy(&text);
        let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// An attribute that is a number.
    pub(crate) fn number(&self, name: impl AsRef<Path>) -> Option<u64> {
        self.attribute(name)?.parse().ok()
    }

    /// The partition's number, when this is a partition.
    pub(crate) fn partition(&self) -> Option<u64> {
        self.number("partition")
    }

    /// The whole disk: itself, or the parent of a partition. Queue limits and names are found there only.
    pub(crate) fn disk(&self) -> Self {
        if self.partition().is_some() { Self { path: self.path.join("..") } } else { self.clone() }
    }

    /// Whether a spinning disk is below.
    pub(crate) fn rotational(&self) -> Option<bool> {
        self.disk().number("queue/rotational").map(|number| number != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_partition_asks_its_disk() {
        let root = tempfile::tempdir().unwrap();
        let partition = root.path().join("sda/sda2");
        fs::create_dir_all(root.path().join("sda/queue")).unwrap();
        fs::create_dir_all(&partition).unwrap();
        fs::write(root.path().join("sda/queue/rotational"), "1\n").unwrap();
        fs::write(root.path().join("sda/serial"), "  \n").unwrap();
        fs::write(partition.join("partition"), "2\n").unwrap();
        let device = DeviceDirectory::at(&partition);
        assert_eq!(device.partition(), Some(2));
        assert_eq!(device.rotational(), Some(true));
        assert_eq!(device.disk().attribute("serial"), None, "blanks are nothing");
        assert_eq!(device.disk().disk().partition(), None);
    }

    #[test]
    fn no_such_device_knows_nothing() {
        assert_eq!(DeviceDirectory::at(Path::new("/nonexistent")).rotational(), None);
    }
}
