//! A file that keeps the state of a logical unit over restarts: small, and replaced whole or not at all.
//!
//! It knows nothing of what the bytes mean. A file that was damaged is told from one that was never written.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, OFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::store::file::sync_directory_of;

/// Where the state of an image is kept unless told otherwise: beside it, with this after its name.
const SIDECAR_SUFFIX: &str = ".lunette-state";
const FIRST_LINE: &[u8] = b"lunette unit state 1\n";
const HASH_BYTES: usize = 32;

/// The most that a unit's state may take, in bytes: what more than a thousand registered initiators need.
pub const STATE_BYTES_MAX: usize = 1 << 20;

/// Why the state of a unit cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It is not what was written.
    #[error(
        "{} does not have what was written to it; it keeps reservations and settings of the logical unit: bring it \
         back from a backup, or remove it to go on without them", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
}

/// The place of one unit's state. Its directory must be writable, the file need not exist.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
}

impl StateFile {
    /// The usual place for the state of an image.
    pub fn beside(image: &Path) -> PathBuf {
        let mut path = OsString::from(image);
        path.push(SIDECAR_SUFFIX);
        path.into()
    }

    /// The file at `path`, and what is in it.
    ///
    /// # Errors
    /// [`StateError`] where there is a file whose content cannot be trusted.
    pub fn open(path: PathBuf) -> Result<(Self, Option<Vec<u8>>), StateError> {
        let content = match read(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Self { path }, None)),
            Err(source) => return Err(StateError::Read { path, source }),
        };
        match checked(&content) {
            Some(bytes) => {
                let bytes = bytes.to_vec();
                Ok((Self { path }, Some(bytes)))
            }
            None => Err(StateError::Damaged { path }),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a file could be written here, as far as that shows before it is tried.
    pub fn is_writable(&self) -> bool {
        let directory = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK).is_ok()
    }

    /// Replaces the content. When it returns, the new content is stable; when it fails, the old one or the new one is
    /// there, never a part of one. Not to be called twice at a time.
    ///
    /// # Errors
    /// What the kernel said, or that `bytes` are more than [`STATE_BYTES_MAX`].
    pub fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        self.replace_by(&mut Kernel, bytes)
    }

    /// The new content is stable before it takes the place of the old one, and its name is before anybody is told.
    fn replace_by(&self, steps: &mut impl Steps, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() > STATE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the state is too long"));
        }
        let mut temporary = OsString::from(&self.path);
        temporary.push(".new");
        let temporary = PathBuf::from(temporary);
        let written = write(steps, &temporary, bytes).and_then(|()| steps.rename(&temporary, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written?;
        steps.sync_directory_of(&self.path)
    }
}

/// The calls on whose order it depends what a crash leaves.
trait Steps {
    fn sync(&mut self, file: &fs::File) -> io::Result<()>;
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    fn sync_directory_of(&mut self, path: &Path) -> io::Result<()>;
}

struct Kernel;

impl Steps for Kernel {
    fn sync(&mut self, file: &fs::File) -> io::Result<()> {
        file.sync_all()
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_directory_of(&mut self, path: &Path) -> io::Result<()> {
        Ok(sync_directory_of(path)?)
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // One byte more than there may be, so that a longer file shows.
    let length_max = FIRST_LINE.len() + HASH_BYTES + STATE_BYTES_MAX + 1;
    let mut content = Vec::new();
    fs::File::open(path)?.take(length_max as u64).read_to_end(&mut content)?;
    Ok(content)
}

fn checked(content: &[u8]) -> Option<&[u8]> {
    let (hash, bytes) = content.strip_prefix(FIRST_LINE)?.split_at_checked(HASH_BYTES)?;
    (bytes.len() <= STATE_BYTES_MAX && Sha256::digest(bytes)[..] == *hash).then_some(bytes)
}

/// Opens the file that is written first. What a crash left there is in nobody's way; a link of somebody else's is not followed.
fn open_new(path: &Path) -> io::Result<fs::File> {
    let no_links = OFlags::NOFOLLOW.bits().cast_signed();
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(no_links)
        .open(path)
}

fn write(steps: &mut impl Steps, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = match open_new(path) {
        Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            fs::remove_file(path)?;
            open_new(path)?
        }
        opened => opened?,
    };
    file.write_all(FIRST_LINE)?;
    file.write_all(&Sha256::digest(bytes))?;
    file.write_all(bytes)?;
    steps.sync(&file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = StateFile::beside(&directory.path().join("vm.img"));
        (directory, path)
    }

    #[test]
    fn the_last_content_is_there_after_a_restart() {
        let (_directory, path) = place();
        let (file, content) = StateFile::open(path.clone()).unwrap();
        assert_eq!(content, None);
        assert!(file.is_writable());
        for bytes in [&b"first"[..], b"second, and longer", b""] {
            file.replace(bytes).unwrap();
            assert_eq!(StateFile::open(path.clone()).unwrap().1.as_deref(), Some(bytes));
        }
        let too_long = file.replace(&vec![0; STATE_BYTES_MAX + 1]).unwrap_err();
        assert_eq!(too_long.kind(), io::ErrorKind::FileTooLarge);
    }

    /// The kernel, watched; from its `fails`th call on nothing is done any more, as after a crash.
    struct Watched {
        calls: Vec<&'static str>,
        fails: usize,
        path: PathBuf,
    }

    impl Watched {
        fn step(&mut self, call: &'static str, step: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
            self.calls.push(call);
            if self.calls.len() > self.fails { Err(Errno::IO.into()) } else { step() }
        }
    }

    impl Steps for Watched {
        fn sync(&mut self, file: &fs::File) -> io::Result<()> {
            // All of it is there by now, and under another name.
            let content = FIRST_LINE.len() + HASH_BYTES + b"second".len();
            assert_eq!(file.metadata()?.len(), content as u64);
            assert_eq!(StateFile::open(self.path.clone()).unwrap().1.as_deref(), Some(&b"first"[..]));
            self.step("sync", || Kernel.sync(file))
        }

        fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
            assert_eq!(to, self.path);
            self.step("rename", || Kernel.rename(from, to))
        }

        fn sync_directory_of(&mut self, path: &Path) -> io::Result<()> {
            assert_eq!(path, self.path);
            self.step("sync directory", || Kernel.sync_directory_of(path))
        }
    }

