//! A logical unit: what it is, and the state that all I_T nexuses share (SAM-5, logical unit; SBC-3, block device model).
//!
//! It is not the volume: the bytes are the driver's. Sessions on different threads share a unit; what READ and
//! WRITE look at is in atomics.

mod config;
mod marked;
mod modes;
mod nexuses;
mod priorities;

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::alua::AsymmetricAccess;
use crate::attention::{ItlNexus, UnitAttention};
use crate::commands::{self, Clock, ErrorCounters};
use crate::identity::Identity;
use crate::io::{BlockLengths, Io, IoError};
use crate::marks::{Marks, Release};
use crate::mode::{ModeFlags, ModeValues, SavedModes};
use crate::paths::Devices;
use crate::priority::Priorities;
use crate::protection::{Checks, DamageWatch, Protection};
use crate::reservations::Reservations;
use crate::reservations::unsettled::Unsettled;
use crate::rod::Watch;
use crate::saved::{Saved, SavedFault, SavedState, Section, UnitState};
use crate::sense::SenseData;
use crate::space::SpaceWatch;
use crate::task_set::TaskSet;
use crate::work::{Medium, Occupation, Work};
use config::check_capacity;
use modes::{Drain, Modes};

pub(crate) use priorities::{NoNexus, Whose};

pub use config::{AtomicWrites, ConfigError, LogicalUnitConfig, Provisioning};

/// Whether medium commands can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Readiness {
    Ready = 0,
    /// START STOP UNIT stopped it.
    Stopped = 1,
    /// The medium was ejected.
    Ejected = 2,
}

/// One logical unit. Shared as `Arc<LogicalUnit>` by every device and nexus that reaches it.
#[derive(Debug)]
pub struct LogicalUnit {
    config: LogicalUnitConfig,
    max_transfer_blocks: u32,
    /// The capacity now.
    blocks: AtomicU64,
    /// The flags of `modes`, for commands to look at.
    mode: AtomicU16,
    modes: Mutex<Modes>,
    drain: Drain,
    space: SpaceWatch,
    readiness: AtomicU8,
    tasks: TaskSet,
    devices: Devices,
    /// Every nexus that is attached. Taken by attach, detach and what is told to all; never by READ or WRITE.
    nexuses: Mutex<Vec<Arc<ItlNexus>>>,
    /// Locked after `reservations` and before `nexuses`, as far as they are locked together.
    access: Mutex<AsymmetricAccess>,
    /// Locked before `nexuses`. Commands look at [`ItlNexus::permission`] instead.
    reservations: Mutex<Reservations>,
    /// Locked after `reservations`, as far as they are locked together.
    unsettled: Mutex<Unsettled>,
    /// Locked before `nexuses`. Commands look at [`ItlNexus::priority`] instead.
    priorities: Mutex<Priorities>,
    saved: SavedState,
    work: Work,
    watch: Watch,
    marks: Marks,
    /// Marks that go when the state is stable that [`LogicalUnit::next_work`] has told to store.
    marks_stored: Mutex<Option<Release>>,
    clock: Clock,
    errors: ErrorCounters,
    damage_watch: OnceLock<Arc<dyn DamageWatch>>,
}

impl LogicalUnit {
    /// The largest sum of blocks taken in one UNMAP command: bounds how long one command holds its task.
    pub(crate) const UNMAP_BLOCKS_MAX: u32 = 1 << 20;

    /// The most block descriptors taken in one UNMAP command: a parameter list of 4 KiB.
    pub(crate) const UNMAP_DESCRIPTORS_MAX: u32 = 256;

