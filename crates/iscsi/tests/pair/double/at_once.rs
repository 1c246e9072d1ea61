//! Commands that the driver ends before they are tasks.

use lunette_iscsi::session::Deliverable;
use lunette_wire::Cid;
use lunette_wire::initiator::ScsiCommand;

use super::BLOCK;
use super::target::{READ_10, Target, UNIT, WRITE_10, extent};

impl Target {
    /// Does a command at once if that is wanted, and possible: what it calls for, in bytes, and what a read brings.
    pub(super) fn do_at_once(
        &mut self,
        session: usize,
        cid: Cid,
        pdu: &ScsiCommand,
        data: &[u8],
    ) -> Option<(Deliverable, u32, Vec<u8>)> {
        // The others between them see what stands beside such a command.
        let is_wanted = self.answers_at_once && pdu.cmd_sn.0.is_multiple_of(2) && pdu.lun == UNIT;
        if !is_wanted {
            return None;
        }
        let deliverable = self.sessions[session].session.takes_at_once(cid, pdu, data.len() as u32)?;
        let (offset, length) = extent(&pdu.cdb);
        let moved = length.min(pdu.expected_data_transfer_length);
        match pdu.cdb[0] {
            READ_10 if moved > 0 => {
                Some((deliverable, length, self.disk[offset..offset + moved as usize].to_vec()))
            }
            WRITE_10 => {
                let whole = (moved / BLOCK * BLOCK) as usize;
                self.disk[offset..offset + whole].copy_from_slice(&data[..whole]);
                Some((deliverable, length, Vec::new()))
            }
            _ => None,
        }
    }
}