    /// SPC-4, APTPL: who is told that it is stored can rely on that, whenever the machine stops.
    #[test]
    fn the_content_is_stable_before_its_name_and_its_name_before_anybody_is_told() {
        const ORDER: [&str; 3] = ["sync", "rename", "sync directory"];
        for fails in 0..=ORDER.len() {
            let (_directory, path) = place();
            let (file, _) = StateFile::open(path.clone()).unwrap();
            file.replace(b"first").unwrap();
            let mut watched = Watched { calls: Vec::new(), fails, path: path.clone() };
            let outcome = file.replace_by(&mut watched, b"second");
            assert_eq!(watched.calls, ORDER[..ORDER.len().min(fails + 1)]);
            assert_eq!(
                outcome.is_ok(),
                fails == ORDER.len(),
                "one call fails: nobody is told that it is stored"
            );
            let left: &[u8] = if fails < 2 { b"first" } else { b"second" };
            assert_eq!(StateFile::open(path).unwrap().1.as_deref(), Some(left), "whole, whenever it stops");
        }
    }

    #[test]
    fn what_a_crash_left_behind_is_replaced() {
        let (_directory, path) = place();
        let (file, _) = StateFile::open(path.clone()).unwrap();
        fs::write(path.with_extension("lunette-state.new"), "half of it").unwrap();
        file.replace(b"whole").unwrap();
        assert_eq!(StateFile::open(path).unwrap().1.as_deref(), Some(&b"whole"[..]));
    }

    /// Who may write to the directory of an image must not have the target write elsewhere.
    #[test]
    fn a_link_in_the_way_is_replaced_and_not_followed() {
        let (directory, path) = place();
        let (file, _) = StateFile::open(path.clone()).unwrap();
        let elsewhere = directory.path().join("elsewhere");
        fs::write(&elsewhere, "precious").unwrap();
        std::os::unix::fs::symlink(&elsewhere, path.with_extension("lunette-state.new")).unwrap();
        file.replace(b"state").unwrap();
        assert_eq!(fs::read(&elsewhere).unwrap(), b"precious");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(StateFile::open(path).unwrap().1.as_deref(), Some(&b"state"[..]));
    }

    #[test]
    fn damage_is_told_from_absence() {
        let (_directory, path) = place();
        let (file, _) = StateFile::open(path.clone()).unwrap();
        file.replace(b"content").unwrap();
        let good = fs::read(&path).unwrap();
        for at in [0, FIRST_LINE.len(), good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).unwrap();
            let error = StateFile::open(path.clone()).unwrap_err();
            assert!(error.to_string().contains("vm.img.lunette-state"), "{error}");
        }
        fs::write(&path, &good[..good.len() - 1]).unwrap();
        assert!(matches!(StateFile::open(path.clone()), Err(StateError::Damaged { .. })));
        fs::write(&path, b"").unwrap();
        assert!(matches!(StateFile::open(path), Err(StateError::Damaged { .. })));
    }

    #[test]
    fn a_place_that_is_not_there_is_not_writable() {
        let (file, _) = StateFile::open("/nonexistent/disk.lunette-state".into()).unwrap();
        assert!(!file.is_writable());
        assert!(file.replace(b"x").is_err());
    }
}
