//! Device Identification and SCSI Ports: designation descriptors (SPC-4; UUIDs are SPC-5's).

use std::fmt;

use super::super::answer::{Fields, Malformed};
use super::{Query, body, query};
use crate::codes::{designator, vpd_page};

/// The most designation descriptors that are read: a page of 64 KiB could bring four times as many.
const DESIGNATIONS_MAX: usize = 4096;

/// What a designation descriptor names (ASSOCIATION).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Association {
    /// The logical unit.
    LogicalUnit,
    /// The target port that was asked.
    TargetPort,
    /// The target device.
    TargetDevice,
    /// The reserved value.
    Reserved,
}

/// A name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Designator {
    /// Network address authority, 8 or 16 bytes: what most hosts know a disk by.
    Naa(Vec<u8>),
    /// EUI-64, 8, 12 or 16 bytes.
    Eui64(Vec<u8>),
    /// A UUID, in the order in which it is printed.
    Uuid([u8; 16]),
    /// T10 vendor identification, then what the vendor chose; fit for a terminal.
    VendorId(String),
    /// A SCSI name string: of iSCSI, `iqn.…`, `iqn.…,t,0x0001` and the like.
    ScsiName(String),
    /// Relative target port identifier.
    RelativeTargetPort(u16),
    /// Target port group.
    TargetPortGroup(u16),
    /// Logical unit group.
    LogicalUnitGroup(u16),
    /// Anything else, or one of the above in a form that it cannot have.
    Unknown {
        /// CODE SET
        code_set: u8,
        /// DESIGNATOR TYPE
        designator_type: u8,
        /// DESIGNATOR
        bytes: Vec<u8>,
    },
}

/// One designation descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Designation {
    /// What is named.
    pub association: Association,
    /// Whose protocol it is, where that is told: 5 is iSCSI.
    pub protocol: Option<u8>,
    /// The name.
    pub designator: Designator,
}

impl Designation {
    /// It says which medium this is, on whichever path it is reached: a name of the logical unit that is unique in the world.
    pub fn is_world_wide(&self) -> bool {
        self.association == Association::LogicalUnit && self.designator.is_unique()
    }
}

impl Designator {
    /// True for a name that nobody else may give: one with the number of an organization, and a UUID. Some targets count
    /// their units from the same name on each host.
    pub(crate) fn is_unique(&self) -> bool {
        match self {
            // The organization's 24 bits come behind the four of the format; format 3 is assigned locally.
            Designator::Naa(bytes) => match bytes.as_slice() {
                [first, second, third, fourth, ..] => {
                    *first >> 4 != 3 && (first & 15, *second, *third, fourth >> 4) != (0, 0, 0, 0)
                }
                _ => false,
            },
            Designator::Eui64(bytes) => bytes.iter().take(3).any(|byte| *byte != 0),
            Designator::Uuid(_) => true,
            _ => false,
        }
    }
}

impl fmt::Display for Designator {
    /// In the forms that other tools print: `naa.…`, `eui.…`, `uuid.…`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |f: &mut fmt::Formatter<'_>, bytes: &[u8]| {
            bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
        };
        match self {
            Designator::Naa(bytes) => f.write_str("naa.").and_then(|()| hex(f, bytes)),
            Designator::Eui64(bytes) => f.write_str("eui.").and_then(|()| hex(f, bytes)),
            Designator::Uuid(bytes) => {
                f.write_str("uuid.")?;
                for (part, range) in [(0..4), (4..6), (6..8), (8..10), (10..16)].into_iter().enumerate() {
                    f.write_str(if part == 0 { "" } else { "-" })?;
                    hex(f, &bytes[range])?;
                }
                Ok(())
            }
            Designator::VendorId(text) => write!(f, "t10.{text}"),
            Designator::ScsiName(name) => f.write_str(name),
            Designator::RelativeTargetPort(port) => write!(f, "port {port}"),
            Designator::TargetPortGroup(group) => write!(f, "port group {group}"),
            Designator::LogicalUnitGroup(group) => write!(f, "logical unit group {group}"),
            Designator::Unknown { designator_type, bytes, .. } => {
                write!(f, "type {designator_type}: ").and_then(|()| hex(f, bytes))
            }
        }
    }
}

