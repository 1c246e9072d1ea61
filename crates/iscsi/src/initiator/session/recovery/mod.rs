//! Error recovery above level 0 (RFC 7143, chapter 7): what is lost is found out and asked for again.
//!
//! Level 1 mends what digest errors have spoilt: `status` puts numbered responses in order and asks for those that are
//! missing, `data` does the same for the data of reads and for R2Ts, `retry` brings commands again that the target has not
//! received. Level 2 keeps the tasks of a connection that is lost (`connections`) and takes them to another (`reassign`).
//! Nothing here knows a clock but `tick`, which asks again for what has not come.

mod connections;
mod data;
mod reassign;
mod retry;
mod snack;
mod status;

pub(super) use connections::Lost;
pub(super) use data::check_recovering;
pub(super) use reassign::Reassign;
pub(super) use status::{Order, StatusOrder};

use super::Session;

impl Session {
    /// What is lost on a connection is asked for again (ErrorRecoveryLevel 1 and 2).
    pub(super) const fn recovers(&self) -> bool {
        self.parameters.error_recovery_level > 0
    }

    /// Tasks outlive their connection (ErrorRecoveryLevel 2).
    pub(super) const fn retains(&self) -> bool {
        self.parameters.error_recovery_level > 1
    }
}
