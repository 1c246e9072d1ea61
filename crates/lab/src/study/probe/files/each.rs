//! Files one by one, each another one: how long one takes to be opened, read or written, and closed.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use super::{
    FILLING, Figure, Files, Observer, Outcome, PATIENCE, Scheme, Told, Way, beside, fill_file, over_iscsi,
    prepared, site_of, together,
};
use crate::LabError;
use crate::study::files::{Client, Directory, Mounted, Nfs, Share, ShareKind, Smb, watched};
use crate::study::image::Image;
use crate::study::probe::{Duty, Keys, Place};
use crate::study::statistics::{deviation, mean};

/// The sizes of the paper's tables 4 and 5, in KiB.
pub(crate) const SIZES_KIB: [u32; 5] = [1, 4, 16, 64, 256];
/// Room for what is read and what is written.
const IMAGE_BYTES: u64 = 256 << 20;
/// So long goes it on at least, if there are files enough: the system counts the time of disks and processors in steps of up to 10 ms.
const ENOUGH: Duration = Duration::from_millis(200);

/// How many files of each size are read, and how many written: at least, and at most where that takes no time.
fn counts(scheme: Scheme, duty: Duty) -> RangeInclusive<u32> {
    let least = if duty.is_quick { 10 } else { 100 };
    let most = if scheme == Scheme::Direct { 250 } else { 60 };
    least..=most.max(least)
}

fn name(writes: bool, size_kib: u32, number: u32) -> String {
    format!("{}-{size_kib}-{number}", if writes { "new" } else { "old" })
}

/// Runs it. The file system is mounted anew wherever it is, so that nothing of it is in a cache.
pub(super) fn run(place: Place<'_>, scheme: Scheme, duty: Duty) -> Result<Outcome, LabError> {
    let counts = counts(scheme, duty);
    let (image, cached) = prepared(place, IMAGE_BYTES, Files::Used, |root| {
        for number in 0..*counts.end() {
            for size_kib in SIZES_KIB {
                fill_file(&root.join(name(false, size_kib, number)), (size_kib << 10) as usize)?;
            }
        }
        Ok(())
    })?;
    let observer = Observer::at(place);
    let (told, negotiated) = match scheme {
        Scheme::Direct => {
            let mounted = Mounted::new(image.path(), beside(image, "root"), false)?;
            let told = both(&mut Directory(mounted.root().to_owned()), observer, &counts)?;
            mounted.unmount()?;
            (told, None)
        }
        Scheme::Iscsi { is_synchronous } => {
            let lines = "write = \"back\"\n";
            let way = Way { lines, keys: Keys::Defaults, caches: false, is_synchronous, memory_bytes: None };
            over_iscsi(place, site_of(place)?, image, way, |mounted, _| {
                both(&mut Directory(mounted.root().to_owned()), observer, &counts)
            })?
        }
        Scheme::Share(kind) => (over_share(place, image, kind, &counts)?, None),
    };
    Ok(Outcome { told, cached, negotiated })
}

fn over_share(
    place: Place<'_>,
    image: &Image,
    kind: ShareKind,
    counts: &RangeInclusive<u32>,
) -> Result<Vec<Told>, LabError> {
    let (site, observer) = (site_of(place)?, Observer::at(place));
    let (served, own) = (beside(image, "served"), beside(image, kind.name()));
    let mounted = Mounted::new(image.path(), served.clone(), true)?;
    let mut share = Share::start(site, kind, &served, &own)?;
    let told = match kind {
        ShareKind::Smb => {
            let mut smb = Smb::connect(site, &own)?;
            let work = || {
                smb.log_in().map_err(LabError::system("a login by SMB"))?;
                both(&mut smb, observer, counts)
            };
            watched(PATIENCE, work, || share.kill())??
        }
        ShareKind::Nfs => {
            let work = || {
                site.near(|| {
                    let mut nfs = Nfs::connect(&served).map_err(LabError::system("an NFS mount"))?;
                    both(&mut nfs, observer, counts)
                })?
            };
            watched(PATIENCE, work, || share.kill())??
        }
    };
    drop(share);
    mounted.unmount()?;
    Ok(told)
}

/// Reads all files, then writes as many: what keeps the one waiting may be something else than what keeps the other.
fn both(
    client: &mut dyn Client,
    observer: Observer<'_>,
    counts: &RangeInclusive<u32>,
) -> Result<Vec<Told>, LabError> {
    let mut told = Vec::new();
    for writes in [false, true] {
        let (figures, seen) = observer.watch(|| times(client, writes, counts, ENOUGH))?;
        told.extend(together((figures?, seen)));
    }
    Ok(told)
}

