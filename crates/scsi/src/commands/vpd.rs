//! Vital product data pages (SPC-4, SBC-3).

use super::inquiry::Subject;
use super::third_party_copy;
use crate::codes::designator::{self as types, ASCII, BINARY, UTF_8};
use crate::codes::vpd_page::*;
use crate::device::{Device, TargetPort};
use crate::identity::{Identity, UnitName, put_padded};
use crate::nexus::Nexus;
use crate::paths::Path;
use crate::space::THRESHOLD_EXPONENT;
use crate::unit::{AtomicWrites, LogicalUnit};

/// The pages of a disk, in rising order (SPC-4, Supported VPD Pages).
const UNIT_PAGES: [u8; 9] = [
    SUPPORTED_PAGES,
    UNIT_SERIAL_NUMBER,
    DEVICE_IDENTIFICATION,
    EXTENDED_INQUIRY,
    SCSI_PORTS,
    THIRD_PARTY_COPY,
    BLOCK_LIMITS,
    BLOCK_DEVICE_CHARACTERISTICS,
    LOGICAL_BLOCK_PROVISIONING,
];

/// A whole page with its header, or `None` where the subject has no such page.
pub(super) fn page(code: u8, subject: Subject<'_>) -> Option<Vec<u8>> {
    let body = match (subject, code) {
        (Subject::Unit(..), SUPPORTED_PAGES) => UNIT_PAGES.to_vec(),
        (Subject::Unit(path, _), UNIT_SERIAL_NUMBER) => path.unit.identity().serial.as_bytes().to_vec(),
        (Subject::Unit(path, nexus), DEVICE_IDENTIFICATION) => [
            unit_designators(path.unit.identity()),
            group_designators(path, nexus),
            device_designators(nexus),
        ]
        .concat(),
        (Subject::Unit(_, nexus), SCSI_PORTS) => scsi_ports(nexus),
        (Subject::Unit(path, _), EXTENDED_INQUIRY) => extended_inquiry(&path.unit),
        (Subject::Unit(path, _), THIRD_PARTY_COPY) => third_party_copy::page(&path.unit),
        (Subject::Unit(path, _), BLOCK_LIMITS) => block_limits(&path.unit),
        (Subject::Unit(path, _), BLOCK_DEVICE_CHARACTERISTICS) => block_device_characteristics(&path.unit),
        (Subject::Unit(path, _), LOGICAL_BLOCK_PROVISIONING) => logical_block_provisioning(&path.unit),
        (Subject::WellKnown(_), SUPPORTED_PAGES) => vec![SUPPORTED_PAGES, DEVICE_IDENTIFICATION],
        (Subject::WellKnown(nexus), DEVICE_IDENTIFICATION) => device_designators(nexus),
        (Subject::Missing, SUPPORTED_PAGES) => vec![SUPPORTED_PAGES],
        _ => return None,
    };
    let mut page = vec![subject.peripheral(), code];
    // Names are bounded, so no page comes near 64 KiB.
    page.extend((body.len() as u16).to_be_bytes());
    page.extend(body);
    Some(page)
}

/// Whom a designator names (SPC-4, ASSOCIATION field).
#[derive(Clone, Copy)]
enum Association {
    LogicalUnit = 0,
    TargetPort = 1,
    TargetDevice = 2,
}

/// One designation descriptor (SPC-4, Device Identification). What belongs to the port or the device tells the protocol, iSCSI.
fn designator(code_set: u8, association: Association, designator_type: u8, bytes: &[u8]) -> Vec<u8> {
    let (protocol, protocol_valid) = match association {
        Association::LogicalUnit => (0, 0),
        Association::TargetPort | Association::TargetDevice => (0x50, 0x80),
    };
    let type_byte = protocol_valid | (association as u8) << 4 | designator_type;
    let mut descriptor = vec![protocol | code_set, type_byte, 0, bytes.len() as u8];
    descriptor.extend(bytes);
    descriptor
}

/// SPC-5, UUID designator: four bits that say "locally assigned UUID", then twelve that are reserved.
const UUID_FORMAT: [u8; 2] = [0x10, 0];

fn unit_designators(identity: &Identity) -> Vec<u8> {
    let mut vendor_id = vec![b' '; 24];
    put_padded(&mut vendor_id[..8], &identity.vendor);
    put_padded(&mut vendor_id[8..], &identity.product);
    vendor_id.extend(identity.serial.as_bytes());
    let uuid = [&UUID_FORMAT[..], &identity.uuid].concat();
    [
        designator(BINARY, Association::LogicalUnit, types::NAA, &identity.naa.to_be_bytes()),
        designator(ASCII, Association::LogicalUnit, types::VENDOR_ID, &vendor_id),
        designator(BINARY, Association::LogicalUnit, types::UUID, &uuid),
    ]
    .concat()
}

