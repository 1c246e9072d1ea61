//! What the handles of a session and its thread share.

use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use futures_channel::oneshot;
use lunette_iscsi::initiator::session::Function;
use lunette_iscsi::parameters::SessionParameters;
use lunette_scsi::client::UnitIdentity;
use lunette_wire::LunField;

use crate::engine::{ConnectionInfo, EngineEvent, Waker};
use crate::merge::Merging;
use crate::multipath::PathInfo;
use crate::{Command, CommandError, CommandId, Completion, Data, Lun, Portal, Times};

/// What a handle asks of the engine's thread.
pub(super) enum Request {
    Command(Command, Asker),
    Guard(Lun, Box<UnitIdentity>),
    Merge(Lun, Option<Merging>),
    Manage(Function, oneshot::Sender<Result<u8, CommandError>>),
    LogOut(oneshot::Sender<()>),
    /// The last handle has gone.
    Abandon,
}

/// Who waits for a command.
#[derive(Debug)]
pub(super) struct Asker {
    pub(super) answer: oneshot::Sender<Completion>,
    /// When it was submitted.
    pub(super) asked_at: Instant,
    /// The unit that it is for.
    pub(super) lun: LunField,
}

/// What handles and the engine's thread share.
pub(super) struct Shared {
    pub(super) requests: Mutex<Requests>,
    pub(super) waker: Waker,
    pub(super) facts: Mutex<Facts>,
    pub(super) thread: Mutex<Option<JoinHandle<()>>>,
}

/// What was asked and is not taken yet.
#[derive(Default)]
pub(super) struct Requests {
    pub(super) waiting: Vec<Request>,
    /// The thread has ended: nobody takes anything any more.
    pub(super) is_closed: bool,
}

/// What handles may look at.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) parameters: SessionParameters,
    pub(super) connections: Vec<ConnectionInfo>,
    pub(super) paths: Vec<PathInfo>,
    pub(super) events: Vec<EngineEvent>,
    pub(super) ghost_left: Option<Portal>,
    pub(super) is_over: bool,
}

impl Shared {
    pub(super) fn ask(&self, request: Request) {
        let mut requests = lock(&self.requests);
        if requests.is_closed {
            drop(requests);
            return request.refuse();
        }
        requests.waiting.push(request);
        let is_first = requests.waiting.len() == 1;
        drop(requests);
        if is_first {
            self.waker.wake();
        }
    }

    /// The thread ends: what was asked and what will be is refused.
    fn close(&self) {
        lock(&self.facts).is_over = true;
        let waiting = {
            let mut requests = lock(&self.requests);
            requests.is_closed = true;
            std::mem::take(&mut requests.waiting)
        };
        waiting.into_iter().for_each(Request::refuse);
    }
}

impl Request {
    /// It came too late: a command gets its buffer back, and the others see the end of their channels.
    fn refuse(self) {
        let Self::Command(command, asker) = self else { return };
        let buffer = match command.data {
            Data::None => Vec::new(),
            Data::In(buffer) | Data::Out(buffer) => buffer,
        };
        // Who waited may have gone.
        let _ = asker.answer.send(Completion {
            id: CommandId { place: 0, serial: 0 },
            result: Err(CommandError::NotSent("the session is over".to_owned())),
            buffer,
            received: 0,
            times: Times::default(),
            attempts: 0,
            session: 0,
        });
    }
}

/// Closes the requests when the thread ends, in whatever way.
pub(super) struct Closing<'a>(pub(super) &'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
