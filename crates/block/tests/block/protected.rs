//! Volumes with protection information: what is kept over a restart, what is refused, and what a damaged or cut image
//! leaves of it.

use std::fs;
use std::path::{Path, PathBuf};

use lunette_block::*;

use crate::common::*;

const STORED: usize = 520;
const SIZE_BYTES: u64 = 1 << 20;

fn protected(path: &Path, create_bytes: Option<u64>, kind: u8) -> VolumeSpec {
    VolumeSpec { protection: Some(kind), ..file_spec(path, create_bytes) }
}

fn beside(path: &Path) -> PathBuf {
    path.with_extension("img.lunette-protection")
}

fn block(byte: u8) -> Vec<u8> {
    let mut block = vec![byte; 512];
    block.extend([byte; 8]);
    block
}

fn blank() -> Vec<u8> {
    let mut block = vec![0; 512];
    block.extend([0xff; 8]);
    block
}

fn write(bench: &mut Bench, block_number: u64, bytes: &[u8]) {
    let source = WriteSource { buffer: bench.buffer_of(bytes).into(), range: 0..bytes.len() };
    let offset = block_number * STORED as u64;
    bench.run(Operation::Write { offset, buffer: source, stable: true }).result.unwrap();
}

fn read(bench: &mut Bench, block_number: u64) -> Vec<u8> {
    let buffer = bench.pool.allocate(STORED).unwrap();
    let done = bench.run(Operation::Read { offset: block_number * STORED as u64, buffer });
    done.result.unwrap();
    done.buffer.unwrap().to_vec()
}

#[test]
fn blocks_keep_their_information_and_the_image_has_the_data_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.img");
    for engine in [EngineKind::Threads, EngineKind::Sync] {
        let mut bench = Bench::open(&VolumeSpec { engine, ..protected(&path, Some(SIZE_BYTES), 1) });
        assert_eq!(bench.volume.size_bytes(), SIZE_BYTES / 512 * STORED as u64);
        assert_eq!(read(&mut bench, 9), blank());
        write(&mut bench, 3, &[block(3), block(4)].concat());
        bench.volume.close().unwrap();
    }
    let mut bench = Bench::open(&protected(&path, None, 1));
    assert_eq!(read(&mut bench, 3), block(3));
    assert_eq!(read(&mut bench, 4), block(4));
    assert_eq!(read(&mut bench, 5), blank());
    let image = fs::read(&path).unwrap();
    assert_eq!(image.len() as u64, SIZE_BYTES);
    assert!(image[3 * 512..4 * 512].iter().all(|&byte| byte == 3));
    bench.run(Operation::Unmap { offset: 3 * STORED as u64, length: STORED as u64 }).result.unwrap();
    assert_eq!(read(&mut bench, 3), blank());
    assert_eq!(read(&mut bench, 4), block(4));
}

#[test]
fn memory_can_have_it_too() {
    let store = StoreSpec::Memory { size_bytes: SIZE_BYTES };
    let mut bench = Bench::open(&VolumeSpec { protection: Some(3), ..spec(store, EngineKind::Threads) });
    assert_eq!(read(&mut bench, 2), blank());
    write(&mut bench, 2, &block(9));
    assert_eq!(read(&mut bench, 2), block(9));
    let end = SIZE_BYTES / 512 * STORED as u64;
    let done = bench.run(Operation::Extents { offset: 0, length: end }).result.unwrap();
    let Done::Extents(extents) = done else { panic!("{done:?}") };
    assert_eq!(extents.iter().map(|extent| extent.length).sum::<u64>(), end);
    assert_eq!(extents[0].offset, 0);
    let had: Vec<_> = extents.iter().map(|extent| extent.allocation).collect();
    assert_eq!(had[..2], [Allocation::Data, Allocation::Hole]);
}

#[test]
fn a_volume_is_opened_as_it_was_created() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.img");
    Volume::open(&protected(&path, Some(SIZE_BYTES), 1)).unwrap().close().unwrap();
    for wrong in [
        file_spec(&path, None),
        protected(&path, None, 3),
        VolumeSpec { block_length_bytes: 4096, ..protected(&path, None, 1) },
    ] {
        let error = Volume::open(&wrong).unwrap_err().to_string();
        assert!(error.contains("protection=1,block=512"), "{error}");
    }
    let direct = VolumeSpec { engine: EngineKind::Direct, ..protected(&path, None, 1) };
    assert!(matches!(Volume::open(&direct), Err(OpenError::NoDirect { .. })));
    // What has data and lost its information, or never had any, is no volume with protection.
    let mut bench = Bench::open(&protected(&path, None, 1));
    write(&mut bench, 0, &block(1));
    bench.volume.close().unwrap();
    fs::remove_file(beside(&path)).unwrap();
    let error = Volume::open(&protected(&path, None, 1)).unwrap_err();
    assert!(matches!(error, OpenError::NotProtected { .. }), "{error}");
    Volume::open(&file_spec(&path, None)).unwrap().close().unwrap();
    // Something else has its name.
    fs::write(beside(&path), "a letter").unwrap();
    assert!(matches!(Volume::open(&file_spec(&path, None)), Err(OpenError::NotServable { .. })));
    let null = StoreSpec::Null { size_bytes: SIZE_BYTES };
    let error = Volume::open(&VolumeSpec { protection: Some(1), ..spec(null, EngineKind::Auto) });
    assert!(matches!(error, Err(OpenError::CannotProtect { .. })));
}

