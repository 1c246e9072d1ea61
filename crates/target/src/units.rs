//! Targets and their logical units as they are served: each joins a SCSI unit with the volume behind it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use lunette_block::{
    EngineKind, IdentityOverride, StateContent, StateError, StateFile, StateLock, Store, StoreSpec, Volume,
    VolumeSpec,
};
use lunette_scsi::{
    ConfigError, Damage, DamageWatch, Device, Domain, Identity, LogicalUnit, LogicalUnitConfig, Lun,
    ProtectionType, Provisioning, Saved, TargetPort,
};
use tracing::{error, warn};

use crate::admission::{Admission, Changing};
use crate::config::{AccessRule, ChapRules, PortalConfig, Redirection, TargetConfig, UnitConfig, WriteMode};
use crate::failure::{StartError, UnitPlace};
use crate::store_io::{unit_atomic_writes, unit_space};

/// The longest transfer of one command, in bytes, as the Block Limits page says it. It bounds the buffer of a
/// command; Linux, Windows and ESXi split what is longer.
pub(crate) const MAX_TRANSFER_BYTES: u32 = 16 << 20;
/// The transfer length that suits best: large enough that the per-command cost does not show.
const OPTIMAL_TRANSFER_BYTES: u32 = 1 << 20;

const DEFAULT_VENDOR: &str = "LUNETTE";
const DEFAULT_PRODUCT: &str = "VOLUME";
const DEFAULT_BLOCK_LENGTH_BYTES: u32 = 512;

/// Puts layers between the store of a logical unit, by its number, and its engine.
pub(crate) type Layer<'a> = &'a dyn Fn(u16, Arc<dyn Store>) -> Arc<dyn Store>;

/// A target that is being served.
#[derive(Debug)]
pub(crate) struct ServedTarget {
    pub(crate) name: String,
    pub(crate) alias: Option<String>,
    pub(crate) device: Arc<Device>,
    pub(crate) admission: Changing<Admission>,
    /// The portal groups through which it is reached, each a port of the device (RFC 7143, 4.4.1).
    pub(crate) groups: Vec<u16>,
    /// Its initiators are told of unit attentions as they come up.
    pub(crate) scsi_events: bool,
    /// In the order of the device's units, so that [`lunette_scsi::Task::unit_index`] finds the volume.
    pub(crate) volumes: Vec<Arc<Volume>>,
    /// In the same order, where the state of each unit is kept; `None`: nowhere.
    pub(crate) states: Vec<Option<Arc<StateFile>>>,
    pub(crate) report: TargetReport,
}

impl ServedTarget {
    /// The unit at a place of the device, or all of them.
    pub(crate) fn units_at(&self, place: Option<usize>) -> impl Iterator<Item = &Arc<LogicalUnit>> {
        let units = self.device.units().enumerate();
        units.filter(move |(other, _)| place.is_none_or(|place| place == *other)).map(|(_, (_, unit))| unit)
    }
}

/// What is served under one name, for people and programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetReport {
    /// iSCSI name.
    pub name: String,
    /// TargetAlias, if any.
    pub alias: Option<String>,
    /// True when initiators have to log in with CHAP.
    pub chap: bool,
    /// What who gets of it; without rules everybody gets all.
    pub access: Vec<AccessRule>,
    /// The portal groups through which it is reached.
    pub groups: Vec<u16>,
    /// Where initiators are sent instead.
    pub redirect: Option<Redirection>,
    /// Logical units in the order of their numbers.
    pub units: Vec<UnitReport>,
}

/// One logical unit, for people and programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitReport {
    /// Its number.
    pub lun: u16,
    /// The store, in words.
    pub store: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Logical block length in bytes.
    pub block_length_bytes: u32,
    /// The type of the protection information that its blocks have.
    pub protection: Option<u8>,
    /// True when writes are refused.
    pub read_only: bool,
    /// When a write is answered: as it is configured, unless a host has saved another choice (WCE).
    pub write_mode: WriteMode,
    /// Who does the blocking calls.
    pub engine: EngineKind,
    /// Why that engine was picked, where it was left to us.
    pub engine_reason: Option<String>,
    /// NAA designator, `naa.` and 16 hexadecimal digits.
    pub naa: String,
    /// Unit serial number.
    pub serial: String,
    /// True when UNMAP gives space back.
    pub unmap: bool,
}