/// The target port group of the port, which has its number, and the unit's own logical unit group: the access states of one
/// unit say nothing of another's (SPC-4).
fn group_designators(path: &Path, nexus: &Nexus) -> Vec<u8> {
    let field = |group: u16| [[0, 0], group.to_be_bytes()].concat();
    // Places are fewer than LUNs, of which there are at most 65,536; group 0 is as good as any.
    let unit_group = path.place as u16;
    [
        designator(
            BINARY,
            Association::TargetPort,
            types::TARGET_PORT_GROUP,
            &field(nexus.target_port().id()),
        ),
        designator(BINARY, Association::LogicalUnit, types::LOGICAL_UNIT_GROUP, &field(unit_group)),
    ]
    .concat()
}

/// SPC-4, SCSI Ports: every target port with its name.
fn scsi_ports(nexus: &Nexus) -> Vec<u8> {
    let device = nexus.device();
    let mut body = Vec::new();
    for &port in device.ports() {
        let name = port_name(device, port);
        body.extend([0, 0]);
        body.extend(port.id().to_be_bytes());
        // No initiator port has a TransportID here.
        body.extend([0; 6]);
        body.extend((name.len() as u16).to_be_bytes());
        body.extend(name);
    }
    body
}

fn port_name(device: &Device, port: TargetPort) -> Vec<u8> {
    designator(UTF_8, Association::TargetPort, types::SCSI_NAME, &scsi_name(&device.port_name(port)))
}

/// Which unit a designation descriptor means, its designator filled up to twenty bytes; `None` where it is none of those that
/// [`unit_designators`] makes. Whose protocol it is makes no difference.
pub(super) fn unit_name(wanted: &[u8; 24]) -> Option<UnitName> {
    let &[code_set, kind, _, length, ref designator @ ..] = wanted;
    if code_set & 0x0f != BINARY {
        return None;
    }
    match (kind & 0x3f, length) {
        (types::NAA, 8) => Some(UnitName::Naa(u64::from_be_bytes(*designator.first_chunk()?))),
        (types::UUID, 18) => {
            let uuid = designator.strip_prefix(&UUID_FORMAT)?;
            Some(UnitName::Uuid(*uuid.first_chunk()?))
        }
        _ => None,
    }
}

fn device_designators(nexus: &Nexus) -> Vec<u8> {
    let (device, port) = (nexus.device(), nexus.target_port());
    let relative_port = [[0, 0], port.id().to_be_bytes()].concat();
    [
        designator(BINARY, Association::TargetPort, types::RELATIVE_TARGET_PORT, &relative_port),
        port_name(device, port),
        designator(UTF_8, Association::TargetDevice, types::SCSI_NAME, &scsi_name(device.name())),
    ]
    .concat()
}

/// A SCSI name string: null-terminated, and null-padded to a multiple of four (SPC-4).
fn scsi_name(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize((bytes.len() + 1).next_multiple_of(4), 0);
    bytes
}

/// SPC-4, Extended INQUIRY Data.
fn extended_inquiry(unit: &LogicalUnit) -> Vec<u8> {
    let mut body = vec![0; 0x3c];
    body[0] = unit.protection().map_or(0, |protection| protection.kind.inquiry_byte());
    // PRIOR_SUP; HEADSUP, ORDSUP, SIMPSUP: the task attributes that there are.
    body[5 - 4] = 0x0f;
    // V_SUP: there may be a volatile cache.
    body[6 - 4] = 0x01;
    if unit.saved().is_kept() {
        // WU_SUP and CRD_SUP: WRITE LONG marks blocks as unreadable, in both ways.
        body[6 - 4] |= 0x0c;
    }
    body
}

/// SBC-4, Block Limits.
fn block_limits(unit: &LogicalUnit) -> Vec<u8> {
    let config = unit.config();
    let mut body = vec![0; 0x3c];
    // Field places count from the page's first byte, which is four before the body. The first is WSNZ: a WRITE SAME of
    // no blocks is refused.
    body[0] = 0x01;
    // MAXIMUM COMPARE AND WRITE LENGTH
    body[5 - 4] = unit.compare_and_write_blocks_max();
    // OPTIMAL TRANSFER LENGTH GRANULARITY: a physical block. The exponent is at most 15.
    body[6 - 4..8 - 4].copy_from_slice(&(1u16 << config.physical_block_exponent).to_be_bytes());
    let mut put = |at: usize, value: u32| body[at - 4..at].copy_from_slice(&value.to_be_bytes());
    put(8, unit.max_transfer_blocks());
    put(12, config.optimal_transfer_bytes / unit.block_length_bytes());
    if config.provisioning.unmap {
        put(20, LogicalUnit::UNMAP_BLOCKS_MAX);
        put(24, LogicalUnit::UNMAP_DESCRIPTORS_MAX);
        put(28, config.provisioning.granularity_blocks);
    }
    if let Some(AtomicWrites { granularity_blocks, blocks_max }) = config.atomic_writes {
        // MAXIMUM ATOMIC TRANSFER LENGTH, ATOMIC ALIGNMENT, ATOMIC TRANSFER LENGTH GRANULARITY; then MAXIMUM ATOMIC
        // TRANSFER LENGTH WITH ATOMIC BOUNDARY and MAXIMUM ATOMIC BOUNDARY SIZE: what is atomic as a whole is so in parts.
        put(44, blocks_max.into());
        put(48, granularity_blocks.get().into());
        put(52, granularity_blocks.get().into());
        put(56, blocks_max.into());
        put(60, blocks_max.into());
    }
    // The low half of the eight-byte MAXIMUM WRITE SAME LENGTH.
    put(40, unit.write_same_blocks_max());
    body
}

