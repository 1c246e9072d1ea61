//! What leaves: commands with their immediate data, Data-Out as far as it was asked for or may go unasked, and the other
//! requests (RFC 7143, 4.2.5.2, 11.3 and 11.7). PDUs are made when they can leave.

use std::time::Duration;

use lunette_wire::initiator::{NopOut, ScsiDataOut};
use lunette_wire::{BHS_LENGTH, CmdSn, DataSn, InitiatorTaskTag, LunField, TargetTransferTag};

use super::connection::{DataOut, Entry, Meaning};
use super::outbox::{DataRange, Outgoing, Payload};
use super::task::Stage;
use super::{ConnectionId, Outbox, Session, TaskHandle};

/// Where ExpStatSN is in all PDUs of an initiator (11.3 to 11.18).
const EXP_STAT_SN: std::ops::Range<usize> = 28..32;

impl Session {
    /// True when a connection has something to send.
    #[must_use]
    pub fn has_work(&self, connection: ConnectionId) -> bool {
        self.connections.iter().position(|of| of.id == connection).is_some_and(|at| {
            let connection = &self.connections[at];
            !connection.is_silent && (!connection.requests.is_empty() || self.next_solicited(at).is_some())
        })
    }

    /// The place of the first answer to an R2T that may leave now.
    fn next_solicited(&self, at: usize) -> Option<usize> {
        let is_cut = |data: &DataOut| self.tasks.get(data.task).is_some_and(|task| task.is_cut);
        self.connections[at].solicited.iter().position(|data| !is_cut(data))
    }

    /// Moves what a connection can send into the outbox, until it is about `budget` bytes (the last PDU may exceed it). Commands
    /// that waited for that are then work for this connection and for others ([`Self::has_work`]).
    pub fn transmit(&mut self, now: Duration, connection: ConnectionId, budget: usize, outbox: &mut Outbox) {
        let Some(at) = self.connections.iter().position(|of| of.id == connection) else { return };
        // Whose turn it is depends on what has ended meanwhile.
        self.assign_waiting();
        self.move_out(now, at, budget, outbox);
        self.assign_waiting();
    }

    fn move_out(&mut self, now: Duration, at: usize, budget: usize, outbox: &mut Outbox) {
        let mut moved = 0;
        while moved < budget && !self.connections[at].is_silent {
            let length = if let Some(entry) = self.connections[at].requests.pop_front() {
                self.send_entry(now, at, entry, outbox)
            } else if let Some(next) = self.next_solicited(at)
                && let Some(data) = self.connections[at].solicited.remove(next)
            {
                self.send_data(at, data, outbox)
            } else {
                return;
            };
            moved += length;
        }
    }

    fn send_entry(&mut self, now: Duration, at: usize, entry: Entry, outbox: &mut Outbox) -> usize {
        match entry {
            Entry::Command(tag, cmd_sn) if self.tasks.get(tag).is_none() => self.plug(at, cmd_sn, outbox),
            Entry::Command(tag, _) => self.send_command(now, at, tag, outbox),
            Entry::Data(data) => self.send_data(at, data, outbox),
            Entry::Pdu(pdu, meaning) => {
                let connection = &mut self.connections[at];
                let (mut bhs, data) = *pdu;
                let acknowledges = match meaning {
                    Meaning::Request(tag) => self.request_leaves(now, at, tag),
                    Meaning::Answer => {
                        connection.pongs -= 1;
                        true
                    }
                    Meaning::Snack => {
                        connection.snacks -= 1;
                        true
                    }
                };
                let connection = &self.connections[at];
                if acknowledges {
                    bhs[EXP_STAT_SN].copy_from_slice(&connection.order.exp_stat_sn().0.to_be_bytes());
                }
                let length = data.len();
                let payload = if data.is_empty() { Payload::None } else { Payload::Bytes(data) };
                outbox.pdus.push(Outgoing {
                    connection: connection.id,
                    bhs,
                    ahs: Box::default(),
                    payload,
                    begins: None,
                });
                BHS_LENGTH + length
            }
        }
    }

