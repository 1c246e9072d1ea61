//! From a path's options to a session whose unit is known: what it is, through which port and group it is reached, and how
//! well. Runs on a thread of its own.

use std::time::{Duration, Instant};

use lunette_scsi::client::port_groups::PortGroup;
use lunette_scsi::client::vpd::identification::{Association, Designator};
use lunette_scsi::client::{Command as Asked, Next, Probe, Reply, Sense, Ticket, UnitFacts, UnitIdentity};

use super::PathOptions;
use crate::connect::Learnt;
use crate::engine::replay::{self, Attention};
use crate::{Command, CommandId, Completion, Engine, EngineEvent, Error, Remedy, Status};

/// How long a unit is left alone that is busy.
const PAUSE: Duration = Duration::from_millis(250);

/// A session, and what is behind it.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) engine: Engine,
    pub(super) identity: UnitIdentity,
    /// Why the unit does not tell everything.
    pub(super) not_ready: Option<Sense>,
    pub(super) told: Told,
    pub(super) relative_target_port: Option<u16>,
    pub(super) group: Option<u16>,
    pub(super) groups: Vec<PortGroup>,
    /// When the question for them was sent, by the session's clock; that of the login's end where it was not.
    pub(super) asked_at: Duration,
}

/// Why there is none.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) error: Error,
    /// The target has told it to this nexus, and will not do so again.
    pub(super) told: Told,
}

/// What the unit has told in place of answers.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Told {
    /// When it told of a reset last, and not only of a new nexus.
    pub(super) reset_at: Option<Instant>,
    /// Its medium may be another one.
    pub(super) of_medium: bool,
}

impl Told {
    fn hear(&mut self, attention: Option<Attention>) {
        match attention {
            Some(Attention::Reset) => self.reset_at = Some(Instant::now()),
            Some(Attention::Medium) => self.of_medium = true,
            _ => {}
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, told: Told::default() }
    }
}

/// Logs in and asks.
///
/// # Errors
/// The login's; or the unit says nothing of use within the time of a login.
pub(super) fn open(options: &PathOptions, learnt: Learnt) -> Result<Opened, Failed> {
    let engine = Engine::connect_knowing(options.session.clone(), learnt)?;
    let asked_at = engine.elapsed();
    let until = Instant::now() + options.session.timing.login;
    let mut opening = Opening { engine, options, until, told: Told::default(), asked_at };
    let asked = opening.ask();
    if asked.is_err() {
        opening.hear_the_rest();
    }
    let told = opening.told;
    let facts = asked.map_err(|error| Failed { error, told })?;
    let names = facts.designations.iter().filter(|name| name.association == Association::TargetPort);
    let (mut relative_target_port, mut group) = (None, None);
    for name in names {
        match name.designator {
            Designator::RelativeTargetPort(port) => relative_target_port = Some(port),
            Designator::TargetPortGroup(tag) => group = Some(tag),
            _ => {}
        }
    }
    Ok(Opened {
        identity: UnitIdentity::of(&facts),
        not_ready: facts.not_ready,
        told,
        engine: opening.engine,
        relative_target_port,
        group,
        groups: facts.port_groups,
        asked_at: opening.asked_at,
    })
}

struct Opening<'a> {
    engine: Engine,
    options: &'a PathOptions,
    until: Instant,
    told: Told,
    asked_at: Duration,
}

impl Opening<'_> {
    fn wrong(&self, what: String) -> Error {
        Error::Path { portal: self.options.portal(), what }
    }

    /// Asks all that there is to ask.
    fn ask(&mut self) -> Result<UnitFacts, Error> {
        let mut probe = Probe::new().with_port_groups();
        let mut asked: Vec<(CommandId, Ticket)> = Vec::new();
        loop {
            match probe.proceed() {
                Next::Send(ticket, command) => asked.push((self.send(&command), ticket)),
                Next::Wait => {
                    for ended in self.wait()? {
                        let Some(at) = asked.iter().position(|(id, _)| *id == ended.id) else { continue };
                        let (_, ticket) = asked.swap_remove(at);
                        match &ended.result {
                            Ok(status) => {
                                let asked_at = take(&mut probe, ticket, &ended, status);
                                self.asked_at = asked_at.unwrap_or(self.asked_at);
                            }
                            Err(_) if self.engine.is_up() && probe.failed(ticket) => {}
                            Err(error) => return Err(self.wrong(error.to_string())),
                        }
                    }
                }
                Next::Pause => {
                    std::thread::sleep(PAUSE);
                    probe.rested();
                }
                Next::Done => return probe.into_facts().map_err(|error| self.wrong(error.to_string())),
            }
        }
    }

    /// What the session has taken and done by itself. After a login that ends well, its engine tells this.
    fn hear_the_rest(&mut self) {
        while let Some(event) = self.engine.event() {
            match event {
                EngineEvent::Attention { sense, .. } => self.told.hear(replay::attention(&sense)),
                EngineEvent::Overdue { remedy, .. } | EngineEvent::Ended { remedy, .. }
                    if remedy == Remedy::LogicalUnitReset =>
                {
                    self.told.hear(Some(Attention::Reset));
                }
                _ => {}
            }
        }
    }

    fn send(&mut self, command: &Asked) -> CommandId {
        self.engine.submit(question(command, self.options))
    }

    /// Waits until commands have ended.
    fn wait(&mut self) -> Result<Vec<Completion>, Error> {
        let mut done = Vec::new();
        while done.is_empty() {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.wrong("the unit does not say in time what it is".into()));
            }
            self.engine.poll(Some(left), &mut done)?;
        }
        // Before one of them ends it all.
        done.iter().for_each(|ended| self.told.hear(told_by(ended)));
        Ok(done)
    }
}

