//! Images on a disk of this machine, and how they get out of its page cache.
//!
//! Cold means: everything was written to the disk, and the system was told that nobody needs the pages (POSIX_FADV_DONTNEED), and
//! cachestat(2), which reads nothing, finds next to none of them. Where the kernel cannot tell, nobody has looked. What the disk
//! itself, a file system's own cache, or a host below this machine still has in memory nobody here can say.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use lunette_block::cached_bytes;
use rustix::fs::{Advice, fadvise, fstatfs};

use super::scratch::Directory;
use crate::LabError;

/// What is written at once, in bytes.
const PIECE_BYTES: usize = 1 << 20;
/// File systems that are nowhere but in memory: tmpfs and ramfs (statfs(2)).
const IN_MEMORY: [rustix::fs::FsWord; 2] = [0x0102_1994, 0x8584_58f6];
/// File systems whose files have their pages elsewhere, so that cachestat(2) finds none: overlayfs and ZFS.
const ELSEWHERE: [rustix::fs::FsWord; 2] = [0x794c_7630, 0x2fc1_2fc1];
/// The share of an image that may be left in the page cache.
const CACHED_MAX: f64 = 0.01;

/// An image in a directory of its own, which goes with it.
#[derive(Debug)]
pub(crate) struct Image {
    directory: Directory,
    path: PathBuf,
    length_bytes: u64,
}

impl Image {
    /// Makes one, of data that nothing can compress.
    pub(crate) fn make(scratch: &Path, length_bytes: u64) -> Result<Self, LabError> {
        let image = Self::directory(scratch, length_bytes)?;
        image.fill().map_err(LabError::system("an image"))?;
        Ok(image)
    }

    /// Makes one that is a hole: what is read without having been written does not come from a disk.
    pub(crate) fn hollow(scratch: &Path, length_bytes: u64) -> Result<Self, LabError> {
        let image = Self::directory(scratch, length_bytes)?;
        let made = File::create_new(&image.path).and_then(|file| file.set_len(length_bytes));
        made.map_err(LabError::system("an image"))?;
        Ok(image)
    }

    fn directory(scratch: &Path, length_bytes: u64) -> Result<Self, LabError> {
        let directory = Directory::make(scratch).map_err(LabError::system("a directory for images"))?;
        Ok(Self { path: directory.path().join("disk"), directory, length_bytes })
    }

    fn fill(&self) -> io::Result<()> {
        let mut file = File::create_new(&self.path)?;
        let mut piece = vec![0; PIECE_BYTES];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut left = self.length_bytes;
        while left > 0 {
            for word in piece.chunks_exact_mut(8) {
                // Marsaglia's xorshift: fast, and nothing that repeats within an image.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                word.copy_from_slice(&state.to_le_bytes());
            }
            let length = left.min(PIECE_BYTES as u64);
            file.write_all(&piece[..length as usize])?;
            left -= length;
        }
        file.sync_all()
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Has the system forget it, and tells the share that it still has, where it can be asked.
    ///
    /// # Errors
    /// It is still in memory, as on file systems that are nowhere else.
    pub(crate) fn cool(&self) -> Result<Option<f64>, LabError> {
        let failed = LabError::system("an image that is in no cache");
        let file = File::open(&self.path).map_err(&failed)?;
        let kind = fstatfs(&file).map_err(|error| failed(error.into()))?.f_type;
        if IN_MEMORY.contains(&kind) {
            let directory = self.directory.path().parent().unwrap_or(&self.path).display();
            return Err(LabError::Plan(format!(
                "files in {directory} are in memory, where nothing is cold; --scratch is to be a directory on a disk"
            )));
        }
        file.sync_all().map_err(&failed)?;
        fadvise(&file, 0, None, Advice::DontNeed).map_err(|error| failed(error.into()))?;
        let cached = self.cached(&file).map_err(&failed)?;
        if let Some(share) = cached.filter(|share| *share > CACHED_MAX) {
            let percent = share * 100.0;
            return Err(LabError::NotReady(format!(
                "{percent:.1} % of an image that is to be cold stays in this machine's page cache"
            )));
        }
        Ok(cached)
    }

    /// The share of it that the page cache has; none where the kernel cannot tell.
    fn cached(&self, file: &File) -> io::Result<Option<f64>> {
        if ELSEWHERE.contains(&fstatfs(file)?.f_type) {
            return Ok(None);
        }
        let bytes = cached_bytes(file.as_fd(), self.length_bytes);
        Ok(bytes.map(|bytes| bytes as f64 / self.length_bytes.max(1) as f64))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_image_goes_with_its_directory() {
        let scratch = tempfile::tempdir().expect("a directory");
        let image = Image::make(scratch.path(), (3 << 20) + 512).expect("an image");
        let data = fs::read(image.path()).expect("its data");
        assert_eq!(data.len() as u64, image.length_bytes);
        let file = File::open(image.path()).expect("its file");
        // All of it was just read.
        assert!(image.cached(&file).expect("an answer").is_none_or(|share| share >= 1.0));
        if let Err(refused) = image.cool() {
            // On a disk next to nothing may stay.
            assert!(refused.to_string().contains("are in memory"), "{refused}");
        }
        let mut words: Vec<_> = data.chunks_exact(8).collect();
        let count = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), count, "nothing repeats");
        drop(image);
        assert_eq!(fs::read_dir(scratch.path()).expect("a directory").count(), 0);
    }
}