/// Asks for the Device Identification page.
pub fn device_identification() -> Query<Vec<Designation>> {
    query(vpd_page::DEVICE_IDENTIFICATION, |command, data| designations(body(command, data)?))
}

/// One target port, as the SCSI Ports page tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScsiPort {
    /// RELATIVE PORT IDENTIFIER
    pub relative_port: u16,
    /// Its names.
    pub designations: Vec<Designation>,
}

/// Asks for the SCSI Ports page: every target port, those through which one has not come among them.
pub fn scsi_ports() -> Query<Vec<ScsiPort>> {
    query(vpd_page::SCSI_PORTS, |command, data| {
        let mut rest = body(command, data)?;
        let mut ports = Vec::new();
        while !rest.is_empty() {
            let relative_port = rest.be16(2, "RELATIVE PORT IDENTIFIER")?;
            let initiators = usize::from(rest.be16(6, "INITIATOR PORT TRANSPORTID LENGTH")?);
            let after = rest.split(8 + initiators, "INITIATOR PORT TRANSPORTID")?.1;
            let length = usize::from(after.be16(2, "TARGET PORT DESCRIPTORS LENGTH")?);
            let (_, after) = after.split(4, "TARGET PORT DESCRIPTORS LENGTH")?;
            let (descriptors, after) = after.split(length, "TARGET PORT DESCRIPTORS")?;
            ports.push(ScsiPort { relative_port, designations: designations(descriptors)? });
            rest = after;
        }
        Ok(ports)
    })
}

fn designations(mut rest: Fields<'_>) -> Result<Vec<Designation>, Malformed> {
    let mut designations = Vec::new();
    while !rest.is_empty() && designations.len() < DESIGNATIONS_MAX {
        let length = usize::from(rest.u8(3, "DESIGNATOR LENGTH")?);
        let (descriptor, after) = rest.split(4 + length, "DESIGNATOR")?;
        designations.push(designation(descriptor.bytes()));
        rest = after;
    }
    Ok(designations)
}

/// One whole descriptor, of at least four bytes.
fn designation(descriptor: &[u8]) -> Designation {
    let (header, bytes) = descriptor.split_at(descriptor.len().min(4));
    let byte = |at: usize| header.get(at).copied().unwrap_or(0);
    let (code_set, kind) = (byte(0) & 0x0f, byte(1) & 0x0f);
    let number = || match *bytes {
        [_, _, high, low] => Some(u16::from_be_bytes([high, low])),
        _ => None,
    };
    let known = match (code_set, kind) {
        (designator::BINARY, designator::NAA) => {
            matches!(bytes.len(), 8 | 16).then(|| Designator::Naa(bytes.to_vec()))
        }
        (designator::BINARY, designator::EUI_64) => {
            matches!(bytes.len(), 8 | 12 | 16).then(|| Designator::Eui64(bytes.to_vec()))
        }
        (designator::BINARY, designator::UUID) => {
            bytes.get(2..).and_then(|uuid| uuid.try_into().ok()).map(Designator::Uuid)
        }
        (designator::ASCII, designator::VENDOR_ID) => {
            (bytes.len() >= 8).then(|| Designator::VendorId(super::text(bytes)))
        }
        (designator::UTF_8, designator::SCSI_NAME) => scsi_name(bytes).map(Designator::ScsiName),
        (designator::BINARY, designator::RELATIVE_TARGET_PORT) => {
            number().map(Designator::RelativeTargetPort)
        }
        (designator::BINARY, designator::TARGET_PORT_GROUP) => number().map(Designator::TargetPortGroup),
        (designator::BINARY, designator::LOGICAL_UNIT_GROUP) => number().map(Designator::LogicalUnitGroup),
        _ => None,
    };
    Designation {
        association: match byte(1) >> 4 & 0x03 {
            0 => Association::LogicalUnit,
            1 => Association::TargetPort,
            2 => Association::TargetDevice,
            _ => Association::Reserved,
        },
        protocol: (byte(1) & 0x80 != 0).then_some(byte(0) >> 4),
        designator: known.unwrap_or(Designator::Unknown {
            code_set,
            designator_type: kind,
            bytes: bytes.to_vec(),
        }),
    }
}

