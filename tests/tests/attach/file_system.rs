//! The disk as a file: what files can do, and real file systems on it through a loop device, also over a restart of the target.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use lunette_tests::attach::{Attached, can_mount};
use lunette_tests::lunette::Lunette;
use lunette_tests::need_programs;
use lunette_tests::skip::record_lacking;
use lunette_tests::tool::{tool, tool_output};
use rustix::fs::{FallocateFlags, fallocate};

use super::pattern;

const FILES: usize = 120;
/// Files that are there before the target is killed.
const FILES_BEFORE: usize = 30;

#[test]
fn the_file_is_the_disk() {
    if !can_mount() {
        return;
    }
    let target = Lunette::serve().luns(["0=mem:16M,block=4096"]).start().expect("a target");
    let directory = tempfile::tempdir().expect("a directory");
    let attached = Attached::mount(&target.url(0), directory.path(), &[]).expect("attached");
    let entry = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").path();
    let paths: Vec<PathBuf> = fs::read_dir(directory.path()).expect("a list").map(entry).collect();
    assert_eq!(paths, [attached.file()]);

    let file = OpenOptions::new().read(true).write(true).open(attached.file()).expect("the file");
    assert_eq!(file.metadata().expect("its size").len(), 16 << 20);
    let data = pattern(1, 3 << 20);
    file.write_all_at(&data, 1001).expect("written");
    file.sync_all().expect("stable");
    let read = |offset, length| {
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, offset).expect("data");
        bytes
    };
    assert!(read(1001, 3 << 20) == data);
    assert_eq!(read(0, 1001), [0; 1001]);
    // A hole and zeros that are not of whole blocks.
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, hole, 10_000, 100_000).expect("a hole");
    fallocate(&file, FallocateFlags::ZERO_RANGE, 200_001, 7).expect("zeros");
    assert_eq!(read(10_000, 100_000), [0; 100_000]);
    assert_eq!(read(9_000, 1000), data[7999..8999]);
    assert_eq!(read(110_000, 1000), data[108_999..109_999]);
    assert_eq!(read(200_000, 9), [&data[198_999..199_000], &[0; 7], &data[199_007..199_008]].concat());
    assert!(fallocate(&file, FallocateFlags::empty(), 0, 4096).is_err());

    // What is written past the end is refused, and the size stays.
    assert_eq!(file.read_at(&mut [0; 10], (16 << 20) - 4).expect("the last bytes"), 4);
    assert_eq!(file.write_at(&[0; 10], (16 << 20) - 4).expect_err("too long").kind(), ErrorKind::StorageFull);
    assert_eq!(file.set_len(0).expect_err("no").kind(), ErrorKind::PermissionDenied);
    let synchronous = OpenOptions::new()
        .write(true)
        .custom_flags(rustix::fs::OFlags::SYNC.bits().cast_signed())
        .open(attached.file())
        .expect("the file");
    synchronous.write_all_at(b"now", 5).expect("written");
    assert_eq!(read(4, 5), b"\0now\0");
    drop((file, synchronous));
    // Whoever unmounts it detaches it; it is in use for a moment after it was closed.
    let unmount = || rustix::mount::unmount(directory.path(), rustix::mount::UnmountFlags::empty());
    while unmount().is_err_and(|error| error == rustix::io::Errno::BUSY) {
        thread::yield_now();
    }
    attached.end().expect("all is stable");
    target.stop().expect("a clean end");
}

#[test]
fn a_read_only_file_cannot_be_written() {
    if !can_mount() {
        return;
    }
    let target = Lunette::serve().luns(["0=mem:1M"]).start().expect("a target");
    let directory = tempfile::tempdir().expect("a directory");
    let attached = Attached::mount(&target.url(0), directory.path(), &["--read-only"]).expect("attached");
    let refused = OpenOptions::new().write(true).open(attached.file()).expect_err("read-only");
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fs::read(attached.file()).expect("data").len(), 1 << 20);
    attached.detach().expect("all is well");
    target.stop().expect("a clean end");
}

