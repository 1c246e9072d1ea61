//! A file's worth of a disk, from its beginning to its end, and made stable where it was written.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lunette_block::{EngineKind, IdentityOverride, Provisioning, StoreSpec, Volume, VolumeSpec};
use lunette_workload::{Kind, Operation, Percent, Sizes, Spread, Workload};

use super::disk::DiskProbe;
use super::model::{self, Driven};
use super::{Metric, Place, Run, disk_busy};
use crate::LabError;
use crate::endpoint::{End, Endpoint, Local, Session, SessionDisk};
use crate::host::DiskTime;
use crate::study::image::Image;
use crate::study::service::Service;
use crate::study::site::{BLOCK_BYTES, TARGET};

/// As a file system's read-ahead and write-back would have it.
const REQUEST_BYTES: u64 = 256 << 10;
const DEPTH: u32 = 8;
const PATIENCE: Duration = Duration::from_secs(30);
/// How often something is tried again.
const TRIES: u32 = 16;

/// What is done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TransferProbe {
    pub(crate) kind: Kind,
    pub(crate) length_bytes: u64,
}

impl TransferProbe {
    /// The same without an end, as the model knows it.
    fn workload(&self) -> DiskProbe {
        let workload = Workload {
            sizes: Sizes::one(REQUEST_BYTES as u32),
            read: if self.kind == Kind::Read { Percent::ALL } else { Percent::ZERO },
            random: Percent::ZERO,
            spread: Spread::Uniform,
        };
        DiskProbe::new(workload, DEPTH, Metric::MegabytesPerSecond)
    }
}

/// Runs it, on the local disk or over the link; the caches of this machine are cold.
pub(super) fn run(place: Place<'_>, probe: &TransferProbe, echo: Option<Duration>) -> Result<Run, LabError> {
    let image = Image::make(place.scratch, probe.length_bytes)?;
    let name = image.path().to_string_lossy().into_owned();
    let cached;
    let (mut model, mut negotiated) = (None, None);
    let busy;
    let took = if let Some((site, link)) = place.over {
        let target = Service::target(TARGET, &name, "write = \"back\"\n");
        let _service = Service::start(site, place.binary, &target, &[])?;
        cached = image.cool()?;
        let (options, lun) = Service::options()?;
        let disk = SessionDisk::one(&options, lun, BLOCK_BYTES);
        let before = DiskTime::now(place.scratch);
        let (took, agreed) = site.near(|| {
            let session = Session::open(&disk)?;
            let agreed = session.negotiated();
            Ok::<_, LabError>((carry(session, probe)?, agreed))
        })??;
        busy = disk_busy(place.scratch, before);
        if let Some(agreed) = &agreed {
            let driven = Driven { link, congestion_control: &site.congestion_control()? };
            model = model::disk(driven, &probe.workload(), agreed, echo);
        }
        negotiated = agreed;
        took
    } else {
        let spec = VolumeSpec {
            name,
            store: StoreSpec::File { path: image.path().to_owned(), create_bytes: None },
            read_only: false,
            provisioning: Provisioning::Thin,
            engine: EngineKind::Auto,
            identity: IdentityOverride::default(),
            block_length_bytes: BLOCK_BYTES,
            protection: None,
            large_pages: false,
        };
        let volume = Volume::open(&spec).map_err(|error| LabError::NotReady(error.to_string()))?;
        cached = image.cool()?;
        let before = DiskTime::now(place.scratch);
        let took = Local::open(&Arc::clone(&volume)).and_then(|local| carry(local, probe));
        busy = disk_busy(place.scratch, before);
        // Everything was flushed.
        let _ = volume.close();
        took?
    };
    let rate = probe.length_bytes as f64 / 1e6 / took.as_secs_f64().max(1e-9);
    Ok(Run { cached, negotiated, further: Vec::from_iter(busy), ..Run::of(rate, model) })
}

/// The whole length in order, with a few requests under way; then a flush after writes.
fn carry<E: Endpoint>(mut endpoint: E, probe: &TransferProbe) -> Result<Duration, LabError> {
    let began = Instant::now();
    let mut next = 0;
    let mut under_way = 0;
    let mut slots = vec![None; DEPTH as usize];
    let mut ended = Vec::new();
    while next < probe.length_bytes || under_way > 0 {
        for (slot, operation) in (0..).zip(&mut slots) {
            if operation.is_none() && next < probe.length_bytes {
                let length = (probe.length_bytes - next).min(REQUEST_BYTES);
                let begun = Operation { kind: probe.kind, offset_bytes: next, length_bytes: length as u32 };
                let buffer = endpoint.buffer(begun.length_bytes)?;
                endpoint.submit(slot, &begun, buffer);
                *operation = Some((begun, 0));
                next += length;
                under_way += 1;
            }
        }
        endpoint.poll(PATIENCE, &mut ended)?;
        for end in ended.drain(..) {
            let place = slots.get_mut(end.slot as usize);
            let Some((place, (operation, tries))) =
                place.and_then(|place| place.take().map(|old| (place, old)))
            else {
                continue;
            };
            match (end.end, end.buffer) {
                (End::Good, Some(buffer)) => {
                    endpoint.recycle(buffer);
                    under_way -= 1;
                }
                (End::Again | End::Busy, Some(buffer)) if tries < TRIES => {
                    endpoint.submit(end.slot, &operation, buffer);
                    *place = Some((operation, tries + 1));
                }
                (End::Failed(fault), _) => return Err(LabError::NotReady(fault.reason().to_owned())),
                _ => return Err(LabError::NotReady("an operation does not end well".to_owned())),
            }
        }
    }
    if probe.kind == Kind::Write {
        endpoint.flush()?;
    }
    let took = began.elapsed();
    endpoint.close();
    Ok(took)
}
