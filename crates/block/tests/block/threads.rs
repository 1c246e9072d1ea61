//! The `threads` engine: what is done at once, what is waited for elsewhere, and that nobody waits for a stuck disk.

use std::thread;
use std::time::{Duration, Instant};

use lunette_block::fault::{Effect, Errno, Faults, Rule, When};
use lunette_block::*;
use tempfile::TempDir;

use crate::common::{Bench, class, file_spec, memory_with_faults, wait_until};

#[test]
fn what_the_page_cache_has_is_done_at_once() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.img");
    let (volume, faults) = Faults::open(&file_spec(&path, Some(4 << 20))).unwrap();
    let mut bench = Bench::new(volume);
    let operation = bench.write_operation(0, &[1; 4096], false);
    bench.submit(operation);
    assert!(bench.try_next().is_some(), "a buffered write is a copy");
    let mut probe = [0; 4096];
    let mut parts = [std::io::IoSliceMut::new(&mut probe)];
    let file = std::fs::File::open(&path).unwrap();
    if rustix::io::preadv2(&file, &mut parts, 0, rustix::io::ReadWriteFlags::NOWAIT) != Ok(4096) {
        lunette_skip::record_lacking("this file system has no reads that do not wait");
        return;
    }
    let buffer = bench.pool.allocate(4096).unwrap();
    bench.submit(Operation::Read { offset: 0, buffer });
    let read = bench.try_next().expect("what is in the page cache is not waited for");
    assert!(read.buffer.unwrap().iter().all(|byte| *byte == 1));
    assert_eq!(faults.calls(OperationKind::Read), 0, "a quick thread of the pool does not count");
}

#[test]
fn what_the_page_cache_lacks_is_read_to_the_end() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.img");
    let mut bench = Bench::open(&file_spec(&path, Some(4 << 20)));
    let data: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 512 % 251) as u8).collect();
    bench.write(0, &data, true).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    for (start, length) in [(0, 1 << 20), (0, 1 << 19), (1 << 19, 1 << 19), (8192, 4096)] {
        let length = std::num::NonZeroU64::new(length);
        rustix::fs::fadvise(&file, start, length, rustix::fs::Advice::DontNeed).unwrap();
        assert!(bench.read(512, (1 << 20) - 512).unwrap() == data[512..], "without {length:?} at {start}");
    }
}

#[test]
fn the_submitting_thread_never_waits_for_the_store() {
    let (mut bench, faults) = memory_with_faults();
    bench.write(0, &[7; 512], false).unwrap();
    for kind in [
        OperationKind::Read,
        OperationKind::Write,
        OperationKind::WriteAtomic,
        OperationKind::Flush,
        OperationKind::Zero,
        OperationKind::Unmap,
        OperationKind::Prefetch,
        OperationKind::Extents,
    ] {
        let hold = faults.add(Rule::new(kind, When::Every, Effect::Hold));
        let (offset, length) = (0, 512);
        let operation = match kind {
            OperationKind::Read => {
                Operation::Read { offset, buffer: bench.pool.allocate(512).expect("a buffer") }
            }
            OperationKind::Write => bench.write_operation(offset, &[7; 512], false),
            OperationKind::WriteAtomic => bench.write_atomic_operation(offset, &[7; 512], false),
            OperationKind::Flush => Operation::Flush,
            OperationKind::Zero => Operation::Zero { offset, length, unmap: false, stable: false },
            OperationKind::Unmap => Operation::Unmap { offset, length },
            OperationKind::Prefetch => Operation::Prefetch { offset, length },
            OperationKind::Extents => Operation::Extents { offset, length },
        };
        let before = faults.calls(kind);
        bench.submit(operation);
        wait_until("the call is held", || faults.calls(kind) == before + 1);
        assert!(bench.try_next().is_none(), "{kind}");
        assert_eq!(bench.context.in_flight(), 1);
        faults.remove(hold);
        assert!(bench.next().result.is_ok(), "{kind}");
    }
}

