//! The mode parameters of a logical unit, now and after a restart (SPC-4), and the thresholds of a thin one (SBC-3).
//!
//! The pages are made in [`crate::mode`].

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use super::LogicalUnit;
use crate::attention::{ItlNexus, UnitAttention};
use crate::mode::{ModeFlags, ModeValues, SavedModes, Selected};
use crate::saved::Section;
use crate::sense::SenseData;
use crate::space::{Space, SpaceWatch, THRESHOLD_EXPONENT, THRESHOLDS, Threshold};

/// Mode parameters: what is, and what will be after a restart.
#[derive(Debug)]
pub(super) struct Modes {
    pub(super) current: ModeValues,
    pub(super) saved: Option<SavedModes>,
}

/// The volatile cache that a reset has turned off, or a MODE SELECT that could not flush it. What it held becomes stable by a flush of
/// the unit's own.
#[derive(Debug, Default)]
pub(super) struct Drain {
    /// In one, so that nobody finds it over between two changes.
    state: AtomicU8,
    /// It has failed, and what else the unit has to do comes first this time.
    yields: AtomicBool,
}

impl Drain {
    const OWED: u8 = 1;
    const FLUSHING: u8 = 2;

    fn is_over(&self) -> bool {
        self.state.load(Ordering::Acquire) == 0
    }

    fn owe(&self) {
        self.state.fetch_or(Drain::OWED, Ordering::AcqRel);
    }

    /// The state becomes what `change` makes of it. `None`: it stays.
    fn change(&self, change: impl Fn(u8) -> Option<u8>) -> Option<u8> {
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, &change).ok().and_then(change)
    }

    /// Whether something else has the next turn; asked once for each.
    pub(super) fn yields(&self) -> bool {
        self.yields.swap(false, Ordering::AcqRel)
    }

    /// Somebody else has flushed what was in the cache when it was turned off. A flush that is under way ends by itself. True: nothing
    /// is in the cache any more.
    fn settle(&self) -> bool {
        self.change(|state| (state == Drain::OWED).then_some(0)).is_some()
    }

    /// True: the caller flushes, and tells how that has ended. Who asks again before that could not flush, and shall.
    pub(super) fn begin(&self) -> bool {
        self.change(|state| (state != 0).then_some(Drain::FLUSHING)).is_some()
    }

    /// What was under way has ended. `None`: it was no flush of this. True: nothing is in the cache any more.
    fn end(&self, went_well: bool) -> Option<bool> {
        let left = |state| if went_well { state & !Drain::FLUSHING } else { Drain::OWED };
        let ended = self.change(|state| (state & Drain::FLUSHING != 0).then(|| left(state)));
        if ended.is_some() {
            self.yields.store(!went_well, Ordering::Release);
        }
        ended.map(|state| state == 0)
    }
}

impl LogicalUnit {
    /// True while an answered write may still be in a volatile cache (WCE bit of the caching mode page).
    pub fn write_cache_enabled(&self) -> bool {
        self.mode().write_cache_enabled()
    }

