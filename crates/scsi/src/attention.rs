//! Unit attention conditions, one queue for each I_T_L nexus (SAM-5, unit attention condition).
//!
//! Which commands report a condition is said in the command table, not here.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::alua::AccessState;
use crate::commands::Buffers;
use crate::copy::CopyRecords;
use crate::lun::Lun;
use crate::nexus::NexusName;
use crate::reservations::access::Permission;
use crate::sense::{AdditionalSense, SenseData, SenseKey};
use crate::status::Status;

/// Something that an initiator must be told once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitAttention {
    PowerOn,
    BusDeviceReset,
    ItNexusLoss,
    MediumMayHaveChanged,
    ModeParametersChanged,
    CapacityChanged,
    ThresholdReached,
    CommandsCleared,
    CommandsClearedByProtocol,
    ReservationsPreempted,
    ReservationsReleased,
    RegistrationsPreempted,
    AccessStateChanged,
    PriorityChanged,
    TimestampChanged,
    IdentifyingInformationChanged,
    LogParametersChanged,
    PreviousBusy,
    PreviousTaskSetFull,
    PreviousReservationConflict,
}

impl UnitAttention {
    /// What is told first (SAM-5, unit attention condition precedence): the lowest. Resets, of which at most one is pending,
    /// then the loss of the nexus, then everything else.
    const fn precedence(self) -> u8 {
        match self {
            UnitAttention::PowerOn | UnitAttention::BusDeviceReset => 0,
            UnitAttention::ItNexusLoss => 1,
            _ => 2,
        }
    }

    /// What a status without sense data is followed by, where it is (SPC-4, UA_INTLCK_CTRL).
    const fn after(status: Status) -> Option<UnitAttention> {
        match status {
            Status::Busy => Some(UnitAttention::PreviousBusy),
            Status::TaskSetFull => Some(UnitAttention::PreviousTaskSetFull),
            Status::ReservationConflict => Some(UnitAttention::PreviousReservationConflict),
            Status::Good | Status::CheckCondition | Status::AcaActive | Status::TaskAborted => None,
        }
    }

    const fn follows_status(self) -> bool {
        matches!(
            self,
            UnitAttention::PreviousBusy
                | UnitAttention::PreviousTaskSetFull
                | UnitAttention::PreviousReservationConflict
        )
    }

    pub(crate) fn sense(self) -> SenseData {
        let code = match self {
            UnitAttention::PowerOn => AdditionalSense::POWER_ON,
            UnitAttention::BusDeviceReset => AdditionalSense::BUS_DEVICE_RESET,
            UnitAttention::ItNexusLoss => AdditionalSense::IT_NEXUS_LOSS,
            UnitAttention::MediumMayHaveChanged => AdditionalSense::MEDIUM_MAY_HAVE_CHANGED,
            UnitAttention::ModeParametersChanged => AdditionalSense::MODE_PARAMETERS_CHANGED,
            UnitAttention::CapacityChanged => AdditionalSense::CAPACITY_CHANGED,
            UnitAttention::ThresholdReached => AdditionalSense::SOFT_THRESHOLD_REACHED,
            UnitAttention::CommandsCleared => AdditionalSense::COMMANDS_CLEARED,
            UnitAttention::CommandsClearedByProtocol => AdditionalSense::COMMANDS_CLEARED_BY_PROTOCOL,
            UnitAttention::ReservationsPreempted => AdditionalSense::RESERVATIONS_PREEMPTED,
            UnitAttention::ReservationsReleased => AdditionalSense::RESERVATIONS_RELEASED,
            UnitAttention::RegistrationsPreempted => AdditionalSense::REGISTRATIONS_PREEMPTED,
            UnitAttention::AccessStateChanged => AdditionalSense::ACCESS_STATE_CHANGED,
            UnitAttention::PriorityChanged => AdditionalSense::PRIORITY_CHANGED,
            UnitAttention::TimestampChanged => AdditionalSense::TIMESTAMP_CHANGED,
            UnitAttention::IdentifyingInformationChanged => AdditionalSense::DEVICE_IDENTIFIER_CHANGED,
            UnitAttention::LogParametersChanged => AdditionalSense::LOG_PARAMETERS_CHANGED,
            UnitAttention::PreviousBusy => AdditionalSense::PREVIOUS_BUSY,
            UnitAttention::PreviousTaskSetFull => AdditionalSense::PREVIOUS_TASK_SET_FULL,
            UnitAttention::PreviousReservationConflict => AdditionalSense::PREVIOUS_RESERVATION_CONFLICT,
        };
        SenseData::new(SenseKey::UnitAttention, code)
    }
}

