//! A file server's work: the same files read over and over, so that the target's page cache is what counts.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use lunette_workload::FileDraws;
use rustix::fs::OFlags;

use super::{Figure, Files, Observer, Outcome, Way, fill_file, over_iscsi, prepared, site_of, together};
use crate::LabError;
use crate::study::probe::{Design, Duty, Keys, Place};

/// The length of a file.
const FILE_BYTES: usize = 2 << 20;
/// The most that any cell has of them.
const FILES_MAX: u32 = 1024;
/// What the paper's target had for its page cache.
const MEMORY_BYTES: u64 = 896 << 20;
/// How many are read.
const READS: u32 = 4096;
/// A quick run has so much less of files and of reads.
const QUICK: u32 = 64;
/// O_DIRECT needs memory at such addresses.
const ALIGNMENT: usize = 4096;

/// Reads whole files past the page cache of this side.
struct Reader {
    root: PathBuf,
    memory: Vec<u8>,
    begin: usize,
}

impl Reader {
    fn at(root: &Path) -> Self {
        let memory = vec![0; FILE_BYTES + ALIGNMENT];
        let begin = memory.as_ptr().align_offset(ALIGNMENT);
        Self { root: root.to_owned(), memory, begin }
    }

    fn read(&mut self, number: u32) -> io::Result<()> {
        let direct = OFlags::DIRECT.bits().cast_signed();
        let path = self.root.join(number.to_string());
        let mut file = OpenOptions::new().read(true).custom_flags(direct).open(path)?;
        file.read_exact(&mut self.memory[self.begin..self.begin + FILE_BYTES])
    }
}

/// Runs it on so many files, fewer where it is to be quick.
pub(super) fn run(place: Place<'_>, design: Design, files: u32, duty: Duty) -> Result<Outcome, LabError> {
    let less = if duty.is_quick { QUICK } else { 1 };
    let (files, all, reads) = (files / less, FILES_MAX / less, READS / less);
    // An eighth and a bit are what the file system takes for itself.
    let image_bytes = u64::from(all) * FILE_BYTES as u64 * 9 / 8 + (16 << 20);
    let (image, _) = prepared(place, image_bytes, Files::Web, |root| {
        (0..all).try_for_each(|number| fill_file(&root.join(number.to_string()), FILE_BYTES))
    })?;
    let memory_bytes = (!duty.is_quick).then_some(MEMORY_BYTES);
    let (lines, observer) = (design.lines(), Observer::at(place));
    let way = Way { lines: &lines, keys: Keys::Fujita, caches: false, is_synchronous: false, memory_bytes };
    let (told, negotiated) = over_iscsi(place, site_of(place)?, image, way, |mounted, service| {
        let failed = LabError::system("a file server's file");
        let mut reader = Reader::at(mounted.root());
        // Hot caches: all have been read.
        (0..files).try_for_each(|number| reader.read(number)).map_err(&failed)?;
        let measure = || {
            let (before, begun) = (service.read_bytes().map_err(&failed)?, Instant::now());
            let mut draws = FileDraws::new(files, duty.seed).take(reads as usize);
            draws.try_for_each(|number| reader.read(number)).map_err(&failed)?;
            let seconds = begun.elapsed().as_secs_f64().max(1e-9);
            let bytes = f64::from(reads) * FILE_BYTES as f64;
            let missed = service.read_bytes().map_err(&failed)?.saturating_sub(before) as f64 / bytes;
            let hits_percent = (1.0 - missed).clamp(0.0, 1.0) * 100.0;
            Ok::<_, LabError>(vec![(Figure::Read, bytes / 1e6 / seconds), (Figure::Hits, hits_percent)])
        };
        let (figures, seen) = observer.watch(measure)?;
        Ok(together((figures?, seen)))
    })?;
    // What is hot was never to be cold.
    Ok(Outcome { told, cached: None, negotiated })
}
