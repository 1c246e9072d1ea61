//! One behaviour for every store and engine. What only one store does is tested beside it.

use crate::common::{Bench, ENGINES, LoopDevice, Mount, class, open_or_skip, spec};
use lunette_block::*;
use std::fs::{File, OpenOptions};
use tempfile::TempDir;

const SIZE_BYTES: u64 = 8 << 20;

/// Opens a fresh volume of one kind; what has to outlive it comes along.
type Open = fn(EngineKind) -> Option<(Bench, Box<dyn std::any::Any>)>;

fn memory(engine: EngineKind) -> Option<(Bench, Box<dyn std::any::Any>)> {
    Some((Bench::open(&spec(StoreSpec::Memory { size_bytes: SIZE_BYTES }, engine)), Box::new(())))
}

fn large_pages(engine: EngineKind) -> Option<(Bench, Box<dyn std::any::Any>)> {
    let spec = spec(StoreSpec::Memory { size_bytes: SIZE_BYTES }, engine);
    Some((Bench::open(&VolumeSpec { large_pages: true, ..spec }), Box::new(())))
}

/// Memory behind the fault layer with a rule, so that every call takes the way of a store that may wait.
fn layered(engine: EngineKind) -> Option<(Bench, Box<dyn std::any::Any>)> {
    use fault::{Effect, Faults, Rule, When};
    let (volume, faults) =
        Faults::open(&spec(StoreSpec::Memory { size_bytes: SIZE_BYTES }, engine)).expect("it opens");
    faults.add(Rule::new(OperationKind::Read, When::Nth(u64::MAX), Effect::Hold));
    Some((Bench::new(volume), Box::new(faults)))
}

fn file(engine: EngineKind) -> Option<(Bench, Box<dyn std::any::Any>)> {
    let directory = TempDir::new().expect("a directory");
    let store = StoreSpec::File { path: directory.path().join("a.img"), create_bytes: Some(SIZE_BYTES) };
    Some((Bench::new(open_or_skip(&spec(store, engine))?), Box::new(directory)))
}

fn device(engine: EngineKind) -> Option<(Bench, Box<dyn std::any::Any>)> {
    let directory = TempDir::new().expect("a directory");
    let image = directory.path().join("a.img");
    File::create(&image).and_then(|file| file.set_len(SIZE_BYTES)).expect("an image");
    let device = LoopDevice::attach(&image, &[])?;
    // Named as a file on purpose: it has to be recognised.
    let store = StoreSpec::File { path: device.path.clone(), create_bytes: None };
    Some((Bench::new(open_or_skip(&spec(store, engine))?), Box::new((device, directory))))
}

/// Bytes that differ from place to place.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn check_data(bench: &mut Bench) {
    assert_eq!(bench.read(0, 4096).unwrap(), vec![0; 4096], "a fresh volume reads as zeroes");
    // Within a block, over a chunk's edge, longer than what is done inline, and the very end.
    let places = [(0, 512), (65536 - 512, 1024), (1 << 20, 3 << 20), (SIZE_BYTES - 4096, 4096), (5 << 20, 1)];
    for (index, (offset, len)) in places.into_iter().enumerate() {
        let data = pattern(index as u64, len);
        bench.write(offset, &data, index % 2 == 0).unwrap();
        assert!(bench.read(offset, len).unwrap() == data, "{len} bytes at {offset}");
    }
    assert!(bench.read(1 << 20, 3 << 20).unwrap() == pattern(2, 3 << 20), "later writes stay away");
    bench.flush().unwrap();
    bench.write(0, &[], true).unwrap();
    assert!(bench.read(SIZE_BYTES, 0).unwrap().is_empty());
}

