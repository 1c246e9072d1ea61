//! The fault layer: a store that fails, waits or holds calls as a test tells it to, and counts them.
//!
//! For tests of everything above a store, and for chaos runs. It never changes data: a call that is made to fail does
//! not reach the store below.
//!
//! ```
//! use lunette_block::fault::{Effect, Errno, Faults, Rule, When};
//! use lunette_block::*;
//!
//! let spec = VolumeSpec {
//!     engine: EngineKind::Sync,
//!     ..VolumeSpec::new("frail", StoreSpec::Memory { size_bytes: 1 << 20 })
//! };
//! let (volume, faults) = Faults::open(&spec)?;
//! faults.add(Rule::new(OperationKind::Flush, When::First(1), Effect::Fail(Errno::IO)));
//! let mut context = IoContext::new()?;
//! context.submit(&volume, 0, Operation::Flush);
//! let mut done = Vec::new();
//! context.complete(&mut done);
//! assert_eq!(done[0].result.as_ref().unwrap_err().class(), ErrorClass::Faulted);
//! assert!(volume.fault().is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

pub use rustix::io::Errno;

use crate::engine::operation::OperationKind;
use crate::error::OpenError;
use crate::spec::VolumeSpec;
use crate::store::{Astray, Extent, Features, RawFile, Space, Store};
use crate::volume::Volume;

/// Which of the calls that a rule is about it applies to, counted from when the rule was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// All of them.
    Every,
    /// Only this one; 1 is the first.
    Nth(u64),
    /// The first so many.
    First(u64),
}

impl When {
    fn applies(self, call: u64) -> bool {
        match self {
            Self::Every => true,
            Self::Nth(nth) => call == nth,
            Self::First(count) => call <= count,
        }
    }
}

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It fails with this error and does not reach the store: `Errno::IO` for a bad sector, `Errno::NOSPC` for a
    /// full file system.
    Fail(Errno),
    /// It takes this much longer.
    Delay(Duration),
    /// It waits until the rule is removed. Under the `sync` engine that is the submitting thread.
    Hold,
}

/// What to do to which calls. Several rules may meet one call: it waits for all that make it wait, then fails if one
/// makes it fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    kind: OperationKind,
    when: When,
    effect: Effect,
    range: Option<Range<u64>>,
}

impl Rule {
    /// A rule about calls of one kind anywhere on the volume. A flush is also what makes a stable write stable.
    pub fn new(kind: OperationKind, when: When, effect: Effect) -> Self {
        Self { kind, when, effect, range: None }
    }

    /// Only calls that touch a byte of `range` count and are affected. Flushes touch none.
    #[must_use]
    pub fn within(self, range: Range<u64>) -> Self {
        Self { range: Some(range), ..self }
    }

    fn is_about(&self, kind: OperationKind, offset: u64, length: u64) -> bool {
        let touches = |range: &Range<u64>| offset < range.end && range.start < offset.saturating_add(length);
        self.kind == kind && self.range.as_ref().is_none_or(touches)
    }
}

/// Names a rule, to remove it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RuleId(u64);

/// The hand on the layer. Clones hold the same one; rules may come and go while the volume is used.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    table: Arc<Table>,
}

#[derive(Debug, Default)]
struct Table {
    rules: Mutex<Rules>,
    /// How many rules there are, so that a call without any costs one load.
    rule_count: AtomicUsize,
    removed: Condvar,
    calls: [AtomicU64; OperationKind::ALL.len()],
}

#[derive(Debug, Default)]
struct Rules {
    next_id: u64,
    active: Vec<Active>,
}

#[derive(Debug)]
struct Active {
    id: RuleId,
    rule: Rule,
    calls: u64,
}

impl Faults {
    /// A layer without rules.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a volume with this layer on its store.
    ///
    /// # Errors
    ///
    /// As [`Volume::open`].
    pub fn open(spec: &VolumeSpec) -> Result<(Arc<Volume>, Self), OpenError> {
        let faults = Self::new();
        let volume = Volume::open_layered(spec, |store| faults.wrap(store))?;
        Ok((volume, faults))
    }

    /// The layer around a store.
    pub fn wrap(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(FaultStore { below: store, table: Arc::clone(&self.table) })
    }

    /// Adds a rule; it applies to calls that begin from now on.
    pub fn add(&self, rule: Rule) -> RuleId {
        let mut rules = self.table.lock();
        let id = RuleId(rules.next_id);
        rules.next_id += 1;
        rules.active.push(Active { id, rule, calls: 0 });
        self.table.rule_count.store(rules.active.len(), Ordering::Release);
        id
    }

    /// Removes a rule and lets go of the calls that it holds.
    pub fn remove(&self, id: RuleId) {
        self.retain(|active| active.id != id);
    }

    /// Removes all rules.
    pub fn clear(&self) {
        self.retain(|_| false);
    }

    fn retain(&self, keep: impl FnMut(&Active) -> bool) {
        let mut rules = self.table.lock();
        rules.active.retain(keep);
        self.table.rule_count.store(rules.active.len(), Ordering::Release);
        drop(rules);
        self.table.removed.notify_all();
    }