/// Is told of unit attention conditions as they come up, for a transport that can tell its initiator without being asked.
pub trait Herald: fmt::Debug + Send + Sync {
    /// A unit has a condition for the nexus that it did not have before; [`crate::Nexus::attention_sense`] makes sense data of `code`.
    /// The condition stays, as if nobody had been told. Called on any thread and with locks of the unit held.
    fn unit_attention(&self, lun: Lun, code: AdditionalSense);
}

/// What one logical unit keeps for one I_T nexus.
#[derive(Debug)]
pub(crate) struct ItlNexus {
    name: NexusName,
    /// What reservations let it do: [`Permission`]. With the next two all that the common path looks at.
    permission: AtomicU8,
    /// How the unit can be reached through its target port: [`AccessState`].
    access_state: AtomicU8,
    /// What the commands of the nexus have that bring no priority of their own ([`crate::priority`]).
    priority: AtomicU8,
    /// True while the queue holds something.
    pending: AtomicBool,
    /// At most one of each kind, so the queue is bounded by the number of kinds.
    queue: Mutex<VecDeque<UnitAttention>>,
    /// Who is told of what comes into the queue, and under which number the nexus knows the unit.
    herald: OnceLock<(Lun, Arc<dyn Herald>)>,
    /// PREVENT ALLOW MEDIUM REMOVAL was set by this nexus.
    prevents_removal: AtomicBool,
    copies: CopyRecords,
    /// How often the copies that reach the unit through this nexus were told to end.
    copies_ended: AtomicU32,
    buffers: Buffers,
}

impl ItlNexus {
    /// A nexus that has just come up: POWER ON comes first (SAM-5).
    pub(crate) fn new(name: NexusName) -> ItlNexus {
        let nexus = ItlNexus {
            name,
            permission: AtomicU8::new(Permission::All as u8),
            access_state: AtomicU8::new(AccessState::default() as u8),
            priority: AtomicU8::new(crate::priority::NONE),
            pending: AtomicBool::new(false),
            queue: Mutex::default(),
            herald: OnceLock::new(),
            prevents_removal: AtomicBool::new(false),
            copies: CopyRecords::default(),
            copies_ended: AtomicU32::new(0),
            buffers: Buffers::default(),
        };
        nexus.establish(UnitAttention::PowerOn);
        nexus
    }

    pub(crate) fn name(&self) -> &NexusName {
        &self.name
    }

    /// True where reservations or the state of the target port may keep the nexus from something.
    pub(crate) fn is_limited(&self) -> bool {
        self.permission.load(Ordering::Acquire) != Permission::All as u8
            || self.access_state.load(Ordering::Acquire) != AccessState::ActiveOptimized as u8
    }

    pub(crate) fn permission(&self) -> Permission {
        Permission::from_bits(self.permission.load(Ordering::Acquire))
    }

    pub(crate) fn set_permission(&self, permission: Permission) {
        self.permission.store(permission as u8, Ordering::Release);
    }

    pub(crate) fn access_state(&self) -> AccessState {
        AccessState::from_code(self.access_state.load(Ordering::Acquire)).unwrap_or_default()
    }

    pub(crate) fn set_access_state(&self, state: AccessState) {
        self.access_state.store(state as u8, Ordering::Release);
    }

    #[inline]
    pub(crate) fn priority(&self) -> u8 {
        self.priority.load(Ordering::Relaxed)
    }