fn check_zero_and_unmap(bench: &mut Bench) {
    let data = pattern(7, 1 << 20);
    for (unmap, start, end) in [(false, 4096, 12288), (true, 65536, 3 * 65536), (false, 512, 1024)] {
        bench.write(0, &data, false).unwrap();
        bench.zero(start..end, unmap).unwrap();
        let mut expected = data.clone();
        expected[start as usize..end as usize].fill(0);
        assert!(bench.read(0, 1 << 20).unwrap() == expected, "zero {start}..{end}, unmap {unmap}");
    }
    if bench.volume.features().unmap {
        bench.write(0, &data, false).unwrap();
        let result = bench.unmap(131_072..262_144);
        let mut expected = data;
        // A loop device on tmpfs promises what it cannot keep; once that is known it must change nothing.
        if result.is_err() && bench.volume.describe().starts_with("block device") {
            assert_eq!(class(result), ErrorClass::Unsupported);
        } else {
            result.unwrap();
            expected[131_072..262_144].fill(0);
        }
        assert!(bench.read(0, 1 << 20).unwrap() == expected);
    }
    bench.zero(0..0, true).unwrap();
    let stable = Operation::Zero { offset: 0, length: 4096, unmap: false, stable: true };
    bench.run(stable).result.unwrap();
    bench.run(Operation::Prefetch { offset: 0, length: SIZE_BYTES }).result.unwrap();
}

fn check_extents(bench: &mut Bench) {
    bench.write(1 << 20, &pattern(1, 131_072), true).unwrap();
    let extents = bench.extents(0..SIZE_BYTES);
    let allocated = |at: u64| {
        extents
            .iter()
            .find(|extent| (extent.offset..extent.offset + extent.length).contains(&at))
            .unwrap()
            .allocation
            == Allocation::Data
    };
    assert!(allocated(1 << 20) && allocated((1 << 20) + 131_071));
    assert_eq!(allocated(4 << 20), !bench.volume.features().extents);
    bench.extents(700_000..1_200_000);
    bench.extents((1 << 20) + 512..(1 << 20) + 1024);
    if bench.volume.features().extents && bench.volume.features().unmap {
        bench.unmap(0..SIZE_BYTES).unwrap();
        assert!(bench.extents(0..SIZE_BYTES).iter().all(|extent| extent.allocation == Allocation::Hole));
    }
}

fn check_refusals(bench: &mut Bench) {
    let outside = [(SIZE_BYTES, 1), (SIZE_BYTES - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 100)];
    for (offset, len) in outside {
        assert_eq!(bench.read(offset, len).unwrap_err().class(), ErrorClass::OutOfRange);
        assert_eq!(class(bench.write(offset, &vec![1; len], true)), ErrorClass::OutOfRange);
        let length = len as u64;
        for operation in [
            Operation::Zero { offset, length, unmap: true, stable: true },
            Operation::Unmap { offset, length },
            Operation::Prefetch { offset, length },
            Operation::Extents { offset, length },
        ] {
            let kind = operation.kind();
            let result = bench.run(operation).result;
            if kind == OperationKind::Unmap && !bench.volume.features().unmap {
                assert_eq!(class(result), ErrorClass::Unsupported);
            } else {
                assert_eq!(class(result), ErrorClass::OutOfRange, "{kind}");
            }
        }
    }
    let buffer = bench.buffer_of(&[1; 512]);
    let source = WriteSource { buffer: buffer.into(), range: 256..768 };
    let completion = bench.run(Operation::Write { offset: 0, buffer: source, stable: false });
    assert_eq!(class(completion.result), ErrorClass::OutOfRange);
    assert!(completion.buffer.is_some(), "the buffer comes back even then");
    // Backwards, as arithmetic gone wrong would make it.
    let buffer = bench.buffer_of(&[1; 512]);
    #[allow(clippy::reversed_empty_ranges)]
    let source = WriteSource { buffer: buffer.into(), range: 300..200 };
    let result = bench.run(Operation::Write { offset: 0, buffer: source, stable: false }).result;
    assert_eq!(class(result), ErrorClass::OutOfRange);
}

fn check_shared_sources(bench: &mut Bench) {
    let buffer = std::sync::Arc::new(bench.buffer_of(&pattern(9, 4096)));
    for (offset, range) in [(0, 0..2048), (65536, 2048..4096)] {
        let source = WriteSource { buffer: std::sync::Arc::clone(&buffer).into(), range };
        let completion = bench.run(Operation::Write { offset, buffer: source, stable: true });
        assert!(completion.result.is_ok() && completion.buffer.is_none());
    }
    assert_eq!(bench.read(0, 2048).unwrap(), buffer[..2048]);
    assert_eq!(bench.read(65536, 2048).unwrap(), buffer[2048..]);
    assert_eq!(std::sync::Arc::strong_count(&buffer), 1, "nothing keeps the data");
}

