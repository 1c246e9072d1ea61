//! Where an attached disk has space: clients of NBD ask for it by the context `base:allocation`, programs that open the file by `lseek`.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use lunette_tests::attach::{Attached, Chunk, can_mount, command};
use lunette_tests::lunette::{Launch, Lunette};
use lunette_tests::need_programs;
use lunette_tests::tgtd::Tgtd;
use lunette_tests::tool::tool_output;
use rustix::fs::{SeekFrom, seek};
use serde_json::Value;

use super::{pattern, serve};

/// HOLE and ZERO.
const EMPTY: u32 = 3;
const EINVAL: u32 = 22;
const MIB: u64 = 1 << 20;

/// What [`thin`] has, in mebibytes.
const MAP: [(u64, u64, bool); 5] =
    [(0, 8, false), (8, 1, true), (9, 31, false), (40, 1, true), (41, 23, false)];

fn told((start, length, data): (u64, u64, bool)) -> (u64, u64, bool) {
    (start * MIB, length * MIB, data)
}

/// A thin disk of 64 MiB with a mebibyte of data at 8 MiB and another at 40 MiB.
fn thin(image: &Path) -> Launch {
    let file = fs::File::create(image).expect("an image");
    file.set_len(64 * MIB).expect("its size");
    for (seed, at) in [(1, 8), (2, 40)] {
        file.write_all_at(&pattern(seed, MIB as usize), at * MIB).expect("written");
    }
    Lunette::serve().luns([format!("0={}", image.display())])
}

/// Start, length and whether there is data, as `qemu-img map` tells it.
fn map(uri: &str) -> Vec<(u64, u64, bool)> {
    let output = tool_output("qemu-img", ["map", "-f", "raw", "--output=json", uri]);
    let all: Value = serde_json::from_str(&output).expect("JSON");
    let number = |extent: &Value, key: &str| extent[key].as_u64().expect("a number");
    let told = |extent: &Value| {
        assert_eq!(extent["data"], !extent["zero"].as_bool().expect("known"), "{extent}");
        (number(extent, "start"), number(extent, "length"), extent["data"] == true)
    };
    all.as_array().expect("a list").iter().map(told).collect()
}

#[test]
fn qemu_copies_no_holes_out_of_a_thin_disk() {
    need_programs!("qemu-img");
    let directory = tempfile::tempdir().expect("a directory");
    let (image, copy) = (directory.path().join("disk.img"), directory.path().join("copy.img"));
    let target = thin(&image).start().expect("a target");
    let attached = Attached::start(&target.url(0), &[]).expect("attached");
    assert_eq!(map(attached.uri()), MAP.map(told));
    let to = copy.display().to_string();
    // Without looking for zeros: the holes are known.
    tool_output("qemu-img", ["convert", "-S", "0", "-f", "raw", "-O", "raw", attached.uri(), &to]);
    assert!(fs::read(&copy).expect("the copy") == fs::read(&image).expect("the image"));
    tool_output("qemu-img", ["convert", "-f", "raw", "-O", "qcow2", attached.uri(), &to]);
    assert!(fs::metadata(&copy).expect("the copy").len() < 4 * MIB, "what is empty is not in it");
    attached.detach().expect("all is stable");
    target.stop().expect("a clean end");
}

/// Neither looks for zeros: the holes are known.
#[test]
fn nbdcopy_copies_no_holes_in_either_direction() {
    need_programs!("nbdcopy");
    for block in [512, 4096] {
        let directory = tempfile::tempdir().expect("a directory");
        let [image, second, copy] =
            ["disk.img", "second.img", "copy.img"].map(|name| directory.path().join(name));
        let fill = |file: fs::File, seed| file.write_all_at(&pattern(seed, 64 * MIB as usize), 0);
        fs::File::create(&second).and_then(|file| fill(file, 9)).expect("a disk that is full");
        let luns = [format!("1={},block={block}", second.display())];
        let target = thin(&image).luns(luns).start().expect("a target");
        let attached = [0, 1].map(|lun| Attached::start(&target.url(lun), &[]).expect("attached"));
        let (thin, full) = (attached[0].uri(), attached[1].uri());
        let to = copy.display().to_string();
        tool_output("nbdcopy", ["--sparse=0", "--flush", thin, &to]);
        let content = fs::read(&image).expect("the image");
        assert!(fs::read(&copy).expect("the copy") == content);
        assert!(stored_bytes(&copy) < 4 * MIB, "what is empty is not in it");
        // From the file, whose holes the file system tells, over what is there.
        tool_output("nbdcopy", ["--sparse=0", "--flush", &to, full]);
        assert!(fs::read(&second).expect("the second") == content);
        assert!(stored_bytes(&second) < 4 * MIB, "space is given back");
        // From disk to disk, over several connections at once.
        // In its place: the target sees the length of its image.
        fs::File::options().write(true).open(&second).and_then(|file| fill(file, 8)).expect("full again");
        tool_output("nbdcopy", ["--sparse=0", "--flush", "--connections=4", thin, full]);
        assert!(fs::read(&second).expect("the second") == content);
        for attached in attached {
            attached.detach().expect("all is stable");
        }
        target.stop().expect("a clean end");
    }
}

fn stored_bytes(path: &Path) -> u64 {
    fs::metadata(path).expect("the file").blocks() * 512
}

