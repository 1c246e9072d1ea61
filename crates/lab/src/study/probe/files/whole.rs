//! One file of a size, read to its end and another one written and made stable, on a file system without anything in its caches.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Instant;

use super::{
    FILLING, Figure, Files, Observer, Outcome, Told, Way, beside, over_iscsi, prepared, site_of, together,
};
use crate::LabError;
use crate::study::files::Mounted;
use crate::study::probe::{Keys, Place};

/// Room for the largest file twice, and for what the file system takes for itself.
const IMAGE_BYTES: u64 = 320 << 20;
/// What a program reads or writes at once, in bytes.
const PIECE_BYTES: usize = 256 << 10;
/// Of these, a MiB has four.
const PIECES_PER_MIB: u32 = (1 << 20) / PIECE_BYTES as u32;
const OLD: &str = "old";
const NEW: &str = "new";

/// Runs it. Before the file is read everything is mounted anew.
pub(super) fn run(place: Place<'_>, is_attached: bool, mib: u32) -> Result<Outcome, LabError> {
    let (image, cached) = prepared(place, IMAGE_BYTES, Files::Used, |root| write(&root.join(OLD), mib))?;
    let observer = Observer::at(place);
    let (told, negotiated) = if is_attached {
        let way = Way {
            lines: "write = \"back\"\n",
            keys: Keys::Defaults,
            caches: true,
            is_synchronous: false,
            memory_bytes: None,
        };
        over_iscsi(place, site_of(place)?, image, way, |mounted, _| both(mounted.root(), mib, observer))?
    } else {
        let mounted = Mounted::new(image.path(), beside(image, "root"), false)?;
        let told = both(mounted.root(), mib, observer)?;
        mounted.unmount()?;
        (told, None)
    };
    Ok(Outcome { told, cached, negotiated })
}

/// Reads one and writes another one.
fn both(root: &Path, mib: u32, observer: Observer<'_>) -> Result<Vec<Told>, LabError> {
    let mut told = Vec::new();
    for figure in [Figure::Read, Figure::Written] {
        let work = || {
            let begun = Instant::now();
            if figure == Figure::Read { read(&root.join(OLD)) } else { write(&root.join(NEW), mib) }?;
            Ok(f64::from(mib << 20) / 1e6 / begun.elapsed().as_secs_f64().max(1e-9))
        };
        let (rate, seen) = observer.watch(work)?;
        let measured = rate.map_err(LabError::system("a file of a study"))?;
        told.extend(together((vec![(figure, measured)], seen)));
    }
    // The next one finds the room as it was.
    fs::remove_file(root.join(NEW)).map_err(LabError::system("a file of a study"))?;
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
        assert!(both(root.path(), 2, observer).is_err(), "there is nothing to be read");
        write(&root.path().join(OLD), 2).expect("a file");
        assert_eq!(fs::metadata(root.path().join(OLD)).expect("it").len(), 2 << 20);
        let told = both(root.path(), 2, observer).expect("figures");
        assert_eq!(told.iter().map(|told| told.figure).collect::<Vec<_>>(), [Figure::Read, Figure::Written]);
        assert!(told.iter().all(|told| told.measured > 0.0), "{told:?}");
        assert_eq!(fs::read_dir(root.path()).expect("a directory").count(), 1);
    }
}