fn check_close(bench: &mut Bench) {
    bench.write(0, &[5; 512], false).unwrap();
    bench.volume.close().unwrap();
    bench.volume.close().unwrap();
    assert_eq!(bench.read(0, 512).unwrap_err().class(), ErrorClass::Closed);
    assert_eq!(class(bench.write(0, &[1; 512], false)), ErrorClass::Closed);
    assert_eq!(class(bench.flush()), ErrorClass::Closed);
}

fn with(open: Open, engine: EngineKind, check: fn(&mut Bench)) {
    let Some((mut bench, _keep)) = open(engine) else { return };
    assert_eq!(bench.volume.size_bytes(), SIZE_BYTES);
    check(&mut bench);
    assert_eq!(bench.pool.in_use_bytes(), 0, "every buffer has come back");
    // Before what it stands on.
    drop(bench);
}

macro_rules! suite {
    ($($store:ident)*) => {$(
        mod $store {
            use super::*;
            suite!(@engine $store sync Sync);
            suite!(@engine $store threads Threads);
            suite!(@engine $store direct Direct);
            suite!(@engine $store uring Uring);
        }
    )*};
    (@engine $store:ident $module:ident $engine:ident) => {
        mod $module {
            use super::*;
            suite!(@test $store $engine check_data check_zero_and_unmap check_extents check_refusals
                check_shared_sources check_close);
        }
    };
    (@test $store:ident $engine:ident $($check:ident)*) => {$(
        #[test]
        fn $check() {
            with(super::super::$store, EngineKind::$engine, super::super::$check);
        }
    )*};
}

suite!(memory large_pages layered file device);

#[test]
fn null_keeps_nothing() {
    for engine in ENGINES {
        let mut bench = Bench::open(&spec(StoreSpec::Null { size_bytes: 1 << 40 }, engine));
        bench.write(1 << 30, &[1; 4096], true).unwrap();
        assert_eq!(bench.read(1 << 30, 4096).unwrap(), vec![0; 4096]);
        bench.unmap(0..1 << 40).unwrap();
        assert_eq!(bench.extents(0..1 << 40).len(), 1);
        assert!(bench.volume.describe().contains("drops every write"));
    }
}

#[test]
fn a_read_only_volume_is_read_only() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.img");
    std::fs::write(&path, vec![3; 1 << 20]).unwrap();
    let before = std::fs::metadata(&path).unwrap().modified().unwrap();
    for engine in ENGINES {
        let store = StoreSpec::File { path: path.clone(), create_bytes: None };
        let spec = VolumeSpec { read_only: true, ..spec(store, engine) };
        let Some(mut bench) = open_or_skip(&spec).map(Bench::new) else { continue };
        assert!(bench.volume.read_only());
        assert!(bench.volume.features().unmap, "thin as it is where it may be written");
        assert!(!bench.volume.features().write_zeroes && !bench.volume.features().reserves);
        assert_eq!(class(bench.write(0, &[1; 512], false)), ErrorClass::ReadOnly);
        assert_eq!(class(bench.zero(0..512, false)), ErrorClass::ReadOnly);
        assert_eq!(class(bench.unmap(0..512)), ErrorClass::ReadOnly);
        bench.flush().unwrap();
        assert_eq!(bench.read(0, 512).unwrap(), vec![3; 512]);
        bench.volume.close().unwrap();
    }
    assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), before);
}

#[test]
fn an_image_cut_short_is_a_medium_error_not_zeroes() {
    for engine in ENGINES {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("a.img");
        let store = StoreSpec::File { path: path.clone(), create_bytes: Some(1 << 20) };
        let Some(mut bench) = open_or_skip(&spec(store, engine)).map(Bench::new) else { continue };
        bench.write(0, &vec![7; 1 << 20], true).unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(600 << 10).unwrap();
        assert_eq!(bench.read(0, 4096).unwrap(), vec![7; 4096]);
        assert_eq!(bench.read((600 << 10) - 2048, 4096).unwrap_err().class(), ErrorClass::Medium);
        assert_eq!(bench.read(1 << 19, 1 << 19).unwrap_err().class(), ErrorClass::Medium);
        assert_eq!(bench.read((1 << 20) - 512, 512).unwrap_err().class(), ErrorClass::Medium);
    }
}

