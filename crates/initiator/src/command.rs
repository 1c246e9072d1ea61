//! A SCSI command with its own buffer, and how it ended.

use std::time::Duration;

use lunette_iscsi::initiator::session::{AnswerFault, CDB_LENGTH_MAX};
use lunette_scsi::client::{Sense, Transfer};
use lunette_wire::initiator::TaskAttribute;
use lunette_wire::target::Residual;
use lunette_wire::{InitiatorTaskTag, LunField};

use crate::{Lun, Remedy};

/// Bytes of a CDB that are kept in place.
const SHORT: usize = 16;

/// A command descriptor block of up to 260 bytes; the usual ones cost no allocation.
#[derive(Clone, PartialEq, Eq)]
pub struct Cdb {
    short: [u8; SHORT],
    length: u8,
    long: Option<Box<[u8]>>,
}

impl Cdb {
    /// The bytes. Behind 260 nothing is kept; nothing that long can be sent.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        let mut short = [0; SHORT];
        let kept = bytes.len().min(SHORT);
        short[..kept].copy_from_slice(&bytes[..kept]);
        let long = (bytes.len() > SHORT).then(|| bytes[..bytes.len().min(CDB_LENGTH_MAX + 1)].into());
        // No more than SHORT.
        Self { short, length: kept as u8, long }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.long.as_deref().unwrap_or(&self.short[..usize::from(self.length)])
    }

    /// The first byte; TEST UNIT READY's where there is none.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        self.bytes().first().copied().unwrap_or(0)
    }
}

impl std::fmt::Debug for Cdb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x?}", self.bytes())
    }
}

impl From<&[u8]> for Cdb {
    fn from(bytes: &[u8]) -> Self {
        Self::new(bytes)
    }
}

impl<const N: usize> From<[u8; N]> for Cdb {
    fn from(bytes: [u8; N]) -> Self {
        Self::new(&bytes)
    }
}

/// What a command transfers. The buffer goes with the command and comes back with its [`Completion`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    /// Nothing.
    None,
    /// The target fills this, up to its length.
    In(Vec<u8>),
    /// The target gets this, all of it.
    Out(Vec<u8>),
}

/// What happens to a command whose session is lost before it was answered. See [`crate::Engine`] for what this means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Replay {
    /// It is carried out again where that cannot be noticed: commands that only read. A plain write goes out anew if it had
    /// not left; if it had, it ends as [`CommandError::Unknown`].
    #[default]
    WhereSafe,
    /// It is carried out again even if it may have been carried out before. The caller knows that this changes nothing:
    /// for a write, that no other command touched the same blocks since it was submitted.
    Always,
    /// It is not carried out again, not even if it has not left.
    Never,
}

/// A command for [`crate::Engine::submit`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The logical unit.
    pub lun: LunField,
    /// The command descriptor block.
    pub cdb: Cdb,
    /// How the task set orders it (SAM-5).
    pub attribute: TaskAttribute,
    /// What it transfers.
    pub data: Data,
    /// What happens when its session is lost.
    pub replay: Replay,
    /// How long the target may take for it; none: as long as the session's commands may ([`crate::Timing::command`]).
    /// `Duration::MAX` is for ever.
    pub time_limit: Option<Duration>,
}

impl Command {
    /// A command without data.
    #[must_use]
    pub fn new(lun: Lun, cdb: impl Into<Cdb>) -> Self {
        Self {
            lun: lun.field(),
            cdb: cdb.into(),
            attribute: TaskAttribute::Simple,
            data: Data::None,
            replay: Replay::WhereSafe,
            time_limit: None,
        }
    }

    /// A command of [`lunette_scsi::client`], with what it transfers: a buffer of zeros for what it reads, its parameter list. Blocks to be
    /// written are the caller's to add ([`Self::writing`]).
    #[must_use]
    pub fn of(lun: Lun, command: &lunette_scsi::client::Command) -> Self {
        let data = match command.transfer() {
            Transfer::None | Transfer::Out { .. } => Data::None,
            Transfer::In { length_bytes } => Data::In(vec![0; *length_bytes as usize]),
            Transfer::List(list) => Data::Out(list.clone()),
        };
        Self { data, ..Self::new(lun, command.cdb()) }
    }

