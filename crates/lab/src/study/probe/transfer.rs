//! Parts of a disk, each as long as a file, one after the other: from its beginning to its end, and made stable where it was written.

use std::time::{Duration, Instant};

use lunette_block::{StoreSpec, Volume, VolumeSpec};
use lunette_workload::{Kind, Noise, Operation, Percent, Sizes, Spread, Workload};

use super::disk::DiskProbe;
use super::model::{self, Driven};
use super::seen::{Observer, Seen};
use super::{Metric, Place, Run};
use crate::bench::content_seed;
use crate::endpoint::{End, Endpoint, Local, Session, SessionDisk};
use crate::study::echo::Echo;
use crate::study::image::Image;
use crate::study::service::Service;
use crate::study::setting::Setting;
use crate::study::site::{BLOCK_BYTES, TARGET};
use crate::{LabError, WriteMode};

/// As a file system's read-ahead and write-back would have it.
const REQUEST_BYTES: u32 = 256 << 10;
const DEPTH: u32 = 8;
/// So long goes it on, if there are parts enough: the system counts the time of disks and processors in steps of up to 10 ms.
const ENOUGH: Duration = Duration::from_millis(200);
/// What all parts have together at most, unless one has more: a line takes longer for them than a disk.
const ALL_BYTES: u64 = 256 << 20;
const ALL_BYTES_OVER_A_LINK: u64 = 32 << 20;
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
    /// The same without an end, as the model knows it, with what is set.
    fn workload(&self, set: &[Setting]) -> DiskProbe {
        let workload = Workload {
            sizes: Sizes::one(REQUEST_BYTES),
            read: if self.kind == Kind::Read { Percent::ALL } else { Percent::ZERO },
            random: Percent::ZERO,
            spread: Spread::Uniform,
        };
        let mut probe = DiskProbe::new(workload, DEPTH, Metric::MegabytesPerSecond);
        probe.set(set);
        probe
    }
}

/// In which requests a part is carried.
#[derive(Debug, Clone, Copy)]
struct Pieces {
    size_bytes: u32,
    /// So many are under way.
    depth: u32,
}

/// How many parts there are.
fn most(length_bytes: u64, is_over_a_link: bool) -> u64 {
    (if is_over_a_link { ALL_BYTES_OVER_A_LINK } else { ALL_BYTES } / length_bytes.max(1)).max(1)
}

/// Runs it, on the local disk or over the link; the caches of this machine are cold.
pub(super) fn run(place: Place<'_>, probe: &TransferProbe) -> Result<Run, LabError> {
    let most = most(probe.length_bytes, place.over.is_some());
    let image = Image::make(place.scratch, probe.length_bytes * most)?;
    let observer = Observer::at(place);
    let name = image.path().to_string_lossy().into_owned();
    let workload = probe.workload(place.set);
    let pieces = Pieces { size_bytes: workload.mix().size_bytes, depth: workload.depth };
    let cached;
    let (mut modelled, mut negotiated, mut exchanged) = (None, None, None);
    let (rate, seen) = if let Some((site, link)) = place.over {
        let target = Service::target(TARGET, &name, "write = \"back\"\n");
        let _service = Service::start(site, place.binary, &target, &[])?;
        cached = image.cool()?;
        let (options, lun) = Service::options()?;
        let options = workload.session(options);
        let disk = SessionDisk::one(&options, lun, BLOCK_BYTES);
        let driven = Driven { link, congestion_control: &site.congestion_control()? };
        let echo = Echo::before(site, model::payload(driven, &workload))?;
        let (told, agreed) = site.near(|| {
            let session = Session::open(&disk)?;
            let agreed = session.negotiated();
            Ok::<_, LabError>((carry(session, (probe, pieces), (most, ENOUGH), observer)?, agreed))
        })??;
        if let Some(agreed) = &agreed {
            // All of it has been answered.
            exchanged = echo.behind(true);
            modelled = model::disk(driven, &workload, agreed, exchanged);
        }
        negotiated = agreed;
        told
    } else {
        let spec = VolumeSpec {
            block_length_bytes: BLOCK_BYTES,
            ..VolumeSpec::new(name, StoreSpec::File { path: image.path().to_owned(), create_bytes: None })
        };
        let volume = Volume::open(&spec).map_err(|error| LabError::NotReady(error.to_string()))?;
        cached = image.cool()?;
        // As over the link: a part is made stable at its end.
        let opened = Local::open(&volume, WriteMode::Back);
        let told = opened.and_then(|local| carry(local, (probe, pieces), (most, ENOUGH), observer));
        // Everything was flushed.
        let _ = volume.close();
        told?
    };
    let Seen { shares, processor, busy, keeping, lost_before, lasted, disk } = seen;
    let further = Vec::from_iter(disk);
    let round_trip = modelled.as_ref().map(|modelled| modelled.round_trip);
    let model = modelled.map(|modelled| modelled.expected);
    let run = Run::of(rate, model);
    let run = Run { shares, processor, busy, keeping, lost_before, lasted, ..run };
    Ok(Run { cached, negotiated, further, exchanged, round_trip, ..run })
}

