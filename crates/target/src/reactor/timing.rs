//! The times of tasks and logins, where they are recorded: when one comes, and when its answer is ready. The stages between are
//! entered where the task enters them, in `commands`.

use std::time::Duration;

use lunette_iscsi::session::TaskId;
use lunette_wire::Cid;

use super::Reactor;
use super::session::TargetSession;
use crate::recorder::Recorder;
use crate::task_times::{LoginTimes, SessionName, TaskName, TaskTimes};

/// The times of a login that is not over.
#[derive(Debug, Default)]
pub(super) struct TimedLogin {
    /// When the request had come that is not answered yet.
    asked_at: Option<Duration>,
    times: LoginTimes,
}

impl Reactor {
    /// Times a task that has just come, if its target records times.
    pub(super) fn time_task(&mut self, index: usize, id: TaskId) {
        if self.shared.recorder.as_ref().is_some_and(Recorder::has_times) {
            self.begin_times(index, id);
        }
    }

    /// Times a Login Request that has just come, if its target records times.
    pub(super) fn time_login(&mut self, index: usize) {
        if self.shared.recorder.as_ref().is_some_and(Recorder::has_times)
            && let Some(connection) = self.connections.get_mut(index)
        {
            let login = connection.login_times.get_or_insert_default();
            login.asked_at = Some(self.started.elapsed());
        }
    }

    /// Its answer is ready.
    pub(super) fn answer_login(&mut self, index: usize) {
        let now = || self.started.elapsed();
        let login = self.connections.get_mut(index).and_then(|connection| connection.login_times.as_mut());
        if let Some(login) = login
            && let Some(asked_at) = login.asked_at.take()
        {
            login.times.add(now().saturating_sub(asked_at));
        }
    }

    /// The last answer is ready, and the connection is one of a session.
    pub(super) fn tell_login(&mut self, index: usize, session: SessionName, cid: Cid) {
        let login = self.connections.get_mut(index).and_then(|connection| connection.login_times.take());
        if let (Some(login), Some(recorder)) = (login, &self.shared.recorder) {
            recorder.record_login(session, cid, login.times);
        }
    }

    #[cold]
    fn begin_times(&mut self, index: usize, id: TaskId) {
        let now = self.started.elapsed();
        if let Some(context) = self.sessions.get_mut(index).and_then(|session| session.context(id)) {
            context.times = Some(Box::new(TaskTimes::new(now)));
        }
    }
}

impl TargetSession {
    /// A task's answer is ready.
    #[cold]
    pub(super) fn tell_times(
        &self,
        recorder: Option<&Recorder>,
        now: Duration,
        id: TaskId,
        times: TaskTimes,
    ) {
        if let (Some(view), Some(recorder), Some(spent)) = (self.core.task(id), recorder, times.end(now)) {
            let session = SessionName { isid: self.key.isid, tsih: self.place.tsih };
            recorder.record_times(TaskName { session, tag: view.initiator_task_tag }, spent);
        }
    }
}