impl ServedTarget {
    /// Opens the volumes of a target.
    ///
    /// # Errors
    /// [`StartError`] names the logical unit that cannot be served and why. Volumes opened before are closed.
    pub(crate) fn open(
        config: &TargetConfig,
        rules: &ChapRules,
        (state_directory, large_pages): (Option<&Path>, bool),
        portals: &[PortalConfig],
        domain: &Arc<Domain>,
        layer: Layer<'_>,
    ) -> Result<Self, StartError> {
        let mut units: Vec<&UnitConfig> = config.units.iter().collect();
        units.sort_by_key(|unit| unit.lun);
        let mut served = Vec::new();
        for unit in units {
            served.push(open_unit(&config.name, unit, (state_directory, large_pages), layer)?);
        }
        let logical_units =
            served.iter().map(|opened| (Lun::from_number(opened.report.lun), Arc::clone(&opened.unit)));
        let mut groups: Vec<u16> =
            portals.iter().map(|portal| portal.group).filter(|&group| config.is_in(group)).collect();
        groups.sort_unstable();
        groups.dedup();
        let device = Device::new(config.name.clone(), groups.iter().copied(), logical_units)
            .map(|device| device.in_domain(Arc::clone(domain)))
            .map_err(|source| StartError::Target { target: config.name.clone(), source })?;
        let admission = Admission::new(config, rules, &device)
            .map_err(|source| StartError::Target { target: config.name.clone(), source })?;
        for group in &config.port_groups {
            let port = TargetPort::new(group.tag).filter(|port| device.ports().contains(port));
            let port =
                port.ok_or_else(|| StartError::PortGroup { target: config.name.clone(), tag: group.tag })?;
            served.iter().for_each(|opened| opened.unit.begin_access(port, group.state, group.preferred));
        }
        served.iter().for_each(|opened| opened.unit.settle_access());
        let report = TargetReport {
            name: config.name.clone(),
            alias: config.alias.clone(),
            chap: admission.policy.is_some(),
            access: config.access.clone(),
            groups: groups.clone(),
            redirect: config.redirect.clone(),
            units: served.iter().map(|opened| opened.report.clone()).collect(),
        };
        Ok(Self {
            name: config.name.clone(),
            alias: config.alias.clone(),
            admission: Changing::new(admission),
            groups,
            scsi_events: config.scsi_events,
            device: Arc::new(device),
            states: served.iter().map(|opened| opened.state.clone()).collect(),
            volumes: served.into_iter().map(|opened| opened.volume).collect(),
            report,
        })
    }
}

struct OpenedUnit {
    volume: Arc<Volume>,
    unit: Arc<LogicalUnit>,
    state: Option<Arc<StateFile>>,
    report: UnitReport,
}

