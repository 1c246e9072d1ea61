//! A logical unit: what it is, and the state that all I_T nexuses share (SAM-5, logical unit; SBC-3, block device model).
//!
//! It is not the volume: the bytes are the driver's. Sessions on different threads share a unit; what READ and
//! WRITE look at is in atomics.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::alua::{AccessState, AsymmetricAccess, Cause, Group};
use crate::attention::{ItlNexus, UnitAttention};
use crate::commands::{self, Clock, ErrorCounters};
use crate::device::TargetPort;
use crate::identity::Identity;
use crate::io::{Io, IoError};
use crate::mode::{ModeFlags, ModeValues};
use crate::nexus::NexusName;
use crate::reservations::{Effects, Refusal, Reservations};
use crate::rod::Watch;
use crate::saved::{Saved, SavedFault, SavedState, Section};
use crate::sense::SenseData;
use crate::space::{Space, SpaceWatch, THRESHOLD_EXPONENT};
use crate::task_set::TaskSet;
use crate::work::{Kept, Medium, Occupation, Work};

/// What the store can do for thin provisioning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Provisioning {
    /// The store can give space back and such ranges then read as zeros (LBPME, LBPU, LBPWS, LBPWS10, LBPRZ).
    pub unmap: bool,
    /// OPTIMAL UNMAP GRANULARITY in blocks; 0: not told.
    pub granularity_blocks: u32,
    /// The store can zero a range without being sent the zeros.
    pub write_zeroes: bool,
}

/// What a logical unit is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogicalUnitConfig {
    /// The unit's names.
    pub identity: Identity,
    /// 512 or 4096.
    pub block_length_bytes: u32,
    /// The capacity in blocks at the start: at least 1, and at most 2^63 - 1 bytes in all.
    pub blocks: u64,
    /// A physical block is two to this power logical blocks; at most 15.
    pub physical_block_exponent: u8,
    /// The medium is write-protected.
    pub read_only: bool,
    /// The default of the write cache enabled bit. False: every write is stable before it is answered.
    pub write_cache: bool,
    /// What the store can do for thin provisioning.
    pub provisioning: Provisioning,
    /// MAXIMUM TRANSFER LENGTH: at least one block; what is not a whole block is cut off.
    pub max_transfer_bytes: u32,
    /// OPTIMAL TRANSFER LENGTH; 0: not told; at most the maximum.
    pub optimal_transfer_bytes: u32,
    /// The medium can be ejected and loaded.
    pub removable: bool,
    /// True: a non-rotating medium; false: nothing is told.
    pub solid_state: bool,
}

/// Why a configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// The world-wide name is not of NAA format 3h.
    Naa(u64),
    /// A name has a wrong length or a character outside 20h to 7Eh.
    Name {
        /// Which field.
        field: &'static str,
        /// The shortest length taken, in bytes.
        length_min: usize,
        /// The longest length taken, in bytes.
        length_max: usize,
    },
    /// The block length is neither 512 nor 4096.
    BlockLength(u32),
    /// The capacity is zero or more than 2^63 - 1 bytes.
    Capacity(u64),
    /// The physical block exponent is above 15.
    PhysicalBlockExponent(u8),
    /// The maximum transfer length is less than a block, or the optimal one is more than the maximum.
    TransferLength,
    /// A LUN is not a single-level one.
    Lun(crate::Lun),
    /// Two units have the same number.
    DuplicateLun(u16),
    /// A view names a unit that the device does not have.
    NoSuchUnit(crate::Lun),
    /// A view shows a unit under two numbers.
    UnitMappedTwice(crate::Lun),
    /// The target name is empty or longer than 223 bytes (RFC 7143 4.2.7.1).
    TargetName,
    /// A portal group tag is 0, which is no relative port identifier (SPC-4, relative target port designator), or there
    /// is none.
    PortalGroupTag,
    /// What was kept of the unit's state cannot be used.
    SavedState(SavedFault),
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ConfigError::Naa(naa) => write!(f, "NAA identifier 0x{naa:016x} does not begin with 3"),
            ConfigError::Name { field, length_min, length_max } => {
                write!(f, "{field} must be {length_min} to {length_max} printable ASCII characters")
            }
            ConfigError::BlockLength(bytes) => write!(f, "block length {bytes} is neither 512 nor 4096"),
            ConfigError::Capacity(blocks) => write!(f, "{blocks} blocks are no possible capacity"),
            ConfigError::PhysicalBlockExponent(exponent) => {
                write!(f, "physical block exponent {exponent} is above 15")
            }
            ConfigError::TransferLength => {
                write!(f, "transfer lengths must be one block <= maximum, optimal <= maximum")
            }
            ConfigError::Lun(lun) => write!(f, "LUN {lun} is not a single-level one"),
            ConfigError::DuplicateLun(number) => write!(f, "LUN {number} is given twice"),
            ConfigError::NoSuchUnit(lun) => write!(f, "there is no logical unit {lun}"),
            ConfigError::UnitMappedTwice(lun) => write!(f, "logical unit {lun} is shown twice"),
            ConfigError::TargetName => write!(f, "the target name must have 1 to 223 bytes"),
            ConfigError::PortalGroupTag => write!(f, "there must be a portal group tag, and none may be 0"),
            ConfigError::SavedState(fault) => write!(f, "its saved state cannot be used: {fault}"),
        }
    }
}

