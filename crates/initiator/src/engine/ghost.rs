//! What a lost session may still carry out. The target ends it before it lets the next session in, but only where that has the same I_T
//! nexus (RFC 7143, 6.3.5): a session with another portal group leaves it alone, and what is still on its way to it would be written
//! over whatever is newer.

use lunette_wire::Isid;

use super::{Engine, replay};
use crate::connect::{Connected, Learnt, TargetEnd, end_session_at, say_goodbye};
use crate::{Error, Options};

impl Engine {
    /// A command has ended, and nobody knows what became of it. Where that is for the loss of its session, it may still change
    /// something.
    pub(super) fn note_ghost(&mut self, place: u32) {
        let may_change = self.table.get(place).is_some_and(|pending| !replay::is_read(&pending.command));
        if may_change && self.session.is_over() {
            self.ghost = Some(self.target_end.clone());
        }
    }
}

/// A new session, with what is left of the lost one ended: by its own login, or by one at the portal where the lost one was.
///
/// # Errors
/// [`Error::Haunted`]: it could not be ended; the new session is logged out.
pub(super) fn ended(
    options: &Options,
    learnt: &Learnt,
    isid: Isid,
    ghost: &TargetEnd,
    connected: Connected,
) -> Result<Connected, Error> {
    if connected.target_end().is_same_nexus(ghost) {
        return Ok(connected);
    }
    let there = Options { portals: vec![ghost.portal.clone()], ..options.clone() };
    let reason = match end_session_at(&there, learnt, isid) {
        Ok(end) if end.is_same_nexus(ghost) => return Ok(connected),
        Ok(end) => format!("a login there led to another group, at {}", end.portal),
        Err(error) => error.to_string(),
    };
    let portal = connected.portal.clone();
    // Nothing was done in it.
    let _ = say_goodbye(connected, options.timing.logout);
    Err(Error::Haunted { portal, old: ghost.portal.clone(), reason })
}
