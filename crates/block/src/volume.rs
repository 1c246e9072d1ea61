//! A volume: a store with a name, an identity, an engine and a durability contract.
//!
//! Not here: which thread does what (`engine`), and when data is stable (`flush`).

use std::fmt;
use std::io;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::buffer::Buffer;
use crate::cached::CachedRange;
use crate::engine::choice::EngineChoice;
use crate::engine::operation::{Done, Operation, OperationKind};
use crate::engine::{INLINE_BYTES_MAX, Pace, Share};
use crate::error::{CloseError, ErrorClass, OpenError, StoreError};
use crate::flush::{Durability, Fault};
use crate::identity::VolumeIdentity;
use crate::lent::LentRange;
use crate::log::LogLimiter;
use crate::size;
use crate::spec::{EngineKind, Provisioning, StoreSpec, VolumeSpec};
use crate::store::{self, Astray, Features, Opened, Space, Store};
use crate::uncopied::Uncopied;

/// An open volume. Operations go through an [`crate::IoContext`].
#[derive(Debug)]
pub struct Volume {
    name: String,
    read_only: bool,
    provisioning: Provisioning,
    /// The size that the operator has given, which the next start holds the image against.
    given_bytes: Option<u64>,
    engine: EngineChoice,
    identity: VolumeIdentity,
    block_length_bytes: u32,
    /// The same with the protection information, if there is any: what the size is a multiple of.
    stored_block_bytes: u32,
    /// What operations are held against; see [`Volume::look_at_size`].
    size_bytes: AtomicU64,
    /// The log tells that the store's present size could not be taken.
    size_is_unknown: AtomicBool,
    features: Features,
    store: Arc<dyn Store>,
    durability: Arc<Durability>,
    closed: AtomicBool,
    share: Share,
    pace: Pace,
    /// Whether cached ranges are offered.
    uncopied: Uncopied,
    errors: LogLimiter,
    /// What the log tells of its image, or what was found when it was closed.
    astray: Mutex<Option<Astray>>,
}

/// What one blocking execution of an operation left.
pub(crate) struct Executed {
    pub(crate) result: Result<Done, StoreError>,
    pub(crate) buffer: Option<Buffer>,
    /// The operation went well so far and is finished by the next flush: the bytes that it has changed.
    pub(crate) to_flush: Option<Range<u64>>,
}

impl Volume {
    /// Opens, and if asked for creates, what the specification names.
    ///
    /// # Errors
    ///
    /// Each [`OpenError`] is a sentence for the user. Nothing is changed then, but for an identity that may already
    /// have been stored.
    pub fn open(spec: &VolumeSpec) -> Result<Arc<Self>, OpenError> {
        Self::open_layered(spec, |store| store)
    }

    /// Opens a volume with layers between its store and its engine. A layer must keep the sizes.
    ///
    /// # Errors
    ///
    /// As [`Volume::open`].
    pub fn open_layered(
        spec: &VolumeSpec,
        layer: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>,
    ) -> Result<Arc<Self>, OpenError> {
        let Opened { store, identity, engine } = store::open(spec)?;
        let store = layer(store);
        let mut features = store.features();
        features.unmap &= spec.provisioning == Provisioning::Thin;
        features.reserves &= features.unmap && !spec.read_only;
        // That it is thin stays true of a volume that is not to be written: it is seen in what is read.
        if spec.read_only {
            features.write_zeroes = false;
            features.atomic_writes = None;
        }
        tracing::info!(
            volume = %spec.name, store = %store.describe(), size_bytes = store.size_bytes(),
            read_only = spec.read_only, engine = %engine.kind, why = engine.reason, serial = %identity.serial, "opened"
        );
        Ok(Arc::new(Self {
            name: spec.name.clone(),
            read_only: spec.read_only,
            provisioning: spec.provisioning,
            given_bytes: match spec.store {
                StoreSpec::File { create_bytes, .. } => create_bytes,
                _ => None,
            },
            engine,
            identity,
            block_length_bytes: spec.block_length_bytes,
            stored_block_bytes: spec.stored_block_bytes(),
            size_bytes: AtomicU64::new(store.size_bytes()),
            size_is_unknown: AtomicBool::new(false),
            features,
            durability: Arc::new(Durability::new(&spec.name, Arc::clone(&store))),
            store,
            closed: AtomicBool::new(false),
            share: Share::default(),
            pace: Pace::new(),
            uncopied: Uncopied::default(),
            errors: LogLimiter::default(),
            astray: Mutex::default(),
        }))
    }

    /// The name in logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The size in bytes, as it was last looked at.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }

