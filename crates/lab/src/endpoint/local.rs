//! A file, a block device or memory of this machine: the ceiling that a target over a network is held against, whose writes end when
//! the target's do.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunette_block::{Buffer, BufferPool, IoCompletion, IoContext, Operation as Io, Volume, WriteSource};
use lunette_workload::{Kind, Operation};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use super::{End, Ended, Endpoint, Fault, LOOK_INTERVAL, Moments};
use crate::LabError;

/// What all buffers of one worker have at most.
const POOL_BYTES: usize = 1 << 30;
/// The tag of a flush; slots are 32 bits.
const FLUSH_TAG: u64 = u64::MAX;

/// When a write to a disk of this machine has ended; the names are those of a target's `write=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WriteMode {
    /// When it is stable: a flush that began behind it has ended. Those that wait at once share one.
    #[default]
    Through,
    /// When it is in the system's cache, or the device's. Nothing is flushed while it is measured.
    Back,
}

impl fmt::Display for WriteMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Through => "through",
            Self::Back => "back",
        })
    }
}

/// See the module's documentation.
pub(crate) struct Local {
    volume: Arc<Volume>,
    write: WriteMode,
    is_filling: bool,
    context: IoContext,
    pool: BufferPool,
    start: Instant,
    done: Vec<IoCompletion>,
    /// When each slot's operation was submitted.
    queued: Vec<Duration>,
}

impl Local {
    pub(crate) fn open(volume: &Arc<Volume>, write: WriteMode) -> Result<Self, LabError> {
        let context = IoContext::new().map_err(LabError::system("descriptors for a volume"))?;
        Ok(Self {
            volume: Arc::clone(volume),
            write,
            is_filling: false,
            context,
            pool: BufferPool::new(POOL_BYTES),
            start: Instant::now(),
            done: Vec::new(),
            queued: Vec::new(),
        })
    }

    /// Waits until something may have ended.
    fn wait(&self, timeout: Duration) -> Result<(), LabError> {
        let timeout = Timespec::try_from(timeout).ok();
        let mut watched = [PollFd::from_borrowed_fd(self.context.as_fd(), PollFlags::IN)];
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(LabError::system("waiting for a volume")(error.into())),
        }
    }
}

impl Endpoint for Local {
    type Buffer = Buffer;

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn fills(&mut self, is_filling: bool) {
        self.is_filling = is_filling;
    }

    fn buffer(&mut self, length_bytes: u32) -> Result<Buffer, LabError> {
        self.pool.allocate(length_bytes as usize).ok_or_else(|| {
            LabError::Plan(format!(
                "{length_bytes} bytes for each of so many operations are more than there is"
            ))
        })
    }

    fn recycle(&mut self, buffer: Buffer) {
        // To the pool.
        drop(buffer);
    }

    fn submit(&mut self, slot: u32, operation: &Operation, buffer: Buffer) {
        if self.queued.len() <= slot as usize {
            self.queued.resize(slot as usize + 1, Duration::ZERO);
        }
        self.queued[slot as usize] = self.now();
        let offset = operation.offset_bytes;
        let io = match operation.kind {
            Kind::Read => Io::Read { offset, buffer },
            Kind::Write => {
                let range = 0..operation.length_bytes as usize;
                let stable = self.write == WriteMode::Through && !self.is_filling;
                Io::Write { offset, buffer: WriteSource { buffer: buffer.into(), range }, stable }
            }
        };
        self.context.submit(&self.volume, slot.into(), io);
    }

    fn poll(&mut self, timeout: Duration, ended: &mut Vec<Ended<Buffer>>) -> Result<(), LabError> {
        self.context.complete(&mut self.done);
        if self.done.is_empty() {
            self.wait(timeout)?;
            self.context.complete(&mut self.done);
        }
        let now = self.now();
        for completion in self.done.drain(..) {
            // Tags are slots here.
            let slot = completion.tag as u32;
            let refused = |error: lunette_block::StoreError| End::Failed(Fault::Refused(error.to_string()));
            let end = completion.result.map_or_else(refused, |_| End::Good);
            let queued = self.queued.get(slot as usize).copied().unwrap_or_default();
            let moments = Moments { queued, done: now, ..Moments::default() };
            ended.push(Ended { slot, end, buffer: completion.buffer, moments });
        }
        Ok(())
    }