/// Reads or writes files of all sizes in turn: the least number of each, and then more until that was enough.
fn times(
    client: &mut dyn Client,
    writes: bool,
    counts: &RangeInclusive<u32>,
    enough: Duration,
) -> Result<Vec<(Figure, f64)>, LabError> {
    let failed = LabError::system("a file of a study");
    let data = SIZES_KIB.map(|size_kib| vec![FILLING; (size_kib << 10) as usize]);
    if writes {
        data.iter().try_for_each(|data| client.prepare(data)).map_err(&failed)?;
    }
    let mut times_ms = SIZES_KIB.map(|_| Vec::new());
    let all_begun = Instant::now();
    for number in 0..*counts.end() {
        if number >= *counts.start() && all_begun.elapsed() >= enough {
            break;
        }
        for ((size_kib, data), times_ms) in SIZES_KIB.into_iter().zip(&data).zip(&mut times_ms) {
            let name = name(writes, size_kib, number);
            let begun = Instant::now();
            if writes { client.write(&name, data) } else { client.read(&name, data.len()) }
                .map_err(&failed)?;
            times_ms.push(begun.elapsed().as_secs_f64() * 1e3);
        }
    }
    let figures = SIZES_KIB.into_iter().zip(&times_ms).flat_map(|(size_kib, times_ms)| {
        [(false, mean(times_ms)), (true, deviation(times_ms))]
            .map(|(is_deviation, figure)| (Figure::Each { writes, size_kib, is_deviation }, figure))
    });
    Ok(figures.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::{fs, io};

    use crate::study::probe::Turn;

    /// So many files of each size, and no more.
    const TEN: RangeInclusive<u32> = 10..=10;

    fn read(directory: &mut Directory) -> Result<Vec<(Figure, f64)>, LabError> {
        times(directory, false, &TEN, Duration::ZERO)
    }

    fn write(directory: &mut Directory) -> Result<Vec<(Figure, f64)>, LabError> {
        times(directory, true, &TEN, Duration::ZERO)
    }

    #[test]
    fn deviations_are_of_all_values() {
        assert!((mean(&[1.0, 3.0]) - 2.0).abs() < 1e-12 && (deviation(&[1.0, 3.0]) - 1.0).abs() < 1e-12);
        assert!(mean(&[]).abs() < 1e-12 && deviation(&[]).abs() < 1e-12);
    }

    #[test]
    fn every_file_is_another_one_and_all_of_it_is_read() {
        let root = tempfile::tempdir().expect("a directory");
        let mut directory = Directory(root.path().to_owned());
        // Nothing is there to be read.
        assert!(read(&mut directory).is_err());
        for size_kib in SIZES_KIB {
            for number in 0..*TEN.end() {
                let path = root.path().join(name(false, size_kib, number));
                fill_file(&path, (size_kib << 10) as usize).expect("a file");
            }
        }
        let mut outcome = read(&mut directory).expect("times");
        outcome.extend(write(&mut directory).expect("times"));
        let figures: BTreeSet<_> = outcome.iter().map(|(figure, _)| format!("{figure:?}")).collect();
        assert_eq!((outcome.len(), figures.len()), (20, 20));
        assert!(outcome.iter().all(|(_, figure)| *figure >= 0.0));
        let written = fs::read(root.path().join(name(true, 256, 9))).expect("a file");
        assert_eq!(written, vec![FILLING; 256 << 10]);
        // The same again would not be new files.
        assert!(write(&mut directory).is_err());
    }

    /// Notes how long what is prepared and written is, and whether that is a file's own time.
    #[derive(Default)]
    struct Noting(Vec<(bool, usize)>);

    impl Client for Noting {
        fn read(&mut self, _: &str, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn prepare(&mut self, data: &[u8]) -> io::Result<()> {
            self.0.push((false, data.len()));
            Ok(())
        }

        fn write(&mut self, _: &str, data: &[u8]) -> io::Result<()> {
            self.0.push((true, data.len()));
            Ok(())
        }
    }

    #[test]
    fn what_is_written_is_made_ready_before_any_time_is_taken() {
        let mut client = Noting::default();
        times(&mut client, false, &(2..=2), Duration::ZERO).expect("times");
        assert_eq!(client.0, []);
        times(&mut client, true, &(2..=2), Duration::ZERO).expect("times");
        let of = |is_timed| SIZES_KIB.map(|size_kib| (is_timed, (size_kib << 10) as usize));
        assert_eq!(client.0, [of(false), of(true), of(true)].concat());
    }

    #[test]
    fn files_are_added_until_that_was_enough() {
        let written = |enough| {
            let root = tempfile::tempdir().expect("a directory");
            times(&mut Directory(root.path().to_owned()), true, &(2..=5), enough).expect("times");
            fs::read_dir(root.path()).expect("a directory").count() / SIZES_KIB.len()
        };
        assert_eq!((written(Duration::ZERO), written(Duration::MAX)), (2, 5));
        let duty = |is_quick| {
            Duty::on(Duration::ZERO, Turn { outstanding_bytes: 0, round_trips: 0, losses: None }, 1, is_quick)
        };
        let nfs = Scheme::Share(ShareKind::Nfs);
        assert_eq!((counts(nfs, duty(true)), counts(nfs, duty(false))), (10..=60, 100..=100));
    }
}
