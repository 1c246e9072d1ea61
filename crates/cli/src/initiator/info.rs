//! `lunette info`: all about a disk.

use lunette_initiator::multipath::{PathInfo, PathState};
use lunette_scsi::AdditionalSense;
use lunette_scsi::client::port_groups::{self, PortGroup};
use lunette_scsi::client::reservations::{self, Reserved};
use lunette_scsi::client::vpd::block::{ProvisioningType, Rotation};
use lunette_scsi::client::vpd::identification::Association;
use lunette_scsi::client::{UnitFacts, log};
use serde::Serialize;

use super::disk::Disk;
use super::options::InfoOptions;
use super::report::{Facts, tell};
use super::reserve::type_name;
use crate::banner::size;
use crate::failure::Failure;

#[derive(Debug, Serialize)]
struct Info {
    url: String,
    kind: &'static str,
    vendor: String,
    product: String,
    revision: String,
    serial: String,
    names: Vec<String>,
    not_ready: Option<String>,
    size_bytes: Option<u64>,
    blocks: Option<u64>,
    block_bytes: Option<u32>,
    physical_block_bytes: Option<u64>,
    protection_type: u8,
    removable: bool,
    read_only: bool,
    write_cache: bool,
    medium: String,
    transfer_bytes_max: Option<u64>,
    transfer_bytes_optimal: Option<u64>,
    compare_and_write_blocks_max: u8,
    atomic_blocks_max: u32,
    provisioning: Provisioning,
    port_groups: Vec<Group>,
    paths: Vec<PathFacts>,
    reservation: Option<Reservation>,
    vpd_pages: Vec<String>,
    mode_pages: Vec<String>,
    attentions: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Provisioning {
    kind: &'static str,
    unmap: bool,
    reads_zeros: bool,
    unmap_blocks_max: u32,
    unmap_granularity_blocks: u32,
    used_bytes: Option<u64>,
    available_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Group {
    group: u16,
    state: &'static str,
    preferred: bool,
    ports: Vec<u16>,
}

/// One of several paths.
#[derive(Debug, Serialize)]
struct PathFacts {
    portal: String,
    state: &'static str,
    reason: Option<String>,
    access: &'static str,
    preferred: bool,
    in_use: bool,
    group: Option<u16>,
    port: Option<u16>,
}

impl From<&PathInfo> for PathFacts {
    fn from(path: &PathInfo) -> Self {
        PathFacts {
            portal: path.portal.to_string(),
            state: path.state.name(),
            reason: path.reason.clone(),
            access: path.access.name(),
            preferred: path.is_preferred,
            in_use: path.is_in_use,
            group: path.target_port_group,
            port: path.relative_target_port,
        }
    }
}

impl PathFacts {
    /// `up, active/optimized, in use, group 1, port 1`
    fn text(&self) -> String {
        let mut told = vec![self.state.to_owned()];
        if self.state == PathState::Up.name() {
            told.push(self.access.to_owned());
        }
        told.extend(self.in_use.then(|| "in use".to_owned()));
        told.extend(self.group.map(|group| format!("group {group}")));
        told.extend(self.port.map(|port| format!("port {port}")));
        told.extend(self.reason.clone());
        format!("{}: {}", self.portal, told.join(", "))
    }
}

#[derive(Debug, Serialize)]
struct Reservation {
    keys: usize,
    held: Option<String>,
}

/// Opens the disk and tells what it says of itself.
pub(crate) fn run(options: &InfoOptions) -> Result<(), Failure> {
    let mut disk = Disk::open(&options.url, &options.access)?;
    let groups = disk.ask_optional(&port_groups::report_target_port_groups())?.unwrap_or_default();
    let keys = disk.ask_optional(&reservations::read_keys())?;
    let reserved = disk.ask_optional(&reservations::read_reservation())?;
    let space =
        if disk.facts.provisioning.threshold_exponent > 0 { disk.ask_optional(&log::space())? } else { None };
    let paths = disk.port.paths()?;
    let name = disk.name.clone();
    let facts = disk.facts.clone();
    disk.close()?;
    let reservation =
        keys.map(|keys| Reservation { keys: keys.keys.len(), held: reserved.as_ref().and_then(held) });
    let mut info = info(name, &facts, space.unwrap_or_default(), &groups, reservation);
    info.paths = paths.iter().map(PathFacts::from).collect();
    tell(options.json, &info, text)
}

fn held(reserved: &Reserved) -> Option<String> {
    let held = reserved.held?;
    Some(format!("{}, key {:#x}", held.kind.map_or("unknown type", type_name), held.key))
}

fn info(
    url: String,
    facts: &UnitFacts,
    space: log::SpaceCounts,
    groups: &[PortGroup],
    reservation: Option<Reservation>,
) -> Info {
    let names = facts.designations.iter().filter(|name| name.association == Association::LogicalUnit);
    let capacity = facts.capacity;
    let block_bytes = capacity.map(|capacity| capacity.block_length_bytes);
    let blocks_bytes =
        |blocks: u32| block_bytes.filter(|_| blocks > 0).map(|block| u64::from(blocks) * u64::from(block));
    let mode_pages = facts.mode.iter().flat_map(|mode| &mode.pages);
    Info {
        url,
        kind: facts.inquiry.device_type.name(),
        vendor: facts.inquiry.vendor.clone(),
        product: facts.inquiry.product.clone(),
        revision: facts.inquiry.revision.clone(),
        serial: facts.serial.clone(),
        names: names.map(|name| name.designator.to_string()).collect(),
        not_ready: facts.not_ready.as_ref().map(ToString::to_string),
        size_bytes: capacity.map(|capacity| capacity.bytes()),
        blocks: capacity.map(|capacity| capacity.blocks),
        block_bytes,
        physical_block_bytes: capacity.map(|capacity| {
            u64::from(capacity.block_length_bytes) << capacity.details.physical_block_exponent
        }),
        protection_type: capacity.map_or(0, |capacity| capacity.details.protection_type),
        removable: facts.inquiry.removable,
        read_only: facts.is_write_protected(),
        write_cache: facts.has_write_cache(),
        medium: match facts.characteristics.rotation {
            Rotation::Unknown => "not told".to_owned(),
            Rotation::None => "solid state".to_owned(),
            Rotation::PerMinute(rate) => format!("{rate} revolutions a minute"),
        },
        transfer_bytes_max: blocks_bytes(facts.limits.transfer_blocks_max),
        transfer_bytes_optimal: blocks_bytes(facts.limits.optimal_transfer_blocks),
        compare_and_write_blocks_max: facts.limits.compare_and_write_blocks_max,
        atomic_blocks_max: facts.limits.atomic_blocks_max,
        provisioning: provisioning(facts, space),
        port_groups: groups
            .iter()
            .map(|group| Group {
                group: group.group,
                state: group.state_name(),
                preferred: group.preferred,
                ports: group.ports.clone(),
            })
            .collect(),
        paths: Vec::new(),
        reservation,
        vpd_pages: facts.pages.iter().map(|page| format!("{page:02x}")).collect(),
        mode_pages: mode_pages.map(|page| format!("{:02x}/{:02x}", page.code, page.subpage)).collect(),
        // That the nexus is new, every new session is told.
        attentions: facts
            .attentions
            .iter()
            .filter(|sense| sense.code.asc() != AdditionalSense::POWER_ON.asc())
            .map(ToString::to_string)
            .collect(),
    }
}

fn provisioning(facts: &UnitFacts, space: log::SpaceCounts) -> Provisioning {
    let unit_bytes = facts.capacity.and_then(|capacity| {
        let exponent = u32::from(facts.provisioning.threshold_exponent);
        u64::from(capacity.block_length_bytes).checked_shl(exponent)
    });
    let bytes = |count: Option<u32>| u64::from(count?).checked_mul(unit_bytes?);
    Provisioning {
        kind: match facts.provisioning.kind {
            ProvisioningType::Full => "full",
            ProvisioningType::Resource => "resource",
            ProvisioningType::Thin => "thin",
            ProvisioningType::Other(_) => "unknown",
        },
        unmap: facts.provisioning.unmap,
        reads_zeros: facts.provisioning.reads_zeros,
        unmap_blocks_max: facts.limits.unmap_blocks_max,
        unmap_granularity_blocks: facts.limits.unmap_granularity_blocks,
        used_bytes: bytes(space.used),
        available_bytes: bytes(space.available),
    }
}

fn yes(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

fn text(info: &Info) -> String {
    let mut facts = Facts::new();
    facts
        .row("kind", format!("{}{}", info.kind, if info.removable { ", removable" } else { "" }))
        .row("model", format!("{} {} {}", info.vendor, info.product, info.revision).trim().to_owned())
        .some("serial", Some(info.serial.clone()).filter(|serial| !serial.is_empty()));
    for name in &info.names {
        facts.row("name", name.clone());
    }
    facts.some("not ready", info.not_ready.clone());
    if let (Some(bytes), Some(blocks), Some(block), Some(physical)) =
        (info.size_bytes, info.blocks, info.block_bytes, info.physical_block_bytes)
    {
        facts.row("size", format!("{}: {blocks} blocks of {block} bytes, physical {physical}", size(bytes)));
    }
    if info.protection_type > 0 {
        facts.row("protection", format!("type {}", info.protection_type));
    }
    facts
        .row("medium", info.medium.clone())
        .row("read-only", yes(info.read_only))
        .row("write cache", if info.write_cache { "yes: flush what has to stay" } else { "no" })
        .some("transfer", info.transfer_bytes_max.map(|bytes| format!("up to {}", size(bytes))))
        .some("", info.transfer_bytes_optimal.map(|bytes| format!("best up to {}", size(bytes))));
    if info.compare_and_write_blocks_max > 0 {
        facts.row("atomic", format!("COMPARE AND WRITE up to {} blocks", info.compare_and_write_blocks_max));
    }
    if info.atomic_blocks_max > 0 {
        facts.row("", format!("WRITE ATOMIC up to {} blocks", info.atomic_blocks_max));
    }
    space_text(&mut facts, &info.provisioning);
    for group in &info.port_groups {
        let ports: Vec<String> = group.ports.iter().map(ToString::to_string).collect();
        let preferred = if group.preferred { ", preferred" } else { "" };
        facts.row(
            "port group",
            format!("{}: {}{preferred}, ports {}", group.group, group.state, ports.join(" ")),
        );
    }
    for path in &info.paths {
        facts.row("path", path.text());
    }
    if let Some(reservation) = &info.reservation {
        let keys = reservation.keys;
        let held = reservation.held.clone().unwrap_or_else(|| "none".to_owned());
        let registered = if keys == 0 { String::new() } else { format!(", {keys} registered") };
        facts.row("reservation", format!("{held}{registered}"));
    }
    facts.row("VPD pages", info.vpd_pages.join(" ")).row("mode pages", info.mode_pages.join(" "));
    for attention in &info.attentions {
        facts.row("attention", attention.clone());
    }
    format!("{}\n{}", info.url, facts.render(2))
}

fn space_text(facts: &mut Facts, provisioning: &Provisioning) {
    let mut told = vec![provisioning.kind.to_owned()];
    if provisioning.unmap {
        let granularity = provisioning.unmap_granularity_blocks;
        told.push(match granularity {
            0 | 1 => "UNMAP".to_owned(),
            _ => format!("UNMAP in grains of {granularity} blocks"),
        });
    }
    if provisioning.reads_zeros {
        told.push("what has no space reads as zeros".to_owned());
    }
    facts.row("provisioning", told.join(", "));
    facts.some("used", provisioning.used_bytes.map(size));
    facts.some("available", provisioning.available_bytes.map(size));
}