    fn flush_unless(&mut self, stops: &dyn Fn() -> bool) -> Result<bool, LabError> {
        self.context.submit(&self.volume, FLUSH_TAG, Io::Flush);
        loop {
            self.context.complete(&mut self.done);
            let at = self.done.iter().position(|completion| completion.tag == FLUSH_TAG);
            if let Some(completion) = at.map(|at| self.done.swap_remove(at)) {
                let failed = |error: lunette_block::StoreError| LabError::NotReady(error.to_string());
                return completion.result.map(|_| true).map_err(failed);
            }
            if stops() {
                return Ok(false);
            }
            self.wait(LOOK_INTERVAL)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_block::fault::{Effect, Faults, Rule, When};
    use lunette_block::{EngineKind, IdentityOverride, OperationKind, StoreSpec, VolumeSpec};
    use rustix::io::Errno;

    #[test]
    fn a_flush_does_not_take_the_end_of_another_operation_for_its_own() {
        let spec = VolumeSpec {
            engine: EngineKind::Threads,
            identity: IdentityOverride { serial: Some("flushed".into()) },
            ..VolumeSpec::new("flushed", StoreSpec::Memory { size_bytes: 1 << 20 })
        };
        let (volume, faults) = Faults::open(&spec).expect("a volume");
        faults.add(Rule::new(OperationKind::Flush, When::Every, Effect::Delay(Duration::from_millis(20))));
        let mut local = Local::open(&volume, WriteMode::Back).expect("an endpoint");
        let operation = Operation { kind: Kind::Write, offset_bytes: 0, length_bytes: 512 };
        let buffer = local.buffer(512).expect("a buffer");
        local.submit(3, &operation, buffer);
        local.flush().expect("flushed");
        let mut ended = Vec::new();
        while ended.is_empty() {
            local.poll(Duration::from_secs(1), &mut ended).expect("polled");
        }
        assert_eq!(ended.iter().map(|ended| ended.slot).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_flush_that_takes_long_keeps_nobody_from_stopping() {
        let spec = VolumeSpec {
            engine: EngineKind::Threads,
            identity: IdentityOverride { serial: Some("stopped".into()) },
            ..VolumeSpec::new("stopped", StoreSpec::Memory { size_bytes: 1 << 20 })
        };
        let (volume, faults) = Faults::open(&spec).expect("a volume");
        faults.add(Rule::new(OperationKind::Flush, When::Every, Effect::Delay(Duration::from_millis(700))));
        let mut local = Local::open(&volume, WriteMode::Back).expect("an endpoint");
        let looks = std::cell::Cell::new(0);
        let stops = || looks.replace(looks.get() + 1) == 2;
        assert_eq!(local.flush_unless(&stops).ok(), Some(false));
    }

    #[test]
    fn what_fills_a_disk_need_not_be_stable_write_by_write() {
        let spec = VolumeSpec {
            engine: EngineKind::Threads,
            identity: IdentityOverride { serial: Some("filled".into()) },
            ..VolumeSpec::new("filled", StoreSpec::Memory { size_bytes: 1 << 20 })
        };
        let (volume, faults) = Faults::open(&spec).expect("a volume");
        // Only who waits for a flush is told.
        faults.add(Rule::new(OperationKind::Flush, When::Every, Effect::Fail(Errno::IO)));
        let mut local = Local::open(&volume, WriteMode::Through).expect("an endpoint");
        let operation = Operation { kind: Kind::Write, offset_bytes: 0, length_bytes: 512 };
        let mut ends_well = |is_filling| {
            local.fills(is_filling);
            let buffer = local.buffer(512).expect("a buffer");
            local.submit(0, &operation, buffer);
            let mut ended = Vec::new();
            while ended.is_empty() {
                local.poll(Duration::from_secs(1), &mut ended).expect("polled");
            }
            matches!(ended[0].end, End::Good)
        };
        assert_eq!([ends_well(true), ends_well(false)], [true, false]);
    }
}
