//! Protection information through the whole stack: real images, the binary, several sessions (SBC-3, protection
//! information model; docs/decisions/0019). What each value of the protect fields means is tested in lunette-scsi.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use lunette_tests::initiator::{Command, Completion, Initiator, LoginOptions, cdb};
use lunette_tests::lunette::{Lunette, binary};
use lunette_wire::target::Residual;

const GOOD: (u8, u8, u8) = (0, 0, 0);
const GUARD: (u8, u8, u8) = (0xb, 0x10, 0x01);
const REFERENCE_TAG: (u8, u8, u8) = (0xb, 0x10, 0x03);
const MEDIUM_ERROR: (u8, u8, u8) = (3, 0x11, 0);

/// RDPROTECT, WRPROTECT 001b: transferred and checked.
const WITH: u8 = 1 << 5;
/// 011b: transferred, not checked.
const UNCHECKED: u8 = 3 << 5;

fn serve(luns: &[String]) -> Lunette {
    Lunette::serve().luns(luns).start().expect("it serves")
}

fn login(target: &Lunette, qualifier: u8) -> Initiator {
    let options = LoginOptions { isid_qualifier: qualifier, ..LoginOptions::default() };
    let mut initiator = Initiator::login(target.portal(), &options).expect("a login");
    initiator.make_ready(0).expect("a ready unit");
    initiator
}

fn with_flags(mut cdb: [u8; 16], flags: u8) -> [u8; 16] {
    cdb[1] |= flags;
    cdb
}

fn read(initiator: &mut Initiator, lba: u64, blocks: u32, flags: u8, bytes: usize) -> Completion {
    let cdb = with_flags(cdb::read(lba, blocks), flags);
    let command = Command { cdb, data_in_bytes: bytes as u32, ..Command::default() };
    initiator.execute(command).expect("an answer")
}

fn write(initiator: &mut Initiator, lba: u64, blocks: u32, flags: u8, data_out: Vec<u8>) -> Completion {
    let cdb = with_flags(cdb::write(lba, blocks), flags);
    initiator.execute(Command { cdb, data_out, ..Command::default() }).expect("an answer")
}

fn code(completion: &Completion) -> (u8, u8, u8) {
    match completion.sense.as_slice() {
        [] => (completion.status, 0, 0),
        sense => (sense[2] & 0x0f, sense[12], sense[13]),
    }
}

/// INFORMATION of the sense data.
fn told_lba(completion: &Completion) -> u32 {
    assert_eq!(completion.sense[0], 0xf0, "INFORMATION is valid");
    u32::from_be_bytes(completion.sense[3..7].try_into().expect("four bytes"))
}

fn guard(data: &[u8]) -> u16 {
    data.iter().fold(0u16, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| crc << 1 ^ if crc >> 15 == 1 { 0x8bb7 } else { 0 })
    })
}

/// Blocks of one byte each with right information of type 1.
fn blocks(byte: u8, tag: u16, lba: u64, count: u64, block_length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for lba in lba..lba + count {
        let data = vec![byte; block_length];
        bytes.extend(&data);
        bytes.extend(guard(&data).to_be_bytes());
        bytes.extend(tag.to_be_bytes());
        bytes.extend((lba as u32).to_be_bytes());
    }
    bytes
}

fn lun(path: &Path, options: &str) -> String {
    format!("0=file:{}{options}", path.display())
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lunette-protection");
    name.into()
}