#[test]
fn a_delay_is_kept_and_an_error_comes_through() {
    let (mut bench, faults) = memory_with_faults();
    faults.add(Rule::new(OperationKind::Read, When::Every, Effect::Delay(Duration::from_millis(30))));
    faults.add(Rule::new(OperationKind::Read, When::Nth(2), Effect::Fail(Errno::NXIO)));
    let began = Instant::now();
    assert!(bench.read(0, 512).is_ok());
    assert!(began.elapsed() >= Duration::from_millis(30));
    assert_eq!(bench.read(0, 512).unwrap_err().class(), ErrorClass::Hardware);
    assert!(bench.read(0, 512).is_ok());
    faults.clear();
    let completion = bench.run(Operation::Extents { offset: 0, length: 512 });
    assert_eq!(class(completion.result.and(Err(StoreError::ReadOnly))), ErrorClass::ReadOnly);
}

#[test]
fn a_stuck_volume_does_not_stop_another() {
    const STUCK: usize = 100;
    let (mut stuck, stuck_faults) = memory_with_faults();
    let (mut other, other_faults) = memory_with_faults();
    stuck_faults.add(Rule::new(OperationKind::Read, When::Every, Effect::Hold));
    // A rule that never applies sends reads to the pool.
    other_faults.add(Rule::new(OperationKind::Read, When::Nth(u64::MAX), Effect::Hold));
    for _ in 0..STUCK {
        let buffer = stuck.pool.allocate(512).unwrap();
        stuck.submit(Operation::Read { offset: 0, buffer });
    }
    wait_until("the stuck volume has what it may have", || stuck_faults.calls(OperationKind::Read) == 32);
    for _ in 0..STUCK {
        other.read(0, 512).unwrap();
    }
    thread::sleep(Duration::from_millis(20));
    assert_eq!(stuck_faults.calls(OperationKind::Read), 32, "no more than its share");
    assert_eq!(stuck.context.in_flight(), STUCK);
    stuck_faults.clear();
    for _ in 0..STUCK {
        assert!(stuck.next().result.is_ok());
    }
}

/// Disks of one enclosure fail together.
#[test]
fn several_stuck_volumes_do_not_stop_another() {
    let mut stuck: Vec<_> = (0..6).map(|_| memory_with_faults()).collect();
    for (bench, faults) in &mut stuck {
        faults.add(Rule::new(OperationKind::Read, When::Every, Effect::Hold));
        for _ in 0..40 {
            let buffer = bench.pool.allocate(512).unwrap();
            bench.submit(Operation::Read { offset: 0, buffer });
        }
    }
    let (mut other, other_faults) = memory_with_faults();
    other_faults.add(Rule::new(OperationKind::Read, When::Nth(u64::MAX), Effect::Hold));
    let buffer = other.pool.allocate(512).unwrap();
    other.submit(Operation::Read { offset: 0, buffer });
    wait_until("the read reaches its store", || other_faults.calls(OperationKind::Read) == 1);
    assert!(other.next().result.is_ok());
    for (bench, faults) in &mut stuck {
        faults.clear();
        (0..40).for_each(|_| assert!(bench.next().result.is_ok()));
    }
}

#[test]
fn a_context_that_goes_away_leaves_nothing_behind() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.img");
    let (volume, faults) = Faults::open(&file_spec(&path, Some(1 << 20))).unwrap();
    let mut bench = Bench::new(volume);
    let pool = bench.pool.clone();
    let hold = faults.add(Rule::new(OperationKind::Write, When::Every, Effect::Hold));
    for index in 0..20 {
        let operation = bench.write_operation(index * 512, &[5; 512], true);
        bench.submit(operation);
    }
    drop(bench);
    faults.remove(hold);
    wait_until("all buffers come back", || pool.in_use_bytes() == 0);
    wait_until("the lock goes with the last user", || Volume::open(&file_spec(&path, None)).is_ok());
    assert!(
        std::fs::read(&path).unwrap()[..20 * 512].iter().all(|byte| *byte == 5),
        "and the writes are done"
    );
}
