//! The tests' own initiator against a foreign target, tgtd: what it finds wrong in Lunette must not be its own fault.

use std::fs::File;

use anyhow::Result;
use lunette_tests::initiator::{Command, Initiator, LoginOptions, cdb};
use lunette_tests::need_programs;
use lunette_tests::tgtd::{TARGET_NAME, Tgtd};
use lunette_wire::frame::Digests;

const BLOCK_BYTES: usize = 512;

/// tgtd's unit 0 is its controller; the file is unit 1.
const LUN: u8 = 1;

fn write_and_read_back(digests: Digests) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let image = directory.path().join("disk.img");
    File::create(&image)?.set_len(64 << 20)?;
    let mut tgtd = Tgtd::start(&directory.path().join("log"))?;
    tgtd.allow_digests()?;
    tgtd.add_file(&image)?;

    let options =
        LoginOptions { target_name: Some(TARGET_NAME.to_owned()), digests, ..LoginOptions::default() };
    let mut initiator = Initiator::login(tgtd.portal(), &options)?;
    initiator.make_ready(LUN)?;
    // Larger than immediate data and one burst, and no multiple of four: R2Ts and padding take part.
    initiator.ping(b"an odd ping")?;
    let data: Vec<u8> = (0..700 * BLOCK_BYTES).map(|index| (index / 7 % 251) as u8).collect();
    let write = Command { lun: LUN, cdb: cdb::write(3, 700), data_out: data.clone(), data_in_bytes: 0 };
    initiator.execute_good(write)?;
    let read = |lba, blocks: u32| Command {
        lun: LUN,
        cdb: cdb::read(lba, blocks),
        data_out: Vec::new(),
        data_in_bytes: blocks * BLOCK_BYTES as u32,
    };
    assert_eq!(initiator.execute_good(read(3, 700))?, data);

    // Many at once, answered in any order.
    let tags: Vec<_> = (0..16).map(|lba| initiator.submit(read(3 + lba, 1))).collect::<Result<_>>()?;
    for _ in &tags {
        let completion = initiator.wait()?;
        assert_eq!(completion.status, 0);
        let lba = tags.iter().position(|tag| *tag == completion.tag).expect("one of ours");
        assert_eq!(completion.data_in, data[lba * BLOCK_BYTES..][..BLOCK_BYTES]);
    }
    let beyond = initiator.execute(read(1 << 40, 1))?;
    assert_eq!(beyond.status, 2, "CHECK CONDITION");
    assert!(!beyond.sense.is_empty());
    initiator.logout()
}

#[test]
fn writes_and_reads_without_digests() {
    need_programs!("tgtd", "tgtadm");
    write_and_read_back(Digests::default()).expect("the initiator agrees with tgtd");
}

#[test]
fn writes_and_reads_with_digests() {
    need_programs!("tgtd", "tgtadm");
    write_and_read_back(Digests { header: true, data: true }).expect("the initiator agrees with tgtd");
}

#[test]
fn discovers() {
    need_programs!("tgtd", "tgtadm");
    let directory = tempfile::tempdir().expect("a directory");
    let tgtd = Tgtd::start(&directory.path().join("log")).expect("tgtd");
    let options = LoginOptions { target_name: None, ..LoginOptions::default() };
    let mut initiator = Initiator::login(tgtd.portal(), &options).expect("a discovery session");
    let found = initiator.text(&[("SendTargets", "All")]).expect("an answer");
    assert_eq!(found[0], ("TargetName".to_owned(), TARGET_NAME.to_owned()));
    assert!(found[1].1.starts_with(&tgtd.portal().to_string()), "{found:?}");
}