    /// So many bytes of data, whole blocks, as operations count them: with the protection information.
    #[inline]
    pub fn stored_bytes(&self, data_bytes: u64) -> u64 {
        if self.stored_block_bytes == self.block_length_bytes {
            return data_bytes;
        }
        data_bytes / u64::from(self.block_length_bytes) * u64::from(self.stored_block_bytes)
    }

    /// So many bytes, whole blocks, without the protection information: what [`Self::stored_bytes`] was told.
    pub fn data_bytes(&self, stored_bytes: u64) -> u64 {
        stored_bytes / u64::from(self.stored_block_bytes) * u64::from(self.block_length_bytes)
    }

    /// Looks whether the image or device below was enlarged or cut, and takes its present size for its own, in whole blocks; that
    /// size, if it is another one. A thick volume is enlarged when there is space for all of it. A store that has less than a
    /// block left, or does not answer, is broken and not cut: the size stays, and operations tell, and the log once. Call it now and
    /// then from one thread, which may wait for the file system.
    pub fn look_at_size(&self) -> Option<u64> {
        if self.closed.load(Ordering::Acquire) {
            return None;
        }
        let present_bytes = match shielded(|| self.store.present_size_bytes()) {
            Ok(bytes) => bytes.min(store::SIZE_BYTES_MAX),
            Err(error) => {
                if !self.size_is_unknown.swap(true, Ordering::Relaxed) {
                    let size_bytes = self.size_bytes();
                    tracing::warn!(volume = %self.name, size_bytes, %error, "the present size cannot be taken; the volume keeps its own");
                }
                return None;
            }
        };
        self.size_is_unknown.store(false, Ordering::Relaxed);
        let present_bytes = present_bytes - present_bytes % u64::from(self.stored_block_bytes);
        let before_bytes = self.size_bytes();
        if present_bytes == 0 || present_bytes == before_bytes {
            return None;
        }
        if self.provisioning == Provisioning::Thick && !self.read_only && present_bytes > before_bytes {
            let length = present_bytes - before_bytes;
            if let Err(error) = shielded(|| self.store.reserve(before_bytes, length)) {
                if self.errors.admit(Instant::now()).is_some() {
                    let volume = &self.name;
                    tracing::warn!(%volume, present_bytes, %error, "no space to enlarge the volume, which is thick");
                }
                return None;
            }
        }
        self.size_bytes.store(present_bytes, Ordering::Relaxed);
        self.uncopied.begin_anew();
        if present_bytes < before_bytes {
            tracing::warn!(
                volume = %self.name, before_bytes, present_bytes, "the volume was cut; what lay behind is lost"
            );
        } else {
            tracing::info!(volume = %self.name, before_bytes, present_bytes, "the volume was enlarged");
        }
        let data_bytes = self.data_bytes(present_bytes);
        if let Some(given_bytes) = self.given_bytes.filter(|given_bytes| *given_bytes != data_bytes) {
            let (given, present) = (size::option(given_bytes), size::option(data_bytes));
            tracing::warn!(
                volume = %self.name,
                "size={given} is no longer the image's: the next start refuses it; set size={present} or leave it out"
            );
        }
        Some(present_bytes)
    }

