//! `copy`: files and disks, holes, resumption, and what is refused.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::UNIX_EPOCH;

use crate::host::{Served, good, path, refused, run};

const MIB: usize = 1 << 20;

/// 8 MiB with data in two places.
fn sparse_file(file: &Path) -> Vec<u8> {
    let mut data = vec![0; 8 * MIB];
    data[MIB..MIB + 100_000].fill(7);
    data[6 * MIB..7 * MIB].fill(9);
    let image = fs::File::create(file).expect("a file");
    image.set_len(8 << 20).expect("a length");
    for range in [MIB..MIB + 100_000, 6 * MIB..7 * MIB] {
        std::os::unix::fs::FileExt::write_all_at(&image, &data[range.clone()], range.start as u64)
            .expect("written");
    }
    data
}

#[test]
fn from_file_to_disk_to_disk_to_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let (first, last) = (directory.path().join("first.img"), directory.path().join("last.img"));
    let data = sparse_file(&first);
    let served = Served::start(&["mem:8M", "mem:8M,block=4096"], &[]);
    // What was there has to go where the source holds nothing.
    good(&["write", &served.url(0), "--pattern", "ones"]);
    good(&["write", &served.url(1), "--pattern", "ones"]);
    for [from, to] in [
        [path(&first).to_owned(), served.url(0)],
        [served.url(0), served.url(1)],
        [served.url(1), path(&last).to_owned()],
    ] {
        let done = good(&["copy", &from, &to, "--verify", "--json"]).json();
        assert_eq!(done["verified"], true);
        let (moved, empty) = (done["bytes"].as_u64(), done["empty_bytes"].as_u64());
        assert_eq!(moved.zip(empty).map(|(moved, empty)| moved + empty), Some(8 << 20), "{done}");
        assert!(moved < Some(3 << 20), "only what is there is moved, from {from}: {done}");
    }
    assert_eq!(fs::read(&last).expect("a file"), data);
    let space_bytes = fs::metadata(&last).expect("a file").blocks() * 512;
    assert!(space_bytes < 4 << 20, "holes stay holes: {space_bytes}");

    let whole = directory.path().join("whole.img");
    let done = good(&["copy", &served.url(1), path(&whole), "--no-sparse", "--json"]).json();
    assert_eq!(done["bytes"].as_u64(), Some(8 << 20));
    let text = good(&["copy", &served.url(1), path(&whole), "--force"]).text();
    assert!(text.starts_with("copied ") && text.contains(" held nothing; all of it is stable"), "{text}");
}

/// Places that are no whole block of the destination.
#[test]
fn small_blocks_go_into_large_ones() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("image");
    let image = path(&image);
    let served = Served::start(&["mem:8M", "mem:8M,block=4096"], &[]);
    let (small, large) = (served.url(0), served.url(1));
    for lba in ["3b", "2049b", "9000b", "16383b"] {
        good(&["write", &small, "--pattern", "random:3", "--offset", lba, "--length", "1b"]);
    }
    good(&["write", &large, "--pattern", "ones"]);
    good(&["copy", &small, &large, "--verify", "--depth", "3"]);
    good(&["copy", &small, image]);
    good(&["verify", &large, "--input", image]);
    good(&["copy", image, &small, "--verify"]);
    good(&["verify", &small, "--pattern", "random:3", "--offset", "9000b", "--length", "1b"]);
    good(&["copy", &large, &small, "--verify"]);
}

/// It would be emptied before it is read.
#[test]
fn a_file_is_not_copied_onto_itself() {
    let directory = tempfile::tempdir().expect("a directory");
    let (image, link) = (directory.path().join("image"), directory.path().join("link"));
    let data = sparse_file(&image);
    fs::hard_link(&image, &link).expect("another name");
    for name in [&image, &link] {
        let said = refused(2, &["copy", path(&image), path(name), "--force"]);
        assert!(said.contains("the same file"), "{said}");
    }
    assert_eq!(fs::read(&image).expect("a file"), data);
}

