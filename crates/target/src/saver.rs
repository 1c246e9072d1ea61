//! The threads that store the state of logical units, for commands that are answered when it is stable.
//!
//! They are no part of the data path: what they store changes a few times a day. A file has a thread as long as it has
//! something to be stored, so that one that hangs holds up its own unit alone. That it has one keeps the states of a unit in
//! order, because each write takes the newest.

use std::collections::HashMap;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, thread};

use lunette_block::{ReplaceError, StateFile};
use lunette_iscsi::session::TaskId;
use lunette_scsi::LogicalUnit;
use tracing::error;

use crate::mailbox::Mailbox;
use crate::reactor::Message;
use crate::registry::SessionPlace;
use crate::upkeep;

/// A wish that the state of a unit be stable.
#[derive(Debug)]
pub(crate) struct Save {
    pub(crate) unit: Arc<LogicalUnit>,
    pub(crate) file: Arc<StateFile>,
    pub(crate) told: Told,
}

/// Who hears of it.
#[derive(Debug)]
pub(crate) enum Told {
    /// A command of a reactor.
    Command { reactor: Arc<Mailbox<Message>>, waiter: WaitingCommand },
    /// What the operator has changed waits for nothing.
    Nobody,
    /// A unit's own work.
    Upkeep { mailbox: Arc<Mailbox<upkeep::Message>>, unit: usize },
}

impl Save {
    fn tell(&self, is_stable: bool) {
        match &self.told {
            Told::Nobody if is_stable => {}
            Told::Nobody => self.unit.note_state_not_stored(),
            Told::Command { reactor, waiter } => {
                reactor.send(Message::StateStored { waiter: *waiter, is_stable });
            }
            Told::Upkeep { mailbox, unit } => mailbox.send(upkeep::Message::Saved { unit: *unit, is_stable }),
        }
    }
}

/// A command that waits for something that is neither its data nor its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WaitingCommand {
    pub(crate) session: usize,
    pub(crate) place: SessionPlace,
    pub(crate) task: TaskId,
}

/// Who stores states.
#[derive(Debug, Clone, Default)]
pub(crate) struct Saver {
    files: Arc<Mutex<Files>>,
    /// Told when a file has nothing more to be stored.
    idle: Arc<Condvar>,
}

/// What waits for the thread of each file that has one. The files are those of the wishes, and told apart by where they
/// are in memory, which a thread keeps them at until it takes its entry away.
type Files = HashMap<usize, Vec<Save>>;

impl Saver {
    /// Has a state stored. Whoever is to hear of it does, in every case.
    pub(crate) fn store(&self, save: Save) {
        let key = Arc::as_ptr(&save.file).addr();
        let mut files = self.lock();
        if let Some(waiting) = files.get_mut(&key) {
            return waiting.push(save);
        }
        let (saver, file) = (self.clone(), Arc::clone(&save.file));
        files.insert(key, vec![save]);
        // Nobody else looks at this entry before the lock is let go.
        let run = move || saver.run(key, &file);
        if let Err(error) = thread::Builder::new().name("state".into()).spawn(run) {
            error!(%error, "no thread to store the state of a logical unit");
            let refused = files.remove(&key);
            drop(files);
            refused.into_iter().flatten().for_each(|save| save.tell(false));
        }
    }

    /// Waits until nothing is being stored any more; false when that took longer than `limit`. Who lets a file go before has two processes
    /// store it side by side.
    pub(crate) fn settle(&self, limit: Duration) -> bool {
        let waited = self.idle.wait_timeout_while(self.lock(), limit, |files| !files.is_empty());
        waited.unwrap_or_else(PoisonError::into_inner).0.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the state of one unit until nobody asks for it any more.
    fn run(&self, key: usize, file: &StateFile) {
        while let Some(served) = self.take(key) {
            // All that asked before the state is taken are served by one write. Who panics still owes them an answer.
            let stored =
                panic::catch_unwind(AssertUnwindSafe(|| store(&served, file))).unwrap_or_else(|_| {
                    let error = io::Error::other("storing it panicked; this is a defect");
                    Err(ReplaceError::InDoubt(error))
                });
            if let Err(error) = &stored {
                error!(path = %file.path().display(), %error, "the state of a logical unit cannot be stored");
            }
            served.iter().for_each(|save| save.tell(stored.is_ok()));
        }
    }

    /// What waits for a file; the entry of one that nothing waits for is taken away.
    fn take(&self, key: usize) -> Option<Vec<Save>> {
        let mut files = self.lock();
        let served = std::mem::take(files.get_mut(&key)?);
        if served.is_empty() {
            files.remove(&key);
            self.idle.notify_all();
            return None;
        }
        Some(served)
    }
}

/// Stores the state of the one unit that all of `served` are about.
fn store(served: &[Save], file: &StateFile) -> Result<(), ReplaceError> {
    let Some(save) = served.first() else { return Ok(()) };
    let state = save.unit.state();
    let stored = file.replace(&state.settings, &state.reservations);
    if let Err(ReplaceError::Unchanged(_)) = stored {
        save.unit.note_stored_state_stands();
    }
    stored
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_settles_waits_for_all_that_is_being_stored() {
        let saver = Saver::default();
        assert!(saver.settle(Duration::ZERO));
        saver.lock().insert(1, Vec::new());
        assert!(!saver.settle(Duration::from_millis(1)));
        let other = saver.clone();
        let stored = thread::spawn(move || other.take(1).is_none());
        assert!(saver.settle(Duration::from_secs(60)));
        assert!(stored.join().expect("an end"));
    }
}
