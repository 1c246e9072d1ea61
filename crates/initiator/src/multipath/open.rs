//! From a path's options to a session whose unit is known: what it is, through which port and group it is reached, and how
//! well. Runs on a thread of its own.

use std::time::{Duration, Instant};

use lunette_scsi::client::port_groups::{PortGroup, report_target_port_groups};
use lunette_scsi::client::vpd::identification::{Association, Designator};
use lunette_scsi::client::{Command as Asked, Next, Probe, Query, Reply, Sense, Transfer, UnitIdentity};

use super::PathOptions;
use crate::engine::replay::{self, Attention};
use crate::{Command, Completion, Data, Engine, Error, Replay};

/// How long a unit is left alone that is busy.
const PAUSE: Duration = Duration::from_millis(250);
/// Unit attentions that are taken before the question after the port groups.
const ATTENTIONS_MAX: u32 = 16;

/// A session, and what is behind it.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) engine: Engine,
    pub(super) identity: UnitIdentity,
    /// The unit told of a reset, and not only of a new nexus.
    pub(super) is_reset: bool,
    pub(super) relative_target_port: Option<u16>,
    pub(super) group: Option<u16>,
    pub(super) groups: Vec<PortGroup>,
}

/// Logs in and asks.
///
/// # Errors
/// The login's; or the unit says nothing of use within the time of a login.
pub(super) fn open(options: &PathOptions) -> Result<Opened, Error> {
    let engine = Engine::connect(options.session.clone())?;
    let until = Instant::now() + options.session.timing.login;
    let mut opening = Opening { engine, options, until };
    let mut probe = Probe::new();
    loop {
        let command = match probe.next() {
            Next::Send(command) => command,
            Next::SendLater(command) => {
                std::thread::sleep(PAUSE);
                command
            }
            Next::Done => break,
        };
        let ended = opening.execute(&command)?;
        let status = ended.result.as_ref().map_err(|error| opening.wrong(error.to_string()))?;
        let code = lunette_scsi::Status::from_code(status.code);
        let reply = Reply { status: code, sense: &status.sense, data: ended.data() };
        probe.answered(reply).map_err(|error| opening.wrong(error.to_string()))?;
    }
    let groups = opening.groups()?;
    let facts = probe.into_facts();
    let names = facts.designations.iter().filter(|name| name.association == Association::TargetPort);
    let (mut relative_target_port, mut group) = (None, None);
    for name in names {
        match name.designator {
            Designator::RelativeTargetPort(port) => relative_target_port = Some(port),
            Designator::TargetPortGroup(tag) => group = Some(tag),
            _ => {}
        }
    }
    let tells_reset = |sense: &Sense| replay::attention(&sense.bytes) == Some(Attention::Reset);
    Ok(Opened {
        identity: UnitIdentity::of(&facts),
        is_reset: facts.attentions.iter().any(tells_reset),
        engine: opening.engine,
        relative_target_port,
        group,
        groups,
    })
}

struct Opening<'a> {
    engine: Engine,
    options: &'a PathOptions,
    until: Instant,
}

impl Opening<'_> {
    fn wrong(&self, what: String) -> Error {
        Error::Path { portal: self.options.portal(), what }
    }

    /// Sends a command and waits for its end.
    fn execute(&mut self, command: &Asked) -> Result<Completion, Error> {
        let id = self.engine.submit(question(command, self.options));
        let mut done = Vec::new();
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.wrong("the unit does not say in time what it is".into()));
            }
            self.engine.poll(Some(left), &mut done)?;
            if let Some(at) = done.iter().position(|completion| completion.id == id) {
                return Ok(done.swap_remove(at));
            }
        }
    }

    /// The states of all port groups; none where the target does not have them.
    fn groups(&mut self) -> Result<Vec<PortGroup>, Error> {
        let mut query = report_target_port_groups();
        for _ in 0..ATTENTIONS_MAX {
            let ended = self.execute(query.command())?;
            let Ok(status) = &ended.result else { return Ok(Vec::new()) };
            if status.is_good() {
                match decoded(&query, &ended) {
                    Ok(groups) => return Ok(groups),
                    Err(longer) => query = query.asking_for(longer),
                }
            } else if !Sense::decode(&status.sense).is_some_and(|sense| sense.is_unit_attention()) {
                break;
            }
        }
        Ok(Vec::new())
    }
}

/// A question of this module's own.
pub(super) fn question(command: &Asked, options: &PathOptions) -> Command {
    let data = match command.transfer() {
        Transfer::In { length_bytes } => Data::In(vec![0; *length_bytes as usize]),
        // Questions only read.
        _ => Data::None,
    };
    Command { data, ..Command::new(options.lun, command.cdb()) }.replaying(Replay::Never)
}

/// The groups of an answer; what cannot be read has none. An answer that was cut off is to be asked for with more bytes.
pub(super) fn decoded(query: &Query<Vec<PortGroup>>, ended: &Completion) -> Result<Vec<PortGroup>, u32> {
    match query.decode(ended.data()) {
        Ok(groups) => Ok(groups),
        Err(error) => {
            error.needed_bytes().map_or(Ok(Vec::new()), |bytes| Err(bytes.try_into().unwrap_or(u32::MAX)))
        }
    }
}