/// SBC-3, Block Device Characteristics.
fn block_device_characteristics(unit: &LogicalUnit) -> Vec<u8> {
    let mut body = vec![0; 0x3c];
    // MEDIUM ROTATION RATE: 0001h does not rotate, 0000h is not told.
    body[5 - 4] = u8::from(unit.config().solid_state);
    if unit.config().provisioning.unmap {
        // WABEREQ 01b: what was erased by SANITIZE can be read.
        body[7 - 4] = 0x40;
    }
    // FUAB: SYNCHRONIZE CACHE and FUA reach the medium.
    body[8 - 4] = 0x02;
    body
}

/// SBC-3, Logical Block Provisioning.
fn logical_block_provisioning(unit: &LogicalUnit) -> Vec<u8> {
    if !unit.config().provisioning.unmap {
        return vec![0; 4];
    }
    // THRESHOLD EXPONENT; LBPU, LBPWS, LBPWS10, LBPRZ and ANC_SUP; PROVISIONING TYPE 2: thin.
    let exponent = if unit.space().is_known() { THRESHOLD_EXPONENT } else { 0 };
    let anchors = if unit.config().provisioning.anchors { 0x02 } else { 0 };
    vec![exponent, 0xe4 | anchors, 0x02, 0]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::device::{Device, TargetPort};
    use crate::lun::Lun;
    use crate::unit::LogicalUnitConfig;
    use crate::unit::tests::{config, unit_of};

    fn with_unit<T>(config: LogicalUnitConfig, check: impl FnOnce(Subject<'_>) -> T) -> T {
        let unit = Arc::new(unit_of(config));
        let device = Device::new("iqn.x:d", [1, 2], [(Lun::from_number(0), unit.clone())]).unwrap();
        let nexus = Nexus::new(Arc::new(device), TargetPort::new(1).unwrap(), "host".into());
        let (_, path) = nexus.find(Lun::from_number(0)).unwrap();
        check(Subject::Unit(path, &nexus))
    }

    #[test]
    fn every_listed_page_exists_and_tells_its_length() {
        with_unit(config(), |subject| {
            let list = page(SUPPORTED_PAGES, subject).unwrap();
            assert!(list[4..].is_sorted());
            for &code in &list[4..] {
                let page = page(code, subject).unwrap();
                assert_eq!(page[1], code);
                assert_eq!(usize::from(u16::from_be_bytes([page[2], page[3]])), page.len() - 4);
            }
            assert!(page(0xb3, subject).is_none());
        });
        assert_eq!(page(SUPPORTED_PAGES, Subject::Missing).unwrap(), [0x7f, 0, 0, 1, 0]);
        assert!(page(UNIT_SERIAL_NUMBER, Subject::Missing).is_none());
    }

    #[test]
    fn device_identification() {
        let page = with_unit(config(), |subject| page(DEVICE_IDENTIFICATION, subject).unwrap());
        assert_eq!(page[4..16], [0x01, 0x03, 0, 8, 0x31, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
        assert_eq!(page[16..20], [0x02, 0x01, 0, 28]);
        assert_eq!(&page[20..48], b"LUNETTE VOLUME          SN-1");
        assert_eq!(page[48..54], [0x01, 0x0a, 0, 18, 0x10, 0]);
        assert_eq!(page[54..70], [0x5a; 16]);
        assert_eq!(page[70..78], [0x51, 0x95, 0, 4, 0, 0, 0, 1], "target port group");
        assert_eq!(page[78..86], [0x01, 0x06, 0, 4, 0, 0, 0, 0], "logical unit group");
        assert_eq!(page[86..94], [0x51, 0x94, 0, 4, 0, 0, 0, 1], "relative target port");
        assert_eq!(page[94..98], [0x53, 0x98, 0, 20]);
        assert_eq!(&page[98..118], b"iqn.x:d,t,0x0001\0\0\0\0");
        assert_eq!(page[118..122], [0x53, 0xa8, 0, 8]);
        assert_eq!(&page[122..], b"iqn.x:d\0");
    }

    #[test]
    fn every_port_is_listed() {
        let page = with_unit(config(), |subject| page(SCSI_PORTS, subject).unwrap());
        assert_eq!(page[..4], [0, 0x88, 0, 72], "descriptors follow the header at once");
        for (descriptor, number) in page[4..].chunks(36).zip([1, 2]) {
            assert_eq!(descriptor[..12], [0, 0, 0, number, 0, 0, 0, 0, 0, 0, 0, 24]);
            assert_eq!(descriptor[12..16], [0x53, 0x98, 0, 20]);
            assert_eq!(&descriptor[16..32], format!("iqn.x:d,t,0x000{number}").as_bytes());
        }
    }

    #[test]
    fn a_unit_knows_its_own_designations() {
        let identity = config().identity;
        let wanted = |header: [u8; 4], designator: &[u8]| {
            let mut wanted = [0; 24];
            wanted[..4].copy_from_slice(&header);
            wanted[4..4 + designator.len()].copy_from_slice(designator);
            unit_name(&wanted).is_some_and(|name| identity.names().contains(&name))
        };
        let naa = identity.naa.to_be_bytes();
        assert!(wanted([1, 3, 0, 8], &naa));
        assert!(wanted([0x51, 0x83, 0, 8], &naa), "protocol identifier");
        assert!(!wanted([1, 3, 0, 7], &naa[..7]), "another length");
        assert!(!wanted([2, 3, 0, 8], &naa), "another code set");
        assert!(!wanted([1, 0x13, 0, 8], &naa), "another association");
        assert!(!wanted([1, 2, 0, 8], &naa), "another type");
        let uuid = [&[0x10, 0][..], &identity.uuid].concat();
        assert!(wanted([1, 0x0a, 0, 18], &uuid));
        assert!(!wanted([1, 0x0a, 0, 18], &identity.uuid), "another kind of UUID");
        assert!(!wanted([0, 0, 0, 0], &[]));
        assert!(!wanted([2, 1, 0, 28], b"LUNETTE VOLUME      "), "longer than the descriptor");
    }

    #[test]
    fn block_limits_with_and_without_unmap() {
        let thin = with_unit(config(), |subject| page(BLOCK_LIMITS, subject).unwrap());
        assert_eq!(thin.len(), 64);
        assert_eq!(
            thin[4..8],
            [1, 255, 0, 8],
            "WSNZ, COMPARE AND WRITE, OPTIMAL TRANSFER LENGTH GRANULARITY"
        );
        assert_eq!(thin[8..16], [0, 0, 8, 0, 0, 0, 4, 0]);
        assert_eq!(thin[20..32], [0, 0x10, 0, 0, 0, 0, 1, 0, 0, 0, 0, 8]);
        assert_eq!(thin[36..44], [0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        assert_eq!(thin[44..64], [0, 0, 0, 64, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 64, 0, 0, 0, 64], "atomic");
        let mut thick = config();
        thick.atomic_writes = None;
        thick.provisioning.unmap = false;
        let thick = with_unit(thick, |subject| page(BLOCK_LIMITS, subject).unwrap());
        assert_eq!(thick[20..36], [0; 16]);
        assert_eq!(thick[44..], [0; 20]);
    }

    #[test]
    fn provisioning_and_characteristics() {
        with_unit(config(), |subject| {
            assert_eq!(page(LOGICAL_BLOCK_PROVISIONING, subject).unwrap(), [0, 0xb2, 0, 4, 0, 0xe6, 2, 0]);
            assert_eq!(page(BLOCK_DEVICE_CHARACTERISTICS, subject).unwrap()[4..9], [0, 1, 0, 0x40, 2]);
        });
        let mut without_anchors = config();
        without_anchors.provisioning.anchors = false;
        with_unit(without_anchors, |subject| {
            assert_eq!(page(LOGICAL_BLOCK_PROVISIONING, subject).unwrap()[5], 0xe4);
        });
        let plain = LogicalUnitConfig {
            provisioning: crate::Provisioning {
                unmap: false,
                granularity_blocks: 0,
                write_zeroes: false,
                anchors: false,
            },
            solid_state: false,
            ..config()
        };
        with_unit(plain, |subject| {
            assert_eq!(page(LOGICAL_BLOCK_PROVISIONING, subject).unwrap()[4..], [0; 4]);
            assert_eq!(page(BLOCK_DEVICE_CHARACTERISTICS, subject).unwrap()[4..6], [0, 0]);
        });
    }
}
