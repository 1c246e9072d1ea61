//! Whether this system gives this process large pages, found out by asking for one; and if not, what keeps it from that.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::area::{LARGE_PAGE_BYTES, Pages, Slot};

/// Where the kernel tells of transparent large pages.
const KERNEL: &str = "/sys/kernel/mm/transparent_hugepage";
/// Where it tells of this process.
const PROCESS: &str = "/proc/self/status";

/// What asking for a large page comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LargePages {
    /// There was one.
    Given,
    /// There was none just now, and nothing that forbids them: there may be some later.
    NoneNow,
    /// There will be none.
    Refused(Refusal),
}

/// Why there are no large pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The kernel was built without them.
    Unknown,
    /// They are switched off for all programs, by this file.
    SwitchedOff(PathBuf),
    /// They are switched off for this process, by whoever started it.
    Forbidden,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => write!(f, "this kernel has none ({KERNEL} is missing)"),
            Self::SwitchedOff(path) => {
                let path = path.display();
                write!(f, "{path} is \"never\"; \"madvise\" there gives them to programs that ask")
            }
            Self::Forbidden => f.write_str("this process may not have any (PR_SET_THP_DISABLE)"),
        }
    }
}

impl LargePages {
    /// Asks for one, and gives it back.
    pub fn probe() -> Self {
        if let Some(refusal) = refusal(Path::new(KERNEL), Path::new(PROCESS)) {
            return Self::Refused(refusal);
        }
        let mut slots = Slot::several(LARGE_PAGE_BYTES, Pages::Large).unwrap_or_default();
        let is_given = slots.first_mut().is_some_and(|slot| {
            slot.bytes_mut()[0] = 1;
            slot.resident_bytes() == Some(LARGE_PAGE_BYTES)
        });
        if is_given { Self::Given } else { Self::NoneNow }
    }
}

/// What the kernel says that forbids them.
fn refusal(kernel: &Path, process: &Path) -> Option<Refusal> {
    if !kernel.is_dir() {
        return Some(Refusal::Unknown);
    }
    let for_all = kernel.join("enabled");
    // Linux 6.8 and later have a switch for each size, which may leave it to the one for all.
    let for_size = kernel.join(format!("hugepages-{}kB/enabled", LARGE_PAGE_BYTES >> 10));
    match (chosen(&for_size).as_deref(), chosen(&for_all).as_deref()) {
        (Some("never"), _) => return Some(Refusal::SwitchedOff(for_size)),
        (Some("inherit") | None, Some("never")) => return Some(Refusal::SwitchedOff(for_all)),
        _ => {}
    }
    let status = std::fs::read_to_string(process).unwrap_or_default();
    let told = status.lines().find_map(|line| line.strip_prefix("THP_enabled:"));
    told.filter(|told| told.trim() == "0").map(|_| Refusal::Forbidden)
}

/// The word in brackets, of those that could be chosen.
fn chosen(path: &Path) -> Option<String> {
    let words = std::fs::read_to_string(path).ok()?;
    let word = words.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    word.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_keeps_the_kernel_from_giving_any_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let (kernel, process) = (directory.path().join("thp"), directory.path().join("status"));
        let refusal = || refusal(&kernel, &process);
        assert_eq!(refusal(), Some(Refusal::Unknown));
        let of_size = kernel.join("hugepages-2048kB");
        fs::create_dir_all(&of_size).unwrap();
        let (for_all, for_size) = (kernel.join("enabled"), of_size.join("enabled"));
        fs::write(&for_all, "always madvise [never]\n").unwrap();
        assert_eq!(refusal(), Some(Refusal::SwitchedOff(for_all.clone())));
        fs::write(&for_size, "always [inherit] madvise never\n").unwrap();
        assert_eq!(refusal(), Some(Refusal::SwitchedOff(for_all.clone())));
        let said = refusal().unwrap().to_string();
        assert!(said.ends_with("/enabled is \"never\"; \"madvise\" there gives them to programs that ask"));
        fs::write(&for_size, "always inherit [madvise] never\n").unwrap();
        assert_eq!(refusal(), None);
        fs::write(&for_all, "always [madvise] never\n").unwrap();
        assert_eq!(refusal(), None);
        fs::write(&for_size, "always inherit madvise [never]\n").unwrap();
        assert_eq!(refusal(), Some(Refusal::SwitchedOff(for_size.clone())));
        fs::remove_file(&for_size).unwrap();
        fs::write(&process, "Name:\tlunette\nTHP_enabled:\t1\n").unwrap();
        assert_eq!(refusal(), None);
        fs::write(&process, "Name:\tlunette\nTHP_enabled:\t0\n").unwrap();
        assert_eq!(refusal(), Some(Refusal::Forbidden));
    }

    #[test]
    fn asking_agrees_with_what_the_kernel_says() {
        let found = LargePages::probe();
        let refusal = refusal(Path::new(KERNEL), Path::new(PROCESS));
        assert_eq!(refusal.is_some(), matches!(found, LargePages::Refused(_)), "{found:?}");
    }
}