/// Turns a bit over in a file that nobody serves.
fn damage(path: &Path, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("the file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("a byte");
    file.write_all_at(&[byte[0] ^ 0x04], offset).expect("written");
}

/// SBC-3: WRPROTECT, ORPROTECT.
#[test]
fn a_damaged_image_is_told_and_never_taken_for_data() {
    for block_length in [512usize, 4096] {
        let directory = tempfile::tempdir().expect("a directory");
        let image = directory.path().join("disk.img");
        let created = lun(&image, &format!(",size=8M,block={block_length},protection=1"));
        let stored = block_length + 8;
        let target = serve(std::slice::from_ref(&created));
        let mut initiator = login(&target, 1);
        let data: Vec<u8> = (0..16 * block_length).map(|index| (index / 11) as u8).collect();
        assert_eq!(code(&write(&mut initiator, 100, 16, 0, data.clone())), GOOD);
        let given = blocks(7, 0x1234, 200, 3, block_length);
        assert_eq!(code(&write(&mut initiator, 200, 3, WITH, given.clone())), GOOD);
        initiator.logout().expect("a logout");
        target.stop().expect("it ends");
        assert_eq!(fs::metadata(&image).expect("the image").len(), 8 << 20, "the data alone");

        damage(&image, 105 * block_length as u64 + 9);
        damage(&beside(&image), 4096 + 32 * 201 + 2);
        let target = serve(&[lun(&image, &format!(",block={block_length},protection=1"))]);
        let mut initiator = login(&target, 1);
        let whole = read(&mut initiator, 100, 16, 0, 16 * block_length);
        assert_eq!((code(&whole), told_lba(&whole), whole.data_in.len()), (GUARD, 105, 0));
        let with = read(&mut initiator, 105, 1, WITH, stored);
        assert_eq!((code(&with), told_lba(&with)), (GUARD, 105));
        let unchecked = read(&mut initiator, 105, 1, UNCHECKED, stored);
        assert_eq!((code(&unchecked), unchecked.data_in.len()), (GOOD, stored));
        assert_eq!(unchecked.data_in[9], data[5 * block_length + 9] ^ 0x04);
        let right = read(&mut initiator, 106, 10, 0, 10 * block_length);
        assert!(right.data_in == data[6 * block_length..]);
        // What is beside the image is checked by itself.
        assert_eq!(code(&read(&mut initiator, 200, 3, UNCHECKED, 3 * stored)), MEDIUM_ERROR);
        assert_eq!(read(&mut initiator, 202, 1, WITH, stored).data_in, given[2 * stored..]);
        // Written anew all is well.
        assert_eq!(code(&write(&mut initiator, 105, 1, 0, vec![1; block_length])), GOOD);
        assert_eq!(code(&write(&mut initiator, 201, 1, 0, vec![1; block_length])), GOOD);
        assert_eq!(code(&read(&mut initiator, 100, 103, 0, 103 * block_length)), GOOD);
        initiator.logout().expect("a logout");
        target.stop().expect("it ends");
    }
}

/// Blocks in the wrong place: the guard is right, the reference tag is not.
#[test]
fn blocks_that_were_moved_are_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let target = serve(&[lun(&image, ",size=8M,protection=1")]);
    let mut initiator = login(&target, 1);
    assert_eq!(code(&write(&mut initiator, 40, 1, 0, vec![4; 512])), GOOD);
    initiator.logout().expect("a logout");
    target.stop().expect("it ends");
    for (path, header, length) in [(image.clone(), 0, 512), (beside(&image), 4096, 32)] {
        let file = OpenOptions::new().read(true).write(true).open(path).expect("the file");
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, header + 40 * length).expect("a block");
        file.write_all_at(&bytes, header + 41 * length).expect("written");
    }
    let target = serve(&[lun(&image, ",protection=1")]);
    let mut initiator = login(&target, 1);
    let moved = read(&mut initiator, 40, 2, 0, 1024);
    assert_eq!((code(&moved), told_lba(&moved)), (REFERENCE_TAG, 41));
    initiator.logout().expect("a logout");
    target.stop().expect("it ends");
}

