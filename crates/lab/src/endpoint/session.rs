//! Logical units of a target, through a session of this worker's own.

use std::time::Duration;

use lunette_initiator::{
    Command, CommandError, Completion, Engine, EngineEvent, Lun, Options, Replay, Status, Times,
};
use lunette_scsi::Status as StatusCode;
use lunette_scsi::client::medium::{self, BlockRange, Caching, CdbForm};
use lunette_scsi::client::{Sense, unit};
use lunette_wire::target::Residual;
use lunette_workload::{Kind, Operation};

use super::{End, Ended, Endpoint, Fault, LOOK_INTERVAL, Moments};
use crate::bench::split::SessionName;
use crate::usual::usual;
use crate::{LabError, Negotiated};

/// How often a unit may have something else to tell when it is asked whether it is ready, before it counts as one that is not.
const READY_TRIES: u32 = 64;
/// For how long it may be busy, or become ready, and after which pause it is asked again.
const READY_WAIT: Duration = Duration::from_secs(60);
const READY_PAUSE: Duration = Duration::from_millis(100);
/// How often it is asked once it is, for the time that a command without data takes: for so long, and at least so often.
const IDLE_TIME: Duration = Duration::from_millis(50);
const IDLE_TRIES_MIN: usize = 5;
/// The step of the system's waits for several descriptors.
const COARSE: Duration = Duration::from_millis(1);
/// How long one answer may take before the workload; the session has its own limits below.
const READY_PATIENCE: Duration = Duration::from_secs(60);

/// How long the answer to a command is waited for.
#[derive(Clone, Copy)]
struct Patience<'a> {
    /// None: as long as the session allows for it.
    limit: Option<Duration>,
    /// Whether nobody waits for it any more.
    stops: &'a dyn Fn() -> bool,
}

/// Whoever opens a session stops waiting by himself.
const READY: Patience<'static> = Patience { limit: Some(READY_PATIENCE), stops: &|| false };

/// What is to be measured: units, each of which has so many bytes of the whole.
#[derive(Debug, Clone)]
pub(crate) struct SessionDisk<'a> {
    pub(crate) options: &'a Options,
    pub(crate) luns: Vec<Lun>,
    pub(crate) unit_bytes: u64,
    pub(crate) block_bytes: u32,
}

impl<'a> SessionDisk<'a> {
    /// One unit, whatever its length.
    pub(crate) fn one(options: &'a Options, lun: Lun, block_bytes: u32) -> Self {
        Self { options, luns: vec![lun], unit_bytes: u64::MAX, block_bytes }
    }
}

/// See the module's documentation.
pub(crate) struct Session {
    engine: Engine,
    luns: Vec<Lun>,
    unit_bytes: u64,
    block_bytes: u32,
    done: Vec<Completion>,
    /// The slot of each command by its place, and what it does.
    slots: Vec<(u32, Kind)>,
    spare: Vec<Vec<u8>>,
    losses: u64,
    idle_round_trip: Duration,
    command_window: u32,
}

impl Session {
    /// Logs in and waits until all units take commands.
    pub(crate) fn open(disk: &SessionDisk<'_>) -> Result<Self, LabError> {
        let engine = Engine::connect(disk.options.clone())?;
        let mut session = Self {
            engine,
            luns: disk.luns.clone(),
            unit_bytes: disk.unit_bytes.max(1),
            block_bytes: disk.block_bytes,
            done: Vec::new(),
            slots: Vec::new(),
            spare: Vec::new(),
            losses: 0,
            idle_round_trip: Duration::ZERO,
            command_window: 0,
        };
        for &lun in disk.luns.iter().skip(1) {
            session.insist(lun, unit::test_unit_ready().cdb(), READY)?;
        }
        let (mut took, begun) = (Vec::new(), session.engine.elapsed());
        while took.len() < IDLE_TRIES_MIN || session.engine.elapsed().saturating_sub(begun) < IDLE_TIME {
            let times = session.insist(session.first(), unit::test_unit_ready().cdb(), READY)?;
            took.extend(times.map(|times| times.done.saturating_sub(times.queued)));
        }
        session.idle_round_trip = usual(took).unwrap_or_default();
        session.command_window = session.engine.command_window();
        Ok(session)
    }

    fn first(&self) -> Lun {
        self.luns.first().copied().unwrap_or_default()
    }

