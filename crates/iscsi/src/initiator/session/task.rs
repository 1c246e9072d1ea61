//! A SCSI command and what is known of its task (RFC 7143, 4.2.2 and 11.3).

use std::time::Duration;

use lunette_wire::ahs::{BIDIRECTIONAL_READ_LENGTH, EXTENDED_CDB};
use lunette_wire::frame::padding;
use lunette_wire::initiator::{ScsiCommand, TaskAttribute};
use lunette_wire::{CmdSn, InitiatorTaskTag, LunField, StatSn, TargetTransferTag};

use super::coverage::Coverage;
use super::fault::AnswerFault;
use super::{Answer, ConnectionId, RequestHandle};

/// Bytes of a CDB that fit into the basic header segment.
const CDB_LENGTH: usize = 16;
/// The longest CDB (SPC-4, 4.2.3).
pub const CDB_LENGTH_MAX: usize = 260;

/// A command to be carried out. Lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command<'a> {
    /// The logical unit.
    pub lun: LunField,
    /// The command descriptor block, 1 to [`CDB_LENGTH_MAX`] bytes.
    pub cdb: &'a [u8],
    /// How the task set orders the task.
    pub attribute: TaskAttribute,
    /// Command priority, 0 to 15 (RFC 7144); sent at iSCSIProtocolLevel 2 and above.
    pub priority: u8,
    /// The most that it reads.
    pub read_length: u32,
    /// What it writes; with a length to read, the command is bidirectional (11.3.4).
    pub write_length: u32,
}

impl Default for Command<'_> {
    /// TEST UNIT READY to LUN 0.
    fn default() -> Self {
        Self {
            lun: LunField::default(),
            cdb: &[0; 6],
            attribute: TaskAttribute::Simple,
            priority: 0,
            read_length: 0,
            write_length: 0,
        }
    }
}

/// Where a task is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits for room in the command window.
    Waiting,
    /// It has a number and a connection, and has not left.
    Assigned,
    /// It was given to the driver.
    Sent,
}

#[derive(Debug)]
pub(super) struct Task {
    pub(super) lun: LunField,
    cdb: [u8; CDB_LENGTH],
    /// Additional header segments, finished.
    pub(super) ahs: Box<[u8]>,
    attribute: TaskAttribute,
    priority: u8,
    pub(super) read_length: u32,
    pub(super) write_length: u32,
    pub(super) stage: Stage,
    /// Valid from [`Stage::Assigned`] on.
    pub(super) connection: ConnectionId,
    pub(super) cmd_sn: CmdSn,
    /// Numbers of Data-In PDUs and R2Ts that came (4.2.2.4).
    pub(super) data_sns: Coverage,
    /// Behind the last number that came or was asked for.
    pub(super) data_seen: u32,
    /// Bytes that came.
    pub(super) came: Coverage,
    /// Of the sequence of Data-In that is under way: its first byte, the end of its last PDU, and its bytes.
    pub(super) sequence: Option<Sequence>,
    /// R2Ts whose last Data-Out has not left.
    pub(super) r2ts_open: u16,
    /// Where the next R2T begins when they come in order.
    pub(super) next_r2t_offset: u32,
    /// Bytes that have left.
    pub(super) sent: u32,
    /// A function is under way that ends it: its R2Ts are not answered, unless that fails.
    pub(super) is_cut: bool,
    /// Its ABORT TASK, while that is under way.
    pub(super) abort: Option<RequestHandle>,
    /// A function may have ended it whose answer is lost.
    pub(super) is_doomed: bool,
    /// The target does not have it any more, because of a function whose answer is to come.
    pub(super) is_gone: bool,
    /// Its answer is of no use.
    pub(super) fault: Option<AnswerFault>,
    /// When its command left.
    pub(super) sent_at: Duration,
    /// How often it was sent again.
    pub(super) retries: u8,
    /// The target wants to hear when data has come (11.16.2).
    pub(super) acknowledge: Option<Acknowledge>,
    /// Its status came before the last of its data.
    pub(super) answered: Option<Box<Answered>>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Acknowledge {
    pub(super) target_transfer_tag: TargetTransferTag,
    pub(super) lun: LunField,
    /// Of the PDU with the A bit.
    pub(super) data_sn: u32,
}

#[derive(Debug)]
pub(super) struct Answered {
    pub(super) answer: Answer,
    /// How many Data-In PDUs there are.
    pub(super) announced: u32,
    pub(super) stat_sn: StatSn,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Sequence {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) bytes: u32,
}

impl Task {
    /// The caller has checked the CDB's length.
    pub(super) fn new(command: &Command<'_>) -> Self {
        let mut cdb = [0; CDB_LENGTH];
        let (first, rest) = command.cdb.split_at(command.cdb.len().min(CDB_LENGTH));
        cdb[..first.len()].copy_from_slice(first);
        Self {
            lun: command.lun,
            cdb,
            ahs: additional_headers(rest, command),
            attribute: command.attribute,
            priority: command.priority,
            read_length: command.read_length,
            write_length: command.write_length,
            stage: Stage::Waiting,
            connection: ConnectionId::default(),
            cmd_sn: CmdSn(0),
            data_sns: Coverage::default(),
            data_seen: 0,
            came: Coverage::default(),
            sequence: None,
            r2ts_open: 0,
            next_r2t_offset: 0,
            sent: 0,
            is_cut: false,
            abort: None,
            is_doomed: false,
            is_gone: false,
            fault: None,
            sent_at: Duration::ZERO,
            retries: 0,
            acknowledge: None,
            answered: None,
        }
    }

