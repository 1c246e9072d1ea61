//! The durability contract: group commit, order of write and flush, and what a failed flush does.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lunette_block::fault::{Effect, Errno, Faults, Rule, When};
use lunette_block::*;
use tempfile::TempDir;

use crate::common::{
    Bench, ENGINES, class, fail_next_flush, file_spec, hold_next_flush, skip_refused, spec, wait_until,
};

/// Long enough for a thread that was woken to have done the wrong thing.
const A_WHILE: Duration = Duration::from_millis(50);

fn file_with_faults(engine: EngineKind) -> Option<(Bench, Faults, VolumeSpec, TempDir)> {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("a.img");
    let spec = VolumeSpec { engine, ..file_spec(&path, Some(1 << 20)) };
    let (volume, faults) = skip_refused(Faults::open(&spec))?;
    Some((Bench::new(volume), faults, spec, directory))
}

/// The same for every engine under which several operations can wait for one flush.
macro_rules! with_engines {
    ($($check:ident)*) => {
        with_engines!(@engine threads Threads $($check)*);
        with_engines!(@engine direct Direct $($check)*);
        with_engines!(@engine uring Uring $($check)*);
    };
    (@engine $module:ident $engine:ident $($check:ident)*) => {
        mod $module {
            use super::*;
            $(
                #[test]
                fn $check() {
                    super::$check(EngineKind::$engine);
                }
            )*
        }
    };
}

with_engines!(
    stable_writes_that_wait_together_share_a_flush
    what_is_cut_off_before_its_flush_ends_has_failed
    a_buffer_that_was_given_is_free_before_its_data_is_stable
    a_flush_that_runs_already_does_not_make_a_later_write_stable
    a_failed_flush_fails_its_whole_group_and_faults_the_volume
    a_failed_last_flush_is_told_by_close
    a_failed_write_fails_alone
    many_threads_write_stably_and_all_of_it_is_there
);

fn stable_writes_that_wait_together_share_a_flush(engine: EngineKind) {
    const WRITES: u64 = 64;
    let Some((mut bench, faults, _, _directory)) = file_with_faults(engine) else { return };
    let hold = hold_next_flush(&faults);
    for index in 0..WRITES {
        let operation = bench.write_operation(index * 4096, &[1; 4096], true);
        bench.submit(operation);
    }
    wait_until("all writes reach the store", || faults.calls(OperationKind::Write) == WRITES);
    thread::sleep(A_WHILE);
    assert!(bench.try_next().is_none(), "nothing is stable while the first flush is held");
    assert_eq!(bench.context.in_flight() as u64, WRITES);
    faults.remove(hold);
    for _ in 0..WRITES {
        let completion = bench.next();
        assert_eq!(completion.result.unwrap(), Done::Nothing);
        assert!(completion.buffer.is_some());
    }
    let flushes = faults.calls(OperationKind::Flush);
    assert!((1..WRITES / 4).contains(&flushes), "{flushes} flushes for {WRITES} writes");
}

fn a_buffer_that_was_given_is_free_before_its_data_is_stable(engine: EngineKind) {
    let Some((mut bench, faults, _, _directory)) = file_with_faults(engine) else { return };
    let hold = hold_next_flush(&faults);
    let buffer = WriteBuffer::Given(bench.buffer_of(&[7; 4096]));
    let buffer = WriteSource { buffer, range: 0..4096 };
    bench.submit(Operation::Write { offset: 0, buffer, stable: true });
    wait_until("the flush begins", || faults.calls(OperationKind::Flush) == 1);
    assert_eq!(bench.pool.in_use_bytes(), 0);
    assert!(bench.try_next().is_none());
    faults.remove(hold);
    let completion = bench.next();
    assert!(completion.result.is_ok() && completion.buffer.is_none(), "{completion:?}");
    assert_eq!(bench.read(0, 4096).unwrap(), [7; 4096]);
}

#[test]
fn what_was_written_at_once_is_stable_when_it_is_committed() {
    let (mut bench, faults, _, _directory) =
        file_with_faults(EngineKind::Threads).expect("it is not refused");
    let written = |bench: &Bench, stable| {
        // A copy that was held up sends those behind it elsewhere for a while.
        let is_due = || bench.volume.fault().is_some() || bench.volume.copied_piece_bytes(512).is_some();
        wait_until("writes are copied at once", is_due);
        bench.volume.write_at_once(4096, &[1; 512], stable)
    };
    assert_eq!(written(&bench, false), Written::Done);
    assert_eq!(written(&bench, true), Written::Unflushed);
    assert_eq!((faults.calls(OperationKind::Write), faults.calls(OperationKind::Flush)), (2, 0));
    let commit = || Operation::Commit { offset: 4096, length: 512 };
    bench.run(commit()).result.unwrap();
    assert_eq!((faults.calls(OperationKind::Write), faults.calls(OperationKind::Flush)), (2, 1));
    let behind = Operation::Commit { offset: (1 << 20) - 512, length: 1024 };
    assert_eq!(class(bench.run(behind).result), ErrorClass::OutOfRange);

    assert_eq!(written(&bench, true), Written::Unflushed);
    fail_next_flush(&faults, Errno::IO);
    let failed = bench.run(commit()).result.unwrap_err();
    assert!(matches!(failed, StoreError::Flush { .. }), "{failed}");
    assert_eq!(class(bench.run(commit()).result), ErrorClass::Faulted);
    faults.clear();
    assert_eq!(written(&bench, true), Written::No);
    let memory = spec(StoreSpec::Memory { size_bytes: 1 << 20 }, EngineKind::Auto);
    assert_eq!(written(&Bench::open(&memory), true), Written::Done);
}

