//! What a lost session may still carry out. The target ends it before it lets the next session in, but only where that has the same I_T
//! nexus (RFC 7143, 6.3.5): a session with another portal group leaves it alone, and what is still on its way to it would be written
//! over whatever is newer.

use super::{Engine, replay};
use crate::connect::{Connected, Connector, Goal, Learnt, LoginRecord, TargetEnd, say_goodbye};
use crate::{Error, Options, Portal};

impl Engine {
    /// A command has ended, and nobody knows what became of it. Where that is for the loss of its session, it may still change
    /// something.
    pub(super) fn note_ghost(&mut self, place: u32) {
        let may_change = self.table.get(place).is_some_and(|pending| replay::may_change(&pending.command));
        if may_change && self.session.is_over() {
            self.haunt();
        }
    }

    /// Something that this session was asked for may still be carried out when it is over.
    pub(super) fn haunt(&mut self) {
        self.ghost = Some(self.target_end.clone());
    }
}

/// Logs in where that ends what is left of a lost session: at the address where it was, or at another portal of its group. `way` is the
/// one that led there; the others are tried from `first` on.
///
/// # Errors
/// What the first of them said. Where there is a session to be had in another group alone, [`Error::Haunted`]; it is logged out.
pub(super) fn log_in(
    (options, learnt, record): (&Options, &Learnt, &mut LoginRecord),
    goal: &Goal,
    (first, way): (usize, usize),
    ghost: &TargetEnd,
) -> Result<Connected, Error> {
    let there = ghost.at();
    let count = options.portals.len();
    let others = (0..count).map(|offset| (first + offset) % count);
    let others = others.map(|way| (&options.portals[way], way)).filter(|(portal, _)| !portal.is_at(&there));
    let (mut failed, mut elsewhere) = (None, None);
    for (portal, way) in std::iter::once((&there, way)).chain(others) {
        let only = Options { portals: vec![portal.clone()], ..options.clone() };
        match Connector::new(&only, learnt, record).log_in(goal, 0) {
            Ok(connected) if connected.target_end().ends(ghost) => return Ok(Connected { way, ..connected }),
            Ok(connected) => {
                elsewhere = Some(connected.portal.clone());
                // Nothing was done in it.
                let _ = say_goodbye(connected, options.timing.logout);
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Err(haunted(there, elsewhere, failed))
}

fn haunted(old: Portal, elsewhere: Option<Portal>, failed: Option<Error>) -> Error {
    let Some(portal) = elsewhere else { return failed.unwrap_or(Error::Ended) };
    let reason = failed.map_or_else(|| "all logins lead there".to_owned(), |error| error.to_string());
    Error::Haunted { portal, old, reason }
}
