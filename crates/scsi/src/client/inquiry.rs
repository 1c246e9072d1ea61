//! INQUIRY: what and who a logical unit is (SPC-4). The vital product data pages are in [`super::vpd`].

use super::answer::{Fields, Malformed, text};
use super::command::{Allocation, Command, Query};
use crate::codes::opcode;

/// Up to the end of the version descriptors and what is reserved after them.
const ASKED_BYTES: u32 = 96;
/// The part that every target has to send: up to PRODUCT REVISION LEVEL.
const REQUIRED_BYTES: usize = 36;

pub(super) const ALLOCATION: Allocation = Allocation { at: 3, width: 2 };

/// Whether a logical unit is there (PERIPHERAL QUALIFIER).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeripheralQualifier {
    /// There is one, as far as the target can tell.
    Connected,
    /// There could be one, and is none.
    #[default]
    NotConnected,
    /// There cannot be one.
    NotSupported,
    /// Reserved, or the vendor's.
    Other(u8),
}

/// What a logical unit is (PERIPHERAL DEVICE TYPE).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceType(pub u8);

impl DeviceType {
    /// A disk: direct access block device (SBC).
    pub const BLOCK: DeviceType = DeviceType(0x00);

    /// A short name for people.
    pub fn name(self) -> &'static str {
        match self.0 {
            0x00 => "disk",
            0x01 => "tape",
            0x02 => "printer",
            0x03 => "processor",
            0x04 => "write-once disk",
            0x05 => "CD/DVD",
            0x07 => "optical memory",
            0x08 => "medium changer",
            0x0c => "storage array controller",
            0x0d => "enclosure",
            0x0e => "simplified disk",
            0x11 => "object storage",
            0x14 => "zoned disk",
            0x1e => "well-known logical unit",
            0x1f => "none",
            _ => "unknown",
        }
    }
}

/// How states of target port groups change (TPGS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortGroupSupport {
    /// Never, or nothing is told.
    #[default]
    None,
    /// By themselves.
    Implicit,
    /// By SET TARGET PORT GROUPS.
    Explicit,
    /// Both ways.
    Both,
}

/// Standard INQUIRY data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StandardInquiry {
    /// Whether there is a logical unit.
    pub qualifier: PeripheralQualifier,
    /// What it is.
    pub device_type: DeviceType,
    /// RMB: the medium can be taken out.
    pub removable: bool,
    /// VERSION: 5 is SPC-3, 6 is SPC-4, 7 is SPC-5.
    pub version: u8,
    /// NORMACA
    pub normal_aca: bool,
    /// TPGS
    pub port_groups: PortGroupSupport,
    /// 3PC: it copies for others.
    pub third_party_copy: bool,
    /// PROTECT: it can keep protection information.
    pub protect: bool,
    /// CMDQUE: it takes more than one command at a time.
    pub command_queue: bool,
    /// T10 VENDOR IDENTIFICATION. Texts are without what fills them, and fit for a terminal.
    pub vendor: String,
    /// PRODUCT IDENTIFICATION
    pub product: String,
    /// PRODUCT REVISION LEVEL
    pub revision: String,
    /// VERSION DESCRIPTORS that are there.
    pub version_descriptors: Vec<u16>,
}

impl StandardInquiry {
    /// There is a disk.
    pub fn is_disk(&self) -> bool {
        self.qualifier == PeripheralQualifier::Connected && self.device_type == DeviceType::BLOCK
    }
}

/// INQUIRY without EVPD.
pub fn standard() -> Query<StandardInquiry> {
    Query::new(Command::new(opcode::INQUIRY), ALLOCATION, ASKED_BYTES, |_, data| decode(data))
}

fn decode(data: &[u8]) -> Result<StandardInquiry, Malformed> {
    let fields = Fields::new("INQUIRY", data);
    // ADDITIONAL LENGTH counts from byte 5. Less than the required part is a target of old; more than was asked for is fine.
    let told = usize::from(fields.u8(4, "ADDITIONAL LENGTH")?) + 5;
    let fields = fields.part(0, told.min(data.len().max(REQUIRED_BYTES)), "PRODUCT REVISION LEVEL")?;
    let at = |at: usize, length: usize| text(fields.bytes().get(at..at + length).unwrap_or_default());
    Ok(StandardInquiry {
        qualifier: match fields.u8_told(0) >> 5 {
            0 => PeripheralQualifier::Connected,
            1 => PeripheralQualifier::NotConnected,
            3 => PeripheralQualifier::NotSupported,
            other => PeripheralQualifier::Other(other),
        },
        device_type: DeviceType(fields.u8_told(0) & 0x1f),
        removable: fields.bit_told(1, 0x80),
        version: fields.u8_told(2),
        normal_aca: fields.bit_told(3, 0x20),
        port_groups: match fields.u8_told(5) >> 4 & 0x03 {
            0 => PortGroupSupport::None,
            1 => PortGroupSupport::Implicit,
            2 => PortGroupSupport::Explicit,
            _ => PortGroupSupport::Both,
        },
        third_party_copy: fields.bit_told(5, 0x08),
        protect: fields.bit_told(5, 0x01),
        command_queue: fields.bit_told(7, 0x02),
        vendor: at(8, 8),
        product: at(16, 16),
        revision: at(32, 4),
        version_descriptors: (58..74)
            .step_by(2)
            .map(|at| fields.be16_told(at))
            .filter(|&descriptor| descriptor != 0)
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Vec<u8> {
        let mut data = vec![0; 96];
        data[2..6].copy_from_slice(&[6, 0x12, 91, 0x31]);
        data[7] = 2;
        data[8..36].copy_from_slice(b"VENDOR  PRODUCT         0.1 ");
        data[58..62].copy_from_slice(&[0x00, 0xa0, 0x09, 0x60]);
        data
    }

    #[test]
    fn all_fields() {
        assert_eq!(standard().command().cdb(), [0x12, 0, 0, 0, 96, 0]);
        let inquiry = standard().decode(&answer()).unwrap();
        assert!(inquiry.is_disk() && inquiry.command_queue && inquiry.protect && !inquiry.removable);
        assert_eq!(inquiry.port_groups, PortGroupSupport::Both);
        assert_eq!((&*inquiry.vendor, &*inquiry.product, &*inquiry.revision), ("VENDOR", "PRODUCT", "0.1"));
        assert_eq!(inquiry.version_descriptors, [0x00a0, 0x0960]);
    }

    #[test]
    fn lengths() {
        let mut data = answer();
        let error = standard().decode(&data[..20]).unwrap_err();
        assert_eq!(error.needed_bytes(), Some(36));
        data[4] = 0xff;
        assert!(standard().decode(&data).is_ok(), "more than was asked for");
        data[4] = 3;
        assert_eq!(standard().decode(&data).unwrap().vendor, "", "a short one of old");
        assert!(standard().decode(&[]).is_err());
    }

    #[test]
    fn no_unit() {
        let mut data = answer();
        data[0] = 0x7f;
        let inquiry = standard().decode(&data).unwrap();
        assert_eq!(inquiry.qualifier, PeripheralQualifier::NotSupported);
        assert!(!inquiry.is_disk());
        assert_eq!(inquiry.device_type.name(), "none");
    }
}
