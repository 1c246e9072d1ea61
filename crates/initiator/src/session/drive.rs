//! What the thread of a session needs of its engine, whether that has one path or several.

use std::time::Duration;

use lunette_iscsi::initiator::session::Function;
use lunette_iscsi::parameters::SessionParameters;
use lunette_scsi::client::UnitIdentity;

use crate::engine::{ConnectionInfo, Engine, EngineEvent, RequestId, Waker};
use crate::multipath::{self, PathInfo};
use crate::{Command, CommandError, CommandId, Completion, Error, LoginRecord, Lun};

/// An engine of one path or of several, as its thread sees it.
pub(super) trait Drive {
    fn submit(&mut self, command: Command) -> CommandId;
    fn guard(&mut self, lun: Lun, identity: UnitIdentity);
    fn manage(&mut self, function: Function) -> Result<RequestId, CommandError>;
    fn log_out(&mut self);
    fn poll(&mut self, done: &mut Vec<Completion>) -> Result<(), Error>;
    fn event(&mut self) -> Option<EngineEvent>;
    fn outstanding(&self) -> usize;
    fn is_over(&self) -> bool;
    fn elapsed(&self) -> Duration;
    fn waker(&self) -> Waker;
    fn connections(&self) -> Vec<ConnectionInfo>;
    fn parameters(&self) -> SessionParameters;
    fn paths(&self) -> Vec<PathInfo>;
    fn login_record(&self) -> LoginRecord;
}

/// What both engines have under the same names.
macro_rules! drive_by_name {
    () => {
        fn submit(&mut self, command: Command) -> CommandId {
            self.submit(command)
        }

        fn guard(&mut self, lun: Lun, identity: UnitIdentity) {
            self.guard(lun, identity);
        }

        fn log_out(&mut self) {
            self.log_out();
        }

        fn poll(&mut self, done: &mut Vec<Completion>) -> Result<(), Error> {
            self.poll(None, done)
        }

        fn event(&mut self) -> Option<EngineEvent> {
            self.event()
        }

        fn outstanding(&self) -> usize {
            self.outstanding()
        }

        fn is_over(&self) -> bool {
            self.is_over()
        }

        fn elapsed(&self) -> Duration {
            self.elapsed()
        }

        fn waker(&self) -> Waker {
            self.waker()
        }

        fn connections(&self) -> Vec<ConnectionInfo> {
            self.connections()
        }

        fn parameters(&self) -> SessionParameters {
            *self.parameters()
        }

        fn login_record(&self) -> LoginRecord {
            self.login_record().clone()
        }
    };
}

impl Drive for Engine {
    drive_by_name!();

    fn manage(&mut self, function: Function) -> Result<RequestId, CommandError> {
        self.manage(function)
    }

    fn paths(&self) -> Vec<PathInfo> {
        Vec::new()
    }
}

impl Drive for multipath::Engine {
    drive_by_name!();

    fn manage(&mut self, _: Function) -> Result<RequestId, CommandError> {
        Err(CommandError::Invalid(
            "a task management function belongs to one session, and there are several".into(),
        ))
    }

    fn paths(&self) -> Vec<PathInfo> {
        self.paths()
    }
}
