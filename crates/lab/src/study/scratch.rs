//! Directories for the files of a study, which go with whoever has them. What one leaves who is killed, the next study that has
//! its files in the same place removes: a directory has the number of its process in its name, and a lock that goes with that
//! process.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// How the names begin; the process's number follows.
const PREFIX: &str = "lunette-lab-";

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A directory of this process's.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// Held as long as it is used.
    _lock: File,
}

impl Directory {
    /// Makes one in another one, after those have been removed from there that nobody has any more.
    pub(crate) fn make(parent: &Path) -> io::Result<Self> {
        sweep(parent);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::create_dir(&path)?;
        let lock = lock(&path).inspect_err(|_| {
            // It is empty, and of no use to anybody.
            let _ = fs::remove_dir(&path);
        })?;
        Ok(Self { path, _lock: lock })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn lock(path: &Path) -> io::Result<File> {
    let lock = File::open(path)?;
    lock.lock()?;
    Ok(lock)
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What cannot be removed is for the administrator of the directory to see.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the directories of studies in another one whose processes are gone.
pub fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if is_left(&entry) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether it is such a directory, of this user's, that nobody has any more.
fn is_left(entry: &fs::DirEntry) -> bool {
    let name = entry.file_name();
    let numbers = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
    let Some(owner) = numbers.and_then(owner) else { return false };
    let is_own = entry
        .metadata()
        .is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw());
    // The number tells of processes that can be seen here, and the lock of others.
    let is_gone = || fs::exists(format!("/proc/{owner}")).is_ok_and(|exists| !exists);
    is_own && is_gone() && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok())
}

/// The process in what follows the prefix: of several words with hyphens the one before the last.
fn owner(numbers: &str) -> Option<u32> {
    numbers.rsplit('-').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_go_with_who_has_them() {
        let parent = tempfile::tempdir().expect("a directory");
        let directory = Directory::make(parent.path()).expect("a directory");
        fs::write(directory.path().join("file"), "x").expect("a file");
        let path = directory.path().to_owned();
        drop(directory);
        assert!(!path.exists());
    }

    #[test]
    fn what_nobody_has_any_more_is_removed_and_nothing_else() {
        let parent = tempfile::tempdir().expect("a directory");
        let make = |name: &str| {
            let path = parent.path().join(name);
            fs::create_dir(&path).expect("a directory");
            fs::write(path.join("disk"), "x").expect("a file");
            path
        };
        // No process has so large a number (PID_MAX_LIMIT).
        let gone = [make("lunette-lab-99999999-0"), make("lunette-lab-times-99999999-3")];
        let others = [
            make(&format!("lunette-lab-{}-77", std::process::id())),
            make("lunette-lab-99999999"),
            make("lunette-lab-x-1"),
            make("other-99999999-0"),
            make("lunette-lab-99999999-1"),
        ];
        let _elsewhere = lock(&others[4]).expect("a lock");
        let directory = Directory::make(parent.path()).expect("a directory");
        assert!(!gone.iter().any(|path| path.exists()));
        assert!(others.iter().all(|path| path.exists()) && directory.path().exists());
    }
}