fn what_is_cut_off_before_its_flush_ends_has_failed(engine: EngineKind) {
    let Some((mut bench, faults, _, directory)) = file_with_faults(engine) else { return };
    let hold = hold_next_flush(&faults);
    let writes = [0, (1 << 20) - 4096].map(|offset| {
        let operation = bench.write_operation(offset, &[1; 4096], true);
        bench.submit(operation)
    });
    let path = directory.path().join("a.img");
    let is_written = || std::fs::read(&path).unwrap().ends_with(&[1; 4096]);
    wait_until("both are written", || faults.calls(OperationKind::Write) == 2 && is_written());
    let image = std::fs::File::options().write(true).open(&path).unwrap();
    image.set_len(1 << 19).unwrap();
    faults.remove(hold);
    for completion in [bench.next(), bench.next()] {
        match completion.result {
            Ok(_) => assert_eq!(completion.tag, writes[0]),
            Err(error) => assert_eq!((completion.tag, error.class()), (writes[1], ErrorClass::Medium)),
        }
    }
    assert_eq!(bench.volume.fault(), None, "the flush has not failed");
    bench.write(4096, &[1; 4096], true).unwrap();
}

#[test]
fn the_sync_engine_flushes_for_each_stable_write() {
    let Some((mut bench, faults, _, _directory)) = file_with_faults(EngineKind::Sync) else { return };
    for index in 0..5 {
        bench.write(index * 512, &[1; 512], true).unwrap();
        bench.write(index * 512, &[2; 512], false).unwrap();
    }
    assert_eq!(faults.calls(OperationKind::Flush), 5);
    let zero = Operation::Zero { offset: 0, length: 4096, unmap: true, stable: true };
    bench.run(zero).result.unwrap();
    assert_eq!(faults.calls(OperationKind::Flush), 6);
    bench.flush().unwrap();
    assert_eq!(faults.calls(OperationKind::Flush), 7);
}

fn a_flush_that_runs_already_does_not_make_a_later_write_stable(engine: EngineKind) {
    let Some((mut bench, faults, _, _directory)) = file_with_faults(engine) else { return };
    let hold = hold_next_flush(&faults);
    let flush = bench.submit(Operation::Flush);
    wait_until("the flush begins", || faults.calls(OperationKind::Flush) == 1);
    let operation = bench.write_operation(0, &[1; 512], true);
    let write = bench.submit(operation);
    wait_until("the write is done", || faults.calls(OperationKind::Write) == 1);
    thread::sleep(A_WHILE);
    faults.remove(hold);
    assert_eq!(bench.next().tag, flush);
    assert_eq!(bench.next().tag, write);
    assert_eq!(faults.calls(OperationKind::Flush), 2, "the write needs a flush of its own");
}

#[test]
fn volatile_writes_do_not_flush() {
    for engine in ENGINES {
        let Some((mut bench, faults, _, _directory)) = file_with_faults(engine) else { continue };
        bench.write(0, &[1; 4096], false).unwrap();
        bench.zero(0..4096, false).unwrap();
        assert_eq!(faults.calls(OperationKind::Flush), 0);
        bench.volume.close().unwrap();
        assert_eq!(faults.calls(OperationKind::Flush), 1, "closing flushes");
    }
}