fn open_unit(
    target: &str,
    config: &UnitConfig,
    (state_directory, large_pages): (Option<&Path>, bool),
    layer: Layer<'_>,
) -> Result<OpenedUnit, StartError> {
    let block_length_bytes = config.block_length_bytes.unwrap_or_else(|| native_block_length(&config.store));
    let spec = VolumeSpec {
        name: format!("{target} LUN {}", config.lun),
        store: config.store.clone(),
        read_only: config.read_only,
        provisioning: config.provisioning,
        engine: config.engine,
        identity: IdentityOverride { serial: config.serial.clone() },
        block_length_bytes,
        protection: config.protection.map(ProtectionType::number),
        large_pages,
    };
    let place = UnitPlace { target: target.to_owned(), lun: config.lun };
    let volume = Volume::open_layered(&spec, |store| layer(config.lun, store))
        .map_err(|source| StartError::Volume { unit: place.clone(), source })?;
    let features = volume.features();
    let identity = Identity {
        naa: volume.identity().naa,
        uuid: volume.identity().uuid,
        serial: volume.identity().serial.clone(),
        vendor: config.vendor.clone().unwrap_or_else(|| DEFAULT_VENDOR.into()),
        product: config.product.clone().unwrap_or_else(|| DEFAULT_PRODUCT.into()),
        revision: revision(),
    };
    let size_bytes = volume.data_bytes(volume.size_bytes());
    let mut report = UnitReport {
        lun: config.lun,
        store: volume.describe(),
        size_bytes,
        block_length_bytes,
        protection: config.protection.map(ProtectionType::number),
        read_only: config.read_only,
        write_mode: config.write_mode,
        engine: volume.engine(),
        engine_reason: volume.engine_reason().map(str::to_owned),
        naa: format!("naa.{:016x}", identity.naa),
        serial: identity.serial.clone(),
        unmap: features.unmap && !config.read_only,
    };
    let (state, saved) = match state_path(&config.store, identity.naa, state_directory) {
        Some(path) => open_state(path, config, state_directory, &place)?,
        None => (None, None),
    };
    let saved = match (&state, &saved) {
        (Some(_), Some(content)) => {
            Saved::Parts { settings: &content.essential, reservations: content.replaceable.as_deref() }
        }
        (None, Some(content)) => {
            Saved::Elsewhere { settings: &content.essential, reservations: content.replaceable.as_deref() }
        }
        (Some(_), None) => Saved::Nothing,
        (None, None) => Saved::Nowhere,
    };
    let physical_per_logical = (features.physical_block_bytes / block_length_bytes).max(1);
    let unit_config = LogicalUnitConfig {
        identity,
        block_length_bytes,
        blocks: size_bytes / u64::from(block_length_bytes),
        // A power of two of at most 64 KiB / 512 B, so the exponent is small.
        physical_block_exponent: physical_per_logical.ilog2() as u8,
        read_only: config.read_only,
        write_cache: config.write_mode == WriteMode::Back,
        provisioning: Provisioning {
            unmap: features.unmap,
            granularity_blocks: (features.unmap_granularity_bytes / block_length_bytes).max(1),
            write_zeroes: features.write_zeroes,
            anchors: features.reserves,
        },
        atomic_writes: features
            .atomic_writes
            .and_then(|atomic| unit_atomic_writes(atomic, block_length_bytes)),
        max_transfer_bytes: MAX_TRANSFER_BYTES,
        optimal_transfer_bytes: OPTIMAL_TRANSFER_BYTES,
        removable: config.removable,
        solid_state: features.rotational != Some(true),
        protection: config.protection,
    };
    let unit = LogicalUnit::new(unit_config, saved).map_err(|source| match (&state, source) {
        (Some(file), ConfigError::SavedState(fault)) => {
            StartError::State { unit: place.clone(), path: file.path().to_owned(), fault }
        }
        (_, source) => StartError::Unit { unit: place.clone(), source },
    })?;
    report.write_mode = if unit.write_cache_enabled() { WriteMode::Back } else { WriteMode::Through };
    if let Some(file) = state.as_ref().filter(|_| report.write_mode != config.write_mode) {
        warn!(
            unit = %place,
            state = %file.path().display(),
            "a host has saved write={} (WCE of the caching mode page), which counts for more than write={} of the configuration; to undo \
             it, save the page again from a host (MODE SELECT with SP), or remove the state, and the reservations in it, while it is not served",
            report.write_mode, config.write_mode
        );
    }
    if unit.has_lost_reservations() {
        error!(
            unit = %place,
            "the persistent reservations of the unit are lost: it refuses commands until an initiator says what is reserved \
             (`lunette reserve --replace-lost`)"
        );
    }
    if let Some(space) = volume.space() {
        unit.note_space(unit_space(space));
    }
    unit.watch_damage(Arc::new(DamageLog(Arc::downgrade(&volume))));
    Ok(OpenedUnit { volume, unit: Arc::new(unit), state, report })
}

/// Has the log told of a volume's damage.
#[derive(Debug)]
struct DamageLog(Weak<Volume>);

impl DamageWatch for DamageLog {
    fn stored_data_is_damaged(&self, Damage { lba, check }: Damage) {
        if let Some(volume) = self.0.upgrade() {
            volume.log_damage(lba, &check);
        }
    }
}