    /// The same, reading into `buffer`, which the kernel copies to without another step between.
    ///
    /// From a target on the same machine some processors copy at a sixth of their speed to a buffer that lies 16 bytes behind a page, as
    /// glibc has those of 128 KiB and more: raise its `M_MMAP_THRESHOLD`, or use buffers again that lie elsewhere
    /// (docs/decisions/0051).
    #[must_use]
    pub fn reading(mut self, buffer: Vec<u8>) -> Self {
        self.data = Data::In(buffer);
        self
    }

    /// The same, writing `buffer`.
    #[must_use]
    pub fn writing(mut self, buffer: Vec<u8>) -> Self {
        self.data = Data::Out(buffer);
        self
    }

    /// The same, for which the target may take this long.
    #[must_use]
    pub const fn within(mut self, time_limit: Duration) -> Self {
        self.time_limit = Some(time_limit);
        self
    }

    /// The same, with another way to go on after the loss of its session.
    #[must_use]
    pub const fn replaying(mut self, replay: Replay) -> Self {
        self.replay = replay;
        self
    }
}

/// Names a command from its submission to its completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CommandId {
    pub(crate) place: u32,
    pub(crate) serial: u64,
}

impl CommandId {
    /// A small number that no other command has at the same time: for a table beside the commands.
    #[must_use]
    pub const fn place(self) -> usize {
        self.place as usize
    }
}

/// What the device server said (SAM-5, 5.3).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// The status code; 0 is GOOD.
    pub code: u8,
    /// The status qualifier (RFC 7144); zero at iSCSIProtocolLevel 1.
    pub qualifier: u16,
    /// How what was transferred differs from the buffer's length.
    pub residual: Residual,
    /// Sense data as it came; empty unless the status has some. [`Self::decoded_sense`] reads it.
    pub sense: Vec<u8>,
}

impl Status {
    /// True for GOOD.
    #[must_use]
    pub const fn is_good(&self) -> bool {
        self.code == lunette_scsi::Status::Good.code()
    }

    /// True for CHECK CONDITION: `sense` says more.
    #[must_use]
    pub const fn is_check_condition(&self) -> bool {
        self.code == lunette_scsi::Status::CheckCondition.code()
    }

    /// What the sense data says (SPC-4, 4.5): sense key, additional code, and what of the rest there is. None where there is none, or
    /// none in a format that is known.
    #[must_use]
    pub fn decoded_sense(&self) -> Option<Sense> {
        Sense::decode(&self.sense)
    }
}

impl std::fmt::Display for Status {
    /// `CHECK CONDITION: ILLEGAL REQUEST: INVALID FIELD IN CDB (24/00)`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match lunette_scsi::Status::from_code(self.code) {
            Some(status) => f.write_str(status.name())?,
            None => write!(f, "status {:02x}h", self.code)?,
        }
        match self.decoded_sense() {
            Some(sense) => write!(f, ": {sense}"),
            None => Ok(()),
        }
    }
}

/// Why a command has no status that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// It never began.
    #[error("the command was not carried out: {0}")]
    NotSent(String),
    /// It left and nobody answered: it may have been carried out, and what it wrote may be there or not.
    #[error(
        "nobody knows whether the command was carried out: {0}; read back what it wrote, or write it again if nothing \
         has changed it since"
    )]
    Unknown(String),
    /// The target did not answer it in time, and it was ended by other means, so that it does nothing any more.
    #[error(
        "the target has not answered the command for {} s and {ended_by} ended it; it may have been carried out, in part or \
         whole; look at the target's log for what it waits for",
        waited.as_secs_f32()
    )]
    Overdue {
        /// How long it was waited for before.
        waited: Duration,
        /// What has ended it.
        ended_by: Remedy,
    },
    /// The target's answer does not agree with what came: the data must not be used.
    #[error("the target answered with status {status:#04x}, but {fault}; the data cannot be trusted")]
    Faulty {
        /// What is wrong.
        fault: AnswerFault,
        /// The status that it told.
        status: u8,
    },
    /// The target could not carry it out.
    #[error("the target failed to carry the command out (iSCSI response {response:#04x}); look at its log")]
    TargetFailure {
        /// The response code (RFC 7143, 11.4.3).
        response: u8,
    },
    /// It was aborted on this side.
    #[error("the command was aborted on this side; it may have been carried out in part")]
    Aborted,
    /// A flush after a reset of the unit, of which nobody was told since commands were replayed over it; or after a deferred error: a
    /// command that was answered had failed (SPC-4, 4.5.7).
    #[error(
        "the logical unit was reset since the last flush, or tells that an answered command has failed: what was written and \
         not flushed before may be lost; write it again, then flush"
    )]
    ResetSinceFlush,
    /// The logical unit is not the one that it was ([`crate::Engine::guard`]). The one that was there before may have carried
    /// the command out; nothing was sent to this one.
    #[error("the logical unit is not the one that it was: {0}; nothing was sent to it")]
    Changed(String),
    /// It cannot be sent as it is.
    #[error("the command cannot be sent: {0}")]
    Invalid(String),
}