/// A string that ends with the first null, if it is one that can be shown.
fn scsi_name(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let name = str::from_utf8(&bytes[..end]).ok()?;
    (!name.is_empty() && !name.chars().any(char::is_control)).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(descriptors: &[&[u8]]) -> Vec<u8> {
        let body = descriptors.concat();
        [&[0, 0x83][..], &(body.len() as u16).to_be_bytes(), &body].concat()
    }

    #[test]
    fn known_forms() {
        let uuid = [&[0x01, 0x0a, 0, 18, 0x10, 0][..], &[0x5a; 16]].concat();
        let data = page(&[
            &[0x01, 0x03, 0, 8, 0x31, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef],
            &uuid,
            b"\x02\x01\0\x0cVENDOR  S\x1b-1",
            b"\x53\x98\0\x08iqn.x\0\0\0",
            &[0x51, 0x94, 0, 4, 0, 0, 0, 7],
        ]);
        let found = device_identification().decode(&data).unwrap();
        let shown: Vec<_> = found.iter().map(|found| found.designator.to_string()).collect();
        assert_eq!(
            shown,
            [
                "naa.3123456789abcdef",
                "uuid.5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a",
                "t10.VENDOR  S?-1",
                "iqn.x",
                "port 7"
            ]
        );
        assert_eq!((found[3].association, found[3].protocol), (Association::TargetPort, Some(5)));
        assert_eq!(found[0].protocol, None);
        let world_wide: Vec<_> = found.iter().map(Designation::is_world_wide).collect();
        assert_eq!(world_wide, [false, true, false, false, false], "NAA 3 is assigned locally");
    }

    #[test]
    fn what_is_not_known_is_kept() {
        let data = page(&[&[0x01, 0x0f, 0, 2, 1, 2], &[0x01, 0x03, 0, 1, 9], &[0x03, 0x08, 0, 1, 0x1b]]);
        let found = device_identification().decode(&data).unwrap();
        let unknown =
            |code_set, designator_type, bytes| Designator::Unknown { code_set, designator_type, bytes };
        assert_eq!(found[0].designator, unknown(1, 15, vec![1, 2]));
        assert_eq!(found[1].designator, unknown(1, 3, vec![9]), "no NAA has one byte");
        assert_eq!(found[2].designator, unknown(3, 8, vec![0x1b]), "nothing to show on a terminal");
        assert_eq!(found[0].designator.to_string(), "type 15: 0102");
    }

    #[test]
    fn descriptors_longer_than_the_page() {
        let data = page(&[&[0x01, 0x03, 0, 9, 0x31, 0x23]]);
        let error = device_identification().decode(&data).unwrap_err();
        assert_eq!(error.field, "DESIGNATOR");
        assert!(device_identification().decode(&page(&[&[1]])).is_err());
    }

    #[test]
    fn ports() {
        let port = |number: u8| {
            [&[0, 0, 0, number, 0, 0, 0, 0, 0, 0, 0, 12][..], b"\x53\x98\0\x08iqn.x\0\0\0"].concat()
        };
        let body = [port(1), port(2)].concat();
        let data = [&[0, 0x88, 0, body.len() as u8][..], &body].concat();
        let ports = scsi_ports().decode(&data).unwrap();
        assert_eq!(ports.iter().map(|port| port.relative_port).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(ports[1].designations[0].designator, Designator::ScsiName("iqn.x".into()));
        let mut wrong = data.clone();
        wrong[4 + 11] = 200;
        assert!(scsi_ports().decode(&wrong).is_err());
    }

    #[test]
    fn names_without_an_organization_are_not_unique() {
        let unique = |name| Designator::Naa(name).is_unique();
        assert!(unique(vec![0x60, 0x01, 0x40, 0x50]) && unique(vec![0x50, 0, 0, 0x10]));
        assert!(!unique(vec![0x60, 0, 0, 0x0e]) && !unique(vec![0x33, 1, 1, 1]) && !unique(vec![0x60]));
        assert!(Designator::Uuid([1; 16]).is_unique() && !Designator::VendorId("x".into()).is_unique());
        assert!(Designator::Eui64(vec![0, 0, 1]).is_unique() && !Designator::Eui64(vec![0; 8]).is_unique());
    }
}