    /// Answers what it was before.
    pub(crate) fn set_priority(&self, priority: u8) -> u8 {
        self.priority.swap(priority, Ordering::Relaxed)
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<UnitAttention>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a condition, unless it is pending already: behind those that come first, and behind those of its own rank,
    /// which came earlier. A reset clears what was before it, and is itself told by a
    /// pending POWER ON, which stands for any reset.
    pub(crate) fn establish(&self, attention: UnitAttention) {
        let mut queue = self.queue();
        let mut is_new = !queue.contains(&attention);
        if attention == UnitAttention::BusDeviceReset {
            let power_on = queue.contains(&UnitAttention::PowerOn);
            queue.clear();
            queue.push_back(if power_on { UnitAttention::PowerOn } else { attention });
            is_new &= !power_on;
        } else if is_new {
            let at = queue.partition_point(|pending| pending.precedence() <= attention.precedence());
            queue.insert(at, attention);
        }
        self.pending.store(true, Ordering::Release);
        drop(queue);
        if is_new && let Some((lun, herald)) = self.herald.get() {
            herald.unit_attention(*lun, attention.sense().code);
        }
    }

    /// Has `herald` told of what comes up from now on. Only the first one is.
    pub(crate) fn set_herald(&self, lun: Lun, herald: Arc<dyn Herald>) {
        self.herald.get_or_init(|| (lun, herald));
    }

    /// A command was refused by `status`, which the nexus is to be told again by sense data. Of such conditions there is one at
    /// a time, whatever is refused until it is cleared (SPC-4, UA_INTLCK_CTRL).
    pub(crate) fn establish_after(&self, status: Status) {
        let is_told = || self.queue().iter().any(|pending| pending.follows_status());
        if let Some(attention) = UnitAttention::after(status)
            && !is_told()
        {
            self.establish(attention);
        }
    }

    /// True while a condition is pending.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Takes the first condition, which is cleared by being reported.
    pub(crate) fn take(&self) -> Option<UnitAttention> {
        if !self.is_pending() {
            return None;
        }
        let mut queue = self.queue();
        let attention = queue.pop_front();
        if queue.is_empty() {
            self.pending.store(false, Ordering::Release);
        }
        attention
    }

    /// The first condition, and how many there are, without clearing anything.
    pub(crate) fn peek(&self) -> Option<(UnitAttention, usize)> {
        let queue = self.queue();
        queue.front().map(|&first| (first, queue.len()))
    }

    /// What WRITE BUFFER has written through this nexus.
    pub(crate) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// The copy operations that were begun through this nexus.
    pub(crate) fn copies(&self) -> &CopyRecords {
        &self.copies
    }

    /// Copies that reach the unit through this nexus, whichever unit's commands they are, do nothing more here.
    pub(crate) fn end_copies(&self) {
        self.copies_ended.fetch_add(1, Ordering::SeqCst);
    }

    /// Another number than when a copy began: it was told to end since.
    pub(crate) fn copies_ended(&self) -> u32 {
        self.copies_ended.load(Ordering::SeqCst)
    }

    pub(crate) fn prevents_removal(&self) -> bool {
        self.prevents_removal.load(Ordering::Acquire)
    }

    pub(crate) fn set_prevents_removal(&self, prevents: bool) {
        self.prevents_removal.store(prevents, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::TargetPort;

    fn new() -> ItlNexus {
        let target_port = TargetPort::new(1).unwrap();
        ItlNexus::new(NexusName { initiator_port: "host".into(), target_port })
    }

    #[test]
    fn conditions_come_in_order_and_once() {
        let nexus = new();
        nexus.establish(UnitAttention::ModeParametersChanged);
        nexus.establish(UnitAttention::CommandsCleared);
        nexus.establish(UnitAttention::ModeParametersChanged);
        assert_eq!(nexus.take(), Some(UnitAttention::PowerOn));
        assert_eq!(nexus.take(), Some(UnitAttention::ModeParametersChanged));
        assert_eq!(nexus.take(), Some(UnitAttention::CommandsCleared));
        assert_eq!(nexus.take(), None);
    }

    #[test]
    fn what_takes_precedence_comes_first() {
        let nexus = new();
        assert_eq!(nexus.take(), Some(UnitAttention::PowerOn));
        nexus.establish(UnitAttention::ModeParametersChanged);
        nexus.establish(UnitAttention::CapacityChanged);
        nexus.establish(UnitAttention::ItNexusLoss);
        assert_eq!(nexus.peek(), Some((UnitAttention::ItNexusLoss, 3)));
        nexus.establish(UnitAttention::PowerOn);
        nexus.establish(UnitAttention::ReservationsReleased);
        let told = std::iter::from_fn(|| nexus.take()).collect::<Vec<_>>();
        let expected = [
            UnitAttention::PowerOn,
            UnitAttention::ItNexusLoss,
            UnitAttention::ModeParametersChanged,
            UnitAttention::CapacityChanged,
            UnitAttention::ReservationsReleased,
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_reset_clears_older_conditions() {
        let nexus = new();
        assert_eq!(nexus.take(), Some(UnitAttention::PowerOn));
        nexus.establish(UnitAttention::ModeParametersChanged);
        nexus.establish(UnitAttention::BusDeviceReset);
        assert_eq!(nexus.take(), Some(UnitAttention::BusDeviceReset));
        assert_eq!(nexus.take(), None);
    }

    #[test]
    fn power_on_stands_for_a_reset() {
        let nexus = new();
        nexus.establish(UnitAttention::BusDeviceReset);
        assert_eq!(nexus.take(), Some(UnitAttention::PowerOn));
        assert_eq!(nexus.take(), None);
    }
}