/// Immediate data, first bursts and R2Ts count blocks with their information; so do residuals.
#[test]
fn transfers_are_as_long_as_the_blocks_with_their_information() {
    let target = serve(&["0=mem:64M,protection=1".to_owned()]);
    for keys in [
        vec![("ImmediateData", "No"), ("InitialR2T", "Yes"), ("MaxBurstLength", "4096")],
        vec![("FirstBurstLength", "1000"), ("MaxBurstLength", "1500")],
        vec![],
    ] {
        let keys = keys.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let options = LoginOptions { keys, ..LoginOptions::default() };
        let mut initiator = Initiator::login(target.portal(), &options).expect("a login");
        initiator.make_ready(0).expect("a ready unit");
        let given = blocks(9, 1, 64, 100, 512);
        let written = write(&mut initiator, 64, 100, WITH, given.clone());
        assert_eq!((code(&written), written.residual), (GOOD, Residual::None));
        let found = read(&mut initiator, 64, 100, WITH, 52_000);
        assert!(found.data_in == given);
        assert_eq!(found.residual, Residual::None);
        let plain = read(&mut initiator, 64, 100, 0, 52_000);
        assert!(plain.data_in == [9; 51_200]);
        assert_eq!(plain.residual, Residual::Underflow(800));
        let short = read(&mut initiator, 64, 100, WITH, 51_200);
        assert_eq!((short.data_in.len(), short.residual), (51_200, Residual::Overflow(800)));
        // Fewer blocks than the CDB calls for: what came is written.
        let written = write(&mut initiator, 64, 100, WITH, blocks(3, 1, 64, 2, 512));
        assert_eq!((code(&written), written.residual), (GOOD, Residual::Overflow(98 * 520)));
        assert!(read(&mut initiator, 64, 3, WITH, 1560).data_in[1040..] == given[1040..1560]);
        initiator.logout().expect("a logout");
    }
    target.stop().expect("it ends");
}

/// Sessions that write and read the same blocks: every block is one of what was written, whole, and passes its check.
#[test]
fn sessions_never_see_parts_of_a_block() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let target = serve(&[lun(&image, ",size=8M,protection=1")]);
    let mut sessions: Vec<Initiator> = (1..=3).map(|qualifier| login(&target, qualifier)).collect();
    for round in 0..20u8 {
        for (index, session) in sessions.iter_mut().enumerate() {
            let byte = 1 + round * 3 + index as u8;
            let lba = 8 + index as u64;
            let data_out = blocks(byte, byte.into(), lba, 40, 512);
            let cdb = with_flags(cdb::write(lba, 40), WITH);
            session.submit(Command { cdb, data_out, ..Command::default() }).expect("sent");
            let cdb = with_flags(cdb::read(0, 64), WITH);
            session.submit(Command { cdb, data_in_bytes: 64 * 520, ..Command::default() }).expect("sent");
        }
        for session in &mut sessions {
            for _ in 0..2 {
                let completion = session.wait().expect("an answer");
                assert_eq!(code(&completion), GOOD);
                for block in completion.data_in.chunks(520) {
                    assert!(block[..512].iter().all(|byte| *byte == block[0]), "one write's data");
                    assert!(block[514..516] == [0xff; 2] || block[515] == block[0], "and its information");
                }
            }
        }
    }
    for session in sessions {
        session.logout().expect("a logout");
    }
    target.stop().expect("it ends");
}

/// A volume is served as it was created, or not at all.
#[test]
fn what_does_not_fit_the_volume_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    serve(&[lun(&image, ",size=8M,protection=3")]).stop().expect("it ends");
    let refusal = |lun: &str| {
        let output = Process::new(binary())
            .args(["serve", "--portal", "127.0.0.1:0", "--target", "iqn.2026-11.io.lunette:x", "--lun", lun])
            .output()
            .expect("it runs");
        assert!(!output.status.success(), "{lun}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (options, wanted) in [
        ("", "protection=3,block=512"),
        (",protection=1", "protection=3,block=512"),
        (",protection=3,block=4096", "protection=3,block=512"),
        (",protection=3,engine=direct", "page cache"),
        (",protection=2", "type 1 or 3"),
    ] {
        let said = refusal(&lun(&image, options));
        assert!(said.contains(wanted), "{options}: {said}");
    }
    let plain = directory.path().join("plain.img");
    fs::write(&plain, vec![1; 1 << 20]).expect("an image");
    assert!(refusal(&lun(&plain, ",protection=1")).contains("no protection information"));
    assert!(refusal("0=null:1M,protection=1").contains("no place"));
}
