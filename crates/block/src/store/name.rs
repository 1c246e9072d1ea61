//! Whether the path of an image, or of what is kept beside it, still leads to it. Somebody may remove the file, or put another one in its
//! place, while it is served: the kernel keeps one without a name until the process ends, and then it is gone.
//!
//! Only what is certain counts. A path that leads nowhere says nothing alone: an image that was moved is still there, and
//! a server of files that is away brings it back.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{fstat, stat};

/// What has become of an image that its path no longer leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Astray {
    /// The path.
    pub path: PathBuf,
    /// Another file is there.
    pub is_replaced: bool,
    /// The image has no name left, and is gone when the process ends.
    pub is_nameless: bool,
    /// Where it can be read as long as the process runs.
    pub open_at: PathBuf,
}

impl fmt::Display for Astray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_replaced { "is another file now" } else { "was removed" };
        let fate = if self.is_nameless {
            "the file that is served, with all that was written to it, is gone when this process ends"
        } else {
            "the file that is served has another name"
        };
        write!(f, "{} {what}; {fate}", self.path.display())
    }
}

/// Whether `path` leads to the file, and the file has a name: of one that was just opened. Some file systems of other machines
/// and of user space number files otherwise, or do not count names; they are not to be asked later either.
pub(super) fn leads_to(file: BorrowedFd<'_>, path: &Path) -> bool {
    let (Ok(own), Ok(there)) = (fstat(file), stat(path)) else { return false };
    own.st_nlink > 0 && (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)
}

/// What has become of a file that `path` had led to.
pub(super) fn astray(file: BorrowedFd<'_>, path: &Path) -> Option<Astray> {
    let own = fstat(file).ok()?;
    let there = stat(path).ok();
    if there.is_some_and(|there| (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)) {
        return None;
    }
    let (is_replaced, is_nameless) = (there.is_some(), own.st_nlink == 0);
    let open_at = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into();
    (is_replaced || is_nameless).then(|| Astray { path: path.to_owned(), is_replaced, is_nameless, open_at })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::fd::AsFd;

    #[test]
    fn only_what_is_certain_counts() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("a"), directory.path().join("b"));
        fs::write(&path, "first").unwrap();
        let file = fs::File::open(&path).unwrap();
        let astray = || astray(file.as_fd(), &path).map(|found| (found.is_replaced, found.is_nameless));
        assert!(leads_to(file.as_fd(), &path) && !leads_to(file.as_fd(), &other));
        assert_eq!(astray(), None);
        fs::rename(&path, &other).unwrap();
        assert_eq!(astray(), None, "it was moved, or cannot be looked at now");
        fs::write(&path, "second").unwrap();
        assert_eq!(astray(), Some((true, false)));
        fs::remove_file(&other).unwrap();
        assert_eq!(astray(), Some((true, true)));
        fs::remove_file(&path).unwrap();
        assert_eq!(astray(), Some((false, true)));
        assert!(!leads_to(file.as_fd(), &path));
    }

    #[test]
    fn what_is_gone_can_be_copied_from_where_it_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        fs::write(&path, "data").unwrap();
        let file = fs::File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let found = astray(file.as_fd(), &path).unwrap();
        assert_eq!(fs::read_to_string(&found.open_at).unwrap(), "data");
        assert!(found.to_string().contains("/a was removed; the file that is served"), "{found}");
    }
}
