//! Asynchronous Messages (RFC 7143, 11.9): what each means for this side.

use std::time::Duration;

use lunette_wire::initiator::NopOut;
use lunette_wire::target::AsynchronousMessage;
use lunette_wire::{Cid, InitiatorTaskTag, TargetTransferTag};

use super::connection::Meaning;
use super::respond::sense_of;
use super::{ConnectionId, Event, Loss, Notice, Outbox, Session, Violation};

const PDU: &str = "Asynchronous Message";

impl Session {
    pub(super) fn asynchronous_message(
        &mut self,
        now: Duration,
        id: ConnectionId,
        pdu: &AsynchronousMessage,
        data: &[u8],
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        self.count_commands(PDU, pdu.numbers)?;
        let [first, _, third] = pdu.parameters;
        let notice = match pdu.event {
            0 => Notice::ScsiEvent { lun: pdu.lun, sense: sense_of(PDU, data)?.to_vec() },
            1 => {
                self.retire(id);
                outbox.tell(Event::LogoutRequested { connection: id, within_s: third });
                return Ok(());
            }
            2 => {
                let of = self.connections.iter().find(|connection| connection.cid == Cid(first));
                if let Some(of) = of.map(|connection| connection.id) {
                    self.connection_lost(of, Loss::Dropped, outbox);
                }
                return Ok(());
            }
            3 => {
                for of in self.connections().collect::<Vec<_>>() {
                    self.connection_lost(of, Loss::Dropped, outbox);
                }
                return Ok(());
            }
            4 => {
                self.negotiate(now, id);
                Notice::NegotiationRequest { within_s: third }
            }
            5 => {
                self.cut_terminated(id, pdu.lun);
                self.acknowledge_termination(id, pdu)?;
                Notice::TasksTerminated { lun: pdu.lun }
            }
            event => {
                let sense = sense_of(PDU, data)?;
                // The event's own data comes behind the sense data and its length.
                let rest = data.get(2 + sense.len()..).unwrap_or_default();
                let (code, parameters) = (pdu.vendor_code, pdu.parameters);
                Notice::Vendor { event, code, parameters, data: rest.to_vec() }
            }
        };
        outbox.tell(Event::Notice { connection: id, notice });
        Ok(())
    }

    /// A NOP-Out with the logical unit says that no more data of its tasks comes on this connection.
    fn acknowledge_termination(
        &mut self,
        id: ConnectionId,
        pdu: &AsynchronousMessage,
    ) -> Result<(), Violation> {
        let cmd_sn = self.cmd_sn;
        let Some(connection) = self.connection_mut(id) else { return Ok(()) };
        if !connection.owes_another_answer() {
            return Err(Violation::protocol(PDU, "11.9.1", "is one more than it has read the answers of"));
        }
        let answer = NopOut {
            immediate: true,
            lun: pdu.lun,
            initiator_task_tag: InitiatorTaskTag::RESERVED,
            target_transfer_tag: TargetTransferTag::RESERVED,
            cmd_sn,
            ..NopOut::default()
        };
        connection.queue(answer.encode(0), Box::default(), Meaning::Answer);
        Ok(())
    }
}