#[test]
fn an_image_that_was_cut_is_not_made_longer_again() {
    for engine in ENGINES {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("a.img");
        let store = StoreSpec::File { path: path.clone(), create_bytes: Some(2 << 20) };
        let Some(mut bench) = open_or_skip(&spec(store, engine)).map(Bench::new) else { continue };
        bench.write(0, &vec![7; 2 << 20], true).unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        // Longer than it is believed to be as long as it was.
        std::thread::sleep(std::time::Duration::from_millis(1));
        // Of these the first would make it as long as it was, and the last begins where there is still something.
        for (offset, len) in [((2 << 20) - 4096, 4096), (1 << 20, 512), ((1 << 20) - 512, 1024), (0, 2 << 20)]
        {
            for stable in [false, true] {
                let failed = bench.write(offset, &vec![9; len], stable);
                assert_eq!(class(failed), ErrorClass::Medium, "{engine}: {len} at {offset}");
            }
            let zeroed = bench.zero(offset..offset + len as u64, false);
            assert_eq!(class(zeroed), ErrorClass::Medium, "{engine}: {len} at {offset}");
        }
        let data = bench.buffer_of(&[9; 512]);
        let written = bench.volume.write_at_once((2 << 20) - 512, &data, false);
        assert!(matches!(written, Written::No | Written::Partly), "{engine}: {written:?}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);
        bench.write(4096, &[8; 4096], true).unwrap();
        bench.zero(8192..12288, true).unwrap();
        assert_eq!(bench.volume.look_at_size(), Some(1 << 20), "{engine}");
        // What it grows by again is a disk's as ever.
        OpenOptions::new().write(true).open(&path).unwrap().set_len(2 << 20).unwrap();
        assert_eq!(bench.volume.look_at_size(), Some(2 << 20));
        bench.write((2 << 20) - 4096, &[5; 4096], true).unwrap();
        assert_eq!(bench.volume.fault(), None);
        bench.volume.close().unwrap();
    }
}

#[test]
fn written_data_is_there_after_reopening_and_space_is_given_back() {
    use std::os::unix::fs::MetadataExt;
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.img");
    let store = StoreSpec::File { path: path.clone(), create_bytes: Some(1 << 30) };
    let spec = spec(store, EngineKind::Threads);
    let mut bench = Bench::open(&spec);
    assert!(std::fs::metadata(&path).unwrap().blocks() * 512 < 1 << 20, "created sparse");
    bench.write(1 << 29, &pattern(4, 4 << 20), true).unwrap();
    let full = std::fs::metadata(&path).unwrap().blocks();
    assert!(full * 512 >= 4 << 20);
    bench.volume.close().unwrap();
    let mut bench = Bench::open(&spec);
    assert!(bench.read(1 << 29, 4 << 20).unwrap() == pattern(4, 4 << 20));
    if bench.volume.features().unmap {
        bench.unmap(1 << 29..(1 << 29) + (4 << 20)).unwrap();
        bench.flush().unwrap();
        assert!(std::fs::metadata(&path).unwrap().blocks() < full / 2);
    }
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 30);
}

/// The limits of a loop device on tmpfs promise unmapping, and the first attempt fails after the kernel has dropped
/// the page cache of the range.
#[test]
fn a_device_that_cannot_unmap_after_all_never_shows_old_data() {
    for by_zero in [false, true] {
        let directory = TempDir::new().unwrap();
        let Some(mount) = Mount::new(&["-t", "tmpfs", "tmpfs"], directory.path()) else { return };
        let image = mount.path.join("a.img");
        std::fs::write(&image, vec![9; 4 << 20]).unwrap();
        let Some(device) = LoopDevice::attach(&image, &[]) else { return };
        let store = StoreSpec::BlockDevice { path: device.path.clone() };
        let mut bench = Bench::open(&VolumeSpec {
            identity: IdentityOverride { serial: Some("tmp".to_owned()) },
            ..spec(store, EngineKind::Threads)
        });
        bench.write(0, &vec![1; 1 << 20], false).unwrap();
        let first = if by_zero { bench.zero(4096..65536, true) } else { bench.unmap(4096..65536) };
        first.unwrap();
        assert_eq!(bench.read(4096, 61440).unwrap(), vec![0; 61440]);
        if bench.unmap(131_072..262_144).is_err() {
            assert_eq!(bench.read(131_072, 131_072).unwrap(), vec![1; 131_072], "nothing may change");
        }
        bench.zero(65536..131_072, true).unwrap();
        assert_eq!(bench.read(65536, 65536).unwrap(), vec![0; 65536]);
        drop(bench);
    }
}

