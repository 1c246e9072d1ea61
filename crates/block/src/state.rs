//! A file that keeps the state of a logical unit over restarts: small, and replaced whole or not at all.
//!
//! It knows nothing of what the bytes mean, but that they are of two parts: one without which the file is of no use, and
//! one that can be lost alone. A file that was damaged is told from one that was never written.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Access, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::store::file::sync_directory_of;

/// Where the state of an image is kept unless told otherwise: beside it, with this after its name.
const SIDECAR_SUFFIX: &str = ".lunette-state";
/// Of every version of the form.
const NAME: &[u8] = b"lunette unit state ";
const FIRST_LINE: &[u8] = b"lunette unit state 2\n";
const HASH_BYTES: usize = 32;
/// What stands before the essential part: the hash of all that is essential, then, as a part of that, the length of the
/// essential part in four bytes and the hash of the replaceable one.
const LENGTH_BYTES: usize = 4;
const HEAD_BYTES: usize = FIRST_LINE.len() + HASH_BYTES + LENGTH_BYTES + HASH_BYTES;
/// After the file's name: a copy of what was found damaged. Further ones are numbered.
const ASIDE_SUFFIX: &str = ".damaged";

/// After the file's name: the lock of who may write it.
const LOCK_SUFFIX: &str = ".lock";

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
    /// A part of it is not what was written, and no copy of it can be made.
    #[error("{} is damaged, and cannot be copied before it is written again: {source}", path.display())]
    CopyAside {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It has a form that this version does not know.
    #[error(
        "{} is of another version of this program; it keeps reservations and settings of the logical unit: serve it with \
         that version, or remove it to go on without them", path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
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

/// Why a content was not stored.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    /// The file was not reached: it has what it had.
    #[error("{0}")]
    Unchanged(io::Error),
    /// The file has the old content or the new one, and may have the other one after a crash.
    #[error("{0}")]
    InDoubt(io::Error),
}

/// What a state file keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateContent {
    /// What the unit cannot be served without.
    pub essential: Vec<u8>,
    /// What can be lost alone; `None`: it was, for it is not what was written.
    pub replaceable: Option<Vec<u8>>,
}

/// The place of one unit's state. Its directory must be writable, the file need not exist.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    /// Where writing takes a lock: that, as long as it is held.
    lock: Option<Mutex<Option<StateLock>>>,
}

/// The right to write a state, of one process at a time. It has a file of its own, for that of the state is another one after each
/// [`StateFile::replace`]; it is gone with the lock, unless the process was killed.
#[derive(Debug)]
pub struct StateLock {
    path: PathBuf,
    fd: OwnedFd,
}

