//! The thread that stores the state of logical units, for commands that are answered when it is stable.
//!
//! It is no part of the data path: what it stores changes a few times a day. One thread for all units keeps the
//! states of a unit in order, because each write takes the newest.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use lunette_block::StateFile;
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

impl Told {
    fn tell(&self, is_stable: bool) {
        match self {
            Told::Nobody => {}
            Told::Command { reactor, waiter } => {
                reactor.send(Message::StateStored { waiter: *waiter, is_stable });
            }
            Told::Upkeep { mailbox, unit } => mailbox.send(upkeep::Message::Saved { unit: *unit, is_stable }),
        }
    }
}

/// A command that waits for something that is neither its data nor its store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitingCommand {
    pub(crate) session: usize,
    pub(crate) place: SessionPlace,
    pub(crate) task: TaskId,
}

/// Starts the thread. It ends when nobody can ask it any more.
///
/// # Errors
/// The system refuses a thread.
pub(crate) fn spawn() -> std::io::Result<Sender<Save>> {
    let (sender, receiver) = channel();
    thread::Builder::new().name("state".into()).spawn(move || run(&receiver))?;
    Ok(sender)
}

fn run(requests: &Receiver<Save>) {
    while let Ok(first) = requests.recv() {
        let mut waiting: Vec<Save> = std::iter::once(first).chain(requests.try_iter()).collect();
        while let Some(file) = waiting.first().map(|save| Arc::clone(&save.file)) {
            // All that asked before the state is taken are served by one write.
            let (served, rest) = waiting.into_iter().partition(|save| Arc::ptr_eq(&save.file, &file));
            waiting = rest;
            store(served);
        }
    }
}

/// Stores the state of the one unit that all of `served` are about.
fn store(served: Vec<Save>) {
    let Some(Save { unit, file, .. }) = served.first() else { return };
    let result = file.replace(&unit.state());
    if let Err(error) = &result {
        error!(path = %file.path().display(), %error, "the state of a logical unit cannot be stored");
    }
    for save in &served {
        if result.is_err() && matches!(save.told, Told::Nobody) {
            unit.note_state_not_stored();
        }
        save.told.tell(result.is_ok());
    }
}
