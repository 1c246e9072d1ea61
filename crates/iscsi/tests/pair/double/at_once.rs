//! Commands that the driver ends before they are tasks.

use lunette_iscsi::session::Transfer;
use lunette_wire::Cid;
use lunette_wire::initiator::ScsiCommand;

use super::BLOCK;
use super::target::{READ_10, Target, UNIT, WRITE_10, extent};

impl Target {
    /// Does a command at once if that is wanted, and possible; what it has moved.
    pub(super) fn do_at_once(
        &mut self,
        session: usize,
        cid: Cid,
        pdu: &ScsiCommand,
        data: &[u8],
    ) -> Option<Transfer<Vec<u8>>> {
        // The others between them see what stands beside such a command.
        let is_wanted = self.answers_at_once && pdu.cmd_sn.0.is_multiple_of(2) && pdu.lun == UNIT;
        if !is_wanted || !self.sessions[session].session.takes_at_once(cid, pdu, data.len() as u32) {
            return None;
        }
        let (offset, length) = extent(&pdu.cdb);
        match pdu.cdb[0] {
            READ_10 if length > 0 && pdu.expected_data_transfer_length > 0 => {
                let data = self.disk[offset..offset + length as usize].to_vec();
                Some(Transfer::In { data, length })
            }
            WRITE_10 => {
                let whole = length.min(pdu.expected_data_transfer_length) / BLOCK * BLOCK;
                self.disk[offset..offset + whole as usize].copy_from_slice(&data[..whole as usize]);
                Some(Transfer::Out { length: length.into() })
            }
            _ => None,
        }
    }
}
