//! Commands that are answered when their unit's state is stable.
//!
//! What the state is, the device server knows; who stores it is in `crate::saver`.

use std::io;
use std::sync::Arc;

use lunette_block::{Done, ErrorClass, IoCompletion, StateFile, StoreError};
use lunette_iscsi::session::TaskId;
use lunette_scsi::LogicalUnit;

use super::Reactor;
use super::commands::store_tag;
use super::ending::hardware_error;
use crate::saver::{Save, Told, WaitingCommand};
use crate::units::ServedTarget;
use crate::upkeep;

impl Reactor {
    /// Has the state of a command's unit stored, or of unit `naa`. The command is in a store until then.
    pub(super) fn store_state(&mut self, index: usize, id: TaskId, naa: Option<u64>) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        let place = session.place;
        let Some(attachment) = &session.attachment else { return };
        let Some(context) = session.contexts.get_mut(id.slot()).and_then(Option::as_mut) else { return };
        let found = match naa {
            Some(naa) => self.shared.targets.iter().find_map(|target| {
                let place = target.device.units().position(|(_, unit)| unit.identity().naa == naa)?;
                unit_with_state(target, place)
            }),
            None => {
                let place = context.command.as_ref().and_then(lunette_scsi::Task::unit_index);
                place.and_then(|place| unit_with_state(&attachment.target, place))
            }
        };
        let Some((unit, file)) = found else { return self.finish(index, id, &hardware_error()) };
        let waiter = WaitingCommand { session: index, place, task: id };
        let told = Told::Command { reactor: Arc::clone(&self.mailbox), waiter };
        context.in_store = true;
        self.shared.saver.store(Save { unit, file, told });
    }

    /// The state was stored for a command, or could not be. What the command leaves undone, because it was aborted or
    /// because of the failure, is the unit's own work.
    pub(super) fn state_stored(&mut self, waiter: WaitingCommand, is_stable: bool) {
        self.wait_over(waiter, is_stable);
        self.shared.upkeep.send(upkeep::Message::Work);
    }

    /// What a command waited for has happened, or cannot.
    pub(super) fn wait_over(&mut self, waiter: WaitingCommand, went_well: bool) {
        let WaitingCommand { session: index, place, task } = waiter;
        if self.sessions.get(index).is_none_or(|session| session.place != place) {
            return;
        }
        let failed = || StoreError::Io {
            kind: ErrorClass::Hardware,
            offset: 0,
            source: io::Error::other("what the command waited for failed"),
        };
        let result = if went_well { Ok(Done::Nothing) } else { Err(failed()) };
        self.io_finished(index, IoCompletion { tag: store_tag(index, task), result, buffer: None });
        self.run_session(index);
    }
}

/// A unit by its place, and where its state is kept.
fn unit_with_state(target: &ServedTarget, place: usize) -> Option<(Arc<LogicalUnit>, Arc<StateFile>)> {
    let (_, unit) = target.device.units().nth(place)?;
    Some((Arc::clone(unit), target.states.get(place)?.clone()?))
}
