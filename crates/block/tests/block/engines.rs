//! What only engines past the page cache, and flushes on the submitting thread, can get wrong.

use std::fs::File;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lunette_block::fault::{Effect, Errno, Faults, Rule, When};
use lunette_block::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tempfile::TempDir;

use crate::common::{
    Bench, LoopDevice, Mount, class, fail_next_flush, file_spec, open_or_skip, skip_refused, spec, wait_until,
};

const PAST_THE_CACHE: [EngineKind; 2] = [EngineKind::Direct, EngineKind::Uring];
const SIZE_BYTES: u64 = 4 << 20;

fn image(engine: EngineKind) -> Option<(Bench, VolumeSpec, TempDir)> {
    let directory = TempDir::new().expect("a directory");
    let spec = VolumeSpec { engine, ..file_spec(&directory.path().join("a.img"), Some(SIZE_BYTES)) };
    let volume = open_or_skip(&spec)?;
    Some((Bench::new(volume), spec, directory))
}

/// A device whose sectors have 4096 bytes, so that the file system on it wants direct requests of that size.
fn with_large_sectors(engine: EngineKind, check: impl FnOnce(&VolumeSpec)) {
    let directory = TempDir::new().expect("a directory");
    let below = directory.path().join("below.img");
    File::create(&below).and_then(|file| file.set_len(64 << 20)).expect("an image");
    let Some(device) = LoopDevice::attach(&below, &["--sector-size", "4096"]) else { return };
    let made = std::process::Command::new("mkfs.ext4").arg("-q").arg(&device.path).output();
    if !made.is_ok_and(|output| output.status.success()) {
        lunette_skip::record_lacking("no file system can be made here");
        return;
    }
    let mount_point = directory.path().join("mnt");
    std::fs::create_dir(&mount_point).expect("a directory");
    let Some(mount) = Mount::new(&[device.path.to_str().expect("text")], &mount_point) else { return };
    let spec = VolumeSpec { engine, ..file_spec(&mount.path.join("a.img"), Some(SIZE_BYTES)) };
    check(&spec);
    drop(mount);
}

/// Bytes at odd places and of odd lengths, against a vector.
fn check_odd_requests(spec: &VolumeSpec) {
    let Some(mut bench) = open_or_skip(spec).map(Bench::new) else { return };
    let mut model = vec![0_u8; SIZE_BYTES as usize];
    let places = [(1, 1), (511, 2), (512, 512), (4095, 4098), (1000, 300_000), (700_001, 1 << 20), (4096, 1)];
    for (index, (offset, len)) in places.into_iter().enumerate() {
        let data: Vec<u8> = (0..len).map(|at| (at * 7 + index * 31 + 1) as u8).collect();
        bench.write(offset as u64, &data, index % 2 == 0).unwrap();
        model[offset..offset + len].copy_from_slice(&data);
        assert!(bench.read(offset as u64, len).unwrap() == data);
    }
    let end = SIZE_BYTES as usize - 3;
    bench.write(end as u64, &[5; 3], true).unwrap();
    model[end..].fill(5);
    bench.zero(4000..9000, false).unwrap();
    bench.zero(100_001..150_003, true).unwrap();
    model[4000..9000].fill(0);
    model[100_001..150_003].fill(0);
    assert!(bench.read(0, SIZE_BYTES as usize).unwrap() == model);
    bench.volume.close().unwrap();
    let StoreSpec::File { path, .. } = &spec.store else { panic!("a file") };
    assert!(std::fs::read(path).unwrap() == model, "the page cache sees the same, and the size is kept");
}

#[test]
fn requests_at_odd_places_are_right() {
    for engine in PAST_THE_CACHE {
        let Some((bench, spec, _directory)) = image(engine) else { continue };
        drop(bench);
        check_odd_requests(&spec);
        with_large_sectors(engine, check_odd_requests);
    }
}

#[test]
fn data_at_an_odd_place_in_its_buffer_is_written_from_there() {
    for engine in PAST_THE_CACHE {
        let Some((mut bench, _, _directory)) = image(engine) else { continue };
        let data: Vec<u8> = (0..16384_u32).map(|at| (at % 251) as u8).collect();
        for start in [1, 3, 512, 4095] {
            let buffer = Arc::new(bench.buffer_of(&data));
            let range = start..start + 8192;
            let source = WriteSource { buffer: Arc::clone(&buffer).into(), range: range.clone() };
            bench.run(Operation::Write { offset: 65536, buffer: source, stable: true }).result.unwrap();
            assert!(bench.read(65536, 8192).unwrap() == data[range]);
        }
    }
}

