//! Anchored blocks over real sockets: they have space that nothing was written to (SBC-3, logical block provisioning).

use std::fs;
use std::os::unix::fs::MetadataExt;

use lunette_tests::in_process::InProcess;
use lunette_tests::initiator::{Command, Initiator, cdb};
use tempfile::TempDir;

use super::{code, padded, run, session};

/// Unmaps 64 blocks at an LBA, which keep their space with `anchor`.
fn unmap(session: &mut Initiator, anchor: bool, lba: u8) {
    let list =
        [&[0, 22, 0, 16, 0, 0, 0, 0][..], &[0, 0, 0, 0, 0, 0, 0, lba, 0, 0, 0, 64, 0, 0, 0, 0]].concat();
    let cdb = padded(&[0x42, u8::from(anchor), 0, 0, 0, 0, 0, 0, 24]);
    let unmap = Command { cdb, data_out: list, ..Command::default() };
    assert_eq!(code(&session.execute(unmap).expect("an answer")), (0, 0, 0));
}

/// PROVISIONING STATUS and NUMBER OF LOGICAL BLOCKS of what begins with block 0.
fn status(session: &mut Initiator) -> Vec<(u8, u32)> {
    let told = run(session, &[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255], 255).data_in;
    let blocks =
        |descriptor: &[u8]| descriptor[8..12].iter().fold(0, |sum, &byte| sum << 8 | u32::from(byte));
    told[8..].chunks_exact(16).map(|descriptor| (descriptor[12], blocks(descriptor))).collect()
}

/// SBC-3: 4.7 anchored blocks.
#[test]
fn initiators_anchor_blocks_and_see_them() {
    // Beside the program, where there is hardly ever a file system in memory.
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = directory.path().join("disk");
    let target = InProcess::start(&[&format!("0=file:{},size=8M", path.display())]);
    let mut session = session(&target, 1);
    if run(&mut session, &[0x12, 1, 0xb2, 0, 255], 255).data_in[5] & 0x02 == 0 {
        return lunette_skip::record_lacking("this file system does not tell reserved space from holes");
    }
    let allocated_bytes = || fs::metadata(&path).expect("the image").blocks() * 512;
    let write = Command { cdb: cdb::write(0, 8), data_out: vec![7; 4096], ..Command::default() };
    session.execute_good(write).expect("a write");
    unmap(&mut session, true, 0);
    unmap(&mut session, true, 128);
    assert!(allocated_bytes() >= 128 * 512);
    assert_eq!(run(&mut session, &cdb::read(0, 8), 4096).data_in, [0; 4096]);
    let all = (8 << 20) / 512;
    assert_eq!(status(&mut session), [(2, 64), (1, 64), (2, 64), (1, all - 192)]);
    // WRITE SAME (16) of 64 blocks at 64 with UNMAP, ANCHOR and NDOB; then a write, and all of it goes again.
    let zeros = padded(&[0x93, 0x19, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 64]);
    assert_eq!(code(&run(&mut session, &zeros, 0)), (0, 0, 0));
    let write = Command { cdb: cdb::write(8, 8), data_out: vec![7; 4096], ..Command::default() };
    session.execute_good(write).expect("a write");
    assert_eq!(status(&mut session), [(2, 8), (0, 8), (2, 176), (1, all - 192)]);
    unmap(&mut session, false, 0);
    assert_eq!(status(&mut session), [(1, 64), (2, 128), (1, all - 192)]);
}
