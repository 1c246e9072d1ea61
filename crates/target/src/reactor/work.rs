//! Commands that give their unit work, and those of them that are answered when it is over.
//!
//! Who does the work is in `crate::upkeep`. It goes on whatever becomes of the command.

use lunette_iscsi::session::TaskId;

use super::Reactor;
use crate::saver::WaitingCommand;
use crate::upkeep;

impl Reactor {
    /// The unit of a command has taken work on. With `until_over` the command is in a store, as it were, until that ends.
    pub(super) fn begin_work(&mut self, index: usize, id: TaskId, until_over: bool) {
        self.shared.upkeep.send(upkeep::Message::Work);
        let Some(session) = self.sessions.get_mut(index) else { return };
        let place = session.place;
        let Some(context) = session.context(id) else { return };
        context.in_store = true;
        let waiter = WaitingCommand { session: index, place, task: id };
        if until_over {
            self.at_work.push(waiter);
        } else {
            self.wait_over(waiter, true);
        }
    }

    /// Answers commands whose unit's work is over, and lets those go that were aborted.
    pub(super) fn settle_work(&mut self) {
        if self.at_work.is_empty() {
            return;
        }
        let sessions = &mut self.sessions;
        let (waiting, over): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.at_work).into_iter().partition(|of| {
                let Some(session) = sessions.get_mut(of.session).filter(|session| session.place == of.place)
                else {
                    return false;
                };
                let unit =
                    session.context(of.task).and_then(|context| context.command.as_ref()?.unit_index());
                let units = session.attachment.as_ref().map(|attachment| attachment.nexus.device().units());
                let unit = unit.and_then(|unit| units?.nth(unit));
                let is_wanted = session.core.task(of.task).is_some_and(|view| !view.aborted);
                is_wanted && unit.is_some_and(|(_, unit)| unit.is_at_work())
            });
        self.at_work = waiting;
        over.into_iter().for_each(|waiter| self.wait_over(waiter, true));
    }
}
