//! Reads of an image in the page cache, and of memory, which the binary sends without copying: every byte,
//! however the initiator cuts it.
//!
//! In-process targets have a fault layer over their stores, which sees every read; so this is about the binary.

use std::collections::HashMap;
use std::path::Path;

use lunette_block::{EngineKind, StoreSpec, Volume, VolumeSpec};
use lunette_tests::initiator::LoginOptions;
use lunette_tests::lunette::Lunette;
use lunette_tests::raw::{BLOCK_BYTES, Raw, read};
use lunette_tests::skip;
use lunette_wire::frame::Digests;
use lunette_wire::initiator::ScsiCommand;
use lunette_wire::target::Residual;
use lunette_wire::{InitiatorTaskTag, TargetPdu};

const IMAGE_BYTES: usize = 4 << 20;

/// One such read may take a half of 32 MiB for copies, and a second one nothing.
const LARGE_BYTES: usize = 16 << 20;

fn pattern() -> Vec<u8> {
    (0..IMAGE_BYTES as u32).map(|index| index.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

/// An image with the pattern, served.
fn start(directory: &tempfile::TempDir) -> Lunette {
    let image = directory.path().join("disk.img");
    std::fs::write(&image, pattern()).expect("an image");
    Lunette::serve().luns([format!("0={},write=back", image.display())]).start().expect("a target")
}

fn login(target: &Lunette, digests: Digests, segment: &str, lun: u8) -> Raw {
    let keys = vec![("MaxRecvDataSegmentLength".to_owned(), segment.to_owned())];
    let options = LoginOptions { digests, keys, ..LoginOptions::default() };
    Raw::ready(target.portal(), &options, lun).expect("a login")
}

/// Checks reads of unit `lun`, which has the pattern, all of them outstanding at once.
fn check_reads(target: &Lunette, lun: u8, reads: &[(u64, u32, u32)]) {
    let disk = pattern();
    let digests = |header, data| Digests { header, data };
    for (digests, segment) in [
        (digests(false, false), "262144"),
        (digests(true, false), "65539"),
        (digests(true, true), "262144"),
        (digests(false, false), "8192"),
        (digests(true, false), "515"),
    ] {
        let mut session = login(target, digests, segment, lun);
        let tags: Vec<_> = reads
            .iter()
            .map(|(lba, blocks, expected)| {
                let command =
                    ScsiCommand { expected_data_transfer_length: *expected, ..read(lun, *lba, *blocks) };
                session.command(&command, &[]).expect("sent")
            })
            .collect();
        let mut answers = answers(&mut session, tags.len());
        for (tag, (lba, blocks, expected)) in tags.into_iter().zip(reads.iter().copied()) {
            let (bytes, residual) = answers.remove(&tag).expect("an answer");
            let (start, length) = (lba as usize * BLOCK_BYTES, blocks * BLOCK_BYTES as u32);
            let sent = length.min(expected);
            assert!(bytes == disk[start..start + sent as usize], "{digests:?} {segment} LBA {lba}");
            let wanted = match length.cmp(&expected) {
                std::cmp::Ordering::Less => Residual::Underflow(expected - length),
                std::cmp::Ordering::Equal => Residual::None,
                std::cmp::Ordering::Greater => Residual::Overflow(length - expected),
            };
            assert_eq!(residual, wanted, "{digests:?} {segment} LBA {lba}");
        }
    }
}

/// What so many reads bring, which may end in any order.
fn answers(session: &mut Raw, count: usize) -> HashMap<InitiatorTaskTag, (Vec<u8>, Residual)> {
    let mut answers: HashMap<_, (Vec<u8>, Residual)> = HashMap::new();
    let mut ended = 0;
    while ended < count {
        let (TargetPdu::ScsiDataIn(pdu), data) = session.receive().expect("a PDU") else { panic!("no data") };
        let (bytes, residual) =
            answers.entry(pdu.initiator_task_tag).or_insert_with(|| (Vec::new(), Residual::None));
        assert_eq!(pdu.buffer_offset as usize, bytes.len(), "data out of order");
        bytes.extend(data);
        if let Some(status) = pdu.status {
            assert_eq!(status, 0, "GOOD");
            *residual = pdu.residual;
            ended += 1;
        }
    }
    answers
}

/// LBA, blocks, bytes that the initiator expects.
const LONG_READS: [(u64, u32, u32); 5] =
    [(0, 2048, 1 << 20), (7, 1000, 512_000), (3, 2048, 700_001), (100, 33, 16_895), (1, 256, 200_000)];
const SHORT_READS: [(u64, u32, u32); 8] = [
    (0, 8, 4096),
    (9, 1, 512),
    (127, 2, 1024),
    (120, 16, 8192),
    (3, 63, 32_256),
    (4000, 33, 16_895),
    (1, 8, 10_000),
    (8191, 1, 3),
];

#[test]
fn every_byte_of_a_read_is_right_however_it_is_cut() {
    let directory = tempfile::tempdir().expect("a directory");
    let target = start(&directory);
    check_reads(&target, 0, &LONG_READS);
    check_reads(&target, 0, &SHORT_READS);
    target.stop().expect("a clean end");
}

#[test]
fn every_byte_of_a_read_of_memory_is_right_however_it_is_cut() {
    let target = Lunette::serve().luns([format!("0=mem:{IMAGE_BYTES}")]).start().expect("a target");
    let mut session = login(&target, Digests::default(), "262144", 0);
    for (index, data) in pattern().chunks(64 << 10).enumerate() {
        let lba = (index * data.len() / BLOCK_BYTES) as u64;
        let write = session.write(0, lba, data).expect("sent");
        session.good(write).expect("a write");
    }
    drop(session);
    check_reads(&target, 0, &LONG_READS);
    check_reads(&target, 0, &SHORT_READS);
    target.stop().expect("a clean end");
}

#[test]
fn a_read_that_follows_a_write_has_its_data() {
    let directory = tempfile::tempdir().expect("a directory");
    let target = start(&directory);
    let mut session = login(&target, Digests::default(), "262144", 0);
    for round in 0..20_u8 {
        for length in [64 << 10, 4096] {
            let data = vec![round; length];
            let write = session.write(0, 512, &data).expect("sent");
            session.good(write).expect("a write");
            let tag = session.read(0, 512, (data.len() / BLOCK_BYTES) as u32).expect("sent");
            let (bytes, _) = session.data_in(tag).expect("a read");
            assert!(bytes == data, "round {round}, {length} bytes");
        }
    }
    // A drain would wait for it to log out.
    drop(session);
    target.stop().expect("a clean end");
}

#[test]
fn a_read_of_what_a_file_has_lost_fails() {
    const LEFT_BYTES: u64 = 1 << 20;
    let directory = tempfile::tempdir().expect("a directory");
    let target = start(&directory);
    let mut session = login(&target, Digests::default(), "262144", 0);
    let beyond = LEFT_BYTES / BLOCK_BYTES as u64;
    const LONG: usize = 256;
    for blocks in [8, LONG] {
        let tag = session.read(0, beyond, blocks as u32).expect("sent");
        let data = session.data_in(tag).expect("a read").0;
        assert!(data == pattern()[LEFT_BYTES as usize..][..blocks * BLOCK_BYTES]);
    }
    let image = std::fs::OpenOptions::new().write(true).open(directory.path().join("disk.img"));
    image.and_then(|image| image.set_len(LEFT_BYTES)).expect("a shorter file");
    // For so long its end is believed.
    std::thread::sleep(std::time::Duration::from_millis(1));
    for blocks in [LONG, 8] {
        let tag = session.read(0, beyond, blocks as u32).expect("sent");
        assert_eq!(session.ending(tag).expect("an answer").status, 2, "CHECK CONDITION");
    }
    drop(session);
    target.stop().expect("a clean end");
}

/// Without copies, reads take nothing of the memory for data, so that more of it can be outstanding than there is.
#[test]
fn large_reads_take_no_buffers() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let disk: Vec<u8> = pattern().repeat(2 * LARGE_BYTES / IMAGE_BYTES);
    std::fs::write(&image, &disk).expect("an image");
    if !knows_its_page_cache(&image) {
        return skip::record_lacking("this kernel cannot tell what its page cache has (Linux 6.5 can)");
    }
    for data in [false, true] {
        let (target, mut session) = little_memory(&format!("{}\"\nwrite = \"back", image.display()), data);
        expect_large_reads(&mut session, &disk);
        drop(session);
        target.stop().expect("a clean end");
    }
}

#[test]
fn large_reads_of_memory_take_no_buffers() {
    [false, true].into_iter().for_each(large_reads_of_memory);
}

fn large_reads_of_memory(has_data_digests: bool) {
    let (target, mut session) = little_memory(&format!("mem:{}", 2 * LARGE_BYTES), has_data_digests);
    // What was never written, too.
    let mut disk = vec![0; 2 * LARGE_BYTES];
    expect_large_reads(&mut session, &disk);
    for (index, data) in pattern().chunks(64 << 10).enumerate() {
        // Every seventh chunk.
        let at = index * 7 * data.len();
        disk[at..at + data.len()].copy_from_slice(data);
        let write = session.write(1, (at / BLOCK_BYTES) as u64, data).expect("sent");
        session.good(write).expect("a write");
    }
    expect_large_reads(&mut session, &disk);
    drop(session);
    target.stop().expect("a clean end");
}

/// A target with unit 1 in this store, with memory for two reads of [`LARGE_BYTES`] at most, and a session.
fn little_memory(store: &str, has_data_digests: bool) -> (Lunette, Raw) {
    let unit = format!("[[target.lun]]\nnumber = 1\nstore = \"{store}\"\n");
    let target = Lunette::serve()
        .configuration(&format!("{unit}[limits]\nbuffer_memory_bytes = \"32M\"\n"))
        .start()
        .expect("a target");
    let options = LoginOptions {
        keys: vec![("MaxRecvDataSegmentLength".to_owned(), "262144".to_owned())],
        digests: Digests { header: false, data: has_data_digests },
        ..LoginOptions::default()
    };
    let session = Raw::ready(target.portal(), &options, 1).expect("a login");
    (target, session)
}

fn expect_large_reads(session: &mut Raw, disk: &[u8]) {
    let blocks = (LARGE_BYTES / BLOCK_BYTES) as u32;
    let tags: Vec<_> = (0..4).map(|index| session.read(1, index % 2 * u64::from(blocks), blocks)).collect();
    for (index, tag) in tags.into_iter().enumerate() {
        let (bytes, _) = session.data_in(tag.expect("sent")).expect("a read that needs no buffer");
        let start = index % 2 * LARGE_BYTES;
        assert!(bytes == disk[start..start + LARGE_BYTES], "read {index}");
    }
}

fn knows_its_page_cache(image: &Path) -> bool {
    let spec = VolumeSpec {
        read_only: true,
        engine: EngineKind::Threads,
        block_length_bytes: BLOCK_BYTES as u32,
        ..VolumeSpec::new("probe", StoreSpec::File { path: image.to_owned(), create_bytes: None })
    };
    Volume::open(&spec).expect("the image opens").cached(0, BLOCK_BYTES as u32).is_some()
}