/// Nor onto a loop device that has its data in it, which would be cut under who reads it.
#[test]
fn a_loop_device_is_not_copied_onto_its_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let (image, copy) = (directory.path().join("image"), directory.path().join("copy"));
    let data = sparse_file(&image);
    let made = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
    let Some(made) = made.ok().filter(|made| made.status.success()) else {
        lunette_skip::record_lacking("losetup, or the right to make loop devices");
        return;
    };
    let device = String::from_utf8(made.stdout).expect("a path").trim().to_owned();
    let onto = run(&["copy", &device, path(&image), "--force"]);
    let back = run(&["copy", path(&image), &device]);
    let elsewhere = run(&["copy", &device, path(&copy), "--resume", path(&directory.path().join("record"))]);
    let ended = Command::new("losetup").arg("--detach").arg(&device).status().expect("it was there");
    assert!(ended.success());
    for said in [onto, back] {
        assert!(said.status == Some(2) && said.err.contains("have the same data"), "{said:?}");
    }
    assert_eq!(elsewhere.status, Some(0), "{elsewhere:?}");
    assert!(fs::read(&image).expect("a file") == data && fs::read(&copy).expect("a file") == data);
}

/// To open a pipe would wait for its other end.
#[test]
fn what_has_no_content_is_no_end_of_a_copy() {
    let directory = tempfile::tempdir().expect("a directory");
    let (pipe, image) = (directory.path().join("pipe"), directory.path().join("image"));
    sparse_file(&image);
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    for arguments in [
        ["copy", path(&pipe), path(&image), "--force"],
        ["copy", path(&image), path(&pipe), "--force"],
        ["copy", path(&image), "/dev/null", "--force"],
    ] {
        let said = refused(2, &arguments);
        assert!(said.contains("is neither a file nor a block device") && said.contains("\nhelp: "), "{said}");
    }
    assert!(refused(2, &["copy", "-", path(&image), "--force"]).contains("a copy has no pipes"));
}

/// The name of the disk that nobody else may give.
fn unique_name(url: &str) -> String {
    let info = good(&["info", url, "--json"]).json();
    let mut names = info["names"].as_array().expect("names").iter().filter_map(|name| name.as_str());
    names.find(|name| name.starts_with("uuid.")).expect("a UUID").to_owned()
}

/// What a copy of `image` to the disk of that name leaves that was broken off behind `done_bytes`.
fn write_record(record: &Path, image: &Path, name: &str, done_bytes: u64) {
    let metadata = fs::metadata(image).expect("a file");
    let born = metadata.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
    let born = born.map_or(String::new(), |at| format!(" of {}.{:09}", at.as_secs(), at.subsec_nanos()));
    let state = serde_json::json!({
        "source": format!("file {}:{}{born}", metadata.dev(), metadata.ino()),
        "source_changed_at": format!("{}.{:09}", metadata.mtime(), metadata.mtime_nsec()),
        "destination": name,
        "size_bytes": metadata.len(),
        "done_bytes": done_bytes,
    });
    fs::write(record, state.to_string()).expect("written");
}

/// A rerun must not take for done what was found to differ.
#[test]
fn what_differs_is_copied_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let (image, record) = (directory.path().join("image"), directory.path().join("record"));
    sparse_file(&image);
    let served = Served::start(&["mem:8M"], &[]);
    let url = served.url(0);
    let name = unique_name(&url);
    // As if all had been copied, and the disk were changed by somebody else.
    write_record(&record, &image, &name, 8 << 20);
    let resume = ["copy", path(&image), &url, "--resume", path(&record)];
    refused(6, &[&resume[..], &["--verify"]].concat());
    good(&[&resume[..], &["--verify"]].concat());
}

