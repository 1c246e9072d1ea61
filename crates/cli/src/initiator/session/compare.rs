//! Whether a unit is still the one that it was, once it says that it tells something else about itself, or that its target has other units
//! (SPC-4, INQUIRY DATA HAS CHANGED, REPORTED LUNS DATA HAS CHANGED).

use std::collections::HashMap;

use lunette_initiator::{Command as Sent, Completion};
use lunette_scsi::client::{Difference, Next, Probe, Reply, UnitFacts, UnitIdentity};

use super::super::disk::{changed, is_of_modes, pause};
use super::{SessionPort, Status};
use crate::failure::Failure;

impl SessionPort {
    /// Asks the unit who it is, and sends nothing else before it has answered. What ends meanwhile is kept. Nothing is sent any more to
    /// another one.
    pub(super) fn compare(&mut self) -> Result<(), Failure> {
        let Some((lun, was)) = self.guarded.clone() else { return Ok(()) };
        loop {
            self.is_doubted = false;
            let facts = self.ask_all(lun)?;
            let is = UnitIdentity::of(&facts);
            self.has_other_modes |= facts.attentions.iter().any(is_of_modes);
            let attention = facts.attentions.iter().find_map(|sense| changed(sense.code));
            // One that is being erased need not tell its capacity.
            let is_of_work =
                |of: &Difference| facts.not_ready.as_ref().is_some_and(|not_ready| of.is_of_work(not_ready));
            let difference = was.difference(&is).filter(|difference| !is_of_work(difference));
            let difference = difference.map(|difference| difference.to_string());
            if let Some(what) = difference.or_else(|| attention.map(ToOwned::to_owned)) {
                return Err(self.exchange(&what));
            }
            // Some answers may be of before what was said meanwhile.
            if !self.is_doubted {
                return Ok(());
            }
        }
    }

    /// Nothing is sent any more to the unit, which is another one.
    pub(super) fn exchange(&mut self, what: &str) -> Failure {
        let failure = Failure::scsi(
            format!("the disk is not the one that it was: {what}"),
            Some("look whether this is still the disk that it was, then begin anew".to_owned()),
        );
        self.exchanged = Some(failure.clone());
        failure
    }

    fn ask_all(&mut self, lun: lunette_initiator::Lun) -> Result<UnitFacts, Failure> {
        let (mut probe, mut asked) = (Probe::new(), HashMap::new());
        loop {
            match probe.proceed() {
                Next::Send(ticket, command) => {
                    asked.insert(self.engine()?.submit(Sent::of(lun, &command)), ticket);
                }
                Next::Wait => {
                    let mut done: Vec<Completion> = Vec::new();
                    self.engine()?.poll(None, &mut done)?;
                    self.tell_events()?;
                    for ended in done {
                        let Some(ticket) = asked.remove(&ended.id) else {
                            self.done.push(ended);
                            continue;
                        };
                        match &ended.result {
                            Ok(status) => {
                                let code = Status::from_code(status.code);
                                let reply = Reply { status: code, sense: &status.sense, data: ended.data() };
                                probe.answered(ticket, reply);
                            }
                            Err(_) if probe.failed(ticket) => {}
                            Err(error) => return Err(Failure::command(error)),
                        }
                    }
                }
                Next::Pause => {
                    pause();
                    probe.rested();
                }
                Next::Done => break,
            }
        }
        probe.into_facts().map_err(|error| {
            Failure::scsi(format!("the disk does not say whether it is the one that it was: {error}"), None)
        })
    }
}