impl std::error::Error for ConfigError {}

fn check_capacity(blocks: u64, block_length_bytes: u32) -> Result<(), ConfigError> {
    let bytes = blocks.checked_mul(u64::from(block_length_bytes));
    if blocks == 0 || bytes.is_none_or(|bytes| bytes > i64::MAX as u64) {
        return Err(ConfigError::Capacity(blocks));
    }
    Ok(())
}

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

/// Mode parameters: what is, and what will be after a restart.
#[derive(Debug)]
struct Modes {
    current: ModeValues,
    saved: Option<ModeValues>,
}

/// One logical unit. Shared as `Arc<LogicalUnit>` by every device and nexus that reaches it.
#[derive(Debug)]
pub struct LogicalUnit {
    config: LogicalUnitConfig,
    max_transfer_blocks: u32,
    /// The capacity now.
    blocks: AtomicU64,
    /// The flags of `modes`, for commands to look at.
    mode: AtomicU8,
    modes: Mutex<Modes>,
    space: SpaceWatch,
    readiness: AtomicU8,
    tasks: TaskSet,
    /// Every nexus that can reach the unit. Taken by attach, detach and what is told to all; never by READ or WRITE.
    nexuses: Mutex<Vec<Arc<ItlNexus>>>,
    /// Locked after `reservations` and before `nexuses`, as far as they are locked together.
    access: Mutex<AsymmetricAccess>,
    /// Locked before `nexuses`. Commands look at [`ItlNexus::permission`] instead.
    reservations: Mutex<Reservations>,
    saved: SavedState,
    work: Work,
    watch: Watch,
    clock: Clock,
    errors: ErrorCounters,
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
        let max_transfer_blocks = config.max_transfer_bytes / config.block_length_bytes;
        if max_transfer_blocks == 0 || config.optimal_transfer_bytes > config.max_transfer_bytes {
            return Err(ConfigError::TransferLength);
        }
        let saved = SavedState::restore(config.identity.uuid, saved).map_err(ConfigError::SavedState)?;
        let reservations =
            Reservations::from_bytes(&saved.section(Section::Reservations).unwrap_or_default())
                .map_err(ConfigError::SavedState)?;
        let section = saved.section(Section::IdentifyingInformation).unwrap_or_default();
        commands::parse_identifying_information(&section)
            .ok_or(ConfigError::SavedState(SavedFault::Damaged))?;
        let section = saved.section(Section::Work);
        let work = Work::restore(section.as_deref()).ok_or(ConfigError::SavedState(SavedFault::Damaged))?;
        let access = AsymmetricAccess::from_bytes(&saved.section(Section::AccessStates).unwrap_or_default())
            .map_err(ConfigError::SavedState)?;
        let saved_modes = match saved.section(Section::ModePages) {
            Some(bytes) => {
                let values = ModeValues::from_bytes(&bytes);
                Some(values.ok_or(ConfigError::SavedState(SavedFault::Damaged))?)
            }
            None => None,
        };
        let default = ModeValues::new(ModeFlags::new(config.write_cache));
        let modes = Modes { current: saved_modes.unwrap_or(default), saved: saved_modes };
        Ok(LogicalUnit {
            max_transfer_blocks,
            blocks: AtomicU64::new(config.blocks),
            mode: AtomicU8::new(modes.current.flags.bits()),
            modes: Mutex::new(modes),
            space: SpaceWatch::default(),
            readiness: AtomicU8::new(Readiness::Ready as u8),
            tasks: TaskSet::default(),
            nexuses: Mutex::new(Vec::new()),
            access: Mutex::new(access),
            reservations: Mutex::new(reservations),
            saved,
            work,
            watch: Watch::default(),
            clock: Clock::default(),
            errors: ErrorCounters::default(),
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

    /// All that is to be kept over a restart, for the driver to store on [`crate::Io::SaveState`]. A later call never
    /// returns an older state.
    pub fn state(&self) -> Vec<u8> {
        self.saved.image()
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
        // Under the lock: a nexus that comes up meanwhile is told, or reads the new capacity after its POWER ON.
        let nexuses = self.nexuses();
        if self.blocks.swap(blocks, Ordering::AcqRel) == blocks {
            return Ok(false);
        }
        nexuses.iter().for_each(|nexus| nexus.establish(UnitAttention::CapacityChanged));
        Ok(true)
    }

    /// What is to be done next of the work that the unit has taken on: SANITIZE or FORMAT UNIT; or to store a state that
    /// a command has changed and not seen stored. The driver does it, one operation at a time, and calls
    /// [`Self::work_done`]. It looks here at the start, after [`Io::Work`], after a command with [`Io::SaveState`] has
    /// gone on or was abandoned, and after each operation; after a state that could not be stored not at once. `None`:
    /// nothing is left.
    pub fn next_work(&self) -> Option<Io> {
        if self.work.occupation() != Occupation::None
            && let Some(io) = self.work.next(self.medium())
        {
            return Some(io);
        }
        self.saved.take_debt().then_some(Io::SaveState)
    }

    /// The operation that [`Self::next_work`] told has ended.
    pub fn work_done(&self, result: Result<(), IoError>) {
        match self.work.done(self.medium(), result) {
            Kept::Now(section) => self.saved.set_section(Section::Work, section),
            // It was a state that was owed.
            Kept::NotMine if result.is_err() => self.saved.owe(),
            Kept::NotMine | Kept::Same => {}
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

    /// True while an answered write may still be in a volatile cache (WCE bit of the caching mode page).
    pub fn write_cache_enabled(&self) -> bool {
        self.mode().write_cache_enabled()
    }

    pub(crate) fn tasks(&self) -> &TaskSet {
        &self.tasks
    }

    pub(crate) fn mode(&self) -> ModeFlags {
        ModeFlags::from_bits(self.mode.load(Ordering::Acquire))
    }

    fn modes(&self) -> MutexGuard<'_, Modes> {
        self.modes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn mode_values(&self) -> ModeValues {
        self.modes().current
    }

    /// What is there after a restart or a reset.
    pub(crate) fn mode_saved(&self) -> ModeValues {
        self.modes().saved.unwrap_or_else(|| self.mode_default())
    }

    pub(crate) fn mode_default(&self) -> ModeValues {
        ModeValues::new(ModeFlags::new(self.config.write_cache))
    }

    pub(crate) fn set_mode(&self, values: ModeValues) {
        let mut modes = self.modes();
        modes.current = values;
        self.mode.store(values.flags.bits(), Ordering::Release);
    }

    /// Changes the values to what `wanted` makes of them, and answers those before and after. With `save` they are what
    /// the saved state has from now on.
    pub(crate) fn change_mode(
        &self,
        save: bool,
        wanted: impl FnOnce(&ModeValues) -> Result<ModeValues, SenseData>,
    ) -> Result<(ModeValues, ModeValues), SenseData> {
        let mut modes = self.modes();
        let before = modes.current;
        let after = wanted(&before)?;
        modes.current = after;
        self.mode.store(after.flags.bits(), Ordering::Release);
        if save {
            modes.saved = Some(after);
            self.saved.set_section(Section::ModePages, after.to_bytes());
        }
        Ok((before, after))
    }

    /// The store says how much space the unit has. Initiators that set a threshold in the logical block provisioning mode
    /// page hear when it is reached, by THIN PROVISIONING SOFT THRESHOLD REACHED (SBC-3). Call it before the unit is
    /// served, and again now and then; not for a unit that is not thin.
    pub fn note_space(&self, space: Space) {
        let values = self.mode_values();
        let is_reached = self.space.note(space, &values.thresholds, self.space_unit_bytes());
        if !is_reached || !values.flags.provisioning_reports() {
            return;
        }
        let told = if values.flags.single_initiator() { 1 } else { usize::MAX };
        for nexus in self.nexuses().iter().take(told) {
            nexus.establish(UnitAttention::ThresholdReached);
        }
    }

    /// What thresholds and the log page count space in.
    pub(crate) fn space_unit_bytes(&self) -> u64 {
        u64::from(self.config.block_length_bytes) << THRESHOLD_EXPONENT
    }

    pub(crate) fn space(&self) -> &SpaceWatch {
        &self.space
    }

    /// True while WRITE and its kind are refused: by configuration, or by the SWP bit of the control page.
    pub(crate) fn write_protected(&self) -> bool {
        self.config.read_only || self.mode().software_write_protect()
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

    fn nexuses(&self) -> MutexGuard<'_, Vec<Arc<ItlNexus>>> {
        self.nexuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is reserved, and for whom.
    pub(crate) fn reservations(&self) -> MutexGuard<'_, Reservations> {
        self.reservations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is reserved: every nexus is held to it at once, and told what it must know.
    ///
    /// # Errors
    /// Those of `change`, which then has changed nothing.
    pub(crate) fn change_reservations(
        &self,
        change: impl FnOnce(&mut Reservations) -> Result<Effects, Refusal>,
    ) -> Result<Effects, Refusal> {
        let mut reservations = self.reservations();
        let effects = change(&mut reservations)?;
        self.saved.set_section(Section::Reservations, reservations.to_bytes());
        for nexus in self.nexuses().iter() {
            nexus.set_permission(reservations.permission(nexus.name()));
            let told = effects.told.iter().filter(|(name, _)| name == nexus.name());
            told.for_each(|(_, attention)| nexus.establish(*attention));
            if effects.preempted.contains(nexus.name()) {
                nexus.set_prevents_removal(false);
            }
        }
        Ok(effects)
    }

    fn access(&self) -> MutexGuard<'_, AsymmetricAccess> {
        self.access.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The target port groups in rising order.
    pub(crate) fn access_groups(&self) -> Vec<Group> {
        self.access().groups().to_vec()
    }

    /// How the unit can be reached through `port`.
    pub fn access_state(&self, port: TargetPort) -> AccessState {
        self.access().state(port)
    }

    /// Says, before anybody is attached, in which state the group of `port` begins, and whether it is the preferred one. A
    /// state that was set before a restart comes back as long as `initial` is what it was then.
    pub fn begin_access(&self, port: TargetPort, initial: AccessState, preferred: bool) {
        self.access().begin(port, initial, preferred);
    }

    /// Changes the states of target port groups for a reason of the device's own (SPC-4, implicit transition), and tells
    /// every nexus. True if one is another than before: then [`LogicalUnit::state`] has changed too.
    pub fn change_access_implicitly(&self, changes: &[(TargetPort, AccessState)]) -> bool {
        self.change_access(changes, Cause::Implicit, None)
    }

    /// Changes states, and tells every nexus but `issuer`. True if one is another than before.
    pub(crate) fn change_access(
        &self,
        changes: &[(TargetPort, AccessState)],
        cause: Cause,
        issuer: Option<&NexusName>,
    ) -> bool {
        let mut access = self.access();
        if !access.change(changes, cause) {
            return false;
        }
        self.saved.set_section(Section::AccessStates, access.to_bytes());
        for nexus in self.nexuses().iter() {
            nexus.set_access_state(access.state(nexus.name().target_port));
            if issuer != Some(nexus.name()) {
                nexus.establish(UnitAttention::AccessStateChanged);
            }
        }
        true
    }

    /// The nexuses that exist at the moment.
    pub(crate) fn nexus_names(&self) -> Vec<NexusName> {
        self.nexuses().iter().map(|nexus| nexus.name().clone()).collect()
    }

    pub(crate) fn attach(&self, name: &NexusName) -> Arc<ItlNexus> {
        let reservations = self.reservations();
        let nexus = Arc::new(ItlNexus::new(name.clone()));
        nexus.set_permission(reservations.permission(name));
        let access = self.access();
        nexus.set_access_state(access.state(name.target_port));
        self.nexuses().push(Arc::clone(&nexus));
        nexus
    }

    /// Forgets a nexus, with its unit attentions, its prevention of medium removal (SPC-4, PREVENT ALLOW MEDIUM REMOVAL)
    /// and what it reserved by RESERVE (SPC-2). Its registration stays.
    pub(crate) fn detach(&self, nexus: &Arc<ItlNexus>) {
        self.nexuses().retain(|other| !Arc::ptr_eq(other, nexus));
        self.end_spc2_reservation(Some(nexus.name()));
    }

    /// An I_T nexus loss (SAM-5) after which the nexus is there again: it holds nothing any more, and is told.
    pub(crate) fn lose(&self, nexus: &ItlNexus) {
        nexus.set_prevents_removal(false);
        self.end_spc2_reservation(Some(nexus.name()));
        nexus.establish(UnitAttention::ItNexusLoss);
    }

    fn end_spc2_reservation(&self, holder: Option<&NexusName>) {
        if self.reservations().is_reserved_by_spc2() {
            let ended = self.change_reservations(|reservations| {
                reservations.end_spc2(holder);
                Ok(Effects::default())
            });
            debug_assert!(ended.is_ok(), "the change refuses nothing");
        }
    }

    /// Tells every nexus but `issuer`.
    pub(crate) fn establish_for_others(&self, issuer: &Arc<ItlNexus>, attention: UnitAttention) {
        for nexus in self.nexuses().iter().filter(|nexus| !Arc::ptr_eq(nexus, issuer)) {
            nexus.establish(attention);
        }
    }

    /// True while any nexus prevents medium removal.
    pub(crate) fn removal_prevented(&self) -> bool {
        self.nexuses().iter().any(|nexus| nexus.prevents_removal())
    }

    /// The logical unit reset (SAM-5): mode pages go back to their saved values, medium removal is allowed, a
    /// stopped unit runs again, what RESERVE reserved is released, and every nexus is told. Aborting the commands is the driver's part.
    pub(crate) fn reset(&self) {
        self.end_spc2_reservation(None);
        let nexuses = self.nexuses();
        self.set_mode(self.mode_saved());
        if self.readiness() == Readiness::Stopped {
            self.set_readiness(Readiness::Ready);
        }
        for nexus in nexuses.iter() {
            nexus.set_prevents_removal(false);
            nexus.copies().clear();
            nexus.establish(UnitAttention::BusDeviceReset);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
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
            provisioning: Provisioning { unmap: true, granularity_blocks: 8, write_zeroes: true },
            max_transfer_bytes: 1 << 20,
            optimal_transfer_bytes: 1 << 19,
            removable: false,
            solid_state: true,
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
        let largest = LogicalUnitConfig { blocks: (1 << 54) - 1, ..config() };
        assert!(LogicalUnit::new(largest, Saved::Nowhere).is_ok());
        let damaged = LogicalUnit::new(config(), Saved::Bytes(&[0])).unwrap_err();
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
