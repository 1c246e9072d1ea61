//! Blocks marked as unreadable by WRITE LONG, over real sockets and restarts (SBC-3, pseudo unrecovered errors).

use lunette_block::OperationKind;
use lunette_tests::in_process::InProcess;
use lunette_tests::initiator::{Command, Initiator, cdb};
use lunette_wire::target::Residual;
use tempfile::TempDir;

use super::{code, padded, run, session};

const GOOD: (u8, u8, u8) = (0, 0, 0);
const MARKED_BAD: (u8, u8, u8) = (3, 0x11, 0x14);

/// WRITE LONG (10) of block 10 with COR_DIS and WR_UNCOR.
const MARK: [u8; 10] = [0x3f, 0xc0, 0, 0, 0, 10, 0, 0, 0, 0];

fn flags(directory: &TempDir) -> [String; 2] {
    [0, 1].map(|lun| {
        let path = directory.path().join(format!("disk{lun}"));
        format!("{lun}=file:{},size=8M,write=back", path.display())
    })
}

fn start(directory: &TempDir) -> InProcess {
    let flags = flags(directory);
    InProcess::start(&[&flags[0], &flags[1]])
}

fn end(target: InProcess, sessions: Vec<Initiator>) {
    drop(sessions);
    target.drain();
    target.end().expect("an end").expect("a clean one");
}

fn write(session: &mut Initiator, lun: u8, lba: u64, byte: u8) -> (u8, u8, u8) {
    let command = Command { lun, cdb: cdb::write(lba, 4), data_out: vec![byte; 2048], ..Command::default() };
    code(&session.execute(command).expect("an answer"))
}

/// The LBA that INFORMATION names, with what is wrong.
fn read(session: &mut Initiator) -> ((u8, u8, u8), u32) {
    let completion = run(session, &cdb::read(0, 64), 64 * 512);
    if completion.status != 0 {
        // Hosts reckon by it how much of the data before the block has come (RFC 7143, 11.4.5.1): none.
        assert_eq!((completion.residual, completion.data_in.len()), (Residual::Underflow(64 * 512), 0));
    }
    let lba =
        completion.sense.get(3..7).map_or(0, |bytes| u32::from_be_bytes(bytes.try_into().expect("four")));
    (code(&completion), lba)
}

#[test]
fn a_mark_and_its_end_outlive_restarts_and_are_everybodys() {
    let directory = TempDir::new().expect("a directory");
    let target = start(&directory);
    let (mut first, mut second) = (session(&target, 1), session(&target, 2));
    assert_eq!(write(&mut first, 0, 8, 5), GOOD);
    assert_eq!(code(&run(&mut first, &MARK, 0)), GOOD);
    let reads = target.faults(0).calls(OperationKind::Read);
    assert_eq!(read(&mut second), (MARKED_BAD, 10));
    assert_eq!(target.faults(0).calls(OperationKind::Read), reads, "the store is not asked");
    end(target, vec![first, second]);

    let target = start(&directory);
    let (mut first, mut second) = (session(&target, 1), session(&target, 2));
    assert_eq!(read(&mut first), (MARKED_BAD, 10));
    assert_eq!(write(&mut second, 0, 8, 6), GOOD);
    assert_eq!(read(&mut first).0, GOOD);
    // No clean end: what was answered stands.
    drop((first, second, target));

    let target = start(&directory);
    let mut first = session(&target, 1);
    assert_eq!(read(&mut first).0, GOOD);
    assert_eq!(run(&mut first, &cdb::read(8, 4), 2048).data_in, [6; 2048]);
    end(target, vec![first]);
}

/// The destination is another unit than the command's: its own state is stored.
#[test]
fn a_copy_from_another_unit_heals_for_good() {
    let directory = TempDir::new().expect("a directory");
    let target = start(&directory);
    let mut session = session(&target, 1);
    session.make_ready(1).expect("a ready unit");
    assert_eq!(write(&mut session, 1, 8, 7), GOOD);
    assert_eq!(code(&run(&mut session, &MARK, 0)), GOOD);
    // Unit 1 is asked to copy its first 16 blocks to unit 0. The designator is NAA of VPD page 83h, the first one.
    let cscd = |session: &mut Initiator, lun| {
        let page =
            Command { lun, cdb: padded(&[0x12, 1, 0x83, 0, 255]), data_in_bytes: 255, ..Command::default() };
        let page = session.execute(page).expect("an answer").data_in;
        [&[0xe4, 0, 0, 0][..], &page[4..16], &[0; 12], &[0, 0, 2, 0]].concat()
    };
    let (from, to) = (cscd(&mut session, 1), cscd(&mut session, 0));
    let segment = [&[2, 0, 0, 0x18, 0, 0, 0, 1, 0, 0, 0, 16][..], &[0; 16]].concat();
    let list = [&[1, 0x18, 0, 64, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0][..], &from, &to, &segment].concat();
    let mut copy = padded(&[0x83]);
    copy[13] = list.len() as u8;
    let copy = Command { lun: 1, cdb: copy, data_out: list, ..Command::default() };
    assert_eq!(code(&session.execute(copy).expect("an answer")), GOOD);
    drop((session, target));

    let target = start(&directory);
    let mut session = super::session(&target, 1);
    assert_eq!(read(&mut session).0, GOOD);
    assert_eq!(run(&mut session, &cdb::read(8, 4), 2048).data_in, [7; 2048]);
    end(target, vec![session]);
}
