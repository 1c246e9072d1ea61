//! A thick unit over real sockets: fully provisioned, and sure of its space (SBC-3, logical block provisioning).

use std::fs;
use std::os::unix::fs::MetadataExt;

use lunette_tests::in_process::InProcess;
use lunette_tests::initiator::{Command, cdb};
use tempfile::TempDir;

use super::{code, padded, run, session};

const BYTES: u64 = 8 << 20;
const INVALID_OPCODE: (u8, u8, u8) = (5, 0x20, 0);
const INVALID_FIELD: (u8, u8, u8) = (5, 0x24, 0);

/// SBC-3: 4.7 full provisioning.
#[test]
fn initiators_see_a_fully_provisioned_unit_that_keeps_its_space() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("disk");
    let target = InProcess::start(&[&format!("0=file:{},size=8M,provisioning=thick", path.display())]);
    let allocated = || fs::metadata(&path).expect("the image").blocks() * 512;
    assert!(allocated() >= BYTES);
    let mut session = session(&target, 1);
    let capacity = run(&mut session, &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32], 32).data_in;
    assert_eq!(capacity[14], 0, "LBPME and LBPRZ");
    assert_eq!(run(&mut session, &[0x12, 1, 0xb2, 0, 255], 255).data_in[4..8], [0; 4]);
    // UNMAP, with and without ANCHOR; WRITE SAME (16) of zeros with UNMAP, and without.
    for anchor in [0, 1] {
        let list = [&[0, 22, 0, 16, 0, 0, 0, 0][..], &[0; 8], &[0, 0, 0, 8, 0, 0, 0, 0]].concat();
        let unmap = Command {
            cdb: padded(&[0x42, anchor, 0, 0, 0, 0, 0, 0, 24]),
            data_out: list,
            ..Command::default()
        };
        assert_eq!(code(&session.execute(unmap).expect("an answer")), INVALID_OPCODE);
    }
    let write = Command { cdb: cdb::write(0, 8), data_out: vec![7; 4096], ..Command::default() };
    session.execute_good(write).expect("a write");
    let mut zeros = padded(&[0x93, 0x09]);
    zeros[12..14].copy_from_slice(&8_u16.to_be_bytes());
    assert_eq!(code(&run(&mut session, &zeros, 0)), INVALID_FIELD);
    zeros[1] = 0x01;
    assert_eq!(code(&run(&mut session, &zeros, 0)), (0, 0, 0));
    assert_eq!(run(&mut session, &cdb::read(0, 8), 4096).data_in, [0; 4096]);
    // GET LBA STATUS: one descriptor, all mapped.
    let status = run(&mut session, &[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255], 255).data_in;
    assert_eq!((status.len(), status[20]), (24, 0));
    assert_eq!(status[16..20], ((BYTES / 512) as u32).to_be_bytes());
    assert!(allocated() >= BYTES);
}
