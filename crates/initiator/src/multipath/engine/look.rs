//! Whether a path still leads to the unit: asked over the path itself, in its session, once something was said there that another
//! unit may be behind it. Another path's answer would say nothing of it.

use lunette_scsi::client::{Next, Probe, Reply, Sense, Ticket, UnitIdentity};

use super::super::open::question;
use super::{Engine, Errand};
use crate::engine::replay::{self, Attention};
use crate::{CommandError, Completion, EngineEvent};

/// A look at what is behind a path.
#[derive(Debug, Default)]
pub(super) struct Look {
    probe: Probe,
    /// What a question has met that is needed and has no answer.
    failure: Option<String>,
    /// More was said meanwhile: some answers may be of before.
    is_stale: bool,
}

/// What a unit says in place of carrying a command out.
fn said(completion: &Completion) -> Option<Sense> {
    let status = completion.result.as_ref().ok().filter(|status| status.is_check_condition())?;
    Sense::decode(&status.sense)
}

/// Whether the caller is to hear of it: not of states that have changed, which are this engine's own affair.
fn is_for_the_caller(sense: &Sense) -> bool {
    let is_of_states = sense.code.asc() == 0x2a && matches!(sense.code.ascq(), 6 | 7);
    sense.deferred || sense.is_unit_attention() && !is_of_states
}

impl Engine {
    /// Takes note of what the unit says in place of an answer, before anything else is sent. What has met a question of this engine's own
    /// it tells nobody again: the caller hears of it.
    pub(super) fn hear(&mut self, path: usize, completion: &Completion) {
        let Some(sense) = said(completion) else { return };
        let is_new = self.doubt(path, &sense);
        let is_own = !matches!(self.ways[path].errands.get(&completion.id), None | Some(Errand::Command(_)));
        if is_own && (is_new || is_for_the_caller(&sense)) {
            let (lun, sense) = (self.lun(), sense.bytes);
            self.events.push_back(EngineEvent::Attention { lun, sense });
        }
    }

    /// Takes a path out of use by what was said there, if that may mean that it leads to another unit. True: it was in use.
    pub(super) fn doubt(&mut self, path: usize, sense: &Sense) -> bool {
        if sense.deferred || !sense.may_be_of_another() {
            return false;
        }
        let way = &mut self.ways[path];
        if let Some(look) = &mut way.look {
            look.is_stale = true;
        }
        let is_new = way.doubt.is_none();
        way.doubt.get_or_insert_with(|| format!("it may lead to another logical unit: {sense}"));
        self.core.doubted(self.now, path);
        is_new
    }

    /// Begins to ask.
    pub(super) fn look(&mut self, path: usize) {
        self.ways[path].look = Some(Look::default());
        self.look_on(path);
    }

    /// Asks what can be asked now; when all is answered, draws the conclusion.
    fn look_on(&mut self, path: usize) {
        loop {
            let way = &mut self.ways[path];
            let (Some(look), Some(session)) = (&mut way.look, &mut way.session) else { return };
            match look.probe.proceed() {
                Next::Send(ticket, command) => {
                    let id = session.submit(question(&command, &way.options));
                    way.errands.insert(id, Errand::Look(ticket));
                    self.has_asked = true;
                }
                Next::Wait => return,
                Next::Pause => {
                    way.look = None;
                    return self.core.looked(self.now, path, false);
                }
                Next::Done => return self.looked(path),
            }
        }
    }

    /// A question of a look has ended.
    pub(super) fn look_answered(&mut self, path: usize, ticket: Ticket, completion: &Completion) {
        let way = &mut self.ways[path];
        let is_over = way.session.as_ref().is_none_or(crate::Engine::is_over);
        let Some(look) = way.look.as_mut().filter(|_| !is_over) else { return };
        match &completion.result {
            // It was not carried out, since an earlier command had failed.
            Ok(status)
                if replay::attention(&status.sense) == Some(Attention::Deferred)
                    && look.probe.again(ticket) => {}
            Ok(status) => {
                let code = lunette_scsi::Status::from_code(status.code);
                let reply = Reply { status: code, sense: &status.sense, data: completion.data() };
                look.probe.answered(ticket, reply);
            }
            // Another one's failure has ended it, or a reset.
            Err(CommandError::Aborted | CommandError::Unknown(_)) if look.probe.again(ticket) => {}
            Err(_) if look.probe.failed(ticket) => {}
            Err(error) => look.failure = Some(error.to_string()),
        }
        self.look_on(path);
    }

    /// Everything is answered.
    fn looked(&mut self, path: usize) {
        let Some(look) = self.ways[path].look.take() else { return };
        let asked = match look.failure {
            Some(failure) => Err(failure),
            None => look.probe.into_facts().map_err(|error| error.to_string()),
        };
        let unclear = match asked {
            _ if look.is_stale => None,
            Err(why) => Some(why),
            Ok(facts) => {
                let (found, not_ready) = (UnitIdentity::of(&facts), facts.not_ready.as_ref());
                match self.compare(path, &found, not_ready) {
                    Ok(true) => return self.trust(path),
                    Ok(false) => Some(not_ready.map_or_else(String::new, ToString::to_string)),
                    Err(error) => return self.leave(path, error.to_string()),
                }
            }
        };
        if let Some(why) = unclear {
            tracing::info!(path, why, "a path does not say where it leads, and is asked again");
            self.ways[path].doubt =
                Some(format!("it does not say whether it leads to the logical unit: {why}"));
        }
        self.core.looked(self.now, path, false);
    }

    fn trust(&mut self, path: usize) {
        self.ways[path].doubt = None;
        self.core.looked(self.now, path, true);
    }

    /// Gives up a path that leads elsewhere. What is under way there ends with its session, and goes on over others.
    fn leave(&mut self, path: usize, reason: String) {
        tracing::warn!(path, reason, "a path is given up");
        let way = &mut self.ways[path];
        way.left_for = Some(reason);
        if let Some(session) = &mut way.session {
            session.log_out();
            self.has_asked = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_no_news_for_the_caller_and_everything_else_is() {
        let is_told = |key: u8, asc: u8, ascq: u8| {
            is_for_the_caller(&Sense::decode(&[0x72, key, asc, ascq, 0, 0, 0, 0]).expect("sense data"))
        };
        assert!(is_told(6, 0x2a, 9) && is_told(6, 0x28, 0) && is_told(6, 0x3f, 3) && is_told(6, 0x29, 0));
        assert!(!is_told(6, 0x2a, 6) && !is_told(6, 0x2a, 7), "states");
        assert!(!is_told(5, 0x20, 0) && !is_told(2, 0x04, 0x0b), "what the unit does not do");
        let deferred = Sense::decode(&[0x73, 3, 0x0c, 0, 0, 0, 0, 0]).expect("sense data");
        assert!(is_for_the_caller(&deferred));
    }
}
