//! The commands of the initiator with each target: blocks of 512 and of 4096 bytes, digests on and off.

use std::fs::File;

use lunette_tests::commands::exercise_commands;
use lunette_tests::istgt::Istgt;
use lunette_tests::lunette::Lunette;
use lunette_tests::need_programs;
use lunette_tests::tgtd::Tgtd;

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