    /// Runs a command that moves no data, again and again until it ends well; nothing if it is stopped before.
    fn insist(&mut self, lun: Lun, cdb: &[u8], patience: Patience<'_>) -> Result<Option<Times>, LabError> {
        let (mut tries, begun) = (0, self.engine.elapsed());
        loop {
            let Some(completion) = self.alone(lun, cdb, patience)? else { return Ok(None) };
            match outcome(&completion, Kind::Read) {
                End::Good => return Ok(Some(completion.times)),
                End::Busy | End::Again if (patience.stops)() => return Ok(None),
                End::Failed(fault) => return Err(LabError::NotReady(fault.reason().to_owned())),
                End::Again if tries < READY_TRIES => tries += 1,
                End::Again => {
                    return Err(LabError::NotReady("it has something else to tell each time".into()));
                }
                End::Busy if self.engine.elapsed().saturating_sub(begun) < READY_WAIT => {
                    std::thread::sleep(READY_PAUSE);
                }
                End::Busy => {
                    let seconds = READY_WAIT.as_secs();
                    return Err(LabError::NotReady(format!(
                        "it was busy, or not ready yet, for {seconds} s"
                    )));
                }
            }
        }
    }

    /// Runs it once; nothing if it is stopped, and under way.
    fn alone(
        &mut self,
        lun: Lun,
        cdb: &[u8],
        patience: Patience<'_>,
    ) -> Result<Option<Completion>, LabError> {
        let id = self.engine.submit(Command::new(lun, cdb));
        let begun = self.engine.elapsed();
        loop {
            self.engine.poll(Some(LOOK_INTERVAL), &mut self.done)?;
            self.note_events();
            let at = self.done.iter().position(|completion| completion.id == id);
            if let Some(at) = at {
                return Ok(Some(self.done.swap_remove(at)));
            }
            if (patience.stops)() {
                return Ok(None);
            }
            let took = self.engine.elapsed().saturating_sub(begun);
            if let Some(limit) = patience.limit.filter(|limit| took > *limit) {
                return Err(LabError::NotReady(format!("no answer within {} s", limit.as_secs())));
            }
        }
    }

    fn note_events(&mut self) {
        while let Some(event) = self.engine.event() {
            if matches!(event, EngineEvent::Lost { .. }) {
                self.losses += 1;
            }
        }
    }

    fn command(&self, operation: &Operation, buffer: Vec<u8>) -> Command {
        let (unit, place) =
            (operation.offset_bytes / self.unit_bytes, operation.offset_bytes % self.unit_bytes);
        // A plan lies within its units, which are few.
        let lun = self.luns.get(unit as usize).copied().unwrap_or_default();
        let range = BlockRange {
            lba: place / u64::from(self.block_bytes),
            blocks: operation.length_bytes / self.block_bytes,
            block_length_bytes: self.block_bytes,
        };
        let form = range.form();
        let (built, reads) = match operation.kind {
            Kind::Read => (medium::read(form, range, Caching::default()), true),
            Kind::Write => (medium::write(form, range, Caching::default()), false),
        };
        // What does not fit a command is refused when the plan is made.
        let command = built.map_or_else(|_| Command::new(lun, []), |built| Command::new(lun, built.cdb()));
        if reads {
            command.reading(buffer)
        } else {
            // Nobody else writes there meanwhile, or nobody looks at what is written.
            command.writing(buffer).replaying(Replay::Always)
        }
    }
}

/// GOOD with another amount of data than was asked for is no good end.
fn is_whole(completion: &Completion, kind: Kind) -> bool {
    let has_residual = completion.result.as_ref().is_ok_and(|status| status.residual != Residual::None);
    !has_residual && (kind == Kind::Write || completion.received as usize == completion.buffer.len())
}

/// What an answer to such a command means; one that changes nothing counts as a read.
fn outcome(completion: &Completion, kind: Kind) -> End {
    match &completion.result {
        Ok(status) if status.is_good() => End::Good,
        Ok(status) => refusal(status),
        Err(
            error @ (CommandError::Faulty { .. }
            | CommandError::TargetFailure { .. }
            | CommandError::Changed(_)),
        ) => refused(error.to_string()),
        // Whether it was carried out is nothing to anybody.
        Err(CommandError::Unknown(why)) if kind == Kind::Read => {
            End::Failed(Fault::Lost(format!("the session was lost before it was answered: {why}")))
        }
        Err(error) => End::Failed(Fault::Lost(error.to_string())),
    }
}

