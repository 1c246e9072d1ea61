//! The commands of the initiator with each target: blocks of 512 and of 4096 bytes, digests on and off.

use std::fs::File;

use lunette_tests::commands::{command, exercise_commands, refused};
use lunette_tests::istgt::Istgt;
use lunette_tests::lunette::Lunette;
use lunette_tests::need_programs;
use lunette_tests::tgtd::{TARGET_NAME, Tgtd, free_portal};

const SIZE_BYTES: u64 = 8 << 20;

#[test]
fn all_commands_work_with_our_target() {
    let target = Lunette::serve().luns(["0=mem:8M", "1=mem:8M,block=4096"]).start().expect("a target");
    exercise_commands(&target.url(0), 512);
    exercise_commands(&target.url(1), 4096);
    target.stop().expect("a clean end");
}

#[test]
fn all_commands_work_with_tgtd() {
    need_programs!("tgtd", "tgtadm");
    let directory = tempfile::tempdir().expect("a directory");
    let mut tgtd = Tgtd::start(&directory.path().join("log")).expect("tgtd");
    tgtd.allow_digests().expect("digests");
    for block_bytes in [512, 4096] {
        let image = directory.path().join(format!("disk{block_bytes}.img"));
        File::create(&image).and_then(|file| file.set_len(SIZE_BYTES)).expect("an image");
        exercise_commands(&tgtd.add_file_of(&image, block_bytes).expect("a unit"), block_bytes);
    }
}

/// istgt takes a second for each login.
fn work_with_istgt(block_bytes: u32) {
    need_programs!("istgt");
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    File::create(&image).and_then(|file| file.set_len(SIZE_BYTES)).expect("an image");
    let istgt = Istgt::start_with(directory.path(), &image, block_bytes, 1).expect("istgt");
    exercise_commands(&istgt.url(), block_bytes);
}

#[test]
fn all_commands_work_with_istgt_on_512_byte_blocks() {
    work_with_istgt(512);
}

#[test]
fn all_commands_work_with_istgt_on_4096_byte_blocks() {
    work_with_istgt(4096);
}

/// Each time with the status of its kind, whose doing it is, and what to try; as JSON, too.
fn told(status: i32, word: &str, arguments: &[&str]) {
    let message = refused(status, arguments);
    assert!(message.contains(word) && message.contains("help: "), "{arguments:?}: {message}");
    let said = command(&[arguments, &["--json"]].concat());
    assert_eq!(said.status, Some(status), "{said:?}");
    let report: serde_json::Value = serde_json::from_str(said.err.trim()).expect("one line of JSON");
    assert_eq!(report["status"], status, "{report}");
    assert!(report["error"].as_str().is_some_and(|error| error.contains(word)), "{report}");
    assert!(report["help"].is_string(), "{report}");
}

#[test]
fn what_cannot_be_done_with_tgtd_is_told_with_a_way_out() {
    need_programs!("tgtd", "tgtadm");
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    File::create(&image).and_then(|file| file.set_len(SIZE_BYTES)).expect("an image");
    let mut tgtd = Tgtd::start(&directory.path().join("log")).expect("tgtd");
    let (url, protected) = (tgtd.add_file(&image).expect("a unit"), tgtd.add_file(&image).expect("another"));
    tgtd.protect(2).expect("a read-only unit");
    let (path, output) = (image.display().to_string(), directory.path().join("out").display().to_string());
    let unit = |lun: u16| format!("iscsi://{}/{TARGET_NAME}/{lun}", tgtd.portal());

    told(5, "no logical unit with this number", &["info", &unit(7)]);
    told(5, "has no capacity; it is a storage array controller", &["read", &unit(0), "--output", &output]);
    told(5, "is read-only", &["write", &protected, "--pattern", "zeros"]);
    told(5, "is read-only", &["erase", &protected, "--yes"]);
    told(5, "is read-only", &["copy", &path, &protected]);
    told(5, "INVALID COMMAND OPERATION CODE", &["erase", &url, "--method", "sanitize-block", "--yes"]);
    told(3, "there is no such target", &["checksum", &url.replace(":tgtd", ":other")]);
    let nobody = free_portal().expect("a port").to_string();
    told(
        3,
        "Connection refused",
        &["verify", &url.replace(&tgtd.portal().to_string(), &nobody), "--pattern", "ones"],
    );
    told(3, "Connection refused", &["discover", &nobody]);
    assert!(refused(2, &["read", &url, "--offset", "1G"]).contains("16384 blocks of 512 bytes"));
    assert!(File::open(&output).is_err(), "nothing was created for what failed");

    tgtd.require_user("alice", "twelve-bytes-and-more").expect("a user");
    let as_user = |user: &str| url.replace("iscsi://", &format!("iscsi://{user}@"));
    told(4, "authentication failed", &["info", &as_user("alice%another-12-bytes")]);
    told(4, "give a CHAP name and secret", &["login-trace", &url]);
    assert_eq!(command(&["info", &as_user("alice%twelve-bytes-and-more")]).status, Some(0));
}
