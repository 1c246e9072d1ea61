//! ext2 (POSIX files on blocks, without a journal), made in an image and mounted through a loop device that goes with the mount.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{major, minor, stat};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::LabError;
use crate::study::peer::command;
use crate::study::tool;

/// The major number of loop devices.
const LOOP: u32 = 7;
/// How long a process that was killed may take to be gone.
const PATIENCE: Duration = Duration::from_secs(120);

/// Makes a file system in an image, with blocks of 4 KiB.
///
/// # Errors
/// `mke2fs` says why it cannot.
pub(crate) fn make(image: &Path) -> Result<(), LabError> {
    // Without discards: a hole in the image would be read without the disk.
    let options = ["-q", "-F", "-t", "ext2", "-b", "4096", "-E", "nodiscard"];
    run("mke2fs", options.map(OsStr::new).into_iter().chain([image.as_os_str()]))
}

/// A file system that is mounted.
#[derive(Debug)]
pub(crate) struct Mounted {
    root: PathBuf,
    is_mounted: bool,
}

impl Mounted {
    /// Mounts what is in a file, at a directory that it makes. Where it is synchronous, all that is done is stable before it returns. The
    /// file is read and written past its own pages, and as much at once as the file system asks for.
    ///
    /// # Errors
    /// The tools say why they cannot.
    pub(crate) fn new(file: &Path, root: PathBuf, is_synchronous: bool) -> Result<Self, LabError> {
        fs::create_dir_all(&root).map_err(LabError::system("a directory to mount at"))?;
        // With this option `mount` has the kernel free the loop device when it is unmounted, by whatever.
        let options = if is_synchronous { "loop,sync" } else { "loop" };
        let words = ["-t", "ext2", "-o", options].map(OsStr::new);
        run("mount", words.into_iter().chain([file.as_os_str(), root.as_os_str()]))?;
        let mounted = Self { root, is_mounted: true };
        let device =
            stat(&mounted.root).map_err(|error| LabError::system("a mounted root")(error.into()))?.st_dev;
        if major(device) != LOOP {
            return Err(LabError::NotReady("what was mounted is on no loop device".to_owned()));
        }
        let device = format!("/dev/loop{}", minor(device));
        run("losetup", ["--direct-io=on", &device].map(OsStr::new))?;
        Ok(mounted)
    }

    /// Where it is.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Takes it out of the tree; everything is written and stable then.
    pub(crate) fn unmount(mut self) -> Result<(), LabError> {
        let begun = Instant::now();
        loop {
            match unmount(&self.root, UnmountFlags::empty()) {
                Ok(()) => break,
                // Who has served it was killed, and is gone in a moment.
                Err(Errno::BUSY) if begun.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(5)),
                Err(error) => return Err(LabError::system("to unmount a file system")(error.into())),
            }
        }
        self.is_mounted = false;
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is_mounted {
            // Something has failed, or the thread panics. Who still has a file open keeps the mount until he closes it.
            let _ = unmount(&self.root, UnmountFlags::DETACH);
        }
    }
}

/// Runs a tool to its end.
fn run<'a>(name: &str, arguments: impl IntoIterator<Item = &'a OsStr>) -> Result<(), LabError> {
    let mut command = command(name);
    command.args(arguments);
    tool::run(command, name, tool::LIMIT).map(drop)
}