fn a_failed_flush_fails_its_whole_group_and_faults_the_volume(engine: EngineKind) {
    const WRITES: u64 = 10;
    let Some((mut bench, faults, spec, _directory)) = file_with_faults(engine) else { return };
    bench.write(0, &[9; 512], true).unwrap();
    let hold = hold_next_flush(&faults);
    fail_next_flush(&faults, Errno::IO);
    let flushes_before = faults.calls(OperationKind::Flush);
    let writes_before = faults.calls(OperationKind::Write);
    for index in 0..WRITES {
        let operation = bench.write_operation(index * 4096, &[1; 512], true);
        bench.submit(operation);
    }
    wait_until("all writes reach the store", || faults.calls(OperationKind::Write) == writes_before + WRITES);
    faults.remove(hold);
    let errors: Vec<_> = (0..WRITES).map(|_| bench.next().result.unwrap_err()).collect();
    assert!(
        errors.iter().any(|error| matches!(error, StoreError::Flush { .. })),
        "somebody is told the reason"
    );
    assert!(errors.iter().all(|error| error.class() == ErrorClass::Faulted), "{errors:?}");

    // The rule is used up, so only the volume's memory of it keeps these from passing.
    assert_eq!(class(bench.write(0, &[1; 512], false)), ErrorClass::Faulted);
    assert_eq!(class(bench.write(0, &[1; 512], true)), ErrorClass::Faulted);
    assert_eq!(class(bench.zero(0..512, true)), ErrorClass::Faulted);
    assert_eq!(class(bench.unmap(0..512)), ErrorClass::Faulted);
    assert_eq!(class(bench.flush()), ErrorClass::Faulted);
    assert_eq!(faults.calls(OperationKind::Flush), flushes_before + 1, "never tried again");
    assert_eq!(bench.read(512, 512).unwrap(), vec![0; 512], "reads go on");
    let fault = bench.volume.fault().unwrap();
    assert_eq!(fault.class, ErrorClass::Medium);
    let error = bench.volume.close().unwrap_err();
    assert!(matches!(error, CloseError::Faulted { .. }), "{error}");
    assert!(bench.volume.close().is_err(), "it stays so");

    let mut bench = Bench::open(&spec);
    assert_eq!(bench.volume.fault(), None);
    bench.write(0, &[1; 512], true).unwrap();
    bench.volume.close().unwrap();
}

#[test]
fn a_failed_flush_faults_under_the_sync_engine_and_in_memory_too() {
    for engine in ENGINES {
        let memory = spec(StoreSpec::Memory { size_bytes: 1 << 20 }, engine);
        let (volume, faults) = Faults::open(&memory).unwrap();
        let mut bench = Bench::new(volume);
        fail_next_flush(&faults, Errno::NOSPC);
        let failed = bench.write(0, &[1; 512], true).unwrap_err();
        // What was lost may lie anywhere and be of any writer: this is no shortage of space for one write.
        assert!(matches!(failed, StoreError::Flush { .. }), "{failed}");
        assert_eq!(class(bench.write(0, &[1; 512], false)), ErrorClass::Faulted);
        assert_eq!(bench.read(0, 512).unwrap(), vec![1; 512]);
    }
}

fn a_failed_last_flush_is_told_by_close(engine: EngineKind) {
    let Some((mut bench, faults, _, _directory)) = file_with_faults(engine) else { return };
    bench.write(0, &[1; 512], false).unwrap();
    fail_next_flush(&faults, Errno::IO);
    let error = bench.volume.close().unwrap_err();
    assert!(matches!(error, CloseError::Flush { .. }), "{error}");
    assert!(error.to_string().contains("volume test"), "{error}");
    assert!(matches!(bench.volume.close(), Err(CloseError::Faulted { .. })));
}

fn a_failed_write_fails_alone(engine: EngineKind) {
    let Some((mut bench, faults, _, _directory)) = file_with_faults(engine) else { return };
    let bad = Rule::new(OperationKind::Write, When::Every, Effect::Fail(Errno::IO)).within(4096..8192);
    faults.add(bad);
    let full = Rule::new(OperationKind::Write, When::Nth(2), Effect::Fail(Errno::NOSPC)).within(0..512);
    faults.add(full);
    bench.write(0, &[1; 4096], true).unwrap();
    assert_eq!(class(bench.write(3584, &[1; 1024], true)), ErrorClass::Medium);
    assert_eq!(class(bench.write(0, &[2; 512], false)), ErrorClass::NoSpace);
    bench.write(0, &[3; 512], true).unwrap();
    bench.write(8192, &[1; 512], true).unwrap();
    assert_eq!(bench.volume.fault(), None);
    assert_eq!(bench.read(0, 512).unwrap(), vec![3; 512]);
    assert_eq!(bench.read(3584, 512).unwrap(), vec![1; 512], "a failed write did not reach the store");
    bench.volume.close().unwrap();
}

fn many_threads_write_stably_and_all_of_it_is_there(engine: EngineKind) {
    const THREADS: u64 = 4;
    const EACH: u64 = 50;
    let Some((bench, faults, spec, _directory)) = file_with_faults(engine) else { return };
    let writers: Vec<_> = (0..THREADS)
        .map(|thread| {
            let mut bench = Bench::new(Arc::clone(&bench.volume));
            thread::spawn(move || {
                for index in 0..EACH {
                    let at = (index * THREADS + thread) * 512;
                    bench.write(at, &[(at / 512 % 255) as u8 + 1; 512], true).unwrap();
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    assert!(faults.calls(OperationKind::Flush) <= THREADS * EACH);
    bench.volume.close().unwrap();
    let mut bench = Bench::open(&spec);
    for index in 0..THREADS * EACH {
        assert_eq!(bench.read(index * 512, 512).unwrap(), vec![(index % 255) as u8 + 1; 512]);
    }
}