    /// Makes a unit after checking `config`, in the state that was `saved`.
    ///
    /// # Errors
    /// [`ConfigError`] names what is wrong.
    pub fn new(config: LogicalUnitConfig, saved: Saved<'_>) -> Result<LogicalUnit, ConfigError> {
        config.identity.validate()?;
        if !matches!(config.block_length_bytes, 512 | 4096) {
            return Err(ConfigError::BlockLength(config.block_length_bytes));
        }
        check_capacity(config.blocks, config.block_length_bytes)?;
        if config.physical_block_exponent > 15 {
            return Err(ConfigError::PhysicalBlockExponent(config.physical_block_exponent));
        }
        let stored_block_bytes = config.protection().map(Protection::stored_block_bytes);
        let max_transfer_blocks =
            config.max_transfer_bytes / stored_block_bytes.unwrap_or(config.block_length_bytes);
        if max_transfer_blocks == 0 || config.optimal_transfer_bytes > config.max_transfer_bytes {
            return Err(ConfigError::TransferLength);
        }
        let is_protected = config.protection.is_some();
        if config.atomic_writes.is_some_and(|atomic| is_protected || !atomic.is_possible(max_transfer_blocks))
        {
            return Err(ConfigError::AtomicWrites);
        }
        let reservations = match saved {
            Saved::Nowhere | Saved::Nothing => Reservations::default(),
            Saved::Parts { reservations, .. } | Saved::Elsewhere { reservations, .. } => {
                Reservations::from_bytes(reservations).map_err(ConfigError::SavedState)?
            }
        };
        let (saved, counted_in) = SavedState::restore(config.identity.uuid, config.block_length_bytes, saved)
            .map_err(ConfigError::SavedState)?;
        // What is lost stays lost, whatever else is stored next.
        saved.set_section(Section::Reservations, reservations.to_bytes());
        let section = saved.section(Section::IdentifyingInformation).unwrap_or_default();
        commands::parse_identifying_information(&section)
            .ok_or(ConfigError::SavedState(SavedFault::Damaged))?;
        let section = saved.section(Section::Work);
        let counts_same = counted_in == Some(config.block_length_bytes);
        let (work, section) = Work::restore(section.as_deref(), counts_same)
            .ok_or(ConfigError::SavedState(SavedFault::Damaged))?;
        saved.set_section(Section::Work, section);
        let access = AsymmetricAccess::from_bytes(&saved.section(Section::AccessStates).unwrap_or_default())
            .map_err(ConfigError::SavedState)?;
        let saved_modes = match saved.section(Section::ModePages) {
            Some(bytes) => {
                let saved = SavedModes::from_bytes(&bytes);
                Some(
                    saved.ok_or(ConfigError::SavedState(SavedFault::Damaged))?.by_default(config.write_cache),
                )
            }
            None => None,
        };
        let default = ModeValues::new(ModeFlags::new(config.write_cache));
        let modes = Modes { current: saved_modes.map_or(default, |saved| saved.values), saved: saved_modes };
        let lengths = (counted_in.unwrap_or(config.block_length_bytes), config.block_length_bytes);
        let (marks, section) = Marks::restore(&saved.section(Section::Marks).unwrap_or_default(), lengths)
            .ok_or(ConfigError::SavedState(SavedFault::Damaged))?;
        saved.set_section(Section::Marks, section);
        let watch = Watch::default();
        watch.note_marks(!marks.is_empty());
        let tasks = TaskSet::default();
        tasks.restrict(modes.current.flags.restricted_reordering());
        Ok(LogicalUnit {
            max_transfer_blocks,
            blocks: AtomicU64::new(config.blocks),
            mode: AtomicU16::new(modes.current.flags.bits()),
            priorities: Mutex::new(Priorities::new(modes.current.initial_priority)),
            modes: Mutex::new(modes),
            drain: Drain::default(),
            space: SpaceWatch::default(),
            readiness: AtomicU8::new(Readiness::Ready as u8),
            tasks,
            devices: Devices::default(),
            nexuses: Mutex::new(Vec::new()),
            access: Mutex::new(access),
            reservations: Mutex::new(reservations),
            unsettled: Mutex::default(),
            saved,
            work,
            watch,
            marks,
            marks_stored: Mutex::new(None),
            clock: Clock::default(),
            errors: ErrorCounters::default(),
            damage_watch: OnceLock::new(),
            config,
        })
    }