    /// True while a volatile cache may hold what was answered: as long as there is one, and until what it held is stable when
    /// it was turned off.
    pub(crate) fn cache_may_be_dirty(&self) -> bool {
        !self.config.read_only && (self.write_cache_enabled() || !self.drain.is_over())
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

    /// What MODE SENSE tells of them. A write cache is told until nothing is in it any more.
    pub(crate) fn mode_told(&self) -> ModeValues {
        let mut told = self.mode_values();
        if self.cache_may_be_dirty() {
            told.flags = told.flags.with_write_cache();
        }
        told
    }

    /// The cache is off, and what it held was not flushed for the command that has turned it off.
    pub(crate) fn owe_drain(&self) {
        self.drain.owe();
    }

    /// The cache is off, and the command of this nexus that has turned it off has flushed it since. Others may have read meanwhile that
    /// there is one.
    pub(crate) fn settle_drain(&self, by: &Arc<ItlNexus>) {
        if self.drain.settle() {
            self.establish_for_others(by, UnitAttention::ModeParametersChanged);
        }
    }

    /// An operation of the unit's own has ended. True: it was the flush of a cache that was turned off. Who has read
    /// meanwhile that there is one hears that there is none.
    pub(super) fn drained(&self, went_well: bool) -> bool {
        let ended = self.drain.end(went_well);
        if ended == Some(true) && !self.write_cache_enabled() {
            self.attach_all();
            self.nexuses().iter().for_each(|nexus| nexus.establish(UnitAttention::ModeParametersChanged));
        }
        ended.is_some()
    }

    /// What is there after a restart or a reset.
    pub(crate) fn mode_saved(&self) -> ModeValues {
        self.modes().saved.map_or_else(|| self.mode_default(), |saved| saved.values)
    }

    pub(crate) fn mode_default(&self) -> ModeValues {
        ModeValues::new(ModeFlags::new(self.config.write_cache))
    }

    /// A logical unit reset: what is saved is in force again, and nexuses have the initial priority. Writes are stable from now
    /// on if that turns the write cache off; what it holds becomes so by a flush of the unit's own.
    pub(super) fn restore_mode(&self) {
        let mut modes = self.modes();
        let had_cache = self.cache_may_be_dirty();
        modes.current = modes.saved.map_or_else(|| self.mode_default(), |saved| saved.values);
        let is_owed = had_cache && !modes.current.flags.write_cache_enabled();
        // Before, so that nobody finds the cache off and clean; and after, for a flush that has been quicker does not have
        // what was written until then.
        if is_owed {
            self.drain.owe();
        }
        self.put_into_effect(modes.current.flags);
        if is_owed {
            self.drain.owe();
        }
        self.reset_priorities(modes.current.initial_priority);
    }

    /// With the lock of the values held.
    fn put_into_effect(&self, flags: ModeFlags) {
        self.mode.store(flags.bits(), Ordering::Release);
        self.tasks.restrict(flags.restricted_reordering());
    }

    /// Changes the values to what `wanted` makes of them, and answers those before and after. With `save` they are what
    /// the saved state has from now on, with WCE if a host has chosen it: by that page, or by what is another one than the configured.
    pub(crate) fn change_mode(
        &self,
        save: bool,
        wanted: impl FnOnce(&ModeValues) -> Result<Selected, SenseData>,
    ) -> Result<(ModeValues, ModeValues), SenseData> {
        let mut modes = self.modes();
        let before = modes.current;
        let Selected { values: mut after, has_caching_page } = wanted(&before)?;
        // Who gives back the cache that is told until it is empty does not ask for a new one.
        if !before.flags.write_cache_enabled() && !self.drain.is_over() {
            after.flags = after.flags.without_write_cache();
        }
        modes.current = after;
        self.put_into_effect(after.flags);
        if save {
            let has_write_cache = has_caching_page
                || modes.saved.is_some_and(|saved| saved.has_write_cache)
                || after.flags.write_cache_enabled() != self.config.write_cache;
            let saved = SavedModes { values: after, has_write_cache };
            modes.saved = Some(saved);
            self.saved.set_section(Section::ModePages, saved.to_bytes());
        }
        if before.initial_priority != after.initial_priority {
            self.set_initial_priority(after.initial_priority);
        }
        Ok((before, after))
    }

    /// The store says how much space the unit has. Initiators that set a threshold in the logical block provisioning mode
    /// page hear when it is reached, by THIN PROVISIONING SOFT THRESHOLD REACHED (SBC-3); where there is none, the first that
    /// come. Call it before the unit is served, and again now and then; not for a unit that is not thin.
    pub fn note_space(&self, space: Space) {
        let ModeValues { flags, thresholds, .. } = self.mode_values();
        // What is not reported is not reached either: it is when it is reported.
        let reported = if flags.provisioning_reports() { thresholds } else { [Threshold::NONE; THRESHOLDS] };
        if !self.space.note(space, &reported, self.space_unit_bytes()) {
            return;
        }
        self.attach_all();
        let nexuses = self.nexuses();
        if nexuses.is_empty() {
            self.space.forget_reached();
        }
        let told = if flags.single_initiator() { 1 } else { usize::MAX };
        nexuses.iter().take(told).for_each(|nexus| nexus.establish(UnitAttention::ThresholdReached));
    }

    /// A nexus comes up while a threshold is reached: it is one of all that are to be told, unless one was enough (SBC-3, SITUA).
    pub(super) fn tell_of_space(&self, nexus: &ItlNexus) {
        let flags = self.mode();
        if flags.provisioning_reports() && !flags.single_initiator() && self.space.is_reached() {
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
}
