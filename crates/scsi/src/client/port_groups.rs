//! REPORT TARGET PORT GROUPS and SET TARGET PORT GROUPS: how well each path reaches a unit (SPC-4).

use super::answer::Fields;
use super::command::{Allocation, Command, DoesNotFit, Query, Transfer};
use crate::alua::AccessState;
use crate::codes::opcode;

/// What is asked for at first.
const ASKED_BYTES: u32 = 4096;
const GROUP_BYTES: usize = 8;
const PORT_BYTES: usize = 4;

/// One target port group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortGroup {
    /// TARGET PORT GROUP
    pub group: u16,
    /// ASYMMETRIC ACCESS STATE, as it came.
    pub state_code: u8,
    /// PREF: the target wants it to be used.
    pub preferred: bool,
    /// Codes of the states that the group can have, of 0 to 4, 14 (offline) and 15 (transitioning).
    pub supported_codes: Vec<u8>,
    /// STATUS CODE: 0 nothing, 1 changed by SET TARGET PORT GROUPS, 2 by itself.
    pub status_code: u8,
    /// Relative target port identifiers of its ports.
    pub ports: Vec<u16>,
}

impl PortGroup {
    /// The state, if it is one that Lunette's target has too.
    pub fn state(&self) -> Option<AccessState> {
        AccessState::from_code(self.state_code)
    }

    /// The medium can be reached through it.
    pub fn is_active(&self) -> bool {
        matches!(self.state(), Some(AccessState::ActiveOptimized | AccessState::ActiveNonOptimized))
    }

    /// The state for people.
    pub fn state_name(&self) -> &'static str {
        match self.state_code {
            0x0 => "active/optimized",
            0x1 => "active/non-optimized",
            0x2 => "standby",
            0x3 => "unavailable",
            0x4 => "logical block dependent",
            0xe => "offline",
            0xf => "transitioning",
            _ => "unknown",
        }
    }
}

/// REPORT TARGET PORT GROUPS, with the header of four bytes.
pub fn report_target_port_groups() -> Query<Vec<PortGroup>> {
    let command = Command::with_action(opcode::REPORT_TARGET_PORT_GROUPS);
    Query::new(command, Allocation { at: 6, width: 4 }, ASKED_BYTES, |_, data| {
        let fields = Fields::new("REPORT TARGET PORT GROUPS", data);
        let length = fields.be32(0, "RETURN DATA LENGTH")? as usize;
        let mut rest = fields.part(4, length, "the target port group descriptors")?;
        let mut groups = Vec::new();
        while !rest.is_empty() {
            let ports = usize::from(rest.u8(7, "TARGET PORT COUNT")?);
            let (descriptor, after) =
                rest.split(GROUP_BYTES + ports * PORT_BYTES, "the target port group descriptor")?;
            let states = descriptor.u8(1, "T_SUP")?;
            // T, O, -, LBD, U, S, AN, AO from the top.
            let codes = [0, 1, 2, 3, 4, 0xff, 0xe, 0xf].into_iter().enumerate();
            let supported = codes.filter(|&(bit, code)| code != 0xff && states & 1 << bit != 0);
            groups.push(PortGroup {
                group: descriptor.be16(2, "TARGET PORT GROUP")?,
                state_code: descriptor.u8_told(0) & 0x0f,
                preferred: descriptor.bit_told(0, 0x80),
                supported_codes: supported.map(|(_, code)| code).collect(),
                status_code: descriptor.u8_told(5),
                ports: descriptor.parts(GROUP_BYTES, PORT_BYTES).map(|port| port.be16_told(2)).collect(),
            });
            rest = after;
        }
        Ok(groups)
    })
}

/// The most groups that are set with one command.
pub const GROUPS_SET_MAX: usize = 1024;

/// SET TARGET PORT GROUPS: each group gets a state.
///
/// # Errors
/// There are more than [`GROUPS_SET_MAX`], or a state is one that cannot be set (offline, transitioning).
pub fn set_target_port_groups(groups: &[(u16, AccessState)]) -> Result<Command, DoesNotFit> {
    if groups.len() > GROUPS_SET_MAX {
        return Err(DoesNotFit { field: "PARAMETER LIST LENGTH" });
    }
    let mut list = vec![0; 4];
    for &(group, state) in groups {
        if !state.can_be_set() {
            return Err(DoesNotFit { field: "ASYMMETRIC ACCESS STATE" });
        }
        list.extend([state as u8, 0]);
        list.extend(group.to_be_bytes());
    }
    let command = Command::with_action(opcode::SET_TARGET_PORT_GROUPS);
    let length = (list.len() as u32).to_be_bytes();
    Ok(command.field(6, length).transferring(Transfer::List(list)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read() {
        let body =
            [&[0x80, 0xcf, 0, 1, 0, 2, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2][..], &[0x02, 0x01, 0, 2, 0, 0, 0, 0]]
                .concat();
        let data = [&[0, 0, 0, body.len() as u8][..], &body].concat();
        let groups = report_target_port_groups().decode(&data).unwrap();
        assert_eq!((groups[0].group, groups[0].preferred, &groups[0].ports), (1, true, &vec![1, 2]));
        assert_eq!(groups[0].supported_codes, [0, 1, 2, 3, 0xe, 0xf]);
        assert!(groups[0].is_active() && !groups[1].is_active());
        assert_eq!((groups[1].state_name(), groups[1].ports.len()), ("standby", 0));
        let mut more = data.clone();
        more[4 + 7] = 200;
        assert!(report_target_port_groups().decode(&more).is_err());
        assert!(report_target_port_groups().decode(&data[..10]).unwrap_err().needed_bytes().is_some());
    }

    #[test]
    fn states_are_set() {
        let command = set_target_port_groups(&[(0x0102, AccessState::Standby)]).unwrap();
        assert_eq!(command.cdb(), [0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0]);
        assert_eq!(command.transfer(), &Transfer::List(vec![0, 0, 0, 0, 2, 0, 1, 2]));
        assert!(set_target_port_groups(&[(1, AccessState::Offline)]).is_err());
    }
}
