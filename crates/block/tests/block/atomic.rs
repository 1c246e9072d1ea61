//! Writes that are whole or not there: in memory, and past the page cache of a file system that has them.

use std::fs::File;
use std::process::Command;
use std::sync::Arc;

use lunette_block::fault::{Effect, Errno, Rule, When};
use lunette_block::*;
use tempfile::TempDir;

use crate::common::{Bench, LoopDevice, Mount, class, file_spec, memory_with_faults, open_or_skip};

const SIZE_BYTES: u64 = 4 << 20;

fn write_atomic(bench: &mut Bench, offset: u64, data: &[u8]) -> Result<Done, StoreError> {
    let operation = bench.write_atomic_operation(offset, data, true);
    let completion = bench.run(operation);
    assert!(completion.buffer.is_some(), "the buffer comes back");
    completion.result
}

/// XFS makes any such write atomic, by writing elsewhere first, since Linux 6.16.
fn on_xfs(check: impl FnOnce(&std::path::Path)) {
    let directory = TempDir::new().expect("a directory");
    let below = directory.path().join("below.img");
    File::create(&below).and_then(|file| file.set_len(512 << 20)).expect("an image");
    let Some(device) = LoopDevice::attach(&below, &[]) else { return };
    let made = Command::new("mkfs.xfs").arg("-q").arg(&device.path).output();
    if !made.is_ok_and(|output| output.status.success()) {
        lunette_skip::record_lacking("no XFS can be made here");
        return;
    }
    let mount_point = directory.path().join("mnt");
    std::fs::create_dir(&mount_point).expect("a directory");
    let Some(mount) = Mount::new(&[device.path.to_str().expect("text")], &mount_point) else { return };
    check(&mount.path.join("a.img"));
}

fn check_atomic_writes(volume: Arc<Volume>, unit_bytes: u64) {
    let mut bench = Bench::new(volume);
    let unit = unit_bytes as usize;
    write_atomic(&mut bench, 0, &vec![1; unit]).unwrap();
    write_atomic(&mut bench, 3 * unit_bytes, &vec![2; unit]).unwrap();
    // Over what is there, which no hole makes simple.
    write_atomic(&mut bench, 0, &vec![3; unit]).unwrap();
    let expected = [vec![3; unit], vec![0; 2 * unit], vec![2; unit]].concat();
    assert!(bench.read(0, 4 * unit).unwrap() == expected);
    for (offset, len) in
        [(unit_bytes / 2, unit), (0, 2 * unit), (0, unit / 2), (SIZE_BYTES - unit_bytes / 2, unit)]
    {
        let refused = class(write_atomic(&mut bench, offset, &vec![9; len]));
        assert!(matches!(refused, ErrorClass::Unsupported | ErrorClass::OutOfRange), "{offset} {len}");
    }
    assert!(bench.read(0, 4 * unit).unwrap() == expected, "nothing of what was refused");
}

#[test]
fn xfs_has_one_unit_past_the_page_cache() {
    on_xfs(|path| {
        for engine in [EngineKind::Direct, EngineKind::Uring] {
            let spec = VolumeSpec { engine, ..file_spec(path, Some(SIZE_BYTES)) };
            let Some(volume) = open_or_skip(&spec) else { continue };
            let Some(atomic) = volume.features().atomic_writes else {
                lunette_skip::record_lacking("this kernel's XFS has no atomic writes");
                return;
            };
            assert_eq!(atomic, AtomicWrites { granularity_bytes: 16 << 10, length_bytes_max: 16 << 10 });
            check_atomic_writes(volume, 16 << 10);
            std::fs::remove_file(path).expect("the image");
        }
        let cached = VolumeSpec { engine: EngineKind::Threads, ..file_spec(path, Some(SIZE_BYTES)) };
        let mut bench = Bench::new(Volume::open(&cached).expect("an image"));
        assert_eq!(bench.volume.features().atomic_writes, None, "through the page cache");
        assert_eq!(class(write_atomic(&mut bench, 0, &[1; 16 << 10])), ErrorClass::Unsupported);
        bench.volume.close().expect("closed");
        let read_only = VolumeSpec { engine: EngineKind::Direct, read_only: true, ..file_spec(path, None) };
        if let Some(volume) = open_or_skip(&read_only) {
            assert_eq!(volume.features().atomic_writes, None);
        }
    });
}

#[test]
fn memory_takes_any_range_or_none_of_it() {
    let (mut bench, faults) = memory_with_faults();
    // Three chunks, of which the first and last are written in part.
    let data: Vec<u8> = (0..200_000).map(|at| (at % 251) as u8).collect();
    write_atomic(&mut bench, 60_000, &data).unwrap();
    assert!(bench.read(60_000, data.len()).unwrap() == data);
    assert!(bench.read(0, 60_000).unwrap().iter().all(|&byte| byte == 0));
    let before = bench.read(0, 300_000).unwrap();
    faults.add(Rule::new(OperationKind::WriteAtomic, When::Nth(1), Effect::Fail(Errno::NOSPC)));
    assert_eq!(class(write_atomic(&mut bench, 0, &data)), ErrorClass::NoSpace);
    assert!(bench.read(0, 300_000).unwrap() == before);
}
