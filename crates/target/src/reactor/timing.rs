//! The times of tasks, where they are recorded: when one comes, and when its answer is ready. The stages between are entered where the
//! task enters them, in `commands`.

use std::time::Duration;

use lunette_iscsi::session::TaskId;

use super::Reactor;
use super::session::TargetSession;
use crate::recorder::Recorder;
use crate::task_times::{TaskName, TaskTimes};

impl Reactor {
    /// Times a task that has just come, if its target records times.
    pub(super) fn time_task(&mut self, index: usize, id: TaskId) {
        if self.shared.recorder.as_ref().is_some_and(Recorder::has_times) {
            self.begin_times(index, id);
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
            let (isid, tsih) = (self.key.isid, self.place.tsih);
            recorder.record_times(TaskName { isid, tsih, tag: view.initiator_task_tag }, spent);
        }
    }
}