    /// How many calls of this kind were made to the layer, failed ones included. Reads that the page cache answered
    /// on the submitting thread are not counted, nor are reads and writes that io_uring did, which it does while
    /// there is no rule.
    pub fn calls(&self, kind: OperationKind) -> u64 {
        self.table.calls[kind as usize].load(Ordering::Acquire)
    }
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn any_rule(&self) -> bool {
        self.rule_count.load(Ordering::Acquire) > 0
    }

    fn any_rule_that_waits(&self) -> bool {
        let waits = |active: &Active| matches!(active.rule.effect, Effect::Delay(_) | Effect::Hold);
        self.any_rule() && self.lock().active.iter().any(waits)
    }

    /// Counts a call and lets the rules have their way with it.
    fn meet(&self, kind: OperationKind, offset: u64, length: u64) -> io::Result<()> {
        self.calls[kind as usize].fetch_add(1, Ordering::AcqRel);
        if !self.any_rule() {
            return Ok(());
        }
        let mut delay = Duration::ZERO;
        let mut failure = None;
        let mut holds = Vec::new();
        let mut rules = self.lock();
        for active in rules.active.iter_mut().filter(|active| active.rule.is_about(kind, offset, length)) {
            active.calls += 1;
            if !active.rule.when.applies(active.calls) {
                continue;
            }
            match active.rule.effect {
                Effect::Fail(errno) => failure = failure.or(Some(errno)),
                Effect::Delay(by) => delay = delay.saturating_add(by),
                Effect::Hold => holds.push(active.id),
            }
        }
        let held = |rules: &Rules| rules.active.iter().any(|active| holds.contains(&active.id));
        while held(&rules) {
            rules = self.removed.wait(rules).unwrap_or_else(PoisonError::into_inner);
        }
        drop(rules);
        if !delay.is_zero() {
            thread::sleep(delay);
        }
        failure.map_or(Ok(()), |errno| Err(errno.into()))
    }
}

#[derive(Debug)]
struct FaultStore {
    below: Arc<dyn Store>,
    table: Arc<Table>,
}

impl Store for FaultStore {
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn present_size_bytes(&self) -> io::Result<u64> {
        self.below.present_size_bytes()
    }

    fn space(&self) -> io::Result<Option<Space>> {
        self.below.space()
    }

    fn astray(&self) -> Option<Astray> {
        self.below.astray()
    }

    fn features(&self) -> Features {
        self.below.features()
    }

    fn describe(&self) -> String {
        format!("{}, with faults on purpose", self.below.describe())
    }

    fn in_memory(&self) -> bool {
        // With rules a call may wait, and a flush may fail.
        self.below.in_memory() && !self.table.any_rule()
    }

    fn clears_memory(&self) -> bool {
        self.below.clears_memory()
    }

    fn buffers_writes(&self) -> bool {
        self.below.buffers_writes() && !self.table.any_rule()
    }

    fn raw(&self) -> Option<RawFile<'_>> {
        // Rules are met by read_at and write_at.
        if self.table.any_rule() { None } else { self.below.raw() }
    }

    fn is_slow(&self) -> bool {
        self.table.any_rule_that_waits() || self.below.is_slow()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.table.meet(OperationKind::Read, offset, buffer.len() as u64)?;
        self.below.read_at(offset, buffer)
    }

    fn read_cached(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        // Rules are met by read_at, which may wait.
        if self.table.any_rule() { Ok(0) } else { self.below.read_cached(offset, buffer) }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.table.meet(OperationKind::Write, offset, data.len() as u64)?;
        self.below.write_at(offset, data)
    }

    fn write_atomic_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.table.meet(OperationKind::WriteAtomic, offset, data.len() as u64)?;
        self.below.write_atomic_at(offset, data)
    }

    fn end_bytes(&self) -> io::Result<u64> {
        self.below.end_bytes()
    }

    fn check_end(&self, end: u64) -> io::Result<()> {
        self.below.check_end(end)
    }

    fn flush(&self) -> io::Result<()> {
        self.table.meet(OperationKind::Flush, 0, 0)?;
        self.below.flush()
    }

    fn zero(&self, offset: u64, length: u64, unmap: bool) -> io::Result<()> {
        self.table.meet(OperationKind::Zero, offset, length)?;
        self.below.zero(offset, length, unmap)
    }

    fn unmap(&self, offset: u64, length: u64) -> io::Result<()> {
        self.table.meet(OperationKind::Unmap, offset, length)?;
        self.below.unmap(offset, length)
    }

    fn reserve(&self, offset: u64, length: u64) -> io::Result<()> {
        self.below.reserve(offset, length)
    }

    fn prefetch(&self, offset: u64, length: u64) -> io::Result<()> {
        self.table.meet(OperationKind::Prefetch, offset, length)?;
        self.below.prefetch(offset, length)
    }

    fn extents(&self, offset: u64, length: u64) -> io::Result<Vec<Extent>> {
        self.table.meet(OperationKind::Extents, offset, length)?;
        self.below.extents(offset, length)
    }

    fn release(&self) {
        self.below.release();
    }
}