/// Where the state of a unit is kept (docs/decisions/0016): in the directory that was chosen for all units, otherwise
/// beside the image. What is gone with the process has none.
fn state_path(store: &StoreSpec, naa: u64, directory: Option<&Path>) -> Option<PathBuf> {
    match (store, directory) {
        (StoreSpec::Memory { .. } | StoreSpec::Null { .. }, _) => None,
        (_, Some(directory)) => Some(directory.join(format!("naa.{naa:016x}.state"))),
        (_, None) => path_beside(store),
    }
}

/// Where the state of an image is kept unless a directory was chosen; of other stores it is not.
fn path_beside(store: &StoreSpec) -> Option<PathBuf> {
    match store {
        StoreSpec::File { path, .. } if !lunette_block::is_block_device(path) => {
            // Of the image and not of a link to it, as its identity: both stay with it, whichever way it is served.
            Some(StateFile::beside(&path.canonicalize().unwrap_or_else(|_| path.clone())))
        }
        _ => None,
    }
}

type OpenedState = (Option<Arc<StateFile>>, Option<StateContent>);

/// The place for a unit's state and what is in it. What cannot be written is no place, unless there is something in it. Before
/// anything is written over reservations that cannot be read, they are copied. Where a directory was chosen and has none, the state
/// must not have been left beside the image, for hosts rely on the reservations in it. What another process writes is only read.
fn open_state(
    path: PathBuf,
    config: &UnitConfig,
    directory: Option<&Path>,
    unit: &UnitPlace,
) -> Result<OpenedState, StartError> {
    let fault = |source| StartError::StateFile { unit: unit.clone(), source };
    // Who may write to the disk is alone with it, and so with its state.
    let lock = config.read_only.then(|| StateLock::take(&path));
    let (mut file, saved) = StateFile::open(path).map_err(fault)?;
    let locked_out = match lock {
        Some(Ok(Some(lock))) => {
            file = file.locked_by(lock);
            None
        }
        Some(Ok(None)) => Some("another process, which serves the same disk, has its lock".to_owned()),
        // Where nothing can be written, nobody does.
        Some(Err(error)) if file.check_writable().is_ok() => Some(format!("cannot lock it: {error}")),
        Some(Err(_)) | None => None,
    };
    let left_beside = directory.filter(|_| saved.is_none()).and_then(|_| path_beside(&config.store));
    if let Some(beside) = left_beside.filter(|beside| beside.exists()) {
        let path = file.path().to_owned();
        return Err(StartError::StateBeside { unit: unit.clone(), beside, path });
    }
    if let Some(why) = locked_out {
        let path = file.path().display();
        warn!(
            %unit, %path, why,
            "the state of the unit is not kept here, and counts as it is now: hosts that ask for reservations over a restart (APTPL) are \
             refused, and settings are lost with the process; serve the disk by one process"
        );
        return Ok((None, saved));
    }
    if saved.is_none()
        && let Err(error) = file.check_writable()
    {
        let path = file.path().display();
        warn!(
            %unit, %path, %error,
            "no state can be kept here: hosts that ask for reservations over a restart (APTPL) are refused, and settings are lost \
             with the process; state_directory names another place"
        );
        return Ok((None, None));
    }
    if saved.as_ref().is_some_and(|content| content.replaceable.is_none()) {
        let path = file.path();
        let copied =
            file.copy_aside().map_err(|source| StateError::CopyAside { path: path.to_owned(), source });
        let copy = copied.map_err(fault)?;
        error!(%unit, path = %path.display(), copy = %copy.display(), "the reservations in the unit's state are damaged");
    }
    Ok((Some(Arc::new(file)), saved))
}

/// Files, memory and null have 512-byte blocks unless told otherwise; a block device has its own.
fn native_block_length(store: &StoreSpec) -> u32 {
    match store {
        StoreSpec::File { path, .. } | StoreSpec::BlockDevice { path } => {
            lunette_block::logical_sector_bytes(path).unwrap_or(DEFAULT_BLOCK_LENGTH_BYTES)
        }
        StoreSpec::Memory { .. } | StoreSpec::Null { .. } => DEFAULT_BLOCK_LENGTH_BYTES,
    }
}

/// PRODUCT REVISION LEVEL: major and minor version, four characters at most.
fn revision() -> String {
    concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR")).chars().take(4).collect()
}