    /// Brings a CmdSN whose command is not sent (7.2.1): a ping has it, whose answer nobody waits for.
    pub(super) fn plug(&mut self, at: usize, cmd_sn: CmdSn, outbox: &mut Outbox) -> usize {
        let acknowledged = self.exp_cmd_sn;
        let connection = &mut self.connections[at];
        connection.note_plug(cmd_sn, acknowledged);
        let ping = NopOut {
            immediate: false,
            lun: LunField::default(),
            initiator_task_tag: self.requests.passing_tag(),
            target_transfer_tag: TargetTransferTag::RESERVED,
            cmd_sn,
            exp_stat_sn: connection.order.exp_stat_sn(),
        };
        outbox.pdus.push(Outgoing {
            connection: connection.id,
            bhs: ping.encode(0),
            ahs: Box::default(),
            payload: Payload::None,
            begins: None,
        });
        BHS_LENGTH
    }

    /// How much of a write may go unasked: in the command's PDU, and with the Data-Out behind it (4.2.5.2, 13.10, 13.11).
    pub(super) fn unsolicited(&self, at: usize, write_length: u32) -> (u32, u32) {
        let first_burst = self.parameters.first_burst_length.min(write_length);
        let immediate = if self.parameters.immediate_data {
            first_burst.min(self.connections[at].segment_max())
        } else {
            0
        };
        // LIO has no room for the data of a command that waits for one on another connection, unless some came with it
        // (docs/decisions/0033).
        let may_wait = immediate == 0 && self.connections.len() > 1;
        (immediate, if self.parameters.initial_r2t || may_wait { immediate } else { first_burst })
    }

    fn send_command(
        &mut self,
        now: Duration,
        at: usize,
        tag: InitiatorTaskTag,
        outbox: &mut Outbox,
    ) -> usize {
        let Some(write_length) = self.tasks.get(tag).map(|task| task.write_length) else { return 0 };
        let (immediate, unsolicited) = self.unsolicited(at, write_length);
        let Some(task) = self.tasks.get_mut(tag) else { return 0 };
        let connection = &mut self.connections[at];
        task.stage = Stage::Sent;
        task.sent_at = now;
        task.sent = immediate;
        task.next_r2t_offset = unsolicited;
        let header = task.header(tag, immediate == unsolicited, connection.order.exp_stat_sn());
        let mut bhs = header.encode(immediate as usize);
        let ahs = task.ahs.clone();
        // TotalAHSLength counts words of four bytes (11.2.1.5); there are 252 bytes at most.
        bhs[4] = (ahs.len() / 4) as u8;
        let range = DataRange { task: TaskHandle(tag), offset: 0, length: immediate };
        let payload = if immediate == 0 { Payload::None } else { Payload::Data(range) };
        let length = BHS_LENGTH + ahs.len() + immediate as usize;
        outbox.pdus.push(Outgoing {
            connection: connection.id,
            bhs,
            ahs,
            payload,
            begins: Some(TaskHandle(tag)),
        });
        if immediate < unsolicited {
            // It follows at once, so that the unsolicited data of all commands is in their order (4.2.5.2).
            connection.requests.push_front(Entry::Data(DataOut {
                task: tag,
                target_transfer_tag: TargetTransferTag::RESERVED,
                next: immediate,
                end: unsolicited,
                data_sn: 0,
            }));
        }
        length
    }

    /// Sends one PDU of a sequence, and puts back what is left of it.
    fn send_data(&mut self, at: usize, mut data: DataOut, outbox: &mut Outbox) -> usize {
        // Nobody takes the data of a task that has ended.
        let Some(task) = self.tasks.get_mut(data.task) else { return 0 };
        let connection = &mut self.connections[at];
        let length = (data.end - data.next).min(connection.segment_max());
        let is_final = data.next + length == data.end;
        let header = ScsiDataOut {
            is_final,
            lun: task.lun,
            initiator_task_tag: data.task,
            target_transfer_tag: data.target_transfer_tag,
            exp_stat_sn: connection.order.exp_stat_sn(),
            data_sn: DataSn(data.data_sn),
            buffer_offset: data.next,
        };
        outbox.pdus.push(Outgoing {
            connection: connection.id,
            bhs: header.encode(length as usize),
            ahs: Box::default(),
            payload: Payload::Data(DataRange { task: TaskHandle(data.task), offset: data.next, length }),
            begins: None,
        });
        task.sent = task.sent.saturating_add(length);
        data.next += length;
        data.data_sn += 1;
        match (is_final, data.is_solicited()) {
            (true, true) => task.r2ts_open -= 1,
            (true, false) => {}
            (false, true) => connection.solicited.push_front(data),
            (false, false) => connection.requests.push_front(Entry::Data(data)),
        }
        BHS_LENGTH + length as usize
    }
}