#[test]
fn where_nothing_is_known_everything_is_data() {
    need_programs!("qemu-img", "tgtd", "tgtadm");
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    fs::File::create(&image).and_then(|file| file.set_len(16 * MIB)).expect("an image");
    let mut tgtd = Tgtd::start(&directory.path().join("log")).expect("tgtd");
    let attached = Attached::start(&tgtd.add_file(&image).expect("a unit"), &[]).expect("attached");
    assert_eq!(map(attached.uri()), [(0, 16 * MIB, true)]);
    attached.detach().expect("all is stable");
}

#[test]
fn block_status_and_structured_replies_are_what_the_protocol_says() {
    let directory = tempfile::tempdir().expect("a directory");
    let target = thin(&directory.path().join("disk.img")).start().expect("a target");
    let attached = Attached::start(&target.url(0), &[]).expect("attached");
    let mut client = attached.structured_client().expect("a client");
    let mut status = |flags, offset, length| {
        client.request((command::BLOCK_STATUS, flags), offset, length).expect("a reply")
    };
    let mib = MIB as u32;
    let all = [(8 * mib, EMPTY), (mib, 0), (31 * mib, EMPTY), (mib, 0), (23 * mib, EMPTY)];
    assert_eq!(status(0, 0, 64 * mib), Chunk::Extents(all.to_vec()));
    assert_eq!(status(command::REQ_ONE, 0, 64 * mib), Chunk::Extents(vec![(8 * mib, EMPTY)]));
    assert_eq!(status(command::REQ_ONE, 8 * MIB + 1, 7), Chunk::Extents(vec![(7, 0)]));
    assert_eq!(status(0, 8 * MIB - 3, 7), Chunk::Extents(vec![(3, EMPTY), (4, 0)]));
    for (offset, length) in [(0, 0), (64 * MIB, 1), (1, 64 * mib), (u64::MAX, 2)] {
        assert!(matches!(status(0, offset, length), Chunk::Error(EINVAL, words) if !words.is_empty()));
    }
    let read = client.request((command::READ, 0), 8 * MIB + 5, 1000).expect("a reply");
    assert_eq!(read, Chunk::Data(8 * MIB + 5, pattern(1, 1005)[5..].to_vec()));
    assert_eq!(client.request((command::READ, 0), 5, 0).expect("a reply"), Chunk::Done);
    assert_eq!(client.request((command::FLUSH, 0), 0, 0).expect("a reply"), Chunk::Done);
    let zeroes = (command::WRITE_ZEROES, 0);
    assert_eq!(client.request(zeroes, 8 * MIB, mib).expect("a reply"), Chunk::Done);
    let mut status = |length| client.request((command::BLOCK_STATUS, 0), 0, length).expect("a reply");
    assert_eq!(status(40 * mib), Chunk::Extents(vec![(40 * mib, EMPTY)]), "the space was given back");

    // Who has not asked for it does not get it.
    let mut simple = attached.client().expect("a client");
    assert_eq!(simple.request((command::BLOCK_STATUS, 0), 0, 512).expect("an answer"), EINVAL);
    drop((client, simple));
    attached.detach().expect("all is stable");
    target.stop().expect("a clean end");
}

/// What was answered counts: also where it waits to be sent, and where the target has lost it.
#[test]
fn what_was_written_is_no_hole_whatever_happens_to_the_target() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let launch = || serve(&image, ",write=back");
    let target = launch().start().expect("a target");
    let attached = Attached::start(&target.url(0), &[]).expect("attached");
    let mut client = attached.structured_client().expect("a client");
    let mut simple = attached.client().expect("a client");
    let mib = MIB as u32;
    assert_eq!(simple.write(MIB, &pattern(3, MIB as usize)).expect("an answer"), 0);
    let mut status = || client.request((command::BLOCK_STATUS, 0), MIB, mib).expect("a reply");
    assert_eq!(status(), Chunk::Extents(vec![(mib, 0)]));
    let portal = target.portal();
    target.kill().expect("killed");
    // As if nothing had left its cache.
    let file = fs::File::create(&image).expect("the old image");
    file.set_len(16 * MIB).expect("its size");
    let target = launch().portal(portal).start().expect("the target again");
    assert_eq!(status(), Chunk::Extents(vec![(mib, 0)]));
    drop((client, simple));
    attached.detach().expect("all is stable");
    target.stop().expect("a clean end");
}

#[test]
fn programs_find_the_data_of_the_file() {
    need_programs!("qemu-img");
    if !can_mount() {
        return;
    }
    let [images, directory] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let image = images.path().join("disk.img");
    let target = thin(&image).start().expect("a target");
    let attached = Attached::mount(&target.url(0), directory.path(), &[]).expect("attached");
    let file = fs::File::open(attached.file()).expect("the file");
    let data = |from| seek(&file, SeekFrom::Data(from));
    let hole = |from| seek(&file, SeekFrom::Hole(from));
    assert_eq!((data(0), hole(0)), (Ok(8 * MIB), Ok(0)));
    assert_eq!((data(8 * MIB + 1), hole(8 * MIB + 1)), (Ok(8 * MIB + 1), Ok(9 * MIB)));
    assert_eq!(data(9 * MIB), Ok(40 * MIB));
    let nothing = Err(rustix::io::Errno::NXIO);
    assert_eq!((data(41 * MIB), hole(64 * MIB)), (nothing, nothing));
    drop(file);
    assert_eq!(map(&attached.file().display().to_string()), MAP.map(told));
    attached.detach().expect("all is stable");
    target.stop().expect("a clean end");
}
