//! An image that is enlarged or cut while it is served (SBC-3, READ CAPACITY parameter data changed).

use std::fs::OpenOptions;
use std::path::Path;

use lunette_tests::in_process::{InProcess, wait_until};
use lunette_tests::initiator::{Command, Initiator, cdb};
use tempfile::TempDir;

use super::{TEST_UNIT_READY, code, run, session};

const MIB: u64 = 1 << 20;
const CAPACITY_CHANGED: (u8, u8, u8) = (6, 0x2a, 0x09);
const OUT_OF_RANGE: (u8, u8, u8) = (5, 0x21, 0);

fn set_length(path: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(path).expect("the image").set_len(bytes).expect("another length");
}

fn blocks(session: &mut Initiator) -> u64 {
    let data = run(session, &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32], 32).data_in;
    u64::from_be_bytes(data[..8].try_into().expect("eight bytes")) + 1
}

/// Waits for the unit attention, which comes once.
fn hear(session: &mut Initiator) {
    wait_until("CAPACITY DATA HAS CHANGED", || {
        let heard = code(&run(session, &TEST_UNIT_READY, 0));
        assert!(heard == (0, 0, 0) || heard == CAPACITY_CHANGED, "{heard:02x?}");
        heard == CAPACITY_CHANGED
    });
    assert_eq!(code(&run(session, &TEST_UNIT_READY, 0)), (0, 0, 0));
}

#[test]
fn a_larger_image_is_told_and_used_without_a_new_login() {
    let directory = TempDir::new().expect("a directory");
    for engine in ["threads", "auto"] {
        let path = directory.path().join(engine);
        let target = InProcess::start(&[&format!("0=file:{},size=8M,engine={engine}", path.display())]);
        let (mut first, mut second) = (session(&target, 1), session(&target, 2));
        assert_eq!(blocks(&mut first), 8 * MIB / 512);
        // Half a block more is not served.
        set_length(&path, 12 * MIB + 256);
        hear(&mut first);
        hear(&mut second);
        for session in [&mut first, &mut second] {
            assert_eq!(blocks(session), 12 * MIB / 512);
        }
        let last = Command {
            cdb: cdb::write(12 * MIB / 512 - 8, 8),
            data_out: vec![0x5a; 4096],
            ..Command::default()
        };
        first.execute_good(last).expect("the new last blocks are written");
        let read =
            Command { cdb: cdb::read(12 * MIB / 512 - 8, 8), data_in_bytes: 4096, ..Command::default() };
        assert_eq!(second.execute_good(read).expect("and read"), vec![0x5a; 4096]);
        assert_eq!(code(&run(&mut first, &cdb::read(12 * MIB / 512, 1), 512)), OUT_OF_RANGE);
    }
}

#[test]
fn a_smaller_image_is_told_and_not_written_beyond_its_end() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("disk");
    let target = InProcess::start(&[&format!("0=file:{},size=8M,write=back", path.display())]);
    let mut session = session(&target, 1);
    set_length(&path, 4 * MIB);
    hear(&mut session);
    assert_eq!(blocks(&mut session), 4 * MIB / 512);
    let write = Command { cdb: cdb::write(4 * MIB / 512, 8), data_out: vec![1; 4096], ..Command::default() };
    assert_eq!(code(&session.execute(write).expect("an answer")), OUT_OF_RANGE);
    assert_eq!(code(&run(&mut session, &cdb::read(4 * MIB / 512 - 1, 2), 1024)), OUT_OF_RANGE);
    assert_eq!(std::fs::metadata(&path).expect("the image").len(), 4 * MIB);
}

#[test]
fn an_image_without_a_block_keeps_its_capacity_and_fails_reads() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("disk");
    let target = InProcess::start(&[&format!("0=file:{},size=8M", path.display()), "1=mem:1M"]);
    let mut session = session(&target, 1);
    set_length(&path, 0);
    // A medium error, at once and each time, is the honest answer; the capacity stays what it was.
    for _ in 0..3 {
        assert_eq!(code(&run(&mut session, &cdb::read(0, 8), 4096)), (3, 0x11, 0));
    }
    assert_eq!(blocks(&mut session), 8 * MIB / 512);
}