/// A file system that is mounted through a loop device.
struct Mounted(PathBuf);

impl Mounted {
    /// None where there is no loop device to be had.
    fn new(file: &Path, at: &Path) -> Option<Self> {
        let ended = tool("mount", [Path::new("-o"), Path::new("loop"), file, at]);
        if ended.success() {
            return Some(Self(at.to_owned()));
        }
        record_lacking(&format!("the file system cannot be mounted by a loop device: {}", ended.output));
        None
    }

    fn unmount(self) {
        tool_output("umount", [&self.0]);
        std::mem::forget(self);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// The content of a file of the tree: from nothing to some hundred kilobytes.
fn content(number: usize) -> Vec<u8> {
    pattern(number as u64 + 1, number * number * 37 % 400_000)
}

fn path(root: &Path, number: usize) -> PathBuf {
    root.join(format!("d{}", number % 7)).join(format!("file {number}"))
}

/// Writes the tree, and tells how many files are there.
fn write_tree(root: &Path, written: &AtomicUsize) {
    for number in 0..FILES {
        let path = path(root, number);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        fs::write(&path, content(number)).expect("a file");
        if number % 10 == 9 {
            File::open(&path).and_then(|file| file.sync_all()).expect("stable");
        }
        written.store(number + 1, Ordering::SeqCst);
    }
}

/// Makes a file system, fills it while the target is killed and comes back, and finds everything again after a detach.
fn survives(make: &[&str], check: &[&str]) {
    let directory = tempfile::tempdir().expect("a directory");
    let sub = |name: &str| {
        let path = directory.path().join(name);
        fs::create_dir(&path).expect("a directory");
        path
    };
    let (disk, tree, image) = (sub("disk"), sub("tree"), directory.path().join("image"));
    let serve = || Lunette::serve().luns([format!("0={},size=320M,write=back", image.display())]);
    let target = serve().start().expect("a target");
    let portal = target.portal();
    let url = target.url(0);
    let attached = Attached::mount(&url, &disk, &[]).expect("attached");
    let file = attached.file().to_owned();
    let with_file = |words: &[&str]| -> Vec<PathBuf> {
        words[1..].iter().map(PathBuf::from).chain([file.clone()]).collect()
    };
    tool_output(make[0], with_file(make));
    let Some(mounted) = Mounted::new(&file, &tree) else { return };
    let written = AtomicUsize::new(0);
    let target = thread::scope(|scope| {
        let writer = scope.spawn(|| write_tree(&tree, &written));
        while written.load(Ordering::SeqCst) < FILES_BEFORE && !writer.is_finished() {
            thread::yield_now();
        }
        target.kill().expect("killed");
        serve().portal(portal).start().expect("the target again")
    });
    mounted.unmount();
    attached.detach().expect("all is stable");

    let attached = Attached::mount(&url, &disk, &[]).expect("attached again");
    tool_output(check[0], with_file(check));
    let mounted = Mounted::new(&file, &tree).expect("mounted again");
    for number in 0..FILES {
        assert!(fs::read(path(&tree, number)).expect("a file") == content(number), "file {number}");
    }
    mounted.unmount();
    attached.detach().expect("all is stable");
    target.stop().expect("a clean end");
}

#[test]
fn ext4_survives_a_restart_of_the_target_and_a_detach() {
    need_programs!("mke2fs", "e2fsck");
    if can_mount() {
        survives(&["mke2fs", "-q", "-F", "-t", "ext4"], &["e2fsck", "-f", "-n"]);
    }
}

#[test]
fn xfs_survives_a_restart_of_the_target_and_a_detach() {
    need_programs!("mkfs.xfs", "xfs_repair");
    if can_mount() {
        survives(&["mkfs.xfs", "-q", "-f"], &["xfs_repair", "-n"]);
    }
}
