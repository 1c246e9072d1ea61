//! What may be done to a running server from outside.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use lunette_scsi::{AccessState, LogicalUnit, TargetPort};
use tracing::{error, info};

use crate::failure::AccessStateError;
use crate::isns;
use crate::mailbox::Mailbox;
use crate::reactor::Message;
use crate::saver::{Save, Told};
use crate::server::Shared;
use crate::units::ServedTarget;

/// Tells a running server to stop; clones may go to other threads.
#[derive(Debug, Clone)]
pub struct ServerHandle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) listener_stop: Arc<Mailbox<()>>,
    pub(crate) listener: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl ServerHandle {
    /// Begins to drain: no new logins, running commands end, initiators are asked to log out and are dropped after
    /// `limits.drain_timeout_s`. Returns at once; [`crate::Server::wait`] returns when it is over.
    pub fn drain(&self) {
        isns::leave(&self.shared.isns_stops);
        self.close_portals();
        self.shared.reactors.iter().for_each(|reactor| reactor.send(Message::Drain));
    }

    /// Changes how well the logical units of a target can be reached through one of its portal groups (SPC-4, implicit
    /// transition): initiators are told by a unit attention, and the state is kept over a restart where there is a
    /// place for it.
    ///
    /// # Errors
    /// [`AccessStateError`]; nothing is changed then.
    pub fn set_access_state(
        &self,
        target: &str,
        portal_group_tag: u16,
        state: AccessState,
    ) -> Result<(), AccessStateError> {
        let found = self.shared.targets.iter().find(|served| served.name == target);
        let served = found.ok_or_else(|| AccessStateError::NoTarget(target.to_owned()))?;
        let port = TargetPort::new(portal_group_tag)
            .filter(|port| served.device.ports().contains(port))
            .ok_or(AccessStateError::NoPortGroup(portal_group_tag))?;
        info!(target, portal_group_tag, ?state, "access state changed");
        self.change_units(served, |unit| unit.change_access_implicitly(&[(port, state)]));
        Ok(())
    }

    /// Changes something of all units of a target that is kept over a restart. `change` tells whether there was anything to
    /// change.
    pub(crate) fn change_units(&self, served: &ServedTarget, change: impl Fn(&LogicalUnit) -> bool) {
        for ((_, unit), file) in served.device.units().zip(&served.states) {
            if change(unit)
                && let Some(file) = file
            {
                let (unit, file) = (Arc::clone(unit), Arc::clone(file));
                self.shared.saver.store(Save { unit, file, told: Told::Nobody });
            }
        }
    }

    /// Bytes of the data buffers that commands and their answers hold at the moment.
    #[must_use]
    pub fn buffer_bytes_in_use(&self) -> usize {
        self.shared.pool.in_use_bytes()
    }

    /// Ends at once: connections are cut, running commands are not waited for.
    pub fn stop_now(&self) {
        self.shared.stop_now.store(true, Ordering::Release);
        self.close_portals();
        self.shared.reactors.iter().for_each(|reactor| reactor.send(Message::End));
    }

    /// Stops listening; returns when connection attempts are refused.
    pub(crate) fn close_portals(&self) {
        let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = listener {
            self.listener_stop.send(());
            // Once it is gone its sockets are closed, and a connection attempt is refused.
            if thread.join().is_err() {
                error!("the listening thread panicked");
            }
        }
    }
}