#[test]
fn a_new_image_has_nothing_of_an_old_one_of_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.img");
    let mut bench = Bench::open(&protected(&path, Some(SIZE_BYTES), 1));
    write(&mut bench, 7, &block(7));
    bench.volume.close().unwrap();
    fs::remove_file(&path).unwrap();
    let mut bench = Bench::open(&protected(&path, Some(SIZE_BYTES), 3));
    assert_eq!(read(&mut bench, 7), blank());
}

#[test]
fn an_image_that_was_cut_and_enlarged_has_blank_blocks_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.img");
    let mut bench = Bench::open(&protected(&path, Some(SIZE_BYTES), 1));
    let last = SIZE_BYTES / 512 - 1;
    write(&mut bench, last, &block(7));
    write(&mut bench, 1, &block(1));
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(SIZE_BYTES / 2).unwrap();
    assert_eq!(bench.volume.look_at_size(), Some(SIZE_BYTES / 1024 * STORED as u64));
    file.set_len(2 * SIZE_BYTES).unwrap();
    assert_eq!(bench.volume.look_at_size(), Some(SIZE_BYTES / 256 * STORED as u64));
    assert_eq!(read(&mut bench, last), blank());
    assert_eq!(read(&mut bench, 1), block(1));
    write(&mut bench, 2 * last, &block(5));
    bench.volume.close().unwrap();
    // The same while nobody serves it: what is cut when it is opened is forgotten.
    file.set_len(SIZE_BYTES).unwrap();
    Volume::open(&protected(&path, None, 1)).unwrap().close().unwrap();
    file.set_len(2 * SIZE_BYTES).unwrap();
    let mut bench = Bench::open(&protected(&path, None, 1));
    assert_eq!(read(&mut bench, 2 * last), blank());
}

#[test]
fn a_damaged_entry_is_a_medium_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.img");
    let mut bench = Bench::open(&protected(&path, Some(SIZE_BYTES), 1));
    write(&mut bench, 3, &block(1));
    bench.volume.close().unwrap();
    let mut entries = fs::read(beside(&path)).unwrap();
    entries[4096 + 3 * 32 + 3] ^= 0x10;
    fs::write(beside(&path), entries).unwrap();
    let mut bench = Bench::open(&protected(&path, None, 1));
    let buffer = bench.pool.allocate(4 * STORED).unwrap();
    let error = bench.run(Operation::Read { offset: STORED as u64, buffer }).result.unwrap_err();
    let place = 3 * STORED as u64;
    assert!(
        matches!(error, StoreError::Io { kind: ErrorClass::Medium, offset, .. } if offset == place),
        "{error:?}"
    );
    assert_eq!(read(&mut bench, 2), blank());
    write(&mut bench, 3, &block(2));
    assert_eq!(read(&mut bench, 3), block(2), "a write mends it");
}

/// Or what it had said of the blocks would read as if there were nothing to check.
#[test]
fn protection_information_that_was_cut_off_is_a_medium_error_and_not_opened() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.img");
    let mut bench = Bench::open(&protected(&path, Some(SIZE_BYTES), 1));
    let last = SIZE_BYTES / 512 - 1;
    for place in [3, 20, last] {
        write(&mut bench, place, &block(1));
    }
    let file = fs::OpenOptions::new().write(true).open(beside(&path)).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 4096 + (last + 1) * 32);
    file.set_len(4096 + 20 * 32).unwrap();
    assert_eq!(read(&mut bench, 3), block(1));
    for place in [20, 21, last] {
        let buffer = bench.pool.allocate(STORED).unwrap();
        let offset = place * STORED as u64;
        assert_eq!(class(bench.run(Operation::Read { offset, buffer }).result), ErrorClass::Medium);
        let source = WriteSource { buffer: bench.buffer_of(&block(2)).into(), range: 0..STORED };
        let written = bench.run(Operation::Write { offset, buffer: source, stable: true });
        assert_eq!(class(written.result), ErrorClass::Medium);
    }
    bench.volume.close().unwrap();
    let error = Volume::open(&protected(&path, None, 1)).unwrap_err().to_string();
    assert!(error.contains("protection was cut"), "{error}");
    assert_eq!(file.metadata().unwrap().len(), 4096 + 20 * 32);
}

#[test]
fn overlapping_writes_leave_whole_blocks() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.img");
    let mut bench = Bench::open(&protected(&path, Some(SIZE_BYTES), 1));
    for round in 0..20u8 {
        for part in 0..4u8 {
            let bytes = block(round * 4 + part + 1).repeat(64);
            let source = WriteSource { buffer: bench.buffer_of(&bytes).into(), range: 0..bytes.len() };
            let offset = u64::from(part) * 16 * STORED as u64;
            bench.gather(Operation::Write { offset, buffer: source, stable: true });
            let buffer = bench.pool.allocate(96 * STORED).unwrap();
            bench.gather(Operation::Read { offset: 0, buffer });
        }
        for _ in 0..8 {
            let done = bench.next();
            done.result.unwrap();
            let found = done.buffer.unwrap();
            let is_whole = |found: &[u8]| found == blank() || found == block(found[0]);
            assert!(found.chunks(STORED).all(is_whole));
        }
    }
}

#[test]
fn a_volume_whose_protection_information_is_gone_does_not_close_cleanly() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.img");
    let volume = Volume::open(&protected(&path, Some(SIZE_BYTES), 1)).unwrap();
    fs::remove_file(beside(&path)).unwrap();
    let error = volume.close().unwrap_err();
    let CloseError::Astray { astray, .. } = &error else { panic!("{error}") };
    assert_eq!((&astray.path, astray.is_nameless), (&beside(&path), true));
}