    /// The clock that initiators may set.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// How often the store has failed.
    pub(crate) fn errors(&self) -> &ErrorCounters {
        &self.errors
    }

    /// The tokens that stand for blocks of this unit, and what revokes them.
    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// All that is to be kept over a restart, for the driver to store on [`crate::Io::SaveState`], one at a time. A later
    /// call never returns an older state.
    pub fn state(&self) -> UnitState {
        self.saved.image()
    }

    /// What [`Self::state`] returned last was not stored, for sure: a restart finds what one did before. To be called before a
    /// command or work is told that it failed, and not where that is in doubt.
    pub fn note_stored_state_stands(&self) {
        self.saved.note_stands();
    }

    /// The state could not be stored, and no command is told: it is work from now on to store it
    /// ([`Self::next_work`]). Where it was stored for a command or for work, those see to it themselves.
    pub fn note_state_not_stored(&self) {
        self.saved.owe();
    }

    pub(crate) fn saved(&self) -> &SavedState {
        &self.saved
    }

    /// What the unit was made from.
    pub fn config(&self) -> &LogicalUnitConfig {
        &self.config
    }

    /// The unit's names.
    pub fn identity(&self) -> &Identity {
        &self.config.identity
    }

    /// The length of a logical block in bytes.
    pub fn block_length_bytes(&self) -> u32 {
        self.config.block_length_bytes
    }

    /// What protection information the blocks have.
    #[inline]
    pub(crate) fn protection(&self) -> Option<Protection> {
        self.config.protection()
    }

    /// Has somebody told of stored data whose check fails. Only the first one who asks for it is.
    pub fn watch_damage(&self, watch: Arc<dyn DamageWatch>) {
        let _ = self.damage_watch.set(watch);
    }

    /// Checks blocks that were read from the store, the first of which is at `lba`, and tells of damage.
    ///
    /// # Errors
    /// ABORTED COMMAND that says what is wrong, with the address of the first block that is.
    pub(crate) fn check_stored(
        &self,
        protection: Protection,
        stored: &[u8],
        lba: u64,
        checks: Checks,
    ) -> Result<(), SenseData> {
        protection.check(stored, lba, checks).map_err(|damage| {
            if let Some(watch) = self.damage_watch.get() {
                watch.stored_data_is_damaged(damage);
            }
            damage.into()
        })
    }

    /// The lengths of a block without and with its protection information.
    pub(crate) fn block_lengths(&self) -> BlockLengths {
        let data = u64::from(self.config.block_length_bytes);
        let stored = self.protection().map_or(data, |protection| protection.stored_block_bytes().into());
        BlockLengths { data, stored }
    }

    /// The capacity in blocks; never 0.
    pub fn blocks(&self) -> u64 {
        // The volume had its new size before.
        self.blocks.load(Ordering::Acquire)
    }