/// When a command was where, since the engine's start ([`crate::Engine::elapsed`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// It was submitted, to the engine or to the [`crate::Session`] around it.
    pub queued: Duration,
    /// The system took the first byte of it; of the last try, where there were several.
    pub sent: Option<Duration>,
    /// The first byte of an answer came.
    pub first_byte: Option<Duration>,
    /// It was complete: its answer, and what was read, had been taken from the system, or it had failed.
    pub done: Duration,
    /// What that last try was called in its session.
    pub tag: Option<InitiatorTaskTag>,
}

/// A command that is over.
#[derive(Debug)]
pub struct Completion {
    /// Which one.
    pub id: CommandId,
    /// What the device server said, or why there is nothing that it said.
    pub result: Result<Status, CommandError>,
    /// The command's buffer; empty if it had none.
    pub buffer: Vec<u8>,
    /// For a command that reads: bytes at the buffer's beginning that were read. The rest is as it was.
    pub received: u32,
    /// When it was where.
    pub times: Times,
    /// How often it was sent.
    pub attempts: u32,
    /// In which session it was answered: how often by then the session had been lost and had again, or a unit attention had
    /// told of a reset, or a deferred error that an answered command had failed. For a command that may change something it is the
    /// session that it was sent in last, since it may have been carried out before a reset that came to light first. What a target
    /// with a volatile cache answered in one session need not have outlived it, unless a flush of the same session followed.
    pub session: u32,
}

impl Completion {
    /// True when the command ended with GOOD.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.result.as_ref().is_ok_and(Status::is_good)
    }

    /// What was read.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        self.buffer.get(..self.received as usize).unwrap_or(&self.buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_the_application_client_bring_their_data() {
        use lunette_scsi::client::{capacity, medium, unit};
        let of = |command: &lunette_scsi::client::Command| Command::of(Lun::default(), command);
        let query = capacity::read_capacity_16();
        let asked = of(query.command());
        assert_eq!((asked.cdb.bytes(), asked.data), (query.command().cdb(), Data::In(vec![0; 32])));
        assert_eq!(of(&unit::test_unit_ready()).data, Data::None);
        let unmap = medium::unmap(&[(0, 8)], false).unwrap();
        assert!(matches!(of(&unmap).data, Data::Out(list) if list.len() == 24));
    }

    #[test]
    fn a_status_is_told_with_what_its_sense_data_means() {
        let mut sense = vec![0; 18];
        (sense[0], sense[2], sense[7], sense[12]) = (0x70, 5, 10, 0x24);
        let status = Status { code: 2, sense, ..Status::default() };
        assert_eq!(status.decoded_sense().map(|sense| sense.key_code), Some(5));
        assert_eq!(status.to_string(), "CHECK CONDITION: ILLEGAL REQUEST: INVALID FIELD IN CDB (24/00)");
        assert_eq!(Status::default().to_string(), "GOOD");
        let unknown = Status { code: 0x7e, sense: vec![0x7f], ..Status::default() };
        assert_eq!((unknown.decoded_sense(), unknown.to_string()), (None, "status 7eh".to_owned()));
    }

    #[test]
    fn short_and_long_blocks_are_kept_whole() {
        for length in [0, 1, 6, 16, 17, 32, 260] {
            let bytes: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
            assert_eq!(Cdb::new(&bytes).bytes(), bytes);
        }
        assert_eq!(Cdb::new(&[0; 1000]).bytes().len(), 261, "long enough to be refused");
        assert_eq!((Cdb::new(&[]).opcode(), Cdb::from([0x28, 0]).opcode()), (0, 0x28));
    }
}
