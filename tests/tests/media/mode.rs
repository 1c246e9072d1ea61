//! Mode pages that outlive the process, and thresholds on the space that an image takes (SPC-4, MODE SELECT; SBC-3, logical
//! block provisioning thresholds).

use lunette_tests::in_process::{InProcess, wait_until};
use lunette_tests::initiator::{Command, Initiator, cdb};
use tempfile::TempDir;

use super::{TEST_UNIT_READY, code, padded, run, session};

const THRESHOLD_REACHED: (u8, u8, u8) = (6, 0x38, 0x07);

/// A page without header and descriptor.
fn page(session: &mut Initiator, code: u8, subpage: u8) -> Vec<u8> {
    run(session, &[0x1a, 0x08, code, subpage, 255], 255).data_in[4..].to_vec()
}

fn select(session: &mut Initiator, save: bool, page: &[u8]) {
    let data_out = [&[0; 4], page].concat();
    let cdb = padded(&[0x15, 0x10 | u8::from(save), 0, 0, data_out.len() as u8]);
    session.execute_good(Command { cdb, data_out, ..Command::default() }).expect("MODE SELECT");
}

#[test]
fn a_saved_page_is_there_after_a_restart() {
    let directory = TempDir::new().expect("a directory");
    let flag = format!("0=file:{},size=8M", directory.path().join("disk").display());
    for expected in [0x00, 0x04] {
        let target = InProcess::start(&[&flag]);
        let mut session = session(&target, 1);
        let mut caching = page(&mut session, 0x08, 0);
        assert_eq!(caching[..3], [0x88, 0x12, expected], "PS, WCE");
        caching[2] = 0x04;
        select(&mut session, true, &caching);
        assert_eq!(page(&mut session, 0xc8, 0)[2], 0x04, "the saved value");
        assert_eq!(page(&mut session, 0x88, 0)[2], 0x00, "the default");
    }
}

#[test]
fn what_an_image_takes_is_held_against_the_threshold() {
    let directory = TempDir::new().expect("a directory");
    let flag = format!("0=file:{},size=64M", directory.path().join("disk").display());
    let target = InProcess::start(&[&flag]);
    let mut session = session(&target, 1);
    let mut recovery = page(&mut session, 0x01, 0);
    recovery[7] = 0x80;
    select(&mut session, false, &recovery);
    let mut provisioning = page(&mut session, 0x1c, 0x02);
    // The second descriptor: used space, 4 MiB or more.
    provisioning[24] |= 0x80;
    provisioning[28..32].copy_from_slice(&4u32.to_be_bytes());
    select(&mut session, false, &provisioning);
    assert_eq!(code(&run(&mut session, &TEST_UNIT_READY, 0)), (0, 0, 0));
    for mib in 0..5u64 {
        let write =
            Command { cdb: cdb::write(mib * 2048, 2048), data_out: vec![1; 1 << 20], ..Command::default() };
        // The unit attention may come before the last of them.
        if code(&session.execute(write.clone()).expect("an answer")) == THRESHOLD_REACHED {
            return;
        }
    }
    wait_until("the threshold", || code(&run(&mut session, &TEST_UNIT_READY, 0)) == THRESHOLD_REACHED);
}