/// Takes what a unit has answered. Where that told the port groups: when they were asked for.
fn take(probe: &mut Probe, ticket: Ticket, ended: &Completion, status: &Status) -> Option<Duration> {
    let knew = !probe.facts().port_groups.is_empty();
    let code = lunette_scsi::Status::from_code(status.code);
    probe.answered(ticket, Reply { status: code, sense: &status.sense, data: ended.data() });
    let knows = !probe.facts().port_groups.is_empty();
    (knows && !knew).then(|| ended.times.sent.unwrap_or(ended.times.queued))
}

/// What a command's answer tells of the time since the last one.
fn told_by(completion: &Completion) -> Option<Attention> {
    let told = completion.result.as_ref().ok().filter(|status| status.is_check_condition());
    told.and_then(|status| replay::attention(&status.sense))
}

/// Whether a command's answer is a unit attention about a reset.
pub(super) fn tells_reset(completion: &Completion) -> bool {
    told_by(completion) == Some(Attention::Reset)
}

/// The same of everything that tells that what was answered may be lost.
pub(super) fn tells_loss(completion: &Completion) -> bool {
    told_by(completion).is_some_and(Attention::tells_loss)
}

/// A question of this module's own.
pub(super) fn question(command: &Asked, options: &PathOptions) -> Command {
    Command::of(options.lun, command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Times;

    const INQUIRY: u8 = 0x12;
    const MODE_SENSE_6: u8 = 0x1a;
    const READ_CAPACITY_16: u8 = 0x9e;
    const REPORT_TARGET_PORT_GROUPS: u8 = 0xa3;

    /// What a disk without VPD pages answers.
    fn answer(cdb: &[u8]) -> Vec<u8> {
        match cdb[0] {
            INQUIRY if cdb[1] & 1 == 1 => vec![0; 4],
            INQUIRY => [&[0, 0, 6, 2, 31][..], &[0; 31]].concat(),
            READ_CAPACITY_16 => [&[0, 0, 0, 0, 0, 0, 0, 63, 0, 0, 2, 0][..], &[0; 20]].concat(),
            MODE_SENSE_6 => vec![3, 0, 0, 0],
            // One group in standby with one port.
            REPORT_TARGET_PORT_GROUPS => vec![0, 0, 0, 12, 2, 0x0f, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1],
            _ => Vec::new(),
        }
    }

    /// Others are asked before and behind it, for as long as a unit takes to answer them.
    #[test]
    fn what_is_said_of_port_groups_counts_from_when_they_were_asked_for() {
        let mut probe = Probe::new().with_port_groups();
        let (mut at, mut under_way, mut told) = (0, Vec::new(), Vec::new());
        loop {
            match probe.proceed() {
                Next::Send(ticket, command) => {
                    at += 1;
                    under_way.push((ticket, command.cdb().to_vec(), Duration::from_secs(at)));
                }
                Next::Wait => {
                    let (ticket, cdb, sent) = under_way.remove(0);
                    let (status, buffer) = (Status::default(), answer(&cdb));
                    let ended = Completion {
                        id: CommandId { place: 0, serial: at },
                        result: Ok(status.clone()),
                        received: buffer.len() as u32,
                        buffer,
                        times: Times { sent: Some(sent), ..Times::default() },
                        attempts: 1,
                        session: 0,
                    };
                    let asked_at = take(&mut probe, ticket, &ended, &status);
                    told.extend(asked_at.map(|asked_at| (cdb[0], asked_at == sent)));
                }
                Next::Pause => panic!("it is not busy"),
                Next::Done => break,
            }
        }
        assert_eq!(told, [(REPORT_TARGET_PORT_GROUPS, true)]);
        assert_eq!(probe.into_facts().map(|facts| facts.port_groups.len()), Ok(1));
    }
}
