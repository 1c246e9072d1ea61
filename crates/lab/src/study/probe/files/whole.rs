//! Files of a size, one after the other: each read to its end, and as many others written and made stable, on a file system
//! without anything in its caches.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{
    FILLING, Figure, Files, Observer, Outcome, Told, Way, beside, over_iscsi, prepared, site_of, together,
};
use crate::LabError;
use crate::study::files::Mounted;
use crate::study::probe::{Keys, Place};

/// Room for what is read and what is written, and for what the file system takes for itself.
const IMAGE_BYTES: u64 = 640 << 20;
/// So long goes it on, if there are files enough: the system counts the time of disks and processors in steps of up to 10 ms.
const ENOUGH: Duration = Duration::from_millis(200);
/// What all files have together that are there to be read, in MiB: a line takes longer for them than a disk.
const ALL_MIB: u32 = 256;
const ALL_MIB_ATTACHED: u32 = 32;
/// What a program reads or writes at once, in bytes.
const PIECE_BYTES: usize = 256 << 10;
/// Of these, a MiB has four.
const PIECES_PER_MIB: u32 = (1 << 20) / PIECE_BYTES as u32;

/// How many files there are at most.
fn most(is_attached: bool, mib: u32) -> u32 {
    (if is_attached { ALL_MIB_ATTACHED } else { ALL_MIB } / mib).max(1)
}

fn path(root: &Path, is_new: bool, number: u32) -> PathBuf {
    root.join(format!("{}-{number}", if is_new { "new" } else { "old" }))
}

/// Runs it. Before the files are read everything is mounted anew.
pub(super) fn run(place: Place<'_>, is_attached: bool, mib: u32) -> Result<Outcome, LabError> {
    let most = most(is_attached, mib);
    let (image, cached) = prepared(place, IMAGE_BYTES, Files::Used, |root| {
        (0..most).try_for_each(|number| write(&path(root, false, number), mib))
    })?;
    let observer = Observer::at(place);
    let (told, negotiated) = if is_attached {
        let way = Way {
            lines: "write = \"back\"\n",
            keys: Keys::Defaults,
            caches: true,
            is_synchronous: false,
            memory_bytes: None,
        };
        over_iscsi(place, site_of(place)?, image, way, |mounted, _| {
            both(mounted.root(), mib, (most, ENOUGH), observer)
        })?
    } else {
        let mounted = Mounted::new(image.path(), beside(image, "root"), false)?;
        let told = both(mounted.root(), mib, (most, ENOUGH), observer)?;
        mounted.unmount()?;
        (told, None)
    };
    Ok(Outcome { told, cached, negotiated })
}

/// Reads files and writes others: at least one, at most as many as there are, and none more when that was enough.
fn both(
    root: &Path,
    mib: u32,
    (most, enough): (u32, Duration),
    observer: Observer<'_>,
) -> Result<Vec<Told>, LabError> {
    let mut told = Vec::new();
    let mut written = 0;
    for figure in [Figure::Read, Figure::Written] {
        let is_new = figure == Figure::Written;
        let work = || {
            let begun = Instant::now();
            let mut number = 0;
            while number == 0 || (number < most && begun.elapsed() < enough) {
                let path = path(root, is_new, number);
                if is_new { write(&path, mib) } else { read(&path) }?;
                number += 1;
            }
            Ok((number, begun.elapsed()))
        };
        let (done, seen) = observer.watch(work)?;
        let (files, took) = done.map_err(LabError::system("a file of a study"))?;
        let rate = f64::from(files) * f64::from(mib << 20) / 1e6 / took.as_secs_f64().max(1e-9);
        told.extend(together((vec![(figure, rate)], seen)));
        written = files;
    }
    // The next one finds the room as it was.
    let removed = (0..written).try_for_each(|number| fs::remove_file(path(root, true, number)));
    removed.map_err(LabError::system("a file of a study"))?;
    Ok(told)
}

fn read(path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut piece = vec![0; PIECE_BYTES];
    while file.read(&mut piece)? > 0 {}
    Ok(())
}

/// A new file with so much in it, stable.
fn write(path: &Path, mib: u32) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    let piece = vec![FILLING; PIECE_BYTES];
    for _ in 0..mib * PIECES_PER_MIB {
        file.write_all(&piece)?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_file_is_written_and_read() {
        let root = tempfile::tempdir().expect("a directory");
        let observer = Observer::without_network(root.path());
        let of = |most, enough| both(root.path(), 2, (most, enough), observer);
        assert!(of(1, Duration::ZERO).is_err(), "there is nothing to be read");
        for number in 0..2 {
            write(&path(root.path(), false, number), 2).expect("a file");
        }
        assert_eq!(fs::metadata(path(root.path(), false, 0)).expect("it").len(), 2 << 20);
        // A third one is not there, and is not missed when two were enough.
        assert!(of(3, Duration::MAX).is_err() && of(3, Duration::ZERO).is_ok());
        let told = of(2, Duration::MAX).expect("figures");
        assert_eq!(told.iter().map(|told| told.figure).collect::<Vec<_>>(), [Figure::Read, Figure::Written]);
        assert!(told.iter().all(|told| told.measured > 0.0), "{told:?}");
        assert_eq!(fs::read_dir(root.path()).expect("a directory").count(), 2);
    }

    #[test]
    fn there_are_more_of_short_files_and_one_of_long_ones() {
        assert_eq!([1, 8, 32, 128].map(|mib| most(false, mib)), [256, 32, 8, 2]);
        assert_eq!([1, 8, 32, 128].map(|mib| most(true, mib)), [32, 4, 1, 1]);
    }
}