    /// Looks whether the path of an image still leads to it, and tells the log when that has changed: whoever removes or replaces
    /// an image that is served can still save its data. Call it now and then from one thread, which may wait for the file system.
    pub fn look_at_name(&self) {
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        let found = self.find_astray();
        let mut told = self.astray.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *told, found.clone());
        let Some(found) = found else {
            if let Some(before) = before {
                tracing::info!(volume = %self.name, "{} leads to the file that is served again", before.path.display());
            }
            return;
        };
        if before.is_some_and(|before| before.is_nameless == found.is_nameless) {
            return;
        }
        let open_at = found.open_at.display();
        if found.is_nameless && !self.read_only {
            tracing::error!(
                volume = %self.name,
                "{found}; to save it, have its initiators log out, and copy it before you end the target: \
                 cp --preserve=mode,ownership,xattr {open_at} PATH"
            );
        } else {
            tracing::warn!(
                volume = %self.name,
                "{found}; `readlink {open_at}` shows where it is, and the next start serves what is at the path then"
            );
        }
    }

    fn find_astray(&self) -> Option<Astray> {
        shielded(|| Ok(self.store.astray())).ok().flatten()
    }

    /// How much space the volume takes and could take; `None` where that is not known, means nothing, or is of no use
    /// because nothing can be unmapped. It may wait for the file system.
    pub fn space(&self) -> Option<Space> {
        if !self.features.unmap || self.closed.load(Ordering::Acquire) {
            return None;
        }
        shielded(|| self.store.space()).ok().flatten()
    }

    /// Whether every change is refused.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// How the volume names itself to initiators.
    pub fn identity(&self) -> &VolumeIdentity {
        &self.identity
    }

    /// What the volume can do. A read-only volume neither unmaps nor zeroes.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Who does the blocking calls. Never [`EngineKind::Auto`].
    pub fn engine(&self) -> EngineKind {
        self.engine.kind
    }

    /// Why this engine was picked, as half a sentence; `None` where it was asked for by name.
    pub fn engine_reason(&self) -> Option<&str> {
        self.engine.reason.as_deref()
    }

    /// The store and its layers for people, for example `file /srv/vm.img`.
    pub fn describe(&self) -> String {
        self.store.describe()
    }

    /// Why the volume takes no more writes, once a flush has failed.
    pub fn fault(&self) -> Option<Fault> {
        self.durability.fault().cloned()
    }

    /// Has what was written before the call become stable soon, though nobody waits for it. Where that fails the volume has a
    /// [fault](Self::fault).
    pub fn flush_soon(&self) {
        if !self.store.in_memory() && !self.durability.is_faulted() {
            self.durability.owe();
        }
    }

    /// Ends the use of the volume: makes everything stable that was acknowledged, then lets others have the store.
    ///
    /// Call it when no [`crate::IoContext`] has an operation on this volume in flight; operations submitted later
    /// fail with [`StoreError::Closed`]. A second call only repeats what is wrong with the volume. A volume that is
    /// dropped open closes itself, but then only the log tells of a failure.
    ///
    /// # Errors
    ///
    /// When something acknowledged could not be made stable, now or by an earlier flush, or is in an image that its path no longer
    /// leads to.
    pub fn close(&self) -> Result<(), CloseError> {
        let first = !self.closed.swap(true, Ordering::AcqRel);
        let result = if let Some(fault) = self.fault() {
            Err(CloseError::Faulted { name: self.name.clone(), fault })
        } else if first && !self.read_only {
            self.durability.commit().map_err(|source| CloseError::Flush { name: self.name.clone(), source })
        } else {
            Ok(())
        };
        let result = result.and_then(|()| self.check_name(first));
        if first {
            self.durability.stop();
            self.store.release();
            tracing::info!(volume = %self.name, "closed");
        }
        result
    }

    /// Whether what was made stable will be found by the path of its image.
    fn check_name(&self, looks: bool) -> Result<(), CloseError> {
        let mut astray = self.astray.lock().unwrap_or_else(PoisonError::into_inner);
        if looks {
            *astray = self.find_astray();
        }
        match &*astray {
            Some(astray) if !self.read_only => {
                Err(CloseError::Astray { name: self.name.clone(), astray: astray.clone() })
            }
            _ => Ok(()),
        }
    }

    /// The range, if the page cache has all of it and the engine uses the page cache: its data can then be sent
    /// without being read. `None` says nothing but that it must be read.
    pub fn cached(self: &Arc<Self>, offset: u64, length: u32) -> Option<CachedRange> {
        let is_usable = self.engine.kind == EngineKind::Threads
            && self.uncopied.is_allowed()
            && !self.hangs()
            && !self.closed.load(Ordering::Acquire)
            && offset.checked_add(length.into()).is_some_and(|end| end <= self.size_bytes());
        if is_usable { CachedRange::of(self, offset, length) } else { None }
    }

    /// Whether its data lies in this process's memory, and may be sent from there: see [`Volume::lendable`].
    pub fn lends(&self) -> bool {
        self.store.lends()
    }

    /// The range, if its data lies in this process's memory and may be sent from there. `None` says nothing but that it must be read.
    pub fn lendable(self: &Arc<Self>, offset: u64, length: u32) -> Option<LentRange> {
        let is_usable = self.store.lends()
            && !self.closed.load(Ordering::Acquire)
            && offset.checked_add(length.into()).is_some_and(|end| end <= self.size_bytes());
        is_usable.then(|| LentRange::new(self, offset, length))
    }

    pub(crate) fn uncopied(&self) -> &Uncopied {
        &self.uncopied
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }

    pub(crate) fn durability(&self) -> &Arc<Durability> {
        &self.durability
    }

    pub(crate) fn share(&self) -> &Share {
        &self.share
    }

    pub(crate) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Refuses what must not reach the store.
    pub(crate) fn check(&self, operation: &Operation) -> Result<(), StoreError> {
        let kind = operation.kind();
        if self.closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        if kind.changes_data() && self.read_only {
            return Err(StoreError::ReadOnly);
        }
        if (kind.changes_data() || kind == OperationKind::Flush) && self.durability.is_faulted() {
            return Err(StoreError::Faulted);
        }
        if kind == OperationKind::Unmap && !self.features.unmap {
            return Err(StoreError::Unsupported);
        }
        let (offset, length) = operation.range().ok_or(StoreError::OutOfRange)?;
        if kind == OperationKind::WriteAtomic
            && !self.features.atomic_writes.is_some_and(|atomic| atomic.takes(offset, length))
        {
            return Err(StoreError::Unsupported);
        }
        match offset.checked_add(length) {
            Some(end) if end <= self.size_bytes() => Ok(()),
            _ => Err(StoreError::OutOfRange),
        }
    }

    /// The volume is open, and has this range, which is short enough for the submitting thread.
    pub(crate) fn takes_at_once(&self, offset: u64, length: usize) -> bool {
        length <= INLINE_BYTES_MAX
            && !self.closed.load(Ordering::Acquire)
            && offset.checked_add(length as u64).is_some_and(|end| end <= self.size_bytes())
    }

    /// What the page cache has of a range.
    pub(crate) fn read_cached(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        shielded(|| self.store.read_cached(offset, buffer))
    }

    /// Does a checked operation up to its flush, and waits for it. The first `done_bytes` of a read are there already.
    pub(crate) fn execute(&self, mut operation: Operation, done_bytes: usize) -> Executed {
        let store = &*self.store;
        let kind = operation.kind();
        let (offset, length) = operation.range().unwrap_or_default();
        let mut done = Done::Nothing;
        let mut stable = false;
        let result = shielded(|| match &mut operation {
            Operation::Read { offset, buffer } => {
                store.read_at(*offset + done_bytes as u64, &mut buffer[done_bytes..])
            }
            Operation::Write { offset, buffer, stable: wanted } => {
                stable = *wanted;
                store.write_at(*offset, buffer.bytes().unwrap_or_default())
            }
            Operation::WriteAtomic { offset, buffer, stable: wanted } => {
                stable = *wanted;
                store.write_atomic_at(*offset, buffer.bytes().unwrap_or_default())
            }
            Operation::Flush => {
                stable = !self.read_only;
                Ok(())
            }
            Operation::Commit { .. } => {
                stable = true;
                Ok(())
            }
            Operation::Zero { offset, length, unmap, stable: wanted } => {
                stable = *wanted;
                store.zero(*offset, *length, *unmap)
            }
            Operation::Unmap { offset, length } => store.unmap(*offset, *length),
            Operation::Prefetch { offset, length } => store.prefetch(*offset, *length),
            Operation::Extents { offset, length } => {
                done = Done::Extents(store.extents(*offset, *length)?);
                Ok(())
            }
        });
        let result = match result {
            Ok(()) => Ok(done),
            Err(source) => Err(self.failed(kind, offset, length, source)),
        };
        let needs_flush = stable && result.is_ok() && !store.in_memory();
        // What was executed was found not to go beyond what can be addressed.
        let to_flush = needs_flush.then(|| offset..offset + length);
        Executed { result, buffer: operation.into_buffer(), to_flush }
    }

    /// Tells the log of a failure, and sorts it.
    pub(crate) fn failed(
        &self,
        kind: OperationKind,
        offset: u64,
        length: u64,
        source: io::Error,
    ) -> StoreError {
        let error = StoreError::from_io(offset, source);
        if error.class() == ErrorClass::Unsupported {
            tracing::debug!(volume = %self.name, operation = %kind, offset, length, "not supported by the store");
            return StoreError::Unsupported;
        }
        if let StoreError::Flush { source } = &error {
            self.durability.fail(source);
        }
        if let StoreError::Io { source, .. } = &error
            && let Some(left_out) = self.errors.admit(Instant::now())
        {
            tracing::error!(
                volume = %self.name, operation = %kind, offset, length, errno = source.raw_os_error(),
                error = %source, left_out, "the store failed"
            );
        }
        error
    }
}

impl Volume {
    /// Tells the log that what is stored in block `lba` does not fit its protection information, as `check` has found: as
    /// seldom as failures of the store.
    pub fn log_damage(&self, lba: u64, check: &dyn fmt::Display) {
        if let Some(left_out) = self.errors.admit(Instant::now()) {
            tracing::error!(volume = %self.name, lba, %check, left_out, "the stored data is damaged");
        }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if !*self.closed.get_mut()
            && let Err(error) = self.close()
        {
            tracing::error!(%error, "a volume was dropped open");
        }
    }
}

/// Turns a panic inside a store into an error, because a completion that never comes hangs its session for good.
pub(crate) fn shielded<T>(call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    panic::catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|_| Err(io::Error::other("the store panicked; this is a defect")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_a_store_becomes_an_error() {
        let error = shielded(|| -> io::Result<()> { panic!("on purpose") }).unwrap_err();
        assert_eq!(StoreError::from_io(0, error).class(), ErrorClass::Hardware);
        assert_eq!(shielded(|| Ok(5)).unwrap(), 5);
    }
}