fn refused(reason: String) -> End {
    End::Failed(Fault::Refused(reason))
}

fn refusal(status: &Status) -> End {
    let sense = Sense::decode(&status.sense);
    match (StatusCode::from_code(status.code), sense) {
        (Some(StatusCode::Busy | StatusCode::TaskSetFull), _) => End::Busy,
        (_, Some(sense)) if sense.becomes_ready() => End::Busy,
        (_, Some(sense)) if sense.is_unit_attention() => End::Again,
        (_, Some(sense)) => refused(format!("the target refused it: {sense}")),
        (Some(code), None) => refused(format!("the target refused it: {}", code.name())),
        (None, None) => refused(format!("the target answered status {:#04x}", status.code)),
    }
}

impl Endpoint for Session {
    type Buffer = Vec<u8>;

    fn now(&self) -> Duration {
        self.engine.elapsed()
    }

    fn buffer(&mut self, length_bytes: u32) -> Result<Vec<u8>, LabError> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.resize(length_bytes as usize, 0);
        Ok(buffer)
    }

    fn recycle(&mut self, buffer: Vec<u8>) {
        self.spare.push(buffer);
    }

    fn submit(&mut self, slot: u32, operation: &Operation, buffer: Vec<u8>) {
        let command = self.command(operation, buffer);
        let place = self.engine.submit(command).place();
        if self.slots.len() <= place {
            self.slots.resize(place + 1, (u32::MAX, Kind::Read));
        }
        self.slots[place] = (slot, operation.kind);
    }

    fn poll(&mut self, timeout: Duration, ended: &mut Vec<Ended<Vec<u8>>>) -> Result<(), LabError> {
        // Rounded up to milliseconds, a wait would make an open loop late: for less than one it stays awake.
        let timeout = if timeout < COARSE { Duration::ZERO } else { timeout - COARSE };
        self.engine.poll(Some(timeout), &mut self.done)?;
        self.note_events();
        for completion in self.done.drain(..) {
            let times = completion.times;
            let place = completion.id.place();
            let (slot, kind) = self.slots.get(place).copied().unwrap_or((u32::MAX, Kind::Read));
            let mut end = outcome(&completion, kind);
            if matches!(end, End::Good) && !is_whole(&completion, kind) {
                end =
                    refused("the target answered GOOD with another amount of data than was asked for".into());
            }
            ended.push(Ended {
                slot,
                end,
                buffer: Some(completion.buffer),
                moments: Moments {
                    queued: times.queued,
                    sent: times.sent,
                    first_byte: times.first_byte,
                    done: times.done,
                    tag: times.tag,
                },
            });
        }
        Ok(())
    }

    fn flush_unless(&mut self, stops: &dyn Fn() -> bool) -> Result<bool, LabError> {
        // A large cache takes long, and the session allows a flush more time than other commands.
        let patience = Patience { limit: None, stops };
        let range = BlockRange { lba: 0, blocks: 0, block_length_bytes: self.block_bytes };
        let command = medium::synchronize_cache(CdbForm::Ten, range);
        let command = command.map_err(|error| LabError::Plan(error.to_string()))?;
        for lun in self.luns.clone() {
            let Some(completion) = self.alone(lun, command.cdb(), patience)? else { return Ok(false) };
            let is_good = completion.result.as_ref().is_ok_and(Status::is_good);
            let sense = completion.result.ok().and_then(|status| Sense::decode(&status.sense));
            // Who does not know the command has no cache that it could be for.
            if !is_good
                && !sense.is_some_and(|sense| sense.is_unknown_command())
                && self.insist(lun, command.cdb(), patience)?.is_none()
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn negotiated(&self) -> Option<Negotiated> {
        let connections = self.engine.connections();
        Some(Negotiated {
            idle_round_trip_us: Some(self.idle_round_trip.as_secs_f64() * 1e6),
            command_window: Some(self.command_window),
            ..Negotiated::of(self.engine.parameters(), &connections)
        })
    }

    fn session_name(&self) -> Option<SessionName> {
        let (isid, tsih) = self.engine.session_identity();
        (self.losses == 0).then_some(SessionName { isid, tsih })
    }

    fn losses(&self) -> u64 {
        self.losses
    }

    fn close(self) {
        // What the target says to the farewell changes nothing.
        let _ = self.engine.close();
    }

    fn abandon(self) {
        self.engine.abandon();
    }
}
