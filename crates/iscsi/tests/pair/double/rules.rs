//! What RFC 7143 asks of each PDU that an initiator sends in the full feature phase, looked at one by one as they leave. It knows
//! what was sent and asked for before, and nothing of the session's own state.

use std::collections::{HashMap, HashSet};

use lunette_iscsi::initiator::session::{ConnectionId, Outgoing};
use lunette_wire::initiator::{ScsiDataOut, TaskManagementFunction};
use lunette_wire::target::ReadyToTransfer;
use lunette_wire::{CmdSn, InitiatorPdu, InitiatorTaskTag, LunField, TargetTransferTag};

/// A SCSI command that was sent.
#[derive(Debug)]
struct Sent {
    lun: LunField,
    cmd_sn: CmdSn,
    /// Where its task is: where it was sent last, or reassigned to.
    connection: ConnectionId,
    /// The R2Ts that came for it, in their order.
    r2ts: Vec<ReadyToTransfer>,
    /// The place among them of the last one that was answered.
    answered: usize,
}

/// All that was sent by one session.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    commands: HashMap<InitiatorTaskTag, Sent>,
    numbers: HashSet<u32>,
    /// The highest CmdSN of each connection.
    newest: HashMap<ConnectionId, CmdSn>,
}

impl Rules {
    /// Notes what the target asks for.
    pub(crate) fn asked(&mut self, pdu: &ReadyToTransfer) {
        let Some(command) = self.commands.get_mut(&pdu.initiator_task_tag) else { return };
        // One that is repeated is the same one (7.9).
        let is_known = |of: &ReadyToTransfer| {
            (of.target_transfer_tag, of.r2t_sn) == (pdu.target_transfer_tag, pdu.r2t_sn)
        };
        if !command.r2ts.iter().any(is_known) {
            command.r2ts.push(*pdu);
        }
    }

    /// Looks at a PDU with so many bytes of data. `is_up` tells which connections there are, and `is_whole` that none was lost.
    pub(crate) fn leaves(
        &mut self,
        pdu: &Outgoing,
        data_length: usize,
        is_up: impl Fn(ConnectionId) -> bool,
        is_whole: bool,
    ) {
        // 11.2.1.5, 11.2.1.6: both lengths are those of what follows.
        assert_eq!(usize::from(pdu.bhs[4]) * 4, pdu.ahs.len());
        assert_eq!(pdu.bhs[5..8], (data_length as u32).to_be_bytes()[1..]);
        let decoded = InitiatorPdu::decode(&pdu.bhs).expect("an initiator's PDU");
        let at = pdu.connection;
        let (is_immediate, cmd_sn) = match decoded {
            InitiatorPdu::ScsiCommand(command) => {
                assert!(!command.immediate, "10.6: a command that may change something is not immediate");
                let fresh = Sent {
                    lun: command.lun,
                    cmd_sn: command.cmd_sn,
                    connection: at,
                    r2ts: Vec::new(),
                    answered: 0,
                };
                let sent = self.commands.entry(command.initiator_task_tag).or_insert(fresh);
                assert_eq!(sent.cmd_sn, command.cmd_sn, "7.2.1: a retry has the number that it had");
                assert!(sent.connection == at || !is_up(sent.connection), "7.2.1: and its connection");
                sent.connection = at;
                (false, command.cmd_sn)
            }
            InitiatorPdu::ScsiDataOut(data) => return self.data_leaves(&data, data_length),
            InitiatorPdu::TaskManagementRequest(request) => {
                assert_eq!((pdu.bhs[4..8].iter().sum::<u8>(), data_length), (0, 0), "11.5.2");
                let task = self.commands.get_mut(&request.referenced_task_tag);
                match (request.function, task) {
                    (TaskManagementFunction::AbortTask, Some(task)) => assert!(
                        task.connection == at || !is_up(task.connection),
                        "11.5.1: an abort goes where its task is"
                    ),
                    (TaskManagementFunction::TaskReassign, task) => {
                        assert!(request.immediate, "11.5.1");
                        task.expect("a task that was sent").connection = at;
                    }
                    _ => {}
                }
                (request.immediate, request.cmd_sn)
            }
            InitiatorPdu::TextRequest(request) => {
                assert!(request.is_final && !request.is_continued, "6.4, 11.10.2: it is whole");
                (request.immediate, request.cmd_sn)
            }
            InitiatorPdu::LogoutRequest(request) => {
                assert_eq!((pdu.bhs[4..8].iter().sum::<u8>(), data_length), (0, 0), "11.14.2");
                (request.immediate, request.cmd_sn)
            }
            InitiatorPdu::NopOut(ping) => (ping.immediate, ping.cmd_sn),
            InitiatorPdu::SnackRequest(_) => return,
            InitiatorPdu::LoginRequest(_) => panic!("4.2.4: a second login on a connection"),
        };
        if is_immediate {
            return;
        }
        // 4.2.2.1: in growing order, but for what is sent again, and what a lost connection has left.
        if self.numbers.insert(cmd_sn.0) && is_whole {
            let newest = self.newest.entry(at).or_insert(cmd_sn);
            assert!(*newest == cmd_sn || newest.precedes(cmd_sn), "4.2.2.1: {newest:?} is before {cmd_sn:?}");
            *newest = cmd_sn;
        }
    }

    fn data_leaves(&mut self, data: &ScsiDataOut, length: usize) {
        let command =
            self.commands.get_mut(&data.initiator_task_tag).expect("data of a command that was sent");
        assert!(
            data.is_final || length.is_multiple_of(4),
            "11.7.7: whole words, but for the last of a sequence"
        );
        if data.target_transfer_tag == TargetTransferTag::RESERVED {
            return;
        }
        assert_eq!(data.lun, command.lun, "11.7.4");
        let is_asked = |r2t: &ReadyToTransfer| r2t.target_transfer_tag == data.target_transfer_tag;
        let place = command.r2ts.iter().rposition(is_asked).expect("11.7.4: data that was asked for");
        assert!(place >= command.answered, "11.8: R2Ts are answered in their order");
        command.answered = place;
    }
}