impl StateLock {
    /// Takes the lock of the state at `state`; `None`: somebody else has it.
    ///
    /// # Errors
    /// What the kernel said; nobody can say then who writes there.
    pub fn take(state: &Path) -> io::Result<Option<Self>> {
        let mut path = OsString::from(state);
        path.push(LOCK_SUFFIX);
        let path = PathBuf::from(path);
        // Whatever somebody else has put there, nobody waits for it.
        let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        loop {
            // Others who may write here need not be the same user.
            let fd = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o644))?;
            match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            // Who had it before may have taken the file away meanwhile.
            let own = rustix::fs::fstat(&fd)?;
            match rustix::fs::lstat(&path) {
                Ok(there) if (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino) => {
                    return Ok(Some(Self { path, fd }));
                }
                Ok(_) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for StateLock {
    fn drop(&mut self) {
        // In this order, so that nobody takes the name of another one's lock away.
        let _ = fs::remove_file(&self.path);
        // A process that is just being started may have a copy of the descriptor.
        let _ = rustix::fs::flock(&self.fd, FlockOperation::Unlock);
    }
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
    /// [`StateError`] where there is a file whose essential part cannot be trusted.
    pub fn open(path: PathBuf) -> Result<(Self, Option<StateContent>), StateError> {
        let content = match read(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((Self { path, lock: None }, None));
            }
            Err(source) => return Err(StateError::Read { path, source }),
        };
        match checked(&content) {
            Some(content) => Ok((Self { path, lock: None }, Some(content))),
            None if content.starts_with(NAME) && !content.starts_with(FIRST_LINE) => {
                Err(StateError::Version { path })
            }
            None => Err(StateError::Damaged { path }),
        }
    }

    /// The same with the lock of its state, which goes with it.
    #[must_use]
    pub fn locked_by(self, lock: StateLock) -> Self {
        Self { lock: Some(Mutex::new(Some(lock))), ..self }
    }

    /// Lets others have the lock; nothing is written from then on. While it is being written, the lock stays, and goes with the process.
    pub fn release(&self) {
        if let Some(Ok(mut lock)) = self.lock.as_ref().map(Mutex::try_lock) {
            drop(lock.take());
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a file could be written here, as far as that shows before it is tried.
    ///
    /// # Errors
    /// Why not.
    pub fn check_writable(&self) -> io::Result<()> {
        let directory = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        Ok(rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK)?)
    }

    /// Copies the file, as far as a state can be long, to a name of its own beside it, for whoever wants to find out what has
    /// become of it, and answers that name. A copy that is there already is enough.
    ///
    /// # Errors
    /// What the kernel said; the file itself is untouched.
    pub fn copy_aside(&self) -> io::Result<PathBuf> {
        let content = read(&self.path)?;
        let mut number = 1u32;
        loop {
            let mut aside = OsString::from(&self.path);
            aside.push(ASIDE_SUFFIX);
            if number > 1 {
                aside.push(format!(".{number}"));
            }
            let aside = PathBuf::from(aside);
            let written = create(&aside, |file| {
                file.write_all(&content)?;
                file.sync_all()
            });
            match written {
                Ok(()) => {
                    sync_directory_of(&aside)?;
                    return Ok(aside);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    if read(&aside).is_ok_and(|other| other == content) {
                        return Ok(aside);
                    }
                    number += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Replaces the content. When it returns, the new content is stable; when it fails, the old one or the new one is
    /// there, never a part of one. Not to be called twice at a time.
    ///
    /// # Errors
    /// What the kernel said, or that both parts are more than [`STATE_BYTES_MAX`]; and whether the old content is there for sure.
    pub fn replace(&self, essential: &[u8], replaceable: &[u8]) -> Result<(), ReplaceError> {
        let held = self.lock.as_ref().map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner));
        if held.as_ref().is_some_and(|lock| lock.is_none()) {
            return Err(ReplaceError::Unchanged(io::Error::other("the lock of the state was given back")));
        }
        self.replace_by(&mut Kernel, (essential, replaceable))
    }

    /// The new content is stable before it takes the place of the old one, and its name is before anybody is told.
    fn replace_by(&self, steps: &mut impl Steps, parts: (&[u8], &[u8])) -> Result<(), ReplaceError> {
        if parts.0.len() + parts.1.len() > STATE_BYTES_MAX {
            let error = io::Error::new(io::ErrorKind::FileTooLarge, "the state is too long");
            return Err(ReplaceError::Unchanged(error));
        }
        let mut temporary = OsString::from(&self.path);
        temporary.push(".new");
        let temporary = PathBuf::from(temporary);
        let written = write(steps, &temporary, parts).map_err(ReplaceError::Unchanged);
        // A file system on a network may have renamed what it tells an error of.
        let renamed =
            written.and_then(|()| steps.rename(&temporary, &self.path).map_err(ReplaceError::InDoubt));
        if renamed.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        renamed?;
        steps.sync_directory_of(&self.path).map_err(ReplaceError::InDoubt)
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
    let length_max = HEAD_BYTES + STATE_BYTES_MAX + 1;
    let mut content = Vec::new();
    // Whatever somebody else has put there, nobody waits for it.
    let at_once = OFlags::NONBLOCK.bits().cast_signed();
    let file = fs::OpenOptions::new().read(true).custom_flags(at_once).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    file.take(length_max as u64).read_to_end(&mut content)?;
    Ok(content)
}

/// Makes a file that must not be there yet; nothing of it is left where it cannot be written.
fn create(path: &Path, write: impl FnOnce(&mut fs::File) -> io::Result<()>) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let written = write(&mut file);
    if written.is_err() {
        let _ = fs::remove_file(path);
    }
    written
}

fn checked(content: &[u8]) -> Option<StateContent> {
    let (hash, rest) = content.strip_prefix(FIRST_LINE)?.split_at_checked(HASH_BYTES)?;
    let (length, after) = rest.split_first_chunk::<LENGTH_BYTES>()?;
    let (replaceable_hash, _) = after.split_at_checked(HASH_BYTES)?;
    let essential_end = LENGTH_BYTES + HASH_BYTES + u32::from_be_bytes(*length) as usize;
    let (head, replaceable) = rest.split_at_checked(essential_end)?;
    if Sha256::digest(head)[..] != *hash {
        return None;
    }
    // Longer than one that was written, it is damaged where it can be lost, for the other part has its length.
    let is_whole =
        content.len() <= HEAD_BYTES + STATE_BYTES_MAX && Sha256::digest(replaceable)[..] == *replaceable_hash;
    Some(StateContent {
        essential: head[LENGTH_BYTES + HASH_BYTES..].to_vec(),
        replaceable: is_whole.then(|| replaceable.to_vec()),
    })
}

/// The inverse of [`checked`].
fn composed((essential, replaceable): (&[u8], &[u8])) -> Vec<u8> {
    let length = essential.len() as u32;
    let head = [&length.to_be_bytes(), &Sha256::digest(replaceable)[..], essential].concat();
    [FIRST_LINE, &Sha256::digest(&head), &head, replaceable].concat()
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

fn write(steps: &mut impl Steps, path: &Path, parts: (&[u8], &[u8])) -> io::Result<()> {
    let mut file = match open_new(path) {
        Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            fs::remove_file(path)?;
            open_new(path)?
        }
        opened => opened?,
    };
    file.write_all(&composed(parts))?;
    steps.sync(&file)
}

#[cfg(test)]
mod tests;