#[test]
fn a_copy_goes_on_where_it_was_and_only_with_its_own_record() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("image");
    let record = directory.path().join("record");
    sparse_file(&image);
    let served = Served::start(&["mem:8M", "mem:8M"], &[]);
    let (url, record) = (served.url(0), path(&record));
    let resume = ["copy", path(&image), &url, "--resume", record, "--json"];
    let done = good(&resume).json();
    assert_eq!(done["resumed_at_bytes"].as_u64(), Some(0));
    assert!(!fs::exists(record).expect("a directory"), "a complete copy leaves no record");

    // As if it had been broken off after 5 MiB: what lies before is not looked at again.
    let metadata = fs::metadata(&image).expect("a file");
    // Others may give a disk of theirs such a name.
    let info = good(&["info", &url, "--json"]).json();
    let local = info["names"][0].as_str().filter(|name| name.starts_with("naa.3")).expect("a local name");
    write_record(Path::new(record), &image, local, 5 << 20);
    assert!(refused(2, &resume).contains("the record of another copy"));
    write_record(Path::new(record), &image, &unique_name(&url), 5 << 20);
    good(&["erase", &url, "--yes"]);
    let touched = metadata.modified().expect("a time") + std::time::Duration::from_secs(1);
    let source = fs::File::options().write(true).open(&image).expect("a file");
    source.set_modified(touched).expect("set");
    assert!(refused(2, &resume).contains("was changed since the copy was begun"));
    source.set_modified(metadata.modified().expect("a time")).expect("set");
    let other = refused(2, &["copy", path(&image), &served.url(1), "--resume", record]);
    assert!(other.contains("the record of another copy"), "{other}");
    let done = good(&resume).json();
    assert_eq!(done["resumed_at_bytes"].as_u64(), Some(5 << 20));
    good(&["verify", &url, "--pattern", "zeros", "--length", "5M"]);
    good(&["verify", &url, "--pattern", "hex:09", "--offset", "6M", "--length", "1M"]);

    fs::write(record, "not a record").expect("written");
    assert!(refused(2, &resume).contains("no record of a copy"));
}

/// A record is a file that is replaced again and again, and removed at the end.
#[test]
fn a_record_never_takes_the_place_of_what_is_copied() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str| directory.path().join(name);
    let (image, copy, record) = (file("image.new"), file("copy"), file("image"));
    fs::write(&image, vec![1; 1 << 20]).expect("written");
    let copied = ["copy", path(&image), path(&copy), "--resume"];
    for (record, what) in [(&image, "the source"), (&record, "the source"), (&copy, "the destination")] {
        let said = refused(2, &[&copied[..], &[path(record)]].concat());
        assert!(said.contains(&format!("is the same file as {what} ")), "{said}");
    }
    assert_eq!(fs::read(&image).expect("the image"), vec![1; 1 << 20]);
    assert!(!copy.exists() && !record.exists());
}

#[test]
fn what_cannot_be_copied_is_refused_before_anything_is_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("image");
    fs::write(&image, vec![5; 2 * MIB]).expect("written");
    let odd = directory.path().join("odd");
    fs::write(&odd, vec![5; 1000]).expect("written");
    let served = Served::start(&["mem:1M", "mem:8M,ro", "mem:8M"], &[]);
    let (small, read_only, large) = (served.url(0), served.url(1), served.url(2));
    let message = refused(2, &["copy", path(&image), &small]);
    assert!(message.contains("the source has 2 MiB, and the destination only 1 MiB"), "{message}");
    let message = refused(2, &["copy", path(&odd), &large]);
    assert!(message.contains("1000 bytes, which is no multiple"), "{message}");
    assert!(refused(5, &["copy", path(&image), &read_only]).contains("is read-only"));
    assert!(refused(2, &["copy", &large, &large]).contains("the same disk"));
    let other_way = large.replace("127.0.0.1", "localhost");
    assert!(refused(2, &["copy", &large, &other_way]).contains("the same disk"), "by another name");
    assert!(refused(1, &["copy", &large, path(&image)]).contains("help: --force overwrites it"));
    assert!(refused(1, &["copy", "no-such-file", &large]).contains("cannot open no-such-file"));
    assert!(
        refused(2, &["copy", path(directory.path()), &large]).contains("neither a file nor a block device")
    );
    good(&["verify", &small, "--pattern", "zeros"]);
    let said = run(&["copy", path(&image), &large, "--quiet"]);
    assert_eq!((said.status, said.err.as_str()), (Some(0), ""), "a larger destination keeps what is behind");
}