    /// The capacity in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.blocks() * u64::from(self.config.block_length_bytes)
    }

    /// The medium has become larger or smaller: commands are held against the new capacity from now on, and every
    /// nexus gets CAPACITY DATA HAS CHANGED (SBC-3, unit attention conditions). False: the capacity is this already.
    ///
    /// # Errors
    /// [`ConfigError::Capacity`]
    pub fn resize(&self, blocks: u64) -> Result<bool, ConfigError> {
        check_capacity(blocks, self.config.block_length_bytes)?;
        self.attach_all();
        // Under the lock: a nexus that comes up meanwhile is told, or reads the new capacity after its POWER ON.
        let nexuses = self.nexuses();
        let before = self.blocks.swap(blocks, Ordering::AcqRel);
        if before == blocks {
            return Ok(false);
        }
        // What was cut off is not what it was when the medium grows again.
        self.watch.about_to_change(blocks..u64::MAX);
        nexuses.iter().for_each(|nexus| nexus.establish(UnitAttention::CapacityChanged));
        Ok(true)
    }

    /// What is to be done next of the work that the unit has taken on: SANITIZE or FORMAT UNIT; or to flush a write cache that
    /// was turned off; or to store a state that a command has changed and not seen stored. The driver does it, one
    /// operation at a time, and calls [`Self::work_done`]. It looks here at the start, after [`Io::Work`], after a reset, after
    /// a command with [`Io::SaveState`] has gone on or was abandoned, and after each operation; after one that has failed not
    /// at once. `None`: nothing is left.
    pub fn next_work(&self) -> Option<Io> {
        // A cache that cannot be flushed, which is tried for as long as it takes, holds up nothing else.
        let yields = self.drain.yields();
        if !yields && self.drain.begin() {
            return Some(Io::Flush);
        }
        let work = match self.work.occupation() {
            Occupation::None => None,
            _ => self.work.next(self.medium()),
        };
        let io = work.or_else(|| self.saved.take_debt().then_some(Io::SaveState));
        let io = io.or_else(|| (yields && self.drain.begin()).then_some(Io::Flush))?;
        *self.marks_stored() = (io == Io::SaveState).then(|| self.marks.released());
        Some(io)
    }

    fn marks_stored(&self) -> MutexGuard<'_, Option<Release>> {
        self.marks_stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The operation that [`Self::next_work`] told has ended.
    pub fn work_done(&self, result: Result<(), IoError>) {
        if self.drained(result.is_ok()) {
            return;
        }
        let stored = self.marks_stored().take();
        if let Some(release) = stored.filter(|_| result.is_ok()) {
            self.forget_marks(release);
        }
        let is_works = self.work.done(self.medium(), result, |section| {
            if section.is_empty() && result.is_ok() {
                // Every block is new. That goes with what is saved about the end.
                self.release_marks(&(0..u64::MAX));
            }
            self.saved.set_section(Section::Work, section);
        });
        if !is_works && result.is_err() {
            // It was a state that was owed.
            self.saved.owe();
        }
    }

    /// True until the work has ended, well or not: a command that waits for it after [`Io::Work`] waits on.
    pub fn is_at_work(&self) -> bool {
        self.work.is_going_on()
    }

    pub(crate) fn work(&self) -> &Work {
        &self.work
    }

    /// Why no command may have the medium, where its own work, or the failure of that, is the reason.
    pub(crate) fn occupied(&self) -> Option<SenseData> {
        if self.work.occupation() == Occupation::None { None } else { self.work.sense(self.medium()) }
    }

    /// The medium as the work sees it.
    pub(crate) fn medium(&self) -> Medium {
        Medium {
            blocks: self.blocks(),
            block_length_bytes: self.config.block_length_bytes,
            unmap: self.config.provisioning.unmap,
            is_kept: self.saved.is_kept(),
            is_protected: self.config.protection.is_some(),
        }
    }

    /// The longest transfer of one command, in blocks.
    pub fn max_transfer_blocks(&self) -> u32 {
        self.max_transfer_blocks
    }

    /// MAXIMUM WRITE SAME LENGTH in blocks: all that the ten-byte command can ask for, so that none of those is
    /// refused for its length, and never less than what a WRITE may move.
    pub(crate) fn write_same_blocks_max(&self) -> u32 {
        self.max_transfer_blocks.max(u32::from(u16::MAX))
    }

    /// MAXIMUM COMPARE AND WRITE LENGTH in blocks. The blocks to compare with and those to write come together.
    pub(crate) fn compare_and_write_blocks_max(&self) -> u8 {
        u8::try_from(self.max_transfer_blocks / 2).unwrap_or(u8::MAX)
    }

    pub(crate) fn tasks(&self) -> &TaskSet {
        &self.tasks
    }

    pub(crate) fn readiness(&self) -> Readiness {
        match self.readiness.load(Ordering::Acquire) {
            1 => Readiness::Stopped,
            2 => Readiness::Ejected,
            _ => Readiness::Ready,
        }
    }

    pub(crate) fn set_readiness(&self, readiness: Readiness) {
        self.readiness.store(readiness as u8, Ordering::Release);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::num::NonZeroU16;

    use super::*;

    /// A small unit that can do everything.
    pub(crate) fn config() -> LogicalUnitConfig {
        LogicalUnitConfig {
            identity: Identity {
                naa: 0x3123_4567_89ab_cdef,
                uuid: [0x5a; 16],
                serial: "SN-1".into(),
                vendor: "LUNETTE".into(),
                product: "VOLUME".into(),
                revision: "0.1".into(),
            },
            block_length_bytes: 512,
            blocks: 2048,
            physical_block_exponent: 3,
            read_only: false,
            write_cache: true,
            provisioning: Provisioning {
                unmap: true,
                granularity_blocks: 8,
                write_zeroes: true,
                anchors: true,
            },
            atomic_writes: NonZeroU16::new(8)
                .map(|granularity_blocks| AtomicWrites { granularity_blocks, blocks_max: 64 }),
            max_transfer_bytes: 1 << 20,
            optimal_transfer_bytes: 1 << 19,
            removable: false,
            solid_state: true,
            protection: None,
        }
    }

    /// Such a unit, or a changed one, that keeps nothing over a restart.
    pub(crate) fn unit_of(config: LogicalUnitConfig) -> LogicalUnit {
        LogicalUnit::new(config, Saved::Nowhere).unwrap()
    }

    #[test]
    fn impossible_units_are_refused() {
        let error = |config| LogicalUnit::new(config, Saved::Nowhere).unwrap_err();
        assert_eq!(
            error(LogicalUnitConfig { block_length_bytes: 520, ..config() }),
            ConfigError::BlockLength(520)
        );
        assert_eq!(error(LogicalUnitConfig { blocks: 0, ..config() }), ConfigError::Capacity(0));
        assert_eq!(error(LogicalUnitConfig { blocks: 1 << 54, ..config() }), ConfigError::Capacity(1 << 54));
        assert_eq!(
            error(LogicalUnitConfig { max_transfer_bytes: 511, ..config() }),
            ConfigError::TransferLength
        );
        assert_eq!(
            error(LogicalUnitConfig { optimal_transfer_bytes: u32::MAX, ..config() }),
            ConfigError::TransferLength
        );
        assert_eq!(
            error(LogicalUnitConfig { physical_block_exponent: 16, ..config() }),
            ConfigError::PhysicalBlockExponent(16)
        );
        let atomic = |blocks_max| {
            let granularity_blocks = NonZeroU16::new(8).unwrap();
            let atomic_writes = Some(AtomicWrites { granularity_blocks, blocks_max });
            LogicalUnit::new(LogicalUnitConfig { atomic_writes, ..config() }, Saved::Nowhere).err()
        };
        for blocks_max in [0, 7, 12, 2056] {
            assert_eq!(atomic(blocks_max), Some(ConfigError::AtomicWrites), "{blocks_max}");
        }
        assert_eq!(atomic(2048), None);
        let largest = LogicalUnitConfig { blocks: (1 << 54) - 1, ..config() };
        assert!(LogicalUnit::new(largest, Saved::Nowhere).is_ok());
        let damaged = Saved::Parts { settings: &[0], reservations: Some(&[]) };
        let damaged = LogicalUnit::new(config(), damaged).unwrap_err();
        assert_eq!(damaged, ConfigError::SavedState(SavedFault::Damaged));
    }

    #[test]
    fn units_are_shared_between_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<LogicalUnit>();
        shared::<crate::Nexus>();
        shared::<crate::Task>();
    }
}