    /// Its command is to be sent again, as if it had not left: the target has not received it.
    pub(super) fn begin_anew(&mut self) {
        self.stage = Stage::Assigned;
        self.data_sns = Coverage::default();
        self.data_seen = 0;
        (self.sent, self.r2ts_open, self.next_r2t_offset) = (0, 0, 0);
    }

    /// It goes on over another connection, whose target sends the rest: all from the number on that this answers (11.5.6).
    /// What came behind a hole is forgotten, since it may be cut otherwise when it comes again.
    pub(super) fn rest(&mut self, in_order: bool) -> u32 {
        if !in_order && self.data_sns.first_island().is_some() {
            // Which bytes the first PDUs have brought is not known.
            (self.data_sns, self.came) = (Coverage::default(), Coverage::default());
        }
        self.data_sns.truncate();
        if in_order {
            self.came.truncate();
        }
        self.data_seen = self.data_sns.contiguous();
        (self.sequence, self.acknowledge, self.answered) = (None, None, None);
        self.r2ts_open = 0;
        self.data_seen
    }

    /// It has left, and what it writes may still come where nobody knows what the target does with it.
    pub(super) fn may_write(&self) -> bool {
        self.stage == Stage::Sent && (self.read_length == 0 || self.write_length > 0)
    }

    /// What it puts on its connection, roughly, in bytes.
    pub(super) fn load(&self) -> u64 {
        /// A header each way, and the work of a command.
        const COMMAND: u64 = 1024;
        COMMAND + u64::from(self.read_length) + u64::from(self.write_length)
    }

    /// The PDU of its command.
    pub(super) fn header(
        &self,
        initiator_task_tag: InitiatorTaskTag,
        is_final: bool,
        exp_stat_sn: StatSn,
    ) -> ScsiCommand {
        ScsiCommand {
            immediate: false,
            is_final,
            read: self.read_length > 0,
            write: self.write_length > 0,
            attribute: self.attribute,
            priority: self.priority,
            lun: self.lun,
            initiator_task_tag,
            // Of a bidirectional command the write half; the read half is in the additional headers (11.3.4).
            expected_data_transfer_length: if self.write_length > 0 {
                self.write_length
            } else {
                self.read_length
            },
            cmd_sn: self.cmd_sn,
            exp_stat_sn,
            cdb: self.cdb,
        }
    }
}

/// The rest of a long CDB (11.2.2.3), and the read length of a bidirectional command (11.2.2.4).
fn additional_headers(rest: &[u8], command: &Command<'_>) -> Box<[u8]> {
    let mut bytes = Vec::new();
    let mut push = |kind: u8, body: &[u8]| {
        // AHSLength counts what comes behind the type, a reserved byte first; the CDB's rest has 244 bytes at most.
        bytes.extend([0, body.len() as u8 + 1, kind, 0]);
        bytes.extend_from_slice(body);
        bytes.resize(bytes.len() + padding(body.len()), 0);
    };
    if !rest.is_empty() {
        push(EXTENDED_CDB, rest);
    }
    if command.read_length > 0 && command.write_length > 0 {
        push(BIDIRECTIONAL_READ_LENGTH, &command.read_length.to_be_bytes());
    }
    bytes.into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use lunette_wire::AhsList;

    use super::*;

    #[test]
    fn a_long_cdb_goes_on_in_an_additional_header() {
        for length in [1, 6, 16, 17, 32, CDB_LENGTH_MAX] {
            let cdb: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
            let task = Task::new(&Command { cdb: &cdb, ..Command::default() });
            let first = task.header(InitiatorTaskTag(1), true, StatSn(0)).cdb;
            assert_eq!(task.ahs.len() % 4, 0);
            let mut whole = first.to_vec();
            whole.extend_from_slice(AhsList::decode(&task.ahs).unwrap().extended_cdb);
            assert_eq!(whole[..length], cdb);
        }
    }

    #[test]
    fn a_bidirectional_command_says_both_lengths() {
        let command = Command { cdb: &[7; 20], read_length: 512, write_length: 1024, ..Command::default() };
        let task = Task::new(&command);
        let list = AhsList::decode(&task.ahs).unwrap();
        assert_eq!((list.extended_cdb, list.bidirectional_read_length), (&[7; 4][..], Some(512)));
        let header = task.header(InitiatorTaskTag(1), true, StatSn(0));
        assert!(header.read && header.write);
        assert_eq!(header.expected_data_transfer_length, 1024);
    }
}