/// Each thread has its own bytes in blocks that all of them change, some whole blocks among them.
fn check_neighbours(spec: &VolumeSpec) {
    const THREADS: u64 = 4;
    const STRIPE: u64 = 1536;
    const STRIPES: u64 = 8;
    const ROUNDS: u8 = 40;
    let Some(bench) = open_or_skip(spec).map(Bench::new) else { return };
    let writers: Vec<_> = (0..THREADS)
        .map(|thread| {
            let mut bench = Bench::new(Arc::clone(&bench.volume));
            thread::spawn(move || {
                for round in 1..=ROUNDS {
                    for stripe in 0..STRIPES {
                        let at = (stripe * THREADS + thread) * STRIPE;
                        let operation = bench.write_operation(at, &[round; STRIPE as usize], false);
                        bench.submit(operation);
                    }
                    for _ in 0..STRIPES {
                        bench.next().result.unwrap();
                    }
                    let mine = bench.read(thread * STRIPE, STRIPE as usize).unwrap();
                    assert!(mine.iter().all(|byte| *byte == round), "a neighbour has undone round {round}");
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let mut bench = bench;
    let all = bench.read(0, (STRIPES * THREADS * STRIPE) as usize).unwrap();
    assert!(all.iter().all(|byte| *byte == ROUNDS));
}

#[test]
fn neighbours_in_one_block_do_not_undo_each_other() {
    for engine in PAST_THE_CACHE {
        with_large_sectors(engine, check_neighbours);
    }
    // Without 4096-byte sectors the same is had with stripes that no sector divides.
    for engine in PAST_THE_CACHE {
        let Some((bench, _, _directory)) = image(engine) else { continue };
        let writers: Vec<_> = (0..4_u64)
            .map(|thread| {
                let mut bench = Bench::new(Arc::clone(&bench.volume));
                thread::spawn(move || {
                    for round in 1..=100 {
                        bench.write(thread * 100, &[round; 100], false).unwrap();
                        assert_eq!(bench.read(thread * 100, 100).unwrap(), vec![round; 100]);
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    }
}

#[test]
fn more_than_the_ring_holds_is_all_done() {
    const WRITES: u64 = 1000;
    let Some((mut bench, _, _directory)) = image(EngineKind::Uring) else { return };
    for index in 0..WRITES {
        let operation = bench.write_operation(index * 4096, &[(index % 251) as u8 + 1; 4096], false);
        bench.gather(operation);
    }
    assert_eq!(bench.context.in_flight() as u64, WRITES);
    for _ in 0..WRITES {
        bench.next().result.unwrap();
    }
    assert_eq!((bench.context.in_flight(), bench.pool.in_use_bytes()), (0, 0));
    for index in (0..WRITES).rev() {
        assert_eq!(bench.read(index * 4096, 4096).unwrap(), vec![(index % 251) as u8 + 1; 4096]);
    }
}

/// A quarter for each turn, and whoever waits for the descriptor hears of the rest.
#[test]
fn what_came_back_is_handed_out_in_parts_to_who_takes_turns() {
    const READS: usize = 64;
    let Some((mut bench, _, _directory)) = image(EngineKind::Uring) else { return };
    bench.write(0, &[3; 4096 * READS], false).unwrap();
    for index in 0..READS {
        let buffer = bench.pool.allocate(4096).expect("a buffer");
        bench.gather(Operation::Read { offset: index as u64 * 4096, buffer });
    }
    let (mut finished, mut parts) = (Vec::new(), Vec::new());
    while bench.context.in_flight() > 0 {
        bench.context.next_turn();
        let part_max = (bench.context.in_flight() / 4).max(4);
        let before = finished.len();
        while finished.len() - before < part_max.min(READS - before) {
            bench.context.complete(&mut finished);
        }
        let left = READS - finished.len();
        assert_eq!(
            (finished.len() - before, bench.context.in_flight()),
            (part_max.min(READS - before), left)
        );
        if left > 0 {
            let mut fds = [PollFd::new(&bench.context, PollFlags::IN)];
            // io_uring interrupts a thread that waits to let it finish an operation.
            let ready = (0..READS)
                .map(|_| poll(&mut fds, Some(&Timespec { tv_sec: 30, tv_nsec: 0 })))
                .find(|ready| *ready != Err(rustix::io::Errno::INTR));
            assert_eq!(ready, Some(Ok(1)), "{left} are left");
            bench.context.complete(&mut finished);
            assert_eq!(READS - finished.len(), left, "they are the next turn's");
        }
        parts.push(part_max);
    }
    assert_eq!(parts[..4], [16, 12, 9, 6]);
    for completion in finished {
        completion.result.unwrap();
        assert!(completion.buffer.unwrap().iter().all(|byte| *byte == 3));
    }
}

#[test]
fn writes_that_are_to_become_stable_are_taken_together() {
    const WRITES: usize = 64;
    let Some((mut bench, _, _directory)) = image(EngineKind::Uring) else { return };
    for index in 0..WRITES {
        let operation = bench.write_operation(index as u64 * 4096, &[5; 4096], true);
        bench.gather(operation);
    }
    // One turn for all of them.
    bench.context.next_turn();
    let began = Instant::now();
    let mut finished = Vec::new();
    while finished.len() < WRITES && began.elapsed() < Duration::from_secs(30) {
        bench.context.complete(&mut finished);
        thread::yield_now();
    }
    assert_eq!((finished.len(), bench.context.in_flight()), (WRITES, 0));
    finished.into_iter().for_each(|completion| assert_eq!(completion.result.unwrap(), Done::Nothing));
}

#[test]
fn a_ring_that_goes_away_waits_for_the_kernel_and_does_the_rest() {
    const WRITES: u64 = 600;
    for begun in [false, true] {
        let Some((mut bench, spec, _directory)) = image(EngineKind::Uring) else { return };
        let pool = bench.pool.clone();
        for index in 0..WRITES {
            let operation = bench.write_operation(index * 4096, &[7; 4096], true);
            bench.gather(operation);
        }
        if begun {
            let mut finished = Vec::new();
            bench.context.complete(&mut finished);
        }
        drop(bench);
        wait_until("all buffers come back", || pool.in_use_bytes() == 0);
        wait_until("the lock goes with the last user", || Volume::open(&spec).is_ok());
        let StoreSpec::File { path, .. } = &spec.store else { panic!("a file") };
        assert!(std::fs::read(path).unwrap()[..(WRITES * 4096) as usize].iter().all(|byte| *byte == 7));
    }
}

#[test]
fn a_panic_beside_a_ring_leaves_its_buffers_alone() {
    let Some((bench, _, _directory)) = image(EngineKind::Uring) else { return };
    let pool = bench.pool.clone();
    let panicked = thread::spawn(move || {
        let mut bench = bench;
        for index in 0..64 {
            let buffer = bench.pool.allocate(65536).expect("a buffer");
            bench.submit(Operation::Read { offset: index * 65536 % SIZE_BYTES, buffer });
        }
        panic!("on purpose");
    })
    .join();
    assert!(panicked.is_err());
    assert_eq!(pool.in_use_bytes(), 0, "they came back before the context was gone");
}

/// A device that became shorter than its volume says EIO.
#[test]
fn an_error_of_the_device_comes_through() {
    for engine in PAST_THE_CACHE {
        let directory = TempDir::new().unwrap();
        let below = directory.path().join("below.img");
        File::create(&below).and_then(|file| file.set_len(SIZE_BYTES)).unwrap();
        let Some(device) = LoopDevice::attach(&below, &[]) else { return };
        let store = StoreSpec::BlockDevice { path: device.path.clone() };
        let Some(mut bench) = open_or_skip(&spec(store, engine)).map(Bench::new) else { return };
        bench.write(1 << 20, &[3; 4096], true).unwrap();
        File::options().write(true).open(&below).unwrap().set_len(1 << 20).unwrap();
        assert_eq!(bench.read((1 << 20) + 65536, 4096).unwrap_err().class(), ErrorClass::Medium);
        assert!(bench.read(0, 4096).is_ok());
        assert_eq!(bench.volume.fault(), None);
        drop(bench);
    }
}

#[test]
fn a_file_system_in_memory_is_refused_by_name_and_left_to_threads_by_auto() {
    let directory = TempDir::new().unwrap();
    let Some(mount) = Mount::new(&["-t", "tmpfs", "tmpfs"], directory.path()) else { return };
    let path = mount.path.join("a.img");
    for engine in PAST_THE_CACHE {
        let error = Volume::open(&VolumeSpec { engine, ..file_spec(&path, Some(SIZE_BYTES)) }).unwrap_err();
        if matches!(error, OpenError::NoUring { .. }) {
            lunette_skip::record_lacking(&error.to_string());
            continue;
        }
        let text = error.to_string();
        assert!(text.contains("a.img") && text.contains("use engine=threads"), "{text}");
        assert!(!path.exists(), "what was just created is not left behind");
    }
    let auto = Volume::open(&VolumeSpec { engine: EngineKind::Auto, ..file_spec(&path, Some(SIZE_BYTES)) });
    let auto = auto.unwrap();
    assert_eq!(auto.engine(), EngineKind::Threads);
    assert!(auto.engine_reason().is_some());
}

#[test]
fn a_size_that_is_no_multiple_of_a_sector_is_refused_past_the_cache() {
    with_large_sectors(EngineKind::Direct, |spec| {
        let StoreSpec::File { path, .. } = &spec.store else { panic!("a file") };
        std::fs::write(path, vec![1; 4096 + 512]).unwrap();
        let error = Volume::open(&VolumeSpec { engine: EngineKind::Direct, ..file_spec(path, None) });
        let error = error.unwrap_err();
        assert!(matches!(error, OpenError::NoDirect { .. }), "{error}");
        assert!(error.to_string().contains("multiple of 4096"), "{error}");
        assert!(path.exists(), "an image of the user's stays");
        assert!(Volume::open(&file_spec(path, None)).is_ok());
    });
}

/// The first flush goes to the flusher, because nobody knows yet how long it takes.
fn learn_that_flushes_are_quick(bench: &mut Bench) {
    for _ in 0..50 {
        bench.write(0, &[1; 512], true).unwrap();
    }
}

/// On a slow disk the flusher does it all the same, so this holds wherever it is done.
#[test]
fn a_flush_that_fails_on_the_submitting_thread_faults_the_volume() {
    for engine in [EngineKind::Threads, EngineKind::Direct, EngineKind::Uring] {
        let directory = TempDir::new().unwrap();
        let spec = VolumeSpec { engine, ..file_spec(&directory.path().join("a.img"), Some(SIZE_BYTES)) };
        let Some((volume, faults)) = skip_refused(Faults::open(&spec)) else { continue };
        let mut bench = Bench::new(volume);
        learn_that_flushes_are_quick(&mut bench);
        let before = faults.calls(OperationKind::Flush);
        fail_next_flush(&faults, Errno::IO);
        let error = bench.write(0, &[2; 512], true).unwrap_err();
        assert!(matches!(error, StoreError::Flush { .. }), "{error}");
        assert_eq!(class(bench.write(0, &[3; 512], true)), ErrorClass::Faulted);
        assert_eq!(class(bench.flush()), ErrorClass::Faulted);
        assert_eq!(faults.calls(OperationKind::Flush), before + 1, "never tried again");
        assert_eq!(bench.volume.fault().map(|fault| fault.class), Some(ErrorClass::Medium));
    }
}

#[test]
fn one_write_on_a_quick_store_is_stable_when_it_has_been_begun() {
    let directory = TempDir::new().unwrap();
    let Some(mount) = Mount::new(&["-t", "tmpfs", "tmpfs"], directory.path()) else { return };
    let (volume, faults) = Faults::open(&file_spec(&mount.path.join("a.img"), Some(SIZE_BYTES))).unwrap();
    let mut bench = Bench::new(volume);
    // A thread that was kept from running takes the store for a slow one; not each time.
    let done_at_once = (0..20).filter(|_| {
        learn_that_flushes_are_quick(&mut bench);
        let operation = bench.write_operation(0, &[1; 512], true);
        let before = faults.calls(OperationKind::Flush);
        bench.submit(operation);
        let calls = faults.calls(OperationKind::Flush) - before;
        let ended = bench.try_next();
        let is_done_at_once = calls == 1 && ended.is_some();
        if ended.is_none() {
            bench.next().result.unwrap();
        }
        is_done_at_once
    });
    assert!(done_at_once.count() >= 5, "within the call");
    // Two at a time are the flusher's.
    for offset in [0, 512] {
        let operation = bench.write_operation(offset, &[1; 512], true);
        bench.gather(operation);
    }
    bench.next().result.unwrap();
    bench.next().result.unwrap();
    // A store that is known to wait is never waited for.
    let hold = faults.add(Rule::new(OperationKind::Flush, When::Every, Effect::Hold));
    let operation = bench.write_operation(0, &[1; 512], true);
    bench.submit(operation);
    assert_eq!(bench.context.in_flight(), 1);
    faults.remove(hold);
    bench.next().result.unwrap();
}
