//! What the tests of volumes share: a way to do one operation and wait for it, stores of every kind, loop devices.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunette_block::fault::{Effect, Errno, Faults, Rule, When};
use lunette_block::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longer than anything here takes, shorter than a test run that hangs.
const PATIENCE_S: i64 = 60;

/// A specification with what most tests do not care about filled in.
pub(crate) fn spec(store: StoreSpec, engine: EngineKind) -> VolumeSpec {
    VolumeSpec { engine, ..VolumeSpec::new("test", store) }
}

pub(crate) fn file_spec(path: &Path, create_bytes: Option<u64>) -> VolumeSpec {
    spec(StoreSpec::File { path: path.to_owned(), create_bytes }, EngineKind::Threads)
}

/// Every engine that can be asked for by name.
pub(crate) const ENGINES: [EngineKind; 4] =
    [EngineKind::Sync, EngineKind::Threads, EngineKind::Direct, EngineKind::Uring];

/// Opens a volume. `None`, recorded as a skip, where this system refuses what the engine needs.
pub(crate) fn open_or_skip(spec: &VolumeSpec) -> Option<Arc<Volume>> {
    skip_refused(Volume::open(spec))
}

/// As [`open_or_skip`], for what was opened in another way.
pub(crate) fn skip_refused<T>(opened: Result<T, OpenError>) -> Option<T> {
    match opened {
        Ok(opened) => Some(opened),
        Err(error @ (OpenError::NoDirect { .. } | OpenError::NoUring { .. })) => {
            lunette_skip::record_lacking(&error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn class(result: Result<Done, StoreError>) -> ErrorClass {
    result.expect_err("the operation should have failed").class()
}

/// One thread's hands on one volume.
pub(crate) struct Bench {
    pub(crate) volume: Arc<Volume>,
    pub(crate) context: IoContext,
    pub(crate) pool: BufferPool,
    finished: Vec<IoCompletion>,
    tag: u64,
}

impl Bench {
    pub(crate) fn new(volume: Arc<Volume>) -> Self {
        let context = IoContext::new().expect("an event descriptor");
        Self { volume, context, pool: BufferPool::new(256 << 20), finished: Vec::new(), tag: 0 }
    }

    pub(crate) fn open(spec: &VolumeSpec) -> Self {
        Self::new(Volume::open(spec).expect("the volume opens"))
    }

    /// Submits and begins an operation, as the only one of its turn.
    pub(crate) fn submit(&mut self, operation: Operation) -> u64 {
        let tag = self.gather(operation);
        self.context.complete(&mut self.finished);
        tag
    }

    /// Submits an operation that begins with the next [`Bench::try_next`].
    pub(crate) fn gather(&mut self, operation: Operation) -> u64 {
        self.tag += 1;
        self.context.submit(&self.volume, self.tag, operation);
        self.tag
    }

    /// What is finished without waiting.
    pub(crate) fn try_next(&mut self) -> Option<IoCompletion> {
        self.context.complete(&mut self.finished);
        (!self.finished.is_empty()).then(|| self.finished.remove(0))
    }

    pub(crate) fn next(&mut self) -> IoCompletion {
        loop {
            if let Some(completion) = self.try_next() {
                return completion;
            }
            let mut fds = [PollFd::new(&self.context, PollFlags::IN)];
            let ready = poll(&mut fds, Some(&Timespec { tv_sec: PATIENCE_S, tv_nsec: 0 }));
            // io_uring interrupts a thread that waits elsewhere to let it finish an operation.
            let moved = matches!(ready, Ok(1) | Err(Errno::INTR));
            assert!(moved, "{ready:?}: {} operations never finished", self.context.in_flight());
        }
    }

    /// Does one operation while nothing else is in flight.
    pub(crate) fn run(&mut self, operation: Operation) -> IoCompletion {
        let tag = self.submit(operation);
        let completion = self.next();
        assert_eq!(completion.tag, tag);
        assert_eq!(self.context.in_flight(), 0);
        completion
    }

    pub(crate) fn buffer_of(&self, data: &[u8]) -> Buffer {
        let mut buffer = self.pool.allocate(data.len()).expect("within the pool's limit");
        buffer.copy_from_slice(data);
        buffer
    }

    pub(crate) fn write_operation(&self, offset: u64, data: &[u8], stable: bool) -> Operation {
        let buffer = self.buffer_of(data).into();
        Operation::Write { offset, buffer: WriteSource { buffer, range: 0..data.len() }, stable }
    }

    pub(crate) fn write_atomic_operation(&self, offset: u64, data: &[u8], stable: bool) -> Operation {
        let buffer = self.buffer_of(data).into();
        Operation::WriteAtomic { offset, buffer: WriteSource { buffer, range: 0..data.len() }, stable }
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8], stable: bool) -> Result<Done, StoreError> {
        let operation = self.write_operation(offset, data, stable);
        let completion = self.run(operation);
        assert_eq!(completion.buffer.expect("an owned buffer comes back").len(), data.len());
        completion.result
    }

    pub(crate) fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, StoreError> {
        let mut buffer = self.pool.allocate(len).expect("within the pool's limit");
        // Whatever a read leaves out must show.
        buffer.fill(0xee);
        let completion = self.run(Operation::Read { offset, buffer });
        let buffer = completion.buffer.expect("a read gives its buffer back");
        completion.result.map(|_| buffer.to_vec())
    }

    pub(crate) fn flush(&mut self) -> Result<Done, StoreError> {
        self.run(Operation::Flush).result
    }

    pub(crate) fn zero(&mut self, range: Range<u64>, unmap: bool) -> Result<Done, StoreError> {
        let (offset, length) = (range.start, range.end - range.start);
        self.run(Operation::Zero { offset, length, unmap, stable: false }).result
    }

    pub(crate) fn unmap(&mut self, range: Range<u64>) -> Result<Done, StoreError> {
        let (offset, length) = (range.start, range.end - range.start);
        self.run(Operation::Unmap { offset, length }).result
    }

    /// All extents of a range, and that they cover it in order.
    pub(crate) fn extents(&mut self, range: Range<u64>) -> Vec<Extent> {
        let mut all = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let operation = Operation::Extents { offset: at, length: range.end - at };
            let Ok(Done::Extents(extents)) = self.run(operation).result else { panic!("no extents") };
            assert!((1..=EXTENTS_MAX).contains(&extents.len()));
            for extent in extents {
                assert_eq!(extent.offset, at, "a gap or an overlap");
                assert!(extent.length > 0);
                at += extent.length;
                all.push(extent);
            }
        }
        assert_eq!(at, range.end);
        all
    }
}

/// Waits for something that other threads bring about.
pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(PATIENCE_S.unsigned_abs());
    while !condition() {
        assert!(Instant::now() < deadline, "never came: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Opens what this process may have had open just now. A program that another test starts has our descriptors, and with them what we
/// claimed, from its fork until it runs.
pub(crate) fn open_again(spec: &VolumeSpec) -> Arc<Volume> {
    let deadline = Instant::now() + Duration::from_secs(PATIENCE_S.unsigned_abs());
    loop {
        match Volume::open(spec) {
            Err(OpenError::InUse { .. }) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => return opened.expect("it opens"),
        }
    }
}

/// A memory volume behind the pool of threads, and the hand on its faults.
pub(crate) fn memory_with_faults() -> (Bench, Faults) {
    let memory = spec(StoreSpec::Memory { size_bytes: 16 << 20 }, EngineKind::Threads);
    let (volume, faults) = Faults::open(&memory).expect("it opens");
    (Bench::new(volume), faults)
}

/// A rule that makes the next flush wait.
pub(crate) fn hold_next_flush(faults: &Faults) -> fault::RuleId {
    faults.add(Rule::new(OperationKind::Flush, When::Nth(1), Effect::Hold))
}

/// A rule that makes the next flush fail.
pub(crate) fn fail_next_flush(faults: &Faults, errno: Errno) -> fault::RuleId {
    faults.add(Rule::new(OperationKind::Flush, When::First(1), Effect::Fail(errno)))
}

/// A loop device on an image, detached at the end.
pub(crate) struct LoopDevice {
    pub(crate) path: PathBuf,
}

impl LoopDevice {
    /// `None`, recorded as a skip, where loop devices cannot be had: they take root and a kernel with
    /// the loop driver.
    pub(crate) fn attach(image: &Path, options: &[&str]) -> Option<Self> {
        let output = Command::new("losetup").args(options).args(["--find", "--show"]).arg(image).output();
        match output {
            Ok(output) if output.status.success() => {
                let path = String::from_utf8_lossy(&output.stdout).trim().into();
                Some(Self { path })
            }
            Ok(output) => {
                lunette_skip::record_lacking(&format!(
                    "no loop device: {}",
                    String::from_utf8_lossy(&output.stderr).trim()
                ));
                None
            }
            Err(error) => {
                lunette_skip::record_lacking(&format!("no losetup: {error}"));
                None
            }
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("--detach").arg(&self.path).status();
        if !detached.is_ok_and(|status| status.success()) {
            eprintln!("{} is still attached", self.path.display());
        }
    }
}

/// A file system mounted for one test.
pub(crate) struct Mount {
    pub(crate) path: PathBuf,
}

impl Mount {
    /// `None`, recorded as a skip, where nothing can be mounted: it takes root.
    pub(crate) fn new(arguments: &[&str], path: &Path) -> Option<Self> {
        let output = Command::new("mount").args(arguments).arg(path).output();
        match output {
            Ok(output) if output.status.success() => Some(Self { path: path.to_owned() }),
            Ok(output) => {
                lunette_skip::record_lacking(&format!(
                    "no mount: {}",
                    String::from_utf8_lossy(&output.stderr).trim()
                ));
                None
            }
            Err(error) => {
                lunette_skip::record_lacking(&format!("no mount: {error}"));
                None
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: a process that another test is just starting may hold its descriptors for a moment.
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.path).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} is still mounted", self.path.display());
        }
    }
}