/// A loop device on a file of this size, and a volume on it.
fn loop_volume(image: &std::path::Path, size_bytes: u64, engine: EngineKind) -> Option<(Bench, LoopDevice)> {
    File::create(image).unwrap().set_len(size_bytes).unwrap();
    let device = LoopDevice::attach(image, &[])?;
    let store = StoreSpec::BlockDevice { path: device.path.clone() };
    let identity = IdentityOverride { serial: Some("loop".to_owned()) };
    let volume = open_or_skip(&VolumeSpec { identity, ..spec(store, engine) })?;
    Some((Bench::new(volume), device))
}

/// Linux says of both that there is no space, as of a thin pool that is full.
#[test]
fn a_device_that_has_shrunk_or_gone_is_not_short_of_space() {
    for engine in ENGINES {
        let directory = TempDir::new().unwrap();
        let image = directory.path().join("a.img");
        let Some((mut bench, device)) = loop_volume(&image, SIZE_BYTES, engine) else { return };
        bench.write(0, &[1; 4096], false).unwrap();
        bench.flush().unwrap();
        let shrink = |bench: &mut Bench, size_bytes| {
            OpenOptions::new().write(true).open(&image).unwrap().set_len(size_bytes).unwrap();
            let told = std::process::Command::new("losetup").arg("--set-capacity").arg(&device.path).status();
            assert!(told.unwrap().success());
            // Not in the page cache, nor in a mapping of it.
            let at = SIZE_BYTES - (1 << 20);
            let error = bench.write(at - 4096, &[2; 65536], false).unwrap_err();
            let zeroed = bench.zero(at..at + 4096, false).unwrap_err();
            let atomic = bench.volume.features().atomic_writes.map(|_| {
                let operation = bench.write_atomic_operation(at, &[2; 4096], false);
                class(bench.run(operation).result)
            });
            (error, zeroed.class(), atomic, class(bench.read(at, 4096).map(|_| Done::Nothing)))
        };
        let (error, zeroed, atomic, read) = shrink(&mut bench, 1 << 20);
        let StoreError::Io { kind, offset, .. } = error else { panic!("{error}") };
        assert_eq!((kind, offset), (ErrorClass::Medium, SIZE_BYTES - (1 << 20) - 4096), "{engine:?}");
        assert_eq!((zeroed, read), (ErrorClass::Medium, ErrorClass::Medium), "{engine:?}");
        assert!(atomic.is_none_or(|atomic| atomic == ErrorClass::Medium), "{engine:?}");
        // What it still has is written.
        bench.write((1 << 20) - 4096, &[3; 4096], false).unwrap();
        // A part of it is there.
        let error = bench.write((1 << 20) - 4096, &[4; 8192], false).unwrap_err();
        let StoreError::Io { kind, offset, .. } = error else { panic!("{error}") };
        assert_eq!((kind, offset), (ErrorClass::Medium, 1 << 20), "{engine:?}");
        let (error, zeroed, atomic, read) = shrink(&mut bench, 0);
        assert_eq!([error.class(), zeroed, read], [ErrorClass::Hardware; 3], "{engine:?}");
        assert!(atomic.is_none_or(|atomic| atomic == ErrorClass::Hardware), "{engine:?}");
        drop(bench);
    }
}

/// A device that has the range but no room for its data, as a thin pool that is full.
#[test]
fn a_device_that_has_no_room_for_what_it_has_is_short_of_space() {
    for engine in [EngineKind::Direct, EngineKind::Uring] {
        let directory = TempDir::new().unwrap();
        let options = ["-t", "tmpfs", "-o", "size=1m", "tmpfs"];
        let Some(mount) = Mount::new(&options, directory.path()) else { return };
        let Some((mut bench, _device)) = loop_volume(&mount.path.join("a.img"), SIZE_BYTES, engine) else {
            return;
        };
        let full = (0..SIZE_BYTES).step_by(1 << 20).find_map(|at| bench.write(at, &[5; 1 << 20], true).err());
        assert_eq!(full.expect("no room").class(), ErrorClass::NoSpace, "{engine:?}");
        drop(bench);
    }
}