/// Carries one part after the other: at least one, at most as many as there are, and none more when that was enough. Answers 10^6
/// bytes per second, and what was seen meanwhile.
fn carry<E: Endpoint>(
    mut endpoint: E,
    (probe, pieces): (&TransferProbe, Pieces),
    (most, enough): (u64, Duration),
    observer: Observer<'_>,
) -> Result<(f64, Seen), LabError> {
    let mut noise = Noise::new(content_seed(), 0);
    let work = || -> Result<f64, LabError> {
        let began = Instant::now();
        let mut parts = 0;
        while parts == 0 || (parts < most && began.elapsed() < enough) {
            part(&mut endpoint, (probe, pieces), parts * probe.length_bytes, &mut noise)?;
            parts += 1;
        }
        let bytes = parts * probe.length_bytes;
        Ok(bytes as f64 / 1e6 / began.elapsed().as_secs_f64().max(1e-9))
    };
    let (rate, seen) = observer.watch(work)?;
    let rate = rate?;
    endpoint.close();
    Ok((rate, seen))
}

/// One part in order, with a few requests under way; then a flush after writes.
fn part<E: Endpoint>(
    endpoint: &mut E,
    (probe, pieces): (&TransferProbe, Pieces),
    offset_bytes: u64,
    noise: &mut Noise,
) -> Result<(), LabError> {
    let mut next = offset_bytes;
    let end_bytes = offset_bytes + probe.length_bytes;
    let mut under_way = 0;
    let mut slots = vec![None; pieces.depth as usize];
    let mut ended = Vec::new();
    while next < end_bytes || under_way > 0 {
        for (slot, operation) in (0..).zip(&mut slots) {
            if operation.is_none() && next < end_bytes {
                let length = (end_bytes - next).min(pieces.size_bytes.into());
                let begun = Operation { kind: probe.kind, offset_bytes: next, length_bytes: length as u32 };
                let mut buffer = endpoint.buffer(begun.length_bytes)?;
                if probe.kind == Kind::Write {
                    noise.fill(&mut buffer);
                }
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
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn there_are_more_of_short_parts_and_one_of_long_ones() {
        let of = |is_over_a_link| [1, 8, 32, 128].map(|mib| most(mib << 20, is_over_a_link));
        assert_eq!((of(false), of(true)), ([256, 32, 8, 2], [32, 4, 1, 1]));
    }

    #[test]
    fn one_part_after_the_other_is_carried_until_that_is_enough() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("disk");
        std::fs::write(&path, vec![7; 3 << 20]).expect("a file");
        let spec = VolumeSpec {
            block_length_bytes: BLOCK_BYTES,
            ..VolumeSpec::new("disk", StoreSpec::File { path: path.clone(), create_bytes: None })
        };
        let volume = Volume::open(&spec).expect("a volume");
        let observer = Observer::without_network(directory.path());
        let of = |kind, most, enough| {
            let local = Local::open(&volume, WriteMode::Back).expect("an endpoint");
            let pieces = Pieces { size_bytes: 96 << 10, depth: 3 };
            carry(local, (&TransferProbe { kind, length_bytes: 1 << 20 }, pieces), (most, enough), observer)
        };
        // There is no fourth one to be read.
        assert!(of(Kind::Read, 4, Duration::MAX).is_err() && of(Kind::Read, 4, Duration::ZERO).is_ok());
        let (rate, seen) = of(Kind::Read, 3, Duration::MAX).expect("three parts");
        assert!(rate > 0.0 && (0.0..=1.0).contains(&seen.shares.idle), "{rate} {seen:?}");
        assert!(seen.processor > 0.0, "{seen:?}");
        of(Kind::Write, 2, Duration::MAX).expect("two parts");
        let data = std::fs::read(&path).expect("a file");
        let written = data.chunks(1 << 20).map(|part| part.iter().any(|byte| *byte != 7));
        assert_eq!(written.collect::<Vec<_>>(), [true, true, false]);
        of(Kind::Write, 1, Duration::MAX).expect("a part");
        let again = std::fs::read(&path).expect("a file");
        let both = data[..2 << 20].chunks_exact(512).chain(again[..1 << 20].chunks_exact(512));
        assert_eq!(both.collect::<HashSet<&[u8]>>().len(), (3 << 20) / 512, "each is another one");
        volume.close().expect("nothing is under way");
    }
}
